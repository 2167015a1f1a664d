//! Folios: which pages of a batch leave as one, and the slots that they get.
//!
//! ```text
//!   victims   ·· ████████████████ · ··· ████████        aligned blocks that are victims whole: folios
//!                  order 4               order 3        the rest: single pages
//!
//!   slots     order 6: a block in a row, aligned        from the clusters of that order, or what is free
//!                                                       in others
//!             no such block: two of order 5, and so on  counted (swpout_fallback)
//!             no block of 64 KiB: single pages          counted (swpout_split)
//!             single pages: one by one                  any free slots
//! ```
//!
//! The seed's form (`large-folios=free-cluster-only`) knows no steps: what finds no block is single pages.
//!
//! `large-folios=split`, the old form: a block of the size that is set (`folio=SIZE`) is split before
//! anything else. Its pages leave one by one, each with a slot and a move of its own (where the program has
//! a huge page there, the kernel splits it at the first of them), and the folio is counted. With
//! `folio=auto` nothing is whole: what is cold together are pages.
//!
//! No state is kept of a folio. It is an aligned run of 2^order pages of one chunk that was chosen to leave
//! together, and its order is forgotten when its pages have their entries: what comes back, is unmapped or is
//! forked is pages, and a part of a large entry is freed as any slots are.
//!
//! # Invariants
//!
//! * Each victim has a slot of its own before any of them is taken; a page without a slot is no victim.
//! * The slots of a folio are a block of its order, in one cluster. The pages of it that hold something use
//!   them from the first one on, in the order of their addresses; what is left over (a page was zero, has its
//!   kept copy, or could not be taken) is a run at the block's end, and is freed at once. So the slots that
//!   are written are always in a row. (They would also be if a zero page kept a slot; but then the page would
//!   be written, read and stored, and the swap would be full sooner.)
//!
//! What it does not do: choose victims, or move pages.

use crate::group::Group;
use crate::memory::{PageRun, pages_of, runs_of};
use crate::space::CHUNK_PAGES;
use crate::stats::add;
use crate::swap::Swap;
use crate::tuning::{AUTO_ORDER_MIN, FolioSize, LargeFolios, Tuning};
use crate::units::{CpuId, MAX_ORDER, Order, SlotIndex, Vpn};
use crate::word::SwapEntry;

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
    fn halves(self) -> [Folio; 2] {
        let order = Order(self.order.0 - 1);
        [self.first.0, self.first.0 + u64::from(order.pages())]
            .map(|first| Folio { first: Vpn(first), order })
    }
}

/// The orders that folios may have; None: all is single pages.
pub(crate) fn orders(tuning: &Tuning) -> Option<(Order, Order)> {
    match (tuning.large_folios, tuning.folio) {
        (LargeFolios::Split, _) | (_, FolioSize::Fixed(Order::ZERO)) => None,
        (_, FolioSize::Auto) => Some((AUTO_ORDER_MIN, Order(MAX_ORDER))),
        (_, FolioSize::Fixed(order)) => Some((order.min(AUTO_ORDER_MIN), order)),
    }
}

/// Ascending runs as aligned blocks, each as large as it can be, and the pages that lie in none.
fn decompose(runs: &[PageRun], smallest: Order, largest: Order) -> (Vec<Folio>, Vec<Vpn>) {
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

/// The runs of a batch as they are to be moved. Old form: of each folio that is whole, page by page.
pub(crate) fn split_whole(swap: &Swap, cpu: CpuId, runs: Vec<PageRun>) -> Vec<PageRun> {
    let FolioSize::Fixed(order) = swap.tuning.folio else { return runs };
    if swap.tuning.large_folios != LargeFolios::Split || order == Order::ZERO {
        return runs;
    }
    let (folios, loose) = decompose(&runs, order, order);
    add(&swap.stats.on(cpu).split[order.0 as usize], folios.len() as u64);
    let mut split = runs_of(loose);
    let by_themselves = folios.iter().flat_map(|folio| folio.pages()).map(|vpn| PageRun { vpn, pages: 1 });
    split.extend(by_themselves);
    split.sort_unstable_by_key(|run| run.vpn);
    split
}

/// A folio and its slots.
struct PlacedFolio {
    folio: Folio,
    first: SwapEntry,
    /// Pages of it that were taken, and slots of it that are used: fewer, if pages were zero.
    taken: u32,
    used: u32,
}

impl PlacedFolio {
    fn entry(&self, place: u32) -> SwapEntry {
        SwapEntry { device: self.first.device, slot: SlotIndex(self.first.slot.0 + place) }
    }
}

/// Slots in a row for folios, the largest first. One that finds no block steps down: its halves come with
/// those of the next order. Also returns the pages that are left without a block.
fn alloc_blocks(
    swap: &Swap,
    cpu: CpuId,
    group: &Group,
    mut folios: Vec<Folio>,
    smallest: Order,
) -> (Vec<PlacedFolio>, Vec<Vpn>) {
    let (mut blocks, mut split) = (Vec::with_capacity(folios.len()), Vec::new());
    let mut firsts = Vec::new();
    let mut halves: Vec<Folio> = Vec::new();
    while let Some(order) = folios.iter().chain(&halves).map(|folio| folio.order).max() {
        let mut same: Vec<(Folio, bool)> = halves.drain(..).map(|half| (half, false)).collect();
        same.extend(folios.extract_if(.., |folio| folio.order == order).map(|folio| (folio, true)));
        same.sort_unstable_by_key(|(folio, _)| folio.first);
        firsts.clear();
        let got = swap.alloc(cpu, group, order, same.len(), &mut firsts);
        let place =
            |(folio, first): (Folio, &SwapEntry)| PlacedFolio { folio, first: *first, taken: 0, used: 0 };
        blocks.extend(same.iter().map(|(folio, _)| *folio).zip(&firsts).map(place));
        let missed = &same[got..];
        // Counted once, and not again for its halves.
        let whole = missed.iter().filter(|(_, is_whole)| *is_whole).count();
        add(&swap.stats.on(cpu).swpout_fallback[order.0 as usize], whole as u64);
        let missed = missed.iter().map(|(folio, _)| *folio);
        if swap.tuning.large_folios == LargeFolios::All && order > smallest {
            halves.extend(missed.flat_map(Folio::halves));
        } else {
            split.extend(missed.flat_map(Folio::pages));
        }
    }
    (blocks, split)
}

/// The slots of a batch, to be handed to its pages in the order of their addresses.
pub(crate) struct Places {
    /// Ascending by address.
    blocks: Vec<PlacedFolio>,
    /// For single pages, ascending, so that what is read together later lies together.
    single: Vec<SwapEntry>,
    /// How far both have been handed out.
    block: usize,
    used_single: usize,
    /// Victims for which there is no slot.
    pub without_slot: Vec<Vpn>,
}

impl Places {
    /// Slots for the pages of a batch, given as ascending runs.
    pub fn alloc(swap: &Swap, cpu: CpuId, group: &Group, runs: &[PageRun]) -> Places {
        let (mut blocks, mut loose) = match orders(&swap.tuning) {
            Some((smallest, largest)) => {
                let (folios, mut loose) = decompose(runs, smallest, largest);
                let (blocks, split) = alloc_blocks(swap, cpu, group, folios, smallest);
                add(&swap.stats.on(cpu).swpout_split, split.len() as u64);
                loose.extend(split);
                (blocks, loose)
            }
            None => (Vec::new(), pages_of(runs).collect()),
        };
        let mut single = Vec::with_capacity(loose.len());
        let got = swap.alloc(cpu, group, Order::ZERO, loose.len(), &mut single);
        blocks.sort_by_key(|block: &PlacedFolio| block.folio.first);
        single.sort_unstable();
        loose.sort_unstable();
        Places { blocks, single, block: 0, used_single: 0, without_slot: loose.split_off(got) }
    }

    /// The block of a page, if it leaves in a folio. Pages ask in ascending order.
    fn block_of(&mut self, vpn: Vpn) -> Option<&mut PlacedFolio> {
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

    /// Each page of the batch has its slot: free the slots that were not needed, and count the folios.
    pub fn end_batch(&self, swap: &Swap, cpu: CpuId) {
        let counters = swap.stats.on(cpu);
        for block in &self.blocks {
            let at = block.folio.order.0 as usize;
            if block.taken < block.folio.order.pages() {
                add(&counters.swpout_partial[at], 1);
            } else if block.used > 0 {
                add(&counters.swpout[at], 1);
            }
        }
        swap.free(cpu, &self.unused());
    }

    /// The slots that no page has got.
    fn unused(&self) -> Vec<SwapEntry> {
        let ends =
            self.blocks.iter().flat_map(|b| (b.used..b.folio.order.pages()).map(|place| b.entry(place)));
        ends.chain(self.single[self.used_single..].iter().copied()).collect()
    }
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;

    fn blocks(runs: &[(u64, u32)], smallest: u8, largest: u8) -> (Vec<(u64, u8)>, Vec<u64>) {
        let runs: Vec<PageRun> =
            runs.iter().map(|(vpn, pages)| PageRun { vpn: Vpn(*vpn), pages: *pages }).collect();
        let (folios, single) = decompose(&runs, Order(smallest), Order(largest));
        (folios.iter().map(|f| (f.first.0, f.order.0)).collect(), single.iter().map(|v| v.0).collect())
    }

    #[test]
    fn runs_become_aligned_blocks() {
        assert_eq!(blocks(&[(512, 512)], 4, 9), (vec![(512, 9)], vec![]));
        assert_eq!(blocks(&[(512, 512)], 4, 6).0.len(), 8);
        // 510 and 511 stand alone, then 16 and 8 pages, of which 8 are too few.
        assert_eq!(
            blocks(&[(510, 26)], 4, 9),
            (vec![(512, 4)], [vec![510, 511], (528..536).collect()].concat())
        );
        assert_eq!(blocks(&[(8, 8), (32, 1)], 3, 9), (vec![(8, 3)], vec![32]));
        assert_eq!(blocks(&[(0, 2048)], 4, 9).0, [(0, 9), (512, 9), (1024, 9), (1536, 9)]);
    }
}
