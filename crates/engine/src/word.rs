//! The page-table word: what the engine knows of one page of one address space (the kernel's PTE).
//!
//! ```text
//!  63     60 59        28 27      12 11     8 7    4 3     0
//! ┌─────────┬────────────┬──────────┬────────┬──────┬───────┐
//! │ device  │ slot (32)  │ stamp    │ flags  │ heat │ state │
//! │ (4)     │            │ (16)     │ (4)    │ (4)  │ (4)   │
//! └─────────┴────────────┴──────────┴────────┴──────┴───────┘
//!  device, slot   the swap entry: in SWAPPED, and with HAS_ENTRY in FILLING, RESIDENT and EVICTING
//!  stamp  changes each time the page becomes resident: an LRU record with another stamp is stale
//!  heat   rounds of second chance left in the LRU
//! ```
//!
//! A word is read and written under its chunk's lock only.
//!
//! ```text
//!            fault (zero fill)              victim
//!   NONE ───────▶ FILLING ──────▶ RESIDENT ───────▶ EVICTING ──┬─▶ SWAPPED (or NONE: it was all zeros)
//!    ▲               ▲  │ cancelled      ▲                     └─▶ RESIDENT (could not be taken)
//!    └───────────────┼──┘                └──── FILLING ◀──────────── SWAPPED   fault (swap in)
//!    └── unmap, remove: from RESIDENT, SWAPPED, POISONED;
//!        a page that is FILLING is only marked CANCELLED, and its filler ends it
//! ```

use crate::units::SlotIndex;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Never touched, or known to be zero: zero fill.
    None = 0,
    /// In the address space; counted.
    Resident = 1,
    /// Chosen as a victim; being moved out.
    Evicting = 2,
    /// In a slot (perhaps still in the swap cache).
    Swapped = 3,
    /// One thread is bringing it in; it owns the word until it ends.
    Filling = 4,
    /// Its only copy could not be read.
    Poisoned = 5,
}

/// EVICTING: a fault came meanwhile.
pub const WANTED: u64 = 1 << 8;
/// FILLING: the range was unmapped or removed; the filler drops what it has.
pub const CANCELLED: u64 = 1 << 9;
/// RESIDENT, EVICTING: it came back, and its record is in a queue for pages on trial (reclaim/queues.rs). The
/// bit of CANCELLED, which is of another state.
pub const ON_TRIAL: u64 = CANCELLED;
/// FILLING: the page is read from `entry` (without the flag, it is a zero fill). RESIDENT, EVICTING: `entry`
/// still holds the page as it came in (a kept copy), so it need not be written again if nothing was stored to
/// it.
pub const HAS_ENTRY: u64 = 1 << 10;
/// RESIDENT: the page was made the process's own after a fork. If it cannot be moved, the reason is not that
/// it is shared.
pub const MADE_OWN: u64 = 1 << 11;
const _: () = assert!(MADE_OWN < 1 << STAMP_SHIFT);

const HEAT_SHIFT: u32 = 4;
const HEAT_MASK: u64 = 0xF;
const STAMP_SHIFT: u32 = 12;
pub const STAMP_MASK: u64 = (1 << 16) - 1;
const SLOT_SHIFT: u32 = 28;
const DEVICE_SHIFT: u32 = SLOT_SHIFT + 32;
/// Devices that an entry can name.
pub const ENTRY_DEVICES_MAX: usize = 16;
const _: () = assert!(DEVICE_SHIFT + 4 == 64);
const _: () = assert!(STAMP_SHIFT + 16 == SLOT_SHIFT);

/// Device and slot: the kernel's swp_entry_t.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SwapEntry {
    pub device: u8,
    pub slot: SlotIndex,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Word(pub u64);

impl Word {
    pub const NONE: Word = Word(0);

    pub fn state(self) -> State {
        match self.0 & 0xF {
            0 => State::None,
            1 => State::Resident,
            2 => State::Evicting,
            3 => State::Swapped,
            4 => State::Filling,
            5 => State::Poisoned,
            other => panic!("page word {:#x} has state {other}", self.0),
        }
    }
    pub fn with_state(self, state: State) -> Word {
        Word(self.0 & !0xF | state as u64)
    }
    pub fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }
    pub fn with(self, flag: u64) -> Word {
        Word(self.0 | flag)
    }
    pub fn without(self, flag: u64) -> Word {
        Word(self.0 & !flag)
    }
    pub fn heat(self) -> u64 {
        self.0 >> HEAT_SHIFT & HEAT_MASK
    }
    pub fn with_heat(self, heat: u64) -> Word {
        Word(self.0 & !(HEAT_MASK << HEAT_SHIFT) | heat.min(HEAT_MASK) << HEAT_SHIFT)
    }
    pub fn stamp(self) -> u64 {
        self.0 >> STAMP_SHIFT & STAMP_MASK
    }
    pub fn with_stamp(self, stamp: u64) -> Word {
        Word(self.0 & !(STAMP_MASK << STAMP_SHIFT) | (stamp & STAMP_MASK) << STAMP_SHIFT)
    }
    pub fn entry(self) -> SwapEntry {
        SwapEntry { device: (self.0 >> DEVICE_SHIFT) as u8, slot: SlotIndex((self.0 >> SLOT_SHIFT) as u32) }
    }
    /// The same page in another slot.
    pub fn with_entry(self, entry: SwapEntry) -> Word {
        debug_assert!((entry.device as usize) < ENTRY_DEVICES_MAX);
        let rest = self.0 & ((1 << SLOT_SHIFT) - 1);
        Word(rest | (entry.device as u64) << DEVICE_SHIFT | (entry.slot.0 as u64) << SLOT_SHIFT)
    }
    pub fn swapped(entry: SwapEntry) -> Word {
        Word::NONE.with_entry(entry).with_state(State::Swapped)
    }
    /// This word, of a resident page, with a kept copy.
    pub fn with_kept(self, entry: SwapEntry) -> Word {
        Word(self.0 | Word::swapped(entry).without_state().0).with(HAS_ENTRY)
    }
    /// The same without it.
    pub fn without_kept(self) -> Word {
        Word(self.0 & ((1 << SLOT_SHIFT) - 1)).without(HAS_ENTRY)
    }
    fn without_state(self) -> Word {
        Word(self.0 & !0xF)
    }
    /// The swap entry that this word holds a reference to, if it does.
    pub fn held_entry(self) -> Option<SwapEntry> {
        match self.state() {
            State::Swapped => Some(self.entry()),
            _ if self.has(HAS_ENTRY) => Some(self.entry()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let entry = SwapEntry { device: 15, slot: SlotIndex(u32::MAX) };
        let w =
            Word::swapped(entry).with_stamp(STAMP_MASK).with_heat(15).with(WANTED | CANCELLED | HAS_ENTRY);
        assert_eq!(w.entry(), entry);
        assert_eq!(w.stamp(), STAMP_MASK);
        assert_eq!(w.heat(), 15);
        assert_eq!(w.state(), State::Swapped);
        let other = SwapEntry { device: 1, slot: SlotIndex(2) };
        assert_eq!((w.with_entry(other).entry(), w.with_entry(other).with_entry(entry)), (other, w));
        let w = w.with_stamp(0).with_heat(0).without(WANTED | CANCELLED | HAS_ENTRY);
        assert_eq!(w, Word::swapped(entry));
        let resident = Word::NONE.with_state(State::Resident).with_stamp(77).with_heat(3);
        let kept = resident.with_kept(entry);
        assert_eq!((kept.held_entry(), kept.stamp(), kept.heat()), (Some(entry), 77, 3));
        assert_eq!((kept.without_kept(), resident.held_entry()), (resident, None));
    }
}
