//! The JSON line that a workload prints, and the ways in which it fails.
//!
//! The JSON is our own, because names and words in it are this crate's and need no escapes, and what this
//! program links is in the figures of workloads that execute it again.

use std::fmt;
use std::io;
use std::time::Instant;

use crate::contents::Mismatch;
use crate::histogram::Histogram;
use crate::os;

pub type Outcome = Result<Report, Failure>;

pub enum Failure {
    Usage(String),
    System(String),
    Bad(String),
}

impl Failure {
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::System(_) => 3,
            Failure::Bad(_) => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Failure::Usage(text) | Failure::System(text) | Failure::Bad(text) => write!(f, "{text}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::System(error.to_string())
    }
}

/// Tells a bad page and ends the process at once. Allocates nothing: it also runs in forked children.
pub fn bad_page(mismatch: &Mismatch, doing: &str) -> ! {
    os::write_stderr(format_args!("memspill-workload: {mismatch}; while: {doing}\n"));
    os::exit_now(1)
}

/// Stops where a check fails.
pub fn expect(result: Result<(), Mismatch>, doing: &str) {
    if let Err(mismatch) = result {
        bad_page(&mismatch, doing)
    }
}

/// Measures wall, user and system time from `start` on, children that were waited for included.
pub struct Meter {
    start: Instant,
    user: f64,
    system: f64,
}

impl Meter {
    pub fn start() -> Meter {
        let (user, system) = os::cpu_time();
        Meter { start: Instant::now(), user, system }
    }

    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    pub fn report(&self) -> Report {
        self.report_of(self.seconds())
    }

    /// Where the work took `seconds` and its processes have been waited for only after that.
    pub fn report_of(&self, seconds: f64) -> Report {
        let (user, system) = os::cpu_time();
        let mut report = Report { fields: Vec::new(), seconds };
        report.fraction("seconds", seconds);
        report.fraction("user_s", user - self.user);
        report.fraction("system_s", system - self.system);
        report
    }
}

pub struct Report {
    fields: Vec<(String, String)>,
    seconds: f64,
}

impl Report {
    pub fn count(&mut self, name: &str, value: u64) {
        self.fields.push((name.to_string(), value.to_string()));
    }

    pub fn fraction(&mut self, name: &str, value: f64) {
        self.fields.push((name.to_string(), format!("{value:.6}")));
    }

    pub fn text(&mut self, name: &str, value: &str) {
        self.fields.push((name.to_string(), format!("\"{value}\"")));
    }

    /// `name` and `name_per_s`.
    pub fn rate(&mut self, name: &str, value: u64) {
        self.count(name, value);
        self.fraction(&format!("{name}_per_s"), value as f64 / self.seconds.max(1e-9));
    }

    pub fn latency(&mut self, histogram: &Histogram) {
        for (name, percent) in [("p50_ns", 50.0), ("p90_ns", 90.0), ("p99_ns", 99.0), ("p99_9_ns", 99.9)] {
            self.count(name, histogram.percentile(percent));
        }
    }

    pub fn json(&self, workload: &str) -> String {
        let fields: Vec<String> =
            self.fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{\"workload\":\"{workload}\",{},\"bad_pages\":0}}", fields.join(","))
    }
}
