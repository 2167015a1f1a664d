//! 512 slots under one lock: the slots' words, a bitmap of the free ones, and where the cluster stands.
//!
//! ```text
//!   Cluster (64 bytes)            Table (only while a slot is in use)
//!   ┌───────────────────┐         ┌──────────────────────────────────────────────┐
//!   │ lock              │         │ words: 512 × 64 bits (slot_word.rs)          │
//!   │ table ────────────┼────────▶│ free:  512 bits, 1 = may be handed out       │
//!   │ used, order, list │         │ late shadows: for frames retired while pinned│
//!   │ lock statistics   │         └──────────────────────────────────────────────┘
//!   └───────────────────┘
//! ```
//!
//! The first cluster lacks slot 0 and the last one may be short: `first..end` are the slots that exist. The others
//! are never free in the bitmap and have no word that is ever used.
//!
//! Invariants, under the lock:
//! * a slot's bit is set ⇔ its word is free (all zero) and the slot exists;
//! * `used` = the number of words that are not free; used = 0 ⇔ no table, and then order = 0 and list = free or discard;
//! * `list` is the list that the cluster is on (lists.rs); both change in one step.
//!
//! What it does not do: know of other clusters, lists, groups or counters of the device.
//!
//! Kernel counterpart: `swap_cluster_info` with its table (6.18 on). Differences: counts, frames and shadows share one
//! word; a bitmap finds aligned runs without looking at slots; everything is under the lock, lookups too.

use std::ops::Range;

use super::lists::ListId;
use super::slot_word::{Payload, SlotWord, State};
use crate::sync::{Mutex, MutexGuard};
use crate::units::{CLUSTER_SLOTS, ClusterIndex, CpuId, FrameId, Order, SlotIndex};

pub(super) const SLOTS: usize = CLUSTER_SLOTS as usize;
const BITS: usize = u64::BITS as usize;
const MAP_WORDS: usize = SLOTS / BITS;
/// Below it a block lies within a word of the bitmap, from it on it is made of whole words.
const WORD_ORDER: u8 = BITS.trailing_zeros() as u8;

type FreeMap = [u64; MAP_WORDS];

pub(super) struct Cluster {
    state: Mutex<ClusterState>,
}

const _: () = assert!(SLOTS.is_multiple_of(BITS) && SLOTS <= u16::MAX as usize);
#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Cluster>() <= 64, "0.125 byte a slot");

pub(super) struct ClusterState {
    table: Option<Box<Table>>,
    pub(super) counters: Counters,
    used: u16,
    first: u16,
    end: u16,
    order: Order,
    /// The list that the cluster is on.
    pub(super) list: ListId,
    /// Who allocated here last: while his hint is here, others keep away if they can.
    pub(super) taken_by: CpuId,
}

/// Evidence, kept under the lock that it is about: no cache line is shared for it.
#[derive(Clone, Copy, Default)]
pub(super) struct Counters {
    pub(super) locks: u64,
    pub(super) contended: u64,
    pub(super) scan_steps: u64,
}

struct Table {
    words: [SlotWord; SLOTS],
    free: FreeMap,
    /// Shadows that wait for the last unpin of a retired frame. Nearly always empty.
    late_shadows: Vec<(u16, u32)>,
}

/// What `Cluster::state.table` costs while it is there.
pub(super) const TABLE_BYTES: u64 = size_of::<Table>() as u64;
const _: () = assert!(TABLE_BYTES as usize + 64 + 2 * SLOTS <= 12 * SLOTS, "at most 12 bytes a slot in all");

/// What the end of a pin has brought about.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CacheRelease {
    /// The frame had left the cache while it was pinned, and is free now.
    pub frame_freed: bool,
    /// The slot has no reference and no frame any more: discard its copy in the backing, then `release` it.
    pub slot_freed: bool,
}

impl Cluster {
    /// Cluster `index` of a device of `slots` slots.
    pub(super) fn new(index: ClusterIndex, slots: u32) -> Cluster {
        let start = index.0 * CLUSTER_SLOTS;
        let state = ClusterState {
            table: None,
            counters: Counters::default(),
            used: 0,
            first: u16::from(start == 0),
            end: (slots - start).min(CLUSTER_SLOTS) as u16,
            order: Order::ZERO,
            list: ListId::FREE,
            taken_by: CpuId(0),
        };
        Cluster { state: Mutex::new(state) }
    }

    /// Lock, and count that it was done and whether somebody else was there.
    pub(super) fn lock(&self) -> MutexGuard<'_, ClusterState> {
        self.try_lock().unwrap_or_else(|| {
            let mut state = self.lock_uncounted();
            state.counters.locks += 1;
            state.counters.contended += 1;
            state
        })
    }

    /// Lock if nobody else is there.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, ClusterState>> {
        match self.state.try_lock() {
            Ok(mut state) => {
                state.counters.locks += 1;
                Some(state)
            }
            Err(std::sync::TryLockError::WouldBlock) => None,
            Err(std::sync::TryLockError::Poisoned(_)) => panic!("a thread panicked in a cluster"),
        }
    }

    /// For looking at the counters, which should not count that.
    pub(super) fn lock_uncounted(&self) -> MutexGuard<'_, ClusterState> {
        crate::sync::lock(&self.state)
    }
}

/// The bits of the slots that exist.
fn existing(first: u16, end: u16) -> FreeMap {
    std::array::from_fn(|word| mask_within(word, usize::from(first)..usize::from(end)))
}

/// The bits of bitmap word `word` that lie in `range`.
fn mask_within(word: usize, range: Range<usize>) -> u64 {
    let start = word * BITS;
    let low = range.start.clamp(start, start + BITS) - start;
    let high = range.end.clamp(start, start + BITS) - start;
    let below = |bit: usize| if bit == BITS { u64::MAX } else { (1 << bit) - 1 };
    below(high) & !below(low)
}

/// Of a word of free bits, the first bit of each free aligned block of `order`, which is smaller than a word.
fn block_starts(free: u64, order: Order) -> u64 {
    // Bit i stays set while bits i..i + 2^step are.
    let starts = (0..order.0).fold(free, |starts, step| starts & starts >> (1 << step));
    // Every 2^order-th bit: 0101…, 00010001…, and so on.
    let aligned = u64::MAX / ((1 << order.pages()) - 1);
    starts & aligned
}

/// The offsets in `range` (aligned to the order) at which a free block of `order` begins, ascending, at most `n`.
/// Returns the number of bitmap words that were looked at.
fn find_in(map: &FreeMap, order: Order, range: Range<usize>, n: usize, found: &mut Vec<u16>) -> u64 {
    let goal = found.len() + n;
    let mut steps = 0;
    let words_per_block = (order.pages() as usize).div_ceil(BITS);
    let mut word = range.start / BITS;
    while word * BITS < range.end && found.len() < goal {
        steps += words_per_block as u64;
        if order.0 < WORD_ORDER {
            let mut starts = block_starts(map[word], order) & mask_within(word, range.clone());
            while starts != 0 && found.len() < goal {
                found.push((word * BITS) as u16 + starts.trailing_zeros() as u16);
                starts &= starts - 1;
            }
        } else if map[word..word + words_per_block].iter().all(|bits| *bits == u64::MAX) {
            found.push((word * BITS) as u16);
        }
        word += words_per_block;
    }
    steps
}

impl ClusterState {
    pub(super) fn used(&self) -> u32 {
        u32::from(self.used)
    }

    pub(super) fn order(&self) -> Order {
        self.order
    }

    pub(super) fn free_slots(&self) -> u32 {
        u32::from(self.end - self.first - self.used)
    }

    /// May a search for this order use the cluster? An empty one takes any order, if it is not still to be discarded;
    /// order 0 steals only where it is sent to (`steal`).
    pub(super) fn serves(&self, order: Order, steal: bool) -> bool {
        let right_order = self.used == 0 || self.order == order || (steal && order == Order::ZERO);
        right_order && self.list != ListId::DISCARD && self.has_block(order)
    }

    /// Is there a free aligned block of this order?
    pub(super) fn has_block(&self, order: Order) -> bool {
        if order == Order::ZERO {
            return self.free_slots() > 0;
        }
        let map = self.free_map();
        if order.0 < WORD_ORDER {
            return map.iter().any(|bits| block_starts(*bits, order) != 0);
        }
        let words_per_block = order.pages() as usize / BITS;
        map.chunks_exact(words_per_block).any(|block| block.iter().all(|bits| *bits == u64::MAX))
    }

    /// Up to `n` free blocks, as offsets: from `start` upwards, then from the beginning, so that a batch is as
    /// contiguous as the cluster allows. Changes nothing but the count of steps.
    pub(super) fn find(&mut self, order: Order, start: usize, n: usize) -> Vec<u16> {
        let mut found = Vec::with_capacity(n);
        let start = start & !(order.pages() as usize - 1);
        let map = self.free_map();
        let mut steps = find_in(&map, order, start..SLOTS, n, &mut found);
        if start > 0 && found.len() < n {
            let rest = n - found.len();
            steps += find_in(&map, order, 0..start, rest, &mut found);
        }
        self.counters.scan_steps += steps;
        found
    }

    /// Hand out these blocks, which `find` found: each slot gets a reference. Returns true if a table was made.
    pub(super) fn take(&mut self, order: Order, blocks: &[u16]) -> bool {
        let makes_table = self.table.is_none();
        if makes_table {
            self.order = order;
            let free = existing(self.first, self.end);
            let words = [SlotWord::FREE; SLOTS];
            self.table = Some(Box::new(Table { words, free, late_shadows: Vec::new() }));
        }
        let table = self.table.as_mut().expect("made above");
        let offsets =
            blocks.iter().flat_map(|first| (0..order.pages() as usize).map(|i| usize::from(*first) + i));
        for offset in offsets {
            let bit = 1 << (offset % BITS);
            assert!(table.free[offset / BITS] & bit != 0, "offset {offset} is handed out but not free");
            table.free[offset / BITS] &= !bit;
            table.words[offset] = SlotWord::allocated();
        }
        self.used += (blocks.len() as u16) << order.0;
        makes_table
    }

    /// A dying slot becomes free.
    pub(super) fn release(&mut self, slot: SlotIndex) {
        let word = self.word_mut(slot);
        assert!(word.state() == State::Dying, "slot {} is released but not dying: {word:?}", slot.0);
        *word = SlotWord::FREE;
        let offset = slot.offset_in_cluster();
        self.table_mut(slot).free[offset / BITS] |= 1 << (offset % BITS);
        self.used -= 1;
    }

    /// Nothing is in use any more: back to what a new cluster is. Returns true if a table was given up.
    pub(super) fn reset_if_empty(&mut self) -> bool {
        if self.used > 0 {
            return false;
        }
        self.order = Order::ZERO;
        self.table.take().is_some()
    }

    /// The list on which the cluster belongs now. `allocated`: by an allocation, and not by a release.
    pub(super) fn proper_list(&self, allocated: bool) -> ListId {
        if self.used == 0 {
            return ListId::FREE;
        }
        if self.free_slots() == 0 {
            return ListId::FULL;
        }
        if !self.has_block(self.order) {
            return ListId::spent(self.order);
        }
        if allocated { ListId::frag(self.order) } else { ListId::nonfull(self.order) }
    }

    /// The slot's word; that of a free slot if the cluster has no table.
    pub(super) fn word(&self, slot: SlotIndex) -> SlotWord {
        self.table.as_ref().map_or(SlotWord::FREE, |table| table.words[slot.offset_in_cluster()])
    }

    pub(super) fn dup(&mut self, slot: SlotIndex) {
        self.word_mut(slot).dup(slot);
    }

    /// One reference less. True if the slot is dying now.
    pub(super) fn put(&mut self, slot: SlotIndex) -> bool {
        let dying = self.word_mut(slot).put(slot);
        if !dying && self.word(slot).count() == 0 {
            self.take_late_shadow(slot);
        }
        dying
    }

    /// The slot's page is in this frame from now on. A shadow has done its work.
    pub(super) fn cache_add(&mut self, slot: SlotIndex, frame: FrameId) {
        let word = self.word_mut(slot);
        assert!(word.count() > 0, "slot {} enters the swap cache without a reference: {word:?}", slot.0);
        assert!(word.frame().is_none(), "slot {} is in the swap cache already: {word:?}", slot.0);
        word.set_payload(Payload::Frame(frame));
    }

    /// The frame that holds the slot's bytes, pinned.
    pub(super) fn cache_get(&mut self, slot: SlotIndex) -> Option<FrameId> {
        let frame = self.word(slot).frame()?;
        self.word_mut(slot).pin(slot);
        Some(frame)
    }

    pub(super) fn cache_unpin(&mut self, slot: SlotIndex) -> CacheRelease {
        if self.word_mut(slot).unpin(slot) > 0 {
            return CacheRelease::default();
        }
        if !matches!(self.word(slot).payload(), Payload::Retired(_)) {
            return CacheRelease::default();
        }
        let shadow = self.take_late_shadow(slot);
        CacheRelease { frame_freed: true, slot_freed: self.leave_cache(slot, shadow) }
    }

    /// Out of the cache. The frame, unless somebody has it pinned, and whether the slot is dying now.
    pub(super) fn cache_delete(&mut self, slot: SlotIndex, shadow: Option<u32>) -> (Option<FrameId>, bool) {
        let word = self.word_mut(slot);
        let Payload::Frame(frame) = word.payload() else {
            panic!("slot {} leaves the swap cache but is not in it: {word:?}", slot.0);
        };
        if word.pins() == 0 {
            return (Some(frame), self.leave_cache(slot, shadow));
        }
        word.set_payload(Payload::Retired(frame));
        if let Some(shadow) = shadow.filter(|_| self.word(slot).count() > 0) {
            let offset = slot.offset_in_cluster() as u16;
            self.table_mut(slot).late_shadows.push((offset, shadow));
        }
        (None, false)
    }

    /// The frame goes; a shadow stays, unless the slot has no reference left. True if the slot is dying now.
    fn leave_cache(&mut self, slot: SlotIndex, shadow: Option<u32>) -> bool {
        let word = self.word_mut(slot);
        word.set_payload(shadow.map_or(Payload::None, Payload::Shadow));
        word.die_if_unused()
    }

    /// A slot in the swap cache, or just out of it, gets its shadow when its frame goes.
    pub(super) fn set_shadow(&mut self, slot: SlotIndex, shadow: u32) {
        let word = self.word_mut(slot);
        assert!(word.count() > 0, "slot {} is given a shadow without a reference", slot.0);
        if word.frame().is_none() {
            word.set_payload(Payload::Shadow(shadow));
        }
    }

    fn take_late_shadow(&mut self, slot: SlotIndex) -> Option<u32> {
        let offset = slot.offset_in_cluster() as u16;
        let late = &mut self.table_mut(slot).late_shadows;
        let at = late.iter().position(|(of, _)| *of == offset)?;
        Some(late.swap_remove(at).1)
    }

    fn table_mut(&mut self, slot: SlotIndex) -> &mut Table {
        self.table.as_mut().unwrap_or_else(|| panic!("slot {} is free, with its whole cluster", slot.0))
    }

    fn word_mut(&mut self, slot: SlotIndex) -> &mut SlotWord {
        let word = &mut self.table_mut(slot).words[slot.offset_in_cluster()];
        assert!(word.state() != State::Free, "slot {} is used but free", slot.0);
        word
    }

    fn free_map(&self) -> FreeMap {
        self.table.as_ref().map_or_else(|| existing(self.first, self.end), |table| table.free)
    }

    /// The cluster's own invariants; calls `each` with every slot that is not free. See `SwapDevice::check`.
    pub(super) fn check(&self, index: ClusterIndex, mut each: impl FnMut(SlotIndex, SlotWord)) {
        let name = format!("cluster {} ({}, order {})", index.0, self.list, self.order.0);
        let Some(table) = &self.table else {
            assert!(self.used == 0 && self.order == Order::ZERO, "{name} has used slots but no table");
            return;
        };
        assert!(self.used > 0, "{name} is empty but keeps a table");
        let exist = existing(self.first, self.end);
        let mut used = 0;
        for (offset, word) in table.words.iter().enumerate() {
            let slot = SlotIndex(index.0 * CLUSTER_SLOTS + offset as u32);
            let bit = |map: &FreeMap| map[offset / BITS] >> (offset % BITS) & 1 == 1;
            if *word == SlotWord::FREE {
                assert!(bit(&table.free) == bit(&exist), "{name}: slot {} is free, its bit is not", slot.0);
                continue;
            }
            assert!(bit(&exist) && !bit(&table.free), "{name}: slot {} is used, its bit is free", slot.0);
            used += 1;
            check_word(slot, *word);
            each(slot, *word);
        }
        assert!(used == self.used, "{name}: {used} words in use, {} counted", self.used);
        for (offset, _) in &table.late_shadows {
            let word = table.words[usize::from(*offset)];
            let waits = matches!(word.payload(), Payload::Retired(_)) && word.count() > 0;
            assert!(waits, "{name}: a shadow waits at offset {offset} for no retired frame: {word:?}");
        }
    }
}

/// Does the word of a slot that is not free make sense?
fn check_word(slot: SlotIndex, word: SlotWord) {
    let unreachable = word.count() == 0 && word.frame().is_none();
    assert!((word.state() == State::Dying) == unreachable, "slot {}: dying or not? {word:?}", slot.0);
    assert!(word.pins() == 0 || word.frame().is_some(), "slot {}: pins without a frame: {word:?}", slot.0);
    let retired = matches!(word.payload(), Payload::Retired(_));
    assert!(!retired || word.pins() > 0, "slot {}: retired but not pinned: {word:?}", slot.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit, what `has_block` and `find` do by words.
    fn naive_blocks(map: &FreeMap, order: Order) -> Vec<u16> {
        let size = order.pages() as usize;
        let free = |slot: usize| map[slot / BITS] >> (slot % BITS) & 1 == 1;
        let starts = (0..SLOTS).step_by(size).filter(|start| (*start..start + size).all(free));
        starts.map(|start| start as u16).collect()
    }

    /// A map in which runs of each length occur.
    fn map_of_runs(seed: u64) -> FreeMap {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut map = [0; MAP_WORDS];
        let mut at = 0;
        while at < SLOTS {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let run = 1 << (state >> 60).min(9);
            if state >> 40 & 1 == 1 {
                let range = at..(at + run).min(SLOTS);
                (0..MAP_WORDS).for_each(|word| map[word] |= mask_within(word, range.clone()));
            }
            at += run;
        }
        map
    }

    #[test]
    fn find_agrees_with_a_search_bit_by_bit() {
        for seed in 0..400 {
            let map = map_of_runs(seed);
            for order in (0..=9).map(Order) {
                let mut found = Vec::new();
                find_in(&map, order, 0..SLOTS, SLOTS, &mut found);
                assert_eq!(found, naive_blocks(&map, order), "seed {seed}, order {}", order.0);
            }
        }
    }

    #[test]
    fn find_starts_at_the_hint_and_wraps() {
        let cluster = Cluster::new(ClusterIndex(0), 512);
        let mut state = cluster.lock();
        assert_eq!(state.find(Order::ZERO, 510, 4), [510, 511, 1, 2]);
        assert_eq!(state.find(Order(4), 500, 2), [496, 16]);
        assert!(state.find(Order(9), 0, 1).is_empty(), "slot 0 does not exist");
        assert_eq!(state.find(Order(8), 0, 9), [256]);
    }

    #[test]
    fn a_short_cluster_ends_where_the_device_does() {
        let cluster = Cluster::new(ClusterIndex(3), 3 * 512 + 70);
        let mut state = cluster.lock();
        assert_eq!(state.free_slots(), 70);
        assert_eq!(state.find(Order(6), 0, 9), [0]);
        assert_eq!(state.find(Order(2), 68, 99).len(), 17);
        assert!(!state.has_block(Order(7)));
    }
}
