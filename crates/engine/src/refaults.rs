//! How long pages were away when they came back: a histogram of refault distances, in pages that left
//! meanwhile. From it follows how many pages would not have had to come back with more memory
//! (`memspill_pager::working_set`).
//!
//! ```text
//!   bucket    0 ... 7  |  8 ... 11  |  12 ... 15  | ...     four to each power of two
//!   distance  0 ... 7  |  8 9 10 11 |  12 13 ...  | 16,17
//! ```
//!
//! Pages that come out of the swap cache have no distance, and are not counted. What it does not do: say how
//! much memory a distance stands for.

use crate::per_cpu::PerCpu;
use crate::sync::{EventCount, Ordering};
use crate::units::CpuId;

/// Distances below this have a bucket each.
const SINGLE: u32 = 8;
const PER_OCTAVE: u32 = 4;
/// Distances are differences of a clock of 32 bits.
pub const BUCKETS: usize = (SINGLE + (u32::BITS - SINGLE.ilog2()) * PER_OCTAVE) as usize;
/// CPUs that count apart; more of them share.
const PLACES: usize = 64;

/// How often each distance was met, up to now.
pub type Distances = [u64; BUCKETS];

struct Place([EventCount; BUCKETS]);

impl Default for Place {
    fn default() -> Place {
        Place(std::array::from_fn(|_| EventCount::new(0)))
    }
}

/// The counters.
pub struct Refaults {
    places: PerCpu<Place, PLACES>,
}

impl Default for Refaults {
    fn default() -> Refaults {
        Refaults { places: PerCpu::new() }
    }
}

impl Refaults {
    /// A page came back after so many others had left.
    pub(crate) fn count(&self, cpu: CpuId, distance: u32) {
        self.places.of(cpu).0[bucket_of(distance)].fetch_add(1, Ordering::Relaxed);
    }

    pub fn distances(&self) -> Distances {
        let sum = |at: usize| self.places.iter().map(|place| place.0[at].load(Ordering::Relaxed)).sum();
        std::array::from_fn(sum)
    }
}

fn bucket_of(distance: u32) -> usize {
    if distance < SINGLE {
        return distance as usize;
    }
    let octave = distance.ilog2();
    let within = (distance >> (octave - PER_OCTAVE.ilog2())) % PER_OCTAVE;
    (SINGLE + (octave - SINGLE.ilog2()) * PER_OCTAVE + within) as usize
}

/// The least distance of a bucket; of one that is not there, what lies beyond all.
pub fn least_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let (single, per_octave) = (u64::from(SINGLE), u64::from(PER_OCTAVE));
    if bucket < single {
        return bucket;
    }
    let (octave, within) = ((bucket - single) / per_octave, (bucket - single) % per_octave);
    (per_octave + within) << (octave + u64::from(SINGLE.ilog2() - PER_OCTAVE.ilog2()))
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;

    #[test]
    fn each_distance_lies_in_its_bucket() {
        let around = (0..32).flat_map(|bit| [1u32 << bit, (1 << bit) - 1, 3 << bit >> 1]);
        for distance in around.chain(0..5000).chain([u32::MAX]) {
            let bucket = bucket_of(distance);
            let bounds = least_of(bucket)..least_of(bucket + 1);
            assert!(bounds.contains(&distance.into()), "{distance} in bucket {bucket}: {bounds:?}");
        }
        assert_eq!((bucket_of(u32::MAX), least_of(BUCKETS)), (BUCKETS - 1, 1 << 32));
    }

    #[test]
    fn cpus_count_together() {
        let refaults = Refaults::default();
        for cpu in 0..200 {
            refaults.count(CpuId(cpu), 100);
        }
        let distances = refaults.distances();
        assert_eq!((distances.iter().sum::<u64>(), distances[bucket_of(100)]), (200, 200));
    }
}
