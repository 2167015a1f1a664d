//! The swap cgroup map: both forms against a plain table, and neighbours in one word under real threads.

use memspill_engine::slots::cgroup_map::CgroupMap;
use memspill_engine::tuning::CgroupMapForm;
use memspill_engine::units::{GroupId, SlotIndex};
use proptest::prelude::*;

const SLOTS: u32 = 1500;

fn forms() -> impl Strategy<Value = CgroupMapForm> {
    prop_oneof![Just(CgroupMapForm::Locked), Just(CgroupMapForm::LockFree)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn map_agrees_with_a_plain_table(
        form in forms(),
        ranges in prop::collection::vec((1..SLOTS, 1..600u32, any::<u16>()), 1..60),
    ) {
        let map = CgroupMap::new(SLOTS, form);
        let mut table = [0u16; SLOTS as usize];
        for (first, n, group) in ranges {
            let n = n.min(SLOTS - first);
            let range = first as usize..(first + n) as usize;
            // A range with one owner is cleared, one without is recorded, any other is left alone.
            let owner = table[range.start];
            if table[range.clone()].iter().any(|id| *id != owner) {
                continue;
            }
            if owner == 0 {
                map.record(SlotIndex(first), n, GroupId(group));
                table[range].fill(group);
            } else {
                prop_assert_eq!(map.clear(SlotIndex(first), n), GroupId(owner));
                table[range].fill(0);
            }
            for (slot, id) in table.iter().enumerate() {
                prop_assert_eq!(map.lookup(SlotIndex(slot as u32)), GroupId(*id), "slot {}", slot);
            }
        }
    }
}

#[test]
fn neighbours_do_not_disturb_each_other() {
    for form in [CgroupMapForm::Locked, CgroupMapForm::LockFree] {
        let map = CgroupMap::new(512, form);
        // Slots 6 and 7 share a word. 8 and 9 are a word, changed in one go; 10 shares one with 11.
        let ranges = [(6, 1), (7, 1), (8, 3), (11, 1)];
        let together = std::sync::Barrier::new(ranges.len());
        std::thread::scope(|scope| {
            for (thread, (first, n)) in ranges.into_iter().enumerate() {
                let (map, together) = (&map, &together);
                scope.spawn(move || {
                    together.wait();
                    for round in 0..1_000_000u32 {
                        let group = GroupId((round % 65_000 + 1 + thread as u32) as u16);
                        map.record(SlotIndex(first), n, group);
                        assert_eq!(map.lookup(SlotIndex(first + n - 1)), group);
                        assert_eq!(map.clear(SlotIndex(first), n), group);
                    }
                });
            }
        });
        assert!((0..512).all(|slot| map.lookup(SlotIndex(slot)) == GroupId(0)));
        // Millions of times by four threads: some had to wait, be it on one CPU.
        let (locks, locked) = (map.lock_totals(), form == CgroupMapForm::Locked);
        assert_eq!((locks.taken > 0, locks.contended > 0), (locked, locked));
        assert!(locks.contended <= locks.taken);
    }
}

#[test]
fn a_range_has_one_owner() {
    let stops = |act: fn(&CgroupMap)| {
        for form in [CgroupMapForm::Locked, CgroupMapForm::LockFree] {
            let map = std::panic::AssertUnwindSafe(CgroupMap::new(64, form));
            map.record(SlotIndex(4), 3, GroupId(5));
            map.record(SlotIndex(7), 2, GroupId(6));
            std::panic::catch_unwind(move || act(&map)).expect_err("this breaks an invariant");
        }
    };
    stops(|map| map.record(SlotIndex(6), 1, GroupId(5)));
    stops(|map| map.record(SlotIndex(2), 3, GroupId(9)));
    stops(|map| _ = map.clear(SlotIndex(6), 2));
    stops(|map| _ = map.clear(SlotIndex(3), 2));
    stops(|map| _ = map.clear(SlotIndex(8), 2));
    stops(|map| map.record(SlotIndex(63), 2, GroupId(1)));
}
