//! What was seen of a run so far: a look asks it for all that the page will show over time.

use crate::reporting::faulted::Faulted;
use crate::reporting::history::{Held, History, Point, Sums};
use crate::reporting::seen::Seen;
use memspill_engine::space::Space;
use memspill_engine::units::PAGE_SIZE;
use memspill_pager::run::Run;
use memspill_pager::threads::cpu_of_caller;
use std::time::Duration;

pub struct Watched {
    pub history: History,
    pub seen: Seen,
    pub faulted: Faulted,
    /// CPU time of the looks.
    pub cost: Duration,
}

impl Watched {
    pub fn new() -> Watched {
        Watched {
            history: History::new(),
            seen: Seen::default(),
            faulted: Faulted::new(),
            cost: Duration::ZERO,
        }
    }

    pub fn look(&mut self, run: &Run) {
        let cpu = cpu_of_caller();
        self.history.add(Point { at_us: run.elapsed_us(), held: held(run), sums: sums(run) });
        self.seen.look(run);
        self.faulted.look(run);
        self.cost += cpu_of_caller().saturating_sub(cpu);
    }

    /// The run is over: of memory there is nothing more to be seen.
    pub fn end(&mut self, run: &Run) {
        self.history.end(run.elapsed_us(), sums(run));
        self.faulted.look(run);
    }
}

fn held(run: &Run) -> Held {
    let engine = &run.engine;
    let spaces = engine.spaces();
    let bytes = |of: fn(&Space) -> u64| spaces.iter().map(|space| of(space)).sum::<u64>() * PAGE_SIZE as u64;
    let usage: Vec<_> = engine.devices().ever_added().map(|device| device.backing.usage()).collect();
    let resident_bytes = bytes(|space| space.resident_pages());
    let pool_bytes = usage.iter().map(|usage| usage.ram_bytes).sum::<u64>();
    Held {
        budget_bytes: engine.root().limit_bytes(),
        resident_bytes,
        pool_bytes,
        other_bytes: engine.root().usage_bytes().saturating_sub(resident_bytes + pool_bytes),
        swapped_bytes: bytes(|space| space.swapped_pages()),
        file_bytes: usage.iter().map(|usage| usage.file_bytes).sum(),
    }
}

fn sums(run: &Run) -> Sums {
    let stats = run.engine.stats();
    let pressure = run.stall.pressure();
    Sums {
        faults: stats.sum(|counters| &counters.pgfault),
        pages_in: stats.sum(|counters| &counters.pswpin),
        pages_out: stats.sum(|counters| &counters.pswpout),
        stalls_at_us: run.stalls_known_us(),
        stall_some_us: pressure.some.total_us as u64,
        stall_full_us: pressure.full.total_us as u64,
    }
}
