//! `madvise`, `process_madvise`, `mlockall`, `prctl` and `syscall`, in place of the C library's: what the
//! kernel does without an event, and what it cannot do for us.
//!
//! Some advice changes what a page reads as, or what a child inherits, and no userfaultfd is told. The
//! supervisor, which holds what was swapped out of those pages, must learn of it here. Other advice is about
//! swapping, and the swap is the supervisor's:
//!
//! | call                           | what is done beside it                                               |
//! |--------------------------------|----------------------------------------------------------------------|
//! | MADV_WIPEONFORK, MADV_DONTFORK | a mark in the control page: the supervisor looks at each fork        |
//! | MADV_FREE                      | where memory is managed, the pages are freed at once (1)             |
//! | MADV_GUARD_INSTALL             | after it: the pager forgets what was there; then once more, see below |
//! | MADV_GUARD_REMOVE              | before it: the pager forgets what was under guards: it reads as zero |
//! | MADV_REMOVE                    | before it: the pager forgets what is shared there, and removes it    |
//! | MADV_PAGEOUT                   | before it: the supervisor swaps out what it manages there (2)        |
//! | MADV_COLD, MADV_WILLNEED       | after it: the supervisor does so with what it manages there          |
//! | mlockall                       | before it: malloc gives back what it holds for later                 |
//! | a seccomp filter               | children of forks do not join: that may be forbidden (`fork.rs`)     |
//!
//! (1) Pages that MADV_FREE leaves in place are used again without a fault, and so would never be managed
//! again.
//!
//! (2) The kernel is asked first, by MADV_COLD, which changes nothing that can be seen, whether it would take
//! the advice. Its own MADV_PAGEOUT comes last, for what is not managed, and says how the call ends. If
//! memory is not tight and nothing is managed yet, the supervisor makes the mappings of the range managed.
//! Advice for another process (`process_madvise`) it follows only if it finds by itself that the caller may
//! give it.
//!
//! *Guards.* The kernel's UFFDIO_COPY replaces a guard as if nothing were there, so the pager looks for
//! guards before it fills a page beside the one that faulted. A guard that is put between this look and the
//! fill is lost. So the guards are put a second time when the pager has forgotten the range: from then on
//! every look sees them.
//!
//! *Seccomp with TSYNC*, where calls are not trapped (else see `trap/filters.rs`). The evictor has a filter
//! of its own (`confine.rs`), and the kernel refuses TSYNC where another thread has a filter that is not an
//! ancestor of the caller's. If the caller and the evictor are the only threads, TSYNC is left out of the
//! call: there is nobody else to be reached. If there are more, the call fails as the kernel says, with the
//! evictor's thread id.
//!
//! Not seen from here: calls inside the C library itself (glibc 2.42 puts guards below the stacks of threads:
//! they go over memory that nobody has touched, and are seen at each fill) and system calls made by a
//! program's own instructions. Guards that come in such a way are found by the supervisor within a second.
//! All of this may run in a signal handler, in the child of a vfork, in the child of a raw clone.

use crate::common::sync::Ordering;
use core::ffi::{c_int, c_long, c_uint};

use super::c_library::{be_joined, libc_result};
use super::files;
use super::open;
use super::proc_mem;
use crate::common::protocol::{
    CALL_COLD, CALL_GUARDED, CALL_PAGEOUT, CALL_REMOVE, CALL_UNGUARD, CALL_WILLNEED,
};
use crate::machine::seccomp::{
    FLAG_TSYNC, Filter, MODE_FILTER, PR_SET_SECCOMP, SET_MODE_FILTER, SET_MODE_STRICT,
};
use crate::machine::sys::{self, PAGE, Result, nr};
use crate::programs::inherited;
use crate::supervisor::control::{
    answering_control, control_asked_for, own_control, tell_advice, tell_confined,
};
use crate::supervisor::doorbell::{ring, ring_about};
use crate::supervisor::state::STATE;
use crate::thread::fork_lock;
use crate::thread::trapped;

/// How often a call is tried while all doorbells are in use, each for some µs.
const RING_TRIES: u32 = 10_000;
/// How often advice about swapping is tried while all doorbells for it are in use, in steps of a ms: then it
/// is not followed.
const ADVICE_TRIES: u32 = 10_000;
/// The kernel's UIO_MAXIOV.
const RANGES_MAX: usize = 1024;

#[unsafe(no_mangle)]
pub extern "C" fn madvise(addr: usize, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's own request, passed through; or MADV_COLD, which changes no content.
    let call = |advice| unsafe { sys::syscall(nr::MADVISE, [addr, len, advice, 0, 0, 0]) };
    libc_result(advise(0, &[(addr, len)], advice as c_uint as usize, CALL_GUARDED, call)) as c_int
}

/// The ranges may be of this process or of another one.
#[unsafe(no_mangle)]
pub extern "C" fn process_madvise(
    pidfd: c_int,
    ranges: *const [usize; 2],
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    let args = [pidfd as usize, ranges as usize, count, advice as usize, flags as usize, 0];
    libc_result(process_advise(args)) as isize
}

/// Variadic in C: what the caller did not pass is whatever the registers hold, and the kernel ignores it.
#[unsafe(no_mangle)]
pub extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    libc_result(prctl_and_note([option as usize, a, b, c, d, 0])) as c_int
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
        nr::PRCTL => prctl_and_note(args),
        nr::SECCOMP => seccomp(args),
        nr::MMAP if d & sys::MAP_ANONYMOUS == 0 => files::mmap(args),
        nr::PTRACE => proc_mem::trace(args),
        number if files::is_for_later(number, args) => Ok(0),
        other => proc_mem::transfer(other, &args)
            .unwrap_or_else(|| files::about(files::files_of(other, args), || open::system_call(other, args))),
    };
    libc_result(ret) as c_long
}

#[unsafe(no_mangle)]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    be_joined();
    // SAFETY: the caller's own request, passed through.
    libc_result(unsafe { sys::syscall(nr::MLOCKALL, [flags as usize, 0, 0, 0, 0, 0]) }) as c_int
}

fn process_advise(args: [usize; 6]) -> Result<usize> {
    let call = |advice| {
        let mut args = args;
        args[3] = advice;
        // SAFETY: the caller's own request, passed through; or advice that changes no content.
        unsafe { sys::syscall(nr::PROCESS_MADVISE, args) }
    };
    let [pidfd, ranges, count, advice, ..] = args;
    let is_swap = matches!(advice, sys::MADV_PAGEOUT | sys::MADV_COLD | sys::MADV_WILLNEED);
    let is_told = matches!(advice, sys::MADV_REMOVE | sys::MADV_GUARD_INSTALL | sys::MADV_GUARD_REMOVE);
    // What drops contents can be done to memory of the caller's own only: it costs no question whose it is.
    let process = if is_swap { sys::process_of_pidfd(pidfd) } else { Some(0).filter(|_| is_told) };
    let Some(process) = process.filter(|_| ranges != 0 && count != 0) else {
        return call(advice);
    };
    // An advice that does not exist: the kernel only reads the list, and answers EFAULT where it cannot.
    if call(usize::MAX) == Err(sys::EFAULT) {
        return Err(sys::EFAULT);
    }
    // SAFETY: an array of so many iovecs, which the kernel has just read.
    let ranges =
        unsafe { core::slice::from_raw_parts(ranges as *const (usize, usize), count.min(RANGES_MAX)) };
    let process = if process == sys::getpid() { 0 } else { process };
    // The call may stop half-way and still succeed, so the pager looks which pages have a guard now.
    advise(process, ranges, advice, CALL_UNGUARD, call)
}

/// Makes one call that gives advice on some ranges of a process (0: of this one), and does what the table
/// above says. `guarded`: what the pager is told after guards were put. `call`: the kernel's, with this
/// advice.
fn advise(
    process: u32,
    ranges: &[(usize, usize)],
    advice: usize,
    guarded: u32,
    call: impl Fn(usize) -> Result<usize>,
) -> Result<usize> {
    be_joined();
    match advice {
        sys::MADV_WIPEONFORK | sys::MADV_DONTFORK => {
            let _reader = fork_lock::read();
            // Before the call: a fork right after it must see this.
            STATE.fork_advice.store(1, Ordering::SeqCst);
            tell_advice();
            call(advice)
        }
        sys::MADV_DONTNEED => {
            let _reader = fork_lock::read();
            call(advice)
        }
        sys::MADV_PAGEOUT => {
            if is_taken(call(sys::MADV_COLD)) {
                tell_of_swap(process, ranges, CALL_PAGEOUT);
            }
            call(advice)
        }
        sys::MADV_COLD | sys::MADV_WILLNEED => {
            let ret = call(advice);
            if is_taken(ret) {
                tell_of_swap(
                    process,
                    ranges,
                    if advice == sys::MADV_COLD { CALL_COLD } else { CALL_WILLNEED },
                );
            }
            ret
        }
        sys::MADV_REMOVE => {
            // Untold, what was swapped out of shared memory would come back.
            if answering_control().is_some() && !ranges.iter().all(|range| call_pager(&[*range], CALL_REMOVE))
            {
                return Err(sys::EAGAIN);
            }
            call(advice)
        }
        sys::MADV_FREE => {
            let ret = call(advice);
            if ret.is_ok() && answering_control().is_some() {
                for (addr, len) in ranges {
                    // SAFETY: what the kernel agreed to free some time (it refuses memory that is not
                    // anonymous) is freed now.
                    let _ = unsafe { sys::madvise(*addr, *len, sys::MADV_DONTNEED) };
                }
            }
            ret
        }
        sys::MADV_GUARD_INSTALL => {
            STATE.guards.store(1, Ordering::SeqCst);
            tell_advice();
            let ret = call(advice);
            if ret.is_ok() && call_pager(ranges, guarded) { call(advice) } else { ret }
        }
        sys::MADV_GUARD_REMOVE => {
            call_pager(ranges, CALL_UNGUARD);
            call(advice)
        }
        _ => call(advice),
    }
}

/// With holes in the range the kernel does what it is told for the rest of it.
fn is_taken(ret: Result<usize>) -> bool {
    matches!(ret, Ok(_) | Err(sys::ENOMEM))
}

/// Tells the pager what it is to do with the pages of these ranges. A process of which nothing is managed has
/// no pages to bring, and none that would leave before others; another process may have some.
fn tell_of_swap(process: u32, ranges: &[(usize, usize)], what: u32) {
    let asks = what == CALL_PAGEOUT || process != 0;
    let whole = |(addr, len): &&(usize, usize)| {
        let rounded = len.checked_next_multiple_of(PAGE);
        *len > 0 && addr.is_multiple_of(PAGE) && rounded.is_some_and(|len| addr.checked_add(len).is_some())
    };
    for (addr, len) in ranges.iter().filter(whole) {
        for _ in 0..ADVICE_TRIES {
            let control = if asks { control_asked_for() } else { answering_control() };
            let Some(control) = control else { return };
            if ring_about(control, process, *addr, *len, what) {
                break;
            }
            if STATE.confined.load(Ordering::Relaxed) != 0 {
                return;
            }
            sys::pause(1);
        }
    }
}

/// Tells the pager of these ranges, if something of the process may be managed. (Before that nothing was
/// swapped out.)
fn call_pager(ranges: &[(usize, usize)], what: u32) -> bool {
    let mut told = false;
    for (addr, len) in ranges {
        for _ in 0..RING_TRIES {
            let Some(control) = answering_control() else {
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

fn prctl_and_note(args: [usize; 6]) -> Result<usize> {
    if args[0] == PR_SET_SECCOMP {
        be_joined();
        tell_confined();
    }
    // SAFETY: the caller's own request, passed through.
    let ret = unsafe { sys::syscall(nr::PRCTL, args) };
    if args[0] == PR_SET_SECCOMP && ret.is_ok() {
        is_confined_now((args[1] == MODE_FILTER).then_some(args[2]));
    }
    ret
}

fn seccomp(mut args: [usize; 6]) -> Result<usize> {
    let sets = matches!(args[0], SET_MODE_STRICT | SET_MODE_FILTER);
    if sets {
        be_joined();
        tell_confined();
    }
    let everybody = args[0] == SET_MODE_FILTER && args[1] & FLAG_TSYNC != 0;
    if everybody && !trapped::traps() && own_control().is_some() && sys::thread_count() == Some(2) {
        args[1] &= !FLAG_TSYNC;
    }
    // SAFETY: the caller's own request, passed through.
    let ret = unsafe { sys::syscall(nr::SECCOMP, args) };
    if sets && ret.is_ok() {
        is_confined_now((args[0] == SET_MODE_FILTER).then_some(args[2]));
    }
    ret
}

/// `filter`: the address of a `struct sock_fprog`, which the kernel has read.
fn is_confined_now(filter: Option<usize>) {
    STATE.confined.store(1, Ordering::SeqCst);
    if let Some(at) = filter {
        // SAFETY: the program has passed it for that, and it is there.
        let [len, code] = unsafe { (at as *const [usize; 2]).read_unaligned() };
        inherited::note(&Filter { code, len: usize::from(len as u16) });
    }
}
