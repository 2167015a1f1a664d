//! Where there is room in clusters of other orders: for folios a free block, for single pages a hole.
//!
//! ```text
//!   cluster 7   ████████████████ ················ ████·███████████ …      · free
//!                                └─ block of 64 KiB    └─ hole
//!
//!   trunk (32 clusters)   hole       00000000…10000000     a bit for each cluster
//!                         order 4    00000000…10000000     the largest block that is free in it
//!                         …
//!                         order 9    00000000…00000000
//! ```
//!
//! A cluster belongs to the order of its first allocation, and most never become empty again. So what is free
//! in it would be lost to all other orders, and a device that was filled with large folios would have no room
//! for small ones, nor the other way round. Whoever finds no cluster of his own order looks here, and single
//! pages of a pool sooner (`Slots::packing`): a folio takes the smallest block that is large enough, and a
//! single page takes a hole, before it breaks a block of 64 KiB.
//!
//! # Invariants
//!
//! * A cluster's marks change only under its lock, together with its bitmap; an empty one has none. A search
//!   reads them without a lock, and looks again when it has the cluster.
//! * Blocks below 64 KiB are not marked: such an order is served from larger ones. Holes are marked only in
//!   clusters of large orders; those of single pages are found by their list.
//! * `may_have` holds the mark of every cluster. It may hold others, until a search finds none.
//!
//! What it does not do: lock clusters, or know those that are empty (they are on the list of free ones).

use super::lazy::LazyArray;
use crate::sync::{AtomicU32, Ordering};
use crate::tuning::AUTO_ORDER_MIN;
use crate::units::{ClusterIndex, MAX_ORDER, Order};

/// Clusters in a trunk: as many as a word has bits.
const TRUNK: u32 = u32::BITS;
const SMALLEST: u8 = AUTO_ORDER_MIN.0;
/// A word for holes, and one for each order.
const WORDS: usize = (MAX_ORDER - SMALLEST) as usize + 2;

/// What there is in a cluster: bit 0 a hole, the others the order of its largest free block.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Marks(u8);

impl Marks {
    pub(super) const NONE: Marks = Marks(0);
    pub(super) const HOLE: Marks = Marks(1);

    pub(super) fn of_block(largest: Order) -> Marks {
        debug_assert!(largest >= AUTO_ORDER_MIN);
        Marks(2 << (largest.0 - SMALLEST))
    }
    pub(super) fn and(self, other: Marks) -> Marks {
        Marks(self.0 | other.0)
    }
    pub(super) fn has_hole(self) -> bool {
        self.0 & Self::HOLE.0 != 0
    }
    /// The marks of clusters in which a search for this order may find something, the best first.
    fn that_serve(order: Order) -> impl Iterator<Item = Marks> {
        let at_least = if order == Order::ZERO { MAX_ORDER + 1 } else { order.0.max(SMALLEST) };
        let hole = (order == Order::ZERO).then_some(Marks::HOLE);
        hole.into_iter().chain((at_least..=MAX_ORDER).map(|order| Marks::of_block(Order(order))))
    }
}

/// The marks of a trunk, a word for each kind.
struct Trunk([AtomicU32; WORDS]);

pub(super) struct Room {
    trunks: LazyArray<Trunk>,
    /// All trunks that ever had a mark have lower numbers than this.
    used: AtomicU32,
    /// Kinds of marks that some cluster may have: few searches are in vain.
    may_have: AtomicU32,
    /// The trunk in which each kind was found last: a hint.
    found_in: [AtomicU32; WORDS],
}

impl Room {
    pub(super) fn new(clusters: u32) -> Room {
        Room {
            trunks: LazyArray::new(clusters.div_ceil(TRUNK) as usize),
            used: AtomicU32::new(0),
            may_have: AtomicU32::new(0),
            found_in: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// The cluster had these marks, and now has those. The caller holds its lock.
    pub(super) fn mark(&self, cluster: ClusterIndex, old: Marks, new: Marks) {
        if old == new {
            return;
        }
        let (trunk, bit) = (cluster.0 / TRUNK, 1 << (cluster.0 % TRUNK));
        let new_trunk = |_| Trunk(std::array::from_fn(|_| AtomicU32::new(0)));
        let Trunk(words) = self.trunks.get_or_make(trunk as usize, new_trunk);
        for (kind, word) in words.iter().enumerate() {
            match (old.0 >> kind & 1, new.0 >> kind & 1) {
                (1, 0) => _ = word.fetch_and(!bit, Ordering::SeqCst),
                // A thread that reads the bit must also see that the cluster exists.
                (0, 1) => _ = word.fetch_or(bit, Ordering::SeqCst),
                _ => {}
            }
        }
        if self.used.load(Ordering::SeqCst) <= trunk {
            self.used.fetch_max(trunk + 1, Ordering::SeqCst);
        }
        // After the words: a search that clears a kind here looks through the words once more.
        if u32::from(new.0) & !self.may_have.load(Ordering::SeqCst) != 0 {
            self.may_have.fetch_or(new.0.into(), Ordering::SeqCst);
        }
    }

    /// May a search for this order find something?
    pub(super) fn may_serve(&self, order: Order) -> bool {
        Marks::that_serve(order).any(|mark| self.may_have(mark))
    }

    /// Offer `attempt` the clusters that may serve the order, the best first, until it takes one.
    pub(super) fn find<T>(
        &self,
        order: Order,
        mut attempt: impl FnMut(ClusterIndex) -> Option<T>,
    ) -> Option<T> {
        Marks::that_serve(order).find_map(|mark| self.find_with(mark, &mut attempt))
    }

    /// As `find`, of clusters with holes.
    pub(super) fn find_hole<T>(&self, attempt: impl FnMut(ClusterIndex) -> Option<T>) -> Option<T> {
        self.find_with(Marks::HOLE, attempt)
    }

    fn find_with<T>(&self, mark: Marks, mut attempt: impl FnMut(ClusterIndex) -> Option<T>) -> Option<T> {
        if !self.may_have(mark) {
            return None;
        }
        let (found, none_has_it) = self.find_marked(mark, &mut attempt);
        if none_has_it {
            self.may_have.fetch_and(!u32::from(mark.0), Ordering::SeqCst);
            // A cluster may have been marked since the search came by.
            if !self.find_marked(mark, &mut |_| None::<()>).1 {
                self.may_have.fetch_or(mark.0.into(), Ordering::SeqCst);
            }
        }
        found
    }

    /// Looks in the clusters with this mark, from the trunk on where one was found last; and whether there
    /// are no such clusters.
    fn find_marked<T>(
        &self,
        mark: Marks,
        attempt: &mut impl FnMut(ClusterIndex) -> Option<T>,
    ) -> (Option<T>, bool) {
        let (kind, trunks) = (mark.0.trailing_zeros() as usize, self.used.load(Ordering::SeqCst));
        let start = self.found_in[kind].load(Ordering::Relaxed);
        let mut none_has_it = true;
        for trunk in (0..trunks).map(|n| (start + n) % trunks) {
            let mut bits = self.word(trunk, kind);
            none_has_it &= bits == 0;
            while bits != 0 {
                let cluster = ClusterIndex(trunk * TRUNK + bits.trailing_zeros());
                bits &= bits - 1;
                if let Some(found) = attempt(cluster) {
                    if trunk != start {
                        self.found_in[kind].store(trunk, Ordering::Relaxed);
                    }
                    return (Some(found), false);
                }
            }
        }
        (None, none_has_it)
    }

    /// The marks of a cluster, for the checker.
    pub(super) fn marks_of(&self, cluster: ClusterIndex) -> Marks {
        let is_marked = |kind: &usize| self.word(cluster.0 / TRUNK, *kind) >> (cluster.0 % TRUNK) & 1 == 1;
        Marks((0..WORDS).filter(is_marked).fold(0, |marks, kind| marks | 1 << kind))
    }

    /// May there be clusters with each of these marks?
    pub(super) fn may_have(&self, marks: Marks) -> bool {
        u32::from(marks.0) & !self.may_have.load(Ordering::SeqCst) == 0
    }

    pub(super) fn bytes(&self) -> u64 {
        self.trunks.bytes()
    }

    fn word(&self, trunk: u32, kind: usize) -> u32 {
        self.trunks.get(trunk as usize).map_or(0, |Trunk(words)| words[kind].load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(room: &Room, order: u8) -> Vec<u32> {
        let mut met = Vec::new();
        let none = room.find(Order(order), |cluster| {
            met.push(cluster.0);
            None::<()>
        });
        assert_eq!(none, None);
        met
    }

    #[test]
    fn the_smallest_block_that_is_large_enough_comes_first() {
        let room = Room::new(3 * TRUNK);
        let block = |order| Marks::of_block(Order(order));
        for (cluster, marks) in
            [(3, block(9)), (40, block(5)), (70, block(4)), (7, block(6).and(Marks::HOLE)), (8, Marks::HOLE)]
        {
            room.mark(ClusterIndex(cluster), Marks::NONE, marks);
            assert_eq!(room.marks_of(ClusterIndex(cluster)), marks);
        }
        assert_eq!(found(&room, 4), [70, 40, 7, 3]);
        assert_eq!(found(&room, 1), [70, 40, 7, 3], "blocks of 64 KiB serve smaller orders");
        assert_eq!(found(&room, 6), [7, 3]);
        assert_eq!(found(&room, 0), [7, 8], "single pages take holes");
        room.mark(ClusterIndex(7), block(6).and(Marks::HOLE), Marks::HOLE);
        assert_eq!(found(&room, 6), [3]);
    }

    #[test]
    fn a_search_in_vain_is_not_repeated() {
        let room = Room::new(TRUNK);
        let block = Marks::of_block(Order(5));
        room.mark(ClusterIndex(1), Marks::NONE, block);
        assert_eq!((found(&room, 5), room.may_serve(Order(5))), (vec![1], true), "one that was busy stays");
        room.mark(ClusterIndex(1), block, Marks::NONE);
        assert!(room.may_serve(Order(5)));
        assert_eq!((found(&room, 5), room.may_serve(Order(5))), (vec![], false));
        room.mark(ClusterIndex(1), Marks::NONE, block);
        assert!(room.may_serve(Order(4)) && !room.may_serve(Order(6)));
    }
}
