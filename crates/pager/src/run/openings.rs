//! A reclaimer asks for memory to be writable for a moment; the main thread, which alone may trace, makes it.
//!
//! ```text
//!   reclaimer                               main thread (opened.rs)
//!   ask ─ wakes it, waits ───── ASKED ────▶ all threads stand still, their memory is made writable
//!   pages leave          ◀───── OPEN ──────
//!   dropped              ────── DONE ─────▶ it is as it was, they go on      also after OPEN_MOST
//! ```
//!
//! One process at a time. A page that is to leave when all is as it was again is refused by the kernel, and
//! stays: so nobody has to wait for a reclaimer that is late.

use crate::process::ranges::Range;
use crate::times::{OPEN_ASKED, OPEN_MOST};
use rustix::process::{Signal, getpid, kill_process};
use std::sync::{Condvar, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Memory of one process.
pub struct Wanted {
    pub pid: u32,
    /// The thread that does not stand still.
    pub evictor: u32,
    pub ranges: Vec<Range>,
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Asked(Wanted),
    /// The main thread is at it.
    Opening,
    Open(Vec<Range>),
    Done,
}

#[derive(Default)]
pub struct Openings {
    /// Held by the one who asks, until it is done.
    asking: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

/// Ranges that can be written until this is dropped, for OPEN_MOST at most.
pub struct Opened<'a> {
    _asking: MutexGuard<'a, ()>,
    openings: &'a Openings,
    pub ranges: Vec<Range>,
}

impl Openings {
    /// By a reclaimer. None: not now.
    pub fn ask(&self, wanted: Wanted) -> Option<Opened<'_>> {
        let asking = match self.asking.try_lock() {
            Ok(asking) => asking,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(_)) => panic!("openings"),
        };
        let mut state = self.lock();
        *state = State::Asked(wanted);
        // For this the main thread waits.
        let _ = kill_process(getpid(), Signal::CHILD);
        let until = Instant::now() + OPEN_ASKED;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match &*state {
                State::Open(ranges) => {
                    let ranges = ranges.clone();
                    drop(state);
                    return Some(Opened { _asking: asking, openings: self, ranges });
                }
                State::Asked(_) if left.is_zero() => {
                    *state = State::Idle;
                    return None;
                }
                State::Asked(_) => state = self.wait(state, left),
                State::Opening => state = self.wait(state, OPEN_MOST),
                State::Idle | State::Done => return None,
            }
        }
    }

    /// By the main thread.
    pub fn asked(&self) -> Option<Wanted> {
        let mut state = self.lock();
        if !matches!(*state, State::Asked(_)) {
            return None;
        }
        match std::mem::replace(&mut *state, State::Opening) {
            State::Asked(wanted) => Some(wanted),
            _ => None,
        }
    }

    /// By the main thread: these are open. Returns when they need not be any more.
    pub fn keep_open(&self, ranges: Vec<Range>) {
        let (mut state, until) = (self.lock(), Instant::now() + OPEN_MOST);
        *state = State::Open(ranges);
        self.changed.notify_all();
        while matches!(*state, State::Open(_)) && Instant::now() < until {
            state = self.wait(state, until.saturating_duration_since(Instant::now()));
        }
    }

    /// By the main thread: whoever has asked need not wait any more.
    pub fn end(&self) {
        *self.lock() = State::Idle;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("openings")
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, limit).expect("openings").0
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        let mut state = self.openings.lock();
        if matches!(*state, State::Open(_)) {
            *state = State::Done;
            self.openings.changed.notify_all();
        }
    }
}
