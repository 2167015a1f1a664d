//! A latency histogram: powers of two of nanoseconds, eight steps each, lock-free.
//!
//! Our own, because each fault thread counts in one while others read it, and none of them may wait or
//! allocate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const STEPS: usize = 8;
const BUCKETS: usize = 48 * STEPS;

pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: [const { AtomicU64::new(0) }; BUCKETS] }
    }
}

impl Histogram {
    pub fn record(&self, duration: Duration) {
        let ns = duration.as_nanos().max(STEPS as u128) as u64;
        let power = ns.ilog2() as usize;
        let step = (ns >> (power - 3)) as usize & (STEPS - 1);
        self.buckets[((power - 3) * STEPS + step).min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
    }

    pub fn sum<'a>(parts: impl Iterator<Item = &'a Histogram>) -> Histogram {
        let sum = Histogram::default();
        for part in parts {
            for (all, bucket) in sum.buckets.iter().zip(&part.buckets) {
                all.fetch_add(bucket.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        sum
    }

    /// Upper edge in ns of the bucket in which the `per_mille`-th thousandth lies; 0 if nothing was recorded.
    pub fn percentile_ns(&self, per_mille: u64) -> u64 {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let mut below = 0;
        for (i, count) in counts.iter().enumerate() {
            below += count;
            if total > 0 && below * 1000 >= total * per_mille {
                let (power, step) = (i / STEPS + 3, i % STEPS);
                return (STEPS + step + 1) as u64 * (1 << (power - 3));
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_one_step() {
        let parts = [Histogram::default(), Histogram::default()];
        for us in 1..=1000 {
            parts[us as usize % 2].record(Duration::from_micros(us));
        }
        let h = Histogram::sum(parts.iter());
        for (per_mille, us) in [(500, 500.0), (990, 990.0), (999, 999.0)] {
            let got = h.percentile_ns(per_mille) as f64 / 1000.0;
            assert!((us..us * 1.13).contains(&got), "{per_mille}: {got} for {us}");
        }
    }
}
