//! The trait over an address space: how pages are taken out of it and put into it.
//!
//! The pager brings one that moves pages of another process with userfaultfd; tests and the simulator bring one that
//! moves bytes of an array. The engine holds one per [`crate::space::Space`].
//!
//! Contract:
//! * [`Memory::take`] is atomic per page: once it returns, no store to that page can be lost, and an access to it waits
//!   for `put`, `put_zero` or `poison`.
//! * The filling calls never overwrite a page that is present ([`Stop::Exists`] instead) and wake the waiters of what
//!   they filled.
//! * Nothing here waits for a fault to be served.

use crate::units::{Page, Vpn};

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

/// A contiguous run of virtual pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub vpn: Vpn,
    pub pages: u32,
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

pub trait Memory: Send + Sync {
    /// Take the pages of `runs` out. `outcome` gets one entry per page, in order. `frames[i]` receives the bytes of the
    /// i-th page that is `Moved`.
    fn take(&self, runs: &[Run], frames: &mut [Page], outcome: &mut Vec<Take>);

    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill;
    /// Fill with zeros. `write`: the fault was a store, so pages of their own are wanted.
    fn put_zero(&self, vpn: Vpn, pages: usize, write: bool) -> Fill;
    /// Make the next access to the page fail (SIGBUS).
    fn poison(&self, vpn: Vpn);
    /// Wake whoever waits for these pages; they look again.
    fn wake(&self, vpn: Vpn, pages: usize);
}
