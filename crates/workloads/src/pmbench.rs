//! Touches of 4 KiB pages after a pattern, as pmbench does: P processes of T threads, each process with its
//! share of the size. The first load or store of each touch is timed.
//!
//! Threads of a process own every T-th page, so that each can check what it reads (pmbench's share all
//! pages). All pages are written once before the clock starts, as in pmbench's warm-up.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::args::{Args, Common};
use crate::contents::Stamp;
use crate::crew;
use crate::distribution::Pattern;
use crate::histogram::Histogram;
use crate::os::{self, Mapping};
use crate::populate::populate;
use crate::report::{Failure, Outcome, expect};
use crate::rng::Rng;

pub const USAGE: &str = "--size S (of all) --seconds N [--processes P] [--threads T] [--read-percent 80] \
    [--ops N (of each thread)] [--pattern uniform|zipf|normal|linear] [--theta 1.2 (zipf)] [--stddev PAGES \
    (normal)] [--stride PAGES (linear)]";

#[derive(Clone, Copy)]
struct Plan {
    common: Common,
    pages: usize,
    threads: usize,
    seconds: f64,
    ops: u64,
    read_percent: usize,
    pattern: Pattern,
}

pub fn run(args: &mut Args) -> Outcome {
    let common = args.common()?;
    let total = args.pages("size", "64M")?;
    let processes = args.at_least_one("processes", 1)?;
    let threads = args.at_least_one("threads", 1)?;
    if total / processes < threads {
        return Err(Failure::Usage("each thread of each process needs a page: raise --size".into()));
    }
    let pages = total / processes;
    let plan = Plan {
        common,
        pages,
        threads,
        seconds: args.seconds("seconds", 5.0)?,
        ops: args.number("ops", u64::MAX)?,
        read_percent: args.percent("read-percent", 80)?,
        pattern: Pattern::from_args(args, "uniform", pages)?,
    };
    args.finish()?;

    let prepare = |number: usize| {
        let mut plan = plan;
        plan.common = plan.common.of_process(number);
        let map = Mapping::new(plan.pages, plan.common.huge)?;
        populate(&map, &plan.common);
        Ok((map, plan))
    };
    let work = |(map, plan): &(Mapping, Plan)| touch(map, plan).to_bytes();
    let (mut report, answers) = crew::together(processes, Histogram::BYTES, prepare, work)?;
    let latency = Histogram::sum(&answers);
    report.rate("ops", latency.total());
    report.latency(&latency);
    report.text("pattern", plan.pattern.name());
    report.text("contents", common.contents.name());
    Ok(report)
}

fn touch(map: &Mapping, plan: &Plan) -> Histogram {
    let barrier = Barrier::new(plan.threads);
    let mut total = Histogram::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..plan.threads)
            .map(|number| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    touch_own(map, plan, number)
                })
            })
            .collect();
        for worker in workers {
            match worker.join() {
                Ok(histogram) => total.merge(&histogram),
                Err(_) => os::exit_now(3),
            }
        }
    });
    total
}

fn touch_own(map: &Mapping, plan: &Plan, number: usize) -> Histogram {
    let Common { contents, seed, check, .. } = plan.common;
    let own = (plan.pages - number).div_ceil(plan.threads);
    let mut versions = vec![1u32; own];
    let mut rng = Rng::new(seed, number as u64);
    let mut picks = plan.pattern.of_a_share(plan.threads).sampler(own);
    let mut latency = Histogram::default();
    let end = Instant::now() + Duration::from_secs_f64(plan.seconds);
    let mut left = plan.ops;
    while left > 0 {
        let pick = picks.draw(&mut rng);
        let index = number + pick * plan.threads;
        let page = map.page(index);
        let old = Stamp::new(contents, seed, index as u64, versions[pick]);
        let start = if rng.below(100) < plan.read_percent {
            let start = Instant::now();
            black_box(page[0].load(Relaxed));
            latency.add(start.elapsed().as_nanos() as u64);
            expect(old.check(page, check, 0), "reading after a pattern");
            start
        } else {
            versions[pick] += 1;
            let new = Stamp::new(contents, seed, index as u64, versions[pick]);
            let start = Instant::now();
            page[1].store(new.word(1), Relaxed);
            latency.add(start.elapsed().as_nanos() as u64);
            expect(old.check(page, check, 2), "writing after a pattern");
            new.fill(page);
            start
        };
        if start >= end {
            break;
        }
        left -= 1;
    }
    latency
}
