//! Forks of which the kernel tells nobody: userfaultfd's EVENT_FORK needs CAP_SYS_PTRACE. Without it the
//! child's memory is registered nowhere, and reads as zero where the parent's is away. So the agent tells the
//! supervisor before it forks, and the child joins before it runs one instruction of the program.
//!
//! ```text
//!  thread that forks                     supervisor                       child
//!  signals blocked; fork_lock::write
//!  Hello KIND_FORKS ───────────────────▶ takes the evictor's turn: nothing leaves; copies the page table,
//!    prepare                             with a reference to each slot
//!  MADV_DOFORK each range ◀───────────── Prepared: ranges, `fork`
//!  clone ────────────────────────────────────────────────────────────────▶ on a stack that is never managed
//!  MADV_DONTFORK each range    parent_done            child_joins          MADV_DONTFORK each range
//!  Forked ─────────────────────────────▶ gives the turn back               Hello KIND_CHILD, with `fork`
//!  fork_lock::done ◀──────────── Go ──── registers, and looks what is      ...
//!                                        in the child's memory ──────────▶ Go; fork_lock::done
//! ```
//!
//! What is managed is marked MADV_DONTFORK at all other times: a fork that is made past the agent (clone by a
//! program's own instructions) has a child without that memory, which is SIGSEGV, where it would have read
//! zeros.
//!
//! Two entries lead here, `site.rs` (the C library's own clone is rewritten) and the dispatch's clone
//! (`dispatch/clone.rs`). Either calls, with all signals blocked and `fork_lock::write` held, on a stack that
//! is never managed and that the child inherits:
//!
//! ```text
//!   prepare  ─ Err: the fork has failed so ─ Ok(false): nothing to do, fork ─ Ok(true): fork, then
//!   parent_done(result)                    or, in the child, child_joins(), before anything else is touched
//! ```
//!
//! The system calls here are made as the program makes them: with the dispatch armed, its caller disarms it.
//!
//! Where nothing is marked, managed or away none of this is done (`dispatch/late.rs`).
//!
//! A child that cannot join is ended, with a line. What is not here: forks of a child of vfork, which has its
//! parent's memory; it is not known, and its child has nothing that is managed.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use crate::handshake::{self, write_stderr_line};
use crate::hooks::own_control;
use crate::protocol::{Forked, Go, KIND_CHILD, KIND_FORKS, MAGIC, Prepared};
use crate::sys::{self, EAGAIN, ENOMEM, EPROTO, Fd, PAGE, Result, nr};
use crate::{STATE, own_marks};

/// How often it is asked for, a ms apart: the supervisor may have much to do, or wait for other children.
const TRIES: u32 = 10_000;
const NO_SOCKET: i32 = -1;

/// The fork that is under way; there is one at a time (`fork_lock`).
struct Fork {
    socket: AtomicI32,
    /// (start, end), `count` of them.
    ranges: AtomicUsize,
    count: AtomicUsize,
    /// So many of them, from the first on, are not marked now.
    unmarked: AtomicUsize,
    id: UnsafeCell<[u8; 16]>,
}

// SAFETY: whoever uses it holds the lock.
unsafe impl Sync for Fork {}

// Not in .bss, which may be away.
#[unsafe(link_section = ".data")]
static FORK: Fork = Fork {
    socket: AtomicI32::new(NO_SOCKET),
    ranges: AtomicUsize::new(0),
    count: AtomicUsize::new(0),
    unmarked: AtomicUsize::new(0),
    id: UnsafeCell::new([0; 16]),
};

/// Readies this process for a fork. `child_tid`: where the kernel writes the child's id in the child, or 0.
pub fn prepare(child_tid: usize) -> Result<bool> {
    if STATE.forks.load(Ordering::Relaxed) == 0 || own_control().is_none() {
        return Ok(false);
    }
    let mut tries = 0;
    loop {
        match ask() {
            Err(EAGAIN) if tries < TRIES => {
                // It is a matter of µs at first, and of other programs later.
                if tries < 20 {
                    sys::yield_now()
                } else {
                    sys::pause(1)
                }
                tries += 1;
            }
            Err(errno) => return Err(errno),
            Ok(()) => break,
        }
    }
    if let Err(errno) = unmark_all() {
        finish(Err(errno));
        return Err(errno);
    }
    // From here on nothing is taken out. What the kernel writes to in the child by itself must be there.
    touch(child_tid);
    let thread = sys::thread_pointer();
    touch(thread);
    let rseq = sys::weak!("__rseq_offset");
    if rseq != 0 {
        // SAFETY: a constant of the C library.
        let at = thread.wrapping_add_signed(unsafe { (rseq as *const isize).read() });
        touch(at);
        touch(at + 31);
    }
    Ok(true)
}

fn touch(addr: usize) {
    if addr != 0 {
        // SAFETY: memory of the calling thread that the C library has set up for the kernel to write to.
        unsafe { (addr as *const u8).read_volatile() };
    }
}

/// The parent, after the fork. `result`: the kernel's.
pub fn parent_done(result: isize) {
    finish(if result < 0 { Err(-result as i32) } else { Ok(()) });
}

fn finish(forked: Result<()>) {
    // Before anything may be taken out again.
    if mark_all().is_err() {
        write_stderr_line("is ended: its memory could not be marked again after a fork");
        sys::die();
    }
    let socket = Fd(FORK.socket.swap(NO_SOCKET, Ordering::Relaxed));
    handshake::send(&socket, &Forked { magic: MAGIC, errno: forked.err().unwrap_or(0) }, None);
    if forked.is_ok() {
        // What changes from here on is no matter of this fork's any more.
        let _ = handshake::receive::<Go>(&socket);
    }
    drop(socket);
    forget_ranges();
}

/// In the child: from here on no hook follows the parent's pointer.
pub fn forget_parent() {
    STATE.control.store(core::ptr::null_mut(), Ordering::Release);
    STATE.owner.store(0, Ordering::Relaxed);
}

/// The child: joins, or ends.
pub fn child_joins() {
    forget_parent();
    // SAFETY: written by `prepare`, and the child has one thread.
    let id = unsafe { *FORK.id.get() };
    if mark_all().is_err() || handshake::try_join(KIND_CHILD, id).is_none() {
        write_stderr_line("is ended: as the child of a fork it could not join memspill");
        sys::die();
    }
    drop(Fd(FORK.socket.swap(NO_SOCKET, Ordering::Relaxed)));
    forget_ranges();
}

/// Asks the supervisor to hold everything for a fork.
fn ask() -> Result<()> {
    // None: a socket is forbidden here.
    let socket = handshake::hello(KIND_FORKS, [0; 16]).ok_or(sys::EPERM)?;
    let (prepared, fds) = handshake::receive::<Prepared>(&socket).ok_or(EPROTO)?;
    if prepared.errno != 0 {
        return Err(prepared.errno);
    }
    let count = prepared.ranges as usize;
    let mut ranges = 0;
    if count > 0 {
        let [Some(file), ..] = fds else { return Err(EPROTO) };
        let args = [0, count * 16, sys::PROT_READ, sys::MAP_PRIVATE | sys::MAP_POPULATE, file.0 as usize, 0];
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nobody.
        ranges = unsafe { sys::syscall(nr::MMAP, args) }?;
    }
    FORK.ranges.store(ranges, Ordering::Relaxed);
    FORK.count.store(count, Ordering::Relaxed);
    // SAFETY: whoever forks is alone.
    unsafe { *FORK.id.get() = prepared.fork };
    FORK.socket.store(socket.0, Ordering::Relaxed);
    core::mem::forget(socket);
    Ok(())
}

/// Takes the marks off.
fn unmark_all() -> Result<()> {
    advise(sys::MADV_DOFORK, FORK.count.load(Ordering::Relaxed))
}

/// Marks again what has been unmarked.
fn mark_all() -> Result<()> {
    advise(sys::MADV_DONTFORK, FORK.unmarked.swap(0, Ordering::Relaxed))
}

/// Calls `each` with what the child inherits and has registered, between `prepare` and the fork.
pub fn each_inherited(mut each: impl FnMut(usize, usize)) {
    let ranges = FORK.ranges.load(Ordering::Relaxed) as *const [usize; 2];
    for index in 0..FORK.count.load(Ordering::Relaxed) {
        // SAFETY: so many are mapped there.
        let [start, end] = unsafe { ranges.add(index).read() };
        each(start, end);
    }
}

/// To the first `count` ranges.
fn advise(advice: usize, count: usize) -> Result<()> {
    let ranges = FORK.ranges.load(Ordering::Relaxed) as *const [usize; 2];
    for index in 0..count {
        // SAFETY: so many are mapped there.
        let [start, end] = unsafe { ranges.add(index).read() };
        own_marks::each_other(start, end, |start, end| {
            // SAFETY: who inherits it is all that changes.
            match unsafe { sys::madvise(start, end - start, advice) } {
                // Holes are left out: what is unmapped meanwhile is nobody's.
                Ok(()) | Err(ENOMEM) => {
                    if advice == sys::MADV_DOFORK {
                        FORK.unmarked.store(index + 1, Ordering::Relaxed);
                    }
                    Ok(())
                }
                Err(errno) => Err(errno),
            }
        })?;
    }
    Ok(())
}

fn forget_ranges() {
    let (ranges, count) = (FORK.ranges.swap(0, Ordering::Relaxed), FORK.count.swap(0, Ordering::Relaxed));
    if count > 0 {
        let len = (count * 16).next_multiple_of(PAGE);
        // SAFETY: the mapping of `ask`, which nobody uses any more.
        let _ = unsafe { sys::syscall(nr::MUNMAP, [ranges, len, 0, 0, 0, 0]) };
    }
}
