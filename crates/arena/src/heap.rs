//! The blocks of one arena.
//!
//! ```text
//!   up to 8 KiB    a slot of a slab: 64 KiB of slots of one size
//!   more           a run of pages of its own
//! ```
//!
//! What holds: a block starts at a multiple of 64 bytes, a large one at a page. Nothing is noted in the
//! memory itself. A slab in which nothing is left is given back, unless it is the only one of its size with
//! room.

use crate::range::{self, PAGE, Range};
use std::collections::{BTreeMap, BTreeSet};

pub const SMALL_BYTES_MAX: usize = 8192;
const SLAB_BYTES: usize = 64 << 10;
const SLOT_BYTES: [usize; 14] =
    [64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, SMALL_BYTES_MAX];

#[derive(Default)]
pub struct Heap {
    /// By the address of the first page.
    runs: BTreeMap<usize, Run>,
    /// Slabs that have room, for each size.
    with_room: [BTreeSet<usize>; SLOT_BYTES.len()],
    /// The sum of the blocks, each rounded up to its slot or its pages.
    pub allocated_bytes: usize,
}

enum Run {
    Block { bytes: usize, pinned: bool },
    Slab(Slab),
}

struct Slab {
    size: usize,
    /// A bit for each slot that is taken.
    taken: [u64; SLAB_BYTES / 64 / 64],
    count: usize,
}

impl Slab {
    fn slots(&self) -> usize {
        SLAB_BYTES / SLOT_BYTES[self.size]
    }

    fn take(&mut self) -> usize {
        let word = self.taken.iter().position(|word| *word != u64::MAX).expect("a slab with room");
        let bit = self.taken[word].trailing_ones() as usize;
        self.taken[word] |= 1 << bit;
        self.count += 1;
        word * 64 + bit
    }

    fn has(&self, slot: usize) -> bool {
        self.taken[slot / 64] >> (slot % 64) & 1 == 1
    }

    fn free(&mut self, slot: usize) {
        self.taken[slot / 64] &= !(1 << (slot % 64));
        self.count -= 1;
    }
}

/// A block: how long it is, and whether it is a run of pages of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    pub address: usize,
    pub bytes: usize,
    pub is_run: bool,
}

impl Heap {
    /// A block of at least `bytes`, and whether it is zeros.
    pub fn alloc(&mut self, range: &mut Range, bytes: usize) -> Option<(Block, bool)> {
        let Some(size) = SLOT_BYTES.iter().position(|slot| *slot >= bytes) else {
            let bytes = bytes.checked_next_multiple_of(PAGE)?;
            let (address, is_zeros) = range.take(bytes)?;
            self.runs.insert(address, Run::Block { bytes, pinned: false });
            self.allocated_bytes += bytes;
            return Some((Block { address, bytes, is_run: true }, is_zeros));
        };
        let start = match self.with_room[size].first() {
            Some(start) => *start,
            None => {
                let start = range.take(SLAB_BYTES)?.0;
                self.runs.insert(start, Run::Slab(Slab { size, taken: [0; _], count: 0 }));
                self.with_room[size].insert(start);
                start
            }
        };
        let Some(Run::Slab(slab)) = self.runs.get_mut(&start) else { unreachable!("a slab with room") };
        let slot = slab.take();
        if slab.count == slab.slots() {
            self.with_room[size].remove(&start);
        }
        let bytes = SLOT_BYTES[size];
        self.allocated_bytes += bytes;
        Some((Block { address: start + slot * bytes, bytes, is_run: false }, false))
    }

    /// The block that starts at `address`.
    pub fn block(&self, address: usize) -> Option<Block> {
        self.block_with(address).filter(|block| block.address == address)
    }

    /// The block in which `address` is.
    pub fn block_with(&self, address: usize) -> Option<Block> {
        let (&start, run) = self.runs.range(..=address).next_back()?;
        match run {
            Run::Block { bytes, .. } if address < start + bytes => {
                Some(Block { address: start, bytes: *bytes, is_run: true })
            }
            Run::Slab(slab) if address < start + SLAB_BYTES => {
                let bytes = SLOT_BYTES[slab.size];
                let slot = (address - start) / bytes;
                let address = start + slot * bytes;
                (slot < slab.slots() && slab.has(slot)).then_some(Block { address, bytes, is_run: false })
            }
            _ => None,
        }
    }

    /// Free the block that starts at `address`. False: there is none.
    pub fn free(&mut self, range: &mut Range, address: usize) -> bool {
        let Some(block) = self.block(address) else { return false };
        self.allocated_bytes -= block.bytes;
        let (&start, run) = self.runs.range_mut(..=address).next_back().expect("the block's run");
        let Run::Slab(slab) = run else {
            self.give(range, start);
            return true;
        };
        slab.free((address - start) / block.bytes);
        let (size, is_empty) = (slab.size, slab.count == 0);
        self.with_room[size].insert(start);
        if is_empty && self.with_room[size].len() > 1 {
            self.with_room[size].remove(&start);
            self.give(range, start);
        }
        true
    }

    fn give(&mut self, range: &mut Range, start: usize) {
        match self.runs.remove(&start) {
            Some(Run::Block { bytes, pinned }) => {
                if pinned {
                    range::unlock(start, bytes);
                }
                range.give(start, bytes);
            }
            Some(Run::Slab(_)) => range.give(start, SLAB_BYTES),
            None => {}
        }
    }

    /// Make a block longer or shorter where it is, if it is a run and the pages behind it are free.
    pub fn resize(&mut self, range: &mut Range, address: usize, bytes: usize) -> bool {
        let Some(Run::Block { bytes: before, pinned: false }) = self.runs.get_mut(&address) else {
            return false;
        };
        let Some(after) = bytes.checked_next_multiple_of(PAGE).filter(|_| bytes > SMALL_BYTES_MAX) else {
            return false;
        };
        if after > *before {
            if !range.take_at(address + *before, after - *before) {
                return false;
            }
        } else if after < *before {
            range.give(address + after, *before - after);
        }
        self.allocated_bytes = self.allocated_bytes - *before + after;
        *before = after;
        true
    }

    /// Note that a run of its own is locked in memory, or is not any more.
    pub fn set_pinned(&mut self, address: usize, is_pinned: bool) {
        if let Some(Run::Block { pinned, .. }) = self.runs.get_mut(&address) {
            *pinned = is_pinned;
        }
    }

    /// Give all blocks back.
    pub fn clear(&mut self, range: &mut Range) {
        let starts: Vec<usize> = self.runs.keys().copied().collect();
        for start in starts {
            self.give(range, start);
        }
        *self = Heap::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Blocks do not overlap, are found again, and all memory comes back.
        #[test]
        fn blocks_are_apart(steps in prop::collection::vec((0..5usize, 0..40_000usize), 1..300)) {
            let mut range = Range::reserve().unwrap();
            range.keep(128 << 10);
            let mut heap = Heap::default();
            let mut blocks: Vec<Block> = Vec::new();
            for (what, number) in steps {
                if what < 3 {
                    let block = heap.alloc(&mut range, number >> (what * 3)).unwrap().0;
                    prop_assert!(block.bytes >= number >> (what * 3));
                    prop_assert_eq!(block.address % if block.is_run { PAGE } else { 64 }, 0);
                    for other in &blocks {
                        prop_assert!(
                            block.address + block.bytes <= other.address
                                || other.address + other.bytes <= block.address
                        );
                    }
                    blocks.push(block);
                } else if !blocks.is_empty() {
                    let index = number % blocks.len();
                    let block = blocks[index];
                    if what == 3 {
                        blocks.swap_remove(index);
                        prop_assert!(heap.free(&mut range, block.address));
                        prop_assert!(!heap.free(&mut range, block.address));
                    } else if heap.resize(&mut range, block.address, number) {
                        blocks[index] = heap.block(block.address).unwrap();
                        prop_assert!(blocks[index].bytes >= number);
                    }
                }
                for block in &blocks {
                    prop_assert_eq!(heap.block(block.address), Some(*block));
                    prop_assert_eq!(heap.block_with(block.address + block.bytes - 1), Some(*block));
                }
                prop_assert_eq!(heap.allocated_bytes, blocks.iter().map(|block| block.bytes).sum::<usize>());
            }
            heap.clear(&mut range);
            range.keep(0);
            let (start, end) = range.bounds();
            prop_assert_eq!(range.take(end - start - PAGE), Some((start, true)));
        }
    }
}
