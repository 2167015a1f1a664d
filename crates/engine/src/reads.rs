//! Reads in flight: for each token that a backing was given, what the read is for.
//!
//! The table is in parts with a lock each, by the number of the queue, because every fault that reads takes
//! one of these locks. A token names its part, so that a finished read needs no other lock.

use crate::backing::{QueueId, ReadDone};
use crate::sync::{Mutex, lock};
use std::collections::HashMap;

pub(crate) struct Reads<Job> {
    parts: [Mutex<ReadsOfQueue<Job>>; READS_PARTS],
}

struct ReadsOfQueue<Job> {
    started: u64,
    jobs: HashMap<u64, Job>,
}

const READS_PARTS: usize = 256;

impl<Job> Default for Reads<Job> {
    fn default() -> Reads<Job> {
        let part = |_| Mutex::new(ReadsOfQueue { started: 0, jobs: HashMap::new() });
        Reads { parts: std::array::from_fn(part) }
    }
}

impl<Job> Reads<Job> {
    /// A token for a read on `queue` that brings `job`.
    pub fn start(&self, queue: QueueId, job: Job) -> u64 {
        let part = queue.0 as usize % READS_PARTS;
        let mut reads = lock(&self.parts[part]);
        reads.started += 1;
        let token = reads.started * READS_PARTS as u64 + part as u64;
        reads.jobs.insert(token, job);
        token
    }

    /// All that are under way.
    pub fn each(&self, mut visit: impl FnMut(&Job)) {
        self.parts.iter().for_each(|part| lock(part).jobs.values().for_each(&mut visit));
    }

    /// Has a read on `queue` not finished yet?
    pub fn has_some(&self, queue: QueueId) -> bool {
        !lock(&self.parts[queue.0 as usize % READS_PARTS]).jobs.is_empty()
    }

    /// Take a finished read's job back.
    pub fn finish(&self, done: &ReadDone) -> Job {
        let mut reads = lock(&self.parts[(done.token % READS_PARTS as u64) as usize]);
        reads.jobs.remove(&done.token).expect("a read finished that was not started")
    }
}
