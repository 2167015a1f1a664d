//! Jobs that read one memory, shared by all of them: dd's read of a tmpfs file (one job, linear), and fio's
//! mmap reads by 16 jobs, uniform or zipf 1.2.
//!
//! The memory is MAP_SHARED | MAP_ANONYMOUS: an object of tmpfs without a name. With `--inherited` it is
//! private and inherited by fork instead: the jobs share its pages, and in swap their slots, by count.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::args::{Args, Common};
use crate::contents::Stamp;
use crate::crew;
use crate::distribution::Pattern;
use crate::histogram::Histogram;
use crate::os::Mapping;
use crate::populate::populate;
use crate::report::{Outcome, expect};
use crate::rng::Rng;

pub const USAGE: &str = "--size S (of all) --seconds N [--jobs 16] [--ops N (of each job)] [--pattern \
    uniform|zipf|linear] [--theta 1.2 (zipf)] [--inherited]   (private memory, inherited by \
    fork, instead of MAP_SHARED)";

pub fn run(args: &mut Args) -> Outcome {
    let common = args.common()?;
    let pages = args.pages("size", "64M")?;
    let jobs = args.at_least_one("jobs", 16)?;
    let seconds = args.seconds("seconds", 5.0)?;
    let ops: u64 = args.number("ops", u64::MAX)?;
    let pattern = Pattern::from_args(args, "uniform", pages)?;
    let is_inherited = args.flag("inherited");
    args.finish()?;

    let map = if is_inherited { Mapping::new(pages, common.huge)? } else { Mapping::shared(pages)? };
    populate(&map, &common);
    let work = |job: &usize| read(&map, &common, pattern, (*job, jobs), seconds, ops).to_bytes();
    let (mut report, answers) = crew::together(jobs, Histogram::BYTES, Ok, work)?;
    let latency = Histogram::sum(&answers);
    report.rate("ops", latency.total());
    report.latency(&latency);
    report.text("pattern", pattern.name());
    report.text("memory", if is_inherited { "inherited" } else { "shared" });
    report.text("contents", common.contents.name());
    Ok(report)
}

/// Job `number` of `of`. Linear jobs start at their share of the memory, as each of fio's has a file of its
/// own.
fn read(
    map: &Mapping,
    common: &Common,
    pattern: Pattern,
    (number, of): (usize, usize),
    seconds: f64,
    ops: u64,
) -> Histogram {
    let mut latency = Histogram::default();
    let mut rng = Rng::new(common.seed, number as u64);
    let mut picks = pattern.sampler(map.pages());
    picks.start_at(map.pages() * number / of);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    for _ in 0..ops {
        let index = picks.draw(&mut rng);
        let page = map.page(index);
        let start = Instant::now();
        black_box(page[0].load(Relaxed));
        latency.add(start.elapsed().as_nanos() as u64);
        let stamp = Stamp::new(common.contents, common.seed, index as u64, 1);
        expect(stamp.check(page, common.check, 0), "reading shared memory");
        if start >= end {
            break;
        }
    }
    latency
}
