//! What a larger budget would have spared, from how long pages were away: the working set as the program's
//! refaults show it.
//!
//! ```text
//!   of the pages that left, this share had not come back before k more had left:   G(k)
//!   a page that came back after d had left would have been there with E(d) pages more:   G(0) + ... + G(d-1)
//!   with E more pages these refaults are left:                           those of a distance beyond d
//! ```
//!
//! G is what keeps pages from being counted twice: of d pages that leave, those that come back meanwhile take
//! no room of their own. For a loop over N pages E is what N has more than memory, for all of its refaults;
//! for accesses at random the refaults that are left fall in a line to none at N. (P. J. Denning and S. C.
//! Schwartz, "Properties of the working-set model", CACM 1972: the working set grows by the miss ratio.)
//!
//! Bytes of a budget are more than pages: the compressed pool is in it, and shrinks as pages stay. What this
//! does not do: read a clock, know who waits.

use memspill_engine::refaults::{BUCKETS, Distances, least_of};
use memspill_engine::units::PAGE_SIZE;

/// Refaults so few are no ground for a figure.
const REFAULTS_MIN: u64 = 1000;

/// What is counted from the start, at one moment.
#[derive(Clone)]
pub struct Counts {
    pub distances: Distances,
    pub evicted_pages: u64,
    /// Sums over time, each weighted by the pages that came back meanwhile.
    held: RunMemory,
    held_weight: f64,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts { distances: [0; BUCKETS], evicted_pages: 0, held: RunMemory::default(), held_weight: 0.0 }
    }
}

/// What a run's memory is made of.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct RunMemory {
    pub budget_bytes: f64,
    pub resident_bytes: f64,
    pub swapped_bytes: f64,
    pub pool_bytes: f64,
    /// Pages that the pool holds, uncompressed.
    pub pooled_bytes: f64,
}

impl RunMemory {
    fn map(self, other: RunMemory, of: impl Fn(f64, f64) -> f64) -> RunMemory {
        RunMemory {
            budget_bytes: of(self.budget_bytes, other.budget_bytes),
            resident_bytes: of(self.resident_bytes, other.resident_bytes),
            swapped_bytes: of(self.swapped_bytes, other.swapped_bytes),
            pool_bytes: of(self.pool_bytes, other.pool_bytes),
            pooled_bytes: of(self.pooled_bytes, other.pooled_bytes),
        }
    }

    /// The budget with which so much more would be resident. Part of it comes out of the pool, which need
    /// not hold it any more, or which has a fixed share of the budget and a file behind it.
    fn budget_for(&self, more_bytes: f64) -> f64 {
        let more = more_bytes.min(self.swapped_bytes);
        let other = (self.budget_bytes - self.resident_bytes - self.pool_bytes).max(0.0);
        let beside_pool = self.resident_bytes + more + other;
        let ratio = self.pool_bytes / self.pooled_bytes.max(1.0);
        let share = (self.pool_bytes / self.budget_bytes.max(1.0)).min(0.9);
        let all_in_pool = beside_pool + (self.swapped_bytes - more) * ratio;
        all_in_pool.min(beside_pool / (1.0 - share)).max(self.budget_bytes)
    }
}

impl Counts {
    /// What was counted until now, when memory is made of this.
    pub fn add(&mut self, distances: Distances, evicted_pages: u64, held: RunMemory) {
        let came = sum(&distances).saturating_sub(sum(&self.distances)) as f64;
        self.held = self.held.map(held, |sum, now| sum + now * came);
        self.held_weight += came;
        (self.distances, self.evicted_pages) = (distances, evicted_pages);
    }

    /// What was counted since an earlier moment.
    pub fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            distances: std::array::from_fn(|at| self.distances[at].saturating_sub(earlier.distances[at])),
            evicted_pages: self.evicted_pages.saturating_sub(earlier.evicted_pages),
            held: self.held.map(earlier.held, |now, then| now - then),
            held_weight: self.held_weight - earlier.held_weight,
        }
    }

    fn held(&self) -> RunMemory {
        let weight = self.held_weight.max(1.0);
        self.held.map(RunMemory::default(), |sum, _| sum / weight)
    }

    /// Budgets from the present one up, and which share of the refaults would be left with each. Empty where
    /// there were too few to tell.
    pub fn curve(&self) -> Vec<Point> {
        let refaults = sum(&self.distances);
        if refaults < REFAULTS_MIN {
            return Vec::new();
        }
        let held = self.held();
        let (mut more_pages, mut back) = (0.0, 0);
        let mut points = vec![Point { budget_bytes: held.budget_bytes as u64, refaults_left: 1.0 }];
        for (bucket, count) in self.distances.iter().enumerate() {
            let at = |more_pages: f64, back: u64| Point {
                budget_bytes: held.budget_for(more_pages * PAGE_SIZE as f64) as u64,
                refaults_left: 1.0 - back as f64 / refaults as f64,
            };
            // Nothing is spared up to here.
            if *count > 0 && bucket > 0 && self.distances[bucket - 1] == 0 {
                points.push(at(more_pages, back));
            }
            // Half of a bucket's pages are back by its middle.
            let gone = 1.0 - (back + count / 2) as f64 / self.evicted_pages.max(refaults) as f64;
            more_pages += (least_of(bucket + 1) - least_of(bucket)) as f64 * gone;
            back += count;
            if *count > 0 {
                points.push(at(more_pages, back));
            }
            if back == refaults {
                break;
            }
        }
        points
    }
}

/// How many refaults of these distances would be left (second) with so many pages more in memory (first):
/// points in their order, from what there are.
pub fn depths(distances: &[f64; BUCKETS], evicted_pages: f64) -> Vec<(f64, f64)> {
    let refaults: f64 = distances.iter().sum();
    let (mut more_pages, mut back) = (0.0, 0.0);
    let mut points = vec![(0.0, refaults)];
    for (bucket, count) in distances.iter().enumerate() {
        // Half of a bucket's pages are back by its middle.
        let gone = 1.0 - (back + count / 2.0) / evicted_pages.max(refaults).max(1.0);
        more_pages += (least_of(bucket + 1) - least_of(bucket)) as f64 * gone;
        back += count;
        points.push((more_pages, refaults - back));
        if back >= refaults {
            break;
        }
    }
    points
}

/// With this budget, this share of the refaults would be left.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    pub budget_bytes: u64,
    pub refaults_left: f64,
}

/// The least budget with which no more than this share of the refaults would be left, between two points in
/// a line.
pub fn budget_with(curve: &[Point], refaults_left: f64) -> Option<u64> {
    let at = curve.iter().position(|point| point.refaults_left <= refaults_left)?;
    let Some(before) = at.checked_sub(1).map(|at| curve[at]) else { return Some(curve[at].budget_bytes) };
    let step = before.refaults_left - curve[at].refaults_left;
    let way = (before.refaults_left - refaults_left) / step.max(f64::MIN_POSITIVE);
    Some(
        before.budget_bytes
            + (curve[at].budget_bytes.saturating_sub(before.budget_bytes) as f64 * way) as u64,
    )
}

fn sum(distances: &Distances) -> u64 {
    distances.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const MIB: f64 = (1 << 20) as f64;

    /// Pages come and go in the order of arrival, `memory` of them at a time.
    fn counted(memory: usize, touches: impl Iterator<Item = usize>) -> Counts {
        let pages = PAGE_SIZE as f64;
        let (mut distances, mut evicted) = ([0; BUCKETS], 0u64);
        let (mut queue, mut left_at) = (VecDeque::new(), std::collections::HashMap::new());
        let (mut all, mut faults) = (0, 0u64);
        for page in touches {
            all = all.max(page + 1);
            if queue.contains(&page) {
                continue;
            }
            faults += 1;
            if let Some(then) = left_at.remove(&page) {
                let distance = evicted - then;
                let bucket = (0..BUCKETS).rev().find(|at| least_of(*at) <= distance).unwrap();
                distances[bucket] += 1;
            }
            queue.push_back(page);
            if queue.len() > memory {
                left_at.insert(queue.pop_front().unwrap(), evicted);
                evicted += 1;
            }
        }
        assert!(faults > 0);
        let bytes = memory as f64 * pages;
        let swapped_bytes = (all - memory) as f64 * pages;
        let held =
            RunMemory { budget_bytes: bytes, resident_bytes: bytes, swapped_bytes, ..RunMemory::default() };
        let mut counts = Counts::default();
        counts.add(distances, evicted, held);
        counts
    }

    fn pages(bytes: u64) -> f64 {
        bytes as f64 / PAGE_SIZE as f64
    }

    #[test]
    fn a_loop_needs_all_of_its_pages() {
        let curve = counted(600, (0..20_000).map(|touch| touch % 1000)).curve();
        for left in [0.9, 0.5, 0.1] {
            let needed = pages(budget_with(&curve, left).unwrap());
            assert!((980.0..=1025.0).contains(&needed), "{needed} pages for {left}");
        }
    }

    #[test]
    fn at_random_each_page_more_spares_as_much() {
        let mut random = 12345u64;
        let draws = (0..60_000).map(|_| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % 1000
        });
        let curve = counted(400, draws).curve();
        for (left, of_all) in [(0.75, 550.0), (0.5, 700.0), (0.25, 850.0), (0.1, 940.0)] {
            let needed = pages(budget_with(&curve, left).unwrap());
            assert!((needed - of_all).abs() < 30.0, "{needed} pages for {left}, and not {of_all}");
        }
    }

    #[test]
    fn few_refaults_tell_nothing() {
        assert!(counted(600, (0..1400).map(|touch| touch % 1000)).curve().is_empty());
        assert_eq!(budget_with(&[], 0.5), None);
    }

    #[test]
    fn what_was_before_a_moment_does_not_count() {
        let early = counted(100, (0..5000).map(|touch| touch % 1000));
        let mut late = early.clone();
        let held = RunMemory { budget_bytes: 50.0 * MIB, ..RunMemory::default() };
        let more = early.distances.map(|count| count * 3);
        late.add(more, early.evicted_pages * 3, held);
        let since = late.since(&early);
        assert_eq!(since.distances, early.distances.map(|count| count * 2));
        assert_eq!((since.held(), since.evicted_pages), (held, early.evicted_pages * 2));
    }

    #[test]
    fn the_pool_gives_room_as_pages_stay() {
        let alone = RunMemory {
            budget_bytes: 100.0,
            resident_bytes: 60.0,
            swapped_bytes: 60.0,
            pool_bytes: 30.0,
            pooled_bytes: 60.0,
        };
        assert_eq!(alone.budget_for(0.0), 100.0);
        assert_eq!(alone.budget_for(20.0), 110.0);
        assert_eq!(alone.budget_for(1000.0), 130.0);
        // With a file behind it the pool keeps its share.
        let tier = RunMemory { swapped_bytes: 600.0, ..alone };
        assert_eq!(tier.budget_for(70.0).round(), 200.0);
    }
}
