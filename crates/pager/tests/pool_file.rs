//! The agent reads out of a shared pool exactly what the supervisor has put there.

use memspill_backing::file::{FileConfig, IoEngine};
use memspill_backing::ram::{RamBacking, RamConfig};
use memspill_backing::tier::TierBacking;
use memspill_backing::{Algorithm, Recompress};
use memspill_common::pool::{
    HEADER_BYTES, Header, LZ4, Location, MAGIC, PAGE_BYTES, Packed, WORDWISE, decompress, is_same_place,
    locate, location_at,
};
use memspill_engine::backing::{Backing, Chore, PageWrite, QueueId};
use memspill_engine::units::{Page, SlotIndex};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// Pages of every kind: the same word, runs of few words, words from a small book, noise.
fn page_of(number: u64) -> Page {
    let mut seed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut page = Page::ZERO;
    let kind = number % 8;
    let book: Vec<u64> = (0..1 + number % 40).map(|_| random(&mut seed) >> (number % 5 * 13)).collect();
    let mut last = 0;
    for word in page.0.chunks_exact_mut(8) {
        let drawn = random(&mut seed);
        last = match kind {
            0 => [0, u64::MAX, 0x1234_5678_1234_5678, 0xff00_0000_0000, 0xffff_ffff_ffff_ff12, 7]
                [number as usize / 8 % 6],
            1 if !drawn.is_multiple_of(32) => last,
            2..=4 => book[drawn as usize % book.len()],
            5 => drawn & (0x0101_0101_0101_0101 * (number % 7)),
            6 if drawn.is_multiple_of(3) => 0,
            _ => drawn,
        };
        word.copy_from_slice(&last.to_ne_bytes());
    }
    // Repetitions at every distance.
    if kind == 3 {
        let period = 1 + number as usize % 23;
        for at in period..3000 {
            page.0[at] = page.0[at - period];
        }
    }
    page
}

struct Reader(File, Header);

impl Reader {
    fn of(pool: &dyn Backing) -> Reader {
        let file = File::from(pool.pool_file().expect("a file").try_clone_to_owned().unwrap());
        let mut bytes = [0u8; HEADER_BYTES];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let rooms = std::array::from_fn(|i| u16::from_ne_bytes([bytes[8 + 2 * i], bytes[9 + 2 * i]]));
        Reader(file, Header { magic: word(0), algorithm: word(4), rooms_bytes: rooms })
    }

    fn word(&self, slot: u32) -> u64 {
        let mut word = [0u8; 8];
        self.0.read_exact_at(&mut word, location_at(slot.into())).unwrap();
        u64::from_ne_bytes(word)
    }

    fn page(&self, slot: u32) -> Option<[u8; PAGE_BYTES]> {
        let mut page = [0u8; PAGE_BYTES];
        match locate(self.word(slot), &self.1) {
            Location::Same(value) => {
                page.chunks_exact_mut(8).for_each(|at| at.copy_from_slice(&value.to_ne_bytes()))
            }
            Location::Object { offset, len, packed } => {
                let mut block = vec![0u8; len];
                self.0.read_exact_at(&mut block, offset).unwrap();
                if len == PAGE_BYTES {
                    page.copy_from_slice(&block);
                } else if !decompress(packed, &block, &mut page) {
                    return None;
                }
            }
            Location::Elsewhere => return None,
        }
        Some(page)
    }
}

#[test]
fn every_page_of_a_pool_is_read_as_it_was_written() {
    read_as_written(Algorithm::Lz4, LZ4, Packed::Lz4);
    read_as_written(Algorithm::Wordwise, WORDWISE, Packed::Wordwise);
}

fn read_as_written(algorithm: Algorithm, number: u32, expected: Packed) {
    const PAGES: u32 = 6000;
    let ram_limit_bytes = u64::MAX;
    let pool = RamBacking::new(RamConfig { slots: PAGES + 2, ram_limit_bytes, algorithm, shared: true });
    let reader = Reader::of(&pool);
    assert_eq!((reader.1.magic, reader.1.algorithm), (MAGIC, number));
    let (mut same, mut blocks, mut whole) = (0, 0, 0);
    for slot in 1..=PAGES {
        let page = page_of(slot.into());
        let mut results = Vec::new();
        pool.write(QueueId(0), &[PageWrite { slot: SlotIndex(slot), page: &page }], &mut results);
        assert!(results[0].is_ok());
        match locate(reader.word(slot), &reader.1) {
            Location::Same(_) => same += 1,
            Location::Object { len: PAGE_BYTES, .. } => whole += 1,
            Location::Object { packed, .. } => {
                assert_eq!(packed, expected);
                blocks += 1;
            }
            Location::Elsewhere => panic!("page {slot} is not in the pool"),
        }
    }
    assert!(same > 300 && blocks > 1000 && whole > 300, "{same} {blocks} {whole}");
    // The size of the file is known. (Some of its pages are counted that are still to be used.)
    let (file_bytes, known_bytes) =
        (reader.0.metadata().unwrap().blocks() * 512, pool.usage().ram_file_bytes);
    assert!(
        (file_bytes * 9 / 10..file_bytes * 11 / 10).contains(&known_bytes),
        "{known_bytes} of {file_bytes}"
    );
    for slot in 1..=PAGES {
        assert!(reader.page(slot) == Some(page_of(slot.into()).0), "page {slot}");
    }
    let before = reader.word(7);
    pool.discard(&[SlotIndex(7)]);
    assert_eq!(reader.page(7), None);
    assert!(!is_same_place(before, reader.word(7)));
    assert_eq!(reader.page(PAGES + 1), None, "a slot that was never used");
}

/// A page that was compressed once more is for the supervisor to read: a reader leaves it alone.
#[test]
fn blocks_of_zstd_are_left_alone() {
    const PAGES: u32 = 1000;
    let (ram_limit_bytes, algorithm) = (2 << 20, Algorithm::Lz4);
    let file = FileConfig { io: IoEngine::Sync, ..FileConfig::unnamed_in(std::env::temp_dir(), 16 << 20) };
    let pool = TierBacking::with_recompress(
        RamConfig { slots: PAGES + 2, ram_limit_bytes, algorithm, shared: true },
        file,
        Recompress::On,
    )
    .unwrap();
    let reader = Reader::of(&pool);
    let letters = |slot: u32| {
        let (mut seed, mut page) = (u64::from(slot) | 1 << 40, Page::ZERO);
        page.0.iter_mut().for_each(|byte| *byte = b"abcd"[random(&mut seed) as usize % 4]);
        page
    };
    let count = || {
        let left_alone = |slot: &u32| match reader.page(*slot) {
            Some(page) => {
                assert!(page == letters(*slot).0, "page {slot}");
                false
            }
            None => true,
        };
        (1..=PAGES).filter(left_alone).count()
    };
    for slot in 1..=PAGES {
        let mut results = Vec::new();
        pool.write(QueueId(0), &[PageWrite { slot: SlotIndex(slot), page: &letters(slot) }], &mut results);
        assert!(results[0].is_ok());
        while slot % 16 == 0 && pool.housekeep(Chore::Maintain { queue: QueueId(0) }) {}
    }
    let usage = pool.usage();
    assert!(usage.zstd_pages > 100 && usage.zstd_pages < usage.ram_pages, "{usage:?}");
    assert_eq!(usage.dense_per_mille, None, "what comes in can be read");
    assert_eq!(count() as u64, usage.zstd_pages + usage.file_pages);
}

/// A page that comes in wordwise because that leaves less is read by others too.
#[test]
fn blocks_by_words_are_read() {
    const PAGES: u32 = 3000;
    let (ram_limit_bytes, algorithm) = (64 << 20, Algorithm::Lz4);
    let file = FileConfig { io: IoEngine::Sync, ..FileConfig::unnamed_in(std::env::temp_dir(), 16 << 20) };
    let ram = RamConfig { slots: PAGES + 2, ram_limit_bytes, algorithm, shared: true };
    let pool = TierBacking::with_recompress(ram, file, Recompress::Auto).unwrap();
    let reader = Reader::of(&pool);
    let pointers = |slot: u32| {
        let (mut seed, mut page) = (u64::from(slot) | 1 << 40, Page::ZERO);
        for (at, word) in page.0.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let number = random(&mut seed) % 1000;
            let value = if at % 2 == 0 { 0x7f3a_0000_0000 + 8 * at as u64 } else { number };
            *word = value.to_ne_bytes();
        }
        page
    };
    for slot in 1..=PAGES {
        let mut results = Vec::new();
        pool.write(QueueId(0), &[PageWrite { slot: SlotIndex(slot), page: &pointers(slot) }], &mut results);
        assert!(results[0].is_ok());
    }
    let usage = pool.usage();
    assert!(usage.wordwise_pages > 1500 && usage.zstd_pages == 0, "{usage:?}");
    for slot in 1..=PAGES {
        assert!(reader.page(slot) == Some(pointers(slot).0), "page {slot}");
    }
}

#[test]
fn a_reader_can_only_read() {
    const SLOTS: u32 = 100;
    let (algorithm, ram_limit_bytes) = (Algorithm::Lz4, 1 << 30);
    let pool = RamBacking::new(RamConfig { slots: SLOTS, ram_limit_bytes, algorithm, shared: true });
    let Reader(file, _) = Reader::of(&pool);
    assert!(file.write_at(&[1], location_at(1)).is_err() && file.set_len(0).is_err());
    // A process that can open it anew can do worse, but does not end the supervisor by SIGBUS.
    let anew = File::options().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    assert!(anew.set_len(4096).is_err() && anew.set_len(1 << 45).is_err());
    let len_bytes = file.metadata().unwrap().len();
    assert!(len_bytes > location_at(u64::from(SLOTS)) && anew.set_len(len_bytes).is_ok());
}

fn packed_zeros(bytes: usize) -> Vec<u8> {
    let mut packed = Vec::new();
    lzzzz::lz4::compress_to_vec(&vec![0; bytes], &mut packed, lzzzz::lz4::ACC_LEVEL_DEFAULT).unwrap();
    packed
}

#[test]
fn blocks_that_are_none_are_refused() {
    let mut page = [0u8; PAGE_BYTES];
    let mut seed = 42;
    for length in 0..400 {
        for _ in 0..200 {
            let block: Vec<u8> = (0..length).map(|_| random(&mut seed) as u8).collect();
            // A page by chance is not expected, a panic or a write elsewhere would be seen.
            let _ = decompress(Packed::Lz4, &block, &mut page);
            let _ = decompress(Packed::Wordwise, &block, &mut page);
        }
    }
    let zeros = packed_zeros(PAGE_BYTES);
    assert!(decompress(Packed::Lz4, &zeros, &mut page) && page == [0; PAGE_BYTES]);
    for end in 0..zeros.len() {
        assert!(!decompress(Packed::Lz4, &zeros[..end], &mut page), "a part of a block of {end} bytes");
    }
    assert!(!decompress(Packed::Lz4, &packed_zeros(PAGE_BYTES - 1), &mut page));
    assert!(!decompress(Packed::Lz4, &packed_zeros(PAGE_BYTES + 1), &mut page));
}
