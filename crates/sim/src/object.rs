//! Shared memory that is simulated: an object that several processes have mapped, and its page table.
//!
//! ```text
//!   task of a process ── look, send, punch ─▶ Object ◀─ take, put, put_zero, filled, poison, wake ── engine
//!   its pager ────────── note ──────────────────┘
//! ```
//!
//! The engine's double (`testing/object.rs`) knows what is in memory and who waits; added here are what each
//! call costs, tasks that sleep, and refusals by chance. A task may lose its CPU between its look at the page
//! and its sleep, and a fill may come in between.
//!
//! What it does not do: mappings of a part, mlock, transfers of devices.

use crate::target::{Lost, Refusals};
use memspill_engine_sim::backing::QueueId;
use memspill_engine_sim::engine::Engine;
use memspill_engine_sim::gate::EventGuard;
use memspill_engine_sim::memory::{Fill, Memory, PageRun, Take};
use memspill_engine_sim::space::Space;
use memspill_engine_sim::swap_out::Shrunk;
use memspill_engine_sim::testing::address_space::Touch;
use memspill_engine_sim::testing::object::SharedObject;
use memspill_engine_sim::testing::stamp::{stamp_of, stamped};
use memspill_engine_sim::units::{CpuId, Page, Vpn};
use memspill_engine_sim::write_out::WriteOut;
use memspill_vcpu::random::Random;
use memspill_vcpu::{self as vcpu, TaskId, block, cost, current_task, now, spend, wake};
use std::sync::{Arc, Mutex, MutexGuard};

struct Waiter {
    page: u64,
    mapper: u32,
    task: TaskId,
    sleeps: bool,
}

struct Inner {
    object: SharedObject,
    waiters: Vec<Waiter>,
    refusals: Refusals,
    random: Random,
}

pub struct Object {
    inner: Mutex<Inner>,
    pub pages: u64,
    lost: Arc<Lost>,
}

impl Object {
    /// `refusals`: pages that the machine has no memory to take, for a moment, are as likely as pinned ones.
    pub fn new(pages: u64, lost: Arc<Lost>, refusals: Refusals, seed: u64) -> Object {
        let (object, random) = (SharedObject::new(pages), Random::new(seed));
        Object { inner: Mutex::new(Inner { object, waiters: Vec::new(), refusals, random }), pages, lost }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.try_lock().expect("tasks take turns, and none stops in here")
    }

    // ---- what processes do ----

    pub fn map(&self, mapper: u32) {
        self.lock().object.map(mapper);
    }
    pub fn fork(&self, parent: u32, child: u32) {
        self.lock().object.fork(parent, child);
    }
    /// A task that sleeps there wakes up, and finds nothing mapped. True: that was the last mapping.
    pub fn unmap(&self, mapper: u32) -> bool {
        let mut inner = self.lock();
        let was_mapped = inner.object.is_mapped_by(mapper);
        inner.object.unmap(mapper);
        inner.wake(|waiter| waiter.mapper == mapper);
        was_mapped && inner.object.mappers().is_empty()
    }
    pub fn is_mapped_by(&self, mapper: u32) -> bool {
        self.lock().object.is_mapped_by(mapper)
    }

    /// First step of an access.
    pub fn look(&self, mapper: u32, page: u64, write: Option<u64>) -> Touch {
        let was_lost = |stamp| self.lost.lock().expect("lost").contains(&stamp);
        self.lock().object.touch(mapper, page, write, was_lost)
    }

    /// Second step, of who has found nothing: his message is there to be read, whatever has come meanwhile.
    pub fn send(&self, mapper: u32, page: u64) {
        let mut inner = self.lock();
        if inner.object.is_mapped_by(mapper) {
            inner.waiters.push(Waiter { page, mapper, task: current_task(), sleeps: false });
        }
    }

    /// Sleep in the fault, unless it was answered already.
    pub fn wait(&self) {
        let task = current_task();
        let asleep = {
            let mut inner = self.lock();
            let waiter = inner.waiters.iter_mut().find(|w| w.task == task);
            waiter.map(|w| w.sleeps = true).is_some()
        };
        if asleep {
            block();
        }
    }

    /// A page that is there before anybody manages the object.
    pub fn make_present(&self, page: u64, stamp: u64) {
        self.lock().object.make_present(page, || stamp);
    }
    /// By the pager, for everybody.
    pub fn punch(&self, from: u64, to: u64) {
        self.lock().object.punch(from, to);
    }
    /// By the kernel, after that.
    pub fn punch_again(&self, from: u64, to: u64) {
        self.lock().object.punch_again(from, to);
    }

    // ---- what the pager does ----

    /// To be called before the page's word is looked at.
    pub fn note(&self, page: u64, mapper: u32) {
        self.lock().object.note_waiter(page, mapper);
    }
    pub fn present(&self) -> Vec<u64> {
        self.lock().object.present(0, self.pages).collect()
    }
    pub fn is_breached(&self) -> bool {
        self.lock().object.is_breached()
    }
}

/// An object, and its page table.
pub struct SharedSpace {
    pub object: Arc<Object>,
    pub space: vcpu::Arc<Space>,
    /// Held by whoever takes a batch or makes a hole.
    batch: vcpu::Mutex<ObjectBatchLock>,
}

/// A name for the profile.
struct ObjectBatchLock;

/// While this is held, no page of the object is taken out or filled.
pub struct PagesHeld<'a> {
    _batch: vcpu::MutexGuard<'a, ObjectBatchLock>,
    _events: EventGuard<'a>,
}

impl SharedSpace {
    pub fn new(object: Arc<Object>, space: vcpu::Arc<Space>) -> SharedSpace {
        SharedSpace { object, space, batch: vcpu::Mutex::new(ObjectBatchLock) }
    }

    pub fn hold_pages(&self) -> PagesHeld<'_> {
        let events_guard = self.space.gate.enter_events();
        PagesHeld { _batch: self.batch.lock().expect("batch"), _events: events_guard }
    }

    /// All who have it mapped are registered: what is in memory is managed from here on.
    pub fn adopt(&self, engine: &Engine) {
        {
            let _fill_guard = self.space.gate.enter_fill();
            if self.space.is_dead() {
                return;
            }
            for page in self.object.present() {
                self.space.adopt(engine.swap(), Vpn(page), Vpn(page + 1));
            }
        }
        self.space.set_aside(false, &engine.spaces());
    }

    /// A batch of what `choose` takes out. Returns the pages taken.
    pub fn take_batch(
        &self,
        engine: &Engine,
        cpu: CpuId,
        queue: QueueId,
        choose: impl FnOnce(&Engine) -> (Shrunk, Option<WriteOut>),
    ) -> usize {
        let batch = self.batch.lock().expect("batch");
        let (shrunk, write_out) = choose(engine);
        drop(batch);
        // Their threads look again.
        shrunk.wanted.iter().for_each(|vpn| self.space.memory.wake(*vpn, 1));
        if shrunk.taken == 0 {
            self.space.tidy();
        }
        if let Some(write_out) = write_out {
            engine.write_out(cpu, queue, write_out);
        }
        shrunk.taken
    }
}

impl Inner {
    fn wake(&mut self, is_meant: impl Fn(&Waiter) -> bool) {
        let (woken, still): (Vec<Waiter>, Vec<Waiter>) = self.waiters.drain(..).partition(|w| is_meant(w));
        self.waiters = still;
        woken.iter().filter(|waiter| waiter.sleeps).for_each(|waiter| wake(waiter.task, 0));
    }

    fn wake_noted(&mut self, vpn: Vpn, pages: usize) {
        let noted = self.object.take_noted(vpn.0, vpn.0 + pages as u64);
        self.wake(|waiter| noted.contains(&(waiter.page, waiter.mapper)));
    }

    fn is_refused(&mut self) -> bool {
        let one_in = self.refusals.busy;
        now() < self.refusals.until_ns && one_in > 0 && self.random.one_in(one_in)
    }
}

impl Memory for Object {
    fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let mut moved = 0;
        for run in runs {
            memspill_vcpu::step(0);
            let mut inner = self.lock();
            let mut refused = false;
            for page in run.vpn.0..run.vpn.0 + u64::from(run.pages) {
                refused |= inner.is_refused();
                if refused {
                    outcome.push(Take::Retry);
                    continue;
                }
                frames[moved] = stamped(inner.object.take(page));
                moved += 1;
                outcome.push(Take::Moved);
            }
            drop(inner);
            spend(cost::SPLICE_PAGE_NS * u64::from(run.pages));
        }
        memspill_vcpu::step(cost::IS_ZERO_NS * moved as u64);
    }

    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        memspill_vcpu::step(cost::COPY_PAGE_NS * pages.len() as u64);
        let fill = self.lock().object.fill(vpn.0, pages.iter().map(stamp_of), None, true);
        // Others look before the words say that the pages are there.
        memspill_vcpu::step(0);
        fill
    }

    fn put_zero(&self, vpn: Vpn, pages: usize, _write: bool) -> Fill {
        memspill_vcpu::step(cost::ZERO_PAGE_NS * pages as u64);
        self.lock().object.fill(vpn.0, std::iter::repeat_n(0, pages), None, false)
    }

    fn filled(&self, vpn: Vpn, pages: usize) {
        memspill_vcpu::step(cost::WAKE_PAGE_NS);
        self.lock().wake_noted(vpn, pages);
    }

    fn poison(&self, vpn: Vpn) {
        self.lock().object.poison(vpn.0);
    }

    fn wake(&self, vpn: Vpn, pages: usize) {
        memspill_vcpu::step(cost::WAKE_PAGE_NS);
        self.lock().wake_noted(vpn, pages);
    }
}
