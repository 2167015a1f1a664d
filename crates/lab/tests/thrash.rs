//! A run that crawls: what is said, and what is done about it. The workload touches 96 MiB at random in 32,
//! so that it waits for nearly all of the time; a window of two seconds stands for the minute.

use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard};

/// One at a time: beside others a process waits for a CPU, too.
static ALONE: Mutex<()> = Mutex::new(());

fn thrashes(options: &[&str], seconds: &str) -> Option<(Output, MutexGuard<'static, ()>)> {
    let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let memspill = || Command::new(env!("CARGO_BIN_EXE_memspill-lab"));
    if !memspill().args(["run", "-m", "64M", "--", "true"]).output().unwrap().status.success() {
        eprintln!("skipped: memspill run does not work here");
        return None;
    }
    let output = memspill()
        .args(["run", "-m", "32M", "--thrash-window", "2"])
        .args(options)
        .args(["--", env!("CARGO_BIN_EXE_memspill-lab"), "bench", "workload", "pmbench", "--size", "96M"])
        .args(["--seconds", seconds])
        .output();
    Some((output.unwrap(), alone))
}

/// `410M` after these words, in MiB.
fn size_after(text: &str, words: &str) -> u64 {
    let rest = text.split(words).nth(1).unwrap_or_else(|| panic!("{words:?} is not in {text}"));
    rest.split('M').next().unwrap().parse().unwrap()
}

#[test]
fn a_run_that_crawls_says_so_once() {
    let Some((output, _alone)) = thrashes(&["--max-slowdown", "1.5"], "3") else { return };
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 2, "one meanwhile and one at the end: {stderr}");
    assert!(
        lines[0].starts_with("memspill: process ") && lines[0].contains(" % of the last 2 s; "),
        "{stderr}"
    );
    let would_do = size_after(lines[0], "about ");
    assert!((60..150).contains(&would_do), "96 MiB are in use: {stderr}");
    assert!(lines[0].ends_with(&format!(" limit {would_do}M)")), "{stderr}");
    assert!(lines[1].contains("s went in waiting for memory; --memory-max "), "{stderr}");
}

#[test]
fn a_run_that_does_not_crawl_says_nothing() {
    let Some((output, _alone)) = thrashes(&["--max-slowdown", "100"], "2") else { return };
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn on_thrash_grow_gives_what_would_do() {
    let Some((output, _alone)) = thrashes(&["--max-slowdown", "1.5", "--on-thrash=grow"], "4") else {
        return;
    };
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    let grows: Vec<u64> = stderr
        .lines()
        .filter_map(|line| line.split(" grows from 32M to ").nth(1))
        .map(|size| size.trim_end_matches('M').parse().unwrap())
        .collect();
    assert!(grows.len() == 1 && (60..150).contains(&grows[0]), "{stderr}");
}

#[test]
fn on_thrash_kill_ends_the_run() {
    let Some((output, _alone)) = thrashes(&["--max-slowdown", "1.5", "--on-thrash=kill"], "60") else {
        return;
    };
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(137), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        stderr.starts_with("memspill: killed: process ") && stderr.contains("--max-slowdown"),
        "{stderr}"
    );
}
