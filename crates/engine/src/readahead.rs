//! How many pages to bring with the one that faulted, and which. Two rules, for two settings.
//!
//! *By hits* (`HitWindow`: `readahead=always`, and `auto` where a page goes by the swap cache), the
//! kernel's rule. Pages are read into the swap cache; one that a fault then finds there is a hit. The
//! window begins at 8 pages, holds while hits come in, and halves with each miss that comes without any,
//! down to one page:
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
//! *By streams* (`Streams`: `readahead=stream`, the default), this engine's own. A fault costs three pages
//! here, so the right pages are worth bringing without a fault of their own; wrong ones cost memory and
//! CPU. So nothing is brought until two faults in a row have proven a stream; then the window doubles from
//! 2 to the maximum, and what it holds is mapped at once. A stream that meets a folio may bring all of it
//! (`folio_window` in windows.rs).
//!
//! ```text
//!    fault p      fault p+1          fault p+3                  fault p+7
//!    window 1     window 2: p+1,p+2  window 4: p+3..p+6         window 8 …      up; down is the mirror image
//! ```
//!
//! A stream may step over pages that are resident: the next fault is accepted up to `SLACK_PAGES` past the
//! expected page. It knows no hits: one that stops making faults where they are expected is simply not
//! continued. If most pages that came along were not touched, less is brought than the window says
//! (trust.rs).
//!
//! What it does not do: look at page-table words or slots (the caller takes from the window what can be
//! read).

use crate::units::Vpn;
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

/// Streams remembered for one address space: a sort merges a handful, a matrix product walks three.
const STREAMS: usize = 8;
const SLACK_PAGES: u64 = 8;

#[derive(Clone, Copy, Default)]
struct Stream {
    /// First page above what was brought; an ascending stream faults here next.
    up: u64,
    /// First page below.
    down: u64,
    window: u64,
    /// Its latest fault.
    fault: u64,
    last_use: u64,
}

#[derive(Default)]
pub struct Streams {
    table: [Stream; STREAMS],
    clock: u64,
}

/// The pages to bring: [first, first + pages), which holds the faulting page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    pub first: Vpn,
    pub pages: u64,
    /// Faults have come where a stream's next one was expected.
    pub proven: bool,
}

impl Window {
    /// The same, but not beyond the last end of an aligned block of `pages` pages that it reaches, seen in
    /// its direction from the page that faulted.
    pub fn ending_with_a_block(self, fault: Vpn, pages: u64) -> Window {
        let (first, end) = (self.first.0, self.first.0 + self.pages);
        let (last_end, next_start) = (end & !(pages - 1), first.next_multiple_of(pages));
        if first == fault.0 && last_end > first {
            return Window { pages: last_end - first, ..self };
        }
        if first != fault.0 && next_start <= fault.0 {
            return Window { first: Vpn(next_start), pages: end - next_start, ..self };
        }
        self
    }
}

impl Streams {
    /// A fault at `vpn`; at most `max` pages are wanted.
    pub fn fault(&mut self, vpn: Vpn, max: u64) -> Window {
        self.clock += 1;
        let page = vpn.0;
        for stream in self.table.iter_mut().filter(|s| s.window != 0) {
            let ascending = page >= stream.up && page - stream.up <= SLACK_PAGES;
            let descending = page <= stream.down && stream.down - page <= SLACK_PAGES;
            if !ascending && !descending {
                continue;
            }
            let pages = (stream.window * 2).min(max).max(1);
            let first = if ascending { page } else { (page + 1).saturating_sub(pages) };
            *stream = Stream {
                // The end that the stream does not move towards is put where no fault matches by chance.
                up: if ascending { first + pages } else { u64::MAX },
                down: if ascending { 0 } else { first.saturating_sub(1) },
                window: pages,
                fault: page,
                last_use: self.clock,
            };
            return Window { first: Vpn(first), pages, proven: true };
        }
        let oldest = self.table.iter_mut().min_by_key(|s| s.last_use).expect("the table is not empty");
        let (up, down) = (page + 1, page.saturating_sub(1));
        *oldest = Stream { up, down, window: 1, fault: page, last_use: self.clock };
        Window { first: vpn, pages: 1, proven: false }
    }

    /// Note that this fault has brought these pages instead of its window (a folio, or less): its stream goes
    /// on behind them.
    pub fn note_brought(&mut self, fault: Vpn, first: Vpn, pages: u64) {
        for stream in self.table.iter_mut().filter(|s| s.window != 0 && s.fault == fault.0) {
            stream.window = stream.window.max(pages);
            if stream.up != u64::MAX {
                stream.up = first.0 + pages;
            }
            if stream.down != 0 {
                stream.down = first.0.saturating_sub(1);
            }
        }
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

    fn windows(faults: &[u64]) -> Vec<(u64, u64)> {
        let mut streams = Streams::default();
        faults
            .iter()
            .map(|f| {
                let w = streams.fault(Vpn(*f), 32);
                (w.first.0, w.pages)
            })
            .collect()
    }

    #[test]
    fn an_ascending_stream_doubles() {
        assert_eq!(
            windows(&[100, 101, 103, 107, 115, 131, 163]),
            [(100, 1), (101, 2), (103, 4), (107, 8), (115, 16), (131, 32), (163, 32)]
        );
    }

    #[test]
    fn a_descending_stream_doubles() {
        assert_eq!(windows(&[100, 99, 97, 93]), [(100, 1), (98, 2), (94, 4), (86, 8)]);
    }

    #[test]
    fn random_faults_bring_nothing() {
        let mut x = 1u64;
        let faults: Vec<u64> = (0..100)
            .map(|_| {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (x >> 33) % 1_000_000_000 + 1000
            })
            .collect();
        assert!(windows(&faults).iter().zip(&faults).all(|(w, f)| *w == (*f, 1)));
    }

    #[test]
    fn a_stream_goes_on_behind_a_folio() {
        let mut streams = Streams::default();
        assert_eq!(streams.fault(Vpn(100), 32).pages, 1);
        streams.note_brought(Vpn(100), Vpn(96), 16);
        let after = streams.fault(Vpn(112), 32);
        assert_eq!((after.first.0, after.pages), (112, 32));
        let before = |first| {
            let mut streams = Streams::default();
            streams.fault(Vpn(100), 32);
            streams.note_brought(Vpn(100), Vpn(96), 16);
            streams.fault(Vpn(first), 32).first.0
        };
        assert_eq!(before(95), 64, "or before it");
    }

    #[test]
    fn a_window_ends_with_a_block() {
        let up = |first, pages| Window { first: Vpn(first), pages, proven: true };
        let ended = |window: Window, fault, pages| {
            let window = window.ending_with_a_block(Vpn(fault), pages);
            (window.first.0, window.pages)
        };
        assert_eq!(ended(up(100, 32), 100, 16), (100, 28));
        assert_eq!(ended(up(112, 32), 112, 16), (112, 32));
        assert_eq!(ended(up(100, 8), 100, 16), (100, 8), "a part of a block");
        assert_eq!(ended(up(110, 8), 110, 16), (110, 2));
        assert_eq!(ended(up(69, 32), 100, 16), (80, 21), "downwards");
        assert_eq!(ended(up(98, 3), 100, 16), (98, 3));
    }

    #[test]
    fn two_streams_at_once() {
        let w = windows(&[1000, 9000, 1001, 9001, 1003, 9003]);
        assert_eq!(w[4], (1003, 4));
        assert_eq!(w[5], (9003, 4));
    }

    #[test]
    fn resident_pages_are_stepped_over() {
        assert_eq!(windows(&[100, 101, 105])[2], (105, 4));
    }
}
