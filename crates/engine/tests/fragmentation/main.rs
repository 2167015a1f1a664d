//! The room of freed folios serves new ones, round after round, as it is set by default and for folios of one
//! size; with the seed's rule (empty clusters only) it does not. And what is free in clusters of one order
//! serves the others.

mod rounds;

use memspill_engine::slots::Slots;
use memspill_engine::tuning::Tuning;
use memspill_engine::units::{CLUSTER_SLOTS, CpuId, GroupId, Order, SlotIndex};
use rounds::{ROUNDS, Test, split_percent};

#[test]
fn by_default_no_folio_is_split_in_100_rounds() {
    assert_eq!(split_percent(&[]), vec![0.0; ROUNDS]);
}

#[test]
fn by_default_every_64_kib_that_were_asked_for_find_a_block() {
    let mut test = Test::new(&[]);
    (0..ROUNDS).for_each(|_| test.round());
    test.check();
    let counts = test.counts();
    assert_eq!((counts.fallbacks, counts.split_pages), ([0; 10], 0));
}

#[test]
fn a_folio_that_finds_no_block_leaves_as_smaller_ones() {
    let test = Test::new(&[]);
    let before = test.counts();
    test.write_in_a_row(500);
    test.check();
    let after = test.counts();
    println!("folios that did not leave whole, by order: {:?}", after.fallbacks);
    assert_eq!(after.whole_pages - before.whole_pages, 500 * 16);
    assert_eq!((after.split_pages, after.fallbacks[4]), (0, 0));
    assert!(after.fallbacks[5..].iter().sum::<u64>() > 0, "there is room for few larger ones");
}

#[test]
fn no_folio_of_64_kib_is_split_in_100_rounds() {
    assert_eq!(split_percent(&["folio=64K"]), vec![0.0; ROUNDS]);
}

#[test]
fn with_empty_clusters_only_most_folios_are_split_before_long() {
    let percent = split_percent(&["large-folios=free-cluster-only", "folio=64K"]);
    let mean = |rounds: &[f64]| rounds.iter().sum::<f64>() / rounds.len() as f64;
    let (first, last) = (percent[0], mean(&percent[ROUNDS - 10..]));
    println!("split: {first:.1} % in the first round, {last:.1} % in the last ten");
    assert!(first < last && last > 50.0, "{percent:?}");
}

/// A device of eight clusters that are full of folios of one order.
fn full_of(order: Order) -> (Slots, Vec<SlotIndex>) {
    let device = Slots::new(9 * CLUSTER_SLOTS, 2, false, &Tuning::default());
    let mut folios = Vec::new();
    let count = (9 * CLUSTER_SLOTS / order.pages()) as usize;
    device.alloc(CpuId(0), order, count, GroupId(1), &mut folios);
    // The first cluster lacks a slot: single pages fill what is left of it.
    device.alloc(CpuId(0), Order::ZERO, 9 * CLUSTER_SLOTS as usize, GroupId(1), &mut Vec::new());
    (device, folios)
}

fn free(device: &Slots, first: SlotIndex, pages: u32) {
    let slots: Vec<SlotIndex> = (first.0..first.0 + pages).map(SlotIndex).collect();
    let mut freed = Vec::new();
    device.put(&slots, &mut freed);
    device.release(CpuId(0), &freed);
}

#[test]
fn what_is_free_in_clusters_of_one_order_serves_all_others() {
    for filled in (0..=9).map(Order) {
        for asked in (4..=9).map(Order) {
            let (device, _) = full_of(filled);
            // Every second block of the order that will be asked for, if it is in whole use.
            let blocks: Vec<u32> =
                (CLUSTER_SLOTS..9 * CLUSTER_SLOTS).step_by(2 * asked.pages() as usize).collect();
            blocks.iter().for_each(|first| free(&device, SlotIndex(*first), asked.pages()));
            let mut found = Vec::new();
            let got = device.alloc(CpuId(1), asked, blocks.len(), GroupId(2), &mut found);
            assert_eq!(got, blocks.len(), "order {} in clusters of order {}", asked.0, filled.0);
            assert_eq!(device.free_slots(), 0);
            device.check();
        }
    }
}

#[test]
fn single_pages_take_holes_before_they_break_blocks() {
    let (device, folios) = full_of(Order(6));
    // A hole in each second folio, 32 pages of each other one: two blocks of 64 KiB.
    let second: Vec<_> = folios.iter().enumerate().filter(|(_, folio)| folio.0 >= CLUSTER_SLOTS).collect();
    let holes = second.iter().filter(|(i, _)| i % 2 == 0).count();
    for (i, folio) in &second {
        free(&device, **folio, if i % 2 == 0 { 1 } else { 32 });
    }
    let mut pages = Vec::new();
    assert_eq!(device.alloc(CpuId(0), Order::ZERO, holes, GroupId(1), &mut pages), holes);
    let mut blocks = Vec::new();
    let whole = 2 * (second.len() - holes);
    assert_eq!(device.alloc(CpuId(1), Order(4), whole, GroupId(1), &mut blocks), whole);
    device.check();
}
