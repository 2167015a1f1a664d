//! Forks: a child's page table is made from its parent's, and the child is found out.
//!
//! ```text
//!   FORK is read ─▶ which changes has the child seen? (order/forks.rs) ─▶ its table, shared by count
//!   its first fault ─▶ who is it? random bytes in its ident page ─▶ what has it not inherited? forgotten
//!   its agent knocks (door/) ─▶ is it one of those?
//! ```
//!
//! Nothing is believed of whom a fault names, which may be a tracer or any other reader of the child's
//! memory.
//!
//! What it does not do: say in which order changes were made (order/).

use crate::USER_END;
use crate::faults::order::change::Change;
use crate::faults::order::cluster::{Doubt, Evidence};
use crate::faults::order::forks::{Clusters, SeenByChild};
use crate::faults::shared;
use crate::proc::{self, Proof};
use crate::process::Process;
use crate::process::descent::Descent;
use crate::process::memory::ProcessMemory;
use crate::process::port::Port;
use crate::process::ranges::Ranges;
use crate::reclaim::direct;
use crate::run::Run;
use crate::times::{CHILD_ENDS, CHILD_STEP};
use memspill_engine::space::Space;
use memspill_engine::units::{Page, SpaceId, Vpn};
use memspill_uffd::userfaultfd::{Stop, Uffd};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What is known of a fork.
pub struct FollowedFork {
    /// Among the forks, as they were told.
    pub number: usize,
    /// Which of the changes its child has seen.
    pub seen: Vec<bool>,
    /// Pages of which it cannot be said what belongs there, and pages that are not there.
    lost: Vec<Vpn>,
    gone: Vec<Vpn>,
    hopeless: bool,
}

/// The forks in the order in which they were made, each with the changes that its child has seen.
pub fn place_forks(
    process: &Process,
    changes: &[Change],
    forks: &[(usize, Uffd)],
    settled: bool,
) -> Vec<FollowedFork> {
    let evidence: Vec<ForkEvidence<'_>> =
        forks.iter().map(|(_, child)| ForkEvidence::new(process, child)).collect();
    let Some(first) = evidence.first() else { return Vec::new() };
    let clusters = Clusters::of(changes, first);
    let seen =
        |(number, (told, _)): (usize, &(usize, Uffd))| (clusters.seen_by(*told, &evidence[number]), number);
    let mut seen: Vec<(SeenByChild, usize)> = forks.iter().enumerate().map(seen).collect();
    clusters.sort_forks(&mut seen);
    let fork = |(seen, number): (SeenByChild, usize)| {
        let (lost, gone) = evidence[number].pages_of(&seen.doubts);
        FollowedFork { number, seen: seen.changes, lost, gone, hopeless: seen.hopeless || !settled }
    };
    seen.into_iter().map(fork).collect()
}

/// The evidence that a child's userfaultfd gives, before the changes are applied to its parent's page table.
struct ForkEvidence<'a> {
    parent: &'a Process,
    child: &'a Uffd,
    advice: bool,
    seen: RefCell<HashMap<u64, Option<bool>>>,
}

impl<'a> ForkEvidence<'a> {
    fn new(parent: &'a Process, child: &'a Uffd) -> ForkEvidence<'a> {
        ForkEvidence { parent, child, advice: has_fork_advice(parent), seen: RefCell::default() }
    }

    /// The pages that are in doubt and may be there, and those that are not.
    fn pages_of(&self, doubts: &[Doubt]) -> (Vec<Vpn>, Vec<Vpn>) {
        let (mut lost, mut gone) = (Vec::new(), Vec::new());
        for doubt in doubts {
            let (from, to) = (Vpn::from_addr(doubt.start), Vpn::from_addr(doubt.start + doubt.len));
            for vpn in self.parent.space.known_pages(from, to, usize::MAX) {
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

impl Evidence for ForkEvidence<'_> {
    fn known(&self, start: u64, end: u64) -> Vec<u64> {
        let most = if self.advice { usize::MAX } else { 1 };
        let pages = self.parent.space.known_pages(Vpn::from_addr(start), Vpn::from_addr(end), most);
        pages.into_iter().map(|vpn| vpn.addr() - start).collect()
    }

    fn child_has(&self, addr: u64) -> Option<bool> {
        *self.seen.borrow_mut().entry(addr).or_insert_with(|| self.child.is_registered(addr))
    }
}

/// May memory be marked as not to be inherited? Without an agent (a raw clone) it is not known.
fn has_fork_advice(process: &Process) -> bool {
    process.memory.attached_agent().is_none_or(|agent| agent.evictor.control.fork_advice())
}

/// The process forked: its child has a userfaultfd of its own, and shares what is swapped out by count. From
/// here on it is a process of the run.
pub fn add_child(run: &Arc<Run>, parent: &Arc<Process>, child: Uffd, fork: &FollowedFork) {
    let mut bytes = [0; 16];
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(bytes.len()) {
        return run.fail("cannot follow a fork: the system has no random bytes".into());
    }
    let key = run.new_key();
    let memory = Arc::new(ProcessMemory::new(Port::from(child), 0));
    memory.shared.inherit(&parent.memory.shared);
    let group = parent.space.group(run.engine.swap()).clone();
    let space = Arc::new(Space::new(SpaceId(key as u32), memory.clone()).in_group(group));
    parent.space.fork_into(run.engine.swap(), crate::cpu(), &space);
    space.drop_pages(run.engine.swap(), crate::cpu(), &fork.gone);
    space.lose_pages(run.engine.swap(), crate::cpu(), &fork.lost);
    if fork.hopeless || !fork.lost.is_empty() {
        let what =
            if fork.hopeless { "what it touches".into() } else { format!("{} pages", fork.lost.len()) };
        let pid = parent.memory.pid();
        eprintln!(
            "memspill: process {pid} forked while others of its threads changed its memory, in an order that \
             cannot be told: the child gets SIGBUS for {what}"
        );
    }
    let proof = Proof { addr: ident_addr(parent), bytes };
    let descent = Descent::new(proof, fork.hopeless, has_fork_advice(parent));
    let child = Process::new(key, memory, space, Some(descent));
    // The child has its parent's files open, until a look finds that it has not.
    if child.memory.shared.any() && direct::may_have(parent) {
        child.no_direct_files_at.store(u32::MAX, Ordering::SeqCst);
    }
    if let Err(e) = run.add_process(Arc::new(child)) {
        run.fail(format!("cannot follow a fork: {e}"));
    }
}

/// The page that is missing in every child of this process.
fn ident_addr(process: &Process) -> u64 {
    let inherited = process.descent.as_ref().map_or(0, |descent| descent.proof.addr);
    process.memory.attached_agent().map_or(inherited, |agent| agent.ready.ident_addr)
}

/// On a fault of a forked child of which not all is known: find out, before it is served, which process it
/// is, and forget what that has not inherited. (Not at the fork: there is no process yet.) False: the fault
/// must come again.
///
/// The pager writes random bytes into the child's ident page through its userfaultfd, and the child is who
/// has them in its memory.
pub fn find_out_child(run: &Run, child: &Process, tid: u32) -> bool {
    let Some(descent) = &child.descent else { return true };
    let (proof, _look) = (&descent.proof, descent.first_look());
    if child.is_known() {
        return true;
    }
    if child.memory.pid() == 0 {
        let mut page = Page::ZERO;
        page.0[..proof.bytes.len()].copy_from_slice(&proof.bytes);
        // A thread that waits for the page goes on when its fault is served.
        let put = child.memory.port.copy_without_wake(proof.addr, &page.0);
        if matches!(put.stop, Stop::Again | Stop::NoMemory) {
            return false;
        }
        // Else the page is no more: a child that joins does not unmap it, and of another one the pid is not
        // needed.
        if matches!(put.stop, Stop::Done | Stop::Exists) {
            let pid = proc::process_holding(proof, tid).unwrap_or(0);
            if pid != 0 && !run.objects().is_empty() && !learn_shared(run, child, pid, proof) {
                return false;
            }
            child.memory.pid.store(pid, Ordering::Relaxed);
        }
    }
    descent.is_whole() || forget_not_inherited(run, child, descent)
}

/// Learns where the child, which is process `pid`, has shared memory mapped: not all that its parent has
/// (MADV_DONTFORK). False if it cannot be said now.
fn learn_shared(run: &Run, child: &Process, pid: u32, proof: &Proof) -> bool {
    let held = child.hold_pages();
    let maps = proc::shared_maps(pid);
    if child.memory.port.is_changing() {
        return false;
    }
    // Looked at after the reading, as below. If it ends just now, what it has inherited will do.
    if let Ok(maps) = maps
        && proc::holds(pid, proof)
    {
        child.memory.shared.set(shared::managed_of(run, child, &maps.mappings));
    }
    drop(held);
    true
}

/// Memory that the child finds empty (MADV_WIPEONFORK), or has no mapping for (MADV_DONTFORK), must not come
/// back as its parent's bytes. False if it cannot be said now.
fn forget_not_inherited(run: &Run, child: &Process, descent: &Descent) -> bool {
    let held = child.hold_pages();
    let pid = child.memory.pid();
    let kept = proc::inherited(pid);
    // Changes by the child itself must be told first: memory that it has moved is not where it was inherited.
    if child.memory.port.is_changing() {
        return false;
    }
    match kept {
        // Looked at after the reading: then what was read is this address space, and not that of a program
        // begun since.
        Ok(kept) if proc::holds(pid, &descent.proof) => {
            for (start, end) in kept.into_iter().collect::<Ranges>().missing_of(&[(0, USER_END)]) {
                child.space.unmap(
                    run.engine.swap(),
                    crate::cpu(),
                    Vpn::from_addr(start),
                    Vpn::from_addr(end),
                );
            }
        }
        // Killed while it waits for this fault.
        _ if ends_soon(child) => {}
        _ => run.fail("cannot follow a fork: it cannot be found out which process the child is".into()),
    }
    drop(held);
    descent.set_whole();
    true
}

/// The followed child of a fork that introduces itself as process `pid`.
pub fn child_that_joins(run: &Run, pid: u32) -> Option<Arc<Process>> {
    let is_it = |process: &Arc<Process>| match (process.memory.pid(), &process.descent) {
        (_, None) => false,
        // It came here without a fault of its own.
        (0, Some(descent)) => proc::holds(pid, &descent.proof),
        (known, Some(_)) => known == pid,
    };
    let newborn = |process: &Arc<Process>| process.memory.attached_agent().is_none() && !process.is_dying();
    let process = run.processes().into_iter().filter(newborn).find(is_it)?;
    // It waits for us, so that nothing of it is changing.
    find_out_child(run, &process, pid);
    Some(process)
}

/// Does the address space end within CHILD_ENDS?
fn ends_soon(process: &Process) -> bool {
    let begun = Instant::now();
    while !process.memory.port.is_gone() {
        if begun.elapsed() > CHILD_ENDS {
            return false;
        }
        std::thread::sleep(CHILD_STEP);
    }
    true
}
