//! Sleeping and waking, for tasks that wait for something other than a lock.

use crate::cost;
use crate::locks::TaskId;
use crate::world;
use std::sync::Mutex;

/// A signal to wait for, as an eventfd: a task that read the count before the signal does not miss it.
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

    /// Wake one who sleeps: who has slept least.
    pub fn wake_one(&self) {
        let sleeper = {
            let mut inner = self.0.try_lock().expect(UNSHARED);
            inner.0 += 1;
            inner.1.pop()
        };
        sleeper.into_iter().for_each(|task| wake(task, cost::WAKE_NS));
    }

    /// Wake all who sleep. One of the own CPU comes next there, which is a switch (`cpus.rs`) and no wait
    /// for an interrupt.
    pub fn wake_all(&self) {
        self.wake_all_for(cost::WAKE_NS);
    }

    /// The same, where each costs the caller so much.
    pub fn wake_all_for(&self, ns: u64) {
        let sleepers = {
            let mut inner = self.0.try_lock().expect(UNSHARED);
            inner.0 += 1;
            std::mem::take(&mut inner.1)
        };
        for task in sleepers {
            wake(task, ns);
        }
    }
}

fn wake(task: TaskId, ns: u64) {
    world::spend(ns);
    world::wake(task, if world::is_on_my_cpu(task) { 0 } else { cost::WAKE_LATENCY_NS });
}
