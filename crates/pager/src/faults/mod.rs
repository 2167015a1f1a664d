//! Page faults and events of all processes: read, put in order, answered.

pub mod doorbell;
mod events;
pub(crate) mod files;
pub(crate) mod fork;
pub(crate) mod guards;
mod order;
mod removals;
pub(crate) mod shared;
pub(crate) mod thread;
mod token_queue;
