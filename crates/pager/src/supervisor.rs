//! The supervisor: set up, start the target, wait, end.
//!
//! ```text
//!   guardian ─ signals ─ door, swap, threads ─ target (LD_PRELOAD, PDEATHSIG) ─ wait: SIGCHLD, signals, a verdict
//!   the command ends ─ wait for what it left behind ─ exit with its code
//! ```
//!
//! What the main thread waits for, and how long: the command's exec (spawn); processes of the tree, looked at every
//! half second, and at the end, with the guardian, END_TREE; writes under way to swap files that have a name (the
//! disk). It waits for no other thread. A second SIGINT or SIGTERM ends each of these waits (`stop.rs`).
//!
//! The tree lives no longer than the supervisor: by PDEATHSIG (the target), by its agents' sockets (every process with an
//! agent), by the guardian (all the rest).

use crate::fault::FaultThread;
use crate::groups::{GroupRules, Membership};
use crate::handshake::{self, Door};
use crate::limits::{self, Limits};
use crate::operator::Operator;
use crate::pager::{Pager, PagerCpu, Settings};
use crate::stop::Stop;
use memspill_engine::engine::{Device, Engine};
use memspill_engine::group::GroupConfig;
use memspill_engine::tuning::Tuning;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub struct Config {
    pub command: Vec<OsString>,
    pub devices: Vec<Device>,
    pub tuning: Tuning,
    pub settings: Settings,
    pub swap_max_pages: u64,
    pub groups: GroupRules,
    pub door: Door,
    pub layout: Layout,
    /// What the target is to have.
    pub limits: Limits,
    pub operator: Arc<dyn Operator>,
}

/// How a run ended.
pub struct Ended {
    pub exit_code: i32,
    pub pager: Arc<Pager>,
}

/// Threads that serve faults and threads that reclaim; each has a queue of every backing, pagers first, and the last
/// queue is swapoff's.
#[derive(Clone, Copy)]
pub struct Layout {
    pub pagers: u32,
    pub reclaimers: u32,
}

impl Layout {
    /// One pager per CPU that we may run on, up to a bound: every pager wakes for every fault.
    pub fn of_this_machine() -> Layout {
        let cpus = allowed_cpus().len() as u32;
        Layout { pagers: cpus.clamp(1, 8), reclaimers: cpus.clamp(1, 4) }
    }
    pub fn queues(&self) -> u32 {
        self.pagers + self.reclaimers + 1
    }
}

/// memspill itself failed, as timeout(1) has it.
const EXIT_OWN_FAILURE: i32 = 125;

/// Killed processes end within this time, or are not waited for.
const END_TREE: Duration = Duration::from_secs(2);

/// Signals that are passed on to the target when they were sent to us (a terminal sends them to both by itself).
const FORWARDED: [i32; 7] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
];

pub fn run(config: Config) -> io::Result<Ended> {
    proc_is_ours()?;
    not_inside_a_run()?;
    let (forwarded, children) = signals::block(&FORWARDED)?;
    signals::become_subreaper()?;
    let core = signals::no_core();
    let address = config.door.address();
    assert_eq!(std::fs::read_dir("/proc/self/task")?.count(), 1, "the guardian is cloned before any thread");
    // Before the guardian, which shares our descriptors: to make room for a high number in a table that is shared takes 8 ms.
    let agent = publish_agent().map_err(|e| limits::explained("cannot publish the agent", e))?;
    let guardian = crate::guardian::start(&address).map_err(|e| limits::explained("cannot start the guardian", e))?;
    let given = Given { limits: config.limits, core, mask: forwarded.before() };
    let command = config.command.clone();
    let (pager, stop) =
        set_up(config, forwarded, guardian).inspect_err(|_| signals::kill_and_wait(guardian, END_TREE))?;
    let started = pager.socket.target.start(|| spawn(&command, &agent, &address, given));
    let ended = started.map(|pid| {
        stop.set_command(pid);
        wait(&pager, pid, guardian, &children, &stop)
    });
    // A run may be over before the first interval is.
    if pager.settings.check && pager.verdict.lock().expect("verdict").is_none() {
        pager.quiet.check(&pager);
        if pager.settings.verbose {
            eprintln!("memspill: --check: {} checks, nothing found", pager.quiet.checks.load(Ordering::Relaxed));
        }
    }
    pager.stopping.store(true, Ordering::Relaxed);
    // Where nobody is left, there is nothing for it to guard, and our readers wait for the descriptors that it shares.
    // Else it goes on killing when we are gone.
    if !matches!(ended, Ok(Left { nobody: false, .. })) {
        signals::kill_and_wait(guardian, END_TREE);
    }
    crate::errors::tell(&pager);
    // By hand: our threads still own the devices when the process ends.
    pager.engine.devices.ever().for_each(|device| device.backing.end());
    let exit_code = match (stop.ended(), ended) {
        (Some(by_signal), _) => by_signal,
        (None, ended) => ended?.exit_code,
    };
    Ok(Ended { exit_code, pager })
}

/// All that the target needs before it starts.
fn set_up(config: Config, forwarded: signals::Set, guardian: u32) -> io::Result<(Arc<Pager>, Arc<Stop>)> {
    let operator = config.operator.clone();
    let no_thread = |e| limits::explained("cannot start a thread", e);
    let stop = Stop::start(forwarded, guardian).map_err(no_thread)?;
    let pager = build(config).map_err(|e| limits::explained("cannot watch for faults", e))?;
    crate::panics::install(&pager);
    start_threads(&pager, operator).map_err(no_thread)?;
    Ok((pager, stop))
}

/// Processes are looked at by their number in our own pid namespace, and the loader opens the agent by ours.
fn proc_is_ours() -> io::Result<()> {
    let me = std::fs::read_link("/proc/self")?;
    if me.as_os_str().to_str() == Some(&std::process::id().to_string()) {
        return Ok(());
    }
    Err(io::Error::other("/proc is that of another pid namespace: mount one for this namespace"))
}

/// What this run manages would be managed by the other one too, this process among it: no figure of either would hold.
fn not_inside_a_run() -> io::Result<()> {
    match std::fs::read_to_string("/proc/self/maps")?.contains("/memfd:memspill-agent") {
        false => Ok(()),
        true => Err(io::Error::other(
            "inside another run of memspill: a run within a run would hold neither budget; limit a part of that one with --group",
        )),
    }
}

fn build(config: Config) -> io::Result<Arc<Pager>> {
    let Config { devices, tuning, settings, door, layout, groups: rules, swap_max_pages, .. } = config;
    let allowed = allowed_cpus();
    let mut cpus = Vec::new();
    for queue in 0..layout.pagers {
        let poke = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)?;
        let read_fds: Vec<i32> = devices
            .iter()
            .filter_map(|d| d.backing.poll_fd(memspill_engine::backing::QueueId(queue)))
            .collect();
        let epoll = crate::fault::epoll_of(&poke, &read_fds)?;
        cpus.push(PagerCpu {
            cpu: allowed[queue as usize % allowed.len()],
            epoll,
            poke,
            waiting: Default::default(),
            tries_again: Default::default(),
            busy_since_us: Default::default(),
        });
    }
    let mut groups = vec![GroupConfig { swap_max_pages, ..GroupConfig::root(settings.memory_max_bytes) }];
    groups.extend(rules.groups.iter().cloned());
    let engine = Engine::with_groups(devices, &groups, tuning);
    Ok(Arc::new(Pager::new(engine, cpus, layout.reclaimers, settings, door, Membership::new(&rules))))
}

fn start_threads(pager: &Arc<Pager>, operator: Arc<dyn Operator>) -> io::Result<()> {
    for index in 0..pager.cpus.len() as u32 {
        let cpu = pager.cpus[index as usize].cpu;
        spawn_thread(pager, "memspill-pager", move |pager| {
            signals::pin(cpu);
            FaultThread::new(pager, index).run();
        })?;
    }
    for index in 0..pager.reclaimers {
        spawn_thread(pager, "memspill-reclaim", move |pager| crate::evict::run(pager, index))?;
    }
    spawn_thread(pager, "memspill-monitor", crate::growth::run)?;
    spawn_thread(pager, "memspill-ctl", move |pager| crate::operator::run(pager, &operator))?;
    spawn_thread(pager, "memspill-door", handshake::run)
}

fn spawn_thread(
    pager: &Arc<Pager>,
    name: &str,
    body: impl FnOnce(&Arc<Pager>) + Send + 'static,
) -> io::Result<()> {
    let pager = pager.clone();
    std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(move || body(&pager))?;
    Ok(())
}

/// The agent as a sealed memfd. Programs open it through our /proc entry for as long as we live; nothing is on disk.
///
/// In the /proc of another pid namespace the same path means whatever file the process with that number has open there.
/// Programs have low numbers for theirs, so ours is a high one that is drawn: the loader finds nothing, and says so.
/// (Whoever wants to be found can see to it: he reads the number in the environment of a program there. What he gains
/// is what root in that namespace may do there.)
fn publish_agent() -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags};
    let fd = rustix::fs::memfd_create("memspill-agent", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut rest = memspill_agent::AGENT_SO;
    while !rest.is_empty() {
        let n = rustix::io::write(&fd, rest)?;
        rest = &rest[n..];
    }
    rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    rustix::fs::fchmod(&fd, rustix::fs::Mode::from_raw_mode(0o555))?;
    high_number(fd)
}

/// The same descriptor in the upper half of what the limit of open files, or a table of moderate size, has room for.
fn high_number(fd: OwnedFd) -> io::Result<OwnedFd> {
    const NUMBERS_MAX: u64 = 1 << 14;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let half = limit.min(NUMBERS_MAX) / 2;
    let mut drawn = [0; 8];
    rustix::rand::getrandom(&mut drawn, rustix::rand::GetRandomFlags::empty())?;
    let number = half + u64::from_ne_bytes(drawn) % half.max(1);
    // No room there: then it has a low one.
    Ok(rustix::io::fcntl_dupfd_cloexec(&fd, number as i32).unwrap_or(fd))
}

/// What we were started with, and the target is to have.
#[derive(Clone, Copy)]
pub(crate) struct Given {
    limits: Limits,
    core: libc::rlimit,
    mask: libc::sigset_t,
}

fn spawn(command: &[OsString], agent: &OwnedFd, address: &str, given: Given) -> io::Result<Child> {
    let path = format!("/proc/{}/fd/{}", std::process::id(), agent.as_raw_fd());
    let top_pad = format!("glibc.malloc.top_pad={}", given.limits.top_pad_bytes());
    let mut child = Command::new(&command[0]);
    child
        .args(&command[1..])
        .env("LD_PRELOAD", joined(&path, std::env::var_os("LD_PRELOAD"), ":"))
        .env(memspill_agent::protocol::ENV_NAME, address)
        // A dynamic AddressSanitizer ends a program in which another library comes before it.
        .env("ASAN_OPTIONS", joined("verify_asan_link_order=0", std::env::var_os("ASAN_OPTIONS"), ":"))
        // malloc asks for big steps, so that new heap is registered before it is used, and seldom.
        .env("GLIBC_TUNABLES", joined(&top_pad, std::env::var_os("GLIBC_TUNABLES"), ":"));
    signals::on_exec(&mut child, given);
    child.spawn().map_err(|e| match limits::remedy(&e) {
        Some(_) => limits::explained("cannot start the command", e),
        None => e,
    })
}

fn joined(first: &str, rest: Option<OsString>, separator: &str) -> OsString {
    let mut value = OsString::from(first);
    if let Some(rest) = rest.filter(|r| !r.is_empty()) {
        value.push(OsStr::new(separator));
        value.push(rest);
    }
    value
}

/// Wait for the target and for all that it leaves behind; forward signals; carry out a verdict.
fn wait(pager: &Arc<Pager>, pid: u32, guardian: u32, children: &signals::Set, stop: &Stop) -> Left {
    let target = &pager.socket.target;
    let mut exit_code = None;
    let mut told = false;
    loop {
        for (who, status) in reap() {
            if who == pid {
                let judged = target.judge_exit(code_of(status), status.signal().is_some());
                exit_code = Some(judged.unwrap_or_else(|reason| {
                    pager.give_up(EXIT_OWN_FAILURE, reason);
                    EXIT_OWN_FAILURE
                }));
            }
            if who == guardian {
                pager.give_up(EXIT_OWN_FAILURE, "the guardian was killed: the tree ends with it".into());
            }
        }
        if exit_code.is_none()
            && let Some(reason) = target.unmanaged()
        {
            pager.give_up(EXIT_OWN_FAILURE, reason);
        }
        if let Some(exit_code) = stop.ended() {
            return end_tree(pager, guardian, exit_code);
        }
        // After the reaping: who gives up may be the reason for which a process has ended.
        if let Some(verdict) = pager.verdict.lock().expect("verdict").clone() {
            eprintln!("memspill: {}", verdict.message);
            return end_tree(pager, guardian, verdict.exit_code);
        }
        if let Some(code) = exit_code {
            let below = crate::proc::descendants(std::process::id());
            let left = below.iter().filter(|pid| **pid != guardian).count();
            if left == 0 {
                return Left { exit_code: code, nobody: true };
            }
            if pager.settings.verbose && !told {
                eprintln!("memspill: the command has ended; waiting for {left} processes that it left behind");
                told = true;
            }
        }
        children.wait(target.pause());
        for (signal, from_user) in stop.arrived() {
            match (signal, exit_code) {
                // The command is gone already: what it left behind goes too.
                (libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT, Some(code)) => {
                    return end_tree(pager, guardian, code);
                }
                (signal, None) if from_user => signals::send(pid, signal),
                _ => {}
            }
        }
    }
}

/// How the main thread leaves the tree.
struct Left {
    exit_code: i32,
    /// All have ended.
    nobody: bool,
}

/// Kill everything below us, the guardian excepted (it goes when we go).
fn end_tree(pager: &Arc<Pager>, guardian: u32, exit_code: i32) -> Left {
    pager.stopping.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    let mut left = signals::kill_tree(guardian);
    while left > 0 && begun.elapsed() < END_TREE {
        reap();
        std::thread::sleep(Duration::from_millis(2));
        left = signals::kill_tree(guardian);
    }
    reap();
    if left > 0 {
        let seconds = END_TREE.as_secs();
        let why = "they are frozen, or wait in the kernel";
        eprintln!("memspill: {left} killed processes have not ended within {seconds} s: {why}");
    }
    Left { exit_code, nobody: left == 0 }
}

fn reap() -> Vec<(u32, ExitStatus)> {
    let mut ended = Vec::new();
    while let Some((pid, status)) = signals::wait_any() {
        ended.push((pid, ExitStatus::from_raw(status)));
    }
    ended
}

/// The shell's convention.
fn code_of(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// CPUs that this process may run on.
pub fn allowed_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    let cpus: Vec<usize> = set
        .map(|set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
        .unwrap_or_default();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// For a command that asks a run: a ^C is looked at instead of ending it, so that it can say what has become of its request.
pub struct Interrupts(signals::Set);

impl Interrupts {
    /// To be called before there are other threads.
    pub fn block() -> io::Result<Interrupts> {
        let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
        signals::block(&signals).map(|(signals, _)| Interrupts(signals))
    }

    /// Has one come?
    pub fn came(&self) -> bool {
        self.0.wait(Duration::ZERO).is_some()
    }
}

/// Signals and the few process calls that have no safe wrapper.
pub(crate) mod signals {
    #![allow(unsafe_code, reason = "signal sets, waitpid and prctl, with values on our own stack")]
    use super::Given;
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::time::Duration;

    /// The signals that are waited for, and those that were blocked before.
    pub struct Set {
        awaited: libc::sigset_t,
        before: libc::sigset_t,
    }

    /// Block these signals, and SIGCHLD. Threads started later inherit that. `Set::wait` of the one set delivers these
    /// signals, that of the other one SIGCHLD.
    pub fn block(signals: &[i32]) -> io::Result<(Set, Set)> {
        Ok((block_set(signals)?, block_set(&[libc::SIGCHLD])?))
    }

    fn block_set(signals: &[i32]) -> io::Result<Set> {
        // SAFETY: the sets are initialised before use, and live on our stack.
        unsafe {
            let (mut awaited, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&mut awaited);
            for signal in signals {
                libc::sigaddset(&mut awaited, *signal);
            }
            match libc::sigprocmask(libc::SIG_BLOCK, &awaited, &mut before) {
                0 => Ok(Set { awaited, before }),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }

    /// SIGKILL for everything below us but the guardian; returns to how many.
    pub fn kill_tree(guardian: u32) -> usize {
        let tree = crate::proc::descendants(std::process::id());
        tree.into_iter().filter(|pid| *pid != guardian).map(|pid| send(pid, libc::SIGKILL)).count()
    }

    /// Is our terminal handed over to a line editor, or something like it?
    pub fn at_a_prompt() -> bool {
        let Ok(terminal) = std::fs::File::open("/dev/tty") else { return false };
        // SAFETY: the struct lives across the call.
        unsafe {
            let mut modes: libc::termios = std::mem::zeroed();
            libc::tcgetattr(terminal.as_raw_fd(), &mut modes) == 0 && modes.c_lflag & libc::ICANON == 0
        }
    }

    /// Without anything that could wait: no handlers, no buffers.
    pub fn exit_at_once(code: i32) -> ! {
        // SAFETY: ends the process.
        unsafe { libc::_exit(code) }
    }

    impl Set {
        pub fn before(&self) -> libc::sigset_t {
            self.before
        }

        /// The next signal, and whether a process sent it (and not the terminal).
        pub fn wait(&self, timeout: Duration) -> Option<(i32, bool)> {
            let timeout =
                libc::timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos() as i64 };
            // SAFETY: set, info and timeout live across the call.
            unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                let signal = libc::sigtimedwait(&self.awaited, &mut info, &timeout);
                (signal > 0).then_some((signal, info.si_code <= 0))
            }
        }
    }

    /// A child of ours. If it does not end in time it ends when it can.
    pub fn kill_and_wait(pid: u32, limit: Duration) {
        send(pid, libc::SIGKILL);
        let begun = std::time::Instant::now();
        // SAFETY: no status is wanted.
        let lives = || unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), libc::WNOHANG) } == 0;
        while lives() && begun.elapsed() < limit {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    pub fn become_subreaper() -> io::Result<()> {
        // SAFETY: constant arguments.
        match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Our memory holds everybody's: no core of it, to a file or to a program (which only the limit of 1 stops).
    ///
    /// Nor may another process of our user look into it. Not so where we are not root: to others of our user, the
    /// loader of each program among them, our /proc entries would be closed, and with them the agent.
    pub fn no_core() -> libc::rlimit {
        // SAFETY: integers only.
        unsafe {
            if libc::geteuid() == 0 {
                libc::prctl(libc::PR_SET_DUMPABLE, 0);
            }
        }
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the struct lives across the calls. If they fail, the limit stays as it was.
        unsafe {
            libc::getrlimit(libc::RLIMIT_CORE, &mut before);
            libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: before.rlim_max.min(1), ..before });
        }
        before
    }

    /// In the target before exec: die with us, and get back the signal mask and limits that we were started with.
    pub fn on_exec(command: &mut Command, given: Given) {
        let supervisor = std::process::id();
        // SAFETY: only async-signal-safe calls: prctl, getppid, sigprocmask, setrlimit, signal, _exit.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() as u32 != supervisor {
                    libc::_exit(125);
                }
                libc::sigprocmask(libc::SIG_SETMASK, &given.mask, std::ptr::null_mut());
                given.limits.restore();
                libc::setrlimit(libc::RLIMIT_CORE, &given.core);
                Ok(())
            });
        }
    }

    pub fn send(pid: u32, signal: i32) {
        // SAFETY: a plain kill.
        unsafe { libc::kill(pid as i32, signal) };
    }

    pub fn wait_any() -> Option<(u32, i32)> {
        let mut status = 0;
        // SAFETY: status lives across the call.
        let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
        (pid > 0).then_some((pid as u32, status))
    }

    /// Pin the calling thread.
    pub fn pin(cpu: usize) {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        // Only a hint: an unpinned pager is slower, not wrong.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}
