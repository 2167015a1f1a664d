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
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, RwLock, lock};
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
/// pages back. A frame id names batch and page: `batch << 9 | page`.
pub(crate) struct Staging {
    inner: Mutex<StagingInner>,
    /// Pages of a buffer.
    batch_pages: usize,
    /// Buffers with frames, and spare ones: for the account, which asks after each batch.
    buffers: AtomicU64,
}

#[derive(Default)]
struct StagingInner {
    batches: Vec<Option<Batch>>,
    /// Buffers that are free, kept so that their pages need not be faulted in again.
    spare: Vec<PageBuf>,
}

struct Batch {
    buf: Arc<PageBuf>,
    /// Frames of this batch that are in the swap cache, or pinned there by a fault.
    frames: usize,
}

const FRAME_PAGE_BITS: u32 = 9;
const _: () = assert!(BATCH_PAGES <= 1 << FRAME_PAGE_BITS && MAX_ORDER as u32 <= FRAME_PAGE_BITS);
/// Spare buffers kept: one for each thread that may reclaim at once.
const SPARE_MAX: usize = 4;

fn batch_of(frame: FrameId) -> usize {
    (frame.0 >> FRAME_PAGE_BITS) as usize
}

impl Staging {
    fn new(batch_pages: usize) -> Staging {
        Staging { inner: Mutex::default(), batch_pages, buffers: AtomicU64::new(0) }
    }

    /// Most pages of a batch.
    pub fn batch_pages(&self) -> usize {
        self.batch_pages
    }

    pub fn buffer(&self) -> PageBuf {
        let Some(spare) = lock(&self.inner).spare.pop() else { return page_buf(self.batch_pages) };
        self.buffers.fetch_sub(1, Ordering::Relaxed);
        spare
    }

    /// Publish a filled buffer of which `frames` pages will be in the swap cache; returns the frame of its page 0.
    pub fn publish(&self, buf: PageBuf, frames: usize) -> FrameId {
        assert!(frames > 0);
        let mut inner = lock(&self.inner);
        let batch = match inner.batches.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                inner.batches.push(None);
                inner.batches.len() - 1
            }
        };
        inner.batches[batch] = Some(Batch { buf: Arc::new(buf), frames });
        self.buffers.fetch_add(1, Ordering::Relaxed);
        FrameId((batch as u32) << FRAME_PAGE_BITS)
    }

    /// The buffers of frames that are all cached or pinned, and each page's place in its own.
    pub fn get_many(&self, frames: impl Iterator<Item = FrameId>) -> Vec<(Arc<PageBuf>, usize)> {
        let inner = lock(&self.inner);
        frames.map(|frame| inner.page(frame)).collect()
    }

    /// These frames are neither cached nor pinned any more.
    pub fn free_frames(&self, frames: &[FrameId]) {
        let mut inner = lock(&self.inner);
        for frame in frames {
            let slot = &mut inner.batches[batch_of(*frame)];
            let batch = slot.as_mut().expect("a frame was freed twice");
            batch.frames -= 1;
            if batch.frames > 0 {
                continue;
            }
            let buf = slot.take().expect("it was there").buf;
            self.buffers.fetch_sub(1, Ordering::Relaxed);
            // Somebody may still be copying out of it: then the memory goes when he is done.
            if let Ok(buf) = Arc::try_unwrap(buf)
                && inner.spare.len() < SPARE_MAX
            {
                inner.spare.push(buf);
                self.buffers.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A buffer from which nothing was published.
    pub fn give_back(&self, buf: PageBuf) {
        let mut inner = lock(&self.inner);
        if inner.spare.len() < SPARE_MAX {
            inner.spare.push(buf);
            self.buffers.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Pages that are in the swap cache, or pinned there.
    pub fn frames(&self) -> usize {
        lock(&self.inner).batches.iter().flatten().map(|batch| batch.frames).sum()
    }

    pub fn bytes(&self) -> u64 {
        self.buffers.load(Ordering::Relaxed) * (self.batch_pages * crate::units::PAGE_SIZE) as u64
    }
}

impl StagingInner {
    fn page(&self, frame: FrameId) -> (Arc<PageBuf>, usize) {
        let batch = self.batches[batch_of(frame)].as_ref().expect("a pinned frame has its batch");
        (batch.buf.clone(), (frame.0 & ((1 << FRAME_PAGE_BITS) - 1)) as usize)
    }
}
