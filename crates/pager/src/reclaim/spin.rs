//! On two CPUs: a reclaimer stays awake while the faults of one thread keep coming and nobody else wants this
//! CPU.
//!
//! A thread that a fill wakes goes to an idle CPU if there is one, away from its pager, and both pay for an
//! idle CPU's waking (50 µs in a virtual machine) at every fault from then on. On more CPUs one of them is
//! always idle. (Where idle CPUs are kept awake, idle_cpus.rs, they pay less, and this still gains a little.)
//!
//! If threads bring pages by themselves, this thread notes them, on a CPU that is not theirs.
//!
//! Tried: threads of the idle class that spin on each CPU while reads come. They took a fifth to two thirds
//! more CPU time, and gained nothing.

use crate::process::Process;
use crate::run::Run;
use crate::run::watch;
use crate::times::{LINGER_ELSEWHERE, LINGER_FAULTS};
use memspill_engine::units::CpuId;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Return when reclaim is wanted, faults have ceased, or somebody else has run here. `look`: what the caller
/// does meanwhile, for the process whose thread it is.
pub fn spin(run: &Run, mut look: impl FnMut(&Arc<Process>)) {
    if run.cpus.len() != 2 {
        return;
    }
    let Some(process) = watch::whose_one_thread_faults(&run.processes()) else { return };
    let stats = run.engine.stats();
    let faults =
        || [0, 1].map(|cpu| stats.on(CpuId(cpu)).pgfault.load(Ordering::Relaxed)).iter().sum::<u64>();
    let (mut seen, mut seen_at) = (faults(), Instant::now());
    while !run.reclaim_is_wanted() {
        (0..64).for_each(|_| std::hint::spin_loop());
        let before = Instant::now();
        std::thread::yield_now();
        let now = Instant::now();
        look(&process);
        if now - before > LINGER_ELSEWHERE {
            return;
        }
        if faults() != seen {
            (seen, seen_at) = (faults(), now);
        } else if now - seen_at > LINGER_FAULTS {
            return;
        }
    }
}
