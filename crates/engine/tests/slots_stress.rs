//! The slot allocator under real threads: no slot is given twice, and no allocation fails while a slot is
//! free. And over many rounds: fragmentation, locks per batch, memory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use memspill_engine::slots::Slots;
use memspill_engine::tuning::{ScanBase, Tuning};
use memspill_engine::units::{CpuId, FrameId, GroupId, Order, SlotIndex};

/// Numbers that are the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
    fn shuffle<T>(&mut self, items: &mut [T]) {
        (1..items.len()).rev().for_each(|i| items.swap(i, self.below(i + 1)));
    }
}

fn device(slots: u32, cpus: u32) -> Slots {
    Slots::new(slots, cpus, false, &Tuning::default())
}

fn device_with(slots: u32, cpus: u32, scan_base: ScanBase) -> Slots {
    Slots::new(slots, cpus, false, &Tuning { scan_base, ..Tuning::default() })
}

/// One lock for the lists of clusters, or, with CPU numbers so far apart, a part of them for each thread.
const APART: [u32; 2] = [1, 16];
const SCAN_BASES: [ScanBase; 4] =
    [ScanBase::Shared, ScanBase::PerCpu, ScanBase::PerCpuTrunk, ScanBase::Lists];

fn pages_of(folios: &[SlotIndex], order: Order) -> Vec<SlotIndex> {
    folios.iter().flat_map(|first| (first.0..first.0 + order.pages()).map(SlotIndex)).collect()
}

fn alloc(device: &Slots, cpu: u32, order: Order, n: usize) -> Vec<SlotIndex> {
    let mut out = Vec::new();
    device.alloc(CpuId(cpu), order, n, GroupId(1), &mut out);
    out
}

fn give_back(device: &Slots, cpu: u32, slots: &[SlotIndex]) {
    let mut freed = Vec::new();
    device.put(slots, &mut freed);
    device.release(CpuId(cpu), &freed);
}

/// What the threads of a stress run share: for each slot whether somebody has it, and slots handed to whoever
/// takes them first (with a reference of their own, as a fork leaves them).
struct Shared {
    device: Slots,
    taken: Vec<AtomicBool>,
    common: Mutex<Vec<SlotIndex>>,
}

impl Shared {
    fn free(&self, cpu: CpuId, freed: &[SlotIndex]) {
        for slot in freed {
            assert!(self.taken[slot.index()].swap(false, Ordering::Relaxed), "{slot:?} freed twice");
        }
        self.device.release(cpu, freed);
    }

    /// Somebody else's reference: look into the cache as a fault does, then let go.
    fn visit_common(&self, cpu: CpuId) {
        let Some(slot) = self.common.lock().unwrap().pop() else { return };
        if let Some(frame) = self.device.cache_get(slot) {
            assert_eq!(frame.0, slot.0, "a frame of another slot");
            let release = self.device.cache_unpin(slot);
            assert!(!release.slot_freed, "a reference is held");
        }
        let mut freed = Vec::new();
        self.device.put(&[slot], &mut freed);
        self.free(cpu, &freed);
    }

    /// One batch through its life: slots, cache, write, out of the cache, away.
    fn batch(&self, cpu: CpuId, random: &mut Random) {
        let order = Order(random.below(10).saturating_sub(4) as u8);
        let mut folios = Vec::new();
        self.device.alloc(cpu, order, 1 + random.below(24), GroupId(1 + cpu.0 as u16), &mut folios);
        let mut slots = pages_of(&folios, order);
        for slot in &slots {
            assert!(!self.taken[slot.index()].swap(true, Ordering::Relaxed), "{slot:?} handed out twice");
        }
        let batch: Vec<_> = slots.iter().map(|slot| (*slot, FrameId(slot.0))).collect();
        self.device.cache_add(&batch);
        for slot in slots.iter().filter(|slot| slot.0 % 7 == 0) {
            self.device.dup(*slot);
            self.common.lock().unwrap().push(*slot);
        }
        self.visit_common(cpu);
        let (mut frames, mut freed) = (Vec::new(), Vec::new());
        self.device.cache_delete(&slots, Some(5), &mut frames, &mut freed);
        self.visit_common(cpu);
        random.shuffle(&mut slots);
        self.device.put(&slots, &mut freed);
        self.free(cpu, &freed);
    }
}

#[test]
fn no_slot_is_handed_out_twice() {
    for apart in APART {
        SCAN_BASES.into_iter().for_each(|scan_base| hand_out_from_threads(scan_base, apart));
    }
}

fn hand_out_from_threads(scan_base: ScanBase, apart: u32) {
    const THREADS: u32 = 4;
    // About what the threads want at once: often full, so that all the ways to a slot are taken.
    let slots = 4000;
    let taken = (0..slots).map(|_| AtomicBool::new(false)).collect();
    let device = device_with(slots, THREADS * apart, scan_base);
    let shared = Shared { device, taken, common: Mutex::default() };
    std::thread::scope(|scope| {
        for cpu in (0..THREADS).map(|thread| CpuId(thread * apart)) {
            let shared = &shared;
            scope.spawn(move || {
                let mut random = Random(u64::from(cpu.0) + 1);
                (0..1500).for_each(|_| shared.batch(cpu, &mut random));
            });
        }
    });
    shared.device.check();
    while !shared.common.lock().unwrap().is_empty() {
        shared.visit_common(CpuId(0));
    }
    shared.device.check();
    assert_eq!(shared.device.used_slots(), 0);
    assert_eq!(shared.device.free_slots(), u64::from(slots) - 1);
}

#[test]
fn order_0_never_fails_while_a_slot_is_free() {
    for apart in APART {
        SCAN_BASES.into_iter().for_each(|scan_base| order_0_from_threads(scan_base, apart));
    }
}

fn order_0_from_threads(scan_base: ScanBase, apart: u32) {
    const THREADS: u32 = 8;
    // Eight slots are free, one for each thread, spread over clusters of three orders.
    let device = device_with(8 * 512, THREADS * apart, scan_base);
    let large = [alloc(&device, 0, Order(4), 60), alloc(&device, 1, Order(2), 100)];
    let small = alloc(&device, 2, Order(0), 8 * 512);
    assert_eq!(device.free_slots(), 0);
    let holes =
        [large[0][3], large[0][50], large[1][7], large[1][99], small[0], small[700], small[701], small[1500]];
    give_back(&device, 0, &holes);
    device.check();
    std::thread::scope(|scope| {
        for cpu in (0..THREADS).map(|thread| thread * apart) {
            let device = &device;
            scope.spawn(move || {
                for round in 0..4000 {
                    let slot = alloc(device, cpu, Order(0), 1);
                    assert_eq!(slot.len(), 1, "round {round}: a slot was free");
                    // An order without a free block must not disturb allocations of other orders.
                    assert!(alloc(device, cpu, Order(9), 1).is_empty());
                    give_back(device, cpu, &slot);
                }
            });
        }
    });
    device.check();
    assert_eq!(device.free_slots(), 8);
}

/// Fill to nine tenths, then a hundred times: free a random quarter of the folios, and fill again.
fn fallbacks_after_rounds(small_share_percent: usize) -> (u64, Slots) {
    const ORDER: Order = Order(4);
    let device = device(1 << 14, 1);
    let usable = (1 << 14) * 9 / 10;
    let small = usable * small_share_percent / 100;
    let large = (usable - small) / ORDER.pages() as usize;
    let mut random = Random(4);
    let (mut folios, mut pages) = (alloc(&device, 0, ORDER, large), alloc(&device, 0, Order(0), small));
    assert_eq!((folios.len(), pages.len()), (large, small));
    for _ in 0..100 {
        random.shuffle(&mut folios);
        random.shuffle(&mut pages);
        let gone = folios.split_off(large - large / 4);
        give_back(&device, 0, &pages_of(&gone, ORDER));
        give_back(&device, 0, &pages.split_off(small - small / 4));
        device.check();
        pages.extend(alloc(&device, 0, Order(0), small / 4));
        folios.extend(alloc(&device, 0, ORDER, large / 4));
        device.check();
        assert_eq!(pages.len(), small, "order 0 falls back to nothing");
        assert_eq!(folios.len(), large, "{:?}", device.stats());
    }
    (device.stats().failed[ORDER.0 as usize], device)
}

#[test]
fn large_folios_do_not_fragment_a_device() {
    let (fallbacks, device) = fallbacks_after_rounds(0);
    assert_eq!(fallbacks, 0);
    assert_eq!(device.stats().stolen_slots, 0);
}

#[test]
fn large_folios_keep_their_room_beside_small_pages() {
    let (fallbacks, device) = fallbacks_after_rounds(8);
    assert_eq!(fallbacks, 0);
    assert_eq!(device.stats().stolen_slots, 0);
}

/// Where a row of slots is no row on the medium, pages that left one by one need no cluster beside folios
/// with room among their pages.
#[test]
fn single_pages_fill_holes_where_slots_are_packed() {
    const ORDER: Order = Order(4);
    const FOLIOS: usize = 8 * 32 - 1;
    for packs in [true, false] {
        let device = Slots::new(1 << 16, 1, false, &Tuning::default());
        let device = if packs { device.packing() } else { device };
        // Slot 0 is nobody's, so that one page has a cluster almost for itself.
        alloc(&device, 0, Order(0), 512);
        let folios = alloc(&device, 0, ORDER, 1 + FOLIOS);
        let (block, torn) = folios.split_first().expect("they fit");
        give_back(&device, 0, &torn.iter().map(|first| SlotIndex(first.0 + 5)).collect::<Vec<_>>());
        give_back(&device, 0, &pages_of(&[*block], ORDER));
        let tables = device.table_bytes();
        let pages = alloc(&device, 0, Order(0), 511 + FOLIOS);
        device.check();
        assert_eq!(pages.len(), 511 + FOLIOS);
        assert_eq!(device.stats().stolen_slots, if packs { FOLIOS as u64 } else { 0 });
        assert_eq!(device.table_bytes() > tables, !packs);
        let of_block = pages_of(&[*block], ORDER);
        assert!(!pages.iter().any(|page| of_block.contains(page)), "no block is torn for a page");
        let tables = device.table_bytes();
        assert_eq!((alloc(&device, 0, ORDER, 1), device.table_bytes()), (vec![*block], tables));
    }
}

#[test]
fn locks_are_taken_per_batch() {
    let locks_for = |batch: u32| {
        let tuning = Tuning { slot_batch: batch, cache_batch: batch, ..Tuning::default() };
        let device = Slots::new(1 << 14, 1, false, &tuning);
        let slots = {
            let mut out = Vec::new();
            device.alloc(CpuId(0), Order(0), 511, GroupId(1), &mut out);
            out
        };
        let after_alloc = device.stats().cluster_lock.taken;
        device.cache_add(&slots.iter().map(|slot| (*slot, FrameId(slot.0))).collect::<Vec<_>>());
        let after_add = device.stats().cluster_lock.taken;
        device.dup_many(&slots);
        assert_eq!(device.stats().cluster_lock.taken - after_add, 1, "a fork takes one lock for a cluster");
        assert_eq!(device.stats().cluster_lock.contended, 0);
        (after_alloc, after_add - after_alloc)
    };
    assert_eq!(locks_for(1), (511, 511));
    assert_eq!(locks_for(64), (8, 8));
}

#[test]
fn a_batch_is_one_run_where_that_is_possible() {
    let device = device(1 << 12, 2);
    let mut last = [0, 0];
    for round in 0..7 {
        for cpu in 0..2u32 {
            let slots = alloc(&device, cpu, Order(0), 64);
            assert!(slots.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1), "round {round}: {slots:?}");
            let follows = slots[0].0 == last[cpu as usize] + 1;
            assert!(round == 0 || follows, "round {round}: a CPU goes on where it left off");
            last[cpu as usize] = slots[63].0;
        }
    }
    assert_ne!(last[0] / 512, last[1] / 512, "CPUs are in clusters of their own");
}

#[test]
fn memory_follows_use() {
    let device = device(1 << 31, 16);
    let empty = device.table_bytes();
    assert!(empty < 1 << 20, "an unused device of 8 TiB takes {empty} bytes");
    let slots = alloc(&device, 0, Order(0), 511 + 512 * 255);
    let per_slot = (device.table_bytes() - empty) as f64 / slots.len() as f64;
    assert!(per_slot < 12.0, "{per_slot} bytes a slot");
    give_back(&device, 0, &slots);
    device.check();
    assert_eq!(device.used_slots(), 0);
    // The ids (2 bytes a slot) and the clusters stay; the words (8 bytes a slot) go.
    let kept = (device.table_bytes() - empty) as f64 / slots.len() as f64;
    assert!(kept < 3.0, "{kept} bytes a slot are kept");
}

#[test]
fn devices_of_no_size_work() {
    for slots in [0, 1, 2, 511, 512, 513, 514] {
        let device = device(slots, 1);
        let free = slots.saturating_sub(1);
        assert_eq!(alloc(&device, 0, Order(0), 1000).len() as u32, free);
        assert_eq!(device.used_slots(), u64::from(free));
        device.check();
    }
}

#[test]
fn a_frame_deleted_while_pinned_stays_until_the_last_unpin() {
    let device = device(1024, 1);
    let slot = alloc(&device, 0, Order(0), 1)[0];
    device.cache_add(&[(slot, FrameId(9))]);
    assert_eq!(device.cache_add_or_get(slot, FrameId(10)), Some(FrameId(9)), "pinned once");
    let (mut frames, mut freed) = (Vec::new(), Vec::new());
    device.cache_delete(&[slot], Some(3), &mut frames, &mut freed);
    assert!(frames.is_empty() && freed.is_empty());
    assert_eq!(device.cache_get(slot), Some(FrameId(9)), "its bytes are still the slot's");
    assert_eq!(device.shadow(slot), None);
    assert_eq!(device.cache_unpin(slot), Default::default());
    let release = device.cache_unpin(slot);
    assert!(release.frame_freed && !release.slot_freed);
    assert_eq!(device.shadow(slot), Some(3));
    assert_eq!(device.cache_add_or_get(slot, FrameId(10)), None, "added");
    device.put(&[slot], &mut freed);
    assert!(freed.is_empty(), "only in the cache now");
    device.cache_delete(&[slot], Some(4), &mut frames, &mut freed);
    assert_eq!((frames, &freed[..]), (vec![FrameId(10)], &[slot][..]));
    assert_eq!(device.shadow(slot), None, "a shadow dies with its slot");
    assert_eq!(device.release(CpuId(0), &freed), [(GroupId(1), 1)]);
    device.check();
}

fn panics_with(text: &str, act: impl FnOnce(&Slots, SlotIndex) + std::panic::UnwindSafe) {
    let device = std::panic::AssertUnwindSafe(device(1024, 1));
    let slot = alloc(&device, 0, Order(0), 1)[0];
    let panic = std::panic::catch_unwind(move || act(&device, slot)).expect_err("this breaks an invariant");
    let message = panic.downcast_ref::<String>().expect("a message with numbers");
    assert!(message.contains(text), "{message}");
}

#[test]
fn broken_callers_are_stopped() {
    let add = |device: &Slots, slot, frame| device.cache_add(&[(slot, FrameId(frame))]);
    panics_with("gets another reference", |device, slot| {
        device.put(&[slot], &mut Vec::new());
        device.dup(slot);
    });
    panics_with("is used but free", |device, slot| device.dup(SlotIndex(slot.0 + 1)));
    panics_with("loses a reference", |device, slot| _ = device.put(&[slot, slot], &mut Vec::new()));
    panics_with("is released but not dying", |device, slot| drop(device.release(CpuId(0), &[slot])));
    panics_with("is in the swap cache already", move |device, slot| {
        add(device, slot, 1);
        add(device, slot, 2);
    });
    panics_with("is not in it", |device, slot| {
        device.cache_delete(&[slot], None, &mut Vec::new(), &mut Vec::new());
    });
    panics_with("is unpinned but not pinned", |device, slot| _ = device.cache_unpin(slot));
    panics_with("is free, with its whole cluster", |device, _| device.dup(SlotIndex(600)));
    panics_with("slot 1024 of a device of 1024", |device, _| device.dup(SlotIndex(1024)));
    panics_with("no room for another", |device, slot| device.dup_many(&vec![slot; 1 << 18]));
    panics_with("holds the pages of slots", move |device, slot| {
        let other = alloc(device, 0, Order(0), 1)[0];
        add(device, slot, 1);
        add(device, other, 1);
        device.check();
    });
}

/// CPUs have counters of their own for what they free. An allocation of the last slots gets them, on
/// whichever counter they are.
#[test]
fn what_other_cpus_have_freed_is_found() {
    const CPUS: u32 = 16;
    let device = Slots::new(4097, CPUS, false, &Tuning::default());
    let mut slots = Vec::new();
    assert_eq!(device.alloc(CpuId(0), Order::ZERO, 5000, GroupId(1), &mut slots), 4096);
    for (n, part) in slots.chunks(256).enumerate() {
        let mut freed = Vec::new();
        device.put(part, &mut freed);
        part.chunks(7).for_each(|some| drop(device.release(CpuId(n as u32 % CPUS), some)));
    }
    assert_eq!((device.free_slots(), device.used_slots()), (4096, 0));
    device.check();
    let mut again = Vec::new();
    assert_eq!(
        device.alloc(CpuId(3), Order(4), 300, GroupId(1), &mut again),
        255,
        "for large folios too; slot 0 is nobody's"
    );
    assert_eq!((device.free_slots(), device.used_slots()), (16, 4080));
}
