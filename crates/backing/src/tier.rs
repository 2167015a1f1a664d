//! The default swap: compressed RAM in front of a file (kernel: zswap over a swap file).
//!
//! ```text
//!             ┌──────── RamBacking ─────────┐
//!   write ──▶ │ pool, up to the RAM limit   │ ── oldest first, above 95 %, down to 85 % ──▶ FileBacking
//!      │      │  pages that do not compress │ ── by batches ──────────────────────────────▶
//!      │      └─────────────────────────────┘            Chore::Maintain
//!      └── pool at its limit, or two batches of pages that do not compress wait ───────────▶
//! ```
//!
//! *If reads of the file take long*, pages are compressed once more before they would have to leave
//! (recompress.rs): above 85 % of the limit, all but the youngest. Then pages leave above 97 %, down to 94 %:
//! less has to be ready, as most room is made by compressing.
//!
//! A page has a place in the file that is not its slot's: places are taken in runs (`places.rs`), so that a
//! batch is one request or a few. When each slot had its own place, 867,152 pages of a hash map went to the
//! file in 831,926 requests. A slot's location (`location.rs`) says where its page is, so that each page is
//! in one place or is just being moved:
//!
//! ```text
//!   pool ──(wb)──▶ being written; reads still use the pool ─▶ written, wb still set? ─▶ file, object freed
//!                            │ discarded or stored again                   │ not written: pool, wb cleared
//!                            ▼                                             ▼
//!                    wb is gone with the object; its write ends ──▶ the place is given back
//! ```
//!
//! *Two writes to one place of the file have no order*, so there are never two: a place is taken for one
//! write, and given back when that has ended, or when the page has been read and let go.
//!
//! *Only one writeback runs at a time*, or one that compresses, and it alone sets wb: so where it finds wb
//! set, the object is the one that it has copied.
//!
//! *A page that does not compress goes to the file*, as in the pool it would take the room that it leaves.
//! It waits in the pool only until there are enough of them for a batch. (Before, each write took those of
//! its own pages to the file at once: some ten of java's in a request. Once they stayed in the pool, up to
//! the low mark: the oldest for good, and younger ones came from the disk.) In the file it is kept while it
//! is in memory: if nothing is stored to it, it is not written again.
//!
//! *The location is switched only after the page is on the device.* If the write fails the page stays in the
//! pool and is tried again later.
//!
//! Limits: RAM of the pool and all tables, the file's included, against the RAM limit; the file's own.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::worth::Recompress;
use memspill_engine::backing::{
    Backing, BackingError, Chore, Link, PageWrite, Properties, QueueId, ReadDone, ReadRequest, ReadStart,
    Usage,
};
use memspill_engine::sync::lock;
use memspill_engine::units::{PAGE_SIZE, Page, PageBuf, SlotIndex, page_buf};

use crate::compress::{Algorithm, Codec, with_scratch};
use crate::fifo::Entry;
use crate::file::{FileBacking, FileConfig};
use crate::location::{Location, LocationKind, Raw};
use crate::nbd::{NbdConfig, NbdError};
use crate::order::{Leaving, Order};
use crate::places::Places;
use crate::ram::{Accepts, Delta, Loaded, RamBacking, RamConfig};
use crate::worth::FileReads;

/// The most pages written back in one submission; fewer where their buffer would be over 1/128 of the RAM
/// limit.
const WRITEBACK_PAGES_MAX: u64 = 128;
const WRITEBACK_PAGES_MIN: u64 = 16;
/// The batches of pages that do not compress that may wait in the pool; further ones go to the file at once.
const WAITING_BATCHES: u64 = 2;
/// The file has taken none of a batch of them: the next one is tried after so long.
const REFUSED: Duration = Duration::from_millis(200);
/// Shares of the RAM limit, in percent.
struct Marks {
    /// Writeback starts above this one,
    high: u64,
    /// and stops below this one.
    low: u64,
}

const MARKS: Marks = Marks { high: 95, low: 85 };
/// Where pages are recompressed.
const RECOMPRESSING: Marks = Marks { high: 97, low: 94 };
/// Pages that came into the pool last, with this share of the RAM limit, in percent, are not recompressed.
const YOUNG_PERCENT: u64 = 5;
/// The oldest of the others are, above this share of the RAM limit: else they would leave, once it is full.
/// (At 92 pages left all the same: much of what is saved is holes for a while, until compaction has come by.)
const RECOMPRESS_PERCENT: u64 = MARKS.low;

#[derive(Default)]
struct Writeback {
    /// Holds the batch, until nothing is left to be moved.
    buf: Option<PageBuf>,
    /// When the file last took none of a batch of pages that do not compress.
    refused: Option<Instant>,
}

/// See the module's header.
pub struct TierBacking {
    ram: RamBacking,
    file: FileBacking,
    places: Places,
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
        TierBacking::with_recompress(ram, file, Recompress::Auto)
    }

    /// As `new`, and says when pages are recompressed.
    pub fn with_recompress(
        ram: RamConfig,
        file: FileConfig,
        recompress: Recompress,
    ) -> io::Result<TierBacking> {
        let file = FileBacking::open_with_slots(file, ram.slots)?;
        let slots = ram.slots.min(file.properties().slots);
        TierBacking::of(RamConfig { slots, ..ram }, file, recompress)
    }

    /// A pool in front of an export. There may be more slots than that has places.
    pub fn on_export(ram: RamConfig, export: NbdConfig) -> Result<TierBacking, NbdError> {
        Ok(TierBacking::of(ram, FileBacking::on_export(export)?, Recompress::Auto)?)
    }

    fn of(ram: RamConfig, file: FileBacking, recompress: Recompress) -> io::Result<TierBacking> {
        // A pool by another algorithm has that one from the start.
        let recompress = if ram.algorithm == Algorithm::Lz4 { recompress } else { Recompress::Off };
        let order = Order::new(recompress, ram.shared);
        Ok(TierBacking {
            ram: RamBacking::build(ram, Some(order))?,
            places: Places::new(file.properties().slots)?,
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

    /// Count RAM that is neither the pool's nor the location table's. Returns what the file uses.
    fn count_other_ram(&self) -> Usage {
        let file = self.file.usage();
        let buffer_bytes = self.buffer_bytes.load(Ordering::Relaxed);
        self.ram.set_other_bytes(file.ram_bytes + self.places.ram_bytes() + buffer_bytes);
        file
    }

    /// Pages that were discarded or stored again while they were being written back.
    pub fn overtaken_pages_total(&self) -> u64 {
        self.overtaken_pages.load(Ordering::Relaxed)
    }

    fn percent_of_limit(&self, percent: u64) -> u64 {
        // Divided first: a limit of u64::MAX means none.
        self.ram.limit_bytes() / 100 * percent
    }

    /// Pages of one writeback.
    fn batch_pages(&self) -> u64 {
        (self.ram.limit_bytes() / 128 / PAGE_SIZE as u64).clamp(WRITEBACK_PAGES_MIN, WRITEBACK_PAGES_MAX)
    }

    /// Move one batch of pages to the file. False if there was nothing to move or no room for it.
    fn write_back(&self, queue: QueueId, leaving: Leaving, work: &mut Writeback) -> bool {
        let batch_pages = self.batch_pages() as usize;
        // Claim: only pages that are still the object that was queued, and in the pool.
        let (mut batch, more): (Vec<Entry>, bool) = self.ram.dequeue(leaving, batch_pages, |entry| {
            self.ram
                .update(entry.slot(), |location| {
                    let is_it =
                        location.kind() == LocationKind::Pool && location.generation() == entry.generation();
                    (is_it && !location.is_leaving()).then(|| location.leaving())
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

        // Copy out. A page that was discarded or stored again since it was claimed is let go at once; if that
        // happens a moment later, the bytes are written and dropped, see below.
        let mut kept = 0;
        batch.retain(|entry| {
            let page = &mut buf[kept];
            let loaded = with_scratch(|codec, scratch| self.ram.load(entry.slot(), page, codec, scratch));
            let keep = loaded == Loaded::Here && self.ram.location(entry.slot()).is_leaving();
            if keep {
                kept += 1;
            } else {
                self.stays(entry.slot());
            }
            keep
        });
        let places = self.places.take(batch.len());
        // No place is free: as where the file has no room.
        let without = batch.split_off(places.len());
        let mut results = Vec::with_capacity(places.len());
        self.file.write_own_pages(queue, &places, &mut buf[..places.len()], &mut results);
        self.look_at_room(&results);

        let mut delta = Delta::default();
        let mut again = Vec::new();
        let (mut moved, mut moved_raw) = (0, 0);
        for ((entry, place), result) in batch.iter().zip(places).zip(&results) {
            let slot = entry.slot();
            if result.is_ok() {
                let switched = self.ram.update(slot, |location| {
                    location.is_leaving().then(|| location.in_file(place, location.raw_in_pool()))
                });
                if let Some((old, _)) = switched {
                    self.ram.note_moved_out(old);
                    self.ram.retire(old, &mut delta);
                    delta.file_pages += 1;
                    moved += 1;
                    moved_raw += u64::from(old.raw_in_pool() != Raw::No);
                    continue;
                }
            } else {
                self.writeback_errors.fetch_add(1, Ordering::Relaxed);
            }
            // Not moved: either replaced meanwhile (what was written is of no use), or the write failed.
            self.leave(place);
            if self.stays(slot) {
                again.push(*entry);
            }
        }
        self.writeback_errors.fetch_add(without.len() as u64, Ordering::Relaxed);
        again.extend(without.into_iter().filter(|entry| self.stays(entry.slot())));
        self.ram.apply(delta);
        self.ram.enqueue(&again);
        // The pages that had to leave for want of room.
        self.written_back_pages.fetch_add(moved - moved_raw, Ordering::Relaxed);
        moved > 0
    }

    /// Move a batch of pages that do not compress to the file, if so many wait. True if another one does.
    fn write_back_raw(&self, queue: QueueId, work: &mut Writeback, now: Instant) -> bool {
        let a_batch_waits = || self.ram.raw_pages() >= self.batch_pages();
        let is_refused = work.refused.is_some_and(|at| now.duration_since(at) < REFUSED);
        if is_refused || !a_batch_waits() {
            return false;
        }
        let has_moved = self.write_back(queue, Leaving::Raw, work);
        work.refused = (!has_moved).then_some(now);
        has_moved && a_batch_waits()
    }

    /// Put a page into the pool; returns what its location was, and is. Or what does not compress it, if it
    /// is to go to the file at once.
    fn store(
        &self,
        write: &PageWrite<'_>,
        codec: &mut Codec,
        may_wait_pages: &mut u64,
        delta: &mut Delta,
    ) -> Result<(Location, Location), Raw> {
        let slot = write.slot.0;
        let raw = match self.ram.store(slot, write.page, Accepts::WhatCompresses, codec, delta) {
            Err(raw @ (Raw::ByPool | Raw::ByBoth)) if *may_wait_pages > 0 => raw,
            stored => return stored,
        };
        let waiting = self.ram.store_raw(slot, write.page, raw, delta).ok_or(raw)?;
        *may_wait_pages -= 1;
        Ok(waiting)
    }

    fn let_go_of_buffer(&self, work: &mut Writeback) {
        if work.buf.take().is_some() {
            self.buffer_bytes.store(0, Ordering::Relaxed);
            self.file.let_go_of_buffers();
        }
    }

    /// End the writeback of a slot that is not switched to the file. True if the object is still there.
    fn stays(&self, slot: u32) -> bool {
        let is_there =
            self.ram.update(slot, |location| location.is_leaving().then(|| location.staying())).is_some();
        self.overtaken_pages.fetch_add(u64::from(!is_there), Ordering::Relaxed);
        is_there
    }

    /// Pages were written to places of the file: was there room for all of them?
    fn look_at_room(&self, results: &[Result<(), BackingError>]) {
        if results.contains(&Err(BackingError::Full)) {
            self.places.want_what_had_room();
        }
    }

    /// A place of the file that no location names any more.
    fn leave(&self, place: SlotIndex) {
        self.file.discard(&[place]);
        self.places.give(place);
    }

    /// One step of it. Returns how many pages were looked at.
    fn recompress(&self) -> usize {
        let is_nearly_full = self.ram.ram_bytes() > self.percent_of_limit(RECOMPRESS_PERCENT);
        if !is_nearly_full || self.ram.young_bytes() <= self.percent_of_limit(YOUNG_PERCENT) {
            return 0;
        }
        let mut delta = Delta::default();
        let pages = self.ram.recompress(&mut delta);
        self.ram.apply(delta);
        pages
    }

    /// As `Chore::Maintain`.
    fn maintain(&self, queue: QueueId) -> bool {
        // One writeback at a time: the exactness of wb rests on it.
        let Ok(mut work) = self.writeback.try_lock() else { return false };
        let file = self.count_other_ram();
        let reads = FileReads {
            all: file.read_ios_total,
            awaited: file.awaited_reads_total,
            awaited_us: file.read_us_total,
        };
        let now = Instant::now();
        self.ram.settle(reads, now);
        // First, so that little has to be moved out.
        let recompresses = self.ram.recompresses();
        let recompressed = if recompresses { self.recompress() } else { 0 };
        let held = self.ram.ram_bytes();
        let was_draining = self.draining.load(Ordering::Relaxed);
        let marks = if recompresses { RECOMPRESSING } else { MARKS };
        let is_above = held > self.percent_of_limit(if was_draining { marks.low } else { marks.high });
        let draining = is_above && self.write_back(queue, Leaving::All, &mut work);
        self.draining.store(draining, Ordering::Relaxed);
        let more_waits = !is_above && self.write_back_raw(queue, &mut work, now);
        if !draining && !more_waits {
            self.let_go_of_buffer(&mut work);
        }
        let untidy = self.ram.housekeep(Chore::Maintain { queue });
        let punching = self.file.housekeep(Chore::Maintain { queue });
        draining || more_waits || recompressed > 0 || untidy || punching
    }

    /// As `Chore::GiveRam`.
    fn give_ram(&self, queue: QueueId, bytes: u64) -> bool {
        let mut work = lock(&self.writeback);
        // Buffers and queues come and go with each try.
        let before = self.ram.pool_bytes();
        let enough = self.ram.ram_bytes().saturating_sub(bytes);
        while self.ram.ram_bytes() > enough && self.write_back(queue, Leaving::All, &mut work) {}
        self.let_go_of_buffer(&mut work);
        self.ram.give_spare_back();
        self.ram.pool_bytes() < before
    }
}

impl Backing for TierBacking {
    fn links(&self) -> Vec<Link> {
        self.file.links()
    }

    fn pool_file(&self) -> Option<BorrowedFd<'_>> {
        self.ram.pool_file()
    }

    /// Not synchronous: a read may have to wait for the file.
    fn properties(&self) -> Properties {
        let file = self.file.properties();
        // The file punches holes by itself, and most clusters were never there.
        let discard = false;
        Properties {
            slots: self.ram.properties().slots,
            synchronous: false,
            // A slot does not say where its page is in the file, whether the disk turns or not.
            rotational: false,
            discard,
            in_rows: false,
            at_rest: file.at_rest,
        }
    }

    fn write(&self, queue: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        let mut delta = Delta::default();
        let base = results.len();
        let mut entries = Vec::with_capacity(pages.len());
        let mut to_file = Vec::new();
        let mut may_wait_pages = (WAITING_BATCHES * self.batch_pages()).saturating_sub(self.ram.raw_pages());
        self.count_other_ram();
        with_scratch(|codec, _| {
            for (index, write) in pages.iter().enumerate() {
                let slot = write.slot.0;
                assert!(slot != 0, "slot 0 is never used");
                let stored = self.store(write, codec, &mut may_wait_pages, &mut delta);
                let old = match &stored {
                    Ok((old, new)) => {
                        entries.extend(RamBacking::entry(slot, *new));
                        *old
                    }
                    Err(raw) => {
                        let old = self.ram.clear(slot);
                        self.ram.retire(old, &mut delta);
                        to_file.push((index, *raw));
                        old
                    }
                };
                // A writeback may have brought it there just before the exchange.
                old.place().into_iter().for_each(|place| self.leave(place));
                results.push(stored.map(drop).map_err(|_| BackingError::Full));
            }
        });
        if !to_file.is_empty() {
            // Pages without a free place stay `Full`.
            let places = self.places.take(to_file.len());
            let writes: Vec<PageWrite<'_>> = to_file
                .iter()
                .zip(&places)
                .map(|((index, _), place)| PageWrite { slot: *place, page: pages[*index].page })
                .collect();
            let mut written = Vec::with_capacity(writes.len());
            self.file.write_pages(queue, &writes, &mut written);
            self.look_at_room(&written);
            for (((index, raw), place), result) in to_file.into_iter().zip(places).zip(written) {
                if result.is_ok() {
                    let in_file = |old: Location| Some(old.in_file(place, raw));
                    let switched = self.ram.update(pages[index].slot.0, in_file);
                    let (old, _) = switched.expect("the change always wants a new location");
                    assert!(old.kind() == LocationKind::Empty, "a slot was used by two at once");
                    delta.file_pages += 1;
                } else {
                    self.leave(place);
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
        let mut any_spared = false;
        with_scratch(|codec, scratch| {
            for (index, (slot, page)) in request.slots.iter().zip(&mut request.buf).enumerate() {
                let (loaded, spared) = self.ram.load_any(slot.0, page, codec, scratch);
                any_spared |= spared;
                results.push(match loaded {
                    Loaded::Here => Ok(()),
                    Loaded::Failed(error) => Err(error),
                    Loaded::InFile(place) => {
                        wanted.push((index, place));
                        Ok(())
                    }
                });
            }
        });
        // The file would have had one request for all of them, or a few.
        self.ram.note_read(any_spared);
        if wanted.is_empty() {
            let ReadRequest { token, slots, buf, .. } = request;
            return ReadStart::Done(ReadDone { token, slots, buf, results });
        }
        self.file.read_some(queue, request, &wanted, results)
    }

    fn read_now(&self, slot: SlotIndex, page: &mut Page) -> Option<Result<(), BackingError>> {
        self.ram.read_now(slot, page)
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
            old.place().into_iter().for_each(|place| self.leave(place));
        }
        self.ram.apply(delta);
    }

    fn usage(&self) -> Usage {
        let file = self.count_other_ram();
        let ram = self.ram.usage();
        Usage {
            table_bytes: ram.table_bytes + file.table_bytes + self.places.ram_bytes(),
            file_bytes: file.file_bytes,
            written_back_pages_total: self.written_back_pages.load(Ordering::Relaxed),
            write_ios_total: file.write_ios_total,
            file_written_pages_total: file.file_written_pages_total,
            read_ios_total: file.read_ios_total,
            awaited_reads_total: file.awaited_reads_total,
            read_us_total: file.read_us_total,
            ..ram
        }
    }

    /// Only of what does not compress, not even by zstd where that is worth while. Another page that has come
    /// from the file has been used, and belongs into the pool when it leaves again: kept, it would come from
    /// the disk each time (SQLite took twice as long so).
    fn keeps(&self, slot: SlotIndex, page: Option<&Page>) -> bool {
        let location = self.ram.location(slot.0);
        let stays = match location.raw_in_file() {
            Raw::No => false,
            // Once it is known what the page holds, it is compared, whatever pays by now.
            Raw::ByPool => page.is_some() || !self.ram.is_likely_shorter(),
            Raw::ByBoth => true,
        };
        let place = location.place().filter(|_| stays);
        place.is_some_and(|place| page.is_none() || self.file.keeps(place, page))
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
                self.places.release();
                self.ram.housekeep(chore) | self.file.housekeep(chore)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::file::IoEngine;
    use crate::ram::tests::{Moment, NEXT};

    fn file_config() -> FileConfig {
        FileConfig { io: IoEngine::Sync, ..FileConfig::unnamed_in(std::env::temp_dir(), 1 << 20) }
    }

    fn ram_config() -> RamConfig {
        RamConfig { slots: 100, ram_limit_bytes: 1 << 20, algorithm: Algorithm::Lz4, shared: false }
    }

    fn write(tier: &TierBacking, slot: u32, page: &Page) {
        let mut results = Vec::new();
        tier.write(QueueId(0), &[PageWrite { slot: SlotIndex(slot), page }], &mut results);
        assert_eq!(results, [Ok(())]);
    }

    fn read(tier: &TierBacking, slot: u32) -> Result<[u8; PAGE_SIZE], BackingError> {
        let (slots, buf) = (vec![SlotIndex(slot)], page_buf(1));
        let request = ReadRequest { token: 0, slots, buf, is_awaited: true };
        let ReadStart::Done(mut done) = tier.read(QueueId(0), request) else { panic!("it is synchronous") };
        done.results.remove(0).map(|()| done.buf[0].0)
    }

    /// Bytes of `letters`, in no order.
    fn page_of(letters: &[u8], seed: u32) -> Page {
        let mut page = Page::ZERO;
        let mut state = seed;
        for byte in &mut page.0 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = letters[(state >> 24) as usize % letters.len()];
        }
        page
    }

    /// A page that LZ4 does not compress stays in the file, unless zstd would, if that has become worth
    /// while.
    #[test]
    fn what_zstd_does_not_make_shorter_is_kept_in_the_file() {
        let tier = TierBacking::new(ram_config(), file_config()).unwrap();
        let all: Vec<u8> = (0..=255).collect();
        let (text, noise) = (page_of(&all[32..80], 1), page_of(&all, 1));
        // The waiting pages go to the file.
        let write_both = || {
            write(&tier, 1, &text);
            write(&tier, 2, &noise);
            assert!(tier.write_back(QueueId(0), Leaving::All, &mut Writeback::default()));
        };
        write_both();
        assert_eq!((tier.usage().file_pages, tier.usage().recompressed_pages_total), (2, 0));
        let kept = || [1, 2].map(|slot| tier.keeps(SlotIndex(slot), None));
        assert_eq!(kept(), [true, true]);
        // A thousand reads of a slow disk, one after another.
        let start = Instant::now();
        let reads = |all, awaited_us| FileReads { all, awaited: all, awaited_us };
        tier.ram.settle(reads(100, 100_000), start);
        tier.ram.settle(reads(1100, 1_100_000), start + Duration::from_secs(1));
        assert_eq!(kept(), [false, false], "each is to be tried once");
        write(&tier, 1, &text);
        write(&tier, 2, &noise);
        let usage = tier.usage();
        assert_eq!((usage.zstd_pages, usage.ram_pages, usage.recompressed_pages_total), (1, 2, 2));
        // Pages that do not compress leave before older ones.
        let (first, _) = tier.ram.dequeue(Leaving::All, 1, |_| true);
        assert!(first.len() == 1 && first[0].slot() == 2);
        tier.ram.enqueue(&first);
        assert!(tier.write_back(QueueId(0), Leaving::All, &mut Writeback::default()));
        assert_eq!(tier.ram.location(2).raw_in_file(), Raw::ByBoth, "zstd was tried");
        assert_eq!(tier.usage().written_back_pages_total, 1, "the text, for want of room");
    }

    /// Pages that do not compress go to the file by batches, and at once where two of them wait already.
    #[test]
    fn what_does_not_compress_waits_for_a_batch() {
        let tier = TierBacking::new(ram_config(), file_config()).unwrap();
        let noise: Vec<u8> = (0..=255).collect();
        let in_ram_and_file = || (tier.usage().incompressible_pages, tier.usage().file_pages);
        let maintain = || while tier.housekeep(Chore::Maintain { queue: QueueId(0) }) {};
        let batch = WRITEBACK_PAGES_MIN as u32;
        let write = |slot: u32| write(&tier, slot, &page_of(&noise, slot));
        (1..batch).for_each(write);
        maintain();
        assert_eq!(in_ram_and_file(), (15, 0));
        write(batch);
        maintain();
        assert_eq!((in_ram_and_file(), tier.usage().write_ios_total), ((0, 16), 1));
        (20..60).for_each(write);
        assert_eq!((in_ram_and_file(), tier.usage().write_ios_total), ((32, 24), 9), "one by one");
        maintain();
        assert_eq!(in_ram_and_file(), (0, 56));
        // A page that is discarded or stored again meanwhile does not count.
        (1..batch).for_each(write);
        tier.discard(&[SlotIndex(3)]);
        super::tests::write(&tier, 4, &Page::ZERO);
        write(17);
        maintain();
        assert_eq!(in_ram_and_file(), (14, 41));
        for slot in (1..3).chain(5..=17).chain(20..60).filter(|slot| *slot != batch) {
            assert!(read(&tier, slot) == Ok(page_of(&noise, slot).0), "slot {slot}");
        }
    }

    /// The file takes nothing: what waits stays in the pool, and the next is refused.
    #[test]
    fn what_waits_stays_while_the_file_is_full() {
        let full = FileConfig { free_floor_bytes: u64::MAX, ..file_config() };
        let tier = TierBacking::new(ram_config(), full).unwrap();
        let noise: Vec<u8> = (0..=255).collect();
        for slot in 1..=2 * WRITEBACK_PAGES_MIN as u32 + 1 {
            let mut results = Vec::new();
            let page = page_of(&noise, slot);
            let slot = SlotIndex(slot);
            tier.write(QueueId(0), &[PageWrite { slot, page: &page }], &mut results);
            let waits = u64::from(slot.0) <= 2 * WRITEBACK_PAGES_MIN;
            assert_eq!(results, [waits.then_some(()).ok_or(BackingError::Full)], "slot {}", slot.0);
            assert!(!tier.housekeep(Chore::Maintain { queue: QueueId(0) }), "there is no end");
            let mut again = Page::ZERO;
            let at_hand = tier.read_now(slot, &mut again);
            assert_eq!(at_hand, Some(if waits { Ok(()) } else { Err(BackingError::Empty) }));
            assert!(!waits || again.0 == page.0);
        }
        assert_eq!((tier.usage().incompressible_pages, tier.usage().file_pages), (32, 0));
        assert!(tier.writeback_errors_total() > 0);
    }

    /// A page is compressed once more while another is stored to its slot, or it is discarded: what was made
    /// of it is let go.
    #[test]
    fn what_is_stored_meanwhile_stays() {
        let tier =
            Arc::new(TierBacking::with_recompress(ram_config(), file_config(), Recompress::On).unwrap());
        let read = |tier: &TierBacking| read(tier, 7);
        // A page that zstd makes much shorter than LZ4 does.
        let page = |seed: u32| page_of(b"abcd", seed);
        let recompress = |tier: &TierBacking| {
            let mut delta = Delta::default();
            assert_eq!(tier.ram.recompress(&mut delta), 1);
            tier.ram.apply(delta);
        };
        let (first, second) = (page(1), page(2));
        write(&tier, 7, &first);
        let young = tier.usage();
        let (held, other) = (tier.clone(), second);
        let overtake = move || std::thread::spawn(move || write(&held, 7, &other)).join().unwrap();
        NEXT.set(Some((Moment::Recompressed, Box::new(overtake))));
        recompress(&tier);
        assert!(NEXT.take().is_none());
        assert!(read(&tier) == Ok(second.0), "the later page is there");
        assert_eq!((tier.usage().ram_pages, tier.usage().zstd_pages), (1, 0));
        let held = tier.clone();
        NEXT.set(Some((Moment::Recompressed, Box::new(move || held.discard(&[SlotIndex(7)])))));
        recompress(&tier);
        assert!(NEXT.take().is_none());
        assert_eq!(read(&tier), Err(BackingError::Empty));
        assert_eq!((tier.usage().ram_pages, tier.usage().ram_compressed_bytes), (0, 0));
        // Left alone it is shorter, and goes to the file from there.
        write(&tier, 7, &first);
        recompress(&tier);
        let old = tier.usage();
        assert_eq!((old.ram_pages, old.zstd_pages), (1, 1));
        assert!(old.ram_compressed_bytes * 4 < young.ram_compressed_bytes * 3, "{old:?}, {young:?}");
        assert!(read(&tier) == Ok(first.0));
        assert!(tier.write_back(QueueId(0), Leaving::All, &mut Writeback::default()));
        assert_eq!((tier.usage().zstd_pages, tier.usage().file_pages), (0, 1));
        tier.discard(&[SlotIndex(7)]);
        assert_eq!(tier.ram.young_bytes(), 0);
        while tier.housekeep(Chore::Maintain { queue: QueueId(0) }) {}
        tier.ram.give_spare_back();
        assert_eq!(tier.ram.pool.ram_bytes(), 0, "each block was freed");
    }

    /// A page goes to the file while another is stored to its slot: its place is given back. Also of one that
    /// does not compress, and waits.
    #[test]
    fn a_place_is_given_back_when_its_page_is_stored_again() {
        let mut compresses = Page::ZERO;
        // Not filled with one word.
        compresses.0[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let noise = page_of(&(0..=255).collect::<Vec<u8>>(), 1);
        for (mut page, written_back_pages) in [(compresses, 1), (noise, 0)] {
            let tier = Arc::new(TierBacking::new(ram_config(), file_config()).unwrap());
            write(&tier, 7, &page);
            let other = tier.clone();
            let overtake = move || {
                let write_back =
                    move || other.write_back(QueueId(0), Leaving::All, &mut Writeback::default());
                assert!(std::thread::spawn(write_back).join().unwrap());
            };
            NEXT.set(Some((Moment::ObjectTaken, Box::new(overtake))));
            page.0[0] = 9;
            write(&tier, 7, &page);
            assert!(NEXT.take().is_none(), "the writer was overtaken");
            let usage = tier.usage();
            let moved = usage.written_back_pages_total;
            assert_eq!((usage.ram_pages, usage.file_pages, moved), (1, 0, written_back_pages));
            assert_eq!(tier.places.used_places(), 0);
            let mut read = Page::ZERO;
            assert!(tier.read_now(SlotIndex(7), &mut read) == Some(Ok(())) && read.0 == page.0);
        }
    }
}
