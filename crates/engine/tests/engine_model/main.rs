//! The whole engine against a model: random histories of address spaces, of a device that is slow or fails,
//! and of the threads between them.
//!
//! ```text
//!   Op ─▶ World ─┬─ target     touch, map, unmap, drop, mremap, fork, exit           testing::MockMemory
//!                ├─ pager      fault, read events, retry what was put off, reap      testing::MockBacking
//!                ├─ reclaimer  shrink, write out later, write again
//!                └─ operator   swapon, swapoff step by step, stop
//! ```
//!
//! Objects of shared memory, which several targets have mapped, are in a history of their own, with all else
//! that may happen (objects.rs).
//!
//! Every step of the pager that may come late is an operation of its own: events stay unread, reads stay in
//! flight, fills that met an event stay put off, batches stay unwritten, until an operation or a quiet point
//! ends them. So one thread goes through the interleavings that matter, and a history that fails shrinks to
//! the few steps that matter.
//!
//! What is checked:
//! * at each touch, that a page reads as what was last stored there, in each of the spaces that share it
//!   since a fork, and through each mapping of an object; a page may be lost only if a read of it has failed,
//!   and then it is SIGBUS and never data;
//! * at a quiet point, that nobody sleeps in a fault that nobody will serve, that the engine's own count of
//!   everything is right, and that every page of every space can be had;
//! * at the end, that nothing is left: no slot, no page, no byte in the device.
//!
//! threads.rs does the same with threads, where the interleavings are finer than the steps of a pager.
//!
//! ```text
//!   ops.rs, operator.rs, setup.rs                what may happen, and on which devices with which knobs
//!   named.rs, folios.rs, ahead.rs, swapoff.rs    histories that are worth a name
//!   object_ops.rs, objects.rs, shared_named.rs   shared memory: what may happen, how, histories with a name
//! ```

mod ahead;
mod folios;
mod inherited;
mod named;
mod object_ops;
mod objects;
mod operator;
mod ops;
mod setup;
mod shared_named;
mod swapoff;
mod threads;

use self::object_ops::{Mapping, ObjectOp, ops_with_objects};
use self::objects::Object;
use self::ops::{Op, op, ops};
use self::setup::{Setup, make_engine, one_device, reading_ahead, setup, two_devices};
use memspill_engine::backing::{BackingError, QueueId};
use memspill_engine::devices::Device;
use memspill_engine::devices::SWAPONS_MAX;
use memspill_engine::engine::Engine;
use memspill_engine::fill::{Fault, FillJob, Outcome, Scratch};
use memspill_engine::group::GroupConfig;
use memspill_engine::memory::{Memory, Stop, Take};
use memspill_engine::slots::Slots;
use memspill_engine::space::Space;
use memspill_engine::swap_out::Shrunk;
use memspill_engine::swapoff::{Step, SwapoffError};
use memspill_engine::testing::address_space::{Event, Touch};
use memspill_engine::testing::device::{Lost, MockBacking};
use memspill_engine::testing::memory::MockMemory;
use memspill_engine::testing::random::Random;
use memspill_engine::tuning::{FolioSize, KNOBS, Readahead, Tuning};
use memspill_engine::units::{CpuId, Order, PAGE_SIZE, SpaceId, Vpn};
use memspill_engine::word::{ENTRY_DEVICES_MAX, State};
use memspill_engine::write_out::WriteOut;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Pages that a history plays with: three chunks of the page table, the first and the last only in part.
const FIRST: u64 = 0x7f00_0000 + 400;
const PAGES: u64 = 720;
const LIMIT_PAGES: u64 = 300;
const SPACES_MAX: usize = 4;
const CPU: CpuId = CpuId(0);
const QUEUE: QueueId = QueueId(0);
/// Swapoff's own.
const SWAPOFF_QUEUE: QueueId = QueueId(60);

// ---- the world in which it happens ------------------------------------------------------------------------

/// Odd ones are in the inner group, if there is one.
fn new_space(engine: &Engine, id: u32, memory: Arc<dyn Memory>) -> Arc<Space> {
    let space = Space::new(SpaceId(id), memory);
    Arc::new(match engine.groups().all().get(1) {
        Some(inner) if id % 2 == 1 => space.in_group(inner.clone()),
        _ => space,
    })
}

#[derive(Clone)]
struct Target {
    memory: Arc<MockMemory>,
    space: Arc<Space>,
    /// Its name among those that have an object mapped.
    mapper: u32,
}

/// A child whose fork was not read yet.
struct Child {
    memory: Arc<MockMemory>,
    mapper: u32,
    parent: u32,
}

struct World {
    setup: Setup,
    lost: Arc<Lost>,
    /// How the last swapoff ended; None while one is under way.
    swapoff: Option<Result<(), SwapoffError>>,
    engine: Arc<Engine>,
    backings: Vec<Arc<MockBacking>>,
    targets: Vec<Target>,
    scratch: Scratch,
    put_off: Vec<FillJob>,
    /// Faults that found no room.
    waiting: VecDeque<(Arc<Space>, Fault)>,
    unwritten: Vec<WriteOut>,
    stamps: u64,
    spaces: u32,
    objects: Vec<Object>,
    /// Holes in objects that the kernel is still to make.
    holes: Vec<(Object, u64, u64)>,
    children: Vec<Child>,
    mappers: u32,
}

impl World {
    fn new(setup: &Setup) -> World {
        let lost = Arc::new(Lost::default());
        let (engine, backings) = make_engine(setup, 1, &lost);
        let mut world = World {
            setup: setup.clone(),
            lost: lost.clone(),
            swapoff: Some(Ok(())),
            engine,
            backings,
            targets: Vec::new(),
            scratch: Scratch::default(),
            put_off: Vec::new(),
            waiting: VecDeque::new(),
            unwritten: Vec::new(),
            stamps: 0,
            spaces: 0,
            objects: Vec::new(),
            holes: Vec::new(),
            children: Vec::new(),
            mappers: 0,
        };
        let memory = Arc::new(MockMemory::new(lost));
        memory.map(FIRST, FIRST + PAGES / 2);
        let first = world.add_target(memory, 0);
        world.engine.add_space(first.space);
        world
    }

    fn add_target(&mut self, memory: Arc<MockMemory>, mapper: u32) -> Target {
        self.spaces += 1;
        let space = new_space(&self.engine, self.spaces, memory.clone());
        let target = Target { memory, space, mapper };
        self.targets.push(target.clone());
        target
    }

    fn target(&self, target: usize) -> Target {
        self.targets[target % self.targets.len()].clone()
    }

    fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Write { .. } | Op::Read { .. } | Op::Scan { .. } | Op::WriteRun { .. } | Op::Touch { .. } => {
                self.step_access(op);
            }
            Op::Shrink { target, pages, write } => {
                let target = self.target(*target);
                self.shrink(&target, *pages, *write);
            }
            Op::Pageout { target, page, pages } => self.pageout(&self.target(*target), *page, *pages),
            Op::Ahead { target, page, pages } => {
                let (from, to) = range(*page, *pages);
                self.bring_ahead(&self.target(*target).space, from, to);
            }
            Op::Predict { target, page, pages } => {
                let (from, to) = range(*page, *pages);
                let space = self.target(*target).space;
                (from..to).for_each(|page| self.scratch.predict(&space, Vpn(page)));
            }
            Op::BringPredicted { pages } => self.bring_predicted(*pages),
            Op::Cold { target, page, pages } => {
                let (from, to) = range(*page, *pages);
                self.target(*target).space.make_cold(Vpn(from), Vpn(to));
            }
            Op::ShrinkWanted { target, pages } => self.shrink_wanted(*target, *pages),
            Op::FinishWrites => self.finish_writes(),
            Op::WriteAgain => {
                self.engine.write_again(CPU, QUEUE);
            }
            Op::Maintain => self.engine.devices().iter().for_each(|device| _ = device.maintain(QUEUE)),
            Op::Tidy { target } => self.target(*target).space.tidy(),
            Op::Events { target } => self.events(&self.target(*target)),
            Op::Reap { reads } => self.reap(*reads),
            Op::Retry => self.retry(),
            Op::Quiet => self.quiet(),
            Op::Swapon { slots, priority } => self.swapon(*slots, *priority),
            Op::Swapoff { device } => self.swapoff(device % self.engine.devices().len()),
            Op::SwapoffSteps { steps } => self.swapoff_steps(*steps),
            Op::SwapoffStop => self.engine.swapoff_stop(),
            Op::Pending(pending) => self.backings.iter().for_each(|b| b.set_pending(*pending)),
            Op::FailReads { pages } => self.backings.iter().for_each(|b| b.fail_reads(*pages)),
            Op::ShortReads { pages } => self.backings.iter().for_each(|b| b.run_short(*pages)),
            Op::FailWrites { error, pages } => {
                self.backings.iter().for_each(|b| b.fail_writes(error.clone(), *pages));
            }
            Op::Vanish { target, page } => self.target(*target).memory.vanish(FIRST + page),
            Op::Refuse { target, page, pages, take } => {
                let (from, to) = range(*page, *pages);
                (from..to).for_each(|page| self.target(*target).memory.refuse(page, *take));
            }
            Op::StopFill { target, after, stop } => self.target(*target).memory.stop_next_fill(*after, *stop),
            Op::Object(op) => self.object_step(op),
            change => self.step_change(change),
        }
    }

    fn step_access(&mut self, op: &Op) {
        match op {
            Op::Write { target, page, zero } => {
                let stamp = if *zero { 0 } else { self.stamp() };
                self.access(&self.target(*target), FIRST + page, Some(stamp));
            }
            Op::Read { target, page } => self.access(&self.target(*target), FIRST + page, None),
            Op::Scan { target, page, pages, down } => {
                let (from, to) = range(*page, *pages);
                for i in 0..to - from {
                    let page = if *down { to - 1 - i } else { from + i };
                    self.access(&self.target(*target), page, None);
                }
            }
            Op::WriteRun { target, page, pages } => {
                let (from, to) = range(*page, *pages);
                for page in from..to {
                    let stamp = self.stamp();
                    self.access(&self.target(*target), page, Some(stamp));
                }
            }
            Op::Touch { target, page, write } => {
                let target = self.target(*target);
                let page = FIRST + page;
                let stamp = write.then(|| self.stamp());
                if target.memory.touch(0, page, stamp) == Touch::Missing {
                    self.fault(&target, page, *write);
                }
            }
            _ => unreachable!("not an access"),
        }
    }

    fn step_change(&mut self, op: &Op) {
        let target = match op {
            Op::Map { target, .. } | Op::MapPresent { target, .. } | Op::Adopt { target } => {
                self.target(*target)
            }
            Op::Unmap { target, .. } | Op::Remove { target, .. } | Op::Remap { target, .. } => {
                self.target(*target)
            }
            Op::Fork { target } | Op::Exit { target } => self.target(*target),
            _ => unreachable!("not a change"),
        };
        // Pages that are being dropped are neither moved nor shared: nobody could say what they would read
        // as.
        if target.memory.has_remove() {
            self.events(&target);
        }
        match op {
            Op::Map { page, pages, .. } => {
                let (from, to) = range(*page, *pages);
                target.memory.map(from, to);
            }
            Op::MapPresent { page, pages, .. } => {
                // As when memory becomes managed: no event of this range may be unread.
                self.events(&target);
                let (from, to) = range(*page, *pages);
                let stamps = &mut self.stamps;
                target.memory.map_present(from, to, || {
                    *stamps += 1;
                    *stamps
                });
            }
            Op::Adopt { .. } => self.adopt(&target),
            Op::Unmap { page, pages, .. } => {
                let (from, to) = range(*page, *pages);
                target.memory.unmap(from, to);
            }
            Op::Remove { page, pages, .. } => {
                let (from, to) = range(*page, *pages);
                target.memory.remove(from, to);
            }
            Op::Remap { from, to, pages, early, late, .. } => {
                let pages = (*pages).min(PAGES - from).min(PAGES - to);
                if from.abs_diff(*to) >= pages {
                    target.memory.remap(FIRST + from, FIRST + to, pages, *early, *late);
                }
            }
            Op::Fork { .. } if self.targets.len() < SPACES_MAX => self.fork(&target),
            Op::Exit { .. } if self.targets.len() > 1 => self.exit(&target),
            _ => {}
        }
    }

    fn adopt(&mut self, target: &Target) {
        for (from, to) in target.memory.present_ranges(FIRST, FIRST + PAGES) {
            target.space.adopt(self.engine.swap(), Vpn(from), Vpn(to));
        }
    }

    // -- the target --

    /// Access a page, and play pager and reclaimer until it is there.
    fn access(&mut self, target: &Target, page: u64, write: Option<u64>) {
        for _ in 0..100 {
            if target.memory.touch(0, page, write) != Touch::Missing {
                return;
            }
            self.fault(target, page, write.is_some());
            if target.memory.touch(0, page, write) != Touch::Missing {
                return;
            }
            self.make_progress();
        }
        panic!("page {page:#x} never came: {:?}", target.space.word(Vpn(page)));
    }

    /// Do now all that was put off.
    fn make_progress(&mut self) {
        self.all_events();
        self.reap(usize::MAX);
        self.retry();
        self.serve_waiting();
    }

    /// The child has its parent's objects mapped from the start, before anybody knows of it.
    fn fork(&mut self, target: &Target) {
        self.mappers += 1;
        let (parent, mapper) = (target.mapper, self.mappers);
        self.objects.iter().for_each(|object| object.memory.fork(parent, mapper));
        self.children.push(Child { memory: target.memory.fork(), mapper, parent });
    }

    fn exit(&mut self, target: &Target) {
        self.unmap_all_objects(target.mapper);
        // Nobody hears any more of a fork that nobody has read.
        while let Some(at) = self.children.iter().position(|child| child.parent == target.mapper) {
            let child = self.children.swap_remove(at);
            self.unmap_all_objects(child.mapper);
        }
        target.memory.exit();
        let events_guard = target.space.gate.enter_events();
        let batch = target.memory.batch.lock().expect("batch");
        target.space.release(self.engine.swap(), CPU);
        drop((events_guard, batch));
        self.engine.remove_space(&target.space);
        self.targets.retain(|t| !Arc::ptr_eq(&t.space, &target.space));
    }

    // -- the pager --

    fn fault(&mut self, target: &Target, page: u64, write: bool) {
        let fault = Fault { vpn: Vpn(page), write, urgent: false, favoured: false };
        self.fault_in(&target.space, fault);
    }

    fn fault_in(&mut self, space: &Arc<Space>, fault: Fault) {
        // The waiters of every other page are woken after the gate.
        space.gate.wake_late((fault.vpn.0 % 2) as u32);
        let outcome = self.engine.fault(CPU, QUEUE, space, fault, &mut self.scratch);
        match outcome {
            Outcome::NoRoom => self.waiting.push_back((space.clone(), fault)),
            other => self.after(other),
        }
    }

    fn after(&mut self, outcome: Outcome) {
        if let Outcome::Again(job) = outcome {
            self.put_off.push(job);
        }
    }

    fn reap(&mut self, reads: usize) {
        for backing in self.backings.clone() {
            for _ in 0..reads {
                let Some(done) = backing.reap_one(QUEUE) else { break };
                let outcome = self.engine.read_done(CPU, done, &mut self.scratch);
                self.after(outcome);
            }
        }
    }

    fn retry(&mut self) {
        for job in std::mem::take(&mut self.put_off) {
            let outcome = self.engine.install(CPU, job, &mut self.scratch);
            self.after(outcome);
        }
    }

    fn serve_waiting(&mut self) {
        for (space, fault) in std::mem::take(&mut self.waiting) {
            self.make_room();
            self.fault_in(&space, fault);
        }
    }

    fn all_events(&mut self) {
        // A fork adds to the list while it is walked.
        let mut at = 0;
        while at < self.targets.len() {
            self.events(&self.targets[at].clone());
            at += 1;
        }
    }

    fn events(&mut self, target: &Target) {
        if !target.memory.has_events() {
            return;
        }
        let events_guard = target.space.gate.enter_events();
        let events = target.memory.read_events();
        let batch = target.memory.batch.lock().expect("batch");
        for event in events {
            match event {
                Event::Unmap { from, to } | Event::Remove { from, to } => {
                    target.space.unmap(self.engine.swap(), CPU, Vpn(from), Vpn(to));
                    target.memory.end_remove();
                }
                Event::Remap { from, to, pages } => {
                    target.space.remap(self.engine.swap(), CPU, Vpn(from), Vpn(to), pages);
                }
                Event::Fork { child } => {
                    let at = self.children.iter().position(|c| Arc::ptr_eq(&c.memory, &child));
                    let mapper = self.children.swap_remove(at.expect("it was noted at its fork")).mapper;
                    let child = self.add_target(child, mapper);
                    target.space.fork_into(self.engine.swap(), CPU, &child.space);
                    self.engine.add_space(child.space);
                }
            }
        }
        target.memory.end_events();
        drop((events_guard, batch));
    }

    // -- the reclaimer --

    fn shrink(&mut self, target: &Target, pages: usize, write: bool) -> usize {
        let batch = target.memory.batch.lock().expect("batch");
        let (shrunk, write_out) = self.engine.shrink(CPU, &target.space, pages);
        drop(batch);
        self.unwritten.extend(write_out);
        if write {
            self.finish_writes();
        }
        self.serve_wanted(&target.space, &shrunk.wanted);
        shrunk.taken
    }

    fn serve_wanted(&mut self, space: &Arc<Space>, wanted: &[Vpn]) {
        for vpn in wanted {
            self.fault_in(space, Fault { vpn: *vpn, write: true, urgent: false, favoured: false });
        }
    }

    fn pageout(&mut self, target: &Target, page: u64, pages: u64) {
        let (from, to) = range(page, pages);
        let mut at = Vpn(from);
        while at < Vpn(to) {
            let batch = target.memory.batch.lock().expect("batch");
            let (shrunk, write_out, next) = self.engine.pageout(CPU, &target.space, at, Vpn(to));
            drop(batch);
            assert!(next > at, "a batch brings it further");
            at = next;
            self.unwritten.extend(write_out);
            self.serve_wanted(&target.space, &shrunk.wanted);
        }
    }

    fn bring_ahead(&mut self, space: &Arc<Space>, from: u64, to: u64) {
        let mut at = Vpn(from);
        while at < Vpn(to) {
            let ahead = self.engine.bring_ahead(CPU, QUEUE, space, (at, Vpn(to)), &mut self.scratch);
            if matches!(ahead.outcome, Outcome::NoRoom) && ahead.pages == 0 {
                break;
            }
            assert!(ahead.next > at && (ahead.pages as u64) <= ahead.next.0 - at.0, "it gets further");
            at = ahead.next;
            self.after(ahead.outcome);
        }
    }

    fn bring_predicted(&mut self, pages: usize) {
        for _ in 0..pages {
            match self.engine.bring_predicted(CPU, QUEUE, &mut self.scratch) {
                None | Some(Outcome::NoRoom) => break,
                Some(outcome) => self.after(outcome),
            }
        }
    }

    fn shrink_wanted(&mut self, target: usize, pages: usize) {
        let target = self.target(target);
        let (engine, space, memory) = (self.engine.clone(), target.space.clone(), target.memory.clone());
        *target.memory.after_take.lock().expect("hook") = Some(Box::new(move |runs| {
            for run in runs {
                if memory.touch(0, run.vpn.0, None) == Touch::Missing {
                    let fault = Fault { vpn: run.vpn, write: false, urgent: false, favoured: false };
                    let outcome = engine.fault(CPU, QUEUE, &space, fault, &mut Scratch::default());
                    assert!(matches!(outcome, Outcome::Done), "a page in transit is somebody else's work");
                }
            }
        }));
        self.shrink(&target, pages, false);
        *target.memory.after_take.lock().expect("hook") = None;
    }

    fn finish_writes(&mut self) {
        for write_out in std::mem::take(&mut self.unwritten) {
            self.engine.write_out(CPU, QUEUE, write_out);
        }
    }

    /// Make room for a fault. If swap is full or devices fail, the limit grows, as with `--on-full=grow`.
    fn make_room(&mut self) {
        let engine = self.engine.clone();
        let mut rounds = 0;
        while engine.groups().above_high_mark() && rounds < 4 {
            rounds += 1;
            engine.write_again(CPU, QUEUE);
            for target in self.targets.clone() {
                self.shrink(&target, 64, true);
            }
            for object in self.objects.clone() {
                self.shrink_object(&object, 64, true);
            }
        }
        for group in engine.groups().all().iter().filter(|group| group.full()) {
            group.set_limit_bytes(group.limit_bytes() + 32 * PAGE_SIZE as u64);
        }
    }

    // -- quiet points --

    fn stop_failing(&mut self) {
        self.backings.iter().for_each(|b| {
            b.stop_failing();
            b.set_pending(false);
        });
        self.targets.iter().for_each(|t| t.memory.stop_failing());
        self.objects.iter().for_each(|o| o.memory.stop_failing());
    }

    fn drain(&mut self) {
        self.stop_failing();
        for _ in 0..100 {
            self.make_progress();
            self.finish_writes();
            let left = self.engine.write_again(CPU, QUEUE);
            if left == 0 && self.put_off.is_empty() && self.waiting.is_empty() {
                return;
            }
        }
        panic!("the pager does not come to rest");
    }

    fn quiet(&mut self) {
        self.drain();
        for target in &self.targets {
            assert_eq!(target.memory.waiters(), [], "faults that nobody will serve");
            assert_eq!(target.space.named_under_way(), 0, "pages that are named are counted for ever");
        }
        self.check_objects_quiet();
        self.engine.check();
    }

    /// Every page of every space, and once more after they have all pushed each other out.
    fn check_contents(&mut self) {
        for _ in 0..2 {
            for target in self.targets.clone() {
                for page in target.memory.mapped() {
                    self.access(&target, page, None);
                }
            }
            self.check_objects_contents();
        }
    }

    fn end(mut self, in_flight: bool) {
        if !in_flight {
            self.quiet();
            self.check_contents();
            self.quiet();
        }
        for target in self.targets.clone() {
            self.exit(&target);
        }
        assert!(self.objects.is_empty(), "an object that nobody has mapped");
        self.drain();
        let _ = self.swapoff_to_its_end();
        assert_eq!(self.engine.used_slots(), 0, "slots are left");
        assert_eq!(self.engine.groups().charged_pages(self.engine.root()), 0, "pages are left charged");
        assert!(self.backings.iter().all(|b| b.is_empty()), "the device holds bytes of nobody");
        let stats = self.engine.stats();
        let read = stats.sum(|c| &c.swap_cache_miss) + stats.sum(|c| &c.swap_cache_bypass);
        assert_eq!(
            stats.sum(|c| &c.pgmajfault),
            read,
            "a fault is major if its own page is read, and only then"
        );
        self.engine.check();
    }
}

fn range(page: u64, pages: u64) -> (u64, u64) {
    (FIRST + page, FIRST + (page + pages).min(PAGES))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_keeps_every_page(
        setup in setup(),
        ops in ops(),
        in_flight in prop::bool::weighted(0.3),
    ) {
        let mut world = World::new(&setup);
        for op in &ops {
            world.step(op);
        }
        world.end(in_flight);
    }

    #[test]
    fn every_history_keeps_every_page_of_shared_memory(
        setup in setup(),
        ops in ops_with_objects(),
        in_flight in prop::bool::weighted(0.3),
    ) {
        let mut world = World::new(&setup);
        world.step(&Op::Object(ObjectOp::Make { target: 0, pages: 600, present: 50 }));
        for op in &ops {
            world.step(op);
        }
        world.end(in_flight);
    }
}

fn write_and_evict(world: &mut World, pages: u64) -> Target {
    world.step(&Op::WriteRun { target: 0, page: 0, pages });
    let target = world.target(0);
    while world.shrink(&target, 128, true) > 0 {}
    target
}
