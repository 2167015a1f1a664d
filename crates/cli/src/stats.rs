//! Every statistic of a run, once: its name, what it counts, in which unit, and what it is now.
//!
//! Counters of the engine come from its own list (`memspill_engine::stats`). `report.rs` shows these as a
//! table and as JSON, `metrics.rs` as OpenMetrics.

use crate::message::plain;
use memspill_engine::backing::{Link, LinkState};
use memspill_engine::devices::Device;
use memspill_engine::engine::Engine;
use memspill_engine::group::Group;
use memspill_engine::slots::{LockTotals, SlotStats};
use memspill_engine::units::{MAX_ORDER, Order, PAGE_SIZE};
use memspill_pager::process::Process;
use memspill_pager::run::Run;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows.
    Counter,
    Gauge,
}

/// Also the end of the name, before a percentile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    None,
    Bytes,
    Ns,
    Us,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    pub value: u64,
    pub help: &'static str,
    /// The quantile of a distribution.
    pub quantile: Option<&'static str>,
}

/// A value as it is now.
fn now(name: &'static str, value: u64, help: &'static str) -> Stat {
    Stat { name, kind: Kind::Gauge, unit: unit_in(name), value, help, quantile: None }
}

/// What has come together since the start.
fn sum(name: &'static str, value: u64, help: &'static str) -> Stat {
    Stat { kind: Kind::Counter, ..now(name, value, help) }
}

fn unit_in(name: &str) -> Unit {
    let ends = [("_bytes", Unit::Bytes), ("_ns", Unit::Ns), ("_us", Unit::Us)];
    ends.into_iter().find(|(end, _)| name.ends_with(end)).map_or(Unit::None, |(_, unit)| unit)
}

/// The CPU time of memspill itself: all its threads, in the kernel and out of it.
pub fn cpu_time_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The statistics of the run as a whole.
pub fn of_run(run: &Run) -> Vec<Stat> {
    let engine: &Engine = &run.engine;
    let usage: Vec<_> = engine.devices().ever_added().map(|d| d.backing.usage()).collect();
    let all = |get: fn(&memspill_engine::backing::Usage) -> u64| usage.iter().map(get).sum::<u64>();
    let spaces = engine.spaces();
    let pages = |get: fn(&memspill_engine::space::Space) -> u64| {
        spaces.iter().map(|space| get(space)).sum::<u64>() * PAGE_SIZE as u64
    };
    let tables = run.account.largest_tables();
    let fault_ns = run.fault_times();
    let quantile = |name, per_mille, of, help| Stat {
        unit: Unit::Ns,
        quantile: Some(of),
        ..now(name, fault_ns.percentile_ns(per_mille), help)
    };
    let pressure = run.stall.pressure();
    let mut stats = vec![
        now("memory_max_bytes", engine.root().limit_bytes(), "the budget"),
        now("memory_bytes", engine.root().usage_bytes(), "what is counted against it now"),
        now("memory_peak_bytes", engine.root().peak_bytes(), "the most that was counted against it"),
        now("resident_bytes", pages(|space| space.resident_pages()), "managed pages in memory"),
        now("swapped_bytes", pages(|space| space.swapped_pages()), "pages that are swapped out"),
        now("tables_peak_bytes", tables.bytes.sum(), "the most that tables took: what is kept for each page"),
        now("tables_page_bytes", tables.bytes.page_tables, "of it: page tables, 8 bytes a page"),
        now("tables_lru_bytes", tables.bytes.queues, "of it: the queues of pages in memory"),
        now("tables_slot_bytes", tables.bytes.slots, "of it: slots and whose they are"),
        now(
            "tables_device_bytes",
            tables.bytes.backings,
            "of it: where devices keep pages; counted as theirs",
        ),
        now(
            "tables_peak_pages",
            tables.managed_pages,
            "pages, in memory or swapped out, that were managed then",
        ),
        now("swap_ram_bytes", all(|u| u.ram_bytes), "RAM held by the compressed pool at the end"),
        now("swap_ram_pages", all(|u| u.ram_pages), "pages in it"),
        now("swap_ram_zstd_pages", all(|u| u.zstd_pages), "of these, compressed by zstd, of either level"),
        now("swap_ram_wordwise_pages", all(|u| u.wordwise_pages), "of these, that came in wordwise"),
        now(
            "swap_ram_peak_bytes",
            run.account.largest_pool_bytes(),
            "the most RAM that the compressed pool held",
        ),
        now(
            "swap_ram_disk_bytes",
            all(|u| u.ram_disk_bytes),
            "RAM held by RAM disks at the end, not counted",
        ),
        now("swap_ram_disk_peak_bytes", run.account.largest_ram_disk_bytes(), "the most RAM that they held"),
        now("swap_file_bytes", all(|u| u.file_bytes), "disk held by swap files at the end"),
        sum(
            "recompressed_pages",
            all(|u| u.recompressed_pages_total),
            "pages of the pool that zstd was tried on, so that they need not go to the file",
        ),
        sum("zstd_reads", all(|u| u.zstd_reads_total), "pages read from the pool that it had made shorter"),
        sum(
            "written_back_pages",
            all(|u| u.written_back_pages_total),
            "compressed pages moved from the pool to the file",
        ),
        sum(
            "swap_write_ios",
            all(|u| u.write_ios_total),
            "writes to swap files, each of pages that lie in a row",
        ),
        sum(
            "swap_file_written_pages",
            all(|u| u.file_written_pages_total),
            "pages that those writes were for",
        ),
        sum("swap_read_ios", all(|u| u.read_ios_total), "reads of swap files"),
        sum("swap_read_us", all(|u| u.read_us_total), "time in which faults waited for some of them"),
        sum("shared_objects", run.account.shared_objects(), "objects of shared memory that were managed"),
        now(
            "shared_peak_bytes",
            run.account.largest_shared_bytes(),
            "the most shared memory that was counted",
        ),
        sum("shared_pgsteal", run.account.shared_pages_out(), "pages of shared memory that were taken out"),
        sum("shared_given_back", run.files.given_back(), "files that were brought back, for calls used them"),
        sum("shared_left_alone", run.files.left_alone(), "files that may not be managed"),
        sum("elapsed_us", run.elapsed_us(), "time since the start"),
        sum("stall_some_us", pressure.some.total_us as u64, "time in which a thread waited for memory"),
        sum("stall_full_us", pressure.full.total_us as u64, "of that, time in which no thread ran meanwhile"),
        sum("awake_us", run.account.awake_us(), "time in which idle CPUs were kept from halting"),
        sum("cpu_ns", cpu_time_ns(), "CPU time of memspill itself"),
        quantile(
            "fault_ns_p50",
            500,
            "0.5",
            "time to serve a fault: median; in agent mode of those that threads ask for",
        ),
        quantile("fault_ns_p99", 990, "0.99", "99 % of faults took at most this"),
        quantile("fault_ns_p999", 999, "0.999", "99.9 % of faults took at most this"),
    ];
    stats.extend(engine.stats().list().into_iter().map(|(name, value, help)| sum(name, value, help)));
    stats
}

/// Folios of each order, under the names of the kernel's counters for huge pages.
pub fn folios(run: &Run) -> impl Iterator<Item = (String, Vec<Stat>)> {
    let kib = |order: Order| order.pages() as usize * PAGE_SIZE / 1024;
    let stats = run.engine.stats();
    (1..=MAX_ORDER).map(Order).map(move |order| {
        let counts = stats.of_order(order).into_iter().map(|(name, value, help)| sum(name, value, help));
        (format!("hugepages-{}kB", kib(order)), counts.collect())
    })
}

/// The number of processes that are shown by themselves: a reply to `memspill ctl` is one message.
const PROCESSES_MAX: usize = 64;

/// The processes that are managed now, those with most memory, in the order of their ids.
pub fn living(run: &Run) -> Vec<Arc<Process>> {
    let mut processes = run.processes();
    processes.retain(|process| !command_of(process.memory.pid()).is_empty());
    processes.sort_by_key(|p| std::cmp::Reverse(p.space.resident_pages() + p.space.swapped_pages()));
    processes.truncate(PROCESSES_MAX);
    processes.sort_by_key(|process| process.memory.pid());
    processes
}

/// As the kernel cuts and names it.
pub fn command_of(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    plain(String::from_utf8_lossy(&name).trim_end())
}

pub fn of_process(process: &Process) -> Vec<Stat> {
    let pressure = process.stall.pressure();
    let bytes = |pages: u64| pages * PAGE_SIZE as u64;
    vec![
        now("process_resident_bytes", bytes(process.space.resident_pages()), "managed pages in memory"),
        now("process_swapped_bytes", bytes(process.space.swapped_pages()), "pages that are swapped out"),
        sum("process_pgfault", process.faults(), "faults that reached the pager"),
        sum(
            "process_stall_some_us",
            pressure.some.total_us as u64,
            "time in which one of its threads waited for memory",
        ),
        sum(
            "process_stall_full_us",
            pressure.full.total_us as u64,
            "of that, time in which none of its threads ran",
        ),
    ]
}

pub fn of_device(device: &Device) -> Vec<Stat> {
    let bytes = |pages: u64| pages * PAGE_SIZE as u64;
    vec![
        now("device_size_bytes", bytes(device.slots.all_slots()), "what the swap device can hold"),
        now("device_used_bytes", bytes(device.slots.used_slots()), "what is in its slots"),
        now("device_full", u64::from(device.full.load(Ordering::Relaxed)), "1: its store has no room"),
    ]
}

/// The statistics of the connection to a device's server.
pub fn of_server(link: &Link) -> Vec<Stat> {
    let is = |state: LinkState| u64::from(link.state == state);
    let mut stats = vec![
        now("device_server_on", is(LinkState::On), "1: the server answers, and has what was written to it"),
        now("device_server_lost", is(LinkState::Lost), "1: it was away for too long, or has lost its pages"),
        sum("device_server_sent_bytes", link.sent_bytes, "bytes that were sent to it"),
        sum("device_server_received_bytes", link.received_bytes, "bytes that came from it"),
        sum("device_server_reconnects", link.reconnects, "times that it was connected to again"),
        sum(
            "device_server_wrong_pages",
            link.wrong_pages,
            "pages that came from it as something else than was written there",
        ),
    ];
    let help = "the median time of the last reads of one page";
    stats.extend(link.round_trip_us.map(|us| now("device_server_round_trip_us", us, help)));
    stats
}

/// The statistics of a group below the budget, in cgroup v2's words.
pub fn of_group(group: &Group) -> Vec<Stat> {
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let swapped = group.swap_pages().unwrap_or(0) * PAGE_SIZE as u64;
    vec![
        now("group_memory_bytes", group.usage_bytes(), "what the group holds"),
        now("group_memory_peak_bytes", group.peak_bytes(), "the most that it held"),
        now("group_swap_bytes", swapped, "what of it is swapped out"),
        sum("group_events_high", count(&group.events.high), "times that it was over memory.high"),
        sum("group_events_max", count(&group.events.max), "times that it was at memory.max"),
        sum("group_events_swap_max", count(&group.events.swap_max), "times that it was at swap.max"),
    ]
}

/// A kind of lock: what it guards, and its counts on one device.
type LockKind = (&'static str, fn(&SlotStats) -> LockTotals);

/// The locks of a device: the last three are of old forms (`--tune`).
const LOCKS: [LockKind; 5] = [
    ("cluster", |s| s.cluster_lock),
    ("list", |s| s.list_lock),
    ("cgroup", |s| s.cgroup_lock),
    ("device", |s| s.device_lock),
    ("trunk", |s| s.trunk_lock),
];

/// What the locks have cost, of all devices together.
pub fn locks(engine: &Engine) -> impl Iterator<Item = (&'static str, LockTotals)> {
    let devices: Vec<SlotStats> = engine.devices().ever_added().map(|device| device.slots.stats()).collect();
    LOCKS.into_iter().map(move |(name, of)| {
        let mut totals = LockTotals::default();
        devices.iter().for_each(|stats| totals += of(stats));
        (name, totals)
    })
}

pub fn of_lock(totals: &LockTotals) -> Vec<Stat> {
    vec![
        sum("lock_taken", totals.taken, "times that the lock was taken"),
        sum("lock_contended", totals.contended, "of these, with another thread there"),
        sum("lock_waited_ns", totals.waited_ns, "time that threads waited for it"),
        sum("lock_held_ns", totals.held_ns, "time that it was held"),
    ]
}
