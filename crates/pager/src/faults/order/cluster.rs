//! A cluster: changes that touch the same addresses, and the path of each piece of memory through them.
//!
//! The child of a fork has seen the first so many changes of a cluster. For each number it is known where
//! memory must be in the child, and where it cannot be:
//!
//! ```text
//!   cluster               one mremap tells UNMAP B, REMAP A to B, UNMAP A
//!   seen by the child     none: A and B are there        all: B is there, A is not
//! ```
//!
//! If no number fits, or several that differ do, it is not known which bytes belong where. (A move onto other
//! memory is such a case where the child has both places: it may have been made by MREMAP_DONTUNMAP, which
//! leaves its source mapped, and have come before the fork.)

use crate::faults::order::change::Change;

/// More changes in one cluster are not thought through: each number of them would have to be compared.
pub const CLUSTER_MAX: usize = 48;

/// Questions about a fork, to find out what its child has seen.
pub trait Evidence {
    /// Pages of a range that were certainly registered before all the changes (those of which the page table
    /// knows something), as offsets. A few are enough, unless some of it may be left out of children
    /// (MADV_DONTFORK).
    fn known(&self, start: u64, end: u64) -> Vec<u64>;
    /// Is this page registered in the child? None: not to be found out, for the child itself is changing.
    fn child_has(&self, addr: u64) -> Option<bool>;
}

/// Memory of which it is not known where it is in the child: where it was before all the changes, and where
/// it may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Doubt {
    pub start: u64,
    pub len: u64,
    pub places: Vec<u64>,
}

/// A stretch of memory, and where it was before the changes, after the first of them, after the second...
#[derive(Clone, Debug)]
struct Piece {
    len: u64,
    path: Vec<Option<u64>>,
    /// Pages that were certainly registered, as offsets.
    known: Vec<u64>,
    /// It may have been registered although nothing is known of it.
    open: bool,
}

impl Piece {
    fn start(&self) -> u64 {
        self.path[0].expect("where it was first")
    }
}

/// Changes that touch the same addresses, in order, each with its number among all.
pub struct Cluster {
    changes: Vec<(usize, Change)>,
    pieces: Vec<Piece>,
}

impl Cluster {
    /// `changes` touch the same addresses, directly or by way of others.
    pub fn of(changes: Vec<(usize, Change)>, evidence: &impl Evidence) -> Cluster {
        let mut cluster = Cluster { changes, pieces: Vec::new() };
        cluster.find_paths(evidence);
        cluster
    }

    /// How many of its changes are among the first `told` of all.
    pub fn told_before(&self, told: usize) -> usize {
        self.changes.iter().filter(|(number, _)| *number < told).count()
    }

    /// The numbers that its first `count` changes have among all.
    pub fn first_numbers(&self, count: usize) -> impl Iterator<Item = usize> + '_ {
        self.changes[..count].iter().map(|(number, _)| *number)
    }

    pub fn is_too_long(&self) -> bool {
        self.changes.len() > CLUSTER_MAX
    }

    /// The paths of all memory that the changes touch.
    fn find_paths(&mut self, evidence: &impl Evidence) {
        let mut ranges: Vec<(u64, u64)> =
            self.changes.iter().flat_map(|(_, change)| change.ranges()).collect();
        ranges.sort_unstable();
        let mut covered = 0;
        for (start, end) in ranges {
            let start = start.max(covered);
            if start < end {
                self.pieces.push(Piece {
                    len: end - start,
                    path: vec![Some(start)],
                    known: Vec::new(),
                    open: true,
                });
                covered = end;
            }
        }
        if self.is_too_long() {
            return;
        }
        for at in 0..self.changes.len() {
            let change = self.changes[at].1;
            change
                .ranges()
                .into_iter()
                .for_each(|(start, end)| [start, end].into_iter().for_each(|cut| self.cut(cut)));
            self.pieces.iter_mut().for_each(|piece| piece.apply(change));
        }
        for piece in &mut self.pieces {
            let start = piece.start();
            piece.known.extend(evidence.known(start, start + piece.len));
        }
    }

    /// No piece is on both sides of an address, where they are now.
    fn cut(&mut self, at: u64) {
        let mut more = Vec::new();
        for piece in &mut self.pieces {
            let Some(now) = piece.path.last().copied().flatten() else { continue };
            if now < at && at < now + piece.len {
                let offset = at - now;
                let path = piece.path.iter().map(|place| place.map(|p| p + offset)).collect();
                more.push(Piece {
                    len: piece.len - offset,
                    path,
                    known: piece.known.clone(),
                    open: piece.open,
                });
                piece.len = offset;
            }
        }
        self.pieces.extend(more);
    }

    /// How many of the changes the child has seen; `told` of them were told before the fork. None: not known.
    pub fn seen_by(&self, told: usize, evidence: &impl Evidence) -> Option<usize> {
        if self.is_too_long() {
            return None;
        }
        if self.pieces.iter().all(|piece| piece.known.is_empty()) {
            return Some(told);
        }
        let mut fitting = Vec::new();
        for number in 0..=self.changes.len() {
            if self.fits(number, evidence)? {
                fitting.push(number);
            }
        }
        let same = |a: usize, b: usize| {
            self.pieces
                .iter()
                .filter(|piece| !piece.known.is_empty())
                .all(|piece| piece.path[a] == piece.path[b])
        };
        let best = fitting.iter().copied().min_by_key(|number| number.abs_diff(told))?;
        fitting.iter().all(|number| same(*number, best)).then_some(best)
    }

    /// Is the child as it must be if it has seen so many changes? None: it cannot be found out.
    fn fits(&self, number: usize, evidence: &impl Evidence) -> Option<bool> {
        let has_any = |start: u64, known: &[u64]| -> Option<bool> {
            for offset in known {
                if evidence.child_has(start + offset)? {
                    return Some(true);
                }
            }
            Some(false)
        };
        for piece in self.pieces.iter().filter(|piece| !piece.known.is_empty()) {
            if let Some(here) = piece.path[number]
                && !has_any(here, &piece.known)?
            {
                return Some(false);
            }
            // Nor is it where it was, or will be, unless that is now the place of other memory.
            for at in piece.path.iter().flatten().filter(|at| piece.path[number] != Some(**at)) {
                for offset in piece.known.iter().filter(|offset| !self.may_be_taken(number, at + *offset)) {
                    if evidence.child_has(at + offset)? {
                        return Some(false);
                    }
                }
            }
        }
        Some(true)
    }

    /// After so many changes, may something be registered at this address?
    fn may_be_taken(&self, number: usize, addr: u64) -> bool {
        let is_in = |(start, end): (u64, u64)| start <= addr && addr < end;
        let last = self.changes[..number].iter().rev().find_map(|(_, change)| match *change {
            Change::Unmap { start, end } => is_in((start, end)).then_some(false),
            // At the source until its unmapping is told: MREMAP_DONTUNMAP leaves it.
            Change::Remap { .. } => change.ranges().into_iter().any(is_in).then_some(true),
            Change::Remove { .. } => None,
        });
        let at_first = |piece: &&Piece| is_in((piece.start(), piece.start() + piece.len));
        last.unwrap_or_else(|| {
            self.pieces.iter().filter(at_first).any(|piece| piece.open || !piece.known.is_empty())
        })
    }

    /// All of it, where it is not known what the child has seen.
    pub fn doubts(&self) -> Vec<Doubt> {
        let doubt = |piece: &Piece| {
            let mut places: Vec<u64> = piece.path.iter().flatten().copied().collect();
            places.sort_unstable();
            places.dedup();
            Doubt { start: piece.start(), len: piece.len, places }
        };
        self.pieces.iter().map(doubt).collect()
    }
}

impl Piece {
    fn apply(&mut self, change: Change) {
        let now = self.path.last().copied().flatten();
        let within = |start: u64, len: u64| now.is_some_and(|now| (start..start + len).contains(&now));
        let next = match change {
            Change::Unmap { start, end } if within(start, end - start) => None,
            Change::Remap { from, to, len } if within(from, len) => {
                // Memory that moves is registered, whatever is known of it.
                self.known = if self.known.is_empty() { vec![0] } else { std::mem::take(&mut self.known) };
                now.map(|now| now - from + to)
            }
            Change::Remap { to, len, .. } if within(to, len) => {
                // Had it been registered, its unmapping would have been told first.
                self.open = false;
                None
            }
            _ => now,
        };
        self.path.push(next);
    }
}
