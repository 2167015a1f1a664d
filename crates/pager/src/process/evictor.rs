//! Commands to an evictor, and what becomes of one that is not answered.
//!
//! An evictor answers within microseconds, unless its process stands still: stopped by a signal, by a tracer,
//! frozen, or without CPU time. A thread that waits for it holds the process's batch lock, so it is waited
//! for a moment only:
//!
//! ```text
//!   send ─▶ reply                                        all is known
//!        └▶ none within EVICTOR_ANSWERS, or it is seen to stand still: the command is *late*
//!              a MOVE is *cut off*: staging is unregistered
//!                 from here on the kernel refuses every MOVE (EINVAL), wherever in its code the evictor
//!                 stands, and one that is under way has ended (unregistering waits for it); so what is in
//!                 staging was moved, the rest was not, and the batch ends with that
//!              one that could run and has no CPU is waited for longer the next time, up to
//!              EVICTOR_ANSWERS_MOST: cut off each time, it would never move a page
//!           no other command is sent until the late reply has come; then, inside the gate, staging is
//!           registered again
//! ```
//!
//! While a process is cut off, its events are read without the MOVE lock, which the evictor may hold wherever
//! it stands: there is no MOVE that it could exclude. A reader is inside the gate, and staging is registered
//! again only there: that keeps the two apart.
//!
//! What it does not do: end a process that stands still for ever; what it holds stays where it is.

use crate::proc;
use crate::process::control::{ControlPage, Forbidden};
use crate::process::ranges::Range;
use crate::process::standstill::Standstill;
use crate::process::{standstill, wire};
use crate::times::{EVICTOR_ANSWERS, EVICTOR_ANSWERS_MOST, EVICTOR_LOOKED_AT};
use memspill_common::protocol::{
    Command, MoveRun, OP_EXIT, OP_MOVE, OP_PROTECT, OP_ZAP, RUNS_MAX, Reply, STAGING_PAGES, move_cpu,
};
use memspill_engine::gate::Gate;
use memspill_engine::units::PAGE_SIZE;
use memspill_uffd::userfaultfd::Uffd;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Why a command has no result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// The evictor has ended, and its process or its program with it.
    Gone,
    /// It answers, but not what it was asked: what became of the pages is not known.
    Broken,
    /// It has not answered yet.
    Late,
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                Failed::Gone
            }
            _ => Failed::Broken,
        }
    }
}

/// How long an evictor is waited for.
#[derive(Default)]
struct Patience {
    doublings: AtomicU32,
}

impl Patience {
    fn limit(&self) -> Duration {
        (EVICTOR_ANSWERS * (1 << self.doublings.load(Ordering::Relaxed))).min(EVICTOR_ANSWERS_MOST)
    }

    fn note_late(&self, why: Standstill) {
        if why == Standstill::NoCpu && self.limit() < EVICTOR_ANSWERS_MOST {
            self.doublings.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn note_answer(&self, after: Duration) {
        let doublings = self.doublings.load(Ordering::Relaxed);
        if doublings > 0 && after < self.limit() / 4 {
            self.doublings.store(doublings - 1, Ordering::Relaxed);
        }
    }
}

/// One evictor: how it is told something, and what it has not answered.
pub struct Evictor {
    pub socket: Arc<OwnedFd>,
    pub control: Arc<ControlPage>,
    /// Its thread id, as seen from here.
    pub tid: u32,
    staging_addr: u64,
    last_seq: AtomicU32,
    /// Number of the command whose reply has not come; 0: none.
    late: AtomicU32,
    cut_off: AtomicBool,
    /// The CPU that it is to run on, as OP_MOVE says it.
    cpu: AtomicU32,
    /// The call by which it goes there does not end its process.
    may_be_kept: OnceLock<bool>,
    patience: Patience,
}

impl Evictor {
    pub fn new(socket: Arc<OwnedFd>, control: Arc<ControlPage>, tid: u32, staging_addr: u64) -> Evictor {
        let (last_seq, late, cut_off, cpu, may_be_kept, patience) = Default::default();
        Evictor { socket, control, tid, staging_addr, last_seq, late, cut_off, cpu, may_be_kept, patience }
    }

    /// From now on it runs on this CPU, where the one thread of its process runs that faults, or on any: then
    /// no other CPU is interrupted for what it takes out (`agent/src/agent/machine/affinity.rs`).
    pub fn keep_on(&self, cpu: Option<usize>) {
        let cpu = cpu.filter(|_| *self.may_be_kept.get_or_init(|| has_only_our_filters(self.tid)));
        self.cpu.store(move_cpu(cpu.map(|cpu| cpu as u32)), Ordering::Relaxed);
    }

    /// It was late for lack of a CPU, and has not been quick since.
    pub fn lacks_cpu(&self) -> bool {
        self.patience.limit() > EVICTOR_ANSWERS
    }

    /// A batch that begins now is waited for until then.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.patience.limit()
    }

    /// Run one command and wait for its reply, until `deadline` at most. Only for whoever has the evictor's
    /// turn.
    pub fn call(&self, op: u32, runs: &[MoveRun], flags: u32, deadline: Instant) -> Result<(), Failed> {
        self.call_after(op, runs, flags, deadline, |_| {})
    }

    /// The same; `before` the command is sent its number is told.
    pub fn call_after(
        &self,
        op: u32,
        runs: &[MoveRun],
        flags: u32,
        deadline: Instant,
        before: impl FnOnce(u32),
    ) -> Result<(), Failed> {
        if self.is_late() || self.is_cut_off() {
            return Err(Failed::Late);
        }
        self.control.write_runs(runs);
        let seq = self.next_seq();
        before(seq);
        let cpu = if op == OP_MOVE { self.cpu.load(Ordering::Relaxed) } else { 0 };
        wire::send(&self.socket, &Command { op, seq, arg: runs.len() as u32, arg2: flags | cpu }, &[])?;
        let sent_at = Instant::now();
        if !self.answers(deadline)? {
            self.late.store(seq, Ordering::Relaxed);
            self.patience.note_late(standstill::of_silent(self.tid));
            return Err(Failed::Late);
        }
        self.patience.note_answer(sent_at.elapsed());
        self.take_reply(seq)
    }

    /// These pages are protected against writes, as far as they can be (OP_PROTECT).
    pub fn protect(&self, ranges: &[Range]) -> Result<(), Failed> {
        let runs: Vec<MoveRun> = ranges.iter().flat_map(|range| runs_of(*range)).collect();
        let deadline = Instant::now() + EVICTOR_ANSWERS;
        runs.chunks(RUNS_MAX).try_for_each(|runs| self.call(OP_PROTECT, runs, 0, deadline))
    }

    fn next_seq(&self) -> u32 {
        loop {
            let seq = self.last_seq.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if seq != 0 {
                return seq;
            }
        }
    }

    /// Wait for a reply, as long as there is hope of one.
    fn answers(&self, deadline: Instant) -> io::Result<bool> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if readable(&self.socket, left.min(EVICTOR_LOOKED_AT))? {
                return Ok(true);
            }
            if left.is_zero() || standstill::of(self.tid).is_some() {
                return Ok(false);
            }
        }
    }

    fn take_reply(&self, seq: u32) -> Result<(), Failed> {
        let reply = wire::receive::<Reply>(&self.socket)?;
        if reply.seq == seq { Ok(()) } else { Err(Failed::Broken) }
    }

    /// A MOVE has not been answered, and nothing that it was told may be done any more. Not to be taken back
    /// before it answers (`caught_up`).
    pub fn cut_off(&self, uffd: &Uffd) -> Result<(), i32> {
        // An evictor that goes on at once need not try what the kernel will refuse.
        self.control.forbid(Forbidden::CutOff);
        uffd.unregister(self.staging_addr, STAGING_BYTES)?;
        self.cut_off.store(true, Ordering::Release);
        Ok(())
    }

    pub fn is_late(&self) -> bool {
        self.late.load(Ordering::Relaxed) != 0
    }

    pub fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Acquire)
    }

    /// Has it answered everything, so that it can be told something new? Only for whoever has the evictor's
    /// turn, and neither the batch lock nor the gate.
    pub fn caught_up(
        &self,
        register: impl FnOnce(u64, u64) -> Result<(), i32>,
        gate: &Gate,
    ) -> Result<bool, Failed> {
        let late = self.late.load(Ordering::Relaxed);
        if late != 0 {
            if !readable(&self.socket, Duration::ZERO)? {
                return Ok(false);
            }
            self.take_reply(late)?;
            self.late.store(0, Ordering::Relaxed);
        }
        if self.is_cut_off() {
            // A reader of events may be at work without the MOVE lock.
            let _fill_guard = gate.enter_fill();
            if register(self.staging_addr, STAGING_BYTES).is_err() {
                return Ok(false);
            }
            self.cut_off.store(false, Ordering::Release);
            self.control.allow(Forbidden::CutOff);
        }
        Ok(true)
    }

    /// Staging pages are to be empty. No reply comes, and nobody waits for it.
    pub fn empty_staging(&self, first: u32, pages: u32) -> io::Result<()> {
        self.send(Command { op: OP_ZAP, seq: 0, arg: first, arg2: pages })
    }

    /// It is alone: let it end, and its process with it.
    pub fn let_exit(&self, status: u32) -> io::Result<()> {
        self.send(Command { op: OP_EXIT, arg: status, ..Command::default() })
    }

    /// Never waits: an evictor that is stopped does not take its commands.
    fn send(&self, command: Command) -> io::Result<()> {
        wire::send(&self.socket, &command, &[])
    }
}

/// Has the evictor its own seccomp filter, those that we have too, and no more? Another one may end its
/// process for a call that we make ourselves.
fn has_only_our_filters(tid: u32) -> bool {
    match (proc::seccomp_filters(tid), proc::seccomp_filters(std::process::id())) {
        (Some(its), Some(ours)) => its <= ours + 1,
        _ => false,
    }
}

/// A range, in runs of as many pages as one can name.
fn runs_of((start, end): Range) -> impl Iterator<Item = MoveRun> {
    const MOST: u64 = u32::MAX as u64;
    let page = PAGE_SIZE as u64;
    let pages = (end - start).div_ceil(page);
    (0..pages.div_ceil(MOST)).map(move |part| MoveRun {
        src_addr: start + part * MOST * page,
        pages: (pages - part * MOST).min(MOST) as u32,
        ..MoveRun::default()
    })
}

const STAGING_BYTES: u64 = STAGING_PAGES as u64 * PAGE_SIZE as u64;

fn readable(socket: impl AsFd, timeout: Duration) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each MOVE of one that gets a CPU once a second is in time after a few.
    #[test]
    fn who_lacks_cpu_is_waited_for_longer_until_it_is_quick_again() {
        let patience = Patience::default();
        assert_eq!(patience.limit(), EVICTOR_ANSWERS);
        for why in [Standstill::Unknown, Standstill::Signal, Standstill::Core] {
            patience.note_late(why);
            assert_eq!(patience.limit(), EVICTOR_ANSWERS, "{why}");
        }
        let mut late = 0;
        while patience.limit() <= Duration::from_secs(1) {
            patience.note_late(Standstill::NoCpu);
            late += 1;
        }
        assert!(late <= 4);
        (0..40).for_each(|_| patience.note_late(Standstill::NoCpu));
        assert_eq!(patience.limit(), EVICTOR_ANSWERS_MOST);
        patience.note_answer(EVICTOR_ANSWERS_MOST / 2);
        assert_eq!(patience.limit(), EVICTOR_ANSWERS_MOST, "it still is slow");
        (0..8).for_each(|_| patience.note_answer(Duration::from_millis(1)));
        assert_eq!(patience.limit(), EVICTOR_ANSWERS);
    }
}
