//! One server: its connections, whether it is there, and the thread that looks after both.
//!
//! ```text
//!   readers  0 .. r    each for some queues: reads are small, and wait behind no write
//!   writers  r .. n    each used by one thread at a time, which waits for what it wrote
//!   (a server that takes one connection only: both on it, and writes in small pieces)
//!
//!   keeper: no answer for SILENCE ─▶ away ─▶ all lines down ─▶ tried again ─▶ the mark is there? ─▶ all up
//! ```
//!
//! *All lines go down and come up together*: a server that owes an answer on one of them is not to be trusted
//! on the others, and the mark is looked at once.
//!
//! *Writes in doubt*: what was sent and not answered when a line went down may still be done by the server.
//! Its places are left behind (`moved.rs`).
//!
//! Locks: a line's, then `away`, and never those of two servers. Nothing is waited for under either but the
//! socket's own buffer.
//!
//! What it does not do: choose between servers, keep what has ended (`remote.rs`).

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use memspill_engine::backing::{Link, LinkState};
use memspill_engine::sync::lock;
use memspill_engine::units::{PAGE_SIZE, Page};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::away::{Away, Door, GRACE};
use super::config::NbdTarget;
use super::error::NbdError;
use super::exchange::exchange;
use super::handshake::Export;
use super::line::{Cut, Line, Reading, Sending, errno_of};
use super::mark::{self, Found, RunNumber};
use super::moved::Moved;
use super::stream::{Dial, Stream};
use super::wire::Command;
use crate::ram::SLOTS_MAX;
use crate::ring::{RunEnd, WriteRun};

/// A server that owes an answer and gives no sign of life for so long is away.
pub(super) const SILENCE: Duration = Duration::from_secs(5);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// The same where another server has all pages.
const LOOK_BESIDE: Duration = Duration::from_millis(5);
/// A read is late after so many times the median, and after this.
const LATE_FACTOR: u32 = 4;
const LATE_MIN: Duration = Duration::from_millis(1);
/// For connecting to one that may be slow.
pub(super) const CONNECT: Duration = Duration::from_secs(5);
/// For connections beyond the first: a server that takes no more does not answer.
const CONNECT_MORE: Duration = Duration::from_secs(1);

/// Bytes of one write request, where reads have lines of their own, and where they wait behind it.
const WRITE_BYTES: usize = 512 << 10;
const SHARED_WRITE_BYTES: usize = 128 << 10;
/// Write requests of one thread that are in flight.
const WRITES_IN_FLIGHT: usize = 4;
/// Room for what comes, for each line.
const READER_INPUT_BYTES: usize = 32 << 10;
const WRITER_INPUT_BYTES: usize = 1 << 10;
const READERS: u32 = 4;
const WRITERS: u32 = 2;
/// Round trips whose median is told.
const TRIPS: usize = 64;

/// Places kept for pages whose own are in doubt: one for so many, ...
const PAGES_PER_SPARE: u32 = 16;
/// ... and no more than this (64 MiB).
const SPARES_MAX: u32 = 16384;

/// Pages of an export, as far as they can be numbered.
pub(super) fn pages_of(export: &Export) -> u32 {
    (export.size_bytes / PAGE_SIZE as u64).min(u64::from(SLOTS_MAX)) as u32
}

/// Pages of it that have no slot.
pub(super) fn spare(export: &Export) -> Range<u32> {
    let pages = pages_of(export);
    pages - (pages / PAGES_PER_SPARE).min(SPARES_MAX)..pages
}

/// Can pages be written to it, and read?
pub(super) fn can_be_used(export: &Export) -> Result<(), NbdError> {
    if export.is_read_only {
        return Err(NbdError::ReadOnly);
    }
    let (min_bytes, max_bytes) = (u64::from(export.block_bytes_min), u64::from(export.request_bytes_max));
    if !(min_bytes..=max_bytes).contains(&(PAGE_SIZE as u64)) {
        return Err(NbdError::BlockSize { min_bytes, max_bytes });
    }
    Ok(())
}

/// Connections of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lines {
    pub(super) readers: usize,
    pub(super) writers: usize,
}

impl Lines {
    /// For so many queues, and if no more than `asked` are wanted.
    fn for_queues(queues: u32, asked: Option<u32>) -> Lines {
        let readers = queues.clamp(1, READERS);
        let asked = asked.unwrap_or(readers + WRITERS).max(1);
        match asked {
            1 => Lines::SHARED,
            _ => {
                let writers = WRITERS.min(asked / 2).max(1);
                Lines { readers: (asked - writers).min(queues.max(1)) as usize, writers: writers as usize }
            }
        }
    }

    /// One connection for all.
    const SHARED: Lines = Lines { readers: 1, writers: 0 };

    pub(super) fn all(self) -> usize {
        self.readers + self.writers
    }
}

/// What a server needs to know of all of them.
pub(super) struct Common {
    pub(super) run: RunNumber,
    pub(super) begun: Instant,
    /// The run is over, or the device is off.
    pub(super) ends: AtomicBool,
}

impl Common {
    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// Somebody who is told when a line gets another socket, and gets what reads have ended.
pub(super) trait Owner<Tag>: Send + Sync {
    fn watch(&self, peer: usize, line: usize, fd: &OwnedFd);
    fn deliver(&self, peer: usize, finished: Vec<Reading<Tag>>);
    /// Is another server there that has the same pages, or gets them?
    fn has_other(&self, peer: usize) -> bool;
    /// The same, and it lacks nothing.
    fn has_whole_other(&self, peer: usize) -> bool;
    /// The server is there again, without its pages, which the other one has. They are copied from now on.
    fn came_back_empty(&self, peer: usize);
}

/// See the module's header.
pub(super) struct Peer<Tag> {
    index: usize,
    dial: Dial,
    pub(super) export: Export,
    pub(super) counts: Lines,
    lines: Vec<Mutex<Line<Tag>>>,
    writers: Vec<Mutex<()>>,
    moved: Moved,
    away: Mutex<Away>,
    changed: Condvar,
    generation: AtomicU64,
    trips_us: [AtomicU32; TRIPS],
    trips: AtomicU64,
    /// Pages that came as something else than was written.
    wrong_pages: AtomicU64,
}

/// A thread's writes, in pieces.
pub(super) struct Job<'a> {
    command: Command,
    runs: &'a [WriteRun<'a>],
    pieces: Vec<Piece>,
    generation: u64,
    /// Connections that were cut meanwhile.
    resent: u32,
    sending: Option<Sending>,
    in_flight: usize,
}

struct Piece {
    run: usize,
    first: usize,
    pages: usize,
    place: u32,
    state: PieceState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PieceState {
    Waits,
    /// Some of it has gone out.
    Sent,
    Done,
    Failed(Errno),
}

impl<Tag: Send> Peer<Tag> {
    /// Connect for the first time; the export's first page is left as it is. The lines come up by `up_with`.
    pub(super) fn connect(
        index: usize,
        target: &NbdTarget,
        queues: u32,
        connections: Option<u32>,
        timeout: Duration,
        now: Duration,
    ) -> Result<(Peer<Tag>, Vec<Stream>), NbdError> {
        let dial = Dial::of(target)?;
        let (first, export) = dial.open(Instant::now() + CONNECT)?;
        let wanted = match export.can_multi_conn {
            true => Lines::for_queues(queues, connections),
            false => Lines::SHARED,
        };
        let mut streams = vec![first];
        while streams.len() < wanted.all() {
            match dial.open(Instant::now() + CONNECT_MORE) {
                Ok((stream, _)) => streams.push(stream),
                Err(_) => break,
            }
        }
        let counts = Lines::for_queues(queues, Some(streams.len() as u32));
        streams.truncate(counts.all());
        let line = |at: usize| {
            Mutex::new(Line::new(if at < counts.readers { READER_INPUT_BYTES } else { WRITER_INPUT_BYTES }))
        };
        let peer = Peer {
            index,
            dial,
            export,
            counts,
            lines: (0..counts.all()).map(line).collect(),
            writers: (0..counts.writers.max(1)).map(|_| Mutex::new(())).collect(),
            moved: Moved::new(spare(&export)),
            away: Mutex::new(Away::new(timeout, now)),
            changed: Condvar::new(),
            generation: AtomicU64::new(0),
            trips_us: std::array::from_fn(|_| AtomicU32::new(0)),
            trips: AtomicU64::new(0),
            wrong_pages: AtomicU64::new(0),
        };
        Ok((peer, streams))
    }

    /// The line of a queue's reads.
    fn reader(&self, queue: u32) -> usize {
        queue as usize % self.counts.readers
    }

    /// Does the queue read on this line?
    pub(super) fn reads_on(&self, queue: u32, line: usize) -> bool {
        self.reader(queue) == line
    }

    /// The line that a thread writes on, which nobody else does meanwhile.
    fn writer(&self, hint: u32) -> (usize, MutexGuard<'_, ()>) {
        let line = |at: usize| if self.counts.writers == 0 { 0 } else { self.counts.readers + at };
        for (at, writer) in self.writers.iter().enumerate() {
            if let Ok(alone) = writer.try_lock() {
                return (line(at), alone);
            }
        }
        let at = hint as usize % self.writers.len();
        (line(at), lock(&self.writers[at]))
    }

    fn request_bytes_max(&self) -> usize {
        self.export.request_bytes_max as usize
    }

    pub(super) fn door(&self, common: &Common) -> Door {
        lock(&self.away).door(common.now())
    }

    pub(super) fn link(&self, common: &Common) -> Link {
        let now = common.now();
        let (state, since, reconnects, is_empty, refusal) = {
            let away = lock(&self.away);
            let state = match away.door(now) {
                Door::Open => LinkState::On,
                Door::Wait | Door::Later => LinkState::Away,
                Door::TimedOut | Door::Gone => LinkState::Lost,
            };
            (state, away.lasts(now), away.reconnects(), away.door(now) == Door::Gone, away.refusal())
        };
        let (mut sent_bytes, mut received_bytes) = (0, 0);
        for line in &self.lines {
            let line = lock(line);
            sent_bytes += line.sent_bytes;
            received_bytes += line.received_bytes;
        }
        Link {
            state,
            since_ms: since.as_millis() as u64,
            round_trip_us: self.round_trip_us(),
            sent_bytes,
            received_bytes,
            reconnects,
            wrong_pages: self.wrong_pages.load(Ordering::Relaxed),
            is_empty,
            refusal,
        }
    }

    /// Memory that is ours, and fixed but for tables of what is in flight.
    pub(super) fn ram_bytes(&self) -> u64 {
        self.moved.ram_bytes() + self.lines.iter().map(|line| lock(line).ram_bytes()).sum::<u64>()
    }

    pub(super) fn read_requests(&self) -> u64 {
        self.lines.iter().map(|line| lock(line).read_requests).sum()
    }

    pub(super) fn note_wrong(&self) {
        self.wrong_pages.fetch_add(1, Ordering::Relaxed);
    }

    fn note_trip(&self, begun: Instant) {
        let at = self.trips.fetch_add(1, Ordering::Relaxed) as usize % TRIPS;
        let us = begun.elapsed().as_micros().clamp(1, u128::from(u32::MAX)) as u32;
        self.trips_us[at].store(us, Ordering::Relaxed);
    }

    /// The median of the last reads of single pages.
    pub(super) fn round_trip_us(&self) -> Option<u64> {
        let mut trips: Vec<u32> = self.trips_us.iter().map(|us| us.load(Ordering::Relaxed)).collect();
        trips.retain(|us| *us > 0);
        trips.sort_unstable();
        trips.get(trips.len() / 2).map(|us| u64::from(*us))
    }

    /// Begin a read on its queue's line.
    pub(super) fn start(&self, common: &Common, read: Reading<Tag>) {
        let at = self.reader(read.queue.0);
        let (result, generation) = {
            let mut line = lock(&self.lines[at]);
            let result = line.start(read, &self.moved, self.request_bytes_max());
            (line.checked(result), line.generation())
        };
        self.look(common, result, generation);
    }

    /// Take what has come on the queue's line.
    pub(super) fn receive(&self, common: &Common, queue: u32) -> Vec<Reading<Tag>> {
        self.receive_on(common, self.reader(queue))
    }

    fn receive_on(&self, common: &Common, at: usize) -> Vec<Reading<Tag>> {
        let mut finished = Vec::new();
        let (result, generation) = {
            let mut line = lock(&self.lines[at]);
            let result = line.receive(&self.moved, self.request_bytes_max(), &mut finished);
            (line.checked(result), line.generation())
        };
        self.note_trips(&finished);
        self.look(common, result, generation);
        finished
    }

    fn note_trips(&self, finished: &[Reading<Tag>]) {
        let single = |read: &&Reading<Tag>| matches!(&read.op.runs[..], [run] if run.pages == 1);
        finished.iter().filter(single).for_each(|read| self.note_trip(read.begun));
    }

    /// If the line was cut, the server is away from now on.
    fn look(&self, common: &Common, result: Result<(), Cut>, generation: u64) {
        if result.is_err() {
            self.cut(common, generation);
        }
    }

    fn cut(&self, common: &Common, generation: u64) {
        let mut away = lock(&self.away);
        if self.generation.load(Ordering::Acquire) == generation && away.broke(common.now()) {
            // The keeper takes the other lines down.
            self.changed.notify_all();
        }
    }

    /// Write all runs and wait: how each has ended.
    pub(super) fn write(
        &self,
        common: &Common,
        owner: &dyn Owner<Tag>,
        hint: u32,
        runs: &[WriteRun<'_>],
    ) -> Vec<RunEnd> {
        let mut left = vec![usize::MAX; runs.len()];
        for (run, settled) in runs.iter().zip(&mut left) {
            let first = (run.offset_bytes / PAGE_SIZE as u64) as u32;
            *settled = self.moved.settle(first, run.pages.len(), common.now());
        }
        let bytes = if self.counts.writers == 0 { SHARED_WRITE_BYTES } else { WRITE_BYTES };
        let mut job = Job::write(runs, &self.moved, bytes.min(self.request_bytes_max()));
        for piece in &mut job.pieces {
            if piece.first + piece.pages > left[piece.run] {
                piece.state = PieceState::Failed(Errno::AGAIN);
            }
        }
        self.carry_out(common, owner, hint, &mut job);
        job.ends()
    }

    /// TRIM these places and wait.
    pub(super) fn trim(
        &self,
        common: &Common,
        owner: &dyn Owner<Tag>,
        first: u32,
        pages: usize,
    ) -> Result<(), Errno> {
        let mut job = Job::trim(first, pages);
        self.carry_out(common, owner, 0, &mut job);
        job.ends()[0].errno.map_or(Ok(()), |errno| Err(Errno::from_raw_os_error(errno)))
    }

    fn carry_out(&self, common: &Common, owner: &dyn Owner<Tag>, hint: u32, job: &mut Job<'_>) {
        if job.is_over() {
            return;
        }
        let (at, _alone) = self.writer(hint);
        let begun = Instant::now();
        while !job.is_over() {
            let mut finished = Vec::new();
            let (result, generation, poll_on) = {
                let mut line = lock(&self.lines[at]);
                let result =
                    job.pump(&mut line, &self.moved, common.now(), self.request_bytes_max(), &mut finished);
                let result = line.checked(result);
                let wants_out = job.sending.is_some() || line.has_more_to_send();
                let fd = line.stream().map(|stream| stream.fd().clone());
                (result, line.generation(), fd.map(|fd| (fd, wants_out)))
            };
            if !finished.is_empty() {
                self.note_trips(&finished);
                owner.deliver(self.index, finished);
            }
            self.look(common, result, generation);
            if job.is_over() {
                return;
            }
            if self.is_hopeless(begun, job.resent) {
                return self.give_up(at, common, job, Errno::TIMEDOUT);
            }
            match self.door(common) {
                Door::Open if common.ends.load(Ordering::Acquire) && begun.elapsed() >= GRACE => {
                    self.cut(common, generation);
                }
                Door::Open => match poll_on {
                    Some((fd, wants_out)) => {
                        let flags = if wants_out { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                        let limit = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
                        if poll(&mut [PollFd::new(&*fd, flags)], Some(&limit)) == Ok(0) {
                            // The keeper may be at work elsewhere, or be this thread.
                            self.look_for_silence(common);
                        }
                    }
                    // It comes up in a moment.
                    None => std::thread::sleep(Duration::from_millis(1)),
                },
                Door::Wait if !common.ends.load(Ordering::Acquire) && !owner.has_other(self.index) => {
                    let away = lock(&self.away);
                    if !away.is_on() {
                        let _ = self.changed.wait_timeout(away, Duration::from_millis(50));
                    }
                }
                door => return self.give_up(at, common, job, errno_at(door)),
            }
        }
    }

    fn is_hopeless(&self, begun: Instant, resent: u32) -> bool {
        resent > 0 && lock(&self.away).is_hopeless(begun.elapsed(), resent)
    }

    /// The job waits no more. Nothing of it is left on a line: it is down, or goes down.
    fn give_up(&self, at: usize, common: &Common, job: &mut Job<'_>, errno: Errno) {
        let mut line = lock(&self.lines[at]);
        if line.generation() == job.generation {
            line.down();
        }
        job.doubt_what_is_out(&self.moved, common.now());
        for piece in job.pieces.iter_mut().filter(|piece| !piece.is_over()) {
            piece.state = PieceState::Failed(errno);
        }
    }

    /// All lines get a connection, and what waits is sent.
    pub(super) fn up_with(&self, common: &Common, owner: &dyn Owner<Tag>, streams: Vec<Stream>) {
        // First: whoever finds one of the new connections broken is heard.
        let generation = {
            let mut away = lock(&self.away);
            away.came_back(common.now());
            self.generation.fetch_add(1, Ordering::AcqRel) + 1
        };
        for (at, stream) in streams.into_iter().enumerate() {
            let fd = stream.fd().clone();
            let result = {
                let mut line = lock(&self.lines[at]);
                let result = line.up(stream, generation);
                line.checked(result)
            };
            owner.watch(self.index, at, &fd);
            self.look(common, result, generation);
        }
        let _away = lock(&self.away);
        self.changed.notify_all();
    }

    fn all_down(&self) {
        self.lines.iter().for_each(|line| lock(line).down());
    }

    /// Let go of all connections. Reads that were under way end with this errno.
    pub(super) fn close(&self, owner: &dyn Owner<Tag>, errno: Errno) {
        self.lines.iter().for_each(|line| lock(line).close());
        self.give_up_reads(owner, errno);
        let _away = lock(&self.away);
        self.changed.notify_all();
    }

    pub(super) fn give_up_reads(&self, owner: &dyn Owner<Tag>, errno: Errno) {
        self.give_up_some(owner, errno, |_| true);
    }

    fn give_up_some(&self, owner: &dyn Owner<Tag>, errno: Errno, is_meant: impl Fn(&Reading<Tag>) -> bool) {
        let mut finished = Vec::new();
        for line in &self.lines {
            lock(line).give_up(errno, &mut finished, &is_meant);
        }
        if !finished.is_empty() {
            owner.deliver(self.index, finished);
        }
    }

    /// The keeper's work, until the device ends.
    pub(super) fn keep(&self, common: &Common, owner: &dyn Owner<Tag>) {
        let mut renewed = Instant::now();
        while !common.ends.load(Ordering::Acquire) {
            let now = common.now();
            let (door, next_try) = {
                let away = lock(&self.away);
                (away.door(now), away.next_try())
            };
            self.give_up_some(owner, Errno::TIMEDOUT, |read| self.is_hopeless(read.begun, read.resent));
            match door {
                Door::Open => {
                    self.look_for_silence(common);
                    self.hand_over_late_reads(owner);
                    if renewed.elapsed() >= mark::RENEWED_EVERY {
                        renewed = Instant::now();
                        self.renew(common, owner, false);
                    }
                }
                Door::Wait if !owner.has_other(self.index) => self.all_down(),
                Door::Later if !owner.has_other(self.index) => {
                    self.all_down();
                    self.give_up_some(owner, errno_at(door), |read| !read.is_awaited);
                }
                Door::Wait | Door::Later | Door::TimedOut | Door::Gone => {
                    self.all_down();
                    self.give_up_reads(owner, errno_at(door));
                }
            }
            if next_try.is_some_and(|next| next <= now) {
                self.try_again(common, owner, now);
            }
            // Before the lock: the other server's is asked for.
            let look = if owner.has_whole_other(self.index) { LOOK_BESIDE } else { LOOK };
            let away = lock(&self.away);
            let now = common.now();
            let pause = away.next_try().map_or(look, |next| next.saturating_sub(now).min(look));
            let is_quiet = away.is_on() && door == Door::Open || !away.is_on() && door != Door::Open;
            if is_quiet && !pause.is_zero() && !common.ends.load(Ordering::Acquire) {
                let _ = self.changed.wait_timeout(away, pause);
            }
        }
    }

    /// Reads that take several times as long as they use to are asked from the other server.
    fn hand_over_late_reads(&self, owner: &dyn Owner<Tag>) {
        if owner.has_whole_other(self.index) {
            let usual = Duration::from_micros(self.round_trip_us().unwrap_or(0));
            let late = (usual * LATE_FACTOR).max(LATE_MIN);
            let only_here = 1 << self.index;
            self.give_up_some(owner, Errno::AGAIN, |read| {
                read.asked == only_here && read.begun.elapsed() >= late
            });
        }
    }

    fn look_for_silence(&self, common: &Common) {
        for line in &self.lines {
            let (is_over, generation) = {
                let mut line = lock(line);
                let flushed = line.flush();
                let flushed = line.checked(flushed);
                let since = line.silent_since().filter(|since| since.elapsed() >= SILENCE);
                (flushed.is_err() || since.is_some() || line.stream().is_none(), line.generation())
            };
            if is_over {
                return self.cut(common, generation);
            }
        }
    }

    fn try_again(&self, common: &Common, owner: &dyn Owner<Tag>, begun: Duration) {
        let until = lock(&self.away).try_until(begun, CONNECT);
        match self.reconnect(common, owner, common.begun + until) {
            Ok(streams) => self.up_with(common, owner, streams),
            Err(why) if why.is_loss() => lock(&self.away).came_back_empty(common.now(), why.to_string()),
            Err(why) => {
                let refusal = why.is_refusal().then(|| why.to_string());
                lock(&self.away).try_failed(begun, common.now(), refusal);
            }
        }
    }

    /// All connections, if the export is the one that it was, or can be filled again.
    fn reconnect(
        &self,
        common: &Common,
        owner: &dyn Owner<Tag>,
        deadline: Instant,
    ) -> Result<Vec<Stream>, NbdError> {
        self.dial.look_up(deadline);
        let mut streams = Vec::new();
        while streams.len() < self.counts.all() {
            let (stream, export) = self.dial.open(deadline)?;
            can_be_used(&export)?;
            let (wanted_bytes, export_bytes) = (self.export.size_bytes, export.size_bytes);
            if export_bytes < wanted_bytes {
                return Err(NbdError::TooSmall { wanted_bytes, export_bytes });
            }
            streams.push(stream);
        }
        let mut page = Box::new(Page::ZERO);
        let mut first = exchange(streams.swap_remove(0), deadline, Command::Read, 0, &mut page.0)?;
        let is_blank = page.0.iter().all(|byte| *byte == 0);
        match mark::read(&page, &common.run) {
            Found::Own => {}
            Found::Over | Found::Foreign if owner.has_other(self.index) && is_blank => {
                let mut page = mark::page(&common.run, false);
                first = exchange(first, deadline, Command::Write, 0, &mut page.0)?;
                owner.came_back_empty(self.index);
            }
            Found::InUse(age) => return Err(NbdError::InUse { seconds: age.as_secs() }),
            Found::Over | Found::Foreign if is_blank => return Err(NbdError::Emptied),
            Found::Over | Found::Foreign => return Err(NbdError::Altered),
        }
        streams.push(first);
        Ok(streams)
    }

    /// Write the mark once more.
    pub(super) fn renew(&self, common: &Common, owner: &dyn Owner<Tag>, ended: bool) {
        if self.door(common) != Door::Open {
            return;
        }
        let page = mark::page(&common.run, ended);
        self.carry_out(
            common,
            owner,
            0,
            &mut Job::write(&[WriteRun { offset_bytes: 0, pages: vec![&page] }], &self.moved, PAGE_SIZE),
        );
    }
}

/// What requests get that meet a closed door.
pub(super) fn errno_at(door: Door) -> Errno {
    match door {
        // Not the machine, and not the device: for a while it is not there.
        Door::Open | Door::Wait | Door::Later => Errno::AGAIN,
        Door::TimedOut => Errno::TIMEDOUT,
        Door::Gone => Errno::NODATA,
    }
}

impl<'a> Job<'a> {
    fn write(runs: &'a [WriteRun<'a>], moved: &Moved, bytes_max: usize) -> Job<'a> {
        let mut pieces = Vec::new();
        for (run, write) in runs.iter().enumerate() {
            let first = (write.offset_bytes / PAGE_SIZE as u64) as u32;
            for (first, pages, place) in moved.pieces(first, write.pages.len(), bytes_max / PAGE_SIZE) {
                pieces.push(Piece { run, first, pages, place, state: PieceState::Waits });
            }
        }
        Job { command: Command::Write, runs, pieces, generation: 0, resent: 0, sending: None, in_flight: 0 }
    }

    fn trim(place: u32, pages: usize) -> Job<'static> {
        let piece = Piece { run: 0, first: 0, pages, place, state: PieceState::Waits };
        Job {
            command: Command::Trim,
            runs: &[],
            pieces: vec![piece],
            generation: 0,
            resent: 0,
            sending: None,
            in_flight: 0,
        }
    }

    fn is_over(&self) -> bool {
        self.pieces.iter().all(Piece::is_over)
    }

    /// Send and take what goes now.
    fn pump<Tag>(
        &mut self,
        line: &mut Line<Tag>,
        moved: &Moved,
        now: Duration,
        request_bytes_max: usize,
        finished: &mut Vec<Reading<Tag>>,
    ) -> Result<(), Cut> {
        if line.stream().is_none() || line.generation() != self.generation {
            self.doubt_what_is_out(moved, now);
            self.resent += u32::from(line.generation() != self.generation && self.generation != 0);
            self.generation = line.generation();
        }
        if line.stream().is_none() {
            return Ok(());
        }
        line.flush()?;
        loop {
            while self.send_some(line)? {}
            line.receive(moved, request_bytes_max, finished)?;
            if line.answered.is_empty() {
                return Ok(());
            }
            for (piece, errno) in line.answered.drain(..) {
                self.in_flight -= 1;
                self.pieces[piece].state = match errno {
                    0 => PieceState::Done,
                    errno => PieceState::Failed(errno_of(errno)),
                };
            }
        }
    }

    /// Send (the rest of) one piece. False: nothing more goes now.
    fn send_some<Tag>(&mut self, line: &mut Line<Tag>) -> Result<bool, Cut> {
        if self.sending.is_none() {
            let waits = |piece: &Piece| piece.state == PieceState::Waits;
            let next = self.pieces.iter().position(waits).filter(|_| self.in_flight < WRITES_IN_FLIGHT);
            let Some(next) = next else { return Ok(false) };
            let piece = &mut self.pieces[next];
            piece.state = PieceState::Sent;
            self.sending = Some(line.push(self.command, next, piece.place, piece.pages));
            self.in_flight += 1;
        }
        let sending = self.sending.as_mut().expect("just made");
        let piece = &self.pieces[sending.piece];
        let data = match self.command {
            Command::Write => &self.runs[piece.run].pages[piece.first..piece.first + piece.pages],
            _ => &[],
        };
        let has_gone = line.send_on(sending, data)?;
        if has_gone {
            self.sending = None;
        }
        Ok(has_gone)
    }

    /// The connection is over: what was sent on it may be done at any time, and is sent once more.
    fn doubt_what_is_out(&mut self, moved: &Moved, now: Duration) {
        self.sending = None;
        self.in_flight = 0;
        let mut in_doubt = Vec::new();
        for (index, piece) in self.pieces.iter_mut().enumerate() {
            if piece.state == PieceState::Sent {
                piece.state = PieceState::Waits;
                in_doubt.push(index);
            }
        }
        for index in in_doubt.into_iter().rev() {
            let Piece { run, first, pages, place, .. } = self.pieces[index];
            if self.command != Command::Write {
                moved.doubt(place, pages);
                continue;
            }
            let page = (self.runs[run].offset_bytes / PAGE_SIZE as u64) as u32 + first as u32;
            if page == 0 {
                // The mark is the same each time.
                continue;
            }
            moved.doubt(page, pages);
            let settled = moved.settle(page, pages, now);
            let anew = moved.pieces(page, settled, pages).into_iter().map(|(from, pages, place)| Piece {
                run,
                first: first + from,
                pages,
                place,
                state: PieceState::Waits,
            });
            let lost = (settled < pages).then(|| Piece {
                run,
                first: first + settled,
                pages: pages - settled,
                place,
                state: PieceState::Failed(Errno::AGAIN),
            });
            self.pieces.splice(index..=index, anew.chain(lost));
        }
    }

    /// How each run has ended: what was written of it before the first piece that failed.
    fn ends(&self) -> Vec<RunEnd> {
        let mut ends = vec![RunEnd { done_bytes: 0, errno: None }; self.runs.len().max(1)];
        for piece in &self.pieces {
            let end = &mut ends[piece.run];
            match piece.state {
                _ if end.errno.is_some() => {}
                PieceState::Done => end.done_bytes += piece.pages * PAGE_SIZE,
                PieceState::Failed(errno) => end.errno = Some(errno.raw_os_error()),
                PieceState::Waits | PieceState::Sent => unreachable!("the job is over"),
            }
        }
        ends
    }
}

impl Piece {
    fn is_over(&self) -> bool {
        matches!(self.state, PieceState::Done | PieceState::Failed(_))
    }
}
