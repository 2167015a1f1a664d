//! Sleeping and waking: for those who wait for something that is no lock.

use crate::cost;
use crate::locks::TaskId;
use crate::world;
use std::sync::Mutex;

/// A signal to wait for, as an eventfd: nobody who looked at its count before the signal sleeps through it.
#[derive(Default)]
pub struct Signal(Mutex<(u64, Vec<TaskId>)>);

const UNSHARED: &str = "tasks take turns on one thread";

impl Signal {
    pub fn count(&self) -> u64 {
        self.0.try_lock().expect(UNSHARED).0
    }

    /// Sleep until there was a signal after the given count.
    pub fn wait(&self, seen: u64) {
        world::step(0);
        while self.count() == seen {
            self.0.try_lock().expect(UNSHARED).1.push(world::current_task());
            world::block();
        }
    }

    /// Wake all who sleep.
    pub fn wake_all(&self) {
        let sleepers = {
            let mut inner = self.0.try_lock().expect(UNSHARED);
            inner.0 += 1;
            std::mem::take(&mut inner.1)
        };
        for task in sleepers {
            world::spend(cost::WAKE_NS);
            world::wake(task, cost::WAKE_LATENCY_NS);
        }
    }
}
