//! Whether the children of a program's forks write what they share, or their parent does. By that it is
//! known what the next fork may lead to.
//!
//! The kernel makes a copy when one of those who share a page writes to it, and counts each as a fault that
//! it has served by itself. (Other such faults look like copies.)
//!
//! What it does not do: keep room for copies (`reclaim/fork_room.rs`).

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// With fewer copies since a fork a process has not written what is shared: to run another program
/// makes some hundred.
const COPIES_MIN: u64 = 512;
/// The same as a part of what was shared.
const COPIES_PART: u64 = 16;
/// A process that has not written it after this time is not about to.
const QUIET_AFTER_US: u64 = 1_000_000;
/// This many copies from one look to the next are a sign of writing.
const COPIES_OF_A_LOOK: u64 = 16;
/// After the last sign more may come for this long.
const WRITES_ON_US: u64 = 200_000;

/// The last that was found out about a program and all children of its forks.
#[derive(Default)]
struct Lineage(AtomicU8);

/// 0: nothing is known.
const QUIET: u8 = 1;
const WRITES: u8 = 2;

/// One process's part.
#[derive(Default)]
pub struct Sharing {
    lineage: OnceLock<Arc<Lineage>>,
    /// When it last forked, or was forked; 0: never.
    forked_us: AtomicU64,
    /// Faults that the kernel had served by itself then, and at the last look.
    faults_then: AtomicU64,
    faults_seen: AtomicU64,
    /// The pages that were shared then.
    shared_pages: AtomicU64,
    writing_us: AtomicU64,
    is_judged: AtomicBool,
}

impl Sharing {
    fn lineage(&self) -> &Arc<Lineage> {
        self.lineage.get_or_init(Arc::default)
    }

    /// It is a child of this one.
    pub fn inherit(&self, parent: &Sharing) {
        let _ = self.lineage.set(parent.lineage().clone());
    }

    /// It forks, or has been forked; the kernel has served so many faults by itself.
    pub fn forks(&self, now_us: u64, kernel_faults: u64, shared_pages: u64) {
        self.faults_then.store(kernel_faults, Ordering::Relaxed);
        self.faults_seen.store(kernel_faults, Ordering::Relaxed);
        self.shared_pages.store(shared_pages, Ordering::Relaxed);
        self.writing_us.store(now_us, Ordering::Relaxed);
        self.is_judged.store(false, Ordering::Relaxed);
        self.forked_us.store(now_us.max(1), Ordering::Relaxed);
    }

    /// Is it worth a look? Not who was quiet for long.
    pub fn is_watched(&self, now_us: u64) -> bool {
        self.forked_us.load(Ordering::Relaxed) != 0
            && (!self.is_judged.load(Ordering::Relaxed) || self.is_writing(now_us))
    }

    /// A look at it.
    pub fn look(&self, now_us: u64, kernel_faults: u64) {
        let forked_us = self.forked_us.load(Ordering::Relaxed);
        if forked_us == 0 {
            return;
        }
        let before = self.faults_seen.swap(kernel_faults, Ordering::Relaxed);
        if kernel_faults.saturating_sub(before) >= COPIES_OF_A_LOOK {
            self.writing_us.store(now_us, Ordering::Relaxed);
        }
        let copies = kernel_faults.saturating_sub(self.faults_then.load(Ordering::Relaxed));
        let least = COPIES_MIN.max(self.shared_pages.load(Ordering::Relaxed) / COPIES_PART);
        if copies >= least {
            self.judge(WRITES);
        } else if now_us.saturating_sub(forked_us) >= QUIET_AFTER_US {
            self.judge(QUIET);
        }
    }

    /// It is no more, or runs another program.
    pub fn ends(&self) {
        if self.forked_us.load(Ordering::Relaxed) != 0 {
            self.judge(QUIET);
        }
    }

    /// Once for each fork; but who has been quiet may write later.
    fn judge(&self, what: u8) {
        if !self.is_judged.swap(true, Ordering::Relaxed) || what == WRITES {
            self.lineage().0.store(what, Ordering::Relaxed);
        }
    }

    /// Is what a fork leaves shared written, as far as is known?
    pub fn writes(&self) -> bool {
        self.lineage().0.load(Ordering::Relaxed) != QUIET
    }

    /// Is it writing now?
    pub fn is_writing(&self, now_us: u64) -> bool {
        self.forked_us.load(Ordering::Relaxed) != 0
            && self.writes()
            && now_us.saturating_sub(self.writing_us.load(Ordering::Relaxed)) < WRITES_ON_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family() -> (Sharing, Sharing) {
        let (parent, child) = (Sharing::default(), Sharing::default());
        child.inherit(&parent);
        (parent, child)
    }

    #[test]
    fn a_fork_may_be_written_until_a_child_was_quiet() {
        let (parent, child) = family();
        assert!(parent.writes());
        child.forks(1000, 50, 4096);
        child.look(2000, 90);
        assert!(parent.writes() && child.is_writing(2000));
        child.ends();
        assert!(!parent.writes() && !child.is_writing(2000), "it ran another program");
    }

    #[test]
    fn who_writes_is_found_also_after_a_while() {
        let (parent, child) = family();
        child.forks(1000, 50, 160_000);
        child.look(1000 + QUIET_AFTER_US, 50 + COPIES_MIN);
        assert!(!parent.writes(), "a small part of what it shares");
        child.look(2000 + QUIET_AFTER_US, 50 + 160_000 / COPIES_PART);
        assert!(parent.writes() && child.is_writing(2000 + QUIET_AFTER_US));
        assert!(!child.is_writing(2000 + QUIET_AFTER_US + WRITES_ON_US));
        child.ends();
        assert!(parent.writes());
    }

    #[test]
    fn the_last_child_says_what_the_next_will_do() {
        let (parent, child) = family();
        child.forks(1000, 0, 0);
        child.look(2000, COPIES_MIN);
        let next = Sharing::default();
        next.inherit(&parent);
        next.forks(3000, 0, 0);
        next.ends();
        assert!(!parent.writes());
        assert!(!Sharing::default().is_writing(5), "it has never forked");
    }
}
