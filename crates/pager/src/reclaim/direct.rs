//! Has a process a file open that is read past the page cache (O_DIRECT)? A page of shared memory that leaves
//! while a device stores to it would lose that.
//!
//! A look at its files says so, but takes long, and a moment later there may be one. So the agent counts the
//! calls that may open such a file, before they are made (`crates/agent/src/agent/hooks/open.rs`): what a
//! look has found holds for as long as the count stays.
//!
//! ```text
//!   TakesShared::begin   no such call is begun unseen until it is dropped
//!   may_have             has one been begun since the look that found no such file?
//!   has                  the look
//! ```
//!
//! A process without an agent is looked at each time. Not counted: see the agent's file.

use crate::proc;
use crate::process::Process;
use crate::process::agent::Agent;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Looks at the files of a process: is there one, or is one about to be opened? In doubt there is.
pub fn has(process: &Process) -> bool {
    let opens = process.memory.attached_agent().map(|agent| agent.evictor.control.direct_opens());
    let has = proc::has_direct_io(process.memory.pid()).unwrap_or(true);
    let Some((begun, ended)) = opens else { return has };
    // Else a call that was counted before the look may open one after it.
    let has = has || begun != ended;
    if !has {
        process.no_direct_files_at.store(begun, Ordering::SeqCst);
    }
    has
}

/// May there be one now? Asked while `TakesShared` of it is held.
pub fn may_have(process: &Process) -> bool {
    match process.memory.attached_agent() {
        Some(agent) => {
            let (begun, _) = agent.evictor.control.direct_opens();
            begun != process.no_direct_files_at.load(Ordering::SeqCst)
        }
        // There is nothing to be read of an ended one.
        None => proc::has_direct_io(process.memory.pid()).unwrap_or(false),
    }
}

/// Pages of an object that these processes have mapped are being taken out.
pub struct TakesShared<'a>(Vec<&'a Agent>);

impl TakesShared<'_> {
    pub fn begin(mappers: &[Arc<Process>]) -> TakesShared<'_> {
        // One that joins meanwhile waits until the batch has ended (`door/exchange.rs`).
        let agents: Vec<&Agent> =
            mappers.iter().filter_map(|process| process.memory.attached_agent()).collect();
        agents.iter().for_each(|agent| agent.evictor.control.begin_taking_shared());
        TakesShared(agents)
    }
}

impl Drop for TakesShared<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|agent| agent.evictor.control.end_taking_shared());
    }
}
