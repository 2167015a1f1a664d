//! Sequential swap-out of a region, then sequential swap-in of it, each timed by itself.
//!
//! ```text
//!   fill        every page of the region is written
//!   out         --pageout: MADV_PAGEOUT of it all. Else: --push bytes of other memory are written, which has
//!               to take its place, and are then unmapped
//!   in          one touch of each page of the region, in order
//! ```
//!
//! MADV_PAGEOUT goes to the swap of the kernel, or to memspill's; without either nothing leaves. `--push`
//! wants a memory limit between `--size` and `--push`. Pages that are left in memory after the out phase are
//! counted (`resident_pages`): they cost nothing to bring in.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::args::Args;
use crate::contents::Stamp;
use crate::histogram::Histogram;
use crate::os::{self, Mapping};
use crate::populate::populate;
use crate::report::{Meter, Outcome, expect};

pub const USAGE: &str = "--size S [--push S (default: as --size; the limit must be below it) | --pageout]";

pub fn run(args: &mut Args) -> Outcome {
    let common = args.common()?;
    let pages = args.pages("size", "64M")?;
    let pageout = args.flag("pageout");
    let push = if pageout { 0 } else { args.pages_or("push", pages)? }; // with both, finish() refuses --push
    args.finish()?;

    let map = Mapping::new(pages, common.huge)?;
    let meter = Meter::start();
    populate(&map, &common);
    let filled = meter.seconds();
    let out_pages = if pageout {
        map.advise(0, pages, os::PAGEOUT)?;
        pages
    } else {
        populate(&Mapping::new(push, common.huge)?, &common.of_process(1));
        push
    };
    let out = meter.seconds() - filled;
    let resident = map.resident_pages()?;

    let mut latency = Histogram::default();
    let before = meter.seconds();
    for index in 0..pages {
        let page = map.page(index);
        let start = Instant::now();
        black_box(page[0].load(Relaxed));
        latency.add(start.elapsed().as_nanos() as u64);
        let stamp = Stamp::new(common.contents, common.seed, index as u64, 1);
        expect(stamp.check(page, common.check, 0), "swapping in, in order");
    }
    let back = meter.seconds() - before;

    let mut report = meter.report();
    report.fraction("fill_s", filled);
    for (name, count, seconds) in [("out_pages", out_pages, out), ("in_pages", pages, back)] {
        report.count(name, count as u64);
        report.fraction(&format!("{name}_per_s"), count as f64 / seconds.max(1e-9));
    }
    report.count("resident_pages", resident as u64);
    report.latency(&latency);
    report.text("contents", common.contents.name());
    Ok(report)
}
