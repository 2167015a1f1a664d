//! Finds out whether a thread goes through memory in order, as far as its faults on pages that are away say:
//! the next fault on such a way brings some pages more.
//!
//! ```text
//!   faults    100   7   101        8     103          107       of two rows
//!   windows   1     1   2          2     4            8         up; down is the mirror image
//! ```
//!
//! A window is twice as large as the last one, while the row goes on behind it; it may pass some pages that
//! are there. The engine's streams (readahead.rs) are much the same; but to ask the supervisor takes two
//! wakes and the copying of each page. `window.rs` decides how much of a window is brought.
//!
//! What it does not do: know what threads do together. Two that go the same way side by side take each
//! other's next page, and so have a row each only where pages are left out.

use crate::common::link::EARLY_RUN_MAX;
use crate::common::sync::{AtomicUsize, Ordering};
use crate::machine::sys::PAGE;

/// The number of ways that are remembered: a thread that merges arrays goes through several at once.
const ROWS: usize = 8;
/// A row may pass so many pages that are there.
const PASSED: usize = 8;
const SLACK: usize = (PASSED + 1) * PAGE;

/// A row, in one word:
///
/// ```text
///   63                       12   11    10   9              0
///   ┌──────────────────────────┬─────┬─────┬─────────────────┐
///   │ the last page brought    │ DOWN│ UP  │ pages of the    │   0: none
///   │                          │     │     │ last window     │
///   └──────────────────────────┴─────┴─────┴─────────────────┘
/// ```
///
/// With one fault it may go on both ways.
const DOWN: usize = 1 << 11;
const UP: usize = 1 << 10;
const PAGES: usize = UP - 1;
const _: () = assert!(2 * DOWN == PAGE && EARLY_RUN_MAX <= PAGES);

/// The rows of one thread, which alone uses them: the row of its last fault first.
pub struct Rows([AtomicUsize; ROWS]);

/// A page that is to be brought, with its row.
pub struct Way {
    row: usize,
    page: usize,
    is_down: bool,
    /// The pages of its window: 1 if the page may begin a row.
    pub pages: usize,
}

impl Way {
    /// The n-th page of the window, of which the one that is needed is the first.
    pub fn page(&self, n: usize) -> usize {
        match self.is_down {
            true => self.page.saturating_sub(n * PAGE),
            false => self.page + n * PAGE,
        }
    }

    pub fn is_down(&self) -> bool {
        self.is_down
    }
}

impl Rows {
    pub const fn new() -> Rows {
        Rows([const { AtomicUsize::new(0) }; ROWS])
    }

    /// The row of a page that is to be brought.
    pub fn find(&self, page: usize) -> Way {
        for (row, word) in self.0.iter().enumerate() {
            let word = word.load(Ordering::Relaxed);
            let last = word & !(PAGE - 1);
            let is_down = word & DOWN != 0 && page < last && last - page <= SLACK;
            let is_up = word & UP != 0 && page > last && page - last <= SLACK;
            if is_up || is_down {
                let pages = (2 * (word & PAGES)).min(EARLY_RUN_MAX);
                return Way { row, page, is_down, pages };
            }
        }
        // In the place of the one that has not gone on for the longest time.
        Way { row: ROWS - 1, page, is_down: false, pages: 1 }
    }

    /// `brought` pages of the window have been brought. The row goes on behind them; its next window is
    /// larger all the same.
    pub fn note(&self, way: &Way, brought: usize) {
        let ways = match (way.pages, way.is_down) {
            (1, _) => UP | DOWN,
            (_, true) => DOWN,
            (_, false) => UP,
        };
        let last = way.page(brought.saturating_sub(1));
        let mut word = last | ways | way.pages.max(brought).min(PAGES);
        for row in self.0.iter().take(way.row + 1) {
            let before = row.load(Ordering::Relaxed);
            row.store(word, Ordering::Relaxed);
            word = before;
        }
    }
}
