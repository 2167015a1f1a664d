//! What /proc tells of a process: size, maps, thread group. Only what the pager needs.

use memspill_engine::units::PAGE_SIZE;
use std::fs;
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

/// Ranges that can be managed: private, writable, anonymous, and neither the main stack nor the kernel's own.
pub fn manageable(pid: u32) -> std::io::Result<Vec<(u64, u64)>> {
    Ok(manageable_in(&fs::read_to_string(format!("/proc/{pid}/maps"))?))
}

/// The same for the file's text.
pub fn manageable_in(maps: &str) -> Vec<(u64, u64)> {
    maps.lines().filter_map(manageable_line).collect()
}

/// `start-end perms offset dev inode [name]`
fn manageable_line(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let (perms, inode) = (fields.next()?, fields.nth(2)?);
    let name = fields.next().unwrap_or("");
    let named_anonymous = name.is_empty() || name == "[heap]" || name.starts_with("[anon:");
    if perms != "rw-p" || inode != "0" || !named_anonymous {
        return None;
    }
    range_of(start, end)
}

/// Two addresses in hexadecimal, the first one below the other.
fn range_of(start: &str, end: &str) -> Option<(u64, u64)> {
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    (start < end).then_some((start, end))
}

/// Ranges that are registered with a userfaultfd for missing pages and were not emptied by a fork (MADV_WIPEONFORK): all
/// that a fork's child has of what was swapped out. Walks all page tables.
pub fn inherited(pid: u32) -> std::io::Result<Vec<(u64, u64)>> {
    Ok(inherited_in(&fs::read_to_string(format!("/proc/{pid}/smaps"))?))
}

/// The same for the file's text.
pub fn inherited_in(smaps: &str) -> Vec<(u64, u64)> {
    with_flags(smaps, |has| has("um") && !has("wf"))
}

/// Ranges that are registered with a userfaultfd for missing pages now. Walks all page tables.
pub fn registered(pid: u32) -> std::io::Result<Vec<(u64, u64)>> {
    Ok(with_flags(&fs::read_to_string(format!("/proc/{pid}/smaps"))?, |has| has("um")))
}

fn with_flags(smaps: &str, wanted: impl Fn(&dyn Fn(&str) -> bool) -> bool) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut range = None;
    for line in smaps.lines() {
        let first = line.split(' ').next().unwrap_or("");
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |name: &str| flags.split_ascii_whitespace().any(|flag| flag == name);
            found.extend(range.take().filter(|_| wanted(&has)));
        } else if let Some((start, end)) = first.split_once('-') {
            range = range_of(start, end);
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

/// The process that traces this thread.
pub fn tracer(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let thread = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()?;
    ids(thread).map(|ids| ids.tgid)
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

    fn has_ended(&self) -> bool {
        matches!(self.field(3), Some("Z" | "X") | None)
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
        let Ok(environ) = fs::read(format!("/proc/{pid}/environ")) else { continue };
        if environ.windows(text.len()).any(|w| w == text.as_bytes()) {
            found.push(pid);
        }
    }
    found
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
        let yes = ["7f00-7f01 rw-p 00000000 00:00 0", "5600-5700 rw-p 00000000 00:00 0    [heap]"];
        let no = [
            "7f00-7f01 r--p 00000000 00:00 0",
            "7f00-7f01 rw-s 00000000 00:01 1024 /memfd:x (deleted)",
            "7f00-7f01 rw-p 00000000 08:01 77  /lib/libc.so",
            "7ffc-7ffd rw-p 00000000 00:00 0   [stack]",
            "7ffc-7ffd r-xp 00000000 00:00 0   [vdso]",
            "garbage",
        ];
        assert!(yes.iter().all(|l| manageable_line(l).is_some()));
        assert!(no.iter().all(|l| manageable_line(l).is_none()));
        assert_eq!(manageable_line(yes[0]), Some((0x7f00, 0x7f01)));
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
