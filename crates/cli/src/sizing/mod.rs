//! `memspill size`: the smallest budget with which a command is still fast enough.
//!
//! ```text
//!   mod.rs ── what was asked for, and why there may be no answer
//!     ├─ search.rs    which budget is tried next
//!     ├─ attempt.rs   one run
//!     └─ show.rs      table, JSON, page
//! ```
//!
//! Times are compared with a run under memspill in which nothing is swapped, so what memspill costs by itself
//! (docs/guide.md) is on both sides. The command runs several times, so it must do the same each time.

mod attempt;
mod search;
mod show;

use crate::machine::Memory;
use crate::output;
use crate::progress::Progress;
use crate::signals::{self, Stop};
use crate::size::{MEMORY_MAX_LEAST_BYTES, human, short};
use crate::{exec, exit};
use attempt::Ran;
use clap::Args;
use search::{Attempt, End, Search};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
COMMAND runs several times (twice without a limit, then some three to eight times), with empty input and
its output thrown away. It must do the same each time.

Examples:
  memspill size -- python3 train.py
  memspill size --within 50% --html size.html -- sh -c 'sort -S 2G < big.txt'";

/// A command that is done sooner cannot be judged: to start it takes a good part of that.
const FREE_LEAST_S: f64 = 0.5;
/// Without limit it runs twice, and the faster one counts, unless it takes longer than this.
const FREE_ONCE_S: f64 = 60.0;
/// A run is stopped when it has taken so many times what is allowed: by then it has shown how it stalls.
const STOPPED_AT: f64 = 1.5;
/// A run that is too slow by less than this is tried once more: times differ from run to run.
const NEARLY: f64 = 1.1;

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, override_usage = "memspill size [OPTIONS] [--] COMMAND [ARG]...")]
pub struct SizeArgs {
    /// How much longer than without a limit the command may take
    #[arg(long, value_name = "PERCENT", default_value = "20%", value_parser = parse_within)]
    within: f64,

    /// Option for each `memspill run`, such as --run-option=--swap=ram: ; repeatable
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    run_option: Vec<OsString>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Also write one HTML page with the curve to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// `20%`, `20`: as a share.
fn parse_within(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if (1.0..=1000.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("a percentage from 1% to 1000%, such as 20%".into()),
    }
}

/// Returns the exit code.
pub fn size(args: &SizeArgs) -> u8 {
    if let Some((exit, reason)) = exec::inspect(&args.command[0]).refusal() {
        eprintln!("memspill: {reason}");
        return exit;
    }
    if let Err(error) = output::check_page_path(args.html.as_deref()) {
        eprintln!("memspill: {error}");
        return exit::USAGE;
    }
    let mut sizing = Sizing { args, runs: 0, free_s: None, progress: Progress::begin() };
    let found = signals::install().map_err(|e| Stop::Refused(e.to_string())).and_then(|()| sizing.find());
    drop(sizing);
    match found {
        Ok((search, peak_bytes)) => tell(args, &search, peak_bytes),
        Err(Stop::Refused(reason)) => {
            eprintln!("memspill: {}", crate::message::plain(&reason));
            exit::FAILED
        }
        Err(Stop::Interrupted(signal)) => 128 + signal as u8,
    }
}

struct Sizing<'a> {
    args: &'a SizeArgs,
    runs: usize,
    /// The time of the command without a limit, once that is known.
    free_s: Option<f64>,
    progress: Progress,
}

impl Sizing<'_> {
    /// The search when it is over, and the most memory that the command took.
    fn find(&mut self) -> Result<(Search, u64), Stop> {
        let (free_s, peak_bytes) = self.run_free()?;
        self.free_s = Some(free_s);
        let allowed = 1.0 + self.args.within;
        let mut search = Search::new(free_s, peak_bytes, allowed, MEMORY_MAX_LEAST_BYTES);
        let deadline = Duration::from_secs_f64(free_s * allowed * STOPPED_AT);
        while let Some(budget_bytes) = search.next() {
            let mut attempt = self.attempt(budget_bytes, deadline)?;
            // As without limit: of two runs the faster one counts, where that may decide.
            if attempt.end == End::Whole
                && !search.does(&attempt)
                && search.slowdown(&attempt) < allowed * NEARLY
            {
                let again = self.attempt(budget_bytes, deadline)?;
                if search.does(&again) {
                    attempt = again;
                }
            }
            search.attempts.push(attempt);
        }
        Ok((search, peak_bytes))
    }

    fn attempt(&mut self, budget_bytes: u64, deadline: Duration) -> Result<Attempt, Stop> {
        let ran = self.run(budget_bytes, deadline)?;
        let end = match (ran.is_stopped, ran.exit_code()) {
            (true, _) => End::Stopped,
            (false, 0) => End::Whole,
            (false, code) => End::Failed(reason_of(&ran, code)),
        };
        let stalled_s = ran.number("stall_full_us") as f64 / 1e6;
        Ok(Attempt { budget_bytes, wall_s: ran.wall_s, end, stalled_s, curve: ran.curve() })
    }

    /// In all the memory that is free: its time in s, and its peak in bytes.
    fn run_free(&mut self) -> Result<(f64, u64), Stop> {
        let free_bytes = Memory::of_this_machine().free_bytes();
        let (mut free_s, mut peak_bytes) = (f64::INFINITY, 0);
        for _ in 0..2 {
            let ran = self.run(free_bytes, Duration::MAX)?;
            let code = ran.exit_code();
            if code != 0 {
                let reason = reason_of(&ran, code);
                return Err(Stop::Refused(format!(
                    "the command fails without a limit: {reason}; its input is empty here and its output \
                     thrown away: does it run by itself?"
                )));
            }
            if ran.number("pgsteal") > 0 {
                let free = human(free_bytes);
                return Err(Stop::Refused(format!(
                    "the command does not fit into the {free} that are free here, so its time without \
                     swapping cannot be known: give it less to do, or free memory"
                )));
            }
            free_s = free_s.min(ran.wall_s);
            peak_bytes = ran.number("memory_peak_bytes").max(peak_bytes);
            if free_s > FREE_ONCE_S {
                break;
            }
        }
        if free_s < FREE_LEAST_S {
            return Err(Stop::Refused(format!(
                "the command is done in {free_s:.2} s, too short to judge: give it work for a second or more"
            )));
        }
        if peak_bytes <= MEMORY_MAX_LEAST_BYTES {
            let (peak, least) = (human(peak_bytes), human(MEMORY_MAX_LEAST_BYTES));
            return Err(Stop::Refused(format!(
                "the command takes {peak} with memspill, no more than the smallest budget, {least}: there is \
                 nothing to find"
            )));
        }
        Ok((free_s, peak_bytes))
    }

    fn run(&mut self, budget_bytes: u64, deadline: Duration) -> Result<Ran, Stop> {
        self.runs += 1;
        let (n, what) =
            (self.runs, if deadline == Duration::MAX { "no limit" } else { &short(budget_bytes) });
        let of_free = self.free_s.map(|free_s| format!(" ({free_s:.1} s without)")).unwrap_or_default();
        let progress = &mut self.progress;
        let ran =
            attempt::run(&self.args.command, &self.args.run_option, budget_bytes, deadline, |so_far| {
                progress.show(&format!("run {n}, {what}: {:.1} s{of_free}", so_far.as_secs_f64()));
            })?;
        // Not the command's failure, but memspill's: there is no use in going on.
        match ran.exit_code() == i32::from(exit::OWN_FAILURE) && ran.said.starts_with("memspill: ") {
            true => Err(Stop::Refused(ran.said["memspill: ".len()..].to_string())),
            false => Ok(ran),
        }
    }
}

fn reason_of(ran: &Ran, code: i32) -> String {
    match ran.said.as_str() {
        "" => format!("exit code {code}"),
        said => format!("exit code {code}, {said:?}"),
    }
}

fn tell(args: &SizeArgs, search: &Search, peak_bytes: u64) -> u8 {
    let (lines, allowed) = (show::lines(search), format!("{:.0} %", args.within * 100.0));
    let answer = search.answer().map(|attempt| {
        let (budget, slowdown) = (short(attempt.budget_bytes), search.slowdown(attempt));
        let lost = (slowdown - 1.0) * 100.0;
        format!("{budget} is enough to be within {allowed}: with it the command took {lost:+.0} %.")
    });
    let words = answer.clone().unwrap_or_else(|| {
        format!(
            "no budget is within {allowed}, not even one that holds everything: times differ too much here"
        )
    });
    let report = show::report(search, peak_bytes, &lines, &words);
    if let Some(path) = &args.html
        && let Err(e) = std::fs::write(path, memspill_tables::html(&report))
    {
        eprintln!("memspill: cannot write {}: {e}", path.display());
        return exit::FAILED;
    }
    let text = match args.json {
        true => memspill_tables::Form::Json.of(&report),
        false => format!("{}\n{words}\n", show::text(search, peak_bytes, &lines)),
    };
    let printed = output::print(&text);
    if answer.is_none() { exit::FAILED } else { printed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages() {
        assert_eq!(
            (parse_within("20%"), parse_within("5"), parse_within("12.5 %")),
            (Ok(0.2), Ok(0.05), Ok(0.125))
        );
        for wrong in ["", "%", "0", "-5%", "2000%", "x", "nan"] {
            assert!(parse_within(wrong).unwrap_err().contains("such as 20%"), "{wrong}");
        }
    }
}
