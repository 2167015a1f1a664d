//! Arenas and their slices, for Rust.

#![allow(unsafe_code, reason = "slices are memory that the arena gave out")]

use crate::error::Error;
use crate::heap::{Block, SMALL_BYTES_MAX};
use crate::process::{self, ArenaId};
use crate::range::PAGE;
use bytemuck::Zeroable;
use memspill_ctl::Request;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory with a budget. The first arena of a process starts the supervisor; all of them share the sum of
/// their budgets.
// Clones are the same arena, which ends with the last of them and the last slice.
#[derive(Clone, Debug)]
pub struct Arena(Arc<Owned>);

#[derive(Debug)]
struct Owned(ArenaId);

impl Drop for Owned {
    fn drop(&mut self) {
        process::end(self.0);
    }
}

/// A hint of the program about memory that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// It is not needed soon: its pages leave first.
    Cold,
    /// It is needed soon: its pages are brought, at most half of what the arenas may have.
    WillNeed,
}

/// How much there is of what, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Stats {
    /// The budget of all arenas of the process.
    pub limit_bytes: u64,
    /// Memory that counts against it: pages in memory, the compressed pool, what memspill itself takes.
    pub used_bytes: u64,
    /// Pages that are away, as they are in memory.
    pub swapped_bytes: u64,
    /// This arena's blocks, wherever their pages are.
    pub allocated_bytes: u64,
}

impl Arena {
    /// An arena of which at most `budget_bytes` are in memory.
    pub fn new(budget_bytes: u64) -> Result<Arena, Error> {
        Ok(Arena(Arc::new(Owned(process::begin(budget_bytes)?))))
    }

    /// A slice of zeros. Dropping it frees it.
    pub fn alloc_slice<T: Zeroable + Copy>(&self, len: usize) -> Result<Slice<T>, Error> {
        assert!(align_of::<T>() <= PAGE, "no block is aligned to more than a page");
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Error::NoRoom { bytes: usize::MAX })?;
        if bytes == 0 {
            return Ok(Slice { start: NonNull::dangling(), len, arena: self.clone() });
        }
        let least = if align_of::<T>() > 64 { bytes.max(SMALL_BYTES_MAX + 1) } else { bytes };
        let start = self.alloc_zeroed(least)?.cast();
        Ok(Slice { start, len, arena: self.clone() })
    }

    /// Say how memory of this arena will be used.
    pub fn advise<T: Copy>(&self, memory: &[T], advice: Advice) -> Result<(), Error> {
        let (address, bytes) = (memory.as_ptr() as usize, size_of_val(memory));
        if bytes == 0 {
            return Ok(());
        }
        self.advise_at(address, bytes, advice)
    }

    /// Keep a slice in memory, until it is unpinned or freed. It has to be of more than 8 KiB.
    pub fn pin<T: Copy>(&self, slice: &Slice<T>) -> Result<(), Error> {
        self.pin_at(slice.start.as_ptr() as usize)
    }

    pub fn unpin<T: Copy>(&self, slice: &Slice<T>) -> Result<(), Error> {
        self.unpin_at(slice.start.as_ptr() as usize)
    }

    /// The budget.
    pub fn limit_bytes(&self) -> u64 {
        process::with_arena(self.0.0, |part, _| part.limit_bytes).unwrap_or(0)
    }

    /// Change the budget. Returns once what is over it is swapped out.
    pub fn set_limit(&self, budget_bytes: u64) -> Result<(), Error> {
        process::set_limit(self.0.0, budget_bytes)
    }

    pub fn stats(&self) -> Result<Stats, Error> {
        let allocated_bytes = process::with_arena(self.0.0, |part, _| part.heap.allocated_bytes as u64);
        let sizes = process::ask(&Request::Sizes)?;
        let sizes: Vec<u64> = sizes.split(' ').filter_map(|bytes| bytes.parse().ok()).collect();
        let [limit_bytes, used_bytes, swapped_bytes] = sizes[..] else {
            return Err(Error::Refused("the supervisor gave an answer that cannot be read".into()));
        };
        Ok(Stats { limit_bytes, used_bytes, swapped_bytes, allocated_bytes: allocated_bytes.unwrap_or(0) })
    }

    /// A block, and whether it is zeros.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<(Block, bool), Error> {
        let block = process::with_arena(self.0.0, |part, range| part.heap.alloc(range, bytes));
        block.flatten().ok_or(Error::NoRoom { bytes })
    }

    pub(crate) fn alloc_zeroed(&self, bytes: usize) -> Result<NonNull<u8>, Error> {
        let (block, is_zeros) = self.alloc(bytes)?;
        let start = NonNull::new(block.address as *mut u8).ok_or(Error::NoRoom { bytes })?;
        if !is_zeros {
            // SAFETY: the block is ours and has these bytes.
            unsafe { start.write_bytes(0, block.bytes) };
        }
        Ok(start)
    }

    /// Free the block that starts at `address`. Fails where there is none.
    pub(crate) fn free(&self, address: usize) -> Result<(), Error> {
        let freed = process::with_arena(self.0.0, |part, range| part.heap.free(range, address));
        if freed == Some(true) { Ok(()) } else { Err(Error::NotOurs) }
    }

    /// Make a block `bytes` long, at another address if it must be.
    pub(crate) fn resize(&self, address: usize, bytes: usize) -> Result<usize, Error> {
        let (before, resized) = process::with_arena(self.0.0, |part, range| {
            let before = part.heap.block(address)?;
            Some((before, part.heap.resize(range, address, bytes)))
        })
        .flatten()
        .ok_or(Error::NotOurs)?;
        let fits = bytes <= before.bytes && bytes > before.bytes / 2;
        if resized || !before.is_run && fits {
            return Ok(address);
        }
        let after = self.alloc(bytes)?.0;
        // SAFETY: two blocks of this arena, of at least so many bytes each, that do not overlap.
        unsafe {
            let kept = before.bytes.min(bytes);
            std::ptr::copy_nonoverlapping(address as *const u8, after.address as *mut u8, kept);
        }
        self.free(address)?;
        Ok(after.address)
    }

    pub(crate) fn advise_at(&self, address: usize, bytes: usize, advice: Advice) -> Result<(), Error> {
        let is_ours = process::with_arena(self.0.0, |part, _| {
            part.heap.block_with(address).is_some_and(|block| address + bytes <= block.address + block.bytes)
        });
        if is_ours != Some(true) {
            return Err(Error::NotOurs);
        }
        match advice {
            Advice::Cold => {
                // Its first and last page may be another block's too.
                let from = address.next_multiple_of(PAGE) as u64;
                let to = ((address + bytes) / PAGE * PAGE) as u64;
                if from >= to {
                    return Ok(());
                }
                let pid = std::process::id();
                process::ask(&Request::Cold { pid, ranges: vec![(from, to)] }).map(drop)
            }
            Advice::WillNeed => {
                let most = self.stats()?.limit_bytes / 2;
                let end = address + bytes.min(usize::try_from(most).unwrap_or(usize::MAX));
                for page in (address..end).step_by(PAGE) {
                    // SAFETY: memory of a block of this arena, whose owner waits for this call.
                    unsafe { (page as *const u8).read_volatile() };
                }
                Ok(())
            }
        }
    }

    pub(crate) fn pin_at(&self, address: usize) -> Result<(), Error> {
        let block = process::with_arena(self.0.0, |part, _| part.heap.block(address)).flatten();
        let block = block.ok_or(Error::NotOurs)?;
        if !block.is_run {
            return Err(Error::TooSmall);
        }
        // Not under the lock: the pages may have to come.
        let locked = crate::range::lock(block.address, block.bytes);
        locked.map_err(|error| Error::Pin(error.into()))?;
        process::with_arena(self.0.0, |part, _| part.heap.set_pinned(address, true));
        Ok(())
    }

    pub(crate) fn unpin_at(&self, address: usize) -> Result<(), Error> {
        let block = process::with_arena(self.0.0, |part, _| {
            part.heap.set_pinned(address, false);
            part.heap.block(address)
        });
        let block = block.flatten().ok_or(Error::NotOurs)?;
        if block.is_run {
            crate::range::unlock(block.address, block.bytes);
        }
        Ok(())
    }
}

/// A slice in an arena, that it keeps alive.
#[derive(Debug)]
pub struct Slice<T: Copy> {
    start: NonNull<T>,
    len: usize,
    arena: Arena,
}

// SAFETY: it owns its memory, as a boxed slice does.
unsafe impl<T: Copy + Send> Send for Slice<T> {}
// SAFETY: the same.
unsafe impl<T: Copy + Sync> Sync for Slice<T> {}

impl<T: Copy> Deref for Slice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the block holds `len` values since it was zeroed, and lives as long as this.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for Slice<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> Drop for Slice<T> {
    fn drop(&mut self) {
        if self.len * size_of::<T>() > 0 {
            // It is a block since it was allocated.
            let _ = self.arena.free(self.start.as_ptr() as usize);
        }
    }
}
