//! Swap in compressed RAM (kernel: zram, zswap's pool): a table of locations over a [`Pool`].
//!
//! ```text
//!   slot ──▶ location ─┬─ empty
//!                      ├─ same-filled: the eight bytes that the page repeats, packed   no memory beside
//!                      ├─ pool: handle and length ──▶ block, or the raw page if the length is 4096
//!                      └─ file: the page is at a place in the file (only under tier.rs)
//! ```
//!
//! *A location is one 64-bit word, and says everything about its slot*, so whoever exchanges it owns what the
//! old one named and frees it. Nothing is ever freed before the location has changed. Reads take no lock:
//! they copy, then look at the location again (the protocol is in `pool.rs`).
//!
//! The word's bits are drawn in `location.rs`.
//!
//! The order in which pages leave, where there is a file to go to, and the second compression before that are
//! in `recompress.rs`.
//!
//! RAM counted: the pool with its slack and tables, and the touched part of this table (8 bytes a slot,
//! counted in pages of 512 slots). The limit is checked when the pool wants a new chunk. Tables are taken
//! without asking: up to 4 KiB for each cluster that a batch is the first to use, which the next chunk then
//! has to do without.
//!
//! What it does not do: checksums. RAM that flips bits breaks the rest of the process just as well; a block
//! that does not decode is reported as [`BackingError::Checksum`].

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};

use memspill_engine::backing::{
    AtRest, Backing, BackingError, Chore, PageWrite, Properties, QueueId, ReadDone, ReadRequest, ReadStart,
    Usage,
};
use memspill_engine::sync::lock;
use memspill_engine::units::{PAGE_SIZE, Page, SlotIndex};

use crate::arena::{PartOf, ZeroTable};
use crate::compress::{self, Algorithm, Codec, Encoded, with_scratch};
use crate::dense;
use crate::fifo::{Entry, Fifo};
use crate::location::{Form, Location, LocationKind, Raw, pack_same, unpack_same};
use crate::order::{Leaving, Order, Second};
use crate::pool::{Pool, rooms_bytes};
use crate::pool_file::{PoolFile, TABLE_AT};

/// Objects moved by one step of compaction: some 50 µs.
const COMPACT_OBJECTS: usize = 128;
/// The most slots of a device: SlotIndex is 32 bits, and the table must be addressable.
pub const SLOTS_MAX: u32 = 1 << 31;

/// What a [`RamBacking`] is made of.
#[derive(Clone, Debug)]
pub struct RamConfig {
    /// Slots that can be addressed, slot 0 included; at most 2^31. Unused slots cost address space only.
    pub slots: u32,
    /// RAM that may be held, in bytes, tables included. Can be changed later by `Chore::LimitRam`.
    pub ram_limit_bytes: u64,
    pub algorithm: Algorithm,
    /// In a file that others may read, if there can be one (`pool_file.rs`).
    pub shared: bool,
}

/// What `RamBacking::store` takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Accepts {
    /// Up to the limit.
    All,
    /// Up to the limit, and no page that would take as much room as it leaves.
    WhatCompresses,
}

/// Changes of the counters, gathered over a batch and applied once: threads do not fight for them page by
/// page.
#[derive(Default)]
pub(crate) struct Delta {
    compressed_bytes: i64,
    old_bytes: i64,
    zstd_pages: i64,
    wordwise_pages: i64,
    ram_pages: i64,
    same_filled_pages: i64,
    incompressible_pages: i64,
    pub(crate) file_pages: i64,
}

impl Delta {
    /// Count a location that came (`sign` 1) or went (-1).
    pub(crate) fn count(&mut self, location: Location, sign: i64) {
        match location.kind() {
            LocationKind::Empty => {}
            LocationKind::SameFilled => self.same_filled_pages += sign,
            LocationKind::File => self.file_pages += sign,
            LocationKind::Pool => {
                let (_, len_bytes) = location.object();
                self.ram_pages += sign;
                self.compressed_bytes += sign * len_bytes as i64;
                // A page that does not compress has no turn.
                let is_young = !location.is_old() && location.raw_in_pool() == Raw::No;
                self.old_bytes += sign * len_bytes as i64 * i64::from(!is_young);
                self.zstd_pages += sign * i64::from(location.form().is_zstd());
                self.wordwise_pages += sign * i64::from(location.form() == Form::Wordwise);
                self.incompressible_pages += sign * i64::from(len_bytes == PAGE_SIZE);
            }
        }
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) compressed_bytes: AtomicU64,
    pub(crate) old_bytes: AtomicU64,
    zstd_pages: AtomicU64,
    wordwise_pages: AtomicU64,
    ram_pages: AtomicU64,
    same_filled_pages: AtomicU64,
    incompressible_pages: AtomicU64,
    file_pages: AtomicU64,
}

/// Where a page was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Loaded {
    Here,
    InFile(SlotIndex),
    Failed(BackingError),
}

/// See the module's header.
pub struct RamBacking {
    slots: u32,
    algorithm: Algorithm,
    table: ZeroTable,
    pub(crate) pool: Pool,
    limit_bytes: AtomicU64,
    pub(crate) counters: Counters,
    /// Present where there is a file to move the oldest pages to.
    pub(crate) order: Option<Order>,
    fifo_bytes: AtomicU64,
    /// RAM held elsewhere that counts against the same limit.
    other_bytes: AtomicU64,
    file: Option<Arc<PoolFile>>,
}

impl RamBacking {
    /// An empty device. Takes address space for the table (8 bytes a slot); panics if even that is refused.
    pub fn new(config: RamConfig) -> RamBacking {
        RamBacking::build(config, None).expect("no address space for the location table")
    }

    /// As `new`; no address space is an error. For a run that goes on without the device.
    pub fn open(config: RamConfig) -> io::Result<RamBacking> {
        RamBacking::build(config, None)
    }

    /// As `new`; with an order of the pages where there is a writeback.
    pub(crate) fn build(config: RamConfig, order: Option<Order>) -> io::Result<RamBacking> {
        assert!(config.slots <= SLOTS_MAX, "a device has at most {SLOTS_MAX} slots, not {}", config.slots);
        // Without one pages come as they do elsewhere.
        let file = config
            .shared
            .then(|| PoolFile::new(config.algorithm, &rooms_bytes()).ok())
            .flatten()
            .map(Arc::new);
        let part = file.as_ref().map(|file| PartOf { file: file.fd(), offset: TABLE_AT });
        Ok(RamBacking {
            slots: config.slots,
            algorithm: config.algorithm,
            table: ZeroTable::of(part, config.slots as usize * 8)?,
            pool: Pool::new(file.clone()),
            file,
            limit_bytes: AtomicU64::new(config.ram_limit_bytes),
            counters: Counters::default(),
            order,
            fifo_bytes: AtomicU64::new(0),
            other_bytes: AtomicU64::new(0),
        })
    }

    pub(crate) fn pool_file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|file| file.for_readers())
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of RAM held now.
    pub(crate) fn ram_bytes(&self) -> u64 {
        self.pool_bytes() + self.ram_bytes_beside_pool()
    }

    /// The same of the pool alone.
    pub(crate) fn pool_bytes(&self) -> u64 {
        self.pool.ram_bytes()
    }

    pub(crate) fn ram_bytes_beside_pool(&self) -> u64 {
        self.table.ram_bytes()
            + self.fifo_bytes.load(Ordering::Relaxed)
            + self.other_bytes.load(Ordering::Relaxed)
    }

    /// Count RAM held elsewhere against this limit.
    pub(crate) fn set_other_bytes(&self, bytes: u64) {
        self.other_bytes.store(bytes, Ordering::Relaxed);
    }

    fn check(&self, slot: u32) {
        assert!(slot < self.slots, "slot {slot} is beyond the device's {} slots", self.slots);
    }

    pub(crate) fn location(&self, slot: u32) -> Location {
        self.check(slot);
        Location(self.table.word(slot as usize).load(Ordering::Acquire))
    }

    /// Exchange a slot's location for what `change` makes of it; `None` leaves it. Returns the old
    /// location and the new.
    pub(crate) fn update(
        &self,
        slot: u32,
        mut change: impl FnMut(Location) -> Option<Location>,
    ) -> Option<(Location, Location)> {
        self.check(slot);
        let atomic = self.table.word_to_write(slot as usize);
        let mut old = Location(atomic.load(Ordering::Acquire));
        loop {
            let new = change(old)?;
            match atomic.compare_exchange_weak(old.0, new.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((old, new)),
                Err(seen) => old = Location(seen),
            }
        }
    }

    /// Free what a replaced location named in RAM, and count it out. Only for whoever did the exchange; a
    /// place in the file is his to give back.
    pub(crate) fn retire(&self, old: Location, delta: &mut Delta) {
        delta.count(old, -1);
        if old.kind() == LocationKind::Pool {
            let (handle, len_bytes) = old.object();
            self.pool.free(handle, len_bytes);
        }
    }

    /// Put a page into RAM; returns what the slot's location was, and what it is now. Or else what does not
    /// compress it, as far as is known; the slot keeps what it had.
    pub(crate) fn store(
        &self,
        slot: u32,
        page: &Page,
        accepts: Accepts,
        codec: &mut Codec,
        delta: &mut Delta,
    ) -> Result<(Location, Location), Raw> {
        let room_bytes = self.room_bytes();
        let in_pool = |bytes: &[u8]| {
            let handle = self.pool.store(slot, bytes, room_bytes).map_err(|_| Raw::No)?;
            Ok((LocationKind::Pool, Location::pool_payload(handle, bytes.len(), 0)))
        };
        let mut form = self.order.as_ref().map_or(Form::Plain, |order| {
            order.dense.sample(page, codec);
            order.dense.form()
        });
        let mut encoded = codec.encode(form.algorithm(self.algorithm), page);
        if form.is_dense() && !dense::keeps(form, &encoded) {
            // Such as numbers of few kinds, or text: LZ4 may do better.
            form = Form::Plain;
            encoded = codec.encode(self.algorithm, page);
        }
        let (kind, payload) = match encoded {
            Encoded::Same(value) => {
                form = Form::Plain;
                match pack_same(value) {
                    Some(payload) => (LocationKind::SameFilled, payload),
                    None => in_pool(codec.encode_block(self.algorithm, page))?,
                }
            }
            Encoded::Block(block) => in_pool(block)?,
            Encoded::Raw if accepts == Accepts::WhatCompresses => {
                form = Form::Spared;
                match self.order.as_ref().map_or(Second::NotTried, |order| order.as_zstd(page, codec)) {
                    Second::Block(block) => in_pool(block)?,
                    Second::Longer => return Err(Raw::ByBoth),
                    Second::NotTried => return Err(Raw::ByPool),
                }
            }
            Encoded::Raw => in_pool(&page.0)?,
        };
        Ok(self.put(slot, delta, |generation| Location::new(kind, generation, payload).with_form(form)))
    }

    /// Put a page into RAM as it is: one that `store` did not take because it does not compress. Returns what
    /// the slot's location was, and is; or nothing where there is no room, and the slot keeps what it had.
    pub(crate) fn store_raw(
        &self,
        slot: u32,
        page: &Page,
        raw: Raw,
        delta: &mut Delta,
    ) -> Option<(Location, Location)> {
        let handle = self.pool.store(slot, &page.0, self.room_bytes()).ok()?;
        let payload = Location::pool_payload(handle, PAGE_SIZE, 0);
        Some(self.put(slot, delta, |generation| {
            let location = Location::new(LocationKind::Pool, generation, payload);
            if raw == Raw::ByBoth { location.aged() } else { location }
        }))
    }

    /// What the pool may take in all: everything else comes off the limit first.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.limit_bytes().saturating_sub(self.ram_bytes_beside_pool())
    }

    /// Give a slot the location that is made for the generation; what it had is freed. Returns both.
    fn put(&self, slot: u32, delta: &mut Delta, new: impl Fn(u64) -> Location) -> (Location, Location) {
        let next = |old: Location| Some(new(old.generation() + 1));
        let (old, new) = self.update(slot, next).expect("the change always wants a new location");
        delta.count(new, 1);
        self.retire(old, delta);
        (old, new)
    }

    /// Pages that take a whole page of the pool each.
    pub(crate) fn raw_pages(&self) -> u64 {
        self.counters.incompressible_pages.load(Ordering::Relaxed)
    }

    /// Make a slot empty; returns what it was. Not counted, nothing freed: see `retire`.
    pub(crate) fn clear(&self, slot: u32) -> Location {
        if self.location(slot).kind() == LocationKind::Empty {
            return self.location(slot);
        }
        self.update(slot, |old| Some(Location::new(LocationKind::Empty, old.generation(), 0)))
            .expect("the change always wants a new location")
            .0
    }

    /// A page was read for a fault. Was it compressed so for the sake of the file?
    pub(crate) fn note_read(&self, spared: bool) {
        if let Some(order) = self.order.as_ref().filter(|_| spared) {
            order.worth.note_read();
        }
    }

    /// Get a slot's page, if it is in RAM. `scratch` is overwritten.
    pub(crate) fn load(&self, slot: u32, page: &mut Page, codec: &mut Codec, scratch: &mut Page) -> Loaded {
        self.load_any(slot, page, codec, scratch).0
    }

    /// As `load`. And is it a block of zstd for the sake of the file?
    pub(crate) fn load_any(
        &self,
        slot: u32,
        page: &mut Page,
        codec: &mut Codec,
        scratch: &mut Page,
    ) -> (Loaded, bool) {
        self.check(slot);
        let atomic = self.table.word(slot as usize);
        let mut location = Location(atomic.load(Ordering::Acquire));
        loop {
            if let Some(place) = location.place() {
                return (Loaded::InFile(place), false);
            }
            match location.kind() {
                LocationKind::Empty => return (Loaded::Failed(BackingError::Empty), false),
                LocationKind::File => unreachable!("it has a place"),
                LocationKind::SameFilled => {
                    compress::fill(page, unpack_same(location.payload()));
                    return (Loaded::Here, false);
                }
                LocationKind::Pool => {}
            }
            let (handle, len_bytes) = location.object();
            #[cfg(test)]
            tests::between(tests::Moment::LocationRead);
            let raw = len_bytes == PAGE_SIZE;
            let copy = if raw { &mut page.0 } else { &mut scratch.0 };
            self.pool.copy_out(handle, &mut copy[..len_bytes]);
            fence(Ordering::Acquire);
            let again = Location(atomic.load(Ordering::Relaxed));
            // The start or end of a writeback does not move the object.
            if again.staying() == location.staying() {
                let algorithm = location.form().algorithm(self.algorithm);
                let good = raw || codec.decompress(algorithm, &scratch.0[..len_bytes], page);
                let loaded = if good { Loaded::Here } else { Loaded::Failed(BackingError::Checksum) };
                return (loaded, location.form() == Form::Spared);
            }
            location = Location(atomic.load(Ordering::Acquire));
        }
    }

    pub(crate) fn apply(&self, delta: Delta) {
        let counters = &self.counters;
        for (counter, change) in [
            (&counters.compressed_bytes, delta.compressed_bytes),
            (&counters.old_bytes, delta.old_bytes),
            (&counters.zstd_pages, delta.zstd_pages),
            (&counters.wordwise_pages, delta.wordwise_pages),
            (&counters.ram_pages, delta.ram_pages),
            (&counters.same_filled_pages, delta.same_filled_pages),
            (&counters.incompressible_pages, delta.incompressible_pages),
            (&counters.file_pages, delta.file_pages),
        ] {
            if change != 0 {
                counter.fetch_add(change as u64, Ordering::Relaxed);
            }
        }
    }

    /// Remember the order of pages that came into the pool, or were to leave and have stayed.
    pub(crate) fn enqueue(&self, entries: &[Entry]) {
        let Some(order) = &self.order else { return };
        let (mut young, mut old, mut raw) = (Vec::with_capacity(entries.len()), Vec::new(), Vec::new());
        for entry in entries {
            let location = self.location(entry.slot());
            match location.raw_in_pool() {
                Raw::No if location.is_old() => old.push(*entry),
                Raw::No => young.push(*entry),
                Raw::ByPool | Raw::ByBoth => raw.push(*entry),
            }
        }
        self.push(&order.young, &young);
        self.push(&order.old, &old);
        self.push(&order.raw, &raw);
    }

    pub(crate) fn push(&self, fifo: &Mutex<Fifo>, entries: &[Entry]) {
        if entries.is_empty() {
            return;
        }
        let mut fifo = lock(fifo);
        let before = fifo.ram_bytes();
        let live_pages = self.counters.ram_pages.load(Ordering::Relaxed);
        fifo.push(entries, live_pages, |entry| self.is_entry_live(entry));
        self.fifo_bytes.fetch_add(fifo.ram_bytes().wrapping_sub(before), Ordering::Relaxed);
    }

    pub(crate) fn is_entry_live(&self, entry: Entry) -> bool {
        let location = self.location(entry.slot());
        location.kind() == LocationKind::Pool && location.generation() == entry.generation()
    }

    /// Takes the oldest leaving entries for which `want` says yes, at most `max`; it is asked for each popped
    /// one in turn. And whether there may be more: a call looks at no more than 4096 entries, so as not to
    /// hold up the writers. The raw come first, then the old.
    pub(crate) fn dequeue(
        &self,
        leaving: Leaving,
        max: usize,
        mut want: impl FnMut(Entry) -> bool,
    ) -> (Vec<Entry>, bool) {
        let mut taken = Vec::with_capacity(max);
        let Some(order) = &self.order else { return (taken, false) };
        let fifos = [&order.raw, &order.old, &order.young];
        for fifo in if leaving == Leaving::Raw { &fifos[..1] } else { &fifos } {
            let (entries, more) = self.dequeue_from(fifo, max - taken.len(), &mut want);
            taken.extend(entries);
            if more {
                return (taken, true);
            }
        }
        (taken, false)
    }

    pub(crate) fn dequeue_from(
        &self,
        fifo: &Mutex<Fifo>,
        max: usize,
        mut want: impl FnMut(Entry) -> bool,
    ) -> (Vec<Entry>, bool) {
        let mut taken = Vec::with_capacity(max);
        let mut fifo = lock(fifo);
        let before = fifo.ram_bytes();
        let mut more = true;
        for _ in 0..4096 {
            if taken.len() == max {
                break;
            }
            let Some(entry) = fifo.pop() else {
                more = false;
                break;
            };
            if want(entry) {
                taken.push(entry);
            }
        }
        self.fifo_bytes.fetch_add(fifo.ram_bytes().wrapping_sub(before), Ordering::Relaxed);
        (taken, more)
    }

    /// Gather sparse chunks, give spare memory back. True while there is more to do.
    pub(crate) fn tidy(&self) -> bool {
        let moved = self.pool.compact(COMPACT_OBJECTS, |owner, from, to, copy| {
            let location = self.location(owner);
            if location.kind() != LocationKind::Pool || location.is_leaving() || location.object().0 != from {
                return false;
            }
            copy();
            #[cfg(test)]
            tests::between(tests::Moment::ObjectCopied);
            self.update(owner, |now| (now == location).then(|| location.moved(to))).is_some()
        });
        if moved == 0 {
            self.pool.trim_if_idle();
        }
        moved > 0
    }

    /// Give all spare memory back at once.
    pub(crate) fn give_spare_back(&self) {
        self.pool.trim();
    }

    /// No slot holds anything, and none will.
    fn close(&self) {
        if let Some(order) = &self.order {
            for fifo in [&order.young, &order.old, &order.raw] {
                *lock(fifo) = Fifo::default();
            }
            self.fifo_bytes.store(0, Ordering::Relaxed);
        }
        self.pool.trim();
        self.table.release();
    }

    pub(crate) fn entry(slot: u32, location: Location) -> Option<Entry> {
        (location.kind() == LocationKind::Pool).then(|| Entry::new(slot, location.generation()))
    }
}

impl Backing for RamBacking {
    fn pool_file(&self) -> Option<BorrowedFd<'_>> {
        RamBacking::pool_file(self)
    }

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

    fn write(&self, _queue: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        let mut delta = Delta::default();
        with_scratch(|codec, _| {
            for write in pages {
                let slot = write.slot.0;
                let stored = self.store(slot, write.page, Accepts::All, codec, &mut delta);
                if stored.is_err() {
                    // A failed write leaves the slot as if it had been discarded.
                    let old = self.clear(slot);
                    self.retire(old, &mut delta);
                }
                results.push(stored.map(drop).map_err(|_| BackingError::Full));
            }
        });
        self.apply(delta);
    }

    fn read(&self, _queue: QueueId, request: ReadRequest) -> ReadStart {
        let ReadRequest { token, slots, mut buf, .. } = request;
        assert!(buf.len() >= slots.len(), "{} pages of buffer for {} slots", buf.len(), slots.len());
        let mut results = Vec::with_capacity(slots.len());
        with_scratch(|codec, scratch| {
            for (slot, page) in slots.iter().zip(&mut buf) {
                results.push(match self.load(slot.0, page, codec, scratch) {
                    Loaded::Here => Ok(()),
                    Loaded::Failed(error) => Err(error),
                    Loaded::InFile(_) => unreachable!("RAM alone has no file"),
                });
            }
        });
        ReadStart::Done(ReadDone { token, slots, buf, results })
    }

    fn read_now(&self, slot: SlotIndex, page: &mut Page) -> Option<Result<(), BackingError>> {
        with_scratch(|codec, scratch| {
            let (loaded, spared) = self.load_any(slot.0, page, codec, scratch);
            self.note_read(spared);
            match loaded {
                Loaded::Here => Some(Ok(())),
                Loaded::Failed(error) => Some(Err(error)),
                Loaded::InFile(_) => None,
            }
        })
    }

    fn discard(&self, slots: &[SlotIndex]) {
        let mut delta = Delta::default();
        for slot in slots {
            let old = self.clear(slot.0);
            self.retire(old, &mut delta);
        }
        self.apply(delta);
    }

    fn usage(&self) -> Usage {
        let counters = &self.counters;
        Usage {
            ram_bytes: self.ram_bytes(),
            ram_file_bytes: match self.file {
                Some(_) => self.table.ram_bytes() + self.pool.page_bytes(),
                None => 0,
            },
            ram_compressed_bytes: counters.compressed_bytes.load(Ordering::Relaxed),
            table_bytes: self.table.ram_bytes()
                + self.fifo_bytes.load(Ordering::Relaxed)
                + self.pool.table_bytes(),
            ram_pages: counters.ram_pages.load(Ordering::Relaxed),
            same_filled_pages: counters.same_filled_pages.load(Ordering::Relaxed),
            incompressible_pages: counters.incompressible_pages.load(Ordering::Relaxed),
            zstd_pages: counters.zstd_pages.load(Ordering::Relaxed),
            wordwise_pages: counters.wordwise_pages.load(Ordering::Relaxed),
            recompressed_pages_total: self.order.as_ref().map_or(0, |order| order.worth.tried_total()),
            zstd_reads_total: self.order.as_ref().map_or(0, |order| order.worth.reads_total()),
            dense_per_mille: self.order.as_ref().and_then(|order| order.dense.per_mille_if_gains()),
            file_pages: counters.file_pages.load(Ordering::Relaxed),
            ..Usage::default()
        }
    }

    fn housekeep(&self, chore: Chore) -> bool {
        match chore {
            Chore::Maintain { .. } => return self.tidy(),
            Chore::LimitRam { bytes } => self.limit_bytes.store(bytes, Ordering::Relaxed),
            Chore::Close => self.close(),
            Chore::GiveRam { .. } | Chore::DiscardCluster(_) | Chore::EndRun => {}
        }
        false
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    /// Moments at which a test lets another thread overtake.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Moment {
        /// A reader has read the location, and copies the object next.
        LocationRead,
        /// A writer has a place for its object, and copies it there next.
        ObjectTaken,
        /// Compaction has copied an object, and exchanges its location next.
        ObjectCopied,
        /// A shorter block lies in the pool, and the location is exchanged next.
        Recompressed,
    }

    pub(crate) type Act = (Moment, Box<dyn FnOnce()>);

    thread_local! {
        pub(crate) static NEXT: RefCell<Option<Act>> = const { RefCell::new(None) };
    }

    /// Runs what a test wants to happen at this moment of this thread, once.
    pub(crate) fn between(moment: Moment) {
        if let Some((_, act)) = NEXT.with_borrow_mut(|next| next.take_if(|(at, _)| *at == moment)) {
            act();
        }
    }

    fn page_of(seed: u64, noisy_words: usize) -> Page {
        let mut page = Page::ZERO;
        for (at, word) in page.0.as_chunks_mut::<8>().0.iter_mut().enumerate().take(noisy_words) {
            *word = (seed + at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).to_ne_bytes();
        }
        page
    }

    fn unlimited(slots: u32, algorithm: Algorithm) -> RamBacking {
        RamBacking::new(RamConfig { slots, ram_limit_bytes: u64::MAX, algorithm, shared: false })
    }

    fn store(ram: &RamBacking, slot: u32, page: &Page) -> Location {
        let mut delta = Delta::default();
        ram.store(slot, page, Accepts::All, &mut Codec::default(), &mut delta).unwrap().1
    }

    fn load(ram: &RamBacking, slot: u32) -> Option<Box<Page>> {
        let (mut page, mut scratch) = (Box::new(Page::ZERO), Page::ZERO);
        (ram.load(slot, &mut page, &mut Codec::default(), &mut scratch) == Loaded::Here).then_some(page)
    }

    /// A writer has its place and not yet its bytes there, when compaction comes by; and it names the place
    /// in its location before compaction goes on. The bytes that compaction would copy are not the object.
    #[test]
    fn compaction_leaves_alone_what_is_being_stored() {
        const SLOTS: u32 = 400;
        let noisy_words = 200;
        let ram = Arc::new(unlimited(SLOTS + 2, Algorithm::Lz4));
        // Several chunks of a class, one of them sparse: the one in which the next object will lie.
        for slot in 1..=SLOTS {
            store(&ram, slot, &page_of(u64::from(slot) << 20, noisy_words));
        }
        let sparse = ram.location(1).object().0.to_bits() >> 8;
        let chunk_of = |slot: u32| ram.location(slot).object().0.to_bits() >> 8;
        let in_sparse: Vec<u32> = (1..=SLOTS).filter(|slot| chunk_of(*slot) == sparse).collect();
        let others: Vec<u32> = (1..=SLOTS).filter(|slot| chunk_of(*slot) != sparse).step_by(2).collect();
        let discard = |slots: &[u32]| slots.iter().for_each(|slot| ram.discard(&[SlotIndex(*slot)]));
        discard(&others);
        // Last, so that this chunk, which was full, is the next to give a place.
        discard(&in_sparse[..in_sparse.len() - 1]);

        let mine = page_of(5, noisy_words);
        let (taken, was_taken) = channel();
        let (go_on, may_go_on) = channel();
        let (named, was_named) = channel();
        let writer = {
            let (ram, mine) = (ram.clone(), mine);
            std::thread::spawn(move || {
                let wait = Box::new(move || {
                    taken.send(()).unwrap();
                    may_go_on.recv().unwrap();
                });
                NEXT.set(Some((Moment::ObjectTaken, wait)));
                store(&ram, SLOTS + 1, &mine);
                named.send(()).unwrap();
            })
        };
        was_taken.recv().unwrap();
        // Each object that compaction has copied may be the one: the writer goes on then, and ends, before
        // the exchange.
        let copied = go_on.clone();
        NEXT.set(Some((
            Moment::ObjectCopied,
            Box::new(move || {
                copied.send(()).unwrap();
                was_named.recv().unwrap();
            }),
        )));
        assert!(ram.tidy(), "the test needs a chunk that is worth emptying");
        // If it copied none, the writer still waits.
        let _ = go_on.send(());
        writer.join().unwrap();
        NEXT.set(None);
        while ram.tidy() {}
        assert!(
            load(&ram, SLOTS + 1).is_some_and(|page| page.0 == mine.0),
            "the page that was being stored is lost"
        );
        for slot in (1..=SLOTS).filter(|slot| ram.location(*slot).kind() != LocationKind::Empty) {
            let page = page_of(u64::from(slot) << 20, noisy_words);
            assert!(load(&ram, slot).is_some_and(|found| found.0 == page.0), "page {slot} is lost");
        }
    }

    /// The object moves and its place is used for another page, at the worst moment: the reader must notice,
    /// for compressed and for raw pages.
    #[test]
    fn overtaken_reader_starts_again() {
        for (noisy_words, algorithm) in
            [(200, Algorithm::Lz4), (200, Algorithm::Zstd), (512, Algorithm::Zstd)]
        {
            let ram = Arc::new(unlimited(100, algorithm));
            let (mine, other) = (page_of(1, noisy_words), page_of(7777, noisy_words));
            let location = store(&ram, 5, &mine);
            let (old, len_bytes) = location.object();
            assert_eq!(len_bytes == PAGE_SIZE, noisy_words == 512);
            let held = ram.clone();
            let overtake = move || {
                let mut bytes = vec![0; len_bytes];
                held.pool.copy_out(old, &mut bytes);
                let new = held.pool.store(5, &bytes, u64::MAX).unwrap();
                held.update(5, |location| Some(location.moved(new)));
                held.pool.free(old, len_bytes);
                let reuse = store(&held, 6, &other);
                assert_eq!(reuse.object().0, old, "the test needs the place to be used again");
            };
            NEXT.set(Some((Moment::LocationRead, Box::new(overtake))));
            assert!(load(&ram, 5).is_some_and(|page| page.0 == mine.0), "another slot's page was read");
            assert!(NEXT.take().is_none(), "the reader was overtaken");
        }
    }

    /// RAM that flips bits: what cannot be a page any more is an error, never a page.
    #[test]
    fn a_broken_block_is_an_error() {
        for algorithm in [Algorithm::Lz4, Algorithm::Zstd, Algorithm::Wordwise] {
            let ram = unlimited(100, algorithm);
            let (_, len_bytes) = store(&ram, 5, &page_of(1, 200)).object();
            let zeros = ram.pool.store(5, &vec![0; len_bytes], u64::MAX).unwrap();
            ram.update(5, |location| Some(location.moved(zeros)));
            let (mut page, mut scratch) = (Page::ZERO, Page::ZERO);
            let loaded = ram.load(5, &mut page, &mut Codec::default(), &mut scratch);
            assert_eq!(loaded, Loaded::Failed(BackingError::Checksum), "{algorithm:?}");
        }
    }
}
