//! Whether the process pages itself; and how much a fault brings in tests.

#[cfg(memspill_test)]
use crate::common::sync::AtomicUsize;
use crate::common::sync::{AtomicU32, Ordering};

#[cfg(memspill_test)]
use crate::common::words::FILL_MAX;

pub use crate::common::rules::{Rule, holds};

/// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
static IS_ON: AtomicU32 = AtomicU32::new(0);

pub fn switch_on() {
    IS_ON.store(1, Ordering::SeqCst);
}

pub fn switch_off() {
    IS_ON.store(0, Ordering::SeqCst);
}

pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed) != 0
}

/// How many pages a fault brings at most from a `Source`: a power of two.
const AT_ONCE: usize = 4;

#[cfg(not(memspill_test))]
pub const fn fill_at_once() -> usize {
    AT_ONCE
}

#[cfg(memspill_test)]
#[unsafe(link_section = ".data")]
static FILLED_AT_ONCE: AtomicUsize = AtomicUsize::new(AT_ONCE);

#[cfg(memspill_test)]
pub fn fill_at_once() -> usize {
    FILLED_AT_ONCE.load(Ordering::Relaxed)
}

#[cfg(memspill_test)]
pub fn set_fill_at_once(pages: usize) -> usize {
    let pages = if pages.is_power_of_two() { pages.min(FILL_MAX) } else { 1 };
    FILLED_AT_ONCE.swap(pages, Ordering::Relaxed)
}
