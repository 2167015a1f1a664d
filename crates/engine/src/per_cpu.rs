//! Values that each CPU has for itself and writes without asking others: counters, above all.
//!
//! A place is made when its CPU comes for the first time. There are as many places as a large machine has
//! CPUs, and most machines are small: made at once, those of the counters took a quarter of a MiB for two
//! CPUs.
//!
//! What it does not do: keep one CPU from another's place. CPUs beyond the last place share, so what is there
//! is atomic.

use std::sync::OnceLock;

use crate::sync::Apart;
use crate::units::CpuId;

/// A `T` for each of `PLACES` CPUs. (`OnceLock` is unknown to a model checker, see `slots/lazy.rs`: to be
/// used for what is not part of a model.)
pub(crate) struct PerCpu<T, const PLACES: usize> {
    places: Box<[OnceLock<Box<Apart<T>>>; PLACES]>,
}

impl<T: Default, const PLACES: usize> PerCpu<T, PLACES> {
    pub(crate) fn new() -> Self {
        PerCpu { places: Box::new([const { OnceLock::new() }; PLACES]) }
    }

    pub(crate) fn of(&self, cpu: CpuId) -> &T {
        &self.places[cpu.index() % PLACES].get_or_init(Box::default).0
    }

    /// The values that are there.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.get().map(|apart| &apart.0))
    }
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_place_is_made_when_its_cpu_comes() {
        let places: PerCpu<AtomicU32, 4> = PerCpu::new();
        assert_eq!(places.iter().count(), 0);
        for cpu in [2, 6, 3] {
            places.of(CpuId(cpu)).fetch_add(1, Ordering::Relaxed);
        }
        let counts: Vec<u32> = places.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        assert_eq!(counts, [2, 1], "2 and 6 share one");
    }
}
