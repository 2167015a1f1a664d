//! Histories that are worth a name.

use super::*;

#[test]
fn mremap_onto_a_page_that_is_being_read() {
    let mut world = World::new(&one_device());
    let target = write_and_evict(&mut world, 64);
    world.step(&Op::Pending(true));
    world.step(&Op::Touch { target: 0, page: 3, write: false });
    assert_eq!(target.space.word(Vpn(FIRST + 3)).state(), State::Filling);
    world.step(&Op::Remap { target: 0, from: 32, to: 0, pages: 32, early: false, late: true });
    world.step(&Op::Events { target: 0 });
    world.step(&Op::Fork { target: 0 });
    world.step(&Op::Events { target: 0 });
    world.step(&Op::Reap { reads: 1 });
    world.end(false);
}

#[test]
fn a_failed_read_is_sigbus_and_never_data() {
    let mut world = World::new(&one_device());
    let target = write_and_evict(&mut world, 8);
    world.step(&Op::FailReads { pages: 1 });
    world.step(&Op::Read { target: 0, page: 5 });
    assert_eq!(target.space.word(Vpn(FIRST + 5)).state(), State::Poisoned);
    assert_eq!(target.memory.touch(0, FIRST + 5, None), Touch::Lost);
    world.end(false);
}

/// As long as there is no memory for the read, the page stays where it is, and its fault ends with
/// `Outcome::Pause`.
#[test]
fn a_read_without_memory_loses_nothing() {
    for synchronous in [false, true] {
        let mut world = World::new(&Setup { synchronous, ..one_device() });
        let target = write_and_evict(&mut world, 8);
        world.backings[0].set_pending(!synchronous);
        world.step(&Op::ShortReads { pages: 1000 });
        for _ in 0..10 {
            assert_eq!(target.memory.touch(0, FIRST + 5, None), Touch::Missing);
            let fault = Fault { vpn: Vpn(FIRST + 5), write: false, urgent: false, favoured: false };
            let mut outcome = world.engine.fault(CPU, QUEUE, &target.space, fault, &mut world.scratch);
            if let Some(done) = world.backings[0].reap_one(QUEUE) {
                outcome = world.engine.read_done(CPU, done, &mut world.scratch);
            }
            assert!(matches!(outcome, Outcome::Pause), "without a pause it would be tried again at once");
            assert_eq!(target.space.word(Vpn(FIRST + 5)).state(), State::Swapped);
            assert_eq!(target.memory.waiters(), [], "he is to come back");
        }
        world.engine.check();
        let device = &world.engine.devices()[0].errors;
        assert_eq!((device.tell_read(), device.tell_short()), (None, Some(BackingError::Short(12))));
        world.end(false);
    }
}

/// Some reads of a window succeed and some do not: the first are installed, the other pages are read again at
/// their next fault.
#[test]
fn a_window_of_which_some_pages_find_no_memory() {
    for pages in [1, 7, 40] {
        let mut world = World::new(&one_device());
        let target = write_and_evict(&mut world, 100);
        world.step(&Op::Scan { target: 0, page: 0, pages: 20, down: false });
        world.step(&Op::ShortReads { pages });
        world.step(&Op::Scan { target: 0, page: 20, pages: 80, down: false });
        assert!((0..100).all(|page| target.space.word(Vpn(FIRST + page)).state() == State::Resident));
        world.end(false);
    }
}

#[test]
fn a_device_without_room_loses_nothing() {
    let mut world = World::new(&Setup { devices: vec![(64, 0)], ..one_device() });
    world.step(&Op::FailWrites { error: BackingError::Full, pages: 20 });
    for target in [0, 1, 1] {
        world.step(&Op::WriteRun { target, page: 0, pages: PAGES });
        world.step(&Op::Fork { target: 0 });
        world.step(&Op::Events { target: 0 });
    }
    assert!(world.engine.swap().is_full());
    world.end(false);
}

/// A device that is full, though slots of it are freed, collects no pages: the next device takes them.
#[test]
fn few_pages_wait_for_a_device_that_is_full() {
    let mut world = World::new(&Setup { devices: vec![(4096, 9), (4096, 0)], ..one_device() });
    world.backings[0].fail_writes(BackingError::Full, usize::MAX);
    for part in 0..10 {
        world.step(&Op::WriteRun { target: 0, page: 64 * part, pages: 64 });
        let target = world.target(0);
        while world.shrink(&target, 64, true) > 0 {}
        // As if a program had taken a page of it back.
        world.engine.devices()[0].full.store(false, std::sync::atomic::Ordering::Relaxed);
    }
    let waiting = world.engine.write_again(CPU, QUEUE);
    assert!((1..=2 * 64).contains(&waiting), "{waiting} pages wait");
    world.backings[0].stop_failing();
    world.end(false);
}

/// Pages that were read and not stored to leave without being written; a store to one is never lost.
#[test]
fn a_clean_page_is_written_once() {
    let mut world = World::new(&one_device());
    let target = write_and_evict(&mut world, 16);
    let written = |world: &World| world.backings[0].written();
    assert_eq!(written(&world), 16);
    (0..16).for_each(|page| world.step(&Op::Touch { target: 0, page, write: page == 5 }));
    while world.shrink(&target, 128, true) > 0 {}
    assert_eq!(written(&world), 17, "one page was stored to");
    assert_eq!(world.engine.stats().sum(|c| &c.swpout_clean), 15);
    world.check_contents();
    world.end(false);
}

/// Kept copies are given up before swap counts as full.
#[test]
fn kept_copies_make_room() {
    let mut world = World::new(&Setup { devices: vec![(151, 0)], ..one_device() });
    let target = write_and_evict(&mut world, 64);
    (0..64).for_each(|page| world.step(&Op::Touch { target: 0, page, write: false }));
    assert!(world.engine.used_slots() >= 64, "read pages keep their slots");
    world.step(&Op::WriteRun { target: 0, page: 64, pages: 120 });
    while world.shrink(&target, 128, true) > 0 {}
    assert_eq!(world.engine.used_slots(), 150);
    world.step(&Op::Fork { target: 0 });
    world.step(&Op::Events { target: 0 });
    world.end(false);
}

#[test]
fn what_is_cold_leaves_first() {
    let mut world = World::new(&Setup { limit_pages: 2000, ..one_device() });
    world.step(&Op::Map { target: 0, page: 0, pages: PAGES });
    world.step(&Op::WriteRun { target: 0, page: 0, pages: PAGES });
    let target = world.target(0);
    for _ in 0..100 {
        world.step(&Op::Cold { target: 0, page: 600, pages: 20 });
    }
    let records = target.space.evictable();
    target.space.tidy();
    assert!(records <= PAGES as usize + 100 * 20 && target.space.evictable() <= records);
    assert!(world.shrink(&target, 20, true) >= 20);
    assert!((600..620).all(|page| target.space.word(Vpn(FIRST + page)).state() == State::Swapped));
    world.end(false);
}

#[test]
fn a_cluster_is_discarded_before_it_is_used_again() {
    let mut world = World::new(&Setup { devices: vec![(200, 0)], discard: true, ..one_device() });
    let discarded = |world: &World| world.engine.devices()[0].slots.stats().discarded_clusters;
    let target = write_and_evict(&mut world, 150);
    world.step(&Op::Unmap { target: 0, page: 0, pages: 150 });
    world.all_events();
    assert_eq!(discarded(&world), 0);
    world.engine.check();
    // There is no other cluster, so a page that leaves cannot wait for who comes between two batches.
    world.step(&Op::WriteRun { target: 0, page: 200, pages: 20 });
    assert!(world.shrink(&target, 20, true) >= 20);
    assert_eq!(discarded(&world), 1);
    world.step(&Op::Unmap { target: 0, page: 150, pages: 300 });
    world.all_events();
    world.step(&Op::Maintain);
    assert_eq!(discarded(&world), 2);
    world.end(false);
}

/// Adds so many spaces, all of which have ten pages then.
fn spaces_of_ten_pages(world: &mut World, more: u32) -> Vec<Arc<Space>> {
    for mapper in 1..=more {
        let memory = Arc::new(MockMemory::new(world.lost.clone()));
        memory.map(FIRST, FIRST + PAGES);
        let other = world.add_target(memory, mapper);
        world.engine.add_space(other.space);
    }
    for target in 0..=more as usize {
        world.step(&Op::WriteRun { target, page: 0, pages: 10 });
    }
    world.targets.iter().map(|target| target.space.clone()).collect()
}

/// The number of the space that is picked.
fn picked(world: &World, spaces: &[Arc<Space>]) -> Option<usize> {
    let picked = world.engine.pick_space()?;
    spaces.iter().position(|space| Arc::ptr_eq(space, &picked))
}

/// Spaces that have nothing to give (locked memory), beside one that has given often before: none of them is
/// asked again before that one, and what they have missed meanwhile is not asked of them later.
#[test]
fn spaces_that_give_nothing_let_others_come_first() {
    let mut world = World::new(&one_device());
    let spaces = spaces_of_ten_pages(&mut world, 12);
    spaces[1..].iter().for_each(|space| space.set_aside(true, &[]));
    assert!((0..1000).all(|_| picked(&world, &spaces) == Some(0)));
    // Their passes are as they were.
    spaces[1..].iter().for_each(|space| space.set_aside(false, &[]));
    for _ in 1..spaces.len() {
        let asked = picked(&world, &spaces).expect("one of them");
        assert_ne!(asked, 0);
        spaces[asked].note_asked(false);
    }
    assert!((0..10).all(|_| picked(&world, &spaces) == Some(0)));
    spaces[0].note_asked(false);
    assert_eq!(picked(&world, &spaces), None, "all rest");
    assert_eq!(world.engine.end_rests(), 13);

    spaces[1..].iter().for_each(|space| space.note_asked(false));
    assert_eq!(world.engine.end_rests(), 12);
    let mut asked = [0; 13];
    (0..13 * 10).for_each(|_| asked[picked(&world, &spaces).expect("all may be asked")] += 1);
    assert!(asked.iter().all(|times| (9..=11).contains(times)), "{asked:?}");
    world.end(false);
}

/// A space that comes is level with those that give, not with one that has given nothing for long.
#[test]
fn a_new_space_is_level_with_those_that_give() {
    let mut world = World::new(&one_device());
    let spaces = spaces_of_ten_pages(&mut world, 2);
    spaces[0].note_asked(false);
    (0..1000).for_each(|_| assert_ne!(picked(&world, &spaces), Some(0)));
    spaces[2].set_aside(true, &[]);
    (0..1000).for_each(|_| assert_eq!(picked(&world, &spaces), Some(1)));
    spaces[2].set_aside(false, &spaces);
    let times = (0..20).filter(|_| picked(&world, &spaces) == Some(1)).count();
    assert!((9..=11).contains(&times), "{times}");
    world.end(false);
}

/// A space whose group may have no more swap is not asked because others have nothing to give just now: that
/// would say that swap is full.
#[test]
fn a_space_without_swap_is_asked_last() {
    let mut world = World::new(&Setup { group: Some((10_000, 0)), ..one_device() });
    let spaces = spaces_of_ten_pages(&mut world, 1);
    assert_eq!(picked(&world, &spaces), Some(1));
    spaces[1].note_asked(false);
    assert_eq!(picked(&world, &spaces), None);
    spaces[1].set_aside(true, &[]);
    assert_eq!(picked(&world, &spaces), Some(0));
    world.end(false);
}
