//! The locks that a device had before each cluster had its own: the old forms of the knobs `slot-lock` and
//! `cache-lock`.
//!
//! ```text
//!   slot-lock=device    one lock: slots are had, shared, given back                  si->lock, until 4.10
//!   slot-lock=batch     the same lock: slots are had, and each CPU gives 64 back     4.11 to 6.13
//!   cache-lock=device   one lock: pages enter and leave the swap cache               until 4.10
//!   cache-lock=trunk    the same, one for each 64 MiB of slots                       4.11 to 6.17
//!   both: cluster       neither (the default): the cluster's lock does for both
//! ```
//!
//! An old lock is taken around the cluster's, which then is nearly always free: it goes on guarding the data,
//! the old lock is what CPUs wait for. As in the kernel, no lock is taken to look into the swap cache; a hit
//! on a page that was read ahead takes it out of the cache, and that takes one. Not modelled: that the kernel
//! took the device's lock once more for each page that it unmapped, and when a page left the swap cache,
//! since here the reference and the cache's hold lie in the slot's word and cost nothing of their own. In
//! batches slots are free at once, and not when the 64th is given back; the CPU whose turn it is holds the
//! lock for all 64.
//!
//! What these locks guard in the kernel is not here, but virtual CPUs pay for its cache lines: of the cache
//! an `xa_node`'s line of 8 entries, its head with the counts, and `nrpages`, by the layout of 5.7; of slots
//! the `swap_map`'s, and those of the device's counters and free clusters.
//!
//! Order: trunk → device → cluster. What it does not do: keep data safe.

use super::lazy::LazyArray;
use super::lock_counts::{Counted, Held, LockCounts, LockTotals, lock_counted, lock_uncounted};
use crate::sync::{Apart, AtomicU32, GuardedLines, Mutex, Ordering};
use crate::tuning::{CacheLock, SlotLock, Tuning};
use crate::units::{CLUSTER_SLOTS, ClusterIndex, CpuId, SlotIndex};

/// Clusters of a trunk of 64 MiB.
const TRUNK_CLUSTERS: u32 = 32;

const TRUNK_SLOTS: usize = TRUNK_CLUSTERS as usize * CLUSTER_SLOTS as usize;
/// Entries in a line, and in a node, of the tree in which the kernel had its swap cache.
const LINE_ENTRIES: usize = 8;
const NODE_ENTRIES: usize = 64;
/// Slots that a CPU gives back together: the kernel's SWAP_SLOTS_CACHE_SIZE.
const GIVEN_BACK: u32 = 64;

/// Guarded by the lock of a device's slots: how often it was taken; lines of the device's counters and free
/// clusters, and one for each slot that is given back with others.
pub(super) struct DeviceSlots(LockCounts, GuardedLines);

/// Guarded by the lock of a part of the swap cache: the same; the lines of a tree.
pub(super) struct CacheTrunk(LockCounts, GuardedLines);

impl Default for DeviceSlots {
    fn default() -> DeviceSlots {
        DeviceSlots(LockCounts::default(), GuardedLines::new(2 + GIVEN_BACK as usize))
    }
}
impl Default for CacheTrunk {
    fn default() -> CacheTrunk {
        let lines = 1 + TRUNK_SLOTS / NODE_ENTRIES + TRUNK_SLOTS / LINE_ENTRIES;
        CacheTrunk(LockCounts::default(), GuardedLines::new(lines))
    }
}
impl CacheTrunk {
    /// A page enters or leaves.
    pub(super) fn write(&self, slot: SlotIndex) {
        let (nodes, at) = (TRUNK_SLOTS / NODE_ENTRIES, slot.0 as usize % TRUNK_SLOTS);
        self.1.write(0);
        self.1.write(1 + at / NODE_ENTRIES);
        self.1.write(1 + nodes + at / LINE_ENTRIES);
    }
}

impl Counted for DeviceSlots {
    fn counts(&mut self) -> &mut LockCounts {
        &mut self.0
    }
}
impl Counted for CacheTrunk {
    fn counts(&mut self) -> &mut LockCounts {
        &mut self.0
    }
}

/// In the order in which they are let go.
pub(super) type BothHeld<'a> = (Option<Held<'a, DeviceSlots>>, Option<Held<'a, CacheTrunk>>);

pub(super) struct OldLocks {
    slots: Option<Box<Mutex<DeviceSlots>>>,
    /// What each CPU has given back, where that takes the lock for many at once.
    given_back: Option<Box<[Apart<AtomicU32>]>>,
    cache: Option<LazyArray<Apart<Mutex<CacheTrunk>>>>,
    clusters_per_trunk: u32,
}

impl OldLocks {
    pub(super) fn new(clusters: u32, cpus: u32, tuning: &Tuning) -> OldLocks {
        let in_trunks = tuning.cache_lock == CacheLock::Trunk;
        let clusters_per_trunk = if in_trunks { TRUNK_CLUSTERS } else { u32::MAX };
        let trunks = clusters.div_ceil(clusters_per_trunk) as usize;
        OldLocks {
            slots: (tuning.slot_lock != SlotLock::Cluster).then(Box::default),
            given_back: (tuning.slot_lock == SlotLock::Batch)
                .then(|| (0..cpus.max(1)).map(|_| Apart::default()).collect()),
            cache: (tuning.cache_lock != CacheLock::Cluster).then(|| LazyArray::new(trunks)),
            clusters_per_trunk,
        }
    }

    /// Before slots are had. This and the next two are inlined, since the call for nothing was seen in the
    /// time that a page takes.
    #[inline(always)]
    #[track_caller]
    pub(super) fn slots_had(&self) -> Option<Held<'_, DeviceSlots>> {
        let held = lock_counted(self.slots.as_deref()?);
        (0..2).for_each(|line| held.1.write(line));
        Some(held)
    }

    /// Before slots are shared, or lose a reference.
    #[inline(always)]
    #[track_caller]
    pub(super) fn slots(&self) -> Option<Held<'_, DeviceSlots>> {
        if self.given_back.is_some() { None } else { self.slots_had() }
    }

    /// Before so many slots are given back.
    #[inline(always)]
    #[track_caller]
    pub(super) fn slots_given_back(&self, cpu: CpuId, slots: u32) -> Option<Held<'_, DeviceSlots>> {
        let Some(given_back) = &self.given_back else { return self.slots_had() };
        let before = given_back[cpu.index() % given_back.len()].0.fetch_add(slots, Ordering::Relaxed);
        if before % GIVEN_BACK + slots < GIVEN_BACK {
            return None;
        }
        let held = self.slots_had()?;
        (0..GIVEN_BACK as usize).for_each(|slot| held.1.write(2 + slot));
        Some(held)
    }

    /// Before a page enters the swap cache or leaves it.
    #[inline(always)]
    #[track_caller]
    pub(super) fn cache(&self, slot: SlotIndex) -> Option<Held<'_, CacheTrunk>> {
        let held = lock_counted(self.trunk(self.cache.as_ref()?, slot.cluster()));
        held.write(slot);
        Some(held)
    }

    /// Both, where one step changes a slot's references and the swap cache.
    #[inline(always)]
    #[track_caller]
    pub(super) fn both(&self, slot: SlotIndex) -> BothHeld<'_> {
        let cache = self.cache(slot);
        (self.slots(), cache)
    }

    pub(super) fn has_cache_locks(&self) -> bool {
        self.cache.is_some()
    }

    pub(super) fn bytes(&self) -> u64 {
        let device = self.slots.as_ref().map_or(0, |_| size_of::<Mutex<DeviceSlots>>());
        let counts = self.given_back.as_ref().map_or(0, |counts| size_of_val::<[_]>(counts));
        (device + counts) as u64 + self.cache.as_ref().map_or(0, LazyArray::bytes)
    }

    /// The totals of the device's lock, and of those of the swap cache.
    pub(super) fn totals(&self, clusters: impl Iterator<Item = ClusterIndex>) -> (LockTotals, LockTotals) {
        let (mut slots, mut cache) = (LockTotals::default(), LockTotals::default());
        if let Some(device) = &self.slots {
            slots += lock_uncounted(device).0;
        }
        if let Some(trunks) = &self.cache {
            let mut numbers: Vec<u32> = clusters.map(|index| index.0 / self.clusters_per_trunk).collect();
            numbers.sort_unstable();
            numbers.dedup();
            for number in numbers {
                if let Some(trunk) = trunks.get(number as usize) {
                    cache += lock_uncounted(&trunk.0).0;
                }
            }
        }
        (slots, cache)
    }

    fn trunk<'a>(
        &self,
        trunks: &'a LazyArray<Apart<Mutex<CacheTrunk>>>,
        cluster: ClusterIndex,
    ) -> &'a Mutex<CacheTrunk> {
        let number = (cluster.0 / self.clusters_per_trunk) as usize;
        &trunks.get_or_make(number, |_| Apart::default()).0
    }
}
