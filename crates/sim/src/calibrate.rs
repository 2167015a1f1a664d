//! `memspill sim calibrate`: measures on this machine what the constants marked (c) in `vcpu/src/cost.rs`
//! stand for.
//!
//! The only part of the simulator that looks at a real clock. What it finds is shown and changes nothing:
//! constants that differed between machines would end "the same command, the same bytes".

use memspill_tables::json::rounded;
use memspill_vcpu::cost;
use serde_json::{Value, json};
use std::fmt::Write;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

const PAGE: usize = 4096;
/// Pages that fit in no cache.
const MANY_PAGES: usize = 16 << 10;

pub struct Measure {
    name: &'static str,
    constant_ns: u64,
    measured_ns: f64,
}

/// Nanoseconds for one of `n` calls; the best of five rounds, since whatever disturbs only adds.
fn time(n: u64, mut call: impl FnMut(u64)) -> f64 {
    let round = |_| {
        let start = Instant::now();
        (0..n).for_each(&mut call);
        start.elapsed().as_nanos() as f64 / n as f64
    };
    (0..5).map(round).fold(f64::INFINITY, f64::min)
}

pub fn measure() -> Vec<Measure> {
    let word = AtomicU64::new(0);
    let text = text_page();
    let packed = lz4_flex::block::compress(&text);
    let mut out = vec![0u8; lz4_flex::block::get_maximum_output_size(PAGE)];
    let mut pages = vec![1u8; MANY_PAGES * PAGE];
    let (from, to) = pages.split_at_mut(MANY_PAGES / 2 * PAGE);
    let half = (MANY_PAGES / 2) as u64;
    let page = |i: u64| (i.wrapping_mul(7919) % half) as usize * PAGE;
    let zero_end = [0u8; PAGE];
    let m = |name, constant_ns, measured_ns| Measure { name, constant_ns, measured_ns };
    vec![
        m(
            "load that hits the first cache",
            cost::LOAD_NS,
            time(1 << 22, |_| _ = black_box(black_box(&word).load(Ordering::Relaxed))),
        ),
        m(
            "locked add, line its own",
            cost::RMW_NS,
            time(1 << 22, |_| _ = black_box(word.fetch_add(1, Ordering::Relaxed))),
        ),
        m(
            "line from another CPU",
            cost::LINE_SAME_SOCKET_NS,
            (0..20).map(|_| line_from_another_cpu()).fold(f64::INFINITY, f64::min),
        ),
        m("sched_yield", cost::SCHED_YIELD_NS, time(1 << 14, |_| std::thread::yield_now())),
        m("wake a sleeper (futex)", cost::WAKE_NS, wake()),
        m(
            "compress a page (LZ4)",
            cost::COMPRESS_PAGE_NS,
            time(1 << 12, |_| {
                _ = black_box(lz4_flex::block::compress_into(black_box(&text), &mut out));
            }),
        ),
        m("decompress a page (LZ4)", cost::DECOMPRESS_PAGE_NS, {
            let mut page = vec![0u8; PAGE];
            time(1 << 13, |_| _ = black_box(lz4_flex::block::decompress_into(black_box(&packed), &mut page)))
        }),
        m(
            "copy a page that is in no cache",
            cost::RAMDISK_PAGE_NS,
            time(half, |i| {
                to[page(i)..page(i) + PAGE].copy_from_slice(black_box(&from[page(i)..page(i) + PAGE]));
            }),
        ),
        m("is a page all zeros (it ends otherwise)", cost::IS_ZERO_NS, {
            let mut page = zero_end;
            page[PAGE - 1] = 1;
            time(1 << 20, |_| _ = black_box(black_box(&page)[PAGE - 8..] == [0; 8]))
        }),
    ]
}

/// Records of small objects, much alike: what a heap of a scripting language looks like to LZ4.
fn text_page() -> Vec<u8> {
    let record = |i: u32| {
        format!(
            "{{'id': {i}, 'name': 'item-{}', 'tags': ['a', 'b{}'], 'size': {}}}\n",
            i * 7919 % 1000,
            i % 13,
            i * 31 % 4096
        )
    };
    let mut text: String = (0..).map(record).take(80).collect();
    text.truncate(PAGE);
    text.into_bytes()
}

/// Two threads add to one word in turns: half of the time of a round trip.
fn line_from_another_cpu() -> f64 {
    const TURNS: u64 = 1 << 12;
    let word = AtomicU64::new(0);
    let wait_for = |value: u64| {
        let mut spins = 0u32;
        while word.load(Ordering::Acquire) != value {
            spins += 1;
            // With one CPU only, the other thread must be let in.
            if spins.is_multiple_of(1 << 12) {
                std::thread::yield_now();
            }
        }
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in (1..TURNS).step_by(2) {
                wait_for(turn);
                word.store(turn + 1, Ordering::Release);
            }
        });
        for turn in (0..TURNS).step_by(2) {
            wait_for(turn);
            word.store(turn + 1, Ordering::Release);
        }
        wait_for(TURNS);
    });
    // In a turn a thread reads the other's store, and takes the line back for its own.
    start.elapsed().as_nanos() as f64 / (2 * TURNS) as f64
}

/// What the waker pays while the other one sleeps.
fn wake() -> f64 {
    const WAKES: u32 = 200;
    let (bell, ring) = mpsc::channel::<()>();
    let asleep = AtomicBool::new(false);
    let mut best = f64::INFINITY;
    std::thread::scope(|scope| {
        let asleep = &asleep;
        scope.spawn(move || {
            asleep.store(true, Ordering::Release);
            while ring.recv().is_ok() {
                asleep.store(true, Ordering::Release);
            }
        });
        for _ in 0..WAKES {
            while !asleep.swap(false, Ordering::AcqRel) {
                std::thread::yield_now();
            }
            // The other thread is about to sleep: give it time to do so.
            std::thread::sleep(std::time::Duration::from_micros(200));
            let start = Instant::now();
            bell.send(()).expect("the sleeper listens until the bell is gone");
            best = best.min(start.elapsed().as_nanos() as f64);
        }
        drop(bell);
    });
    best
}

pub fn table(measures: &[Measure]) -> String {
    let mut text = format!("{:<42} {:>9} {:>9}\n", "nanoseconds", "constant", "here");
    for m in measures {
        let _ = writeln!(text, "{:<42} {:>9} {:>9.1}", m.name, m.constant_ns, m.measured_ns);
    }
    text
}

pub fn json(measures: &[Measure]) -> String {
    let row = |m: &Measure| {
        json!({
            "name": m.name,
            "constant_ns": m.constant_ns,
            "measured_ns": rounded(m.measured_ns, 1),
        })
    };
    let measures: Value = measures.iter().map(row).collect();
    format!("{:#}\n", json!({ "schema": 1, "measures": measures }))
}
