//! An object of shared memory under schedules that are drawn: faults by several mappings against eviction,
//! holes, swapoff, and the object's end.
//!
//! ```text
//!   scenario: an object is made, pages are brought where they shall be              one thread
//!             scripts, each a process that has it mapped, and a pager               three threads
//!             nobody sleeps, the checker agrees, each page reads as it must, nothing is left
//! ```
//!
//! An access is in two steps, as in the kernel: the page is looked for, and then its thread sleeps, whatever
//! has come between. One fault for each sleep: who is not woken sleeps for ever, and the schedule does not
//! end.
//!
//! What each was seen to find, planted by hand:
//!
//! * `each_who_waits_for_a_shared_page_is_woken`, and most others: pages that are filled in are not told of
//!   (`filled`), or before their words say so; who faults on a page that is there is not woken.
//! * `a_hole_in_shared_memory_leaves_nothing_behind`: a page that is being filled is not cancelled.
//! * `a_failed_read_is_told_to_all_mappings`: a poisoned page is told to its first waiters only.
//! * `an_object_ends_under_faults`: the hole's.
//! * `an_object_ends_before_a_message_is_served`: a fault looks before its chunk's lock whether the space is
//!   dead. (It did: `memspill-lab sim soak` found it.)
#![cfg(shuttle)]

#[path = "shuttle/explore.rs"]
mod explore;

use explore::explore;
use memspill_engine::backing::{BackingError, QueueId};
use memspill_engine::devices::Device;
use memspill_engine::engine::Engine;
use memspill_engine::fill::{Fault, FillJob, Outcome, Scratch};
use memspill_engine::slots::Slots;
use memspill_engine::space::Space;
use memspill_engine::swapoff::Step;
use memspill_engine::testing::address_space::Touch;
use memspill_engine::testing::device::{Lost, MockBacking};
use memspill_engine::testing::shared::MockShared;
use memspill_engine::tuning::Tuning;
use memspill_engine::units::{CpuId, SpaceId, Vpn};
use shuttle::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGES: u64 = 6;
const MAPPERS: u32 = 3;
const SWAPOFF_QUEUE: QueueId = QueueId(60);

struct Job {
    engine: Engine,
    backings: Vec<Arc<MockBacking>>,
    object: Arc<MockShared>,
    space: Arc<Space>,
    stamps: AtomicU64,
}

/// A process that has the object mapped, and the pager of its CPU.
struct Thread {
    job: Arc<Job>,
    id: u32,
    scratch: Scratch,
    put_off: Vec<FillJob>,
}

type Script = fn(&mut Thread);

/// Two small devices, and room in memory for all pages.
fn job() -> Arc<Job> {
    let (tuning, lost) = (Tuning::default(), Arc::new(Lost::default()));
    let backings: Vec<_> = (0..2).map(|_| Arc::new(MockBacking::new(12, false, lost.clone()))).collect();
    let devices = backings.iter().enumerate().map(|(n, backing)| {
        let slots = Slots::new(12, 4, false, &tuning);
        Device::new(format!("device {n}"), -(n as i16), slots, backing.clone())
    });
    let engine = Engine::new(devices.collect(), 1 << 30, tuning.clone());
    let object = Arc::new(MockShared::new(PAGES, lost));
    (0..MAPPERS).for_each(|mapper| object.map(mapper));
    let space = Arc::new(Space::new(SpaceId(1), object.clone()));
    engine.add_space(space.clone());
    Arc::new(Job { engine, backings, object, space, stamps: AtomicU64::new(0) })
}

impl Job {
    fn thread(self: &Arc<Job>, id: u32) -> Thread {
        Thread { job: self.clone(), id, scratch: Scratch::default(), put_off: Vec::new() }
    }

    /// By a thread that has the job for itself.
    fn alone(self: &Arc<Job>, script: impl FnOnce(&mut Thread)) {
        let mut me = self.thread(0);
        script(&mut me);
        me.rest();
    }

    /// The first pages are swapped out, and reads end later.
    fn out(self: &Arc<Job>, pages: u64) {
        self.alone(|me| {
            (0..pages).for_each(|page| me.write(page));
            me.evict(0, pages);
        });
        self.backings.iter().for_each(|backing| backing.set_pending(true));
    }

    fn play(self: &Arc<Job>, scripts: [Script; MAPPERS as usize]) {
        let threads: Vec<_> = (0..)
            .zip(scripts)
            .map(|(id, script)| {
                let mut me = self.thread(id);
                thread::spawn(move || {
                    script(&mut me);
                    me.rest();
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("it would have ended the test"));
    }

    /// The invariants that hold for every schedule.
    fn end(self: &Arc<Job>) {
        self.backings.iter().for_each(|backing| {
            backing.set_pending(false);
            backing.stop_failing();
        });
        self.alone(|me| while me.job.engine.write_again(me.cpu(), me.queue()) > 0 {});
        assert_eq!(self.object.asleep(), [], "waiters that nobody will wake");
        assert!(!self.object.is_breached(), "nobody but the pagers makes pages");
        self.engine.check();
        for mapper in self.object.mappers() {
            let mut me = self.thread(mapper);
            (0..PAGES).for_each(|page| me.read(page));
            me.rest();
        }
        self.engine.check();
        self.alone(|me| me.end_object());
        assert_eq!(self.engine.used_slots(), 0, "slots are left");
        assert_eq!(self.engine.groups().charged_pages(self.engine.root()), 0, "pages are left charged");
        assert!(self.backings.iter().all(|backing| backing.is_empty()), "the device holds bytes of nobody");
        self.engine.check();
    }
}

impl Thread {
    fn cpu(&self) -> CpuId {
        CpuId(self.id)
    }
    fn queue(&self) -> QueueId {
        QueueId(self.id)
    }

    // -- the process --

    fn read(&mut self, page: u64) {
        self.access(page, None);
    }

    fn write(&mut self, page: u64) {
        let stamp = self.job.stamps.fetch_add(1, Ordering::Relaxed) + 1;
        self.access(page, Some(stamp));
    }

    fn access(&mut self, page: u64, write: Option<u64>) {
        let job = self.job.clone();
        while job.object.look(self.id, page, write) == Touch::Missing {
            job.object.sleep(self.id, self.id, page);
            job.object.note_waiter(page, self.id);
            let fault = Fault { vpn: Vpn(page), write: false, urgent: false, favoured: false };
            self.fault(fault);
            while job.object.sleeps(self.id, self.id, page) {
                self.duties();
                thread::yield_now();
            }
        }
    }

    /// MADV_REMOVE, by the agent's call and then the kernel's own.
    fn punch(&mut self, from: u64, to: u64) {
        let job = self.job.clone();
        let events_guard = job.space.gate.enter_events();
        let batch = job.object.batch.lock().expect("batch");
        job.space.unmap(job.engine.swap(), self.cpu(), Vpn(from), Vpn(to));
        job.object.punch(from, to);
        drop((batch, events_guard));
        thread::yield_now();
        job.object.punch_again(from, to);
    }

    /// Its mapping goes. The last mapper ends the object.
    fn unmap(&mut self) {
        self.job.object.unmap(self.id);
        if self.job.object.mappers().is_empty() {
            self.end_object();
        }
    }

    fn end_object(&mut self) {
        let job = self.job.clone();
        let events_guard = job.space.gate.enter_events();
        let batch = job.object.batch.lock().expect("batch");
        job.space.release(job.engine.swap(), self.cpu());
        drop((batch, events_guard));
        job.engine.remove_space(&job.space);
    }

    // -- the pager --

    fn fault(&mut self, fault: Fault) {
        let job = self.job.clone();
        let outcome = job.engine.fault(self.cpu(), self.queue(), &job.space, fault, &mut self.scratch);
        self.after(outcome);
    }

    fn after(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Again(job) => self.put_off.push(job),
            Outcome::NoRoom => panic!("there is room in memory for all pages"),
            Outcome::Pause => panic!("no read here finds the machine short of anything"),
            Outcome::Done | Outcome::Pending(_) | Outcome::Gone => {}
        }
    }

    /// What a pager does between two faults. False: it had no read in flight.
    fn duties(&mut self) -> bool {
        let job = self.job.clone();
        for fill in std::mem::take(&mut self.put_off) {
            let outcome = job.engine.install(self.cpu(), fill, &mut self.scratch);
            self.after(outcome);
        }
        let mut reaped = false;
        for backing in &job.backings {
            if let Some(done) = backing.reap_one(self.queue()) {
                let outcome = job.engine.read_done(self.cpu(), done, &mut self.scratch);
                self.after(outcome);
                reaped = true;
            }
        }
        reaped
    }

    fn rest(&mut self) {
        while self.duties() || !self.put_off.is_empty() {
            thread::yield_now();
        }
    }

    // -- the reclaimer, and the operator --

    fn evict(&mut self, from: u64, to: u64) {
        let job = self.job.clone();
        let batch = job.object.batch.lock().expect("batch");
        let (shrunk, write_out, _) = job.engine.pageout(self.cpu(), &job.space, Vpn(from), Vpn(to));
        drop(batch);
        for vpn in shrunk.wanted {
            self.fault(Fault { vpn, write: true, urgent: false, favoured: false });
        }
        if let Some(write_out) = write_out {
            job.engine.write_out(self.cpu(), self.queue(), write_out);
        }
    }

    fn swapoff(&mut self) {
        let job = self.job.clone();
        job.engine.swapoff_begin(0).expect("it is on, and not the last one");
        loop {
            match job.engine.swapoff_step(self.cpu(), SWAPOFF_QUEUE) {
                Step::End(result) => break assert_eq!(result, Ok(())),
                Step::Moved(_) => {}
                Step::Wait => {
                    self.duties();
                    thread::yield_now();
                }
            }
        }
    }
}

/// Two processes wait for one page, one of them perhaps since after the fill, while it leaves again.
#[test]
fn each_who_waits_for_a_shared_page_is_woken() {
    explore(|| {
        let job = job();
        job.out(2);
        job.play([
            |me| {
                me.read(0);
                me.write(1);
                me.read(4);
            },
            |me| {
                me.write(0);
                me.read(1);
                me.read(4);
            },
            |me| {
                me.evict(0, 2);
                me.write(0);
            },
        ]);
        job.end();
    });
}

/// A hole is made while its pages are read, filled and taken out.
#[test]
fn a_hole_in_shared_memory_leaves_nothing_behind() {
    explore(|| {
        let job = job();
        job.out(4);
        job.play([
            |me| {
                me.read(0);
                me.write(2);
                me.evict(0, 4);
                me.read(2);
            },
            |me| {
                me.write(0);
                me.read(3);
                me.read(1);
            },
            |me| {
                me.punch(0, 3);
                me.write(1);
                me.evict(1, 4);
            },
        ]);
        job.end();
    });
}

/// A page cannot be read: SIGBUS for each who waits for it and each who comes later.
#[test]
fn a_failed_read_is_told_to_all_mappings() {
    explore(|| {
        let job = job();
        job.out(2);
        job.backings[0].fail_reads(1);
        job.play([|me| me.read(0), |me| me.write(0), |me| me.read(1)]);
        job.end();
    });
}

/// Its device goes off under faults through several mappings.
#[test]
fn swapoff_of_a_shared_page() {
    explore(|| {
        let job = job();
        job.out(3);
        job.backings[1].fail_writes(BackingError::Io(5), 1);
        job.play([
            |me| {
                me.read(0);
                me.write(1);
                me.evict(0, 2);
            },
            |me| {
                me.read(1);
                me.read(0);
            },
            |me| me.swapoff(),
        ]);
        job.end();
    });
}

/// The last mappings go while faults are served: what these have claimed and filled is given up.
#[test]
fn an_object_ends_under_faults() {
    explore(|| {
        let job = job();
        job.out(2);
        job.play([
            |me| {
                me.read(0);
                me.unmap();
            },
            |me| {
                // Killed in a fault: its message is served although its mapping is gone.
                me.job.object.note_waiter(5, me.id);
                me.job.object.unmap(me.id);
                me.fault(Fault { vpn: Vpn(5), write: true, urgent: false, favoured: false });
                me.fault(Fault { vpn: Vpn(1), write: false, urgent: false, favoured: false });
            },
            |me| {
                me.write(1);
                me.unmap();
            },
        ]);
        // If the killed one's mapping went last, nobody has ended it yet.
        if !job.space.is_dead() {
            job.alone(|me| me.end_object());
        }
        nothing_is_left(&job);
    });
}

/// The same in few steps: one message is still to be served when the last mapping goes.
#[test]
fn an_object_ends_before_a_message_is_served() {
    explore(|| {
        let job = job();
        (0..2).for_each(|mapper| job.object.unmap(mapper));
        job.play([
            |me| {
                me.job.object.note_waiter(5, me.id);
                me.fault(Fault { vpn: Vpn(5), write: true, urgent: false, favoured: false });
            },
            |_| {},
            |me| me.unmap(),
        ]);
        nothing_is_left(&job);
    });
}

fn nothing_is_left(job: &Job) {
    job.backings.iter().for_each(|backing| backing.set_pending(false));
    assert_eq!(job.object.asleep(), []);
    job.engine.check();
    assert_eq!(job.engine.used_slots(), 0);
    assert_eq!(job.engine.groups().charged_pages(job.engine.root()), 0, "pages are left charged");
}
