//! Following the changes of an address space: fork, remap, remove, unmap; and the agent's own calls.
//!
//! ```text
//!   gate (events) ─ control lock ─ abort=1 ─ read ─ no event? abort=0 ─ unlock ─ batch lock ─ process ─ abort=0
//! ```
//!
//! Reading an event lets the changing thread run on at once. So from before the read until the end of processing no fill
//! may happen (the gate), no MOVE may start (the control lock, then the abort mark), and the batch in flight is waited for
//! (the batch lock): its pages are EVICTING, and an event never meets an EVICTING page. Events are processed before the
//! faults that came with them.
//!
//! *Order.* The kernel queues an event after it has let go of the locks under which the change was made, so of two changes
//! by two threads the second may be told first. That matters where memory has been moved (mremap) to where other memory was
//! a moment ago: told in the wrong order, the move comes first, and then the unmapping takes what was moved there.
//!
//! ```text
//!   thread A   munmap X ─ unlocked ──────────── (preempted) ─────────────▶ UNMAP X
//!   thread B             mremap Y to X ─▶ REMAP Y to X
//! ```
//!
//! So after a REMAP all is read until no change is under way (`is_changing`: until then no fill succeeds either, so nobody
//! loses by it), and what the address space looks like then says which of the two came first ([`in_order`]).
//! Nothing is registered meanwhile: `growth.rs` does that on the other side of the gate.
//!
//! Not followed so far: a fork whose event overtakes that of another thread's mremap. The child has the pages in one place
//! and its page table in the other. (A child of several threads may do little but exec.)

use crate::control::Forbidden;
use crate::growth::Growth;
use crate::pager::Pager;
use crate::proc;
use crate::process::{Process, ProcessMemory};
use memspill_agent::protocol::DOORBELLS;
use memspill_engine::space::Space;
use memspill_engine::units::{CpuId, PAGE_SIZE, SpaceId, Vpn};
use memspill_uffd::userfaultfd::{Event, Uffd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Beyond all addresses of a process.
pub(crate) const USER_END: u64 = 1 << 56;

/// Read messages with MOVEs excluded. If there is an event among them, no further MOVE starts until it was processed.
/// False: nothing to do.
pub fn read_locked(pager: &Pager, process: &Process, messages: &mut Vec<Event>) -> bool {
    let control = process.memory.agent().map(|a| &a.control);
    // No MOVE can happen then, and the evictor may hold the lock where it stands (`evictor.rs`).
    let cut_off = process.memory.agent().is_some_and(|a| a.is_cut_off());
    let locked = !cut_off && control.is_some_and(|c| c.lock());
    // An agent that is gone holds no MOVE, whatever the lock says. One that is there but holds the lock for long stands
    // still in the middle of a MOVE, and is cut off soon: come back later, others have faults too.
    if control.is_some() && !cut_off && !locked && !process.dying.load(Ordering::Relaxed) {
        std::thread::sleep(std::time::Duration::from_millis(1));
        return false;
    }
    // Before the read: whoever ends a batch must see that there is, or may be, an event.
    control.inspect(|control| control.forbid(Forbidden::Event));
    let result = process.memory.uffd.read(messages);
    if let Some(control) = control {
        if messages.iter().all(|m| matches!(m, Event::Fault { .. })) {
            control.allow(Forbidden::Event);
        }
        if locked {
            control.unlock();
        }
    }
    match result {
        Ok(read) => read > 0,
        // The process, or its fork, would wait for ever.
        Err(error) => {
            pager.give_up(125, format!("cannot follow process {}: reading its events: {error}", process.memory.pid()));
            false
        }
    }
}

/// Process the events among the messages. The caller is inside the gate.
pub fn process(pager: &Arc<Pager>, cpu: CpuId, process: &Arc<Process>, messages: &mut Vec<Event>) {
    let batch = process.batch.lock().expect("batch");
    let mut faults = Vec::new();
    if messages.iter().any(|message| matches!(message, Event::Remap { .. })) {
        read_on(process, messages);
        let pid = process.memory.proc_id();
        // Gone: then nothing is there any more, and any order will do.
        in_order(messages, || proc::registered(pid).unwrap_or_default());
    }
    for message in messages.drain(..) {
        match message {
            Event::Fault { .. } => faults.push(message),
            Event::Fork { child } => fork(pager, process, child),
            Event::Remap { from, to, len } => {
                process.changes.lock().expect("changes").unmap(from, from + len);
                let (from, to) = (Vpn::from_addr(from), Vpn::from_addr(to));
                process.space.remap(&pager.engine, cpu, from, to, len / PAGE_SIZE as u64);
            }
            Event::Remove { start, end } => {
                process.removed.lock().expect("removed").iter_mut().for_each(|ranges| ranges.push((start, end)));
                process.space.unmap(&pager.engine, cpu, Vpn::from_addr(start), Vpn::from_addr(end));
            }
            Event::Unmap { start, end } => {
                process.changes.lock().expect("changes").unmap(start, end);
                process.space.unmap(&pager.engine, cpu, Vpn::from_addr(start), Vpn::from_addr(end));
            }
        }
    }
    if let Some(agent) = process.memory.agent() {
        agent.control.allow(Forbidden::Event);
    }
    drop(batch);
    *messages = faults;
    pager.poke_waiting();
}

/// Read until no change is under way. No MOVE can come between: the abort mark is set.
fn read_on(process: &Process, messages: &mut Vec<Event>) {
    /// A thread that is in the middle of a change runs again within this time, unless its process is frozen.
    const LIMIT: Duration = Duration::from_secs(1);
    let begun = Instant::now();
    while process.memory.uffd.is_changing() && begun.elapsed() < LIMIT && !process.dying.load(Ordering::Relaxed) {
        match process.memory.uffd.read(messages) {
            Ok(read) if read > 0 => {}
            // Whoever is in the middle of a change needs a CPU. An error comes again with the next read, and is told there.
            _ => std::thread::sleep(Duration::from_micros(20)),
        }
    }
}

/// Put what freed a range before the REMAP that moved memory there, where it was told after it. `registered` says what is
/// registered now: if that is where the memory was moved to, it was not freed since.
fn in_order(events: &mut Vec<Event>, registered: impl Fn() -> Vec<(u64, u64)>) {
    let mut known: Option<Vec<(u64, u64)>> = None;
    let mut told: Vec<(usize, Event)> = events.drain(..).enumerate().collect();
    let mut at = 0;
    while at < told.len() {
        let (number, Event::Remap { to, len, .. }) = told[at] else {
            at += 1;
            continue;
        };
        let mut made_room = |(other, event): &(usize, Event)| {
            let (start, end) = match *event {
                Event::Unmap { start, end } => (start, end),
                Event::Remap { from, len, .. } => (from, from + len),
                Event::Fault { .. } | Event::Fork { .. } | Event::Remove { .. } => return false,
            };
            let (start, end) = (start.max(to), end.min(to + len));
            let mut is_there =
                || known.get_or_insert_with(&registered).iter().any(|(from, to)| *from < end && start < *to);
            *other > number && start < end && is_there()
        };
        match told[at + 1..].iter().position(&mut made_room) {
            // Looked at next, for it may be a REMAP that was told too early itself. What is put here has been told later
            // than what was here, so this ends.
            Some(after) => {
                let freed = told.remove(at + 1 + after);
                told.insert(at, freed);
            }
            None => at += 1,
        }
    }
    events.extend(told.into_iter().map(|(_, event)| event));
}

/// The process forked: its child has a userfaultfd of its own, and shares what is swapped out by count.
fn fork(pager: &Arc<Pager>, parent: &Arc<Process>, uffd: Uffd) {
    let key = pager.new_key();
    let memory = Arc::new(ProcessMemory::new(uffd, 0));
    let group = parent.space.group(&pager.engine).clone();
    let space = Arc::new(Space::new(SpaceId(key as u32), memory.clone()).in_group(group));
    parent.space.fork_into(&pager.engine, crate::cpu(), &space);
    // Without an agent (a raw clone) it is not known.
    let in_part = parent.memory.agent().is_none_or(|agent| agent.control.fork_advice());
    let child = Arc::new(Process {
        key,
        memory,
        space,
        evictor: Default::default(),
        batch: Mutex::new(()),
        since: std::time::Instant::now(),
        growth: Mutex::new(Growth::default()),
        pressed: AtomicBool::new(true),
        dying: AtomicBool::new(false),
        unmanaged_bytes: AtomicU64::new(0),
        inherits_in_part: AtomicBool::new(in_part),
        parent: Some((parent.key, parent.memory.agent().map_or(0, |a| a.ready.ident_addr))),
        home: Default::default(),
        progress: Default::default(),
        changes: Default::default(),
        removed: Mutex::new(None),
    });
    if let Err(e) = pager.add_process(child) {
        pager.give_up(125, format!("cannot follow a fork: {e}"));
    }
}

/// The first fault of a forked child tells which process it is; before it is served, what the child has not inherited is
/// forgotten. (Not at the fork: the parent may have ended by then.)
pub fn learn_pid(pager: &Pager, process: &Process, tid: u32) {
    let parent = process.parent.and_then(|(key, _)| pager.process(key)).map(|parent| parent.memory.pid());
    if let Some(pid) = proc::process_of_fault(tid, parent) {
        let _ = process.memory.pid.compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed);
    }
    if process.inherits_in_part.swap(false, Ordering::Relaxed) {
        forget_not_inherited(pager, process);
    }
}

/// What the child finds empty (MADV_WIPEONFORK), or has no mapping for (MADV_DONTFORK), must not come back as its parent's
/// bytes.
fn forget_not_inherited(pager: &Pager, child: &Process) {
    let kept = match proc::inherited(child.memory.pid()) {
        Ok(kept) => kept,
        // Killed while it waits for this fault.
        Err(_) if ends_soon(child) => return,
        Err(e) => return pager.give_up(125, format!("cannot follow a fork: /proc/{}/smaps: {e}", child.memory.pid())),
    };
    let pass = child.space.gate.enter_events();
    let batch = child.batch.lock().expect("batch");
    for (start, end) in crate::growth::subtract(&[(0, USER_END)], &kept) {
        child.space.unmap(&pager.engine, crate::cpu(), Vpn::from_addr(start), Vpn::from_addr(end));
    }
    drop(batch);
    drop(pass);
}

fn ends_soon(process: &Process) -> bool {
    (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        process.memory.uffd.is_gone()
    })
}

/// A fault on one of the agent's own pages is a call to us: a doorbell (a new mapping to register), or the ident page of a
/// forked child (which has done its work by faulting). Answers it and returns true.
pub fn is_agent_call(pager: &Arc<Pager>, process: &Arc<Process>, addr: u64) -> bool {
    let page = addr & !(PAGE_SIZE as u64 - 1);
    let doorbell = process.memory.agent().and_then(|agent| {
        let index = page.checked_sub(agent.ready.doorbell_addr)? / PAGE_SIZE as u64;
        (index < DOORBELLS as u64).then(|| agent.control.read_doorbell(index as usize))
    });
    let ident = process.parent.is_some_and(|(_, ident)| ident == page)
        || process.memory.agent().is_some_and(|a| a.ready.ident_addr == page);
    if let Some(call) = doorbell {
        crate::growth::register_new(pager, process, call.addr, call.len);
    } else if !ident {
        return false;
    }
    process.memory.uffd.zeropage(page, PAGE_SIZE as u64);
    process.memory.uffd.wake(page, PAGE_SIZE as u64);
    true
}

/// A process that has just introduced itself, not registered anywhere yet.
pub fn new_process(pager: &Pager, uffd: Uffd, pid: u32) -> Arc<Process> {
    let key = pager.new_key();
    let memory = Arc::new(ProcessMemory::new(uffd, pid));
    let space = Space::new(SpaceId(key as u32), memory.clone());
    let group = pager.membership.of_program(pager, pid);
    Arc::new(Process {
        key,
        space: Arc::new(match group {
            Some(group) => space.in_group(group),
            None => space,
        }),
        memory,
        evictor: Default::default(),
        batch: Mutex::new(()),
        since: std::time::Instant::now(),
        growth: Mutex::new(Growth::default()),
        pressed: AtomicBool::new(false),
        dying: AtomicBool::new(false),
        unmanaged_bytes: AtomicU64::new(0),
        inherits_in_part: AtomicBool::new(false),
        parent: None,
        home: Default::default(),
        progress: Default::default(),
        changes: Default::default(),
        removed: Mutex::new(None),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(events: &[Event]) -> Vec<String> {
        let name = |event: &Event| match event {
            Event::Remap { from, to, .. } => format!("{from}>{to}"),
            Event::Unmap { start, end } => format!("-{start}..{end}"),
            _ => "other".into(),
        };
        events.iter().map(name).collect()
    }

    #[test]
    fn what_freed_a_range_comes_before_what_moved_there() {
        let remap = |from, to| Event::Remap { from, to, len: 10 };
        let unmap = |start, end| Event::Unmap { start, end };
        let sorted = |mut events: Vec<Event>, registered: &[(u64, u64)]| {
            in_order(&mut events, || registered.to_vec());
            names(&events)
        };
        // What was moved to 100 is there: the unmapping was before.
        assert_eq!(sorted(vec![remap(20, 100), unmap(95, 105)], &[(100, 110)]), ["-95..105", "20>100"]);
        // It is not: it was unmapped, or moved on.
        assert_eq!(sorted(vec![remap(20, 100), unmap(100, 110)], &[(0, 20)]), ["20>100", "-100..110"]);
        assert_eq!(sorted(vec![remap(20, 100), remap(100, 300)], &[(300, 310)]), ["20>100", "100>300"]);
        // Two moves, the first of which made room for the second.
        assert_eq!(sorted(vec![remap(20, 100), remap(100, 300)], &[(100, 110), (300, 310)]), ["100>300", "20>100"]);
        // The second move was told too early as well.
        let events = vec![remap(20, 100), remap(100, 300), unmap(300, 310)];
        assert_eq!(sorted(events, &[(100, 110), (300, 310)]), ["-300..310", "100>300", "20>100"]);
        // Two that change places by way of each other's: no order is right, and it ends.
        assert_eq!(sorted(vec![remap(20, 100), remap(100, 20)], &[(20, 30), (100, 110)]).len(), 2);
        // Others stay where they are.
        let events = vec![unmap(0, 5), remap(20, 100), unmap(50, 60), unmap(109, 112)];
        assert_eq!(sorted(events, &[(100, 110)]), ["-0..5", "-109..112", "20>100", "-50..60"]);
    }
}
