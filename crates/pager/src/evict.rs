//! The reclaim threads: the loop around the engine's swap-out.
//!
//! ```text
//!   wait for usage above the high mark
//!   until below the low mark:  pick a space ─ batch lock ─ take ─ unlock ─ wake who waits ─ write ─ move out to the file
//! ```
//!
//! Two threads, so that one can compress while the other waits for an evictor, and so that two spaces are evicted at once.
//! Never on the fault path: a fault that finds no room waits for a batch, not for a round.

use crate::pager::{OnFull, Pager, Waiting};
use crate::process::Process;
use memspill_engine::backing::QueueId;
use memspill_engine::engine::{Device, Engine};
use memspill_engine::group::Group;
use memspill_engine::space::Space;
use memspill_engine::swap_in::Fault;
use memspill_engine::swap_out::{Shrunk, WriteOut};
use memspill_engine::units::{CpuId, GroupId, Vpn};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Pages taken out in one batch: enough to amortise the two wakes and the TLB flushes, short enough for who waits.
const BATCH_PAGES: usize = 64;

/// Pages that could not be written are tried again after this long: a failing device may take its time for each error.
const WRITE_AGAIN: Duration = Duration::from_millis(100);

/// No page has left and none was filled for this long while a fault waits: the policy decides.
const FULL: Duration = Duration::from_secs(2);

/// The same where the budget then grows, which takes nothing from the program: it may be small steps, many of them.
const FULL_BEFORE_GROWING: Duration = Duration::from_millis(200);

/// The same before pools in RAM have to give room, which costs no more than I/O.
const SHORT_OF_ROOM: Duration = Duration::from_millis(100);

/// The same where the swap has room. Longer: pages that are busy with events and forks come free again, and a kill cannot
/// be taken back.
const STUCK: Duration = Duration::from_secs(10);

/// The part of a pool that gives way at once: the more of them there are, the sooner the next page finds room in RAM again.
const POOL_PARTS: u64 = 8;

/// An evictor that keeps another reclaimer waiting for this long belongs to a process that is frozen, or dumps core.
const NO_ANSWER: Duration = Duration::from_millis(200);

pub fn run(pager: &Arc<Pager>, index: u32) {
    let mut reclaimer = Reclaimer {
        pager,
        cpu: CpuId(index),
        queue: QueueId(pager.cpus.len() as u32 + index),
        stuck: None,
        stuck_groups: HashMap::new(),
        write_again_at: Instant::now(),
    };
    let mut seen = 0;
    while !pager.stopping.load(Ordering::Relaxed) {
        pager.wait_for_kick(&mut seen, Duration::from_millis(200));
        crate::home::release_stuck(pager);
        while pager.engine.groups.above_low_mark() && !pager.stopping.load(Ordering::Relaxed) {
            if !reclaimer.batch() {
                std::thread::sleep(Duration::from_millis(2));
                if !pager.engine.groups.above_high_mark() {
                    break;
                }
            }
        }
        if !pager.engine.groups.above_high_mark() {
            reclaimer.stuck = None;
            reclaimer.stuck_groups.clear();
        }
        while reclaimer.maintain() {}
        if index == 0 {
            linger(pager);
        }
    }
}

/// On two CPUs: stay awake while the faults of one thread keep coming and nobody else wants this CPU.
///
/// A thread that a fill wakes goes to an idle CPU if there is one, away from its pager, and both pay for an idle CPU's
/// waking (50 µs in a virtual machine) at every fault from then on. On more CPUs one of them is always idle.
fn linger(pager: &Pager) {
    const QUIET: Duration = Duration::from_micros(100);
    const SOMEBODY_ELSE_RAN: Duration = Duration::from_micros(10);
    if pager.cpus.len() != 2 || !crate::home::one_thread_faults(pager) {
        return;
    }
    let stats = &pager.engine.stats;
    let faults = || [0, 1].map(|cpu| stats.on(CpuId(cpu)).pgfault.load(Ordering::Relaxed)).iter().sum::<u64>();
    let (mut seen, mut seen_at) = (faults(), Instant::now());
    while !pager.reclaim_is_wanted() {
        (0..64).for_each(|_| std::hint::spin_loop());
        let before = Instant::now();
        std::thread::yield_now();
        let now = Instant::now();
        if now - before > SOMEBODY_ELSE_RAN {
            return;
        }
        if faults() != seen {
            (seen, seen_at) = (faults(), now);
        } else if now - seen_at > QUIET {
            return;
        }
    }
}

/// Take the resident pages of a range out now (MADV_PAGEOUT), with a queue of the caller's. Returns how many have gone:
/// those that are shared, locked or in work stay.
pub fn pageout(pager: &Arc<Pager>, queue: QueueId, process: &Arc<Process>, from: Vpn, to: Vpn) -> usize {
    const TRIES: u32 = 4;
    let mut reclaimer = Reclaimer {
        pager,
        cpu: crate::cpu(),
        queue,
        stuck: None,
        stuck_groups: HashMap::new(),
        write_again_at: Instant::now(),
    };
    let mut gone = 0;
    for _ in 0..TRIES {
        let taken = reclaimer.pageout(&process.space, from, to);
        gone += taken;
        // What was shared or in work may have become free by now.
        if taken == 0 {
            break;
        }
    }
    gone
}

struct Reclaimer<'a> {
    pager: &'a Arc<Pager>,
    cpu: CpuId,
    queue: QueueId,
    /// Since when nothing moves, and how much had moved by then (`Pager::moved`). Moved by anybody: a thread that never
    /// finds a victim because the other one takes them all has no reason to complain.
    stuck: Option<(Instant, u64)>,
    /// The same for each group that is full by itself, while the others may go on.
    stuck_groups: HashMap<GroupId, (Instant, u64)>,
    /// No earlier than this are pages written again whose write failed.
    write_again_at: Instant,
}

impl Reclaimer<'_> {
    /// Take one batch out. False if that achieved nothing.
    fn batch(&mut self) -> bool {
        let pager = self.pager;
        let _work = pager.quiet.work();
        let engine = &pager.engine;
        if Instant::now() >= self.write_again_at && engine.write_again(self.cpu, self.queue) > 0 {
            self.write_again_at = Instant::now() + WRITE_AGAIN;
        }
        let taken = match engine.pick_space() {
            Some(space) => self.shrink(&space, BATCH_PAGES),
            None => 0,
        };
        self.maintain();
        self.pager.update_other_bytes();
        self.consider_groups();
        if taken > 0 {
            self.stuck = None;
            self.pager.poke_waiting();
            return true;
        }
        self.consider_policy();
        false
    }

    fn shrink(&mut self, space: &Arc<Space>, pages: usize) -> usize {
        self.take_batch(space, |engine, cpu| engine.shrink(cpu, space, pages))
    }

    /// All of a range, batch by batch.
    fn pageout(&mut self, space: &Arc<Space>, from: Vpn, to: Vpn) -> usize {
        let (mut next, mut gone) = (from, 0);
        while next < to && !self.pager.stopping.load(Ordering::Relaxed) {
            let _work = self.pager.quiet.work();
            let at = next;
            gone += self.take_batch(space, |engine, cpu| {
                let (shrunk, write_out, after) = engine.pageout(cpu, space, at, to);
                next = after;
                (shrunk, write_out)
            });
            self.pager.update_other_bytes();
            // The process could not be asked.
            if next == at {
                break;
            }
        }
        gone
    }

    /// Whoever chooses the pages: they are taken out and written here.
    fn take_batch(
        &mut self,
        space: &Arc<Space>,
        take: impl FnOnce(&Engine, CpuId) -> (Shrunk, Option<WriteOut>),
    ) -> usize {
        let Some(process) = self.pager.process(u64::from(space.id.0)) else { return 0 };
        let engine = &self.pager.engine;
        if crate::proc::is_stopped(process.memory.proc_id()) {
            // A stopped process (SIGSTOP, ^Z, a debugger) cannot evict; nor does it fill memory. The others come first.
            space.pass_over();
            self.stuck = None;
            return 0;
        }
        if !process.memory.agent().is_some_and(|agent| agent.serves()) {
            // The child of a fork, whose agent has not introduced itself yet.
            space.pass_over();
            return 0;
        }
        // Before the batch lock: whoever waits for an evictor must not keep events from being processed.
        let Some(evictor) = process.evictor.take(NO_ANSWER) else {
            space.pass_over();
            return 0;
        };
        let batch = process.batch.lock().expect("batch");
        let (shrunk, write_out) = take(engine, self.cpu);
        drop(batch);
        self.hand_over(&process, &shrunk.wanted);
        if !shrunk.busy.is_empty() {
            // Shared since a fork (perhaps one that nobody told of). Where the other one still lives, each gets a page of its own by this.
            space.cow.store(true, Ordering::Relaxed);
            process.memory.populate(&shrunk.busy);
            space.made_own(&shrunk.busy);
            space.drop_discount(engine, shrunk.busy.len() as u64);
        }
        drop(evictor);
        // Room was made when the pages left, not when they are stored: who waits need not wait for the compression.
        self.pager.poke_waiting();
        if let Some(write_out) = write_out {
            engine.write_out(self.cpu, self.queue, write_out);
        }
        shrunk.taken
    }

    /// Faults on pages of the batch: for the pagers, which alone start reads (a window may reach beyond the batch).
    fn hand_over(&self, process: &Arc<Process>, wanted: &[memspill_engine::units::Vpn]) {
        if !wanted.is_empty() {
            let mut waiting = self.pager.cpus[self.cpu.index() % self.pager.cpus.len()].waiting.lock().expect("waiting");
            let fault = |vpn: &memspill_engine::units::Vpn| Fault { vpn: *vpn, write: true, urgent: false, favoured: false };
            waiting.extend(wanted.iter().map(|vpn| Waiting { process: process.clone(), fault: fault(vpn) }));
        }
    }

    fn maintain(&self) -> bool {
        let more = self.pager.engine.devices.iter().any(|d| d.maintain(self.queue));
        self.pager.update_other_bytes();
        more
    }

    /// A group below the root may be full for good while reclaim goes on in others.
    fn consider_groups(&mut self) {
        let engine = &self.pager.engine;
        if engine.groups.all().len() == 1 {
            return;
        }
        let mut waiting: Vec<Arc<Group>> = Vec::new();
        for cpu in &self.pager.cpus {
            let queue = cpu.waiting.lock().expect("waiting");
            waiting.extend(queue.iter().map(|w| w.process.space.group(engine).clone()));
        }
        let below_the_root = engine.groups.all().iter().filter(|group| group.parent.is_some());
        let full: Vec<&Arc<Group>> = below_the_root.filter(|group| group.full()).collect();
        self.stuck_groups.retain(|id, _| full.iter().any(|group| group.id == *id));
        for group in full {
            let below = engine.groups.all().iter().filter(|other| other.is_within(group));
            let moved = below.map(|group| group.moved_pages()).sum();
            let (since, then) = *self.stuck_groups.entry(group.id).or_insert((Instant::now(), moved));
            if then != moved {
                self.stuck_groups.remove(&group.id);
            } else if since.elapsed() > STUCK && waiting.iter().any(|w| w.is_within(group)) {
                self.stuck_groups.remove(&group.id);
                let name = &group.name;
                if group.has_swap() {
                    self.no_way_out(group, &format!("group {name} is full"), "raise its memory.max or swap.max");
                } else {
                    self.no_swap_left(group);
                }
            }
        }
    }

    /// Nothing could be taken out. If that lasts and somebody waits, either the swap is full or what is left cannot be
    /// moved; both are answers, not hangs.
    fn consider_policy(&mut self) {
        let engine = &self.pager.engine;
        let group = &engine.group;
        let waiting = self.pager.cpus.iter().any(|c| c.has_waiting());
        let moved = self.pager.moved();
        let since = match self.stuck {
            Some((since, then)) if waiting && then == moved => since,
            _ => {
                self.stuck = Some((Instant::now(), moved));
                engine.swap_is_full.store(false, Ordering::Relaxed);
                return;
            }
        };
        let full = engine.swap_is_full.load(Ordering::Relaxed);
        let patience = match (full, self.pager.settings.on_full) {
            (true, OnFull::Kill) => FULL,
            (true, OnFull::Grow) => FULL_BEFORE_GROWING,
            (false, _) => STUCK,
        };
        if !full && since.elapsed() >= SHORT_OF_ROOM && self.pools_give_room() {
            self.stuck = None;
            return;
        }
        if since.elapsed() < patience {
            return;
        }
        self.stuck = None;
        engine.swap_is_full.store(false, Ordering::Relaxed);
        let failing = engine.devices.iter().find(|d| !d.is_off() && d.errors.is_failing());
        let error = engine.last_error.lock().expect("last error").take();
        let of_group = engine.groups.all().iter().skip(1).find(|group| full && !group.has_swap());
        if let Some(group) = of_group {
            return self.no_swap_left(group);
        }
        let (reason, fix) = match (full, failing, error) {
            (true, Some(device), _) => {
                (format!("nothing can be written to swap device {}", device.name), "name another one with --swap")
            }
            (true, None, _) => ("the swap is full".into(), "raise --swap-max, --swap size= or free disk space"),
            (false, _, Some(error)) => (error, "raise --memory-max"),
            (false, _, None) => {
                let bytes = group.usage_bytes() >> 20;
                let why = format!("cannot be swapped out ({})", self.pager.account());
                (format!("{bytes} MiB of the budget {why}"), "raise --memory-max")
            }
        };
        self.no_way_out(group, &reason, fix);
    }

    /// What is in memory cannot be moved now: it is locked, or of a child that has not joined yet. Pages that are compressed
    /// in RAM can, where there is a file behind them. True if that made room.
    fn pools_give_room(&self) -> bool {
        let devices = &self.pager.engine.devices;
        let give = |device: &Device| device.backing.give_ram(self.queue, device.backing.usage().ram_bytes / POOL_PARTS);
        let given_bytes: u64 = devices.iter().map(give).sum();
        self.pager.update_other_bytes();
        self.pager.poke_waiting();
        given_bytes > 0
    }

    fn no_swap_left(&self, group: &Group) {
        let reason = format!("group {} has used up its swap.max", group.name);
        self.no_way_out(group, &reason, "raise its swap.max or memory.max");
    }

    fn no_way_out(&self, group: &Group, reason: &str, fix: &str) {
        match self.pager.settings.on_full {
            OnFull::Kill => self.pager.give_up(137, format!("killed: {reason}; {fix}")),
            OnFull::Grow => {
                let limit_bytes = group.limit_bytes() + group.limit_bytes() / 8;
                group.set_limit_bytes(limit_bytes);
                let what = if group.parent.is_none() { "the budget" } else { "its memory.max" };
                eprintln!("memspill: {reason}; {what} grows to {} MiB", limit_bytes >> 20);
                self.pager.poke_waiting();
            }
        }
    }
}
