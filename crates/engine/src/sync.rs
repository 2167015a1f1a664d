//! Locks and atomics, of which there are four kinds:
//!
//! * std's, in a shipped build;
//! * loom's, under `--cfg loom`: every interleaving and every memory order of a few steps;
//! * shuttle's, under `--cfg shuttle`: random interleavings of whole threads of the engine;
//! * those of virtual CPUs, which cost virtual time, under `--cfg simulated` (the crate `engine-sim`, which
//!   compiles these same sources).
//!
//! All other files of the engine import them from here (but for `OnceLock` in slots/lazy.rs and per_cpu.rs,
//! and a hint in gate.rs), so that the same code is shipped, model-checked and simulated. What it does not
//! do: pick a CPU (that is an argument).

#[cfg(loom)]
pub use loom::sync::{
    Arc, Condvar, Mutex, MutexGuard, RwLock,
    atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
#[cfg(simulated)]
pub use memspill_vcpu::{
    Arc, AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering,
    RwLock,
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

/// Cache lines of plain data under a lock: virtual CPUs bring those that another one has written. Nothing
/// elsewhere.
#[cfg(simulated)]
pub use memspill_vcpu::GuardedLines;
#[cfg(not(simulated))]
pub struct GuardedLines;
#[cfg(not(simulated))]
impl GuardedLines {
    pub fn new(_lines: usize) -> GuardedLines {
        GuardedLines
    }
    #[inline(always)]
    pub fn write(&self, _at: usize) {}
}

/// A value on cache lines of its own: it is written all the time, and its neighbours are read all the time.
#[repr(align(128))]
pub struct Apart<T>(pub T);

impl<T> Apart<T> {
    pub fn new(value: T) -> Apart<T> {
        // They see no addresses.
        #[cfg(simulated)]
        memspill_vcpu::align();
        Apart(value)
    }
}

impl<T: Default> Default for Apart<T> {
    fn default() -> Apart<T> {
        Apart::new(T::default())
    }
}

/// A count of events, on which no decision depends. So shuttle and loom need not switch threads there, and
/// look at more of the switches that matter.
#[cfg(any(loom, shuttle))]
pub type EventCount = std::sync::atomic::AtomicU64;
#[cfg(not(any(loom, shuttle)))]
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

/// Lock. A poisoned lock is a broken invariant, so it is a panic, which ends the supervisor: the target is
/// killed rather than given bytes that may be wrong.
#[track_caller]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a thread panicked while it held this lock")
}

/// Nanoseconds since some moment, for telling how long locks cost: nothing is decided by it. 0 where a model
/// checker looks, which must see the same each time.
pub fn clock_ns() -> u64 {
    #[cfg(any(loom, shuttle))]
    return 0;
    #[cfg(simulated)]
    return memspill_vcpu::now();
    #[cfg(not(any(loom, shuttle, simulated)))]
    {
        static START: std::sync::LazyLock<std::time::Instant> =
            std::sync::LazyLock::new(std::time::Instant::now);
        START.elapsed().as_nanos() as u64
    }
}

/// Give the CPU away: for waiting on a thread that may have lost its CPU.
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
