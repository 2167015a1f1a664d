//! Every interleaving of an allocation and a release in one cluster, of the counters of free slots, and of a
//! CPU's stock of charged pages.
//!
//! Run with: scripts/interleavings.sh loom
//!
//! Seen to find: `collect_freed` that collects nothing; a cluster that stays on its list when it is allocated
//! from; `retire` that looks at the counters and takes nothing off them; a stock that is written by a load
//! and a store.
//!
//! Without a protocol of their own, and so without a test: the slot's word and the page's word, which are
//! read and written under their cluster's and their chunk's lock only; the CPUs' hints (slots/percpu.rs),
//! which hold no slot and so need not be cleared: a wrong hint costs one lock, which is tested here. Loom
//! cannot test a release while another CPU searches the lists: it makes a `try_lock` wait for the holder, and
//! so finds the deadlock that the `try_lock` prevents. shuttle_engine.rs tests that (`no_slot_is_stranded`).
#![cfg(loom)]

use loom::thread;
use memspill_engine::group::{GroupConfig, Groups};
use memspill_engine::slots::Slots;
use memspill_engine::sync::Arc;
use memspill_engine::tuning::Tuning;
use memspill_engine::units::{CpuId, GroupId, Order, PAGE_SIZE, SlotIndex};

/// A device of `usable` slots for two CPUs, of which CPU 0 has taken `taken`: its hint is there.
fn device(usable: u32, taken: usize) -> (Arc<Slots>, Vec<SlotIndex>) {
    let device = Arc::new(Slots::new(usable + 1, 2, false, &Tuning::default()));
    let slots = alloc(&device, 0, taken);
    assert_eq!(slots.len(), taken);
    (device, slots)
}

fn alloc(device: &Slots, cpu: u32, n: usize) -> Vec<SlotIndex> {
    let mut slots = Vec::new();
    device.alloc(CpuId(cpu), Order::ZERO, n, GroupId(1), &mut slots);
    slots
}

fn free(device: &Slots, cpu: u32, slots: &[SlotIndex]) {
    let mut freed = Vec::new();
    device.put(slots, &mut freed);
    device.release(CpuId(cpu), &freed);
}

/// All that is free can be had, by either CPU, and each slot once.
fn all_can_be_had(device: &Slots, cpu: u32, mut held: Vec<SlotIndex>, usable: usize) {
    device.check();
    assert_eq!(device.free_slots() as usize, usable - held.len());
    held.extend(alloc(device, cpu, usable));
    held.sort_unstable();
    held.dedup();
    assert_eq!(held.len(), usable, "a slot is stranded, or was given twice");
    device.check();
}

#[test]
fn a_release_meets_an_allocation_at_the_hint() {
    for looker in [0, 1] {
        loom::model(move || {
            let (device, mut slots) = device(3, 2);
            let other = Arc::clone(&device);
            let first = slots.remove(0);
            let release = thread::spawn(move || free(&other, 1, &[first]));
            slots.extend(alloc(&device, 0, 1));
            assert_eq!(slots.len(), 2, "one was free all the time");
            release.join().unwrap();
            all_can_be_had(&device, looker, slots, 3);
        });
    }
}

#[test]
fn a_cluster_empties_under_the_hint() {
    // Its table goes, and comes back with the allocation, or the allocation keeps it.
    loom::model(|| {
        let (device, slots) = device(2, 1);
        let other = Arc::clone(&device);
        let release = thread::spawn(move || free(&other, 1, &slots));
        let slots = alloc(&device, 0, 1);
        release.join().unwrap();
        assert_eq!(slots.len(), 1);
        all_can_be_had(&device, 1, slots, 2);
    });
}

#[test]
fn what_a_cpu_has_freed_another_can_have() {
    loom::model(|| {
        let (device, mut slots) = device(2, 2);
        let other = Arc::clone(&device);
        let first = slots.remove(0);
        let release = thread::spawn(move || free(&other, 1, &[first]));
        slots.extend(alloc(&device, 0, 1));
        release.join().unwrap();
        all_can_be_had(&device, 0, slots, 2);
    });
}

#[test]
fn a_device_retires_or_gives_its_last_slot() {
    loom::model(|| {
        let (device, slots) = device(2, 1);
        // On its own count, and not yet on the common one.
        free(&device, 1, &slots);
        let other = Arc::clone(&device);
        let taker = thread::spawn(move || alloc(&other, 0, 1).len());
        let retired = device.retire(CpuId(1));
        let taken = taker.join().unwrap();
        assert!(!(retired && taken > 0), "a slot of a device that is gone");
        assert!(retired || taken > 0, "neither got what nobody else had");
        assert_eq!(device.used_slots(), taken as u64);
    });
}

#[test]
fn a_release_meets_the_retirement() {
    loom::model(|| {
        let (device, slots) = device(2, 1);
        let other = Arc::clone(&device);
        let release = thread::spawn(move || free(&other, 0, &slots));
        let retired = device.retire(CpuId(1));
        release.join().unwrap();
        assert!(retired || device.retire(CpuId(1)), "all are free");
        assert!(!device.retire(CpuId(1)), "once");
        assert!(alloc(&device, 0, 1).is_empty());
    });
}

#[test]
fn a_stock_is_filled_and_emptied_at_once() {
    const LIMIT_PAGES: u64 = 2048;
    const CPU: CpuId = CpuId(0);
    loom::model(|| {
        let groups = Arc::new(Groups::new(&[GroupConfig::root(LIMIT_PAGES * PAGE_SIZE as u64)]));
        let root = groups.root();
        assert!(root.try_charge(CPU, LIMIT_PAGES, 0));
        root.uncharge(CPU, 1);
        let other = Arc::clone(&groups);
        // One or two of these stay in the stock, which holds two, and the rest goes to the group.
        let leaver = thread::spawn(move || other.root().uncharge(CPU, 2));
        assert!(root.try_charge(CPU, 1, 0), "it is in the stock");
        leaver.join().unwrap();
        assert_eq!(groups.charged_pages(root), LIMIT_PAGES - 2);
        assert!(root.usage_bytes() <= LIMIT_PAGES * PAGE_SIZE as u64);
    });
}
