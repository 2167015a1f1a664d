//! The memspill command, as a library: `main.rs` is the call of [`main`], and the parsers can be called by
//! others.
//!
//! ```text
//! main ── args.rs    what was typed (size.rs: sizes, spec.rs: swap devices, nbd_spec.rs: exports;
//!      │             machine.rs: what 50% is a share of)
//!      ├─ run.rs     memspill run (exec.rs: what the command is, before it is started)
//!      │             (stats.rs: what is counted; report.rs, metrics.rs: how it is said; serve.rs)
//!      │             (reporting/: the page of --report)
//!      ├─ attach.rs  memspill attach
//!      ├─ sizing/    memspill size
//!      ├─ ctl.rs     memspill ctl
//!      ├─ top/       memspill top
//!      ├─ kernel.rs  memspill kernel
//!      ├─ doctor/    memspill doctor (probe.rs: the system calls that only a try can answer)
//!      │             (output.rs: the forms of tables; progress.rs: a line on a terminal)
//!      └─ completions.rs, manual.rs    the options for shells and for man(1)
//! ```
//!
//! memspill's own words go to stderr with `memspill: ` before them (message.rs); stdout belongs to the
//! command that is run, or to what was asked for (`doctor`, `size`, `--help`). A reader that closed the pipe
//! has seen enough: that is success.

#[macro_use]
mod message;

pub mod args;
mod attach;
mod budget;
pub mod child;
mod completions;
mod ctl;
pub mod devices;
mod doctor;
pub mod exec;
pub mod exit;
pub mod groups;
mod kernel;
pub mod machine;
mod manual;
mod metrics;
pub mod nbd_spec;
pub mod output;
mod probe;
pub mod progress;
mod report;
mod reporting;
mod run;
mod serve;
pub mod signals;
pub mod size;
mod sizing;
pub mod spec;
mod stats;
mod top;

/// Parsers of what the programs of a run can have a say in, for `crates/fuzz`.
#[doc(hidden)]
pub mod untrusted {
    pub use crate::reporting::find_places;
}

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command};

/// Does what the command line of this process asks for.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if args::asks_for_knobs(&arguments) {
        return ExitCode::from(output::print(&memspill_engine::tuning::Tuning::help()));
    }
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(refuse(&error, Cli::command(), &arguments)),
    };
    match cli.command {
        Command::Run(args) => ExitCode::from(run::run(*args)),
        Command::Attach(args) => ExitCode::from(attach::attach(*args)),
        Command::Size(args) => ExitCode::from(sizing::size(&args)),
        Command::Ctl(args) => ExitCode::from(ctl::ctl(&args)),
        Command::Top(args) => ExitCode::from(top::top(&args)),
        Command::Kernel(args) => ExitCode::from(kernel::kernel(&args)),
        Command::Doctor(args) => ExitCode::from(doctor::doctor(&args)),
        Command::Completions(args) => ExitCode::from(completions::completions(&args, &Cli::command())),
        Command::Man(args) => ExitCode::from(manual::man(&args, Cli::command())),
    }
}

/// Says what clap has against the arguments of `command`; returns the exit code. Help and version are asked
/// for and are no errors; the rest is one line.
pub fn refuse(error: &clap::Error, command: clap::Command, arguments: &[OsString]) -> u8 {
    if !error.use_stderr() {
        // Only a closed pipe can stop this, and that is success.
        let _ = error.print();
        return 0;
    }
    let exit = args::usage_exit(arguments);
    let (mut command, name) = args::command_meant(command, arguments);
    if args::lacks_subcommand(error) {
        eprint!("{}", command.render_help());
    } else {
        let mend = args::mend(error, &name).map_or(String::new(), |mend| format!("; {mend}"));
        eprintln!("memspill: {}{mend} (see {name} --help)", args::one_line(error));
    }
    exit
}
