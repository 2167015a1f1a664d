//! Whether what would come with a page of a row is worth bringing.
//!
//! Two faults side by side are taken for a row (`crates/common/src/streams.rs`), and in a program that goes
//! through its arrays they are one. In one that walks over small objects they are chance more often than not:
//! of Python's dicts two in five of such pages were touched before they left again, of Java's four in five. A
//! page that is not touched costs its way in, the way out of another one, and often a fault on that.
//! Therefore some are left out (`crates/common/src/window.rs` draws which), and noted (notes.rs), for each
//! size of window by itself.
//!
//! A page that is noted and then comes with another one, by advice, or because it was named, is forgotten.
//!
//! A row goes on behind what was brought, so the page that is noted faults if the program goes on, and its
//! window is no smaller than before. A window of a size that is not trusted grows as if it had come: a row
//! proves itself by more faults, until it comes to a size that is trusted.
//!
//! Here is what is known; windows.rs asks for it, and threads that bring their pages by themselves are told.
//!
//! What it does not do: find rows, or choose the page that is left out.

use crate::notes::{Notes, Rate};
use crate::units::{MAX_ORDER, Vpn};
use memspill_common::window::{Verdict, order_of, verdict};

/// Percent of the pages that were noted that must have been touched.
const RIGHT_PERCENT: u32 = 70;
/// Windows of 2^n pages up to 2^(n + 1), for each n.
const SIZES: usize = MAX_ORDER as usize + 1;

/// The trust of one address space.
#[derive(Default)]
pub(crate) struct Trust {
    notes: Notes<u8>,
    rates: [Rate; SIZES],
    windows: u64,
}

impl Trust {
    /// The verdict on a window of `pages` pages that are away.
    pub fn verdict(&mut self, pages: usize) -> Verdict {
        self.windows += 1;
        verdict(pages, !is_distrusted(self.rates[size_of_window(pages)]), self.windows)
    }

    /// Bit n: windows of 2^n pages up to 2^(n + 1) are not worth bringing.
    pub fn distrusted(&self) -> u64 {
        let sizes = self.rates.iter().enumerate();
        sizes.map(|(size, rate)| u64::from(is_distrusted(*rate)) << size).sum()
    }

    /// The window would have brought this page. False: it was noted already, for the same or another size,
    /// for which it does not count any more.
    pub fn note(&mut self, vpn: Vpn, pages: usize, stamp: u64) -> bool {
        let size = size_of_window(pages);
        let before = self.notes.put(vpn, stamp, size as u8).map(usize::from);
        if before == Some(size) {
            return false;
        }
        if let Some(before) = before {
            self.rates[before].forget();
        }
        self.rates[size].note();
        before.is_none()
    }

    /// A page comes that has not faulted: whether it would have, nobody will see.
    pub fn forget(&mut self, vpn: Vpn) {
        if let Some((_, size)) = self.notes.take(vpn, 0) {
            self.rates[usize::from(size)].forget();
        }
    }

    /// A page that was away has faulted. True: it was noted, and would still have been there.
    pub fn note_fault(&mut self, vpn: Vpn, stamp: u64, stay_stamps: u64) -> bool {
        let Some((age, size)) = self.notes.take(vpn, stamp) else { return false };
        // Half of its stay, as some pages leave sooner than others.
        let is_right = age <= stay_stamps / 2;
        if is_right {
            self.rates[usize::from(size)].note_right();
        }
        is_right
    }
}

fn is_distrusted(rate: Rate) -> bool {
    rate.is_known() && !rate.is_at_least(RIGHT_PERCENT)
}

fn size_of_window(pages: usize) -> usize {
    (order_of(pages as u64) as usize).min(SIZES - 1)
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;

    /// As a process may say that brings its pages by itself.
    #[test]
    fn a_page_that_is_noted_for_many_sizes_counts_for_the_last_one() {
        let mut trust = Trust::default();
        for n in 0..1000 {
            assert!(trust.note(Vpn(7), 4, n));
            assert!(!trust.note(Vpn(7), 64, n) && !trust.note(Vpn(7), 64, n));
            assert!(trust.note_fault(Vpn(7), n, 100) && !trust.note_fault(Vpn(7), n, 100));
        }
        let [small, large] = [4, 64].map(|pages| trust.rates[size_of_window(pages)]);
        assert!(!small.is_known(), "{small:?}");
        assert!(large.is_known() && large.is_at_least(100) && !large.is_at_least(101), "{large:?}");
    }

    #[test]
    fn a_window_is_left_while_too_few_noted_pages_fault() {
        let mut trust = Trust::default();
        let mut windows = |right_percent: u64, windows: u64| {
            let mut counts = [0, 0, 0];
            for n in 0..windows {
                let verdict = trust.verdict(8);
                let kind = match verdict {
                    Verdict::Bring => 0,
                    Verdict::Try(_) => 1,
                    Verdict::Leave(_) => 2,
                };
                counts[kind] += 1;
                if kind == 0 {
                    continue;
                }
                let vpn = Vpn(n * 7919);
                trust.note(vpn, 8, n);
                let comes_late = n * 37 % 100 >= right_percent;
                assert_eq!(trust.note_fault(vpn, n + if comes_late { 51 } else { 50 }, 100), !comes_late);
                assert!(!trust.note_fault(vpn, n, 100), "once");
            }
            counts
        };
        assert_eq!(windows(80, 16_000), [15_500, 500, 0], "bring, try, leave");
        let [_, tried, left] = windows(30, 16_000);
        assert!(tried < 300 && left > 11_000, "{tried} {left}");
        let [brought, _, left] = windows(90, 16_000);
        assert!(brought > 14_000 && left < 300, "{brought} {left}");
        assert_eq!(trust.verdict(4), Verdict::Bring, "other sizes are judged by themselves");
    }
}
