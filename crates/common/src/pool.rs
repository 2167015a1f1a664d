//! How pages lie in a pool that a supervisor shares, and how they are read out of it (`location.rs`,
//! `pool.rs` and `pool_file.rs` of the crate `backing` draw it). The agent reads by it; tests compare it with
//! the writer.
//!
//! ```text
//!   the file   Header ─ table: a location for each slot ─ pages of chunks
//!   a location ─┬─ same-filled   the page repeats eight bytes
//!               ├─ pool          a block of LZ4 or wordwise, or the page itself, at `offset`
//!               └─ else          not here: in a file, a block of zstd, or nowhere
//! ```
//!
//! The file's bytes are not trusted: whatever they are, nothing outside of the page is written.

use super::wordwise;

/// The first bytes of the file.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Header {
    pub magic: u32,
    pub algorithm: u32,
    /// Room of an object of up to 32 bytes, up to 64, ...
    pub rooms_bytes: [u16; ROOMS],
}

pub const MAGIC: u32 = 0x6d73_7001;
pub const LZ4: u32 = 1;
pub const WORDWISE: u32 = 3;
pub const ROOMS: usize = 128;
pub const HEADER_BYTES: usize = core::mem::size_of::<Header>();
const _: () = assert!(HEADER_BYTES == 264);

pub const PAGE_BYTES: usize = 4096;
const TABLE_AT: u64 = 4096;
pub const PAGES_AT: u64 = 1 << 35;
/// Slots are below this.
pub const SLOTS_END: u64 = 1 << 31;

/// Where a slot's location is in the file.
pub const fn location_at(slot: u64) -> u64 {
    TABLE_AT + (slot & (SLOTS_END - 1)) * 8
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// The page is these eight bytes, again and again.
    Same(u64),
    /// `len` bytes at this place of the file: a block, or the page itself if they are as many as a page has.
    Object {
        offset: u64,
        len: usize,
        packed: Packed,
    },
    Elsewhere,
}

/// Whose block an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packed {
    Lz4,
    Wordwise,
}

impl Packed {
    /// What a pool compresses by. None: a reader does not know it.
    pub const fn by(algorithm: u32) -> Option<Packed> {
        match algorithm {
            LZ4 => Some(Packed::Lz4),
            WORDWISE => Some(Packed::Wordwise),
            _ => None,
        }
    }

    /// By a location. None: a block of zstd, which is for the supervisor to read.
    const fn at(word: u64, header: &Header) -> Option<Packed> {
        match word >> FORM_SHIFT & 0b11 {
            0 => Packed::by(header.algorithm),
            3 => Some(Packed::Wordwise),
            _ => None,
        }
    }
}

const KIND: u64 = 0b111;
const KIND_SAME: u64 = 1;
const KIND_POOL: u64 = 2;
/// The start or end of a writeback moves nothing.
const WRITEBACK: u64 = 1 << 3;
const FORM_SHIFT: u32 = 4;
const PAYLOAD_SHIFT: u32 = 11;
const LEN_BITS: u32 = 12;
const HANDLE_BITS: u32 = 36;
const OBJECT_BITS: u32 = 8;
const VALUE_BITS: u32 = 48;

/// Do these two words of the table name the same bytes?
pub const fn is_same_place(a: u64, b: u64) -> bool {
    a & !WRITEBACK == b & !WRITEBACK
}

/// A word of the table.
pub fn locate(word: u64, header: &Header) -> Location {
    let payload = word >> PAYLOAD_SHIFT;
    match word & KIND {
        KIND_SAME => unpack_same(payload).map_or(Location::Elsewhere, Location::Same),
        KIND_POOL => {
            let len = (payload & ((1 << LEN_BITS) - 1)) as usize + 1;
            let handle = payload >> LEN_BITS & ((1 << HANDLE_BITS) - 1);
            let (page, object) = (handle >> OBJECT_BITS, handle & ((1 << OBJECT_BITS) - 1));
            let room = header.rooms_bytes.get((len - 1) / 32).map_or(0, |room| u64::from(*room));
            let offset = PAGES_AT + page * PAGE_BYTES as u64 + object * room;
            Packed::at(word, header).map_or(Location::Elsewhere, |packed| Location::Object {
                offset,
                len,
                packed,
            })
        }
        _ => Location::Elsewhere,
    }
}

fn unpack_same(payload: u64) -> Option<u64> {
    let bits = payload & ((1 << VALUE_BITS) - 1);
    let turn = (payload >> VALUE_BITS & 0b111) as u32 * 8;
    match payload >> 51 {
        0 => Some(bits.rotate_right(turn)),
        1 => Some((bits | 0xffff << VALUE_BITS).rotate_right(turn)),
        2 => Some(bits << 32 | bits & 0xffff_ffff),
        _ => None,
    }
}

/// Turns a block into the page that it was made of. False: it is none.
pub fn decompress(packed: Packed, block: &[u8], page: &mut [u8; PAGE_BYTES]) -> bool {
    match packed {
        Packed::Lz4 => decode(block, page) == Some(PAGE_BYTES),
        Packed::Wordwise => wordwise::decompress(block, page),
    }
}

/// How many bytes of a page a block of LZ4 gives.
///
/// ```text
///   a sequence   token ─ more of the literals' length ─ literals ─ offset, 2 bytes ─ more of the match's
///   token        literals:4 │ match, less 4:4             15: bytes follow, up to one that is not 255
/// ```
///
/// The last sequence ends with its literals. (The format is published with LZ4; a library would bring the
/// machinery of panics into the agent.)
fn decode(block: &[u8], page: &mut [u8; PAGE_BYTES]) -> Option<usize> {
    let (mut at, mut done) = (0, 0);
    loop {
        let token = usize::from(*block.get(at)?);
        at += 1;
        let literals = length(block, &mut at, token >> 4)?;
        append(page, done, block.get(at..)?, literals)?;
        (at, done) = (at + literals, done + literals);
        if at == block.len() {
            return Some(done);
        }
        let offset = usize::from(*block.get(at)?) | usize::from(*block.get(at + 1)?) << 8;
        at += 2;
        let matched = length(block, &mut at, token & LENGTH_MAX)? + MATCH_MIN;
        repeat(page, done, offset, matched)?;
        done += matched;
    }
}

const LENGTH_MAX: usize = 15;
const MATCH_MIN: usize = 4;

fn length(block: &[u8], at: &mut usize, first: usize) -> Option<usize> {
    let mut sum = first;
    if first == LENGTH_MAX {
        loop {
            let more = *block.get(*at)?;
            *at += 1;
            sum += usize::from(more);
            if more != u8::MAX {
                break;
            }
        }
    }
    // Longer than any page: the sums that follow cannot overflow.
    (sum <= PAGE_BYTES).then_some(sum)
}

/// Bytes that are copied at once. The copies are short: a call of memcpy for each takes longer.
const STEP: usize = 8;

fn load(bytes: &[u8], at: usize) -> Option<[u8; STEP]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn store(page: &mut [u8; PAGE_BYTES], at: usize, bytes: [u8; STEP]) -> Option<()> {
    *page.get_mut(at..)?.first_chunk_mut()? = bytes;
    Some(())
}

/// Appends `len` of these bytes to the first `done`. The bytes behind them may be overwritten.
fn append(page: &mut [u8; PAGE_BYTES], done: usize, bytes: &[u8], len: usize) -> Option<()> {
    if len > bytes.len() || done + len > PAGE_BYTES {
        return None;
    }
    let mut copied = 0;
    while copied < len {
        match load(bytes, copied).and_then(|some| store(page, done + copied, some)) {
            Some(()) => copied += STEP,
            None => {
                *page.get_mut(done + copied)? = *bytes.get(copied)?;
                copied += 1;
            }
        }
    }
    Some(())
}

/// Appends `len` bytes to the first `done`, from `offset` before them on, which may reach into what is just
/// being written. The bytes behind them may be overwritten.
fn repeat(page: &mut [u8; PAGE_BYTES], done: usize, offset: usize, len: usize) -> Option<()> {
    let end = done + len;
    if offset == 0 || offset > done || end > PAGE_BYTES {
        return None;
    }
    // As far apart as a step is long, at least: what repeats after `offset` does so after its multiples.
    let apart = STEP.div_ceil(offset) * offset;
    let mut to = done;
    while to < end {
        let from = if to - done >= apart - offset { to - apart } else { to - offset };
        // Nearer ones lie in part where nothing has been written yet.
        let far = if to - from >= STEP { load(page, from) } else { None };
        match far.and_then(|some| store(page, to, some)) {
            Some(()) => to += STEP,
            None => {
                *page.get_mut(to)? = *page.get(to - offset)?;
                to += 1;
            }
        }
    }
    Some(())
}
