//! MADV_REMOVE of shared memory by a program's own instructions, which no agent tells of.
//!
//! The kernel's event (REMOVE) is the same for MADV_DONTNEED, after which shared pages are as before, and for
//! MADV_REMOVE, after which they are zeros: also those that are swapped out, which the kernel knows nothing
//! of. It shows which of the two it is only as long as the event is not read, for until then its thread waits
//! in the call. So a process that has managed shared memory is read with care:
//!
//! ```text
//!   look    is anything changing? Then until a thread waits with its event: what are the threads at? What
//!           MADV_REMOVE names is removed here and now, as if the agent had told of it
//!   read    one message after the other, and no event unless there was a look since the last one: what is
//!           readable while nothing changes is a fault
//!   check   is the event in what was removed, or in what other advice names that waited with its event?
//! ```
//!
//! *Whose event it is.* Events are read in the order in which they came. A thread whose event was read may
//! wait in its call for some time more, for the lock of the address space, and come with its next event, a
//! MADV_REMOVE, before the next reading. So advice counts only if its thread waits with its event, which the
//! kernel tells (/proc/PID/task/TID/wchan). Another thread that runs may have an event that is older: each
//! reading wakes all who have one, and they fall asleep again. So before that advice counts, those that run
//! are waited for, and all are looked at once more.
//!
//! *Else nobody has seen the event's call.* If nothing of the range is swapped out it does not matter. Else
//! we wait until its thread has left the call: an object's times tell whether anybody has made a hole but us.
//! If somebody has, what is swapped out cannot be trusted, and the run ends. So it is where the kernel does
//! not tell what threads wait for.
//!
//! Not seen: threads of a process that shares the address space and is not the same process (vfork). And a
//! MADV_REMOVE beside another thread's advice on the same memory, if its thread has an event, was woken by
//! the reading of a third one, and had no CPU since for a tenth of a second.

use crate::faults::shared;
use crate::process::Process;
use crate::run::Run;
use crate::shared::{Object, PagesHeld};
use crate::threads::{self, Busy, Waiting};
use crate::times::{CALL_ENDS, CALL_SHOWS, CHANGE_STEP};
use memspill_engine::units::{PAGE_SIZE, Vpn};
use memspill_engine::word::State;
use memspill_uffd::userfaultfd::{Event, MESSAGES_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Calls that have an event, and of which we know what they do.
const CHANGES: [i64; 10] = [
    libc::SYS_madvise,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mmap,
    libc::SYS_shmdt,
    libc::SYS_brk,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_clone,
    libc::SYS_clone3,
];

/// What was seen before a reading.
pub struct BeforeRead {
    is_changing: bool,
    /// Ranges that were removed, or are about to be given up by other advice: an event in them is no
    /// surprise.
    expected: Vec<Range>,
}

/// Addresses: [start, end).
type Range = (u64, u64);

/// To be called inside the gate, before the userfaultfd is read. None: there is nothing to be careful of.
pub fn look(run: &Run, process: &Process) -> Option<BeforeRead> {
    if !process.memory.shared.any() {
        return None;
    }
    // Messages that are not there yet are not read now.
    let is_changing = process.memory.port.is_changing() && process.memory.port.is_readable();
    let expected = if is_changing { expected(run, process) } else { Vec::new() };
    Some(BeforeRead { is_changing, expected })
}

fn expected(run: &Run, process: &Process) -> Vec<Range> {
    let (pid, begun) = (process.memory.proc_id(), Instant::now());
    let mut threads = threads::waiting(pid);
    // There are none of a fork's child of which nobody knows which process it is.
    while pid != 0 && !threads.iter().any(|thread| thread.has_event) && begun.elapsed() < CALL_SHOWS {
        std::thread::sleep(CHANGE_STEP);
        threads = threads::waiting(pid);
    }
    let mut expected = remove_what_is_named(run, process, &threads);
    threads.retain(|thread| thread.has_event);
    let mut advice = advised(&threads, |advice| advice != libc::MADV_REMOVE);
    advice.retain(|(start, end)| process.memory.shared.intersects(*start, *end));
    if !advice.is_empty() {
        threads::wait_for_running(pid, CALL_SHOWS);
    }
    // A thread that was about to wait does by now.
    let threads = threads::waiting(pid);
    expected.extend(remove_what_is_named(run, process, &threads));
    if threads.iter().all(|thread| !thread.has_event || is_no_other_removal(thread)) {
        expected.extend(advice);
    }
    expected
}

/// What threads give to MADV_REMOVE is removed. (A mapping may have moved, and nobody have told us yet where:
/// so all that is named is looked up.)
fn remove_what_is_named(run: &Run, process: &Process, threads: &[Waiting]) -> Vec<Range> {
    let named = advised(threads, |advice| advice == libc::MADV_REMOVE).into_iter();
    named.map(|(start, end)| (start, shared::remove_pages(run, process, start, end))).collect()
}

/// The ranges of such advice that these threads wait in.
fn advised(threads: &[Waiting], is_such: impl Fn(i32) -> bool) -> Vec<Range> {
    let advised = |thread: &Waiting| {
        let call = thread.call.filter(|call| call.number == libc::SYS_madvise)?;
        let [start, len, advice] = call.args;
        let end = start.checked_add(len.checked_next_multiple_of(PAGE_SIZE as u64)?)?;
        is_such(advice as i32).then_some((start, end))
    };
    threads.iter().filter_map(advised).collect()
}

/// Is what it waits in no MADV_REMOVE that we cannot see: by process_madvise, a call of 32-bit code, or
/// io_uring?
fn is_no_other_removal(thread: &Waiting) -> bool {
    thread.call.is_some_and(|call| CHANGES.contains(&call.number))
}

/// Read faults, and an event if its call may have been seen.
pub fn read(process: &Process, seen: &BeforeRead, messages: &mut Vec<Event>) -> io::Result<usize> {
    let (port, mut count) = (&process.memory.port, 0);
    while count < MESSAGES_MAX && port.is_readable() && (seen.is_changing || !port.is_changing()) {
        let before = messages.len();
        let read = port.read_one(messages)?;
        count += read;
        if read == 0 || messages[before..].iter().any(|m| !matches!(m, Event::Fault { .. })) {
            break;
        }
    }
    Ok(count)
}

/// Was each of these events expected, or does it not matter?
pub fn check(run: &Run, process: &Process, seen: &BeforeRead, messages: &[Event]) {
    for message in messages {
        let Event::Remove { start, end } = *message else { continue };
        let is_expected = seen.expected.iter().any(|(from, to)| *from <= start && end <= *to);
        if !is_expected
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

/// Wait until each thread of the process has left the call in which it may have been, or waits with an event.
/// False if one does not.
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
        busy.leave_out_who_has_an_event();
    }
    true
}
