//! Predictions that are only noted, to see whether they come true.
//!
//! Nobody tells whether a page that was brought before its fault is touched. So of each kind of prediction
//! some are not acted upon: the page is noted, and if it faults soon, the prediction was right.
//!
//! ```text
//!   noted ──▶ faults soon:              right
//!             faults late, or never:    wrong       all count as noted at once, so until then it seems wrong
//!             comes in another way:     forgotten, as if it had never been noted
//! ```
//!
//! (To count a wrong one only when another one takes its place was too late: the right ones are known
//! sooner.)
//!
//! What it does not do: say what is predicted (pointers.rs: what a page names; trust.rs: how a row goes on),
//! or what follows from it.

use crate::reclaim::queues::mix;
use crate::units::Vpn;

/// Pages that are noted at once.
const NOTES: usize = 256;
/// The least number of notes before anything is said of them; the counts are halved at twice as many.
const NOTED_MIN: u32 = 128;

/// Noted pages, each at the place that its number gives, mixed: several rows are often at even distances.
/// Empty until there is one.
pub(crate) struct Notes<T> {
    table: Box<[Option<Note<T>>]>,
}

struct Note<T> {
    vpn: Vpn,
    stamp: u64,
    of: T,
}

impl<T> Default for Notes<T> {
    fn default() -> Notes<T> {
        Notes { table: Box::default() }
    }
}

impl<T> Notes<T> {
    /// Note a page. Returns what it was noted for already: that does not count from now on.
    pub fn put(&mut self, vpn: Vpn, stamp: u64, of: T) -> Option<T> {
        if self.table.is_empty() {
            self.table = (0..NOTES).map(|_| None).collect();
        }
        let before = self.table[place_of(vpn)].replace(Note { vpn, stamp, of });
        before.filter(|before| before.vpn == vpn).map(|before| before.of)
    }

    /// A page has faulted: how many stamps ago it was noted, if it was, and what for.
    pub fn take(&mut self, vpn: Vpn, stamp: u64) -> Option<(u64, T)> {
        let note = self.table.get_mut(place_of(vpn))?.take_if(|note| note.vpn == vpn)?;
        Some((stamp.wrapping_sub(note.stamp), note.of))
    }
}

fn place_of(vpn: Vpn) -> usize {
    mix(vpn.0) as usize % NOTES
}

/// How many of the predictions noted of late were right.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Rate {
    noted: u32,
    right: u32,
}

impl Rate {
    pub fn note(&mut self) {
        self.noted += 1;
        if self.noted == 2 * NOTED_MIN {
            (self.noted, self.right) = (self.noted / 2, self.right / 2);
        }
    }

    /// Forget all notes.
    pub fn forget(&mut self) {
        self.noted = self.noted.saturating_sub(1);
        self.right = self.right.min(self.noted);
    }

    pub fn note_right(&mut self) {
        self.right = (self.right + 1).min(self.noted);
    }

    /// Enough were noted.
    pub fn is_known(self) -> bool {
        self.noted >= NOTED_MIN
    }

    pub fn is_at_least(self, percent: u32) -> bool {
        self.right * 100 >= self.noted * percent
    }
}
