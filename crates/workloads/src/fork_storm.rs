//! Forks while memory is in use: parent and children write and check, some children outlive their parent, and
//! threads of the parent go on touching memory while it forks.
//!
//! The main thread's pages (even numbers) are at rest when it forks, so a child must find exactly their
//! versions. The threads' pages (odd numbers) may be caught in the middle of a write: then a child must find
//! the start of version v followed by the rest of version v-1, because stores are seen in order.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use crate::args::{Args, Common};
use crate::contents::Stamp;
use crate::os::{self, Ended, Mapping, Page, Pid, WORDS};
use crate::populate::populate;
use crate::report::{Failure, Meter, Outcome, expect};
use crate::rng::Rng;

pub const USAGE: &str = "--size S [--forks 200] [--live K] [--threads T]";

const CHILD_LIMIT_SECONDS: u32 = 300;

pub fn run(args: &mut Args) -> Outcome {
    let common = args.common()?;
    let pages = args.pages("size", "64M")?;
    let forks: usize = args.number("forks", 200)?;
    let live: usize = args.number("live", 4)?;
    let threads: usize = args.number("threads", 2)?;
    args.finish()?;
    if live == 0 || pages < 4 + 2 * threads {
        return Err(Failure::Usage("--live needs 1 or more, and each thread a page".into()));
    }
    let map = Mapping::new(pages, common.huge)?;
    populate(&map, &common);
    let stop = AtomicBool::new(false);
    let meter = Meter::start();
    let outcome = thread::scope(|scope| {
        for number in 0..threads {
            let (map, stop) = (&map, &stop);
            scope.spawn(move || rewrite(map, common, number, threads, stop));
        }
        let outcome = storm(&map, common, forks, live);
        stop.store(true, Relaxed);
        outcome
    });
    let orphans = outcome?;
    let mut report = meter.report();
    report.rate("forks", forks as u64);
    report.count("orphans", orphans);
    Ok(report)
}

/// A thread's odd pages: each rewrite is the next version, in the order of the words.
fn rewrite(map: &Mapping, common: Common, number: usize, threads: usize, stop: &AtomicBool) {
    let own = (map.pages() / 2 - number).div_ceil(threads);
    let mut versions = vec![1u32; own];
    let mut rng = Rng::new(common.seed, 1000 + number as u64);
    while !stop.load(Relaxed) {
        let pick = rng.below(own);
        let index = 2 * (number + pick * threads) + 1;
        let stamp = |version| Stamp::new(common.contents, common.seed, index as u64, version);
        expect(stamp(versions[pick]).check_from(map.page(index), 0), "a thread beside the forks");
        versions[pick] += 1;
        stamp(versions[pick]).fill(map.page(index));
    }
}

fn storm(map: &Mapping, common: Common, forks: usize, live: usize) -> Result<u64, Failure> {
    let even = map.pages().div_ceil(2);
    let mut versions = vec![1u32; even];
    let mut rng = Rng::new(common.seed, 0);
    let mut children: Vec<Pid> = Vec::with_capacity(live);
    let (mut reports, writer) = std::io::pipe()?;
    let mut orphans = 0;
    for number in 0..forks {
        let orphan = number % 3 == 2;
        let everything = number % 16 == 0;
        let seed = common.seed ^ (number as u64) << 20;
        let child = || {
            os::alarm(CHILD_LIMIT_SECONDS);
            let work = || child_work(map, common, &versions, seed, everything);
            if !orphan {
                work();
                return 0;
            }
            // Fork again and leave: the grandchild goes on without a parent and reports through the pipe.
            let outer = os::fork(|| {
                os::alarm(CHILD_LIMIT_SECONDS);
                work();
                i32::from(!os::write_fd(writer.as_raw_fd(), b"k"))
            });
            i32::from(outer.is_err()) * 3
        };
        children.push(os::fork(child)?);
        orphans += u64::from(orphan);
        // The parent goes on writing while its children look at the old versions.
        for _ in 0..64 {
            let pick = rng.below(even);
            let stamp = |version| Stamp::new(common.contents, common.seed, 2 * pick as u64, version);
            expect(stamp(versions[pick]).check_from(map.page(2 * pick), 0), "the parent, after a fork");
            versions[pick] += 1;
            stamp(versions[pick]).fill(map.page(2 * pick));
        }
        while children.len() >= live {
            reap(children.remove(0))?;
        }
    }
    for child in children {
        reap(child)?;
    }
    for (pick, version) in versions.iter().enumerate() {
        let stamp = Stamp::new(common.contents, common.seed, 2 * pick as u64, *version);
        expect(stamp.check_from(map.page(2 * pick), 0), "the parent, after all forks");
    }
    drop(writer);
    let mut text = Vec::new();
    reports.read_to_end(&mut text)?; // ends when the last orphan has closed the pipe
    if text.len() as u64 != orphans {
        return Err(Failure::Bad(format!("{} of {orphans} orphans reported", text.len())));
    }
    Ok(orphans)
}

fn reap(pid: Pid) -> Result<(), Failure> {
    match os::wait(pid, true)? {
        Some(Ended::Code(0)) => Ok(()),
        other => Err(Failure::Bad(format!("child {pid} ended with {other:?}"))),
    }
}

/// In the child; no allocation here.
fn child_work(map: &Mapping, common: Common, versions: &[u32], seed: u64, everything: bool) {
    let mut rng = Rng::new(seed, 1);
    let look = |index: usize| {
        let page = map.page(index);
        if index.is_multiple_of(2) {
            let stamp = Stamp::new(common.contents, common.seed, index as u64, versions[index / 2]);
            expect(stamp.check_from(page, 0), "a child, at a page that was at rest");
        } else {
            check_torn(page, common, index);
        }
    };
    if everything {
        (0..map.pages()).for_each(look);
    } else {
        (0..512).for_each(|_| look(rng.below(map.pages())));
    }
    // Its own writes must not be seen by anyone else, and must stay.
    let first = rng.below(map.pages());
    let own = |index: usize| Stamp::new(common.contents, seed, index as u64, 7);
    let run = || (0..64).map(|n| (first + n * 17) % map.pages());
    run().for_each(|index| own(index).fill(map.page(index)));
    (0..256).map(|_| rng.below(map.pages())).filter(|i| !run().any(|mine| mine == *i)).for_each(look);
    run().for_each(|index| {
        expect(own(index).check_from(map.page(index), 0), "a child, at a page that it wrote")
    });
}

/// The start of version v, then the rest of version v-1.
fn check_torn(page: &Page, common: Common, index: usize) {
    if common.contents == crate::contents::Contents::Zero {
        return;
    }
    let version = (page[1].load(Relaxed) >> 32) as u32;
    let new = Stamp::new(common.contents, common.seed, index as u64, version);
    let split = (0..WORDS).find(|i| page[*i].load(Relaxed) != new.word(*i));
    if let Some(split) = split {
        let old = Stamp::new(common.contents, common.seed, index as u64, version.wrapping_sub(1));
        if split < 2 || version < 2 {
            expect(Err(new.mismatch(page, split, page[split].load(Relaxed))), "a child, at a page in use");
        }
        expect(old.check_from(page, split), "a child, at the old rest of a page in use");
    }
}
