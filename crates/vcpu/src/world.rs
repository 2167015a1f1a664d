//! The world: tasks, their clocks, who runs next; the lines, locks and profile that belong to it.
//!
//! ```text
//!   op ─▶ preempted? ─▶ later than another task? ──yes─▶ into the queue, suspend … resumed as the earliest
//!                              └─no──▶ do it, add its cost to the task's clock
//! ```
//!
//! A CPU may have several tasks, of which one has it (cpus.rs): the others' clocks stand still until it
//! blocks, ends, or has had its slice. A task that waits for a lock keeps its CPU while it spins.
//!
//! Invariant: an operation on shared state is done by the task whose time is the least of all that can run.
//! So operations happen in the order of virtual time, and equal times in the order of task numbers.
//!
//! A world is installed for its thread; locks and atomics that are made meanwhile belong to it, and must be
//! dropped before it. Operations on them outside of tasks take no time.

use crate::cost;
use crate::cpus::{Cpu, SLICE_NS};
use crate::lines::{Access, LineId, Lines};
use crate::locks::{LockId, LockState, Mode, TaskId, Waiter};
use crate::profile::{DATA, Profile};
use crate::random::Random;
use crate::switch::{self, Fiber};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::Location;

/// The machine that is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub cpus_per_socket: u32,
    pub preemption: Option<Preemption>,
    pub waiting: Waiting,
}

/// How a task waits for a lock.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// As in a process: it spins for a while, then it sleeps.
    #[default]
    Sleeps,
    /// As in the kernel: it spins, in a queue, and who holds a lock keeps its CPU.
    Spins,
}

/// Larger data has a line besides the lock's. Two lines' worth, for each atomic and lock is larger here: it
/// knows its line.
const BESIDE_LOCK_BYTES: usize = 128;

/// At one in so many operations, a task loses its CPU for up to so long.
#[derive(Clone, Copy, Debug)]
pub struct Preemption {
    pub seed: u64,
    pub one_in: u64,
    pub longest_ns: u64,
}

struct Task {
    cpu: u32,
    time: u64,
    /// Since when it has its CPU; how long it had it before; the same as its scheduler counts it.
    since: u64,
    cpu_ns: u64,
    fair_ns: u64,
    /// It may go to another CPU.
    floats: bool,
    /// Locks that it holds.
    locks: u32,
    /// Blocks so far: tells a timer of an earlier one.
    blocks: u32,
    name: String,
    fiber: Option<Fiber>,
    state: TaskState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TaskState {
    Ready,
    Running,
    /// Waits for a lock that was not handed to it yet, or for a signal.
    Blocked,
    /// The lock that it waited for is its own now.
    Granted,
    Ended,
}

struct WorldState {
    lines: Lines,
    locks: Vec<LockState>,
    free_locks: Vec<LockId>,
    tasks: Vec<Task>,
    /// Tasks that have their CPU, and can go on.
    ready: BinaryHeap<Reverse<(u64, TaskId)>>,
    cpus: Vec<Cpu>,
    /// Tasks that may go to another CPU, and how many of them wait for theirs.
    floating: u32,
    floating_waiting: u32,
    timers: BinaryHeap<Reverse<Timer>>,
    current: Option<TaskId>,
    /// When the last task of the last run ended: where the clock of new tasks starts.
    ended_at: u64,
    preemption: Option<(Random, Preemption)>,
    waiting: Waiting,
    /// A line that is written in each hold of locks that guard the type of this name.
    counted: Option<(&'static str, LineId)>,
    profile: Profile,
}

/// For a task that blocked for the `blocks`-th time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Timer {
    at: u64,
    task: TaskId,
    blocks: u32,
    what: TimerOf,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TimerOf {
    /// It has spun for a lock long enough, and gives up its CPU.
    Spin,
    Sleep,
}

thread_local! {
    static WORLD: RefCell<Option<WorldState>> = const { RefCell::new(None) };
}

/// A world, for as long as this lives.
pub struct World(());

impl World {
    pub fn install(machine: &Machine) -> World {
        let preemption = machine.preemption.map(|p| (Random::new(p.seed), p));
        let state = WorldState {
            lines: Lines::new(machine.cpus_per_socket),
            locks: Vec::new(),
            free_locks: Vec::new(),
            tasks: Vec::new(),
            ready: BinaryHeap::new(),
            cpus: Vec::new(),
            floating: 0,
            floating_waiting: 0,
            timers: BinaryHeap::new(),
            current: None,
            ended_at: 0,
            preemption,
            waiting: machine.waiting,
            counted: None,
            profile: Profile::default(),
        };
        let before = WORLD.replace(Some(state));
        assert!(before.is_none(), "one world at a time");
        World(())
    }

    /// One counter for all locks that guard the type of this name is written in each hold of one.
    pub fn counts_in_holds_of(&self, name: &'static str) {
        with(|s| s.counted = Some((name, s.lines.make())));
    }

    /// What locks and atomics have cost so far.
    pub fn profile(&self) -> Profile {
        with(|s| std::mem::take(&mut s.profile))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The fibers end outside of the borrow: what they still hold may be locks of this world.
        drop(WORLD.replace(None));
    }
}

fn with<R>(f: impl FnOnce(&mut WorldState) -> R) -> R {
    WORLD.with_borrow_mut(|state| f(state.as_mut().expect("locks and atomics of virtual CPUs need a world")))
}

/// A task on a CPU, which it shares with others that are there, from now on.
pub fn spawn(cpu: u32, name: String, body: impl FnOnce() + 'static) {
    spawn_task(cpu, name, false, body);
}

/// The same for a task that goes to an idle CPU where its own is busy.
pub fn spawn_floating(cpu: u32, name: String, body: impl FnOnce() + 'static) {
    spawn_task(cpu, name, true, body);
}

fn spawn_task(cpu: u32, name: String, floats: bool, body: impl FnOnce() + 'static) {
    let fiber = Some(Fiber::new(body));
    with(|s| {
        s.lines.add_cpu(cpu);
        let time = s.current.map_or(s.ended_at, |task| s.tasks[task as usize].time);
        let id = s.tasks.len() as TaskId;
        let cpus = s.cpus.len().max(cpu as usize + 1);
        s.cpus.resize_with(cpus, Cpu::default);
        s.cpus[cpu as usize].tasks += 1;
        s.floating += u32::from(floats);
        let (since, cpu_ns, fair_ns, blocks) = (time, 0, s.cpus[cpu as usize].least_ns, 0);
        let (state, locks) = (TaskState::Ready, 0);
        s.tasks.push(Task { cpu, time, since, cpu_ns, fair_ns, floats, locks, blocks, name, fiber, state });
        s.enqueue(id);
    });
}

/// Run all tasks to their ends. Returns how long that took, to the end of the last one.
pub fn run() -> u64 {
    let began = with(|s| s.ended_at);
    while let Some((id, mut fiber)) = with(WorldState::take_earliest) {
        let ended = fiber.resume();
        with(|s| {
            s.current = None;
            let task = &mut s.tasks[id as usize];
            if ended {
                task.state = TaskState::Ended;
                s.ended_at = s.ended_at.max(task.time);
                let at = task.time;
                s.leave_cpu(id, at);
            } else {
                task.fiber = Some(fiber);
            }
        });
    }
    with(|s| {
        let stuck: Vec<&str> =
            s.tasks.iter().filter(|t| t.state != TaskState::Ended).map(|t| t.name.as_str()).collect();
        assert!(stuck.is_empty(), "nobody can run, and these wait: {}", stuck.join(", "));
        s.tasks.clear();
        s.cpus.clear();
        (s.floating, s.floating_waiting) = (0, 0);
        s.timers.clear();
        s.ended_at - began
    })
}

/// The virtual time of the task that runs; 0 outside of tasks.
pub fn now() -> u64 {
    with(|s| s.current.map_or(0, |task| s.tasks[task as usize].time))
}

/// Let time pass for this task, while it touches nothing that is shared.
pub fn spend(ns: u64) {
    with(|s| {
        if let Some(task) = s.current {
            s.tasks[task as usize].time += ns;
        }
    });
}

/// Let time pass, and let tasks that are earlier now run first.
pub fn step(ns: u64) {
    spend(ns);
    become_earliest();
}

pub fn sleep_until(time: u64) {
    if now() >= time {
        become_earliest();
        return;
    }
    with(|s| {
        let id = s.current.expect("only tasks sleep");
        s.block(id);
        let (at, blocks) = (s.tasks[id as usize].time, s.tasks[id as usize].blocks);
        s.timers.push(Reverse(Timer { at: time, task: id, blocks, what: TimerOf::Sleep }));
        s.leave_cpu(id, at);
    });
    switch::suspend();
}

pub fn sleep(ns: u64) {
    sleep_until(now() + ns);
}

/// Let another task of this CPU have it, if one waits for it.
pub fn give_way() {
    let gave_way = with(|s| {
        let id = s.current?;
        let cpu = s.tasks[id as usize].cpu as usize;
        if s.cpus[cpu].waiting.is_empty() {
            return None;
        }
        s.preempt(id);
        Some(())
    });
    if gave_way.is_some() {
        switch::suspend();
    }
}

/// Time for which tasks of this run have had their CPUs so far.
pub fn cpu_time() -> u64 {
    with(|s| {
        let running = |task: &Task, id| s.cpus[task.cpu as usize].running == Some(id);
        let tasks = s.tasks.iter().enumerate();
        tasks
            .map(|(id, t)| {
                t.cpu_ns + if running(t, id as TaskId) { t.time.saturating_sub(t.since) } else { 0 }
            })
            .sum()
    })
}

impl WorldState {
    fn take_earliest(&mut self) -> Option<(TaskId, Fiber)> {
        loop {
            let until = self.ready.peek().map_or(u64::MAX, |Reverse((time, _))| *time);
            if !self.fire_a_timer(until) {
                break;
            }
        }
        let Reverse((_, id)) = self.ready.pop()?;
        self.current = Some(id);
        let task = &mut self.tasks[id as usize];
        if task.state == TaskState::Ready {
            task.state = TaskState::Running;
        }
        Some((id, task.fiber.take().expect("a task that can run has its fiber")))
    }

    /// The running task and its time, or None outside of tasks.
    fn running_task(&mut self) -> Option<(&mut Task, &mut Lines, &mut Profile)> {
        let task = &mut self.tasks[self.current? as usize];
        Some((task, &mut self.lines, &mut self.profile))
    }

    fn access(
        &mut self,
        kind: &'static str,
        site: &'static Location<'static>,
        access: impl FnOnce(&mut Lines, u32, u64) -> Access,
    ) {
        let Some((task, lines, profile)) = self.running_task() else { return };
        let before = task.time;
        let access = access(lines, task.cpu, before);
        task.time = access.done_at;
        let counts = profile.at(kind, site);
        counts.uses += 1;
        if access.moved {
            counts.waits += u64::from(access.waited > 0);
            counts.wait_ns += access.waited;
            counts.move_ns += access.done_at - before - access.waited;
        }
    }

    /// This task becomes able to run, not before `time`.
    fn make_ready(&mut self, id: TaskId, time: u64, state: TaskState) {
        let task = &mut self.tasks[id as usize];
        assert!(task.state == TaskState::Blocked, "{} is woken but does not sleep", task.name);
        task.time = task.time.max(time);
        task.state = state;
        if self.cpus[task.cpu as usize].running == Some(id) {
            self.ready.push(Reverse((task.time, id)));
        } else {
            self.enqueue(id);
        }
    }

    // ---- who has a CPU --------------------------------------------------------------------------------

    /// It is able to run: gives it its CPU, or lets it wait for that.
    fn enqueue(&mut self, id: TaskId) {
        if self.tasks[id as usize].floats {
            self.go_to_idle_cpu(id);
        }
        let cpu = self.tasks[id as usize].cpu as usize;
        let Some(running) = self.cpus[cpu].running else { return self.start(id) };
        let running = &self.tasks[running as usize];
        let running_ns = running.fair_ns + running.time.saturating_sub(running.since);
        let task = &mut self.tasks[id as usize];
        task.fair_ns = self.cpus[cpu].fair_start(task.fair_ns);
        self.cpus[cpu].add_waiting(id, task.fair_ns, running_ns);
        self.floating_waiting += u32::from(task.floats);
    }

    /// If its own CPU is busy and another one is not, it goes to the idle one of its socket with the least
    /// number, or to any.
    fn go_to_idle_cpu(&mut self, id: TaskId) {
        let cpu = self.tasks[id as usize].cpu;
        let idle = |cpu: u32| self.cpus[cpu as usize].running.is_none();
        if idle(cpu) {
            return;
        }
        let all = || 0..self.cpus.len() as u32;
        let near = all().find(|other| idle(*other) && self.lines.are_near(cpu, *other));
        if let Some(other) = near.or_else(|| all().find(|other| idle(*other))) {
            self.move_to(id, other);
        }
    }

    fn move_to(&mut self, id: TaskId, cpu: u32) {
        let task = &mut self.tasks[id as usize];
        self.cpus[task.cpu as usize].tasks -= 1;
        self.cpus[cpu as usize].tasks += 1;
        (task.cpu, task.fair_ns) = (cpu, self.cpus[cpu as usize].least_ns);
    }

    /// This CPU has nothing to do from `at` on: a task that waits elsewhere and may come, comes.
    fn pull_to(&mut self, cpu: u32, at: u64) {
        if self.floating_waiting == 0 {
            return;
        }
        let floats = |(_, id): &(u64, TaskId)| self.tasks[*id as usize].floats;
        let has_one = |other: &u32| self.cpus[*other as usize].waiting.iter().any(floats);
        let all = || 0..self.cpus.len() as u32;
        let near = all().find(|other| self.lines.are_near(cpu, *other) && has_one(other));
        let Some(other) = near.or_else(|| all().find(has_one)) else { return };
        let waiting = &self.cpus[other as usize].waiting;
        let place = waiting.iter().position(floats).expect("it has one");
        let (_, id) = self.cpus[other as usize].waiting.swap_remove(place);
        self.floating_waiting -= 1;
        self.move_to(id, cpu);
        let task = &mut self.tasks[id as usize];
        task.time = task.time.max(at);
        self.start(id);
    }

    fn give_to_next(&mut self, next: Option<TaskId>, cpu: u32, at: u64) {
        match next {
            Some(next) => {
                self.floating_waiting -= u32::from(self.tasks[next as usize].floats);
                self.start(next);
            }
            None => self.pull_to(cpu, at),
        }
    }

    fn start(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        let cpu = &mut self.cpus[task.cpu as usize];
        task.since = task.time.max(cpu.free_at);
        task.time = task.since + cpu.give_to(id);
        self.ready.push(Reverse((task.time, id)));
    }

    /// It has its CPU no more from `at` on. Nothing, if it had lost it before.
    fn leave_cpu(&mut self, id: TaskId, at: u64) {
        let task = &mut self.tasks[id as usize];
        let cpu = &mut self.cpus[task.cpu as usize];
        if cpu.running != Some(id) {
            return;
        }
        let had = at.saturating_sub(task.since);
        task.cpu_ns += had;
        task.fair_ns += had;
        let (next, cpu) = (cpu.leave(task.fair_ns, at), task.cpu);
        self.give_to_next(next, cpu, at);
    }

    /// Another task of its CPU has that, and this one waits for it.
    fn preempt(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        task.state = TaskState::Ready;
        let had = task.time.saturating_sub(task.since);
        task.cpu_ns += had;
        task.fair_ns += had;
        let cpu = &mut self.cpus[task.cpu as usize];
        cpu.add_waiting(id, task.fair_ns, 0);
        self.floating_waiting += u32::from(task.floats);
        let (next, cpu, at) = (cpu.leave(task.fair_ns, task.time), task.cpu, task.time);
        self.give_to_next(next, cpu, at);
    }

    fn must_give_way(&self, id: TaskId) -> bool {
        let task = &self.tasks[id as usize];
        if self.waiting == Waiting::Spins && task.locks > 0 {
            return false;
        }
        let cpu = &self.cpus[task.cpu as usize];
        !cpu.waiting.is_empty() && (cpu.preempt || task.time.saturating_sub(task.since) >= SLICE_NS)
    }

    fn block(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        task.state = TaskState::Blocked;
        task.blocks += 1;
    }

    /// The first timer, if it is due before `until`. False: it is not.
    fn fire_a_timer(&mut self, until: u64) -> bool {
        if self.timers.peek().is_none_or(|Reverse(timer)| timer.at >= until) {
            return false;
        }
        let Some(Reverse(timer)) = self.timers.pop() else { return false };
        let task = &self.tasks[timer.task as usize];
        if task.state == TaskState::Blocked && task.blocks == timer.blocks {
            match timer.what {
                TimerOf::Spin => self.leave_cpu(timer.task, timer.at),
                TimerOf::Sleep => self.make_ready(timer.task, timer.at, TaskState::Ready),
            }
        }
        true
    }
}

/// Wait until no task that can run has an earlier time: needed before each operation on shared state. False
/// outside of tasks.
fn become_earliest() -> bool {
    let later = with(|s| {
        let id = s.current?;
        if let Some((random, preemption)) = &mut s.preemption
            && random.one_in(preemption.one_in)
        {
            s.tasks[id as usize].time += random.below(preemption.longest_ns);
        }
        let time = s.tasks[id as usize].time;
        while s.fire_a_timer(time) {}
        if s.must_give_way(id) {
            s.preempt(id);
            return Some(true);
        }
        let later = s.ready.peek().is_some_and(|Reverse(first)| *first < (time, id));
        if later {
            s.tasks[id as usize].state = TaskState::Ready;
            s.ready.push(Reverse((time, id)));
        }
        Some(later)
    });
    if later == Some(true) {
        switch::suspend();
    }
    later.is_some()
}

// ---- for locks, atomics and signals -----------------------------------------------------------------------

pub(crate) fn make_line() -> LineId {
    with(|s| s.lines.make())
}
pub(crate) fn make_line_for(bytes: u32, by: &'static Location<'static>) -> LineId {
    with(|s| s.lines.make_for(bytes, by))
}

pub(crate) fn make_lines(lines: u32) -> LineId {
    with(|s| s.lines.make_many(lines))
}
/// The next thing that is made begins a cache line: the alignment of a type.
pub fn align() {
    with(|s| s.lines.align());
}

/// A plain store to a line that a lock guards, by who holds that.
pub(crate) fn store(line: LineId, site: &'static Location<'static>) {
    if !std::thread::panicking() {
        with(|s| s.access(DATA, site, |lines, cpu, now| lines.store(line, cpu, now)));
    }
}

pub(crate) fn read(line: LineId, site: &'static Location<'static>) {
    if become_earliest() {
        with(|s| s.access("", site, |lines, cpu, now| lines.read(line, cpu, now)));
    }
}
pub(crate) fn write(line: LineId, site: &'static Location<'static>) {
    // While a panic unwinds, guards and pointers are dropped: that must not switch tasks.
    if !std::thread::panicking() && become_earliest() {
        with(|s| s.access("", site, |lines, cpu, now| lines.write(line, cpu, now)));
    }
}

/// A lock that guards so many bytes.
pub(crate) fn make_lock(bytes: usize) -> LockId {
    with(|s| {
        let line = s.lines.make();
        let data = (bytes > BESIDE_LOCK_BYTES).then(|| s.lines.make());
        match s.free_locks.pop() {
            Some(id) => {
                s.locks[id as usize] = LockState::new(line, data);
                id
            }
            None => {
                s.locks.push(LockState::new(line, data));
                (s.locks.len() - 1) as LockId
            }
        }
    })
}

pub(crate) fn drop_lock(id: LockId) {
    if !std::thread::panicking() {
        with(|s| s.free_locks.push(id));
    }
}

pub(crate) fn try_lock(id: LockId, mode: Mode, kind: &'static str, site: &'static Location<'static>) -> bool {
    become_earliest();
    with(|s| {
        let line = s.locks[id as usize].line;
        s.access(kind, site, |lines, cpu, now| lines.write(line, cpu, now));
        let now = s.running_task().map_or(0, |(task, ..)| task.time);
        let lock = &mut s.locks[id as usize];
        let taken = lock.try_take(mode);
        if taken {
            s.begin_hold(id, mode, kind, now, site);
        }
        taken
    })
}

pub(crate) fn lock(id: LockId, mode: Mode, kind: &'static str, site: &'static Location<'static>) {
    if try_lock(id, mode, kind, site) {
        return;
    }
    let mut first = true;
    let start = now();
    loop {
        with(|s| {
            let task = s.current.expect("a lock is held that is wanted outside of tasks");
            s.block(task);
            let Task { cpu, time: since, blocks, .. } = s.tasks[task as usize];
            let shares_cpu = s.cpus[cpu as usize].tasks > 1 || s.floating > 0;
            if shares_cpu && s.waiting == Waiting::Sleeps {
                let at = since + cost::SPIN_NS;
                s.timers.push(Reverse(Timer { at, task, blocks, what: TimerOf::Spin }));
            }
            let waiter = Waiter { task, mode, since };
            let waiters = &mut s.locks[id as usize].waiters;
            // A task that was woken for it and found it taken does not lose its turn.
            if first { waiters.push_back(waiter) } else { waiters.push_front(waiter) }
        });
        first = false;
        switch::suspend();
        let granted = with(|s| {
            let task = s.current.expect("a task was resumed");
            std::mem::replace(&mut s.tasks[task as usize].state, TaskState::Running) == TaskState::Granted
        });
        if granted || with(|s| s.locks[id as usize].grant(mode)) {
            break;
        }
    }
    with(|s| {
        let (task, _, profile) = s.running_task().expect("a task was resumed");
        let counts = profile.at(kind, site);
        counts.waits += 1;
        counts.wait_ns += task.time - start;
        let now = task.time;
        s.begin_hold(id, mode, kind, now, site);
    });
}

pub(crate) fn unlock(id: LockId, mode: Mode, kind: &'static str) {
    if std::thread::panicking() {
        return;
    }
    become_earliest();
    with(|s| {
        let lock = &s.locks[id as usize];
        let (line, since, held_at) = (lock.line, lock.held_since, lock.held_at);
        // Counted at the place where it was taken; of a shared lock only the last such place is known.
        let site = held_at.expect("a lock that is given back was taken");
        s.access(kind, site, |lines, cpu, now| lines.write(line, cpu, now));
        if let Some((task, _, profile)) = s.running_task() {
            let counts = profile.at(kind, site);
            counts.uses -= 1;
            if mode == Mode::Alone {
                counts.held_ns += task.time.saturating_sub(since);
            }
        }
        s.locks[id as usize].give_back(mode);
        s.count_lock(-1);
        s.hand_on_lock(id);
    });
}

impl WorldState {
    fn begin_hold(
        &mut self,
        id: LockId,
        mode: Mode,
        kind: &'static str,
        now: u64,
        site: &'static Location<'static>,
    ) {
        let lock = &mut self.locks[id as usize];
        (lock.held_since, lock.held_at) = (now, Some(site));
        if let Some(data) = lock.data.filter(|_| mode == Mode::Alone) {
            self.access(DATA, site, |lines, cpu, now| lines.store(data, cpu, now));
        }
        if let Some((_, line)) = self.counted.filter(|(name, _)| kind.ends_with(name)) {
            self.access(DATA, site, |lines, cpu, now| lines.store(line, cpu, now));
        }
        self.count_lock(1);
    }

    /// The running task has one lock more, or less.
    fn count_lock(&mut self, change: i32) {
        if let Some(task) = self.current {
            let locks = &mut self.tasks[task as usize].locks;
            *locks = locks.checked_add_signed(change).expect("a task gives back what it holds");
        }
    }

    /// A lock came free: hand it to those whose turn it is.
    fn hand_on_lock(&mut self, id: LockId) {
        let Some((me, ..)) = self.running_task() else { return };
        let (mut now, cpu) = (me.time, me.cpu);
        while let Some(waiter) = self.locks[id as usize].waiters.front() {
            if !self.locks[id as usize].is_free_for(waiter.mode) {
                break;
            }
            let (task, mode, waiter_since) = (waiter.task, waiter.mode, waiter.since);
            let spins = self.waiting == Waiting::Spins || now.saturating_sub(waiter_since) <= cost::SPIN_NS;
            self.locks[id as usize].waiters.pop_front();
            if spins {
                self.locks[id as usize].grant(mode);
                let way = self.lines.way(cpu, self.tasks[task as usize].cpu);
                self.make_ready(task, now + way, TaskState::Granted);
                continue;
            }
            // It sleeps: wake it, and leave the lock to whoever comes first.
            self.leave_cpu(task, waiter_since + cost::SPIN_NS);
            now += cost::WAKE_NS;
            self.make_ready(task, now + cost::WAKE_LATENCY_NS, TaskState::Ready);
            if mode == Mode::Alone {
                break;
            }
        }
        if let Some((me, ..)) = self.running_task() {
            me.time = now;
        }
    }
}

/// The task that runs.
pub fn current_task() -> TaskId {
    with(|s| s.current.expect("only tasks wait"))
}

/// The counter of `counts_in_holds_of` is written, with no lock held.
#[track_caller]
pub fn count() {
    become_earliest();
    let site = Location::caller();
    with(|s| {
        if let Some((_, line)) = s.counted {
            s.access(DATA, site, |lines, cpu, now| lines.store(line, cpu, now));
        }
    });
}

/// The CPU on which it runs.
pub fn current_cpu() -> u32 {
    with(|s| s.current.map_or(0, |task| s.tasks[task as usize].cpu))
}

/// Sleep until another task calls `wake`. The caller has just noted where that task will find it, with no
/// operation in between.
pub fn block() {
    with(|s| {
        let task = s.current.expect("only tasks wait");
        s.block(task);
        let at = s.tasks[task as usize].time;
        s.leave_cpu(task, at);
    });
    switch::suspend();
}

/// Wake a task that sleeps in `block`; it runs after the latency.
pub fn wake(task: TaskId, latency: u64) {
    let now = now();
    with(|s| s.make_ready(task, now + latency, TaskState::Ready));
}

/// Does the task share the CPU of the one that runs?
pub fn is_on_my_cpu(task: TaskId) -> bool {
    with(|s| s.current.is_some_and(|me| s.tasks[me as usize].cpu == s.tasks[task as usize].cpu))
}

/// Do something that takes no time and yields to nobody: for looking at what is going on.
pub fn untimed<R>(look: impl FnOnce() -> R) -> R {
    let task = with(|s| s.current.take());
    let result = look();
    with(|s| s.current = task);
    result
}
