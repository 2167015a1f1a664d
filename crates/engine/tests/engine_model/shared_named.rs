//! Histories of shared memory that are worth a name.

use super::*;

/// An object of 64 pages, all stored to by its first process, adopted and swapped out; and so many processes
/// that have it mapped, each forked by the first.
fn object_that_is_out(world: &mut World, processes: usize) -> Object {
    world.step(&Op::Object(ObjectOp::Make { target: 0, pages: 64, present: 64 }));
    let object = world.objects[0].clone();
    world.step(&Op::Object(ObjectOp::Adopt { object: 0 }));
    for _ in 1..processes {
        world.step(&Op::Fork { target: 0 });
        world.step(&Op::Events { target: 0 });
    }
    assert_eq!(object.memory.mappers().len(), processes);
    while world.shrink_object(&object, 128, true) > 0 {}
    assert_eq!(world.engine.used_slots(), 64);
    object
}

/// Faults on a page through all mappings at once: each of them is answered.
fn touch_by_all(world: &mut World, page: u64) {
    world.step(&Op::Object(ObjectOp::TouchByAll { object: 0, page }));
}

#[test]
fn a_shared_page_leaves_and_comes_for_all() {
    let mut world = World::new(&one_device());
    let object = object_that_is_out(&mut world, 3);
    world.step(&Op::Pending(true));
    touch_by_all(&mut world, 7);
    assert_eq!(object.memory.asleep().len(), 3, "all wait for one read");
    world.step(&Op::Reap { reads: 1 });
    assert_eq!(object.memory.asleep(), []);
    assert_eq!(world.engine.stats().sum(|c| &c.pgmajfault), 1);
    for mapper in object.memory.mappers() {
        assert_eq!(object.memory.look(mapper, 7, None), Touch::Done);
    }
    world.step(&Op::Pending(false));
    world.end(false);
}

/// Bytes stored through one mapping are read through the others, however often the page has left meanwhile.
#[test]
fn a_fork_copies_no_words_of_shared_memory() {
    let mut world = World::new(&one_device());
    let object = object_that_is_out(&mut world, 1);
    let entry = object.space.word(Vpn(3)).held_entry().expect("it is out");
    world.step(&Op::Fork { target: 0 });
    world.step(&Op::Events { target: 0 });
    assert_eq!((world.engine.used_slots(), world.objects.len()), (64, 1));
    assert_eq!(world.engine.devices()[0].slots.count(entry.slot), 1, "one owner, whoever has it mapped");
    let mappers = object.memory.mappers();
    for (writer, reader) in [(0, 1), (1, 0)] {
        let stamp = world.stamp();
        world.access_object(&object, mappers[writer], 3, Some(stamp));
        while world.shrink_object(&object, 128, true) > 0 {}
        world.access_object(&object, mappers[reader], 3, None);
    }
    let parent = world.target(0);
    world.exit(&parent);
    assert!(world.engine.used_slots() > 60, "the child has it mapped");
    world.end(false);
}

#[test]
fn a_failed_read_of_shared_memory_is_sigbus_in_each_mapping() {
    let mut world = World::new(&one_device());
    let object = object_that_is_out(&mut world, 3);
    let mappers = object.memory.mappers();
    world.step(&Op::FailReads { pages: 1 });
    world.access_object(&object, mappers[0], 5, None);
    assert_eq!(object.space.word(Vpn(5)).state(), State::Poisoned);
    assert_eq!(object.memory.look(mappers[0], 5, None), Touch::Lost);
    assert_eq!(object.memory.look(mappers[1], 5, None), Touch::Missing, "nobody has asked for it there");
    world.access_object(&object, mappers[1], 5, Some(99));
    assert_eq!(object.memory.look(mappers[1], 5, None), Touch::Lost);
    // It is zeros for who has not looked before.
    world.step(&Op::Object(ObjectOp::Punch { object: 0, page: 5, pages: 1, again: false }));
    world.access_object(&object, mappers[2], 5, None);
    assert_eq!(object.memory.look(mappers[2], 5, None), Touch::Done);
    assert_eq!(object.memory.look(mappers[0], 5, None), Touch::Lost);
    world.end(false);
}

#[test]
fn a_hole_is_made_while_its_page_is_read() {
    for synchronous in [false, true] {
        let mut world = World::new(&Setup { synchronous, ..one_device() });
        let object = object_that_is_out(&mut world, 2);
        world.step(&Op::Pending(true));
        touch_by_all(&mut world, 9);
        assert_eq!(object.space.word(Vpn(9)).state(), State::Filling);
        world.step(&Op::Object(ObjectOp::Punch { object: 0, page: 0, pages: 64, again: true }));
        world.step(&Op::Reap { reads: 1 });
        assert_eq!(object.memory.asleep(), [], "they come again, and find zeros");
        assert_eq!(world.engine.used_slots(), 0);
        // Bytes stored while the call is under way go with the hole that the kernel makes.
        let mapper = object.memory.mappers()[1];
        world.access_object(&object, mapper, 9, Some(1234));
        world.step(&Op::Object(ObjectOp::PunchAgain));
        assert_eq!(object.space.word(Vpn(9)).state(), State::Resident);
        world.access_object(&object, mapper, 9, None);
        world.end(false);
    }
}

#[test]
fn an_object_ends_while_its_page_is_read() {
    let mut world = World::new(&one_device());
    let object = object_that_is_out(&mut world, 2);
    world.step(&Op::Pending(true));
    touch_by_all(&mut world, 9);
    for mapper in object.memory.mappers() {
        world.unmap_object(&object, mapper);
    }
    assert!(world.objects.is_empty() && world.engine.used_slots() == 1, "the read holds its slot");
    world.engine.check();
    world.step(&Op::Reap { reads: 1 });
    assert_eq!(world.engine.used_slots(), 0);
    world.end(false);
}

/// A run that would go beyond the object's end is cut off, and nobody waits for what is not there.
#[test]
fn a_run_of_zeros_ends_with_the_object() {
    for pages in [1, 7, 33] {
        let mut world = World::new(&one_device());
        world.step(&Op::Object(ObjectOp::Make { target: 0, pages, present: 0 }));
        let object = world.objects[0].clone();
        let mapper = object.memory.mappers()[0];
        (0..pages).for_each(|page| world.access_object(&object, mapper, page, None));
        assert_eq!(object.space.resident_pages(), pages);
        world.end(false);
    }
}

/// A process that makes a page where one is swapped out has taken it from all others: nobody reads on.
#[test]
fn a_page_of_a_stranger_is_a_breach() {
    let mut world = World::new(&one_device());
    let object = object_that_is_out(&mut world, 2);
    let [stays, reads] = object.memory.mappers()[..] else { panic!("two have it mapped") };
    world.step(&Op::Pending(true));
    assert_eq!(object.memory.touch(reads, 0, 20, None), Touch::Missing);
    object.memory.note_waiter(20, reads);
    world.fault_in(&object.space, Fault { vpn: Vpn(20), write: false, urgent: false, favoured: false });
    object.memory.touch_unregistered(20);
    assert!(!object.memory.is_breached());
    world.step(&Op::Reap { reads: 1 });
    assert!(object.memory.is_breached(), "EEXIST for a page that is out");
    assert!(object.memory.sleeps(reads, 0, 20), "else he would read zeros");
    // The faults of the others are not served either: the run ends.
    world.step(&Op::Pending(false));
    assert_eq!(object.memory.touch(stays, 0, 21, None), Touch::Missing);
    object.memory.note_waiter(21, stays);
    world.fault_in(&object.space, Fault { vpn: Vpn(21), write: false, urgent: false, favoured: false });
    assert!(object.memory.sleeps(stays, 0, 21));
    world.end(true);
}
