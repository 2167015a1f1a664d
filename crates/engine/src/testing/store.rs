//! A swap device made of a map: the stamp that each slot holds, and the reads that are under way.
//!
//! It checks what the contract of a backing forbids its caller (backing.rs): a read of a slot that holds
//! nothing, a write or a discard of a slot that is being read.
//!
//! What it does not do: lock, wait, fail by itself.

use super::stamp::{GARBAGE, stamp_of, stamped};
use crate::backing::{BackingError, ReadDone, ReadRequest};
use crate::units::{ClusterIndex, Page, SlotIndex};
use std::collections::HashMap;

#[derive(Default)]
pub struct Store {
    stamps: HashMap<SlotIndex, u64>,
    /// Slots that are being read, by how many.
    readers: HashMap<SlotIndex, usize>,
}

impl Store {
    /// None: the write has failed, and the slot holds nothing.
    pub fn write(&mut self, slot: SlotIndex, page: Option<&Page>) {
        assert!(!self.readers.contains_key(&slot), "{slot:?} is written while it is being read");
        match page {
            Some(page) => _ = self.stamps.insert(slot, stamp_of(page)),
            None => _ = self.stamps.remove(&slot),
        }
    }

    pub fn begin_read(&mut self, slots: &[SlotIndex]) {
        for slot in slots {
            assert!(self.stamps.contains_key(slot), "{slot:?} is read, and holds nothing");
            *self.readers.entry(*slot).or_default() += 1;
        }
    }

    /// The slots are looked at when the read ends: had one been given away meanwhile, it would show.
    /// `failure` says what becomes of the read of each stamp.
    pub fn end_read(
        &mut self,
        request: ReadRequest,
        mut failure: impl FnMut(u64) -> Option<BackingError>,
    ) -> ReadDone {
        let ReadRequest { token, slots, mut buf, .. } = request;
        let mut results = Vec::with_capacity(slots.len());
        for (slot, page) in slots.iter().zip(buf.iter_mut()) {
            let readers = self.readers.get_mut(slot).expect("a read that was begun");
            *readers -= 1;
            if *readers == 0 {
                self.readers.remove(slot);
            }
            let stamp = self.stamp(*slot).unwrap_or_else(|| panic!("{slot:?} is read, and holds nothing"));
            let failure = failure(stamp);
            *page = stamped(if failure.is_some() { GARBAGE } else { stamp });
            results.push(failure.map_or(Ok(()), Err));
        }
        ReadDone { token, slots, buf, results }
    }

    pub fn discard(&mut self, slots: &[SlotIndex]) {
        for slot in slots {
            assert!(!self.readers.contains_key(slot), "{slot:?} is discarded while it is being read");
            self.stamps.remove(slot);
        }
    }

    /// What the slot holds.
    pub fn stamp(&self, slot: SlotIndex) -> Option<u64> {
        self.stamps.get(&slot).copied()
    }

    /// Slots that hold something or are being read.
    pub fn in_use(&self) -> impl Iterator<Item = SlotIndex> {
        self.stamps.keys().chain(self.readers.keys()).copied()
    }
    pub fn is_empty(&self) -> bool {
        self.in_use().next().is_none()
    }
    pub fn check_discarded(&self, cluster: ClusterIndex) {
        let held = self.in_use().find(|slot| slot.cluster() == cluster);
        assert_eq!(held, None, "{cluster:?} is discarded while a slot of it holds something");
    }
}
