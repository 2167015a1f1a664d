//! The trait under a swap device: where the bytes of a slot are kept.
//!
//! ```text
//!   swap_out ── write(batch) ──▶ Backing ◀── read(slots) ── swap_in
//!                                   └── discard(slots), when a slot has lost its last reference;
//!                                       housekeep(DiscardCluster) later, when that was its last slot in use
//! ```
//!
//! Contract, which the conformance suite in the `backing` crate checks for every implementation:
//!
//! * A slot that was written and not discarded reads back exactly the bytes of its last completed write.
//! * The engine never writes a slot while a read of the same slot is under way, and never reads one that was
//!   not written since it was last discarded. Different slots may be used by different threads at once.
//! * An error is an error: a failed read never leaves bytes that could be taken for data, a failed write
//!   leaves the slot as if it had been discarded.
//! * After a read that failed with `Short` the slot holds what it held: the page is not lost. The caller may
//!   ask again after a while; the backing itself does not go on asking.
//! * Calls block at most for the I/O they do; nothing waits for another fault to be served.
//!
//! What it does not do: choose slots, count references, know of pages or processes.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::units::{ClusterIndex, Page, PageBuf, SlotIndex};

/// A submission queue: one per pager thread and one per reclaim thread, so that no two threads share a ring.
/// Numbered 0..`queues` as given to the constructor of the backing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueId(pub u32);

/// What a swap device is like. Words as swapon's and the kernel's flags.
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// Slots that can be addressed, slot 0 (never used) included.
    pub slots: u32,
    /// Reads cost about as much as the copy (RAM): no readahead, no queue (kernel: SWP_SYNCHRONOUS_IO).
    pub synchronous: bool,
    /// Seeks dominate.
    pub rotational: bool,
    /// Clusters that have become empty go to `Chore::DiscardCluster` before they are used again (kernel:
    /// SWP_PAGE_DISCARD).
    pub discard: bool,
    /// Slots in a row lie in a row on the medium, so that what leaves together is written and read in one
    /// request. Else it does not matter which slots pages have (`Slots::packing`).
    pub in_rows: bool,
    pub at_rest: AtRest,
}

/// How much of the pages somebody can read who gets at the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtRest {
    /// Nothing: pages do not leave RAM.
    InRam,
    /// The bytes that were in memory.
    Plain,
    /// What means nothing without the key, which is in RAM.
    Encrypted,
}

/// Why a page could not be written or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackingError {
    /// No room: pool at its limit and no file, file at its size, or the disk at its floor of free space.
    Full,
    /// The device failed: errno.
    Io(i32),
    /// The machine was short of something just then, memory or descriptors: errno. Nothing is wrong with the
    /// device or with what it holds, and the same request may succeed in a moment.
    Short(i32),
    /// The bytes read are not the bytes written.
    Checksum,
    /// The slot holds nothing: a bug in the caller, reported rather than turned into zeros.
    Empty,
}

impl std::fmt::Display for BackingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BackingError::Full => write!(f, "no room left on the swap device"),
            BackingError::Io(errno) | BackingError::Short(errno) => {
                write!(f, "{}", io::Error::from_raw_os_error(*errno))
            }
            BackingError::Checksum => {
                write!(f, "checksum mismatch: the device returned other bytes than were written")
            }
            BackingError::Empty => write!(f, "read of a slot that was never written"),
        }
    }
}
impl std::error::Error for BackingError {}

impl BackingError {
    /// Was it the machine that was short of something, and not the device that failed? Then the same request
    /// may succeed in a moment.
    pub fn is_transient(&self) -> bool {
        matches!(self, BackingError::Short(_))
    }
}

/// One page to write.
#[derive(Clone, Copy)]
pub struct PageWrite<'a> {
    pub slot: SlotIndex,
    pub page: &'a Page,
}

/// A read: page i of `buf` comes from `slots[i]`. The buffer is owned by the backing until it is given back.
pub struct ReadRequest {
    /// Given back with the result; means nothing to the backing.
    pub token: u64,
    pub slots: Vec<SlotIndex>,
    /// At least `slots.len()` pages.
    pub buf: PageBuf,
    /// By a fault: a program does not go on before it is done.
    pub is_awaited: bool,
}

/// A finished read. If `results[i]` is an error, page i of `buf` holds nothing.
pub struct ReadDone {
    pub token: u64,
    pub slots: Vec<SlotIndex>,
    pub buf: PageBuf,
    pub results: Vec<Result<(), BackingError>>,
}

/// `Done` at once (everything was in RAM), or `Pending`: it will come out of `reap` on the same queue.
pub enum ReadStart {
    Done(ReadDone),
    Pending,
}

/// Bytes and pages held, for the budget and the statistics.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of RAM held now, tables and allocator slack included: counts against `--memory-max`.
    pub ram_bytes: u64,
    /// The part of `ram_bytes` that is in a file in memory that other processes read, and not anonymous.
    pub ram_file_bytes: u64,
    /// Bytes of RAM that a RAM disk holds: set aside for it, and outside of the budget.
    pub ram_disk_bytes: u64,
    /// Bytes of compressed data within `ram_bytes` (without slack and tables).
    pub ram_compressed_bytes: u64,
    /// Bytes of tables within `ram_bytes`: what is kept for each page beside its bytes.
    pub table_bytes: u64,
    /// Pages stored in RAM.
    pub ram_pages: u64,
    /// Pages recorded as one repeated word, which need no room.
    pub same_filled_pages: u64,
    /// Pages stored raw because they did not compress.
    pub incompressible_pages: u64,
    /// Pages stored in RAM by a stronger algorithm than the pool's.
    pub zstd_pages: u64,
    /// Pages stored in RAM wordwise, because that leaves less than the pool's own algorithm.
    pub wordwise_pages: u64,
    /// Pages that a stronger algorithm was tried on so far, and of these, found shorter, read for a fault.
    pub recompressed_pages_total: u64,
    pub zstd_reads_total: u64,
    /// Pages come in by another algorithm than the pool's now, which leaves so much of what that one does.
    pub dense_per_mille: Option<u64>,
    /// Pages stored in the file.
    pub file_pages: u64,
    /// Bytes of the file allocated on disk, as far as known.
    pub file_bytes: u64,
    /// Compressed pages moved from RAM to the file so far (kernel: zswpwb).
    pub written_back_pages_total: u64,
    /// Requests to the device so far: each for a run of pages that lie there in a row.
    pub write_ios_total: u64,
    pub read_ios_total: u64,
    /// The ones that faults waited for.
    pub awaited_reads_total: u64,
    /// In which some of those were under way: begun, and not collected.
    pub read_us_total: u64,
    /// Pages that the write requests were for.
    pub file_written_pages_total: u64,
}

/// The connection to a server that a device is on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    pub state: LinkState,
    /// It has been in this state for so long.
    pub since_ms: u64,
    /// The median of the last reads of single pages, once there were some.
    pub round_trip_us: Option<u64>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// It has come back so often.
    pub reconnects: u64,
    /// Pages that came from it as something else than was written there.
    pub wrong_pages: u64,
    /// It is back, and has lost what it held.
    pub is_empty: bool,
    /// It answers, and cannot be used: why, as of the last try.
    pub refusal: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkState {
    On,
    /// It does not answer. It is tried again, and pages that are there wait.
    Away,
    /// It is back, and pages that it lacks are copied to it from the other server.
    Filling,
    /// It has been away for too long, or has lost what it held: pages that are only there cannot be had.
    Lost,
}

/// How it stands with all servers of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Servers {
    /// It is on none.
    None,
    On,
    /// One of two is missing, or lacks pages.
    Degraded,
    /// Nothing can be read or written before one is back.
    Away,
    Lost,
}

impl Servers {
    pub fn of(links: &[Link]) -> Servers {
        let is = |state| move |link: &Link| link.state == state;
        match links {
            [] => Servers::None,
            _ if links.iter().all(is(LinkState::On)) => Servers::On,
            _ if links.iter().any(is(LinkState::On)) || links.iter().any(is(LinkState::Filling)) => {
                Servers::Degraded
            }
            _ if links.iter().any(is(LinkState::Away)) => Servers::Away,
            _ => Servers::Lost,
        }
    }
}

/// What a device is asked for beside its pages: see [`Backing::housekeep`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chore {
    /// Some background work (moving the oldest compressed pages out to the file, giving disk space back).
    /// Asked for by the reclaim threads between batches. True while there is more to do.
    Maintain { queue: QueueId },
    /// Nothing else can make room: move so much of what is held in RAM out to what stands behind it. True if
    /// that gave RAM back; false where there is nothing behind it, or no room there.
    GiveRam { queue: QueueId, bytes: u64 },
    /// RAM that the backing may hold; the caller changes it as the budget is shared out. Pages that it holds
    /// already stay for now.
    LimitRam { bytes: u64 },
    /// No slot of the cluster holds anything, and none is written before this returns: the medium may forget
    /// what is there. Asked for by one thread at a time, and only where `Properties::discard` is set. A range
    /// that cannot be discarded stays as it is: there is no error.
    DiscardCluster(ClusterIndex),
    /// The run is over, but other threads may still be at work: leave nothing that outlives the process. Data
    /// that is read from now on means nothing to anyone, and writes may fail.
    EndRun,
    /// The device is off: no slot holds anything, and none will. Let go of file and memory, so that the user
    /// may delete, unmount or unplug what is under it. Only `properties`, `reap`, `poll_fd`, `usage` and
    /// `housekeep` are called afterwards.
    Close,
}

/// Five methods make a backing. The others are for one whose reads take time (`reap`, `poll_fd`) or none
/// (`read_now`), whose writes are dear (`keeps`), or that has something to tidy up (`housekeep`).
pub trait Backing: Send + Sync {
    fn properties(&self) -> Properties;

    /// Store a batch, one submission where there is a device; returns when each page is stored or has failed.
    /// `results` gets one entry per page, in order.
    fn write(&self, queue: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>);

    /// Start a read. Never blocks on a device.
    fn read(&self, queue: QueueId, request: ReadRequest) -> ReadStart;

    /// Read one page here and now, if its bytes are in RAM: no device, no queue, nothing on the heap. None:
    /// it has to go by `read`. If this gives a page, its slot is not worth keeping (`keeps`) afterwards.
    fn read_now(&self, _slot: SlotIndex, _page: &mut Page) -> Option<Result<(), BackingError>> {
        None
    }

    /// The slots' contents are not needed any more. Tolerates slots that hold nothing.
    fn discard(&self, slots: &[SlotIndex]);

    fn usage(&self) -> Usage;

    /// How it stands with the servers that the device is on, the first one first. Empty: it is on none.
    fn links(&self) -> Vec<Link> {
        Vec::new()
    }

    /// Collect reads that have finished on this queue, without blocking.
    fn reap(&self, _queue: QueueId, _done: &mut Vec<ReadDone>) {}

    /// A descriptor that polls readable when `reap` has something to give, where there is one. It is a
    /// duplicate, so that it means the same thing for as long as the caller has it; an epoll to which it was
    /// added goes on watching without it, until `Close`. An error: there was no descriptor to spare.
    fn poll_fd(&self, _queue: QueueId) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    /// Is the slot's copy worth keeping while its page is in memory? On a device whose writes are dear, yes:
    /// if the page leaves again as it came, it need not be written again. Never of a slot that holds nothing.
    ///
    /// With a page, also: are these the bytes that the slot holds? No I/O: by a checksum of at least 64 bits.
    /// Asked so only of slots that the caller holds a reference to.
    fn keeps(&self, _slot: SlotIndex, _page: Option<&Page>) -> bool {
        false
    }

    /// A file in which other processes may read the pages that are in RAM, where there is one
    /// (memspill-backing's pool_file.rs says how).
    fn pool_file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Do a chore. True: it is worth while to ask for the same again, as each one says. A backing to which a
    /// chore means nothing says false.
    fn housekeep(&self, _chore: Chore) -> bool {
        false
    }
}
