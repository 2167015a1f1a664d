//! How much a space gives to reclaim, beside the others: stride scheduling.
//!
//! Each space has a *pass*. The space with the least pass gives the next batch, and what it gives raises its
//! pass, the more the less it has resident. So each gives in proportion to what it has.
//!
//! Three bits change that. All are kept here, and the engine only obeys them: who gets which is for the front
//! end to say, which sees CPU time and faults (`Space::spare`, `set_aside`, `note_asked`).
//!
//! ```text
//!   spared   a page that it gives counts 32 times: it gives a 32nd of its share
//!   aside    it is not asked at all
//!   rests    it gave nothing when it was asked last, and the others are asked first
//! ```
//!
//! What it does not do: choose the space (spaces.rs), or pages (victim.rs). A page that stays a round longer
//! than the others of its space has heat (word.rs), which it is given in install.rs.

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// A space that is spared gives so much less of each page that it has.
const SPARED_PART: f64 = 32.0;

pub(crate) struct Turn {
    /// The pass, an f64.
    pass_bits: AtomicU64,
    spared: AtomicBool,
    aside: AtomicBool,
    rests: AtomicBool,
    /// It gave nothing when it was asked last.
    dry: AtomicBool,
}

impl Turn {
    pub fn new() -> Turn {
        let [spared, aside, rests, dry] = [false; 4].map(AtomicBool::new);
        Turn { pass_bits: AtomicU64::new(0), spared, aside, rests, dry }
    }

    pub fn pass(&self) -> f64 {
        f64::from_bits(self.pass_bits.load(Ordering::Relaxed))
    }
    pub fn set_pass(&self, pass: f64) {
        self.pass_bits.store(pass.to_bits(), Ordering::Relaxed);
    }
    /// The weight of a page that the space gives.
    pub fn page_weight(&self) -> f64 {
        if self.spared.load(Ordering::Relaxed) { SPARED_PART } else { 1.0 }
    }
    /// The space gives this part of what it has.
    pub fn charge(&self, part: f64) {
        self.set_pass(self.pass() + part);
    }

    /// Reclaim takes less from the space than from others.
    pub fn spare(&self, spared: bool) {
        self.spared.store(spared, Ordering::Relaxed);
    }
    /// Reclaim takes nothing from the space. Returns if that was so before.
    pub fn set_aside(&self, aside: bool) -> bool {
        self.aside.swap(aside, Ordering::Relaxed)
    }
    pub fn is_aside(&self) -> bool {
        self.aside.load(Ordering::Relaxed)
    }

    /// Reclaim has asked it, and got something or nothing.
    pub fn note_asked(&self, gave: bool) {
        // Mostly it was not dry before.
        if self.is_dry() == gave {
            self.dry.store(!gave, Ordering::Relaxed);
        }
        if !gave {
            self.rests.store(true, Ordering::Relaxed);
        }
    }
    pub fn end_rest(&self) {
        self.rests.store(false, Ordering::Relaxed);
    }
    pub fn rests(&self) -> bool {
        self.rests.load(Ordering::Relaxed)
    }
    pub fn is_dry(&self) -> bool {
        self.dry.load(Ordering::Relaxed)
    }
}
