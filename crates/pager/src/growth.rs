//! Growth: what is counted only, when memory becomes managed, and how new memory is found.
//!
//! Pay nothing until it presses: a registered page's first touch is a fault of some µs, and registration ends huge pages.
//! So nothing is registered until the tree's memory comes near the limit; until then it is only counted.
//!
//! ```text
//!   free    ── usage near the limit ──▶  pressed, process by process: those above a small size are registered
//!   polled in the time in which the room could fill      then: doorbells of the agent (mmap, mremap), and a scan of the
//!                                                        maps whenever statm's size or data field has changed, or an
//!                                                        unmap event has passed (the next mapping there is not registered)
//! ```
//!
//! A scan registers what is new and adopts the pages that are there already (PAGEMAP_SCAN), where it is certain that they
//! lie in what it has registered ([`certain`]). What cannot be registered is counted as unmanaged: it takes its part of the
//! limit, and if it is too much by itself, `unmanaged.rs` says so.
//!
//! *Many mappings.* A process may have 65,000. A look at an unchanged process reads none of them; one at a process that
//! has grown finds what is new (`finder.rs`) and registers it, the largest first: what a heap beside many small
//! mappings grows by meanwhile is what counts.
//!
//! *The main stack* is one mapping, which grows while it is looked at. It is registered from where the mapping below it
//! ends, so that it stays one: cut in two it would read as a short one (pthread_getattr_np). Its top, with the
//! arguments and the environment, stays in memory, because /proc/PID/cmdline and environ show nothing of what is
//! swapped out.

use crate::events::USER_END;
use crate::finder::{Finder, Known};
use crate::guards;
use crate::pager::Pager;
use crate::proc::{self, Statm};
use crate::process::Process;
use crate::progress;
use crate::quiet;
use crate::ranges::{Range, Ranges};
use crate::unmanaged;
use memspill_engine::group::Group;
use memspill_engine::units::{PAGE_SIZE, Vpn};
use memspill_uffd::pagemap;
use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How fast a program can fill memory: 4 KiB pages on two CPUs here come to 3 GB/s, huge pages to more.
const FILL_BYTES_PER_MS: u64 = 6 << 20;
/// A forked child introduces its agent within this time, or has none.
const AGENT_EXPECTED: Duration = Duration::from_secs(2);
/// Pages are adopted in pieces of so many, each without an event in between.
const ADOPT_PAGES: u64 = 2048;
/// So many ranges are registered by one call at most: the program waits for it, and so do events.
const REGISTER_MAPPINGS: usize = 256;
/// A small process that is younger than this may end soon, however many of them there are.
const YOUNG: Duration = Duration::from_millis(100);
const POLL_MIN: Duration = Duration::from_millis(1);
const POLL_PRESSED: Duration = Duration::from_millis(2);
const POLL_MAX: Duration = Duration::from_millis(40);
/// While memory is tight no look comes later than this after the last one, unless that took longer itself.
const POLL_PRESSED_MAX: Duration = Duration::from_millis(10);

/// What is known of a process's ranges.
#[derive(Default)]
pub struct Growth {
    registered: Ranges,
    finder: Finder,
    /// To be looked at again.
    doubtful: Ranges,
    /// What could not be registered at the last look.
    refused: Vec<Range>,
    /// The top of the main stack, which is registered with the rest of it and stays in memory.
    kept: Option<Range>,
    seen: Statm,
    pagemap: Option<File>,
}

impl Growth {
    pub fn registered(&self) -> &Ranges {
        &self.registered
    }

    /// The next look is at these ranges too, whatever the size.
    fn look_again(&mut self, ranges: &[Range]) {
        for (start, end) in ranges {
            self.doubtful.insert(*start, *end);
            self.seen = Statm::default();
        }
    }
}

/// What became of mappings since the monitor last looked.
#[derive(Default)]
pub struct Changes {
    /// Taken away by events: what is mapped there next is not registered.
    unmapped: Ranges,
    /// Registered at the agent's word, before anybody touched them.
    announced: Ranges,
}

impl Changes {
    pub fn unmap(&mut self, start: u64, end: u64) {
        self.announced.remove(start, end);
        self.unmapped.insert(start, end);
    }

    fn announce(&mut self, start: u64, end: u64) {
        self.unmapped.remove(start, end);
        self.announced.insert(start, end);
    }
}

/// The mark at which memory becomes managed: as far below the limit as a poll and the registration may be late.
fn press_mark_bytes(limit_bytes: u64) -> u64 {
    limit_bytes - (limit_bytes / 4).clamp(4 << 20, 64 << 20).min(limit_bytes / 2)
}

/// Processes smaller than this stay unmanaged: a compiler that lives for 20 ms is not worth registering.
fn small_bytes(limit_bytes: u64) -> u64 {
    (limit_bytes / 128).clamp(512 << 10, 8 << 20)
}

/// The monitor thread.
pub fn run(pager: &Arc<Pager>) {
    // Where CPUs are short it would come when the memory is gone: 16 processes that fill 400 MiB at once took 342 MiB of
    // 300 before they were managed, and 301 with this (medians). Without the privilege it has to do.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -20);
    let mut last_usage_bytes = 0;
    let mut last_shared = Instant::now();
    let mut last_parked = Instant::now();
    let mut last_guards = Instant::now();
    let mut last_check = Instant::now();
    let mut last_tables = Instant::now();
    let mut last_progress = Instant::now();
    let mut unmanaged = unmanaged::Watch::default();
    while !pager.stopping.load(Ordering::Relaxed) {
        let start = Instant::now();
        let work = pager.quiet.work();
        let Seen { room_bytes, is_new } = tick(pager, &mut last_usage_bytes);
        unmanaged.look(pager);
        crate::errors::tell(pager);
        let sharers = pager.processes().iter().filter(|p| p.space.cow.load(Ordering::Relaxed)).count();
        if sharers > 1 || pager.engine.group.discount_pages() > 0 {
            let begun = Instant::now();
            // The walk costs tens of ns a page: at most a tenth of one CPU goes there.
            if last_shared.elapsed() > Duration::from_millis(10) {
                measure_shared(pager);
                last_shared = Instant::now() + 9 * begun.elapsed();
            }
        }
        if pager.pressed.load(Ordering::Relaxed) && last_progress.elapsed() > progress::LOOK_EVERY {
            progress::look(&pager.processes());
            last_progress = Instant::now();
        }
        if last_tables.elapsed() > Duration::from_millis(100) {
            pager.note_tables();
            last_tables = Instant::now();
        }
        if last_parked.elapsed() > Duration::from_secs(2) {
            pager.processes().iter().for_each(|p| p.space.tidy());
            last_parked = Instant::now();
        }
        if last_guards.elapsed() > Duration::from_secs(1) {
            guards::search_all(pager);
            last_guards = Instant::now();
        }
        drop(work);
        if pager.settings.check && last_check.elapsed() > quiet::INTERVAL {
            pager.quiet.check(pager);
            last_check = Instant::now();
        }
        let pause = if is_new {
            // Whoever has just come, or is small yet, grows meanwhile.
            POLL_PRESSED
        } else if pager.pressed.load(Ordering::Relaxed) {
            (3 * start.elapsed()).clamp(POLL_PRESSED, POLL_PRESSED_MAX).max(start.elapsed() / 2)
        } else {
            Duration::from_millis(room_bytes / FILL_BYTES_PER_MS).clamp(POLL_MIN, POLL_MAX)
        };
        std::thread::sleep(pause);
    }
}

/// What a look at every process has shown.
struct Seen {
    /// How much may come before memory becomes managed.
    room_bytes: u64,
    /// Memory has become managed.
    is_new: bool,
}

/// Look at every process once.
fn tick(pager: &Arc<Pager>, last_usage_bytes: &mut u64) -> Seen {
    let processes = pager.processes();
    let mut unmanaged_bytes = 0;
    let mut sizes = Vec::with_capacity(processes.len());
    for process in &processes {
        let Some(statm) = look(pager, process) else { continue };
        let managed_bytes = process.space.resident_pages() * PAGE_SIZE as u64;
        let unmanaged = statm.anon_bytes.saturating_sub(managed_bytes);
        process.unmanaged_bytes.store(unmanaged, Ordering::Relaxed);
        unmanaged_bytes += unmanaged;
        sizes.push((process, statm));
    }
    let own_bytes = pager.own_bytes();
    pager.measured_bytes.store(unmanaged_bytes + own_bytes, Ordering::Relaxed);
    pager.update_other_bytes();
    let groups = pager.engine.groups.all();
    groups.iter().skip(1).for_each(|group| count_unmanaged(pager, group, &processes));
    let mark_bytes = press_mark_bytes(pager.engine.group.limit_bytes());
    let usage_bytes = pager.engine.group.usage_bytes();
    let grown_bytes = usage_bytes.saturating_sub(std::mem::replace(last_usage_bytes, usage_bytes));
    let room_bytes = groups.iter().map(|group| room_to_mark(group)).min().expect("the root at least");
    if room_bytes > 0 && !pager.pressed.load(Ordering::Relaxed) {
        return Seen { room_bytes, is_new: false };
    }
    if !pager.pressed.load(Ordering::Relaxed) {
        // Processes that share pages since a fork are counted twice by statm: look more closely before paying, unless
        // memory is filling meanwhile (the look takes ms, in which a GiB/s is much).
        if sizes.len() > 1 && groups.len() == 1 && grown_bytes < 1 << 20 && shared_usage(&sizes) + own_bytes < mark_bytes {
            return Seen { room_bytes: POLL_PRESSED.as_millis() as u64 * FILL_BYTES_PER_MS, is_new: false };
        }
        pager.pressed.store(true, Ordering::Relaxed);
    }
    // All are registered before any is adopted: from then on nothing grows but by faults, which are counted.
    let too_many = too_many_small(groups, &sizes, pager);
    let registered: Vec<_> = sizes
        .iter()
        .map(|(p, statm)| {
            let limit_bytes = limit_of(pager, p);
            let least_bytes = if too_many.contains(&p.key) { 0 } else { small_bytes(limit_bytes) };
            (*p, follow(p, *statm, limit_bytes, least_bytes))
        })
        .collect();
    for (process, ranges) in &registered {
        if !ranges.is_empty() {
            let certain = if after_earlier_changes(pager, process) { certain(process, ranges) } else { Vec::new() };
            let uncertain = certain.iter().copied().collect::<Ranges>().missing_of(ranges);
            process.growth.lock().expect("growth").look_again(&uncertain);
            adopt(pager, process, &certain);
        }
        *process.removed.lock().expect("removed") = None;
    }
    pager.kick_reclaim();
    // Room may have come from elsewhere than reclaim (memory that is not managed, a process that ended).
    if groups.iter().any(|group| !group.full()) {
        pager.poke_waiting();
    }
    Seen { room_bytes: 0, is_new: registered.iter().any(|(_, ranges)| !ranges.is_empty()) }
}

/// How much may come before memory becomes managed. A group with `memory.high` is pressed there.
fn room_to_mark(group: &Group) -> u64 {
    let limit_bytes = group.limit_bytes().min(group.high_bytes());
    press_mark_bytes(limit_bytes).saturating_sub(group.usage_bytes())
}

/// The least limit that a process has above it.
fn limit_of(pager: &Pager, process: &Process) -> u64 {
    let group = process.space.group(&pager.engine);
    let above = pager.engine.groups.all().iter().filter(|other| group.is_within(other));
    above.map(|group| group.limit_bytes().min(group.high_bytes())).min().expect("the root at least")
}

/// Small processes that are pressed all the same, because together they are a large part of a limit that is reached:
/// the largest of them, until those that are left are few enough.
fn too_many_small(groups: &[Arc<Group>], sizes: &[(&Arc<Process>, Statm)], pager: &Pager) -> HashSet<u64> {
    let mut pressed = HashSet::new();
    for group in groups.iter().filter(|group| room_to_mark(group) == 0) {
        let is_small = |p: &Process| !p.pressed.load(Ordering::Relaxed) && p.since.elapsed() > YOUNG;
        let within = sizes.iter().filter(|(p, _)| is_small(p) && p.space.group(&pager.engine).is_within(group));
        let small = within.map(|(p, statm)| (statm.anon_bytes, p.key)).collect();
        pressed.extend(largest(small, group.limit_bytes().min(group.high_bytes()) / 16));
    }
    pressed
}

/// The keys of the largest, so many that what is left comes to no more than `left_bytes`.
fn largest(mut sizes: Vec<(u64, u64)>, left_bytes: u64) -> Vec<u64> {
    let mut sum_bytes: u64 = sizes.iter().map(|(bytes, _)| bytes).sum();
    sizes.sort_unstable();
    let mut keys = Vec::new();
    while let Some((bytes, key)) = sizes.pop().filter(|_| sum_bytes > left_bytes) {
        sum_bytes -= bytes;
        keys.push(key);
    }
    keys
}

/// A group below the root: memory of its processes that is not managed. The root has more, see `update_other_bytes`.
fn count_unmanaged(pager: &Pager, group: &Group, processes: &[Arc<Process>]) {
    let within = processes.iter().filter(|p| p.space.group(&pager.engine).is_within(group));
    group.set_other_bytes(within.map(|p| p.unmanaged_bytes.load(Ordering::Relaxed)).sum());
}

fn shared_usage(sizes: &[(&Arc<Process>, Statm)]) -> u64 {
    sizes.iter().map(|(p, statm)| proc::pss_anon_bytes(p.memory.proc_id()).unwrap_or(statm.anon_bytes)).sum()
}

/// Is the process still there, and how big is it?
fn look(pager: &Arc<Pager>, process: &Arc<Process>) -> Option<Statm> {
    if process.memory.broken.load(Ordering::Relaxed) && !process.dying.load(Ordering::Relaxed) && !process.memory.uffd.is_gone() {
        pager.give_up(125, format!("the memory of process {} cannot be read any more", process.memory.pid()));
    }
    let agentless = process.memory.agent().is_none();
    if (process.dying.load(Ordering::Relaxed) || process.space.is_dead() || agentless) && process.memory.uffd.is_gone() {
        pager.remove_process(process);
        return None;
    }
    size_of(process)
}

/// By the process's id, under which /proc shows no memory once its first thread has ended: then by its evictor's. Where that
/// is the last thread, it must end for the process to end: the program's threads have left by exit(2), each for itself. The
/// process's status is then what the last thread exits with, so it takes the first one's code.
fn size_of(process: &Process) -> Option<Statm> {
    let pid = process.memory.pid();
    let size = proc::statm(pid).filter(|statm| statm.size_bytes > 0);
    // After an exec the process id means another program.
    if size.is_some() && !process.dying.load(Ordering::Relaxed) {
        return size;
    }
    if let Some(agent) = process.memory.agent()
        && let Some(code) = proc::exit_code_of_all_but_one(pid)
    {
        agent.let_exit(code);
    }
    proc::statm(process.memory.proc_id())
}

/// In pressed times: register what is new in this process. Returns what was registered and lies in one mapping: see
/// [`certain`].
fn follow(process: &Arc<Process>, statm: Statm, limit_bytes: u64, least_bytes: u64) -> Vec<Range> {
    let pid = process.memory.proc_id();
    // The child of a fork is about to make its agent's pages: which they are is known when it has introduced itself.
    let settling = process.proof.is_some()
        && process.memory.agent().is_none()
        && process.since.elapsed() < AGENT_EXPECTED;
    if pid == 0 || settling {
        return Vec::new();
    }
    if !process.pressed.load(Ordering::Relaxed) {
        if statm.anon_bytes < least_bytes || !press(process) {
            return Vec::new();
        }
        process.pressed.store(true, Ordering::Relaxed);
    }
    let mut growth = process.growth.lock().expect("growth");
    let changes = std::mem::take(&mut *process.changes.lock().expect("changes"));
    changes.unmapped.iter().for_each(|(start, end)| growth.registered.remove(start, end));
    changes.announced.iter().for_each(|(start, end)| growth.registered.insert(start, end));
    let changed = statm.size_bytes != growth.seen.size_bytes || statm.data_bytes != growth.seen.data_bytes;
    if !changed && changes.unmapped.is_empty() && !growth.finder.is_due() {
        return Vec::new();
    }
    growth.seen = statm;
    let mut doubtful = std::mem::take(&mut growth.doubtful);
    changes.unmapped.iter().for_each(|(start, end)| doubtful.insert(start, end));
    let Growth { registered, finder, .. } = &mut *growth;
    let unmanaged_bytes = process.unmanaged_bytes.load(Ordering::Relaxed);
    let own: Ranges = process.memory.agent().into_iter().flat_map(|agent| agent.own_ranges()).collect();
    let slack_bytes = small_bytes(limit_bytes);
    let known = Known { registered, own: &own, doubtful: &doubtful, unmanaged_bytes, slack_bytes };
    let Ok(found) = finder.look(pid, &known) else { return Vec::new() };
    let new = found.new;
    if let Some(stack) = found.stack {
        growth.kept = Some(kept_of_stack(pid, stack));
    }
    if found.has_exec {
        process.memory.has_exec.store(true, Ordering::Relaxed);
    }
    if new.is_empty() {
        return new;
    }
    *process.removed.lock().expect("removed") = Some(Ranges::default());
    let stack = found.stack.map(|(floor, start, _)| (floor, start));
    let Registration { registered, refused, put_off } = register_all(process, &new, stack);
    growth.look_again(&put_off);
    // What is refused again will be refused the next time too: it is owned by a userfaultfd of the program's own.
    if refused != growth.refused {
        growth.look_again(&refused);
        growth.refused = refused;
    }
    let (whole, torn) = growth.finder.split_by_mapping(pid, registered);
    growth.look_again(&torn);
    whole
}

/// The top of the main stack (the mapping below it, its start and its end), where the arguments and the environment
/// are.
fn kept_of_stack(pid: u32, (_, start, end): (u64, u64, u64)) -> Range {
    // Whoever may not ask for it keeps as much as arguments usually take.
    let top = proc::stack_start(pid).filter(|at| (start..end).contains(at)).unwrap_or(end.saturating_sub(128 << 10));
    (top & !(PAGE_SIZE as u64 - 1), end)
}

/// What became of ranges that were to be registered, each list ascending.
#[derive(Default)]
struct Registration {
    registered: Vec<Range>,
    refused: Vec<Range>,
    /// A change of the address space was under way.
    put_off: Vec<Range>,
}

/// Register what is new, the largest first. What is refused is owned by a userfaultfd of the program's own, or has
/// changed since the maps were read.
///
/// Ranges that touch go into one call, which is cheaper than one each; and if it fails, into one each.
fn register_all(process: &Process, new: &[Range], stack: Option<(u64, u64)>) -> Registration {
    let mut joined: Vec<&[Range]> =
        new.chunk_by(|a, b| a.1 == b.0).flat_map(|ranges| ranges.chunks(REGISTER_MAPPINGS)).collect();
    let span = |ranges: &[Range]| (ranges[0].0, ranges[ranges.len() - 1].1);
    joined.sort_by_key(|ranges| span(ranges).0.wrapping_sub(span(ranges).1));
    let mut made = Registration::default();
    for ranges in joined {
        // Inside the gate: what is registered while events are put in order would be taken for what was moved there.
        let _pass = process.space.gate.enter_fill();
        let (start, end) = span(ranges);
        let floor = stack.filter(|(_, stack)| *stack == start).map_or(start, |(floor, _)| floor);
        let register = |start: u64, end: u64| process.memory.uffd.register(start, end - start);
        let is_one = ranges.len() == 1 || floor < start;
        match register(floor, end) {
            Ok(()) => made.registered.extend_from_slice(ranges),
            Err(libc::EAGAIN) => made.put_off.extend_from_slice(ranges),
            Err(_) if is_one => made.refused.extend_from_slice(ranges),
            Err(_) => ranges.iter().for_each(|range| made.note(*range, register(range.0, range.1))),
        }
    }
    for list in [&mut made.registered, &mut made.refused, &mut made.put_off] {
        list.sort_unstable();
    }
    made
}

impl Registration {
    fn note(&mut self, range: Range, result: Result<(), i32>) {
        match result {
            Ok(()) => self.registered.push(range),
            Err(libc::EAGAIN) => self.put_off.push(range),
            Err(_) => self.refused.push(range),
        }
    }
}

/// The agent's own pages first: staging must be registered on the same userfaultfd as the victims, so that a MOVE is
/// refused while an event waits to be read. And of those the ident page first: the child of a fork in between, whose event
/// comes as soon as anything is registered, is known by it.
pub fn press(process: &Process) -> bool {
    let Some(agent) = process.memory.agent() else { return true };
    let page = PAGE_SIZE as u64;
    let ready = &agent.ready;
    let uffd = &process.memory.uffd;
    let ident = uffd.register(ready.ident_addr, page);
    let staging = uffd.register(ready.staging_addr, u64::from(memspill_agent::protocol::STAGING_PAGES) * page);
    let doorbells = uffd.register(ready.doorbell_addr, memspill_agent::protocol::DOORBELLS as u64 * page);
    if ident.and(staging).and(doorbells).is_err() {
        return false;
    }
    agent.control.set_pressed(true);
    true
}

/// Wait until the events of all changes that were under way when ranges were registered, and looked at again, have been
/// read. False if that takes too long.
///
/// For forks too: a child that was on its way has the ranges unregistered, so it must not inherit what is adopted of them:
/// taken out there, a page would be lost.
fn after_earlier_changes(pager: &Pager, process: &Process) -> bool {
    let start = Instant::now();
    while process.memory.uffd.is_changing() {
        if start.elapsed() > Duration::from_millis(100) || pager.stopping.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    true
}

/// The ranges that are registered to the last page: only there may pages be adopted. MOVE takes any page, and one that is
/// taken out of a mapping that is not registered reads as zero to its owner, without a fault.
///
/// ```text
///   read the maps ── register each range ── read the maps again ── events read ── here
///        └── a part is unmapped: no event,         │                  └── of what was unmapped after it was registered
///            for it is not registered yet;         └── is the range within one mapping?
///            mapped again it is another one
/// ```
///
/// A mapping is registered as a whole or not at all, and one that is registered never merges with one that is not. So a range
/// that lies in one mapping after the registration, and of which nothing was unmapped since (which would have been told),
/// is registered. The others wait for the next look.
fn certain(process: &Process, ranges: &[Range]) -> Vec<Range> {
    let mut growth = process.growth.lock().expect("growth");
    let _pass = process.space.gate.enter_fill();
    let changes = process.changes.lock().expect("changes");
    let is_whole = |(start, end): &&Range| !changes.unmapped.intersects(*start, *end);
    let certain: Vec<Range> = ranges.iter().filter(is_whole).copied().collect();
    certain.iter().for_each(|(start, end)| growth.registered.insert(*start, *end));
    certain
}

/// Adopt the pages of registered ranges that are there already.
///
/// Piece by piece, inside the gate, and without what events took away since the monitor last looked: such a range may be
/// mapped anew, unregistered. (A page of it that was adopted and moved out would read as zero to its owner, without a
/// fault.) An event that is not read yet makes MOVE refuse, and its processing takes back what was adopted. Nor without
/// what MADV_DONTNEED takes away: its pages go some time after the event was read, and must not be saved meanwhile.
fn adopt(pager: &Arc<Pager>, process: &Arc<Process>, ranges: &[Range]) {
    let mut growth = process.growth.lock().expect("growth");
    if growth.pagemap.is_none() {
        growth.pagemap = File::open(format!("/proc/{}/pagemap", process.memory.proc_id())).ok();
    }
    let Some(pagemap) = &growth.pagemap else { return };
    // Ranges that touch are scanned as one.
    for (start, end) in ranges.iter().copied().collect::<Ranges>().iter() {
        let mut at = start;
        while at < end && !pager.stopping.load(Ordering::Relaxed) {
            match adopt_piece(pager, process, pagemap, growth.kept, (at, end)) {
                Ok(walked_to) if walked_to > at => at = walked_to,
                Ok(_) => break,
                Err(e) => {
                    if pager.settings.verbose {
                        eprintln!("memspill: PAGEMAP_SCAN of process {}: {e}", process.memory.pid());
                    }
                    break;
                }
            }
        }
    }
    pager.update_other_bytes();
}

/// Adopt the first pages of a range. Returns how far that went.
fn adopt_piece(
    pager: &Pager,
    process: &Process,
    pagemap: &File,
    kept: Option<Range>,
    (start, end): Range,
) -> std::io::Result<u64> {
    let _pass = process.space.gate.enter_fill();
    let mut present = Vec::new();
    let walked_to = pagemap::present(pagemap, start, end, ADOPT_PAGES, &mut present)?;
    let mut present = process.changes.lock().expect("changes").unmapped.missing_of(&present);
    if let Some(removed) = &*process.removed.lock().expect("removed") {
        present = removed.missing_of(&present);
    }
    present = kept.into_iter().collect::<Ranges>().missing_of(&present);
    let adopt = |(from, to): &Range| process.space.adopt(&pager.engine, Vpn::from_addr(*from), Vpn::from_addr(*to));
    let adopted: u64 = present.iter().map(adopt).sum();
    // What was counted as unmanaged until now is managed from here on.
    let take = |u: u64| Some(u.saturating_sub(adopted * PAGE_SIZE as u64));
    let _ = process.unmanaged_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
    let _ = pager.measured_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
    Ok(walked_to)
}

/// An agent has introduced itself in a process that was followed before: none of its own pages is managed.
pub fn forget_own(pager: &Pager, process: &Process, own: &[(u64, u64)]) {
    let _work = pager.quiet.work();
    let mut growth = process.growth.lock().expect("growth");
    let pass = process.space.gate.enter_events();
    let batch = process.batch.lock().expect("batch");
    for (start, end) in own {
        growth.registered.remove(*start, *end);
        // Most were never registered: then there is nothing to undo.
        let _ = process.memory.uffd.unregister(*start, end - start);
        process.space.unmap(&pager.engine, crate::cpu(), Vpn::from_addr(*start), Vpn::from_addr(*end));
    }
    drop(batch);
    drop(pass);
}

/// A doorbell rang: the agent has mapped [addr, addr + len), or `grown` what was there, and waits with using it. False: not
/// now, something is changing.
pub fn register_new(pager: &Arc<Pager>, process: &Arc<Process>, addr: u64, len: u64, grown: bool) -> bool {
    let own = process.memory.agent().map_or(Vec::new(), |a| a.own_ranges().to_vec());
    let Some((start, end)) = announced_range(addr, len, &own) else { return true };
    let _pass = process.space.gate.enter_fill();
    let registered = process.memory.uffd.register(start, end - start);
    let mut changes = process.changes.lock().expect("changes");
    if grown {
        // There may be pages that were never adopted: the next look is at this range too.
        changes.unmap(start, end);
    } else if registered.is_ok() {
        // Nobody has touched it, so there is nothing to adopt, neither now nor at the next look.
        changes.announce(start, end);
    }
    drop(changes);
    pager.kick_reclaim();
    registered != Err(libc::EAGAIN)
}

/// The pages that a doorbell names, if these numbers can be true.
pub fn announced_range(addr: u64, len: u64, own: &[(u64, u64)]) -> Option<(u64, u64)> {
    let page = PAGE_SIZE as u64;
    let (start, end) = (addr & !(page - 1), addr.checked_add(len)? & !(page - 1));
    let touches_own = own.iter().any(|(s, e)| start < *e && *s < end);
    (start < end && end <= USER_END && !touches_own).then_some((start, end))
}

/// After a fork pages are in two address spaces and once in memory: find out how many.
fn measure_shared(pager: &Pager) {
    for process in pager.processes().iter().filter(|p| p.space.cow.load(Ordering::Relaxed)) {
        let pid = process.memory.proc_id();
        // One that has just been forked and is not known yet, or that has just ended, keeps its figure.
        let Some(statm) = proc::statm(pid).filter(|_| pid != 0) else { continue };
        let managed_bytes = process.space.resident_pages() * PAGE_SIZE as u64;
        let rss_bytes = statm.anon_bytes.max(managed_bytes);
        let pss_bytes = proc::pss_anon_bytes(pid).unwrap_or(statm.anon_bytes);
        process.space.set_discount(&pager.engine, rss_bytes.saturating_sub(pss_bytes) / PAGE_SIZE as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_changes_the_last_counts() {
        let mut changes = Changes::default();
        let lists = |changes: &Changes| -> (Vec<Range>, Vec<Range>) {
            (changes.unmapped.iter().collect(), changes.announced.iter().collect())
        };
        changes.unmap(10, 30);
        changes.announce(20, 25);
        assert_eq!(lists(&changes), (vec![(10, 20), (25, 30)], vec![(20, 25)]));
        changes.unmap(22, 40);
        assert_eq!(lists(&changes), (vec![(10, 20), (22, 40)], vec![(20, 22)]));
    }

    #[test]
    fn of_many_small_processes_the_largest_are_pressed() {
        assert_eq!(largest(vec![(5, 1), (9, 2), (7, 3)], 12), [2]);
        assert_eq!(largest(vec![(5, 1), (9, 2), (7, 3)], 11), [2, 3]);
        assert_eq!(largest(vec![(5, 1), (9, 2)], 14), []);
        assert_eq!(largest(vec![(5, 1)], 0), [1]);
    }

    #[test]
    fn the_press_mark_leaves_room() {
        for limit_mb in [8u64, 64, 512, 65536] {
            let limit = limit_mb << 20;
            assert!(press_mark_bytes(limit) < limit && press_mark_bytes(limit) >= limit / 2);
        }
    }
}
