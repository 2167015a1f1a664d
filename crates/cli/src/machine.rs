//! How much memory this machine has for us: what `50%` is a share of.
//!
//! That is MemTotal, or less where a memory cgroup of the caller or one above it sets a hard limit: in a
//! container of 2 GiB on a host of 256 GiB, half of the memory is 1 GiB.
//!
//! Both hierarchies are known: version 2 (`memory.max`, root at /sys/fs/cgroup or /sys/fs/cgroup/unified) and
//! version 1 (`memory.limit_in_bytes`, root at /sys/fs/cgroup/memory). Other mount points are not searched
//! for. A group's usage stands beside its limit; page cache on its lists can go, and is not counted.

use std::fs;
use std::path::{Path, PathBuf};

/// Where a limit came from, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CgroupLimit {
    pub bytes: u64,
    pub file: PathBuf,
}

/// A program fills memory for some ms before that is counted: the tests leave so much in a hard limit too.
const RESERVE_BYTES: u64 = 48 << 20;
/// On a large machine more is left to others.
const RESERVE_PARTS: u64 = 32;

impl CgroupLimit {
    /// The memory of the group that cannot just go.
    fn used_bytes(&self) -> u64 {
        let read = |name| fs::read_to_string(self.file.with_file_name(name)).ok();
        let used = read("memory.current").or_else(|| read("memory.usage_in_bytes"));
        let used = used.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
        used.saturating_sub(cache_bytes(&read("memory.stat").unwrap_or_default()))
    }
}

/// Page cache of a group and of all below it, from memory.stat: version 1 has `total_` before the names.
fn cache_bytes(stat: &str) -> u64 {
    let of = |wanted: &str| {
        let values = stat.lines().filter_map(|line| line.split_once(' '));
        let (_, value) = values.into_iter().find(|(name, _)| *name == wanted)?;
        value.trim().parse::<u64>().ok()
    };
    let either = |name: &str| of(&format!("total_{name}")).or_else(|| of(name)).unwrap_or(0);
    either("inactive_file") + either("active_file")
}

/// `some avg10=1.23 ...` of a pressure file.
fn some_avg10(pressure: &str) -> Option<f64> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

/// Is that directory in RAM itself?
pub fn is_in_ram(path: &Path) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    rustix::fs::statfs(path).is_ok_and(|fs| [TMPFS_MAGIC, RAMFS_MAGIC].contains(&fs.f_type))
}

/// What this process may use.
#[derive(Clone, PartialEq, Debug)]
pub struct Memory {
    pub ram_bytes: u64,
    pub swap_bytes: u64,
    /// What programs can have now without swapping, by the kernel's estimate.
    pub available_bytes: u64,
    /// PSI of the last 10 s: the share of time in which somebody in the container, or on the machine, waited
    /// for memory of the kernel's.
    pub pressure_percent: f64,
    /// The lowest hard limit above this process, where it is lower than the RAM.
    pub cgroup: Option<CgroupLimit>,
}

impl Memory {
    /// See [`Memory::from`].
    pub fn of_this_machine() -> Memory {
        Memory::from(Path::new("/"), "self")
    }

    /// The same as a process sees it, which may be in another container.
    pub fn of_process(pid: u32) -> Memory {
        Memory::from(Path::new("/"), &pid.to_string())
    }

    /// Reads proc and sys/fs/cgroup below `root`, for the process of this name in proc. None of it needs a
    /// privilege; what cannot be read counts as absent, and a machine whose RAM cannot be read has u64::MAX
    /// of it, so that no percentage becomes zero.
    pub fn from(root: &Path, process: &str) -> Memory {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let (meminfo, membership) = (read("proc/meminfo"), read(&format!("proc/{process}/cgroup")));
        let ram_bytes = meminfo_bytes(&meminfo, "MemTotal").unwrap_or(u64::MAX);
        let cgroup = limit_files(&membership, &root.join("sys/fs/cgroup"))
            .into_iter()
            .filter_map(|file| Some(CgroupLimit { bytes: read_limit(&file)?, file }))
            .min_by_key(|limit| limit.bytes)
            // An unlimited group of version 1 reads as 2^63 less a page: never lower than the RAM.
            .filter(|limit| limit.bytes < ram_bytes);
        let swap_bytes = meminfo_bytes(&meminfo, "SwapTotal").unwrap_or(0);
        let available_bytes = meminfo_bytes(&meminfo, "MemAvailable").unwrap_or(ram_bytes);
        let pressure = match &cgroup {
            // A group of version 1 has no pressure file, and that of others is none of ours.
            Some(limit) => fs::read_to_string(limit.file.with_file_name("memory.pressure")).ok(),
            None => Some(read("proc/pressure/memory")),
        };
        let pressure_percent = pressure.and_then(|text| some_avg10(&text)).unwrap_or(0.0);
        Memory { ram_bytes, swap_bytes, available_bytes, cgroup, pressure_percent }
    }

    /// Is it in the same container?
    pub fn is_where(&self, other: &Memory) -> bool {
        self.cgroup.as_ref().map(|limit| &limit.file) == other.cgroup.as_ref().map(|limit| &limit.file)
    }

    /// What is free of that.
    pub fn free_bytes(&self) -> u64 {
        let of_group = self.cgroup.as_ref().map(|limit| limit.bytes.saturating_sub(limit.used_bytes()));
        of_group.unwrap_or(self.ram_bytes).min(self.available_bytes)
    }

    /// The room for a run that uses this much already: what is free beside it, less what it may be late in
    /// counting, and what the kernel takes for it.
    pub fn room_bytes(&self, used_bytes: u64) -> u64 {
        let all_bytes = self.usable_bytes();
        let reserve_bytes = RESERVE_BYTES.max(all_bytes / RESERVE_PARTS).min(all_bytes / 4);
        self.free_bytes().saturating_add(used_bytes).min(all_bytes).saturating_sub(reserve_bytes)
    }

    /// What 100% means here.
    pub fn usable_bytes(&self) -> u64 {
        self.cgroup.as_ref().map_or(self.ram_bytes, |limit| limit.bytes)
    }
}

/// The machine that figures were measured on: processor, memory, kernel, and how busy it was.
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

    /// A machine in a directory: its files, and what they hold.
    fn machine(name: &str, files: &[(&str, &str)]) -> (Memory, PathBuf) {
        let root = std::env::temp_dir().join(format!("memspill-machine-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        (Memory::from(&root, "self"), root)
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n");
    const MIB: u64 = 1 << 20;

    #[test]
    fn a_container_of_version_2() {
        let (memory, root) = machine(
            "v2",
            &[
                MEMINFO,
                ("proc/self/cgroup", "0::/job\n"),
                ("proc/pressure/memory", "some avg10=90.00 avg60=0.00 avg300=0.00 total=1\n"),
                ("sys/fs/cgroup/job/memory.max", "1073741824\n"),
                ("sys/fs/cgroup/job/memory.current", "419430400\n"),
                ("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 104857600\nactive_file 52428800\n"),
                ("sys/fs/cgroup/job/memory.pressure", "some avg10=12.50 avg60=0.00\nfull avg10=1.00\n"),
            ],
        );
        assert_eq!((memory.usable_bytes(), memory.free_bytes()), (1024 * MIB, 774 * MIB));
        assert_eq!(memory.pressure_percent, 12.5);
        // 50 MiB of what is used is the run's; 200 are others'.
        assert_eq!(memory.room_bytes(50 * MIB), 776 * MIB);
        assert_eq!(memory.room_bytes(4096 * MIB), 976 * MIB, "no more than the limit, less the reserve");
        fs::write(root.join("sys/fs/cgroup/job/memory.max"), "max\n").unwrap();
        let memory = Memory::from(&root, "self");
        assert_eq!((memory.usable_bytes(), memory.free_bytes()), (8192 * MIB, 6144 * MIB));
        assert_eq!((memory.pressure_percent, memory.room_bytes(0)), (90.0, 5888 * MIB));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_container_of_version_1() {
        let (memory, root) = machine(
            "v1",
            &[
                MEMINFO,
                ("proc/self/cgroup", "4:memory:/a/b\n0::/\n"),
                ("proc/pressure/memory", "some avg10=90.00 avg60=0.00 avg300=0.00 total=1\n"),
                ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "134217728\n"),
                ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "67108864\n"),
                ("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 33554432\n"),
                ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
            ],
        );
        assert_eq!((memory.usable_bytes(), memory.free_bytes()), (128 * MIB, 96 * MIB));
        assert_eq!(memory.pressure_percent, 0.0, "that of the machine is not the container's");
        assert_eq!(memory.room_bytes(0), 64 * MIB);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn directories_in_ram() {
        assert!(is_in_ram(Path::new("/dev/shm")) || !Path::new("/dev/shm").exists());
        assert!(!is_in_ram(Path::new("/proc")) && !is_in_ram(Path::new("/no/such/dir")));
    }
}
