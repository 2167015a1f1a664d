//! The arrangement that `memspill run` has: pager threads that serve the faults of all processes, and
//! reclaimers that make room, on the same CPUs as the programs. As many of each as the pager starts
//! (`Layout`).
//!
//! ```text
//!   thread   touches, faults ─▶ message of its process ─▶ wakes one pager that watches it ─▶ sleeps
//!   pager    sleeps ─▶ gate, read ─▶ engine ─▶ no room: waits in the pager's queue ─▶ wakes reclaim
//!   reclaim  sleeps ─▶ batches until below the low mark, each followed by a poke for those who wait for room
//! ```
//!
//! Counterparts: `faults/thread.rs`, `reclaim/evict.rs`, `run/cpus.rs`, `run/watch.rs` in `crates/pager`. A
//! pager is on its CPU, reclaimers are where the scheduler finds one that is idle. What it does not do: the
//! lock against MOVE, what a pager is told by devices that finish reads later, times that a reclaimer looks
//! around by itself.

use crate::host::{Back, Host, Process, WhoWaits, Worker};
use crate::target::Touch;
use memspill_engine_sim::backing::QueueId;
use memspill_engine_sim::fill::{Fault, Outcome};
use memspill_engine_sim::layout::{self, Layout};
use memspill_engine_sim::stats::add;
use memspill_engine_sim::units::{CpuId, Vpn};
use memspill_vcpu::{
    self as vcpu, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, RwLock, Signal, cost,
};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// What a fault costs the thread, and what the pager, without the switches from one to the other.
const FAULT_SIDE_NS: u64 = (cost::FAULT_NS - 2 * cost::CONTEXT_SWITCH_NS) / 2;
/// A batch that took nothing is tried again after this long.
const RECLAIM_STEP_NS: u64 = 2_000_000;

pub struct Pagers {
    pub layout: Layout,
    back: Back,
    cpus: Vec<PagerCpu>,
    /// The pager that is poked next.
    next_poked: AtomicUsize,
    /// What each fault wrote to.
    lines: Lines,
    reclaim_wanted: AtomicBool,
    kick: Signal,
}

#[derive(Default)]
struct Lines {
    table: RwLock<TableOfProcesses>,
    histogram: AtomicU64,
}

/// Named for the profile.
#[derive(Default)]
struct TableOfProcesses;

#[derive(Default)]
struct PagerCpu {
    /// Processes of which there are messages.
    ready: RefCell<Vec<Rc<Process>>>,
    poked: Cell<bool>,
    /// It has nothing to do, and no message has woken it.
    waits: Cell<bool>,
    signal: Signal,
    waiting: Mutex<FaultsWithoutRoom>,
    /// How many wait, which is changed under that lock.
    waiting_count: AtomicUsize,
}

/// Named for the profile.
#[derive(Default)]
struct FaultsWithoutRoom(VecDeque<Waiting>);

struct Waiting {
    process: Rc<Process>,
    fault: Fault,
}

impl Pagers {
    pub fn new(layout: Layout, back: Back) -> Pagers {
        let cpus = (0..layout.pagers).map(|_| PagerCpu::default()).collect();
        let (next_poked, lines, reclaim_wanted, kick) = Default::default();
        Pagers { layout, back, cpus, next_poked, lines, reclaim_wanted, kick }
    }

    /// A thread that runs on `cpu` accesses a page, with all that comes of it.
    pub fn access(&self, process: &Rc<Process>, cpu: u32, page: u64, write: Option<u64>) -> Touch {
        loop {
            vcpu::step(cost::ACCESS_NS);
            match process.target.touch(page, write) {
                Touch::Missing => {}
                met => return met,
            }
            vcpu::step(FAULT_SIDE_NS);
            let fault = Fault { vpn: Vpn(page), write: write.is_some(), urgent: false, favoured: false };
            process.messages.borrow_mut().push_back(fault);
            self.wake_watchers(process, cpu);
            process.target.wait();
        }
    }

    fn wake_watchers(&self, process: &Rc<Process>, cpu: u32) {
        if process.one_thread && cpu < self.layout.pagers {
            self.notify(cpu, cpu, process);
            return;
        }
        // In turns: of those who wait one is woken, and whoever is at work before it sees the message later.
        let watches =
            |pager: &u32| layout::watches(self.layout.pagers, *pager, u64::from(process.space.id.0));
        (0..self.layout.pagers).filter(watches).any(|pager| self.notify(pager, cpu, process));
    }

    /// There is a message. Returns whether the pager waited for one.
    fn notify(&self, pager: u32, from: u32, process: &Rc<Process>) -> bool {
        // A wake on the own CPU is part of what a fault costs.
        let wake_ns = if pager == from { 0 } else { cost::WAKE_NS };
        let pager = &self.cpus[pager as usize];
        let mut ready = pager.ready.borrow_mut();
        if !ready.iter().any(|one| Rc::ptr_eq(one, process)) {
            ready.push(process.clone());
        }
        drop(ready);
        let waited = pager.waits.replace(false);
        if waited {
            pager.signal.wake_all_for(wake_ns);
        }
        waited
    }

    /// The thread of one pager.
    pub fn pager(&self, host: &Rc<Host>, index: u32) {
        let mut worker = Worker::new(host.clone(), index, index);
        let me = &self.cpus[index as usize];
        while !host.stopping.get() {
            let seen = me.signal.count();
            let ready = me.ready.take();
            let poked = me.poked.take();
            if ready.is_empty() && !poked && !worker.has_put_off() {
                me.waits.set(true);
                me.signal.wait(seen);
                me.waits.set(false);
                continue;
            }
            if poked {
                self.serve_waiting(host, &mut worker, me);
            }
            ready.iter().for_each(|process| self.serve_process(host, &mut worker, me, process));
            worker.retry_put_off();
        }
    }

    fn serve_process(&self, host: &Host, worker: &mut Worker, me: &PagerCpu, process: &Rc<Process>) {
        vcpu::step(FAULT_SIDE_NS);
        if self.back.lines {
            drop(self.lines.table.read().expect("table"));
        }
        let Some(pass) = process.space.gate.try_enter_events() else {
            // Another pager reads. The descriptor stays readable if it left something.
            vcpu::yield_now();
            if !process.messages.borrow().is_empty() {
                me.ready.borrow_mut().push(process.clone());
            }
            return;
        };
        vcpu::step(cost::READ_MESSAGE_NS);
        let faults = process.messages.take();
        drop(pass);
        for fault in faults {
            add(&host.engine.stats().on(worker.cpu).pgfault, 1);
            if self.back.lines {
                self.lines.histogram.fetch_add(1, Ordering::Relaxed);
            }
            let outcome = worker.serve(process, fault);
            if let Outcome::NoRoom = outcome {
                self.add_waiting(me, [Waiting { process: process.clone(), fault }]);
            } else {
                worker.handle_outcome(outcome);
            }
            self.kick_reclaim(host);
        }
    }

    fn add_waiting(&self, pager: &PagerCpu, new: impl IntoIterator<Item = Waiting>) {
        let mut waiting = pager.waiting.lock().expect("waiting");
        waiting.0.extend(new);
        pager.waiting_count.store(waiting.0.len(), Ordering::Relaxed);
    }

    fn serve_waiting(&self, host: &Host, worker: &mut Worker, me: &PagerCpu) {
        loop {
            let mut queue = me.waiting.lock().expect("waiting");
            let Some(waiting) = queue.0.pop_front() else {
                drop(queue);
                // There may be room left.
                if self.pokes_in_turns() {
                    self.poke_waiting(1);
                }
                break;
            };
            me.waiting_count.store(queue.0.len(), Ordering::Relaxed);
            drop(queue);
            let outcome = worker.serve(&waiting.process, waiting.fault);
            if let Outcome::NoRoom = outcome {
                let mut queue = me.waiting.lock().expect("waiting");
                queue.0.push_front(waiting);
                me.waiting_count.store(queue.0.len(), Ordering::Relaxed);
                break;
            }
            worker.handle_outcome(outcome);
        }
        self.kick_reclaim(host);
    }

    fn pokes_in_turns(&self) -> bool {
        self.cpus.len() > layout::WATCHERS_MAX as usize && !self.back.pokes
    }

    fn kick_reclaim(&self, host: &Host) {
        if host.engine.root().above_high_mark()
            && !self.reclaim_wanted.load(Ordering::Relaxed)
            && !self.reclaim_wanted.swap(true, Ordering::Relaxed)
        {
            match self.reclaimers_call_each_other() {
                true => self.kick.wake_one(),
                false => self.kick.wake_all(),
            }
        }
    }

    fn reclaimers_call_each_other(&self) -> bool {
        self.layout.reclaimers > layout::WOKEN_TOGETHER && !self.back.kicks
    }

    /// The thread of one reclaimer.
    pub fn reclaimer(&self, host: &Host, index: u32) {
        let (cpu, queue) = (CpuId(index), QueueId(self.layout.pagers + index));
        let mut seen = 0;
        while !host.stopping.get() {
            if self.kick.count() == seen {
                self.kick.wait(seen);
            }
            seen = self.kick.count();
            self.reclaim_wanted.store(false, Ordering::Relaxed);
            while host.engine.root().above_low_mark() && !host.stopping.get() {
                // One has begun; if that is not enough, so does another.
                if self.reclaimers_call_each_other() {
                    self.kick_reclaim(host);
                }
                if host.take_batch(cpu, queue) == 0 {
                    vcpu::sleep(RECLAIM_STEP_NS);
                    if !host.engine.root().above_high_mark() {
                        break;
                    }
                }
            }
        }
    }
}

impl PagerCpu {
    /// Let it try again what waits for room. Returns how many faults that is.
    fn poke(&self) -> usize {
        let waiting = self.waiting_count.load(Ordering::Relaxed);
        if waiting > 0 {
            self.poked.set(true);
            self.signal.wake_all();
        }
        waiting
    }
}

impl WhoWaits for Pagers {
    /// Faults on pages of a batch, for a pager: it alone starts reads.
    fn hand_over(&self, cpu: CpuId, process: &Rc<Process>, wanted: &[Vpn]) {
        if wanted.is_empty() {
            return;
        }
        let fault = |vpn: &Vpn| Fault { vpn: *vpn, write: true, urgent: false, favoured: false };
        let waiting = wanted.iter().map(|vpn| Waiting { process: process.clone(), fault: fault(vpn) });
        let pager = &self.cpus[cpu.index() % self.cpus.len()];
        self.add_waiting(pager, waiting);
        pager.poke();
    }

    /// There is room for so many pages: wakes pagers whose waiting faults use it up, in turns; of few pagers,
    /// all.
    fn poke_waiting(&self, room_pages: usize) {
        if !self.pokes_in_turns() {
            return self.cpus.iter().for_each(|pager| _ = pager.poke());
        }
        if room_pages == 0 {
            return;
        }
        let (mut left, first) = (room_pages, self.next_poked.load(Ordering::Relaxed));
        for next in first..first + self.cpus.len() {
            let pager = &self.cpus[next % self.cpus.len()];
            left = left.saturating_sub(pager.poke());
            if left == 0 {
                self.next_poked.store(next + 1, Ordering::Relaxed);
                break;
            }
        }
    }

    fn stop(&self) {
        self.kick.wake_all();
        self.cpus.iter().for_each(|pager| pager.signal.wake_all());
    }
}
