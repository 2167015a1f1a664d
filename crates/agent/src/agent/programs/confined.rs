//! Has the program a seccomp filter of its own? A planted one may have set it by a call that was not found.

use crate::common::sync::{AtomicUsize, Ordering};
use crate::machine::sys;
use crate::supervisor::control;
use crate::supervisor::state::STATE;

const UNKNOWN: usize = usize::MAX;
/// The program was not planted: it has a loader, and its calls are seen.
const NOT_PLANTED: usize = usize::MAX - 1;
/// How many filters a planted program had when it began, or `UNKNOWN`, or `NOT_PLANTED`.
#[unsafe(link_section = ".data.hot")]
static FILTERS: AtomicUsize = AtomicUsize::new(NOT_PLANTED);

/// A planted program is about to begin.
pub fn program_is_planted() {
    FILTERS.store(sys::seccomp_filters().unwrap_or(UNKNOWN), Ordering::Relaxed);
}

/// Before what a seccomp filter of the program's own may not allow, where the call by which it has set one
/// was not found.
pub fn look_for_filters() {
    let before = FILTERS.load(Ordering::Relaxed);
    let may_be_asked = before != NOT_PLANTED && STATE.confined.load(Ordering::SeqCst) == 0;
    const EACCES: i32 = 13;
    let is_new = || match sys::seccomp_filters() {
        Ok(now) => now > before,
        // It may be the filter that forbids to look. (In another root directory there may be no /proc.)
        Err(sys::EPERM | EACCES | sys::ENOSYS) => before != UNKNOWN,
        Err(_) => false,
    };
    if may_be_asked && is_new() {
        control::tell_confined();
        STATE.confined.store(1, Ordering::SeqCst);
    }
}
