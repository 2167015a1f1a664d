//! The swap cgroup map: which memory group pays for each slot. It stands for the kernel's map of 6.14 to
//! 6.18 (`cgroup-map=lock-free`) and that of before (`locked`); by default ids are in the clusters' tables
//! (cluster.rs), as in Linux 7.1, and there is no map.
//!
//! ```text
//!            31            16 15             0
//!   word w  [ id of slot 2w+1 | id of slot 2w ]      AtomicU32, 256 words to a cluster of 512 slots
//! ```
//!
//! Two ids of 16 bits share one atomic word of 32. An id is exchanged by a compare-exchange loop on the whole
//! word, with shift and mask; nothing ever reads or writes half a word, so there is one access size and no
//! byte order in it. A range that covers both halves has no neighbour in the word, and a load and a store are
//! enough.
//!
//! Why no lock is needed: the id of a slot is changed only by the slot's owner (who allocated it, or who
//! holds its last reference), so no two threads ever want to change the same id. A change of the *neighbour*
//! in the same word may run at the same time, and that is what the loop is for. The orderings are relaxed:
//! whoever allocates a slot that another thread released got it through the lock of the slot's cluster, which
//! orders the two.
//!
//! Invariants: an id goes 0 → group ([`CgroupMap::record`]) and group → 0 ([`CgroupMap::clear`]) and nowhere
//! else; all slots of a range given to either have the same owner; 0 is "no group". Breaking one is a panic,
//! since it means that a group is charged for ever, or that the wrong group is uncharged.
//!
//! Locks: in the form `locked`, one lock for the whole map, innermost of all (no other lock is taken
//! under it). Reading an id takes none in either form.
//!
//! What it does not do: charge or uncharge, or keep a group's id from being used again. The caller is told
//! which group owned the slots that were cleared, and uncharges it.
//!
//! Kernel counterpart: `swap_cgroup_record`, `swap_cgroup_clear`, `lookup_swap_cgroup_id` of 6.14 to 6.18.
//! There the whole map is allocated at swapon; here 1 KiB per cluster when the cluster is first used.

use super::lazy::{LazyArray, Once};
use super::lock_counts::{Counted, LockCounts, LockTotals, lock_counted, lock_uncounted};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use crate::tuning::CgroupMapForm;
use crate::units::{CLUSTER_SLOTS, GroupId, SlotIndex};

const ID_BITS: u32 = u16::BITS;
const ID_MASK: u32 = (1 << ID_BITS) - 1;
const IDS_PER_WORD: u32 = u32::BITS / ID_BITS;
const WORDS_PER_CLUSTER: usize = (CLUSTER_SLOTS / IDS_PER_WORD) as usize;

const _: () = assert!(size_of::<u32>().is_multiple_of(size_of::<GroupId>()), "ids must fill a word exactly");
const _: () = assert!(IDS_PER_WORD == 2 && ID_MASK == 0xffff);
const _: () = assert!(CLUSTER_SLOTS.is_multiple_of(IDS_PER_WORD), "no word may belong to two clusters");

/// The words of one cluster.
type Leaf = Box<[AtomicU32]>;

pub struct CgroupMap {
    is_locked: bool,
    slots: u32,
    leaves: LazyArray<Once<Leaf>>,
    leaf_bytes: AtomicU64,
    /// The lock of the locked form; what it guards besides the ids is how often it was taken.
    lock: Mutex<MapLock>,
    /// How often a compare-exchange found that the neighbour had changed.
    retries: AtomicU64,
}

#[derive(Default)]
struct MapLock(LockCounts);

impl Counted for MapLock {
    fn counts(&mut self) -> &mut LockCounts {
        &mut self.0
    }
}

/// The part of a range that falls into one word: which word, and the bits of it.
#[derive(Clone, Copy)]
struct WordPart {
    word: usize,
    mask: u32,
    ids: u32,
}

/// The same id in both halves.
fn both(group: GroupId) -> u32 {
    u32::from(group.0) * (1 | 1 << ID_BITS)
}

/// The words that `first..first + n` touches, in order.
fn word_parts(first: SlotIndex, n: u32) -> impl Iterator<Item = WordPart> {
    let end = u64::from(first.0) + u64::from(n);
    let mut slot = u64::from(first.0);
    std::iter::from_fn(move || {
        if slot >= end {
            return None;
        }
        let word = slot / u64::from(IDS_PER_WORD);
        let place = (slot % u64::from(IDS_PER_WORD)) as u32;
        let ids = (IDS_PER_WORD - place).min((end - slot) as u32);
        let mask = (u32::MAX >> (u32::BITS - ids * ID_BITS)) << (place * ID_BITS);
        slot += u64::from(ids);
        Some(WordPart { word: word as usize, mask, ids })
    })
}

impl CgroupMap {
    pub fn new(slots: u32, form: CgroupMapForm) -> CgroupMap {
        CgroupMap {
            is_locked: form == CgroupMapForm::Locked,
            slots,
            leaves: LazyArray::new(slots.div_ceil(CLUSTER_SLOTS) as usize),
            leaf_bytes: AtomicU64::new(0),
            lock: Mutex::new(MapLock::default()),
            retries: AtomicU64::new(0),
        }
    }

    /// `n` slots from `first` now belong to `group`. None of them may have an owner. Group 0 records nothing.
    pub fn record(&self, first: SlotIndex, n: u32, group: GroupId) {
        if group.0 == 0 {
            return;
        }
        self.exchange_range(first, n, group, |old, part| {
            assert!(
                old == 0,
                "slots {first:?}+{n} recorded for group {} but have an owner: word {} holds {old:#x}",
                group.0,
                part.word
            );
        });
    }

    /// `n` slots from `first` belong to no one any more. They must have had one owner, which is returned.
    pub fn clear(&self, first: SlotIndex, n: u32) -> GroupId {
        let owner = self.lookup(first);
        if owner.0 == 0 {
            let all_none = (1..n).all(|i| self.lookup(SlotIndex(first.0 + i)).0 == 0);
            assert!(all_none, "slots {first:?}+{n} are cleared as one range but have several owners");
            return owner;
        }
        self.exchange_range(first, n, GroupId(0), |old, part| {
            assert!(
                old == both(owner) & part.mask,
                "slots {first:?}+{n} are cleared as one range but have several owners"
            );
        });
        owner
    }

    /// The owner of a slot; 0 if it has none. Stable only for who owns the slot.
    pub fn lookup(&self, slot: SlotIndex) -> GroupId {
        let Some(leaf) = self.leaves.get(slot.cluster().index()).and_then(Once::get) else {
            return GroupId(0);
        };
        let word = leaf[slot.offset_in_cluster() / IDS_PER_WORD as usize].load(Ordering::Relaxed);
        GroupId((word >> (slot.0 % IDS_PER_WORD * ID_BITS) & ID_MASK) as u16)
    }

    /// Memory that the map takes now.
    pub fn bytes(&self) -> u64 {
        size_of::<CgroupMap>() as u64 + self.leaves.bytes() + self.leaf_bytes.load(Ordering::Relaxed)
    }

    /// What the lock has cost; zeros in the lock-free form.
    pub fn lock_totals(&self) -> LockTotals {
        let mut totals = LockTotals::default();
        totals += lock_uncounted(&self.lock).0;
        totals
    }

    /// How often an exchange was tried again because the neighbour had changed.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Put `group` into each id of the range, and show `verify` what was there before, word by word.
    fn exchange_range(&self, first: SlotIndex, n: u32, group: GroupId, verify: impl Fn(u32, WordPart)) {
        let past_end = u64::from(first.0) + u64::from(n) > u64::from(self.slots);
        assert!(!past_end, "slots {first:?}+{n} reach beyond a map of {} slots", self.slots);
        let _guard = self.is_locked.then(|| lock_counted(&self.lock));
        for part in word_parts(first, n) {
            debug_assert!((1..=IDS_PER_WORD).contains(&part.ids));
            let new = both(group) & part.mask;
            let old = if self.is_locked { self.exchange_locked(part, new) } else { self.exchange(part, new) };
            verify(old, part);
        }
    }

    /// Change the masked bits of a word and leave the rest as it is at that instant. Returns the old masked
    /// bits.
    fn exchange(&self, part: WordPart, new: u32) -> u32 {
        let word = self.word(part.word);
        let mut old = word.load(Ordering::Relaxed);
        if part.mask == u32::MAX {
            // Both halves are the caller's: there is no neighbour.
            word.store(new, Ordering::Relaxed);
            return old;
        }
        loop {
            let next = (old & !part.mask) | new;
            match word.compare_exchange_weak(old, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return old & part.mask,
                Err(seen) => {
                    self.retries.fetch_add(1, Ordering::Relaxed);
                    old = seen;
                }
            }
        }
    }

    /// As `exchange`, with the map's lock held by the caller: a load and a store are enough.
    fn exchange_locked(&self, part: WordPart, new: u32) -> u32 {
        let word = self.word(part.word);
        let old = word.load(Ordering::Relaxed);
        word.store((old & !part.mask) | new, Ordering::Relaxed);
        old & part.mask
    }

    /// A word by its number in the whole map, made if its cluster was never used before.
    fn word(&self, number: usize) -> &AtomicU32 {
        let cell = self.leaves.get_or_make(number / WORDS_PER_CLUSTER, |_| Once::new());
        let make = || (0..WORDS_PER_CLUSTER).map(|_| AtomicU32::new(0)).collect();
        let (leaf, made) = cell.get_or_make(make);
        if made {
            self.leaf_bytes.fetch_add(size_of_val::<[AtomicU32]>(leaf) as u64, Ordering::Relaxed);
        }
        &leaf[number % WORDS_PER_CLUSTER]
    }
}
