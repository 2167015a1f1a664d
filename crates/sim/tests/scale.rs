//! What a measurement must be: the same each time, in proportion to the work, and sensitive to the
//! mechanisms.

use memspill_sim::bench::{self, Pattern, Pieces, Setup, Work};
use memspill_sim::device::DeviceKind;
use memspill_sim::policy::trace::Trace;
use memspill_sim::scale::{self, Arrangement, Options, Touches};
use memspill_sim::{Back, Reclaim};
use memspill_tables::Form;

fn setup(cpus: u32) -> Setup {
    Setup {
        seed: 7,
        cpus,
        cpus_per_socket: 8,
        threads: 1,
        tasks: cpus,
        pages_per_task: 1024,
        set_percent: 200,
        fragmented: None,
        compute_ns: 0,
        pattern: Pattern::Random { write_percent: 20 },
        recorded: std::rc::Rc::new([]),
        kind: DeviceKind::Ram,
        devices: 1,
        reclaim: Reclaim::Direct,
        unmaps: Pieces::Batch,
        requests: Pieces::Batch,
        work: Work::Pager,
        by_slot: false,
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
        arrangement: Arrangement::Direct,
        touches: Touches::Made(Pattern::Random { write_percent: 20 }),
        kind: DeviceKind::Nvme,
        devices: 1,
        fragmented_percent: None,
        ms: 2,
        tune: tune.iter().map(|t| t.to_string()).collect(),
    }
}

/// What one CPU sees of a pattern, or of a recording.
fn one_cpu(touches: Touches) -> Options {
    let kind = DeviceKind::Ram;
    Options { cpus: vec![1], threads: 1, ms: 20, kind, touches, ..options(1, &[]) }
}

#[test]
fn patterns_recordings_and_fragments_show() {
    let measured = |options: &Options| scale::scale(options, |_, _| ()).unwrap().remove(0).measured;
    // Pages that an access brings.
    let brought = |touches| {
        let counted = measured(&one_cpu(touches)).counted;
        counted.swapped_in as f64 / counted.accesses as f64
    };
    let made = |pattern| brought(Touches::Made(pattern));
    let random = made(Pattern::Random { write_percent: 20 });
    assert!(random > 0.4, "half of the pages are away: {random}");
    let (zipf, in_order) = (made(Pattern::Zipf), made(Pattern::Sequential));
    assert!(zipf < 0.7 * random && in_order > random, "{zipf}, {random}, {in_order}");
    // Nearly all touches are of 600 pages, which fit.
    let accesses = (0..40_000u32).map(|i| if i % 100 == 0 { i / 100 * 8 % 3000 } else { i % 600 }).collect();
    let trace = Trace { name: "recorded".into(), pages: 3000, memory: 1500, accesses };
    let recorded = brought(Touches::Recorded(trace));
    assert!(recorded < random / 4.0, "{recorded}");

    let mut options = one_cpu(Touches::Made(Pattern::Random { write_percent: 20 }));
    let locks_a_page = |options: &Options| {
        let mechanisms = measured(options).mechanisms;
        mechanisms.cluster_locks as f64 / mechanisms.pages as f64
    };
    let empty = locks_a_page(&options);
    options.fragmented_percent = Some(90);
    options.devices = 2;
    let fragmented = locks_a_page(&options);
    assert!(fragmented > empty, "slots lie apart: {fragmented} and {empty}");
}

#[test]
fn the_same_command_prints_the_same_and_another_seed_something_else() {
    let output = |seed| {
        let options = options(seed, &[]);
        let points = scale::scale(&options, |_, _| ()).unwrap();
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
    // A fault, a page read and installed, a page taken out, compressed and its share of the evictor's wakes:
    // 12 to 16 µs.
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
        m.profile.iter().filter(|e| e.name == "lock MapLock").map(|e| e.counts.waits).sum::<u64>()
    };
    assert_eq!(waited(&eight), 0, "the lock-free map takes no lock");
    assert!(waited(&locked) > 0, "the lock of the locked map is waited for");
}

#[test]
fn readahead_follows_its_hits() {
    let measure = |pattern, kind, knob| {
        let mut setup = Setup { pattern, kind, ..setup(4) };
        setup.tuning.set(knob).unwrap();
        bench::measure(&setup).mechanisms
    };
    let share = |part: u64, of: u64| part as f64 / of as f64;
    let random = Pattern::Random { write_percent: 0 };
    let in_order = measure(Pattern::Sequential, DeviceKind::RamDisk, "readahead=always");
    let at_random = measure(random, DeviceKind::RamDisk, "readahead=always");
    for m in [in_order, at_random] {
        assert!(
            m.bypassed == 0 && m.misses + m.readahead >= m.swapped_in,
            "all of it by way of the cache: {m:?}"
        );
    }
    // A window of 8, held by its hits: the page that faulted, and 7 that come along.
    assert!((0.8..0.9).contains(&share(in_order.readahead, in_order.swapped_in)), "{in_order:?}");
    assert!(share(in_order.readahead_hits, in_order.readahead) > 0.9, "{in_order:?}");
    // Without hits the window is one page.
    assert!(share(at_random.readahead, at_random.swapped_in) < 0.2, "{at_random:?}");
    assert!(share(at_random.readahead_hits, at_random.readahead) < 0.3, "{at_random:?}");
    for pattern in [Pattern::Sequential, random] {
        let ram = measure(pattern, DeviceKind::RamDisk, "readahead=auto");
        assert!(ram.readahead == 0 && ram.misses == 0 && ram.bypassed == ram.swapped_in, "{ram:?}");
    }
    let nvme = measure(Pattern::Sequential, DeviceKind::Nvme, "readahead=auto");
    assert!(nvme.bypassed == 0 && share(nvme.readahead, nvme.swapped_in) > 0.6, "{nvme:?}");
}

#[test]
fn an_unknown_knob_is_refused() {
    let error = scale::scale(&options(1, &["slot-batch=0"]), |_, _| ()).unwrap_err();
    assert_eq!(error.to_string(), "slot-batch cannot be `0`; values: 1..64");
}

#[test]
fn the_pagers_arrangement_scales_and_what_it_was_does_not() {
    let per_cpu = |cpus, back| {
        let arrangement = Arrangement::Pager { pagers: None, reclaimers: None, back };
        let options = Options { cpus: vec![cpus], arrangement, threads: 1, ms: 4, ..options(1, &[]) };
        let options = Options { cpus_per_socket: 64, kind: DeviceKind::Ram, ..options };
        scale::scale(&options, |_, _| ()).unwrap()[0].measured.pages_per_s() / f64::from(cpus)
    };
    let one = per_cpu(1, Back::default());
    let many = per_cpu(32, Back::default());
    assert!(many > 0.8 * one, "a CPU of 32 moves {many} pages/s, and one alone {one}");
    let few_threads = per_cpu(32, Back { counts: true, ..Back::default() });
    assert!(few_threads < 0.5 * many, "with 8 pagers and 4 reclaimers {few_threads}, and not {many}");
}

#[test]
fn the_pagers_arrangement_serves_processes_of_several_threads() {
    let pagers = Arrangement::Pager { pagers: None, reclaimers: None, back: Back::default() };
    let options = Options { cpus: vec![1, 12], threads: 12, arrangement: pagers, ..options(1, &[]) };
    let options = Options { kind: DeviceKind::RamDisk, ..options };
    let points = scale::scale(&options, |_, _| ()).unwrap();
    assert!(points[1].measured.pages_per_s() > 2.0 * points[0].measured.pages_per_s());
}
