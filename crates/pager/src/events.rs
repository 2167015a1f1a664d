//! Following the changes of an address space: fork, remap, remove, unmap; and the agent's own calls.
//!
//! ```text
//!   gate (events) ─ control lock ─ read ─ abort=1 if there is an event ─ unlock ─ batch lock ─ process ─ abort=0
//! ```
//!
//! Reading an event lets the changing thread run on at once. So from before the read until the end of processing no fill
//! may happen (the gate), no MOVE may start (the control lock, then the abort mark), and the batch in flight is waited for
//! (the batch lock): its pages are EVICTING, and an event never meets an EVICTING page. Events are processed in the order
//! in which they were read, before the faults that came with them.

use crate::growth::Growth;
use crate::pager::Pager;
use crate::process::{Process, ProcessMemory};
use memspill_agent::protocol::DOORBELLS;
use memspill_engine::space::Space;
use memspill_engine::units::{CpuId, PAGE_SIZE, SpaceId, Vpn};
use memspill_uffd::userfaultfd::{Event, Uffd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Beyond all addresses of a process.
pub(crate) const USER_END: u64 = 1 << 56;

/// Read messages with MOVEs excluded. If there is an event among them, no further MOVE starts until it was processed.
/// False: nothing to do.
pub fn read_locked(pager: &Pager, process: &Process, messages: &mut Vec<Event>) -> bool {
    let control = process.memory.agent().map(|a| &a.control);
    let locked = control.is_some_and(|c| c.lock());
    // An agent that is gone holds no MOVE, whatever the lock says. One that is there but holds the lock for long is
    // stopped in the middle of a MOVE: come back later, others have faults too.
    if control.is_some() && !locked && !process.dying.load(Ordering::Relaxed) {
        std::thread::sleep(std::time::Duration::from_millis(1));
        return false;
    }
    let result = process.memory.uffd.read(messages);
    if let Some(control) = control.filter(|_| locked) {
        if messages.iter().any(|m| !matches!(m, Event::Fault { .. })) {
            control.set_abort(true);
        }
        control.unlock();
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

/// Process the events among the messages, in order. The caller is inside the gate.
pub fn process(pager: &Arc<Pager>, cpu: CpuId, process: &Arc<Process>, messages: &mut Vec<Event>) {
    let batch = process.batch.lock().expect("batch");
    let mut faults = Vec::new();
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
        agent.control.set_abort(false);
    }
    drop(batch);
    *messages = faults;
    pager.poke_waiting();
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
    if let Some(pid) = crate::proc::process_of_fault(tid, parent) {
        let _ = process.memory.pid.compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed);
    }
    if process.inherits_in_part.swap(false, Ordering::Relaxed) {
        forget_not_inherited(pager, process);
    }
}

/// What the child finds empty (MADV_WIPEONFORK), or has no mapping for (MADV_DONTFORK), must not come back as its parent's
/// bytes.
fn forget_not_inherited(pager: &Pager, child: &Process) {
    let kept = match crate::proc::inherited(child.memory.pid()) {
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
        changes: Default::default(),
        removed: Mutex::new(None),
    })
}

