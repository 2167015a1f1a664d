//! The program `memspill-lab`: what measures memspill, and what simulates it.
//!
//! ```text
//! main ─┬─ bench/    memspill-lab bench: the same work in turns, under two swaps or settings
//!       ├─ sim.rs    memspill-lab sim: the engine on virtual CPUs (crates/sim)
//!       └─ run, size    as memspill has them: a benchmark executes itself, so both sides are of one build
//! ```
//!
//! What it does not do: anything that a person needs to run programs.

mod bench;
mod sim;

use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// What this program is called.
const NAME: &str = "memspill-lab";

const EXAMPLES: &str = "\
Examples:
  memspill-lab sim scale --cpus 1,16,256
  memspill-lab bench seeds --quick
  sudo memspill-lab bench compare --limit 1G -- python3 job.py";

/// Measure and simulate memspill.
#[derive(Parser, Debug)]
#[command(name = NAME, bin_name = NAME, version, disable_help_subcommand = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the engine on virtual CPUs: how it scales, and whether it breaks
    Sim(sim::SimArgs),
    /// Measure memspill with the published swap benchmarks
    Bench(bench::BenchArgs),
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|first| first == "run" || first == "size") {
        return memspill_cli::main();
    }
    match Cli::try_parse_from(&arguments).map(|cli| cli.command) {
        Ok(Command::Sim(args)) => ExitCode::from(sim::sim(&args)),
        Ok(Command::Bench(args)) => bench::bench(args),
        Err(error) => ExitCode::from(memspill_cli::refuse(&error, Cli::command(), &arguments)),
    }
}
