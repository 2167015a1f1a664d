//! A page as `wordwise` keeps it, and how it is read back: by the supervisor, and by the agent, whose threads
//! read pages out of a shared pool. memspill-backing's wordwise.rs writes it.
//!
//! ```text
//!   block     tags: 256 bytes, four bits a word, the lower half first ─ operands, one after the other
//!
//!   tag       the word is                                             operand, bytes
//!    0 ZERO   0                                                       none
//!    1 SAME   the word a stride before it                             none
//!    2 AHEAD  that and eight times the stride more, as of a pointer   none
//!             into a row of records to its own record
//!    3 COPY   an earlier word, which sets the stride if it is near    distance less 1: 1
//!    4 .. 7   an earlier word but for its lowest 1 to 4 bytes         distance less 1: 1, XOR: 1 to 4
//!    8, 9     below 2^8, below 2^16                                   1, 2
//!   10 DIFFERS  the word a stride before it but for some bytes        which of them: 1, XOR: 1 to 6
//!   11 SPARSE   0 but for some bytes                                  which of them: 1, they: 1 to 6
//!   12 WHOLE  any                                                     8
//! ```
//!
//! Strides and distances are in words. Words before the page read as zeros.
//!
//! A block is not trusted: whatever its bytes are, nothing outside of the page is written, and a block that
//! does not end with its last operand is none.

pub const PAGE_BYTES: usize = 4096;
/// Words of eight bytes, little-endian.
pub const WORDS: usize = PAGE_BYTES / 8;
pub const TAGS_BYTES: usize = WORDS / 2;
/// The stride of the first words. A copy from so near sets another.
pub const STRIDE_FIRST: usize = 1;
pub const STRIDE_MAX: usize = 64;
/// The most that a byte can say.
pub const DISTANCE_MAX: usize = 256;

pub const ZERO: u8 = 0;
pub const SAME: u8 = 1;
pub const AHEAD: u8 = 2;
pub const COPY: u8 = 3;
/// And one to four more, for as many bytes.
pub const NEAR: u8 = COPY;
pub const NEAR_BYTES_MAX: usize = 4;
/// And one or two more, for as many bytes.
pub const SMALL: u8 = NEAR + NEAR_BYTES_MAX as u8;
pub const DIFFERS: u8 = 10;
pub const SPARSE: u8 = 11;
pub const WHOLE: u8 = 12;

const _: () = assert!(SMALL + 2 < DIFFERS && WHOLE < 16);
const _: () = assert!(2 * DISTANCE_MAX <= WORDS, "what is read before the page is not written yet");

/// What the tags mean but for DIFFERS and SPARSE, so that words of all other tags take the same way: a
/// branch for each would often be foretold wrongly. The word is what is kept of an earlier one, XOR operand.
#[derive(Clone, Copy)]
struct Shape {
    operand_bytes: u8,
    /// Where in the operand the XOR begins, in bits.
    shift: u8,
    /// How far the word is ahead of that for each word of the stride.
    ahead_bytes: u8,
    of_distance: u64,
    of_stride: u64,
    xor: u64,
}

const NONE: Shape =
    Shape { operand_bytes: 0, shift: 0, ahead_bytes: 0, of_distance: 0, of_stride: 0, xor: 0 };

const SHAPES: [Shape; 16] = {
    let mut shapes = [NONE; 16];
    shapes[ZERO as usize] = NONE;
    shapes[SAME as usize].of_stride = !0;
    shapes[AHEAD as usize] = Shape { of_stride: !0, ahead_bytes: 8, ..NONE };
    let mut bytes = 0;
    while bytes <= NEAR_BYTES_MAX {
        shapes[NEAR as usize + bytes] = Shape {
            operand_bytes: 1 + bytes as u8,
            shift: 8,
            of_distance: !0,
            xor: (1 << (8 * bytes)) - 1,
            ..NONE
        };
        bytes += 1;
    }
    shapes[SMALL as usize + 1] = Shape { operand_bytes: 1, xor: 0xff, ..NONE };
    shapes[SMALL as usize + 2] = Shape { operand_bytes: 2, xor: 0xffff, ..NONE };
    shapes[WHOLE as usize] = Shape { operand_bytes: 8, xor: !0, ..NONE };
    shapes
};

/// Turns a block into the page that it was made of. False: it is none; the page has any contents then.
pub fn decompress(block: &[u8], page: &mut [u8; PAGE_BYTES]) -> bool {
    let Some((tags, operands)) = block.split_first_chunk::<TAGS_BYTES>() else { return false };
    let last = block.last_chunk().map_or(0, |eight| u64::from_le_bytes(*eight));
    // A distance that is too long leads to words that are not written yet: they must read as zero.
    page.fill(0);
    let Some(words) = page.as_chunks_mut::<8>().0.first_chunk_mut::<WORDS>() else { return false };
    let (mut at, mut stride, mut place) = (0, STRIDE_FIRST, 0_usize);
    for pair in tags {
        for tag in [pair & 15, pair >> 4] {
            if tag > WHOLE {
                return false;
            }
            let operand = word_at(operands, at, last);
            let first = operand as u8;
            let strided = u64::from_le_bytes(words[place.wrapping_sub(stride) % WORDS]);
            let word = if tag == DIFFERS || tag == SPARSE {
                at += 1 + set_bits(first);
                let of = if tag == DIFFERS { strided } else { 0 };
                of ^ spread(operand >> 8, first)
            } else {
                let shape = &SHAPES[(tag & 15) as usize];
                let distance = first as usize + 1;
                let distant = u64::from_le_bytes(words[place.wrapping_sub(distance) % WORDS]);
                let of = distant & shape.of_distance | strided & shape.of_stride;
                let ahead = shape.ahead_bytes as u64 * stride as u64;
                if tag == COPY && distance <= STRIDE_MAX {
                    stride = distance;
                }
                at += shape.operand_bytes as usize;
                (of ^ operand >> (shape.shift & 63) & shape.xor).wrapping_add(ahead)
            };
            words[place % WORDS] = word.to_le_bytes();
            place += 1;
        }
    }
    at == operands.len()
}

/// Eight bytes from there on, or what there is of them and zeros. `last` are the last eight of the block.
#[inline(always)]
fn word_at(bytes: &[u8], at: usize, last: u64) -> u64 {
    match bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(eight) => u64::from_le_bytes(*eight),
        None => last.checked_shr(64 - 8 * bytes.len().saturating_sub(at) as u32).unwrap_or(0),
    }
}

/// For four bits that say which bytes of 32 bits are meant: where those of them belong that move by none,
/// one, two or three bytes when they are packed.
const MOVED: [[u32; 4]; 16] = {
    let mut moved = [[0; 4]; 16];
    let mut which = 0;
    while which < 16 {
        let (mut place, mut packed) = (0, 0);
        while place < 4 {
            if which >> place & 1 == 1 {
                moved[which][place - packed] |= 0xff << (8 * place);
                packed += 1;
            }
            place += 1;
        }
        which += 1;
    }
    moved
};

/// The bytes of `word` that `which` has a bit for, next to each other. (PEXT and PDEP are not there on all
/// processors, and slow on some.)
#[inline(always)]
#[allow(dead_code, reason = "the agent only reads")]
pub fn pack(word: u64, which: u8) -> u64 {
    let half = |word: u32, which: u8| {
        let moved = &MOVED[(which & 15) as usize];
        word & moved[0] | (word & moved[1]) >> 8 | (word & moved[2]) >> 16 | (word & moved[3]) >> 24
    };
    let low_bits = 8 * set_bits(which & 15);
    half(word as u32, which) as u64 | (half((word >> 32) as u32, which >> 4) as u64) << low_bits
}

/// The other way round: bytes that lie next to each other, to where `which` says.
#[inline(always)]
fn spread(packed: u64, which: u8) -> u64 {
    let half = |packed: u32, which: u8| {
        let moved = &MOVED[(which & 15) as usize];
        packed & moved[0] | packed << 8 & moved[1] | packed << 16 & moved[2] | packed << 24 & moved[3]
    };
    let low_bits = 8 * set_bits(which & 15);
    half(packed as u32, which) as u64 | (half((packed >> low_bits) as u32, which >> 4) as u64) << 32
}

/// (Without an instruction of its own `count_ones` is a dozen others.)
#[inline(always)]
pub fn set_bits(which: u8) -> usize {
    const OF_FOUR: u64 = 0x4332_3221_3221_2110;
    let of = |four: u8| (OF_FOUR >> (4 * four) & 15) as usize;
    of(which & 15) + of(which >> 4)
}
