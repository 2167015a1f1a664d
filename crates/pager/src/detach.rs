//! The processes of a run are let go that it was attached to: first all that is swapped out comes back.
//!
//! ```text
//!   thread memspill-detach   is there memory for it? ─ no limit holds, nothing is taken out any more
//!                            ─ nobody reads pools ─ pass after pass over all pages, until none is away
//!   main thread              children leave, the process that was attached to leaves last     plant/
//! ```
//!
//! Where one of these steps fails the limits are as before, and all stay attached: whoever has a page with us
//! must not lose it. Programs go on while their pages come back.
//!
//! Programs that were started with the agent (LD_PRELOAD) keep it until they end, without a budget, and the
//! run lasts as long: their loader knows that library. So do those that could not be taken in. (The guardian
//! kills all that have it when the run ends.)
//!
//! What it does not do: end what cannot be let go.

use crate::ctl::host::Operator;
use crate::plant::{self, Tracer};
use crate::proc::with_agent;
use crate::process::{Process, standstill};
use crate::published::Published;
use crate::reclaim::give_back::note;
use crate::run::detach::Stage;
use crate::run::reads;
use crate::run::{Run, account};
use crate::times::{CTL_TELLS, DETACH_AGAIN, DETACH_JOINS, DETACH_LEAVES, GIVING_BACK, PUT_OFF_AGAIN};
use memspill_engine::fill::{Fault, FillJob, Scratch};
use memspill_engine::group::GroupConfig;
use memspill_engine::space::Space;
use memspill_engine::units::{PAGE_SIZE, Vpn};
use memspill_engine::word::State;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pages that are asked for at once: what a process has to install finds room.
const PAGES: u64 = 64;
/// More than any machine has, and not so much that sums overflow.
const UNLIMITED_BYTES: u64 = 1 << 46;
/// Stays free of what the machine has: for what else grows meanwhile.
const RESERVE_BYTES: u64 = 64 << 20;

/// The thread that brings pages back when that is asked for.
pub fn bring_when_asked(run: &Run, operator: &dyn Operator) {
    let mut stage = run.detach.stage();
    while !run.is_stopping() {
        if stage == Stage::Asked {
            match bring_all(run, operator) {
                Ok(()) => run.detach.set(Stage::Back),
                Err(why) => run.detach.set(Stage::Attached(Some(why))),
            }
        }
        stage = run.detach.wait(&run.detach.stage(), CTL_TELLS);
    }
}

/// Nothing is away when this returns, and nothing is taken out from then on. An error: all is as before.
fn bring_all(run: &Run, operator: &dyn Operator) -> Result<(), String> {
    let away_bytes = away_bytes(run);
    let free_bytes = operator.free_bytes(&run.pids(), account::pool_bytes(&run.engine));
    if away_bytes + RESERVE_BYTES > free_bytes {
        return Err(format!(
            "{} MiB are swapped out and {} MiB of memory are free: end something else, or wait",
            away_bytes >> 20,
            free_bytes.saturating_sub(RESERVE_BYTES) >> 20
        ));
    }
    run.detach.set(Stage::Brings { done: 0, total: away_bytes });
    let lifted = Lifted::lift(run);
    run.end_pool_reads();
    let mut filler = Filler { run, scratch: Scratch::default(), put_off: Vec::new() };
    let (mut least, mut since) = (u64::MAX, Instant::now());
    loop {
        let away = filler.pass_over_all(away_bytes)?;
        if away == 0 {
            run.update_account();
            lifted.keep();
            return Ok(());
        }
        if away < least {
            (least, since) = (away, Instant::now());
        } else if since.elapsed() > GIVING_BACK {
            let who = run.processes().into_iter().find(|process| process.space.swapped_pages() > 0);
            let who = who.map_or("a process".into(), |process| {
                let pid = process.memory.pid();
                let why =
                    standstill::of_any_thread(pid).map_or(String::new(), |why| format!(", which {why}"));
                format!("{}{why}", standstill::name(pid))
            });
            return Err(format!(
                "{} MiB of {who} do not come back",
                (away * PAGE_SIZE as u64).div_ceil(1 << 20)
            ));
        }
        std::thread::sleep(PUT_OFF_AGAIN);
    }
}

fn away_bytes(run: &Run) -> u64 {
    run.engine.spaces().iter().map(|space| space.swapped_pages()).sum::<u64>() * PAGE_SIZE as u64
}

/// Some could not be let go: they stay in the run, with the budget that it was given.
pub fn give_up(run: &Run, why: String) {
    run.engine.root().set_limit_bytes(run.settings.memory_max_bytes);
    run.detach.set_keeps_pages(false);
    run.detach.set(Stage::Attached(Some(why)));
    run.ask_for_look();
    run.kick_reclaim();
}

/// No limit holds, and nothing is taken out; until this is dropped, if it is not kept.
struct Lifted<'a> {
    run: &'a Run,
    before: Vec<GroupConfig>,
    is_kept: bool,
}

impl Lifted<'_> {
    fn lift(run: &Run) -> Lifted<'_> {
        run.detach.set_keeps_pages(true);
        let groups = run.engine.groups().all();
        let before: Vec<GroupConfig> = groups
            .iter()
            .map(|group| GroupConfig {
                high_bytes: group.high_bytes(),
                swap_max_pages: group.swap_max_pages(),
                ..GroupConfig::root(group.max_bytes())
            })
            .collect();
        for (group, before) in groups.iter().zip(&before) {
            let swap_max_pages = before.swap_max_pages;
            group.set_limits(&GroupConfig { swap_max_pages, ..GroupConfig::root(UNLIMITED_BYTES) });
        }
        // A batch that has begun ends before its pages are looked at.
        run.processes().iter().for_each(|process| drop(process.hold_batch()));
        run.processes().iter().for_each(|process| process.tell_room(run.engine.swap()));
        run.poke_waiting();
        Lifted { run, before, is_kept: false }
    }

    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Lifted<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let groups = self.run.engine.groups().all();
            groups.iter().zip(&self.before).for_each(|(group, before)| group.set_limits(before));
            self.run.detach.set_keeps_pages(false);
            self.run.ask_for_look();
            self.run.kick_reclaim();
        }
    }
}

struct Filler<'a> {
    run: &'a Run,
    scratch: Scratch,
    put_off: Vec<FillJob>,
}

impl Filler<'_> {
    /// All pages of all processes once. Returns how many were not there.
    fn pass_over_all(&mut self, total_bytes: u64) -> Result<u64, String> {
        let mut away = 0;
        for process in self.run.processes() {
            away += self.pass(&process, total_bytes)?;
        }
        // The child of a fork that is under way has its pages when it has joined.
        let counted: u64 = self.run.engine.spaces().iter().map(|space| space.swapped_pages()).sum();
        Ok(away.max(counted))
    }

    fn pass(&mut self, process: &Process, total_bytes: u64) -> Result<u64, String> {
        let (space, mut away, mut next) = (&process.space, 0, Vpn(0));
        let mut told = Instant::now();
        while let Some(from) = space.known_from(next) {
            if self.run.detach.is_to_stop() || self.run.is_stopping() {
                return Err("stopped".into());
            }
            let to = Vpn(from.0 / PAGES * PAGES + PAGES);
            let asked = self.bring(space, from, to).map_err(|what| {
                format!("{what} of {}: it would be lost to it", standstill::name(process.memory.pid()))
            })?;
            away += asked;
            if asked > 0 {
                process.install_delivered();
            }
            if told.elapsed() > CTL_TELLS {
                told = Instant::now();
                let done = total_bytes.saturating_sub(away_bytes(self.run));
                self.run.detach.set(Stage::Brings { done, total: total_bytes });
            }
            next = to;
        }
        process.install_delivered();
        self.run.update_account();
        let (port, is_gone) = (&process.memory.port, process.is_dying());
        let is_settled = is_gone || port.is_all_installed() && !port.has_unnoted();
        Ok(away + u64::from(!is_settled))
    }

    /// The pages of a range that are away. Returns how many.
    fn bring(&mut self, space: &Arc<Space>, from: Vpn, to: Vpn) -> Result<u64, String> {
        let (run, queue, mut away) = (self.run, self.run.layout.files_queue(), 0);
        let _queue = run.files.queue.lock().expect("queue");
        let work = run.quiet.begin_work();
        for vpn in (from.0..to.0).map(Vpn) {
            match space.word(vpn).state() {
                State::None | State::Resident => {}
                State::Evicting | State::Filling => away += 1,
                State::Poisoned => return Err("a page cannot be read".into()),
                State::Swapped => {
                    away += 1;
                    let fault = Fault { vpn, write: true, urgent: true, favoured: false };
                    let outcome = run.engine.fault(crate::cpu(), queue, space, fault, &mut self.scratch);
                    note(outcome, &mut self.put_off);
                }
            }
        }
        let put_off = &mut self.put_off;
        reads::finish(run, queue, &mut self.scratch, || false, |outcome| note(outcome, put_off));
        for job in std::mem::take(&mut self.put_off) {
            let outcome = run.engine.install(crate::cpu(), job, &mut self.scratch);
            note(outcome, &mut self.put_off);
        }
        drop(work);
        Ok(away)
    }
}

/// Nothing is away: the agent leaves each process, that of this number last. Returns how long that one stood
/// still. To be called by the main thread.
pub fn let_all_go(
    run: &Run,
    agent: &Published,
    root: u32,
    tracer: &mut Tracer<'_>,
) -> Result<Duration, String> {
    let (mut empty_since, mut root_stood_still) = (None, Duration::ZERO);
    // They were started with the agent, and keep it until they end.
    let mut stay: Vec<Arc<Process>> = Vec::new();
    loop {
        let stays = |process: &Arc<Process>| stay.iter().any(|other| other.key == process.key);
        let is_left = |process: &Arc<Process>| process.is_dying() || stays(process);
        let mut processes: Vec<_> = run.processes().into_iter().filter(|process| !is_left(process)).collect();
        processes.sort_by_key(|process| process.memory.pid() == root);
        let Some(process) = processes.first() else {
            // Children that have not joined yet have the agent.
            let since = *empty_since.get_or_insert_with(Instant::now);
            if with_agent(&agent.inodes()).len() <= stay.len() || since.elapsed() > DETACH_JOINS {
                return Ok(root_stood_still);
            }
            tracer.serve();
            std::thread::sleep(PUT_OFF_AGAIN);
            continue;
        };
        empty_since = None;
        match let_go(run, process, agent, tracer)? {
            Some(stood_still) if process.memory.pid() == root => root_stood_still = stood_still,
            Some(_) => {}
            None => stay.push(process.clone()),
        }
    }
}

/// None: it keeps its agent.
fn let_go(
    run: &Run,
    process: &Arc<Process>,
    agent: &Published,
    tracer: &mut Tracer<'_>,
) -> Result<Option<Duration>, String> {
    let (pid, begun) = (process.memory.pid(), Instant::now());
    loop {
        // A thread of it may wait in the agent for what only we do.
        let is_free = tracer.is_done_with(pid);
        let tried = match process.memory.serving_agent().filter(|_| is_free) {
            Some(served) => {
                process.install_delivered();
                plant::let_go(pid, agent, served.evictor.tid, &mut || served.let_exit(0))
            }
            None => {
                let why = "it joins, or is about to run another program: try again";
                Err(io::Error::new(io::ErrorKind::WouldBlock, why))
            }
        };
        match tried {
            Ok(stood_still) => {
                process.set_dying();
                run.remove_process(process);
                return Ok(Some(stood_still));
            }
            Err(_) if process.is_dying() => return Ok(Some(Duration::ZERO)),
            Err(e) if e.kind() == io::ErrorKind::Unsupported => return Ok(None),
            // It is in the midst of a fork, or joins; or it ends, which is seen the next time. Meanwhile it
            // runs for about as long as it was tried.
            Err(e) if may_be_later(&e) && begun.elapsed() < DETACH_LEAVES => {
                std::thread::sleep((begun.elapsed() / 2).clamp(PUT_OFF_AGAIN, DETACH_AGAIN));
            }
            Err(e) => return Err(format!("{} cannot be let go: {e}", standstill::name(pid))),
        }
    }
}

fn may_be_later(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ESRCH)
}
