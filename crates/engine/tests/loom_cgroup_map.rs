//! Every interleaving of two threads on one word of the cgroup map, and on one cluster of a device.
//!
//! Run with: scripts/interleavings.sh loom
#![cfg(loom)]

use loom::thread;
use memspill_engine::slots::Slots;
use memspill_engine::slots::cgroup_map::CgroupMap;
use memspill_engine::sync::Arc;
use memspill_engine::tuning::{CgroupMapForm, ScanBase, Tuning};
use memspill_engine::units::{CpuId, FrameId, GroupId, Order, SlotIndex};

#[test]
fn adjacent_ids_from_two_threads() {
    for form in [CgroupMapForm::LockFree, CgroupMapForm::Locked] {
        loom::model(move || {
            let map = Arc::new(CgroupMap::new(8, form));
            let other = Arc::clone(&map);
            let neighbour = thread::spawn(move || {
                other.record(SlotIndex(3), 1, GroupId(7));
                assert_eq!(other.lookup(SlotIndex(3)), GroupId(7));
                assert_eq!(other.clear(SlotIndex(3), 1), GroupId(7));
                other.record(SlotIndex(3), 1, GroupId(8));
            });
            map.record(SlotIndex(2), 1, GroupId(0xffff));
            assert_eq!(map.lookup(SlotIndex(2)), GroupId(0xffff));
            assert_eq!(map.clear(SlotIndex(2), 1), GroupId(0xffff));
            neighbour.join().unwrap();
            assert_eq!(map.lookup(SlotIndex(2)), GroupId(0));
            assert_eq!(map.lookup(SlotIndex(3)), GroupId(8));
        });
    }
}

#[test]
fn an_id_passes_from_owner_to_owner() {
    // One slot: who gets it second must see it without an owner, although a map's ids are relaxed.
    for cgroup_map in [CgroupMapForm::LockFree, CgroupMapForm::Cluster] {
        loom::model(move || {
            let tuning = Tuning { cgroup_map, ..Tuning::default() };
            let device = Arc::new(Slots::new(2, 2, false, &tuning));
            let other = Arc::clone(&device);
            let second = thread::spawn(move || use_once(&other, CpuId(1)));
            use_once(&device, CpuId(0));
            second.join().unwrap();
            device.check();
            assert_eq!(device.free_slots(), 1);
        });
    }
}

fn use_once(device: &Slots, cpu: CpuId) {
    let (mut slots, mut freed) = (Vec::new(), Vec::new());
    device.alloc(cpu, Order(0), 1, GroupId(1 + cpu.0 as u16), &mut slots);
    device.put(&slots, &mut freed);
    let owners = device.release(cpu, &freed);
    assert_eq!(owners.len(), slots.len());
}

#[test]
fn two_cpus_never_get_one_slot() {
    loom::model(|| {
        let device = Arc::new(Slots::new(3, 2, false, &Tuning::default()));
        let other = Arc::clone(&device);
        let take = |device: &Slots, cpu| {
            let mut slots = Vec::new();
            device.alloc(CpuId(cpu), Order(0), 1, GroupId(1), &mut slots);
            slots
        };
        let second = thread::spawn(move || take(&other, 1));
        let mine = take(&device, 0);
        let theirs = second.join().unwrap();
        assert_eq!((mine.len(), theirs.len()), (1, 1), "two slots were free");
        assert_ne!(mine, theirs);
        device.check();
    });
}

#[test]
fn a_folio_cannot_take_what_is_promised_to_pages() {
    // Slots 1, 2 and 3: either three pages, or a folio of two and a page; never a page that was promised and
    // is gone.
    loom::model(|| {
        let device = Arc::new(Slots::new(4, 2, false, &Tuning::default()));
        let other = Arc::clone(&device);
        let folio = thread::spawn(move || {
            let mut folio = Vec::new();
            other.alloc(CpuId(1), Order(1), 1, GroupId(2), &mut folio)
        });
        let mut pages = Vec::new();
        let got = device.alloc(CpuId(0), Order(0), 3, GroupId(1), &mut pages);
        let folios = folio.join().unwrap();
        assert!((got, folios) == (3, 0) || (got, folios) == (1, 1), "{got} pages, {folios} folios");
        device.check();
        assert_eq!(device.free_slots(), 0);
    });
}

#[test]
fn a_fault_meets_the_end_of_the_write() {
    // The writer takes the page out of the cache while a fault has it pinned and drops the slot: exactly one
    // of them is told to free the frame, and exactly one to free the slot.
    loom::model(|| {
        let device = Arc::new(Slots::new(2, 2, false, &Tuning::default()));
        let mut slots = Vec::new();
        device.alloc(CpuId(0), Order(0), 1, GroupId(1), &mut slots);
        let slot = slots[0];
        device.cache_add(&[(slot, FrameId(5))]);
        let other = Arc::clone(&device);
        let fault = thread::spawn(move || {
            let (mut frames, mut freed) = (0, Vec::new());
            if other.cache_get(slot).is_some() {
                let release = other.cache_unpin(slot);
                frames += u32::from(release.frame_freed);
                freed.extend(release.slot_freed.then_some(slot));
            }
            other.put(&[slot], &mut freed);
            (frames, freed.len())
        });
        let (mut frames, mut freed) = (Vec::new(), Vec::new());
        device.cache_delete(&[slot], Some(1), &mut frames, &mut freed);
        let theirs = fault.join().unwrap();
        assert_eq!(frames.len() as u32 + theirs.0, 1);
        assert_eq!(freed.len() + theirs.1, 1);
        device.release(CpuId(0), &[slot]);
        device.check();
    });
}

#[test]
fn a_scan_meets_the_release_that_marks_its_cluster() {
    // A full cluster gets free slots while another CPU looks for one by the map of marks: what it gets is
    // free, and what it does not get can be had afterwards.
    loom::model(|| {
        let tuning = Tuning { scan_base: ScanBase::PerCpuTrunk, ..Tuning::default() };
        let device = Arc::new(Slots::new(4, 2, false, &tuning));
        let mut slots = Vec::new();
        device.alloc(CpuId(0), Order(0), 3, GroupId(1), &mut slots);
        let mut freed = Vec::new();
        device.put(&slots[..2], &mut freed);
        let other = Arc::clone(&device);
        let scan = thread::spawn(move || {
            let mut found = Vec::new();
            other.alloc(CpuId(1), Order(0), 1, GroupId(2), &mut found);
            found
        });
        device.release(CpuId(0), &freed[..1]);
        device.release(CpuId(0), &freed[1..]);
        let mut all = scan.join().unwrap();
        device.check();
        device.alloc(CpuId(1), Order(0), 3, GroupId(2), &mut all);
        all.sort_unstable();
        assert_eq!(all, slots[..2], "each slot once, and none is stranded");
        device.check();
    });
}
