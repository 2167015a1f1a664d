//! Histories of devices that go off.

use super::*;

fn device_of(target: &Target, page: u64) -> u8 {
    target.space.word(Vpn(FIRST + page)).held_entry().expect("the page is out").device
}

/// Off, closed, and every page reads as before.
fn finish_off(mut world: World, device: usize) {
    assert_eq!(world.swapoff_to_its_end(), Ok(()));
    assert!(world.engine.devices()[device].is_off() && world.backings[device].is_closed());
    world.quiet();
    world.end(false);
}

#[test]
fn swapoff_moves_all_pages() {
    let mut world = World::new(&two_devices([8192, 8192]));
    let target = write_and_evict(&mut world, 300);
    let owner = world.engine.devices()[0].slots.slots_by_group();
    let shadow = |world: &World| {
        let entry = target.space.word(Vpn(FIRST + 7)).held_entry().expect("the page is out");
        world.engine.devices()[entry.device as usize].slots.shadow(entry.slot)
    };
    let shadow_before = shadow(&world);
    assert!(shadow_before.is_some() && device_of(&target, 7) == 0);
    world.swapoff(0);
    assert_eq!(world.swapoff_to_its_end(), Ok(()));
    assert_eq!((device_of(&target, 7), shadow(&world)), (1, shadow_before));
    assert_eq!(world.engine.devices()[1].slots.slots_by_group(), owner, "the owner of each slot goes along");
    finish_off(world, 0);
}

#[test]
fn swapoff_reads_that_end_later() {
    let mut world = World::new(&two_devices([8192, 8192]));
    write_and_evict(&mut world, 300);
    world.step(&Op::Pending(true));
    world.swapoff(0);
    world.swapoff_steps(1);
    world.engine.check();
    // The page that is being read goes away: its slot must live as long as the read.
    world.step(&Op::Unmap { target: 0, page: 0, pages: 80 });
    world.step(&Op::Events { target: 0 });
    finish_off(world, 0);
}

/// Between the copy and the words: the page comes in, is written, and leaves again for a slot of its own.
#[test]
fn swapoff_is_overtaken_by_a_fault() {
    let mut world = World::new(&two_devices([8192, 8192]));
    let target = write_and_evict(&mut world, 64);
    world.step(&Op::Pending(true));
    world.swapoff(0);
    world.swapoff_steps(1);
    world.step(&Op::Pending(false));
    world.step(&Op::Write { target: 0, page: 5, zero: false });
    world.step(&Op::Write { target: 0, page: 6, zero: true });
    world.step(&Op::Read { target: 0, page: 7 });
    let entry = |page| target.space.word(Vpn(FIRST + page)).held_entry();
    while entry(5).is_none() || entry(7).is_none() {
        world.shrink(&target, 128, true);
    }
    let (fifth, seventh) = (entry(5), entry(7));
    assert_eq!(fifth.map(|e| e.device), Some(1));
    world.swapoff_steps(4);
    assert_eq!(
        (entry(5), entry(6), entry(7)),
        (fifth, None, seventh),
        "what came later is not what was copied"
    );
    finish_off(world, 0);
}

#[test]
fn swapoff_of_a_shared_slot_keeps_it_shared() {
    let mut world = World::new(&two_devices([8192, 8192]));
    let parent = write_and_evict(&mut world, 200);
    world.step(&Op::Fork { target: 0 });
    world.step(&Op::Events { target: 0 });
    // At another address too: not in the same chunk as its twin.
    world.step(&Op::Remap { target: 1, from: 0, to: 500, pages: 100, early: false, late: false });
    world.step(&Op::Events { target: 1 });
    let child = world.target(1);
    world.swapoff(0);
    assert_eq!(world.swapoff_to_its_end(), Ok(()));
    for page in 0..100 {
        let words = (parent.space.word(Vpn(FIRST + page)), child.space.word(Vpn(FIRST + 500 + page)));
        assert_eq!(words.0.entry(), words.1.entry(), "page {page} is stored twice");
    }
    assert_eq!(world.engine.used_slots(), 200);
    finish_off(world, 0);
}

#[test]
fn swapoff_of_a_page_that_is_being_filled() {
    for given_back in [false, true] {
        let mut world = World::new(&two_devices([8192, 8192]));
        let target = write_and_evict(&mut world, 64);
        world.step(&Op::Fork { target: 0 });
        world.step(&Op::Events { target: 0 });
        world.step(&Op::Pending(true));
        world.step(&Op::Touch { target: 0, page: 3, write: false });
        assert_eq!(target.space.word(Vpn(FIRST + 3)).state(), State::Filling);
        world.swapoff(0);
        world.swapoff_steps(40);
        assert_eq!(world.swapoff, None, "the filler holds its slot");
        assert_eq!((device_of(&target, 3), device_of(&world.target(1), 3)), (0, 1));
        world.engine.check();
        if given_back {
            world.step(&Op::StopFill { target: 0, after: 0, stop: Stop::NoMemory });
        }
        world.step(&Op::Reap { reads: 1 });
        if given_back {
            assert_eq!(
                (target.space.word(Vpn(FIRST + 3)).state(), device_of(&target, 3)),
                (State::Swapped, 0)
            );
        }
        finish_off(world, 0);
    }
}

#[test]
fn swapoff_of_a_word_that_waits_for_a_filler() {
    let mut world = World::new(&two_devices([8192, 8192]));
    write_and_evict(&mut world, 64);
    world.step(&Op::Pending(true));
    world.step(&Op::Touch { target: 0, page: 3, write: false });
    world.step(&Op::Remap { target: 0, from: 32, to: 0, pages: 32, early: false, late: true });
    world.step(&Op::Events { target: 0 });
    world.swapoff(0);
    world.swapoff_steps(40);
    assert_eq!(world.engine.devices()[0].slots.used_slots(), 1, "only what is being filled");
    finish_off(world, 0);
}

/// Swapoff gives up kept copies, and no page keeps a slot of a device that is leaving.
#[test]
fn swapoff_of_kept_copies() {
    let mut world = World::new(&two_devices([8192, 8192]));
    let target = write_and_evict(&mut world, 64);
    let kept = |page| {
        let word = target.space.word(Vpn(FIRST + page));
        (word.state() == State::Resident).then(|| word.held_entry().is_some())
    };
    (0..10).for_each(|page| world.step(&Op::Touch { target: 0, page, write: false }));
    assert_eq!((kept(3), kept(40)), (Some(true), None));
    world.swapoff(0);
    world.step(&Op::Touch { target: 0, page: 40, write: false });
    assert_eq!(kept(40), Some(false));
    assert_eq!(world.swapoff_to_its_end(), Ok(()));
    assert_eq!((kept(3), device_of(&target, 60)), (Some(false), 1));
    finish_off(world, 0);
}

/// Pages that could not be written wait in the swap cache: swapoff takes them from there and does not read
/// them.
#[test]
fn swapoff_of_a_failing_device() {
    let mut world = World::new(&two_devices([8192, 8192]));
    world.step(&Op::WriteRun { target: 0, page: 0, pages: 100 });
    let target = world.target(0);
    world.backings[0].fail_writes(BackingError::Io(5), 1000);
    world.shrink(&target, 100, true);
    assert!(world.engine.devices()[0].errors.is_failing() && world.backings[0].is_empty());
    world.swapoff(0);
    finish_off(world, 0);
}

#[test]
fn swapoff_where_pages_cannot_be_read() {
    let mut world = World::new(&two_devices([8192, 8192]));
    let target = write_and_evict(&mut world, 200);
    world.backings[0].fail_reads(3);
    world.swapoff(0);
    assert_eq!(world.swapoff_to_its_end(), Err(SwapoffError::Unreadable { pages: 3 }));
    let stayed = (0..200).filter(|page| device_of(&target, *page) == 0).count();
    assert!(stayed == 3 && world.engine.devices()[0].is_on());
    world.engine.check();
    // The reads failed then. They succeed now, and no page was lost.
    world.swapoff(0);
    finish_off(world, 0);
}

#[test]
fn swapoff_to_devices_without_room() {
    for full in [false, true] {
        let mut world = World::new(&two_devices([8192, if full { 8192 } else { 100 }]));
        let target = write_and_evict(&mut world, 250);
        if full {
            world.backings[1].fail_writes(BackingError::Full, usize::MAX);
        }
        world.swapoff(0);
        assert_eq!(world.swapoff_to_its_end(), Err(SwapoffError::NoRoom));
        let moved = (0..250).filter(|page| device_of(&target, *page) == 1).count();
        assert!(
            world.engine.devices()[0].is_on() && moved == if full { 0 } else { 99 },
            "{moved} pages were moved"
        );
        world.engine.check();
        world.swapon(8192, 0);
        world.swapoff(0);
        finish_off(world, 0);
    }
}

#[test]
fn swapoff_to_a_device_that_cannot_write() {
    let mut world = World::new(&two_devices([8192, 8192]));
    write_and_evict(&mut world, 100);
    world.backings[1].fail_writes(BackingError::Io(5), usize::MAX);
    world.swapoff(0);
    assert_eq!(world.swapoff_to_its_end(), Err(SwapoffError::NoRoom));
    assert!(
        !world.engine.devices()[1].errors.is_failing(),
        "it gets another try: no page waits there that would tell"
    );
    world.quiet();
    world.end(false);
}

#[test]
fn swapoff_is_stopped_halfway() {
    for pending in [false, true] {
        let mut world = World::new(&two_devices([8192, 8192]));
        let target = write_and_evict(&mut world, 290);
        world.step(&Op::Fork { target: 0 });
        world.step(&Op::Events { target: 0 });
        world.step(&Op::Pending(pending));
        world.swapoff(0);
        world.swapoff_steps(3);
        world.engine.swapoff_stop();
        assert_eq!(world.swapoff_to_its_end(), Err(SwapoffError::Stopped));
        let moved = (0..290).filter(|page| device_of(&target, *page) == 1).count();
        assert!(moved > 0 && moved < 290 && world.engine.devices()[0].is_on());
        world.engine.check();
        world.step(&Op::WriteRun { target: 0, page: 300, pages: 20 });
        world.shrink(&target, 20, true);
        assert_eq!(device_of(&target, 301), 0, "it takes pages again, and before the other one");
        world.end(false);
    }
}

#[test]
fn swapoff_that_is_refused() {
    let mut world = World::new(&two_devices([8192, 8192]));
    let begin = |world: &World, device| world.engine.swapoff_begin(device);
    assert_eq!(begin(&world, 2), Err(SwapoffError::NoSuchDevice));
    world.swapoff(0);
    assert_eq!(begin(&world, 1), Err(SwapoffError::Busy));
    assert_eq!(world.swapoff_to_its_end(), Ok(()));
    assert_eq!(
        (begin(&world, 0), begin(&world, 1)),
        (Err(SwapoffError::NotOn), Err(SwapoffError::LastDevice))
    );
    world.end(false);
}

#[test]
fn places_are_used_again() {
    let mut world = World::new(&one_device());
    write_and_evict(&mut world, 100);
    for round in 0..40 {
        let on = world.engine.devices().iter().position(Device::is_on).expect("one is on");
        world.swapon(8192, 1);
        assert_eq!(world.engine.devices().len(), ENTRY_DEVICES_MAX.min(round + 2));
        world.swapoff(on);
        assert_eq!(world.swapoff_to_its_end(), Ok(()));
        world.engine.check();
    }
    assert_eq!(world.engine.devices().ever_added().count(), 41);
    world.check_contents();
    world.end(false);
}

#[test]
fn swapon_until_no_place_is_left() {
    let mut world = World::new(&one_device());
    write_and_evict(&mut world, 100);
    for round in 0..20 {
        world.swapon(8192, 1);
        assert_eq!(world.engine.devices().len(), ENTRY_DEVICES_MAX.min(round + 2));
    }
    world.end(false);
}

#[test]
fn swapoff_without_memory_for_its_reads() {
    let mut world = World::new(&two_devices([8192, 8192]));
    write_and_evict(&mut world, 200);
    world.backings[0].run_short(100);
    world.swapoff(0);
    assert_eq!(world.engine.swapoff_step(CPU, SWAPOFF_QUEUE), Step::Wait);
    finish_off(world, 0);
}
