//! Facts in, checks out.

use std::path::Path;

use super::check::{fail, ok};
use super::checks::{CHILD_PAGEMAP, DISPATCH, GUARDS, OWN_MEMORY, judge};
use super::facts::{CAP_SYS_PTRACE, Facts, SwapDir, outer_user_id};
use super::render::summary;
use super::*;
use crate::machine::Memory;
use crate::probe::feature;
use memspill_pager::door::source::Holes;

/// A machine where all is well, for root.
fn good() -> Facts {
    Facts {
        user_id: 0,
        outer_user_id: None,
        x86_64: true,
        kernel_release: "6.18.44-generic".into(),
        container: false,
        seccomp: false,
        capabilities: !0,
        capabilities_bound: !0,
        ptrace_is_passed_on: true,
        setfacl: true,
        uffd_device: Ok(()),
        uffd_full: Ok(()),
        uffd_user_mode: Ok(()),
        dispatch: Ok(()),
        dispatch_sysctl: None,
        own_memory: Ok(()),
        uffd_features: Some(feature::KNOWN),
        event_fork: Ok(()),
        pagemap_scan: Ok(()),
        guard_regions: Ok(()),
        io_uring: Ok(()),
        io_uring_disabled: Some(0),
        memlock_bytes: None,
        keys_are_locked: true,
        cpu_does_aes: true,
        child_memory: Ok(()),
        child_pagemap: Ok(()),
        ptrace_scope: Some(1),
        shared_memory: Ok(()),
        shared_may_be_huge: false,
        file_watch: Ok(()),
        huge_pages: Some("madvise".into()),
        max_map_count: Some(65_530),
        idle_cpus: Some(Ok(())),
        memory: Memory {
            ram_bytes: 8 << 30,
            swap_bytes: 0,
            available_bytes: 4 << 30,
            pressure_percent: 0.0,
            cgroup: None,
        },
        swap_dir: Some(SwapDir {
            path: "/var/tmp".into(),
            nameless: Ok(()),
            direct: Ok(()),
            free_bytes: 80 << 30,
            in_ram: false,
        }),
    }
}

/// The same machine for a plain user, with the kernel's defaults.
fn plain_user() -> Facts {
    Facts {
        user_id: 1000,
        capabilities: 0,
        ptrace_is_passed_on: false,
        uffd_device: Err(libc::EACCES),
        uffd_full: Err(libc::EPERM),
        event_fork: Err(libc::EPERM),
        shared_memory: Err(libc::EPERM),
        file_watch: Err(libc::EPERM),
        memlock_bytes: Some(8 << 20),
        idle_cpus: Some(Err(libc::EACCES)),
        ..good()
    }
}

const KERNEL: Wanted = Wanted { mode: args::Mode::Kernel, holes: args::Holes::Auto };

fn check(facts: &Facts, name: &str) -> Check {
    judge(facts).into_iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no check {name}"))
}

fn worst(facts: &Facts) -> Level {
    judge(facts).iter().map(|check| check.level).max().unwrap()
}

#[test]
fn a_good_machine() {
    assert_eq!(worst(&good()), Level::Ok);
    assert_eq!(summary(&judge(&good())), "memspill run can start here.");
}

#[test]
fn a_plain_user_gets_agent_mode() {
    let names = |facts: &Facts, wanted, level| -> Vec<&str> {
        let checks = judge_for(facts, wanted);
        checks.iter().filter(|check| check.level == level).map(|check| check.name).collect()
    };
    let facts = plain_user();
    let line = &judge_for(&facts, Wanted::AUTO)[0];
    assert!(
        line.found.starts_with("agent mode, holes by its own userfaultfd, for kernel mode is not possible")
    );
    assert!(line.found.contains("(/dev/userfaultfd: user 1000"));
    assert!(names(&facts, Wanted::AUTO, Level::Fail).is_empty());
    assert_eq!(possible(&facts, Wanted::AUTO), Some(Mode::Agent(Holes::Userfaultfd)));
    let fails = names(&facts, KERNEL, Level::Fail);
    assert_eq!(fails, ["mode", "/dev/userfaultfd", "uffd EVENT_FORK"]);
    // A user who may have kernel mode gets it, and the other one by asking for it.
    assert_eq!(possible(&good(), Wanted::AUTO), Some(Mode::Kernel));
    // Neither.
    let old = Facts { dispatch: Err(libc::EINVAL), ..facts.clone() };
    let line = &judge_for(&old, Wanted::AUTO)[0];
    assert!(line.level == Level::Fail && line.found.contains("userfaultfd (system call traps"), "{line:?}");
    let off = Facts { dispatch: Err(libc::EINVAL), dispatch_sysctl: Some(0), ..facts.clone() };
    assert!(check(&off, DISPATCH).fix.unwrap().contains("kernel.syscall_user_dispatch=1"));
    let unlocked = Facts { keys_are_locked: false, ..plain_user() };
    assert!(check(&unlocked, "encryption").fix.unwrap().contains("ulimit -l"));
    let slow = Facts { cpu_does_aes: false, ..good() };
    assert!(check(&slow, "encryption").fix.unwrap().contains("--encrypt=off"));
    let strict = Facts { child_memory: Err(libc::EPERM), ptrace_scope: Some(2), ..facts };
    // Which does not read other processes' memory.
    assert_eq!(possible(&strict, Wanted::AUTO), Some(Mode::Agent(Holes::Userfaultfd)));
    assert!(names(&strict, Wanted::AUTO, Level::Fail).is_empty());
    // A process that may not write to its own memory by /proc can be paged in no such way.
    let no_own = Facts { own_memory: Err(libc::EIO), ..plain_user() };
    assert_eq!(possible(&no_own, Wanted::AUTO), None);
    assert_eq!(names(&no_own, Wanted::AGENT, Level::Fail)[0], "mode");
}

#[test]
fn a_plain_user_is_told_the_one_command() {
    let facts = plain_user();
    let device = check(&facts, "/dev/userfaultfd");
    assert_eq!(device.level, Level::Fail);
    assert_eq!(
        device.fix.as_deref(),
        Some("sudo setfacl -m u:1000:rw /dev/userfaultfd  # until the next boot; a udev rule keeps it")
    );
    let fails = judge(&facts).iter().filter(|check| check.level == Level::Fail).count();
    assert_eq!(fails, 2, "the device and the capability");
    assert!(
        check(&facts, "userfaultfd(2)").fix.unwrap().contains("sudo sysctl -w vm.unprivileged_userfaultfd=1")
    );

    let without_tool = Facts { setfacl: false, ..facts };
    let fix = check(&without_tool, "/dev/userfaultfd").fix.unwrap();
    assert!(fix.starts_with("sudo chown 1000 /dev/userfaultfd "), "{fix}");
}

#[test]
fn idle_cpus() {
    assert_eq!(check(&good(), "idle CPUs").level, Level::Ok);
    let user = check(&plain_user(), "idle CPUs");
    assert_eq!(user.level, Level::Warn);
    assert!(user.fix.unwrap().starts_with("sudo setfacl -m u:1000:rw /dev/cpu_dma_latency "));
    let contained = Facts { idle_cpus: Some(Err(libc::ENOENT)), container: true, ..good() };
    assert!(check(&contained, "idle CPUs").fix.unwrap().contains("--device=/dev/cpu_dma_latency"));
    let without_driver = Facts { idle_cpus: None, ..plain_user() };
    assert_eq!(check(&without_driver, "idle CPUs").level, Level::Ok);
}

/// Either way to a full userfaultfd is enough.
#[test]
fn the_device_or_the_system_call() {
    let plain_user = || Facts {
        event_fork: Ok(()),
        shared_memory: Ok(()),
        file_watch: Ok(()),
        idle_cpus: None,
        ..plain_user()
    };
    let by_device = Facts { uffd_device: Ok(()), ..plain_user() };
    assert_eq!(worst(&by_device), Level::Ok);
    assert_eq!(check(&by_device, "userfaultfd(2)").level, Level::Ok);
    let by_call = Facts { uffd_full: Ok(()), uffd_device: Err(libc::ENOENT), ..plain_user() };
    assert_eq!(check(&by_call, "/dev/userfaultfd").level, Level::Ok);
    let filtered =
        Facts { uffd_full: Err(libc::EPERM), uffd_user_mode: Err(libc::EPERM), seccomp: true, ..good() };
    assert_eq!(worst(&filtered), Level::Ok);
}

/// Root of a user namespace is the outer user to a device, and cannot mend it from inside.
#[test]
fn user_namespaces() {
    assert_eq!(outer_user_id("         0          0 4294967295\n", 1000), None);
    assert_eq!(outer_user_id("0 1000 1\n1 100000 65536\n", 0), Some(1000));
    assert_eq!(outer_user_id("0 1000 1\n1 100000 65536\n", 33), Some(100_032));
    assert_eq!(outer_user_id("", 0), None);
    assert_eq!(outer_user_id("nonsense", 0), None);
    let facts = Facts { user_id: 0, outer_user_id: Some(1000), ..plain_user() };
    let fix = check(&facts, "/dev/userfaultfd").fix.unwrap();
    assert!(fix.starts_with("outside this user namespace: sudo setfacl -m u:1000:rw "), "{fix}");
}

/// No device and no container: the sysctl is what is left, and `run` says so too.
#[test]
fn without_a_device_the_sysctl_mends() {
    let facts = Facts { uffd_device: Err(libc::ENOENT), ..plain_user() };
    let device = check(&facts, "/dev/userfaultfd");
    assert_eq!(device.level, Level::Fail);
    assert_eq!(device.fix.as_deref(), Some("sudo sysctl -w vm.unprivileged_userfaultfd=1"));
}

#[test]
fn the_kernel_tells_of_forks_with_a_capability() {
    let facts = plain_user();
    let fork = check(&facts, "uffd EVENT_FORK");
    assert_eq!(fork.level, Level::Fail);
    let fix = fork.fix.unwrap();
    assert!(
        fix.starts_with("sudo setpriv --reuid $USER ") && fix.contains("--ambient-caps +sys_ptrace memspill")
    );
    assert!(fix.contains("AmbientCapabilities=CAP_SYS_PTRACE"));
    let by_file = Facts { capabilities: 1 << CAP_SYS_PTRACE, event_fork: Ok(()), ..facts.clone() };
    let fork = check(&by_file, "uffd EVENT_FORK");
    assert!(fork.level == Level::Fail && fork.found.contains("setcap"), "{fork:?}");
    assert!(fork.fix.unwrap().contains("--ambient-caps"));
    let ambient = Facts { ptrace_is_passed_on: true, ..by_file };
    assert_eq!(check(&ambient, "uffd EVENT_FORK").level, Level::Ok);
    let container = Facts { container: true, capabilities_bound: 0, ..facts };
    assert!(check(&container, "uffd EVENT_FORK").fix.unwrap().contains("--cap-add=SYS_PTRACE"));
    let dropped = Facts { capabilities: 0, event_fork: Err(libc::EPERM), ..good() };
    assert!(check(&dropped, "uffd EVENT_FORK").fix.unwrap().contains("session"));
    let namespace = Facts { event_fork: Err(libc::EPERM), ..good() };
    assert!(check(&namespace, "uffd EVENT_FORK").fix.unwrap().contains("user namespace"));
}

#[test]
fn a_container_with_the_default_filter() {
    let facts = Facts {
        container: true,
        seccomp: true,
        uffd_device: Err(libc::ENOENT),
        uffd_full: Err(libc::EPERM),
        uffd_user_mode: Err(libc::EPERM),
        uffd_features: None,
        io_uring: Err(libc::EPERM),
        ..good()
    };
    let call = check(&facts, "userfaultfd(2)");
    assert_eq!(call.level, Level::Fail);
    assert!(call.found.contains("seccomp") && call.fix.unwrap().contains("--security-opt"));
    assert!(check(&facts, "/dev/userfaultfd").fix.unwrap().contains("--device=/dev/userfaultfd"));
    assert!(check(&facts, "io_uring").found.contains("pread and pwrite"));
    assert!(!judge(&facts).iter().any(|check| check.name.starts_with("uffd ")));
    // There agent mode with guard pages serves, and what it lacks elsewhere is named.
    let fails = |facts: &Facts| {
        let checks = judge_for(facts, Wanted::AUTO);
        checks.into_iter().filter(|check| check.level == Level::Fail).map(|check| check.found).collect()
    };
    assert_eq!(
        (possible(&facts, Wanted::AUTO), fails(&facts)),
        (Some(Mode::Agent(Holes::Guard)), Vec::new())
    );
    for (lacks, name) in [
        (Facts { dispatch: Err(libc::EINVAL), ..facts.clone() }, DISPATCH),
        (Facts { guard_regions: Err(libc::EINVAL), ..facts.clone() }, GUARDS),
        (Facts { own_memory: Err(libc::EIO), ..facts.clone() }, OWN_MEMORY),
        (Facts { child_pagemap: Err(libc::EACCES), ..facts.clone() }, CHILD_PAGEMAP),
    ] {
        assert_eq!(possible(&lacks, Wanted::AUTO), None);
        assert!(fails(&lacks)[0].contains(&format!("guard pages ({name}")), "{:?}", fails(&lacks));
    }
}

#[test]
fn kernels() {
    let release = |release: &str, features| {
        check(&Facts { kernel_release: release.into(), uffd_features: features, ..good() }, "kernel").level
    };
    let without_move = Some(feature::KNOWN & !feature::MOVE);
    assert_eq!(release("6.1.0-18-amd64", without_move), Level::Fail);
    assert_eq!(release("6.1.0-18-amd64", None), Level::Fail);
    assert_eq!(release("5.14.0-503.el9", Some(feature::KNOWN)), Level::Ok);
    assert_eq!(release("6.8.0", Some(feature::KNOWN)), Level::Ok);
    assert_eq!(release("7.0-rc1", Some(feature::KNOWN)), Level::Ok);
    assert_eq!(release("what", Some(feature::KNOWN)), Level::Warn);
    let facts = Facts { uffd_features: without_move, ..good() };
    assert_eq!(check(&facts, "uffd MOVE").level, Level::Fail);
    let newer = Facts { uffd_features: Some(1 << 17 | feature::KNOWN), ..good() };
    assert!(check(&newer, "uffd, newer").found.contains("0x20000"));
}

#[test]
fn swap_directories() {
    let level = |change: fn(&mut SwapDir)| {
        let mut facts = good();
        change(facts.swap_dir.as_mut().unwrap());
        let check = check(&facts, "swap directory");
        (check.level, check.found)
    };
    assert_eq!(level(|_| {}).1, "/var/tmp: 80.0 GiB free, O_TMPFILE and O_DIRECT work");
    assert_eq!(level(|dir| dir.direct = Err(libc::EINVAL)).0, Level::Ok);
    for (change, words) in [
        ((|dir| dir.in_ram = true) as fn(&mut SwapDir), "tmpfs"),
        (|dir| dir.free_bytes = 1 << 20, "1.0 MiB free"),
        (|dir| dir.nameless = Err(libc::EOPNOTSUPP), "O_TMPFILE"),
    ] {
        let (level, found) = level(change);
        assert!(level == Level::Warn && found.contains(words), "{found}");
    }
    // A run that begins with a swap file there cannot.
    for (errno, words) in
        [(libc::EACCES, "permission denied"), (libc::ENOENT, "no such directory"), (libc::EROFS, "ead-only")]
    {
        let mut facts = good();
        facts.swap_dir.as_mut().unwrap().nameless = Err(errno);
        let check = check(&facts, "swap directory");
        assert!(check.level == Level::Fail && check.found.contains(words), "{}", check.found);
        assert!(summary(&judge(&facts)).contains("cannot start here"));
    }
}

#[test]
fn limits_and_policies() {
    let limited = Facts { memlock_bytes: Some(64 << 10), ..plain_user() };
    assert_eq!(
        check(&limited, "memlock limit").fix.as_deref(),
        Some("sudo prlimit --pid $$ --memlock=8388608")
    );
    let root = Facts { memlock_bytes: Some(64 << 10), ..good() };
    assert_eq!(check(&root, "memlock limit").level, Level::Ok);
    let strict = Facts { child_memory: Err(libc::EPERM), ptrace_scope: Some(2), ..plain_user() };
    assert!(check(&strict, "child's memory").fix.unwrap().contains("ptrace_scope=1"));
    let few = Facts { max_map_count: Some(1000), ..good() };
    assert_eq!(check(&few, "max_map_count").fix.as_deref(), Some("sysctl -w vm.max_map_count=1048576"));
}

#[test]
fn shared_memory_is_no_reason_not_to_start() {
    let huge = Facts { shared_may_be_huge: true, ..good() };
    let cases = [
        ("shared memory", &huge, "huge pages"),
        ("shared memory", &plain_user(), "CAP_CHECKPOINT_RESTORE"),
        ("shared files", &huge, "see shared memory"),
        ("shared files", &plain_user(), "CAP_SYS_ADMIN"),
    ];
    for (name, facts, words) in cases {
        let check = check(facts, name);
        assert!(check.level == Level::Warn && check.found.contains(words), "{}", check.found);
    }
}

#[test]
fn the_short_answer_is_five_lines_and_all_that_fails() {
    let short = |facts: &Facts| render_short(&judge_for(facts, Wanted::AUTO), false);
    let text = short(&good());
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(text.ends_with("memspill run can start here. (All that was looked at: -v)\n"), "{text}");
    let text = short(&plain_user());
    assert!(text.starts_with("warn  ") && text.contains("better with /dev/userfaultfd: "), "{text}");
    let text = short(&Facts { pagemap_scan: Err(libc::ENOTTY), ..good() });
    assert!(text.contains("\nFAIL  PAGEMAP_SCAN") && text.contains("cannot start here: "), "{text}");
}

#[test]
fn rendered() {
    let checks = [ok("a", "well"), fail("longer", "bad", Some("mend it".into()))];
    let plain = "ok    a       well\nFAIL  longer  bad\n              fix: mend it\n\n\
                 memspill run cannot start here: mend the 1 line marked FAIL.\n";
    assert_eq!(render(&checks, false), plain);
    assert!(render(&checks, true).starts_with("\x1b[32mok  \x1b[0m  a"));
    assert_eq!(refusal(&checks[1..]), "memspill: longer: bad\nmemspill:   to mend it: mend it\n");
}

/// Whatever this machine is: the probes end, leave no child, and every check says something.
#[test]
fn this_machine() {
    let checks = judge(&Facts::gather(Some(Path::new("/var/tmp"))));
    assert!(checks.len() >= 12);
    assert!(checks.iter().all(|check| !check.found.is_empty() && !check.found.contains('\n')));
    for wanted in [Wanted::AUTO, KERNEL, Wanted::AGENT] {
        let blockers = choose(wanted).err().unwrap_or_default();
        assert!(blockers.iter().all(|check| check.level == Level::Fail));
    }
}
