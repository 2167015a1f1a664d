//! How far a process has come with copying pages that a fork has left shared, and what of that we were asked
//! for (monitor/protect.rs).
//!
//! The kernel makes the copies, and counts each as a fault that it has served by itself. (Other such faults
//! look like copies.)

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One process's copies.
pub struct Copies {
    has_protected: AtomicBool,
    granted_pages: AtomicU64,
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
            granted_pages: AtomicU64::new(0),
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

    /// So many pages may be written: their copies are none that nobody has asked for.
    pub fn grant(&self, pages: u64) {
        self.granted_pages.fetch_add(pages, Ordering::Relaxed);
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
        // What was granted and not written yet makes it less.
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
        copies.grant(32);
        assert_eq!(copies.unasked(150), 0, "20 of 32");
        assert_eq!(copies.unasked(165), 15);
    }

    #[test]
    fn what_is_not_written_is_outstanding() {
        let copies = Copies::default();
        copies.begin_protecting(1000);
        copies.grant(31);
        copies.grant(31);
        assert_eq!(copies.outstanding_pages(1000), 62);
        copies.begin_protecting(1010);
        assert_eq!(copies.outstanding_pages(1040), 22);
        assert_eq!(copies.outstanding_pages(1100), 0);
    }
}
