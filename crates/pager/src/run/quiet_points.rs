//! `--check`: quiet points, at which the engine's checker runs.
//!
//! ```text
//!   who works in the engine:      begin_work() ── a guard, shared ── drop       nothing without --check
//!   monitor, once a second:       wanted ─▶ new work waits ─▶ what is under way ends ─▶ Engine::check
//! ```
//!
//! A reclaimer may wait for a page that only a pager can serve, so what is under way may not end while new
//! work waits: then the monitor gives up after a while, and comes again.

use crate::times::{QUIET_POINT, QUIET_STEP};
use memspill_engine::engine::Engine;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{RwLock, RwLockReadGuard};
use std::time::Instant;

pub struct QuietPoints {
    enabled: bool,
    wanted: AtomicBool,
    /// The checker runs: a panic is what it found.
    pub checking: AtomicBool,
    /// Checks made.
    pub checks: AtomicU64,
    work: RwLock<()>,
}

impl QuietPoints {
    pub fn new(enabled: bool) -> QuietPoints {
        QuietPoints {
            enabled,
            wanted: AtomicBool::new(false),
            checking: AtomicBool::new(false),
            checks: AtomicU64::new(0),
            work: RwLock::new(()),
        }
    }

    /// Held for as long as a thread is at work in the engine. Not taken twice by one thread.
    pub fn begin_work(&self) -> Option<RwLockReadGuard<'_, ()>> {
        if !self.enabled {
            return None;
        }
        while self.wanted.load(Ordering::Acquire) {
            std::thread::sleep(QUIET_STEP);
        }
        Some(self.work.read().expect("work"))
    }

    /// Check the engine, if a quiet point can be had.
    pub fn check(&self, engine: &Engine) {
        let start = Instant::now();
        self.wanted.store(true, Ordering::Release);
        let quiet = loop {
            match self.work.try_write() {
                Ok(guard) => break Some(guard),
                Err(_) if start.elapsed() < QUIET_POINT => std::thread::sleep(QUIET_STEP),
                Err(_) => break None,
            }
        };
        if quiet.is_some() {
            self.checking.store(true, Ordering::Relaxed);
            engine.check();
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
        let quiet = QuietPoints::new(true);
        let guard = quiet.begin_work();
        assert!(guard.is_some() && quiet.work.try_write().is_err());
        drop(guard);
        assert!(quiet.work.try_write().is_ok());
        assert!(QuietPoints::new(false).begin_work().is_none());
    }
}
