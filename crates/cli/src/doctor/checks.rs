//! The checks of everything but userfaultfd, and all checks in the order in which they are shown.

use memspill_pager::idle_cpus::FILE as CPU_LATENCY;

use super::check::{Check, fail, ok, reason, warn};
use super::facts::{CAP_IPC_LOCK, Facts, SwapDir};
use super::uffd::{uffd_device, uffd_feature_checks, uffd_syscall};
use crate::probe::feature;
use crate::size::human;

/// UFFDIO_MOVE.
const KERNEL_MIN: (u32, u32) = (6, 8);
/// Guard regions.
const KERNEL_GOOD: (u32, u32) = (6, 13);
/// The kernel's default for max_map_count.
const MAX_MAP_COUNT_MIN: u64 = 65_530;
/// The kernel's default for RLIMIT_MEMLOCK. Rings and their buffers fit well within it.
const MEMLOCK_BYTES_MIN: u64 = 8 << 20;
/// What `--disk-free` leaves by default: with less than this free, a swap file cannot grow.
const DISK_FREE_BYTES_MIN: u64 = 1 << 30;

pub(super) fn judge(facts: &Facts) -> Vec<Check> {
    let mut checks = vec![kernel(facts), uffd_device(facts), uffd_syscall(facts)];
    checks.extend(uffd_feature_checks(facts));
    checks.extend([
        pagemap_scan(facts),
        guard_regions(facts),
        dispatch(facts),
        own_memory(facts),
        child_pagemap(facts),
        child_memory(facts),
        shared_memory(facts),
        shared_files(facts),
        io_uring(facts),
        memlock(facts),
        encryption(facts),
        max_map_count(facts),
    ]);
    checks.extend(facts.swap_dir.as_ref().map(|dir| swap_dir(facts, dir)));
    checks.extend([huge_pages(facts), idle_cpus(facts), memory(facts), kernel_swap(facts)]);
    checks
}

fn kernel(facts: &Facts) -> Check {
    const NAME: &str = "kernel";
    let release = &facts.kernel_release;
    if !facts.x86_64 {
        return fail(NAME, format!("{release}, not x86-64: the agent is for x86-64 only"), None);
    }
    let has_move = facts.uffd_features.is_some_and(|features| features & feature::MOVE != 0);
    match facts.kernel_version() {
        // Distributions carry features to older kernels: what was seen counts, not the number.
        Some(version) if version < KERNEL_MIN && !has_move => fail(
            NAME,
            format!("{release}: UFFDIO_MOVE came with 6.8"),
            Some("install Linux 6.8 or later".into()),
        ),
        Some(version) if version < KERNEL_GOOD => {
            ok(NAME, format!("{release} (6.8 is enough; 6.13 brings guard regions)"))
        }
        Some(_) => ok(NAME, format!("{release} (6.8 or later)")),
        None => warn(NAME, format!("{release}: a version that cannot be read"), None),
    }
}

pub(super) const DISPATCH: &str = "system call traps";

fn dispatch(facts: &Facts) -> Check {
    match facts.dispatch {
        Ok(()) => ok(DISPATCH, "work (Syscall User Dispatch), for agent mode"),
        Err(_) if facts.dispatch_sysctl == Some(0) => warn(
            DISPATCH,
            "switched off (kernel.syscall_user_dispatch is 0): no agent mode",
            Some("as root: sysctl kernel.syscall_user_dispatch=1".into()),
        ),
        Err(libc::EINVAL) => warn(DISPATCH, "not in this kernel (5.11): no agent mode", None),
        Err(errno) => warn(DISPATCH, format!("{}: no agent mode", reason(errno)), None),
    }
}

pub(super) const OWN_MEMORY: &str = "own memory";

fn own_memory(facts: &Facts) -> Check {
    match facts.own_memory {
        Ok(()) => ok(OWN_MEMORY, "/proc/self/mem writes where there is no access, for agent mode"),
        Err(errno) => warn(
            OWN_MEMORY,
            format!(
                "/proc/self/mem does not write where there is no access: {}: no agent mode",
                reason(errno)
            ),
            None,
        ),
    }
}

fn pagemap_scan(facts: &Facts) -> Check {
    const NAME: &str = "PAGEMAP_SCAN";
    match facts.pagemap_scan {
        Ok(()) => ok(NAME, "works: pages in RAM are found and counted"),
        Err(libc::ENOTTY | libc::EINVAL) => {
            fail(NAME, "not in this kernel: it came with 6.7", Some("install Linux 6.8 or later".into()))
        }
        Err(errno) => fail(NAME, format!("{}{}", reason(errno), closed_to_itself(facts)), None),
    }
}

/// A process that has capabilities by its file may not even read its own files in /proc.
fn closed_to_itself(facts: &Facts) -> &'static str {
    if facts.has_capability_alone() { " (by memspill's own capability, see uffd EVENT_FORK)" } else { "" }
}

pub(super) const GUARDS: &str = "guard regions";

fn guard_regions(facts: &Facts) -> Check {
    const NAME: &str = GUARDS;
    match facts.guard_regions {
        Ok(()) => ok(NAME, "work: moved pages are dropped without an event each"),
        Err(_) => {
            warn(NAME, "not in this kernel (6.13): each batch of evicted pages costs an event more", None)
        }
    }
}

pub(super) const CHILD_PAGEMAP: &str = "child's pagemap";

fn child_pagemap(facts: &Facts) -> Check {
    const NAME: &str = CHILD_PAGEMAP;
    match facts.child_pagemap {
        Ok(()) => ok(NAME, "can be read"),
        Err(errno) => {
            let found = format!("{}: growth of the program would not be seen", reason(errno));
            // No child could be made to look at.
            let fix = memspill_pager::limits::remedy(&std::io::Error::from_raw_os_error(errno));
            fail(NAME, found + closed_to_itself(facts), fix)
        }
    }
}

pub(super) const CHILD_MEMORY: &str = "child's memory";

fn child_memory(facts: &Facts) -> Check {
    const NAME: &str = CHILD_MEMORY;
    let errno = match facts.child_memory {
        Ok(()) => return ok(NAME, "can be read (process_vm_readv)"),
        Err(errno) => errno,
    };
    match facts.ptrace_scope {
        Some(scope @ 2) => {
            let found = format!("kernel.yama.ptrace_scope is {scope}: process_vm_readv is refused");
            warn(NAME, found, Some(facts.as_root("sysctl -w kernel.yama.ptrace_scope=1")))
        }
        // 3 holds until the next boot.
        Some(scope @ 3) => {
            let found = format!("kernel.yama.ptrace_scope is {scope}: process_vm_readv is refused");
            warn(NAME, found, Some("set kernel.yama.ptrace_scope=1 in /etc/sysctl.d and boot again".into()))
        }
        _ if facts.seccomp => warn(NAME, format!("{}: a seccomp filter forbids it", reason(errno)), None),
        _ => warn(NAME, format!("{}: process_vm_readv is refused", reason(errno)), None),
    }
}

/// Not needed: a program runs without, and its shared memory is only counted.
fn shared_memory(facts: &Facts) -> Check {
    const NAME: &str = "shared memory";
    match facts.shared_memory {
        Ok(()) if facts.shared_may_be_huge => {
            let found = "has huge pages (shmem_enabled), and is counted, not swapped";
            let file = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
            warn(NAME, found, Some(facts.as_root(&format!("sh -c 'echo never >{file}'"))))
        }
        Ok(()) => ok(NAME, "can be swapped"),
        Err(errno) => {
            let found = format!(
                "{}: needs CAP_CHECKPOINT_RESTORE; without it shared memory is counted and not swapped",
                reason(errno)
            );
            warn(NAME, found, None)
        }
    }
}

/// For `--shared=all` alone.
fn shared_files(facts: &Facts) -> Check {
    const NAME: &str = "shared files";
    match facts.file_watch {
        Ok(()) if facts.shared_memory.is_ok() && !facts.shared_may_be_huge => {
            ok(NAME, "memfds, shm_open and mapped files of tmpfs can be swapped (--shared=all)")
        }
        Ok(()) => warn(NAME, "are not swapped either, see shared memory", None),
        Err(errno) => {
            let found = format!("{}: --shared=all needs fanotify, so CAP_SYS_ADMIN", reason(errno));
            warn(NAME, found, Some("leave --shared=anonymous, the default; or run as root".into()))
        }
    }
}

fn io_uring(facts: &Facts) -> Check {
    const NAME: &str = "io_uring";
    let errno = match facts.io_uring {
        Ok(()) => return ok(NAME, "works"),
        Err(errno) => errno,
    };
    let instead = "pread and pwrite are used instead";
    match facts.io_uring_disabled {
        Some(disabled @ 1..) => {
            let found = format!("kernel.io_uring_disabled is {disabled}; {instead}");
            warn(NAME, found, Some(facts.as_root("sysctl -w kernel.io_uring_disabled=0")))
        }
        _ if facts.seccomp => warn(NAME, format!("a seccomp filter forbids it; {instead}"), None),
        _ => warn(NAME, format!("{}; {instead}", reason(errno)), None),
    }
}

fn memlock(facts: &Facts) -> Check {
    const NAME: &str = "memlock limit";
    match facts.memlock_bytes {
        None => ok(NAME, "no limit"),
        Some(_) if facts.has_capability(CAP_IPC_LOCK) => ok(NAME, "does not bind (CAP_IPC_LOCK)"),
        Some(bytes) if bytes >= MEMLOCK_BYTES_MIN => ok(NAME, human(bytes)),
        Some(bytes) => {
            let found =
                format!("{}: io_uring's buffers may not fit; they are then not registered", human(bytes));
            let fix = if facts.container {
                "start the container with --ulimit memlock=-1".to_owned()
            } else {
                facts.as_root(&format!("prlimit --pid $$ --memlock={MEMLOCK_BYTES_MIN}"))
            };
            warn(NAME, found, Some(fix))
        }
    }
}

fn encryption(facts: &Facts) -> Check {
    const NAME: &str = "encryption";
    const WHAT: &str = "swap files are encrypted (AES-256-GCM)";
    if !facts.cpu_does_aes {
        let found = format!("{WHAT}, slowly: this CPU has no instructions for it");
        return warn(NAME, found, Some("where the disk is encrypted already: run --encrypt=off".into()));
    }
    if !facts.keys_are_locked {
        let found = format!("{WHAT}, but their keys cannot be locked in memory");
        return warn(NAME, found, Some("raise the limit on locked memory by 64 KiB (ulimit -l)".into()));
    }
    ok(NAME, format!("{WHAT}, by instructions of the CPU, keys in locked memory"))
}

fn max_map_count(facts: &Facts) -> Check {
    const NAME: &str = "max_map_count";
    match facts.max_map_count {
        Some(count) if count < MAX_MAP_COUNT_MIN => {
            let found = format!("{count}: memspill splits mappings, and a large program may run out of them");
            warn(NAME, found, Some(facts.as_root("sysctl -w vm.max_map_count=1048576")))
        }
        Some(count) => ok(NAME, count.to_string()),
        None => warn(NAME, "cannot be read", None),
    }
}

fn swap_dir(facts: &Facts, dir: &SwapDir) -> Check {
    const NAME: &str = "swap directory";
    let path = dir.path.display();
    // Unless the directory is named, none in RAM is needed.
    let unusable = if dir.in_ram { warn } else { fail };
    let elsewhere = || Some("choose another: --swap-dir DIR, or MEMSPILL_DIR".to_owned());
    match dir.nameless {
        Ok(()) => {}
        // The file system has no such files; a named one, removed at once, does the same.
        Err(libc::EOPNOTSUPP | libc::EISDIR) => {
            return warn(NAME, format!("{path}: no O_TMPFILE on this file system"), elsewhere());
        }
        Err(libc::ENOENT) => {
            let fix = "make it, or choose another: --swap-dir DIR, or MEMSPILL_DIR";
            return fail(NAME, format!("{path}: there is no such directory"), Some(fix.into()));
        }
        Err(errno) => {
            return unusable(NAME, format!("{path}: user {}: {}", facts.user_id, reason(errno)), elsewhere());
        }
    }
    let free = human(dir.free_bytes);
    if dir.in_ram {
        return warn(NAME, format!("{path}: is in RAM itself (tmpfs), {free} free"), elsewhere());
    }
    if dir.free_bytes < DISK_FREE_BYTES_MIN {
        return warn(NAME, format!("{path}: only {free} free, which --disk-free leaves alone"), elsewhere());
    }
    let how =
        if dir.direct.is_ok() { "O_TMPFILE and O_DIRECT work" } else { "O_TMPFILE works, O_DIRECT does not" };
    ok(NAME, format!("{path}: {free} free, {how}"))
}

fn huge_pages(facts: &Facts) -> Check {
    const NAME: &str = "huge pages";
    match facts.huge_pages.as_deref() {
        Some("always") => ok(NAME, "always; memory that memspill manages is in pages of 4 KiB"),
        Some(setting) => ok(NAME, setting),
        None => ok(NAME, "not in this kernel"),
    }
}

fn idle_cpus(facts: &Facts) -> Check {
    const NAME: &str = "idle CPUs";
    let errno = match facts.idle_cpus {
        None => return ok(NAME, "no cpuidle driver: nothing can keep them awake"),
        Some(Ok(())) => return ok(NAME, "are kept from sleeping deeply while faults come often"),
        Some(Err(errno)) => errno,
    };
    let found =
        format!("may halt between two faults, and wake late: {CPU_LATENCY}, for all CPUs: {}", reason(errno));
    warn(NAME, found, facts.device_fix(CPU_LATENCY, errno))
}

fn memory(facts: &Facts) -> Check {
    let ram = human(facts.memory.ram_bytes);
    ok(
        "memory",
        match &facts.memory.cgroup {
            None => format!("{ram} RAM, no limit by a cgroup"),
            Some(limit) => {
                format!("{ram} RAM, limited to {} by {}", human(limit.bytes), limit.file.display())
            }
        },
    )
}

fn kernel_swap(facts: &Facts) -> Check {
    ok(
        "kernel's swap",
        match facts.memory.swap_bytes {
            0 => "none (memspill needs none)".to_owned(),
            bytes => format!("{} (memspill does not use it)", human(bytes)),
        },
    )
}
