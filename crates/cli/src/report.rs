//! What a run says of itself at its end: `--stats` for a reader, `--stats-json` for a program.

use crate::args::RunArgs;
use crate::size::human;
use memspill_engine::engine::Engine;
use memspill_engine::units::{MAX_ORDER, Order, PAGE_SIZE};
use memspill_pager::supervisor::Ended;
use std::fmt::Write;

/// Version of the JSON's shape: raised when a name changes its meaning or goes.
const SCHEMA: u32 = 1;

pub fn at_the_end(args: &RunArgs, ended: &Ended) {
    if args.stats {
        eprint!("{}", table(ended));
    }
    if let Some(path) = &args.stats_json
        && let Err(e) = std::fs::write(path, json(ended))
    {
        eprintln!("memspill: cannot write {}: {e}", path.display());
    }
}

/// (name, value, help): values now, as opposed to the counters.
fn gauges(ended: &Ended) -> Vec<(&'static str, u64, &'static str)> {
    let pager = &ended.pager;
    let engine: &Engine = &pager.engine;
    let usage: Vec<_> = engine.devices.iter().map(|d| d.backing.usage()).collect();
    let sum = |get: fn(&memspill_engine::backing::Usage) -> u64| usage.iter().map(get).sum::<u64>();
    let tables = *pager.largest_tables.lock().expect("tables");
    vec![
        ("memory_max_bytes", engine.group.limit_bytes(), "the budget"),
        ("memory_peak_bytes", engine.group.peak_bytes(), "the most that was counted against it"),
        ("tables_peak_bytes", tables.bytes, "the most that page tables, LRU lists and swap maps took"),
        ("tables_peak_pages", tables.managed_pages, "pages, in memory or swapped out, that were managed then"),
        ("swap_ram_bytes", sum(|u| u.ram_bytes), "RAM held by the compressed pool at the end"),
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
fn folios(ended: &Ended) -> impl Iterator<Item = (String, Vec<(&'static str, u64, &'static str)>)> {
    let kib = |order: Order| order.pages() as usize * PAGE_SIZE / 1024;
    let stats = &ended.pager.engine.stats;
    (1..=MAX_ORDER).map(Order).map(move |order| (format!("hugepages-{}kB", kib(order)), stats.of_order(order)))
}

fn table(ended: &Ended) -> String {
    let mut text = String::new();
    for (name, value, help) in gauges(ended).into_iter().chain(ended.pager.engine.stats.list()) {
        let shown = if name.ends_with("_bytes") { human(value) } else { value.to_string() };
        let _ = writeln!(text, "memspill: {name:<24} {shown:>14}  {}", help.trim());
    }
    for (size, counts) in folios(ended).filter(|(_, counts)| counts.iter().any(|(_, value, _)| *value > 0)) {
        let shown: Vec<String> = counts.iter().map(|(name, value, _)| format!("{name} {value}")).collect();
        let _ = writeln!(text, "memspill: {size:<24} {}", shown.join(", "));
    }
    text
}

fn json(ended: &Ended) -> String {
    let mut text = format!("{{\n  \"schema\": {SCHEMA},\n  \"exit_code\": {}", ended.exit_code);
    for (name, value, _) in gauges(ended).into_iter().chain(ended.pager.engine.stats.list()) {
        let _ = write!(text, ",\n  \"{name}\": {value}");
    }
    for (size, counts) in folios(ended) {
        let shown: Vec<String> = counts.iter().map(|(name, value, _)| format!("\"{name}\": {value}")).collect();
        let _ = write!(text, ",\n  \"{size}\": {{{}}}", shown.join(", "));
    }
    for device in &ended.pager.engine.devices {
        let stats = device.slots.stats();
        let _ = write!(text, ",\n  \"slots {}\": \"{stats:?}\"", device.name.replace(['"', '\\'], "_"));
    }
    text.push_str("\n}\n");
    text
}
