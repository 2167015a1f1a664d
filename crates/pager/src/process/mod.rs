//! One managed process: its memory, its agent, and what is known of it.
//!
//! ```text
//!   Process ─┬─ memory.rs   what the engine asks of its memory: take pages out (take.rs), put them in
//!            │    ├─ shared.rs   where shared memory is mapped, whose pages are not its own
//!            │    └─ agent.rs ── evictor.rs (commands) ── control.rs (the shared page), wire.rs (messages)
//!            ├─ space       its page table, the engine's
//!            ├─ home.rs     which pager threads its faults wake
//!            ├─ descent.rs  of the child of a fork: how it is found out who it is
//!            └─ growth.rs   what of it is registered, and what of it is not managed (with finder.rs)
//! ```
//!
//! Lock order within one process: evictor, then gate or batch; growth's ranges, then gate, then batch.
//!
//! What is here knows nothing of the run, of other processes, or of what is done with this one.

pub mod agent;
pub(crate) mod bytes;
pub mod control;
pub(crate) mod descent;
pub(crate) mod evictor;
pub(crate) mod finder;
pub mod growth;
pub(crate) mod home;
pub(crate) mod memory;
pub(crate) mod peer;
pub mod ranges;
pub(crate) mod shared;
pub(crate) mod standstill;
pub mod take;
mod turn;
pub mod wire;

use agent::Agent;
use descent::Descent;
use evictor::Failed;
use growth::Growth;
use home::Home;
use memory::ProcessMemory;
use memspill_engine::gate::EventGuard;
use memspill_engine::space::Space;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use turn::{Held, Turn};

/// A managed process.
pub struct Process {
    /// In the table of processes, and in the pagers' epolls.
    pub key: u64,
    pub memory: Arc<ProcessMemory>,
    pub space: Arc<Space>,
    pub home: Home,
    /// Of the child of a fork.
    pub descent: Option<Descent>,
    /// What of it is registered, and what is not managed.
    pub growth: Growth,
    /// The agent's count of calls that open files past the page cache, when a look found no such file.
    pub no_direct_files_at: AtomicU32,
    evictor: Turn,
    batch: Mutex<()>,
    since: Instant,
    dying: AtomicBool,
    faults: AtomicU64,
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
            batch: Mutex::new(()),
            since: Instant::now(),
            dying: AtomicBool::new(false),
            faults: AtomicU64::new(0),
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
    pub fn take_evictor(&self, limit: Duration) -> Option<Held<'_>> {
        self.evictor.take(limit)
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

    /// Can the evictor be told something? Only for whoever has its turn, and no lock of this process.
    pub fn caught_up(&self, agent: &Agent) -> bool {
        match agent.evictor.caught_up(&self.memory.uffd, &self.space.gate) {
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
