//! A thread's side of the protocol that keeps what a system call uses from being taken out (`pages/uses.rs`
//! has the picture): publish, fence, bring.

use crate::common::protocol::{RangeInUse, SLOT_RANGES};
use crate::common::sync::{AtomicU32, Ordering, fence};
use crate::pages;
use crate::thread::block::Block;

/// Memory that a call uses.
#[derive(Clone, Copy)]
pub struct Use {
    pub start: usize,
    pub end: usize,
    /// It may be written, by the call or by the kernel on its own.
    pub writes: bool,
}

/// The uses of one call. If there are more than a slot has room for, the last one stands for all the rest.
pub struct Uses {
    list: [Use; SLOT_RANGES],
    count: usize,
    /// Some were left out, and must be walked again to be touched.
    pub overflows: bool,
}

impl Uses {
    pub const fn new() -> Self {
        Self { list: [Use { start: 0, end: 0, writes: false }; SLOT_RANGES], count: 0, overflows: false }
    }

    pub fn add(&mut self, one: Use) {
        if one.end <= one.start {
            return;
        }
        if let Some(place) = self.list.get_mut(self.count) {
            *place = one;
            self.count += 1;
        } else if let Some(last) = self.list.last_mut() {
            last.start = last.start.min(one.start);
            last.end = last.end.max(one.end);
            last.writes |= one.writes;
            self.overflows = true;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The uses that stand each for itself.
    pub fn exact(&self) -> impl Iterator<Item = &Use> {
        self.list.iter().take(if self.overflows { SLOT_RANGES - 1 } else { self.count })
    }
}

/// Says which memory is in use, before it is looked what of it is there.
pub fn publish(block: &mut Block, uses: &Uses) {
    publish_list(block, uses.list.get(..uses.count).unwrap_or(&uses.list));
}

/// As `publish`. No more than SLOT_RANGES.
pub fn publish_list(block: &mut Block, uses: &[Use]) {
    let slot = &raw mut block.slot;
    for (index, one) in uses.iter().enumerate().take(SLOT_RANGES) {
        let range = RangeInUse { start: one.start as u64, end: one.end as u64 };
        // SAFETY: `index` is below SLOT_RANGES; the evictor reads the block, hence volatile.
        unsafe { (&raw mut (*slot).ranges).cast::<RangeInUse>().add(index).write_volatile(range) };
    }
    count_of(block).store(uses.len() as u32, Ordering::Release);
    fence(Ordering::SeqCst);
}

pub fn withdraw(block: &mut Block) {
    count_of(block).store(0, Ordering::Release);
}

fn count_of(block: &mut Block) -> &AtomicU32 {
    // SAFETY: the field is accessed as an atomic only.
    unsafe { AtomicU32::from_ptr(&raw mut block.slot.count) }
}

/// Brings what is away. Pages that cannot be accessed are left to the kernel, which says EFAULT where it
/// needs them.
pub fn bring(one: &Use) {
    pages::bring(one.start, one.end, one.writes);
}
