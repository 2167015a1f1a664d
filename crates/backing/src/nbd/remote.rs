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
//! What it does not do: know slots, or what is in a page.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use memspill_engine::backing::{Link, QueueId};
use memspill_engine::sync::lock;
use memspill_engine::units::{PAGE_SIZE, Page};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use super::away::Door;
use super::config::NbdConfig;
use super::error::NbdError;
use super::exchange::exchange;
use super::handshake::Export;
use super::line::Finished;
use super::mark::{self, Found};
use super::moved::Moved;
use super::peer::{CONNECT, Common, Owner, Peer, errno_at};
use super::stream::Stream;
use super::wire::Command;
use crate::ram::SLOTS_MAX;
use crate::ring::{ReadOp, RunEnd, WriteRun};
use crate::signatures::{Ends, HEAD_BYTES, TAIL_BYTES};

/// Places kept for pages whose own are in doubt: one for so many, ...
const PAGES_PER_SPARE: u32 = 16;
/// ... and no more than this (64 MiB).
const SPARES_MAX: u32 = 16384;
/// Less is no swap.
const PAGES_MIN: u32 = 64;

/// See the module's header.
pub(crate) struct Remote<Tag: Send + 'static> {
    shared: Arc<Shared<Tag>>,
    slots: u32,
    is_kept: AtomicBool,
    is_closed: AtomicBool,
}

struct Shared<Tag> {
    common: Common,
    peer: Peer<Tag>,
    queues: Vec<Queue<Tag>>,
    write_ios: AtomicU64,
    written_pages: AtomicU64,
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

impl<Tag: Send> Owner<Tag> for Shared<Tag> {
    fn watch(&self, _peer: usize, line: usize, fd: &OwnedFd) {
        for (queue, number) in self.queues.iter().zip(0..) {
            if self.peer.reads_on(number, line)
                && let Some(fds) = &*queue.fds.read().expect("descriptors of a queue")
            {
                // Without memory for it, reads are found by the keeper's look and by other reads.
                let _ = epoll::add(&fds.poll, fd, epoll::EventData::new_u64(1), epoll::EventFlags::IN);
            }
        }
    }

    fn deliver(&self, _peer: usize, finished: Vec<Finished<Tag>>) {
        for Finished { op, queue, .. } in finished {
            self.queues[queue.0 as usize].give(op);
        }
    }
}

impl<Tag: Send + 'static> Remote<Tag> {
    /// Connect, see that the export can be used, and mark it.
    pub(crate) fn open(config: NbdConfig) -> Result<Remote<Tag>, NbdError> {
        if config.mirror.is_some() {
            return Err(NbdError::Io(io::Error::other("a mirror is not there yet")));
        }
        let begun = Instant::now();
        let queues = config.queues.max(1);
        let now = begun.elapsed();
        let (peer, mut streams) =
            Peer::connect(0, &config.target, queues, config.connections, config.timeout, now)?;
        let export = peer.export;
        if export.is_read_only {
            return Err(NbdError::ReadOnly);
        }
        let (min_bytes, max_bytes) = (export.block_bytes_min, export.request_bytes_max);
        if min_bytes as usize > PAGE_SIZE || (max_bytes as usize) < PAGE_SIZE {
            let (min_bytes, max_bytes) = (min_bytes.into(), max_bytes.into());
            return Err(NbdError::BlockSize { min_bytes, max_bytes });
        }
        let pages = (export.size_bytes / PAGE_SIZE as u64).min(u64::from(SLOTS_MAX)) as u32;
        let wanted_bytes = config.size_bytes.unwrap_or(0).max(u64::from(PAGES_MIN) * PAGE_SIZE as u64);
        if export.size_bytes < wanted_bytes {
            return Err(NbdError::TooSmall { wanted_bytes, export_bytes: export.size_bytes });
        }
        let spares = (pages / PAGES_PER_SPARE).min(SPARES_MAX);
        let wanted = config.size_bytes.map_or(u64::MAX, |bytes| bytes / PAGE_SIZE as u64 + 1);
        let slots = u64::from(pages - spares).min(wanted) as u32;
        let mut run = [0; 16];
        rustix::rand::getrandom(&mut run, rustix::rand::GetRandomFlags::empty()).map_err(io::Error::from)?;
        let common =
            Common { run, moved: Moved::new(pages - spares..pages), begun, ends: AtomicBool::new(false) };
        let first = streams.swap_remove(0);
        streams.push(claim(first, &common, &export, config.overwrite)?);
        let queues = (0..queues).map(|_| Queue::new()).collect::<io::Result<_>>()?;
        let shared =
            Shared { common, peer, queues, write_ios: AtomicU64::new(0), written_pages: AtomicU64::new(0) };
        shared.peer.up_with(&shared.common, &shared, streams);
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
        self.shared.peer.export.is_rotational
    }

    pub(crate) fn can_trim(&self) -> bool {
        self.shared.peer.export.can_trim
    }

    pub(crate) fn links(&self) -> Vec<Link> {
        vec![self.shared.peer.link(&self.shared.common)]
    }

    pub(crate) fn ram_bytes(&self) -> u64 {
        self.shared.peer.ram_bytes() + self.shared.common.moved.ram_bytes()
    }

    /// Write requests, the pages that they were for, and read requests.
    pub(crate) fn totals(&self) -> (u64, u64, u64) {
        let [write_ios, written_pages] =
            [&self.shared.write_ios, &self.shared.written_pages].map(|count| count.load(Ordering::Relaxed));
        (write_ios, written_pages, self.shared.peer.read_requests())
    }

    fn queue(&self, queue: QueueId) -> &Queue<Tag> {
        let queues = &self.shared.queues;
        queues.get(queue.0 as usize).unwrap_or_else(|| panic!("queue {} of {}", queue.0, queues.len()))
    }

    /// The keeper begins with the first page, and not before: a process that is about to clone itself has one
    /// thread.
    fn keep(&self) {
        if self.is_kept.load(Ordering::Relaxed) || self.is_kept.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = self.shared.clone();
        let keep = move || shared.peer.keep(&shared.common, &*shared);
        // Without a thread to spare: at the next page.
        if std::thread::Builder::new().name("nbd".into()).spawn(keep).is_err() {
            self.is_kept.store(false, Ordering::Release);
        }
    }

    /// Write the runs and wait: how each has ended.
    pub(crate) fn write(&self, queue: QueueId, runs: &[WriteRun<'_>]) -> Vec<RunEnd> {
        self.keep();
        let Shared { common, peer, write_ios, written_pages, .. } = &*self.shared;
        write_ios.fetch_add(runs.len() as u64, Ordering::Relaxed);
        let pages: usize = runs.iter().map(|run| run.pages.len()).sum();
        written_pages.fetch_add(pages as u64, Ordering::Relaxed);
        match peer.door(common) {
            Door::Open | Door::Wait => peer.write(common, &*self.shared, queue.0, runs),
            door => vec![ended(errno_at(door)); runs.len()],
        }
    }

    /// Start the reads. If they are done at once, because there are none or the server is away, `op` comes
    /// back.
    pub(crate) fn read(&self, queue: QueueId, mut op: ReadOp<Tag>, is_awaited: bool) -> Option<ReadOp<Tag>> {
        self.queue(queue);
        if op.runs.is_empty() {
            return Some(op);
        }
        self.keep();
        let Shared { common, peer, .. } = &*self.shared;
        match peer.door(common) {
            _ if common.ends.load(Ordering::Acquire) => {
                op.runs.iter_mut().for_each(|run| run.end = ended(Errno::CANCELED));
                Some(op)
            }
            Door::Open | Door::Wait => {
                peer.start(common, queue.0, op, is_awaited);
                None
            }
            // A fault waits for the server as long as it may. Others can come again.
            Door::Later if is_awaited => {
                peer.start(common, queue.0, op, true);
                None
            }
            door => {
                op.runs.iter_mut().for_each(|run| run.end = ended(errno_at(door)));
                Some(op)
            }
        }
    }

    /// Reads that have ended.
    pub(crate) fn reap(&self, queue: QueueId) -> Vec<ReadOp<Tag>> {
        let finished = self.shared.peer.receive(&self.shared.common, queue.0);
        let mut own = self.queue(queue).take();
        for Finished { op, queue: whose, .. } in finished {
            if whose == queue { own.push(op) } else { self.queue(whose).give(op) }
        }
        own
    }

    pub(crate) fn poll_fd(&self, queue: QueueId) -> io::Result<Option<OwnedFd>> {
        let fds = self.queue(queue).fds.read().expect("descriptors of a queue");
        fds.as_ref().map(|fds| fds.poll.try_clone()).transpose()
    }

    /// Tell the server that these places hold nothing.
    pub(crate) fn trim(&self, start: u32, end: u32) -> Result<(), Errno> {
        let Shared { common, peer, .. } = &*self.shared;
        match peer.door(common) {
            Door::Open => peer.trim(common, &*self.shared, start, (end - start) as usize),
            door => Err(errno_at(door)),
        }
    }

    /// The run is over: nobody waits for the server any more, and the export is free for others.
    pub(crate) fn end(&self) {
        let Shared { common, peer, .. } = &*self.shared;
        if !common.ends.swap(true, Ordering::AcqRel) {
            peer.renew(common, &*self.shared, true);
            // Nobody looks after them any more.
            peer.give_up_reads(&*self.shared, Errno::CANCELED);
        }
    }

    /// Let go of connections and descriptors.
    pub(crate) fn close(&self) {
        self.end();
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.shared.peer.close(&*self.shared, Errno::CANCELED);
        for queue in &self.shared.queues {
            *queue.fds.write().expect("descriptors of a queue") = None;
        }
    }
}

impl<Tag: Send + 'static> Drop for Remote<Tag> {
    fn drop(&mut self) {
        self.close();
    }
}

fn ended(errno: Errno) -> RunEnd {
    RunEnd { done_bytes: 0, errno: Some(errno.raw_os_error()) }
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
