//! A managed program may not write to /proc/PID/clear_refs: it would go by soft-dirty bits that memspill
//! cannot keep.
//!
//! With these bits (CONFIG_MEM_SOFT_DIRTY) a collector asks which pages were written since it last cleared
//! them, in place of protecting its heap. The kernel keeps a page's bit in its page table entry, also while
//! its own swap has the page. A page that memspill has taken out has no entry, and so counts as clean: the
//! collector would pass over what was written to it, and free what is in use. So the file cannot be opened
//! for writing, as in a sandbox, and collectors take their other way.
//!
//! Not seen from here: the file opened by a program's own instructions, or by a process that is not managed.

use core::ffi::{CStr, c_char, c_int};

use super::c_library::libc_result;
use crate::machine::sys::{self, nr};
use crate::supervisor::control::own_control;

const EACCES: i32 = 13;
const O_ACCMODE: usize = 3;

/// Answers an open that has opened `path` as `fd`.
pub fn opened(fd: c_int, path: usize, flags: usize) -> c_int {
    if fd < 0 || flags & O_ACCMODE == 0 || own_control().is_none() || !is_clear_refs(path) || !is_of_proc(fd)
    {
        return fd;
    }
    // SAFETY: the descriptor was opened just now, and nobody has been told of it.
    let _ = unsafe { sys::syscall(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
    libc_result(Err(EACCES)) as c_int
}

fn is_clear_refs(path: usize) -> bool {
    // SAFETY: the kernel has just read this string.
    let path = unsafe { CStr::from_ptr(path as *const c_char) }.to_bytes();
    path.ends_with(b"clear_refs")
}

/// Another file may have that name.
fn is_of_proc(fd: c_int) -> bool {
    const PROC_SUPER_MAGIC: u64 = 0x9fa0;
    // `struct statfs` has 120 bytes, and begins with the type.
    let mut found = [0u64; 16];
    // SAFETY: the kernel writes no more than there is room for.
    let asked = unsafe { sys::syscall(nr::FSTATFS, [fd as usize, found.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    asked.is_ok() && found[0] == PROC_SUPER_MAGIC
}
