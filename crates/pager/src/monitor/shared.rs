//! Shared memory is managed when memory gets tight.
//!
//! ```text
//!   counted   once for each object                                           shared_count.rs
//!   joining   registered in all who have it mapped: look at all processes, register, look at all again
//!   adopted   a look has found nothing new, no clone from before was under way: pages may leave
//!   ended     nobody has it mapped
//! ```
//!
//! A program may fork all the time, so a look without a fork under way may never come. It need not: the child
//! of a registered mapping has it registered, and the kernel says so (VmFlags of smaps) of a child that is
//! not known here yet; and it has its parent's list. A child whose fork began before its parent was
//! registered would lose data: adoption waits until no thread can be in such a fork (`busy`), and such a
//! child is in the next look.
//!
//! All of an object is managed or nothing of it. A process that has it mapped and is not registered would
//! make a page of zeros where one is swapped out. So it stays as it is, counted, while
//!
//! * a process has it mapped that is not known here (the child of a raw clone from before), or pages itself;
//! * a part of it is locked, or one of its processes has memory pinned for a device, a device's memory
//!   mapped, or a file open that is read and written past the page cache (O_DIRECT): what such a transfer
//!   stores would be lost if the page left meanwhile;
//! * the machine gives shared memory large folios, of which a part cannot be taken out.
//!
//! Pins and locks are looked at before each batch (`reclaim/evict.rs`), the rest now and then: what comes
//! between two looks is not seen, but for files that the agent tells of (`reclaim/direct.rs`).
//!
//! With `--shared=all` files of shared memory (memfds, files of tmpfs) are such objects too, as long as all
//! who have one open or mapped tell of their calls: `shared_files.rs`. They are not ended here, but given
//! back (`reclaim/give_back.rs`).
//!
//! Objects are opened by /proc/PID/map_files, for which CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN is needed:
//! without it shared memory is only counted. Until an object is managed none of our descriptors holds it: it
//! ends when its processes end.

use crate::faults::shared::{look_again, managed_of};
use crate::monitor::register::{let_announce, register_agent_pages};
use crate::monitor::shared_count::{Counted, Counter, Processes};
use crate::monitor::shared_files::{self, SeenProcess};
use crate::proc::{self, SharedKind, SharedMapping, SharedMaps, Statm};
use crate::process::Process;
use crate::process::shared::Mapped;
use crate::reclaim::direct;
use crate::reclaim::give_back::abandon;
use crate::run::account::UnmanagedShared;
use crate::run::files::were_calls_over;
use crate::run::{Run, Shared};
use crate::shared::{Object, SharedMemory};
use crate::threads::{self, Busy};
use crate::times::{CHANGE_STEP, JOIN_ASKED, SHARED_LOOK, SHARED_OBJECTS_LOOK, STRANGERS_LOOK};
use memspill_engine::space::Space;
use memspill_engine::units::{PAGE_SIZE, SpaceId, Vpn};
use memspill_uffd::userfaultfd::Uffd;
use memspill_uffd::{shmem, shmem::Id, vm};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Smaller ones are counted only: each that is managed takes descriptors and a mapping of ours.
const MANAGED_BYTES_MIN: u64 = 64 << 10;
const MANAGED_MAX: usize = 256;
/// An object may have pages that are not in its page table: fewer than this may be on their way.
const UNMANAGED_BYTES_MIN: u64 = 1 << 20;
/// Looks at maps take this part of a CPU at most.
const PART: u32 = 20;
/// Pages are adopted in pieces of so many.
const ADOPT_BYTES: u64 = 8 << 20;
/// The pieces of a file that are searched at once.
const SEARCH_PIECES: u64 = 16;
const PAGE: u64 = PAGE_SIZE as u64;

/// What the monitor remembers from look to look.
pub struct Watch {
    counter: Counter,
    /// All processes were looked at, and that took so much CPU time.
    last_scan: Instant,
    took: Duration,
    last_check: Instant,
    /// Files were searched for pages that came without a fault, and that took so much CPU time.
    last_search: Instant,
    searching: Duration,
    /// Strangers that had a managed object mapped at the last check.
    strangers: Vec<u32>,
    /// Threads of processes that were registered a moment ago: one may be in a clone which nobody tells of.
    busy: HashMap<u64, Busy>,
    /// Objects that belong to a userfaultfd of a program's own, or cannot be registered.
    never: HashSet<Id>,
    /// Processes that had files open and did not tell of their calls yet, at the last look.
    new_users: Vec<(u32, Id)>,
}

/// A process that has shared memory mapped, as a look at all has found it.
struct Mapper {
    pid: u32,
    maps: SharedMaps,
    /// None: it is not known here, or its faults on shared memory are not served.
    process: Option<Arc<Process>>,
}

impl Watch {
    pub fn new() -> Watch {
        let now = Instant::now();
        Watch {
            counter: Counter::new(),
            last_scan: now,
            took: Duration::ZERO,
            last_check: now,
            last_search: now,
            searching: Duration::ZERO,
            strangers: Vec::new(),
            busy: HashMap::new(),
            never: HashSet::new(),
            new_users: Vec::new(),
        }
    }

    /// Count what is not managed: bytes, each object's once, noted too as those of a process that has it.
    pub fn count(&mut self, run: &Run, sizes: &[(&Arc<Process>, Statm)]) -> u64 {
        if run.settings.shared == Shared::None {
            return 0;
        }
        end_unmapped(run);
        self.counter.look(sizes);
        let processes: Processes<'_> = sizes.iter().map(|(process, _)| (process.key, *process)).collect();
        processes.values().for_each(|process| process.growth.set_unmanaged_shared_bytes(0));
        let (mut unmanaged_bytes, mut all_bytes, mut large) = (0, 0, Vec::new());
        for (id, counted) in self.counter.objects() {
            let (bytes, rest) = match run.object_of(*id) {
                Some(object) => {
                    let bytes = object.memory.mapped.object.resident_bytes().unwrap_or(0);
                    let rest = unknown_bytes(&object);
                    let is_little = object.is_adopted() && rest < UNMANAGED_BYTES_MIN;
                    (bytes, if is_little { 0 } else { rest })
                }
                None => (counted.bytes, counted.bytes),
            };
            all_bytes += bytes;
            unmanaged_bytes += rest;
            let process = counted.process(&processes);
            if let Some(process) = process {
                let growth = &process.growth;
                growth.set_unmanaged_shared_bytes(growth.unmanaged_shared_bytes() + rest);
            }
            if rest >= UNMANAGED_BYTES_MIN {
                large.push(UnmanagedShared {
                    process: process.map(|process| process.key),
                    kind: counted.kind,
                    name: counted.name.clone(),
                    bytes: rest,
                    is_to_leave: match counted.kind {
                        SharedKind::Anonymous => run.settings.shared != Shared::Counted,
                        SharedKind::File => run.manages_files() && run.files.may_manage(*id),
                        SharedKind::SystemV => false,
                    },
                });
            }
        }
        run.account.note_shared(all_bytes, large);
        unmanaged_bytes
    }

    /// A file that takes all of the limit can be managed as soon as it is mapped: who has it open does not
    /// wait for room before that. (For how long, `unmanaged.rs` says.)
    fn let_map(&self, run: &Run) {
        let root = run.engine.root();
        let fixed_bytes = run.account.measured_bytes() + run.engine.frame_bytes();
        let is_all = fixed_bytes + 2 * root.gap_bytes() > root.limit_bytes();
        let is_to_map = |(id, counted): &(&Id, &Counted)| {
            is_all
                && counted.kind == SharedKind::File
                && counted.bytes >= UNMANAGED_BYTES_MIN
                && !counted.is_mapped()
                && run.files.may_manage(**id)
        };
        let to_map = self.counter.objects().iter().filter(is_to_map);
        let keys: HashSet<u64> = to_map.flat_map(|(_, counted)| counted.had_by()).collect();
        for process in run.processes() {
            let is_to_map = keys.contains(&process.key);
            if process.memory.shared.set_to_map(is_to_map) && is_to_map {
                run.poke_waiting();
            }
        }
    }

    /// Memory is tight: objects become managed, and those that are so are looked after.
    pub fn manage(&mut self, run: &Arc<Run>) {
        if matches!(run.settings.shared, Shared::None | Shared::Counted) || self.counter.is_refused() {
            return;
        }
        for object in run.objects() {
            if let Some(what) = object.memory.breach() {
                return run.fail(format!("shared memory cannot be trusted any more: {what}"));
            }
        }
        if run.manages_files() {
            self.let_map(run);
            self.search(run);
        }
        let is_to_be_managed = |(id, counted): &(&Id, &Counted)| match run.object_of(**id) {
            Some(object) => !object.is_adopted() && !object.is_given_back(),
            None => {
                let may_be = match counted.kind {
                    SharedKind::Anonymous => true,
                    SharedKind::File => run.manages_files() && run.files.may_manage(**id),
                    SharedKind::SystemV => false,
                };
                may_be
                    && counted.bytes >= MANAGED_BYTES_MIN
                    && counted.is_mapped()
                    && !self.never.contains(id)
            }
        };
        let mut wanted: Vec<(Id, u64)> = self
            .counter
            .objects()
            .iter()
            .filter(is_to_be_managed)
            .map(|(id, counted)| (*id, counted.bytes))
            .collect();
        let check_after = match self.new_users.is_empty() {
            true => SHARED_OBJECTS_LOOK,
            false => STRANGERS_LOOK,
        };
        let is_check =
            !run.objects().is_empty() && self.last_check.elapsed() > check_after.max(PART * self.took);
        if !is_check && (wanted.is_empty() || self.last_scan.elapsed() < PART * self.took) {
            return;
        }
        // A call that was begun before it could see that a file may be managed has ended, and its mapping is
        // found.
        let calls_over = !run.has_files() || were_calls_over(&run.processes());
        // Before the look: a fork that was under way when all were registered has shown its child by now.
        let settled = is_settled(run);
        let keys: Vec<u64> = run.processes().iter().map(|process| process.key).collect();
        self.busy.retain(|key, _| keys.contains(key));
        let clones_ended: Vec<u64> =
            self.busy.iter_mut().filter_map(|(key, busy)| busy.is_over().then_some(*key)).collect();
        // On a busy machine a look of 3 ms of CPU time takes 100 ms: by that measure there were two looks in
        // the time that memory may be too much.
        let begun = threads::cpu_of_caller();
        let all = scan(run);
        let is_file = |id: &Id| self.counter.objects()[id].kind == SharedKind::File;
        let files = wanted.iter().map(|(id, _)| *id).filter(is_file);
        let managed = run.objects().into_iter().filter(|object| object.is_file && object.is_adopted());
        let managed: Vec<Arc<Object>> = managed.collect();
        let ids: Vec<Id> = files.chain(managed.iter().map(|object| object.id())).collect();
        let mut uses = (!ids.is_empty()).then(|| look_at_files(run, &all, &ids)).flatten();
        (self.last_scan, self.took) = (Instant::now(), threads::cpu_of_caller().saturating_sub(begun));
        if is_check {
            self.last_check = Instant::now();
            self.check(run, &all, settled);
            if let Some(uses) = &uses {
                self.new_users = shared_files::check(run, &managed, uses, &self.new_users);
            }
        }
        if !calls_over {
            uses = None;
        }
        if shmem::may_be_huge() {
            return;
        }
        wanted.sort_unstable_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        wanted.truncate(MANAGED_MAX.saturating_sub(run.objects().iter().filter(|o| o.is_adopted()).count()));
        for (id, _) in wanted {
            let is_file = self.counter.objects()[&id].kind == SharedKind::File;
            let may_be = |uses: &shared_files::Uses| {
                !uses.against.contains_key(&id) && uses.new.iter().all(|(_, used)| *used != id)
            };
            if is_file && !uses.as_ref().is_some_and(may_be) {
                continue;
            }
            if let Err(error) = self.join(run, id, is_file, &all, settled, &clones_ended) {
                // A file would fail in the same way the next time, unless its mapping or its process has
                // gone.
                if is_file && run.object_of(id).is_none() && !is_gone(&error) {
                    run.files.never_manage(id);
                }
                if run.settings.verbose {
                    eprintln!("memspill: shared memory {}: {error}", id.ino);
                }
            }
        }
    }

    /// A managed file has more in memory than came by faults: fallocate has made pages.
    fn search(&mut self, run: &Run) {
        if self.last_search.elapsed() < (PART * self.searching).max(SHARED_LOOK) {
            return;
        }
        let begun = threads::cpu_of_caller();
        for object in run.objects().into_iter().filter(|object| object.is_file && object.is_adopted()) {
            if unknown_bytes(&object) < UNMANAGED_BYTES_MIN {
                continue;
            }
            let _alone = object.hold_giving_back();
            if object.is_given_back() {
                continue;
            }
            let pieces = object.memory.mapped.object.bytes.div_ceil(ADOPT_BYTES);
            for _ in 0..pieces.min(SEARCH_PIECES) {
                let at = object.next_searched(pieces) * ADOPT_BYTES;
                if let Err(error) = adopt_piece(run, &object, at)
                    && run.settings.verbose
                {
                    eprintln!("memspill: shared memory {}: {error}", object.id().ino);
                }
            }
            run.update_account();
        }
        let took = threads::cpu_of_caller().saturating_sub(begun);
        (self.last_search, self.searching) = (Instant::now(), took);
    }

    /// One step of an object's joining.
    fn join(
        &mut self,
        run: &Arc<Run>,
        id: Id,
        is_file: bool,
        all: &[Mapper],
        settled: bool,
        clones_ended: &[u64],
    ) -> io::Result<()> {
        let mappers = mappers_of(all, id);
        let (known, unknown): (Vec<&Mapper>, Vec<&Mapper>) =
            mappers.iter().partition(|mapper| mapper.process.is_some());
        // Known processes are asked which of them has a file open.
        if known.is_empty() || is_file && !unknown.is_empty() || is_any_held(&mappers, all, id) {
            return Ok(());
        }
        let object = match run.object_of(id) {
            Some(object) => object,
            None => open(run, id, is_file, known[0])?,
        };
        let mut is_new = false;
        for mapper in &known {
            let Some(process) = &mapper.process else { continue };
            let registered = register(run, process, mapper.pid, &object);
            if matches!(registered, Registered::Never) {
                object.set_given_back();
                abandon(run, &object);
                self.never.insert(id);
                if is_file {
                    run.files.never_manage(id);
                }
                return Ok(());
            }
            is_new |= self.is_new(process, mapper.pid, &object, &registered, clones_ended)?;
        }
        if is_new || is_file && !settled || !have_joined(&known, &object) {
            return Ok(());
        }
        if !is_file && !are_children_registered(run, &unknown, &object) {
            return Ok(());
        }
        adopt(run, &object)
    }

    /// May a child of this process be unknown, that has the object mapped and not registered?
    ///
    /// From the registering on each of its clones is told. A thread that is in a call from before is waited
    /// for. A process that a fork has registered was never in such a call.
    fn is_new(
        &mut self,
        process: &Process,
        pid: u32,
        object: &Object,
        registered: &Registered,
        clones_ended: &[u64],
    ) -> io::Result<bool> {
        let was_before = matches!(registered, Registered::Before);
        let is_by_fork = was_before && !object.is_file && process.descent.is_some();
        let is_first = process.growth.is_registered() && !self.busy.contains_key(&process.key);
        if is_first && !is_by_fork || matches!(registered, Registered::Now) {
            match Busy::of(pid) {
                Ok(busy) => _ = self.busy.insert(process.key, busy),
                Err(error) => {
                    // It would pass for one that was waited for.
                    let _held = process.hold_pages();
                    process.memory.shared.set_may_lack(object.key, true);
                    process.memory.shared.set_of(object.key, &[]);
                    return Err(error);
                }
            }
        }
        let was_in_call = self.busy.contains_key(&process.key) && !clones_ended.contains(&process.key);
        Ok(!was_before || was_in_call)
    }

    /// Adopted objects: is anything as it should not be?
    fn check(&mut self, run: &Run, all: &[Mapper], settled: bool) {
        let objects: Vec<Arc<Object>> = run.objects().into_iter().filter(|o| o.is_adopted()).collect();
        let ids: HashMap<Id, usize> =
            objects.iter().enumerate().map(|(n, object)| (object.memory.mapped.object.id, n)).collect();
        let (mut strangers, mut held) = (Vec::new(), vec![false; objects.len()]);
        for mapper in all {
            let mapped: HashSet<usize> =
                mapper.maps.mappings.iter().filter_map(|m| ids.get(&m.object).copied()).collect();
            if mapped.is_empty() {
                continue;
            }
            if mapper.maps.has_device || mapper.process.as_ref().is_some_and(|p| direct::has(p)) {
                mapped.iter().for_each(|n| held[*n] = true);
            }
            let is_stranger = match &mapper.process {
                None => settled && !is_twin(mapper, all),
                Some(process) => put_right(run, process, mapper.pid, &ids) == Some(false),
            };
            if is_stranger {
                strangers.push(mapper.pid);
            }
        }
        // A process that has nothing mapped any more is in no scan.
        for process in run.processes().iter().filter(|process| process.memory.shared.is_doubtful()) {
            look_again(run, process);
        }
        for (object, held) in objects.iter().zip(held) {
            if held != object.space.is_aside() {
                object.space.set_aside(held, &run.engine.spaces());
            }
        }
        // SeenProcess twice: the first time it may have been about to be known, or to end.
        if let Some(pid) = strangers.iter().find(|pid| self.strangers.contains(pid)) {
            run.fail(format!("process {pid} has managed shared memory mapped, and is not managed itself"));
        }
        self.strangers = strangers;
    }
}

/// No fork is under way, and each child is known.
fn is_settled(run: &Run) -> bool {
    run.processes().iter().all(|process| {
        let forks = process.memory.attached_agent().is_some_and(|agent| agent.evictor.control.is_forking());
        process.is_known() && !forks && !process.memory.port.is_changing()
    })
}

/// All processes below us that have shared memory mapped.
fn scan(run: &Run) -> Vec<Mapper> {
    let processes = run.processes();
    let of_pid = |pid: u32| {
        // Else one that is ending: while it writes its core it has all its memory.
        let ending = || processes.iter().find(|process| process.memory.pid() == pid).cloned();
        let process = run.process_of_pid(pid).or_else(ending);
        let id = process.as_ref().map_or(0, |process| process.memory.proc_id());
        let id = if id == 0 { pid } else { id };
        let maps = proc::shared_maps_of_any_thread(id).ok()?;
        let process = process.filter(|process| process.memory.port.serves_shared());
        (!maps.mappings.is_empty()).then_some(Mapper { pid: id, maps, process })
    };
    proc::descendants(std::process::id()).into_iter().filter_map(of_pid).collect()
}

fn of_object(maps: &SharedMaps, id: Id) -> Vec<SharedMapping> {
    maps.mappings.iter().filter(|mapping| mapping.object == id).copied().collect()
}

/// Who has the object mapped, of these.
fn mappers_of(all: &[Mapper], id: Id) -> Vec<&Mapper> {
    all.iter().filter(|mapper| mapper.maps.mappings.iter().any(|mapping| mapping.object == id)).collect()
}

/// Something of the object is not to leave yet, or not to be looked at: see the module's header. The child of
/// a vfork may still fork, or open files; it has its parent's memory for a moment only.
fn is_any_held(mappers: &[&Mapper], all: &[Mapper], id: Id) -> bool {
    mappers.iter().any(|mapper| is_twin(mapper, all) || is_held(mapper, &of_object(&mapper.maps, id)))
}

/// Do all of these have it registered? The kernel is asked as well: it would cost data if one had not. One
/// after the other: who was registered stays so, and so do its children.
fn have_joined(known: &[&Mapper], object: &Object) -> bool {
    known.iter().all(|mapper| {
        let Some(process) = &mapper.process else { return false };
        match has_joined_soon(process, mapper.pid, object.id()) {
            Some(true) => true,
            Some(false) => {
                let _held = process.hold_pages();
                process.memory.shared.set_of(object.key, &[]);
                false
            }
            // It has ended, and was in our list of who is registered.
            None => process.is_dying() || proc::has_ended(mapper.pid),
        }
    })
}

/// Are all children registered that were not known when it was looked (`before`), and all that have come
/// since; and does our list of each say so? If our list of a child lacked the object, the child's faults
/// would be taken for those of private memory.
///
/// Asked last: it walks page tables, and says more the later it is asked.
fn are_children_registered(run: &Run, before: &[&Mapper], object: &Object) -> bool {
    let id = object.id();
    let now = scan(run);
    let mappers = mappers_of(&now, id);
    let is_listed = |process: &Process| !process.memory.shared.of(object.key).is_empty();
    let is_registered = |mapper: &&Mapper| proc::has_registered(mapper.pid, id) == Some(true);
    !is_any_held(&mappers, &now, id)
        && mappers.iter().all(|mapper| mapper.process.as_ref().is_none_or(|process| is_listed(process)))
        && mappers.iter().filter(|mapper| mapper.process.is_none()).all(is_registered)
        // A process that has ended meanwhile may have left a child that is like it.
        && before.iter().all(is_registered)
        && !run.processes().iter().any(|process| process.memory.shared.may_lack(object.key))
}

/// Does the kernel say that each of these mappings is registered? None: it cannot be said now.
fn is_registered<'a>(process: &Process, mapped: impl Iterator<Item = &'a SharedMapping>) -> Option<bool> {
    let port = &process.memory.port;
    let ends = |m: &SharedMapping| [m.start, m.end - PAGE];
    let answers: Option<Vec<bool>> =
        mapped.flat_map(ends).map(|addr| port.is_registered_shared(addr)).collect();
    let answers = answers.filter(|_| !port.is_changing())?;
    Some(answers.into_iter().all(|is_registered| is_registered))
}

/// What the process has mapped, looked at inside its gate. None: it cannot be said now.
fn look_at<T>(process: &Process, pid: u32, look: impl FnOnce(&SharedMaps) -> Option<T>) -> Option<T> {
    let _held = process.hold_pages();
    if process.memory.port.is_changing() {
        return None;
    }
    look(&proc::shared_maps_of_any_thread(pid).ok()?)
}

/// Is all that the process has mapped of the object registered? None: it cannot be said now.
fn has_joined(process: &Process, pid: u32, id: Id) -> Option<bool> {
    look_at(process, pid, |maps| is_registered(process, maps.mappings.iter().filter(|m| m.object == id)))
}

/// The same, where it can be said in a moment: forks go on all the time in some programs.
fn has_joined_soon(process: &Process, pid: u32, id: Id) -> Option<bool> {
    let begun = Instant::now();
    loop {
        let answer = has_joined(process, pid, id);
        if answer.is_some() || proc::has_ended(pid) || begun.elapsed() > JOIN_ASKED {
            return answer;
        }
        std::thread::sleep(CHANGE_STEP);
    }
}

/// The same for all managed objects. The list of what the process has mapped is put right too, should it lack
/// one: a mapping that a program has made longer in place, by its own instructions.
fn put_right(run: &Run, process: &Process, pid: u32, ids: &HashMap<Id, usize>) -> Option<bool> {
    look_at(process, pid, |maps| {
        // Nobody can touch what is not open, and it may be about to be registered (`faults/files.rs`).
        let managed = maps.mappings.iter().filter(|m| m.is_open && ids.contains_key(&m.object));
        let answer = is_registered(process, managed)?;
        process.memory.shared.set(managed_of(run, process, &maps.mappings));
        process.memory.shared.set_doubtful(false);
        Some(answer)
    })
}

/// The child of a vfork, which has its parent's memory until it calls exec.
fn is_twin(mapper: &Mapper, all: &[Mapper]) -> bool {
    let shares = |other: &&Mapper| other.process.is_some() && vm::is_same(other.pid, mapper.pid);
    mapper.process.is_none() && all.iter().find(shares).is_some()
}

/// Something of it is not to leave: see the module's header.
fn is_held(mapper: &Mapper, mappings: &[SharedMapping]) -> bool {
    let Some((locked_bytes, pinned_bytes)) = proc::locked_and_pinned(mapper.pid) else { return true };
    let is_locked = || match proc::locked(mapper.pid) {
        Ok(locked) => {
            locked.iter().any(|(start, end)| mappings.iter().any(|m| m.start < *end && *start < m.end))
        }
        Err(_) => true,
    };
    pinned_bytes > 0
        || mapper.maps.has_device
        || locked_bytes > 0 && is_locked()
        || match &mapper.process {
            Some(process) => direct::has(process),
            None => proc::has_direct_io(mapper.pid).unwrap_or(true),
        }
}

/// Who uses these files. None: that cannot be said.
fn look_at_files(run: &Run, all: &[Mapper], ids: &[Id]) -> Option<shared_files::Uses> {
    let processes = run.processes();
    let mapper_of = |pid: u32| all.iter().find(|mapper| mapper.pid == pid);
    let below = proc::descendants(std::process::id());
    let of_pid = |pid: &u32| {
        let process = processes.iter().find(|process| process.memory.pid() == *pid && !process.is_dying());
        let id = process.map_or(*pid, |process| process.memory.proc_id());
        let mapper = mapper_of(id);
        let is_twin = mapper.is_some_and(|mapper| is_twin(mapper, all));
        SeenProcess { pid: *pid, maps: mapper.map(|mapper| &mapper.maps), process, is_twin }
    };
    let seen: Vec<SeenProcess<'_>> = below.iter().map(of_pid).collect();
    shared_files::look(run, &seen, ids)
}

/// It was there a moment ago.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Its own mapping here, and its page table.
fn open(run: &Run, id: Id, is_file: bool, mapper: &Mapper) -> io::Result<Arc<Object>> {
    let process = mapper.process.as_ref().expect("a known one");
    let mapping = of_object(&mapper.maps, id)[0];
    let file = shmem::Object::of_mapping(mapper.pid, mapping.start, mapping.end)?;
    if file.id != id {
        return Err(io::Error::new(io::ErrorKind::NotFound, "its mapping has changed"));
    }
    if let Some(why) = if is_file { file.unfit()? } else { None } {
        return Err(io::Error::other(why));
    }
    // An object without a name is on the kernel's own mount, where the setting for all holds.
    let is_internal = is_file && proc::is_internal(id.dev);
    if is_file && !is_internal && proc::may_be_huge(mapper.pid, id.dev) {
        return Err(io::Error::other("its tmpfs may have huge pages"));
    }
    let hold = is_file.then(|| run.files.hold(&file)).transpose()?;
    let uffd = Uffd::of_self(None).or_else(|_| {
        let device = std::fs::File::open("/dev/userfaultfd")?;
        Uffd::of_self(Some(std::os::fd::AsFd::as_fd(&device)))
    })?;
    let memory = Arc::new(SharedMemory::new(shmem::Mapped::new(file, uffd)?)?);
    let key = run.new_key();
    let group = process.space.group(run.engine.swap()).clone();
    let space = Arc::new(Space::new(SpaceId(key as u32), memory.clone()).in_group(group));
    let object = Arc::new(Object::new(key, memory, space, hold));
    run.add_object(object.clone());
    if is_file {
        run.publish_files();
    }
    Ok(object)
}

enum Registered {
    /// All that the process has mapped of it was registered before.
    Before,
    Now,
    /// Something is changing.
    Later,
    /// It belongs to a userfaultfd of the program's own, or was mapped by a read-only descriptor.
    Never,
}

/// Register what the process has mapped of the object.
fn register(run: &Run, process: &Process, pid: u32, object: &Object) -> Registered {
    if !process.growth.is_registered() {
        if !register_agent_pages(process) {
            return Registered::Later;
        }
        let_announce(process);
        process.growth.set_registered(true);
    }
    let held = process.hold_pages();
    let id = object.memory.mapped.object.id;
    let mapped = || {
        let maps = proc::shared_maps(pid).ok()?;
        let of_page = |m: &SharedMapping| {
            let first_page = m.offset / PAGE;
            Mapped { start: m.start, end: m.end, first_page, object: object.key }
        };
        Some(of_object(&maps, id).iter().map(of_page).collect::<Vec<_>>())
    };
    let (before, Some(now)) = (process.memory.shared.of(object.key), mapped()) else {
        return Registered::Later;
    };
    // Looked at after the reading: what changes from here on is told, once it is registered.
    if process.memory.port.is_changing() {
        return Registered::Later;
    }
    if before == now {
        return Registered::Before;
    }
    // A child may have it registered from here on, and not have it in its list.
    process.memory.shared.set_may_lack(object.key, true);
    process.memory.shared.set_of(object.key, &now);
    let mut done = before.clone();
    for m in now.iter().filter(|m| !before.contains(m)) {
        // It may have been registered by accident, beside private memory, and been filled as such.
        let (from, to) = (Vpn::from_addr(m.start), Vpn::from_addr(m.end));
        process.space.unmap(run.engine.swap(), crate::cpu(), from, to);
        match process.memory.port.register(m.start, m.end - m.start) {
            Ok(()) => done.push(*m),
            // The second is of a mapping by a read-only descriptor.
            Err(libc::EBUSY | libc::EPERM) => {
                // Another's mapping is not to be unregistered: some kernels would do that.
                process.memory.shared.set_of(object.key, &done);
                return Registered::Never;
            }
            Err(_) => {
                process.memory.shared.set_of(object.key, &before);
                return Registered::Later;
            }
        }
    }
    // A change before the registration was not told. A fork was, if other memory was registered before, but
    // its child has this mapping unregistered: it is not to inherit our list of it.
    if process.memory.port.is_changing() || mapped() != Some(now) {
        process.memory.shared.set_of(object.key, &before);
        return Registered::Later;
    }
    process.memory.shared.set_may_lack(object.key, false);
    drop(held);
    Registered::Now
}

/// All who have it mapped are registered: what is in memory is managed from here on.
fn adopt(run: &Run, object: &Object) -> io::Result<()> {
    let _alone = object.hold_giving_back();
    if object.is_given_back() {
        return Ok(());
    }
    let bytes = object.memory.mapped.object.bytes;
    for at in (0..bytes).step_by(ADOPT_BYTES as usize) {
        adopt_piece(run, object, at)?;
    }
    object.set_adopted();
    object.space.set_aside(false, &run.engine.spaces());
    run.account.count_shared_object();
    run.update_account();
    Ok(())
}

/// Up to ADOPT_BYTES of it, from `at` on.
fn adopt_piece(run: &Run, object: &Object, at: u64) -> io::Result<()> {
    let mapped = &object.memory.mapped;
    // Pages that are found must not leave before their words say that they are there.
    let _held = object.hold_pages();
    if unknown_bytes(object) == 0 {
        return Ok(());
    }
    let mut adopted = 0;
    mapped.clear_allocated(at, ADOPT_BYTES)?;
    mapped.present(at, ADOPT_BYTES, |from, to| {
        adopted += object.space.adopt(run.engine.swap(), Vpn(from / PAGE), Vpn(to / PAGE));
    })?;
    run.account.less_unmanaged(adopted * PAGE);
    Ok(())
}

/// The bytes that it has in memory and its page table does not know of.
fn unknown_bytes(object: &Object) -> u64 {
    let bytes = object.memory.mapped.object.resident_bytes().unwrap_or(0);
    bytes.saturating_sub(object.space.resident_pages() * PAGE)
}

/// Objects that nobody has mapped any more.
fn end_unmapped(run: &Run) {
    for object in run.objects() {
        if object.is_file || !run.mappers(object.key).is_empty() {
            continue;
        }
        let id = object.memory.mapped.object.id;
        // By who is not managed: that is a matter for the next check.
        if scan(run).iter().any(|mapper| !of_object(&mapper.maps, id).is_empty()) {
            continue;
        }
        run.remove_object(&object);
    }
}
