//! The default swap: compressed RAM in front of a file (kernel: zswap over a swap file).
//!
//! ```text
//!             ┌──────── RamBacking ─────────┐
//!   write ──▶ │ pool, up to the RAM limit   │ ── oldest first, above 95 %, down to 85 % ──▶ FileBacking
//!      │      └─────────────────────────────┘            Chore::Maintain
//!      └── pool at its limit, or page does not compress ───────────────────────────────────▶
//! ```
//!
//! A slot has the same number in both; its location (`ram.rs`) says which of them holds it, so that each page
//! is in one place or is just being moved:
//!
//! ```text
//!   pool ──(wb=1)──▶ being written; reads still use the pool ─▶ written, not moved? ─▶ file, object freed
//!                            │ discarded or stored again                           └──▶ not written? pool
//!                            ▼
//!                    wb=2: the object is gone, its write is still in flight ──▶ ended: place buried, wb=0
//! ```
//!
//! *Two writes to one place of the file have no order*, so there is never more than one: only one writeback
//! runs at a time, it writes a slot only if its location says pool, and `write` goes to the file only with a
//! slot whose location it has made empty and whose wb was 0. A slot with wb≠0 that is for the file is kept in
//! the pool, above the limit if need be: at most one batch of such pages exists, and their older objects have
//! just been freed.
//!
//! *A page that does not compress goes to the file, not into the pool*, where it would take the room that it
//! leaves (the case above excepted). Once it went there, up to the low mark: the oldest stayed for good, and
//! younger ones came from the disk. In the file it is kept while it is in memory: if nothing is stored to it,
//! it is not written again.
//!
//! *The location is switched only after the page is on the device.* If the write fails the page stays in the
//! pool and is tried again later.
//!
//! Limits: RAM of the pool and all tables, the file's included, against the RAM limit; the file's own.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memspill_engine::backing::{
    Backing, BackingError, Chore, PageWrite, Properties, QueueId, ReadDone, ReadRequest, ReadStart, Usage,
};
use memspill_engine::sync::lock;
use memspill_engine::units::{PAGE_SIZE, Page, PageBuf, SlotIndex, page_buf};

use crate::compress::with_scratch;
use crate::fifo::Entry;
use crate::file::{FileBacking, FileConfig};
use crate::ram::{
    Accepts, Delta, Loaded, Location, LocationKind, RamBacking, RamConfig, Refused, WB_NONE, WB_OLDER,
    WB_THIS,
};

/// The most pages written back in one submission; fewer where their buffer would be over 1/64 of the RAM
/// limit.
const WRITEBACK_PAGES_MAX: u64 = 128;
const WRITEBACK_PAGES_MIN: u64 = 8;
/// Writeback starts above this share of the RAM limit, in percent.
const HIGH_PERCENT: u64 = 95;
/// It stops below this one.
const LOW_PERCENT: u64 = 85;

#[derive(Default)]
struct Writeback {
    /// Holds the batch, from the first one until writeback stops at the low mark.
    buf: Option<PageBuf>,
}

/// See the module's header.
pub struct TierBacking {
    ram: RamBacking,
    file: FileBacking,
    writeback: Mutex<Writeback>,
    /// Above the high mark and not yet below the low one.
    draining: AtomicBool,
    /// Bytes of `Writeback::buf`.
    buffer_bytes: AtomicU64,
    written_back_pages: AtomicU64,
    writeback_errors: AtomicU64,
    overtaken_pages: AtomicU64,
}

impl TierBacking {
    /// Open the file now, so that a directory that cannot be written to is an error at the start.
    ///
    /// Slots are `ram.slots`; `file.max_bytes` bounds what is on disk at any time, not the slots.
    pub fn new(ram: RamConfig, file: FileConfig) -> io::Result<TierBacking> {
        let file = FileBacking::open_with_slots(file, ram.slots)?;
        let slots = ram.slots.min(file.properties().slots);
        Ok(TierBacking {
            ram: RamBacking::build(RamConfig { slots, ..ram }, true)?,
            file,
            writeback: Mutex::default(),
            draining: AtomicBool::new(false),
            buffer_bytes: AtomicU64::new(0),
            written_back_pages: AtomicU64::new(0),
            writeback_errors: AtomicU64::new(0),
            overtaken_pages: AtomicU64::new(0),
        })
    }

    /// The file under the pool.
    pub fn file(&self) -> &FileBacking {
        &self.file
    }

    /// Pages whose writeback failed so far (they stayed in the pool).
    pub fn writeback_errors_total(&self) -> u64 {
        self.writeback_errors.load(Ordering::Relaxed)
    }

    /// RAM that is not the pool's or the location table's.
    fn other_ram_bytes(&self) -> u64 {
        self.file.usage().ram_bytes + self.buffer_bytes.load(Ordering::Relaxed)
    }

    /// Pages that were discarded or stored again while they were being written back.
    pub fn overtaken_pages_total(&self) -> u64 {
        self.overtaken_pages.load(Ordering::Relaxed)
    }

    fn percent_of_limit(&self, percent: u64) -> u64 {
        // Divided first: a limit of u64::MAX means none.
        self.ram.limit_bytes() / 100 * percent
    }

    /// Move one batch of the oldest pages to the file. False if there was nothing to move or no room for it.
    fn write_back(&self, queue: QueueId, work: &mut Writeback) -> bool {
        let batch_pages = (self.ram.limit_bytes() / 64 / PAGE_SIZE as u64)
            .clamp(WRITEBACK_PAGES_MIN, WRITEBACK_PAGES_MAX) as usize;
        // Claim: only pages that are still the object that was queued, and in the pool.
        let (mut batch, more): (Vec<Entry>, bool) = self.ram.dequeue(batch_pages, |entry| {
            self.ram
                .update(entry.slot(), |location| {
                    let is_it =
                        location.kind() == LocationKind::Pool && location.generation() == entry.generation();
                    (is_it && location.wb() == WB_NONE).then(|| location.with_wb(WB_THIS))
                })
                .is_some()
        });
        batch.sort_unstable_by_key(|entry| entry.slot());
        if batch.is_empty() {
            return more;
        }
        if work.buf.as_ref().is_none_or(|buf| buf.len() < batch.len()) {
            work.buf = Some(page_buf(batch_pages));
            self.buffer_bytes.store((batch_pages * PAGE_SIZE) as u64, Ordering::Relaxed);
        }
        let buf = work.buf.as_mut().expect("just made");

        // Copy out. What has been discarded or stored again since it was claimed is let go at once; if that
        // happens a moment later, the bytes are written and dropped, see below.
        let mut kept = 0;
        batch.retain(|entry| {
            let page = &mut buf[kept];
            let loaded = with_scratch(|codec, scratch| self.ram.load(entry.slot(), page, codec, scratch));
            let keep = loaded == Loaded::Here && self.ram.location(entry.slot()).wb() == WB_THIS;
            if keep {
                kept += 1;
            } else {
                self.release(entry.slot());
            }
            keep
        });
        let pages: Vec<PageWrite<'_>> = batch
            .iter()
            .zip(&*buf)
            .map(|(entry, page)| PageWrite { slot: SlotIndex(entry.slot()), page })
            .collect();
        let mut results = Vec::with_capacity(pages.len());
        self.file.write_pages(queue, &pages, &mut results);

        let mut delta = Delta::default();
        let mut again = Vec::new();
        let mut moved = 0;
        for (entry, result) in batch.iter().zip(&results) {
            let slot = entry.slot();
            if result.is_ok() {
                let in_file =
                    |location: Location| RamBacking::location_in_file(location, location.is_raw_in_pool());
                let switched =
                    self.ram.update(slot, |location| (location.wb() == WB_THIS).then(|| in_file(location)));
                if let Some((old, _)) = switched {
                    self.ram.retire(old, &mut delta);
                    delta.file_pages += 1;
                    moved += 1;
                    continue;
                }
            } else {
                self.writeback_errors.fetch_add(1, Ordering::Relaxed);
            }
            // Not moved: either replaced meanwhile (what was written is of no use), or the write failed.
            if self.release(slot) {
                again.push(*entry);
            }
        }
        self.ram.apply(delta);
        self.ram.enqueue(&again);
        self.written_back_pages.fetch_add(moved, Ordering::Relaxed);
        moved > 0
    }

    fn let_go_of_buffer(&self, work: &mut Writeback) {
        if work.buf.take().is_some() {
            self.buffer_bytes.store(0, Ordering::Relaxed);
        }
    }

    /// End the writeback of a slot that is not switched to the file. True if the object is still there.
    fn release(&self, slot: u32) -> bool {
        let ended =
            self.ram.update(slot, |location| (location.wb() == WB_THIS).then(|| location.with_wb(WB_NONE)));
        if ended.is_some() {
            return true;
        }
        self.overtaken_pages.fetch_add(1, Ordering::Relaxed);
        // Replaced: nobody but this thread changes wb from here on. The place is buried first, because once
        // wb is 0 a write may use it.
        self.file.discard(&[SlotIndex(slot)]);
        self.ram.update(slot, |location| {
            assert!(location.wb() == WB_OLDER, "a writeback in flight lost its mark");
            Some(location.with_wb(WB_NONE))
        });
        false
    }

    /// As `Chore::Maintain`.
    fn maintain(&self, queue: QueueId) -> bool {
        // One writeback at a time: the exactness of wb rests on it.
        let Ok(mut work) = self.writeback.try_lock() else { return false };
        self.ram.set_other_bytes(self.other_ram_bytes());
        let held = self.ram.ram_bytes();
        let was_draining = self.draining.load(Ordering::Relaxed);
        let mark = self.percent_of_limit(if was_draining { LOW_PERCENT } else { HIGH_PERCENT });
        let mut draining = held > mark;
        if draining {
            draining = self.write_back(queue, &mut work);
        }
        self.draining.store(draining, Ordering::Relaxed);
        if !draining {
            self.let_go_of_buffer(&mut work);
        }
        let untidy = self.ram.housekeep(Chore::Maintain { queue });
        let punching = self.file.housekeep(Chore::Maintain { queue });
        draining || untidy || punching
    }

    /// As `Chore::GiveRam`.
    fn give_ram(&self, queue: QueueId, bytes: u64) -> bool {
        let mut work = lock(&self.writeback);
        let before = self.usage().ram_bytes;
        let enough = self.ram.ram_bytes().saturating_sub(bytes);
        while self.ram.ram_bytes() > enough && self.write_back(queue, &mut work) {}
        self.let_go_of_buffer(&mut work);
        self.ram.give_spare_back();
        self.usage().ram_bytes < before
    }
}

impl Backing for TierBacking {
    /// Not synchronous: a read may have to wait for the file.
    fn properties(&self) -> Properties {
        let file = self.file.properties();
        // The file punches holes by itself, and most clusters were never there.
        let discard = false;
        Properties {
            slots: self.ram.properties().slots,
            synchronous: false,
            rotational: file.rotational,
            discard,
        }
    }

    fn write(&self, queue: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        let mut delta = Delta::default();
        let base = results.len();
        let mut entries = Vec::with_capacity(pages.len());
        let mut to_file = Vec::new();
        self.ram.set_other_bytes(self.other_ram_bytes());
        with_scratch(|codec, _| {
            for (index, write) in pages.iter().enumerate() {
                let slot = write.slot.0;
                assert!(slot != 0, "slot 0 is never used");
                // The old place first: once the location says pool, a writeback may use the place again.
                if self.ram.location(slot).kind() == LocationKind::File {
                    self.file.discard(&[write.slot]);
                }
                let mut stored = self.ram.store(slot, write.page, Accepts::WhatCompresses, codec, &mut delta);
                if let Err(refused) = stored {
                    // For the file: only a slot that is empty, so that no writeback of it can start now,
                    // and of which none is in flight.
                    let old = self.ram.clear(slot);
                    let in_flight = self.ram.location(slot).wb() != WB_NONE;
                    self.ram.retire(old, &mut delta);
                    if in_flight {
                        stored = self.ram.store(slot, write.page, Accepts::AboveTheLimit, codec, &mut delta);
                    } else {
                        to_file.push((index, refused == Refused::Raw));
                    }
                }
                if let Ok(new) = &stored {
                    entries.extend(RamBacking::entry(slot, *new));
                }
                results.push(stored.map(drop).map_err(|_| BackingError::Full));
            }
        });
        if !to_file.is_empty() {
            let writes: Vec<PageWrite<'_>> = to_file
                .iter()
                .map(|(index, _)| PageWrite { slot: pages[*index].slot, page: pages[*index].page })
                .collect();
            let mut written = Vec::with_capacity(writes.len());
            self.file.write_pages(queue, &writes, &mut written);
            for ((index, raw), result) in to_file.into_iter().zip(written) {
                if result.is_ok() {
                    let in_file = |location| Some(RamBacking::location_in_file(location, raw));
                    let switched = self.ram.update(pages[index].slot.0, in_file);
                    let (old, _) = switched.expect("the change always wants a new location");
                    assert!(
                        old.kind() == LocationKind::Empty && old.wb() == WB_NONE,
                        "a slot was used by two at once"
                    );
                    delta.file_pages += 1;
                }
                results[base + index] = result;
            }
        }
        self.ram.apply(delta);
        self.ram.enqueue(&entries);
    }

    fn read(&self, queue: QueueId, mut request: ReadRequest) -> ReadStart {
        assert!(request.buf.len() >= request.slots.len(), "the buffer is too small for its slots");
        let mut results = Vec::with_capacity(request.slots.len());
        let mut wanted = Vec::new();
        with_scratch(|codec, scratch| {
            for (index, (slot, page)) in request.slots.iter().zip(&mut request.buf).enumerate() {
                results.push(match self.ram.load(slot.0, page, codec, scratch) {
                    Loaded::Here => Ok(()),
                    Loaded::Failed(error) => Err(error),
                    Loaded::InFile => {
                        wanted.push(index);
                        Ok(())
                    }
                });
            }
        });
        if wanted.is_empty() {
            let ReadRequest { token, slots, buf } = request;
            return ReadStart::Done(ReadDone { token, slots, buf, results });
        }
        self.file.read_some(queue, request, &wanted, results)
    }

    fn reap(&self, queue: QueueId, done: &mut Vec<ReadDone>) {
        self.file.reap(queue, done);
    }

    fn poll_fd(&self, queue: QueueId) -> io::Result<Option<OwnedFd>> {
        self.file.poll_fd(queue)
    }

    fn discard(&self, slots: &[SlotIndex]) {
        let mut delta = Delta::default();
        for slot in slots {
            let old = self.ram.clear(slot.0);
            self.ram.retire(old, &mut delta);
            if old.kind() == LocationKind::File {
                self.file.discard(&[*slot]);
            }
        }
        self.ram.apply(delta);
    }

    fn usage(&self) -> Usage {
        self.ram.set_other_bytes(self.other_ram_bytes());
        let ram = self.ram.usage();
        let file = self.file.usage();
        Usage {
            file_bytes: file.file_bytes,
            written_back_pages_total: self.written_back_pages.load(Ordering::Relaxed),
            write_ios_total: file.write_ios_total,
            read_ios_total: file.read_ios_total,
            ..ram
        }
    }

    /// Only of what does not compress. Another page that has come from the file has been used, and belongs
    /// into the pool when it leaves again: kept, it would come from the disk each time (SQLite took twice as
    /// long so).
    fn keeps(&self, slot: SlotIndex, page: Option<&Page>) -> bool {
        self.ram.location(slot.0).is_raw_in_file() && (page.is_none() || self.file.keeps(slot, page))
    }

    fn housekeep(&self, chore: Chore) -> bool {
        match chore {
            Chore::Maintain { queue } => self.maintain(queue),
            Chore::GiveRam { queue, bytes } => self.give_ram(queue, bytes),
            Chore::LimitRam { .. } => self.ram.housekeep(chore),
            // Not asked for: see `properties`.
            Chore::DiscardCluster(_) => false,
            Chore::EndRun => self.file.housekeep(chore),
            Chore::Close => {
                // A writeback that is under way ends first: what it moved was discarded, and is let go.
                self.let_go_of_buffer(&mut lock(&self.writeback));
                self.ram.housekeep(chore) | self.file.housekeep(chore)
            }
        }
    }
}
