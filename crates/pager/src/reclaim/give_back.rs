//! A file of shared memory is given back: all that is swapped out of it returns, and it is not managed any
//! more.
//!
//! ```text
//!   no batch begins ─ the one under way ends ─ pages are read, beyond the budget if need be ─ none is away
//!   ─ its mappings are unregistered ─ it is forgotten
//! ```
//!
//! That comes before each use of it that does not fault (a call that reads or writes it, somebody outside who
//! opens it), so that none finds a hole where there were bytes; and at the end of the run, for what somebody
//! may still read. A file that nobody can read any more is dropped, and emptied: should one have it
//! nevertheless (a descriptor on its way in a message), he finds nothing, not zeros. A file that cannot be
//! brought back is emptied too, and that is said.

use crate::exit;
use crate::proc;
use crate::run::Run;
use crate::run::reads;
use crate::shared::Object;
use crate::times::{GIVING_BACK, NO_MEMORY, PUT_OFF_AGAIN};
use memspill_engine::backing::QueueId;
use memspill_engine::fill::{Fault, FillJob, Outcome, Scratch};
use memspill_engine::units::Vpn;
use memspill_engine::word::State;
use std::sync::Arc;
use std::time::Instant;

/// Pages that are looked through at once.
const PAGES: u64 = 512;

/// It is used in a way that does not fault. When this returns, all of it is in memory and stays there; or the
/// run ends.
pub fn give_back(run: &Run, object: &Object, why: &str) {
    let _alone = object.hold_giving_back();
    if run.object(object.key).is_none() {
        return;
    }
    if run.settings.verbose {
        eprintln!("memspill: shared memory {} is not swapped any more: {why}", object.id().ino);
    }
    object.set_given_back();
    run.files.note_given_back(object.id());
    match bring_all(run, object) {
        Ok(()) => abandon(run, object),
        Err(what) => run.fail(format!("a file of shared memory cannot be brought back: {what}")),
    }
}

/// It cannot be managed. Nothing of it is away.
pub fn abandon(run: &Run, object: &Object) {
    // Again, for children that come meanwhile.
    while let Some(process) = run.mappers(object.key).pop() {
        let held = process.hold_pages();
        for m in process.memory.shared.of(object.key) {
            // A mapping that was never registered, or belongs to another, stays as it is.
            let _ = process.memory.port.unregister(m.start, m.end - m.start);
        }
        process.memory.shared.set_of(object.key, &[]);
        drop(held);
    }
    run.remove_object(object);
}

/// Nobody can read it any more, as far as can be seen.
pub fn drop_unread(run: &Run, object: &Object) {
    let _alone = object.hold_giving_back();
    if run.object(object.key).is_some() && run.mappers(object.key).is_empty() {
        object.set_given_back();
        let _ = object.memory.mapped.object.empty();
        run.remove_object(object);
    }
}

/// The tree has ended: what others may read is brought back. The exit code, if that cannot be done.
pub fn end(run: &Run) -> Option<i32> {
    let files: Vec<Arc<Object>> = run.objects().into_iter().filter(|object| object.is_file).collect();
    let mut code = None;
    let ids: Vec<_> = files.iter().map(|object| object.id()).collect();
    let ours = [std::process::id(), run.files.guardian];
    let held: Vec<_> = match files.is_empty() {
        true => Vec::new(),
        false => proc::all_processes()
            .into_iter()
            .filter(|pid| !ours.contains(pid))
            .flat_map(|pid| proc::open_among(pid, &ids).unwrap_or_default())
            .collect(),
    };
    for object in files {
        let _alone = object.hold_giving_back();
        object.set_given_back();
        let file = &object.memory.mapped.object;
        let may_be_read =
            file.has_name().unwrap_or(true) || file.is_held_by_others() || held.contains(&object.id());
        if may_be_read && let Err(what) = bring_all(run, &object) {
            let _ = file.empty();
            let ino = file.id.ino;
            eprintln!("memspill: shared memory {ino} is empty now, for it cannot be brought back: {what}");
            code = Some(exit::OWN_FAILURE);
        }
        if !may_be_read {
            let _ = file.empty();
        }
        run.remove_object(&object);
    }
    code
}

/// Bring back all that is swapped out of it. No batch of it begins by now.
fn bring_all(run: &Run, object: &Object) -> Result<(), String> {
    drop(object.hold_batch());
    let _queue = run.files.queue.lock().expect("queue");
    let mut filler =
        Filler { run, queue: run.layout.files_queue(), scratch: Scratch::default(), put_off: Vec::new() };
    let (mut least, mut since) = (u64::MAX, Instant::now());
    loop {
        let away = filler.pass(object)?;
        if let Some(what) = object.memory.breach() {
            return Err(what.into());
        }
        if object.is_file && object.is_adopted() && !object.memory.mapped.object.has_its_length() {
            return Err("its length was changed by a call that memspill has not seen".into());
        }
        if away == 0 {
            break;
        }
        if away < least {
            (least, since) = (away, Instant::now());
        } else if since.elapsed() > GIVING_BACK {
            return Err("there is no room for it".into());
        }
        std::thread::sleep(PUT_OFF_AGAIN);
    }
    run.update_account();
    run.kick_reclaim();
    Ok(())
}

struct Filler<'a> {
    run: &'a Run,
    queue: QueueId,
    scratch: Scratch,
    put_off: Vec<FillJob>,
}

impl Filler<'_> {
    /// All pages once. Returns how many were not there.
    fn pass(&mut self, object: &Object) -> Result<u64, String> {
        let (space, end, mut away) = (&object.space, object.end(), 0);
        let mut next = Vpn(0);
        while let Some(from) = space.known_from(next).filter(|from| *from < end) {
            let to = Vpn(end.0.min(from.0 / PAGES * PAGES + PAGES));
            let work = self.run.quiet.begin_work();
            for vpn in (from.0..to.0).map(Vpn) {
                match space.word(vpn).state() {
                    State::None | State::Resident => {}
                    State::Evicting | State::Filling => away += 1,
                    State::Poisoned => return Err("a page of it could not be read".into()),
                    State::Swapped => {
                        away += 1;
                        let fault = Fault { vpn, write: true, urgent: true, favoured: false };
                        let engine = &self.run.engine;
                        let outcome = engine.fault(crate::cpu(), self.queue, space, fault, &mut self.scratch);
                        note(outcome, &mut self.put_off);
                    }
                }
            }
            let put_off = &mut self.put_off;
            reads::finish(
                self.run,
                self.queue,
                &mut self.scratch,
                || false,
                |outcome| note(outcome, put_off),
            );
            drop(work);
            for job in std::mem::take(&mut self.put_off) {
                let outcome = self.run.engine.install(crate::cpu(), job, &mut self.scratch);
                note(outcome, &mut self.put_off);
            }
            next = to;
        }
        Ok(away)
    }
}

/// A page that could not be brought yet is put off, or a moment is waited.
pub fn note(outcome: Outcome, put_off: &mut Vec<FillJob>) {
    match outcome {
        Outcome::Again(job) => put_off.push(job),
        Outcome::NoRoom | Outcome::Pause => std::thread::sleep(NO_MEMORY),
        Outcome::Done | Outcome::Pending(_) | Outcome::Gone => {}
    }
}
