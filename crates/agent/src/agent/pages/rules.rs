//! Whether the process pages itself; and, in tests, which rule is left out: a test that finds nothing wrong
//! shows little, as long as it finds nothing wrong without the rule either. In the agent that is shipped
//! each rule holds, and nobody is asked.

#[cfg(memspill_test)]
use crate::common::sync::AtomicUsize;
use crate::common::sync::{AtomicU32, Ordering};

#[cfg(memspill_test)]
use crate::common::words::FILL_MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Rule {
    /// Pages are zapped, and get their markers, while they have no protection.
    None = 1,
    /// Pages are filled while they have no protection, where there are several threads.
    Window = 2,
    /// What calls in progress use stays.
    InUse = 3,
    /// So does what those use that come from rewritten sites (`trap/rewrite.rs`).
    Sites = 4,
}

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
pub const fn holds(_: Rule) -> bool {
    true
}

#[cfg(not(memspill_test))]
pub const fn fill_at_once() -> usize {
    AT_ONCE
}

#[cfg(memspill_test)]
#[unsafe(link_section = ".data")]
static LEFT_OUT: AtomicU32 = AtomicU32::new(0);
#[cfg(memspill_test)]
#[unsafe(link_section = ".data")]
static FILLED_AT_ONCE: AtomicUsize = AtomicUsize::new(AT_ONCE);

#[cfg(memspill_test)]
pub fn leave_out(rule: Rule) {
    LEFT_OUT.store(rule as u32, Ordering::SeqCst);
}

#[cfg(memspill_test)]
pub fn holds(rule: Rule) -> bool {
    LEFT_OUT.load(Ordering::Relaxed) != rule as u32
}

#[cfg(memspill_test)]
pub fn fill_at_once() -> usize {
    FILLED_AT_ONCE.load(Ordering::Relaxed)
}

#[cfg(memspill_test)]
pub fn set_fill_at_once(pages: usize) -> usize {
    let pages = if pages.is_power_of_two() { pages.min(FILL_MAX) } else { 1 };
    FILLED_AT_ONCE.swap(pages, Ordering::Relaxed)
}
