//! One connection to a server: what is in flight on it, what has come, what is still to be sent.
//!
//! ```text
//!   start(read) ─▶ heads ─┐                              ┌─▶ pages of the read's buffer ─▶ finished
//!   push(write) ─▶ head, pages ─▶ socket ... socket ─▶ parser                           └─▶ answered
//!                                                        └─ what does not fit ─▶ Cut: the line is down
//! ```
//!
//! *Nothing here waits.* A line is used under its lock by whoever is there: a thread that starts a read, one
//! that collects reads, one that writes. What one of them receives for another is handed back by name.
//!
//! *One write at a time is being sent*, and heads of reads wait until it has gone out.
//!
//! *Reads outlive the connection.* While the line is down they stay here, and `up` sends them again. Writes
//! belong to the threads that wait for them, which see by the generation that theirs were cut off.
//!
//! What it does not do: connect, decide how long a request may take.

use std::io::IoSlice;
use std::time::Instant;

use memspill_engine::backing::QueueId;
use memspill_engine::units::{PAGE_SIZE, Page};
use rustix::io::Errno;

use super::moved::Moved;
use super::stream::Stream;
use super::wire::{self, Bad, Command, Event, Expected, Parser};
use crate::ring::{self, ReadOp, RunEnd};

/// Why a line went down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cut {
    /// By the server.
    Closed,
    Failed(Errno),
    /// The server says that it is about to end.
    Ends,
    Bad(&'static str),
}

impl From<Bad> for Cut {
    fn from(bad: Bad) -> Cut {
        Cut::Bad(bad.0)
    }
}

/// What a request is for.
#[derive(Clone, Copy, Debug)]
enum Use {
    /// A part of a run of a read; `at` counts bytes in the read's buffer.
    Read { op: usize, run: usize, at: usize },
    /// The piece with this number of the thread that writes.
    Piece(usize),
    /// Nobody waits for it any more.
    Nobody,
}

#[derive(Clone, Copy)]
struct Request {
    cookie: u64,
    expected: Expected,
    used: Use,
    got_bytes: u32,
    errno: u32,
}

struct Op<Tag> {
    reading: Reading<Tag>,
    requests_left: usize,
}

/// A read: before it begins, and when it has ended.
pub(super) struct Reading<Tag> {
    pub(super) op: ReadOp<Tag>,
    pub(super) queue: QueueId,
    pub(super) is_awaited: bool,
    /// When it was given to this line, and how often it was sent again since.
    pub(super) begun: Instant,
    pub(super) resent: u32,
    /// A bit for each server that has been asked.
    pub(super) asked: u8,
}

/// Things with a number each, which is used again.
struct Slab<T> {
    items: Vec<Option<T>>,
    unused: Vec<usize>,
}

impl<T> Slab<T> {
    fn new() -> Slab<T> {
        Slab { items: Vec::new(), unused: Vec::new() }
    }

    fn add(&mut self, make: impl FnOnce(usize) -> T) -> usize {
        let at = self.unused.pop().unwrap_or_else(|| {
            self.items.push(None);
            self.items.len() - 1
        });
        self.items[at] = Some(make(at));
        at
    }

    fn take(&mut self, at: usize) -> Option<T> {
        let item = self.items.get_mut(at)?.take();
        self.unused.extend(item.is_some().then_some(at));
        item
    }

    fn get(&self, at: usize) -> Option<&T> {
        self.items.get(at)?.as_ref()
    }

    fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.items.get_mut(at)?.as_mut()
    }

    fn len(&self) -> usize {
        self.items.len() - self.unused.len()
    }
}

/// A write on its way: its head and its pages, and how much of that has gone out.
pub(super) struct Sending {
    pub(super) piece: usize,
    head: [u8; wire::REQUEST_BYTES],
    sent_bytes: usize,
}

impl Sending {
    pub(super) fn has_begun(&self) -> bool {
        self.sent_bytes > 0
    }
}

/// See the module's header.
pub(super) struct Line<Tag> {
    stream: Option<Stream>,
    generation: u64,
    parser: Parser,
    /// Its first `held` bytes have come and were not parsed.
    input: Box<[u8]>,
    held: usize,
    requests: Slab<Request>,
    numbers: u32,
    ops: Slab<Op<Tag>>,
    /// Heads that have not gone out.
    out: Vec<u8>,
    is_mid_write: bool,
    /// Pieces that were answered, and the errno of the protocol, or 0.
    pub(super) answered: Vec<(usize, u32)>,
    /// When the server last showed that it lives, or was last known to owe nothing.
    progress: Instant,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) read_requests: u64,
}

impl<Tag> Line<Tag> {
    /// A line that is down.
    pub(super) fn new(input_bytes: usize) -> Line<Tag> {
        Line {
            stream: None,
            generation: 0,
            parser: Parser::default(),
            input: vec![0; input_bytes].into(),
            held: 0,
            requests: Slab::new(),
            numbers: 0,
            ops: Slab::new(),
            out: Vec::new(),
            is_mid_write: false,
            answered: Vec::new(),
            progress: Instant::now(),
            sent_bytes: 0,
            received_bytes: 0,
            read_requests: 0,
        }
    }

    pub(super) fn stream(&self) -> Option<&Stream> {
        self.stream.as_ref()
    }

    /// Counts connections: what was sent under another number is cut off.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn ram_bytes(&self) -> u64 {
        let tables = self.requests.items.capacity() * size_of::<Option<Request>>()
            + self.ops.items.capacity() * size_of::<Option<Op<Tag>>>();
        (self.input.len() + self.out.capacity() + tables) as u64
    }

    /// For how long the server has owed an answer without a sign of life.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        (self.stream.is_some() && self.requests.len() > 0).then_some(self.progress)
    }

    pub(super) fn has_more_to_send(&self) -> bool {
        !self.out.is_empty() || self.stream.as_ref().is_some_and(Stream::wants_to_send)
    }

    /// It has a connection again: send all reads once more.
    pub(super) fn up(&mut self, stream: Stream, generation: u64) -> Result<(), Cut> {
        self.stream = Some(stream);
        self.generation = generation;
        self.progress = Instant::now();
        self.ops.items.iter_mut().flatten().for_each(|op| op.reading.resent += 1);
        for request in self.requests.items.iter_mut().flatten() {
            (request.got_bytes, request.errno) = (0, 0);
            let Expected { offset_bytes, read_bytes } = request.expected;
            self.out.extend(wire::request(Command::Read, request.cookie, offset_bytes, read_bytes));
        }
        self.flush()
    }

    /// After an error nothing is believed that comes on this connection.
    pub(super) fn checked(&mut self, result: Result<(), Cut>) -> Result<(), Cut> {
        if result.is_err() {
            self.down();
        }
        result
    }

    /// The connection is over.
    pub(super) fn down(&mut self) {
        self.parser = Parser::default();
        (self.held, self.is_mid_write) = (0, false);
        self.out.clear();
        self.answered.clear();
        for at in 0..self.requests.items.len() {
            if self.requests.get(at).is_some_and(|request| !matches!(request.used, Use::Read { .. })) {
                self.requests.take(at);
            }
        }
        self.stream.take().iter().for_each(Stream::hang_up);
    }

    /// No connection follows: it needs no room for what would come.
    pub(super) fn close(&mut self) {
        // A courtesy: the server need not look for what has become of us.
        if let Some(stream) = self.stream.as_mut().filter(|_| !self.is_mid_write) {
            let _ = stream.send(&[IoSlice::new(&wire::request(Command::Disconnect, 0, 0, 0))]);
        }
        self.down();
        self.input = Box::default();
    }

    /// Give up the reads that are meant: they end with this errno. Replies that still come for
    /// them are passed over.
    pub(super) fn give_up(
        &mut self,
        errno: Errno,
        finished: &mut Vec<Reading<Tag>>,
        is_meant: impl Fn(&Reading<Tag>) -> bool,
    ) {
        let is_down = self.stream.is_none();
        for at in 0..self.ops.items.len() {
            if !self.ops.get(at).is_some_and(|op| is_meant(&op.reading)) {
                continue;
            }
            for place in 0..self.requests.items.len() {
                match self.requests.get_mut(place) {
                    Some(request) if matches!(request.used, Use::Read { op, .. } if op == at) => {
                        request.used = Use::Nobody;
                    }
                    _ => continue,
                }
                if is_down {
                    self.requests.take(place);
                }
            }
            let Op { mut reading, .. } = self.ops.take(at).expect("just seen");
            for run in reading.op.runs.iter_mut().filter(|run| !run.is_over()) {
                run.end = RunEnd { done_bytes: 0, errno: Some(errno.raw_os_error()) };
            }
            finished.push(reading);
        }
    }

    /// Begin a read, at least one of whose runs is not over.
    pub(super) fn start(
        &mut self,
        reading: Reading<Tag>,
        moved: &Moved,
        request_bytes_max: usize,
    ) -> Result<(), Cut> {
        self.begin(Reading { begun: Instant::now(), resent: 0, ..reading }, moved, request_bytes_max)
    }

    fn begin(&mut self, reading: Reading<Tag>, moved: &Moved, request_bytes_max: usize) -> Result<(), Cut> {
        let pages_max = request_bytes_max / PAGE_SIZE;
        let mut parts = Vec::new();
        for (index, run) in reading.op.runs.iter().enumerate().filter(|(_, run)| !run.is_over()) {
            assert!(
                run.pages > 0 && run.first + run.pages <= reading.op.buf.len(),
                "a run beyond its buffer"
            );
            let first = (run.offset_bytes / PAGE_SIZE as u64) as u32;
            for (from, pages, place) in moved.pieces(first, run.pages, pages_max) {
                parts.push((index, (run.first + from) * PAGE_SIZE, place, pages));
            }
        }
        assert!(!parts.is_empty(), "a read of nothing would never complete");
        let number = self.ops.add(|_| Op { reading, requests_left: parts.len() });
        for (run, at, place, pages) in parts {
            let offset_bytes = u64::from(place) * PAGE_SIZE as u64;
            let expected = Expected { offset_bytes, read_bytes: (pages * PAGE_SIZE) as u32 };
            let head = self.add_request(Command::Read, Use::Read { op: number, run, at }, expected, None);
            self.out.extend(head);
            self.read_requests += 1;
        }
        self.flush()
    }

    /// The head of a new request. `len_bytes`: of one that reads nothing.
    fn add_request(
        &mut self,
        command: Command,
        used: Use,
        expected: Expected,
        len_bytes: Option<u32>,
    ) -> [u8; wire::REQUEST_BYTES] {
        if self.requests.len() == 0 {
            self.progress = Instant::now();
        }
        self.numbers = self.numbers.wrapping_add(1);
        let number = self.numbers;
        let cookie_of = |at: usize| u64::from(number) << 32 | at as u64;
        let at =
            self.requests.add(|at| Request { cookie: cookie_of(at), expected, used, got_bytes: 0, errno: 0 });
        wire::request(command, cookie_of(at), expected.offset_bytes, len_bytes.unwrap_or(expected.read_bytes))
    }

    /// A write begins, or another request without data that comes back; `send_on` sends it.
    pub(super) fn push(&mut self, command: Command, piece: usize, place: u32, pages: usize) -> Sending {
        assert!(!self.is_mid_write, "two writes at once on one line");
        let expected = Expected { offset_bytes: u64::from(place) * PAGE_SIZE as u64, read_bytes: 0 };
        let len_bytes = (pages * PAGE_SIZE) as u32;
        let head = self.add_request(command, Use::Piece(piece), expected, Some(len_bytes));
        self.is_mid_write = true;
        Sending { piece, head, sent_bytes: 0 }
    }

    /// Send as much of it as goes now. True: all has gone out.
    pub(super) fn send_on(&mut self, sending: &mut Sending, pages: &[&Page]) -> Result<bool, Cut> {
        // Heads of reads that came before it.
        if !sending.has_begun() && !self.out.is_empty() {
            self.is_mid_write = false;
            let flushed = self.flush();
            self.is_mid_write = true;
            flushed?;
            if !self.out.is_empty() {
                return Ok(false);
            }
        }
        let total = sending.head.len() + pages.len() * PAGE_SIZE;
        while sending.sent_bytes < total {
            let Some(stream) = self.stream.as_mut() else { return Ok(false) };
            let body_bytes = sending.sent_bytes.saturating_sub(sending.head.len());
            let mut slices = Vec::with_capacity(pages.len() + 1);
            slices.extend(sending.head.get(sending.sent_bytes..).map(IoSlice::new));
            let (page, skip) = (body_bytes / PAGE_SIZE, body_bytes % PAGE_SIZE);
            slices.extend(
                pages[page..]
                    .iter()
                    .enumerate()
                    .map(|(index, page)| IoSlice::new(&page.0[if index == 0 { skip } else { 0 }..])),
            );
            match stream.send(&slices) {
                Ok(bytes) => {
                    sending.sent_bytes += bytes;
                    self.sent_bytes += bytes as u64;
                    self.progress = Instant::now();
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Cut::Failed(errno)),
            }
        }
        self.is_mid_write = false;
        self.flush()?;
        Ok(true)
    }

    /// Send heads that wait.
    pub(super) fn flush(&mut self) -> Result<(), Cut> {
        match self.stream.as_mut().map_or(Ok(()), Stream::flush) {
            Ok(()) if self.is_mid_write => return Ok(()),
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(Cut::Failed(errno)),
        }
        while !self.out.is_empty() {
            let Some(stream) = self.stream.as_mut() else {
                // `up` makes them again.
                self.out.clear();
                return Ok(());
            };
            match stream.send(&[IoSlice::new(&self.out)]) {
                Ok(bytes) => {
                    self.out.drain(..bytes);
                    self.sent_bytes += bytes as u64;
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Cut::Failed(errno)),
            }
        }
        Ok(())
    }

    /// Take what has come.
    pub(super) fn receive(
        &mut self,
        moved: &Moved,
        request_bytes_max: usize,
        finished: &mut Vec<Reading<Tag>>,
    ) -> Result<(), Cut> {
        loop {
            let Some(stream) = self.stream.as_mut() else { return Ok(()) };
            let room = self.input.len() - self.held;
            match stream.recv(&mut self.input[self.held..]) {
                Ok(0) => return Err(Cut::Closed),
                Ok(bytes) => {
                    self.held += bytes;
                    self.received_bytes += bytes as u64;
                    self.progress = Instant::now();
                    self.parse(moved, request_bytes_max, finished)?;
                    if bytes < room {
                        return Ok(());
                    }
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Cut::Failed(errno)),
            }
        }
    }

    fn parse(
        &mut self,
        moved: &Moved,
        request_bytes_max: usize,
        finished: &mut Vec<Reading<Tag>>,
    ) -> Result<(), Cut> {
        let mut at = 0;
        loop {
            let requests = &self.requests;
            let expect = |cookie: u64| {
                let request = requests.get(cookie as u32 as usize);
                request.filter(|request| request.cookie == cookie).map(|request| request.expected)
            };
            let (bytes, event) = self.parser.next(&self.input[at..self.held], expect)?;
            match event {
                None if bytes == 0 => break,
                None => {}
                Some(Event::Data { cookie, at: place, input }) => {
                    self.take_bytes(cookie, place, input.len() as u32, Some(at + input.start))?;
                }
                Some(Event::Zeros { cookie, at: place, bytes }) => {
                    self.take_bytes(cookie, place, bytes, None)?
                }
                Some(Event::Failed { cookie, errno }) => {
                    self.requests.get_mut(cookie as u32 as usize).expect("the parser asked for it").errno =
                        errno;
                }
                Some(Event::Done { cookie }) => {
                    self.ended(cookie as u32 as usize, moved, request_bytes_max, finished)?;
                }
            }
            at += bytes;
        }
        self.input.copy_within(at..self.held, 0);
        self.held -= at;
        Ok(())
    }

    /// Bytes of a read, from so far in the input, or zeros.
    fn take_bytes(&mut self, cookie: u64, place: u32, bytes: u32, from: Option<usize>) -> Result<(), Cut> {
        let request = self.requests.get_mut(cookie as u32 as usize).expect("the parser asked for it");
        request.got_bytes = match request.got_bytes.checked_add(bytes) {
            Some(got) if got <= request.expected.read_bytes => got,
            _ => return Err(Cut::Bad("more data than was asked for")),
        };
        let Use::Read { op, at, .. } = request.used else { return Ok(()) };
        let op = self.ops.get_mut(op).expect("a request of a read under way");
        let (mut to, end) = (at + place as usize, at + (place + bytes) as usize);
        let mut from = from;
        while to < end {
            let (page, skip) = (to / PAGE_SIZE, to % PAGE_SIZE);
            let len = (PAGE_SIZE - skip).min(end - to);
            let target = &mut op.reading.op.buf[page].0[skip..skip + len];
            match &mut from {
                Some(from) => {
                    target.copy_from_slice(&self.input[*from..*from + len]);
                    *from += len;
                }
                None => target.fill(0),
            }
            to += len;
        }
        Ok(())
    }

    fn ended(
        &mut self,
        at: usize,
        moved: &Moved,
        request_bytes_max: usize,
        finished: &mut Vec<Reading<Tag>>,
    ) -> Result<(), Cut> {
        let Request { expected, used, got_bytes, errno, .. } =
            *self.requests.get(at).expect("the parser asked for it");
        // Before it is taken: a read is asked for again on the next connection.
        if errno == SHUTDOWN {
            return Err(Cut::Ends);
        }
        if errno == 0 && got_bytes < expected.read_bytes {
            return Err(Cut::Bad("less data than was asked for"));
        }
        self.requests.take(at);
        let (number, run) = match used {
            Use::Nobody => return Ok(()),
            Use::Piece(piece) => {
                self.answered.push((piece, errno));
                return Ok(());
            }
            Use::Read { op, run, .. } => (op, run),
        };
        let op = self.ops.get_mut(number).expect("a request of a read under way");
        if errno != 0 {
            op.reading.op.runs[run].end.errno = Some(errno_of(errno).raw_os_error());
        }
        op.requests_left -= 1;
        if op.requests_left > 0 {
            return Ok(());
        }
        let Op { mut reading, .. } = self.ops.take(number).expect("just seen");
        for run in reading.op.runs.iter_mut().filter(|run| run.end.errno.is_none()) {
            run.end.done_bytes = run.pages * PAGE_SIZE;
        }
        if ring::split_failed(&mut reading.op.runs) > 0 {
            return self.begin(reading, moved, request_bytes_max);
        }
        finished.push(reading);
        Ok(())
    }
}

const SHUTDOWN: u32 = 108;

/// An errno of the protocol; those that it does not know are errors of the device.
pub(super) fn errno_of(errno: u32) -> Errno {
    match errno {
        1 => Errno::PERM,
        12 => Errno::NOMEM,
        22 => Errno::INVAL,
        28 => Errno::NOSPC,
        75 => Errno::OVERFLOW,
        95 => Errno::OPNOTSUPP,
        _ => Errno::IO,
    }
}
