//! The checker of a device's slots: walks clusters, lists, bitmaps and ids, and panics at the first thing
//! that is broken. To be called at quiet points, when no other thread is inside.

use super::Slots;
use super::lists::ListId;
use super::slot_word::SlotWord;
use crate::sync::Ordering;
use crate::units::{CLUSTER_SLOTS, ClusterIndex, FrameId, GroupId, Order, SlotIndex};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

impl Slots {
    /// How many slots each group has, by their owners: what its charge must be. For quiet points.
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

    /// See the module's header.
    pub fn check(&self) {
        let homes = self.list_of_each();
        for index in self.ever_used() {
            let list = homes.get(&index).unwrap_or_else(|| panic!("cluster {} is on no list", index.0));
            self.check_list(index, *list);
        }
        let used = homes.values().filter(|list| **list != ListId::FREE).count();
        let empty = self.empty.0.load(Ordering::Acquire) as usize;
        assert!(empty + used == self.clusters.len(), "{empty} clusters are counted as empty, {used} as not");
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
        let is_seen = self.scan.as_ref().is_none_or(|scan| scan.is_marked(index) == nonfull);
        assert!(is_seen, "cluster {} is on {list}, a scan sees other", index.0);
        let (marks, proper) = state.marks();
        assert!(marks == proper, "cluster {} has the marks {marks:?}, not {proper:?}", index.0);
        assert!(self.room.marks_of(index) == marks, "cluster {} is marked otherwise: {marks:?}", index.0);
        assert!(self.room.may_have(marks), "no cluster may have {marks:?}");
        let homes = [state.proper_list(true), state.proper_list(false)];
        let is_to_discard = list == ListId::DISCARD && homes[0] == ListId::FREE && self.discard.is_some();
        assert!(
            is_to_discard || homes.contains(&list),
            "cluster {} is on {list}, it belongs on {}",
            index.0,
            homes[0]
        );
    }

    /// Pages of the swap cache that were read ahead. For quiet points.
    pub fn read_ahead_pages(&self) -> u64 {
        let mut pages = 0;
        for index in self.ever_used() {
            let state = self.cluster_at(index).lock_uncounted();
            state
                .check(index, |_, word| pages += u64::from(word.frame().is_some_and(FrameId::is_read_ahead)));
        }
        pages
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
                let owned = self.owner_in(&state, slot).0 != 0;
                assert!(!owned || state.word(slot) != SlotWord::FREE, "free slot {} has an owner", slot.0);
            }
        }
        assert!(used == self.used_slots(), "{used} slots are in use, {} are counted", self.used_slots());
        let counted = self.tables.load(Ordering::Relaxed);
        assert!(tables == counted, "{tables} clusters have a table, {counted} are counted");
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
