//! Pages are taken out of a process without a userfaultfd: its evictor copies them into shared staging.
//!
//! ```text
//!   runs ─▶ control page ─▶ Command ─▶ evictor: windows, chunk by chunk, bytes into staging ─▶ Reply
//!   staging ─▶ our frames
//! ```
//!
//! An evictor that does not answer is cut off ([`AgentPort::cut`]): the pages that it has committed by then
//! count as taken, because their bytes are in staging, and it takes no more. When it goes on, it ends what it
//! began.
//!
//! The agent can only lose its own process's data.

use super::AgentPort;
use crate::process::evictor::Failed;
use crate::process::port::batch::{HALF_PAGES, Owner, Takes, collect, pieces};
use memspill_common::link::{CUT, committed_of, open};
use memspill_common::protocol::{MoveRun, OP_MOVE};
use memspill_common::rules::{Rule, holds};
use memspill_common::sync::Ordering;
use memspill_engine::memory::{PageRun, Take};
use memspill_engine::units::Page;
use std::cell::Cell;

impl AgentPort {
    /// Returns the outcome of each page of the runs; those that were taken are in `frames`, compactly, in
    /// order. The caller has the evictor's turn and the batch lock.
    pub fn take(&self, owner: &Owner<'_>, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let mut taken = 0;
        for piece in pieces(runs) {
            let pages: usize = piece.iter().map(|run| run.pages as usize).sum();
            let mut takes = Takes { runs: &piece, takes: vec![None; pages] };
            // The bytes in one half of staging have been read when the other is used, even by one who is
            // late.
            let half = owner.agent.half.fetch_xor(1, Ordering::Relaxed);
            let base = half * HALF_PAGES;
            let is_answered = self.take_out(owner, base, &mut takes);
            for (index, _) in takes.takes.iter().enumerate().filter(|(_, take)| **take == Some(Take::Moved)) {
                self.link.read_staging(base + index as u32, &mut frames[taken]);
                taken += 1;
            }
            // An evictor that is late may still put back what it has there.
            if is_answered {
                self.have_read_staging(half, pages as u32);
            }
            outcome.extend(takes.takes.iter().map(|take| take.unwrap_or(Take::Retry)));
        }
    }

    /// Returns whether the evictor has answered, and so is done with all of staging.
    fn take_out(&self, owner: &Owner<'_>, base: u32, takes: &mut Takes<'_>) -> bool {
        /// Pages that are left after these rounds are tried again another time.
        const ROUNDS_MAX: u32 = 16;
        let evictor = &owner.agent.evictor;
        let deadline = evictor.deadline();
        for _ in 0..ROUNDS_MAX {
            let remaining = takes.remaining(base);
            if remaining.is_empty() {
                return true;
            }
            let sent = Cell::new(0);
            let open = |seq| {
                sent.set(seq);
                self.open(seq);
            };
            match evictor.call_after(OP_MOVE, &remaining, 0, deadline, open) {
                Ok(()) => {
                    collect(&evictor.control, &remaining, base, &mut takes.takes);
                    let met_change = |index| evictor.control.read_run(index).errno == libc::ECANCELED;
                    self.note_batch((0..remaining.len()).any(met_change));
                }
                // An answer to an earlier command.
                Err(Failed::Late) if sent.get() == 0 => return false,
                Err(Failed::Late) => {
                    self.end_batch_of_late(owner, (sent.get(), &remaining), base, takes);
                    return false;
                }
                Err(failed) => {
                    if failed == Failed::Broken {
                        owner.broken.store(true, Ordering::Relaxed);
                    }
                    takes.takes.iter_mut().for_each(|take| *take = take.or(Some(Take::Gone)));
                    return false;
                }
            }
        }
        true
    }

    fn end_batch_of_late(
        &self,
        owner: &Owner<'_>,
        (seq, sent): (u32, &[MoveRun]),
        base: u32,
        takes: &mut Takes<'_>,
    ) {
        let Some((last, pages)) = self.cut(seq) else { return };
        for (index, run) in sent.iter().enumerate().take(last as usize + 1) {
            let noted = owner.agent.evictor.control.read_run(index).moved;
            let moved = if index == last as usize { pages } else { noted }.min(run.pages) as usize;
            let first = (run.staging - base) as usize;
            takes.takes[first..first + moved].fill(Some(Take::Moved));
        }
    }

    /// The first pages of a half of staging have been read: they may be given back. The evictor has answered:
    /// until then it may put back into its process the pages that lie there.
    fn have_read_staging(&self, half: u32, pages: u32) {
        if let Some(given) = self.staging.note(half as usize, pages) {
            let first = half * HALF_PAGES;
            self.link.free_staging(first + given.start..first + given.end);
        }
    }

    /// Command `seq` may take pages out from now on.
    fn open(&self, seq: u32) {
        self.link.take().store(open(seq), Ordering::SeqCst);
    }

    /// Command `seq` takes no more pages out. Returns how far it has come: a run, and pages of it, which are
    /// in staging; of the runs before it as many as are noted in each.
    fn cut(&self, seq: u32) -> Option<(u32, u32)> {
        let take = self.link.take();
        let seen =
            if holds(Rule::Cut) { take.swap(CUT, Ordering::SeqCst) } else { take.load(Ordering::SeqCst) };
        committed_of(seen, seq)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::testing::new_port;
    use super::*;

    #[test]
    fn a_late_command_is_cut_where_it_stands() {
        use memspill_common::link::committed;
        let port = new_port();
        port.open(5);
        assert_eq!(port.cut(5), None);
        port.open(6);
        let seen = port.link.take().swap(committed(6, 2, 64), Ordering::SeqCst);
        assert_eq!((seen, port.cut(6), port.cut(6)), (open(6), Some((2, 64)), None));
    }
}
