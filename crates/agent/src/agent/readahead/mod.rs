//! Which pages come along with the one that a thread needs. Rules alone: no system call, no state of a
//! process.
//!
//! `rows.rs` finds rows in the faults of a thread, and says how large the next window of a row is;
//! `window.rs` says how much of that window comes.

pub mod rows;
pub mod window;
