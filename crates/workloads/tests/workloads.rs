//! The built program: each of the benchmarks' workloads runs, checks and prints its line; each wrong option
//! is refused with the reason.

use std::process::{Command, Output};

fn workload(words: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memspill-workload")).args(words.split_whitespace()).output().unwrap()
}

/// The value of a number in the one line of JSON.
fn number(words: &str, name: &str) -> f64 {
    let output = workload(words);
    let line = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(line.lines().count(), 1, "{words}: {line}");
    let value = line.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{words}: {line}")).1;
    value.split([',', '}']).next().unwrap().parse().unwrap()
}

#[test]
fn pmbench_does_as_many_touches_as_it_is_told() {
    for pattern in ["uniform", "zipf --theta 0.9", "normal --stddev 20", "linear --stride 7"] {
        let words =
            format!("pmbench --size 4M --processes 2 --threads 3 --ops 500 --check full --pattern {pattern}");
        assert_eq!(number(&words, "ops"), 3000.0, "{pattern}");
    }
}

#[test]
fn shmem_read_reads_what_is_inherited_and_what_is_shared() {
    for words in ["--pattern zipf", "--pattern uniform --inherited", "--pattern linear"] {
        let words = format!("shmem-read --size 2M --jobs 3 --ops 1000 --check full {words}");
        assert_eq!(number(&words, "ops"), 3000.0, "{words}");
    }
}

#[test]
fn seqswap_times_both_ways() {
    for way in ["--push 8M", "--pageout"] {
        let words = format!("seqswap --size 4M --contents random {way}");
        assert_eq!(number(&words, "in_pages"), 1024.0);
        assert!(number(&words, "out_pages_per_s") > 0.0 && number(&words, "in_pages_per_s") > 0.0);
    }
}

#[test]
fn sequential_counts_its_passes_and_not_what_was_before() {
    for way in ["", "--write", "--after-random"] {
        let words = format!("sequential --size 4M --passes 3 --check full {way}");
        assert_eq!(number(&words, "pages"), 3072.0, "{way}");
    }
}

#[test]
fn compile_executes_three_processes_a_job() {
    assert_eq!(number("compile --count 5 -j 2 --size 1M --check full", "processes"), 15.0);
    assert!(number("compile --count 3 --size 1M", "jobs_per_s") > 0.0);
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    for (words, reason) in [
        ("", "there are pmbench"),
        ("pmbenhc", "no workload 'pmbenhc'"),
        ("pmbench --bogus", "unknown option --bogus"),
        ("pmbench --size 8K --threads 3", "raise --size"),
        ("pmbench --read-percent 101", "not from 0 to 100"),
        ("pmbench --seconds -1", "no number of seconds"),
        ("usemem --processes 0", "needs 1 or more"),
        ("usemem --folio 12K", "power of two from 4K to 2M"),
        ("seqswap --size 4M --pageout --push 1M", "unknown option --push"),
        ("compile --part linker", "not driver, compiler or assembler"),
    ] {
        let output = workload(words);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words}: {told}");
        assert!(
            told.contains(reason) && told.lines().count() == 1 && output.stdout.is_empty(),
            "{words}: {told}"
        );
    }
}
