//! `memspill sim seeds`: the mechanisms of the published patch threads, old against new, on machines like theirs.
//!
//! ```text
//!   threads.rs   a Thread for each table: its Cases (machines), their settings, the counts that it argues with
//!   here         measure them, and make the rows
//! ```
//!
//! The published figure stands beside the simulated one and is used for nothing else: no constant is chosen by it. What the
//! threads did not say (sizes of sets, command lines) is taken from docs/simulation.md. A setting that names a knob which this
//! build does not have is left out, and its table says so.

use crate::bench::{self, Measured, Mechanisms, Setup};
use crate::host::Reclaim;
use crate::threads::{Case, Count, Metric, THREADS, Thread};
use memspill_engine_sim::tuning::Tuning;
use memspill_tables::{Cell, Chart, Column, Report, Row, Table, Unit};

const MS: u64 = 1_000_000;

/// What it says of the machine, in each form.
pub const MACHINE: &str = "virtual CPUs on a virtual clock; what things cost: crates/vcpu/src/cost.rs";

/// Virtual milliseconds that are measured of each setting, after a quarter of that to warm up.
pub const MS_DEFAULT: u64 = 20;

/// Measure all, `ms` virtual milliseconds of each setting; `done` is told the name of each that was.
pub fn seeds(seed: u64, ms: u64, command: String, mut done: impl FnMut(&str)) -> Report {
    Report {
        title: "Five patch threads, simulated".into(),
        command,
        machine: MACHINE.into(),
        seed: Some(seed),
        notes: vec![
            "No constant is fitted to a published figure. Where the two differ, docs/simulation.md says why, as far as is \
             known."
                .into(),
        ],
        tables: THREADS.iter().map(|thread| table(thread, seed, ms, &mut done)).collect(),
    }
}

fn table(thread: &Thread, seed: u64, ms: u64, done: &mut impl FnMut(&str)) -> Table {
    let mut table = Table {
        id: thread.id,
        title: thread.title.into(),
        row_name: "setting",
        columns: RATES.iter().cloned().chain(thread.counts.iter().map(|count| count.column())).collect(),
        rows: Vec::new(),
        notes: thread.published.map(|published| format!("Published: {published}.")).into_iter().collect(),
        change: Some(CHANGE),
        charts: vec![Chart::Bars { column: thread.metric.key(), one_scale: false }],
    };
    for case in thread.cases {
        let (rows, missing) = rows(thread, case, seed, ms, done);
        table.rows.extend(rows);
        table.notes.extend(missing);
    }
    table.notes.dedup();
    table.notes.push(format!("Change: of {}, against the first setting.", thread.metric.name()));
    table.notes.extend(thread.note.map(str::to_string));
    table
}

/// Rows of one machine, and a note for each setting that this build does not have.
fn rows(thread: &Thread, case: &Case, seed: u64, ms: u64, done: &mut impl FnMut(&str)) -> (Vec<Row>, Vec<String>) {
    let (mut rows, mut missing, mut first) = (Vec::new(), Vec::new(), None);
    for setting in case.settings {
        let tuning = match Tuning::parse(setting.knobs.iter().copied()) {
            Ok(tuning) => tuning,
            Err(error) => {
                missing.push(format!("Not in this build: {error}."));
                continue;
            }
        };
        let measured = bench::measure(&case.setup(seed, ms, tuning));
        let value = thread.metric.of(&measured);
        let change = match first {
            Some(first) => Cell::once(value / first - 1.0),
            None => Cell::Nothing,
        };
        first.get_or_insert(value);
        let knobs = setting.knobs.join(" ");
        done(&format!("{}: {}: {knobs}", thread.title, case.machine));
        rows.push(Row {
            group: case.machine.into(),
            setting: knobs,
            cells: cells(&measured, change, thread.counts),
            published: setting.published,
            detail: false,
        });
    }
    (rows, missing)
}

impl Case {
    fn setup(&self, seed: u64, ms: u64, tuning: Tuning) -> Setup {
        let (cpus, cpus_per_socket, threads) = self.shape;
        Setup {
            seed,
            cpus,
            cpus_per_socket,
            threads,
            pages_per_cpu: 2048,
            set_percent: self.set_percent,
            pattern: self.pattern,
            kind: self.kind,
            devices: self.devices,
            reclaim: Reclaim::Direct,
            tuning,
            warm_up_ns: ms * MS / 4,
            measured_ns: ms * MS,
        }
    }
}

impl Metric {
    fn key(self) -> &'static str {
        match self {
            Metric::SwapOut => "swap_out_per_s",
            Metric::Accesses => "accesses_per_s",
        }
    }
    fn name(self) -> &'static str {
        match self {
            Metric::SwapOut => "swap-out",
            Metric::Accesses => "accesses",
        }
    }
    fn of(self, measured: &Measured) -> f64 {
        let counted = match self {
            Metric::SwapOut => measured.counted.swapped_out,
            Metric::Accesses => measured.counted.accesses,
        };
        per_second(counted, measured)
    }
}

const CHANGE: &str = "change";

const RATES: [Column; 4] = [
    Column {
        key: "accesses_per_s",
        name: "accesses",
        unit: Unit::PerSecond,
        help: "Accesses to pages by all tasks together.",
    },
    Column {
        key: CHANGE,
        name: "change",
        unit: Unit::Change,
        help: "Throughput against the first setting of the group.",
    },
    Column { key: "swap_in_per_s", name: "swap-in", unit: Unit::PerSecond, help: "Pages read from slots." },
    Column {
        key: "swap_out_per_s",
        name: "swap-out",
        unit: Unit::PerSecond,
        help: "Pages written to slots.",
    },
];

fn cells(measured: &Measured, change: Cell, counts: &[Count]) -> Vec<Cell> {
    let rate = |count| Cell::once(per_second(count, measured));
    let counted = &measured.counted;
    let rates = [rate(counted.accesses), change, rate(counted.swapped_in), rate(counted.swapped_out)];
    rates.into_iter().chain(counts.iter().map(|count| count.cell(&measured.mechanisms))).collect()
}

fn per_second(count: u64, measured: &Measured) -> f64 {
    count as f64 * 1e9 / measured.measured_ns as f64
}

impl Count {
    fn column(self) -> Column {
        let column = |key, name, unit, help| Column { key, name, unit, help };
        match self {
            Count::ClusterLocks => column(
                "cluster_locks_per_page",
                "cluster locks",
                Unit::PerPage,
                "Locks of clusters (slots, counts and swap cache of 512 slots) taken, for each page in or out.",
            ),
            Count::ClusterContended => column(
                "cluster_contended_per_1000_pages",
                "contended",
                Unit::PerThousandPages,
                "Locks of clusters that another CPU held when they were tried.",
            ),
            Count::ListContended => column(
                "list_contended_per_1000_pages",
                "lists contended",
                Unit::PerThousandPages,
                "Locks of the lists of clusters that another CPU held when they were tried.",
            ),
            Count::ScanSteps => column(
                "scan_steps_per_page",
                "scan steps",
                Unit::PerPage,
                "Words of 64 slots looked at in searches of clusters.",
            ),
            Count::BaseSteps => column(
                "base_steps_per_1000_pages",
                "trunks scanned",
                Unit::PerThousandPages,
                "Trunks of 64 MiB looked at in searches from a scan base.",
            ),
            Count::CgroupLocks => column(
                "cgroup_locks_per_page",
                "map locks",
                Unit::PerPage,
                "Locks of the swap cgroup map taken, for each page in or out.",
            ),
            Count::CgroupContended => column(
                "cgroup_contended_per_1000_pages",
                "contended",
                Unit::PerThousandPages,
                "Locks of the swap cgroup map that another CPU held when they were tried.",
            ),
            Count::Readahead => column(
                "readahead_share",
                "readahead",
                Unit::Share,
                "Pages that came along with one that faulted, of all that came in.",
            ),
            Count::ReadaheadHits => column(
                "readahead_hit_share",
                "hits",
                Unit::Share,
                "Of the pages that came along, those that were touched before they left.",
            ),
            Count::Fallbacks => column(
                "fallbacks_per_1000_pages",
                "fallbacks",
                Unit::PerThousandPages,
                "Folios of larger orders that got no slots in one piece and were split.",
            ),
        }
    }

    fn cell(self, m: &Mechanisms) -> Cell {
        let ratio = |count: u64, of: u64, times: f64| match of {
            0 => Cell::Nothing,
            _ => Cell::once(count as f64 / of as f64 * times),
        };
        match self {
            Count::ClusterLocks => ratio(m.cluster_locks, m.pages, 1.0),
            Count::ClusterContended => ratio(m.cluster_contended, m.pages, 1000.0),
            Count::ListContended => ratio(m.list_contended, m.pages, 1000.0),
            Count::ScanSteps => ratio(m.scan_steps, m.pages, 1.0),
            Count::BaseSteps => ratio(m.base_steps, m.pages, 1000.0),
            Count::CgroupLocks => ratio(m.cgroup_locks, m.pages, 1.0),
            Count::CgroupContended => ratio(m.cgroup_contended, m.pages, 1000.0),
            Count::Readahead => ratio(m.readahead, m.swapped_in, 1.0),
            Count::ReadaheadHits => ratio(m.readahead_hits, m.readahead, 1.0),
            Count::Fallbacks => ratio(m.fallbacks, m.pages, 1000.0),
        }
    }
}
