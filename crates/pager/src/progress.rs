//! Whom reclaim spares: processes that get on with what they have.
//!
//! To take from all alike is fair, and where several working sets do not fit together it is the worst there is: all wait
//! for their pages, and nobody gets on. The kernel spares what is in use, so that some processes have their memory and
//! run while the others wait, and whoever ends makes room for the next. It knows by accessed bits, which are not to be
//! had here; but CPU time is:
//!
//! ```text
//!                    hardly runs          runs
//!   hardly faults    idle: gives          gets on: spared
//!   faults           waits for memory: gives
//! ```
//!
//! Of those who wait, the ones that fault least are spared too, as long as they hold no more than half of what is in memory:
//! they are the next to get on. Spared is not exempt: what a process does not use goes too, slowly, and if it was in use the
//! process faults and is spared no more.
//!
//! Tracers are looked for as well: the evictor of a process that is traced stands still until its tracer has seen each of
//! its system calls. So a tracer that waits for room would wait for itself, and is served like those who make room.

use crate::proc;
use crate::process::Process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often processes are looked at: /proc counts CPU time in ticks of 10 ms.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Fewer ticks between two looks are those of an idle process, or of one that waits.
const TICKS_MIN: u64 = 2;
/// A fault costs the process itself some 20 µs: so many are a tenth of its time.
const FAULTS_PER_TICK_MAX: u64 = 50;

/// What a process has done.
#[derive(Default)]
pub struct Progress {
    faults: AtomicU64,
    seen: Mutex<Done>,
    /// It traces a process of which pages are taken.
    traces: AtomicBool,
}

/// So far, or between two looks.
#[derive(Clone, Copy, Default)]
struct Done {
    cpu_ticks: u64,
    faults: u64,
}

impl Progress {
    pub fn note_fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    pub fn traces(&self) -> bool {
        self.traces.load(Ordering::Relaxed)
    }

    fn since_last_look(&self, cpu_ticks: u64) -> Done {
        let now = Done { cpu_ticks, faults: self.faults() };
        let before = std::mem::replace(&mut *self.seen.lock().expect("progress"), now);
        Done { cpu_ticks: now.cpu_ticks.saturating_sub(before.cpu_ticks), faults: now.faults - before.faults }
    }
}

/// Look at all processes. True if some have become tracers: they may be waiting for room.
pub fn look(processes: &[Arc<Process>]) -> bool {
    let done = |process: &Arc<Process>| {
        let ticks = proc::cpu_ticks(process.memory.proc_id()).unwrap_or(0);
        (process.progress.since_last_look(ticks), process.space.resident_pages())
    };
    let spared = spare(&processes.iter().map(done).collect::<Vec<_>>());
    for (process, spared) in processes.iter().zip(spared) {
        process.space.spare(spared);
    }
    let tracers: Vec<u32> = processes.iter().filter_map(|p| proc::tracer(p.memory.proc_id())).collect();
    let begins = |process: &&Arc<Process>| {
        let traces = tracers.contains(&process.memory.pid());
        !process.progress.traces.swap(traces, Ordering::Relaxed) && traces
    };
    processes.iter().filter(begins).count() > 0
}

/// Whom to spare, of processes that have done this since the last look, and have so many pages.
fn spare(processes: &[(Done, u64)]) -> Vec<bool> {
    let gets_on = |done: &Done| done.cpu_ticks >= TICKS_MIN && done.faults <= done.cpu_ticks * FAULTS_PER_TICK_MAX;
    let mut spared: Vec<bool> = processes.iter().map(|(done, _)| gets_on(done)).collect();
    let all_pages: u64 = processes.iter().map(|(_, pages)| pages).sum();
    let mut waiting: Vec<usize> = (0..processes.len()).filter(|n| !spared[*n] && processes[*n].0.faults > 0).collect();
    waiting.sort_by_key(|n| processes[*n].0.faults);
    let mut pages = 0;
    for n in waiting {
        pages += processes[n].1;
        if pages > all_pages / 2 {
            break;
        }
        spared[n] = true;
    }
    spared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gets_on_is_spared_and_who_is_next() {
        let done = |cpu_ticks, faults| Done { cpu_ticks, faults };
        assert_eq!(spare(&[(done(20, 10), 90), (done(0, 0), 5), (done(2, 5000), 5)]), [true, false, true]);
        assert_eq!(spare(&[(done(1, 900), 40), (done(1, 1000), 40), (done(0, 0), 20)]), [true, false, false]);
        assert_eq!(spare(&[(done(1, 900), 60), (done(1, 1000), 40)]), [false, false], "it has most of memory");
        assert_eq!(spare(&[(done(5, 5000), 100)]), [false]);
    }

    #[test]
    fn only_what_is_new_counts() {
        let progress = Progress::default();
        (0..3).for_each(|_| progress.note_fault());
        assert_eq!(progress.since_last_look(7).faults, 3);
        progress.note_fault();
        let done = progress.since_last_look(9);
        assert_eq!((done.cpu_ticks, done.faults), (2, 1));
    }
}
