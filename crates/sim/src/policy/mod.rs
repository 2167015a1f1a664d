//! `memspill-lab sim policy`: which pages leave. Traces under policies, by what is known of resident pages.
//!
//! ```text
//!   trace.rs, recorded.rs ─▶ machine.rs: memory, a signal ─▶ faults, soft faults, virtual time ─▶ tables
//!                              ├ arrivals.rs    the engine's reclaim, and changes of it
//!                              ├ published.rs   others' policies
//!                              └ opt.rs         the bound
//! ```

pub mod arrivals;
pub mod machine;
pub mod opt;
pub mod published;
pub mod recorded;
pub mod trace;

use arrivals::{Arrivals, Order};
use machine::{Outcome, Policy, Signal, replay};
use memspill_tables::{Cell, Column, Report, Row, Table, Unit};
use published::{AnyPage, Clock, Lirs, SegmentedFifo, TwoQueues};
use trace::Trace;

/// Pages that memory holds in the traces that are made here, and touches for each of them.
pub const MEMORY_DEFAULT: u32 = 8192;
pub const TOUCHES_DEFAULT: u32 = 100;

pub struct Options {
    pub seed: u64,
    pub memory: u32,
    /// For each page of memory.
    pub touches: u32,
    /// Traces beside those that are made here; instead of them, if there are any.
    pub recorded: Vec<Trace>,
    pub signals: Vec<Signal>,
}

/// A policy for pages below `pages`, by a seed.
type Make = fn(pages: u32, seed: u64) -> Box<dyn Policy>;

/// How a policy is called, and what one says of it.
struct Entry {
    key: &'static str,
    name: &'static str,
    help: &'static str,
    /// None: the bound, which is the same whatever is known.
    make: Option<Make>,
}

const POLICIES: &[Entry] = &[
    Entry {
        key: "today",
        name: "arrival",
        help: "In the order of arrival: who came first leaves, who comes back soon has another round.",
        make: Some(|pages, seed| Box::new(Arrivals::new(Order::Arrival, pages, seed))),
    },
    Entry {
        key: "duel",
        name: "duel",
        help: "The engine's: by arrival or bimodal, as fewer pages come back for some blocks of each.",
        make: Some(|pages, seed| Box::new(Arrivals::new(Order::Duel, pages, seed))),
    },
    Entry {
        key: "bimodal",
        name: "bimodal",
        help: "As arrival, but who comes back not very soon is on trial in a 32nd to an 8th of memory.",
        make: Some(|pages, seed| Box::new(Arrivals::new(Order::Bimodal, pages, seed))),
    },
    Entry {
        key: "any",
        name: "any page",
        help: "As arrival, but any page is the next one to be looked at.",
        make: Some(|pages, seed| Box::new(Arrivals::new(Order::Any, pages, seed))),
    },
    Entry {
        key: "fifo",
        name: "FIFO, CLOCK",
        help: "First in, first out; with another round for what was used, where that is known: CLOCK.",
        make: Some(|_, _| Box::new(Clock::default())),
    },
    Entry {
        key: "random",
        name: "random",
        help: "Any page leaves.",
        make: Some(|_, seed| Box::new(AnyPage::new(seed))),
    },
    Entry {
        key: "sfifo",
        name: "SFIFO",
        help: "Segmented FIFO: what is used in the last quarter begins anew.",
        make: Some(|_, _| Box::new(SegmentedFifo::default())),
    },
    Entry {
        key: "2q",
        name: "2Q",
        help: "A short queue first, a quarter; who comes back within half a memory goes to the long one.",
        make: Some(|_, _| Box::new(TwoQueues::two_q())),
    },
    Entry {
        key: "s3fifo",
        name: "S3-FIFO",
        help: "The same with a tenth and a whole memory.",
        make: Some(|_, _| Box::new(TwoQueues::s3_fifo())),
    },
    Entry {
        key: "lirs",
        name: "LIRS",
        help: "By the distance of the last two uses that are known.",
        make: Some(|pages, _| Box::new(Lirs::new(pages))),
    },
    Entry { key: "opt", name: "OPT", help: "The bound: what is used again last leaves.", make: None },
];

/// All policies under one trace and signal, in their order.
struct Result {
    trace: String,
    outcomes: Vec<Outcome>,
}

/// Simulate all. Before each trace `begins` is told how many are done, of how many, and its name.
pub fn policy(options: &Options, command: String, mut begins: impl FnMut(usize, usize, &str)) -> Report {
    let made = match options.recorded.is_empty() {
        true => {
            let length = options.memory as usize * options.touches as usize;
            trace::made(options.memory, length, options.seed)
        }
        false => Vec::new(),
    };
    let traces: Vec<&Trace> = made.iter().chain(&options.recorded).collect();
    let mut by_signal: Vec<(Signal, Vec<Result>)> =
        options.signals.iter().map(|s| (*s, Vec::new())).collect();
    // The measure of all: the first policy, by faults alone.
    let mut measure = Vec::new();
    for (n, trace) in traces.iter().enumerate() {
        begins(n, traces.len(), &trace.name);
        let bound = opt::opt(&trace.accesses, trace.pages, trace.memory);
        let run = |entry: &Entry, signal| match entry.make {
            Some(make) => {
                let mut policy = make(trace.pages, options.seed);
                replay(&trace.accesses, trace.pages, trace.memory, signal, policy.as_mut())
            }
            None => bound,
        };
        measure.push(run(&POLICIES[0], Signal::Faults));
        for (signal, results) in &mut by_signal {
            let outcomes = POLICIES.iter().map(|entry| run(entry, *signal)).collect();
            results.push(Result { trace: trace.name.clone(), outcomes });
        }
    }
    let mut tables = Vec::new();
    for (signal, results) in &by_signal {
        tables.push(times(*signal, results, &measure));
        tables.push(counts(*signal, "Pages that came back", results, |o| o.faults));
        if results.iter().any(|r| r.outcomes.iter().any(|o| o.soft_faults > 0)) {
            tables.push(counts(*signal, "Soft faults", results, |o| o.soft_faults));
        }
    }
    let memory = match options.recorded.is_empty() {
        true => format!("Memory of {} pages, {} touches for each.", options.memory, options.touches),
        false => {
            let sizes = traces.iter().map(|t| format!("{}: {} pages", t.name, t.memory));
            format!("Memory: {}.", sizes.collect::<Vec<_>>().join(", "))
        }
    };
    Report {
        title: "Which pages leave".into(),
        command,
        machine: "one virtual CPU; what things cost: crates/vcpu/src/cost.rs".into(),
        seed: Some(options.seed),
        notes: vec![memory, "What the traces and the policies are: docs/policy.md.".into()],
        tables,
    }
}

fn columns(unit: Unit) -> Vec<Column> {
    POLICIES.iter().map(|p| Column { key: p.key, name: p.name, unit, help: p.help }).collect()
}

fn row(setting: &str, cells: Vec<Cell>) -> Row {
    Row { group: String::new(), setting: setting.into(), cells, published: None, detail: false }
}

fn table(id: &'static str, title: String, rows: Vec<Row>, unit: Unit, note: &str) -> Table {
    Table {
        id,
        title,
        row_name: "trace",
        columns: columns(unit),
        rows,
        notes: vec![note.into()],
        change: None,
        charts: Vec::new(),
    }
}

fn times(signal: Signal, results: &[Result], measure: &[Outcome]) -> Table {
    let ratio = |outcome: &Outcome, than: &Outcome| outcome.virtual_ns as f64 / than.virtual_ns as f64;
    let ratios: Vec<Vec<f64>> = results
        .iter()
        .zip(measure)
        .map(|(r, than)| r.outcomes.iter().map(|o| ratio(o, than)).collect())
        .collect();
    let change = |ratio: f64| Cell::once(ratio - 1.0);
    let mut rows: Vec<Row> = results
        .iter()
        .zip(&ratios)
        .map(|(r, ratios)| row(&r.trace, ratios.iter().map(|ratio| change(*ratio)).collect()))
        .collect();
    let of_policy = |policy: usize| ratios.iter().map(move |of_trace| of_trace[policy]);
    let each = |of: &dyn Fn(usize) -> f64| (0..POLICIES.len()).map(|policy| change(of(policy))).collect();
    rows.push(row("geometric mean", each(&|policy| geometric_mean(of_policy(policy)))));
    rows.push(row("worst", each(&|policy| of_policy(policy).fold(f64::NEG_INFINITY, f64::max))));
    let title = format!("Virtual time, {}", signal.name());
    let note = "Against arrival by faults alone.";
    table(ids(signal)[0], title, rows, Unit::Change, note)
}

fn counts(signal: Signal, what: &str, results: &[Result], count: fn(&Outcome) -> u64) -> Table {
    let cells = |r: &Result| r.outcomes.iter().map(|o| Cell::once(count(o) as f64)).collect();
    let rows = results.iter().map(|r| row(&r.trace, cells(r))).collect();
    let is_soft = what.starts_with("Soft");
    let id = ids(signal)[if is_soft { 2 } else { 1 }];
    let note = "First touches are not counted; they are the same for all.";
    table(id, format!("{what}, {}", signal.name()), rows, Unit::Count, note)
}

/// The ids of its tables: of times, faults, soft faults.
fn ids(signal: Signal) -> [&'static str; 3] {
    match signal {
        Signal::Faults => ["faults-time", "faults-faults", "faults-soft"],
        Signal::Sampled => ["sampled-time", "sampled-faults", "sampled-soft"],
        Signal::Standby => ["standby-time", "standby-faults", "standby-soft"],
        Signal::Bits => ["bits-time", "bits-faults", "bits-soft"],
    }
}

/// The root of the product by Newton's method: the standard library's powers differ between machines.
fn geometric_mean(ratios: impl Iterator<Item = f64>) -> f64 {
    let (product, n) = ratios.fold((1.0, 0), |(product, n), ratio| (product * ratio, n + 1));
    let power = |root: f64| (1..n).fold(1.0, |power, _| power * root);
    let mut root = 1.0;
    for _ in 0..200 {
        root += (product / power(root) - root) / f64::from(n);
    }
    root
}

#[cfg(test)]
mod tests;
