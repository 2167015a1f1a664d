//! Threads against the model: the interleavings are finer than the steps of a pager.
//!
//! Each thread of the target is a pager too. If there is an object of shared memory, each thread is also a
//! process that has it mapped, and children come and go that have it mapped as well.

mod shared;

use self::shared::{OBJECT_PAGES, make_object};
use super::*;

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
    object: Option<Object>,
    /// Pages of batches that were faulted on in transit: for the pagers.
    wanted: Mutex<Vec<(Arc<Space>, Vpn)>>,
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
        let target = Target { memory, space, mapper: id.0 };
        self.targets.lock().expect("targets").push(target.clone());
        target
    }

    fn stamp(&self) -> u64 {
        self.stamps.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The devices that are not off: for a thread that finds no room.
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
        if let Some((space, vpn)) = wanted
            && !self.fault(&space, vpn)
        {
            stress.wanted.lock().expect("wanted").push((space, vpn));
        }
    }

    /// False: there was no room.
    fn fault(&mut self, space: &Arc<Space>, vpn: Vpn) -> bool {
        let fault = Fault { vpn, write: self.random.one_in(2), urgent: false, favoured: false };
        if self.random.one_in(2) {
            space.gate.wake_late(1);
        }
        let queue = QueueId(self.id);
        let outcome = self.stress.engine.fault(self.cpu(), queue, space, fault, &mut self.scratch);
        let served = !matches!(outcome, Outcome::NoRoom);
        self.after(outcome);
        served
    }

    /// Access a page. One fault for each sleep, as in a kernel: a wake that is lost is a thread that sleeps
    /// for ever.
    fn access(&mut self, target: &Target, page: u64, write: Option<u64>) {
        let start = Instant::now();
        while target.memory.touch(self.id, page, write) == Touch::Missing {
            let mut served = self.fault(&target.space, Vpn(page));
            while target.memory.waits(page, self.id) {
                self.duties();
                // A fault that found no room comes again when there may be some.
                served =
                    served || !target.memory.waits(page, self.id) || self.fault(&target.space, Vpn(page));
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
            let object = self.stress.object.as_ref().filter(|_| self.random.one_in(2));
            if let Some(object) = object {
                self.run_on_object(object);
                continue;
            }
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
            if let Some(object) = &self.stress.object {
                self.change_object(object);
            }
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
            let Some((space, shrunk, write_out)) = self.batch_of_some(cpu, 1 + random.below(64) as usize)
            else {
                continue;
            };
            let wanted = shrunk.wanted.iter().map(|vpn| (space.clone(), *vpn));
            self.wanted.lock().expect("wanted").extend(wanted);
            if let Some(write_out) = write_out {
                self.engine.write_out(cpu, queue, write_out);
            }
            if !self.engine.groups().above_high_mark() {
                std::thread::yield_now();
            }
            space.note_asked(shrunk.taken > 0);
            if shrunk.taken == 0 {
                self.engine.end_rests();
            }
        }
    }

    fn batch_of_some(&self, cpu: CpuId, pages: usize) -> Option<(Arc<Space>, Shrunk, Option<WriteOut>)> {
        let space = self.engine.pick_space()?;
        let targets = self.targets.lock().expect("targets").clone();
        let target = targets.into_iter().find(|target| Arc::ptr_eq(&target.space, &space));
        let object = self.object.as_ref().filter(|object| Arc::ptr_eq(&object.space, &space));
        let batch = match (&target, object) {
            (Some(target), _) => &target.memory.batch,
            (None, Some(object)) => &object.memory.batch,
            (None, None) => return None,
        };
        let batch = batch.lock().expect("batch");
        let (shrunk, write_out) = self.engine.shrink(cpu, &space, pages);
        drop(batch);
        Some((space, shrunk, write_out))
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
        if let Some(object) = &self.object {
            match random.below(60) {
                0 => object.space.tidy(),
                1 => object.memory.refuse(random.below(OBJECT_PAGES)),
                2 => object.memory.stop_next_fill(1, Stop::NoMemory),
                _ => {}
            }
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
        if let Some(object) = &self.object {
            self.check_object(&mut pager, object);
        }
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

#[test]
fn threads_keep_every_page_of_shared_memory() {
    stress_with(&one_device(), true);
    stress_with(&reading_ahead(Readahead::Always), true);
}

fn stress(setup: &Setup) {
    stress_with(setup, false);
}

fn stress_with(setup: &Setup, shared: bool) {
    let lost = Arc::new(Lost::default());
    let setup = Setup { devices: vec![(4096, 0), (4096, 0)], discard: true, ..setup.clone() };
    let (engine, backings) = make_engine(&setup, PAGERS + 3, &lost);
    let object = shared.then(|| make_object(&engine, &lost));
    let stress = Stress {
        object,
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
