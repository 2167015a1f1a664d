//! Swap devices that are simulated: what they hold, what each request costs, and the faults that are planned for them.
//!
//! Contract checks that no real device makes: a slot is never read while it holds nothing, nor written or discarded while
//! it is being read. What it does not do: the locks of the real backings (the pool's size classes, the ring's queue); all
//! requests of a device run side by side, so that devices are not the limit.

use crate::stamp::{stamp_of, stamped};
use crate::target::Lost;
use memspill_engine_sim::backing::{
    Backing, BackingError, PageWrite, Properties, QueueId, ReadDone, ReadRequest, ReadStart, Usage,
};
use memspill_engine_sim::units::{CLUSTER_SLOTS, ClusterIndex, Page, SlotIndex};
use memspill_vcpu::random::Random;
use memspill_vcpu::{cost, now, spend, step};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Compressed RAM: reads end at once.
    Ram,
    /// A RAM disk: no compression.
    RamDisk,
    /// Reads end later.
    Nvme,
}

/// Faults of a device. Chances are one in so many pages or reads; 0 is never.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    pub seed: u64,
    pub read_fails: u64,
    pub write_fails: u64,
    pub full: u64,
    /// No memory for the request, to read or to write: it passes.
    pub short: u64,
    pub delays: u64,
    pub longest_delay_ns: u64,
    /// From then on the device works, so that a history can end.
    pub until_ns: u64,
}

struct Inner {
    stamps: Vec<Option<u64>>,
    readers: BTreeMap<u32, u32>,
    /// Reads under way on each queue, with the time at which they end.
    started: BTreeMap<u32, Vec<(u64, ReadRequest)>>,
    random: Random,
}

pub struct SimDevice {
    kind: Kind,
    faults: Faults,
    discard: bool,
    keeps: bool,
    lost: Arc<Lost>,
    inner: Mutex<Inner>,
}

impl SimDevice {
    pub fn new(kind: Kind, slots: u32, faults: Faults, lost: Arc<Lost>) -> SimDevice {
        let inner = Inner {
            stamps: vec![None; slots as usize],
            readers: BTreeMap::new(),
            started: BTreeMap::new(),
            random: Random::new(faults.seed),
        };
        SimDevice { kind, faults, discard: false, keeps: false, lost, inner: Mutex::new(inner) }
    }

    /// The same with `discard=pages`.
    pub fn discarding(self, discard: bool) -> SimDevice {
        SimDevice { discard, ..self }
    }

    /// The same with copies that are worth keeping while their pages are in memory: of most pages, not of all, as where some
    /// compress.
    pub fn keeping(self, keeps: bool) -> SimDevice {
        SimDevice { keeps, ..self }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.try_lock().expect("tasks take turns, and none stops in here")
    }

    /// When the next read of a queue ends.
    pub fn next_end(&self, queue: QueueId) -> Option<u64> {
        self.lock().started.get(&queue.0)?.iter().map(|(end, _)| *end).min()
    }

    /// Slots that hold something.
    pub fn held(&self) -> usize {
        self.lock().stamps.iter().flatten().count()
    }

    /// (for the request, for each page)
    fn write_cost(&self) -> (u64, u64) {
        match self.kind {
            Kind::Ram => (0, cost::COMPRESS_PAGE_NS),
            Kind::RamDisk => (cost::RAMDISK_REQUEST_NS, cost::RAMDISK_PAGE_NS),
            Kind::Nvme => (cost::NVME_WRITE_NS, cost::NVME_PAGE_NS),
        }
    }
    fn read_cost(&self) -> (u64, u64) {
        match self.kind {
            Kind::Ram => (0, cost::DECOMPRESS_PAGE_NS),
            Kind::RamDisk => (cost::RAMDISK_REQUEST_NS, cost::RAMDISK_PAGE_NS),
            Kind::Nvme => (cost::NVME_READ_NS, cost::NVME_PAGE_NS),
        }
    }
}

impl Inner {
    fn happens(&mut self, one_in: u64, faults: &Faults) -> bool {
        one_in > 0 && now() < faults.until_ns && self.random.one_in(one_in)
    }

    /// The slots are looked at when the read ends: had one been given away meanwhile, it would show.
    fn finish(&mut self, device: &SimDevice, mut request: ReadRequest) -> ReadDone {
        let mut results = Vec::with_capacity(request.slots.len());
        for (i, slot) in request.slots.iter().enumerate() {
            let readers = self.readers.get_mut(&slot.0).expect("a read that was started");
            *readers -= 1;
            if *readers == 0 {
                self.readers.remove(&slot.0);
            }
            let stamp =
                self.stamps[slot.index()].unwrap_or_else(|| panic!("{slot:?} is read, and holds nothing"));
            if self.happens(device.faults.short, &device.faults) {
                request.buf[i] = stamped(0xDEAD_BEEF_DEAD_BEEF);
                results.push(Err(BackingError::Short(12)));
            } else if self.happens(device.faults.read_fails, &device.faults) {
                device.lost.lock().expect("lost").insert(stamp);
                // What a failed read leaves behind must never be seen.
                request.buf[i] = stamped(0xDEAD_BEEF_DEAD_BEEF);
                results.push(Err(BackingError::Io(5)));
            } else {
                request.buf[i] = stamped(stamp);
                results.push(Ok(()));
            }
        }
        ReadDone { token: request.token, slots: request.slots, buf: request.buf, results }
    }
}

impl Backing for SimDevice {
    fn properties(&self) -> Properties {
        let slots = self.lock().stamps.len() as u32;
        Properties { slots, synchronous: self.kind != Kind::Nvme, rotational: false, discard: self.discard }
    }

    fn write(&self, _: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        let (request, page) = self.write_cost();
        step(request);
        for write in pages {
            step(page);
            let mut inner = self.lock();
            let slot = write.slot;
            assert!(!inner.readers.contains_key(&slot.0), "{slot:?} is written while it is being read");
            let error = if inner.happens(self.faults.full, &self.faults) {
                Some(BackingError::Full)
            } else if inner.happens(self.faults.short, &self.faults) {
                Some(BackingError::Short(12))
            } else {
                inner.happens(self.faults.write_fails, &self.faults).then_some(BackingError::Io(5))
            };
            inner.stamps[slot.index()] = error.is_none().then(|| stamp_of(write.page));
            results.push(error.map_or(Ok(()), Err));
        }
    }

    fn read(&self, queue: QueueId, request: ReadRequest) -> ReadStart {
        let (per_request, per_page) = self.read_cost();
        let mut takes = per_request + per_page * request.slots.len() as u64;
        {
            let mut inner = self.lock();
            for slot in &request.slots {
                assert!(inner.stamps[slot.index()].is_some(), "{slot:?} is read, and holds nothing");
                *inner.readers.entry(slot.0).or_default() += 1;
            }
            if inner.happens(self.faults.delays, &self.faults) {
                takes += inner.random.below(self.faults.longest_delay_ns);
            }
        }
        if self.kind == Kind::Nvme {
            let end = now() + takes;
            self.lock().started.entry(queue.0).or_default().push((end, request));
            return ReadStart::Pending;
        }
        step(takes);
        ReadStart::Done(self.lock().finish(self, request))
    }

    fn reap(&self, queue: QueueId, done: &mut Vec<ReadDone>) {
        let mut inner = self.lock();
        let Some(started) = inner.started.get_mut(&queue.0) else { return };
        let ended: Vec<ReadRequest> =
            started.extract_if(.., |(end, _)| *end <= now()).map(|(_, r)| r).collect();
        for request in ended {
            let read = inner.finish(self, request);
            done.push(read);
        }
    }

    fn poll_fd(&self, _: QueueId) -> Option<i32> {
        None
    }

    fn discard(&self, slots: &[SlotIndex]) {
        let mut inner = self.lock();
        for slot in slots {
            assert!(!inner.readers.contains_key(&slot.0), "{slot:?} is discarded while it is being read");
            inner.stamps[slot.index()] = None;
        }
        spend(cost::L2_NS * slots.len() as u64);
    }

    /// Takes as long as a write; what is written meanwhile is gone when it ends.
    fn discard_cluster(&self, cluster: ClusterIndex) {
        step(cost::NVME_WRITE_NS);
        let inner = self.lock();
        let first = (cluster.0 * CLUSTER_SLOTS) as usize;
        let held = inner.stamps.iter().skip(first).take(CLUSTER_SLOTS as usize).flatten().count();
        assert_eq!(held, 0, "{cluster:?} holds pages when it has been discarded");
    }

    fn maintain(&self, _: QueueId) -> bool {
        false
    }
    fn keeps(&self, slot: SlotIndex) -> bool {
        self.keeps && self.lock().stamps[slot.index()].is_some_and(|stamp| stamp % 4 != 0)
    }
    fn still_holds(&self, slot: SlotIndex, page: &Page) -> bool {
        self.keeps(slot) && self.lock().stamps[slot.index()] == Some(stamp_of(page))
    }
    fn set_ram_limit_bytes(&self, _: u64) {}
    fn close(&self) {
        assert_eq!(self.held(), 0, "a device that holds pages is closed");
    }
    fn usage(&self) -> Usage {
        Usage::default()
    }
}
