//! Processes that take memory as fast as they can, as vm-scalability's `usemem -n N --init-time -O -y -x
//! SIZE` does: all start together, each writes its own memory, and nobody frees anything before all are done.
//! The first touch of each page is part of the time.
//!
//! `--folio` is what the kernel is asked for, not what it gives: memory aligned to that size, with
//! MADV_HUGEPAGE above 4K. /sys/kernel/mm/transparent_hugepage/hugepages-*kB/enabled decides which sizes the
//! kernel then takes.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::args::{Args, Common};
use crate::contents::Stamp;
use crate::crew;
use crate::histogram::Histogram;
use crate::os::{Huge, Mapping, PAGE};
use crate::report::{Failure, Outcome, expect};
use crate::rng::Rng;

pub const USAGE: &str = "--size S (of each process) [--processes P] [--passes N] [--random] [--folio 4K..2M \
    (alignment; above 4K huge pages are asked for)]";

#[derive(Clone, Copy)]
struct Plan {
    common: Common,
    pages: usize,
    passes: u32,
    random: bool,
}

pub fn run(args: &mut Args) -> Outcome {
    let mut common = args.common()?;
    let size = args.pages("size", "64M")?;
    let processes = args.at_least_one("processes", 1)?;
    let folio_text = args.text("folio", "");
    let folio = match folio_text.as_str() {
        "" => 1,
        _ => folio_pages(&folio_text)?,
    };
    if !folio_text.is_empty() {
        common.huge = if folio > 1 { Huge::Always } else { Huge::Never };
    }
    let plan = Plan {
        common,
        pages: size.next_multiple_of(folio),
        passes: args.at_least_one("passes", 1)? as u32,
        random: args.flag("random"),
    };
    args.finish()?;

    let prepare = |number: usize| {
        let mut plan = plan;
        plan.common = plan.common.of_process(number);
        Ok((Mapping::aligned(plan.pages, folio, plan.common.huge)?, plan))
    };
    let work = |(map, plan): &(Mapping, Plan)| {
        let start = Instant::now();
        let latency = write_all(map, plan);
        let mut answer = start.elapsed().as_secs_f64().to_le_bytes().to_vec();
        answer.extend(latency.to_bytes());
        answer
    };
    let (mut report, answers) = crew::together(processes, 8 + Histogram::BYTES, prepare, work)?;
    let pages = plan.pages as u64 * u64::from(plan.passes);
    let own_rates: f64 = answers
        .iter()
        .map(|answer| f64::from_le_bytes(answer[..8].try_into().unwrap_or_default()))
        .map(|seconds| pages as f64 * PAGE as f64 / seconds.max(1e-9) / f64::from(1 << 20))
        .sum();
    report.rate("pages", pages * processes as u64);
    report.fraction("sum_mib_per_s", own_rates);
    report.latency(&Histogram::sum(answers.iter().map(|answer| &answer[8..])));
    report.count("folio_bytes", (folio * PAGE) as u64);
    report.text("contents", common.contents.name());
    Ok(report)
}

fn folio_pages(text: &str) -> Result<usize, Failure> {
    match crate::args::parse_size(text) {
        Some(bytes) if bytes.is_power_of_two() && (PAGE..=2 << 20).contains(&bytes) => Ok(bytes / PAGE),
        _ => Err(Failure::Usage(format!("--folio: '{text}' is not a power of two from 4K to 2M"))),
    }
}

fn write_all(map: &Mapping, plan: &Plan) -> Histogram {
    let Common { contents, seed, check, .. } = plan.common;
    let mut latency = Histogram::default();
    let order = plan.random.then(|| Rng::new(seed, 0).shuffled(plan.pages));
    for pass in 1..=plan.passes {
        for step in 0..plan.pages {
            let index = order.as_ref().map_or(step, |order| order[step] as usize);
            let page = map.page(index);
            let new = Stamp::new(contents, seed, index as u64, pass);
            let start = Instant::now();
            page[0].store(new.word(0), Relaxed);
            latency.add(start.elapsed().as_nanos() as u64);
            if pass > 1 {
                // Word 0 is the page's number, the same in each pass.
                expect(
                    Stamp::new(contents, seed, index as u64, pass - 1).check(page, check, 0),
                    "writing again",
                );
            }
            new.fill(page);
        }
    }
    latency
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folios() {
        assert_eq!(folio_pages("4K").ok(), Some(1));
        assert_eq!(folio_pages("64K").ok(), Some(16));
        assert_eq!(folio_pages("2M").ok(), Some(512));
        for wrong in ["0", "2K", "12K", "4M", "x"] {
            assert!(folio_pages(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_process_has_a_seed_of_its_own() {
        let mut args = Args::parse(
            "--size 16K --processes 3 --passes 2 --random --folio 64K".split(' ').map(String::from),
        )
        .ok()
        .unwrap();
        let json = run(&mut args).ok().unwrap().json("usemem");
        assert!(json.contains("\"pages\":96,") && json.contains("\"folio_bytes\":65536"), "{json}");
    }
}
