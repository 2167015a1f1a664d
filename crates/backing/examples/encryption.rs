//! What encryption costs a swap file: the same pages to a file and back, with and without, in turns.
//!
//!     cargo run --release -p memspill-backing --example encryption [DIR]
//!
//! Pages are noise. `write`: batches of 64, slots in a row; `read`: windows of 8, and single pages, in a
//! random order. One thread, one queue, past the page cache where the file system has that.

use std::path::PathBuf;
use std::time::Instant;

use memspill_backing::{FileBacking, FileConfig};
use memspill_engine::backing::{Backing, PageWrite, QueueId, ReadDone, ReadRequest, ReadStart};
use memspill_engine::units::{Page, SlotIndex, page_buf};

const PAGES: u32 = 32 << 10;
const PAIRS: usize = 10;
const QUEUE: QueueId = QueueId(0);
const WHAT: [&str; 3] = ["write, batches of 64", "read, windows of 8", "read, single pages"];

struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn main() {
    let dir = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let mut rates: [Vec<(f64, f64)>; 3] = Default::default();
    for pair in 0..PAIRS {
        let mut of = [[0.0; 3]; 2];
        for encrypt in if pair % 2 == 0 { [false, true] } else { [true, false] } {
            of[usize::from(encrypt)] = measure(&dir, encrypt);
        }
        for (what, rates) in rates.iter_mut().enumerate() {
            rates.push((of[0][what], of[1][what]));
        }
    }
    println!("{PAGES} pages in {}, {PAIRS} pairs, thousands of pages a second", dir.display());
    println!("{:<22} {:>22} {:>22} {:>22}", "median (range)", "encrypt=off", "encrypted", "encrypted / off");
    for (what, rates) in WHAT.iter().zip(&rates) {
        let column = |get: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = rates.iter().map(get).collect();
            values.sort_by(f64::total_cmp);
            let median = (values[(PAIRS - 1) / 2] + values[PAIRS / 2]) / 2.0;
            (median, values[0], values[PAIRS - 1])
        };
        let shown = |(median, least, most): (f64, f64, f64)| format!("{median:.1} ({least:.1} to {most:.1})");
        let (off, on) = (column(|pair| pair.0 / 1e3), column(|pair| pair.1 / 1e3));
        let (median, least, most) = column(|pair| pair.1 / pair.0);
        let ratio = format!("{median:.2} ({least:.2} to {most:.2})");
        println!("{what:<22} {:>22} {:>22} {ratio:>22}", shown(off), shown(on));
    }
}

/// Pages a second, of what `WHAT` lists.
fn measure(dir: &std::path::Path, encrypt: bool) -> [f64; 3] {
    let config = FileConfig::unnamed_in(dir.to_owned(), u64::from(PAGES + 1) * 4096);
    let file = FileBacking::open(FileConfig { encrypt, ..config }).expect("a file in the directory");
    let mut dice = Dice(88172645463325252);
    let mut pages: Vec<Page> = vec![Page::ZERO; 64];
    for chunk in pages.iter_mut().flat_map(|page| page.0.as_chunks_mut::<8>().0) {
        *chunk = dice.roll().to_ne_bytes();
    }
    let rate = |start: Instant| f64::from(PAGES) / start.elapsed().as_secs_f64();
    let write = || {
        let mut results = Vec::new();
        for first in (1..=PAGES).step_by(64) {
            let slot = |at: u32| SlotIndex(first + at);
            let batch: Vec<PageWrite<'_>> =
                pages.iter().zip(0..).map(|(page, at)| PageWrite { slot: slot(at), page }).collect();
            file.write(QUEUE, &batch, &mut results);
        }
        assert!(results.iter().all(Result::is_ok));
    };
    // The first time the file system finds room for them.
    write();
    let start = Instant::now();
    write();
    let written = rate(start);
    let mut read = |window: u32| {
        let mut firsts: Vec<u32> = (1..=PAGES).step_by(window as usize).collect();
        for at in (1..firsts.len()).rev() {
            firsts.swap(at, (dice.roll() % (at as u64 + 1)) as usize);
        }
        let start = Instant::now();
        for first in firsts {
            let slots = (first..first + window).map(SlotIndex).collect();
            let done = finish(
                &file,
                ReadRequest { token: 1, slots, buf: page_buf(window as usize), is_awaited: true },
            );
            assert!(done.results.iter().all(Result::is_ok));
            assert!(done.buf[0].0 == pages[(first as usize - 1) % 64].0);
        }
        rate(start)
    };
    [written, read(8), read(1)]
}

fn finish(file: &FileBacking, request: ReadRequest) -> ReadDone {
    let mut done = match file.read(QUEUE, request) {
        ReadStart::Done(done) => vec![done],
        ReadStart::Pending => Vec::new(),
    };
    while done.is_empty() {
        file.reap(QUEUE, &mut done);
    }
    done.remove(0)
}
