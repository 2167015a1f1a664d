//! What each slot's place on the medium holds, how much of it is in use, and what is given back.
//!
//! *A slot's state* is two bits, in memory that costs nothing until it is used:
//!
//! ```text
//!              write            discard          punched
//!   nothing ──────────▶ live ──────────▶ dead ──────────▶ nothing
//!                        ▲      write     │
//!                        └────────────────┘      allocated on disk: live or dead
//! ```
//!
//! While it is written a slot is neither: `take` says so at the beginning, `settle` or `bury` at the end.
//!
//! *A late punch must not hit new data.* Slots are grouped, cluster by cluster, under read-write locks. A
//! write holds its clusters' locks shared from before it looks at the bits until the bits say live again; a
//! punch holds one exclusively, and only if it gets it at once. Writes take them in ascending order, punches
//! take one.
//!
//! *Limits*: pages on disk, live and dead, are at most `pages_max`; the file system keeps `free_floor_bytes`
//! free. Free space is asked for 64 MiB at a time, not at each write.
//!
//! *Discard* is as with swapon: a block device hears of what is not needed any more only if it is asked for.
//! A file gives runs of dead slots back in any case; with `discard=pages` whole clusters before they are used
//! again.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock, RwLockReadGuard};

use memspill_engine::sync::lock;
use memspill_engine::units::{CLUSTER_SLOTS, ClusterIndex, PAGE_SIZE, SlotIndex};

use super::io::is_short;
use super::store::Room;
use crate::arena::ZeroTable;

/// Free space is looked at once for so many pages (64 MiB).
const GRANT_PAGES: u64 = 16384;
/// Locks for the clusters: cluster c is under lock c % 64.
const CLUSTER_LOCKS: usize = 64;
/// Punching starts when so many pages are dead (1 MiB), or as many as are live.
const DEAD_PAGES_MIN: u64 = 256;
/// Clusters looked at by one call of `punch_some`.
const PUNCH_CLUSTERS: usize = 32;

/// A bit for each of many things, which costs nothing until the first one near it is set.
struct Bits(ZeroTable);

impl Bits {
    fn new(bits: u32) -> io::Result<Bits> {
        Ok(Bits(ZeroTable::new((bits as usize).div_ceil(64) * 8)?))
    }

    fn is_set(&self, bit: u32) -> bool {
        self.0.word(bit as usize / 64).load(Ordering::Acquire) >> (bit % 64) & 1 == 1
    }

    /// Set a bit; was it set?
    fn set(&self, bit: u32) -> bool {
        let mask = 1u64 << (bit % 64);
        self.0.word_to_write(bit as usize / 64).fetch_or(mask, Ordering::AcqRel) & mask != 0
    }

    /// Clear a bit; was it set?
    fn unset(&self, bit: u32) -> bool {
        let mask = 1u64 << (bit % 64);
        self.is_set(bit)
            && self.0.word_to_write(bit as usize / 64).fetch_and(!mask, Ordering::AcqRel) & mask != 0
    }
}

/// Held for as long as a write to some clusters takes: no hole is punched in them.
pub(super) struct Writing<'a>(#[allow(dead_code, reason = "held, not read")] Vec<RwLockReadGuard<'a, ()>>);

/// See the module's header.
pub(super) struct Space {
    slots: u32,
    pages_max: u64,
    free_floor_bytes: u64,
    /// It has its size: nothing to be granted, and holes are punched only when asked for.
    fixed: bool,
    live: Bits,
    dead: Bits,
    locks: Box<[RwLock<()>]>,
    ended: AtomicBool,
    /// Clusters that have gained dead slots since they were last looked at; a bit in `listed` for each.
    to_punch: Mutex<Vec<u32>>,
    listed: Bits,
    punch_works: AtomicBool,
    live_pages: AtomicU64,
    dead_pages: AtomicU64,
    /// Live, dead, and being written.
    allocated_pages: AtomicU64,
    /// `allocated_pages` may grow up to here before free space is looked at again.
    granted_pages: AtomicU64,
    granting: Mutex<()>,
}

impl Space {
    pub(super) fn new(slots: u32, pages_max: u64, free_floor_bytes: u64, fixed: bool) -> io::Result<Space> {
        Ok(Space {
            slots,
            pages_max,
            free_floor_bytes,
            fixed,
            live: Bits::new(slots)?,
            dead: Bits::new(slots)?,
            locks: (0..CLUSTER_LOCKS).map(|_| RwLock::new(())).collect(),
            ended: AtomicBool::new(false),
            to_punch: Mutex::default(),
            listed: Bits::new(slots.div_ceil(CLUSTER_SLOTS))?,
            punch_works: AtomicBool::new(true),
            live_pages: AtomicU64::new(0),
            dead_pages: AtomicU64::new(0),
            allocated_pages: AtomicU64::new(0),
            granted_pages: AtomicU64::new(if fixed { u64::MAX } else { 0 }),
            granting: Mutex::new(()),
        })
    }

    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    pub(super) fn check(&self, slot: SlotIndex) {
        assert!(slot.0 != 0, "slot 0 is never used: page 0 of a named file is its mark");
        assert!(slot.0 < self.slots, "slot {} is beyond the device's {} slots", slot.0, self.slots);
    }

    /// Does the slot hold something?
    pub(super) fn is_live(&self, slot: SlotIndex) -> bool {
        self.live.is_set(slot.0)
    }

    pub(super) fn live_pages(&self) -> u64 {
        self.live_pages.load(Ordering::Relaxed)
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.allocated_pages.load(Ordering::Relaxed) * PAGE_SIZE as u64
    }

    pub(super) fn ram_bytes(&self) -> u64 {
        [&self.live, &self.dead, &self.listed].iter().map(|bits| bits.0.ram_bytes()).sum()
    }

    /// Room for so many pages more, if dead places are all that stands in the way.
    pub(super) fn make_room(&self, room: &dyn Room, pages: u64) {
        let allocated = self.allocated_pages.load(Ordering::Relaxed);
        if allocated + pages > self.pages_max && self.dead_pages.load(Ordering::Relaxed) > 0 {
            self.punch(room, usize::MAX, 1);
        }
    }

    /// A write to these slots begins. None: the device has ended, nothing is written to it any more.
    pub(super) fn begin_write(&self, slots: impl Iterator<Item = SlotIndex>) -> Option<Writing<'_>> {
        let mut groups: Vec<usize> = slots.map(|slot| slot.cluster().0 as usize % CLUSTER_LOCKS).collect();
        groups.sort_unstable();
        groups.dedup();
        let locks = groups
            .iter()
            .map(|group| self.locks[*group].read().expect("a thread panicked while it punched a hole"));
        let writing = Writing(locks.collect());
        (!self.ended.load(Ordering::Acquire)).then_some(writing)
    }

    /// The slot is about to be written: neither live nor dead, but allocated. False: there is no room for it.
    pub(super) fn take(&self, room: &dyn Room, slot: SlotIndex) -> bool {
        let was_live = self.live.unset(slot.0);
        let was_dead = self.dead.unset(slot.0);
        self.live_pages.fetch_sub(u64::from(was_live), Ordering::AcqRel);
        self.dead_pages.fetch_sub(u64::from(was_dead), Ordering::AcqRel);
        was_live || was_dead || self.reserve(room)
    }

    /// The slot that was taken is written.
    pub(super) fn settle(&self, slot: SlotIndex) {
        self.live.set(slot.0);
        self.live_pages.fetch_add(1, Ordering::AcqRel);
    }

    /// The slot's place holds nothing of worth.
    pub(super) fn bury(&self, slot: SlotIndex) {
        if !self.dead.set(slot.0) {
            self.dead_pages.fetch_add(1, Ordering::AcqRel);
        }
        let cluster = slot.cluster().0;
        if !self.fixed && !self.listed.is_set(cluster) {
            self.list(cluster);
        }
    }

    pub(super) fn discard(&self, slot: SlotIndex) {
        if self.live.unset(slot.0) {
            self.live_pages.fetch_sub(1, Ordering::AcqRel);
            self.bury(slot);
        }
    }

    fn list(&self, cluster: u32) {
        if !self.listed.set(cluster) {
            lock(&self.to_punch).push(cluster);
        }
    }

    /// Room on disk for one page more.
    fn reserve(&self, room: &dyn Room) -> bool {
        loop {
            let granted = self.granted_pages.load(Ordering::Relaxed).min(self.pages_max);
            let grown = |pages: u64| (pages < granted).then_some(pages + 1);
            if self.allocated_pages.fetch_update(Ordering::AcqRel, Ordering::Relaxed, grown).is_ok() {
                return true;
            }
            if granted == self.pages_max || !self.grant(room) {
                return false;
            }
        }
    }

    /// Look at the free space, and allow growth down to the floor, 64 MiB at most.
    fn grant(&self, room: &dyn Room) -> bool {
        let _one = lock(&self.granting);
        let allocated = self.allocated_pages.load(Ordering::Acquire);
        if self.granted_pages.load(Ordering::Relaxed) > allocated {
            return true;
        }
        let Some(free_bytes) = room.free_bytes() else { return false };
        let pages = (free_bytes.saturating_sub(self.free_floor_bytes) / PAGE_SIZE as u64).min(GRANT_PAGES);
        self.granted_pages.store(allocated + pages, Ordering::Relaxed);
        pages > 0
    }

    fn unreserve(&self, pages: u64) {
        let allocated = self.allocated_pages.fetch_sub(pages, Ordering::AcqRel) - pages;
        if !self.fixed {
            // Others may take returned space: look again before growing far.
            let _one = lock(&self.granting);
            let ceiling = allocated + GRANT_PAGES;
            let granted = self.granted_pages.load(Ordering::Relaxed).min(ceiling);
            self.granted_pages.store(granted, Ordering::Relaxed);
        }
    }

    /// Punch some holes, if enough is dead for that. True while there is more to look at.
    pub(super) fn punch_some(&self, room: &dyn Room) -> bool {
        let (dead, live) = (self.dead_pages.load(Ordering::Relaxed), self.live_pages());
        dead > 0
            && (dead >= DEAD_PAGES_MIN || dead >= live)
            && self.punch(room, PUNCH_CLUSTERS, room.hole_pages_min())
    }

    /// Punch holes in clusters that have dead slots: at most `clusters_max` clusters, holes of at least
    /// `hole_pages_min` pages. True while there is more to look at.
    fn punch(&self, room: &dyn Room, clusters_max: usize, hole_pages_min: u32) -> bool {
        if !self.punch_works.load(Ordering::Relaxed) {
            return false;
        }
        let (work, mut more) = {
            let mut list = lock(&self.to_punch);
            let at = list.len().saturating_sub(clusters_max);
            (list.split_off(at), !list.is_empty())
        };
        for cluster in work {
            self.listed.unset(cluster);
            match self.locks[cluster as usize % CLUSTER_LOCKS].try_write() {
                // Clusters that could not be punched now are listed again: later, and not in a loop.
                Ok(_alone) => more &= self.punch_cluster(room, cluster, hole_pages_min),
                // Being written to: later.
                Err(_) => self.list(cluster),
            }
        }
        more
    }

    /// No slot of the cluster holds anything, and none is written before this returns.
    pub(super) fn discard_cluster(&self, room: &dyn Room, cluster: ClusterIndex) {
        // Shared: writes that hold it are in other clusters, for none comes to this one now.
        let _shared =
            self.locks[cluster.index() % CLUSTER_LOCKS].read().expect("a thread panicked in these clusters");
        if self.punch_works.load(Ordering::Relaxed) {
            self.punch_cluster(room, cluster.0, 1);
        }
    }

    /// No write is under way in the cluster, and none begins: its lock is held exclusively, or the caller has
    /// been told so. False if the machine was short of something for it.
    fn punch_cluster(&self, room: &dyn Room, cluster: u32, hole_pages_min: u32) -> bool {
        let first = cluster * CLUSTER_SLOTS;
        let end = (first + CLUSTER_SLOTS).min(self.slots);
        let empty = (first..end).all(|slot| !self.live.is_set(slot));
        let hole_pages_min = if empty { 1 } else { hole_pages_min };
        let mut slot = first.max(1);
        while slot < end {
            let start = slot;
            // Slots that hold nothing may lie in the hole: there is nothing to lose in them.
            let mut dead: Vec<u32> = Vec::new();
            while slot < end && !self.live.is_set(slot) {
                if self.dead.is_set(slot) {
                    dead.push(slot);
                }
                slot += 1;
            }
            if dead.is_empty() || (dead.len() as u32) < hole_pages_min {
                slot = slot.max(start + 1);
                continue;
            }
            match room.give_back(start, slot) {
                Ok(()) => {
                    let cleared = dead.into_iter().filter(|slot| self.dead.unset(*slot)).count() as u64;
                    self.dead_pages.fetch_sub(cleared, Ordering::AcqRel);
                    self.unreserve(cleared);
                }
                Err(errno) if is_short(errno) => {
                    self.bury(SlotIndex(dead[0]));
                    return false;
                }
                Err(_) => {
                    // Not possible here: dead places are overwritten in time, which is all that is needed.
                    self.punch_works.store(false, Ordering::Relaxed);
                    return true;
                }
            }
        }
        true
    }

    /// Nothing is written any more: writers that are at it end first, and later ones are turned away. `empty`
    /// is called once, with no other thread at work on the medium.
    pub(super) fn end(&self, empty: impl FnOnce()) {
        let _alone: Vec<_> = self.locks.iter().map(|lock| lock.write()).collect();
        if !self.ended.swap(true, Ordering::AcqRel) {
            empty();
        }
    }

    /// No slot holds anything, and none will. A punch that is under way ends first; the next one finds
    /// nothing to do. `forget` is called with no other thread at work on the medium.
    pub(super) fn close(&self, forget: impl FnOnce()) {
        let _alone: Vec<_> = self.locks.iter().map(|lock| lock.write()).collect();
        self.ended.store(true, Ordering::Release);
        self.punch_works.store(false, Ordering::Relaxed);
        forget();
        lock(&self.to_punch).clear();
        for counter in [&self.dead_pages, &self.allocated_pages] {
            counter.store(0, Ordering::Relaxed);
        }
        [&self.live, &self.dead, &self.listed].into_iter().for_each(|bits| bits.0.release());
    }
}
