//! Where a thread goes through memory in order, as far as its faults on pages that are away say: the next
//! fault on such a way brings some pages more.
//!
//! ```text
//!   faults    100   7   101        8     103          107       of two rows
//!   brought   100   7   101, 102   8, 9  103 to 106   107 to 114
//! ```
//!
//! A row brings twice as many pages as the last time, while it goes on exactly behind them: what is brought
//! in vain is less than what was used. (The supervisor's readahead, by which these pages came before, takes
//! two wakes and the copying of each page; in the thread that faults four pages take twice the time of one.)
//!
//! What it does not do: know rows that go down, or leave pages out. Two threads that go the same way side by
//! side take each other's next page, and so have no row. (Tried: a row that may pass pages which are there.
//! It helped those two little, and where every third page was touched, it brought a sixth more in vain.)

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::link::EARLY_RUN_MAX;
use crate::sys::PAGE;

/// So many ways are remembered: who merges arrays goes through several at once.
const ROWS: usize = 4;

/// Of one thread, which alone uses it.
pub struct Rows {
    /// Of each, the page behind what was brought, with how many were.
    next: [AtomicUsize; ROWS],
    /// The one that is forgotten for the next new one.
    oldest: AtomicUsize,
}

const _: () = assert!(EARLY_RUN_MAX < PAGE);

impl Rows {
    pub const fn new() -> Rows {
        Rows { next: [const { AtomicUsize::new(0) }; ROWS], oldest: AtomicUsize::new(0) }
    }

    /// Of a page that is to be brought: its row, and how many pages from it on are worth it.
    pub fn find(&self, page: usize) -> (usize, usize) {
        let is_next = |index: &usize| self.next[*index].load(Ordering::Relaxed) & !(PAGE - 1) == page;
        match (0..ROWS).find(is_next) {
            Some(index) => {
                let last = self.next[index].load(Ordering::Relaxed) & (PAGE - 1);
                (index, (2 * last).min(EARLY_RUN_MAX))
            }
            None => {
                let index = self.oldest.load(Ordering::Relaxed) % ROWS;
                self.oldest.store(index + 1, Ordering::Relaxed);
                (index, 1)
            }
        }
    }

    /// So many pages have been brought, from that one on.
    pub fn note(&self, row: usize, page: usize, pages: usize) {
        self.next[row % ROWS].store(page + pages * PAGE + pages, Ordering::Relaxed);
    }
}
