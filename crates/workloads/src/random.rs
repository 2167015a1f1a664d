//! Random touches of 4 KiB pages, as pmbench does: P processes of T threads, each with its share of the size.
//! Threads of a process own every T-th page, so that each can check what it reads. All start together.

use std::hint::black_box;
use std::io::{Read, Write};
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::args::{Args, Common};
use crate::contents::Stamp;
use crate::histogram::Histogram;
use crate::os::{self, Ended, Mapping};
use crate::populate::populate;
use crate::report::{Failure, Meter, Outcome, expect};
use crate::rng::Rng;

pub const USAGE: &str = "--size S --seconds N [--read-percent R] [--processes P] [--threads T] [--ops N]";

#[derive(Clone, Copy)]
struct Plan {
    common: Common,
    pages: usize,
    threads: usize,
    seconds: f64,
    ops: u64,
    read_percent: usize,
}

pub fn run(args: &mut Args) -> Outcome {
    let common = args.common()?;
    let total = args.pages("size", "64M")?;
    let processes: usize = args.number("processes", 1)?;
    let threads: usize = args.number("threads", 1)?;
    if processes == 0 || threads == 0 || total / processes < threads {
        return Err(Failure::Usage("each thread of each process needs a page".into()));
    }
    let plan = Plan {
        common,
        pages: total / processes,
        threads,
        seconds: args.number("seconds", 5.0)?,
        ops: args.number("ops", u64::MAX)?,
        read_percent: args.number("read-percent", 80)?,
    };
    args.finish()?;

    let mut latency = Histogram::default();
    let report = if processes == 1 {
        let map = Mapping::new(plan.pages, common.huge)?;
        populate(&map, &common);
        let meter = Meter::start();
        latency.merge(&touch(&map, &plan));
        meter.report()
    } else {
        many(&plan, processes, &mut latency)?
    };
    let mut report = report;
    report.rate("ops", latency.total());
    report.latency(&latency);
    report.text("contents", common.contents.name());
    Ok(report)
}

/// Each child populates, says that it is ready, waits until all are, and sends its histogram.
fn many(plan: &Plan, processes: usize, latency: &mut Histogram) -> Result<crate::report::Report, Failure> {
    let (mut ready, ready_writer) = std::io::pipe()?;
    let (go, go_writer) = std::io::pipe()?;
    let mut go_writer = Some(go_writer);
    let mut children = Vec::new();
    for process in 0..processes {
        let (result, result_writer) = std::io::pipe()?;
        let mut plan = *plan;
        plan.common.seed = plan.common.seed.wrapping_add(process as u64 * 1_000_003);
        let pid = os::fork(|| {
            drop(go_writer.take()); // else the end that all wait for would never be seen
            let outcome = (|| -> std::io::Result<()> {
                let map = Mapping::new(plan.pages, plan.common.huge)?;
                populate(&map, &plan.common);
                (&ready_writer).write_all(b"r")?;
                (&go).read_to_end(&mut Vec::new())?;
                let bytes = touch(&map, &plan).to_bytes();
                (&result_writer).write_all(&bytes)
            })();
            i32::from(outcome.is_err()) * 3
        })?;
        children.push((pid, result));
    }
    drop(ready_writer);
    let mut answers = vec![0; processes];
    ready.read_exact(&mut answers).map_err(|_| Failure::Bad("a process died while populating".into()))?;
    let meter = Meter::start();
    drop(go_writer);
    for (pid, mut result) in children {
        let mut bytes = vec![0; Histogram::default().to_bytes().len()];
        let got = result.read_exact(&mut bytes);
        let ended = os::wait(pid, true)?;
        match (got, ended, Histogram::from_bytes(&bytes)) {
            (Ok(()), Some(Ended::Code(0)), Some(histogram)) => latency.merge(&histogram),
            _ => return Err(Failure::Bad(format!("process {pid} ended with {ended:?}"))),
        }
    }
    Ok(meter.report())
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
    let mut latency = Histogram::default();
    let end = Instant::now() + Duration::from_secs_f64(plan.seconds);
    let mut left = plan.ops;
    while left > 0 {
        let pick = rng.below(own);
        let index = number + pick * plan.threads;
        let page = map.page(index);
        let old = Stamp::new(contents, seed, index as u64, versions[pick]);
        let start = if rng.below(100) < plan.read_percent {
            let start = Instant::now();
            black_box(page[0].load(Relaxed));
            latency.add(start.elapsed().as_nanos() as u64);
            expect(old.check(page, check, 0), "reading at random");
            start
        } else {
            versions[pick] += 1;
            let new = Stamp::new(contents, seed, index as u64, versions[pick]);
            let start = Instant::now();
            page[1].store(new.word(1), Relaxed);
            latency.add(start.elapsed().as_nanos() as u64);
            expect(old.check(page, check, 2), "writing at random");
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
