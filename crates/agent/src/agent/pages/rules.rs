//! Whether the windows are on, and which rule is left out: a test that finds nothing wrong shows little, as
//! long as it finds nothing wrong without the rule either.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::words::FILL_MAX;

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

const OFF: u32 = 0;
const ON: u32 = 0x100;

struct State {
    mode: AtomicU32,
    at_once: AtomicUsize,
}

/// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
static STATE: State = State { mode: AtomicU32::new(OFF), at_once: AtomicUsize::new(4) };

pub fn switch_on(without: Option<Rule>) {
    STATE.mode.store(ON | without.map_or(0, |rule| rule as u32), Ordering::SeqCst);
}

pub fn switch_off() {
    STATE.mode.store(OFF, Ordering::SeqCst);
}

pub fn is_on() -> bool {
    STATE.mode.load(Ordering::Relaxed) != OFF
}

pub fn holds(rule: Rule) -> bool {
    STATE.mode.load(Ordering::Relaxed) & 0xff != rule as u32
}

/// How many pages a fault brings at most: a power of two.
pub fn fill_at_once() -> usize {
    STATE.at_once.load(Ordering::Relaxed)
}

pub fn set_fill_at_once(pages: usize) -> usize {
    let pages = if pages.is_power_of_two() { pages.min(FILL_MAX) } else { 1 };
    STATE.at_once.swap(pages, Ordering::Relaxed)
}
