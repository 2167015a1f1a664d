//! The child of a fork of which no event tells: its table is copied before the fork, and made what its
//! memory is when it comes.

use super::*;
use memspill_engine::memory::{Fill, PageRun};
use memspill_engine::units::Page;
use std::sync::OnceLock;

/// The child's memory, which is not there when its table is.
#[derive(Default)]
struct Later(OnceLock<Arc<MockMemory>>);

impl Memory for Later {
    fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        self.0.get().expect("it has come").take(runs, frames, outcome);
    }
    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        self.0.get().expect("it has come").put(vpn, pages)
    }
    fn put_zero(&self, vpn: Vpn, pages: usize, write: bool) -> Fill {
        self.0.get().expect("it has come").put_zero(vpn, pages, write)
    }
    fn poison(&self, vpn: Vpn) {
        self.0.get().expect("it has come").poison(vpn);
    }
    fn wake(&self, vpn: Vpn, pages: usize) {
        self.0.get().expect("it has come").wake(vpn, pages);
    }
}

fn is_present(memory: &MockMemory, page: u64) -> bool {
    !memory.present_ranges(FIRST + page, FIRST + page + 1).is_empty()
}

fn run(from: u64, to: u64) -> (Vpn, Vpn) {
    (Vpn(FIRST + from), Vpn(FIRST + to))
}

/// Eight pages are away but one; the process says that it will fork; one more is brought; it forks; and pages
/// of it leave again before the child comes.
#[test]
fn a_fork_in_two_steps() {
    let mut world = World::new(&one_device());
    let target = write_and_evict(&mut world, 8);
    world.step(&Op::Read { target: 0, page: 7 });
    assert_eq!(target.space.word(Vpn(FIRST + 7)).state(), State::Resident);
    let resident = |pages: &[(Vpn, Vpn)], page: u64| {
        pages.iter().any(|(from, to)| (*from..*to).contains(&Vpn(FIRST + page)))
    };

    let (memory, key) = (Arc::new(Later::default()), 99);
    let space = Arc::new(Space::new(SpaceId(key), memory.clone()));
    space.set_aside(true, &[]);
    let then = target.space.copy_slots_to(world.engine.swap(), &space);
    world.engine.add_space(space.clone());
    world.engine.check();
    assert!(resident(&then, 7) && !resident(&then, 2));
    let away: Vec<u64> = (0..8).filter(|page| !resident(&then, *page)).collect();
    assert!(away.iter().all(|page| space.word(Vpn(FIRST + page)).state() == State::Swapped));

    world.step(&Op::Write { target: 0, page: 2, zero: false });
    let child = target.memory.fork();
    // Nobody tells of it.
    target.memory.read_events();
    target.memory.end_events();
    let brought = target.space.brought_since(&space);
    assert!(resident(&brought, 2) && !resident(&brought, 7), "{brought:?}");
    // The parent's pages change, and leave again; it ends, too. The child's slots stay.
    world.step(&Op::Write { target: 0, page: 2, zero: false });
    while world.shrink(&target, 128, true) > 0 {}
    world.exit(&target);
    world.engine.check();

    let present: Vec<u64> = (0..8).filter(|page| is_present(&child, *page)).collect();
    assert!(present.contains(&2) && present.contains(&7) && present.len() < 8, "{present:?}");
    assert!(memory.0.set(child.clone()).is_ok());
    let runs: Vec<_> = present.iter().map(|page| run(*page, *page + 1)).collect();
    space.settle(world.engine.swap(), CPU, &target.space, &runs);
    space.set_aside(false, &world.engine.spaces());
    world.engine.check();
    for page in 0..8 {
        let state = if present.contains(&page) { State::Resident } else { State::Swapped };
        assert_eq!(space.word(Vpn(FIRST + page)).state(), state, "page {page}");
    }
    let child = Target { memory: child, space, mapper: 0 };
    world.targets.push(child);
    // Each reads as it did at the fork: the memory checks that.
    (0..8).for_each(|page| world.step(&Op::Read { target: 0, page }));
    world.end(false);
}

/// The fork fails, or its child never comes.
#[test]
fn a_child_that_does_not_come_leaves_nothing() {
    let mut world = World::new(&one_device());
    let target = write_and_evict(&mut world, 8);
    let space = Arc::new(Space::new(SpaceId(99), Arc::new(Later::default())));
    space.set_aside(true, &[]);
    target.space.copy_slots_to(world.engine.swap(), &space);
    world.engine.add_space(space.clone());
    world.engine.check();
    world.exit(&target);
    assert_ne!(world.engine.used_slots(), 0, "the child's references");
    space.release(world.engine.swap(), CPU);
    world.engine.remove_space(&space);
    // No slot is left.
    world.end(false);
}
