//! Time lost to waiting for memory, as the kernel's PSI counts it (`/proc/pressure/memory`).
//!
//! ```text
//!   pagers:  a fault is read ─▶ enter ─ ... served, read from a device, without room ... ─▶ leave
//!                                  └────────────▶ one word for each process ◀──────────────┘
//!   monitor: each tenth of a second ─▶ how long somebody waited since ─▶ total, averages over 10, 60, 300 s
//! ```
//!
//! *some*: at least one thread waits. The word says how many faults are in flight, and for how
//! long there has been one. *full*: somebody waits and nobody runs. Whether a thread runs is looked at with
//! each tick (PSI too leaves out who sleeps for another reason), so that full is some, times the share of
//! looks at which nobody ran.
//!
//! A fault counts from when it is read, to when its page is in place. The time that the kernel takes before
//! and after (some µs) is not known here.
//!
//! What it does not do: know processes, read a clock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The low bits of a word: how many faults are in flight. Above it: µs.
const COUNT_BITS: u32 = 16;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const TIME: u64 = !COUNT;

/// The lengths of the averages, in µs.
const WINDOWS_US: [f64; 3] = [10e6, 60e6, 300e6];
/// A look at who runs moves the share of such looks by this part of the way.
const LOOK_WEIGHT: f64 = 1.0 / 8.0;

/// How many faults of a process are in flight, and for how long there has been one.
///
/// While there is none, the word's time is what was waited so far; while there are some, it is that less the
/// moment at which the first of them began. So each change is one exchange of one word, and so is each look.
#[derive(Default)]
pub struct InFlight(AtomicU64);

impl InFlight {
    /// `faults` faults begin to be waited for.
    pub fn enter(&self, faults: u64, now_us: u64) {
        if faults > 0 {
            self.change(|count| count + faults, |was, _| if was == 0 { now_us.wrapping_neg() } else { 0 });
        }
    }

    /// One is not waited for any more.
    pub fn leave(&self, now_us: u64) {
        self.change(|count| count.saturating_sub(1), |was, is| if was > is && is == 0 { now_us } else { 0 });
    }

    fn change(&self, count: impl Fn(u64) -> u64, time_us: impl Fn(u64, u64) -> u64) {
        let changed = |word: u64| {
            let was = word & COUNT;
            let is = count(was).min(COUNT);
            let time = (word & TIME).wrapping_add(time_us(was, is) << COUNT_BITS);
            Some(time & TIME | is)
        };
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
    }

    /// Does somebody wait; and for how many µs has somebody so far?
    pub fn at(&self, now_us: u64) -> (bool, u64) {
        let word = self.0.load(Ordering::Relaxed);
        let waits = word & COUNT > 0;
        let now = if waits { now_us << COUNT_BITS } else { 0 };
        let waited_us = (word & TIME).wrapping_add(now) >> COUNT_BITS;
        // A wait may have begun after the caller has looked at the clock.
        let is_negative = waited_us >> (u64::BITS - COUNT_BITS - 1) != 0;
        (waits, if is_negative { 0 } else { waited_us })
    }
}

/// Shares of time, in percent, and the sum.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Share {
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
    pub total_us: f64,
}

impl Share {
    /// Somebody waited for `waited_us` of the last `elapsed_us`.
    fn add(&mut self, waited_us: f64, elapsed_us: f64) {
        self.total_us += waited_us;
        let percent = (waited_us / elapsed_us).clamp(0.0, 1.0) * 100.0;
        let averages = [&mut self.avg10, &mut self.avg60, &mut self.avg300];
        for (average, window_us) in averages.into_iter().zip(WINDOWS_US) {
            let keeps = (-elapsed_us / window_us).exp();
            *average = *average * keeps + percent * (1.0 - keeps);
        }
    }
}

#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Pressure {
    pub some: Share,
    pub full: Share,
}

/// What is known of a process, or of the run.
#[derive(Default)]
pub struct Stall {
    pub in_flight: InFlight,
    /// The monitor's; others read it.
    seen: Mutex<StallState>,
}

#[derive(Default)]
struct StallState {
    pressure: Pressure,
    /// The moment of the last look, and what had been waited by then.
    at_us: u64,
    waited_us: u64,
    /// The share of looks at which nobody ran, of those at which somebody waited.
    nobody_ran: Option<f64>,
}

impl Stall {
    /// From now on, for time before its first look is not to be averaged.
    pub fn since(now_us: u64) -> Stall {
        Stall { seen: Mutex::new(StallState { at_us: now_us, ..StallState::default() }), ..Stall::default() }
    }

    pub fn pressure(&self) -> Pressure {
        self.seen.lock().expect("stall").pressure
    }

    /// A look. `nobody_runs`: none of its threads runs, where somebody waits and that was looked at. Returns
    /// the share of time since the last look in which somebody waited.
    pub fn look(&self, now_us: u64, nobody_runs: Option<bool>) -> f64 {
        let waited_us = self.in_flight.at(now_us).1;
        self.look_at(now_us, |seen| (waited_us.saturating_sub(seen.waited_us) as f64, waited_us), nobody_runs)
    }

    /// The same of many together: of the time since the last look, somebody waited in this share.
    pub fn look_at_share(&self, now_us: u64, share: f64, nobody_runs: Option<bool>) {
        self.look_at(now_us, |seen| (share * now_us.saturating_sub(seen.at_us) as f64, 0), nobody_runs);
    }

    fn look_at(
        &self,
        now_us: u64,
        waited: impl Fn(&StallState) -> (f64, u64),
        nobody_runs: Option<bool>,
    ) -> f64 {
        let mut seen = self.seen.lock().expect("stall");
        if let Some(nobody_runs) = nobody_runs {
            let look = f64::from(u8::from(nobody_runs));
            let share = seen.nobody_ran.map_or(look, |share| share + (look - share) * LOOK_WEIGHT);
            seen.nobody_ran = Some(share);
        }
        let elapsed_us = now_us.saturating_sub(seen.at_us) as f64;
        if elapsed_us == 0.0 {
            return 0.0;
        }
        let (since_us, waited_us) = waited(&seen);
        let waited = since_us.min(elapsed_us);
        let nobody_ran = seen.nobody_ran.unwrap_or(0.0);
        seen.pressure.some.add(waited, elapsed_us);
        seen.pressure.full.add(waited * nobody_ran, elapsed_us);
        (seen.at_us, seen.waited_us) = (now_us, waited_us);
        waited / elapsed_us
    }

    /// What was waited since the last look, in µs: of one that is gone.
    pub fn rest_us(&self, now_us: u64) -> u64 {
        let seen = self.seen.lock().expect("stall");
        self.in_flight.at(now_us).1.saturating_sub(seen.waited_us)
    }

    /// µs since the last look.
    pub fn since_look_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.seen.lock().expect("stall").at_us)
    }
}

/// Somebody of several waits in this share of the time, if they do not wait in step.
pub fn together(shares: impl IntoIterator<Item = f64>) -> f64 {
    1.0 - shares.into_iter().map(|share| 1.0 - share.clamp(0.0, 1.0)).product::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    #[test]
    fn waits_that_overlap_count_once() {
        let word = InFlight::default();
        word.enter(2, 100);
        word.enter(1, 150);
        assert_eq!(word.at(160), (true, 60));
        word.leave(170);
        word.leave(180);
        assert_eq!(word.at(190), (true, 90));
        word.leave(200);
        assert_eq!(word.at(500), (false, 100));
        word.enter(0, 550);
        word.enter(1, 600);
        word.leave(607);
        assert_eq!(word.at(700), (false, 107));
        // One too many changes nothing, and a clock that is behind takes nothing away for good.
        word.leave(800);
        assert_eq!(word.at(900), (false, 107));
    }

    /// Enters and leaves of many threads: the time is that between the first and the last.
    #[test]
    fn no_wait_is_lost_between_threads() {
        let word = InFlight::default();
        word.enter(1, 10);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100_000).for_each(|_| (word.enter(1, 20), word.leave(30)).0));
            }
        });
        assert_eq!(word.at(40), (true, 30));
        word.leave(40);
        assert_eq!(word.at(99), (false, 30));
    }

    /// A process that waits in a share of each second, looked at ten times a second.
    fn waits(share: f64, seconds: u64, nobody_runs: bool) -> Stall {
        let stall = Stall::since(0);
        for tenth in 0..seconds * 10 {
            let start = tenth * S / 10;
            stall.in_flight.enter(1, start);
            stall.in_flight.leave(start + (share * S as f64 / 10.0) as u64);
            stall.look(start + S / 10, Some(nobody_runs));
        }
        stall
    }

    #[test]
    fn averages_are_of_10_60_and_300_seconds() {
        let close = |is: f64, wanted: f64| assert!((is - wanted).abs() < 0.01, "{is} and not {wanted}");
        let Pressure { some, full } = waits(0.4, 10, true).pressure();
        // 1 - 1/e of the way after the length of the average.
        close(some.avg10, 40.0 * (1.0 - (-1f64).exp()));
        close(some.avg60, 40.0 * (1.0 - (-1f64 / 6.0).exp()));
        close(some.avg300, 40.0 * (1.0 - (-1f64 / 30.0).exp()));
        close(some.total_us, 4e6);
        assert_eq!(some, full);
        let long = waits(0.4, 3000, false).pressure();
        close(long.some.avg300, 40.0);
        assert_eq!(long.full, Share::default());
    }

    #[test]
    fn averages_do_not_depend_on_how_often_is_looked() {
        let (often, seldom) = (Stall::since(0), Stall::since(0));
        for stall in [&often, &seldom] {
            stall.in_flight.enter(1, 0);
        }
        (1..=200).for_each(|tenth| _ = often.look(tenth * S / 10, Some(true)));
        seldom.look(20 * S, Some(true));
        let (often, seldom) = (often.pressure(), seldom.pressure());
        assert!((often.some.avg60 - seldom.some.avg60).abs() < 1e-6, "{often:?} {seldom:?}");
        assert!((seldom.full.avg10 - 100.0 * (1.0 - (-2f64).exp())).abs() < 1e-6, "{seldom:?}");
    }

    #[test]
    fn full_is_the_share_of_looks_at_which_nobody_ran() {
        let stall = Stall::since(0);
        stall.in_flight.enter(1, 0);
        for tenth in 1..=10_000 {
            stall.look(tenth * S / 10, Some(tenth % 4 == 0));
        }
        let Pressure { some, full } = stall.pressure();
        assert!((some.avg60 - 100.0).abs() < 0.1 && (full.avg60 - 25.0).abs() < 2.0, "{some:?} {full:?}");
    }

    #[test]
    fn a_look_twice_at_once_is_one() {
        let stall = Stall::since(5);
        stall.in_flight.enter(1, 5);
        assert_eq!(stall.look(5, None), 0.0);
        assert_eq!(stall.look(6, None), 1.0);
        let once = stall.pressure();
        stall.look(6, None);
        assert_eq!(stall.pressure(), once);
        assert_eq!((once.some.total_us, once.full.total_us), (1.0, 0.0));
    }

    #[test]
    fn several_together() {
        assert_eq!(together([]), 0.0);
        assert_eq!(together([0.25]), 0.25);
        assert_eq!(together([0.5, 0.5]), 0.75);
        assert_eq!(together([1.0, 0.2]), 1.0);
    }
}
