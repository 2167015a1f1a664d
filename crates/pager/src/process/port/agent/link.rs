//! The supervisor's view of what a process's agent shares with it (`Link` in the agent's `link.rs`): its
//! words, its arrays, and the bytes behind them.
//!
//! The process may write anything at any time. Each word is an atomic, and each record is copied out once;
//! the callers check what they have read.
#![allow(unsafe_code, reason = "a mapping that another process writes: atomics through raw pointers")]

use crate::process::control::ControlPage;
use memspill_common::link::{
    DELIVERIES_ALL, DELIVERY_PAGES, Delivery, EARLY, HINTS, Hint, LINK_AT, Link, Message, RING, STAGING_AT,
    UNASKED, WAITERS, bytes_at,
};
use memspill_common::protocol::STAGING_PAGES;
use memspill_common::sync::{AtomicU32, AtomicU64, Ordering};
use memspill_engine::units::{PAGE_SIZE, Page};
use std::ops::Range;
use std::ptr::addr_of_mut;
use std::sync::Arc;

pub struct SharedLink {
    pub control: Arc<ControlPage>,
}

macro_rules! words {
    ($($field:ident: $atomic:ident),* $(,)?) => {
        $(pub fn $field(&self) -> &$atomic {
            // SAFETY: in our live mapping, aligned, and accessed as an atomic only.
            unsafe { $atomic::from_ptr(addr_of_mut!((*self.link()).$field)) }
        })*
    };
}

macro_rules! words_of_arrays {
    ($($name:ident: $array:ident[$len:ident]$(.$field:ident)?: $atomic:ident),* $(,)?) => {
        $(pub fn $name(&self, index: usize) -> &$atomic {
            assert!(index < $len, "there are {}", $len);
            // SAFETY: in bounds, in our live mapping, aligned, and accessed as an atomic only.
            unsafe { $atomic::from_ptr(addr_of_mut!((*self.link()).$array[index]$(.$field)?)) }
        })*
    };
}

impl SharedLink {
    words! {
        head: AtomicU64, tail: AtomicU64, changes: AtomicU64, changes_read: AtomicU64,
        waits_for_room: AtomicU32, room: AtomicU32, waiting: AtomicU32, tells: AtomicU32, held: AtomicU32,
        closed_bytes: AtomicU64, only_from: AtomicU64, only_to: AtomicU64,
        protects_shared: AtomicU64, shared_taken: AtomicU64,
        take: AtomicU64, token: AtomicU64, names_followed: AtomicU64,
        distrusted: AtomicU64, allows_early: AtomicU64, early_run: AtomicU64, early_told_at: AtomicU64,
        early_noted: AtomicU64, hints_head: AtomicU64, hints_tail: AtomicU64,
    }

    words_of_arrays! {
        early: early[EARLY]: AtomicU64,
        early_tid: early_tids[EARLY]: AtomicU32,
        early_left_out: early_left_out[EARLY]: AtomicU32,
        waiter_page: waiters[WAITERS].page: AtomicU64,
        waiter_run: waiters[WAITERS].run: AtomicU32,
        waiter_woken: waiters[WAITERS].woken: AtomicU32,
        delivery_state: deliveries[DELIVERIES_ALL].state: AtomicU32,
    }

    fn link(&self) -> *mut Link {
        self.control.file().wrapping_add(LINK_AT).cast()
    }

    /// The message with this number.
    pub fn message(&self, number: u64) -> Message {
        // SAFETY: in bounds; plain data, any bit pattern is valid.
        unsafe { addr_of_mut!((*self.link()).ring[number as usize % RING]).read_volatile() }
    }

    /// Writes a message, as the agent does.
    #[cfg(all(test, not(shuttle)))]
    pub fn set_message(&self, number: u64, message: Message) {
        // SAFETY: in bounds.
        unsafe { addr_of_mut!((*self.link()).ring[number as usize % RING]).write_volatile(message) };
    }

    pub fn delivery(&self, index: usize) -> Delivery {
        assert!(index < DELIVERIES_ALL, "there are {DELIVERIES_ALL} deliveries");
        // SAFETY: in bounds; plain data, any bit pattern is valid.
        unsafe { addr_of_mut!((*self.link()).deliveries[index]).read_volatile() }
    }

    /// One that is FREE, which the agent leaves alone.
    pub fn set_delivery(&self, index: usize, delivery: Delivery) {
        assert!(index < DELIVERIES_ALL, "there are {DELIVERIES_ALL} deliveries");
        // SAFETY: in bounds.
        unsafe { addr_of_mut!((*self.link()).deliveries[index]).write_volatile(delivery) };
    }

    /// The bytes of a delivery that is FREE.
    pub fn set_bytes(&self, index: usize, bytes: &[u8]) {
        let room_pages = if index < DELIVERIES_ALL - UNASKED { DELIVERY_PAGES } else { 1 };
        assert!(index < DELIVERIES_ALL && bytes.len() <= room_pages * PAGE_SIZE, "they fit");
        // SAFETY: within the part of the file that belongs to this delivery.
        unsafe {
            let to = self.control.file().add(bytes_at(index));
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// The hint with this number. The agent does not read it before `hints_head` says so.
    pub fn set_hint(&self, number: u64, hint: Hint) {
        // SAFETY: in bounds.
        unsafe { addr_of_mut!((*self.link()).hints[number as usize % HINTS]).write_volatile(hint) };
    }

    /// A page of staging. The agent may write it meanwhile: then its own process gets other bytes back than
    /// it had.
    pub fn read_staging(&self, page: u32, into: &mut Page) {
        assert!(page < STAGING_PAGES, "staging has {STAGING_PAGES} pages");
        // SAFETY: within the part of the file that is staging.
        unsafe {
            let from = self.control.file().add(STAGING_AT + page as usize * PAGE_SIZE);
            std::ptr::copy_nonoverlapping(from, into.0.as_mut_ptr(), PAGE_SIZE);
        }
    }

    /// Gives pages of staging back to the system.
    pub fn free_staging(&self, pages: Range<u32>) {
        assert!(pages.start < pages.end && pages.end <= STAGING_PAGES, "staging has {STAGING_PAGES} pages");
        // SAFETY: within the part of the file that is staging, to which nothing refers.
        unsafe {
            let from = self.control.file().add(STAGING_AT + pages.start as usize * PAGE_SIZE);
            libc::madvise(from.cast(), pages.len() * PAGE_SIZE, libc::MADV_REMOVE);
        }
    }
}

/// Sets a word unless it has this value. Each fault of the process reads its cache line, so that is written
/// only where something changes.
pub fn set_if_changed(word: &AtomicU64, value: u64) {
    if word.load(Ordering::Relaxed) != value {
        word.store(value, Ordering::Relaxed);
    }
}

/// Makes an eventfd that counts read as 0, without waiting: whoever else holds it can clear its O_NONBLOCK
/// at any time.
pub fn silence(bell: std::os::fd::BorrowedFd<'_>) {
    use std::os::fd::AsRawFd;
    let mut rung = [0u8; 8];
    let iov = libc::iovec { iov_base: rung.as_mut_ptr().cast(), iov_len: rung.len() };
    // SAFETY: the kernel writes 8 bytes.
    unsafe { libc::preadv2(bell.as_raw_fd(), &iov, 1, -1, libc::RWF_NOWAIT) };
}
