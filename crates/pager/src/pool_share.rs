//! How much of the budget the compressed pool may take where a file stands behind it (the default device).
//!
//! The programs get the memory that the pool does not take, and the other way round. Refault distances say
//! what either is worth: ordered by how long they were away, pages that left are
//!
//! ```text
//!   in memory, if that were larger │ in the pool │ in the file
//!   0 ─────────────────────────────┼─────────────┼───────────▶ pages more that memory would have to hold
//!                                  e             e + what the pool holds
//!   cost = refaults beyond e  × what a fault costs
//!        + those beyond both  × what a read of the file costs more
//! ```
//!
//! With a larger pool memory is smaller, and e below zero. Then refaults grow as they are dense just beyond
//! memory (a C++ hash map did so: 5 % more with a tenth less memory), or as the time shrinks for which a page
//! stays, as pages leave in the order of their arrival (Python's dicts: 28 % more with a quarter less); the
//! middle of both is taken. The cost of a read of the file is measured. The share goes towards the least cost
//! in steps, while the pool is full, and stays where a step would save little: a window of refaults is a
//! sample.
//!
//! Never below two fifths, which it was always before, and is at first: what *more* memory would spare is
//! not known well enough. A page that comes back soon after it left would not be spared by a little more
//! of it, but only stay a little longer. A model of pages in the order of arrival, where most touches go
//! to few of them, lost 6 % by that; so did Python's dicts. But where less than three quarters of what LZ4
//! leaves are left (backing/src/dense.rs), three tenths hold as much as two fifths by LZ4, so the pool may
//! shrink to that. (node took 19 s with three tenths, 21 s with two fifths, which held more that it
//! never wanted again, and 19.5 s by LZ4.)
//!
//! What this does not do: read a clock, or set a limit (ctl/budget.rs).

use memspill_engine::refaults::{BUCKETS, Distances};
use memspill_engine::units::PAGE_SIZE;

use crate::working_set::depths;

/// The share with which a run begins.
pub const PERCENT_AT_FIRST: u32 = 40;
const PERCENT_MIN: u32 = 40;
const PERCENT_MIN_DENSE: u32 = 30;
/// The share of LZ4's size that may be left for that; the second number, for a share below the usual minimum,
/// keeps a sample that varies a little from moving it up and down.
const DENSE_PER_MILLE: u64 = 740;
const DENSE_PER_MILLE_STAYS: u64 = 770;
pub const PERCENT_MAX: u32 = 70;
const STEP_PERCENT: u32 = 5;
/// A fault that is served from the pool, and the page that leaves for it.
const POOL_FAULT_US: f64 = 15.0;
/// A page that is read from the file was written to it.
const FILE_WRITE_US: f64 = 10.0;
/// Fewer refaults are no ground for a step, nor fewer than there are pages in memory: programs have phases.
const REFAULTS_MIN: u64 = 2000;
/// The part of earlier counts that stays at each look.
const KEPT: f64 = 0.8;
/// It moves for no less than this part of the cost.
const GAIN_MIN: f64 = 0.04;
/// A pool that holds less of what it may is not short of room: pages are moved out, or compressed once
/// more, down to 85 %.
const FULL_PERCENT: u64 = 80;
/// Refaults lost with less memory are as dense as in this much of it beyond what is there.
const NEAR_PARTS: f64 = 8.0;

/// Counted from the start, at one moment.
#[derive(Clone, Copy)]
pub struct Counts {
    pub distances: Distances,
    pub evicted_pages: u64,
    pub major_faults: u64,
    pub file_reads: u64,
    pub file_read_us: u64,
}

/// How memory is shared out at that moment.
#[derive(Clone, Copy)]
pub struct Shared {
    pub resident_pages: u64,
    pub swapped_pages: u64,
    pub pool_bytes: u64,
    pub pool_limit_bytes: u64,
    pub pool_pages: u64,
    /// Pages do not come in by LZ4 now, and so much is left of what that leaves.
    pub dense_per_mille: Option<u64>,
}

impl Shared {
    /// The least share, where it is so much now.
    fn percent_min(&self, percent: u32) -> u32 {
        let most = if percent < PERCENT_MIN { DENSE_PER_MILLE_STAYS } else { DENSE_PER_MILLE };
        match self.dense_per_mille {
            Some(left) if left <= most => PERCENT_MIN_DENSE,
            _ => PERCENT_MIN,
        }
    }
}

/// The share, and what it has followed.
pub struct Follower {
    percent: u32,
    before: Counts,
    /// The counts of the window: a fifth is forgotten at each look that is ground for a decision.
    distances: [f64; BUCKETS],
    evicted_pages: f64,
    major_faults: f64,
    file_reads: f64,
    file_read_us: f64,
}

impl Follower {
    pub fn new() -> Follower {
        Follower {
            percent: PERCENT_AT_FIRST,
            before: Counts {
                distances: [0; BUCKETS],
                evicted_pages: 0,
                major_faults: 0,
                file_reads: 0,
                file_read_us: 0,
            },
            distances: [0.0; BUCKETS],
            evicted_pages: 0.0,
            major_faults: 0.0,
            file_reads: 0.0,
            file_read_us: 0.0,
        }
    }

    /// What has been counted by now: the share from here on, in percent.
    pub fn look(&mut self, counts: &Counts, shared: &Shared) -> u32 {
        let refaults: u64 = sum(&counts.distances).saturating_sub(sum(&self.before.distances));
        if refaults < REFAULTS_MIN.max(shared.resident_pages) {
            return self.percent;
        }
        let add =
            |held: &mut f64, now: u64, before: u64| *held = *held * KEPT + now.saturating_sub(before) as f64;
        for (at, held) in self.distances.iter_mut().enumerate() {
            add(held, counts.distances[at], self.before.distances[at]);
        }
        add(&mut self.evicted_pages, counts.evicted_pages, self.before.evicted_pages);
        add(&mut self.major_faults, counts.major_faults, self.before.major_faults);
        add(&mut self.file_reads, counts.file_reads, self.before.file_reads);
        add(&mut self.file_read_us, counts.file_read_us, self.before.file_read_us);
        self.before = *counts;
        if shared.pool_bytes * 100 >= shared.pool_limit_bytes * FULL_PERCENT && shared.pool_pages > 0 {
            self.percent = self.next(shared);
        }
        self.percent
    }

    /// One step towards the share of least cost.
    fn next(&self, shared: &Shared) -> u32 {
        let now = self.percent;
        if now < shared.percent_min(now) {
            // It is not packed so densely any more.
            return now + STEP_PERCENT;
        }
        let costs = self.costs(shared);
        let cost_of = |percent: u32| costs.iter().find(|(of, _)| *of == percent).expect("a share").1;
        let (best, least) = *costs.iter().min_by(|a, b| a.1.total_cmp(&b.1)).expect("shares");
        if least > cost_of(now) * (1.0 - GAIN_MIN) {
            return now;
        }
        if best > now { now + STEP_PERCENT } else { now - STEP_PERCENT }
    }

    /// Each share, and what the window would have cost with it.
    fn costs(&self, shared: &Shared) -> Vec<(u32, f64)> {
        let curve = Curve::new(depths(&self.distances, self.evicted_pages), shared.resident_pages as f64);
        let refaults = curve.beyond(0.0).max(1.0);
        // Read ahead of faults, some pages cost no fault; one read may bring several pages, and pages that do
        // not compress come from the file however large the pool is.
        let faults_a_page = (self.major_faults / refaults).min(1.0);
        let beyond_pool = curve.beyond(shared.pool_pages as f64);
        let reads_a_page = (self.file_reads / beyond_pool.max(1.0)).min(1.0);
        let raw_reads = (self.file_reads - beyond_pool).max(0.0) / refaults;
        let file_read_us = self.file_read_us / self.file_reads.max(1.0) + FILE_WRITE_US;
        let page_us = faults_a_page * POOL_FAULT_US + raw_reads * file_read_us;
        let page_bytes = shared.pool_bytes as f64 / shared.pool_pages as f64;
        let shares = (shared.percent_min(self.percent)..=PERCENT_MAX).step_by(STEP_PERCENT as usize);
        let cost = |percent: u32| {
            let most_bytes = shared.swapped_pages as f64 * page_bytes;
            let pool_bytes = shared.pool_bytes as f64 * f64::from(percent) / f64::from(self.percent);
            let pool_bytes = pool_bytes.min(most_bytes);
            let more_pages = (shared.pool_bytes as f64 - pool_bytes) / PAGE_SIZE as f64;
            let in_file = curve.beyond(more_pages + pool_bytes / page_bytes);
            curve.beyond(more_pages) * page_us + in_file * reads_a_page * file_read_us
        };
        shares.map(|percent| (percent, cost(percent))).collect()
    }
}

impl Default for Follower {
    fn default() -> Follower {
        Follower::new()
    }
}

/// How many refaults are left with more pages in memory: a line through points, and its beginning drawn out
/// to the left.
struct Curve {
    points: Vec<(f64, f64)>,
    /// More refaults for each page less.
    slope: f64,
    resident_pages: f64,
}

impl Curve {
    fn new(points: Vec<(f64, f64)>, resident_pages: f64) -> Curve {
        let mut curve = Curve { points, slope: 0.0, resident_pages };
        let near = (resident_pages / NEAR_PARTS).max(1.0);
        curve.slope = (curve.beyond(0.0) - curve.beyond(near)) / near;
        curve
    }

    fn beyond(&self, pages: f64) -> f64 {
        let Some(&(_, all)) = self.points.first() else { return 0.0 };
        if pages <= 0.0 {
            let left = self.resident_pages + pages;
            let shorter_stay = self.resident_pages / left.max(self.resident_pages / 10.0);
            return (all - pages * self.slope + all * shorter_stay) / 2.0;
        }
        let at = self.points.partition_point(|(depth, _)| *depth <= pages);
        let (from, left) = self.points[at - 1];
        let Some(&(to, left_there)) = self.points.get(at) else { return left };
        left + (left_there - left) * (pages - from) / (to - from).max(1.0)
    }
}

fn sum(distances: &Distances) -> u64 {
    distances.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memspill_engine::refaults::least_of;
    use std::collections::{HashMap, VecDeque};

    /// Memory, pool and file: pages leave the first two in the order in which they came, as in the engine.
    struct Machine {
        budget_pages: f64,
        /// Pages of the pool in a page of memory.
        ratio: f64,
        percent: u32,
        dense_per_mille: Option<u64>,
        file_read_us: u64,
        resident: VecDeque<usize>,
        pool: VecDeque<(usize, u64)>,
        /// When it left memory; and whether it is in the pool, or was moved to the file.
        away: HashMap<usize, (u64, bool)>,
        pool_pages: u64,
        counts: Counts,
        is_in_memory: Vec<bool>,
    }

    impl Machine {
        fn new(budget_pages: usize, ratio: f64, pages: usize) -> Machine {
            Machine {
                budget_pages: budget_pages as f64,
                ratio,
                percent: PERCENT_AT_FIRST,
                dense_per_mille: None,
                file_read_us: 100,
                resident: VecDeque::new(),
                pool: VecDeque::new(),
                away: HashMap::new(),
                pool_pages: 0,
                counts: Follower::new().before,
                is_in_memory: vec![false; pages],
            }
        }

        fn pool_pages(&self) -> f64 {
            self.pool_pages as f64
        }

        fn touch(&mut self, page: usize) {
            if self.is_in_memory[page] {
                return;
            }
            if let Some((then, pooled)) = self.away.remove(&page) {
                let distance = self.counts.evicted_pages - then;
                let bucket = (0..BUCKETS).rev().find(|at| least_of(*at) <= distance).unwrap();
                self.counts.distances[bucket] += 1;
                self.counts.major_faults += 1;
                self.pool_pages -= u64::from(pooled);
                self.counts.file_reads += u64::from(!pooled);
                self.counts.file_read_us += if pooled { 0 } else { self.file_read_us };
            }
            self.is_in_memory[page] = true;
            self.resident.push_back(page);
        }

        /// As reclaim does, now and then.
        fn reclaim(&mut self) {
            let most = self.budget_pages * f64::from(self.percent) / 100.0 * self.ratio;
            while self.resident.len() as f64 + self.pool_pages() / self.ratio > self.budget_pages {
                let page = self.resident.pop_front().unwrap();
                self.is_in_memory[page] = false;
                self.away.insert(page, (self.counts.evicted_pages, true));
                self.pool.push_back((page, self.counts.evicted_pages));
                self.counts.evicted_pages += 1;
                self.pool_pages += 1;
                while self.pool_pages() > most {
                    let (oldest, then) = self.pool.pop_front().unwrap();
                    if self.away.get(&oldest) == Some(&(then, true)) {
                        self.away.insert(oldest, (then, false));
                        self.pool_pages -= 1;
                    }
                }
            }
        }

        /// Runs the touches, each share of them with a look; returns what they cost, in ms.
        fn run(&mut self, touches: impl Iterator<Item = usize>, follower: Option<&mut Follower>) -> f64 {
            let mut follower = follower;
            let before = self.counts;
            for (number, page) in touches.enumerate() {
                self.touch(page);
                if number % 64 == 0 {
                    self.reclaim();
                }
                if let Some(follower) = follower.as_mut().filter(|_| number % 10_000 == 0) {
                    let pool_pages = self.pool_pages();
                    let bytes = |pages: f64| (pages * PAGE_SIZE as f64) as u64;
                    let limit = self.budget_pages * f64::from(self.percent) / 100.0;
                    let shared = Shared {
                        resident_pages: self.resident.len() as u64,
                        swapped_pages: self.away.len() as u64,
                        pool_bytes: bytes(pool_pages / self.ratio),
                        pool_limit_bytes: bytes(limit),
                        pool_pages: pool_pages as u64,
                        dense_per_mille: self.dense_per_mille,
                    };
                    self.percent = follower.look(&self.counts, &shared);
                }
            }
            let faults = self.counts.major_faults - before.major_faults;
            let reads = self.counts.file_reads - before.file_reads;
            let read_us = self.file_read_us as f64 + FILE_WRITE_US;
            (faults as f64 * POOL_FAULT_US + reads as f64 * read_us) / 1000.0
        }
    }

    struct Draws(u64);

    impl Draws {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }
        fn below(&mut self, end: usize) -> usize {
            (self.next() * end as f64) as usize
        }
    }

    const BUDGET: usize = 2000;
    const TOUCHES: usize = 300_000;

    /// Costs of a pattern: with the share that follows (and where it ended), and with each fixed one.
    fn compared(
        pages: usize,
        ratio: f64,
        draw: impl Fn(&mut Draws, usize) -> usize,
    ) -> (u32, f64, Vec<(u32, f64)>) {
        let touches = || {
            let mut draws = Draws(7);
            (0..TOUCHES).map(|number| draw(&mut draws, number)).collect::<Vec<_>>().into_iter()
        };
        let mut machine = Machine::new(BUDGET, ratio, pages);
        let followed = machine.run(touches(), Some(&mut Follower::new()));
        let fixed = |percent| {
            let mut machine = Machine { percent, ..Machine::new(BUDGET, ratio, pages) };
            (percent, machine.run(touches(), None))
        };
        (machine.percent, followed, [40, 55, 70].map(fixed).to_vec())
    }

    fn cost_of(fixed: &[(u32, f64)], percent: u32) -> f64 {
        fixed.iter().find(|(of, _)| *of == percent).unwrap().1
    }

    /// 3000 pages at random, four to a page of the pool: with 40 % some are in the file, with 55 % none.
    #[test]
    fn the_pool_grows_until_it_holds_what_comes_back() {
        let (percent, followed, fixed) = compared(4300, 3.0, |draws, _| draws.below(4300));
        assert!((45..=60).contains(&percent), "{percent} %, {followed}, {fixed:?}");
        assert!(followed < cost_of(&fixed, 40) * 0.8, "{followed}, {fixed:?}");
    }

    /// Pages in the file come back seldom, and memory is dear.
    #[test]
    fn it_comes_back_when_the_pattern_changes() {
        let pages = 14_000;
        let mut machine = Machine::new(BUDGET, 3.0, pages);
        let (mut follower, mut draws) = (Follower::new(), Draws(3));
        let uniform: Vec<usize> = (0..TOUCHES).map(|_| draws.below(4300)).collect();
        machine.run(uniform.into_iter(), Some(&mut follower));
        assert!(machine.percent > 40, "{} %", machine.percent);
        let hot = (0..TOUCHES)
            .map(|number| if number % 50 == 0 { 1600 + number / 50 % 12_000 } else { draws.below(1600) });
        let hot: Vec<usize> = hot.collect();
        machine.run(hot.clone().into_iter(), Some(&mut follower));
        assert_eq!(machine.percent, 40);
        // Packed densely enough it may be smaller; where that ends, it grows again.
        machine.dense_per_mille = Some(750);
        machine.run(hot.clone().into_iter(), Some(&mut follower));
        assert_eq!(machine.percent, 40);
        machine.dense_per_mille = Some(740);
        machine.run(hot.clone().into_iter(), Some(&mut follower));
        assert_eq!(machine.percent, 30);
        machine.dense_per_mille = Some(765);
        machine.run(hot.clone().into_iter(), Some(&mut follower));
        assert_eq!(machine.percent, 30);
        machine.dense_per_mille = Some(780);
        machine.run(hot.into_iter(), Some(&mut follower));
        assert_eq!(machine.percent, 40);
    }

    /// Whatever the pattern: not behind the share that was always taken by more than a few percent.
    #[test]
    fn it_loses_little_anywhere() {
        let skewed = |exponent: f64, pages: usize| {
            move |draws: &mut Draws, _| ((draws.next().powf(exponent) * pages as f64) as usize * 7919) % pages
        };
        let mut all = Vec::new();
        for ratio in [1.3, 2.0, 3.0] {
            for pages in [2500, 4000, 8000] {
                all.push((ratio, pages, "uniform", compared(pages, ratio, |draws, _| draws.below(pages))));
                all.push((ratio, pages, "skewed", compared(pages, ratio, skewed(3.0, pages))));
                all.push((ratio, pages, "loop", compared(pages, ratio, |_, number| number % pages)));
            }
        }
        for (ratio, pages, name, (percent, followed, fixed)) in all {
            let usual = cost_of(&fixed, 40);
            println!("{name} {pages} {ratio}: {percent} % {followed:.0} {fixed:.0?}");
            assert!(followed <= usual * 1.04, "{name}, {pages} pages, {ratio}: {percent} %, {followed}");
        }
    }

    #[test]
    fn few_refaults_and_a_pool_with_room_change_nothing() {
        let mut follower = Follower::new();
        let mut counts = follower.before;
        let mut shared = Shared {
            resident_pages: 5000,
            swapped_pages: 20_000,
            pool_bytes: 8 << 20,
            pool_limit_bytes: 8 << 20,
            pool_pages: 6000,
            dense_per_mille: None,
        };
        let mut look = |refaults: u64, shared: &Shared| {
            counts.distances[60] += refaults;
            counts.evicted_pages += refaults;
            counts.major_faults += refaults;
            counts.file_reads += refaults;
            follower.look(&counts, shared)
        };
        assert_eq!(look(4000, &shared), PERCENT_AT_FIRST);
        shared.pool_limit_bytes = 16 << 20;
        assert_eq!(look(100_000, &shared), PERCENT_AT_FIRST);
    }
}
