//! PROCMAP_QUERY (Linux 6.11): one mapping of a process, without reading all of them.
#![allow(unsafe_code, reason = "one ioctl with a struct on our side")]

use crate::{READ, WRITE, ioc};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

#[repr(C)]
struct QueryArg {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}
const PROCMAP_QUERY: u64 = ioc(READ | WRITE, b'f' as u64, 17, size_of::<QueryArg>());
const _: () = assert!(size_of::<QueryArg>() == 104);

const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;
/// Readable, writable or executable.
const ACCESS: u64 = 7;
const COVERING_OR_NEXT: u64 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// It can be read, written or executed.
    pub accessible: bool,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    /// Private, of no file, in pages of 4 KiB.
    pub anonymous: bool,
}

/// The end of the mapping at `addr`, if there is one and it can be accessed at all (it is not PROT_NONE).
pub fn accessible_until(maps: &File, addr: u64) -> io::Result<Option<u64>> {
    let found = query(maps, addr, COVERING_OR_NEXT)?;
    let is_accessible = |arg: &QueryArg| arg.vma_start <= addr && arg.vma_flags & ACCESS != 0;
    Ok(found.filter(is_accessible).map(|arg| arg.vma_end))
}

/// The mapping at `addr`, or the next one above it, of the process whose /proc/PID/maps this is.
pub fn first_from(maps: &File, addr: u64) -> io::Result<Option<Mapping>> {
    let Some(arg) = query(maps, addr, COVERING_OR_NEXT)? else { return Ok(None) };
    let private = arg.vma_flags & SHARED == 0;
    let anonymous =
        private && arg.inode == 0 && arg.dev_major == 0 && arg.dev_minor == 0 && arg.vma_page_size == 4096;
    Ok(Some(Mapping {
        start: arg.vma_start,
        end: arg.vma_end,
        accessible: arg.vma_flags & ACCESS != 0,
        readable: arg.vma_flags & READABLE != 0,
        writable: arg.vma_flags & WRITABLE != 0,
        executable: arg.vma_flags & EXECUTABLE != 0,
        anonymous,
    }))
}

/// The answer; None if there is no such mapping.
fn query(maps: &File, addr: u64, query_flags: u64) -> io::Result<Option<QueryArg>> {
    let mut arg = QueryArg {
        size: size_of::<QueryArg>() as u64,
        query_flags,
        query_addr: addr,
        vma_start: 0,
        vma_end: 0,
        vma_flags: 0,
        vma_page_size: 0,
        vma_offset: 0,
        inode: 0,
        dev_major: 0,
        dev_minor: 0,
        vma_name_size: 0,
        build_id_size: 0,
        vma_name_addr: 0,
        build_id_addr: 0,
    };
    // SAFETY: arg is a live struct of the size encoded in the number, and it names no buffers.
    if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &mut arg) } != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
    }
    Ok(Some(arg))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ioctl says the same of us as the text.
    #[test]
    fn our_own_mappings_are_found() {
        let maps = File::open("/proc/self/maps").expect("our maps");
        if first_from(&maps, 0).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTTY)) {
            eprintln!("not tested: this kernel has no PROCMAP_QUERY (Linux 6.11 has it)");
            return;
        }
        let text = std::fs::read_to_string("/proc/self/maps").expect("our maps");
        let line = text.lines().find(|line| line.ends_with("[stack]")).expect("a stack");
        let start = u64::from_str_radix(line.split('-').next().expect("its start"), 16).expect("hexadecimal");
        let stack = first_from(&maps, start).expect("an answer").expect("a mapping");
        assert!(
            stack.start <= start
                && start < stack.end
                && stack.writable
                && stack.anonymous
                && !stack.executable,
            "{stack:x?}"
        );
        assert_eq!(first_from(&maps, start - 1).expect("an answer"), Some(stack));
        assert_eq!(first_from(&maps, (1 << 47) - 4096).expect("an answer"), None);
    }
}
