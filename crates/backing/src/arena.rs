//! Zeroed memory that costs nothing until it is written, and can be given back page by page: private, or a
//! part of a file in memory that other processes read (`pool_file.rs`).
//!
//! Two users: the pool keeps its compressed objects in such memory, so that an emptied chunk really leaves
//! the process (MADV_DONTNEED, the resident set goes down), and the tables indexed by slot (8 bytes for each
//! slot of a device that may have 2^31) are laid out flat without being paid for.
//!
//! All access goes through slices of atomics. Readers of the pool race with its writers by design (they copy,
//! then check that the object was still theirs; see `pool.rs`), and with atomics such a race yields bytes
//! that are thrown away, never undefined behaviour. On x86-64 a relaxed atomic load or store of a
//! word is the plain instruction.
//!
//! What it does not do: place objects, count users, fail late. Memory is mapped NORESERVE. Huge pages are
//! refused (MADV_NOHUGEPAGE): one would be resident for a single table entry, and would be split by the first
//! page given back.
#![allow(unsafe_code, reason = "mmap, munmap, madvise and the view of mapped bytes as atomics")]

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memspill_engine::units::PAGE_SIZE;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A mapping of its own, all zeros at first.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len_bytes: usize,
    /// What gives pages of it back.
    gives_back: Advice,
}

/// A part of a file that begins at this offset, in bytes, page aligned.
#[derive(Clone, Copy)]
pub(crate) struct PartOf<'a> {
    pub file: BorrowedFd<'a>,
    pub offset: u64,
}

// SAFETY: the mapping is owned, lives as long as the value, and is only handed out as slices of atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above: shared access is by atomics only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Map at least `len_bytes` bytes, rounded up to whole pages, at least one page.
    pub(crate) fn new(len_bytes: usize) -> io::Result<Mapping> {
        Mapping::of(None, len_bytes)
    }

    /// The same of a file, which is as long, holds zeros there, and is written by nobody else; of private
    /// memory, if there is none.
    pub(crate) fn of(part: Option<PartOf<'_>>, len_bytes: usize) -> io::Result<Mapping> {
        let len_bytes = len_bytes.max(1).next_multiple_of(PAGE_SIZE);
        let (null, prot) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            match part {
                None => {
                    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
                    rustix::mm::mmap_anonymous(null, len_bytes, prot, flags)
                }
                Some(PartOf { file, offset }) => {
                    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
                    rustix::mm::mmap(null, len_bytes, prot, flags, file, offset)
                }
            }
        }?;
        let gives_back = if part.is_some() { Advice::LinuxRemove } else { Advice::LinuxDontNeed };
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never returns null without MAP_FIXED");
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontDump] {
            // SAFETY: the range is the mapping just made; neither advice changes its contents.
            // A kernel without the feature answers EINVAL, and nothing is lost.
            let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), len_bytes, advice) };
        }
        Ok(Mapping { base, len_bytes, gives_back })
    }

    /// The whole mapping as 64-bit words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page aligned, `len_bytes` long, readable and writable for the life of
        // `self`, initialised (zeros), and every access in this program is by atomics (this function and
        // `halves`; no mapping is viewed both ways).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len_bytes / 8) }
    }

    /// The whole mapping as 32-bit words.
    pub(crate) fn halves(&self) -> &[AtomicU32] {
        // SAFETY: as for `words`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len_bytes / 4) }
    }

    /// Give the pages of a byte range (page aligned) back to the system. They read as zeros afterwards.
    pub(crate) fn release(&self, range_bytes: Range<usize>) {
        assert!(range_bytes.start <= range_bytes.end && range_bytes.end <= self.len_bytes);
        assert!(range_bytes.start.is_multiple_of(PAGE_SIZE) && range_bytes.end.is_multiple_of(PAGE_SIZE));
        // SAFETY: the range lies inside the mapping (asserted). To holders of atomics in it this is a store
        // of zeros, which atomics allow at any time.
        let released = unsafe {
            let start = self.base.as_ptr().add(range_bytes.start);
            rustix::mm::madvise(start.cast(), range_bytes.len(), self.gives_back)
        };
        // Fails only where the pages are mlocked: then they stay resident, and the account would be wrong.
        released.expect("giving back memory of the pool: is the memory of this process mlocked?");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and no slice into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

/// A flat table of zeroed entries that counts the pages written so far.
///
/// Reading an untouched entry maps the kernel's shared zero page and costs no memory, so only writes are
/// counted. Pages are not given back when their entries become zero again: 8 bytes for each 4 KiB page is 0.2
/// %.
pub(crate) struct ZeroTable {
    map: Mapping,
    /// One bit for each page of `map`: has been written.
    touched: Mapping,
    touched_pages: AtomicU64,
}

impl ZeroTable {
    /// A table of `len_bytes` bytes.
    pub(crate) fn new(len_bytes: usize) -> io::Result<ZeroTable> {
        ZeroTable::of(None, len_bytes)
    }

    /// The same in a part of a file, where reading an untouched entry costs its page.
    pub(crate) fn of(part: Option<PartOf<'_>>, len_bytes: usize) -> io::Result<ZeroTable> {
        let pages = len_bytes.div_ceil(PAGE_SIZE);
        Ok(ZeroTable {
            map: Mapping::of(part, len_bytes)?,
            touched: Mapping::new(pages.div_ceil(8))?,
            touched_pages: AtomicU64::new(0),
        })
    }

    /// 64-bit entry `index`, to be read only.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        &self.map.words()[index]
    }

    /// 64-bit entry `index`, about to be written.
    pub(crate) fn word_to_write(&self, index: usize) -> &AtomicU64 {
        self.touch(index * 8 / PAGE_SIZE);
        &self.map.words()[index]
    }

    /// 32-bit entry `index`, to be read only.
    pub(crate) fn half(&self, index: usize) -> &AtomicU32 {
        &self.map.halves()[index]
    }

    /// 32-bit entry `index`, about to be written.
    pub(crate) fn half_to_write(&self, index: usize) -> &AtomicU32 {
        self.touch(index * 4 / PAGE_SIZE);
        &self.map.halves()[index]
    }

    fn touch(&self, page: usize) {
        let word = &self.touched.words()[page / 64];
        let bit = 1u64 << (page % 64);
        if word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            self.touched_pages.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Nobody needs the entries any more: they are zeros again, and cost nothing.
    pub(crate) fn release(&self) {
        self.map.release(0..self.map.len_bytes);
        self.touched.release(0..self.touched.len_bytes);
        self.touched_pages.store(0, Ordering::Relaxed);
    }

    /// Bytes of RAM that the table holds now (its bitmap of touched pages, 1/32768 of it, left out).
    pub(crate) fn ram_bytes(&self) -> u64 {
        self.touched_pages.load(Ordering::Relaxed) * PAGE_SIZE as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_written_pages_are_counted() {
        let table = ZeroTable::new(1 << 34).unwrap();
        assert_eq!(table.word((1 << 31) - 1).load(Ordering::Relaxed), 0);
        assert_eq!(table.ram_bytes(), 0);
        table.word_to_write(0).store(1, Ordering::Relaxed);
        table.word_to_write(511).store(1, Ordering::Relaxed);
        assert_eq!(table.ram_bytes(), 4096);
        table.word_to_write(512).store(1, Ordering::Relaxed);
        assert_eq!(table.ram_bytes(), 8192);
    }

    #[test]
    fn released_pages_read_as_zeros() {
        let map = Mapping::new(3 * PAGE_SIZE).unwrap();
        for word in map.words() {
            word.store(7, Ordering::Relaxed);
        }
        map.release(PAGE_SIZE..2 * PAGE_SIZE);
        let words = map.words();
        assert_eq!(words[511].load(Ordering::Relaxed), 7);
        assert_eq!(words[512].load(Ordering::Relaxed), 0);
        assert_eq!(words[1023].load(Ordering::Relaxed), 0);
        assert_eq!(words[1024].load(Ordering::Relaxed), 7);
    }
}
