//! What a run says of itself, at its end or when asked: `--stats` for a reader, `--stats-json` for a program.

use crate::args::RunArgs;
use crate::size::human;
use memspill_engine::engine::Engine;
use memspill_engine::units::{MAX_ORDER, Order, PAGE_SIZE};
use memspill_engine::group::Group;
use memspill_engine::slots::SlotStats;
use memspill_pager::pager::Pager;
use memspill_pager::supervisor::Ended;
use std::fmt::Write;
use std::sync::atomic::Ordering;

/// Version of the JSON's shape: raised when a name changes its meaning or goes.
const SCHEMA: u32 = 1;

pub fn at_the_end(args: &RunArgs, ended: &Ended) {
    if args.stats {
        eprint!("{}", table(&ended.pager));
    }
    if let Some(path) = &args.stats_json
        && let Err(e) = std::fs::write(path, json(&ended.pager, Some(ended.exit_code)))
    {
        eprintln!("memspill: cannot write {}: {e}", path.display());
    }
}

/// (name, value, help): values now, as opposed to the counters.
fn gauges(pager: &Pager) -> Vec<(&'static str, u64, &'static str)> {
    let engine: &Engine = &pager.engine;
    let usage: Vec<_> = engine.devices.ever().map(|d| d.backing.usage()).collect();
    let sum = |get: fn(&memspill_engine::backing::Usage) -> u64| usage.iter().map(get).sum::<u64>();
    let tables = *pager.largest_tables.lock().expect("tables");
    vec![
        ("memory_max_bytes", engine.group.limit_bytes(), "the budget"),
        ("memory_peak_bytes", engine.group.peak_bytes(), "the most that was counted against it"),
        ("tables_peak_bytes", tables.bytes, "the most that page tables, LRU lists and swap maps took"),
        ("tables_peak_pages", tables.managed_pages, "pages, in memory or swapped out, that were managed then"),
        ("swap_ram_bytes", sum(|u| u.ram_bytes), "RAM held by the compressed pool at the end"),
        ("swap_ram_peak_bytes", pager.largest_pool_bytes.load(Ordering::Relaxed), "the most RAM that it held"),
        ("swap_file_bytes", sum(|u| u.file_bytes), "disk held by swap files at the end"),
        ("written_back_pages", sum(|u| u.written_back_pages_total), "pages moved from the pool to the file"),
        ("swap_write_ios", sum(|u| u.write_ios_total), "writes to swap files, each of pages that lie in a row"),
        ("swap_read_ios", sum(|u| u.read_ios_total), "reads of swap files"),
        ("fault_ns_p50", pager.fault_ns.percentile_ns(500), "time to serve a fault, once read: median"),
        ("fault_ns_p99", pager.fault_ns.percentile_ns(990), "99 % of faults took at most this"),
        ("fault_ns_p999", pager.fault_ns.percentile_ns(999), "99.9 % of faults took at most this"),
    ]
}

/// Folios of each order, under the names of the kernel's counters for huge pages.
fn folios(pager: &Pager) -> impl Iterator<Item = (String, Vec<(&'static str, u64, &'static str)>)> {
    let kib = |order: Order| order.pages() as usize * PAGE_SIZE / 1024;
    let stats = &pager.engine.stats;
    (1..=MAX_ORDER).map(Order).map(move |order| (format!("hugepages-{}kB", kib(order)), stats.of_order(order)))
}

pub fn table(pager: &Pager) -> String {
    let mut text = String::new();
    for (name, value, help) in gauges(pager).into_iter().chain(pager.engine.stats.list()) {
        let shown = if name.ends_with("_bytes") { human(value) } else { value.to_string() };
        let _ = writeln!(text, "memspill: {name:<24} {shown:>14}  {}", help.trim());
    }
    for (size, counts) in folios(pager).filter(|(_, counts)| counts.iter().any(|(_, value, _)| *value > 0)) {
        let shown: Vec<String> = counts.iter().map(|(name, value, _)| format!("{name} {value}")).collect();
        let _ = writeln!(text, "memspill: {size:<24} {}", shown.join(", "));
    }
    for group in pager.engine.groups.all().iter().skip(1) {
        let events: Vec<String> = group_values(group).iter().map(|(name, value)| format!("{name} {value}")).collect();
        let _ = writeln!(text, "memspill: group {:<18} {}", group.name, events.join("  "));
    }
    text
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

/// What the devices' locks and searches have cost, of all devices together.
fn locks_and_scans(engine: &Engine) -> Vec<(&'static str, u64)> {
    let devices: Vec<SlotStats> = engine.devices.ever().map(|device| device.slots.stats()).collect();
    let sum = |get: fn(&SlotStats) -> u64| devices.iter().map(get).sum();
    vec![
        ("cluster_locks", sum(|s| s.cluster_locks)),
        ("cluster_contended", sum(|s| s.cluster_contended)),
        ("list_locks", sum(|s| s.list_locks)),
        ("list_contended", sum(|s| s.list_contended)),
        ("cgroup_locks", sum(|s| s.cgroup_locks)),
        ("cgroup_contended", sum(|s| s.cgroup_contended)),
        ("cgroup_retries", sum(|s| s.cgroup_retries)),
        ("scan_steps", sum(|s| s.scan_steps)),
        ("base_steps", sum(|s| s.base_steps)),
        ("discarded_clusters", sum(|s| s.discarded_clusters)),
    ]
}

/// `exit_code`: none while the run goes on.
pub fn json(pager: &Pager, exit_code: Option<i32>) -> String {
    let exit_code = exit_code.map_or("null".to_string(), |code| code.to_string());
    let mut text = format!("{{\n  \"schema\": {SCHEMA},\n  \"exit_code\": {exit_code}");
    for (name, value, _) in gauges(pager).into_iter().chain(pager.engine.stats.list()) {
        let _ = write!(text, ",\n  \"{name}\": {value}");
    }
    for (size, counts) in folios(pager) {
        let shown: Vec<String> = counts.iter().map(|(name, value, _)| format!("\"{name}\": {value}")).collect();
        let _ = write!(text, ",\n  \"{size}\": {{{}}}", shown.join(", "));
    }
    for (name, value) in locks_and_scans(&pager.engine) {
        let _ = write!(text, ",\n  \"{name}\": {value}");
    }
    for device in pager.engine.devices.iter() {
        let stats = device.slots.stats();
        let _ = write!(text, ",\n  \"slots {}\": \"{stats:?}\"", device.name.replace(['"', '\\'], "_"));
    }
    let groups: Vec<String> = pager.engine.groups.all().iter().skip(1).map(|g| group_json(g)).collect();
    if !groups.is_empty() {
        let _ = write!(text, ",\n  \"groups\": [{}]", groups.join(", "));
    }
    text.push_str("\n}\n");
    text
}

/// Names of groups have no characters that JSON would want escaped.
fn group_json(group: &Group) -> String {
    let values: Vec<String> = group_values(group).iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{\"name\": \"{}\", {}}}", group.name, values.join(", "))
}
