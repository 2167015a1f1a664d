//! How far a process has come with copying pages that a fork has left shared, and what of that we were asked
//! for (monitor/protect.rs).
//!
//! The kernel makes the copies, and counts each as a fault that it has served by itself. (Other such faults
//! look like copies.)
//!
//! A thread that writes in order asks for twice as many pages each time, as readahead does. Others ask for
//! one: what may be written counts as copied, until it is measured. Tried: 32 pages for each write. Small
//! children counted as much as all that they shared after some ten stores; where many came one after the
//! other memory seemed tight, and all waited.

use memspill_engine::fill::WINDOW_MAX;
use memspill_engine::units::Vpn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A gap of no more than this is still writing in order.
const GAP_PAGES: u64 = 4;

/// One process's copies.
pub struct Copies {
    has_protected: AtomicBool,
    /// Writes that were let go on.
    asked: AtomicU64,
    granted_pages: AtomicU64,
    /// The pages of the last grant, and the page behind it.
    last_pages: AtomicU64,
    next_page: AtomicU64,
    /// Faults that the kernel had served by itself when pages were first protected.
    faults_at_first: AtomicU64,
    /// The same at the last look, less what was granted by then. NEVER: there was no look.
    unasked_then: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl Default for Copies {
    fn default() -> Copies {
        Copies {
            has_protected: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            granted_pages: AtomicU64::new(0),
            last_pages: AtomicU64::new(0),
            next_page: AtomicU64::new(0),
            faults_at_first: AtomicU64::new(0),
            unasked_then: AtomicU64::new(NEVER),
        }
    }
}

impl Copies {
    /// Some of its pages may be protected.
    pub fn has_protected(&self) -> bool {
        self.has_protected.load(Ordering::Relaxed)
    }

    /// Pages are about to be protected; the kernel has served so many faults by itself.
    pub fn begin_protecting(&self, kernel_faults: u64) {
        if !self.has_protected() {
            self.faults_at_first.store(kernel_faults, Ordering::Relaxed);
            self.has_protected.store(true, Ordering::Relaxed);
        }
    }

    /// How many pages may be written at once, from this one on, to which somebody writes.
    pub fn wanted_pages(&self, vpn: Vpn) -> u64 {
        let left_out = vpn.0.wrapping_sub(self.next_page.load(Ordering::Relaxed));
        match left_out <= GAP_PAGES {
            true => (2 * self.last_pages.load(Ordering::Relaxed)).clamp(1, WINDOW_MAX as u64),
            false => 1,
        }
    }

    /// `pages` pages may be written from this one on: their copies are none that nobody has asked for. (The
    /// first one's is counted as a fault of ours.)
    pub fn grant(&self, first: Vpn, pages: u64) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.granted_pages.fetch_add(pages - 1, Ordering::Relaxed);
        self.last_pages.store(pages, Ordering::Relaxed);
        self.next_page.store(first.0 + pages, Ordering::Relaxed);
    }

    /// How many writes were let go on.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// At least so many of them have not been written yet.
    pub fn outstanding_pages(&self, kernel_faults: u64) -> u64 {
        let made = kernel_faults.saturating_sub(self.faults_at_first.load(Ordering::Relaxed));
        self.granted_pages.load(Ordering::Relaxed).saturating_sub(made)
    }

    /// How many copies have been made, perhaps, that nobody has asked for since this was asked last.
    pub fn unasked(&self, kernel_faults: u64) -> u64 {
        let now = kernel_faults.saturating_sub(self.granted_pages.load(Ordering::Relaxed));
        let then = self.unasked_then.swap(now, Ordering::Relaxed);
        // Pages that were granted and not written yet make it less.
        if then == NEVER { 0 } else { now.saturating_sub(then) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_granted_is_not_unasked() {
        let copies = Copies::default();
        assert_eq!(copies.unasked(100), 0, "those of a whole life");
        assert_eq!(copies.unasked(130), 30);
        copies.grant(Vpn(64), 33);
        assert_eq!(copies.unasked(150), 0, "20 of 32");
        assert_eq!(copies.unasked(165), 15);
    }

    #[test]
    fn who_writes_in_order_may_write_more() {
        let copies = Copies::default();
        let write = |page| {
            let pages = copies.wanted_pages(Vpn(page));
            copies.grant(Vpn(page), pages);
            pages
        };
        assert_eq!([1000, 1001, 1003, 1007].map(write), [1, 2, 4, 8]);
        assert_eq!([1017, 1033, 1065, 1097].map(write), [16, 32, 32, 32]);
        assert_eq!([500, 400, 401, 405].map(write), [1, 1, 2, 4]);
        assert_eq!([414, 413].map(write), [1, 1], "too far, and backwards");
    }

    #[test]
    fn what_is_not_written_is_outstanding() {
        let copies = Copies::default();
        copies.begin_protecting(1000);
        copies.grant(Vpn(0), 32);
        copies.grant(Vpn(32), 32);
        assert_eq!(copies.outstanding_pages(1000), 62);
        copies.begin_protecting(1010);
        assert_eq!(copies.outstanding_pages(1040), 22);
        assert_eq!(copies.outstanding_pages(1100), 0);
    }
}
