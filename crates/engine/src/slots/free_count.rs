//! How many slots of a device are free, counted so that CPUs seldom write the same cache line.
//!
//! ```text
//!   free     one counter: free, and not reserved by an allocation in progress
//!   freed    for each CPU, what it has freed and not brought to `free` yet: faults free one at a time
//! ```
//!
//! A slot is taken off these counters before it is looked for, or when it was found (allocator.rs), and is
//! added when its cluster is on its list. So at any instant the bitmaps hold at least what is reserved.

use crate::sync::{Apart, AtomicU64, Ordering};
use crate::units::CpuId;

/// CPUs that have a counter of their own for what they free; where there are more, they share.
const FREED_PLACES: u32 = 256;
/// When a CPU's counter is above this, it is brought down to half by moving slots to the common counter. Two
/// batches: a CPU may soon allocate what it frees.
const FREED_MAX: u64 = 128;

pub(super) struct FreeCount {
    /// All slots that may be free at once.
    slots: u64,
    free: Apart<AtomicU64>,
    freed: Box<[Apart<AtomicU64>]>,
}

impl FreeCount {
    pub fn new(slots: u64, cpus: u32) -> FreeCount {
        FreeCount {
            slots,
            free: Apart::new(AtomicU64::new(slots)),
            freed: (0..cpus.clamp(1, FREED_PLACES)).map(|_| Apart::default()).collect(),
        }
    }

    fn freed_by(&self, cpu: CpuId) -> &AtomicU64 {
        &self.freed[cpu.index() % self.freed.len()].0
    }

    /// These slots are free.
    pub fn add(&self, cpu: CpuId, slots: u64) {
        let mine = self.freed_by(cpu);
        let held = mine.fetch_add(slots, Ordering::AcqRel).wrapping_add(slots);
        if held as i64 > FREED_MAX as i64 {
            let surplus = self.reserve_from(mine, held - FREED_MAX / 2, 1);
            self.free.0.fetch_add(surplus, Ordering::AcqRel);
        }
    }

    /// Bring what CPUs count apart to the common counter.
    fn collect_freed(&self) {
        for place in &self.freed {
            if place.0.load(Ordering::Acquire) > 0 {
                let all = self.reserve_from(&place.0, self.slots, 1);
                self.free.0.fetch_add(all, Ordering::AcqRel);
            }
        }
    }

    /// Take up to `wanted` free slots off the count, in multiples of `unit`: what this CPU has freed, what is
    /// in the common counter, and before there are too few, what the others have freed. Returns how many.
    pub fn reserve(&self, cpu: CpuId, wanted: u64, unit: u64) -> u64 {
        let own = if unit > 1 { 0 } else { self.reserve_from(self.freed_by(cpu), wanted, 1) };
        let mut got = own + self.reserve_from(&self.free.0, wanted - own, unit);
        if got < wanted {
            self.collect_freed();
            got += self.reserve_from(&self.free.0, wanted - got, unit);
        }
        got
    }

    /// By subtraction and not in a compare-exchange loop, which among many CPUs mostly fails and tries again.
    /// A CPU that has subtracted more than there was adds the excess back at once. In between others see no
    /// free slot, which is right: this CPU has taken all there were.
    fn reserve_from(&self, count: &AtomicU64, wanted: u64, unit: u64) -> u64 {
        let have = |free: u64| (free as i64).max(0) as u64;
        if wanted == 0 || have(count.load(Ordering::Acquire)) < unit {
            return 0;
        }
        let before = have(count.fetch_sub(wanted, Ordering::AcqRel));
        let granted = before.min(wanted) / unit * unit;
        if granted < wanted {
            count.fetch_add(wanted - granted, Ordering::AcqRel);
        }
        granted
    }

    /// Slots that can be allocated now. Exact at a quiet point; else slots that are being moved from one
    /// counter to another may be counted twice or not at all.
    pub fn total(&self) -> u64 {
        let have = |count: &AtomicU64| (count.load(Ordering::Acquire) as i64).max(0) as u64;
        self.freed.iter().map(|place| have(&place.0)).sum::<u64>() + have(&self.free.0)
    }

    pub fn bytes(&self) -> u64 {
        size_of_val::<[Apart<AtomicU64>]>(&self.freed) as u64
    }
}
