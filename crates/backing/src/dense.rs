//! Pages come into the default device's pool by what leaves least of them, and not by LZ4, where that is
//! enough less.
//!
//! ```text
//!             out        back          left of a page
//!   LZ4       3 to 5 µs  0.6 to 1.2 µs  0.26 to 0.51   heaps of java, node, python, g++, a C++ map
//!   wordwise  3 to 5     1.3 to 1.7     0.73 to 0.79 of what LZ4 leaves; of text more than that does
//!   zstd -1   5 to 8     1.7 to 3.2     0.68 to 0.84 of it, of text too
//! ```
//!
//! The program gets the part that the pool does not take: for most programs fewer faults are worth more than
//! the time. The smallest form is found by measuring: one page in 64 is compressed in all ways. Wordwise and
//! zstd need to leave a tenth less than LZ4; zstd, which takes twice the time, a fifth less than wordwise.
//! Pages that are in no pool by LZ4 do not count: pages of one repeated word, and pages that it does not
//! compress.
//!
//! A block that came in so has a form of its own in its location: that it is zstd's says nothing of what the
//! compression before the file is worth (worth.rs). That one (level 1) leaves a tenth less of a heap, and is
//! soon tried seldom; of text it leaves three quarters. A page that is not compressed in the chosen way
//! comes in by LZ4, if that does (numbers of few kinds), and goes to the file if not.
//!
//! Threads that read a shared pool by themselves (`pool_file.rs`) know LZ4 and wordwise.
//!
//! What it does not do: change what is in the pool already. Pages that come and go do that.
//!
//! Tried: *LZ4 while the pool is full and few faults read the file*, where a pool that is packed densely only
//! holds more that nobody wants (node was 16 % slower by that). It was decided from what the share of the
//! pool is decided from, and by a quarter of a second's counts it changed to and fro. A pool that may be
//! smaller (pager/src/pool_share.rs) is better there than either.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use memspill_engine::units::Page;

use crate::compress::{Algorithm, COMPRESSED_BYTES_MAX, Codec, Encoded, same_filled};
use crate::location::Form;

/// One page in so many is compressed in all ways.
const SAMPLED: u64 = 64;
/// The sample is of so many bytes to twice as many, by LZ4, of late.
const SAMPLE_BYTES: u64 = 256 << 10;
/// With fewer nothing is known.
const SAMPLE_BYTES_MIN: u64 = 32 << 10;
/// A way that is in use goes on while it leaves so much more, in thousandths of what LZ4 leaves.
const STAYS_PER_MILLE: u64 = 40;

/// A slower form must leave no more than this share of the size that a faster one leaves.
const MORE_TIME_PER_MILLE: u64 = 800;

/// It is used from where it leaves no more of a thousand bytes that LZ4 leaves.
const BEGINS_PER_MILLE: u64 = 900;
/// A longer block is not kept wordwise: a page that LZ4 does not compress either is better in the file. (A
/// sixth of java's heap is shortened by a fifth, wordwise alone. With that in the pool it took 5.3 s in 78M,
/// without 3.7.)
const WORDWISE_BYTES_MAX: usize = 2560;

/// The forms that may leave less than LZ4, in the order of the time that they take.
const WAYS: [Form; 2] = [Form::Wordwise, Form::ZstdFast];

/// The longest block that is kept in a form.
fn bytes_max(form: Form) -> usize {
    if form == Form::Wordwise { WORDWISE_BYTES_MAX } else { COMPRESSED_BYTES_MAX }
}

/// Is a page kept in this form, of which that was made?
pub(crate) fn keeps(form: Form, encoded: &Encoded<'_>) -> bool {
    match encoded {
        Encoded::Same(_) => true,
        Encoded::Block(block) => block.len() <= bytes_max(form),
        Encoded::Raw => false,
    }
}

/// See the module's header.
pub(crate) struct Dense {
    is_allowed: bool,
    is_zstd_allowed: bool,
    /// The form of the next page.
    form: AtomicU8,
    stores: AtomicU64,
    sample: Mutex<Sample>,
}

/// What each way leaves of the sampled pages.
#[derive(Default)]
struct Sample {
    lz4_bytes: u64,
    dense_bytes: [u64; WAYS.len()],
}

impl Sample {
    fn add(&mut self, lz4_bytes: u64, dense_bytes: [u64; WAYS.len()]) {
        self.lz4_bytes += lz4_bytes;
        for (sum, bytes) in self.dense_bytes.iter_mut().zip(dense_bytes) {
            *sum += bytes;
        }
        if self.lz4_bytes > 2 * SAMPLE_BYTES {
            self.lz4_bytes /= 2;
            self.dense_bytes.iter_mut().for_each(|sum| *sum /= 2);
        }
    }

    /// The bytes that a form leaves for each thousand bytes that LZ4 leaves.
    fn per_mille(&self, form: Form) -> Option<u64> {
        let at = WAYS.iter().position(|way| *way == form)?;
        (self.lz4_bytes >= SAMPLE_BYTES_MIN).then(|| self.dense_bytes[at] * 1000 / self.lz4_bytes)
    }

    /// What is to be used next, where this is used now.
    fn best(&self, now: Form, is_allowed: impl Fn(Form) -> bool) -> Form {
        let (mut best, mut enough) = (Form::Plain, 1000);
        for way in WAYS.into_iter().filter(|way| is_allowed(*way)) {
            let Some(left) = self.per_mille(way) else { continue };
            let margin = if way == now { STAYS_PER_MILLE } else { 0 };
            if left <= BEGINS_PER_MILLE.min(enough) + margin {
                (best, enough) = (way, left * MORE_TIME_PER_MILLE / 1000);
            }
        }
        best
    }
}

impl Dense {
    /// Not allowed at all, pages come in by the pool's algorithm; with zstd, nobody reads the pool who does
    /// not know it.
    pub(crate) fn new(is_allowed: bool, is_zstd_allowed: bool) -> Dense {
        Dense {
            is_allowed,
            is_zstd_allowed,
            form: AtomicU8::new(Form::Plain as u8),
            stores: AtomicU64::new(0),
            sample: Mutex::default(),
        }
    }

    /// In which form is the next page to come in? In the plain one before another is known to gain.
    pub(crate) fn form(&self) -> Form {
        Form::of(self.form.load(Ordering::Relaxed).into())
    }

    fn allows(&self, way: Form) -> bool {
        self.is_allowed && (way != Form::ZstdFast || self.is_zstd_allowed)
    }

    /// A page is about to be stored. One in 64 is measured.
    pub(crate) fn sample(&self, page: &Page, codec: &mut Codec) {
        let is_due = self.is_allowed && self.stores.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLED);
        if !is_due || same_filled(page).is_some() {
            return;
        }
        let mut length = |form: Form| codec.length(form.algorithm(Algorithm::Lz4), page, bytes_max(form));
        let Some(lz4_bytes) = length(Form::Plain) else { return };
        // Pages that no other form compresses come in by LZ4.
        let dense_bytes = WAYS.map(|way| self.allows(way).then(|| length(way)).flatten());
        self.note(lz4_bytes as u64, dense_bytes.map(|bytes| bytes.unwrap_or(lz4_bytes) as u64));
    }

    fn note(&self, lz4_bytes: u64, dense_bytes: [u64; WAYS.len()]) {
        let mut sample = self.sample.lock().expect("sample");
        sample.add(lz4_bytes, dense_bytes);
        let best = sample.best(self.form(), |way| self.allows(way));
        self.form.store(best as u8, Ordering::Relaxed);
    }

    /// While pages do not come in by LZ4: what is left of a thousand bytes that it leaves.
    pub(crate) fn per_mille_if_gains(&self) -> Option<u64> {
        self.sample.lock().expect("sample").per_mille(self.form())
    }
}

#[cfg(test)]
mod tests {
    use memspill_engine::units::PAGE_SIZE;

    use super::*;

    fn draw(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 40
    }

    /// Records as a heap has them: a count, a type, a pointer to the record itself, a number.
    fn records(seed: u64) -> Page {
        let (mut page, mut state) = (Page::ZERO, seed);
        for (at, word) in page.0.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let value = match at % 4 {
                0 => 1,
                1 => 0x55d0_1234_5670,
                2 => 0x7f3a_1000_0000 + 8 * at as u64 + 16,
                _ => draw(&mut state) % 5000,
            };
            *word = value.to_le_bytes();
        }
        page
    }

    /// Lines of words of a few letters, which lie anywhere: nothing for wordwise.
    fn text(seed: u64) -> Page {
        let (mut page, mut state) = (Page::ZERO, seed);
        let mut at = 0;
        while at < PAGE_SIZE {
            let word = draw(&mut state) % 300;
            let letters = (0..3 + word % 7).map(|letter| b'a' + (word * 7 + letter * 11) as u8 % 26);
            for (to, letter) in page.0[at..].iter_mut().zip(letters.chain([b' '])) {
                *to = letter;
                at += 1;
            }
        }
        page
    }

    fn noise(seed: u64) -> Page {
        let (mut page, mut state) = (Page::ZERO, seed);
        page.0.fill_with(|| draw(&mut state) as u8);
        page
    }

    #[test]
    fn a_sample_says_what_it_would_leave() {
        let mut codec = Codec::default();
        let (all, readable) = (Dense::new(true, true), Dense::new(true, false));
        let none = Dense::new(false, true);
        assert_eq!((all.form(), all.per_mille_if_gains()), (Form::Plain, None));
        let mut sees = |page: fn(u64) -> Page| {
            for seed in 0..64 * 500 {
                all.sample(&page(seed / 64), &mut codec);
                readable.sample(&page(seed / 64), &mut codec);
                none.sample(&page(seed / 64), &mut codec);
            }
            assert_eq!((none.form(), none.per_mille_if_gains()), (Form::Plain, None));
            [&all, &readable].map(|dense| (dense.form(), dense.per_mille_if_gains()))
        };
        let heap = sees(records);
        let gains = |left: Option<u64>| left.is_some_and(|left| (300..850).contains(&left));
        assert!(heap.iter().all(|(form, left)| *form == Form::Wordwise && gains(*left)), "{heap:?}");
        // Pages that lie in no pool by LZ4 change nothing.
        let odd = |seed: u64| if seed.is_multiple_of(2) { Page([0xff; PAGE_SIZE]) } else { noise(seed) };
        assert_eq!(sees(odd), heap);
        let [(form, left), of_readable] = sees(text);
        assert!(form == Form::ZstdFast && (500..900).contains(&left.unwrap()), "{form:?}, {left:?}");
        assert_eq!(of_readable, (Form::Plain, None), "nobody reads zstd there");
    }

    #[test]
    fn the_sample_is_of_late_and_sees_a_loss() {
        let mut sample = Sample::default();
        sample.add(SAMPLE_BYTES_MIN - 1, [0, 0]);
        assert_eq!(sample.per_mille(Form::Wordwise), None);
        sample.add(1, [1000, 2000]);
        assert_eq!([Form::Wordwise, Form::ZstdFast].map(|form| sample.per_mille(form)), [Some(30), Some(61)]);
        for _ in 0..10 {
            sample.add(SAMPLE_BYTES, [SAMPLE_BYTES * 12 / 10; 2]);
        }
        assert!(sample.per_mille(Form::ZstdFast) > Some(1000), "a loss is seen");
    }

    /// By what each way leaves of a thousand bytes, when that has been so for a while.
    #[test]
    fn the_best_way_is_taken_and_kept() {
        let dense = Dense::new(true, true);
        let form_at = |wordwise: u64, zstd: u64| {
            // Until what was before is forgotten.
            let left = [wordwise, zstd].map(|left| SAMPLE_BYTES * left / 1000);
            (0..40).for_each(|_| dense.note(SAMPLE_BYTES, left));
            dense.form()
        };
        assert_eq!(form_at(910, 910), Form::Plain);
        assert_eq!(form_at(890, 890), Form::Wordwise);
        assert_eq!(form_at(930, 930), Form::Wordwise, "it goes on");
        assert_eq!(form_at(950, 910), Form::Plain);
        assert_eq!(form_at(800, 650), Form::Wordwise, "not so much less for the time");
        assert_eq!(form_at(800, 630), Form::ZstdFast);
        assert_eq!(form_at(800, 670), Form::ZstdFast, "it goes on");
        assert_eq!(form_at(800, 690), Form::Wordwise);
        assert_eq!(form_at(1100, 890), Form::ZstdFast);
        assert_eq!(form_at(1100, 930), Form::ZstdFast, "it goes on");
        assert_eq!(form_at(1100, 950), Form::Plain);
    }
}
