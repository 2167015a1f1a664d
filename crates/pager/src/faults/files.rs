//! Files of shared memory (`--shared=all`): what agents tell of calls on them, and who opens them.
//!
//! ```text
//!   CALL_FILE_USED     a call is about to read or write it: it is given back first
//!   CALL_FILE_MAPPED   a process has mapped it, PROT_NONE: registered, then the process may touch it; where
//!                      that cannot be (a read-only descriptor, a userfaultfd of the program's own) it is
//!                      given back
//!   opened             by a process that tells of its calls: it may. By another one: it is given back first
//!   read               through a descriptor that was opened since: given back first
//! ```
//!
//! To give back takes as long as reading all of it: a thread for each, while the caller waits at his
//! doorbell or in his call.

use crate::monitor::register::{let_announce, register_agent_pages};
use crate::proc::{self, SharedKind};
use crate::process::Process;
use crate::process::shared::Mapped;
use crate::reclaim::direct;
use crate::reclaim::give_back::give_back;
use crate::run::Run;
use crate::run::files::tells_of_calls;
use crate::shared::Object;
use memspill_engine::units::PAGE_SIZE;
use memspill_uffd::fanotify::{Opener, Watch};
use memspill_uffd::shmem::Id;
use std::os::fd::AsFd;
use std::sync::Arc;

const PAGE: u64 = PAGE_SIZE as u64;

/// What has become of an agent's call.
pub enum Answer {
    Now,
    /// Something is changing.
    NotNow,
    /// A thread does it, and answers.
    Later,
}

/// A call that does not fault is about to use the file.
pub fn used(run: &Arc<Run>, process: &Arc<Process>, bell: usize, id: Id) -> Answer {
    match run.object_of(id).filter(|object| object.is_file) {
        Some(object) => answer_later(run, process, bell, object, "it is read or written by calls"),
        None => Answer::Now,
    }
}

/// The process has mapped [addr, addr + len), and cannot touch it before it is answered.
pub fn mapped(run: &Arc<Run>, process: &Arc<Process>, bell: usize, addr: u64, len: u64) -> Answer {
    let Some(end) = len.checked_next_multiple_of(PAGE).and_then(|len| addr.checked_add(len)) else {
        return Answer::Now;
    };
    // From here on its clones are told.
    if !process.growth.is_registered() {
        if !register_agent_pages(process) {
            return Answer::NotNow;
        }
        let_announce(process);
        process.growth.set_registered(true);
    }
    let held = process.hold_pages();
    let Ok(maps) = proc::shared_maps_of_any_thread(process.memory.proc_id()) else { return Answer::Now };
    if process.memory.port.is_changing() {
        return Answer::NotNow;
    }
    let new = |m: &&proc::SharedMapping| m.kind == SharedKind::File && m.start < end && addr < m.end;
    for m in maps.mappings.iter().filter(new) {
        let Some(object) = run.object_of(m.object).filter(|object| object.is_file) else { continue };
        let mapping = Mapped { start: m.start, end: m.end, first_page: m.offset / PAGE, object: object.key };
        let list = process.memory.shared.of(object.key);
        let with_it: Vec<Mapped> =
            list.iter().filter(|other| other.start != m.start).copied().chain([mapping]).collect();
        process.memory.shared.set_of(object.key, &with_it);
        match process.memory.port.register(m.start, m.end - m.start) {
            Ok(()) => {}
            Err(libc::EAGAIN) => {
                process.memory.shared.set_of(object.key, &list);
                return Answer::NotNow;
            }
            Err(_) => {
                process.memory.shared.set_of(object.key, &list);
                drop(held);
                return answer_later(run, process, bell, object, "it cannot be registered somewhere");
            }
        }
        if direct::has(process) || maps.has_device {
            object.space.set_aside(true, &[]);
        }
    }
    Answer::Now
}

fn answer_later(
    run: &Arc<Run>,
    process: &Arc<Process>,
    bell: usize,
    object: Arc<Object>,
    why: &'static str,
) -> Answer {
    let caller = process.clone();
    give_back_and(run, object, why, move || caller.memory.answer_call(bell))
}

/// In a thread of its own.
fn give_back_and(
    run: &Arc<Run>,
    object: Arc<Object>,
    why: &'static str,
    then: impl FnOnce() + Send + 'static,
) -> Answer {
    let for_thread = run.clone();
    let body = move || {
        give_back(&for_thread, &object, why);
        // If it could not be given back the run ends, and nobody is to go on.
        if for_thread.verdict().is_none() {
            then();
        }
    };
    if let Err(e) = std::thread::Builder::new().name("memspill-files".into()).spawn(body) {
        run.fail(format!("cannot start a thread: {e}"));
    }
    Answer::Later
}

/// Somebody who does not tell of his calls has it open.
pub fn give_back_soon(run: &Arc<Run>, object: Arc<Object>, why: &'static str) {
    give_back_and(run, object, why, || ());
}

/// The thread that is told of who opens files.
pub fn watch_openers(run: &Arc<Run>, watch: &Arc<Watch>) {
    loop {
        match watch.wait() {
            Ok(openers) => openers.into_iter().for_each(|opener| serve_opener(run, watch, opener)),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return run.fail(format!("cannot see who opens shared memory: {e}")),
        }
    }
}

fn serve_opener(run: &Arc<Run>, watch: &Arc<Watch>, opener: Opener) {
    let let_go = |watch: &Watch, opener: &Opener| _ = watch.let_go(opener);
    // Ourselves must not wait for ourselves.
    if opener.pid == std::process::id() {
        return let_go(watch, &opener);
    }
    let stat = rustix::fs::fstat(opener.file.as_fd());
    let id = stat.map(|stat| Id { dev: stat.st_dev, ino: stat.st_ino });
    let Some(object) = id.ok().and_then(|id| run.object_of(id)) else { return let_go(watch, &opener) };
    let is_told = || run.process_of_pid(opener.pid).is_some_and(|process| tells_of_calls(&process));
    if opener.opens && is_told() {
        return let_go(watch, &opener);
    }
    let why = if opener.opens { "somebody outside opens it" } else { "it is read" };
    let watch = watch.clone();
    give_back_and(run, object, why, move || let_go(&watch, &opener));
}
