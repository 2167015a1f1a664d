//! The trait over an address space: how pages are taken out of it and put into it.
//!
//! The pager brings one that moves pages of another process with userfaultfd; tests and the simulator bring
//! one that moves bytes of an array. Each address space has one.
//!
//! Contract:
//! * [`Memory::take`] is atomic per page: once it returns, no store to that page can be lost, and an access
//!   to it waits for `put`, `put_zero` or `poison`.
//! * The filling calls never overwrite a page that is present ([`Stop::Exists`] instead). They wake the
//!   waiters of what they filled, but for [`Memory::put_without_wake`]; or [`Memory::filled`] does, where a
//!   waiter may come after the fill and not see it (of shared memory, which others have mapped: the kernel
//!   looks at the waiter's own page table).
//! * Nothing here waits for a fault to be served.

use crate::units::{Page, Vpn};
use crate::word::SwapEntry;

/// Why a fill ended. The kernel's errno, named by what it means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    Done,
    /// The next page is present already.
    Exists,
    /// A change of the address space waits to be processed first; try again after it.
    Again,
    /// No mapping there.
    NotMapped,
    /// The address space is gone.
    Gone,
    /// The system would not give a page.
    NoMemory,
    Errno(i32),
}

#[derive(Clone, Copy, Debug)]
pub struct Fill {
    pub pages: usize,
    pub stop: Stop,
}

/// Virtual pages in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    pub vpn: Vpn,
    pub pages: u32,
}

/// The pages of runs, in order.
pub(crate) fn pages_of(runs: &[PageRun]) -> impl Iterator<Item = Vpn> {
    runs.iter().flat_map(|r| (0..u64::from(r.pages)).map(|i| Vpn(r.vpn.0 + i)))
}

/// Ascending pages as contiguous runs.
pub(crate) fn runs_of(pages: impl IntoIterator<Item = Vpn>) -> Vec<PageRun> {
    let mut runs: Vec<PageRun> = Vec::new();
    for vpn in pages {
        match runs.last_mut() {
            Some(run) if run.vpn.0 + u64::from(run.pages) == vpn.0 => run.pages += 1,
            _ => runs.push(PageRun { vpn, pages: 1 }),
        }
    }
    runs
}

/// What became of a page that was to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Take {
    /// Its bytes are in the frame buffer (at the next free index, in the order of the runs).
    Moved,
    /// There was no page: it reads as zero.
    Hole,
    /// Not now (an event is pending, or the batch was cancelled).
    Retry,
    /// It is shared or pinned.
    Busy,
    /// It cannot be taken as it is mapped now (read-only, mlocked).
    Unevictable,
    /// The address space is gone.
    Gone,
}

/// Most pages brought by one fault, unless it brings a folio, or zeros where there is plenty of room.
pub const WINDOW_MAX: usize = memspill_common::window::WINDOW_PAGES_MAX as usize;

pub trait Memory: Send + Sync {
    /// Take the pages of `runs` out. `outcome` gets one entry per page, in order. `frames[i]` receives the
    /// bytes of the i-th page that is `Moved`.
    fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>);

    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill;
    /// As `put`, but it need not wake anybody: the caller does (`wake`), outside of the gate. A memory whose
    /// fill wakes all the same is right, too.
    fn put_without_wake(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        self.put(vpn, pages)
    }
    /// Fill with zeros. `write`: the fault was a store, so the shared zero page would not do.
    fn put_zero(&self, vpn: Vpn, pages: usize, write: bool) -> Fill;

    /// The most pages of zeros that may be put at once.
    fn zeros_max(&self) -> usize {
        WINDOW_MAX
    }

    /// A fault was told on a page that is RESIDENT: where it may have vanished without a change that is told,
    /// it is filled with zeros, if it is not there.
    fn put_vanished(&self, vpn: Vpn) -> Fill {
        self.put_zero(vpn, 1, true)
    }
    /// As `put`, of one page that has not faulted: so what is known of a page that has is not known of it.
    fn put_unasked(&self, vpn: Vpn, page: &[Page]) -> Fill {
        self.put(vpn, page)
    }
    /// There is room for so many such pages just now.
    fn room_for_unasked(&self) -> u64 {
        u64::MAX
    }
    /// The words of pages that were put in say so: whoever finds them FILLING from now on is not of this
    /// fill.
    fn filled(&self, _vpn: Vpn, _pages: usize) {}
    /// Is it to be told where pages are stored (`stored`)?
    fn wants_stored(&self) -> bool {
        false
    }
    /// These pages are swapped out, and these slots hold their bytes, on their devices: so it is until a fill
    /// puts them in, a change of the address space is told, or their device is swapped off. Inside the gate,
    /// under a lock of the page table.
    fn stored(&self, _pages: &[(Vpn, SwapEntry)]) {}
    /// Make the next access to the page fail (SIGBUS).
    fn poison(&self, vpn: Vpn);
    /// Wake the threads that wait for these pages; each of them repeats its access.
    fn wake(&self, vpn: Vpn, pages: usize);
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;

    #[test]
    fn pages_and_runs_are_the_same() {
        let pages: Vec<Vpn> = [1, 2, 3, 7, 9, 10].map(Vpn).to_vec();
        let runs = runs_of(pages.iter().copied());
        assert_eq!(runs.len(), 3);
        assert_eq!(pages_of(&runs).collect::<Vec<_>>(), pages);
    }
}
