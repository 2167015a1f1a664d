//! Schedules in which a thread mostly goes on: for some steps, on average as many as is drawn for each
//! execution. The agent's own code takes hundreds of steps where a model takes ten; where each step may be
//! another thread's, all get on alike, and none stands still long enough for what others do.

use shuttle::scheduler::{DataSource, RandomDataSource, Schedule, Scheduler, Task, TaskId};
use std::hash::{BuildHasher, RandomState};

pub struct Bursts {
    left: usize,
    data: RandomDataSource,
    drawn: u64,
    /// One of so many steps is another thread's.
    one_in: u64,
}

impl Bursts {
    pub fn new(executions: usize) -> Bursts {
        let seed = RandomState::new().hash_one(executions);
        Bursts { left: executions, data: RandomDataSource::initialize(seed), drawn: seed, one_in: 1 }
    }

    /// The next one of splitmix64.
    fn draw(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.drawn ^ self.drawn >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

impl Scheduler for Bursts {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.left = self.left.checked_sub(1)?;
        let seed = self.data.reinitialize();
        self.drawn = seed;
        self.one_in = 4 << (self.draw() % 5);
        Some(Schedule::new(seed))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let goes_on = !is_yielding && !self.draw().is_multiple_of(self.one_in);
        if let Some(current) =
            current.filter(|current| goes_on && runnable.iter().any(|it| it.id() == *current))
        {
            return Some(current);
        }
        let others: Vec<TaskId> =
            runnable.iter().map(|it| it.id()).filter(|it| Some(*it) != current).collect();
        let drawn = self.draw() as usize;
        others.get(drawn % others.len().max(1)).copied().or(current)
    }

    fn next_u64(&mut self) -> u64 {
        self.data.next_u64()
    }
}
