//! process_vm_readv: copy pages out of another process. And kcmp: whether two have one address space.
//!
//! The pages must be present: reading a missing registered page raises a userfault in the target and blocks
//! the caller.
#![allow(unsafe_code, reason = "system calls of integers, and one into a buffer of ours")]

use std::io;

/// Most segments of one call (the kernel's UIO_MAXIOV).
pub const SEGMENTS_MAX: usize = 1024;

/// Read `segments` (address, bytes) of process `pid` one after the other into `dst`, which must be as long as
/// all of them together. An error, or a short read, leaves `dst` partly filled.
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

/// Do these two processes use one address space? False too where it cannot be said.
pub fn is_same(pid: u32, other: u32) -> bool {
    const KCMP_VM: i32 = 1;
    compare(pid, other, KCMP_VM)
}

/// Do these two threads use one table of open files? False too where it cannot be said.
pub fn has_same_files(tid: u32, other: u32) -> bool {
    const KCMP_FILES: i32 = 2;
    compare(tid, other, KCMP_FILES)
}

fn compare(one: u32, other: u32, what: i32) -> bool {
    // SAFETY: integers only.
    unsafe { libc::syscall(libc::SYS_kcmp, one as i32, other as i32, what, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_space_is_its_own_and_nobody_elses() {
        let me = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("20").spawn().expect("sleep");
        let begun = std::time::Instant::now();
        // Until it has called exec it may have ours.
        while is_same(me, child.id()) {
            assert!(begun.elapsed().as_secs() < 10, "it has its own by now");
        }
        assert!(is_same(me, me));
        child.kill().expect("killed");
        child.wait().expect("waited for");
    }
}
