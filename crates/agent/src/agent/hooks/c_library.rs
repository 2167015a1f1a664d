//! Helpers of all functions that stand in for those of the C library.

use core::ffi::c_int;

use crate::machine::sys::{self, Result};
use crate::thread::trapped;

const MAP_FAILED: usize = usize::MAX;

/// As the C library does: MAP_FAILED and errno, or the address with errno left alone.
pub fn libc_result(ret: Result<usize>) -> usize {
    let errno = match ret {
        Ok(addr) => return addr,
        Err(errno) => errno,
    };
    let location = sys::weak!("__errno_location");
    if location != 0 {
        // SAFETY: this is what every C library for Linux defines under that name; it returns this thread's
        // errno.
        unsafe {
            let location: extern "C" fn() -> *mut c_int = core::mem::transmute(location);
            location().write(errno);
        }
    }
    MAP_FAILED
}

/// A process that has not joined yet does so before what it is about to do, and whatever that asks
/// `own_control`.
pub fn be_joined() {
    if trapped::is_late() {
        // Any call that such a process does not make.
        sys::yield_now();
    }
}
