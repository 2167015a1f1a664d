//! Which processes are still there, and how big each of them is.
//!
//! Two cases are told from a process that goes on: its address space has ended, so that it leaves the run;
//! and all of its threads but the agent's have, so that the agent's must end too.

use crate::proc::{self, Statm};
use crate::process::Process;
use crate::run::Run;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The size of a process that is still there. One whose address space has ended is taken out of the run.
pub fn size_if_there(run: &Run, process: &Arc<Process>) -> Option<Statm> {
    let (memory, is_dying) = (&process.memory, process.is_dying());
    if memory.broken.load(Ordering::Relaxed) && !is_dying && !memory.port.is_gone() {
        run.fail(format!("the memory of process {} cannot be read any more", memory.pid()));
    }
    if (is_dying || process.space.is_dead() || memory.attached_agent().is_none()) && memory.port.is_gone() {
        run.remove_process(process);
        return None;
    }
    size_of(process)
}

/// By the process's id, under which /proc shows no memory once its first thread has ended: then by its
/// evictor's. If that is the last thread, it must end for the process to end: the program's threads have left
/// by exit(2), each for itself, or the first one was killed alone, by seccomp. The process's status is then
/// that of the last thread, so it ends as the first one.
fn size_of(process: &Process) -> Option<Statm> {
    let pid = process.memory.pid();
    let size = proc::statm(pid).filter(|statm| statm.size_bytes > 0);
    // After an exec the process id means another program.
    if size.is_some() && !process.is_dying() {
        return size;
    }
    if let Some(agent) = process.memory.attached_agent()
        && let Some(status) = proc::status_of_all_but_one(pid)
    {
        agent.let_exit(status);
    }
    proc::statm(process.memory.proc_id())
}
