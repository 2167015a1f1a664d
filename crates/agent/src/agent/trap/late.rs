//! Processes that join late, or never: children of forks, and programs that have just been started.
//!
//! Most children of shells run a few calls and then another program, and most of those programs end within
//! milliseconds. To join takes an evictor, a filter, descriptors, and the supervisor's answer, twice; that
//! is more than all the rest of such a process. So it runs on with its calls trapped, and joins when it turns
//! out to be of another kind:
//!
//! ```text
//!   a program's constructor    calls trapped ─ a timer ──┐
//!   the child of a fork        a timer ─ trapped again ──┤
//!                                                        ▼
//!                    calls of `may_be_made`: made
//!                    any other call, or the timer: joins first (KIND_EXEC, KIND_FORK)
//!                    execve, exit: was never seen
//! ```
//!
//! *Nothing reads as zeros that was something else.* Nothing of a program is away before it has joined. The
//! child of a fork joins late where nothing of its parent is away, nor can be until the fork is made; then it
//! has all of its memory, as without memspill, and nobody needs to be asked before the fork. A page leaves
//! only inside the gate, and the fork is alone there from its look until the clone is made.
//!
//! *The process is counted, and can be taken from*, some ms later at most (LATE_MS), whatever it does. A call
//! that could wait, change who it is, make threads or processes, or make it much larger, has it join before.
//! So nothing that waits is interrupted by the timer, but reads and writes of pipes and the opening of a
//! FIFO, which go on (SA_RESTART). A process that cannot join runs on outside the budget as any that cannot,
//! with all of its memory.
//!
//! *Where the kernel serves and tells all* (kernel mode) calls are trapped only until the process has
//! joined (`leave.rs`). The child of a parent of which something is managed is known there, for it has read
//! the ident page (`fork.rs`): it is counted, its faults are served, and what it has not inherited is known;
//! only nothing of it leaves. So it may be late whatever is away. Any other child has all of its memory.
//!
//! *Not late* is the command itself, of which the supervisor must know (`pager/src/door/target.rs`); where
//! there are groups, which are found by parents; of forks, where memory is tight and the parent is managed;
//! and, where calls are trapped only until then, who could fill much memory without a call, and a program
//! that is traced, and its children: a debugger would stop at each trap.
//!
//! The timer may expire when it is decided already how a call is to be made, and before the call: then the
//! thread is put before its call once more, which traps again (`deliver.rs`).
//!
//! The timer is one of the process's, which exec takes away with its signal; a program that makes a timer
//! joins before. Its signal is for the thread, and a SIGBUS. The kernel keeps one of a kind for a process and
//! one for each thread, and drops what comes while that waits: one for the process would take the place of
//! what another process sends, and a SIGSYS for the thread that of a trap, whose call would be lost. A fault
//! that was dropped comes again. SIGBUS is not blocked in the dispatch's handlers, for the sake of guarded
//! accesses, nor in the first steps of a child: there it only notes that it was there (`has_come`).
//!
//! Pages that a child shares with its parent meanwhile cannot be moved: reclaim finds that out page by page
//! (`Space::cow`).

use super::signals;
use crate::common::protocol::{KIND_EXEC, KIND_FORK};
use crate::common::sync::{AtomicU32, AtomicUsize, Ordering};
use crate::join::handshake;
use crate::machine::context::Info;
use crate::machine::gadget;
use crate::machine::sys::{self, nr};
use crate::pages;
use crate::programs::forks;
use crate::supervisor::address;
use crate::supervisor::control::own_control;
use crate::supervisor::state::STATE;
use crate::thread::block::{self, Block};
use crate::thread::trapped::{IS_LATE, is_late};

/// Long after a child that is to run a program has done so, and most small programs have ended.
const LATE_MS: i64 = 10;
/// Shorter, for here calls are trapped for nothing else: `true` in a shell takes 1 ms, its fork included.
const LATE_THEN_FREE_MS: i64 = 3;
/// Shorter, too, for the child of a program that has much of the budget: no room is kept for what it copies
/// until it has joined. Eight children that wrote 40 MiB each took 113 MiB of a budget of 64.
const LATE_LARGE_MS: i64 = 1;
/// Again, where the dispatch was at work, most of which takes microseconds; then twice as long each time, for
/// the thread may be kept from running just there, and each of these signals takes a part of its stack.
const DISPATCH_ENDS_MS: u32 = 1;

/// A process that can fill more than this without a call is not late if calls are trapped only until then,
/// for what it fills is not held up: eight children that filled 32 MiB each at once took 122 MiB of a budget
/// of 64.
const LITTLE_BYTES: usize = 4 << 20;

/// The most that a program maps at once, or reads, before it joins.
const SMALL_BYTES: usize = 1 << 20;
/// And the heap's first part.
const HEAP_BYTES: usize = 8 << 20;

const GETPPID: usize = 110;
const GETTID: usize = 186;
const TIMER_CREATE: usize = 222;
const TIMER_SETTIME: usize = 223;
const TIMER_DELETE: usize = 226;
const CLOCK_MONOTONIC: usize = 1;
const SI_TIMER: i32 = -2;
const NO_TIMER: usize = usize::MAX;

/// This process has not joined yet: it is such a child, or a program.
pub const CHILD: u32 = 1;
pub const PROGRAM: u32 = 2;
/// Not 0: somebody traced this program when it began, and so may its children be.
#[unsafe(link_section = ".data.hot")]
static IS_TRACED: AtomicU32 = AtomicU32::new(0);
/// Where the heap ended when the program began; 0: that is not known.
#[unsafe(link_section = ".data.hot")]
static HEAP_BEGAN: AtomicUsize = AtomicUsize::new(0);
/// The timer has come inside a handler.
#[unsafe(link_section = ".data.hot")]
static IS_TIME_OVER: AtomicU32 = AtomicU32::new(0);
/// Not 0: it is a child in a user namespace of its own.
#[unsafe(link_section = ".data.hot")]
static IS_SANDBOX: AtomicU32 = AtomicU32::new(0);
/// Not 0: the child has much memory in common with its parent.
#[unsafe(link_section = ".data.hot")]
static IS_LARGE: AtomicU32 = AtomicU32::new(0);
/// How long it is set for when it does so next.
#[unsafe(link_section = ".data.hot")]
static NEXT_MS: AtomicU32 = AtomicU32::new(DISPATCH_ENDS_MS);
#[unsafe(link_section = ".data.hot")]
static TIMER: AtomicUsize = AtomicUsize::new(NO_TIMER);

/// Before a fork, alone in the gate: may its child join late? `is_all_here`: nothing of this process is away.
pub fn fork_begins(is_all_here: impl FnOnce() -> bool) -> bool {
    // A filter of the program's own may end it for a timer.
    if STATE.forks.load(Ordering::Relaxed) == 0
        || STATE.confined.load(Ordering::SeqCst) != 0
        || !address::may_be_late()
    {
        return false;
    }
    let is_late = own_control().is_some() && is_all_here();
    if is_late {
        let is_large = sys::anonymous_bytes().is_some_and(pages::is_large);
        IS_LARGE.store(is_large.into(), Ordering::Relaxed);
    }
    is_late
}

/// In the child, before its calls are trapped.
///
/// `is_sandbox`: it has begun in a user namespace of its own. Many such children look whether they may make
/// another (unshare), which only a process of one thread may, and run a program or end. So it has no timer,
/// and joins when it makes a call that is not made before.
pub fn in_child(is_sandbox: bool) {
    forks::forget_parent();
    IS_SANDBOX.store(is_sandbox.into(), Ordering::Relaxed);
    if is_sandbox {
        TIMER.store(NO_TIMER, Ordering::Relaxed);
        begin(CHILD);
    } else if make_ready() {
        begin(CHILD);
    } else {
        handshake::join(KIND_FORK);
    }
}

/// May a program that has just been started join late? Not the command itself, which must not run without the
/// supervisor's knowing.
pub fn may_program() -> bool {
    // SAFETY: a number.
    let parent = unsafe { gadget::call(GETPPID, [0; 6]) }.unwrap_or(0) as u64;
    let is_command = parent == address::supervisor_pid();
    if !address::is_then_free() {
        return address::may_be_late() && !is_command && !sys::is_traced();
    }
    HEAP_BEGAN.store(program_break(), Ordering::Relaxed);
    let is_traced = sys::is_traced();
    IS_TRACED.store(is_traced.into(), Ordering::Relaxed);
    !is_command && !is_traced && has_little_to_fill()
}

/// May the child of a fork that the kernel has told of join late?
pub fn may_child() -> bool {
    address::is_then_free() && IS_TRACED.load(Ordering::Relaxed) == 0 && has_little_to_fill()
}

/// Is the memory that the program can store to small, but for the heap? Few programs fill that at once.
fn has_little_to_fill() -> bool {
    let heap_bytes = match HEAP_BEGAN.load(Ordering::Relaxed) {
        0 => 0,
        began => program_break().saturating_sub(began),
    };
    sys::data_bytes().is_some_and(|data_bytes| data_bytes.saturating_sub(heap_bytes) <= LITTLE_BYTES)
}

/// Where the heap ends.
fn program_break() -> usize {
    const BRK: usize = 12;
    // SAFETY: 0 changes nothing.
    unsafe { gadget::call(BRK, [0; 6]) }.unwrap_or(0)
}

/// Makes the timer of a process that is about to be late. False: so many timers and signals as the user may
/// have are there already.
pub fn make_ready() -> bool {
    let timer = make_timer();
    TIMER.store(timer.unwrap_or(NO_TIMER), Ordering::Relaxed);
    timer.is_ok()
}

/// It will not be.
pub fn delete_timer() {
    let timer = TIMER.swap(NO_TIMER, Ordering::Relaxed);
    // SAFETY: the number of a timer, or of none.
    let _ = unsafe { gadget::call(TIMER_DELETE, [timer, 0, 0, 0, 0, 0]) };
}

/// From now on this process is late: CHILD or PROGRAM. All signals are blocked.
pub fn begin(what: u32) {
    IS_LATE.store(what, Ordering::Relaxed);
    IS_TIME_OVER.store(0, Ordering::Relaxed);
    NEXT_MS.store(DISPATCH_ENDS_MS, Ordering::Relaxed);
    set_timer(match () {
        () if address::is_then_free() => LATE_THEN_FREE_MS,
        () if what == CHILD && IS_LARGE.load(Ordering::Relaxed) != 0 => LATE_LARGE_MS,
        () => LATE_MS,
    });
}

fn set_timer(ms: i64) {
    // Once: no interval.
    let when = [0, 0, ms / 1000, ms % 1000 * 1_000_000];
    // SAFETY: the kernel reads two times.
    unsafe {
        let timer = TIMER.load(Ordering::Relaxed);
        let _ = gadget::call(TIMER_SETTIME, [timer, 0, when.as_ptr() as usize, 0, 0, 0]);
    }
}

/// The child of a fork that has not joined yet, and whose calls would be trapped for good, never joins: they
/// are trapped no more. False: this is another process.
pub fn stay_out() -> bool {
    if IS_LATE.load(Ordering::Relaxed) != CHILD || address::is_then_free() {
        return false;
    }
    IS_LATE.store(0, Ordering::Relaxed);
    delete_timer();
    gadget::disarm().is_ok()
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// Its calls go on being trapped.
    Trapped,
    /// They are trapped no more: the caller has the thread leave.
    AndFree,
}

/// A late process joins in the dispatch's handler: with all signals blocked, and on a stack that is never
/// managed, or, if calls are trapped only until then, under a kernel that waits for its pages.
pub fn join() -> Joined {
    let kind = match IS_LATE.swap(0, Ordering::Relaxed) {
        PROGRAM => KIND_EXEC,
        _ => KIND_FORK,
    };
    let is_disarmed = gadget::disarm().is_ok();
    delete_timer();
    let is_free = address::is_then_free();
    if is_free {
        // The signals of guarded accesses, too: there are none any more.
        sys::SignalsBlocked::new().forget();
        block::set_armed(false);
    }
    handshake::join(kind);
    if !is_disarmed || !is_free && gadget::arm().is_err() {
        sys::die();
    }
    if is_free { Joined::AndFree } else { Joined::Trapped }
}

/// Is this signal the timer's?
pub fn is_timer(signal: usize, info: &Info) -> bool {
    let value = info.number as u32 as usize | (info.arch as usize) << 32;
    signal == sys::SIGBUS && info.code == SI_TIMER && value == IS_LATE.as_ptr() as usize
}

/// The timer's signal has come, to a thread with this mask. Is the process to join now? Not where it has done
/// so already, nor inside the dispatch (`signals::IN_DISPATCH`): then it joins at its next call, or when the
/// timer comes again.
pub fn has_come(mask: u64) -> bool {
    let is_in_dispatch = mask & signals::bit(signals::SIGSYS) != 0;
    if is_late() && is_in_dispatch {
        IS_TIME_OVER.store(1, Ordering::Relaxed);
        let ms = NEXT_MS.load(Ordering::Relaxed);
        NEXT_MS.store(ms.saturating_mul(2), Ordering::Relaxed);
        set_timer(ms.into());
    }
    is_late() && !is_in_dispatch
}

/// Must this process, which may not have joined yet, do so before this call?
pub fn joins_before(block: &Block, number: usize, args: &[usize; 6]) -> bool {
    let must = || {
        IS_TIME_OVER.load(Ordering::Relaxed) != 0
            || !may_be_made(number, args)
            || address::is_then_free() && would_show(block, number, args)
    };
    is_late() && must()
}

/// Would it be seen that calls were trapped, where those of others are not? None of the dispatch's own
/// signals is ignored or blocked in the kernel, as it is to be in the program that is started.
fn would_show(block: &Block, number: usize, args: &[usize; 6]) -> bool {
    const RT_SIGACTION: usize = 13;
    const EXECVE: usize = 59;
    const EXECVEAT: usize = 322;
    const EXIT: usize = 60;
    match number {
        RT_SIGACTION => signals::is_to_ignore_one(args),
        // Made where the timer's signal would find a thread that has no block any more.
        EXIT => true,
        EXECVE | EXECVEAT => block.reserved_mask != 0,
        _ => false,
    }
}

/// May this call be made before the process joins? Calls that do not wait for long, or go on when they were
/// interrupted, and neither make the process larger nor change who it is; of a program also those that make
/// it a little larger.
fn may_be_made(number: usize, args: &[usize; 6]) -> bool {
    const TCGETS: usize = 0x5401;
    const TIOCGPGRP: usize = 0x540f;
    const TIOCSPGRP: usize = 0x5410;
    const F_SETFL: usize = 4;
    const F_DUPFD_CLOEXEC: usize = 1030;
    const IOCTL: usize = 16;
    const FCNTL: usize = 72;
    const FUTEX: usize = 202;
    const FUTEX_WAKE: usize = 1;
    const FUTEX_OP: usize = 127;
    match number {
        _ if IS_SANDBOX.load(Ordering::Relaxed) != 0 && may_be_made_in_sandbox(number, args) => true,
        FUTEX => args[1] & FUTEX_OP == FUTEX_WAKE,
        IOCTL => matches!(args[1], TCGETS | TIOCGPGRP | TIOCSPGRP),
        // Not of locks, which wait.
        FCNTL => args[1] <= F_SETFL || args[1] == F_DUPFD_CLOEXEC,
        // read, write, pread64, pwrite64.
        0 | 1 | 17 | 18 => is_small_transfer(number, args[0], args[2]),
        // open, close, stat and its kin; rt_sigaction, rt_sigprocmask, rt_sigreturn; access, pipe.
        2..=6 | 13..=15 | 21 | 22 => true,
        // dup and dup2, getpid, execve, exit; chdir and fchdir; umask.
        32 | 33 | 39 | 59 | 60 | 80 | 81 | 95 => true,
        // getuid, getgid, geteuid, getegid, setpgid, getppid, getpgrp, setsid, getpgid; sigaltstack.
        102 | 104 | 107..=112 | 121 | 131 => true,
        // gettid, exit_group, openat, newfstatat, faccessat; dup3 and pipe2; execveat; close_range.
        186 | 231 | 257 | 262 | 269 | 292 | 293 | 322 | 436 => true,
        _ if IS_LATE.load(Ordering::Relaxed) == PROGRAM => may_be_made_by_program(number, args),
        // set_tid_address, set_robust_list; rseq: the C library's for the only thread of a child.
        218 | 273 | 334 => true,
        _ => false,
    }
}

/// Whether it is one by which a child in a user namespace of its own gives up its rights.
fn may_be_made_in_sandbox(number: usize, args: &[usize; 6]) -> bool {
    const PR_SET_PDEATHSIG: usize = 1;
    const PR_SET_KEEPCAPS: usize = 8;
    const PR_CAPBSET_DROP: usize = 24;
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    match number {
        nr::PRCTL => {
            matches!(args[0], PR_SET_PDEATHSIG | PR_SET_KEEPCAPS | PR_CAPBSET_DROP | PR_SET_NO_NEW_PRIVS)
        }
        // Its maps, in /proc.
        WRITE => kind_of(args[0]) == S_IFREG && args[2] <= PIPE_BUF,
        // getresuid, getresgid, capget, capset; unshare.
        118 | 120 | 125 | 126 | 272 => true,
        _ => false,
    }
}

/// Is it a call that small programs make? What they store to before they join is not counted: it is what can
/// be stored to in `LATE_MS`, of the heap and of small mappings.
fn may_be_made_by_program(number: usize, args: &[usize; 6]) -> bool {
    const MMAP: usize = 9;
    const MPROTECT: usize = 10;
    const BRK: usize = 12;
    const MAP_TYPE: usize = 15;
    const MAP_DROPPABLE: usize = 8;
    const PRLIMIT: usize = 302;
    let [first, second, third, fourth, ..] = *args;
    match number {
        MMAP => {
            let is_read = fourth & sys::MAP_ANONYMOUS == 0 && third & sys::PROT_WRITE == 0;
            // A joined process notes memory that the kernel may drop.
            fourth & MAP_TYPE != MAP_DROPPABLE && (is_read || is_small_mapping(second, fourth))
        }
        MPROTECT => third & sys::PROT_WRITE == 0 || second <= SMALL_BYTES,
        BRK => {
            let began = HEAP_BEGAN.load(Ordering::Relaxed);
            began == 0 || first <= began + HEAP_BYTES
        }
        PRLIMIT => third == 0,
        // lseek. (Not munmap: what the agent maps when it joins might lie where something was unmapped that
        // the program maps anew.)
        8 => true,
        // uname, getcwd, rename, mkdir, rmdir, link, unlink, symlink, readlink, chmod.
        63 | 79 | 82..=84 | 86..=90 => true,
        // getrlimit, getrusage, sysinfo; statfs, fstatfs; time; getdents64, fadvise64, clock_gettime.
        97..=99 | 137 | 138 | 201 | 217 | 221 | 228 => true,
        // mkdirat, unlinkat, renameat, linkat, symlinkat, readlinkat, fchmodat, utimensat; renameat2,
        // getrandom, statx, faccessat2.
        258 | 263..=268 | 280 | 316 | 318 | 332 | 439 => true,
        _ => false,
    }
}

/// Is it memory that can be stored to?
pub fn is_small_mapping(len: usize, flags: usize) -> bool {
    len <= SMALL_BYTES && flags & (sys::MAP_POPULATE | sys::MAP_LOCKED) == 0
}

/// A read or write of a file on a disk or in memory, where nobody has to be waited for; or of a pipe, which
/// goes on when the timer has come (SA_RESTART), and is whole: one of more bytes could end with a part.
fn is_small_transfer(number: usize, fd: usize, len: usize) -> bool {
    match kind_of(fd) {
        S_IFREG => len <= SMALL_BYTES && is_on_plain_fs(fd, is_read(number)),
        S_IFIFO => len <= if is_read(number) { SMALL_BYTES } else { PIPE_BUF },
        _ => false,
    }
}

/// May this call wait for somebody, and is it one that is made before the process joins? Then a signal that
/// came while it joined ends the call with EINTR, as without memspill, if its handler says so.
pub fn waits(number: usize, args: &[usize; 6]) -> bool {
    (is_read(number) || number == WRITE) && kind_of(args[0]) == S_IFIFO
}

const READ: usize = 0;
const WRITE: usize = 1;
const S_IFREG: u32 = 0o100000;
const S_IFIFO: u32 = 0o010000;
const PIPE_BUF: usize = 4096;

fn is_read(number: usize) -> bool {
    const PREAD: usize = 17;
    matches!(number, READ | PREAD)
}

/// The type of a file, of its mode; 0: there is none.
fn kind_of(fd: usize) -> u32 {
    const FSTAT: usize = 5;
    const S_IFMT: u32 = 0o170000;
    /// `st_mode` among the 32-bit words of `struct stat`.
    const MODE: usize = 6;
    let mut stat = [0u32; 36];
    // SAFETY: the kernel writes a struct of that size.
    let known = unsafe { gadget::call(FSTAT, [fd, stat.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    known.map_or(0, |_| stat[MODE] & S_IFMT)
}

/// Files of others may be anything: a write to one of sysfs or cgroupfs does something, and may be cut short
/// by a signal; what FUSE or a network serves may take long.
fn is_on_plain_fs(fd: usize, is_read: bool) -> bool {
    const FSTATFS: usize = 138;
    let mut stat = [0usize; 15];
    // SAFETY: the kernel writes a struct of that size.
    let known = unsafe { gadget::call(FSTATFS, [fd, stat.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    match stat[0] {
        _ if known.is_err() => false,
        // ext4, XFS, btrfs, F2FS, tmpfs, overlayfs.
        0xef53 | 0x5846_5342 | 0x9123_683e | 0xf2f5_2010 | 0x0102_1994 | 0x794c_7630 => true,
        // proc and sysfs.
        0x9fa0 | 0x6265_6572 => is_read,
        _ => false,
    }
}

/// The number of a timer that tells the calling thread when the time is over, once it is set.
fn make_timer() -> sys::Result<usize> {
    /// `struct sigevent`.
    #[repr(C)]
    struct Event {
        value: usize,
        signal: i32,
        notify: i32,
        thread: i32,
        rest: [i32; 11],
    }
    const _: () = assert!(size_of::<Event>() == 64);
    const FOR_THREAD: i32 = 4;
    // SAFETY: a number.
    let thread = unsafe { gadget::call(GETTID, [0; 6]) }? as i32;
    let event = Event {
        value: IS_LATE.as_ptr() as usize,
        signal: sys::SIGBUS as i32,
        notify: FOR_THREAD,
        thread,
        rest: [0; 11],
    };
    let mut timer = 0i32;
    // SAFETY: the kernel reads an event, and writes a number.
    unsafe {
        let made = [CLOCK_MONOTONIC, &raw const event as usize, &raw mut timer as usize, 0, 0, 0];
        gadget::call(TIMER_CREATE, made)?;
    }
    Ok(timer as usize)
}
