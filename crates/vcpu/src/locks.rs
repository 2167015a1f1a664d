//! What is known of each lock: who holds it, and who waits.
//!
//! A waiter spins at first, as std's locks do, and is handed the lock when it comes free. A waiter that has
//! spun for too long sleeps: it is woken when the lock comes free and tries again, and a task that is awake
//! may take the lock before it. So a lock is not idle while a sleeper wakes up.

use crate::lines::LineId;
use std::collections::VecDeque;
use std::panic::Location;

pub type LockId = u32;
pub type TaskId = u32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Shared,
    Alone,
}

pub struct Waiter {
    pub task: TaskId,
    pub mode: Mode,
    pub since: u64,
}

pub struct LockState {
    pub line: LineId,
    /// A line of data that does not fit beside the lock, which is written in each hold.
    pub data: Option<LineId>,
    /// Shared holders, or `ALONE`.
    holders: u32,
    pub waiters: VecDeque<Waiter>,
    /// When a lone holder got it, and where: for the profile.
    pub held_since: u64,
    pub held_at: Option<&'static Location<'static>>,
}

const ALONE: u32 = u32::MAX;

impl LockState {
    pub fn new(line: LineId, data: Option<LineId>) -> LockState {
        LockState { line, data, holders: 0, waiters: VecDeque::new(), held_since: 0, held_at: None }
    }

    /// Take it if it can be had now. A reader does not pass a writer who waits.
    pub fn try_take(&mut self, mode: Mode) -> bool {
        let writer_waits = self.waiters.iter().any(|w| w.mode == Mode::Alone);
        match mode {
            Mode::Alone if self.holders == 0 => self.holders = ALONE,
            Mode::Shared if self.holders != ALONE && !writer_waits => self.holders += 1,
            _ => return false,
        }
        true
    }

    /// As `try_take`, for the one who has waited longest.
    pub fn grant(&mut self, mode: Mode) -> bool {
        match mode {
            Mode::Alone if self.holders == 0 => self.holders = ALONE,
            Mode::Shared if self.holders != ALONE => self.holders += 1,
            _ => return false,
        }
        true
    }

    pub fn is_free_for(&self, mode: Mode) -> bool {
        self.holders == 0 || (mode == Mode::Shared && self.holders != ALONE)
    }

    pub fn give_back(&mut self, mode: Mode) {
        match mode {
            Mode::Alone => {
                assert!(self.holders == ALONE, "a lock is released that nobody holds alone");
                self.holders = 0;
            }
            Mode::Shared => {
                assert!(self.holders > 0 && self.holders != ALONE, "a lock is released that nobody shares");
                self.holders -= 1;
            }
        }
    }
}
