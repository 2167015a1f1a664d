//! The simplest backing that is a backing: whole pages in a map. Start here to write one of your own.
//!
//! ```text
//!   slot ──▶ Mutex<HashMap<slot, Box<Page>>>
//! ```
//!
//! It saves no memory at all, which makes it the baseline of benchmarks (what does swap cost without
//! compression and without a device?) and the model that the conformance suite's other subjects are compared
//! with.
//!
//! To add a backing:
//!
//! 1. Copy this file; give the struct what it needs: a pool, a socket, a descriptor.
//! 2. Implement the trait. Each method below says what is expected of it; `engine/src/backing.rs` is the law.
//! 3. Add one line to the list of subjects in `tests/conformance.rs`, and run it.
//! 4. If reads take time, return `ReadStart::Pending`, keep the request's buffer, and give it back from
//!    `reap`; `throttled.rs` is the shortest example.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use memspill_engine::backing::{
    AtRest, Backing, BackingError, Chore, PageWrite, Properties, QueueId, ReadDone, ReadRequest, ReadStart,
    Usage,
};
use memspill_engine::sync::lock;
use memspill_engine::units::{PAGE_SIZE, Page, SlotIndex};

/// See the module's header.
pub struct NullBacking {
    slots: u32,
    limit_bytes: AtomicU64,
    pages: Mutex<HashMap<SlotIndex, Box<Page>>>,
}

impl NullBacking {
    /// Slots 0..`slots`; at most `ram_limit_bytes` of pages.
    pub fn new(slots: u32, ram_limit_bytes: u64) -> NullBacking {
        NullBacking { slots, limit_bytes: AtomicU64::new(ram_limit_bytes), pages: Mutex::default() }
    }

    fn bytes(pages: usize) -> u64 {
        (pages * PAGE_SIZE) as u64
    }
}

impl Backing for NullBacking {
    /// What the engine must know to choose slots (`rotational`) and to decide on readahead (`synchronous`).
    fn properties(&self) -> Properties {
        Properties {
            slots: self.slots,
            synchronous: true,
            rotational: false,
            discard: false,
            in_rows: false,
            at_rest: AtRest::InRam,
        }
    }

    /// Keep a copy of each page: the caller's memory is used for something else as soon as this returns. One
    /// result for each page, in order. A slot may hold an older page: it is replaced. A slot whose write
    /// fails ends up empty, whatever it held.
    fn write(&self, _queue: QueueId, writes: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        let mut pages = lock(&self.pages);
        for write in writes {
            // A slot out of range is a bug in the engine, not a condition to be reported.
            assert!(write.slot.0 < self.slots, "slot {} of {}", write.slot.0, self.slots);
            // Remove first: then a failed write leaves nothing, and a rewrite needs no room of its own.
            pages.remove(&write.slot);
            let room = NullBacking::bytes(pages.len() + 1) <= self.limit_bytes.load(Ordering::Relaxed);
            results.push(if room {
                pages.insert(write.slot, Box::new(*write.page));
                Ok(())
            } else {
                Err(BackingError::Full)
            });
        }
    }

    /// Page i of the buffer from `slots[i]`. A page that cannot be had is an error, never zeros. A backing in
    /// RAM is `Done` at once; the buffer goes back to the caller with the result either way.
    fn read(&self, _queue: QueueId, request: ReadRequest) -> ReadStart {
        let ReadRequest { token, slots, mut buf, .. } = request;
        let pages = lock(&self.pages);
        let results = slots
            .iter()
            .zip(&mut buf)
            .map(|(slot, target)| match pages.get(slot) {
                Some(page) => {
                    *target = **page;
                    Ok(())
                }
                None => Err(BackingError::Empty),
            })
            .collect();
        ReadStart::Done(ReadDone { token, slots, buf, results })
    }

    /// Give the memory back. Slots that hold nothing are fine.
    fn discard(&self, slots: &[SlotIndex]) {
        let mut pages = lock(&self.pages);
        for slot in slots {
            pages.remove(slot);
        }
    }

    /// Everything that is held in RAM counts, tables too: promise 1 is an honest budget.
    fn usage(&self) -> Usage {
        let pages = lock(&self.pages);
        let table_bytes = pages.capacity() * (size_of::<(SlotIndex, Box<Page>)>() + 1);
        Usage {
            ram_bytes: NullBacking::bytes(pages.len()) + table_bytes as u64,
            ram_compressed_bytes: NullBacking::bytes(pages.len()),
            table_bytes: table_bytes as u64,
            ram_pages: pages.len() as u64,
            incompressible_pages: pages.len() as u64,
            ..Usage::default()
        }
    }

    /// These five were all that must be there. Reads that end later, copies that are kept: not here. This
    /// does two of the chores: the limit, and giving back what an emptied table holds. Neither has to be
    /// asked for again.
    fn housekeep(&self, chore: Chore) -> bool {
        match chore {
            Chore::Maintain { .. } => lock(&self.pages).shrink_to_fit(),
            Chore::LimitRam { bytes } => self.limit_bytes.store(bytes, Ordering::Relaxed),
            Chore::GiveRam { .. } | Chore::DiscardCluster(_) | Chore::EndRun | Chore::Close => {}
        }
        false
    }
}
