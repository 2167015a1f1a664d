//! Swap in a file, on a block device or on an NBD export: slot i lies at byte i * 4096.
//!
//! ```text
//!   write(batch) ─▶ room? ─▶ sealed ─▶ runs of neighbouring slots ─▶ one submission ─▶ wait ─▶ live bits
//!   read(slots) ──▶ runs ──▶ submission ... reap ──▶ opened, or checksums verified ──▶ ReadDone
//!   discard ──────▶ dead bits ... housekeeping ──▶ holes punched in runs              a file
//!                             ... housekeeping ──▶ the cluster punched or discarded   with `discard=pages`
//! ```
//!
//! | file        | what is in it                                                                    |
//! |-------------|----------------------------------------------------------------------------------|
//! | `medium.rs` | the file or device: opened, locked, marked, told of what is not needed, let go of |
//! | `space.rs`  | which slots' places hold something, the limits of space, holes                   |
//! | `store.rs`  | what slots lie on: such a medium, or an export (`nbd/`)                          |
//! | `io.rs`     | runs of pages to and from the medium, and what an errno means                    |
//! | `seal.rs`   | encryption                                                                       |
//! | `sums.rs`   | checksums, where nothing is encrypted                                            |
//!
//! Over a limit of space the answer is Full, and nothing is lost. An error of the kernel's own shortage is
//! `Short`; any other error of a read is the medium's word, as is a checksum that does not fit.

mod io;
mod medium;
mod seal;
mod space;
mod store;
mod sums;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use memspill_engine::backing::{
    AtRest, Backing, BackingError, Chore, Link, PageWrite, Properties, QueueId, ReadDone, ReadRequest,
    ReadStart, Usage,
};
use memspill_engine::sync::lock;
use memspill_engine::units::{PAGE_SIZE, Page, SlotIndex};
use rustix::io::Errno;

use crate::nbd::{NbdConfig, NbdError, Remote};
use crate::ram::SLOTS_MAX;
use crate::ring::{ReadOp, ReadRun};
pub use io::IoEngine;
use io::Queues;
pub use medium::FilePlace;
use medium::Medium;
pub use seal::cpu_does_aes;
use seal::{Mark, SEALED_PAGES_MAX, Seal};
use space::Space;
use store::Store;
use sums::Sums;
pub use sums::checksum;

/// How the medium is told about unneeded blocks, as with swapon's `discard`.
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
    /// The most that may be allocated on disk, in bytes. Also the number of slots, times 4096. A block
    /// device, and a file whose length cannot be changed, is used up to its size.
    pub max_bytes: u64,
    /// Free space that the file system keeps, in bytes (what an unprivileged user may use counts as free).
    pub free_floor_bytes: u64,
    /// Queues, each with rings of its own: one for each pager thread and each reclaim thread. At least 1.
    pub queues: u32,
    pub io: IoEngine,
    /// An error at the start where the file system or the device cannot do it.
    pub discard: DiscardPolicy,
    /// Pages are encrypted on their way to the file, by a key that is drawn now and kept in RAM.
    pub encrypt: bool,
}

impl FileConfig {
    /// A file without a name in `dir`, encrypted, with one queue and no free space kept.
    pub fn unnamed_in(dir: PathBuf, max_bytes: u64) -> FileConfig {
        FileConfig {
            place: FilePlace::Temp { dir },
            max_bytes,
            free_floor_bytes: 0,
            queues: 1,
            io: IoEngine::Auto,
            discard: DiscardPolicy::default(),
            encrypt: true,
        }
    }
}

/// Changes a page as it comes from the device: for tests of what a bad device does.
pub type Tamper = Box<dyn Fn(SlotIndex, &mut Page) + Send + Sync>;

/// What comes back with a read of the ring: all of the request but its buffer.
#[derive(Default)]
pub(crate) struct Reading {
    token: u64,
    slots: Vec<SlotIndex>,
    results: Vec<Result<(), BackingError>>,
    is_awaited: bool,
}

/// The time in which reads are under way that somebody waits for, however many at once. (Each read's time
/// would count those again that it waits behind.)
#[derive(Default)]
struct ReadTime {
    under_way: u32,
    /// Until when it is counted, while some are.
    until: Option<Instant>,
    total: Duration,
    /// Requests that have ended.
    reads: u64,
}

impl ReadTime {
    fn begin(&mut self, now: Instant) {
        if self.under_way == 0 {
            self.until = Some(now);
        }
        self.under_way += 1;
    }

    fn end(&mut self, now: Instant, reads: u64) {
        let since = self.until.replace(now);
        self.total += since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.reads += reads;
        self.under_way -= 1;
    }
}

/// The proof that a page is the one that was written to its slot.
enum Proof {
    /// Pages are written as they were in memory.
    Sums(Sums),
    /// It is encrypted. A page that leaves memory again is known by its tag, or by a sum where the CPU has no
    /// instructions for AES: locks are held meanwhile, and a tag would take many times as long.
    Seal(Seal, Option<Sums>),
}

/// The facts about a written page that its proof has to know.
#[derive(Clone, Copy)]
enum Record {
    Sum(u64),
    Mark(Mark, Option<u64>),
}

impl Proof {
    fn seal(&self) -> Option<&Seal> {
        match self {
            Proof::Seal(seal, _) => Some(seal),
            Proof::Sums(_) => None,
        }
    }

    /// Make of the page what may be written, once.
    fn prepare(&self, slot: SlotIndex, page: &mut Page) -> Record {
        match self {
            Proof::Sums(sums) => Record::Sum(sums.of(slot, page)),
            Proof::Seal(seal, sums) => {
                let sum = sums.as_ref().map(|sums| sums.of(slot, page));
                Record::Mark(seal.seal(page), sum)
            }
        }
    }

    /// The slot holds what was prepared so.
    fn record(&self, slot: SlotIndex, record: Record) {
        match (self, record) {
            (Proof::Sums(sums), Record::Sum(sum)) => sums.record(slot, sum),
            (Proof::Seal(seal, sums), Record::Mark(mark, sum)) => {
                seal.record(slot, mark);
                sums.iter().zip(sum).for_each(|(sums, sum)| sums.record(slot, sum));
            }
            _ => unreachable!("a record of another proof"),
        }
    }

    /// The page that was written, from what the device returned.
    fn open(&self, slot: SlotIndex, page: &mut Page) -> Result<(), BackingError> {
        match self {
            Proof::Sums(sums) => sums.verify(slot, page),
            Proof::Seal(seal, _) => seal.open(slot, page),
        }
    }

    /// Are these the bytes that were written last to the slot?
    fn fits(&self, slot: SlotIndex, page: &Page) -> bool {
        match self {
            Proof::Sums(sums) | Proof::Seal(_, Some(sums)) => sums.fits(slot, page),
            Proof::Seal(seal, None) => seal.fits(slot, page),
        }
    }

    fn table_bytes(&self) -> u64 {
        match self {
            Proof::Sums(sums) => sums.ram_bytes(),
            Proof::Seal(seal, sums) => seal.table_bytes() + sums.as_ref().map_or(0, Sums::ram_bytes),
        }
    }

    fn release(&self) {
        match self {
            Proof::Sums(sums) => sums.release(),
            Proof::Seal(seal, sums) => {
                seal.release();
                sums.iter().for_each(Sums::release);
            }
        }
    }
}

/// See the module's header.
pub struct FileBacking {
    store: Store<Reading>,
    space: Space,
    proof: Proof,
    tamper: OnceLock<Tamper>,
    /// Whole clusters are discarded before they are used again.
    discard: bool,
    read_time: Mutex<ReadTime>,
}

impl FileBacking {
    /// Open or create the file. Slots: `max_bytes / 4096`, slot 0 (never used) included.
    pub fn open(config: FileConfig) -> std::io::Result<FileBacking> {
        let slots = slots_in(config.max_bytes);
        FileBacking::open_with_slots(config, slots)
    }

    /// As `open`, with slots 0..`slots` addressable although only `max_bytes` may be on disk at any time.
    pub(crate) fn open_with_slots(config: FileConfig, slots: u32) -> std::io::Result<FileBacking> {
        let medium = Medium::open(&config.place)?;
        let its_size_bytes = medium.claim(slots)?;
        let size_bytes = its_size_bytes.unwrap_or(u64::MAX);
        let slots = slots.min(slots_in(size_bytes));
        let pages_max = config.max_bytes.min(size_bytes) / PAGE_SIZE as u64;
        let DiscardPolicy { once, pages } = config.discard;
        if (once || pages) && slots > 1 {
            // One page shows if it can be done.
            medium.discard_at_start(if once { slots } else { 2 })?;
        }
        let queues = Queues::new(config.io, config.queues, medium.as_fd())?;
        let space = Space::new(slots, pages_max, config.free_floor_bytes, its_size_bytes.is_some())?;
        FileBacking::of(Store::Medium(queues, medium), space, config.encrypt, pages)
    }

    /// On an export of an NBD server.
    pub fn on_export(config: NbdConfig) -> Result<FileBacking, NbdError> {
        let encrypt = config.encrypt;
        let remote = Remote::open(config)?;
        // Clusters in which nothing is live are given back as in a file, where the server can.
        let space = Space::new(remote.slots(), u64::MAX, 0, !remote.can_trim())?;
        Ok(FileBacking::of(Store::Remote(remote), space, encrypt, false)?)
    }

    fn of(store: Store<Reading>, space: Space, encrypt: bool, discard: bool) -> std::io::Result<FileBacking> {
        let slots = space.slots();
        Ok(FileBacking {
            store,
            space,
            proof: match encrypt {
                true => Proof::Seal(Seal::new(slots)?, sums_beside_tags(slots)?),
                false => Proof::Sums(Sums::new(slots)?),
            },
            tamper: OnceLock::new(),
            discard,
            read_time: Mutex::default(),
        })
    }

    /// The engine in use: `Uring` or `Sync`; an export needs none.
    pub fn io_engine(&self) -> IoEngine {
        self.store.medium().map_or(IoEngine::Sync, |(queues, _)| queues.engine())
    }

    /// Was the file opened O_DIRECT? If not, the page cache holds a copy of what was moved out of RAM.
    pub fn is_direct(&self) -> bool {
        self.store.medium().is_none_or(|(_, medium)| medium.direct)
    }

    /// Is the file on tmpfs or ramfs, so that nothing leaves RAM?
    pub fn is_in_ram(&self) -> bool {
        self.store.medium().is_some_and(|(_, medium)| medium.in_ram)
    }

    /// Bytes that the file system has allocated for the file, as it says itself (stat's st_blocks); 0 of what
    /// is no file.
    pub fn disk_bytes(&self) -> std::io::Result<u64> {
        self.store.medium().map_or(Ok(0), |(_, medium)| medium.disk_bytes())
    }

    /// Is there a key that the kernel may write to a swap of its own, as the limit on locked memory is low?
    pub fn has_unlocked_key(&self) -> bool {
        self.proof.seal().is_some_and(|seal| !seal.key_is_locked())
    }

    /// Let `tamper` change each page that comes from the device, before it is opened and its checksum looked
    /// at. Once only.
    pub fn set_tamper(&self, tamper: Tamper) {
        assert!(self.tamper.set(tamper).is_ok(), "tamper is set once");
    }

    /// The part of the writes' memory that is kept for the next ones.
    pub(crate) fn let_go_of_buffers(&self) {
        self.proof.seal().into_iter().for_each(Seal::let_go_of_buffers);
    }

    /// Write pages to their slots and wait. `results` gets one entry per page, in order.
    pub(crate) fn write_pages(
        &self,
        queue: QueueId,
        pages: &[PageWrite<'_>],
        results: &mut Vec<Result<(), BackingError>>,
    ) {
        let slots: Vec<SlotIndex> = pages.iter().map(|write| write.slot).collect();
        self.write_by(&slots, results, |order, results| match &self.proof {
            Proof::Sums(sums) => {
                let wire: Vec<PageWrite<'_>> = order.iter().map(|&index| pages[index]).collect();
                self.submit(queue, &wire, order, results, |slot, place| {
                    sums.record(slot, sums.of(slot, wire[place].page));
                });
            }
            Proof::Seal(seal, _) => self.write_sealed(queue, seal, pages, order, results),
        });
    }

    /// The same of pages that are the caller's own, and that he does not need any more: what is in them
    /// afterwards is what was written.
    pub(crate) fn write_own_pages(
        &self,
        queue: QueueId,
        slots: &[SlotIndex],
        pages: &mut [Page],
        results: &mut Vec<Result<(), BackingError>>,
    ) {
        self.write_by(slots, results, |order, results| {
            let records: Vec<Record> =
                order.iter().map(|&index| self.proof.prepare(slots[index], &mut pages[index])).collect();
            let write = |&index: &usize| PageWrite { slot: slots[index], page: &pages[index] };
            let wire: Vec<PageWrite<'_>> = order.iter().map(write).collect();
            self.submit(queue, &wire, order, results, |slot, place| {
                self.proof.record(slot, records[place]);
            });
        });
    }

    /// Make room for pages of these slots, and let `write` write those that have some: it is given their
    /// indices, in ascending order of slots, and the results.
    fn write_by(
        &self,
        slots: &[SlotIndex],
        results: &mut Vec<Result<(), BackingError>>,
        write: impl FnOnce(&[usize], &mut [Result<(), BackingError>]),
    ) {
        slots.iter().for_each(|slot| self.space.check(*slot));
        let base = results.len();
        results.resize(base + slots.len(), Ok(()));
        let results = &mut results[base..];
        self.space.make_room(&self.store, slots.len() as u64);
        let Some(_writing) = self.space.begin_write(slots.iter().copied()) else {
            return results.fill(Err(BackingError::Full));
        };
        let mut order: Vec<usize> = (0..slots.len()).collect();
        order.sort_unstable_by_key(|index| slots[*index]);
        order.retain(|&index| {
            let has_room = self.space.take(&self.store, slots[index]);
            if !has_room {
                results[index] = Err(BackingError::Full);
            }
            has_room
        });
        write(&order, results);
    }

    /// Write sealed copies of the pages in `order`.
    fn write_sealed(
        &self,
        queue: QueueId,
        seal: &Seal,
        pages: &[PageWrite<'_>],
        order: &[usize],
        results: &mut [Result<(), BackingError>],
    ) {
        for part in order.chunks(SEALED_PAGES_MAX) {
            let mut buf = seal.buffer(part.len());
            let prepare = |(to, &index): (&mut Page, &usize)| {
                to.0.copy_from_slice(&pages[index].page.0);
                self.proof.prepare(pages[index].slot, to)
            };
            let records: Vec<Record> = buf.iter_mut().zip(part).map(prepare).collect();
            let wire: Vec<PageWrite<'_>> = buf
                .iter()
                .zip(part)
                .map(|(page, &index)| PageWrite { slot: pages[index].slot, page })
                .collect();
            self.submit(queue, &wire, part, results, |slot, place| {
                self.proof.record(slot, records[place]);
            });
            seal.give_buffer(buf);
        }
    }

    /// Write what is in `wire`, in ascending order of slots, and wait. `record` is told of each written run,
    /// by slot and place in `wire`; `results` gets the errors of the others, at the indices `indices`.
    fn submit(
        &self,
        queue: QueueId,
        wire: &[PageWrite<'_>],
        indices: &[usize],
        results: &mut [Result<(), BackingError>],
        record: impl Fn(SlotIndex, usize),
    ) {
        let runs = io::runs_to_write(wire);
        let ends = self.store.write(queue, &runs);
        let mut first = 0;
        for (run, end) in runs.iter().zip(ends) {
            for place in 0..run.pages.len() {
                let (at, index) = (first + place, indices[first + place]);
                let slot = wire[at].slot;
                if (place + 1) * PAGE_SIZE <= end.done_bytes {
                    record(slot, at);
                    self.space.settle(slot);
                } else {
                    self.space.bury(slot);
                    results[index] = Err(match end.error() {
                        // EFBIG: the limit on the size of files was lowered meanwhile.
                        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => BackingError::Full,
                        errno => io::failed(errno),
                    });
                }
            }
            first += run.pages.len();
        }
    }

    /// Read some pages of a request: `wanted` has their indices there, ascending, and where they lie in the
    /// file. `results` has the others filled in, one entry for each of the request's slots.
    pub(crate) fn read_some(
        &self,
        queue: QueueId,
        request: ReadRequest,
        wanted: &[(usize, SlotIndex)],
        mut results: Vec<Result<(), BackingError>>,
    ) -> ReadStart {
        let ReadRequest { token, slots, buf, is_awaited } = request;
        assert!(buf.len() >= slots.len(), "{} pages of buffer for {} slots", buf.len(), slots.len());
        let mut runs: Vec<ReadRun> = Vec::new();
        for &(index, place) in wanted {
            self.space.check(place);
            if self.space.is_live(place) {
                io::add_to_read(&mut runs, place, index);
            } else {
                results[index] = Err(BackingError::Empty);
            }
        }
        let op = ReadOp { tag: Reading { token, slots, results, is_awaited }, buf, runs };
        if is_awaited {
            lock(&self.read_time).begin(Instant::now());
        }
        match self.store.read(queue, op, is_awaited) {
            None => ReadStart::Pending,
            Some(op) => self.finish(queue, op).map_or(ReadStart::Pending, ReadStart::Done),
        }
    }

    /// Verify what came from the device. None: some of it is something else than was written, and another
    /// server is asked for that.
    fn finish(&self, queue: QueueId, mut op: ReadOp<Reading>) -> Option<ReadDone> {
        let mut wrong: Vec<ReadRun> = Vec::new();
        let requests = op.runs.len() as u64;
        for run in std::mem::take(&mut op.runs) {
            let first = (run.offset_bytes / PAGE_SIZE as u64) as u32;
            for page in 0..run.pages {
                let index = run.first + page;
                let result = if (page + 1) * PAGE_SIZE > run.end.done_bytes {
                    Err(io::failed(run.end.error()))
                } else {
                    self.as_written(SlotIndex(first + page as u32), &mut op.buf[index])
                };
                match &result {
                    Err(BackingError::Checksum) => wrong.push(run.page(page)),
                    Ok(()) if run.wrong > 0 => self.store.mend(&run),
                    _ => {}
                }
                op.tag.results[index] = result;
            }
        }
        let is_awaited = op.tag.is_awaited;
        if !wrong.is_empty() {
            op = self.store.read_again(queue, ReadOp { runs: wrong, ..op }, is_awaited)?;
        }
        if is_awaited {
            lock(&self.read_time).end(Instant::now(), requests);
        }
        let ReadOp { tag: Reading { token, slots, results, .. }, buf, .. } = op;
        Some(ReadDone { token, slots, buf, results })
    }

    /// The page that was written, from what the device returned.
    fn as_written(&self, slot: SlotIndex, page: &mut Page) -> Result<(), BackingError> {
        if let Some(tamper) = self.tamper.get() {
            tamper(slot, page);
        }
        self.proof.open(slot, page)
    }

    /// A file that has a name is emptied, once.
    fn empty(&self) {
        if let Some((_, medium)) = self.store.medium().filter(|(_, medium)| medium.is_emptied_at_the_end()) {
            self.space.end(|| medium.empty());
        }
    }

    /// No slot holds anything, and none will.
    fn close(&self) {
        // A file without a name goes when it is closed, below.
        self.empty();
        self.space.close(|| self.store.forget());
        self.store.close();
        self.proof.release();
    }
}

fn sums_beside_tags(slots: u32) -> std::io::Result<Option<Sums>> {
    if cpu_does_aes() { Ok(None) } else { Sums::new(slots).map(Some) }
}

/// Slots that lie in so many bytes.
fn slots_in(bytes: u64) -> u32 {
    (bytes / PAGE_SIZE as u64).min(u64::from(SLOTS_MAX)) as u32
}

impl Backing for FileBacking {
    fn properties(&self) -> Properties {
        Properties {
            slots: self.space.slots(),
            synchronous: false,
            rotational: self.store.is_rotational(),
            discard: self.discard,
            in_rows: true,
            at_rest: if self.proof.seal().is_some() { AtRest::Encrypted } else { AtRest::Plain },
        }
    }

    fn write(&self, queue: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        self.write_pages(queue, pages, results);
    }

    fn read(&self, queue: QueueId, request: ReadRequest) -> ReadStart {
        let wanted: Vec<(usize, SlotIndex)> = request.slots.iter().copied().enumerate().collect();
        let results = vec![Ok(()); wanted.len()];
        self.read_some(queue, request, &wanted, results)
    }

    fn reap(&self, queue: QueueId, done: &mut Vec<ReadDone>) {
        done.extend(self.store.reap(queue).into_iter().filter_map(|op| self.finish(queue, op)));
    }

    fn poll_fd(&self, queue: QueueId) -> std::io::Result<Option<OwnedFd>> {
        self.store.poll_fd(queue)
    }

    fn discard(&self, slots: &[SlotIndex]) {
        for &slot in slots {
            self.space.check(slot);
            self.space.discard(slot);
        }
    }

    fn keeps(&self, slot: SlotIndex, page: Option<&Page>) -> bool {
        self.space.is_live(slot) && page.is_none_or(|page| self.proof.fits(slot, page))
    }

    fn housekeep(&self, chore: Chore) -> bool {
        match chore {
            Chore::Maintain { .. } => {
                self.proof.seal().into_iter().for_each(Seal::tidy);
                return self.space.punch_some(&self.store);
            }
            Chore::DiscardCluster(cluster) => self.space.discard_cluster(&self.store, cluster),
            Chore::EndRun => {
                self.empty();
                self.store.end_run();
            }
            Chore::Close => self.close(),
            Chore::GiveRam { .. } | Chore::LimitRam { .. } => {}
        }
        false
    }

    fn links(&self) -> Vec<Link> {
        self.store.links()
    }

    fn usage(&self) -> Usage {
        let (write_ios_total, file_written_pages_total, read_ios_total) = self.store.totals();
        let table_bytes = self.proof.table_bytes() + self.space.ram_bytes();
        let (awaited_reads_total, read_us_total) = {
            let time = lock(&self.read_time);
            (time.reads, time.total.as_micros() as u64)
        };
        Usage {
            ram_bytes: table_bytes + self.proof.seal().map_or(0, Seal::buffer_bytes) + self.store.ram_bytes(),
            table_bytes,
            file_pages: self.space.live_pages(),
            file_bytes: self.space.allocated_bytes(),
            write_ios_total,
            file_written_pages_total,
            read_ios_total,
            awaited_reads_total,
            read_us_total,
            ..Usage::default()
        }
    }
}

impl Drop for FileBacking {
    fn drop(&mut self) {
        // Rings wait for the reads that are still in flight.
        self.store.drain();
        self.empty();
    }
}

#[cfg(test)]
mod tests {
    use memspill_engine::units::page_buf;

    use super::*;

    const QUEUE: QueueId = QueueId(0);

    pub(super) fn page(byte: u8) -> Page {
        let mut page = Page::ZERO;
        page.0.fill(byte);
        page
    }

    fn file(encrypt: bool) -> FileBacking {
        let config = FileConfig::unnamed_in(std::env::temp_dir(), 1 << 20);
        FileBacking::open(FileConfig { io: IoEngine::Sync, encrypt, ..config }).unwrap()
    }

    /// By each proof, one of which no CPU chooses that has instructions for AES: a page comes back, and is
    /// known, however it was written.
    #[test]
    fn a_page_is_known_by_each_proof() {
        let mut by_tag = file(true);
        by_tag.proof = Proof::Seal(Seal::new(256).unwrap(), None);
        let mut by_sum_beside = file(true);
        by_sum_beside.proof = Proof::Seal(Seal::new(256).unwrap(), Some(Sums::new(256).unwrap()));
        for file in [by_tag, by_sum_beside, file(false)] {
            let slots = [5, 9, 6].map(SlotIndex);
            let mut results = Vec::new();
            let pages = [1, 2, 3].map(page);
            let writes: Vec<PageWrite<'_>> =
                slots.iter().zip(&pages).map(|(slot, page)| PageWrite { slot: *slot, page }).collect();
            file.write_pages(QUEUE, &writes, &mut results);
            let own = [20, 11].map(SlotIndex);
            file.write_own_pages(QUEUE, &own, &mut [4, 5].map(page), &mut results);
            assert!(results.iter().all(Result::is_ok), "{results:?}");
            for (slot, byte) in slots.into_iter().chain(own).zip(1..) {
                assert!(file.keeps(slot, Some(&page(byte))) && !file.keeps(slot, Some(&page(9))));
                let request = ReadRequest { token: 0, slots: vec![slot], buf: page_buf(1), is_awaited: true };
                let ReadStart::Done(done) = file.read(QUEUE, request) else { panic!("it is synchronous") };
                assert!(done.results == [Ok(())] && done.buf[0].0 == page(byte).0, "slot {}", slot.0);
            }
        }
    }
}
