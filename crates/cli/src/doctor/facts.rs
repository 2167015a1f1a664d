//! What is found out about this machine: tried and read, and not judged.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use memspill_pager::idle_cpus;
use memspill_uffd::{fanotify, shmem};

use crate::machine::{Memory, is_in_ram};
use crate::probe::{self, feature};

pub(super) const CAP_IPC_LOCK: u32 = 14;
pub(super) const CAP_SYS_PTRACE: u32 = 19;

/// An errno, or success.
pub(super) type Tried = Result<(), i32>;

/// The facts about a machine; nothing in them is judged.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) user_id: u32,
    /// The same user outside a user namespace, where this process is in one.
    pub(super) outer_user_id: Option<u32>,
    pub(super) x86_64: bool,
    pub(super) kernel_release: String,
    pub(super) container: bool,
    pub(super) seccomp: bool,
    /// In force, and the most that this process and its children can ever have.
    pub(super) capabilities: u64,
    pub(super) capabilities_bound: u64,
    /// A command that is started has CAP_SYS_PTRACE if this process has it.
    pub(super) ptrace_is_passed_on: bool,
    pub(super) setfacl: bool,
    /// Opening /dev/userfaultfd, and making a userfaultfd with it.
    pub(super) uffd_device: Tried,
    /// userfaultfd(2) as the program that is run can call it.
    pub(super) uffd_full: Tried,
    pub(super) uffd_user_mode: Tried,
    /// Trapping system calls (Syscall User Dispatch), by the program that is run.
    pub(super) dispatch: Tried,
    /// Since Linux 7.3.
    pub(super) dispatch_sysctl: Option<u64>,
    pub(super) own_memory: Tried,
    /// None where no userfaultfd of any kind could be had.
    pub(super) uffd_features: Option<u64>,
    pub(super) event_fork: Tried,
    pub(super) pagemap_scan: Tried,
    pub(super) guard_regions: Tried,
    pub(super) io_uring: Tried,
    pub(super) io_uring_disabled: Option<u64>,
    /// None: no limit.
    pub(super) memlock_bytes: Option<u64>,
    /// A key of swap files can be locked in memory; the CPU does AES.
    pub(super) keys_are_locked: bool,
    pub(super) cpu_does_aes: bool,
    pub(super) child_memory: Tried,
    pub(super) child_pagemap: Tried,
    pub(super) ptrace_scope: Option<u64>,
    /// Opening an object of shared memory by /proc/PID/map_files.
    pub(super) shared_memory: Tried,
    pub(super) shared_may_be_huge: bool,
    /// Holding who opens a file of shared memory.
    pub(super) file_watch: Tried,
    pub(super) huge_pages: Option<String>,
    pub(super) max_map_count: Option<u64>,
    /// Keeping idle CPUs awake; None where nothing can.
    pub(super) idle_cpus: Option<Tried>,
    pub(super) memory: Memory,
    pub(super) swap_dir: Option<SwapDir>,
}

/// A directory that is to hold swap files.
#[derive(Clone, Debug)]
pub(super) struct SwapDir {
    pub(super) path: PathBuf,
    /// A file without a name.
    pub(super) nameless: Tried,
    /// The same past the page cache.
    pub(super) direct: Tried,
    pub(super) free_bytes: u64,
    pub(super) in_ram: bool,
}

impl Facts {
    pub(super) fn gather(swap_dir: Option<&Path>) -> Facts {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let (features, event_fork) = uffd_features();
        let child = probe::child_access();
        let (child_memory, child_pagemap) = match child {
            Ok(access) => (tried(access.memory), tried(access.pagemap)),
            Err(error) => (Err(errno(&error)), Err(errno(&error))),
        };
        Facts {
            user_id: rustix::process::geteuid().as_raw(),
            outer_user_id: outer_user_id(
                &fs::read_to_string("/proc/self/uid_map").unwrap_or_default(),
                rustix::process::geteuid().as_raw(),
            ),
            x86_64: cfg!(target_arch = "x86_64"),
            kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
            container: ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists()),
            seccomp: status_field(&status, "Seccomp").is_some_and(|mode| mode != "0"),
            capabilities: capability_set(&status, "CapEff"),
            capabilities_bound: capability_set(&status, "CapBnd"),
            ptrace_is_passed_on: ptrace_is_passed_on(&status),
            setfacl: ["/usr/bin/setfacl", "/bin/setfacl"].iter().any(|tool| Path::new(tool).exists()),
            uffd_device: tried(open_uffd_device().map(drop)),
            uffd_full: full_userfaultfd(&status),
            uffd_user_mode: tried(probe::userfaultfd(true).map(drop)),
            dispatch: tried(probe::dispatch()),
            dispatch_sysctl: number_in("/proc/sys/kernel/syscall_user_dispatch"),
            own_memory: tried(probe::own_memory()),
            uffd_features: features,
            event_fork,
            pagemap_scan: tried(probe::pagemap_scan()),
            guard_regions: tried(probe::guard_install()),
            io_uring: tried(probe::io_uring()),
            io_uring_disabled: number_in("/proc/sys/kernel/io_uring_disabled"),
            memlock_bytes: rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
            keys_are_locked: memspill_backing::keys_are_locked(),
            cpu_does_aes: memspill_backing::cpu_does_aes(),
            child_memory,
            child_pagemap,
            ptrace_scope: number_in("/proc/sys/kernel/yama/ptrace_scope"),
            shared_memory: tried(shmem::probe()),
            shared_may_be_huge: shmem::may_be_huge(),
            file_watch: tried(fanotify::Watch::new().map(drop)),
            huge_pages: fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
                .ok()
                .map(chosen_word),
            max_map_count: number_in("/proc/sys/vm/max_map_count"),
            idle_cpus: idle_cpus::probe().map(tried),
            memory: Memory::of_this_machine(),
            swap_dir: swap_dir.map(SwapDir::gather),
        }
    }

    pub(super) fn is_root(&self) -> bool {
        self.user_id == 0
    }

    pub(super) fn has_capability(&self, number: u32) -> bool {
        self.capabilities >> number & 1 == 1
    }

    /// `command` as this user types it.
    pub(super) fn as_root(&self, command: &str) -> String {
        match self.outer_user_id {
            Some(_) => format!("outside this user namespace: sudo {command}"),
            None if self.is_root() => command.to_owned(),
            None => format!("sudo {command}"),
        }
    }

    /// What lets this user open a device of root's, which failed so.
    pub(super) fn device_fix(&self, device: &str, errno: i32) -> Option<String> {
        let user = self.device_user_id();
        let command = match errno {
            libc::EACCES if self.setfacl => format!("setfacl -m u:{user}:rw {device}"),
            // Without ACL tools: it is root's alone by default, so that nobody loses it.
            libc::EACCES => format!("chown {user} {device}"),
            libc::ENOENT | libc::EPERM if self.container => {
                return Some(format!("start the container with --device={device}"));
            }
            _ => return None,
        };
        // A comment for the shell: what is pasted still runs.
        Some(self.as_root(&format!("{command}  # until the next boot; a udev rule keeps it")))
    }

    /// The user as the owner of a device node is counted.
    fn device_user_id(&self) -> u32 {
        self.outer_user_id.unwrap_or(self.user_id)
    }

    /// CAP_SYS_PTRACE by a capability of memspill's file, which the command does not get.
    pub(super) fn has_capability_alone(&self) -> bool {
        self.has_capability(CAP_SYS_PTRACE) && !self.ptrace_is_passed_on
    }

    pub(super) fn may_ever_have(&self, capability: u32) -> bool {
        self.capabilities_bound >> capability & 1 == 1
    }

    pub(super) fn kernel_version(&self) -> Option<(u32, u32)> {
        let mut numbers = self.kernel_release.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

impl SwapDir {
    fn gather(path: &Path) -> SwapDir {
        let open = |more: OFlags| {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | more;
            rustix::fs::open(path, flags, Mode::empty()).map(drop).map_err(|error| error.raw_os_error())
        };
        SwapDir {
            path: path.to_owned(),
            nameless: open(OFlags::empty()),
            direct: open(OFlags::DIRECT),
            free_bytes: rustix::fs::statvfs(path).map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize)),
            in_ram: is_in_ram(path),
        }
    }
}

pub(super) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn tried<T>(result: io::Result<T>) -> Tried {
    result.map(drop).map_err(|error| errno(&error))
}

/// The value of `name` in a /proc file of `Name:  value` lines.
fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn capability_set(status: &str, name: &str) -> u64 {
    status_field(status, name).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0)
}

fn number_in(file: &str) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The word in brackets, as /sys marks the choice in force.
pub(super) fn chosen_word(text: String) -> String {
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.map_or_else(|| text.trim().to_owned(), |(word, _)| word.to_owned())
}

/// Who `user_id` is outside this user namespace, by uid_map's lines of INSIDE OUTSIDE COUNT; None in the
/// first one, which maps every number to itself.
pub(super) fn outer_user_id(uid_map: &str, user_id: u32) -> Option<u32> {
    for line in uid_map.lines() {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let is_first_namespace = (inside, outside, count) == (0, 0, u32::MAX);
        if is_first_namespace {
            return None;
        }
        if let Some(offset) = user_id.checked_sub(inside).filter(|&offset| offset < count) {
            return outside.checked_add(offset);
        }
    }
    None
}

/// userfaultfd(2) is called by the program, not by memspill: what memspill may do by a file capability of its
/// own is lost on the way there.
fn full_userfaultfd(status: &str) -> Tried {
    let for_all = number_in("/proc/sys/vm/unprivileged_userfaultfd") == Some(1);
    if for_all || ptrace_is_passed_on(status) { tried(probe::userfaultfd(false)) } else { Err(libc::EPERM) }
}

fn ptrace_is_passed_on(status: &str) -> bool {
    rustix::process::getuid().is_root() || capability_set(status, "CapAmb") >> CAP_SYS_PTRACE & 1 == 1
}

fn open_uffd_device() -> io::Result<std::os::fd::OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/userfaultfd")?;
    probe::userfaultfd_from(&device)
}

/// The features of this kernel, and whether this process may ask for EVENT_FORK. Each descriptor can be asked
/// once, and any kind of descriptor gives the same answer.
fn uffd_features() -> (Option<u64>, Tried) {
    let any =
        || open_uffd_device().or_else(|_| probe::userfaultfd(false)).or_else(|_| probe::userfaultfd(true));
    let features = any().and_then(|uffd| probe::uffd_features(uffd, 0)).ok();
    let event_fork = any().and_then(|uffd| probe::uffd_features(uffd, feature::EVENT_FORK));
    (features, tried(event_fork))
}
