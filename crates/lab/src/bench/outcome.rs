//! What a comparison says: medians and spread of both sides, ratios pair by pair, failures. As text and as
//! JSON.
//!
//! A ratio above 1 says that memspill is better, whether the figure is a rate or a time or a size. It is
//! taken within a pair, and only of pairs in which both ended well.
//!
//! The columns of its text are padded here: a crate for tables would be told as much as it takes to do it.

use memspill_tables::json::{number, rounded};
use serde_json::{Value, json};
use std::fmt::Write;

use crate::bench::compare::{Comparison, SideRun};
use crate::bench::plan::{KernelSwap, MIB, Work, mib};

/// Version of the JSON's shape: raised when a name changes its meaning or goes.
const SCHEMA: u32 = 1;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Better {
    More,
    Less,
}

type Get = Box<dyn Fn(&SideRun) -> Option<f64>>;

/// A figure that both sides have.
struct Figure {
    name: String,
    better: Better,
    /// What a value is divided by to be shown.
    scale: f64,
    get: Get,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    pub fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Spread { median, least, most })
    }

    fn map(self, change: impl Fn(f64) -> f64) -> Spread {
        Spread { median: change(self.median), least: change(self.least), most: change(self.most) }
    }
}

struct Row {
    name: String,
    kernel: Option<Spread>,
    memspill: Option<Spread>,
    ratio: Option<Spread>,
    pairs: usize,
}

/// Rates that the work itself prints come first, then times, then memory.
fn figures(comparison: &Comparison) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut rates: Vec<String> = Vec::new();
    for (name, _) in comparison
        .pairs
        .iter()
        .flat_map(|(kernel, memspill)| kernel.ran.printed.iter().chain(&memspill.ran.printed))
    {
        if name.ends_with("_per_s") && !rates.contains(name) {
            rates.push(name.clone());
        }
    }
    for name in rates {
        let wanted = name.clone();
        figures.push(Figure {
            name,
            better: Better::More,
            scale: 1.0,
            get: Box::new(move |run| run.ran.printed(&wanted)),
        });
    }
    for (shown, wanted) in [
        ("touch, median, us", "p50_ns"),
        ("touch, p90, us", "p90_ns"),
        ("touch, p99, us", "p99_ns"),
        ("touch, p99.9, us", "p99_9_ns"),
    ] {
        figures.push(less(shown, 1e3, move |run| run.ran.printed(wanted)));
    }
    figures.push(less("wall time, s", 1.0, |run| Some(run.ran.wall_s)));
    figures.push(less("CPU time, user, s", 1.0, |run| Some(run.ran.user_s)));
    figures.push(less("CPU time, system, s", 1.0, |run| Some(run.ran.system_s)));
    figures.push(less("compressed pool, peak, MiB", MIB as f64, |run| {
        run.pool_peak_bytes.map(|bytes| bytes as f64)
    }));
    figures.push(less("everything, peak, MiB", MIB as f64, |run| {
        run.everything_peak_bytes().map(|bytes| bytes as f64)
    }));
    figures
}

fn less(name: &str, scale: f64, get: impl Fn(&SideRun) -> Option<f64> + 'static) -> Figure {
    Figure { name: name.into(), better: Better::Less, scale, get: Box::new(get) }
}

fn good<'a>(runs: impl Iterator<Item = &'a SideRun>, figure: &Figure) -> Option<Spread> {
    let values: Vec<f64> =
        runs.filter(|run| run.ran.failed.is_none()).filter_map(|run| (figure.get)(run)).collect();
    Spread::of(&values)
}

fn rows(comparison: &Comparison) -> Vec<Row> {
    let pairs = &comparison.pairs;
    figures(comparison)
        .iter()
        .map(|figure| {
            let ratios: Vec<f64> = pairs
                .iter()
                .filter(|(kernel, memspill)| kernel.ran.failed.is_none() && memspill.ran.failed.is_none())
                .filter_map(|(kernel, memspill)| {
                    ratio(figure.better, (figure.get)(kernel)?, (figure.get)(memspill)?)
                })
                .collect();
            let shown = |spread: Spread| spread.map(|value| value / figure.scale);
            Row {
                name: figure.name.clone(),
                kernel: good(pairs.iter().map(|(kernel, _)| kernel), figure).map(shown),
                memspill: good(pairs.iter().map(|(_, memspill)| memspill), figure).map(shown),
                ratio: Spread::of(&ratios),
                pairs: ratios.len(),
            }
        })
        .filter(|row| row.kernel.is_some() || row.memspill.is_some())
        .collect()
}

/// None where a side has nothing (0): a ratio to nothing says nothing.
fn ratio(better: Better, kernel: f64, memspill: f64) -> Option<f64> {
    let positive = kernel > 0.0 && memspill > 0.0;
    positive.then(|| match better {
        Better::More => memspill / kernel,
        Better::Less => kernel / memspill,
    })
}

/// How the runs of a side failed, each way once, with how often.
fn failures<'a>(runs: impl Iterator<Item = &'a SideRun>) -> Vec<(String, usize)> {
    let mut ways: Vec<(String, usize)> = Vec::new();
    for failed in runs.filter_map(|run| run.ran.failed.as_ref()) {
        match ways.iter_mut().find(|(way, _)| way == failed) {
            Some((_, count)) => *count += 1,
            None => ways.push((failed.clone(), 1)),
        }
    }
    ways
}

impl Comparison {
    /// Whether there is a pair in which both sides ended well.
    pub fn has_a_pair(&self) -> bool {
        self.pairs
            .iter()
            .any(|(kernel, memspill)| kernel.ran.failed.is_none() && memspill.ran.failed.is_none())
    }

    pub fn text(&self) -> String {
        let mut text = self.head();
        let rows = rows(self);
        let ratio_head = "memspill better by, median (range)";
        let cells: Vec<[String; 5]> = rows
            .iter()
            .map(|row| {
                let ratio = row
                    .ratio
                    .map_or("-".into(), |r| format!("{:.2} ({:.2}..{:.2})", r.median, r.least, r.most));
                [row.name.clone(), shown(row.kernel), shown(row.memspill), ratio, row.pairs.to_string()]
            })
            .collect();
        let heads = ["", self.kernel_side(), "memspill", ratio_head, "pairs"].map(String::from);
        let width = |column: usize| {
            cells.iter().chain([&heads]).map(|cells| cells[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..5).map(width).collect();
        for line in [&heads].into_iter().chain(&cells) {
            let padded: Vec<String> =
                line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            let _ = writeln!(text, "{}", padded.join("  ").trim_end());
        }
        let sides = [
            (self.kernel_side(), failures(self.pairs.iter().map(|(kernel, _)| kernel))),
            ("memspill", failures(self.pairs.iter().map(|(_, memspill)| memspill))),
        ];
        for (side, ways) in sides {
            for (way, count) in ways {
                let _ = writeln!(text, "failed, {side}: {count} of {}: {way}", self.pairs.len());
            }
        }
        text + &self.stolen()
    }

    /// What the host of a virtual machine took from either side, if it did: where it is much, it tells why
    /// runs of one side differ.
    fn stolen(&self) -> String {
        let kernel: Vec<f64> = self.pairs.iter().map(|(kernel, _)| kernel.ran.stolen_s).collect();
        let memspill: Vec<f64> = self.pairs.iter().map(|(_, memspill)| memspill.ran.stolen_s).collect();
        if kernel.iter().chain(&memspill).all(|stolen_s| *stolen_s == 0.0) {
            return String::new();
        }
        let side = self.kernel_side();
        let (kernel, memspill) = (shown(Spread::of(&kernel)), shown(Spread::of(&memspill)));
        format!("stolen by the host, s of CPU time: {side} {kernel}, memspill {memspill}\n")
    }

    fn kernel_side(&self) -> &'static str {
        match self.options.kernel_swap {
            KernelSwap::None => "without memspill",
            _ => "kernel's swap",
        }
    }

    fn work(&self) -> String {
        match &self.options.work {
            Work::Command(words) => words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" "),
            Work::Workload { .. } => {
                let words = self.options.command();
                words[2..].iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
            }
        }
    }

    fn head(&self) -> String {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let mut text = format!("{}\nLinux {}, {cpus} CPUs", self.work(), kernel_release());
        match self.options.kernel_swap {
            KernelSwap::None => {
                let _ = writeln!(text, "; no limit; memspill's budget {}", mib(self.sizes.budget_bytes));
            }
            _ => {
                let _ = writeln!(
                    text,
                    ", cgroup v{}; kernel: limit {}, {}; memspill: budget {}; mode {}",
                    self.cgroup_version.unwrap_or(0),
                    mib(self.sizes.kernel_limit_bytes),
                    self.device(),
                    mib(self.sizes.budget_bytes),
                    self.options.mode.name()
                );
            }
        }
        if let (Some(takes), Some(seconds)) = (self.takes_bytes, self.unlimited_s) {
            let _ = writeln!(text, "without a limit it takes {} and {seconds:.2} s", mib(takes));
        }
        if !self.swap_before.is_empty() {
            let names: Vec<&str> = self.swap_before.iter().map(|(name, _)| name.as_str()).collect();
            let _ = writeln!(
                text,
                "swap that was on already, and fills after the one measured: {}",
                names.join(", ")
            );
        }
        if let Some(signal) = self.interrupted {
            let _ = writeln!(text, "interrupted by signal {signal}; the pairs that are complete:");
        }
        text.push('\n');
        text
    }

    /// What the kernel's side swaps to.
    fn device(&self) -> String {
        match self.options.kernel_swap {
            KernelSwap::Zram => "zram lz4".into(),
            KernelSwap::Zswap => {
                let compressor = self.pairs.iter().find_map(|(kernel, _)| kernel.zswap.as_deref());
                format!("zswap {} and a swap file", compressor.unwrap_or_default())
            }
            KernelSwap::File | KernelSwap::None => "swap file".into(),
        }
    }

    pub fn json(&self) -> String {
        let summary: Value = rows(self).iter().map(Row::json).collect();
        let pairs = self.pairs.iter().map(|(kernel, memspill)| {
            json!({ "kernel": self.run_json(kernel), "memspill": self.run_json(memspill) })
        });
        let kernel_limit =
            (self.options.kernel_swap != KernelSwap::None).then_some(self.sizes.kernel_limit_bytes);
        let comparison = json!({
            "schema": SCHEMA,
            "work": self.work(),
            "kernel_release": kernel_release(),
            "cpus": std::thread::available_parallelism().map_or(1, |n| n.get()),
            "cgroup_version": self.cgroup_version,
            "kernel_swap": self.options.kernel_swap.name(),
            "mode": self.options.mode.name(),
            "takes_bytes": self.takes_bytes,
            "unlimited_s": self.unlimited_s.map(|seconds| rounded(seconds, 6)),
            "pool_ratio": self.ratio.map(|ratio| rounded(ratio, 4)),
            "kernel_limit_bytes": kernel_limit,
            "budget_bytes": self.sizes.budget_bytes,
            "interrupted": self.interrupted.is_some(),
            "summary": summary,
            "pairs": pairs.collect::<Value>(),
        });
        format!("{comparison:#}\n")
    }

    fn run_json(&self, run: &SideRun) -> Value {
        // The place of this program is nobody's business.
        let program = self.options.program.to_string_lossy();
        let command = run.ran.command.iter().map(|word| word.replace(&*program, "memspill-lab"));
        let numbers = |pairs: &[(String, f64)]| -> Value {
            pairs.iter().map(|(name, value)| (name.as_str(), number(*value))).collect()
        };
        json!({
            "command": command.collect::<Value>(),
            "failed": run.ran.failed,
            "wall_s": rounded(run.ran.wall_s, 6),
            "user_s": rounded(run.ran.user_s, 2),
            "system_s": rounded(run.ran.system_s, 2),
            "stolen_s": rounded(run.ran.stolen_s, 2),
            "cgroup_peak_bytes": run.ran.peak_bytes,
            "pool_peak_bytes": run.pool_peak_bytes,
            "zswap_compressor": run.zswap,
            "everything_peak_bytes": run.everything_peak_bytes(),
            "load": number(run.load),
            "printed": numbers(&run.ran.printed),
            "stats": numbers(&run.stats),
        })
    }
}

impl Row {
    fn json(&self) -> Value {
        let spread = |spread: Option<Spread>| {
            let places = |value| rounded(value, 6);
            spread.map(
                |s| json!({ "median": places(s.median), "least": places(s.least), "most": places(s.most) }),
            )
        };
        json!({
            "figure": self.name,
            "kernel": spread(self.kernel),
            "memspill": spread(self.memspill),
            "ratio": spread(self.ratio),
            "pairs": self.pairs,
        })
    }
}

fn shown(spread: Option<Spread>) -> String {
    spread.map_or("-".into(), |s| format!("{} ({}..{})", short(s.median), short(s.least), short(s.most)))
}

/// Three figures, with k and M above a thousand.
fn short(value: f64) -> String {
    let (scaled, unit) = match value {
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e4 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let digits = if scaled >= 100.0 {
        0
    } else if scaled >= 10.0 {
        1
    } else {
        2
    };
    format!("{scaled:.digits$}{unit}")
}

fn kernel_release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::compare::Side;
    use crate::bench::plan::{Mode, Options, Sizes};
    use crate::bench::process::CommandRun;
    use std::time::Duration;

    fn run(side: Side, rate: f64, failed: Option<&str>) -> SideRun {
        let ran = CommandRun {
            command: vec!["/x/memspill-lab".into(), "run".into()],
            wall_s: 100.0 / rate,
            user_s: 0.0,
            system_s: 1.0,
            stolen_s: 0.0,
            peak_bytes: Some(100 * MIB),
            printed: vec![("ops_per_s".into(), rate)],
            failed: failed.map(String::from),
        };
        let (pool_peak_bytes, pool_is_beside) = (Some(50 * MIB), side == Side::Kernel);
        SideRun { ran, pool_peak_bytes, pool_is_beside, zswap: None, stats: Vec::new(), load: 0.0 }
    }

    fn comparison(pairs: Vec<(SideRun, SideRun)>) -> Comparison {
        let options = Options {
            work: Work::Command(vec!["true".into()]),
            pairs: 3,
            limit_bytes: None,
            mode: Mode::Resident,
            kernel_swap: KernelSwap::Zram,
            ratio: None,
            quick: false,
            timeout: Duration::from_secs(1),
            dir: "/".into(),
            with: Vec::new(),
            program: "/x/memspill-lab".into(),
        };
        Comparison {
            options,
            cgroup_version: Some(1),
            swap_before: Vec::new(),
            takes_bytes: Some(200 * MIB),
            unlimited_s: Some(0.5),
            ratio: Some(0.5),
            sizes: Sizes {
                limit_bytes: 100 * MIB,
                kernel_limit_bytes: 100 * MIB,
                budget_bytes: 166 * MIB,
                swap_bytes: 400 * MIB,
            },
            pairs,
            interrupted: None,
        }
    }

    #[test]
    fn medians_and_spread() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, least: 1.0, most: 3.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0]), Some(Spread { median: 2.5, least: 1.0, most: 4.0 }));
    }

    #[test]
    fn a_ratio_is_above_1_where_memspill_is_better() {
        assert_eq!(ratio(Better::More, 10.0, 20.0), Some(2.0));
        assert_eq!(ratio(Better::Less, 10.0, 20.0), Some(0.5));
        assert_eq!(ratio(Better::Less, 10.0, 0.0), None);
    }

    #[test]
    fn failed_runs_are_counted_and_their_pairs_give_no_ratio() {
        let pairs = vec![
            (run(Side::Kernel, 10.0, None), run(Side::Memspill, 20.0, None)),
            (run(Side::Kernel, 1.0, Some("killed for memory")), run(Side::Memspill, 40.0, None)),
            (run(Side::Kernel, 10.0, None), run(Side::Memspill, 30.0, None)),
        ];
        let compared = comparison(pairs);
        let rows = rows(&compared);
        let rate = rows.iter().find(|row| row.name == "ops_per_s").unwrap();
        assert_eq!(rate.ratio, Some(Spread { median: 2.5, least: 2.0, most: 3.0 }));
        assert_eq!(rate.kernel, Some(Spread { median: 10.0, least: 10.0, most: 10.0 }));
        assert_eq!(rate.memspill, Some(Spread { median: 30.0, least: 20.0, most: 40.0 }));
        assert_eq!(rate.pairs, 2);
        let wall = rows.iter().find(|row| row.name == "wall time, s").unwrap();
        assert!((wall.ratio.unwrap().median - 2.5).abs() < 1e-9);
        // The kernel's pool is beside its cgroup, memspill's is in it.
        let everything = rows.iter().find(|row| row.name == "everything, peak, MiB").unwrap();
        assert_eq!((everything.kernel.unwrap().median, everything.memspill.unwrap().median), (150.0, 100.0));
        let user = rows.iter().find(|row| row.name == "CPU time, user, s").unwrap();
        assert_eq!((user.ratio, user.pairs), (None, 0));
        let text = compared.text();
        assert!(text.contains("failed, kernel's swap: 1 of 3: killed for memory"), "{text}");
        assert!(text.contains("2.50 (2.00..3.00)"), "{text}");
        assert!(!text.contains("stolen"), "{text}");
        assert!(compared.has_a_pair() && !comparison(Vec::new()).has_a_pair());
    }

    #[test]
    fn what_the_host_took_is_said() {
        let mut pair = (run(Side::Kernel, 10.0, None), run(Side::Memspill, 20.0, None));
        pair.1.ran.stolen_s = 1.5;
        let text = comparison(vec![pair]).text();
        let wanted = "kernel's swap 0.00 (0.00..0.00), memspill 1.50 (1.50..1.50)";
        let wanted = format!("stolen by the host, s of CPU time: {wanted}");
        assert!(text.trim_end().ends_with(&wanted), "{text}");
    }

    #[test]
    fn json_tells_all_and_hides_where_we_are() {
        let json =
            comparison(vec![(run(Side::Kernel, 10.0, Some("a \"b\"")), run(Side::Memspill, 20.0, None))])
                .json();
        assert!(!json.contains("/x/"), "{json}");
        let read: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read["pairs"][0]["kernel"]["failed"], "a \"b\"");
        assert_eq!(read["pairs"][0]["memspill"]["printed"], json!({ "ops_per_s": 20 }));
        assert!(json.find("\"schema\"") < json.find("\"work\""), "in the order of writing: {json}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            ["0.123", "12.34", "9999", "88100", "1234567"].map(|n| short(n.parse().unwrap())),
            ["0.12", "12.3", "9999", "88.1k", "1.23M"]
        );
    }
}
