//! Locks that know how often they were taken, and how long they were waited for and held.
//!
//! ```text
//!   lock() ─ free ──────────────▶ taken + 1                     1 of 64: a clock when it is had,
//!          └ another holds it ──▶ taken + 1, contended + 1,              and one when it is given back
//!                                 waited: clock before and after
//! ```
//!
//! The counts lie in what the lock guards, so counting touches no other cache line. Only who waits anyway
//! reads a clock each time. How long a lock is held is measured one time in 64, spread evenly over the times
//! that it is taken (multiples of the golden ratio), so that no rhythm of the callers is always met at the
//! same beat.
//!
//! What it does not do: count the tries of whoever goes elsewhere when a lock is not free; keep locks in
//! order.

use crate::sync::{Mutex, MutexGuard, clock_ns, lock};
use std::ops::{Deref, DerefMut};
use std::sync::TryLockError;

/// One hold of so many is measured.
const HOLDS_PER_SAMPLE: u64 = 64;
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// The counts of one lock, which guards them: 24 bytes, since each cluster has them.
#[derive(Clone, Copy, Default)]
pub(super) struct LockCounts {
    taken: u64,
    waited_ns: u64,
    contended: u32,
    /// The time of the holds that were measured.
    held_ns: u32,
}

/// What locks of one kind have cost, all of them together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LockTotals {
    pub taken: u64,
    /// The times that another thread held it.
    pub contended: u64,
    /// Time for which threads waited.
    pub waited_ns: u64,
    /// Time for which it was held, extrapolated from one hold of 64.
    pub held_ns: u64,
}

impl std::ops::AddAssign<LockCounts> for LockTotals {
    fn add_assign(&mut self, counts: LockCounts) {
        self.taken += counts.taken;
        self.contended += u64::from(counts.contended);
        self.waited_ns += counts.waited_ns;
        self.held_ns += u64::from(counts.held_ns) * HOLDS_PER_SAMPLE;
    }
}

impl std::ops::AddAssign for LockTotals {
    fn add_assign(&mut self, other: LockTotals) {
        self.taken += other.taken;
        self.contended += other.contended;
        self.waited_ns += other.waited_ns;
        self.held_ns += other.held_ns;
    }
}

/// Data that is guarded by a lock that counts.
pub(super) trait Counted {
    fn counts(&mut self) -> &mut LockCounts;
}

/// A lock that is held.
pub(super) struct Held<'a, T: Counted> {
    data: MutexGuard<'a, T>,
    /// When it was had, if this hold is measured.
    since_ns: Option<u64>,
}

impl LockCounts {
    fn note_taken(&mut self) -> Option<u64> {
        self.taken += 1;
        let measured = self.taken.wrapping_mul(GOLDEN_RATIO) < u64::MAX / HOLDS_PER_SAMPLE;
        measured.then(clock_ns)
    }
}

/// Lock, and count it.
#[track_caller]
pub(super) fn lock_counted<T: Counted>(mutex: &Mutex<T>) -> Held<'_, T> {
    if let Some(held) = try_lock_counted(mutex) {
        return held;
    }
    let before = clock_ns();
    let mut data = lock(mutex);
    let counts = data.counts();
    counts.waited_ns += clock_ns().saturating_sub(before);
    counts.contended = counts.contended.saturating_add(1);
    let since_ns = counts.note_taken();
    Held { data, since_ns }
}

/// Lock if nobody else is there, and count it.
#[track_caller]
pub(super) fn try_lock_counted<T: Counted>(mutex: &Mutex<T>) -> Option<Held<'_, T>> {
    match mutex.try_lock() {
        Ok(mut data) => {
            let since_ns = data.counts().note_taken();
            Some(Held { data, since_ns })
        }
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Poisoned(_)) => panic!("a thread panicked while it held this lock"),
    }
}

/// Lock without counting it: for reading the counts.
pub(super) fn lock_uncounted<T: Counted>(mutex: &Mutex<T>) -> Held<'_, T> {
    Held { data: lock(mutex), since_ns: None }
}

impl<T: Counted> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T: Counted> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.data
    }
}

impl<T: Counted> Drop for Held<'_, T> {
    fn drop(&mut self) {
        if let Some(since_ns) = self.since_ns {
            let held_ns = clock_ns().saturating_sub(since_ns);
            let counts = self.data.counts();
            counts.held_ns = counts.held_ns.saturating_add(held_ns.try_into().unwrap_or(u32::MAX));
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle, simulated))))]
mod tests {
    use super::*;
    use std::thread::{scope, sleep, yield_now};
    use std::time::Duration;

    #[derive(Default)]
    struct Guarded(LockCounts);
    impl Counted for Guarded {
        fn counts(&mut self) -> &mut LockCounts {
            &mut self.0
        }
    }

    fn totals(mutex: &Mutex<Guarded>) -> LockTotals {
        let mut totals = LockTotals::default();
        totals += lock_uncounted(mutex).0;
        totals
    }

    #[test]
    fn one_hold_of_64_is_measured_and_all_are_counted() {
        let mutex = Mutex::new(Guarded::default());
        let measured = (0..6400).filter(|_| lock_counted(&mutex).since_ns.is_some()).count();
        assert!((99..=101).contains(&measured), "{measured}");
        let measured = |i: &u32| lock_counted(&mutex).since_ns.is_some() && i.is_multiple_of(4);
        let every_fourth = (0..6400).filter(measured).count();
        assert!((20..=30).contains(&every_fourth), "{every_fourth} of 1600");
        let totals = totals(&mutex);
        assert_eq!((totals.taken, totals.contended, totals.waited_ns), (12800, 0, 0));
        assert!(totals.held_ns > 0);
    }

    #[test]
    fn who_waits_says_how_long() {
        let mutex = Mutex::new(Guarded::default());
        let held = lock_counted(&mutex);
        assert!(try_lock_counted(&mutex).is_none());
        scope(|scope| {
            let waiter = scope.spawn(|| drop(lock_counted(&mutex)));
            sleep(Duration::from_millis(20));
            drop(held);
            while !waiter.is_finished() {
                yield_now();
            }
        });
        let totals = totals(&mutex);
        assert_eq!(totals.taken, 2);
        // Unless the waiter came only after these 20 ms.
        assert!(totals.contended == 0 || totals.waited_ns > 0, "{totals:?}");
    }

    #[test]
    fn what_is_held_long_is_extrapolated() {
        let mutex = Mutex::new(Guarded::default());
        (0..64).for_each(|_| {
            let held = lock_counted(&mutex);
            if held.since_ns.is_some() {
                sleep(Duration::from_millis(2));
            }
        });
        let held_ns = totals(&mutex).held_ns;
        assert!(held_ns >= 64 * 2_000_000, "{held_ns}");
    }
}
