//! The engine: swap devices, staging, the memory group, and the address spaces that share them.
//!
//! The three stories are told elsewhere: a page goes out in `swap_out.rs`, comes in in `swap_in.rs`, and follows its
//! address space's changes in `space.rs`.

use crate::backing::{QueueId, ReadDone};
pub use crate::devices::{Device, Devices, TooManyDevices};
use crate::group::{Group, GroupConfig, Groups};
use crate::kept::Kept;
use crate::space::Space;
use crate::stats::Stats;
use crate::swap_in::FillJob;
use crate::swapoff::Swapoff;
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, RwLock, lock};
use crate::tuning::Tuning;
use crate::units::{CpuId, FrameId, MAX_ORDER, Order, PageBuf, SlotIndex, page_buf};
use crate::word::SwapEntry;
use std::collections::HashMap;

/// Most pages taken out in one batch, unless the folios asked for are larger.
pub const BATCH_PAGES: usize = 128;

pub struct Engine {
    pub devices: Devices,
    pub groups: Arc<Groups>,
    /// The root of the groups, whose maximum is the budget.
    pub group: Arc<Group>,
    pub stats: Stats,
    pub tuning: Tuning,
    pub(crate) staging: Staging,
    pub(crate) reads: Reads,
    /// Pages taken out so far: the clock of refault distances.
    pub(crate) evictions: AtomicU32,
    /// Replaced as a whole: who walks it for each batch takes no reference to each.
    spaces: RwLock<Arc<Vec<Arc<Space>>>>,
    /// Removed, with fills still under way, whose pages are charged until they end: for the checker.
    leaving: Mutex<Vec<Arc<Space>>>,
    next_device: AtomicU32,
    /// Where the next search for a space to take pages from begins.
    pub(crate) next_pick: AtomicU32,
    /// A page found no place on any device since this was last cleared.
    pub swap_is_full: AtomicBool,
    /// Pages whose write failed: they stay in the swap cache, and their write is tried again.
    pub(crate) unwritten: Mutex<Vec<(SwapEntry, FrameId)>>,
    /// There are none: each batch asks.
    pub(crate) all_written: AtomicBool,
    pub(crate) kept: Kept,
    /// The swapoff that is under way.
    pub(crate) swapoff: Mutex<Option<Swapoff>>,
    pub(crate) swapoff_stop: AtomicBool,
    /// The last error that belongs to no device, for the line on stderr.
    pub last_error: Mutex<Option<String>>,
}

impl Engine {
    /// With one group, the root.
    pub fn new(devices: Vec<Device>, limit_bytes: u64, tuning: Tuning) -> Engine {
        Engine::with_groups(devices, &[GroupConfig::root(limit_bytes)], tuning)
    }

    /// With a tree of groups, the root first.
    pub fn with_groups(devices: Vec<Device>, groups: &[GroupConfig], tuning: Tuning) -> Engine {
        let groups = Groups::new(groups);
        Engine {
            devices: Devices::new(devices),
            group: groups.root().clone(),
            groups: Arc::new(groups),
            stats: Stats::default(),
            staging: Staging::new(BATCH_PAGES.max(crate::folio::pages_asked_for(&tuning))),
            tuning,
            reads: Reads::default(),
            evictions: AtomicU32::new(0),
            spaces: RwLock::new(Arc::new(Vec::new())),
            leaving: Mutex::new(Vec::new()),
            next_device: AtomicU32::new(0),
            next_pick: AtomicU32::new(0),
            swap_is_full: AtomicBool::new(false),
            unwritten: Mutex::new(Vec::new()),
            all_written: AtomicBool::new(true),
            kept: Kept::default(),
            swapoff: Mutex::new(None),
            swapoff_stop: AtomicBool::new(false),
            last_error: Mutex::new(None),
        }
    }

    pub fn add_space(&self, space: Arc<Space>) {
        let mut spaces = self.spaces.write().expect("spaces");
        let with = spaces.iter().cloned().chain(std::iter::once(space)).collect();
        *spaces = Arc::new(with);
    }
    pub fn remove_space(&self, space: &Arc<Space>) {
        let mut spaces = self.spaces.write().expect("spaces");
        let without = spaces.iter().filter(|s| !Arc::ptr_eq(s, space)).cloned().collect();
        *spaces = Arc::new(without);
        drop(spaces);
        let mut leaving = lock(&self.leaving);
        leaving.push(space.clone());
        leaving.retain(|s| s.resident_pages() > 0);
    }
    pub fn spaces(&self) -> Vec<Arc<Space>> {
        self.list_of_spaces().to_vec()
    }
    /// As they are now, without a reference to each.
    pub(crate) fn list_of_spaces(&self) -> Arc<Vec<Arc<Space>>> {
        self.spaces.read().expect("spaces").clone()
    }

    pub(crate) fn all_spaces(&self) -> Vec<Arc<Space>> {
        let mut all = self.spaces();
        all.extend(lock(&self.leaving).iter().cloned());
        all
    }

    /// Bytes of the engine's own tables: page tables, LRUs, swap maps.
    pub fn table_bytes(&self) -> u64 {
        self.spaces.read().expect("spaces").iter().map(|s| s.table_bytes()).sum::<u64>()
            + self.devices.ever().map(|d| d.slots.table_bytes()).sum::<u64>()
    }
    pub fn staging_bytes(&self) -> u64 {
        self.staging.bytes()
    }
    pub fn used_slots(&self) -> u64 {
        self.devices.iter().map(|d| d.slots.used_slots()).sum()
    }

    /// Another device to take pages, while the run goes on. Returns its place (`Devices`).
    pub fn swapon(&self, device: Device) -> Result<usize, TooManyDevices> {
        self.devices.add(device)
    }

    /// Slots for up to `n` folios of `order` that belong to `group`, the first slot of each: from the first device that has
    /// some; equal priorities take turns. Large folios are split rather than sent to a device of lower priority.
    pub(crate) fn alloc_slots(
        &self,
        cpu: CpuId,
        group: &Group,
        order: Order,
        n: usize,
        out: &mut Vec<SwapEntry>,
    ) -> usize {
        let pages = u64::from(order.pages());
        let charged = group.charge_swap(n as u64 * pages);
        let got = self.alloc_charged(cpu, group, order, (charged / pages) as usize, out);
        group.uncharge_swap(charged - got as u64 * pages);
        got
    }

    /// As `alloc_slots`, of pages that are charged.
    pub(crate) fn alloc_charged(
        &self,
        cpu: CpuId,
        group: &Group,
        order: Order,
        n: usize,
        out: &mut Vec<SwapEntry>,
    ) -> usize {
        let mut got = 0;
        let turn = self.next_device.fetch_add(1, Ordering::Relaxed) as usize;
        let mut slots = Vec::with_capacity(n);
        let takers: Vec<usize> = self.devices.takers().collect();
        for equals in takers.chunk_by(|a, b| self.devices[*a].priority == self.devices[*b].priority) {
            let mut has_room = false;
            for i in 0..equals.len() {
                let device = equals[(turn + i) % equals.len()];
                let target = &self.devices[device];
                if got == n || !target.takes_pages() {
                    continue;
                }
                // A sum over the CPUs' counters: not for single pages, which go on to the next device anyway.
                has_room |= order != Order::ZERO && target.slots.free_slots() > 0;
                slots.clear();
                got += target.slots.alloc(cpu, order, n - got, group.id, &mut slots);
                out.extend(slots.iter().map(|slot| SwapEntry { device: device as u8, slot: *slot }));
            }
            if has_room {
                break;
            }
        }
        got
    }

    /// Pages of the group for which there are slots now.
    pub(crate) fn room_pages(&self, group: &Group) -> usize {
        let allowed = group.swap_room_pages();
        let free: u64 = self.devices.iter().filter(|d| d.takes_pages()).map(|d| d.slots.free_slots()).sum();
        free.min(allowed) as usize
    }

    /// One more reference to each entry (fork, mremap of a page that is being filled).
    pub(crate) fn dup_entries(&self, entries: &[SwapEntry]) {
        self.per_device(entries, |device, slots| device.slots.dup_many(slots));
    }

    /// Drop a reference to each entry. A slot with no reference left is discarded from its backing first, and may be
    /// allocated again only after that.
    pub(crate) fn free_entries(&self, cpu: CpuId, entries: &[SwapEntry]) {
        self.per_device(entries, |device, slots| {
            let mut freed = Vec::new();
            device.slots.put(slots, &mut freed);
            self.reuse(cpu, device, &freed);
        });
    }

    /// Slots that have lost their last reference: discard their copies, make them free, uncharge their owners.
    pub(crate) fn reuse(&self, cpu: CpuId, device: &Device, freed: &[SlotIndex]) {
        if freed.is_empty() {
            return;
        }
        device.backing.discard(freed);
        device.has_room();
        for (group, slots) in device.slots.release(cpu, freed) {
            self.groups.of(group).uncharge_swap(u64::from(slots));
        }
    }

    pub(crate) fn per_device(&self, entries: &[SwapEntry], mut act: impl FnMut(&Device, &[SlotIndex])) {
        if entries.is_empty() {
            return;
        }
        let mut slots = Vec::with_capacity(entries.len());
        for (n, device) in self.devices.iter().enumerate() {
            slots.clear();
            slots.extend(entries.iter().filter(|e| e.device as usize == n).map(|e| e.slot));
            if !slots.is_empty() {
                // In runs, so that each cluster is locked once.
                slots.sort_unstable();
                act(device, &slots);
            }
        }
    }
}

/// Reads in flight: token → what they are for. Each queue has its part, because every fault that reads passes through.
pub(crate) struct Reads {
    parts: [Mutex<ReadsOfQueue>; READS_PARTS],
}

#[derive(Default)]
struct ReadsOfQueue {
    started: u64,
    jobs: HashMap<u64, FillJob>,
}

const READS_PARTS: usize = 64;

impl Default for Reads {
    fn default() -> Reads {
        Reads { parts: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Reads {
    /// A token for a read on `queue` that brings `job`.
    pub fn start(&self, queue: QueueId, job: FillJob) -> u64 {
        let part = queue.0 as usize % READS_PARTS;
        let mut reads = lock(&self.parts[part]);
        reads.started += 1;
        let token = reads.started * READS_PARTS as u64 + part as u64;
        reads.jobs.insert(token, job);
        token
    }

    /// Take a finished read's job back.
    pub fn finish(&self, done: &ReadDone) -> FillJob {
        let mut reads = lock(&self.parts[(done.token % READS_PARTS as u64) as usize]);
        reads.jobs.remove(&done.token).expect("a read finished that was not started")
    }
}

/// Staging: the bytes of pages between the address space and their slots (the data of the swap cache).
///
/// A batch's buffer is written once, by `Memory::take`, and then shared read-only by the writer and by faults that take
/// pages back. Each CPU that takes batches has its part, for a batch comes by four times. A frame id names all of it:
/// `number << 17 | part << 9 | page`.
pub(crate) struct Staging {
    parts: Box<[StagingPart]>,
    /// Pages of a buffer.
    batch_pages: usize,
    /// Buffers that there are, with frames, spare, and being filled: for the account, which asks after each batch.
    buffers: AtomicU64,
}

/// On lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct StagingPart(Mutex<StagingInner>);

#[derive(Default)]
struct StagingInner {
    batches: Vec<Option<Batch>>,
    /// A buffer that is free, kept so that its pages need not be faulted in again: what one CPU uses at a time.
    spare: Option<PageBuf>,
}

struct Batch {
    buf: Arc<PageBuf>,
    /// Frames of this batch that are in the swap cache, or pinned there by a fault.
    frames: usize,
}

const FRAME_PAGE_BITS: u32 = 9;
const FRAME_PART_BITS: u32 = 8;
/// CPUs that stage apart; more of them share.
const STAGING_PARTS: usize = 1 << FRAME_PART_BITS;
const _: () = assert!(BATCH_PAGES <= 1 << FRAME_PAGE_BITS && MAX_ORDER as u32 <= FRAME_PAGE_BITS);

/// What a frame id names.
struct FrameParts {
    number: usize,
    part: usize,
    page: usize,
}

impl FrameParts {
    fn of(frame: FrameId) -> FrameParts {
        let bits = |from: u32, bits: u32| (frame.0 >> from) as usize & ((1 << bits) - 1);
        FrameParts {
            number: (frame.0 >> (FRAME_PART_BITS + FRAME_PAGE_BITS)) as usize,
            part: bits(FRAME_PAGE_BITS, FRAME_PART_BITS),
            page: bits(0, FRAME_PAGE_BITS),
        }
    }

    fn id(&self) -> FrameId {
        let number = u32::try_from(self.number)
            .ok()
            .filter(|n| *n < 1 << (u32::BITS - FRAME_PART_BITS - FRAME_PAGE_BITS));
        let number = number.expect("batches in staging fit into memory");
        FrameId((number << FRAME_PART_BITS | self.part as u32) << FRAME_PAGE_BITS | self.page as u32)
    }
}

impl Staging {
    fn new(batch_pages: usize) -> Staging {
        let parts = (0..STAGING_PARTS).map(|_| StagingPart::default()).collect();
        Staging { parts, batch_pages, buffers: AtomicU64::new(0) }
    }

    fn part_of(&self, cpu: CpuId) -> usize {
        cpu.index() % STAGING_PARTS
    }

    #[track_caller]
    fn lock_part(&self, part: usize) -> MutexGuard<'_, StagingInner> {
        lock(&self.parts[part].0)
    }

    /// Most pages of a batch.
    pub fn batch_pages(&self) -> usize {
        self.batch_pages
    }

    pub fn buffer(&self, cpu: CpuId) -> PageBuf {
        let spare = self.lock_part(self.part_of(cpu)).spare.take();
        spare.unwrap_or_else(|| {
            self.buffers.fetch_add(1, Ordering::Relaxed);
            page_buf(self.batch_pages)
        })
    }

    /// Publish a filled buffer of which `frames` pages will be in the swap cache; returns the frame of its page 0.
    pub fn publish(&self, cpu: CpuId, buf: PageBuf, frames: usize) -> FrameId {
        assert!(frames > 0);
        let part = self.part_of(cpu);
        let mut inner = self.lock_part(part);
        let number = match inner.batches.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                inner.batches.push(None);
                inner.batches.len() - 1
            }
        };
        inner.batches[number] = Some(Batch { buf: Arc::new(buf), frames });
        FrameParts { number, part, page: 0 }.id()
    }

    /// The buffers of frames that are all cached or pinned, and each page's place in its own.
    pub fn get_many(&self, frames: impl Iterator<Item = FrameId>) -> Vec<(Arc<PageBuf>, usize)> {
        let frames: Vec<FrameParts> = frames.map(FrameParts::of).collect();
        let mut pages = Vec::with_capacity(frames.len());
        for of_part in frames.chunk_by(|a, b| a.part == b.part) {
            let inner = self.lock_part(of_part[0].part);
            pages.extend(of_part.iter().map(|frame| (inner.batch(frame).buf.clone(), frame.page)));
        }
        pages
    }

    /// These frames are neither cached nor pinned any more.
    pub fn free_frames(&self, frames: &[FrameId]) {
        let frames: Vec<FrameParts> = frames.iter().copied().map(FrameParts::of).collect();
        for of_part in frames.chunk_by(|a, b| a.part == b.part) {
            let mut inner = self.lock_part(of_part[0].part);
            for frame in of_part {
                self.free_frame(&mut inner, frame);
            }
        }
    }

    fn free_frame(&self, inner: &mut StagingInner, frame: &FrameParts) {
        let slot = &mut inner.batches[frame.number];
        let batch = slot.as_mut().expect("a frame was freed twice");
        batch.frames -= 1;
        if batch.frames > 0 {
            return;
        }
        let buf = slot.take().expect("it was there").buf;
        // Somebody may still be copying out of it: then the memory goes when he is done.
        match Arc::try_unwrap(buf) {
            Ok(buf) => self.keep_or_drop(inner, buf),
            Err(_) => _ = self.buffers.fetch_sub(1, Ordering::Relaxed),
        }
    }

    /// A buffer from which nothing was published.
    pub fn give_back(&self, cpu: CpuId, buf: PageBuf) {
        self.keep_or_drop(&mut self.lock_part(self.part_of(cpu)), buf);
    }

    fn keep_or_drop(&self, inner: &mut StagingInner, buf: PageBuf) {
        if inner.spare.is_none() {
            inner.spare = Some(buf);
        } else {
            self.buffers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Pages that are in the swap cache, or pinned there.
    pub fn frames(&self) -> usize {
        let frames_in =
            |part| self.lock_part(part).batches.iter().flatten().map(|batch| batch.frames).sum::<usize>();
        (0..STAGING_PARTS).map(frames_in).sum()
    }

    pub fn bytes(&self) -> u64 {
        self.buffers.load(Ordering::Relaxed) * (self.batch_pages * crate::units::PAGE_SIZE) as u64
    }
}

impl StagingInner {
    fn batch(&self, frame: &FrameParts) -> &Batch {
        self.batches[frame.number].as_ref().expect("a pinned frame has its batch")
    }
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;

    #[test]
    fn a_frame_finds_its_buffer_and_a_cpu_its_own_spare_one() {
        let staging = Staging::new(2);
        let cpus = [0, 1, 255, 257].map(CpuId);
        let first_frames = cpus.map(|cpu| {
            let mut buf = staging.buffer(cpu);
            buf[1].0[0] = (cpu.0 as u8).wrapping_add(7);
            staging.publish(cpu, buf, 1)
        });
        assert_eq!(staging.bytes(), 4 * 2 * crate::units::PAGE_SIZE as u64);
        let second = first_frames.map(|frame| FrameId(frame.0 + 1));
        let pages = staging.get_many(second.into_iter());
        assert_eq!(pages.iter().map(|(buf, at)| buf[*at].0[0]).collect::<Vec<_>>(), [7, 8, 6, 8]);
        drop(pages);
        staging.free_frames(&second);
        // 1 and 257 share a part, which keeps one of their two.
        assert_eq!((staging.frames(), staging.bytes()), (0, 3 * 2 * crate::units::PAGE_SIZE as u64));
        staging.give_back(CpuId(255), staging.buffer(CpuId(255)));
        assert_eq!(staging.bytes(), 3 * 2 * crate::units::PAGE_SIZE as u64, "the spare one");
    }
}
