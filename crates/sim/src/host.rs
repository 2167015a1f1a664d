//! The pager's part: faults are read and given to the engine, events are processed, pages are taken out, as
//! `crates/pager` does it (`fault.rs`, `events.rs`, `evict.rs`), with tasks of virtual CPUs for threads.
//!
//! A task is a thread of the process and the pager of its CPU in one: while its fault is served, it waits. Room is made by
//! reclaimers on CPUs of their own (the pager's way), or by whoever needs it (`Reclaim::Direct`).
//!
//! What it does not do: growth, adoption, agents, the choice of the pager that a fault wakes, the swap token.

use crate::device::SimDevice;
use crate::target::{Event, Target, Touch};
use memspill_engine_sim::backing::{Backing, QueueId};
use memspill_engine_sim::engine::Engine;
use memspill_engine_sim::space::Space;
use memspill_engine_sim::stats::add;
use memspill_engine_sim::swap_in::{Fault, FillJob, Outcome, Scratch};
use memspill_engine_sim::sync::Ordering;
use memspill_engine_sim::units::{CpuId, SpaceId, Vpn};
use memspill_vcpu::{self as vcpu, Mutex, MutexGuard, Signal, cost};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Pages taken out in one batch, as the pager has it.
pub const BATCH_PAGES: usize = 64;
/// A batch that took nothing is tried again after this long, as in the pager.
const NOTHING_TAKEN_NS: u64 = 2_000_000;

/// The pager gives up after ten seconds; nothing here is planned to last so long.
const STUCK_NS: u64 = 1_000_000_000;
/// Who could not read for want of memory waits so long before the next try.
const PAUSE_NS: u64 = 1_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reclaim {
    /// Each task makes room itself.
    Direct,
    /// So many tasks do nothing else.
    Background(u32),
}

pub struct Process {
    pub target: Arc<Target>,
    pub space: vcpu::Arc<Space>,
    /// Held by whoever takes a batch or processes events.
    batch: Mutex<BatchLock>,
    /// Held around that by who takes a batch: events need not wait for those who wait for the evictor.
    evictor: Mutex<EvictorLock>,
}

/// Names for the profile.
struct BatchLock;
struct EvictorLock;

pub struct Host {
    pub engine: Engine,
    pub devices: RefCell<Vec<Arc<SimDevice>>>,
    pub processes: RefCell<Vec<Rc<Process>>>,
    pub reclaim: Cell<Reclaim>,
    pub stopping: Cell<bool>,
    /// Staging is charged, as in the pager. Without, budgets may be smaller than the buffers of a few batches.
    pub counts_staging: Cell<bool>,
    next_space: Cell<u32>,
    room: Signal,
    kick: Signal,
    wanted: Cell<bool>,
}

impl Host {
    pub fn new(engine: Engine, devices: Vec<Arc<SimDevice>>, reclaim: Reclaim) -> Host {
        Host {
            engine,
            devices: RefCell::new(devices),
            processes: RefCell::default(),
            reclaim: Cell::new(reclaim),
            stopping: Cell::new(false),
            counts_staging: Cell::new(true),
            next_space: Cell::new(1),
            room: Signal::default(),
            kick: Signal::default(),
            wanted: Cell::new(false),
        }
    }

    fn new_space(&self, target: Arc<Target>) -> vcpu::Arc<Space> {
        let id = self.next_space.replace(self.next_space.get() + 1);
        vcpu::Arc::new(Space::new(SpaceId(id), vcpu::Arc::from_std(target)))
    }

    fn add(&self, target: Arc<Target>, space: vcpu::Arc<Space>) -> Rc<Process> {
        space.join(&self.engine.spaces());
        self.engine.add_space(space.clone());
        let process = Rc::new(Process {
            target,
            space,
            batch: Mutex::new(BatchLock),
            evictor: Mutex::new(EvictorLock),
        });
        self.processes.borrow_mut().push(process.clone());
        process
    }

    pub fn add_process(&self, target: Arc<Target>) -> Rc<Process> {
        let space = self.new_space(target.clone());
        self.add(target, space)
    }

    fn process_of(&self, space: &vcpu::Arc<Space>) -> Option<Rc<Process>> {
        self.processes.borrow().iter().find(|p| p.space.id == space.id).cloned()
    }

    /// The process has ended.
    pub fn remove_process(&self, cpu: CpuId, process: &Rc<Process>) {
        {
            let _pass = process.space.gate.enter_events();
            let _batch = process.batch.lock().expect("batch");
            process.space.release(&self.engine, cpu);
        }
        self.engine.remove_space(&process.space);
        self.processes.borrow_mut().retain(|p| !Rc::ptr_eq(p, process));
        self.poke();
    }

    fn poke(&self) {
        self.room.wake_all();
    }

    /// End the background reclaimers.
    pub fn stop(&self) {
        self.stopping.set(true);
        self.kick.wake_all();
        self.poke();
    }

    /// Take one batch out. Returns the pages taken.
    pub fn batch(&self, cpu: CpuId, queue: QueueId) -> usize {
        self.engine.write_again(cpu, queue);
        self.engine.devices.iter().for_each(|device| _ = device.maintain(queue));
        for last_try in [false, false, false, true] {
            let Some(space) = self.engine.pick_space() else { return 0 };
            let Some(process) = self.process_of(&space) else { return 0 };
            // Somebody takes a batch there: another process first, and only then wait.
            let evictor = match process.evictor.try_lock() {
                Ok(evictor) => evictor,
                Err(_) if !last_try => continue,
                Err(_) => process.evictor.lock().expect("evictor"),
            };
            return self.batch_of(cpu, queue, &process, evictor);
        }
        unreachable!("the last try returns")
    }

    fn batch_of(
        &self,
        cpu: CpuId,
        queue: QueueId,
        process: &Process,
        evictor: MutexGuard<'_, EvictorLock>,
    ) -> usize {
        let engine = &self.engine;
        let batch = process.batch.lock().expect("batch");
        let (shrunk, write_out) = engine.shrink(cpu, &process.space, BATCH_PAGES);
        drop(batch);
        // The pager serves these faults itself; here their threads look again.
        shrunk.wanted.iter().for_each(|vpn| process.space.memory.wake(*vpn, 1));
        process.space.made_own(&shrunk.busy);
        drop(evictor);
        if shrunk.taken > 0 {
            self.poke();
        } else {
            // As the pager's monitor does every now and then.
            process.space.tidy();
        }
        if let Some(write_out) = write_out {
            engine.write_out(cpu, queue, write_out);
        }
        if self.counts_staging.get() {
            engine.group.set_other_bytes(engine.staging_bytes());
        }
        shrunk.taken
    }

    /// The loop of a background reclaimer.
    pub fn reclaimer(&self, cpu: CpuId, queue: QueueId) {
        let mut moved_at = vcpu::now();
        while !self.stopping.get() {
            let seen = self.kick.count();
            self.wanted.set(false);
            while self.engine.group.above_low_mark() && !self.stopping.get() {
                if self.batch(cpu, queue) == 0 {
                    self.assert_not_stuck(moved_at);
                    vcpu::step(NOTHING_TAKEN_NS);
                    break;
                }
                moved_at = vcpu::now();
            }
            // Above the mark somebody may wait for room, and will not kick again.
            if !self.stopping.get() && !self.engine.group.above_high_mark() {
                self.kick.wait(seen);
                moved_at = vcpu::now();
            }
        }
    }

    /// A fault that has waited for room for so long waits for ever.
    fn assert_not_stuck(&self, since_ns: u64) {
        if vcpu::now() - since_ns < STUCK_NS {
            return;
        }
        let group = &self.engine.group;
        let spaces: Vec<(usize, u64, u64)> = self
            .engine
            .spaces()
            .iter()
            .map(|s| (s.evictable(), s.resident_pages(), s.swapped_pages()))
            .collect();
        panic!(
            "a fault finds no room: {} pages charged, {} other bytes, limit {} bytes, {} slots used, devices failing: {:?}, \
             full: {:?}; spaces (evictable, resident, swapped): {spaces:?}",
            self.engine.groups.charged_pages(group),
            group.other_bytes(),
            group.limit_bytes(),
            self.engine.used_slots(),
            self.engine.devices.iter().map(|d| d.errors.is_failing()).collect::<Vec<_>>(),
            self.engine.devices.iter().map(|d| d.full.load(Ordering::Relaxed)).collect::<Vec<_>>(),
        );
    }

    fn kick_reclaim(&self) {
        if self.engine.group.above_high_mark() && !self.wanted.replace(true) {
            self.kick.wake_all();
        }
    }
}

/// One task: a thread, and the pager of its CPU.
pub struct Worker {
    pub host: Rc<Host>,
    pub cpu: CpuId,
    pub queue: QueueId,
    scratch: Scratch,
    put_off: Vec<FillJob>,
}

impl Worker {
    pub fn new(host: Rc<Host>, index: u32) -> Worker {
        Worker {
            host,
            cpu: CpuId(index),
            queue: QueueId(index),
            scratch: Scratch::default(),
            put_off: Vec::new(),
        }
    }

    /// Access a page of a process, with all that comes of it.
    pub fn access(&mut self, process: &Rc<Process>, page: u64, write: Option<u64>) -> Touch {
        loop {
            vcpu::step(cost::ACCESS_NS);
            match process.target.touch(page, write) {
                Touch::Missing => {}
                met => return met,
            }
            self.fault(process, Vpn(page), write.is_some());
            process.target.wait();
        }
    }

    fn fault(&mut self, process: &Rc<Process>, vpn: Vpn, write: bool) {
        let host = self.host.clone();
        vcpu::spend(cost::FAULT_NS);
        add(&host.engine.stats.on(self.cpu).pgfault, 1);
        self.read_messages(process);
        let fault = Fault { vpn, write, urgent: false, favoured: false };
        let began = vcpu::now();
        loop {
            host.assert_not_stuck(began);
            let seen = host.room.count();
            let outcome = host.engine.fault(self.cpu, self.queue, &process.space, fault, &mut self.scratch);
            match outcome {
                Outcome::NoRoom if !process.target.is_dead() => self.make_room(seen),
                other => {
                    self.after(other);
                    break;
                }
            }
        }
        self.finish();
        match host.reclaim.get() {
            Reclaim::Direct if host.engine.group.above_high_mark() => _ = host.batch(self.cpu, self.queue),
            Reclaim::Direct => {}
            Reclaim::Background(_) => host.kick_reclaim(),
        }
    }

    /// All that this task has under way comes to its end: reads in flight, and fills that met an event.
    fn finish(&mut self) {
        loop {
            let next = self.host.devices.borrow().iter().filter_map(|d| d.next_end(self.queue)).min();
            if let Some(end) = next {
                vcpu::sleep_until(end);
                self.reap();
            } else if self.put_off.is_empty() {
                return;
            } else {
                self.events_of_all();
                self.retry();
            }
        }
    }

    fn after(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Again(job) => self.put_off.push(job),
            Outcome::Pause => vcpu::step(PAUSE_NS),
            Outcome::NoRoom | Outcome::Done | Outcome::Pending | Outcome::Gone => {}
        }
    }

    fn reap(&mut self) {
        let host = self.host.clone();
        let mut done = Vec::new();
        host.devices.borrow().iter().for_each(|d| d.reap(self.queue, &mut done));
        for read in done {
            let outcome = host.engine.read_done(self.cpu, read, &mut self.scratch);
            self.after(outcome);
        }
    }

    fn retry(&mut self) {
        for job in std::mem::take(&mut self.put_off) {
            let outcome = self.host.engine.install(self.cpu, job, &mut self.scratch);
            self.after(outcome);
        }
    }

    fn make_room(&mut self, seen: u64) {
        let host = self.host.clone();
        match host.reclaim.get() {
            Reclaim::Direct => {
                if host.batch(self.cpu, self.queue) == 0 {
                    vcpu::step(cost::SCHED_YIELD_NS);
                }
            }
            Reclaim::Background(_) => {
                host.kick_reclaim();
                host.room.wait(seen);
            }
        }
    }

    fn events_of_all(&mut self) {
        let processes = self.host.processes.borrow().clone();
        processes.iter().filter(|p| p.target.has_events()).for_each(|p| self.read_messages(p));
    }

    /// Until no event of the process is unread, whoever reads it.
    pub fn settle(&mut self, process: &Rc<Process>) {
        while process.target.has_events() {
            self.read_messages(process);
        }
    }

    /// Read a process's messages, alone in its gate, and process its events.
    pub fn read_messages(&mut self, process: &Rc<Process>) {
        let Some(pass) = process.space.gate.try_enter_events() else {
            // Another pager reads.
            vcpu::yield_now();
            return;
        };
        vcpu::step(cost::READ_MESSAGE_NS);
        let events = process.target.read_events();
        if events.is_empty() {
            return;
        }
        let host = self.host.clone();
        let batch = process.batch.lock().expect("batch");
        for event in events {
            match event {
                Event::Unmap { from, to } => process.space.unmap(&host.engine, self.cpu, Vpn(from), Vpn(to)),
                Event::Remap { from, to, pages } => {
                    process.space.remap(&host.engine, self.cpu, Vpn(from), Vpn(to), pages);
                }
                Event::Fork { child } => {
                    let space = host.new_space(child.clone());
                    process.space.fork_into(&host.engine, self.cpu, &space);
                    host.add(child, space);
                }
            }
        }
        process.target.end_events();
        drop(batch);
        drop(pass);
        host.poke();
    }
}
