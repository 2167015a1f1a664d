//! What each CPU has for itself and writes without asking others: counters, above all.
//!
//! A place is made when its CPU comes for the first time. There are as many places as a large machine has
//! CPUs, and most machines are small: made at once, those of the counters took a quarter of a MiB for two
//! CPUs.
//!
//! What it does not do: keep one CPU from another's place. CPUs beyond the last place share, so what is there
//! is atomic.

use std::sync::OnceLock;

use crate::units::CpuId;

/// A `T` for each of so many CPUs. (`OnceLock` is unknown to a model checker, see `slots/lazy.rs`: to be used
/// for what is not part of a model.)
pub(crate) struct PerCpu<T> {
    places: Box<[OnceLock<Box<T>>]>,
}

impl<T: Default> PerCpu<T> {
    pub(crate) fn new(places: usize) -> PerCpu<T> {
        PerCpu { places: (0..places).map(|_| OnceLock::new()).collect() }
    }

    pub(crate) fn of(&self, cpu: CpuId) -> &T {
        self.places[cpu.index() % self.places.len()].get_or_init(Box::default)
    }

    /// Those that are there.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.get().map(Box::as_ref))
    }
}
