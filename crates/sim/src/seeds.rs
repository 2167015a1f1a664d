//! `memspill sim seeds`: the mechanisms of the published patch threads, old against new, on machines like theirs.
//!
//! The published figure stands beside the simulated one and is used for nothing else: no constant is chosen by it. What the
//! threads did not say (sizes of sets, command lines) is taken from docs/simulation.md.

use crate::bench::{self, Measured, Pattern, Setup};
use crate::device::Kind;
use crate::host::Reclaim;
use crate::text::{json_string, percent, rate};
use memspill_engine_sim::tuning::{Tuning, TuningError};
use std::fmt::Write;

/// Version of the JSON's shape.
const SCHEMA: u32 = 1;
const MS: u64 = 1_000_000;

/// What is compared: more is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Metric {
    SwapOut,
    Accesses,
}

impl Metric {
    fn name(self) -> &'static str {
        match self {
            Metric::SwapOut => "swap-out/s",
            Metric::Accesses => "accesses/s",
        }
    }
    fn of(self, measured: &Measured) -> f64 {
        let counted = match self {
            Metric::SwapOut => measured.counted.swapped_out,
            Metric::Accesses => measured.counted.accesses,
        };
        counted as f64 * 1e9 / measured.measured_ns as f64
    }
}

struct Case {
    thread: &'static str,
    machine: &'static str,
    /// CPUs, CPUs of a socket, threads of a process.
    shape: (u32, u32, u32),
    pattern: Pattern,
    kind: Kind,
    devices: u32,
    old: &'static [&'static str],
    new: &'static [&'static str],
    metric: Metric,
    published: &'static str,
}

const STORES: Pattern = Pattern::Sequential;
const MIXED: Pattern = Pattern::Random { write_percent: 20 };
const READS: Pattern = Pattern::Random { write_percent: 0 };
const UNBATCHED: &[&str] = &["slot-batch=1", "cache-batch=1"];
const BATCHED: &[&str] = &["slot-batch=64", "cache-batch=32"];

const CASES: &[Case] = &[
    Case {
        thread: "000 scan base",
        machine: "16 tasks, 2 sockets, 2 RAM disks",
        shape: (16, 8, 1),
        pattern: MIXED,
        kind: Kind::RamDisk,
        devices: 2,
        old: &["scan-base=shared"],
        new: &["scan-base=per-cpu-trunk"],
        metric: Metric::Accesses,
        published: "+15.9 %",
    },
    Case {
        thread: "001 batches",
        machine: "1 thread, pmem",
        shape: (1, 8, 1),
        pattern: STORES,
        kind: Kind::RamDisk,
        devices: 1,
        old: UNBATCHED,
        new: BATCHED,
        metric: Metric::SwapOut,
        published: "+25 %",
    },
    Case {
        thread: "001 batches",
        machine: "16 threads, 2 sockets, pmem",
        shape: (16, 8, 1),
        pattern: STORES,
        kind: Kind::RamDisk,
        devices: 1,
        old: UNBATCHED,
        new: BATCHED,
        metric: Metric::SwapOut,
        published: "+85 %",
    },
    Case {
        thread: "001 batches",
        machine: "48 CPUs, 2 sockets, pmem",
        shape: (48, 24, 1),
        pattern: MIXED,
        kind: Kind::RamDisk,
        devices: 1,
        old: UNBATCHED,
        new: BATCHED,
        metric: Metric::SwapOut,
        published: "-",
    },
    Case {
        thread: "002 cgroup map",
        machine: "1 thread, RAM disk",
        shape: (1, 48, 1),
        pattern: STORES,
        kind: Kind::RamDisk,
        devices: 1,
        old: &["cgroup-map=locked"],
        new: &["cgroup-map=lock-free"],
        metric: Metric::Accesses,
        published: "+0.7 % (noise)",
    },
    Case {
        thread: "002 cgroup map",
        machine: "96 tasks, 2 sockets, RAM disk",
        shape: (96, 48, 1),
        pattern: MIXED,
        kind: Kind::RamDisk,
        devices: 1,
        old: &["cgroup-map=locked"],
        new: &["cgroup-map=lock-free"],
        metric: Metric::Accesses,
        published: "sys -10.4 %, real -6.6 %",
    },
    Case {
        thread: "003 readahead",
        machine: "16 tasks, random reads, RAM disk",
        shape: (16, 8, 1),
        pattern: READS,
        kind: Kind::RamDisk,
        devices: 1,
        old: &["readahead=always"],
        new: &["readahead=auto"],
        metric: Metric::Accesses,
        published: "+3.85 %",
    },
    Case {
        thread: "003 readahead",
        machine: "1 thread, sequential, RAM disk",
        shape: (1, 8, 1),
        pattern: STORES,
        kind: Kind::RamDisk,
        devices: 1,
        old: &["readahead=always"],
        new: &["readahead=auto"],
        metric: Metric::Accesses,
        published: "dd: time -1.1 %",
    },
    Case {
        thread: "003, ours",
        machine: "1 thread, sequential, RAM disk",
        shape: (1, 8, 1),
        pattern: STORES,
        kind: Kind::RamDisk,
        devices: 1,
        old: &["readahead=auto"],
        new: &["readahead=stream"],
        metric: Metric::Accesses,
        published: "-",
    },
    Case {
        thread: "004 folios",
        machine: "8 CPUs, 64K split",
        shape: (8, 8, 1),
        pattern: STORES,
        kind: Kind::RamDisk,
        devices: 1,
        old: &["folio=4K"],
        new: &["folio=64K", "large-folios=split"],
        metric: Metric::SwapOut,
        published: "-14.6 %",
    },
    Case {
        thread: "004 folios",
        machine: "8 CPUs, 64K whole",
        shape: (8, 8, 1),
        pattern: STORES,
        kind: Kind::RamDisk,
        devices: 1,
        old: &["folio=4K"],
        new: &["folio=64K", "large-folios=all"],
        metric: Metric::SwapOut,
        published: "+44.2 %",
    },
    Case {
        thread: "004 folios",
        machine: "8 CPUs, 2M whole",
        shape: (8, 8, 1),
        pattern: STORES,
        kind: Kind::RamDisk,
        devices: 1,
        old: &["folio=4K"],
        new: &["folio=2M", "large-folios=all"],
        metric: Metric::SwapOut,
        published: "+97.7 %",
    },
    Case {
        thread: "page-cluster",
        machine: "1 thread, sequential, NVMe",
        shape: (1, 8, 1),
        pattern: STORES,
        kind: Kind::Nvme,
        devices: 1,
        old: &["readahead=always", "page-cluster=0"],
        new: &["readahead=always", "page-cluster=3"],
        metric: Metric::Accesses,
        published: "-",
    },
    Case {
        thread: "page-cluster",
        machine: "4 threads, random reads, NVMe",
        shape: (4, 8, 4),
        pattern: READS,
        kind: Kind::Nvme,
        devices: 1,
        old: &["readahead=always", "page-cluster=0"],
        new: &["readahead=always", "page-cluster=3"],
        metric: Metric::Accesses,
        published: "-",
    },
];

pub struct Row {
    case: &'static Case,
    old: f64,
    new: f64,
}

impl Row {
    fn change(&self) -> f64 {
        self.new / self.old - 1.0
    }
    pub fn name(&self) -> String {
        format!("{}: {}", self.case.thread, self.case.machine)
    }
}

impl Case {
    fn measure(&self, seed: u64, knobs: &[&str]) -> Result<f64, TuningError> {
        let (cpus, cpus_per_socket, threads) = self.shape;
        let setup = Setup {
            seed,
            cpus,
            cpus_per_socket,
            threads,
            pages_per_cpu: 2048,
            set_percent: 200,
            pattern: self.pattern,
            kind: self.kind,
            devices: self.devices,
            reclaim: Reclaim::Direct,
            tuning: Tuning::parse(knobs.iter().copied())?,
            warm_up_ns: 5 * MS,
            measured_ns: 20 * MS,
        };
        Ok(self.metric.of(&bench::measure(&setup)))
    }
}

/// Measure all cases; `done` is told of each.
pub fn seeds(seed: u64, mut done: impl FnMut(&Row)) -> Result<Vec<Row>, TuningError> {
    let mut rows = Vec::new();
    for case in CASES {
        let row = Row { case, old: case.measure(seed, case.old)?, new: case.measure(seed, case.new)? };
        done(&row);
        rows.push(row);
    }
    Ok(rows)
}

pub fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<15} {:<35} {:>8} {:>8} {:<11} {:>9}  {}\n",
        "thread", "machine", "old", "new", "", "simulated", "published"
    );
    for row in rows {
        let Row { case, old, new } = row;
        let sign = if row.change() < 0.0 { "" } else { "+" };
        let _ = writeln!(
            text,
            "{:<15} {:<35} {:>8} {:>8} {:<11} {:>9}  {}",
            case.thread,
            case.machine,
            rate(*old),
            rate(*new),
            case.metric.name(),
            format!("{sign}{}", percent(row.change())),
            case.published,
        );
    }
    text
}

pub fn json(seed: u64, rows: &[Row]) -> String {
    let mut text = format!("{{\n  \"schema\": {SCHEMA},\n  \"seed\": {seed},\n  \"rows\": [");
    for (i, row) in rows.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let case = row.case;
        let _ = write!(
            text,
            "{comma}\n    {{\"thread\": {}, \"machine\": {}, \"old_knobs\": {}, \"new_knobs\": {}, \"metric\": {}, \
             \"old\": {:.0}, \"new\": {:.0}, \"change\": {:.4}, \"published\": {}}}",
            json_string(case.thread),
            json_string(case.machine),
            json_string(&case.old.join(" ")),
            json_string(&case.new.join(" ")),
            json_string(case.metric.name()),
            row.old,
            row.new,
            row.change(),
            json_string(case.published),
        );
    }
    text.push_str("\n  ]\n}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_names_knobs_that_there_are_and_differ() {
        for case in CASES {
            let tuning = |knobs: &[&str]| Tuning::parse(knobs.iter().copied()).unwrap();
            assert_ne!(tuning(case.old), tuning(case.new), "{}", case.machine);
        }
    }
}
