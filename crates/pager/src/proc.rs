//! What /proc tells of a process: size, maps, thread group. Only what the pager needs.
//!
//! Our own, because maps are read line by line through one buffer, in bytes: the crate procfs holds all lines
//! as structures, which would count against the budget, and gives up at names that are not UTF-8.

use memspill_common::protocol::is_agent;
use memspill_engine::units::PAGE_SIZE;
use memspill_uffd::shmem::Id;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What a process of some hundred mappings has, in one piece.
const BUFFER_BYTES: usize = 64 << 10;
/// What a `status` or a `stat` has.
const TEXT_BYTES: usize = 4 << 10;

/// A file of /proc as text. A process may give itself a name that is not UTF-8, and map a file with such a
/// name: those bytes are read as U+FFFD.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&whole(path, TEXT_BYTES)?).into_owned())
}

/// All of a file of /proc, which is likely to be shorter than this. Such a file says that it is empty, so
/// `fs::read` begins with 32 bytes, and takes eleven calls for what takes four here; and for each of them the
/// kernel looks for its place in a list of mappings.
fn whole(path: impl AsRef<Path>, likely_bytes: usize) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    let (mut bytes, mut len) = (vec![0; likely_bytes], 0);
    loop {
        match file.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if len == bytes.len() {
            bytes.resize(2 * len, 0);
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// /proc/PID/statm, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Statm {
    pub size_bytes: u64,
    /// Resident anonymous memory (resident less file-backed and shared).
    pub anon_bytes: u64,
    /// Private writable memory, touched or not.
    pub data_bytes: u64,
}

pub fn statm(pid: u32) -> Option<Statm> {
    statm_in(&text(format!("/proc/{pid}/statm")).ok()?)
}

/// The same for the file's text.
pub fn statm_in(text: &str) -> Option<Statm> {
    let bytes = |pages: &str| pages.parse::<u64>().unwrap_or(0).saturating_mul(PAGE_SIZE as u64);
    let mut fields = text.split_ascii_whitespace().map(bytes);
    let (size, resident, shared) = (fields.next()?, fields.next()?, fields.next()?);
    let data = fields.nth(2)?;
    Some(Statm { size_bytes: size, anon_bytes: resident.saturating_sub(shared), data_bytes: data })
}

/// Memory of this process, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct OwnMemory {
    pub anon_bytes: u64,
    /// The size of files in memory, as far as it has touched them.
    pub shmem_bytes: u64,
}

/// By /proc/self/status, since statm does not keep files in memory and others apart.
pub fn own_memory() -> Option<OwnMemory> {
    own_memory_in(&text("/proc/self/status").ok()?)
}

/// The same for the file's text.
pub fn own_memory_in(status: &str) -> Option<OwnMemory> {
    let bytes = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(OwnMemory { anon_bytes: bytes("RssAnon:")?, shmem_bytes: bytes("RssShmem:")? })
}

/// Anonymous memory of a process with shared pages divided among their sharers. Walks the whole address
/// space.
pub fn pss_anon_bytes(pid: u32) -> Option<u64> {
    pss_anon_bytes_in(&text(format!("/proc/{pid}/smaps_rollup")).ok()?)
}

/// The same for the file's text.
pub fn pss_anon_bytes_in(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|l| l.strip_prefix("Pss_Anon:"))?;
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A mapping that can be managed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// The end of the mapping below it, whatever that one is; 0 for the lowest.
    pub below_end: u64,
    pub kind: MappingKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MappingKind {
    /// Anonymous memory that is none of the others.
    Data,
    /// What brk has made, or a part of it.
    Heap,
    /// Writable and executable.
    Code,
    /// To be read, or run, and not to be written now.
    Protected,
    /// Without access now, and larger than a guard. Its content comes to sight with its access.
    Closed,
    /// Reserved memory right behind data, which becomes data by mprotect: malloc's heaps of further threads
    /// grow so, often by a page at a time.
    Reserve,
    /// The main stack, which grows downwards, at most to where the mapping below it ends.
    Stack,
}

/// More is reserved for other purposes: malloc's heaps have 64 MiB. Less is a guard of a stack.
pub const RESERVE_BYTES: RangeInclusive<u64> = 64 << 10..=64 << 20;

/// Mappings that can be managed, in ascending order: private, anonymous, and not the kernel's own. And what
/// some of them grow into. (Memory that cannot be written leaves another way
/// than the rest: `plant/opened.rs`.)
pub fn manageable(pid: u32) -> io::Result<Vec<Mapping>> {
    // Not as a whole: of 65,000 mappings it is 4 MiB, which would count against the budget.
    let mut maps = BufReader::with_capacity(BUFFER_BYTES, fs::File::open(format!("/proc/{pid}/maps"))?);
    let (mut lines, mut line) = (Lines::default(), Vec::new());
    let mut mappings = Vec::new();
    while maps.read_until(b'\n', &mut line)? > 0 {
        mappings.extend(lines.read(line.trim_ascii_end()));
        line.clear();
    }
    Ok(mappings)
}

/// The same for the file's text. (In bytes: names of files need not be UTF-8.)
pub fn manageable_in(maps: &[u8]) -> Vec<Mapping> {
    let mut lines = Lines::default();
    maps.split(|byte| *byte == b'\n').filter_map(|line| lines.read(line)).collect()
}

/// What is remembered from line to line.
#[derive(Default)]
struct Lines {
    /// The end of the mapping in the line above.
    last_end: u64,
    /// The end of the last one that was data.
    data_end: u64,
}

impl Lines {
    /// `start-end perms offset dev inode [name]`: the mapping, if it can be managed.
    fn read(&mut self, line: &[u8]) -> Option<Mapping> {
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let (start, end) = range_of(fields.next()?)?;
        let below_end = std::mem::replace(&mut self.last_end, end);
        let (perms, inode) = (fields.next()?, fields.nth(2)?);
        let name = fields.next().unwrap_or(b"");
        let kind = match (perms, name) {
            _ if inode != b"0" => return None,
            (b"rw-p" | b"rwxp", b"[stack]") if below_end <= start => MappingKind::Stack,
            (b"rw-p", b"[heap]") => MappingKind::Heap,
            (b"rw-p", _) if is_anonymous(name) => MappingKind::Data,
            (b"rwxp", _) if is_anonymous(name) => MappingKind::Code,
            (b"r--p" | b"r-xp", _) if is_anonymous(name) => MappingKind::Protected,
            (b"---p", _) if is_anonymous(name) && end - start >= *RESERVE_BYTES.start() => {
                match start == self.data_end && RESERVE_BYTES.contains(&(end - start)) {
                    true => MappingKind::Reserve,
                    false => MappingKind::Closed,
                }
            }
            _ => return None,
        };
        if kind == MappingKind::Data {
            self.data_end = end;
        }
        Some(Mapping { start, end, below_end, kind })
    }
}

/// Private anonymous mappings, whatever may be done to them, in ascending order: (start, end). The main
/// stack, which grows, from where the mapping below it ends.
pub fn private_anonymous(pid: u32) -> io::Result<Vec<(u64, u64)>> {
    let maps = read_maps(pid)?;
    if maps.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the thread has ended"));
    }
    let mut below_end = 0;
    let read = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let (start, end) = range_of(fields.next()?)?;
        let below = std::mem::replace(&mut below_end, end);
        let (perms, inode) = (fields.next()?, fields.nth(2)?);
        let name = fields.next().unwrap_or(b"");
        let is_stack = name == b"[stack]";
        (inode == b"0" && perms.ends_with(b"p") && (is_stack || is_anonymous(name)))
            .then_some((if is_stack { below.min(start) } else { start }, end))
    };
    Ok(maps.split(|byte| *byte == b'\n').filter_map(read).collect())
}

fn read_maps(pid: u32) -> io::Result<Vec<u8>> {
    whole(format!("/proc/{pid}/maps"), BUFFER_BYTES)
}

/// A mapping of shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedMapping {
    pub start: u64,
    pub end: u64,
    /// Where in the object it begins.
    pub offset: u64,
    pub object: Id,
    pub kind: SharedKind,
    /// It may be read, written or executed.
    pub is_open: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedKind {
    /// MAP_SHARED | MAP_ANONYMOUS, or of /dev/zero.
    Anonymous,
    /// A file on a file system without a device, as tmpfs is.
    File,
    /// A segment of shmget.
    SystemV,
}

/// Mappings of a process that others may have mapped too.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct SharedMaps {
    pub mappings: Vec<SharedMapping>,
    /// System V segments, which are never managed.
    pub system_v: Vec<SharedMapping>,
    /// Files among the mappings, each once, and their names.
    pub names: Vec<(Id, Vec<u8>)>,
    /// Such files of which it has a private mapping.
    pub private: Vec<Id>,
    /// A device's memory is mapped too: the device may reach the process's memory without the CPU.
    pub has_device: bool,
}

pub fn shared_maps(pid: u32) -> io::Result<SharedMaps> {
    let maps = read_maps(pid)?;
    if maps.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the thread has ended"));
    }
    Ok(shared_maps_in(&maps))
}

/// The same by any thread of the process: once the first one has ended, its own file is empty.
pub fn shared_maps_of_any_thread(pid: u32) -> io::Result<SharedMaps> {
    let own = read_maps(pid)?;
    if !own.is_empty() {
        return Ok(shared_maps_in(&own));
    }
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
    let all = tasks.map(|task| whole(task.path().join("maps"), BUFFER_BYTES).unwrap_or_default());
    let ended = || io::Error::new(io::ErrorKind::NotFound, "all its threads have ended");
    Ok(shared_maps_in(&all.into_iter().find(|maps| !maps.is_empty()).ok_or_else(ended)?))
}

/// The same for the file's text.
pub fn shared_maps_in(maps: &[u8]) -> SharedMaps {
    let mut found = SharedMaps::default();
    for line in maps.split(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let mut mapping = || {
            let (start, end) = range_of(fields.next()?)?;
            let (perms, offset) = (fields.next()?, address(fields.next()?)?);
            let (dev, ino) = (fields.next()?, std::str::from_utf8(fields.next()?).ok()?.parse().ok()?);
            let colon = dev.iter().position(|byte| *byte == b':')?;
            let (major, minor) = (address(&dev[..colon])?, address(&dev[colon + 1..])?);
            let dev = libc::makedev(u32::try_from(major).ok()?, u32::try_from(minor).ok()?);
            let (object, is_open) = (Id { dev, ino }, !perms.starts_with(b"---"));
            let kind = SharedKind::Anonymous;
            Some((SharedMapping { start, end, offset, object, kind, is_open }, perms, major))
        };
        let Some((mapping, perms, major)) = mapping() else { continue };
        let is_shared = perms.ends_with(b"s");
        let name = (fields.next().unwrap_or(b""), fields.next());
        match name {
            (b"/dev/zero", Some(b"(deleted)")) if is_shared => found.mappings.push(mapping),
            (b"/dev/zero", _) => {}
            (name, None) if name.starts_with(b"/dev/") && !name.starts_with(b"/dev/shm/") => {
                found.has_device = true;
            }
            // They are on the same device as memfds, with numbers of their own.
            (name, _) if name.starts_with(b"/SYSV") => {
                let (object, kind) = (system_v_id(mapping.object.ino), SharedKind::SystemV);
                found.system_v.push(SharedMapping { object, kind, ..mapping });
            }
            // Our own are not counted.
            (name, _) if name.starts_with(b"/memfd:memspill-") => {}
            (name, _) if name.starts_with(b"/") && major == 0 && is_shared => {
                found.mappings.push(SharedMapping { kind: SharedKind::File, ..mapping });
                if found.names.iter().all(|(id, _)| *id != mapping.object) {
                    let from = line.iter().position(|byte| *byte == b'/').unwrap_or(line.len());
                    found.names.push((mapping.object, line[from..].to_vec()));
                }
            }
            (name, _)
                if name.starts_with(b"/") && major == 0 && found.private.last() != Some(&mapping.object) =>
            {
                found.private.push(mapping.object);
            }
            _ => {}
        }
    }
    found
}

/// A segment's number stands for it here: no file is on such a device.
fn system_v_id(number: u64) -> Id {
    Id { dev: u64::MAX, ino: number }
}

/// A System V segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    pub object: Id,
    /// The process, as it is called here; 0 if it is not known here.
    pub made_by: u32,
    /// When it was made, or its rights were changed.
    pub changed_s: i64,
    pub resident_bytes: u64,
}

/// All segments of our own namespace.
pub fn system_v() -> Vec<Segment> {
    system_v_in(&text("/proc/sysvipc/shm").unwrap_or_default())
}

/// The same for the file's text.
pub fn system_v_in(table: &str) -> Vec<Segment> {
    let mut lines = table.lines();
    let names: Vec<&str> = lines.next().unwrap_or("").split_ascii_whitespace().collect();
    let read = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let field = |name| Some(*fields.get(names.iter().position(|other| *other == name)?)?);
        Some(Segment {
            object: system_v_id(field("shmid")?.parse().ok()?),
            made_by: field("cpid")?.parse().ok()?,
            changed_s: field("ctime")?.parse().ok()?,
            resident_bytes: field("rss")?.parse().ok()?,
        })
    };
    lines.filter_map(read).collect()
}

/// A process's part of the shared memory that it has mapped: each page divided by the number of those
/// who have it mapped. Walks all page tables.
pub fn shared_parts(pid: u32) -> io::Result<Vec<(Id, u64)>> {
    Ok(shared_parts_in(&smaps(pid)?))
}

/// The same for the file's text.
pub fn shared_parts_in(smaps: &str) -> Vec<(Id, u64)> {
    let (mut parts, mut of) = (Vec::new(), None);
    for line in smaps.lines() {
        let first = line.split_ascii_whitespace().next().unwrap_or("");
        if !first.ends_with(':') {
            let maps = shared_maps_in(line.as_bytes());
            of = maps.mappings.iter().chain(&maps.system_v).next().map(|mapping| mapping.object);
        } else if let (Some(object), Some(kib)) = (of, line.strip_prefix("Pss:")) {
            let kib = kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
            parts.push((object, kib.saturating_mul(1024)));
        }
    }
    parts
}

/// The files that a process has open: a thread that has them, their numbers there, and their names. (The
/// evictor has a table of its own.)
pub fn open_files(pid: u32, mut found: impl FnMut(u32, u32, &[u8])) -> io::Result<()> {
    if open_files_of(pid, &mut found)? > 0 {
        return Ok(());
    }
    // Its first thread has ended.
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
    for tid in tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()) {
        if open_files_of(tid, &mut found).unwrap_or(0) > 0 {
            break;
        }
    }
    Ok(())
}

/// The same for one thread's table. Returns how many there are.
fn open_files_of(tid: u32, found: &mut impl FnMut(u32, u32, &[u8])) -> io::Result<u32> {
    let mut count = 0;
    for entry in fs::read_dir(format!("/proc/{tid}/fd"))?.flatten() {
        let Some(fd) = entry.file_name().to_str().and_then(|fd| fd.parse().ok()) else { continue };
        let Ok(name) = fs::read_link(entry.path()) else { continue };
        found(tid, fd, name.as_os_str().as_bytes());
        count += 1;
    }
    Ok(count)
}

pub fn path_of(name: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(name))
}

/// The mount points of tmpfs, and of what else is mounted below them.
pub struct Mounts {
    /// The last one of those that hold counts.
    mounts: Vec<(Vec<u8>, bool)>,
}

impl Mounts {
    /// As a process sees them.
    pub fn of(pid: u32) -> io::Result<Mounts> {
        Ok(Mounts::in_text(&whole(format!("/proc/{pid}/mountinfo"), BUFFER_BYTES)?))
    }

    /// The same for the file's text.
    pub fn in_text(mountinfo: &[u8]) -> Mounts {
        let read = |line: &[u8]| {
            let mut fields = line.split(|byte| *byte == b' ');
            let point = unescaped(fields.nth(4)?);
            let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
            Some((point, kind == b"tmpfs"))
        };
        let mut mounts: Vec<_> = mountinfo.split(|byte| *byte == b'\n').filter_map(read).collect();
        // The last mount at a point hides the others.
        mounts.sort_by_key(|(point, _)| point.len());
        Mounts { mounts }
    }

    /// Is a file with this name on tmpfs?
    pub fn is_on_tmpfs(&self, name: &[u8]) -> bool {
        let is_below = |point: &[u8]| {
            let rest = name.strip_prefix(point);
            rest.is_some_and(|rest| point == b"/" || rest.is_empty() || rest.starts_with(b"/"))
        };
        let mount = self.mounts.iter().rev().find(|(point, _)| is_below(point));
        mount.is_some_and(|(_, is_tmpfs)| *is_tmpfs)
    }
}

/// `\040` is a space in the table of mounts.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    bytes
}

/// Bytes that a process has locked (mlock), and that it has pinned for devices (registered buffers).
pub fn locked_and_pinned(pid: u32) -> Option<(u64, u64)> {
    locked_and_pinned_in(&text(format!("/proc/{pid}/status")).ok()?)
}

/// The same for the file's text.
pub fn locked_and_pinned_in(status: &str) -> Option<(u64, u64)> {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
    let bytes =
        |text: &str| text.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()?.checked_mul(1024);
    Some((bytes(field("VmLck:")?)?, bytes(field("VmPin:")?)?))
}

/// Ranges that are locked. Walks all page tables.
pub fn locked(pid: u32) -> io::Result<Vec<(u64, u64)>> {
    Ok(with_flags(&smaps(pid)?, |has| has("lo")))
}

/// Has the process a file open for which reads and writes go past the page cache, and so by way of pinned
/// pages? A ring of io_uring counts as one: files that it opens are in no table of the process.
pub fn has_direct_io(pid: u32) -> io::Result<bool> {
    let mut any = false;
    let found = has_direct_io_in(&format!("/proc/{pid}"), &mut any)?;
    if any {
        return Ok(found);
    }
    // Its first thread has ended. (The evictor, which is one of the others, has a table of its own.)
    for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        if has_direct_io_in(&task.path().to_string_lossy(), &mut any).unwrap_or(false) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The same for one thread's table; `any`: it has files at all.
fn has_direct_io_in(folder: &str, any: &mut bool) -> io::Result<bool> {
    for entry in fs::read_dir(format!("{folder}/fdinfo"))? {
        // One that is closed meanwhile is no trouble. (The flag of a pipe means packets.)
        let entry = entry?;
        *any = true;
        let fdinfo = text(entry.path()).unwrap_or_default();
        let flags = fdinfo.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0);
        let target = || fs::read_link(format!("{folder}/fd/{}", entry.file_name().to_string_lossy()));
        let is_direct = flags & libc::O_DIRECT != 0 && !target().is_ok_and(|name| name.starts_with("pipe:"));
        if is_direct || fdinfo.lines().any(|line| line.starts_with("SqMask:")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Which of these files a process has open, with any of its threads' tables. None: it may not be looked at.
pub fn open_among(pid: u32, files: &[Id]) -> Option<Vec<Id>> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let folder = task.path();
        // Most threads share one table.
        let is_other = || folder.file_name().is_some_and(|name| name.to_str() != Some(&pid.to_string()));
        if is_other() && has_same_files(pid, &folder) {
            continue;
        }
        let entries = match fs::read_dir(folder.join("fdinfo")) {
            Ok(entries) => entries,
            // It has ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(_) => return None,
        };
        for entry in entries.flatten() {
            let fdinfo = text(entry.path()).unwrap_or_default();
            let ino = fdinfo.lines().find_map(|line| line.strip_prefix("ino:")?.trim().parse::<u64>().ok());
            // Before Linux 5.14 it is not told, and each is asked.
            if ino.is_some_and(|ino| files.iter().all(|id| id.ino != ino)) {
                continue;
            }
            let Ok(file) = fs::metadata(folder.join("fd").join(entry.file_name())) else { continue };
            let id = Id { dev: file.dev(), ino: file.ino() };
            if files.contains(&id) && !found.contains(&id) {
                found.push(id);
            }
        }
    }
    Some(found)
}

/// Does a thread use its process's table of files? Where that cannot be told: no.
fn has_same_files(pid: u32, task: &Path) -> bool {
    let of_task = task.file_name().and_then(|name| name.to_str()?.parse().ok());
    of_task.is_some_and(|tid| memspill_uffd::vm::has_same_files(pid, tid))
}

/// All processes that there are.
pub fn all_processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Is it the kernel's own mount of tmpfs, on which memfds are?
pub fn is_internal(dev: u64) -> bool {
    let memfd = rustix::fs::memfd_create("memspill-probe", rustix::fs::MemfdFlags::CLOEXEC);
    memfd.and_then(rustix::fs::fstat).is_ok_and(|stat| stat.st_dev == dev)
}

/// May files of this file system (by its device) have large folios, as process `pid` sees its mounts? In
/// doubt they may.
pub fn may_be_huge(pid: u32, dev: u64) -> bool {
    may_be_huge_in(&text(format!("/proc/{pid}/mountinfo")).unwrap_or_default(), dev)
}

/// The same for the file's text.
fn may_be_huge_in(mountinfo: &str, dev: u64) -> bool {
    let wanted = format!("{}:{}", libc::major(dev), libc::minor(dev));
    let mount = mountinfo.lines().find(|line| line.split(' ').nth(2) == Some(&wanted));
    mount.is_none_or(|line| {
        let options = line.rsplit(' ').next().unwrap_or("");
        options.split(',').any(|option| option.starts_with("huge=") && option != "huge=never")
    })
}

fn is_anonymous(name: &[u8]) -> bool {
    name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon:")
}

/// The first address of the main stack that its process was started with: above it are its arguments and its
/// environment.
pub fn stack_start(pid: u32) -> Option<u64> {
    Stat::of(pid)?.number(28).filter(|start| *start > 0)
}

/// `start-end` in hexadecimal, the first one below the other.
pub fn range_of(field: &[u8]) -> Option<(u64, u64)> {
    let dash = field.iter().position(|byte| *byte == b'-')?;
    let (start, end) = (address(&field[..dash])?, address(&field[dash + 1..])?);
    (start < end).then_some((start, end))
}

fn address(digits: &[u8]) -> Option<u64> {
    let add = |number: u64, byte: &u8| Some(number << 4 | u64::from(char::from(*byte).to_digit(16)?));
    if digits.is_empty() || digits.len() > 16 { None } else { digits.iter().try_fold(0, add) }
}

/// Has some of it an owner of its faults (a userfaultfd), or is it left out of forks? Then what was never
/// touched there is nobody else's to close. Where that cannot be read: it may have. Walks all page tables.
pub fn has_kept_untouched(pid: u32) -> bool {
    smaps(pid).map_or(true, |smaps| has_kept_untouched_in(&smaps))
}

fn has_kept_untouched_in(smaps: &str) -> bool {
    /// Agents close nothing that is smaller.
    const LEAST_BYTES: u64 = 64 << 10;
    let kept = with_flags(smaps, |has| ["um", "uw", "ui", "dc", "wf"].into_iter().any(has));
    kept.iter().any(|(start, end)| end - start >= LEAST_BYTES)
}

/// Ranges that are registered with a userfaultfd for missing pages and were not emptied by a fork
/// (MADV_WIPEONFORK): all that a fork's child has of what was swapped out. Walks all page tables.
pub fn inherited(pid: u32) -> io::Result<Vec<(u64, u64)>> {
    Ok(inherited_in(&smaps(pid)?))
}

/// The same for the file's text.
pub fn inherited_in(smaps: &str) -> Vec<(u64, u64)> {
    with_flags(smaps, |has| has("um") && !has("wf"))
}

/// Is each mapping that the process has of a shared object registered with a userfaultfd for missing pages?
/// None: it has none, or has ended. Walks all page tables.
pub fn has_registered(pid: u32, object: Id) -> Option<bool> {
    has_registered_in(&smaps(pid).ok()?, object)
}

/// The same for the file's text.
pub fn has_registered_in(smaps: &str, object: Id) -> Option<bool> {
    let registered = with_flags(smaps, |has| has("um"));
    let mappings = shared_maps_in(smaps.as_bytes()).mappings.into_iter();
    let mut answers = mappings.filter(|m| m.object == object).map(|m| registered.contains(&(m.start, m.end)));
    let first = answers.next()?;
    Some(first && answers.all(|is_registered| is_registered))
}

pub fn smaps(pid: u32) -> io::Result<String> {
    text(format!("/proc/{pid}/smaps"))
}

fn with_flags(smaps: &str, wanted: impl Fn(&dyn Fn(&str) -> bool) -> bool) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut range = None;
    for line in smaps.lines() {
        let first = line.split(' ').next().unwrap_or("");
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |name: &str| flags.split_ascii_whitespace().any(|flag| flag == name);
            found.extend(range.take().filter(|_| wanted(&has)));
        } else if first.contains('-') {
            range = range_of(first.as_bytes());
        }
    }
    found
}

/// Thread group and parent of a thread, and the thread's id in its own (innermost) pid namespace.
struct Ids {
    tgid: u32,
    parent: u32,
    innermost_tid: u32,
}

fn ids(tid: u32) -> Option<Ids> {
    let status = text(format!("/proc/{tid}/status")).ok()?;
    let field = |name| status.lines().find_map(|l| l.strip_prefix(name));
    let number = |name| field(name)?.trim().parse().ok();
    // Kernels without pid namespaces do not have the line.
    let innermost_tid =
        field("NSpid:").and_then(|ids| ids.split_ascii_whitespace().last()?.parse().ok()).unwrap_or(tid);
    Some(Ids { tgid: number("Tgid:")?, parent: number("PPid:")?, innermost_tid })
}

/// May process `caller` give another one advice on its memory, as the kernel has it in process_madvise? That
/// wants CAP_SYS_NICE, and what reading the other's /proc wants. Where it is not certain: no.
pub fn may_advise(caller: u32, other: u32) -> bool {
    let status = |pid: u32| text(format!("/proc/{pid}/status")).unwrap_or_default();
    let namespace = |pid: u32| fs::metadata(format!("/proc/{pid}/ns/user")).ok().map(|found| found.ino());
    // Capabilities are worth something in the namespace of who has them only.
    let is_ours = namespace(caller).is_some_and(|of_caller| namespace(std::process::id()) == Some(of_caller));
    // It belongs to root if the process is not to be looked into.
    let owner = fs::metadata(format!("/proc/{other}")).map(|found| found.uid());
    is_ours && owner.is_ok_and(|owner| may_advise_in(&status(caller), &status(other), owner))
}

/// The same for the texts of their status files, and the owner of the other's folder.
fn may_advise_in(caller: &str, other: &str, owner: u32) -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    const CAP_SYS_NICE: u32 = 23;
    fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
        text.lines().find_map(|line| line.strip_prefix(name))
    }
    /// Real, effective, saved, of the file system.
    fn ids(text: &str, name: &str) -> Option<[u32; 4]> {
        let ids: Vec<u32> = field(text, name)?.split_ascii_whitespace().flat_map(str::parse).collect();
        ids.try_into().ok()
    }
    let capabilities = field(caller, "CapEff:").and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    let has = |capability: u32| capabilities.is_some_and(|set| set >> capability & 1 == 1);
    let is_same = |name: &str| match (ids(caller, name), ids(other, name)) {
        (Some([.., own]), Some([real, effective, saved, _])) => [real, effective, saved] == [own; 3],
        _ => false,
    };
    let is_open = ids(other, "Uid:").is_some_and(|[_, effective, ..]| effective == owner);
    has(CAP_SYS_NICE) && (has(CAP_SYS_PTRACE) || (is_same("Uid:") && is_same("Gid:") && is_open))
}

/// How many seccomp filters a thread has.
pub fn seccomp_filters(tid: u32) -> Option<u32> {
    let status = text(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"))?.trim().parse().ok()
}

/// The rights of a process, as far as /proc tells: two with the same rights see and reach the same. (It does
/// not tell of Landlock, which asks for `NoNewPrivs` of whoever has no capabilities.)
#[derive(PartialEq, Eq, Debug)]
pub struct Rights {
    status: Vec<String>,
    namespaces: [PathBuf; 2],
    /// Device and inode of its root directory.
    root: (u64, u64),
}

pub fn rights(pid: u32) -> Option<Rights> {
    const FIELDS: [&str; 6] = ["Uid:", "Gid:", "Groups:", "CapEff:", "NoNewPrivs:", "Seccomp_filters:"];
    let status = text(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| status.lines().find(|line| line.starts_with(name)).map(str::to_owned);
    let namespace = |name: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
    let root = fs::metadata(format!("/proc/{pid}/root")).ok()?;
    Some(Rights {
        status: FIELDS.into_iter().map(field).collect::<Option<_>>()?,
        namespaces: [namespace("user")?, namespace("mnt")?],
        root: (root.dev(), root.ino()),
    })
}

/// How many threads a process has.
pub fn threads(pid: u32) -> Option<u64> {
    let directory = fs::metadata(format!("/proc/{pid}/task")).ok()?;
    // Two links, as every directory, and one for each thread.
    directory.nlink().checked_sub(2)
}

pub fn parent_of(pid: u32) -> Option<u32> {
    ids(pid).map(|ids| ids.parent)
}

/// Bytes by which an address space is known: put there through its userfaultfd, where nobody else could have
/// put them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    pub addr: u64,
    pub bytes: [u8; 16],
}

/// Does the memory of this process (or thread) hold the proof?
pub fn holds(pid: u32, proof: &Proof) -> bool {
    let mut found = [0; 16];
    // Unlike process_vm_readv, this raises no fault where a page is missing, for which we would wait for
    // ourselves.
    let read =
        fs::File::open(format!("/proc/{pid}/mem")).and_then(|mem| mem.read_exact_at(&mut found, proof.addr));
    read.is_ok() && found == proof.bytes
}

/// The process whose memory holds the proof. If several share that memory, it is the one that others were
/// cloned from.
///
/// `tid` is whom a fault there names, as that thread's own pid namespace does: most often a thread of the
/// process, but who reads another process's memory, a tracer say, faults there too. So it is no more than
/// where to look first.
pub fn process_holding(proof: &Proof, tid: u32) -> Option<u32> {
    let named = ids(tid).map(|ids| ids.tgid).filter(|pid| holds(*pid, proof));
    let mut pid =
        named.or_else(|| descendants(std::process::id()).into_iter().rev().find(|pid| holds(*pid, proof)))?;
    while let Some(parent) = parent_of(pid).filter(|parent| holds(*parent, proof)) {
        pid = parent;
    }
    Some(pid)
}

/// The fields of a stat file that follow the name, by the numbers that proc(5) gives them.
struct Stat(String);

/// A stat file is shorter: 52 numbers and a name of 64 bytes at most.
const STAT_BYTES_MAX: usize = 2048;

impl Stat {
    /// By three system calls: pagers look once in some faults.
    fn read(path: &str) -> Option<Stat> {
        let mut buf = [0; STAT_BYTES_MAX];
        let len = fs::File::open(path).ok()?.read(&mut buf).ok()?;
        Some(Stat(String::from_utf8_lossy(&buf[..len]).into_owned()))
    }

    fn of(pid: u32) -> Option<Stat> {
        Stat::read(&format!("/proc/{pid}/stat"))
    }

    fn field(&self, number: usize) -> Option<&str> {
        // The name, field 2, may hold spaces and parentheses: the others start after the last one.
        self.0.rsplit_once(')')?.1.split_ascii_whitespace().nth(number - 3)
    }

    fn number<T: std::str::FromStr>(&self, number: usize) -> Option<T> {
        self.field(number)?.parse().ok()
    }

    fn is_stopped(&self) -> bool {
        matches!(self.field(3), Some("T" | "t"))
    }

    /// A first thread that has ended is shown as a zombie while others live.
    fn has_ended(&self) -> bool {
        match self.field(3) {
            Some("Z") => self.number::<u32>(20).is_none_or(|threads| threads <= 1),
            Some("X") | None => true,
            Some(_) => false,
        }
    }
}

/// The CPU on which a thread runs, or ran last.
pub struct RunsOn {
    pub cpu: usize,
    /// It keeps that CPU for as long as it likes (SCHED_FIFO, SCHED_RR, SCHED_DEADLINE).
    pub is_realtime: bool,
}

/// None: the thread has ended.
pub fn runs_on(pid: u32, tid: u32) -> Option<RunsOn> {
    let stat = Stat::read(&format!("/proc/{pid}/task/{tid}/stat"))?;
    let policy: u32 = stat.number(41)?;
    Some(RunsOn { cpu: stat.number(39)?, is_realtime: matches!(policy, 1 | 2 | 6) })
}

/// Does a thread of the process run? Not counted is `but`. None: more threads would have to be looked at than
/// are `left`, which becomes less; or the process is gone.
pub fn one_runs(pid: u32, but: Option<u32>, left: &mut usize) -> Option<bool> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    for task in tasks.flatten() {
        let Some(tid) = task.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if Some(tid) == but {
            continue;
        }
        *left = left.checked_sub(1)?;
        let state = Stat::read(&format!("/proc/{pid}/task/{tid}/stat"))?;
        if state.field(3) == Some("R") {
            return Some(true);
        }
    }
    Some(false)
}

/// CPU time of a process with all its threads, in ticks of 10 ms.
pub fn cpu_ticks(pid: u32) -> Option<u64> {
    let stat = Stat::of(pid)?;
    let (user, system): (u64, u64) = (stat.number(14)?, stat.number(15)?);
    Some(user + system)
}

/// How the first thread has ended, as wait(2) would say it, where all others have ended too but one. (The
/// first one counts until its process has ended.)
pub fn status_of_all_but_one(pid: u32) -> Option<u32> {
    let stat = Stat::of(pid)?;
    let ended = stat.field(3) == Some("Z") && stat.field(20) == Some("2");
    ended.then(|| stat.number::<u32>(52).unwrap_or(0))
}

/// Faults of the process that needed no I/O, those included that a userfaultfd has served. None: it is gone.
pub fn minor_faults(pid: u32) -> Option<u64> {
    Stat::of(pid)?.number(10)
}

/// Stopped by a signal or a tracer?
pub fn is_stopped(pid: u32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.is_stopped())
}

/// Gone, or a zombie?
pub fn has_ended(pid: u32) -> bool {
    Stat::of(pid).is_none_or(|stat| stat.has_ended())
}

/// The number of the process or thread that was made last, in our pid namespace.
pub fn last_made() -> Option<u32> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().nth(4)?.parse().ok()
}

/// Every process that is below `root` in the tree of parents, `root` itself not included. One that is made
/// while we look may be missed, and with it all that is below it.
pub fn descendants(root: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let Some(stat) = Stat::of(pid) else { continue };
        let Some(parent) = stat.number::<u32>(4) else { continue };
        if !stat.has_ended() {
            parents.push((pid, parent));
        }
    }
    let mut tree = vec![root];
    let mut at = 0;
    while at < tree.len() {
        let parent = tree[at];
        tree.extend(parents.iter().filter(|(_, ppid)| *ppid == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    tree.split_off(1)
}

/// All processes that have the agent mapped, by the inodes of its file.
pub fn with_agent(inodes: &[u64]) -> Vec<u32> {
    let has = |pid: &u32| {
        let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        agent_in(&String::from_utf8_lossy(&maps)).is_some_and(|inode| inodes.contains(&inode))
    };
    all_processes().into_iter().filter(has).collect()
}

/// The inode of the agent's file, if /proc/PID/maps has it.
pub fn agent_in(maps: &str) -> Option<u64> {
    maps.lines().find_map(|line| {
        // `start-end perms offset dev inode path`
        let mut fields = line.splitn(6, ' ');
        let (inode, file) = (fields.nth(4)?.parse().ok()?, fields.next()?.trim());
        is_agent(file).then_some(inode)
    })
}

/// Processes whose environment at exec held this text. For the guardian, when the tree of parents is gone.
pub fn with_environment(text: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        if environment(pid).windows(text.len()).any(|w| w == text.as_bytes()) {
            found.push(pid);
        }
    }
    found
}

/// By any of its threads: once the first one has ended, the process's own file is empty.
fn environment(pid: u32) -> Vec<u8> {
    let own = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    if !own.is_empty() {
        return own;
    }
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let environments = tasks.map(|task| fs::read(task.path().join("environ")).unwrap_or_default());
    environments.into_iter().find(|environment| !environment.is_empty()).unwrap_or_default()
}

/// The evictor of a process.
pub fn evictor(pid: u32, own_tid: u32) -> Option<u32> {
    thread(pid, own_tid).filter(|tid| *tid != pid)
}

/// The thread of a process that the process itself, in its own pid namespace, calls `own_tid`.
pub fn thread(pid: u32, own_tid: u32) -> Option<u32> {
    let is_it = |tid: &u32| ids(*tid).is_some_and(|ids| ids.innermost_tid == own_tid);
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_known_by_its_file() {
        let maps = "1000-2000 r-xp 00000000 08:01 7   /a b\n\
                    2000-3000 r-xp 00000000 00:01 4711   /memfd:memspill-agent (deleted)\n";
        assert_eq!(agent_in(maps), Some(4711));
        assert_eq!(agent_in("1000-2000 rw-p 00000000 00:00 0 \n"), None);
    }

    #[test]
    fn a_file_is_read_whole_however_long_it_is() {
        let path = std::env::temp_dir().join(format!("memspill-whole-{}", std::process::id()));
        let written: Vec<u8> = (0..10_000_u32).map(|n| n as u8).collect();
        fs::write(&path, &written).unwrap();
        for likely_bytes in [1, 9_999, 10_000, 10_001] {
            assert!(whole(&path, likely_bytes).unwrap() == written, "{likely_bytes}");
        }
        fs::write(&path, []).unwrap();
        assert!(whole(&path, 1).unwrap().is_empty());
        fs::remove_file(&path).unwrap();
        assert!(whole(&path, 1).is_err());
    }

    #[test]
    fn own_memory_is_kept_apart() {
        let status =
            "VmRSS:\t   20548 kB\nRssAnon:\t   10500 kB\nRssFile:\t 9776 kB\nRssShmem:\t     272 kB\n";
        let expected = OwnMemory { anon_bytes: 10500 << 10, shmem_bytes: 272 << 10 };
        assert_eq!(own_memory_in(status), Some(expected));
        assert_eq!(own_memory_in("RssAnon:\t10500 kB\n"), None);
        assert!(own_memory().unwrap().anon_bytes > 100_000);
    }

    #[test]
    fn advice_for_others_is_for_those_who_may() {
        let status = |ids: &str, capabilities: u64| {
            format!("Name:\tx\nUid:\t{ids}\nGid:\t{ids}\nCapEff:\t{capabilities:016x}\n")
        };
        let (nice, both) = (1 << 23, 1 << 23 | 1 << 19);
        let (mine, theirs) = ("7 7 7 7", "8 8 8 8");
        let may = |caller: &str, capabilities, other: &str, owner| {
            may_advise_in(&status(caller, capabilities), &status(other, 0), owner)
        };
        assert!(may(mine, nice, mine, 7) && may(mine, both, theirs, 8) && may(mine, both, mine, 0));
        assert!(!may(mine, 0, mine, 7) && !may(mine, 1 << 19, mine, 7), "without CAP_SYS_NICE");
        assert!(!may(mine, nice, theirs, 8) && !may(mine, nice, "7 7 8 7", 7), "of another user");
        assert!(!may(mine, nice, mine, 0), "not to be looked into");
        assert!(!may_advise_in("", "", 0) && !may_advise_in(&status(mine, nice), "", 7));
        let me = std::process::id();
        assert!(!may_advise(me, u32::MAX), "nobody has that number");
    }

    #[test]
    fn rights_differ_where_something_was_given_up() {
        let me = std::process::id();
        let own = rights(me).expect("of ourselves");
        assert_eq!(rights(me).as_ref(), Some(&own));
        let rights_under = |words: &[&str]| {
            let mut child = std::process::Command::new(words[0])
                .args(&words[1..])
                .args(["sh", "-c", "echo; read end"])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .expect("a child");
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("it runs");
            let found = rights(child.id());
            drop(child.stdin.take());
            child.wait().expect("its end");
            found.expect("of a child")
        };
        assert_eq!(rights_under(&["env"]), own);
        if own.status.iter().any(|line| line == "NoNewPrivs:\t0") {
            assert_ne!(rights_under(&["setpriv", "--no-new-privs"]), own);
        }
        assert_eq!(rights(u32::MAX), None);
    }

    #[test]
    fn only_private_anonymous_memory_is_manageable() {
        let kind = |line: &str| Some(manageable_in(line.as_bytes()).first()?.kind);
        assert_eq!(kind("7f00-7f01 rw-p 00000000 00:00 0"), Some(MappingKind::Data));
        assert_eq!(kind("5600-5700 rw-p 00000000 00:00 0    [heap]"), Some(MappingKind::Heap));
        assert_eq!(kind("5600-5700 rwxp 00000000 00:00 0    [anon: a b]"), Some(MappingKind::Code));
        assert_eq!(kind("7f00-7f01 r--p 00000000 00:00 0"), Some(MappingKind::Protected));
        assert_eq!(kind("7f00-7f01 r-xp 00000000 00:00 0  [anon: x]"), Some(MappingKind::Protected));
        assert_eq!(kind("7f00000-7f10000 ---p 00000000 00:00 0"), Some(MappingKind::Closed));
        let no = [
            "7f00000-7f0f000 ---p 00000000 00:00 0",
            "7f00-7f01 --xp 00000000 00:00 0",
            "7f00-7f01 rw-s 00000000 00:01 1024 /memfd:x (deleted)",
            "7f00-7f01 rw-p 00000000 08:01 77  /lib/libc.so",
            "7f00-7f01 rwxp 00000000 08:01 77  /lib/libc.so",
            "7ffc-7ffd r-xp 00000000 00:00 0   [vdso]",
            "7ffd-7ffc rw-p 00000000 00:00 0",
            "garbage",
        ];
        assert!(no.iter().all(|line| kind(line).is_none()));
        let reserve = |above: &str, end: &str| {
            let maps = format!("7f00000-7f01000 {above}\n7f01000-{end} ---p 00000000 00:00 0");
            manageable_in(maps.as_bytes()).get(1).map(|mapping| mapping.kind)
        };
        let data = "rw-p 00000000 00:00 0";
        assert_eq!(reserve(data, "7f11000"), Some(MappingKind::Reserve));
        assert_eq!(reserve(data, "bf01000"), Some(MappingKind::Reserve));
        assert_eq!((reserve(data, "7f10000"), reserve(data, "bf02000")), (None, Some(MappingKind::Closed)));
        assert_eq!(reserve("r--p 00000000 00:00 0", "7f11000"), Some(MappingKind::Closed));
        let maps =
            b"7f00-7f01 rw-p 00000000 08:01 77  /lib/\xff.so\n7ffc-7fff rw-p 00000000 00:00 0   [stack]\n";
        let stack = Mapping { start: 0x7ffc, end: 0x7fff, below_end: 0x7f01, kind: MappingKind::Stack };
        assert_eq!(manageable_in(maps), [stack]);
    }

    #[test]
    fn shared_anonymous_memory_is_told_from_files() {
        let found = shared_maps_in(
            b"7f00-7f10 rw-s 00002000 00:01 1024                       /dev/zero (deleted)\n\
              7f10-7f20 rw-s 00000000 00:01 7       /memfd:a (deleted)\n\
              7f20-7f30 rw-s 00000000 00:05 8       /dev/zero\n\
              7f30-7f40 rw-s 00000000 00:17 9       /dev/shm/zero (deleted)\n\
              7f40-7f50 rw-s 00000000 00:01 6       /SYSV00000000 (deleted)\n\
              7f50-7f60 rw-p 00000000 00:01 5       /dev/zero (deleted)\ngarbage",
        );
        let id = |minor, ino| Id { dev: libc::makedev(0, minor), ino };
        let (start, end, offset, kind) = (0x7f00, 0x7f10, 0x2000, SharedKind::Anonymous);
        let zero = SharedMapping { start, end, offset, object: id(1, 1024), kind, is_open: true };
        let file = |start, minor, ino| SharedMapping {
            start,
            end: start + 0x10,
            offset: 0,
            object: id(minor, ino),
            kind: SharedKind::File,
            is_open: true,
        };
        assert_eq!(found.mappings, [zero, file(0x7f10, 1, 7), file(0x7f30, 0x17, 9)]);
        let segment = Id { dev: u64::MAX, ino: 6 };
        assert_eq!(
            found.system_v.iter().map(|m| (m.start, m.object)).collect::<Vec<_>>(),
            [(0x7f40, segment)]
        );
        let names = [&b"/memfd:a (deleted)"[..], b"/dev/shm/zero (deleted)"];
        assert!(found.names.iter().map(|(_, name)| &name[..]).eq(names));
        assert!(found.private.is_empty() && !found.has_device);
        let found = shared_maps_in(
            b"7f00-7f10 ---s 00000000 00:01 7  /memfd:a (deleted)\n\
              7f10-7f20 rw-p 00000000 00:01 7  /memfd:a (deleted)\n\
              7f20-7f30 rw-s 00000000 00:01 8  /memfd:memspill-control (deleted)\n\
              7f30-7f40 rw-s 00000000 08:01 9  /a/file",
        );
        assert_eq!(found.mappings, [SharedMapping { is_open: false, ..file(0x7f00, 1, 7) }]);
        assert_eq!(found.private, [id(1, 7)]);
        assert!(shared_maps_in(b"7f00-7f10 rw-s 00000000 00:06 11 /dev/nvidia0").has_device);
    }

    #[test]
    fn segments_and_their_sizes_are_read() {
        let table = "       key      shmid perms   size  cpid  lpid nattch  uid  gid cuid cgid atime \
                     dtime ctime   rss  swap\n         0          3  1600   8192    17    18      1    0    \
                     0    0    0   5     6     7  4096     0\ngarbage\n";
        let object = Id { dev: u64::MAX, ino: 3 };
        let segment = Segment { object, made_by: 17, changed_s: 7, resident_bytes: 4096 };
        assert_eq!(system_v_in(table), [segment]);
        assert!(system_v_in("").is_empty());
    }

    #[test]
    fn each_mapper_has_its_part() {
        let smaps = "7f00-7f01 rw-s 00000000 00:01 77   /dev/zero (deleted)\nSize: 9 kB\nPss: 4 kB\n\
                     Pss_Dirty: 3 kB\nVmFlags: rd wr sh \n\
                     7f01-7f02 rw-p 00000000 00:00 0\nPss: 16 kB\n\
                     7f03-7f04 rw-s 00001000 00:01 78   /SYSV00000000 (deleted)\nPss: 2 kB\n";
        let zero = Id { dev: libc::makedev(0, 1), ino: 77 };
        let segment = Id { dev: u64::MAX, ino: 78 };
        assert_eq!(shared_parts_in(smaps), [(zero, 4096), (segment, 2048)]);
    }

    #[test]
    fn files_on_tmpfs_are_known_by_their_names() {
        let mounts = Mounts::in_text(
            b"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:5 / /dev rw shared:1 - devtmpfs udev rw\n\
              3 2 0:9 / /dev/shm rw shared:2 master:3 - tmpfs tmpfs rw\n4 1 0:8 / /run rw - tmpfs tmpfs rw\n\
              5 4 0:7 / /run/doc rw - fuse.x x rw\n6 1 0:6 / /a\\040b rw - tmpfs tmpfs rw\n\
              7 1 0:6 / /both rw - tmpfs t rw\n8 1 0:4 / /both rw - nfs n rw\ngarbage\n",
        );
        let names: [(&[u8], bool); 9] = [
            (b"/dev/shm/x (deleted)", true),
            (b"/dev/shm", true),
            (b"/dev/shmx", false),
            (b"/dev/null", false),
            (b"/run/x", true),
            (b"/run/doc/x", false),
            (b"/a b/x", true),
            (b"/both/x", false),
            (b"pipe:[1]", false),
        ];
        for (name, wanted) in names {
            assert_eq!(mounts.is_on_tmpfs(name), wanted, "{}", String::from_utf8_lossy(name));
        }
    }

    #[test]
    fn open_files_are_found() {
        let file = fs::File::open("/proc/self/exe").expect("our own program");
        let metadata = file.metadata().expect("of it");
        let id = Id { dev: metadata.dev(), ino: metadata.ino() };
        let other = Id { ino: u64::MAX, ..id };
        assert_eq!(open_among(std::process::id(), &[other, id]), Some(vec![id]));
        let (path, mut names) = (fs::read_link("/proc/self/exe").expect("its name"), Vec::new());
        open_files(std::process::id(), |_, _, name| names.push(path_of(name))).expect("our files");
        assert!(names.contains(&path));
        drop(file);
        assert!(open_among(u32::MAX, &[id]).is_none());
    }

    #[test]
    fn huge_file_systems_are_known() {
        let mounts = "30 20 0:27 / /dev/shm rw,nosuid shared:5 - tmpfs tmpfs rw,size=9k,inode64\n\
                      31 20 0:28 / /mnt rw - tmpfs none rw,huge=within_size";
        let huge = |minor| may_be_huge_in(mounts, libc::makedev(0, minor));
        assert_eq!((huge(27), huge(28), huge(29)), (false, true, true));
    }

    #[test]
    fn a_shared_object_is_registered_by_all_its_mappings() {
        let smaps = "7f00-7f01 rw-s 00000000 00:01 77   /dev/zero (deleted)\nVmFlags: rd wr sh um \n\
                     7f01-7f02 rw-s 00000000 00:01 78   /dev/zero (deleted)\nVmFlags: rd wr sh um \n\
                     7f03-7f04 rw-s 00001000 00:01 78   /dev/zero (deleted)\nVmFlags: rd wr sh \n";
        let id = |ino| Id { dev: libc::makedev(0, 1), ino };
        let answers = [77, 78, 79].map(|ino| has_registered_in(smaps, id(ino)));
        assert_eq!(answers, [Some(true), Some(false), None]);
    }

    #[test]
    fn locked_and_pinned_memory_is_counted() {
        let status = "VmPeak:\t  10 kB\nVmLck:\t       4 kB\nVmPin:\t      8 kB\n";
        assert_eq!(locked_and_pinned_in(status), Some((4096, 8192)));
        assert_eq!(locked_and_pinned_in("VmLck: x kB"), None);
        assert!(locked_and_pinned(std::process::id()).is_some());
        let has_direct_io = || has_direct_io(std::process::id()).expect("our own files");
        assert!(!has_direct_io());
        let (mut options, name) = (fs::OpenOptions::new(), std::env::current_exe().expect("a file"));
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_DIRECT);
        // Not every file system has it.
        if let Ok(_direct) = options.read(true).open(name) {
            assert!(has_direct_io());
        }
    }

    #[test]
    fn our_own_stack_is_known() {
        let me = std::process::id();
        let mappings = manageable(me).expect("our own maps");
        let stack = mappings.iter().find(|mapping| mapping.kind == MappingKind::Stack).expect("a stack");
        let start = stack_start(me).expect("its start");
        assert!((stack.start..stack.end).contains(&start), "{start:x} is not in {stack:x?}");
        assert!(mappings.is_sorted_by(|a, b| a.end <= b.start));
    }

    #[test]
    fn what_a_child_inherits_is_found() {
        let smaps = "7f00-7f01 rw-p 00000000 00:00 0 \nSize:   4 kB\nVmFlags: rd wr mr mw me ac wf um \n\
                     7f01-7f02 rw-p 00000000 00:00 0    [heap]\nVmFlags: rd wr mr mw me ac um \n\
                     8f00-8f10 rw-p 00000000 00:00 0 \nVmFlags: rd wr mr mw me sd \n";
        assert_eq!(inherited_in(smaps), [(0x7f01, 0x7f02)]);
    }

    #[test]
    fn what_has_an_owner_of_its_faults_is_not_closed_unless_it_is_small() {
        let of = |range: &str, flags: &str| {
            has_kept_untouched_in(&format!("{range} rw-p 00000000 00:00 0 \nVmFlags: rd wr {flags} \n"))
        };
        assert!(!of("7f000000-7f100000", "mr mw me ac sd"));
        for flags in ["um", "uw", "ui", "ac dc", "wf sd"] {
            assert!(of("7f000000-7f010000", flags) && !of("7f000000-7f00f000", flags), "{flags}");
        }
        assert!(has_kept_untouched(u32::MAX));
    }

    #[test]
    fn a_process_is_known_by_what_its_memory_holds() {
        let me = std::process::id();
        let bytes = *b"only here, by me";
        let proof = Proof { addr: bytes.as_ptr() as u64, bytes };
        assert_eq!(process_holding(&proof, me), Some(me));
        assert!(!holds(me, &Proof { bytes: *b"nobody has this.", ..proof }));
        assert!(!holds(me, &Proof { addr: 4096, ..proof }), "nothing is mapped there");
        let mut child = std::process::Command::new("sleep").arg("20").spawn().expect("sleep");
        // Started by vfork, and so with our memory until it has called exec.
        let begun = std::time::Instant::now();
        while holds(child.id(), &proof) {
            assert!(begun.elapsed().as_secs() < 20, "it does not call exec");
        }
        assert_eq!(process_holding(&proof, child.id()), None, "whom a fault names is not believed");
        let _ = child.kill();
        let _ = child.wait();
    }

    #[test]
    fn threads_are_counted() {
        let before = threads(std::process::id()).expect("our own");
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let more: Vec<_> = [wait].into_iter().map(|wait| std::thread::spawn(move || wait.recv())).collect();
        assert!(threads(std::process::id()).expect("our own") > 0 && before > 0);
        assert_eq!(threads(1 << 30), None);
        drop(go);
        more.into_iter().for_each(|thread| assert!(thread.join().expect("joined").is_err()));
        let mut child = std::process::Command::new("sleep").arg("20").spawn().expect("sleep");
        assert_eq!(threads(child.id()), Some(1));
        let _ = child.kill();
        let _ = child.wait();
    }

    #[test]
    fn our_own_size_is_known() {
        let me = std::process::id();
        let statm = statm(me).expect("statm of ourselves");
        assert!(statm.anon_bytes > 0 && statm.size_bytes > statm.anon_bytes);
        assert!(runs_on(me, me).is_some());
        let before = cpu_ticks(me).expect("stat of ourselves");
        let begun = std::time::Instant::now();
        while cpu_ticks(me) < Some(before + 3) {
            assert!(begun.elapsed().as_secs() < 20, "no CPU time is counted");
        }
    }
    #[test]
    fn a_name_that_is_not_utf8_hides_nothing() {
        let named = std::thread::spawn(|| {
            fs::write("/proc/thread-self/comm", b"\xe9) \xff").expect("comm");
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            (
                ids(tid).map(|ids| (ids.tgid, ids.innermost_tid == tid)),
                Stat::of(tid).map(|stat| stat.has_ended()),
            )
        });
        assert_eq!(named.join().expect("joined"), (Some((std::process::id(), true)), Some(false)));
    }
}
