//! An array of which only the parts that were touched exist.
//!
//! ```text
//!   directory   [ chunk 0 | - | chunk 2 | - | - ]     one word or two per 512 elements, made at once
//!                    │            │
//!                 [512 T]      [512 T]                made when the first of them is asked for, never unmade
//! ```
//!
//! A device of 2^31 slots has four million clusters; a job that swaps out 10 MiB of it must not pay for them.
//! Chunks live as long as the array, so a reference to an element needs no lock and no reference count.
//!
//! `OnceLock` is taken from std without going through [`crate::sync`], here and in per_cpu.rs: it publishes a
//! pointer once and is only read afterwards. A model checker cannot see that, so under loom a flag with the
//! same ordering stands beside it.

use std::sync::OnceLock;

#[cfg(loom)]
use crate::sync::AtomicBool;
use crate::sync::{AtomicU64, Ordering};

/// Elements in one chunk.
const CHUNK: usize = 512;

/// A value that is made once, by whoever needs it first.
pub(crate) struct Once<T> {
    value: OnceLock<T>,
    #[cfg(loom)]
    published: AtomicBool,
}

impl<T> Once<T> {
    pub(crate) fn new() -> Once<T> {
        Once {
            value: OnceLock::new(),
            #[cfg(loom)]
            published: AtomicBool::new(false),
        }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        #[cfg(loom)]
        if !self.published.load(Ordering::Acquire) {
            return None;
        }
        self.value.get()
    }

    /// The value, and whether this call has made it. `make` must not wait for anything.
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> T) -> (&T, bool) {
        let mut made = false;
        let value = self.value.get_or_init(|| {
            made = true;
            make()
        });
        #[cfg(loom)]
        if made {
            self.published.store(true, Ordering::Release);
        } else {
            while !self.published.load(Ordering::Acquire) {
                crate::sync::spin_hint();
            }
        }
        (value, made)
    }
}

pub(crate) struct LazyArray<T> {
    len: usize,
    directory: Box<[Once<Box<[T]>>]>,
    /// Memory of the chunks that exist; what their elements point at is not in it.
    chunk_bytes: AtomicU64,
}

impl<T> LazyArray<T> {
    pub(crate) fn new(len: usize) -> LazyArray<T> {
        let directory = (0..len.div_ceil(CHUNK)).map(|_| Once::new()).collect();
        LazyArray { len, directory, chunk_bytes: AtomicU64::new(0) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The element, if its chunk exists.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        let chunk = self.directory.get(index / CHUNK)?.get()?;
        chunk.get(index % CHUNK)
    }

    /// The element; its chunk is made with `new(index)` for each element if it is the first to be asked for.
    pub(crate) fn get_or_make(&self, index: usize, new: impl Fn(usize) -> T) -> &T {
        assert!(index < self.len, "element {index} of an array of {}", self.len);
        let first = index - index % CHUNK;
        let end = self.len.min(first + CHUNK);
        let make = || (first..end).map(&new).collect();
        let (chunk, made) = self.directory[index / CHUNK].get_or_make(make);
        if made {
            self.chunk_bytes.fetch_add(size_of_val::<[T]>(chunk) as u64, Ordering::Relaxed);
        }
        &chunk[index - first]
    }

    pub(crate) fn bytes(&self) -> u64 {
        size_of_val::<[Once<Box<[T]>>]>(&self.directory) as u64 + self.chunk_bytes.load(Ordering::Relaxed)
    }
}
