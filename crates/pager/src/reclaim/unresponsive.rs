//! Processes of which no page can be had for now, and none of which may hold up the others:
//!
//! * one that stands still (stopped, traced, frozen): its evictor does not answer;
//! * the child of a fork that has not joined yet, whatever keeps it: a tracer that stops its parent's evictor
//!   stops it too.
//!
//! ```text
//!   cannot be asked ─▶ set aside: not picked, not waited for ─▶ looked at now and then ─▶ its turn again
//!                        └─ others have next to nothing, or nothing moves ─▶ told; room beyond limits
//! ```
//!
//! A process that stands still goes on in its turn; until then others give room, and pools do. If that is not
//! enough, a line says what stands still and why, and its group is lent some room until it goes on:
//!
//! * the room that it needs while it stands still itself (its tracer reads its memory), which must not wait
//!   for it;
//! * what others need to have a part of the limit (OTHERS_PART): they may have no page left to give, and
//!   among them may be the one that is to let it go on (its tracer, a shell);
//! * beside what others have and cannot give either (locked pages); and more, step by step, where they get
//!   nowhere with that.
//!
//! One that may go on by itself, for it lacks a CPU or waits in the kernel, brings no more than half a part:
//! with its own faults it would take beyond the budget what it does not give; it gives the sooner if these
//! wait.
//!
//! Never more than what stands still holds: with that much, they are where they would be if all of it was
//! swapped out, and nothing that is still to come will help them.
//!
//! The second is not only for where nothing moves: of others that hold some pages at a time, each of which
//! leaves as soon as it has come, something always moves, and none gets on (`squeezed`).

use crate::process::Process;
use crate::process::standstill::{self, Standstill};
use crate::run::Run;
use crate::times::{AGENT_JOINS, SILENCE_TOLD};
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
pub fn set_aside(process: &Process, why: Standstill) {
    process.space.set_aside(true, &[]);
    process.aside.note(why);
}

/// One of this group that answers late or not at all, for it has no CPU to run on: that of which most is in
/// memory.
pub fn without_cpu(run: &Run, group: &Group) -> Option<Arc<Process>> {
    let is_without = |process: &Arc<Process>| {
        let is_late = || process.memory.attached_agent().is_some_and(|agent| agent.evictor.lacks_cpu());
        is_within(run, &process.space, group) && (process.aside.why() == Some(Standstill::NoCpu) || is_late())
    };
    let without = run.processes().into_iter().filter(is_without);
    without.max_by_key(|process| process.space.resident_pages())
}

/// Processes that go on get their turn again.
pub fn take_back(run: &Run) {
    let is_still = |process: &&Arc<Process>| process.space.is_aside() || process.aside.why().is_some();
    for process in run.processes().iter().filter(is_still) {
        let goes_on = match process.space.is_aside() {
            true => answers(process),
            false => !process.may_join(),
        };
        if goes_on {
            process.aside.note_going_on();
            process.space.set_aside(false, &run.engine.spaces());
        }
    }
    for group in run.engine.groups().all().iter().filter(|group| group.lent_bytes() > 0) {
        group.lend(loan_bytes(run, group, group.lent_bytes(), Dry::May));
    }
}

fn answers(process: &Process) -> bool {
    let Some(agent) = process.memory.attached_agent() else { return false };
    if standstill::of(agent.evictor.tid).is_some() {
        return false;
    }
    let Some(_evictor) = process.take_evictor(Duration::ZERO) else { return false };
    process.caught_up(agent)
}

fn cannot_give(process: &Process) -> bool {
    process.space.is_aside() || process.may_join()
}

/// The processes of the group that cannot give a page.
fn still_in(run: &Run, group: &Group) -> Vec<Arc<Process>> {
    let is_still = |process: &Arc<Process>| is_within(run, &process.space, group) && cannot_give(process);
    run.processes().into_iter().filter(is_still).collect()
}

fn is_for_a_while(process: &Process) -> bool {
    process.aside.why().is_some_and(Standstill::is_for_a_while)
}

fn is_within(run: &Run, space: &Space, group: &Group) -> bool {
    space.group(run.engine.swap()).is_within(group)
}

/// What of a space that gave nothing when it was asked last: may it later? It may have been in work for a
/// moment only.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dry {
    May,
    MayNot,
}

/// Pages of a space that may be had, as far as it is known.
fn givable_pages(run: &Run, space: &Space, dry: Dry) -> u64 {
    // One without a process is shared memory, or that of a child which is still to come.
    let is_still = run.process(u64::from(space.id.0)).is_some_and(|process| cannot_give(&process));
    match is_still || space.is_aside() || dry == Dry::MayNot && space.is_dry() {
        true => 0,
        false => space.resident_pages().min(space.evictable() as u64),
    }
}

fn resident_bytes(processes: &[Arc<Process>]) -> u64 {
    processes.iter().map(|process| process.space.resident_pages() * PAGE_SIZE as u64).sum()
}

/// What a group is to be lent: others have their part by it. No less than `wanted_bytes`, as far as what
/// stands still holds that much.
fn loan_bytes(run: &Run, group: &Group, wanted_bytes: u64, dry: Dry) -> u64 {
    // Pages of a child that has not joined are its parent's, mostly: swapped out, they would free nothing.
    let twice_bytes = group.discount_pages() * PAGE_SIZE as u64;
    let (for_a_while, still): (Vec<_>, Vec<_>) =
        still_in(run, group).into_iter().partition(|process| is_for_a_while(process));
    let most_bytes = resident_bytes(&still).saturating_sub(twice_bytes)
        + resident_bytes(&for_a_while).min(bytes_for_others(group) / 2);
    if most_bytes == 0 {
        return 0;
    }
    let spaces = run.engine.spaces();
    let within = spaces.iter().filter(|space| is_within(run, space, group));
    let stays = |space: &Arc<Space>| space.resident_pages().saturating_sub(givable_pages(run, space, dry));
    let stays_pages: u64 = within.map(stays).sum();
    let counted_bytes = (stays_pages * PAGE_SIZE as u64).saturating_sub(twice_bytes);
    let needed_bytes = counted_bytes + group.other_bytes() + bytes_for_others(group);
    needed_bytes.saturating_sub(group.bound_bytes()).max(wanted_bytes).min(most_bytes)
}

/// Finds room for those who wait for it in this group. False: it is lent all that it can be.
fn lend_more(run: &Run, group: &Group) -> bool {
    let lent_bytes = group.lent_bytes();
    group.lend(loan_bytes(run, group, lent_bytes, Dry::MayNot));
    if group.is_full_itself() {
        group.lend(loan_bytes(run, group, lent_bytes + bytes_for_others(group), Dry::MayNot));
    }
    run.poke_waiting();
    !group.is_full_itself() || group.lent_bytes() > lent_bytes
}

/// Groups that are over their high mark, and in which processes that stand still have left others less that
/// can be swapped than half of what they are to have.
pub fn squeezed(run: &Run) -> Vec<Arc<Group>> {
    let engine = &run.engine;
    if !run.processes().iter().any(|process| cannot_give(process)) {
        return Vec::new();
    }
    let spaces = engine.spaces();
    let is_squeezed = |group: &&Arc<Group>| {
        let within = spaces.iter().filter(|space| is_within(run, space, group));
        let givable_pages: u64 = within.map(|space| givable_pages(run, space, Dry::MayNot)).sum();
        group.above_high_mark()
            && givable_pages * PAGE_SIZE as u64 <= bytes_for_others(group) / 2
            && !still_in(run, group).is_empty()
    };
    engine.groups().all().iter().filter(is_squeezed).cloned().collect()
}

/// A process of this group that goes on waits for room.
pub fn others_wait(run: &Run, group: &Group) -> bool {
    let waits = |process: &Arc<Process>| !cannot_give(process) && is_within(run, &process.space, group);
    run.waiting_processes().iter().any(waits)
}

/// Others of this group have their part from now on, beyond the limit if need be.
pub fn relieve(run: &Run, group: &Group) {
    for process in &still_in(run, group) {
        tell_of_standstill(process, false, bytes_for_others(group));
    }
    lend_more(run, group);
}

/// Faults wait, and nothing moves: is that because of processes of this group that stand still? They are told
/// of, and are waited for; but not by their own faults.
pub fn await_those_aside(run: &Run, group: &Group) -> bool {
    let still = still_in(run, group);
    let waiting: Vec<u64> = run.waiting_processes().iter().map(|process| process.key).collect();
    let mut beyond = false;
    for process in &still {
        look_again(process);
        let own = process.space.is_aside() && !is_for_a_while(process) && waiting.contains(&process.key);
        if own {
            process.aside.serve_beyond();
        }
        beyond |= own;
        // A pager that tries them has them in its hands just now.
        if !waiting.is_empty() {
            tell_of_standstill(process, own, bytes_for_others(group));
        }
    }
    let lent = lend_more(run, group);
    // With less than this from them, faults would wait on.
    beyond || lent && resident_bytes(&still) >= group.gap_bytes()
}

/// A process that may go on by itself may have changed by now: a tracer has stopped it since.
fn look_again(process: &Process) {
    if is_for_a_while(process)
        && let Some(agent) = process.memory.attached_agent()
    {
        process.aside.note(standstill::of_silent(agent.evictor.tid));
    }
}

/// Once for each time that it stands still.
fn tell_of_standstill(process: &Process, own: bool, others_bytes: u64) {
    let is_child = process.may_join();
    if is_child && process.aside.why().is_none() {
        process.aside.note(standstill::of(process.memory.pid()).unwrap_or(Standstill::NotJoined));
    }
    // Most children join in a moment.
    let Some(why) = process.aside.why().filter(|_| !is_child || process.age() > AGENT_JOINS) else { return };
    if why.is_for_a_while() && process.aside.lasts_for() < SILENCE_TOLD {
        return;
    }
    if !process.aside.is_to_be_told() {
        return;
    }
    let name = match process.memory.pid() {
        0 => "the child of a fork".into(),
        pid => standstill::name(pid),
    };
    let mib = (process.space.resident_pages() * PAGE_SIZE as u64).div_ceil(1 << 20);
    let then = match own {
        true => "what it needs itself comes beyond the budget".into(),
        false if why.is_for_a_while() => "whoever needs memory waits".into(),
        false => format!("others have {} MiB, beyond the budget if need be", others_bytes >> 20),
    };
    eprintln!("memspill: {name} {why}, so its {mib} MiB cannot be swapped out; until it goes on, {then}");
}

fn bytes_for_others(group: &Group) -> u64 {
    (group.bound_bytes() / OTHERS_PART).clamp(OTHERS_BYTES_MIN, OTHERS_BYTES_MAX)
}
