//! `memspill-lab sim calibrate`: measures on this machine what the constants marked (c) in `vcpu/src/cost.rs`
//! stand for.
//!
//! ```text
//!   here        instructions, cache lines, LZ4, memory, what one thread costs another
//!   kernel.rs   faults, userfaultfd, moves, splits, staging, reclaim
//! ```
//!
//! The only part of the simulator that looks at a real clock. Its findings are shown and change nothing:
//! constants that differed between machines would end "the same command, the same bytes". A `-` is what this
//! machine does not let one measure.

mod kernel;

use lzzzz::lz4;
use memspill_tables::json::rounded;
use memspill_vcpu::cost;
use rustix::fs::{MemfdFlags, memfd_create};
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
    measured_ns: Option<f64>,
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
    let mut out = vec![0u8; lz4::max_compressed_size(PAGE)];
    let packed_bytes = lz4::compress(&text, &mut out, lz4::ACC_LEVEL_DEFAULT).expect("there is room");
    let packed = out[..packed_bytes].to_vec();
    let mut pages = vec![1u8; MANY_PAGES * PAGE];
    let (from, to) = pages.split_at_mut(MANY_PAGES / 2 * PAGE);
    let half = (MANY_PAGES / 2) as u64;
    let page = |i: u64| (i.wrapping_mul(7919) % half) as usize * PAGE;
    let zero_end = [0u8; PAGE];
    let m = |name, constant_ns, ns| Measure { name, constant_ns, measured_ns: Some(ns) };
    let mut measures = vec![
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
                _ = black_box(lz4::compress(black_box(&text), &mut out, lz4::ACC_LEVEL_DEFAULT));
            }),
        ),
        m("decompress a page (LZ4)", cost::DECOMPRESS_PAGE_NS, {
            let mut page = vec![0u8; PAGE];
            time(1 << 13, |_| _ = black_box(lz4::decompress(black_box(&packed), &mut page)))
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
        m("line that this CPU has in its second cache", cost::L2_NS, chase(256 << 10)),
        m("line that no CPU has", cost::DRAM_NS, chase(256 << 20)),
        m("pause", cost::PAUSE_NS, time(1 << 16, |_| std::hint::spin_loop())),
    ];
    measures.extend(of_the_kernel());
    measures
}

fn of_the_kernel() -> Vec<Measure> {
    let m = |name, constant_ns, measured_ns| Measure { name, constant_ns, measured_ns };
    let less = |all: Option<f64>, part: Option<f64>| Some(all? - part?);
    let (first, first_huge) = (kernel::first_store(), kernel::first_store_huge());
    let (one, run) = (kernel::move_run(1), kernel::move_run(64));
    let move_page = less(run, one).map(|ns| ns / 63.0);
    let split = less(kernel::move_out_of_huge(), one);
    let (fault, read) = kernel::fault_and_read().unzip();
    let huge = kernel::HUGE as u64;
    vec![
        m("request to a file in memory, its page aside", cost::RAMDISK_REQUEST_NS, request_to_memory()),
        m("from one thread of a CPU to another", cost::CONTEXT_SWITCH_NS, kernel::context_switch()),
        m("fault: there and back, to a pager on the CPU", cost::FAULT_NS, {
            less(less(fault, read), kernel::copy_one())
        }),
        m("read of its message", cost::READ_MESSAGE_NS, read),
        m("UFFDIO_COPY, a page in a run", cost::COPY_PAGE_NS, kernel::fill(false)),
        m("UFFDIO_ZEROPAGE, a page in a run", cost::ZERO_PAGE_NS, kernel::fill(true)),
        m("UFFDIO_WAKE", cost::WAKE_PAGE_NS, kernel::wake()),
        m("UFFDIO_MOVE, a page in a run", cost::MOVE_PAGE_NS, move_page),
        m("UFFDIO_MOVE, a run by itself", cost::MOVE_RUN_NS, less(one, move_page)),
        m("a page out of staging", cost::STAGE_PAGE_NS, kernel::stage()),
        m("first store to a page", cost::FIRST_STORE_NS, first),
        m("each further page of a fresh huge page", cost::FRESH_PAGE_NS, {
            less(first_huge, first).map(|ns| ns / (huge - 1) as f64)
        }),
        m(
            "MADV_PAGEOUT, a page of zeros",
            cost::MOVE_RUN_NS + cost::RECLAIM_FOLIO_NS + cost::RECLAIM_PAGE_NS,
            kernel::page_out(false),
        ),
        m("MADV_PAGEOUT, a page of a huge one", cost::RECLAIM_PAGE_NS, kernel::page_out(true)),
        m("a huge page is split", cost::SPLIT_PAGE_NS * huge, split),
    ]
}

/// A load that depends on the one before, somewhere in so many bytes.
fn chase(bytes: usize) -> f64 {
    const LINE: usize = 64 / size_of::<u32>();
    const LOADS: u64 = 1 << 18;
    let lines = bytes / 64;
    let mut memory = vec![0u32; lines * LINE];
    // One circle through all lines, in steps that no prefetcher follows: the step has no divisor in common
    // with a power of two.
    let step = (lines as f64 * 0.618) as usize | 1;
    (0..lines).for_each(|line| memory[line * LINE] = ((line + step) % lines * LINE) as u32);
    let mut at = 0;
    let mut load = |_| at = black_box(memory[at] as usize);
    (0..lines as u64).for_each(&mut load);
    time(LOADS, load)
}

/// What a write of a page to a file in memory costs beyond the page: the next thing to a RAM disk's request
/// that any machine has.
fn request_to_memory() -> Option<f64> {
    use std::os::unix::fs::FileExt;
    const PAGES: u64 = 1 << 10;
    let file: std::fs::File = memfd_create("calibrate", MemfdFlags::CLOEXEC).ok()?.into();
    let page = [1u8; PAGE];
    let write =
        |bytes: usize| time(PAGES, |i| _ = black_box(file.write_all_at(&page[..bytes], i * PAGE as u64)));
    let whole = write(PAGE);
    let copied = time(PAGES, |_| _ = black_box(page.to_vec()));
    Some((whole - copied).max(0.0))
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
    let mut text = format!("{:<46} {:>9} {:>9}\n", "nanoseconds", "constant", "here");
    for m in measures {
        let measured = m.measured_ns.map_or("-".into(), |ns| format!("{ns:.1}"));
        let _ = writeln!(text, "{:<46} {:>9} {:>9}", m.name, m.constant_ns, measured);
    }
    text
}

pub fn json(measures: &[Measure]) -> String {
    let row = |m: &Measure| {
        json!({
            "name": m.name,
            "constant_ns": m.constant_ns,
            "measured_ns": m.measured_ns.map(|ns| rounded(ns, 1)),
        })
    };
    let measures: Value = measures.iter().map(row).collect();
    format!("{:#}\n", json!({ "schema": 1, "measures": measures }))
}
