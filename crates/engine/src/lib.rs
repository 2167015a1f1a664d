//! The swap subsystem. See ARCHITECTURE.md for the life of a page.
//!
//! No system calls, no threads, no clock, no globals: the CPU is an argument, the two traits [`backing::Backing`] and
//! [`memory::Memory`] are passed in, and every lock and atomic comes through [`sync`].

pub mod backing;
pub mod cgroup_map;
mod check;
pub mod devices;
pub mod engine;
pub mod errors;
mod folio;
pub mod gate;
pub mod group;
mod kept;
pub mod memory;
pub mod readahead;
pub mod reclaim;
pub mod slots;
pub mod space;
pub mod stats;
pub mod swap_in;
pub mod swap_out;
pub mod swapoff;
pub mod sync;
pub mod tuning;
pub mod units;
pub mod word;
