//! What a measurement must be: the same each time, in proportion to the work, and sensitive to the mechanisms.

use memspill_sim::Reclaim;
use memspill_sim::bench::{self, Pattern, Setup};
use memspill_sim::device::Kind;
use memspill_sim::scale::{self, Options};
use memspill_tables::Form;

fn setup(cpus: u32) -> Setup {
    Setup {
        seed: 7,
        cpus,
        cpus_per_socket: 8,
        threads: 1,
        pages_per_cpu: 1024,
        set_percent: 200,
        pattern: Pattern::Random { write_percent: 20 },
        kind: Kind::Ram,
        devices: 1,
        reclaim: Reclaim::Direct,
        tuning: Default::default(),
        warm_up_ns: 500_000,
        measured_ns: 2_000_000,
    }
}

fn options(seed: u64, tune: &[&str]) -> Options {
    Options {
        cpus: vec![1, 8],
        seed,
        cpus_per_socket: 4,
        threads: 2,
        reclaimers: 2,
        kind: Kind::Nvme,
        ms: 2,
        tune: tune.iter().map(|t| t.to_string()).collect(),
    }
}

#[test]
fn the_same_command_prints_the_same_and_another_seed_something_else() {
    let output = |seed| {
        let options = options(seed, &[]);
        let points = scale::scale(&options, |_| ()).unwrap();
        Form::Json.of(&scale::report(&options, &points, "scale".into()))
    };
    let first = output(1);
    assert_eq!(first, output(1));
    let rows = |text: &str| text.split_once("tables").unwrap().1.to_string();
    assert_ne!(rows(&first), rows(&output(2)));
}

#[test]
fn what_was_measured_before_does_not_matter() {
    let alone = bench::measure(&setup(8));
    bench::measure(&setup(3));
    let after = bench::measure(&setup(8));
    assert_eq!((alone.counted, alone.profile), (after.counted, after.profile));
}

#[test]
fn one_cpu_does_what_its_costs_allow() {
    let measured = bench::measure(&Setup { measured_ns: 10_000_000, ..setup(1) });
    let pages = measured.counted.swapped_in;
    // A fault, a page read and installed, a page taken out, compressed and its share of the evictor's wakes: 12 to 16 µs.
    assert!((600..850).contains(&pages), "{pages} pages in 10 ms");
    assert!(
        measured.counted.swapped_out.abs_diff(pages) <= 192,
        "as many go out as come in, but for the room between the marks"
    );
    let lost: u64 = measured.profile.iter().map(|e| e.counts.wait_ns).sum();
    assert_eq!(lost, 0, "one CPU waits for nobody");
}

#[test]
fn more_cpus_do_more_and_a_global_lock_shows() {
    let one = bench::measure(&setup(1));
    let eight = bench::measure(&setup(8));
    assert!(eight.pages_per_s() > 3.0 * one.pages_per_s());
    let mut locked = setup(8);
    locked.tuning.set("cgroup-map=locked").unwrap();
    let locked = bench::measure(&locked);
    let waited = |m: &bench::Measured| {
        m.profile.iter().filter(|e| e.name == "lock LockCounts").map(|e| e.counts.waits).sum::<u64>()
    };
    assert_eq!(waited(&eight), 0, "the lock-free map takes no lock");
    assert!(waited(&locked) > 0, "the lock of the locked map is waited for");
}

#[test]
fn readahead_hits_are_those_of_the_pattern() {
    let measure = |pattern| {
        let mut setup = Setup { pattern, kind: Kind::RamDisk, ..setup(4) };
        setup.tuning.set("readahead=always").unwrap();
        bench::measure(&setup).mechanisms
    };
    let sequential = measure(Pattern::Sequential);
    let random = measure(Pattern::Random { write_percent: 0 });
    let share = |part: u64, of: u64| part as f64 / of as f64;
    // A window of 8: the page that faulted, and 7 that come along.
    for m in [sequential, random] {
        assert!((0.8..0.95).contains(&share(m.readahead, m.swapped_in)), "{m:?}");
    }
    assert!(share(sequential.readahead_hits, sequential.readahead) > 0.9, "{sequential:?}");
    assert!(share(random.readahead_hits, random.readahead) < 0.3, "{random:?}");
    let mut none = Setup { kind: Kind::RamDisk, ..setup(4) };
    none.tuning.set("readahead=auto").unwrap();
    assert_eq!(bench::measure(&none).mechanisms.readahead, 0);
}

#[test]
fn an_unknown_knob_is_refused() {
    let error = scale::scale(&options(1, &["slot-batch=0"]), |_| ()).unwrap_err();
    assert_eq!(error.to_string(), "slot-batch cannot be `0`; values: 1..64");
}
