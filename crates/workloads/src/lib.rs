//! Programs that touch memory the way the published swap benchmarks do, and check every page they read.
//!
//! `memspill-workload NAME --help` lists the options. Each workload prints one line of JSON and exits 0;
//! a page with wrong contents is told on stderr with its address, what was expected and what was found,
//! and the process exits 1 at once.

pub mod args;
pub mod command;
pub mod contents;
pub mod crew;
pub mod distribution;
pub mod histogram;
pub mod report;
pub mod rng;

// Raw mappings, fork and a few system calls: the only unsafe code of this crate.
#[allow(unsafe_code)]
pub mod os;

pub mod compile;
pub mod cpu;
pub mod fork_storm;
pub mod fresh;
pub mod hog;
pub mod mutate;
mod mutate_shared;
pub mod pmbench;
pub mod populate;
pub mod seqswap;
pub mod sequential;
pub mod shmem_read;
pub mod spin_touch;
pub mod usemem;
pub mod verify_threads;
