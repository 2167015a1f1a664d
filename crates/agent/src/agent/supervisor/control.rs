//! The control page that this process shares with the supervisor (`common/src/protocol.rs`): whether there is
//! one, what it says, and what the supervisor is told by it.

use super::state::STATE;
use crate::common::protocol::{Control, WANTS_ASKED, WANTS_REFUSED};
use crate::common::sync::{AtomicU32, Ordering};
use crate::machine::sys;

/// The control page, if there is one and it is this process's own.
pub fn own_control() -> Option<*mut Control> {
    let control = STATE.control.load(Ordering::Acquire);
    (!control.is_null() && STATE.owner.load(Ordering::Relaxed) == sys::getpid()).then_some(control)
}

/// The control page, if new mappings are to be announced.
pub fn announcing_control() -> Option<*mut Control> {
    let control = own_control()?;
    // SAFETY: this process owns the page, and keeps it mapped until it ends.
    let announces = unsafe { (&raw const (*control).announces).read_volatile() };
    (announces != 0).then_some(control)
}

/// The control page, if calls are answered: something of this process may be managed.
pub fn answering_control() -> Option<*mut Control> {
    let control = own_control()?;
    // SAFETY: this process owns the page, and keeps it mapped until it ends.
    let answers = unsafe { (&raw const (*control).answers).read_volatile() };
    (answers != 0).then_some(control)
}

/// As `answering_control`, for a program that has a wish: if calls are not answered yet, the supervisor is
/// asked for it, which looks at every process some hundred times a second.
pub fn control_asked_for() -> Option<*mut Control> {
    /// Far longer than it takes.
    const LOOKS_MAX: u32 = 500;
    let control = own_control()?;
    // SAFETY: this process owns the page, and keeps it mapped until it ends; the fields are accessed as
    // atomics only.
    let (answers, wants) = unsafe {
        let word = |field| AtomicU32::from_ptr(field);
        (word(&raw mut (*control).answers), word(&raw mut (*control).wants_answers))
    };
    for _ in 0..LOOKS_MAX {
        if answers.load(Ordering::Acquire) != 0 {
            return Some(control);
        }
        // A filter of the program's own may end the process for a call that waits.
        if wants.load(Ordering::Acquire) == WANTS_REFUSED || STATE.confined.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let _ = wants.compare_exchange(0, WANTS_ASKED, Ordering::AcqRel, Ordering::Relaxed);
        let _ = sys::futex_wait(answers, 0, 1);
    }
    None
}

/// Writes into the control page, if this process has one, what kinds of advice its memory has had.
pub fn tell_advice() {
    let Some(control) = own_control() else {
        return;
    };
    // SAFETY: this process owns the page, and keeps it mapped until it ends.
    unsafe {
        if STATE.fork_advice.load(Ordering::SeqCst) != 0 {
            (&raw mut (*control).fork_advice).write_volatile(1);
        }
        if STATE.guards.load(Ordering::SeqCst) != 0 {
            (&raw mut (*control).guards).write_volatile(1);
        }
    }
}

/// Writes into the control page that the program is about to have a seccomp filter. (Afterwards it may be too
/// late: the filter may end the process for the asking whose page it is.)
pub fn tell_confined() {
    if let Some(control) = own_control() {
        // SAFETY: this process owns the page, and keeps it mapped until it ends.
        unsafe { (&raw mut (*control).confined).write_volatile(1) };
    }
}
