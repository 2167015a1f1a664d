//! Cache lines of plain data that a lock guards: who writes one under the lock brings it from the CPU that
//! wrote it last. The lock's own line, with as much of the data as fits there, moves with the lock (lock.rs).
//!
//! What it does not do: know which lock that is, or hold the data.

use crate::lines::LineId;
use crate::world;
use std::panic::Location;

/// Some lines in a row.
pub struct GuardedLines {
    first: LineId,
    lines: u32,
}

impl GuardedLines {
    pub fn new(lines: usize) -> GuardedLines {
        let lines = lines as u32;
        GuardedLines { first: world::make_lines(lines), lines }
    }

    /// One of them is written, by who holds the lock. Beyond the last one they begin again.
    #[track_caller]
    pub fn write(&self, at: usize) {
        world::store(self.first + at as u32 % self.lines, Location::caller());
    }
}
