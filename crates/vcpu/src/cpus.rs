//! A CPU with several tasks: which of them has it, and which comes next.
//!
//! As the kernel's fair scheduler does it, and no finer: the task that has had least goes first, a slice at a
//! time; one that slept is placed half a slice before the others, and takes the CPU at once from one that has
//! had much more. A task stays on its CPU, unless it floats: then it goes to one that is idle where its own
//! is busy (world.rs). None is moved between busy CPUs.

use crate::cost;
use crate::locks::TaskId;

/// How long a task has its CPU while others wait for it: `base_slice_ns` of the kernel's scheduler on 8 CPUs
/// and more (0.75 ms, times 4).
pub const SLICE_NS: u64 = 3_000_000;
/// A task that is woken takes the CPU from one that has had so much more.
const PREEMPTS_NS: u64 = SLICE_NS / 3;

#[derive(Default)]
pub struct Cpu {
    /// Tasks that were made for it.
    pub tasks: u32,
    pub running: Option<TaskId>,
    /// By how much of it they have had.
    pub waiting: Vec<(u64, TaskId)>,
    /// One that was woken is to have it at once.
    pub preempt: bool,
    pub free_at: u64,
    /// The time of the task that has had least; it only grows.
    pub least_ns: u64,
    last: Option<TaskId>,
}

impl Cpu {
    /// The time that a task that slept is taken to have had.
    pub fn fair_start(&self, had_ns: u64) -> u64 {
        had_ns.max(self.least_ns.saturating_sub(SLICE_NS / 2))
    }

    pub fn add_waiting(&mut self, id: TaskId, had_ns: u64, running_ns: u64) {
        self.preempt |= running_ns > had_ns + PREEMPTS_NS;
        self.waiting.push((had_ns, id));
    }

    /// The task that had it leaves, having had so much of it. Returns who comes next.
    pub fn leave(&mut self, had_ns: u64, at: u64) -> Option<TaskId> {
        (self.running, self.free_at, self.preempt) = (None, at, false);
        let first = (0..self.waiting.len()).min_by_key(|i| self.waiting[*i]);
        let least_ns = first.map_or(had_ns, |i| self.waiting[i].0.min(had_ns));
        self.least_ns = self.least_ns.max(least_ns);
        first.map(|i| self.waiting.swap_remove(i).1)
    }

    /// Returns what the switch costs.
    pub fn give_to(&mut self, id: TaskId) -> u64 {
        let switches = self.last.is_some_and(|last| last != id);
        (self.running, self.last) = (Some(id), Some(id));
        if switches { cost::CONTEXT_SWITCH_NS } else { 0 }
    }
}
