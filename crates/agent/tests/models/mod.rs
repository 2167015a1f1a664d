//! What the models under shuttle share: sleeping until a word changes, and schedules.
//!
//! A model is the protocol once more, step by step, in few words: each access to what others see is a step at
//! which another thread may come. Steps of the kernel are whole. A *control* leaves one step out, and must
//! fail: else the step would be idle, or the model blind.

#[path = "../../../engine/tests/shuttle/explore.rs"]
mod explore;

pub use explore::explore;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Condvar, Mutex};
use shuttle::{Config, MaxSteps, Runner};
use std::ops::Deref;

/// A word on which threads can sleep, as the kernel does it: it looks at the word once more when nobody can
/// wake any more.
#[derive(Default)]
pub struct Futex {
    word: AtomicU32,
    queue: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    pub fn sleep(&self, seen: u32) {
        let queue = self.queue.lock().unwrap();
        if self.word.load(Ordering::SeqCst) == seen {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    pub fn wake_all(&self) {
        let _queue = self.queue.lock().unwrap();
        self.woken.notify_all();
    }
}

impl Deref for Futex {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        &self.word
    }
}

/// Draws schedules of a control until one fails, by turns from both schedulers: so many that it is found
/// whatever is drawn.
pub fn hunt(scenario: impl Fn() + Send + Sync + Clone + 'static) {
    const ROUNDS: usize = 200;
    const DRAWN: usize = 100;
    const DEPTH: usize = 4;
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(20_000);
    config.silence_warnings = true;
    for _ in 0..ROUNDS {
        Runner::new(RandomScheduler::new(DRAWN), config.clone()).run(scenario.clone());
        Runner::new(PctScheduler::new(DEPTH, DRAWN), config.clone()).run(scenario.clone());
    }
}
