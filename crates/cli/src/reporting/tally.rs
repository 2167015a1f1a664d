//! Counts by key, of which only so many are kept: when there are too many, those with the least become one.

use std::collections::HashMap;
use std::hash::Hash;

pub struct Tally<K> {
    counts: HashMap<K, u64>,
    most: usize,
    rest: u64,
}

impl<K: Hash + Eq + Clone + Ord> Tally<K> {
    /// For `most` keys, and up to twice as many for a while.
    pub fn new(most: usize) -> Tally<K> {
        Tally { counts: HashMap::new(), most, rest: 0 }
    }

    pub fn add(&mut self, key: K, count: u64) {
        *self.counts.entry(key).or_default() += count;
        if self.counts.len() > 2 * self.most {
            let sorted = self.sorted();
            let (keep, drop) = sorted.split_at(self.most);
            self.rest += drop.iter().map(|(_, count)| count).sum::<u64>();
            self.counts = keep.iter().cloned().collect();
        }
    }

    /// The largest first.
    pub fn sorted(&self) -> Vec<(K, u64)> {
        let mut sorted: Vec<(K, u64)> =
            self.counts.iter().map(|(key, count)| (key.clone(), *count)).collect();
        sorted.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        sorted
    }

    /// Those included whose keys are not known any more.
    pub fn total(&self) -> u64 {
        self.counts.values().sum::<u64>() + self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_most_is_kept_and_nothing_is_lost() {
        let mut tally = Tally::new(10);
        for n in 0..10_000u32 {
            tally.add(n, 1);
            tally.add(7, 1);
            tally.add(8, 2);
        }
        let sorted = tally.sorted();
        assert!(sorted.len() <= 20, "{}", sorted.len());
        assert_eq!(sorted[..2], [(8, 20_001), (7, 10_001)]);
        assert_eq!(tally.total(), 40_000);
        assert_eq!(tally.rest + sorted.iter().map(|(_, count)| count).sum::<u64>(), 40_000);
    }
}
