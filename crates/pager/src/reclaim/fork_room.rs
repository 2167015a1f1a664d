//! Room for the copies that a fork may lead to, where nothing tells of them.
//!
//! A page that a fork leaves shared becomes two when one of its owners writes to it, and the kernel makes the
//! copy by itself. In agent mode a fork waits until there is room for copies of all that will be shared:
//! reclaim makes that, of what is shared too, which comes back by faults then. A page that leaves before the
//! fork is stored once, and makes room at once; one that is shared leaves each owner by itself.
//!
//! ```text
//!   the parent, before its fork      door                               reclaim
//!   KIND_FORK_ROOM ────────────────▶ copies of all would fit? ─ no ───▶ a reservation: works until they do
//!     again, a ms later  ◀────────── EAGAIN
//!     forks              ◀────────── 0: they fit, or it has waited for FORK_ROOM
//! ```
//!
//! While they write, room is kept for what they still share, where writes are no faults of ours (holes by
//! guard pages; else `monitor/protect.rs`): children could grow as fast as they write. Programs whose last
//! child was quiet, or ran another program, do not wait (`process/lineage.rs`).
//!
//! What it does not do: hold up whoever writes.

use crate::process::Process;
use crate::run::Run;
use crate::times::{FORK_ROOM, now_us};
use memspill_engine::group::Group;
use memspill_engine::units::PAGE_SIZE;
use std::sync::Arc;

/// Less is not worth waiting for: it is within what a budget may be passed by.
const SMALL_BYTES: u64 = 4 << 20;
/// What may be left without room, as a part of the limit.
const SPARE_PART: u64 = 32;
/// The largest part of the limit that is kept free.
const MOST_PART: u64 = 2;

/// May this process fork now, as far as that goes? `awaits_child`: what an earlier one has is not counted
/// yet.
pub fn is_there(run: &Run, pid: u32, awaits_child: bool) -> bool {
    let Some(process) = run.process_of_pid(pid) else { return true };
    let shared_bytes = bytes_of(&process);
    if shared_bytes < SMALL_BYTES || !process.sharing.writes() {
        return true;
    }
    let own = process.space.group(run.engine.swap());
    let fit = |group: &Arc<Group>| {
        let counted_bytes = group.usage_bytes() + discount_bytes(group.discount_pages());
        let limit_bytes = group.limit_bytes();
        counted_bytes.saturating_add(shared_bytes) <= limit_bytes.saturating_add(limit_bytes / SPARE_PART)
    };
    let groups = run.engine.groups().all();
    let fits = !awaits_child && groups.iter().filter(|group| own.is_within(group)).all(fit);
    if fits || run.forks_waiting.ask(process.key, shared_bytes) >= FORK_ROOM {
        run.forks_waiting.go(process.key);
        return true;
    }
    reserve(run);
    run.kick_reclaim();
    false
}

/// A process forks, or has been forked, and shares what it has.
pub fn note_forks(process: &Process) {
    let faults = copies(process).unwrap_or(0);
    process.sharing.forks(now_us(), faults, bytes_of(process) / PAGE_SIZE as u64);
}

/// See how far copying has come, and keep room for the rest.
pub fn look(run: &Run) {
    let is_watched = |process: &&Arc<Process>| concerns(process) && process.sharing.is_watched(now_us());
    for process in run.processes().iter().filter(is_watched) {
        if let Some(faults) = copies(process) {
            process.sharing.look(now_us(), faults);
        }
    }
    reserve(run);
}

fn reserve(run: &Run) {
    let (processes, waiting) = (run.processes(), run.forks_waiting.bytes());
    let wanted_bytes = |process: &Arc<Process>| {
        let is_writing =
            concerns(process) && !process.memory.port.can_protect() && process.sharing.is_writing(now_us());
        let shared_pages = if is_writing { process.space.discount_pages() } else { 0 };
        waiting.get(&process.key).copied().unwrap_or(0) + discount_bytes(shared_pages)
    };
    for group in run.engine.groups().all() {
        let within = processes.iter().filter(|p| p.space.group(run.engine.swap()).is_within(group));
        let bytes: u64 = within.map(wanted_bytes).sum();
        group.reserve(bytes.min(group.limit_bytes() / MOST_PART));
    }
}

/// Only an agent asks.
fn concerns(process: &Process) -> bool {
    process.memory.port.protects_by_agent()
}

fn bytes_of(process: &Process) -> u64 {
    process.space.resident_pages() * PAGE_SIZE as u64 + process.growth.unmanaged_bytes()
}

fn discount_bytes(pages: u64) -> u64 {
    pages * PAGE_SIZE as u64
}

/// Faults that the kernel has served by itself, and those that were asked for: copies, and others.
fn copies(process: &Process) -> Option<u64> {
    let asked = if process.memory.port.counts_fills() { 0 } else { process.memory.copies.asked() };
    Some(process.kernel_faults()? + asked)
}
