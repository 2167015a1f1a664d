//! `open`, `openat`, `fcntl` and their kin, in place of the C library's: the supervisor is told of files that
//! are read past the page cache (O_DIRECT).
//!
//! Such a read stores bytes from a device into pages that are pinned. Did one of them leave shared memory
//! meanwhile, it would be lost. So the supervisor takes no page of what this process shares from the moment
//! on that it is about to open such a file, until it has seen by itself that there is none:
//!
//! ```text
//!   here:        direct_begun + 1 ─ wait while takes_shared > 0 ─ open ─ direct_ended + 1
//!   supervisor:  takes_shared + 1 ─ is direct_begun as it was? then take ─ takes_shared - 1
//! ```
//!
//! Either the supervisor sees the count, or this thread sees that pages are being taken, and waits for that.
//! Neither needs the other to answer. A ring of io_uring, which can open files by itself, counts as such a
//! file.
//!
//! The call itself is made by the C library, whose `open` can be cancelled. Not seen from here: descriptors
//! that come by other ways (a message, `mkostemp`), and system calls by a program's own instructions: they
//! are found when the supervisor looks at the files that are open. All of this may run in a signal handler,
//! in the child of a vfork, in the child of a raw clone.

use crate::common::sync::{AtomicU32, AtomicUsize, Ordering};
use core::ffi::{CStr, c_int};

use super::c_library::{be_joined, libc_result};
use super::clear_refs;
use super::proc_mem;
use crate::machine::sys::{self, Result, nr};
use crate::supervisor::control::own_control;

const F_SETFL: usize = 4;
const O_DIRECT: usize = 0o40000;

/// A function of the C library that one of this file's stands before.
struct Next {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicUsize::new(0) }
    }

    /// None: it is not known (yet).
    fn function(&self) -> Option<Function> {
        let address = self.address.load(Ordering::Acquire);
        // SAFETY: a function of the C library that takes at most four integers or pointers, and returns an
        // int.
        (address != 0).then(|| unsafe { core::mem::transmute::<usize, Function>(address) })
    }
}

type Function = extern "C" fn(usize, usize, usize, usize) -> c_int;

struct NextOnes {
    open: Next,
    open64: Next,
    open_2: Next,
    open64_2: Next,
    openat: Next,
    openat64: Next,
    openat_2: Next,
    openat64_2: Next,
    fcntl: Next,
    fcntl64: Next,
}

// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data.hot")]
static NEXT: NextOnes = NextOnes {
    open: Next::new(c"open"),
    open64: Next::new(c"open64"),
    open_2: Next::new(c"__open_2"),
    open64_2: Next::new(c"__open64_2"),
    openat: Next::new(c"openat"),
    openat64: Next::new(c"openat64"),
    openat_2: Next::new(c"__openat_2"),
    openat64_2: Next::new(c"__openat64_2"),
    fcntl: Next::new(c"fcntl"),
    fcntl64: Next::new(c"fcntl64"),
};

/// Finds the C library's own functions. Called by the constructor; before that, and where there is no dlsym
/// (it is in a library of its own before glibc 2.34), the calls are made without them.
pub fn find_next() {
    const RTLD_NEXT: usize = usize::MAX;
    let dlsym = sys::weak!("dlsym");
    if dlsym == 0 {
        return;
    }
    // SAFETY: every C library's function of this name.
    let dlsym: extern "C" fn(usize, *const core::ffi::c_char) -> usize =
        unsafe { core::mem::transmute(dlsym) };
    let NextOnes { open, open64, open_2, open64_2, openat, openat64, .. } = &NEXT;
    let NextOnes { openat_2, openat64_2, fcntl, fcntl64, .. } = &NEXT;
    for next in [open, open64, open_2, open64_2, openat, openat64, openat_2, openat64_2, fcntl, fcntl64] {
        next.address.store(dlsym(RTLD_NEXT, next.name.as_ptr()), Ordering::Release);
    }
}

/// Makes a call after the supervisor was told, if it may open what is read past the page cache.
fn tell<T>(is_direct: bool, call: impl FnOnce() -> T) -> T {
    if is_direct {
        be_joined();
    }
    let Some(control) = (if is_direct { own_control() } else { None }) else {
        return call();
    };
    // SAFETY: this process owns the page, and keeps it mapped until it ends; the fields are accessed as
    // atomics only.
    let (begun, ended, takes) = unsafe {
        let word = |field| AtomicU32::from_ptr(field);
        let begun = word(&raw mut (*control).direct_begun);
        (begun, word(&raw mut (*control).direct_ended), word(&raw mut (*control).takes_shared))
    };
    begun.fetch_add(1, Ordering::SeqCst);
    while takes.load(Ordering::SeqCst) != 0 {
        sys::pause(1);
    }
    let ret = call();
    ended.fetch_add(1, Ordering::SeqCst);
    ret
}

fn opens(next: &Next, dir: Option<usize>, path: usize, flags: c_int, mode: usize) -> c_int {
    let flags = flags as usize;
    let opened = tell(flags & O_DIRECT != 0, || match (next.function(), dir) {
        (Some(function), Some(dir)) => function(dir, path, flags, mode),
        (Some(function), None) => function(path, flags, mode, 0),
        (None, dir) => {
            let args = [dir.unwrap_or(sys::AT_FDCWD), path, flags, mode, 0, 0];
            // SAFETY: the caller's own request, passed through.
            libc_result(unsafe { sys::syscall(nr::OPENAT, args) }) as c_int
        }
    });
    if opened >= 0 {
        proc_mem::note_opened(path);
    }
    clear_refs::opened(opened, path, flags)
}

/// Variadic in C, as `openat`: without O_CREAT the mode is whatever the register holds, and is not looked at.
#[unsafe(no_mangle)]
pub extern "C" fn open(path: usize, flags: c_int, mode: usize) -> c_int {
    opens(&NEXT.open, None, path, flags, mode)
}

#[unsafe(no_mangle)]
pub extern "C" fn open64(path: usize, flags: c_int, mode: usize) -> c_int {
    opens(&NEXT.open64, None, path, flags, mode)
}

#[unsafe(no_mangle)]
pub extern "C" fn openat(dir: c_int, path: usize, flags: c_int, mode: usize) -> c_int {
    opens(&NEXT.openat, Some(dir as usize), path, flags, mode)
}

#[unsafe(no_mangle)]
pub extern "C" fn openat64(dir: c_int, path: usize, flags: c_int, mode: usize) -> c_int {
    opens(&NEXT.openat64, Some(dir as usize), path, flags, mode)
}

/// What programs call that are compiled with _FORTIFY_SOURCE, where the flags are not known before.
#[unsafe(no_mangle)]
pub extern "C" fn __open_2(path: usize, flags: c_int) -> c_int {
    opens(&NEXT.open_2, None, path, flags, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn __open64_2(path: usize, flags: c_int) -> c_int {
    opens(&NEXT.open64_2, None, path, flags, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn __openat_2(dir: c_int, path: usize, flags: c_int) -> c_int {
    opens(&NEXT.openat_2, Some(dir as usize), path, flags, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn __openat64_2(dir: c_int, path: usize, flags: c_int) -> c_int {
    opens(&NEXT.openat64_2, Some(dir as usize), path, flags, 0)
}

/// Variadic in C.
#[unsafe(no_mangle)]
pub extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    controls(&NEXT.fcntl, fd, command, argument)
}

#[unsafe(no_mangle)]
pub extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    controls(&NEXT.fcntl64, fd, command, argument)
}

fn controls(next: &Next, fd: c_int, command: c_int, argument: usize) -> c_int {
    let (fd, command) = (fd as usize, command as usize);
    tell(command == F_SETFL && argument & O_DIRECT != 0, || match next.function() {
        Some(function) => function(fd, command, argument, 0),
        // SAFETY: the caller's own request, passed through.
        None => libc_result(unsafe { sys::syscall(nr::FCNTL, [fd, command, argument, 0, 0, 0]) }) as c_int,
    })
}

/// A system call that a program makes by `syscall`.
pub fn system_call(number: usize, args: [usize; 6]) -> Result<usize> {
    let is_direct = match number {
        nr::OPEN => args[1] & O_DIRECT != 0,
        nr::OPENAT => args[2] & O_DIRECT != 0,
        nr::FCNTL => args[1] == F_SETFL && args[2] & O_DIRECT != 0,
        // The flags of openat2 are in memory.
        nr::OPENAT2 | nr::IO_URING_SETUP => true,
        _ => false,
    };
    if !is_direct {
        return by_library(number, args);
    }
    // SAFETY: the caller's own request, passed through.
    tell(is_direct, || unsafe { sys::syscall(number, args) })
}

/// By the C library's `syscall`: where calls are trapped, those from there can come without a trap.
fn by_library(number: usize, args: [usize; 6]) -> Result<usize> {
    type Syscall = extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> isize;
    let (next, errno) = (crate::hooks::files::next_syscall(), sys::weak!("__errno_location"));
    if next == 0 || errno == 0 {
        // SAFETY: the caller's own request, passed through.
        return unsafe { sys::syscall(number, args) };
    }
    // SAFETY: these are what every C library for Linux defines under these names.
    let (next, errno) = unsafe {
        (
            core::mem::transmute::<usize, Syscall>(next),
            core::mem::transmute::<usize, extern "C" fn() -> *const i32>(errno),
        )
    };
    let [a, b, c, d, e, f] = args;
    match next(number, a, b, c, d, e, f) {
        // SAFETY: this thread's errno.
        -1 => Err(unsafe { errno().read() }),
        ret => Ok(ret as usize),
    }
}
