//! Some of the faults are noted, for a report that says who faults most: their addresses.
//!
//! ```text
//!   pager: each fault ─▶ its countdown ─▶ about one in N ─▶ a bounded list ─▶ `take`, now and then
//! ```
//!
//! How many faults are left out between two samples is drawn, with N as the mean: a program that touches two
//! arrays in turn would be half seen by a fixed number. Faults that come while the list is full are counted
//! only.
//!
//! What it does not do: know what is at an address. The reader of the samples reads the maps.

use std::sync::{Mutex, PoisonError};

/// Samples that wait to be taken, at most: of one look's time.
const NOTED_MAX: usize = 8192;

/// Whether faults are noted, and which.
#[derive(Default)]
pub struct Sampling(Option<On>);

struct On {
    every: u32,
    noted: Mutex<Noted>,
}

/// A fault that was drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// The process's key in the run's table.
    pub process: u64,
    pub addr: u64,
}

#[derive(Default, Debug)]
pub struct Noted {
    pub samples: Vec<Sample>,
    /// Beyond what the list holds.
    pub left_out: u64,
}

/// A pager's own count, so that no line of memory is shared for it.
pub struct Countdown {
    left: u32,
    random: u64,
}

impl Countdown {
    /// `seed`: another for each thread that has one.
    pub fn new(seed: u32) -> Countdown {
        Countdown { left: 0, random: (u64::from(seed) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    /// Is it this fault's turn? One of `every` in the mean.
    fn is_over(&mut self, every: u32) -> bool {
        if let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            return false;
        }
        // xorshift64.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.left = ((self.random >> 32) % (2 * u64::from(every) - 1)) as u32;
        true
    }
}

impl Sampling {
    /// About one fault in `every`, which is 1 or more.
    pub fn every(every: u32) -> Sampling {
        Sampling(Some(On { every: every.max(1), noted: Mutex::default() }))
    }

    /// A fault has come; is it to be noted?
    pub fn is_due(&self, countdown: &mut Countdown) -> bool {
        self.0.as_ref().is_some_and(|on| countdown.is_over(on.every))
    }

    pub fn note(&self, process: u64, addr: u64) {
        let Some(on) = &self.0 else { return };
        let mut noted = on.noted.lock().unwrap_or_else(PoisonError::into_inner);
        match noted.samples.len() < NOTED_MAX {
            true => noted.samples.push(Sample { process, addr }),
            false => noted.left_out += 1,
        }
    }

    /// The samples that have been noted since this was last asked.
    pub fn take(&self) -> Noted {
        let Some(on) = &self.0 else { return Noted::default() };
        std::mem::take(&mut on.noted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_so_many_is_noted_and_not_in_step() {
        for every in [1u32, 2, 16, 1000] {
            let sampling = Sampling::every(every);
            let mut countdown = Countdown::new(every);
            let due: Vec<usize> = (0..100_000).filter(|_| sampling.is_due(&mut countdown)).collect();
            let wanted = 100_000 / every as usize;
            assert!(due.len().abs_diff(wanted) <= wanted / 5, "{every}: {}", due.len());
            let odd = due.iter().filter(|n| *n % 2 == 1).count();
            assert!(odd.abs_diff(due.len() / 2) <= due.len() / 8 + 8, "{every}: {odd} of {}", due.len());
        }
    }

    #[test]
    fn the_list_is_bounded_and_what_is_left_out_is_counted() {
        let sampling = Sampling::every(1);
        for n in 0..NOTED_MAX as u64 + 5 {
            sampling.note(1, n);
        }
        let noted = sampling.take();
        assert_eq!((noted.samples.len(), noted.left_out), (NOTED_MAX, 5));
        assert_eq!(noted.samples[7], Sample { process: 1, addr: 7 });
        assert!(sampling.take().samples.is_empty());
    }

    #[test]
    fn nothing_is_noted_where_nothing_is_wanted() {
        let off = Sampling::default();
        assert!(!off.is_due(&mut Countdown::new(0)));
        off.note(1, 2);
        assert!(off.take().samples.is_empty());
    }
}
