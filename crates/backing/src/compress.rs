//! One page in, the shortest form worth keeping out.
//!
//! ```text
//!   page ─▶ one repeated 64-bit word?  ──▶ Same(word)      no bytes to keep
//!        ─▶ block of ≤ 3328 bytes?     ──▶ Block(bytes)    LZ4, zstd or wordwise, as the pool was made
//!        ─▶ else                       ──▶ Raw             4096 bytes as they are
//! ```
//!
//! Same-filled comes first: between a tenth and a third of the pages of real programs are zeros or one
//! repeated word, and the test stops at the first word that differs. A page that is shortened by less than
//! 3/16 is kept raw: reading it back is then a copy (0.1 µs) and not a decompression (1 µs and more).
//!
//! zstd (level 1) leaves about half of what LZ4 leaves of a heap of small objects, for two to three times
//! its time. Its level -1 (`ZstdFast`) leaves a tenth more than that, for two thirds of the time; of text it
//! leaves as much as LZ4. Both are the C libraries, built with the crates: of what there is in Rust nothing
//! compresses a page as well and as fast, and runs of zeros, which half-empty pages have, come back six times
//! as fast. They check all lengths in a block on the way back. Wordwise (wordwise.rs) is our own, for heaps,
//! which it packs about as well as zstd's fast level, in little more than LZ4's time.
//!
//! Working memory belongs to the [`Codec`], of which each thread has one: nothing is allocated for a page.
//! Data from a pool is not trusted on the way back: a block that does not give exactly one page is an error.

use std::cell::RefCell;

use lzzzz::lz4;
use memspill_engine::units::{PAGE_SIZE, Page};
use zstd_safe::{CCtx, DCtx};

use crate::wordwise;

/// The longest block that is kept as such, in bytes (13/16 of a page).
pub const COMPRESSED_BYTES_MAX: usize = 3328;

/// zstd's fastest level that is not one of the negative ones.
const ZSTD_LEVEL: i32 = 1;
const ZSTD_FAST_LEVEL: i32 = -1;

/// How the pages of a pool are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    #[default]
    Lz4,
    /// zstd's level between the two: literals are left as they are.
    ZstdFast,
    Zstd,
    /// By words: for heaps (`wordwise.rs`).
    Wordwise,
}

/// The form in which a page is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoded<'a> {
    /// The page is this word (in native byte order) 512 times.
    Same(u64),
    /// A block of the algorithm, 1 to [`COMPRESSED_BYTES_MAX`] bytes.
    Block(&'a [u8]),
    /// Does not compress: keep the page itself.
    Raw,
}

/// Working memory of one thread: about 4 KiB, from the first use of LZ4 16 KiB more (which lzzzz keeps), and
/// some 100 KiB each from the first time that it compresses or decompresses by zstd.
pub struct Codec {
    zstd_out: Option<CCtx<'static>>,
    zstd_in: Option<DCtx<'static>>,
    out: Box<[u8]>,
}

impl Default for Codec {
    fn default() -> Self {
        let most_bytes = lz4::max_compressed_size(PAGE_SIZE).max(zstd_safe::compress_bound(PAGE_SIZE));
        const { assert!(COMPRESSED_BYTES_MAX + wordwise::OPERAND_BYTES <= PAGE_SIZE) }
        Codec { zstd_out: None, zstd_in: None, out: vec![0; most_bytes].into_boxed_slice() }
    }
}

impl Codec {
    /// Find the form for `page`. The result borrows this codec's buffer.
    pub fn encode(&mut self, algorithm: Algorithm, page: &Page) -> Encoded<'_> {
        if let Some(word) = same_filled(page) {
            return Encoded::Same(word);
        }
        match self.compress(algorithm, page) {
            Some(len) if len <= COMPRESSED_BYTES_MAX => Encoded::Block(&self.out[..len]),
            _ => Encoded::Raw,
        }
    }

    /// The block of a page that is known to compress well (a repeated word).
    pub(crate) fn encode_block(&mut self, algorithm: Algorithm, page: &Page) -> &[u8] {
        let len =
            self.compress(algorithm, page).expect("the buffer has the room that each algorithm asks for");
        assert!(len <= COMPRESSED_BYTES_MAX, "a repeated word has become {len} bytes");
        &self.out[..len]
    }

    /// The block of a page, if it has `bytes_max` bytes at most.
    pub(crate) fn encode_shorter(
        &mut self,
        algorithm: Algorithm,
        page: &Page,
        bytes_max: usize,
    ) -> Option<&[u8]> {
        let len = self.compress(algorithm, page).filter(|len| *len <= bytes_max)?;
        Some(&self.out[..len])
    }

    /// How long the block of a page would be, if it has `bytes_max` bytes at most.
    pub(crate) fn length(&mut self, algorithm: Algorithm, page: &Page, bytes_max: usize) -> Option<usize> {
        self.encode_shorter(algorithm, page, bytes_max).map(<[u8]>::len)
    }

    /// Fills `out`; None if it could not be done.
    fn compress(&mut self, algorithm: Algorithm, page: &Page) -> Option<usize> {
        match algorithm {
            Algorithm::Lz4 => lz4::compress(&page.0, &mut self.out, lz4::ACC_LEVEL_DEFAULT).ok(),
            Algorithm::Zstd => self.compress_by_zstd(page, ZSTD_LEVEL),
            Algorithm::ZstdFast => self.compress_by_zstd(page, ZSTD_FAST_LEVEL),
            Algorithm::Wordwise => wordwise::compress(page, &mut self.out, COMPRESSED_BYTES_MAX),
        }
    }

    fn compress_by_zstd(&mut self, page: &Page, level: i32) -> Option<usize> {
        let cctx = self.zstd_out.get_or_insert_with(CCtx::create);
        cctx.compress(&mut self.out[..], &page.0, level).ok()
    }

    /// Turn a block back into its page. False if it is not a block of exactly one page; the page is then
    /// filled with what came out so far and must not be used.
    #[must_use]
    pub fn decompress(&mut self, algorithm: Algorithm, block: &[u8], page: &mut Page) -> bool {
        match algorithm {
            Algorithm::Lz4 => matches!(lz4::decompress(block, &mut page.0), Ok(PAGE_SIZE)),
            Algorithm::Zstd | Algorithm::ZstdFast => {
                let dctx = self.zstd_in.get_or_insert_with(DCtx::create);
                matches!(dctx.decompress(&mut page.0[..], block), Ok(PAGE_SIZE))
            }
            Algorithm::Wordwise => wordwise::decompress(block, &mut page.0),
        }
    }
}

/// The word that the whole page repeats, if it does.
pub fn same_filled(page: &Page) -> Option<u64> {
    let (words, _) = page.0.as_chunks::<8>();
    let first = words[0];
    // The last word tells most pages apart at once (data often starts with zeros, seldom ends so too).
    (words[511] == first && words.iter().all(|word| *word == first)).then(|| u64::from_ne_bytes(first))
}

/// Write one repeated word over a page.
pub fn fill(page: &mut Page, word: u64) {
    for chunk in page.0.as_chunks_mut::<8>().0 {
        *chunk = word.to_ne_bytes();
    }
}

thread_local! {
    static SCRATCH: RefCell<(Codec, Box<Page>)> =
        RefCell::new((Codec::default(), Box::new(Page::ZERO)));
}

/// Run `work` with this thread's codec and a page of scratch memory. Not to be nested.
pub(crate) fn with_scratch<R>(work: impl FnOnce(&mut Codec, &mut Page) -> R) -> R {
    SCRATCH.with_borrow_mut(|(codec, page)| work(codec, page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        forms_of(Algorithm::Lz4);
        forms_of(Algorithm::ZstdFast);
        forms_of(Algorithm::Zstd);
        forms_of(Algorithm::Wordwise);
    }

    fn forms_of(algorithm: Algorithm) {
        let mut codec = Codec::default();
        assert_eq!(codec.encode(algorithm, &Page::ZERO), Encoded::Same(0));
        let mut page = Page::ZERO;
        fill(&mut page, 0x0102_0304_0506_0708);
        assert_eq!(codec.encode(algorithm, &page), Encoded::Same(0x0102_0304_0506_0708));
        let short = if algorithm == Algorithm::Wordwise { 272 } else { 64 };
        assert!(codec.encode_block(algorithm, &page).len() < short);

        // One byte off anywhere is not same-filled, and must survive the round trip.
        for at in [0, 8, 2047, 4087, 4095] {
            let mut odd = page;
            odd.0[at] ^= 0x80;
            let Encoded::Block(block) = codec.encode(algorithm, &odd) else { panic!("must compress") };
            let block = block.to_vec();
            let mut back = Page::ZERO;
            assert!(codec.decompress(algorithm, &block, &mut back));
            assert_eq!(back.0, odd.0);
            let cut = &block[..block.len() - 1];
            assert!(!codec.decompress(algorithm, cut, &mut back), "a cut block is refused");
            // What failed leaves nothing behind for the next one.
            assert!(codec.decompress(algorithm, &block, &mut back));
            assert_eq!(back.0, odd.0);
        }

        let mut state = 1u64;
        let mut noise = Page::ZERO;
        for byte in &mut noise.0 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 56) as u8;
        }
        assert_eq!(codec.encode(algorithm, &noise), Encoded::Raw);
    }

    /// A block of another length than a page, good in itself, is none of ours.
    #[test]
    fn a_block_of_another_length_is_refused() {
        for len in [PAGE_SIZE - 1, PAGE_SIZE + 1] {
            let (data, mut page) = (vec![7u8; len], Page::ZERO);
            let mut zstd = vec![0; 512];
            let used = zstd_safe::compress(&mut zstd[..], &data, ZSTD_LEVEL).unwrap();
            assert!(!Codec::default().decompress(Algorithm::Zstd, &zstd[..used], &mut page), "{len}");
            let mut packed = Vec::new();
            lz4::compress_to_vec(&data, &mut packed, lz4::ACC_LEVEL_DEFAULT).unwrap();
            assert!(!Codec::default().decompress(Algorithm::Lz4, &packed, &mut page), "{len}");
        }
    }
}
