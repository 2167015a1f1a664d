//! Faults, events and eviction of real address spaces: drives the engine. ARCHITECTURE.md tells the life of a
//! page.

/// As std's, which panic where stderr cannot be written (a full disk, a reader that is gone, the limit on
/// file sizes): a line that nobody can read is no reason to end a run. Defined before the modules, so that
/// all of them use these.
macro_rules! eprintln {
    ($($arg:tt)*) => {{
        let line = format_args!($($arg)*);
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{line}\n"));
    }};
}

mod advice;
pub mod attach;
pub mod ctl;
mod detach;
pub mod door;
pub mod exit;
mod faults;
mod guardian;
pub mod histogram;
pub mod idle_cpus;
pub mod limits;
mod monitor;
mod opened;
mod panics;
mod plant;
pub mod pool_share;
pub mod proc;
pub mod process;
mod published;
mod reclaim;
pub mod run;
mod second_signal;
pub mod shared;
pub mod signals;
pub mod stall;
pub mod supervisor;
pub mod swapped_files;
pub mod threads;
mod times;
pub mod working_set;

use memspill_engine::units::CpuId;

/// What is done with the messages of an agent, for those who try it with wrong ones (`crates/fuzz`).
#[doc(hidden)]
pub mod untrusted {
    pub use crate::door::check_ready;
    pub use crate::monitor::register::announced_range;
    pub use crate::process::agent::own_ranges;
    pub use crate::process::control::ControlPage;
    pub use crate::process::port::batch::collect;
    pub use crate::process::wire::receive;
}

/// Beyond all addresses of a process.
pub(crate) const USER_END: u64 = 1 << 56;

/// The CPU for work that belongs to no pager thread.
pub(crate) fn cpu() -> CpuId {
    CpuId(0)
}
