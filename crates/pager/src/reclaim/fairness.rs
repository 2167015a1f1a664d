//! Decides which processes keep memory when there is not enough for all.
//!
//! To take from all alike is fair, and where working sets do not fit together it is the worst there is: each
//! page leaves before it was used, all wait for their pages, and nobody gets on. The kernel knows by accessed
//! bits what is in use, so that some have their memory and run while the others wait, and whoever ends makes
//! room for the next. There are no such bits here. What there is:
//!
//! ```text
//!   what is seen                     who keeps what                     by what (the engine's)
//!   a page came back soon        ──▶ the page, for a round more         its heat (install.rs)
//!   a process gets on            ──▶ the process, most of what it has   spared (reclaim/turn.rs)
//!   a process is next to get on  ──▶ the process, most of what it has   spared
//!   it is a thread's turn        ──▶ what it brings in, three rounds    the swap token (run/token.rs)
//! ```
//!
//! *Whom reclaim spares.* A process's CPU time and faults say whether it uses what it has:
//!
//! ```text
//!                    hardly runs          runs
//!   hardly faults    idle: gives          gets on: spared
//!   faults           waits for memory: gives
//! ```
//!
//! The waiting processes that fault least are spared too, as long as they hold no more than half of what is
//! in memory: they are the next to get on. Spared is not exempt: what a process does not use goes too,
//! slowly, and if it was in use the process faults and is spared no more.

use crate::proc;
use crate::process::Process;
use std::collections::HashMap;
use std::sync::Arc;

/// Fewer ticks between two looks are those of an idle process, or of one that waits.
const TICKS_MIN: u64 = 2;
/// A fault costs the process itself some 20 µs: so many are a tenth of its time.
const FAULTS_PER_TICK_MAX: u64 = 50;

/// Who gets on: what is remembered from look to look.
#[derive(Default)]
pub struct Progress {
    /// By the process's key.
    seen: HashMap<u64, Done>,
}

/// What a process has done so far, or between two looks.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Done {
    cpu_ticks: u64,
    faults: u64,
}

impl Done {
    fn since(self, before: Done) -> Done {
        Done {
            cpu_ticks: self.cpu_ticks.saturating_sub(before.cpu_ticks),
            faults: self.faults - before.faults,
        }
    }
}

impl Progress {
    /// Look at all processes, and say of each whether it is spared from now on.
    pub fn look(&mut self, processes: &[Arc<Process>]) {
        let done = |process: &Arc<Process>| Done {
            cpu_ticks: proc::cpu_ticks(process.memory.proc_id()).unwrap_or(0),
            faults: process.faults(),
        };
        let now: HashMap<u64, Done> = processes.iter().map(|process| (process.key, done(process))).collect();
        let before = std::mem::replace(&mut self.seen, now);
        let since = |process: &Arc<Process>| {
            let before = before.get(&process.key).copied().unwrap_or_default();
            (self.seen[&process.key].since(before), process.space.resident_pages())
        };
        let spared = spare(&processes.iter().map(since).collect::<Vec<_>>());
        processes.iter().zip(spared).for_each(|(process, spared)| process.space.spare(spared));
    }
}

/// Chooses the processes to spare, of those that have done this since the last look, and have so many pages.
fn spare(processes: &[(Done, u64)]) -> Vec<bool> {
    let gets_on =
        |done: &Done| done.cpu_ticks >= TICKS_MIN && done.faults <= done.cpu_ticks * FAULTS_PER_TICK_MAX;
    let mut spared: Vec<bool> = processes.iter().map(|(done, _)| gets_on(done)).collect();
    let all_pages: u64 = processes.iter().map(|(_, pages)| pages).sum();
    let mut waiting: Vec<usize> =
        (0..processes.len()).filter(|n| !spared[*n] && processes[*n].0.faults > 0).collect();
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
        assert_eq!(
            spare(&[(done(1, 900), 60), (done(1, 1000), 40)]),
            [false, false],
            "it has most of memory"
        );
        assert_eq!(spare(&[(done(5, 5000), 100)]), [false]);
    }

    #[test]
    fn only_what_is_new_counts() {
        let done = |cpu_ticks, faults| Done { cpu_ticks, faults };
        assert_eq!(done(7, 3).since(Done::default()), done(7, 3));
        assert_eq!(done(9, 4).since(done(7, 3)), done(2, 1));
        assert_eq!(done(0, 4).since(done(7, 3)), done(0, 1), "it has ended, and /proc tells nothing more");
    }
}
