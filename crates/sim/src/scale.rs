//! `memspill-lab sim scale`: throughput on more and more CPUs, against linear, and what the time is lost in.

use crate::bench::{self, Measured, Pattern, Pieces, Setup, Work};
use crate::device::DeviceKind;
use crate::fragments::Fragmented;
use crate::host::{Back, Reclaim};
use crate::kernel;
use crate::policy::trace::Trace;
use crate::seeds::MACHINE;
use memspill_engine_sim::layout::Layout;
use memspill_engine_sim::tuning::{Tuning, TuningError};
use memspill_tables::{Cell, Chart, Column, Report, Row, Table, Unit};
use memspill_vcpu::profile::Entry;
use std::rc::Rc;

/// Locks and atomics that people see for each number of CPUs; programs see all.
const TOP: usize = 4;

/// Pages of a task, where no recording says it.
const PAGES_PER_TASK: u64 = 2048;

/// The pages that tasks touch.
#[derive(Clone, Debug)]
pub enum Touches {
    Made(Pattern),
    /// A process for each task, which touches the recorded pages again and again. Memory holds as many of
    /// them as the trace says.
    Recorded(Trace),
}

/// The arrangement: the threads that serve faults and make room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrangement {
    /// Each thread for itself.
    Direct,
    /// The kernel: the same, with its own costs in place of userfaultfd's.
    Kernel,
    /// Pagers and reclaimers on the programs' CPUs, as `memspill run` has them; or so many of them.
    Pager { pagers: Option<u32>, reclaimers: Option<u32>, back: Back },
}

impl Arrangement {
    fn reclaim(self, cpus: u32) -> Reclaim {
        let Arrangement::Pager { pagers, reclaimers, back } = self else { return Reclaim::Direct };
        let mut layout = Layout::for_cpus(cpus);
        if back.counts {
            layout = Layout { pagers: cpus.clamp(1, 8), reclaimers: cpus.clamp(1, 4) };
        }
        layout.pagers = pagers.unwrap_or(layout.pagers).min(cpus);
        layout.reclaimers = reclaimers.unwrap_or(layout.reclaimers);
        Reclaim::Pagers(layout, back)
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub cpus: Vec<u32>,
    pub seed: u64,
    pub cpus_per_socket: u32,
    pub threads: u32,
    pub arrangement: Arrangement,
    pub touches: Touches,
    pub kind: DeviceKind,
    /// They have one priority, and take pages in turns.
    pub devices: u32,
    /// The devices are so full from the start on, with free slots here and there.
    pub fragmented_percent: Option<u64>,
    pub ms: u64,
    pub tune: Vec<String>,
}

impl Options {
    fn setup(&self, cpus: u32, tuning: Tuning) -> Setup {
        let (work, pieces) = match self.arrangement {
            Arrangement::Kernel => (Work::Kernel(kernel::OF_2025), Pieces::Folio),
            _ => (Work::Pager, Pieces::Batch),
        };
        let (pattern, recorded, pages_per_task, set_percent): (_, Rc<[u32]>, _, _) = match &self.touches {
            Touches::Made(pattern) => (*pattern, Rc::new([]), PAGES_PER_TASK, 200),
            Touches::Recorded(trace) => {
                let pages = u64::from(trace.pages);
                let set_percent = pages * 100 / u64::from(trace.memory);
                (Pattern::Recorded, trace.accesses.as_slice().into(), pages, set_percent)
            }
        };
        let of_each_device = pages_per_task * u64::from(cpus) / u64::from(self.devices);
        Setup {
            seed: self.seed,
            cpus,
            cpus_per_socket: self.cpus_per_socket,
            threads: self.threads.min(cpus),
            tasks: cpus,
            pages_per_task,
            set_percent,
            fragmented: self.fragmented_percent.map(|full| Fragmented::with_room_for(of_each_device, full)),
            compute_ns: 0,
            pattern,
            recorded,
            kind: self.kind,
            devices: self.devices,
            reclaim: self.arrangement.reclaim(cpus),
            unmaps: pieces,
            requests: pieces,
            work,
            by_slot: false,
            tuning,
            warm_up_ns: self.ms * 1_000_000 / 4,
            measured_ns: self.ms * 1_000_000,
        }
    }
}

#[derive(Debug)]
pub struct Point {
    pub cpus: u32,
    /// Throughput of a CPU, as a share of what it is in the first row.
    pub efficiency: f64,
    pub measured: Measured,
}

/// Measure each number of CPUs. Before each `begins` is told how many are done, and which one this is.
pub fn scale(options: &Options, mut begins: impl FnMut(usize, u32)) -> Result<Vec<Point>, TuningError> {
    let tuning = Tuning::parse(options.tune.iter().map(String::as_str))?;
    let mut points: Vec<Point> = Vec::new();
    for cpus in &options.cpus {
        begins(points.len(), *cpus);
        let measured = bench::measure(&options.setup(*cpus, tuning.clone()));
        let per_cpu = measured.pages_per_s() / f64::from(*cpus);
        let first = points.first().map_or(per_cpu, |p| p.measured.pages_per_s() / f64::from(p.cpus));
        points.push(Point { cpus: *cpus, efficiency: per_cpu / first, measured });
    }
    Ok(points)
}

pub fn report(options: &Options, points: &[Point], command: String) -> Report {
    Report {
        title: "Swap on more and more virtual CPUs".into(),
        command,
        machine: MACHINE.into(),
        seed: Some(options.seed),
        notes: Vec::new(),
        tables: vec![throughput(points), losses(points)],
    }
}

fn throughput(points: &[Point]) -> Table {
    let column = |key, name, unit, help| Column { key, name, unit, help };
    Table {
        id: "throughput",
        title: "Throughput".into(),
        row_name: "CPUs",
        columns: vec![
            column("pages_per_s", "pages", Unit::PerSecond, "Pages in and out."),
            column(
                "efficiency",
                "of linear",
                Unit::Share,
                "Throughput of a CPU, of what it is in the first row.",
            ),
            column("swap_in_per_s", "swap-in", Unit::PerSecond, "Pages read from slots."),
            column("swap_out_per_s", "swap-out", Unit::PerSecond, "Pages written to slots."),
            column("faults_per_s", "faults", Unit::PerSecond, "Faults that reached the pager."),
            column("fault_p50_ns", "fault, p50", Unit::Nanoseconds, "Half of the faults took no longer."),
            column("fault_p99_ns", "p99", Unit::Nanoseconds, "Of 100 faults 99 took no longer."),
        ],
        rows: points.iter().map(throughput_row).collect(),
        notes: Vec::new(),
        change: None,
        charts: vec![Chart::Line { column: "pages_per_s" }],
    }
}

fn throughput_row(point: &Point) -> Row {
    let m = &point.measured;
    let rate = |count: u64| Cell::once(count as f64 * 1e9 / m.measured_ns as f64);
    Row {
        group: String::new(),
        setting: point.cpus.to_string(),
        cells: vec![
            Cell::once(m.pages_per_s()),
            Cell::once(point.efficiency),
            rate(m.counted.swapped_in),
            rate(m.counted.swapped_out),
            rate(m.counted.faults),
            Cell::once(m.fault_ns[0] as f64),
            Cell::once(m.fault_ns[1] as f64),
        ],
        published: None,
        detail: false,
    }
}

/// The losses of warm-up and measured stretch together.
fn losses(points: &[Point]) -> Table {
    let column = |key, name, unit, help| Column { key, name, unit, help };
    let rows = points.iter().flat_map(|point| {
        let entries = point.measured.profile.iter().enumerate();
        entries.map(|(i, entry)| loss_row(point, entry, i >= TOP))
    });
    Table {
        id: "losses",
        title: "What the time of all CPUs is lost in".into(),
        row_name: "lock or atomic",
        columns: vec![
            column(
                "lost_share",
                "lost",
                Unit::Share,
                "Waits and moves of cache lines, of the time of all CPUs.",
            ),
            column("uses", "uses", Unit::Count, "Times that it was taken or changed."),
            column("waits", "waits", Unit::Count, "Uses that queued for the lock or the line."),
            column("wait_ns", "waited", Unit::Nanoseconds, "Time in those queues, of all CPUs together."),
            column(
                "move_ns",
                "lines moved",
                Unit::Nanoseconds,
                "Time in which its line came from another CPU.",
            ),
            column("held_ns", "held", Unit::Nanoseconds, "Time for which a lock was held."),
            column("worst_site", "most at", Unit::Words, "The call site that lost most."),
        ],
        rows: rows.collect(),
        notes: vec![format!("The {TOP} that lose most of each; JSON and CSV have all.")],
        change: None,
        charts: vec![Chart::Bars { column: "lost_share", one_scale: true }],
    }
}

fn loss_row(point: &Point, entry: &Entry, detail: bool) -> Row {
    let counts = &entry.counts;
    let number = |value: u64| Cell::once(value as f64);
    Row {
        group: format!("{} CPU{}", point.cpus, if point.cpus == 1 { "" } else { "s" }),
        setting: entry.name.clone(),
        cells: vec![
            Cell::once(counts.lost_ns() as f64 / point.measured.cpu_ns as f64),
            number(counts.uses),
            number(counts.waits),
            number(counts.wait_ns),
            number(counts.move_ns),
            number(counts.held_ns),
            // An atomic is named by where it is used.
            if entry.name.ends_with(&entry.worst_site) {
                Cell::Nothing
            } else {
                Cell::Words(entry.worst_site.clone())
            },
        ],
        published: None,
        detail,
    }
}
