//! Pages come into the default device's pool by zstd's fast level, and not by LZ4, where that leaves less.
//!
//! ```text
//!   store ──▶ LZ4        3 to 5 µs out, 1 µs back      0.25 to 0.50 of a page        heaps of java, node,
//!         └─▶ zstd -1    5 to 8 µs out, 2 to 3.5 back  0.62 to 0.84 of what LZ4      python, SQLite, g++,
//!                                                      leaves                        a C++ map
//! ```
//!
//! What the pool does not take the program has: of most programs fewer faults are worth more than the time.
//! Whether it leaves less (of text it does not) is measured: one page in 64 is compressed both ways.
//!
//! A block that came in so has a mark of its own in its location: that it is zstd's says nothing of what the
//! compression before the file is worth (worth.rs). That one (level 1) leaves a tenth less of a heap, and is
//! soon tried seldom; of text it leaves three quarters. A page that zstd's fast level does not compress comes
//! in by LZ4, if that does (numbers of few kinds).
//!
//! What it does not do: change what is in the pool already. Pages that come and go do that.
//!
//! Tried: *LZ4 while the pool is full and few faults read the file*, where a pool that is packed densely only
//! holds more that nobody wants (node was 16 % slower by that). It was decided from what the share of the
//! pool is decided from, and by a quarter of a second's counts it changed to and fro. A pool that may be
//! smaller (pager/src/pool_share.rs) is better there than either.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memspill_engine::units::Page;

use crate::compress::{Algorithm, COMPRESSED_BYTES_MAX, Codec};

/// One page in so many is compressed both ways.
const SAMPLED: u64 = 64;
/// The sample is of so many bytes to twice as many, by LZ4, of late.
const SAMPLE_BYTES: u64 = 256 << 10;
/// With fewer nothing is known.
const SAMPLE_BYTES_MIN: u64 = 32 << 10;
/// It begins where it leaves no more of a thousand bytes, and ends where it leaves more than the other.
const BEGINS_PER_MILLE: u64 = 900;
const ENDS_PER_MILLE: u64 = 940;

/// See the module's header.
pub(crate) struct Dense {
    /// Nobody reads the pool who knows LZ4 alone, and zstd was not forbidden.
    is_allowed: bool,
    gains: AtomicBool,
    stores: AtomicU64,
    sample: Mutex<Sample>,
}

/// What either leaves of the sampled pages.
#[derive(Default)]
struct Sample {
    lz4_bytes: u64,
    dense_bytes: u64,
}

impl Sample {
    fn add(&mut self, lz4_bytes: u64, dense_bytes: u64) {
        self.lz4_bytes += lz4_bytes;
        self.dense_bytes += dense_bytes;
        if self.lz4_bytes > 2 * SAMPLE_BYTES {
            self.lz4_bytes /= 2;
            self.dense_bytes /= 2;
        }
    }

    fn per_mille(&self) -> Option<u64> {
        (self.lz4_bytes >= SAMPLE_BYTES_MIN).then(|| self.dense_bytes * 1000 / self.lz4_bytes)
    }
}

impl Dense {
    pub(crate) fn new(is_allowed: bool) -> Dense {
        Dense {
            is_allowed,
            gains: AtomicBool::new(false),
            stores: AtomicU64::new(0),
            sample: Mutex::default(),
        }
    }

    /// Is the next page to come in by zstd? Not before it is known to gain.
    pub(crate) fn gains(&self) -> bool {
        self.gains.load(Ordering::Relaxed)
    }

    /// A page is about to be stored. One in 64 is measured.
    pub(crate) fn sample(&self, page: &Page, codec: &mut Codec) {
        if !self.is_allowed || !self.stores.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLED) {
            return;
        }
        // Of a page that LZ4 does not compress nothing lies in the pool; one that zstd does not compress
        // comes in by LZ4.
        let Some(lz4_bytes) = codec.length(Algorithm::Lz4, page, COMPRESSED_BYTES_MAX) else { return };
        let dense_bytes = codec.length(Algorithm::ZstdFast, page, COMPRESSED_BYTES_MAX).unwrap_or(lz4_bytes);
        self.note(lz4_bytes as u64, dense_bytes as u64);
    }

    fn note(&self, lz4_bytes: u64, dense_bytes: u64) {
        let mut sample = self.sample.lock().expect("sample");
        sample.add(lz4_bytes, dense_bytes);
        let most = if self.gains() { ENDS_PER_MILLE } else { BEGINS_PER_MILLE };
        self.gains.store(sample.per_mille().is_some_and(|left| left <= most), Ordering::Relaxed);
    }

    /// While pages come in by zstd: what it leaves of a thousand bytes that LZ4 leaves.
    pub(crate) fn per_mille_if_gains(&self) -> Option<u64> {
        self.gains().then(|| self.sample.lock().expect("sample").per_mille()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 40
    }

    /// As a heap has them.
    fn pointers(seed: u64) -> Page {
        let (mut page, mut state) = (Page::ZERO, seed);
        for word in page.0.as_chunks_mut::<8>().0 {
            *word = (0x7f3a_1000_0000 + (draw(&mut state) >> 4) * 16).to_le_bytes();
        }
        page
    }

    /// Numbers of few kinds: LZ4 leaves less of them than zstd's fast level.
    fn few_numbers(seed: u64) -> Page {
        let (mut page, mut state) = (Page::ZERO, seed);
        for word in page.0.as_chunks_mut::<4>().0 {
            let kind = (draw(&mut state) % 64) as u32 + 1;
            *word = kind.wrapping_mul(0x9e37_79b9).to_le_bytes();
        }
        page
    }

    #[test]
    fn a_sample_says_what_it_would_leave() {
        let mut codec = Codec::default();
        let (dense, forbidden) = (Dense::new(true), Dense::new(false));
        assert!(!dense.gains() && dense.per_mille_if_gains().is_none());
        for seed in 0..64 * 64 {
            dense.sample(&pointers(seed), &mut codec);
            forbidden.sample(&pointers(seed), &mut codec);
        }
        let left = dense.per_mille_if_gains().unwrap();
        assert!((300..850).contains(&left) && dense.gains() && !forbidden.gains(), "{left}");
        for seed in 0..64 * 1000 {
            dense.sample(&few_numbers(seed), &mut codec);
        }
        assert!(!dense.gains(), "{:?}", dense.sample.lock().unwrap().per_mille());
    }

    #[test]
    fn the_sample_is_of_late_and_sees_a_loss() {
        let mut sample = Sample::default();
        sample.add(SAMPLE_BYTES_MIN - 1, 0);
        assert_eq!(sample.per_mille(), None);
        sample.add(1, 1000);
        assert_eq!(sample.per_mille(), Some(30));
        for _ in 0..10 {
            sample.add(SAMPLE_BYTES, SAMPLE_BYTES * 12 / 10);
        }
        assert!(sample.per_mille() > Some(1000), "a loss is seen: {:?}", sample.per_mille());
    }

    #[test]
    fn between_its_bounds_it_goes_on_as_it_is() {
        const { assert!(BEGINS_PER_MILLE < ENDS_PER_MILLE) }
        let dense = Dense::new(true);
        let gains_at = |per_mille: u64| {
            // Until what was before is forgotten.
            (0..40).for_each(|_| dense.note(SAMPLE_BYTES, SAMPLE_BYTES * per_mille / 1000));
            dense.gains()
        };
        let between = (BEGINS_PER_MILLE + ENDS_PER_MILLE) / 2;
        assert!(!gains_at(between) && gains_at(BEGINS_PER_MILLE - 20));
        assert!(gains_at(between) && !gains_at(ENDS_PER_MILLE + 20) && !gains_at(between));
    }
}
