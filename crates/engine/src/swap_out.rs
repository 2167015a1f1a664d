//! Pages go out: the whole story of a batch, top to bottom.
//!
//! ```text
//!  choose victims (EVICTING), those that leave together as folios                            reclaim/victim.rs
//!  slots for all of them, folio by folio, cgroup ids recorded with them                      folio.rs
//!     └─ no slot: RESIDENT again, at the old end of the LRU: no page leaves before it has a place to go
//!  Memory::take: out of the address space, bytes in staging
//!     ├─ all zero        word NONE: its slot is given back, nothing is stored
//!     ├─ its kept copy is the same   word SWAPPED, as it was before: nothing is written (kept.rs)
//!     ├─ into the swap cache, one step        from here on a fault is a HIT
//!     ├─ words SWAPPED; faults that came meanwhile (WANTED) go to a pager now: hits
//!     ├─ one write submission
//!     └─ out of the swap cache, one step, each leaving a shadow; staging is freed
//! ```
//!
//! A page whose write failed is not lost: it stays in the swap cache, in memory, and is written again later.
//! `swap_is_full` or `write_errors` tells the supervisor, whose policy decides. The swap is not full where the machine was only
//! short of something for the requests: it may have that again, and the policy is more patient.
//!
//! The caller of `shrink` holds the space's batch lock, so that no event of the space is processed meanwhile. An event
//! reader holds the gate while it waits for that lock: so nothing in `shrink` may enter the gate, and faults are served
//! after it.

use crate::backing::{BackingError, PageWrite, QueueId};
use crate::engine::{Device, Engine};
use crate::folio::{Places, pages_of, runs_of};
use crate::memory::{Run, Take};
use crate::space::{CHUNK_PAGES, Space, index};
use crate::stats::add;
use crate::sync::{Arc, Ordering, lock};
use crate::units::{CpuId, FrameId, Page, PageBuf, SlotIndex, Vpn};
use crate::word::{State, SwapEntry, MADE_OWN, WANTED, Word};

/// What a batch achieved.
#[derive(Default)]
pub struct Shrunk {
    /// Pages that left the address space: room under the limit.
    pub taken: usize,
    /// Victims looked at.
    pub tried: usize,
    /// Pages of the batch for which a fault came meanwhile: the caller has a pager look at them again.
    pub wanted: Vec<Vpn>,
    /// Pages that are shared or pinned, and were not found so before.
    pub busy: Vec<Vpn>,
}

/// A page in staging.
#[derive(Clone, Copy)]
pub(crate) struct Staged {
    pub(crate) vpn: Vpn,
    /// Place in the batch's buffer.
    pub(crate) place: usize,
}

impl Engine {
    /// First half of a batch, under the space's batch lock: take about `n` pages out (more where they leave together) and
    /// make them swap-cache pages. The second half ([`Engine::write_out`]) needs no lock.
    pub fn shrink(
        &self,
        cpu: CpuId,
        space: &Arc<Space>,
        n: usize,
    ) -> (Shrunk, Option<WriteOut>) {
        let room = self.batch_room(cpu, space, n);
        if room == 0 {
            return (Shrunk::default(), None);
        }
        let runs = self.choose_victims(cpu, space, n, room);
        self.take_out(cpu, space, runs)
    }

    /// MADV_PAGEOUT, as `shrink`: the pages of [from, to) that are in memory leave, whatever is thought of them, as many as
    /// a batch holds. Also returns where to go on.
    pub fn pageout(
        &self,
        cpu: CpuId,
        space: &Arc<Space>,
        from: Vpn,
        to: Vpn,
    ) -> (Shrunk, Option<WriteOut>, Vpn) {
        let room = self.batch_room(cpu, space, self.staging.batch_pages());
        if room == 0 {
            return (Shrunk::default(), None, to);
        }
        let (runs, next) = self.choose_range(space, from, to, room);
        let (shrunk, write_out) = self.take_out(cpu, space, runs);
        (shrunk, write_out, next)
    }

    /// Pages that a batch of about `n` may have now. None: the swap is full, which is noted.
    fn batch_room(&self, cpu: CpuId, space: &Space, n: usize) -> usize {
        if self.kept.are_to_go() {
            self.give_up_kept(cpu);
        }
        let group = space.group(self);
        let mut room = self.room_pages(group);
        if room < n && self.give_up_kept(cpu) > 0 {
            room = self.room_pages(group);
        }
        if room == 0 {
            self.groups.drain_stocks();
            self.note_swap_full();
        }
        room.min(self.staging.batch_pages())
    }

    fn note_swap_full(&self) {
        add(&self.stats.rare().swap_full, 1);
        // That is no answer where a device would take pages again as soon as the machine has memory for the request.
        let short = self.devices.iter().find(|device| device.is_on() && device.errors.is_short());
        match short {
            Some(device) => {
                let name = &device.name;
                *lock(&self.last_error) = Some(format!("there is no memory for the requests to swap device {name}"));
            }
            None => self.swap_is_full.store(true, Ordering::Relaxed),
        }
    }

    /// The victims have been chosen.
    fn take_out(&self, cpu: CpuId, space: &Arc<Space>, mut runs: Vec<Run>) -> (Shrunk, Option<WriteOut>) {
        let mut shrunk = Shrunk { tried: pages_of(&runs).count(), ..Shrunk::default() };
        if runs.is_empty() {
            self.groups.drain_stocks();
            return (shrunk, None);
        }
        let places = self.alloc_places(cpu, space.group(self), &runs);
        if !places.without.is_empty() {
            self.note_swap_full();
            shrunk.wanted = space.put_back(&places.without);
            runs = runs_of(pages_of(&runs).filter(|vpn| places.without.binary_search(vpn).is_err()));
            if runs.is_empty() {
                return (shrunk, None);
            }
        }
        let mut buf = self.staging.buffer(cpu);
        let mut outcome = Vec::with_capacity(shrunk.tried);
        space.memory.take(&runs, &mut buf, &mut outcome);
        assert_eq!(outcome.len(), pages_of(&runs).count(), "Memory::take must say what became of each page");
        add(&self.stats.on(cpu).take_batches, 1);

        let staged = self.settle(cpu, space, &runs, &outcome, &mut shrunk);
        shrunk.taken = staged.len();
        if staged.is_empty() {
            self.groups.drain_stocks();
        }
        add(&self.stats.on(cpu).pgsteal, staged.len() as u64);
        self.evictions.fetch_add(staged.len() as u32, Ordering::Relaxed);
        let write_out = self.stage(cpu, space, &staged, places, buf, &mut shrunk.wanted);
        (shrunk, write_out)
    }

    /// The words of pages that were not taken; returns those that were, in the order of the buffer.
    fn settle(
        &self,
        cpu: CpuId,
        space: &Space,
        runs: &[Run],
        outcome: &[Take],
        shrunk: &mut Shrunk,
    ) -> Vec<Staged> {
        let mut lost: Vec<SwapEntry> = Vec::new();
        let mut staged = Vec::with_capacity(outcome.len());
        let mut outcome = outcome.iter();
        let mut gone = 0;
        for vpn in pages_of(runs) {
            let take = *outcome.next().expect("an outcome for each page");
            match take {
                Take::Moved => {
                    staged.push(Staged { vpn, place: staged.len() });
                    gone += 1;
                    continue;
                }
                Take::Retry => add(&self.stats.rare().take_retry, 1),
                Take::Busy => {
                    add(&self.stats.rare().take_busy, 1);
                }
                Take::Unevictable => add(&self.stats.rare().take_unevictable, 1),
                Take::Hole | Take::Gone => gone += 1,
            }
            let chunk = space.chunk_or_new(vpn);
            let mut words = lock(&chunk);
            let word = &mut words[index(vpn)];
            assert_eq!(word.state(), State::Evicting, "a victim changed under its batch");
            if word.has(WANTED) {
                shrunk.wanted.push(vpn);
            }
            if take == Take::Busy && !word.has(MADE_OWN) {
                shrunk.busy.push(vpn);
            }
            if matches!(take, Take::Hole | Take::Gone) {
                lost.extend(word.held_entry());
            }
            if take == Take::Hole {
                *word = Word::NONE;
                continue;
            }
            // The agent has ended, and the page with its process. Should somebody still share that memory (a vfork child
            // whose parent was killed), the page is lost to him, and must not read as zero.
            if take == Take::Gone {
                *word = Word::NONE.with_state(State::Poisoned);
                continue;
            }
            let (fresh, record) = space.renewed(vpn, *word, 0);
            *word = fresh;
            if take == Take::Unevictable {
                lock(&space.parked).push(vpn);
            } else {
                lock(&space.lru).push(record);
            }
        }
        self.free_entries(cpu, &lost);
        space.group(self).uncharge(cpu, gone);
        space.count_resident(-(gone as i64));
        staged
    }

    /// Make the staged pages swap-cache pages. Zero pages need no slot, and what is left of `places` goes back.
    fn stage(
        &self,
        cpu: CpuId,
        space: &Arc<Space>,
        staged: &[Staged],
        places: Places,
        buf: PageBuf,
        wanted: &mut Vec<Vpn>,
    ) -> Option<WriteOut> {
        let (zero, data): (Vec<Staged>, Vec<Staged>) = staged.iter().partition(|s| is_zero(&buf[s.place]));
        add(&self.stats.on(cpu).swpout_zero, zero.len() as u64);
        self.give_up_kept_of(cpu, space, zero.iter().map(|s| s.vpn));
        self.set_words(space, zero.iter().map(|s| (s.vpn, Word::NONE)), wanted);
        let (clean, data) = self.split_clean(cpu, space, data, &buf);
        self.set_words(space, clean.iter().map(|(vpn, entry)| (*vpn, Word::swapped(*entry))), wanted);
        space.count_swapped(clean.len() as i64);
        let entries = self.hand_out(cpu, places, staged, &data);
        if data.is_empty() {
            self.staging.give_back(cpu, buf);
            return None;
        }
        let first_frame = self.staging.publish(cpu, buf, data.len());
        let pages: Vec<CachedPage> = data
            .iter()
            .zip(&entries)
            .map(|(s, entry)| CachedPage { entry: *entry, frame: FrameId(first_frame.0 + s.place as u32) })
            .collect();
        self.cache_add(&pages);
        space.count_swapped(data.len() as i64);
        let words = data.iter().zip(&entries).map(|(s, entry)| (s.vpn, Word::swapped(*entry)));
        self.set_words(space, words, wanted);
        Some(WriteOut { pages })
    }

    /// The slots of `data`, which are those of the staged pages that need one. What nobody needs goes back.
    fn hand_out(&self, cpu: CpuId, mut places: Places, staged: &[Staged], data: &[Staged]) -> Vec<SwapEntry> {
        let mut needing = data.iter().peekable();
        let entries = staged
            .iter()
            .filter_map(|s| places.entry_for(s.vpn, needing.next_if(|d| d.vpn == s.vpn).is_some()))
            .collect();
        self.close_places(cpu, &places);
        entries
    }

    /// EVICTING → the given words, a lock for each chunk; faults that came meanwhile are collected.
    fn set_words(&self, space: &Space, words: impl Iterator<Item = (Vpn, Word)>, wanted: &mut Vec<Vpn>) {
        let mut words = words.peekable();
        while let Some(number) = words.peek().map(|(vpn, _)| vpn.0 / CHUNK_PAGES) {
            let chunk = space.chunk_or_new(Vpn(number * CHUNK_PAGES));
            let mut there = lock(&chunk);
            while let Some((vpn, new)) = words.next_if(|(vpn, _)| vpn.0 / CHUNK_PAGES == number) {
                let word = &mut there[index(vpn)];
                assert_eq!(word.state(), State::Evicting, "a staged page changed under its batch");
                if word.has(WANTED) {
                    wanted.push(vpn);
                }
                *word = new;
            }
        }
    }

    fn cache_add(&self, pages: &[CachedPage]) {
        for (n, device) in self.devices.iter().enumerate() {
            let batch: Vec<(SlotIndex, FrameId)> = pages
                .iter()
                .filter(|p| p.entry.device as usize == n)
                .map(|p| (p.entry.slot, p.frame))
                .collect();
            if !batch.is_empty() {
                device.slots.cache_add(&batch);
            }
        }
    }

    /// Second half of a batch: write it, and take what was written out of the swap cache. Returns the pages whose write
    /// failed.
    pub fn write_out(&self, cpu: CpuId, queue: QueueId, batch: WriteOut) -> usize {
        self.write_batch(cpu, queue, batch, false)
    }

    fn write_batch(&self, cpu: CpuId, queue: QueueId, batch: WriteOut, again: bool) -> usize {
        let mut failed = Vec::new();
        for n in 0..self.devices.len() {
            let pages: Vec<CachedPage> =
                batch.pages.iter().filter(|p| p.entry.device as usize == n).copied().collect();
            if !pages.is_empty() {
                self.write_to(cpu, queue, n, &pages, again, &mut failed);
            }
        }
        let count = failed.len();
        if count > 0 {
            lock(&self.unwritten).extend(failed.iter().map(|p| (p.entry, p.frame)));
            self.all_written.store(false, Ordering::Release);
        }
        count
    }

    fn write_to(
        &self,
        cpu: CpuId,
        queue: QueueId,
        device: usize,
        pages: &[CachedPage],
        again: bool,
        failed: &mut Vec<CachedPage>,
    ) {
        let device = &self.devices[device];
        let buffers: Vec<(Arc<PageBuf>, usize)> = self.staging.get_many(pages.iter().map(|p| p.frame));
        let writes: Vec<PageWrite> = pages
            .iter()
            .zip(&buffers)
            .map(|(p, (buf, place))| PageWrite { slot: p.entry.slot, page: &buf[*place] })
            .collect();
        let mut results = Vec::with_capacity(writes.len());
        device.backing.write(queue, &writes, &mut results);
        drop(writes);
        drop(buffers);
        let mut written = Vec::with_capacity(pages.len());
        for (page, result) in pages.iter().zip(&results) {
            match result {
                Ok(()) => written.push(page.entry.slot),
                Err(error) => {
                    self.note_write_error(device, error, again);
                    failed.push(*page);
                }
            }
        }
        if !written.is_empty() {
            device.errors.note_written();
        }
        if !written.is_empty() && written.len() == pages.len() {
            device.has_room();
        }
        add(&self.stats.on(cpu).pswpout, written.len() as u64);
        let shadow = self.evictions.load(Ordering::Relaxed);
        let (mut frames, mut freed) = (Vec::new(), Vec::new());
        device.slots.cache_delete(&written, Some(shadow), &mut frames, &mut freed);
        self.staging.free_frames(&frames);
        self.reuse(cpu, device, &freed);
    }

    fn note_write_error(&self, device: &Device, error: &BackingError, again: bool) {
        if *error == BackingError::Full {
            device.full.store(true, Ordering::Relaxed);
            add(&self.stats.rare().swap_full, 1);
            self.swap_is_full.store(true, Ordering::Relaxed);
            self.kept.must_go();
        } else if !again {
            add(&self.stats.rare().write_errors, 1);
            device.errors.note_write(error);
        }
    }

    /// Try again to write what could not be written. Returns how many are still unwritten.
    pub fn write_again(&self, cpu: CpuId, queue: QueueId) -> usize {
        if self.all_written.load(Ordering::Acquire) {
            return 0;
        }
        // Before the list is taken: what is added meanwhile says so again.
        self.all_written.store(true, Ordering::Release);
        let batch: Vec<(SwapEntry, FrameId)> = std::mem::take(&mut *lock(&self.unwritten));
        if batch.is_empty() {
            return 0;
        }
        // What nobody needs any more need not be written.
        let (needed, orphans): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .partition(|(entry, _)| self.devices[entry.device as usize].slots.count(entry.slot) > 0);
        for (n, device) in self.devices.iter().enumerate() {
            if !needed.iter().any(|(entry, _)| entry.device as usize == n) {
                device.errors.none_waits();
            }
        }
        self.free_orphans(cpu, &orphans);
        let pages = needed.into_iter().map(|(entry, frame)| CachedPage { entry, frame }).collect();
        self.write_batch(cpu, queue, WriteOut { pages }, true)
    }

    /// Pages that waited in the swap cache to be written, and that nobody needs any more.
    pub(crate) fn free_orphans(&self, cpu: CpuId, orphans: &[(SwapEntry, FrameId)]) {
        for (entry, _) in orphans {
            let device = &self.devices[entry.device as usize];
            let (mut frames, mut freed) = (Vec::new(), Vec::new());
            device.slots.cache_delete(&[entry.slot], None, &mut frames, &mut freed);
            self.staging.free_frames(&frames);
            self.reuse(cpu, device, &freed);
        }
    }
}

/// A page of the swap cache that waits to be written.
#[derive(Clone, Copy)]
struct CachedPage {
    entry: SwapEntry,
    frame: FrameId,
}

/// A batch in the swap cache, to be given to [`Engine::write_out`].
pub struct WriteOut {
    pages: Vec<CachedPage>,
}

fn is_zero(page: &Page) -> bool {
    // The last word first: pages that are almost zero seldom end so.
    page.0[4088..] == [0; 8] && page.0.iter().all(|b| *b == 0)
}
