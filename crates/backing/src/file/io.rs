//! How pages get to the file and back: runs of slots in a row, by io_uring or by pread and pwrite.
//!
//! I/O is by io_uring (`ring.rs`), two rings for each queue, or, where that is not allowed, by pread and
//! pwrite; then reads block.
//!
//! *Errors* are of two kinds. An error of the kernel's own shortage (`is_short`) says nothing about the
//! medium: the answer is `Short`, and the page may be asked for again. Everything else it says of a read is
//! the medium's word (EIO, ENODATA, EREMOTEIO, EILSEQ, ENXIO, ENODEV, ETIMEDOUT, ...). It says it of a whole
//! request, which may be for many pages. If the error is of some place in it (`ring::split_failed`), each
//! page is then read alone, so that only the unreadable ones are lost.
//!
//! What it does not do: know what a slot holds, or whether what came is what was written.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use memspill_engine::backing::{BackingError, PageWrite, QueueId};
use memspill_engine::sync::lock;
use memspill_engine::units::{PAGE_SIZE, Page, SlotIndex};
use rustix::io::Errno;

use crate::ring::{self, ReadOp, ReadRing, ReadRun, RunEnd, WriteRing, WriteRun, split_failed};

/// Pages in one request: 2 MiB, the largest folio, and within the kernel's 1024 vectors.
const RUN_PAGES_MAX: usize = 512;

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

/// The rings of a queue, until the device is closed.
struct Rings<Tag> {
    write: Mutex<Option<WriteRing>>,
    read: Mutex<Option<ReadRing<Tag>>>,
}

/// The queues of a device. `Tag` is what comes back with a read.
pub(super) struct Queues<Tag> {
    /// One for each queue; none where I/O is by system calls that block.
    rings: Vec<Rings<Tag>>,
    queues: u32,
    /// Requests so far, each for a run.
    write_ios: AtomicU64,
    written_pages: AtomicU64,
    read_ios: AtomicU64,
}

impl<Tag> Queues<Tag> {
    pub(super) fn new(engine: IoEngine, queues: u32, file: BorrowedFd<'_>) -> io::Result<Queues<Tag>> {
        let queues = queues.max(1);
        let use_rings = match engine {
            IoEngine::Sync => false,
            IoEngine::Uring => true,
            IoEngine::Auto => ring::probe().is_ok(),
        };
        let rings = |_| -> io::Result<Rings<Tag>> {
            let read = ReadRing::new(file)?;
            Ok(Rings { write: Mutex::new(Some(WriteRing::new()?)), read: Mutex::new(Some(read)) })
        };
        Ok(Queues {
            rings: if use_rings { (0..queues).map(rings).collect::<io::Result<_>>()? } else { Vec::new() },
            queues,
            write_ios: AtomicU64::new(0),
            written_pages: AtomicU64::new(0),
            read_ios: AtomicU64::new(0),
        })
    }

    pub(super) fn engine(&self) -> IoEngine {
        if self.rings.is_empty() { IoEngine::Sync } else { IoEngine::Uring }
    }

    /// Write requests, the pages that they were for, and read requests.
    pub(super) fn totals(&self) -> (u64, u64, u64) {
        let [write_ios, written_pages, read_ios] =
            [&self.write_ios, &self.written_pages, &self.read_ios].map(|count| count.load(Ordering::Relaxed));
        (write_ios, written_pages, read_ios)
    }

    /// Nothing where the queue has no rings.
    fn rings(&self, queue: QueueId) -> Option<&Rings<Tag>> {
        assert!(queue.0 < self.queues, "queue {} of {}", queue.0, self.queues);
        self.rings.get(queue.0 as usize)
    }

    /// Write the runs and wait: how each has ended.
    pub(super) fn write(&self, queue: QueueId, file: BorrowedFd<'_>, runs: &[WriteRun<'_>]) -> Vec<RunEnd> {
        self.write_ios.fetch_add(runs.len() as u64, Ordering::Relaxed);
        let pages: usize = runs.iter().map(|run| run.pages.len()).sum();
        self.written_pages.fetch_add(pages as u64, Ordering::Relaxed);
        match self.rings(queue) {
            Some(rings) if !runs.is_empty() => {
                let mut ring = lock(&rings.write);
                ring.as_mut().expect("a device that has not ended").write(file, runs)
            }
            _ => runs.iter().map(|run| write_now(file, run)).collect(),
        }
    }

    /// Start the reads. If they are done at once, by system calls or because there are none, `op` comes back.
    pub(super) fn read(
        &self,
        queue: QueueId,
        file: BorrowedFd<'_>,
        mut op: ReadOp<Tag>,
    ) -> Option<ReadOp<Tag>> {
        self.read_ios.fetch_add(op.runs.len() as u64, Ordering::Relaxed);
        match self.rings(queue) {
            Some(rings) if !op.runs.is_empty() => {
                lock(&rings.read).as_mut().expect("a device that is not closed").start(op);
                None
            }
            _ => loop {
                for run in op.runs.iter_mut().filter(|run| !run.is_over()) {
                    read_now(file, run, &mut op.buf);
                }
                match split_failed(&mut op.runs) {
                    0 => return Some(op),
                    more => self.read_ios.fetch_add(more, Ordering::Relaxed),
                };
            },
        }
    }

    /// Reads that have ended.
    pub(super) fn reap(&self, queue: QueueId) -> Vec<ReadOp<Tag>> {
        let Some(rings) = self.rings(queue) else { return Vec::new() };
        let mut ring = lock(&rings.read);
        let Some(ring) = ring.as_mut() else { return Vec::new() };
        let mut ended = ring.reap();
        let split = |op: &mut ReadOp<Tag>| {
            let more = split_failed(&mut op.runs);
            self.read_ios.fetch_add(more, Ordering::Relaxed);
            more > 0
        };
        for op in ended.extract_if(.., split).collect::<Vec<_>>() {
            ring.start(op);
        }
        ended
    }

    /// Polls readable while reads that have ended wait to be reaped.
    pub(super) fn poll_fd(&self, queue: QueueId) -> io::Result<Option<OwnedFd>> {
        let Some(rings) = self.rings.get(queue.0 as usize) else { return Ok(None) };
        // Under the lock: the ring may be closed at any time, its descriptor with it.
        lock(&rings.read).as_ref().map(|ring| ring.poll_fd().try_clone_to_owned()).transpose()
    }

    /// Let go of the rings: descriptors are few, and a run may have many swapoffs.
    pub(super) fn close(&self) {
        for rings in &self.rings {
            *lock(&rings.write) = None;
            *lock(&rings.read) = None;
        }
    }

    /// Wait for the reads that are still in flight.
    pub(super) fn drain(&mut self) {
        self.rings.clear();
    }
}

/// The runs of some pages, given in ascending order of slots.
pub(super) fn runs_to_write<'a>(ascending: &[PageWrite<'a>]) -> Vec<WriteRun<'a>> {
    let mut runs: Vec<WriteRun<'_>> = Vec::new();
    let mut last_slot = None;
    for &PageWrite { slot, page } in ascending {
        assert!(last_slot != Some(slot), "slot {} twice in one batch", slot.0);
        let follows = last_slot.is_some_and(|last: SlotIndex| last.0 + 1 == slot.0);
        last_slot = Some(slot);
        match runs.last_mut() {
            Some(run) if follows && run.pages.len() < RUN_PAGES_MAX => {
                run.pages.push(page);
            }
            _ => {
                let offset_bytes = u64::from(slot.0) * PAGE_SIZE as u64;
                runs.push(WriteRun { offset_bytes, pages: vec![page] });
            }
        }
    }
    runs
}

/// Add the page of `slot`, wanted at place `index` of a buffer, to the last run or as a new one.
pub(super) fn add_to_read(runs: &mut Vec<ReadRun>, slot: SlotIndex, index: usize) {
    let offset_bytes = u64::from(slot.0) * PAGE_SIZE as u64;
    match runs.last_mut() {
        Some(run)
            if run.first + run.pages == index
                && run.offset_bytes + (run.pages * PAGE_SIZE) as u64 == offset_bytes
                && run.pages < RUN_PAGES_MAX =>
        {
            run.pages += 1;
        }
        _ => runs.push(ReadRun::new(offset_bytes, index, 1)),
    }
}

/// One run by pwritev.
fn write_now(file: BorrowedFd<'_>, run: &WriteRun<'_>) -> RunEnd {
    let mut end = RunEnd { done_bytes: 0, errno: None };
    while end.done_bytes < run.pages.len() * PAGE_SIZE {
        let rest = &run.pages[end.done_bytes / PAGE_SIZE..];
        let slices: Vec<io::IoSlice<'_>> = rest.iter().map(|page| io::IoSlice::new(&page.0)).collect();
        match rustix::io::pwritev(file, &slices, run.offset_bytes + end.done_bytes as u64) {
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

/// One run by pread.
fn read_now(file: BorrowedFd<'_>, run: &mut ReadRun, buf: &mut [Page]) {
    for place in 0..run.pages {
        let offset_bytes = run.offset_bytes + (place * PAGE_SIZE) as u64;
        let got = loop {
            match rustix::io::pread(file, &mut buf[run.first + place].0, offset_bytes) {
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

/// The machine was short of something for the request, and may have it in a moment. Memory: ENOMEM, EAGAIN,
/// ENOBUFS. Descriptors: EMFILE, ENFILE. The device's own queue: EBUSY. And a request that was given up with
/// the thread that made it: EINTR, ECANCELED.
pub(super) fn is_short(errno: Errno) -> bool {
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

/// What a read or a write that ended so is to the engine.
pub(super) fn failed(errno: Errno) -> BackingError {
    if is_short(errno) {
        BackingError::Short(errno.raw_os_error())
    } else {
        BackingError::Io(errno.raw_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memspill_engine::units::page_buf;
    use std::fs::{self, File};
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    /// Two pages in a row in a file of this machine of which the first cannot be read and the second can:
    /// in /proc/self/mem, where the kernel's data for the vdso ends and its code begins.
    fn bad_page_before_a_good_one() -> (File, u64) {
        let memory = File::open("/proc/self/mem").unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let code = maps.lines().find(|line| line.ends_with("[vdso]")).expect("a kernel with a vdso");
        let code = u64::from_str_radix(code.split_once('-').unwrap().0, 16).unwrap();
        let mut page = [0; PAGE_SIZE];
        memory.read_exact_at(&mut page, code).expect("the code can be read");
        let bad = code - PAGE_SIZE as u64;
        memory.read_exact_at(&mut page, bad).expect_err("the kernel's data cannot be read");
        (memory, bad)
    }

    /// A page that is all right is not lost because one beside it cannot be read.
    #[test]
    fn a_bad_page_takes_no_other_of_its_request_with_it() {
        for engine in [IoEngine::Auto, IoEngine::Sync] {
            let (file, offset_bytes) = bad_page_before_a_good_one();
            let queues = Queues::<()>::new(engine, 1, file.as_fd()).unwrap();
            let runs = vec![ReadRun::new(offset_bytes, 1, 2)];
            let op = ReadOp { tag: (), buf: page_buf(3), runs };
            let mut ended = queues.read(QueueId(0), file.as_fd(), op);
            while ended.is_none() {
                ended = queues.reap(QueueId(0)).pop();
            }
            let ReadOp { buf, runs, .. } = ended.unwrap();
            let [bad, good] = &runs[..] else { panic!("{engine:?}: {runs:?}") };
            assert_eq!((bad.first, bad.pages, bad.end.errno), (1, 1, Some(libc::EIO)), "{engine:?}");
            assert_eq!((good.first, good.pages, good.end.errno), (2, 1, None), "{engine:?}");
            assert!(buf[0].0.iter().all(|byte| *byte == 0) && buf[1].0.iter().all(|byte| *byte == 0));
            let mut page = [0; PAGE_SIZE];
            file.read_exact_at(&mut page, offset_bytes + PAGE_SIZE as u64).unwrap();
            assert!(buf[2].0 == page, "{engine:?}");
            let (_, _, read_ios) = queues.totals();
            assert_eq!(read_ios, 3, "{engine:?}: a request for both, and one for each");
        }
    }

    /// A page must not be lost because memory was short for a moment, nor be asked for again for ever where
    /// the medium fails.
    #[test]
    fn errors_that_pass_are_told_from_those_of_the_medium() {
        for errno in [
            libc::ENOMEM,
            libc::EAGAIN,
            libc::EINTR,
            libc::EBUSY,
            libc::ENOBUFS,
            libc::EMFILE,
            libc::ECANCELED,
        ] {
            assert_eq!(failed(Errno::from_raw_os_error(errno)), BackingError::Short(errno));
        }
        for errno in
            [libc::EIO, libc::ENODATA, libc::EREMOTEIO, libc::EILSEQ, libc::ENXIO, libc::ENODEV, libc::EINVAL]
        {
            assert_eq!(failed(Errno::from_raw_os_error(errno)), BackingError::Io(errno));
        }
        assert_eq!(failed(RunEnd { done_bytes: 0, errno: None }.error()), BackingError::Io(libc::EIO));
    }
}
