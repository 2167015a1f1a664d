//! Folios: which pages of a batch leave as one, and the slots that they get.
//!
//! ```text
//!   victims   ·· ████████████████ · ··· ████████        aligned blocks that are victims whole: folios
//!                  order 4               order 3        the rest: single pages
//!
//!   slots     order 4: a block in a row, aligned        from the clusters of that order
//!             none to be had: the folio is split        counted (swpout_fallback); its pages are single pages
//!             single pages: one by one                  whatever is free
//! ```
//!
//! No state is kept of a folio. It is an aligned run of 2^order pages of one chunk that was chosen to leave together, and
//! its order is forgotten when its pages have their entries: what comes back, is unmapped or is forked is pages, and a
//! part of a large entry is freed as any slots are.
//!
//! # Invariants
//!
//! * Each victim has a slot of its own before any of them is taken; who gets none is no victim.
//! * The slots of a folio are a block of its order, in one cluster. The pages of it that hold something use them
//!   from the first one on, in the order of their addresses; what is left over (a page was zero, has its kept copy, or could
//!   not be taken) is a run at the block's end, and goes back at once. So what is written is always in a row. (Keeping a slot for a
//!   zero page would keep the row too, but it would be written, read and stored, and the swap be full the sooner.)
//!
//! What it does not do: choose victims, or move pages.

use crate::engine::Engine;
use crate::group::Group;
use crate::memory::Run;
use crate::space::CHUNK_PAGES;
use crate::stats::add;
use crate::tuning::{FolioSize, LargeFolios, Tuning};
use crate::units::{CpuId, MAX_ORDER, Order, SlotIndex, Vpn};
use crate::word::SwapEntry;

/// Below it a block that happens to be cold together is not worth a search for slots of its own: 64 KiB.
pub(crate) const AUTO_ORDER_MIN: Order = Order(4);

const _: () = assert!(1 << MAX_ORDER == CHUNK_PAGES, "the largest folio is a chunk");

/// An aligned run of pages of one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Folio {
    pub first: Vpn,
    pub order: Order,
}

impl Folio {
    fn end(self) -> u64 {
        self.first.0 + u64::from(self.order.pages())
    }
    fn pages(self) -> impl Iterator<Item = Vpn> {
        (self.first.0..self.end()).map(Vpn)
    }
}

/// Pages of the folios that the knob asks for, which a batch must be able to hold.
pub(crate) fn pages_asked_for(tuning: &Tuning) -> usize {
    match tuning.folio {
        FolioSize::Auto => 1,
        FolioSize::Fixed(order) => order.pages() as usize,
    }
}

/// The orders that folios may have; None: all is single pages.
fn orders(tuning: &Tuning) -> Option<(Order, Order)> {
    match (tuning.large_folios, tuning.folio) {
        (LargeFolios::Split, _) | (_, FolioSize::Fixed(Order::ZERO)) => None,
        (_, FolioSize::Auto) => Some((AUTO_ORDER_MIN, Order(MAX_ORDER))),
        (_, FolioSize::Fixed(order)) => Some((order.min(AUTO_ORDER_MIN), order)),
    }
}

/// Ascending runs as aligned blocks, each as large as it can be, and the pages that lie in none.
fn decompose(runs: &[Run], smallest: Order, largest: Order) -> (Vec<Folio>, Vec<Vpn>) {
    let (mut folios, mut single) = (Vec::new(), Vec::new());
    for run in runs {
        let (mut at, end) = (run.vpn.0, run.vpn.0 + u64::from(run.pages));
        while at < end {
            let fits = (end - at).ilog2().min(at.trailing_zeros()).min(u32::from(largest.0));
            let folio = Folio { first: Vpn(at), order: Order(fits as u8) };
            if folio.order < smallest {
                single.extend(folio.pages());
            } else {
                folios.push(folio);
            }
            at = folio.end();
        }
    }
    (folios, single)
}

/// A folio and its slots.
struct Block {
    folio: Folio,
    first: SwapEntry,
    /// Pages of it that were taken, and slots of it that are used: fewer, if pages were zero.
    taken: u32,
    used: u32,
}

impl Block {
    fn entry(&self, place: u32) -> SwapEntry {
        SwapEntry { device: self.first.device, slot: SlotIndex(self.first.slot.0 + place) }
    }
}

/// The slots of a batch, to be handed to its pages in the order of their addresses.
pub(crate) struct Places {
    /// Ascending by address.
    blocks: Vec<Block>,
    /// For single pages, ascending, so that what is read together later lies together.
    single: Vec<SwapEntry>,
    /// How far both have been handed out.
    block: usize,
    used_single: usize,
    /// Victims for which there is no slot.
    pub without: Vec<Vpn>,
}

impl Places {
    /// The block of a page, if it leaves in a folio. Pages ask in ascending order.
    fn block_of(&mut self, vpn: Vpn) -> Option<&mut Block> {
        while self.blocks.get(self.block).is_some_and(|block| block.folio.end() <= vpn.0) {
            self.block += 1;
        }
        self.blocks.get_mut(self.block).filter(|block| block.folio.first <= vpn)
    }

    /// The page was taken: its slot, if it needs one.
    pub fn entry_for(&mut self, vpn: Vpn, needs_one: bool) -> Option<SwapEntry> {
        if let Some(block) = self.block_of(vpn) {
            block.taken += 1;
            block.used += u32::from(needs_one);
            return needs_one.then(|| block.entry(block.used - 1));
        }
        self.used_single += usize::from(needs_one);
        needs_one.then(|| self.single[self.used_single - 1])
    }

    /// What nobody has asked for.
    fn unused(&self) -> Vec<SwapEntry> {
        let ends = self.blocks.iter().flat_map(|b| (b.used..b.folio.order.pages()).map(|place| b.entry(place)));
        ends.chain(self.single[self.used_single..].iter().copied()).collect()
    }
}

impl Engine {
    /// Slots for the pages of a batch, given as ascending runs.
    pub(crate) fn alloc_places(&self, cpu: CpuId, group: &Group, runs: &[Run]) -> Places {
        let (mut folios, mut loose) = match orders(&self.tuning) {
            Some((smallest, largest)) => decompose(runs, smallest, largest),
            None => (Vec::new(), pages_of(runs).collect()),
        };
        folios.sort_by_key(|folio| std::cmp::Reverse(folio.order));
        let mut blocks = Vec::with_capacity(folios.len());
        let mut firsts = Vec::new();
        for same in folios.chunk_by(|a, b| a.order == b.order) {
            let order = same[0].order;
            firsts.clear();
            let got = self.alloc_slots(cpu, group, order, same.len(), &mut firsts);
            let block = |(folio, first): (&Folio, &SwapEntry)| Block { folio: *folio, first: *first, taken: 0, used: 0 };
            blocks.extend(same.iter().zip(&firsts).map(block));
            let split = &same[got..];
            add(&self.stats.on(cpu).swpout_fallback[order.0 as usize], split.len() as u64);
            loose.extend(split.iter().flat_map(|folio| folio.pages()));
        }
        let mut single = Vec::with_capacity(loose.len());
        let got = self.alloc_slots(cpu, group, Order::ZERO, loose.len(), &mut single);
        blocks.sort_by_key(|block: &Block| block.folio.first);
        single.sort_unstable();
        loose.sort_unstable();
        Places { blocks, single, block: 0, used_single: 0, without: loose.split_off(got) }
    }

    /// The batch is where it goes: give back what it did not need, and count its folios.
    pub(crate) fn close_places(&self, cpu: CpuId, places: &Places) {
        let counters = self.stats.on(cpu);
        for block in &places.blocks {
            let at = block.folio.order.0 as usize;
            if block.taken < block.folio.order.pages() {
                add(&counters.swpout_fallback[at], 1);
            } else if block.used > 0 {
                add(&counters.swpout[at], 1);
            }
        }
        self.free_entries(cpu, &places.unused());
    }
}

/// The pages of runs, in order.
pub(crate) fn pages_of(runs: &[Run]) -> impl Iterator<Item = Vpn> {
    runs.iter().flat_map(|r| (0..u64::from(r.pages)).map(|i| Vpn(r.vpn.0 + i)))
}

/// Ascending pages as contiguous runs.
pub(crate) fn runs_of(pages: impl IntoIterator<Item = Vpn>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for vpn in pages {
        match runs.last_mut() {
            Some(run) if run.vpn.0 + u64::from(run.pages) == vpn.0 => run.pages += 1,
            _ => runs.push(Run { vpn, pages: 1 }),
        }
    }
    runs
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;

    fn blocks(runs: &[(u64, u32)], smallest: u8, largest: u8) -> (Vec<(u64, u8)>, Vec<u64>) {
        let runs: Vec<Run> = runs.iter().map(|(vpn, pages)| Run { vpn: Vpn(*vpn), pages: *pages }).collect();
        let (folios, single) = decompose(&runs, Order(smallest), Order(largest));
        (folios.iter().map(|f| (f.first.0, f.order.0)).collect(), single.iter().map(|v| v.0).collect())
    }

    #[test]
    fn runs_become_aligned_blocks() {
        assert_eq!(blocks(&[(512, 512)], 4, 9), (vec![(512, 9)], vec![]));
        assert_eq!(blocks(&[(512, 512)], 4, 6).0.len(), 8);
        // 510 and 511 stand alone, then 16 and 8 pages, of which 8 are too few.
        assert_eq!(blocks(&[(510, 26)], 4, 9), (vec![(512, 4)], [vec![510, 511], (528..536).collect()].concat()));
        assert_eq!(blocks(&[(8, 8), (32, 1)], 3, 9), (vec![(8, 3)], vec![32]));
        assert_eq!(blocks(&[(0, 2048)], 4, 9).0, [(0, 9), (512, 9), (1024, 9), (1536, 9)]);
    }

    #[test]
    fn pages_and_runs_are_the_same() {
        let pages: Vec<Vpn> = [1, 2, 3, 7, 9, 10].map(Vpn).to_vec();
        let runs = runs_of(pages.iter().copied());
        assert_eq!(runs.len(), 3);
        assert_eq!(pages_of(&runs).collect::<Vec<_>>(), pages);
    }
}
