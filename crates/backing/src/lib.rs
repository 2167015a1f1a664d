//! Backing stores under a swap device: where the bytes of a slot are kept.
//!
//! ```text
//!                        ┌─ tier.rs ── the default ──────────────────────────┐
//!   engine ─ Backing ──▶ │  ram.rs: compressed ──(oldest first)──▶ file/     │
//!                        │  recompress.rs, worth.rs: first once more         │
//!                        └───┬───────────┬────────────────────────────┬──────┘
//!                        compress.rs   pool.rs, fifo.rs            places.rs: as a log
//!                        wordwise.rs,  objects in size classes     ring.rs: io_uring
//!                        LZ4, zstd           │                     (pread, pwrite where it is refused)
//!                                         arena.rs: zeroed memory, given back page by page
//!                                            │
//!                          disk.rs: a RAM disk, nothing is compressed
//!   file/ over nbd/: an export of an NBD server in place of a file
//!   for tests and trials: null.rs (the template for a new one), faulty.rs, throttled.rs
//! ```
//!
//! `secret.rs` keeps the keys of encrypted files in locked memory.
//!
//! The trait and its contract are in `memspill_engine::backing`; `tests/conformance.rs` holds every backing
//! here to it. Unsafe code is in `arena.rs` and `secret.rs` (mappings), `ring.rs` (buffers lent to the
//! kernel), and two system calls of `file/medium.rs`; everything above works on atomics and owned buffers.
//!
//! Two notes for processes that use this: tables and pool are large NORESERVE mappings, so
//! `mlockall(MCL_FUTURE)` must be given `MCL_ONFAULT` with it; and the pool gives pages back with
//! MADV_DONTNEED, which locked memory refuses.

mod arena;
pub mod compress;
mod dense;
pub mod disk;
pub mod faulty;
mod fifo;
pub mod file;
mod location;
pub mod nbd;
pub mod null;
mod order;
mod places;
pub mod pool;
pub mod pool_file;
pub mod ram;
mod recompress;
mod ring;
mod secret;
mod signatures;
pub mod throttled;
pub mod tier;
mod wordwise;
mod worth;

pub use compress::Algorithm;
pub use disk::RamDisk;
pub use faulty::{FaultPlan, FaultyBacking};
pub use file::cpu_does_aes;
pub use file::{DiscardPolicy, FileBacking, FileConfig, FilePlace, IoEngine};
pub use nbd::{NbdConfig, NbdError, NbdTarget};
pub use null::NullBacking;
pub use ram::{RamBacking, RamConfig};
pub use secret::keys_are_locked;
pub use throttled::{ThrottleConfig, ThrottledBacking};
pub use tier::TierBacking;
pub use worth::Recompress;
