//! Waiting until a word changes that a process shares with its supervisor.
#![allow(unsafe_code, reason = "system calls on the address of an atomic")]

use memspill_common::sync::AtomicU32;
use std::time::Duration;

/// Waits while the word is `value`, less than a second; may return early.
pub fn wait(word: &AtomicU32, value: u32, limit: Duration) {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
    // SAFETY: the word and the limit live across the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &limit, 0, 0) };
}

/// Wakes so many of those who wait.
pub fn wake(word: &AtomicU32, count: i32) {
    // SAFETY: the word lives across the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count, 0, 0, 0) };
}
