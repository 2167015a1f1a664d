//! The pager's part in a simulation: it reads faults and gives them to the engine, processes events and takes
//! pages out, as `crates/pager` does (`faults/thread.rs`, `faults/events.rs`, `reclaim/evict.rs`), with tasks
//! of virtual CPUs in place of threads.
//!
//! A task is a thread of the process and the pager of its CPU in one: while its fault is served, it waits.
//! Room is made by whoever needs it, as in the kernel (`Reclaim::Direct`), or by reclaimers on CPUs of their
//! own. The pager's own arrangement has tasks for its threads: pagers.rs.
//!
//! If the kernel itself is simulated, a fault is its own, and fresh memory comes as it gives it, some pages
//! at a time (`grow`).
//!
//! What it does not do: growth of what a pager manages, agents, the choice of the pager that a fault wakes,
//! whom reclaim spares.

use crate::device::SimDevice;
use crate::kernel::Kernel;
use crate::object::SharedSpace;
use crate::target::{Event, Target, Touch};
use memspill_engine_sim::backing::{Backing, QueueId};
use memspill_engine_sim::engine::Engine;
use memspill_engine_sim::fill::{Fault, FillJob, Outcome, Scratch};
use memspill_engine_sim::layout::Layout;
use memspill_engine_sim::memory::Memory;
use memspill_engine_sim::space::Space;
use memspill_engine_sim::stats::add;
use memspill_engine_sim::sync::Ordering;
use memspill_engine_sim::units::{CpuId, SpaceId, Vpn};
use memspill_vcpu::{self as vcpu, Mutex, MutexGuard, Signal, cost};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Pages taken out in one batch, as the pager has it.
pub const BATCH_PAGES: usize = 64;
/// A batch that took nothing is tried again after this long, as in the pager.
const NOTHING_TAKEN_NS: u64 = 2_000_000;

/// Fresh pages that are charged together: the kernel's stock of a memory group on a CPU (CHARGE_BATCH).
const GROWN_PAGES: u64 = 32;

/// A fault that waits longer than this is stuck. (The pager gives up after ten seconds; no planned fault of a
/// device lasts this long.)
const STUCK_NS: u64 = 1_000_000_000;
/// A task whose read failed for want of memory waits this long before the next try.
const PAUSE_NS: u64 = 1_000_000;

/// The monitor looks so often.
const LOOK_EVERY_BATCHES: u64 = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reclaim {
    /// Each task makes room itself.
    Direct,
    /// This many tasks do nothing else, on CPUs of their own.
    Background(u32),
    /// Each task where it finds no room, and so many tasks that do nothing else, on CPUs that are idle: the
    /// kernel's arrangement for a whole machine.
    Both(u32),
    /// Pagers and reclaimers are tasks on the CPUs of the programs (pagers.rs).
    Pagers(Layout, Back),
}

/// The parts of the pager's arrangement that are set back to what they were.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Back {
    /// At most 8 pagers and 4 reclaimers.
    pub counts: bool,
    /// Each batch pokes all pagers that have faults waiting for room.
    pub pokes: bool,
    /// All reclaimers are woken at once.
    pub kicks: bool,
    /// Each fault looks into the table of processes, and counts in one histogram.
    pub lines: bool,
}

/// Pagers, as those see them who make room.
pub trait WhoWaits {
    fn hand_over(&self, cpu: CpuId, process: &Rc<Process>, wanted: &[Vpn]);
    fn poke_waiting(&self, room_pages: usize);
    fn stop(&self);
}

pub struct Process {
    pub target: Arc<Target>,
    pub space: vcpu::Arc<Space>,
    /// Faults that no pager has read yet, and whether one thread makes them all.
    pub messages: RefCell<VecDeque<Fault>>,
    pub one_thread: bool,
    /// Held by whoever takes a batch or processes events.
    batch: Mutex<BatchLock>,
    /// Held around the batch lock by whoever takes a batch, so that events do not wait for tasks that only
    /// wait for the evictor.
    evictor: Mutex<EvictorLock>,
}

/// Names for the profile.
struct BatchLock;
struct EvictorLock;

pub struct Host {
    pub engine: Engine,
    pub devices: RefCell<Vec<Arc<SimDevice>>>,
    pub processes: RefCell<Vec<Rc<Process>>>,
    pub objects: RefCell<Vec<Rc<SharedSpace>>>,
    pub reclaim: Cell<Reclaim>,
    pub pagers: RefCell<Option<Rc<dyn WhoWaits>>>,
    /// None: the pager is simulated.
    pub kernel: RefCell<Option<Rc<Kernel>>>,
    pub stopping: Cell<bool>,
    /// Frames are charged, as in the pager. Without that, budgets may be smaller than the buffers of a few
    /// batches.
    pub counts_frames: Cell<bool>,
    next_space: Cell<u32>,
    room: Signal,
    kick: Signal,
    wanted: Cell<bool>,
    /// Taken out so far.
    batches: Cell<u64>,
}

impl Host {
    pub fn new(engine: Engine, devices: Vec<Arc<SimDevice>>, reclaim: Reclaim) -> Host {
        Host {
            engine,
            devices: RefCell::new(devices),
            processes: RefCell::default(),
            objects: RefCell::default(),
            reclaim: Cell::new(reclaim),
            pagers: RefCell::new(None),
            kernel: RefCell::new(None),
            stopping: Cell::new(false),
            counts_frames: Cell::new(true),
            next_space: Cell::new(1),
            room: Signal::default(),
            kick: Signal::default(),
            wanted: Cell::new(false),
            batches: Cell::new(0),
        }
    }

    pub fn new_space(&self, memory: Arc<dyn Memory>) -> vcpu::Arc<Space> {
        let id = self.next_space.replace(self.next_space.get() + 1);
        vcpu::Arc::new(Space::new(SpaceId(id), vcpu::Arc::from_std(memory)))
    }

    fn add_process_of(&self, target: Arc<Target>, space: vcpu::Arc<Space>, one_thread: bool) -> Rc<Process> {
        space.start_level_with(&self.engine.spaces());
        self.engine.add_space(space.clone());
        let process = Rc::new(Process {
            target,
            space,
            messages: RefCell::default(),
            one_thread,
            batch: Mutex::new(BatchLock),
            evictor: Mutex::new(EvictorLock),
        });
        self.processes.borrow_mut().push(process.clone());
        process
    }

    pub fn add_process(&self, target: Arc<Target>, one_thread: bool) -> Rc<Process> {
        let space = self.new_space(target.clone());
        self.add_process_of(target, space, one_thread)
    }

    fn process_of(&self, space: &vcpu::Arc<Space>) -> Option<Rc<Process>> {
        self.processes.borrow().iter().find(|p| p.space.id == space.id).cloned()
    }

    /// The process has ended.
    pub fn remove_process(&self, cpu: CpuId, process: &Rc<Process>) {
        {
            let _events_guard = process.space.gate.enter_events();
            let _batch = process.batch.lock().expect("batch");
            process.space.release(self.engine.swap(), cpu);
        }
        self.engine.remove_space(&process.space);
        self.processes.borrow_mut().retain(|p| !Rc::ptr_eq(p, process));
        self.wake_waiting_for_room();
    }

    pub fn wake_waiting_for_room(&self) {
        self.room.wake_all();
        let pagers = self.pagers.borrow().clone();
        pagers.iter().for_each(|pagers| pagers.poke_waiting(BATCH_PAGES));
    }

    /// End the background reclaimers.
    pub fn stop(&self) {
        self.stopping.set(true);
        self.kick.wake_all();
        let pagers = self.pagers.borrow().clone();
        pagers.iter().for_each(|pagers| pagers.stop());
        self.wake_waiting_for_room();
    }

    /// Take one batch out, or drop what was read ahead. Returns the pages taken.
    pub fn take_batch(&self, cpu: CpuId, queue: QueueId) -> usize {
        self.engine.write_again(cpu, queue);
        self.engine.devices().iter().for_each(|device| _ = device.maintain(queue));
        let taken = match self.batch_of_some(cpu, queue) {
            0 => self.engine.drop_read_ahead(cpu, BATCH_PAGES),
            taken => taken,
        };
        if taken == 0 {
            self.engine.end_rests();
        }
        // The monitor's next look, which does not wait for room. (While what has just come is all that can
        // leave, and leaves before it is touched, something is always taken.)
        self.batches.set(self.batches.get() + 1);
        if taken == 0 || self.batches.get().is_multiple_of(LOOK_EVERY_BATCHES) {
            let objects = self.objects.borrow().clone();
            let waiting = objects.iter().filter(|shared| shared.space.is_aside());
            waiting.for_each(|shared| shared.adopt(&self.engine));
        }
        taken
    }

    fn batch_of_some(&self, cpu: CpuId, queue: QueueId) -> usize {
        for last_try in [false, false, false, true] {
            let Some(space) = self.engine.pick_space() else { return 0 };
            let Some(process) = self.process_of(&space) else {
                let taken = self.batch_of_object(cpu, queue, &space);
                space.note_asked(taken > 0);
                return taken;
            };
            // Another task takes a batch from this process: try another process first, and wait at last.
            let evictor = match process.evictor.try_lock() {
                Ok(evictor) => evictor,
                Err(_) if !last_try => continue,
                Err(_) => process.evictor.lock().expect("evictor"),
            };
            let taken = self.take_batch_of(cpu, queue, &process, evictor);
            space.note_asked(taken > 0);
            return taken;
        }
        unreachable!("the last try returns")
    }

    fn batch_of_object(&self, cpu: CpuId, queue: QueueId, space: &vcpu::Arc<Space>) -> usize {
        let object = self.objects.borrow().iter().find(|shared| shared.space.id == space.id).cloned();
        let Some(shared) = object else { return 0 };
        let taken = shared
            .take_batch(&self.engine, cpu, queue, |engine| engine.shrink(cpu, &shared.space, BATCH_PAGES));
        if taken > 0 {
            self.wake_waiting_for_room();
        }
        taken
    }

    fn take_batch_of(
        &self,
        cpu: CpuId,
        queue: QueueId,
        process: &Rc<Process>,
        evictor: MutexGuard<'_, EvictorLock>,
    ) -> usize {
        let engine = &self.engine;
        let kernel = self.kernel.borrow().clone();
        if let Some(kernel) = kernel {
            kernel.isolate(vcpu::current_cpu(), process.target.folios_of(BATCH_PAGES));
        }
        let batch = process.batch.lock().expect("batch");
        let (shrunk, write_out) = engine.shrink(cpu, &process.space, BATCH_PAGES);
        drop(batch);
        let pagers = self.pagers.borrow().clone();
        match pagers {
            Some(pagers) => pagers.hand_over(cpu, process, &shrunk.wanted),
            // Their threads look again.
            None => shrunk.wanted.iter().for_each(|vpn| process.space.memory.wake(*vpn, 1)),
        }
        process.space.mark_own(&shrunk.busy);
        drop(evictor);
        if shrunk.taken > 0 {
            self.wake_waiting_for_room();
        } else {
            // As the pager's monitor does every now and then.
            process.space.tidy();
        }
        if let Some(write_out) = write_out {
            engine.write_out(cpu, queue, write_out);
        }
        if self.counts_frames.get() {
            engine.root().set_other_bytes(engine.frame_bytes());
        }
        shrunk.taken
    }

    /// The loop of a background reclaimer.
    pub fn reclaimer(&self, cpu: CpuId, queue: QueueId) {
        let mut moved_at = vcpu::now();
        while !self.stopping.get() {
            let seen = self.kick.count();
            self.wanted.set(false);
            while self.engine.root().above_low_mark() && !self.stopping.get() {
                if self.take_batch(cpu, queue) == 0 {
                    self.assert_not_stuck(moved_at);
                    vcpu::step(NOTHING_TAKEN_NS);
                    break;
                }
                moved_at = vcpu::now();
            }
            // Sleep only below the mark: above it a task may wait for room, and will not kick again.
            if !self.stopping.get() && !self.engine.root().above_high_mark() {
                self.kick.wait(seen);
                moved_at = vcpu::now();
            }
        }
    }

    /// Panics if a fault has waited for room for `STUCK_NS`: it would wait for ever.
    fn assert_not_stuck(&self, since_ns: u64) {
        if vcpu::now() - since_ns < STUCK_NS {
            return;
        }
        let group = self.engine.root();
        let spaces: Vec<(usize, u64, u64)> = self
            .engine
            .spaces()
            .iter()
            .map(|s| (s.evictable(), s.resident_pages(), s.swapped_pages()))
            .collect();
        panic!(
            "a fault finds no room: {} pages charged, {} other bytes, limit {} bytes, {} slots used, \
             devices failing: {:?}, full: {:?}; spaces (evictable, resident, swapped): {spaces:?}",
            self.engine.groups().charged_pages(group),
            group.other_bytes(),
            group.limit_bytes(),
            self.engine.used_slots(),
            self.engine.devices().iter().map(|d| d.errors.is_failing()).collect::<Vec<_>>(),
            self.engine.devices().iter().map(|d| d.full.load(Ordering::Relaxed)).collect::<Vec<_>>(),
        );
    }

    fn kick_reclaim(&self) {
        if self.engine.root().above_high_mark() && !self.wanted.replace(true) {
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
    /// Folios that have come, and that the kernel has put on no list yet.
    unlisted: u32,
    /// Memory that the kernel has given, and that the engine has not learned of yet.
    grown: Range<u64>,
}

impl Worker {
    pub fn new(host: Rc<Host>, cpu: u32, queue: u32) -> Worker {
        Worker {
            host,
            cpu: CpuId(cpu),
            queue: QueueId(queue),
            scratch: Scratch::default(),
            put_off: Vec::new(),
            unlisted: 0,
            grown: 0..0,
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
        add(&host.engine.stats().on(self.cpu).pgfault, 1);
        if process.target.is_of_the_kernel() {
            vcpu::spend(cost::KERNEL_FAULT_NS);
            // It looks into the swap cache.
            vcpu::count();
        } else {
            vcpu::spend(cost::FAULT_NS);
            self.read_messages(process);
        }
        self.serve_here(process, &process.space, Fault { vpn, write, urgent: false, favoured: false });
        self.note_come();
    }

    /// A folio has come, of which the kernel's lists learn.
    fn note_come(&mut self) {
        let kernel = self.host.kernel.borrow().clone();
        if let Some(kernel) = kernel {
            vcpu::spend(kernel.form.fault_ns);
            kernel.add(vcpu::current_cpu(), &mut self.unlisted);
        }
    }

    /// Serve the process's own fault, and wait for the room that it takes.
    pub fn serve_here(&mut self, process: &Process, space: &vcpu::Arc<Space>, fault: Fault) {
        let host = self.host.clone();
        let began = vcpu::now();
        loop {
            host.assert_not_stuck(began);
            let seen = host.room.count();
            let outcome = host.engine.fault(self.cpu, self.queue, space, fault, &mut self.scratch);
            match outcome {
                Outcome::NoRoom if !process.target.is_dead() => self.make_room(seen),
                other => {
                    self.handle_outcome(other);
                    break;
                }
            }
        }
        self.finish_under_way();
        self.make_room_ahead();
    }

    /// After a fault: where usage is above the mark.
    fn make_room_ahead(&mut self) {
        let host = self.host.clone();
        match host.reclaim.get() {
            Reclaim::Direct if host.engine.root().above_high_mark() => {
                _ = host.take_batch(self.cpu, self.queue)
            }
            Reclaim::Direct => {}
            Reclaim::Background(_) | Reclaim::Both(_) => host.kick_reclaim(),
            Reclaim::Pagers(..) => unreachable!("faults are served by pagers"),
        }
    }

    /// One fault, for a pager.
    pub fn serve(&mut self, process: &Process, fault: Fault) -> Outcome {
        let engine = &self.host.engine;
        engine.fault(self.cpu, self.queue, &process.space, fault, &mut self.scratch)
    }

    pub fn has_put_off(&self) -> bool {
        !self.put_off.is_empty()
    }

    /// Finish all that this task has under way: reads in flight, and fills that met an event.
    fn finish_under_way(&mut self) {
        loop {
            let next = self.host.devices.borrow().iter().filter_map(|d| d.next_end(self.queue)).min();
            if let Some(end) = next {
                vcpu::sleep_until(end);
                self.reap();
            } else if self.put_off.is_empty() {
                return;
            } else {
                self.read_events_of_all();
                self.retry_put_off();
            }
        }
    }

    pub fn handle_outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Again(job) => self.put_off.push(job),
            Outcome::Pause => vcpu::step(PAUSE_NS),
            Outcome::NoRoom | Outcome::Done | Outcome::Pending(_) | Outcome::Gone => {}
        }
    }

    fn reap(&mut self) {
        let host = self.host.clone();
        let mut done = Vec::new();
        host.devices.borrow().iter().for_each(|d| d.reap(self.queue, &mut done));
        for read in done {
            let outcome = host.engine.read_done(self.cpu, read, &mut self.scratch);
            self.handle_outcome(outcome);
        }
    }

    pub fn retry_put_off(&mut self) {
        for job in std::mem::take(&mut self.put_off) {
            let outcome = self.host.engine.install(self.cpu, job, &mut self.scratch);
            self.handle_outcome(outcome);
        }
    }

    /// The kernel gives the process memory where there was none, with one fault: the pages after those that
    /// it gave before. They are charged, and can leave, some at a time, and room is made as for a fault.
    pub fn grow(&mut self, process: &Rc<Process>, pages: Range<u64>) {
        vcpu::step(cost::FIRST_STORE_NS + cost::FRESH_PAGE_NS * (pages.end - pages.start - 1));
        process.target.grow(pages.start, pages.end);
        self.note_come();
        self.grown = if self.grown.is_empty() { pages } else { self.grown.start..pages.end };
        if self.grown.end - self.grown.start >= GROWN_PAGES {
            self.end_growth(process);
        }
    }

    /// The engine learns of what has grown.
    pub fn end_growth(&mut self, process: &Rc<Process>) {
        let host = self.host.clone();
        let grown = std::mem::take(&mut self.grown);
        if grown.is_empty() {
            return;
        }
        process.space.adopt(host.engine.swap(), Vpn(grown.start), Vpn(grown.end));
        let began = vcpu::now();
        while host.engine.root().full() {
            host.assert_not_stuck(began);
            self.make_room(0);
        }
        self.make_room_ahead();
    }

    fn make_room(&mut self, seen: u64) {
        let host = self.host.clone();
        match host.reclaim.get() {
            Reclaim::Direct | Reclaim::Both(_) => {
                host.kick_reclaim();
                if host.take_batch(self.cpu, self.queue) == 0 {
                    vcpu::step(cost::SCHED_YIELD_NS);
                }
            }
            Reclaim::Background(_) => {
                host.kick_reclaim();
                host.room.wait(seen);
            }
            Reclaim::Pagers(..) => unreachable!("a pager lets faults without room wait"),
        }
    }

    fn read_events_of_all(&mut self) {
        let processes = self.host.processes.borrow().clone();
        processes.iter().filter(|p| p.target.has_events()).for_each(|p| self.read_messages(p));
    }

    /// Read messages until no event of the process is unread.
    pub fn read_all_messages(&mut self, process: &Rc<Process>) {
        while process.target.has_events() {
            self.read_messages(process);
        }
    }

    /// Read a process's messages, alone in its gate, and process its events.
    pub fn read_messages(&mut self, process: &Rc<Process>) {
        let Some(events_guard) = process.space.gate.try_enter_events() else {
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
                Event::Unmap { from, to } => {
                    process.space.unmap(host.engine.swap(), self.cpu, Vpn(from), Vpn(to))
                }
                Event::Remap { from, to, pages } => {
                    process.space.remap(host.engine.swap(), self.cpu, Vpn(from), Vpn(to), pages);
                }
                Event::Fork { child } => {
                    let space = host.new_space(child.clone());
                    process.space.fork_into(host.engine.swap(), self.cpu, &space);
                    host.add_process_of(child, space, process.one_thread);
                }
                Event::Remove { .. } => unreachable!("no process here drops its pages"),
            }
        }
        process.target.end_events();
        drop(batch);
        drop(events_guard);
        host.wake_waiting_for_room();
    }
}
