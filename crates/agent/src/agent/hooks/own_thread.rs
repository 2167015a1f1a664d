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

use super::files::{self, Next};
use super::mmap::{libc_result, own_control};
use crate::machine::sys::{self, AT_FDCWD, nr};

/// The end of the path, which is looked up in the program's own part of /proc. (A directory of that name that
/// is somewhere else does not look like one of /proc.)
const TASKS: &[u8] = b"self/task";
/// A path that is longer is not asked for.
pub const PATH_MAX: usize = 64;

const IS_DIRECTORY: u32 = 0o040_000;
const MODE_OF_PROC: u32 = IS_DIRECTORY | 0o555;
/// `.`, `..`, and one for each thread. The child of a vfork, which has no evictor, has no more.
const LEAST_LINKS: u64 = 3;

const NEWFSTATAT: usize = 262;

/// `struct stat`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Stat {
    ids: [u64; 2],
    links: u64,
    mode: u32,
    owner: [u32; 5],
    size: u64,
    rest: [u64; 11],
}

/// `struct statx`, as far as it is of interest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Statx {
    head: [u32; 4],
    links: u32,
    owner: [u32; 2],
    mode: u16,
    unused: u16,
    ino: u64,
    size: u64,
}

/// The kernel's structures that say how many links a directory has.
pub trait Links: Copy {
    /// The same with one link less, if it is a directory of /proc.
    fn without_one(self) -> Option<Self>;
}

impl Links for Stat {
    fn without_one(mut self) -> Option<Self> {
        let is_one = is_tasks(self.mode, self.size, self.links);
        self.links -= if is_one { 1 } else { 0 };
        is_one.then_some(self)
    }
}

impl Links for Statx {
    fn without_one(mut self) -> Option<Self> {
        let is_one = is_tasks(self.mode.into(), self.size, self.links);
        self.links -= if is_one { 1 } else { 0 };
        is_one.then_some(self)
    }
}

fn is_tasks(mode: u32, size: u64, links: impl Into<u64>) -> bool {
    mode == MODE_OF_PROC && size == 0 && links.into() > LEAST_LINKS
}

/// Is it the directory of the program's own threads? `path`: without the zero at its end.
pub fn is_path_of_tasks(mut path: &[u8]) -> bool {
    while let [shorter @ .., b'/'] = path {
        path = shorter;
    }
    path.strip_suffix(TASKS).is_some_and(|before| before.is_empty() || before.ends_with(b"/"))
}

/// Has the dispatch done it?
fn is_trapped() -> bool {
    crate::trap::is_armed()
}

/// Asks about a path, by the C library's function or, where that is not known (yet), by the call.
fn said<T: Links>(next: &Next, args: [usize; 6], call: [usize; 6], path: usize, result: usize) -> c_int {
    let number = if size_of::<T>() == size_of::<Stat>() { NEWFSTATAT } else { nr::STATX };
    // SAFETY: the caller's own request, passed through.
    let by_call = || libc_result(unsafe { sys::syscall(number, call) }) as isize;
    let ret = next.call_or(args, by_call) as c_int;
    // SAFETY: it has just been read, so it is a C string.
    let is_asked_for = || is_path_of_tasks(unsafe { CStr::from_ptr(path as *const _) }.to_bytes());
    if ret == 0 && path != 0 && is_asked_for() && own_control().is_some() && !is_trapped() {
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
