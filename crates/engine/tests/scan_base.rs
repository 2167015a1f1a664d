//! What `scan-base` changes on a whole device: where CPUs allocate, empty and fragmented, and that nothing is
//! stranded.

use memspill_engine::slots::Slots;
use memspill_engine::tuning::{ScanBase, Tuning};
use memspill_engine::units::{CpuId, GroupId, Order, SlotIndex};

const ALL: [ScanBase; 4] = [ScanBase::Shared, ScanBase::PerCpu, ScanBase::PerCpuTrunk, ScanBase::Lists];
const TRUNK_SLOTS: u32 = 1 << 14;
const TRUNKS: u32 = 32;
const CPUS: u32 = 4;

fn device(scan_base: ScanBase, rotational: bool) -> Slots {
    let tuning = Tuning { scan_base, ..Tuning::default() };
    Slots::new(TRUNKS * TRUNK_SLOTS, CPUS, rotational, &tuning)
}

fn alloc(device: &Slots, cpu: u32, n: usize) -> Vec<SlotIndex> {
    let mut out = Vec::new();
    device.alloc(CpuId(cpu), Order::ZERO, n, GroupId(1), &mut out);
    out
}

fn give_back(device: &Slots, slots: &[SlotIndex]) {
    let mut freed = Vec::new();
    device.put(slots, &mut freed);
    device.release(CpuId(0), &freed);
}

/// A full device of which every tenth slot is given back: no cluster is empty, each has some room.
fn fragmented(scan_base: ScanBase, rotational: bool) -> Slots {
    let device = device(scan_base, rotational);
    let all = alloc(&device, 0, (TRUNKS * TRUNK_SLOTS) as usize);
    let tenth: Vec<SlotIndex> = all.into_iter().step_by(10).collect();
    give_back(&device, &tenth);
    device.check();
    device
}

/// The trunks through which each CPU goes, when they take turns.
fn paths(device: &Slots, slots_each: usize) -> Vec<Vec<u32>> {
    let mut paths = vec![Vec::new(); CPUS as usize];
    for _ in 0..slots_each / 32 {
        for cpu in 0..CPUS {
            let trunks = alloc(device, cpu, 32).into_iter().map(|slot| slot.0 / TRUNK_SLOTS);
            paths[cpu as usize].extend(trunks);
        }
    }
    paths.iter_mut().for_each(|path| path.dedup());
    paths
}

fn distinct<T: Ord + Clone>(items: impl IntoIterator<Item = T>) -> usize {
    items.into_iter().collect::<std::collections::BTreeSet<T>>().len()
}

#[test]
fn each_cpu_has_its_cluster_but_on_a_rotating_device() {
    for scan_base in ALL {
        for (rotational, clusters) in [(false, 4), (true, 1)] {
            let device = device(scan_base, rotational);
            let slots: Vec<SlotIndex> = (0..CPUS).flat_map(|cpu| alloc(&device, cpu, 100)).collect();
            assert_eq!(distinct(slots.iter().map(|slot| slot.cluster())), clusters, "{scan_base:?}");
        }
    }
}

#[test]
fn on_a_fragmented_device_cpus_are_together_or_apart() {
    let trunks_of_first_batches = |scan_base| {
        let device = fragmented(scan_base, false);
        distinct((0..CPUS).map(|cpu| alloc(&device, cpu, 1)[0].0 / TRUNK_SLOTS))
    };
    assert_eq!(trunks_of_first_batches(ScanBase::Shared), 1);
    assert_eq!(trunks_of_first_batches(ScanBase::PerCpu), 4);
    assert_eq!(trunks_of_first_batches(ScanBase::PerCpuTrunk), 4);
}

#[test]
fn a_base_goes_on_into_the_next_trunk_or_a_random_one() {
    // A tenth of a trunk is free: 4 CPUs with 5 trunks' worth each see most of the device.
    let slots_each = TRUNK_SLOTS as usize / 2;
    let upwards = |path: &[u32]| path.windows(2).all(|pair| pair[1] == (pair[0] + 1) % TRUNKS);
    let shared = paths(&fragmented(ScanBase::Shared, false), slots_each);
    assert!(shared.iter().all(|path| path[0] == 0 && path.len() > 15 && upwards(path)), "{shared:?}");
    let own = paths(&fragmented(ScanBase::PerCpu, false), slots_each);
    assert!(own.iter().all(|path| path.len() >= 5), "{own:?}");
    assert!(own.iter().filter(|path| upwards(path)).count() >= 2, "some met no other CPU: {own:?}");
    let random = paths(&fragmented(ScanBase::PerCpuTrunk, false), slots_each);
    assert!(random.iter().all(|path| path.len() >= 5 && !upwards(path)), "{random:?}");
    assert_eq!(random, paths(&fragmented(ScanBase::PerCpuTrunk, false), slots_each), "a run can be repeated");
}

#[test]
fn a_rotating_device_has_one_base_whatever_the_knob_says() {
    let slots_of = |scan_base| {
        let device = fragmented(scan_base, true);
        (0..64).map(|turn| alloc(&device, turn % CPUS, 32)).collect::<Vec<_>>()
    };
    let shared = slots_of(ScanBase::Shared);
    let firsts: Vec<u32> = shared.iter().map(|slots| slots[0].0).collect();
    assert!(firsts.is_sorted(), "one after the other, as a disk wants it: {firsts:?}");
    for scan_base in ALL {
        assert_eq!(slots_of(scan_base), shared, "{scan_base:?}");
    }
}

#[test]
fn the_last_free_slot_is_found_by_every_cpu_wherever_it_is() {
    for scan_base in ALL {
        let device = device(scan_base, false);
        let all = alloc(&device, 0, (TRUNKS * TRUNK_SLOTS) as usize);
        assert_eq!(device.free_slots(), 0);
        for at in (0..all.len()).step_by(TRUNK_SLOTS as usize / 2 + 77).chain([all.len() - 1]) {
            for cpu in 0..CPUS {
                give_back(&device, &all[at..at + 1]);
                assert_eq!(alloc(&device, cpu, 2), all[at..at + 1], "{scan_base:?}, CPU {cpu}");
            }
        }
        device.check();
    }
}

#[test]
fn scans_are_counted_and_short() {
    for scan_base in ALL {
        let device = fragmented(scan_base, false);
        let before = device.stats();
        let got = alloc(&device, 0, 4096).len();
        let after = device.stats();
        assert_eq!(got, 4096);
        let clusters = 4096 / 51 + 1;
        let steps = after.base_steps - before.base_steps;
        let by_lists = scan_base == ScanBase::Lists;
        let expected = if by_lists { 0..1 } else { clusters - 2..clusters + 8 };
        assert!(expected.contains(&steps), "{scan_base:?}: {steps} for {clusters} clusters");
        assert_eq!(after.cluster_passed_by, 0, "nobody else is there");
        // A cluster found by place costs the list lock once, when it is full and changes its list; by time,
        // twice.
        let list_locks = after.list_lock.taken - before.list_lock.taken;
        let most = if by_lists { 2 * clusters } else { clusters };
        assert!(list_locks <= most + 8, "{scan_base:?}: {list_locks} for {clusters} clusters");
    }
}

#[test]
fn a_scan_keeps_out_of_another_cpus_current_cluster() {
    for scan_base in ALL {
        let device = device(scan_base, false);
        let mine = alloc(&device, 0, 100);
        give_back(&device, &mine[..10]);
        // Nonfull, and the only one; but CPU 0 goes on there, and empty clusters are left.
        let theirs = alloc(&device, 1, 100);
        assert_eq!(distinct(theirs.iter().map(|slot| slot.cluster())), 1);
        let shared = theirs[0].cluster() == mine[0].cluster();
        assert_eq!(alloc(&device, 0, 1)[0].0, mine[99].0 + 1, "CPU 0 goes on where it was");
        assert!(!shared, "{scan_base:?}");
    }
}

#[test]
fn another_cpus_empty_cluster_is_taken_when_there_is_no_other() {
    for scan_base in ALL {
        for order in [Order::ZERO, Order(3)] {
            let tuning = Tuning { scan_base, ..Tuning::default() };
            let device = Slots::new(512, 2, false, &tuning);
            for cpu in [CpuId(0), CpuId(1), CpuId(0)] {
                let mut first = Vec::new();
                assert_eq!(device.alloc(cpu, order, 1, GroupId(1), &mut first), 1, "{scan_base:?} {cpu:?}");
                let pages: Vec<SlotIndex> = (first[0].0..first[0].0 + order.pages()).map(SlotIndex).collect();
                give_back(&device, &pages);
            }
        }
    }
}
