//! The reclaim threads: the loop around the engine's swap-out.
//!
//! ```text
//!   wait for usage above the high mark
//!   until below the low mark:  pick a space ─ batch lock ─ take ─ unlock ─ wake who waits ─ write ─ move out to the file
//! ```
//!
//! Several threads, so that one can compress while the other waits for an evictor, and so that two spaces are evicted
//! at once. Never on the fault path: a fault that finds no room waits for a batch, not for a round.
//!
//! *Processes that stand still* (stopped, traced, frozen) cannot evict, and none of them may hold up the others. These
//! are the waits that processes share, and what bounds each:
//!
//! ```text
//!   a reclaimer (4 at most) for an evictor's reply, with the batch lock     ANSWER_WITHIN (evictor.rs)
//!   a reclaimer for an evictor that another one uses                        NO_ANSWER, and a reply bounds the use
//!   a reclaimer, being picked a process that cannot answer                  none: set aside, and not picked again
//!   a pager for the MOVE lock, inside the gate                              20 ms (control.rs), none if it is cut off
//!   a pager, the door, the monitor for the batch lock, inside the gate      as a reclaimer's wait for a reply
//!   who fills or reads events, for the gate                                 as who is inside waits for the batch lock
//!   a pager for the rest of a change's events                               1 s (events.rs)
//!   --check for who is at work                                              50 ms (quiet.rs)
//! ```
//!
//! What stands still goes on in its turn; until then others give room, and pools do. Where that is not enough, and
//! nothing moves any more, a line says what stands still and why, and the limit is raised until it goes on, by
//!
//! * what a process needs while it stands still itself (its tracer reads its memory), which must not wait for it;
//! * what others need to have a part of the limit (OTHERS_PART): they may have no page left to give, and among them may
//!   be the one that is to let it go on (its tracer, a shell).

use crate::pager::{OnFull, Pager, Waiting};
use crate::process::{Agent, Process};
use crate::standstill::Standstill;
use memspill_engine::backing::QueueId;
use memspill_engine::engine::{Device, Engine};
use memspill_engine::group::Group;
use memspill_engine::space::Space;
use memspill_engine::swap_in::Fault;
use memspill_engine::swap_out::{Shrunk, WriteOut};
use memspill_engine::units::{CpuId, GroupId, PAGE_SIZE, Vpn};
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

/// An evictor that keeps another reclaimer waiting for this long belongs to a process that is slow to answer.
const NO_ANSWER: Duration = Duration::from_millis(200);

/// Others get such a part of the limit, beyond it if need be, where what stands still leaves them nothing: so that they
/// get on and swap among themselves, for whoever is to let it go on may be one of them.
const OTHERS_PART: u64 = 8;
const OTHERS_BYTES_MIN: u64 = 4 << 20;
const OTHERS_BYTES_MAX: u64 = 64 << 20;

/// Processes that stand still are looked at this often, while reclaim is at work.
const LOOK_ASIDE: Duration = Duration::from_millis(10);

pub fn run(pager: &Arc<Pager>, index: u32) {
    let mut reclaimer = Reclaimer::new(pager, CpuId(index), QueueId(pager.cpus.len() as u32 + index));
    let mut seen = 0;
    while !pager.stopping.load(Ordering::Relaxed) {
        pager.wait_for_kick(&mut seen, Duration::from_millis(200));
        crate::home::release_stuck(pager);
        reclaimer.look_aside();
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
    let mut reclaimer = Reclaimer::new(pager, crate::cpu(), queue);
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
    /// No earlier than this are those looked at that stand still.
    look_aside_at: Instant,
}

impl<'a> Reclaimer<'a> {
    fn new(pager: &'a Arc<Pager>, cpu: CpuId, queue: QueueId) -> Reclaimer<'a> {
        let now = Instant::now();
        let stuck_groups = HashMap::new();
        Reclaimer { pager, cpu, queue, stuck: None, stuck_groups, write_again_at: now, look_aside_at: now }
    }

    /// Take one batch out. False if that achieved nothing.
    fn batch(&mut self) -> bool {
        let pager = self.pager;
        let _work = pager.quiet.work();
        let engine = &pager.engine;
        if Instant::now() >= self.write_again_at && engine.write_again(self.cpu, self.queue) > 0 {
            self.write_again_at = Instant::now() + WRITE_AGAIN;
        }
        self.look_aside();
        let taken = self.shrink_some();
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

    /// A batch of whoever has his turn and can answer.
    fn shrink_some(&mut self) -> usize {
        while let Some(space) = self.pager.engine.pick_space() {
            let taken = self.shrink(&space, BATCH_PAGES);
            if taken > 0 || !space.is_aside() {
                return taken;
            }
        }
        0
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
        let Some(agent) = process.memory.agent().filter(|agent| agent.serves()) else {
            // The child of a fork, whose agent has not introduced itself yet.
            space.pass_over();
            return 0;
        };
        if crate::proc::is_stopped(agent.evictor_tid()) {
            self.set_aside(&process, agent);
            return 0;
        }
        // Before the batch lock: whoever waits for an evictor must not keep events from being processed.
        let Some(evictor) = process.evictor.take(NO_ANSWER) else {
            space.pass_over();
            return 0;
        };
        if !process.caught_up(agent) {
            self.set_aside(&process, agent);
            return 0;
        }
        let batch = process.batch.lock().expect("batch");
        let (shrunk, write_out) = take(engine, self.cpu);
        drop(batch);
        self.hand_over(&process, &shrunk.wanted);
        if !shrunk.busy.is_empty() {
            // Shared since a fork (perhaps one that nobody told of). Where the other one still lives, each gets a page of its own by this.
            space.cow.store(true, Ordering::Relaxed);
            if process.memory.populate(&shrunk.busy) {
                space.made_own(&shrunk.busy);
                space.drop_discount(engine, shrunk.busy.len() as u64);
            }
        }
        if agent.is_late() {
            self.set_aside(&process, agent);
        }
        drop(evictor);
        // Room was made when the pages left, not when they are stored: who waits need not wait for the compression.
        self.pager.poke_waiting();
        if let Some(write_out) = write_out {
            engine.write_out(self.cpu, self.queue, write_out);
        }
        shrunk.taken
    }

    /// It cannot answer now. Nobody waits for it, and it is not picked, until `look_aside` finds that it goes on.
    fn set_aside(&self, process: &Process, agent: &Agent) {
        let why = crate::standstill::of(agent.evictor_tid());
        agent.note_standstill(why.unwrap_or(Standstill::Unknown));
        process.space.set_aside(true, &[]);
    }

    /// Those that go on have their turn again.
    fn look_aside(&mut self) {
        if Instant::now() < self.look_aside_at {
            return;
        }
        self.look_aside_at = Instant::now() + LOOK_ASIDE;
        let spaces = self.pager.engine.spaces();
        for space in spaces.iter().filter(|space| space.is_aside()) {
            let Some(process) = self.pager.process(u64::from(space.id.0)) else { continue };
            let Some(agent) = process.memory.agent() else { continue };
            if crate::standstill::of(agent.evictor_tid()).is_some() {
                continue;
            }
            let Some(_evictor) = process.evictor.take(Duration::ZERO) else { continue };
            if process.caught_up(agent) {
                agent.goes_on();
                space.set_aside(false, &spaces);
            }
        }
        self.lend();
    }

    /// Raise the limits of groups in which what stands still has left nothing to others, or set them back.
    fn lend(&self) {
        let engine = &self.pager.engine;
        let processes = self.pager.processes();
        let aside: Vec<&Arc<Process>> = processes.iter().filter(|process| process.space.is_aside()).collect();
        let counts = |agent: &Agent| agent.serves_beyond() || agent.others_wait();
        for group in engine.groups.all() {
            let within = || aside.iter().filter(|process| process.space.group(engine).is_within(group));
            if !within().any(|process| process.memory.agent().is_some_and(counts)) {
                group.lend(0);
                continue;
            }
            let pages: u64 = within().map(|process| process.space.resident_pages()).sum();
            let there_bytes = pages.saturating_sub(group.discount_pages()) * PAGE_SIZE as u64 + group.other_bytes();
            group.lend((there_bytes + bytes_for_others(group)).saturating_sub(group.max_bytes()));
        }
    }

    /// Faults wait, and nothing moves: is that because of processes of this group that stand still? They are told of,
    /// and are waited for; but not by their own faults.
    fn await_those_aside(&self, group: &Group) -> bool {
        let engine = &self.pager.engine;
        let within = |process: &Arc<Process>| process.space.is_aside() && process.space.group(engine).is_within(group);
        let aside: Vec<Arc<Process>> = self.pager.processes().into_iter().filter(within).collect();
        let queues = self.pager.cpus.iter().map(|cpu| cpu.waiting.lock().expect("waiting"));
        let keys = queues.map(|queue| queue.iter().map(|waiting| waiting.process.key).collect::<Vec<u64>>());
        let waiting: Vec<u64> = keys.flatten().collect();
        let (mut pages, mut beyond) = (0, false);
        for process in &aside {
            let Some(agent) = process.memory.agent() else { continue };
            let own = waiting.contains(&process.key);
            if own {
                agent.serve_beyond();
            }
            beyond |= own;
            pages += process.space.resident_pages();
            // A pager that tries them has them in its hands just now.
            if !waiting.is_empty() {
                tell_of_standstill(process, agent, own, bytes_for_others(group));
            }
            if waiting.iter().any(|key| *key != process.key) {
                agent.note_others_wait();
            }
        }
        self.lend();
        self.pager.poke_waiting();
        // With less than this from them, faults would wait on.
        beyond || pages * PAGE_SIZE as u64 >= group.gap_bytes()
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
            let waited_for = waiting.iter().any(|w| w.is_within(group));
            if then != moved {
                self.stuck_groups.remove(&group.id);
            } else if waited_for && since.elapsed() > SHORT_OF_ROOM && self.await_those_aside(group) {
                // It goes on when they do.
            } else if since.elapsed() > STUCK && waited_for {
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
        if !full && since.elapsed() >= SHORT_OF_ROOM && self.await_those_aside(group) {
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
                let limit_bytes = group.max_bytes() + group.max_bytes() / 8;
                group.set_limit_bytes(limit_bytes);
                let what = if group.parent.is_none() { "the budget" } else { "its memory.max" };
                eprintln!("memspill: {reason}; {what} grows to {} MiB", limit_bytes >> 20);
                self.pager.poke_waiting();
            }
        }
    }
}

/// Once for each time that it stands still.
fn tell_of_standstill(process: &Process, agent: &Agent, own: bool, others_bytes: u64) {
    let Some(why) = agent.standstill() else { return };
    if !agent.is_to_be_told() {
        return;
    }
    let name = crate::standstill::name(process.memory.pid());
    let mib = (process.space.resident_pages() * PAGE_SIZE as u64).div_ceil(1 << 20);
    let then = match own {
        true => "what it needs itself comes beyond the budget".into(),
        false => format!("others have {} MiB, beyond the budget if need be", others_bytes >> 20),
    };
    eprintln!("memspill: {name} {why}, so its {mib} MiB cannot be swapped out; until it goes on, {then}");
}

fn bytes_for_others(group: &Group) -> u64 {
    (group.max_bytes() / OTHERS_PART).clamp(OTHERS_BYTES_MIN, OTHERS_BYTES_MAX)
}
