//! The swap device: slots, and the pool's file, of which an agent can read. Objects are whole pages. Slots
//! come back at once, to whoever asks first, and objects too.

use crate::kernel::{self, Bytes};
use memspill_common::pool::{HEADER_BYTES, Header, LZ4, MAGIC, PAGE_BYTES, PAGES_AT, ROOMS, location_at};
use memspill_common::sync::{AtomicU64, Ordering};
use shuttle::sync::Mutex;
use std::sync::PoisonError;

/// A slot for each page, and three for others. Number 0 is none.
pub const SLOTS: usize = kernel::PAGES + 4;
const OBJECTS: usize = SLOTS + 1;
/// Where the objects begin, behind the header and the table.
const OBJECTS_AT: usize = 2 * PAGE_BYTES;

/// Where in memory a place of the file is.
pub fn offset(at: usize) -> usize {
    at.checked_sub(PAGES_AT as usize).map_or(at, |at| OBJECTS_AT + at)
}

pub struct Pool {
    file: Vec<u64>,
    own: Mutex<Own>,
}

/// What only the supervisor knows.
struct Own {
    free_slots: Vec<usize>,
    free_objects: Vec<usize>,
    /// By slot.
    object: [usize; SLOTS],
    disk: [Bytes; SLOTS],
}

impl Pool {
    pub fn new() -> Pool {
        let mut file = vec![0; (OBJECTS_AT + OBJECTS * PAGE_BYTES) / 8];
        let header = Header { magic: MAGIC, algorithm: LZ4, rooms_bytes: [0; ROOMS] };
        // SAFETY: plain data, for which there is room.
        unsafe { file.as_mut_ptr().cast::<Header>().write(header) };
        const { assert!(HEADER_BYTES <= PAGE_BYTES) };
        let own = Own {
            free_slots: (1..SLOTS).collect(),
            free_objects: (1..OBJECTS).collect(),
            object: [0; SLOTS],
            disk: [Bytes::default(); SLOTS],
        };
        Pool { file, own: Mutex::new(own) }
    }

    pub fn address(&self) -> usize {
        self.file.as_ptr() as usize
    }

    fn own(&self) -> shuttle::sync::MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says where a slot is: in a page of a chunk, whole; 0: not here (pool.rs draws it).
    fn set_location(&self, slot: usize, object: usize) {
        let handle = (object as u64) << 8;
        let word = if object == 0 { 0 } else { 2 | (handle << 12 | PAGE_BYTES as u64 - 1) << 11 };
        let at = self.address() + location_at(slot as u64) as usize;
        // SAFETY: in the file, aligned, and accessed as an atomic.
        unsafe { AtomicU64::from_ptr(at as *mut u64) }.store(word, Ordering::SeqCst);
    }

    fn bytes_of(&self, object: usize) -> *mut Bytes {
        (self.address() + OBJECTS_AT + object * PAGE_BYTES) as *mut Bytes
    }

    pub fn store(&self, bytes: Bytes) -> usize {
        let mut own = self.own();
        let slot = own.free_slots.pop().expect("as many slots as anybody takes");
        let object = own.free_objects.pop().expect("as many objects as slots");
        own.object[slot] = object;
        // SAFETY: in the file, and the object is ours.
        unsafe { self.bytes_of(object).write_volatile(bytes) };
        self.set_location(slot, object);
        slot
    }

    /// The supervisor's own reading, of a slot that is its page's.
    pub fn bytes(&self, slot: usize) -> Bytes {
        let own = self.own();
        match own.object[slot] {
            0 => own.disk[slot],
            // SAFETY: in the file.
            object => unsafe { self.bytes_of(object).read_volatile() },
        }
    }

    fn leave_object(&self, own: &mut Own, slot: usize) -> Option<Bytes> {
        let object = std::mem::take(&mut own.object[slot]);
        self.set_location(slot, 0);
        (object != 0).then(|| {
            own.free_objects.push(object);
            // SAFETY: in the file.
            unsafe { self.bytes_of(object).read_volatile() }
        })
    }

    pub fn free(&self, slot: usize) {
        let mut own = self.own();
        self.leave_object(&mut own, slot);
        own.free_slots.push(slot);
    }

    pub fn write_back(&self, slot: usize) {
        let mut own = self.own();
        if let Some(bytes) = self.leave_object(&mut own, slot) {
            own.disk[slot] = bytes;
        }
    }

    pub fn is_whole(&self) -> bool {
        self.own().free_slots.len() == SLOTS - 1
    }
}
