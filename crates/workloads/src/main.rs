use std::process::ExitCode;

use memspill_workloads::args::Args;
use memspill_workloads::{
    cpu, fork_storm, fresh, hog, mutate, populate, random, report::Outcome, sequential, spin_touch,
    verify_threads,
};

type Run = fn(&mut Args) -> Outcome;

const WORKLOADS: &[(&str, &str, Run)] = &[
    ("populate", populate::USAGE, populate::run),
    ("random", random::USAGE, random::run),
    ("sequential", sequential::USAGE, sequential::run),
    ("fresh", fresh::USAGE, fresh::run),
    ("cpu", cpu::USAGE, cpu::run),
    ("verify-threads", verify_threads::USAGE, verify_threads::run),
    ("mutate", mutate::USAGE, mutate::run),
    ("fork-storm", fork_storm::USAGE, fork_storm::run),
    ("hog", hog::USAGE, hog::run),
    ("spin-touch", spin_touch::USAGE, spin_touch::run),
];

const COMMON: &str = "every workload: [--seed N] [--contents zero|half|random] [--check none|sparse|full] [--thp (kernel policy) | --hugepages (ask for them)]";

fn usage() -> String {
    let lines: Vec<String> = WORKLOADS.iter().map(|(name, usage, _)| format!("  {name} {usage}")).collect();
    format!("usage: memspill-workload NAME OPTIONS\n{}\n{COMMON}", lines.join("\n"))
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let Some((_, workload_usage, run)) = WORKLOADS.iter().find(|(known, _, _)| *known == name) else {
        if matches!(name.as_str(), "--help" | "-h") {
            println!("{}", usage());
            return ExitCode::SUCCESS;
        }
        eprintln!("{}", usage());
        return ExitCode::from(2);
    };
    let mut args = match Args::parse(words) {
        Ok(args) => args,
        Err(reason) => {
            eprintln!("memspill-workload {name}: {reason}");
            return ExitCode::from(2);
        }
    };
    if args.flag("help") {
        println!("usage: memspill-workload {name} {workload_usage}\n{COMMON}");
        return ExitCode::SUCCESS;
    }
    match run(&mut args) {
        Ok(report) => {
            println!("{}", report.json(&name));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("memspill-workload {name}: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
