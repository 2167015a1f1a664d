//! Where a victim is chosen.
//!
//! No accessed bit can be read from outside on today's kernels, so what is known of a page is when it came and whether it
//! came back soon after it last left (heat). So: first in, first out, with another round for each degree of heat, and
//! staging as the second chance (a page that is touched while it waits there comes back without I/O).
//!
//! ```text
//!   LRU: [young ............ old] ─▶ stale? drop   hot? cool it, push young   else victim
//!                                        └─ its neighbours in the same 64 KiB that came in the older half go with it
//! ```
//!
//! The neighbours matter because taking a page out costs a TLB flush for each contiguous run, not for each page: runs are
//! what makes eviction cheap (the kernel's reason for swapping out whole folios).

use crate::engine::Engine;
use crate::group::Group;
use crate::memory::Run;
use crate::reclaim::lru::Record;
use crate::space::{CHUNK_PAGES, Space, index};
use crate::stats::add;
use crate::sync::{Arc, Ordering, lock};
use crate::units::{CpuId, Vpn};
use crate::word::{State, Word};

/// Victims are extended to their naturally aligned neighbourhood of this many pages.
const NEIGHBOURHOOD_PAGES: u64 = 16;
/// With twice as many spaces and more, one is picked from so many.
const PICKED_FROM: usize = 8;
/// What a batch is reckoned at when a space is picked for it.
const PICKED_PAGES: usize = 64;

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
            !s.is_dead() && s.resident_pages() > 0 && of.is_within(group) && of.has_swap() == with_swap
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

    /// Choose up to `n` pages of `space`, mark them EVICTING, and return them as ascending runs.
    pub(crate) fn choose_victims(&self, cpu: CpuId, space: &Space, n: usize) -> Vec<Run> {
        let mut victims: Vec<Vpn> = Vec::with_capacity(n);
        // Heat is finite, so a queue of hot pages only is cold after some rounds; the bound keeps one call short.
        let mut looks = 4 * n + 64;
        while victims.len() < n && looks > 0 {
            looks -= 1;
            let Some(record) = lock(&space.lru).pop() else { break };
            add(&self.stats.on(cpu).pgscan, 1);
            self.consider(cpu, space, record, n, &mut victims);
        }
        victims.sort_unstable();
        runs_of(&victims)
    }

    fn consider(&self, cpu: CpuId, space: &Space, record: Record, n: usize, victims: &mut Vec<Vpn>) {
        let vpn = record.vpn();
        let Some(chunk) = space.chunk(vpn) else { return };
        let mut words = lock(&chunk);
        let word = words[index(vpn)];
        if word.state() != State::Resident || word.stamp() != record.stamp() {
            return;
        }
        if word.heat() > 0 {
            let (fresh, record) = space.renewed(vpn, word, word.heat() - 1);
            words[index(vpn)] = fresh;
            lock(&space.lru).push(record);
            add(&self.stats.on(cpu).pgrotated, 1);
            return;
        }
        words[index(vpn)] = word.with_state(State::Evicting);
        victims.push(vpn);
        let age = space.age_of(word);
        let first = vpn.0 & !(NEIGHBOURHOOD_PAGES - 1);
        for page in (first..first + NEIGHBOURHOOD_PAGES).map(Vpn) {
            let word = &mut words[index(page)];
            let old = word.state() == State::Resident && word.heat() == 0 && space.age_of(*word) >= age / 2;
            if old && victims.len() < n {
                *word = word.with_state(State::Evicting);
                victims.push(page);
            }
        }
    }
}

const _: () = assert!(CHUNK_PAGES.is_multiple_of(NEIGHBOURHOOD_PAGES), "a neighbourhood lies in one chunk");

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
        let step = pages.max(1) as f64 / self.resident_pages().max(1) as f64;
        self.pass_bits.store((self.pass() + step).to_bits(), Ordering::Relaxed);
    }
    /// It cannot give a batch now: the others come first.
    pub fn pass_over(&self) {
        self.charge_pass(NEIGHBOURHOOD_PAGES as usize);
    }
    /// A new space starts where the others are, neither favoured nor punished.
    pub fn join(&self, others: &[Arc<Space>]) {
        let least = others.iter().map(|s| s.pass()).fold(f64::INFINITY, f64::min);
        self.pass_bits.store(if least.is_finite() { least } else { 0.0 }.to_bits(), Ordering::Relaxed);
    }
}

/// Ascending pages as contiguous runs.
fn runs_of(pages: &[Vpn]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for vpn in pages {
        match runs.last_mut() {
            Some(run) if run.vpn.0 + u64::from(run.pages) == vpn.0 => run.pages += 1,
            _ => runs.push(Run { vpn: *vpn, pages: 1 }),
        }
    }
    runs
}
