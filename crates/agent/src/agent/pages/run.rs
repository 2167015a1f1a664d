//! Runs of pages that come back: claimed, opened, and filled with bytes that are there already.
//!
//! Other threads must not be able to look before the bytes are there (`fill.rs`), unless there are none.

use crate::common::sync::AtomicU64;
use core::ptr::copy_nonoverlapping;

use super::kernel::{self, end};
use super::rules::{self, Rule};
use super::source::{COUNTERS, count};
use super::{holes, table};
use crate::common::words::{SWAPPED, Word};
use crate::machine::sys::PAGE;
use crate::thread::block;

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
    fn end(&self) {
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
    if holes::are_registered() {
        holes::copy(run.start, bytes, run.len());
        count(&COUNTERS.by_window, run.pages);
    } else if !by_window && block::is_alone() || !rules::holds(Rule::Window) {
        open(run);
        if kernel::is_writable(run.prot) {
            // SAFETY: the pages are there, and nobody else touches them; the bytes are as many.
            unsafe { copy_nonoverlapping(bytes as *const u8, run.start as *mut u8, run.len()) };
        } else {
            write(run, bytes);
        }
    } else {
        if run.prot != 0 {
            protect(run, 0);
        }
        open(run);
        write(run, bytes);
        if run.prot != 0 {
            protect(run, run.prot);
        }
        count(&COUNTERS.by_window, run.pages);
    }
    count(&COUNTERS.brought, run.pages);
}

/// Whatever the protection is.
fn write(run: &Run, bytes: usize) {
    // SAFETY: the pages are FILLING; the bytes are as many.
    if !unsafe { kernel::write_through(run.start, bytes, run.len()) } {
        end("cannot bring a page back: /proc/self/mem does not write it");
    }
}

/// The same where the pages are as new: nobody need be kept from looking.
pub fn install_zeros(page: usize, pages: usize) -> usize {
    let run = claim_run(page, pages);
    if run.pages > 0 && holes::are_registered() {
        holes::zeros(run.start, run.len());
    } else if run.pages > 0 {
        open(&run);
        // If several pages come at once the next are about to be touched: one call for all is cheaper than a
        // fault of the kernel's for each. Where it fails they come by that.
        if run.pages > 1 && kernel::is_writable(run.prot) {
            kernel::populate_all(run.start, run.len(), true);
        }
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
    seen.state() == SWAPPED && seen.prot() == prot && table::turn(word, seen, seen.filling())
}

pub fn open(run: &Run) {
    // SAFETY: the pages are FILLING, and whoever else could look waits for them, or there is nobody else.
    if unsafe { kernel::remove_guards(run.start, run.len()) }.is_err() {
        end("cannot bring a page back: its guard stays");
    }
}

pub fn protect(run: &Run, prot: usize) {
    // SAFETY: the pages are FILLING, and whoever faults on them waits.
    if unsafe { kernel::protect(run.start, run.len(), prot) }.is_err() {
        end("cannot bring a page back: no room for a mapping (vm.max_map_count)");
    }
}
