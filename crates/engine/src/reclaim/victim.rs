//! Where a victim is chosen.
//!
//! No accessed bit can be read from outside on today's kernels, so what is known of a page is when it came
//! and whether it came back soon after it last left (heat). So: the queues' order (queues.rs), with another
//! round for each degree of heat, and the swap cache as the second chance (a page that is touched while it
//! waits there comes back without I/O).
//!
//! ```text
//!   queues: [young ......... old] ─▶ stale? drop   hot? cool it, push young   else victim
//!                                        └─ and what leaves with it:
//!   folio=auto  those of its 64 KiB that came in the older half; where that is all of them, the aligned
//!               block twice as large if all of its other half is so too, and so on
//!   folio=SIZE  the aligned block of that size, if all of it is present: one LRU position for all of it
//! ```
//!
//! Pages leave together because taking a page out costs a TLB flush for each contiguous run, not for each
//! page: runs are what makes eviction cheap (the kernel's reason for swapping out whole folios).

use crate::memory::{PageRun, runs_of};
use crate::reclaim::lru::Record;
use crate::reclaim::queues::Source;
use crate::space::{CHUNK_PAGES, Space, index};
use crate::stats::add;
use crate::swap::Swap;
use crate::sync::lock;
use crate::tuning::{AUTO_ORDER_MIN, FolioSize, Tuning};
use crate::units::{CpuId, Vpn};
use crate::word::{MADE_OWN, ON_TRIAL, State, Word};
use std::ops::Range;

/// Victims are extended to their naturally aligned neighbourhood of this many pages.
const NEIGHBOURHOOD_PAGES: usize = 1 << AUTO_ORDER_MIN.0;

/// The most records that are looked at before a call comes back without a page: less than a ms.
const LOOKS_FOR_ONE: usize = 8192;

impl Space {
    /// Choose `n` pages, more where they leave together, but at most `room`; mark them EVICTING, and return
    /// them as ascending runs.
    pub(crate) fn choose_victims(&self, swap: &Swap, cpu: CpuId, n: usize, room: usize) -> Vec<PageRun> {
        let mut victims = Victims { pages: Vec::with_capacity(room), goal: n.min(room), room };
        // Heat is finite, so a queue of hot pages only is cold after some rounds; the bounds keep one call
        // short. The first page is looked for longer: whoever gets none sleeps, while faults wait for room.
        let mut looks = LOOKS_FOR_ONE;
        while victims.pages.len() < victims.goal && looks > 0 {
            looks -= 1;
            let Some((record, source)) = self.pop_next() else { break };
            add(&swap.stats.on(cpu).pgscan, 1);
            if !self.consider(swap, cpu, record, source, &mut victims) {
                self.push_next(record);
                break;
            }
            if !victims.pages.is_empty() {
                looks = looks.min(4 * n + 64);
            }
        }
        victims.pages.sort_unstable();
        runs_of(victims.pages)
    }

    /// False: it leaves with others, for which there is no room in this batch.
    fn consider(
        &self,
        swap: &Swap,
        cpu: CpuId,
        record: Record,
        source: Source,
        victims: &mut Victims,
    ) -> bool {
        let vpn = record.vpn();
        let Some(chunk) = self.chunk(vpn) else {
            self.was_stale(source);
            return true;
        };
        let mut words = lock(&chunk);
        let word = words[index(vpn)];
        if word.state() != State::Resident || word.stamp() != record.stamp() {
            self.was_stale(source);
            return true;
        }
        if word.heat() > 0 {
            let (fresh, record) = self.renewed(vpn, word, word.heat() - 1);
            words[index(vpn)] = fresh;
            self.push_youngest([record]);
            add(&swap.stats.on(cpu).pgrotated, 1);
            return true;
        }
        let mut chunk_words = ChunkWords { words: &mut words[..], chunk: Vpn(vpn.0 - index(vpn) as u64) };
        match swap.tuning.folio {
            FolioSize::Auto => {
                let before = victims.pages.len() + 1;
                chunk_words.choose_cold(self, index(vpn), victims);
                self.gone_with(vpn, word.has(ON_TRIAL), victims.pages.len() - before);
            }
            FolioSize::Fixed(order) => {
                return chunk_words.choose_whole(index(vpn), order.pages() as usize, victims);
            }
        }
        true
    }

    /// Mark resident pages of [from, to) EVICTING, hot ones too, as many as a batch holds. Returns them as
    /// ascending runs, and where to go on.
    pub(crate) fn choose_range(
        &self,
        tuning: &Tuning,
        from: Vpn,
        to: Vpn,
        room: usize,
    ) -> (Vec<PageRun>, Vpn) {
        let together = NEIGHBOURHOOD_PAGES.max(tuning.folio_pages()) as u64;
        let mut pages: Vec<Vpn> = Vec::with_capacity(room);
        let mut at = from;
        while at < to
            && let Some((first, chunk)) = self.chunk_from(at)
        {
            at = at.max(first);
            let mut words = lock(&chunk);
            let end = Vpn(to.0.min(first.0 + CHUNK_PAGES));
            while at < end {
                // A block that may leave as one is not torn.
                let needed =
                    if at.0.is_multiple_of(together) && !pages.is_empty() { together as usize } else { 1 };
                if pages.len() + needed > room {
                    return (runs_of(pages), at);
                }
                let word = &mut words[index(at)];
                if word.state() == State::Resident {
                    *word = word.with_state(State::Evicting);
                    pages.push(at);
                }
                at.0 += 1;
            }
        }
        (runs_of(pages), to)
    }
}

struct Victims {
    pages: Vec<Vpn>,
    /// About so many, and no more than `room`.
    goal: usize,
    room: usize,
}

impl Victims {
    fn has_room_for(&self, pages: usize) -> bool {
        self.pages.len() + pages <= self.room
    }
}

/// The words of a chunk, and its first page.
struct ChunkWords<'a> {
    words: &'a mut [Word],
    chunk: Vpn,
}

impl ChunkWords<'_> {
    fn take(&mut self, at: usize, victims: &mut Victims) {
        self.words[at] = self.words[at].with_state(State::Evicting);
        victims.pages.push(Vpn(self.chunk.0 + at as u64));
    }

    fn take_all(&mut self, range: Range<usize>, victims: &mut Victims) {
        range.for_each(|at| self.take(at, victims));
    }

    /// folio=auto. The page itself, and what is as cold around it.
    fn choose_cold(&mut self, space: &Space, at: usize, victims: &mut Victims) {
        let (age, on_trial) = (space.age_of(self.words[at]), self.words[at].has(ON_TRIAL));
        // Pinned pages that were made the process's own come first, and would take others with them, which
        // are made its own then: nothing else had its turn any more.
        let is_own = self.words[at].has(MADE_OWN);
        let (ways, first_page) = (space.ways(), self.chunk.0);
        let role = ways.role(Vpn(first_page + at as u64));
        let cold = |word: &Word| {
            word.state() == State::Resident
                && word.heat() == 0
                && word.has(ON_TRIAL) == on_trial
                && word.has(MADE_OWN) == is_own
                && space.age_of(*word) >= age / 2
        };
        // Blocks of other roles are no part of it, for a leader gives what it has by itself.
        let is_of_role = |block: Range<usize>| {
            let mut blocks = block.step_by(NEIGHBOURHOOD_PAGES);
            blocks.all(|page| ways.role(Vpn(first_page + page as u64)) == role)
        };
        let mut pages = NEIGHBOURHOOD_PAGES;
        let mut first = at & !(pages - 1);
        if !victims.has_room_for(pages) || !self.words[first..first + pages].iter().all(cold) {
            self.take(at, victims);
            for near in first..first + pages {
                if victims.has_room_for(1) && cold(&self.words[near]) {
                    self.take(near, victims);
                }
            }
            return;
        }
        self.take_all(first..first + pages, victims);
        while pages < self.words.len() && victims.pages.len() + pages <= victims.goal {
            let other_half = first ^ pages;
            let other_half_pages = other_half..other_half + pages;
            if !is_of_role(other_half_pages.clone()) || !self.words[other_half_pages].iter().all(cold) {
                break;
            }
            self.take_all(other_half..other_half + pages, victims);
            first &= !pages;
            pages *= 2;
        }
    }

    /// folio=SIZE. False: there is no room for the block.
    fn choose_whole(&mut self, at: usize, pages: usize, victims: &mut Victims) -> bool {
        let first = at & !(pages - 1);
        let block = first..first + pages;
        if !self.words[block.clone()].iter().all(|word| word.state() == State::Resident) {
            self.take(at, victims);
            return true;
        }
        let fits = victims.has_room_for(pages);
        if fits {
            self.take_all(block, victims);
        } else if victims.pages.is_empty() {
            // Not even an empty batch holds it: the swap is nearly full.
            self.take(at, victims);
            return true;
        }
        fits
    }
}

const _: () =
    assert!(CHUNK_PAGES.is_multiple_of(NEIGHBOURHOOD_PAGES as u64), "a neighbourhood lies in one chunk");

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::memory::pages_of;
    use crate::sync::Arc;
    use crate::testing::blank::BlankMemory;
    use crate::units::SpaceId;

    #[test]
    fn where_all_pages_are_hot_some_leave_all_the_same() {
        const PAGES: u64 = 1500;
        let engine = Engine::new(Vec::new(), 64 << 20, Tuning::default());
        let space = Space::new(SpaceId(1), Arc::new(BlankMemory));
        space.adopt(engine.swap(), Vpn(0), Vpn(PAGES));
        space.visit_words(Vpn(0), Vpn(PAGES), |_, word| *word = word.with_heat(3));
        let victims = space.choose_victims(engine.swap(), CpuId(0), 64, 64);
        assert_eq!(pages_of(&victims).count(), 64);
    }
}
