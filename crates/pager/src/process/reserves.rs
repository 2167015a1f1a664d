//! Reserved memory (PROT_NONE) behind memory of a process that grows into it by mprotect: malloc's heaps of
//! further threads do, mostly by a page at a time. So zeros go ahead into a reserve, as they do in memory
//! that is open, or each page would be a fault.
//!
//! ```text
//!   ── heap, open ──▶│◀── reserve ──────────────────────▶│
//!                    │ start goes up, from look to look  │ end
//! ```
//!
//! Invariants: a reserve is ours, registered with our userfaultfd and not unmapped since (behind what is ours
//! may lie memory of a userfaultfd of the program's own); and it has been met before, with the same end and
//! more below it (else it is a guard, and what is put there never leaves).

use crate::process::ranges::Ranges;
use std::collections::VecDeque;
use std::sync::Mutex;

/// The number that is remembered, those met last.
const MET_MAX: usize = 16;

#[derive(Default)]
pub struct Reserves(Mutex<Known>);

#[derive(Default)]
struct Known {
    ours: Ranges,
    /// Where those that were met end, and began then.
    met: VecDeque<(u64, u64)>,
}

impl Reserves {
    /// This range is registered with our userfaultfd.
    pub fn note(&self, start: u64, end: u64) {
        self.0.lock().expect("reserves").ours.insert(start, end);
    }

    /// An event has taken this range away.
    pub fn forget(&self, start: u64, end: u64) {
        self.0.lock().expect("reserves").ours.remove(start, end);
    }

    /// A row of faults has met the reserve [start, end): may zeros go into it?
    pub fn may_be_filled(&self, start: u64, end: u64) -> bool {
        let mut known = self.0.lock().expect("reserves");
        let before = known.met.iter().position(|(met_end, _)| *met_end == end);
        let before = before.and_then(|at| known.met.remove(at)).map(|(_, start)| start);
        known.met.truncate(MET_MAX - 1);
        known.met.push_front((end, start));
        before.is_some_and(|before| before < start) && known.ours.missing_of(&[(start, end)]).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reserves_of_ours_that_are_opened_from_below_are_filled() {
        let reserves = Reserves::default();
        reserves.note(100, 200);
        let may = |start, end| reserves.may_be_filled(start, end);
        assert!(!may(100, 200), "it may be a guard");
        assert!(!may(100, 200));
        assert!(may(110, 200));
        assert!(!may(50, 90) && !may(60, 90), "not ours");
        assert!(may(120, 200));
        reserves.forget(150, 160);
        assert!(!may(130, 200), "something else may lie there by now");
        reserves.note(150, 160);
        assert!(may(140, 200));
        (0..MET_MAX as u64).for_each(|i| assert!(!may(1000 + i, 2000 + i)));
        assert!(!may(150, 200), "met too long ago");
        assert!(may(151, 200));
    }
}
