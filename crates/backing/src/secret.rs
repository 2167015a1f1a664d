//! A value that is nowhere but in this process's memory: for keys.
//!
//! It lies in pages of its own, which are locked (the kernel's swap never gets them), left out of core dumps,
//! absent in the children of a fork, and overwritten with zeros when it is dropped. The stack on which it was
//! made is overwritten too.
//!
//! If the limit on locked memory does not allow it, the value is not locked and `is_locked` says so; the
//! caller has to tell.
//!
//! What it does not do: hide the value from who may read this process's memory.
#![allow(unsafe_code, reason = "pages of their own, and a value that is made in them")]

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;

use memspill_engine::units::PAGE_SIZE;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use zeroize::Zeroize;

/// More than `make` uses of the stack: it expands a key.
const STACK_BYTES: usize = 32 << 10;

/// See the module's header.
pub(crate) struct Secret<T> {
    value: NonNull<T>,
    len_bytes: usize,
    locked: bool,
}

// SAFETY: the value is owned, and only handed out by shared reference.
unsafe impl<T: Send> Send for Secret<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Secret<T> {}

impl<T> Secret<T> {
    /// What `make` returns. It must leave nothing of it on the heap.
    pub(crate) fn new(make: impl FnOnce() -> io::Result<T>) -> io::Result<Secret<T>> {
        const { assert!(!std::mem::needs_drop::<T>(), "zeros take the place of drop") };
        const { assert!(std::mem::align_of::<T>() <= PAGE_SIZE) };
        let len_bytes = std::mem::size_of::<T>().max(1).next_multiple_of(PAGE_SIZE);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len_bytes, access, MapFlags::PRIVATE)
        }?;
        // SAFETY: the range is the mapping just made; this changes what the kernel does with it, no contents.
        let locked = unsafe {
            let _ = rustix::mm::madvise(base, len_bytes, Advice::LinuxDontDump);
            let _ = rustix::mm::madvise(base, len_bytes, Advice::LinuxDontFork);
            rustix::mm::mlock(base, len_bytes).is_ok()
        };
        let value = NonNull::new(base.cast::<T>()).expect("mmap never returns null without MAP_FIXED");
        // The mapping goes by `drop`, also where there is no value: zeros are overwritten by zeros.
        let secret = Secret { value, len_bytes, locked };
        let made = put(value, make);
        overwrite_stack();
        made.map(|()| secret)
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.locked
    }
}

/// In a frame of its own, below that of the caller, so that `overwrite_stack` comes to lie over it.
#[inline(never)]
fn put<T>(place: NonNull<T>, make: impl FnOnce() -> io::Result<T>) -> io::Result<()> {
    let value = make()?;
    // SAFETY: the place is large enough, aligned to a page, writable, and nobody else's.
    unsafe { place.write(value) };
    Ok(())
}

#[inline(never)]
fn overwrite_stack() {
    let mut frame = [0u8; STACK_BYTES];
    std::hint::black_box(&mut frame).zeroize();
}

impl<T> Deref for Secret<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `new` returns no Secret whose value was not written; it lives as long as the mapping.
        unsafe { self.value.as_ref() }
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        let base = self.value.as_ptr().cast::<u8>();
        // SAFETY: the mapping is ours alone, all of it is initialised, and no reference into it outlives
        // `self`. (The value needs no drop, see `new`.)
        unsafe {
            std::slice::from_raw_parts_mut(base, self.len_bytes).zeroize();
            let _ = rustix::mm::munmap(base.cast(), self.len_bytes);
        }
    }
}

/// May a value of a page be locked in memory here?
pub fn keys_are_locked() -> bool {
    Secret::new(|| Ok([0u8; PAGE_SIZE])).is_ok_and(|secret| secret.is_locked())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of the mapping that holds this address, as /proc/self/smaps has them.
    fn flags_at(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            if let Some((range, _)) = line.split_once(' ')
                && let Some((from, to)) = range.split_once('-')
                && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
            {
                inside = (from..to).contains(&address);
            }
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                return flags.to_owned();
            }
        }
        panic!("no mapping holds {address:x}");
    }

    #[test]
    fn it_is_locked_not_dumped_and_not_inherited() {
        let secret = Secret::new(|| Ok([7u64; 60])).unwrap();
        let flags = flags_at(std::ptr::from_ref(&*secret).addr());
        // lo: locked (where the limit allows it), dd: not dumped, dc: not copied by fork.
        let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
        assert!(has("dd") && has("dc"), "{flags}");
        assert_eq!(has("lo"), secret.is_locked(), "{flags}");
        assert_eq!(*secret, [7; 60]);
    }

    #[test]
    fn without_a_value_there_is_an_error() {
        let none: io::Result<Secret<u8>> = Secret::new(|| Err(io::ErrorKind::OutOfMemory.into()));
        assert_eq!(none.err().map(|error| error.kind()), Some(io::ErrorKind::OutOfMemory));
    }
}
