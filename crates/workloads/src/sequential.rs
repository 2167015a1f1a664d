//! Passes over all pages in address order; each page is touched once, and the touch is what is timed.
//!
//! `--after-random` touches pages at random before the first pass, as many times as there are pages.
//! Swapped-out pages then lie in swap in that order, not in the order of their addresses.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::args::Args;
use crate::contents::Stamp;
use crate::histogram::Histogram;
use crate::os::Mapping;
use crate::populate::populate;
use crate::report::{Meter, Outcome, expect};
use crate::rng::Rng;

pub const USAGE: &str = "--size S [--passes N] [--write] [--after-random]";

pub fn run(args: &mut Args) -> Outcome {
    let common = args.common()?;
    let pages = args.pages("size", "64M")?;
    let passes: u32 = args.number("passes", 2)?;
    let write = args.flag("write");
    let after_random = args.flag("after-random");
    args.finish()?;

    let map = Mapping::new(pages, common.huge)?;
    populate(&map, &common);
    if after_random {
        let mut rng = Rng::new(common.seed, 0);
        for _ in 0..pages {
            let index = rng.below(pages);
            let page = map.page(index);
            black_box(page[0].load(Relaxed));
            let stamp = Stamp::new(common.contents, common.seed, index as u64, 1);
            expect(stamp.check(page, common.check, 0), "reading at random");
        }
    }
    let mut latency = Histogram::default();
    let mut version = 1;
    let meter = Meter::start();
    for _ in 0..passes {
        for index in 0..pages {
            let page = map.page(index);
            let old = Stamp::new(common.contents, common.seed, index as u64, version);
            let start = Instant::now();
            if write {
                let new = Stamp::new(common.contents, common.seed, index as u64, version + 1);
                page[1].store(new.word(1), Relaxed);
                latency.add(start.elapsed().as_nanos() as u64);
                expect(old.check(page, common.check, 2), "writing in order");
                new.fill(page);
            } else {
                black_box(page[0].load(Relaxed));
                latency.add(start.elapsed().as_nanos() as u64);
                expect(old.check(page, common.check, 0), "reading in order");
            }
        }
        version += u32::from(write);
    }
    let mut report = meter.report();
    report.rate("pages", u64::from(passes) * pages as u64);
    report.latency(&latency);
    report.text("contents", common.contents.name());
    Ok(report)
}
