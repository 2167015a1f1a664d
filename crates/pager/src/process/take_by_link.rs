//! Pages are taken out of a process that has no userfaultfd: by its evictor, into staging that is shared.
//!
//! ```text
//!   runs ─▶ control page ─▶ Command ─▶ evictor: windows, chunk by chunk, bytes into staging ─▶ Reply
//!   staging ─▶ our frames
//! ```
//!
//! An evictor that does not answer is cut off (`AgentLink::cut`): what it has committed by then counts as
//! taken, for its bytes are in staging, and it takes nothing more. When it goes on, it ends what it began,
//! and no more.
//!
//! The agent can only lose its own process's data.

use crate::process::agent::Agent;
use crate::process::evictor::Failed;
use crate::process::link::AgentLink;
use crate::process::staged::HALF_PAGES;
use crate::process::take::{Takes, collect, pieces};
use memspill_agent::protocol::{MoveRun, OP_MOVE};
use memspill_engine::memory::{PageRun, Take};
use memspill_engine::units::Page;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// For whoever has the evictor's turn and the batch lock of the process.
pub struct LinkTaker<'a> {
    pub link: &'a AgentLink,
    pub agent: &'a Agent,
    /// To be set where the evictor can be understood no more.
    pub broken: &'a AtomicBool,
}

impl LinkTaker<'_> {
    /// For each page of the runs its outcome; what was taken is in `frames`, compactly, in order.
    pub fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let mut taken = 0;
        for piece in pieces(runs) {
            let pages: usize = piece.iter().map(|run| run.pages as usize).sum();
            let mut takes = Takes { runs: &piece, takes: vec![None; pages] };
            // What one half of staging held has been read when the other is used, even by one who is late.
            let half = self.agent.half.fetch_xor(1, Ordering::Relaxed);
            let base = half * HALF_PAGES;
            let is_answered = self.take_out(base, &mut takes);
            for (index, _) in takes.takes.iter().enumerate().filter(|(_, take)| **take == Some(Take::Moved)) {
                self.link.read_staging(base + index as u32, &mut frames[taken]);
                taken += 1;
            }
            // An evictor that is late may still put back what it has there.
            if is_answered {
                self.link.have_read_staging(half as usize, pages as u32);
            }
            outcome.extend(takes.takes.iter().map(|take| take.unwrap_or(Take::Retry)));
        }
    }

    /// Whether the evictor has answered, and so is done with all of staging.
    fn take_out(&self, base: u32, takes: &mut Takes<'_>) -> bool {
        /// What is left after these is tried again another time.
        const ROUNDS_MAX: u32 = 16;
        let evictor = &self.agent.evictor;
        let deadline = evictor.deadline();
        for _ in 0..ROUNDS_MAX {
            let remaining = takes.remaining(base);
            if remaining.is_empty() {
                return true;
            }
            let sent = Cell::new(0);
            let open = |seq| {
                sent.set(seq);
                self.link.open(seq);
            };
            match evictor.call_after(OP_MOVE, &remaining, 0, deadline, open) {
                Ok(()) => {
                    collect(&evictor.control, &remaining, base, &mut takes.takes);
                    let met_change = |index| evictor.control.read_run(index).errno == libc::ECANCELED;
                    self.link.note_batch((0..remaining.len()).any(met_change));
                }
                // Of an earlier command.
                Err(Failed::Late) if sent.get() == 0 => return false,
                Err(Failed::Late) => {
                    self.end_batch_of_late(sent.get(), &remaining, base, takes);
                    return false;
                }
                Err(failed) => {
                    if failed == Failed::Broken {
                        self.broken.store(true, Ordering::Relaxed);
                    }
                    takes.takes.iter_mut().for_each(|take| *take = take.or(Some(Take::Gone)));
                    return false;
                }
            }
        }
        true
    }

    fn end_batch_of_late(&self, seq: u32, sent: &[MoveRun], base: u32, takes: &mut Takes<'_>) {
        let Some((last, pages)) = self.link.cut(seq) else { return };
        for (index, run) in sent.iter().enumerate().take(last as usize + 1) {
            let noted = self.agent.evictor.control.read_run(index).moved;
            let moved = if index == last as usize { pages } else { noted }.min(run.pages) as usize;
            let first = (run.staging - base) as usize;
            takes.takes[first..first + moved].fill(Some(Take::Moved));
        }
    }
}
