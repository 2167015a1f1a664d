//! An arena as numpy's memory handler (NEP 49): the struct that its capsule holds, and four functions.

#![allow(unsafe_code, reason = "called by numpy")]

use crate::arena::Arena;
use crate::c;
use std::ffi::{c_char, c_void};
use std::ptr::null_mut;

/// `PyDataMem_Handler` of numpy 1.22 and later.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    context: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

unsafe extern "C" fn malloc(arena: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the context is an arena that does not end, here and below.
    unsafe { c::memspill_arena_alloc(arena.cast(), bytes) }
}

unsafe extern "C" fn calloc(arena: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    // SAFETY: see above.
    unsafe { c::memspill_arena_calloc(arena.cast(), count, bytes) }
}

unsafe extern "C" fn realloc(arena: *mut c_void, block: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: see above.
    unsafe { c::memspill_arena_realloc(arena.cast(), block, bytes) }
}

unsafe extern "C" fn free(arena: *mut c_void, block: *mut c_void, _bytes: usize) {
    // SAFETY: see above; the block is one that numpy got here.
    unsafe { c::memspill_arena_free(arena.cast(), block) };
}

/// A handler for an arena. Neither ends: arrays that have it may live as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn memspill_numpy_handler(arena: *mut Arena) -> *mut c_void {
    let mut name = [0; 127];
    for (to, from) in name.iter_mut().zip(b"memspill") {
        *to = *from as c_char;
    }
    if arena.is_null() {
        return null_mut();
    }
    let handler = Handler { name, version: 1, context: arena.cast(), malloc, calloc, realloc, free };
    Box::into_raw(Box::new(handler)).cast()
}
