//! A program that counts its threads does not count the evictor. Some insist on being alone, and count the
//! links of /proc/self/task for it: Chromium's zygote, and all that is built on it, ends itself where it
//! finds another thread.
//!
//! `stat` and its kin say one link less of that directory while there is an evictor: where calls
//! are trapped, by the dispatch (`trap/handler.rs`); else by functions in place of the C library's.
//!
//! What it does not do: the names in that directory, /proc/self/status and /proc/self/stat show the thread;
//! nor are calls seen that a program makes by its own instructions where calls are not trapped.

use core::ffi::{CStr, c_int};
use core::mem::size_of;

use super::c_library::libc_result;
use super::files::{self, Next};
use crate::calls::tasks::{Links, Stat, Statx, is_path_of_tasks};
use crate::machine::sys::{self, AT_FDCWD, nr};
use crate::supervisor::control::own_control;
use crate::thread::trapped;

const NEWFSTATAT: usize = 262;

/// Asks about a path, by the C library's function or, where that is not known (yet), by the call.
fn said<T: Links>(next: &Next, args: [usize; 6], call: [usize; 6], path: usize, result: usize) -> c_int {
    let number = if size_of::<T>() == size_of::<Stat>() { NEWFSTATAT } else { nr::STATX };
    // SAFETY: the caller's own request, passed through.
    let by_call = || libc_result(unsafe { sys::syscall(number, call) }) as isize;
    let ret = next.call_or(args, by_call) as c_int;
    // SAFETY: it has just been read, so it is a C string.
    let is_asked_for = || is_path_of_tasks(unsafe { CStr::from_ptr(path as *const _) }.to_bytes());
    if ret == 0 && path != 0 && is_asked_for() && own_control().is_some() && !trapped::is_armed() {
        let result = result as *mut T;
        // SAFETY: it has just been written.
        unsafe {
            if let Some(corrected) = result.read_unaligned().without_one() {
                result.write_unaligned(corrected);
            }
        }
    }
    ret
}

/// Finds what comes after these functions, as `files::find_next` does.
pub fn find_next() {
    let next = [&FSTATAT, &FSTATAT64, &STAT, &STAT64, &XSTAT, &XSTAT64, &FXSTATAT, &FXSTATAT64, &STATX];
    next.into_iter().for_each(files::find);
}

/// In .data by force: this is not to be swapped out.
macro_rules! next {
    ($($place:ident = $name:literal;)*) => {
        $(#[unsafe(link_section = ".data.hot")] static $place: Next = Next::new(concat!($name, "\0"));)*
    };
}

next! {
    FSTATAT = "fstatat";
    FSTATAT64 = "fstatat64";
    STAT = "stat";
    STAT64 = "stat64";
    XSTAT = "__xstat";
    XSTAT64 = "__xstat64";
    FXSTATAT = "__fxstatat";
    FXSTATAT64 = "__fxstatat64";
    STATX = "statx";
}

fn by_fstatat(next: &Next, at: usize, path: usize, result: usize, flags: usize) -> c_int {
    let args = [at, path, result, flags, 0, 0];
    said::<Stat>(next, args, args, path, result)
}

fn by_stat(next: &Next, path: usize, result: usize) -> c_int {
    said::<Stat>(next, [path, result, 0, 0, 0, 0], [AT_FDCWD, path, result, 0, 0, 0], path, result)
}

fn by_xstat(next: &Next, version: usize, path: usize, result: usize) -> c_int {
    said::<Stat>(next, [version, path, result, 0, 0, 0], [AT_FDCWD, path, result, 0, 0, 0], path, result)
}

fn by_fxstatat(next: &Next, args: [usize; 5]) -> c_int {
    let [version, at, path, result, flags] = args;
    let given = [version, at, path, result, flags, 0];
    said::<Stat>(next, given, [at, path, result, flags, 0, 0], path, result)
}

#[unsafe(no_mangle)]
extern "C" fn fstatat(at: usize, path: usize, result: usize, flags: usize) -> c_int {
    by_fstatat(&FSTATAT, at, path, result, flags)
}

#[unsafe(no_mangle)]
extern "C" fn fstatat64(at: usize, path: usize, result: usize, flags: usize) -> c_int {
    by_fstatat(&FSTATAT64, at, path, result, flags)
}

#[unsafe(no_mangle)]
extern "C" fn stat(path: usize, result: usize) -> c_int {
    by_stat(&STAT, path, result)
}

#[unsafe(no_mangle)]
extern "C" fn stat64(path: usize, result: usize) -> c_int {
    by_stat(&STAT64, path, result)
}

// As programs call them that were compiled for glibc before 2.33.
#[unsafe(no_mangle)]
extern "C" fn __xstat(version: usize, path: usize, result: usize) -> c_int {
    by_xstat(&XSTAT, version, path, result)
}

#[unsafe(no_mangle)]
extern "C" fn __xstat64(version: usize, path: usize, result: usize) -> c_int {
    by_xstat(&XSTAT64, version, path, result)
}

#[unsafe(no_mangle)]
extern "C" fn __fxstatat(version: usize, at: usize, path: usize, result: usize, flags: usize) -> c_int {
    by_fxstatat(&FXSTATAT, [version, at, path, result, flags])
}

#[unsafe(no_mangle)]
extern "C" fn __fxstatat64(version: usize, at: usize, path: usize, result: usize, flags: usize) -> c_int {
    by_fxstatat(&FXSTATAT64, [version, at, path, result, flags])
}

#[unsafe(no_mangle)]
extern "C" fn statx(at: usize, path: usize, flags: usize, wanted: usize, result: usize) -> c_int {
    let args = [at, path, flags, wanted, result, 0];
    said::<Statx>(&STATX, args, args, path, result)
}
