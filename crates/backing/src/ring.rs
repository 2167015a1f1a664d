//! io_uring, and nothing above it: rings that own what is in flight.
//!
//! ```text
//!   WriteRing::write(runs) ── submits all, returns when all are done: borrows the caller's pages meanwhile
//!   ReadRing::start(op) ───── submits; the buffer belongs to the ring ──▶ reap() gives it back
//! ```
//!
//! *Two rings for each queue.* A read's completion is announced by the ring's descriptor, which polls
//! readable while its completion queue holds something. Were writes on the same ring, a thread that waits for
//! its writes would take read completions out of the queue, and epoll would never tell of them.
//!
//! *No SINGLE_ISSUER*: rings are made by one thread and used by another, and the tier's writeback may use a
//! queue whose pager is at work. A mutex around each ring, free in practice, keeps that sound.
//!
//! A wait in epoll may return EINTR when a completion arrives (the kernel finishes direct reads by task work
//! in the submitting thread): callers of epoll_wait and poll go round again, as they must anyway.
//!
//! Short reads and writes are continued; EINTR is submitted again; a result of 0 is EIO. Any other errno ends
//! the run and is the caller's: also what may pass (ENOMEM, EAGAIN, ECANCELED), because nothing here could
//! wait for that. Only where the kernel does not take the submission itself, the calling thread sleeps a
//! moment and hands it over again.
//!
//! What it does not do: know slots or checksums, tell the machine's own errors from the medium's.
#![allow(unsafe_code, reason = "io_uring takes raw pointers, and buffers that outlive the call")]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::{IoUring, opcode, types};
use memspill_engine::units::{PAGE_SIZE, Page, PageBuf};
use rustix::io::Errno;

/// Submissions that fit into a ring; more are submitted in turns.
const RING_ENTRIES: u32 = 128;
/// Completions that fit; the kernel keeps more than that aside for us.
const COMPLETION_ENTRIES: u32 = 1024;
/// Marks the completion of a no-op: see [`ReadRing::announce`].
const NOP: u64 = u64::MAX;

fn new_ring() -> io::Result<IoUring> {
    IoUring::builder().setup_cqsize(COMPLETION_ENTRIES).setup_clamp().build(RING_ENTRIES)
}

/// Does the kernel let this process use io_uring?
pub(crate) fn probe() -> io::Result<()> {
    new_ring().map(drop)
}

/// The kernel has no memory for what is submitted (EAGAIN, ENOMEM): a moment until the next try.
const SUBMIT_PAUSE: Duration = Duration::from_millis(1);

/// Was the request only interrupted?
fn is_again(result: i32) -> bool {
    result == -Errno::INTR.raw_os_error()
}

/// Pages to be written one after another from `offset_bytes` on.
pub(crate) struct WriteRun<'a> {
    pub(crate) offset_bytes: u64,
    pub(crate) pages: Vec<&'a Page>,
}

/// Bytes written of a run before it ended, and the errno if it did not end well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunEnd {
    pub(crate) done_bytes: usize,
    pub(crate) errno: Option<i32>,
}

impl RunEnd {
    /// Why it ended before its time.
    pub(crate) fn error(&self) -> Errno {
        self.errno.map_or(Errno::IO, Errno::from_raw_os_error)
    }
}

/// A ring for writes that the caller waits for.
pub(crate) struct WriteRing {
    ring: IoUring,
}

impl WriteRing {
    pub(crate) fn new() -> io::Result<WriteRing> {
        Ok(WriteRing { ring: new_ring()? })
    }

    /// Write all runs in as few system calls as the ring allows; returns when every one has ended.
    pub(crate) fn write(&mut self, file: BorrowedFd<'_>, runs: &[WriteRun<'_>]) -> Vec<RunEnd> {
        let mut ends = vec![RunEnd { done_bytes: 0, errno: None }; runs.len()];
        // Not touched while submitted; replaced when a short write is continued. Adjacent pages are one
        // vector.
        let mut vectors: Vec<Vec<libc::iovec>> = runs.iter().map(|run| vectors_of(run, 0)).collect();
        let mut waiting: Vec<usize> = (0..runs.len()).rev().collect();
        let mut in_flight = 0usize;
        while !waiting.is_empty() || in_flight > 0 {
            while in_flight < RING_ENTRIES as usize
                && let Some(index) = waiting.pop()
            {
                let offset_bytes = runs[index].offset_bytes + ends[index].done_bytes as u64;
                let vector = &vectors[index];
                let entry =
                    opcode::Writev::new(types::Fd(file.as_raw_fd()), vector.as_ptr(), vector.len() as u32)
                        .offset(offset_bytes)
                        .build()
                        .user_data(index as u64);
                // SAFETY: the vectors and the pages they point to are borrowed by this function, which does
                // not return or unwind before `in_flight` is 0 (submit_all ends the process rather than
                // panic).
                let pushed = unsafe { self.ring.submission().push(&entry) };
                pushed.expect("no more in flight than the ring has entries");
                in_flight += 1;
            }
            submit_all(&self.ring, in_flight);
            for completion in self.ring.completion() {
                in_flight -= 1;
                let index = completion.user_data() as usize;
                let end = &mut ends[index];
                let result = completion.result();
                if is_again(result) {
                    waiting.push(index);
                } else if result <= 0 {
                    end.errno = Some(if result == 0 { Errno::IO.raw_os_error() } else { -result });
                } else {
                    end.done_bytes += result as usize;
                    if end.done_bytes < runs[index].pages.len() * PAGE_SIZE {
                        // Direct I/O goes on at a page border, whatever came before.
                        end.done_bytes -= end.done_bytes % PAGE_SIZE;
                        if (result as usize) < PAGE_SIZE {
                            end.errno = Some(Errno::IO.raw_os_error());
                        } else {
                            vectors[index] = vectors_of(&runs[index], end.done_bytes / PAGE_SIZE);
                            waiting.push(index);
                        }
                    }
                }
            }
        }
        ends
    }
}

/// Submit what is queued and wait for `want` completions. Only an error that leaves the ring unusable ends
/// the process: the kernel still works on borrowed memory then, and there is nothing to return to.
fn submit_all(ring: &IoUring, want: usize) {
    loop {
        match ring.submit_and_wait(want) {
            Ok(_) => return,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR) => {}
                Some(Errno::AGAIN | Errno::NOMEM) => std::thread::sleep(SUBMIT_PAUSE),
                // Completions wait to be taken first.
                Some(Errno::BUSY) => return,
                _ => {
                    eprintln!("memspill: io_uring_enter failed with writes in flight: {error}");
                    std::process::abort();
                }
            },
        }
    }
}

fn vectors_of(run: &WriteRun<'_>, first_page: usize) -> Vec<libc::iovec> {
    let mut vectors: Vec<libc::iovec> = Vec::with_capacity(run.pages.len() - first_page);
    for page in &run.pages[first_page..] {
        let base = page.0.as_ptr();
        match vectors.last_mut() {
            Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len).cast_const() == base => {
                last.iov_len += PAGE_SIZE;
            }
            _ => vectors.push(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: PAGE_SIZE }),
        }
    }
    vectors
}

/// `pages` pages of a read's buffer, from page `first` on, that lie one after another in the file.
#[derive(Clone, Debug)]
pub(crate) struct ReadRun {
    pub(crate) offset_bytes: u64,
    pub(crate) first: usize,
    pub(crate) pages: usize,
    /// How it went.
    pub(crate) end: RunEnd,
    /// The server of two that was asked for it last; and a bit for each whose bytes were not those written.
    pub(crate) from: u8,
    pub(crate) wrong: u8,
}

impl ReadRun {
    pub(crate) fn new(offset_bytes: u64, first: usize, pages: usize) -> ReadRun {
        let end = RunEnd { done_bytes: 0, errno: None };
        ReadRun { offset_bytes, first, pages, end, from: 0, wrong: 0 }
    }

    /// Its page with this number, as a run of its own that is still to be read.
    pub(crate) fn page(&self, number: usize) -> ReadRun {
        let offset_bytes = self.offset_bytes + (number * PAGE_SIZE) as u64;
        let page = ReadRun::new(offset_bytes, self.first + number, 1);
        ReadRun { from: self.from, wrong: self.wrong, ..page }
    }

    /// Nothing of it is to be read any more.
    pub(crate) fn is_over(&self) -> bool {
        self.end.errno.is_some() || self.end.done_bytes == self.pages * PAGE_SIZE
    }
}

/// A run of several pages has failed because of one place in it: make each missing page a run of its own.
/// How many these are, to be read.
pub(crate) fn split_failed(runs: &mut Vec<ReadRun>) -> u64 {
    let has_failed = |run: &&mut ReadRun| {
        let errno = run.end.errno.map(Errno::from_raw_os_error);
        run.pages > 1 && errno.is_some_and(is_of_a_place)
    };
    let mut alone: Vec<ReadRun> = Vec::new();
    for run in runs.iter_mut().filter(has_failed) {
        let came = run.end.done_bytes / PAGE_SIZE;
        alone.extend((came..run.pages).map(|number| run.page(number)));
        run.pages = came;
        run.end.errno = None;
    }
    let more = alone.len() as u64;
    if more > 0 {
        runs.append(&mut alone);
        runs.retain(|run| run.pages > 0);
    }
    more
}

/// The medium cannot give what lies at some place of it, and may give what lies beside that. A device that is
/// gone, or does not answer in time (ENODEV, ENXIO, ETIMEDOUT, ...), would be asked in vain, page by page.
fn is_of_a_place(errno: Errno) -> bool {
    matches!(errno, Errno::IO | Errno::NODATA | Errno::ILSEQ | Errno::REMOTEIO)
}

/// A read under way. `Tag` is whatever the caller wants back with it.
pub(crate) struct ReadOp<Tag> {
    pub(crate) tag: Tag,
    pub(crate) buf: PageBuf,
    pub(crate) runs: Vec<ReadRun>,
}

/// A buffer while the kernel writes to it: no reference to it exists. (It is leaked if this is dropped.)
struct LentBuf {
    pages: *mut Page,
    len: usize,
    room: usize,
}

impl LentBuf {
    fn of(buf: PageBuf) -> LentBuf {
        let mut buf = ManuallyDrop::new(buf);
        LentBuf { pages: buf.as_mut_ptr(), len: buf.len(), room: buf.capacity() }
    }

    /// SAFETY: for the caller: the kernel does not write to it any more.
    unsafe fn back(self) -> PageBuf {
        // SAFETY: these are the parts of a Vec that was not dropped, and `self` is not used again.
        unsafe { Vec::from_raw_parts(self.pages, self.len, self.room) }
    }
}

struct InFlight<Tag> {
    tag: Tag,
    buf: LentBuf,
    runs: Vec<ReadRun>,
    runs_left: usize,
}

/// A ring for reads that are collected later.
pub(crate) struct ReadRing<Tag> {
    ring: IoUring,
    fd: RawFd,
    ops: Vec<Option<InFlight<Tag>>>,
    unused: Vec<usize>,
    finished: Vec<ReadOp<Tag>>,
}

// SAFETY: the raw pointers in `ops` are owned buffers, and the ring's mappings belong to the process; nothing
// is bound to a thread (no SINGLE_ISSUER).
unsafe impl<Tag: Send> Send for ReadRing<Tag> {}

impl<Tag> ReadRing<Tag> {
    /// A ring that reads from `file`, which must stay open as long as the ring.
    pub(crate) fn new(file: BorrowedFd<'_>) -> io::Result<Self> {
        let fd = file.as_raw_fd();
        Ok(ReadRing { ring: new_ring()?, fd, ops: Vec::new(), unused: Vec::new(), finished: Vec::new() })
    }

    /// Polls readable while completions wait.
    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// Submit a read. At least one of its runs is not over, and the runs lie inside its buffer.
    pub(crate) fn start(&mut self, op: ReadOp<Tag>) {
        let to_read: Vec<usize> = (0..op.runs.len()).filter(|run| !op.runs[*run].is_over()).collect();
        assert!(!to_read.is_empty(), "a read of nothing would never complete");
        for run in &op.runs {
            assert!(run.pages > 0 && run.first + run.pages <= op.buf.len(), "a run beyond its buffer");
        }
        let id = self.unused.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len() - 1
        });
        let runs_left = to_read.len();
        self.ops[id] = Some(InFlight { tag: op.tag, buf: LentBuf::of(op.buf), runs: op.runs, runs_left });
        for run in to_read {
            self.push(id, run);
        }
        self.submit();
        self.announce();
    }

    /// Queue (the rest of) one run.
    fn push(&mut self, id: usize, run_index: usize) {
        let op = self.ops[id].as_ref().expect("a run of a read under way");
        let run = &op.runs[run_index];
        let start = run.first * PAGE_SIZE + run.end.done_bytes;
        let len = run.pages * PAGE_SIZE - run.end.done_bytes;
        // `wrapping_add`: inside the buffer, as `start` asserted.
        let target = op.buf.pages.cast::<u8>().wrapping_add(start);
        let entry = opcode::Read::new(types::Fd(self.fd), target, len as u32)
            .offset(run.offset_bytes + run.end.done_bytes as u64)
            .build()
            .user_data((id as u64) << 32 | run_index as u64);
        // SAFETY: the buffer stays in `ops`, untouched, until this run's completion has been taken; on drop
        // the ring waits for it, or leaks the buffer.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.submit();
        }
    }

    /// Hand queued entries to the kernel. Takes completions only where the kernel wants that first.
    fn submit(&mut self) {
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::INTR) => {}
                    Some(Errno::AGAIN | Errno::NOMEM | Errno::BUSY) => {
                        self.take_completions();
                        std::thread::sleep(SUBMIT_PAUSE);
                    }
                    _ => panic!("io_uring_enter: {error}"),
                },
            }
        }
    }

    /// If completions were taken outside of `reap`, leave one in the queue so that the descriptor polls
    /// readable.
    fn announce(&mut self) {
        if self.finished.is_empty() {
            return;
        }
        let entry = opcode::Nop::new().build().user_data(NOP);
        // SAFETY: a no-op has no buffer.
        if unsafe { self.ring.submission().push(&entry) }.is_ok() {
            self.submit();
        }
    }

    fn take_completions(&mut self) {
        loop {
            let Some(completion) = self.ring.completion().next() else { return };
            if completion.user_data() == NOP {
                continue;
            }
            let (id, run_index) = ((completion.user_data() >> 32) as usize, completion.user_data() as u32);
            let op = self.ops[id].as_mut().expect("a completion belongs to a read under way");
            let run = &mut op.runs[run_index as usize];
            let result = completion.result();
            let whole = run.pages * PAGE_SIZE;
            let mut again = is_again(result);
            if !again {
                if result <= 0 {
                    run.end.errno = Some(if result == 0 { Errno::IO.raw_os_error() } else { -result });
                } else {
                    run.end.done_bytes += result as usize;
                    if run.end.done_bytes < whole {
                        run.end.done_bytes -= run.end.done_bytes % PAGE_SIZE;
                        again = result as usize >= PAGE_SIZE;
                        if !again {
                            run.end.errno = Some(Errno::IO.raw_os_error());
                        }
                    }
                }
            }
            if again {
                self.push(id, run_index as usize);
                continue;
            }
            op.runs_left -= 1;
            if op.runs_left == 0 {
                let op = self.ops[id].take().expect("just seen");
                self.unused.push(id);
                // SAFETY: all runs have completed, so the kernel is done with it.
                let buf = unsafe { op.buf.back() };
                self.finished.push(ReadOp { tag: op.tag, buf, runs: op.runs });
            }
        }
    }

    /// The reads that have finished, without blocking.
    pub(crate) fn reap(&mut self) -> Vec<ReadOp<Tag>> {
        // Completions that did not fit are brought in by a system call, which is made only where there are
        // some.
        if self.ring.submission().cq_overflow() || self.ring.submission().taskrun() {
            let _ = self.ring.submit();
        }
        self.take_completions();
        self.submit();
        std::mem::take(&mut self.finished)
    }

    fn in_flight(&self) -> usize {
        self.ops.len() - self.unused.len()
    }
}

impl<Tag> Drop for ReadRing<Tag> {
    fn drop(&mut self) {
        while self.in_flight() > 0 {
            self.take_completions();
            self.submit();
            if self.in_flight() > 0
                && let Err(error) = self.ring.submit_and_wait(1)
                && !matches!(Errno::from_io_error(&error), Some(Errno::INTR | Errno::AGAIN | Errno::BUSY))
            {
                // The buffers stay where the kernel may still write to them: leaked, never reused.
                return;
            }
        }
    }
}
