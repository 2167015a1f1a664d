//! References to slots, and the end of a slot: its last reference, its release, its cluster's discard.

use super::lists::ListId;
use super::{DiscardCluster, Slots};
use crate::sync::{Ordering, lock};
use crate::units::{CpuId, FrameId, GroupId, SlotIndex};

/// How many slots belonged to each group.
#[derive(Default)]
struct Owners(Vec<(GroupId, u32)>);

impl Owners {
    fn add(&mut self, owner: GroupId, n: u32) {
        match self.0.iter_mut().find(|(group, _)| *group == owner) {
            Some((_, total)) => *total += n,
            None if owner.0 == 0 => {}
            None => self.0.push((owner, n)),
        }
    }
}

impl Slots {
    /// One more reference (fork). Panics if the slot has none: its page would be lost.
    pub fn dup(&self, slot: SlotIndex) {
        let _old = self.old_locks.slots();
        self.cluster(slot).lock().dup(slot);
    }

    /// One more reference to each, a lock for each run of slots in one cluster.
    pub fn dup_many(&self, slots: &[SlotIndex]) {
        self.each_cluster(
            slots,
            usize::MAX,
            |_| self.old_locks.slots(),
            |state, run| {
                run.iter().for_each(|slot| state.dup(*slot));
            },
        );
    }

    /// One reference less to each. Slots without reference and frame are dying now and appended to `freed`:
    /// discard their copies in the backing, then `release` them. Returns the frames of pages that were read
    /// ahead and have gone with their slots: they are the caller's, to be given up before that.
    pub fn put(&self, slots: &[SlotIndex], freed: &mut Vec<SlotIndex>) -> Vec<FrameId> {
        let mut frames = Vec::new();
        self.each_cluster(
            slots,
            usize::MAX,
            |_| self.old_locks.slots(),
            |state, run| {
                for slot in run {
                    let (frame, dying) = state.put(*slot);
                    frames.extend(frame);
                    freed.extend(dying.then_some(*slot));
                }
            },
        );
        frames
    }

    /// As `put` of one slot: the frame that has gone with it, and whether it is dying now.
    pub(crate) fn put_one(&self, slot: SlotIndex) -> (Option<FrameId>, bool) {
        let _old = self.old_locks.slots();
        self.cluster(slot).lock().put(slot)
    }

    /// As `release` of one slot: its owner, if it has one.
    pub(crate) fn release_one(&self, cpu: CpuId, slot: SlotIndex) -> Option<GroupId> {
        let in_map = self.map.as_ref().map(|map| map.clear(slot, 1));
        let mut in_table = None;
        self.release_of_cluster(cpu, &[slot], |owner| in_table = Some(owner));
        in_map.or(in_table).filter(|owner| owner.0 != 0)
    }

    /// Make dying slots free. Returns how many belonged to each group, for uncharging; those of no group are
    /// left out.
    ///
    /// The CPU only selects the counter: the slots become free for all CPUs. A CPU that kept what it freed
    /// would strand it.
    pub fn release(&self, cpu: CpuId, freed: &[SlotIndex]) -> Vec<(GroupId, u32)> {
        let mut owners = Owners::default();
        self.clear_in_map(freed, &mut owners);
        let in_one_cluster = |a: &SlotIndex, b: &SlotIndex| a.cluster() == b.cluster();
        for run in freed.chunk_by(in_one_cluster) {
            self.release_of_cluster(cpu, run, |owner| owners.add(owner, 1));
        }
        owners.0
    }

    /// Releases slots of one cluster, and tells the owner of each that is in its table.
    fn release_of_cluster(&self, cpu: CpuId, run: &[SlotIndex], owned: impl FnMut(GroupId)) {
        let old = self.old_locks.slots_given_back(cpu, run.len() as u32);
        let mut state = self.cluster(run[0]).lock();
        run.iter().map(|slot| state.release(*slot)).for_each(owned);
        // The cluster goes to nonfull only when its CPU has left it. Until then no other CPU should come
        // here, and the cluster would change lists at each batch.
        let in_use = self.is_current_of(state.taken_by, state.order(), run[0].cluster());
        self.move_to_proper_list(run[0].cluster(), &mut state, in_use);
        drop(state);
        drop(old);
        self.free.add(cpu, run.len() as u64);
    }

    /// Take the ids out of the map, if there is one, by runs of one owner. Before the release, after which
    /// the slots may be allocated again.
    fn clear_in_map(&self, freed: &[SlotIndex], owners: &mut Owners) {
        let Some(map) = &self.map else { return };
        let follows = |a: &SlotIndex, b: &SlotIndex| {
            b.0 == a.0 + 1 && a.cluster() == b.cluster() && map.lookup(*a) == map.lookup(*b)
        };
        for run in freed.chunk_by(follows) {
            let n = run.len() as u32;
            owners.add(map.clear(run[0], n), n);
        }
    }

    // ---- discard ------------------------------------------------------------------------------------------

    /// Discard up to `n` of the clusters that wait for it. True if there may be more. Does nothing while
    /// another thread discards, nor after `retire`.
    pub fn discard_waiting(&self, n: usize) -> bool {
        let Some(discard) = &self.discard else { return false };
        let Ok(alone) = discard.try_lock() else { return false };
        !self.retired.load(Ordering::Acquire) && (0..n).all(|_| self.discard_next(&alone))
    }

    /// Discard one cluster, or wait for the thread that does: no other slot is left.
    pub(super) fn discard_now(&self) {
        let discard = self.discard.as_ref().expect("a cluster on the discard list");
        self.discard_next(&lock(discard));
    }

    /// False if none waits. Only the holder of the function takes clusters off the list.
    fn discard_next(&self, discard: &DiscardCluster) -> bool {
        let waiting = |part| self.lock_lists(part).next_to_discard();
        let Some(index) = (0..self.lists.len()).find_map(waiting) else { return false };
        discard(index);
        let mut state = self.cluster_at(index).lock();
        let mut lists = self.lock_lists(self.part_of(index));
        lists.move_to(index, ListId::DISCARD, ListId::FREE);
        lists.discarded += 1;
        self.empty.0.fetch_add(1, Ordering::AcqRel);
        state.list = ListId::FREE;
        true
    }

    /// Stop handing out slots for good, if none is in use now and no cluster waits to be discarded. To take
    /// all slots off the counters shows both that none is in use and that no allocation will find one.
    pub fn retire(&self, cpu: CpuId) -> bool {
        // Wait for a discard that is under way; none begins while this is held.
        let _alone = self.discard.as_ref().map(lock);
        if (0..self.lists.len()).any(|part| self.lists_uncounted(part).next_to_discard().is_some()) {
            return false;
        }
        let all = self.all_slots();
        let retired = self.free.reserve(cpu, all, all) == all;
        self.retired.fetch_or(retired, Ordering::AcqRel);
        retired
    }
}
