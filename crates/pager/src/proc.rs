//! What /proc tells of a process: size, maps, thread group. Only what the pager needs.

use memspill_engine::units::PAGE_SIZE;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};

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
    statm_in(&fs::read_to_string(format!("/proc/{pid}/statm")).ok()?)
}

/// The same for the file's text.
pub fn statm_in(text: &str) -> Option<Statm> {
    let bytes = |pages: &str| pages.parse::<u64>().unwrap_or(0).saturating_mul(PAGE_SIZE as u64);
    let mut fields = text.split_ascii_whitespace().map(bytes);
    let (size, resident, shared) = (fields.next()?, fields.next()?, fields.next()?);
    let data = fields.nth(2)?;
    Some(Statm { size_bytes: size, anon_bytes: resident.saturating_sub(shared), data_bytes: data })
}

/// Anonymous memory of a process with shared pages divided among their sharers. Walks the whole address space.
pub fn pss_anon_bytes(pid: u32) -> Option<u64> {
    pss_anon_bytes_in(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?)
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
    pub kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Data,
    /// Writable and executable.
    Code,
    /// The main stack, which grows downwards, at most to `floor`: there the mapping below it ends.
    Stack { floor: u64 },
}

/// Mappings that can be managed, in ascending order: private, writable, anonymous, and not the kernel's own.
pub fn manageable(pid: u32) -> std::io::Result<Vec<Mapping>> {
    // Not as a whole: of 65,000 mappings it is 4 MiB, which would count against the budget.
    const BUFFER_BYTES: usize = 64 << 10;
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
    /// The end of the mapping above.
    last_end: u64,
}

impl Lines {
    /// `start-end perms offset dev inode [name]`: the mapping, if it can be managed.
    fn read(&mut self, line: &[u8]) -> Option<Mapping> {
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let (start, end) = range_of(fields.next()?)?;
        let floor = std::mem::replace(&mut self.last_end, end);
        let (perms, inode) = (fields.next()?, fields.nth(2)?);
        let name = fields.next().unwrap_or(b"");
        let kind = match (perms, name) {
            _ if inode != b"0" => return None,
            (b"rw-p" | b"rwxp", b"[stack]") if floor <= start => Kind::Stack { floor },
            (b"rw-p", _) if is_anonymous(name) => Kind::Data,
            (b"rwxp", _) if is_anonymous(name) => Kind::Code,
            _ => return None,
        };
        Some(Mapping { start, end, kind })
    }
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

/// Ranges that are registered with a userfaultfd for missing pages and were not emptied by a fork (MADV_WIPEONFORK): all
/// that a fork's child has of what was swapped out. Walks all page tables.
pub fn inherited(pid: u32) -> std::io::Result<Vec<(u64, u64)>> {
    Ok(inherited_in(&smaps(pid)?))
}

/// The same for the file's text.
pub fn inherited_in(smaps: &str) -> Vec<(u64, u64)> {
    with_flags(smaps, |has| has("um") && !has("wf"))
}

/// Ranges that are registered with a userfaultfd for missing pages now. Walks all page tables.
pub fn registered(pid: u32) -> std::io::Result<Vec<(u64, u64)>> {
    Ok(with_flags(&smaps(pid)?, |has| has("um")))
}

/// /proc/PID/smaps. The names of files in it need not be UTF-8.
pub fn smaps(pid: u32) -> std::io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/smaps"))?).into_owned())
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
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let field = |name| status.lines().find_map(|l| l.strip_prefix(name));
    let number = |name| field(name)?.trim().parse().ok();
    // Kernels without pid namespaces do not have the line.
    let innermost_tid = field("NSpid:").and_then(|ids| ids.split_ascii_whitespace().last()?.parse().ok()).unwrap_or(tid);
    Some(Ids { tgid: number("Tgid:")?, parent: number("PPid:")?, innermost_tid })
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

/// Bytes by which an address space is known: put there through its userfaultfd, where nobody else could have put them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    pub addr: u64,
    pub bytes: [u8; 16],
}

/// Does the memory of this process (or thread) hold the proof?
pub fn holds(pid: u32, proof: &Proof) -> bool {
    let mut found = [0; 16];
    // Unlike process_vm_readv, this raises no fault where a page is missing, for which we would wait for ourselves.
    let read = fs::File::open(format!("/proc/{pid}/mem")).and_then(|mem| mem.read_exact_at(&mut found, proof.addr));
    read.is_ok() && found == proof.bytes
}

/// The process whose memory holds the proof. Where several share that memory, it is the one that others were cloned from.
///
/// `tid` is whom a fault there names, as that thread's own pid namespace does: most often a thread of the process, but
/// who reads another process's memory, a tracer say, faults there too. So it is no more than where to look first.
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

impl Stat {
    fn read(path: &str) -> Option<Stat> {
        Some(Stat(fs::read_to_string(path).ok()?))
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

/// The CPU on which a thread last ran.
pub fn last_cpu(pid: u32, tid: u32) -> Option<usize> {
    Stat::read(&format!("/proc/{pid}/task/{tid}/stat"))?.number(39)
}

/// CPU time of a process with all its threads, in ticks of 10 ms.
pub fn cpu_ticks(pid: u32) -> Option<u64> {
    let stat = Stat::of(pid)?;
    let (user, system): (u64, u64) = (stat.number(14)?, stat.number(15)?);
    Some(user + system)
}

/// The exit code of the first thread, where that has ended and so have all others but one. (The first one counts until its
/// process has ended.)
pub fn exit_code_of_all_but_one(pid: u32) -> Option<u32> {
    let stat = Stat::of(pid)?;
    let ended = stat.field(3) == Some("Z") && stat.field(20) == Some("2");
    ended.then(|| stat.number::<u32>(52).unwrap_or(0) >> 8 & 0xff)
}

/// Stopped by a signal or a tracer?
pub fn is_stopped(pid: u32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.is_stopped())
}

/// Gone, or a zombie?
pub fn has_ended(pid: u32) -> bool {
    Stat::of(pid).is_none_or(|stat| stat.has_ended())
}

/// Every process that is below `root` in the tree of parents, `root` itself not included.
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

/// The evictor of a process: the thread whose id the process itself, in its own pid namespace, calls `own_tid`.
pub fn evictor(pid: u32, own_tid: u32) -> Option<u32> {
    let is_it = |tid: &u32| *tid != pid && ids(*tid).is_some_and(|ids| ids.innermost_tid == own_tid);
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_writable_anonymous_memory_is_manageable() {
        let kind = |line: &str| Some(manageable_in(line.as_bytes()).first()?.kind);
        assert_eq!(kind("7f00-7f01 rw-p 00000000 00:00 0"), Some(Kind::Data));
        assert_eq!(kind("5600-5700 rw-p 00000000 00:00 0    [heap]"), Some(Kind::Data));
        assert_eq!(kind("5600-5700 rwxp 00000000 00:00 0    [anon: a b]"), Some(Kind::Code));
        let no = [
            "7f00-7f01 r--p 00000000 00:00 0",
            "7f00-7f01 rw-s 00000000 00:01 1024 /memfd:x (deleted)",
            "7f00-7f01 rw-p 00000000 08:01 77  /lib/libc.so",
            "7f00-7f01 rwxp 00000000 08:01 77  /lib/libc.so",
            "7ffc-7ffd r-xp 00000000 00:00 0   [vdso]",
            "7ffd-7ffc rw-p 00000000 00:00 0",
            "garbage",
        ];
        assert!(no.iter().all(|line| kind(line).is_none()));
        let maps = b"7f00-7f01 rw-p 00000000 08:01 77  /lib/\xff.so\n7ffc-7fff rw-p 00000000 00:00 0   [stack]\n";
        let stack = Mapping { start: 0x7ffc, end: 0x7fff, kind: Kind::Stack { floor: 0x7f01 } };
        assert_eq!(manageable_in(maps), [stack]);
    }

    #[test]
    fn our_own_stack_is_known() {
        let me = std::process::id();
        let mappings = manageable(me).expect("our own maps");
        let stack = mappings.iter().find(|mapping| matches!(mapping.kind, Kind::Stack { .. })).expect("a stack");
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
        assert!(last_cpu(me, me).is_some());
        let before = cpu_ticks(me).expect("stat of ourselves");
        let begun = std::time::Instant::now();
        while cpu_ticks(me) < Some(before + 3) {
            assert!(begun.elapsed().as_secs() < 20, "no CPU time is counted");
        }
    }
}
