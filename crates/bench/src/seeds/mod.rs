//! `memspill bench seeds`: the mechanisms of the published patch threads on this machine, setting against setting.
//!
//! ```text
//!   mechanisms.rs   the tables: workloads, settings, what each thread reported, the counts that it argues with
//!   here            run them in turns: for each workload, round by round, there and back through its settings
//!   rows.rs         medians, changes round by round, failures ─▶ memspill_tables::Report
//! ```
//!
//! Each run is `memspill run --tune ... -- memspill bench workload ...`, the shipped program; what it counted is read from
//! its `--stats-json`. The first setting of a workload is the one that the others are compared with, within a round.
//! Nothing is kept of a run that failed but that it did, and why.

mod mechanisms;
mod rows;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use memspill_engine::tuning::Tuning;
use memspill_tables::Report;
use serde_json::Value;

use crate::process::{self, Ran};
use crate::scratch::Scratch;
use crate::{Stop, signals};
use mechanisms::{Case, MECHANISMS, Mechanism, Setting, Work};

/// Of one run; the longest take some tens of seconds.
const TIMEOUT: Duration = Duration::from_secs(300);
const MIB: u64 = 1 << 20;

pub struct Options {
    /// memspill itself.
    pub program: PathBuf,
    pub pairs: u32,
    pub quick: bool,
    /// Ids of tables; none: all.
    pub only: Vec<String>,
    pub ram_bytes: u64,
    pub dir: PathBuf,
    /// For the report.
    pub command: String,
    pub machine: String,
}

/// What is known of the tables that there are.
pub fn ids() -> Vec<&'static str> {
    MECHANISMS.iter().map(|mechanism| mechanism.id).collect()
}

/// How large and how long, for this machine.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Uncompressed pages that the workload keeps in memory.
    pub resident_bytes: u64,
    pub seconds: f64,
    pub jobs: u32,
}

impl Scale {
    fn of(options: &Options) -> Scale {
        if options.quick {
            return Scale { resident_bytes: 48 * MIB, seconds: 0.5, jobs: 16 };
        }
        // The original sets were many gigabytes: what matters is how much more they were than memory.
        let resident_bytes = (options.ram_bytes / 384).clamp(32 * MIB, 256 * MIB) / MIB * MIB;
        Scale { resident_bytes, seconds: 2.0, jobs: 32 }
    }
}

/// One run: what it printed and took, and what memspill counted.
pub struct Run {
    pub ran: Ran,
    pub stats: Value,
}

/// The runs of one setting, by round.
pub struct Runs {
    pub setting: &'static Setting,
    pub rounds: Vec<Run>,
}

/// A workload with its runs; and why a setting has none.
pub struct Outcome {
    pub case: &'static Case,
    pub group: String,
    pub settings: Vec<Runs>,
    pub missing: Vec<String>,
}

/// Runs it all. `note` is told of each run. A signal ends it: then the report is of what was complete, and the number of
/// the signal is with it.
pub fn seeds(options: &Options, note: &mut dyn FnMut(&str)) -> Result<(Report, Option<i32>), Stop> {
    signals::install().or_else(|error| Stop::refuse(format!("signals: {error}")))?;
    let bench = Bench { options, scratch: Scratch::make(&options.dir)?, scale: Scale::of(options), note };
    bench.all()
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
        let chosen = MECHANISMS
            .iter()
            .filter(|m| self.options.only.is_empty() || self.options.only.iter().any(|id| id == m.id));
        let mut measured: Vec<(&Mechanism, Vec<Outcome>)> = Vec::new();
        for mechanism in chosen {
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
                Ok(_) => outcome.settings.push(Runs { setting, rounds: Vec::new() }),
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

    fn tell(&mut self, mechanism: &Mechanism, case: &Case, setting: &Setting, round: u32, run: &Run) {
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

    fn one(&self, case: &Case, work: &Work, setting: &Setting) -> Result<Run, Stop> {
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
        let ran = process::run(&words, None, TIMEOUT, || {})?;
        let text = fs::read_to_string(&stats_file).unwrap_or_default();
        let _ = fs::remove_file(&stats_file);
        Ok(Run { ran, stats: serde_json::from_str(&text).unwrap_or(Value::Null) })
    }
}

/// A round that not all settings have is no pair.
fn drop_incomplete(outcome: &mut Outcome, round: u32) {
    outcome.settings.iter_mut().for_each(|runs| runs.rounds.truncate(round as usize - 1));
}
