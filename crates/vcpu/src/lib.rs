//! Virtual CPUs with a virtual clock: tasks that stop at each lock and atomic, so that the one with the least
//! time goes on, and locks, atomics and reference counts that cost time there (`cost.rs`).
//!
//! ```text
//!   spawn(cpu, body) ─▶ task: its own clock ── lock, atomic, spend ──▶ later than another task? suspend
//!   run() ─▶ resumes the task with the least time, until all have ended
//! ```
//!
//! One task per virtual CPU, or several that share it (`cpus.rs`), all on one thread of this process: nothing
//! here is parallel, and the same program with the same seed does the same, everywhere. Outside of a task
//! (while things are made, and at quiet points) every primitive is free and takes no time.
//!
//! What it does not do: weak memory orderings (every operation is sequentially consistent; loom looks at
//! those), balancing between busy CPUs, false sharing but for atomics that are made by one expression (see
//! `lines.rs`).

mod arc;
mod atomic;
pub mod cost;
mod cpus;
mod guarded;
mod lines;
mod lock;
mod locks;
pub mod profile;
pub mod random;
mod switch;
mod wait;
mod world;

pub use arc::Arc;
pub use atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize};
pub use guarded::GuardedLines;
pub use lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use locks::TaskId;
pub use std::sync::atomic::Ordering;
pub use wait::Signal;
pub use world::{
    Machine, Preemption, Waiting, World, align, block, count, cpu_time, current_cpu, current_task, now, run,
    sleep, sleep_until, spawn, spawn_floating, spend, step, untimed, wake,
};

/// The body of a bounded spin.
pub fn spin_hint() {
    world::step(cost::PAUSE_NS);
}

/// sched_yield(2).
pub fn yield_now() {
    world::step(cost::SCHED_YIELD_NS);
    world::give_way();
}
