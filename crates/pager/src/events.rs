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
//! *Order.* Of two changes by two threads the second may be told first. That matters where memory moves or the process
//! forks. So then all is read until no change is under way (`is_changing`: until then no fill succeeds either, so nobody
//! loses by it), and what is registered where in the end says what came first: `order.rs`. Nothing is registered while
//! anything is changing.
//!
//! ```text
//!   told                              read on?
//!   REMAP                             yes
//!   FORK                              unless the process has one thread: then nothing else can be under way
//!   UNMAP, while a fork is under way  yes: the fork may have come before it, and be told later (the agent says that one is
//!                                     under way; a raw clone or fork is not seen by it)
//! ```
//!
//! Not followed: of a raw clone by one of several threads, an UNMAP that was read before the FORK and made after it. What
//! was swapped out there reads as zeros in the child.

use crate::control::Forbidden;
use crate::growth::Growth;
use crate::order::{self, Change, Clusters, Doubt, Look, Seen};
use crate::pager::Pager;
use crate::proc::{self, Proof};
use crate::process::{Process, ProcessMemory};
use memspill_agent::protocol::{CALL_GROWN, CALL_MAPPED, DOORBELLS, Doorbell, STAGING_PAGES};
use memspill_engine::space::Space;
use memspill_engine::units::{CpuId, PAGE_SIZE, Page, SpaceId, Vpn};
use memspill_uffd::userfaultfd::{Event, Stop, Uffd};
use std::cell::RefCell;
use std::collections::HashMap;
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
    let mut told = Told::default();
    let mut faults = Vec::new();
    let settled = !may_be_out_of_order(process, messages) || read_on(process, messages);
    faults.extend(messages.drain(..).filter_map(|message| told.add(message)));
    let changes = told.in_order(process);
    let forks = place_forks(process, &changes, &told.forks, settled);
    let mut children: Vec<Option<Uffd>> = told.forks.into_iter().map(|(_, child)| Some(child)).collect();
    let mut made = vec![false; changes.len()];
    for fork in forks {
        for number in (0..changes.len()).filter(|number| fork.seen[*number]) {
            if !std::mem::replace(&mut made[number], true) {
                apply(pager, cpu, process, changes[number]);
            }
        }
        let child = children[fork.number].take().expect("each fork is followed once");
        follow_fork(pager, process, child, &fork);
    }
    changes.iter().zip(made).filter(|(_, made)| !made).for_each(|(change, _)| apply(pager, cpu, process, *change));
    if let Some(agent) = process.memory.agent() {
        agent.control.allow(Forbidden::Event);
    }
    drop(batch);
    *messages = faults;
    pager.poke_waiting();
}

/// What was told at once, faults apart.
#[derive(Default)]
struct Told {
    changes: Vec<Change>,
    /// After how many of the changes, and the child.
    forks: Vec<(usize, Uffd)>,
}

impl Told {
    /// Gives back what is not a change.
    fn add(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Fault { .. } => return Some(event),
            Event::Fork { child } => self.forks.push((self.changes.len(), child)),
            Event::Remap { from, to, len } => self.changes.push(Change::Remap { from, to, len }),
            Event::Remove { start, end } => self.changes.push(Change::Remove { start, end }),
            Event::Unmap { start, end } => self.changes.push(Change::Unmap { start, end }),
        }
        None
    }

    /// The changes as they were made, as far as it matters and can be known.
    fn in_order(&self, process: &Process) -> Vec<Change> {
        let mut changes = self.changes.clone();
        if changes.iter().any(|change| matches!(change, Change::Remap { .. })) {
            let pid = process.memory.proc_id();
            // Gone: then nothing is there any more, and any order will do.
            order::in_order(&mut changes, || proc::registered(pid).unwrap_or_default());
        }
        changes
    }
}

fn apply(pager: &Pager, cpu: CpuId, process: &Process, change: Change) {
    match change {
        Change::Remap { from, to, len } => {
            process.changes.lock().expect("changes").unmap(from, from + len);
            let (from, to) = (Vpn::from_addr(from), Vpn::from_addr(to));
            process.space.remap(&pager.engine, cpu, from, to, len / PAGE_SIZE as u64);
        }
        Change::Remove { start, end } => {
            process.removed.lock().expect("removed").iter_mut().for_each(|ranges| ranges.insert(start, end));
            process.space.unmap(&pager.engine, cpu, Vpn::from_addr(start), Vpn::from_addr(end));
        }
        Change::Unmap { start, end } => {
            process.changes.lock().expect("changes").unmap(start, end);
            process.space.unmap(&pager.engine, cpu, Vpn::from_addr(start), Vpn::from_addr(end));
        }
    }
}

/// May there be more changes, not told yet, that were made before some of these?
fn may_be_out_of_order(process: &Process, messages: &[Event]) -> bool {
    let any = |wanted: fn(&Event) -> bool| messages.iter().any(wanted);
    if any(|m| matches!(m, Event::Remap { .. })) {
        return true;
    }
    if !any(|m| matches!(m, Event::Fork { .. } | Event::Unmap { .. })) {
        return false;
    }
    let agent = process.memory.agent();
    // Whose change is under way waits, or runs in the kernel: it is one of the threads.
    let alone = || proc::threads(process.memory.proc_id()) == Some(1 + u64::from(agent.is_some()));
    if any(|m| matches!(m, Event::Fork { .. })) {
        return any(|m| matches!(m, Event::Unmap { .. } | Event::Remove { .. })) || !alone();
    }
    agent.map_or_else(|| !alone(), |agent| agent.control.is_forking())
}

/// Read until no change is under way. No MOVE can come between: the abort mark is set. False if that takes too long.
fn read_on(process: &Process, messages: &mut Vec<Event>) -> bool {
    /// A thread that is in the middle of a change runs again within this time, unless its process is frozen.
    const LIMIT: Duration = Duration::from_secs(1);
    let begun = Instant::now();
    while process.memory.uffd.is_changing() {
        if begun.elapsed() > LIMIT {
            return false;
        }
        match process.memory.uffd.read(messages) {
            Ok(read) if read > 0 => {}
            // Whoever is in the middle of a change needs a CPU. An error comes again with the next read, and is told there.
            _ => std::thread::sleep(Duration::from_micros(20)),
        }
    }
    true
}

/// What is known of a fork.
struct Fork {
    /// Among the forks, as they were told.
    number: usize,
    /// Which of the changes its child has seen.
    seen: Vec<bool>,
    /// Pages of which it cannot be said what belongs there, and pages that are not there.
    lost: Vec<Vpn>,
    gone: Vec<Vpn>,
    hopeless: bool,
}

/// The forks in the order in which they were made, each with the changes that its child has seen.
fn place_forks(process: &Process, changes: &[Change], forks: &[(usize, Uffd)], settled: bool) -> Vec<Fork> {
    let looks: Vec<ForkLook<'_>> = forks.iter().map(|(_, child)| ForkLook::new(process, child)).collect();
    let Some(first) = looks.first() else { return Vec::new() };
    let clusters = Clusters::of(changes, first);
    let seen = |(number, (told, _)): (usize, &(usize, Uffd))| (clusters.seen_by(*told, &looks[number]), number);
    let mut seen: Vec<(Seen, usize)> = forks.iter().enumerate().map(seen).collect();
    clusters.sort(&mut seen);
    let fork = |(seen, number): (Seen, usize)| {
        let (lost, gone) = looks[number].pages_of(&seen.doubts);
        Fork { number, seen: seen.changes, lost, gone, hopeless: seen.hopeless || !settled }
    };
    seen.into_iter().map(fork).collect()
}

/// Looks at a child through its userfaultfd, before the changes are applied to its parent's page table.
struct ForkLook<'a> {
    parent: &'a Process,
    child: &'a Uffd,
    advice: bool,
    seen: RefCell<HashMap<u64, Option<bool>>>,
}

impl<'a> ForkLook<'a> {
    fn new(parent: &'a Process, child: &'a Uffd) -> ForkLook<'a> {
        ForkLook { parent, child, advice: has_fork_advice(parent), seen: RefCell::default() }
    }

    /// The pages that are in doubt and may be there, and those that are not.
    fn pages_of(&self, doubts: &[Doubt]) -> (Vec<Vpn>, Vec<Vpn>) {
        let (mut lost, mut gone) = (Vec::new(), Vec::new());
        for doubt in doubts {
            let (from, to) = (Vpn::from_addr(doubt.start), Vpn::from_addr(doubt.start + doubt.len));
            for vpn in self.parent.space.known(from, to, usize::MAX) {
                for place in &doubt.places {
                    let addr = place + (vpn.addr() - doubt.start);
                    let pages = if self.child_has(addr) == Some(false) { &mut gone } else { &mut lost };
                    pages.push(Vpn::from_addr(addr));
                }
            }
        }
        (lost, gone)
    }
}

impl Look for ForkLook<'_> {
    fn known(&self, start: u64, end: u64) -> Vec<u64> {
        let most = if self.advice { usize::MAX } else { 1 };
        let pages = self.parent.space.known(Vpn::from_addr(start), Vpn::from_addr(end), most);
        pages.into_iter().map(|vpn| vpn.addr() - start).collect()
    }

    fn child_has(&self, addr: u64) -> Option<bool> {
        *self.seen.borrow_mut().entry(addr).or_insert_with(|| self.child.is_registered(addr))
    }
}

/// May memory be marked as not to be inherited? Without an agent (a raw clone) it is not known.
fn has_fork_advice(process: &Process) -> bool {
    process.memory.agent().is_none_or(|agent| agent.control.fork_advice())
}

/// The process forked: its child has a userfaultfd of its own, and shares what is swapped out by count.
fn follow_fork(pager: &Arc<Pager>, parent: &Arc<Process>, child: Uffd, fork: &Fork) {
    let mut bytes = [0; 16];
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(bytes.len()) {
        return pager.give_up(125, "cannot follow a fork: the system has no random bytes".into());
    }
    let key = pager.new_key();
    let memory = Arc::new(ProcessMemory::new(child, 0));
    let group = parent.space.group(&pager.engine).clone();
    let space = Arc::new(Space::new(SpaceId(key as u32), memory.clone()).in_group(group));
    parent.space.fork_into(&pager.engine, crate::cpu(), &space);
    space.drop_pages(&pager.engine, crate::cpu(), &fork.gone);
    space.lose_pages(&pager.engine, crate::cpu(), &fork.lost);
    if fork.hopeless || !fork.lost.is_empty() {
        let what = if fork.hopeless { "what it touches".into() } else { format!("{} pages", fork.lost.len()) };
        let pid = parent.memory.pid();
        eprintln!(
            "memspill: process {pid} forked while others of its threads changed its memory, in an order that cannot be \
             told: the child gets SIGBUS for {what}"
        );
    }
    let in_part = has_fork_advice(parent);
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
        hopeless: fork.hopeless,
        proof: Some(Proof { addr: ident_addr(parent), bytes }),
        first_look: Mutex::new(()),
        home: Default::default(),
        progress: Default::default(),
        changes: Default::default(),
        removed: Mutex::new(None),
    });
    if let Err(e) = pager.add_process(child) {
        pager.give_up(125, format!("cannot follow a fork: {e}"));
    }
}

/// The page that is missing in every child of this process.
fn ident_addr(process: &Process) -> u64 {
    let inherited = process.proof.map_or(0, |proof| proof.addr);
    process.memory.agent().map_or(inherited, |agent| agent.ready.ident_addr)
}

/// Is it known which process this is, and is what it has not inherited forgotten?
pub fn is_known(process: &Process) -> bool {
    process.memory.pid() != 0 && !process.inherits_in_part.load(Ordering::Acquire)
}

/// On a fault of a forked child of which not all is known: find out, before it is served, which process it is, and forget
/// what that has not inherited. (Not at the fork: there is no process yet.) False: the fault must come again.
///
/// Nothing is believed of whom the fault names, which may be a tracer or any other reader of the child's memory. The pager
/// writes random bytes into the child's ident page through its userfaultfd, and the child is who has them in its memory.
pub fn learn(pager: &Pager, child: &Process, tid: u32) -> bool {
    let Some(proof) = &child.proof else { return true };
    let _look = child.first_look.lock().expect("first look");
    if is_known(child) {
        return true;
    }
    if child.memory.pid() == 0 {
        let mut page = Page::ZERO;
        page.0[..proof.bytes.len()].copy_from_slice(&proof.bytes);
        // Whoever waits for the page goes on when its fault is served.
        let put = child.memory.uffd.copy_without_wake(proof.addr, &page.0);
        if matches!(put.stop, Stop::Again | Stop::NoMemory) {
            return false;
        }
        // Else the page is no more: a child that joins does not unmap it, and of another one the pid is not needed.
        if matches!(put.stop, Stop::Done | Stop::Exists) {
            child.memory.pid.store(proc::process_holding(proof, tid).unwrap_or(0), Ordering::Relaxed);
        }
    }
    !child.inherits_in_part.load(Ordering::Relaxed) || forget_not_inherited(pager, child, proof)
}

/// What the child finds empty (MADV_WIPEONFORK), or has no mapping for (MADV_DONTFORK), must not come back as its parent's
/// bytes. False if it cannot be said now.
fn forget_not_inherited(pager: &Pager, child: &Process, proof: &Proof) -> bool {
    let pass = child.space.gate.enter_events();
    let batch = child.batch.lock().expect("batch");
    let pid = child.memory.pid();
    let kept = proc::inherited(pid);
    // What the child itself has changed must be told first: memory that it has moved is not where it was inherited.
    if child.memory.uffd.is_changing() {
        return false;
    }
    match kept {
        // Looked at after the reading: then what was read is this address space, and not that of a program begun since.
        Ok(kept) if proc::holds(pid, proof) => {
            for (start, end) in crate::ranges::subtract(&[(0, USER_END)], &kept) {
                child.space.unmap(&pager.engine, crate::cpu(), Vpn::from_addr(start), Vpn::from_addr(end));
            }
        }
        // Killed while it waits for this fault.
        _ if ends_soon(child) => {}
        _ => pager.give_up(125, "cannot follow a fork: it cannot be found out which process the child is".into()),
    }
    drop(batch);
    drop(pass);
    child.inherits_in_part.store(false, Ordering::Release);
    true
}

/// The followed child of a fork that introduces itself as process `pid`.
pub fn forked(pager: &Pager, pid: u32) -> Option<Arc<Process>> {
    let is_it = |process: &Arc<Process>| match (process.memory.pid(), &process.proof) {
        (_, None) => false,
        // It came here without a fault of its own.
        (0, Some(proof)) => proc::holds(pid, proof),
        (known, Some(_)) => known == pid,
    };
    let newborn = |process: &Arc<Process>| process.memory.agent().is_none() && !process.dying.load(Ordering::Relaxed);
    let process = pager.processes().into_iter().filter(newborn).find(is_it)?;
    // It waits for us, so that nothing of it is changing.
    learn(pager, &process, pid);
    Some(process)
}

fn ends_soon(process: &Process) -> bool {
    (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        process.memory.uffd.is_gone()
    })
}

/// A fault on one of the agent's own pages: a doorbell (a call to us), the ident page of a forked child (which has done its
/// work by faulting), or staging (somebody reads all memory that there is). None of them is managed. Answers it and returns
/// true.
pub fn is_agent_call(pager: &Arc<Pager>, process: &Arc<Process>, addr: u64, tid: u32) -> bool {
    let page = addr & !(PAGE_SIZE as u64 - 1);
    let index_in = |from: u64, pages: u64| {
        let index = page.checked_sub(from)? / PAGE_SIZE as u64;
        (index < pages).then_some(index as usize)
    };
    let agent = process.memory.agent();
    let mut put_off = false;
    if let Some(agent) = agent
        && let Some(doorbell) = index_in(agent.ready.doorbell_addr, DOORBELLS as u64)
    {
        match agent.control.take_call(doorbell) {
            Some(call) => {
                put_off = !carry_out(pager, process, call);
                match put_off {
                    true => agent.control.put_call_back(doorbell),
                    false => agent.control.answer_call(doorbell),
                }
            }
            // Whoever has taken it fills the page.
            None if agent.control.call_is_taken(doorbell) => return true,
            None => {}
        }
    } else if agent.is_some_and(|agent| index_in(agent.ready.staging_addr, u64::from(STAGING_PAGES)).is_some()) {
        process.memory.staging_was_read(tid);
    } else if !(process.proof.is_some_and(|proof| proof.addr == page)
        || agent.is_some_and(|agent| agent.ready.ident_addr == page))
    {
        return false;
    }
    // What is put off is asked for again: the page is missing still.
    if !put_off {
        process.memory.uffd.zeropage(page, PAGE_SIZE as u64);
    }
    process.memory.uffd.wake(page, PAGE_SIZE as u64);
    true
}

/// What a thread of the process wants, at a doorbell. False: it cannot be done now.
fn carry_out(pager: &Arc<Pager>, process: &Arc<Process>, call: Doorbell) -> bool {
    if matches!(call.call, CALL_MAPPED | CALL_GROWN) {
        return crate::growth::register_new(pager, process, call.addr, call.len, call.call == CALL_GROWN);
    }
    crate::guards::called(pager, process, call)
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
        hopeless: false,
        proof: None,
        first_look: Mutex::new(()),
        home: Default::default(),
        progress: Default::default(),
        changes: Default::default(),
        removed: Mutex::new(None),
    })
}
