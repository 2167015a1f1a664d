//! `memspill-lab bench seeds`: the mechanisms of the published patch threads on this machine, setting against
//! setting.
//!
//! ```text
//!   mechanisms.rs   the tables: workloads, settings, what each thread reported, the counts it argues with
//!   here            run them in turns: for each workload, round by round, there and back through settings
//!   runs.rs         what is asked for, and what a run has given
//!   rows.rs         medians, changes round by round, failures ─▶ memspill_tables::Report
//! ```
//!
//! Each run is `memspill-lab run --tune ... -- memspill-lab bench workload ...`, by this program; what it
//! counted is read from its `--stats-json`. The first setting of a workload is the one that the others are
//! compared with, within a round. Nothing is kept of a run that failed but that it did, and why.

mod mechanisms;
mod rows;
mod runs;

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use memspill_engine::tuning::Tuning;
use memspill_tables::Report;
use serde_json::Value;

use crate::bench::process;
use crate::bench::scratch::Scratch;
use mechanisms::{Case, MECHANISMS, Mechanism, Scale, Setting, Work};
use memspill_cli::signals::{self, Stop};
pub use runs::Options;
use runs::{Outcome, SettingRun, SettingRuns};

/// The limit of one run; the longest take some tens of seconds.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The ids of the tables that there are.
pub fn ids() -> Vec<&'static str> {
    MECHANISMS.iter().map(|mechanism| mechanism.id).collect()
}

/// Runs it all. `note` is told of each run, with how many are done, and of how many. A signal ends it: then
/// the report is of what was complete, and the number of the signal is with it.
pub fn seeds(
    options: &Options,
    note: &mut dyn FnMut(&str, usize, usize),
) -> Result<(Report, Option<i32>), Stop> {
    signals::install().or_else(|error| Stop::refuse(format!("signals: {error}")))?;
    let settings: usize = chosen(options).flat_map(|m| m.cases).map(|case| case.settings.len()).sum();
    let (total, mut done) = (settings * options.pairs as usize, 0);
    let note = &mut |text: &str| {
        done += 1;
        note(text, done, total);
    };
    let bench = Bench {
        options,
        scratch: Scratch::make(&options.dir)?,
        scale: Scale::of(options.quick, options.ram_bytes),
        note,
    };
    bench.all()
}

fn chosen(options: &Options) -> impl Iterator<Item = &'static Mechanism> {
    MECHANISMS.iter().filter(|m| options.only.is_empty() || options.only.iter().any(|id| id == m.id))
}

struct Bench<'a> {
    options: &'a Options,
    scratch: Scratch,
    scale: Scale,
    note: &'a mut dyn FnMut(&str),
}

impl Bench<'_> {
    fn all(mut self) -> Result<(Report, Option<i32>), Stop> {
        self.try_out()?;
        let mut measured: Vec<(&Mechanism, Vec<Outcome>)> = Vec::new();
        for mechanism in chosen(self.options) {
            measured.push((mechanism, Vec::new()));
            for case in mechanism.cases {
                let (outcome, signal) = self.case(mechanism, case)?;
                measured.last_mut().expect("one was pushed").1.push(outcome);
                if signal.is_some() {
                    return Ok((rows::report(self.options, self.scale, &measured, signal), signal));
                }
            }
        }
        Ok((rows::report(self.options, self.scale, &measured, None), None))
    }

    /// Whether anything runs here at all, before hours are spent to find that nothing does.
    fn try_out(&self) -> Result<(), Stop> {
        let mut command = vec![OsString::from(&self.options.program)];
        command.extend(["run", "-m", "64M", "--", "true"].map(OsString::from));
        match process::run(&command, None, TIMEOUT, || {})?.failed {
            None => Ok(()),
            Some(reason) => {
                Stop::refuse(format!("memspill run does not work here: {reason}; see memspill doctor"))
            }
        }
    }

    fn case(&mut self, mechanism: &Mechanism, case: &'static Case) -> Result<(Outcome, Option<i32>), Stop> {
        let work = (case.work)(&self.scale);
        let mut outcome =
            Outcome { case, group: case.group(&work), settings: Vec::new(), missing: Vec::new() };
        for setting in case.settings {
            match Tuning::parse(setting.knobs.iter().copied()) {
                Ok(_) => outcome.settings.push(SettingRuns { setting, rounds: Vec::new() }),
                Err(error) => outcome.missing.push(format!("Not in this build: {error}.")),
            }
        }
        for round in 1..=self.options.pairs {
            let settings = outcome.settings.len();
            for step in 0..settings {
                let at = if round % 2 == 1 { step } else { settings - 1 - step };
                let runs = &mut outcome.settings[at];
                match self.one(case, &work, runs.setting) {
                    Ok(run) => {
                        self.tell(mechanism, case, runs.setting, round, &run);
                        runs.rounds.push(run);
                    }
                    Err(Stop::Interrupted(signal)) => {
                        drop_incomplete(&mut outcome, round);
                        return Ok((outcome, Some(signal)));
                    }
                    Err(stop) => return Err(stop),
                }
            }
        }
        Ok((outcome, None))
    }

    fn tell(&mut self, mechanism: &Mechanism, case: &Case, setting: &Setting, round: u32, run: &SettingRun) {
        let said = match (&run.ran.failed, run.ran.printed(case.metric)) {
            (Some(reason), _) => format!("failed: {reason}"),
            (None, Some(rate)) => format!("{} {}/s", memspill_tables::number::scaled(rate), case.counts),
            (None, None) => "printed no rate".into(),
        };
        let knobs = setting.knobs.join(" ");
        (self.note)(&format!(
            "{}, {}, round {round} of {}: {knobs}: {said}",
            mechanism.title, case.name, self.options.pairs
        ));
    }

    fn one(&self, case: &Case, work: &Work, setting: &Setting) -> Result<SettingRun, Stop> {
        let stats_file = self.scratch.path().join("stats.json");
        let mut words = vec![OsString::from(&self.options.program), "run".into(), "--memory-max".into()];
        words.push(work.budget_bytes().to_string().into());
        for device in case.swap(work) {
            words.extend(["--swap".into(), device.into()]);
        }
        words.extend(["--stats-json".into(), stats_file.clone().into()]);
        words.extend(setting.knobs.iter().flat_map(|knob| ["--tune".into(), OsString::from(knob)]));
        words.extend(["--".into(), OsString::from(&self.options.program), "bench".into(), "workload".into()]);
        words.extend(work.words.split_whitespace().map(OsString::from));
        let mut ran = process::run(&words, None, TIMEOUT, || {})?;
        let text = fs::read_to_string(&stats_file).unwrap_or_default();
        let _ = fs::remove_file(&stats_file);
        let stats: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        // Without the right to, memspill leaves shared memory alone, and all of it stays in memory.
        if case.shared && ran.failed.is_none() && stats["shared_pgsteal"].as_u64() == Some(0) {
            ran.failed = Some("no shared memory was swapped: see memspill doctor".into());
        }
        Ok(SettingRun { ran, stats })
    }
}

/// A round that not all settings have is no pair.
fn drop_incomplete(outcome: &mut Outcome, round: u32) {
    outcome.settings.iter_mut().for_each(|runs| runs.rounds.truncate(round as usize - 1));
}
