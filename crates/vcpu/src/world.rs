//! The world: tasks, their clocks, who runs next; the lines, locks and profile that belong to it.
//!
//! ```text
//!   op ─▶ preempted? ─▶ later than another task? ──yes─▶ into the queue, suspend … resumed as the earliest
//!                              └─no──▶ do it, add its cost to my clock
//! ```
//!
//! Invariant: an operation on shared state is done by the task whose time is the least of all that can run. So operations
//! happen in the order of virtual time, and equal times in the order of task numbers.
//!
//! A world is installed for its thread; locks and atomics that are made meanwhile belong to it, and must be dropped before
//! it. What is done with them outside of tasks takes no time.

use crate::cost;
use crate::lines::{Access, LineId, Lines};
use crate::locks::{LockId, LockState, Mode, TaskId, Waiter};
use crate::profile::Profile;
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
}

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

struct State {
    lines: Lines,
    locks: Vec<LockState>,
    free_locks: Vec<LockId>,
    tasks: Vec<Task>,
    ready: BinaryHeap<Reverse<(u64, TaskId)>>,
    current: Option<TaskId>,
    /// When the last task of the last run ended: where the clock of new tasks starts.
    ended_at: u64,
    preemption: Option<(Random, Preemption)>,
    profile: Profile,
}

thread_local! {
    static WORLD: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// A world, for as long as this lives.
pub struct World(());

impl World {
    pub fn install(machine: &Machine) -> World {
        let preemption = machine.preemption.map(|p| (Random::new(p.seed), p));
        let state = State {
            lines: Lines::new(machine.cpus_per_socket),
            locks: Vec::new(),
            free_locks: Vec::new(),
            tasks: Vec::new(),
            ready: BinaryHeap::new(),
            current: None,
            ended_at: 0,
            preemption,
            profile: Profile::default(),
        };
        let before = WORLD.replace(Some(state));
        assert!(before.is_none(), "one world at a time");
        World(())
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

fn with<R>(f: impl FnOnce(&mut State) -> R) -> R {
    WORLD.with_borrow_mut(|state| f(state.as_mut().expect("locks and atomics of virtual CPUs need a world")))
}

/// A task on a CPU of its own, from now on.
pub fn spawn(cpu: u32, name: String, body: impl FnOnce() + 'static) {
    let fiber = Some(Fiber::new(body));
    with(|s| {
        s.lines.add_cpu(cpu);
        let time = s.current.map_or(s.ended_at, |task| s.tasks[task as usize].time);
        let id = s.tasks.len() as TaskId;
        s.tasks.push(Task { cpu, time, name, fiber, state: TaskState::Ready });
        s.ready.push(Reverse((time, id)));
    });
}

/// Run all tasks to their ends. Returns how long that took, to the end of the last one.
pub fn run() -> u64 {
    let began = with(|s| s.ended_at);
    while let Some((id, mut fiber)) = with(State::next) {
        let ended = fiber.resume();
        with(|s| {
            s.current = None;
            let task = &mut s.tasks[id as usize];
            if ended {
                task.state = TaskState::Ended;
                s.ended_at = s.ended_at.max(task.time);
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
        s.ended_at - began
    })
}

/// The virtual time of the task that runs; 0 outside of tasks.
pub fn now() -> u64 {
    with(|s| s.current.map_or(0, |task| s.tasks[task as usize].time))
}

/// Time passes for this task, in which it touches nothing that is shared.
pub fn spend(ns: u64) {
    with(|s| {
        if let Some(task) = s.current {
            s.tasks[task as usize].time += ns;
        }
    });
}

/// Time passes, and others have their turn.
pub fn step(ns: u64) {
    spend(ns);
    arrive();
}

pub fn sleep_until(time: u64) {
    with(|s| {
        let task = s.current.expect("only tasks sleep");
        let task = &mut s.tasks[task as usize];
        task.time = task.time.max(time);
    });
    arrive();
}

impl State {
    fn next(&mut self) -> Option<(TaskId, Fiber)> {
        let Reverse((_, id)) = self.ready.pop()?;
        self.current = Some(id);
        let task = &mut self.tasks[id as usize];
        if task.state == TaskState::Ready {
            task.state = TaskState::Running;
        }
        Some((id, task.fiber.take().expect("a task that can run has its fiber")))
    }

    /// The running task and its time, or None outside of tasks.
    fn me(&mut self) -> Option<(&mut Task, &mut Lines, &mut Profile)> {
        let task = &mut self.tasks[self.current? as usize];
        Some((task, &mut self.lines, &mut self.profile))
    }

    fn access(
        &mut self,
        kind: &'static str,
        site: &'static Location<'static>,
        access: impl FnOnce(&mut Lines, u32, u64) -> Access,
    ) {
        let Some((task, lines, profile)) = self.me() else { return };
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
        self.ready.push(Reverse((task.time, id)));
    }
}

/// Before an operation on shared state: be the earliest. False outside of tasks.
fn arrive() -> bool {
    let later = with(|s| {
        let id = s.current?;
        if let Some((random, preemption)) = &mut s.preemption
            && random.one_in(preemption.one_in)
        {
            s.tasks[id as usize].time += random.below(preemption.longest_ns);
        }
        let time = s.tasks[id as usize].time;
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

// ---- for locks, atomics and signals -----------------------------------------------------------------------------

pub(crate) fn make_line() -> LineId {
    with(|s| s.lines.make())
}
pub(crate) fn make_line_for(bytes: u32, by: &'static Location<'static>) -> LineId {
    with(|s| s.lines.make_for(bytes, by))
}

pub(crate) fn read(line: LineId, site: &'static Location<'static>) {
    if arrive() {
        with(|s| s.access("", site, |lines, cpu, now| lines.read(line, cpu, now)));
    }
}
pub(crate) fn write(line: LineId, site: &'static Location<'static>) {
    // While a panic unwinds, guards and pointers are dropped: that must not switch tasks.
    if !std::thread::panicking() && arrive() {
        with(|s| s.access("", site, |lines, cpu, now| lines.write(line, cpu, now)));
    }
}

pub(crate) fn make_lock() -> LockId {
    with(|s| {
        let line = s.lines.make();
        match s.free_locks.pop() {
            Some(id) => {
                s.locks[id as usize] = LockState::new(line);
                id
            }
            None => {
                s.locks.push(LockState::new(line));
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
    arrive();
    with(|s| {
        let line = s.locks[id as usize].line;
        s.access(kind, site, |lines, cpu, now| lines.write(line, cpu, now));
        let now = s.me().map_or(0, |(task, ..)| task.time);
        let lock = &mut s.locks[id as usize];
        let taken = lock.try_take(mode);
        if taken {
            (lock.held_since, lock.held_at) = (now, Some(site));
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
            s.tasks[task as usize].state = TaskState::Blocked;
            let since = s.tasks[task as usize].time;
            let waiter = Waiter { task, mode, since };
            let waiters = &mut s.locks[id as usize].waiters;
            // Who was woken for it and found it taken does not lose his turn.
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
        let (task, _, profile) = s.me().expect("a task was resumed");
        let counts = profile.at(kind, site);
        counts.waits += 1;
        counts.wait_ns += task.time - start;
        let now = task.time;
        let lock = &mut s.locks[id as usize];
        (lock.held_since, lock.held_at) = (now, Some(site));
    });
}

pub(crate) fn unlock(id: LockId, mode: Mode, kind: &'static str) {
    if std::thread::panicking() {
        return;
    }
    arrive();
    with(|s| {
        let lock = &s.locks[id as usize];
        let (line, since, held_at) = (lock.line, lock.held_since, lock.held_at);
        // Booked where it was taken; a shared lock has many such places, and only the last one is known.
        let site = held_at.expect("a lock that is given back was taken");
        s.access(kind, site, |lines, cpu, now| lines.write(line, cpu, now));
        if let Some((task, _, profile)) = s.me() {
            let counts = profile.at(kind, site);
            counts.uses -= 1;
            if mode == Mode::Alone {
                counts.held_ns += task.time.saturating_sub(since);
            }
        }
        s.locks[id as usize].give_back(mode);
        s.pass_on(id);
    });
}

impl State {
    /// A lock came free: hand it to those whose turn it is.
    fn pass_on(&mut self, id: LockId) {
        let Some((me, ..)) = self.me() else { return };
        let (mut now, cpu) = (me.time, me.cpu);
        while let Some(waiter) = self.locks[id as usize].waiters.front() {
            if !self.locks[id as usize].is_free_for(waiter.mode) {
                break;
            }
            let (task, mode) = (waiter.task, waiter.mode);
            let spins = now.saturating_sub(waiter.since) <= cost::SPIN_NS;
            self.locks[id as usize].waiters.pop_front();
            if spins {
                self.locks[id as usize].grant(mode);
                let way = self.lines.way(cpu, self.tasks[task as usize].cpu);
                self.make_ready(task, now + way, TaskState::Granted);
                continue;
            }
            // It sleeps: wake it, and leave the lock to whoever comes first.
            now += cost::WAKE_NS;
            self.make_ready(task, now + cost::WAKE_LATENCY_NS, TaskState::Ready);
            if mode == Mode::Alone {
                break;
            }
        }
        if let Some((me, ..)) = self.me() {
            me.time = now;
        }
    }
}

/// The task that runs.
pub fn current_task() -> TaskId {
    with(|s| s.current.expect("only tasks wait"))
}

/// Sleep until somebody calls `wake`: to be called by who has just told him so, with no operation in between.
pub fn block() {
    with(|s| {
        let task = s.current.expect("only tasks wait");
        s.tasks[task as usize].state = TaskState::Blocked;
    });
    switch::suspend();
}

/// Wake a task that sleeps in `block`; it runs after the latency.
pub fn wake(task: TaskId, latency: u64) {
    let now = now();
    with(|s| s.make_ready(task, now + latency, TaskState::Ready));
}

/// Do something that takes no time and yields to nobody: for looking at what is going on.
pub fn untimed<R>(look: impl FnOnce() -> R) -> R {
    let task = with(|s| s.current.take());
    let result = look();
    with(|s| s.current = task);
    result
}
