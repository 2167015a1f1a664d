//! Slots of a swap device: handing them out, counting references, and the swap cache that sits in the same words.
//!
//! ```text
//!   swap_out ── alloc ──▶ SwapDevice ◀── dup, put ── page table (fork, unmap, swap-in)
//!                │            │
//!       percpu hint           ├── clusters: 512 slots, a lock each      cluster.rs, slot_word.rs
//!        percpu.rs            ├── scan base of each CPU, no lock        scan.rs
//!                             ├── lists of clusters, one lock           lists.rs
//!                             └── swap cgroup map, no lock              ../cgroup_map.rs
//! ```
//!
//! Start reading at [`allocator`], which tells the whole story; each of the others is one part of it.

pub mod allocator;
mod cluster;
pub(crate) mod lazy;
mod lists;
mod percpu;
mod scan;
mod slot_word;

pub use allocator::{SlotStats, SwapDevice};
pub use cluster::CacheRelease;
