//! The part of the mutating verifier that is about shared memory: processes that have the same objects mapped
//! and do to them whatever programs do to memory that they share.
//!
//! ```text
//!   crew ─┬─ object 0 │ stripe of 0 │ stripe of 1 │ …     who may change a page: one worker, or its child
//!         ├─ object 1 │ …                                 while it waits for that child
//!         ├─ counters │ all add to all                    no addition may be lost
//!         └─ shadow   │ what each page must hold          shared as well
//! ```
//!
//! The crew makes the objects, forks the workers, and looks at everything when they have ended; then it
//! begins anew with other objects, so that objects end too. Each process moves, protects and advises its own
//! mapping; what it stores, all see. MADV_REMOVE leaves zeros for all, MADV_DONTNEED leaves what is there.
//! With `files` every other object is a memfd, which is now and then read and written by calls as well.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use crate::args::Common;
use crate::contents::{Contents, Stamp};
use crate::os::{self, Ended, Mapping, PAGE, Page, Protection, WORDS};
use crate::rng::{Rng, mix};

/// A round is short, so that many objects begin and end.
const ROUND: Duration = Duration::from_secs(2);
const OBJECTS_MAX: usize = 4;
const COUNTER_PAGES: usize = 16;
const MAX_RUN: usize = 64;
/// Fewer pages are less than what is managed.
const OBJECT_PAGES_MIN: usize = 32;
/// Fewer are not worth several objects, and a stripe for each of the workers.
pub const PAGES_MIN: usize = 4 * OBJECT_PAGES_MIN;

/// What the crew's processes have done, in memory that they share.
pub struct Shared {
    map: Mapping,
}

/// Words of `Shared`.
const CHECKED: usize = 0;
const WRITTEN: usize = 1;
const ADDED: usize = 2;

impl Shared {
    pub fn new() -> io::Result<Shared> {
        Ok(Shared { map: Mapping::shared(1)? })
    }

    fn add(&self, word: usize, value: u64) {
        self.map.page(0)[word].fetch_add(value, Relaxed);
    }

    pub fn checked(&self) -> u64 {
        self.map.page(0)[CHECKED].load(Relaxed)
    }

    pub fn written(&self) -> u64 {
        self.map.page(0)[WRITTEN].load(Relaxed)
    }
}

#[derive(Clone, Copy)]
pub struct Plan {
    pub pages: usize,
    pub workers: usize,
    pub with_files: bool,
}

/// One process of it: rounds until `end`. The exit code: 0, or 1 when something was wrong.
pub fn crew(common: Common, plan: Plan, end: Instant, ops: u64, shared: &Shared) -> i32 {
    let mut rng = Rng::new(common.seed ^ 0x5a_ed, 0);
    let mut done = 0;
    while Instant::now() < end && done < ops {
        let until = end.min(Instant::now() + ROUND);
        let ops = (ops - done).min(5000);
        done += ops;
        match Round::new(common, plan, rng.draw()).and_then(|round| round.play(until, ops, shared)) {
            Ok(true) => {}
            Ok(false) => return 1,
            Err(error) => {
                os::write_stderr(format_args!("memspill-workload mutate: shared memory: {error}\n"));
                return 1;
            }
        }
    }
    0
}

/// The objects of one round, as they are inherited by its workers.
struct Round {
    seed: u64,
    contents: Contents,
    workers: usize,
    objects: Vec<Mapping>,
    /// The files of objects that have one.
    files: Vec<Option<File>>,
    counters: Mapping,
    /// For each object: for each page the number of the write that filled it, 0 where it must be zero.
    shadows: Vec<Mapping>,
}

impl Round {
    fn new(common: Common, plan: Plan, seed: u64) -> io::Result<Round> {
        let workers = plan.workers;
        let mut rng = Rng::new(seed, 1);
        let contents = if common.contents == Contents::Zero { Contents::Half } else { common.contents };
        let mut left = plan.pages;
        let (mut objects, mut files) = (Vec::with_capacity(OBJECTS_MAX), Vec::with_capacity(OBJECTS_MAX));
        while objects.len() < OBJECTS_MAX && left >= OBJECT_PAGES_MIN.max(workers) {
            let pages = match objects.len() + 1 {
                OBJECTS_MAX => left,
                _ => rng.between(OBJECT_PAGES_MIN.max(workers).min(left), left),
            };
            left -= pages;
            if plan.with_files && objects.len() % 2 == 0 {
                let (map, file) = Mapping::of_file(pages)?;
                objects.push(map);
                files.push(Some(file));
            } else {
                objects.push(Mapping::shared(pages)?);
                files.push(None);
            }
        }
        let shadow = |object: &Mapping| Mapping::shared(object.pages().div_ceil(WORDS));
        let shadows = objects.iter().map(shadow).collect::<io::Result<_>>()?;
        let counters = Mapping::shared(COUNTER_PAGES)?;
        Ok(Round { seed, contents, workers, objects, files, counters, shadows })
    }

    /// Lets the workers run, and looks at everything. False: something was wrong, and has been said.
    fn play(self, until: Instant, ops: u64, shared: &Shared) -> io::Result<bool> {
        let added_before = shared.map.page(0)[ADDED].load(Acquire);
        let mut worker = Worker::new(self)?;
        let mut pids = Vec::with_capacity(worker.round.workers);
        for id in 0..worker.round.workers {
            pids.push(os::fork(|| worker.work_until(id, until, ops, shared))?);
        }
        let mut all_well = true;
        for pid in pids {
            let ended = os::wait(pid, true)?;
            if ended != Some(Ended::Code(0)) {
                os::write_stderr(format_args!("memspill-workload mutate: a worker ended with {ended:?}\n"));
                all_well = false;
            }
        }
        if !all_well {
            return Ok(false);
        }
        for object in 0..worker.round.objects.len() {
            for page in 0..worker.round.objects[object].pages() {
                worker.check_page(object, page, "when all had ended");
            }
        }
        let pages = (0..COUNTER_PAGES).map(|page| worker.round.counters.page(page));
        let counted: u64 = pages.flatten().map(|counter| counter.load(Acquire)).sum();
        let added = shared.map.page(0)[ADDED].load(Acquire) - added_before;
        if counted != added {
            os::write_stderr(format_args!(
                "memspill-workload mutate: shared counters hold {counted} after {added} additions\n"
            ));
            return Ok(false);
        }
        shared.add(CHECKED, worker.checked);
        Ok(true)
    }

    fn shadow(&self, object: usize, page: usize) -> &std::sync::atomic::AtomicU64 {
        &self.shadows[object].page(page / WORDS)[page % WORDS]
    }
}

struct Worker {
    round: Round,
    id: usize,
    rng: Rng,
    /// The number of the last write; not used twice by any process of the round.
    number: u32,
    pipe: (OwnedFd, OwnedFd),
    checked: u64,
    written: u64,
    added: u64,
}

impl Worker {
    fn new(round: Round) -> io::Result<Worker> {
        let (reader, writer) = io::pipe()?;
        let rng = Rng::new(round.seed, 2);
        let pipe = (reader.into(), writer.into());
        Ok(Worker { round, id: 0, rng, number: 0, pipe, checked: 0, written: 0, added: 0 })
    }

    /// In a process of its own. Does not return to where it was forked.
    fn work_until(&mut self, id: usize, until: Instant, ops: u64, shared: &Shared) -> i32 {
        self.id = id;
        self.rng = Rng::new(self.round.seed, 3 + id as u64);
        match io::pipe() {
            // The one of the crew is everybody's.
            Ok((reader, writer)) => self.pipe = (reader.into(), writer.into()),
            Err(_) => return 3,
        }
        for _ in 0..ops {
            if Instant::now() >= until {
                break;
            }
            if let Err(error) = self.step(shared) {
                self.fail(format_args!("{error}"));
            }
        }
        shared.add(CHECKED, self.checked);
        shared.add(WRITTEN, self.written);
        shared.map.page(0)[ADDED].fetch_add(self.added, AcqRel);
        0
    }

    fn step(&mut self, shared: &Shared) -> io::Result<()> {
        match self.rng.below(24) {
            0..=7 => self.check_run("a random look"),
            8..=15 => self.write_run(),
            16 => self.add_to_counters(),
            17 => {
                let object = self.rng.below(self.round.objects.len());
                self.round.objects[object].relocate()?;
                self.check_run("after a move of the mapping");
            }
            18 => self.protect()?,
            19 => {
                let (object, from, run) = self.pick_run();
                self.round.objects[object].advise(from, run, libc::MADV_DONTNEED)?;
                (from..from + run).for_each(|page| self.check_page(object, page, "after MADV_DONTNEED"));
            }
            20 => self.remove()?,
            21 => {
                let (object, from, run) = self.pick_run();
                self.round.objects[object].advise(from, run, os::PAGEOUT)?;
                (from..from + run).for_each(|page| self.check_page(object, page, "after MADV_PAGEOUT"));
            }
            22 => self.copy_through_kernel()?,
            // All of the file is brought back for it.
            23 if self.rng.chance(16) => self.call_file()?,
            _ => {
                if self.rng.chance(32) {
                    self.fork(shared)?;
                }
            }
        }
        Ok(())
    }

    // --- helpers

    /// Some pages in a row that this worker alone may change.
    fn pick_run(&mut self) -> (usize, usize, usize) {
        let object = self.rng.below(self.round.objects.len());
        let pages = self.round.objects[object].pages();
        let stripe = |id: usize| id * pages / self.round.workers;
        let (first, end) = (stripe(self.id), stripe(self.id + 1));
        let run = self.rng.between(1, MAX_RUN.min(end - first));
        (object, first + self.rng.below(end - first - run + 1), run)
    }

    fn stamp(&self, object: usize, page: usize, number: u32) -> Stamp {
        let contents = if number == 0 { Contents::Zero } else { self.round.contents };
        Stamp::new(contents, self.round.seed ^ mix(object as u64), page as u64, number)
    }

    fn page(&self, object: usize, page: usize) -> &Page {
        self.round.objects[object].page(page)
    }

    fn check_page(&mut self, object: usize, page: usize, doing: &str) {
        self.checked += 1;
        let number = self.round.shadow(object, page).load(Acquire) as u32;
        let (stamp, found) = (self.stamp(object, page, number), self.page(object, page));
        if let Some(word) = (0..WORDS).find(|word| found[*word].load(Relaxed) != stamp.word(*word)) {
            let mismatch = stamp.mismatch(found, word, found[word].load(Relaxed));
            self.fail(format_args!("object {object} page {page} write {number}: {mismatch}; while: {doing}"));
        }
    }

    fn fail(&self, what: std::fmt::Arguments) -> ! {
        os::write_stderr(format_args!(
            "memspill-workload mutate: shared memory, worker {}: {what}\n",
            self.id
        ));
        os::exit_now(1)
    }

    fn write_page(&mut self, object: usize, page: usize) {
        self.number += 1;
        self.written += 1;
        self.stamp(object, page, self.number).fill(self.page(object, page));
        self.round.shadow(object, page).store(u64::from(self.number), Release);
    }

    // --- operations

    fn check_run(&mut self, doing: &str) {
        let (object, from, run) = self.pick_run();
        (from..from + run).for_each(|page| self.check_page(object, page, doing));
    }

    fn write_run(&mut self) {
        let (object, from, run) = self.pick_run();
        (from..from + run).for_each(|page| self.write_page(object, page));
    }

    fn add_to_counters(&mut self) {
        for _ in 0..64 {
            let (page, word) = (self.rng.below(COUNTER_PAGES), self.rng.below(WORDS));
            self.round.counters.page(page)[word].fetch_add(1, Relaxed);
            self.added += 1;
        }
    }

    fn protect(&mut self) -> io::Result<()> {
        let (object, from, run) = self.pick_run();
        self.round.objects[object].protect(from, run, Protection::Read)?;
        (from..from + run).for_each(|page| self.check_page(object, page, "while read-only"));
        self.round.objects[object].protect(from, run, Protection::ReadWrite)
    }

    /// Zeros for everybody; some are written again at once.
    fn remove(&mut self) -> io::Result<()> {
        let (object, from, run) = self.pick_run();
        self.round.objects[object].advise(from, run, libc::MADV_REMOVE)?;
        (from..from + run).for_each(|page| self.round.shadow(object, page).store(0, Release));
        let written = self.rng.below(run + 1);
        (from..from + written).for_each(|page| self.write_page(object, page));
        (from..from + run).for_each(|page| self.check_page(object, page, "after MADV_REMOVE"));
        Ok(())
    }

    /// Stores by the kernel: the bytes of a page as it is to be after its next write go through a pipe.
    fn copy_through_kernel(&mut self) -> io::Result<()> {
        let (object, from, run) = self.pick_run();
        let run = run.min(8);
        let map = &self.round.objects[object];
        let (reader, writer) = (&self.pipe.0, &self.pipe.1);
        let bytes = run * PAGE;
        let cut = 1 + self.rng.below(bytes - 1);
        let put = map.write_to(writer, from * PAGE, bytes)?;
        // In pieces that do not keep to pages, into the place that they come from.
        let got = map.read_from(reader, from * PAGE, cut)?
            + map.read_from(reader, from * PAGE + cut, bytes - cut)?;
        if put != bytes || got != bytes {
            self.fail(format_args!("{put} and {got} of {bytes} bytes through a pipe"));
        }
        (from..from + run).for_each(|page| self.check_page(object, page, "after a copy through a pipe"));
        Ok(())
    }

    /// The mapping shows the bytes of the file, also those that are written to the file now.
    fn call_file(&mut self) -> io::Result<()> {
        let (object, from, run) = self.pick_run();
        let Some(file) = &self.round.files[object] else { return Ok(()) };
        let run = run.min(8);
        let (mut bytes, offset) = (vec![0; run * PAGE], (from * PAGE) as u64);
        file.read_exact_at(&mut bytes, offset)?;
        let word = |at: usize| u64::from_ne_bytes(bytes[at * 8..][..8].try_into().expect("eight bytes"));
        for page in from..from + run {
            let number = self.round.shadow(object, page).load(Acquire) as u32;
            let stamp = self.stamp(object, page, number);
            if (0..WORDS).any(|at| word((page - from) * WORDS + at) != stamp.word(at)) {
                self.fail(format_args!("object {object} page {page} write {number}: not what a read says"));
            }
        }
        self.number += 1;
        self.written += 1;
        let stamp = self.stamp(object, from, self.number);
        let page: Vec<u8> = (0..WORDS).flat_map(|at| stamp.word(at).to_ne_bytes()).collect();
        file.write_all_at(&page, offset)?;
        self.round.shadow(object, from).store(u64::from(self.number), Release);
        (from..from + run).for_each(|page| self.check_page(object, page, "after calls on the file"));
        Ok(())
    }

    /// A child goes on with this worker's pages, and this worker with what the child has left.
    fn fork(&mut self, shared: &Shared) -> io::Result<()> {
        let pid = os::fork(|| {
            let (checked, written, added) = (self.checked, self.written, self.added);
            // Numbers that its parent will not use.
            self.number += 1 << 20;
            for _ in 0..64 {
                let result = match self.rng.below(4) {
                    0 => self.remove(),
                    1 => self.protect(),
                    2 => {
                        self.add_to_counters();
                        Ok(())
                    }
                    _ => {
                        self.write_run();
                        self.check_run("in a child");
                        Ok(())
                    }
                };
                if let Err(error) = result {
                    self.fail(format_args!("{error}"));
                }
            }
            shared.add(CHECKED, self.checked - checked);
            shared.add(WRITTEN, self.written - written);
            shared.map.page(0)[ADDED].fetch_add(self.added - added, AcqRel);
            0
        })?;
        self.number += 1 << 21;
        match os::wait(pid, true)? {
            Some(Ended::Code(0)) => Ok(()),
            other => self.fail(format_args!("a child ended with {other:?}")),
        }
    }
}
