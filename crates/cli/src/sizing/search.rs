//! Which budget is tried next, and when it is known.
//!
//! ```text
//!   without limit, twice ─▶ time and peak
//!   half of the peak, half of that, ... until it is too slow        its refaults say what would do (Point)
//!   what would do ─▶ a run: fast enough? ─▶ a little less, then twice that less, ... until it is too slow
//!                           too slow?    ─▶ what its own refaults say; else a little more
//! ```
//!
//! Only runs decide; what refaults say decides where to look. The answer lies between a budget that was too
//! small and one that did, no further apart than a sixteenth. What it does not do: run anything.

use memspill_pager::working_set::{Point, budget_with};

/// Budgets are tried in whole MiB.
const STEP_BYTES: u64 = 1 << 20;
/// A budget is known to this part of itself.
const RESOLUTION_PARTS: u64 = 16;
/// The most runs with a budget.
const RUNS_MAX: usize = 12;
/// This share of the time that may be lost is aimed for: what refaults say is no better than that.
const AIM: f64 = 0.9;
/// A run that was stopped would have lost so many times what its stalls say, as a guess. If that is too much
/// the next budget is enough, and a run that is enough takes less time than one that is not.
const STOPPED_LOSES: f64 = 3.0;
/// At least this part of a stopped run was done, however long it had waited.
const DONE_LEAST: f64 = 0.02;

/// A run with a budget.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub budget_bytes: u64,
    pub wall_s: f64,
    pub end: End,
    /// Time in which no thread ran, as one waited for memory.
    pub stalled_s: f64,
    pub curve: Vec<Point>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum End {
    Whole,
    /// Stopped, as it was too slow by then.
    Stopped,
    /// It could not run in so little, with the reason.
    Failed(String),
}

/// What is known so far.
pub struct Search {
    pub free_s: f64,
    /// How many times the time without a limit is allowed.
    pub allowed: f64,
    least_bytes: u64,
    /// With this nothing is swapped.
    ample_bytes: u64,
    first_bytes: u64,
    pub attempts: Vec<Attempt>,
}

impl Search {
    pub fn new(free_s: f64, peak_bytes: u64, allowed: f64, least_bytes: u64) -> Search {
        // Memory is managed from some way below the budget on (account.rs of the pager).
        let ample_bytes = whole_steps(peak_bytes + (peak_bytes / 3).clamp(4 << 20, 64 << 20));
        let first_bytes = whole_steps(peak_bytes / 2).max(least_bytes);
        Search { free_s, allowed, least_bytes, ample_bytes, first_bytes, attempts: Vec::new() }
    }

    /// How many times the time without limit it takes; of one that was stopped, by its stalls.
    pub fn slowdown(&self, attempt: &Attempt) -> f64 {
        let measured = attempt.wall_s / self.free_s;
        if attempt.end == End::Whole {
            return measured;
        }
        let done = (attempt.wall_s - attempt.stalled_s).max(DONE_LEAST * attempt.wall_s);
        measured.max(attempt.wall_s / done)
    }

    pub fn does(&self, attempt: &Attempt) -> bool {
        attempt.end == End::Whole && self.slowdown(attempt) <= self.allowed
    }

    /// The largest budget that was too small.
    fn too_small(&self) -> Option<&Attempt> {
        self.attempts.iter().filter(|attempt| !self.does(attempt)).max_by_key(|attempt| attempt.budget_bytes)
    }

    /// The smallest budget that did, above all that were too small.
    pub fn answer(&self) -> Option<&Attempt> {
        let above = self.too_small().map_or(0, |attempt| attempt.budget_bytes);
        let did = self.attempts.iter().filter(|a| a.budget_bytes > above && self.does(a));
        did.min_by_key(|attempt| attempt.budget_bytes)
    }

    /// The budget to be tried next. None: the answer is known, or will not become better.
    pub fn next(&self) -> Option<u64> {
        let low = self.too_small();
        let enough = self.answer().map(|attempt| attempt.budget_bytes);
        if self.attempts.len() >= RUNS_MAX {
            return (enough.is_none() && low?.budget_bytes < self.ample_bytes).then_some(self.ample_bytes);
        }
        let Some(low) = low else {
            let Some(enough) = enough else { return Some(self.first_bytes) };
            return (enough > self.least_bytes).then(|| whole_steps(enough / 2).max(self.least_bytes));
        };
        let high_bytes = enough.unwrap_or(self.ample_bytes);
        let low_bytes = low.budget_bytes;
        let gap_bytes = (high_bytes / RESOLUTION_PARTS).max(STEP_BYTES);
        if high_bytes.saturating_sub(low_bytes) <= gap_bytes {
            // All that is less is too small: is that enough?
            return (enough.is_none() && low_bytes < high_bytes).then_some(high_bytes);
        }
        let middle_bytes = low_bytes + (high_bytes - low_bytes) / 2;
        let predicted = self.would_do(low).unwrap_or(middle_bytes);
        // What refaults said was too little once: half of the way is no worse than what they say now.
        let predicted = if self.in_a_row(false) > 0 { predicted.max(middle_bytes) } else { predicted };
        let next_bytes = if predicted + gap_bytes > high_bytes && enough.is_some() {
            middle_bytes.max(high_bytes.saturating_sub(gap_bytes << self.in_a_row(true)))
        } else if predicted < low_bytes + gap_bytes {
            middle_bytes.min(low_bytes + (gap_bytes << self.in_a_row(false)))
        } else {
            predicted
        };
        Some(
            whole_steps(next_bytes).clamp(low_bytes + STEP_BYTES, high_bytes - STEP_BYTES.min(gap_bytes / 2)),
        )
    }

    /// By the refaults of a run that was too slow.
    fn would_do(&self, attempt: &Attempt) -> Option<u64> {
        let lost = self.slowdown(attempt) - 1.0;
        // One that was stopped began with time in which it did not wait, and would have got slower yet.
        let lost = if attempt.end == End::Stopped { lost * STOPPED_LOSES } else { lost };
        budget_with(&attempt.curve, AIM * (self.allowed - 1.0) / lost)
    }

    /// The last so many attempts since the first that was too slow ended alike, less the first of these.
    fn in_a_row(&self, does: bool) -> u32 {
        let alike = self.attempts.iter().rev().take_while(|attempt| self.does(attempt) == does).count();
        alike.saturating_sub(1).min(8) as u32
    }

    /// Budgets in between, and how slow refaults say it would be with them.
    pub fn modelled(&self) -> Vec<(u64, f64)> {
        let too_small =
            self.attempts.iter().filter(|attempt| !attempt.curve.is_empty() && !self.does(attempt));
        let Some(from) = too_small.min_by_key(|attempt| attempt.budget_bytes) else { return Vec::new() };
        // A run that was stopped may have become slower later on: then runs know better.
        let is_refuted = |budget_bytes: u64, slowdown: f64| {
            let above = self.attempts.iter().filter(|attempt| attempt.budget_bytes >= budget_bytes);
            above.map(|attempt| self.slowdown(attempt)).any(|measured| measured > slowdown)
        };
        let lost = self.slowdown(from) - 1.0;
        [0.75, 0.5, 0.3, 0.15, 0.05, 0.0]
            .into_iter()
            .filter_map(|left| Some((budget_with(&from.curve, left)?, 1.0 + lost * left)))
            .filter(|(budget_bytes, slowdown)| !is_refuted(*budget_bytes, *slowdown))
            .collect()
    }
}

fn whole_steps(bytes: u64) -> u64 {
    bytes.next_multiple_of(STEP_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A program that takes `slowdown(MiB)` times one second; how many runs it took to know.
    fn found(peak_mib: u64, slowdown: impl Fn(f64) -> f64, tells: bool) -> (Option<u64>, usize) {
        let mut search = Search::new(1.0, peak_mib * MIB, 1.2, 8 * MIB);
        while let Some(budget_bytes) = search.next() {
            let factor = slowdown(budget_bytes as f64 / MIB as f64);
            let stops_s = 1.8;
            let end = if factor > stops_s { End::Stopped } else { End::Whole };
            let wall_s = factor.min(stops_s);
            let stalled_s = wall_s * (1.0 - 1.0 / factor);
            let left = |at: u64| (slowdown(at as f64) - 1.0) / (factor - 1.0);
            let above = budget_bytes / MIB..=peak_mib;
            let curve = above.map(|at| Point { budget_bytes: at * MIB, refaults_left: left(at) });
            let curve = if tells && factor > 1.0 { curve.collect() } else { Vec::new() };
            search.attempts.push(Attempt { budget_bytes, wall_s, end, stalled_s, curve });
        }
        (search.answer().map(|attempt| attempt.budget_bytes / MIB), search.attempts.len())
    }

    fn assert_near(found: (Option<u64>, usize), right: f64, runs_max: usize) {
        let (answer, runs) = (found.0.expect("an answer") as f64, found.1);
        assert!((right..=right * 1.07 + 1.0).contains(&answer), "{answer} and not {right}, {runs} runs");
        assert!(runs <= runs_max, "{runs} runs");
    }

    #[test]
    fn the_least_budget_is_found_in_a_few_runs() {
        // Accesses at random: as slow as there are pages away.
        let line = |mib: f64| 1.0 + 30.0 * (1.0 - mib / 400.0).max(0.0);
        assert_near(found(400, line, true), 398.0, 5);
        // All but 150 MiB is used once.
        let cliff = |mib: f64| if mib < 150.0 { 40.0 } else { 1.05 };
        assert_near(found(400, cliff, true), 150.0, 8);
        let flat = |mib: f64| 1.0 + 0.5 * (1.0 - mib / 400.0).max(0.0);
        assert_near(found(400, flat, true), 240.0, 6);
    }

    #[test]
    fn runs_alone_find_it_where_refaults_say_nothing() {
        for right in [20.0, 70.0, 199.0, 300.0, 401.0] {
            assert_near(found(400, |mib| if mib < right { 9.0 } else { 1.1 }, false), right, 12);
        }
    }

    #[test]
    fn a_program_may_need_next_to_nothing_or_more_than_all() {
        assert_eq!(found(400, |_| 1.0, true).0, Some(8));
        assert_eq!(found(400, |_| 1.5, false).0, None);
    }

    #[test]
    fn a_run_that_was_stopped_is_as_slow_as_it_stalled() {
        let search = Search::new(2.0, 100 * MIB, 1.2, 8 * MIB);
        let stopped = |stalled_s| {
            let end = End::Stopped;
            search.slowdown(&Attempt { budget_bytes: 1, wall_s: 4.0, end, stalled_s, curve: Vec::new() })
        };
        assert_eq!((stopped(3.0), stopped(1.0), stopped(4.0)), (4.0, 2.0, 50.0));
    }
}
