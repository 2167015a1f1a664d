//! What a run asks of the command line's crate, which knows options, machine and statistics. It is called by
//! the threads of `memspill ctl` and by the one that keeps the budget, never while a lock is held.

use crate::run::Run;
use memspill_engine::devices::Device;
use memspill_engine::group::GroupConfig;
use std::io;
use std::sync::Arc;

/// The part of a request that is for the command line's crate, which knows the options and prints the
/// statistics.
pub trait Operator: Send + Sync {
    /// Open a device as `--swap` does. `before` devices have been added so far, and `names` are in use.
    fn open_device(
        &self,
        spec: &str,
        before: usize,
        limit_bytes: u64,
        names: &[&str],
    ) -> Result<Device, String>;
    /// How many bytes the device may hold in RAM under this budget, where a pool in front of a file may take
    /// so much of it. An error: the budget is too small.
    fn ram_limit_bytes(
        &self,
        limit_bytes: u64,
        pool_share_percent: u32,
        device: &Device,
    ) -> Result<u64, String>;
    /// The groups below the root, in their order, with their limits under this budget. An error: it is too
    /// small for one of them.
    fn groups(&self, limit_bytes: u64) -> Result<Vec<GroupConfig>, String>;
    fn stats(&self, run: &Run, json: bool) -> String;
    /// The same as OpenMetrics text.
    fn metrics(&self, run: &Run) -> String;
    /// The budget for a run that uses this much now, if it follows something.
    fn budget_now(&self, used_bytes: u64) -> Option<u64>;
    /// The memory that is free for these processes on the machine, and in the containers that they and the
    /// run are in, once the run has given back `own_bytes` of its own.
    fn free_bytes(&self, pids: &[u32], own_bytes: u64) -> u64;
    /// The run's threads are there, and the command is about to be started.
    fn started(&self, run: &Arc<Run>) -> io::Result<()>;
}
