//! The checks of userfaultfd: its device, its system call, its features.

use super::check::{Check, Level, fail, ok, reason, warn};
use super::facts::{CAP_SYS_PTRACE, Facts};
use crate::probe::feature;

/// The other way to a full userfaultfd, for every user of the machine.
const ALLOW_TO_ALL: &str = "sysctl -w vm.unprivileged_userfaultfd=1";

pub(super) fn uffd_device(facts: &Facts) -> Check {
    const NAME: &str = "/dev/userfaultfd";
    let errno = match facts.uffd_device {
        Ok(()) => return ok(NAME, "open to this user"),
        Err(errno) => errno,
    };
    let found = match errno {
        libc::ENOENT => "not there".to_owned(),
        libc::EACCES => format!("user {} may not open it", facts.user_id),
        _ => reason(errno),
    };
    // With userfaultfd(2) in full, or with none at all, the device is not what decides.
    if facts.uffd_full.is_ok() {
        return ok(NAME, format!("{found}; userfaultfd(2) serves as well"));
    }
    fail(NAME, found, uffd_device_fix(facts, errno))
}

fn uffd_device_fix(facts: &Facts, errno: i32) -> Option<String> {
    let for_all = || facts.uffd_user_mode.is_ok().then(|| facts.as_root(ALLOW_TO_ALL));
    // If that does not help either, the check of userfaultfd(2) says why.
    facts.device_fix("/dev/userfaultfd", errno).or_else(for_all)
}

pub(super) fn uffd_syscall(facts: &Facts) -> Check {
    const NAME: &str = "userfaultfd(2)";
    match (facts.uffd_full, facts.uffd_user_mode) {
        (Ok(()), _) => ok(NAME, "in full: faults of system calls are served too"),
        (Err(_), Ok(())) if facts.uffd_device.is_ok() => {
            ok(NAME, "for faults of user mode only; the device serves the rest")
        }
        (Err(_), Ok(())) => {
            let found = "for faults of user mode only: read(2) into swapped-out memory would get EFAULT";
            warn(NAME, found, Some(format!("that of the device, above; or {}", facts.as_root(ALLOW_TO_ALL))))
        }
        (Err(libc::ENOSYS), Err(_)) if facts.uffd_device.is_err() => {
            fail(NAME, "not in this kernel (CONFIG_USERFAULTFD), or not in this sandbox", None)
        }
        (Err(_), Err(errno)) if facts.uffd_device.is_ok() => {
            ok(NAME, format!("{}; the device serves in its place", reason(errno)))
        }
        // The user-mode kind needs no privilege, so that a refusal of it is a filter's, not the kernel's.
        (Err(_), Err(errno)) => {
            let filter =
                if facts.seccomp { "a seccomp filter forbids it" } else { "a security policy forbids it" };
            let fix = facts.seccomp.then(|| {
                "start the container with a profile that allows userfaultfd: docker run --security-opt \
                 seccomp=PROFILE.json"
                    .into()
            });
            fail(NAME, format!("{}: {filter}", reason(errno)), fix)
        }
    }
}

/// A feature of userfaultfd: its name, its bits, what stands without it, and what it is for.
struct Feature {
    name: &'static str,
    bits: u64,
    without: Level,
    gives: &'static str,
}

const FEATURES: [Feature; 5] = [
    Feature {
        name: "uffd MOVE",
        bits: feature::MOVE,
        without: Level::Fail,
        gives: "pages leave a program without losing a store (6.8)",
    },
    Feature {
        name: "uffd events",
        bits: feature::EVENT_REMAP | feature::EVENT_REMOVE | feature::EVENT_UNMAP,
        without: Level::Fail,
        gives: "mremap, madvise and munmap are followed (REMAP, REMOVE, UNMAP; 4.11)",
    },
    Feature {
        name: "uffd WP_ASYNC",
        bits: feature::PAGEFAULT_FLAG_WP | feature::WP_ASYNC,
        without: Level::Warn,
        gives: "pages that stay clean are known, and need no second write (6.7)",
    },
    Feature {
        name: "uffd POISON",
        bits: feature::POISON,
        without: Level::Warn,
        gives: "a page that cannot be read back is SIGBUS, not the program's end (6.6)",
    },
    Feature {
        name: "uffd SIGBUS",
        bits: feature::SIGBUS,
        without: Level::Warn,
        gives: "the library can serve faults on the faulting thread (4.14)",
    },
];

pub(super) fn uffd_feature_checks(facts: &Facts) -> Vec<Check> {
    // If there is no userfaultfd, the lines above have said so, and the features cannot be asked.
    let Some(features) = facts.uffd_features else { return Vec::new() };
    let mut checks: Vec<Check> = FEATURES.iter().map(|wanted| judge_feature(wanted, features)).collect();
    checks.insert(2, event_fork(facts, features));
    let unknown = features & !feature::KNOWN;
    if unknown != 0 {
        checks
            .push(ok("uffd, newer", format!("features {unknown:#x}, not used by this version of memspill")));
    }
    checks
}

fn judge_feature(wanted: &Feature, features: u64) -> Check {
    if features & wanted.bits == wanted.bits {
        return ok(wanted.name, wanted.gives);
    }
    let found = format!("not in this kernel; with it, {}", wanted.gives);
    Check { name: wanted.name, level: wanted.without, found, fix: Some("install a later kernel".into()) }
}

/// In the kernel and allowed are two things: EVENT_FORK needs CAP_SYS_PTRACE in the first user namespace.
pub(super) fn event_fork(facts: &Facts, features: u64) -> Check {
    const NAME: &str = "uffd EVENT_FORK";
    if features & feature::EVENT_FORK == 0 {
        let found = "not in this kernel: swapped-out memory cannot be followed into a forked child";
        return fail(NAME, found, Some("install Linux 6.8 or later".into()));
    }
    match facts.event_fork {
        Ok(()) if facts.has_capability_alone() => {
            let found =
                "memspill has CAP_SYS_PTRACE for itself alone (setcap): the command could not load the agent";
            fail(NAME, found, Some(ptrace_capability_fix(facts)))
        }
        Ok(()) => ok(NAME, "forked children get the swapped-out memory of their parent"),
        Err(libc::EPERM) => {
            let fix = Some(ptrace_capability_fix(facts));
            fail(NAME, "needs CAP_SYS_PTRACE: else a forked child would read zeros", fix)
        }
        Err(errno) => fail(NAME, format!("{}: forked children are not followed", reason(errno)), None),
    }
}

/// Ambient, so that memspill and the command both hold it. A file capability (setcap) does not serve: its
/// process is closed to others of its user (not dumpable, more capabilities than they), and the command opens
/// the agent there.
fn ptrace_capability_fix(facts: &Facts) -> String {
    const AMBIENT: &str = "setpriv --reuid $USER --regid $(id -g) --init-groups --inh-caps +sys_ptrace \
        --ambient-caps +sys_ptrace memspill run ...  # or as root; for a systemd unit: \
        AmbientCapabilities=CAP_SYS_PTRACE";
    if facts.has_capability(CAP_SYS_PTRACE) && !facts.has_capability_alone() {
        // Held, and still refused: it is the capability of another user namespace than the first.
        "run memspill outside this user namespace".into()
    } else if !facts.may_ever_have(CAP_SYS_PTRACE) && facts.container {
        "start the container with --cap-add=SYS_PTRACE".into()
    } else if facts.is_root() || !facts.may_ever_have(CAP_SYS_PTRACE) {
        "start memspill from a session that keeps CAP_SYS_PTRACE".into()
    } else {
        facts.as_root(AMBIENT)
    }
}
