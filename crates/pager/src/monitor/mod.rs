//! The monitor: it counts memory, registers what is new when memory is tight, and sees what cannot be
//! managed.
//!
//! ```text
//!   rounds.rs ─┬─ ended.rs ───── which processes are there, and how big are they?
//!   (thread)   ├─ account.rs ─── what is not managed, and how much may come before memory is tight
//!              ├─ register.rs ── whose faults come to us
//!              ├─ adopt.rs ───── pages that are there already become managed
//!              ├─ protect.rs ─── pages that are shared since a fork: writes to them come to us
//!              ├─ shared.rs ──── shared memory: counted once, and managed
//!              │  shared_files.rs ─ who uses files of shared memory, and how
//!              ├─ stalls.rs ──── time lost to waiting for memory
//!              ├─ unmanaged.rs ─ too much that cannot be swapped out
//!              └─ errors.rs ──── errors of swap devices, for people
//! ```

pub(crate) mod account;
pub(crate) mod adopt;
pub(crate) mod ended;
pub(crate) mod errors;
pub(crate) mod protect;
pub(crate) mod register;
pub(crate) mod rounds;
mod shared;
mod shared_count;
mod shared_files;
mod stalls;
pub(crate) mod unmanaged;
