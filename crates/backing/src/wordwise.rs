//! Compression of a page by its words: for heaps, whose words resemble words near them.
//!
//! ```text
//!   ... │ 1 │ 7f3a10402a80 │ 32 │ "key-0017" │ 1 │ 7f3a10402a80 │ 32 │ "key-0018" │ ...
//!         └──────── stride: 4 words ────────────▶ SAME, SAME, SAME, and DIFFERS by one byte
//! ```
//!
//! Records of one type have the same words at the same places, or words that differ in few bytes. So each
//! word is told by an earlier one: as it is, or XOR the bytes that differ. A general compressor looks for
//! equal strings of bytes, and a heap has few of those. For heaps this leaves about as much as zstd's fast
//! level, in little more than LZ4's time; it is nothing for text.
//!
//! The idea is of Wilson, Kaplan and Smaragdakis ("The Case for Compressed Caching in Virtual Memory
//! Systems", USENIX 1999), whose WKdm tells words of 32 bits by the upper 22 bits of a recent one. The stride
//! is new here, and that any bytes of a word may differ.
//!
//! memspill-common's wordwise.rs draws the block, and reads it.
//!
//! Invariants: a block that [`compress`] made comes back as it was; what the reader knows of earlier words,
//! and of the stride, this side knows too.
//!
//! What it does not do: look further back than 256 words, or at other pages.
//!
//! Tried: *tags of two bits for zero, same and differs*, and four more for the others: a twentieth shorter,
//! a tenth slower on the way back. *Tables of recent words on both sides*, with numbers of 4 bits in place of
//! distances: a twentieth shorter, but the way back has to make the tables too. *All candidates weighed
//! without branches*: as slow. *Two passes without branches*, the easy words first and then a list of the
//! others: twice as slow, for each word costs more instructions than a branch that is foretold wrongly.
//! *The way back without branches* (PDEP): 2.3 µs, where it takes 2.2 to 2.7.

use memspill_engine::units::Page;

pub(crate) use memspill_common::wordwise::decompress;
use memspill_common::wordwise::{
    AHEAD, COPY, DIFFERS, DISTANCE_MAX, NEAR, NEAR_BYTES_MAX, SAME, SMALL, SPARSE, STRIDE_FIRST, STRIDE_MAX,
    TAGS_BYTES, WHOLE, WORDS, ZERO, pack,
};

/// The bytes that are always written for an operand; the next one overwrites the unused ones.
pub(crate) const OPERAND_BYTES: usize = 8;

/// The words of a page, after as many zeros as a distance can reach.
struct Words([u64; DISTANCE_MAX + WORDS]);

impl Words {
    const FIRST: usize = DISTANCE_MAX;

    fn of(page: &Page) -> Words {
        let mut words = [0; DISTANCE_MAX + WORDS];
        for (word, bytes) in words[Words::FIRST..].iter_mut().zip(page.0.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Words(words)
    }
}

/// The last word of each kind: by all of its bits, but for the lowest 16, but for the lowest 32.
struct Recent {
    by_all: [u16; 256],
    by_48: [u16; 256],
    by_32: [u16; 256],
}

/// Places of earlier words that may resemble the one at hand, or zero. If two words have the same hash, the
/// older one is forgotten.
struct Candidates {
    all: usize,
    upper_48: usize,
    upper_32: usize,
}

impl Recent {
    const NONE: Recent = Recent { by_all: [0; 256], by_48: [0; 256], by_32: [0; 256] };

    fn exchange(&mut self, word: u64, place: usize) -> Candidates {
        let mut of = |row: fn(&mut Recent) -> &mut [u16; 256], bits: u64| {
            let hash = (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize;
            std::mem::replace(&mut row(self)[hash], place as u16).into()
        };
        Candidates {
            all: of(|recent| &mut recent.by_all, word),
            upper_48: of(|recent| &mut recent.by_48, word >> 16),
            upper_32: of(|recent| &mut recent.by_32, word >> 32),
        }
    }
}

/// How a word is told: its tag, its operand, and how many bytes that has.
struct Told {
    tag: u8,
    operand: u64,
    bytes: usize,
}

/// The length of a page's block, which is at the start of `out` then, if it is no more than `bytes_max`. Some
/// bytes after it are overwritten.
pub(crate) fn compress(page: &Page, out: &mut [u8], bytes_max: usize) -> Option<usize> {
    let out = &mut out[..bytes_max + OPERAND_BYTES];
    let (words, mut recent, mut stride) = (Words::of(page), Recent::NONE, STRIDE_FIRST);
    let mut tags = [ZERO; WORDS];
    let mut len_bytes = TAGS_BYTES;
    for (n, tag) in tags.iter_mut().enumerate() {
        let place = Words::FIRST + n;
        let (word, strided) = (words.0[place], words.0[place - stride]);
        if word == 0 {
            continue;
        }
        if word == strided {
            *tag = SAME;
            continue;
        }
        let candidates = recent.exchange(word, place);
        if word.wrapping_sub(strided) == 8 * stride as u64 {
            *tag = AHEAD;
            continue;
        }
        let told = tell(&words, place, strided, &candidates);
        if told.tag == COPY && place - candidates.all <= STRIDE_MAX {
            stride = place - candidates.all;
        }
        *tag = told.tag;
        // Full: what is longer is kept as it is.
        out.get_mut(len_bytes..len_bytes + OPERAND_BYTES)?.copy_from_slice(&told.operand.to_le_bytes());
        len_bytes += told.bytes;
    }
    for (pair, two) in out.iter_mut().zip(tags.as_chunks::<2>().0) {
        *pair = two[0] | two[1] << 4;
    }
    (len_bytes <= bytes_max).then_some(len_bytes)
}

/// A short way to tell a word, of those that need an operand. (A word with the upper 48 bits of an earlier
/// one is not compared with the other ways, which would at times be a byte shorter.)
#[inline(always)]
fn tell(words: &Words, place: usize, strided: u64, candidates: &Candidates) -> Told {
    let word = words.0[place];
    let is_within = |other: usize| place - other <= DISTANCE_MAX;
    let near = |other: usize, bytes: usize| {
        let xor = words.0[other] ^ word;
        Told { tag: NEAR + bytes as u8, operand: (place - other - 1) as u64 | xor << 8, bytes: 1 + bytes }
    };
    if words.0[candidates.all] == word && is_within(candidates.all) {
        return near(candidates.all, 0);
    }
    if word < 1 << 8 {
        return Told { tag: SMALL + 1, operand: word, bytes: 1 };
    }
    if word < 1 << 16 {
        return Told { tag: SMALL + 2, operand: word, bytes: 2 };
    }
    let xor_48 = words.0[candidates.upper_48] ^ word;
    if xor_48 >> 16 == 0 && is_within(candidates.upper_48) {
        return near(candidates.upper_48, if xor_48 >> 8 == 0 { 1 } else { 2 });
    }
    let xor_32 = words.0[candidates.upper_32] ^ word;
    let near_bytes = match xor_32 {
        _ if !is_within(candidates.upper_32) => usize::MAX,
        0..0x100_0000 => 3,
        0x100_0000..0x1_0000_0000 => NEAR_BYTES_MAX,
        _ => usize::MAX,
    };
    let (differs, sparse) = (Marked::of(word ^ strided), Marked::of(word));
    let (marked, tag) = if differs.bytes() <= sparse.bytes() { (differs, DIFFERS) } else { (sparse, SPARSE) };
    if near_bytes < marked.bytes() {
        near(candidates.upper_32, near_bytes)
    } else if marked.bytes() < 7 {
        let which = marked.which();
        let operand = u64::from(which) | pack(marked.word, which) << 8;
        Told { tag, operand, bytes: 1 + marked.bytes() }
    } else {
        Told { tag: WHOLE, operand: word, bytes: 8 }
    }
}

/// A word, and a one in each of its bytes that is not zero.
struct Marked {
    word: u64,
    ones: u64,
}

impl Marked {
    fn of(word: u64) -> Marked {
        const SEVEN: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        Marked { word, ones: (((word & SEVEN) + SEVEN) | word) >> 7 & 0x0101_0101_0101_0101 }
    }

    /// How many of its bytes are not zero: the ones come together in the highest byte.
    fn bytes(&self) -> usize {
        (self.ones.wrapping_mul(0x0101_0101_0101_0101) >> 56) as usize
    }

    /// Which: a bit for each, in the order of the bytes. The one of byte n is moved to bit 56 + n.
    fn which(&self) -> u8 {
        (self.ones.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
    }
}

#[cfg(test)]
mod tests;
