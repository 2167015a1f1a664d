//! Pages are taken out of a process by its evictor with UFFDIO_MOVE, batch by batch.
//!
//! ```text
//!   runs ─▶ control page ─▶ Command ─▶ evictor: UFFDIO_MOVE into staging ─▶ Reply
//!   process_vm_readv: staging ─▶ our frames;  Command ZAP: staging is emptied (nobody waits for that)
//! ```
//!
//! A batch can be moved into one half of staging while the other half is still being emptied.
//!
//! The results of the evictor are checked: a lying agent can only lose its own process's data, and is given
//! nobody else's. Pages that are read from staging go back to the owner of the userfaultfd, so they must be
//! that one's: before the first batch the evictor is found to share its memory ([`Taker::is_of_one`]), after
//! each batch to be there still (its number may name somebody else's thread).

use crate::process::agent::Agent;
use crate::process::bytes::bytes_of_mut;
use crate::process::control::Forbidden;
use crate::process::evictor::Failed;
use crate::process::port::batch::{HALF_PAGES, Owner, Takes, collect, pieces};
use crate::times::EVICTOR_ANSWERS;
use memspill_common::protocol::{MOVE_EXEC, MoveRun, OP_MOVE, OP_POPULATE, RUNS_MAX};
use memspill_engine::memory::{PageRun, Take};
use memspill_engine::units::{PAGE_SIZE, Page, Vpn};
use memspill_uffd::pagemap;
use memspill_uffd::userfaultfd::{self, Uffd};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Takes pages out of one process. The caller has its evictor's turn and its batch lock.
pub struct Taker<'a> {
    pub uffd: &'a Uffd,
    pub owner: &'a Owner<'a>,
}

impl Taker<'_> {
    /// For each page of the runs its outcome; what was moved is in `frames`, compactly, in order.
    pub fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let mut taken = 0;
        for piece in pieces(runs) {
            let before = outcome.len();
            self.take_piece(&piece, &mut frames[taken..], outcome);
            taken += outcome[before..].iter().filter(|take| **take == Take::Moved).count();
        }
    }

    /// Take as many pages as a half of staging holds.
    fn take_piece(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let pages: usize = runs.iter().map(|r| r.pages as usize).sum();
        // An earlier piece of a batch may have gone without an answer.
        let evictor = &self.owner.agent.evictor;
        let late = (evictor.is_late() || evictor.is_cut_off()).then_some(Take::Retry);
        if let Some(take) = late.or_else(|| self.why_not()) {
            outcome.resize(outcome.len() + pages, take);
            return;
        }
        let base = self.owner.agent.half.fetch_xor(1, Ordering::Relaxed) * HALF_PAGES;
        let mut takes = Takes { runs, takes: vec![None; pages] };
        let doubtful = self.move_to_staging(base, &mut takes);
        if doubtful && let Err(error) = self.find_uncounted(base, &mut takes) {
            self.lose_all(&error, &mut takes.takes);
        }
        self.read_staging(base, frames, &mut takes.takes);
        // Also where nothing was moved because staging was not empty (EEXIST): mlockall fills it, and so does
        // a program that reads all of its memory. Moved pages have been read by now.
        if doubtful || takes.takes.contains(&Some(Take::Moved)) {
            self.empty_staging(base, pages as u32);
        }
        self.note_unmoved(&takes);
        outcome.extend(takes.takes.iter().map(|t| t.unwrap_or(Take::Retry)));
    }

    fn note_unmoved(&self, takes: &Takes<'_>) {
        let is_unmoved = |(_, take): &(usize, &Option<Take>)| **take == Some(Take::Unevictable);
        let unmoved = takes.takes.iter().enumerate().filter(is_unmoved);
        let mut unmoved = unmoved.map(|(index, _)| takes.address(index)).peekable();
        if unmoved.peek().is_some() {
            let mut noted = self.owner.unmoved.lock().expect("unmoved");
            unmoved.for_each(|addr| noted.insert(addr, addr + PAGE_SIZE as u64));
        }
    }

    /// Have the evictor move the pages, in as many commands as that takes. True if pages may have been moved
    /// of which no result tells.
    fn move_to_staging(&self, base: u32, takes: &mut Takes<'_>) -> bool {
        /// Each round gives every run at least one outcome, so runs that are full of holes or busy pages need
        /// many: what is left after these is tried again another time.
        const ROUNDS_MAX: u32 = 16;
        let evictor = &self.owner.agent.evictor;
        let flags = if self.owner.has_exec { MOVE_EXEC } else { 0 };
        let deadline = evictor.deadline();
        let mut doubtful = false;
        for _ in 0..ROUNDS_MAX {
            let remaining = takes.remaining(base);
            if remaining.is_empty() {
                break;
            }
            match evictor.call(OP_MOVE, &remaining, flags, deadline) {
                Ok(()) => {
                    doubtful |= collect(&evictor.control, &remaining, base, &mut takes.takes);
                    self.skip_closed(takes);
                }
                Err(Failed::Late) => {
                    if let Err(error) = self.end_batch_of_late(&remaining, base, takes) {
                        self.lose_all(&error, &mut takes.takes);
                    }
                    break;
                }
                Err(failed) => {
                    if failed == Failed::Broken {
                        self.owner.broken.store(true, Ordering::Relaxed);
                    }
                    takes.takes.iter_mut().for_each(|t| *t = t.or(Some(Take::Gone)));
                    break;
                }
            }
        }
        doubtful
    }

    /// The next pages of a mapping that may not be written need not be tried: each would take a command of
    /// its own.
    fn skip_closed(&self, takes: &mut Takes<'_>) {
        let mut closed_end = 0;
        for index in 0..takes.takes.len() {
            let is_unmoved = takes.takes[index] == Some(Take::Unevictable);
            if !is_unmoved && (takes.takes[index].is_some() || closed_end == 0) {
                closed_end = 0;
                continue;
            }
            let addr = takes.address(index);
            if takes.takes[index].is_none() {
                match addr < closed_end && takes.address(index - 1) + PAGE_SIZE as u64 == addr {
                    true => takes.takes[index] = Some(Take::Unevictable),
                    false => closed_end = 0,
                }
            } else if addr >= closed_end && takes.takes.get(index + 1) == Some(&None) {
                closed_end = self.owner.agent.closed_until(addr).unwrap_or(0);
            }
        }
    }

    /// None: pages may be taken.
    fn why_not(&self) -> Option<Take> {
        let agent = self.owner.agent;
        if agent.of_one.load(Ordering::Relaxed) {
            return None;
        }
        match self.is_of_one() {
            _ if !agent.lives() => Some(Take::Gone),
            Some(true) => {
                agent.of_one.store(true, Ordering::Relaxed);
                None
            }
            Some(false) => {
                self.owner.broken.store(true, Ordering::Relaxed);
                Some(Take::Gone)
            }
            None => Some(Take::Retry),
        }
    }

    /// Do the userfaultfd that the agent has sent and the thread that it calls its evictor belong to one
    /// address space? Bytes put in by the one must be seen through the other. None: it cannot be told now.
    ///
    /// Else an agent could give the number of another process's thread (a program with more rights, that it
    /// has started by exec), and have that one's memory put into its own.
    fn is_of_one(&self) -> Option<bool> {
        let agent = self.owner.agent;
        // By its answer the evictor has emptied what earlier calls of this function wanted empty. It would
        // empty the page that is filled here else, and not seem to be of this address space; and of calls
        // that follow each other at once none would leave it time to read its commands.
        match agent.evictor.call(OP_POPULATE, &[], 0, Instant::now() + EVICTOR_ANSWERS) {
            Ok(()) => {}
            Err(Failed::Broken) => return Some(false),
            Err(_) => return None,
        }
        // In the half that the next batch does not use: it is emptied before that one has been answered.
        let other_half = (1 - agent.half.load(Ordering::Relaxed)) * HALF_PAGES;
        let staged = agent.ready.staging_addr + u64::from(other_half) * PAGE_SIZE as u64;
        let mut drawn = Box::new(Page::ZERO);
        rustix::rand::getrandom(&mut drawn.0[..32], rustix::rand::GetRandomFlags::empty()).ok()?;
        let filled = self.uffd.copy(staged, &drawn.0);
        let empty = || self.empty_staging(other_half, 1);
        match filled.stop {
            userfaultfd::Stop::Done => {}
            // Somebody has locked all memory, or wrote there: next time.
            userfaultfd::Stop::Exists => {
                empty();
                return None;
            }
            _ => return None,
        }
        // A page that is missing there must not be read: that would wait for whoever serves that process's
        // faults.
        let mut is_there = false;
        let end = staged + PAGE_SIZE as u64;
        let looked = pagemap::occupied(&agent.pagemap, staged, end, |_, _| is_there = true);
        let mut seen = Box::new(Page::ZERO);
        let read = if is_there { agent.read(&[(staged, PAGE_SIZE)], &mut seen.0) } else { Ok(()) };
        empty();
        looked.and(read).ok().map(|()| is_there && seen.0 == drawn.0)
    }

    /// The evictor has not answered: nothing more is moved, and what was moved so far is found. An error:
    /// that is not known.
    fn end_batch_of_late(&self, sent: &[MoveRun], base: u32, takes: &mut Takes<'_>) -> io::Result<()> {
        let evictor = &self.owner.agent.evictor;
        evictor.cut_off(self.uffd).map_err(io::Error::from_raw_os_error)?;
        for (i, run) in sent.iter().enumerate() {
            let first = (run.staging - base) as usize;
            let moved = evictor.control.read_run(i).moved.min(run.pages) as usize;
            takes.takes[first..first + moved].fill(Some(Take::Moved));
        }
        self.find_uncounted(base, takes)
    }

    /// Mark as moved what was moved and not counted. An error: it cannot be told.
    ///
    /// A page may be in staging and at home. Then it is an old one of staging that could not be emptied, of
    /// zeros (mlockall fills staging, and so does whoever reads all memory); or the one at home is that of
    /// another mapping, which came when the first one was moved away or unmapped a moment ago. An event tells
    /// of that.
    fn find_uncounted(&self, base: u32, takes: &mut Takes<'_>) -> io::Result<()> {
        let agent = self.owner.agent;
        let both = mark_uncounted(agent, base, takes)?;
        if both.is_empty()
            || !(self.uffd.is_changing() || agent.evictor.control.is_forbidden(Forbidden::Event))
        {
            return Ok(());
        }
        let mut page = Box::new(Page::ZERO);
        for index in both {
            let addr = agent.ready.staging_addr + (u64::from(base) + index as u64) * PAGE_SIZE as u64;
            agent.read(&[(addr, PAGE_SIZE)], &mut page.0)?;
            if page.0 != Page::ZERO.0 {
                return Err(io::Error::other("a page was moved out while its mapping changed"));
            }
        }
        Ok(())
    }

    /// Nobody waits for that. An evictor that does not take its commands is not to be trusted with more: what
    /// it does not empty would be taken for pages of a later batch.
    fn empty_staging(&self, first: u32, pages: u32) {
        let sent = self.owner.agent.evictor.empty_staging(first, pages);
        if sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.owner.broken.store(true, Ordering::Relaxed);
        }
    }

    /// Make pages that a fork has left shared the process's own. False: it has not been done yet.
    pub fn populate(&self, pages: &[Vpn]) -> bool {
        let run = |vpn: &Vpn| MoveRun { src_addr: vpn.addr(), pages: 1, ..MoveRun::default() };
        let runs: Vec<MoveRun> = pages.iter().take(RUNS_MAX).map(run).collect();
        let result = self.owner.agent.evictor.call(OP_POPULATE, &runs, 0, Instant::now() + EVICTOR_ANSWERS);
        if result == Err(Failed::Broken) {
            self.owner.broken.store(true, Ordering::Relaxed);
        }
        result.is_ok()
    }

    /// Copy what was moved into `frames`, compactly, in order. The pages are in staging and nowhere else: if
    /// they cannot be read, the process cannot go on.
    fn read_staging(&self, base: u32, frames: &mut [Page], takes: &mut [Option<Take>]) {
        let agent = self.owner.agent;
        let mut segments: Vec<(u64, usize)> = Vec::new();
        let mut pages = 0;
        for (i, _) in takes.iter().enumerate().filter(|(_, t)| **t == Some(Take::Moved)) {
            let addr = agent.ready.staging_addr + (u64::from(base) + i as u64) * PAGE_SIZE as u64;
            match segments.last_mut() {
                Some((start, len)) if *start + *len as u64 == addr => *len += PAGE_SIZE,
                _ => segments.push((addr, PAGE_SIZE)),
            }
            pages += 1;
        }
        if pages == 0 {
            return;
        }
        self.owner.reading.store(true, Ordering::SeqCst);
        let read = agent.read(&segments, bytes_of_mut(&mut frames[..pages]));
        self.owner.reading.store(false, Ordering::SeqCst);
        match read {
            Err(error) => self.lose_all(&error, takes),
            Ok(()) if self.owner.broken.load(Ordering::SeqCst) => {
                self.lose_all(&io::ErrorKind::InvalidData.into(), takes)
            }
            Ok(()) => {}
        }
    }

    /// Moved pages cannot be had. If the evictor has ended (ESRCH), so has the address space.
    fn lose_all(&self, error: &io::Error, takes: &mut [Option<Take>]) {
        if error.raw_os_error() != Some(libc::ESRCH) {
            self.owner.broken.store(true, Ordering::Relaxed);
        }
        for take in takes.iter_mut().filter(|t| matches!(t, Some(Take::Moved | Take::Retry) | None)) {
            *take = Some(Take::Gone);
        }
    }
}

/// Find the pages that UFFDIO_MOVE has moved and not counted: those in staging that their place is without.
///
/// Since Linux 6.18 it moves up to a page table's worth of pages at a time, and where it met one that was
/// being migrated (EAGAIN inside) it tries again, moves them, and counts none of them. The same call then
/// says what stopped it further on (a hole, a shared page), as if that were the first page; or the next one
/// finds places in staging taken (EEXIST), an event (EAGAIN, ECANCELED), or a mapping that mprotect has
/// changed meanwhile (EINVAL). Staging is emptied after a batch: they would be gone for good. Returns those
/// that are both in staging and at home.
fn mark_uncounted(agent: &Agent, base: u32, takes: &mut Takes<'_>) -> io::Result<Vec<usize>> {
    let page = PAGE_SIZE as u64;
    let first = agent.ready.staging_addr + u64::from(base) * page;
    let end = first + takes.takes.len() as u64 * page;
    let mut staged = Vec::new();
    pagemap::occupied(&agent.pagemap, first, end, |from, to| {
        staged.extend((from..to).step_by(PAGE_SIZE).map(|addr| ((addr - first) / page) as usize));
    })?;
    staged.retain(|index| takes.takes[*index] != Some(Take::Moved));
    let mut both = Vec::new();
    for index in staged {
        let source = takes.address(index);
        let mut at_home = false;
        pagemap::occupied(&agent.pagemap, source, source + page, |_, _| at_home = true)?;
        if at_home {
            both.push(index);
        } else {
            takes.takes[index] = Some(Take::Moved);
        }
    }
    Ok(both)
}
