//! An address space and a swap device made of maps, for tests of the whole engine.
//!
//! ```text
//!   target ── touch, map, unmap, mremap, fork ──▶ MockMemory ◀── take, put, put_zero, poison, wake ── engine
//!                                                     │ truth: what each mapped page must read as
//!   engine ── write, read, discard ──▶ MockBacking    └ waiters: who sleeps in a fault
//! ```
//!
//! A page is one stamp, repeated: 8 bytes to keep, and a page whose bytes are not all of one stamp is a torn page. Stamps
//! are never used twice, so a page that is in the wrong place, or older than it may be, reads as the wrong stamp. The
//! truth changes under the same lock as the pages, so that it may be checked at every touch, by any thread.
//!
//! The mock refuses what the kernel refuses: fills and moves while an event is unread, moves from the read of an event to
//! the end of its processing, fills over a page that is present. It checks what its side of the contract forbids: the
//! backing panics at a read of a slot that holds nothing, and at a write or discard of a slot that is being read.

use memspill_engine::backing::{
    Backing, BackingError, PageWrite, Properties, QueueId, ReadDone, ReadRequest, ReadStart, Usage,
};
use memspill_engine::memory::{Fill, Memory, Run, Stop, Take};
use memspill_engine::sync::{Arc, Mutex, MutexGuard};
use memspill_engine::units::{ClusterIndex, PAGE_SIZE, Page, SlotIndex, Vpn};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

const WORDS: usize = PAGE_SIZE / 8;

pub fn stamped(stamp: u64) -> Page {
    let mut page = Page::ZERO;
    page.0.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
    page
}

pub fn stamp_of(page: &Page) -> u64 {
    let word = |i: usize| u64::from_le_bytes(page.0[i * 8..i * 8 + 8].try_into().expect("8 bytes"));
    let stamp = word(0);
    assert!((1..WORDS).all(|i| word(i) == stamp), "a torn page: stamp {stamp} and others");
    stamp
}

/// Numbers that are the same on every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

// ---- the address space ------------------------------------------------------------------------------------------

/// A change of the address space, as a userfaultfd tells it.
pub enum Event {
    Unmap { from: u64, to: u64 },
    /// The pages are dropped after the event was read.
    Remove { from: u64, to: u64 },
    Remap { from: u64, to: u64, pages: u64 },
    Fork { child: Arc<MockMemory> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Stamp(u64),
    Poisoned,
}

/// What an access met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    Done,
    /// The caller waits now, until a fill or a wake.
    Missing,
    /// SIGBUS, and rightly so: the page's only copy could not be read.
    Lost,
    /// SIGSEGV, or a range that is just being dropped.
    NotMapped,
}

#[derive(Default)]
struct MemoryInner {
    present: BTreeMap<u64, Content>,
    /// Every mapped page, and what it must read as.
    truth: BTreeMap<u64, u64>,
    events: VecDeque<Event>,
    /// From the read of an event to the end of its processing: no page may be taken.
    abort: bool,
    dead: bool,
    /// A range between the read of its `Remove` and the drop: reads as old or as zero.
    removing: Option<(u64, u64)>,
    /// (page, thread) that sleep in a fault.
    waiters: BTreeSet<(u64, u32)>,
    /// What the next takes of a page come to.
    refusals: HashMap<u64, Take>,
    /// The next fill stops with this after so many pages.
    stop_fill: Option<(usize, Stop)>,
}

type TakeHook = Box<dyn FnOnce(&[Run]) + Send>;

pub struct MockMemory {
    inner: Mutex<MemoryInner>,
    /// Runs after the pages of the next batch were taken, before the engine learns of it.
    pub after_take: Mutex<Option<TakeHook>>,
    /// Held by whoever takes a batch or processes events.
    pub batch: Mutex<()>,
    lost: Arc<Lost>,
}

impl MockMemory {
    pub fn new(lost: Arc<Lost>) -> MockMemory {
        MockMemory {
            inner: Mutex::default(),
            after_take: Mutex::default(),
            batch: Mutex::default(),
            lost,
        }
    }

    fn lock(&self) -> MutexGuard<'_, MemoryInner> {
        self.inner.lock().expect("mock memory")
    }

    // -- what the target does --

    /// Access a page: check what it reads as, and store `write` if given.
    pub fn touch(&self, who: u32, page: u64, write: Option<u64>) -> Touch {
        let mut inner = self.lock();
        if inner.removing.is_some_and(|(from, to)| (from..to).contains(&page)) {
            return Touch::NotMapped;
        }
        let Some(truth) = inner.truth.get(&page).copied() else { return Touch::NotMapped };
        match inner.present.get(&page) {
            Some(Content::Stamp(stamp)) => {
                assert_eq!(*stamp, truth, "page {page:#x} reads as another one");
                if let Some(stamp) = write {
                    inner.present.insert(page, Content::Stamp(stamp));
                    inner.truth.insert(page, stamp);
                }
                Touch::Done
            }
            Some(Content::Poisoned) => {
                assert!(self.lost.has(truth), "page {page:#x} is poisoned, but no read of it has failed");
                Touch::Lost
            }
            None => {
                inner.waiters.insert((page, who));
                Touch::Missing
            }
        }
    }

    /// Map what is not mapped yet of the range, as zero.
    pub fn map(&self, from: u64, to: u64) {
        let mut inner = self.lock();
        (from..to).for_each(|page| {
            inner.truth.entry(page).or_insert(0);
        });
    }

    /// Pages that were there before anybody managed them.
    pub fn map_present(&self, from: u64, to: u64, mut stamp: impl FnMut() -> u64) {
        let mut inner = self.lock();
        for page in from..to {
            if let std::collections::btree_map::Entry::Vacant(truth) = inner.truth.entry(page) {
                let stamp = stamp();
                truth.insert(stamp);
                inner.present.insert(page, Content::Stamp(stamp));
            }
        }
    }

    pub fn unmap(&self, from: u64, to: u64) {
        let mut inner = self.lock();
        inner.drop_range(from, to);
        inner.events.push_back(Event::Unmap { from, to });
    }

    /// MADV_DONTNEED. The pages go in `end_remove`, after the event was read.
    pub fn remove(&self, from: u64, to: u64) {
        self.lock().events.push_back(Event::Remove { from, to });
    }

    pub fn end_remove(&self) {
        let mut inner = self.lock();
        let Some((from, to)) = inner.removing.take() else { return };
        for page in from..to {
            inner.present.remove(&page);
            if let Some(truth) = inner.truth.get_mut(&page) {
                *truth = 0;
            }
        }
    }

    /// mremap to a fixed place. `early`, `late`: the events of the unmapped target and source ranges come too.
    pub fn remap(&self, from: u64, to: u64, pages: u64, early: bool, late: bool) {
        let mut inner = self.lock();
        inner.drop_range(to, to + pages);
        for i in 0..pages {
            if let Some(truth) = inner.truth.remove(&(from + i)) {
                inner.truth.insert(to + i, truth);
            }
            if let Some(content) = inner.present.remove(&(from + i)) {
                inner.present.insert(to + i, content);
            }
        }
        if early {
            inner.events.push_back(Event::Unmap { from: to, to: to + pages });
        }
        inner.events.push_back(Event::Remap { from, to, pages });
        if late {
            inner.events.push_back(Event::Unmap { from, to: from + pages });
        }
    }

    pub fn fork(&self) -> Arc<MockMemory> {
        let mut inner = self.lock();
        let child = MockMemory::new(self.lost.clone());
        *child.lock() = MemoryInner {
            present: inner.present.clone(),
            truth: inner.truth.clone(),
            ..MemoryInner::default()
        };
        let child = Arc::new(child);
        inner.events.push_back(Event::Fork { child: child.clone() });
        child
    }

    /// The kernel drops a page without an event (a lazily freed one): it reads as zero.
    pub fn vanish(&self, page: u64) {
        let mut inner = self.lock();
        if let Some(Content::Stamp(_)) = inner.present.get(&page) {
            inner.present.remove(&page);
            inner.truth.insert(page, 0);
        }
    }

    pub fn exit(&self) {
        let mut inner = self.lock();
        *inner = MemoryInner { dead: true, ..MemoryInner::default() };
    }

    // -- what the pager reads --

    /// Read all events, and refuse to give pages until `end_events` if there is one.
    pub fn read_events(&self) -> Vec<Event> {
        let mut inner = self.lock();
        let events: Vec<Event> = inner.events.drain(..).collect();
        inner.abort |= !events.is_empty();
        for event in &events {
            if let Event::Remove { from, to } = event {
                assert!(inner.removing.is_none(), "the test drops one range at a time");
                inner.removing = Some((*from, *to));
            }
        }
        events
    }
    pub fn end_events(&self) {
        self.lock().abort = false;
    }
    pub fn has_events(&self) -> bool {
        !self.lock().events.is_empty()
    }
    pub fn has_remove(&self) -> bool {
        let inner = self.lock();
        inner.removing.is_some() || inner.events.iter().any(|e| matches!(e, Event::Remove { .. }))
    }

    // -- what the test arranges and looks at --

    pub fn refuse(&self, page: u64, take: Take) {
        self.lock().refusals.insert(page, take);
    }
    pub fn stop_next_fill(&self, after: usize, stop: Stop) {
        self.lock().stop_fill = Some((after, stop));
    }
    pub fn behave(&self) {
        let mut inner = self.lock();
        inner.refusals.clear();
        inner.stop_fill = None;
    }
    pub fn waits(&self, page: u64, who: u32) -> bool {
        self.lock().waiters.contains(&(page, who))
    }
    pub fn waiters(&self) -> Vec<(u64, u32)> {
        self.lock().waiters.iter().copied().collect()
    }
    pub fn mapped(&self) -> Vec<u64> {
        self.lock().truth.keys().copied().collect()
    }
    /// Ranges of pages that a scan of the page table would find.
    pub fn present_ranges(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let inner = self.lock();
        let is_page = |(_, content): &(&u64, &Content)| **content != Content::Poisoned;
        inner.present.range(from..to).filter(is_page).map(|(page, _)| (*page, *page + 1)).collect()
    }
}

impl MemoryInner {
    fn drop_range(&mut self, from: u64, to: u64) {
        for page in from..to {
            self.truth.remove(&page);
            self.present.remove(&page);
        }
    }

    fn wake(&mut self, page: u64) {
        let woken: Vec<(u64, u32)> = self.waiters.range((page, 0)..=(page, u32::MAX)).copied().collect();
        woken.iter().for_each(|w| {
            self.waiters.remove(w);
        });
    }

    fn take(&mut self, page: u64) -> Result<u64, Take> {
        if self.dead {
            return Err(Take::Gone);
        }
        if self.abort || !self.events.is_empty() {
            return Err(Take::Retry);
        }
        if !self.truth.contains_key(&page) {
            return Err(Take::Hole);
        }
        match self.present.get(&page).copied() {
            None => Err(Take::Hole),
            Some(Content::Poisoned) => Err(Take::Unevictable),
            Some(Content::Stamp(stamp)) => {
                if let Some(refusal) = self.refusals.remove(&page) {
                    return Err(refusal);
                }
                self.present.remove(&page);
                Ok(stamp)
            }
        }
    }

    fn fill(&mut self, from: u64, stamps: impl ExactSizeIterator<Item = u64>) -> Fill {
        let limit = self.stop_fill.take();
        let pages = stamps.len();
        for (i, stamp) in stamps.enumerate() {
            let page = from + i as u64;
            let stop = match limit {
                _ if self.dead => Some(Stop::Gone),
                _ if !self.events.is_empty() => Some(Stop::Again),
                Some((after, stop)) if i == after => Some(stop),
                _ if !self.truth.contains_key(&page) => Some(Stop::NotMapped),
                _ if self.present.contains_key(&page) => Some(Stop::Exists),
                _ => None,
            };
            if let Some(stop) = stop {
                return Fill { pages: i, stop };
            }
            self.present.insert(page, Content::Stamp(stamp));
            self.wake(page);
        }
        Fill { pages, stop: Stop::Done }
    }
}

impl Memory for MockMemory {
    fn take(&self, runs: &[Run], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let mut moved = 0;
        for page in runs.iter().flat_map(|r| r.vpn.0..r.vpn.0 + u64::from(r.pages)) {
            // One lock hold for each page: the target runs meanwhile.
            let taken = self.lock().take(page);
            outcome.push(match taken {
                Ok(stamp) => {
                    frames[moved] = stamped(stamp);
                    moved += 1;
                    Take::Moved
                }
                Err(refusal) => refusal,
            });
        }
        let hook = self.after_take.lock().expect("hook").take();
        if let Some(hook) = hook {
            hook(runs);
        }
    }

    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        self.lock().fill(vpn.0, pages.iter().map(stamp_of))
    }

    fn put_zero(&self, vpn: Vpn, pages: usize, _write: bool) -> Fill {
        self.lock().fill(vpn.0, std::iter::repeat_n(0, pages))
    }

    fn poison(&self, vpn: Vpn) {
        let mut inner = self.lock();
        let possible = !inner.dead && inner.events.is_empty() && inner.truth.contains_key(&vpn.0);
        if possible && !inner.present.contains_key(&vpn.0) {
            inner.present.insert(vpn.0, Content::Poisoned);
        }
    }

    fn wake(&self, vpn: Vpn, pages: usize) {
        let mut inner = self.lock();
        (vpn.0..vpn.0 + pages as u64).for_each(|page| inner.wake(page));
    }
}

// ---- the swap device --------------------------------------------------------------------------------------------

/// Stamps whose read has failed: pages that may be poisoned.
#[derive(Default)]
pub struct Lost(Mutex<HashSet<u64>>);

impl Lost {
    pub fn has(&self, stamp: u64) -> bool {
        self.0.lock().expect("lost").contains(&stamp)
    }
    fn add(&self, stamp: u64) {
        self.0.lock().expect("lost").insert(stamp);
    }
}

#[derive(Default)]
struct BackingInner {
    slots: HashMap<u32, u64>,
    /// Slots that are being read, by how many.
    reading: HashMap<u32, usize>,
    started: HashMap<u32, VecDeque<ReadRequest>>,
    pending: bool,
    fail_reads: usize,
    short_reads: usize,
    fail_writes: Option<(BackingError, usize)>,
    written: usize,
    discarding: Option<ClusterIndex>,
    closed: bool,
}

pub struct MockBacking {
    inner: Mutex<BackingInner>,
    slots: u32,
    synchronous: bool,
    discard: bool,
    lost: Arc<Lost>,
}

impl MockBacking {
    pub fn new(slots: u32, synchronous: bool, lost: Arc<Lost>) -> MockBacking {
        MockBacking { inner: Mutex::default(), slots, synchronous, discard: false, lost }
    }
    /// The same with `discard=pages`.
    pub fn discarding(self, discard: bool) -> MockBacking {
        MockBacking { discard, ..self }
    }

    fn lock(&self) -> MutexGuard<'_, BackingInner> {
        self.inner.lock().expect("mock backing")
    }

    pub fn is_empty(&self) -> bool {
        let inner = self.lock();
        inner.slots.is_empty() && inner.reading.is_empty()
    }
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }
    /// Reads do not end before they are reaped.
    pub fn set_pending(&self, pending: bool) {
        self.lock().pending = pending;
    }
    pub fn fail_reads(&self, pages: usize) {
        self.lock().fail_reads = pages;
    }
    /// There is no memory for reads: it passes.
    pub fn run_short(&self, pages: usize) {
        self.lock().short_reads = pages;
    }
    pub fn fail_writes(&self, error: BackingError, pages: usize) {
        self.lock().fail_writes = Some((error, pages));
    }
    /// Pages written so far.
    pub fn written(&self) -> usize {
        self.lock().written
    }
    pub fn behave(&self) {
        let mut inner = self.lock();
        inner.fail_reads = 0;
        inner.short_reads = 0;
        inner.fail_writes = None;
    }
    /// End the read that has waited longest on the queue.
    pub fn reap_one(&self, queue: QueueId) -> Option<ReadDone> {
        let mut inner = self.lock();
        let request = inner.started.get_mut(&queue.0)?.pop_front()?;
        Some(inner.finish(&self.lost, request))
    }
}

impl BackingInner {
    /// The slots are looked at when the read ends: had one been given away meanwhile, it would show.
    fn finish(&mut self, lost: &Lost, mut request: ReadRequest) -> ReadDone {
        let mut results = Vec::new();
        for (i, slot) in request.slots.iter().enumerate() {
            let readers = self.reading.get_mut(&slot.0).expect("a read that was started");
            *readers -= 1;
            if *readers == 0 {
                self.reading.remove(&slot.0);
            }
            let stamp = *self.slots.get(&slot.0).unwrap_or_else(|| panic!("{slot:?} is read, and holds nothing"));
            if self.short_reads > 0 {
                self.short_reads -= 1;
                request.buf[i] = stamped(0xDEAD_BEEF_DEAD_BEEF);
                results.push(Err(BackingError::Short(12)));
                continue;
            }
            if self.fail_reads == 0 {
                request.buf[i] = stamped(stamp);
                results.push(Ok(()));
                continue;
            }
            self.fail_reads -= 1;
            lost.add(stamp);
            // What a failed read leaves behind must never be seen.
            request.buf[i] = stamped(0xDEAD_BEEF_DEAD_BEEF);
            results.push(Err(BackingError::Io(5)));
        }
        ReadDone { token: request.token, slots: request.slots, buf: request.buf, results }
    }
}

impl Backing for MockBacking {
    fn properties(&self) -> Properties {
        Properties { slots: self.slots, synchronous: self.synchronous, rotational: false, discard: self.discard }
    }

    fn write(&self, _: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        // A lock hold for each page: faults on the batch come in between.
        for write in pages {
            let mut inner = self.lock();
            let slot = write.slot.0;
            assert!(!inner.closed, "slot {slot} is written, and the device is off");
            assert!(!inner.reading.contains_key(&slot), "slot {slot} is written while it is being read");
            let cluster = SlotIndex(slot).cluster();
            assert!(inner.discarding != Some(cluster), "slot {slot} is written while its cluster is being discarded");
            match &mut inner.fail_writes {
                Some((error, left)) if *left > 0 => {
                    *left -= 1;
                    results.push(Err(error.clone()));
                    inner.slots.remove(&slot);
                }
                _ => {
                    inner.slots.insert(slot, stamp_of(write.page));
                    inner.written += 1;
                    results.push(Ok(()));
                }
            }
        }
    }

    fn read(&self, queue: QueueId, request: ReadRequest) -> ReadStart {
        let mut inner = self.lock();
        for slot in &request.slots {
            assert!(inner.slots.contains_key(&slot.0), "{slot:?} is read, and holds nothing");
            *inner.reading.entry(slot.0).or_default() += 1;
        }
        if !inner.pending {
            return ReadStart::Done(inner.finish(&self.lost, request));
        }
        inner.started.entry(queue.0).or_default().push_back(request);
        ReadStart::Pending
    }

    fn reap(&self, queue: QueueId, done: &mut Vec<ReadDone>) {
        while let Some(read) = self.reap_one(queue) {
            done.push(read);
        }
    }

    fn poll_fd(&self, _: QueueId) -> Option<i32> {
        None
    }

    fn discard(&self, slots: &[SlotIndex]) {
        let mut inner = self.lock();
        for slot in slots {
            assert!(!inner.closed, "{slot:?} is discarded, and the device is off");
            assert!(!inner.reading.contains_key(&slot.0), "{slot:?} is discarded while it is being read");
            inner.slots.remove(&slot.0);
        }
    }

    fn discard_cluster(&self, cluster: ClusterIndex) {
        let mut inner = self.lock();
        assert!(!inner.closed, "{cluster:?} is discarded, and the device is off");
        assert_eq!(inner.discarding, None, "two clusters are discarded at once");
        let holds = inner.slots.keys().chain(inner.reading.keys()).find(|slot| SlotIndex(**slot).cluster() == cluster);
        assert_eq!(holds, None, "{cluster:?} is discarded while a slot of it holds something");
        inner.discarding = Some(cluster);
        drop(inner);
        // Others come in between.
        std::thread::yield_now();
        self.lock().discarding = None;
    }

    fn maintain(&self, _: QueueId) -> bool {
        false
    }
    fn set_ram_limit_bytes(&self, _: u64) {}

    fn keeps(&self, slot: SlotIndex) -> bool {
        !self.synchronous && self.lock().slots.contains_key(&slot.0)
    }

    fn still_holds(&self, slot: SlotIndex, page: &Page) -> bool {
        self.lock().slots.get(&slot.0) == Some(&stamp_of(page))
    }

    fn close(&self) {
        let mut inner = self.lock();
        assert!(inner.slots.is_empty() && inner.reading.is_empty(), "a device that holds pages is closed");
        inner.closed = true;
    }
    fn usage(&self) -> Usage {
        Usage::default()
    }
}
