//! One word for each page of a process that is paged by its agent (`agent/pages/`), with what is known of the
//! page, in memory that the agent and a supervisor share.
//!
//! ```text
//!  a word    63              16 15    9  8      7      6    5   3  2   0
//!           ┌──────────────────┬──────┬──────┬──────┬──────┬───────┬──────┐
//!           │ slot             │ 0    │ cow  │ away │waited│ x w r │ state│
//!           └──────────────────┴──────┴──────┴──────┴──────┴───────┴──────┘
//!            where the bytes are;      │      │      │      └ of its mapping, as PROT_*
//!            all ones: nowhere, zeros. │      │      └ somebody sleeps until the state changes
//!            EXCLUDED: why             │      └ EVICTING: it was SWAPPED before
//!                                      └ EVICTING: it was PROTECTED before
//!
//!                 ┌──────── evicted ─────────────┐
//!                 ▼                              │
//!      SWAPPED ──▶ FILLING ──▶ NONE ──▶ EVICTING ┤ nothing to take, or in use: as before
//!         ▲                     ▲ │               │
//!         │                     │ └▶ EXCLUDED     │
//!         └─────────────────────┴────────────────┘
//!                               ▲ │ a fork has left it shared: a write asks first
//!                               │ ▼
//!                             PROTECTED ──▶ EVICTING
//! ```
//!
//! NONE is a word of zeros: nothing is known, the page is whatever the kernel makes of it. EVICTING and
//! FILLING have one owner, who turned the word to it; all others leave such a page alone, and wait. What a
//! word of SWAPPED or FILLING refers to (a slot) it holds a reference to.
//!
//! ```text
//!  the file   ┌────────┬──────────────────────┬──────────┬──────────┬──
//!             │ Header │ number of the leaf   │ leaf 1   │ leaf 2   │ ...
//!             │ 4 KiB  │ for each GiB, 512 KiB│ 2052 KiB │          │
//!             └────────┴──────────────────────┴──────────┴──────────┴──
//!  a leaf     ┌────────────────────────────────────┬───────────────────────────────┐
//!             │ a bit for each 2 MiB: some word    │ 2^18 words, a page each       │
//!             │ there is or was not NONE (4 KiB)   │                               │
//!             └────────────────────────────────────┴───────────────────────────────┘
//! ```

pub const NONE: u64 = 0;
pub const EVICTING: u64 = 1;
pub const SWAPPED: u64 = 2;
pub const FILLING: u64 = 3;
pub const EXCLUDED: u64 = 4;
pub const PROTECTED: u64 = 5;

const STATE: u64 = 0b111;
const PROT_SHIFT: u32 = 3;
const PROT: u64 = 0b111 << PROT_SHIFT;
const WAITED: u64 = 1 << 6;
const AWAY: u64 = 1 << 7;
const COW: u64 = 1 << 8;
const SLOT_SHIFT: u32 = 16;

/// Slots are below this.
pub const SLOTS_MAX: u64 = (1 << (64 - SLOT_SHIFT)) - 1;
/// In the place of a slot: nothing is kept, the page is zeros.
const CLOSED: u64 = SLOTS_MAX;

/// Word of an EXCLUDED page, instead of a slot: why it never leaves. The kernel touches it by itself, or it
/// is the agent's.
pub const FOR_KERNEL: u64 = 1;
/// The child of a fork gets it empty.
pub const FOR_FORK: u64 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word(pub u64);

impl Word {
    pub const EMPTY: Word = Word(NONE);

    pub const fn swapped(slot: u64, prot: u64) -> Word {
        Word(SWAPPED | (prot << PROT_SHIFT) & PROT | slot << SLOT_SHIFT)
    }

    /// SWAPPED, and nothing was ever there: zeros, when there is room.
    pub const fn closed(prot: u64) -> Word {
        Word::swapped(CLOSED, prot)
    }

    pub const fn is_closed(self) -> bool {
        self.slot() == CLOSED
    }

    pub const fn excluded(why: u64) -> Word {
        Word(EXCLUDED | why << SLOT_SHIFT)
    }

    pub const fn state(self) -> u64 {
        self.0 & STATE
    }

    /// PROT_*.
    pub const fn prot(self) -> u64 {
        (self.0 & PROT) >> PROT_SHIFT
    }

    pub const fn slot(self) -> u64 {
        self.0 >> SLOT_SHIFT
    }

    /// The reasons of an excluded page; 0 of another one.
    pub const fn reasons(self) -> u64 {
        if self.state() == EXCLUDED { self.slot() } else { 0 }
    }

    pub const fn is_waited_for(self) -> bool {
        self.0 & WAITED != 0
    }

    /// EVICTING: it was SWAPPED before.
    pub const fn was_away(self) -> bool {
        self.0 & AWAY != 0
    }

    pub const fn waited_for(self) -> Word {
        Word(self.0 | WAITED)
    }

    pub const fn protected() -> Word {
        Word(PROTECTED)
    }

    /// For a page that is NONE, SWAPPED or PROTECTED.
    pub const fn evicting(self) -> Word {
        let before = match self.state() {
            SWAPPED => AWAY,
            PROTECTED => COW,
            _ => 0,
        };
        Word(self.0 & !STATE | EVICTING | before)
    }

    /// The word of an EVICTING page as it was before.
    pub const fn as_before(self) -> Word {
        match self.0 & (AWAY | COW) {
            0 => Word::EMPTY,
            COW => Word::protected(),
            _ => Word(self.0 & !(STATE | AWAY | WAITED) | SWAPPED),
        }
    }

    pub const fn with_slot(self, slot: u64) -> Word {
        Word(self.0 & ((1 << SLOT_SHIFT) - 1) | slot << SLOT_SHIFT)
    }

    /// For a page that is SWAPPED.
    pub const fn filling(self) -> Word {
        Word(self.0 & !STATE | FILLING)
    }

    pub const fn with_prot(self, prot: u64) -> Word {
        Word(self.0 & !PROT | (prot << PROT_SHIFT) & PROT)
    }
}

const _: () = {
    let word = Word::swapped(SLOTS_MAX - 1, 0b111);
    assert!(word.state() == SWAPPED && word.prot() == 0b111 && word.slot() == SLOTS_MAX - 1);
    assert!(!word.is_waited_for() && !word.was_away());
    let evicting = word.evicting().waited_for();
    assert!(evicting.state() == EVICTING && evicting.is_waited_for() && evicting.was_away());
    assert!(evicting.as_before().0 == word.0);
    assert!(Word::closed(3).is_closed() && Word::closed(3).filling().is_closed() && !word.is_closed());
    assert!(Word::EMPTY.evicting().waited_for().as_before().0 == NONE);
    assert!(Word::protected().evicting().waited_for().as_before().0 == PROTECTED);
    assert!(!Word::protected().evicting().was_away());
    assert!(word.filling().state() == FILLING && word.filling().slot() == word.slot());
    assert!(word.with_prot(1).prot() == 1 && word.with_prot(1).slot() == word.slot());
    assert!(STATE & PROT == 0 && (STATE | PROT) & (WAITED | AWAY | COW) == 0 && COW < 1 << SLOT_SHIFT);
    // A futex is 32 bits, which must hold all that a waiter waits for.
    assert!(STATE | PROT | WAITED | AWAY | COW <= u32::MAX as u64);
};

/// Bits of an address within a page, within what a leaf holds, and of all addresses.
pub const PAGE_BITS: u32 = 12;
pub const LEAF_BITS: u32 = 30;
pub const ADDRESS_BITS: u32 = 47;
/// Leaves at most, and words of one.
pub const LEAVES: usize = 1 << (ADDRESS_BITS - LEAF_BITS);
pub const LEAF_WORDS: usize = 1 << (LEAF_BITS - PAGE_BITS);
/// Words for which there is one bit: a page of them.
pub const GROUP_WORDS: usize = 512;
pub const LEAF_GROUPS: usize = LEAF_WORDS / GROUP_WORDS;

#[repr(C)]
pub struct Header {
    pub magic: u32,
    /// Leaves that have a number; the first one has 1.
    pub leaves: u32,
    pub reserved: [u32; 1022],
    /// By address: the number of its leaf, or 0.
    pub leaf_of: [u32; LEAVES],
}

#[repr(C)]
pub struct Leaf {
    /// Set before a word of the group is anything but NONE.
    pub groups: [u64; LEAF_GROUPS / 64],
    /// Where pages are away in registered memory (holes.rs): all that is plain memory in the group is
    /// registered; some of it may be, or was.
    pub registered: [u64; LEAF_GROUPS / 64],
    pub was_registered: [u64; LEAF_GROUPS / 64],
    pub reserved: [u64; 512 - 3 * LEAF_GROUPS / 64],
    pub words: [u64; LEAF_WORDS],
}

pub const WORDS_MAGIC: u32 = 0x6d73_7701;

const _: () = assert!(core::mem::size_of::<Header>() == 4096 + (512 << 10));
const _: () = assert!(core::mem::size_of::<Leaf>() == 4096 + (2 << 20));

/// Where a leaf lies in the file.
pub const fn leaf_offset(number: u32) -> usize {
    core::mem::size_of::<Header>() + (number as usize - 1) * core::mem::size_of::<Leaf>()
}

/// Pages that are taken out together at most, and brought together at most.
pub const CHUNK: usize = 64;
pub const FILL_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_was_put_into_it() {
        for slot in [0, 1, 12345, SLOTS_MAX - 1] {
            for prot in 0..8 {
                let word = Word::swapped(slot, prot);
                assert_eq!((word.state(), word.prot(), word.slot()), (SWAPPED, prot, slot));
                assert_eq!(word.evicting().waited_for().as_before(), word);
                assert_eq!(word.filling().slot(), slot);
            }
        }
        assert_eq!(Word::EMPTY.evicting().as_before(), Word::EMPTY);
        assert_eq!(Word::excluded(FOR_FORK | FOR_KERNEL).reasons(), 3);
        assert_eq!(Word::swapped(3, 3).reasons(), 0);
    }

    #[test]
    fn leaves_follow_each_other() {
        assert_eq!(leaf_offset(1), size_of::<Header>());
        assert_eq!(leaf_offset(3) - leaf_offset(2), size_of::<Leaf>());
        assert_eq!(leaf_offset(1) % 4096, 0);
    }
}
