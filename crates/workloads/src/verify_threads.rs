//! Threads that rewrite pages with new versions and check every page they wrote before. Neighbouring pages
//! belong to different threads, so that batches and readahead of one cross those of the others.

use std::thread;
use std::time::{Duration, Instant};

use crate::args::{Args, Common};
use crate::contents::{Check, Stamp};
use crate::os::{self, Mapping};
use crate::report::{Failure, Meter, Outcome, expect};
use crate::rng::Rng;

pub const USAGE: &str = "--size S [--threads 16] [--seconds N]";

pub fn run(args: &mut Args) -> Outcome {
    let common = args.common()?;
    let pages = args.pages("size", "64M")?;
    let threads: usize = args.number("threads", 16)?;
    let seconds: f64 = args.number("seconds", 5.0)?;
    args.finish()?;
    if threads == 0 || pages < threads {
        return Err(Failure::Usage("each thread needs a page".into()));
    }
    let map = Mapping::new(pages, common.huge)?;
    let meter = Meter::start();
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut checked = 0;
    thread::scope(|scope| {
        let map = &map;
        let workers: Vec<_> = (0..threads)
            .map(|n| scope.spawn(move || write_and_check(map, common, n, threads, end)))
            .collect();
        for worker in workers {
            checked += worker.join().unwrap_or_else(|_| os::exit_now(3));
        }
    });
    let mut report = meter.report();
    report.rate("pages", checked);
    report.count("threads", threads as u64);
    Ok(report)
}

fn write_and_check(map: &Mapping, common: Common, number: usize, threads: usize, end: Instant) -> u64 {
    let own = (map.pages() - number).div_ceil(threads);
    let mut versions = vec![0u32; own];
    let mut rng = Rng::new(common.seed, number as u64);
    let stamp = |pick: usize, version: u32| {
        let index = (number + pick * threads) as u64;
        Stamp::new(common.contents, common.seed, index, version)
    };
    let check = |pick: usize, version: u32, doing: &str| {
        let page = map.page(number + pick * threads);
        if version == 0 {
            let zero = Stamp::new(crate::contents::Contents::Zero, 0, (number + pick * threads) as u64, 0);
            expect(zero.check(page, Check::Full, 0), "a page that was never written");
        } else {
            expect(stamp(pick, version).check(page, Check::Full, 0), doing);
        }
    };
    let mut checked = 0;
    while Instant::now() < end {
        // Half of the writes are runs in address order, half are scattered.
        let (first, run) = if rng.chance(16) { (rng.below(own), 16) } else { (rng.below(own), 1) };
        for (pick, version) in versions.iter_mut().enumerate().skip(first).take(run) {
            check(pick, *version, "before a rewrite");
            *version += 1;
            stamp(pick, *version).fill(map.page(number + pick * threads));
            checked += 1;
        }
        let pick = rng.below(own);
        check(pick, versions[pick], "a random look back");
        checked += 1;
    }
    for (pick, version) in versions.iter().enumerate() {
        check(pick, *version, "the last look at everything");
        checked += 1;
    }
    checked
}
