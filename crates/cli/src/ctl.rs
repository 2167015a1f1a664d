//! `memspill ctl`: look at runs that are under way, and change them.
//!
//! ```text
//!   which run: --pid, --all, or the only one      what: list stats metrics swaps ...
//!   ask (crates/ctl) ─▶ stdout: what was asked for
//!                                   stderr: why not, and on a terminal how far what takes long is
//! ```
//!
//! Exit codes: 0; 1 if a run refused or there is none; 2 for a wrong command line. The words of a run are
//! shown with their control characters replaced: another user's process may call itself a run to root.

use crate::exit;
use crate::machine::Memory;
use crate::progress::Progress;
use crate::size::{self, Size, human};
use crate::spec::{self, SwapSpec};
use clap::{Args, Subcommand};
use memspill_ctl::{Request, RunSocket, parse_range, runs};
use memspill_pager::signals::Interrupts;
use std::fmt::Write as _;
use std::io::Write as _;

const EXAMPLES: &str = "\
Examples:
  memspill ctl list
  memspill ctl --pid 4711 stats --json
  memspill ctl swapon file:/data/swap,size=64G,prio=5
  memspill ctl swapon nbd://store.example/swap,timeout=5m
  memspill ctl swapoff file:/data/swap
  memspill ctl limit 3G
  memspill ctl detach";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = false)]
pub struct CtlArgs {
    /// The run, by the process id of its `memspill run` or `attach`; needed where there are several
    #[arg(long, value_name = "PID", conflicts_with = "all")]
    pid: Option<u32>,

    /// All runs of this user (root: of all users)
    #[arg(long)]
    all: bool,

    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Subcommand, Debug)]
enum CtlCommand {
    /// The runs of this user: budget, used, swapped out
    List,
    /// Statistics as they are now; those of `run --stats=all`
    Stats {
        /// As `run --stats-json`
        #[arg(long)]
        json: bool,
    },
    /// Statistics as OpenMetrics text, as `run --metrics` serves them
    Metrics,
    /// The swap devices, as in /proc/swaps (sizes in KiB)
    Swaps,
    /// Add a swap device
    Swapon {
        /// ram:..., file:PATH,... or nbd://HOST/EXPORT,... as for `run --swap`
        #[arg(value_name = "SPEC")]
        spec: String,
    },
    /// Move all pages of a swap device to the others, and close it; ^C puts it on again
    Swapoff {
        /// As `swaps` names it
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Change the budget (--memory-max), and wait until what is over it is swapped out; ^C ends the waiting
    Limit {
        #[arg(value_name = "SIZE", allow_hyphen_values = true, value_parser = size::parse_nonzero)]
        size: Size,
    },
    /// Let the processes of a `memspill attach` go on without memspill, as they were, once all that is
    /// swapped out is back; ^C ends the waiting, and they stay attached
    Detach,
    /// Swap pages of a process out now, as MADV_PAGEOUT does
    Pageout {
        /// A process of the run
        #[arg(value_name = "PID")]
        process: u32,
        /// Addresses in hexadecimal, as in /proc/PID/maps [default: all]
        #[arg(value_name = "FROM-TO", value_parser = parse_range)]
        ranges: Vec<(u64, u64)>,
    },
    /// Let pages of a process leave before others, as MADV_COLD does
    Cold {
        /// A process of the run
        #[arg(value_name = "PID")]
        process: u32,
        /// Addresses in hexadecimal, as in /proc/PID/maps [default: all]
        #[arg(value_name = "FROM-TO", value_parser = parse_range)]
        ranges: Vec<(u64, u64)>,
    },
}

/// Returns the exit code.
pub fn ctl(args: &CtlArgs) -> u8 {
    match chosen_runs(args).and_then(|runs| carry_out(args, &runs)) {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("memspill: {}", printable(&reason));
            exit::FAILED
        }
    }
}

fn chosen_runs(args: &CtlArgs) -> Result<Vec<RunSocket>, String> {
    let mut runs = runs().map_err(|e| format!("cannot read /proc/net/unix: {e}"))?;
    if let Some(pid) = args.pid {
        runs.retain(|run| run.pid == pid);
        let of_ours = "see memspill ctl list";
        return if runs.is_empty() {
            Err(format!("no run of ours has process id {pid}: {of_ours}"))
        } else {
            Ok(runs)
        };
    }
    let takes_all = args.all || matches!(args.command, CtlCommand::List);
    match runs.len() {
        _ if takes_all => Ok(runs),
        0 => Err("no run of ours is under way: memspill run -m SIZE -- COMMAND starts one".into()),
        1 => Ok(runs),
        _ => {
            let pids: Vec<String> = runs.iter().map(|run| run.pid.to_string()).collect();
            Err(format!("there are several runs: name one with --pid ({}), or take --all", pids.join(", ")))
        }
    }
}

fn carry_out(args: &CtlArgs, runs: &[RunSocket]) -> Result<(), String> {
    let request = match &args.command {
        CtlCommand::List => return list(runs),
        CtlCommand::Stats { json } => Request::Stats { json: *json },
        CtlCommand::Metrics => Request::Metrics,
        CtlCommand::Swaps => Request::Swaps,
        CtlCommand::Swapon { spec } => Request::Swapon { spec: with_absolute_paths(spec)? },
        CtlCommand::Swapoff { name } => Request::Swapoff { name: name.clone() },
        CtlCommand::Limit { size } => {
            let ram_bytes = Memory::of_this_machine().usable_bytes();
            Request::Limit { bytes: size.resolve(ram_bytes).unwrap_or(ram_bytes) }
        }
        CtlCommand::Detach => Request::Detach,
        CtlCommand::Pageout { process, ranges } => Request::Pageout { pid: *process, ranges: ranges.clone() },
        CtlCommand::Cold { process, ranges } => Request::Cold { pid: *process, ranges: ranges.clone() },
    };
    let mut refusals = Vec::new();
    for run in runs {
        match send_request(run, &request) {
            Ok(text) if args.all => print_answer(&format!("{}:\n{text}", run.pid)),
            Ok(text) => print_answer(&text),
            Err(reason) if args.all => refusals.push(format!("{}: {reason}", run.pid)),
            Err(reason) => refusals.push(reason),
        }
    }
    if refusals.is_empty() { Ok(()) } else { Err(refusals.join("; ")) }
}

fn send_request(run: &RunSocket, request: &Request) -> Result<String, String> {
    let interrupts = match request {
        Request::Swapoff { .. } | Request::Limit { .. } | Request::Detach => {
            Some(Interrupts::block().map_err(|e| format!("cannot block signals: {e}"))?)
        }
        _ => None,
    };
    let mut line = Progress::begin();
    let progress = |done, total| line.show_left(&far(request, done, total), done, total);
    run.ask(request, progress, || interrupts.as_ref().is_some_and(Interrupts::came))
}

/// How far a request is that takes long.
pub fn far(request: &Request, done: u64, total: u64) -> String {
    match request {
        Request::Swapoff { name } => format!("swapoff {name}: {done} of {total} pages"),
        Request::Detach => format!("{} of {} are back in memory", human(done), human(total)),
        _ => format!("{} of {} have left memory", human(done), human(total)),
    }
}

/// A SPEC with its paths made absolute: the run may be in another directory.
fn with_absolute_paths(text: &str) -> Result<String, String> {
    let spec = spec::parse(text).map_err(|e| e.to_string())?;
    let here = std::env::current_dir().map_err(|e| format!("the current directory: {e}"))?;
    let here_text = here.to_str().filter(|here| !here.contains(','));
    let whole = |prefix: &str, path: &str| match here_text {
        _ if path.starts_with('/') => Ok(format!("{prefix}{path}")),
        Some(here) => Ok(format!("{prefix}{here}/{path}")),
        None => Err("give the file's whole path".to_owned()),
    };
    match (spec, text.strip_prefix("file:")) {
        (SwapSpec::File { .. }, Some(path_and_words)) => whole("file:", path_and_words),
        (SwapSpec::Nbd { address, words, .. }, _) => {
            let parts = text.split(',').skip(1).map(|part| match part.split_once('=') {
                Some(("cacert" | "cert" | "key", path)) => whole(&part[..part.len() - path.len()], path),
                Some(("mirror", _)) => {
                    let mirror = words.mirror.clone().map(|mirror| mirror.seen_from(&here).to_string());
                    Ok(format!("mirror={}", mirror.unwrap_or_default()))
                }
                _ => Ok(part.to_owned()),
            });
            let first = address.clone().seen_from(&here).to_string();
            let all: Result<Vec<String>, String> = std::iter::once(Ok(first)).chain(parts).collect();
            Ok(all?.join(","))
        }
        _ => Ok(text.to_owned()),
    }
}

fn list(runs: &[RunSocket]) -> Result<(), String> {
    let mut text = format!("{:>10} {:>12} {:>12} {:>12}  COMMAND", "PID", "BUDGET", "USED", "SWAPPED");
    for run in runs {
        // One that ends meanwhile is no run any more.
        let Ok(sizes) = run.ask(&Request::Sizes, |_, _| (), || false) else { continue };
        let sizes: Vec<u64> = sizes.split(' ').filter_map(|bytes| bytes.parse().ok()).collect();
        let [limit, used, swapped] = sizes[..] else { continue };
        let [limit, used, swapped] = [limit, used, swapped].map(human);
        let _ = write!(
            text,
            "\n{:>10} {limit:>12} {used:>12} {swapped:>12}  {}",
            run.pid,
            command_line_of(run.pid)
        );
    }
    print_answer(&text);
    Ok(())
}

/// The command line of a process, on one line.
pub fn command_line_of(pid: u32) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&words).trim_end_matches('\0').replace(['\0', '\n', '\t'], " ");
    let short: String = text.chars().take(200).collect();
    if short.len() < text.len() { short + " ..." } else { short }
}

/// To stdout. A reader that closed the pipe has seen enough.
fn print_answer(text: &str) {
    let _ = writeln!(std::io::stdout(), "{}", printable(text).trim_end());
}

/// Without what moves a terminal's cursor.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_whole() {
        let here = std::env::current_dir().unwrap();
        let here = here.display();
        assert_eq!(with_absolute_paths("file:swap,size=1G").unwrap(), format!("file:{here}/swap,size=1G"));
        for whole in ["file:/swap,size=1G", "ram:,size=1G", "nbds://h/x,timeout=5s,cacert=/ca"] {
            assert_eq!(with_absolute_paths(whole).unwrap(), whole);
        }
        assert_eq!(
            with_absolute_paths("nbd://h/x,mirror=nbds+unix:///x?socket=s,cacert=ca,size=1G").unwrap(),
            format!("nbd://h/x,mirror=nbds+unix:///x?socket={here}/s,cacert={here}/ca,size=1G")
        );
        assert!(with_absolute_paths("zram:").unwrap_err().contains("unknown kind"));
    }

    #[test]
    fn a_run_cannot_write_to_the_terminal_what_it_likes() {
        assert_eq!(printable("a\x1b[2Jb\nc\td\u{9b}e"), "a?[2Jb\nc\td?e");
    }
}
