//! Guards (MADV_GUARD_INSTALL, MADV_GUARD_REMOVE): the kernel drops the pages under them and tells no
//! userfaultfd.
//!
//! ```text
//!   swapped out ── guard put ──▶ an access is SIGSEGV ── guard removed ──▶ must read as zero
//!        └───── our copy ─────────────────────────────────────────────────────┘ would come back
//! ```
//!
//! So our copy must go while the guard is there, or when it comes. Three ways lead here:
//!
//! - the agent calls after it has put guards (CALL_GUARDED): everything in the range goes;
//! - the agent calls before it removes guards (CALL_UNGUARD): what is under a guard goes;
//! - once a second all managed memory is searched, for guards that came without the C library.
//!
//! What holds: a page's word is dropped only inside the gate and under the batch lock, where no fill and no
//! batch is under way, after a look in the same span has shown the guard. So what the program stores after it
//! has removed the guard is never dropped: until the span ends its fault is not served. And nothing is
//! dropped while a change of the address space is under way: the guard may be on what came after the change,
//! and the word of what was there before.
//!
//! What is not covered: a guard that is put and removed again within a second, both by system calls of the
//! program's own instructions (not through the C library). The pages under it come back as they were.

use crate::process::Process;
use crate::run::Run;
use memspill_common::protocol::{CALL_GUARDED, Doorbell};
use memspill_engine::units::Vpn;

/// The bytes that are searched in one span: faults wait meanwhile.
const SPAN_BYTES: u64 = 64 << 20;

/// A thread of the process has called. False: not now, something is changing.
pub fn answer_call(run: &Run, process: &Process, call: Doorbell) -> bool {
    let end = call.addr.saturating_add(call.len);
    match call.call {
        CALL_GUARDED => forget_range(run, process, call.addr, end),
        _ => forget_guarded(run, process, call.addr, end),
    }
}

/// All that lies in the range is under guards now.
fn forget_range(run: &Run, process: &Process, start: u64, end: u64) -> bool {
    let held = process.hold_pages();
    if process.memory.port.is_changing() {
        return false;
    }
    process.space.unmap(run.engine.swap(), crate::cpu(), Vpn::from_addr(start), Vpn::from_addr(end));
    drop(held);
    run.poke_waiting();
    true
}

/// All managed memory of all processes: to be called about once a second. It costs some ns for each page that
/// is there.
pub fn forget_guarded_everywhere(run: &Run) {
    for process in run.processes().iter().filter(|process| !process.memory.port.keeps_guards()) {
        // Memory that is changing now is searched the next time.
        forget_guarded(run, process, 0, u64::MAX);
    }
}

/// Forget what lies under guards in the range. False: it could not be done for all of it.
fn forget_guarded(run: &Run, process: &Process, start: u64, end: u64) -> bool {
    // However large the range is, only where there are pages.
    let extents = process.space.extents();
    let within = extents.iter().map(|(from, to)| (from.addr().max(start), to.addr().min(end)));
    within.filter(|(from, to)| from < to).all(|(from, to)| forget_guarded_in_extent(run, process, from, to))
}

fn forget_guarded_in_extent(run: &Run, process: &Process, start: u64, end: u64) -> bool {
    let Some(agent) = process.memory.attached_agent() else { return true };
    let mut from = start;
    while from < end {
        let to = end.min(from.saturating_add(SPAN_BYTES));
        let held = process.hold_pages();
        let mut guards = Vec::new();
        // If the kernel cannot tell (before Linux 6.15), and at the end of the process, there is nothing to
        // be done.
        if agent.each_guarded(from, to, |from, to| guards.push((from, to))).is_err() {
            return true;
        }
        if !guards.is_empty() {
            process.memory.note_guards();
            // After the look: a change that it has seen the result of has begun before it.
            if process.memory.port.is_changing() {
                return false;
            }
        }
        for (from, to) in guards {
            process.space.unmap(run.engine.swap(), crate::cpu(), Vpn::from_addr(from), Vpn::from_addr(to));
        }
        drop(held);
        from = to;
    }
    true
}
