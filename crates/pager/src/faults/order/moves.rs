//! Moves: what freed a place comes before what was moved there.
//!
//! The order matters where memory has been moved (mremap) to where other memory was a moment ago: told in the
//! wrong order, the move comes first, and then the unmapping takes what was moved there. The registrations in
//! the end say which of the two came first.
//!
//! ```text
//!   thread A   munmap X ─ unlocked ──────────── (preempted) ─────────────▶ UNMAP X
//!   thread B             mremap Y to X ─▶ REMAP Y to X
//! ```
//!
//! What it does not do: find changes that make no difference here (what was unmapped twice, dropped pages).

use crate::faults::order::change::{Change, grouped};
use crate::process::ranges::Ranges;

/// Put what freed a range before the REMAP that moved memory there, where it was told after it.
/// `is_registered` says whether something of a range is registered now: if that is where the memory was moved
/// to, it was not freed since. It is asked only where it matters, and must be true of the moment after all
/// these changes and before any other one.
///
/// A change is believed if it leads to what is there. Memory that moves to and fro is told of many times in
/// one reading: then what left a place comes after what was moved there and before what is moved there next,
/// and nothing is out of order.
pub fn put_in_order(changes: &mut [Change], is_registered: &IsRegistered) {
    for numbers in grouped(changes) {
        let told: Vec<Change> = numbers.iter().map(|number| changes[*number]).collect();
        if !leads_to(&told, is_registered) {
            let made = one_earlier(&told, is_registered).unwrap_or_else(|| all_earlier(told, is_registered));
            numbers.iter().zip(made).for_each(|(number, change)| changes[*number] = change);
        }
    }
}

/// Is some of this range registered?
type IsRegistered<'a> = dyn Fn((u64, u64)) -> bool + 'a;

/// After these changes, in this order, may what is registered be so? Memory that was moved is followed: where
/// it was unmapped, or has moved on, nothing is registered.
fn leads_to(changes: &[Change], is_registered: &IsRegistered) -> bool {
    let (mut moved_there, mut left) = (Ranges::default(), Ranges::default());
    for change in changes {
        match *change {
            Change::Remap { from, to, len } => {
                note_left(&mut moved_there, &mut left, from, from + len);
                left.remove(to, to + len);
                moved_there.insert(to, to + len);
            }
            Change::Unmap { start, end } => note_left(&mut moved_there, &mut left, start, end),
            Change::Remove { .. } => {}
        }
    }
    !left.iter().any(is_registered)
}

/// Memory that was moved into this range is there no more.
fn note_left(moved_there: &mut Ranges, left: &mut Ranges, start: u64, end: u64) {
    let were: Vec<(u64, u64)> = moved_there.iter().filter(|(from, to)| *from < end && start < *to).collect();
    were.iter().for_each(|(from, to)| left.insert(start.max(*from), end.min(*to)));
    moved_there.remove(start, end);
}

/// One of these was told too late.
fn one_earlier(told: &[Change], is_registered: &IsRegistered) -> Option<Vec<Change>> {
    let pairs = (1..told.len()).flat_map(|late| (0..late).rev().map(move |early| (late, early)));
    pairs
        .filter(|(late, early)| made_room(&told[*late], &told[*early]).is_some())
        .map(|(late, early)| {
            let mut made = told.to_vec();
            let freed = made.remove(late);
            made.insert(early, freed);
            made
        })
        .find(|made| leads_to(made, is_registered))
}

/// The range in which `other` may have freed the destination of `moved`.
fn made_room(other: &Change, moved: &Change) -> Option<(u64, u64)> {
    let Change::Remap { to, len, .. } = *moved else { return None };
    let (start, end) = match *other {
        Change::Unmap { start, end } => (start, end),
        Change::Remap { from, len, .. } => (from, from + len),
        Change::Remove { .. } => return None,
    };
    Some((start.max(to), end.min(to + len))).filter(|(start, end)| start < end)
}

/// Several were told too late: each of them comes before the move to what it freed, if that is where
/// something is.
fn all_earlier(told: Vec<Change>, is_registered: &IsRegistered) -> Vec<Change> {
    let mut told: Vec<(usize, Change)> = told.into_iter().enumerate().collect();
    let mut at = 0;
    while at < told.len() {
        let (number, moved) = told[at];
        let is_late = |(other, change): &(usize, Change)| {
            *other > number && made_room(change, &moved).is_some_and(is_registered)
        };
        match told[at + 1..].iter().position(is_late) {
            // Looked at next, for it may be a REMAP that was told too early itself. Changes put here were
            // told later than those that were here, so this ends.
            Some(after) => {
                let freed = told.remove(at + 1 + after);
                told.insert(at, freed);
            }
            None => at += 1,
        }
    }
    told.into_iter().map(|(_, change)| change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(changes: &[Change]) -> Vec<String> {
        let name = |change: &Change| match change {
            Change::Remap { from, to, .. } => format!("{from}>{to}"),
            Change::Unmap { start, end } => format!("-{start}..{end}"),
            Change::Remove { start, end } => format!("!{start}..{end}"),
        };
        changes.iter().map(name).collect()
    }

    fn among(registered: &[(u64, u64)]) -> impl Fn((u64, u64)) -> bool + '_ {
        |(start, end)| registered.iter().any(|(from, to)| *from < end && start < *to)
    }

    fn remap(from: u64, to: u64) -> Change {
        Change::Remap { from, to, len: 10 }
    }
    fn unmap(start: u64, end: u64) -> Change {
        Change::Unmap { start, end }
    }

    #[test]
    fn what_freed_a_range_comes_before_what_moved_there() {
        let sorted = |mut changes: Vec<Change>, registered: &[(u64, u64)]| {
            put_in_order(&mut changes, &among(registered));
            names(&changes)
        };
        // The memory that was moved to 100 is there: the unmapping was before.
        assert_eq!(sorted(vec![remap(20, 100), unmap(95, 105)], &[(100, 110)]), ["-95..105", "20>100"]);
        // It is not: it was unmapped, or moved on.
        assert_eq!(sorted(vec![remap(20, 100), unmap(100, 110)], &[(0, 20)]), ["20>100", "-100..110"]);
        assert_eq!(sorted(vec![remap(20, 100), remap(100, 300)], &[(300, 310)]), ["20>100", "100>300"]);
        // Two moves, the first of which made room for the second.
        assert_eq!(
            sorted(vec![remap(20, 100), remap(100, 300)], &[(100, 110), (300, 310)]),
            ["100>300", "20>100"]
        );
        // The second move was told too early as well.
        let changes = vec![remap(20, 100), remap(100, 300), unmap(300, 310)];
        assert_eq!(sorted(changes, &[(100, 110), (300, 310)]), ["-300..310", "100>300", "20>100"]);
        // Two that change places by way of each other's: no order is right, and it ends.
        assert_eq!(sorted(vec![remap(20, 100), remap(100, 20)], &[(20, 30), (100, 110)]).len(), 2);
        // Others stay where they are.
        let changes = vec![unmap(0, 5), remap(20, 100), unmap(50, 60), unmap(109, 112)];
        assert_eq!(sorted(changes, &[(100, 110)]), ["-0..5", "-109..112", "-50..60", "20>100"]);
    }

    /// Told of in one reading, as a slow supervisor does it.
    #[test]
    fn what_moves_to_and_fro_is_in_order() {
        let cycle = |turns: usize| -> Vec<Change> {
            let there = [Change::Remap { from: 20, to: 100, len: 10 }, Change::Unmap { start: 20, end: 30 }];
            let back = [Change::Remap { from: 100, to: 20, len: 10 }, Change::Unmap { start: 100, end: 110 }];
            (0..turns).flat_map(|turn| if turn % 2 == 0 { there } else { back }).collect()
        };
        for turns in 1..7 {
            let told = cycle(turns);
            let at = if turns % 2 == 1 { 100 } else { 20 };
            let mut changes = told.clone();
            put_in_order(&mut changes, &among(&[(at, at + 10), (500, 600)]));
            assert_eq!(changes, told);
        }
        // Beside it another one, of which something was told too late.
        let mut changes = cycle(3);
        changes.insert(1, Change::Remap { from: 300, to: 500, len: 10 });
        changes.push(Change::Unmap { start: 500, end: 510 });
        put_in_order(&mut changes, &among(&[(100, 110), (500, 510)]));
        let of = |wanted: std::ops::Range<u64>| -> Vec<Change> {
            changes.iter().copied().filter(|change| wanted.contains(&change.ranges()[0].0)).collect()
        };
        assert_eq!(of(0..200), cycle(3));
        assert!(matches!(of(200..600)[..], [Change::Unmap { .. }, Change::Remap { .. }]));
    }
}
