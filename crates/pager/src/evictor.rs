//! Commands to an evictor, and what becomes of one that is not answered.
//!
//! An evictor answers within microseconds, unless its process stands still: stopped by a signal, by a tracer, frozen,
//! or without CPU time. Whoever waits for it holds the process's batch lock, so it is waited for a moment only:
//!
//! ```text
//!   send ─▶ reply                                        all is known
//!        └▶ none within ANSWER_WITHIN, or it is seen to stand still: the command is *late*
//!              a MOVE is *cut off*: staging is unregistered
//!                 from here on the kernel refuses every MOVE (EINVAL), wherever in its code the evictor stands, and one
//!                 that is under way has ended (unregistering waits for it); so what is in staging was moved, the rest
//!                 was not, and the batch ends with that
//!           no other command is sent until the late reply has come; then, inside the gate, staging is registered again
//! ```
//!
//! While a process is cut off, its events are read without the MOVE lock, which the evictor may hold wherever it
//! stands: there is no MOVE that it could exclude. That a reader is inside the gate, and staging is registered again
//! only there, keeps the two apart.
//!
//! What it does not do: end a process that stands still for ever; what it holds stays where it is.

use crate::control::Forbidden;
use crate::process::{Agent, Failed};
use crate::standstill::{self, Standstill};
use memspill_agent::protocol::{Command, Reply, Run as AgentRun, STAGING_PAGES};
use memspill_engine::gate::Gate;
use memspill_engine::units::PAGE_SIZE;
use memspill_uffd::userfaultfd::Uffd;
use std::io;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// An evictor that has not answered for so long is not waited for. On a machine where everything is slow it may be only
/// late, which costs two system calls more; but whoever waits has events and faults of that process wait with him.
pub const ANSWER_WITHIN: Duration = Duration::from_millis(200);
/// After so long it is looked at whether it stands still.
const LOOK_AFTER: Duration = Duration::from_millis(10);

/// What one evictor was told and has not answered, and what is known of why.
#[derive(Default)]
pub struct Calls {
    last_seq: AtomicU32,
    /// Number of the command whose reply has not come; 0: none.
    late: AtomicU32,
    cut_off: AtomicBool,
    stands_still: Mutex<Option<Standstill>>,
    /// People were told of it.
    told: AtomicBool,
    serves_beyond: AtomicBool,
    /// Others had no room left because of it.
    others_wait: AtomicBool,
}

impl Agent {
    /// Run one command and wait for its reply, until `deadline` at most. Only for whoever has the evictor's turn.
    pub(crate) fn call(&self, op: u32, runs: &[AgentRun], flags: u32, deadline: Instant) -> Result<(), Failed> {
        if self.is_late() || self.is_cut_off() {
            return Err(Failed::Late);
        }
        self.control.write_runs(runs);
        let seq = self.next_seq();
        crate::wire::send(&self.socket, &Command { op, seq, arg: runs.len() as u32, arg2: flags }, &[])?;
        if !self.answers(deadline)? {
            self.calls.late.store(seq, Ordering::Relaxed);
            return Err(Failed::Late);
        }
        self.take_reply(seq)
    }

    fn next_seq(&self) -> u32 {
        loop {
            let seq = self.calls.last_seq.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if seq != 0 {
                return seq;
            }
        }
    }

    /// Wait for a reply, as long as there is hope of one.
    fn answers(&self, deadline: Instant) -> io::Result<bool> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if readable(&self.socket, left.min(LOOK_AFTER))? {
                return Ok(true);
            }
            if left.is_zero() || standstill::of(self.evictor_tid()).is_some() {
                return Ok(false);
            }
        }
    }

    fn take_reply(&self, seq: u32) -> Result<(), Failed> {
        let reply = crate::wire::receive::<Reply>(&self.socket)?;
        if reply.seq == seq { Ok(()) } else { Err(Failed::Broken) }
    }

    /// A MOVE has not been answered, and nothing that it was told may be done any more. Not to be taken back before it
    /// answers (`caught_up`).
    pub(crate) fn cut_off(&self, uffd: &Uffd) -> Result<(), i32> {
        // Where it goes on at once, it need not try what the kernel will refuse.
        self.control.forbid(Forbidden::CutOff);
        uffd.unregister(self.ready.staging_addr, STAGING_BYTES)?;
        self.calls.cut_off.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn is_late(&self) -> bool {
        self.calls.late.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.calls.cut_off.load(Ordering::Acquire)
    }

    /// Has it answered everything, so that it can be told something new? Only for whoever has the evictor's turn, and
    /// neither the batch lock nor the gate.
    pub(crate) fn caught_up(&self, uffd: &Uffd, gate: &Gate) -> Result<bool, Failed> {
        let late = self.calls.late.load(Ordering::Relaxed);
        if late != 0 {
            if !readable(&self.socket, Duration::ZERO)? {
                return Ok(false);
            }
            self.take_reply(late)?;
            self.calls.late.store(0, Ordering::Relaxed);
        }
        if self.is_cut_off() {
            // A reader of events may be at work without the MOVE lock.
            let _pass = gate.enter_fill();
            if uffd.register(self.ready.staging_addr, STAGING_BYTES).is_err() {
                return Ok(false);
            }
            self.calls.cut_off.store(false, Ordering::Release);
            self.control.allow(Forbidden::CutOff);
        }
        Ok(true)
    }

    /// Why it cannot be asked, if that is so: noted by whoever wanted to.
    pub(crate) fn note_standstill(&self, why: Standstill) {
        *self.calls.stands_still.lock().expect("standstill") = Some(why);
    }

    pub(crate) fn standstill(&self) -> Option<Standstill> {
        *self.calls.stands_still.lock().expect("standstill")
    }

    pub(crate) fn goes_on(&self) {
        *self.calls.stands_still.lock().expect("standstill") = None;
        self.calls.serves_beyond.store(false, Ordering::Relaxed);
        self.calls.others_wait.store(false, Ordering::Relaxed);
        self.calls.told.store(false, Ordering::Relaxed);
    }

    /// True for the first one who asks since it stands still.
    pub(crate) fn is_to_be_told(&self) -> bool {
        !self.calls.told.swap(true, Ordering::Relaxed)
    }

    /// Its process faults while it stands still (a tracer reads its memory), and nobody else can give room: it gets
    /// what it wants beyond the budget, until it goes on.
    pub(crate) fn serve_beyond(&self) {
        self.calls.serves_beyond.store(true, Ordering::Relaxed);
    }

    /// Others wait for room, and none of them has any to give.
    pub(crate) fn note_others_wait(&self) {
        self.calls.others_wait.store(true, Ordering::Relaxed);
    }

    pub(crate) fn others_wait(&self) -> bool {
        self.calls.others_wait.load(Ordering::Relaxed)
    }

    pub(crate) fn serves_beyond(&self) -> bool {
        self.calls.serves_beyond.load(Ordering::Relaxed)
    }
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
