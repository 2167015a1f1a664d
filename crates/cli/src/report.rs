//! What a run says of itself, at its end or when asked: `--stats` for a reader, `--stats-json` for a program.

use crate::args::{Options, Stats};
use crate::message::words;
use crate::size::{human, short};
use crate::stats::{self, Stat, Unit};
use memspill_engine::backing::Link;
use memspill_engine::engine::Engine;
use memspill_engine::group::Group;
use memspill_engine::slots::SlotStats;
use memspill_engine::swap::Swap;
use memspill_engine::units::PAGE_SIZE;
use memspill_pager::ctl::operator::{encryption_of, servers_of, state_of, word_of};
use memspill_pager::ctl::thrash::would_do;
use memspill_pager::process::Process;
use memspill_pager::run::Run;
use memspill_pager::run::record::{FILE_MAX_BYTES, Recorded};
use memspill_pager::stall::{Pressure, Share};
use memspill_pager::supervisor::Ended;
use memspill_pager::working_set::Point;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::Path;

/// Version of the JSON's shape: raised when a name changes its meaning or goes.
const SCHEMA: u32 = 1;

pub fn at_the_end(args: &Options, ended: &Ended) {
    match args.stats {
        Some(Stats::Short) => eprint!("{}", short_table(&ended.run)),
        Some(Stats::All) => eprint!("{}", table(&ended.run)),
        None => {}
    }
    if args.stats.is_none()
        && ended.run.verdict().is_none()
        && let Some(line) = lost_time(&ended.run)
    {
        eprintln!("memspill: {line}");
    }
    if let Some(path) = &args.stats_json
        && let Err(e) = std::fs::write(path, json(&ended.run, Some(ended.exit_code)))
    {
        eprintln!("memspill: cannot write {}: {}", path.display(), words(&e));
    }
    if let (Some(path), Some(recorded)) = (&args.record, ended.run.recording.end()) {
        tell_recording(path, &recorded);
    }
}

/// Much of the time went in waiting: for half of a window, and by as much as is too slow.
fn lost_time(run: &Run) -> Option<String> {
    let lost_us = run.stall.pressure().full.total_us;
    let share = lost_us / run.elapsed_us().max(1) as f64;
    let is_much = lost_us >= run.settings.thrash_window.as_micros() as f64 / 2.0
        && share > 1.0 - 1.0 / run.settings.max_slowdown;
    let seconds = run.elapsed_us() / 1_000_000;
    let enough = would_do(&run.working_set(), share)
        .map_or(String::new(), |bytes| format!("; --memory-max {} would do", short(bytes)));
    is_much.then(|| format!("{:.0} % of {seconds} s went in waiting for memory{enough}", share * 100.0))
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

/// The statistics that answer the usual questions: the time, the memory, what was swapped, what it cost.
const SHORT: [&str; 9] = [
    "elapsed_us",
    "memory_max_bytes",
    "memory_peak_bytes",
    "swap_ram_peak_bytes",
    "pgfault",
    "pswpin",
    "pswpout",
    "fault_ns_p99",
    "cpu_ns",
];

/// Ten lines.
fn short_table(run: &Run) -> String {
    let stats = stats::of_run(run);
    let shown = SHORT.iter().filter_map(|name| stats.iter().find(|stat| stat.name == *name));
    shown.map(line).chain([stall_line(run, "some", &run.stall.pressure().some)]).collect()
}

fn line(Stat { name, unit, value, help, .. }: &Stat) -> String {
    let shown = if *unit == Unit::Bytes { human(*value) } else { value.to_string() };
    format!("memspill: {name:<24} {shown:>14}  {}\n", help.trim())
}

fn stall_line(run: &Run, name: &str, share: &Share) -> String {
    let of_all = share.total_us * 100.0 / run.elapsed_us().max(1) as f64;
    let Share { avg10, avg60, avg300, .. } = share;
    format!(
        "memspill: stall {name:<18} {of_all:>12.2} %  of the time; of the last 10 s {avg10:.2} %, \
         60 s {avg60:.2} %, 300 s {avg300:.2} %\n"
    )
}

pub fn table(run: &Run) -> String {
    let mut text: String = stats::of_run(run).iter().map(line).collect();
    let Pressure { some, full } = run.stall.pressure();
    text.push_str(&stall_line(run, "some", &some));
    text.push_str(&stall_line(run, "full", &full));
    for process in stats::living(run) {
        let Pressure { some, full } = process.stall.pressure();
        let (pid, faults) = (process.memory.pid(), process.faults());
        let (resident, swapped) = (human(resident_bytes(&process)), human(swapped_bytes(&process)));
        let _ = writeln!(
            text,
            "memspill: process {pid} ({}): {resident} in memory, {swapped} swapped out, {faults} faults; \
             stall in the last 10 s: some {:.2} %, full {:.2} %",
            stats::command_of(pid),
            some.avg10,
            full.avg10,
        );
    }
    for (size, counts) in stats::folios(run).filter(|(_, counts)| counts.iter().any(|stat| stat.value > 0)) {
        let shown: Vec<String> = counts.iter().map(|stat| format!("{} {}", stat.name, stat.value)).collect();
        let _ = writeln!(text, "memspill: {size:<24} {}", shown.join(", "));
    }
    for (lock, totals) in stats::locks(&run.engine).filter(|(_, totals)| totals.taken > 0) {
        let share = |ns: u64| ns as f64 * 100.0 / stats::cpu_time_ns().max(1) as f64;
        let _ = writeln!(
            text,
            "memspill: lock {lock:<19} {:>14}  taken; of the CPU time waited for {:.2} %, held {:.2} %",
            totals.taken,
            share(totals.waited_ns),
            share(totals.held_ns),
        );
    }
    for device in run.engine.devices().iter().filter(|device| !device.backing.links().is_empty()) {
        let _ = writeln!(text, "memspill: {}: {}", device.name, servers_of(device));
    }
    for group in run.engine.groups().all().iter().skip(1) {
        let events: Vec<String> =
            group_values(group).iter().map(|(name, value)| format!("{name} {value}")).collect();
        let _ = writeln!(text, "memspill: group {:<18} {}", group.name, events.join("  "));
    }
    text
}

/// (name, value) of a group below the budget, under cgroup v2's names.
fn group_values(group: &Group) -> Vec<(&'static str, u64)> {
    const NAMES: [&str; 6] =
        ["memory.current", "memory.peak", "swap.current", "events.high", "events.max", "events.swap_max"];
    NAMES.into_iter().zip(stats::of_group(group)).map(|(name, stat)| (name, stat.value)).collect()
}

fn resident_bytes(process: &Process) -> u64 {
    process.space.resident_pages() * PAGE_SIZE as u64
}

fn swapped_bytes(process: &Process) -> u64 {
    process.space.swapped_pages() * PAGE_SIZE as u64
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

/// What a larger budget would have spared.
fn budget_json(point: &Point) -> Value {
    json!({
        "memory_max_bytes": point.budget_bytes,
        "refaults_left": (point.refaults_left * 1e4).round() / 1e4,
    })
}

fn device_json(swap: &Swap, place: usize) -> Value {
    let device = &swap.devices[place];
    let bytes = |slots: u64| slots * PAGE_SIZE as u64;
    json!({
        "name": device.name,
        "size_bytes": bytes(device.slots.all_slots()),
        "used_bytes": bytes(device.slots.used_slots()),
        "priority": device.priority,
        "state": state_of(swap, place),
        "encryption": encryption_of(device),
        "servers": device.backing.links().iter().map(server_json).collect::<Vec<Value>>(),
    })
}

fn server_json(link: &Link) -> Value {
    json!({
        "state": word_of(link.state),
        "state_ms": link.since_ms,
        "round_trip_us": link.round_trip_us,
        "sent_bytes": link.sent_bytes,
        "received_bytes": link.received_bytes,
        "reconnects": link.reconnects,
        "wrong_pages": link.wrong_pages,
        "refusal": link.refusal,
    })
}

fn process_json(process: &Process) -> Value {
    json!({
        "pid": process.memory.pid(),
        "command": stats::command_of(process.memory.pid()),
        "resident_bytes": resident_bytes(process),
        "swapped_bytes": swapped_bytes(process),
        "pgfault": process.faults(),
        "stall": pressure_json(&process.stall.pressure()),
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
    for stat in stats::of_run(run) {
        add(stat.name, stat.value.into());
    }
    add("stall", pressure_json(&run.stall.pressure()));
    add("budgets", run.working_set().curve().iter().map(budget_json).collect());
    add("processes", stats::living(run).iter().map(|process| process_json(process)).collect());
    for (size, counts) in stats::folios(run) {
        add(&size, counts.into_iter().map(|stat| (stat.name, stat.value)).collect());
    }
    for (lock, totals) in stats::locks(&run.engine) {
        add(&format!("{lock}_locks"), totals.taken.into());
        add(&format!("{lock}_contended"), totals.contended.into());
        add(&format!("{lock}_waited_ns"), totals.waited_ns.into());
        add(&format!("{lock}_held_ns"), totals.held_ns.into());
    }
    for (name, value) in scans(&run.engine) {
        add(name, value.into());
    }
    let devices = run.engine.devices();
    let there = (0..devices.len()).filter(|place| !devices[*place].is_off());
    add("devices", there.map(|place| device_json(run.engine.swap(), place)).collect());
    for device in devices.iter() {
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
