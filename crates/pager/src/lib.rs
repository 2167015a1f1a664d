//! Faults, events and eviction of real address spaces: drives the engine. ARCHITECTURE.md tells the life of a page.

/// As std's, which panic where stderr cannot be written (a full disk, a reader that is gone, the limit on file sizes): a line
/// that nobody can read is no reason to end a run. Defined before the modules, so that all of them use these.
macro_rules! eprintln {
    ($($arg:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}\n", format_args!($($arg)*)));
    }};
}

mod callers;
mod control;
pub mod ctl;
mod errors;
mod events;
mod evict;
mod evictor;
mod fault;
mod finder;
pub mod growth;
pub mod groups;
mod guardian;
mod guards;
pub mod handshake;
pub mod histogram;
mod home;
pub mod limits;
pub mod operator;
mod order;
pub mod pager;
mod panics;
mod peer;
pub mod proc;
mod process;
mod progress;
mod quiet;
pub mod ranges;
mod standstill;
mod stop;
pub mod supervisor;
mod target;
mod token;
mod turn;
mod unmanaged;
mod wire;

use memspill_engine::units::CpuId;

/// What is done with the messages of an agent, for those who try it with wrong ones (`crates/fuzz`).
#[doc(hidden)]
pub mod untrusted {
    pub use crate::control::ControlPage;
    pub use crate::growth::announced_range;
    pub use crate::handshake::check_ready;
    pub use crate::process::{collect, own_ranges};
    pub use crate::wire::receive;
}

/// The CPU for work that belongs to no pager thread.
pub(crate) fn cpu() -> CpuId {
    CpuId(0)
}
