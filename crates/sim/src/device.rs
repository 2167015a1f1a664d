//! Swap devices that are simulated: what they hold, what each request costs, and the faults that are planned
//! for them.
//!
//! Contract checks that no real device makes: a slot is never read while it holds nothing, nor written or
//! discarded while it is being read. What it does not do: the locks of the real backings (the pool's size
//! classes, the ring's queue); all requests of a device run side by side, so that devices are not the limit.

use crate::target::Lost;
use memspill_engine_sim::backing::{
    AtRest, Backing, BackingError, Chore, PageWrite, Properties, QueueId, ReadDone, ReadRequest, ReadStart,
    Usage,
};
use memspill_engine_sim::testing::stamp::stamp_of;
use memspill_engine_sim::testing::store::Store;
use memspill_engine_sim::units::{Order, Page, SlotIndex};
use memspill_vcpu::random::Random;
use memspill_vcpu::{cost, now, spend, step};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
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
    /// Its server is away from then until then: reads by faults wait for it, all else comes back and may be
    /// tried again. Of a device whose reads end later.
    pub away_from_ns: u64,
    pub away_until_ns: u64,
    /// From then on the device works, so that a history can end.
    pub until_ns: u64,
}

struct Inner {
    store: Store,
    /// Reads under way on each queue, with the time at which they end.
    started: BTreeMap<u32, Vec<(u64, ReadRequest)>>,
    random: Random,
    /// Slots whose page a RAM disk has not allocated yet.
    fresh: Vec<bool>,
}

pub struct SimDevice {
    kind: DeviceKind,
    slots: u32,
    faults: Faults,
    discard: bool,
    keeps: bool,
    rotational: bool,
    /// The order of what one request reads or writes; None: all that is given at once.
    pieces: Option<Order>,
    lost: Arc<Lost>,
    inner: Mutex<Inner>,
}

impl SimDevice {
    pub fn new(kind: DeviceKind, slots: u32, faults: Faults, lost: Arc<Lost>) -> SimDevice {
        let (store, started, random) = (Store::default(), BTreeMap::new(), Random::new(faults.seed));
        let inner = Inner { store, started, random, fresh: Vec::new() };
        let (discard, keeps, rotational, pieces) = (false, false, false, None);
        SimDevice { kind, slots, faults, discard, keeps, rotational, pieces, lost, inner: Mutex::new(inner) }
    }

    /// The same with `discard=pages`.
    pub fn discarding(self, discard: bool) -> SimDevice {
        SimDevice { discard, ..self }
    }

    /// The same with copies that are worth keeping while their pages are in memory: of most pages, not of
    /// all, as where some compress.
    pub fn keeping(self, keeps: bool) -> SimDevice {
        SimDevice { keeps, ..self }
    }

    /// The same, said to turn: pages are read ahead by slot. Costs nothing more.
    pub fn rotating(self, rotational: bool) -> SimDevice {
        SimDevice { rotational, ..self }
    }

    /// The same of which no page was ever written: a RAM disk allocates it then, and zeroes it.
    pub fn fresh(self, fresh: bool) -> SimDevice {
        let slots = if fresh && self.kind == DeviceKind::RamDisk { self.slots as usize } else { 0 };
        self.lock().fresh = vec![true; slots];
        self
    }

    /// The same with a request for each folio of that order.
    pub fn in_pieces(self, pieces: Option<Order>) -> SimDevice {
        SimDevice { pieces, ..self }
    }

    /// Requests that so many slots, given at once, make.
    fn requests<'a>(&self, slots: impl Iterator<Item = &'a SlotIndex>) -> u64 {
        let Some(order) = self.pieces else { return 1 };
        let mut before = None;
        slots.filter(|slot| before.replace(slot.0 >> order.0) != Some(slot.0 >> order.0)).count() as u64
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.try_lock().expect("tasks take turns, and none stops in here")
    }

    /// When the next read of a queue ends.
    pub fn next_end(&self, queue: QueueId) -> Option<u64> {
        self.lock().started.get(&queue.0)?.iter().map(|(end, _)| *end).min()
    }

    /// Does no slot hold anything?
    pub fn is_empty(&self) -> bool {
        self.lock().store.is_empty()
    }

    /// (for the request, for each page)
    fn write_cost(&self) -> (u64, u64) {
        match self.kind {
            DeviceKind::Ram => (0, cost::COMPRESS_PAGE_NS),
            DeviceKind::RamDisk => (cost::RAMDISK_REQUEST_NS, cost::RAMDISK_PAGE_NS),
            DeviceKind::Nvme => (cost::NVME_WRITE_NS, cost::NVME_PAGE_NS),
        }
    }
    fn read_cost(&self) -> (u64, u64) {
        match self.kind {
            DeviceKind::Ram => (0, cost::DECOMPRESS_PAGE_NS),
            DeviceKind::RamDisk => (cost::RAMDISK_REQUEST_NS, cost::RAMDISK_PAGE_NS),
            DeviceKind::Nvme => (cost::NVME_READ_NS, cost::NVME_PAGE_NS),
        }
    }
}

impl Inner {
    fn fault_happens(&mut self, one_in: u64, faults: &Faults) -> bool {
        fault_happens(&mut self.random, one_in, faults)
    }

    fn finish(&mut self, device: &SimDevice, request: ReadRequest) -> ReadDone {
        let Inner { store, random, .. } = self;
        let faults = &device.faults;
        store.end_read(request, |stamp| {
            if faults.away_until().is_some() {
                return Some(BackingError::Short(11));
            }
            if fault_happens(random, faults.short, faults) {
                return Some(BackingError::Short(12));
            }
            let fails = fault_happens(random, faults.read_fails, faults);
            if fails {
                device.lost.lock().expect("lost").insert(stamp);
            }
            fails.then_some(BackingError::Io(5))
        })
    }
}

impl Faults {
    /// Until when the server is away, if it is now.
    fn away_until(&self) -> Option<u64> {
        (self.away_from_ns..self.away_until_ns).contains(&now()).then_some(self.away_until_ns)
    }
}

fn fault_happens(random: &mut Random, one_in: u64, faults: &Faults) -> bool {
    one_in > 0 && now() < faults.until_ns && random.one_in(one_in)
}

impl Backing for SimDevice {
    fn properties(&self) -> Properties {
        Properties {
            slots: self.slots,
            synchronous: self.kind != DeviceKind::Nvme,
            rotational: self.rotational,
            discard: self.discard,
            in_rows: self.kind != DeviceKind::Ram,
            at_rest: AtRest::InRam,
        }
    }

    fn write(&self, _: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        let (request, page) = self.write_cost();
        step(request * self.requests(pages.iter().map(|write| &write.slot)));
        for write in pages {
            let mut inner = self.lock();
            let is_fresh = inner.fresh.get_mut(write.slot.0 as usize).is_some_and(std::mem::take);
            drop(inner);
            step(page + if is_fresh { cost::FRESH_PAGE_NS } else { 0 });
            let mut inner = self.lock();
            let error = if self.faults.away_until().is_some() {
                Some(BackingError::Short(11))
            } else if inner.fault_happens(self.faults.full, &self.faults) {
                Some(BackingError::Full)
            } else if inner.fault_happens(self.faults.short, &self.faults) {
                Some(BackingError::Short(12))
            } else {
                inner.fault_happens(self.faults.write_fails, &self.faults).then_some(BackingError::Io(5))
            };
            inner.store.write(write.slot, error.is_none().then_some(write.page));
            results.push(error.map_or(Ok(()), Err));
        }
    }

    fn read(&self, queue: QueueId, request: ReadRequest) -> ReadStart {
        let (per_request, per_page) = self.read_cost();
        let requests = self.requests(request.slots.iter());
        let mut takes = per_request * requests + per_page * request.slots.len() as u64;
        {
            let mut inner = self.lock();
            inner.store.begin_read(&request.slots);
            if inner.fault_happens(self.faults.delays, &self.faults) {
                takes += inner.random.below(self.faults.longest_delay_ns);
            }
        }
        if self.kind == DeviceKind::Nvme {
            let back = self.faults.away_until().filter(|_| request.is_awaited);
            let end = back.unwrap_or(now()) + takes;
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

    fn discard(&self, slots: &[SlotIndex]) {
        self.lock().store.discard(slots);
        spend(cost::L2_NS * slots.len() as u64);
    }

    fn keeps(&self, slot: SlotIndex, page: Option<&Page>) -> bool {
        let is_it = |stamp| stamp % 4 != 0 && page.is_none_or(|page| stamp == stamp_of(page));
        self.keeps && self.lock().store.stamp(slot).is_some_and(is_it)
    }

    fn housekeep(&self, chore: Chore) -> bool {
        match chore {
            // Takes as long as a write; what is written meanwhile is gone when it ends.
            Chore::DiscardCluster(cluster) => {
                step(cost::NVME_WRITE_NS);
                self.lock().store.check_discarded(cluster);
            }
            Chore::Close => assert!(self.is_empty(), "a device that holds pages is closed"),
            Chore::Maintain { .. } | Chore::GiveRam { .. } | Chore::LimitRam { .. } | Chore::EndRun => {}
        }
        false
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_one_request_or_one_for_each_folio() {
        let slots: Vec<SlotIndex> = [16, 17, 18, 31, 32, 40, 64].map(SlotIndex).into();
        let requests = |pieces| {
            let device = SimDevice::new(DeviceKind::RamDisk, 128, Faults::default(), Arc::default());
            device.in_pieces(pieces).requests(slots.iter())
        };
        assert_eq!((requests(None), requests(Some(Order(0))), requests(Some(Order(4)))), (1, 7, 3));
    }
}
