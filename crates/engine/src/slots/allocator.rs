//! The slots of a swap device: which of them are free, how many references the others have, and which are in
//! the swap cache.
//!
//! ```text
//!   alloc(cpu, order, n)
//!     │ order 0: reserve n of the free slots, so that what is counted can be had
//!     ▼
//!   1 this CPU's current cluster of that order, from where it left off      one cluster lock
//!   2 order 0 only: of 3, what is near this CPU's scan base (scan.rs)        no lock, clusters only tried;
//!                                                                           none where another CPU allocates
//!     then, on a device that packs, a hole in a cluster of folios (room.rs)  no lock, clusters only tried
//!   3 nonfull[order]   a slot was freed there since a CPU allocated there,
//!                      and no other CPU allocates there now
//!   4 free             empty clusters, those used before first              the list lock for 3 to 7,
//!   5 virgin           never used                                           clusters only tried there
//!   6 nonfull[order], free, frag[order]: other CPUs' current clusters too
//!   7 steal from a cluster of another order: a folio the smallest block that is large enough, a single page
//!     a hole (room.rs), or else from spent[k], frag[k], nonfull[k], k = 1, 2, …
//!   8 a cluster that was busy in 3 to 7: wait for its lock, search again
//!   9 order 0 only: discard a cluster that waits for it, or wait for the thread that does;          no lock
//!     search again
//! ```
//!
//! By default there is no scan base, and 2 finds nothing: as in Linux 6.14 and later the lists alone say
//! where room is. `scan-base=per-cpu-trunk` is the form before that. With `shared` the CPUs have one base; so
//! they always have on a rotating device, and one current cluster besides.
//!
//! After use at random, single pages of folios are free everywhere, and to open cluster after cluster beside
//! them costs 10 bytes of table a slot and 8 in a pool. So where a row of slots is no row on the medium, in a
//! pool ([`Slots::packing`]), single pages take such holes before a cluster of their own. On a disk they take
//! them last: what leaves together lies together there.
//!
//! With more CPUs than [`CPUS_OF_A_LIST_LOCK`] the lists are in parts with a lock each (lists.rs). Then 3 and
//! 4 are tried in the CPU's own part alone, after that 3 to 5 in each part by itself, and at last 3 to 7 with
//! all parts locked.
//!
//! A cluster takes the order of the first allocation in it and keeps it until it is empty, so folios of one
//! size do not break up the room of another while there is other room. Every list that an order is served
//! from is exact (lists.rs), and so are the marks by which other orders find what is left (room.rs): an
//! allocation of order k > 0 fails only when no cluster at all has an aligned block (below 64 KiB: none of
//! its own order, and none of 64 KiB in another).
//!
//! The end of a slot is in two steps, so that nobody gets a slot whose old bytes are still to be discarded:
//! [`Slots::put`] reports slots that lost their last reference (*dying*), the caller discards their
//! copies in the backing, and [`Slots::release`] makes them free.
//!
//! A device that *discards* ([`Slots::discarding`]) tells its medium of whole clusters, as the kernel's swap
//! devices with `discard=pages` do: a cluster that empties goes to the discard list, and becomes free when it
//! was discarded. Reclaim discards between batches ([`Slots::discard_waiting`]), one cluster at a time and
//! with no lock of the slots held; an allocation discards only when nothing else is left.
//!
//! # Invariants
//!
//! 1. Free + used = all slots but slot 0; at a quiet point the counters (`free`, `freed`) say the same as the
//!    bitmaps.
//! 2. A cluster is on the list that its flag names, always, unless its lock is held; a free cluster, and one
//!    that is to be discarded, has order 0, no table, no ids. Only devices that discard have clusters on the
//!    discard list, and nothing is allocated from those.
//! 3. A block of order k is aligned and lies in one cluster. It is stolen, from a cluster whose order is not
//!    k, only if no cluster of order k has a block and none is empty (with `large-folios=free-cluster-only`
//!    only order 0 steals; on a device that packs, it takes holes before). While a slot is free, an
//!    allocation of order 0 succeeds.
//! 4. A slot has at most one frame, a frame at most one slot; a slot with a frame is never handed out.
//! 5. Count 0 without a frame ⇔ dying or free.
//! 6. Owners, in the tables or the cgroup map: those given to `alloc`, on used and dying slots; 0 on free
//!    ones.
//!
//! A slot that is used while it is free, a reference too many, a second frame: each of these would lose a
//! page or mix it up with another one, so each is a panic at once.
//!
//! # Why order 0 cannot be stranded
//!
//! Order 0 takes its slots off the counter `free` before it looks for them, larger orders after they have
//! found them and before they take them; a release adds them to the counter after their cluster is on its
//! list. So at any instant the bitmaps hold at least what is reserved. A search that finds every list empty
//! and no cluster busy would be a contradiction (a panic); one that met a busy cluster waits for that lock
//! and looks again, and each such round ends with a slot or with another thread having got one. Clusters on
//! the discard list are counted like others: a search that finds all others empty discards one of them, and
//! looks again.
//!
//! # Lock order
//!
//! discard → cluster → lists; the old forms' locks (old_locks.rs) stand around the cluster's; several parts
//! of the lists are locked in their order. Under a list lock, and in a scan, clusters are only tried
//! (`try_lock`), never waited for. No thread holds two cluster locks. A cgroup map is used with neither held.
//!
//! # What it does not do
//!
//! It does not read or write, discards only through the function that it is given, charges no group, chooses
//! no victim, waits for no frame, and knows no address space.
//!
//! # Kernel counterpart
//!
//! `swap_info_struct`, `cluster_alloc_swap_entry`, `folio_alloc_swap` (6.18). Differences: CPUs' hints belong
//! to the device; `spent` lists; clusters are not taken off their list while they are worked on, since
//! walkers skip them as busy anyway, and so flag and list never disagree; counts are 18 bits wide instead of
//! a byte with continuations.

use super::cluster::{Cluster, ClusterGuard, ClusterState};
use super::lists::{ListId, Lists, steal_order};
use super::scan::Offer;
use super::{CPUS_OF_A_LIST_LOCK, ListsGuard, Slots};
use crate::sync::Ordering;
use crate::tuning::AUTO_ORDER_MIN;
use crate::units::{CLUSTER_SLOTS, ClusterIndex, CpuId, GroupId, MAX_ORDER, Order, SlotIndex};

/// Rounds in which a large order waits for busy clusters before it gives up and is split. Order 0 never gives
/// up.
const LARGE_ORDER_ROUNDS: u32 = 16;

/// What one lock hold is to bring.
#[derive(Clone, Copy)]
struct Want {
    cpu: CpuId,
    order: Order,
    /// Folios at most.
    n: usize,
    /// The owner in the table.
    group: GroupId,
}

/// Clusters that a search of the lists could not lock.
#[derive(Default)]
struct Busy {
    first: Option<ClusterIndex>,
    met: u64,
}

/// A search of the lists.
enum Pick<'a> {
    Found(ClusterIndex, ClusterGuard<'a>),
    /// Nothing could be locked, but this one was busy.
    Busy(ClusterIndex),
    Nothing,
}

impl Slots {
    /// Allocate up to `n` folios of `order`, as contiguous as they come. The first slot of each is appended
    /// to `out`; each slot gets one reference and belongs to `group`. Returns how many folios there are.
    ///
    /// Fewer than `n` means, for order 0, that the device is full; for larger orders, that there is no such
    /// block.
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
        let goal = if order == Order::ZERO { self.free.reserve(cpu, n as u64, 1) as usize } else { n };
        while out.len() - start < goal {
            let n = (goal - (out.len() - start)).min((self.slot_batch >> order.0).max(1));
            let group = if self.map.is_some() { GroupId(0) } else { group };
            if self.alloc_step(Want { cpu, order, n, group }, out) == 0 {
                if order != Order::ZERO {
                    break;
                }
                self.discard_now();
            }
        }
        let got = out.len() - start;
        self.failed[order.0 as usize].fetch_add((n - got) as u64, Ordering::Relaxed);
        self.record_in_map(&out[start..], order, group);
        got
    }

    /// One lock hold's worth: at least one folio, unless none can be had. Returns how many.
    fn alloc_step(&self, want: Want, out: &mut Vec<SlotIndex>) -> usize {
        let _old = self.old_locks.slots_had();
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
            && let Some((index, mut state)) = self.find_by_scan(want.cpu).or_else(|| self.find_with_hole())
        {
            return self.take(want, SlotIndex(index.0 * CLUSTER_SLOTS), &mut state, out);
        }
        self.alloc_from_lists(want, out)
    }

    fn find_by_scan(&self, cpu: CpuId) -> Option<(ClusterIndex, ClusterGuard<'_>)> {
        self.scan.as_ref()?.find(cpu, |index| self.try_nonfull(cpu, index))
    }

    /// A cluster of single pages in which something was freed, on offer from the scan base.
    fn try_nonfull(&self, cpu: CpuId, index: ClusterIndex) -> Offer<(ClusterIndex, ClusterGuard<'_>)> {
        let Some(state) = self.cluster_at(index).try_lock() else {
            return Offer::Held;
        };
        let nonfull = state.list == ListId::nonfull(Order::ZERO);
        if !nonfull || self.is_current_of_another(cpu, Order::ZERO, index, &state) {
            return Offer::Declined;
        }
        Offer::Taken((index, state))
    }

    /// On a device that packs: a cluster of folios in which a single page leaves no block the smaller.
    fn find_with_hole(&self) -> Option<(ClusterIndex, ClusterGuard<'_>)> {
        if !self.packs {
            return None;
        }
        self.room.find_hole(|index| {
            let state = self.cluster_at(index).try_lock()?;
            state.has_hole().then_some((index, state))
        })
    }

    /// Does another CPU allocate here now? A slot freed in its current cluster makes the cluster nonfull, and
    /// without this test other CPUs would come there.
    fn is_current_of_another(
        &self,
        cpu: CpuId,
        order: Order,
        index: ClusterIndex,
        state: &ClusterState,
    ) -> bool {
        self.is_current_of(state.taken_by, order, index) && !self.is_current_of(cpu, order, index)
    }

    pub(super) fn is_current_of(&self, cpu: CpuId, order: Order, index: ClusterIndex) -> bool {
        self.percpu.hint(cpu, order).is_some_and(|slot| slot.cluster() == index)
    }

    fn alloc_from_lists(&self, want: Want, out: &mut Vec<SlotIndex>) -> usize {
        for round in 0.. {
            let (index, mut state) = match self.pick(want.cpu, want.order) {
                Pick::Found(index, state) => (index, state),
                Pick::Busy(index) => (index, self.cluster_at(index).lock()),
                Pick::Nothing => return 0,
            };
            if state.serves(want.order, self.may_steal(want.order)) {
                return self.take(want, SlotIndex(index.0 * CLUSTER_SLOTS), &mut state, out);
            }
            if want.order != Order::ZERO && round >= LARGE_ORDER_ROUNDS {
                return 0;
            }
        }
        unreachable!("order 0 has no last round")
    }

    /// With `large-folios=free-cluster-only` large folios have clusters of their own, or none.
    fn may_steal(&self, order: Order) -> bool {
        order == Order::ZERO || !self.free_cluster_only
    }

    /// Search the lists in the order of preference. A busy cluster is skipped; but stealing does not begin
    /// while one was met, since somebody may only have held its lock for a moment.
    fn pick(&self, cpu: CpuId, order: Order) -> Pick<'_> {
        // All room of 64 KiB is marked, that in clusters of its own order too.
        let all_is_marked = order >= AUTO_ORDER_MIN && !self.free_cluster_only;
        if all_is_marked && self.empty.0.load(Ordering::Acquire) == 0 && !self.room.may_serve(order) {
            return Pick::Nothing;
        }
        if self.lists.len() > 1
            && let Some(found) = self.pick_from_a_part(cpu, order)
        {
            return found;
        }
        // All parts locked at once: a slot freed in one part while another is searched is not missed.
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
        if busy.first.is_some() {
            return None;
        }
        if !self.free_cluster_only {
            let marked = self.pick_marked(order, busy);
            if marked.is_some() || order != Order::ZERO || busy.first.is_some() {
                return marked;
            }
        }
        self.first_free_to_lock(lists, steal_order(), any, busy)
    }

    /// What there is for this order in clusters of others.
    fn pick_marked(&self, order: Order, busy: &mut Busy) -> Option<Pick<'_>> {
        self.room.find(order, |index| {
            let Some(state) = self.cluster_at(index).try_lock() else {
                busy.first.get_or_insert(index);
                busy.met += 1;
                return None;
            };
            state.serves(order, true).then_some(Pick::Found(index, state))
        })
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
                // The lists are exact but for one thing: the first and last cluster are free without being
                // whole.
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

    /// A cluster that was never used. The first and the last one may be too short for the order; then the
    /// next one is tried.
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

    /// Take blocks from a locked cluster, from slot `from` on; put the cluster on its list, and leave the
    /// hint.
    fn take(&self, want: Want, from: SlotIndex, state: &mut ClusterState, out: &mut Vec<SlotIndex>) -> usize {
        let Want { cpu, order, n, group } = want;
        let steals_page = order == Order::ZERO && state.used() > 0 && state.order() != order;
        let mut blocks =
            if steals_page && !self.free_cluster_only { state.find_holes(n) } else { Vec::new() };
        if blocks.is_empty() {
            blocks = state.find(order, from.offset_in_cluster(), n);
        }
        let upwards_only = self.free_cluster_only && order != Order::ZERO;
        if upwards_only {
            blocks.retain(|block| usize::from(*block) >= from.offset_in_cluster());
        }
        if order != Order::ZERO {
            // The blocks are free, but allocations of order 0 that are still searching may have reserved
            // them.
            let pages = u64::from(order.pages());
            blocks
                .truncate((self.free.reserve(want.cpu, blocks.len() as u64 * pages, pages) / pages) as usize);
        }
        let Some(last) = blocks.last() else {
            return 0;
        };
        let index = from.cluster();
        let first_slot = index.0 * CLUSTER_SLOTS;
        // Cannot overflow: the last cluster of the largest device lacks a slot.
        let next = first_slot + u32::from(*last) + order.pages();
        if state.take(order, &blocks, group) {
            self.tables.fetch_add(1, Ordering::Relaxed);
        }
        // A page in a hole takes nothing from the folios that its cluster is there for.
        let by_its_order = state.order() == order || state.list == ListId::frag(state.order());
        self.move_to_proper_list(index, state, by_its_order);
        out.extend(blocks.iter().map(|offset| SlotIndex(first_slot + u32::from(*offset))));
        if state.order() == order {
            let goes_on = state.serves(order, false) && !(upwards_only && self.is_end(index, next));
            let hint = goes_on.then(|| self.hint_in(index, next));
            self.percpu.set_hint(cpu, order, hint);
            state.taken_by = cpu;
        } else {
            let pages = u64::from(order.pages());
            self.stolen.fetch_add(blocks.len() as u64 * pages, Ordering::Relaxed);
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

    /// Put a locked cluster on the list where it belongs now; flag, list and table change in one step.
    pub(super) fn move_to_proper_list(&self, index: ClusterIndex, state: &mut ClusterState, allocated: bool) {
        if state.reset_if_empty() {
            self.tables.fetch_sub(1, Ordering::Relaxed);
        }
        let (old, new) = state.renew_marks();
        self.room.mark(index, old, new);
        let to = match state.proper_list(allocated) {
            ListId::FREE if self.discard.is_some() => ListId::DISCARD,
            other => other,
        };
        if to != state.list {
            self.lock_lists(self.part_of(index)).move_to(index, state.list, to);
            if state.list == ListId::FREE {
                self.empty.0.fetch_sub(1, Ordering::AcqRel);
            } else if to == ListId::FREE {
                self.empty.0.fetch_add(1, Ordering::AcqRel);
            }
            let nonfull = ListId::nonfull(Order::ZERO);
            if let Some(scan) = self.scan.as_ref().filter(|_| state.list == nonfull || to == nonfull) {
                scan.mark(index, to == nonfull);
            }
            state.list = to;
        }
    }

    fn record_in_map(&self, folios: &[SlotIndex], order: Order, group: GroupId) {
        let Some(map) = &self.map else { return };
        // As in the kernel, each by itself.
        folios.iter().for_each(|folio| map.record(*folio, order.pages(), group));
    }
}
