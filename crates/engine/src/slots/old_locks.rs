//! The locks that a device had before each cluster had its own: the old forms of the knobs `slot-lock` and
//! `cache-lock`.
//!
//! ```text
//!   slot-lock=device    one lock: slots are had, shared, given back                  swap_info_struct.lock
//!   cache-lock=device   one lock: pages enter and leave the swap cache               until 4.10
//!   cache-lock=trunk    the same, one for each 64 MiB of slots                       4.11 to 6.17
//!   both: cluster       neither (the default): the cluster's lock does for both
//! ```
//!
//! An old lock is taken around the cluster's, which then is nearly always free: it goes on guarding the data,
//! the old lock is what CPUs wait for. As in the kernel, no lock is taken to look into the swap cache; a hit
//! on a page that was read ahead takes it out of the cache, and that takes one. Not modelled: that the kernel
//! took the device's lock once more for each page that it unmapped, and when a page left the swap cache,
//! since here the reference and the cache's hold lie in the slot's word and cost nothing of their own.
//!
//! Order: trunk → device → cluster. What it does not do: keep data safe.

use super::lazy::LazyArray;
use super::lock_counts::{Counted, Held, LockCounts, LockTotals, lock_counted, lock_uncounted};
use super::percpu::Apart;
use crate::sync::Mutex;
use crate::tuning::{CacheLock, SlotLock, Tuning};
use crate::units::{ClusterIndex, SlotIndex};

/// Clusters of a trunk of 64 MiB.
const TRUNK_CLUSTERS: u32 = 32;

/// Guarded by the lock of a device's slots: how often it was taken.
#[derive(Default)]
pub(super) struct DeviceSlots(LockCounts);

/// Guarded by the lock of a part of the swap cache.
#[derive(Default)]
pub(super) struct CacheTrunk(LockCounts);

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
    cache: Option<LazyArray<Apart<Mutex<CacheTrunk>>>>,
    clusters_per_trunk: u32,
}

impl OldLocks {
    pub(super) fn new(clusters: u32, tuning: &Tuning) -> OldLocks {
        let in_trunks = tuning.cache_lock == CacheLock::Trunk;
        let clusters_per_trunk = if in_trunks { TRUNK_CLUSTERS } else { u32::MAX };
        let trunks = clusters.div_ceil(clusters_per_trunk) as usize;
        OldLocks {
            slots: (tuning.slot_lock == SlotLock::Device).then(Box::default),
            cache: (tuning.cache_lock != CacheLock::Cluster).then(|| LazyArray::new(trunks)),
            clusters_per_trunk,
        }
    }

    /// Before slots are had, shared or given back. Inlined, since the call for nothing was seen in the time
    /// that a page takes.
    #[inline(always)]
    #[track_caller]
    pub(super) fn slots(&self) -> Option<Held<'_, DeviceSlots>> {
        self.slots.as_deref().map(lock_counted)
    }

    /// Before a page enters the swap cache or leaves it.
    #[inline(always)]
    #[track_caller]
    pub(super) fn cache(&self, slot: SlotIndex) -> Option<Held<'_, CacheTrunk>> {
        self.cache.as_ref().map(|trunks| lock_counted(self.trunk(trunks, slot.cluster())))
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
        device as u64 + self.cache.as_ref().map_or(0, LazyArray::bytes)
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
        &trunks.get_or_make(number, |_| Apart(Mutex::new(CacheTrunk::default()))).0
    }
}
