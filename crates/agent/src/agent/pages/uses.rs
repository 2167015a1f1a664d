//! Memory that must stay where it is, though its words say nothing of it: memory that system calls in
//! progress use (the slots of the dispatch), a page on which a thread looks whether its fault is the
//! program's own (its hazard), and the agent's own memory.
//!
//! ```text
//!   a thread                            who takes out
//!   says what it uses; fence            marks the words EVICTING; fence
//!   looks at the words, waits, fills    looks here, and gives up from there on
//! ```
//!
//! Either the one sees the other's mark, or the other sees the one's.

use crate::common::protocol::{RangeInUse, SLOT_RANGES};
use crate::common::rules::{Rule, holds};
use crate::common::sync::{AtomicU32, AtomicUsize, Ordering, fence};
use crate::machine::sys::PAGE;
use crate::thread::block::{self, Block};

/// What is whose place in the list: `keep`.
pub const TABLES: usize = 0;
pub const REGION: usize = 1;
pub const IDENT: usize = 2;
/// To which pages are moved.
pub const STAGING: usize = 3;
const OWN_MAX: usize = 4;

/// Ranges of the agent's own memory, (start, end), beside the blocks of the threads.
struct Own {
    start: [AtomicUsize; OWN_MAX],
    end: [AtomicUsize; OWN_MAX],
}

/// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
static OWN: Own =
    Own { start: [const { AtomicUsize::new(0) }; OWN_MAX], end: [const { AtomicUsize::new(0) }; OWN_MAX] };

/// Memory that is the agent's from now on, in place of what was known before by this number.
pub fn keep(which: usize, start: usize, len: usize) {
    if let (Some(start_at), Some(end_at)) = (OWN.start.get(which), OWN.end.get(which)) {
        // Empty in between.
        end_at.store(0, Ordering::SeqCst);
        start_at.store(start, Ordering::SeqCst);
        end_at.store(start + len, Ordering::SeqCst);
    }
}

/// What was kept so: where it is, and how long.
pub fn kept(which: usize) -> (usize, usize) {
    let at = |list: &[AtomicUsize; OWN_MAX]| list.get(which).map_or(0, |place| place.load(Ordering::SeqCst));
    (at(&OWN.start), at(&OWN.end).saturating_sub(at(&OWN.start)))
}

/// The first page in [start, end) that must stay; `end` if there is none. Looks at slots and hazards only if
/// `with_calls`.
pub fn first_kept(start: usize, end: usize, with_calls: bool) -> usize {
    fence(Ordering::SeqCst);
    let mut first = end;
    let mut look = |from: usize, to: usize| {
        if from < first && to > start && from < to {
            first = from.max(start) & !(PAGE - 1);
        }
    };
    for (from, to) in OWN.start.iter().zip(&OWN.end) {
        look(from.load(Ordering::SeqCst), to.load(Ordering::SeqCst));
    }
    for block in block::blocks() {
        let (from, to) = block::memory_of(block);
        look(from, to);
        if with_calls {
            uses_of(block, &mut look);
        }
    }
    first.max(start)
}

fn uses_of(block: *mut Block, look: &mut impl FnMut(usize, usize)) {
    // SAFETY: blocks are never unmapped; the fields are accessed as atomics, or volatile where their owner
    // may write them meanwhile: then what is read does not count, for he looks at the words afterwards.
    let (count, first, hazard) = unsafe {
        let slot = &raw mut (*block).slot;
        let count = AtomicU32::from_ptr(&raw mut (*slot).count).load(Ordering::SeqCst);
        (count as usize, (&raw const (*slot).ranges).cast::<RangeInUse>(), &(*block).hazard)
    };
    for index in 0..count.min(SLOT_RANGES) {
        // SAFETY: the index is below SLOT_RANGES.
        let range = unsafe { first.add(index).read_volatile() };
        look(range.start as usize, range.end as usize);
    }
    let hazard = hazard.load(Ordering::SeqCst);
    if hazard != 0 && holds(Rule::Hazard) {
        look(hazard, hazard + PAGE);
    }
}
