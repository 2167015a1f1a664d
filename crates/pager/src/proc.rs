//! What /proc tells of a process: size, maps, thread group. Only what the pager needs.

use memspill_engine::units::PAGE_SIZE;
use std::fs;

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
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut fields = text.split_ascii_whitespace().map(|f| f.parse::<u64>().unwrap_or(0) * PAGE_SIZE as u64);
    let (size, resident, shared) = (fields.next()?, fields.next()?, fields.next()?);
    let data = fields.nth(2)?;
    Some(Statm { size_bytes: size, anon_bytes: resident.saturating_sub(shared), data_bytes: data })
}

/// Anonymous memory of a process with shared pages divided among their sharers. Walks the whole address space.
pub fn pss_anon_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("Pss_Anon:"))?;
    Some(line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()? * 1024)
}

/// Ranges that can be managed: private, writable, anonymous, and neither the main stack nor the kernel's own.
pub fn manageable(pid: u32) -> std::io::Result<Vec<(u64, u64)>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    Ok(maps.lines().filter_map(manageable_line).collect())
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
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// Ranges that the child of a fork finds empty (MADV_WIPEONFORK) or has not (MADV_DONTFORK). Walks all page tables.
pub fn not_inherited(pid: u32) -> std::io::Result<Vec<(u64, u64)>> {
    Ok(not_inherited_in(&fs::read_to_string(format!("/proc/{pid}/smaps"))?))
}

fn not_inherited_in(smaps: &str) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut range = None;
    for line in smaps.lines() {
        let first = line.split(' ').next().unwrap_or("");
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let marked = flags.split_ascii_whitespace().any(|flag| flag == "wf" || flag == "dc");
            found.extend(range.take().filter(|_| marked));
        } else if let Some((start, end)) = first.split_once('-') {
            range = u64::from_str_radix(start, 16).ok().zip(u64::from_str_radix(end, 16).ok());
        }
    }
    found
}

pub fn tgid_of(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|l| l.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// The CPU on which a thread last ran.
pub fn last_cpu(pid: u32, tid: u32) -> Option<usize> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    // Field 39; the state, which follows the name, is field 3.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// Stopped by a signal or a tracer?
pub fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| matches!(rest.trim_start().chars().next(), Some('T' | 't')))
}

/// Every process that is below `root` in the tree of parents, `root` itself not included.
pub fn descendants(root: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // The name may hold spaces and parentheses: fields start after the last one.
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        let mut rest = rest.split_ascii_whitespace();
        let state = rest.next().unwrap_or("");
        let Some(ppid) = rest.next().and_then(|p| p.parse::<u32>().ok()) else { continue };
        if state != "Z" && state != "X" {
            parents.push((pid, ppid));
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

/// The evictor of a process: the thread named so whose id the process itself (in its own pid namespace) calls `own_tid`.
pub fn evictor(pid: u32, own_tid: u32) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|tid| {
        let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
        let field = |name| status.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
        // The innermost namespace is named last.
        let innermost = field("NSpid:").and_then(|ids| ids.split_ascii_whitespace().last()?.parse::<u32>().ok());
        *tid != pid && field("Name:") == Some("memspill") && innermost.unwrap_or(*tid) == own_tid
    })
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
    fn what_a_child_does_not_inherit_is_found() {
        let smaps = "7f00-7f01 rw-p 00000000 00:00 0 \nSize:   4 kB\nVmFlags: rd wr mr mw me ac wf \n\
                     7f01-7f02 rw-p 00000000 00:00 0    [heap]\nVmFlags: rd wr mr mw me ac \n\
                     8f00-8f10 rw-p 00000000 00:00 0 \nVmFlags: rd wr mr mw me dc sd \n";
        assert_eq!(not_inherited_in(smaps), [(0x7f00, 0x7f01), (0x8f00, 0x8f10)]);
    }

    #[test]
    fn our_own_size_is_known() {
        let me = std::process::id();
        let statm = statm(me).expect("statm of ourselves");
        assert!(statm.anon_bytes > 0 && statm.size_bytes > statm.anon_bytes);
        assert_eq!(tgid_of(me), Some(me));
        assert!(last_cpu(me, me).is_some());
    }
}
