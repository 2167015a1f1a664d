//! PAGEMAP_SCAN: runs of present pages, 5 ns a page.
#![allow(unsafe_code, reason = "one ioctl with a struct and an output vector on our side")]

use crate::{READ, WRITE, ioc};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct PageRegion {
    pub start: u64,
    pub end: u64,
    pub categories: u64,
}

#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}
const PAGEMAP_SCAN: u64 = ioc(READ | WRITE, b'f' as u64, 16, size_of::<ScanArg>());
const _: () = assert!(size_of::<ScanArg>() == 96);

const PRESENT: u64 = 8;
const SWAPPED: u64 = 16;
/// Since Linux 6.15; earlier kernels refuse a scan for it with EINVAL.
const GUARD: u64 = 256;

/// Call `found(start, end)` for each run of present pages in [start, end) of the process whose /proc/PID/pagemap
/// this is.
pub fn present(pagemap: &File, start: u64, end: u64, found: impl FnMut(u64, u64)) -> io::Result<()> {
    scan(pagemap, start, end, PRESENT, found)
}

/// As [`present`], and also pages that the kernel has swapped out itself: whatever is not a hole.
pub fn occupied(pagemap: &File, start: u64, end: u64, found: impl FnMut(u64, u64)) -> io::Result<()> {
    scan(pagemap, start, end, PRESENT | SWAPPED, found)
}

/// Runs of guards (MADV_GUARD_INSTALL). `Unsupported` where the kernel cannot tell.
pub fn guarded(pagemap: &File, start: u64, end: u64, found: impl FnMut(u64, u64)) -> io::Result<()> {
    scan(pagemap, start, end, GUARD, found).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => io::ErrorKind::Unsupported.into(),
        _ => error,
    })
}

fn scan(pagemap: &File, start: u64, end: u64, any_of: u64, mut found: impl FnMut(u64, u64)) -> io::Result<()> {
    let mut regions = [PageRegion::default(); 256];
    let mut at = start;
    while at < end {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            flags: 0,
            start: at,
            end,
            walk_end: 0,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: 0,
            category_anyof_mask: any_of,
            return_mask: any_of,
        };
        // SAFETY: arg is a live struct of the size encoded in the number, and vec points to vec_len regions.
        let n = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &mut arg) };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        for region in &regions[..n as usize] {
            found(region.start, region.end);
        }
        if arg.walk_end <= at {
            break;
        }
        at = arg.walk_end;
    }
    Ok(())
}
