//! Atomics, fences and spinning: core's, in what is shipped; under `--cfg shuttle` core's too, each with a
//! step before it at which another thread may come.
//!
//! All of the agent imports them from here, and so does that part of the supervisor which shares memory with
//! it. So the same code is shipped and model-checked (`crates/agent/tests/shuttle_agent.rs`). Shuttle's own
//! atomics are no plain words, but those of agent and supervisor lie in memory that both map, at addresses
//! (`from_ptr`).
//!
//! Relaxed accesses are no steps: nothing may be decided by them.
#![cfg_attr(
    shuttle,
    allow(unsafe_code, reason = "words at addresses, as core's atomics have them; in tests alone")
)]

#[cfg(not(shuttle))]
pub use core::hint::spin_loop as spin_hint;
pub use core::sync::atomic::Ordering;
#[cfg(not(shuttle))]
pub use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(shuttle)]
pub use modelled::*;
#[cfg(shuttle)]
pub use shuttle::hint::spin_loop as spin_hint;

/// Atomics under shuttle.
#[cfg(shuttle)]
mod modelled {
    use super::{Ordering, access};
    use core::cell::UnsafeCell;

    /// As core's, with what agent and supervisor use of it. Each is made of an access that is one step: how a
    /// value is found, and what becomes of it.
    macro_rules! atomics {
        ($($name:ident $(<$type:ident>)?: $value:ty;)*) => { $(
            #[repr(transparent)]
            pub struct $name $(<$type>)? (UnsafeCell<$value>);

            // SAFETY: the threads of a model are one thread of the system.
            unsafe impl $(<$type>)? Sync for $name $(<$type>)? {}
            // SAFETY: as above.
            unsafe impl $(<$type>)? Send for $name $(<$type>)? {}

            impl $(<$type>)? $name $(<$type>)? {
                pub const fn new(value: $value) -> Self {
                    Self(UnsafeCell::new(value))
                }

                /// # Safety
                /// As for core's.
                pub const unsafe fn from_ptr<'a>(at: *mut $value) -> &'a Self {
                    // SAFETY: the caller's promise; the layouts are the same.
                    unsafe { &*at.cast() }
                }

                pub const fn as_ptr(&self) -> *mut $value {
                    self.0.get()
                }

                pub fn get_mut(&mut self) -> &mut $value {
                    self.0.get_mut()
                }

                pub fn load(&self, order: Ordering) -> $value {
                    access::load(self.0.get(), order)
                }

                pub fn store(&self, value: $value, order: Ordering) {
                    access::store(self.0.get(), value, order);
                }

                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    self.replace(order, |_| value)
                }

                pub fn compare_exchange(
                    &self,
                    from: $value,
                    to: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    access::update(self.0.get(), success, failure, |seen| (seen == from).then_some(to))
                }

                pub fn compare_exchange_weak(
                    &self,
                    from: $value,
                    to: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.compare_exchange(from, to, success, failure)
                }

                fn replace(&self, order: Ordering, next: impl Fn($value) -> $value) -> $value {
                    let always = |seen| Some(next(seen));
                    access::update(self.0.get(), order, Ordering::Relaxed, always).unwrap_or_else(|seen| seen)
                }
            }
        )* };
    }

    macro_rules! numbers {
        ($($name:ident: $value:ty;)*) => { $(
            impl $name {
                pub fn fetch_add(&self, by: $value, order: Ordering) -> $value {
                    self.replace(order, |seen| seen.wrapping_add(by))
                }

                pub fn fetch_sub(&self, by: $value, order: Ordering) -> $value {
                    self.replace(order, |seen| seen.wrapping_sub(by))
                }

                pub fn fetch_or(&self, bits: $value, order: Ordering) -> $value {
                    self.replace(order, |seen| seen | bits)
                }

                pub fn fetch_and(&self, bits: $value, order: Ordering) -> $value {
                    self.replace(order, |seen| seen & bits)
                }

                pub fn fetch_xor(&self, bits: $value, order: Ordering) -> $value {
                    self.replace(order, |seen| seen ^ bits)
                }

                pub fn fetch_update(
                    &self,
                    success: Ordering,
                    failure: Ordering,
                    next: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    access::update(self.0.get(), success, failure, next)
                }
            }
        )* };
    }

    atomics! {
        AtomicBool: bool; AtomicI32: i32; AtomicU32: u32; AtomicU64: u64; AtomicUsize: usize;
        AtomicPtr<T>: *mut T;
    }
    numbers! { AtomicI32: i32; AtomicU32: u32; AtomicU64: u64; AtomicUsize: usize; }
}

#[cfg(shuttle)]
mod access {
    use super::Ordering;

    /// Another thread may come. (Shuttle takes such steps at the accesses of its own atomics.)
    fn step(order: Ordering) {
        if order != Ordering::Relaxed {
            shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
        }
    }

    pub fn load<T: Copy>(at: *mut T, order: Ordering) -> T {
        step(order);
        // SAFETY: whoever has an atomic has the memory.
        unsafe { at.read_volatile() }
    }

    pub fn store<T: Copy>(at: *mut T, value: T, order: Ordering) {
        step(order);
        // SAFETY: as above.
        unsafe { at.write_volatile(value) };
    }

    pub fn update<T: Copy>(
        at: *mut T,
        order: Ordering,
        _failure: Ordering,
        mut next: impl FnMut(T) -> Option<T>,
    ) -> Result<T, T> {
        let seen = load(at, order);
        let Some(value) = next(seen) else { return Err(seen) };
        // SAFETY: as above.
        unsafe { at.write_volatile(value) };
        Ok(seen)
    }
}

#[cfg(shuttle)]
pub fn fence(_order: Ordering) {}
