//! `memspill-lab sim`: the shipped engine's sources on virtual CPUs with a virtual clock.
//!
//! ```text
//!   scale, seeds ──▶ bench ──┐
//!                            ├─▶ host: what the pager does ─▶ engine (engine-sim) ─▶ target, object: memory
//!   soak ────────────────────┘       tasks: vcpu                                  └▶ device: what slots hold
//! ```
//!
//! scale and seeds make a `memspill_tables::Report`, which that crate renders.
//!
//! Everything but `calibrate` is a function of the command line: no clock, no address, no order of a hash map
//! is in the output, so the same command prints the same bytes on every machine. The costs are in
//! `vcpu/src/cost.rs`.

pub mod bench;
pub mod calibrate;
pub mod device;
mod figures;
pub mod fragments;
mod host;
pub mod kernel;
mod object;
mod pagers;
pub mod policy;
pub mod scale;
pub mod seeds;
mod shared;
pub mod soak;
mod target;
mod threads;
mod zipf;

pub use host::{Back, Reclaim};
