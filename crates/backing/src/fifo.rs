//! The order in which pages came into the pool, so that the oldest leave it first.
//!
//! ```text
//!   pop ◀── old: [seg][seg]   ◀── sift ──   new: [seg][seg][seg] ◀── push
//!           live when last looked at        may hold entries whose page is gone
//! ```
//!
//! An entry is a slot and the generation of its location (`location.rs`). A page that is read back and freed
//! leaves its entry behind; the entry is found stale when it is popped. Where nothing is ever popped
//! (the pool never fills) stale entries would pile up, so when they outnumber the live ones each push also
//! sifts a few segments of `new` into `old`, dropping what is stale. Everything in `old` is older than
//! everything in `new`.
//!
//! Segments of 512 entries, not one ring: a ring of millions of entries is copied when it grows, under the
//! lock.

use std::collections::VecDeque;

const SEGMENT_ENTRIES: usize = 512;
/// Entries that may be stale before sifting starts.
const SLACK_ENTRIES: usize = 4096;

/// A page in the pool: generation (bits 32 and up) and slot (bits 0..32).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry(u64);

impl Entry {
    pub(crate) fn new(slot: u32, generation: u64) -> Entry {
        Entry(generation << 32 | u64::from(slot))
    }
    pub(crate) fn slot(self) -> u32 {
        self.0 as u32
    }
    pub(crate) fn generation(self) -> u64 {
        self.0 >> 32
    }
}

#[derive(Default)]
struct List {
    /// None is empty.
    segments: VecDeque<Vec<Entry>>,
    /// Entries already popped from the first segment.
    popped: usize,
}

impl List {
    fn push(&mut self, entry: Entry) {
        match self.segments.back_mut() {
            Some(last) if last.len() < SEGMENT_ENTRIES => last.push(entry),
            _ => {
                let mut segment = Vec::with_capacity(SEGMENT_ENTRIES);
                segment.push(entry);
                self.segments.push_back(segment);
            }
        }
    }

    fn pop(&mut self) -> Option<Entry> {
        let first = self.segments.front()?;
        let entry = first[self.popped];
        self.popped += 1;
        if self.popped == first.len() {
            self.segments.pop_front();
            self.popped = 0;
        }
        Some(entry)
    }
}

#[derive(Default)]
pub(crate) struct Fifo {
    old: List,
    new: List,
    len: usize,
}

impl Fifo {
    /// Add the newest entries. `live_pages` is how many entries can be live; `is_live` tells for one.
    pub(crate) fn push(&mut self, entries: &[Entry], live_pages: u64, is_live: impl Fn(Entry) -> bool) {
        for entry in entries {
            self.new.push(*entry);
        }
        self.len += entries.len();
        if self.len as u64 <= 2 * live_pages + SLACK_ENTRIES as u64 {
            return;
        }
        // Four looked at for each pushed: the walk outruns the pushes.
        for _ in 0..entries.len() * 4 {
            let Some(entry) = self.new.pop() else {
                // All of `new` has been looked at: it is `old`'s turn again, and its order is kept.
                std::mem::swap(&mut self.old, &mut self.new);
                break;
            };
            if is_live(entry) {
                self.old.push(entry);
            } else {
                self.len -= 1;
            }
        }
    }

    /// The oldest entry, live or stale.
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let entry = self.old.pop().or_else(|| self.new.pop())?;
        self.len -= 1;
        Some(entry)
    }

    pub(crate) fn ram_bytes(&self) -> u64 {
        let segments = self.old.segments.len() + self.new.segments.len();
        (segments * (SEGMENT_ENTRIES * size_of::<Entry>() + size_of::<Vec<Entry>>())) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_first_and_stale_entries_do_not_pile_up() {
        let mut fifo = Fifo::default();
        // Every thousandth page lives on; the others are stale at once.
        let live = |entry: Entry| entry.slot().is_multiple_of(1000);
        for slot in 0..1_000_000u32 {
            fifo.push(&[Entry::new(slot, 3)], u64::from(slot / 1000), live);
        }
        assert!(fifo.len < 10_000, "{} entries for 1000 live pages", fifo.len);
        assert!(fifo.ram_bytes() < 200_000);
        let mut last = None;
        let mut seen = 0;
        while let Some(entry) = fifo.pop() {
            assert_eq!(entry.generation(), 3);
            assert!(last < Some(entry.slot()), "{last:?} came before {}", entry.slot());
            last = Some(entry.slot());
            seen += u32::from(live(entry));
        }
        assert_eq!(seen, 1000, "every live entry comes out once");
        assert_eq!((fifo.len, fifo.ram_bytes()), (0, 0));
    }
}
