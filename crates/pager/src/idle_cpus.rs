//! Idle CPUs do not halt while faults come often.
//!
//! ```text
//!   faults a second:  1000 or more ──▶ hold ──▶ fewer than 250, for a second ──▶ let go
//! ```
//!
//! A fault wakes a pager, and the pager wakes the thread, and each may find its CPU idle. In a virtual
//! machine an idle CPU halts, and its host takes 50 µs to run it again, several times what the fault itself
//! takes; a physical one may sleep deeply, and takes as long to come back. The kernel keeps CPUs out of every
//! state that takes longer to leave than somebody has written to /dev/cpu_dma_latency, for as long as he has
//! it open (Documentation/power/pm_qos_interface). So nothing is left behind however memspill ends.
//!
//! What it does not do: anything where no driver chooses how an idle CPU waits (it halts at once, and nothing
//! changes that), or where the file cannot be opened; it belongs to root. Let go while memspill itself is
//! stopped (^Z, a frozen cgroup): then the CPUs stay awake until it goes on or ends.

use crate::run::Run;
use crate::times::AWAKE_ENDS;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::time::{Duration, Instant};

/// As many faults a second cost a thread a tenth of its time by waking CPUs that have halted.
const BEGINS_PER_S: u64 = 1000;
const GOES_ON_PER_S: u64 = BEGINS_PER_S / 4;

pub const FILE: &str = "/dev/cpu_dma_latency";
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";

/// A physical CPU may use the states that it leaves within this time: it leaves the first of them when memory
/// that it watches is written to (MWAIT), without an interrupt.
const SHALLOW_US: i32 = 2;
/// A virtual CPU only polls: any other state hands it to the host.
const POLLING_US: i32 = 0;

/// Can idle CPUs be kept awake? None: no driver asks for how long they may take to go on.
pub fn probe() -> Option<io::Result<()>> {
    open().map(|file| file.map(drop))
}

/// The file, where a driver looks at it. Nothing is asked for before it is written to.
fn open() -> Option<io::Result<File>> {
    let driver = std::fs::read_to_string(DRIVER).ok()?;
    let is_there = !matches!(driver.trim(), "none" | "");
    is_there.then(|| OpenOptions::new().write(true).open(FILE))
}

/// Keep idle CPUs awake until the file is closed.
fn hold() -> Option<File> {
    let mut file = open()?.ok()?;
    let limit_us = if is_virtual() { POLLING_US } else { SHALLOW_US };
    file.write_all(&limit_us.to_ne_bytes()).ok()?;
    Some(file)
}

/// Does the first CPU say that it is a virtual one?
fn is_virtual() -> bool {
    let Ok(file) = File::open("/proc/cpuinfo") else { return false };
    let mut lines = BufReader::new(file).lines().map_while(Result::ok);
    lines.find(|line| line.starts_with("flags")).is_some_and(|flags| flags.contains(" hypervisor"))
}

/// What the monitor remembers from look to look.
pub struct Watch {
    is_possible: bool,
    held: Option<File>,
    rate: Rate,
}

impl Watch {
    pub fn new(run: &Run) -> Watch {
        Watch { is_possible: run.settings.keep_cpus_awake, held: None, rate: Rate::new() }
    }

    pub fn look(&mut self, run: &Run) {
        if !self.is_possible {
            return;
        }
        let (now, faults) = (Instant::now(), run.engine.stats().faults());
        let (is_often, since_last) = self.rate.is_often(now, faults);
        if self.held.is_some() {
            run.account.add_awake(since_last);
        }
        if !is_often {
            self.held = None;
        } else if self.held.is_none() {
            self.held = hold();
            self.is_possible = self.held.is_some();
        }
    }
}

/// Do faults come often?
struct Rate {
    seen: (Instant, u64),
    /// When they last did.
    often_at: Option<Instant>,
}

impl Rate {
    fn new() -> Rate {
        Rate { seen: (Instant::now(), 0), often_at: None }
    }

    /// At `now` so many faults have come. How long ago the last look was, too.
    fn is_often(&mut self, now: Instant, faults: u64) -> (bool, Duration) {
        let (seen_at, seen) = std::mem::replace(&mut self.seen, (now, faults));
        let took = now.saturating_duration_since(seen_at);
        let enough_per_s = if self.often_at.is_some() { GOES_ON_PER_S } else { BEGINS_PER_S };
        if u128::from(faults.saturating_sub(seen)) * 1000
            >= u128::from(enough_per_s) * took.as_millis().max(1)
        {
            self.often_at = Some(now);
        }
        self.often_at = self.often_at.filter(|at| now.saturating_duration_since(*at) < AWAKE_ENDS);
        (self.often_at.is_some(), took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_with_many_faults_and_ends_a_second_after_few() {
        let (mut rate, start) = (Rate::new(), Instant::now());
        let mut look = |ms: u64, faults| rate.is_often(start + Duration::from_millis(ms), faults).0;
        assert!(!look(1000, 900));
        assert!(look(1100, 1000), "1000 a second");
        assert!(look(1600, 1125), "250 a second keep it");
        // None come any more.
        assert!(look(1700, 1125) && look(2500, 1125));
        assert!(!look(2700, 1125));
        assert!(!look(3700, 2000), "fewer than 1000 do not begin it");
    }
}
