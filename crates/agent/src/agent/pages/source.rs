//! Where bytes go to and come from: the table of functions that whoever keeps them has given
//! (`Source` in `words.rs`), and the counters.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::words::{Source, Word};

struct Kept {
    source: UnsafeCell<Option<Source>>,
    is_there: AtomicU32,
}

// SAFETY: written once, before `is_there` is set, and only read afterwards.
unsafe impl Sync for Kept {}

/// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
static KEPT: Kept = Kept { source: UnsafeCell::new(None), is_there: AtomicU32::new(0) };

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

/// None: nothing can be taken out yet.
pub fn get() -> Option<Source> {
    if KEPT.is_there.load(Ordering::Acquire) < 2 {
        return None;
    }
    // SAFETY: it is written no more.
    unsafe { *KEPT.source.get() }
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

impl Counters {
    pub fn read(&self, which: usize) -> u64 {
        let all = [&self.brought, &self.by_window, &self.taken, &self.waits];
        all.get(which).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

pub fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}
