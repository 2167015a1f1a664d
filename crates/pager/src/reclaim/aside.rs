//! Processes that stand still (stopped, traced, frozen): their evictors do not answer, so none of their pages
//! can leave, and none of them may hold up the others.
//!
//! ```text
//!   cannot be asked ─▶ set aside: not picked, not waited for ─▶ looked at now and then ─▶ its turn again
//!                        └─ others have next to nothing, or nothing moves ─▶ told; room beyond limits
//! ```
//!
//! What stands still goes on in its turn; until then others give room, and pools do. Where that is not
//! enough, a line says what stands still and why, and the limit is raised until it goes on, by
//!
//! * what a process needs while it stands still itself (its tracer reads its memory), which must not wait for
//!   it;
//! * what others need to have a part of the limit (OTHERS_PART): they may have no page left to give, and
//!   among them may be the one that is to let it go on (its tracer, a shell).
//!
//! The second is not only for where nothing moves: of others that hold some pages at a time, each of which
//! leaves as soon as it has come, something always moves, and none gets on (`squeezed`).
//!
//! A child that has not joined yet cannot give a page either, whatever keeps it: a tracer that stops its
//! parent's evictor stops it too. So what it holds is counted with what stands still (`cannot_give`), and
//! never taken for a part that others have.

use crate::process::Process;
use crate::process::agent::Agent;
use crate::process::standstill::{self, Standstill};
use crate::run::Run;
use memspill_engine::group::Group;
use memspill_engine::space::Space;
use memspill_engine::units::PAGE_SIZE;
use std::sync::Arc;
use std::time::Duration;

/// Others get such a part of the limit, beyond it if need be, where what stands still leaves them nothing: so
/// that they get on and swap among themselves, for whoever is to let it go on may be one of them.
const OTHERS_PART: u64 = 8;
const OTHERS_BYTES_MIN: u64 = 4 << 20;
const OTHERS_BYTES_MAX: u64 = 64 << 20;

/// The process cannot answer now. Nobody waits for it, and reclaim does not pick it, until `take_back` finds
/// that it goes on.
pub fn set_aside(process: &Process, agent: &Agent) {
    agent.aside.note(standstill::of(agent.evictor.tid).unwrap_or(Standstill::Unknown));
    process.space.set_aside(true, &[]);
}

/// Processes that go on get their turn again.
pub fn take_back(run: &Run) {
    let spaces = run.engine.spaces();
    for space in spaces.iter().filter(|space| space.is_aside()) {
        let Some(process) = run.process(u64::from(space.id.0)) else { continue };
        let Some(agent) = process.memory.agent() else { continue };
        if standstill::of(agent.evictor.tid).is_some() {
            continue;
        }
        let Some(_evictor) = process.take_evictor(Duration::ZERO) else { continue };
        if process.caught_up(agent) {
            agent.aside.note_going_on();
            space.set_aside(false, &spaces);
        }
    }
    lend(run);
}

/// Is none of its pages to be had for now? It stands still, or it is the child of a fork that has not joined
/// yet.
fn cannot_give(process: &Process) -> bool {
    process.space.is_aside() || process.memory.serving_agent().is_none()
}

/// Raise the limits of groups in which processes that stand still have left nothing to others; set the limits
/// of the other groups back.
fn lend(run: &Run) {
    let engine = &run.engine;
    let mut still = run.processes();
    still.retain(|process| cannot_give(process));
    let counts = |agent: &Agent| agent.aside.serves_beyond() || agent.aside.others_wait();
    let is_waited_for =
        |process: &Arc<Process>| process.space.is_aside() && process.memory.agent().is_some_and(counts);
    for group in engine.groups().all() {
        let within = || still.iter().filter(|process| process.space.group(engine.swap()).is_within(group));
        if !within().any(is_waited_for) {
            group.lend(0);
            continue;
        }
        let pages: u64 = within().map(|process| process.space.resident_pages()).sum();
        let there_bytes =
            pages.saturating_sub(group.discount_pages()) * PAGE_SIZE as u64 + group.other_bytes();
        group.lend((there_bytes + bytes_for_others(group)).saturating_sub(group.max_bytes()));
    }
}

/// Groups that are over their high mark, and in which processes that stand still have left less to others
/// than half of what those are to have.
pub fn squeezed(run: &Run) -> Vec<Arc<Group>> {
    let engine = &run.engine;
    let spaces = engine.spaces();
    if !spaces.iter().any(|space| space.is_aside()) {
        return Vec::new();
    }
    // A space without a process is shared memory.
    let gives = |space: &&Arc<Space>| match run.process(u64::from(space.id.0)) {
        Some(process) => !cannot_give(&process),
        None => !space.is_aside(),
    };
    let is_squeezed = |group: &&Arc<Group>| {
        let within = || spaces.iter().filter(|space| space.group(engine.swap()).is_within(group));
        let others: u64 = within().filter(gives).map(|space| space.resident_pages()).sum();
        within().any(|space| space.is_aside())
            && within().any(|space| gives(&space))
            && group.above_high_mark()
            && others * PAGE_SIZE as u64 <= bytes_for_others(group) / 2
    };
    engine.groups().all().iter().filter(is_squeezed).cloned().collect()
}

/// A process of this group that goes on waits for room.
pub fn others_wait(run: &Run, group: &Group) -> bool {
    let within = |process: &Arc<Process>| process.space.group(run.engine.swap()).is_within(group);
    run.waiting_processes().iter().any(|process| !process.space.is_aside() && within(process))
}

/// Others of this group have their part from now on, beyond the limit if need be.
pub fn relieve(run: &Run, group: &Group) {
    let engine = &run.engine;
    let processes = run.processes();
    let within = |process: &&Arc<Process>| {
        process.space.is_aside() && process.space.group(engine.swap()).is_within(group)
    };
    for process in processes.iter().filter(within) {
        if let Some(agent) = process.memory.agent() {
            tell_of_standstill(process, agent, false, bytes_for_others(group));
            agent.aside.note_others_wait();
        }
    }
    lend(run);
    run.poke_waiting();
}

/// Faults wait, and nothing moves: is that because of processes of this group that stand still? They are told
/// of, and are waited for; but not by their own faults.
pub fn await_those_aside(run: &Run, group: &Group) -> bool {
    let engine = &run.engine;
    let within = |process: &Arc<Process>| {
        process.space.is_aside() && process.space.group(engine.swap()).is_within(group)
    };
    let aside: Vec<Arc<Process>> = run.processes().into_iter().filter(within).collect();
    let waiting: Vec<u64> = run.waiting_processes().iter().map(|process| process.key).collect();
    let (mut pages, mut beyond) = (0, false);
    for process in &aside {
        let Some(agent) = process.memory.agent() else { continue };
        let own = waiting.contains(&process.key);
        if own {
            agent.aside.serve_beyond();
        }
        beyond |= own;
        pages += process.space.resident_pages();
        // A pager that tries them has them in its hands just now.
        if !waiting.is_empty() {
            tell_of_standstill(process, agent, own, bytes_for_others(group));
        }
        if waiting.iter().any(|key| *key != process.key) {
            agent.aside.note_others_wait();
        }
    }
    lend(run);
    run.poke_waiting();
    // With less than this from them, faults would wait on.
    beyond || pages * PAGE_SIZE as u64 >= group.gap_bytes()
}

/// Once for each time that it stands still.
fn tell_of_standstill(process: &Process, agent: &Agent, own: bool, others_bytes: u64) {
    let Some(why) = agent.aside.why() else { return };
    if !agent.aside.is_to_be_told() {
        return;
    }
    let name = standstill::name(process.memory.pid());
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
