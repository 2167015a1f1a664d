//! process_vm_readv: copy pages out of another process.
//!
//! The pages must be present: reading a missing registered page raises a userfault in the target and blocks the caller.
#![allow(unsafe_code, reason = "one system call into a buffer of ours")]

use std::io;

/// Most segments of one call (the kernel's UIO_MAXIOV).
pub const SEGMENTS_MAX: usize = 1024;

/// Read `segments` (address, bytes) of process `pid` one after the other into `dst`, which must be as long as all of them
/// together. An error, or a short read, leaves `dst` partly filled.
pub fn read(pid: u32, segments: &[(u64, usize)], dst: &mut [u8]) -> io::Result<()> {
    assert!(segments.len() <= SEGMENTS_MAX);
    let total: usize = segments.iter().map(|(_, len)| len).sum();
    assert_eq!(total, dst.len(), "the destination fits the segments");
    let local = libc::iovec { iov_base: dst.as_mut_ptr().cast(), iov_len: dst.len() };
    let remote: Vec<libc::iovec> =
        segments.iter().map(|(addr, len)| libc::iovec { iov_base: *addr as *mut _, iov_len: *len }).collect();
    // SAFETY: `local` describes dst, which is ours to write; the remote side is checked by the kernel.
    let n = unsafe {
        libc::process_vm_readv(pid as i32, &local, 1, remote.as_ptr(), remote.len() as libc::c_ulong, 0)
    };
    match n {
        n if n < 0 => Err(io::Error::last_os_error()),
        n if n as usize == total => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}
