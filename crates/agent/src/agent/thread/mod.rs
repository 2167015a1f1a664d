//! One thread of the program: its block (`block.rs`), how it sleeps (`wait.rs`), and how it keeps forks away
//! while it changes mappings (`fork_lock.rs`).

pub mod block;
pub mod fork_lock;
pub mod wait;
