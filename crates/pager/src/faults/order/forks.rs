//! Forks: which changes the child of a fork has seen.
//!
//! The child has its parent's memory as it was at one moment, and its page table must be that of the same
//! moment. Which changes came before is seen in the child itself: what is registered there. Each cluster of
//! changes is asked by itself (cluster.rs). If a cluster has no answer, its pages are in doubt: a touch of
//! them in the child must end it.
//!
//! Dropped pages (MADV_DONTNEED) leave no trace in the child. They keep the place in which they were told:
//! then a child of a fork beside it has them or not, and either could be.

use crate::faults::order::change::{Change, grouped};
use crate::faults::order::cluster::{Cluster, Doubt, Evidence};

/// What a child has seen of the changes: for each of them whether, and what is in doubt.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SeenByChild {
    pub changes: Vec<bool>,
    pub doubts: Vec<Doubt>,
    /// Too much has changed: nothing that the child has not in memory can be trusted.
    pub hopeless: bool,
}

/// The changes of one reading, by what they touch.
pub struct Clusters {
    clusters: Vec<Cluster>,
    total: usize,
}

impl Clusters {
    pub fn of(changes: &[Change], evidence: &impl Evidence) -> Clusters {
        let numbered = |numbers: Vec<usize>| numbers.into_iter().map(|n| (n, changes[n])).collect();
        let cluster = |numbers| Cluster::of(numbered(numbers), evidence);
        Clusters { clusters: grouped(changes).into_iter().map(cluster).collect(), total: changes.len() }
    }

    /// The changes after the first `told` ones that the child of a fork has seen.
    pub fn seen_by(&self, told: usize, evidence: &impl Evidence) -> SeenByChild {
        let mut seen = SeenByChild { changes: vec![false; self.total], ..SeenByChild::default() };
        for cluster in &self.clusters {
            let told_here = cluster.told_before(told);
            let count = cluster.seen_by(told_here, evidence).unwrap_or_else(|| {
                seen.doubts.extend(cluster.doubts());
                seen.hopeless |= cluster.is_too_long();
                told_here
            });
            cluster.first_numbers(count).for_each(|number| seen.changes[number] = true);
        }
        seen
    }

    /// Several forks in the order in which they were made: who was later has seen more. If that does not fit,
    /// the later one has not seen what it seemed to, and all that has changed is in doubt.
    pub fn sort_forks<T>(&self, forks: &mut [(SeenByChild, T)]) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::order::cluster::CLUSTER_MAX;

    fn remap(from: u64, to: u64) -> Change {
        Change::Remap { from, to, len: 10 }
    }
    fn unmap(start: u64, end: u64) -> Change {
        Change::Unmap { start, end }
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
            let mut model =
                Model { words: vec![None; SPACE as usize], registered: vec![false; SPACE as usize] };
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
                        self.registered[to] =
                            self.registered[to] && !registered || std::mem::take(&mut self.registered[from]);
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

    struct ModelEvidence<'a> {
        before: &'a Model,
        child: &'a Model,
        most: usize,
    }

    impl Evidence for ModelEvidence<'_> {
        fn known(&self, start: u64, end: u64) -> Vec<u64> {
            (start..end)
                .filter(|p| self.before.words[*p as usize].is_some())
                .map(|p| p - start)
                .take(self.most)
                .collect()
        }
        fn child_has(&self, addr: u64) -> Option<bool> {
            Some(self.child.registered[addr as usize])
        }
    }

    /// Calls in any order and a fork among them that is told at any time: the child's table is what its
    /// memory is, but for what is in doubt.
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
            let evidence = ModelEvidence { before: &before, child: &child, most: 1 + random(9) as usize };
            let told = random(changes.len() as u64 + 1) as usize;
            let seen = Clusters::of(&changes, &evidence).seen_by(told, &evidence);
            let mut table = before.clone();
            let seen_changes = changes.iter().zip(&seen.changes).filter(|(_, seen)| **seen);
            seen_changes.for_each(|(change, _)| table.apply(*change, false));
            let lost = |page: u64| {
                let of = |doubt: &Doubt| {
                    (doubt.start..doubt.start + doubt.len).any(|origin| {
                        let known = before.words[origin as usize].is_some();
                        known && doubt.places.iter().any(|place| place + (origin - doubt.start) == page)
                    })
                };
                seen.doubts.iter().any(of)
            };
            for page in (0..SPACE).filter(|page| !lost(*page)) {
                let (is, should) = (table.words[page as usize], child.words[page as usize]);
                assert_eq!(
                    is, should,
                    "page {page}: {changes:?}, fork after call {forked_after}, seen {seen:?}, {before:?}"
                );
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
            let evidence = ModelEvidence { before: &before, child: &child, most: 1 };
            let seen = Clusters::of(changes, &evidence).seen_by(told, &evidence);
            (seen.changes, seen.doubts.len())
        };
        let away = |from, to| [remap(from, to), unmap(from, from + 10)];
        // Told after the fork, and before it; made before the fork, and after it.
        assert_eq!(seen(&[unmap(10, 20)], 0, &[1], &[]), (vec![true], 0));
        assert_eq!(seen(&[unmap(10, 20)], 1, &[1], &[1]), (vec![false], 0));
        assert_eq!(seen(&away(10, 30), 0, &[1], &[3]).1, 0);
        assert!(seen(&away(10, 30), 0, &[1], &[3]).0[0]);
        assert_eq!(seen(&away(10, 30), 2, &[1], &[1]), (vec![false, false], 0));
        // The child has seen only the second of two changes that do not touch each other.
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
        let seen = |changes: [bool; 3]| SeenByChild { changes: changes.to_vec(), ..SeenByChild::default() };
        let mut forks =
            vec![(seen([true, true, false]), 'b'), (seen([false, true, false]), 'a'), (seen([true; 3]), 'c')];
        clusters.sort_forks(&mut forks);
        assert_eq!(forks.iter().map(|(_, name)| *name).collect::<String>(), "abc");
        // The second has not seen what the first had: there is no such order.
        let mut forks = vec![(seen([true, false, false]), 'a'), (seen([false, true, true]), 'b')];
        clusters.sort_forks(&mut forks);
        assert_eq!(forks[1].0.changes, [true, true, true]);
    }

    #[test]
    fn many_changes_in_one_place_are_hopeless() {
        let model = Model { words: vec![Some(1); SPACE as usize], registered: vec![true; SPACE as usize] };
        let evidence = ModelEvidence { before: &model, child: &model, most: 1 };
        let changes: Vec<Change> = (0..=CLUSTER_MAX as u64).map(|n| unmap(n % 5, 20)).collect();
        assert!(Clusters::of(&changes, &evidence).seen_by(0, &evidence).hopeless);
        assert!(!Clusters::of(&changes[1..], &evidence).seen_by(0, &evidence).hopeless);
    }
}
