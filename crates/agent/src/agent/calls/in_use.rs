//! A thread's side of the protocol that keeps what a system call uses from being taken out (`mod.rs` has the
//! picture): publish, wait for the batch that is under way, touch.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use crate::machine::gadget;
use crate::machine::sys::{PAGE, nr};
use crate::pages;
use crate::protocol::{Board, MANAGED_RANGES, RangeInUse, SLOT_RANGES};
use crate::thread::block::{self, Block};

const FUTEX_WAIT: usize = 0;

/// Memory that a call uses.
#[derive(Clone, Copy)]
pub struct Use {
    pub start: usize,
    pub end: usize,
    pub writes: bool,
}

/// The uses of one call. Where there are more than a slot has room for, the last one stands for all the rest.
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

/// Says which memory is in use, and waits until no batch is under way that may not have seen it.
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
    wait_for_batch(block, block::board());
}

pub fn withdraw(block: &mut Block) {
    count_of(block).store(0, Ordering::Release);
}

fn count_of(block: &mut Block) -> &AtomicU32 {
    // SAFETY: the field is accessed as an atomic only.
    unsafe { AtomicU32::from_ptr(&raw mut block.slot.count) }
}

/// What a thread was about to do that is not to be continued.
pub fn abandon(block: &mut Block) {
    withdraw(block);
    if core::mem::take(&mut block.waits) {
        // SAFETY: the board outlives all threads, and the field is accessed as an atomic only.
        unsafe { AtomicU32::from_ptr(&raw mut (*block::board()).waiting) }.fetch_sub(1, Ordering::SeqCst);
    }
}

fn wait_for_batch(block: &mut Block, board: *mut Board) {
    // SAFETY: the board outlives all threads, and the fields are accessed as atomics only.
    let (generation, waiting) = unsafe {
        (AtomicU32::from_ptr(&raw mut (*board).generation), AtomicU32::from_ptr(&raw mut (*board).waiting))
    };
    let seen = generation.load(Ordering::SeqCst);
    if seen.is_multiple_of(2) {
        return;
    }
    waiting.fetch_add(1, Ordering::SeqCst);
    let waits = &raw mut block.waits;
    // SAFETY: the thread's own block; a signal's handler looks at it (`abandon`), hence volatile. One that
    // comes between the two lines leaves the count too high: then each batch wakes nobody once more.
    unsafe { waits.write_volatile(true) };
    while generation.load(Ordering::SeqCst) == seen {
        let args = [generation.as_ptr() as usize, FUTEX_WAIT, seen as usize, 0, 0, 0];
        // SAFETY: the word outlives all threads.
        let _ = unsafe { gadget::call(nr::FUTEX, args) };
    }
    // SAFETY: as above.
    unsafe { waits.write_volatile(false) };
    waiting.fetch_sub(1, Ordering::SeqCst);
}

/// Brings what is away: reads or writes a byte of each page that may be managed. What cannot be accessed is
/// left to the kernel, which says EFAULT where it needs it.
pub fn bring(one: &Use) {
    if pages::is_on() {
        return pages::bring(one.start, one.end);
    }
    for range in managed() {
        let start = one.start.max(range.start as usize);
        let end = one.end.min(range.end as usize);
        let mut at = start;
        while at < end {
            // The kernel, too, goes no further than to the first page that it cannot have.
            if !(one.writes && gadget::touch_for_writing(at) || gadget::touch(at)) {
                break;
            }
            at = (at & !(PAGE - 1)) + PAGE;
        }
    }
}

/// What may be away.
fn managed() -> impl Iterator<Item = RangeInUse> {
    let board = block::board();
    // SAFETY: the board outlives all threads. The count only grows, and so does each range, so whatever is
    // read here names at least what was managed when the wait for the batch was over.
    let (count, first) = unsafe {
        let count = (&raw const (*board).managed_count).read_volatile();
        ((count as usize).min(MANAGED_RANGES), (&raw const (*board).managed).cast::<RangeInUse>())
    };
    // SAFETY: the index is below MANAGED_RANGES.
    (0..count).map(move |index| unsafe { first.add(index).read_volatile() })
}

pub fn may_be_managed(addr: usize) -> bool {
    if pages::is_on() {
        return pages::may_be_away(addr);
    }
    is_managed_in(addr, addr + 1)
}

/// May anything be away?
pub fn is_any_managed() -> bool {
    managed().next().is_some()
}

/// May some of [start, end) be away?
pub fn is_managed_in(start: usize, end: usize) -> bool {
    managed().any(|range| (start as u64) < range.end && range.start < end as u64)
}
