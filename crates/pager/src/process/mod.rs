//! One managed process: its memory, its agent, and what is known of it.
//!
//! ```text
//!   Process ─┬─ memory.rs   what the engine asks of its memory: take pages out, put them in
//!            │    ├─ port/       by which its faults and events come, and its pages come and go
//!            │    ├─ shared.rs   where shared memory is mapped, whose pages are not its own
//!            │    ├─ copies.rs   pages that a fork has left shared, and that are written
//!            │    └─ agent.rs ── evictor.rs (commands) ── control.rs (the shared page), wire.rs (messages)
//!            ├─ space       its page table, the engine's
//!            ├─ home.rs     which pager threads its faults wake
//!            ├─ forking.rs  while its agent makes a fork: nothing leaves
//!            ├─ descent.rs  of the child of a fork: how it is found out who it is
//!            └─ growth.rs   what of it is registered, and what of it is not managed (with finder.rs,
//!                           only.rs)
//! ```
//!
//! Lock order within one process: growth's ranges, then evictor, then gate, then batch.
//!
//! Nothing here knows the run, other processes, or what is done with this one.

pub mod agent;
pub(crate) mod bytes;
pub mod control;
mod copies;
pub(crate) mod descent;
pub(crate) mod evictor;
pub(crate) mod finder;
pub(crate) mod forking;
pub(crate) mod futex;
pub mod growth;
pub(crate) mod home;
pub mod lineage;
pub(crate) mod memory;
mod only;
pub(crate) mod peer;
pub mod port;
pub mod ranges;
pub mod reserves;
pub(crate) mod shared;
pub(crate) mod standstill;
mod turn;
pub mod wire;

use crate::proc;
use crate::stall::Stall;
use crate::times::{AGENT_GIVEN_UP, EVICTOR_ANSWERS, EVICTOR_TURN, now_us};
use agent::Agent;
use descent::Descent;
use evictor::Failed;
use forking::Forking;
use growth::Growth;
use home::Home;
use lineage::Sharing;
use memory::ProcessMemory;
use memspill_common::protocol::OP_INSTALL;
use memspill_engine::gate::EventGuard;
use memspill_engine::space::Space;
use memspill_engine::swap::Swap;
use memspill_engine::units::{PAGE_SIZE, Vpn};
use standstill::{Aside, Standstill};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use turn::{Turn, TurnGuard};

/// A managed process.
pub struct Process {
    /// In the table of processes, and in the pagers' epolls.
    pub key: u64,
    pub memory: Arc<ProcessMemory>,
    pub space: Arc<Space>,
    pub home: Home,
    /// The descent of a fork's child.
    pub descent: Option<Descent>,
    /// What of it is registered, and what is not managed.
    pub growth: Growth,
    /// The agent's count of calls that open files past the page cache, when a look found no such file.
    pub no_direct_files_at: AtomicU32,
    evictor: Turn,
    /// While none of its pages can be had.
    pub aside: Aside,
    /// While its agent makes a fork.
    pub fork: Forking,
    /// What its forks lead to: do children write what they share?
    pub sharing: Sharing,
    batch: Mutex<()>,
    since: Instant,
    dying: AtomicBool,
    faults: AtomicU64,
    /// Time in which its threads wait for memory.
    pub stall: Stall,
}

/// Nothing of the process is moved out, nor filled: see [`Process::hold_pages`].
pub struct PagesHeld<'a> {
    _batch: MutexGuard<'a, ()>,
    _events: EventGuard<'a>,
}

impl Process {
    /// `descent`: of the child of a fork, whose parent's userfaultfd has told of it. Some of its memory is
    /// registered then, as in its parent.
    pub fn new(key: u64, memory: Arc<ProcessMemory>, space: Arc<Space>, descent: Option<Descent>) -> Process {
        Process {
            key,
            memory,
            space,
            home: Home::default(),
            growth: Growth::new(descent.is_some()),
            descent,
            no_direct_files_at: AtomicU32::new(0),
            evictor: Turn::default(),
            aside: Aside::default(),
            fork: Forking::default(),
            sharing: Sharing::default(),
            batch: Mutex::new(()),
            since: Instant::now(),
            dying: AtomicBool::new(false),
            faults: AtomicU64::new(0),
            stall: Stall::since(now_us()),
        }
    }

    /// Since it came in.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Its agent's socket has closed: it is ending, or has called exec.
    pub fn is_dying(&self) -> bool {
        self.dying.load(Ordering::Relaxed)
    }

    pub fn set_dying(&self) {
        self.dying.store(true, Ordering::Relaxed);
    }

    /// Is it known which process this is, and is what it has not inherited forgotten?
    pub fn is_known(&self) -> bool {
        self.memory.pid() != 0 && self.descent.as_ref().is_none_or(Descent::is_whole)
    }

    /// Is it the child of a fork whose agent is not there yet, and may come? One that stands still may.
    pub fn may_join(&self) -> bool {
        let pid = self.memory.pid();
        self.memory.serving_agent().is_none()
            && (self.age() < AGENT_GIVEN_UP || pid == 0 || standstill::of(pid).is_some())
    }

    /// Threads that bring pages by themselves are told whether there is room for that.
    pub fn tell_room(&self, swap: &Swap) {
        let group = self.space.group(swap);
        self.memory.port.tell_room(!group.full(), group.least_gap_bytes());
    }

    /// A fault of the program has been read.
    pub fn count_fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// Faults since it came in.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// The evictor's turn, for whoever wants to tell it something; before `hold_batch`. None: it was not to
    /// be had in time.
    pub fn take_evictor(&self, limit: Duration) -> Option<TurnGuard<'_>> {
        self.evictor.take(limit)
    }

    /// The same, before others: for those who come for a moment only, and have others to serve.
    pub fn take_evictor_first(&self, limit: Duration) -> Option<TurnGuard<'_>> {
        self.evictor.take_first(limit)
    }

    /// Faults that the kernel has served by itself. None: the process has ended.
    pub fn kernel_faults(&self) -> Option<u64> {
        let faults = proc::minor_faults(self.memory.proc_id())?;
        // The faults that we have served are among them: all, or of an agent with a userfaultfd those that
        // write.
        let ours = if self.memory.port.counts_fills() { self.faults() } else { self.memory.copies.asked() };
        Some(faults.saturating_sub(ours))
    }

    /// Until `end_fork` nothing is taken out, and changes are noted. False: not now.
    pub fn begin_fork(&self, limit: Duration) -> bool {
        let Some(turn) = self.take_evictor_first(limit) else { return false };
        turn.keep();
        self.fork.begin();
        true
    }

    pub fn end_fork(&self) {
        if self.fork.end() {
            self.evictor.give_back();
        }
    }

    /// Why a fork by its agent that is under way does not get on: whoever makes it, or all of the process,
    /// stands still.
    pub fn standstill_in_fork(&self) -> Option<Standstill> {
        let is_held = self.fork.is_under_way();
        is_held.then(|| standstill::of_any_thread(self.memory.pid())).flatten()
    }

    /// The agent has introduced itself; its own pages are never managed.
    pub fn attach(&self, agent: Agent) -> io::Result<()> {
        let page = PAGE_SIZE as u64;
        let whole =
            |(start, end): &(u64, u64)| (Vpn::from_addr(*start), Vpn::from_addr(end.div_ceil(page) * page));
        self.space.exclude(agent.own_ranges().iter().map(whole).collect());
        self.memory.port.set_evictor(agent.pidfd()?);
        if self.memory.attach(agent) { Ok(()) } else { Err(io::ErrorKind::AlreadyExists.into()) }
    }

    /// To be held while a batch is being taken, and while events are processed: never both at once.
    pub fn hold_batch(&self) -> MutexGuard<'_, ()> {
        self.batch.lock().expect("batch")
    }

    /// While this is held, nothing is filled and no batch is under way.
    pub fn hold_pages(&self) -> PagesHeld<'_> {
        let events_guard = self.space.gate.enter_events();
        PagesHeld { _batch: self.hold_batch(), _events: events_guard }
    }

    fn note_broken(&self, result: Result<(), Failed>) -> bool {
        if result == Err(Failed::Broken) {
            self.memory.broken.store(true, Ordering::Relaxed);
        }
        result.is_ok()
    }

    /// Has what was delivered to it installed, where nobody of it waits for that (OP_INSTALL).
    pub fn install_delivered(&self) {
        if !self.memory.port.has_to_install() {
            return;
        }
        let Some(agent) = self.memory.serving_agent() else { return };
        let Some(_turn) = self.take_evictor(EVICTOR_TURN) else { return };
        if self.caught_up(agent) {
            let deadline = Instant::now() + EVICTOR_ANSWERS;
            self.note_broken(agent.evictor.call(OP_INSTALL, &[], 0, deadline));
        }
    }

    /// Have its agent protect pages against writes. Ranges that cannot be now are left to the next look.
    pub fn protect_by_agent(&self, ranges: &[ranges::Range]) {
        let Some(agent) = self.memory.serving_agent() else { return };
        let Some(_turn) = self.take_evictor(EVICTOR_TURN) else { return };
        if self.caught_up(agent) {
            self.note_broken(agent.evictor.protect(ranges));
        }
    }

    /// Is its evictor stopped, by a signal or a tracer?
    pub fn stands_still(&self) -> bool {
        self.memory.serving_agent().is_some_and(|agent| standstill::is_stopped(agent.evictor.tid))
    }

    /// Can the evictor be told something? Only for whoever has its turn, and no lock of this process.
    pub fn caught_up(&self, agent: &Agent) -> bool {
        let register = |addr, len| self.memory.port.register(addr, len);
        match agent.evictor.caught_up(register, &self.space.gate) {
            Ok(caught_up) => caught_up,
            Err(failed) => {
                if failed == Failed::Broken {
                    self.memory.broken.store(true, Ordering::Relaxed);
                }
                // Let it be asked: that it has ended is told by the command's failing.
                failed == Failed::Gone
            }
        }
    }
}
