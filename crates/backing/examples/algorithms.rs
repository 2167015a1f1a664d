//! What each algorithm makes of the heap of a running process: what is left of a page, and the time out and
//! back.
//!
//!     python3 -c 'import time; d = {i: str(i) for i in range(10**6)}; time.sleep(60)' &
//!     cargo run --release -p memspill-backing --example algorithms -- $!
//!
//! Up to 3000 pages are taken, evenly, of the process's private anonymous memory that can be written; pages
//! of one repeated word, which a pool keeps without a block, are not counted. A page that does not compress
//! counts as a page, as in a pool. Times are the best of five rounds over all pages, which thus come from
//! memory each time.

use std::fs::{File, read_to_string};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use memspill_backing::compress::{Algorithm, Codec, Encoded, same_filled};
use memspill_engine::units::{PAGE_SIZE, Page};

const PAGES_MAX: usize = 3000;
const ROUNDS: usize = 5;

fn main() -> io::Result<()> {
    let Some(pid) = std::env::args().nth(1) else {
        eprintln!("usage: algorithms PID");
        std::process::exit(2);
    };
    let pages = sample(&pid)?;
    if pages.is_empty() {
        eprintln!("process {pid} has no such page");
        std::process::exit(1);
    }
    println!("{} pages of process {pid}", pages.len());
    println!("algorithm  left of a page  raw     out us  back us");
    for (name, algorithm) in [
        ("lz4", Algorithm::Lz4),
        ("wordwise", Algorithm::Wordwise),
        ("zstd-fast", Algorithm::ZstdFast),
        ("zstd", Algorithm::Zstd),
    ] {
        println!("{name:10} {}", measured(algorithm, &pages));
    }
    Ok(())
}

fn sample(pid: &str) -> io::Result<Vec<Page>> {
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let mut places = Vec::new();
    for line in read_to_string(format!("/proc/{pid}/maps"))?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_anonymous = words.len() == 5 || words.get(5) == Some(&"[heap]");
        if words[1] == "rw-p" && is_anonymous {
            let ends = words[0].split('-').filter_map(|end| u64::from_str_radix(end, 16).ok());
            let [from, to] = *ends.collect::<Vec<u64>>() else { continue };
            places.extend((from..to).step_by(PAGE_SIZE));
        }
    }
    let mut all = Vec::new();
    for place in places {
        let mut page = Page::ZERO;
        if memory.read_exact_at(&mut page.0, place).is_ok() && same_filled(&page).is_none() {
            all.push(page);
        }
    }
    let step = all.len().div_ceil(PAGES_MAX).max(1);
    Ok(all.into_iter().step_by(step).collect())
}

fn measured(algorithm: Algorithm, pages: &[Page]) -> String {
    let mut codec = Codec::default();
    let (mut out_s, mut back_s) = (f64::MAX, f64::MAX);
    let mut blocks = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        blocks = pages
            .iter()
            .map(|page| match codec.encode(algorithm, page) {
                Encoded::Block(block) => Some(block.to_vec()),
                _ => None,
            })
            .collect::<Vec<Option<Vec<u8>>>>();
        out_s = out_s.min(start.elapsed().as_secs_f64());
        let (start, mut page) = (Instant::now(), Page::ZERO);
        for block in blocks.iter().flatten() {
            assert!(codec.decompress(algorithm, block, &mut page), "its own block");
        }
        back_s = back_s.min(start.elapsed().as_secs_f64());
    }
    let count = pages.len() as f64;
    let left: usize = blocks.iter().map(|block| block.as_ref().map_or(PAGE_SIZE, Vec::len)).sum();
    let raw = blocks.iter().filter(|block| block.is_none()).count() as f64 / count;
    let (left, out_us, back_us) =
        (left as f64 / PAGE_SIZE as f64 / count, out_s * 1e6 / count, back_s * 1e6 / count);
    format!("{left:<15.3} {raw:<7.3} {out_us:<7.2} {back_us:<7.2}")
}
