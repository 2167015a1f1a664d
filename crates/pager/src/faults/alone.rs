//! May a pager wait for a read of a disk? If nobody else would wait for the pager meanwhile.
//!
//! To be told of a read's end takes two calls more than to wait for it (io_uring, epoll twice): random
//! faults of one thread on a fast disk come 7 % faster so. But a pager that waits serves nobody. It does so
//! after many faults in a row that were the only one of their process, whose other threads do not fault, and
//! all of that process. Who faults there next waits for one read at most, and ends the row. Where reads are
//! not short it is not done for a while: of a disk that takes its time it would gain nothing.
//!
//! What it does not do: look whether other reads are under way.

use crate::times::WAITED_READ;
use std::time::Duration;

/// So many faults in a row.
const FAULTS_MIN: u32 = 32;
/// The mean is of so many reads, ...
const MEAN_OF: u32 = 8;
/// ... and one that took longer counts as this: it may be the CPU that was not there.
const LONGEST: Duration = Duration::from_millis(4);
/// After a mean above WAITED_READ so many faults pass before a read is waited for again.
const FAULTS_AFTER_LONG: u32 = 2048;
const _: () = assert!(LONGEST.as_millis() < MEAN_OF as u128 * WAITED_READ.as_millis());

/// What one pager knows of the faults that it has served.
#[derive(Default)]
pub struct Alone {
    /// The process of the last faults.
    key: u64,
    in_a_row: u32,
    /// How long faults took whose reads were waited for.
    mean: Duration,
    /// Faults until it may wait again.
    pause: u32,
}

impl Alone {
    /// A fault of this process has been read. `is_only`: it has no other, and only one of its threads faults.
    pub fn note_fault(&mut self, key: u64, is_only: bool) {
        self.pause = self.pause.saturating_sub(1);
        if key != self.key || !is_only {
            (self.key, self.in_a_row) = (key, 0);
        } else {
            self.in_a_row = self.in_a_row.saturating_add(1);
        }
    }

    pub fn may_wait(&self) -> bool {
        self.pause == 0 && self.in_a_row >= FAULTS_MIN
    }

    /// A fault has been served, during which a read may have been waited for.
    pub fn note_served(&mut self, took: Duration) {
        self.mean = (self.mean * (MEAN_OF - 1) + took.min(LONGEST)) / MEAN_OF;
        if self.mean > WAITED_READ {
            (self.mean, self.pause) = (Duration::ZERO, FAULTS_AFTER_LONG);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(faults: &[(u64, bool)]) -> Alone {
        let mut alone = Alone::default();
        faults.iter().for_each(|(key, is_only)| alone.note_fault(*key, *is_only));
        alone
    }

    #[test]
    fn many_faults_of_one_thread_allow_it_and_any_other_ends_it() {
        let row = [(7, true); FAULTS_MIN as usize + 1];
        assert!(after(&row).may_wait());
        assert!(!after(&row[1..]).may_wait());
        for other in [(8, true), (7, false)] {
            let mut faults = row.to_vec();
            faults.push(other);
            assert!(!after(&faults).may_wait(), "{other:?}");
            faults.extend(&row[2..]);
            assert!(!after(&faults).may_wait(), "too soon after {other:?}");
        }
        let in_turns: Vec<_> = (0..1000).map(|n| (n % 2, true)).collect();
        assert!(!after(&in_turns).may_wait());
    }

    #[test]
    fn where_reads_are_long_it_is_not_done_for_a_while() {
        let mut alone = after(&[(7, true); 100]);
        (0..100).for_each(|_| alone.note_served(WAITED_READ / 4));
        alone.note_served(LONGEST * 100);
        assert!(alone.may_wait(), "one that is long says little");
        let reads = (1..100).find(|_| {
            alone.note_served(WAITED_READ * 2);
            !alone.may_wait()
        });
        assert!(reads.is_some_and(|reads| reads < 10), "{reads:?}");
        (1..FAULTS_AFTER_LONG).for_each(|_| alone.note_fault(7, true));
        assert!(!alone.may_wait());
        alone.note_fault(7, true);
        assert!(alone.may_wait());
    }
}
