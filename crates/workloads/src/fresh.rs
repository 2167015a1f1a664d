//! Map, write every page, unmap, again: what a program pays for memory that is never short.

use crate::args::Args;
use crate::contents::Stamp;
use crate::os::{Huge, Mapping};
use crate::report::{Meter, Outcome, expect};

pub const USAGE: &str = "--size S [--loops N]   (--thp: the kernel's own policy on huge pages)";

pub fn run(args: &mut Args) -> Outcome {
    let common = args.common()?;
    let pages = args.pages("size", "256M")?;
    let loops: u32 = args.number("loops", 4)?;
    args.finish()?;
    let meter = Meter::start();
    for round in 1..=loops {
        let map = Mapping::new(pages, common.huge)?;
        let stamp = |index: usize| Stamp::new(common.contents, common.seed, index as u64, round);
        (0..pages).for_each(|index| stamp(index).fill(map.page(index)));
        // A sample of what was written: this measures the first touch, not the check.
        for index in (0..pages).step_by(64) {
            expect(stamp(index).check(map.page(index), common.check, 0), "reading fresh memory");
        }
    }
    let mut report = meter.report();
    report.rate("pages", u64::from(loops) * pages as u64);
    report.count("huge", u64::from(common.huge != Huge::Never));
    Ok(report)
}
