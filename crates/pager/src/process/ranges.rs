//! Sets of addresses: sorted, disjoint ranges, of which no two touch.
//!
//! A program may have 65,000 mappings, and the monitor looks at them while memory fills. So a change costs
//! O(log n), and what compares whole lists goes through both of them once.

use std::collections::BTreeMap;

/// The range [start, end).
pub type Range = (u64, u64);

/// A set of addresses. Empty ranges add and take nothing.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Ranges {
    /// Start to end.
    map: BTreeMap<u64, u64>,
}

impl Ranges {
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = Range> + '_ {
        self.map.iter().map(|(start, end)| (*start, *end))
    }

    /// The last range that begins at or before `at`.
    fn last_from(&self, at: u64) -> Option<Range> {
        self.map.range(..=at).next_back().map(|(start, end)| (*start, *end))
    }

    pub fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (mut from, mut to) = (start, end);
        // Each range that is taken in here was put in once, and is so no more.
        while let Some((other, other_end)) = self.last_from(to).filter(|(_, other_end)| *other_end >= from) {
            self.map.remove(&other);
            (from, to) = (from.min(other), to.max(other_end));
        }
        self.map.insert(from, to);
    }

    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        while let Some((other, other_end)) =
            self.last_from(end - 1).filter(|(_, other_end)| *other_end > start)
        {
            self.map.remove(&other);
            if other < start {
                self.map.insert(other, start);
            }
            if end < other_end {
                self.map.insert(end, other_end);
            }
        }
    }

    pub fn intersects(&self, start: u64, end: u64) -> bool {
        start < end && self.last_from(end - 1).is_some_and(|(_, other_end)| other_end > start)
    }

    /// The parts of `wanted` that are not in here, piece by piece.
    pub fn missing_of(&self, wanted: &[Range]) -> Vec<Range> {
        let mut missing = Vec::new();
        self.divide(wanted, |range, is_here| {
            if !is_here {
                missing.push(range)
            }
        });
        missing
    }

    /// What of `wanted` is in here, as above.
    pub fn common_with(&self, wanted: &[Range]) -> Vec<Range> {
        let mut common = Vec::new();
        self.divide(wanted, |range, is_here| {
            if is_here {
                common.push(range)
            }
        });
        common
    }

    /// Calls `piece(range, is_here)` for each piece of `wanted`, in ascending order. Goes through both once.
    fn divide(&self, wanted: &[Range], mut piece: impl FnMut(Range, bool)) {
        let first = wanted.first().map_or(0, |(start, _)| *start);
        let from = self.last_from(first).map_or(first, |(start, _)| start);
        let mut here = self.map.range(from..).map(|(start, end)| (*start, *end)).peekable();
        for (start, end) in wanted {
            let mut at = *start;
            while let Some((from, to)) = here.peek().copied().filter(|(from, _)| *from < *end) {
                if at < from {
                    piece((at, from), false);
                }
                let (common_from, common_to) = (at.max(from), to.min(*end));
                if common_from < common_to {
                    piece((common_from, common_to), true);
                }
                at = at.max(to);
                if to > *end {
                    // It may reach into the next one.
                    break;
                }
                here.next();
            }
            if at < *end {
                piece((at, *end), false);
            }
        }
    }
}

impl FromIterator<Range> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range>>(ranges: I) -> Ranges {
        let mut all = Ranges::default();
        ranges.into_iter().for_each(|(start, end)| all.insert(start, end));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Small enough that ranges meet.
    const SPACE: u64 = 60;

    fn bits_of(ranges: impl IntoIterator<Item = Range>) -> u64 {
        ranges.into_iter().flat_map(|(start, end)| start..end).fold(0, |bits, at| bits | 1 << at)
    }

    /// The ranges of a set of bits.
    fn ranges_of(bits: u64) -> Vec<Range> {
        let mut ranges: Vec<Range> = Vec::new();
        for at in (0..SPACE).filter(|at| bits >> at & 1 == 1) {
            match ranges.last_mut() {
                Some(last) if last.1 == at => last.1 = at + 1,
                _ => ranges.push((at, at + 1)),
            }
        }
        ranges
    }

    fn a_range() -> impl Strategy<Value = Range> {
        (0..SPACE, 0..SPACE).prop_map(|(a, b)| (a.min(b), a.max(b)))
    }

    #[derive(Clone, Debug)]
    enum Change {
        Insert(Range),
        Remove(Range),
    }

    fn a_change() -> impl Strategy<Value = Change> {
        prop_oneof![a_range().prop_map(Change::Insert), a_range().prop_map(Change::Remove)]
    }

    proptest! {
        /// After any history it holds what a set of bits holds, as few ranges as there can be.
        #[test]
        fn it_is_a_set_of_addresses(history in prop::collection::vec(a_change(), 1..40), asked in a_range()) {
            let (mut ranges, mut bits) = (Ranges::default(), 0u64);
            for change in history {
                match change {
                    Change::Insert((start, end)) => {
                        ranges.insert(start, end);
                        bits |= bits_of([(start, end)]);
                    }
                    Change::Remove((start, end)) => {
                        ranges.remove(start, end);
                        bits &= !bits_of([(start, end)]);
                    }
                }
                prop_assert_eq!(ranges.iter().collect::<Vec<_>>(), ranges_of(bits));
            }
            prop_assert_eq!(ranges.intersects(asked.0, asked.1), bits & bits_of([asked]) != 0);
            prop_assert_eq!(ranges.is_empty(), bits == 0);
        }

        /// A list of ranges, some of which touch, without others.
        #[test]
        fn what_is_missing_is_found(
            cuts in prop::collection::btree_set(0..SPACE, 0..20),
            kept: u64,
            holes in prop::collection::vec(a_range(), 0..10),
        ) {
            let cuts: Vec<u64> = cuts.into_iter().collect();
            let pairs = cuts.windows(2).enumerate().filter(|(number, _)| kept >> number & 1 == 1);
            let wanted: Vec<Range> = pairs.map(|(_, pair)| (pair[0], pair[1])).collect();
            let holes_here: Ranges = holes.iter().copied().collect();
            let missing = holes_here.missing_of(&wanted);
            let gone = bits_of(holes.iter().copied());
            let left = |range: &Range| ranges_of(bits_of([*range]) & !gone);
            let each: Vec<Range> = wanted.iter().flat_map(left).collect();
            prop_assert_eq!(&missing, &each);
            let there = |range: &Range| ranges_of(bits_of([*range]) & gone);
            let each: Vec<Range> = wanted.iter().flat_map(there).collect();
            prop_assert_eq!(holes_here.common_with(&wanted), each);
        }
    }

    /// The cost of a change does not depend on how many ranges there are: 65,000 of them took half a minute
    /// in a list that was sorted anew for each.
    #[test]
    fn many_ranges_are_no_burden() {
        const COUNT: u64 = 65_000;
        let begun = std::time::Instant::now();
        let mut ranges = Ranges::default();
        let all: Vec<Range> = (0..COUNT).map(|i| (i * 10, i * 10 + 5)).collect();
        all.iter().rev().for_each(|(start, end)| ranges.insert(*start, *end));
        assert_eq!(ranges.missing_of(&all), []);
        assert_eq!(ranges.common_with(&all), all);
        all.iter().for_each(|(start, end)| ranges.remove(start + 1, end - 1));
        assert_eq!(ranges.iter().count(), 2 * COUNT as usize);
        ranges.insert(0, COUNT * 10);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0, COUNT * 10)]);
        assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    }
}
