//! Functions of rooms above this one that a process calls as it joins. `start.rs` hands them down once,
//! before anything joins; none is called often.

use crate::common::sync::{AtomicPtr, Ordering};
use core::ptr::null_mut;

use crate::machine::sys::{self, Result};

pub struct Above {
    /// Traps the calls of the calling thread, and of all that it makes (`trap/mod.rs`).
    pub trap_calls: fn() -> Result<()>,
    /// Follows the C library's forks, where the kernel tells of them (`hooks/fork.rs`).
    pub follow_forks: fn(),
    /// Stands before the calls of malloc and of `execve` in the C library.
    pub stand_before_calls: fn(),
    /// Tells of each function of the C library that the agent stands before (`hooks/files.rs`).
    pub each_function: fn(&mut dyn FnMut(usize)),
}

#[unsafe(link_section = ".data.hot")]
static ABOVE: AtomicPtr<Above> = AtomicPtr::new(null_mut());

pub fn hand_down(above: &'static Above) {
    ABOVE.store((&raw const *above).cast_mut(), Ordering::Release);
}

/// Only after `hand_down`.
pub fn above() -> &'static Above {
    let above = ABOVE.load(Ordering::Acquire);
    if above.is_null() {
        sys::die();
    }
    // SAFETY: `hand_down` has stored a reference that lives for ever.
    unsafe { &*above }
}
