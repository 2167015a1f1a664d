//! How a run was over time, in bounded memory: what was held, and what had come together by then.
//!
//! ```text
//!   look ─▶ the bucket of its moment ─▶ full? ─▶ buckets become twice as long, and neighbours one
//! ```
//!
//! So a run of a minute is known by quarters of a second, and one of a day by minutes. A bucket keeps the
//! look at which most was held: peaks stay. Sums (faults, time waited) are those of the last look, so rates
//! between two buckets are exact.

/// The most buckets.
pub const POINTS_MAX: usize = 480;
/// The first length of a bucket, and so the time between looks.
pub const FIRST_US: u64 = 250_000;

#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Held {
    pub budget_bytes: u64,
    pub resident_bytes: u64,
    pub pool_bytes: u64,
    /// All else that is counted.
    pub other_bytes: u64,
    pub swapped_bytes: u64,
    pub file_bytes: u64,
}

/// What only grows.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Sums {
    pub faults: u64,
    pub pages_in: u64,
    pub pages_out: u64,
    /// The moment to which stalls are known.
    pub stalls_at_us: u64,
    pub stall_some_us: u64,
    pub stall_full_us: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Point {
    /// The time of its last look, since the start.
    pub at_us: u64,
    pub held: Held,
    pub sums: Sums,
}

#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Rates {
    pub faults_per_s: f64,
    pub pages_in_per_s: f64,
    pub pages_out_per_s: f64,
    /// Shares of the time.
    pub stall_some: f64,
    pub stall_full: f64,
}

pub struct History {
    points: Vec<Point>,
    bucket_us: u64,
}

impl Held {
    fn counted_bytes(&self) -> u64 {
        self.resident_bytes + self.pool_bytes + self.other_bytes
    }

    fn most(self, other: Held) -> Held {
        // The swapped-out part decides if the counted part is always the budget.
        let key = |held: &Held| (held.counted_bytes(), held.swapped_bytes);
        if key(&other) >= key(&self) { other } else { self }
    }
}

impl Point {
    fn with(self, later: Point) -> Point {
        Point { held: self.held.most(later.held), ..later }
    }
}

impl History {
    pub fn new() -> History {
        History { points: Vec::new(), bucket_us: FIRST_US }
    }

    pub fn bucket_us(&self) -> u64 {
        self.bucket_us
    }

    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// A look, later than those before.
    pub fn add(&mut self, point: Point) {
        self.put(point);
        while self.points.len() > POINTS_MAX {
            self.bucket_us *= 2;
            for point in std::mem::take(&mut self.points) {
                self.put(point);
            }
        }
    }

    fn put(&mut self, point: Point) {
        let bucket = |point: &Point| point.at_us / self.bucket_us;
        match self.points.last_mut().filter(|last| bucket(last) == bucket(&point)) {
            Some(last) => *last = last.with(point),
            None => self.points.push(point),
        }
    }

    /// The run is over: what it held at the last look stays.
    pub fn end(&mut self, at_us: u64, sums: Sums) {
        let held = self.points.last().map_or(Held::default(), |last| last.held);
        self.add(Point { at_us, held, sums });
    }

    /// From the point before, or from the start, to each point.
    pub fn rates(&self) -> Vec<Rates> {
        let mut rates: Vec<Rates> = Vec::with_capacity(self.points.len());
        for (at, point) in self.points.iter().enumerate() {
            let last = rates.last().copied().unwrap_or_default();
            rates.push(rates_between(&self.before(at), point, last));
        }
        rates
    }

    /// A run may end right after a look. A count over so short a time is chance: then it is the point before
    /// that.
    fn before(&self, at: usize) -> Point {
        let back =
            |steps: usize| at.checked_sub(steps).map_or(Point::default(), |before| self.points[before]);
        let is_short = self.points[at].at_us - back(1).at_us < self.bucket_us / 2;
        if is_short { back(2) } else { back(1) }
    }
}

fn rates_between(before: &Point, point: &Point, last: Rates) -> Rates {
    let per_s = |now: u64, then: u64, elapsed_us: u64| {
        now.saturating_sub(then) as f64 * 1e6 / elapsed_us.max(1) as f64
    };
    let elapsed_us = point.at_us.saturating_sub(before.at_us);
    let (now, then) = (&point.sums, &before.sums);
    let stall_us = now.stalls_at_us.saturating_sub(then.stalls_at_us);
    // Where stalls were not looked at meanwhile, they go on.
    let stall = |now: u64, then: u64, last: f64| match stall_us {
        0 => last,
        _ => (now.saturating_sub(then) as f64 / stall_us as f64).min(1.0),
    };
    Rates {
        faults_per_s: per_s(now.faults, then.faults, elapsed_us),
        pages_in_per_s: per_s(now.pages_in, then.pages_in, elapsed_us),
        pages_out_per_s: per_s(now.pages_out, then.pages_out, elapsed_us),
        stall_some: stall(now.stall_some_us, then.stall_some_us, last.stall_some),
        stall_full: stall(now.stall_full_us, then.stall_full_us, last.stall_full),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    /// 1000 faults/s, half of the time waited, and as many bytes held as `held` says.
    fn look(at_us: u64, held_bytes: u64) -> Point {
        Point {
            at_us,
            held: Held { resident_bytes: held_bytes, ..Held::default() },
            sums: Sums {
                faults: at_us / 1000,
                stalls_at_us: at_us,
                stall_some_us: at_us / 2,
                ..Sums::default()
            },
        }
    }

    #[test]
    fn a_day_takes_no_more_than_a_minute_and_keeps_peaks_and_rates() {
        for seconds in [60, 3600, 86_400] {
            let mut history = History::new();
            for quarter in 1..=seconds * 4 {
                let peak = quarter == 777 % (seconds * 4);
                history.add(look(quarter * S / 4, if peak { 100 } else { 7 }));
            }
            let points = history.points();
            assert!((POINTS_MAX / 3..=POINTS_MAX).contains(&points.len()), "{seconds}: {}", points.len());
            assert!(points.is_sorted_by_key(|point| point.at_us));
            assert_eq!(points.last().unwrap().at_us, seconds * S);
            assert_eq!(points.iter().filter(|p| p.held.resident_bytes == 100).count(), 1, "{seconds}");
            let rates = history.rates();
            let even = |rate: &Rates| (rate.faults_per_s - 1000.0).abs() < 1.0 && rate.stall_some == 0.5;
            assert!(rates.iter().all(even), "{rates:?}");
            // No longer than it must be.
            assert!(seconds * S / history.bucket_us() > POINTS_MAX as u64 / 3);
        }
    }

    #[test]
    fn looks_far_apart_are_as_many_points() {
        let mut history = History::new();
        for hour in 1..=3 {
            history.add(look(hour * 3600 * S, 1));
        }
        assert_eq!(history.points().len(), 3);
        assert!(history.rates().iter().all(|rate| (rate.faults_per_s - 1000.0).abs() < 1.0));
    }

    #[test]
    fn the_end_adds_no_memory_and_all_sums() {
        let mut history = History::new();
        history.add(look(S, 5));
        history.end(S + 1, Sums { faults: 1234, ..Sums::default() });
        let last = *history.points().last().unwrap();
        assert_eq!((last.held.resident_bytes, last.sums.faults), (5, 1234));
        let mut none = History::new();
        none.end(10, Sums::default());
        assert_eq!(none.points().len(), 1);
        assert_eq!(none.rates()[0], Rates::default());
    }

    #[test]
    fn an_end_right_after_a_look_has_no_rate_of_its_own() {
        let mut history = History::new();
        for quarter in 0..4 {
            history.add(look(quarter * S / 4 + S / 5, 1));
        }
        history.end(S + S / 100, Sums { faults: 1045, ..Sums::default() });
        // 95 in 60 ms would be 1583.
        let rates = history.rates();
        assert_eq!((rates.len(), rates[4].faults_per_s.round()), (5, 1113.0));
        assert!(rates[..4].iter().all(|rate| (rate.faults_per_s - 1000.0).abs() < 1.0));
    }

    #[test]
    fn stalls_that_were_not_looked_at_go_on() {
        let mut history = History::new();
        history.add(look(S, 1));
        let mut next = look(2 * S, 1);
        next.sums.stalls_at_us = S;
        next.sums.stall_some_us = S / 2;
        history.add(next);
        assert_eq!(history.rates().iter().map(|rate| rate.stall_some).collect::<Vec<_>>(), [0.5, 0.5]);
    }
}
