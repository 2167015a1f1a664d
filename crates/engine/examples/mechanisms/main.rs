//! What each mechanism of the slot allocator, the swap cache, the cgroup map and the folios saves: old form
//! against new, by count and by time, as markdown tables.
//!
//!     cargo run --release -p memspill-engine --example mechanisms [folios]
//!
//! With the word, folios alone.
//!
//! Counts come from one thread that plays all CPUs in turns: they are the same on every run and every
//! machine. Times and contended locks come from real threads, in interleaved pairs of an old and a new
//! device; both depend on the machine, contention most of all (with few CPUs threads seldom meet in a lock).
//!
//! It is the engine alone: no page is compressed, written or moved, so a ratio here is the most that the
//! mechanism can give, not what a program will see.

mod folios;
#[allow(dead_code, reason = "a test needs more of it")]
mod fragmentation;
mod workload;

use memspill_engine::tuning::Tuning;
use workload::{Counts, Life, Workload};

const THREADS: [u32; 3] = [1, 2, 16];
const PAIRS: usize = 15;

/// Knob, old value, new value. Everything else is as by default.
const COMPARED: [(&str, &str, &str); 8] = [
    ("scan-base", "shared", "per-cpu-trunk"),
    ("scan-base", "per-cpu", "per-cpu-trunk"),
    ("slot-lock", "device", "cluster"),
    ("cache-lock", "device", "cluster"),
    ("cache-lock", "trunk", "cluster"),
    ("slot-batch", "1", "64"),
    ("cache-batch", "1", "32"),
    ("cgroup-map", "locked", "lock-free"),
];

type Value = fn(&Counts) -> f64;
/// What is counted; per page, but for the last two.
const COUNTED: [(&str, Value); 9] = [
    ("cluster locks", |c| c.per_page(c.stats.cluster_lock.taken)),
    ("list locks", |c| c.per_page(c.stats.list_lock.taken)),
    ("device locks", |c| c.per_page(c.stats.device_lock.taken)),
    ("trunk locks", |c| c.per_page(c.stats.trunk_lock.taken)),
    ("map locks", |c| c.per_page(c.stats.cgroup_lock.taken)),
    ("bitmap words", |c| c.per_page(c.stats.scan_steps)),
    ("trunks looked at", |c| c.per_page(c.stats.base_steps)),
    ("% of batches in another CPU's cluster", |c| c.percent_of_batches(c.in_cluster_of_another)),
    ("% in another CPU's trunk", |c| c.percent_of_batches(c.in_trunk_of_another)),
];

/// A line of a table: old and new of each count, and what was measured.
struct Row {
    life: Life,
    threads: u32,
    counts: Vec<[f64; 2]>,
    contended_per_1000: [f64; 2],
    new_ns_per_page: f64,
    /// Ascending.
    ratios: Vec<f64>,
}

fn main() {
    let cpus = std::thread::available_parallelism().map_or(0, |n| n.get());
    println!(
        "{PAIRS} interleaved pairs on {cpus} CPUs. Counts are per page, old → new; those that are equal"
    );
    println!("in all rows are left out. Contended: locks that another thread held, per 1000 pages. Above 1,");
    println!("the new form is faster.");
    if std::env::args().any(|word| word == "folios") {
        return folios::print();
    }
    for (knob, old, new) in COMPARED {
        let tunings =
            [old, new].map(|value| Tuning::parse([format!("{knob}={value}").as_str()]).expect("a knob"));
        let cases = [Life::InOrder, Life::Random].into_iter().flat_map(|life| THREADS.map(|n| (life, n)));
        let rows: Vec<Row> = cases.map(|(life, threads)| compare(life, threads, &tunings)).collect();
        println!("\n### {knob}: {old} → {new}\n");
        print_table(&rows);
    }
    folios::print();
}

fn compare(life: Life, threads: u32, tunings: &[Tuning; 2]) -> Row {
    let counts = tunings.each_ref().map(|tuning| Workload::new(life, threads, tuning).count());
    let both = tunings.each_ref().map(|tuning| Workload::new(life, threads, tuning));
    // Once unmeasured, so that tables are made and pages of memory are touched.
    both.iter().for_each(|workload| _ = workload.time());
    let before = both.each_ref().map(Workload::contended);
    let seconds: Vec<[f64; 2]> = (0..PAIRS).map(|pair| time_pair(&both, pair)).collect();
    let pages = workload::PAGES_PER_RUN as f64;
    let contended = |i: usize| (both[i].contended() - before[i]) as f64 * 1000.0 / (PAIRS as f64 * pages);
    both.iter().for_each(Workload::check);
    Row {
        life,
        threads,
        counts: COUNTED.iter().map(|(_, value)| counts.each_ref().map(value)).collect(),
        contended_per_1000: [contended(0), contended(1)],
        new_ns_per_page: ascending(seconds.iter().map(|[_, new]| new * 1e9 / pages))[PAIRS / 2],
        ratios: ascending(seconds.iter().map(|[old, new]| old / new)),
    }
}

/// Each is the first of the pair in turns.
fn time_pair(both: &[Workload; 2], pair: usize) -> [f64; 2] {
    let mut seconds = [0.0; 2];
    for i in [pair % 2, 1 - pair % 2] {
        seconds[i] = both[i].time().as_secs_f64();
    }
    seconds
}

fn ascending(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn print_table(rows: &[Row]) {
    let differs = |column: &usize| rows.iter().any(|row| row.counts[*column][0] != row.counts[*column][1]);
    let shown: Vec<usize> = (0..COUNTED.len()).filter(differs).collect();
    let names: String = shown.iter().map(|column| format!(" {} |", COUNTED[*column].0)).collect();
    let times = "new: ns a page | old / new: median (least to most)";
    println!("| pages come back | threads |{names} contended | {times} |");
    println!("|---|---|{}", "---|".repeat(shown.len() + 3));
    for row in rows {
        let cells: String =
            shown.iter().map(|column| format!(" {} |", change(row.counts[*column]))).collect();
        let (contended, ratios) = (change(row.contended_per_1000), &row.ratios);
        let ratio = format!("{:.2} ({:.2} to {:.2})", ratios[PAIRS / 2], ratios[0], ratios[PAIRS - 1]);
        let (life, threads) = (row.life.name(), row.threads);
        println!("| {life} | {threads} |{cells} {contended} | {:.0} | {ratio} |", row.new_ns_per_page);
    }
}

fn change(values: [f64; 2]) -> String {
    let [old, new] = values.map(|value| format!("{value:.3}"));
    if old == new { old } else { format!("{old} → {new}") }
}
