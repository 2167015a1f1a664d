//! The swap device without its I/O: which slots are free, who counts on the others, and which are in the swap cache.
//!
//! ```text
//!   alloc(cpu, order, n)
//!     │ order 0: reserve n of the free slots, so that what is counted can be had
//!     ▼
//!   1 this CPU's current cluster of that order, from where it left off      one cluster lock
//!   2 order 0 only: of 3, what is near this CPU's scan base (scan.rs)        no lock, clusters only tried;
//!                                                                           none where another CPU allocates
//!   3 nonfull[order]   something was freed there since, and no other CPU
//!                      allocates there
//!   4 free             empty clusters, those used before first              the list lock for 3 to 7,
//!   5 virgin           never used                                           clusters only tried there
//!   6 nonfull[order], free, frag[order]: other CPUs' current clusters too
//!   7 order 0 only: steal from spent[k], frag[k], nonfull[k], k = 1, 2, …
//!   8 what was busy in 3 to 7: wait for its lock, look again
//!   9 order 0 only: discard a cluster that waits for it, or wait for who is at it, look again       no lock
//! ```
//!
//! With `scan-base=shared`, and always on a rotating device, the CPUs have one current cluster and one scan base.
//!
//! Where there are more CPUs than [`CPUS_OF_A_LIST_LOCK`], the lists are in parts with a lock each (lists.rs). Then 3 and
//! 4 are tried in the CPU's own part alone, 3 to 5 in each part by itself, and all with all parts locked if that brings
//! nothing.
//!
//! A cluster takes the order of the first allocation in it and keeps it until it is empty, so folios of one size
//! do not break up the room of another. Every list that an order is served from is exact (lists.rs), so an
//! allocation of order k > 0 fails only when no free cluster and no cluster of its order has an aligned block.
//!
//! The end of a slot is in two steps, so that nobody gets a slot whose old bytes are still to be discarded:
//! [`SwapDevice::put`] reports slots that lost their last reference (*dying*), the caller discards their copies in the
//! backing, and [`SwapDevice::release`] makes them free.
//!
//! A device that *discards* ([`SwapDevice::discarding`]) tells its medium of whole clusters, as the kernel's swap devices
//! with `discard=pages`: one that empties goes to the discard list, and is free for use when that is done. Reclaim does it
//! between batches ([`SwapDevice::discard_waiting`]), one cluster at a time and with no lock of the slots held; an
//! allocation only when nothing else is left.
//!
//! # Invariants
//!
//! 1. Free + used = all slots but slot 0; at a quiet point the counters (`free`, `freed`) say the same as the bitmaps.
//! 2. A cluster is on the list that its flag names, always, unless its lock is held; a free cluster, and one that is to be
//!    discarded, has order 0, no table, no ids. Only devices that discard have clusters on the discard list, and nothing is
//!    allocated from those.
//! 3. A block of order k is aligned and lies in a cluster whose order is k. Order 0 is stolen only if no cluster of
//!    order 0 and no empty cluster is left. While a slot is free, an allocation of order 0 succeeds.
//! 4. A slot has at most one frame, a frame at most one slot; a slot with a frame is never handed out.
//! 5. Count 0 without a frame ⇔ dying or free.
//! 10. Ids in the cgroup map: those given to `alloc`, on used and dying slots; 0 on free ones.
//!
//! (The numbers are those of the project's list of invariants.) Using a slot that is free, a reference too many, a
//! second frame: each of them would lose or mix up somebody's page, so each is a panic on the spot.
//!
//! # Why order 0 cannot be stranded
//!
//! Order 0 takes its slots off the counter `free` before it looks for them, larger orders after they have found
//! them and before they take them; a release adds them to the counter after their cluster is on its list. So at any
//! instant the bitmaps hold at least what is reserved. A search that finds every list empty and no cluster
//! busy would be a contradiction (a panic); one that met a busy cluster waits for that lock and looks again, and
//! each such round ends with a slot or with another thread having got one. Clusters on the discard list are counted like
//! others: a search that finds all others empty discards one of them, and looks again.
//!
//! # Lock order
//!
//! discard → cluster → lists; several parts of the lists in their order. Under a list lock, and in a scan, clusters are only
//! tried (`try_lock`), never waited for. No thread holds two cluster locks. The cgroup map is used with neither held.
//!
//! # What it does not do
//!
//! Read or write, or discard but through the function it is given; charge groups; choose victims; wait for a frame. It knows no address space.
//!
//! # Kernel counterpart
//!
//! `swap_info_struct`, `cluster_alloc_swap_entry`, `folio_alloc_swap` (6.18). Differences: CPUs' hints belong to the
//! device; `spent` lists; clusters are not taken off their list while they are worked on, since walkers skip them as
//! busy anyway, and so flag and list never disagree; counts are 18 bits wide instead of a byte with continuations.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::cluster::{CacheRelease, Cluster, ClusterState, TABLE_BYTES};
use super::lazy::LazyArray;
use super::lists::{ListId, Lists, steal_order};
use super::percpu::PerCpu;
use super::scan::{Offer, Scan};
use super::slot_word::{Payload, SlotWord};
use crate::cgroup_map::CgroupMap;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::tuning::{LargeFolios, ScanBase, Tuning};
use crate::units::{CLUSTER_SLOTS, ClusterIndex, CpuId, FrameId, GroupId, MAX_ORDER, Order, SlotIndex};

const ORDERS: usize = MAX_ORDER as usize + 1;

/// Rounds in which a large order waits for busy clusters before it gives up and is split. Order 0 never gives up.
const LARGE_ORDER_ROUNDS: u32 = 16;

/// As many CPUs as have a last-level cache in common on most large machines, or fewer.
const CPUS_OF_A_LIST_LOCK: u32 = 16;

/// CPUs that count apart what they free; more of them share.
const FREED_PLACES: u32 = 256;
/// So many, and then half of them go to the common counter. Two batches: what a CPU frees, it may soon allocate.
const FREED_MAX: u64 = 128;

/// On cache lines of its own: it changes all the time, and what stands beside it is read all the time.
#[repr(align(128))]
struct Apart<T>(T);

pub struct SwapDevice {
    slots: u32,
    clusters: LazyArray<Cluster>,
    /// In parts: a cluster's is its number modulo theirs.
    lists: Box<[Apart<Mutex<Lists>>]>,
    /// Whose turn it is to be searched after a CPU's own part.
    next_part: Apart<AtomicU32>,
    percpu: PerCpu,
    scan: Scan,
    groups: CgroupMap,
    /// Slots that are free and not reserved by an allocation in progress, without those in `freed`.
    free: Apart<AtomicU64>,
    /// Free slots that each CPU has not brought to the counter yet: faults free one at a time.
    freed: Box<[Apart<AtomicU64>]>,
    /// The device has left: its slots are nobody's.
    retired: AtomicBool,
    /// Held by whoever discards: one cluster at a time, which stays on its list until it is done.
    discard: Option<Mutex<DiscardCluster>>,
    tables: AtomicU64,
    /// Folios of each order that were asked for and not given.
    failed: [AtomicU64; ORDERS],
    /// Slots that order 0 took from clusters of larger orders.
    stolen: AtomicU64,
    slot_batch: usize,
    cache_batch: usize,
    /// Large folios come only from current clusters, going upwards, and from empty ones.
    free_cluster_only: bool,
}

/// Tells the medium that nothing of a cluster is needed.
type DiscardCluster = Box<dyn Fn(ClusterIndex) + Send + Sync>;

/// What the allocator has done so far. Exact at a quiet point.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SlotStats {
    /// Cluster locks taken, and how many of those had to be waited for.
    pub cluster_locks: u64,
    pub cluster_contended: u64,
    /// Clusters that a search left alone because another CPU held them.
    pub cluster_passed_by: u64,
    /// The same for the lock of the lists.
    pub list_locks: u64,
    pub list_contended: u64,
    /// The lock of the cgroup map (locked form), or exchanges tried again (lock-free form).
    pub cgroup_locks: u64,
    pub cgroup_contended: u64,
    pub cgroup_retries: u64,
    /// 64-bit words of free bitmaps looked at in searches of a cluster.
    pub scan_steps: u64,
    /// Trunks looked at in searches for a cluster from a scan base.
    pub base_steps: u64,
    /// Slots that order 0 took from clusters of larger orders.
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

/// What one lock hold is to bring.
#[derive(Clone, Copy)]
struct Want {
    cpu: CpuId,
    order: Order,
    /// Folios at most.
    n: usize,
}

/// Clusters that a search of the lists could not lock.
#[derive(Default)]
struct Busy {
    first: Option<ClusterIndex>,
    met: u64,
}

type ListsGuard<'a> = MutexGuard<'a, Lists>;

/// A search of the lists.
enum Pick<'a> {
    Found(ClusterIndex, MutexGuard<'a, ClusterState>),
    /// Nothing could be locked, but this one was busy.
    Busy(ClusterIndex),
    Nothing,
}

impl SwapDevice {
    /// A device of `slots` slots (slot 0 included, which is never handed out), all free.
    pub fn new(slots: u32, cpus: u32, rotational: bool, tuning: &Tuning) -> SwapDevice {
        let clusters = slots.div_ceil(CLUSTER_SLOTS);
        let shared = rotational || tuning.scan_base == ScanBase::Shared;
        let places = if shared { 1 } else { cpus.max(1) };
        let parts = places.div_ceil(CPUS_OF_A_LIST_LOCK).min(clusters).max(1);
        let jumps = !shared && tuning.scan_base == ScanBase::PerCpuTrunk;
        SwapDevice {
            slots,
            clusters: LazyArray::new(clusters as usize),
            lists: (0..parts).map(|part| Apart(Mutex::new(Lists::new(clusters, part, parts)))).collect(),
            next_part: Apart(AtomicU32::new(0)),
            percpu: PerCpu::new(places),
            scan: Scan::new(clusters, places, jumps),
            groups: CgroupMap::new(slots, tuning.cgroup_map),
            free: Apart(AtomicU64::new(u64::from(slots.saturating_sub(1)))),
            freed: (0..cpus.clamp(1, FREED_PLACES)).map(|_| Apart(AtomicU64::new(0))).collect(),
            retired: AtomicBool::new(false),
            discard: None,
            tables: AtomicU64::new(0),
            failed: std::array::from_fn(|_| AtomicU64::new(0)),
            stolen: AtomicU64::new(0),
            slot_batch: tuning.slot_batch.max(1) as usize,
            cache_batch: tuning.cache_batch.max(1) as usize,
            free_cluster_only: tuning.large_folios == LargeFolios::FreeClusterOnly,
        }
    }

    /// The same device, which calls `discard` with each cluster that has become empty before it is used again. The call
    /// may take as long as a device takes for it.
    pub fn discarding(self, discard: impl Fn(ClusterIndex) + Send + Sync + 'static) -> SwapDevice {
        SwapDevice { discard: Some(Mutex::new(Box::new(discard))), ..self }
    }

    // ---- allocation -------------------------------------------------------------------------------------------

    /// Allocate up to `n` folios of `order`, as contiguous as they come. The first slot of each is appended to `out`;
    /// each slot gets one reference and belongs to `group`. Returns how many folios there are.
    ///
    /// Fewer than `n` means, for order 0, that the device is full; for larger orders, that there is no such block.
    pub fn alloc(
        &self,
        cpu: CpuId,
        order: Order,
        n: usize,
        group: GroupId,
        out: &mut Vec<SlotIndex>,
    ) -> usize {
        assert!(order.0 <= MAX_ORDER, "there are no folios of order {}", order.0);
        let start = out.len();
        let goal = if order == Order::ZERO { self.reserve(cpu, n as u64, 1) as usize } else { n };
        while out.len() - start < goal {
            let n = (goal - (out.len() - start)).min((self.slot_batch >> order.0).max(1));
            if self.alloc_step(Want { cpu, order, n }, out) == 0 {
                if order != Order::ZERO {
                    break;
                }
                self.discard_now();
            }
        }
        let got = out.len() - start;
        self.failed[order.0 as usize].fetch_add((n - got) as u64, Ordering::Relaxed);
        self.record_owner(&out[start..], order, group);
        got
    }

    /// One lock hold's worth: at least one folio, unless none can be had. Returns how many.
    fn alloc_step(&self, want: Want, out: &mut Vec<SlotIndex>) -> usize {
        if let Some(slot) = self.percpu.hint(want.cpu, want.order) {
            let mut state = self.cluster(slot).lock();
            if state.serves(want.order, false) {
                let got = self.take(want, slot, &mut state, out);
                if got > 0 || !self.free_cluster_only {
                    return got;
                }
            }
        }
        if want.order == Order::ZERO
            && let Some((index, mut state)) =
                self.scan.find(want.cpu, |index| self.try_nonfull(want.cpu, index))
        {
            return self.take(want, SlotIndex(index.0 * CLUSTER_SLOTS), &mut state, out);
        }
        self.alloc_from_lists(want, out)
    }

    /// A cluster of single pages in which something was freed, on offer from the scan base.
    fn try_nonfull(
        &self,
        cpu: CpuId,
        index: ClusterIndex,
    ) -> Offer<(ClusterIndex, MutexGuard<'_, ClusterState>)> {
        let Some(state) = self.cluster_at(index).try_lock() else {
            return Offer::Held;
        };
        let nonfull = state.list == ListId::nonfull(Order::ZERO);
        if !nonfull || self.is_current_of_another(cpu, Order::ZERO, index, &state) {
            return Offer::Declined;
        }
        Offer::Taken((index, state))
    }

    /// Does another CPU allocate here now? What it frees in its own current cluster makes that nonfull, and would bring
    /// others there.
    fn is_current_of_another(
        &self,
        cpu: CpuId,
        order: Order,
        index: ClusterIndex,
        state: &ClusterState,
    ) -> bool {
        self.is_current_of(state.taken_by, order, index) && !self.is_current_of(cpu, order, index)
    }

    fn is_current_of(&self, cpu: CpuId, order: Order, index: ClusterIndex) -> bool {
        self.percpu.hint(cpu, order).is_some_and(|slot| slot.cluster() == index)
    }

    fn alloc_from_lists(&self, want: Want, out: &mut Vec<SlotIndex>) -> usize {
        for round in 0.. {
            let (index, mut state) = match self.pick(want.cpu, want.order) {
                Pick::Found(index, state) => (index, state),
                Pick::Busy(index) => (index, self.cluster_at(index).lock()),
                Pick::Nothing => return 0,
            };
            if state.serves(want.order, true) {
                return self.take(want, SlotIndex(index.0 * CLUSTER_SLOTS), &mut state, out);
            }
            if want.order != Order::ZERO && round >= LARGE_ORDER_ROUNDS {
                return 0;
            }
        }
        unreachable!("order 0 has no last round")
    }

    /// Walk the lists in the order of preference. A busy cluster is passed by, but not for a worse kind of source:
    /// stealing must not begin because somebody held a lock for a moment.
    fn pick(&self, cpu: CpuId, order: Order) -> Pick<'_> {
        if self.lists.len() > 1
            && let Some(found) = self.pick_from_a_part(cpu, order)
        {
            return found;
        }
        // All at once, so that what moves from one part to another is not missed.
        let mut lists: Vec<_> = (0..self.lists.len()).map(|part| self.lock_lists(part)).collect();
        let mut busy = Busy::default();
        let found = self.pick_from(&mut lists, cpu, order, &mut busy);
        lists[0].passed_by += busy.met;
        let found = found.unwrap_or_else(|| busy.first.map_or(Pick::Nothing, Pick::Busy));
        if order == Order::ZERO && matches!(found, Pick::Nothing) {
            let waiting = lists.iter().any(|part| part.next_to_discard().is_some());
            assert!(waiting, "slots are reserved but on no list");
        }
        found
    }

    /// As `pick_from`, of one part at a time, and nothing that another CPU is at.
    fn pick_from_a_part(&self, cpu: CpuId, order: Order) -> Option<Pick<'_>> {
        let parts = self.lists.len();
        let own = cpu.index() / CPUS_OF_A_LIST_LOCK as usize % parts;
        let no_matter = &mut Busy::default();
        let found = self.pick_used_before(&[self.lock_lists(own)], cpu, order, no_matter);
        // By turns, so that no part has used up its virgin clusters long before the others.
        let turn = || self.next_part.0.fetch_add(1, Ordering::Relaxed) as usize;
        found.or_else(|| {
            let first = turn();
            (first..first + parts).find_map(|part| {
                self.pick_untouched(&mut [self.lock_lists(part % parts)], cpu, order, no_matter)
            })
        })
    }

    fn pick_from(
        &self,
        lists: &mut [ListsGuard<'_>],
        cpu: CpuId,
        order: Order,
        busy: &mut Busy,
    ) -> Option<Pick<'_>> {
        if let Some(found) = self.pick_untouched(lists, cpu, order, busy) {
            return Some(found);
        }
        if self.free_cluster_only && order != Order::ZERO {
            return None;
        }
        let any = |_, state: &ClusterState| state.has_block(order);
        let from = [ListId::nonfull(order), ListId::FREE, ListId::frag(order)];
        if let Some(found) = self.first_free_to_lock(lists, from, any, busy) {
            return Some(found);
        }
        let may_steal = order == Order::ZERO && busy.first.is_none();
        may_steal.then(|| self.first_free_to_lock(lists, steal_order(), any, busy)).flatten()
    }

    /// A cluster where no other CPU allocates.
    fn pick_untouched(
        &self,
        lists: &mut [ListsGuard<'_>],
        cpu: CpuId,
        order: Order,
        busy: &mut Busy,
    ) -> Option<Pick<'_>> {
        let found = self.pick_used_before(lists, cpu, order, busy);
        found.or_else(|| lists.iter_mut().find_map(|lists| self.open_virgin(lists, order)))
    }

    fn pick_used_before(
        &self,
        lists: &[ListsGuard<'_>],
        cpu: CpuId,
        order: Order,
        busy: &mut Busy,
    ) -> Option<Pick<'_>> {
        if self.free_cluster_only && order != Order::ZERO {
            let any = |_, state: &ClusterState| state.has_block(order);
            return self.first_free_to_lock(lists, [ListId::FREE], any, busy);
        }
        let alone = |index, state: &ClusterState| {
            state.has_block(order) && !self.is_current_of_another(cpu, order, index, state)
        };
        self.first_free_to_lock(lists, [ListId::nonfull(order), ListId::FREE], alone, busy)
    }

    /// The first cluster on these lists that nobody holds and that serves; remembers the first that was held.
    fn first_free_to_lock(
        &self,
        lists: &[ListsGuard<'_>],
        from: impl IntoIterator<Item = ListId>,
        serves: impl Fn(ClusterIndex, &ClusterState) -> bool,
        busy: &mut Busy,
    ) -> Option<Pick<'_>> {
        let on_all = |list| lists.iter().flat_map(move |lists| lists.clusters_on(list));
        for index in from.into_iter().flat_map(on_all) {
            match self.cluster_at(index).try_lock() {
                // The lists are exact but for one thing: the first and last cluster are free without being whole.
                Some(state) if serves(index, &state) => return Some(Pick::Found(index, state)),
                Some(_) => {}
                None => {
                    busy.first.get_or_insert(index);
                    busy.met += 1;
                }
            }
        }
        None
    }

    /// A cluster that was never used. The first and the last may be too short for the order; then the next one.
    fn open_virgin(&self, lists: &mut Lists, order: Order) -> Option<Pick<'_>> {
        while let Some(index) = lists.take_virgin() {
            let cluster = self.clusters.get_or_make(index.index(), |i| {
                let index = ClusterIndex(i as u32);
                Cluster::new(index, self.slots)
            });
            let state = cluster.try_lock().expect("nobody else knows of a cluster before it is on a list");
            if state.has_block(order) {
                return Some(Pick::Found(index, state));
            }
        }
        None
    }

    /// Take blocks from a locked cluster, from slot `from` on; put the cluster on its list, and leave the hint.
    fn take(&self, want: Want, from: SlotIndex, state: &mut ClusterState, out: &mut Vec<SlotIndex>) -> usize {
        let Want { cpu, order, n } = want;
        let mut blocks = state.find(order, from.offset_in_cluster(), n);
        let upwards_only = self.free_cluster_only && order != Order::ZERO;
        if upwards_only {
            blocks.retain(|block| usize::from(*block) >= from.offset_in_cluster());
        }
        if order != Order::ZERO {
            // Found, but perhaps promised to allocations of order 0 that are still looking.
            let pages = u64::from(order.pages());
            blocks.truncate((self.reserve(want.cpu, blocks.len() as u64 * pages, pages) / pages) as usize);
        }
        let Some(last) = blocks.last() else {
            return 0;
        };
        let index = from.cluster();
        let first_slot = index.0 * CLUSTER_SLOTS;
        // Cannot overflow: the last cluster of the largest device lacks a slot.
        let next = first_slot + u32::from(*last) + order.pages();
        if state.take(order, &blocks) {
            self.tables.fetch_add(1, Ordering::Relaxed);
        }
        self.settle(index, state, true);
        out.extend(blocks.iter().map(|offset| SlotIndex(first_slot + u32::from(*offset))));
        if state.order() == order {
            let goes_on = state.serves(order, false) && !(upwards_only && self.is_end(index, next));
            let hint = goes_on.then(|| self.hint_in(index, next));
            self.percpu.set_hint(cpu, order, hint);
            state.taken_by = cpu;
        } else {
            self.stolen.fetch_add(blocks.len() as u64, Ordering::Relaxed);
        }
        blocks.len()
    }

    /// Where to go on in a cluster after `next - 1`: at its first slot again, if that was its last one.
    fn hint_in(&self, index: ClusterIndex, next: u32) -> SlotIndex {
        // Slot 0 would mean "no hint"; a search from slot 1 sees the same.
        SlotIndex(if self.is_end(index, next) { (index.0 * CLUSTER_SLOTS).max(1) } else { next })
    }

    fn is_end(&self, index: ClusterIndex, next: u32) -> bool {
        next >= self.slots || next - index.0 * CLUSTER_SLOTS >= CLUSTER_SLOTS
    }

    fn freed_by(&self, cpu: CpuId) -> &AtomicU64 {
        &self.freed[cpu.index() % self.freed.len()].0
    }

    /// These slots are free.
    fn count_free(&self, cpu: CpuId, slots: u64) {
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
                let all = self.reserve_from(&place.0, u64::from(self.slots), 1);
                self.free.0.fetch_add(all, Ordering::AcqRel);
            }
        }
    }

    /// Take up to `wanted` free slots off the count, in multiples of `unit`: what this CPU has freed, what is in the common
    /// counter, and before there are too few, what the others have freed. Returns how many.
    fn reserve(&self, cpu: CpuId, wanted: u64, unit: u64) -> u64 {
        let own = if unit > 1 { 0 } else { self.reserve_from(self.freed_by(cpu), wanted, 1) };
        let mut got = own + self.reserve_from(&self.free.0, wanted - own, unit);
        if got < wanted {
            self.collect_freed();
            got += self.reserve_from(&self.free.0, wanted - got, unit);
        }
        got
    }

    /// By subtraction and not in a compare-exchange loop, which among many CPUs does little but try again: who takes more
    /// than there is gives it back at once, and meanwhile nobody else finds any, for there is none.
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

    /// Put a locked cluster on the list where it belongs now: flag, list and table in one step.
    fn settle(&self, index: ClusterIndex, state: &mut ClusterState, allocated: bool) {
        if state.reset_if_empty() {
            self.tables.fetch_sub(1, Ordering::Relaxed);
        }
        let to = match state.proper_list(allocated) {
            ListId::FREE if self.discard.is_some() => ListId::DISCARD,
            other => other,
        };
        if to != state.list {
            self.lock_lists(self.part_of(index)).move_to(index, state.list, to);
            let nonfull = ListId::nonfull(Order::ZERO);
            if state.list == nonfull || to == nonfull {
                self.scan.mark(index, to == nonfull);
            }
            state.list = to;
        }
    }

    // ---- discard ----------------------------------------------------------------------------------------------

    /// Discard up to `n` of the clusters that wait for it. True if there may be more. Nothing is done while another thread
    /// is at it, nor when the device has left.
    pub fn discard_waiting(&self, n: usize) -> bool {
        let Some(discard) = &self.discard else { return false };
        let Ok(alone) = discard.try_lock() else { return false };
        !self.retired.load(Ordering::Acquire) && (0..n).all(|_| self.discard_next(&alone))
    }

    /// Nothing is left but clusters to be discarded: make one free, or wait until somebody has.
    fn discard_now(&self) {
        let discard = self.discard.as_ref().expect("a cluster on the discard list");
        self.discard_next(&lock(discard));
    }

    /// False if none waits. Who holds the function is the only one to take clusters off the list.
    fn discard_next(&self, discard: &DiscardCluster) -> bool {
        let waiting = |part| self.lock_lists(part).next_to_discard();
        let Some(index) = (0..self.lists.len()).find_map(waiting) else { return false };
        discard(index);
        let mut state = self.cluster_at(index).lock();
        let mut lists = self.lock_lists(self.part_of(index));
        lists.move_to(index, ListId::DISCARD, ListId::FREE);
        lists.discarded += 1;
        state.list = ListId::FREE;
        true
    }

    fn record_owner(&self, folios: &[SlotIndex], order: Order, group: GroupId) {
        let pages = order.pages();
        for run in folios.chunk_by(|a, b| b.0 == a.0 + pages && a.cluster() == b.cluster()) {
            self.groups.record(run[0], run.len() as u32 * pages, group);
        }
    }

    // ---- references -------------------------------------------------------------------------------------------

    /// One more reference (fork). Panics if the slot has none: its page would be lost.
    pub fn dup(&self, slot: SlotIndex) {
        self.cluster(slot).lock().dup(slot);
    }

    /// One more reference to each, a lock for each run of slots in one cluster.
    pub fn dup_many(&self, slots: &[SlotIndex]) {
        self.each_cluster(slots, usize::MAX, |state, run| {
            run.iter().for_each(|slot| state.dup(*slot));
        });
    }

    /// One reference less to each. Slots without reference and frame are dying now and appended to `freed`: discard
    /// their copies in the backing, then `release` them.
    pub fn put(&self, slots: &[SlotIndex], freed: &mut Vec<SlotIndex>) {
        self.each_cluster(slots, usize::MAX, |state, run| {
            freed.extend(run.iter().filter(|slot| state.put(**slot)));
        });
    }

    /// Make dying slots free. Returns how many belonged to each group, for uncharging; those of no group are left out.
    ///
    /// The CPU has no say in where slots go, only in where they are counted: a CPU that kept what it freed would strand it.
    pub fn release(&self, cpu: CpuId, freed: &[SlotIndex]) -> Vec<(GroupId, u32)> {
        let owners = self.clear_owners(freed);
        let in_one_cluster = |a: &SlotIndex, b: &SlotIndex| a.cluster() == b.cluster();
        for run in freed.chunk_by(in_one_cluster) {
            let mut state = self.cluster(run[0]).lock();
            run.iter().for_each(|slot| state.release(*slot));
            // To nonfull when its CPU has left it: until then nobody else should come, and it would only go to and fro.
            let in_use = self.is_current_of(state.taken_by, state.order(), run[0].cluster());
            self.settle(run[0].cluster(), &mut state, in_use);
            drop(state);
            self.count_free(cpu, run.len() as u64);
        }
        owners
    }

    /// Before the slots can be anybody else's: take the ids out of the map, by runs of one owner.
    fn clear_owners(&self, freed: &[SlotIndex]) -> Vec<(GroupId, u32)> {
        let mut owners: Vec<(GroupId, u32)> = Vec::new();
        let follows = |a: &SlotIndex, b: &SlotIndex| {
            b.0 == a.0 + 1 && a.cluster() == b.cluster() && self.group_of(*a) == self.group_of(*b)
        };
        for run in freed.chunk_by(follows) {
            let n = run.len() as u32;
            let owner = self.groups.clear(run[0], n);
            match owners.iter_mut().find(|(group, _)| *group == owner) {
                Some((_, total)) => *total += n,
                None if owner.0 == 0 => {}
                None => owners.push((owner, n)),
            }
        }
        owners
    }

    // ---- the swap cache ---------------------------------------------------------------------------------------

    /// Each slot's page is in its frame from now on. No slot of the batch may have a frame.
    pub fn cache_add(&self, batch: &[(SlotIndex, FrameId)]) {
        self.each_cluster(batch, self.cache_batch, |state, run| {
            run.iter().for_each(|(slot, frame)| state.cache_add(*slot, *frame));
        });
    }

    /// As `cache_add` for one slot, unless it has a frame: then that frame, pinned.
    pub fn cache_add_or_get(&self, slot: SlotIndex, frame: FrameId) -> Option<FrameId> {
        let mut state = self.cluster(slot).lock();
        let there = state.cache_get(slot);
        if there.is_none() {
            state.cache_add(slot, frame);
        }
        there
    }

    /// The frame that holds the slot's page, pinned until `cache_unpin`: it will not be given back before that. A frame
    /// that has left the cache and is still pinned by others is found too; its bytes are the slot's.
    pub fn cache_get(&self, slot: SlotIndex) -> Option<FrameId> {
        self.cluster(slot).lock().cache_get(slot)
    }

    /// As `cache_get` for each slot, a lock for each run of slots in one cluster: `hit` gets the place and the frame of each
    /// that is in the cache.
    pub fn cache_get_many(&self, slots: &[SlotIndex], mut hit: impl FnMut(usize, FrameId)) {
        let mut at = 0;
        self.each_cluster(slots, self.cache_batch, |state, run| {
            for slot in run {
                if let Some(frame) = state.cache_get(*slot) {
                    hit(at, frame);
                }
                at += 1;
            }
        });
    }

    /// As `cache_unpin` for each slot: `released` gets the place of each and what has come of it.
    pub fn cache_unpin_many(&self, slots: &[SlotIndex], mut released: impl FnMut(usize, CacheRelease)) {
        let mut at = 0;
        self.each_cluster(slots, self.cache_batch, |state, run| {
            for slot in run {
                released(at, state.cache_unpin(*slot));
                at += 1;
            }
        });
    }

    /// The end of a pin. Says if that has freed the frame, and if the slot is dying now (see `put`).
    pub fn cache_unpin(&self, slot: SlotIndex) -> CacheRelease {
        self.cluster(slot).lock().cache_unpin(slot)
    }

    /// The batch leaves the cache (it is written), each slot keeping the shadow if it still has a reference. Frames
    /// that nobody has pinned are appended to `frames`, slots that are dying now to `freed`.
    pub fn cache_delete(
        &self,
        batch: &[SlotIndex],
        shadow: Option<u32>,
        frames: &mut Vec<FrameId>,
        freed: &mut Vec<SlotIndex>,
    ) {
        self.each_cluster(batch, self.cache_batch, |state, run| {
            for slot in run {
                let (frame, dying) = state.cache_delete(*slot, shadow);
                frames.extend(frame);
                freed.extend(dying.then_some(*slot));
            }
        });
    }

    /// The pages of these slots leave memory again, and the slots hold their bytes already: new shadows.
    pub fn set_shadow(&self, batch: &[SlotIndex], shadow: u32) {
        self.each_cluster(batch, self.cache_batch, |state, run| {
            run.iter().for_each(|slot| state.set_shadow(*slot, shadow));
        });
    }

    // ---- looking ----------------------------------------------------------------------------------------------

    /// References to the slot; 0 if it is free, dying, or only in the swap cache.
    pub fn count(&self, slot: SlotIndex) -> u32 {
        self.word(slot).count()
    }

    pub fn shadow(&self, slot: SlotIndex) -> Option<u32> {
        match self.word(slot).payload() {
            Payload::Shadow(shadow) => Some(shadow),
            _ => None,
        }
    }

    /// As `shadow` for each slot in use: `found` gets the place and the shadow of each that has one.
    pub fn shadows(&self, slots: &[SlotIndex], mut found: impl FnMut(usize, u32)) {
        let mut at = 0;
        self.each_cluster(slots, self.cache_batch, |state, run| {
            for slot in run {
                if let Payload::Shadow(shadow) = state.word(*slot).payload() {
                    found(at, shadow);
                }
                at += 1;
            }
        });
    }

    pub fn group_of(&self, slot: SlotIndex) -> GroupId {
        self.groups.lookup(slot)
    }

    /// Slots that can be allocated now. Exact at a quiet point; else some that are on their way from one counter to another
    /// may be counted twice, or not.
    pub fn free_slots(&self) -> u64 {
        let have = |count: &AtomicU64| (count.load(Ordering::Acquire) as i64).max(0) as u64;
        self.freed.iter().map(|place| have(&place.0)).sum::<u64>() + have(&self.free.0)
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

    /// The device leaves: no slot is handed out any more, if none is in use now and nothing waits to be discarded. Who takes
    /// all slots off the counters knows both: nobody has one, and nobody will find one.
    pub fn retire(&self, cpu: CpuId) -> bool {
        // What is being discarded now ends first, and nothing is afterwards.
        let _alone = self.discard.as_ref().map(lock);
        if (0..self.lists.len()).any(|part| self.lists_uncounted(part).next_to_discard().is_some()) {
            return false;
        }
        let all = self.all_slots();
        let retired = self.reserve(cpu, all, all) == all;
        self.retired.fetch_or(retired, Ordering::AcqRel);
        retired
    }

    /// Memory that the device takes now.
    pub fn table_bytes(&self) -> u64 {
        let tables = self.tables.load(Ordering::Relaxed) * TABLE_BYTES;
        let lists: u64 = (0..self.lists.len()).map(|part| self.lists_uncounted(part).bytes()).sum();
        let parts = size_of_val::<[Apart<Mutex<Lists>>]>(&self.lists) as u64;
        let fixed = size_of::<SwapDevice>() - size_of::<CgroupMap>();
        fixed as u64
            + tables
            + lists
            + parts
            + self.clusters.bytes()
            + self.percpu.bytes()
            + size_of_val::<[Apart<AtomicU64>]>(&self.freed) as u64
            + self.scan.bytes()
            + self.groups.bytes()
    }

    pub fn stats(&self) -> SlotStats {
        let scan = self.scan.counters();
        let groups = self.groups.lock_counts();
        let mut stats = SlotStats {
            cluster_passed_by: scan.passed_by,
            base_steps: scan.steps,
            cgroup_locks: groups.taken,
            cgroup_contended: groups.contended,
            cgroup_retries: self.groups.retries(),
            stolen_slots: self.stolen.load(Ordering::Relaxed),
            failed: std::array::from_fn(|order| self.failed[order].load(Ordering::Relaxed)),
            ..SlotStats::default()
        };
        for part in 0..self.lists.len() {
            let lists = self.lists_uncounted(part);
            stats.list_locks += lists.locks;
            stats.list_contended += lists.contended;
            stats.cluster_passed_by += lists.passed_by;
            stats.discarded_clusters += lists.discarded;
        }
        for index in self.ever_used() {
            let counters = self.cluster_at(index).lock_uncounted().counters;
            stats.cluster_locks += counters.locks;
            stats.cluster_contended += counters.contended;
            stats.scan_steps += counters.scan_steps;
        }
        stats
    }

    /// How many slots each group has, by the cgroup map: what its charge must be. Walks everything; for quiet points.
    pub fn slots_by_group(&self) -> HashMap<GroupId, u64> {
        let mut totals = HashMap::new();
        let slots = |index: ClusterIndex| {
            let first = u64::from(index.0) * u64::from(CLUSTER_SLOTS);
            first.max(1) as u32..(first + u64::from(CLUSTER_SLOTS)).min(u64::from(self.slots)) as u32
        };
        let owners = self.ever_used().into_iter().flat_map(slots).map(|slot| self.group_of(SlotIndex(slot)));
        owners.filter(|group| group.0 != 0).for_each(|group| *totals.entry(group).or_default() += 1);
        totals
    }

    /// Walk everything and panic with what is broken. For quiet points: no other thread may be inside.
    pub fn check(&self) {
        let homes = self.list_of_each();
        for index in self.ever_used() {
            let list = homes.get(&index).unwrap_or_else(|| panic!("cluster {} is on no list", index.0));
            self.check_list(index, *list);
        }
        self.check_clusters();
    }

    /// For each cluster that was ever used, the list that it is found on.
    fn list_of_each(&self) -> HashMap<ClusterIndex, ListId> {
        let mut homes = HashMap::new();
        for part in 0..self.lists.len() {
            let lists = self.lists_uncounted(part);
            for list in ListId::all() {
                for index in lists.clusters_on(list) {
                    assert!(self.part_of(index) == part, "cluster {} is on {list} of part {part}", index.0);
                    let other = homes.insert(index, list);
                    assert!(other.is_none(), "cluster {} is on {list} and on another list", index.0);
                }
            }
        }
        homes
    }

    /// Is the cluster where its flag and its slots say that it is?
    fn check_list(&self, index: ClusterIndex, list: ListId) {
        let state = self.cluster_at(index).lock_uncounted();
        assert!(state.list == list, "cluster {} is on {list}, its flag says {}", index.0, state.list);
        let order = state.order();
        let useful = list == ListId::nonfull(order) || list == ListId::frag(order);
        assert!(!useful || state.has_block(order), "cluster {} is on {list}, without a block", index.0);
        let nonfull = list == ListId::nonfull(Order::ZERO);
        assert!(self.scan.is_marked(index) == nonfull, "cluster {} is on {list}, a scan sees other", index.0);
        let homes = [state.proper_list(true), state.proper_list(false)];
        let is_to_discard = list == ListId::DISCARD && homes[0] == ListId::FREE && self.discard.is_some();
        assert!(
            is_to_discard || homes.contains(&list),
            "cluster {} is on {list}, it belongs on {}",
            index.0,
            homes[0]
        );
    }

    fn check_clusters(&self) {
        let (mut used, mut tables) = (0, 0);
        let mut frames = HashMap::new();
        for index in self.ever_used() {
            let state = self.cluster_at(index).lock_uncounted();
            state.check(index, |slot, word| check_frame(&mut frames, slot, word));
            used += u64::from(state.used());
            tables += u64::from(state.used() > 0);
            let first = (index.0 * CLUSTER_SLOTS).max(1);
            for slot in (first..first + state.free_slots() + state.used()).map(SlotIndex) {
                let owned = self.group_of(slot).0 != 0;
                assert!(!owned || state.word(slot) != SlotWord::FREE, "free slot {} has an owner", slot.0);
            }
        }
        assert!(used == self.used_slots(), "{used} slots are in use, {} are counted", self.used_slots());
        let counted = self.tables.load(Ordering::Relaxed);
        assert!(tables == counted, "{tables} clusters have a table, {counted} are counted");
    }

    // ---- ways in ----------------------------------------------------------------------------------------------

    /// Lock the cluster of each run of entries that lie in one, at most `limit` entries for a hold.
    fn each_cluster<T: OfSlot>(
        &self,
        entries: &[T],
        limit: usize,
        mut work: impl FnMut(&mut ClusterState, &[T]),
    ) {
        for run in entries.chunk_by(|a, b| a.slot().cluster() == b.slot().cluster()) {
            for part in run.chunks(limit.min(run.len())) {
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
        let (mut lists, waited) = match self.lists[part].0.try_lock() {
            Ok(lists) => (lists, 0),
            Err(_) => (lock(&self.lists[part].0), 1),
        };
        lists.locks += 1;
        lists.contended += waited;
        lists
    }

    /// For looking, which should not count.
    fn lists_uncounted(&self, part: usize) -> ListsGuard<'_> {
        lock(&self.lists[part].0)
    }
}

/// A frame holds the page of one slot only.
fn check_frame(frames: &mut HashMap<FrameId, SlotIndex>, slot: SlotIndex, word: SlotWord) {
    let Some(frame) = word.frame() else { return };
    match frames.entry(frame) {
        Entry::Occupied(other) => {
            panic!("frame {} holds the pages of slots {} and {}", frame.0, other.get().0, slot.0)
        }
        Entry::Vacant(entry) => _ = entry.insert(slot),
    }
}
