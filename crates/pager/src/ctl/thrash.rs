//! Does the run crawl? Who has waited for memory for most of the last minute, and what budget would do.
//!
//! ```text
//!   in each 12th of the window:  how long nobody of a process ran, as it waited (stall.rs)  ┐ less the same
//!                                how long pages were away (working_set.rs)                  ┘ one window ago
//!   most of that time? ─▶ warned once for each budget, or it grows, or the run is killed (budget.rs)
//! ```
//!
//! A process is as many times slower as the time is longer than that in which it does not wait. One that has
//! not been there for a whole window is not looked at; the run as a whole is, for many short processes.

use crate::working_set::{Counts, budget_with};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Looks in a window.
pub const LOOKS: u32 = 12;
/// The key of the run as a whole.
pub const RUN: u64 = 0;
/// A budget would do with which no more than this is lost, as a part of the time in which work is done.
const LOST_MAX: f64 = 0.25;

/// At some moment: µs that were lost to waiting by then.
#[derive(Clone, Copy)]
struct Sample {
    at_us: u64,
    waited_us: f64,
}

/// What is remembered of the last window.
pub struct Thrash {
    window: Duration,
    share_max: f64,
    /// By the process's key, or RUN.
    waits: HashMap<u64, VecDeque<Sample>>,
    counts: VecDeque<Counts>,
}

/// Who waits, and how much.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Crawling {
    pub key: u64,
    pub share: f64,
    pub would_do_bytes: Option<u64>,
}

impl Thrash {
    /// More than `max_slowdown` times slower is too slow.
    pub fn new(window: Duration, max_slowdown: f64) -> Thrash {
        let share_max = 1.0 - 1.0 / max_slowdown;
        Thrash { window, share_max, waits: HashMap::new(), counts: VecDeque::new() }
    }

    /// Something has changed: what was before tells nothing any more.
    pub fn forget(&mut self) {
        self.waits.clear();
        self.counts.clear();
    }

    /// A look: how long each (by its key) has waited by now. Who crawls most, if somebody does.
    pub fn look(&mut self, now_us: u64, waits: &[(u64, f64)], counts: Counts) -> Option<Crawling> {
        self.waits.retain(|key, _| waits.iter().any(|(living, _)| living == key));
        // A process that is too slow is named; the run only where none is.
        let mut most: Option<(u64, f64)> = None;
        for (key, waited_us) in waits {
            let samples = self.waits.entry(*key).or_default();
            let share = share(samples, Sample { at_us: now_us, waited_us: *waited_us });
            let is_more = most.is_none_or(|(before, most)| before == RUN || (*key != RUN && share > most));
            if share > self.share_max && is_more {
                most = Some((*key, share));
            }
        }
        let then = (self.counts.len() == LOOKS as usize).then(|| self.counts.pop_front()).flatten();
        let since = counts.since(then.as_ref().or(self.counts.front()).unwrap_or(&Counts::default()));
        self.counts.push_back(counts);
        most.map(|(key, share)| Crawling { key, share, would_do_bytes: would_do(&since, share) })
    }

    /// The window, for people.
    pub fn window_words(&self) -> String {
        match self.window.as_secs() {
            60 => "the last minute".into(),
            seconds => format!("the last {seconds} s"),
        }
    }

    pub fn pause(&self) -> Duration {
        self.window / LOOKS
    }
}

/// The share of the last window; the sample is noted. 0 if not so much is known.
fn share(samples: &mut VecDeque<Sample>, now: Sample) -> f64 {
    let then = (samples.len() == LOOKS as usize).then(|| samples.pop_front()).flatten();
    samples.push_back(now);
    let Some(then) = then else { return 0.0 };
    let elapsed_us = now.at_us.saturating_sub(then.at_us).max(1) as f64;
    ((now.waited_us - then.waited_us) / elapsed_us).clamp(0.0, 1.0)
}

/// The least budget with which little would be lost, by pages that came back while this share was.
pub fn would_do(counts: &Counts, share: f64) -> Option<u64> {
    let lost = share / (1.0 - share).max(0.01);
    budget_with(&counts.curve(), LOST_MAX / lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    /// A look each 5 s for so long; process 7 waits in this share of the time, from 100 s on in another.
    fn looks(thrash: &mut Thrash, seconds: std::ops::Range<u64>, share: f64) -> Option<Crawling> {
        let mut last = None;
        for at in seconds.step_by(5) {
            let waited_us = (at * S) as f64 * share;
            last = thrash.look(at * S, &[(0, 0.0), (7, waited_us)], Counts::default());
        }
        last
    }

    fn minute(max_slowdown: f64) -> Thrash {
        Thrash::new(Duration::from_secs(60), max_slowdown)
    }

    #[test]
    fn a_whole_window_must_have_passed() {
        assert_eq!(looks(&mut minute(3.0), 0..60, 0.9), None);
        let crawling = looks(&mut minute(3.0), 0..61, 0.9).unwrap();
        assert!(crawling.key == 7 && (crawling.share - 0.9).abs() < 1e-9, "{crawling:?}");
    }

    #[test]
    fn how_slow_is_too_slow_is_said() {
        assert_eq!(looks(&mut minute(3.0), 0..200, 0.6), None);
        assert!(looks(&mut minute(2.0), 0..200, 0.6).is_some());
        assert_eq!(looks(&mut minute(5.0), 0..200, 0.79), None);
        assert!(looks(&mut minute(5.0), 0..200, 0.81).is_some());
    }

    #[test]
    fn what_is_long_ago_or_forgotten_does_not_count() {
        let mut thrash = minute(3.0);
        assert!(looks(&mut thrash, 0..100, 0.9).is_some());
        let waited_us = 95.0 * 0.9 * S as f64;
        let quiet = |at: u64, thrash: &mut Thrash| thrash.look(at * S, &[(7, waited_us)], Counts::default());
        assert!((100..170).step_by(5).map(|at| quiet(at, &mut thrash)).last().unwrap().is_none());
        let mut thrash = minute(3.0);
        assert!(looks(&mut thrash, 0..100, 0.9).is_some());
        thrash.forget();
        assert_eq!(looks(&mut thrash, 100..160, 0.9), None);
    }
}
