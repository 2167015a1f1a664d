//! A lock that can be waited for with a limit: who uses a process's evictor.
//!
//! The evictor answers when its process runs. One that is frozen, or that writes its core, answers late or
//! never, and whoever waits for it must not take all others along: after a while they do something else. What
//! it does not do: fairness; who comes first when the turn ends is the condition variable's choice.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

#[derive(Default)]
pub struct Turn {
    taken: Mutex<bool>,
    free: Condvar,
}

/// The turn is this one's until it is dropped.
pub struct Held<'a>(&'a Turn);

impl Turn {
    /// None: it was not to be had within `limit`.
    pub fn take(&self, limit: Duration) -> Option<Held<'_>> {
        let taken = self.taken.lock().expect("turn");
        let (mut taken, _) = self.free.wait_timeout_while(taken, limit, |taken| *taken).expect("turn");
        if std::mem::replace(&mut *taken, true) { None } else { Some(Held(self)) }
    }
}

impl Turn {
    /// The turn of whoever has kept it ends.
    pub fn give_back(&self) {
        *self.taken.lock().expect("turn") = false;
        self.free.notify_one();
    }
}

impl Held<'_> {
    /// It ends with `Turn::give_back`.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_nobody_waits_for_ever() {
        let turn = Turn::default();
        let held = turn.take(Duration::ZERO).unwrap();
        assert!(turn.take(Duration::from_millis(5)).is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| turn.take(Duration::from_secs(20)).is_some());
            drop(held);
            assert!(waits.join().unwrap());
        });
        assert!(turn.take(Duration::ZERO).is_some());
    }
}
