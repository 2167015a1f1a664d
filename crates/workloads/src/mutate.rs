//! The mutating verifier: threads own regions, keep a shadow of every page, and do to the regions whatever a
//! program may do to memory: write, map over, move, shrink, throw away, protect, fork, copy through the
//! kernel. After each step the worker knows what must be there, and checks it. Beside them processes do the
//! same to memory that they share (`mutate_shared.rs`).
//!
//! The shadow holds for each page the number of the write that filled it (unique within the thread, so the
//! page tells which write it comes from wherever it has been moved) and the number of the last store to its
//! last word alone.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::args::{Args, Common};
use crate::contents::{Contents, Stamp, is_zero};
use crate::mutate_shared;
use crate::os::{self, Break, Ended, Huge, Mapping, PAGE, Page, Pid, Protection, WORDS};
use crate::report::{Failure, Meter, Outcome};
use crate::rng::{Rng, mix};

pub const USAGE: &str = "--size S [--threads T] [--seconds N] [--ops N (of each thread)] [--modes \
    write,mapfixed,mremap,dontneed,free,fork,munmap,mprotect,io,brk,shared; and files]";

/// All but `files`, which are swapped with `--shared=all` alone.
const ALL_MODES: &str = "write,mapfixed,mremap,dontneed,free,fork,munmap,mprotect,io,brk,shared";
const MAX_REGIONS: usize = 48;
const MAX_RUN: usize = 64;
const LOG: usize = 8192;
const CHILD_LIMIT_SECONDS: u32 = 300;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Write,
    MapFixed,
    Mremap,
    DontNeed,
    Free,
    Fork,
    Munmap,
    Mprotect,
    Io,
    Brk,
    Shared,
    Files,
}

impl Mode {
    fn parse(text: &str) -> Option<Mode> {
        Some(match text {
            "write" => Mode::Write,
            "mapfixed" => Mode::MapFixed,
            "mremap" => Mode::Mremap,
            "dontneed" => Mode::DontNeed,
            "free" => Mode::Free,
            "fork" => Mode::Fork,
            "munmap" => Mode::Munmap,
            "mprotect" => Mode::Mprotect,
            "io" => Mode::Io,
            "brk" => Mode::Brk,
            "shared" => Mode::Shared,
            "files" => Mode::Files,
            _ => return None,
        })
    }
}

pub fn run(args: &mut Args) -> Outcome {
    let common = args.common()?;
    let pages = args.pages("size", "64M")?;
    let threads: usize = args.number("threads", 4)?;
    let seconds: f64 = args.number("seconds", 10.0)?;
    let ops: u64 = args.number("ops", u64::MAX)?;
    let modes = args.text("modes", ALL_MODES);
    args.finish()?;
    let mut modes: Vec<Mode> = modes
        .split(',')
        .map(|name| Mode::parse(name).ok_or_else(|| Failure::Usage(format!("--modes: '{name}' is unknown"))))
        .collect::<Result<_, _>>()?;
    let with_brk = modes.contains(&Mode::Brk);
    let with_files = modes.contains(&Mode::Files);
    let with_shared = with_files || modes.contains(&Mode::Shared);
    modes.retain(|mode| !matches!(mode, Mode::Brk | Mode::Shared | Mode::Files));
    if modes.is_empty() {
        modes.push(Mode::Write); // what the threads do meanwhile
    }
    let shares = threads + usize::from(with_brk) + usize::from(with_shared);
    if threads == 0 || pages / shares < mutate_shared::PAGES_MIN {
        return Err(Failure::Usage("each thread needs 128 pages or more".into()));
    }
    let quota = pages / shares;

    let meter = Meter::start();
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    // The break belongs to malloc as well, so this part is a process of its own, with one thread.
    let breaker = if with_brk { Some(os::fork(|| break_worker(common, quota, end, ops))?) } else { None };
    // So are those that share memory.
    let shared = mutate_shared::Shared::new()?;
    let crew = if with_shared {
        let plan = mutate_shared::Plan { pages: quota, workers: threads.clamp(2, 4), with_files };
        Some(os::fork(|| mutate_shared::crew(common, plan, end, ops, &shared))?)
    } else {
        None
    };
    let mut totals = Totals::default();
    let mut failure = None;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|id| {
                let modes = &modes;
                scope.spawn(move || Worker::new(id, common, quota, modes)?.work_until(end, ops))
            })
            .collect();
        for worker in workers {
            match worker.join() {
                Ok(Ok(part)) => totals.add(&part),
                Ok(Err(error)) => failure = Some(error.to_string()),
                Err(_) => failure = Some("a thread panicked".into()),
            }
        }
    });
    if let Some(text) = failure {
        return Err(Failure::System(text));
    }
    if let Some(pid) = breaker {
        match os::wait(pid, true)? {
            Some(Ended::Code(0)) => {}
            other => return Err(Failure::Bad(format!("the brk process ended with {other:?}"))),
        }
    }
    if let Some(pid) = crew {
        match os::wait(pid, true)? {
            Some(Ended::Code(0)) => {}
            other => return Err(Failure::Bad(format!("the processes that share memory: {other:?}"))),
        }
    }
    let mut report = meter.report();
    report.rate("ops", totals.ops);
    report.rate("pages", totals.checked);
    report.count("written", totals.written);
    report.count("moved", totals.moved);
    report.count("refused", totals.refused);
    report.count("forks", totals.forks);
    report.count("shared_checked", shared.checked());
    report.count("shared_written", shared.written());
    report.count("seed", common.seed);
    Ok(report)
}

#[derive(Default)]
struct Totals {
    ops: u64,
    checked: u64,
    written: u64,
    moved: u64,
    /// mremap calls that the kernel refused because the range had become several mappings.
    refused: u64,
    forks: u64,
}

impl Totals {
    fn add(&mut self, other: &Totals) {
        self.ops += other.ops;
        self.checked += other.checked;
        self.written += other.written;
        self.moved += other.moved;
        self.refused += other.refused;
        self.forks += other.forks;
    }
}

/// The expected contents of a page.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Entry {
    /// The write that filled it; 0 where it must be zero. With LAZY: that, or zero, as the kernel likes.
    stamp: u32,
    /// The store to the last word since; 0 where there was none.
    tail: u32,
}

const LAZY: u32 = 1 << 31;

struct Region {
    map: Mapping,
    shadow: Vec<Entry>,
}

impl Region {
    fn split_off(&mut self, at: usize) -> Region {
        Region { map: self.map.split_off(at), shadow: self.shadow.split_off(at) }
    }
}

#[derive(Clone, Copy)]
struct Done {
    number: u64,
    what: &'static str,
    address: usize,
    pages: usize,
}

struct Worker {
    id: usize,
    seed: u64,
    contents: Contents,
    huge: Huge,
    rng: Rng,
    regions: Vec<Region>,
    quota: usize,
    pages: usize,
    stamp: u32,
    modes: Vec<Mode>,
    /// The last operations, newest at `noted - 1`; full from the start, so that a forked child need not
    /// allocate.
    log: Vec<Done>,
    noted: usize,
    pipe: (OwnedFd, OwnedFd),
    file: OwnedFd,
    children: Vec<Pid>,
    totals: Totals,
}

fn tail_word(seed: u64, tail: u32) -> u64 {
    mix(seed ^ u64::from(tail)) | 1
}

/// The first word that is not what `entry` says, and what it should be.
fn find_wrong(page: &Page, contents: Contents, seed: u64, id: usize, entry: Entry) -> Option<(usize, u64)> {
    let stamp = match entry.stamp & !LAZY {
        0 => Stamp::new(Contents::Zero, seed, id as u64, 0),
        number => Stamp::new(contents, seed, id as u64, number),
    };
    let last = if entry.tail == 0 { stamp.word(WORDS - 1) } else { tail_word(seed, entry.tail) };
    let expected = |index: usize| if index == WORDS - 1 { last } else { stamp.word(index) };
    (0..WORDS).find(|i| page[*i].load(Relaxed) != expected(*i)).map(|i| (i, expected(i)))
}

impl Worker {
    fn new(id: usize, common: Common, quota: usize, modes: &[Mode]) -> io::Result<Worker> {
        let (reader, writer) = io::pipe()?;
        Ok(Worker {
            id,
            seed: common.seed ^ mix(id as u64),
            contents: if common.contents == Contents::Zero { Contents::Half } else { common.contents },
            huge: common.huge,
            rng: Rng::new(common.seed, id as u64),
            regions: Vec::with_capacity(2 * MAX_REGIONS),
            quota,
            pages: 0,
            stamp: 0,
            modes: modes.to_vec(),
            log: vec![Done { number: 0, what: "", address: 0, pages: 0 }; LOG],
            noted: 0,
            pipe: (reader.into(), writer.into()),
            file: os::scratch_file()?,
            children: Vec::with_capacity(4),
            totals: Totals::default(),
        })
    }

    fn work_until(mut self, end: Instant, ops: u64) -> io::Result<Totals> {
        while Instant::now() < end && self.totals.ops < ops {
            self.totals.ops += 1;
            if self.pages < self.quota * 3 / 4 {
                self.create()?;
            } else if self.pages > self.quota || self.regions.len() > MAX_REGIONS {
                let at = self.rng.below(self.regions.len());
                self.drop_region(at, "munmap of a region");
            }
            // Mostly reads and writes; now and then something that changes the mappings.
            match self.rng.below(16) {
                0..=5 => self.check_run(),
                6..=11 => self.write_run(),
                12 => self.store_tail(),
                _ => self.mutate()?,
            }
        }
        for at in 0..self.regions.len() {
            for index in 0..self.regions[at].shadow.len() {
                self.check_page(at, index, "the last look at everything");
            }
        }
        while !self.children.is_empty() {
            self.reap(true)?;
        }
        Ok(self.totals)
    }

    fn mutate(&mut self) -> io::Result<()> {
        let mode = self.modes[self.rng.below(self.modes.len())];
        match mode {
            Mode::Write | Mode::Brk | Mode::Shared | Mode::Files => self.write_run(),
            Mode::MapFixed => self.map_over()?,
            Mode::Mremap => match self.rng.below(4) {
                0 => self.resize(true),
                1 => self.resize(false),
                2 => self.relocate(),
                _ => self.move_pages_out(),
            },
            Mode::DontNeed => self.throw_away(libc::MADV_DONTNEED)?,
            Mode::Free => self.throw_away(libc::MADV_FREE)?,
            Mode::Munmap => self.unmap_run(),
            Mode::Mprotect => self.protect()?,
            Mode::Io => self.copy_through_kernel(),
            // A fork costs as much as hundreds of the others.
            Mode::Fork => {
                if self.rng.chance(64) {
                    self.fork()?
                }
            }
        }
        Ok(())
    }

    // --- helpers

    fn note_operation(&mut self, what: &'static str, address: usize, pages: usize) {
        let number = self.totals.ops;
        self.noted += 1;
        self.log[(self.noted - 1) % LOG] = Done { number, what, address, pages };
    }

    /// A region and a run of pages in it.
    fn pick_run(&mut self, longest: usize) -> (usize, usize, usize) {
        let at = self.rng.below(self.regions.len());
        let pages = self.regions[at].shadow.len();
        let run = self.rng.between(1, longest.min(pages));
        let from = self.rng.below(pages - run + 1);
        (at, from, run)
    }

    fn address(&self, at: usize, index: usize) -> usize {
        self.regions[at].map.address() + index * PAGE
    }

    fn report_bad_page(&self, at: usize, index: usize, wrong: (usize, u64), doing: &str) -> ! {
        let page = self.regions[at].map.page(index);
        let entry = self.regions[at].shadow[index];
        let stamp = Stamp::new(self.contents, self.seed, self.id as u64, entry.stamp & !LAZY);
        let found = page[wrong.0].load(Relaxed);
        let mut mismatch = stamp.mismatch(page, wrong.0, found);
        mismatch.expected = wrong.1;
        os::write_stderr(format_args!(
            "memspill-workload mutate: thread {} operation {}: {mismatch}; expected write {}{} tail {}; \
             while: {doing}\n",
            self.id,
            self.totals.ops,
            entry.stamp & !LAZY,
            if entry.stamp & LAZY != 0 { " or zero" } else { "" },
            entry.tail,
        ));
        let address = self.address(at, index);
        let mut told = 0;
        let newest_first = (1..=self.noted.min(LOG)).map(|back| self.log[(self.noted - back) % LOG]);
        for done in newest_first {
            if (done.address..done.address + done.pages * PAGE).contains(&address) && told < 8 {
                told += 1;
                os::write_stderr(format_args!(
                    "  operation {}: {} at {:#x}, {} pages\n",
                    done.number, done.what, done.address, done.pages
                ));
            }
        }
        if told == 0 {
            os::write_stderr(format_args!("  none of the last {LOG} operations touched it\n"));
        }
        os::exit_now(1)
    }

    fn check_page(&mut self, at: usize, index: usize, doing: &str) {
        self.totals.checked += 1;
        let entry = self.regions[at].shadow[index];
        let page = self.regions[at].map.page(index);
        let Some(wrong) = find_wrong(page, self.contents, self.seed, self.id, entry) else { return };
        if entry.stamp & LAZY != 0 && is_zero(page) {
            // The kernel took it; from now on it must stay zero.
            self.regions[at].shadow[index] = Entry::default();
            return;
        }
        self.report_bad_page(at, index, wrong, doing)
    }

    fn write_page(&mut self, at: usize, index: usize) {
        self.stamp = self.stamp % (LAZY - 1) + 1;
        self.totals.written += 1;
        let stamp = Stamp::new(self.contents, self.seed, self.id as u64, self.stamp);
        stamp.fill(self.regions[at].map.page(index));
        self.regions[at].shadow[index] = Entry { stamp: self.stamp, tail: 0 };
    }

    // --- operations

    fn create(&mut self) -> io::Result<()> {
        let pages = self.rng.between(8, (self.quota / 6).max(9));
        let map = Mapping::new(pages, self.huge)?;
        self.note_operation("mmap", map.address(), pages);
        self.regions.push(Region { map, shadow: vec![Entry::default(); pages] });
        self.pages += pages;
        let at = self.regions.len() - 1;
        for index in 0..pages {
            if !self.rng.chance(8) {
                self.write_page(at, index);
            }
        }
        Ok(())
    }

    fn drop_region(&mut self, at: usize, what: &'static str) {
        let region = self.regions.swap_remove(at);
        self.note_operation(what, region.map.address(), region.shadow.len());
        self.pages -= region.shadow.len();
    }

    fn check_run(&mut self) {
        let (at, from, run) = self.pick_run(MAX_RUN);
        (from..from + run).for_each(|index| self.check_page(at, index, "a random look"));
    }

    fn write_run(&mut self) {
        let (at, from, run) = self.pick_run(MAX_RUN);
        self.note_operation("write", self.address(at, from), run);
        (from..from + run).for_each(|index| self.write_page(at, index));
    }

    /// A store to one word of a page that has not been read before: the rest must still be there.
    fn store_tail(&mut self) {
        let (at, from, run) = self.pick_run(8);
        self.note_operation("store to last words", self.address(at, from), run);
        for index in from..from + run {
            self.stamp = self.stamp % (LAZY - 1) + 1;
            let Region { map, shadow } = &mut self.regions[at];
            let (page, entry) = (map.page(index), &mut shadow[index]);
            page[WORDS - 1].store(tail_word(self.seed, self.stamp), Relaxed);
            entry.tail = self.stamp;
            if entry.stamp & LAZY != 0 {
                // Now that it is written it is kept as it is: old, or zero.
                entry.stamp = if page[0].load(Relaxed) == 0 { 0 } else { entry.stamp & !LAZY };
            }
            self.check_page(at, index, "a store to the last word");
        }
    }

    fn map_over(&mut self) -> io::Result<()> {
        let (at, from, run) = self.pick_run(4 * MAX_RUN);
        self.note_operation("mmap(MAP_FIXED)", self.address(at, from), run);
        self.regions[at].map.replace(from, run)?;
        // Written at once: an eviction of the old pages that comes too late would take these.
        let written = self.rng.below(run + 1).min(MAX_RUN);
        self.regions[at].shadow[from..from + run].fill(Entry::default());
        (from..from + written).for_each(|index| self.write_page(at, index));
        (from..from + run).for_each(|index| self.check_page(at, index, "after MAP_FIXED"));
        Ok(())
    }

    fn throw_away(&mut self, advice: i32) -> io::Result<()> {
        let (at, from, run) = self.pick_run(2 * MAX_RUN);
        let lazy = advice == libc::MADV_FREE;
        self.note_operation(if lazy { "MADV_FREE" } else { "MADV_DONTNEED" }, self.address(at, from), run);
        self.regions[at].map.advise(from, run, advice)?;
        for entry in &mut self.regions[at].shadow[from..from + run] {
            if !lazy {
                *entry = Entry::default();
            } else if *entry != Entry::default() {
                if entry.stamp == 0 {
                    // A zero page with a store in its last word: its first word does not tell whether the
                    // page is old or zero.
                    continue;
                }
                entry.stamp |= LAZY;
            }
        }
        if lazy {
            for index in from..from + run {
                let entry = self.regions[at].shadow[index];
                if entry.stamp == 0 && entry.tail != 0 {
                    self.write_page(at, index);
                }
            }
        }
        if self.rng.chance(2) {
            let written = self.rng.between(1, run);
            (from..from + written).for_each(|index| self.write_page(at, index));
        }
        (from..from + run).for_each(|index| self.check_page(at, index, "after throwing away"));
        Ok(())
    }

    /// Takes a run out of a region, so that it is one of its own.
    fn cut_out(&mut self, longest: usize) -> usize {
        let (at, from, run) = self.pick_run(longest);
        let mut middle = self.regions[at].split_off(from);
        if run < middle.shadow.len() {
            let tail = middle.split_off(run);
            self.regions.push(tail);
        }
        if from == 0 {
            self.regions[at] = middle;
            at
        } else {
            self.regions.push(middle);
            self.regions.len() - 1
        }
    }

    fn unmap_run(&mut self) {
        let at = self.cut_out(MAX_RUN);
        self.drop_region(at, "munmap of a part");
    }

    fn resize(&mut self, grow: bool) {
        let at = self.rng.below(self.regions.len());
        let (address, pages) = (self.address(at, 0), self.regions[at].shadow.len());
        let wanted = if grow { pages + self.rng.between(1, 256) } else { self.rng.between(1, pages) };
        if self.regions[at].map.resize(wanted).is_err() {
            self.totals.refused += 1;
            return;
        }
        self.totals.moved += 1;
        self.note_operation(
            if grow { "mremap, longer: from" } else { "mremap, shorter: from" },
            address,
            pages,
        );
        self.note_operation("mremap: to", self.address(at, 0), wanted);
        self.regions[at].shadow.resize(wanted, Entry::default());
        self.pages = self.pages + wanted - pages;
        if wanted > pages {
            // The new end is zero, and can be written at once.
            let half = pages + (wanted - pages) / 2;
            (half..wanted).for_each(|index| self.write_page(at, index));
            (pages..half).for_each(|index| self.check_page(at, index, "the end of what was grown"));
        }
        self.check_some(at, "after mremap");
    }

    fn relocate(&mut self) {
        let at = self.cut_out(8 * MAX_RUN);
        let (address, pages) = (self.address(at, 0), self.regions[at].shadow.len());
        if self.regions[at].map.relocate().is_err() {
            self.totals.refused += 1;
            return;
        }
        self.totals.moved += 1;
        self.note_operation("mremap(MREMAP_FIXED): from", address, pages);
        self.note_operation("mremap(MREMAP_FIXED): to", self.address(at, 0), pages);
        self.check_some(at, "after a move");
    }

    fn move_pages_out(&mut self) {
        let at = self.cut_out(4 * MAX_RUN);
        let (address, pages) = (self.address(at, 0), self.regions[at].shadow.len());
        let Ok(map) = self.regions[at].map.move_pages_out() else {
            self.totals.refused += 1;
            return;
        };
        self.totals.moved += 1;
        self.note_operation("mremap(MREMAP_DONTUNMAP): from", address, pages);
        self.note_operation("mremap(MREMAP_DONTUNMAP): to", map.address(), pages);
        let shadow = self.regions[at].shadow.clone();
        self.regions[at].shadow.fill(Entry::default());
        self.regions.push(Region { map, shadow });
        self.pages += pages;
        self.check_some(self.regions.len() - 1, "where MREMAP_DONTUNMAP moved to");
        let written = self.rng.below(pages + 1).min(MAX_RUN);
        (0..written).for_each(|index| self.write_page(at, index));
        self.check_some(at, "where MREMAP_DONTUNMAP moved from");
    }

    fn check_some(&mut self, at: usize, doing: &str) {
        let pages = self.regions[at].shadow.len();
        for _ in 0..pages.min(MAX_RUN) {
            let index = self.rng.below(pages);
            self.check_page(at, index, doing);
        }
    }

    fn protect(&mut self) -> io::Result<()> {
        let (at, from, run) = self.pick_run(MAX_RUN);
        self.note_operation("mprotect and back", self.address(at, from), run);
        let readable = self.rng.chance(2);
        let to = if readable { Protection::Read } else { Protection::None };
        self.regions[at].map.protect(from, run, to)?;
        if readable {
            (from..from + run).for_each(|index| self.check_page(at, index, "while read-only"));
        }
        // The kernel must not write there either, and what is there stays.
        os::rewind(&self.file);
        let refused = self.regions[at].map.write_to(&self.file, from * PAGE, 8).is_err();
        os::rewind(&self.file);
        if readable == refused {
            self.io_failed("write(2) from protected memory", at, from);
        }
        if readable && self.regions[at].map.read_from(&self.file, from * PAGE, 8).is_ok() {
            self.io_failed("read(2) into read-only memory was not refused", at, from);
        }
        self.regions[at].map.protect(from, run, Protection::ReadWrite)?;
        (from..from + run).for_each(|index| self.check_page(at, index, "after mprotect"));
        Ok(())
    }

    fn io_failed(&self, what: &str, at: usize, index: usize) -> ! {
        let error = io::Error::last_os_error();
        os::write_stderr(format_args!(
            "memspill-workload mutate: thread {} operation {}: {what} at {:#x}: errno {:?}\n",
            self.id,
            self.totals.ops,
            self.address(at, index),
            error.raw_os_error()
        ));
        os::exit_now(1)
    }

    /// Copies a run of pages to another place through a pipe, a file or process_vm_readv.
    fn copy_through_kernel(&mut self) {
        let (source, from, run) = self.pick_run(15);
        let (target, to, room) = self.pick_run(15);
        let run = run.min(room);
        for index in from..from + run {
            if self.regions[source].shadow[index].stamp & LAZY != 0 {
                self.write_page(source, index); // else it could change while it is copied
            }
        }
        let bytes = run * PAGE;
        let kind = self.rng.below(3);
        if kind == 2 && source == target && from < to + run && to < from + run {
            return; // overlapping ranges are for the other two
        }
        self.note_operation("read(2) and the like into", self.address(target, to), run);
        let (reader, writer) = &self.pipe;
        let (a, b) = (&self.regions[source].map, &self.regions[target].map);
        let done = match kind {
            // In pieces that do not keep to pages.
            0 => {
                let cut = 1 + self.rng.below(bytes - 1);
                let put = a.write_to(writer, from * PAGE, bytes);
                let got = b.read_from(reader, to * PAGE, cut);
                let rest = b.read_from(reader, to * PAGE + cut, bytes - cut);
                put.and_then(|put| Ok((put, got? + rest?)))
            }
            1 => {
                os::rewind(&self.file);
                let put = a.write_to(&self.file, from * PAGE, bytes);
                os::rewind(&self.file);
                put.and_then(|put| Ok((put, b.read_from(&self.file, to * PAGE, bytes)?)))
            }
            _ => b.copy_by_kernel(to, a, from, run).map(|got| (bytes, got)),
        };
        if !matches!(done, Ok((put, got)) if put == bytes && got == bytes) {
            self.io_failed(["pipe", "file", "process_vm_readv"][kind], target, to);
        }
        let mut entries = [Entry::default(); 16];
        entries[..run].copy_from_slice(&self.regions[source].shadow[from..from + run]);
        self.regions[target].shadow[to..to + run].copy_from_slice(&entries[..run]);
        (to..to + run).for_each(|index| self.check_page(target, index, "after a copy through the kernel"));
    }

    fn fork(&mut self) -> io::Result<()> {
        while self.children.len() >= 2 {
            self.reap(true)?;
        }
        self.reap(false)?;
        let deep = self.rng.chance(4);
        let all = self.rng.chance(8);
        self.totals.forks += 1;
        let pid = os::fork(|| self.child(all, deep))?;
        self.note_operation("fork", 0, 0);
        self.children.push(pid);
        // The parent goes on at once; the child must see the old contents.
        self.write_run();
        Ok(())
    }

    /// In the child: no allocation. Other threads' regions are in an unknown state and are left alone.
    fn child(&mut self, all: bool, deep: bool) -> i32 {
        os::alarm(CHILD_LIMIT_SECONDS);
        for at in 0..self.regions.len() {
            for index in 0..self.regions[at].shadow.len() {
                if all || self.rng.chance(32) {
                    self.check_page(at, index, "in a forked child");
                }
            }
        }
        for _ in 0..8 {
            self.write_run();
            self.store_tail();
        }
        let mut code = 0;
        if deep {
            let grandchild = os::fork(|| {
                (0..16).for_each(|_| self.check_run());
                0
            });
            code = match grandchild.and_then(|pid| os::wait(pid, true)) {
                Ok(Some(Ended::Code(0))) => 0,
                _ => 1,
            };
        }
        (0..32).for_each(|_| self.check_run());
        code
    }

    fn reap(&mut self, block: bool) -> io::Result<()> {
        let Some(pid) = self.children.first().copied() else { return Ok(()) };
        match os::wait(pid, block)? {
            None => Ok(()),
            Some(Ended::Code(0)) => {
                self.children.remove(0);
                Ok(())
            }
            Some(other) => {
                os::write_stderr(format_args!(
                    "memspill-workload mutate: thread {} operation {}: forked child {pid} ended with \
                     {other:?}\n",
                    self.id, self.totals.ops
                ));
                os::exit_now(1)
            }
        }
    }
}

/// The process that grows and shrinks the break. No allocation once it has begun.
fn break_worker(common: Common, quota: usize, end: Instant, ops: u64) -> i32 {
    let Ok(mut heap) = Break::new() else { return 3 };
    let seed = common.seed ^ 0xb4ea;
    let contents = if common.contents == Contents::Zero { Contents::Half } else { common.contents };
    let mut rng = Rng::new(seed, 0);
    // In a mapping of its own, not malloc's.
    let Ok(shadow_map) = Mapping::new(quota.div_ceil(WORDS), Huge::Never) else { return 3 };
    let shadow = |index: usize| &shadow_map.page(index / WORDS)[index % WORDS];
    let mut number = 0u32;
    let check = |heap: &Break, index: usize, doing: &str| {
        let entry = Entry { stamp: shadow(index).load(Relaxed) as u32, tail: 0 };
        if let Some((word, expected)) = find_wrong(heap.page(index), contents, seed, 0, entry) {
            let page = heap.page(index);
            let stamp = Stamp::new(contents, seed, 0, entry.stamp);
            let mut mismatch = stamp.mismatch(page, word, page[word].load(Relaxed));
            mismatch.expected = expected;
            os::write_stderr(format_args!(
                "memspill-workload mutate: in the break: {mismatch}; while: {doing}\n"
            ));
            os::exit_now(1);
        }
    };
    let mut done = 0u64;
    while Instant::now() < end && done < ops {
        done += 1;
        let have = heap.pages();
        match rng.below(16) {
            0 => {
                let wanted = rng.between(have.min(quota), quota.min(have + 512));
                if heap.resize(wanted) {
                    (have..wanted).for_each(|index| check(&heap, index, "the heap grew"));
                }
            }
            1 => {
                let wanted = rng.between(have - have.min(128), have);
                if heap.resize(wanted) {
                    (wanted..have).for_each(|index| shadow(index).store(0, Relaxed));
                }
            }
            2 if have > 0 => {
                let from = rng.below(have);
                let run = rng.between(1, (have - from).min(MAX_RUN));
                heap.dont_need(from, run);
                (from..from + run).for_each(|index| shadow(index).store(0, Relaxed));
            }
            kind if have > 0 => {
                let from = rng.below(have);
                for index in from..(from + rng.between(1, MAX_RUN)).min(have) {
                    check(&heap, index, "a random look");
                    if kind % 2 == 0 {
                        number = number % (LAZY - 1) + 1;
                        Stamp::new(contents, seed, 0, number).fill(heap.page(index));
                        shadow(index).store(u64::from(number), Relaxed);
                    }
                }
            }
            _ => {}
        }
    }
    (0..heap.pages()).for_each(|index| check(&heap, index, "the last look at the heap"));
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker() -> Worker {
        let common = Common {
            seed: 3,
            contents: Contents::Half,
            check: crate::contents::Check::Full,
            huge: Huge::Never,
        };
        let modes: Vec<Mode> = ALL_MODES.split(',').filter_map(Mode::parse).collect();
        Worker::new(0, common, 512, &modes).unwrap()
    }

    #[test]
    fn natively_no_page_is_bad() {
        let totals = worker().work_until(Instant::now() + Duration::from_secs(20), 20_000).unwrap();
        assert_eq!(totals.ops, 20_000);
        assert!(totals.moved > 20 && totals.checked > 10_000, "{} {}", totals.moved, totals.checked);
    }

    #[test]
    fn a_changed_word_is_seen() {
        let mut worker = worker();
        worker.create().unwrap();
        worker.write_page(0, 1);
        worker.store_tail();
        let entry = worker.regions[0].shadow[1];
        let page = worker.regions[0].map.page(1);
        assert!(find_wrong(page, worker.contents, worker.seed, 0, entry).is_none());
        for index in [0, 1, 100, 300, WORDS - 1] {
            let word = page[index].fetch_xor(1 << 40, Relaxed);
            assert_eq!(find_wrong(page, worker.contents, worker.seed, 0, entry).map(|w| w.0), Some(index));
            page[index].store(word, Relaxed);
        }
    }
}
