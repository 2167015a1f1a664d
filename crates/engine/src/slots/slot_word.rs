//! What is known of one slot, in 64 bits.
//!
//! ```text
//!   63                    32 31           14 13      4 3   2 1    0
//!  [ payload: frame / shadow |  count (18)  | pins (10)|state| kind ]
//!
//!   state: 0 free   1 used   2 dying        kind: 0 none  1 shadow  2 frame  3 retired frame
//!
//!          alloc             put to 0, no frame           release
//!   free ─────────▶ used ──────────────────────▶ dying ───────────▶ free
//!                  │    ▲
//!        cache_add ▼    │ cache_delete (with pins: the frame is retired first, and goes at the last unpin)
//!                   frame
//! ```
//!
//! A free slot's word is 0 in every bit. *Dying* is between the last reference and the discard of the
//! backing's copy: nobody can reach the slot, and nobody can get it. A *retired* frame has left the swap
//! cache while somebody had it pinned; its bytes are still the slot's bytes, so a lookup may still find it.
//!
//! Counts and pins never saturate: beyond the end of its field a count is a panic, because one that stuck
//! there would lose a page.

use crate::units::{FrameId, SlotIndex};

struct Field {
    shift: u32,
    bits: u32,
}

const KIND: Field = Field { shift: 0, bits: 2 };
const STATE: Field = Field { shift: 2, bits: 2 };
const PINS: Field = Field { shift: 4, bits: 10 };
const COUNT: Field = Field { shift: 14, bits: 18 };
const PAYLOAD: Field = Field { shift: 32, bits: 32 };
const FIELDS: [&Field; 5] = [&KIND, &STATE, &PINS, &COUNT, &PAYLOAD];

const _: () = {
    let mut at = 0;
    let mut i = 0;
    while i < FIELDS.len() {
        assert!(FIELDS[i].shift == at, "fields follow one another without gap or overlap");
        at += FIELDS[i].bits;
        i += 1;
    }
    assert!(at == u64::BITS, "fields fill the word");
    assert!(COUNT.bits >= 16, "a page may be shared by every process of a large machine");
    assert!(PAYLOAD.bits >= u32::BITS, "a frame id and a shadow are 32 bits");
};

impl Field {
    const fn max(&self) -> u64 {
        (1 << self.bits) - 1
    }
    const fn get(&self, word: u64) -> u64 {
        word >> self.shift & self.max()
    }
    const fn put(&self, word: u64, value: u64) -> u64 {
        debug_assert!(value <= self.max());
        word & !(self.max() << self.shift) | value << self.shift
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SlotState {
    Free,
    Used,
    Dying,
}

/// What a used slot holds besides its count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Payload {
    None,
    /// Left by the page that was here: tells on refault how long it was away.
    Shadow(u32),
    /// In the swap cache: the page is in this frame.
    Frame(FrameId),
    /// Out of the swap cache, but pinned.
    Retired(FrameId),
}

/// One slot's word. Each method that changes it checks what it relies on and names the slot when that is
/// broken.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SlotWord(u64);

impl std::fmt::Debug for SlotWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} count={} pins={} {:?}", self.state(), self.count(), self.pins(), self.payload())
    }
}

impl SlotWord {
    pub(super) const FREE: SlotWord = SlotWord(0);

    /// A slot just handed out: one reference, nothing else.
    pub(super) fn allocated() -> SlotWord {
        SlotWord(COUNT.put(STATE.put(0, 1), 1))
    }

    pub(super) fn state(self) -> SlotState {
        match STATE.get(self.0) {
            0 => SlotState::Free,
            1 => SlotState::Used,
            2 => SlotState::Dying,
            other => panic!("slot word {:#x}: there is no state {other}", self.0),
        }
    }

    pub(super) fn count(self) -> u32 {
        COUNT.get(self.0) as u32
    }

    pub(super) fn pins(self) -> u32 {
        PINS.get(self.0) as u32
    }

    pub(super) fn payload(self) -> Payload {
        let value = PAYLOAD.get(self.0) as u32;
        match KIND.get(self.0) {
            0 => Payload::None,
            1 => Payload::Shadow(value),
            2 => Payload::Frame(FrameId(value)),
            _ => Payload::Retired(FrameId(value)),
        }
    }

    /// The frame that holds the slot's bytes, in the cache or just out of it.
    pub(super) fn frame(self) -> Option<FrameId> {
        match self.payload() {
            Payload::Frame(frame) | Payload::Retired(frame) => Some(frame),
            Payload::None | Payload::Shadow(_) => None,
        }
    }

    pub(super) fn set_payload(&mut self, payload: Payload) {
        let (kind, value) = match payload {
            Payload::None => (0, 0),
            Payload::Shadow(shadow) => (1, shadow),
            Payload::Frame(frame) => (2, frame.0),
            Payload::Retired(frame) => (3, frame.0),
        };
        self.0 = PAYLOAD.put(KIND.put(self.0, kind), u64::from(value));
    }

    /// One more reference.
    pub(super) fn dup(&mut self, slot: SlotIndex) {
        let count = COUNT.get(self.0);
        assert!(count > 0, "slot {} gets another reference but has none: {self:?}", slot.0);
        assert!(count < COUNT.max(), "slot {} has {count} references, and no room for another", slot.0);
        self.0 = COUNT.put(self.0, count + 1);
    }

    /// One reference less. True if the slot is dying now.
    pub(super) fn put(&mut self, slot: SlotIndex) -> bool {
        let count = COUNT.get(self.0);
        assert!(count > 0, "slot {} loses a reference but has none: {self:?}", slot.0);
        self.0 = COUNT.put(self.0, count - 1);
        self.die_if_unused()
    }

    pub(super) fn pin(&mut self, slot: SlotIndex) {
        let pins = PINS.get(self.0);
        assert!(pins < PINS.max(), "slot {} is pinned {pins} times, and no room for another", slot.0);
        self.0 = PINS.put(self.0, pins + 1);
    }

    /// One pin less. Returns how many are left.
    pub(super) fn unpin(&mut self, slot: SlotIndex) -> u32 {
        let pins = PINS.get(self.0);
        assert!(pins > 0 && self.frame().is_some(), "slot {} is unpinned but not pinned: {self:?}", slot.0);
        self.0 = PINS.put(self.0, pins - 1);
        (pins - 1) as u32
    }

    /// Used, without a reference and without a frame: nobody can reach it any more. A shadow dies with it.
    pub(super) fn die_if_unused(&mut self) -> bool {
        let dies = self.state() == SlotState::Used && self.count() == 0 && self.frame().is_none();
        if dies {
            assert!(self.pins() == 0, "a slot without a frame is pinned: {self:?}");
            *self = SlotWord(STATE.put(0, 2));
        }
        dies
    }
}
