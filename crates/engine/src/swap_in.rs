//! A page comes in: the whole story, top to bottom.
//!
//! ```text
//!  fault ─▶ look at the word ─┬─ RESIDENT   answered already: wake (or zero, if the page vanished without an event)
//!                             ├─ EVICTING   mark WANTED: the batch serves it when the page's bytes are here
//!                             ├─ FILLING    somebody brings it: his COPY wakes us
//!                             ├─ POISONED   SIGBUS
//!                             ├─ NONE       claim a run of never-touched pages ──────────────────┐
//!                             └─ SWAPPED    claim the page and its stream's window               │
//!                                           swap cache: HIT, or read the slots: MISS             │
//!                                           (device at RAM speed: here and now; else Pending)    │
//!                                                     ▼                                          ▼
//!  install: gate ─ drop what was cancelled ─ COPY in runs ─ words RESIDENT ─ LRU ─ free the entries
//! ```
//!
//! Claiming sets the word to FILLING, and FILLING has one owner: that is the only synchronisation between faults on one
//! page, for all three outcomes. The entry's reference is held until the page is installed, so its slot can be neither
//! freed nor rewritten meanwhile (no ABA). A failed read poisons the page; it never becomes data. Where the machine was only
//! short of something, nothing is lost: the page is given back as it was, and its next fault reads it again.
//!
//! Invariant: every fault ends in exactly one of: a fill, a wake, a mark on somebody else's work, or an `Outcome` that
//! obliges the caller to come back.

use crate::backing::{BackingError, QueueId, ReadDone, ReadRequest, ReadStart};
use crate::engine::Engine;
use crate::folio::AUTO_ORDER_MIN;
use crate::memory::{Fill, Stop};
use crate::readahead::Window;
use crate::reclaim::lru::Record;
use crate::space::{CHUNK_PAGES, Chunk, Space, index};
use crate::stats::add;
use crate::sync::{Arc, Ordering, lock};
use crate::tuning::{FolioSize, Readahead};
use crate::units::{CpuId, FrameId, Order, Page, PageBuf, SlotIndex, Vpn, page_buf};
use crate::word::{CANCELLED, HAS_ENTRY, State, SwapEntry, WANTED, Word};
use std::ops::Range;

/// Rounds of the LRU that a favoured page stays, beyond those that it has earned.
const FAVOUR_HEAT: u64 = 3;

/// Most pages brought by one fault, unless it is a folio of a size that was asked for.
pub const WINDOW_MAX: usize = 32;

/// A fault, as a front end hands it in.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub vpn: Vpn,
    pub write: bool,
    /// Served even over the limit: the fault of somebody who makes room.
    pub urgent: bool,
    /// The page stays for some more rounds of the LRU.
    pub favoured: bool,
}

/// What the caller has to do next.
pub enum Outcome {
    Done,
    /// A read is in flight on the caller's queue; `Engine::read_done` finishes it.
    Pending,
    /// No room under the limit: call `fault` again when reclaim has freed some.
    NoRoom,
    /// The device could not be read for want of something that will be there again. Whoever waits has been woken and will
    /// fault again: wait a moment first, or it is a loop that only takes CPU time.
    Pause,
    /// The address space is changing: call `Engine::install` again after its events were read.
    Again(FillJob),
    /// The address space is gone.
    Gone,
}

/// Pages that this thread has claimed and is bringing in. All are of one chunk, ascending.
pub struct FillJob {
    space: Arc<Space>,
    write: bool,
    favoured: bool,
    /// The page that faulted.
    fault: Vpn,
    /// The page that faulted, and those that came along.
    pages: Vec<Claim>,
    /// Page i of the buffer holds the bytes of `pages[i]`; empty for a zero fill.
    buf: PageBuf,
}

#[derive(Clone, Copy)]
struct Claim {
    vpn: Vpn,
    /// None: zero fill.
    entry: Option<SwapEntry>,
    read: ReadEnd,
}

/// What has become of a claimed page's read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadEnd {
    /// There was none yet, or none was needed: a zero fill, or out of the swap cache.
    None,
    /// Its bytes came from its slot, which holds them still (and not out of the swap cache, on their way there).
    Whole,
    /// The slot may be read again.
    Later,
    Lost,
}

impl ReadEnd {
    fn of(result: &Result<(), BackingError>) -> ReadEnd {
        match result {
            Ok(()) => ReadEnd::Whole,
            Err(error) if error.passes() => ReadEnd::Later,
            Err(_) => ReadEnd::Lost,
        }
    }
}

impl Claim {
    /// There are bytes to fill it with.
    fn is_ready(&self) -> bool {
        !matches!(self.read, ReadEnd::Later | ReadEnd::Lost)
    }

    /// Where a page that is swapped out lies.
    fn device(&self) -> u8 {
        self.entry.expect("a swapped page has an entry").device
    }
}

fn slots_of(claims: &[Claim]) -> Vec<SlotIndex> {
    claims.iter().filter_map(|claim| claim.entry).map(|entry| entry.slot).collect()
}

impl FillJob {
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }
}

/// Buffers that a fault-serving thread keeps. Not only for speed: reads end in another order than they begin, and with
/// buffers that come and go between small allocations the heap of a pager grew by 1 MiB/s, out of the budget.
#[derive(Default)]
pub struct Scratch {
    single: Vec<PageBuf>,
    windows: Vec<PageBuf>,
}

/// Buffers of one page, of `WINDOW_MAX` pages that are kept. The reads in flight at once are as many as threads wait.
const SINGLE_KEPT: usize = 256;
const WINDOWS_KEPT: usize = 8;

impl Scratch {
    fn buffer(&mut self, pages: usize) -> PageBuf {
        let (kept, pages) = match pages {
            1 => (self.single.pop(), 1),
            2..=WINDOW_MAX => (self.windows.pop(), WINDOW_MAX),
            larger => (None, larger),
        };
        kept.unwrap_or_else(|| page_buf(pages))
    }
    /// A larger one than a window's is not worth its memory.
    fn give_back(&mut self, buf: PageBuf) {
        let (kept, most) = match buf.len() {
            1 => (&mut self.single, SINGLE_KEPT),
            WINDOW_MAX => (&mut self.windows, WINDOWS_KEPT),
            _ => return,
        };
        if kept.len() < most {
            kept.push(buf);
        }
    }
}

impl Engine {
    /// A fault on `vpn`: the one entry for every front end.
    pub fn fault(
        &self,
        cpu: CpuId,
        queue: QueueId,
        space: &Arc<Space>,
        fault: Fault,
        scratch: &mut Scratch,
    ) -> Outcome {
        let Fault { vpn, write, favoured, .. } = fault;
        if space.is_dead() {
            space.memory.wake(vpn, 1);
            return Outcome::Gone;
        }
        let chunk = space.chunk_or_new(vpn);
        let mut words = lock(&chunk);
        let word = &mut words[index(vpn)];
        match word.state() {
            State::Resident => {
                drop(words);
                self.fault_on_resident(space, &chunk, vpn)
            }
            State::Evicting => {
                *word = word.with(WANTED);
                Outcome::Done
            }
            State::Filling => Outcome::Done,
            State::Poisoned => {
                drop(words);
                self.fault_on_poisoned(space, &chunk, vpn)
            }
            state @ (State::None | State::Swapped) => {
                let window = self.window(space, vpn, state);
                let folio = self.folio_window(&words[..], vpn, state, window.proven);
                let folio = folio.filter(|block| block.len() as u64 > window.pages);
                let claims = folio
                    .and_then(|block| self.claim_folio(cpu, space, &mut words, vpn, block))
                    .or_else(|| self.claim(cpu, space, &mut words, fault, window, state));
                let Some(pages) = claims else {
                    add(&self.stats.on(cpu).allocstall, 1);
                    return Outcome::NoRoom;
                };
                drop(words);
                let job = FillJob { space: space.clone(), write, favoured, fault: vpn, pages, buf: PageBuf::default() };
                if state == State::None {
                    self.install(cpu, job, scratch)
                } else {
                    self.read_in(cpu, queue, job, scratch)
                }
            }
        }
    }

    /// The page is believed present. Either the message is an old one (the page is there: EEXIST), or it vanished without
    /// an event (a guard region, a lazily freed page) and reads as zero. Under the chunk's lock, so that the page cannot
    /// become a victim between the look and the fill: a zero page put in place of one that was just moved out would be
    /// lost data.
    fn fault_on_resident(&self, space: &Space, chunk: &Chunk, vpn: Vpn) -> Outcome {
        let _pass = space.gate.enter_fill();
        let words = lock(chunk);
        if words[index(vpn)].state() == State::Resident {
            let fill = space.memory.put_zero(vpn, 1, true);
            if fill.stop == Stop::Exists {
                add(&self.stats.rare().fill_exists, 1);
            }
        }
        // Whatever it was: they look again, and come back with a new fault if need be.
        space.memory.wake(vpn, 1);
        Outcome::Done
    }

    /// Its only copy could not be read: SIGBUS. Inside the gate and under the lock, or a mapping that came meanwhile would
    /// get the mark.
    fn fault_on_poisoned(&self, space: &Space, chunk: &Chunk, vpn: Vpn) -> Outcome {
        let _pass = space.gate.enter_fill();
        let words = lock(chunk);
        if words[index(vpn)].state() == State::Poisoned {
            space.memory.poison(vpn);
        }
        space.memory.wake(vpn, 1);
        Outcome::Done
    }

    /// The folio of the page, if folios of one size are asked for, and this one lies in slots in a row; 64 KiB of it until
    /// faults have proven a stream (2 MiB for each page that is wanted would be all that a program gets done).
    fn folio_window(&self, words: &[Word], vpn: Vpn, state: State, proven: bool) -> Option<Range<usize>> {
        let FolioSize::Fixed(order) = self.tuning.folio else { return None };
        if order == Order::ZERO || state != State::Swapped {
            return None;
        }
        let pages = order.pages() as usize;
        let first = index(vpn) & !(pages - 1);
        let block = &words[first..first + pages];
        let SwapEntry { device, slot } = block[0].entry();
        let follows = |(i, word): (usize, &Word)| {
            let expected = SwapEntry { device, slot: SlotIndex(slot.0.wrapping_add(i as u32)) };
            word.state() == State::Swapped && word.entry() == expected
        };
        if !block.iter().enumerate().all(follows) {
            return None;
        }
        let pages = if proven { pages } else { pages.min(AUTO_ORDER_MIN.pages() as usize) };
        let first = index(vpn) & !(pages - 1);
        Some(first..first + pages)
    }

    /// Claim a folio, or that half of it (that quarter, ...) for which there is room. None if there is none for two pages.
    fn claim_folio(
        &self,
        cpu: CpuId,
        space: &Space,
        words: &mut [Word; CHUNK_PAGES as usize],
        vpn: Vpn,
        mut block: Range<usize>,
    ) -> Option<Vec<Claim>> {
        let at = index(vpn);
        let group = space.group(self);
        while !group.try_charge(cpu, block.len() as u64, group.gap_bytes() / 2) {
            let middle = block.start + block.len() / 2;
            block = if at < middle { block.start..middle } else { middle..block.end };
            if block.len() < 2 {
                return None;
            }
        }
        let chunk_first = vpn.0 - at as u64;
        let pages: Vec<Vpn> = block.clone().map(|i| Vpn(chunk_first + i as u64)).collect();
        if self.tuning.folio == FolioSize::Fixed(Order(pages.len().ilog2() as u8)) {
            add(&self.stats.on(cpu).swpin[pages.len().ilog2() as usize], 1);
        }
        lock(&space.streams).brought(Vpn(chunk_first + block.start as u64), block.len() as u64);
        Some(self.mark_claimed(cpu, space, words, &pages, State::Swapped))
    }

    fn window(&self, space: &Space, vpn: Vpn, state: State) -> Window {
        let max = match self.tuning.readahead {
            // A zero fill reads nothing: its runs are not readahead, and all settings have them.
            _ if state == State::None => WINDOW_MAX as u64,
            Readahead::Auto if self.synchronous() => 1,
            Readahead::Auto | Readahead::Always => {
                // By slot or by address without proof: the naturally aligned window around the page.
                let pages = 1u64 << self.tuning.page_cluster.min(5);
                return Window { first: Vpn(vpn.0 & !(pages - 1)), pages, proven: false };
            }
            Readahead::Stream => WINDOW_MAX as u64,
        };
        let mut streams = lock(&space.streams);
        let window = streams.fault(vpn, max);
        let FolioSize::Fixed(order) = self.tuning.folio else { return window };
        if state != State::Swapped || u64::from(order.pages()) <= window.pages {
            return window;
        }
        // Up to the end of its folio, so that the next one is met at its beginning.
        let block = vpn.0 & !(u64::from(order.pages()) - 1);
        let first = window.first.0.max(block);
        let end = (window.first.0 + window.pages).min(block + u64::from(order.pages()));
        if end - first < window.pages {
            streams.brought(Vpn(first), end - first);
        }
        Window { first: Vpn(first), pages: end - first, ..window }
    }

    fn synchronous(&self) -> bool {
        self.devices.iter().filter(|d| !d.is_off()).all(|d| d.backing.properties().synchronous)
    }

    /// Claim the faulting page, and of its window those pages of the same chunk that are in the same state. None if there
    /// is no room even for the page itself. What comes along may not take the last of the room.
    fn claim(
        &self,
        cpu: CpuId,
        space: &Space,
        words: &mut [Word; CHUNK_PAGES as usize],
        fault: Fault,
        window: Window,
        state: State,
    ) -> Option<Vec<Claim>> {
        let vpn = fault.vpn;
        let chunk_first = vpn.0 - index(vpn) as u64;
        let first = window.first.0.max(chunk_first);
        let last = (window.first.0 + window.pages).min(chunk_first + CHUNK_PAGES);
        let mut picked: Vec<Vpn> = (first..last)
            .filter(|p| *p == vpn.0 || words[(p - chunk_first) as usize].state() == state)
            .filter(|p| *p == vpn.0 || state == State::Swapped || !space.is_excluded(Vpn(*p)))
            .map(Vpn)
            .collect();
        let group = space.group(self);
        let reserve_bytes = group.gap_bytes() / 2;
        if picked.len() < 2 || !group.try_charge(cpu, picked.len() as u64, reserve_bytes) {
            if fault.urgent {
                group.force_charge(cpu, 1);
            } else if !group.try_charge(cpu, 1, 0) {
                return None;
            }
            picked = vec![vpn];
        }
        Some(self.mark_claimed(cpu, space, words, &picked, state))
    }

    /// These pages, which are charged, are this thread's now.
    fn mark_claimed(
        &self,
        cpu: CpuId,
        space: &Space,
        words: &mut [Word; CHUNK_PAGES as usize],
        picked: &[Vpn],
        state: State,
    ) -> Vec<Claim> {
        let claims = picked
            .iter()
            .map(|vpn| {
                let word = &mut words[index(*vpn)];
                let entry = (state == State::Swapped).then(|| word.entry());
                *word = word.with_state(State::Filling);
                if entry.is_some() {
                    *word = word.with(HAS_ENTRY);
                }
                Claim { vpn: *vpn, entry, read: ReadEnd::None }
            })
            .collect();
        space.count_resident(picked.len() as i64);
        if state == State::Swapped {
            space.count_swapped(-(picked.len() as i64));
            add(&self.stats.on(cpu).swap_ra, picked.len() as u64 - 1);
        }
        claims
    }

    /// Find the bytes of the claimed pages: in the swap cache, or on their devices.
    fn read_in(&self, cpu: CpuId, queue: QueueId, mut job: FillJob, scratch: &mut Scratch) -> Outcome {
        let mut buf = scratch.buffer(job.pages.len());
        let mut missing: Vec<usize> = Vec::new();
        let mut first = 0;
        for of_device in job.pages.chunk_by(|a, b| a.device() == b.device()) {
            let part = &mut buf[first..first + of_device.len()];
            let absent = self.copy_from_cache(cpu, of_device[0].device(), &slots_of(of_device), part);
            missing.extend(absent.into_iter().map(|i| first + i));
            first += of_device.len();
        }
        add(&self.stats.on(cpu).swap_cache_hit, (job.pages.len() - missing.len()) as u64);
        if missing.is_empty() {
            job.buf = buf;
            return self.install(cpu, job, scratch);
        }
        add(&self.stats.on(cpu).pgmajfault, 1);
        // One request goes to one device, into consecutive pages: if some pages came out of the cache, or the entries are
        // of several devices, bring the faulting page's part now and leave the rest swapped out.
        let whole = missing.len() == job.pages.len() && job.pages.iter().all(|c| c.device() == job.pages[0].device());
        if !whole {
            return self.read_one_by_one(cpu, queue, job, buf, missing, scratch);
        }
        self.start_read(cpu, queue, job, buf, scratch)
    }

    /// Copy what is in the swap cache of these slots of a device, a lock for each cluster; returns the places of the others.
    pub(crate) fn copy_from_cache(
        &self,
        cpu: CpuId,
        device: u8,
        slots: &[SlotIndex],
        pages: &mut [Page],
    ) -> Vec<usize> {
        let device = &self.devices[device as usize];
        let mut hits: Vec<(usize, FrameId)> = Vec::new();
        device.slots.cache_get_many(slots, |place, frame| hits.push((place, frame)));
        if hits.is_empty() {
            return (0..slots.len()).collect();
        }
        let bytes = self.staging.get_many(hits.iter().map(|(_, frame)| *frame));
        for ((place, _), (batch, at)) in hits.iter().zip(&bytes) {
            pages[*place] = batch[*at];
        }
        drop(bytes);
        let pinned: Vec<SlotIndex> = hits.iter().map(|(place, _)| slots[*place]).collect();
        let (mut frames, mut freed) = (Vec::new(), Vec::new());
        device.slots.cache_unpin_many(&pinned, |i, release| {
            frames.extend(release.frame_freed.then_some(hits[i].1));
            freed.extend(release.slot_freed.then_some(pinned[i]));
        });
        if !frames.is_empty() {
            self.staging.free_frames(&frames);
        }
        self.reuse(cpu, device, &freed);
        let mut hit = hits.iter().map(|(place, _)| *place).peekable();
        (0..slots.len()).filter(|place| hit.next_if_eq(place).is_none()).collect()
    }

    /// The pages of a mixed window: what is here is installed together with the page that faulted if that is here too;
    /// the others are read each on its own.
    fn read_one_by_one(
        &self,
        cpu: CpuId,
        queue: QueueId,
        job: FillJob,
        buf: PageBuf,
        missing: Vec<usize>,
        scratch: &mut Scratch,
    ) -> Outcome {
        let mut outcome = Outcome::Done;
        for (i, claim) in job.pages.iter().enumerate() {
            let mut one = scratch.buffer(1);
            let mut part =
                FillJob { space: job.space.clone(), write: job.write, favoured: job.favoured, fault: claim.vpn, pages: vec![*claim], buf: PageBuf::default() };
            let result = if missing.binary_search(&i).is_ok() {
                self.start_read(cpu, queue, part, one, scratch)
            } else {
                one[0] = buf[i];
                part.buf = one;
                self.install(cpu, part, scratch)
            };
            outcome = match (outcome, result) {
                (Outcome::Again(first), Outcome::Again(second)) => {
                    Outcome::Again(FillJob::merge(first, second))
                }
                (again @ Outcome::Again(_), _) | (_, again @ Outcome::Again(_)) => again,
                (Outcome::NoRoom, _) | (_, Outcome::NoRoom) => Outcome::NoRoom,
                (Outcome::Pause, _) => Outcome::Pause,
                (_, other) => other,
            };
        }
        scratch.give_back(buf);
        outcome
    }

    fn start_read(
        &self,
        cpu: CpuId,
        queue: QueueId,
        job: FillJob,
        buf: PageBuf,
        scratch: &mut Scratch,
    ) -> Outcome {
        let slots = slots_of(&job.pages);
        let device = &self.devices[job.pages[0].device() as usize];
        let token = self.reads.start(queue, job);
        match device.backing.read(queue, ReadRequest { token, slots, buf }) {
            ReadStart::Done(done) => self.read_done(cpu, done, scratch),
            ReadStart::Pending => Outcome::Pending,
        }
    }

    /// A read has finished (at once, or reaped from the queue): install what it brought.
    pub fn read_done(&self, cpu: CpuId, done: ReadDone, scratch: &mut Scratch) -> Outcome {
        let mut job = self.reads.finish(&done);
        for (claim, result) in job.pages.iter_mut().zip(&done.results) {
            claim.read = ReadEnd::of(result);
        }
        let ended = |end: ReadEnd| job.pages.iter().filter(|claim| claim.read == end).count() as u64;
        add(&self.stats.on(cpu).pswpin, ended(ReadEnd::Whole));
        add(&self.stats.on(cpu).read_errors, ended(ReadEnd::Lost));
        add(&self.stats.rare().read_again, ended(ReadEnd::Later));
        for error in done.results.iter().filter_map(|result| result.as_ref().err()) {
            self.devices[usize::from(job.pages[0].device())].errors.note_read(error);
        }
        job.buf = done.buf;
        self.install(cpu, job, scratch)
    }

    /// Put claimed pages into their address space. The end of every fault that brings something.
    pub fn install(&self, cpu: CpuId, job: FillJob, scratch: &mut Scratch) -> Outcome {
        let space = job.space.clone();
        let chunk = space.chunk_or_new(job.pages[0].vpn);
        let pass = space.gate.enter_fill();
        let mut end = End::default();
        // Inside the gate no event can cancel a page, so one look is enough for the whole job.
        let cancelled: Vec<bool> = {
            let words = lock(&chunk);
            job.pages.iter().map(|c| claimed(&words, c.vpn).has(CANCELLED)).collect()
        };
        let mut at = 0;
        let mut longest = usize::MAX;
        while at < job.pages.len() && end.stop == Stop::Done {
            let claim = job.pages[at];
            if !cancelled[at] && claim.read == ReadEnd::Later {
                end.returned.push(claim);
                at += 1;
                continue;
            }
            if cancelled[at] || claim.read == ReadEnd::Lost {
                end.dropped.push((claim, cancelled[at]));
                at += 1;
                continue;
            }
            let pages = run_length(&job.pages[at..], &cancelled[at..]).min(longest);
            let fill = self.put(&job, at, pages);
            end.installed.extend_from_slice(&job.pages[at..at + fill.pages]);
            at += fill.pages;
            longest = usize::MAX;
            end.stop = match fill.stop {
                // The run crosses the end of a mapping: shorter, and a lone page without a mapping goes back.
                Stop::NotMapped if pages > 1 => {
                    longest = pages / 2;
                    Stop::Done
                }
                // Behind a hole on the far side of the fault lies something else: not ours to fill.
                Stop::NotMapped if job.pages[at].vpn > job.fault => {
                    end.returned.extend_from_slice(&job.pages[at..]);
                    at = job.pages.len();
                    Stop::Done
                }
                Stop::NotMapped => {
                    end.returned.push(job.pages[at]);
                    at += 1;
                    Stop::Done
                }
                // Present although we thought it was not: the waiters look again; what is there stays, and stays unmanaged.
                // It may be a page of a MADV_DONTNEED whose event we have processed and whose thread has not dropped it
                // yet: moved out now, it would come back with its old bytes.
                Stop::Exists => {
                    add(&self.stats.rare().fill_exists, 1);
                    end.found.push(job.pages[at]);
                    at += 1;
                    Stop::Done
                }
                stop => stop,
            };
        }
        let rest = job.pages[at..].to_vec();
        // Where the fill cannot be done now but may be later, the rest stays claimed; else it goes back.
        if end.stop != Stop::Again {
            end.returned.extend_from_slice(&rest);
        }
        let mut entries = Vec::new();
        {
            let mut words = lock(&chunk);
            self.finish_words(cpu, &space, &mut words, job.favoured, &end, &mut entries);
        }
        for (claim, cancelled) in &end.dropped {
            if !cancelled {
                space.memory.poison(claim.vpn);
            }
        }
        drop(pass);
        self.free_entries(cpu, &entries);
        self.end_of_install(&space, job, at, rest, end, scratch)
    }

    /// COPY (or zero) a run of the job. The last pages of a window at the end of a mapping may have none behind them.
    fn put(&self, job: &FillJob, at: usize, pages: usize) -> Fill {
        let vpn = job.pages[at].vpn;
        if job.pages[at].entry.is_none() {
            add(&self.stats.rare().zero_fill, pages as u64);
            return job.space.memory.put_zero(vpn, pages, job.write);
        }
        job.space.memory.put(vpn, &job.buf[at..at + pages])
    }

    /// The words of a job after its fills: resident, given back, or poisoned.
    fn finish_words(
        &self,
        cpu: CpuId,
        space: &Space,
        words: &mut [Word; CHUNK_PAGES as usize],
        favoured: bool,
        end: &End,
        entries: &mut Vec<SwapEntry>,
    ) {
        let mut records: Vec<Record> = Vec::with_capacity(end.installed.len());
        let refaulted = self.refaulted(cpu, space, &end.installed);
        for (claim, refaulted) in end.installed.iter().zip(refaulted) {
            claimed(words, claim.vpn);
            let favour = if favoured && claim.entry.is_some() { FAVOUR_HEAT } else { 0 };
            let (word, record) = space.fresh_resident(claim.vpn, u64::from(refaulted) + favour);
            let kept = claim.entry.filter(|entry| claim.read == ReadEnd::Whole && self.keeps(*entry));
            words[index(claim.vpn)] = kept.map_or(word, |entry| word.with_kept(entry));
            records.push(record);
            if kept.is_none() {
                entries.extend(claim.entry);
            }
        }
        let mut lru = lock(&space.lru);
        records.into_iter().for_each(|r| lru.push(r));
        drop(lru);
        let mut uncharged = 0;
        for (claim, cancelled) in &end.dropped {
            let lost = !cancelled && claim.read == ReadEnd::Lost;
            let word = if lost { Word::NONE.with_state(State::Poisoned) } else { Word::NONE };
            words[index(claim.vpn)] = self.displaced_or(space, claim.vpn, word);
            entries.extend(claim.entry);
            uncharged += 1;
        }
        for claim in &end.found {
            words[index(claim.vpn)] = self.displaced_or(space, claim.vpn, Word::NONE);
            entries.extend(claim.entry);
            uncharged += 1;
        }
        for claim in &end.returned {
            let cancelled = claimed(words, claim.vpn).has(CANCELLED);
            words[index(claim.vpn)] = match claim.entry {
                Some(entry) if !cancelled => {
                    space.count_swapped(1);
                    Word::swapped(entry)
                }
                entry => {
                    entries.extend(entry);
                    self.displaced_or(space, claim.vpn, Word::NONE)
                }
            };
            uncharged += 1;
        }
        space.count_resident(-uncharged);
        space.group(self).uncharge(cpu, uncharged as u64);
    }

    /// What mremap has moved here while the filler was at work, else `word`.
    fn displaced_or(&self, space: &Space, vpn: Vpn, word: Word) -> Word {
        let displaced = lock(&space.displaced).remove(&vpn);
        displaced.map_or(word, |moved| space.settled(vpn, moved))
    }

    /// A page that comes back soon after it left belongs to the working set: one more round in the LRU. "Soon" is the
    /// kernel's test: fewer pages have left since than are resident.
    fn refaulted(&self, cpu: CpuId, space: &Space, claims: &[Claim]) -> Vec<bool> {
        let mut soon = vec![false; claims.len()];
        let (now, resident) = (self.evictions.load(Ordering::Relaxed), space.resident_pages());
        let mut first = 0;
        for of_device in claims.chunk_by(|a, b| a.entry.map(|e| e.device) == b.entry.map(|e| e.device)) {
            if let Some(entry) = of_device[0].entry {
                let slots = &self.devices[entry.device as usize].slots;
                slots.shadows(&slots_of(of_device), |i, shadow| {
                    soon[first + i] = u64::from(now.wrapping_sub(shadow)) <= resident;
                });
            }
            first += of_device.len();
        }
        let refaults = soon.iter().filter(|soon| **soon).count();
        add(&self.stats.on(cpu).workingset_refault, refaults as u64);
        soon
    }

    fn end_of_install(
        &self,
        space: &Arc<Space>,
        mut job: FillJob,
        at: usize,
        rest: Vec<Claim>,
        end: End,
        scratch: &mut Scratch,
    ) -> Outcome {
        for (claim, cancelled) in &end.dropped {
            add(&self.stats.rare().fill_cancelled, u64::from(*cancelled));
            space.memory.wake(claim.vpn, 1);
        }
        // The waiters of what was given back look again, and get SIGSEGV from the kernel if there is no mapping.
        for claim in end.returned.iter().chain(&end.found) {
            space.memory.wake(claim.vpn, 1);
        }
        if end.stop == Stop::Again {
            add(&self.stats.rare().fill_again, 1);
            if !job.buf.is_empty() {
                job.buf = job.buf[at..at + rest.len()].to_vec().into_boxed_slice();
            }
            job.pages = rest;
            return Outcome::Again(job);
        }
        scratch.give_back(std::mem::take(&mut job.buf));
        match end.stop {
            Stop::Done if end.returned.iter().any(|claim| claim.read == ReadEnd::Later) => Outcome::Pause,
            Stop::Done => Outcome::Done,
            Stop::Gone => {
                space.dead.store(true, Ordering::Relaxed);
                Outcome::Gone
            }
            // The machine or a hard limit around us had no page: as if there were no room.
            Stop::NoMemory => Outcome::NoRoom,
            Stop::Exists | Stop::Again | Stop::NotMapped => unreachable!("handled while filling"),
            Stop::Errno(errno) => {
                *lock(&self.last_error) = Some(format!("cannot fill a page: errno {errno}"));
                Outcome::Done
            }
        }
    }
}

/// What came of a job, page by page.
struct End {
    installed: Vec<Claim>,
    /// (claim, was it cancelled); else its read failed.
    dropped: Vec<(Claim, bool)>,
    /// Present already.
    found: Vec<Claim>,
    /// Could not be filled, or not be read now: as before the claim.
    returned: Vec<Claim>,
    stop: Stop,
}

impl Default for End {
    fn default() -> End {
        End { installed: Vec::new(), dropped: Vec::new(), found: Vec::new(), returned: Vec::new(), stop: Stop::Done }
    }
}

impl FillJob {
    /// Two jobs that must both be tried again (of one window, so of one chunk).
    fn merge(mut first: FillJob, second: FillJob) -> FillJob {
        let mut buf = std::mem::take(&mut first.buf).into_vec();
        buf.truncate(first.pages.len());
        buf.extend_from_slice(&second.buf[..second.pages.len()]);
        first.pages.extend(second.pages);
        first.buf = buf.into_boxed_slice();
        first
    }
}

/// The word of a page that this thread has claimed.
fn claimed(words: &[Word; CHUNK_PAGES as usize], vpn: Vpn) -> Word {
    let word = words[index(vpn)];
    assert_eq!(word.state(), State::Filling, "page {vpn:?} was taken from its filler");
    word
}

/// How many claims from the start can go in one fill: consecutive, alive, of the same kind.
fn run_length(claims: &[Claim], cancelled: &[bool]) -> usize {
    let first = claims[0];
    claims
        .iter()
        .zip(cancelled)
        .enumerate()
        .take_while(|(i, (c, cancelled))| {
            c.vpn.0 == first.vpn.0 + *i as u64
                && !**cancelled
                && c.is_ready()
                && c.entry.is_some() == first.entry.is_some()
        })
        .count()
}
