//! What of a stream's window comes: the rest of a block that left together, an end that suits the next one,
//! and whether so much is worth bringing.
//!
//! ```text
//!   window (streams.rs) ─▶ the rest of a block, if the stream has earned one     else: it ends with a block
//!                       ─▶ of what is away of that: is it worth it?
//!
//!                          worth it, 1 of 32     fault  + + + ?             ends before a page left out
//!                          worth it, others      fault  + + + + + + + +
//!                          not worth it          fault  . . ? . . . . .     comes alone, one is left out
//! ```
//!
//! A block: 2^n pages, aligned, that lie in slots in a row, aligned as they are, because they left together.
//!
//! A page is left out to see whether it faults by itself: the engine's trust.rs says from that which sizes of
//! windows are worth bringing.
//!
//! What it does not do: find streams; look at what is away, or bring it. The engine does so in its page
//! table, and passes pages that are there (`crates/engine/src/windows.rs`). The agent does so in its words,
//! and stops at the first page that is there, because it fills the pages in by one call
//! (`crates/agent/src/agent/pages/readahead.rs`).

use core::ops::{Range, RangeInclusive};

/// Most pages of a window, unless it is of zeros where there is plenty of room.
pub const WINDOW_PAGES_MAX: u64 = 32;
/// The same for a thread that reads its pages from the pool by itself, and goes on when it has them all.
/// Tried: 32. A program that went through memory in order took a tenth more CPU time.
pub const POOL_READ_PAGES_MAX: u64 = 16;
/// The blocks that a stream brings are of 2^4 to 2^6 pages.
pub const BLOCK_ORDERS: RangeInclusive<u32> = 4..=6;
/// Most pages of a block.
pub const BLOCK_PAGES_MAX: usize = 1 << *BLOCK_ORDERS.end();
/// A stream whose window is 2^n pages may bring a block of order n + 2: 64 KiB with the third fault in a row.
/// (The second one is often chance.)
const EARNED_ORDERS: u32 = 2;
/// One window of so many that are worth it ends early.
const SAMPLED: u64 = 32;

/// The pages to bring with one that has faulted, in a row that begins with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The page that has faulted.
    pub fault: u64,
    /// How many, with that one.
    pub pages: u64,
    /// They lie below the page that has faulted.
    pub is_down: bool,
    /// Faults have come where a stream's next one was expected.
    pub is_proven: bool,
}

impl Window {
    /// The page that has faulted, without any other.
    pub const fn alone(page: u64) -> Window {
        Window { fault: page, pages: 1, is_down: false, is_proven: false }
    }

    /// The n-th page, of which the one that has faulted is the first.
    pub const fn page(&self, n: u64) -> u64 {
        if self.is_down { self.fault.saturating_sub(n) } else { self.fault.saturating_add(n) }
    }

    /// The lowest page.
    pub const fn first(&self) -> u64 {
        if self.is_down { self.page(self.pages.saturating_sub(1)) } else { self.fault }
    }

    /// All of them, in the order of their numbers.
    pub const fn range(&self) -> Range<u64> {
        self.first()..self.first().saturating_add(self.pages)
    }

    /// As many of them, or all.
    pub fn cut(self, pages: u64) -> Window {
        Window { pages: self.pages.min(pages), ..self }
    }

    /// The part of it that lies in this range, as the page that has faulted does.
    pub fn within(self, range: Range<u64>) -> Window {
        let room = if self.is_down {
            self.fault.wrapping_sub(range.start) + 1
        } else {
            range.end.wrapping_sub(self.fault)
        };
        self.cut(room)
    }

    /// The same, but not beyond the last end of an aligned block of `pages` pages that it reaches. The next
    /// window meets the block there at its beginning.
    pub fn ending_with_a_block(self, pages: u64) -> Window {
        let Range { start, end } = self.range();
        let beyond = if self.is_down { start.wrapping_neg() } else { end } % pages;
        if beyond < self.pages { self.cut(self.pages - beyond) } else { self }
    }

    /// The largest order of a block that its stream has earned.
    pub fn earned_order(&self) -> u32 {
        order_of(self.pages) + EARNED_ORDERS
    }

    /// The rest of the largest block of these orders, from the page that has faulted on; all of it, if no
    /// stream is proven. `slot_of` a page that is away is its slot.
    pub fn block(
        &self,
        orders: RangeInclusive<u32>,
        slot_of: impl Fn(u64) -> Option<u64>,
    ) -> Option<Range<u64>> {
        let slot = slot_of(self.fault)?;
        let in_a_row = |page: u64| {
            let expected = slot.wrapping_add(page.wrapping_sub(self.fault));
            slot_of(page) == Some(expected)
        };
        orders.rev().map(|order| 1u64 << order).find_map(|pages| {
            let at = self.fault & (pages - 1);
            let first = self.fault - at;
            let part = match (self.is_proven, self.is_down) {
                (false, _) => first..first.saturating_add(pages),
                (true, false) => self.fault..first.saturating_add(pages),
                (true, true) => first..self.fault.saturating_add(1),
            };
            (slot & (pages - 1) == at && part.clone().all(in_a_row)).then_some(part)
        })
    }
}

/// What is done with a window of which some pages are away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Bring,
    /// It ends before its n-th page that is away, from the one that has faulted on, which is left out.
    Try(usize),
    /// Only the page that has faulted comes; the n-th one is left out.
    Leave(usize),
}

/// The verdict on a window of which so many pages are away: two at least. `number`: another one each time.
pub fn verdict(pages: usize, is_worth_it: bool, number: u64) -> Verdict {
    let left_out = 1 + any(number, pages.saturating_sub(1));
    match is_worth_it {
        false => Verdict::Leave(left_out),
        true if number.is_multiple_of(SAMPLED) => Verdict::Try(left_out),
        true => Verdict::Bring,
    }
}

/// Windows of 2^n pages up to 2^(n + 1) are judged together: n.
pub fn order_of(pages: u64) -> u32 {
    pages.checked_ilog2().unwrap_or(0)
}

/// Any number below `n`.
fn any(number: u64, n: usize) -> usize {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (mixed.wrapping_mul(n as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(fault: u64, pages: u64, is_down: bool) -> Window {
        Window { fault, pages, is_down, is_proven: true }
    }

    #[test]
    fn a_window_ends_with_a_block() {
        let ended = |fault, pages, is_down| window(fault, pages, is_down).ending_with_a_block(16).range();
        assert_eq!(ended(100, 32, false), 100..128);
        assert_eq!(ended(112, 32, false), 112..144);
        assert_eq!(ended(100, 8, false), 100..108, "a part of a block");
        assert_eq!(ended(110, 8, false), 110..112);
        assert_eq!(ended(100, 32, true), 80..101, "downwards");
        assert_eq!(ended(100, 3, true), 98..101);
    }

    #[test]
    fn a_window_stays_within_a_range() {
        assert_eq!(window(500, 32, false).within(0..512).range(), 500..512);
        assert_eq!(window(520, 32, true).within(512..1024).range(), 512..521);
        assert_eq!(window(600, 32, true).within(512..1024).range(), 569..601);
    }

    /// 1024 begins a block of any order, and each page lies in the slot of its own number.
    #[test]
    fn a_stream_brings_what_is_left_of_a_block_that_it_has_earned() {
        let block = |window: Window, away: Range<u64>| {
            let earned = window.earned_order().min(*BLOCK_ORDERS.end());
            window.block(*BLOCK_ORDERS.start()..=earned, |page| away.contains(&page).then_some(page))
        };
        assert_eq!(block(window(1030, 4, false), 1030..2000), Some(1030..1040), "16 pages");
        assert_eq!(block(window(1030, 8, false), 1030..2000), Some(1030..1056), "32 pages");
        assert_eq!(block(window(1030, 16, false), 1030..2000), Some(1030..1088), "64 pages");
        assert_eq!(block(window(1030, 16, false), 1030..1080), Some(1030..1056), "of 64 not all are away");
        assert_eq!(block(window(1030, 2, false), 1030..2000), None, "none is earned");
        assert_eq!(block(window(1080, 16, true), 0..1081), Some(1024..1081));
        let unproven = Window::alone(1030);
        assert_eq!(unproven.block(4..=4, Some), Some(1024..1040));
    }

    #[test]
    fn pages_whose_slots_are_not_in_a_row_left_apart() {
        let block = |first: u64, step: u64| {
            let slot_of = |page: u64| Some(first.wrapping_add(step.wrapping_mul(page.wrapping_sub(1024))));
            window(1024, 8, false).block(4..=5, slot_of)
        };
        assert_eq!(
            [block(4096, 1), block(4097, 1), block(4096, 2), block(0, 0)],
            [Some(1024..1056), None, None, None]
        );
    }

    #[test]
    fn one_window_in_32_ends_before_a_page_that_is_left_out() {
        for pages in [2, 4, 5, 64] {
            let verdicts: Vec<Verdict> = (0..32_000).map(|number| verdict(pages, true, number)).collect();
            let tried = |nth: usize| verdicts.iter().filter(|v| **v == Verdict::Try(nth)).count();
            assert_eq!((1..pages).map(tried).sum::<usize>(), 1000);
            assert!((1..pages).all(|nth| tried(nth) > 500 / pages), "each of them");
            assert_eq!(verdicts.iter().filter(|v| **v == Verdict::Bring).count(), 31_000);
        }
    }

    #[test]
    fn what_is_not_worth_it_is_left_each_time() {
        let left = (0..100).map(|number| verdict(4, false, number));
        assert!(left.into_iter().all(|v| matches!(v, Verdict::Leave(1..=3))));
    }
}
