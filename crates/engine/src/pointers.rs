//! Pages that name others: the addresses in a page of a row say what its program touches next.
//!
//! A sort walks arrays of lines, each of which points to its text; an iteration over a list of objects or a
//! hash table's entries does the same. The array is read in order, and what it names lies at random, so that
//! no rule about addresses finds it. But when a page of the array comes in, its bytes are at hand:
//!
//! ```text
//!   a read brings a page next to two that came a while ago ─▶ its words that are addresses of pages
//!     ─▶ predictions, in the order of the walk ─┬─ away:   brought before their faults  while they are right
//!                                               ├─ there:  stay for a round more        while they are right
//!                                               └─ noted:  does it fault soon?          else, and 1 of 64
//! ```
//!
//! Some predictions are only noted, and those that fault soon were right (notes.rs). Nine tenths are right in
//! a sort of text, a fifth and a ninth in programs in Java and JavaScript. While fewer than three quarters
//! are, nothing is brought, and one page of a row in 32 is looked at, of which 32 words. (All of each were
//! looked at first: a fifth of the CPU time of a collector's run.)
//!
//! That pages which are there stay is as much worth as the bringing: with it a sort had half as many faults,
//! for every fifth fault was on a page that had left between the look and its turn.
//!
//! From: content-directed prefetching (Cooksey, Jourdan and Grunwald, ASPLOS 2002), where hardware looks
//! through lines of the cache.
//!
//! A prediction is a hint: what is away is brought as by a fault, and only where there is room beyond what
//! faults need. No page is lost or wrong by it, whatever the words are.
//!
//! Here is what is known of an address space's predictions, and what a page's words name; what is done with
//! that is in predict.rs.
//!
//! What threads bring by themselves (agent mode) nobody looks at. So while predictions
//! are right, and are brought, threads ask for all of their pages (`Space::follows_names`).
//!
//! What it does not do: follow what those pages name in turn.

use crate::notes::{Notes, Rate};
use crate::units::{PAGE_SIZE, Page, Vpn};

/// If fewer different pages are named, the words are likely to be something else.
const NAMED_MIN: usize = 16;
/// A page holds so many words.
const WORDS: usize = PAGE_SIZE / size_of::<u64>();
/// While predictions are right, one of so many is only noted.
const SAMPLED: u32 = 64;
/// While they are not right, one look in this many is made, at this many of the named pages.
const LOOKS_TRIED: u32 = 32;
const NAMED_TRIED: usize = 32;
/// Percent of them that must have been right.
const RIGHT_PERCENT: u32 = 75;
/// A page that faults later than so many stamps after it was predicted was predicted by chance.
const SOON_STAMPS: u64 = 128;

/// The pointers of one address space.
#[derive(Default)]
pub(crate) struct Pointers {
    notes: Notes<()>,
    rate: Rate,
    predicted: u32,
    looks: u32,
    /// When the last page was brought for that.
    brought_stamp: Option<u64>,
}

impl Pointers {
    /// Some pages of a row have come. Returns how many of the pages that they name are looked at.
    pub fn looked_at(&mut self) -> usize {
        self.looks = self.looks.wrapping_add(1);
        match self.are_right() {
            true => WORDS,
            false if self.looks.is_multiple_of(LOOKS_TRIED) => NAMED_TRIED,
            false => 0,
        }
    }

    /// A page is expected to be touched soon. True: it is to be brought.
    pub fn predict(&mut self, vpn: Vpn, stamp: u64) -> bool {
        self.predicted = self.predicted.wrapping_add(1);
        if self.are_right() && !self.predicted.is_multiple_of(SAMPLED) {
            return true;
        }
        // Else it is named twice.
        if self.notes.put(vpn, stamp, ()).is_none() {
            self.rate.note();
        }
        false
    }

    /// A page that was away has faulted. True: that was predicted a moment ago.
    pub fn note_fault(&mut self, vpn: Vpn, stamp: u64) -> bool {
        let is_right = self.notes.take(vpn, stamp).is_some_and(|(age, ())| age <= SOON_STAMPS);
        if is_right {
            self.rate.note_right();
        }
        is_right
    }

    /// A page is brought that was predicted.
    pub fn note_brought(&mut self, stamp: u64) {
        self.brought_stamp = Some(stamp);
    }

    /// Are they right, and have some been brought of late?
    pub fn are_followed(&self, stamp: u64) -> bool {
        self.are_right() && self.brought_stamp.is_some_and(|last| stamp.wrapping_sub(last) <= SOON_STAMPS)
    }

    /// Were the recent notes right?
    pub fn are_right(&self) -> bool {
        self.rate.is_known() && self.rate.is_at_least(RIGHT_PERCENT)
    }
}

/// The pages that the words of a page name, if they are addresses, in the order of the words, or the other
/// way round; each once in a row.
pub(crate) fn named_in(page: &Page, own: Vpn, downwards: bool) -> Vec<Vpn> {
    /// The kernel gives programs no address below, and by default none above.
    const FIRST: u64 = 1 << 16;
    const USER_END: u64 = 1 << 48;
    let mut named: Vec<Vpn> = Vec::new();
    for place in 0..WORDS {
        let at = 8 * if downwards { WORDS - 1 - place } else { place };
        let word = u64::from_ne_bytes(page.0[at..at + 8].try_into().expect("a word"));
        let vpn = Vpn::from_addr(word);
        if (FIRST..USER_END).contains(&word) && vpn != own && named.last() != Some(&vpn) {
            named.push(vpn);
        }
    }
    if named.len() < NAMED_MIN { Vec::new() } else { named }
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;

    fn page_of(words: impl IntoIterator<Item = u64>) -> Page {
        let mut page = Page::ZERO;
        for (place, word) in words.into_iter().enumerate() {
            page.0[8 * place..8 * (place + 1)].copy_from_slice(&word.to_ne_bytes());
        }
        page
    }

    #[test]
    fn addresses_in_a_page_are_found_in_the_order_of_the_walk() {
        // Entries of four words: an address, its page's number, another address in the same page, text.
        let text = u64::from_ne_bytes(*b"eight by");
        let entry =
            |n: u64| [(0x7f00_0000 + n * 3) << 12 | 0x128, n, (0x7f00_0000 + n * 3) << 12 | 0xff8, text];
        let page = page_of((0..128).flat_map(entry));
        let expected: Vec<Vpn> = (0..128).map(|n| Vpn(0x7f00_0000 + n * 3)).collect();
        assert_eq!(named_in(&page, Vpn(1), false), expected);
        let downwards: Vec<Vpn> = expected.iter().rev().copied().collect();
        assert_eq!(named_in(&page, Vpn(1), true), downwards);
        assert_eq!(named_in(&page, expected[5], false).len(), 127, "its own address names nothing else");
        assert_eq!(named_in(&Page([0x2e; 4096]), Vpn(1), false), []);
        let few = page_of((0..15).flat_map(entry));
        assert_eq!(named_in(&few, Vpn(1), false), [], "so few may be anything");
    }

    /// Predicts pages until `most` were brought or noted, of which so many percent fault soon. Returns how
    /// many were brought.
    fn brought(pointers: &mut Pointers, most: u64, right_percent: u64) -> u64 {
        let mut brought = 0;
        for n in 0..most {
            let vpn = Vpn(1000 + n * 7919);
            if pointers.predict(vpn, n) {
                brought += 1;
            } else if n * 37 % 100 < right_percent {
                assert!(pointers.note_fault(vpn, n + SOON_STAMPS));
            }
        }
        brought
    }

    #[test]
    fn pages_are_brought_while_most_predictions_are_right() {
        let mut pointers = Pointers::default();
        let looked_at =
            |pointers: &mut Pointers| (0..LOOKS_TRIED).map(|_| pointers.looked_at()).collect::<Vec<_>>();
        assert_eq!(looked_at(&mut pointers).into_iter().sum::<usize>(), NAMED_TRIED);
        assert!(!pointers.note_fault(Vpn(1000), 0), "nothing was predicted");
        assert_eq!(brought(&mut pointers, 1000, 60), 0);
        let most = brought(&mut pointers, 10_000, 90);
        assert!((9000..9900).contains(&most), "{most}");
        assert_eq!(looked_at(&mut pointers), [WORDS; LOOKS_TRIED as usize]);
        // The program does something else.
        let last = brought(&mut pointers, 100_000, 50);
        assert!(last < 20_000, "{last}");
        assert_eq!(brought(&mut pointers, 10_000, 50), 0);
    }

    #[test]
    fn a_page_that_faults_late_was_predicted_by_chance() {
        let mut pointers = Pointers::default();
        for n in 0..1000 {
            assert!(!pointers.predict(Vpn(n), 0));
            assert!(!pointers.note_fault(Vpn(n), SOON_STAMPS + 1));
            assert!(!pointers.note_fault(Vpn(n), 1), "it is noted once");
        }
    }
}
