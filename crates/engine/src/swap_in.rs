//! A page comes in: all its steps, top to bottom.
//!
//! ```text
//!  fault ─▶ read the word ────┬─ RESIDENT   answered already: wake (or zero, if it went without an event)
//!                             ├─ EVICTING   mark WANTED: the batch serves it when the page's bytes are here
//!                             ├─ FILLING    another thread brings it: its COPY wakes the waiter
//!                             ├─ POISONED   SIGBUS
//!                             ├─ NONE       claim a run of never-touched pages ──────────────────┐
//!                             └─ SWAPPED    claim the page (stream: and its stream's window)     │
//!                                           in the swap cache: HIT                               │
//!                                           read it, neighbours into the swap cache: MISS        │
//!                                           read it past the swap cache: BYPASS                  │
//!                                           (device at RAM speed: here and now; else Pending)    │
//!                                                     ▼                                          ▼
//!  install: gate ─ drop what was cancelled ─ COPY in runs ─ words RESIDENT ─ LRU ─ free the entries
//! ```
//!
//! Which of the last two, is said by `reads_ahead` in neighbours.rs.
//!
//! Claiming sets the word to FILLING, and FILLING has one owner: that is the only synchronisation between
//! faults on one page, for all three outcomes. The entry's reference is held until the page is installed, so
//! its slot can be neither freed nor rewritten meanwhile (no ABA). A failed read poisons the page that has
//! faulted; it never becomes data. If the machine only had no memory for the read, or the page came along
//! with another one, nothing is lost: it is SWAPPED again, and its next fault reads it.
//!
//! Invariant: every fault ends in exactly one of: a fill, a wake, a mark on another thread's work, or an
//! `Outcome` that obliges the caller to come back.

use crate::backing::{QueueId, ReadDone, ReadRequest, ReadStart};
use crate::fill::{
    Brought, Cause, Claim, Fault, FillJob, Outcome, ReadEnd, ReadWith, SwapIn, WINDOW_MAX, slots_of,
};
use crate::group::Group;
use crate::memory::Stop;
use crate::reclaim::folio::orders;
use crate::space::{CHUNK_PAGES, Chunk, Space, index};
use crate::stats::add;
use crate::sync::{Arc, lock};
use crate::units::{PageBuf, SlotIndex, Vpn};
use crate::word::{HAS_ENTRY, State, SwapEntry, WANTED, Word};
use memspill_common::window::Window;
use std::ops::Range;

impl SwapIn<'_> {
    /// A fault on `vpn`: the one entry for every front end.
    pub fn fault(&mut self, queue: QueueId, space: &Arc<Space>, fault: Fault) -> Outcome {
        let Fault { vpn, write, favoured, .. } = fault;
        let chunk = space.chunk_or_new(vpn);
        let mut words = lock(&chunk);
        // Under the lock: what is claimed when the space is released has its word cancelled. A later claim
        // would stay charged for ever, if the memory is still there to be filled (an object that nobody has
        // mapped any more).
        if space.is_dead() {
            drop(words);
            space.memory.wake(vpn, 1);
            return Outcome::Gone;
        }
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
                let (entry, window) = (word.entry(), self.window(space, vpn, state));
                let folio = self.folio_window(&words[..], vpn, state, window);
                let folio =
                    folio.filter(|block| block.len() as u64 > window.pages.max(self.most_read_ahead(entry)));
                let window = match folio {
                    Some(_) => window,
                    None => self.ending_with_a_folio(space, window, state),
                };
                let cause = match state {
                    State::Swapped => self.cause_of(space, &words, fault, window),
                    _ => Cause::Fault,
                };
                let (window, folio) = self.trusted(space, &words, (vpn, state), window, folio);
                if state == State::Swapped && window.pages == 1 && folio.is_none() && !self.reads_ahead(entry)
                {
                    if !self.claim_lean(space, &mut words[index(vpn)], fault) {
                        add(&self.swap.stats.on(self.cpu).allocstall, 1);
                        return Outcome::NoRoom;
                    }
                    drop(words);
                    return self.bring_lean(queue, space, &chunk, (fault, cause), entry);
                }
                let claims = folio
                    .and_then(|block| self.claim_folio(space, &mut words, vpn, block))
                    .or_else(|| self.claim(space, &mut words, fault, window, state));
                let Some(pages) = claims else {
                    add(&self.swap.stats.on(self.cpu).allocstall, 1);
                    return Outcome::NoRoom;
                };
                drop(words);
                let job = FillJob {
                    space: space.clone(),
                    write,
                    favoured,
                    fault: vpn,
                    pages,
                    ahead: ReadWith::default(),
                    buf: PageBuf::default(),
                    cause,
                };
                match state {
                    State::None => self.install(job),
                    _ if job.pages.len() > WINDOW_MAX
                        && self.swap.device(entry).backing.properties().synchronous =>
                    {
                        self.read_in_pieces(queue, job)
                    }
                    _ => self.read_in(queue, job, true),
                }
            }
        }
    }

    /// Brings the first swapped-out pages in a row of [from, to), as if they had been touched. A reserve
    /// stays for faults; without room beyond it: `Outcome::NoRoom`.
    pub fn bring_ahead(&mut self, queue: QueueId, space: &Arc<Space>, from: Vpn, to: Vpn) -> Brought {
        /// Looked through at most, so that one call is short.
        const CHUNKS_MAX: usize = 64;
        let mut at = from;
        for _ in 0..CHUNKS_MAX {
            let Some((first, chunk)) = space.chunk_from(at).filter(|_| !space.is_dead()) else {
                at = to;
                break;
            };
            at = at.max(first);
            if at >= to {
                break;
            }
            let end = Vpn(to.0.min(first.0 + CHUNK_PAGES));
            let mut words = lock(&chunk);
            let is_out = |vpn: &Vpn| words[index(*vpn)].state() == State::Swapped;
            let mut out: Vec<Vpn> = (at.0..end.0).map(Vpn).skip_while(|vpn| !is_out(vpn)).collect();
            let in_row = out.iter().take(WINDOW_MAX).take_while(|vpn| is_out(vpn)).count();
            out.truncate(in_row);
            let Some(first_out) = out.first().copied() else {
                at = end;
                continue;
            };
            let group = space.group(self.swap);
            while !group.try_charge(self.cpu, out.len() as u64, group.gap_bytes() / 2) {
                out.truncate(out.len() / 2);
                if out.is_empty() {
                    return Brought { outcome: Outcome::NoRoom, next: first_out, pages: 0 };
                }
            }
            let pages = self.mark_claimed(space, &mut words, &out, State::Swapped, None);
            drop(words);
            let next = Vpn(first_out.0 + pages.len() as u64);
            let brought = pages.len();
            let job = FillJob {
                space: space.clone(),
                write: false,
                favoured: false,
                fault: first_out,
                pages,
                ahead: ReadWith::default(),
                buf: PageBuf::default(),
                cause: Cause::Advised,
            };
            return Brought { outcome: self.read_in(queue, job, true), next, pages: brought };
        }
        Brought { outcome: Outcome::Done, next: at.min(to), pages: 0 }
    }

    /// The word says that the page is present. Either the fault's message is old (the page is there: EEXIST),
    /// or the page vanished without an event (a guard region, a lazily freed page) and reads as zero. Under
    /// the chunk's lock, so that the page cannot become a victim between the check and the fill: a zero page
    /// put in place of one that was just moved out would be lost data.
    fn fault_on_resident(&self, space: &Space, chunk: &Chunk, vpn: Vpn) -> Outcome {
        let _guard = space.gate.enter_fill();
        let words = lock(chunk);
        if words[index(vpn)].state() == State::Resident {
            let fill = space.memory.put_vanished(vpn);
            if fill.stop == Stop::Exists {
                add(&self.swap.stats.rare().fill_exists, 1);
            }
        }
        // In both cases the waiters repeat their access, and fault again if need be.
        space.memory.wake(vpn, 1);
        Outcome::Done
    }

    /// The only copy of the page could not be read: SIGBUS. Inside the gate and under the lock, or a mapping
    /// that was made meanwhile would be poisoned.
    fn fault_on_poisoned(&self, space: &Space, chunk: &Chunk, vpn: Vpn) -> Outcome {
        let _guard = space.gate.enter_fill();
        let words = lock(chunk);
        if words[index(vpn)].state() == State::Poisoned {
            space.memory.poison(vpn);
        }
        space.memory.wake(vpn, 1);
        Outcome::Done
    }

    /// Claim a folio, or the half (quarter, ...) of it around the page for which there is room. None if there
    /// is no room for two pages.
    fn claim_folio(
        &self,
        space: &Space,
        words: &mut [Word; CHUNK_PAGES as usize],
        vpn: Vpn,
        mut block: Range<usize>,
    ) -> Option<Vec<Claim>> {
        let at = index(vpn);
        let group = space.group(self.swap);
        let order = block.len().ilog2() as usize;
        let mut is_whole = true;
        while !group.try_charge(self.cpu, block.len() as u64, group.gap_bytes() / 2) {
            add(&self.swap.stats.on(self.cpu).swpin_fallback[order], u64::from(is_whole));
            is_whole = false;
            let middle = block.start + block.len() / 2;
            block = if at < middle { block.start..middle } else { middle..block.end };
            if block.len() < 2 {
                return None;
            }
        }
        let chunk_first = vpn.0 - at as u64;
        let pages: Vec<Vpn> = block.clone().map(|i| Vpn(chunk_first + i as u64)).collect();
        space.streams().note_brought(vpn.0, pages[0].0..pages[0].0 + pages.len() as u64);
        Some(self.mark_claimed(space, words, &pages, State::Swapped, Some(vpn)))
    }

    /// Claim the faulting page, and of its window those pages of the same chunk that are in the same state.
    /// None if there is no room even for the page itself. The other pages may not take the last of the room:
    /// of a window for which there is none, the half (quarter, ...) comes.
    fn claim(
        &self,
        space: &Space,
        words: &mut [Word; CHUNK_PAGES as usize],
        fault: Fault,
        window: Window,
        state: State,
    ) -> Option<Vec<Claim>> {
        let vpn = fault.vpn;
        let chunk_first = vpn.0 - index(vpn) as u64;
        let mut picked: Vec<Vpn> = window
            .range()
            .filter(|p| *p == vpn.0 || words[(p - chunk_first) as usize].state() == state)
            .filter(|p| *p == vpn.0 || state == State::Swapped || !space.is_excluded(Vpn(*p)))
            .map(Vpn)
            .collect();
        let group = space.group(self.swap);
        let mut comes = window;
        while picked.len() > 1 && !group.try_charge(self.cpu, picked.len() as u64, group.gap_bytes() / 2) {
            comes = comes.cut(comes.pages / 2);
            picked.retain(|page| comes.range().contains(&page.0));
        }
        if picked.len() == 1 {
            if fault.urgent {
                group.force_charge(self.cpu, 1);
            } else if !self.charge_one(group) {
                return None;
            }
        }
        if comes != window {
            space.streams().note_brought(vpn.0, comes.range());
        }
        Some(self.mark_claimed(space, words, &picked, state, Some(vpn)))
    }

    /// Charge a page; where there is no room, pages that were read ahead make some.
    pub(crate) fn charge_one(&self, group: &Group) -> bool {
        loop {
            if group.try_charge(self.cpu, 1, 0) {
                return true;
            }
            if self.swap.drop_ahead_for(self.cpu, group) == 0 {
                return false;
            }
        }
    }

    /// Mark pages, which are charged, as claimed by this thread. Those beside the one that faulted come
    /// along.
    fn mark_claimed(
        &self,
        space: &Space,
        words: &mut [Word; CHUNK_PAGES as usize],
        picked: &[Vpn],
        state: State,
        fault: Option<Vpn>,
    ) -> Vec<Claim> {
        let claims: Vec<Claim> = picked
            .iter()
            .map(|vpn| {
                let word = &mut words[index(*vpn)];
                let entry = (state == State::Swapped).then(|| word.entry());
                *word = word.with_state(State::Filling);
                if entry.is_some() {
                    *word = word.with(HAS_ENTRY);
                }
                let comes_along = fault.is_some_and(|fault| fault != *vpn);
                Claim { vpn: *vpn, entry, read: ReadEnd::None, comes_along }
            })
            .collect();
        space.count_resident(picked.len() as i64);
        if state == State::Swapped {
            self.count_folios(&claims);
            space.count_swapped(-(picked.len() as i64));
            add(&self.swap.stats.on(self.cpu).swap_ra, picked.len() as u64 - 1);
            self.forget_notes(space, claims.iter().filter(|claim| Some(claim.vpn) != fault));
        }
        claims
    }

    /// Count the folios that come in whole: aligned blocks in aligned slots in a row.
    fn count_folios(&self, claims: &[Claim]) {
        let Some((smallest, largest)) = orders(&self.swap.tuning) else { return };
        let place = |claim: &Claim| claim.entry.map(|entry| (claim.vpn.0, entry));
        let mut rest = claims;
        while rest.len() >= smallest.pages() as usize {
            let Some((vpn, first)) = place(&rest[0]) else { return };
            let is_whole = |order: &u8| {
                let pages = 1 << order;
                (vpn | u64::from(first.slot.0)).is_multiple_of(pages)
                    && rest.len() as u64 >= pages
                    && (0..pages).all(|i| {
                        let slot = SlotIndex(first.slot.0 + i as u32);
                        place(&rest[i as usize]) == Some((vpn + i, SwapEntry { slot, ..first }))
                    })
            };
            let whole = (smallest.0..=largest.0).rev().find(is_whole);
            if let Some(order) = whole {
                add(&self.swap.stats.on(self.cpu).swpin[usize::from(order)], 1);
            }
            rest = &rest[whole.map_or(1, |order| 1 << order)..];
        }
    }

    /// As `read_in`, where reading takes no time but the CPU's: a window at a time, the one with the page
    /// that faulted first, so that its program goes on while the rest comes.
    fn read_in_pieces(&mut self, queue: QueueId, job: FillJob) -> Outcome {
        let at = job.pages.iter().position(|claim| claim.vpn == job.fault).expect("its page is claimed");
        let mut pieces: Vec<&[Claim]> = job.pages.chunks(WINDOW_MAX).collect();
        pieces.rotate_left(at / WINDOW_MAX);
        pieces.into_iter().fold(Outcome::Done, |outcome, pages| {
            let has_fault = pages.iter().any(|claim| claim.vpn == job.fault);
            let fault = if has_fault { job.fault } else { pages[0].vpn };
            let piece = job.part(fault, pages.to_vec());
            outcome.and(self.read_in(queue, piece, has_fault))
        })
    }

    /// Find the bytes of the claimed pages: in the swap cache, or on their devices. `is_counted`: as a fault.
    pub(crate) fn read_in(&mut self, queue: QueueId, mut job: FillJob, is_counted: bool) -> Outcome {
        let mut buf = self.scratch.buffer(job.pages.len());
        let (mut missing, mut ahead): (Vec<usize>, Vec<usize>) = Default::default();
        let mut first = 0;
        for of_device in job.pages.chunk_by(|a, b| a.device() == b.device()) {
            let part = &mut buf[first..first + of_device.len()];
            let there = self.swap.cache_copy(self.cpu, of_device[0].device(), &slots_of(of_device), part);
            missing.extend(there.absent.into_iter().map(|i| first + i));
            ahead.extend(there.ahead.into_iter().map(|i| first + i));
            first += of_device.len();
        }
        for place in &ahead {
            job.pages[*place].read = ReadEnd::Whole;
        }
        let counters = self.swap.stats.on(self.cpu);
        add(&counters.swap_ra_hit, ahead.len() as u64);
        let at = job.pages.iter().position(|claim| claim.vpn == job.fault).expect("its page is claimed");
        let entry = job.pages[at].entry.expect("a swapped page has an entry");
        let is_hit = missing.binary_search(&at).is_err();
        if is_hit && is_counted {
            add(&counters.swap_cache_hit, 1);
            self.note_hit(&job, entry, ahead.contains(&at));
        }
        if !is_hit && is_counted && job.pages.len() == 1 && self.reads_ahead(entry) {
            add(&counters.swap_cache_miss, 1);
            add(&counters.pgmajfault, 1);
            job.ahead = self.choose_neighbours(&job);
            if !job.ahead.slots.is_empty() {
                self.scratch.give_back(buf);
                buf = self.scratch.buffer(1 + job.ahead.slots.len());
            }
            return self.start_read(queue, job, buf);
        }
        add(&counters.swap_cache_bypass, u64::from(is_counted && !is_hit));
        if missing.is_empty() {
            job.buf = buf;
            return self.install(job);
        }
        // (A neighbour may be missing of a page that is here.)
        add(&self.swap.stats.on(self.cpu).pgmajfault, u64::from(is_counted && !is_hit));
        // One request goes to one device and into consecutive pages of the buffer. If some pages came out of
        // the cache, or the entries are of several devices, each page is brought by itself.
        let whole =
            missing.len() == job.pages.len() && job.pages.iter().all(|c| c.device() == job.pages[0].device());
        if !whole {
            return self.read_one_by_one(queue, job, buf, missing);
        }
        self.start_read(queue, job, buf)
    }

    /// Bring the pages of a mixed window one by one: those whose bytes are here are installed, the others are
    /// read, each by itself.
    fn read_one_by_one(
        &mut self,
        queue: QueueId,
        job: FillJob,
        buf: PageBuf,
        missing: Vec<usize>,
    ) -> Outcome {
        let mut outcome = Outcome::Done;
        for (i, claim) in job.pages.iter().enumerate() {
            let mut one = self.scratch.buffer(1);
            let mut part = job.part(claim.vpn, vec![*claim]);
            let result = if missing.binary_search(&i).is_ok() {
                self.start_read(queue, part, one)
            } else {
                one[0] = buf[i];
                part.buf = one;
                self.install(part)
            };
            outcome = outcome.and(result);
        }
        self.scratch.give_back(buf);
        outcome
    }

    fn start_read(&mut self, queue: QueueId, job: FillJob, buf: PageBuf) -> Outcome {
        let (slots, is_awaited) = (job.slots(), job.cause.is_awaited());
        let device = &self.swap.devices[job.pages[0].device() as usize];
        let token = self.reads.start(queue, job);
        match device.backing.read(queue, ReadRequest { token, slots, buf, is_awaited }) {
            ReadStart::Done(done) => self.read_done(done),
            ReadStart::Pending => Outcome::Pending(token),
        }
    }

    /// A read has finished (at once, or reaped from the queue): install what it brought.
    pub fn read_done(&mut self, mut done: ReadDone) -> Outcome {
        let mut job = self.reads.finish(&done);
        if !job.ahead.slots.is_empty() {
            done = self.settle_neighbours(&mut job, done);
        }
        for (claim, result) in job.pages.iter_mut().zip(&done.results) {
            claim.read = ReadEnd::of(result);
        }
        let ended = |end: ReadEnd| job.pages.iter().filter(|claim| claim.read == end).count() as u64;
        add(&self.swap.stats.on(self.cpu).pswpin, ended(ReadEnd::Whole));
        add(&self.swap.stats.on(self.cpu).read_errors, ended(ReadEnd::Lost));
        add(&self.swap.stats.rare().read_again, ended(ReadEnd::Later));
        for error in done.results.iter().filter_map(|result| result.as_ref().err()) {
            self.swap.devices[usize::from(job.pages[0].device())].errors.note_read(error);
        }
        job.buf = done.buf;
        self.install(job)
    }
}
