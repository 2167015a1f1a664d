//! The request to `memspill-lab bench seeds`, and the results of its runs.

use std::path::PathBuf;

use serde_json::Value;

use super::mechanisms::{Case, Setting};
use crate::bench::process::CommandRun;

pub struct Options {
    /// This program.
    pub program: PathBuf,
    pub pairs: u32,
    pub quick: bool,
    /// Ids of tables; none: all.
    pub only: Vec<String>,
    pub ram_bytes: u64,
    pub cpus: usize,
    pub dir: PathBuf,
    /// For the report.
    pub command: String,
    pub machine: String,
}

/// One run with a setting: what it printed and took, and what memspill counted.
pub struct SettingRun {
    pub ran: CommandRun,
    pub stats: Value,
}

/// The runs of one setting, by round.
pub struct SettingRuns {
    pub setting: &'static Setting,
    pub rounds: Vec<SettingRun>,
}

/// A workload with its runs; and why a setting has none.
pub struct Outcome {
    pub case: &'static Case,
    pub group: String,
    pub settings: Vec<SettingRuns>,
    pub missing: Vec<String>,
}
