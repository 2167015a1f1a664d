//! Histories of pages that are read ahead into the swap cache.

use super::*;

/// Faults on pages that were swapped out: hits, misses, and those read past the swap cache; pages read
/// ahead, and of those the ones that were wanted.
fn swap_in_counts(world: &World) -> [u64; 5] {
    let stats = world.engine.stats();
    [
        stats.sum(|c| &c.swap_cache_hit),
        stats.sum(|c| &c.swap_cache_miss),
        stats.sum(|c| &c.swap_cache_bypass),
        stats.sum(|c| &c.swap_ra),
        stats.sum(|c| &c.swap_ra_hit),
    ]
}

/// Pages that were read ahead and wait in the swap cache.
fn ahead(world: &World) -> u64 {
    world.engine.check();
    world.engine.read_ahead_bytes() / PAGE_SIZE as u64
}

#[test]
fn a_page_that_was_read_ahead_is_a_hit() {
    for rotational in [false, true] {
        for keep_clean in [false, true] {
            let mut setup = Setup { rotational, ..reading_ahead(Readahead::Always) };
            setup.tuning.keep_clean = keep_clean;
            let mut world = World::new(&setup);
            let target = write_and_evict(&mut world, 64);
            world.step(&Op::Read { target: 0, page: 16 });
            let [hits, misses, _, read, _] = swap_in_counts(&world);
            assert_eq!((hits, misses, target.space.resident_pages()), (0, 1, 1));
            assert!((3..8).contains(&read), "{read} pages, of a window of 8 that may lie across an edge");
            assert_eq!(ahead(&world), read);
            let charged = world.engine.groups().charged_pages(world.engine.root());
            assert_eq!(charged, 1 + read, "they count, and are not mapped");
            (0..64).for_each(|page| world.step(&Op::Read { target: 0, page }));
            let [hits, misses, bypassed, read, wanted] = swap_in_counts(&world);
            assert_eq!((hits + misses, bypassed, hits), (64, 0, wanted));
            assert!((8..24).contains(&misses), "windows have grown: {misses} misses");
            assert_eq!((read - wanted, target.space.resident_pages()), (ahead(&world), 64));
            // Kept as if they had been read for themselves: they are clean.
            while world.shrink(&target, 128, true) > 0 {}
            let clean = world.engine.stats().sum(|c| &c.swpout_clean);
            assert_eq!(clean, if keep_clean { 64 } else { 0 });
            world.end(false);
        }
    }
}

#[test]
fn a_page_with_one_user_on_a_device_at_ram_speed_is_read_past_the_cache() {
    let mut world = World::new(&Setup { synchronous: true, ..reading_ahead(Readahead::Auto) });
    write_and_evict(&mut world, 64);
    (0..8).for_each(|page| world.step(&Op::Read { target: 0, page }));
    assert_eq!(swap_in_counts(&world), [0, 0, 8, 0, 0]);
    world.step(&Op::Fork { target: 0 });
    world.step(&Op::Events { target: 0 });
    world.step(&Op::Read { target: 1, page: 20 });
    let [hits, misses, bypassed, read, _] = swap_in_counts(&world);
    assert_eq!((hits, misses, bypassed, read), (0, 1, 8, 7), "it has two users");
    world.step(&Op::Read { target: 0, page: 21 });
    assert_eq!(swap_in_counts(&world)[0], 1, "whoever of them comes");
    world.end(false);
    let mut slow = World::new(&reading_ahead(Readahead::Auto));
    write_and_evict(&mut slow, 64);
    slow.step(&Op::Read { target: 0, page: 20 });
    assert_eq!(swap_in_counts(&slow)[1..4], [1, 0, 7], "each device for itself");
    slow.end(false);
}

#[test]
fn what_was_read_ahead_goes_with_its_slot_and_comes_with_its_entry() {
    let world_with_pages_ahead = || {
        let mut world =
            World::new(&Setup { devices: vec![(8192, 5), (8192, 0)], ..reading_ahead(Readahead::Always) });
        world.step(&Op::Map { target: 0, page: 0, pages: PAGES });
        write_and_evict(&mut world, 64);
        world.step(&Op::Read { target: 0, page: 20 });
        assert_eq!(ahead(&world), 7);
        world
    };
    let mut unmapped = world_with_pages_ahead();
    unmapped.step(&Op::Unmap { target: 0, page: 0, pages: 20 });
    unmapped.step(&Op::Events { target: 0 });
    assert_eq!(ahead(&unmapped), 4, "17 to 19 have gone");
    unmapped.step(&Op::Remove { target: 0, page: 20, pages: 44 });
    unmapped.step(&Op::Events { target: 0 });
    assert_eq!((ahead(&unmapped), unmapped.engine.used_slots()), (0, 0));
    unmapped.end(false);

    let mut moved = world_with_pages_ahead();
    moved.step(&Op::Remap { target: 0, from: 0, to: 128, pages: 64, early: false, late: false });
    moved.step(&Op::Events { target: 0 });
    assert_eq!(ahead(&moved), 7);
    moved.step(&Op::Read { target: 0, page: 128 + 21 });
    assert_eq!((swap_in_counts(&moved)[0], ahead(&moved)), (1, 6));
    moved.end(false);

    let mut forked = world_with_pages_ahead();
    forked.step(&Op::Fork { target: 0 });
    forked.step(&Op::Events { target: 0 });
    let parent = forked.target(0);
    forked.exit(&parent);
    assert_eq!(ahead(&forked), 7, "the child's");
    forked.step(&Op::Read { target: 0, page: 21 });
    assert_eq!((swap_in_counts(&forked)[0], ahead(&forked)), (1, 6));
    forked.end(false);

    let mut off = world_with_pages_ahead();
    off.step(&Op::Swapoff { device: 0 });
    assert_eq!(off.swapoff_to_its_end(), Ok(()));
    assert_eq!(ahead(&off), 0);
    off.end(false);

    // The slots are freed while the read is in flight.
    let mut late = world_with_pages_ahead();
    late.step(&Op::Pending(true));
    late.step(&Op::Touch { target: 0, page: 40, write: false });
    late.engine.check();
    late.step(&Op::Unmap { target: 0, page: 0, pages: 64 });
    late.step(&Op::Events { target: 0 });
    late.engine.check();
    assert!(late.engine.used_slots() > 1, "held for the read");
    late.step(&Op::Reap { reads: 1 });
    assert_eq!((ahead(&late), late.engine.used_slots()), (0, 0));
    late.end(false);
}

/// Two reads of the same slots are in flight when these lose all other references: what the first one brings
/// into the swap cache goes when the second one ends.
#[test]
fn a_slot_that_is_read_ahead_twice_is_freed_once() {
    let mut world = World::new(&reading_ahead(Readahead::Always));
    write_and_evict(&mut world, 64);
    world.step(&Op::Pending(true));
    for page in [20, 22] {
        world.step(&Op::Touch { target: 0, page, write: false });
    }
    assert_eq!(swap_in_counts(&world)[..4], [0, 2, 0, 10]);
    world.step(&Op::Unmap { target: 0, page: 0, pages: 64 });
    world.step(&Op::Events { target: 0 });
    world.step(&Op::Reap { reads: 1 });
    assert_eq!(ahead(&world), 4, "held by the other read, 22 by its own");
    world.step(&Op::Reap { reads: 1 });
    assert_eq!((ahead(&world), world.engine.used_slots()), (0, 0));
    world.end(false);
}

#[test]
fn what_was_read_ahead_makes_room_first() {
    let mut world = World::new(&reading_ahead(Readahead::Always));
    let target = write_and_evict(&mut world, 64);
    world.step(&Op::Read { target: 0, page: 20 });
    assert_eq!((ahead(&world), world.engine.drop_read_ahead(CPU, 2), ahead(&world)), (7, 2, 5));
    let left = |world: &World| world.engine.stats().sum(|c| &c.pswpout);
    // Young ones are not dropped before victims; when many pages have left since, they are.
    world.step(&Op::WriteRun { target: 0, page: 64, pages: 80 });
    while world.shrink(&target, 16, true) > 0 && ahead(&world) == 5 {}
    assert!(left(&world) > 64 + 60, "{} pages have left", left(&world));
    while world.shrink(&target, 16, true) > 0 {}
    assert_eq!((ahead(&world), target.space.resident_pages()), (0, 0));
    // A fault that finds no room drops them, however young.
    world.step(&Op::Read { target: 0, page: 60 });
    world.step(&Op::Read { target: 0, page: 0 });
    let young = ahead(&world);
    assert!(young > 0);
    world
        .engine
        .root()
        .set_limit_bytes(target.space.resident_pages() * PAGE_SIZE as u64 + young * PAGE_SIZE as u64);
    world.step(&Op::Touch { target: 0, page: 140, write: true });
    assert!(world.waiting.is_empty() && ahead(&world) < young, "{} of {young} are left", ahead(&world));
    world.engine.root().set_limit_bytes(LIMIT_PAGES * PAGE_SIZE as u64);
    world.end(false);
}

#[test]
fn a_page_that_cannot_be_read_ahead_is_not_lost() {
    let mut world = World::new(&reading_ahead(Readahead::Always));
    write_and_evict(&mut world, 64);
    world.step(&Op::ShortReads { pages: 3 });
    world.step(&Op::Touch { target: 0, page: 20, write: false });
    assert_eq!((ahead(&world), swap_in_counts(&world)[3]), (4, 7), "17 to 19 were not read");
    world.step(&Op::Read { target: 0, page: 19 });
    assert_eq!(swap_in_counts(&world)[..2], [0, 2]);
    world.end(false);
}
