//! The lists of clusters of one device, or of one part of them, and which list a cluster belongs on.
//!
//! ```text
//!                      alloc                        no block of its order left
//!   free ──────────────────────▶ frag[order] ─────────────────────────▶ spent[order]
//!    ▲ ▲                          ▲      │ free                            │     │ none free at all
//!    │ │ empties            alloc │      ▼          a block came free      │     ▼
//!    │ └────────────────────── nonfull[order] ◀────────────────────────────┴── full
//!  virgin (never used: a count, no list, no memory)
//! ```
//!
//! On a device that discards, a cluster that empties goes to *discard* first and to free when that is done;
//! nothing is allocated from it meanwhile.
//!
//! * *nonfull*: something was freed here since a CPU last allocated here, and a block of the cluster's order
//!   fits.
//! * *frag*: a block of its order fits, but some CPU is allocating here. Others use it only after nonfull and
//!   free, so that CPUs stay apart while there is room. A slot freed here meanwhile does not move the
//!   cluster: it changes lists a few times while a CPU allocates from it, and not twice for each batch.
//! * *spent*: slots are free, but no block of its order. Useless to its own order, so order 0 steals here
//!   first.
//!
//! The kernel leaves spent clusters on its frag list and scans them in vain. Keeping them apart makes nonfull
//! and frag exact: whatever is found there can serve its order, so an allocation fails only if there is truly
//! no block.
//!
//! The list's number is also the cluster's flag (guarded by the cluster's lock); links and heads are guarded
//! by the device's list lock. Both change in one step, under both locks. Links are numbers, not pointers, and
//! exist for clusters that were ever used.
//!
//! *Parts*: where there are many CPUs, each part has its lists and their lock. The clusters of part p of n
//! are p, p + n, p + 2n, …, so that all parts grow side by side from the beginning of the device.
//! allocator.rs says in which order the parts are searched.
//!
//! What it does not do: look into clusters.

use super::lock_counts::{Counted, LockCounts};
use crate::units::{ClusterIndex, MAX_ORDER, Order};

const ORDERS: u8 = MAX_ORDER + 1;
/// No cluster: the end of a list. Beyond any real one, since a device has at most 2^23.
const NIL: u32 = u32::MAX;
/// Links are made in pieces, so that growing never copies while the list lock is held.
const LINK_CHUNK: usize = 1024;

/// One of the lists, and the flag of each cluster on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ListId(u8);

impl ListId {
    pub(super) const FREE: ListId = ListId(0);
    pub(super) const FULL: ListId = ListId(1);
    pub(super) const DISCARD: ListId = ListId(2);
    const COUNT: usize = 3 + 3 * ORDERS as usize;

    pub(super) fn nonfull(order: Order) -> ListId {
        ListId(3 + order.0)
    }
    pub(super) fn frag(order: Order) -> ListId {
        ListId(3 + ORDERS + order.0)
    }
    pub(super) fn spent(order: Order) -> ListId {
        ListId(3 + 2 * ORDERS + order.0)
    }
    pub(super) fn all() -> impl Iterator<Item = ListId> {
        (0..Self::COUNT as u8).map(ListId)
    }
}

impl std::fmt::Display for ListId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.checked_sub(3) {
            None => write!(f, "{}", ["free", "full", "discard"][self.0 as usize]),
            Some(n) => write!(f, "{}[{}]", ["nonfull", "frag", "spent"][(n / ORDERS) as usize], n % ORDERS),
        }
    }
}

/// Where order 0 may steal, the least harmful first: clusters that are of no use to their own order, then
/// those that a CPU is filling, then those with room for folios.
pub(super) fn steal_order() -> impl Iterator<Item = ListId> {
    let kinds = [ListId::spent, ListId::frag, ListId::nonfull];
    kinds.into_iter().flat_map(|list| (1..=MAX_ORDER).map(move |order| list(Order(order))))
}

#[derive(Clone, Copy)]
struct Link {
    prev: u32,
    next: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
}

pub(super) struct Lists {
    ends: [Ends; ListId::COUNT],
    links: Vec<Box<[Link]>>,
    part: u32,
    parts: u32,
    /// Clusters of the part that were ever used: those before this one.
    virgin: u32,
    /// Clusters of the part.
    clusters: u32,
    pub(super) lock_counts: LockCounts,
    /// Clusters that a search could not try because another CPU held them.
    pub(super) passed_by: u64,
    /// Clusters that were discarded.
    pub(super) discarded: u64,
}

impl Counted for Lists {
    fn counts(&mut self) -> &mut LockCounts {
        &mut self.lock_counts
    }
}

impl Lists {
    /// Part `part` of `parts` of the lists of a device of `clusters` clusters.
    pub(super) fn new(clusters: u32, part: u32, parts: u32) -> Lists {
        let ends = [Ends { head: NIL, tail: NIL }; ListId::COUNT];
        let clusters = clusters.saturating_sub(part).div_ceil(parts);
        Lists {
            ends,
            links: Vec::new(),
            part,
            parts,
            virgin: 0,
            clusters,
            lock_counts: LockCounts::default(),
            passed_by: 0,
            discarded: 0,
        }
    }

    /// The clusters that were ever used: exactly those are on lists.
    pub(super) fn ever_used(&self) -> impl Iterator<Item = ClusterIndex> + use<> {
        let (part, parts) = (self.part, self.parts);
        (0..self.virgin).map(move |n| ClusterIndex(part + n * parts))
    }

    /// The next cluster that was never used, put on the free list.
    pub(super) fn take_virgin(&mut self) -> Option<ClusterIndex> {
        if self.virgin == self.clusters {
            return None;
        }
        if self.virgin as usize == self.links.len() * LINK_CHUNK {
            self.links.push(vec![Link { prev: NIL, next: NIL }; LINK_CHUNK].into_boxed_slice());
        }
        let cluster = ClusterIndex(self.part + self.virgin * self.parts);
        self.virgin += 1;
        self.push(cluster, ListId::FREE);
        Some(cluster)
    }

    /// The cluster that has waited longest to be discarded.
    pub(super) fn next_to_discard(&self) -> Option<ClusterIndex> {
        self.clusters_on(ListId::DISCARD).next()
    }

    pub(super) fn clusters_on(&self, list: ListId) -> impl Iterator<Item = ClusterIndex> {
        let mut at = self.ends[list.0 as usize].head;
        std::iter::from_fn(move || {
            let cluster = ClusterIndex(at);
            at = if at == NIL { return None } else { self.link(at).next };
            Some(cluster)
        })
    }

    pub(super) fn move_to(&mut self, cluster: ClusterIndex, from: ListId, to: ListId) {
        self.unlink(cluster, from);
        self.push(cluster, to);
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.links.len() * LINK_CHUNK * size_of::<Link>()) as u64
    }

    /// The cluster that became free last is used first, so that a device's file stays small; on the other
    /// lists the oldest cluster is used first, which leaves the newest ones time to become empty.
    fn push(&mut self, cluster: ClusterIndex, list: ListId) {
        let Ends { head, tail } = self.ends[list.0 as usize];
        let at_head = list == ListId::FREE;
        let (prev, next) = if at_head { (NIL, head) } else { (tail, NIL) };
        *self.link_mut(cluster.0) = Link { prev, next };
        self.link_pair(list, prev, cluster.0);
        self.link_pair(list, cluster.0, next);
    }

    fn unlink(&mut self, cluster: ClusterIndex, list: ListId) {
        let Link { prev, next } = *self.link(cluster.0);
        self.link_pair(list, prev, next);
        if prev == NIL && next == NIL {
            self.ends[list.0 as usize] = Ends { head: NIL, tail: NIL };
        }
    }

    /// Make `next` follow `prev`; NIL on either side is that end of the list.
    fn link_pair(&mut self, list: ListId, prev: u32, next: u32) {
        match prev {
            NIL => self.ends[list.0 as usize].head = next,
            _ => self.link_mut(prev).next = next,
        }
        match next {
            NIL => self.ends[list.0 as usize].tail = prev,
            _ => self.link_mut(next).prev = prev,
        }
    }

    fn link(&self, cluster: u32) -> &Link {
        let place = (cluster / self.parts) as usize;
        &self.links[place / LINK_CHUNK][place % LINK_CHUNK]
    }
    fn link_mut(&mut self, cluster: u32) -> &mut Link {
        let place = (cluster / self.parts) as usize;
        &mut self.links[place / LINK_CHUNK][place % LINK_CHUNK]
    }
}
