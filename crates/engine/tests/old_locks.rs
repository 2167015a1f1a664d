//! The old forms of the slots' and the swap cache's locks: what takes them, how often, and that nothing else
//! differs.

use memspill_engine::slots::{LockTotals, SlotStats, Slots};
use memspill_engine::tuning::Tuning;
use memspill_engine::units::{CpuId, FrameId, GroupId, Order, SlotIndex};
use std::time::Duration;

const CPU: CpuId = CpuId(0);
/// Three trunks of 64 MiB.
const SLOTS: u32 = 3 << 14;

fn device(knobs: &[&str]) -> Slots {
    Slots::new(SLOTS, 4, false, &Tuning::parse(knobs.iter().copied()).expect("knobs"))
}

fn alloc(device: &Slots, n: usize) -> Vec<SlotIndex> {
    let mut out = Vec::new();
    device.alloc(CPU, Order::ZERO, n, GroupId(1), &mut out);
    out
}

/// Pages go out and come back: each step of a slot's life once.
fn live(device: &Slots, slots: &[SlotIndex]) {
    let frames: Vec<_> = slots.iter().map(|slot| (*slot, FrameId(slot.0))).collect();
    device.cache_add(&frames);
    device.cache_delete(slots, Some(1), &mut Vec::new(), &mut Vec::new());
    let mut freed = Vec::new();
    device.put(slots, &mut freed);
    device.release(CPU, &freed);
}

/// The old locks that one step has taken: the device's, the swap cache's.
fn taken_by(device: &Slots, step: impl FnOnce()) -> (u64, u64) {
    let before = device.stats();
    step();
    let after = device.stats();
    (after.device_lock.taken - before.device_lock.taken, after.trunk_lock.taken - before.trunk_lock.taken)
}

#[test]
fn the_default_takes_none() {
    let device = device(&[]);
    let slots = alloc(&device, 200);
    live(&device, &slots);
    let stats = device.stats();
    assert_eq!((stats.device_lock, stats.trunk_lock), Default::default());
    assert!(stats.cluster_lock.taken > 0);
}

#[test]
fn the_devices_lock_is_for_slots_and_that_of_a_trunk_for_the_cache() {
    for (cache_lock, is_trunk) in [("device", false), ("trunk", true)] {
        let cache_lock = format!("cache-lock={cache_lock}");
        let device = device(&["slot-lock=device", &cache_lock, "slot-batch=1", "cache-batch=1"]);
        let mut slots = Vec::new();
        assert_eq!(taken_by(&device, || slots = alloc(&device, 100)), (100, 0), "one by one");
        let frames: Vec<_> = slots.iter().map(|slot| (*slot, FrameId(slot.0))).collect();
        assert_eq!(taken_by(&device, || device.cache_add(&frames)), (0, 100));
        let look = || assert_eq!(device.cache_get(slots[0]), Some(FrameId(slots[0].0)));
        assert_eq!(taken_by(&device, look), (0, 0), "to look takes none");
        device.cache_unpin(slots[0]);
        let leave = || device.cache_delete(&slots, Some(1), &mut Vec::new(), &mut Vec::new());
        assert_eq!(taken_by(&device, leave), (0, 100));
        assert_eq!(taken_by(&device, || device.dup(slots[0])), (1, 0));
        device.put(&slots[..1], &mut Vec::new());
        let mut freed = Vec::new();
        assert_eq!(taken_by(&device, || _ = device.put(&slots, &mut freed)), (1, 0), "of one cluster");
        assert_eq!(taken_by(&device, || _ = device.release(CPU, &freed)), (1, 0));
        device.check();
        let bytes = device.table_bytes();
        assert!(bytes > Slots::new(SLOTS, 4, false, &Tuning::default()).table_bytes(), "{is_trunk}: {bytes}");
    }
}

#[test]
fn a_hit_on_a_page_that_was_read_ahead_takes_it_out_of_the_cache() {
    let device = device(&["cache-lock=trunk"]);
    let slots = alloc(&device, 1);
    device.cache_add(&[(slots[0], FrameId(5))]);
    device.cache_delete(&slots, Some(1), &mut Vec::new(), &mut Vec::new());
    device.hold_to_read_ahead(&slots, |_, _, _| {});
    let ahead = FrameId(1 << 31);
    let enter = || assert!(device.end_read_ahead(&[(slots[0], Some(ahead))], &mut Vec::new()).is_empty());
    assert_eq!(taken_by(&device, enter), (0, 1));
    let mut hits = Vec::new();
    assert_eq!(taken_by(&device, || device.cache_get_many(&slots, |_, frame| hits.push(frame))), (0, 1));
    assert_eq!(hits, [ahead]);
    device.check();
}

#[test]
fn trunks_have_locks_of_their_own() {
    // Two threads, each in a trunk of its own, hold its lock at once for as long as it takes; with one lock
    // for the device they would wait for each other. Seen in the counts: each trunk is asked for its own.
    for (knob, apart) in [("cache-lock=trunk", true), ("cache-lock=device", false)] {
        let device = device(&[knob]);
        let all = alloc(&device, SLOTS as usize - 1);
        let in_trunk = |trunk: u32| {
            let slots = all.iter().filter(move |slot| slot.0 / (1 << 14) == trunk).take(512);
            slots.map(|slot| (*slot, FrameId(slot.0))).collect::<Vec<_>>()
        };
        let (first, second) = (in_trunk(0), in_trunk(2));
        let contended = || device.stats().trunk_lock.contended;
        std::thread::scope(|scope| {
            let rounds = |frames: Vec<(SlotIndex, FrameId)>| {
                let slots: Vec<SlotIndex> = frames.iter().map(|(slot, _)| *slot).collect();
                let device = &device;
                move || {
                    for _ in 0..2000 {
                        device.cache_add(&frames);
                        device.cache_delete(&slots, Some(1), &mut Vec::new(), &mut Vec::new());
                    }
                }
            };
            scope.spawn(rounds(first));
            scope.spawn(rounds(second));
        });
        assert!(!apart || contended() == 0, "{knob}: {}", contended());
    }
}

/// All counts that are not those of the old locks, and no times.
fn work(stats: SlotStats) -> SlotStats {
    let taken = |totals: LockTotals| LockTotals { taken: totals.taken, ..LockTotals::default() };
    SlotStats {
        cluster_lock: taken(stats.cluster_lock),
        list_lock: taken(stats.list_lock),
        cgroup_lock: taken(stats.cgroup_lock),
        device_lock: LockTotals::default(),
        trunk_lock: LockTotals::default(),
        ..stats
    }
}

#[test]
fn the_same_slots_are_had_whatever_is_locked() {
    let slots_of = |knobs: &[&str]| {
        let device = device(knobs);
        let mut had = Vec::new();
        for round in 0..50 {
            let slots = alloc(&device, 70 + round);
            live(&device, &slots[..slots.len() / 2]);
            had.extend(slots);
        }
        device.check();
        (had, work(device.stats()))
    };
    let new = slots_of(&[]);
    for cache_lock in ["cache-lock=device", "cache-lock=trunk"] {
        assert!(slots_of(&["slot-lock=device", cache_lock]) == new);
    }
}

#[test]
fn what_is_waited_for_and_held_is_measured() {
    let device = device(&["slot-lock=device"]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..3000).for_each(|_| live(&device, &alloc(&device, 64))));
        }
    });
    let of = device.stats().device_lock;
    assert!(of.taken >= 4 * 3000 && of.held_ns > 0, "{of:?}");
    assert_eq!(of.contended > 0, of.waited_ns > 0, "{of:?}");
    assert!(Duration::from_nanos(of.held_ns) < Duration::from_secs(60), "{of:?}");
}
