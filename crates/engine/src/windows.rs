//! What is brought with a page that faults: its window, the folio that it is a part of, and how much of them
//! is trusted.
//!
//! ```text
//!   fault ─▶ window (Streams, Window of memspill-common) ─▶ part of a folio that its row has earned?
//!                                                        ─▶ worth it (trust.rs)?
//!   fault on new memory ─▶ a window of zeros, larger while there is plenty of room
//! ```
//!
//! What it does not do: claim pages, or charge for them (swap_in.rs); read neighbours into the swap cache
//! (neighbours.rs).

use crate::fill::{Claim, FOLIO_MAX_ORDER, SwapIn, WINDOW_MAX, ZERO_WINDOW_MAX};
use crate::reclaim::folio::orders;
use crate::space::{CHUNK_PAGES, Space, index};
use crate::stats::add;
use crate::tuning::{AUTO_ORDER_MIN, FolioSize, Readahead};
use crate::units::{Order, Vpn};
use crate::word::{State, Word};
use memspill_common::window::{Verdict, Window};
use std::ops::Range;

impl SwapIn<'_> {
    /// The pages of the row of which this fault is one.
    pub(crate) fn window(&self, space: &Space, vpn: Vpn, state: State) -> Window {
        let max = match self.swap.tuning.readahead {
            // A zero fill reads nothing: its runs are not readahead, and all settings have them.
            _ if state == State::None && space.group(self.swap).has_plenty() => {
                space.memory.zeros_max().min(ZERO_WINDOW_MAX)
            }
            _ if state == State::None => WINDOW_MAX,
            // A page that is read ahead is not claimed, and not mapped.
            Readahead::Auto | Readahead::Always => return Window::alone(vpn.0),
            Readahead::Stream => WINDOW_MAX,
        };
        let chunk_first = vpn.0 - index(vpn) as u64;
        let streams = space.streams();
        let window = streams.fault(vpn.0, max as u64);
        let within = window.within(chunk_first..chunk_first + CHUNK_PAGES);
        if within != window {
            streams.note_brought(vpn.0, within.range());
        }
        within
    }

    /// The window so that it does not end in a folio of which it would be a part: so that this one is met at
    /// its beginning.
    pub(crate) fn ending_with_a_folio(&self, space: &Space, window: Window, state: State) -> Window {
        let Some((_, largest)) = orders(&self.swap.tuning).filter(|_| state == State::Swapped) else {
            return window;
        };
        let block = match self.swap.tuning.folio {
            FolioSize::Auto => AUTO_ORDER_MIN,
            FolioSize::Fixed(_) => largest,
        };
        let ended = window.ending_with_a_block(block.pages().into());
        if ended != window {
            space.streams().note_brought(window.fault, ended.range());
        }
        ended
    }

    /// What comes in with a page of a folio. If `--tune folio` names the size: the 64 KiB around the page,
    /// until faults have proven a stream. (With 2 MiB for each page that faults, a program would do little
    /// but swap.) For a stream, in its direction: the rest of the largest block whose pages lie in slots in a
    /// row, as they left, and by default no more than the stream has earned.
    pub(crate) fn folio_window(
        &self,
        words: &[Word],
        vpn: Vpn,
        state: State,
        window: Window,
    ) -> Option<Range<usize>> {
        let (smallest, largest) = orders(&self.swap.tuning).filter(|_| state == State::Swapped)?;
        let largest = match self.swap.tuning.folio {
            FolioSize::Auto if !window.is_proven => return None,
            FolioSize::Auto => Order((window.earned_order() as u8).min(FOLIO_MAX_ORDER)),
            FolioSize::Fixed(_) if !window.is_proven => smallest,
            FolioSize::Fixed(_) => largest,
        };
        let chunk_first = vpn.0 - index(vpn) as u64;
        let slot_of = |page: u64| {
            let word = words[page.wrapping_sub(chunk_first) as usize];
            let entry = (word.state() == State::Swapped).then(|| word.entry())?;
            Some(u64::from(entry.device) << u32::BITS | u64::from(entry.slot.0))
        };
        let block = window.block(smallest.0.into()..=largest.0.into(), slot_of)?;
        Some((block.start - chunk_first) as usize..(block.end - chunk_first) as usize)
    }

    /// The part that is brought of the window and the folio that a fault has earned.
    pub(crate) fn trusted(
        &self,
        space: &Space,
        words: &[Word; CHUNK_PAGES as usize],
        (vpn, state): (Vpn, State),
        window: Window,
        folio: Option<Range<usize>>,
    ) -> (Window, Option<Range<usize>>) {
        if state != State::Swapped {
            return (window, folio);
        }
        self.note_left_out(space, vpn);
        // A size of folios that is named is wanted.
        let is_named = self.swap.tuning.folio != FolioSize::Auto && orders(&self.swap.tuning).is_some();
        if !window.is_proven || is_named {
            return (window, folio);
        }
        let pages = folio.as_ref().map_or(window.pages, |block| block.len() as u64);
        let whole = Window { pages, ..window };
        let is_away = |n: &u64| words[index(Vpn(whole.page(*n)))].state() == State::Swapped;
        let mut away = (1..whole.pages).filter(is_away);
        let pages = 1 + away.clone().count();
        if pages == 1 {
            return (window, folio);
        }
        let (place, comes) = match space.trust().verdict(pages) {
            Verdict::Bring => return (window, folio),
            Verdict::Try(nth) => (away.nth(nth - 1), None),
            Verdict::Leave(nth) => (away.nth(nth - 1), Some(1)),
        };
        let place = place.expect("it is one of them");
        self.leave_out(space, Vpn(whole.page(place)), pages);
        let cut = whole.cut(comes.unwrap_or(place));
        space.streams().note_brought(vpn.0, cut.range());
        (cut, None)
    }

    /// The page is left out of a window of so many.
    pub(crate) fn leave_out(&self, space: &Space, vpn: Vpn, pages: usize) {
        let is_new = space.trust().note(vpn, pages, space.stamp_now());
        add(&self.swap.stats.on(self.cpu).ra_noted, u64::from(is_new));
    }

    /// Pages come that have not faulted.
    pub(crate) fn forget_notes<'c>(&self, space: &Space, mut came: impl Iterator<Item = &'c Claim>) {
        if let Some(first) = came.next() {
            let mut trust = space.trust();
            std::iter::once(first).chain(came).for_each(|claim| trust.forget(claim.vpn));
        }
    }

    /// A page that was away is touched: would it have come with another one?
    pub(crate) fn note_left_out(&self, space: &Space, vpn: Vpn) {
        if space.trust().note_fault(vpn, space.stamp_now(), space.stay_stamps()) {
            add(&self.swap.stats.on(self.cpu).ra_right, 1);
        }
    }
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;
    use crate::backing::QueueId;
    use crate::devices::Device;
    use crate::engine::Engine;
    use crate::fill::{Fault, Outcome, Scratch};
    use crate::slots::Slots;
    use crate::sync::Arc;
    use crate::testing::blank::{BlankDevice, BlankMemory};
    use crate::tuning::Tuning;
    use crate::units::{CpuId, PAGE_SIZE, SpaceId};

    const CPU: CpuId = CpuId(0);
    const MEMORY: u64 = 2048;
    const PAGES: u64 = 2 * MEMORY;

    /// A program in memory for half of its pages.
    struct Job {
        engine: Engine,
        space: Arc<Space>,
        scratch: Scratch,
    }

    impl Job {
        fn new() -> Job {
            let slots = 4 * PAGES as u32;
            let tuning = Tuning::default();
            let backing = Arc::new(BlankDevice::new(slots));
            let device = Device::new("test".into(), 0, Slots::new(slots, 1, false, &tuning), backing);
            let engine = Engine::new(vec![device], MEMORY * PAGE_SIZE as u64, tuning);
            let space = Arc::new(Space::new(SpaceId(1), Arc::new(BlankMemory)));
            engine.add_space(space.clone());
            let mut job = Job { engine, space, scratch: Scratch::default() };
            (0..PAGES).for_each(|page| job.touch(page));
            job
        }

        fn touch(&mut self, page: u64) {
            let vpn = Vpn(1 << 20 | page);
            while self.space.word(vpn).state() != State::Resident {
                let fault = Fault { vpn, write: true, urgent: false, favoured: false };
                let outcome = self.engine.fault(CPU, QueueId(0), &self.space, fault, &mut self.scratch);
                if matches!(outcome, Outcome::NoRoom) || self.engine.root().above_high_mark() {
                    let (_, batch) = self.engine.shrink(CPU, &self.space, 64);
                    if let Some(batch) = batch {
                        self.engine.write_out(CPU, QueueId(0), batch);
                    }
                }
            }
        }

        /// Touches rows of so many pages, each somewhere. Returns (faults, pages that came along).
        fn rows(&mut self, rows: u64, pages: u64) -> (u64, u64) {
            let count = |job: &Job| {
                let stats = job.engine.stats();
                (stats.sum(|c| &c.pgmajfault), stats.sum(|c| &c.swap_ra))
            };
            let before = count(self);
            for row in 0..rows {
                let first = (row + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % (PAGES - pages);
                (first..first + pages).for_each(|page| self.touch(page));
            }
            let after = count(self);
            self.engine.check();
            (after.0 - before.0, after.1 - before.1)
        }
    }

    #[test]
    fn pages_beside_pairs_come_until_it_is_seen_that_none_is_touched() {
        let mut job = Job::new();
        let (_, at_first) = job.rows(1000, 2);
        job.rows(8000, 2);
        let (faults, later) = job.rows(4000, 2);
        assert!(at_first > 100, "{at_first}");
        assert!(later * 20 < faults, "{later} for {faults} faults");
        // Rows of eight, and of sixteen pages: their first windows are of the size that is left.
        job.rows(2000, 8);
        let (faults, along) = job.rows(1000, 8);
        assert!(along > faults, "{along} for {faults} faults");
        // The program goes through its pages in order now, and half of them is away each time.
        job.rows(4, PAGES - 1);
        let (faults, along) = job.rows(4, PAGES - 1);
        assert!(along > 4 * faults, "{along} for {faults} faults");
    }

    #[test]
    fn long_rows_are_trusted() {
        let mut job = Job::new();
        job.rows(100, 64);
        let (faults, along) = job.rows(400, 64);
        assert!(along > 3 * faults, "{along} for {faults} faults");
    }
}
