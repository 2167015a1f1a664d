//! `memspill-lab sim seeds`: the mechanisms of the published patch threads, old against new, on machines like
//! theirs.
//!
//! ```text
//!   threads.rs   a Thread for each table: its Cases (machines), their settings, the counts it argues with
//!   here         measure them with each seed, and make the rows
//!   figures.rs   the table of what was published, with a verdict for each figure; the last one
//! ```
//!
//! The published figure stands beside the simulated one and is used for nothing else: no constant is chosen
//! by it. Facts that the threads did not say (sizes of sets, command lines) are chosen here. A setting that
//! names a knob which this build does not have is left out, and its table says so.

use crate::bench::{self, Counted, Measured, Pattern, Pieces, Setup};
use crate::figures;
use crate::host::Reclaim;
use crate::threads::{Case, Count, LockShare, Setting, THREADS, Thread};
use memspill_engine_sim::tuning::Tuning;
use memspill_tables::{Cell, Chart, Column, Report, Row, Table, Unit};
use memspill_vcpu::profile::Counts;
use std::rc::Rc;

const MS: u64 = 1_000_000;

/// What it says of the machine, in each form.
pub const MACHINE: &str = "virtual CPUs on a virtual clock; what things cost: crates/vcpu/src/cost.rs";

/// Virtual milliseconds that are measured of each setting, after a quarter of that to warm up.
pub const MS_DEFAULT: u64 = 20;

/// Seeds of each setting, one after the other.
pub const SEEDS_DEFAULT: u64 = 3;

pub struct Options {
    pub first_seed: u64,
    pub seeds: u64,
    /// Virtual milliseconds that are measured.
    pub ms: u64,
    /// The tables of this thread alone: `000`.
    pub thread: Option<String>,
}

/// Told of what goes on while it is measured.
pub trait Watch {
    /// A setting begins: so many are done, of so many, and this is its name.
    fn begins(&mut self, _done: usize, _total: usize, _name: &str) {}
    /// The report as far as it goes: its last table is done.
    fn has_table(&mut self, _report: &Report) {}
}

/// Measure all.
pub fn seeds(options: &Options, command: String, watch: &mut impl Watch) -> Report {
    let mut figures = Vec::new();
    let asked = || THREADS.iter().filter(|thread| options.thread.as_deref().is_none_or(|id| thread.id == id));
    let total = asked().flat_map(|thread| thread.cases).map(|case| case.settings.len()).sum();
    let mut done = 0;
    let mut report = Report {
        title: "Five patch threads, simulated".into(),
        command,
        machine: MACHINE.into(),
        seed: Some(options.first_seed),
        notes: Vec::new(),
        tables: Vec::new(),
    };
    for thread in asked() {
        let mut next = |name: &str| {
            watch.begins(done, total, name);
            done += 1;
        };
        report.tables.push(table(thread, options, &mut figures, &mut next));
        watch.has_table(&report);
    }
    report.tables.push(figures::table(figures));
    let seeds = match options.seeds {
        1 => "One seed.".into(),
        n => format!("Each figure is the median of {n} seeds, a change that of the changes of each seed."),
    };
    let note = "No constant is fitted to a published figure. Where the two differ, docs/simulation.md says \
                why, as far as is known.";
    report.notes = vec![seeds, note.into()];
    report
}

fn table(thread: &Thread, options: &Options, figures: &mut Vec<Row>, next: &mut impl FnMut(&str)) -> Table {
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
        if !case.of_then.is_empty() {
            table.notes.push(format!("{}: with {}.", case.machine, case.of_then.join(" ")));
        }
        let settings = measure_all(thread, case, options, &mut table.notes, next);
        let Some((_, first)) = settings.first() else { continue };
        for (n, (setting, runs)) in settings.iter().enumerate() {
            let change = if n == 0 { Cell::Nothing } else { thread.metric.change(first, runs) };
            table.rows.push(row(thread, case, setting, runs, change));
            figures.extend(setting.figures.iter().map(|f| f.row(thread.title, first, runs)));
        }
    }
    table.notes.dedup();
    table.notes.push(format!("Change: of {}, against the first setting.", thread.metric.name()));
    table.notes.extend(thread.note.map(str::to_string));
    table
}

/// The runs of each setting, one for each seed. A setting that this build does not have gets a note.
fn measure_all(
    thread: &Thread,
    case: &Case,
    options: &Options,
    notes: &mut Vec<String>,
    next: &mut impl FnMut(&str),
) -> Vec<(&'static Setting, Rc<Vec<Measured>>)> {
    let mut measured: Vec<(Key, &Setting, Rc<Vec<Measured>>)> = Vec::new();
    for setting in case.settings {
        next(&format!("{}: {}: {}", thread.title, case.machine, setting.name()));
        let tuning = match setting.tuning(case) {
            Ok(tuning) => tuning,
            Err(error) => {
                notes.push(format!("Not in this build: {error}."));
                continue;
            }
        };
        let key = (tuning, setting.unmaps, setting.requests);
        // Two forms of a thread may be one setting.
        let runs = match measured.iter().find(|(before, ..)| *before == key) {
            Some((.., runs)) => runs.clone(),
            None => {
                let seeds = options.first_seed..options.first_seed + options.seeds;
                let run = |seed| bench::measure(&case.setup(seed, options.ms, &key));
                Rc::new(seeds.map(run).collect())
            }
        };
        measured.push((key, setting, runs));
    }
    measured.into_iter().map(|(_, setting, runs)| (setting, runs)).collect()
}

/// What two settings of one machine may differ in.
type Key = (Tuning, Pieces, Pieces);

fn row(thread: &Thread, case: &Case, setting: &Setting, runs: &[Measured], change: Cell) -> Row {
    let rate = |count: fn(&Counted) -> u64| {
        let rates = runs.iter().map(|run| count(&run.counted) as f64 * 1e9 / run.measured_ns as f64);
        Cell::of(rates.collect())
    };
    let mut cells = vec![rate(|c| c.accesses), change, rate(|c| c.swapped_in), rate(|c| c.swapped_out)];
    cells.extend(thread.counts.iter().map(|count| count.cell(runs)));
    let published = setting.figures.iter().find(|figure| figure.metric == thread.metric);
    Row {
        group: case.machine.into(),
        setting: setting.name(),
        cells,
        published: published.map(|figure| figure.published),
        detail: false,
    }
}

impl Setting {
    fn name(&self) -> String {
        let unmaps = match self.unmaps {
            Pieces::Batch if !self.ours => " (unmaps in batches)",
            _ => "",
        };
        format!("{}{}{unmaps}", self.form, self.knobs.join(" "))
    }
}

impl Case {
    fn setup(&self, seed: u64, ms: u64, (tuning, unmaps, requests): &Key) -> Setup {
        let pages_per_task = match self.pattern {
            Pattern::Fresh { .. } => (self.pages_per_task * ms / MS_DEFAULT).max(FRESH_PAGES_MIN),
            _ => self.pages_per_task,
        };
        Setup {
            seed,
            cpus: self.cpus,
            tasks: self.tasks,
            cpus_per_socket: self.cpus_per_socket,
            threads: 1,
            pages_per_task,
            set_percent: self.set_percent,
            fragmented: self.fragmented,
            compute_ns: self.compute_ns,
            pattern: self.pattern,
            recorded: Rc::new([]),
            kind: self.kind,
            devices: self.devices,
            reclaim: match self.reclaimers {
                0 => Reclaim::Direct,
                n => Reclaim::Both(n),
            },
            unmaps: *unmaps,
            requests: *requests,
            work: self.work,
            by_slot: self.by_slot,
            tuning: tuning.clone(),
            warm_up_ns: ms * MS / 4,
            measured_ns: ms * MS,
        }
    }
}

/// The fresh pages of each task, however short the run.
const FRESH_PAGES_MIN: u64 = 1024;

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

impl Count {
    fn column(self) -> Column {
        let column = |key, name, unit, help| Column { key, name, unit, help };
        match self {
            Count::ClusterLocks => column(
                "cluster_locks_per_page",
                "cluster locks",
                Unit::PerPage,
                "Locks of clusters (slots, counts and swap cache of 512 slots) taken, \
                 for each page in or out.",
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
            Count::CacheHits => column(
                "cache_hit_share",
                "hit",
                Unit::Share,
                "Of the faults on pages that were swapped out: the page was in the swap cache.",
            ),
            Count::CacheMisses => column(
                "cache_miss_share",
                "miss",
                Unit::Share,
                "The page was read by way of the swap cache, its neighbours with it.",
            ),
            Count::CacheBypassed => {
                column("cache_bypass_share", "bypass", Unit::Share, "The page was read past the swap cache.")
            }
            Count::Readahead => column(
                "readahead_share",
                "readahead",
                Unit::Share,
                "Pages that came along with one that faulted, of all that came in.",
            ),
            Count::ReadaheadHits => column(
                "readahead_hit_share",
                "of it wanted",
                Unit::Share,
                "Of the pages that came along, those that were touched before they left.",
            ),
            Count::Fallbacks => column(
                "fallbacks_per_1000_pages",
                "fallbacks",
                Unit::PerThousandPages,
                "Folios of larger orders that got no slots in one piece and were split.",
            ),
            Count::Waited(LockShare { waited: (key, name), .. }) => column(
                key,
                name,
                Unit::Share,
                "Of the time in which CPUs are not idle, what is lost in this lock.",
            ),
            Count::Held(LockShare { held: (key, name), .. }) => column(
                key,
                name,
                Unit::Share,
                "Of the time in which CPUs are not idle, that in which this lock is held.",
            ),
        }
    }

    fn cell(self, runs: &[Measured]) -> Cell {
        let ratios: Vec<f64> = runs.iter().filter_map(|run| self.of(run)).collect();
        Cell::of(ratios)
    }

    /// None where there was nothing to count.
    fn of(self, measured: &Measured) -> Option<f64> {
        let m = &measured.mechanisms;
        let ratio = |count: u64, of: u64, times: f64| (of > 0).then(|| count as f64 / of as f64 * times);
        match self {
            Count::ClusterLocks => ratio(m.cluster_locks, m.pages, 1.0),
            Count::BaseSteps => ratio(m.base_steps, m.pages, 1000.0),
            Count::CgroupLocks => ratio(m.cgroup_locks, m.pages, 1.0),
            Count::CgroupContended => ratio(m.cgroup_contended, m.pages, 1000.0),
            Count::CacheHits => ratio(m.hits, m.swap_in_faults(), 1.0),
            Count::CacheMisses => ratio(m.misses, m.swap_in_faults(), 1.0),
            Count::CacheBypassed => ratio(m.bypassed, m.swap_in_faults(), 1.0),
            Count::Readahead => ratio(m.readahead, m.swapped_in, 1.0),
            Count::ReadaheadHits => ratio(m.readahead_hits, m.readahead, 1.0),
            Count::Fallbacks => ratio(m.fallbacks, m.pages, 1000.0),
            Count::Waited(share) => of_time(measured, share, Counts::lost_ns),
            Count::Held(share) => of_time(measured, share, |counts| counts.held_ns),
        }
    }
}

/// The share of the time of CPUs that are not idle that a lock takes; None if it was never taken.
fn of_time(measured: &Measured, share: &LockShare, ns: impl Fn(&Counts) -> u64) -> Option<f64> {
    let entry = measured.profile.iter().find(|entry| entry.name == share.lock)?;
    Some(ns(&entry.counts) as f64 / measured.busy_ns as f64)
}
