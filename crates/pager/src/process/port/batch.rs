//! A batch of pages that an evictor is to take out: in which commands, and what became of each page.
//!
//! Staging has two halves, used in turn. A batch that is larger than a half (a folio of more than 512 KiB) is
//! taken in pieces.

use crate::process::agent::Agent;
use crate::process::control::ControlPage;
use crate::process::ranges::Ranges;
use memspill_common::protocol::{MoveRun, RUN_IN_USE, RUNS_MAX, STAGING_PAGES};
use memspill_engine::frames::BATCH_PAGES;
use memspill_engine::memory::{PageRun, Take};
use memspill_engine::units::Vpn;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

pub const HALF_PAGES: u32 = STAGING_PAGES / 2;

const _: () =
    assert!(BATCH_PAGES <= HALF_PAGES as usize, "only folios that were asked for are taken in pieces");
const _: () = assert!(HALF_PAGES as usize <= RUNS_MAX);

/// The process that pages are taken out of.
pub struct Owner<'a> {
    pub agent: &'a Agent,
    /// Some of what is managed is writable and executable (see `MOVE_EXEC`).
    pub has_exec: bool,
    /// To be set where the process's memory can be read no more, or its evictor not be understood.
    pub broken: &'a AtomicBool,
    /// Set while staging is being read.
    pub reading: &'a AtomicBool,
    /// Pages that cannot be moved as they are mapped.
    pub unmoved: &'a Mutex<Ranges>,
}

/// The outcome of each page of a batch, as far as it is known.
pub struct Takes<'a> {
    pub runs: &'a [PageRun],
    pub takes: Vec<Option<Take>>,
}

impl Takes<'_> {
    /// The address of page `index` of the batch.
    pub fn address(&self, index: usize) -> u64 {
        let mut before = 0;
        for run in self.runs {
            let at = index - before;
            if at < run.pages as usize {
                return Vpn(run.vpn.0 + at as u64).addr();
            }
            before += run.pages as usize;
        }
        panic!("page {index} of a batch of {before}");
    }

    /// Runs of pages that have no outcome yet; page i of the batch goes to staging page `base + i`.
    pub fn remaining(&self, base: u32) -> Vec<MoveRun> {
        let mut out: Vec<MoveRun> = Vec::new();
        let mut index = 0;
        for run in self.runs {
            let mut open = false;
            for i in 0..run.pages {
                if self.takes[index].is_some() {
                    open = false;
                } else if open {
                    out.last_mut().expect("open").pages += 1;
                } else {
                    open = true;
                    let src_addr = Vpn(run.vpn.0 + u64::from(i)).addr();
                    out.push(MoveRun {
                        src_addr,
                        pages: 1,
                        staging: base + index as u32,
                        moved: 0,
                        errno: 0,
                    });
                }
                index += 1;
            }
        }
        out
    }
}

/// Runs cut into lists of at most a half of staging each.
pub fn pieces(runs: &[PageRun]) -> Vec<Vec<PageRun>> {
    let mut pieces: Vec<Vec<PageRun>> = Vec::new();
    let mut room = 0;
    for run in runs {
        let mut at = 0;
        while at < run.pages {
            if room == 0 {
                pieces.push(Vec::new());
                room = HALF_PAGES;
            }
            let pages = room.min(run.pages - at);
            let piece = PageRun { vpn: Vpn(run.vpn.0 + u64::from(at)), pages };
            pieces.last_mut().expect("just pushed").push(piece);
            room -= pages;
            at += pages;
        }
    }
    pieces
}

/// Read the results of a command. True if pages may have been moved that it does not tell of.
pub fn collect(control: &ControlPage, sent: &[MoveRun], base: u32, takes: &mut [Option<Take>]) -> bool {
    let mut doubtful = false;
    for (i, run) in sent.iter().enumerate() {
        let result = control.read_run(i);
        let moved = result.moved.min(run.pages) as usize;
        let first = (run.staging - base) as usize;
        let end = first + run.pages as usize;
        takes[first..first + moved].fill(Some(Take::Moved));
        if moved == run.pages as usize {
            continue;
        }
        let stopped_at = first + moved;
        // Whatever the reason: the call that found it may have moved pages before, and counted none of them.
        doubtful = true;
        match result.errno {
            libc::ENOENT => takes[stopped_at] = Some(Take::Hole),
            RUN_IN_USE => takes[stopped_at] = Some(Take::Retry),
            libc::EBUSY => takes[stopped_at] = Some(Take::Busy),
            libc::EINVAL | libc::EFAULT => takes[stopped_at] = Some(Take::Unevictable),
            libc::ESRCH => takes[stopped_at..end].fill(Some(Take::Gone)),
            // EEXIST, EAGAIN and ECANCELED (an event), ENOMEM.
            _ => takes[stopped_at..end].fill(Some(Take::Retry)),
        }
    }
    doubtful
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn pieces_fit_into_half_of_staging() {
        let run = |vpn, pages| PageRun { vpn: Vpn(vpn), pages };
        assert_eq!(pieces(&[run(5, 3), run(9, 4)]), [vec![run(5, 3), run(9, 4)]]);
        let half = HALF_PAGES;
        let large = pieces(&[run(0, 1), run(512, 2 * half)]);
        let expected = [
            vec![run(0, 1), run(512, half - 1)],
            vec![run(511 + u64::from(half), half)],
            vec![run(511 + 2 * u64::from(half), 1)],
        ];
        assert_eq!(large, expected);
    }
}
