//! `madvise`, `process_madvise`, `mlockall`, `prctl` and `syscall`, in place of the C library's: what the kernel does without an event.
//!
//! Some advice changes what a page reads as, or what a child inherits, and no userfaultfd is told. The supervisor, which
//! holds what was swapped out of those pages, must learn of it here:
//!
//! | call                           | what is done beside it                                               |
//! |--------------------------------|----------------------------------------------------------------------|
//! | MADV_WIPEONFORK, MADV_DONTFORK | a mark in the control page: the supervisor looks at each fork        |
//! | MADV_FREE                      | while memory is tight it frees at once (1)                           |
//! | MADV_GUARD_INSTALL             | after it: the pager forgets what was there; then once more, see below |
//! | MADV_GUARD_REMOVE              | before it: the pager forgets what was under guards: it reads as zero |
//! | mlockall                       | before it: malloc gives back what it holds for later                 |
//! | a seccomp filter               | children of forks do not join: that may be forbidden (`fork.rs`)     |
//!
//! (1) Pages that it leaves in place are used again without a fault, and so would be managed no more.
//!
//! *Guards.* The kernel's UFFDIO_COPY replaces a guard as if nothing were there, so the pager looks before it fills a page
//! beside the one that faulted. A guard that comes between its look and its fill is lost. So the guards are put a second
//! time when the pager has forgotten the range: from then on every look sees them.
//!
//! *Seccomp with TSYNC.* The evictor has a filter of its own (`confine.rs`), and the kernel refuses TSYNC where another
//! thread has a filter that is not an ancestor of the caller's. Where the caller and the evictor are the only threads,
//! TSYNC is left out of the call: there is nobody else to be reached. Where there are more, the call fails as the kernel
//! says, with the evictor's thread id.
//!
//! Not seen from here: calls inside the C library itself (glibc 2.42 puts guards below the stacks of threads: they go over
//! memory that nobody has touched, and are seen at each fill) and system calls made by a program's own instructions. Guards
//! that come in such a way are found by the supervisor within a second. All of this may run in a signal handler, in the
//! child of a vfork, in the child of a raw clone.

use core::ffi::{c_int, c_long, c_uint};
use core::sync::atomic::Ordering;

use crate::STATE;
use crate::hooks::{finish, own_control, pressing_control, ring, tell_advice};
use crate::protocol::{CALL_GUARDED, CALL_UNGUARD};
use crate::sys::{self, Result, nr};

const PR_SET_SECCOMP: usize = 22;
const SECCOMP_SET_MODE_STRICT: usize = 0;
const SECCOMP_SET_MODE_FILTER: usize = 1;
const SECCOMP_FILTER_FLAG_TSYNC: usize = 1;
/// How often a call is tried while all doorbells are in use, each for some µs.
const RING_TRIES: u32 = 10_000;

#[unsafe(no_mangle)]
pub extern "C" fn madvise(addr: usize, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's own request, passed through.
    let call = || unsafe { sys::syscall(nr::MADVISE, [addr, len, advice as usize, 0, 0, 0]) };
    finish(advise(&[(addr, len)], advice as usize, CALL_GUARDED, call)) as c_int
}

/// Of this process or of another one: the latter only costs a look that finds nothing.
#[unsafe(no_mangle)]
pub extern "C" fn process_madvise(
    pidfd: c_int,
    ranges: *const [usize; 2],
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    let args = [pidfd as usize, ranges as usize, count, advice as usize, flags as usize, 0];
    finish(process_advise(args)) as isize
}

/// Variadic in C: what the caller did not pass is whatever the registers hold, and the kernel ignores it.
#[unsafe(no_mangle)]
pub extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    finish(prctl_call([option as usize, a, b, c, d, 0])) as c_int
}

/// As `prctl`.
#[unsafe(no_mangle)]
pub extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let args = [a, b, c, d, e, f];
    let ret = match number as usize {
        nr::MADVISE => return madvise(a, b, c as c_int) as c_long,
        nr::MLOCKALL => return mlockall(a as c_int) as c_long,
        nr::PROCESS_MADVISE => process_advise(args),
        nr::PRCTL => prctl_call(args),
        nr::SECCOMP => seccomp(args),
        // SAFETY: the caller's own request, passed through.
        other => unsafe { sys::syscall(other, args) },
    };
    finish(ret) as c_long
}

#[unsafe(no_mangle)]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    ask_for_little();
    // SAFETY: the caller's own request, passed through.
    finish(unsafe { sys::syscall(nr::MLOCKALL, [flags as usize, 0, 0, 0, 0, 0]) }) as c_int
}

/// A program under memspill has a heap that is larger than what it asked for (GLIBC_TUNABLES, `supervisor.rs`), of which it
/// uses nothing. When all is locked, that would be filled.
fn ask_for_little() {
    const M_TOP_PAD: c_int = -2;
    /// glibc's own default.
    const TOP_PAD: c_int = 128 << 10;
    let (mallopt, malloc_trim) = (sys::weak!("mallopt"), sys::weak!("malloc_trim"));
    if own_control().is_some() && mallopt != 0 && malloc_trim != 0 {
        // SAFETY: glibc's functions of these names; both may be called at any time outside signal handlers.
        unsafe {
            let mallopt: extern "C" fn(c_int, c_int) -> c_int = core::mem::transmute(mallopt);
            let malloc_trim: extern "C" fn(usize) -> c_int = core::mem::transmute(malloc_trim);
            mallopt(M_TOP_PAD, TOP_PAD);
            malloc_trim(0);
        }
    }
}

fn process_advise(args: [usize; 6]) -> Result<usize> {
    /// Of longer lists the rest is left to the supervisor's look.
    const RANGES_MAX: usize = 64;
    // SAFETY: the caller's own request, passed through.
    let call = || unsafe { sys::syscall(nr::PROCESS_MADVISE, args) };
    let [_, ranges, count, advice, ..] = args;
    if !matches!(advice, sys::MADV_GUARD_INSTALL | sys::MADV_GUARD_REMOVE) || ranges == 0 || count == 0 {
        return call();
    }
    // Advice that there is not: the kernel reads the list, and says whether it can.
    let mut probe = args;
    probe[3] = usize::MAX;
    // SAFETY: changes nothing.
    if unsafe { sys::syscall(nr::PROCESS_MADVISE, probe) } == Err(sys::EFAULT) {
        return Err(sys::EFAULT);
    }
    // SAFETY: an array of so many iovecs, which the kernel has just read.
    let ranges = unsafe { core::slice::from_raw_parts(ranges as *const (usize, usize), count.min(RANGES_MAX)) };
    // It may stop half-way, and the call succeeds: so what has a guard now is looked for.
    advise(ranges, advice, CALL_UNGUARD, call)
}

/// One call that gives advice on some ranges, and what belongs beside it. `guarded`: what the pager is told after guards
/// were put.
fn advise(
    ranges: &[(usize, usize)],
    advice: usize,
    guarded: u32,
    call: impl Fn() -> Result<usize>,
) -> Result<usize> {
    match advice {
        sys::MADV_WIPEONFORK | sys::MADV_DONTFORK => {
            // Before the call: a fork right after it must see this.
            STATE.fork_advice.store(1, Ordering::SeqCst);
            tell_advice();
            call()
        }
        sys::MADV_FREE => {
            let ret = call();
            if ret.is_ok() && pressing_control().is_some() {
                // SAFETY: what the kernel agreed to free some time (it refuses memory that is not anonymous) is freed now.
                ranges.iter().for_each(|(addr, len)| drop(unsafe { sys::madvise(*addr, *len, sys::MADV_DONTNEED) }));
            }
            ret
        }
        sys::MADV_GUARD_INSTALL => {
            STATE.guards.store(1, Ordering::SeqCst);
            tell_advice();
            let ret = call();
            if ret.is_ok() && tell(ranges, guarded) { call() } else { ret }
        }
        sys::MADV_GUARD_REMOVE => {
            tell(ranges, CALL_UNGUARD);
            call()
        }
        _ => call(),
    }
}

/// Tells the pager of these ranges, if memory is tight. (Before that nothing was swapped out.)
fn tell(ranges: &[(usize, usize)], what: u32) -> bool {
    let mut told = false;
    for (addr, len) in ranges {
        for _ in 0..RING_TRIES {
            let Some(control) = pressing_control() else {
                return told;
            };
            if addr.checked_add(*len).is_none() || ring(control, *addr, *len, what) {
                told = true;
                break;
            }
            sys::yield_now();
        }
    }
    told
}

fn prctl_call(args: [usize; 6]) -> Result<usize> {
    // SAFETY: the caller's own request, passed through.
    let ret = unsafe { sys::syscall(nr::PRCTL, args) };
    if args[0] == PR_SET_SECCOMP && ret.is_ok() {
        STATE.confined.store(1, Ordering::SeqCst);
    }
    ret
}

fn seccomp(mut args: [usize; 6]) -> Result<usize> {
    let sets = matches!(args[0], SECCOMP_SET_MODE_STRICT | SECCOMP_SET_MODE_FILTER);
    let everybody = args[0] == SECCOMP_SET_MODE_FILTER && args[1] & SECCOMP_FILTER_FLAG_TSYNC != 0;
    if everybody && own_control().is_some() && sys::thread_count() == Some(2) {
        args[1] &= !SECCOMP_FILTER_FLAG_TSYNC;
    }
    // SAFETY: the caller's own request, passed through.
    let ret = unsafe { sys::syscall(nr::SECCOMP, args) };
    if sets && ret.is_ok() {
        STATE.confined.store(1, Ordering::SeqCst);
    }
    ret
}
