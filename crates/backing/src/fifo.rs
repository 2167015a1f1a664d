//! The order in which pages came into the pool, so that the oldest leave it first.
//!
//! ```text
//!   pop ◀── old: [seg][seg]   ◀── sift ──   new: [seg][seg][seg] ◀── push
//!           live when last looked at        may hold entries whose page is gone
//! ```
//!
//! An entry is a slot and the generation of its location (`location.rs`). A page that is read back and freed
//! leaves its entry behind; the entry is found stale when it is popped, or sifted out. *A sift* walks through
//! `new`, a few entries with each push, and moves what is live to `old`, which is `new` from then on. It
//! begins when there are a quarter more entries than the last one left: where pages come and go all the time,
//! there are some 1.2 entries for each page, and a push pays for three looks. If a sift finds next to
//! nothing, the next one waits for twice as many entries; if most pages have gone, it begins at once.
//! (Before, a sift began where the stale were as many as the live, and an entry had eight bytes: of the
//! default's tables that was the largest part.) Everything in `old` is older than everything in `new`.
//!
//! Segments of 512 entries, not one ring: a ring of millions of entries is copied when it grows, under the
//! lock. In a segment slots and generations lie apart: five bytes an entry.
//!
//! What it does not do: give memory back when pages go and none come; the next pushes do.

use std::collections::VecDeque;

const SEGMENT_ENTRIES: usize = 512;
/// Stale entries that no sift begins for: too few to matter.
const SLACK_ENTRIES: usize = 512;
/// A sift that finds fewer stale entries than one in so many was in vain: pages come and none go.
const IN_VAIN_PART: usize = 16;
/// Entries looked at for each pushed: a sift of `n` entries ends within `n / 7` pushes.
const SIFTED_PER_PUSH: usize = 8;

/// A page in the pool: its slot, and the generation of its location, of which a byte is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    slot: u32,
    generation: u8,
}

impl Entry {
    pub(crate) fn new(slot: u32, generation: u64) -> Entry {
        let generation = u8::try_from(generation).expect("a generation has four bits");
        Entry { slot, generation }
    }
    pub(crate) fn slot(self) -> u32 {
        self.slot
    }
    pub(crate) fn generation(self) -> u64 {
        u64::from(self.generation)
    }
}

struct Segment {
    slots: [u32; SEGMENT_ENTRIES],
    generations: [u8; SEGMENT_ENTRIES],
    len: usize,
}

impl Segment {
    fn push(&mut self, entry: Entry) {
        self.slots[self.len] = entry.slot;
        self.generations[self.len] = entry.generation;
        self.len += 1;
    }

    fn at(&self, index: usize) -> Entry {
        debug_assert!(index < self.len);
        Entry { slot: self.slots[index], generation: self.generations[index] }
    }
}

#[derive(Default)]
struct List {
    /// None is empty.
    segments: VecDeque<Box<Segment>>,
    /// Entries already popped from the first segment.
    popped: usize,
}

impl List {
    fn push(&mut self, entry: Entry) {
        if self.segments.back().is_none_or(|last| last.len == SEGMENT_ENTRIES) {
            let empty = Segment { slots: [0; SEGMENT_ENTRIES], generations: [0; SEGMENT_ENTRIES], len: 0 };
            self.segments.push_back(Box::new(empty));
        }
        self.segments.back_mut().expect("there is a segment with room").push(entry);
    }

    fn pop(&mut self) -> Option<Entry> {
        let first = self.segments.front()?;
        let entry = first.at(self.popped);
        self.popped += 1;
        if self.popped == first.len {
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
    /// Entries that the last sift left, less what was popped down to since.
    sifted_len: usize,
    /// It found so few stale entries that the next one may wait for twice as many.
    was_in_vain: bool,
    is_sifting: bool,
    /// Stale entries that this sift has found.
    found_stale: usize,
}

impl Fifo {
    /// Add the newest entries. `live_pages` is how many entries can be live; `is_live` tells for one.
    pub(crate) fn push(&mut self, entries: &[Entry], live_pages: u64, is_live: impl Fn(Entry) -> bool) {
        for entry in entries {
            self.new.push(*entry);
        }
        self.len += entries.len();
        let more = if self.was_in_vain { self.sifted_len } else { self.sifted_len / 4 };
        let most = (self.sifted_len + more).min(2 * live_pages as usize) + SLACK_ENTRIES;
        self.is_sifting |= self.len > most;
        if self.is_sifting {
            self.sift(entries.len() * SIFTED_PER_PUSH, is_live);
        }
    }

    fn sift(&mut self, looks: usize, is_live: impl Fn(Entry) -> bool) {
        for _ in 0..looks {
            let Some(entry) = self.new.pop() else {
                // All have been looked at. The remaining entries are older than all that come, so they may go
                // in front.
                std::mem::swap(&mut self.old, &mut self.new);
                self.sifted_len = self.len;
                self.was_in_vain = self.found_stale < self.len / IN_VAIN_PART;
                (self.is_sifting, self.found_stale) = (false, 0);
                return;
            };
            if is_live(entry) {
                self.old.push(entry);
            } else {
                self.len -= 1;
                self.found_stale += 1;
            }
        }
    }

    /// The oldest entry, live or stale.
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let entry = self.old.pop().or_else(|| self.new.pop())?;
        self.len -= 1;
        self.sifted_len = self.sifted_len.min(self.len);
        Some(entry)
    }

    pub(crate) fn ram_bytes(&self) -> u64 {
        let segments = self.old.segments.len() + self.new.segments.len();
        (segments * (size_of::<Segment>() + size_of::<Box<Segment>>())) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn oldest_first_and_stale_entries_do_not_pile_up() {
        let mut fifo = Fifo::default();
        // Every thousandth page lives on; the others are stale at once.
        let live = |entry: Entry| entry.slot().is_multiple_of(1000);
        for slot in 0..1_000_000u32 {
            fifo.push(&[Entry::new(slot, 3)], u64::from(slot / 1000), live);
        }
        assert!(fifo.len < 3000, "{} entries for 1000 live pages", fifo.len);
        assert!(fifo.ram_bytes() < 24_000, "{} bytes", fifo.ram_bytes());
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

    /// A pool in use: pages come, are stored anew, and leave at both ends. Each popped entry is the oldest
    /// that lives, no living entry is forgotten, and the stale ones are few.
    #[test]
    fn a_pool_in_use_has_few_stale_entries() {
        const SLOTS: u32 = 20_000;
        let mut fifo = Fifo::default();
        // Each slot's last generation; and for those that live, when they came.
        let mut generations = vec![0; SLOTS as usize];
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        let looks = Cell::new(0u64);
        let (mut seed, mut pushes) = (7u64, 0u64);
        let mut random_slot = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u32 % SLOTS
        };
        let is_live = |live: &BTreeMap<u32, u64>, generations: &[u64], entry: Entry| {
            live.contains_key(&entry.slot()) && generations[entry.slot() as usize] == entry.generation()
        };
        for step in 1..=400_000u64 {
            let slot = random_slot();
            if step % 3 == 0 {
                live.remove(&slot);
            } else {
                pushes += 1;
                let generation = &mut generations[slot as usize];
                *generation = (*generation + 1) % 16;
                live.insert(slot, pushes);
                let entry = Entry::new(slot, *generation);
                fifo.push(&[entry], live.len() as u64, |entry| {
                    looks.set(looks.get() + 1);
                    is_live(&live, &generations, entry)
                });
            }
            if step % 4000 == 0 {
                for _ in 0..100 {
                    let oldest = std::iter::from_fn(|| fifo.pop())
                        .find(|entry| is_live(&live, &generations, *entry))
                        .expect("some live");
                    let came = live.remove(&oldest.slot()).expect("it is live");
                    assert!(live.values().all(|other| *other > came), "step {step}");
                }
            }
            let most = live.len() * 3 / 2 + 2 * SLACK_ENTRIES;
            assert!(fifo.len <= most, "{} entries for {} pages", fifo.len, live.len());
        }
        assert!(looks.get() < 4 * pushes, "{} looks for {pushes} pages", looks.get());
        let rest = std::iter::from_fn(|| fifo.pop()).filter(|entry| is_live(&live, &generations, *entry));
        assert_eq!(rest.count(), live.len());
    }

    /// Pages that only come cost few looks, and where nearly all go, their entries do with the next pushes.
    #[test]
    fn sifts_are_few_while_pages_only_come_and_begin_at_once_when_most_have_gone() {
        const PAGES: u32 = 1 << 20;
        let mut fifo = Fifo::default();
        let looks = Cell::new(0u64);
        for slot in 0..PAGES {
            let counted = |_| {
                looks.set(looks.get() + 1);
                true
            };
            fifo.push(&[Entry::new(slot, 0)], u64::from(slot), counted);
        }
        assert!(looks.get() < 3 * u64::from(PAGES) / 2, "{} looks for {PAGES} pages", looks.get());
        for slot in 0..PAGES / 4 {
            fifo.push(&[Entry::new(slot, 1)], u64::from(slot), |entry| entry.generation() == 1);
        }
        assert!(fifo.len < PAGES as usize / 3, "{} entries for {} pages", fifo.len, PAGES / 4);
    }
}
