//! Which pagers a process's faults wake.
//!
//! ```text
//!   a new process               ALL       eight pagers are woken, of fewer all; the one on the CPU that
//!                                         faulted comes first
//!   faults of several threads   IN TURNS  of the same pagers, one that waits is woken (EPOLLEXCLUSIVE)
//!   faults of one thread        HOME(n)   only the pager on the CPU where that thread last ran
//! ```
//!
//! While one pager serves a fault of several threads, the next fault wakes the next pager. Woken all by each
//! fault, most of them came for nothing, for some µs of a CPU on which a thread could have run (four threads
//! at random on two CPUs: 5 % of all CPU time). One pager for all four was as good there, and would be too
//! few on more CPUs.
//!
//! Waking the pager on the faulting CPU is a switch; waking one more on an idle CPU sends it an interrupt (4
//! to 5 µs for the thread that faulted, in a virtual machine), takes that CPU from reclaim, and now and then
//! the late one steals a fault and serves it from afar. Random faults of one process: 85k accesses/s with all
//! pagers woken, 133k with one. What was tried and lost for one thread: one exclusive waiter (wakes an idle
//! CPU), pagers of a high priority, fewer pagers; on two CPUs, where threads bring their own pages, the pager
//! on the other CPU, or reclaimers that stay there (a page out of Python's dicts 17.0, 17.0 and 17.3 µs), and
//! both (20).
//!
//! The evictor goes to the CPU of the one thread too (`agent/src/agent/machine/affinity.rs`): by that the
//! same faults come 12 to 15 % faster on two CPUs, with any pager.
//!
//! The home is looked at again after some faults (`process/home.rs`); until then a thread that has moved is
//! served from afar, which is slow and correct. A pager that is stuck (it waits for a batch of a process
//! stopped in the middle of one) is nobody's home, and whoever it may have been woken for wakes all.

use crate::process::Process;
use crate::process::home::{Faulted, Home, Watchers};
use crate::run::cpus::PagerCpu;
use crate::times::PAGER_STUCK;
use memspill_engine::layout;
use std::sync::Arc;

/// The pagers that watch a process without a home.
fn watches(cpus: &[PagerCpu], pager: usize, process: &Process) -> bool {
    layout::watches(cpus.len() as u32, pager as u32, process.key)
}

/// A new process has no home yet.
pub fn watch_new(cpus: &[PagerCpu], process: &Process) -> std::io::Result<()> {
    let watchers = cpus.iter().enumerate().filter(|(i, _)| watches(cpus, *i, process));
    watchers.map(|(_, cpu)| cpu).try_for_each(|cpu| cpu.watch(&process.memory.port, process.key))
}

/// The process is gone: nobody watches it, and nobody begins to.
pub fn unwatch_gone(cpus: &[PagerCpu], process: &Process) {
    process.home.remove(|| cpus.iter().for_each(|cpu| cpu.unwatch(&process.memory.port)));
}

/// A fault of thread `tid` has been read.
pub fn note_fault(cpus: &[PagerCpu], process: &Process, tid: u32) {
    if cpus.len() < 2 {
        return;
    }
    match process.home.note_fault(tid) {
        None => {}
        Some(Faulted::Several) => {
            keep_evictor_on(process, None);
            watch_from(cpus, process, Watchers::InTurns);
        }
        Some(Faulted::OneThread) => {
            let runs_on = crate::proc::runs_on(process.memory.pid(), tid);
            // Beside one that does not give its CPU away the evictor would get none.
            keep_evictor_on(process, runs_on.as_ref().filter(|on| !on.is_realtime).map(|on| on.cpu));
            let home = runs_on.and_then(|on| cpus.iter().position(|p| p.cpu == on.cpu));
            watch_from(cpus, process, home.map_or(Watchers::All, Watchers::One));
        }
    }
}

fn keep_evictor_on(process: &Process, cpu: Option<usize>) {
    if let Some(agent) = process.memory.attached_agent() {
        agent.evictor.keep_on(cpu);
    }
}

/// The process of the one thread of which all faults are that have come lately, if there is one.
pub fn whose_one_thread_faults(processes: &[Arc<Process>]) -> Option<Arc<Process>> {
    let mut at_home = processes.iter().filter(|process| process.home.is_one());
    let first = at_home.next()?;
    at_home.next().is_none().then(|| first.clone())
}

/// A pager that is busy for long may be stuck: let the others see what it would have to serve.
pub fn release_stuck(cpus: &[PagerCpu], processes: &[Arc<Process>]) {
    for (index, cpu) in cpus.iter().enumerate() {
        if cpu.busy_for().is_some_and(|busy| busy > PAGER_STUCK) {
            let may_wait = |home: &Home| home.is(Watchers::One(index)) || home.is(Watchers::InTurns);
            let waiting = processes.iter().filter(|process| may_wait(&process.home));
            waiting.for_each(|process| watch_from(cpus, process, Watchers::All));
        }
    }
}

/// First pagers begin to watch, then others cease, so that no fault is unseen in between (epoll reports what
/// is readable when it is added). A pager that watches already begins anew, for it may be in another way; the
/// only one that does comes last, so that somebody watches if a pager cannot begin.
fn watch_from(cpus: &[PagerCpu], process: &Process, wanted: Watchers) {
    let port = &process.memory.port;
    process.home.change(wanted, || {
        let is_wanted = |pager: &usize| match wanted {
            Watchers::One(one) => one == *pager,
            Watchers::All | Watchers::InTurns => watches(cpus, *pager, process),
        };
        let (mut beginners, others): (Vec<usize>, Vec<usize>) = (0..cpus.len()).partition(is_wanted);
        beginners.sort_by_key(|pager| process.home.is(Watchers::One(*pager)));
        for pager in beginners {
            cpus[pager].unwatch(port);
            let began = match wanted {
                Watchers::InTurns => cpus[pager].watch_in_turns(port, process.key),
                Watchers::All | Watchers::One(_) => cpus[pager].watch(port, process.key),
            };
            if began.is_err() {
                return false;
            }
        }
        others.into_iter().for_each(|pager| cpus[pager].unwatch(port));
        true
    });
}
