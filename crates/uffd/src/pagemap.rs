//! PAGEMAP_SCAN: runs of present pages, 5 ns a page. And which of them others have mapped too, which only the
//! words of the file say.
#![allow(unsafe_code, reason = "one ioctl with a struct and an output vector on our side")]

use crate::{READ, WRITE, ioc};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

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

/// The file itself has a word for each page: it is present; of a file, or of shared memory; mapped by nobody
/// else.
const WORD_PRESENT: u64 = 1 << 63;
const WORD_FILE: u64 = 1 << 61;
const WORD_EXCLUSIVE: u64 = 1 << 56;
const WORD_BYTES: usize = 8;
const WORDS_AT_ONCE: usize = 512;
const PAGE_BYTES: u64 = 4096;

/// Add the runs of present pages in [start, end) of the process whose /proc/PID/pagemap this is to `runs`,
/// until `max_pages` of them are found, or 256 runs. Returns how far it came. Holes cost next to nothing,
/// however large.
pub fn present(
    pagemap: &File,
    start: u64,
    end: u64,
    max_pages: u64,
    runs: &mut Vec<(u64, u64)>,
) -> io::Result<u64> {
    scan_once(pagemap, start, end, PRESENT, max_pages, |from, to| runs.push((from, to)))
}

/// Call `found(start, end)` for each run of present pages in [start, end).
pub fn each_present(pagemap: &File, start: u64, end: u64, found: impl FnMut(u64, u64)) -> io::Result<()> {
    scan(pagemap, start, end, PRESENT, found)
}

/// Call `found(start, end)` for each run of pages in [start, end) that are present or that the kernel has
/// swapped out itself: whatever is not a hole.
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

/// Call `found(start, end)` for runs of pages in [start, end) that are present and that a write would copy:
/// others have them mapped too, or they are the kernel's page of zeros. (Each page of a large folio counts as
/// shared while some of it is.)
pub fn shared(pagemap: &File, start: u64, end: u64, mut found: impl FnMut(u64, u64)) -> io::Result<()> {
    let mut present = Vec::new();
    scan(pagemap, start, end, PRESENT, |from, to| present.push((from, to)))?;
    for (from, to) in present {
        let mut at = from;
        while at < to {
            let mut words = [0u8; WORD_BYTES * WORDS_AT_ONCE];
            let pages = WORDS_AT_ONCE.min(((to - at) / PAGE_BYTES) as usize);
            let words = &mut words[..pages * WORD_BYTES];
            pagemap.read_exact_at(words, at / PAGE_BYTES * WORD_BYTES as u64)?;
            let is_shared = |word: &[u8]| {
                let word = u64::from_ne_bytes(word.try_into().expect("a word"));
                word & (WORD_PRESENT | WORD_FILE | WORD_EXCLUSIVE) == WORD_PRESENT
            };
            let mut run = None;
            for (page, word) in (at..).step_by(PAGE_BYTES as usize).zip(words.chunks_exact(WORD_BYTES)) {
                match (is_shared(word), run) {
                    (true, None) => run = Some(page),
                    (false, Some(first)) => {
                        found(first, page);
                        run = None;
                    }
                    _ => {}
                }
            }
            at += pages as u64 * PAGE_BYTES;
            run.into_iter().for_each(|first| found(first, at));
        }
    }
    Ok(())
}

fn scan(
    pagemap: &File,
    start: u64,
    end: u64,
    any_of: u64,
    mut found: impl FnMut(u64, u64),
) -> io::Result<()> {
    let mut at = start;
    while at < end {
        let walked_to = scan_once(pagemap, at, end, any_of, 0, &mut found)?;
        if walked_to <= at {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at = walked_to;
    }
    Ok(())
}

/// One call: until the end, `max_pages` pages (0: any number), or as many runs as there is room for. Returns
/// how far it came.
fn scan_once(
    pagemap: &File,
    start: u64,
    end: u64,
    any_of: u64,
    max_pages: u64,
    mut found: impl FnMut(u64, u64),
) -> io::Result<u64> {
    scan_regions(pagemap, (start, end), any_of, any_of, max_pages, |region| found(region.start, region.end))
}

/// The same with what is `told` of each run.
fn scan_regions(
    pagemap: &File,
    (start, end): (u64, u64),
    any_of: u64,
    told: u64,
    max_pages: u64,
    found: impl FnMut(&PageRegion),
) -> io::Result<u64> {
    let mut regions = [PageRegion::default(); 256];
    let mut arg = ScanArg {
        size: size_of::<ScanArg>() as u64,
        flags: 0,
        start,
        end,
        walk_end: 0,
        vec: regions.as_mut_ptr() as u64,
        vec_len: regions.len() as u64,
        max_pages,
        category_inverted: 0,
        category_mask: 0,
        category_anyof_mask: any_of,
        return_mask: told,
    };
    // SAFETY: arg is a live struct of the size encoded in the number, and vec points to vec_len regions.
    let n = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &mut arg) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    regions[..n as usize].iter().for_each(found);
    Ok(arg.walk_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIB: u64 = 1 << 40;
    const PAGE: u64 = PAGE_BYTES;

    /// One call goes on over TiB of holes, until it has found as many pages as were asked for.
    #[test]
    fn holes_do_not_end_a_scan() {
        let (len, flags) = (4 * TIB, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: a new mapping of our own, at a place of the kernel's choice.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), len as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED, "no address space");
        let base = base as u64;
        let touched = [base + PAGE, base + TIB, base + TIB + PAGE, base + 3 * TIB];
        for page in touched {
            // SAFETY: within the mapping, which nobody else knows.
            unsafe { (page as *mut u8).write_volatile(1) };
        }
        let pagemap = File::open("/proc/self/pagemap").expect("our pagemap");
        let mut runs = Vec::new();
        let walked_to = present(&pagemap, base, base + len, 2, &mut runs).expect("a scan");
        assert_eq!(runs, [(base + PAGE, base + 2 * PAGE), (base + TIB, base + TIB + PAGE)]);
        assert_eq!(walked_to, base + TIB + PAGE);
        runs.clear();
        let walked_to = present(&pagemap, walked_to, base + len, 2048, &mut runs).expect("a scan");
        assert_eq!((walked_to, runs.len()), (base + len, 2));
        let mut found = 0;
        occupied(&pagemap, base, base + len, |from, to| found += (to - from) / PAGE).expect("a scan");
        assert_eq!(found, touched.len() as u64);
        // SAFETY: the mapping made above, not used any more.
        assert_eq!(unsafe { libc::munmap(base as *mut _, len as usize) }, 0);
    }

    /// Pages that a child shares with us, until one of the two writes.
    #[test]
    fn pages_are_shared_with_a_child_until_they_are_written() {
        let (len, prot) = (5 * PAGE, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping of our own, at a place of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, prot, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED, "no memory");
        let base = base as u64;
        // SAFETY: within the mapping, which nobody else knows.
        let store = |page: u64| unsafe { ((base + page * PAGE) as *mut u8).write_volatile(1) };
        [0, 1, 2, 4].into_iter().for_each(store);
        let pagemap = File::open("/proc/self/pagemap").expect("our pagemap");
        let shared_pages = || {
            let mut pages = Vec::new();
            let found = |from, to| pages.push(((from - base) / PAGE, (to - base) / PAGE));
            shared(&pagemap, base, base + len, found).expect("a look");
            pages
        };
        assert_eq!(shared_pages(), []);
        // SAFETY: the child calls what may be called after a fork of one of several threads.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::pause();
                libc::_exit(0);
            }
        }
        let all = shared_pages();
        store(1);
        let written = shared_pages();
        // SAFETY: our child, which is waited for.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!((all, written), (vec![(0, 3), (4, 5)], vec![(0, 1), (2, 3), (4, 5)]));
        assert_eq!(shared_pages(), [], "it has ended");
        // SAFETY: the mapping made above, not used any more.
        assert_eq!(unsafe { libc::munmap(base as *mut _, len as usize) }, 0);
    }
}
