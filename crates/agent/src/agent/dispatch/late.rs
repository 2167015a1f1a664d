//! The child of a fork that joins late, or never.
//!
//! Most children of shells run a few calls and then another program, which joins for itself. So where nothing
//! of the parent is away, nor can be until the fork is made, the child has all of its memory, as without
//! memspill; then nobody needs to be asked before the fork, and the child need not join at once:
//!
//! ```text
//!   parent                                          child
//!   LOCK of batch.rs: nothing can become marked
//!   or managed; windows: the gate, too
//!   nothing is, and memory is not tight?
//!   clone ────────────────────────────────────────▶ a timer; trapped again
//!   unlocks                                         calls of `may_wait`: made
//!                                                   any other call, or the timer: joins first (KIND_FORK)
//!                                                   execve, exit: was never seen
//! ```
//!
//! *Nothing reads as zeros that was something else.* Pages leave only memory that is managed: before any is
//! registered the evictor says so on the board (OP_PREPARE), before it is marked it notes that (OP_MARK), and
//! a thread that maps memory says so, behind the lock of forks (`fork_lock.rs`), which a fork has alone. All
//! three take LOCK, so each of them comes before the look, which then finds it, or after the clone. Where the
//! process is paged by windows, a page leaves only inside the gate, in which the fork is alone.
//!
//! *The child is counted, and can be taken from.* It runs for `LATE_MS` at most before it joins, whatever it
//! does: a call that could make it larger, wait, or change who it is, has it join before; so nothing that
//! waits is interrupted by the timer, but the opening of a FIFO, which goes on (SA_RESTART). Where it cannot
//! join, it runs on outside the budget as any program that cannot, with all of its memory.
//!
//! Its timer is one of the process's, which exec takes away; a program that makes a timer joins before, and
//! gets the number that it would have had. What is shared with the parent meanwhile cannot be moved: reclaim
//! finds that out page by page (`Space::cow`).

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::context::Info;
use super::{batch, gadget, in_use};
use crate::hooks::own_control;
use crate::protocol::KIND_FORK;
use crate::sys;
use crate::{STATE, forks, handshake};

/// Long after a child that is to run a program has done so.
const LATE_MS: i64 = 10;

const TIMER_CREATE: usize = 222;
const TIMER_SETTIME: usize = 223;
const TIMER_DELETE: usize = 226;
const CLOCK_MONOTONIC: usize = 1;
const SI_TIMER: i32 = -2;
const NO_TIMER: usize = usize::MAX;

/// Not 0: this process is such a child, and has not joined yet.
#[unsafe(link_section = ".data")]
static IS_LATE: AtomicU32 = AtomicU32::new(0);
#[unsafe(link_section = ".data")]
static TIMER: AtomicUsize = AtomicUsize::new(NO_TIMER);

/// Before a fork, with `fork_lock::write` held: may its child join late? If so nothing becomes marked or
/// managed until `fork_is_over`. `is_all_here`: by what else is known.
pub fn fork_begins(is_all_here: impl FnOnce() -> bool) -> bool {
    // A filter of the program's own may end it for a timer.
    if STATE.forks.load(Ordering::Relaxed) == 0 || STATE.confined.load(Ordering::SeqCst) != 0 {
        return false;
    }
    let Some(control) = own_control() else { return false };
    // SAFETY: this process owns the page, and keeps it mapped until it ends.
    let is_tight = unsafe { (&raw const (*control).announces).read_volatile() } != 0;
    if is_tight {
        return false;
    }
    batch::hold_off();
    let may_be_late = !batch::is_any_marked() && !in_use::is_any_managed() && is_all_here();
    if !may_be_late {
        batch::let_go_on();
    }
    may_be_late
}

/// In the parent, when it has forked or has failed to.
pub fn fork_is_over() {
    batch::let_go_on();
}

/// In the child, before its calls are trapped.
pub fn in_child() {
    forks::forget_parent();
    match start_timer() {
        Ok(timer) => {
            TIMER.store(timer, Ordering::Relaxed);
            IS_LATE.store(1, Ordering::Relaxed);
        }
        // So many timers and signals as the user may have are there already.
        Err(_) => handshake::join(KIND_FORK),
    }
}

/// Is this the child of a fork that has not joined yet?
pub fn is_late() -> bool {
    IS_LATE.load(Ordering::Relaxed) != 0
}

/// Joins, with all signals blocked, and on a stack that is never managed.
pub fn join() {
    if IS_LATE.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    let is_disarmed = gadget::disarm().is_ok();
    let timer = TIMER.swap(NO_TIMER, Ordering::Relaxed);
    // SAFETY: the number of a timer.
    let _ = unsafe { gadget::call(TIMER_DELETE, [timer, 0, 0, 0, 0, 0]) };
    handshake::join(KIND_FORK);
    if !is_disarmed || gadget::arm().is_err() {
        sys::die();
    }
}

/// Is this signal the timer's? It may come when the child has joined already.
pub fn is_timer(info: &Info) -> bool {
    let value = info.number as u32 as usize | (info.arch as usize) << 32;
    info.code == SI_TIMER && value == IS_LATE.as_ptr() as usize
}

/// Calls that neither wait for long, nor make the process larger, nor change who it is.
pub fn may_wait(number: usize, args: &[usize; 6]) -> bool {
    const TCGETS: usize = 0x5401;
    const TIOCGPGRP: usize = 0x540f;
    const TIOCSPGRP: usize = 0x5410;
    const F_SETFL: usize = 4;
    const F_DUPFD_CLOEXEC: usize = 1030;
    const IOCTL: usize = 16;
    const FCNTL: usize = 72;
    match number {
        IOCTL => matches!(args[1], TCGETS | TIOCGPGRP | TIOCSPGRP),
        // Not of locks, which wait.
        FCNTL => args[1] <= F_SETFL || args[1] == F_DUPFD_CLOEXEC,
        // open, close, stat and its kin; rt_sigaction, rt_sigprocmask, rt_sigreturn; access, pipe.
        2..=6 | 13..=15 | 21 | 22 => true,
        // dup and dup2, getpid, execve, exit; chdir and fchdir; umask.
        32 | 33 | 39 | 59 | 60 | 80 | 81 | 95 => true,
        // getuid, getgid, geteuid, getegid, setpgid, getppid, getpgrp, setsid, getpgid; sigaltstack.
        102 | 104 | 107..=112 | 121 | 131 => true,
        // gettid, set_tid_address, exit_group, openat, newfstatat, faccessat, set_robust_list; dup3 and
        // pipe2; execveat; rseq; close_range.
        186 | 218 | 231 | 257 | 262 | 269 | 273 | 292 | 293 | 322 | 334 | 436 => true,
        _ => false,
    }
}

/// The number of a timer that tells by SIGSYS when the time is over.
fn start_timer() -> sys::Result<usize> {
    /// `struct sigevent`.
    #[repr(C)]
    struct Event {
        value: usize,
        signal: i32,
        notify: i32,
        rest: [u64; 6],
    }
    const BY_SIGNAL: i32 = 0;
    let signal = super::signals::SIGSYS as i32;
    let event = Event { value: IS_LATE.as_ptr() as usize, signal, notify: BY_SIGNAL, rest: [0; 6] };
    let mut timer = 0i32;
    // Once: no interval.
    let when = [0, 0, 0, LATE_MS * 1_000_000];
    // SAFETY: the kernel reads an event and two times, and writes a number.
    unsafe {
        let made = [CLOCK_MONOTONIC, &raw const event as usize, &raw mut timer as usize, 0, 0, 0];
        gadget::call(TIMER_CREATE, made)?;
        let timer = timer as usize;
        let set = gadget::call(TIMER_SETTIME, [timer, 0, when.as_ptr() as usize, 0, 0, 0]);
        if set.is_err() {
            let _ = gadget::call(TIMER_DELETE, [timer, 0, 0, 0, 0, 0]);
        }
        set.map(|_| timer)
    }
}
