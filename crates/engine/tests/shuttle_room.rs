//! Slots of several orders under schedules that are drawn, on a device that is nearly full: what is left lies
//! in clusters of other orders, and a folio that finds no block steps down (`slots/room.rs`).
//!
//! ```text
//!   a device is filled with folios of some orders, some of their pages are free     one thread
//!   CPUs take folios, or their halves, and free what they have                      three threads
//!   each slot is handed out once; all that is free can be had; all is free at last  one thread
//! ```
//!
//! A slot that two CPUs get shows at once (`Held`). A slot that nobody finds shows by a CPU that never gets
//! what it waits for, and by the checker, which compares the marks of each cluster with its bitmap.
//!
//! What each was seen to find, planted by hand:
//!
//! * `folios_that_find_no_block_step_down` (both): a large order takes slots that single pages have reserved;
//!   what is taken from a cluster of another order does not change its marks.
//! * `a_block_that_becomes_whole_is_found`: a search in vain does not look at the words once more;
//!   a cluster's kind is noted before its word; both of the above.
//! * `a_cluster_empties_while_others_steal_from_it`: a cluster that was discarded is not counted as empty
//!   (so does the scenario with discards); the marks.
#![cfg(shuttle)]

#[path = "shuttle/explore.rs"]
mod explore;

use explore::explore;
use memspill_engine::slots::Slots;
use memspill_engine::tuning::Tuning;
use memspill_engine::units::{CLUSTER_SLOTS, ClusterIndex, CpuId, GroupId, Order, SlotIndex};
use shuttle::thread;
use std::collections::BTreeSet;
// std's lock, at which shuttle does not switch: the test's own knowledge is not under test.
use std::sync::{Arc, Mutex};

const GROUP: GroupId = GroupId(1);
/// Below it a folio leaves as single pages.
const SMALLEST: Order = Order(4);
const CLUSTERS: u32 = 3;
const USABLE: usize = (CLUSTERS * CLUSTER_SLOTS - 1) as usize;

/// A device, and the slots that somebody has.
struct Held {
    device: Slots,
    slots: Mutex<BTreeSet<SlotIndex>>,
}

impl Held {
    /// Up to `n` folios; each slot of them was nobody's.
    fn alloc(&self, cpu: u32, order: Order, n: usize) -> Vec<SlotIndex> {
        let mut folios = Vec::new();
        let got = self.device.alloc(CpuId(cpu), order, n, GROUP, &mut folios);
        assert_eq!(got, folios.len());
        let mut held = self.slots.lock().expect("held");
        for slot in pages_of(&folios, order) {
            assert!(slot.0 != 0 && slot.0 < CLUSTERS * CLUSTER_SLOTS, "slot {} does not exist", slot.0);
            assert!(held.insert(slot), "slot {} is handed out twice", slot.0);
        }
        folios.iter().for_each(|first| assert_eq!(first.0 % order.pages(), 0, "a block is aligned"));
        folios
    }

    /// A folio's pages, in whatever they find: its block, blocks of its halves, single slots at last. There
    /// are enough for all who ask.
    fn take(&self, cpu: u32, order: Order) -> Vec<SlotIndex> {
        let (mut order, mut missing, mut slots) = (order, 1, Vec::new());
        loop {
            let folios = self.alloc(cpu, order, missing);
            missing -= folios.len();
            slots.extend(pages_of(&folios, order));
            if missing == 0 {
                return slots;
            }
            if order > SMALLEST {
                (order, missing) = (Order(order.0 - 1), 2 * missing);
            } else if order > Order::ZERO {
                (order, missing) = (Order::ZERO, missing * order.pages() as usize);
            } else {
                // Slots that another CPU is freeing are on no counter for a moment.
                thread::yield_now();
            }
        }
    }

    fn give(&self, cpu: u32, slots: &[SlotIndex]) {
        {
            let mut held = self.slots.lock().expect("held");
            slots.iter().for_each(|slot| assert!(held.remove(slot), "slot {} is nobody's", slot.0));
        }
        let mut freed = Vec::new();
        assert_eq!(self.device.put(slots, &mut freed), []);
        assert_eq!(freed, slots, "each had one reference");
        let owners: u32 = self.device.release(CpuId(cpu), &freed).iter().map(|(_, slots)| slots).sum();
        assert_eq!(owners as usize, slots.len(), "each was the group's");
    }

    /// At a quiet point: all that is free can be had, by any CPU, each slot once; and when all is given back,
    /// the device is as it was at first.
    fn end(&self, cpu: u32) {
        self.device.check();
        let held: Vec<SlotIndex> = self.slots.lock().expect("held").iter().copied().collect();
        assert_eq!(
            self.device.free_slots() as usize,
            USABLE - held.len(),
            "slots are lost, or counted twice"
        );
        let rest = self.alloc(cpu, Order::ZERO, USABLE);
        assert_eq!(rest.len() + held.len(), USABLE, "a slot is stranded");
        self.device.check();
        self.give(cpu, &held);
        self.give(cpu + 1, &rest);
        self.device.check();
        assert_eq!((self.device.free_slots() as usize, self.device.used_slots()), (USABLE, 0));
        self.device.discard_waiting(CLUSTERS as usize);
        // No cluster has kept its order: there are blocks of the largest one, but for where slot 0 is.
        assert_eq!(self.alloc(cpu, Order(9), CLUSTERS as usize).len(), CLUSTERS as usize - 1);
    }
}

fn pages_of(folios: &[SlotIndex], order: Order) -> Vec<SlotIndex> {
    folios.iter().flat_map(|first| (first.0..first.0 + order.pages()).map(SlotIndex)).collect()
}

/// Slots in a row.
fn row(first: u32, pages: u32) -> Vec<SlotIndex> {
    (first..first + pages).map(SlotIndex).collect()
}

/// A device all of whose slots are in use: a cluster of single pages, one of folios of 64 KiB, one of
/// 256 KiB.
fn full(cpus: u32, discards: bool, packs: bool) -> Arc<Held> {
    let device = Slots::new(CLUSTERS * CLUSTER_SLOTS, cpus, false, &Tuning::default());
    let device = if packs { device.packing() } else { device };
    let device = if discards { device.discarding(|_: ClusterIndex| thread::yield_now()) } else { device };
    let held = Held { device, slots: Mutex::default() };
    held.alloc(0, Order::ZERO, CLUSTER_SLOTS as usize - 1);
    assert_eq!(held.alloc(0, Order(4), 32).len(), 32);
    assert_eq!(held.alloc(0, Order(6), 8).len(), 8);
    assert_eq!(held.device.free_slots(), 0);
    held.device.check();
    Arc::new(held)
}

/// First slots of the three clusters.
const SINGLE: u32 = 0;
const OF_16: u32 = CLUSTER_SLOTS;
const OF_64: u32 = 2 * CLUSTER_SLOTS;

type Script = fn(&Held);

fn play(held: &Arc<Held>, scripts: [Script; 3]) {
    let threads = scripts.map(|script| {
        let held = held.clone();
        thread::spawn(move || script(&held))
    });
    threads.into_iter().for_each(|thread| thread.join().expect("it would have ended the test"));
}

/// CPUs ask for folios of different orders while each frees pages and blocks in clusters of the others'
/// orders: together they ask for all that there is.
fn folios_step_down(cpus: u32, discards: bool, packs: bool) {
    let held = full(cpus, discards, packs);
    // 16 pages in a block among single pages, 8 in each of two folios of 64 KiB, 32 of one of 256 KiB.
    held.give(0, &row(SINGLE + 64, 16));
    held.give(0, &row(OF_16 + 32, 8));
    held.give(0, &row(OF_16 + 72, 8));
    held.give(0, &row(OF_64 + 128, 32));
    play(
        &held,
        [
            |held| {
                let folio = held.take(0, Order(5));
                held.give(0, &folio[..16]);
                held.give(0, &folio[16..]);
                held.take(0, Order(4));
            },
            |held| {
                held.give(1, &row(OF_16 + 40, 8));
                let folio = held.take(1, Order(4));
                held.give(1, &folio[8..]);
            },
            |held| {
                let pages: Vec<SlotIndex> = (0..3).flat_map(|_| held.take(2, Order::ZERO)).collect();
                held.give(2, &row(SINGLE + 80, 16));
                held.give(2, &pages[..2]);
                held.take(2, Order(4));
            },
        ],
    );
    held.end(1);
}

#[test]
fn folios_that_find_no_block_step_down() {
    explore(|| folios_step_down(3, false, false));
    explore(|| folios_step_down(3, false, true));
}

/// With the lists in two parts, and with clusters that are discarded when they are empty.
#[test]
fn folios_step_down_where_lists_are_in_parts_and_clusters_are_discarded() {
    explore(|| folios_step_down(32, true, false));
}

/// Two CPUs free the halves of blocks in clusters of other orders, a third searches for blocks, in vain or
/// not: the marks of what has become whole are not lost, so who comes later finds it.
#[test]
fn a_block_that_becomes_whole_is_found() {
    explore(|| {
        let held = full(3, false, false);
        play(
            &held,
            [
                |held| {
                    held.give(0, &row(SINGLE + 64, 8));
                    held.give(0, &row(OF_64 + 64, 16));
                },
                |held| {
                    held.give(1, &row(SINGLE + 72, 8));
                    held.give(1, &row(OF_64 + 80, 16));
                },
                |held| {
                    for order in [4, 5, 4] {
                        let folios = held.alloc(2, Order(order), 1);
                        held.give(2, &pages_of(&folios, Order(order)));
                    }
                },
            ],
        );
        held.device.check();
        assert_eq!(held.alloc(0, Order(5), 2).len(), 1, "32 pages in a row, freed by two");
        assert_eq!(held.alloc(1, Order(4), 2).len(), 1, "and 16 among single pages");
        assert_eq!(held.device.free_slots(), 0);
        held.end(2);
    });
}

/// A cluster empties, and so belongs to no order, while others take their pages from it as from one of
/// another order.
#[test]
fn a_cluster_empties_while_others_steal_from_it() {
    for (discards, packs) in [(false, false), (true, false), (false, true), (true, true)] {
        explore(move || {
            let held = full(3, discards, packs);
            held.give(0, &row(OF_64, CLUSTER_SLOTS - 16));
            play(
                &held,
                [
                    |held| held.give(0, &row(OF_64 + CLUSTER_SLOTS - 16, 16)),
                    |held| {
                        let pages = held.take(1, Order(4));
                        held.give(1, &pages);
                        held.take(1, Order(9 - 1));
                    },
                    |held| {
                        let page = held.take(2, Order::ZERO);
                        held.give(2, &page);
                        held.device.discard_waiting(1);
                        held.take(2, Order(2));
                    },
                ],
            );
            held.end(0);
        });
    }
}
