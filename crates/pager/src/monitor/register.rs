//! Registering: whose faults come to us.
//!
//! ```text
//!   memory is tight ──▶ each process above a small size: the agent's own pages, then all that is mapped
//!   later           ──▶ what is new: the agent announces it (mmap, mremap), or a search finds it, whenever
//!                       statm's size or data field has changed, or an unmap event has passed (the next
//!                       mapping there is not registered)
//! ```
//!
//! Memory that cannot be registered is counted as unmanaged: it takes its part of the limit, and if it is too
//! much by itself, `unmanaged.rs` says so. Pages that are in a new range already are adopted by adopt.rs.
//!
//! *Forks by the agent* (`Settings::forks`): what is to be registered is marked before, so that nobody else
//! inherits it; the evictor does that.
//!
//! *Memory that is asked for* (MADV_PAGEOUT, `advice.rs`) is registered before memory is tight: the mappings
//! that the range lies in, and no others. All else of the process goes on being counted only.
//!
//! *Without a userfaultfd* nothing is registered in the kernel: what is known here as registered is what the
//! agent tells changes of, and what is new in it is found again and again (`adopt_grown`).
//!
//! *Many mappings.* A process may have 65,000. A search of an unchanged process reads none of them; one of a
//! process that has grown finds what is new (`process/finder.rs`) and registers it, the largest first: what a
//! heap beside many small mappings grows by meanwhile is what counts.
//!
//! *The main stack* is one mapping, which grows while it is searched. It is registered from where the mapping
//! below it ends, so that it stays one: cut in two it would read as a short one (pthread_getattr_np). Its
//! top, with the arguments and the environment, stays in memory, because /proc/PID/cmdline and environ show
//! nothing of what is swapped out.

use crate::USER_END;
use crate::faults::shared;
use crate::monitor::account;
use crate::proc::{RESERVE_BYTES, Statm};
use crate::process::Process;
use crate::process::finder::{Found, New};
use crate::process::growth::Registered;
use crate::process::ranges::{Range, Ranges};
use crate::run::Run;
use crate::times::{AGENT_JOINS, PROCESS_BEGINS};
use memspill_engine::units::{PAGE_SIZE, Vpn};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The most processes that are registered at once.
const REGISTERING_THREADS_MAX: usize = 16;
/// The most ranges that one call registers: the program waits for it, and so do events.
const REGISTER_MAPPINGS: usize = 256;

/// Register what is new in each process that is large enough, or while memory is `filling` may become so, by
/// what it has mapped or because it is young. Returns what was registered in each, and lies in one mapping:
/// see [`crate::monitor::adopt`].
pub fn register_all<'a>(
    run: &Run,
    sizes: &account::Sizes<'a>,
    filling: bool,
) -> Vec<(&'a Arc<Process>, Vec<Range>)> {
    let too_many = account::too_many_small(run, sizes);
    let wanted = |(process, statm): &(&'a Arc<Process>, Statm)| {
        let small_bytes = account::small_bytes(account::limit_of(run, process));
        let has_mapped = statm.data_bytes > statm.anon_bytes.saturating_add(small_bytes);
        // One that has just begun is about to: two of 16 had mapped nothing yet when memory got tight, and
        // had filled theirs when they were looked at again, 50 ms later (320 to 345 MiB of 300).
        let grows = filling && (has_mapped || process.age() < PROCESS_BEGINS);
        let least_bytes = if grows || too_many.contains(&process.key) { 0 } else { small_bytes };
        Wanted { process, statm: *statm, least_bytes, slack_bytes: small_bytes }
    };
    let wanted: Vec<Wanted<'a>> = sizes.iter().map(wanted).collect();
    let first_times = wanted.iter().filter(|wanted| wanted.is_first_time()).count();
    if filling && first_times > 1 {
        return register_at_once(&wanted, first_times);
    }
    wanted.iter().map(|wanted| (wanted.process, wanted.register())).collect()
}

/// A process, and what of it is to be registered: see `register_new`.
struct Wanted<'a> {
    process: &'a Arc<Process>,
    statm: Statm,
    least_bytes: u64,
    slack_bytes: u64,
}

impl Wanted<'_> {
    fn register(&self) -> Vec<Range> {
        register_new(self.process, self.statm, self.least_bytes, self.slack_bytes)
    }

    fn is_first_time(&self) -> bool {
        let is_large = self.statm.anon_bytes >= self.least_bytes;
        is_large && !self.process.growth.is_registered() && is_known(self.process)
    }
}

/// Several processes at once, each in a thread of its own. To register is to wait for a lock of the process
/// that each of its faults holds, and while CPUs are short whoever holds it may have lost its own: one after
/// the other, 16 processes on two CPUs took 8 to 42 ms, in which the others went on filling memory.
fn register_at_once<'a>(wanted: &[Wanted<'a>], threads: usize) -> Vec<(&'a Arc<Process>, Vec<Range>)> {
    let next = AtomicUsize::new(0);
    let registered = Mutex::new(Vec::with_capacity(wanted.len()));
    let work = || {
        while let Some(wanted) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            let ranges = wanted.register();
            registered.lock().expect("registered").push((wanted.process, ranges));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(REGISTERING_THREADS_MAX) {
            let thread = std::thread::Builder::new().name("memspill-register".into());
            // If there is no thread to be had, the others do it all.
            if thread.stack_size(256 << 10).spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    registered.into_inner().expect("registered")
}

/// Register what is new in a process, unless it has been unregistered until now and is smaller than
/// `least_bytes`. Returns what was registered and lies in one mapping.
fn register_new(process: &Process, statm: Statm, least_bytes: u64, slack_bytes: u64) -> Vec<Range> {
    let pid = process.memory.proc_id();
    if !is_known(process) {
        return Vec::new();
    }
    if !process.growth.is_registered() {
        let is_small = statm.anon_bytes < least_bytes && process.growth.only().is_none();
        if is_small || !register_agent_pages(process) {
            return Vec::new();
        }
        let_announce(process);
        process.growth.set_registered(true);
    }
    let mut registered = process.growth.lock_ranges();
    registered.apply(std::mem::take(&mut *process.growth.lock_changes()));
    let own: Ranges =
        process.memory.attached_agent().into_iter().flat_map(|agent| agent.own_ranges()).collect();
    let unmanaged_bytes = process.growth.unmanaged_bytes();
    let fills_reserves = process.memory.port.fills_reserves();
    let found = match process.growth.only() {
        Some(only) => registered.find_within(pid, statm, &own, only, fills_reserves),
        None => registered.find_new(pid, statm, &own, unmanaged_bytes, slack_bytes, fills_reserves),
    };
    let Some(mut found) = found else { return Vec::new() };
    // An empty mapping without access is reserved address space, or a guard.
    found.new.retain(|new| match (new.is_reserve, new.is_closed) {
        (true, _) => is_empty(pid, &mut registered, new.range()),
        (_, true) => !is_empty(pid, &mut registered, new.range()),
        _ => true,
    });
    register_found(process, &mut registered, &found)
}

/// Is nothing in a range? Else it is no reserve.
fn is_empty(pid: u32, registered: &mut Registered, range: Range) -> bool {
    let wanted: Ranges = [range].into_iter().collect();
    registered.open_pagemap(pid)
        && registered.present(&wanted, range, 1).is_ok_and(|(present, _)| present.is_empty())
}

/// The same of the child of a fork that has just joined, however small it is.
pub fn register_joining(process: &Process, statm: Statm) -> Vec<Range> {
    register_new(process, statm, 0, 0)
}

/// The child of a fork is about to make its agent's pages: which they are is known when it has introduced
/// itself.
fn is_known(process: &Process) -> bool {
    let joins =
        process.descent.is_some() && process.memory.attached_agent().is_none() && process.age() < AGENT_JOINS;
    process.memory.proc_id() != 0 && !joins
}

/// What a program wants, whether memory is tight or not: that calls of its agent are answered, and that the
/// mappings of some ranges are registered, because they are to be swapped out (MADV_PAGEOUT). Returns as
/// `register_new`; None: nothing is wanted.
pub fn register_asked(process: &Process) -> Option<Vec<Range>> {
    let agent = process.memory.attached_agent()?;
    if agent.evictor.control.wants_answers() {
        let granted = process.memory.port.has_doorbells() && register_agent_pages(process);
        // While something is changing nothing can be registered: the next round tries again.
        if granted || !process.memory.port.is_changing() {
            agent.evictor.control.grant_answers(granted);
        }
    }
    let asked = process.growth.take_asked();
    if asked.is_empty() || !register_agent_pages(process) {
        return None;
    }
    let mut registered = process.growth.lock_ranges();
    if process.growth.is_registered() {
        // As all that is new in it.
        let asked: Vec<Range> = asked.iter().collect();
        registered.look_again(&asked);
        return None;
    }
    registered.apply(std::mem::take(&mut *process.growth.lock_changes()));
    let own: Ranges = agent.own_ranges().into_iter().collect();
    let fills_reserves = process.memory.port.fills_reserves();
    let found = registered.find_asked(process.memory.proc_id(), &own, &asked, fills_reserves)?;
    Some(register_found(process, &mut registered, &found))
}

/// Register what was found. Returns what was registered and lies in one mapping.
fn register_found(process: &Process, registered: &mut Registered, found: &Found) -> Vec<Range> {
    if found.has_exec {
        process.memory.has_exec.store(true, Ordering::Relaxed);
    }
    if found.new.is_empty() {
        return Vec::new();
    }
    process.growth.begin_noting_dropped();
    let stack = found.stack.map(|(floor, start, _)| (floor, start));
    // Before, for once they are registered an event may take them away.
    let reserves = || found.new.iter().filter(|new| new.is_reserve).map(New::range);
    reserves().for_each(|(start, end)| process.memory.reserves.note(start, end));
    let results = register_ranges(process, &found.new, stack);
    for (start, end) in reserves().filter(|reserve| !results.registered.contains(reserve)) {
        process.memory.reserves.forget(start, end);
    }
    registered.look_again(&results.put_off);
    if !results.refused.is_empty() {
        process.growth.set_was_refused();
    }
    registered.note_refused(results.refused);
    let (whole, torn) = registered.split_by_mapping(process.memory.proc_id(), results.registered);
    registered.look_again(&torn);
    whole
}

/// What became of ranges that were to be registered, each list ascending.
#[derive(Default)]
struct Results {
    registered: Vec<Range>,
    /// A userfaultfd of the program's own has them, or they have changed since the maps were read.
    refused: Vec<Range>,
    /// A change of the address space was under way.
    put_off: Vec<Range>,
}

/// Register what is new, the largest first.
///
/// Ranges with nothing mapped between them go into one call, which is cheaper than one each; and if it fails,
/// into one each. Memory that is mapped between them meanwhile becomes registered as well, which does no
/// harm: it is not known, so the next search finds it.
fn register_ranges(process: &Process, new: &[New], stack: Option<(u64, u64)>) -> Results {
    let mut joined: Vec<Vec<Range>> = new
        .chunk_by(|below, above| below.end == above.free_from)
        .flat_map(|new| new.chunks(REGISTER_MAPPINGS))
        .map(|new| new.iter().map(New::range).collect())
        .collect();
    let bytes = |ranges: &Vec<Range>| ranges.iter().map(|(start, end)| end - start).sum::<u64>();
    joined.sort_by_cached_key(|ranges| std::cmp::Reverse(bytes(ranges)));
    let span = |ranges: &[Range]| {
        let (start, end) = (ranges[0].0, ranges[ranges.len() - 1].1);
        (stack.filter(|(_, stack)| *stack == start).map_or(start, |(floor, _)| floor), end)
    };
    let mut results = Results::default();
    for ranges in &joined {
        // Inside the gate: what is registered while events are put in order would be taken for what was moved
        // there.
        let _fill_guard = process.space.gate.enter_fill();
        let (floor, end) = span(ranges);
        let register = |start: u64, end: u64| process.memory.register(start, end - start);
        let is_one = ranges.len() == 1 || floor < ranges[0].0;
        match register(floor, end) {
            Err(errno) if errno != libc::EAGAIN && !is_one => {
                ranges.iter().for_each(|range| results.note(&[*range], register(range.0, range.1)))
            }
            result => results.note(ranges, result),
        }
    }
    for list in [&mut results.registered, &mut results.refused, &mut results.put_off] {
        list.sort_unstable();
    }
    results
}

impl Results {
    fn note(&mut self, ranges: &[Range], result: Result<(), i32>) {
        let list = match result {
            Ok(()) => &mut self.registered,
            Err(libc::EAGAIN) => &mut self.put_off,
            Err(_) => &mut self.refused,
        };
        list.extend_from_slice(ranges);
    }
}

/// Registers the agent's own pages, which come before all else. False: a change was under way, or the process
/// is gone.
pub fn register_agent_pages(process: &Process) -> bool {
    let port = &process.memory.port;
    let agent = process.memory.attached_agent();
    agent.is_none_or(|agent| port.register_agent_pages(&agent.ready, &agent.evictor.control))
}

/// From now on the agent announces new mappings. Its own pages are registered.
pub fn let_announce(process: &Process) {
    if let Some(agent) = process.memory.attached_agent().filter(|_| process.memory.port.has_doorbells()) {
        agent.evictor.control.set_announces(true);
    }
}

/// The child of a fork has these mappings of its parent's, and is told of as that was.
pub fn take_over_by_link(process: &Process, mapped: &Ranges, is_registered: bool) {
    process.growth.lock_ranges().insert(&mapped.iter().collect::<Vec<_>>());
    process.growth.set_registered(is_registered && register_agent_pages(process));
}

/// An agent has introduced itself in a process whose memory was registered before: none of the agent's own
/// pages is managed.
pub fn forget_agent_pages(run: &Run, process: &Process, own: &[Range]) {
    let _work = run.quiet.begin_work();
    let mut registered = process.growth.lock_ranges();
    let held = process.hold_pages();
    for (start, end) in own {
        registered.remove(*start, *end);
        // Most were never registered: then there is nothing to undo.
        let _ = process.memory.port.unregister(*start, end - start);
        process.space.unmap(run.engine.swap(), crate::cpu(), Vpn::from_addr(*start), Vpn::from_addr(*end));
    }
    drop(held);
}

/// A doorbell rang: the agent has mapped [addr, addr + len), or `grown` what was there, and waits with using
/// it. False: not now, something is changing.
pub fn register_announced(run: &Run, process: &Process, addr: u64, len: u64, grown: bool) -> bool {
    if grown && !shared::look_again(run, process) {
        return false;
    }
    let own = process.memory.attached_agent().map_or(Vec::new(), |a| a.own_ranges().to_vec());
    let Some((start, end)) = announced_range(addr, len, &own) else { return true };
    let _fill_guard = process.space.gate.enter_fill();
    let result = process.memory.register(start, end - start);
    if grown {
        // There may be pages that were never adopted: the next search goes through this range too.
        process.growth.note_unmapped(start, end);
    } else if result.is_ok() {
        // Nobody has touched it, so there is nothing to adopt, neither now nor at the next search.
        process.growth.note_announced(start, end);
        if end - start >= *RESERVE_BYTES.end() {
            // It may be what a heap grows into, and no event is processed meanwhile.
            process.memory.reserves.note(start, end);
        }
    }
    run.kick_reclaim();
    result != Err(libc::EAGAIN)
}

/// The pages that a doorbell names, if these numbers can be true.
pub fn announced_range(addr: u64, len: u64, own: &[Range]) -> Option<Range> {
    let page = PAGE_SIZE as u64;
    let (start, end) = (addr & !(page - 1), addr.checked_add(len)? & !(page - 1));
    let touches_own = own.iter().any(|(s, e)| start < *e && *s < end);
    (start < end && end <= USER_END && !touches_own).then_some((start, end))
}
