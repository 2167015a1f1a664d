//! What a run says of itself, at its end or when asked: `--stats` for a reader, `--stats-json` for a program.

use crate::args::RunArgs;
use crate::message::plain;
use crate::size::human;
use memspill_engine::engine::Engine;
use memspill_engine::group::Group;
use memspill_engine::slots::{LockTotals, SlotStats};
use memspill_engine::units::{MAX_ORDER, Order, PAGE_SIZE};
use memspill_pager::process::Process;
use memspill_pager::run::Run;
use memspill_pager::run::record::{FILE_MAX_BYTES, Recorded};
use memspill_pager::stall::{Pressure, Share};
use memspill_pager::supervisor::Ended;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// Version of the JSON's shape: raised when a name changes its meaning or goes.
const SCHEMA: u32 = 1;

pub fn at_the_end(args: &RunArgs, ended: &Ended) {
    if args.stats {
        eprint!("{}", table(&ended.run));
    }
    if let Some(path) = &args.stats_json
        && let Err(e) = std::fs::write(path, json(&ended.run, Some(ended.exit_code)))
    {
        eprintln!("memspill: cannot write {}: {e}", path.display());
    }
    if let (Some(path), Some(recorded)) = (&args.record, ended.run.recording.end()) {
        tell_recording(path, &recorded);
    }
}

/// A recording that has not all of the faults.
fn tell_recording(path: &Path, Recorded { written, left_out, error }: &Recorded) {
    let path = path.display();
    match error {
        Some(e) => eprintln!("memspill: --record {path}: cannot write: {e}; {left_out} faults are not in it"),
        None if *left_out > 0 => eprintln!(
            "memspill: --record {path}: the first {written} faults; {left_out} more are not in it, for it \
             takes no more than {}",
            human(FILE_MAX_BYTES)
        ),
        None => {}
    }
}

/// Of this process, memspill itself: all its threads, in the kernel and out of it.
fn cpu_time_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// (name, value, help): values now, as opposed to the counters.
fn gauges(run: &Run) -> Vec<(&'static str, u64, &'static str)> {
    let engine: &Engine = &run.engine;
    let usage: Vec<_> = engine.devices().ever_added().map(|d| d.backing.usage()).collect();
    let sum = |get: fn(&memspill_engine::backing::Usage) -> u64| usage.iter().map(get).sum::<u64>();
    let tables = run.account.largest_tables();
    let fault_ns = run.fault_times();
    vec![
        ("memory_max_bytes", engine.root().limit_bytes(), "the budget"),
        ("memory_peak_bytes", engine.root().peak_bytes(), "the most that was counted against it"),
        ("tables_peak_bytes", tables.bytes, "the most that page tables, LRU lists and swap maps took"),
        (
            "tables_peak_pages",
            tables.managed_pages,
            "pages, in memory or swapped out, that were managed then",
        ),
        ("swap_ram_bytes", sum(|u| u.ram_bytes), "RAM held by the compressed pool at the end"),
        ("swap_ram_peak_bytes", run.account.largest_pool_bytes(), "the most RAM that it held"),
        ("swap_ram_disk_bytes", sum(|u| u.ram_disk_bytes), "RAM held by RAM disks at the end, not counted"),
        ("swap_ram_disk_peak_bytes", run.account.largest_ram_disk_bytes(), "the most RAM that they held"),
        ("swap_file_bytes", sum(|u| u.file_bytes), "disk held by swap files at the end"),
        ("written_back_pages", sum(|u| u.written_back_pages_total), "pages moved from the pool to the file"),
        (
            "swap_write_ios",
            sum(|u| u.write_ios_total),
            "writes to swap files, each of pages that lie in a row",
        ),
        ("swap_read_ios", sum(|u| u.read_ios_total), "reads of swap files"),
        ("shared_objects", run.account.shared_objects(), "objects of shared memory that were managed"),
        ("shared_peak_bytes", run.account.largest_shared_bytes(), "the most shared memory that was counted"),
        ("shared_pgsteal", run.account.shared_pages_out(), "pages of shared memory that were taken out"),
        ("shared_given_back", run.files.given_back(), "files that were brought back, for calls used them"),
        ("shared_left_alone", run.files.left_alone(), "files that may not be managed"),
        ("elapsed_us", run.elapsed_us(), "time since the start"),
        (
            "stall_some_us",
            run.stall.pressure().some.total_us as u64,
            "time in which a thread waited for memory",
        ),
        (
            "stall_full_us",
            run.stall.pressure().full.total_us as u64,
            "of that, time in which no thread ran meanwhile",
        ),
        ("cpu_ns", cpu_time_ns(), "CPU time of memspill itself"),
        ("fault_ns_p50", fault_ns.percentile_ns(500), "time to serve a fault, once read: median"),
        ("fault_ns_p99", fault_ns.percentile_ns(990), "99 % of faults took at most this"),
        ("fault_ns_p999", fault_ns.percentile_ns(999), "99.9 % of faults took at most this"),
    ]
}

/// Folios of each order, under the names of the kernel's counters for huge pages.
fn folios(run: &Run) -> impl Iterator<Item = (String, Vec<(&'static str, u64, &'static str)>)> {
    let kib = |order: Order| order.pages() as usize * PAGE_SIZE / 1024;
    let stats = run.engine.stats();
    (1..=MAX_ORDER)
        .map(Order)
        .map(move |order| (format!("hugepages-{}kB", kib(order)), stats.of_order(order)))
}

pub fn table(run: &Run) -> String {
    let mut text = String::new();
    for (name, value, help) in gauges(run).into_iter().chain(run.engine.stats().list()) {
        let shown = if name.ends_with("_bytes") { human(value) } else { value.to_string() };
        let _ = writeln!(text, "memspill: {name:<24} {shown:>14}  {}", help.trim());
    }
    for (name, share) in [("some", run.stall.pressure().some), ("full", run.stall.pressure().full)] {
        let of_all = share.total_us * 100.0 / run.elapsed_us().max(1) as f64;
        let Share { avg10, avg60, avg300, .. } = share;
        let _ = writeln!(
            text,
            "memspill: stall {name:<18} {of_all:>12.2} %  of the time; of the last 10 s {avg10:.2} %, \
             60 s {avg60:.2} %, 300 s {avg300:.2} %"
        );
    }
    for process in living(run) {
        let Pressure { some, full } = process.stall.pressure();
        let (pid, faults) = (process.memory.pid(), process.faults());
        let (resident, swapped) = (human(resident_bytes(&process)), human(swapped_bytes(&process)));
        let _ = writeln!(
            text,
            "memspill: process {pid} ({}): {resident} in memory, {swapped} swapped out, {faults} faults; \
             stall in the last 10 s: some {:.2} %, full {:.2} %",
            command_of(pid),
            some.avg10,
            full.avg10,
        );
    }
    for (size, counts) in folios(run).filter(|(_, counts)| counts.iter().any(|(_, value, _)| *value > 0)) {
        let shown: Vec<String> = counts.iter().map(|(name, value, _)| format!("{name} {value}")).collect();
        let _ = writeln!(text, "memspill: {size:<24} {}", shown.join(", "));
    }
    for (lock, totals) in locks(&run.engine).filter(|(_, totals)| totals.taken > 0) {
        let share = |ns: u64| ns as f64 * 100.0 / cpu_time_ns().max(1) as f64;
        let _ = writeln!(
            text,
            "memspill: lock {lock:<19} {:>14}  taken; of the CPU time waited for {:.2} %, held {:.2} %",
            totals.taken,
            share(totals.waited_ns),
            share(totals.held_ns),
        );
    }
    for group in run.engine.groups().all().iter().skip(1) {
        let events: Vec<String> =
            group_values(group).iter().map(|(name, value)| format!("{name} {value}")).collect();
        let _ = writeln!(text, "memspill: group {:<18} {}", group.name, events.join("  "));
    }
    text
}

/// So many processes are shown by themselves: a reply to `memspill ctl` is one message.
const PROCESSES_MAX: usize = 64;

/// The processes that are managed now, those with most memory, in the order of their ids.
fn living(run: &Run) -> Vec<Arc<Process>> {
    let mut processes = run.processes();
    processes.retain(|process| !command_of(process.memory.pid()).is_empty());
    processes.sort_by_key(|process| std::cmp::Reverse(resident_bytes(process) + swapped_bytes(process)));
    processes.truncate(PROCESSES_MAX);
    processes.sort_by_key(|process| process.memory.pid());
    processes
}

fn resident_bytes(process: &Process) -> u64 {
    process.space.resident_pages() * PAGE_SIZE as u64
}

fn swapped_bytes(process: &Process) -> u64 {
    process.space.swapped_pages() * PAGE_SIZE as u64
}

/// As the kernel cuts and names it.
fn command_of(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    plain(String::from_utf8_lossy(&name).trim_end())
}

fn pressure_json(pressure: &Pressure) -> Value {
    let share = |share: &Share| {
        let round = |percent: f64| (percent * 100.0).round() / 100.0;
        json!({
            "avg10": round(share.avg10),
            "avg60": round(share.avg60),
            "avg300": round(share.avg300),
            "total_us": share.total_us as u64,
        })
    };
    json!({ "some": share(&pressure.some), "full": share(&pressure.full) })
}

fn process_json(process: &Process) -> Value {
    json!({
        "pid": process.memory.pid(),
        "command": command_of(process.memory.pid()),
        "resident_bytes": resident_bytes(process),
        "swapped_bytes": swapped_bytes(process),
        "pgfault": process.faults(),
        "stall": pressure_json(&process.stall.pressure()),
    })
}

/// (name, value) of a group below the budget, in cgroup v2's words.
fn group_values(group: &Group) -> Vec<(&'static str, u64)> {
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(std::sync::atomic::Ordering::Relaxed);
    let page_bytes = memspill_engine::units::PAGE_SIZE as u64;
    vec![
        ("memory.current", group.usage_bytes()),
        ("memory.peak", group.peak_bytes()),
        ("swap.current", group.swap_pages().unwrap_or(0) * page_bytes),
        ("events.high", count(&group.events.high)),
        ("events.max", count(&group.events.max)),
        ("events.swap_max", count(&group.events.swap_max)),
    ]
}

/// A kind of lock: what it guards, and its counts on one device.
type LockKind = (&'static str, fn(&SlotStats) -> LockTotals);

/// Those of a device: the last three are of old forms (`--tune`).
const LOCKS: [LockKind; 5] = [
    ("cluster", |s| s.cluster_lock),
    ("list", |s| s.list_lock),
    ("cgroup", |s| s.cgroup_lock),
    ("device", |s| s.device_lock),
    ("trunk", |s| s.trunk_lock),
];

/// What the locks have cost, of all devices together.
fn locks(engine: &Engine) -> impl Iterator<Item = (&'static str, LockTotals)> {
    let devices: Vec<SlotStats> = engine.devices().ever_added().map(|device| device.slots.stats()).collect();
    LOCKS.into_iter().map(move |(name, of)| {
        let mut totals = LockTotals::default();
        devices.iter().for_each(|stats| totals += of(stats));
        (name, totals)
    })
}

/// What searches have cost, of all devices together.
fn scans(engine: &Engine) -> Vec<(&'static str, u64)> {
    let devices: Vec<SlotStats> = engine.devices().ever_added().map(|device| device.slots.stats()).collect();
    let sum = |get: fn(&SlotStats) -> u64| devices.iter().map(get).sum();
    vec![
        ("cgroup_retries", sum(|s| s.cgroup_retries)),
        ("scan_steps", sum(|s| s.scan_steps)),
        ("base_steps", sum(|s| s.base_steps)),
        ("discarded_clusters", sum(|s| s.discarded_clusters)),
    ]
}

/// `exit_code`: none while the run goes on.
pub fn json(run: &Run, exit_code: Option<i32>) -> String {
    let mut fields = Map::new();
    let mut add = |name: &str, value: Value| _ = fields.insert(name.to_string(), value);
    add("schema", SCHEMA.into());
    add("exit_code", exit_code.into());
    for (name, value, _) in gauges(run).into_iter().chain(run.engine.stats().list()) {
        add(name, value.into());
    }
    add("stall", pressure_json(&run.stall.pressure()));
    add("processes", living(run).iter().map(|process| process_json(process)).collect());
    for (size, counts) in folios(run) {
        add(&size, counts.into_iter().map(|(name, value, _)| (name, value)).collect());
    }
    for (lock, totals) in locks(&run.engine) {
        add(&format!("{lock}_locks"), totals.taken.into());
        add(&format!("{lock}_contended"), totals.contended.into());
        add(&format!("{lock}_waited_ns"), totals.waited_ns.into());
        add(&format!("{lock}_held_ns"), totals.held_ns.into());
    }
    for (name, value) in scans(&run.engine) {
        add(name, value.into());
    }
    for device in run.engine.devices().iter() {
        add(&format!("slots {}", device.name), format!("{:?}", device.slots.stats()).into());
    }
    let groups: Vec<Value> = run.engine.groups().all().iter().skip(1).map(|g| group_json(g)).collect();
    if !groups.is_empty() {
        add("groups", groups.into());
    }
    format!("{:#}\n", Value::Object(fields))
}

fn group_json(group: &Group) -> Value {
    let mut fields = Map::from_iter([("name".to_string(), group.name.as_str().into())]);
    fields.extend(group_values(group).into_iter().map(|(name, value)| (name.to_string(), value.into())));
    fields.into()
}
