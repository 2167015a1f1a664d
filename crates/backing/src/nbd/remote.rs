//! What `file/` has in place of a file: runs of pages go to an export and come from it.
//!
//! ```text
//!   read(queue, op) ─▶ line ... sockets, bell ─▶ epoll of the queue ─▶ reap(queue)
//!   write(runs) ─▶ a writer's line, until all are answered
//! ```
//!
//! *A queue's descriptor* is an epoll of its own, so that it means the same thing for as long as anybody has
//! it: the socket of its line comes and goes in it. Beside it is a bell, for reads of the queue that another
//! thread has received or given up.
//!
//! *Two servers* have the same pages. Each write goes to both, and is done when both have it, or one has and
//! the other is away. `held.rs` knows what each one has; a read that fails at one is asked from the other,
//! and so is a page that came as something else than was written there (`read_again`). A server that is back,
//! or has had a page wrong, gets what it lacks copied, while nobody writes.
//!
//! What it does not do: know slots, or what is in a page.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use memspill_engine::backing::{Link, LinkState, QueueId};
use memspill_engine::sync::lock;
use memspill_engine::units::{PAGE_SIZE, Page, PageBuf, page_buf};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;

use super::away::Door;
use super::config::NbdConfig;
use super::error::NbdError;
use super::exchange::exchange;
use super::handshake::Export;
use super::held::Held;
use super::line::Reading;
use super::mark::{self, Found};
use super::peer::{CONNECT, Common, Owner, Peer, can_be_used, errno_at, spare};
use super::stream::Stream;
use super::wire::Command;
use crate::ring::{ReadOp, ReadRun, RunEnd, WriteRun};
use crate::signatures::{Ends, HEAD_BYTES, TAIL_BYTES};

/// Less is no swap.
const PAGES_MIN: u32 = 64;
/// Pages that are copied at a time from one server to another.
const COPIED_PAGES: u32 = 64;
const COPIED_BYTES: u64 = COPIED_PAGES as u64 * PAGE_SIZE as u64;
/// How often it is looked whether there is something to copy.
const COPY_PAUSE: Duration = Duration::from_millis(100);

/// See the module's header.
pub(crate) struct Remote<Tag: Default + Send + 'static> {
    shared: Arc<Shared<Tag>>,
    slots: u32,
    is_kept: AtomicBool,
    is_closed: AtomicBool,
}

struct Shared<Tag> {
    common: Common,
    /// One, or two that have the same pages.
    peers: Vec<Peer<Tag>>,
    mirror: Option<Mirror>,
    /// The last one is the copier's, if there are two servers.
    queues: Vec<Queue<Tag>>,
    write_ios: AtomicU64,
    written_pages: AtomicU64,
}

/// What two servers have beside one.
struct Mirror {
    held: [Held; 2],
    /// Held by whoever writes, alone by whoever copies: a page that is being copied is not written.
    copying: RwLock<()>,
}

impl Mirror {
    /// Is the page of this run worth asking this server for?
    fn has(&self, at: usize, run: &ReadRun, page: u32) -> bool {
        self.held[at].has(page) && run.wrong >> at & 1 == 0
    }
}

struct Queue<Tag> {
    arrived: Mutex<Arrived<Tag>>,
    /// None: the device is off.
    fds: RwLock<Option<Fds>>,
}

struct Arrived<Tag> {
    ops: Vec<ReadOp<Tag>>,
    has_rung: bool,
}

struct Fds {
    poll: OwnedFd,
    bell: OwnedFd,
}

impl Fds {
    fn new() -> io::Result<Fds> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poll, &bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Fds { poll, bell })
    }
}

impl<Tag> Queue<Tag> {
    fn new() -> io::Result<Queue<Tag>> {
        let arrived = Mutex::new(Arrived { ops: Vec::new(), has_rung: false });
        Ok(Queue { arrived, fds: RwLock::new(Some(Fds::new()?)) })
    }

    /// Something for whoever polls the queue.
    fn give(&self, op: ReadOp<Tag>) {
        let mut arrived = lock(&self.arrived);
        arrived.ops.push(op);
        if !arrived.has_rung
            && let Some(fds) = &*self.fds.read().expect("descriptors of a queue")
        {
            let _ = rustix::io::write(&fds.bell, &1u64.to_ne_bytes());
            arrived.has_rung = true;
        }
    }

    fn take(&self) -> Vec<ReadOp<Tag>> {
        let mut arrived = lock(&self.arrived);
        if arrived.has_rung
            && let Some(fds) = &*self.fds.read().expect("descriptors of a queue")
        {
            let _ = rustix::io::read(&fds.bell, &mut [0; 8]);
            arrived.has_rung = false;
        }
        std::mem::take(&mut arrived.ops)
    }
}

impl<Tag: Default + Send> Owner<Tag> for Shared<Tag> {
    fn watch(&self, peer: usize, line: usize, fd: &OwnedFd) {
        for (queue, number) in self.queues.iter().zip(0..) {
            if self.peers[peer].reads_on(number, line)
                && let Some(fds) = &*queue.fds.read().expect("descriptors of a queue")
            {
                // Without memory for it, reads are found by the keeper's look and by other reads.
                let _ = epoll::add(&fds.poll, fd, epoll::EventData::new_u64(1), epoll::EventFlags::IN);
            }
        }
    }

    fn deliver(&self, peer: usize, finished: Vec<Reading<Tag>>) {
        for reading in finished {
            let queue = reading.queue;
            if let Some(op) = self.ask_the_other(peer, reading) {
                self.queues[queue.0 as usize].give(op);
            }
        }
    }

    fn has_other(&self, peer: usize) -> bool {
        self.peers.len() > 1 && self.peers[1 - peer].door(&self.common) == Door::Open
    }

    fn has_whole_other(&self, peer: usize) -> bool {
        self.has_other(peer) && self.mirror.as_ref().is_some_and(|mirror| !mirror.held[1 - peer].lacks_some())
    }

    fn came_back_empty(&self, peer: usize) {
        if let Some(mirror) = &self.mirror {
            mirror.held[peer].clear(self.common.now());
        }
    }
}

impl<Tag: Default + Send> Shared<Tag> {
    /// A read has ended at this server. What of it has failed is asked from the other one; None: it is under
    /// way there.
    fn ask_the_other(&self, peer: usize, mut reading: Reading<Tag>) -> Option<ReadOp<Tag>> {
        let is_copiers = reading.queue.0 as usize + 1 == self.queues.len();
        if self.mirror.is_none() || is_copiers || reading.op.runs.iter().all(|run| run.end.errno.is_none()) {
            return Some(reading.op);
        }
        let is_to_come = |run: &ReadRun| run.end.errno.is_none_or(|e| e == Errno::AGAIN.raw_os_error());
        if reading.op.runs.iter().all(is_to_come) {
            // It was handed over as late, to one that went away then.
            reading.asked = 1 << peer;
        }
        let failed: Vec<RunEnd> = reading.op.runs.iter().map(|run| run.end).collect();
        for run in reading.op.runs.iter_mut().filter(|run| run.end.errno.is_some()) {
            run.end = RunEnd { done_bytes: 0, errno: None };
        }
        self.begin(reading).map(|mut op| {
            // Nobody has it: as the first one said.
            op.runs.iter_mut().zip(failed).for_each(|(run, end)| run.end = end);
            op
        })
    }

    /// Ask a server that was not asked yet, and that has some of it. If there is none, the read comes back as
    /// it was.
    fn begin(&self, mut reading: Reading<Tag>) -> Option<ReadOp<Tag>> {
        let Some(mirror) = &self.mirror else {
            self.peers[0].start(&self.common, reading);
            return None;
        };
        let has_some = |at: usize, op: &ReadOp<Tag>| {
            let mut runs = op.runs.iter().filter(|run| !run.is_over());
            runs.any(|run| pages_of_run(run).any(|page| mirror.has(at, run, page)))
        };
        let waits_for = |door: Door| match door {
            Door::Open => Some(0),
            Door::Wait => Some(1),
            Door::Later if reading.is_awaited => Some(2),
            _ => None,
        };
        let able = (0..2).filter(|at| reading.asked >> at & 1 == 0 && has_some(*at, &reading.op));
        let best = able.filter_map(|at| Some((waits_for(self.peers[at].door(&self.common))?, at))).min();
        let Some((_, at)) = best else { return Some(reading.op) };
        reading.asked |= 1 << at;
        // What this one lacks fails here, and is asked from the other one.
        let runs = std::mem::take(&mut reading.op.runs);
        for mut run in runs {
            if !run.is_over() {
                run.from = at as u8;
            }
            if run.is_over() || pages_of_run(&run).all(|page| mirror.has(at, &run, page)) {
                reading.op.runs.push(run);
                continue;
            }
            for (number, place) in pages_of_run(&run).enumerate() {
                let mut page = run.page(number);
                if !mirror.has(at, &run, place) {
                    page.end = ended(Errno::AGAIN);
                }
                reading.op.runs.push(page);
            }
        }
        self.peers[at].start(&self.common, reading);
        None
    }

    fn write(&self, queue: u32, runs: &[WriteRun<'_>]) -> Vec<RunEnd> {
        let to = |peer: &Peer<Tag>| match peer.door(&self.common) {
            Door::Open | Door::Wait => peer.write(&self.common, self, queue, runs),
            door => vec![ended(errno_at(door)); runs.len()],
        };
        let Some(mirror) = &self.mirror else { return to(&self.peers[0]) };
        let _no_copy = mirror.copying.read().expect("pages are copied");
        // One that is away is not waited for, if the other one is there.
        let both = self.peers.iter().all(|peer| peer.door(&self.common) == Door::Open);
        let ends: [Vec<RunEnd>; 2] = if both {
            std::thread::scope(|scope| {
                let second = scope.spawn(|| to(&self.peers[1]));
                [to(&self.peers[0]), second.join().expect("a write to the second server")]
            })
        } else {
            std::array::from_fn(|at| match self.has_other(at) && !self.is_open(at) {
                true => vec![ended(Errno::AGAIN); runs.len()],
                false => to(&self.peers[at]),
            })
        };
        let mut all = Vec::with_capacity(runs.len());
        for (index, run) in runs.iter().enumerate() {
            let own = [0, 1].map(|at| ends[at][index]);
            let best = if own[1].done_bytes > own[0].done_bytes { own[1] } else { own[0] };
            let first = (run.offset_bytes / PAGE_SIZE as u64) as u32;
            for page in 0..run.pages.len() {
                let has = own.map(|end| (page + 1) * PAGE_SIZE <= end.done_bytes);
                for at in 0..2 {
                    mirror.held[at].set(first + page as u32, has[at]);
                    if has[1 - at] && !has[at] {
                        mirror.held[at].note_lacks(self.common.now());
                    }
                }
            }
            // What neither has may come later, if one of them says so.
            let later = own.iter().find(|end| end.errno == Some(Errno::AGAIN.raw_os_error()));
            let errno = best.errno.and(later.map_or(best.errno, |end| end.errno));
            all.push(RunEnd { errno, ..best });
        }
        all
    }

    fn is_open(&self, at: usize) -> bool {
        self.peers[at].door(&self.common) == Door::Open
    }

    /// Copy what a server lacks from the other one, until the device ends.
    fn copy(&self, mirror: &Mirror) {
        let mut buf = page_buf(COPIED_PAGES as usize);
        while !self.common.ends.load(Ordering::Acquire) {
            let mut has_copied = false;
            for at in 0..2 {
                if mirror.held[at].lacks_some() && self.is_open(0) && self.is_open(1) {
                    has_copied |= self.copy_to(mirror, at, &mut buf);
                }
            }
            if !has_copied {
                std::thread::sleep(COPY_PAUSE);
            }
        }
    }

    /// All that this one lacks. False: some could not be copied.
    fn copy_to(&self, mirror: &Mirror, at: usize, buf: &mut PageBuf) -> bool {
        let mut from = 1;
        while let Some((first, pages)) =
            mirror.held[at].next_lacking(&mirror.held[1 - at], from, COPIED_PAGES)
        {
            from = first + pages;
            let _alone = mirror.copying.write().expect("pages are written");
            let lacks = |page| mirror.held[1 - at].has(page) && !mirror.held[at].has(page);
            if !(first..from).all(lacks) {
                // Written meanwhile, some of them: in the next round.
                continue;
            }
            let offset_bytes = u64::from(first) * PAGE_SIZE as u64;
            let is_read = self.read_for_copy(1 - at, offset_bytes, pages as usize, buf);
            let run = WriteRun { offset_bytes, pages: buf[..pages as usize].iter().collect() };
            let copiers = self.queues.len() as u32 - 1;
            let is_written = is_read
                && self.is_open(at)
                && self.peers[at].write(&self.common, self, copiers, &[run])[0].errno.is_none();
            if !is_written {
                return false;
            }
            (first..from).for_each(|page| mirror.held[at].set(page, true));
        }
        mirror.held[at].note_whole();
        if mirror.held[at].next_lacking(&mirror.held[1 - at], 1, 1).is_some() {
            mirror.held[at].note_lacks(self.common.now());
        }
        true
    }

    /// Read sealed pages from this server, and wait.
    fn read_for_copy(&self, at: usize, offset_bytes: u64, pages: usize, buf: &mut PageBuf) -> bool {
        let number = self.queues.len() - 1;
        let queue = &self.queues[number];
        let op = ReadOp {
            tag: Tag::default(),
            buf: std::mem::take(buf),
            runs: vec![ReadRun::new(offset_bytes, 0, pages)],
        };
        let queue_id = QueueId(number as u32);
        self.peers[at].start(&self.common, reading(queue_id, op, false));
        loop {
            let came = self.peers[at].receive(&self.common, queue_id.0);
            self.deliver(at, came);
            if let Some(op) = queue.take().pop() {
                *buf = op.buf;
                return op.runs.iter().all(|run| run.end.errno.is_none());
            }
            let fds = queue.fds.read().expect("descriptors of a queue");
            let Some(fds) = &*fds else {
                *buf = page_buf(COPIED_PAGES as usize);
                return false;
            };
            let limit = Timespec { tv_sec: 0, tv_nsec: COPY_PAUSE.as_nanos() as i64 };
            let _ = poll(&mut [PollFd::new(&fds.poll, PollFlags::IN)], Some(&limit));
        }
    }
}

fn reading<Tag>(queue: QueueId, op: ReadOp<Tag>, is_awaited: bool) -> Reading<Tag> {
    Reading { op, queue, is_awaited, begun: Instant::now(), resent: 0, asked: 0 }
}

fn pages_of_run(run: &ReadRun) -> std::ops::Range<u32> {
    let first = (run.offset_bytes / PAGE_SIZE as u64) as u32;
    first..first + run.pages as u32
}

impl<Tag: Default + Send + 'static> Remote<Tag> {
    /// Connect, see that the exports can be used, and mark them.
    pub(crate) fn open(config: NbdConfig) -> Result<Remote<Tag>, NbdError> {
        let begun = Instant::now();
        let queues = config.queues.max(1);
        let mut run = [0; 16];
        rustix::rand::getrandom(&mut run, rustix::rand::GetRandomFlags::empty()).map_err(io::Error::from)?;
        let common = Common { run, begun, ends: AtomicBool::new(false) };
        let (mut peers, mut streams, mut slots) = (Vec::new(), Vec::new(), u32::MAX);
        for (index, target) in std::iter::once(&config.target).chain(&config.mirror).enumerate() {
            let (peer, mut opened) =
                Peer::connect(index, target, queues, config.connections, config.timeout, begun.elapsed())?;
            slots = slots.min(usable_slots(&peer.export, config.size_bytes)?);
            let first = opened.swap_remove(0);
            opened.push(claim(first, &common, &peer.export, config.overwrite)?);
            peers.push(peer);
            streams.push(opened);
        }
        let mirror = match peers.len() {
            1 => None,
            _ => Some(Mirror { held: [Held::new(slots)?, Held::new(slots)?], copying: RwLock::new(()) }),
        };
        let queues = queues + u32::from(mirror.is_some());
        let queues = (0..queues).map(|_| Queue::new()).collect::<io::Result<_>>()?;
        let shared = Shared {
            common,
            peers,
            mirror,
            queues,
            write_ios: AtomicU64::new(0),
            written_pages: AtomicU64::new(0),
        };
        for (peer, streams) in shared.peers.iter().zip(streams) {
            peer.up_with(&shared.common, &shared, streams);
        }
        Ok(Remote {
            shared: Arc::new(shared),
            slots,
            is_kept: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Places for pages, the mark's included.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn is_rotational(&self) -> bool {
        self.shared.peers.iter().any(|peer| peer.export.is_rotational)
    }

    pub(crate) fn can_trim(&self) -> bool {
        self.shared.peers.iter().all(|peer| peer.export.can_trim)
    }

    pub(crate) fn links(&self) -> Vec<Link> {
        if self.is_closed.load(Ordering::Acquire) {
            return Vec::new();
        }
        let Shared { common, peers, mirror, .. } = &*self.shared;
        let mut links: Vec<Link> = peers.iter().map(|peer| peer.link(common)).collect();
        for (link, held) in links.iter_mut().zip(mirror.iter().flat_map(|mirror| &mirror.held)) {
            if link.state == LinkState::On && held.lacks_some() {
                link.state = LinkState::Filling;
                link.since_ms = held.lacks_for(common.now()).as_millis() as u64;
            }
        }
        links
    }

    pub(crate) fn ram_bytes(&self) -> u64 {
        let Shared { peers, mirror, .. } = &*self.shared;
        let held = |mirror: &Mirror| mirror.held.iter().map(Held::ram_bytes).sum::<u64>() + COPIED_BYTES;
        peers.iter().map(Peer::ram_bytes).sum::<u64>() + mirror.as_ref().map_or(0, held)
    }

    /// Write requests, the pages that they were for, and read requests.
    pub(crate) fn totals(&self) -> (u64, u64, u64) {
        let [write_ios, written_pages] =
            [&self.shared.write_ios, &self.shared.written_pages].map(|count| count.load(Ordering::Relaxed));
        (write_ios, written_pages, self.shared.peers.iter().map(Peer::read_requests).sum())
    }

    fn queue(&self, queue: QueueId) -> &Queue<Tag> {
        let queues = &self.shared.queues;
        queues.get(queue.0 as usize).unwrap_or_else(|| panic!("queue {} of {}", queue.0, queues.len()))
    }

    /// The keepers begin with the first page, and not before: a process that is about to clone itself has one
    /// thread.
    fn keep(&self) {
        if self.is_kept.load(Ordering::Relaxed) || self.is_kept.swap(true, Ordering::AcqRel) {
            return;
        }
        type Work<Tag> = Box<dyn FnOnce(&Shared<Tag>) + Send>;
        let start = |work: Work<Tag>| {
            let shared = self.shared.clone();
            std::thread::Builder::new().name("nbd".into()).spawn(move || work(&shared)).is_ok()
        };
        let mut started = (0..self.shared.peers.len())
            .all(|at| start(Box::new(move |shared| shared.peers[at].keep(&shared.common, shared))));
        if self.shared.mirror.is_some() {
            started &= start(Box::new(|shared| shared.copy(shared.mirror.as_ref().expect("two servers"))));
        }
        // Without a thread to spare: once more at the next page.
        self.is_kept.store(started, Ordering::Release);
    }

    /// Write the runs and wait: how each has ended.
    pub(crate) fn write(&self, queue: QueueId, runs: &[WriteRun<'_>]) -> Vec<RunEnd> {
        self.keep();
        let Shared { write_ios, written_pages, .. } = &*self.shared;
        write_ios.fetch_add(runs.len() as u64, Ordering::Relaxed);
        let pages: usize = runs.iter().map(|run| run.pages.len()).sum();
        written_pages.fetch_add(pages as u64, Ordering::Relaxed);
        self.shared.write(queue.0, runs)
    }

    /// Start the reads. If they are done at once, because there are none or the server is away, `op` comes
    /// back.
    pub(crate) fn read(&self, queue: QueueId, mut op: ReadOp<Tag>, is_awaited: bool) -> Option<ReadOp<Tag>> {
        self.queue(queue);
        if op.runs.is_empty() {
            return Some(op);
        }
        self.keep();
        let Shared { common, peers, mirror, .. } = &*self.shared;
        let errno = match peers[0].door(common) {
            _ if common.ends.load(Ordering::Acquire) => Some(Errno::CANCELED),
            _ if mirror.is_some() => None,
            // A fault waits for the server as long as it may. Others can come again.
            Door::Later if is_awaited => None,
            Door::Open | Door::Wait => None,
            door => Some(errno_at(door)),
        };
        if let Some(errno) = errno {
            op.runs.iter_mut().for_each(|run| run.end = ended(errno));
            return Some(op);
        }
        self.shared.begin(reading(queue, op, is_awaited)).map(|mut op| {
            // Nobody has it who is there.
            let doors = peers.iter().map(|peer| peer.door(common));
            let later = doors.clone().any(|door| !matches!(door, Door::TimedOut | Door::Gone));
            let errno = if later { Errno::AGAIN } else { doors.map(errno_at).next().unwrap_or(Errno::IO) };
            op.runs.iter_mut().for_each(|run| run.end = ended(errno));
            op
        })
    }

    /// The runs, a page each, came as something else than was written there: the other server is asked. If
    /// there is none, `op` comes back.
    pub(crate) fn read_again(
        &self,
        queue: QueueId,
        mut op: ReadOp<Tag>,
        is_awaited: bool,
    ) -> Option<ReadOp<Tag>> {
        let Shared { common, peers, mirror, .. } = &*self.shared;
        for run in &mut op.runs {
            peers[usize::from(run.from)].note_wrong();
            run.wrong |= 1 << run.from;
        }
        if mirror.is_none() || common.ends.load(Ordering::Acquire) {
            return Some(op);
        }
        // The first one is not asked once more where the other one is late.
        let asked = op.runs.iter().fold(u8::MAX, |all, run| all & run.wrong);
        self.shared.begin(Reading { asked, ..reading(queue, op, is_awaited) })
    }

    /// The run came as it was written from the one server, and before that as something else from the other
    /// one, which gets it once more.
    pub(crate) fn mend(&self, run: &ReadRun) {
        let Shared { common, mirror, .. } = &*self.shared;
        if let Some(mirror) = mirror {
            for at in (0..2).filter(|at| run.wrong >> at & 1 == 1) {
                pages_of_run(run).for_each(|page| mirror.held[at].set(page, false));
                mirror.held[at].note_lacks(common.now());
            }
        }
    }

    /// Reads that have ended.
    pub(crate) fn reap(&self, queue: QueueId) -> Vec<ReadOp<Tag>> {
        let Shared { common, peers, .. } = &*self.shared;
        let mut own = Vec::new();
        for (at, peer) in peers.iter().enumerate() {
            for reading in peer.receive(common, queue.0) {
                let whose = reading.queue;
                match self.shared.ask_the_other(at, reading) {
                    Some(op) if whose == queue => own.push(op),
                    Some(op) => self.queue(whose).give(op),
                    None => {}
                }
            }
        }
        own.append(&mut self.queue(queue).take());
        own
    }

    pub(crate) fn poll_fd(&self, queue: QueueId) -> io::Result<Option<OwnedFd>> {
        let fds = self.queue(queue).fds.read().expect("descriptors of a queue");
        fds.as_ref().map(|fds| fds.poll.try_clone()).transpose()
    }

    /// Tell the servers that these places hold nothing.
    pub(crate) fn trim(&self, start: u32, end: u32) -> Result<(), Errno> {
        let Shared { common, peers, mirror, .. } = &*self.shared;
        if let Some(mirror) = mirror {
            let _no_copy = mirror.copying.read().expect("pages are copied");
            mirror.held.iter().for_each(|held| (start..end).for_each(|page| held.set(page, false)));
        }
        let mut result = Ok(());
        for peer in peers {
            let trimmed = match peer.door(common) {
                Door::Open => peer.trim(common, &*self.shared, start, (end - start) as usize),
                door => Err(errno_at(door)),
            };
            result = result.and(trimmed);
        }
        // Two do not have to agree on it.
        if mirror.is_some() { Ok(()) } else { result }
    }

    /// The run is over: nobody waits for the servers any more, and the exports are free for others.
    pub(crate) fn end(&self) {
        let Shared { common, peers, .. } = &*self.shared;
        if !common.ends.swap(true, Ordering::AcqRel) {
            for peer in peers {
                peer.renew(common, &*self.shared, true);
                // Nobody looks after them any more.
                peer.give_up_reads(&*self.shared, Errno::CANCELED);
            }
        }
    }

    /// Let go of connections and descriptors.
    pub(crate) fn close(&self) {
        self.end();
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.shared.peers.iter().for_each(|peer| peer.close(&*self.shared, Errno::CANCELED));
        for queue in &self.shared.queues {
            *queue.fds.write().expect("descriptors of a queue") = None;
        }
    }
}

impl<Tag: Default + Send + 'static> Drop for Remote<Tag> {
    fn drop(&mut self) {
        self.close();
    }
}

fn ended(errno: Errno) -> RunEnd {
    RunEnd { done_bytes: 0, errno: Some(errno.raw_os_error()) }
}

/// Pages of an export that slots can have, its first one included; an error where it cannot be used.
fn usable_slots(export: &Export, size_bytes: Option<u64>) -> Result<u32, NbdError> {
    can_be_used(export)?;
    let wanted_bytes = size_bytes.unwrap_or(0).max(u64::from(PAGES_MIN) * PAGE_SIZE as u64);
    if export.size_bytes < wanted_bytes {
        return Err(NbdError::TooSmall { wanted_bytes, export_bytes: export.size_bytes });
    }
    let wanted = size_bytes.map_or(u64::MAX, |bytes| bytes / PAGE_SIZE as u64 + 1);
    Ok(wanted.min(u64::from(spare(export).start)) as u32)
}

/// See whose the export is, and mark it as ours.
fn claim(stream: Stream, common: &Common, export: &Export, overwrite: bool) -> Result<Stream, NbdError> {
    let deadline = Instant::now() + CONNECT;
    let mut page = Box::new(Page::ZERO);
    let mut stream = exchange(stream, deadline, Command::Read, 0, &mut page.0)?;
    match mark::read(&page, &common.run) {
        Found::Own | Found::Over => {}
        Found::InUse(age) => return Err(NbdError::InUse { seconds: age.as_secs() }),
        Found::Foreign if overwrite => {}
        Found::Foreign => {
            let bytes_max = export.request_bytes_max as usize;
            stream = refuse_data(stream, deadline, export.size_bytes, bytes_max)?;
        }
    }
    let mut page = mark::page(&common.run, false);
    exchange(stream, deadline, Command::Write, 0, &mut page.0)
}

/// An error if others have data there.
fn refuse_data(
    mut stream: Stream,
    deadline: Instant,
    size_bytes: u64,
    bytes_max: usize,
) -> Result<Stream, NbdError> {
    let whole = |bytes: u64| bytes / PAGE_SIZE as u64 * PAGE_SIZE as u64;
    let tail_at = whole(size_bytes.saturating_sub(TAIL_BYTES as u64));
    let mut head = vec![0; whole(size_bytes.min(HEAD_BYTES as u64)) as usize];
    let mut tail = vec![0; whole(size_bytes - tail_at) as usize];
    for (at, bytes) in [(0, &mut head), (tail_at, &mut tail)] {
        let step = bytes_max.min(TAIL_BYTES) / PAGE_SIZE * PAGE_SIZE;
        for (part, at) in bytes.chunks_mut(step).zip((at..).step_by(step)) {
            stream = exchange(stream, deadline, Command::Read, at, part)?;
        }
    }
    let is_blank = head.iter().chain(&tail).all(|byte| *byte == 0);
    if is_blank {
        return Ok(stream);
    }
    let ends = Ends { head, tail, size_bytes };
    let what = ends.name().or_else(|| ends.sign().map(|_| "a swap area"));
    Err(NbdError::HoldsData(what.unwrap_or("data").to_owned()))
}
