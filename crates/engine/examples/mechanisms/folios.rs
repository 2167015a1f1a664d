//! Folios: the same rounds (fragmentation.rs) in two settings, by count and by time.

use crate::fragmentation::{Counts, ROUNDS, Test, fallback_percent};
use crate::{PAIRS, ascending};
use std::time::Instant;

const ROUNDS_PER_TIME: usize = 4;
/// Rounds before anything is counted: the device is then as fragmented as it gets.
const WARM_UP: usize = 30;

const COMPARED: [[&[&str]; 2]; 5] = [
    [&["large-folios=split", "folio=64K"], &["large-folios=free-cluster-only", "folio=64K"]],
    [&["large-folios=split", "folio=64K"], &["large-folios=all", "folio=64K"]],
    [&["large-folios=split"], &["large-folios=all"]],
    [&["folio=4K"], &["folio=64K"]],
    [&["folio=64K"], &["folio=2M"]],
];

pub fn print() {
    println!("\n### folios: 60 MiB on a device of 64 MiB, pages out and in through the engine\n");
    println!(
        "| old → new | cluster locks | list locks | write I/Os | split, % | new: ns a page | old / new: median (least to most) |"
    );
    println!("|---|---|---|---|---|---|---|");
    COMPARED.iter().for_each(|[old, new]| print_row(old, new));
    println!("\n64 KiB folios that were split, in % of a round, over {ROUNDS} rounds:\n");
    println!("| large-folios | first | 10th | 50th | last | most |");
    println!("|---|---|---|---|---|---|");
    for setting in ["free-cluster-only", "all"] {
        let percent = fallback_percent(setting);
        let at = [0, 9, 49, ROUNDS - 1].map(|round| format!("{:.1}", percent[round])).join(" | ");
        println!("| {setting} | {at} | {:.1} |", percent.iter().copied().fold(0.0, f64::max));
    }
}

fn print_row(old: &[&str], new: &[&str]) {
    let mut both = [Test::new(old), Test::new(new)];
    both.iter_mut().for_each(|test| (0..WARM_UP).for_each(|_| test.round()));
    let before = both.each_ref().map(Test::counts);
    let mut ns_per_page: Vec<[f64; 2]> = Vec::new();
    for pair in 0..PAIRS {
        let mut times = [0.0; 2];
        for i in [pair % 2, 1 - pair % 2] {
            times[i] = time(&mut both[i]);
        }
        ns_per_page.push(times);
    }
    let after = both.each_ref().map(Test::counts);
    both.iter().for_each(Test::check);
    let column = |value: fn(&Counts) -> u64| {
        let per_page = |i: usize| {
            let pages = after[i].pages - before[i].pages;
            (value(&after[i]) - value(&before[i])) as f64 / pages as f64
        };
        crate::change([per_page(0), per_page(1)])
    };
    let split = |i: usize| {
        let (whole, split) = (after[i].whole - before[i].whole, after[i].split - before[i].split);
        split as f64 * 100.0 / ((whole + split).max(1)) as f64
    };
    let ratios = ascending(ns_per_page.iter().map(|[old, new]| old / new));
    let new_ns = ascending(ns_per_page.iter().map(|[_, new]| *new))[PAIRS / 2];
    println!(
        "| {} → {} | {} | {} | {} | {} | {new_ns:.0} | {:.2} ({:.2} to {:.2}) |",
        old.join(" "),
        new.join(" "),
        column(|c| c.cluster_locks),
        column(|c| c.list_locks),
        column(|c| c.write_ios),
        crate::change([split(0), split(1)]),
        ratios[PAIRS / 2],
        ratios[0],
        ratios[PAIRS - 1],
    );
}

/// ns for each page that was written.
fn time(test: &mut Test) -> f64 {
    let before = test.counts().pages;
    let start = Instant::now();
    (0..ROUNDS_PER_TIME).for_each(|_| test.round());
    start.elapsed().as_nanos() as f64 / (test.counts().pages - before) as f64
}
