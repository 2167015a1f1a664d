//! `memspill sim scale`: throughput on more and more CPUs, against linear, and what the time is lost in.

use crate::bench::{self, Measured, Pattern, Setup};
use crate::device::Kind;
use crate::host::Reclaim;
use crate::text::{json_string, percent, rate};
use memspill_engine_sim::tuning::{Tuning, TuningError};
use std::fmt::Write;

/// Version of the JSON's shape.
const SCHEMA: u32 = 1;
/// Locks and atomics shown for each row.
const TOP: usize = 4;

#[derive(Clone, Debug)]
pub struct Options {
    pub cpus: Vec<u32>,
    pub seed: u64,
    pub cpus_per_socket: u32,
    pub threads: u32,
    pub reclaimers: u32,
    pub kind: Kind,
    pub ms: u64,
    pub tune: Vec<String>,
}

impl Options {
    fn setup(&self, cpus: u32, tuning: Tuning) -> Setup {
        Setup {
            seed: self.seed,
            cpus,
            cpus_per_socket: self.cpus_per_socket,
            threads: self.threads.min(cpus),
            pages_per_cpu: 2048,
            set_percent: 200,
            pattern: Pattern::Random { write_percent: 20 },
            kind: self.kind,
            devices: 1,
            reclaim: if self.reclaimers == 0 {
                Reclaim::Direct
            } else {
                Reclaim::Background(self.reclaimers)
            },
            tuning,
            warm_up_ns: self.ms * 1_000_000 / 4,
            measured_ns: self.ms * 1_000_000,
        }
    }
}

#[derive(Debug)]
pub struct Row {
    pub cpus: u32,
    /// Throughput of a CPU, as a share of what it is in the first row.
    pub efficiency: f64,
    pub measured: Measured,
}

/// Measure each number of CPUs; `done` is told of each row.
pub fn scale(options: &Options, mut done: impl FnMut(&Row)) -> Result<Vec<Row>, TuningError> {
    let tuning = Tuning::parse(options.tune.iter().map(String::as_str))?;
    let mut rows: Vec<Row> = Vec::new();
    for cpus in &options.cpus {
        let measured = bench::measure(&options.setup(*cpus, tuning.clone()));
        let per_cpu = measured.pages_per_s() / f64::from(*cpus);
        let first = rows.first().map_or(per_cpu, |row| row.measured.pages_per_s() / f64::from(row.cpus));
        let row = Row { cpus: *cpus, efficiency: per_cpu / first, measured };
        done(&row);
        rows.push(row);
    }
    Ok(rows)
}

/// The rows as a table, each with its losses below.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from("  CPUs     pages/s   of linear   swap-in/s  swap-out/s  time lost to\n");
    for row in rows {
        let m = &row.measured;
        let seconds = m.measured_ns as f64 / 1e9;
        let _ = write!(
            text,
            "{:>6}  {:>10}  {:>10}  {:>10}  {:>10}",
            row.cpus,
            rate(m.pages_per_s()),
            percent(row.efficiency),
            rate(m.counted.swapped_in as f64 / seconds),
            rate(m.counted.swapped_out as f64 / seconds),
        );
        for (i, entry) in m.profile.iter().take(TOP).enumerate() {
            let share = percent(entry.counts.lost_ns() as f64 / m.cpu_ns as f64);
            let indent = if i == 0 { 2 } else { 56 };
            let site = if entry.name.ends_with(&entry.worst_site) {
                String::new()
            } else {
                format!(" at {}", entry.worst_site)
            };
            let _ = writeln!(text, "{:indent$}{share:>6}  {}{site}", "", entry.name);
        }
    }
    text
}

pub fn json(options: &Options, rows: &[Row]) -> String {
    let mut text = format!("{{\n  \"schema\": {SCHEMA},\n  \"seed\": {},\n  \"rows\": [", options.seed);
    for (i, row) in rows.iter().enumerate() {
        let m = &row.measured;
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(
            text,
            "{comma}\n    {{\"cpus\": {}, \"efficiency\": {:.4}, \"measured_ns\": {}, \"cpu_ns\": {}, \"faults\": {}, \
             \"swapped_in\": {}, \"swapped_out\": {}, \"losses\": [",
            row.cpus,
            row.efficiency,
            m.measured_ns,
            m.cpu_ns,
            m.counted.faults,
            m.counted.swapped_in,
            m.counted.swapped_out,
        );
        for (i, entry) in m.profile.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let c = &entry.counts;
            let _ = write!(
                text,
                "{comma}\n      {{\"name\": {}, \"worst_site\": {}, \"uses\": {}, \"waits\": {}, \"wait_ns\": {}, \
                 \"move_ns\": {}, \"held_ns\": {}}}",
                json_string(&entry.name),
                json_string(&entry.worst_site),
                c.uses,
                c.waits,
                c.wait_ns,
                c.move_ns,
                c.held_ns,
            );
        }
        text.push_str("\n    ]}");
    }
    text.push_str("\n  ]\n}\n");
    text
}
