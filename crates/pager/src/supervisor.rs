//! The supervisor: set up, start the target, wait, end.
//!
//! ```text
//!   guardian ─ signals ─ door, swap, threads ─ target (LD_PRELOAD, PDEATHSIG) ─ wait: SIGCHLD, a verdict
//!   the command ends ─ wait for what it left behind ─ exit with its code
//!   attached: the agent is put into a process that runs ─ wait: its end, a verdict, somebody wants it let go
//! ```
//!
//! What the main thread waits for, and how long: the command's exec (spawn); processes of the tree, looked at
//! every half second, and at the end, with the guardian, TREE_ENDS; the steps of a process that the agent is
//! planted into (`plant/`); writes under way to swap files that have a name (the disk). It waits for no other
//! thread. A second SIGINT or SIGTERM ends each of these waits (`second_signal.rs`).
//!
//! The tree lives no longer than the supervisor: by PDEATHSIG (the target), by its agents' sockets (every
//! process with an agent), by the guardian (all the rest).

use crate::advice;
use crate::attach::Running;
use crate::ctl::budget;
use crate::ctl::host::Operator;
use crate::ctl::operator;
use crate::detach;
use crate::door::porter;
use crate::door::socket::Door;
use crate::exit;
use crate::faults::files;
use crate::faults::thread::FaultThread;
use crate::guardian::{self, Known};
use crate::limits::{self, Limits};
use crate::monitor::{errors, rounds};
use crate::opened;
use crate::plant::{self, Tracer};
use crate::proc::with_agent;
use crate::process::standstill;
use crate::published::Published;
use crate::reclaim::{evict, give_back};
use crate::run::cpus::PagerCpu;
use crate::run::detach::Stage;
use crate::run::files::Files;
use crate::run::record::Recording;
use crate::run::sampling::Sampling;
use crate::run::{Layout, Run, Settings, Shared};
use crate::second_signal::SecondSignal;
use crate::signals::{self, Inherited, Waited};
use crate::swapped_files::SwappedFiles;
use crate::times::{ATTACHED_ENDS, COMMAND_LOOK, DETACH_SAYS, KILL_STEP, SIGNALS_SAME, TREE_ENDS};
use memspill_common::protocol::{ENV_FILE, ENV_NAME, is_agent};
use memspill_engine::backing::{Chore, QueueId};
use memspill_engine::devices::Device;
use memspill_engine::engine::Engine;
use memspill_engine::group::GroupConfig;
use memspill_engine::tuning::Tuning;
use memspill_uffd::fanotify::Watch;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The program that is to have a budget.
pub enum Root {
    /// It is started. `has_loader`: it has one, which follows LD_PRELOAD.
    Command {
        words: Vec<OsString>,
        has_loader: bool,
    },
    Running(Running),
}

pub struct Config {
    pub root: Root,
    pub devices: Vec<Device>,
    pub tuning: Tuning,
    pub settings: Settings,
    pub swap_max_pages: u64,
    pub groups: Vec<GroupConfig>,
    pub door: Door,
    pub layout: Layout,
    /// The limits that the target is to have.
    pub limits: Limits,
    pub operator: Arc<dyn Operator>,
    pub recording: Recording,
    pub sampling: Sampling,
}

/// How a run ended.
pub struct Ended {
    pub exit_code: i32,
    pub run: Arc<Run>,
}

/// Signals that are passed on to the target when they were sent to us (a terminal sends them to both by
/// itself).
const FORWARDED: [i32; 7] =
    [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH];

pub fn supervise(config: Config) -> io::Result<Ended> {
    proc_is_ours()?;
    not_inside_a_run()?;
    let (forwarded, children) = signals::block(&FORWARDED)?;
    let ignores_children = signals::keep_statuses();
    signals::become_subreaper()?;
    let core = signals::no_core(!config.door.is_by_agents());
    let address = config.door.address();
    assert_eq!(std::fs::read_dir("/proc/self/task")?.count(), 1, "the guardian is cloned before any thread");
    // Before the guardian, which shares our descriptors: to make room for a high number in a table that is
    // shared takes 8 ms.
    let agent = Published::new().map_err(|e| limits::explained("cannot publish the agent", e))?;
    let held =
        Arc::new(SwappedFiles::new().map_err(|e| limits::explained("cannot make a list of files", e))?);
    let inodes = agent.inodes();
    let known = match &config.root {
        Root::Command { .. } => Known::Token(&address),
        Root::Running(_) => Known::Agent(&inodes),
    };
    let guardian = guardian::start(&known, &held, agent.file())
        .map_err(|e| limits::explained("cannot start the guardian", e))?;
    let inherited = Inherited { limits: config.limits, core, mask: forwarded.before(), ignores_children };
    let (set_up, root) = set_up(config, forwarded, guardian, held)
        .inspect_err(|_| signals::kill_and_wait(guardian, TREE_ENDS))?;
    let SetUp { run, door, second_signal, .. } = &set_up;
    let ended = match root {
        Root::Command { words, has_loader } => {
            let started = door.target.start(|| spawn(&words, has_loader, &agent, &address, inherited));
            started.map(|pid| {
                second_signal.set_command(pid);
                wait(&set_up, &agent, pid, guardian, &children)
            })
        }
        Root::Running(running) => take_in(&set_up, &agent, &address, &running)
            .map(|()| wait_attached(&set_up, &agent, &running, guardian, &children)),
    };
    check_at_the_end(run);
    // Files that others may still read are given back before the guardian goes: if we are killed meanwhile,
    // it empties the rest.
    let lost = give_back::end(run);
    run.stop();
    // If nobody is left, there is nothing for it to guard, and our readers wait for the descriptors that it
    // shares. Else it goes on killing when we are gone.
    if !matches!(ended, Ok(Left { nobody: false, .. })) {
        signals::kill_and_wait(guardian, TREE_ENDS);
    }
    errors::tell_device_errors(&run.engine);
    // By hand: our threads still own the devices when the process ends.
    run.engine.devices().ever_added().for_each(|device| _ = device.backing.housekeep(Chore::EndRun));
    let exit_code = match (second_signal.ended(), ended) {
        (Some(by_signal), _) => by_signal,
        (None, ended) => lost.unwrap_or(ended?.exit_code),
    };
    Ok(Ended { exit_code, run: run.clone() })
}

/// A run may be over before the first interval is.
fn check_at_the_end(run: &Run) {
    if run.settings.check && run.verdict().is_none() {
        run.quiet.check(&run.engine);
        if run.settings.verbose {
            let checks = run.quiet.checks.load(Ordering::Relaxed);
            eprintln!("memspill: --check: {checks} checks, nothing found");
        }
    }
}

/// What the main thread has of a run.
struct SetUp {
    run: Arc<Run>,
    door: Arc<Door>,
    second_signal: Arc<SecondSignal>,
    operator: Arc<dyn Operator>,
}

/// All that the target needs before it starts.
fn set_up(
    config: Config,
    forwarded: signals::SignalSet,
    guardian: u32,
    held: Arc<SwappedFiles>,
) -> io::Result<(SetUp, Root)> {
    let no_thread = |e| limits::explained("cannot start a thread", e);
    let Config {
        root: program,
        devices,
        tuning,
        settings,
        layout,
        groups,
        swap_max_pages,
        door,
        operator,
        recording,
        sampling,
        ..
    } = config;
    let is_started = matches!(program, Root::Command { .. });
    let second_signal = SecondSignal::start(forwarded, guardian, is_started).map_err(no_thread)?;
    let cpus = pager_cpus(layout, &devices).map_err(|e| limits::explained("cannot watch for faults", e))?;
    let root = GroupConfig { swap_max_pages, ..GroupConfig::root(settings.memory_max_bytes) };
    let groups: Vec<GroupConfig> = std::iter::once(root).chain(groups).collect();
    let engine = Engine::with_groups(devices, &groups, tuning);
    let files = Files::new(watch_of(&settings), held, guardian);
    let run = Arc::new(Run::new(engine, cpus, layout, settings, files, recording, sampling));
    let door = Arc::new(door);
    crate::panics::install(&run);
    Limits::leave_room_for_processes()
        .map_err(|e| limits::explained("no descriptors are left for the command's processes", e))?;
    start_threads(&run, &door, operator.clone()).map_err(no_thread)?;
    Ok((SetUp { run, door, second_signal, operator }, program))
}

/// Watches for processes that open files of shared memory. None: they are left alone.
fn watch_of(settings: &Settings) -> Option<Watch> {
    let watch = (settings.shared == Shared::All).then(Watch::new)?;
    let tell = |e: &io::Error| {
        eprintln!("memspill: --shared=all: files are left alone: fanotify needs CAP_SYS_ADMIN ({e})");
    };
    watch.inspect_err(tell).ok()
}

/// Processes are looked at by their number in our own pid namespace, and the loader opens the agent by ours.
fn proc_is_ours() -> io::Result<()> {
    let me = std::fs::read_link("/proc/self")?;
    if me.as_os_str().to_str() == Some(&std::process::id().to_string()) {
        return Ok(());
    }
    Err(io::Error::other("/proc is that of another pid namespace: mount one for this namespace"))
}

/// What this run manages would be managed by the other one too, this process among it: no figure of either
/// would hold.
fn not_inside_a_run() -> io::Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps");
    let maps = maps.map_err(|e| limits::explained("cannot read which agent is loaded", e))?;
    let is_agent = |line: &str| line.splitn(6, ' ').nth(5).is_some_and(|file| is_agent(file.trim()));
    match maps.lines().any(is_agent) {
        false => Ok(()),
        true => Err(io::Error::other(
            "inside another run of memspill: a run within a run would hold neither budget; \
             limit a part of that one with --group",
        )),
    }
}

fn pager_cpus(layout: Layout, devices: &[Device]) -> io::Result<Vec<PagerCpu>> {
    let allowed = allowed_cpus();
    let new = |index: u32| {
        let cpu = PagerCpu::new(allowed[index as usize % allowed.len()])?;
        devices.iter().try_for_each(|device| cpu.watch_reads(device, QueueId(index)))?;
        Ok(cpu)
    };
    (0..layout.pagers).map(new).collect()
}

fn start_threads(run: &Arc<Run>, door: &Arc<Door>, operator: Arc<dyn Operator>) -> io::Result<()> {
    for index in 0..run.layout.pagers {
        let (run, cpu) = (run.clone(), run.cpus[index as usize].cpu);
        spawn_thread("memspill-pager", move || {
            signals::pin(cpu);
            FaultThread::new(&run, index).serve_all();
        })?;
    }
    for index in 0..run.layout.reclaimers {
        let run = run.clone();
        spawn_thread("memspill-reclaim", move || evict::reclaim(&run, index))?;
    }
    for index in 0..run.layout.advisers {
        let run = run.clone();
        spawn_thread("memspill-advice", move || advice::follow(&run, index))?;
    }
    let monitored = run.clone();
    spawn_thread("memspill-monitor", move || rounds::keep_watch(&monitored))?;
    if let Some(watch) = run.files.watch.clone() {
        let run = run.clone();
        spawn_thread("memspill-opener", move || files::watch_openers(&run, &watch))?;
    }
    operator.started(run)?;
    let (kept, keeper) = (run.clone(), operator.clone());
    spawn_thread("memspill-budget", move || budget::keep(&kept, &keeper))?;
    let asked = run.clone();
    spawn_thread("memspill-ctl", move || operator::serve_callers(&asked, &operator))?;
    let (joined, door) = (run.clone(), door.clone());
    spawn_thread("memspill-door", move || porter::keep_door(&joined, &door))
}

fn spawn_thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(body)?;
    Ok(())
}

fn spawn(
    command: &[OsString],
    has_loader: bool,
    agent: &Published,
    address: &str,
    inherited: Inherited,
) -> io::Result<Child> {
    let mut child = Command::new(&command[0]);
    child
        .args(&command[1..])
        .env("LD_PRELOAD", joined(agent.path(), std::env::var_os("LD_PRELOAD"), ":"))
        .env(ENV_NAME, address)
        // A dynamic AddressSanitizer ends a program in which another library comes before it.
        .env("ASAN_OPTIONS", joined("verify_asan_link_order=0", std::env::var_os("ASAN_OPTIONS"), ":"));
    match agent.told() {
        Some(file) => child.env(ENV_FILE, file),
        None => child.env_remove(ENV_FILE),
    };
    let mask = inherited.mask;
    signals::on_exec(&mut child, inherited);
    if !has_loader {
        plant::on_exec(&mut child);
    }
    let mut child = child.spawn().map_err(|e| match limits::remedy(&e) {
        Some(_) => limits::explained("cannot start the command", e),
        None if !has_loader => plant::explained(e),
        None => e,
    })?;
    if !has_loader {
        plant::plant(&mut child, agent, &mask)?;
    }
    Ok(child)
}

fn joined(first: &str, rest: Option<OsString>, separator: &str) -> OsString {
    let mut value = OsString::from(first);
    if let Some(rest) = rest.filter(|r| !r.is_empty()) {
        value.push(OsStr::new(separator));
        value.push(rest);
    }
    value
}

/// Wait for the target and for all that it leaves behind; plant the agent into static programs; forward
/// signals; carry out a verdict.
fn wait(set_up: &SetUp, agent: &Published, pid: u32, guardian: u32, children: &signals::SignalSet) -> Left {
    let SetUp { run, door, second_signal, .. } = set_up;
    let target = &door.target;
    let mut exit_code = None;
    let mut told = false;
    let tell = |pid: u32, e: &io::Error| {
        if door.is_to_be_told() || run.settings.verbose {
            eprintln!("memspill: process {pid} runs a static program outside the budget: {e}");
        }
    };
    let mut tracer = Tracer::new(&door.askers, agent, &tell);
    loop {
        let (ended, nobody) = reap();
        for (who, status) in ended {
            tracer.is_told(who, status.into_raw());
            if status.stopped_signal().is_some() {
                continue;
            }
            if who == pid {
                let judged = target.judge_exit(code_of(status), status.signal().is_some());
                exit_code = Some(judged.unwrap_or_else(|reason| {
                    run.fail(reason);
                    exit::OWN_FAILURE
                }));
            }
        }
        if signals::child_has_ended(guardian) {
            run.fail("the guardian was killed: the tree ends with it".into());
        }
        tracer.look();
        opened::serve(run);
        if exit_code.is_none()
            && let Some(reason) = target.unmanaged()
        {
            run.fail(reason);
        }
        if let Some(exit_code) = second_signal.ended() {
            return end_tree(run, guardian, exit_code);
        }
        // After the reaping: who gives up may be the reason for which a process has ended.
        if let Some(verdict) = run.verdict() {
            eprintln!("memspill: {}", verdict.message);
            return end_tree(run, guardian, verdict.exit_code);
        }
        if let Some(code) = exit_code {
            if nobody {
                return Left { exit_code: code, nobody };
            }
            if run.settings.verbose && !told {
                eprintln!("memspill: the command has ended; waiting for the processes that it left behind");
                told = true;
            }
        }
        let pause = target.pause_before_look();
        children.wait(tracer.next_look().map_or(pause, |look| look.min(pause)));
        for (signal, from_user) in second_signal.arrived() {
            match (signal, exit_code) {
                // The command is gone already: what it left behind goes too.
                (libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT, Some(code)) => {
                    return end_tree(run, guardian, code);
                }
                (signal, None) if from_user => signals::send(pid, signal),
                _ => {}
            }
        }
    }
}

/// Put the agent into a process that runs. If that fails, it goes on as it was.
fn take_in(set_up: &SetUp, agent: &Published, address: &str, running: &Running) -> io::Result<()> {
    let SetUp { run, door, operator, .. } = set_up;
    door.target.set_attached(running.pid, running.uid, running.arena);
    let told = agent.told();
    let mut environment = vec![(ENV_NAME, address)];
    // Programs that it starts have nothing of an arena.
    if running.arena.is_none() {
        environment.push(("LD_PRELOAD", agent.path()));
        environment.extend(told.as_deref().map(|told| (ENV_FILE, told)));
    }
    let attached = plant::into_running(running.pid, agent, &environment).map_err(|e| {
        let refused = door.target.refusal().map(|why| format!("cannot attach to {}: {why}", running.name()));
        io::Error::other(refused.unwrap_or_else(|| running.explained(&e)))
    })?;
    run.detach.set(Stage::Attached(None));
    let (asked, keeper) = (run.clone(), operator.clone());
    spawn_thread("memspill-detach", move || detach::bring_when_asked(&asked, keeper.as_ref()))?;
    let pidfd = running.pidfd.try_clone()?;
    spawn_thread("memspill-target", move || {
        pidfd.wait_for_end();
        signals::send(std::process::id(), libc::SIGCHLD);
    })?;
    let memory_bytes = crate::proc::statm(running.pid).map_or(0, |statm| statm.anon_bytes);
    let left = attached.not_managed();
    let left = if left.is_empty() { String::new() } else { format!("; not managed: {}", left.join(", ")) };
    let line = format!(
        "attached to {}: {} threads, {} MiB of memory, stood still {:.1} ms{left}",
        running.name(),
        attached.threads(),
        memory_bytes.div_ceil(1 << 20),
        attached.stood_still().as_secs_f64() * 1e3
    );
    // Who is told by a descriptor has a terminal of others.
    if run.settings.verbose || !running.ready.is_wanted() {
        eprintln!("memspill: {line}");
    }
    running.ready.tell(&format!("attached {}", running.pid));
    Ok(())
}

/// Wait for the end of the process that we are attached to, and of all that it leaves behind; or until they
/// are let go, for which each signal asks.
fn wait_attached(
    set_up: &SetUp,
    agent: &Published,
    running: &Running,
    guardian: u32,
    children: &signals::SignalSet,
) -> Left {
    let SetUp { run, door, second_signal, .. } = set_up;
    let tell = |pid: u32, e: &io::Error| {
        if door.is_to_be_told() || run.settings.verbose {
            eprintln!("memspill: process {pid} runs a static program outside the budget: {e}");
        }
    };
    let mut tracer = Tracer::new(&door.askers, agent, &tell);
    let mut progress = Progress::default();
    let mut empty_since = None;
    loop {
        tracer.serve();
        if signals::child_has_ended(guardian) {
            run.fail("the guardian was killed: the processes of the run end with it".into());
        }
        opened::serve(run);
        if let Some(verdict) = run.verdict() {
            eprintln!("memspill: {}", verdict.message);
            return end_attached(run, &agent.inodes(), verdict.exit_code);
        }
        let is_let_go = run.detach.stage() == Stage::Gone;
        // Those that run outside the budget have the library too, and their programs look for it with us.
        let is_empty = (is_let_go || running.pidfd.has_ended())
            && run.process_count() == 0
            && with_agent(&agent.inodes()).is_empty();
        let since = is_empty.then(|| *empty_since.get_or_insert_with(Instant::now));
        if since.is_some_and(|since| since.elapsed() > ATTACHED_ENDS) {
            return Left { exit_code: 0, nobody: false };
        }
        if since.is_none() {
            empty_since = None;
        }
        match run.detach.stage() {
            Stage::Back => match detach::let_all_go(run, agent, running.pid, &mut tracer) {
                Ok(stood_still) => {
                    tell_let_go(running, stood_still, agent);
                    run.detach.set(Stage::Gone);
                }
                Err(why) => detach::give_up(run, why),
            },
            stage => progress.say(&stage, running),
        }
        let pause = if is_empty { ATTACHED_ENDS } else { COMMAND_LOOK };
        children.wait(tracer.next_look().map_or(pause, |look| look.min(pause)));
        for (signal, _) in second_signal.arrived() {
            if matches!(signal, libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT) {
                progress.is_asked(run, running, agent);
                let _ = run.detach.ask();
            }
        }
    }
}

fn tell_let_go(running: &Running, stood_still: Duration, agent: &Published) {
    let stay = match &*named_with(agent) {
        "" => String::new(),
        stay => format!(
            "; memspill waits for the end of {stay}: started meanwhile, with its library, now without a limit"
        ),
    };
    let ms = stood_still.as_secs_f64() * 1e3;
    eprintln!("memspill: detached from {}: it stood still {ms:.1} ms{stay}", running.name());
}

/// The processes that have the agent, whether they have joined or not.
fn named_with(agent: &Published) -> String {
    with_agent(&agent.inodes()).into_iter().map(standstill::name).collect::<Vec<_>>().join(", ")
}

/// What is said of a detach, and when it was said.
#[derive(Default)]
struct Progress {
    said: Option<Instant>,
    /// Somebody has asked by a signal, and has not been told that it failed.
    is_awaited: bool,
}

impl Progress {
    fn is_asked(&mut self, run: &Run, running: &Running, agent: &Published) {
        // timeout(1) sends each twice.
        if self.said.is_some_and(|said| said.elapsed() < SIGNALS_SAME) {
            return;
        }
        let name = running.name();
        match &run.detach.stage() {
            Stage::Brings { done, total } => {
                let (done, total) = (done >> 20, total >> 20);
                eprintln!(
                    "memspill: {done} of {total} MiB are back, for the rest it waits; {name} goes on \
                     meanwhile (a kill of memspill would end it)"
                );
            }
            Stage::Attached(_) => {
                eprintln!("memspill: detaching from {name}: what is swapped out comes back")
            }
            Stage::Gone => eprintln!("memspill: waits for the end of {}", named_with(agent)),
            Stage::Never | Stage::Asked | Stage::Back => {}
        }
        (self.said, self.is_awaited) = (Some(Instant::now()), true);
    }

    fn say(&mut self, stage: &Stage, running: &Running) {
        match stage {
            Stage::Attached(Some(why)) if self.is_awaited => {
                self.is_awaited = false;
                eprintln!("memspill: {} stays attached: {why}", running.name());
            }
            Stage::Brings { done, total } if self.said.is_some_and(|said| said.elapsed() > DETACH_SAYS) => {
                self.said = Some(Instant::now());
                eprintln!("memspill: {} of {} MiB are back", done >> 20, total >> 20);
            }
            _ => {}
        }
    }
}

/// Kill all that have the agent of this run.
fn end_attached(run: &Run, inodes: &[u64], exit_code: i32) -> Left {
    run.stop();
    let begun = Instant::now();
    while signals::kill_with_agent(inodes) > 0 && begun.elapsed() < TREE_ENDS {
        std::thread::sleep(KILL_STEP);
    }
    Left { exit_code, nobody: false }
}

/// How the main thread leaves the tree.
struct Left {
    exit_code: i32,
    /// All have ended.
    nobody: bool,
}

/// Kill everything below us, the guardian excepted (it goes when we go).
fn end_tree(run: &Run, guardian: u32, exit_code: i32) -> Left {
    // Threads that are about to fill pages of files finish it first: the files are to be given back.
    if !run.has_files() {
        run.stop();
    }
    let begun = Instant::now();
    let (mut left, mut nobody) = (signals::kill_tree(guardian), reap().1);
    while !nobody && begun.elapsed() < TREE_ENDS {
        std::thread::sleep(KILL_STEP);
        (left, nobody) = (signals::kill_tree(guardian), reap().1);
    }
    if !nobody && left > 0 {
        let seconds = TREE_ENDS.as_secs();
        let why = "they are frozen, or wait in the kernel";
        eprintln!("memspill: {left} killed processes have not ended within {seconds} s: {why}");
    }
    Left { exit_code, nobody }
}

/// The children that have ended, and whether nobody is left.
fn reap() -> (Vec<(u32, ExitStatus)>, bool) {
    let mut ended = Vec::new();
    loop {
        match signals::wait_any() {
            Waited::For(pid, status) => ended.push((pid, ExitStatus::from_raw(status))),
            Waited::Lives => return (ended, false),
            Waited::Nobody => return (ended, true),
        }
    }
}

/// The shell's convention.
fn code_of(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| exit::by_signal(status.signal().unwrap_or(0)))
}

/// As many threads as the CPUs that we may run on call for, and the budget has room for.
pub fn layout_of_this_machine(budget_bytes: u64) -> Layout {
    let cpus = allowed_cpus().len() as u32;
    let threads = memspill_engine::layout::Layout::for_run(cpus, budget_bytes);
    Layout { pagers: threads.pagers, reclaimers: threads.reclaimers, advisers: cpus.clamp(1, 2) }
}

/// CPUs that this process may run on.
pub fn allowed_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    let cpus: Vec<usize> = set
        .map(|set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
        .unwrap_or_default();
    if cpus.is_empty() { vec![0] } else { cpus }
}
