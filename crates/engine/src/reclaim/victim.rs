//! Where a victim is chosen.
//!
//! No accessed bit can be read from outside on today's kernels, so what is known of a page is when it came and whether it
//! came back soon after it last left (heat). So: first in, first out, with another round for each degree of heat, and
//! staging as the second chance (a page that is touched while it waits there comes back without I/O).
//!
//! ```text
//!   LRU: [young ............ old] ─▶ stale? drop   hot? cool it, push young   else victim
//!                                        └─ and what leaves with it:
//!   folio=auto  those of its 64 KiB that came in the older half; where that is all of them, the aligned block
//!               twice as large if all of its other half is so too, and so on
//!   folio=SIZE  the aligned block of that size, if all of it is present: one LRU position for all of it
//! ```
//!
//! What leaves together matters because taking a page out costs a TLB flush for each contiguous run, not for each page:
//! runs are what makes eviction cheap (the kernel's reason for swapping out whole folios).

use crate::engine::Engine;
use crate::folio::{self, AUTO_ORDER_MIN, runs_of};
use crate::group::Group;
use crate::memory::Run;
use crate::reclaim::lru::Record;
use crate::space::{CHUNK_PAGES, Space, index};
use crate::stats::add;
use crate::sync::{Arc, Ordering, lock};
use crate::tuning::FolioSize;
use crate::units::{CpuId, Vpn};
use crate::word::{State, Word};
use std::ops::Range;

/// Victims are extended to their naturally aligned neighbourhood of this many pages.
const NEIGHBOURHOOD_PAGES: usize = 1 << AUTO_ORDER_MIN.0;
/// With twice as many spaces and more, one is picked from so many.
const PICKED_FROM: usize = 8;
/// What a batch is reckoned at when a space is picked for it.
const PICKED_PAGES: usize = 64;
/// A space that is spared gives so much less of each page that it has.
const SPARED_PART: f64 = 32.0;

impl Engine {
    /// The space that gives the next batch, of the deepest group that is pressed and has one: pages taken in proportion to what is resident, so that everyone is pressed
    /// alike and idle ones drain, because their pages do not come back.
    pub fn pick_space(&self) -> Option<Arc<Space>> {
        let spaces = self.list_of_spaces();
        // Last those who may have no more swap: to find that out for good, and that nothing else can be done.
        let picked = [true, false].into_iter().find_map(|with_swap| self.pick_for_pressed(&spaces, with_swap));
        if picked.is_none() {
            self.groups.drain_stocks();
        }
        let (group, picked) = picked?;
        if group.high_bytes() < group.limit_bytes() {
            add(&group.events.high, 1);
        }
        Some(picked)
    }

    fn pick_for_pressed(&self, spaces: &[Arc<Space>], with_swap: bool) -> Option<(&Arc<Group>, Arc<Space>)> {
        let mut pressed = self.groups.pressed();
        // Nobody is pressed: he who asks wants room anyway.
        let first = pressed.next().unwrap_or(&self.group);
        std::iter::once(first).chain(pressed).find_map(|group| {
            let picked = match self.some_of(spaces) {
                Some(some) => self.pick_in(group, some, with_swap).or_else(|| self.pick_in(group, spaces, with_swap)),
                None => self.pick_in(group, spaces, with_swap),
            };
            Some((group, picked?))
        })
    }

    /// Of many spaces, some: else all reclaimers at once would find the same one, and wait for each other. Each search has
    /// others before it, and all have their turn.
    fn some_of<'a>(&self, spaces: &'a [Arc<Space>]) -> Option<&'a [Arc<Space>]> {
        let parts = spaces.len() / PICKED_FROM;
        if parts < 2 {
            return None;
        }
        let part = self.next_pick.fetch_add(1, Ordering::Relaxed) as usize % parts;
        let end = if part + 1 == parts { spaces.len() } else { (part + 1) * PICKED_FROM };
        Some(&spaces[part * PICKED_FROM..end])
    }

    fn pick_in(&self, group: &Group, spaces: &[Arc<Space>], with_swap: bool) -> Option<Arc<Space>> {
        let may_give = |s: &&Arc<Space>| {
            let of = s.group(self);
            !s.is_dead() && !s.is_aside() && s.resident_pages() > 0 && of.is_within(group) && of.has_swap() == with_swap
        };
        let mut candidates: Vec<(f64, &Arc<Space>)> = spaces.iter().filter(may_give).map(|s| (s.pass(), s)).collect();
        loop {
            let (n, (_, picked)) = candidates.iter().enumerate().min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0))?;
            // Only now: it takes the lock of the LRU, and with many processes all of those would be taken for each batch.
            if picked.evictable() > 0 {
                // Charged before its victims are known, so that who picks next finds another one instead of waiting for this.
                picked.charge_pass(PICKED_PAGES);
                return Some((*picked).clone());
            }
            candidates.swap_remove(n);
        }
    }

    /// Choose `n` pages of `space`, more where they leave together, but at most `room`; mark them EVICTING, and return them
    /// as ascending runs.
    pub(crate) fn choose_victims(&self, cpu: CpuId, space: &Space, n: usize, room: usize) -> Vec<Run> {
        let mut victims = Victims { pages: Vec::with_capacity(room), goal: n.min(room), room };
        // Heat is finite, so a queue of hot pages only is cold after some rounds; the bound keeps one call short.
        let mut looks = 4 * n + 64;
        while victims.pages.len() < victims.goal && looks > 0 {
            looks -= 1;
            let Some(record) = lock(&space.lru).pop() else { break };
            add(&self.stats.on(cpu).pgscan, 1);
            if !self.consider(cpu, space, record, &mut victims) {
                lock(&space.lru).push_oldest(record);
                break;
            }
        }
        victims.pages.sort_unstable();
        runs_of(victims.pages)
    }

    /// False: it leaves with others, for which there is no room in this batch.
    fn consider(&self, cpu: CpuId, space: &Space, record: Record, victims: &mut Victims) -> bool {
        let vpn = record.vpn();
        let Some(chunk) = space.chunk(vpn) else { return true };
        let mut words = lock(&chunk);
        let word = words[index(vpn)];
        if word.state() != State::Resident || word.stamp() != record.stamp() {
            return true;
        }
        if word.heat() > 0 {
            let (fresh, record) = space.renewed(vpn, word, word.heat() - 1);
            words[index(vpn)] = fresh;
            lock(&space.lru).push(record);
            add(&self.stats.on(cpu).pgrotated, 1);
            return true;
        }
        let mut block = Block { words: &mut words[..], chunk: Vpn(vpn.0 - index(vpn) as u64) };
        match self.tuning.folio {
            FolioSize::Auto => block.choose_cold(space, index(vpn), victims),
            FolioSize::Fixed(order) => return block.choose_whole(index(vpn), order.pages() as usize, victims),
        }
        true
    }

    /// Mark resident pages of [from, to) EVICTING, hot ones too, as many as a batch holds. Returns them as ascending runs,
    /// and where to go on.
    pub(crate) fn choose_range(&self, space: &Space, from: Vpn, to: Vpn, room: usize) -> (Vec<Run>, Vpn) {
        let together = NEIGHBOURHOOD_PAGES.max(folio::pages_asked_for(&self.tuning)) as u64;
        let mut pages: Vec<Vpn> = Vec::with_capacity(room);
        let mut at = from;
        while at < to
            && let Some((first, chunk)) = space.chunk_from(at)
        {
            at = at.max(first);
            let mut words = lock(&chunk);
            let end = Vpn(to.0.min(first.0 + CHUNK_PAGES));
            while at < end {
                // A block that may leave as one is not torn.
                let needed = if at.0.is_multiple_of(together) && !pages.is_empty() { together as usize } else { 1 };
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
struct Block<'a> {
    words: &'a mut [Word],
    chunk: Vpn,
}

impl Block<'_> {
    fn take(&mut self, at: usize, victims: &mut Victims) {
        self.words[at] = self.words[at].with_state(State::Evicting);
        victims.pages.push(Vpn(self.chunk.0 + at as u64));
    }

    fn take_all(&mut self, range: Range<usize>, victims: &mut Victims) {
        range.for_each(|at| self.take(at, victims));
    }

    /// folio=auto. The page itself, and what is as cold around it.
    fn choose_cold(&mut self, space: &Space, at: usize, victims: &mut Victims) {
        let age = space.age_of(self.words[at]);
        let cold = |word: &Word| word.state() == State::Resident && word.heat() == 0 && space.age_of(*word) >= age / 2;
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
            if !self.words[other_half..other_half + pages].iter().all(cold) {
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

const _: () = assert!(CHUNK_PAGES.is_multiple_of(NEIGHBOURHOOD_PAGES as u64), "a neighbourhood lies in one chunk");

impl Space {
    /// Pages that reclaim may look at.
    pub fn evictable(&self) -> usize {
        lock(&self.lru).len()
    }

    /// How many stamps ago the page came in.
    fn age_of(&self, word: Word) -> u64 {
        self.stamp_now().wrapping_sub(word.stamp()) & crate::word::STAMP_MASK
    }

    /// Stride scheduling: the space with the least pass gives the next batch.
    fn pass(&self) -> f64 {
        f64::from_bits(self.pass_bits.load(Ordering::Relaxed))
    }
    fn charge_pass(&self, pages: usize) {
        let part = if self.spared.load(Ordering::Relaxed) { SPARED_PART } else { 1.0 };
        let step = part * pages.max(1) as f64 / self.resident_pages().max(1) as f64;
        self.pass_bits.store((self.pass() + step).to_bits(), Ordering::Relaxed);
    }
    /// From now on it gives less than its share: what it has, it uses. Or its share again.
    pub fn spare(&self, spared: bool) {
        self.spared.store(spared, Ordering::Relaxed);
    }
    /// It cannot give a batch now: the others come first.
    pub fn pass_over(&self) {
        self.charge_pass(NEIGHBOURHOOD_PAGES);
    }
    /// It cannot give any until further notice (its process stands still): it is not picked, and others are not held up
    /// by being picked after it. Or it can again, and then has its turn like a new one, whatever was passed over.
    pub fn set_aside(&self, aside: bool, all: &[Arc<Space>]) {
        if self.aside.swap(aside, Ordering::Relaxed) && !aside {
            self.join(all);
        }
    }
    pub fn is_aside(&self) -> bool {
        self.aside.load(Ordering::Relaxed)
    }
    /// A new space starts where the others are, neither favoured nor punished.
    pub fn join(&self, others: &[Arc<Space>]) {
        let least = others.iter().map(|s| s.pass()).fold(f64::INFINITY, f64::min);
        self.pass_bits.store(if least.is_finite() { least } else { 0.0 }.to_bits(), Ordering::Relaxed);
    }
}
