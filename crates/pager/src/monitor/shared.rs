//! Shared memory: counted once for each object, and managed when memory gets tight.
//!
//! ```text
//!   found     in the maps of processes that have grown by other than private memory
//!   counted   by what the object itself has in memory, whoever has touched it
//!   joining   registered in all who have it mapped: look at all processes, register, look at all again
//!   adopted   a look has found nothing new, no fork or clone was under way before it: pages may leave
//!   ended     nobody has it mapped
//! ```
//!
//! All of an object is managed or nothing of it. Who has it mapped and is not registered would make a page of
//! zeros where one is swapped out. So it stays as it is, counted, while
//!
//! * a process has it mapped that is not known here (the child of a raw clone from before);
//! * a part of it is locked, or one of its processes has memory pinned for a device, a device's memory
//!   mapped, or a file open that is read and written past the page cache (O_DIRECT): what such a transfer
//!   stores would be lost if the page left meanwhile;
//! * the machine gives shared memory large folios, of which a part cannot be taken out.
//!
//! Pins and locks are looked at before each batch (`reclaim/evict.rs`), the rest now and then: what comes
//! between two looks is not seen, but for files that the agent tells of (`reclaim/direct.rs`).
//!
//! Objects are opened by /proc/PID/map_files, for which CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN is needed:
//! without it nothing of this happens. Until an object is managed none of our descriptors holds it: it ends
//! when its processes end.

use crate::faults::shared::managed_of;
use crate::monitor::register::{let_announce, register_agent_pages};
use crate::proc::{self, SharedMapping, SharedMaps, Statm};
use crate::process::Process;
use crate::process::shared::Mapped;
use crate::reclaim::direct;
use crate::run::{Run, Shared};
use crate::shared::{Object, SharedMemory};
use crate::threads::Busy;
use crate::times::{SHARED_OBJECTS_LOOK, SHARED_YOUNG};
use memspill_engine::space::Space;
use memspill_engine::units::{PAGE_SIZE, SpaceId, Vpn};
use memspill_uffd::userfaultfd::Uffd;
use memspill_uffd::{shmem, shmem::Id, vm};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Smaller ones are counted only: each that is managed takes descriptors and a mapping of ours.
const MANAGED_BYTES_MIN: u64 = 64 << 10;
const MANAGED_MAX: usize = 256;
/// What an object has that is not in its page table: less than this may be pages on their way.
const UNMANAGED_BYTES_MIN: u64 = 1 << 20;
/// Looks at maps take this part of the time at most.
const PART: u32 = 20;
/// Pages are adopted in pieces of so many.
const ADOPT_BYTES: u64 = 8 << 20;
const PAGE: u64 = PAGE_SIZE as u64;

/// What the monitor remembers from look to look.
pub struct Watch {
    looked: HashMap<u64, Looked>,
    objects: BTreeMap<Id, Counted>,
    /// All processes were looked at, and that took so long.
    last_scan: Instant,
    took: Duration,
    last_check: Instant,
    /// Strangers that had a managed object mapped at the last check.
    strangers: Vec<u32>,
    /// Threads of processes that were registered a moment ago: one may be in a clone which nobody tells of.
    busy: HashMap<u64, Busy>,
    /// Objects that belong to a userfaultfd of a program's own.
    never: HashSet<Id>,
    /// The files of objects may not be opened.
    is_refused: bool,
}

/// The maps of a process were read.
struct Looked {
    /// Its size without private memory, then.
    other_bytes: u64,
    at: Instant,
    took: Duration,
}

#[derive(Default)]
struct Counted {
    /// Mappings of it, each of a process that is known.
    places: Vec<Place>,
    bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    process: u64,
    pid: u32,
    start: u64,
    end: u64,
}

/// A process that has shared memory mapped, as a look at all has found it.
struct Mapper {
    pid: u32,
    maps: SharedMaps,
    /// None: it is not known here.
    process: Option<Arc<Process>>,
}

impl Watch {
    pub fn new() -> Watch {
        let now = Instant::now();
        Watch {
            looked: HashMap::new(),
            objects: BTreeMap::new(),
            last_scan: now,
            took: Duration::ZERO,
            last_check: now,
            strangers: Vec::new(),
            busy: HashMap::new(),
            never: HashSet::new(),
            is_refused: false,
        }
    }

    /// Count what is not managed: bytes, each object's once, noted too as those of a process that has it
    /// mapped.
    pub fn count(&mut self, run: &Run, sizes: &[(&Arc<Process>, Statm)]) -> u64 {
        if run.settings.shared == Shared::None || self.is_refused {
            return 0;
        }
        end_unmapped(run);
        sizes.iter().for_each(|(process, statm)| self.find(process, *statm));
        let keys: HashMap<u64, &Arc<Process>> =
            sizes.iter().map(|(process, _)| (process.key, *process)).collect();
        self.looked.retain(|key, _| keys.contains_key(key));
        keys.values().for_each(|process| process.growth.set_unmanaged_shared_bytes(0));
        let (mut unmanaged_bytes, mut all_bytes) = (0, 0);
        let mut objects = std::mem::take(&mut self.objects);
        objects.retain(|id, counted| {
            let managed = run.object_of(*id);
            let managed_bytes = managed.as_ref().map_or(0, |object| object.space.resident_pages() * PAGE);
            let bytes = match &managed {
                Some(object) => object.memory.mapped.object.resident_bytes().unwrap_or(0),
                None => match self.size_of(*id, counted, &keys) {
                    Some(bytes) => bytes,
                    None => return false,
                },
            };
            counted.bytes = bytes;
            all_bytes += bytes;
            let is_adopted = managed.is_some_and(|object| object.is_adopted());
            let rest = bytes.saturating_sub(managed_bytes);
            let rest = if is_adopted && rest < UNMANAGED_BYTES_MIN { 0 } else { rest };
            unmanaged_bytes += rest;
            if let Some(process) = counted.places.iter().find_map(|place| keys.get(&place.process)) {
                let growth = &process.growth;
                growth.set_unmanaged_shared_bytes(growth.unmanaged_shared_bytes() + rest);
            }
            true
        });
        self.objects = objects;
        run.account.note_shared(all_bytes);
        unmanaged_bytes
    }

    /// Read the maps of a process that has grown by what is not private.
    fn find(&mut self, process: &Arc<Process>, statm: Statm) {
        let other_bytes = statm.size_bytes.saturating_sub(statm.data_bytes);
        let is_due = match self.looked.get(&process.key) {
            Some(looked) => looked.other_bytes != other_bytes && looked.at.elapsed() > PART * looked.took,
            None => process.age() > SHARED_YOUNG,
        };
        if is_due {
            self.read_maps(process, other_bytes);
        }
    }

    fn read_maps(&mut self, process: &Arc<Process>, other_bytes: u64) {
        let (at, pid) = (Instant::now(), process.memory.proc_id());
        let Ok(maps) = proc::shared_maps(pid) else { return };
        self.looked.insert(process.key, Looked { other_bytes, at, took: at.elapsed() });
        for SharedMapping { start, end, object, .. } in maps.anonymous {
            let place = Place { process: process.key, pid, start, end };
            let places = &mut self.objects.entry(object).or_default().places;
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }

    /// None: nobody is known who has it mapped.
    fn size_of(
        &mut self,
        id: Id,
        counted: &mut Counted,
        processes: &HashMap<u64, &Arc<Process>>,
    ) -> Option<u64> {
        while let Some(place) = counted.places.first().copied() {
            let path = format!("/proc/{}/map_files/{:x}-{:x}", place.pid, place.start, place.end);
            match std::fs::metadata(path) {
                Ok(file) if Id { dev: file.dev(), ino: file.ino() } == id => {
                    return Some(file.blocks() * 512);
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    self.is_refused = true;
                    return None;
                }
                _ => {}
            }
            // It has ended, or its mappings have changed: then it is elsewhere, or in pieces.
            counted.places.retain(|other| other.process != place.process);
            let Some(process) = processes.get(&place.process) else { continue };
            for m in proc::shared_maps(place.pid).unwrap_or_default().anonymous {
                if m.object == id {
                    let (process, pid) = (process.key, place.pid);
                    counted.places.push(Place { process, pid, start: m.start, end: m.end });
                }
            }
            if counted.places.first().is_some_and(|first| first.process == place.process) {
                // Only now read: the next look tells its size.
                return Some(counted.bytes);
            }
        }
        None
    }

    /// Memory is tight: objects become managed, and those that are so are looked after.
    pub fn manage(&mut self, run: &Arc<Run>) {
        if run.settings.shared == Shared::None || self.is_refused {
            return;
        }
        for object in run.objects() {
            if let Some(what) = object.memory.breach() {
                return run.fail(format!("shared memory cannot be trusted any more: {what}"));
            }
        }
        let is_to_be_managed = |(id, counted): &(&Id, &Counted)| match run.object_of(**id) {
            Some(object) => !object.is_adopted(),
            None => counted.bytes >= MANAGED_BYTES_MIN && !self.never.contains(id),
        };
        let mut wanted: Vec<(Id, u64)> =
            self.objects.iter().filter(is_to_be_managed).map(|(id, counted)| (*id, counted.bytes)).collect();
        let is_check = !run.objects().is_empty() && self.last_check.elapsed() > SHARED_OBJECTS_LOOK;
        if !is_check && (wanted.is_empty() || self.last_scan.elapsed() < PART * self.took) {
            return;
        }
        // Before the look: a fork that was under way when all were registered has shown its child by now.
        let settled = is_settled(run);
        let keys: Vec<u64> = run.processes().iter().map(|process| process.key).collect();
        self.busy.retain(|key, _| keys.contains(key));
        let clones_ended: Vec<u64> =
            self.busy.iter_mut().filter_map(|(key, busy)| busy.is_over().then_some(*key)).collect();
        let begun = Instant::now();
        let all = scan(run);
        (self.last_scan, self.took) = (Instant::now(), begun.elapsed());
        if is_check {
            self.last_check = Instant::now();
            self.check(run, &all, settled);
        }
        if shmem::may_be_huge() {
            return;
        }
        wanted.sort_unstable_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        wanted.truncate(MANAGED_MAX.saturating_sub(run.objects().iter().filter(|o| o.is_adopted()).count()));
        for (id, _) in wanted {
            if let Err(error) = self.join(run, id, &all, settled, &clones_ended)
                && run.settings.verbose
            {
                eprintln!("memspill: shared memory {}: {error}", id.ino);
            }
        }
    }

    /// One step of an object's joining.
    fn join(
        &mut self,
        run: &Arc<Run>,
        id: Id,
        all: &[Mapper],
        settled: bool,
        clones_ended: &[u64],
    ) -> io::Result<()> {
        let mappers: Vec<(&Mapper, Vec<SharedMapping>)> = all
            .iter()
            .map(|mapper| (mapper, of_object(&mapper.maps, id)))
            .filter(|(_, mappings)| !mappings.is_empty())
            .collect();
        let known: Option<Vec<(&Arc<Process>, &Mapper)>> = mappers
            .iter()
            .filter(|(mapper, _)| !is_twin(mapper, all))
            .map(|(mapper, _)| Some((mapper.process.as_ref()?, *mapper)))
            .collect();
        let Some(known) = known.filter(|known| !known.is_empty()) else { return Ok(()) };
        if mappers.iter().any(|(mapper, mappings)| is_held(mapper, mappings)) {
            return Ok(());
        }
        let object = match run.object_of(id) {
            Some(object) => object,
            None => open(run, id, known[0].1)?,
        };
        let mut is_new = false;
        for (process, mapper) in &known {
            let registered = register(run, process, mapper.pid, &object);
            // From here on each of its clones is told, and each change of what was registered now. Who is in
            // a call from before is waited for.
            let is_first = process.growth.is_registered() && !self.busy.contains_key(&process.key);
            if is_first || matches!(registered, Registered::Now) {
                self.busy.insert(process.key, Busy::of(mapper.pid)?);
            }
            match registered {
                Registered::Before => is_new |= !clones_ended.contains(&process.key),
                Registered::Now | Registered::Later => is_new = true,
                Registered::Never => {
                    abandon(run, &object);
                    self.never.insert(id);
                    return Ok(());
                }
            }
        }
        if is_new || !settled || known.iter().any(|(process, _)| process.memory.uffd.is_changing()) {
            return Ok(());
        }
        // The kernel is asked as well: it would cost data if one were not.
        for (process, mapper) in &known {
            match has_joined(process, mapper.pid, id) {
                Some(true) => {}
                Some(false) => {
                    let _held = process.hold_pages();
                    process.memory.shared.set_of(object.key, &[]);
                    return Ok(());
                }
                None => return Ok(()),
            }
        }
        adopt(run, &object)
    }

    /// Adopted objects: is anything as it should not be?
    fn check(&mut self, run: &Run, all: &[Mapper], settled: bool) {
        let objects: Vec<Arc<Object>> = run.objects().into_iter().filter(|o| o.is_adopted()).collect();
        let ids: HashMap<Id, usize> =
            objects.iter().enumerate().map(|(n, object)| (object.memory.mapped.object.id, n)).collect();
        let (mut strangers, mut held) = (Vec::new(), vec![false; objects.len()]);
        for mapper in all {
            let mapped: HashSet<usize> =
                mapper.maps.anonymous.iter().filter_map(|m| ids.get(&m.object).copied()).collect();
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
        for (object, held) in objects.iter().zip(held) {
            if held != object.space.is_aside() {
                object.space.set_aside(held, &run.engine.spaces());
            }
        }
        // Seen twice: the first time it may have been about to be known, or to end.
        if let Some(pid) = strangers.iter().find(|pid| self.strangers.contains(pid)) {
            run.fail(format!("process {pid} has managed shared memory mapped, and is not managed itself"));
        }
        self.strangers = strangers;
    }
}

/// No fork is under way, and each child is known.
fn is_settled(run: &Run) -> bool {
    run.processes().iter().all(|process| {
        let forks = process.memory.agent().is_some_and(|agent| agent.evictor.control.is_forking());
        process.is_known() && !forks && !process.memory.uffd.is_changing()
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
        (!maps.anonymous.is_empty()).then_some(Mapper { pid: id, maps, process })
    };
    proc::descendants(std::process::id()).into_iter().filter_map(of_pid).collect()
}

fn of_object(maps: &SharedMaps, id: Id) -> Vec<SharedMapping> {
    maps.anonymous.iter().filter(|mapping| mapping.object == id).copied().collect()
}

/// Does the kernel say that each of these mappings is registered? None: it cannot be said now.
fn is_registered<'a>(process: &Process, mapped: impl Iterator<Item = &'a SharedMapping>) -> Option<bool> {
    let uffd = &process.memory.uffd;
    let ends = |m: &SharedMapping| [m.start, m.end - PAGE];
    let answers: Option<Vec<bool>> =
        mapped.flat_map(ends).map(|addr| uffd.is_registered_shared(addr)).collect();
    let answers = answers.filter(|_| !uffd.is_changing())?;
    Some(answers.into_iter().all(|is_registered| is_registered))
}

/// What the process has mapped, looked at inside its gate. None: it cannot be said now.
fn look_at<T>(process: &Process, pid: u32, look: impl FnOnce(&SharedMaps) -> Option<T>) -> Option<T> {
    let _held = process.hold_pages();
    if process.memory.uffd.is_changing() {
        return None;
    }
    look(&proc::shared_maps_of_any_thread(pid).ok()?)
}

/// Is all that the process has mapped of the object registered? None: it cannot be said now.
fn has_joined(process: &Process, pid: u32, id: Id) -> Option<bool> {
    look_at(process, pid, |maps| is_registered(process, maps.anonymous.iter().filter(|m| m.object == id)))
}

/// The same for all managed objects. The list of what the process has mapped is put right too, should it lack
/// one: a mapping that a program has made longer in place, by its own instructions.
fn put_right(run: &Run, process: &Process, pid: u32, ids: &HashMap<Id, usize>) -> Option<bool> {
    look_at(process, pid, |maps| {
        let managed = maps.anonymous.iter().filter(|m| ids.contains_key(&m.object));
        let answer = is_registered(process, managed)?;
        process.memory.shared.set(managed_of(run, process, &maps.anonymous));
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
        || mapper.process.as_ref().is_none_or(|process| direct::has(process))
}

/// Its own mapping here, and its page table.
fn open(run: &Run, id: Id, mapper: &Mapper) -> io::Result<Arc<Object>> {
    let process = mapper.process.as_ref().expect("a known one");
    let mapping = of_object(&mapper.maps, id)[0];
    let file = shmem::Object::of_mapping(mapper.pid, mapping.start, mapping.end)?;
    if file.id != id {
        return Err(io::Error::other("its mapping has changed"));
    }
    let uffd = Uffd::of_self(None).or_else(|_| {
        let device = std::fs::File::open("/dev/userfaultfd")?;
        Uffd::of_self(Some(std::os::fd::AsFd::as_fd(&device)))
    })?;
    let memory = Arc::new(SharedMemory::new(shmem::Mapped::new(file, uffd)?)?);
    let key = run.new_key();
    let group = process.space.group(run.engine.swap()).clone();
    let space = Arc::new(Space::new(SpaceId(key as u32), memory.clone()).in_group(group));
    let object = Arc::new(Object::new(key, memory, space));
    run.add_object(object.clone());
    Ok(object)
}

enum Registered {
    /// All that the process has mapped of it was registered before.
    Before,
    Now,
    /// Something is changing.
    Later,
    /// It belongs to a userfaultfd of the program's own.
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
    if process.memory.uffd.is_changing() {
        return Registered::Later;
    }
    if before == now {
        return Registered::Before;
    }
    process.memory.shared.set_of(object.key, &now);
    let mut done = before.clone();
    for m in now.iter().filter(|m| !before.contains(m)) {
        // It may have been registered by accident, beside private memory, and been filled as such.
        let (from, to) = (Vpn::from_addr(m.start), Vpn::from_addr(m.end));
        process.space.unmap(run.engine.swap(), crate::cpu(), from, to);
        match process.memory.uffd.register(m.start, m.end - m.start) {
            Ok(()) => done.push(*m),
            Err(libc::EBUSY) => {
                // What is another's is not to be unregistered: some kernels would do that.
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
    if process.memory.uffd.is_changing() || mapped() != Some(now) {
        process.memory.shared.set_of(object.key, &before);
        return Registered::Later;
    }
    drop(held);
    Registered::Now
}

/// It cannot be managed. Nothing of it has left.
fn abandon(run: &Run, object: &Object) {
    // Again, for children that come meanwhile.
    while let Some(process) = run.mappers(object.key).pop() {
        let held = process.hold_pages();
        for m in process.memory.shared.of(object.key) {
            // What was never registered, or belongs to another, stays as it is.
            let _ = process.memory.uffd.unregister(m.start, m.end - m.start);
        }
        process.memory.shared.set_of(object.key, &[]);
        drop(held);
    }
    run.remove_object(object);
}

/// All who have it mapped are registered: what is in memory is managed from here on.
fn adopt(run: &Run, object: &Object) -> io::Result<()> {
    let (mapped, mut at) = (&object.memory.mapped, 0);
    while at < mapped.object.bytes {
        let bytes = ADOPT_BYTES.min(mapped.object.bytes - at);
        let _fill_guard = object.space.gate.enter_fill();
        let mut adopted = 0;
        mapped.present(at, bytes, |from, to| {
            adopted += object.space.adopt(run.engine.swap(), Vpn(from / PAGE), Vpn(to / PAGE));
        })?;
        run.account.less_unmanaged(adopted * PAGE);
        at += bytes;
    }
    object.set_adopted();
    object.space.set_aside(false, &run.engine.spaces());
    run.account.count_shared_object();
    run.update_account();
    Ok(())
}

/// Objects that nobody has mapped any more.
fn end_unmapped(run: &Run) {
    for object in run.objects() {
        if !run.mappers(object.key).is_empty() {
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
