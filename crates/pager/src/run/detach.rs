//! How far it is that the processes of a run are let go, which they were attached to.
//!
//! ```text
//!   ATTACHED ── a signal, ctl: ask ─▶ ASKED ─▶ BRINGS ─▶ BACK ── each process leaves ─▶ GONE
//!      ▲                                         │ no memory for it, stopped
//!      └─────────────────────────────────────────┘
//! ```
//!
//! From BRINGS on nothing is taken out any more. Who brings, and who lets go: `detach.rs` of the crate.

use rustix::process::{Signal, getpid, kill_process};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The run has started its program.
    Never,
    /// Why it is so again, if somebody has asked.
    Attached(Option<String>),
    Asked,
    /// Bytes that are back, and of how many.
    Brings {
        done: u64,
        total: u64,
    },
    /// Nothing is away.
    Back,
    Gone,
}

pub struct Detach {
    stage: Mutex<Stage>,
    changed: Condvar,
    /// Nothing is to be taken out.
    keeps_pages: AtomicBool,
    is_to_stop: AtomicBool,
}

impl Default for Detach {
    fn default() -> Detach {
        Detach {
            stage: Mutex::new(Stage::Never),
            changed: Condvar::new(),
            keeps_pages: AtomicBool::new(false),
            is_to_stop: AtomicBool::new(false),
        }
    }
}

impl Detach {
    pub fn stage(&self) -> Stage {
        self.stage.lock().expect("stage").clone()
    }

    pub fn set(&self, stage: Stage) {
        *self.stage.lock().expect("stage") = stage;
        self.changed.notify_all();
        // The main thread waits for that.
        let _ = kill_process(getpid(), Signal::CHILD);
    }

    /// An error: its processes cannot be let go.
    pub fn ask(&self) -> Result<(), String> {
        match self.stage() {
            Stage::Never => Err("this run has started its command, and ends with it: there is nothing to \
                                 detach from"
                .into()),
            Stage::Attached(_) => {
                self.is_to_stop.store(false, Ordering::Relaxed);
                self.set(Stage::Asked);
                Ok(())
            }
            Stage::Asked | Stage::Brings { .. } | Stage::Back | Stage::Gone => Ok(()),
        }
    }

    /// Whoever brings the pages back is to end it, and the run stays attached.
    pub fn stop(&self) {
        self.is_to_stop.store(true, Ordering::Relaxed);
    }

    pub fn is_to_stop(&self) -> bool {
        self.is_to_stop.load(Ordering::Relaxed)
    }

    /// The stage that is not this one; this one, if it lasts for `limit`.
    pub fn wait(&self, stage: &Stage, limit: Duration) -> Stage {
        let current = self.stage.lock().expect("stage");
        let waited = self.changed.wait_timeout_while(current, limit, |current| current == stage);
        waited.expect("stage").0.clone()
    }

    pub fn set_keeps_pages(&self, keeps: bool) {
        self.keeps_pages.store(keeps, Ordering::SeqCst);
    }

    /// Is nothing to be taken out?
    pub fn keeps_pages(&self) -> bool {
        self.keeps_pages.load(Ordering::SeqCst)
    }
}
