//! Where a CPU looks for its next cluster on a fragmented device: the scan base.
//!
//! ```text
//!   trunk (32 clusters, 64 MiB)     0                1                2
//!   a bit for each cluster          01000100…0001    00000000…0000    00100000…0100
//!                                        ▲ base                        ▲ base of another CPU
//!
//!   from the base upwards, to the end of the trunk; then
//!     shared          the next trunk; all CPUs have one base between them
//!     per-cpu         the next trunk; each CPU has its own base, random at the start
//!     per-cpu-trunk   a random trunk: CPUs that go upwards one behind the other would stay together for ever
//! ```
//!
//! A bit says that the cluster is on the list nonfull[0]: it holds single pages, and some were freed there.
//! The lists know these clusters by time, this map by place, so that a CPU goes through a region of its own
//! (or, with one base, all go through the device in one direction, as a disk wants it), and without the lock
//! of the lists. It is a shortcut and no source: whatever a scan finds is also on its list, and a scan that
//! finds nothing within a few trunks ends there. So nothing is stranded, and a scan never costs more than a
//! few words.
//!
//! # Invariants
//!
//! * A bit changes only under its cluster's lock, together with the cluster's list. So at a quiet point it is
//!   set ⇔ the cluster is on nonfull[0]; a scan reads it without a lock and looks again when it has the
//!   cluster.
//! * A base lies on the device. It is a hint: relaxed, and a CPU number beyond the table is folded into it.
//! * Random numbers come from the device's size and the CPU's number alone: a run can be repeated.
//!
//! What it does not do: lock clusters, serve folios of larger orders (they have the lists), or free and
//! virgin clusters, of which any one is as good as another.
//!
//! Kernel counterpart: `cluster_next_cpu` and `set_cluster_next` (5.8 to 6.13), whose scan looked at each
//! slot. The trunk had a lock of the swap cache; here locks are per cluster, and 64 MiB is kept as the
//! distance between CPUs.

use super::lazy::LazyArray;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{ClusterIndex, CpuId};

/// Clusters in a trunk of 64 MiB: as many as a word has bits.
const TRUNK: u32 = u32::BITS;
/// Trunks that one scan looks at before it leaves it to the lists.
const TRUNKS_PER_SCAN: u32 = 4;

/// One CPU's base, on a line of its own: it moves with every cluster.
#[repr(align(128))]
struct Base {
    /// The cluster at which the next scan starts.
    at: AtomicU32,
    random: AtomicU64,
    steps: AtomicU64,
    passed_by: AtomicU64,
}

/// Sums over all bases.
#[derive(Default)]
pub(super) struct ScanCounters {
    /// Words of the map looked at.
    pub(super) steps: u64,
    /// Clusters that another CPU held.
    pub(super) passed_by: u64,
}

/// What became of a cluster that a scan came to.
pub(super) enum Offer<T> {
    Taken(T),
    /// Another CPU holds it.
    Held,
    /// It is another CPU's current cluster, or it has left nonfull[0] since its bit was read.
    Declined,
}

pub(super) struct Scan {
    /// A word for each trunk.
    nonfull: LazyArray<AtomicU32>,
    /// All trunks that ever had a bit have lower numbers than this.
    trunks: AtomicU32,
    bases: Box<[Base]>,
    /// Leave a trunk for a random one.
    jumps: bool,
}

impl Scan {
    /// A map of `clusters` clusters, and `bases` bases: the only one starts at the beginning, others
    /// anywhere.
    pub(super) fn new(clusters: u32, bases: u32, jumps: bool) -> Scan {
        let base = |number: u32| {
            let random = AtomicU64::new(u64::from(clusters) << 32 | u64::from(number));
            let at = AtomicU32::new(if bases == 1 { 0 } else { below(clusters, &random) });
            Base { at, random, steps: AtomicU64::new(0), passed_by: AtomicU64::new(0) }
        };
        Scan {
            nonfull: LazyArray::new(clusters.div_ceil(TRUNK) as usize),
            trunks: AtomicU32::new(0),
            bases: (0..bases).map(base).collect(),
            jumps,
        }
    }

    /// The cluster has come to nonfull[0], or left it. The caller holds its lock.
    pub(super) fn mark(&self, cluster: ClusterIndex, nonfull: bool) {
        let (trunk, bit) = (cluster.0 / TRUNK, 1 << (cluster.0 % TRUNK));
        let word = self.nonfull.get_or_make(trunk as usize, |_| AtomicU32::new(0));
        if nonfull {
            // Release: whoever reads the bit (`word`) must also see that the cluster exists.
            word.fetch_or(bit, Ordering::Release);
            self.trunks.fetch_max(trunk + 1, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    pub(super) fn is_marked(&self, cluster: ClusterIndex) -> bool {
        self.word(cluster.0 / TRUNK) >> (cluster.0 % TRUNK) & 1 == 1
    }

    /// Offer `attempt` marked clusters from the CPU's base on, until it takes one; the base moves behind it.
    pub(super) fn find<T>(&self, cpu: CpuId, mut attempt: impl FnMut(ClusterIndex) -> Offer<T>) -> Option<T> {
        let trunks = self.trunks.load(Ordering::Relaxed);
        if trunks == 0 {
            return None;
        }
        let base = &self.bases[cpu.index() % self.bases.len()];
        // The base may lie in a part of the device that was not used yet.
        let mut at = base.at.load(Ordering::Relaxed) % (trunks * TRUNK);
        let (mut found, mut steps, mut passed_by) = (None, 0, 0);
        // One step more than there are trunks: the part of the first trunk below the base comes last.
        while found.is_none() && steps <= TRUNKS_PER_SCAN.min(trunks) {
            let trunk = at / TRUNK;
            let mut bits = self.word(trunk) & u32::MAX << (at % TRUNK);
            steps += 1;
            at = (trunk + 1) * TRUNK;
            while found.is_none() && bits != 0 {
                let cluster = trunk * TRUNK + bits.trailing_zeros();
                bits &= bits - 1;
                match attempt(ClusterIndex(cluster)) {
                    Offer::Taken(taken) => (found, at) = (Some(taken), cluster + 1),
                    Offer::Held => passed_by += 1,
                    Offer::Declined => {}
                }
            }
            if at.is_multiple_of(TRUNK) {
                at = TRUNK * if self.jumps { below(trunks, &base.random) } else { (trunk + 1) % trunks };
            }
        }
        base.at.store(at, Ordering::Relaxed);
        base.steps.fetch_add(u64::from(steps), Ordering::Relaxed);
        base.passed_by.fetch_add(passed_by, Ordering::Relaxed);
        found
    }

    pub(super) fn counters(&self) -> ScanCounters {
        self.bases.iter().fold(ScanCounters::default(), |sum, base| ScanCounters {
            steps: sum.steps + base.steps.load(Ordering::Relaxed),
            passed_by: sum.passed_by + base.passed_by.load(Ordering::Relaxed),
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.nonfull.bytes() + size_of_val::<[Base]>(&self.bases) as u64
    }

    fn word(&self, trunk: u32) -> u32 {
        self.nonfull.get(trunk as usize).map_or(0, |word| word.load(Ordering::Acquire))
    }
}

/// A random number below `n` (splitmix64, whose state is a counter: one atomic step).
fn below(n: u32, state: &AtomicU64) -> u32 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (((z >> 32) * u64::from(n)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: CpuId = CpuId(0);

    fn marked(trunks: u32, bases: u32, jumps: bool) -> Scan {
        let scan = Scan::new(trunks * TRUNK, bases, jumps);
        (0..trunks * TRUNK).for_each(|cluster| scan.mark(ClusterIndex(cluster), true));
        scan
    }

    /// Take what a scan of the CPU finds off the map, as an allocation does.
    fn take(scan: &Scan, cpu: CpuId) -> Option<u32> {
        scan.find(cpu, |cluster| {
            scan.mark(cluster, false);
            Offer::Taken(cluster.0)
        })
    }

    /// The trunks through which a CPU goes until it has seen `clusters` clusters.
    fn path(scan: &Scan, cpu: CpuId, clusters: u32) -> Vec<u32> {
        let mut trunks: Vec<u32> = (0..clusters).filter_map(|_| take(scan, cpu)).map(|c| c / TRUNK).collect();
        trunks.dedup();
        trunks
    }

    #[test]
    fn one_base_goes_upwards_from_the_beginning() {
        let scan = marked(3, 1, false);
        let found: Vec<_> = (0..96).map(|i| take(&scan, CpuId(i % 5)).unwrap()).collect();
        assert_eq!(found, (0..96).collect::<Vec<_>>(), "whichever CPU asks");
        assert_eq!(take(&scan, CPU), None);
    }

    #[test]
    fn bases_of_their_own_are_apart_and_go_upwards() {
        let paths: Vec<_> = (0..4).map(|cpu| path(&marked(64, 4, false), CpuId(cpu), 3 * TRUNK)).collect();
        for path in &paths {
            assert!(path.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 64), "{path:?}");
        }
        let mut starts: Vec<_> = paths.iter().map(|path| path[0]).collect();
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), 4, "{paths:?}");
    }

    #[test]
    fn a_trunk_is_left_for_a_random_one() {
        let path_of = |cpu| path(&marked(64, 4, true), CpuId(cpu), 8 * TRUNK);
        let path = path_of(0);
        assert!(path.len() >= 8);
        assert!(path.windows(2).any(|pair| pair[1] != (pair[0] + 1) % 64), "{path:?}");
        assert_ne!(path_of(1), path, "each CPU draws its own");
        assert_eq!(path_of(0), path, "a run can be repeated");
    }

    #[test]
    fn cpus_that_start_together_part_at_the_next_trunk() {
        let trunks_after = |jumps| {
            let scan = marked(64, 2, jumps);
            scan.bases.iter().for_each(|base| base.at.store(5 * TRUNK, Ordering::Relaxed));
            // Both use up trunk 5 between them, and then some of what follows.
            let found: Vec<_> = (0..2 * TRUNK).map(|i| take(&scan, CpuId(i % 2)).unwrap() / TRUNK).collect();
            let after = |cpu| found.iter().skip(cpu).step_by(2).find(|trunk| **trunk != 5).copied();
            (after(0), after(1))
        };
        assert_eq!(trunks_after(false), (Some(6), Some(6)), "they follow one another");
        let (first, second) = trunks_after(true);
        assert_ne!(first, second);
    }

    #[test]
    fn a_single_trunk_is_seen_as_a_whole_from_any_base() {
        for (bases, jumps) in [(1, false), (2, false), (2, true)] {
            for base in 0..TRUNK {
                for cluster in 0..TRUNK {
                    let scan = Scan::new(TRUNK, bases, jumps);
                    scan.mark(ClusterIndex(cluster), true);
                    scan.bases[0].at.store(base, Ordering::Relaxed);
                    assert_eq!(take(&scan, CPU), Some(cluster), "from {base}, jumps: {jumps}");
                    assert!(!scan.is_marked(ClusterIndex(cluster)));
                }
            }
        }
    }

    #[test]
    fn a_scan_is_short_and_what_is_held_is_passed_by() {
        let scan = marked(64, 1, false);
        assert_eq!(scan.find(CPU, |_| Offer::<()>::Held), None);
        let counters = scan.counters();
        assert_eq!((counters.steps, counters.passed_by), (5, 5 * u64::from(TRUNK)));
        assert_eq!(take(&scan, CPU), Some(5 * TRUNK), "the next one goes on from there");
        assert_eq!(scan.find(CPU, |_| Offer::<()>::Declined), None);
        assert_eq!(scan.counters().passed_by, counters.passed_by);
    }

    #[test]
    fn an_empty_map_costs_nothing() {
        let scan = Scan::new(1 << 22, 16, true);
        assert_eq!(take(&scan, CPU), None);
        assert_eq!(scan.counters().steps, 0);
        scan.mark(ClusterIndex(2), true);
        assert_eq!(take(&scan, CPU), Some(2), "bases beyond what was ever used are folded into it");
    }
}
