//! Runs of pages that come back: claimed, opened, and filled with bytes that are there already.
//!
//! Other threads must not be able to look before the bytes are there (`holes/`), unless there are none.

use crate::common::sync::AtomicU64;

use super::source::{COUNTERS, count};
use super::{holes, table};
use crate::common::rules::{Rule, holds};
use crate::common::words::{SWAPPED, Word};
use crate::machine::sys::PAGE;

/// A run of pages that are FILLING, by the caller.
pub struct Run {
    pub start: usize,
    pub pages: usize,
    pub prot: usize,
}

impl Run {
    pub fn len(&self) -> usize {
        self.pages * PAGE
    }

    pub fn words(&self) -> impl Iterator<Item = (usize, &'static AtomicU64)> {
        (0..self.pages)
            .map(|index| self.start + index * PAGE)
            .filter_map(|page| table::find(page).map(|word| (page, word)))
    }

    /// All of it has come: nobody owns it.
    pub fn end(&self) {
        for (_, word) in self.words() {
            table::finish(word, Word::EMPTY);
        }
    }
}

/// Puts bytes into as many of `pages` pages in a row as are SWAPPED and of one protection, from the first one
/// on: how many those are. For whoever is inside the gate.
pub fn install(page: usize, pages: usize, bytes: usize, by_window: bool) -> usize {
    let run = claim_run(page, pages);
    if run.pages == 0 {
        return 0;
    }
    fill(&run, bytes, by_window);
    run.end();
    run.pages
}

/// Puts bytes into a run.
pub fn fill(run: &Run, bytes: usize, by_window: bool) {
    if holes::fill(run.start, run.len(), run.prot, bytes, by_window) {
        count(&COUNTERS.by_window, run.pages);
    }
    count(&COUNTERS.brought, run.pages);
}

/// The same where the pages are as new.
pub fn install_zeros(page: usize, pages: usize) -> usize {
    let run = claim_run(page, pages);
    if run.pages > 0 {
        holes::fill_zeros(run.start, run.len(), run.prot);
    }
    run.end();
    run.pages
}

/// As many pages in a row as are SWAPPED and of one protection, from this one on, which may be none.
fn claim_run(page: usize, pages: usize) -> Run {
    let prot = table::find(page).map_or(0, |word| table::load(word).prot());
    let mut run = Run { start: page, pages: 0, prot: prot as usize };
    while run.pages < pages && claim(page + run.len(), prot) {
        run.pages += 1;
    }
    run
}

pub fn claim(page: usize, prot: u64) -> bool {
    let Some(word) = table::find(page) else { return false };
    let seen = table::load(word);
    let is_alike = seen.prot() == prot || !holds(Rule::SameProt);
    seen.state() == SWAPPED && is_alike && table::turn(word, seen, seen.filling())
}
