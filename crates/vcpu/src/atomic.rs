//! Atomics: std's, each on a cache line that costs time (`lines.rs`). All orderings are as SeqCst: one thread
//! runs.

use crate::lines::LineId;
use crate::world;
use std::panic::Location;
use std::sync::atomic::Ordering;

macro_rules! atomics {
    ($($name:ident($int:ty),)*) => { $(
        pub struct $name {
            line: LineId,
            inner: std::sync::atomic::$name,
        }

        impl $name {
            #[track_caller]
            pub fn new(value: $int) -> $name {
                let line = world::make_line_for(size_of::<$int>() as u32, Location::caller());
                $name { line, inner: std::sync::atomic::$name::new(value) }
            }
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $int {
                world::read(self.line, Location::caller());
                self.inner.load(order)
            }
            #[track_caller]
            pub fn store(&self, value: $int, order: Ordering) {
                world::write(self.line, Location::caller());
                self.inner.store(value, order)
            }
            #[track_caller]
            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                world::write(self.line, Location::caller());
                self.inner.swap(value, order)
            }
            #[track_caller]
            pub fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                world::write(self.line, Location::caller());
                self.inner.fetch_or(value, order)
            }
            #[track_caller]
            pub fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                world::write(self.line, Location::caller());
                self.inner.fetch_and(value, order)
            }
            #[track_caller]
            pub fn compare_exchange(
                &self,
                old: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                world::write(self.line, Location::caller());
                self.inner.compare_exchange(old, new, success, failure)
            }
            /// Fails only as the strong one does.
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                old: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                self.compare_exchange(old, new, success, failure)
            }
            #[track_caller]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut update: impl FnMut($int) -> Option<$int>,
            ) -> Result<$int, $int> {
                let mut old = self.load(fetch);
                while let Some(new) = update(old) {
                    match self.compare_exchange(old, new, set, fetch) {
                        Ok(old) => return Ok(old),
                        Err(seen) => old = seen,
                    }
                }
                Err(old)
            }
        }

        impl Default for $name {
            #[track_caller]
            fn default() -> $name {
                $name::new(<$int>::default())
            }
        }
    )* };
}

macro_rules! arithmetic {
    ($($name:ident($int:ty),)*) => { $(
        impl $name {
            #[track_caller]
            pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                world::write(self.line, Location::caller());
                self.inner.fetch_add(value, order)
            }
            #[track_caller]
            pub fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                world::write(self.line, Location::caller());
                self.inner.fetch_sub(value, order)
            }
            #[track_caller]
            pub fn fetch_max(&self, value: $int, order: Ordering) -> $int {
                world::write(self.line, Location::caller());
                self.inner.fetch_max(value, order)
            }
            #[track_caller]
            pub fn fetch_min(&self, value: $int, order: Ordering) -> $int {
                world::write(self.line, Location::caller());
                self.inner.fetch_min(value, order)
            }
        }
    )* };
}

atomics! { AtomicBool(bool), }
atomics! { AtomicU8(u8), AtomicU16(u16), AtomicU32(u32), AtomicU64(u64), AtomicUsize(usize), }
arithmetic! { AtomicU8(u8), AtomicU16(u16), AtomicU32(u32), AtomicU64(u64), AtomicUsize(usize), }
