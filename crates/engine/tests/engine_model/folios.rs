//! Histories of folios, which leave and come together.

use super::*;

/// The middle chunk of the three, which is there whole.
const CHUNK: u64 = 512;
const CHUNK_AT: u64 = (FIRST / CHUNK + 1) * CHUNK - FIRST;

fn folios_of(order: u8) -> Setup {
    let tuning = Tuning { folio: FolioSize::Fixed(Order(order)), ..Tuning::default() };
    Setup { tuning, limit_pages: 2000, ..one_device() }
}

fn folio_count(world: &World, order: u8, name: &str) -> u64 {
    let counts = world.engine.stats().of_order(Order(order));
    counts.iter().find(|(counter, ..)| *counter == name).expect("a counter").1
}

/// Folios of an order that left: whole, without room in a row, and those of which a part stayed.
fn left(world: &World, order: u8) -> [u64; 3] {
    ["swpout", "swpout_fallback", "swpout_partial"].map(|name| folio_count(world, order, name))
}

fn entry_of(target: &Target, page: u64) -> memspill_engine::word::SwapEntry {
    target.space.word(Vpn(FIRST + page)).held_entry().expect("the page is out")
}

#[test]
fn a_folio_leaves_whole_into_slots_in_a_row() {
    for order in 0..=9u8 {
        let mut world = World::new(&folios_of(order));
        let pages = 1u64 << order;
        world.step(&Op::Map { target: 0, page: 0, pages: PAGES });
        world.step(&Op::WriteRun { target: 0, page: CHUNK_AT, pages });
        let target = world.target(0);
        assert_eq!(world.shrink(&target, 1, true), pages as usize, "order {order}: all of it");
        let first = entry_of(&target, CHUNK_AT);
        assert_eq!(first.slot.0 % pages as u32, if order == 0 { first.slot.0 % pages as u32 } else { 0 });
        for i in 0..pages {
            assert_eq!(entry_of(&target, CHUNK_AT + i).slot.0, first.slot.0 + i as u32);
        }
        if order > 0 {
            assert_eq!(left(&world, order), [1, 0, 0], "order {order}");
        }
        world.end(false);
    }
}

#[test]
fn by_default_a_stream_brings_whole_folios() {
    for synchronous in [false, true] {
        let mut world = World::new(&Setup { synchronous, tuning: Tuning::default(), ..folios_of(6) });
        world.step(&Op::Map { target: 0, page: 0, pages: PAGES });
        world.step(&Op::WriteRun { target: 0, page: CHUNK_AT, pages: 320 });
        let target = world.target(0);
        while world.shrink(&target, 64, true) > 0 {}
        let mut brought = Vec::new();
        for page in 0..320 {
            let before = target.space.resident_pages();
            world.step(&Op::Read { target: 0, page: CHUNK_AT + page });
            brought.extend(Some(target.space.resident_pages() - before).filter(|pages| *pages > 0));
        }
        let whole: Vec<u64> = (4..=6).map(|order| folio_count(&world, order, "swpin")).collect();
        assert_eq!(brought, [1, 2, 13, 48, 64, 64, 64, 64], "whole: {whole:?}");
        assert_eq!(whole, [1, 1, 4]);
        assert_eq!(world.engine.stats().sum(|c| &c.pgmajfault), 8);
        world.end(false);
    }
}

#[test]
fn a_folio_comes_in_whole() {
    for synchronous in [false, true] {
        let mut world = World::new(&Setup { synchronous, ..folios_of(6) });
        world.step(&Op::Map { target: 0, page: 0, pages: PAGES });
        world.step(&Op::WriteRun { target: 0, page: CHUNK_AT, pages: 256 });
        let target = world.target(0);
        while world.shrink(&target, 64, true) > 0 {}
        let resident = |world: &mut World, page| {
            let before = target.space.resident_pages();
            world.step(&Op::Read { target: 0, page: CHUNK_AT + page });
            target.space.resident_pages() - before
        };
        assert_eq!(resident(&mut world, 4), 16, "nothing is known yet");
        assert_eq!(resident(&mut world, 16), 48, "a stream: the rest of the folio");
        assert_eq!(resident(&mut world, 64), 64, "the next folio");
        assert_eq!(folio_count(&world, 6, "swpin"), 1);
        // A page of another one has gone: the pages in a row come all the same.
        world.step(&Op::Remove { target: 0, page: CHUNK_AT + 197, pages: 1 });
        world.step(&Op::Events { target: 0 });
        assert_eq!(resident(&mut world, 240), 16);
        world.end(false);
    }
}

#[test]
fn a_folio_for_which_there_is_no_room_comes_in_part() {
    let mut world = World::new(&folios_of(6));
    world.step(&Op::Map { target: 0, page: 0, pages: PAGES });
    world.step(&Op::WriteRun { target: 0, page: CHUNK_AT, pages: 256 });
    let target = world.target(0);
    while world.shrink(&target, 64, true) > 0 {}
    for page in [4, 16] {
        world.step(&Op::Read { target: 0, page: CHUNK_AT + page });
    }
    let root = world.engine.root();
    root.set_limit_bytes(root.usage_bytes() + root.gap_bytes() / 2 + 40 * PAGE_SIZE as u64);
    let before = target.space.resident_pages();
    world.step(&Op::Read { target: 0, page: CHUNK_AT + 64 });
    assert_eq!(target.space.resident_pages() - before, 32);
    // Of the folio before, the second half came after a part of the first.
    assert_eq!((folio_count(&world, 6, "swpin_fallback"), folio_count(&world, 5, "swpin")), (1, 2));
    world.end(false);
}

#[test]
fn a_folio_in_the_swap_cache_is_taken_back_with_a_lock_for_a_cluster() {
    let mut world = World::new(&folios_of(4));
    world.step(&Op::Map { target: 0, page: 0, pages: PAGES });
    world.step(&Op::WriteRun { target: 0, page: CHUNK_AT, pages: 16 });
    let target = world.target(0);
    world.shrink(&target, 1, false);
    let locks = |world: &World| world.engine.devices()[0].slots.stats().cluster_lock.taken;
    let before = locks(&world);
    world.step(&Op::Read { target: 0, page: CHUNK_AT + 7 });
    assert_eq!(world.engine.stats().sum(|c| &c.swap_cache_hit), 1);
    assert_eq!(locks(&world) - before, 4, "lookup, unpin, shadows, and the references that go");
    world.step(&Op::FinishWrites);
    world.end(false);
}

#[test]
fn a_folio_that_is_not_there_whole_leaves_in_parts() {
    let mut world = World::new(&folios_of(4));
    world.step(&Op::Map { target: 0, page: 0, pages: PAGES });
    world.step(&Op::WriteRun { target: 0, page: CHUNK_AT, pages: 15 });
    let target = world.target(0);
    assert_eq!(world.shrink(&target, 1, true), 1, "a page is missing: single pages");
    // All are there, but one cannot be taken, and one is zero: slots in a row all the same.
    world.step(&Op::WriteRun { target: 0, page: CHUNK_AT + 16, pages: 16 });
    world.step(&Op::Write { target: 0, page: CHUNK_AT + 20, zero: true });
    target.memory.refuse(FIRST + CHUNK_AT + 25, Take::Retry);
    world.pageout(&target, CHUNK_AT + 16, 16);
    assert_eq!(left(&world, 4), [0, 0, 1]);
    let slot = |page| entry_of(&target, CHUNK_AT + 16 + page).slot.0;
    assert_eq!((slot(3) - slot(0), slot(5) - slot(0), slot(15) - slot(0)), (3, 4, 13));
    assert_eq!(world.engine.used_slots(), 1 + 14);
    world.end(false);
}

#[test]
fn a_large_entry_is_unmapped_in_the_middle() {
    let mut world = World::new(&folios_of(9));
    world.step(&Op::Map { target: 0, page: 0, pages: PAGES });
    world.step(&Op::WriteRun { target: 0, page: CHUNK_AT, pages: CHUNK });
    let target = world.target(0);
    assert_eq!(world.shrink(&target, 1, true), 512);
    world.step(&Op::Fork { target: 0 });
    world.step(&Op::Events { target: 0 });
    world.step(&Op::Unmap { target: 0, page: CHUNK_AT + 100, pages: 200 });
    world.step(&Op::Quiet);
    assert_eq!(world.engine.used_slots(), 512, "the child has them all");
    let child = world.target(1);
    world.exit(&child);
    assert_eq!(world.engine.used_slots(), 312, "a part of the entry is free");
    world.step(&Op::Scan { target: 0, page: CHUNK_AT + 300, pages: 20, down: false });
    world.end(false);
}

#[test]
fn without_room_in_a_row_a_folio_is_split() {
    // Slots for all pages, but no cluster for the folio: the first lacks slot 0, the second the rest.
    let mut world = World::new(&Setup { devices: vec![(900, 0)], ..folios_of(9) });
    world.step(&Op::Map { target: 0, page: 0, pages: PAGES });
    world.step(&Op::WriteRun { target: 0, page: CHUNK_AT, pages: CHUNK });
    let target = world.target(0);
    assert_eq!(world.shrink(&target, 1, true), 512);
    assert_eq!(left(&world, 9), [0, 1, 0]);
    world.end(false);
}

#[test]
fn victims_without_a_slot_stay() {
    let mut world = World::new(&Setup { devices: vec![(100, 0)], ..folios_of(4) });
    world.step(&Op::Map { target: 0, page: 0, pages: PAGES });
    world.step(&Op::WriteRun { target: 0, page: CHUNK_AT, pages: CHUNK });
    let target = world.target(0);
    while world.shrink(&target, 64, true) > 0 {}
    assert_eq!(world.engine.used_slots(), 99);
    assert_eq!(target.space.resident_pages(), CHUNK - 99);
    assert!(world.engine.swap().is_full());
    world.end(false);
}
