//! MADV_REMOVE of shared memory by a program's own instructions, which no agent tells of.
//!
//! The kernel's event (REMOVE) is the same for MADV_DONTNEED, after which shared pages are as before, and for
//! MADV_REMOVE, after which they are zeros: also those that are swapped out, which the kernel knows nothing
//! of. Which it is shows only as long as the event is not read, for until then its thread waits in the call.
//! So a process that has managed shared memory is read with care:
//!
//! ```text
//!   look    is anything changing? Then which calls do its threads wait in? What MADV_REMOVE names is removed
//!           here and now, as if the agent had told of it
//!   read    one message after the other, and no event unless there was a look since the last one: what is
//!           readable while nothing changes is a fault
//! ```
//!
//! A fault may go away between the question and the reading (a signal), and an event come in its place. Then
//! nobody has seen its call. If nothing of the range is swapped out it does not matter. Else we wait until
//! its thread has left the call: an object's times tell whether anybody has made a hole but us. If somebody
//! has, what is swapped out cannot be trusted, and the run ends.

use crate::faults::shared;
use crate::process::Process;
use crate::run::Run;
use crate::shared::{Object, PagesHeld};
use crate::threads::{self, Busy, WaitingCall};
use crate::times::{CALL_ENDS, CHANGE_STEP};
use memspill_engine::units::{PAGE_SIZE, Vpn};
use memspill_engine::word::State;
use memspill_uffd::userfaultfd::{Event, MESSAGES_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Looks for the thread that waits with an event: it is about to.
const LOOKS_MAX: u32 = 20;
/// Calls that have an event.
const CHANGES: [i64; 8] = [
    libc::SYS_madvise,
    libc::SYS_process_madvise,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mmap,
    libc::SYS_brk,
    libc::SYS_clone,
    libc::SYS_clone3,
];

/// What was seen before a reading.
pub struct Seen {
    is_changing: bool,
    /// Ranges of madvise calls that waited.
    advised: Vec<(u64, u64)>,
}

/// To be called inside the gate, before the userfaultfd is read. None: there is nothing to be careful of.
pub fn look(run: &Run, process: &Process) -> Option<Seen> {
    if !process.memory.shared.any() {
        return None;
    }
    let mut seen = Seen { is_changing: process.memory.uffd.is_changing(), advised: Vec::new() };
    if seen.is_changing {
        let advice: Vec<WaitingCall> =
            calls_of_changes(process).into_iter().filter(|call| call.number == libc::SYS_madvise).collect();
        for WaitingCall { args: [addr, len, advice], .. } in advice {
            let Some(end) =
                len.checked_next_multiple_of(PAGE_SIZE as u64).and_then(|len| addr.checked_add(len))
            else {
                continue;
            };
            if advice as i32 == libc::MADV_REMOVE && process.memory.shared.intersects(addr, end) {
                shared::remove_pages(run, process, addr, end);
            }
            seen.advised.push((addr, end));
        }
    }
    Some(seen)
}

/// The calls that threads of the process wait in, once one that changes the address space is among them.
///
/// A thread whose event was read may still wait in its call, for the lock of the address space. That call
/// must not vouch for the next event, which may be the same thread's MADV_REMOVE of the same pages. So what
/// is no MADV_REMOVE counts if its thread waits in it before and after a moment in which something was
/// changing: then it waits for its event, or another thread does, whose call is among these.
fn calls_of_changes(process: &Process) -> Vec<WaitingCall> {
    let waiting = || threads::waiting_calls(process.memory.proc_id());
    let removes =
        |call: &WaitingCall| call.number == libc::SYS_madvise && call.args[2] as i32 == libc::MADV_REMOVE;
    for _ in 0..LOOKS_MAX {
        let before = waiting();
        if process.memory.uffd.is_changing() {
            let mut calls = waiting();
            calls.retain(|call| removes(call) || before.contains(call));
            if calls.iter().any(|call| CHANGES.contains(&call.number)) {
                return calls;
            }
        }
        std::thread::sleep(CHANGE_STEP);
    }
    Vec::new()
}

/// Read faults, and an event if its call may have been seen.
pub fn read(process: &Process, seen: &Seen, messages: &mut Vec<Event>) -> io::Result<usize> {
    let (uffd, mut count) = (&process.memory.uffd, 0);
    while count < MESSAGES_MAX && uffd.is_readable() && (seen.is_changing || !uffd.is_changing()) {
        let before = messages.len();
        let read = uffd.read_one(messages)?;
        count += read;
        if read == 0 || messages[before..].iter().any(|m| !matches!(m, Event::Fault { .. })) {
            break;
        }
    }
    Ok(count)
}

/// Was each of these events' call seen, or does it not matter?
pub fn check(run: &Run, process: &Process, seen: &Seen, messages: &[Event]) {
    for message in messages {
        let Event::Remove { start, end } = *message else { continue };
        let is_seen = seen.advised.iter().any(|(from, to)| *from <= start && end <= *to);
        if !is_seen
            && process.memory.shared.intersects(start, end)
            && may_be_removed(run, process, start, end)
        {
            let pid = process.memory.pid();
            run.fail(format!("shared memory of process {pid} may have been removed, unseen by memspill"));
        }
    }
}

/// Has somebody made a hole in an object of which some of [start, end) is swapped out?
fn may_be_removed(run: &Run, process: &Process, start: u64, end: u64) -> bool {
    let pieces = process.memory.shared.within(start, end);
    let keys: BTreeSet<u64> = pieces.iter().map(|(key, ..)| *key).collect();
    // Each once, and always in the same order.
    let objects: BTreeMap<u64, Arc<Object>> =
        keys.into_iter().filter_map(|key| Some((key, run.object(key)?))).collect();
    let held: Vec<PagesHeld<'_>> = objects.values().map(|object| object.hold_pages()).collect();
    let is_away = |(key, from, to): &(u64, u64, u64)| {
        objects.get(key).is_some_and(|object| {
            let known = object.space.known_pages(Vpn(*from), Vpn(*to), usize::MAX);
            known.iter().any(|vpn| object.space.word(*vpn).state() != State::Resident)
        })
    };
    // While the pages are held: what is in memory now does not leave before the hole is made.
    let is_over = has_left_its_call(process);
    let is_changed = objects.values().any(|object| !object.memory.mapped.is_punched_by_us_only());
    let is_any_away = pieces.iter().any(is_away);
    drop(held);
    is_any_away && (!is_over || is_changed)
}

/// Wait until each thread of the process has left the call in which it may have been. False if one does not.
fn has_left_its_call(process: &Process) -> bool {
    let begun = Instant::now();
    // The child of a fork, and nobody knows which process it is: its threads cannot be looked at.
    if process.memory.proc_id() == 0 && !process.is_known() {
        return false;
    }
    // One that has ended is in no call.
    let Ok(mut busy) = Busy::of(process.memory.proc_id()) else { return true };
    while !busy.is_over() {
        if begun.elapsed() > CALL_ENDS {
            return false;
        }
        std::thread::sleep(CHANGE_STEP);
    }
    true
}
