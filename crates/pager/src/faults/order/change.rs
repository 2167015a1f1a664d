//! One change of an address space, and which changes touch the same addresses.

/// A change of the address space, as an event tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Unmap { start: u64, end: u64 },
    Remap { from: u64, to: u64, len: u64 },
    Remove { start: u64, end: u64 },
}

impl Change {
    /// What it touches.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        match *self {
            Change::Unmap { start, end } | Change::Remove { start, end } => vec![(start, end)],
            Change::Remap { from, to, len } => vec![(from, from + len), (to, to + len)],
        }
    }
}

/// Numbers of the changes that touch the same addresses, directly or by way of others, each group in order.
pub fn grouped(changes: &[Change]) -> Vec<Vec<usize>> {
    let mut group: Vec<usize> = (0..changes.len()).collect();
    fn root(group: &mut [usize], mut n: usize) -> usize {
        while group[n] != n {
            group[n] = group[group[n]];
            n = group[n];
        }
        n
    }
    let mut ranges: Vec<(u64, u64, usize)> = changes
        .iter()
        .enumerate()
        .flat_map(|(n, c)| c.ranges().into_iter().map(move |(s, e)| (s, e, n)))
        .collect();
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
