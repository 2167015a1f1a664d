//! While memory is tight, writes to pages that a fork has left shared come to us.
//!
//! Such a page becomes two when one of its owners writes to it, and the kernel makes that copy by itself,
//! without a fault of ours. So processes could grow as fast as they write: eight children that each wrote the
//! 32 MiB of their parent took 250 MiB in a budget of 64M, as all was written before a tenth of it had left.
//!
//! ```text
//!   the child of a fork joins; registered anew; many copies since the last look
//!     ─▶ pages that others have mapped too (/proc/PID/pagemap) ─▶ UFFDIO_WRITEPROTECT
//!   a write ─▶ a fault, which waits for room ─▶ its page is not protected any more, nor what will be next
//!          (faults/thread.rs, engine/src/cow.rs)      ─▶ the kernel copies
//! ```
//!
//! A child is looked at while it waits to be let in: later, with all of them writing, it took the monitor 10
//! to 20 ms to get at each. All else only where many pages are copied: a process whose child calls exec soon
//! writes little meanwhile, and is not to pay for a look at all of its memory. How many are copied is told by
//! the faults that the kernel has served without us.
//!
//! Invariant: a protected page is in memory, in a range registered with the process's userfaultfd. A page
//! that is moved out loses its protection, and comes back without one.
//!
//! In kernel mode only of processes with one thread: what the kernel writes for a thread that ends (its id,
//! for who joins it) is no fault of ours, and would not be written (`agent/src/agent/hooks/threads.rs`). And
//! not the main stack: a part of it that is registered otherwise would be a mapping of its own
//! (`register.rs`).
//!
//! An agent with a userfaultfd protects pages by itself, at our word (`agent/pages/write_protect.rs`). One
//! without, which has guard pages, cannot: there such processes can grow past the budget.

use crate::monitor::account::{self, Sizes};
use crate::monitor::register;
use crate::proc;
use crate::process::Process;
use crate::process::growth::Registered;
use crate::process::ranges::{Range, Ranges};
use crate::run::Run;
use memspill_engine::units::PAGE_SIZE;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// This many copies since the last look, of all processes together, are worth a protection, ...
const COPIES_MIN: u64 = 64;
/// ... of those of which each has made so many.
const COPIES_OF_ONE_MIN: u64 = 8;
/// With fewer shared pages there is little to come.
const SHARED_PAGES_MIN: u64 = 256;
/// A child that has so much mapped, and could fill it before anybody sees it, is not small.
const UNTOUCHED_BYTES_MIN: u64 = 4 << 20;
/// Looks take a part of one CPU: for each process some µs, and where pages are protected 50 ns a page.
const LOOK_PART: u32 = 20;
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The program's own, and the evictor.
const THREADS_MAX: u64 = 2;

/// What the monitor remembers from look to look.
pub struct Watch {
    next: Instant,
}

impl Watch {
    pub fn new() -> Watch {
        Watch { next: Instant::now() }
    }

    /// Protect what is shared of processes that copy pages.
    pub fn look(&mut self, run: &Run, sizes: &Sizes<'_>) {
        let begun = Instant::now();
        if begun < self.next || run.engine.root().discount_pages() < SHARED_PAGES_MIN {
            return;
        }
        let sharers = sizes.iter().map(|(process, _)| *process);
        let sharers = sharers.filter(|process| can_protect(process) && process.growth.is_registered());
        let copies = |process: &'_ Arc<Process>| {
            let faults = process.kernel_faults().unwrap_or(0);
            process.memory.copies.unasked(faults)
        };
        let copied: Vec<(&Arc<Process>, u64)> = sharers.map(|process| (process, copies(process))).collect();
        if copied.iter().map(|(_, copies)| copies).sum::<u64>() >= COPIES_MIN {
            for (process, _) in copied.iter().filter(|(_, copies)| *copies >= COPIES_OF_ONE_MIN) {
                let registered: Vec<Range> = process.growth.lock_ranges().ranges().iter().collect();
                protect(run, process, &registered, Registered::shared);
            }
        }
        self.next = Instant::now() + (LOOK_PART * begun.elapsed()).min(PAUSE_MAX);
    }
}

fn can_protect(process: &Process) -> bool {
    let memory = &process.memory;
    process.space.cow.load(Ordering::Relaxed) && memory.port.can_protect()
}

/// The same of ranges that have just been registered.
pub fn protect_registered(run: &Run, process: &Process, ranges: &[Range]) {
    if !ranges.is_empty() && can_protect(process) {
        protect(run, process, ranges, Registered::shared);
    }
}

/// The child of a fork has joined, and waits to be let go on. All of it is shared still. If there is no room
/// for copies of all that is shared, it makes none unasked: it is registered now, whether memory is tight or
/// not, and protected.
pub fn take_in_child(run: &Run, process: &Process) {
    let Some(statm) = proc::statm(process.memory.proc_id()) else { return };
    let _work = run.quiet.begin_work();
    count_as_shared(run, process, statm.anon_bytes);
    let (root, limit_bytes) = (run.engine.root(), account::limit_of(run, process));
    let most_bytes = root.usage_bytes() + root.discount_pages() * PAGE_SIZE as u64;
    let is_small = statm.anon_bytes < account::small_bytes(limit_bytes)
        && statm.data_bytes.saturating_sub(statm.anon_bytes) < UNTOUCHED_BYTES_MIN;
    if is_small || !can_protect(process) || !run.is_memory_tight() && most_bytes <= limit_bytes {
        return;
    }
    if process.memory.port.protects_by_agent() {
        process.memory.port.have_child_protect();
        return process.memory.copies.begin_protecting(process.kernel_faults().unwrap_or(0));
    }
    let ranges = register::register_joining(process, statm);
    // Little of it is its own yet, so it need not be looked at page by page.
    protect(run, process, &ranges, |_, range| Ok(vec![range]));
    // They are adopted when the monitor finds them once more.
    process.growth.lock_ranges().look_again(&ranges);
}

/// Count a child of which nothing is known yet, until what it shares is measured.
fn count_as_shared(run: &Run, process: &Process, anon_bytes: u64) {
    let _counting = run.account.begin_counting();
    let (space, growth) = (&process.space, &process.growth);
    if space.resident_pages() == 0 && space.discount_pages() == 0 {
        space.set_discount(run.engine.swap(), anon_bytes / PAGE_SIZE as u64);
        // A look may have counted it as its own.
        let more_bytes = anon_bytes.saturating_sub(growth.unmanaged_bytes());
        growth.set_unmanaged_bytes(anon_bytes);
        run.account.more_unmanaged(more_bytes);
        run.update_account();
        let own = space.group(run.engine.swap());
        for group in run.engine.groups().all().iter().skip(1).filter(|group| own.is_within(group)) {
            group.set_other_bytes(group.other_bytes() + more_bytes);
        }
    }
}

/// What is to be protected of a range.
type Shared = fn(&Registered, Range) -> io::Result<Vec<Range>>;

/// Protect what is `shared` of these ranges. Ranges that cannot be protected now are left to the next look.
fn protect(run: &Run, process: &Process, ranges: &[Range], shared: Shared) {
    let is_alone = || proc::threads(process.memory.proc_id()).is_some_and(|threads| threads <= THREADS_MAX);
    if !process.memory.port.protects_by_agent() && !is_alone() {
        return;
    }
    if let Err(error) = try_to_protect(process, ranges, shared)
        && run.settings.verbose
    {
        eprintln!("memspill: shared pages of process {} are not protected: {error}", process.memory.pid());
    }
}

fn try_to_protect(process: &Process, ranges: &[Range], shared: Shared) -> io::Result<()> {
    let mut registered = process.growth.lock_ranges();
    if !registered.open_pagemap(process.memory.proc_id()) {
        return Ok(());
    }
    // Not what was unmapped meanwhile: what is there now is another mapping.
    let ranges: Ranges = process.growth.without_lost(ranges).into_iter().collect();
    let ranges = ranges.iter().filter(|(_, end)| !registered.ends_main_stack(*end));
    let found: Vec<(Range, Vec<Range>)> =
        ranges.map(|range| Ok((range, shared(&registered, range)?))).collect::<io::Result<_>>()?;
    let copies = &process.memory.copies;
    if !copies.has_protected() && found.iter().all(|(_, shared)| shared.is_empty()) {
        return Ok(());
    }
    let is_first = !copies.has_protected();
    copies.begin_protecting(process.kernel_faults().unwrap_or(0));
    if process.memory.port.protects_by_agent() {
        drop(registered);
        let shared: Vec<Range> = found.into_iter().flat_map(|(_, shared)| shared).collect();
        process.protect_by_agent(&shared);
        return Ok(());
    }
    for (range, shared) in found {
        // Later only where it is needed: it waits for all faults of the process that are under way.
        let mut is_registered = is_first && register_to_protect(process, range)?;
        for (from, to) in shared {
            let protect = || is_done(process.memory.port.protect(from, to - from));
            if !protect()? && !is_registered {
                is_registered = register_to_protect(process, range)? && protect()?;
            }
        }
    }
    Ok(())
}

/// Inside the gate, as all registering.
fn register_to_protect(process: &Process, (start, end): Range) -> io::Result<bool> {
    let _fill_guard = process.space.gate.enter_fill();
    is_done(process.memory.port.register_to_protect(start, end - start))
}

/// Err: a change is under way, and nothing can be done. A range that has changed meanwhile (false) is for a
/// later look.
fn is_done(result: Result<(), i32>) -> io::Result<bool> {
    match result {
        Err(libc::EAGAIN) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        other => Ok(other.is_ok()),
    }
}
