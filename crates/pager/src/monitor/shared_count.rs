//! Shared memory is found and counted, in every mode and with whatever privileges there are.
//!
//! ```text
//!   mapped     MAP_SHARED: anonymous, memfds, files of tmpfs     /proc/PID/maps
//!   open       memfds and files of tmpfs, mapped or not          /proc/PID/fd
//!   System V   attached by a process, or made by one             /proc/sysvipc/shm
//! ```
//!
//! An object counts once, by what it has in memory, whoever has it. That is told by the object itself where a
//! way leads to it: a descriptor of a process, a mapping (/proc/PID/map_files, which takes
//! CAP_CHECKPOINT_RESTORE), or its name. Else it is the sum of what its mappers have of it, each page divided
//! among those who have it mapped.
//!
//! Only memory that has come since the run began counts: a file of somebody else's that is read takes nothing
//! from the budget. A private mapping does not count either: it is text and data that is read, as with a file
//! on a disk. A file that has a name counts as long as it has the name, for its memory is not free before.
//!
//! Looks take a part of a CPU at most, and come when the machine's shared memory has changed, which one cheap
//! call tells; now and then anyway. Only files on tmpfs are looked at, by the table of mounts: to ask for
//! another one's size could wait for a process that waits for us.

use crate::proc::{self, Mounts, SharedKind, Statm};
use crate::process::Process;
use crate::threads;
use crate::times::{SHARED_COUNT, SHARED_MOUNTS, SHARED_YOUNG};
use memspill_uffd::shmem::{self, Id};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Looks take this part of a CPU at most; ...
const PART: u32 = 20;
/// ... where page tables must be walked, this part, and only while something changes.
const WALK_PART: u32 = 10;
/// Less than this is no change.
const STEP_BYTES: u64 = 64 << 10;

/// The kernel puts this behind the name of a file that was unlinked.
const DELETED: &[u8] = b" (deleted)";

/// By process.
pub type Processes<'a> = HashMap<u64, &'a Arc<Process>>;

pub struct Counter {
    objects: BTreeMap<Id, Counted>,
    looked: HashMap<u64, Looked>,
    /// By device: is it tmpfs?
    tmpfs: HashMap<u64, bool>,
    /// By mount namespace, and when they were read.
    mounts: HashMap<PathBuf, (Instant, Arc<Mounts>)>,
    started_s: i64,
    finding: Pace,
    sizing: Pace,
    walking: Pace,
    /// Something was had by a process that has it no more: another one may.
    is_lost: bool,
    /// A mapping does not lead to its object.
    is_refused: bool,
}

/// A process was looked at.
struct Looked {
    /// Its size without private memory, then.
    other_bytes: u64,
    machine_bytes: u64,
    at: Instant,
}

/// When something was done last, and how much CPU time it took.
struct Pace {
    at: Instant,
    took: Duration,
    machine_bytes: u64,
}

impl Pace {
    fn new() -> Pace {
        Pace { at: Instant::now(), took: Duration::ZERO, machine_bytes: 0 }
    }

    /// `is_new`: there is something that was not there the last time.
    fn is_due(&self, machine_bytes: u64, part: u32, is_new: bool) -> bool {
        let elapsed = self.at.elapsed();
        let has_changed = is_new || self.machine_bytes.abs_diff(machine_bytes) >= STEP_BYTES;
        elapsed > part * self.took && (has_changed || elapsed > SHARED_COUNT)
    }

    fn note(&mut self, machine_bytes: u64, begun: Duration) {
        let took = threads::cpu_of_caller().saturating_sub(begun);
        *self = Pace { at: Instant::now(), took, machine_bytes };
    }
}

/// An object, and who has it.
pub struct Counted {
    pub kind: SharedKind,
    /// The bytes that have come since the run began.
    pub bytes: u64,
    /// For people.
    pub name: String,
    places: Vec<Place>,
    /// The bytes that it had before. None: nobody has asked for its size yet.
    before_bytes: Option<u64>,
}

#[derive(Clone, PartialEq, Eq)]
enum Place {
    Mapping {
        process: u64,
        pid: u32,
        start: u64,
        end: u64,
    },
    Descriptor {
        process: u64,
        pid: u32,
        fd: u32,
    },
    Name(PathBuf),
    /// /proc/sysvipc/shm
    Table,
}

impl Place {
    fn process(&self) -> Option<u64> {
        match self {
            Place::Mapping { process, .. } | Place::Descriptor { process, .. } => Some(*process),
            Place::Name(_) | Place::Table => None,
        }
    }

    fn path(&self) -> Option<PathBuf> {
        Some(match self {
            Place::Mapping { pid, start, end, .. } => {
                format!("/proc/{pid}/map_files/{start:x}-{end:x}").into()
            }
            Place::Descriptor { pid, fd, .. } => format!("/proc/{pid}/fd/{fd}").into(),
            Place::Name(path) => path.clone(),
            Place::Table => return None,
        })
    }
}

impl Counted {
    fn new(kind: SharedKind) -> Counted {
        Counted { kind, bytes: 0, name: String::new(), places: Vec::new(), before_bytes: None }
    }

    pub fn is_mapped(&self) -> bool {
        self.places.iter().any(|place| matches!(place, Place::Mapping { .. }))
    }

    /// All that have it.
    pub fn had_by(&self) -> impl Iterator<Item = u64> + '_ {
        self.places.iter().filter_map(Place::process)
    }

    /// One of those that have it.
    pub fn process<'a>(&self, processes: &Processes<'a>) -> Option<&'a Arc<Process>> {
        self.had_by().find_map(|key| processes.get(&key).copied())
    }

    fn add(&mut self, place: Place, name: &[u8]) {
        if self.name.is_empty() {
            self.name = named(self.kind, name);
        }
        if !self.places.contains(&place) {
            self.places.push(place);
        }
    }

    fn set_bytes(&mut self, now_bytes: u64, is_older: bool) {
        let is_older = is_older && self.kind != SharedKind::Anonymous;
        let before_bytes = *self.before_bytes.get_or_insert(if is_older { now_bytes } else { 0 });
        self.bytes = now_bytes.saturating_sub(before_bytes);
    }
}

/// `/memfd:java_heap (deleted)`: `memfd java_heap`
fn named(kind: SharedKind, name: &[u8]) -> String {
    match kind {
        SharedKind::Anonymous => return "shared anonymous memory".into(),
        SharedKind::SystemV => return "System V shared memory".into(),
        SharedKind::File => {}
    }
    let name = name.strip_suffix(DELETED).unwrap_or(name);
    let name = String::from_utf8_lossy(name).replace(|c: char| c.is_control(), "?");
    match name.strip_prefix("/memfd:") {
        Some(name) => format!("memfd {name}"),
        None => name,
    }
}

/// The bytes that a file has in memory.
struct Size {
    bytes: u64,
    is_older: bool,
    is_file: bool,
}

impl Counter {
    pub fn new() -> Counter {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Counter {
            objects: BTreeMap::new(),
            looked: HashMap::new(),
            tmpfs: HashMap::new(),
            mounts: HashMap::new(),
            started_s: since_epoch.as_secs() as i64,
            finding: Pace::new(),
            sizing: Pace::new(),
            walking: Pace::new(),
            is_lost: false,
            is_refused: false,
        }
    }

    /// Nothing can be opened by way of its mappings.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    pub fn objects(&self) -> &BTreeMap<Id, Counted> {
        &self.objects
    }

    /// Find what is new and what has gone, and how large each object is, where that is due.
    pub fn look(&mut self, sizes: &[(&Arc<Process>, Statm)]) {
        let machine_bytes = machine_bytes();
        self.find(sizes, machine_bytes);
        // One that is found after the last change: what it has is not known yet.
        let is_new = self.objects.values().any(|counted| counted.before_bytes.is_none());
        if !self.sizing.is_due(machine_bytes, PART, is_new) {
            return;
        }
        let begun = threads::cpu_of_caller();
        let unknown = self.size();
        self.sizing.note(machine_bytes, begun);
        if !unknown.is_empty() && self.walking.is_due(machine_bytes, WALK_PART, is_new) {
            let begun = threads::cpu_of_caller();
            self.walk(&unknown);
            self.walking.note(machine_bytes, begun);
        }
    }

    fn find(&mut self, sizes: &[(&Arc<Process>, Statm)], machine_bytes: u64) {
        if self.finding.at.elapsed() <= PART * self.finding.took {
            return;
        }
        let begun = threads::cpu_of_caller();
        let keys: HashSet<u64> = sizes.iter().map(|(process, _)| process.key).collect();
        let known = self.looked.len();
        self.looked.retain(|key, _| keys.contains(key));
        // Another process may have by now what an ended one had.
        let is_full = std::mem::take(&mut self.is_lost) || self.looked.len() != known;
        let mut any = is_full;
        for (process, statm) in sizes {
            let other_bytes = statm.size_bytes.saturating_sub(statm.data_bytes);
            let is_due = match self.looked.get(&process.key) {
                Some(looked) => {
                    looked.other_bytes != other_bytes
                        || looked.machine_bytes.abs_diff(machine_bytes) >= STEP_BYTES
                        || looked.at.elapsed() > SHARED_COUNT
                }
                None => process.age() > SHARED_YOUNG,
            };
            if is_due || is_full && process.age() > SHARED_YOUNG {
                any = true;
                self.look_at(process);
                let looked = Looked { other_bytes, machine_bytes, at: Instant::now() };
                self.looked.insert(process.key, looked);
            }
        }
        if any {
            self.find_system_v(sizes);
            let is_there = |place: &Place| place.process().is_none_or(|key| keys.contains(&key));
            for counted in self.objects.values_mut() {
                counted.places.retain(is_there);
            }
            if is_full {
                self.objects.retain(|_, counted| !counted.places.is_empty());
            }
            self.finding.note(machine_bytes, begun);
        }
    }

    /// Finds what this process has mapped and open.
    fn look_at(&mut self, process: &Arc<Process>) {
        let (key, pid) = (process.key, process.memory.proc_id());
        let Ok(maps) = proc::shared_maps(pid) else { return };
        let mut had: Vec<Id> = Vec::new();
        for (id, counted) in &mut self.objects {
            let places = counted.places.len();
            counted.places.retain(|place| place.process() != Some(key));
            if counted.places.len() != places {
                had.push(*id);
            }
        }
        let mounts = self.mounts_of(pid).zip(self.mounts_of(std::process::id()));
        for m in maps.mappings.iter().chain(&maps.system_v) {
            let name = maps.names.iter().find(|(id, _)| *id == m.object);
            let name = name.map_or(&b""[..], |(_, name)| name);
            let place = Place::Mapping { process: key, pid, start: m.start, end: m.end };
            match &mounts {
                _ if m.kind != SharedKind::File => self.add(m.object, m.kind, place, name, None),
                Some((mounts, ours)) if is_in_memory(name, mounts) => {
                    self.add(m.object, m.kind, place, name, Some(ours));
                }
                _ => {}
            }
        }
        if let Some((mounts, ours)) = mounts {
            self.look_at_open(key, process.memory.pid(), &mounts, &ours);
        }
        self.is_lost |= had.iter().any(|id| self.objects[id].places.is_empty());
    }

    fn look_at_open(&mut self, key: u64, pid: u32, mounts: &Mounts, ours: &Mounts) {
        let _ = proc::open_files(pid, |pid, fd, name| {
            if !is_in_memory(name, mounts) {
                return;
            }
            let place = Place::Descriptor { process: key, pid, fd };
            let path = place.path().expect("a path");
            let Some((id, size)) = size_of(&path, self.started_s) else { return };
            if size.is_file && is_tmpfs(&mut self.tmpfs, id.dev, &path) {
                self.add(id, SharedKind::File, place, name, Some(ours));
            }
        });
    }

    /// `ours`: the mounts by which its name leads to it, should it be a file.
    fn add(&mut self, id: Id, kind: SharedKind, place: Place, name: &[u8], ours: Option<&Mounts>) {
        let counted = self.objects.entry(id).or_insert_with(|| Counted::new(kind));
        counted.add(place, name);
        if ours.is_some_and(|ours| ours.is_on_tmpfs(name)) && !name.ends_with(DELETED) {
            counted.add(Place::Name(proc::path_of(name)), name);
        }
    }

    /// The mounts that a process sees.
    fn mounts_of(&mut self, pid: u32) -> Option<Arc<Mounts>> {
        let namespace_of = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        let (namespace, our_id) = (namespace_of(pid)?, std::process::id());
        // It may have another root.
        let pid = if namespace_of(our_id).as_ref() == Some(&namespace) { our_id } else { pid };
        match self.mounts.get(&namespace) {
            Some((at, mounts)) if at.elapsed() < SHARED_MOUNTS => Some(mounts.clone()),
            _ => {
                self.mounts.retain(|_, (at, _)| at.elapsed() < SHARED_MOUNTS);
                let mounts = Arc::new(Mounts::of(pid).ok()?);
                self.mounts.insert(namespace, (Instant::now(), mounts.clone()));
                Some(mounts)
            }
        }
    }

    /// Segments that a process of the run has made, attached or not.
    fn find_system_v(&mut self, sizes: &[(&Arc<Process>, Statm)]) {
        let segments = proc::system_v();
        if segments.is_empty() {
            return;
        }
        let pids: HashSet<u32> = sizes.iter().map(|(process, _)| process.memory.pid()).collect();
        for segment in segments {
            if pids.contains(&segment.made_by) || self.objects.contains_key(&segment.object) {
                let new = || Counted::new(SharedKind::SystemV);
                let counted = self.objects.entry(segment.object).or_insert_with(new);
                counted.add(Place::Table, b"");
            }
        }
    }

    /// Ask each object for its size. Returns those that cannot be asked.
    fn size(&mut self) -> HashSet<Id> {
        let mut unknown = HashSet::new();
        let has_table = self.objects.values().any(|counted| counted.places.contains(&Place::Table));
        let segments = if has_table { proc::system_v() } else { Vec::new() };
        let mut others = Vec::new();
        for (id, counted) in &mut self.objects {
            let (mut size, mut gone) = (None, Vec::new());
            // A mapping leads there last: that may be refused.
            let ways = |place: &&Place| !matches!(place, Place::Mapping { .. });
            let mappings = counted.places.iter().filter(|place| !ways(place));
            let is_refused = self.is_refused || counted.kind == SharedKind::SystemV;
            let mappings = mappings.filter(|_| !is_refused);
            for place in counted.places.iter().filter(ways).chain(mappings) {
                let found = match place.path() {
                    Some(path) => size_of(&path, self.started_s).map(|found| (found, path)),
                    None => {
                        let segment = segments.iter().find(|segment| segment.object == *id);
                        size = segment.map(|segment| Size {
                            bytes: segment.resident_bytes,
                            is_older: segment.changed_s < self.started_s,
                            is_file: true,
                        });
                        if segment.is_none() {
                            gone.push(place.clone());
                        }
                        break;
                    }
                };
                match found {
                    Some(((found, of_it), path)) if found == *id => {
                        let is_counted = counted.kind == SharedKind::Anonymous
                            || of_it.is_file && is_tmpfs(&mut self.tmpfs, id.dev, &path);
                        match is_counted {
                            true => size = Some(of_it),
                            false => others.push(*id),
                        }
                        break;
                    }
                    _ if matches!(place, Place::Mapping { .. }) && is_refused_by_map_files(place) => {
                        self.is_refused = true;
                        break;
                    }
                    _ => gone.push(place.clone()),
                }
            }
            match size {
                Some(size) => counted.set_bytes(size.bytes, size.is_older),
                None if counted.is_mapped() => _ = unknown.insert(*id),
                None => {}
            }
            if !gone.is_empty() {
                counted.places.retain(|place| !gone.contains(place));
                self.is_lost |= counted.places.is_empty();
                for key in gone.iter().filter_map(Place::process) {
                    self.looked.remove(&key);
                }
            }
        }
        others.iter().for_each(|id| _ = self.objects.remove(id));
        unknown
    }

    /// The sizes of these by the page tables of those who have them mapped.
    fn walk(&mut self, ids: &HashSet<Id>) {
        let mut pids = HashSet::new();
        for counted in ids.iter().filter_map(|id| self.objects.get(id)) {
            let of_place = |place: &Place| match place {
                Place::Mapping { pid, .. } => Some(*pid),
                _ => None,
            };
            pids.extend(counted.places.iter().filter_map(of_place));
        }
        let mut parts: HashMap<Id, u64> = HashMap::new();
        for pid in pids {
            for (id, bytes) in proc::shared_parts(pid).unwrap_or_default() {
                *parts.entry(id).or_default() += bytes;
            }
        }
        for id in ids {
            if let Some(counted) = self.objects.get_mut(id) {
                counted.set_bytes(parts.get(id).copied().unwrap_or(0), false);
            }
        }
    }
}

/// A memfd, or a file on tmpfs; and none of ours.
fn is_in_memory(name: &[u8], mounts: &Mounts) -> bool {
    match name.strip_prefix(b"/memfd:") {
        Some(name) => !name.starts_with(b"memspill-"),
        None => mounts.is_on_tmpfs(name),
    }
}

/// The size of what is at this path, which is on no file system that could make us wait.
fn size_of(path: &std::path::Path, started_s: i64) -> Option<(Id, Size)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = rustix::fs::statx(CWD, path, flags, wanted).ok()?;
    let dev = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
    let has_btime = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    // A file system that does not tell when a file was made: what it has is taken for the run's.
    let is_older = has_btime && found.stx_btime.tv_sec < started_s;
    let is_file = FileType::from_raw_mode(u32::from(found.stx_mode)) == FileType::RegularFile;
    Some((Id { dev, ino: found.stx_ino }, Size { bytes: found.stx_blocks * 512, is_older, is_file }))
}

fn is_refused_by_map_files(place: &Place) -> bool {
    let path = place.path().expect("of a mapping");
    std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Is a file with this path, on this device, on tmpfs?
fn is_tmpfs(known: &mut HashMap<u64, bool>, dev: u64, path: &std::path::Path) -> bool {
    let look = || {
        let found = rustix::fs::statfs(path);
        found.is_ok_and(|found| found.f_type as u64 == shmem::TMPFS_MAGIC)
    };
    *known.entry(dev).or_insert_with(look)
}

/// Shared memory of the whole machine, about.
fn machine_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    (machine.sharedram as u64).saturating_mul(u64::from(machine.mem_unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn only_what_has_come_since_counts() {
        let mut older = Counted::new(SharedKind::File);
        for (bytes, counted) in [(100, 0), (130, 30), (90, 0)] {
            older.set_bytes(bytes, true);
            assert_eq!(older.bytes, counted);
        }
        let mut new = Counted::new(SharedKind::File);
        new.set_bytes(100, false);
        // The first look decides.
        new.set_bytes(130, true);
        assert_eq!(new.bytes, 130);
    }

    #[test]
    fn a_place_is_there_once_and_tells_the_name() {
        let mut counted = Counted::new(SharedKind::File);
        let place = Place::Descriptor { process: 1, pid: 2, fd: 3 };
        counted.add(place.clone(), b"/memfd:java_heap (deleted)");
        counted.add(place, b"/memfd:other");
        assert_eq!((counted.places.len(), counted.name.as_str()), (1, "memfd java_heap"));
        assert!(!counted.is_mapped());
        counted.add(Place::Mapping { process: 1, pid: 2, start: 0, end: 4096 }, b"");
        assert!(counted.is_mapped());
        assert_eq!(named(SharedKind::File, b"/dev/shm/a\nb (deleted)"), "/dev/shm/a?b");
        assert_eq!(named(SharedKind::Anonymous, b"/dev/zero (deleted)"), "shared anonymous memory");
    }

    #[test]
    fn a_memfd_has_a_size_and_an_age() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = File::from(rustix::fs::memfd_create("size-test", flags).expect("a memfd"));
        file.set_len(1 << 20).expect("longer");
        file.write_all_at(&[1; 8192], 0).expect("written");
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs() as i64;
        let (id, size) = size_of(&path, now - 10).expect("it is there");
        assert!((size.bytes, size.is_older, size.is_file) == (8192, false, true));
        assert!(is_tmpfs(&mut HashMap::new(), id.dev, &path));
        // A kernel that does not tell takes none for older.
        assert!(size_of(&path, now + 10).is_some_and(|(same, _)| same == id));
        let mounts = Mounts::in_text(b"3 2 0:9 / /dev/shm rw - tmpfs tmpfs rw\n");
        let seen: Vec<bool> = [&b"/memfd:x (deleted)"[..], b"/memfd:memspill-pool", b"/dev/shm/x", b"/etc/x"]
            .map(|name| is_in_memory(name, &mounts))
            .into();
        assert_eq!(seen, [true, false, true, false]);
    }

    #[test]
    fn looks_come_when_something_has_changed_and_take_little() {
        let mut pace = Pace::new();
        assert!(!pace.is_due(STEP_BYTES - 1, PART, false) && pace.is_due(STEP_BYTES, PART, false));
        pace.note(STEP_BYTES, threads::cpu_of_caller());
        pace.took = Duration::ZERO;
        assert!(!pace.is_due(STEP_BYTES, PART, false) && pace.is_due(STEP_BYTES, PART, true));
        pace.took = Duration::from_secs(1);
        assert!(!pace.is_due(0, PART, true), "too soon");
    }
}
