//! Swap in a file or on a block device: slot i lies at byte i * 4096.
//!
//! ```text
//!   write(batch) ─▶ room? ─▶ runs of neighbouring slots ─▶ one submission ─▶ wait ─▶ checksums, live bits
//!   read(slots) ──▶ runs ──▶ submission ... reap ──▶ checksums verified ──▶ ReadDone
//!   discard ──────▶ dead bits ... maintain ──▶ holes punched in runs                  a file
//!                             ... discard_cluster ──▶ the cluster punched or discarded  with `discard=pages`
//! ```
//!
//! *The file* is nameless from birth (O_TMPFILE), readable by nobody (mode 000), sparse and opened O_DIRECT: the
//! page cache would keep in RAM what is being moved out of it. A path that the user named and that is not there is no
//! different: the file is made in its directory, without that name, so that no ending leaves it behind. What is there, a
//! file or a block device, is locked, and refused if it holds data that memspill did not put there (page 0, whose slot is
//! never used, carries a mark); a file is emptied in the end.
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
//! *A late punch must not hit new data.* Slots are grouped, cluster by cluster, under read-write locks. A write holds
//! its clusters' locks shared from before it looks at the bits until the bits say live again; a punch holds
//! one exclusively, and only if it gets it at once. Writes take them in ascending order, punches take one.
//!
//! *Checksums*: 64 bits for each slot (XXH3), over the bytes and the slot's number, so that a write that went to the
//! wrong place is found too. They are in RAM only: a swap file means nothing after its process. A page that leaves
//! memory again with the same bytes is known by them and needs no write (`still_holds`): this is why they have 64 bits
//! and not 32, and why they are seeded with a number that is drawn for each device and told to nobody. (Who knew it
//! could give a program two pages with one sum, and the second would be lost.)
//!
//! *Limits*: pages on disk, live and dead, are at most `max_bytes`; the file system keeps `free_floor_bytes` free.
//! Free space is asked for 64 MiB at a time, not at each write. Over a limit the answer is Full, and nothing is lost.
//!
//! *Discard* is as with swapon: a block device hears of what is not needed any more only if it is asked for. A file gives
//! runs of dead slots back in any case; with `discard=pages` whole clusters before they are used again.
//!
//! I/O is by io_uring (`ring.rs`) or, where that is not allowed, by pread and pwrite; then reads block.
//!
//! *Errors* are of two kinds. What the kernel says when it is short of something itself (`is_short`) says nothing of the
//! medium: `Short`, and the page may be asked for again. Everything else it says of a read is the medium's word (EIO, ENODATA,
//! EREMOTEIO, EILSEQ, ENXIO, ENODEV, ETIMEDOUT, ...), as is a checksum that does not fit.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, RwLock};

use memspill_engine::backing::{
    Backing, BackingError, PageWrite, Properties, QueueId, ReadDone, ReadRequest, ReadStart, Usage,
};
use memspill_engine::sync::lock;
use memspill_engine::units::{CLUSTER_SLOTS, ClusterIndex, PAGE_SIZE, Page, SlotIndex};
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::arena::ZeroTable;
use crate::ram::SLOTS_MAX;
use crate::ring::{self, ReadOp, ReadRing, ReadRun, RunEnd, WriteRing, WriteRun};

/// Pages in one request: 2 MiB, the largest folio, and within the kernel's 1024 vectors.
const RUN_PAGES_MAX: usize = 512;
/// Free space is looked at once for so many pages (64 MiB).
const GRANT_PAGES: u64 = 16384;
/// Locks for the clusters: cluster c is under lock c % 64.
const CLUSTER_LOCKS: usize = 64;
/// A hole is worth a system call from so many pages on (or if it empties its cluster).
const HOLE_PAGES_MIN: u32 = 16;
/// Punching starts when so many pages are dead (1 MiB), or as many as are live.
const DEAD_PAGES_MIN: u64 = 256;
/// Clusters looked at by one call of `maintain`.
const PUNCH_CLUSTERS: usize = 32;
/// First bytes of page 0 of a file that is memspill's.
const MARK: &[u8] = b"memspill swap file; its contents mean nothing without the process that wrote it\n";

/// Where the bytes go.
#[derive(Clone, Debug)]
pub enum FilePlace {
    /// A nameless file in this directory, gone with the process however it ends.
    Temp { dir: PathBuf },
    /// This file or block device, locked while in use; where it is not there, as `Temp` in its directory.
    Path(PathBuf),
}

/// How I/O is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoEngine {
    /// io_uring if the kernel lets us, else Sync.
    Auto,
    /// io_uring or an error.
    Uring,
    /// pread and pwrite: reads block.
    Sync,
}

/// What the medium is told of what is not needed, as with swapon's `discard`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DiscardPolicy {
    /// All that is there at the start.
    pub once: bool,
    /// Clusters that have become empty, before they are used again.
    pub pages: bool,
}

/// What a [`FileBacking`] is made of.
#[derive(Clone, Debug)]
pub struct FileConfig {
    pub place: FilePlace,
    /// The most that may be allocated on disk, in bytes. Also the number of slots, times 4096. A block device is
    /// used up to its size.
    pub max_bytes: u64,
    /// Free space that the file system keeps, in bytes (what an unprivileged user may use counts as free).
    pub free_floor_bytes: u64,
    /// Queues, each with rings of its own: one for each pager thread and each reclaim thread. At least 1.
    pub queues: u32,
    pub io: IoEngine,
    /// An error at the start where the file system or the device cannot do it.
    pub discard: DiscardPolicy,
}

/// Changes a page between the device and its checksum: for tests of what a bad device does.
pub type Tamper = Box<dyn Fn(SlotIndex, &mut Page) + Send + Sync>;

/// What comes back with a read of the ring: all of the request but its buffer.
struct Reading {
    token: u64,
    slots: Vec<SlotIndex>,
    results: Vec<Result<(), BackingError>>,
}

/// The rings of a queue, until the device is closed.
struct Queue {
    write: Mutex<Option<WriteRing>>,
    read: Mutex<Option<ReadRing<Reading>>>,
}

/// See the module's header.
pub struct FileBacking {
    // Before `file`: rings wait for what is in flight when they are dropped.
    queues: Vec<Queue>,
    file: OwnedFd,
    slots: u32,
    pages_max: u64,
    free_floor_bytes: u64,
    queue_count: u32,
    direct: bool,
    in_ram: bool,
    rotational: bool,
    block_device: bool,
    discard: bool,
    /// A named regular file was so long before: emptied when done.
    length_before: Option<u64>,
    /// A file without a name: its space goes with its last descriptor.
    nameless: bool,
    ended: AtomicBool,
    sums: ZeroTable,
    seed: u64,
    live: ZeroTable,
    dead: ZeroTable,
    locks: Box<[RwLock<()>]>,
    /// Clusters that have gained dead slots since they were last looked at; a bit in `listed` for each.
    to_punch: Mutex<Vec<u32>>,
    listed: ZeroTable,
    punch_works: AtomicBool,
    live_pages: AtomicU64,
    dead_pages: AtomicU64,
    /// Live, dead, and being written.
    allocated_pages: AtomicU64,
    /// `allocated_pages` may grow up to here before free space is looked at again.
    granted_pages: AtomicU64,
    granting: Mutex<()>,
    tamper: OnceLock<Tamper>,
    write_ios: AtomicU64,
    read_ios: AtomicU64,
}

impl FileBacking {
    /// Open or create the file. Slots: `max_bytes / 4096`, slot 0 (never used) included.
    pub fn open(config: FileConfig) -> io::Result<FileBacking> {
        let slots = (config.max_bytes / PAGE_SIZE as u64).min(u64::from(SLOTS_MAX)) as u32;
        FileBacking::open_with_slots(config, slots)
    }

    /// As `open`, with slots 0..`slots` addressable although only `max_bytes` may be on disk at any time.
    pub(crate) fn open_with_slots(config: FileConfig, slots: u32) -> io::Result<FileBacking> {
        let Opened { file, direct, named } = open_place(&config.place)?;
        let meta = fs::File::from(file);
        let kind = meta.metadata()?;
        let block_device = kind.file_type().is_block_device();
        if !block_device && !kind.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file or block device"));
        }
        let length_before = (named && !block_device).then_some(kind.len());
        let file = OwnedFd::from(meta);
        let mut slots = slots;
        let mut max_bytes = config.max_bytes;
        if named {
            lock_for_us(&file)?;
            check_mark(&file)?;
        }
        if block_device {
            let size_bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
            max_bytes = max_bytes.min(size_bytes);
            slots = slots.min((size_bytes / PAGE_SIZE as u64).min(u64::from(SLOTS_MAX)) as u32);
        } else {
            rustix::fs::ftruncate(&file, u64::from(slots.max(1)) * PAGE_SIZE as u64)?;
        }
        if named {
            let mut page = Box::new(Page::ZERO);
            page.0[..MARK.len()].copy_from_slice(MARK);
            let written = rustix::io::pwrite(&file, &page.0, 0)?;
            if written != PAGE_SIZE {
                return Err(io::Error::other("page 0 could not be written"));
            }
        }

        let DiscardPolicy { once, pages } = config.discard;
        if (once || pages) && slots > 1 {
            // One page shows if it can be done.
            give_back(&file, block_device, 1, if once { slots } else { 2 }).map_err(cannot_discard)?;
        }

        let queue_count = config.queues.max(1);
        let use_ring = match config.io {
            IoEngine::Sync => false,
            IoEngine::Uring => true,
            IoEngine::Auto => ring::probe().is_ok(),
        };
        let queues = if use_ring {
            let queue = |_| -> io::Result<Queue> {
                let read = ReadRing::new(file.as_raw_fd())?;
                Ok(Queue { write: Mutex::new(Some(WriteRing::new()?)), read: Mutex::new(Some(read)) })
            };
            (0..queue_count).map(queue).collect::<io::Result<_>>()?
        } else {
            Vec::new()
        };
        let bitmap = || ZeroTable::new((slots as usize).div_ceil(64) * 8);
        Ok(FileBacking {
            queues,
            slots,
            pages_max: max_bytes / PAGE_SIZE as u64,
            free_floor_bytes: config.free_floor_bytes,
            queue_count,
            direct,
            in_ram: rustix::fs::fstatfs(&file)
                .is_ok_and(|fs| [0x0102_1994, 0x8584_58f6].contains(&fs.f_type)),
            rotational: is_rotational(&file, block_device),
            block_device,
            discard: config.discard.pages,
            length_before,
            nameless: !named,
            ended: AtomicBool::new(false),
            sums: ZeroTable::new(slots as usize * 8)?,
            seed: drawn()?,
            live: bitmap()?,
            dead: bitmap()?,
            locks: (0..CLUSTER_LOCKS).map(|_| RwLock::new(())).collect(),
            to_punch: Mutex::default(),
            listed: ZeroTable::new((slots as usize).div_ceil(CLUSTER_SLOTS as usize * 64) * 8)?,
            punch_works: AtomicBool::new(true),
            live_pages: AtomicU64::new(0),
            dead_pages: AtomicU64::new(0),
            allocated_pages: AtomicU64::new(0),
            granted_pages: AtomicU64::new(if block_device { u64::MAX } else { 0 }),
            granting: Mutex::new(()),
            tamper: OnceLock::new(),
            write_ios: AtomicU64::new(0),
            read_ios: AtomicU64::new(0),
            file,
        })
    }

    /// The engine in use: `Uring` or `Sync`.
    pub fn io_engine(&self) -> IoEngine {
        if self.queues.is_empty() { IoEngine::Sync } else { IoEngine::Uring }
    }

    /// Was the file opened O_DIRECT? If not, the page cache holds a copy of what was moved out of RAM.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Is the file on tmpfs or ramfs, so that nothing leaves RAM?
    pub fn is_in_ram(&self) -> bool {
        self.in_ram
    }

    /// Bytes that the file system has allocated for the file, as it says itself (stat's st_blocks).
    pub fn disk_bytes(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.file)?.st_blocks as u64 * 512)
    }

    /// Let `tamper` change each page that comes from the device, before its checksum is looked at. Once only.
    pub fn set_tamper(&self, tamper: Tamper) {
        assert!(self.tamper.set(tamper).is_ok(), "tamper is set once");
    }

    fn check(&self, slot: SlotIndex) {
        assert!(slot.0 != 0, "slot 0 is never used: page 0 of a named file is its mark");
        assert!(slot.0 < self.slots, "slot {} is beyond the device's {} slots", slot.0, self.slots);
    }

    fn is_set(table: &ZeroTable, slot: SlotIndex) -> bool {
        table.word(slot.index() / 64).load(Ordering::Acquire) >> (slot.0 % 64) & 1 == 1
    }

    /// Set a bit; was it set?
    fn set(table: &ZeroTable, slot: SlotIndex) -> bool {
        let bit = 1u64 << (slot.0 % 64);
        table.word_to_write(slot.index() / 64).fetch_or(bit, Ordering::AcqRel) & bit != 0
    }

    /// Clear a bit; was it set?
    fn unset(table: &ZeroTable, slot: SlotIndex) -> bool {
        let bit = 1u64 << (slot.0 % 64);
        FileBacking::is_set(table, slot)
            && table.word_to_write(slot.index() / 64).fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Room on disk for one page more.
    fn reserve(&self) -> bool {
        loop {
            let granted = self.granted_pages.load(Ordering::Relaxed).min(self.pages_max);
            let grown = |pages: u64| (pages < granted).then_some(pages + 1);
            if self.allocated_pages.fetch_update(Ordering::AcqRel, Ordering::Relaxed, grown).is_ok() {
                return true;
            }
            if granted == self.pages_max || !self.grant() {
                return false;
            }
        }
    }

    /// Look at the free space, and allow growth down to the floor, 64 MiB at most.
    fn grant(&self) -> bool {
        let _one = lock(&self.granting);
        let allocated = self.allocated_pages.load(Ordering::Acquire);
        if self.granted_pages.load(Ordering::Relaxed) > allocated {
            return true;
        }
        let Ok(stat) = rustix::fs::fstatvfs(&self.file) else { return false };
        let free_bytes = (stat.f_bavail * stat.f_frsize).saturating_sub(self.free_floor_bytes);
        let pages = (free_bytes / PAGE_SIZE as u64).min(GRANT_PAGES);
        self.granted_pages.store(allocated + pages, Ordering::Relaxed);
        pages > 0
    }

    fn unreserve(&self, pages: u64) {
        let allocated = self.allocated_pages.fetch_sub(pages, Ordering::AcqRel) - pages;
        if !self.block_device {
            // What was given back may be taken by others: look again before growing far.
            let _one = lock(&self.granting);
            let ceiling = allocated + GRANT_PAGES;
            let granted = self.granted_pages.load(Ordering::Relaxed).min(ceiling);
            self.granted_pages.store(granted, Ordering::Relaxed);
        }
    }

    /// Mark a slot's place as holding nothing of worth.
    fn bury(&self, slot: SlotIndex) {
        if !FileBacking::set(&self.dead, slot) {
            self.dead_pages.fetch_add(1, Ordering::AcqRel);
        }
        if self.block_device {
            return;
        }
        let cluster = SlotIndex(slot.cluster().0);
        if !FileBacking::is_set(&self.listed, cluster) && !FileBacking::set(&self.listed, cluster) {
            lock(&self.to_punch).push(cluster.0);
        }
    }

    /// Write pages to their slots and wait. `results` gets one entry per page, in order.
    pub(crate) fn write_pages(
        &self,
        queue: QueueId,
        pages: &[PageWrite<'_>],
        results: &mut Vec<Result<(), BackingError>>,
    ) {
        assert!(queue.0 < self.queue_count, "queue {} of {}", queue.0, self.queue_count);
        for write in pages {
            self.check(write.slot);
        }
        let allocated = self.allocated_pages.load(Ordering::Relaxed);
        if allocated + pages.len() as u64 > self.pages_max && self.dead_pages.load(Ordering::Relaxed) > 0 {
            self.punch(usize::MAX, 1);
        }

        let mut groups: Vec<usize> =
            pages.iter().map(|write| write.slot.cluster().0 as usize % CLUSTER_LOCKS).collect();
        groups.sort_unstable();
        groups.dedup();
        let _shared: Vec<_> = groups
            .iter()
            .map(|group| self.locks[*group].read().expect("a thread panicked while it punched a hole"))
            .collect();

        let base = results.len();
        results.resize(base + pages.len(), Ok(()));
        let results = &mut results[base..];
        if self.ended.load(Ordering::Acquire) {
            return results.fill(Err(BackingError::Full));
        }
        let mut order: Vec<usize> = (0..pages.len()).collect();
        order.sort_unstable_by_key(|index| pages[*index].slot);
        // From here on the slots are neither live nor dead, but allocated.
        order.retain(|&index| {
            let slot = pages[index].slot;
            let was_live = FileBacking::unset(&self.live, slot);
            let was_dead = FileBacking::unset(&self.dead, slot);
            self.live_pages.fetch_sub(u64::from(was_live), Ordering::AcqRel);
            self.dead_pages.fetch_sub(u64::from(was_dead), Ordering::AcqRel);
            let has_room = was_live || was_dead || self.reserve();
            if !has_room {
                results[index] = Err(BackingError::Full);
            }
            has_room
        });

        let mut runs: Vec<WriteRun<'_>> = Vec::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut last_slot = None;
        for &index in &order {
            let slot = pages[index].slot;
            assert!(last_slot != Some(slot), "slot {} twice in one batch", slot.0);
            let follows = last_slot.is_some_and(|last: SlotIndex| last.0 + 1 == slot.0);
            last_slot = Some(slot);
            match runs.last_mut() {
                Some(run) if follows && run.pages.len() < RUN_PAGES_MAX => {
                    run.pages.push(pages[index].page);
                    members.last_mut().expect("one list for each run").push(index);
                }
                _ => {
                    let offset_bytes = u64::from(slot.0) * PAGE_SIZE as u64;
                    runs.push(WriteRun { offset_bytes, pages: vec![pages[index].page] });
                    members.push(vec![index]);
                }
            }
        }
        self.write_ios.fetch_add(runs.len() as u64, Ordering::Relaxed);
        let ends = match self.queues.get(queue.0 as usize) {
            Some(rings) if !runs.is_empty() => {
                let mut ring = lock(&rings.write);
                ring.as_mut().expect("a device that has not ended").write(self.file.as_raw_fd(), &runs)
            }
            _ => runs.iter().map(|run| self.write_now(run)).collect(),
        };
        for (members, end) in members.iter().zip(ends) {
            for (place, &index) in members.iter().enumerate() {
                let slot = pages[index].slot;
                if (place + 1) * PAGE_SIZE <= end.done_bytes {
                    let sum = checksum(self.seed, slot, pages[index].page);
                    self.sums.word_to_write(slot.index()).store(sum, Ordering::Release);
                    FileBacking::set(&self.live, slot);
                    self.live_pages.fetch_add(1, Ordering::AcqRel);
                } else {
                    self.bury(slot);
                    results[index] = Err(match end.error() {
                        // EFBIG: the limit on the size of files was lowered meanwhile.
                        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => BackingError::Full,
                        errno => failed(errno),
                    });
                }
            }
        }
    }

    /// One run by pwritev.
    fn write_now(&self, run: &WriteRun<'_>) -> RunEnd {
        let mut end = RunEnd { done_bytes: 0, errno: None };
        while end.done_bytes < run.pages.len() * PAGE_SIZE {
            let rest = &run.pages[end.done_bytes / PAGE_SIZE..];
            let slices: Vec<io::IoSlice<'_>> = rest.iter().map(|page| io::IoSlice::new(&page.0)).collect();
            match rustix::io::pwritev(&self.file, &slices, run.offset_bytes + end.done_bytes as u64) {
                Ok(bytes) if bytes >= PAGE_SIZE => end.done_bytes += bytes - bytes % PAGE_SIZE,
                Ok(_) => end.errno = Some(Errno::IO.raw_os_error()),
                Err(Errno::INTR) => continue,
                Err(error) => end.errno = Some(error.raw_os_error()),
            }
            if end.errno.is_some() {
                break;
            }
        }
        end
    }

    /// Read the pages `wanted` (ascending places in the request) of a request; `results` has its other places
    /// filled in, one entry per slot.
    pub(crate) fn read_some(
        &self,
        queue: QueueId,
        request: ReadRequest,
        wanted: &[usize],
        mut results: Vec<Result<(), BackingError>>,
    ) -> ReadStart {
        assert!(queue.0 < self.queue_count, "queue {} of {}", queue.0, self.queue_count);
        let ReadRequest { token, slots, mut buf } = request;
        assert!(buf.len() >= slots.len(), "{} pages of buffer for {} slots", buf.len(), slots.len());
        let mut runs: Vec<ReadRun> = Vec::new();
        for &index in wanted {
            let slot = slots[index];
            self.check(slot);
            if !FileBacking::is_set(&self.live, slot) {
                results[index] = Err(BackingError::Empty);
                continue;
            }
            let offset_bytes = u64::from(slot.0) * PAGE_SIZE as u64;
            match runs.last_mut() {
                Some(run)
                    if run.first + run.pages == index
                        && run.offset_bytes + (run.pages * PAGE_SIZE) as u64 == offset_bytes
                        && run.pages < RUN_PAGES_MAX =>
                {
                    run.pages += 1;
                }
                _ => runs.push(ReadRun {
                    offset_bytes,
                    first: index,
                    pages: 1,
                    end: RunEnd { done_bytes: 0, errno: None },
                }),
            }
        }
        self.read_ios.fetch_add(runs.len() as u64, Ordering::Relaxed);
        let reading = Reading { token, slots, results };
        match self.queues.get(queue.0 as usize) {
            Some(rings) if !runs.is_empty() => {
                let mut ring = lock(&rings.read);
                ring.as_mut().expect("a device that is not closed").start(ReadOp { tag: reading, buf, runs });
                ReadStart::Pending
            }
            _ => {
                for run in &mut runs {
                    self.read_now(run, &mut buf);
                }
                ReadStart::Done(self.finish(ReadOp { tag: reading, buf, runs }))
            }
        }
    }

    /// One run by pread.
    fn read_now(&self, run: &mut ReadRun, buf: &mut [Page]) {
        for place in 0..run.pages {
            let offset_bytes = run.offset_bytes + (place * PAGE_SIZE) as u64;
            let got = loop {
                match rustix::io::pread(&self.file, &mut buf[run.first + place].0, offset_bytes) {
                    Err(Errno::INTR) => {}
                    other => break other,
                }
            };
            match got {
                Ok(PAGE_SIZE) => run.end.done_bytes += PAGE_SIZE,
                Ok(_) => run.end.errno = Some(Errno::IO.raw_os_error()),
                Err(error) => run.end.errno = Some(error.raw_os_error()),
            }
            if run.end.errno.is_some() {
                return;
            }
        }
    }

    /// Verify what came from the device.
    fn finish(&self, op: ReadOp<Reading>) -> ReadDone {
        let ReadOp { tag: Reading { token, slots, mut results }, mut buf, runs } = op;
        for run in runs {
            for place in 0..run.pages {
                let index = run.first + place;
                let slot = slots[index];
                results[index] = if (place + 1) * PAGE_SIZE > run.end.done_bytes {
                    Err(failed(run.end.error()))
                } else {
                    if let Some(tamper) = self.tamper.get() {
                        tamper(slot, &mut buf[index]);
                    }
                    let sum = self.sums.word(slot.index()).load(Ordering::Acquire);
                    if checksum(self.seed, slot, &buf[index]) == sum { Ok(()) } else { Err(BackingError::Checksum) }
                };
            }
        }
        ReadDone { token, slots, buf, results }
    }

    /// Punch holes in clusters that have dead slots: at most `clusters_max` clusters, holes of at least `hole_min`
    /// pages. True while there is more to look at.
    fn punch(&self, clusters_max: usize, hole_pages_min: u32) -> bool {
        if !self.punch_works.load(Ordering::Relaxed) {
            return false;
        }
        let (work, mut more) = {
            let mut list = lock(&self.to_punch);
            let at = list.len().saturating_sub(clusters_max);
            (list.split_off(at), !list.is_empty())
        };
        for cluster in work {
            FileBacking::unset(&self.listed, SlotIndex(cluster));
            match self.locks[cluster as usize % CLUSTER_LOCKS].try_write() {
                // What could not be done now is listed again: later, and not in a loop.
                Ok(_alone) => more &= self.punch_cluster(cluster, hole_pages_min),
                // Being written to: later.
                Err(_) => {
                    if !FileBacking::set(&self.listed, SlotIndex(cluster)) {
                        lock(&self.to_punch).push(cluster);
                    }
                }
            }
        }
        more
    }

    /// No write is under way in the cluster, and none begins: its lock is held exclusively, or the caller has been told so.
    /// False if the machine was short of something for it.
    fn punch_cluster(&self, cluster: u32, hole_pages_min: u32) -> bool {
        let first = cluster * CLUSTER_SLOTS;
        let end = (first + CLUSTER_SLOTS).min(self.slots);
        let empty = (first..end).all(|slot| !FileBacking::is_set(&self.live, SlotIndex(slot)));
        let hole_pages_min = if empty { 1 } else { hole_pages_min };
        let mut slot = first.max(1);
        while slot < end {
            let start = slot;
            // Slots that hold nothing may lie in the hole: there is nothing to lose in them.
            let mut dead: Vec<SlotIndex> = Vec::new();
            while slot < end && !FileBacking::is_set(&self.live, SlotIndex(slot)) {
                if FileBacking::is_set(&self.dead, SlotIndex(slot)) {
                    dead.push(SlotIndex(slot));
                }
                slot += 1;
            }
            if dead.is_empty() || (dead.len() as u32) < hole_pages_min {
                slot = slot.max(start + 1);
                continue;
            }
            match give_back(&self.file, self.block_device, start, slot) {
                Ok(()) => {
                    let mut cleared = 0;
                    for slot in dead {
                        cleared += u64::from(FileBacking::unset(&self.dead, slot));
                    }
                    self.dead_pages.fetch_sub(cleared, Ordering::AcqRel);
                    self.unreserve(cleared);
                }
                Err(errno) if is_short(errno) => {
                    self.bury(dead[0]);
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
}

impl Backing for FileBacking {
    fn properties(&self) -> Properties {
        Properties { slots: self.slots, synchronous: false, rotational: self.rotational, discard: self.discard }
    }

    fn write(&self, queue: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        self.write_pages(queue, pages, results);
    }

    fn read(&self, queue: QueueId, request: ReadRequest) -> ReadStart {
        let wanted: Vec<usize> = (0..request.slots.len()).collect();
        let results = vec![Ok(()); wanted.len()];
        self.read_some(queue, request, &wanted, results)
    }

    fn reap(&self, queue: QueueId, done: &mut Vec<ReadDone>) {
        assert!(queue.0 < self.queue_count, "queue {} of {}", queue.0, self.queue_count);
        let Some(rings) = self.queues.get(queue.0 as usize) else { return };
        let finished = lock(&rings.read).as_mut().map(ReadRing::reap).unwrap_or_default();
        done.extend(finished.into_iter().map(|op| self.finish(op)));
    }

    fn poll_fd(&self, queue: QueueId) -> Option<i32> {
        lock(&self.queues.get(queue.0 as usize)?.read).as_ref().map(ReadRing::poll_fd)
    }

    fn discard(&self, slots: &[SlotIndex]) {
        for &slot in slots {
            self.check(slot);
            if FileBacking::unset(&self.live, slot) {
                self.live_pages.fetch_sub(1, Ordering::AcqRel);
                self.bury(slot);
            }
        }
    }

    fn discard_cluster(&self, cluster: ClusterIndex) {
        // Shared: writes that hold it are in other clusters, for none comes to this one now.
        let _shared = self.locks[cluster.index() % CLUSTER_LOCKS].read().expect("a thread panicked in these clusters");
        if self.punch_works.load(Ordering::Relaxed) {
            self.punch_cluster(cluster.0, 1);
        }
    }

    fn maintain(&self, _queue: QueueId) -> bool {
        let (dead, live) = (self.dead_pages.load(Ordering::Relaxed), self.live_pages.load(Ordering::Relaxed));
        if dead > 0 && (dead >= DEAD_PAGES_MIN || dead >= live) {
            self.punch(PUNCH_CLUSTERS, HOLE_PAGES_MIN)
        } else {
            false
        }
    }

    fn set_ram_limit_bytes(&self, _limit_bytes: u64) {}

    fn keeps(&self, slot: SlotIndex) -> bool {
        FileBacking::is_set(&self.live, slot)
    }

    fn still_holds(&self, slot: SlotIndex, page: &Page) -> bool {
        self.keeps(slot) && self.sums.word(slot.index()).load(Ordering::Acquire) == checksum(self.seed, slot, page)
    }

    fn end(&self) {
        self.length_before.into_iter().for_each(|length| self.empty(length));
        if self.nameless {
            give_back_later(&self.file);
        }
    }

    fn close(&self) {
        // A file without a name goes when it is closed, below.
        self.length_before.into_iter().for_each(|length| self.empty(length));
        // A punch that is under way ends first; the next one finds nothing to do.
        let _alone: Vec<_> = self.locks.iter().map(|lock| lock.write()).collect();
        self.ended.store(true, Ordering::Release);
        self.punch_works.store(false, Ordering::Relaxed);
        forget_file(&self.file);
        // Descriptors are few, and a run may have many swapoffs.
        for queue in &self.queues {
            *lock(&queue.write) = None;
            *lock(&queue.read) = None;
        }
        lock(&self.to_punch).clear();
        for counter in [&self.dead_pages, &self.allocated_pages] {
            counter.store(0, Ordering::Relaxed);
        }
        [&self.sums, &self.live, &self.dead, &self.listed].into_iter().for_each(ZeroTable::release);
    }

    fn usage(&self) -> Usage {
        let tables = [&self.sums, &self.live, &self.dead, &self.listed];
        Usage {
            ram_bytes: tables.iter().map(|table| table.ram_bytes()).sum(),
            file_pages: self.live_pages.load(Ordering::Relaxed),
            file_bytes: self.allocated_pages.load(Ordering::Relaxed) * PAGE_SIZE as u64,
            write_ios_total: self.write_ios.load(Ordering::Relaxed),
            read_ios_total: self.read_ios.load(Ordering::Relaxed),
            ..Usage::default()
        }
    }
}

impl Drop for FileBacking {
    fn drop(&mut self) {
        // The rings first: they wait for the reads that are still in flight.
        self.queues.clear();
        self.length_before.into_iter().for_each(|length| self.empty(length));
    }
}

/// 64 bits over a page and the number of its slot.
pub fn checksum(seed: u64, slot: SlotIndex, page: &Page) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&page.0, seed ^ u64::from(slot.0))
}

fn drawn() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // So few bytes are never given in parts.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The machine was short of something for the request, and may have it in a moment. Memory: ENOMEM, EAGAIN, ENOBUFS.
/// Descriptors: EMFILE, ENFILE. The device's own queue: EBUSY. And a request that was given up with the thread that made it:
/// EINTR, ECANCELED.
fn is_short(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOMEM
            | Errno::AGAIN
            | Errno::NOBUFS
            | Errno::MFILE
            | Errno::NFILE
            | Errno::BUSY
            | Errno::INTR
            | Errno::CANCELED
    )
}

fn failed(errno: Errno) -> BackingError {
    if is_short(errno) { BackingError::Short(errno.raw_os_error()) } else { BackingError::Io(errno.raw_os_error()) }
}

struct Opened {
    file: OwnedFd,
    direct: bool,
    /// It was there before, and stays.
    named: bool,
}

/// Open, with O_DIRECT where the file system has it.
fn open_place(place: &FilePlace) -> io::Result<Opened> {
    for direct in [OFlags::DIRECT, OFlags::empty()] {
        let opened = match place {
            FilePlace::Temp { dir } => open_nameless(dir, direct).map(|file| (file, false)),
            FilePlace::Path(path) => {
                let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | direct;
                match rustix::fs::open(path, flags, Mode::empty()) {
                    Err(Errno::NOENT) => open_nameless(directory_of(path), direct).map(|file| (file, false)),
                    other => other.map(|file| (file, true)),
                }
            }
        };
        match opened {
            Ok((file, named)) => return Ok(Opened { file, direct: !direct.is_empty(), named }),
            // EINVAL: no O_DIRECT here.
            Err(Errno::INVAL) if !direct.is_empty() => {}
            Err(error) => return Err(error.into()),
        }
    }
    unreachable!("the second round ends in either way")
}

impl FileBacking {
    /// It held a program's memory: leave none of it in a file with a name, and no space on disk in use.
    fn empty(&self, length: u64) {
        // All of them: whoever writes is done, and whoever comes later sees the mark.
        let _alone: Vec<_> = self.locks.iter().map(|lock| lock.write()).collect();
        if !self.ended.swap(true, Ordering::AcqRel) {
            let _ = rustix::fs::ftruncate(&self.file, 0).and_then(|()| rustix::fs::ftruncate(&self.file, length));
        }
    }
}

/// Whoever closes the last descriptor of a file without a name gives its space back, and on a busy disk that discards
/// blocks this took ten seconds and more, in the exit of a process that no signal ends any more and that somebody waits
/// for. A ring holds what is registered with it, and when it is closed the kernel's own workers let go of that.
fn give_back_later(file: &OwnedFd) {
    // Without io_uring whoever waits for us waits longer.
    if let Ok(ring) = io_uring::IoUring::new(1)
        && ring.submitter().register_files(&[file.as_raw_fd()]).is_ok()
    {
        std::mem::forget(ring);
    }
}

/// Close the file, and keep the number of its descriptor for something that can be neither read nor written: whoever
/// comes late with that number meets no other file. So no lock is needed around each use of it.
#[allow(unsafe_code, reason = "dup3 onto a descriptor of our own, which stays open and ours")]
fn forget_file(file: &OwnedFd) {
    let nothing = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
    let closed = nothing.is_ok_and(|nothing| {
        // SAFETY: both descriptors are open and ours; only what the second one stands for changes.
        unsafe { libc::dup3(nothing.as_raw_fd(), file.as_raw_fd(), libc::O_CLOEXEC) >= 0 }
    });
    // Without a descriptor to spare it stays open, and unlocked.
    if !closed {
        let _ = rustix::fs::flock(file, FlockOperation::Unlock);
    }
}

/// Tell the medium that the places of slots `start..end` hold nothing of worth.
fn give_back(file: &OwnedFd, block_device: bool, start: u32, end: u32) -> Result<(), Errno> {
    let bytes = |slots: u32| u64::from(slots) * PAGE_SIZE as u64;
    let (at, len) = (bytes(start), bytes(end - start));
    if block_device {
        return discard_range(file, at, len);
    }
    rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
}

/// BLKDISCARD. Not the punched hole of fallocate, which on a block device is a write of zeros.
#[allow(unsafe_code, reason = "an ioctl for which rustix has no function")]
fn discard_range(file: &OwnedFd, at_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
    const BLKDISCARD: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);
    // SAFETY: BLKDISCARD reads two 64-bit numbers, where to begin and how many bytes, and nothing else.
    unsafe {
        let range = rustix::ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([at_bytes, len_bytes]);
        rustix::ioctl::ioctl(file, range)
    }
}

fn cannot_discard(errno: Errno) -> io::Error {
    match errno {
        Errno::OPNOTSUPP => io::Error::new(io::ErrorKind::Unsupported, "discard is not supported there"),
        other => io::Error::other(format!("discard: {}", io::Error::from(other))),
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn open_nameless(dir: &Path, direct: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | direct;
    match rustix::fs::open(dir, flags | OFlags::TMPFILE | OFlags::EXCL, Mode::empty()) {
        // No O_TMPFILE on this file system: a file that has a name for a moment.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {}
        other => return other,
    }
    for attempt in 0..100u32 {
        let path = dir.join(format!(".memspill-{}-{attempt}", std::process::id()));
        match rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, Mode::empty())
        {
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
            Ok(file) => {
                rustix::fs::unlink(&path)?;
                return Ok(file);
            }
        }
    }
    Err(Errno::EXIST)
}

/// The lock of a run that was killed is held until the kernel has taken down its I/O and its guardian: a moment.
fn lock_for_us(file: &OwnedFd) -> io::Result<()> {
    for _ in 0..200 {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(std::time::Duration::from_millis(10)),
            other => return Ok(other?),
        }
    }
    Err(io::Error::other("in use by another process"))
}

/// A named file or device must be empty, blank in its first page, or marked as memspill's.
fn check_mark(file: &OwnedFd) -> io::Result<()> {
    let mut page = Box::new(Page::ZERO);
    let len = rustix::io::pread(file.as_fd(), &mut page.0, 0)?;
    if page.0.starts_with(MARK) || page.0[..len].iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        "holds data that is not memspill's; give an empty file, or overwrite its first 4096 bytes with zeros",
    ))
}

/// What sysfs says of the disk under the file; solid-state if it says nothing.
fn is_rotational(file: &OwnedFd, block_device: bool) -> bool {
    let Ok(stat) = rustix::fs::fstat(file) else { return false };
    let device = if block_device { stat.st_rdev } else { stat.st_dev };
    let base = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has its queue one level up.
    ["queue/rotational", "../queue/rotational"]
        .iter()
        .find_map(|name| fs::read_to_string(format!("{base}/{name}")).ok())
        .is_some_and(|text| text.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page must not be lost because memory was short for a moment, nor be asked for again for ever where the medium fails.
    #[test]
    fn errors_that_pass_are_told_from_those_of_the_medium() {
        for errno in [libc::ENOMEM, libc::EAGAIN, libc::EINTR, libc::EBUSY, libc::ENOBUFS, libc::EMFILE, libc::ECANCELED] {
            assert_eq!(failed(Errno::from_raw_os_error(errno)), BackingError::Short(errno));
        }
        for errno in [libc::EIO, libc::ENODATA, libc::EREMOTEIO, libc::EILSEQ, libc::ENXIO, libc::ENODEV, libc::EINVAL] {
            assert_eq!(failed(Errno::from_raw_os_error(errno)), BackingError::Io(errno));
        }
        assert_eq!(failed(RunEnd { done_bytes: 0, errno: None }.error()), BackingError::Io(libc::EIO));
    }

    #[test]
    fn checksum_sees_every_bit_and_the_slot() {
        let mut page = Box::new(Page::ZERO);
        for (at, byte) in page.0.iter_mut().enumerate() {
            *byte = (at * 7) as u8;
        }
        let slot = SlotIndex(77);
        let seed = drawn().unwrap();
        let checksum = |slot, page: &Page| super::checksum(seed, slot, page);
        let good = checksum(slot, &page);
        assert_ne!(good, checksum(SlotIndex(78), &page));
        for bit in 0..PAGE_SIZE * 8 {
            page.0[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(good, checksum(slot, &page), "bit {bit}");
            page.0[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(good, checksum(slot, &page));
        // Two words exchanged within a lane, and across lanes.
        for other in [8, 64, 72] {
            for at in 0..8 {
                page.0.swap(at, other + at);
            }
            assert_ne!(good, checksum(slot, &page));
            for at in 0..8 {
                page.0.swap(at, other + at);
            }
        }
    }

    #[test]
    fn a_sum_of_one_device_says_nothing_about_another() {
        let sum = || {
            let config = FileConfig {
                place: FilePlace::Temp { dir: std::env::temp_dir() },
                max_bytes: 1 << 20,
                free_floor_bytes: 0,
                queues: 1,
                io: IoEngine::Auto,
                discard: DiscardPolicy::default(),
            };
            let device = FileBacking::open(config).unwrap();
            checksum(device.seed, SlotIndex(1), &Page::ZERO)
        };
        assert_ne!(sum(), sum(), "whoever knows its sum can make another page that has it");
    }
}
