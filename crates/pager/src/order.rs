//! In which order changes of an address space were made, where they may have been told in another one.
//!
//! The kernel queues an event after it has let go of the locks under which the change was made, so of two changes by two
//! threads the second may be told first. All events of which that can be true are here at once: whoever reads them reads on
//! until no change is under way. Until then nothing is filled and nothing is taken out either, so that what the page table
//! says of a page moves with the page, and the only question is when.
//!
//! *Moves* ([`in_order`]). It matters where memory has been moved (mremap) to where other memory was a moment ago: told in
//! the wrong order, the move comes first, and then the unmapping takes what was moved there. What is registered in the end
//! says which of the two came first.
//!
//! ```text
//!   thread A   munmap X ─ unlocked ──────────── (preempted) ─────────────▶ UNMAP X
//!   thread B             mremap Y to X ─▶ REMAP Y to X
//! ```
//!
//! *Forks* ([`Clusters`]). The child has its parent's memory as it was at one moment, and its page table must be that of
//! the same moment. Which changes came before is seen in the child itself: what is registered there. Changes that touch the
//! same addresses are a cluster; of one cluster the child has seen the first so many, and of each number it is known where
//! memory must be in the child, and where it cannot be:
//!
//! ```text
//!   cluster               one mremap tells UNMAP B, REMAP A to B, UNMAP A
//!   seen by the child     none: A and B are there        all: B is there, A is not
//! ```
//!
//! Where no number fits, or several that differ do, it is not known which bytes belong where: the pages in question must
//! end whoever touches them in the child. (A move onto other memory is such a case where the child has both places: it may
//! have been made by MREMAP_DONTUNMAP, which leaves its source mapped, and have come before the fork.)
//!
//! Dropped pages (MADV_DONTNEED) leave no trace in the child. They keep the place in which they were told: then a child of
//! a fork beside it has them or not, and either could be.

use crate::ranges::Ranges;

/// A change of the address space, as an event tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Unmap { start: u64, end: u64 },
    Remap { from: u64, to: u64, len: u64 },
    Remove { start: u64, end: u64 },
}

impl Change {
    fn ranges(&self) -> Vec<(u64, u64)> {
        match *self {
            Change::Unmap { start, end } | Change::Remove { start, end } => vec![(start, end)],
            Change::Remap { from, to, len } => vec![(from, from + len), (to, to + len)],
        }
    }
}

/// Put what freed a range before the REMAP that moved memory there, where it was told after it. `registered` says what is
/// registered now: if that is where the memory was moved to, it was not freed since.
///
/// What was told is believed where it leads to what is there. Memory that moves to and fro is told of many times in one
/// reading: then what left a place comes after what was moved there and before what is moved there next, and nothing is out
/// of order.
pub fn in_order(changes: &mut [Change], registered: impl Fn() -> Vec<(u64, u64)>) {
    if !changes.iter().any(|change| matches!(change, Change::Remap { .. })) {
        return;
    }
    let registered = registered();
    for numbers in grouped(changes) {
        let told: Vec<Change> = numbers.iter().map(|number| changes[*number]).collect();
        if !leads_to(&told, &registered) {
            let made = one_earlier(&told, &registered).unwrap_or_else(|| all_earlier(told, &registered));
            numbers.iter().zip(made).for_each(|(number, change)| changes[*number] = change);
        }
    }
}

/// After these changes, in this order, may this be registered? Memory that was moved is followed: where it was unmapped, or
/// has moved on, nothing is registered.
fn leads_to(changes: &[Change], registered: &[(u64, u64)]) -> bool {
    let (mut moved_there, mut left) = (Ranges::default(), Ranges::default());
    for change in changes {
        match *change {
            Change::Remap { from, to, len } => {
                leave(&mut moved_there, &mut left, from, from + len);
                left.remove(to, to + len);
                moved_there.insert(to, to + len);
            }
            Change::Unmap { start, end } => leave(&mut moved_there, &mut left, start, end),
            Change::Remove { .. } => {}
        }
    }
    !registered.iter().any(|(start, end)| left.intersects(*start, *end))
}

/// What was moved into this range is there no more.
fn leave(moved_there: &mut Ranges, left: &mut Ranges, start: u64, end: u64) {
    let were: Vec<(u64, u64)> = moved_there.iter().filter(|(from, to)| *from < end && start < *to).collect();
    were.iter().for_each(|(from, to)| left.insert(start.max(*from), end.min(*to)));
    moved_there.remove(start, end);
}

/// One of these was told too late.
fn one_earlier(told: &[Change], registered: &[(u64, u64)]) -> Option<Vec<Change>> {
    let pairs = (1..told.len()).flat_map(|late| (0..late).rev().map(move |early| (late, early)));
    pairs
        .filter(|(late, early)| made_room(&told[*late], &told[*early]).is_some())
        .map(|(late, early)| {
            let mut made = told.to_vec();
            let freed = made.remove(late);
            made.insert(early, freed);
            made
        })
        .find(|made| leads_to(made, registered))
}

/// Where `other` may have freed what `moved` was moved to.
fn made_room(other: &Change, moved: &Change) -> Option<(u64, u64)> {
    let Change::Remap { to, len, .. } = *moved else { return None };
    let (start, end) = match *other {
        Change::Unmap { start, end } => (start, end),
        Change::Remap { from, len, .. } => (from, from + len),
        Change::Remove { .. } => return None,
    };
    Some((start.max(to), end.min(to + len))).filter(|(start, end)| start < end)
}

/// Several were told too late: each of them comes before the move to what it freed, if that is where something is.
fn all_earlier(told: Vec<Change>, registered: &[(u64, u64)]) -> Vec<Change> {
    let is_there = |(start, end): (u64, u64)| registered.iter().any(|(from, to)| *from < end && start < *to);
    let mut told: Vec<(usize, Change)> = told.into_iter().enumerate().collect();
    let mut at = 0;
    while at < told.len() {
        let (number, moved) = told[at];
        let is_late = |(other, change): &(usize, Change)| *other > number && made_room(change, &moved).is_some_and(is_there);
        match told[at + 1..].iter().position(is_late) {
            // Looked at next, for it may be a REMAP that was told too early itself. What is put here has been told later
            // than what was here, so this ends.
            Some(after) => {
                let freed = told.remove(at + 1 + after);
                told.insert(at, freed);
            }
            None => at += 1,
        }
    }
    told.into_iter().map(|(_, change)| change).collect()
}

/// More changes in one cluster are not thought through: each number of them would have to be compared.
const CLUSTER_MAX: usize = 48;

/// What is asked about a fork.
pub trait Look {
    /// Of a range before all the changes: pages that were certainly registered (those of which the page table knows
    /// something), as offsets. A few are enough, unless some of it may be left out of children (MADV_DONTFORK).
    fn known(&self, start: u64, end: u64) -> Vec<u64>;
    /// Is this page registered in the child? None: not to be found out, for the child itself is changing.
    fn child_has(&self, addr: u64) -> Option<bool>;
}

/// Memory of which it is not known where it is in the child: where it was before all the changes, and where it may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Doubt {
    pub start: u64,
    pub len: u64,
    pub places: Vec<u64>,
}

/// What a child has seen of the changes: for each of them whether, and what is in doubt.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    pub changes: Vec<bool>,
    pub doubts: Vec<Doubt>,
    /// Too much has changed: nothing that the child has not in memory can be trusted.
    pub hopeless: bool,
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

pub struct Clusters {
    clusters: Vec<Cluster>,
    total: usize,
}

impl Clusters {
    pub fn of(changes: &[Change], look: &impl Look) -> Clusters {
        let mut clusters: Vec<Cluster> = grouped(changes)
            .into_iter()
            .map(|numbers| Cluster { changes: numbers.into_iter().map(|n| (n, changes[n])).collect(), pieces: Vec::new() })
            .collect();
        clusters.iter_mut().for_each(|cluster| cluster.follow(look));
        Clusters { clusters, total: changes.len() }
    }

    /// What the child of a fork has seen that was told after the first `told` changes.
    pub fn seen_by(&self, told: usize, look: &impl Look) -> Seen {
        let mut seen = Seen { changes: vec![false; self.total], ..Seen::default() };
        for cluster in &self.clusters {
            let told_here = cluster.changes.iter().filter(|(number, _)| *number < told).count();
            let number = cluster.seen_by(told_here, look).unwrap_or_else(|| {
                seen.doubts.extend(cluster.doubts());
                seen.hopeless |= cluster.is_too_long();
                told_here
            });
            cluster.changes[..number].iter().for_each(|(n, _)| seen.changes[*n] = true);
        }
        seen
    }

    /// Several forks in the order in which they were made: who was later has seen more. Where that does not fit, the later
    /// one has not seen what it seemed to, and all that has changed is in doubt.
    pub fn sort<T>(&self, forks: &mut [(Seen, T)]) {
        forks.sort_by_key(|(seen, _)| seen.changes.iter().filter(|seen| **seen).count());
        let mut before = vec![false; self.total];
        for (seen, _) in forks {
            if before.iter().zip(&seen.changes).any(|(before, now)| *before && !now) {
                seen.changes.iter_mut().zip(&before).for_each(|(now, before)| *now |= before);
                seen.doubts = self.clusters.iter().flat_map(Cluster::doubts).collect();
            }
            before.clone_from(&seen.changes);
        }
    }
}

/// Numbers of the changes that touch the same addresses, directly or by way of others, each group in order.
fn grouped(changes: &[Change]) -> Vec<Vec<usize>> {
    let mut group: Vec<usize> = (0..changes.len()).collect();
    fn root(group: &mut [usize], mut n: usize) -> usize {
        while group[n] != n {
            group[n] = group[group[n]];
            n = group[n];
        }
        n
    }
    let mut ranges: Vec<(u64, u64, usize)> =
        changes.iter().enumerate().flat_map(|(n, c)| c.ranges().into_iter().map(move |(s, e)| (s, e, n))).collect();
    ranges.sort_unstable();
    let mut open: Option<(u64, usize)> = None;
    for (start, end, n) in ranges {
        open = match open {
            Some((until, other)) if start < until => {
                let (a, b) = (root(&mut group, other), root(&mut group, n));
                group[a.max(b)] = a.min(b);
                Some((until.max(end), n))
            }
            _ => Some((end, n)),
        };
    }
    let mut groups: std::collections::BTreeMap<usize, Vec<usize>> = Default::default();
    for n in 0..changes.len() {
        groups.entry(root(&mut group, n)).or_default().push(n);
    }
    groups.into_values().collect()
}

impl Cluster {
    fn is_too_long(&self) -> bool {
        self.changes.len() > CLUSTER_MAX
    }

    /// Find the paths of all memory that the changes touch.
    fn follow(&mut self, look: &impl Look) {
        let mut ranges: Vec<(u64, u64)> = self.changes.iter().flat_map(|(_, change)| change.ranges()).collect();
        ranges.sort_unstable();
        let mut covered = 0;
        for (start, end) in ranges {
            let start = start.max(covered);
            if start < end {
                self.pieces.push(Piece { len: end - start, path: vec![Some(start)], known: Vec::new(), open: true });
                covered = end;
            }
        }
        if self.is_too_long() {
            return;
        }
        for at in 0..self.changes.len() {
            let change = self.changes[at].1;
            change.ranges().into_iter().for_each(|(start, end)| [start, end].into_iter().for_each(|cut| self.cut(cut)));
            self.pieces.iter_mut().for_each(|piece| piece.apply(change));
        }
        for piece in &mut self.pieces {
            let start = piece.start();
            piece.known.extend(look.known(start, start + piece.len));
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
                more.push(Piece { len: piece.len - offset, path, known: piece.known.clone(), open: piece.open });
                piece.len = offset;
            }
        }
        self.pieces.extend(more);
    }

    /// How many of the changes the child has seen. None: not known.
    fn seen_by(&self, told: usize, look: &impl Look) -> Option<usize> {
        if self.is_too_long() {
            return None;
        }
        if self.pieces.iter().all(|piece| piece.known.is_empty()) {
            return Some(told);
        }
        let mut fitting = Vec::new();
        for number in 0..=self.changes.len() {
            if self.fits(number, look)? {
                fitting.push(number);
            }
        }
        let same = |a: usize, b: usize| {
            self.pieces.iter().filter(|piece| !piece.known.is_empty()).all(|piece| piece.path[a] == piece.path[b])
        };
        let best = fitting.iter().copied().min_by_key(|number| number.abs_diff(told))?;
        fitting.iter().all(|number| same(*number, best)).then_some(best)
    }

    /// Is the child as it must be if it has seen so many changes? None: it cannot be found out.
    fn fits(&self, number: usize, look: &impl Look) -> Option<bool> {
        let has_any = |start: u64, known: &[u64]| -> Option<bool> {
            for offset in known {
                if look.child_has(start + offset)? {
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
                    if look.child_has(at + offset)? {
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
        last.unwrap_or_else(|| self.pieces.iter().filter(at_first).any(|piece| piece.open || !piece.known.is_empty()))
    }

    fn doubts(&self) -> Vec<Doubt> {
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
                // What moves is registered, whatever is known of it.
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

    fn remap(from: u64, to: u64) -> Change {
        Change::Remap { from, to, len: 10 }
    }
    fn unmap(start: u64, end: u64) -> Change {
        Change::Unmap { start, end }
    }

    #[test]
    fn what_freed_a_range_comes_before_what_moved_there() {
                let sorted = |mut changes: Vec<Change>, registered: &[(u64, u64)]| {
            in_order(&mut changes, || registered.to_vec());
            names(&changes)
        };
        // What was moved to 100 is there: the unmapping was before.
        assert_eq!(sorted(vec![remap(20, 100), unmap(95, 105)], &[(100, 110)]), ["-95..105", "20>100"]);
        // It is not: it was unmapped, or moved on.
        assert_eq!(sorted(vec![remap(20, 100), unmap(100, 110)], &[(0, 20)]), ["20>100", "-100..110"]);
        assert_eq!(sorted(vec![remap(20, 100), remap(100, 300)], &[(300, 310)]), ["20>100", "100>300"]);
        // Two moves, the first of which made room for the second.
        assert_eq!(sorted(vec![remap(20, 100), remap(100, 300)], &[(100, 110), (300, 310)]), ["100>300", "20>100"]);
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
            in_order(&mut changes, || vec![(at, at + 10), (500, 600)]);
            assert_eq!(changes, told);
        }
        // Beside it another one, of which something was told too late.
        let mut changes = cycle(3);
        changes.insert(1, Change::Remap { from: 300, to: 500, len: 10 });
        changes.push(Change::Unmap { start: 500, end: 510 });
        in_order(&mut changes, || vec![(100, 110), (500, 510)]);
        let of = |wanted: std::ops::Range<u64>| -> Vec<Change> {
            changes.iter().copied().filter(|change| wanted.contains(&change.ranges()[0].0)).collect()
        };
        assert_eq!(of(0..200), cycle(3));
        assert!(matches!(of(200..600)[..], [Change::Unmap { .. }, Change::Remap { .. }]));
    }

    const SPACE: u64 = 60;

    /// An address space of a few pages: what is known of each, and which are registered.
    #[derive(Clone, PartialEq, Debug)]
    struct Model {
        words: Vec<Option<u64>>,
        registered: Vec<bool>,
    }

    impl Model {
        fn any(random: &mut impl FnMut(u64) -> u64) -> Model {
            let mut model = Model { words: vec![None; SPACE as usize], registered: vec![false; SPACE as usize] };
            for run in 0..SPACE / 5 {
                let registered = random(3) > 0;
                for page in run * 5..run * 5 + 5 {
                    model.registered[page as usize] = registered;
                    model.words[page as usize] = (registered && random(3) > 0).then_some(page);
                }
            }
            model
        }

        fn apply(&mut self, change: Change, registered: bool) {
            match change {
                Change::Unmap { start, end } | Change::Remove { start, end } => {
                    for page in start as usize..end as usize {
                        self.words[page] = None;
                        self.registered[page] &= !(registered && matches!(change, Change::Unmap { .. }));
                    }
                }
                Change::Remap { from, to, len } => {
                    for offset in 0..len as usize {
                        let (from, to) = (from as usize + offset, to as usize + offset);
                        self.words[to] = self.words[from].take();
                        self.registered[to] = self.registered[to] && !registered || std::mem::take(&mut self.registered[from]);
                    }
                }
            }
        }

        /// What one call does: its changes as they are told.
        fn call(&mut self, random: &mut impl FnMut(u64) -> u64) -> Vec<Change> {
            let at = |n: u64| n * 5;
            if random(3) == 0 {
                let start = random(SPACE - 6);
                let change = unmap(start, start + 1 + random(12).min(SPACE - start - 1));
                self.apply(change, true);
                return vec![change];
            }
            let (from, to) = (at(random(12)), at(random(12)));
            if from == to || !(from..from + 5).all(|page| self.registered[page as usize]) {
                return Vec::new();
            }
            let keeps = random(20) == 0;
            let mut changes = Vec::new();
            if (to..to + 5).any(|page| self.registered[page as usize]) {
                changes.push(unmap(to, to + 5));
            }
            changes.push(Change::Remap { from, to, len: 5 });
            changes.iter().for_each(|change| self.apply(*change, true));
            (from..from + 5).for_each(|page| self.registered[page as usize] |= keeps);
            changes.extend((!keeps).then_some(unmap(from, from + 5)));
            changes
        }
    }

    struct ModelLook<'a> {
        before: &'a Model,
        child: &'a Model,
        most: usize,
    }

    impl Look for ModelLook<'_> {
        fn known(&self, start: u64, end: u64) -> Vec<u64> {
            (start..end).filter(|p| self.before.words[*p as usize].is_some()).map(|p| p - start).take(self.most).collect()
        }
        fn child_has(&self, addr: u64) -> Option<bool> {
            Some(self.child.registered[addr as usize])
        }
    }

    /// Calls in any order and a fork among them that is told at any time: the child's table is what its memory is, but for
    /// what is in doubt.
    #[test]
    fn a_child_has_its_table_or_a_doubt() {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) % below
        };
        let (mut certain, mut doubtful) = (0, 0);
        for _ in 0..30_000 {
            let before = Model::any(&mut random);
            let (mut now, mut changes) = (before.clone(), Vec::new());
            let (calls, forked_after) = (1 + random(4), random(5));
            let mut child = before.clone();
            for call in 0..calls {
                if call == forked_after {
                    child = now.clone();
                }
                changes.extend(now.call(&mut random));
            }
            if forked_after >= calls {
                child = now.clone();
            }
            let look = ModelLook { before: &before, child: &child, most: 1 + random(9) as usize };
            let told = random(changes.len() as u64 + 1) as usize;
            let seen = Clusters::of(&changes, &look).seen_by(told, &look);
            let mut table = before.clone();
            let seen_changes = changes.iter().zip(&seen.changes).filter(|(_, seen)| **seen);
            seen_changes.for_each(|(change, _)| table.apply(*change, false));
            let lost = |page: u64| {
                let of = |doubt: &Doubt| (doubt.start..doubt.start + doubt.len).any(|origin| {
                    let known = before.words[origin as usize].is_some();
                    known && doubt.places.iter().any(|place| place + (origin - doubt.start) == page)
                });
                seen.doubts.iter().any(of)
            };
            for page in (0..SPACE).filter(|page| !lost(*page)) {
                let (is, should) = (table.words[page as usize], child.words[page as usize]);
                assert_eq!(is, should, "page {page}: {changes:?}, fork after call {forked_after}, seen {seen:?}, {before:?}");
            }
            if seen.doubts.is_empty() { certain += 1 } else { doubtful += 1 }
        }
        assert!(certain > 3 * doubtful, "{certain} certain, {doubtful} in doubt");
    }

    #[test]
    fn what_a_child_has_tells_what_it_has_seen() {
        let model = |registered: &[u64]| Model {
            words: (0..SPACE).map(|page| registered.contains(&(page / 10)).then_some(page)).collect(),
            registered: (0..SPACE).map(|page| registered.contains(&(page / 10))).collect(),
        };
        let seen = |changes: &[Change], told, before: &[u64], child: &[u64]| {
            let (before, child) = (model(before), model(child));
            let look = ModelLook { before: &before, child: &child, most: 1 };
            let seen = Clusters::of(changes, &look).seen_by(told, &look);
            (seen.changes, seen.doubts.len())
        };
        let away = |from, to| [remap(from, to), unmap(from, from + 10)];
        // Told after the fork, and before it; made before the fork, and after it.
        assert_eq!(seen(&[unmap(10, 20)], 0, &[1], &[]), (vec![true], 0));
        assert_eq!(seen(&[unmap(10, 20)], 1, &[1], &[1]), (vec![false], 0));
        assert_eq!(seen(&away(10, 30), 0, &[1], &[3]).1, 0);
        assert!(seen(&away(10, 30), 0, &[1], &[3]).0[0]);
        assert_eq!(seen(&away(10, 30), 2, &[1], &[1]), (vec![false, false], 0));
        // Of two that do not touch each other the child has seen the second only.
        assert_eq!(seen(&[unmap(10, 20), remap(20, 40)], 0, &[1, 2], &[1, 4]), (vec![false, true], 0));
        // Moved to where other memory was.
        let onto = [unmap(30, 40), remap(10, 30), unmap(10, 20)];
        assert_eq!(seen(&onto, 3, &[1, 3], &[3]), (vec![true; 3], 0));
        // Both are there: the source may have been left, so it cannot be said, and both places are in doubt.
        assert_eq!(seen(&onto, 1, &[1, 3], &[1, 3]).1, 2);
        // Moved to where nothing was, and the source left.
        assert_eq!(seen(&[remap(10, 30)], 0, &[1], &[1, 3]), (vec![true], 0));
        // Back and forth: the first and the last are the same.
        let both = [away(10, 30), away(30, 10)].concat();
        assert_eq!(seen(&both, 4, &[1], &[1]), (vec![true; 4], 0));
        assert_eq!(seen(&both, 2, &[1], &[3]), (vec![true, true, false, false], 0));
        // Dropped pages keep the place in which they were told.
        let remove = Change::Remove { start: 10, end: 20 };
        assert_eq!(seen(&[remove], 0, &[1], &[1]), (vec![false], 0));
        assert_eq!(seen(&[remove], 1, &[1], &[1]), (vec![true], 0));
    }

    #[test]
    fn of_two_forks_the_later_has_seen_more() {
        let clusters = Clusters { clusters: Vec::new(), total: 3 };
        let seen = |changes: [bool; 3]| Seen { changes: changes.to_vec(), ..Seen::default() };
        let mut forks = vec![(seen([true, true, false]), 'b'), (seen([false, true, false]), 'a'), (seen([true; 3]), 'c')];
        clusters.sort(&mut forks);
        assert_eq!(forks.iter().map(|(_, name)| *name).collect::<String>(), "abc");
        // The second has not seen what the first had: there is no such order.
        let mut forks = vec![(seen([true, false, false]), 'a'), (seen([false, true, true]), 'b')];
        clusters.sort(&mut forks);
        assert_eq!(forks[1].0.changes, [true, true, true]);
    }

    #[test]
    fn many_changes_in_one_place_are_hopeless() {
        let model = Model { words: vec![Some(1); SPACE as usize], registered: vec![true; SPACE as usize] };
        let look = ModelLook { before: &model, child: &model, most: 1 };
        let changes: Vec<Change> = (0..=CLUSTER_MAX as u64).map(|n| unmap(n % 5, 20)).collect();
        assert!(Clusters::of(&changes, &look).seen_by(0, &look).hopeless);
        assert!(!Clusters::of(&changes[1..], &look).seen_by(0, &look).hopeless);
    }
}
