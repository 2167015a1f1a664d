//! `memspill doctor`: what this machine offers and lacks, and the one command that mends each lack.
//!
//! Three steps, apart from each other so that each can be read and tested alone:
//!
//! ```text
//! Facts::gather   tries and reads; judges nothing        (probe.rs, machine.rs, /proc)
//! judge           facts in, checks out; touches nothing  (every text of this file is made there)
//! render          checks in, text out
//! ```
//!
//! A check at FAIL stops `memspill run`, which calls `choose` and prints the same words. A check at warn
//! costs speed, or concerns some programs only; its text says which. Nothing is believed that can be tried:
//! permission on a device, a sysctl and a kernel version are named as reasons, never taken as the result.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use memspill_pager::door::source::Pager;
use memspill_uffd::{fanotify, shmem};

use crate::args::{self, DoctorArgs, Pager as Wanted};
use crate::machine::{Memory, is_in_ram};
use crate::message::words;
use crate::probe::{self, feature};
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
/// The other way to a full userfaultfd, for every user of the machine.
const ALLOW_TO_ALL: &str = "sysctl -w vm.unprivileged_userfaultfd=1";
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_PTRACE: u32 = 19;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Ok,
    Warn,
    Fail,
}

/// One line of the answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    pub name: &'static str,
    pub level: Level,
    pub found: String,
    /// A command, or what to do where no command can.
    pub fix: Option<String>,
}

/// The subcommand. 0: `run` can start here; 1: something fails.
pub fn doctor(options: &DoctorArgs) -> u8 {
    let facts = Facts::gather(Some(&args::swap_dir(options.swap_dir.clone())));
    let checks = judge_for(&facts, Wanted::Auto);
    let colour =
        io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    match io::stdout().write_all(render(&checks, colour).as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("memspill: cannot write to stdout: {}", reason(errno(&error)));
            1
        }
        _ => u8::from(checks.iter().any(|check| check.level == Level::Fail)),
    }
}

/// Which pager `run` takes here, if the command line asks for `wanted`; and what there is to be said of that.
/// Err: what stops it. Costs about a millisecond.
pub fn choose(wanted: Wanted) -> Result<(Pager, Check), Vec<Check>> {
    let facts = Facts::gather(None);
    let mut checks = judge_for(&facts, wanted);
    if let Some(pager) = possible(&facts, wanted)
        && checks.iter().all(|check| check.level != Level::Fail)
    {
        return Ok((pager, checks.swap_remove(0)));
    }
    checks.retain(|check| check.level == Level::Fail);
    Err(checks)
}

/// The same words on stderr, for `run`.
pub fn refusal(blockers: &[Check]) -> String {
    let mut text = String::new();
    for check in blockers {
        let _ = writeln!(text, "memspill: {}: {}", check.name, check.found);
        if let Some(fix) = &check.fix {
            let _ = writeln!(text, "memspill:   to mend it: {fix}");
        }
    }
    text
}

/// An errno, or success.
type Tried = Result<(), i32>;

/// What was found out; nothing in it is judged.
#[derive(Clone, Debug)]
struct Facts {
    user_id: u32,
    /// The same user outside a user namespace, where this process is in one.
    outer_user_id: Option<u32>,
    x86_64: bool,
    kernel_release: String,
    container: bool,
    seccomp: bool,
    /// In force, and the most that this process and its children can ever have.
    capabilities: u64,
    capabilities_bound: u64,
    /// A command that is started has CAP_SYS_PTRACE if this process has it.
    ptrace_is_passed_on: bool,
    setfacl: bool,
    /// Opening /dev/userfaultfd, and making a userfaultfd with it.
    uffd_device: Tried,
    /// userfaultfd(2) as the program that is run can call it.
    uffd_full: Tried,
    uffd_user_mode: Tried,
    /// Trapping system calls (Syscall User Dispatch), by the program that is run.
    dispatch: Tried,
    own_memory: Tried,
    /// PROCMAP_QUERY, of itself.
    own_mappings: Tried,
    /// None where no userfaultfd of any kind could be had.
    uffd_features: Option<u64>,
    event_fork: Tried,
    pagemap_scan: Tried,
    guard_regions: Tried,
    io_uring: Tried,
    io_uring_disabled: Option<u64>,
    /// None: no limit.
    memlock_bytes: Option<u64>,
    /// A key of swap files can be locked in memory; the CPU does AES.
    keys_are_locked: bool,
    cpu_does_aes: bool,
    child_memory: Tried,
    child_pagemap: Tried,
    ptrace_scope: Option<u64>,
    /// Opening an object of shared memory by /proc/PID/map_files.
    shared_memory: Tried,
    shared_may_be_huge: bool,
    /// Holding who opens a file of shared memory.
    file_watch: Tried,
    huge_pages: Option<String>,
    max_map_count: Option<u64>,
    memory: Memory,
    swap_dir: Option<SwapDir>,
}

/// A directory that is to hold swap files.
#[derive(Clone, Debug)]
struct SwapDir {
    path: PathBuf,
    /// A file without a name.
    nameless: Tried,
    /// The same past the page cache.
    direct: Tried,
    free_bytes: u64,
    in_ram: bool,
}

impl Facts {
    fn gather(swap_dir: Option<&Path>) -> Facts {
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
            own_memory: tried(probe::own_memory()),
            own_mappings: tried(probe::own_mappings()),
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
            memory: Memory::of_this_machine(),
            swap_dir: swap_dir.map(SwapDir::gather),
        }
    }

    fn is_root(&self) -> bool {
        self.user_id == 0
    }

    fn has_capability(&self, number: u32) -> bool {
        self.capabilities >> number & 1 == 1
    }

    /// `command` as this user types it.
    fn as_root(&self, command: &str) -> String {
        match self.outer_user_id {
            Some(_) => format!("outside this user namespace: sudo {command}"),
            None if self.is_root() => command.to_owned(),
            None => format!("sudo {command}"),
        }
    }

    /// The user as the owner of a device node is counted.
    fn device_user_id(&self) -> u32 {
        self.outer_user_id.unwrap_or(self.user_id)
    }

    /// CAP_SYS_PTRACE by a capability of memspill's file, which the command does not get.
    fn has_capability_alone(&self) -> bool {
        self.has_capability(CAP_SYS_PTRACE) && !self.ptrace_is_passed_on
    }

    fn may_ever_have(&self, capability: u32) -> bool {
        self.capabilities_bound >> capability & 1 == 1
    }

    fn kernel_version(&self) -> Option<(u32, u32)> {
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

fn errno(error: &io::Error) -> i32 {
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
fn chosen_word(text: String) -> String {
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.map_or_else(|| text.trim().to_owned(), |(word, _)| word.to_owned())
}

/// Who `user_id` is outside this user namespace, by uid_map's lines of INSIDE OUTSIDE COUNT; None in the
/// first one, which maps every number to itself.
fn outer_user_id(uid_map: &str, user_id: u32) -> Option<u32> {
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

// -----------------------------------------------------------------------------------------------------------
// Judging
// -----------------------------------------------------------------------------------------------------------

fn ok(name: &'static str, found: impl Into<String>) -> Check {
    Check { name, level: Level::Ok, found: found.into(), fix: None }
}

fn warn(name: &'static str, found: impl Into<String>, fix: Option<String>) -> Check {
    Check { name, level: Level::Warn, found: found.into(), fix }
}

fn fail(name: &'static str, found: impl Into<String>, fix: Option<String>) -> Check {
    Check { name, level: Level::Fail, found: found.into(), fix }
}

/// What an errno means, in strerror's words without its number.
fn reason(errno: i32) -> String {
    words(&io::Error::from_raw_os_error(errno))
}

/// What only the kernel pager needs.
const KERNELS: [&str; 3] = ["/dev/userfaultfd", "userfaultfd(2)", "uffd EVENT_FORK"];

/// What the signal pager does without.
const USERFAULTFDS: [&str; 4] = ["uffd MOVE", "uffd events", CHILD_MEMORY, "userfaultfd(2)"];

/// The pager first, then all that it rests on. What the other one would need is no more than a warning.
fn judge_for(facts: &Facts, wanted: Wanted) -> Vec<Check> {
    let mut checks = judge(facts);
    let takes = possible(facts, wanted);
    let is_user = wanted == Wanted::User || takes == Some(Pager::User);
    let is_signal = wanted == Wanted::Signal || takes == Some(Pager::Signal);
    let is_thread = wanted == Wanted::Thread || takes == Some(Pager::Thread);
    for check in &mut checks {
        check.level = match (is_user || is_signal || is_thread, check.level) {
            (true, Level::Fail) if is_signal && USERFAULTFDS.contains(&check.name) => Level::Warn,
            (true, Level::Warn) if is_user && check.name == CHILD_MEMORY => Level::Fail,
            (true, Level::Fail) if KERNELS.contains(&check.name) => Level::Warn,
            (_, level) => level,
        };
    }
    checks.insert(0, pager(facts, takes, wanted));
    checks
}

/// What stands in the way of the kernel pager.
fn kernel_obstacle(facts: &Facts) -> Option<String> {
    [uffd_device(facts), event_fork(facts, facts.uffd_features.unwrap_or(0))]
        .into_iter()
        .find(|check| check.level == Level::Fail)
        .map(|check| format!("{}: {}", check.name, check.found))
}

/// And in that of the user pager.
fn user_obstacle(facts: &Facts) -> Option<String> {
    if facts.has_capability_alone() {
        return Some("memspill has CAP_SYS_PTRACE for itself alone".into());
    }
    match (facts.uffd_user_mode, facts.dispatch, facts.child_memory) {
        (Err(errno), ..) => Some(format!("userfaultfd for user mode: {}", reason(errno))),
        (_, Err(errno), _) => Some(format!("{DISPATCH}: {}", reason(errno))),
        (.., Err(errno)) => Some(format!("{CHILD_MEMORY}: {}", reason(errno))),
        _ => None,
    }
}

/// In that of the thread pager, which reads no memory of others.
fn thread_obstacle(facts: &Facts) -> Option<String> {
    if facts.has_capability_alone() {
        return Some("memspill has CAP_SYS_PTRACE for itself alone".into());
    }
    let needed = [
        ("userfaultfd for user mode", facts.uffd_user_mode),
        (DISPATCH, facts.dispatch),
        (OWN_MEMORY, facts.own_memory),
        ("PROCMAP_QUERY (Linux 6.11)", facts.own_mappings),
        (CHILD_PAGEMAP, facts.child_pagemap),
    ];
    first_missing(&needed)
}

fn first_missing(needed: &[(&str, Tried)]) -> Option<String> {
    let missing = needed.iter().find_map(|(name, tried)| tried.err().map(|errno| (name, errno)));
    missing.map(|(name, errno)| format!("{name}: {}", reason(errno)))
}

/// And in that of the signal pager.
fn signal_obstacle(facts: &Facts) -> Option<String> {
    if facts.has_capability_alone() {
        return Some("memspill has CAP_SYS_PTRACE for itself alone".into());
    }
    let needed = [
        (DISPATCH, facts.dispatch),
        (GUARDS, facts.guard_regions),
        (OWN_MEMORY, facts.own_memory),
        (CHILD_PAGEMAP, facts.child_pagemap),
    ];
    first_missing(&needed)
}

/// Of those that are possible without the kernel pager, the fastest one that there is comes first.
fn possible(facts: &Facts, wanted: Wanted) -> Option<Pager> {
    match wanted {
        Wanted::Kernel => kernel_obstacle(facts).is_none().then_some(Pager::Kernel),
        Wanted::User => user_obstacle(facts).is_none().then_some(Pager::User),
        Wanted::Signal => signal_obstacle(facts).is_none().then_some(Pager::Signal),
        Wanted::Thread => thread_obstacle(facts).is_none().then_some(Pager::Thread),
        Wanted::Auto => [Wanted::Kernel, Wanted::Thread, Wanted::User, Wanted::Signal]
            .into_iter()
            .find_map(|wanted| possible(facts, wanted)),
    }
}

fn pager(facts: &Facts, takes: Option<Pager>, wanted: Wanted) -> Check {
    const NAME: &str = "pager";
    let because = |obstacle: Option<String>| obstacle.map_or(String::new(), |why| format!(" ({why})"));
    let (kernel, user) = (|| because(kernel_obstacle(facts)), || because(user_obstacle(facts)));
    let (thread, signal) = (|| because(thread_obstacle(facts)), || because(signal_obstacle(facts)));
    match (takes, wanted) {
        (Some(Pager::Kernel), _) => ok(NAME, "kernel: faults inside system calls are served as all others"),
        (Some(Pager::Thread), Wanted::Thread) => {
            ok(NAME, "thread: system calls are trapped, and each thread brings its pages on SIGBUS")
        }
        (Some(Pager::Thread), _) => {
            let costs = "a system call costs 0.1 to 3 us more, and shared memory is left alone";
            warn(NAME, format!("thread, for kernel is not possible{}; {costs}", kernel()), None)
        }
        (Some(Pager::User), Wanted::User) => {
            ok(NAME, "user: system calls are trapped, and their memory is brought first")
        }
        (Some(Pager::User), _) => {
            let costs = "a system call costs 0.1 to 3 us more, and shared memory is left alone";
            let why = format!("neither kernel{} nor thread{} is possible", kernel(), thread());
            warn(NAME, format!("user, for {why}; {costs}"), None)
        }
        (Some(Pager::Signal), Wanted::Signal) => {
            ok(NAME, "signal: system calls are trapped, and what is away is brought on SIGSEGV")
        }
        (Some(Pager::Signal), _) => {
            let costs = "a system call costs 0.1 to 3 us more, a fault more than with userfaultfd, and \
                         shared memory is left alone";
            let why = format!("neither kernel{} nor thread{} is possible", kernel(), thread());
            warn(NAME, format!("signal, for {why}; {costs}"), None)
        }
        (None, Wanted::Signal) => fail(NAME, format!("signal is not possible{}", signal()), None),
        (None, Wanted::Kernel) => fail(NAME, format!("kernel is not possible{}", kernel()), None),
        (None, Wanted::User) => fail(NAME, format!("user is not possible{}", user()), None),
        (None, Wanted::Thread) => fail(NAME, format!("thread is not possible{}", thread()), None),
        (None, Wanted::Auto) => {
            let all = format!("kernel{}, thread{} nor signal{}", kernel(), thread(), signal());
            fail(NAME, format!("none is possible: neither {all}"), None)
        }
    }
}

const DISPATCH: &str = "system call traps";

fn dispatch(facts: &Facts) -> Check {
    match facts.dispatch {
        Ok(()) => ok(DISPATCH, "work (Syscall User Dispatch), for --pager=user and signal"),
        Err(libc::EINVAL) => {
            warn(DISPATCH, "no Syscall User Dispatch in this kernel (5.11): no --pager=user or signal", None)
        }
        Err(errno) => warn(DISPATCH, format!("{}: no --pager=user or signal", reason(errno)), None),
    }
}

const OWN_MEMORY: &str = "own memory";

fn own_memory(facts: &Facts) -> Check {
    match facts.own_memory {
        Ok(()) => ok(OWN_MEMORY, "/proc/self/mem writes where there is no access, for --pager=signal"),
        Err(errno) => warn(
            OWN_MEMORY,
            format!(
                "/proc/self/mem does not write where there is no access: {}: no --pager=signal",
                reason(errno)
            ),
            None,
        ),
    }
}

fn judge(facts: &Facts) -> Vec<Check> {
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
    checks.extend([huge_pages(facts), memory(facts), kernel_swap(facts)]);
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

fn uffd_device(facts: &Facts) -> Check {
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
    // A comment for the shell: what is pasted still runs.
    const LASTS: &str = "# until the next boot; a udev rule keeps it";
    let user = facts.device_user_id();
    match errno {
        libc::EACCES if facts.setfacl => {
            Some(facts.as_root(&format!("setfacl -m u:{user}:rw /dev/userfaultfd  {LASTS}")))
        }
        // Without ACL tools: the device is root's alone by default, so that nobody loses it.
        libc::EACCES => Some(facts.as_root(&format!("chown {user} /dev/userfaultfd  {LASTS}"))),
        libc::ENOENT | libc::EPERM if facts.container => {
            Some("start the container with --device=/dev/userfaultfd".into())
        }
        _ if facts.uffd_user_mode.is_ok() => Some(facts.as_root(ALLOW_TO_ALL)),
        // The check of userfaultfd(2) says why.
        _ => None,
    }
}

fn uffd_syscall(facts: &Facts) -> Check {
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

fn uffd_feature_checks(facts: &Facts) -> Vec<Check> {
    // Where there is no userfaultfd, the lines above have said so, and the features cannot be asked.
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
fn event_fork(facts: &Facts, features: u64) -> Check {
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
            if cfg!(target_arch = "x86_64") {
                let found = "needs CAP_SYS_PTRACE: the agents make forks themselves, which takes longer, and \
                    shared memory is not swapped";
                return Check { name: NAME, level: Level::Warn, found: found.into(), fix };
            }
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

const GUARDS: &str = "guard regions";

fn guard_regions(facts: &Facts) -> Check {
    const NAME: &str = GUARDS;
    match facts.guard_regions {
        Ok(()) => ok(NAME, "work: moved pages are dropped without an event each"),
        Err(_) => {
            warn(NAME, "not in this kernel (6.13): each batch of evicted pages costs an event more", None)
        }
    }
}

const CHILD_PAGEMAP: &str = "child's pagemap";

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

const CHILD_MEMORY: &str = "child's memory";

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

/// Not needed: a program runs without, and its shared memory is left alone or only counted.
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
                "{}: needs CAP_CHECKPOINT_RESTORE; without it shared memory is neither counted nor swapped",
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
    let elsewhere = || Some("choose another: --swap-dir DIR, or MEMSPILL_DIR".to_owned());
    match dir.nameless {
        Ok(()) => {}
        // The file system has no such files; a named one, removed at once, does the same.
        Err(libc::EOPNOTSUPP | libc::EISDIR) => {
            return warn(NAME, format!("{path}: no O_TMPFILE on this file system"), elsewhere());
        }
        Err(errno) => {
            return warn(NAME, format!("{path}: user {}: {}", facts.user_id, reason(errno)), elsewhere());
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

// -----------------------------------------------------------------------------------------------------------
// Rendering
// -----------------------------------------------------------------------------------------------------------

const LEVEL_COLUMNS: usize = 4;

/// Aligned columns, the fix below its check, and a last line that says what it comes to.
fn render(checks: &[Check], colour: bool) -> String {
    let name_columns = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let level = level_word(check.level, colour);
        let _ = writeln!(text, "{level}  {:name_columns$}  {}", check.name, check.found);
        if let Some(fix) = &check.fix {
            let _ = writeln!(text, "{:1$}fix: {fix}", "", LEVEL_COLUMNS + 2 + name_columns + 2);
        }
    }
    let _ = writeln!(text, "\n{}", summary(checks));
    text
}

fn level_word(level: Level, colour: bool) -> String {
    let (word, code) = match level {
        Level::Ok => ("ok", 32),
        Level::Warn => ("warn", 33),
        Level::Fail => ("FAIL", 31),
    };
    // Padded before it is coloured: the codes have no width.
    let word = format!("{word:LEVEL_COLUMNS$}");
    if colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word }
}

fn summary(checks: &[Check]) -> String {
    let count = |level| checks.iter().filter(|check| check.level == level).count();
    match (count(Level::Fail), count(Level::Warn)) {
        (0, 0) => "memspill run can start here.".to_owned(),
        (0, warnings) => format!("memspill run can start here; {} marked warn.", lines(warnings)),
        (failures, _) => format!("memspill run cannot start here: mend the {} marked FAIL.", lines(failures)),
    }
}

fn lines(count: usize) -> String {
    if count == 1 { "1 line".to_owned() } else { format!("{count} lines") }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            own_memory: Ok(()),
            own_mappings: Ok(()),
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
            ..good()
        }
    }

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
    fn a_plain_user_gets_the_thread_pager() {
        let names = |facts: &Facts, wanted, level| -> Vec<&str> {
            let checks = judge_for(facts, wanted);
            checks.iter().filter(|check| check.level == level).map(|check| check.name).collect()
        };
        let facts = plain_user();
        let line = &judge_for(&facts, Wanted::Auto)[0];
        assert!(line.found.starts_with("thread, for kernel is not possible (/dev/userfaultfd: user 1000"));
        assert!(names(&facts, Wanted::Auto, Level::Fail).is_empty());
        assert_eq!(possible(&facts, Wanted::Auto), Some(Pager::Thread));
        let fails = names(&facts, Wanted::Kernel, Level::Fail);
        assert_eq!(fails, ["pager", "/dev/userfaultfd"]);
        // Who may have the kernel pager gets it, and the other one where he asks for it.
        assert_eq!(possible(&good(), Wanted::Auto), Some(Pager::Kernel));
        assert_eq!(possible(&good(), Wanted::User), Some(Pager::User));
        // Neither.
        let old = Facts { dispatch: Err(libc::EINVAL), ..facts.clone() };
        let line = &judge_for(&old, Wanted::Auto)[0];
        assert!(line.level == Level::Fail && line.found.contains(", thread (system call traps"), "{line:?}");
        let unlocked = Facts { keys_are_locked: false, ..plain_user() };
        assert!(check(&unlocked, "encryption").fix.unwrap().contains("ulimit -l"));
        let slow = Facts { cpu_does_aes: false, ..good() };
        assert!(check(&slow, "encryption").fix.unwrap().contains("--encrypt=off"));
        let strict = Facts { child_memory: Err(libc::EPERM), ptrace_scope: Some(2), ..facts };
        // Which does not read other processes' memory.
        assert_eq!(possible(&strict, Wanted::Auto), Some(Pager::Thread));
        assert!(names(&strict, Wanted::Auto, Level::Fail).is_empty());
        // The user pager is left where a process may not write to its own memory by /proc.
        let no_own = Facts { own_memory: Err(libc::EIO), ..plain_user() };
        let line = &judge_for(&no_own, Wanted::Auto)[0];
        assert_eq!(possible(&no_own, Wanted::Auto), Some(Pager::User));
        assert!(line.found.contains(&format!("nor thread ({OWN_MEMORY}")), "{line:?}");
        assert_eq!(names(&no_own, Wanted::Thread, Level::Fail)[0], "pager");
        let old = Facts { own_mappings: Err(libc::ENOTTY), ..plain_user() };
        assert_eq!(possible(&old, Wanted::Auto), Some(Pager::User));
        assert_eq!(names(&strict, Wanted::User, Level::Fail), ["pager", "child's memory"]);
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
        assert_eq!(fails, 1, "the device; the capability is missed by warnings only");
        assert!(
            check(&facts, "userfaultfd(2)")
                .fix
                .unwrap()
                .contains("sudo sysctl -w vm.unprivileged_userfaultfd=1")
        );

        let without_tool = Facts { setfacl: false, ..facts };
        let fix = check(&without_tool, "/dev/userfaultfd").fix.unwrap();
        assert!(fix.starts_with("sudo chown 1000 /dev/userfaultfd "), "{fix}");
    }

    /// Either way to a full userfaultfd is enough.
    #[test]
    fn the_device_or_the_system_call() {
        let plain_user =
            || Facts { event_fork: Ok(()), shared_memory: Ok(()), file_watch: Ok(()), ..plain_user() };
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
        assert_eq!(fork.level, Level::Warn, "the agents make the forks");
        let fix = fork.fix.unwrap();
        assert!(
            fix.starts_with("sudo setpriv --reuid $USER ")
                && fix.contains("--ambient-caps +sys_ptrace memspill")
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
        // There the signal pager serves, and what it lacks elsewhere is named.
        let fails = |facts: &Facts| {
            let checks = judge_for(facts, Wanted::Auto);
            checks.into_iter().filter(|check| check.level == Level::Fail).map(|check| check.found).collect()
        };
        assert_eq!((possible(&facts, Wanted::Auto), fails(&facts)), (Some(Pager::Signal), Vec::new()));
        for (lacks, name) in [
            (Facts { dispatch: Err(libc::EINVAL), ..facts.clone() }, DISPATCH),
            (Facts { guard_regions: Err(libc::EINVAL), ..facts.clone() }, GUARDS),
            (Facts { own_memory: Err(libc::EIO), ..facts.clone() }, OWN_MEMORY),
            (Facts { child_pagemap: Err(libc::EACCES), ..facts.clone() }, CHILD_PAGEMAP),
        ] {
            assert_eq!(possible(&lacks, Wanted::Auto), None);
            assert!(fails(&lacks)[0].contains(&format!("nor signal ({name}")), "{:?}", fails(&lacks));
        }
    }

    #[test]
    fn kernels() {
        let release = |release: &str, features| {
            check(&Facts { kernel_release: release.into(), uffd_features: features, ..good() }, "kernel")
                .level
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
            (|dir| dir.nameless = Err(libc::EACCES), "permission denied"),
        ] {
            let (level, found) = level(change);
            assert!(level == Level::Warn && found.contains(words), "{found}");
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
        for wanted in [Wanted::Auto, Wanted::Kernel, Wanted::User, Wanted::Signal, Wanted::Thread] {
            let blockers = choose(wanted).err().unwrap_or_default();
            assert!(blockers.iter().all(|check| check.level == Level::Fail));
        }
    }
}
