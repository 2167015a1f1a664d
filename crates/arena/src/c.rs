//! Arenas for C. `include/memspill.h` is made of this file by tests/header.rs; Python calls it too.
//!
//! What holds: a call that fails returns NULL or -1 and sets `errno`, and `memspill_last_error` says why in
//! this thread.

#![allow(unsafe_code, reason = "the C interface")]

use crate::arena::{Advice, Arena, Stats};
use crate::command;
use crate::error::Error;
use crate::process;
use memspill_ctl::Request;
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{NonNull, null, null_mut};

/// Its pages are not needed soon: they leave first.
pub const MEMSPILL_COLD: c_int = 0;
/// Its pages are needed soon: they are brought, at most half of the budget.
pub const MEMSPILL_WILLNEED: c_int = 1;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    static LAST_TEXT: RefCell<CString> = RefCell::default();
}

fn fail(error: &Error) -> c_int {
    let text = error.to_string().replace('\0', " ");
    LAST_ERROR.with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = error.errno() };
    -1
}

fn said(result: Result<(), Error>) -> c_int {
    result.map_or_else(|error| fail(&error), |()| 0)
}

fn address(result: Result<usize, Error>) -> *mut c_void {
    result.map_or_else(
        |error| {
            fail(&error);
            null_mut()
        },
        |address| address as *mut c_void,
    )
}

/// Why the last call of this thread failed: one line, valid until the next one that fails.
#[unsafe(no_mangle)]
pub extern "C" fn memspill_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}

/// Name the memspill command, before the first arena. $MEMSPILL goes before it; without both, it is beside
/// the library, in ../bin from there, or in PATH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memspill_use_command(path: *const c_char) {
    // SAFETY: as the caller says.
    let path = unsafe { CStr::from_ptr(path) };
    command::name(OsStr::from_bytes(path.to_bytes()).into());
}

/// An arena of which at most `budget_bytes` are in memory. The first one of a process starts the supervisor;
/// all of them share the sum of their budgets.
#[unsafe(no_mangle)]
pub extern "C" fn memspill_arena_create(budget_bytes: u64) -> *mut Arena {
    match Arena::new(budget_bytes) {
        Ok(arena) => Box::into_raw(Box::new(arena)),
        Err(error) => {
            fail(&error);
            null_mut()
        }
    }
}

/// End an arena. Its blocks are freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memspill_arena_destroy(arena: *mut Arena) {
    if !arena.is_null() {
        // SAFETY: as the caller says.
        drop(unsafe { Box::from_raw(arena) });
    }
}

/// A block of `bytes`, aligned to 64; from 8 KiB on to a page. Its contents are not defined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memspill_arena_alloc(arena: *const Arena, bytes: usize) -> *mut c_void {
    // SAFETY: as the caller says, here and in all that follow.
    address(unsafe { &*arena }.alloc(bytes).map(|(block, _)| block.address))
}

/// A block of zeros for `count` values of `bytes` each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memspill_arena_calloc(
    arena: *const Arena,
    count: usize,
    bytes: usize,
) -> *mut c_void {
    let bytes = count.checked_mul(bytes).ok_or(Error::NoRoom { bytes: usize::MAX });
    // SAFETY: see above.
    let arena = unsafe { &*arena };
    address(bytes.and_then(|bytes| arena.alloc_zeroed(bytes)).map(|start| start.as_ptr() as usize))
}

/// Make a block `bytes` long, where it is or elsewhere; NULL leaves it as it was. A NULL block is a new one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memspill_arena_realloc(
    arena: *const Arena,
    block: *mut c_void,
    bytes: usize,
) -> *mut c_void {
    // SAFETY: see above.
    let arena = unsafe { &*arena };
    match NonNull::new(block) {
        Some(block) => address(arena.resize(block.as_ptr() as usize, bytes)),
        None => address(arena.alloc(bytes).map(|(block, _)| block.address)),
    }
}

/// Free a block; a NULL one is left alone. Anything but a block of this arena is an error (EINVAL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memspill_arena_free(arena: *const Arena, block: *mut c_void) -> c_int {
    if block.is_null() {
        return 0;
    }
    // SAFETY: see above.
    said(unsafe { &*arena }.free(block as usize))
}

/// Say how a part of a block will be used: MEMSPILL_COLD, MEMSPILL_WILLNEED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memspill_arena_advise(
    arena: *const Arena,
    start: *const c_void,
    bytes: usize,
    advice: c_int,
) -> c_int {
    let advice = match advice {
        MEMSPILL_COLD => Advice::Cold,
        MEMSPILL_WILLNEED => Advice::WillNeed,
        _ => return fail(&Error::Advice),
    };
    // SAFETY: see above.
    said(unsafe { &*arena }.advise_at(start as usize, bytes, advice))
}

/// Keep a block of more than 8 KiB in memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memspill_arena_pin(arena: *const Arena, block: *const c_void) -> c_int {
    // SAFETY: see above.
    said(unsafe { &*arena }.pin_at(block as usize))
}

/// Let it be swapped out again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memspill_arena_unpin(arena: *const Arena, block: *const c_void) -> c_int {
    // SAFETY: see above.
    said(unsafe { &*arena }.unpin_at(block as usize))
}

/// Change the budget. Returns once what is over it is swapped out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memspill_arena_limit(arena: *const Arena, budget_bytes: u64) -> c_int {
    // SAFETY: see above.
    said(unsafe { &*arena }.set_limit(budget_bytes))
}

/// How much there is of what.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memspill_arena_stats(arena: *const Arena, stats: *mut Stats) -> c_int {
    // SAFETY: see above.
    said(unsafe { &*arena }.stats().map(|found| unsafe { stats.write(found) }))
}

/// Give all of the process a budget, in place of arenas. It stays until the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn memspill_budget_process(budget_bytes: u64) -> c_int {
    said(process::begin_whole(budget_bytes))
}

/// Change the budget that all of the process has.
#[unsafe(no_mangle)]
pub extern "C" fn memspill_limit_process(budget_bytes: u64) -> c_int {
    said(process::ask(&Request::Limit { bytes: budget_bytes }).map(drop))
}

/// The statistics of `memspill ctl stats --json`, valid until this thread asks again.
#[unsafe(no_mangle)]
pub extern "C" fn memspill_statistics() -> *const c_char {
    match process::ask(&Request::Stats { json: true }) {
        Ok(text) => LAST_TEXT.with(|last| {
            *last.borrow_mut() = CString::new(text).unwrap_or_default();
            last.borrow().as_ptr()
        }),
        Err(error) => {
            fail(&error);
            null()
        }
    }
}

/// The supervisor's process id, for `memspill ctl --pid`; 0 where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn memspill_supervisor() -> c_int {
    process::supervisor().map_or(0, |pid| pid as c_int)
}
