//! The mapping that is shared with a supervisor (`common/src/link.rs` draws it): where it is, its messages,
//! the bell, and waiting for the supervisor.
//!
//! What it does not do: know what any of it means (`supervisor.rs`, `notes.rs`, `from_pool.rs`).

use crate::common::rules::{Rule, holds};
use crate::common::sync::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use core::ptr::null_mut;

use super::kernel;
use crate::common::link::{FILE_BYTES, LINK_AT, Link, Message, RING, STAGING_AT};
use crate::common::protocol::Control;
use crate::machine::gadget;
use crate::machine::sys::{Result, nr};
use crate::thread::wait;

const MADV_DONTFORK: usize = 10;
const GETTID: usize = 186;

struct Shared {
    /// The whole file; null where there is no supervisor.
    file: AtomicPtr<u8>,
    bell: AtomicI32,
    /// Held while a message is written.
    writing: AtomicU32,
}

/// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
static SHARED: Shared =
    Shared { file: AtomicPtr::new(null_mut()), bell: AtomicI32::new(-1), writing: AtomicU32::new(0) };

/// From now on pages are kept by the supervisor that has sent these: the control file, and its bell, which
/// stays open. While the process has one thread.
pub fn connect(control: i32, bell: i32) -> Result<()> {
    let file = kernel::map_file(control, 0, FILE_BYTES, 0)?;
    // SAFETY: a new mapping; it is only kept from children, which get one of their own.
    unsafe { gadget::call(nr::MADVISE, [file, FILE_BYTES, MADV_DONTFORK, 0, 0, 0]) }?;
    let high = kernel::high_copy(bell)?;
    kernel::DESCRIPTORS.bell.store(high, Ordering::Relaxed);
    SHARED.bell.store(high, Ordering::Relaxed);
    SHARED.writing.store(0, Ordering::Relaxed);
    SHARED.file.store(file as *mut u8, Ordering::Release);
    Ok(())
}

/// It will not be: the process is not managed.
pub fn disconnect() {
    let file = SHARED.file.swap(null_mut(), Ordering::AcqRel);
    if !file.is_null() {
        // SAFETY: nobody uses the mapping any more.
        let _ = unsafe { gadget::call(nr::MUNMAP, [file as usize, FILE_BYTES, 0, 0, 0, 0]) };
    }
    close_bell();
}

/// The child of a fork has none of it, until it joins.
pub fn forget() {
    SHARED.file.store(null_mut(), Ordering::Release);
    close_bell();
}

fn close_bell() {
    let bell = SHARED.bell.swap(-1, Ordering::Relaxed);
    kernel::DESCRIPTORS.bell.store(-1, Ordering::Relaxed);
    if bell >= 0 {
        kernel::close(bell);
    }
}

pub fn is_there() -> bool {
    !SHARED.file.load(Ordering::Acquire).is_null()
}

/// Staging, where the supervisor reads it.
pub fn staging() -> usize {
    SHARED.file.load(Ordering::Relaxed) as usize + STAGING_AT
}

pub fn link() -> *mut Link {
    SHARED.file.load(Ordering::Relaxed).wrapping_add(LINK_AT).cast()
}

pub fn control() -> *mut Control {
    SHARED.file.load(Ordering::Relaxed).cast()
}

/// A field of the link: where it is.
macro_rules! field {
    ($($path:tt)*) => {
        // SAFETY: the file is mapped for as long as the process lives; indices are in bounds by their loops;
        // only the address is taken.
        unsafe { &raw mut (*$crate::pages::channel::link()).$($path)* }
    };
}

pub(crate) use field;

pub fn word32(field: *mut u32) -> &'static AtomicU32 {
    // SAFETY: in the file, which stays mapped; both sides access it as an atomic.
    unsafe { AtomicU32::from_ptr(field) }
}

pub fn word64(field: *mut u64) -> &'static AtomicU64 {
    // SAFETY: as above.
    unsafe { AtomicU64::from_ptr(field) }
}

/// Writes a message, and rings.
pub fn push(kind: u32, addr: usize, end: usize, to: usize) {
    while SHARED.writing.swap(1, Ordering::SeqCst) != 0 && holds(Rule::Writing) {
        wait::sleep(&SHARED.writing, 1);
    }
    let (head, tail) = (word64(field!(head)), word64(field!(tail)));
    let number = head.load(Ordering::Relaxed);
    wait_for_reader(&|| !holds(Rule::Room) || number.wrapping_sub(tail.load(Ordering::SeqCst)) < RING as u64);
    // SAFETY: no memory involved.
    let tid = unsafe { gadget::call(GETTID, [0; 6]) }.unwrap_or(0) as u32;
    let message = Message { kind, tid, addr: addr as u64, end: end as u64, to: to as u64 };
    let index = number as usize % RING;
    let place = field!(ring).cast::<Message>().wrapping_add(index);
    // SAFETY: the place is free, and the index below RING.
    unsafe { place.write_volatile(message) };
    head.store(number + 1, Ordering::SeqCst);
    SHARED.writing.store(0, Ordering::SeqCst);
    wait::wake_all(&SHARED.writing);
    ring();
}

/// Waits until `is_enough`, by what the supervisor has read or lets go on.
pub fn wait_for_reader(is_enough: &dyn Fn() -> bool) {
    if is_enough() {
        return;
    }
    let (room, waiting) = (word32(field!(room)), word32(field!(waits_for_room)));
    waiting.fetch_add(1, Ordering::SeqCst);
    loop {
        let seen = room.load(Ordering::SeqCst);
        if is_enough() {
            break;
        }
        ring();
        wait::sleep(room, seen);
    }
    waiting.fetch_sub(1, Ordering::SeqCst);
}

/// Threads that wait for the supervisor look again, for something that has happened here.
pub fn wake_waiting() {
    if word32(field!(waits_for_room)).load(Ordering::SeqCst) != 0 {
        word32(field!(room)).fetch_add(1, Ordering::SeqCst);
        wait::wake_all(word32(field!(room)));
    }
}

pub fn ring() {
    let one = 1u64;
    let bell = SHARED.bell.load(Ordering::Relaxed) as usize;
    // SAFETY: the kernel reads 8 bytes.
    let _ = unsafe { gadget::call(nr::WRITE, [bell, &raw const one as usize, 8, 0, 0, 0]) };
}

/// The whole file.
pub fn file() -> *mut u8 {
    SHARED.file.load(Ordering::Relaxed)
}
