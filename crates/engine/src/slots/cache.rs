//! The swap cache: which slots have their page in a frame, who has it pinned, and what is left afterwards.

use super::cluster::CacheRelease;
use super::lock_counts::Held;
use super::old_locks::{BothHeld, CacheTrunk};
use super::slot_word::Payload;
use super::{OfSlot, Slots};
use crate::units::{FrameId, GroupId, SlotIndex};

impl Slots {
    /// Each slot's page is in its frame from now on. No slot of the batch may have a frame.
    pub fn cache_add(&self, batch: &[(SlotIndex, FrameId)]) {
        self.each_cluster(
            batch,
            self.cache_batch,
            |run| self.trunk_of(run),
            |state, run| {
                run.iter().for_each(|(slot, frame)| state.cache_add(*slot, *frame));
            },
        );
    }

    /// As `cache_add` for one slot, unless it has a frame: then that frame, pinned.
    pub fn cache_add_or_get(&self, slot: SlotIndex, frame: FrameId) -> Option<FrameId> {
        let _old = self.old_locks.cache(slot);
        let mut state = self.cluster(slot).lock();
        let there = state.cache_get(slot);
        if there.is_none() {
            state.cache_add(slot, frame);
        }
        there
    }

    /// A page that is read with its neighbours goes into the kernel's cache, and out of it when it is mapped.
    /// Nobody could find it there, for its fault has claimed it: old forms of the cache's lock are taken.
    pub(crate) fn pass_cache(&self, slot: SlotIndex) {
        if self.old_locks.has_cache_locks() {
            for _ in ["in", "out"] {
                let _old = self.old_locks.cache(slot);
                let _state = self.cluster(slot).lock();
            }
        }
    }

    /// The frame that holds the slot's page, pinned until `cache_unpin`: it will not be given back before
    /// that. A frame that has left the cache and is still pinned by others is found too; its bytes are the
    /// slot's. The frame of a page that was read ahead is not pinned: it leaves the cache, and is the
    /// caller's.
    pub fn cache_get(&self, slot: SlotIndex) -> Option<FrameId> {
        let _old = self.trunk_of_hits(&[slot]);
        self.cluster(slot).lock().cache_get(slot)
    }

    /// Old forms of the cache's lock, held while pages of one cluster enter or leave the cache.
    #[inline(always)]
    fn trunk_of<T: OfSlot>(&self, run: &[T]) -> Option<Held<'_, CacheTrunk>> {
        let held = self.old_locks.cache(run[0].slot())?;
        run[1..].iter().for_each(|entry| held.write(entry.slot()));
        Some(held)
    }

    #[inline(always)]
    fn both_of<T: OfSlot>(&self, run: &[T]) -> BothHeld<'_> {
        self.old_locks.both(run[0].slot())
    }

    /// The same while slots are looked up: only if a page will leave the cache, since it was read ahead.
    #[inline(always)]
    fn trunk_of_hits(&self, slots: &[SlotIndex]) -> Option<Held<'_, CacheTrunk>> {
        if !self.old_locks.has_cache_locks() {
            return None;
        }
        let state = self.cluster(slots[0]).lock();
        let was_read_ahead = |slot: &SlotIndex| state.word(*slot).frame().is_some_and(FrameId::is_read_ahead);
        let leaves = slots.iter().any(was_read_ahead);
        drop(state);
        leaves.then(|| self.old_locks.cache(slots[0])).flatten()
    }

    /// As `cache_get` for each slot, a lock for each run of slots in one cluster: `hit` gets the place and
    /// the frame of each that is in the cache.
    pub fn cache_get_many(&self, slots: &[SlotIndex], mut hit: impl FnMut(usize, FrameId)) {
        let mut at = 0;
        self.each_cluster(
            slots,
            self.cache_batch,
            |run| self.trunk_of_hits(run),
            |state, run| {
                for slot in run {
                    if let Some(frame) = state.cache_get(*slot) {
                        hit(at, frame);
                    }
                    at += 1;
                }
            },
        );
    }

    /// As `cache_unpin` for each slot: `released` gets the place of each and what has come of it.
    pub fn cache_unpin_many(&self, slots: &[SlotIndex], mut released: impl FnMut(usize, CacheRelease)) {
        let mut at = 0;
        self.each_cluster(
            slots,
            self.cache_batch,
            |_| (),
            |state, run| {
                for slot in run {
                    released(at, state.cache_unpin(*slot));
                    at += 1;
                }
            },
        );
    }

    /// The end of a pin. Says if that has freed the frame, and if the slot is dying now (see `put`).
    pub fn cache_unpin(&self, slot: SlotIndex) -> CacheRelease {
        self.cluster(slot).lock().cache_unpin(slot)
    }

    /// The batch leaves the cache (it is written), each slot keeping the shadow if it still has a reference.
    /// Frames that nobody has pinned are appended to `frames`, slots that are dying now to `freed`.
    pub fn cache_delete(
        &self,
        batch: &[SlotIndex],
        shadow: Option<u32>,
        frames: &mut Vec<FrameId>,
        freed: &mut Vec<SlotIndex>,
    ) {
        self.each_cluster(
            batch,
            self.cache_batch,
            |run| self.trunk_of(run),
            |state, run| {
                for slot in run {
                    let (frame, dying) = state.cache_delete(*slot, shadow);
                    frames.extend(frame);
                    freed.extend(dying.then_some(*slot));
                }
            },
        );
    }

    /// Hold a reference to each of the slots whose page is nowhere but in it, to read it ahead: `held` gets
    /// the place, the shadow and the owner of each.
    pub fn hold_to_read_ahead(&self, slots: &[SlotIndex], mut held: impl FnMut(usize, u32, GroupId)) {
        let mut at = 0;
        for run in slots.chunk_by(|a, b| a.cluster() == b.cluster()) {
            if let Some(cluster) = self.clusters.get(run[0].cluster().index()) {
                let _old = self.old_locks.slots();
                let mut state = cluster.lock();
                for (i, slot) in run.iter().enumerate() {
                    if let Some(shadow) = state.hold_to_read_ahead(*slot) {
                        held(at + i, shadow, self.owner_in(&state, *slot));
                    }
                }
            }
            at += run.len();
        }
    }

    /// The end of `hold_to_read_ahead`: each slot with the frame that holds its page, if that could be read.
    /// Returns the frames that the cache has not taken, or given up; slots that are dying now are appended to
    /// `freed`.
    pub fn end_read_ahead(
        &self,
        slots: &[(SlotIndex, Option<FrameId>)],
        freed: &mut Vec<SlotIndex>,
    ) -> Vec<FrameId> {
        let mut gone = Vec::new();
        self.each_cluster(
            slots,
            self.cache_batch,
            |run| self.both_of(run),
            |state, run| {
                for (slot, frame) in run {
                    let (frames, dying) = state.end_read_ahead(*slot, *frame);
                    gone.extend(frames.into_iter().flatten());
                    freed.extend(dying.then_some(*slot));
                }
            },
        );
        gone
    }

    /// A page that was read ahead is dropped, if it is still in the cache in this frame.
    pub fn drop_read_ahead(&self, slot: SlotIndex, frame: FrameId, shadow: u32) -> bool {
        let _old = self.old_locks.cache(slot);
        self.cluster(slot).lock().drop_read_ahead(slot, frame, shadow)
    }

    /// The pages of these slots leave memory again, and the slots hold their bytes already: new shadows.
    pub fn set_shadow(&self, batch: &[SlotIndex], shadow: u32) {
        self.each_cluster(
            batch,
            self.cache_batch,
            |run| self.trunk_of(run),
            |state, run| {
                run.iter().for_each(|slot| state.set_shadow(*slot, shadow));
            },
        );
    }

    /// The frame that holds the slot's page, for the checker.
    pub(crate) fn frame(&self, slot: SlotIndex) -> Option<FrameId> {
        self.word(slot).frame()
    }

    pub fn shadow(&self, slot: SlotIndex) -> Option<u32> {
        match self.word(slot).payload() {
            Payload::Shadow(shadow) => Some(shadow),
            _ => None,
        }
    }

    /// Is the slot's page in the swap cache? If not, its shadow.
    pub(crate) fn look(&self, slot: SlotIndex) -> (bool, Option<u32>) {
        let word = self.cluster(slot).lock().word(slot);
        match word.payload() {
            Payload::Shadow(shadow) => (false, Some(shadow)),
            _ => (word.frame().is_some(), None),
        }
    }

    /// As `shadow` for each slot in use: `found` gets the place and the shadow of each that has one.
    pub fn shadows(&self, slots: &[SlotIndex], mut found: impl FnMut(usize, u32)) {
        let mut at = 0;
        self.each_cluster(
            slots,
            self.cache_batch,
            |_| (),
            |state, run| {
                for slot in run {
                    if let Payload::Shadow(shadow) = state.word(*slot).payload() {
                        found(at, shadow);
                    }
                    at += 1;
                }
            },
        );
    }
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;
    use crate::tuning::Tuning;
    use crate::units::{CpuId, GroupId, Order};

    const AHEAD: [FrameId; 2] = [FrameId(1 << 31), FrameId(1 << 31 | 1)];

    /// A device with one slot, whose page was written and has left the swap cache.
    fn written() -> (Slots, SlotIndex) {
        let slots = Slots::new(512, 1, false, &Tuning::default());
        let mut got = Vec::new();
        slots.alloc(CpuId(0), Order::ZERO, 1, GroupId(0), &mut got);
        slots.cache_add(&[(got[0], FrameId(5))]);
        assert_eq!(hold(&slots, got[0]), None, "it is not written yet");
        slots.cache_delete(&got, Some(9), &mut Vec::new(), &mut Vec::new());
        (slots, got[0])
    }

    fn hold(slots: &Slots, slot: SlotIndex) -> Option<u32> {
        let mut shadow = None;
        slots.hold_to_read_ahead(&[slot], |_, of, _| shadow = Some(of));
        shadow
    }

    /// The frames that are gone, and whether the slot is dying.
    fn end(slots: &Slots, slot: SlotIndex, frame: Option<FrameId>) -> (Vec<FrameId>, bool) {
        let mut freed = Vec::new();
        let gone = slots.end_read_ahead(&[(slot, frame)], &mut freed);
        (gone, freed == [slot])
    }

    #[test]
    fn what_is_read_ahead_is_there_for_the_first_who_looks() {
        let (slots, slot) = written();
        assert_eq!(hold(&slots, slot), Some(9));
        assert_eq!(end(&slots, slot, Some(AHEAD[0])), (vec![], false));
        assert_eq!(hold(&slots, slot), None, "it is there already");
        assert_eq!((slots.cache_get(slot), slots.cache_get(slot)), (Some(AHEAD[0]), None));
        slots.set_shadow(&[slot], 9);
        hold(&slots, slot);
        end(&slots, slot, Some(AHEAD[1]));
        assert!(!slots.drop_read_ahead(slot, AHEAD[0], 9), "another one is there");
        assert!(slots.drop_read_ahead(slot, AHEAD[1], 9));
        assert_eq!((slots.shadow(slot), slots.count(slot)), (Some(9), 1));
        slots.check();
    }

    #[test]
    fn it_goes_with_the_last_reference_whose_ever_that_is() {
        let (slots, slot) = written();
        hold(&slots, slot);
        end(&slots, slot, Some(AHEAD[0]));
        let mut freed = Vec::new();
        assert_eq!((slots.put(&[slot], &mut freed), freed), (vec![AHEAD[0]], vec![slot]));
        let (slots, slot) = written();
        assert_eq!((hold(&slots, slot), hold(&slots, slot)), (Some(9), Some(9)));
        let mut freed = Vec::new();
        assert_eq!((slots.put(&[slot], &mut freed), freed), (vec![], vec![]));
        assert_eq!(end(&slots, slot, Some(AHEAD[0])), (vec![], false), "another read holds the slot");
        assert_eq!(end(&slots, slot, Some(AHEAD[1])), (AHEAD.to_vec(), true));
        slots.check();
        let (slots, slot) = written();
        hold(&slots, slot);
        slots.put(&[slot], &mut Vec::new());
        assert_eq!(end(&slots, slot, None), (vec![], true), "it could not be read");
    }
}
