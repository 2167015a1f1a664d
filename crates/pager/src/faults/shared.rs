//! Shared memory: what changes of address spaces mean for it, and MADV_REMOVE.
//!
//! ```text
//!   UNMAP, REMAP    mappings change, pages do not: the list of the process's mappings is read anew
//!   FORK            the child has its parent's list, and its own as soon as it is known which process it is
//!   REMOVE          MADV_DONTNEED: pages of the object stay as they are, in memory or in their slots;
//!                   or MADV_REMOVE: `removals.rs`
//!   CALL_REMOVE     MADV_REMOVE, told by the agent before the call: the pages are gone for everybody
//! ```
//!
//! The list is read inside the gate, when no event of the process is unread or all that were have been read:
//! so whatever changes afterwards is told afterwards. A mapping of a managed object is always a registered
//! one: nobody can map such an object anew (of a file, `files.rs` sees to that), and what comes of a
//! registered mapping is registered.
//!
//! *MADV_REMOVE.* The kernel tells of it as it does of MADV_DONTNEED, and what it removes would come back
//! from our slots. So the agent calls before it: inside the object's gate all that we know of the pages goes,
//! and the pages with it. Bytes that the kernel removes afterwards were stored while the call was under way.
//! By the program's own instructions nobody calls: then the event is looked at before it is read
//! (`removals.rs`).

use crate::faults::order::change::Change;
use crate::proc::{self, SharedMapping};
use crate::process::Process;
use crate::process::ranges::Ranges;
use crate::process::shared::Mapped;
use crate::run::Run;
use memspill_engine::units::{PAGE_SIZE, Vpn};
use std::collections::BTreeSet;

/// The places of objects among these mappings that the process is known to have mapped, or that all who have
/// them mapped are registered for. Other objects are left out: one may be about to be managed, and its
/// mapping here not registered yet. The list would say that it is.
pub fn managed_of(run: &Run, process: &Process, mappings: &[SharedMapping]) -> Vec<Mapped> {
    let known: BTreeSet<u64> = process.memory.shared.list().iter().map(|mapped| mapped.object).collect();
    let managed = |m: &SharedMapping| {
        let object = run.object_of(m.object)?;
        let object = (known.contains(&object.key) || object.is_adopted()).then_some(object.key)?;
        Some(Mapped { start: m.start, end: m.end, first_page: m.offset / PAGE_SIZE as u64, object })
    };
    mappings.iter().filter_map(managed).collect()
}

/// May these changes have changed where shared memory is mapped?
pub fn concerns(process: &Process, changes: &[Change]) -> bool {
    let shared = &process.memory.shared;
    shared.any()
        && changes.iter().any(|change| match *change {
            Change::Unmap { start, end } => shared.intersects(start, end),
            Change::Remap { from, to, len } => {
                shared.intersects(from, from + len) || shared.intersects(to, to + len)
            }
            Change::Remove { .. } => false,
        })
}

/// What the process has mapped now, after these changes. The caller is inside its gate. If it cannot be read,
/// everything that may be mapped.
pub fn now_mapped(run: &Run, process: &Process, changes: &[Change]) -> Vec<Mapped> {
    match process.memory.proc_id() {
        0 => may_be_mapped(process.memory.shared.list(), changes),
        pid => match proc::shared_maps_of_any_thread(pid) {
            Ok(maps) => {
                let now = managed_of(run, process, &maps.mappings);
                // The maps are not read at one moment: of what moves meanwhile neither place may be seen.
                let is_changing = process.memory.port.is_changing();
                process.memory.shared.set_doubtful(is_changing);
                match is_changing {
                    true => {
                        now.into_iter().chain(may_be_mapped(process.memory.shared.list(), changes)).collect()
                    }
                    false => now,
                }
            }
            Err(_) => may_be_mapped(process.memory.shared.list(), changes),
        },
    }
}

/// Each mapping where it was, and where it may have moved.
pub fn may_be_mapped(list: Vec<Mapped>, changes: &[Change]) -> Vec<Mapped> {
    let mut all = list;
    for change in changes {
        let Change::Remap { from, to, len } = *change else { continue };
        let moved = |m: &Mapped| {
            let (start, end) = (m.start.max(from), m.end.min(from + len));
            let first_page = m.first_page + start.saturating_sub(m.start) / PAGE_SIZE as u64;
            let (new_start, new_end) = (to + start.saturating_sub(from), to + end.saturating_sub(from));
            (start < end).then_some(Mapped { start: new_start, end: new_end, first_page, ..*m })
        };
        // The latest first: it is what is found.
        let moved: Vec<Mapped> = all.iter().filter_map(moved).collect();
        all.splice(0..0, moved);
    }
    all
}

/// A mapping has grown in place, by mremap, of which the kernel does not tell: the process may have more of
/// an object mapped. False: not now, something is changing.
pub fn look_again(run: &Run, process: &Process) -> bool {
    if !process.memory.shared.any() {
        return true;
    }
    let held = process.hold_pages();
    if process.memory.port.is_changing() {
        return false;
    }
    process.memory.shared.set(now_mapped(run, process, &[]));
    drop(held);
    true
}

/// MADV_REMOVE of [addr, addr + len) is about to be called by a thread of the process, which waits. False:
/// not now, something is changing.
pub fn remove(run: &Run, process: &Process, addr: u64, len: u64) -> bool {
    let Some(end) = addr.checked_add(len) else { return true };
    if !process.memory.shared.intersects(addr, end) {
        return true;
    }
    let held = process.hold_pages();
    if process.memory.port.is_changing() {
        return false;
    }
    remove_pages(run, process, addr, end);
    drop(held);
    run.poke_waiting();
    true
}

/// All that we know of the pages of objects in [addr, end) goes, and the pages with it. Returns up to which
/// address: the kernel stops where something is locked, and nothing is done for a process that is gone. The
/// caller is inside the process's gate, and a thread of it waits in the call or before it.
pub fn remove_pages(run: &Run, process: &Process, addr: u64, end: u64) -> u64 {
    let (pid, page) = (process.memory.proc_id(), PAGE_SIZE as u64);
    let Ok(maps) = proc::shared_maps_of_any_thread(pid) else { return addr };
    let locked: Ranges = match proc::locked_and_pinned(pid) {
        Some((0, _)) => Ranges::default(),
        _ => proc::locked(pid).unwrap_or_default().into_iter().collect(),
    };
    for m in maps.mappings.iter().filter(|m| m.start < end && addr < m.end) {
        if locked.intersects(m.start, m.end) {
            return m.start.max(addr);
        }
        let Some(object) = run.object_of(m.object) else { continue };
        let page_at = |at: u64| (m.offset + at - m.start) / page;
        let (from, to) = (page_at(m.start.max(addr)), page_at(m.end.min(end)));
        let _held = object.hold_pages();
        object.space.unmap(run.engine.swap(), crate::cpu(), Vpn(from), Vpn(to));
        if let Err(error) = object.memory.mapped.punch(from * page, (to - from) * page) {
            run.fail(format!("cannot remove pages of shared memory: {error}"));
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_moved_is_in_both_places() {
        let at = |start, end, first_page| Mapped { start, end, first_page, object: 7 };
        let changes = [Change::Remap { from: 0x3000, to: 0x9000, len: 0x2000 }];
        let list = may_be_mapped(vec![at(0x2000, 0x4000, 5)], &changes);
        assert_eq!(list, [at(0x9000, 0xa000, 6), at(0x2000, 0x4000, 5)]);
    }
}
