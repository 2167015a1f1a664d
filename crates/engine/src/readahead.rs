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

use crate::sync::AtomicU64;
use crate::sync::Ordering::Relaxed;
use std::ops::Range;

/// Hits that a window begins with: the first miss reads a whole one.
const HITS_AT_FIRST: u64 = 4;
/// A window that had hits is no smaller.
const PAGES_WITH_HITS: u64 = 4;

/// A window that grows with hits and shrinks without. Positions are page numbers, or slots. Three words, each
/// true by itself, as in the kernel: threads that miss at once may take one another's window, and no page
/// depends on it.
pub struct HitWindow([AtomicU64; 3]);

impl Default for HitWindow {
    fn default() -> HitWindow {
        HitWindow([u64::MAX - 1, HITS_AT_FIRST, 0].map(AtomicU64::new))
    }
}

impl HitWindow {
    /// A page was found in the swap cache, where it had been read ahead.
    pub fn hit(&self) {
        self.hits().fetch_add(1, Relaxed);
    }

    /// The latest fault was here, and needed no read.
    pub fn passed(&self, at: u64) {
        self.previous().store(at, Relaxed);
    }

    /// A miss: the pages to read around this address, at most `max`.
    pub fn around(&self, at: u64, max: u64) -> Range<u64> {
        let (previous, _, pages) = self.next_pages(at, max);
        self.passed(at);
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
    pub fn aligned(&self, at: u64, max: u64) -> Range<u64> {
        let (_, hits, pages) = self.next_pages(at, max);
        if hits == 0 {
            self.passed(at);
        }
        let first = at & !(pages - 1);
        first..first + pages
    }

    /// The position before, the hits since, and the pages.
    fn next_pages(&self, at: u64, max: u64) -> (u64, u64, u64) {
        let (previous, hits) = (self.previous().load(Relaxed), self.hits().swap(0, Relaxed));
        let is_next = at == previous.wrapping_add(1) || previous == at + 1;
        let wanted = match hits {
            0 if is_next => 2,
            0 => 1,
            hits => (hits + 2).next_power_of_two().max(PAGES_WITH_HITS),
        };
        let pages = wanted.max(self.pages().load(Relaxed) / 2).clamp(1, max);
        self.pages().store(pages, Relaxed);
        (previous, hits, pages)
    }

    /// The position that a miss is next to, if it is next to anything.
    fn previous(&self) -> &AtomicU64 {
        &self.0[0]
    }
    /// Since the last miss.
    fn hits(&self) -> &AtomicU64 {
        &self.0[1]
    }
    /// The window of the last miss.
    fn pages(&self) -> &AtomicU64 {
        &self.0[2]
    }
}

#[cfg(all(test, not(any(loom, shuttle, simulated))))]
mod tests {
    use super::*;

    #[test]
    fn a_window_without_hits_shrinks_to_one_page() {
        let window = HitWindow::default();
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
        let window = HitWindow::default();
        assert_eq!(window.around(1000, 8), 997..1005);
        let hits = |window: &HitWindow, pages: Range<u64>| {
            for at in pages {
                window.hit();
                window.passed(at);
            }
        };
        hits(&window, 1001..1005);
        assert_eq!(window.around(1005, 8), 1005..1013, "upwards");
        hits(&window, 1006..1013);
        assert_eq!(window.around(1013, 4), 1013..1017, "as many as may be");
        window.passed(501);
        assert_eq!(window.around(500, 8), 499..501, "downwards; the two that come without a hit");
        assert_eq!(window.around(499, 8), 498..500);
    }

    #[test]
    fn a_window_of_slots_is_aligned() {
        let window = HitWindow::default();
        assert_eq!(window.aligned(1003, 8), 1000..1008);
        assert_eq!(window.aligned(1010, 8), 1008..1012, "half");
        assert_eq!(window.aligned(1011, 8), 1010..1012, "next to the miss before");
        (0..6).for_each(|_| window.hit());
        assert_eq!(window.aligned(77, 16), 72..80);
        assert_eq!(window.aligned(3, 1), 3..4, "never more than may be");
    }
}
