//! What the models under shuttle share: sleeping until a word changes, and schedules.
//!
//! A model is the protocol once more, step by step, in few words: each access to what others see is a step at
//! which another thread may come. Steps of the kernel are whole. A *control* leaves one step out, and must
//! fail: else the step would be idle, or the model blind.

#![allow(dead_code, reason = "each model uses a part")]

#[path = "../../../engine/tests/shuttle/explore.rs"]
mod explore;
pub mod windows;

pub use explore::explore;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Condvar, LockResult, Mutex, MutexGuard, PoisonError};
use shuttle::{Config, MaxSteps, Runner};
use std::ops::Deref;

/// The locked value, though another thread has failed meanwhile: that one says what was wrong.
pub fn held<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

pub trait Lock<T> {
    fn held(&self) -> MutexGuard<'_, T>;
}

impl<T> Lock<T> for Mutex<T> {
    fn held(&self) -> MutexGuard<'_, T> {
        held(self.lock())
    }
}

/// A sleeper waits until a word changes, as the kernel does it: it looks at the word once more when nobody
/// can wake any more.
#[derive(Default)]
pub struct Sleepers {
    queue: Mutex<()>,
    woken: Condvar,
}

impl Sleepers {
    pub fn sleep_if(&self, is_unchanged: impl FnOnce() -> bool) {
        let queue = self.queue.held();
        if is_unchanged() {
            drop(held(self.woken.wait(queue)));
        }
    }

    pub fn wake_all(&self) {
        let _queue = self.queue.held();
        self.woken.notify_all();
    }
}

#[derive(Default)]
pub struct Futex {
    word: AtomicU32,
    sleepers: Sleepers,
}

impl Futex {
    pub fn sleep(&self, seen: u32) {
        self.sleepers.sleep_if(|| self.word.load(Ordering::SeqCst) == seen);
    }

    pub fn wake_all(&self) {
        self.sleepers.wake_all();
    }

    /// As a lock: 0 free, 1 held, 2 held and somebody may sleep.
    pub fn lock(&self) {
        if self.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            return;
        }
        while self.swap(2, Ordering::SeqCst) != 0 {
            self.sleep(2);
        }
    }

    pub fn unlock(&self) {
        if self.swap(0, Ordering::SeqCst) == 2 {
            self.wake_all();
        }
    }
}

impl Deref for Futex {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        &self.word
    }
}

/// Draws schedules of a control until one fails, by turns from both schedulers: so many that it is found
/// whatever is drawn. A schedule that takes very long is given up: two that look again and again may overtake
/// a third.
pub fn hunt(scenario: impl Fn() + Send + Sync + Clone + 'static) {
    const ROUNDS: usize = 200;
    const DRAWN: usize = 100;
    const DEPTH: usize = 4;
    let mut config = Config::new();
    config.max_steps = MaxSteps::ContinueAfter(50_000);
    config.silence_warnings = true;
    for _ in 0..ROUNDS {
        Runner::new(RandomScheduler::new(DRAWN), config.clone()).run(scenario.clone());
        Runner::new(PctScheduler::new(DEPTH, DRAWN), config.clone()).run(scenario.clone());
    }
}
