//! `memspill bench`: options of its subcommands, and what they print.
//!
//! `bench workload` is the program memspill-workload in another place, so that the benchmarks that execute it need no
//! second file.

use clap::{Args, Subcommand};
use memspill_workloads::command::{self, Program};
use std::ffi::OsString;
use std::process::ExitCode;

#[derive(Args, Debug)]
#[command(arg_required_else_help = false)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand, Debug)]
enum BenchCommand {
    /// One run of one of the benchmarks' workloads, as memspill-workload does it
    #[command(hide = true, disable_help_flag = true)]
    Workload(WorkloadArgs),
}

#[derive(Args, Debug)]
struct WorkloadArgs {
    /// Name and options of the workload; its options are not clap's to judge
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

pub fn bench(args: BenchArgs) -> ExitCode {
    match args.command {
        BenchCommand::Workload(args) => {
            let program = Program { name: "memspill bench workload", prefix: &["bench", "workload"] };
            command::main(&program, args.words.into_iter())
        }
    }
}
