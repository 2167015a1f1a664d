//! Following the changes of an address space: fork, remap, remove, unmap; and the agent's own calls.
//!
//! ```text
//!   gate (events) ─ MOVE lock ─ abort=1 ─ read ─ no event? abort=0 ─ unlock ─ batch lock ─ process ─ abort=0
//! ```
//!
//! Reading an event lets the changing thread run on at once. So from before the read until the end of
//! processing no fill may happen (the gate), no MOVE may start (the control lock, then the abort mark), and
//! the batch in flight is waited for (the batch lock): its pages are EVICTING, and an event never meets an
//! EVICTING page. Events are processed before the faults that came with them.
//!
//! *Order.* The second of two changes by two threads may be told first. That matters where memory moves or
//! the process forks. So then all is read until no change is under way (`is_changing`: until then no fill
//! succeeds either, so nobody loses by it), and what is registered where in the end says what came first:
//! `order/`. If something has changed by the time that this was looked at, all begins anew. Nothing is
//! registered while anything is changing.
//!
//! ```text
//!   told                              read on?
//!   REMAP                             yes
//!   FORK                              unless the process has one thread: then nothing else can be under way
//!   UNMAP, while a fork is under way  yes: the fork may have come before it, and be told later (the agent
//!                                     says that one is under way; it does not see a raw clone or fork)
//! ```
//!
//! Not followed: of a raw clone by one of several threads, an UNMAP that was read before the FORK and made
//! after it. Memory that was swapped out there reads as zeros in the child.

use crate::faults::fork;
use crate::faults::order::change::Change;
use crate::faults::order::moves;
use crate::faults::removals;
use crate::faults::shared;
use crate::proc;
use crate::process::Process;
use crate::process::control::Forbidden;
use crate::process::forking::Disturbed;
use crate::run::Run;
use crate::times::{CHANGE_ENDS, CHANGE_STEP, MOVE_LOCK_AGAIN};
use memspill_engine::units::{CpuId, PAGE_SIZE, Vpn};
use memspill_uffd::userfaultfd::{Event, Uffd};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

/// Read messages with MOVEs excluded. If there is an event among them, no further MOVE starts until it was
/// processed. False: nothing to do.
pub fn read_locked(run: &Run, process: &Process, messages: &mut Vec<Event>) -> bool {
    match process.memory.port.read_faults(messages) {
        Ok(Some(read)) => return read > 0,
        Ok(None) => {}
        Err(error) => return cannot_follow(run, process, &error),
    }
    let seen = removals::look(run, process);
    let evictor = process.memory.attached_agent().map(|agent| &agent.evictor);
    let control = evictor.map(|evictor| &evictor.control);
    // No MOVE can happen then, and the evictor may hold the lock where it stands (`process/evictor.rs`).
    let cut_off = evictor.is_some_and(|evictor| evictor.is_cut_off());
    let locked = !cut_off && control.is_some_and(|control| control.lock());
    // An agent that is gone holds no MOVE, whatever the lock says. One that is there but holds the lock for
    // long stands still in the middle of a MOVE, and is cut off soon: come back later, others have faults
    // too.
    if control.is_some() && !cut_off && !locked && !process.is_dying() {
        std::thread::sleep(MOVE_LOCK_AGAIN);
        return false;
    }
    // Before the read: whoever ends a batch must see that there is, or may be, an event.
    control.inspect(|control| control.forbid(Forbidden::Event));
    let result = match &seen {
        Some(seen) => removals::read(process, seen, messages),
        None => process.memory.port.read(messages),
    };
    if let Some(control) = control {
        if messages.iter().all(|m| matches!(m, Event::Fault { .. })) {
            control.allow(Forbidden::Event);
        }
        if locked {
            control.unlock();
        }
    }
    seen.iter().for_each(|seen| removals::check(run, process, seen, messages));
    match result {
        Ok(read) => read > 0,
        Err(error) => cannot_follow(run, process, &error),
    }
}

/// The process, or its fork, would wait for ever.
fn cannot_follow(run: &Run, process: &Process, error: &std::io::Error) -> bool {
    let pid = process.memory.pid();
    run.fail(format!("cannot follow process {pid}: reading its events: {error}"));
    false
}

/// Process the events among the messages. The caller is inside the gate.
pub fn process_events(run: &Arc<Run>, cpu: CpuId, process: &Arc<Process>, messages: &mut Vec<Event>) {
    let batch = process.hold_batch();
    let mut told = Told::default();
    let mut faults = Vec::new();
    let mut settled = !may_be_out_of_order(process, messages) || read_until_settled(run, process, messages);
    let begun = Instant::now();
    let changes = loop {
        faults.extend(messages.drain(..).filter_map(|message| told.take_in(message)));
        if let Some(changes) = told.changes_as_made(process) {
            break changes;
        }
        if begun.elapsed() > CHANGE_ENDS {
            settled = false;
            break told.changes.clone();
        }
        settled &= read_until_settled(run, process, messages);
    };
    process.fork.note(changes.iter().map(|change| match *change {
        Change::Unmap { start, end } => Disturbed::Unmapped((start, end)),
        Change::Remove { start, end } => Disturbed::Dropped((start, end)),
        Change::Remap { from, to, len } => Disturbed::Moved((from, from + len), to),
    }));
    // Children have what their parent had before the changes or after them: which, they are asked later.
    let shared_now = told.concerns_shared(process).then(|| shared::now_mapped(run, process, &changes));
    if let Some(now) = &shared_now {
        let before = shared::may_be_mapped(process.memory.shared.list(), &changes);
        process.memory.shared.set(now.iter().copied().chain(before).collect());
    }
    let forks = fork::place_forks(process, &changes, &told.forks, settled);
    let mut children: Vec<Option<Uffd>> = told.forks.into_iter().map(|(_, child)| Some(child)).collect();
    let mut made = vec![false; changes.len()];
    for fork in forks {
        for number in (0..changes.len()).filter(|number| fork.seen[*number]) {
            if !std::mem::replace(&mut made[number], true) {
                apply_to_table(run, cpu, process, changes[number]);
            }
        }
        let child = children[fork.number].take().expect("each fork is followed once");
        fork::add_child(run, process, child, &fork);
    }
    changes
        .iter()
        .zip(made)
        .filter(|(_, made)| !made)
        .for_each(|(change, _)| apply_to_table(run, cpu, process, *change));
    if let Some(now) = shared_now {
        process.memory.shared.set(now);
    }
    if let Some(agent) = process.memory.attached_agent() {
        agent.evictor.control.allow(Forbidden::Event);
    }
    drop(batch);
    *messages = faults;
    run.poke_waiting();
}

/// What was told at once, faults apart.
#[derive(Default)]
struct Told {
    changes: Vec<Change>,
    /// After how many of the changes, and the child.
    forks: Vec<(usize, Uffd)>,
    /// mremap has mapped something a second time, and moved nothing.
    mapped_again: bool,
}

impl Told {
    /// Gives back what is not a change.
    fn take_in(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Fault { .. } => return Some(event),
            Event::Fork { child } => self.forks.push((self.changes.len(), child)),
            Event::Remap { len: 0, .. } => self.mapped_again = true,
            Event::Remap { from, to, len } => self.changes.push(Change::Remap { from, to, len }),
            Event::Remove { start, end } => self.changes.push(Change::Remove { start, end }),
            Event::Unmap { start, end } => self.changes.push(Change::Unmap { start, end }),
        }
        None
    }

    fn concerns_shared(&self, process: &Process) -> bool {
        let shared = &process.memory.shared;
        shared::concerns(process, &self.changes)
            || shared.any() && (self.mapped_again || shared.is_doubtful())
    }

    /// The changes as they were made, as far as it matters and can be known. None: what is registered had to
    /// be looked at, and something has changed since. More is to be read first: a thread whose move has just
    /// been read moves the same memory on, and then what is registered says nothing of what was told.
    fn changes_as_made(&self, process: &Process) -> Option<Vec<Change>> {
        let mut changes = self.changes.clone();
        let is_ordered = process.memory.port.is_ordered();
        if is_ordered || !changes.iter().any(|change| matches!(change, Change::Remap { .. })) {
            return Some(changes);
        }
        let has_looked = Cell::new(false);
        moves::put_in_order(&mut changes, &|range| {
            has_looked.set(true);
            is_some_registered(process, range)
        });
        (!has_looked.get() || !process.memory.port.is_changing()).then_some(changes)
    }
}

/// Is some of this registered? Either nearly all of it is, or nothing: so a few pages are asked. (A process
/// that is gone has nothing, and any order will do.)
fn is_some_registered(process: &Process, (start, end): (u64, u64)) -> bool {
    const ASKED_MAX: u64 = 64;
    let (port, shared) = (&process.memory.port, process.memory.shared.any());
    let is_registered = |addr: u64| match shared {
        true => port.is_registered_shared(addr),
        false => port.is_registered(addr),
    };
    let page = PAGE_SIZE as u64;
    let step = (end - start).div_ceil(ASKED_MAX).next_multiple_of(page);
    let asked = (start..end).step_by(step as usize).chain([end - page]);
    asked.into_iter().any(|addr| is_registered(addr) == Some(true))
}

/// A change of the address space is made in its page table too.
fn apply_to_table(run: &Run, cpu: CpuId, process: &Process, change: Change) {
    match change {
        Change::Remap { from, to, len } => {
            process.growth.note_unmapped(from, from + len);
            process.memory.reserves.forget(from, from + len);
            let (from, to) = (Vpn::from_addr(from), Vpn::from_addr(to));
            process.space.remap(run.engine.swap(), cpu, from, to, len / PAGE_SIZE as u64);
        }
        Change::Remove { start, end } => {
            process.growth.note_dropped(start, end);
            process.space.unmap(run.engine.swap(), cpu, Vpn::from_addr(start), Vpn::from_addr(end));
        }
        Change::Unmap { start, end } => {
            process.growth.note_unmapped(start, end);
            process.memory.reserves.forget(start, end);
            process.space.unmap(run.engine.swap(), cpu, Vpn::from_addr(start), Vpn::from_addr(end));
        }
    }
}

/// May there be more changes, not told yet, that were made before some of these?
fn may_be_out_of_order(process: &Process, messages: &[Event]) -> bool {
    if process.memory.port.is_ordered() {
        return false;
    }
    let any = |wanted: fn(&Event) -> bool| messages.iter().any(wanted);
    if any(|m| matches!(m, Event::Remap { .. })) {
        return true;
    }
    if !any(|m| matches!(m, Event::Fork { .. } | Event::Unmap { .. })) {
        return false;
    }
    let agent = process.memory.attached_agent();
    // A thread whose change is under way waits, or runs in the kernel: it is one of the threads.
    let alone = || proc::threads(process.memory.proc_id()) == Some(1 + u64::from(agent.is_some()));
    if any(|m| matches!(m, Event::Fork { .. })) {
        return any(|m| matches!(m, Event::Unmap { .. } | Event::Remove { .. })) || !alone();
    }
    agent.map_or_else(|| !alone(), |agent| agent.evictor.control.is_forking())
}

/// Read until no change is under way. No MOVE can come between: the abort mark is set. False if that takes
/// too long.
fn read_until_settled(run: &Run, process: &Process, messages: &mut Vec<Event>) -> bool {
    let begun = Instant::now();
    while process.memory.port.is_changing() {
        if begun.elapsed() > CHANGE_ENDS {
            return false;
        }
        let before = messages.len();
        let read = match removals::look(run, process) {
            Some(seen) => removals::read(process, &seen, messages)
                .inspect(|_| removals::check(run, process, &seen, &messages[before..])),
            None => process.memory.port.read(messages),
        };
        match read {
            Ok(read) if read > 0 => {}
            // A thread that is in the middle of a change needs a CPU. An error comes again with the next
            // read, and is told there.
            _ => std::thread::sleep(CHANGE_STEP),
        }
    }
    true
}
