//! How much time is lost to waiting for memory: the monitor's look, ten times a second.
//!
//! `stall.rs` knows for how long somebody waited in each process. The run's share is put together from these,
//! as if processes did not wait in step: exact for one process, and else between the largest share and the
//! sum. /proc says which threads run: some dozens of threads are read for each look, and only while somebody
//! waits.

use crate::proc;
use crate::process::Process;
use crate::run::Run;
use crate::stall::together;
use crate::times::now_us;
use std::sync::Arc;

/// Threads whose state is read in one look, at most.
const THREADS_MAX: usize = 64;

pub fn look(run: &Run) {
    let begun_us = now_us();
    let processes = run.processes();
    let mut threads_left = THREADS_MAX;
    let looks: Vec<Look> = processes.iter().map(|process| Look::at(process, begun_us)).collect();
    let mut nobody_of_all = looks.iter().any(|look| look.waits).then_some(true);
    let mut shares = Vec::with_capacity(processes.len() + 1);
    for (process, look) in processes.iter().zip(&looks) {
        // If nobody waits it is of interest for the run alone, as long as nobody was found who runs.
        let wanted = look.waits || nobody_of_all == Some(true);
        let nobody_runs = wanted.then(|| nobody_runs(process, look, &mut threads_left));
        shares.push(process.stall.look(now_us(), nobody_runs.flatten().filter(|_| look.waits)));
        nobody_of_all = match (nobody_of_all, nobody_runs) {
            (Some(true), Some(nobody)) => nobody,
            (known, _) => known,
        };
    }
    let now_us = now_us();
    let rest_us = run.take_rest_of_stalls_us() as f64;
    shares.push(rest_us / run.stall.since_look_us(now_us).max(1) as f64);
    run.stall.look_at_share(now_us, together(shares), nobody_of_all);
}

/// A process at the beginning of a look.
struct Look {
    at_us: u64,
    waits: bool,
    waited_us: u64,
}

impl Look {
    fn at(process: &Process, at_us: u64) -> Look {
        let (waits, waited_us) = process.stall.in_flight.at(at_us);
        Look { at_us, waits, waited_us }
    }

    /// Has somebody waited all the time since?
    fn still_waits(&self, process: &Process) -> bool {
        let now = Look::at(process, now_us());
        // A pager that looked at the clock before us may have ended a wait after it: then it is less now.
        let waited_us = now.waited_us.checked_sub(self.waited_us);
        now.waits && waited_us.is_some() && waited_us == now.at_us.checked_sub(self.at_us)
    }
}

/// Does none of its threads run? None: that is not known, because there are too many to look at, or because
/// a wait ended meanwhile: whose state was read may have been waiting a moment before.
fn nobody_runs(process: &Arc<Process>, look: &Look, left: &mut usize) -> Option<bool> {
    let evictor = process.memory.attached_agent().map(|agent| agent.evictor_tid());
    let pid = process.memory.proc_id();
    let own = proc::threads(pid)?.saturating_sub(u64::from(evictor.is_some()));
    if look.waits && own <= 1 {
        return Some(true);
    }
    let runs = proc::one_runs(pid, evictor, left)?;
    (!look.waits || look.still_waits(process)).then_some(!runs)
}
