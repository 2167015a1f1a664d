//! `memspill-lab bench`: the same work in turns, under memspill and under the kernel's own swap (`compare`),
//! or under one setting of memspill and another (`seeds`). Here are the options, and what is printed.
//!
//! ```text
//!   compare.rs    learn what the work takes ─▶ pairs: kernel, memspill, memspill, kernel, …  ─▶ Comparison
//!     plan.rs       what is run, under which limit and budget
//!     cgroup.rs     the memory cgroup of a run, v1 or v2        ┐ made for one run and taken down after it,
//!     swap.rs       the kernel's swap device: zram or a file    ┘ whatever happens: they clean up in drop
//!     process.rs    one run: its time, memory, output and end
//!     scratch.rs    a directory for all of that
//!   outcome.rs    medians, ratios pair by pair, failures; as text and as JSON
//!     flat.rs       the line of JSON that workloads print, and memspill's statistics
//!   seeds/        tables of settings ─▶ runs of memspill with --tune ─▶ memspill_tables::Report
//! ```
//!
//! A run that failed is counted and shown, never dropped in silence. The machine is as it was afterwards:
//! swap devices, cgroups, zram devices, files. Only kill -9 of this program leaves something behind; the next
//! one names it.

//!
//! `bench workload` is the program memspill-workload in another place, so that the benchmarks that execute it
//! need no second file.

mod cgroup;
mod compare;
mod flat;
mod outcome;
mod plan;
mod process;
mod scratch;
mod seeds;
mod swap;

use clap::{Args, Subcommand, ValueEnum};
use memspill_cli::exit;
use memspill_cli::machine::{self, Memory};
use memspill_cli::output::{OutputArgs, command_line};
use memspill_cli::progress::Progress;
use memspill_cli::signals::Stop;
use memspill_cli::size::{self, Size};
use memspill_workloads::command::{self, Program};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use plan::{KernelSwap, Mode, Options, Work};

const EXAMPLES: &str = "\
Ratios above 1: memspill is better. A run that failed is counted and shown.

Modes, where the kernel swaps to zram, whose pool no cgroup counts, or to zswap under cgroup v1:
  resident     the limit is of uncompressed pages; memspill, which counts its pool, gets as
               much more as the kernel's pool is found to take
  everything   the limit is of pages and pool together; the kernel's is lowered by what its
               pool takes

memspill-lab bench workload NAME --help lists the options of a workload.

Examples:
  sudo memspill-lab bench compare --limit 1G -- python3 job.py
  sudo memspill-lab bench compare --workload pmbench --processes 16 --pattern zipf
  sudo memspill-lab bench compare --limit 128M --kernel-swap file --workload pmbench
  memspill-lab bench compare --kernel-swap none --workload cpu";

#[derive(Args, Debug)]
#[command(arg_required_else_help = false)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand, Debug)]
enum BenchCommand {
    /// The same work under memspill and under the kernel's own swap, in turns (root)
    Compare(CompareArgs),
    /// The mechanisms of the published patch threads on this machine, setting against setting
    Seeds(SeedsArgs),
    /// One run of one of the benchmarks' workloads, as memspill-workload does it
    #[command(hide = true, disable_help_flag = true)]
    Workload(WorkloadArgs),
}

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, override_usage = "memspill-lab bench compare [OPTIONS] -- COMMAND [ARG]...
       memspill-lab bench compare [OPTIONS] --workload <NAME> [OPTION OF THE WORKLOAD]...")]
struct CompareArgs {
    /// A workload instead of a command: pmbench, usemem, seqswap, shmem-read, compile, populate, sequential,
    /// fresh, cpu
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,

    /// Runs of each side, in turns [default: 10, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: Option<u32>,

    /// Memory limit of the kernel's side [default: half of what the command takes]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size::parse_nonzero)]
    limit: Option<Size>,

    /// What the limit is of: resident or everything (see below)
    #[arg(long, value_name = "MODE", value_enum, default_value_t = ModeName::Resident)]
    #[arg(hide_possible_values = true)]
    mode: ModeName,

    /// What the kernel swaps to: zram, zswap (in front of a file), file, or none (no limit on both sides:
    /// what memspill costs then)
    #[arg(long, value_name = "KIND", value_enum, default_value_t = SwapName::Zram)]
    #[arg(hide_possible_values = true)]
    kernel_swap: SwapName,

    /// Compressed size of a page in the pool, of 1 [default: found in a first run]
    #[arg(long, value_name = "R", value_parser = parse_ratio)]
    ratio: Option<f64>,

    /// Two pairs, and less memory and time for a workload that is not told how much
    #[arg(long)]
    quick: bool,

    /// A run that takes longer has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,

    /// Directory for swap files, on a disk
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,

    /// Further options for memspill run, such as '--tune readahead=auto'
    #[arg(
        long,
        value_name = "OPTIONS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    with: String,

    /// Write every run and the table as JSON to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// The command and its arguments, or the workload's options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    words: Vec<OsString>,
}

const SEEDS_EXAMPLES: &str = "\
Each run is memspill run --tune NAME=VALUE -- a workload like the thread's, as much larger than memory
as there.
A row for each setting; changes are against the first setting of a workload, round by round.

Examples:
  memspill-lab bench seeds --quick
  memspill-lab bench seeds 003 --pairs 20
  memspill-lab bench seeds --json --html seeds.html > seeds.json";

#[derive(Args, Debug)]
#[command(after_help = SEEDS_EXAMPLES)]
struct SeedsArgs {
    /// Tables to make, of 000, 001, 002, 003 and 004 [default: all]
    #[arg(value_name = "THREAD")]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(seeds::ids()), hide_possible_values = true)]
    threads: Vec<String>,

    /// Runs of each setting, in turns [default: 10, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: Option<u32>,

    /// About a minute in all: less memory, less time, three pairs
    #[arg(long)]
    quick: bool,

    /// Directory for the runs' statistics
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct WorkloadArgs {
    /// Name and options of the workload; its options are not clap's to judge
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum ModeName {
    Resident,
    Everything,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum SwapName {
    Zram,
    Zswap,
    File,
    None,
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ratio) if ratio > 0.0 && ratio <= 1.1 => Ok(ratio),
        _ => Err("a ratio is a number above 0 and up to 1.1, such as 0.5".to_owned()),
    }
}

pub fn bench(args: BenchArgs) -> ExitCode {
    match args.command {
        BenchCommand::Compare(args) => ExitCode::from(run_compare(&args)),
        BenchCommand::Seeds(args) => ExitCode::from(run_seeds(&args)),
        BenchCommand::Workload(args) => {
            let program = Program { name: "memspill-lab bench workload", prefix: &["bench", "workload"] };
            command::main(&program, args.words.into_iter())
        }
    }
}

/// A line for each run that was, and how many are left.
fn told_on_terminal() -> impl FnMut(&str, usize, usize) {
    let mut progress = Progress::begin();
    move |text, done, total| {
        progress.note(text);
        progress.show_left(&format!("{done} of {total} runs"), done as u64, total as u64);
    }
}

fn run_compare(args: &CompareArgs) -> u8 {
    let options = match options(args) {
        Ok(options) => options,
        Err(reason) => {
            eprintln!("memspill: {reason} (see memspill-lab bench compare --help)");
            return exit::USAGE;
        }
    };
    let mut told = told_on_terminal();
    let comparison = compare::compare(&options, &mut told);
    drop(told);
    let comparison = match comparison {
        Ok(comparison) => comparison,
        Err(Stop::Refused(reason)) => {
            eprintln!("memspill: {reason}");
            return exit::FAILED;
        }
        Err(Stop::Interrupted(signal)) => {
            eprintln!("memspill: interrupted before the first pair was complete");
            return 128 + signal as u8;
        }
    };
    if let Some(path) = &args.json
        && let Err(error) = std::fs::write(path, comparison.json())
    {
        eprintln!("memspill: cannot write {}: {error}", path.display());
        return exit::FAILED;
    }
    // A reader that has closed the pipe has seen enough.
    if let Err(error) = std::io::stdout().write_all(comparison.text().as_bytes())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        eprintln!("memspill: cannot write: {error}");
        return exit::FAILED;
    }
    match comparison.interrupted {
        Some(signal) => 128 + signal as u8,
        None if comparison.has_a_pair() => 0,
        None => exit::FAILED,
    }
}

fn run_seeds(args: &SeedsArgs) -> u8 {
    let options = args.output.check_page_path().and_then(|()| seeds_options(args));
    let options = match options {
        Ok(options) => options,
        Err(reason) => {
            eprintln!("memspill: {reason}");
            return exit::USAGE;
        }
    };
    let mut told = told_on_terminal();
    let ran = seeds::seeds(&options, &mut told);
    drop(told);
    match ran {
        Ok((report, interrupted)) => {
            let exit = args.output.write(&report);
            interrupted.map_or(exit, |signal| 128 + signal as u8)
        }
        Err(Stop::Refused(reason)) => {
            eprintln!("memspill: {reason}");
            exit::FAILED
        }
        Err(Stop::Interrupted(signal)) => {
            eprintln!("memspill: interrupted before anything was measured");
            128 + signal as u8
        }
    }
}

fn seeds_options(args: &SeedsArgs) -> Result<seeds::Options, String> {
    let ram_bytes = Memory::of_this_machine().usable_bytes();
    Ok(seeds::Options {
        program: std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?,
        pairs: args.pairs.unwrap_or(if args.quick { 3 } else { 10 }),
        quick: args.quick,
        only: args.threads.clone(),
        ram_bytes,
        cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get()),
        dir: args.dir.clone(),
        command: command_line(crate::NAME),
        machine: machine::described(),
    })
}

fn options(args: &CompareArgs) -> Result<Options, String> {
    let ram_bytes = Memory::of_this_machine().usable_bytes();
    Ok(Options {
        work: work_of(args)?,
        pairs: args.pairs.unwrap_or(if args.quick { 2 } else { 10 }),
        limit_bytes: args.limit.and_then(|limit| limit.resolve(ram_bytes)),
        mode: match args.mode {
            ModeName::Resident => Mode::Resident,
            ModeName::Everything => Mode::Everything,
        },
        kernel_swap: match args.kernel_swap {
            SwapName::Zram => KernelSwap::Zram,
            SwapName::Zswap => KernelSwap::Zswap,
            SwapName::File => KernelSwap::File,
            SwapName::None => KernelSwap::None,
        },
        ratio: args.ratio,
        quick: args.quick,
        timeout: Duration::from_secs(args.timeout),
        dir: args.dir.clone(),
        with: args.with.split_whitespace().map(OsString::from).collect(),
        program: std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?,
    })
}

fn work_of(args: &CompareArgs) -> Result<Work, String> {
    match (&args.workload, args.words.first()) {
        (Some(name), _) => match command::find(name) {
            Some(_) => Ok(Work::Workload { name: name.clone(), words: args.words.clone() }),
            None => {
                let known: Vec<&str> = command::WORKLOADS.iter().map(|workload| workload.name).collect();
                Err(format!("no workload '{name}'; there are {}", known.join(", ")))
            }
        },
        (None, None) => Err("a command is needed, after --, or --workload NAME".to_owned()),
        // Nobody has a command whose name begins with a hyphen.
        (None, Some(word)) if word.to_string_lossy().starts_with('-') => {
            Err(format!("unknown option {}", word.to_string_lossy()))
        }
        (None, Some(_)) => Ok(Work::Command(args.words.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cli, Command};
    use clap::Parser;

    fn parsed(words: &str) -> Result<Options, String> {
        parsed_words(&words.split_whitespace().collect::<Vec<_>>())
    }

    fn parsed_words(words: &[&str]) -> Result<Options, String> {
        let words = ["memspill-lab", "bench", "compare"].iter().chain(words);
        match Cli::try_parse_from(words).map_err(|e| memspill_cli::args::one_line(&e))?.command {
            Command::Bench(BenchArgs { command: BenchCommand::Compare(args) }) => options(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_command_or_a_workload() {
        let command = parsed("--limit 64M --pairs 3 -- sort -m --pairs 4").unwrap();
        assert_eq!(command.work, Work::Command(["sort", "-m", "--pairs", "4"].map(OsString::from).to_vec()));
        assert_eq!((command.pairs, command.limit_bytes), (3, Some(64 << 20)));
        let workload = parsed("--quick --workload pmbench --pattern zipf --size 1G").unwrap();
        let words = ["--pattern", "zipf", "--size", "1G"].map(OsString::from).to_vec();
        assert_eq!(workload.work, Work::Workload { name: "pmbench".into(), words });
        assert_eq!(
            (workload.pairs, workload.kernel_swap, workload.mode),
            (2, KernelSwap::Zram, Mode::Resident)
        );
        assert_eq!(parsed_words(&["--with", "--tune a=1", "true"]).unwrap().with, ["--tune", "a=1"]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (words, reason) in [
            ("", "a command is needed"),
            ("--pair 3 -- true", "unknown option --pair"),
            ("--workload pmbenhc", "there are pmbench"),
            ("--pairs 0 true", "0 is not in 1..=1000"),
            ("--ratio 2 true", "above 0 and up to 1.1"),
            ("--mode all true", "resident"),
            ("--limit 0 true", "more than zero"),
        ] {
            let refusal = parsed(words).map(|_| ()).unwrap_err();
            assert!(refusal.contains(reason), "{words}: {refusal}");
        }
    }
}
