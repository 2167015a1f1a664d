//! Pages go out: all steps of a batch, top to bottom.
//!
//! ```text
//!  drop pages that were read ahead and that nobody has wanted for long               ahead.rs
//!  choose victims (EVICTING), those that leave together as folios                   reclaim/victim.rs
//!  slots for all of them, folio by folio, cgroup ids recorded with them             reclaim/folio.rs
//!     └─ no slot: RESIDENT again, at the old end of the LRU: no page leaves before it has a place to go
//!  Memory::take: out of the address space, bytes in a buffer of frames
//!     ├─ all zero        word NONE: its slot is given back, nothing is stored
//!     ├─ its kept copy is the same   word SWAPPED, as it was before: nothing is written (kept.rs)
//!     ├─ into the swap cache, one step        from here on a fault is a HIT
//!     ├─ words SWAPPED; faults that came meanwhile (WANTED) go to a pager now: hits
//!     └─ one write submission, then out of the swap cache                             write_out.rs
//! ```
//!
//! If no slot can be allocated, swap is full, and the supervisor's policy decides. Swap is not full where the
//! machine only had no memory for the requests: it may have some again, and the policy waits longer.
//!
//! The caller of `shrink` holds the space's batch lock, so that no event of the space is processed meanwhile.
//! An event reader holds the gate while it waits for that lock: so nothing in `shrink` may enter the gate,
//! and faults on pages of the batch (`Shrunk::wanted`) are served after it.

use crate::frames::{CachedPage, TakenPage};
use crate::kept::Kept;
use crate::memory::{PageRun, Take, pages_of, runs_of};
use crate::reclaim::folio::{Places, split_whole};
use crate::space::{CHUNK_PAGES, Space, index};
use crate::spaces::Spaces;
use crate::stats::add;
use crate::swap::Swap;
use crate::sync::{Arc, lock};
use crate::units::{CpuId, FrameId, Page, PageBuf, Vpn};
use crate::word::{MADE_OWN, State, SwapEntry, WANTED, Word};
use crate::write_out::{Told, WriteOut};

/// What a batch achieved.
#[derive(Default)]
pub struct Shrunk {
    /// Pages that left the address space, or that had been read ahead and were dropped: room under the limit.
    pub taken: usize,
    /// Victims looked at.
    pub tried: usize,
    /// Pages of the batch for which a fault came meanwhile: the caller has a pager look at them again.
    pub wanted: Vec<Vpn>,
    /// Pages that are shared or pinned, and were not found so before.
    pub busy: Vec<Vpn>,
}

/// One CPU's taking out of a batch.
pub(crate) struct SwapOut<'a> {
    pub swap: &'a Swap,
    pub kept: &'a Kept,
    pub spaces: &'a Spaces,
    pub cpu: CpuId,
}

impl SwapOut<'_> {
    /// Take about `n` pages out (more where they leave together) and make them swap-cache pages.
    pub fn shrink(&self, space: &Arc<Space>, n: usize) -> (Shrunk, Option<WriteOut>) {
        let dropped = self.swap.drop_stale_ahead(self.cpu, space.group(self.swap), n);
        if dropped == n {
            return (Shrunk { taken: dropped, ..Shrunk::default() }, None);
        }
        let (shrunk, write_out) = self.shrink_space(space, n - dropped);
        (Shrunk { taken: shrunk.taken + dropped, ..shrunk }, write_out)
    }

    fn shrink_space(&self, space: &Arc<Space>, n: usize) -> (Shrunk, Option<WriteOut>) {
        let room = self.batch_room(space, n);
        if room == 0 {
            return (Shrunk::default(), None);
        }
        let runs = space.choose_victims(self.swap, self.cpu, n, room);
        self.take_out(space, runs)
    }

    /// MADV_PAGEOUT: as `shrink`, of the pages of [from, to) that are in memory, hot ones too, as many as a
    /// batch holds. Also returns where to go on.
    pub fn pageout(&self, space: &Arc<Space>, from: Vpn, to: Vpn) -> (Shrunk, Option<WriteOut>, Vpn) {
        let room = self.batch_room(space, self.swap.frames.batch_pages());
        if room == 0 {
            return (Shrunk::default(), None, to);
        }
        let (runs, next) = space.choose_range(&self.swap.tuning, from, to, room);
        let (shrunk, write_out) = self.take_out(space, runs);
        (shrunk, write_out, next)
    }

    /// Pages that a batch of about `n` may have now. 0: the swap is full, which is noted.
    fn batch_room(&self, space: &Space, n: usize) -> usize {
        if self.kept.shall_give_up() {
            self.kept.give_up(self.swap, self.cpu, self.spaces);
        }
        let group = space.group(self.swap);
        let mut room = self.swap.room_pages(group);
        if room < n && self.kept.give_up(self.swap, self.cpu, self.spaces) > 0 {
            room = self.swap.room_pages(group);
        }
        if room == 0 {
            self.swap.groups.drain_stocks();
            self.swap.note_no_slot();
        }
        room.min(self.swap.frames.batch_pages())
    }

    /// Take the victims out and make them swap-cache pages.
    fn take_out(&self, space: &Arc<Space>, mut runs: Vec<PageRun>) -> (Shrunk, Option<WriteOut>) {
        let mut shrunk = Shrunk { tried: pages_of(&runs).count(), ..Shrunk::default() };
        if runs.is_empty() {
            self.swap.groups.drain_stocks();
            return (shrunk, None);
        }
        let places = Places::alloc(self.swap, self.cpu, space.group(self.swap), &runs);
        if !places.without_slot.is_empty() {
            self.swap.note_no_slot();
            shrunk.wanted = space.put_back(&places.without_slot);
            runs = runs_of(pages_of(&runs).filter(|vpn| places.without_slot.binary_search(vpn).is_err()));
            if runs.is_empty() {
                return (shrunk, None);
            }
        }
        let runs = split_whole(self.swap, self.cpu, runs);
        let mut buf = self.swap.frames.take_buffer(self.cpu, pages_of(&runs).count());
        let mut outcome = Vec::with_capacity(shrunk.tried);
        space.memory.take(&runs, &mut buf, &mut outcome);
        assert_eq!(outcome.len(), pages_of(&runs).count(), "Memory::take must say what became of each page");
        add(&self.swap.stats.on(self.cpu).take_batches, 1);

        let taken = self.put_back_not_taken(space, &runs, &outcome, &mut shrunk);
        shrunk.taken = taken.len();
        if taken.is_empty() {
            self.swap.groups.drain_stocks();
        }
        add(&self.swap.stats.on(self.cpu).pgsteal, taken.len() as u64);
        self.swap.count_evicted(taken.len());
        let write_out = self.add_to_cache(space, &taken, places, buf, &mut shrunk.wanted);
        (shrunk, write_out)
    }

    /// Set the words of the pages that were not taken. Returns those that were, in the order of the buffer.
    fn put_back_not_taken(
        &self,
        space: &Space,
        runs: &[PageRun],
        outcome: &[Take],
        shrunk: &mut Shrunk,
    ) -> Vec<TakenPage> {
        let mut lost: Vec<SwapEntry> = Vec::new();
        let mut taken = Vec::with_capacity(outcome.len());
        let mut outcome = outcome.iter();
        let mut gone = 0;
        for vpn in pages_of(runs) {
            let take = *outcome.next().expect("an outcome for each page");
            match take {
                Take::Moved => {
                    taken.push(TakenPage { vpn, place: taken.len() });
                    gone += 1;
                    continue;
                }
                Take::Retry => add(&self.swap.stats.rare().take_retry, 1),
                Take::Busy => {
                    add(&self.swap.stats.rare().take_busy, 1);
                }
                Take::Unevictable => add(&self.swap.stats.rare().take_unevictable, 1),
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
            // The agent has ended, and the page with its process. If another process still shares that memory
            // (a vfork child whose parent was killed), the page is lost to it, and must not read as zero.
            if take == Take::Gone {
                *word = Word::NONE.with_state(State::Poisoned);
                continue;
            }
            let (fresh, record) = space.renewed(vpn, *word, 0);
            *word = fresh;
            if take == Take::Unevictable {
                space.park(vpn);
            } else {
                space.push_youngest([record]);
            }
        }
        self.swap.free(self.cpu, &lost);
        space.group(self.swap).uncharge(self.cpu, gone);
        space.count_resident(-(gone as i64));
        taken
    }

    /// Make the taken pages swap-cache pages. Zero pages need no slot, and the unused slots of `places` are
    /// freed.
    fn add_to_cache(
        &self,
        space: &Arc<Space>,
        taken: &[TakenPage],
        places: Places,
        buf: PageBuf,
        wanted: &mut Vec<Vpn>,
    ) -> Option<WriteOut> {
        let (zero, data): (Vec<TakenPage>, Vec<TakenPage>) =
            taken.iter().partition(|s| is_zero(&buf[s.place]));
        add(&self.swap.stats.on(self.cpu).swpout_zero, zero.len() as u64);
        self.kept.give_up_of(self.swap, self.cpu, space, zero.iter().map(|s| s.vpn));
        set_words(space, zero.iter().map(|s| (s.vpn, Word::NONE)), wanted);
        let (clean, data) = self.kept.split_clean(self.swap, self.cpu, space, data, &buf);
        // Counted before a fault can find them and count them off.
        space.count_swapped(clean.len() as i64);
        set_words(space, clean.iter().map(|(vpn, entry)| (*vpn, Word::swapped(*entry))), wanted);
        let entries = self.hand_out(places, taken, &data);
        if data.is_empty() {
            self.swap.frames.give_back(self.cpu, buf);
            return None;
        }
        let first_frame = self.swap.frames.publish(self.cpu, buf, data.len());
        let pages: Vec<CachedPage> = data
            .iter()
            .zip(&entries)
            .map(|(s, entry)| CachedPage { entry: *entry, frame: FrameId(first_frame.0 + s.place as u32) })
            .collect();
        self.swap.cache_add(&pages);
        space.count_swapped(data.len() as i64);
        let places = || data.iter().zip(&entries).map(|(s, entry)| (s.vpn, *entry));
        set_words(space, places().map(|(vpn, entry)| (vpn, Word::swapped(entry))), wanted);
        let told =
            space.memory.wants_stored().then(|| Told { space: space.clone(), pages: places().collect() });
        Some(WriteOut { pages, told })
    }

    /// The slots of `data`: those of the taken pages that need one. Frees the slots that are left over.
    fn hand_out(&self, mut places: Places, taken: &[TakenPage], data: &[TakenPage]) -> Vec<SwapEntry> {
        let mut needing = data.iter().peekable();
        let entries = taken
            .iter()
            .filter_map(|s| places.entry_for(s.vpn, needing.next_if(|d| d.vpn == s.vpn).is_some()))
            .collect();
        places.end_batch(self.swap, self.cpu);
        entries
    }
}

/// EVICTING → the given words, a lock for each chunk; faults that came meanwhile are collected.
fn set_words(space: &Space, words: impl Iterator<Item = (Vpn, Word)>, wanted: &mut Vec<Vpn>) {
    let mut words = words.peekable();
    while let Some(number) = words.peek().map(|(vpn, _)| vpn.0 / CHUNK_PAGES) {
        let chunk = space.chunk_or_new(Vpn(number * CHUNK_PAGES));
        let mut there = lock(&chunk);
        while let Some((vpn, new)) = words.next_if(|(vpn, _)| vpn.0 / CHUNK_PAGES == number) {
            let word = &mut there[index(vpn)];
            assert_eq!(word.state(), State::Evicting, "a taken page changed under its batch");
            if word.has(WANTED) {
                wanted.push(vpn);
            }
            *word = new;
        }
    }
}

fn is_zero(page: &Page) -> bool {
    // The last word first: pages that are almost zero seldom end so.
    page.0[4088..] == [0; 8] && page.0.iter().all(|b| *b == 0)
}
