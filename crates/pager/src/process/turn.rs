//! A lock that can be waited for with a limit, first come, first served: who uses a process's evictor.
//!
//! The evictor answers when its process runs. One that is frozen, or that writes its core, answers late or
//! never, and whoever waits for it must not take all others along: after a while they do something else.
//!
//! A newcomer stands behind those who wait. A reclaimer gives its turn back and takes it again within a µs,
//! long before another thread has woken up. A reclaimer gives its turn back and takes it again within a µs,
//! long before another thread has woken up. Where that was allowed, a fork found no turn for seconds: its
//! process had closed its gate for the fork, the evictor gave each of the reclaimer's batches up at that gate
//! after 20 ms, and the reclaimer came with the next one.
//!
//! Threads that wait for moments only, for they have others to serve (the door and the monitor), come before
//! all others. One that has given up comes again, and until then the turn is kept for it for a while: a turn
//! lasts longer than it waits, so it would not stand there when one ends.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::times::TURN_IS_KEPT;

#[derive(Default)]
pub struct Turn {
    state: Mutex<TurnQueue>,
    /// It has been given back, or somebody has given up.
    changed: Condvar,
}

#[derive(Default)]
struct TurnQueue {
    taken: bool,
    /// The tickets of those who wait, in the order in which they have their turns.
    waiting: VecDeque<u64>,
    next_ticket: u64,
    /// It is kept for somebody who comes before others.
    kept_until: Option<Instant>,
}

/// The turn is this one's until it is dropped.
pub struct TurnGuard<'a>(&'a Turn);

impl Turn {
    /// None: it was not to be had within `limit`.
    pub fn take(&self, limit: Duration) -> Option<TurnGuard<'_>> {
        self.wait(limit, false)
    }

    /// The same, before all who wait by `take`.
    pub fn take_first(&self, limit: Duration) -> Option<TurnGuard<'_>> {
        self.wait(limit, true)
    }

    fn wait(&self, limit: Duration, is_first: bool) -> Option<TurnGuard<'_>> {
        let end = Instant::now() + limit;
        let mut state = self.state.lock().expect("turn");
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        if is_first {
            state.waiting.push_front(ticket);
        } else {
            state.waiting.push_back(ticket);
        }
        let is_mine = loop {
            let now = Instant::now();
            let kept = state.kept_until.filter(|until| !is_first && *until > now);
            if !state.taken && kept.is_none() && state.waiting.front() == Some(&ticket) {
                break true;
            }
            if now >= end {
                break false;
            }
            let until = kept.map_or(end, |until| until.min(end));
            state = self.changed.wait_timeout(state, until - now).expect("turn").0;
        };
        state.waiting.retain(|other| *other != ticket);
        state.taken |= is_mine;
        if is_first {
            state.kept_until = (!is_mine).then(|| Instant::now() + TURN_IS_KEPT);
        }
        drop(state);
        // The first one now may have been woken before he was.
        self.changed.notify_all();
        // (Not then_some: a TurnGuard that is made is dropped, and gives back what another one has.)
        is_mine.then(|| TurnGuard(self))
    }

    /// The turn of whoever has kept it ends.
    pub fn give_back(&self) {
        self.state.lock().expect("turn").taken = false;
        self.changed.notify_all();
    }
}

impl TurnGuard<'_> {
    /// It ends with `Turn::give_back`.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Until so many wait for it.
    fn await_waiting(turn: &Turn, count: usize) {
        while turn.state.lock().unwrap().waiting.len() < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn one_at_a_time_and_nobody_waits_for_ever() {
        let turn = Turn::default();
        let held = turn.take(Duration::ZERO).unwrap();
        assert!(turn.take(Duration::from_millis(5)).is_none());
        // A thread that has given up has taken nothing from the one that has it.
        assert!(turn.take(Duration::ZERO).is_none() && turn.take_first(Duration::ZERO).is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| turn.take(Duration::from_secs(20)).is_some());
            drop(held);
            assert!(waits.join().unwrap());
        });
        assert!(turn.take(Duration::ZERO).is_some());
    }

    /// The second one takes the turn again as soon as it has given it back, and so is behind the first one.
    #[test]
    fn whoever_takes_it_again_at_once_is_behind_those_who_wait() {
        let turn = Turn::default();
        for _ in 0..100 {
            let held = turn.take(Duration::ZERO).unwrap();
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| turn.take(Duration::from_secs(20)).is_some());
                await_waiting(&turn, 1);
                drop(held);
                // Not before the other one has had it; without the order, nearly always at once.
                assert!(turn.take(Duration::ZERO).is_none() || turn.state.lock().unwrap().waiting.is_empty());
                assert!(waits.join().unwrap());
            });
        }
    }

    #[test]
    fn who_has_given_up_is_not_waited_for() {
        let turn = Turn::default();
        let held = turn.take(Duration::ZERO).unwrap();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| turn.take(Duration::from_millis(20)).is_none());
            // It may have given up before it was seen.
            while turn.state.lock().unwrap().waiting.is_empty() && !first.is_finished() {
                std::thread::yield_now();
            }
            let second = scope.spawn(|| turn.take(Duration::from_secs(20)).is_some());
            assert!(first.join().unwrap());
            drop(held);
            assert!(second.join().unwrap());
        });
    }

    #[test]
    fn who_has_others_to_serve_comes_first_and_finds_it_kept() {
        let turn = Turn::default();
        let held = turn.take(Duration::ZERO).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| turn.take(Duration::from_secs(20)).map(|_| Instant::now()));
            await_waiting(&turn, 1);
            assert!(turn.take_first(Duration::ZERO).is_none());
            assert!(turn.state.lock().unwrap().kept_until.is_some());
            // The other one came before it.
            let first = scope.spawn(|| turn.take_first(Duration::from_secs(20)).map(|_held| Instant::now()));
            await_waiting(&turn, 2);
            drop(held);
            assert!(first.join().unwrap().unwrap() < waits.join().unwrap().unwrap());
            // A thread that does not come again is not waited for.
            let held = turn.take(Duration::ZERO).unwrap();
            assert!(turn.take_first(Duration::ZERO).is_none());
            drop(held);
            assert!(turn.take(Duration::from_secs(20)).is_some());
        });
    }
}
