//! `--check`: quiet points, at which the engine's checker runs.
//!
//! ```text
//!   pagers, reclaimers, door: work() ── a guard, shared ── drop        nothing at all without --check
//!   monitor, once a second:   wanted ─▶ new work waits ─▶ what is under way ends ─▶ Engine::check ─▶ go on
//! ```
//!
//! A reclaimer may wait for a page that only a pager can serve, so what is under way may not end while new work waits:
//! then the monitor gives up after a while, and comes again.

use crate::pager::Pager;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

pub const INTERVAL: Duration = Duration::from_secs(1);
/// How long work may be held up for a quiet point.
const PATIENCE: Duration = Duration::from_millis(50);
const STEP: Duration = Duration::from_micros(100);

pub struct Quiet {
    enabled: bool,
    wanted: AtomicBool,
    /// The checker runs: a panic is what it found.
    pub checking: AtomicBool,
    /// Checks made.
    pub checks: AtomicU64,
    work: RwLock<()>,
}

impl Quiet {
    pub fn new(enabled: bool) -> Quiet {
        Quiet {
            enabled,
            wanted: AtomicBool::new(false),
            checking: AtomicBool::new(false),
            checks: AtomicU64::new(0),
            work: RwLock::new(()),
        }
    }

    /// Held for as long as a thread is at work in the engine. Not taken twice by one thread.
    pub fn work(&self) -> Option<RwLockReadGuard<'_, ()>> {
        if !self.enabled {
            return None;
        }
        while self.wanted.load(Ordering::Acquire) {
            std::thread::sleep(STEP);
        }
        Some(self.work.read().expect("work"))
    }

    /// Check the engine, if a quiet point can be had.
    pub fn check(&self, pager: &Pager) {
        let start = Instant::now();
        self.wanted.store(true, Ordering::Release);
        let quiet = loop {
            match self.work.try_write() {
                Ok(guard) => break Some(guard),
                Err(_) if start.elapsed() < PATIENCE => std::thread::sleep(STEP),
                Err(_) => break None,
            }
        };
        if quiet.is_some() {
            self.checking.store(true, Ordering::Relaxed);
            pager.engine.check();
            self.checking.store(false, Ordering::Relaxed);
            self.checks.fetch_add(1, Ordering::Relaxed);
        }
        drop(quiet);
        self.wanted.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_a_quiet_point_exclude_each_other() {
        let quiet = Quiet::new(true);
        let guard = quiet.work();
        assert!(guard.is_some() && quiet.work.try_write().is_err());
        drop(guard);
        assert!(quiet.work.try_write().is_ok());
        assert!(Quiet::new(false).work().is_none());
    }
}
