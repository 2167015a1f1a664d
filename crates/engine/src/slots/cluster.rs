//! 512 slots under one lock: the slots' words, a bitmap of the free ones, and where the cluster stands.
//!
//! ```text
//!   Cluster (64 bytes)            Table (only while a slot is in use)
//!   ┌───────────────────┐         ┌──────────────────────────────────────────────┐
//!   │ lock              │         │ words: 512 × 64 bits (slot_word.rs)          │
//!   │ table ────────────┼────────▶│ free:  512 bits, 1 = may be handed out       │
//!   │ used, order, list │         │ owners: 512 × 8 bits, the groups that pay    │
//!   │ lock statistics   │         │ late shadows: for frames retired while pinned│
//!   └───────────────────┘         └──────────────────────────────────────────────┘
//! ```
//!
//! The first cluster lacks slot 0 and the last one may be short: `first..end` are the slots that exist. The
//! others are never free in the bitmap and have no word that is ever used.
//!
//! Invariants, under the lock:
//! * a slot's bit is set ⇔ its word is free (all zero) and the slot exists; a free slot has no owner (0);
//! * `used` = the number of words that are not free; used = 0 ⇔ no table, and then order = 0 and list = free
//!   or discard;
//! * `list` is the list that the cluster is on (lists.rs); both change in one step;
//! * `marks` say what room there is for other orders (room.rs), once `renew_marks` was called.
//!
//! What it does not do: know of other clusters, lists, groups or counters of the device.
//!
//! Kernel counterpart: `swap_cluster_info` with its table (6.18 on). Differences: counts, frames and shadows
//! share one word; a bitmap finds aligned runs without looking at slots; everything is under the lock,
//! lookups too.

use std::ops::Range;

use super::lists::ListId;
use super::lock_counts::{self, Counted, Held, LockCounts};
use super::room::Marks;
use super::slot_word::{Payload, SlotState, SlotWord};
use crate::group::GROUPS_MAX;
use crate::sync::{GuardedLines, Mutex};
use crate::tuning::AUTO_ORDER_MIN;
use crate::units::{CLUSTER_SLOTS, ClusterIndex, CpuId, FrameId, GroupId, MAX_ORDER, Order, SlotIndex};

pub(super) const SLOTS: usize = CLUSTER_SLOTS as usize;
const BITS: usize = u64::BITS as usize;
const MAP_WORDS: usize = SLOTS / BITS;
/// Below it a block lies within a word of the bitmap, from it on it is made of whole words.
const WORD_ORDER: u8 = BITS.trailing_zeros() as u8;
/// Slots of a block of 64 KiB: a free slot in no such block is a hole.
const BLOCK: usize = 1 << AUTO_ORDER_MIN.0;

type FreeMap = [u64; MAP_WORDS];

pub(super) struct Cluster {
    state: Mutex<ClusterState>,
}

const _: () = assert!(SLOTS.is_multiple_of(BITS) && SLOTS <= u16::MAX as usize);
#[cfg(not(any(loom, shuttle, simulated)))]
const _: () = assert!(size_of::<Cluster>() <= 64, "0.125 byte a slot");

pub(super) struct ClusterState {
    table: Option<Box<Table>>,
    pub(super) lock_counts: LockCounts,
    /// Words of the bitmap looked at in searches.
    pub(super) scan_steps: u64,
    used: u16,
    first: u16,
    end: u16,
    order: Order,
    /// The list that the cluster is on.
    pub(super) list: ListId,
    /// The CPU that allocated here last: while its hint is here, others keep away if they can.
    pub(super) taken_by: CpuId,
    /// What other orders find here.
    marks: Marks,
    /// Blocks were taken, or one has become whole, since the marks were renewed.
    marks_are_old: bool,
    /// Those of the table: of words, of owners, of the bitmap.
    lines: GuardedLines,
}

const LINE_BYTES: usize = 64;
const LINE_WORDS: usize = LINE_BYTES / size_of::<SlotWord>();
const WORD_LINES: usize = SLOTS / LINE_WORDS;
const OWNER_LINES: usize = SLOTS / LINE_BYTES;

/// A cluster whose lock is held.
pub(super) type ClusterGuard<'a> = Held<'a, ClusterState>;

impl Counted for ClusterState {
    fn counts(&mut self) -> &mut LockCounts {
        &mut self.lock_counts
    }
}

struct Table {
    words: [SlotWord; SLOTS],
    free: FreeMap,
    /// All 0 where a map has them (cgroup_map.rs).
    owners: [u8; SLOTS],
    /// Shadows that wait for the last unpin of a retired frame. Nearly always empty.
    late_shadows: Vec<(u16, u32)>,
}

/// The bytes of `Cluster::state.table` while it is there.
pub(super) const TABLE_BYTES: u64 = size_of::<Table>() as u64;
const _: () = assert!(TABLE_BYTES as usize + 64 <= 10 * SLOTS, "at most 10 bytes a slot in all");
const _: () = assert!(GROUPS_MAX <= 1 + u8::MAX as usize, "a group's id is a byte");

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
            lock_counts: LockCounts::default(),
            scan_steps: 0,
            used: 0,
            first: u16::from(start == 0),
            end: (slots - start).min(CLUSTER_SLOTS) as u16,
            order: Order::ZERO,
            list: ListId::FREE,
            taken_by: CpuId(0),
            marks: Marks::NONE,
            marks_are_old: false,
            lines: GuardedLines::new(WORD_LINES + OWNER_LINES + 1),
        };
        Cluster { state: Mutex::new(state) }
    }

    #[track_caller]
    pub(super) fn lock(&self) -> ClusterGuard<'_> {
        lock_counts::lock_counted(&self.state)
    }

    /// Lock if nobody else is there.
    #[track_caller]
    pub(super) fn try_lock(&self) -> Option<ClusterGuard<'_>> {
        lock_counts::try_lock_counted(&self.state)
    }

    /// Lock without counting it: for reading the counters.
    pub(super) fn lock_uncounted(&self) -> ClusterGuard<'_> {
        lock_counts::lock_uncounted(&self.state)
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

/// The first bit of each free aligned block of `order` in a word of free bits; the blocks are smaller than a
/// word.
fn block_starts(free: u64, order: Order) -> u64 {
    // Bit i stays set while bits i..i + 2^step are.
    let starts = (0..order.0).fold(free, |starts, step| starts & starts >> (1 << step));
    // Every 2^order-th bit: 0101…, 00010001…, and so on.
    let aligned = u64::MAX / ((1 << order.pages()) - 1);
    starts & aligned
}

/// The bits of a word that lie in a free aligned block of 64 KiB.
fn in_blocks(free: u64) -> u64 {
    // Each first bit, and then twice as many of each block.
    (0..AUTO_ORDER_MIN.0).fold(block_starts(free, AUTO_ORDER_MIN), |bits, step| bits | bits << (1 << step))
}

/// Is there a free aligned block of this order?
fn has_block_in(map: &FreeMap, order: Order) -> bool {
    if order.0 < WORD_ORDER {
        return map.iter().any(|bits| block_starts(*bits, order) != 0);
    }
    let words_per_block = order.pages() as usize / BITS;
    map.chunks_exact(words_per_block).any(|block| block.iter().all(|bits| *bits == u64::MAX))
}

/// The offsets in `range` (aligned to the order) at which a free block of `order` begins, ascending, at most
/// `n`. Returns the number of bitmap words that were looked at.
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

    /// May a search for this order use the cluster? An empty one takes any order, if it is not still to be
    /// discarded; one of another order only serves who finds none of his own (`steal`).
    pub(super) fn serves(&self, order: Order, steal: bool) -> bool {
        let right_order = self.used == 0 || self.order == order || steal;
        right_order && self.list != ListId::DISCARD && self.has_block(order)
    }

    /// Is there a free aligned block of this order?
    pub(super) fn has_block(&self, order: Order) -> bool {
        if order == Order::ZERO {
            return self.free_slots() > 0;
        }
        has_block_in(&self.free_map(), order)
    }

    /// Up to `n` free slots, as offsets, that belong to no free block of 64 KiB.
    pub(super) fn find_holes(&mut self, n: usize) -> Vec<u16> {
        let holes = self.free_map().map(|bits| bits & !in_blocks(bits));
        let mut found = Vec::with_capacity(n);
        self.scan_steps += find_in(&holes, Order::ZERO, 0..SLOTS, n, &mut found);
        found
    }

    /// Are there slots for `find_holes`? (The marks are up to date wherever the lock was let go.)
    pub(super) fn has_hole(&self) -> bool {
        self.marks.has_hole()
    }

    /// Bring the marks up to date. Returns the old ones and the new ones.
    pub(super) fn renew_marks(&mut self) -> (Marks, Marks) {
        let old = self.marks;
        if std::mem::take(&mut self.marks_are_old) {
            self.marks = self.proper_marks();
        }
        (old, self.marks)
    }

    fn proper_marks(&self) -> Marks {
        if self.used == 0 {
            return Marks::NONE;
        }
        let map = self.free_map();
        let is_hole = |bits: &u64| bits & !in_blocks(*bits) != 0;
        let hole =
            if self.order > Order::ZERO && map.iter().any(is_hole) { Marks::HOLE } else { Marks::NONE };
        let mut orders = (AUTO_ORDER_MIN.0..=MAX_ORDER).rev().map(Order);
        let largest = orders.find(|order| has_block_in(&map, *order));
        largest.map_or(hole, |largest| hole.and(Marks::of_block(largest)))
    }

    /// Up to `n` free blocks, as offsets: from `start` upwards, then from the beginning, so that a batch is
    /// as contiguous as the cluster allows. Changes nothing but the count of steps.
    pub(super) fn find(&mut self, order: Order, start: usize, n: usize) -> Vec<u16> {
        let mut found = Vec::with_capacity(n);
        let start = start & !(order.pages() as usize - 1);
        let map = self.free_map();
        let mut steps = find_in(&map, order, start..SLOTS, n, &mut found);
        if start > 0 && found.len() < n {
            let rest = n - found.len();
            steps += find_in(&map, order, 0..start, rest, &mut found);
        }
        self.scan_steps += steps;
        found
    }

    /// Hand out these blocks, which `find` found: each slot gets a reference, and this owner. Returns true if
    /// a table was made.
    pub(super) fn take(&mut self, order: Order, blocks: &[u16], owner: GroupId) -> bool {
        let makes_table = self.table.is_none();
        if makes_table {
            self.order = order;
            let free = existing(self.first, self.end);
            let words = [SlotWord::FREE; SLOTS];
            let owners = [0; SLOTS];
            self.table = Some(Box::new(Table { words, free, owners, late_shadows: Vec::new() }));
        }
        let table = self.table.as_mut().expect("made above");
        let offsets =
            blocks.iter().flat_map(|first| (0..order.pages() as usize).map(|i| usize::from(*first) + i));
        for offset in offsets {
            let bit = 1 << (offset % BITS);
            assert!(table.free[offset / BITS] & bit != 0, "offset {offset} is handed out but not free");
            table.free[offset / BITS] &= !bit;
            table.words[offset] = SlotWord::allocated();
            table.owners[offset] = owner.0 as u8;
            self.lines.write(offset / LINE_WORDS);
            self.lines.write(WORD_LINES + offset / LINE_BYTES);
        }
        self.lines.write(WORD_LINES + OWNER_LINES);
        self.used += (blocks.len() as u16) << order.0;
        // Taking can only make room less: without a mark there is nothing to renew.
        self.marks_are_old |= makes_table || self.marks != Marks::NONE;
        makes_table
    }

    /// A dying slot becomes free. Returns its owner.
    pub(super) fn release(&mut self, slot: SlotIndex) -> GroupId {
        let word = self.word_mut(slot);
        assert!(word.state() == SlotState::Dying, "slot {} is released but not dying: {word:?}", slot.0);
        *word = SlotWord::FREE;
        let offset = slot.offset_in_cluster();
        self.lines.write(WORD_LINES + offset / LINE_BYTES);
        self.lines.write(WORD_LINES + OWNER_LINES);
        let table = self.table_mut(slot);
        let owner = std::mem::take(&mut table.owners[offset]);
        let bits = &mut table.free[offset / BITS];
        *bits |= 1 << (offset % BITS);
        let block = (*bits >> ((offset % BITS) & !(BLOCK - 1))) & ((1 << BLOCK) - 1);
        let is_hole = block != (1 << BLOCK) - 1;
        self.marks_are_old |= !is_hole || (self.order > Order::ZERO && !self.marks.has_hole());
        self.used -= 1;
        GroupId(owner.into())
    }

    /// 0: it has none, or a map has it.
    pub(super) fn owner(&self, slot: SlotIndex) -> GroupId {
        let owner = self.table.as_ref().map_or(0, |table| table.owners[slot.offset_in_cluster()]);
        GroupId(owner.into())
    }

    /// Make a cluster without used slots what a new one is. Returns true if it had a table, which is freed.
    pub(super) fn reset_if_empty(&mut self) -> bool {
        if self.used > 0 {
            return false;
        }
        self.order = Order::ZERO;
        self.marks_are_old = self.marks != Marks::NONE;
        self.table.take().is_some()
    }

    /// The list on which the cluster belongs now. `allocated`: by an allocation of
    /// its order, and not by a release or a page that took a hole.
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

    /// One reference less. The frame that goes with the last one, of a page that was read ahead, and whether
    /// the slot is dying now.
    pub(super) fn put(&mut self, slot: SlotIndex) -> (Option<FrameId>, bool) {
        let word = self.word_mut(slot);
        let dying = word.put(slot);
        if dying || word.count() > 0 {
            return (None, dying);
        }
        match word.frame() {
            Some(frame) if frame.is_read_ahead() => (Some(frame), self.leave_cache(slot, None)),
            _ => {
                self.take_late_shadow(slot);
                (None, false)
            }
        }
    }

    /// The slot's page is in this frame from now on. A shadow has done its work.
    pub(super) fn cache_add(&mut self, slot: SlotIndex, frame: FrameId) {
        let word = self.word_mut(slot);
        assert!(word.count() > 0, "slot {} enters the swap cache without a reference: {word:?}", slot.0);
        assert!(word.frame().is_none(), "slot {} is in the swap cache already: {word:?}", slot.0);
        word.set_payload(Payload::Frame(frame));
    }

    /// The frame that holds the slot's bytes, pinned. The frame of a page that was read ahead is not: it
    /// leaves the cache, and is the caller's.
    pub(super) fn cache_get(&mut self, slot: SlotIndex) -> Option<FrameId> {
        let frame = self.word(slot).frame()?;
        if frame.is_read_ahead() {
            self.leave_cache(slot, None);
        } else {
            self.word_mut(slot).pin(slot);
        }
        Some(frame)
    }

    /// One more reference to a slot whose page is nowhere but in it, for who reads it ahead: its shadow. A
    /// slot without one may not have been written yet.
    pub(super) fn hold_to_read_ahead(&mut self, slot: SlotIndex) -> Option<u32> {
        let Payload::Shadow(shadow) = self.word(slot).payload() else { return None };
        self.word_mut(slot).dup(slot);
        Some(shadow)
    }

    /// The end of that: the page is in this frame, if it could be read. It enters the cache if somebody else
    /// has a reference, and nobody has brought the page into the cache meanwhile. Returns the frames that are
    /// in the cache no more, or never came there (another one may go with the last reference), and whether
    /// the slot is dying now.
    pub(super) fn end_read_ahead(
        &mut self,
        slot: SlotIndex,
        frame: Option<FrameId>,
    ) -> ([Option<FrameId>; 2], bool) {
        let (gone, dying) = self.put(slot);
        let word = self.word(slot);
        if word.count() == 0 || word.frame().is_some() {
            return ([gone, frame], dying);
        }
        if let Some(frame) = frame {
            self.word_mut(slot).set_payload(Payload::Frame(frame));
        }
        ([None, None], false)
    }

    /// A page that was read ahead is dropped: false if it is not in this frame any more.
    pub(super) fn drop_read_ahead(&mut self, slot: SlotIndex, frame: FrameId, shadow: u32) -> bool {
        let is_there = self.word(slot).frame() == Some(frame);
        if is_there {
            self.leave_cache(slot, Some(shadow));
        }
        is_there
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

    /// Replace the frame by a shadow, unless the slot has no reference left. True if the slot is dying now.
    fn leave_cache(&mut self, slot: SlotIndex, shadow: Option<u32>) -> bool {
        let word = self.word_mut(slot);
        word.set_payload(shadow.map_or(Payload::None, Payload::Shadow));
        word.die_if_unused()
    }

    /// Give the slot a shadow, unless it has a frame: then it gets one when the frame goes.
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
        self.lines.write(slot.offset_in_cluster() / LINE_WORDS);
        let word = &mut self.table_mut(slot).words[slot.offset_in_cluster()];
        assert!(word.state() != SlotState::Free, "slot {} is used but free", slot.0);
        word
    }

    fn free_map(&self) -> FreeMap {
        self.table.as_ref().map_or_else(|| existing(self.first, self.end), |table| table.free)
    }

    /// The marks, which the checker compares with room.rs and with the bitmap.
    pub(super) fn marks(&self) -> (Marks, Marks) {
        (self.marks, self.proper_marks())
    }

    /// The cluster's own invariants; calls `each` with every slot that is not free. See `Slots::check`.
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
                assert!(table.owners[offset] == 0, "{name}: free slot {} has an owner", slot.0);
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
    assert!((word.state() == SlotState::Dying) == unreachable, "slot {}: dying or not? {word:?}", slot.0);
    assert!(word.pins() == 0 || word.frame().is_some(), "slot {}: pins without a frame: {word:?}", slot.0);
    let retired = matches!(word.payload(), Payload::Retired(_));
    assert!(!retired || word.pins() > 0, "slot {}: retired but not pinned: {word:?}", slot.0);
    let ahead = word.frame().is_some_and(FrameId::is_read_ahead);
    let sound = word.count() > 0 && word.pins() == 0;
    assert!(!ahead || sound, "slot {}: read ahead, and nobody's or pinned: {word:?}", slot.0);
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
