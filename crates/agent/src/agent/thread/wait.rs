//! Sleeping until a word changes, by calls that are never trapped, in whatever thread.

use crate::common::sync::AtomicU32;
use crate::machine::gadget;
use crate::machine::sys::nr;

const FUTEX_WAIT: usize = 0;
const FUTEX_WAKE: usize = 1;

/// Sleeps while the word is `seen`; may return early.
pub fn sleep(word: &AtomicU32, seen: u32) {
    // SAFETY: the word is alive for the call.
    let _ = unsafe { gadget::call(nr::FUTEX, [word.as_ptr() as usize, FUTEX_WAIT, seen as usize, 0, 0, 0]) };
}

/// The same, for so long at most.
pub fn sleep_for(word: &AtomicU32, seen: u32, limit_ms: u32) {
    let limit = [i64::from(limit_ms / 1000), i64::from(limit_ms % 1000) * 1_000_000];
    let args = [word.as_ptr() as usize, FUTEX_WAIT, seen as usize, limit.as_ptr() as usize, 0, 0];
    // SAFETY: the word and the limit are alive for the call.
    let _ = unsafe { gadget::call(nr::FUTEX, args) };
}

/// Sleeps for so long.
pub fn pause(ms: u32) {
    sleep_for(&AtomicU32::new(0), 0, ms);
}

pub fn wake_all(word: &AtomicU32) {
    // SAFETY: the word is alive for the call.
    let _ =
        unsafe { gadget::call(nr::FUTEX, [word.as_ptr() as usize, FUTEX_WAKE, i32::MAX as usize, 0, 0, 0]) };
}
