//! How a scenario is run under schedules that are drawn: by a random walk, and by PCT.

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler};
use shuttle::{Config, MaxSteps, Runner};

/// Schedules that each of the two schedulers draws.
const DRAWN: usize = 1000;
/// Places at which PCT lets another thread overtake, and one.
const PCT_DEPTH: usize = 4;
/// Many times what a scenario needs.
const STEPS_MAX: usize = 200_000;
/// An engine is made on the stack.
const STACK_BYTES: usize = 2 << 20;

pub fn explore(scenario: impl Fn() + Send + Sync + Clone + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    if let Ok(schedule) = std::env::var("REPLAY") {
        Runner::new(ReplayScheduler::new_from_encoded(&schedule), config).run(scenario);
        return;
    }
    let drawn = std::env::var("DRAWN").map_or(DRAWN, |n| n.parse().expect("DRAWN is a number"));
    Runner::new(RandomScheduler::new(drawn), config.clone()).run(scenario.clone());
    Runner::new(PctScheduler::new(PCT_DEPTH, drawn), config).run(scenario);
}
