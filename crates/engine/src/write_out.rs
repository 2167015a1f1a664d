//! The second half of a batch: it is written to its devices, and leaves the swap cache.
//!
//! ```text
//!   swap cache ── one submission for each device ──▶ written: out of the cache, the slot keeps a shadow
//!       │                                            failed:  stays, and is written again (unwritten.rs)
//!       └─▶ faults take their pages back meanwhile
//! ```
//!
//! A page whose write failed is not lost: it stays in the swap cache, in memory. The counter `swap_full` or
//! `write_errors` tells the supervisor, whose policy decides.

use crate::backing::{BackingError, PageWrite, QueueId};
use crate::devices::Device;
use crate::frames::CachedPage;
use crate::kept::Kept;
use crate::space::{CHUNK_PAGES, Space, index};
use crate::stats::add;
use crate::swap::Swap;
use crate::sync::{Arc, Ordering, lock};
use crate::units::{CpuId, PageBuf, SlotIndex, Vpn};
use crate::word::{State, SwapEntry};

/// A batch in the swap cache, to be given to `Engine::write_out`.
pub struct WriteOut {
    pub(crate) pages: Vec<CachedPage>,
    pub(crate) told: Option<Told>,
}

/// The `Memory` that is told where the pages of a batch are stored (`Memory::stored`).
pub(crate) struct Told {
    pub space: Arc<Space>,
    /// Ascending.
    pub pages: Vec<(Vpn, SwapEntry)>,
}

impl Told {
    /// While these slots are still in the swap cache, so that they belong to no other page, nor to the same
    /// one at a later time. Pages that have come back meanwhile are left out.
    fn tell(&self, is_stored: impl Fn(SwapEntry) -> bool) {
        let _guard = self.space.gate.enter_fill();
        for of_chunk in self.pages.chunk_by(|a, b| a.0.0 / CHUNK_PAGES == b.0.0 / CHUNK_PAGES) {
            let chunk = self.space.chunk_or_new(of_chunk[0].0);
            let words = lock(&chunk);
            let is_there = |(vpn, entry): &&(Vpn, SwapEntry)| {
                let word = words[index(*vpn)];
                word.state() == State::Swapped && word.entry() == *entry && is_stored(*entry)
            };
            let stored: Vec<(Vpn, SwapEntry)> = of_chunk.iter().filter(is_there).copied().collect();
            if !stored.is_empty() {
                self.space.memory.stored(&stored);
            }
        }
    }
}

/// One CPU's writing of a batch.
pub(crate) struct Writer<'a> {
    pub swap: &'a Swap,
    pub kept: &'a Kept,
    pub cpu: CpuId,
    pub queue: QueueId,
}

impl Writer<'_> {
    /// Write the batch, and take what was written out of the swap cache. Returns how many pages could not be
    /// written.
    pub fn write(&self, batch: WriteOut) -> usize {
        self.write_pages(&batch.pages, batch.told.as_ref(), false)
    }

    /// Try again to write what could not be written. Returns how many are still unwritten.
    pub fn write_again(&self) -> usize {
        let swap = self.swap;
        let batch = swap.unwritten.take();
        if batch.is_empty() {
            return 0;
        }
        // What nobody needs any more need not be written.
        let is_needed = |p: &CachedPage| swap.device(p.entry).slots.count(p.entry.slot) > 0;
        let (needed, orphans): (Vec<_>, Vec<_>) = batch.iter().copied().partition(is_needed);
        for (n, device) in swap.devices.iter().enumerate() {
            if !needed.iter().any(|p| p.entry.device as usize == n) {
                device.errors.allow_one_try();
            }
        }
        swap.free_orphans(self.cpu, &orphans);
        let failed = self.write_pages(&needed, None, true);
        swap.unwritten.settle(&batch);
        failed
    }

    /// `again`: their write has failed before.
    fn write_pages(&self, pages: &[CachedPage], told: Option<&Told>, again: bool) -> usize {
        let mut failed = Vec::new();
        for n in 0..self.swap.devices.len() {
            let of_device: Vec<CachedPage> =
                pages.iter().filter(|p| p.entry.device as usize == n).copied().collect();
            if !of_device.is_empty() {
                let written = self.write_to(&self.swap.devices[n], &of_device, again, &mut failed);
                self.leave_cache(&self.swap.devices[n], n, &written, told);
            }
        }
        self.swap.unwritten.add(&failed);
        failed.len()
    }

    /// Returns the slots that were written.
    fn write_to(
        &self,
        device: &Device,
        pages: &[CachedPage],
        again: bool,
        failed: &mut Vec<CachedPage>,
    ) -> Vec<SlotIndex> {
        let buffers: Vec<(Arc<PageBuf>, usize)> = self.swap.frames.get_many(pages.iter().map(|p| p.frame));
        let writes: Vec<PageWrite> = pages
            .iter()
            .zip(&buffers)
            .map(|(p, (buf, place))| PageWrite { slot: p.entry.slot, page: &buf[*place] })
            .collect();
        let mut results = Vec::with_capacity(writes.len());
        device.backing.write(self.queue, &writes, &mut results);
        drop(writes);
        drop(buffers);
        let mut written = Vec::with_capacity(pages.len());
        for (page, result) in pages.iter().zip(&results) {
            match result {
                Ok(()) => written.push(page.entry.slot),
                Err(error) => {
                    self.note_error(device, error, again);
                    failed.push(*page);
                }
            }
        }
        if !written.is_empty() {
            device.errors.note_written();
        }
        if !written.is_empty() && written.len() == pages.len() {
            device.note_room();
        }
        add(&self.swap.stats.on(self.cpu).pswpout, written.len() as u64);
        written
    }

    /// The pages that were written to device number `n` leave the swap cache.
    fn leave_cache(&self, device: &Device, n: usize, written: &[SlotIndex], told: Option<&Told>) {
        if let Some(told) = told {
            told.tell(|entry| usize::from(entry.device) == n && written.contains(&entry.slot));
        }
        let shadow = self.swap.eviction_clock();
        self.swap.cache_delete(self.cpu, device, written, Some(shadow));
    }

    fn note_error(&self, device: &Device, error: &BackingError, again: bool) {
        let counters = self.swap.stats.rare();
        if *error == BackingError::Full {
            device.full.store(true, Ordering::Relaxed);
            add(&counters.swap_full, 1);
            self.swap.set_full();
            self.kept.ask_to_give_up();
        } else if !again {
            add(&counters.write_errors, 1);
            device.errors.note_write(error);
        }
    }
}
