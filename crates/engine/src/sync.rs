//! The one door to locks, atomics and time: std in a shipped build, loom under `--cfg loom` (every interleaving and every
//! order of memory, of a few steps), shuttle under `--cfg shuttle` (drawn interleavings, of whole threads of the engine), and
//! under `--cfg simulated` (the crate `engine-sim`, which has these same sources) those of virtual CPUs, where each costs
//! virtual time.
//!
//! Everything else in the engine imports from here, so that one body of code can be shipped, model-checked and
//! simulated. What it does not do: pick a CPU (that is an argument) or read a clock (callers pass `now_ns`).

#[cfg(loom)]
pub use loom::sync::{
    Arc, Condvar, Mutex, MutexGuard, RwLock,
    atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
#[cfg(simulated)]
pub use memspill_vcpu::{
    Arc, AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, RwLock,
};
#[cfg(shuttle)]
pub use shuttle::sync::{
    Arc, Condvar, Mutex, MutexGuard, RwLock,
    atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
#[cfg(not(any(loom, shuttle, simulated)))]
pub use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, RwLock,
    atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

/// A count of events, by which nothing is decided: shuttle need not switch threads there, where it would only draw fewer of
/// the switches that matter.
#[cfg(shuttle)]
pub type EventCount = std::sync::atomic::AtomicU64;
#[cfg(not(shuttle))]
pub type EventCount = AtomicU64;

/// Let another thread run: the body of every bounded spin.
pub fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(simulated)]
    memspill_vcpu::spin_hint();
    #[cfg(shuttle)]
    shuttle::hint::spin_loop();
    #[cfg(not(any(loom, shuttle, simulated)))]
    std::hint::spin_loop();
}

/// Lock, and treat a poisoned lock as what it is: a broken invariant. The panic aborts the supervisor, and the
/// target is killed rather than fed bytes that may be wrong.
#[track_caller]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a thread panicked while it held this lock")
}

/// Give the CPU away: for waits on somebody who may have been descheduled.
pub fn yield_now() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(simulated)]
    memspill_vcpu::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
    #[cfg(not(any(loom, shuttle, simulated)))]
    std::thread::yield_now();
}
