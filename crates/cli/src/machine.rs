//! How much memory this machine has for us: what `50%` is a share of.
//!
//! That is MemTotal, or less where a memory cgroup of the caller or one above it sets a hard limit: in a
//! container of 2 GiB on a host of 256 GiB, half of the memory is 1 GiB.
//!
//! Both hierarchies are known: version 2 (`memory.max`, root at /sys/fs/cgroup or /sys/fs/cgroup/unified) and
//! version 1 (`memory.limit_in_bytes`, root at /sys/fs/cgroup/memory). Other mount points are not searched
//! for.

use std::fs;
use std::path::{Path, PathBuf};

/// Where a limit came from, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CgroupLimit {
    pub bytes: u64,
    pub file: PathBuf,
}

/// What this process may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    pub ram_bytes: u64,
    pub swap_bytes: u64,
    /// What programs can have now without swapping, by the kernel's estimate.
    pub available_bytes: u64,
    /// The lowest hard limit above this process, where it is lower than the RAM.
    pub cgroup: Option<CgroupLimit>,
}

impl Memory {
    /// Reads /proc and the cgroup tree. None of it needs a privilege; what cannot be read counts as absent,
    /// and a machine whose RAM cannot be read has u64::MAX of it, so that no percentage becomes zero.
    pub fn of_this_machine() -> Memory {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let ram_bytes = meminfo_bytes(&meminfo, "MemTotal").unwrap_or(u64::MAX);
        let cgroup = limit_files(&membership, Path::new("/sys/fs/cgroup"))
            .into_iter()
            .filter_map(|file| Some(CgroupLimit { bytes: read_limit(&file)?, file }))
            .min_by_key(|limit| limit.bytes)
            // An unlimited group of version 1 reads as 2^63 less a page: never lower than the RAM.
            .filter(|limit| limit.bytes < ram_bytes);
        let swap_bytes = meminfo_bytes(&meminfo, "SwapTotal").unwrap_or(0);
        let available_bytes = meminfo_bytes(&meminfo, "MemAvailable").unwrap_or(ram_bytes);
        Memory { ram_bytes, swap_bytes, available_bytes, cgroup }
    }

    /// What is free of that.
    pub fn free_bytes(&self) -> u64 {
        self.usable_bytes().min(self.available_bytes)
    }

    /// What 100% means here.
    pub fn usable_bytes(&self) -> u64 {
        self.cgroup.as_ref().map_or(self.ram_bytes, |limit| limit.bytes)
    }
}

/// What stands beside figures that were measured here: processor, memory, kernel, and how busy it was.
pub fn described() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map(|(_, name)| name);
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let memory = crate::size::human(Memory::of_this_machine().usable_bytes());
    let load = read("/proc/loadavg");
    format!(
        "{cpus} CPUs ({}), {memory}, Linux {}, load {} at the start",
        model.unwrap_or("unknown"),
        read("/proc/sys/kernel/osrelease").trim(),
        load.split(' ').next().unwrap_or("unknown"),
    )
}

/// The field `name` of /proc/meminfo (`MemTotal:  123 kB`).
fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Every file that may hold a limit of ours: for each hierarchy, the group itself and all above it.
fn limit_files(membership: &str, root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in membership.lines() {
        // ID:CONTROLLERS:PATH; version 2 has no controllers.
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if controllers.is_empty() {
            push_ancestry(&mut files, root, group, "memory.max");
            push_ancestry(&mut files, &root.join("unified"), group, "memory.max");
        } else if controllers.split(',').any(|name| name == "memory") {
            push_ancestry(&mut files, &root.join("memory"), group, "memory.limit_in_bytes");
        }
    }
    files
}

/// `group` and all above it, up to and with the root. In a cgroup namespace the path may name groups that are
/// not visible: those files do not exist, and the visible root still counts.
fn push_ancestry(files: &mut Vec<PathBuf>, root: &Path, group: &str, file: &str) {
    for ancestor in Path::new(group.trim_start_matches('/')).ancestors() {
        files.push(root.join(ancestor).join(file));
    }
}

fn read_limit(file: &Path) -> Option<u64> {
    // `max` is no number, and no limit.
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo() {
        let text = "MemTotal:       24576 kB\nMemTotalX: 1 kB\nSwapTotal:           0 kB\n";
        assert_eq!(meminfo_bytes(text, "MemTotal"), Some(24 << 20));
        assert_eq!(meminfo_bytes(text, "SwapTotal"), Some(0));
        assert_eq!(meminfo_bytes(text, "SwapFree"), None);
        assert_eq!(meminfo_bytes("MemTotal: x kB", "MemTotal"), None);
    }

    #[test]
    fn version_2_looks_up_to_the_root() {
        let files = limit_files("0::/user.slice/job\n", Path::new("/cg"));
        assert_eq!(files[0], Path::new("/cg/user.slice/job/memory.max"));
        assert_eq!(files[1], Path::new("/cg/user.slice/memory.max"));
        assert_eq!(files[2], Path::new("/cg/memory.max"));
    }

    #[test]
    fn version_1_and_odd_lines() {
        let files = limit_files("4:cpu,memory:/a:b\nnonsense\n3:cpuset:/x\n", Path::new("/cg"));
        assert_eq!(files[0], Path::new("/cg/memory/a:b/memory.limit_in_bytes"));
        assert_eq!(files.len(), 2);
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = Memory::of_this_machine();
        assert!(memory.ram_bytes > 64 << 20 && memory.ram_bytes < 1 << 60);
        assert!(memory.usable_bytes() <= memory.ram_bytes);
    }
}
