//! Many short processes, in the shape of a build of the kernel: for each of `--count` jobs a driver is
//! executed, which executes a compiler and then an assembler. They are this program, executed anew; each
//! takes heap, touches it, goes back to what it took before, and exits.
//!
//! ```text
//!   compile -j 8 ─┬─ driver ─┬─ compiler    half to one and a half of --size
//!                 │          └─ assembler   an eighth of that
//!                 ├─ driver …
//! ```
//!
//! How much a job takes follows from the seed and its number, so that every run with a seed does the same
//! work. The heap grows by malloc in steps of 64 KiB, and for each page taken two earlier ones are looked at:
//! recent ones more often.

use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::{io, thread};

use crate::args::{Args, Common};
use crate::contents::Stamp;
use crate::os::{Allocated, PAGE};
use crate::report::{Failure, Meter, Outcome, expect};
use crate::rng::Rng;

pub const USAGE: &str = "[-j N (jobs at once; default: the CPUs)] [--count 64 (jobs in all)] [--size 24M \
    (heap of a compiler, on average)]";

const STEP: usize = 16;
const LOOKS: usize = 2 * STEP;

/// The number of this one among a job's three processes.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Driver,
    Compiler,
    Assembler,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Driver => "driver",
            Part::Compiler => "compiler",
            Part::Assembler => "assembler",
        }
    }
}

struct Build {
    common: Common,
    pages: usize,
    /// What this program calls itself by: none, or the subcommand of a larger one.
    prefix: &'static [&'static str],
}

pub fn run(args: &mut Args) -> Outcome {
    let prefix = args.prefix;
    let common = args.common()?;
    let pages = args.pages("size", "24M")?;
    let at_once = args.at_least_one("j", thread::available_parallelism().map_or(1, |n| n.get()))?;
    let count = args.at_least_one("count", 64)? as u64;
    let part = args.text("part", "");
    let job: u64 = args.number("job", 0)?;
    args.finish()?;
    let build = Build { common, pages, prefix };
    match part.as_str() {
        "" => run_jobs(&build, at_once, count),
        "driver" => drive(&build, job),
        "compiler" => use_heap(&build, job, Part::Compiler),
        "assembler" => use_heap(&build, job, Part::Assembler),
        _ => Err(Failure::Usage(format!("--part: '{part}' is not driver, compiler or assembler"))),
    }
}

fn run_jobs(build: &Build, at_once: usize, count: u64) -> Outcome {
    let next = AtomicU64::new(0);
    let failed: Mutex<Option<Failure>> = Mutex::new(None);
    let meter = Meter::start();
    thread::scope(|scope| {
        for _ in 0..at_once.min(count as usize) {
            scope.spawn(|| {
                loop {
                    let job = next.fetch_add(1, Relaxed);
                    if job >= count {
                        return;
                    }
                    if let Err(failure) = run_part(build, job, Part::Driver) {
                        next.store(count, Relaxed); // no new jobs
                        failed.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(failure);
                    }
                }
            });
        }
    });
    if let Some(failure) = failed.into_inner().unwrap_or_else(|e| e.into_inner()) {
        return Err(failure);
    }
    let pages: usize = (0..count)
        .map(|job| heap_pages(build, job, Part::Compiler) + heap_pages(build, job, Part::Assembler))
        .sum();
    let mut report = meter.report();
    report.rate("jobs", count);
    report.rate("pages", pages as u64);
    report.count("processes", 3 * count);
    report.text("contents", build.common.contents.name());
    Ok(report)
}

/// Executes a part of a job and waits for it.
fn run_part(build: &Build, job: u64, part: Part) -> Result<(), Failure> {
    let Common { seed, contents, check, .. } = build.common;
    let ended = Command::new("/proc/self/exe")
        .args(build.prefix)
        .args(["compile", "--part", part.name(), "--job", &job.to_string()])
        .args(["--seed", &seed.to_string(), "--size", &(build.pages * PAGE).to_string()])
        .args(["--contents", contents.name(), "--check", check.name()])
        .stdout(std::process::Stdio::null())
        .status();
    match ended {
        Ok(status) if status.success() => Ok(()),
        other => Err(Failure::Bad(format!("job {job}: the {} {}", part.name(), ending(other)))),
    }
}

fn ending(ended: io::Result<ExitStatus>) -> String {
    match ended {
        Ok(status) => format!("ended with {status}"),
        Err(error) => format!("did not start: {error}"),
    }
}

fn drive(build: &Build, job: u64) -> Outcome {
    let meter = Meter::start();
    run_part(build, job, Part::Compiler)?;
    run_part(build, job, Part::Assembler)?;
    Ok(meter.report())
}

/// A whole number of steps.
fn heap_pages(build: &Build, job: u64, part: Part) -> usize {
    let pages = match part {
        Part::Driver => 0,
        Part::Compiler => {
            let half = build.pages / 2;
            Rng::new(build.common.seed, job).between(half, half + build.pages)
        }
        Part::Assembler => heap_pages(build, job, Part::Compiler) / 8,
    };
    pages.next_multiple_of(STEP)
}

fn use_heap(build: &Build, job: u64, part: Part) -> Outcome {
    let Common { contents, check, .. } = build.common;
    let pages = heap_pages(build, job, part);
    let seed = build.common.seed ^ ((job + 1) << 1) ^ u64::from(part == Part::Assembler);
    let stamp = |index: usize| Stamp::new(contents, seed, index as u64, 1);
    let mut rng = Rng::new(seed, 1);
    let mut heap: Vec<Allocated> = Vec::with_capacity(pages / STEP);
    let meter = Meter::start();
    while heap.len() * STEP < pages {
        let first = heap.len() * STEP;
        let piece = Allocated::new(STEP)?;
        (0..STEP).for_each(|at| stamp(first + at).fill(piece.page(at)));
        heap.push(piece);
        for _ in 0..LOOKS {
            // The smaller of two draws: recent pages more often than old ones.
            let back = rng.below(first + STEP).min(rng.below(first + STEP));
            let index = first + STEP - 1 - back;
            expect(
                stamp(index).check(heap[index / STEP].page(index % STEP), check, 0),
                "a compiler, looking back",
            );
        }
    }
    let mut report = meter.report();
    report.rate("pages", pages as u64);
    report.count("heap_bytes", (pages * PAGE) as u64);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::{Check, Contents};
    use crate::os::Huge;

    #[test]
    fn the_seed_decides_how_much_a_job_takes() {
        let build = |seed| Build {
            common: Common { seed, contents: Contents::Half, check: Check::Full, huge: Huge::Never },
            pages: 6144,
            prefix: &[],
        };
        let taken =
            |seed| (0..200).map(|job| heap_pages(&build(seed), job, Part::Compiler)).collect::<Vec<_>>();
        assert_eq!(taken(1), taken(1));
        assert_ne!(taken(1), taken(2));
        assert!(taken(1).iter().all(|pages| (3072..=9216 + STEP).contains(pages) && pages % STEP == 0));
        let mean = taken(1).iter().sum::<usize>() / 200;
        assert!((5500..6800).contains(&mean), "{mean}");
    }
}
