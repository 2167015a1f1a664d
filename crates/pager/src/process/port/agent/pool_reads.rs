//! Pages that threads of the process read out of the pool by themselves, without a word to the supervisor.
//!
//! ```text
//!   told to them   which slots hold their pages (hints), whether there is room, who has the swap token,
//!                  which windows are worth bringing
//!   read here      which pages they have brought: each is noted once, by whoever looks first
//! ```
//!
//! The agent's `link.rs` draws the states of an entry.

use super::AgentPort;
use super::link::set_if_changed;
use memspill_common::link::{ALONG, EARLY, EARLY_PAGE, EARLY_STATE, HERE, HINTS, Hint, LeftOut, NOTING};
use memspill_common::rules::{Rule, holds};
use memspill_common::sync::Ordering;
use memspill_common::window::BLOCK_PAGES_MAX;
use memspill_engine::units::PAGE_SIZE;

/// Below the amount that the monitor would count as growth (`growth.rs`), with many processes in mind.
/// Tried: 48. A program that went through memory in order took a twelfth longer.
const TOLD_AT_MAX: u64 = 96;

/// A page that a thread has read out of the pool.
pub struct PoolRead {
    pub page: u64,
    pub tid: u32,
    /// It was brought along with one that the thread has touched.
    pub comes_along: bool,
    /// A page that was left out of the window, with how many pages the window had.
    pub left_out: Option<(u64, usize)>,
}

impl AgentPort {
    /// May threads read pages by themselves? To be forbidden before slots are given other pages without a
    /// fill or a change.
    pub fn allow_pool_reads(&self, allows: bool) {
        self.link.allows_early().store(allows.into(), Ordering::SeqCst);
    }

    /// Is there room for pages that threads bring by themselves? They tell of them when the unnoted ones are
    /// half of the gap in which reclaim begins before there is no room, or `TOLD_AT_MAX`.
    pub fn tell_room(&self, has_room: bool, gap_bytes: u64) {
        let told_at = (gap_bytes / PAGE_SIZE as u64 / 2).clamp(1, TOLD_AT_MAX);
        set_if_changed(self.link.early_run(), if has_room { self.run_pages } else { 0 });
        set_if_changed(self.link.early_told_at(), told_at);
    }

    /// Only this thread is to bring pages by itself, in whatever process it is; 0: all may.
    pub fn tell_token(&self, tid: u32) {
        set_if_changed(self.link.token(), tid.into());
    }

    /// Are threads to ask for all pages, because pages name those that are touched next?
    pub fn tell_names_followed(&self, are_followed: bool) {
        set_if_changed(self.link.names_followed(), are_followed.into());
    }

    /// The windows that are not worth bringing, as the engine has it.
    pub fn tell_distrusted(&self, windows: u64) {
        set_if_changed(self.link.distrusted(), windows);
    }

    /// The device of whose slots the agent is to be told.
    pub fn pool(&self) -> Option<u8> {
        self.pool
    }

    /// These pages, by their addresses, are in these slots. Not told where a change would not know of it, or
    /// the agent has not read earlier hints.
    pub fn tell_stored(&self, hints: &[Hint]) {
        let _delivering = self.delivering.lock().expect("delivering");
        if !self.link.control.lock() {
            return;
        }
        if !self.is_changing() || !holds(Rule::HintUnchanged) {
            let (head, tail) = (self.link.hints_head(), self.link.hints_tail());
            let (mut at, read) = (head.load(Ordering::SeqCst), tail.load(Ordering::SeqCst));
            let room = (HINTS as u64).saturating_sub(at.wrapping_sub(read)) as usize;
            for hint in hints.iter().take(room) {
                self.link.set_hint(at, *hint);
                at = at.wrapping_add(1);
            }
            head.store(at, Ordering::SeqCst);
        }
        self.link.control.unlock();
    }

    /// Has the process brought pages that are not noted? (A page that another thread is noting may be left
    /// for later.)
    pub fn has_unnoted(&self) -> bool {
        (0..EARLY).any(|index| self.is_unnoted(index))
    }

    pub fn unnoted_pages(&self) -> u64 {
        (0..EARLY).filter(|index| self.is_unnoted(*index)).count() as u64
    }

    fn is_unnoted(&self, index: usize) -> bool {
        self.link.early(index).load(Ordering::SeqCst) & EARLY_STATE >= HERE
    }

    /// Threads have been told that there is no room, and ask for each page.
    pub fn was_told_no_room(&self) -> bool {
        self.pool.is_some() && self.link.early_run().load(Ordering::Relaxed) == 0
    }

    /// `note` is asked for each page that was brought whether it has been noted, or is to be told again
    /// later. Only one caller has a page at a time: told twice it might have left in between.
    pub fn note_pool_reads(&self, mut note: impl FnMut(PoolRead) -> bool) {
        let count = self.link.early_noted();
        let mut noted = 0;
        // In the order in which they were brought, about the oldest one first.
        let first = count.load(Ordering::Relaxed) as usize % EARLY;
        for index in (first..EARLY).chain(0..first) {
            let entry = self.link.early(index);
            let seen = entry.load(Ordering::SeqCst);
            let page = seen & EARLY_PAGE;
            let noting = page | NOTING;
            if seen & EARLY_STATE != HERE
                || entry.compare_exchange(seen, noting, Ordering::SeqCst, Ordering::SeqCst).is_err()
                    && holds(Rule::NoteOnce)
            {
                continue;
            }
            let tid = self.link.early_tid(index).load(Ordering::Relaxed);
            let left_out = LeftOut::of(self.link.early_left_out(index).load(Ordering::Relaxed));
            let read =
                PoolRead { page, tid, comes_along: seen & ALONG != 0, left_out: beside(page, left_out) };
            let is_noted = page >= crate::USER_END || note(read);
            entry.store(if is_noted { 0 } else { seen }, Ordering::SeqCst);
            noted += u64::from(is_noted);
        }
        if noted > 0 {
            count.fetch_add(noted, Ordering::SeqCst);
            self.let_write();
        }
    }
}

/// The page that was left out, if that can be true.
fn beside(page: u64, left_out: LeftOut) -> Option<(u64, usize)> {
    let LeftOut { pages, distance } = left_out;
    let away = i64::from(distance) * PAGE_SIZE as i64;
    let is_of_a_window = distance != 0 && usize::from(distance.unsigned_abs()) < usize::from(pages);
    let beside = page.checked_add_signed(away).filter(|beside| *beside < crate::USER_END);
    beside
        .filter(|_| is_of_a_window && usize::from(pages) <= BLOCK_PAGES_MAX)
        .map(|beside| (beside, pages.into()))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::testing::AT;
    use super::*;

    #[test]
    fn what_was_left_out_is_beside_its_page_whatever_the_process_says() {
        let left_out = |distance, pages| beside(AT, LeftOut { pages, distance });
        let pages = PAGE_SIZE as u64;
        assert_eq!(left_out(3, 4), Some((AT + 3 * pages, 4)));
        assert_eq!(left_out(-63, 64), Some((AT - 63 * pages, 64)));
        assert_eq!([left_out(0, 0), left_out(0, 4), left_out(4, 4), left_out(-4, 4)], [None; 4]);
        assert_eq!([left_out(1, 65), left_out(i16::MIN, u16::MAX)], [None; 2]);
        let at_ends = [(0, -1), (crate::USER_END - pages, 1)];
        assert_eq!(at_ends.map(|(page, distance)| beside(page, LeftOut { pages: 4, distance })), [None; 2]);
    }
}
