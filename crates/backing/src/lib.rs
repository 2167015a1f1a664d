//! Backing stores under a swap device.
mod arena;
pub mod compress;
mod fifo;
pub mod file;
pub mod pool;
pub mod ram;
mod ring;
pub mod tier;
pub use file::{FileBacking, FileConfig, FilePlace, IoEngine};
pub use ram::{RamBacking, RamConfig};
pub use tier::TierBacking;
