//! The swap subsystem. See ARCHITECTURE.md for the life of a page.
//!
//! No system calls, no threads, no clock, no globals: the CPU is an argument, the two traits
//! [`backing::Backing`] and [`memory::Memory`] are passed in, and every lock and atomic comes through
//! [`sync`].

mod ahead;
pub mod backing;
mod check;
mod cow;
pub mod devices;
pub mod engine;
pub mod errors;
pub mod fault_trace;
pub mod fill;
pub mod frames;
pub mod gate;
pub mod group;
mod install;
mod kept;
pub mod layout;
mod lean;
pub mod memory;
mod neighbours;
mod notes;
mod per_cpu;
mod pointers;
mod predict;
pub mod readahead;
mod reads;
pub mod reclaim;
pub mod refaults;
pub mod slots;
pub mod space;
mod spaces;
pub mod stats;
pub mod swap;
mod swap_in;
pub mod swap_out;
pub mod swapoff;
pub mod sync;
pub mod testing;
mod trust;
pub mod tuning;
pub mod units;
mod unwritten;
mod windows;
pub mod word;
pub mod write_out;
