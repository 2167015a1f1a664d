//! One page in, the shortest form worth keeping out.
//!
//! ```text
//!   page ─▶ one repeated 64-bit word?  ──▶ Same(word)      no bytes to keep
//!        ─▶ LZ4 block ≤ 3328 bytes?    ──▶ Lz4(bytes)
//!        ─▶ else                       ──▶ Raw             4096 bytes as they are
//! ```
//!
//! Same-filled comes first: between a tenth and a third of the pages of real programs are zeros or one
//! repeated word, and the test stops at the first word that differs. A page that LZ4 shortens by less than
//! 3/16 is kept raw: reading it back is then a copy (0.1 µs) and not a decompression (1 µs and more).
//!
//! The 8 KiB hash table and the output buffer belong to the [`Compressor`], of which each thread has one:
//! nothing is allocated for a page. LZ4 output is not trusted on the way back: a block that does not give
//! exactly one page is an error.

use std::cell::RefCell;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use memspill_engine::units::{PAGE_SIZE, Page};

/// The longest LZ4 block that is kept as such, in bytes (13/16 of a page).
pub const COMPRESSED_BYTES_MAX: usize = 3328;

/// The form in which a page is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoded<'a> {
    /// The page is this word (in native byte order) 512 times.
    Same(u64),
    /// An LZ4 block, 1 to [`COMPRESSED_BYTES_MAX`] bytes.
    Lz4(&'a [u8]),
    /// Does not compress: keep the page itself.
    Raw,
}

/// Working memory of one thread, in all about 13 KiB.
pub struct Compressor {
    table: CompressTable,
    out: Box<[u8]>,
}

impl Default for Compressor {
    fn default() -> Self {
        Compressor {
            table: CompressTable::small(),
            out: vec![0; get_maximum_output_size(PAGE_SIZE)].into_boxed_slice(),
        }
    }
}

impl Compressor {
    /// Find the form for `page`. The result borrows this compressor's buffer.
    pub fn encode(&mut self, page: &Page) -> Encoded<'_> {
        if let Some(word) = same_filled(page) {
            return Encoded::Same(word);
        }
        match compress_into_with_table(&page.0, &mut self.out, &mut self.table) {
            Ok(len) if len <= COMPRESSED_BYTES_MAX => Encoded::Lz4(&self.out[..len]),
            _ => Encoded::Raw,
        }
    }

    /// The LZ4 block of a page that is known to compress well (a repeated word).
    pub(crate) fn encode_lz4(&mut self, page: &Page) -> &[u8] {
        let len = compress_into_with_table(&page.0, &mut self.out, &mut self.table)
            .expect("the buffer has the room that LZ4 asks for");
        &self.out[..len]
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

/// Turn an LZ4 block back into its page. False if it is not a block of exactly one page; the page is then
/// filled with what came out so far and must not be used.
#[must_use]
pub fn decompress(block: &[u8], page: &mut Page) -> bool {
    matches!(decompress_into(block, &mut page.0), Ok(PAGE_SIZE))
}

thread_local! {
    static SCRATCH: RefCell<(Compressor, Box<Page>)> =
        RefCell::new((Compressor::default(), Box::new(Page::ZERO)));
}

/// Run `work` with this thread's compressor and a page of scratch memory. Not to be nested.
pub(crate) fn with_scratch<R>(work: impl FnOnce(&mut Compressor, &mut Page) -> R) -> R {
    SCRATCH.with_borrow_mut(|(compressor, page)| work(compressor, page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let mut compressor = Compressor::default();
        assert_eq!(compressor.encode(&Page::ZERO), Encoded::Same(0));
        let mut page = Page::ZERO;
        fill(&mut page, 0x0102_0304_0506_0708);
        assert_eq!(compressor.encode(&page), Encoded::Same(0x0102_0304_0506_0708));

        // One byte off anywhere is not same-filled, and must survive the round trip.
        for at in [0, 8, 2047, 4087, 4095] {
            let mut odd = page;
            odd.0[at] ^= 0x80;
            let Encoded::Lz4(block) = compressor.encode(&odd) else { panic!("must compress") };
            let block = block.to_vec();
            let mut back = Page::ZERO;
            assert!(decompress(&block, &mut back));
            assert_eq!(back.0, odd.0);
            assert!(!decompress(&block[..block.len() - 1], &mut back), "a cut block is refused");
        }

        let mut state = 1u64;
        let mut noise = Page::ZERO;
        for byte in &mut noise.0 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 56) as u8;
        }
        assert_eq!(compressor.encode(&noise), Encoded::Raw);
    }
}
