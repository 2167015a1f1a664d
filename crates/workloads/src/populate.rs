//! The first write of every page.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::args::{Args, Common};
use crate::contents::Stamp;
use crate::histogram::Histogram;
use crate::os::Mapping;
use crate::report::{Meter, Outcome, expect};

pub const USAGE: &str = "--size S [--no-verify]";

pub fn run(args: &mut Args) -> Outcome {
    let common = args.common()?;
    let pages = args.pages("size", "64M")?;
    let verify = !args.flag("no-verify");
    args.finish()?;

    let map = Mapping::new(pages, common.huge)?;
    let mut latency = Histogram::default();
    let meter = Meter::start();
    for index in 0..pages {
        let page = map.page(index);
        let stamp = Stamp::new(common.contents, common.seed, index as u64, 1);
        let start = Instant::now();
        page[0].store(stamp.word(0), Relaxed);
        latency.add(start.elapsed().as_nanos() as u64);
        stamp.fill(page);
    }
    let mut report = meter.report();
    if verify {
        check_all(&map, &common, "reading back what was populated");
    }
    report.rate("pages", pages as u64);
    report.latency(&latency);
    report.text("contents", common.contents.name());
    Ok(report)
}

/// Writes version 1 of every page.
pub fn populate(map: &Mapping, common: &Common) {
    for index in 0..map.pages() {
        Stamp::new(common.contents, common.seed, index as u64, 1).fill(map.page(index));
    }
}

fn check_all(map: &Mapping, common: &Common, doing: &str) {
    for index in 0..map.pages() {
        let stamp = Stamp::new(common.contents, common.seed, index as u64, 1);
        expect(stamp.check(map.page(index), common.check, 0), doing);
    }
}
