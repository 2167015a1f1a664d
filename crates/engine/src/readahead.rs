//! How many pages to read around the one that faulted, and which, where pages are read into the swap cache
//! (`readahead=always`, and `auto` where a page goes by the swap cache): the kernel's rule. A page that a
//! fault then finds there is a hit. The window begins at 8 pages, holds while hits come in, and halves with
//! each miss that comes without any, down to one page:
//!
//! ```text
//!   pages = hits + 2, up to a power of two, 4 at least     no hit: 1, or 2 next to the miss before
//!           never more than 2^page-cluster                 never less than half of the window before
//!
//!   around the address (for each address space)            by slot, where the device turns (for each device)
//!   from p upwards behind p-1, to p below p+1, else around  the aligned slots that hold the page's
//! ```
//!
//! The kernel has a window for each mapping; mappings are not known here, so it is one for the address space.
//!
//! By default (`readahead=stream`) another rule holds, which agents share (`crates/common/src/streams.rs`).
//!
//! What it does not do: look at page-table words or slots (the caller takes from the window what can be
//! read).

use std::ops::Range;

/// Hits that a window begins with: the first miss reads a whole one.
const HITS_AT_FIRST: u64 = 4;
/// A window that had hits is no smaller.
const PAGES_WITH_HITS: u64 = 4;

/// A window that grows with hits and shrinks without. Positions are page numbers, or slots.
#[derive(Clone, Debug)]
pub struct HitWindow {
    /// The position that a miss is next to, if it is next to anything.
    previous: u64,
    /// Since the last miss.
    hits: u64,
    /// The window of the last miss.
    pages: u64,
}

impl Default for HitWindow {
    fn default() -> HitWindow {
        HitWindow { previous: u64::MAX - 1, hits: HITS_AT_FIRST, pages: 0 }
    }
}

impl HitWindow {
    /// A page was found in the swap cache, where it had been read ahead.
    pub fn hit(&mut self) {
        self.hits += 1;
    }

    /// The latest fault was here, and needed no read.
    pub fn passed(&mut self, at: u64) {
        self.previous = at;
    }

    /// A miss: the pages to read around this address, at most `max`.
    pub fn around(&mut self, at: u64, max: u64) -> Range<u64> {
        let previous = self.previous;
        let pages = self.next_pages(at, max);
        self.previous = at;
        if at == previous.wrapping_add(1) {
            at..at + pages
        } else if previous == at + 1 {
            (at + 1).saturating_sub(pages)..at + 1
        } else {
            let first = at.saturating_sub((pages - 1) / 2);
            first..first + pages
        }
    }

    /// A miss: the slots to read, at most `max`, which is a power of two.
    pub fn aligned(&mut self, at: u64, max: u64) -> Range<u64> {
        let had_hits = self.hits > 0;
        let pages = self.next_pages(at, max);
        if !had_hits {
            self.previous = at;
        }
        let first = at & !(pages - 1);
        first..first + pages
    }

    fn next_pages(&mut self, at: u64, max: u64) -> u64 {
        let is_next = at == self.previous.wrapping_add(1) || self.previous == at + 1;
        let wanted = match self.hits {
            0 if is_next => 2,
            0 => 1,
            hits => (hits + 2).next_power_of_two().max(PAGES_WITH_HITS),
        };
        self.hits = 0;
        self.pages = wanted.max(self.pages / 2).clamp(1, max);
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_without_hits_shrinks_to_one_page() {
        let mut window = HitWindow::default();
        let far = [5000, 9000, 100, 7000, 300, 20_000];
        assert_eq!(
            far.map(|at| window.around(at, 8)),
            [4997..5005, 8999..9003, 100..102, 7000..7001, 300..301, 20_000..20_001]
        );
        window.hit();
        assert_eq!(window.around(50_000, 8), 49_999..50_003, "one hit is enough to grow again");
    }

    #[test]
    fn a_window_goes_the_way_of_its_hits() {
        let mut window = HitWindow::default();
        assert_eq!(window.around(1000, 8), 997..1005);
        let hits = |window: &mut HitWindow, pages: Range<u64>| {
            for at in pages {
                window.hit();
                window.passed(at);
            }
        };
        hits(&mut window, 1001..1005);
        assert_eq!(window.around(1005, 8), 1005..1013, "upwards");
        hits(&mut window, 1006..1013);
        assert_eq!(window.around(1013, 4), 1013..1017, "as many as may be");
        window.passed(501);
        assert_eq!(window.around(500, 8), 499..501, "downwards; the two that come without a hit");
        assert_eq!(window.around(499, 8), 498..500);
    }

    #[test]
    fn a_window_of_slots_is_aligned() {
        let mut window = HitWindow::default();
        assert_eq!(window.aligned(1003, 8), 1000..1008);
        assert_eq!(window.aligned(1010, 8), 1008..1012, "half");
        assert_eq!(window.aligned(1011, 8), 1010..1012, "next to the miss before");
        (0..6).for_each(|_| window.hit());
        assert_eq!(window.aligned(77, 16), 72..80);
        assert_eq!(window.aligned(3, 1), 3..4, "never more than may be");
    }
}
