//! Which places of the file under the pool are free, and in which order they are used: as a log.
//!
//! ```text
//!   a word: 64 places │■■■■■■│■■□■■■│□□□■□□│□□□□□□│■□□□□□│      │
//!                               skipped ▲ cursor           end ▲ of what has been used so far
//! ```
//!
//! Pages that leave the pool together lie together in the file, whatever their slots: one request for many
//! pages, where the slots' own places took one for each page. The cursor goes round; it takes what is free in
//! a row within a word, and leaves shorter gaps to later rounds. (Before, it took all gaps of a word of which
//! half was free.)
//!
//! *How long the runs are* is a question of room. If pages come back at random, and the file has used `n`
//! times the room of its pages, a word is `n - 1` in `n` free on average; but the word at the cursor is the
//! one that has lost pages for longest, and freer than that. With 3 a run is some 18 pages long (the test
//! `runs_stay_long` says it); with 2 it was 7, and with 4 it was 39, but the file and its tables grow with
//! it.
//!
//! *Who takes what*: a place has one owner, from `take` to `give`: the location of a slot, or a write whose
//! page nobody's location names yet. So there are never two writes to one place.
//!
//! What it does not do: move pages in the file so as to make room (a log's cleaner); know what the file has
//! allocated on disk (`file/space.rs`).

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use memspill_engine::sync::lock;
use memspill_engine::units::SlotIndex;

use crate::arena::ZeroTable;

const WORD_PLACES: usize = 64;
/// The end moves by so many words at a time: 4096 places, 16 MiB.
const GROWTH_WORDS: usize = 64;
/// The end moves when one place in so many is used.
const ROOM_FACTOR: u64 = 3;
/// A run of this many free places is worth taking; shorter ones only if there is nothing better.
const RUN_WANTED: u32 = 16;

/// See the module's header. Place 0 is never used, as slot 0 is.
pub(crate) struct Places {
    places: u32,
    /// A bit for each place: used. Set under the lock of `cursor` alone.
    used: ZeroTable,
    used_places: AtomicU64,
    cursor: Mutex<Cursor>,
}

struct Cursor {
    /// The word to be looked at next.
    word: usize,
    /// Words below this one have been used.
    end: usize,
    /// Fewer free places in a row are skipped: a power of two.
    run_wanted: u32,
    /// The place behind the last one that was taken: the rest of its run is as good as a longer one.
    next: u32,
    /// Something was taken since the cursor was last at the beginning.
    has_taken: bool,
}

impl Places {
    pub(crate) fn new(places: u32) -> io::Result<Places> {
        Ok(Places {
            places,
            used: ZeroTable::new((places as usize).div_ceil(WORD_PLACES) * 8)?,
            used_places: AtomicU64::new(0),
            cursor: Mutex::new(Cursor { word: 0, end: 0, run_wanted: RUN_WANTED, next: 0, has_taken: false }),
        })
    }

    /// At most `wanted` free places, in runs where that can be; fewer when no more are free. They are the
    /// caller's until he gives them back.
    pub(crate) fn take(&self, wanted: usize) -> Vec<SlotIndex> {
        let mut taken = Vec::with_capacity(wanted);
        let mut cursor = lock(&self.cursor);
        let mut looked_at_in_vain = 0;
        while taken.len() < wanted {
            if cursor.word == cursor.end {
                self.turn(&mut cursor);
            }
            if self.take_from(&mut cursor, wanted, &mut taken) {
                cursor.has_taken = true;
                looked_at_in_vain = 0;
                continue;
            }
            cursor.word += 1;
            looked_at_in_vain += 1;
            if looked_at_in_vain <= cursor.end {
                continue;
            }
            // Once round for nothing.
            if cursor.run_wanted > 1 {
                cursor.run_wanted /= 2;
            } else if !self.grow(&mut cursor) {
                break;
            }
            looked_at_in_vain = 0;
        }
        self.used_places.fetch_add(taken.len() as u64, Ordering::Relaxed);
        taken
    }

    /// Nobody reads or writes the place any more.
    pub(crate) fn give(&self, place: SlotIndex) {
        let bit = 1u64 << (place.index() % WORD_PLACES);
        let before = self.used.word_to_write(place.index() / WORD_PLACES).fetch_and(!bit, Ordering::AcqRel);
        assert!(before & bit != 0, "place {} of the file was given back twice", place.0);
        self.used_places.fetch_sub(1, Ordering::Relaxed);
    }

    /// The cursor is at the end: further on, or from the beginning.
    fn turn(&self, cursor: &mut Cursor) {
        let used = self.used_places.load(Ordering::Relaxed);
        if used * ROOM_FACTOR >= (cursor.end * WORD_PLACES) as u64 && self.grow(cursor) {
            return;
        }
        if std::mem::take(&mut cursor.has_taken) {
            cursor.run_wanted = RUN_WANTED.min(cursor.run_wanted * 2);
        }
        cursor.word = 0;
    }

    /// Free places were taken, and the disk had no room for them: those that were written before have room,
    /// and they lie in short gaps, as holes are punched in long ones. Any gap will do until the next round.
    pub(crate) fn want_what_had_room(&self) {
        lock(&self.cursor).run_wanted = 1;
    }

    /// Goes on behind the end. False: there is nothing.
    fn grow(&self, cursor: &mut Cursor) -> bool {
        let words = (self.places as usize).div_ceil(WORD_PLACES);
        if cursor.end == words {
            return false;
        }
        cursor.word = cursor.end;
        cursor.end = words.min(cursor.end + GROWTH_WORDS);
        true
    }

    /// Takes from the cursor's word what is free in long enough runs: from the lowest on, until there are
    /// `wanted`.
    fn take_from(&self, cursor: &mut Cursor, wanted: usize, taken: &mut Vec<SlotIndex>) -> bool {
        let word = cursor.word;
        let free = !self.used.word(word).load(Ordering::Acquire) & self.usable(word);
        let mut wanted_bits = in_runs(free, cursor.run_wanted);
        if cursor.next as usize / WORD_PLACES == word {
            wanted_bits |= run_from(free, cursor.next % WORD_PLACES as u32);
        }
        if wanted_bits == 0 {
            return false;
        }
        let mut mask = 0;
        while wanted_bits != 0 && taken.len() < wanted {
            let place = (word * WORD_PLACES) as u32 + wanted_bits.trailing_zeros();
            taken.push(SlotIndex(place));
            cursor.next = place + 1;
            mask |= 1 << (place % WORD_PLACES as u32);
            wanted_bits &= wanted_bits - 1;
        }
        self.used.word_to_write(word).fetch_or(mask, Ordering::AcqRel);
        true
    }

    /// All places of a word but the first of all, and those that are not there.
    fn usable(&self, word: usize) -> u64 {
        let there = (self.places as usize - word * WORD_PLACES).min(WORD_PLACES);
        let mask = u64::MAX >> (WORD_PLACES - there);
        if word == 0 { mask & !1 } else { mask }
    }

    pub(crate) fn ram_bytes(&self) -> u64 {
        self.used.ram_bytes()
    }

    #[cfg(test)]
    pub(crate) fn used_places(&self) -> u64 {
        self.used_places.load(Ordering::Relaxed)
    }

    /// Nothing is used any more.
    pub(crate) fn release(&self) {
        self.used.release();
        self.used_places.store(0, Ordering::Relaxed);
    }
}

/// The bits of `bits` that lie in runs of at least `run` ones, a power of two.
fn in_runs(bits: u64, run: u32) -> u64 {
    let steps = || std::iter::successors(Some(1), |step| Some(step * 2)).take_while(|step| *step < run);
    // First where such a run begins, then all that follows in it.
    let begins = steps().fold(bits, |begins, step| begins & begins >> step);
    steps().fold(begins, |all, step| all | all << step)
}

/// The run of ones that begins at this bit.
fn run_from(bits: u64, at: u32) -> u64 {
    let run = (!(bits >> at)).trailing_zeros();
    if run == 0 { 0 } else { u64::MAX >> (64 - run) << at }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn runs(places: &[SlotIndex]) -> usize {
        1 + places.windows(2).filter(|pair| pair[0].0 + 1 != pair[1].0).count()
    }

    #[test]
    fn what_is_taken_first_lies_in_a_row() {
        let places = Places::new(1 << 20).unwrap();
        let taken = places.take(10_000);
        assert_eq!((taken.len(), runs(&taken), taken[0]), (10_000, 1, SlotIndex(1)));
    }

    /// Every place but 0, each once, and given back they can be had again; also where the last word is not
    /// whole.
    #[test]
    fn all_places_can_be_used() {
        for count in [2, 64, 65, 1000, 5000] {
            let places = Places::new(count).unwrap();
            for _ in 0..3 {
                let mut taken = HashSet::new();
                loop {
                    let some = places.take(7);
                    if some.is_empty() {
                        break;
                    }
                    assert!(some.iter().all(|place| place.0 > 0 && place.0 < count && taken.insert(*place)));
                }
                assert_eq!(taken.len(), count as usize - 1);
                taken.into_iter().for_each(|place| places.give(place));
            }
        }
    }

    /// Pages that come back at random: the runs are long all the same, and no more than thrice the room is
    /// used.
    #[test]
    fn runs_stay_long() {
        const LIVE: usize = 30_000;
        let places = Places::new(1 << 24).unwrap();
        let mut live: Vec<SlotIndex> = Vec::new();
        let (mut seed, mut pages, mut requests) = (1u64, 0, 0);
        for batch in 0..5000 {
            let taken = places.take(128);
            assert_eq!(taken.len(), 128);
            if batch > 2000 {
                (pages, requests) = (pages + 128, requests + runs(&taken));
            }
            live.extend(taken);
            while live.len() > LIVE {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let index = (seed >> 33) as usize % live.len();
                places.give(live.swap_remove(index));
            }
        }
        assert!(pages > 15 * requests, "{pages} pages in {requests} requests");
        let extent = lock(&places.cursor).end * WORD_PLACES;
        assert!(extent < LIVE * 4, "{extent} places for {LIVE} pages");
    }

    /// Short gaps are left while there are longer ones, unless the disk has no room.
    #[test]
    fn short_gaps_are_used_when_the_disk_has_no_room() {
        let places = Places::new(1 << 13).unwrap();
        let all = places.take(4096 - 1);
        let short: Vec<SlotIndex> = all.iter().copied().filter(|place| place.0 % 64 / 8 == 1).collect();
        let long: Vec<SlotIndex> = all.iter().copied().filter(|place| place.0 % 64 >= 40).collect();
        short.iter().chain(&long).for_each(|place| places.give(*place));
        let taken = places.take(8);
        assert!(taken.iter().all(|place| long.contains(place)), "{taken:?}");
        taken.into_iter().for_each(|place| places.give(place));
        places.want_what_had_room();
        let taken = places.take(40);
        assert!(taken.iter().any(|place| short.contains(place)), "{taken:?}");
    }

    #[test]
    fn bits_are_known_by_their_runs() {
        for seed in 1..2000u64 {
            let bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | seed.wrapping_mul(0xd1b5_4a32_d192_ed03);
            let is_set = |at: u32| at < 64 && bits >> at & 1 == 1;
            // From where to where the run of each bit goes.
            let begin_of = |at: u32| (0..=at).rev().take_while(|at| is_set(*at)).last();
            let end_of = |at: u32| (at..64).find(|at| !is_set(*at)).unwrap_or(64);
            for run in [1, 2, 4, 8, 16] {
                let long = |at: &u32| begin_of(*at).is_some_and(|begin| end_of(*at) - begin >= run);
                let wanted = (0..64).filter(long).fold(0, |mask, at| mask | 1u64 << at);
                assert_eq!(in_runs(bits, run), wanted, "runs of {run} in {bits:#b}");
            }
            for at in 0..64 {
                let wanted = (at..end_of(at)).fold(0, |mask, at| mask | 1u64 << at);
                assert_eq!(run_from(bits, at), wanted, "from {at} in {bits:#b}");
            }
        }
        assert_eq!((in_runs(u64::MAX, 16), run_from(u64::MAX, 0)), (u64::MAX, u64::MAX));
    }

    /// The next write takes the rest of a run, short as it may be.
    #[test]
    fn a_run_is_used_up() {
        let places = Places::new(1 << 12).unwrap();
        let taken: Vec<SlotIndex> = (0..100).flat_map(|_| places.take(10)).collect();
        assert_eq!((taken.len(), runs(&taken)), (1000, 1));
    }

    #[test]
    #[should_panic = "given back twice"]
    fn a_place_is_given_back_once() {
        let places = Places::new(100).unwrap();
        let taken = places.take(1);
        places.give(taken[0]);
        places.give(taken[0]);
    }
}
