//! Faults, events and eviction of real address spaces: drives the engine. ARCHITECTURE.md tells the life of a page.

mod control;
pub mod ctl;
mod errors;
mod events;
mod evict;
mod fault;
pub mod growth;
pub mod groups;
mod guardian;
pub mod handshake;
pub mod histogram;
mod home;
pub mod operator;
pub mod pager;
mod panics;
pub mod proc;
mod process;
mod quiet;
pub mod supervisor;
mod target;
mod token;
mod turn;
mod wire;

use memspill_engine::units::CpuId;

/// The CPU for work that belongs to no pager thread.
pub(crate) fn cpu() -> CpuId {
    CpuId(0)
}
