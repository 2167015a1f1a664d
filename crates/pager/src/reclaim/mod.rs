//! Reclaim: the threads that take pages out, and who keeps memory when there is not enough for all.

pub(crate) mod direct;
pub(crate) mod evict;
pub(crate) mod fairness;
pub(crate) mod fork_room;
pub(crate) mod give_back;
mod no_room;
mod spin;
mod unresponsive;
