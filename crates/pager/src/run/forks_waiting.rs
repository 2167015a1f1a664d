//! Forks that wait until there is room for what they may lead to (`reclaim/fork_room.rs`).

use crate::times::FORK_ASKS_AGAIN;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct ForksWaiting {
    /// By the process's key.
    forks: Mutex<HashMap<u64, Waiting>>,
}

struct Waiting {
    since: Instant,
    /// When it has asked last.
    asked: Instant,
    bytes: u64,
}

impl ForksWaiting {
    /// A process asks, of which so much would be shared: for how long it has.
    pub fn ask(&self, key: u64, bytes: u64) -> Duration {
        let now = Instant::now();
        let mut forks = self.forks.lock().expect("forks");
        let fork = forks.entry(key).or_insert(Waiting { since: now, asked: now, bytes });
        (fork.asked, fork.bytes) = (now, bytes);
        now - fork.since
    }

    /// It forks.
    pub fn go(&self, key: u64) {
        self.forks.lock().expect("forks").remove(&key);
    }

    /// What those would share that wait now.
    pub fn bytes(&self) -> HashMap<u64, u64> {
        let mut forks = self.forks.lock().expect("forks");
        forks.retain(|_, fork| fork.asked.elapsed() < FORK_ASKS_AGAIN);
        forks.iter().map(|(key, fork)| (*key, fork.bytes)).collect()
    }
}
