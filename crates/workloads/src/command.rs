//! The command line of the workloads: `NAME OPTIONS`, for a program of its own and as a subcommand of
//! another.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::args::Args;
use crate::report::Outcome;
use crate::{
    compile, cpu, fork_storm, fresh, hog, mutate, pmbench, populate, seqswap, sequential, shmem_read,
    spin_touch, usemem, verify_threads,
};

/// How the program calls itself, and the words that come before a workload's name when it executes itself
/// anew.
pub struct Program {
    pub name: &'static str,
    pub prefix: &'static [&'static str],
}

pub struct Workload {
    pub name: &'static str,
    pub about: &'static str,
    pub usage: &'static str,
    run: fn(&mut Args) -> Outcome,
}

const fn workload(
    name: &'static str,
    about: &'static str,
    usage: &'static str,
    run: fn(&mut Args) -> Outcome,
) -> Workload {
    Workload { name, about, usage, run }
}

pub const WORKLOADS: &[Workload] = &[
    workload("pmbench", "touches of pages at random, or after another pattern", pmbench::USAGE, pmbench::run),
    workload("usemem", "processes that take memory as fast as they can", usemem::USAGE, usemem::run),
    workload("seqswap", "sequential swap-out, then sequential swap-in", seqswap::USAGE, seqswap::run),
    workload("shmem-read", "jobs that read one memory", shmem_read::USAGE, shmem_read::run),
    workload("compile", "many short processes, as in a build", compile::USAGE, compile::run),
    workload("populate", "the first write of every page", populate::USAGE, populate::run),
    workload("sequential", "passes over all pages in order", sequential::USAGE, sequential::run),
    workload("fresh", "map, write, unmap, again", fresh::USAGE, fresh::run),
    workload("cpu", "computation on little memory", cpu::USAGE, cpu::run),
    workload("hog", "fresh memory by every way there is", hog::USAGE, hog::run),
    workload("verify-threads", "threads that rewrite and check", verify_threads::USAGE, verify_threads::run),
    workload("mutate", "the mutating verifier", mutate::USAGE, mutate::run),
    workload("fork-storm", "forks while memory is in use", fork_storm::USAGE, fork_storm::run),
    workload("spin-touch", "random touches without an end", spin_touch::USAGE, spin_touch::run),
    workload("random", "pmbench, by its older name", pmbench::USAGE, pmbench::run),
];

pub const COMMON: &str = "every workload: [--seed N] [--contents zero|half|random] [--check \
    none|sparse|full] [--thp (kernel policy) | --hugepages (ask for them)]";

const USAGE_ERROR: u8 = 2;

pub fn find(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name)
}

fn list(program: &Program) -> String {
    let lines: Vec<String> = WORKLOADS.iter().map(|w| format!("  {:<16}{}", w.name, w.about)).collect();
    format!(
        "usage: {0} NAME OPTIONS   ({0} NAME --help lists them)\n{1}\n{COMMON}",
        program.name,
        lines.join("\n")
    )
}

/// Runs one workload and prints its line of JSON.
pub fn main(program: &Program, words: impl Iterator<Item = OsString>) -> ExitCode {
    let mut words = words.map(|word| word.to_string_lossy().into_owned());
    let name = words.next().unwrap_or_default();
    if matches!(name.as_str(), "--help" | "-h") {
        println!("{}", list(program));
        return ExitCode::SUCCESS;
    }
    let refuse = |reason: String, code: u8| {
        eprintln!("{}: {reason}", program.name);
        ExitCode::from(code)
    };
    let Some(workload) = find(&name) else {
        let known: Vec<&str> = WORKLOADS.iter().map(|w| w.name).collect();
        return refuse(format!("no workload '{name}'; there are {}", known.join(", ")), USAGE_ERROR);
    };
    let mut args = match Args::parse(words) {
        Ok(args) => args,
        Err(reason) => return refuse(format!("{name}: {reason}"), USAGE_ERROR),
    };
    args.prefix = program.prefix;
    if args.flag("help") || args.flag("h") {
        println!(
            "{} {name}: {}\nusage: {0} {name} {}\n{COMMON}",
            program.name, workload.about, workload.usage
        );
        return ExitCode::SUCCESS;
    }
    match (workload.run)(&mut args) {
        Ok(report) => {
            println!("{}", report.json(&name));
            ExitCode::SUCCESS
        }
        Err(failure) => refuse(format!("{name}: {failure}"), failure.exit_code()),
    }
}
