//! How much of the staging of links is in memory, and when it is given back.
//!
//! ```text
//!   the evictor writes pages into staging ─▶ read here ─▶ they stay, for the next batch to use again,
//!                                                         or, where all links hold much, all but one go
//! ```
//!
//! A page that stays spares the evictor a fault and the kernel a page of zeros; but each link can hold 1 MiB,
//! which counts against the budget. 160 processes of 250 KiB each held 40 MiB in a budget of 64M.
//!
//! It counts pages that were read here, not those that a late evictor may still write.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// All links may hold so many pages, 2 MiB. Two that are used up at once do.
const HELD_MAX_PAGES: u32 = 512;
/// Most batches are of one page, and each half keeps room for that.
const KEPT_PAGES: u32 = 1;

static HELD_PAGES: AtomicU32 = AtomicU32::new(0);

/// How much of one link's staging is in memory: so many pages from the beginning of each half. Changed by the
/// holder of the process's batch lock.
#[derive(Default)]
pub struct Staging([AtomicU32; 2]);

impl Staging {
    /// The first pages of a half have been written and read. Returns those that are to be given back.
    pub fn note(&self, half: usize, pages: u32) -> Option<Range<u32>> {
        let held = &self.0[half];
        let before = held.load(Ordering::Relaxed);
        let now = before.max(pages);
        let grown = now - before;
        held.store(now, Ordering::Relaxed);
        let all = HELD_PAGES.fetch_add(grown, Ordering::Relaxed) + grown;
        if all <= HELD_MAX_PAGES || now <= KEPT_PAGES {
            return None;
        }
        held.store(KEPT_PAGES, Ordering::Relaxed);
        HELD_PAGES.fetch_sub(now - KEPT_PAGES, Ordering::Relaxed);
        Some(KEPT_PAGES..now)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let held = self.0.iter().map(|half| half.load(Ordering::Relaxed)).sum();
        HELD_PAGES.fetch_sub(held, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn few_links_hold_all_and_many_one_page_each() {
        let links: Vec<_> = (0..100).map(|_| Staging::default()).collect();
        assert_eq!(links[0].note(0, 128), None);
        assert_eq!(links[0].note(1, 100), None);
        assert_eq!(links[0].note(1, 100), None, "they are used again");
        let given: u32 =
            links[1..].iter().filter_map(|link| link.note(0, 60)).map(|pages| pages.len() as u32).sum();
        let kept = 100 + 128 + 99 * 60 - given;
        assert!((HELD_MAX_PAGES..HELD_MAX_PAGES + 100).contains(&kept), "{kept} pages");
        assert_eq!(links[99].note(0, 1), None, "one page stays");
        assert_eq!(links[99].note(0, 3), Some(1..3));
        drop(links);
        assert_eq!(HELD_PAGES.load(Ordering::Relaxed), 0);
    }
}
