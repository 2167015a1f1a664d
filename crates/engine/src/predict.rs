//! Pages are brought that others name, before their faults (pointers.rs).
//!
//! ```text
//!   fault on a page of a row ─▶ its bytes are here ─▶ predict ─▶ a list of this thread's
//!   between two looks for faults, a few at a time ◀──────────────┘  bring_predicted
//! ```
//!
//! A row of faults is one that `Streams` knows, or one that it has forgotten over random faults, as between
//! two pages of an array in a merge: then the page table shows it, for the two pages before came of late.
//! A fault of a write is none: its page is about to be another.
//!
//! Invariant: a prediction holds nothing, neither page nor slot. The page may be unmapped, moved, or brought
//! by its fault before its turn comes: it is claimed as it is then, or not at all.

use crate::backing::QueueId;
use crate::fill::{Cause, Fault, Outcome, PREDICTED_MAX, Row, SwapIn};
use crate::pointers::named_in;
use crate::space::{CHUNK_PAGES, Space, index};
use crate::stats::add;
use crate::sync::{Arc, lock};
use crate::units::{Page, Vpn};
use crate::word::{ON_TRIAL, State, Word};
use memspill_common::window::Window;

/// Pages beside one that has faulted came so many stamps ago at most, if they are of one row.
const ROW_STAMPS: u64 = 64;

impl SwapIn<'_> {
    /// Is this fault, on a page that is swapped out, the next one of a row of reads?
    pub(crate) fn cause_of(
        &self,
        space: &Space,
        words: &[Word; CHUNK_PAGES as usize],
        fault: Fault,
        window: Window,
    ) -> Cause {
        self.note_predicted(space, fault.vpn);
        if fault.write {
            return Cause::Fault;
        }
        if window.is_proven {
            return Cause::InRow(if window.is_down { Row::Down } else { Row::Up });
        }
        let at = index(fault.vpn);
        let came = |at: usize| {
            words
                .get(at)
                .is_some_and(|word| word.state() == State::Resident && space.age_of(*word) <= ROW_STAMPS)
        };
        if at >= 2 && came(at - 1) && came(at - 2) {
            return Cause::InRow(Row::Up);
        }
        if came(at + 1) && came(at + 2) { Cause::InRow(Row::Down) } else { Cause::Fault }
    }

    /// A page that was away is touched: was that predicted?
    pub(crate) fn note_predicted(&self, space: &Space, vpn: Vpn) {
        if space.pointers().note_fault(vpn, space.stamp_now()) {
            add(&self.swap.stats.on(self.cpu).named_right, 1);
        }
    }

    /// Pages of a row have come, in ascending order: note what they name.
    pub(crate) fn predict<'p, I>(&mut self, space: &Arc<Space>, pages: I, row: Row)
    where
        I: IntoIterator<Item = (Vpn, &'p Page), IntoIter: DoubleEndedIterator>,
    {
        let (most, stays) = {
            let mut pointers = space.pointers();
            (pointers.looked_at(), pointers.are_right())
        };
        if most == 0 {
            return;
        }
        let pages = pages.into_iter();
        let mut named: Vec<Vpn> = match row {
            Row::Up => pages.flat_map(|(own, page)| named_in(page, own, false)).collect(),
            Row::Down => pages.rev().flat_map(|(own, page)| named_in(page, own, true)).collect(),
        };
        if !stays {
            named.truncate(most);
        }
        named.retain(|vpn| {
            let Some(chunk) = space.chunk(*vpn) else { return false };
            let mut words = lock(&chunk);
            let word = &mut words[index(*vpn)];
            if stays && word.state() == State::Resident && word.heat() == 0 && !word.has(ON_TRIAL) {
                *word = word.with_heat(1);
            }
            word.state() == State::Swapped
        });
        // The pages that are touched first are brought.
        named.truncate(PREDICTED_MAX);
        let stamp = space.stamp_now();
        let mut pointers = space.pointers();
        for vpn in named {
            if pointers.predict(vpn, stamp) {
                self.scratch.predict(space, vpn);
            } else {
                add(&self.swap.stats.on(self.cpu).named_noted, 1);
            }
        }
    }

    /// Bring the next page that was predicted. None: there is none.
    pub fn bring_predicted(&mut self, queue: QueueId) -> Option<Outcome> {
        let at = self.scratch.next_predicted();
        let (space, vpn) = self.scratch.predicted.remove(at)?;
        let Some(chunk) = space.chunk(vpn) else { return Some(Outcome::Done) };
        let mut words = lock(&chunk);
        let word = words[index(vpn)];
        // Under the lock, as in `fault`.
        if word.state() != State::Swapped || space.is_dead() {
            return Some(Outcome::Done);
        }
        let group = space.group(self.swap);
        // A reserve stays for faults.
        if !space.has_room_for_named() || !group.try_charge(self.cpu, 1, group.gap_bytes() / 2) {
            drop(words);
            self.scratch.predicted.insert(at, (space, vpn));
            return Some(Outcome::NoRoom);
        }
        self.mark_lean(&space, &mut words[index(vpn)]);
        drop(words);
        space.count_named_under_way(1);
        space.pointers().note_brought(space.stamp_now());
        space.trust().forget(vpn);
        add(&self.swap.stats.on(self.cpu).named_pages, 1);
        let fault = Fault { vpn, write: false, urgent: false, favoured: false };
        Some(self.bring_lean(queue, &space, &chunk, (fault, Cause::Named), word.entry()))
    }
}
