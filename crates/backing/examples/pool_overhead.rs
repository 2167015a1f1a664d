//! What a page costs in compressed RAM, by LZ4 and by zstd: bytes held for each compressed byte, and µs to
//! store and load; and what it costs on a RAM disk.
//!
//!     cargo run --release -p memspill-backing --example pool_overhead
//!
//! The overhead is taken after churn: pages rewritten and discarded at random, and then with half of them
//! gone. A store includes same-filled detection and compression; a load includes decompression. One thread,
//! then two.

use std::hint::black_box;
use std::time::Instant;

use memspill_backing::compress::{Algorithm, Codec, Encoded};
use memspill_backing::file::checksum;
use memspill_backing::pool::Pool;
use memspill_backing::{RamBacking, RamConfig, RamDisk};
use memspill_engine::backing::{Backing, Chore, PageWrite, QueueId, ReadRequest, ReadStart};
use memspill_engine::units::{Page, SlotIndex, page_buf};

const PAGES: u32 = 20_000;
const MAINTAIN: Chore = Chore::Maintain { queue: QueueId(0) };

struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut state = self.0;
        state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^ state >> 31
    }
}

fn zeros(_: &mut Dice) -> Page {
    Page::ZERO
}

fn noise(dice: &mut Dice) -> Page {
    let mut page = Page::ZERO;
    for chunk in page.0.as_chunks_mut::<8>().0 {
        *chunk = dice.roll().to_ne_bytes();
    }
    page
}

/// About half of its bytes are noise, in pieces; the share differs from page to page.
fn half(dice: &mut Dice) -> Page {
    let mut page = Page::ZERO;
    let share = 40 + dice.roll() % 21;
    for piece in page.0.as_chunks_mut::<64>().0 {
        if dice.roll() % 100 < share {
            for chunk in piece.as_chunks_mut::<8>().0 {
                *chunk = dice.roll().to_ne_bytes();
            }
        }
    }
    page
}

/// Words of a small vocabulary.
fn text(dice: &mut Dice) -> Page {
    const WORDS: [&str; 16] = [
        "the ", "page ", "memory ", "of ", "slot ", "is ", "swap ", "and ", "a ", "kernel ", "in ", "reads ",
        "cluster ", "to ", "written ", "fault\n",
    ];
    let mut page = Page::ZERO;
    let mut at = 0;
    while at < page.0.len() {
        let number;
        let word = match dice.roll() % 20 {
            pick @ 0..16 => WORDS[pick as usize],
            _ => {
                number = (dice.roll() % 100_000).to_string();
                &number
            }
        };
        let len = word.len().min(page.0.len() - at);
        page.0[at..at + len].copy_from_slice(&word.as_bytes()[..len]);
        at += len;
    }
    page
}

fn write(ram: &dyn Backing, first: u32, pages: &[Page]) {
    let writes: Vec<PageWrite<'_>> =
        (first..).zip(pages).map(|(s, page)| PageWrite { slot: SlotIndex(s), page }).collect();
    let mut results = Vec::with_capacity(pages.len());
    ram.write(QueueId(0), &writes, &mut results);
    assert!(results.iter().all(|result| result.is_ok()));
}

/// µs a page of a pass over all slots, in batches of 32 writes or single reads.
fn store_and_load(ram: &dyn Backing, pages: &[Page], threads: u32) -> (f64, f64) {
    let each = PAGES / threads;
    let timed = |work: &(dyn Fn(u32) + Sync)| {
        let begun = Instant::now();
        std::thread::scope(|scope| (0..threads).for_each(|t| drop(scope.spawn(move || work(1 + t * each)))));
        begun.elapsed().as_secs_f64() * 1e6 / f64::from(each)
    };
    let store = timed(&|first| {
        for at in (0..each - 31).step_by(32) {
            let source = at as usize % (pages.len() - 31);
            write(ram, first + at, &pages[source..source + 32]);
        }
    });
    let load = timed(&|first| {
        let mut buf = Some(page_buf(1));
        let mut slots = Some(Vec::with_capacity(1));
        let mut dice = Dice(u64::from(first));
        for _ in 0..each {
            let slot = SlotIndex(first + (dice.roll() % u64::from(each - 32)) as u32);
            let mut list: Vec<SlotIndex> = slots.take().expect("given back");
            list.clear();
            list.push(slot);
            let request =
                ReadRequest { token: 0, slots: list, buf: buf.take().expect("given back"), is_awaited: true };
            let ReadStart::Done(done) = ram.read(QueueId(0), request) else {
                unreachable!("RAM is never pending")
            };
            assert!(done.results[0].is_ok());
            black_box(&done.buf[0]);
            (buf, slots) = (Some(done.buf), Some(done.slots));
        }
    });
    (store, load)
}

/// The best of five: the machine may be shared.
fn best(ram: &dyn Backing, pages: &[Page], threads: u32) -> (f64, f64) {
    let passes = (0..5).map(|_| store_and_load(ram, pages, threads));
    passes.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1))).expect("five passes")
}

/// µs a page of the codec by itself, for comparison: the rest is placing, counting and copying.
fn codec_alone(algorithm: Algorithm, pages: &[Page]) -> (f64, f64) {
    let mut codec = Codec::default();
    let mut blocks = Vec::new();
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..5 {
        blocks.clear();
        let begun = Instant::now();
        for page in pages {
            if let Encoded::Block(block) = codec.encode(algorithm, page) {
                blocks.push(block.to_vec());
            }
        }
        best.0 = best.0.min(begun.elapsed().as_secs_f64() * 1e6 / pages.len() as f64);
        let mut out = Page::ZERO;
        let begun = Instant::now();
        for block in &blocks {
            assert!(codec.decompress(algorithm, block, &mut out));
        }
        best.1 = best.1.min(begun.elapsed().as_secs_f64() * 1e6 / blocks.len().max(1) as f64);
    }
    best
}

fn main() {
    println!("pages of 4096 bytes; overhead = RAM held / compressed bytes, tables included");
    println!(
        "{:8} {:5} {:>7} {:>9} {:>9} {:>12} {:>9} {:>9} {:>11} {:>11} {:>9} {:>9}",
        "kind",
        "how",
        "ratio",
        "filled",
        "churned",
        "half gone",
        "store µs",
        "load µs",
        "store 2thr",
        "load 2thr",
        "in µs",
        "out µs"
    );
    type Kind = (&'static str, fn(&mut Dice) -> Page);
    let kinds: [Kind; 4] = [("zeros", zeros), ("half", half), ("noise", noise), ("text", text)];
    let all = kinds.iter().flat_map(|kind| [Algorithm::Lz4, Algorithm::Zstd].map(|how| (kind, how)));
    for ((name, make), algorithm) in all {
        let mut dice = Dice(1);
        let pages: Vec<Page> = (0..2048).map(|_| make(&mut dice)).collect();
        let ram = RamBacking::new(RamConfig {
            slots: PAGES + 64,
            ram_limit_bytes: u64::MAX,
            algorithm,
            shared: false,
        });
        let ((store, load), (store_2, load_2)) = (best(&ram, &pages, 1), best(&ram, &pages, 2));
        let (codec_store, codec_load) = codec_alone(algorithm, &pages);
        let overhead = |ram: &RamBacking| {
            let usage = ram.usage();
            usage.ram_bytes as f64 / usage.ram_compressed_bytes.max(1) as f64
        };
        let usage = ram.usage();
        let ratio = usage.ram_compressed_bytes as f64 / (f64::from(PAGES) * 4096.0);
        let filled = overhead(&ram);
        for _ in 0..4 * PAGES {
            let slot = 1 + (dice.roll() % u64::from(PAGES)) as u32;
            match dice.roll() % 4 {
                0 => ram.discard(&[SlotIndex(slot)]),
                _ => write(&ram, slot, &pages[(dice.roll() % 2048) as usize..][..1]),
            }
        }
        while ram.housekeep(MAINTAIN) {}
        let churned = overhead(&ram);
        for slot in 1..=PAGES {
            if dice.roll().is_multiple_of(2) {
                ram.discard(&[SlotIndex(slot)]);
            }
        }
        while ram.housekeep(MAINTAIN) {}
        while ram.housekeep(MAINTAIN) {}
        let halved = overhead(&ram);
        let percent = |x: f64| if *name == "zeros" { "-".into() } else { format!("{x:.3}") };
        println!(
            "{name:8} {:5} {ratio:7.3} {:>9} {:>9} {:>12} {store:9.2} {load:9.2} {store_2:11.2} \
             {load_2:11.2} {codec_store:9.2} {codec_load:9.2}",
            format!("{algorithm:?}").to_lowercase(),
            percent(filled),
            percent(churned),
            percent(halved)
        );
    }

    let disk = RamDisk::open(PAGES + 64).expect("address space");
    let mut dice = Dice(1);
    let pages: Vec<Page> = (0..2048).map(|_| noise(&mut dice)).collect();
    let ((store, load), (store_2, load_2)) = (best(&disk, &pages, 1), best(&disk, &pages, 2));
    println!("RAM disk: store {store:.2}, load {load:.2} µs; by two threads {store_2:.2}, {load_2:.2}");

    let pool = Pool::default();
    let begun = Instant::now();
    let rounds = 200_000u32;
    for _ in 0..rounds {
        let handle = pool.store(1, black_box(&[7; 64]), u64::MAX).expect("no limit");
        pool.free(handle, 64);
    }
    println!(
        "pool: take and free of 64 bytes {:.0} ns",
        begun.elapsed().as_nanos() as f64 / f64::from(rounds)
    );
    let page = noise(&mut Dice(3));
    let handle = pool.store(1, &page.0, u64::MAX).expect("no limit");
    let mut out = Page::ZERO;
    let begun = Instant::now();
    for _ in 0..rounds {
        pool.copy_out(black_box(handle), &mut out.0);
    }
    println!("pool: copy out of 4096 bytes {:.0} ns", begun.elapsed().as_nanos() as f64 / f64::from(rounds));
    let begun = Instant::now();
    for _ in 0..rounds {
        black_box(checksum(7, SlotIndex(5), black_box(&page)));
    }
    println!("file: checksum of a page {:.0} ns", begun.elapsed().as_nanos() as f64 / f64::from(rounds));
}
