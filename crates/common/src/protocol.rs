//! What the agent (inside a target) and the supervisor say to each other.
//!
//! ```text
//!  target                                             supervisor
//!  constructor ── connect (abstract SEQPACKET) ──────▶
//!              ── Hello ─────────────────────────────▶ checks token, SO_PEERCRED
//!              ◀── Welcome + [control memfd, uffd source fd] ─
//!  clone(evictor), which closes its copies of the program's descriptors and waits
//!              ── Ready + [userfaultfd, if made here] ▶ UFFDIO_API (it may ask EVENT_FORK, a target not)
//!              traps its system calls, where the userfaultfd is one for user mode (after Go)
//!              ◀── Go ───────────────────────────────
//!  evictor     ◀── Command ──────────────────────────  reclaim
//!              ── Reply ─────────────────────────────▶
//!  any end of the socket: the evictor kills its own process (the supervisor is gone);
//!  the supervisor frees what the process held (the process is gone, or has called exec).
//! ```
//!
//! All messages are fixed-size structs in native byte order, one per packet. All numbers from a target are
//! untrusted.

/// First word of Hello; changes with every change of this file.
pub const MAGIC: u32 = 0x6d73_700f;

/// `Hello::mode` of a process that traps its calls, and so can page itself in any run: a static program.
pub const BY_AGENT: u32 = 1;

/// `NAME:TOKEN`: name of the abstract socket (without the leading NUL), 32 hex digits of token.
pub const ENV_NAME: &str = "MEMSPILL_AGENT";

/// `NAME:DEVICE:INODE`, the latter in decimal: a name under which everybody can open the agent, where there
/// is one, and what it leads to (`agent/programs/readable.rs`).
pub const ENV_FILE: &str = "MEMSPILL_AGENT_FILE";

/// Is this the name of the agent's file, in /proc/PID/maps?
pub fn is_agent(file: &str) -> bool {
    file.starts_with("/memfd:memspill-agent")
        || file.rsplit('/').next().is_some_and(|name| name.starts_with(FILE_PREFIX))
}

/// So the second name begins, behind its directory.
pub const FILE_PREFIX: &str = "memspill-agent-";

/// The end of the name where processes may join late (`agent/trap/late.rs`): where all trap their calls, and
/// where those do that have not joined yet.
pub const NAME_LATE: &str = "-late";
pub const NAME_LATE_THEN_FREE: &str = "-late-then-free";

/// Hello.kind: a fresh program (constructor ran), or the child side of fork(), of which nothing is away that
/// the supervisor does not know of.
pub const KIND_EXEC: u32 = 0;
pub const KIND_FORK: u32 = 1;
/// Where the kernel tells nobody of forks (`Control::forks`): a process that is about to fork. It gets no
/// Welcome, but `Prepared`; then it forks, says so (`Forked`), and closes the socket, of which the child
/// has a copy: when that is closed too, no child will come.
pub const KIND_FORKS: u32 = 2;
/// The child of such a fork. `Hello::fork` says of which.
pub const KIND_CHILD: u32 = 3;

/// A thread is about to run a static program. `Hello::fork`: the signal mask that this is to have, and the
/// thread's id as it knows it, 8 bytes each. It gets no Welcome, but Go, and then it is traced. If the exec
/// fails it says so (`Forked`, with an errno), and has another Go when it is traced no more.
pub const KIND_STATIC: u32 = 4;

/// A process that is about to fork asks whether there is room for copies of what the fork leaves shared. It
/// gets no Welcome, but `Prepared`, of which `errno` alone counts: 0, or EAGAIN: not yet, ask again.
pub const KIND_FORK_ROOM: u32 = 5;

/// Welcome.uffd_source: what the second descriptor is, or what to do without one.
/// fds = [control, /dev/userfaultfd]: make one with ioctl USERFAULTFD_IOC_NEW.
pub const UFFD_FROM_DEVICE: u32 = 0;
/// fds = [control]: make one with userfaultfd(2).
pub const UFFD_FROM_SYSCALL: u32 = 1;
/// fds = [control, userfaultfd]: this process has one already (it came with EVENT_FORK).
pub const UFFD_GIVEN: u32 = 2;
/// fds = []: not managed (the supervisor has said why); carry on without an agent.
pub const UFFD_NONE: u32 = 3;
/// fds = [control, eventfd]: none; the process pages itself (`agent/pages/`), and the control file
/// has what takes a userfaultfd's place (`link.rs`). All system calls are trapped.
pub const UFFD_LINK: u32 = 5;
/// The same; pages are away in memory that is registered with a userfaultfd of the agent's own, for faults of
/// user mode only (`agent/pages/holes.rs`).
pub const UFFD_LINK_REGISTERED: u32 = 6;

/// Most pages in staging: two halves, so that one can be read while the other fills.
pub const STAGING_PAGES: u32 = 256;
/// Most runs in one Command::MOVE.
pub const RUNS_MAX: usize = 128;
/// Doorbell pages: how a thread of the target calls the pager (see `Doorbell`).
pub const DOORBELLS: usize = 16;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Hello {
    pub magic: u32,
    pub kind: u32,
    pub pid: u32,
    /// `BY_AGENT`, or 0: in the run's own mode.
    pub mode: u32,
    pub token: [u8; 32],
    /// KIND_CHILD: `Prepared::fork`.
    pub fork: [u8; 16],
}

/// The answer to KIND_FORKS. From here on nothing of the process is taken out, until `Forked`, which is
/// answered by Go where there is a child, or until the socket is closed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Prepared {
    pub magic: u32,
    /// 0, or why it cannot fork. EAGAIN: not now, ask again.
    pub errno: i32,
    /// What the child knows and nobody else.
    pub fork: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Forked {
    pub magic: u32,
    /// 0, or the errno of the fork: there is no child.
    pub errno: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Welcome {
    pub magic: u32,
    pub uffd_source: u32,
}

/// In place of an errno in Ready: the program is traced (ptrace), and would stop at each call that is
/// trapped.
pub const LEFT_TO_TRACER: i32 = 0x7472;

/// Where the agent's own memory is. None of it may be evicted; staging, doorbells and ident are registered by
/// the supervisor when memory gets tight, and not before.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ready {
    pub magic: u32,
    /// 0, or the errno with which the agent gave up; then the rest is 0 and the program runs unmanaged.
    pub errno: i32,
    /// STAGING_PAGES pages, private anonymous, never touched by the agent itself.
    pub staging_addr: u64,
    /// DOORBELLS pages.
    pub doorbell_addr: u64,
    /// One page with MADV_WIPEONFORK, so missing in the child of a fork, which touches it first. The bytes
    /// that the pager fills it with tell which process the new userfaultfd belongs to.
    pub ident_addr: u64,
    /// Evictor's stack, TLS and whatever else it writes: [addr, addr + len).
    pub private_addr: u64,
    pub private_len: u64,
    /// Mapping of the control page.
    pub control_addr: u64,
    /// Writable data of the agent's own image (.data, .bss): [addr, addr + len).
    pub image_addr: u64,
    pub image_len: u64,
    /// What the dispatch keeps for the threads: [addr, addr + len); 0 where nothing is trapped.
    pub blocks_addr: u64,
    pub blocks_len: u64,
    /// What `agent/pages/` keeps for itself: [addr, addr + len); 0 in `kernel` mode.
    pub tables_addr: u64,
    pub tables_len: u64,
    /// Thread id of the evictor, as this process sees it and as the userfaultfd names it. It runs already.
    pub evictor_tid: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Go {
    pub magic: u32,
    /// 0: start the evictor. Else the errno of what failed at the supervisor: run unmanaged.
    pub errno: i32,
}

/// Move the runs listed in the control page into staging, fill in `MoveRun::moved` and `MoveRun::errno`, then
/// Reply.
pub const OP_MOVE: u32 = 1;
/// Make the pages of the runs exclusive to the process (MADV_POPULATE_WRITE), then Reply: for pages that a
/// fork has made shared, which MOVE refuses. Not part of a MOVE: it faults where a page is missing, and must
/// be served like any fault.
pub const OP_POPULATE: u32 = 2;
/// Empty staging pages [arg, arg + arg2) without an event (guard install + remove; MADV_DONTNEED where that
/// is not known). No Reply.
pub const OP_ZAP: u32 = 3;
/// The evictor is the last thread of its process: end, so that wait(2) says `arg`. No Reply.
pub const OP_EXIT: u32 = 4;
/// Install what has been delivered (`agent` mode), then Reply.
pub const OP_INSTALL: u32 = 7;
/// Protect the pages of the runs against writes, which a fork has left shared, as far as they can be
/// (agent/pages/write_protect.rs), then Reply.
pub const OP_PROTECT: u32 = 8;

/// Command.arg2 of OP_MOVE: some of the runs may lie in writable and executable memory, for which staging is
/// made executable too, for the moment of the MOVE: the kernel moves pages between mappings of equal
/// protection only.
pub const MOVE_EXEC: u32 = 1;

/// `Command::arg2` of OP_MOVE: the evictor is to run on this CPU, or anywhere.
pub const fn move_cpu(cpu: Option<u32>) -> u32 {
    match cpu {
        Some(cpu) if cpu < (1 << 24) - 1 => (cpu + 1) << 8,
        _ => 0,
    }
}

/// The same CPU, counted from 1, or 0.
pub const fn cpu_of_move(arg2: u32) -> u32 {
    arg2 >> 8
}

const _: () = assert!(cpu_of_move(move_cpu(Some(0)) | MOVE_EXEC) == 1 && cpu_of_move(move_cpu(None)) == 0);

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Command {
    pub op: u32,
    /// Echoed in Reply.
    pub seq: u32,
    /// OP_MOVE, OP_POPULATE, OP_PROTECT: number of runs. OP_ZAP: first staging page.
    pub arg: u32,
    /// OP_ZAP: number of staging pages. OP_MOVE: a CPU (bits 31 to 8, `move_cpu`)
    /// and MOVE_EXEC (bit 0).
    pub arg2: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Reply {
    pub seq: u32,
    pub runs_done: u32,
}

/// Ranges that one call may name; where it uses more, the last one is the hull of the rest.
pub const SLOT_RANGES: usize = 16;
/// [start, end).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RangeInUse {
    pub start: u64,
    pub end: u64,
}

/// The memory that a thread's system call uses while it is under way: the first `count` ranges. Written by
/// the thread.
#[repr(C)]
pub struct Slot {
    /// Address of the next slot, 0 at the end. Slots are only added, in front, and never freed.
    pub next: u64,
    pub count: u32,
    pub reserved: u32,
    pub ranges: [RangeInUse; SLOT_RANGES],
}

/// One contiguous run to move: src → staging page `staging` onwards.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct MoveRun {
    pub src_addr: u64,
    pub pages: u32,
    pub staging: u32,
    /// Filled by the evictor: pages moved, always a prefix of the run.
    pub moved: u32,
    /// Filled by the evictor: 0, or why it stopped (positive errno). ECANCELED: `abort` was set.
    pub errno: i32,
}

/// MoveRun.errno: the next page is in use by a system call that is under way, or by the kernel for good; it
/// was not tried. (ETXTBSY, which the kernel never says here.)
pub const RUN_IN_USE: i32 = 26;

/// Doorbell.call: [addr, addr + len) was mapped just now, and nobody has touched it yet.
pub const CALL_MAPPED: u32 = 0;
/// The same, but not all of it is new: what was there before may hold pages, registered or not.
pub const CALL_GROWN: u32 = 3;
/// Guards were put over all of [addr, addr + len) just now: what was there is gone.
pub const CALL_GUARDED: u32 = 1;
/// The guards in [addr, addr + len) are about to be removed: what was under them reads as zero from then on.
pub const CALL_UNGUARD: u32 = 2;
/// MADV_REMOVE of [addr, addr + len) is about to be called: of what is shared there, nothing is left for
/// anybody.
pub const CALL_REMOVE: u32 = 4;
/// madvise's MADV_PAGEOUT, MADV_COLD and MADV_WILLNEED of [addr, addr + len). The first may take seconds.
pub const CALL_PAGEOUT: u32 = 5;
pub const CALL_COLD: u32 = 6;
pub const CALL_WILLNEED: u32 = 7;
/// As CALL_WILLNEED, but it is answered when the pages are there, as far as there is room for them, and in
/// `agent` mode too. For accesses that make no fault.
pub const CALL_BRING: u32 = 10;
/// The file with the inode `addr` on device `len` is about to be used by a call that does not fault: all of
/// it is to be in the file when the call is answered, and to stay there.
pub const CALL_FILE_USED: u32 = 8;
/// A file was mapped at [addr, addr + len), with no right to touch it yet.
pub const CALL_FILE_MAPPED: u32 = 9;

/// Doorbell.answered: 0 is a call that nobody has seen yet. A pager takes it (only one does: a fault may be
/// told twice, and whoever reads the page by accident calls nobody), and says when its work is done.
pub const DOORBELL_TAKEN: u32 = 1;
pub const DOORBELL_ANSWERED: u32 = 2;
/// CALL_BRING: there is nothing to bring. The process is not managed, or none of these pages is away.
pub const DOORBELL_IN_VAIN: u32 = 3;

/// Control.wants_answers: the agent asks that its doorbells be registered. The supervisor: that cannot be.
pub const WANTS_ASKED: u32 = 1;
pub const WANTS_REFUSED: u32 = 2;

/// A call from a thread of the target to the pager: claim a doorbell, fill it in, touch its page. The fault
/// is the call; when the work is done, `answered` is set and the page is filled; then the caller zaps the
/// page again and gives the doorbell back. If `answered` is still 0 there was no fault, for the page was
/// present (mlockall, a program that reads all of its memory): the caller zaps the page and tries again.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Doorbell {
    pub addr: u64,
    pub len: u64,
    /// CALL_*
    pub call: u32,
    /// 0, DOORBELL_*
    pub answered: u32,
    /// CALL_PAGEOUT and its kin: whose memory it is, as the caller sees its number. 0: the caller's.
    pub pid: u32,
    pub reserved: u32,
}

/// The page shared by agent and supervisor.
///
/// `lock` is taken by the evictor around each MOVE ioctl, and by a pager around each read of the userfaultfd,
/// because a MOVE must never run between the reading of an unmap event and its processing (it would take
/// pages of the next mapping at that address). 0 free, 1 held, 2 held and somebody may be waiting on the
/// (shared) futex. A waiter waits with a timeout and then checks that the other side is alive.
#[repr(C)]
pub struct Control {
    pub lock: u32,
    /// Non-zero: the evictor must not start another MOVE of this command (checked under `lock`).
    pub abort: u32,
    /// Non-zero: memory is tight, new mappings are to be registered before mmap returns (ring a doorbell).
    pub announces: u32,
    /// Non-zero: some memory was marked MADV_WIPEONFORK or MADV_DONTFORK, so the child of a fork has not all
    /// of it.
    pub fork_advice: u32,
    /// Non-zero: the program has used guards (MADV_GUARD_INSTALL), over which nothing may be filled.
    pub guards: u32,
    /// Threads that are inside fork(): one of them may have made its copy, and the event of it be still to
    /// come.
    pub forking: u32,
    /// Non-zero: the doorbells are registered, so a call is answered. Wherever `announces` is set, this is.
    pub answers: u32,
    /// WANTS_*: the program wants to call, though memory is not tight.
    pub wants_answers: u32,
    /// How often a thread was about to open a file that is read past the page cache (O_DIRECT), and how often
    /// such a call has come back.
    pub direct_begun: u32,
    pub direct_ended: u32,
    /// The number of batches of shared memory that this process has mapped and that are being taken out: none
    /// of its threads opens such a file meanwhile.
    pub takes_shared: u32,
    /// Non-zero: files of tmpfs are managed in this run. It does not change.
    pub files: u32,
    /// Calls on files of tmpfs that threads are in; and those among them on files that `file_filter` has,
    /// which keep all pages of all files where they are.
    pub file_calls: u32,
    pub held_file_calls: u32,
    /// Non-zero: the program has a seccomp filter of its own, so its calls on files are not told.
    pub confined: u32,
    /// Non-zero: the kernel tells nobody of forks, so the agent does. It does not change.
    pub forks: u32,
    /// Non-zero: the evictor has been let go by the thread that has joined, and takes commands.
    pub takes_commands: u32,
    pub reserved: u32,
    /// For each file that may be managed the bit `file_bit` is set; others may have the same.
    pub file_filter: [u32; FILTER_WORDS],
    pub doorbells: [Doorbell; DOORBELLS],
    pub runs: [MoveRun; RUNS_MAX],
}

/// Words of `Control::file_filter`.
pub const FILTER_WORDS: usize = 64;

/// The bit of a file in `Control::file_filter`: word, and bit in it.
pub fn file_bit(dev: u64, ino: u64) -> (usize, u32) {
    // The golden ratio, of which the upper bits of a product are spread well.
    let hash = (ino ^ dev.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53;
    ((hash >> 5) as usize % FILTER_WORDS, 1 << (hash & 31))
}

/// The place of `runs`. The tests that speak as an agent would read it here, and MAGIC above.
pub const RUNS_AT: usize = 840;

const _: () = assert!(core::mem::offset_of!(Control, runs) == RUNS_AT);
const _: () = assert!(core::mem::size_of::<Control>() <= 4096);
const _: () = assert!(core::mem::size_of::<MoveRun>() == 24);
const _: () = assert!(core::mem::size_of::<Hello>() == 64);
