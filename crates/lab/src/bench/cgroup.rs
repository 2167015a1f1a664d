//! A memory cgroup for each run: a hard limit or none, the peak, and whether the kernel killed for memory in
//! it.
//!
//! v1 where the memory controller is mounted at /sys/fs/cgroup/memory, else v2 at /sys/fs/cgroup. In v2 the
//! controller has to be switched on for the root's children: where it was off, it is switched off again at
//! the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use memspill_cli::signals::Stop;

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";

struct Files {
    limit: &'static str,
    peak: &'static str,
    events: &'static str,
}

const FILES_V1: Files =
    Files { limit: "memory.limit_in_bytes", peak: "memory.max_usage_in_bytes", events: "memory.oom_control" };
const FILES_V2: Files = Files { limit: "memory.max", peak: "memory.peak", events: "memory.events" };

/// Where groups can be made.
pub struct Cgroups {
    root: PathBuf,
    files: &'static Files,
    pub version: u8,
    switched_on: bool,
}

impl Cgroups {
    pub fn find() -> Result<Cgroups, Stop> {
        Cgroups::among(Path::new(V1), Path::new(V2))
    }

    fn among(v1: &Path, v2: &Path) -> Result<Cgroups, Stop> {
        if v1.join(FILES_V1.limit).exists() {
            return Ok(Cgroups { root: v1.into(), files: &FILES_V1, version: 1, switched_on: false });
        }
        let control = v2.join("cgroup.subtree_control");
        let Ok(controllers) = fs::read_to_string(v2.join("cgroup.controllers")) else {
            return Stop::refuse(
                "no memory cgroup is mounted at /sys/fs/cgroup/memory (v1) or /sys/fs/cgroup (v2): mount one \
                 (mount -t cgroup2 none /sys/fs/cgroup)",
            );
        };
        let has = |text: &str| text.split_whitespace().any(|word| word == "memory");
        if !has(&controllers) {
            return Stop::refuse("the kernel's memory controller is off: boot with cgroup_enable=memory");
        }
        let on = fs::read_to_string(&control).is_ok_and(|text| has(&text));
        if !on && let Err(error) = fs::write(&control, "+memory") {
            return Stop::refuse(format!("{}: {error}: run it outside of the container", control.display()));
        }
        Ok(Cgroups { root: v2.into(), files: &FILES_V2, version: 2, switched_on: !on })
    }

    /// A new group; none of that name may be there.
    pub fn group(&self, limit_bytes: Option<u64>) -> Result<Group, Stop> {
        let path = self.root.join(format!("memspill-bench-{}", std::process::id()));
        fs::create_dir(&path).or_else(|error| Stop::refuse(format!("{}: {error}", path.display())))?;
        let group = Group { path, files: self.files };
        if let Some(bytes) = limit_bytes {
            let file = group.path.join(self.files.limit);
            fs::write(&file, bytes.to_string())
                .or_else(|error| Stop::refuse(format!("{}: {error}", file.display())))?;
        }
        Ok(group)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        // Another one may have come to need it meanwhile: then the kernel refuses, rightly.
        if self.switched_on {
            let _ = fs::write(self.root.join("cgroup.subtree_control"), "-memory");
        }
    }
}

pub struct Group {
    path: PathBuf,
    files: &'static Files,
}

impl Group {
    /// A process that writes its id there is in the group.
    pub fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    pub fn peak_bytes(&self) -> Option<u64> {
        fs::read_to_string(self.path.join(self.files.peak)).ok()?.trim().parse().ok()
    }

    pub fn oom_kills(&self) -> u64 {
        oom_kills_in(&fs::read_to_string(self.path.join(self.files.events)).unwrap_or_default())
    }

    /// Kills what is left in it: only ever what was started there.
    pub fn kill(&self) {
        for _ in 0..50 {
            let pids = fs::read_to_string(self.procs()).unwrap_or_default();
            let pids: Vec<_> = pids
                .split_whitespace()
                .filter_map(|p| rustix::process::Pid::from_raw(p.parse().ok()?))
                .collect();
            if pids.is_empty() {
                return;
            }
            for pid in pids {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            sleep(Duration::from_millis(20));
        }
    }
}

fn oom_kills_in(events: &str) -> u64 {
    events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        for _ in 0..50 {
            match fs::remove_dir(&self.path) {
                Ok(()) => return,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
                Err(_) => sleep(Duration::from_millis(100)), // processes are on their way out
            }
        }
        eprintln!("memspill: could not remove {0}: rmdir {0}", self.path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_switched_on_is_switched_off() {
        let folder = std::env::temp_dir().join(format!("memspill-cgroup-{}", std::process::id()));
        let (v1, v2) = (folder.join("v1"), folder.join("v2"));
        fs::create_dir_all(&v1).unwrap();
        fs::create_dir_all(&v2).unwrap();
        let refused = |reason: &str| match Cgroups::among(&v1, &v2) {
            Err(Stop::Refused(told)) => assert!(told.contains(reason), "{told}"),
            _ => panic!("not refused"),
        };
        refused("no memory cgroup is mounted");
        fs::write(v2.join("cgroup.controllers"), "cpu io\n").unwrap();
        refused("cgroup_enable=memory");
        fs::write(v2.join("cgroup.controllers"), "cpu memory\n").unwrap();
        let control = v2.join("cgroup.subtree_control");
        for (before, during, after) in
            [("cpu", "+memory", "-memory"), ("cpu memory", "cpu memory", "cpu memory")]
        {
            fs::write(&control, before).unwrap();
            let cgroups = Cgroups::among(&v1, &v2).ok().unwrap();
            assert_eq!((cgroups.version, fs::read_to_string(&control).unwrap().as_str()), (2, during));
            drop(cgroups);
            assert_eq!(fs::read_to_string(&control).unwrap(), after);
        }
        fs::write(v1.join("memory.limit_in_bytes"), "").unwrap();
        assert_eq!(Cgroups::among(&v1, &v2).ok().unwrap().version, 1);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn kills_are_read_in_both_forms() {
        assert_eq!(oom_kills_in("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(oom_kills_in("low 0\nhigh 0\nmax 91\noom 2\noom_kill 1\noom_group_kill 0\n"), 1);
        assert_eq!(oom_kills_in(""), 0);
    }
}
