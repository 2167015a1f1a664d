//! Sleeping until a word changes, by calls that are never trapped, in whatever thread.

use core::sync::atomic::AtomicU32;

use crate::dispatch::gadget;
use crate::sys::nr;

const FUTEX_WAIT: usize = 0;
const FUTEX_WAKE: usize = 1;

/// Sleeps while the word is `seen`; may return early.
pub fn sleep(word: &AtomicU32, seen: u32) {
    // SAFETY: the word is alive for the call.
    let _ = unsafe { gadget::call(nr::FUTEX, [word.as_ptr() as usize, FUTEX_WAIT, seen as usize, 0, 0, 0]) };
}

pub fn wake_all(word: &AtomicU32) {
    // SAFETY: the word is alive for the call.
    let _ =
        unsafe { gadget::call(nr::FUTEX, [word.as_ptr() as usize, FUTEX_WAKE, i32::MAX as usize, 0, 0, 0]) };
}
