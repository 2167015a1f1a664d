//! How a process of the tree joins the run: who may, in which group it is, and whether the command itself
//! is managed.

mod callers;
mod exchange;
pub mod groups;
mod inherit;
pub(crate) mod porter;
pub mod socket;
pub mod source;
pub(crate) mod target;

pub use exchange::check_ready;
