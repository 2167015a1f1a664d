//! Where bytes go to and come from, and the counters, in tests: a table of functions that a test gives. The
//! agent that is shipped has no such table, and counts nothing; its pages are kept by the supervisor.

use crate::common::sync::AtomicU64;
#[cfg(memspill_test)]
use crate::common::sync::{AtomicU32, Ordering};
#[cfg(memspill_test)]
use core::cell::UnsafeCell;

use crate::common::words::Word;

/// The functions are
/// called with all signals blocked, from several threads, and touch nothing that can be taken out.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Source {
    /// Keeps so many pages, with a reference to each; their slots are written behind the last argument.
    /// Returns how many pages of those it has kept, from the first one.
    pub store: unsafe extern "C" fn(*const u8, u32, *mut u64) -> u32,
    /// Copies a slot's bytes to an address. Else than 0: they are lost, and the process must end.
    pub load: unsafe extern "C" fn(u64, *mut u8) -> i32,
    /// One reference more, for the child of a fork; one less.
    pub share: unsafe extern "C" fn(u64),
    pub release: unsafe extern "C" fn(u64),
}

#[cfg(memspill_test)]
struct Kept {
    source: UnsafeCell<Option<Source>>,
    is_there: AtomicU32,
}

#[cfg(memspill_test)]
// SAFETY: written once, before `is_there` is set, and only read afterwards.
unsafe impl Sync for Kept {}

#[cfg(memspill_test)]
/// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
static KEPT: Kept = Kept { source: UnsafeCell::new(None), is_there: AtomicU32::new(0) };

#[cfg(memspill_test)]
/// From now on bytes go there; false: they go elsewhere already.
pub fn plug(source: Source) -> bool {
    const COMING: u32 = 1;
    const THERE: u32 = 2;
    if KEPT.is_there.compare_exchange(0, COMING, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return false;
    }
    // SAFETY: only the one who turned the word is here.
    unsafe { *KEPT.source.get() = Some(source) };
    KEPT.is_there.store(THERE, Ordering::Release);
    true
}

#[cfg(memspill_test)]
/// None: nothing can be taken out yet.
pub fn get() -> Option<Source> {
    if KEPT.is_there.load(Ordering::Acquire) < 2 {
        return None;
    }
    // SAFETY: it is written no more.
    unsafe { *KEPT.source.get() }
}

#[cfg(not(memspill_test))]
pub fn get() -> Option<Source> {
    None
}

/// The reference of a word's is given back.
pub fn release(word: Word) {
    if let Some(source) = get().filter(|_| !word.is_closed()) {
        // SAFETY: the reference was the word's.
        unsafe { (source.release)(word.slot()) };
    }
}

/// What happened, for tests and measurements.
pub struct Counters {
    pub brought: AtomicU64,
    pub by_window: AtomicU64,
    pub taken: AtomicU64,
    pub waits: AtomicU64,
}

/// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
pub static COUNTERS: Counters = Counters {
    brought: AtomicU64::new(0),
    by_window: AtomicU64::new(0),
    taken: AtomicU64::new(0),
    waits: AtomicU64::new(0),
};

#[cfg(memspill_test)]
impl Counters {
    pub fn read(&self, which: usize) -> u64 {
        let all = [&self.brought, &self.by_window, &self.taken, &self.waits];
        all.get(which).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

#[cfg(memspill_test)]
pub fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

#[cfg(not(memspill_test))]
pub fn count(_counter: &AtomicU64, _by: usize) {}
