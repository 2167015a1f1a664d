//! The evictor: the one thread that the agent adds to a process.
//!
//! It waits on the socket for commands and moves pages into staging, where the supervisor reads them. It is
//! made by a raw clone: glibc does not know it, no signal reaches it, and it has a descriptor table of its
//! own with two entries, so the program can neither see nor close them, and it holds nothing of the program's
//! open. Nor does it share the program's root and working directory: with a thread that does,
//! setns(CLONE_NEWNS) would fail. It may do next to nothing (`confine.rs`).
//!
//! Every MOVE ioctl runs under the lock in the control page, and takes 64 pages at most, because the pager
//! waits for the lock before it reads an event. UFFDIO_MOVE does not check that its source is registered, or
//! still the same mapping: a MOVE between the reading of an unmap event and its processing would take pages
//! of the mapping that came after.
//!
//! A MOVE leaves out where the kernel writes when a thread has ended (`threads.rs`).
//!
//! When the socket ends, the supervisor is gone, and with it all pages that are swapped out: the process is
//! killed.

use crate::common::rules::{Rule, holds};
use crate::common::sync::{AtomicU32, Ordering};
use core::mem::size_of;

use super::confine;
use crate::common::protocol::{
    Command, MOVE_EXEC, MoveRun, OP_EXIT, OP_MOVE, OP_POPULATE, OP_ZAP, RUN_IN_USE, RUNS_MAX, Reply,
    STAGING_PAGES, cpu_of_move,
};
use crate::machine::affinity::Affinity;
use crate::machine::region::{EvictorBlock, GO_RUN, GO_WAIT, Region};
use crate::machine::sys::{self, ECANCELED, EINTR, EINVAL, ETIMEDOUT, PAGE, Result, nr};
use crate::machine::uffd::{MoveArg, UFFDIO_MOVE};
use crate::thread::endings;
use crate::{common::link, pages};

const CLONE_VM: usize = 0x100;
const CLONE_SIGHAND: usize = 0x800;
const CLONE_THREAD: usize = 0x1_0000;
const CLONE_SYSVSEM: usize = 0x4_0000;
const CLONE_SETTLS: usize = 0x8_0000;
const CLONE_CHILD_CLEARTID: usize = 0x20_0000;
/// A tracer of the program is not to stop it.
const CLONE_UNTRACED: usize = 0x80_0000;
const PR_SET_NAME: usize = 15;
const MSG_NOSIGNAL: usize = 0x4000;
const POLLERR: i16 = 8;
const POLLHUP: i16 = 16;

/// Most pages for one ioctl: 10 to 15 µs, which is what a pager may have to wait for the lock.
const MOVE_PAGES: u32 = 64;
/// As far as descriptors are closed one by one.
const FDS_MAX: usize = 1 << 16;
/// The lock is looked at so often before it is slept on: 1 to 2 µs. A pager holds it for one read of
/// messages, which takes less; sleeping and being woken takes several µs of each side, and the pager has a
/// fault to serve.
const MOVE_LOCK_SPINS: u32 = 100;
/// How long to sleep on the lock before looking whether the supervisor still lives.
const LOCK_TIMEOUT_MS: u32 = 100;

/// Starts the thread, and returns its id; it gets ready, says so in `EvictorBlock::started`, and then waits
/// for `EvictorBlock::go`.
///
/// # Safety
/// The block must be filled in, the region outlive the thread, and all signals be blocked.
pub unsafe fn start(region: &Region) -> Result<u32> {
    let shared = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    let flags = shared | CLONE_SETTLS | CLONE_CHILD_CLEARTID | CLONE_UNTRACED;
    let block = region.block() as usize;
    // SAFETY: the field is read through a raw pointer to a block that is filled in.
    let tid = unsafe { &raw const (*region.block()).tid } as usize;
    // SAFETY: the stack lies below the block, page aligned, and is used by nobody else.
    unsafe { sys::clone(flags, block, block, tid, thread_main, block) }.map(|tid| tid as u32)
}

extern "C" fn thread_main(block: usize) -> ! {
    // SAFETY: the block is filled in, and lives until this thread has ended.
    let block = unsafe { &*(block as *const EvictorBlock) };
    // SAFETY: the page is mapped for as long as this thread lives.
    let forks = unsafe { (&raw const (*block.control).forks).read_volatile() };
    confine::drop_rights(forks != 0);
    // SAFETY: the name and the path are C strings; this thread shares neither its directory nor its
    // descriptors with others.
    unsafe {
        let _ = sys::syscall(nr::PRCTL, [PR_SET_NAME, c"memspill".as_ptr() as usize, 0, 0, 0, 0]);
        // Else the program could not unmount where it was when this thread began.
        let _ = sys::syscall(nr::CHDIR, [c"/".as_ptr() as usize, 0, 0, 0, 0, 0]);
        let kept = kept_descriptors(block);
        let mut first = 0;
        while first < 1 << 32 {
            let later = kept
                .iter()
                .map(|fd| *fd as u32 as usize)
                .filter(|fd| *fd >= first && *fd <= i32::MAX as usize);
            let (from, end) = (first, later.min().unwrap_or(1 << 32));
            first = end + 1;
            if from < end && sys::syscall(nr::CLOSE_RANGE, [from, end - 1, 0, 0, 0, 0]).is_err() {
                // Forbidden by a sandbox. A pipe that stays open here would keep its reader waiting for ever.
                for fd in from..end.min(FDS_MAX) {
                    let _ = sys::syscall(nr::CLOSE, [fd, 0, 0, 0, 0, 0]);
                }
            }
        }
    }
    confine::install_filter(block);
    endings::reset_moves();
    block.started.store(1, Ordering::Release);
    sys::futex_wake(&block.started);
    loop {
        match block.go.load(Ordering::Acquire) {
            GO_WAIT => {
                let _ = sys::futex_wait(&block.go, GO_WAIT, 0);
            }
            GO_RUN => break,
            _ => sys::exit_thread(0),
        }
    }
    // SAFETY: the page is mapped for as long as this thread lives; the supervisor reads it, hence volatile.
    unsafe { (&raw mut (*block.control).takes_commands).write_volatile(1) };
    serve_commands(block)
}

/// The first thread has ended so, as wait(2) would say it: by exit(2), or killed alone by seccomp.
fn end_as(status: u32) -> ! {
    match status & 0x7f {
        0 => sys::exit_thread(status >> 8 & 0xff),
        // The evictor's own filter ends the process by SIGSYS for any other call.
        sys::SIGSYS => {
            // SAFETY: it is not made.
            let _ = unsafe { sys::syscall(nr::CHDIR, [0; 6]) };
            sys::die()
        }
        _ => sys::die(),
    }
}

/// What this thread needs; -1, or the same one several times, where that is less.
fn kept_descriptors(block: &EvictorBlock) -> [i32; 6] {
    if block.uffd < 0 {
        let [mem, maps, pagemap, words, uffd] = pages::descriptors();
        return [block.socket, mem, maps, pagemap, words, uffd];
    }
    [block.socket, block.uffd, block.uffd, block.uffd, block.uffd, block.uffd]
}

fn serve_commands(block: &EvictorBlock) -> ! {
    let mut guards = true;
    let mut affinity = Affinity::new();
    loop {
        let command = receive_command(block);
        if command.op == OP_MOVE {
            affinity.keep_on(cpu_of_move(command.arg2));
        }
        match command.op {
            OP_MOVE if block.uffd < 0 => take_runs(block, command),
            OP_MOVE => move_runs(block, command),
            crate::common::protocol::OP_INSTALL => {
                pages::install_delivered();
                send_reply(block, command, 0);
            }
            crate::common::protocol::OP_PROTECT => protect_runs(block, command),
            OP_POPULATE => populate_runs(block, command),
            OP_ZAP => empty_staging(block, command, &mut guards),
            OP_EXIT => end_as(command.arg),
            // The two sides no longer understand each other.
            _ => sys::die(),
        }
    }
}

fn receive_command(block: &EvictorBlock) -> Command {
    let mut command = Command::default();
    loop {
        let len = size_of::<Command>();
        // SAFETY: the kernel writes at most `len` bytes into `command`, which is plain integers.
        let ret = unsafe {
            sys::syscall(nr::RECVFROM, [block.socket as usize, &raw mut command as usize, len, 0, 0, 0])
        };
        match ret {
            Ok(received) if received == len => return command,
            Err(EINTR) => {}
            _ => sys::die(),
        }
    }
}

fn empty_staging(block: &EvictorBlock, command: Command, guards: &mut bool) {
    let (first, count) = (command.arg, command.arg2);
    if count == 0 || first.checked_add(count).is_none_or(|end| end > STAGING_PAGES) {
        return;
    }
    let addr = block.staging + first as usize * PAGE;
    // The range lies in staging, which nobody in this process reads, and the supervisor is done with it.
    // If it fails, what stays there shows as EEXIST at the next MOVE, and the supervisor sees that.
    let staging = (block.staging, STAGING_PAGES as usize * PAGE);
    // SAFETY: as above.
    if let Ok(known) = unsafe { sys::empty_own_pages(addr, count as usize * PAGE, *guards, staging) } {
        *guards = known;
    }
}

fn move_runs(block: &EvictorBlock, command: Command) {
    let count = (command.arg as usize).min(RUNS_MAX);
    let may_exec = command.arg2 & MOVE_EXEC != 0;
    let mut canceled = false;
    for index in 0..count {
        // SAFETY: `index` is below RUNS_MAX, so this is an element of the array in the control page.
        let slot = unsafe { (&raw mut (*block.control).runs).cast::<MoveRun>().add(index) };
        // SAFETY: the page is mapped for as long as this thread lives; the supervisor may write it, hence
        // volatile.
        let mut run = unsafe { slot.read_volatile() };
        let (moved, errno) = if canceled { (0, ECANCELED) } else { move_run(block, &run, may_exec) };
        canceled |= errno == ECANCELED;
        run.moved = moved;
        run.errno = errno;
        // SAFETY: as for the read.
        unsafe { slot.write_volatile(run) };
    }
    send_reply(block, command, count);
}

/// The same in `agent` mode: what leaves is copied into the staging of the link.
pub fn take_runs(block: &EvictorBlock, command: Command) {
    let count = (command.arg as usize).min(RUNS_MAX);
    let take = pages::take_word();
    // The chunks that the command is allowed to take, as long as nobody has taken that back.
    let mut allowed = link::open(command.seq);
    // Before anything leaves: a hint is of a page that is away, and may come back and leave again.
    let mut is_canceled = !pages::take_hints();
    for index in 0..count {
        // SAFETY: as in move_runs.
        let slot = unsafe { (&raw mut (*block.control).runs).cast::<MoveRun>().add(index) };
        // SAFETY: as in move_runs.
        let mut run = unsafe { slot.read_volatile() };
        let is_inside = run.staging.checked_add(run.pages).is_some_and(|end| end <= STAGING_PAGES);
        let mut commit = |pages: usize| {
            let next = link::committed(command.seq, index as u32, pages as u32);
            let is_allowed = match holds(Rule::Commit) {
                true => take.compare_exchange(allowed, next, Ordering::SeqCst, Ordering::SeqCst).is_ok(),
                false => take.swap(next, Ordering::SeqCst) != u64::MAX,
            };
            allowed = next;
            is_allowed
        };
        // A change that keeps one run waiting keeps the others waiting.
        let (moved, errno) = if is_canceled {
            (0, ECANCELED)
        } else if is_inside {
            let to = pages::staging() + run.staging as usize * PAGE;
            pages::take_run(run.src_addr as usize, run.pages as usize, to, &mut commit)
        } else {
            (0, EINVAL)
        };
        is_canceled |= errno == ECANCELED;
        run.moved = moved as u32;
        run.errno = errno;
        // SAFETY: as in move_runs.
        unsafe { slot.write_volatile(run) };
    }
    pages::empty_staging();
    send_reply(block, command, count);
}

/// A write to pages that a fork has left shared asks from now on.
pub fn protect_runs(block: &EvictorBlock, command: Command) {
    let count = (command.arg as usize).min(RUNS_MAX);
    for index in 0..count {
        // SAFETY: as in move_runs.
        let run = unsafe { (&raw const (*block.control).runs).cast::<MoveRun>().add(index).read_volatile() };
        let start = run.src_addr as usize;
        pages::protect(start, start.saturating_add(run.pages as usize * PAGE));
    }
    send_reply(block, command, count);
}

fn populate_runs(block: &EvictorBlock, command: Command) {
    let count = (command.arg as usize).min(RUNS_MAX);
    for index in 0..count {
        // SAFETY: as in move_runs.
        populate(&unsafe { (&raw const (*block.control).runs).cast::<MoveRun>().add(index).read_volatile() });
    }
    send_reply(block, command, count);
}

fn send_reply(block: &EvictorBlock, command: Command, count: usize) {
    let reply = Reply { seq: command.seq, runs_done: count as u32 };
    let (addr, len) = (&raw const reply as usize, size_of::<Reply>());
    loop {
        // SAFETY: the kernel reads `len` bytes of `reply`. Sending is also what publishes the runs.
        match unsafe { sys::syscall(nr::SENDTO, [block.socket as usize, addr, len, MSG_NOSIGNAL, 0, 0]) } {
            Ok(_) => return,
            Err(EINTR) => {}
            Err(_) => sys::die(),
        }
    }
}

/// Makes the run's pages exclusive to this process. Without the lock: it can take a while, and if a page of
/// it has been swapped out meanwhile it waits for the pager. A failure shows again at the MOVE.
fn populate(run: &MoveRun) {
    // SAFETY: as a write to each page that leaves it unchanged; whether it is still mapped, the kernel
    // checks.
    let _ =
        unsafe { sys::madvise(run.src_addr as usize, run.pages as usize * PAGE, sys::MADV_POPULATE_WRITE) };
}

/// Moves as long a prefix of the run as can be moved: (pages moved, why it ended or 0). `may_exec`: it may
/// lie in executable memory.
fn move_run(block: &EvictorBlock, run: &MoveRun, may_exec: bool) -> (u32, i32) {
    if run.staging.checked_add(run.pages).is_none_or(|end| end > STAGING_PAGES) {
        return (0, EINVAL);
    }
    let mut moved = 0;
    let mut chunk = MOVE_PAGES;
    // Which protection is tried, and whether the other one was refused for this chunk.
    let (mut exec, mut both_refused) = (false, !may_exec);
    while moved < run.pages {
        chunk = chunk.min(run.pages - moved);
        let offset = u64::from(moved) * PAGE as u64;
        let under_way = endings::Move::begin();
        chunk = under_way.unnoted(run.src_addr.wrapping_add(offset) as usize, chunk as usize) as u32;
        if chunk == 0 {
            return (moved, RUN_IN_USE);
        }
        let mut arg = MoveArg {
            to: block.staging as u64 + u64::from(run.staging) * PAGE as u64 + offset,
            from: run.src_addr.wrapping_add(offset),
            len: u64::from(chunk) * PAGE as u64,
            mode: 0,
            moved: 0,
        };
        let result = if exec { move_executable(block, &mut arg) } else { move_locked(block, &mut arg) };
        drop(under_way);
        match result {
            Ok(()) => {
                moved += chunk;
                chunk = MOVE_PAGES;
                both_refused = !may_exec;
            }
            // A part was moved; the next try says what is in the way.
            Err(errno) if errno != ECANCELED && arg.moved >= PAGE as i64 => {
                moved += ((arg.moved as u64 / PAGE as u64) as u32).min(chunk);
                chunk = MOVE_PAGES;
                both_refused = !may_exec;
            }
            Err(EINVAL) if !both_refused => {
                exec = !exec;
                both_refused = true;
            }
            // The kernel refuses a range that two mappings share, whole.
            Err(EINVAL) if chunk > 1 => {
                chunk /= 2;
                both_refused = !may_exec;
            }
            // EAGAIN: an event waits for the pager, and this MOVE must wait for the next command.
            Err(errno) => return (moved, errno),
        }
    }
    (moved, 0)
}

/// As `move_locked`, with staging as executable as the source: the kernel moves between equal protections
/// only.
fn move_executable(block: &EvictorBlock, arg: &mut MoveArg) -> Result<()> {
    let (addr, len) = (arg.to as usize, arg.len as usize);
    // SAFETY: pages of staging, which only this thread and the supervisor use.
    let protect = |prot| unsafe { sys::syscall(nr::MPROTECT, [addr, len, prot, 0, 0, 0]) };
    // A sandbox may forbid it: then such memory stays where it is.
    protect(sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC).map_err(|_| EINVAL)?;
    let result = move_locked(block, arg);
    let _ = protect(sys::PROT_READ | sys::PROT_WRITE);
    result
}

fn move_locked(block: &EvictorBlock, arg: &mut MoveArg) -> Result<()> {
    // SAFETY: the control page is mapped for as long as this thread lives, and both words are aligned.
    let (lock, abort) = unsafe {
        (
            AtomicU32::from_ptr(&raw mut (*block.control).lock),
            AtomicU32::from_ptr(&raw mut (*block.control).abort),
        )
    };
    acquire_move_lock(lock, block.socket);
    let result = if abort.load(Ordering::Relaxed) != 0 {
        Err(ECANCELED)
    } else {
        // SAFETY: the destination is staging. The source is what the supervisor chose: taking pages out of a
        // managed range is what this thread is for, and whoever touches them gets them back from the pager.
        unsafe {
            sys::syscall(nr::IOCTL, [block.uffd as usize, UFFDIO_MOVE, arg as *mut MoveArg as usize, 0, 0, 0])
        }
        .map(|_| ())
    };
    if lock.swap(0, Ordering::Release) == 2 {
        sys::futex_wake(lock);
    }
    result
}

/// Takes the lock of the control page: 0 free, 1 held, 2 held and somebody may sleep.
fn acquire_move_lock(lock: &AtomicU32, socket: i32) {
    for _ in 0..MOVE_LOCK_SPINS {
        if lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        crate::common::sync::spin_hint();
    }
    while lock.swap(2, Ordering::Acquire) != 0 {
        let waited = sys::futex_wait(lock, 2, LOCK_TIMEOUT_MS);
        // Nobody gives back the lock of a supervisor that died with it.
        if waited == Err(ETIMEDOUT) && hung_up(socket) {
            sys::die();
        }
    }
}

fn hung_up(socket: i32) -> bool {
    #[repr(C)]
    struct PollFd {
        fd: i32,
        events: i16,
        revents: i16,
    }
    let mut entry = PollFd { fd: socket, events: 0, revents: 0 };
    let now = [0i64; 2];
    // SAFETY: the kernel reads a timespec and writes one entry.
    let _ = unsafe { sys::syscall(nr::PPOLL, [&raw mut entry as usize, 1, now.as_ptr() as usize, 0, 8, 0]) };
    entry.revents & (POLLHUP | POLLERR) != 0
}
