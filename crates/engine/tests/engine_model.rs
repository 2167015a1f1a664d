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
//! Every step of the pager that may come late is an operation of its own: events stay unread, reads stay in
//! flight, fills that met an event stay put off, batches stay unwritten, until an operation or a quiet point
//! ends them. So one thread goes through the interleavings that matter, and a history that fails shrinks to
//! the few steps that matter.
//!
//! What is checked:
//! * at each touch, that a page reads as what was last stored there, in each of the spaces that share it
//!   since a fork; a page may be lost only if a read of it has failed, and then it is SIGBUS and never data;
//! * at a quiet point, that nobody sleeps in a fault that nobody will serve, that the engine's own count of
//!   everything is right, and that every page of every space can be had;
//! * at the end, that nothing is left: no slot, no page, no byte in the device.
//!
//! The second half of the file does the same with threads, where the interleavings are finer than the steps
//! of a pager.

use memspill_engine::backing::{BackingError, QueueId};
use memspill_engine::devices::Device;
use memspill_engine::devices::SWAPONS_MAX;
use memspill_engine::engine::Engine;
use memspill_engine::fill::{Fault, FillJob, Outcome, Scratch};
use memspill_engine::group::GroupConfig;
use memspill_engine::memory::{Stop, Take};
use memspill_engine::slots::Slots;
use memspill_engine::space::Space;
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

// ---- what may happen --------------------------------------------------------------------------------------

/// `page` is counted from FIRST; `target` is taken modulo the spaces that there are.
#[derive(Clone, Debug)]
enum Op {
    /// Store (a zero now and then), whatever it takes.
    Write {
        target: usize,
        page: u64,
        zero: bool,
    },
    Read {
        target: usize,
        page: u64,
    },
    /// Read pages one after the other: what proves a stream.
    Scan {
        target: usize,
        page: u64,
        pages: u64,
        down: bool,
    },
    WriteRun {
        target: usize,
        page: u64,
        pages: u64,
    },
    /// Access a page and do not wait for it.
    Touch {
        target: usize,
        page: u64,
        write: bool,
    },
    Shrink {
        target: usize,
        pages: usize,
        write: bool,
    },
    /// MADV_PAGEOUT and MADV_COLD.
    Pageout {
        target: usize,
        page: u64,
        pages: u64,
    },
    Ahead {
        target: usize,
        page: u64,
        pages: u64,
    },
    Cold {
        target: usize,
        page: u64,
        pages: u64,
    },
    /// As `Shrink`, and victims are faulted on while they are in transit.
    ShrinkWanted {
        target: usize,
        pages: usize,
    },
    FinishWrites,
    WriteAgain,
    /// Between two batches.
    Maintain,
    Map {
        target: usize,
        page: u64,
        pages: u64,
    },
    MapPresent {
        target: usize,
        page: u64,
        pages: u64,
    },
    Adopt {
        target: usize,
    },
    Unmap {
        target: usize,
        page: u64,
        pages: u64,
    },
    Remove {
        target: usize,
        page: u64,
        pages: u64,
    },
    Remap {
        target: usize,
        from: u64,
        to: u64,
        pages: u64,
        early: bool,
        late: bool,
    },
    Fork {
        target: usize,
    },
    Exit {
        target: usize,
    },
    Events {
        target: usize,
    },
    Reap {
        reads: usize,
    },
    Retry,
    Vanish {
        target: usize,
        page: u64,
    },
    Refuse {
        target: usize,
        page: u64,
        pages: u64,
        take: Take,
    },
    StopFill {
        target: usize,
        after: usize,
        stop: Stop,
    },
    FailReads {
        pages: usize,
    },
    ShortReads {
        pages: usize,
    },
    FailWrites {
        error: BackingError,
        pages: usize,
    },
    Pending(bool),
    Tidy {
        target: usize,
    },
    Swapon {
        slots: u32,
        priority: i16,
    },
    /// `device` is taken modulo the devices that there are.
    Swapoff {
        device: usize,
    },
    SwapoffSteps {
        steps: usize,
    },
    SwapoffStop,
    Quiet,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 1..200)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![6 => access(), 4 => change(), 3 => reclaim(), 3 => pager(), 2 => trouble(), 3 => operator()]
}

fn run() -> impl Strategy<Value = (usize, u64, u64)> {
    (0..SPACES_MAX, 0..PAGES, prop_oneof![3 => 1..40u64, 1 => 40..200u64])
}

fn access() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..SPACES_MAX, 0..PAGES, prop::bool::weighted(0.1))
            .prop_map(|(target, page, zero)| Op::Write { target, page, zero }),
        2 => (0..SPACES_MAX, 0..PAGES).prop_map(|(target, page)| Op::Read { target, page }),
        3 => (run(), any::<bool>())
            .prop_map(|((target, page, pages), down)| Op::Scan { target, page, pages, down }),
        4 => run().prop_map(|(target, page, pages)| Op::WriteRun { target, page, pages }),
        6 => (0..SPACES_MAX, 0..PAGES, any::<bool>())
            .prop_map(|(target, page, write)| Op::Touch { target, page, write }),
    ]
}

fn change() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => run().prop_map(|(target, page, pages)| Op::Map { target, page, pages }),
        1 => run().prop_map(|(target, page, pages)| Op::MapPresent { target, page, pages }),
        1 => (0..SPACES_MAX).prop_map(|target| Op::Adopt { target }),
        2 => run().prop_map(|(target, page, pages)| Op::Unmap { target, page, pages }),
        2 => run().prop_map(|(target, page, pages)| Op::Remove { target, page, pages }),
        4 => (run(), 0..PAGES, any::<bool>(), any::<bool>()).prop_map(|(run, to, early, late)| {
            let (target, from, pages) = run;
            Op::Remap { target, from, to, pages, early, late }
        }),
        1 => (0..SPACES_MAX).prop_map(|target| Op::Fork { target }),
        1 => (0..SPACES_MAX).prop_map(|target| Op::Exit { target }),
    ]
}

fn reclaim() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..SPACES_MAX, 1..128usize, any::<bool>())
            .prop_map(|(target, pages, write)| Op::Shrink { target, pages, write }),
        2 => (0..SPACES_MAX, 1..64usize).prop_map(|(target, pages)| Op::ShrinkWanted { target, pages }),
        2 => run().prop_map(|(target, page, pages)| Op::Pageout { target, page, pages }),
        2 => run().prop_map(|(target, page, pages)| Op::Ahead { target, page, pages }),
        1 => run().prop_map(|(target, page, pages)| Op::Cold { target, page, pages }),
        2 => Just(Op::FinishWrites),
        1 => Just(Op::WriteAgain),
        1 => Just(Op::Maintain),
        1 => (0..SPACES_MAX).prop_map(|target| Op::Tidy { target }),
    ]
}

fn operator() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => (prop_oneof![Just(150u32), Just(4096)], 0..3i16)
            .prop_map(|(slots, priority)| Op::Swapon { slots, priority }),
        3 => (0..4usize).prop_map(|device| Op::Swapoff { device }),
        6 => (1..12usize).prop_map(|steps| Op::SwapoffSteps { steps }),
        1 => Just(Op::SwapoffStop),
    ]
}

fn pager() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..SPACES_MAX).prop_map(|target| Op::Events { target }),
        3 => (1..4usize).prop_map(|reads| Op::Reap { reads }),
        3 => Just(Op::Retry),
        2 => prop::bool::weighted(0.7).prop_map(Op::Pending),
        1 => Just(Op::Quiet),
    ]
}

fn trouble() -> impl Strategy<Value = Op> {
    let refusal = prop_oneof![Just(Take::Busy), Just(Take::Retry), Just(Take::Unevictable)];
    let stop = prop_oneof![Just(Stop::Again), Just(Stop::NoMemory), Just(Stop::NotMapped)];
    let error =
        prop_oneof![Just(BackingError::Full), Just(BackingError::Io(5)), Just(BackingError::Short(12))];
    prop_oneof![
        2 => (0..SPACES_MAX, 0..PAGES).prop_map(|(target, page)| Op::Vanish { target, page }),
        2 => (run(), refusal)
            .prop_map(|((target, page, pages), take)| Op::Refuse { target, page, pages, take }),
        2 => (0..SPACES_MAX, 0..8usize, stop)
            .prop_map(|(target, after, stop)| Op::StopFill { target, after, stop }),
        1 => (1..4usize).prop_map(|pages| Op::FailReads { pages }),
        1 => (1..40usize).prop_map(|pages| Op::ShortReads { pages }),
        1 => (error, 1..100usize).prop_map(|(error, pages)| Op::FailWrites { error, pages }),
    ]
}

// ---- the world in which it happens ------------------------------------------------------------------------

/// What differs between runs of the model: the devices, and every knob.
#[derive(Clone, Debug)]
struct Setup {
    /// Slots and priority of each device.
    devices: Vec<(u32, i16)>,
    tuning: Tuning,
    synchronous: bool,
    discard: bool,
    rotational: bool,
    limit_pages: u64,
    /// The first space and its even children are in a group of their own: its maximum, and what it may have
    /// of swap.
    group: Option<(u64, u64)>,
}

fn setup() -> impl Strategy<Value = Setup> {
    let devices = prop_oneof![
        3 => Just(vec![(8192, 0)]),
        2 => Just(vec![(8192, 0), (8192, 0)]),
        2 => Just(vec![(150, 5), (8192, 0)]),
        1 => Just(vec![(250, 0)]),
    ];
    let group = prop_oneof![
        2 => Just(None),
        1 => Just(Some((200, u64::MAX))),
        1 => Just(Some((150, 220))),
        1 => Just(Some((10_000, 300))),
    ];
    // Under the larger one a chunk can be in memory whole.
    let limit_pages = prop_oneof![2 => Just(LIMIT_PAGES), 1 => Just(600)];
    let kind = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.3));
    (devices, tuning(), kind, limit_pages, group).prop_map(|(devices, tuning, kind, limit_pages, group)| {
        let (synchronous, discard, rotational) = kind;
        Setup { devices, tuning, synchronous, discard, rotational, limit_pages, group }
    })
}

/// All knobs at whatever they take; what is cold together leaves together half of the time.
fn tuning() -> impl Strategy<Value = Tuning> {
    let numbers = prop::collection::vec(any::<u32>(), KNOBS.len());
    prop_oneof![1 => Just(None), 3 => (numbers, any::<bool>()).prop_map(Some)].prop_map(|drawn| match drawn {
        None => Tuning::default(),
        Some((numbers, auto)) => {
            let mut numbers = numbers.into_iter();
            let tuning = Tuning::drawn(|| numbers.next().expect("a number for each knob"));
            if auto { Tuning { folio: FolioSize::Auto, ..tuning } } else { tuning }
        }
    })
}

fn make_engine(setup: &Setup, cpus: u32, lost: &Arc<Lost>) -> (Arc<Engine>, Vec<Arc<MockBacking>>) {
    let tuning = &setup.tuning;
    let backings: Vec<Arc<MockBacking>> = setup
        .devices
        .iter()
        .map(|(slots, _)| {
            let backing = MockBacking::new(*slots, setup.synchronous, lost.clone());
            Arc::new(backing.discarding(setup.discard).rotating(setup.rotational))
        })
        .collect();
    let devices = setup.devices.iter().zip(&backings).enumerate().map(|(i, ((slots, priority), backing))| {
        let map = Slots::new(*slots, cpus, false, tuning);
        Device::new(format!("device {i}"), *priority, map, backing.clone())
    });
    let mut groups = vec![GroupConfig::root(setup.limit_pages * PAGE_SIZE as u64)];
    groups.extend(setup.group.map(|(max_pages, swap_max_pages)| GroupConfig {
        name: "inner".into(),
        parent: Some(0),
        swap_max_pages,
        ..GroupConfig::root(max_pages * PAGE_SIZE as u64)
    }));
    let engine = Engine::with_groups(devices.collect(), &groups, tuning.clone());
    (Arc::new(engine), backings)
}

/// Odd ones are in the inner group, if there is one.
fn new_space(engine: &Engine, id: u32, memory: Arc<MockMemory>) -> Arc<Space> {
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
    waiting: VecDeque<(Target, Fault)>,
    unwritten: Vec<WriteOut>,
    stamps: u64,
    spaces: u32,
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
        };
        let memory = Arc::new(MockMemory::new(lost));
        memory.map(FIRST, FIRST + PAGES / 2);
        let first = world.add_target(memory);
        world.engine.add_space(first.space);
        world
    }

    fn add_target(&mut self, memory: Arc<MockMemory>) -> Target {
        self.spaces += 1;
        let space = new_space(&self.engine, self.spaces, memory.clone());
        let target = Target { memory, space };
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
            Op::Ahead { target, page, pages } => self.bring_ahead(&self.target(*target), *page, *pages),
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
            Op::Fork { .. } if self.targets.len() < SPACES_MAX => {
                target.memory.fork();
            }
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

    fn exit(&mut self, target: &Target) {
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
        let outcome = self.engine.fault(CPU, QUEUE, &target.space, fault, &mut self.scratch);
        match outcome {
            Outcome::NoRoom => self.waiting.push_back((target.clone(), fault)),
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
        for (target, fault) in std::mem::take(&mut self.waiting) {
            self.make_room();
            self.fault(&target, fault.vpn.0, fault.write);
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
                    let child = self.add_target(child);
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
        for vpn in shrunk.wanted {
            self.fault(target, vpn.0, true);
        }
        shrunk.taken
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
            for vpn in shrunk.wanted {
                self.fault(target, vpn.0, true);
            }
        }
    }

    fn bring_ahead(&mut self, target: &Target, page: u64, pages: u64) {
        let (from, to) = range(page, pages);
        let mut at = Vpn(from);
        while at < Vpn(to) {
            let ahead = self.engine.bring_ahead(CPU, QUEUE, &target.space, (at, Vpn(to)), &mut self.scratch);
            if matches!(ahead.outcome, Outcome::NoRoom) && ahead.pages == 0 {
                break;
            }
            assert!(ahead.next > at && (ahead.pages as u64) <= ahead.next.0 - at.0, "it gets further");
            at = ahead.next;
            self.after(ahead.outcome);
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

    /// Make room for a fault. Where swap is full or devices fail, the limit grows, as with `--on-full=grow`.
    fn make_room(&mut self) {
        let engine = self.engine.clone();
        let mut rounds = 0;
        while engine.groups().above_high_mark() && rounds < 4 {
            rounds += 1;
            engine.write_again(CPU, QUEUE);
            for target in self.targets.clone() {
                self.shrink(&target, 64, true);
            }
        }
        for group in engine.groups().all().iter().filter(|group| group.full()) {
            group.set_limit_bytes(group.limit_bytes() + 32 * PAGE_SIZE as u64);
        }
    }

    // -- the operator --

    fn swapon(&mut self, slots: u32, priority: i16) {
        let backing = MockBacking::new(slots, self.setup.synchronous, self.lost.clone());
        let backing = Arc::new(backing.discarding(self.setup.discard).rotating(self.setup.rotational));
        let map = Slots::new(slots, 1, false, self.engine.tuning());
        let engine = &self.engine;
        let places = engine.devices().len();
        let can = places < ENTRY_DEVICES_MAX || engine.devices().iter().any(Device::is_off);
        let gone: Vec<usize> = (0..places).filter(|place| engine.devices()[*place].is_off()).collect();
        let added = engine.swapon(Device::new("another".into(), priority, map, backing.clone()));
        assert_eq!(added.is_ok(), can);
        match added {
            Ok(place) if place < places => {
                assert!(places == ENTRY_DEVICES_MAX && gone.contains(&place), "place {place} was another's");
                let old = std::mem::replace(&mut self.backings[place], backing);
                assert!(old.is_closed() && old.is_empty());
            }
            Ok(_) => self.backings.push(backing),
            Err(_) => {}
        }
    }

    fn swapoff(&mut self, device: usize) {
        let devices = self.engine.devices();
        let on = devices.iter().filter(|d| d.is_on()).count();
        let expected = match self.swapoff {
            None => Err(SwapoffError::Busy),
            _ if !devices[device].is_on() => Err(SwapoffError::NotOn),
            _ if on == 1 => Err(SwapoffError::LastDevice),
            _ => Ok(()),
        };
        assert_eq!(self.engine.swapoff_begin(device), expected);
        if expected.is_ok() {
            self.swapoff = None;
        }
    }

    fn swapoff_steps(&mut self, steps: usize) {
        for _ in 0..steps {
            if self.swapoff.is_none()
                && let Step::End(result) = self.engine.swapoff_step(CPU, SWAPOFF_QUEUE)
            {
                self.swapoff = Some(result);
                let off =
                    self.engine.devices().iter().zip(&self.backings).filter(|(device, _)| device.is_off());
                off.for_each(|(device, backing)| {
                    assert!(device.slots.used_slots() == 0 && backing.is_closed())
                });
            }
        }
    }

    fn swapoff_to_its_end(&mut self) -> Result<(), SwapoffError> {
        for _ in 0..10_000 {
            self.swapoff_steps(1);
            if let Some(result) = self.swapoff {
                return result;
            }
            self.make_progress();
            self.finish_writes();
        }
        panic!("a swapoff does not end");
    }

    // -- quiet points --

    fn stop_failing(&mut self) {
        self.backings.iter().for_each(|b| {
            b.stop_failing();
            b.set_pending(false);
        });
        self.targets.iter().for_each(|t| t.memory.stop_failing());
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
        }
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
        self.drain();
        let _ = self.swapoff_to_its_end();
        assert_eq!(self.engine.used_slots(), 0, "slots are left");
        assert_eq!(self.engine.groups().charged_pages(self.engine.root()), 0, "pages are left charged");
        assert!(self.backings.iter().all(|b| b.is_empty()), "the device holds bytes of nobody");
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
}

// ---- histories that are worth a name ----------------------------------------------------------------------

fn one_device() -> Setup {
    Setup {
        devices: vec![(8192, 0)],
        tuning: Tuning::default(),
        synchronous: false,
        discard: false,
        rotational: false,
        limit_pages: LIMIT_PAGES,
        group: None,
    }
}

fn write_and_evict(world: &mut World, pages: u64) -> Target {
    world.step(&Op::WriteRun { target: 0, page: 0, pages });
    let target = world.target(0);
    while world.shrink(&target, 128, true) > 0 {}
    target
}

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
fn swapoff_without_memory_for_its_reads() {
    let mut world = World::new(&two_devices([8192, 8192]));
    write_and_evict(&mut world, 200);
    world.backings[0].run_short(100);
    world.swapoff(0);
    assert_eq!(world.engine.swapoff_step(CPU, SWAPOFF_QUEUE), Step::Wait);
    finish_off(world, 0);
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

/// The middle chunk of the three, which is there whole.
const CHUNK: u64 = 512;
const CHUNK_AT: u64 = (FIRST / CHUNK + 1) * CHUNK - FIRST;

fn folios_of(order: u8) -> Setup {
    let tuning = Tuning { folio: FolioSize::Fixed(Order(order)), ..Tuning::default() };
    Setup { tuning, limit_pages: 2000, ..one_device() }
}

/// (swpout, swpout_fallback) of an order.
fn folio_counts(world: &World, order: u8) -> (u64, u64) {
    let counts = world.engine.stats().of_order(Order(order));
    let value = |name| counts.iter().find(|(n, ..)| *n == name).expect("a counter").1;
    (value("swpout"), value("swpout_fallback"))
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
            assert_eq!(folio_counts(&world, order), (1, 0), "order {order}");
        }
        world.end(false);
    }
}

/// Folios of an order that came in whole.
fn came_whole(world: &World, order: u8) -> u64 {
    let counts = world.engine.stats().of_order(Order(order));
    counts.iter().find(|(name, ..)| *name == "swpin").expect("a counter").1
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
        let whole: Vec<u64> = (4..=6).map(|order| came_whole(&world, order)).collect();
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
        assert_eq!(came_whole(&world, 6), 1);
        // Of another one a page has gone: what is in a row comes all the same.
        world.step(&Op::Remove { target: 0, page: CHUNK_AT + 197, pages: 1 });
        world.step(&Op::Events { target: 0 });
        assert_eq!(resident(&mut world, 240), 16);
        world.end(false);
    }
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
    assert_eq!(folio_counts(&world, 4), (0, 1));
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
    assert_eq!(folio_counts(&world, 9), (0, 1));
    world.end(false);
}

fn reading_ahead(readahead: Readahead) -> Setup {
    Setup { tuning: Tuning { readahead, ..Tuning::default() }, ..one_device() }
}

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

// ---- swapoff ----------------------------------------------------------------------------------------------

/// Two devices, the first of which takes the first pages.
fn two_devices(slots: [u32; 2]) -> Setup {
    Setup { devices: vec![(slots[0], 5), (slots[1], 0)], ..one_device() }
}

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

// ---- threads ----------------------------------------------------------------------------------------------

/// Targets that are pagers too: each serves its own faults, as the pager of its CPU would.
const PAGERS: u32 = 3;
const STRESS: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(20);

/// What the threads share. The main space, and for a while the child of a fork.
struct Stress {
    engine: Arc<Engine>,
    backings: Mutex<Vec<Arc<MockBacking>>>,
    lost: Arc<Lost>,
    /// Devices that have gone off.
    swapoffs: AtomicU32,
    targets: Mutex<Vec<Target>>,
    /// Pages of batches that were faulted on in transit: for the pagers.
    wanted: Mutex<Vec<(Target, Vpn)>>,
    stamps: AtomicU64,
    spaces: AtomicU32,
    stopping: AtomicBool,
    /// Pagers that may still need room: until the last has ended, the reclaimer makes some.
    at_work: AtomicU32,
}

/// A pager thread, and the thread of the target that runs on its CPU.
struct Pager<'a> {
    stress: &'a Stress,
    id: u32,
    scratch: Scratch,
    put_off: Vec<FillJob>,
    random: Random,
}

impl Stress {
    fn main(&self) -> Target {
        self.targets.lock().expect("targets")[0].clone()
    }

    fn add(&self, memory: Arc<MockMemory>) -> Target {
        let id = SpaceId(self.spaces.fetch_add(1, Ordering::Relaxed) + 1);
        let space = new_space(&self.engine, id.0, memory.clone());
        let target = Target { memory, space };
        self.targets.lock().expect("targets").push(target.clone());
        target
    }

    fn stamp(&self) -> u64 {
        self.stamps.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Those that are not off: for who finds no room.
    fn devices(&self) -> String {
        let of = |device: &Device| {
            let (state, used, full) =
                (device.state(), device.slots.used_slots(), device.full.load(Ordering::Relaxed));
            format!("{state:?}, {used} slots used, full: {full}, failing: {}; ", device.errors.is_failing())
        };
        self.engine.devices().iter().filter(|device| !device.is_off()).map(of).collect()
    }

    fn running(&self) -> bool {
        !self.stopping.load(Ordering::Relaxed)
    }

    /// Read and process what has happened to the space, if nobody else does. True if there was a drop to be
    /// ended.
    fn events(&self, cpu: CpuId, target: &Target) -> bool {
        let Some(events_guard) = target.space.gate.try_enter_events() else { return false };
        let events = target.memory.read_events();
        if events.is_empty() {
            return false;
        }
        let batch = target.memory.batch.lock().expect("batch");
        let mut drops = false;
        for event in events {
            match event {
                Event::Unmap { from, to } => target.space.unmap(self.engine.swap(), cpu, Vpn(from), Vpn(to)),
                Event::Remove { from, to } => {
                    target.space.unmap(self.engine.swap(), cpu, Vpn(from), Vpn(to));
                    drops = true;
                }
                Event::Remap { from, to, pages } => {
                    target.space.remap(self.engine.swap(), cpu, Vpn(from), Vpn(to), pages);
                }
                Event::Fork { child } => {
                    let child = self.add(child);
                    target.space.fork_into(self.engine.swap(), CPU, &child.space);
                    child.space.start_level_with(&self.engine.spaces());
                    self.engine.add_space(child.space);
                }
            }
        }
        target.memory.end_events();
        drop((batch, events_guard));
        drops
    }
}

impl Pager<'_> {
    fn cpu(&self) -> CpuId {
        CpuId(self.id)
    }

    fn after(&mut self, outcome: Outcome) {
        if let Outcome::Again(job) = outcome {
            self.put_off.push(job);
        }
    }

    fn duties(&mut self) {
        let stress = self.stress;
        // Not in the head of the loop, where the lock would be held for all of it.
        let targets = stress.targets.lock().expect("targets").clone();
        for target in targets {
            stress.events(self.cpu(), &target);
        }
        for job in std::mem::take(&mut self.put_off) {
            let outcome = stress.engine.install(self.cpu(), job, &mut self.scratch);
            self.after(outcome);
        }
        for backing in stress.all_backings() {
            if let Some(done) = backing.reap_one(QueueId(self.id)) {
                let outcome = stress.engine.read_done(self.cpu(), done, &mut self.scratch);
                self.after(outcome);
            }
        }
        let wanted = stress.wanted.lock().expect("wanted").pop();
        if let Some((target, vpn)) = wanted
            && !self.fault(&target, vpn)
        {
            stress.wanted.lock().expect("wanted").push((target, vpn));
        }
    }

    /// False: there was no room.
    fn fault(&mut self, target: &Target, vpn: Vpn) -> bool {
        let fault = Fault { vpn, write: self.random.one_in(2), urgent: false, favoured: false };
        let queue = QueueId(self.id);
        let outcome = self.stress.engine.fault(self.cpu(), queue, &target.space, fault, &mut self.scratch);
        let served = !matches!(outcome, Outcome::NoRoom);
        self.after(outcome);
        served
    }

    /// Access a page. One fault for each sleep, as in a kernel: a wake that is lost is a thread that sleeps
    /// for ever.
    fn access(&mut self, target: &Target, page: u64, write: Option<u64>) {
        let start = Instant::now();
        while target.memory.touch(self.id, page, write) == Touch::Missing {
            let mut served = self.fault(target, Vpn(page));
            while target.memory.waits(page, self.id) {
                self.duties();
                // A fault that found no room comes again when there may be some.
                served = served || !target.memory.waits(page, self.id) || self.fault(target, Vpn(page));
                let word = target.space.word(Vpn(page));
                assert!(
                    start.elapsed() < PATIENCE,
                    "page {page:#x} never came: {:?} {word:?}; devices: {}",
                    word.state(),
                    self.stress.devices()
                );
                std::thread::yield_now();
            }
        }
    }

    fn run(&mut self) {
        let target = self.stress.main();
        while self.stress.running() {
            let page = FIRST + self.random.below(PAGES);
            let pages = if self.random.one_in(8) { 30 } else { 1 };
            for page in page..(page + pages).min(FIRST + PAGES) {
                let zero = self.random.one_in(10);
                let stamp = if zero { 0 } else { self.stress.stamp() };
                let write = self.random.one_in(2).then_some(stamp);
                self.access(&target, page, write);
                self.duties();
            }
        }
        self.rest();
    }

    fn rest(&mut self) {
        for _ in 0..1000 {
            self.duties();
        }
        assert!(self.put_off.is_empty(), "a fill is put off for ever");
    }

    // -- the thread that changes the address space --

    fn change(&mut self) {
        let target = self.stress.main();
        while self.stress.running() {
            let (from, to) = (self.random.below(PAGES), self.random.below(PAGES));
            let pages = (1 + self.random.below(60)).min(PAGES - from).min(PAGES - to);
            self.change_once(&target, FIRST + from, FIRST + to, pages);
            target.memory.vanish(FIRST + to);
            for _ in 0..self.random.below(20) {
                self.duties();
            }
        }
        self.rest();
    }

    fn change_once(&mut self, target: &Target, from: u64, to: u64, pages: u64) {
        match self.random.below(8) {
            0..3 => {
                target.memory.unmap(from, from + pages);
                self.until_read(target);
                target.memory.map(from, from + pages);
            }
            3..5 => {
                target.memory.remove(from, from + pages);
                self.until_read(target);
                // The kernel drops the pages after the event was read, whenever that thread runs.
                (0..self.random.below(3)).for_each(|_| std::thread::yield_now());
                target.memory.end_remove();
            }
            5..7 if from.abs_diff(to) >= pages => {
                let (early, late) = (self.random.one_in(2), self.random.one_in(2));
                target.memory.remap(from, to, pages, early, late);
                // Somebody may map what was left before the event is read.
                if self.random.one_in(2) && !late {
                    target.memory.map(from, from + pages);
                }
                self.until_read(target);
                target.memory.map(from, from + pages);
            }
            7 if self.random.one_in(20) => self.fork(target),
            _ => {}
        }
    }

    fn until_read(&mut self, target: &Target) {
        while target.memory.has_events() {
            self.duties();
        }
    }

    /// A child comes, looks at all it has inherited, writes some of it, and goes.
    fn fork(&mut self, target: &Target) {
        let memory = target.memory.fork();
        let child = loop {
            self.duties();
            let targets = self.stress.targets.lock().expect("targets").clone();
            // Known to the engine, so the parent's words have been copied.
            let known = self.stress.engine.spaces();
            let found = targets.into_iter().find(|t| Arc::ptr_eq(&t.memory, &memory));
            if let Some(child) = found.filter(|c| known.iter().any(|s| Arc::ptr_eq(s, &c.space))) {
                break child;
            }
        };
        for page in child.memory.mapped() {
            let write = self.random.one_in(4).then(|| self.stress.stamp());
            self.access(&child, page, write);
        }
        exit_space(&self.stress.engine, self.cpu(), &child);
        self.stress.targets.lock().expect("targets").retain(|t| !Arc::ptr_eq(&t.space, &child.space));
    }
}

fn exit_space(engine: &Engine, cpu: CpuId, target: &Target) {
    target.memory.exit();
    let events_guard = target.space.gate.enter_events();
    let batch = target.memory.batch.lock().expect("batch");
    target.space.release(engine.swap(), cpu);
    drop((batch, events_guard));
    engine.remove_space(&target.space);
}

impl Stress {
    /// The reclaimer. It works without need too, so that there are always batches in flight.
    fn reclaim(&self) {
        let mut random = Random(99);
        let cpu = CpuId(PAGERS + 1);
        let queue = QueueId(PAGERS + 1);
        while self.at_work.load(Ordering::Relaxed) > 0 {
            self.engine.write_again(cpu, queue);
            self.engine.devices().iter().for_each(|device| _ = device.maintain(queue));
            self.trouble(&mut random);
            let picked = self.engine.pick_space();
            let targets = self.targets.lock().expect("targets").clone();
            let Some(target) = picked.and_then(|s| targets.into_iter().find(|t| Arc::ptr_eq(&t.space, &s)))
            else {
                continue;
            };
            let batch = target.memory.batch.lock().expect("batch");
            let (shrunk, write_out) = self.engine.shrink(cpu, &target.space, 1 + random.below(64) as usize);
            drop(batch);
            let wanted = shrunk.wanted.iter().map(|vpn| (target.clone(), *vpn));
            self.wanted.lock().expect("wanted").extend(wanted);
            if let Some(write_out) = write_out {
                self.engine.write_out(cpu, queue, write_out);
            }
            if !self.engine.groups().above_high_mark() {
                std::thread::yield_now();
            }
            if shrunk.taken == 0 {
                target.space.pass_over();
            }
        }
    }

    /// The operator: devices go off and on, and halfway off.
    fn operate(&self) {
        let mut random = Random(31);
        let (cpu, queue) = (CpuId(PAGERS + 2), SWAPOFF_QUEUE);
        let start = Instant::now();
        while self.at_work.load(Ordering::Relaxed) > 0 {
            let devices = self.engine.devices();
            if self.engine.swapoff_begin(random.below(devices.len() as u64) as usize).is_err() {
                std::thread::yield_now();
                continue;
            }
            // The number of swapons is limited: spread them over the whole time.
            let may_end =
                start.elapsed() > STRESS.mul_f64(devices.ever_added().count() as f64 / SWAPONS_MAX as f64);
            let mut steps = random.below(60);
            let result = loop {
                match self.engine.swapoff_step(cpu, queue) {
                    Step::End(result) => break result,
                    Step::Wait => std::thread::yield_now(),
                    Step::Moved(_) => {}
                }
                steps = steps.saturating_sub(1);
                if steps == 0 && !may_end {
                    self.engine.swapoff_stop();
                }
            };
            if result.is_ok() && self.engine.devices().ever_added().count() < SWAPONS_MAX {
                let backing =
                    Arc::new(MockBacking::new(4096, false, self.lost.clone()).discarding(random.one_in(2)));
                let map = Slots::new(4096, PAGERS + 3, false, self.engine.tuning());
                // The pagers must know it before they may have to reap its reads.
                let mut backings = self.backings.lock().expect("backings");
                backings.retain(|backing| !backing.is_closed());
                backings.push(backing.clone());
                drop(backings);
                self.engine.swapon(Device::new("another".into(), 0, map, backing)).expect("a place is left");
            }
            self.swapoffs.fetch_add(u32::from(result.is_ok()), Ordering::Relaxed);
        }
    }

    fn all_backings(&self) -> Vec<Arc<MockBacking>> {
        self.backings.lock().expect("backings").clone()
    }

    fn trouble(&self, random: &mut Random) {
        let backings = self.all_backings();
        let backing = &backings[random.below(backings.len() as u64) as usize];
        match random.below(60) {
            0 => backing.fail_reads(2),
            11 => backing.run_short(20),
            1 => backing.fail_writes(BackingError::Io(5), 30),
            2 => backing.fail_writes(BackingError::Full, 3),
            3 => backing.set_pending(false),
            4..8 => backing.set_pending(true),
            8 => self.main().space.tidy(),
            9 => self.main().memory.refuse(FIRST + random.below(PAGES), Take::Unevictable),
            10 => self.main().memory.stop_next_fill(1, Stop::Again),
            _ => {}
        }
    }

    /// All threads are gone: what they left must add up.
    fn check(&self) {
        self.all_backings().iter().for_each(|b| {
            b.stop_failing();
            b.set_pending(false);
        });
        let mut pager = Pager {
            stress: self,
            id: 0,
            scratch: Scratch::default(),
            put_off: Vec::new(),
            random: Random(5),
        };
        pager.rest();
        self.engine.groups().all().iter().for_each(|group| group.set_limit_bytes(u64::MAX / 2));
        let main = self.main();
        main.memory.stop_failing();
        assert_eq!(main.memory.waiters(), [], "threads that nobody will wake");
        assert_eq!(self.engine.write_again(CPU, QUEUE), 0);
        self.engine.check();
        main.memory.mapped().into_iter().for_each(|page| pager.access(&main, page, None));
        self.engine.check();
        exit_space(&self.engine, CPU, &main);
        assert_eq!(self.engine.used_slots(), 0, "slots are left");
        assert_eq!(self.engine.groups().charged_pages(self.engine.root()), 0, "pages are left charged");
        assert!(self.all_backings().iter().all(|b| b.is_empty()), "the device holds bytes of nobody");
        let swapoffs = self.swapoffs.load(Ordering::Relaxed);
        assert!(swapoffs >= 40, "only {swapoffs} devices have gone off: no place was used again");
    }
}

/// A thread that panics must not leave the others waiting for it.
struct StopOnPanic<'a>(&'a Stress);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stopping.store(true, Ordering::Relaxed);
        }
    }
}

struct AtWork<'a>(&'a Stress);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.at_work.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn threads_keep_every_page() {
    stress(&one_device());
}

#[test]
fn threads_that_read_ahead_keep_every_page() {
    stress(&reading_ahead(Readahead::Always));
    stress(&Setup { rotational: true, ..reading_ahead(Readahead::Always) });
}

fn stress(setup: &Setup) {
    let lost = Arc::new(Lost::default());
    let setup = Setup { devices: vec![(4096, 0), (4096, 0)], discard: true, ..setup.clone() };
    let (engine, backings) = make_engine(&setup, PAGERS + 3, &lost);
    let stress = Stress {
        engine,
        backings: Mutex::new(backings),
        lost: lost.clone(),
        swapoffs: AtomicU32::new(0),
        targets: Mutex::default(),
        wanted: Mutex::default(),
        stamps: AtomicU64::new(0),
        spaces: AtomicU32::new(0),
        stopping: AtomicBool::new(false),
        at_work: AtomicU32::new(PAGERS + 1),
    };
    let memory = Arc::new(MockMemory::new(lost));
    memory.map(FIRST, FIRST + PAGES);
    let main = stress.add(memory);
    stress.engine.add_space(main.space);
    let stress = &stress;
    std::thread::scope(|scope| {
        for id in 0..=PAGERS {
            scope.spawn(move || {
                let _stop = StopOnPanic(stress);
                let _work = AtWork(stress);
                let random = Random(u64::from(id) + 7);
                let mut pager =
                    Pager { stress, id, scratch: Scratch::default(), put_off: Vec::new(), random };
                if id == PAGERS { pager.change() } else { pager.run() }
            });
        }
        scope.spawn(move || {
            let _stop = StopOnPanic(stress);
            stress.reclaim();
        });
        scope.spawn(move || {
            let _stop = StopOnPanic(stress);
            stress.operate();
        });
        let start = Instant::now();
        while start.elapsed() < STRESS && stress.running() {
            std::thread::sleep(Duration::from_millis(20));
        }
        stress.stopping.store(true, Ordering::Relaxed);
    });
    stress.check();
}
