//! The slot allocator and swap cache against a naive model: one record per slot, no clusters, no lists, no
//! bits.
//!
//! After every step the device checks itself, and the model checks what it can see: who has which slot, how
//! many are free, which folios fit. Because one thread is inside at a time, the model may demand exactness:
//! an allocation that fails must have had no place to go, and one may steal from clusters of another order
//! only where there is no room in those of its own. A device that discards calls the function once for each
//! cluster that has become empty, before a slot of it is handed out again.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use memspill_engine::slots::Slots;
use memspill_engine::tuning::{CgroupMapForm, LargeFolios, ScanBase, Tuning};
use memspill_engine::units::{CLUSTER_SLOTS, ClusterIndex, CpuId, FrameId, GroupId, Order, SlotIndex};
use proptest::prelude::*;

#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Slot {
    used: bool,
    dying: bool,
    count: u32,
    group: u16,
    frame: Option<u32>,
    retired: bool,
    pins: u32,
    shadow: Option<u32>,
    /// Given to `cache_delete` while the frame was pinned.
    late_shadow: Option<u32>,
}

impl Slot {
    fn dies(&mut self) -> bool {
        let dies = self.used && !self.dying && self.count == 0 && self.frame.is_none();
        if dies {
            self.dying = true;
            self.shadow = None;
        }
        dies
    }
}

#[derive(Clone, Debug)]
enum Op {
    Alloc {
        cpu: u32,
        order: u8,
        n: usize,
        group: u16,
    },
    Dup(Vec<usize>),
    Put(Vec<usize>),
    Release(usize),
    /// This many clusters are discarded, if they wait for it.
    Discard(usize),
    CacheAdd(Vec<usize>),
    CacheGet(usize),
    CacheUnpin(usize),
    CacheDelete(Vec<usize>, Option<u32>),
    /// Everything that is free can be had as order 0, and not one slot more; and is given back.
    TakeAll(u32),
    /// The same, and then every n-th slot in use is given back: a device without an empty cluster.
    Fragment {
        cpu: u32,
        every: usize,
    },
}

struct World {
    device: Slots,
    packs: bool,
    large_folios: LargeFolios,
    slots: Vec<Slot>,
    /// Order of each cluster that is not empty.
    orders: Vec<Option<u8>>,
    /// Empty clusters that are to be discarded, if the device discards.
    waiting: Option<Arc<Mutex<BTreeSet<ClusterIndex>>>>,
    dying: Vec<SlotIndex>,
    next_frame: u32,
}

impl World {
    fn new(
        slots: u32,
        cpus: u32,
        rotational: bool,
        (discards, packs): (bool, bool),
        tuning: &Tuning,
    ) -> World {
        let mut device = Slots::new(slots, cpus, rotational, tuning);
        if packs {
            device = device.packing();
        }
        let waiting: Option<Arc<Mutex<BTreeSet<ClusterIndex>>>> = discards.then(Arc::default);
        if let Some(waiting) = waiting.clone() {
            device = device.discarding(move |cluster| {
                assert!(
                    waiting.lock().unwrap().remove(&cluster),
                    "{cluster:?} is discarded, and was not to be"
                );
            });
        }
        World {
            device,
            waiting,
            packs,
            large_folios: tuning.large_folios,
            slots: vec![Slot::default(); slots as usize],
            orders: vec![None; slots.div_ceil(CLUSTER_SLOTS) as usize],
            dying: Vec::new(),
            next_frame: 0,
        }
    }

    fn free(&self) -> usize {
        self.slots.iter().skip(1).filter(|slot| !slot.used).count()
    }

    /// The slots that satisfy `is`, at the places that `wanted` picks, each once.
    fn choose(&self, wanted: &[usize], is: impl Fn(&Slot) -> bool) -> Vec<SlotIndex> {
        let all: Vec<u32> = (1..self.slots.len() as u32).filter(|i| is(&self.slots[*i as usize])).collect();
        let mut chosen: Vec<SlotIndex> = Vec::new();
        for at in wanted.iter().filter(|_| !all.is_empty()) {
            let slot = SlotIndex(all[at % all.len()]);
            if !chosen.contains(&slot) {
                chosen.push(slot);
            }
        }
        chosen
    }

    fn waiting(&self) -> BTreeSet<ClusterIndex> {
        self.waiting.as_ref().map(|waiting| waiting.lock().unwrap().clone()).unwrap_or_default()
    }

    fn block_is_free(&self, start: usize, pages: usize) -> bool {
        let range = start..start + pages;
        start > 0 && range.end <= self.slots.len() && range.into_iter().all(|i| !self.slots[i].used)
    }

    /// Is there an aligned free block in a cluster that is empty or of this order? (With `free-cluster-only`:
    /// one that is empty, if it is not for single pages.) Clusters `without` are not looked at.
    fn has_room(&self, order: u8, without: &BTreeSet<ClusterIndex>) -> bool {
        let only_empty = order > 0 && self.large_folios == LargeFolios::FreeClusterOnly;
        let pages = 1usize << order;
        let starts = (0..self.slots.len()).step_by(pages);
        starts.into_iter().any(|start| {
            let of_order =
                self.orders[start / CLUSTER_SLOTS as usize].is_none_or(|o| o == order && !only_empty);
            let is_ready = !without.contains(&SlotIndex(start as u32).cluster());
            // Order 0 has a block at slot 0 that does not count; larger ones there contain slot 0.
            of_order && is_ready && self.block_is_free(start, pages)
        })
    }

    /// It is free, and the 64 KiB around it are not.
    fn is_hole(&self, slot: SlotIndex) -> bool {
        let first = slot.index() & !15;
        (first..first + 16).any(|i| i == 0 || self.slots.get(i).is_none_or(|slot| slot.used))
    }

    /// Is there, for a large folio, a block that is free anywhere? Below 64 KiB one of 64 KiB is needed.
    fn has_room_of_others(&self, order: u8, without: &BTreeSet<ClusterIndex>) -> bool {
        let pages = 1usize << order.max(4);
        order > 0
            && self.large_folios == LargeFolios::All
            && (0..self.slots.len()).step_by(pages).any(|start| {
                !without.contains(&SlotIndex(start as u32).cluster()) && self.block_is_free(start, pages)
            })
    }

    fn alloc(&mut self, cpu: u32, order: u8, n: usize, group: u16) -> Vec<SlotIndex> {
        let mut out = vec![SlotIndex(77)];
        let waiting = self.waiting();
        let in_waiting = |slot: u32| waiting.contains(&SlotIndex(slot).cluster());
        let in_reach =
            (1..self.slots.len() as u32).filter(|i| !self.slots[*i as usize].used && !in_waiting(*i)).count();
        let got = self.device.alloc(CpuId(cpu), Order(order), n, GroupId(group), &mut out);
        assert_eq!(out.remove(0), SlotIndex(77), "what was in the vector stays");
        assert_eq!(got, out.len());
        assert!(got <= n);
        for first in &out {
            let stole = self.orders[first.cluster().index()].is_some_and(|o| o != order);
            let may_steal = order == 0 || self.large_folios == LargeFolios::All;
            let packs = self.packs && self.large_folios != LargeFolios::FreeClusterOnly;
            let may_pack = order == 0 && packs && self.is_hole(*first);
            assert!(
                !stole || (may_steal && (may_pack || !self.has_room(order, &waiting))),
                "slot {first:?} stolen for order {order}"
            );
            self.hand_out(*first, order, group);
        }
        assert!(got == n || !self.has_room(order, &waiting), "order {order}: {got} of {n}, with room left");
        assert!(
            got == n || !self.has_room_of_others(order, &waiting),
            "order {order}: a block is left alone"
        );
        assert!(order > 0 || got == n || self.free() == 0, "order 0 failed with slots left");
        let had_to = order == 0 && n > in_reach;
        assert!(
            had_to || self.waiting() == waiting,
            "clusters were discarded with {in_reach} slots free elsewhere, for {n}"
        );
        out
    }

    fn hand_out(&mut self, first: SlotIndex, order: u8, group: u16) {
        assert_eq!(first.0 % (1 << order), 0, "aligned");
        assert!(first.0 > 0 || order > 0, "slot 0 is never handed out");
        assert!(self.block_is_free(first.0 as usize, 1 << order), "{first:?} of order {order} is not free");
        assert!(
            !self.waiting().contains(&first.cluster()),
            "{first:?} is handed out before its cluster is discarded"
        );
        self.orders[first.cluster().index()].get_or_insert(order);
        for i in first.index()..first.index() + (1 << order) {
            self.slots[i] = Slot { used: true, count: 1, group, ..Slot::default() };
        }
    }

    fn put(&mut self, slots: &[SlotIndex]) {
        let mut freed = Vec::new();
        self.device.put(slots, &mut freed);
        let mut expected = Vec::new();
        for slot in slots {
            let model = &mut self.slots[slot.index()];
            model.count -= 1;
            if model.count == 0 {
                model.late_shadow = None;
            }
            expected.extend(model.dies().then_some(*slot));
        }
        assert_eq!(freed, expected);
        self.dying.extend(freed);
    }

    fn release(&mut self, n: usize) {
        let slots: Vec<SlotIndex> = self.dying.drain(..n.min(self.dying.len())).collect();
        // Before: a release may empty a cluster.
        if let Some(waiting) = &self.waiting {
            let left = |cluster: ClusterIndex| {
                let of_it = |slot: &&SlotIndex| slot.cluster() == cluster;
                let used = self
                    .slots
                    .iter()
                    .skip(cluster.index() * CLUSTER_SLOTS as usize)
                    .take(CLUSTER_SLOTS as usize);
                used.filter(|slot| slot.used).count() - slots.iter().filter(of_it).count()
            };
            let clusters: BTreeSet<ClusterIndex> = slots.iter().map(|slot| slot.cluster()).collect();
            waiting.lock().unwrap().extend(clusters.into_iter().filter(|cluster| left(*cluster) == 0));
        }
        let mut owners = self.device.release(CpuId(0), &slots);
        let mut expected: Vec<(GroupId, u32)> = Vec::new();
        for slot in &slots {
            let group = GroupId(std::mem::take(&mut self.slots[slot.index()]).group);
            match expected.iter_mut().find(|(g, _)| *g == group) {
                Some((_, n)) => *n += 1,
                None if group.0 == 0 => {}
                None => expected.push((group, 1)),
            }
        }
        owners.sort();
        expected.sort();
        assert_eq!(owners, expected);
        for (cluster, order) in self.orders.iter_mut().enumerate() {
            let of_cluster =
                self.slots.iter().skip(cluster * CLUSTER_SLOTS as usize).take(CLUSTER_SLOTS as usize);
            if of_cluster.into_iter().all(|slot| !slot.used) {
                *order = None;
            }
        }
    }

    fn cache_add(&mut self, slots: &[SlotIndex]) {
        let mut batch = Vec::new();
        for slot in slots {
            self.next_frame += 1;
            batch.push((*slot, FrameId(self.next_frame)));
            let model = &mut self.slots[slot.index()];
            (model.frame, model.shadow) = (Some(self.next_frame), None);
        }
        self.device.cache_add(&batch);
    }

    fn cache_unpin(&mut self, slot: SlotIndex) {
        let release = self.device.cache_unpin(slot);
        let model = &mut self.slots[slot.index()];
        model.pins -= 1;
        let leaves = model.pins == 0 && model.retired;
        if leaves {
            (model.frame, model.retired) = (None, false);
            model.shadow = model.late_shadow.take();
        }
        let dies = model.dies();
        assert_eq!((release.frame_freed, release.slot_freed), (leaves, dies));
        self.dying.extend(dies.then_some(slot));
    }

    fn cache_delete(&mut self, slots: &[SlotIndex], shadow: Option<u32>) {
        let (mut frames, mut freed) = (Vec::new(), Vec::new());
        self.device.cache_delete(slots, shadow, &mut frames, &mut freed);
        let (mut expected_frames, mut expected_freed) = (Vec::new(), Vec::new());
        for slot in slots {
            let model = &mut self.slots[slot.index()];
            if model.pins > 0 {
                model.retired = true;
                model.late_shadow = shadow.filter(|_| model.count > 0);
                continue;
            }
            expected_frames.extend(model.frame.take().map(FrameId));
            model.shadow = shadow;
            expected_freed.extend(model.dies().then_some(*slot));
        }
        assert_eq!((frames, &freed), (expected_frames, &expected_freed));
        self.dying.extend(freed);
    }

    fn take_all(&mut self, cpu: u32) {
        let free = self.free();
        let slots = self.alloc(cpu, 0, free + 3, 9);
        assert_eq!(slots.len(), free, "every free slot can be had");
        self.agree();
        self.put(&slots);
        self.release(usize::MAX);
    }

    fn fragment(&mut self, cpu: u32, every: usize) {
        let free = self.free();
        self.alloc(cpu, 0, free, 1);
        let only_here = |slot: &SlotIndex| self.slots[slot.index()].count == 1;
        let all = (1..self.slots.len() as u32).map(SlotIndex).filter(only_here);
        let some: Vec<SlotIndex> = all.step_by(every).collect();
        self.put(&some);
        self.release(usize::MAX);
    }

    fn step(&mut self, op: &Op) {
        let cached = |slot: &Slot| slot.frame.is_some() && !slot.retired;
        match op {
            Op::Alloc { cpu, order, n, group } => drop(self.alloc(*cpu, *order, *n, *group)),
            Op::Dup(at) => {
                let slots = self.choose(at, |slot| slot.count > 0);
                slots.iter().for_each(|slot| self.slots[slot.index()].count += 1);
                self.device.dup_many(&slots);
            }
            Op::Put(at) => self.put(&self.choose(at, |slot| slot.count > 0)),
            Op::Release(n) => self.release(*n),
            Op::Discard(n) => {
                let before = self.waiting().len();
                let more = self.device.discard_waiting(*n);
                assert_eq!(self.waiting().len(), before.saturating_sub(*n));
                assert!(more || self.waiting().is_empty());
            }
            Op::CacheAdd(at) => {
                self.cache_add(&self.choose(at, |slot| slot.count > 0 && slot.frame.is_none()))
            }
            Op::CacheGet(at) => {
                let wanted: Vec<usize> = (*at..at + 5).chain([at / 2]).collect();
                let slots = self.choose(&wanted, |slot| slot.used && !slot.dying);
                let mut got = vec![None; slots.len()];
                self.device.cache_get_many(&slots, |place, frame| got[place] = Some(frame));
                let mut shadows = vec![None; slots.len()];
                self.device.shadows(&slots, |place, shadow| shadows[place] = Some(shadow));
                for ((slot, got), shadow) in slots.iter().zip(got).zip(shadows) {
                    let model = &mut self.slots[slot.index()];
                    assert_eq!((got, shadow), (model.frame.map(FrameId), model.shadow));
                    model.pins += u32::from(model.frame.is_some());
                }
            }
            Op::CacheUnpin(at) => {
                self.choose(&[*at], |slot| slot.pins > 0).iter().for_each(|slot| self.cache_unpin(*slot));
            }
            Op::CacheDelete(at, shadow) => self.cache_delete(&self.choose(at, cached), *shadow),
            Op::TakeAll(cpu) => self.take_all(*cpu),
            Op::Fragment { cpu, every } => self.fragment(*cpu, *every),
        }
    }

    /// The device and the model say the same about every slot.
    fn agree(&self) {
        self.device.check();
        assert_eq!(self.device.free_slots() as usize, self.free());
        assert_eq!(self.device.used_slots() as usize, self.slots.len() - 1 - self.free());
        let mut by_group = HashMap::new();
        let owned = self.slots.iter().filter(|slot| slot.group != 0);
        owned.for_each(|slot| *by_group.entry(GroupId(slot.group)).or_default() += 1);
        assert_eq!(self.device.slots_by_group(), by_group);
        for (i, model) in self.slots.iter().enumerate().skip(1) {
            let slot = SlotIndex(i as u32);
            let seen = (self.device.count(slot), self.device.shadow(slot), self.device.group_of(slot));
            assert_eq!(seen, (model.count, model.shadow, GroupId(model.group)), "slot {i}");
        }
    }

    /// Give everything back: nothing may be left.
    fn drain(&mut self) {
        let all = |world: &World, is: fn(&Slot) -> bool| {
            let slots = (1..world.slots.len()).filter(|i| is(&world.slots[*i]));
            slots.map(|i| SlotIndex(i as u32)).collect::<Vec<_>>()
        };
        self.cache_delete(&all(self, |slot| slot.frame.is_some() && !slot.retired), None);
        for slot in all(self, |slot| slot.pins > 0) {
            (0..self.slots[slot.index()].pins).for_each(|_| self.cache_unpin(slot));
        }
        for slot in all(self, |slot| slot.count > 0) {
            (0..self.slots[slot.index()].count).for_each(|_| self.put(&[slot]));
        }
        self.release(usize::MAX);
        self.agree();
        assert_eq!(self.device.used_slots(), 0);
        let waits = !self.waiting().is_empty();
        assert_eq!(self.device.retire(CpuId(0)), !waits, "it leaves when nothing waits to be discarded");
        self.step(&Op::Discard(usize::MAX));
        assert!(!waits || self.device.retire(CpuId(0)));
    }
}

fn places() -> impl Strategy<Value = Vec<usize>> {
    // Runs, because batches are runs in life, and scattered places.
    let run = (any::<u16>(), 1..200usize).prop_map(|(at, n)| (at as usize..at as usize + n).collect());
    let scattered = prop::collection::vec(any::<u16>().prop_map(usize::from), 0..40);
    prop_oneof![run, scattered]
}

fn op() -> impl Strategy<Value = Op> {
    let order = prop_oneof![3 => Just(0u8), 4 => 0..=9u8];
    let alloc = (0..3u32, order, 1..130usize, 0..4u16).prop_map(|(cpu, order, n, group)| Op::Alloc {
        cpu,
        order,
        n: n.min(1 << (10 - order)),
        group,
    });
    prop_oneof![
        6 => alloc,
        1 => places().prop_map(Op::Dup),
        4 => places().prop_map(Op::Put),
        3 => prop_oneof![1..50usize, Just(usize::MAX)].prop_map(Op::Release),
        1 => (1..4usize).prop_map(Op::Discard),
        2 => places().prop_map(Op::CacheAdd),
        2 => any::<u16>().prop_map(|at| Op::CacheGet(at.into())),
        2 => any::<u16>().prop_map(|at| Op::CacheUnpin(at.into())),
        2 => (places(), any::<Option<u32>>()).prop_map(|(at, shadow)| Op::CacheDelete(at, shadow)),
        1 => (0..3u32).prop_map(Op::TakeAll),
        1 => (0..3u32, 1..200usize).prop_map(|(cpu, every)| Op::Fragment { cpu, every }),
    ]
}

fn tuning() -> impl Strategy<Value = Tuning> {
    let (cluster, map) = (CgroupMapForm::Cluster, [CgroupMapForm::Locked, CgroupMapForm::LockFree]);
    let form = prop_oneof![2 => Just(cluster), 1 => Just(map[0]), 1 => Just(map[1])];
    let older = vec![ScanBase::Shared, ScanBase::PerCpu, ScanBase::PerCpuTrunk];
    let base = prop_oneof![Just(ScanBase::Lists), prop::sample::select(older)];
    let large = prop_oneof![3 => Just(LargeFolios::All), 1 => Just(LargeFolios::FreeClusterOnly)];
    (base, prop_oneof![Just(1u32), Just(64), 1..=64u32], 1..=64u32, form, large).prop_map(
        |(scan_base, slot_batch, cache_batch, cgroup_map, large_folios)| Tuning {
            large_folios,
            scan_base,
            slot_batch,
            cache_batch,
            cgroup_map,
            ..Tuning::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2048, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn device_agrees_with_the_model(
        slots in prop_oneof![1..600u32, 1..4000u32],
        rotational: bool,
        discards_packs: (bool, bool),
        // The lists in one part, or in three.
        cpus in prop_oneof![Just(3), Just(48)],
        tuning in tuning(),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut world = World::new(slots, cpus, rotational, discards_packs, &tuning);
        for op in &ops {
            world.step(op);
            world.agree();
        }
        world.drain();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Several trunks, so that scan bases move from one to another.
    #[test]
    fn a_device_of_several_trunks_agrees_with_the_model(
        slots in 30_000..70_000u32,
        rotational: bool,
        discards_packs: (bool, bool),
        // The lists in one part, or in three.
        cpus in prop_oneof![Just(3), Just(48)],
        tuning in tuning(),
        every in 1..2000usize,
        ops in prop::collection::vec(op(), 1..25),
    ) {
        let mut world = World::new(slots, cpus, rotational, discards_packs, &tuning);
        world.step(&Op::Fragment { cpu: 0, every });
        for op in &ops {
            world.step(op);
        }
        world.agree();
        world.drain();
    }
}
