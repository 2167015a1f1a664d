//! Pages of a pool compressed once more, by zstd, before they would have to go to the file (kernel: zram's
//! recompression, CONFIG_ZRAM_MULTI_COMP).
//!
//! ```text
//!   store ──▶ young: as it came in (dense.rs), or zstd        ──▶ recompress: zstd, if shorter by an eighth
//!                                                                     │
//!                                                       the file ◀── old
//! ```
//!
//! *The order in which pages leave* is kept in two FIFOs: the young, as they came, and the old, whose turn
//! has come. So each page has one turn, whether it is tried then or not, and whatever comes of it. If nothing
//! is recompressed, all pages are young, and leave as they came. Pages that do not compress are in a third
//! one (tier.rs).
//!
//! *An object is exchanged as by a writeback*: wb in its location keeps compaction away from it, and is gone
//! with it where it is discarded or stored again meanwhile. So an object that has wb at the end is the one
//! whose page was read. Only one thread at a time sets wb (tier.rs).
//!
//! zstd (level 1) leaves 0.61 to 0.72 of what LZ4 does, of pages that went to the file from heaps of python,
//! java, node, SQLite and a C++ map, for 7 to 17 µs a page off the fault path and 3 µs more at the read
//! (level 3 leaves as much, for 13 µs and more). Whether that is worth while, `worth.rs` finds out.

use std::sync::atomic::Ordering;
use std::time::Instant;

use memspill_engine::units::{PAGE_SIZE, Page};

use crate::compress::{Codec, with_scratch};
use crate::fifo::Entry;
use crate::location::{Form, Location, LocationKind};
use crate::pool::Handle;
use crate::ram::{Delta, Loaded, RamBacking};
use crate::worth::FileReads;

/// A page must become shorter by one part in so many, or stays as it is.
const SHORTER_PART: usize = 8;
/// The most pages of one step: some 2 ms.
const STEP_PAGES_MAX: u64 = 128;

impl RamBacking {
    /// Is it worth while to compress pages once more?
    pub(crate) fn recompresses(&self) -> bool {
        self.order.as_ref().is_some_and(|order| order.worth.pays())
    }

    /// Would a page that the pool's algorithm does not compress probably be stored by zstd?
    pub(crate) fn is_likely_shorter(&self) -> bool {
        self.order.as_ref().is_some_and(|order| order.worth.is_likely())
    }

    /// What was read from the file so far, until now.
    pub(crate) fn settle(&self, reads: FileReads, now: Instant) {
        if let Some(order) = &self.order {
            order.worth.settle(reads, now);
        }
    }

    /// Bytes of objects whose turn has not come.
    pub(crate) fn young_bytes(&self) -> u64 {
        let (all, old) = (&self.counters.compressed_bytes, &self.counters.old_bytes);
        all.load(Ordering::Relaxed).saturating_sub(old.load(Ordering::Relaxed))
    }

    /// A page was moved to the file, and this is what it was.
    pub(crate) fn note_moved_out(&self, was: Location) {
        if let Some(order) = self.order.as_ref().filter(|_| was.form() == Form::Spared) {
            order.worth.note_moved_out();
        }
    }

    /// Compress the oldest of the young pages once more, so that more of them fit; those that do not become
    /// shorter, or for which there is no room beside what they are, stay as they are. All of them are old
    /// afterwards. Returns how many that were: none where the pool is so full that pages must leave first.
    ///
    /// To be called by who alone sets wb just then.
    pub(crate) fn recompress(&self, delta: &mut Delta) -> usize {
        let Some(order) = &self.order else { return 0 };
        let step_pages = (self.limit_bytes() / 64 / PAGE_SIZE as u64).clamp(1, STEP_PAGES_MAX);
        let room_pages = self.limit_bytes().saturating_sub(self.ram_bytes()) / PAGE_SIZE as u64;
        if room_pages < step_pages {
            return 0;
        }
        let is_young = |entry: Entry| self.is_entry_live(entry) && !self.location(entry.slot()).is_old();
        let (entries, _) = self.dequeue_from(&order.young, step_pages as usize, is_young);
        let mut page = Box::new(Page::ZERO);
        with_scratch(|codec, scratch| {
            for entry in &entries {
                self.recompress_one(*entry, &mut page, codec, scratch, delta);
            }
        });
        self.push(&order.old, &entries);
        entries.len()
    }

    fn recompress_one(
        &self,
        entry: Entry,
        page: &mut Page,
        codec: &mut Codec,
        scratch: &mut Page,
        delta: &mut Delta,
    ) {
        let slot = entry.slot();
        let claimed = self.update(slot, |now| {
            let is_it = now.kind() == LocationKind::Pool && now.generation() == entry.generation();
            (is_it && !now.is_old() && !now.is_leaving()).then(|| now.leaving())
        });
        let Some((before, _)) = claimed else { return };
        let shorter = self.shorter_block(slot, before, page, codec, scratch);
        #[cfg(test)]
        crate::ram::tests::between(crate::ram::tests::Moment::Recompressed);
        let switched = self.update(slot, |now| {
            now.is_leaving().then(|| match shorter {
                Some((handle, len_bytes)) => now.recompressed(handle, len_bytes),
                None => now.staying().aged(),
            })
        });
        match (switched, shorter) {
            (Some((old, new)), Some(_)) => {
                self.retire(old, delta);
                delta.count(new, 1);
            }
            (Some((old, new)), None) => {
                delta.count(old, -1);
                delta.count(new, 1);
            }
            (None, Some((handle, len_bytes))) => self.pool.free(handle, len_bytes),
            (None, None) => {}
        }
    }

    /// A block of zstd of the page at `before`, in the pool, if it is shorter and there is room.
    fn shorter_block(
        &self,
        slot: u32,
        before: Location,
        page: &mut Page,
        codec: &mut Codec,
        scratch: &mut Page,
    ) -> Option<(Handle, usize)> {
        let order = self.order.as_ref()?;
        let is_dense = before.form().is_dense();
        let is_tried = before.form() != Form::Spared && order.worth.tries(is_dense);
        if !is_tried || self.load(slot, page, codec, scratch) != Loaded::Here {
            return None;
        }
        let (_, len_bytes) = before.object();
        let block =
            order.compress_again(page, (len_bytes, is_dense), len_bytes - len_bytes / SHORTER_PART, codec)?;
        let handle = self.pool.store(slot, block, self.room_bytes()).ok()?;
        Some((handle, block.len()))
    }
}
