//! From runs to rows: medians and spread, changes within a round, failures.

use memspill_tables::{Cell, Chart, Column, Report, Row, Spread, Table, Unit};

use super::mechanisms::{Count, Mechanism, Scale};
use super::runs::{Options, Outcome, SettingRun, SettingRuns};
use crate::bench::outcome;

/// From here on locks are contended as in the threads, whose machines had 8 to 48 CPUs and more.
const CPUS_THAT_MEET: usize = 16;

const CHANGE: &str = "change";
const THROUGHPUT: &str = "throughput";

pub fn report(
    options: &Options,
    scale: Scale,
    measured: &[(&Mechanism, Vec<Outcome>)],
    interrupted: Option<i32>,
) -> Report {
    let mut notes = vec![
        "Medians of the rounds that ended well, with the least and the most. Changes are taken within a \
         round, settings in turns, there and back."
            .to_string(),
        "Swap is a RAM disk outside of the budget, as in the threads.".to_string(),
    ];
    notes.extend(few_cpus(options.cpus));
    if interrupted.is_some() {
        notes.push(
            "Interrupted: there are the rounds that were complete by then, and no tables after.".into(),
        );
    }
    if options.quick {
        notes.push(format!(
            "Quick: {} s a run and {} MiB in memory show that it works, and little else.",
            scale.seconds,
            scale.resident_bytes >> 20
        ));
    }
    Report {
        title: "Five patch threads on this machine".into(),
        command: options.command.clone(),
        machine: options.machine.clone(),
        seed: None,
        notes,
        tables: measured.iter().map(|(mechanism, outcomes)| table(mechanism, outcomes)).collect(),
    }
}

/// What this machine cannot show.
fn few_cpus(cpus: usize) -> Option<String> {
    let these = match cpus {
        0..=1 => "One CPU never meets another in a lock".to_string(),
        2..CPUS_THAT_MEET => format!("{cpus} CPUs hardly meet in a lock"),
        _ => return None,
    };
    Some(format!(
        "{these}: what the threads gained by fewer of them (000, 001 with 16 processes, the builds of 002) \
         cannot be seen here; memspill-lab sim seeds shows it, on as many virtual CPUs as they had."
    ))
}

fn table(mechanism: &Mechanism, outcomes: &[Outcome]) -> Table {
    let figures: Vec<Figure> =
        FIGURES.iter().chain(mechanism.counts.iter().map(figure_of)).copied().collect();
    let mut columns: Vec<Column> = figures.iter().map(|figure| figure.column.clone()).collect();
    columns.insert(1, CHANGE_COLUMN);
    let mut notes = vec![format!("Published: {}.", mechanism.published)];
    let mut missing: Vec<String> = outcomes.iter().flat_map(|outcome| outcome.missing.clone()).collect();
    missing.dedup();
    notes.extend(missing);
    notes.extend(outcomes.iter().flat_map(failures));
    notes.extend(mechanism.note.map(str::to_string));
    let charts = [THROUGHPUT, "fault_p99_ns"];
    Table {
        id: mechanism.id,
        title: mechanism.title.into(),
        row_name: "setting",
        columns,
        rows: outcomes.iter().flat_map(|outcome| rows(outcome, &figures)).collect(),
        notes,
        change: Some(CHANGE),
        charts: charts.map(|column| Chart::Bars { column, one_scale: false }).into(),
    }
}

fn rows(outcome: &Outcome, figures: &[Figure]) -> Vec<Row> {
    let first = outcome.settings.first();
    let row = |runs: &SettingRuns| {
        let spread = |figure: &Figure| spread(good(runs).filter_map(|run| (figure.get)(run, outcome)));
        let mut cells: Vec<Cell> = figures.iter().map(spread).collect();
        let base = first.filter(|first| !std::ptr::eq(*first, runs));
        cells.insert(1, base.map_or(Cell::Nothing, |base| changes(outcome, base, runs)));
        Row {
            group: outcome.group.clone(),
            setting: runs.setting.knobs.join(" "),
            cells,
            published: runs.setting.published,
            detail: false,
        }
    };
    outcome.settings.iter().map(row).collect()
}

/// Round by round, of rounds in which both ended well.
fn changes(outcome: &Outcome, base: &SettingRuns, runs: &SettingRuns) -> Cell {
    let rate = |run: &SettingRun| {
        run.ran.printed(outcome.case.metric).filter(|rate| run.ran.failed.is_none() && *rate > 0.0)
    };
    let rounds = base.rounds.iter().zip(&runs.rounds);
    spread(rounds.filter_map(|(old, new)| Some(rate(new)? / rate(old)? - 1.0)))
}

fn good(runs: &SettingRuns) -> impl Iterator<Item = &SettingRun> {
    runs.rounds.iter().filter(|run| run.ran.failed.is_none())
}

fn spread(values: impl Iterator<Item = f64>) -> Cell {
    let values: Vec<f64> = values.collect();
    outcome::Spread::of(&values).map_or(Cell::Nothing, |s| {
        Cell::Number(Spread { median: s.median, least: s.least, most: s.most, samples: values.len() })
    })
}

/// A line for each setting of which runs have failed, with the first reason.
fn failures(outcome: &Outcome) -> Vec<String> {
    let line = |runs: &SettingRuns| {
        let mut reasons = runs.rounds.iter().filter_map(|run| run.ran.failed.as_ref());
        let first = reasons.next()?;
        let failed = 1 + reasons.count();
        let knobs = runs.setting.knobs.join(" ");
        Some(format!(
            "{failed} of {} runs failed: {}, {knobs}: {first}.",
            runs.rounds.len(),
            outcome.case.name
        ))
    };
    outcome.settings.iter().filter_map(line).collect()
}

// ---- figures ----------------------------------------------------------------------------------------------

/// A column, and its value in one run.
#[derive(Clone, Copy)]
struct Figure {
    column: &'static Column,
    get: fn(&SettingRun, &Outcome) -> Option<f64>,
}

fn stat(run: &SettingRun, name: &str) -> Option<f64> {
    run.stats.get(name)?.as_f64()
}

fn pages(run: &SettingRun) -> Option<f64> {
    Some(stat(run, "pswpin")? + stat(run, "pswpout")?).filter(|pages| *pages > 0.0)
}

fn for_each_page(run: &SettingRun, names: &[&str], times: f64) -> Option<f64> {
    let counts: Option<f64> = names.iter().map(|name| stat(run, name)).sum();
    Some(counts? / pages(run)? * times)
}

/// The share of the CPU time of the workload and memspill. Threads that wait for a lock sleep after a moment,
/// so it may be more than all.
fn of_cpu_time(run: &SettingRun, name: &str) -> Option<f64> {
    let cpu_ns = (run.ran.system_s + run.ran.user_s) * 1e9;
    Some(stat(run, name)? / Some(cpu_ns).filter(|ns| *ns > 0.0)?)
}

/// The sum over all orders that memspill counts.
fn fallbacks(run: &SettingRun) -> Option<f64> {
    let orders = run.stats.as_object()?.values();
    orders.filter_map(|of_order| of_order.get("swpout_fallback")?.as_f64()).reduce(|a, b| a + b)
}

const CHANGE_COLUMN: Column = Column {
    key: CHANGE,
    name: "change",
    unit: Unit::Change,
    help: "Throughput against the first setting of the workload, in the same round.",
};

const FIGURES: [Figure; 8] = [
    Figure {
        column: &Column {
            key: THROUGHPUT,
            name: "throughput",
            unit: Unit::PerSecond,
            help: "What the workload counts: the last words of its name.",
        },
        get: |run, outcome| run.ran.printed(outcome.case.metric),
    },
    Figure {
        column: &Column {
            key: "swap_in_per_s",
            name: "swap-in",
            unit: Unit::PerSecond,
            help: "Pages read from slots, in the time that the workload measures.",
        },
        get: |run, _| Some(stat(run, "pswpin")? / run.ran.printed("seconds").filter(|s| *s > 0.0)?),
    },
    Figure {
        column: &Column {
            key: "swap_out_per_s",
            name: "swap-out",
            unit: Unit::PerSecond,
            help: "Pages written to slots, in the time of the whole run.",
        },
        get: |run, _| Some(stat(run, "pswpout")? / run.ran.wall_s),
    },
    Figure {
        column: &Column {
            key: "fault_p50_ns",
            name: "fault p50",
            unit: Unit::Nanoseconds,
            help: "Half of the faults took at most so long to serve, once the pager had read them.",
        },
        get: |run, _| stat(run, "fault_ns_p50"),
    },
    Figure {
        column: &Column {
            key: "fault_p99_ns",
            name: "fault p99",
            unit: Unit::Nanoseconds,
            help: "99 % of the faults took at most so long to serve, once the pager had read them.",
        },
        get: |run, _| stat(run, "fault_ns_p99"),
    },
    Figure {
        column: &Column {
            key: "fault_p999_ns",
            name: "fault p99.9",
            unit: Unit::Nanoseconds,
            help: "99.9 % of the faults took at most so long to serve, once the pager had read them.",
        },
        get: |run, _| stat(run, "fault_ns_p999"),
    },
    Figure {
        column: &Column {
            key: "system_s",
            name: "system",
            unit: Unit::Seconds,
            help: "Time in the kernel, of the workload and memspill together.",
        },
        get: |run, _| Some(run.ran.system_s),
    },
    Figure {
        column: &Column {
            key: "user_s",
            name: "user",
            unit: Unit::Seconds,
            help: "Time outside of the kernel, of the workload and memspill together.",
        },
        get: |run, _| Some(run.ran.user_s),
    },
];

fn figure_of(count: &Count) -> &'static Figure {
    match count {
        Count::Locks => &Figure {
            column: &Column {
                key: "locks_per_page",
                name: "locks",
                unit: Unit::PerPage,
                help: "Locks of clusters, of their lists and of the cgroup map, for each page that went in \
                    or out.",
            },
            get: |run, _| for_each_page(run, &["cluster_locks", "list_locks", "cgroup_locks"], 1.0),
        },
        Count::ClusterContended => &Figure {
            column: &Column {
                key: "cluster_contended_per_1000_pages",
                name: "clusters contended",
                unit: Unit::PerThousandPages,
                help: "Locks of clusters that another thread held when they were tried.",
            },
            get: |run, _| for_each_page(run, &["cluster_contended"], 1000.0),
        },
        Count::ListContended => &Figure {
            column: &Column {
                key: "list_contended_per_1000_pages",
                name: "lists contended",
                unit: Unit::PerThousandPages,
                help: "Locks of the lists of clusters that another thread held when they were tried.",
            },
            get: |run, _| for_each_page(run, &["list_contended"], 1000.0),
        },
        Count::CgroupContended => &Figure {
            column: &Column {
                key: "cgroup_contended_per_1000_pages",
                name: "map contended",
                unit: Unit::PerThousandPages,
                help: "Locks of the swap cgroup map that another thread held, or exchanges that were tried \
                    again.",
            },
            get: |run, _| for_each_page(run, &["cgroup_contended", "cgroup_retries"], 1000.0),
        },
        Count::ScanSteps => &Figure {
            column: &Column {
                key: "scan_steps_per_page",
                name: "scan steps",
                unit: Unit::PerPage,
                help: "Words of 64 slots looked at in searches of clusters.",
            },
            get: |run, _| for_each_page(run, &["scan_steps"], 1.0),
        },
        Count::BaseSteps => &Figure {
            column: &Column {
                key: "base_steps_per_1000_pages",
                name: "trunks scanned",
                unit: Unit::PerThousandPages,
                help: "Trunks of 64 MiB looked at in searches from a scan base.",
            },
            get: |run, _| for_each_page(run, &["base_steps"], 1000.0),
        },
        Count::Readahead => &Figure {
            column: &Column {
                key: "readahead_share",
                name: "readahead",
                unit: Unit::Share,
                help: "Pages that came along with one that faulted, of all that came in.",
            },
            get: |run, _| Some(stat(run, "swap_ra")? / stat(run, "pswpin").filter(|pages| *pages > 0.0)?),
        },
        Count::ReadaheadHits => &Figure {
            column: &Column {
                key: "readahead_hit_share",
                name: "of it wanted",
                unit: Unit::Share,
                help: "Of the pages that were read ahead into the swap cache, those that were found there.",
            },
            get: |run, _| {
                // If none goes by the cache, the pages that came along were mapped, and nobody knows.
                stat(run, "swap_cache_miss").filter(|misses| *misses > 0.0)?;
                Some(stat(run, "swap_ra_hit")? / stat(run, "swap_ra").filter(|pages| *pages > 0.0)?)
            },
        },
        Count::CacheHits => &Figure {
            column: &Column {
                key: "cache_hit_share",
                name: "hit",
                unit: Unit::Share,
                help: "Of the faults on pages that were swapped out: the page was in the swap cache.",
            },
            get: |run, _| of_swap_in_faults(run, "swap_cache_hit"),
        },
        Count::CacheMisses => &Figure {
            column: &Column {
                key: "cache_miss_share",
                name: "miss",
                unit: Unit::Share,
                help: "The page was read by way of the swap cache, its neighbours with it.",
            },
            get: |run, _| of_swap_in_faults(run, "swap_cache_miss"),
        },
        Count::CacheBypassed => &Figure {
            column: &Column {
                key: "cache_bypass_share",
                name: "bypass",
                unit: Unit::Share,
                help: "The page was read past the swap cache.",
            },
            get: |run, _| of_swap_in_faults(run, "swap_cache_bypass"),
        },
        Count::Fallbacks => &Figure {
            column: &Column {
                key: "fallbacks_per_1000_pages",
                name: "fallbacks",
                unit: Unit::PerThousandPages,
                help: "Folios of larger orders that were split, for a thousand pages in or out.",
            },
            get: |run, _| Some(fallbacks(run)? / pages(run)? * 1000.0),
        },
        Count::ClustersWaited => &Figure {
            column: &Column {
                key: "cluster_waited_share",
                name: "clusters waited",
                unit: Unit::Share,
                help: "Time that threads waited for locks of 512 slots, as a share of all \
                    CPU time.",
            },
            get: |run, _| of_cpu_time(run, "cluster_waited_ns"),
        },
        Count::ClustersHeld => &Figure {
            column: &Column {
                key: "cluster_held_share",
                name: "clusters held",
                unit: Unit::Share,
                help: "Time that threads held locks of 512 slots, as a share of all \
                    CPU time.",
            },
            get: |run, _| of_cpu_time(run, "cluster_held_ns"),
        },
        Count::TrunksWaited => &Figure {
            column: &Column {
                key: "trunk_waited_share",
                name: "trunks waited",
                unit: Unit::Share,
                help: "Time that threads waited for old locks of the swap cache, as a share of all \
                    CPU time.",
            },
            get: |run, _| of_cpu_time(run, "trunk_waited_ns"),
        },
        Count::TrunksHeld => &Figure {
            column: &Column {
                key: "trunk_held_share",
                name: "trunks held",
                unit: Unit::Share,
                help: "Time that threads held old locks of the swap cache, as a share of all \
                    CPU time.",
            },
            get: |run, _| of_cpu_time(run, "trunk_held_ns"),
        },
        Count::DeviceWaited => &Figure {
            column: &Column {
                key: "device_waited_share",
                name: "device waited",
                unit: Unit::Share,
                help: "Time that threads waited for the old lock of a device's slots, as a share of all \
                    CPU time.",
            },
            get: |run, _| of_cpu_time(run, "device_waited_ns"),
        },
        Count::DeviceHeld => &Figure {
            column: &Column {
                key: "device_held_share",
                name: "device held",
                unit: Unit::Share,
                help: "Time that threads held the old lock of a device's slots, as a share of all \
                    CPU time.",
            },
            get: |run, _| of_cpu_time(run, "device_held_ns"),
        },
        Count::MapWaited => &Figure {
            column: &Column {
                key: "cgroup_waited_share",
                name: "map waited",
                unit: Unit::Share,
                help: "Time that threads waited for the lock of the cgroup map, as a share of all \
                    CPU time.",
            },
            get: |run, _| of_cpu_time(run, "cgroup_waited_ns"),
        },
        Count::MapHeld => &Figure {
            column: &Column {
                key: "cgroup_held_share",
                name: "map held",
                unit: Unit::Share,
                help: "Time that threads held the lock of the cgroup map, as a share of all \
                    CPU time.",
            },
            get: |run, _| of_cpu_time(run, "cgroup_held_ns"),
        },
    }
}

/// The share of one kind in the faults on pages that were swapped out.
fn of_swap_in_faults(run: &SettingRun, kind: &str) -> Option<f64> {
    let kinds = ["swap_cache_hit", "swap_cache_miss", "swap_cache_bypass"];
    let all: f64 = kinds.iter().map(|kind| stat(run, kind)).sum::<Option<f64>>()?;
    Some(stat(run, kind)? / Some(all).filter(|faults| *faults > 0.0)?)
}

#[cfg(test)]
mod tests {
    use super::super::mechanisms::MECHANISMS;
    use super::*;
    use crate::bench::process::CommandRun;
    use serde_json::json;

    fn run(rate: f64, failed: Option<&str>) -> SettingRun {
        SettingRun {
            ran: CommandRun {
                wall_s: 2.0,
                system_s: 1.5,
                user_s: 0.5,
                printed: vec![("ops_per_s".into(), rate), ("seconds".into(), 1.0)],
                failed: failed.map(str::to_string),
                ..CommandRun::default()
            },
            stats: json!({"pswpin": 300, "pswpout": 500, "swap_ra": 75, "swap_ra_hit": 30,
                "swap_cache_hit": 50, "swap_cache_miss": 40, "swap_cache_bypass": 10, "cluster_locks": 1600,
                "list_locks": 0, "cgroup_locks": 0, "hugepages-64kB": {"swpout_fallback": 6},
                "hugepages-2048kB": {"swpout_fallback": 2},
                "trunk_waited_ns": 400_000_000, "trunk_held_ns": 0}),
        }
    }

    fn outcome() -> Outcome {
        let case = &MECHANISMS[3].cases[0];
        let runs = |at: usize, rounds| SettingRuns { setting: &case.settings[at], rounds };
        let old = vec![run(100.0, None), run(200.0, Some("killed")), run(400.0, None)];
        let new = vec![run(150.0, None), run(900.0, None), run(400.0, None)];
        Outcome { case, group: "g".into(), settings: vec![runs(0, old), runs(1, new)], missing: vec![] }
    }

    #[test]
    fn changes_are_within_a_round_that_both_ended_well() {
        let table = table(&MECHANISMS[3], &[outcome()]);
        let cell = |row: usize, key: &str| &table.rows[row].cells[table.column(key).unwrap()];
        assert_eq!(cell(0, CHANGE), &Cell::Nothing);
        let change = cell(1, CHANGE).number().unwrap();
        assert_eq!((change.median, change.least, change.most, change.samples), (0.25, 0.0, 0.5, 2));
        let rate = cell(0, THROUGHPUT).number().unwrap();
        assert_eq!((rate.median, rate.samples), (250.0, 2), "a failed run has no rate");
        assert_eq!(cell(1, "readahead_share").number().unwrap().median, 0.25);
        assert_eq!(cell(1, "swap_out_per_s").number().unwrap().median, 250.0);
        let failed = table.notes.iter().find(|note| note.contains("failed")).unwrap();
        assert!(failed.starts_with("1 of 3 runs failed: ") && failed.ends_with("killed."), "{failed}");
    }

    #[test]
    fn few_cpus_are_said_to_be_few() {
        assert!(few_cpus(1).unwrap().starts_with("One CPU never meets"));
        let two = few_cpus(2).unwrap();
        assert!(two.starts_with("2 CPUs hardly meet") && two.contains("memspill-lab sim seeds"), "{two}");
        assert_eq!(few_cpus(CPUS_THAT_MEET), None);
    }

    #[test]
    fn counts_are_of_all_locks_and_all_orders() {
        let (run, outcome) = (run(1.0, None), outcome());
        let of = |count: Count| (figure_of(&count).get)(&run, &outcome);
        assert_eq!(of(Count::Locks), Some(2.0));
        assert_eq!(of(Count::Fallbacks), Some(10.0));
        let cache = [Count::CacheHits, Count::CacheMisses, Count::CacheBypassed, Count::ReadaheadHits];
        assert_eq!(cache.map(of), [0.5, 0.4, 0.1, 0.4].map(Some));
        assert_eq!(of(Count::CgroupContended), None, "what is not counted is not zero");
        assert_eq!([of(Count::TrunksWaited), of(Count::TrunksHeld)], [Some(0.2), Some(0.0)]);
        assert_eq!(of(Count::DeviceWaited), None);
    }
}
