//! Swap on a RAM disk (kernel: brd): each slot has a page of RAM at its place, as it is. Nothing is
//! compressed, looked up or allocated, so a page costs a copy.
//!
//! ```text
//!   slot ──▶ pages[slot]        4096 bytes
//!        ──▶ held[slot]         one bit: there is a page
//!        ──▶ backed[slot]       one bit: its place has RAM
//!   cluster ──▶ users[cluster]  pages that are held or being written; GIVING while its RAM is given back
//! ```
//!
//! It saves no memory, so it makes no sense inside of a budget: what it takes was set aside for it, is
//! counted by itself (`Usage::ram_disk_bytes`), and ends at the number of its slots. `Chore::LimitRam`
//! means nothing to it.
//!
//! *RAM goes back by whole clusters, when nothing is written for a while*: giving back and getting again
//! costs more than the copy. A cluster is given back by whoever turned its users from 0 to GIVING; a writer
//! that comes meanwhile waits, and nobody reads where nothing is held.
//!
//! There is no lock. The bytes of a slot are not written and read at once (the contract of `Backing`); its
//! bit is set after the copy and looked at before one.
//!
//! What it does not do: checksums. RAM that flips bits breaks the rest of the process just as well.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memspill_engine::backing::{
    AtRest, Backing, BackingError, Chore, PageWrite, Properties, QueueId, ReadDone, ReadRequest, ReadStart,
    Usage,
};
use memspill_engine::units::{CLUSTER_SLOTS, PAGE_SIZE, Page, SlotIndex};

use crate::arena::Mapping;

const PAGE_WORDS: usize = PAGE_SIZE / 8;
const CLUSTER_BYTES: usize = CLUSTER_SLOTS as usize * PAGE_SIZE;
/// `users` of a cluster whose RAM is being given back.
const GIVING: u32 = 1 << 31;
/// Clusters given back by one call: some milliseconds.
const GIVEN_AT_ONCE: u32 = 16;

const _: () = assert!(CLUSTER_SLOTS.is_multiple_of(64));

/// See the module's header.
pub struct RamDisk {
    slots: u32,
    pages: Mapping,
    held: Bits,
    backed: Bits,
    users: Mapping,
    /// Batches written so far, and what that was when `tidy` last looked.
    writes: AtomicU64,
    writes_seen: AtomicU64,
}

/// One bit for each slot, and how many are set.
struct Bits {
    map: Mapping,
    count: AtomicU64,
}

impl Bits {
    fn new(slots: usize) -> io::Result<Bits> {
        Ok(Bits { map: Mapping::new(slots.div_ceil(8))?, count: AtomicU64::new(0) })
    }

    fn is_set(&self, slot: u32) -> bool {
        self.map.words()[slot as usize / 64].load(Ordering::Acquire) & 1 << (slot % 64) != 0
    }

    /// True if it was not set before.
    fn set(&self, slot: u32) -> bool {
        let before = self.map.words()[slot as usize / 64].fetch_or(1 << (slot % 64), Ordering::Release);
        before & 1 << (slot % 64) == 0
    }

    /// True if it was set before.
    fn clear(&self, slot: u32) -> bool {
        let before = self.map.words()[slot as usize / 64].fetch_and(!(1 << (slot % 64)), Ordering::AcqRel);
        before & 1 << (slot % 64) != 0
    }

    fn of_cluster(&self, cluster: u32) -> &[AtomicU64] {
        let words = (CLUSTER_SLOTS / 64) as usize;
        &self.map.words()[cluster as usize * words..][..words]
    }

    fn add(&self, bits: u64) {
        if bits > 0 {
            self.count.fetch_add(bits, Ordering::Relaxed);
        }
    }

    fn subtract(&self, bits: u64) {
        if bits > 0 {
            self.count.fetch_sub(bits, Ordering::Relaxed);
        }
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl RamDisk {
    /// A disk of `slots` slots, slot 0 included. Takes address space for all of them at once, and RAM as
    /// they are written; no address space is an error.
    pub fn open(slots: u32) -> io::Result<RamDisk> {
        let clusters = slots.div_ceil(CLUSTER_SLOTS) as usize;
        let all = clusters * CLUSTER_SLOTS as usize;
        Ok(RamDisk {
            slots,
            pages: Mapping::new(clusters * CLUSTER_BYTES)?,
            held: Bits::new(all)?,
            backed: Bits::new(all)?,
            users: Mapping::new(clusters * size_of::<u32>())?,
            writes: AtomicU64::new(0),
            writes_seen: AtomicU64::new(0),
        })
    }

    fn check(&self, slot: SlotIndex) {
        assert!(slot.0 < self.slots, "slot {} is beyond the device's {} slots", slot.0, self.slots);
    }

    fn words_of(&self, slot: u32) -> &[AtomicU64] {
        &self.pages.words()[slot as usize * PAGE_WORDS..][..PAGE_WORDS]
    }

    fn users_of(&self, cluster: u32) -> &AtomicU32 {
        &self.users.halves()[cluster as usize]
    }

    /// One more page of the cluster, whose RAM stays from here on.
    fn enter(&self, cluster: u32) {
        let users = self.users_of(cluster);
        let mut seen = users.load(Ordering::Relaxed);
        loop {
            if seen == GIVING {
                std::thread::yield_now();
                seen = users.load(Ordering::Relaxed);
                continue;
            }
            match users.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    fn leave(&self, cluster: u32) {
        let before = self.users_of(cluster).fetch_sub(1, Ordering::Release);
        assert!(
            before != 0 && before & GIVING == 0,
            "cluster {cluster} has lost a page that it did not have"
        );
    }

    /// Give back what is empty, if nothing was written since the last call. True while there is more to do.
    fn tidy(&self) -> bool {
        let writes = self.writes.load(Ordering::Relaxed);
        if self.writes_seen.swap(writes, Ordering::Relaxed) != writes || self.backed.count() == 0 {
            return false;
        }
        let mut given = 0;
        for cluster in 0..self.slots.div_ceil(CLUSTER_SLOTS) {
            if given == GIVEN_AT_ONCE {
                return true;
            }
            given += u32::from(self.give_back(cluster));
        }
        false
    }

    /// False if the cluster is in use, or has no RAM.
    fn give_back(&self, cluster: u32) -> bool {
        let users = self.users_of(cluster);
        let has_ram = || self.backed.of_cluster(cluster).iter().any(|word| word.load(Ordering::Relaxed) != 0);
        if users.load(Ordering::Relaxed) != 0
            || !has_ram()
            || users.compare_exchange(0, GIVING, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        let start = cluster as usize * CLUSTER_BYTES;
        self.pages.release(start..start + CLUSTER_BYTES);
        let words = self.backed.of_cluster(cluster).iter();
        self.backed.subtract(words.map(|word| u64::from(word.swap(0, Ordering::Relaxed).count_ones())).sum());
        users.store(0, Ordering::Release);
        true
    }

    fn copy_out(&self, slot: SlotIndex, page: &mut Page) -> Result<(), BackingError> {
        self.check(slot);
        if !self.held.is_set(slot.0) {
            return Err(BackingError::Empty);
        }
        for (bytes, word) in page.0.as_chunks_mut::<8>().0.iter_mut().zip(self.words_of(slot.0)) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        Ok(())
    }
}

impl Backing for RamDisk {
    fn properties(&self) -> Properties {
        Properties {
            slots: self.slots,
            synchronous: true,
            rotational: false,
            discard: false,
            in_rows: true,
            at_rest: AtRest::InRam,
        }
    }

    fn write(&self, _queue: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        let mut newly_held = 0;
        for PageWrite { slot, page } in pages {
            self.check(*slot);
            if !self.held.is_set(slot.0) {
                self.enter(slot.0 / CLUSTER_SLOTS);
            }
            // At once: what is given back later is taken off, and the count must not go below zero.
            if !self.backed.is_set(slot.0) && self.backed.set(slot.0) {
                self.backed.add(1);
            }
            let words = self.words_of(slot.0);
            for (word, bytes) in words.iter().zip(page.0.as_chunks::<8>().0) {
                word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
            newly_held += u64::from(self.held.set(slot.0));
            results.push(Ok(()));
        }
        // By batches: threads do not fight for the count page by page.
        self.held.add(newly_held);
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self, _queue: QueueId, request: ReadRequest) -> ReadStart {
        let ReadRequest { token, slots, mut buf, .. } = request;
        assert!(buf.len() >= slots.len(), "{} pages of buffer for {} slots", buf.len(), slots.len());
        let results = slots.iter().zip(&mut buf).map(|(slot, page)| self.copy_out(*slot, page)).collect();
        ReadStart::Done(ReadDone { token, slots, buf, results })
    }

    fn read_now(&self, slot: SlotIndex, page: &mut Page) -> Option<Result<(), BackingError>> {
        Some(self.copy_out(slot, page))
    }

    fn discard(&self, slots: &[SlotIndex]) {
        let mut gone = 0;
        for slot in slots {
            self.check(*slot);
            if self.held.clear(slot.0) {
                self.leave(slot.0 / CLUSTER_SLOTS);
                gone += 1;
            }
        }
        self.held.subtract(gone);
    }

    /// Without its tables: a bit or two for each page.
    fn usage(&self) -> Usage {
        Usage {
            ram_disk_bytes: self.backed.count() * PAGE_SIZE as u64,
            ram_pages: self.held.count(),
            ..Usage::default()
        }
    }

    fn housekeep(&self, chore: Chore) -> bool {
        match chore {
            Chore::Maintain { .. } => return self.tidy(),
            Chore::Close => {
                for cluster in 0..self.slots.div_ceil(CLUSTER_SLOTS) {
                    self.give_back(cluster);
                }
            }
            Chore::LimitRam { .. } | Chore::GiveRam { .. } | Chore::DiscardCluster(_) | Chore::EndRun => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn write(disk: &RamDisk, slot: u32, byte: u8) {
        let page = Page([byte; PAGE_SIZE]);
        let mut results = Vec::new();
        disk.write(QueueId(0), &[PageWrite { slot: SlotIndex(slot), page: &page }], &mut results);
        assert_eq!(results, [Ok(())]);
    }

    fn first_byte(disk: &RamDisk, slot: u32) -> Option<u8> {
        let buf = memspill_engine::units::page_buf(1);
        let request = ReadRequest { token: 0, slots: vec![SlotIndex(slot)], buf, is_awaited: true };
        let ReadStart::Done(done) = disk.read(QueueId(0), request) else { panic!("RAM never waits") };
        let page = &done.buf[0].0;
        assert!(page.iter().all(|byte| *byte == page[0]), "slot {slot} holds two pages' bytes");
        done.results[0].is_ok().then_some(page[0])
    }

    const MAINTAIN: Chore = Chore::Maintain { queue: QueueId(0) };

    #[test]
    fn empty_clusters_go_when_nothing_is_written() {
        let disk = RamDisk::open(4 * CLUSTER_SLOTS).unwrap();
        (1..3 * CLUSTER_SLOTS).for_each(|slot| write(&disk, slot, slot as u8));
        let all: Vec<SlotIndex> = (1..2 * CLUSTER_SLOTS).map(SlotIndex).collect();
        let full = disk.usage().ram_disk_bytes;
        disk.discard(&all[..all.len() - 1]);
        assert!(!disk.housekeep(MAINTAIN), "it was written to since the last time");
        assert_eq!(disk.usage().ram_disk_bytes, full);
        assert!(!disk.housekeep(MAINTAIN));
        // One page of the second cluster is left, which keeps the cluster.
        assert_eq!(disk.usage().ram_disk_bytes, 2 * CLUSTER_BYTES as u64);
        assert_eq!(first_byte(&disk, 2 * CLUSTER_SLOTS - 1), Some((2 * CLUSTER_SLOTS - 1) as u8));
        write(&disk, 5, 77);
        assert_eq!((first_byte(&disk, 5), first_byte(&disk, 6)), (Some(77), None));
        assert_eq!(disk.usage().ram_pages, u64::from(CLUSTER_SLOTS) + 2);
    }

    /// Pages come and go in two clusters, a writer in each, while both are given back again and again.
    #[test]
    fn a_page_that_is_written_meanwhile_stays() {
        const GIVEN: u32 = 200;
        let disk = RamDisk::open(2 * CLUSTER_SLOTS).unwrap();
        let (given, failed) = (AtomicU32::new(0), AtomicBool::new(false));
        let over = || given.load(Ordering::Relaxed) >= GIVEN || failed.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            for cluster in [0, 1] {
                let (disk, failed, over) = (&disk, &failed, &over);
                scope.spawn(move || {
                    let slots = [3, 400].map(|slot| cluster * CLUSTER_SLOTS + slot);
                    for round in 0u32.. {
                        if over() {
                            return;
                        }
                        for slot in slots {
                            write(disk, slot, (round ^ slot) as u8);
                        }
                        for slot in slots {
                            if first_byte(disk, slot) != Some((round ^ slot) as u8) {
                                failed.store(true, Ordering::Relaxed);
                                panic!("round {round}: the page of slot {slot} is gone");
                            }
                        }
                        disk.discard(&slots.map(SlotIndex));
                        // Empty for a moment, so that it can be given back.
                        std::thread::yield_now();
                    }
                });
            }
            while !over() {
                let now = u32::from(disk.give_back(0)) + u32::from(disk.give_back(1));
                given.fetch_add(now, Ordering::Relaxed);
            }
        });
        disk.give_back(0);
        disk.give_back(1);
        assert_eq!(disk.usage(), Usage::default());
    }
}
