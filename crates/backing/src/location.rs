//! Where the page of one slot is: an entry of the table of `ram.rs`, one 64-bit word.
//!
//! ```text
//!   63                                    11 10       7   6  5  4   3   2   0
//!   ┌───────────────────────────────────────┬──────────┬───┬─────┬───┬─────┐
//!   │ payload, 53 bits                      │generation│old│form │ wb│ kind│
//!   └───────────────────────────────────────┴──────────┴───┴─────┴───┴─────┘
//!   pool:  │moves:5│ handle:36        │ len-1:12│
//!   same:  │mode:2│rot:3│ value:48             │
//!   file:  │      place:32      │raw:2│ 1: LZ4 does not compress the page, 3: nor does zstd
//! ```
//!
//! * kind: written by `write`, `discard` and the end of a writeback; 0 is empty, so that a zeroed table is
//!   empty.
//! * wb: a writeback of this object is in flight. Set by the writeback; gone with the object when it is
//!   replaced, so that a writeback that finds it set knows that the object is still the one it has copied.
//! * form: what the object is a block of. See [`Form`].
//! * old: its turn to be recompressed has come: its entry is in the FIFO of the old. A raw page has no such
//!   turn; for it the bit says that zstd does not compress it either.
//! * generation: counts the stores to the slot, modulo 16; tells a FIFO entry from a later object. A false
//!   match after 16 stores makes a young page leave early, and nothing worse. (A reader compares all of the
//!   word before and after its copy, some 100 ns: no slot is stored to 16 times meanwhile.)
//! * moves: counts the object's moves by compaction, so that a reader cannot take A→B→A for "nothing
//!   happened".
//!
//! A repeated pattern that does not fit (more than six of its eight bytes are significant, and it does not
//! repeat every 32 bits) is compressed like any page and takes about 30 bytes.
//!
//! What it does not do: exchange locations, and free what they name (ram.rs).

use memspill_engine::units::{PAGE_SIZE, SlotIndex};

use crate::compress::Algorithm;
use crate::pool::Handle;

/// Where the page of one slot is: an entry of the table. See the module's header for its bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Location(pub(crate) u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum LocationKind {
    Empty = 0,
    SameFilled = 1,
    Pool = 2,
    File = 3,
}

/// What does not compress a page. For a page in the file these are the two low bits of its payload; for a raw
/// one in the pool, see `raw_in_pool`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Raw {
    /// Nothing that is known: it is compressed, or in the file because the pool had no room.
    No = 0,
    /// The pool's algorithm.
    ByPool = 1,
    /// Nor does zstd.
    ByBoth = 3,
}

/// What an object of the pool is a block of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Form {
    /// The pool's algorithm.
    Plain = 0,
    /// zstd, for the sake of the file: it was recompressed, or the pool's algorithm does not compress it.
    Spared = 1,
    /// It came in by zstd's fast level (dense.rs).
    ZstdFast = 2,
    /// It came in wordwise.
    Wordwise = 3,
}

impl Form {
    /// By its number.
    pub(crate) fn of(number: u64) -> Form {
        match number & 0b11 {
            0 => Form::Plain,
            1 => Form::Spared,
            2 => Form::ZstdFast,
            _ => Form::Wordwise,
        }
    }

    /// Whose block it is, in a pool of that algorithm.
    pub(crate) fn algorithm(self, of_pool: Algorithm) -> Algorithm {
        match self {
            Form::Plain => of_pool,
            Form::Spared => Algorithm::Zstd,
            Form::ZstdFast => Algorithm::ZstdFast,
            Form::Wordwise => Algorithm::Wordwise,
        }
    }

    pub(crate) fn is_zstd(self) -> bool {
        matches!(self, Form::Spared | Form::ZstdFast)
    }

    /// Has it come in by another algorithm than the pool's, which leaves less?
    pub(crate) fn is_dense(self) -> bool {
        matches!(self, Form::ZstdFast | Form::Wordwise)
    }
}

const WB: u64 = 1 << 3;
const FORM_SHIFT: u32 = 4;
const FORM: u64 = 0b11 << FORM_SHIFT;
const OLD: u64 = 1 << 6;
const GENERATION_SHIFT: u32 = 7;
const GENERATION_MASK: u64 = 0xf;
const PAYLOAD_SHIFT: u32 = 11;
const PAYLOAD_BITS: u32 = 53;
const LEN_BITS: u32 = 12;
const MOVES_BITS: u32 = 5;
const VALUE_BITS: u32 = 48;

const _: () = assert!(PAYLOAD_SHIFT + PAYLOAD_BITS == 64);
const _: () =
    assert!(GENERATION_MASK << GENERATION_SHIFT < 1 << PAYLOAD_SHIFT && OLD < 1 << GENERATION_SHIFT);
const _: () = assert!(LEN_BITS + Handle::BITS + MOVES_BITS == PAYLOAD_BITS);
const _: () = assert!(VALUE_BITS + 3 + 2 == PAYLOAD_BITS);
const _: () = assert!(1 << LEN_BITS == PAGE_SIZE);

impl Location {
    /// The algorithms that do not compress a page in the file.
    pub(crate) fn raw_in_file(self) -> Raw {
        match self.payload() & 3 {
            _ if self.kind() != LocationKind::File => Raw::No,
            1 => Raw::ByPool,
            3 => Raw::ByBoth,
            _ => Raw::No,
        }
    }

    /// Where in the file, if it is there.
    pub(crate) fn place(self) -> Option<SlotIndex> {
        (self.kind() == LocationKind::File).then(|| SlotIndex((self.payload() >> 2) as u32))
    }

    /// The algorithms that do not compress a page that takes a whole page of the pool.
    pub(crate) fn raw_in_pool(self) -> Raw {
        match (self.kind() == LocationKind::Pool && self.object().1 == PAGE_SIZE, self.is_old()) {
            (false, _) => Raw::No,
            (true, false) => Raw::ByPool,
            (true, true) => Raw::ByBoth,
        }
    }

    pub(crate) fn new(kind: LocationKind, generation: u64, payload: u64) -> Location {
        debug_assert!(payload < 1 << PAYLOAD_BITS);
        Location(kind as u64 | (generation & GENERATION_MASK) << GENERATION_SHIFT | payload << PAYLOAD_SHIFT)
    }

    pub(crate) fn kind(self) -> LocationKind {
        match self.0 & 0b111 {
            0 => LocationKind::Empty,
            1 => LocationKind::SameFilled,
            2 => LocationKind::Pool,
            3 => LocationKind::File,
            kind => unreachable!("kind {kind} in the table of locations: memory was overwritten"),
        }
    }

    /// Is the object being written back?
    pub(crate) fn is_leaving(self) -> bool {
        self.0 & WB != 0
    }

    pub(crate) fn leaving(self) -> Location {
        Location(self.0 | WB)
    }

    pub(crate) fn staying(self) -> Location {
        Location(self.0 & !WB)
    }

    pub(crate) fn form(self) -> Form {
        Form::of(self.0 >> FORM_SHIFT)
    }

    pub(crate) fn with_form(self, form: Form) -> Location {
        Location(self.0 & !FORM | (form as u64) << FORM_SHIFT)
    }

    /// Has its turn to be recompressed come?
    pub(crate) fn is_old(self) -> bool {
        self.0 & OLD != 0
    }

    pub(crate) fn aged(self) -> Location {
        Location(self.0 | OLD)
    }

    /// The location of a page that was here before, and is in the file now.
    pub(crate) fn in_file(self, place: SlotIndex, raw: Raw) -> Location {
        Location::new(LocationKind::File, self.generation(), u64::from(place.0) << 2 | raw as u64)
    }

    /// The same page as a block of zstd.
    pub(crate) fn recompressed(self, handle: Handle, len_bytes: usize) -> Location {
        let payload = Location::pool_payload(handle, len_bytes, 0);
        Location::new(LocationKind::Pool, self.generation(), payload).with_form(Form::Spared).aged()
    }

    pub(crate) fn generation(self) -> u64 {
        self.0 >> GENERATION_SHIFT & GENERATION_MASK
    }

    pub(crate) fn payload(self) -> u64 {
        self.0 >> PAYLOAD_SHIFT
    }

    pub(crate) fn pool_payload(handle: Handle, len_bytes: usize, moves: u64) -> u64 {
        let moves = moves & ((1 << MOVES_BITS) - 1);
        (len_bytes as u64 - 1) | handle.to_bits() << LEN_BITS | moves << (LEN_BITS + Handle::BITS)
    }

    /// Length and handle of an object in the pool.
    pub(crate) fn object(self) -> (Handle, usize) {
        debug_assert!(self.kind() == LocationKind::Pool);
        let payload = self.payload();
        let handle = Handle::from_bits(payload >> LEN_BITS & ((1 << Handle::BITS) - 1));
        (handle, (payload as usize & ((1 << LEN_BITS) - 1)) + 1)
    }

    /// The same object after a move to `to`.
    pub(crate) fn moved(self, to: Handle) -> Location {
        let (_, len_bytes) = self.object();
        let moves = (self.payload() >> (LEN_BITS + Handle::BITS)) + 1;
        let payload = Location::pool_payload(to, len_bytes, moves);
        Location(Location::new(LocationKind::Pool, self.generation(), payload).0 | self.0 & (WB | FORM | OLD))
    }
}

/// How 48 bits stand for 64. Modes of a same-filled payload.
const SAME_ZERO_EXTENDED: u64 = 0;
const SAME_SIGN_EXTENDED: u64 = 1;
const SAME_REPEATED_32: u64 = 2;

/// Pack the 64 bits that a page repeats into a payload: six significant bytes anywhere in zeros or ones, or
/// 32 bits twice.
pub(crate) fn pack_same(value: u64) -> Option<u64> {
    let packed = |mode: u64, rot: u64, bits: u64| mode << 51 | rot << 48 | bits;
    if value as u32 == (value >> 32) as u32 {
        return Some(packed(SAME_REPEATED_32, 0, value & 0xffff_ffff));
    }
    (0..8u64).find_map(|rot| {
        let turned = value.rotate_left(8 * rot as u32);
        match turned >> 48 {
            0 => Some(packed(SAME_ZERO_EXTENDED, rot, turned)),
            0xffff => Some(packed(SAME_SIGN_EXTENDED, rot, turned & ((1 << 48) - 1))),
            _ => None,
        }
    })
}

pub(crate) fn unpack_same(payload: u64) -> u64 {
    let bits = payload & ((1 << VALUE_BITS) - 1);
    let rot = (payload >> 48 & 0b111) as u32;
    match payload >> 51 {
        SAME_ZERO_EXTENDED => bits.rotate_right(8 * rot),
        SAME_SIGN_EXTENDED => (bits | 0xffff << 48).rotate_right(8 * rot),
        SAME_REPEATED_32 => bits << 32 | bits,
        mode => unreachable!("mode {mode} of a same-filled page: memory was overwritten"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_filled_patterns_pack_and_unpack() {
        let ones = 1.0f64.to_bits();
        for value in
            [0, 1, u64::MAX, ones, 0xdead_beef_dead_beef, i64::MIN as u64, (-5i64) as u64, 0x7f << 56]
        {
            let payload = pack_same(value).unwrap_or_else(|| panic!("{value:#x} must fit"));
            assert!(payload < 1 << PAYLOAD_BITS);
            assert_eq!(unpack_same(payload), value, "{value:#x}");
        }
        assert_eq!(pack_same(0x0102_0304_0506_0708), None);
        for shift in 0..64 {
            for value in [1u64 << shift, !(1u64 << shift), 0xffff_ffffu64.rotate_left(shift)] {
                if let Some(payload) = pack_same(value) {
                    assert_eq!(unpack_same(payload), value);
                }
            }
        }
    }

    #[test]
    fn locations_keep_their_fields() {
        let handle = Handle::from_bits((1 << Handle::BITS) - 1);
        for len_bytes in [1, 2, 4095, 4096] {
            let payload = Location::pool_payload(handle, len_bytes, 31);
            let location = Location::new(LocationKind::Pool, 15, payload).leaving();
            assert_eq!((location.kind(), location.generation()), (LocationKind::Pool, 15));
            assert!(location.is_leaving() && !location.staying().is_leaving());
            assert_eq!(location.object(), (handle, len_bytes));
            let moved = location.moved(Handle::from_bits(5));
            assert_eq!(moved.object(), (Handle::from_bits(5), len_bytes));
            assert!(moved.is_leaving() && moved.generation() == 15);
            assert_ne!(moved.moved(handle), location, "there and back is not the same location");
            assert!(!location.is_old() && location.form() == Form::Plain);
            let old = location.staying().aged();
            assert!(old.is_old() && old.form() == Form::Plain && old.object() == location.object());
            assert!(old.moved(handle).is_old() && old.generation() == 15 && !old.is_leaving());
            let recompressed = location.recompressed(handle, 7);
            assert!(recompressed.is_old() && !recompressed.is_leaving());
            assert_eq!((recompressed.form(), recompressed.object()), (Form::Spared, (handle, 7)));
            assert_eq!((recompressed.kind(), recompressed.generation()), (LocationKind::Pool, 15));
            for form in [Form::Plain, Form::Spared, Form::ZstdFast, Form::Wordwise] {
                let formed = location.with_form(form);
                assert_eq!((formed.form(), formed.generation(), formed.is_leaving()), (form, 15, true));
                assert_eq!(formed.object(), location.object());
                assert_eq!(formed.moved(handle).aged().form(), form);
                assert_eq!(formed.recompressed(handle, 7).form(), Form::Spared);
            }
        }
        assert_eq!(Location(0).kind(), LocationKind::Empty);
        for raw in [Raw::No, Raw::ByPool, Raw::ByBoth] {
            let place = SlotIndex(u32::MAX);
            let in_file = Location(0).in_file(place, raw);
            assert_eq!((in_file.place(), in_file.raw_in_file()), (Some(place), raw));
        }
    }
}
