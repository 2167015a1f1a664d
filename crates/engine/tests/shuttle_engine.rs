//! The engine's threads under schedules that are drawn: swap-in against swap-out, unmap, fork and swapoff.
//!
//! ```text
//!   scenario: a job is made, pages are brought where they shall be     one thread
//!             scripts, 2 to 4 threads ── switched at each lock, atomic, spin, and each call of the mocks
//!             nobody sleeps, the checker agrees, each page reads as it must, nothing is left     one thread
//! ```
//!
//! Each scenario is named after a class of bugs that the kernel's swap code has had. Its schedules are drawn
//! twice: by a random walk, which switches everywhere, and by PCT, which lets one thread run on while another
//! stands still at the worst place. A schedule that never ends (a wake that was lost, a livelock) fails too,
//! after many steps (shuttle/explore.rs). All atomics are sequentially consistent here; orders of memory are
//! what the loom tests are for.
//!
//! What each was seen to find, planted by hand:
//!
//! * `aba_of_a_bypassed_swap_in`: the entry is freed when its read starts; an unmap frees the entry of a
//!   FILLING page.
//! * `a_copy_whose_write_failed_is_not_lost`: a page leaves the swap cache although its write failed;
//!   `write_again` takes a page with one reference for an orphan; the list of unwritten pages is said to
//!   be empty after it was taken, and not before.
//! * `a_kept_copy_that_is_old_is_not_used`: a kept copy is taken for clean without a look at it; kept
//!   copies are given up of FILLING pages too.
//! * `no_livelock_on_eexist`: a fill that finds a page present tries again.
//! * `a_fill_does_not_outlive_its_mapping`: `enter_fill` does not wait for the event reader; CANCELLED is
//!   looked at before the gate.
//! * `no_slot_is_stranded`: what another CPU has freed is not collected; a release leaves the list as it
//!   is when its lock is held.
//! * `slots_of_a_group_that_is_offline`: swapoff gives the new slot to the root; ids are cleared after
//!   the slot is free.
//! * `swapoff_of_slots_that_are_shared_and_read`: swapoff renames FILLING words; a fork takes no
//!   reference for a FILLING page.
//! * `swapoff_meets_an_allocation`: `retire` looks at the counters and takes nothing off them.
//! * `a_page_that_was_read_ahead_is_never_old`: no reference is held to a slot that is read ahead; its
//!   frame stays when the last reference goes. And, not planted: of two reads of one slot the second one
//!   was the last reference, and did not give up what the first one had brought.
//! * `swapoff_of_slots_that_are_read_ahead`: the frame stays when the last reference goes.
//! * `everything_at_once`: both of swapoff, the first of each of the first two, CANCELLED before the
//!   gate.
//!
//! ```text
//! scripts/interleavings.sh shuttle                             run all; a failure prints its schedule
//! REPLAY=SCHEDULE scripts/interleavings.sh shuttle NAME        the same schedule again
//! DRAWN=100000 scripts/interleavings.sh shuttle NAME           more schedules than usual
//! ```
#![cfg(shuttle)]

#[path = "shuttle/explore.rs"]
mod explore;

use explore::explore;
#[allow(dead_code, reason = "the model test uses the rest of it")]
use memspill_engine::backing::{BackingError, QueueId};
use memspill_engine::devices::Device;
use memspill_engine::engine::Engine;
use memspill_engine::fill::{Fault, FillJob, Outcome, Scratch};
use memspill_engine::group::GroupConfig;
use memspill_engine::slots::Slots;
use memspill_engine::space::Space;
use memspill_engine::swapoff::Step;
use memspill_engine::testing::address_space::{Event, Touch};
use memspill_engine::testing::device::{Lost, MockBacking};
use memspill_engine::testing::memory::MockMemory;
use memspill_engine::tuning::{Readahead, Tuning};
use memspill_engine::units::{CpuId, GroupId, Order, PAGE_SIZE, SlotIndex, SpaceId, Vpn};
use shuttle::thread;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
// std's lock, at which shuttle does not switch: the scenario's own knowledge is not under test.
use std::sync::{Arc, Mutex};

/// Pages lie on both sides of the border of two chunks of the page table.
const FIRST: u64 = 0x7f00_0000 + 508;
const PAGES: u64 = 8;
const SWAPOFF_QUEUE: QueueId = QueueId(60);

// ---- a job and its threads --------------------------------------------------------------------------------

#[derive(Clone)]
struct Target {
    memory: Arc<MockMemory>,
    space: Arc<Space>,
}

struct Job {
    engine: Engine,
    backings: Vec<Arc<MockBacking>>,
    targets: Mutex<Vec<Target>>,
    stamps: AtomicU64,
    spaces: AtomicU32,
}

/// What a thread of a scenario does.
type Script = fn(&mut Thread);

/// A pager, and the thread of the target that runs on its CPU.
struct Thread {
    job: Arc<Job>,
    cpu: CpuId,
    scratch: Scratch,
    put_off: Vec<FillJob>,
}

/// Small devices whose slots are soon used again, and room in memory for all pages.
fn job(slots: &[u32], keep_clean: bool) -> Arc<Job> {
    job_of_groups(slots, keep_clean, &[GroupConfig::root(1 << 30)])
}

/// The first space is in the last group, its children are in the first.
fn job_of_groups(slots: &[u32], keep_clean: bool, groups: &[GroupConfig]) -> Arc<Job> {
    job_tuned(slots, Tuning { keep_clean, ..Tuning::default() }, groups)
}

fn job_that_reads_ahead(slots: &[u32], keep_clean: bool) -> Arc<Job> {
    let tuning = Tuning { readahead: Readahead::Always, keep_clean, ..Tuning::default() };
    job_tuned(slots, tuning, &[GroupConfig::root(1 << 30)])
}

fn job_tuned(slots: &[u32], tuning: Tuning, groups: &[GroupConfig]) -> Arc<Job> {
    let lost = Arc::new(Lost::default());
    let backings: Vec<_> =
        slots.iter().map(|slots| Arc::new(MockBacking::new(*slots, false, lost.clone()))).collect();
    let devices = slots.iter().zip(&backings).enumerate().map(|(n, (slots, backing))| {
        let map = Slots::new(*slots, 4, false, &tuning);
        Device::new(format!("device {n}"), -(n as i16), map, backing.clone())
    });
    let engine = Engine::with_groups(devices.collect(), groups, tuning.clone());
    let (targets, stamps, spaces) = (Mutex::default(), AtomicU64::new(0), AtomicU32::new(0));
    let job = Arc::new(Job { engine, backings, targets, stamps, spaces });
    let memory = Arc::new(MockMemory::new(lost));
    memory.map(FIRST, FIRST + PAGES);
    let first = job.add(memory);
    job.engine.add_space(first.space);
    job
}

impl Job {
    fn add(&self, memory: Arc<MockMemory>) -> Target {
        let id = self.spaces.fetch_add(1, Ordering::Relaxed) + 1;
        let group =
            if id == 1 { self.engine.groups().all().last() } else { self.engine.groups().all().first() };
        let space = Space::new(SpaceId(id), memory.clone()).in_group(group.expect("the root").clone());
        let target = Target { memory, space: Arc::new(space) };
        self.targets().push(target.clone());
        target
    }

    fn targets(&self) -> std::sync::MutexGuard<'_, Vec<Target>> {
        self.targets.lock().expect("targets")
    }

    fn pend_reads(&self, pending: bool) {
        self.backings.iter().for_each(|backing| backing.set_pending(pending));
    }

    /// By a thread that has the job for itself.
    fn alone(self: &Arc<Job>, script: impl FnOnce(&mut Thread)) {
        let mut me =
            Thread { job: self.clone(), cpu: CpuId(0), scratch: Scratch::default(), put_off: Vec::new() };
        script(&mut me);
        me.rest();
    }

    /// All scripts at once, until the last has ended.
    fn play(self: &Arc<Job>, scripts: &[Script]) {
        let threads: Vec<_> = (0..)
            .zip(scripts)
            .map(|(n, script)| {
                let (job, script) = (self.clone(), *script);
                thread::spawn(move || {
                    let (scratch, put_off) = (Scratch::default(), Vec::new());
                    let mut me = Thread { job, cpu: CpuId(n), scratch, put_off };
                    script(&mut me);
                    me.rest();
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("it would have ended the test"));
    }

    /// The invariants that hold for every schedule.
    fn end(self: &Arc<Job>) {
        self.pend_reads(false);
        self.backings.iter().for_each(|backing| backing.stop_failing());
        self.alone(|me| while me.job.engine.write_again(me.cpu, me.queue()) > 0 {});
        let targets = self.targets().clone();
        for target in &targets {
            assert_eq!(target.memory.waiters(), [], "faults that nobody will serve");
        }
        self.engine.check();
        self.alone(|me| {
            for target in &targets {
                target.memory.mapped().into_iter().for_each(|page| me.access(target, page, false));
            }
        });
        self.engine.check();
        self.alone(|me| targets.iter().for_each(|target| me.exit(target)));
        self.engine.check();
        assert_eq!(self.engine.used_slots(), 0, "slots are left");
        assert_eq!(self.engine.groups().charged_pages(self.engine.root()), 0, "pages are left charged");
        assert!(self.backings.iter().all(|backing| backing.is_empty()), "the device holds bytes of nobody");
        let charged = self.engine.groups().all().iter().filter_map(|group| group.swap_pages());
        assert!(charged.into_iter().all(|pages| pages == 0), "slots are left charged");
    }
}

impl Thread {
    fn queue(&self) -> QueueId {
        QueueId(self.cpu.0)
    }

    /// The first space.
    fn main(&self) -> Target {
        self.job.targets()[0].clone()
    }

    // -- the target --

    fn read(&mut self, page: u64) {
        let main = self.main();
        self.access(&main, FIRST + page, false);
    }

    fn write(&mut self, page: u64) {
        let main = self.main();
        self.access(&main, FIRST + page, true);
    }

    /// The page must read as what was stored last. One fault for each sleep: a wake that is lost is a sleep
    /// for ever.
    fn access(&mut self, target: &Target, page: u64, write: bool) {
        let stamp = write.then(|| self.job.stamps.fetch_add(1, Ordering::Relaxed) + 1);
        while target.memory.touch(self.cpu.0, page, stamp) == Touch::Missing {
            self.fault(target, page);
            while target.memory.waits(page, self.cpu.0) {
                self.duties();
                thread::yield_now();
            }
        }
    }

    fn unmap(&mut self, page: u64, pages: u64) {
        let main = self.main();
        main.memory.unmap(FIRST + page, FIRST + page + pages);
        self.until_read(&main);
        main.memory.map(FIRST + page, FIRST + page + pages);
    }

    /// Another mapping, whose pages are there from the first moment (MAP_POPULATE): nobody manages them.
    fn populate(&mut self, page: u64) {
        let main = self.main();
        main.memory.unmap(FIRST + page, FIRST + page + 1);
        self.until_read(&main);
        let stamps = &self.job.stamps;
        main.memory
            .map_present(FIRST + page, FIRST + page + 1, || stamps.fetch_add(1, Ordering::Relaxed) + 1);
    }

    /// MADV_DONTNEED: the pages are dropped some time after the event was read.
    fn dontneed(&mut self, page: u64, pages: u64) {
        let main = self.main();
        main.memory.remove(FIRST + page, FIRST + page + pages);
        self.until_read(&main);
        main.memory.end_remove();
    }

    fn remap(&mut self, from: u64, to: u64, pages: u64) {
        let main = self.main();
        main.memory.remap(FIRST + from, FIRST + to, pages, false, true);
        self.until_read(&main);
        main.memory.map(FIRST + from, FIRST + from + pages);
    }

    /// Returns the child when the engine knows it.
    fn fork(&mut self) -> Target {
        let main = self.main();
        let memory = main.memory.fork();
        self.until_read(&main);
        loop {
            let child = self.job.targets().iter().find(|t| Arc::ptr_eq(&t.memory, &memory)).cloned();
            let known =
                |child: &Target| self.job.engine.spaces().iter().any(|s| Arc::ptr_eq(s, &child.space));
            if let Some(child) = child.filter(known) {
                return child;
            }
            thread::yield_now();
        }
    }

    fn exit(&mut self, target: &Target) {
        target.memory.exit();
        let events_guard = target.space.gate.enter_events();
        let batch = target.memory.batch.lock().expect("batch");
        target.space.release(self.job.engine.swap(), self.cpu);
        drop((batch, events_guard));
        self.job.engine.remove_space(&target.space);
        self.job.targets().retain(|t| !Arc::ptr_eq(&t.space, &target.space));
    }

    fn until_read(&mut self, target: &Target) {
        while target.memory.has_events() {
            self.duties();
            thread::yield_now();
        }
    }

    // -- the pager --

    fn fault(&mut self, target: &Target, page: u64) {
        let fault = Fault { vpn: Vpn(page), write: false, urgent: false, favoured: false };
        let job = self.job.clone();
        let outcome = job.engine.fault(self.cpu, self.queue(), &target.space, fault, &mut self.scratch);
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
        let targets = job.targets().clone();
        targets.iter().for_each(|target| self.events(target));
        for fill in std::mem::take(&mut self.put_off) {
            let outcome = job.engine.install(self.cpu, fill, &mut self.scratch);
            self.after(outcome);
        }
        let mut reaped = false;
        for backing in &job.backings {
            if let Some(done) = backing.reap_one(self.queue()) {
                let outcome = job.engine.read_done(self.cpu, done, &mut self.scratch);
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

    fn events(&self, target: &Target) {
        let (engine, space) = (&self.job.engine, &target.space);
        let Some(events_guard) = space.gate.try_enter_events() else { return };
        let events = target.memory.read_events();
        if events.is_empty() {
            return;
        }
        let batch = target.memory.batch.lock().expect("batch");
        for event in events {
            match event {
                Event::Unmap { from, to } | Event::Remove { from, to } => {
                    space.unmap(engine.swap(), self.cpu, Vpn(from), Vpn(to));
                }
                Event::Remap { from, to, pages } => {
                    space.remap(engine.swap(), self.cpu, Vpn(from), Vpn(to), pages)
                }
                Event::Fork { child } => {
                    let child = self.job.add(child);
                    space.fork_into(engine.swap(), self.cpu, &child.space);
                    engine.add_space(child.space);
                }
            }
        }
        target.memory.end_events();
        drop((batch, events_guard));
    }

    // -- the reclaimer, and the operator --

    /// These pages leave, as far as they are in memory and there are slots.
    fn evict(&mut self, page: u64, pages: u64) {
        let main = self.main();
        self.evict_from(&main, page, pages);
    }

    fn evict_from(&mut self, target: &Target, page: u64, pages: u64) {
        let job = self.job.clone();
        let (from, to) = (Vpn(FIRST + page), Vpn(FIRST + page + pages));
        let batch = target.memory.batch.lock().expect("batch");
        let (shrunk, write_out, _) = job.engine.pageout(self.cpu, &target.space, from, to);
        drop(batch);
        shrunk.wanted.iter().for_each(|vpn| self.fault(target, vpn.0));
        if let Some(write_out) = write_out {
            job.engine.write_out(self.cpu, self.queue(), write_out);
        }
    }

    /// The first device goes off. The other one has room.
    fn swapoff(&mut self) {
        let job = self.job.clone();
        job.engine.swapoff_begin(0).expect("it is on, and not the last one");
        loop {
            match job.engine.swapoff_step(self.cpu, SWAPOFF_QUEUE) {
                Step::End(result) => break assert_eq!(result, Ok(())),
                Step::Moved(_) => {}
                Step::Wait => {
                    self.duties();
                    thread::yield_now();
                }
            }
        }
        assert!(job.engine.devices()[0].is_off() && job.backings[0].is_closed());
        assert_eq!(job.engine.devices()[0].slots.used_slots(), 0);
    }
}

// ---- the scenarios ----------------------------------------------------------------------------------------

/// A slot is freed, and holds another page, while a swap-in that bypasses the swap cache still reads it.
#[test]
fn aba_of_a_bypassed_swap_in() {
    explore(|| {
        let job = job(&[4], false);
        job.alone(|me| {
            (0..2).for_each(|page| me.write(page));
            me.evict(0, 2);
        });
        job.pend_reads(true);
        job.play(&[
            |me| {
                me.read(0);
                me.read(1);
            },
            |me| {
                me.write(0);
                me.evict(0, 1);
                me.write(2);
                me.evict(2, 1);
            },
            |me| {
                me.unmap(1, 1);
                me.write(1);
                me.evict(1, 1);
            },
        ]);
        job.end();
    });
}

/// The only copy of a page is in the swap cache, for its write has failed; faults and an unmap come between
/// the tries.
#[test]
fn a_copy_whose_write_failed_is_not_lost() {
    explore(|| {
        let job = job(&[16], false);
        job.alone(|me| (0..4).for_each(|page| me.write(page)));
        job.backings[0].fail_writes(BackingError::Io(5), 5);
        job.play(&[
            |me| {
                me.evict(0, 4);
                while me.job.engine.write_again(me.cpu, me.queue()) > 0 {
                    thread::yield_now();
                }
            },
            |me| {
                me.read(0);
                me.write(1);
                me.evict(1, 1);
                me.read(3);
            },
            |me| {
                me.unmap(2, 1);
                me.write(2);
                me.evict(2, 2);
                me.job.engine.write_again(me.cpu, me.queue());
            },
        ]);
        job.end();
    });
}

/// A page keeps the slot that it was read from. It is stored to, leaves, comes back, and its kept slot is
/// given up for others, in any order.
#[test]
fn a_kept_copy_that_is_old_is_not_used() {
    explore(|| {
        let job = job(&[9], true);
        job.alone(|me| {
            (0..3).for_each(|page| me.write(page));
            me.evict(0, 3);
        });
        job.pend_reads(true);
        job.play(&[
            |me| {
                me.read(0);
                me.write(0);
                me.evict(0, 2);
                me.read(0);
            },
            |me| {
                me.read(1);
                me.read(0);
                me.write(1);
                me.evict(1, 1);
            },
            |me| {
                (3..6).for_each(|page| me.write(page));
                me.evict(3, 3);
                me.read(2);
                me.evict(0, 8);
            },
        ]);
        job.end();
    });
}

/// Pages that a fill finds present: those of faults that were told twice, of an MADV_DONTNEED that has not
/// dropped them yet, and some that nobody manages. A fill that tried again would never end.
#[test]
fn no_livelock_on_eexist() {
    explore(|| {
        let job = job(&[16], false);
        job.alone(|me| {
            me.populate(2);
            me.write(7);
            me.evict(7, 1);
        });
        job.play(&[
            |me| (0..PAGES).for_each(|page| me.write(page)),
            |me| (0..PAGES).for_each(|page| me.read(page)),
            |me| {
                me.dontneed(0, 2);
                me.populate(1);
                me.evict(0, 8);
                me.dontneed(5, 2);
                me.read(1);
            },
        ]);
        job.end();
    });
}

/// MADV_DONTNEED and mremap while a fill is between its claim and its end: old bytes must not come back after
/// it.
#[test]
fn a_fill_does_not_outlive_its_mapping() {
    explore(|| {
        let job = job(&[16], false);
        job.alone(|me| {
            (0..6).for_each(|page| me.write(page));
            me.evict(0, 6);
        });
        job.pend_reads(true);
        job.play(&[
            |me| (0..4).for_each(|page| me.read(page)),
            |me| {
                me.dontneed(0, 2);
                me.read(1);
                me.remap(3, 6, 2);
                me.read(6);
            },
            |me| {
                me.evict(0, 8);
                me.write(3);
                me.read(5);
            },
        ]);
        job.end();
    });
}

/// Free slots that an allocation might miss: in a cluster that was full, at the hint of a CPU that has gone
/// idle, on the counter of one CPU.
#[test]
fn no_slot_is_stranded() {
    /// Free at the beginning, of two clusters that are full otherwise.
    const FREE: usize = 1;
    fn take(device: &Slots, cpu: CpuId, n: usize) -> Vec<SlotIndex> {
        let mut slots = Vec::new();
        while slots.len() < n {
            // Fewer may come while another CPU collects what the others have freed: for a moment it is on no
            // counter.
            let missing = n - slots.len();
            if device.alloc(cpu, Order::ZERO, missing, GroupId(0), &mut slots) < missing {
                thread::yield_now();
            }
        }
        slots
    }
    fn give(device: &Slots, cpu: CpuId, slots: &[SlotIndex]) {
        let mut freed = Vec::new();
        device.put(slots, &mut freed);
        assert_eq!(freed.len(), slots.len());
        device.release(cpu, &freed);
    }
    explore(|| {
        let device = Arc::new(Slots::new(1024, 3, false, &Tuning::default()));
        let full = take(&device, CpuId(0), 1023 - FREE);
        let threads: Vec<_> = [(1, &full[10..13]), (2, &full[600..601]), (0, &full[20..22])]
            .map(|(cpu, mine)| {
                let (device, mine, cpu) = (device.clone(), mine.to_vec(), CpuId(cpu));
                thread::spawn(move || {
                    give(&device, cpu, &mine);
                    // It goes on elsewhere: what it takes is on another CPU's count. There are as many as all
                    // ask for together, so nobody waits for what another one keeps.
                    let elsewhere = CpuId((cpu.0 + 1) % 3);
                    let some = take(&device, elsewhere, 2);
                    give(&device, elsewhere, &some[..1]);
                    let more = take(&device, cpu, 1);
                    give(&device, cpu, &[some[1], more[0]]);
                    mine.len()
                })
            })
            .into_iter()
            .collect();
        let given: usize = threads.into_iter().map(|thread| thread.join().expect("it ends")).sum();
        device.check();
        assert_eq!(device.free_slots(), (FREE + given) as u64);
        let mut all = Vec::new();
        assert_eq!(device.alloc(CpuId(1), Order::ZERO, FREE + given + 1, GroupId(0), &mut all), FREE + given);
        device.check();
    });
}

/// The processes of a group end while their slots live on, by a fork, in a process of another group.
#[test]
fn slots_of_a_group_that_is_offline() {
    explore(|| {
        let limit = |name: &str, parent| GroupConfig {
            name: name.into(),
            parent,
            swap_max_pages: 100,
            ..GroupConfig::root(1000 * PAGE_SIZE as u64)
        };
        let job = job_of_groups(&[16, 16], false, &[limit("/", None), limit("inner", Some(0))]);
        job.alone(|me| {
            (0..4).for_each(|page| me.write(page));
            me.evict(0, 4);
            me.fork();
        });
        let inner = job.engine.groups().all()[1].clone();
        assert_eq!(inner.swap_pages(), Some(4));
        job.play(&[
            |me| {
                let parent = me.main();
                me.exit(&parent);
            },
            |me| {
                // The last one, whether its parent is there or not.
                let child = me.job.targets().last().expect("the child stays").clone();
                me.access(&child, FIRST, true);
                me.evict_from(&child, 0, 1);
            },
            |me| me.swapoff(),
        ]);
        job.engine.check();
        assert_eq!(inner.swap_pages(), Some(3), "what the child has not touched is the group's still");
        assert_eq!(job.engine.root().swap_pages(), Some(4));
        job.end();
    });
}

/// A device goes off under faults, stores, evictions, and a fork that shares its slots.
#[test]
fn swapoff_of_slots_that_are_shared_and_read() {
    explore(|| {
        let job = job(&[16, 16], true);
        job.alone(|me| {
            (0..6).for_each(|page| me.write(page));
            me.evict(0, 6);
        });
        job.pend_reads(true);
        job.play(&[
            |me| {
                me.read(0);
                me.write(1);
                me.evict(0, 3);
                me.read(4);
            },
            |me| {
                let child = me.fork();
                me.access(&child, FIRST + 1, false);
                me.access(&child, FIRST + 5, true);
                me.evict_from(&child, 4, 4);
            },
            |me| me.swapoff(),
        ]);
        assert!(job.engine.devices()[0].is_off());
        job.end();
    });
}

/// Pages are read ahead while they are read for themselves, stored to and evicted again, unmapped, and
/// dropped by reclaim: a copy in the swap cache is never an old one, and goes with its slot.
#[test]
fn a_page_that_was_read_ahead_is_never_old() {
    explore(|| {
        let job = job_that_reads_ahead(&[9], false);
        job.alone(|me| {
            (0..4).for_each(|page| me.write(page));
            me.evict(0, 4);
        });
        job.pend_reads(true);
        job.play(&[
            |me| {
                me.read(0);
                me.read(2);
                me.evict(0, 4);
                me.read(3);
            },
            |me| {
                me.write(1);
                me.evict(1, 1);
                me.read(1);
            },
            |me| {
                me.unmap(2, 1);
                me.write(2);
                me.evict(2, 2);
                me.job.engine.drop_read_ahead(me.cpu, 8);
            },
        ]);
        job.end();
    });
}

/// A device goes off, and a fork shares its slots, while its pages are read ahead and are found in the swap
/// cache.
#[test]
fn swapoff_of_slots_that_are_read_ahead() {
    explore(|| {
        let job = job_that_reads_ahead(&[16, 16], true);
        job.alone(|me| {
            (0..4).for_each(|page| me.write(page));
            me.evict(0, 4);
        });
        job.pend_reads(true);
        job.play(&[
            |me| {
                me.read(1);
                me.read(2);
                me.evict(0, 4);
                me.read(0);
            },
            |me| {
                let child = me.fork();
                me.access(&child, FIRST + 3, true);
                me.access(&child, FIRST + 2, false);
                me.job.engine.drop_read_ahead(me.cpu, 1);
            },
            |me| me.swapoff(),
        ]);
        assert!(job.engine.devices()[0].is_off());
        job.end();
    });
}

/// A slot is taken from a device that is empty, and goes off meanwhile.
#[test]
fn swapoff_meets_an_allocation() {
    explore(|| {
        let job = job(&[16, 16], true);
        job.alone(|me| (0..2).for_each(|page| me.write(page)));
        job.play(&[
            |me| {
                me.evict(0, 1);
                me.evict(1, 1);
            },
            |me| me.swapoff(),
        ]);
        job.end();
    });
}

/// All of it at once: faults, evictions whose write fails, unmaps, a child that comes and goes, and a
/// swapoff.
#[test]
fn everything_at_once() {
    explore(|| {
        let job = job(&[16, 16], true);
        job.alone(|me| {
            (0..6).for_each(|page| me.write(page));
            me.evict(0, 4);
        });
        job.pend_reads(true);
        job.backings[0].fail_writes(BackingError::Io(5), 2);
        job.play(&[
            |me| {
                me.read(0);
                me.write(3);
                me.write(5);
                me.read(1);
            },
            |me| {
                me.evict(2, 5);
                me.evict(0, 3);
                me.job.engine.write_again(me.cpu, me.queue());
            },
            |me| {
                let child = me.fork();
                me.unmap(2, 2);
                me.access(&child, FIRST + 2, true);
                me.access(&child, FIRST + 4, false);
                me.exit(&child);
            },
            |me| me.swapoff(),
        ]);
        job.end();
    });
}
