//! The threads that follow what programs say of their pages (madvise and process_madvise).
//!
//! ```text
//!   MADV_PAGEOUT    not registered? the monitor looks first ─▶ batch after batch leaves     its caller waits
//!   MADV_COLD       the pages become the next victims                                       its caller waits
//!   MADV_WILLNEED   window after window is read, as far as there is room                    nobody waits
//!   an access       the same, and it is installed (CALL_BRING)                              its caller waits
//! ```
//!
//! What holds: one step is short, and holds no lock while it waits; between steps others have their turn
//! (`run/advice.rs`). Pages that come ahead of their faults are at most half of what the process's group may
//! have: more would push itself out again. Advice for another process is followed only where the kernel would
//! follow it: that is found out here, for an agent may say anything.
//!
//! What is not done: nothing is promised. Pages that are shared, locked, or in work, stay where they are.

use crate::proc;
use crate::process::Process;
use crate::reclaim::evict;
use crate::run::Run;
use crate::run::advice::{Advice, What};
use crate::run::reads;
use crate::times::{ADVICE_IDLE, AHEAD_AGAIN, AHEAD_GIVEN_UP, NO_MEMORY, PAGEOUT_GIVEN_UP, PUT_OFF_AGAIN};
use memspill_engine::backing::QueueId;
use memspill_engine::fill::{FillJob, Outcome, Scratch};
use memspill_engine::space::Space;
use memspill_engine::units::{PAGE_SIZE, Vpn};
use memspill_engine::word::State;
use std::sync::Arc;
use std::time::Instant;

/// Pages that become victims in one step.
const COLD_PAGES: u64 = 4096;
/// A range of so many pages is worth two threads.
const SHARED_PAGES: u64 = 512;
/// Reads that are under way at once.
const WINDOWS: usize = 8;

/// One of the threads.
pub fn follow(run: &Run, index: u32) {
    let queue = run.layout.advice_queue(index);
    let mut adviser = Adviser { run, queue, scratch: Scratch::default(), put_off: Vec::new() };
    while !run.is_stopping() {
        adviser.install(None);
        let Some(mut advice) = run.advice.next(ADVICE_IDLE) else { continue };
        match adviser.step(&mut advice) {
            Step::More => run.advice.add(advice),
            Step::Registration => {
                run.advice.add_to_register(advice);
                run.ask_for_look();
            }
            Step::End => {
                if let Some(doorbell) = advice.doorbell.and_then(Arc::into_inner) {
                    advice.caller.memory.answer_call(doorbell);
                }
            }
        }
    }
}

enum Step {
    More,
    /// The monitor has to look first.
    Registration,
    End,
}

struct Adviser<'a> {
    run: &'a Run,
    queue: QueueId,
    scratch: Scratch,
    /// Fills that met an event, which a pager reads, or found no room among what a process has to install.
    put_off: Vec<FillJob>,
}

impl Adviser<'_> {
    fn step(&mut self, advice: &mut Advice) -> Step {
        if advice.process.is_none() {
            advice.process = whose(self.run, advice);
        }
        let Some(process) = advice.process.clone() else { return Step::End };
        if !std::mem::replace(&mut advice.has_objects_apart, true) {
            self.add_objects(&process, advice);
        }
        let space = advice.object.as_ref().unwrap_or(&process.space).clone();
        let goes_on = match advice.what {
            What::Pageout => {
                let range = (advice.next.addr(), advice.end.addr());
                let is_object = advice.object.is_some();
                if !is_object && !advice.looked_at && !process.growth.covers(range.0, range.1) {
                    process.growth.ask(range.0, range.1);
                    return Step::Registration;
                }
                advice.looked_at = true;
                if !advice.is_shared {
                    self.share(advice);
                }
                self.page_out(&process, &space, advice)
            }
            What::Cold => self.make_cold(&space, advice),
            What::WillNeed => self.bring(&space, advice),
            // Nothing can be installed there.
            What::Bring if process.stands_still() => false,
            What::Bring => {
                // Earlier deliveries are installed first, and leave room.
                process.install_delivered();
                let from = advice.next;
                let goes_on = self.bring(&space, advice);
                // A write by another process would fail there.
                if may_be_protected(&process) {
                    let bytes = (advice.next.0 - from.0) * PAGE_SIZE as u64;
                    let _ = process.memory.port.unprotect(from.addr(), bytes);
                }
                process.install_delivered();
                goes_on
            }
        };
        if goes_on && advice.next < advice.end { Step::More } else { Step::End }
    }

    /// Pages of shared memory belong to their object: what of it lies in the range is a part of its own.
    fn add_objects(&self, process: &Process, advice: &Advice) {
        for (key, from, to) in process.memory.shared.within(advice.next.addr(), advice.end.addr()) {
            if let Some(object) = self.run.object(key) {
                let (object, next, end) = (Some(object.space.clone()), Vpn(from), Vpn(to));
                self.run.advice.add(Advice { object, next, end, ..advice.clone() });
            }
        }
    }

    /// One thread can compress while another one waits for the evictor: the other half of a large range is a
    /// part of its own.
    fn share(&self, advice: &mut Advice) {
        advice.is_shared = true;
        let pages = advice.end.0 - advice.next.0;
        if pages < SHARED_PAGES || self.run.layout.advisers < 2 {
            return;
        }
        let middle = Vpn(advice.next.0 + pages / 2);
        self.run.advice.add(Advice { next: middle, ..advice.clone() });
        advice.end = middle;
    }

    fn page_out(&mut self, process: &Process, space: &Arc<Space>, advice: &mut Advice) -> bool {
        let (_, next) = evict::pageout_some(self.run, self.queue, space, advice.next, advice.end);
        if std::mem::replace(&mut advice.next, next) != next {
            (advice.not_before, advice.stuck_since) = (None, None);
            return true;
        }
        // Its evictor lacks CPU, or others keep it: it may be asked a moment later.
        advice.not_before = Some(Instant::now() + AHEAD_AGAIN);
        let stuck = advice.stuck_since.get_or_insert_with(Instant::now).elapsed() > PAGEOUT_GIVEN_UP;
        advice.object.is_none() && !stuck && !process.stands_still() && !process.is_dying()
    }

    fn make_cold(&mut self, space: &Space, advice: &mut Advice) -> bool {
        let _work = self.run.quiet.begin_work();
        let Some(from) = space.known_from(advice.next) else { return false };
        let to = Vpn(advice.end.0.min(from.0 + COLD_PAGES));
        if from < to {
            space.make_cold(from, to);
        }
        advice.next = from.max(to);
        true
    }

    fn bring(&mut self, space: &Arc<Space>, advice: &mut Advice) -> bool {
        let engine = &self.run.engine;
        let limit_pages = space.group(engine.swap()).limit_bytes() / PAGE_SIZE as u64;
        let work = self.run.quiet.begin_work();
        let (mut put_off, mut has_room) = (Vec::new(), true);
        for _ in 0..WINDOWS {
            if advice.next >= advice.end || advice.brought >= limit_pages / 2 || !has_room {
                break;
            }
            let range = (advice.next, advice.end);
            let ahead = engine.bring_ahead(crate::cpu(), self.queue, space, range, &mut self.scratch);
            advice.next = ahead.next;
            advice.brought += ahead.pages as u64;
            has_room &= note(ahead.outcome, &mut put_off);
        }
        let is_stopping = || self.run.is_stopping();
        reads::finish(self.run, self.queue, &mut self.scratch, is_stopping, |outcome| {
            note(outcome, &mut put_off);
        });
        drop(work);
        self.put_off.append(&mut put_off);
        self.install(advice.process.as_deref().filter(|_| advice.what == What::Bring));
        self.run.update_account();
        self.run.kick_reclaim();
        if has_room {
            (advice.not_before, advice.stuck_since) = (None, None);
        } else {
            advice.not_before = Some(Instant::now() + AHEAD_AGAIN);
        }
        let stuck =
            !has_room && advice.stuck_since.get_or_insert_with(Instant::now).elapsed() > AHEAD_GIVEN_UP;
        !stuck && advice.brought < limit_pages / 2
    }

    /// Installs the fills that were put off, within the time for which room is awaited: the process may be
    /// stopped in the midst of a change. `process`: whose evictor is to install what is delivered.
    fn install(&mut self, process: Option<&Process>) {
        let begun = Instant::now();
        while !self.put_off.is_empty() && begun.elapsed() < AHEAD_GIVEN_UP && !self.run.is_stopping() {
            std::thread::sleep(PUT_OFF_AGAIN);
            process.inspect(|process| process.install_delivered());
            let _work = self.run.quiet.begin_work();
            for job in std::mem::take(&mut self.put_off) {
                match self.run.engine.install(crate::cpu(), job, &mut self.scratch) {
                    Outcome::Again(job) => self.put_off.push(job),
                    Outcome::NoRoom | Outcome::Pause => std::thread::sleep(NO_MEMORY),
                    Outcome::Done | Outcome::Pending(_) | Outcome::Gone => {}
                }
            }
        }
    }
}

/// False: there is no room.
fn note(outcome: Outcome, put_off: &mut Vec<FillJob>) -> bool {
    match outcome {
        Outcome::Again(job) => put_off.push(job),
        Outcome::NoRoom | Outcome::Pause => return false,
        Outcome::Done | Outcome::Pending(_) | Outcome::Gone => {}
    }
    true
}

/// By its agent, which cannot see who writes to its memory from outside.
fn may_be_protected(process: &Process) -> bool {
    process.memory.port.protects_by_agent() && process.memory.copies.has_protected()
}

/// Are some of these pages swapped out, or on their way, or protected?
pub fn may_be_away(run: &Run, advice: &Advice) -> bool {
    let is_away = |space: &Space, page| {
        matches!(space.word(Vpn(page)).state(), State::Swapped | State::Evicting | State::Filling)
    };
    whose(run, advice).is_some_and(|process| {
        may_be_protected(&process) || (advice.next.0..advice.end.0).any(|page| is_away(&process.space, page))
    })
}

/// Whose pages this is about. None: the caller may not, or there is no such process in this run.
fn whose(run: &Run, advice: &Advice) -> Option<Arc<Process>> {
    if advice.pid == 0 {
        return Some(advice.caller.clone());
    }
    // Numbers of another pid namespace mean nothing here.
    let agent = advice.caller.memory.attached_agent()?;
    if agent.evictor.tid != agent.ready.evictor_tid {
        return None;
    }
    let process = run.process_of_pid(advice.pid)?;
    // Bringing tells nothing to others: the kernel asks a reader for his rights when he reads.
    let may = advice.what == What::Bring || proc::may_advise(advice.caller.memory.pid(), advice.pid);
    may.then_some(process)
}
