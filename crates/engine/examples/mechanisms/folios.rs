//! Folios: the same rounds (fragmentation.rs) in two settings, by count and by time.

use crate::fragmentation::{Counts, ROUNDS, Test, split_percent};
use crate::{PAIRS, ascending};
use std::time::Instant;

const ROUNDS_PER_TIME: usize = 4;
/// Rounds before anything is counted: the device is then as fragmented as it gets.
const WARM_UP: usize = 30;

/// Whose share of split folios is shown round by round.
const FRAGMENTED: [&[&str]; 4] = [
    &["large-folios=free-cluster-only", "folio=64K"],
    &["large-folios=free-cluster-only"],
    &["large-folios=all", "folio=64K"],
    &[],
];

const COMPARED: [[&[&str]; 2]; 5] = [
    [&["large-folios=split", "folio=64K"], &["large-folios=free-cluster-only", "folio=64K"]],
    [&["large-folios=split", "folio=64K"], &["large-folios=all", "folio=64K"]],
    [&["large-folios=split"], &[]],
    [&["folio=4K"], &["folio=64K"]],
    [&["folio=64K"], &["folio=2M"]],
];

pub fn print() {
    println!("\n### folios: 60 MiB on a device of 64 MiB, pages out and in through the engine\n");
    let times = "new: ns a page | old / new: median (least to most)";
    println!("| old → new | cluster locks | list locks | write I/Os | split, % | {times} |");
    println!("|---|---|---|---|---|---|---|");
    COMPARED.iter().for_each(|[old, new]| print_row(old, new));
    println!("\nOf the pages of 64 KiB folios those that left singly, in %, over {ROUNDS} rounds:\n");
    println!("| setting | first | 10th | 50th | last | most |");
    println!("|---|---|---|---|---|---|");
    for knobs in FRAGMENTED {
        let percent = split_percent(knobs);
        let at = [0, 9, 49, ROUNDS - 1].map(|round| format!("{:.1}", percent[round])).join(" | ");
        let most = percent.iter().copied().fold(0.0, f64::max);
        println!("| {} | {at} | {most:.1} |", named(knobs));
    }
}

fn named(knobs: &[&str]) -> String {
    if knobs.is_empty() { "by default".into() } else { knobs.join(" ") }
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
    let split = |i: usize| after[i].split_percent(&before[i]);
    let ratios = ascending(ns_per_page.iter().map(|[old, new]| old / new));
    let new_ns = ascending(ns_per_page.iter().map(|[_, new]| *new))[PAIRS / 2];
    println!(
        "| {} → {} | {} | {} | {} | {} | {new_ns:.0} | {:.2} ({:.2} to {:.2}) |",
        named(old),
        named(new),
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
