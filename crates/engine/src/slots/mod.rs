//! Slots of a swap device: handing them out, counting references, and the swap cache that sits in the same
//! words.
//!
//! ```text
//!   swap_out ── alloc ──▶ Slots ◀── dup, put ── page table (fork, unmap, swap-in)
//!                │            │
//!       percpu hint           ├── clusters: 512 slots, a lock each      cluster.rs, slot_word.rs
//!        percpu.rs            ├── scan base of each CPU, an older form  scan.rs
//!                             ├── lists of clusters, a lock per 16 CPUs lists.rs
//!                             ├── room for other orders, no lock         room.rs
//!                             └── swap cgroup map, an older form        cgroup_map.rs
//! ```
//!
//! This file has the struct that they share, and its statistics. Start reading at [`allocator`].

pub mod allocator;
mod cache;
pub mod cgroup_map;
mod check;
mod cluster;
mod free_count;
pub(crate) mod lazy;
mod lists;
mod lock_counts;
mod old_locks;
mod percpu;
mod references;
mod room;
mod scan;
mod slot_word;

use self::cgroup_map::CgroupMap;
pub use self::cluster::CacheRelease;
use self::cluster::{Cluster, ClusterState, TABLE_BYTES};
use self::free_count::FreeCount;
use self::lazy::LazyArray;
use self::lists::Lists;
pub use self::lock_counts::LockTotals;
use self::lock_counts::{Held, lock_counted, lock_uncounted};
use self::old_locks::OldLocks;
use self::percpu::PerCpu;
use self::room::Room;
use self::scan::Scan;
use self::slot_word::SlotWord;
use crate::sync::{Apart, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::tuning::{CgroupMapForm, LargeFolios, ScanBase, Tuning};
use crate::units::{CLUSTER_SLOTS, ClusterIndex, FrameId, GroupId, MAX_ORDER, SlotIndex};

const ORDERS: usize = MAX_ORDER as usize + 1;

/// As many CPUs as have a last-level cache in common on most large machines, or fewer.
const CPUS_OF_A_LIST_LOCK: u32 = 16;

pub struct Slots {
    slots: u32,
    clusters: LazyArray<Cluster>,
    /// In parts: a cluster's is its number modulo theirs.
    lists: Box<[Apart<Mutex<Lists>>]>,
    /// The part that the next search begins with, after the CPU's own.
    next_part: Apart<AtomicU32>,
    percpu: PerCpu,
    /// None: `scan-base=lists`, on a device that does not rotate.
    scan: Option<Scan>,
    room: Room,
    /// Clusters that are free or were never used, the short ones included.
    empty: Apart<AtomicU32>,
    /// None: owners are in the clusters' tables.
    map: Option<CgroupMap>,
    /// None, unless old forms are set.
    old_locks: OldLocks,
    free: FreeCount,
    /// The device has been switched off: no slot of it is in use, and none will be.
    retired: AtomicBool,
    /// Held by whoever discards: one cluster at a time, which stays on its list until it is done.
    discard: Option<Mutex<DiscardCluster>>,
    tables: AtomicU64,
    /// Folios of each order that were asked for and not given.
    failed: [AtomicU64; ORDERS],
    /// Slots that were taken from clusters of other orders.
    stolen: AtomicU64,
    slot_batch: usize,
    cache_batch: usize,
    /// Large folios come only from current clusters, going upwards, and from empty ones.
    free_cluster_only: bool,
    /// Single pages take holes before they take a cluster of their own.
    packs: bool,
}

/// Tells the medium that nothing of a cluster is needed.
type DiscardCluster = Box<dyn Fn(ClusterIndex) + Send + Sync>;

/// What the allocator has done so far. Exact at a quiet point.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SlotStats {
    pub cluster_lock: LockTotals,
    pub list_lock: LockTotals,
    /// The lock of the cgroup map, in its old form.
    pub cgroup_lock: LockTotals,
    /// The lock of all slots of the device, and those of parts of the swap cache: old forms.
    pub device_lock: LockTotals,
    pub trunk_lock: LockTotals,
    /// Clusters that a search left alone because another CPU held them.
    pub cluster_passed_by: u64,
    /// Exchanges in the cgroup map that were tried again, in its lock-free form.
    pub cgroup_retries: u64,
    /// 64-bit words of free bitmaps looked at in searches of a cluster.
    pub scan_steps: u64,
    /// Trunks looked at in searches for a cluster from a scan base.
    pub base_steps: u64,
    /// Slots that were taken from clusters of other orders.
    pub stolen_slots: u64,
    /// Clusters that were discarded when they had become empty.
    pub discarded_clusters: u64,
    /// Folios of each order that were asked for and not given: order 0, the device was full; others, split.
    pub failed: [u64; ORDERS],
}

/// An entry of a batch: it belongs to one slot.
trait OfSlot {
    fn slot(&self) -> SlotIndex;
}
impl OfSlot for SlotIndex {
    fn slot(&self) -> SlotIndex {
        *self
    }
}
impl OfSlot for (SlotIndex, FrameId) {
    fn slot(&self) -> SlotIndex {
        self.0
    }
}
impl OfSlot for (SlotIndex, Option<FrameId>) {
    fn slot(&self) -> SlotIndex {
        self.0
    }
}

type ListsGuard<'a> = Held<'a, Lists>;

impl Slots {
    /// A device of `slots` slots (slot 0 included, which is never handed out), all free.
    pub fn new(slots: u32, cpus: u32, rotational: bool, tuning: &Tuning) -> Slots {
        let clusters = slots.div_ceil(CLUSTER_SLOTS);
        let places = if rotational { 1 } else { cpus.max(1) };
        let shared = rotational || tuning.scan_base == ScanBase::Shared;
        let bases = if shared { 1 } else { places };
        let parts = places.div_ceil(CPUS_OF_A_LIST_LOCK).min(clusters).max(1);
        let jumps = !shared && tuning.scan_base == ScanBase::PerCpuTrunk;
        Slots {
            slots,
            clusters: LazyArray::new(clusters as usize),
            lists: (0..parts).map(|part| Apart::new(Mutex::new(Lists::new(clusters, part, parts)))).collect(),
            next_part: Apart::default(),
            percpu: PerCpu::new(places),
            scan: (rotational || tuning.scan_base != ScanBase::Lists)
                .then(|| Scan::new(clusters, bases, jumps)),
            room: Room::new(clusters),
            empty: Apart::new(AtomicU32::new(clusters)),
            map: (tuning.cgroup_map != CgroupMapForm::Cluster)
                .then(|| CgroupMap::new(slots, tuning.cgroup_map)),
            old_locks: OldLocks::new(clusters, cpus, tuning),
            free: FreeCount::new(u64::from(slots.saturating_sub(1)), cpus),
            retired: AtomicBool::new(false),
            discard: None,
            tables: AtomicU64::new(0),
            failed: std::array::from_fn(|_| AtomicU64::new(0)),
            stolen: AtomicU64::new(0),
            slot_batch: tuning.slot_batch.max(1) as usize,
            cache_batch: tuning.cache_batch.max(1) as usize,
            free_cluster_only: tuning.large_folios == LargeFolios::FreeClusterOnly,
            packs: false,
        }
    }

    /// The same device, which calls `discard` with each cluster that has become empty before it is used
    /// again. The call may take as long as a device takes for it.
    pub fn discarding(self, discard: impl Fn(ClusterIndex) + Send + Sync + 'static) -> Slots {
        Slots { discard: Some(Mutex::new(Box::new(discard))), ..self }
    }

    /// The same device, on which it does not matter which slots lie in a row: single pages fill the holes of
    /// clusters in use, so that few have tables.
    pub fn packing(self) -> Slots {
        Slots { packs: !self.free_cluster_only, ..self }
    }

    // ---- figures ------------------------------------------------------------------------------------------

    /// References to the slot; 0 if it is free, dying, or only in the swap cache.
    pub fn count(&self, slot: SlotIndex) -> u32 {
        self.word(slot).count()
    }

    /// The owner of a slot; 0: none.
    pub fn group_of(&self, slot: SlotIndex) -> GroupId {
        let in_table = || {
            let cluster = self.clusters.get(slot.cluster().index());
            cluster.map_or(GroupId(0), |cluster| cluster.lock().owner(slot))
        };
        self.map.as_ref().map_or_else(in_table, |map| map.lookup(slot))
    }

    /// The same with its cluster locked.
    fn owner_in(&self, state: &ClusterState, slot: SlotIndex) -> GroupId {
        self.map.as_ref().map_or_else(|| state.owner(slot), |map| map.lookup(slot))
    }

    /// Slots that can be allocated now.
    pub fn free_slots(&self) -> u64 {
        self.free.total()
    }

    /// Slots in use, dying ones and those of allocations in progress included.
    pub fn used_slots(&self) -> u64 {
        if self.retired.load(Ordering::Acquire) {
            return 0;
        }
        self.all_slots().saturating_sub(self.free_slots())
    }

    /// Slots that there are in all.
    pub fn all_slots(&self) -> u64 {
        u64::from(self.slots.saturating_sub(1))
    }

    /// Memory that the device takes now.
    pub fn table_bytes(&self) -> u64 {
        let tables = self.tables.load(Ordering::Relaxed) * TABLE_BYTES;
        let lists: u64 = (0..self.lists.len()).map(|part| self.lists_uncounted(part).bytes()).sum();
        let parts = size_of_val::<[Apart<Mutex<Lists>>]>(&self.lists) as u64;
        let inside = if self.map.is_some() { size_of::<CgroupMap>() } else { 0 };
        let fixed = size_of::<Slots>() - inside;
        fixed as u64
            + tables
            + lists
            + parts
            + self.clusters.bytes()
            + self.percpu.bytes()
            + self.free.bytes()
            + self.scan.as_ref().map_or(0, Scan::bytes)
            + self.room.bytes()
            + self.map.as_ref().map_or(0, CgroupMap::bytes)
            + self.old_locks.bytes()
    }

    pub fn stats(&self) -> SlotStats {
        let scan = self.scan.as_ref().map(Scan::counters).unwrap_or_default();
        let (device_lock, trunk_lock) = self.old_locks.totals(self.ever_used().into_iter());
        let mut stats = SlotStats {
            cluster_passed_by: scan.passed_by,
            base_steps: scan.steps,
            cgroup_lock: self.map.as_ref().map(CgroupMap::lock_totals).unwrap_or_default(),
            device_lock,
            trunk_lock,
            cgroup_retries: self.map.as_ref().map_or(0, CgroupMap::retries),
            stolen_slots: self.stolen.load(Ordering::Relaxed),
            failed: std::array::from_fn(|order| self.failed[order].load(Ordering::Relaxed)),
            ..SlotStats::default()
        };
        for part in 0..self.lists.len() {
            let lists = self.lists_uncounted(part);
            stats.list_lock += lists.lock_counts;
            stats.cluster_passed_by += lists.passed_by;
            stats.discarded_clusters += lists.discarded;
        }
        for index in self.ever_used() {
            let state = self.cluster_at(index).lock_uncounted();
            stats.cluster_lock += state.lock_counts;
            stats.scan_steps += state.scan_steps;
        }
        stats
    }

    // ---- locking ------------------------------------------------------------------------------------------

    /// Lock the cluster of each run of entries that lie in one, at most `limit` entries for a hold; around
    /// it, the lock that `old` returns.
    fn each_cluster<T: OfSlot, L>(
        &self,
        entries: &[T],
        limit: usize,
        old: impl Fn(&[T]) -> L,
        mut work: impl FnMut(&mut ClusterState, &[T]),
    ) {
        for run in entries.chunk_by(|a, b| a.slot().cluster() == b.slot().cluster()) {
            for part in run.chunks(limit.min(run.len())) {
                let _old = old(part);
                work(&mut self.cluster(part[0].slot()).lock(), part);
            }
        }
    }

    fn word(&self, slot: SlotIndex) -> SlotWord {
        assert!(slot.0 < self.slots, "slot {} of a device of {}", slot.0, self.slots);
        let cluster = self.clusters.get(slot.cluster().index());
        cluster.map_or(SlotWord::FREE, |cluster| cluster.lock().word(slot))
    }

    /// The cluster of a slot that was handed out.
    fn cluster(&self, slot: SlotIndex) -> &Cluster {
        assert!(slot.0 != 0 && slot.0 < self.slots, "slot {} of a device of {}", slot.0, self.slots);
        let cluster = self.clusters.get(slot.cluster().index());
        cluster.unwrap_or_else(|| panic!("slot {} was never handed out", slot.0))
    }

    fn cluster_at(&self, index: ClusterIndex) -> &Cluster {
        self.clusters.get(index.index()).expect("clusters on lists exist")
    }

    /// The clusters that were ever used.
    fn ever_used(&self) -> Vec<ClusterIndex> {
        (0..self.lists.len()).flat_map(|part| self.lists_uncounted(part).ever_used()).collect()
    }

    /// The part of the lists that a cluster is on.
    fn part_of(&self, cluster: ClusterIndex) -> usize {
        cluster.index() % self.lists.len()
    }

    #[track_caller]
    fn lock_lists(&self, part: usize) -> ListsGuard<'_> {
        lock_counted(&self.lists[part].0)
    }

    /// Lock without counting it: for reading the counters.
    fn lists_uncounted(&self, part: usize) -> ListsGuard<'_> {
        lock_uncounted(&self.lists[part].0)
    }
}
