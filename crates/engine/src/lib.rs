//! The swap subsystem. See ARCHITECTURE.md for the life of a page.
//!
//! No system calls, no threads, no clock, no globals: the CPU, the time and the two traits [`backing::Backing`] and
//! `memory::Memory` are passed in, and every lock and atomic comes through [`sync`].

pub mod backing;
pub mod sync;
pub mod units;
