//! The one supervisor and the one range of this process, and which arenas there are.
//!
//! What holds: one lock is over all that arenas know, and is not held while the supervisor is asked. A fork
//! waits for it, so the child finds it free and its arenas whole. The budget that the supervisor is told is
//! the sum of the arenas'.

use crate::command;
use crate::error::Error;
use crate::heap::Heap;
use crate::helper;
use crate::range::Range;
use memspill_ctl::{self as ctl, Request};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

pub type ArenaId = u64;

/// How much of what is freed stays as it is, for the next who needs as much.
fn kept_bytes(limit_bytes: u64) -> usize {
    const MOST: u64 = 64 << 20;
    (limit_bytes / 16).min(MOST) as usize
}

/// One arena.
#[derive(Default)]
pub struct Part {
    pub limit_bytes: u64,
    pub heap: Heap,
}

pub struct Process {
    /// None: the whole process has a budget.
    range: Option<Range>,
    supervisor: u32,
    /// The process that started it. Its forks' children have a copy of this.
    owner: u32,
    parts: BTreeMap<ArenaId, Part>,
    next: ArenaId,
}

impl Process {
    fn new(supervisor: u32, range: Option<Range>) -> Process {
        Process { range, supervisor, owner: std::process::id(), parts: BTreeMap::new(), next: 1 }
    }

    fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }
}

static PROCESS: Mutex<Option<Process>> = Mutex::new(None);
/// Held while the supervisor is started or told another budget, and taken before the one above.
static BUDGET: Mutex<()> = Mutex::new(());

/// A panic under a lock is a bug of ours that leaves it as it was: the process goes on.
fn lock<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn with<T>(look: impl FnOnce(&mut Process) -> T) -> Option<T> {
    lock(&PROCESS).as_mut().map(look)
}

/// The part of an arena and the range.
pub fn with_arena<T>(id: ArenaId, look: impl FnOnce(&mut Part, &mut Range) -> T) -> Option<T> {
    with(|process| Some(look(process.parts.get_mut(&id)?, process.range.as_mut()?)))?
}

/// Begin an arena; the first one starts the supervisor.
pub fn begin(limit_bytes: u64) -> Result<ArenaId, Error> {
    let _budget = lock(&BUDGET);
    let is_first = lock(&PROCESS).is_none();
    if is_first {
        fork::prepare();
        let mut range = Range::reserve().map_err(|error| Error::Addresses(error.into()))?;
        range.keep(kept_bytes(limit_bytes));
        let bounds = range.bounds();
        let supervisor = attach(limit_bytes, Some(bounds))?;
        *lock(&PROCESS) = Some(Process::new(supervisor, Some(range)));
    }
    let added = with(|process| {
        if process.range.is_none() {
            return Err(Error::Whole);
        }
        if !process.is_ours() {
            return Err(Error::Child);
        }
        let id = process.next;
        process.next += 1;
        process.parts.insert(id, Part { limit_bytes, heap: Heap::default() });
        Ok(id)
    });
    let id = added.unwrap_or(Err(Error::Whole))?;
    if !is_first && let Err(error) = tell_limit(|| false) {
        with(|process| process.parts.remove(&id));
        return Err(error);
    }
    Ok(id)
}

/// Give all of the process a budget.
pub fn begin_whole(limit_bytes: u64) -> Result<(), Error> {
    let _budget = lock(&BUDGET);
    if lock(&PROCESS).is_some() {
        return Err(Error::Whole);
    }
    let supervisor = attach(limit_bytes, None)?;
    *lock(&PROCESS) = Some(Process::new(supervisor, None));
    Ok(())
}

/// End an arena: its blocks are given back, and its part of the budget is gone.
pub fn end(id: ArenaId) {
    with(|process| {
        if let (Some(mut part), Some(range)) = (process.parts.remove(&id), process.range.as_mut()) {
            part.heap.clear(range);
        }
    });
    let _budget = lock(&BUDGET);
    // The others' memory leaves when it has to; who ends an arena does not wait for it.
    let _ = tell_limit(|| true);
}

fn attach(limit_bytes: u64, range: Option<(usize, usize)>) -> Result<u32, Error> {
    let command = command::find()?;
    let mut arguments =
        vec!["attach".to_owned(), format!("--memory-max={limit_bytes}"), "--ready-fd=3".to_owned()];
    if let Some((start, end)) = range {
        arguments.push(format!("--arena={start:x}-{end:x}"));
    }
    arguments.push(std::process::id().to_string());
    helper::start(&command, &arguments)
}

/// Change an arena's budget; returns once what is over it has left.
pub fn set_limit(id: ArenaId, limit_bytes: u64) -> Result<(), Error> {
    let _budget = lock(&BUDGET);
    let before = with_arena(id, |part, _| std::mem::replace(&mut part.limit_bytes, limit_bytes));
    let before = before.ok_or(Error::NotOurs)?;
    tell_limit(|| false).inspect_err(|_| {
        with_arena(id, |part, _| part.limit_bytes = before);
    })
}

/// Tell the supervisor the sum of the budgets. The caller holds BUDGET. `in_haste`: not to wait until what is
/// over it has left.
fn tell_limit(in_haste: impl FnMut() -> bool) -> Result<(), Error> {
    let sum = with(|process| {
        let sum = process.parts.values().map(|part| part.limit_bytes).fold(0, u64::saturating_add);
        if let Some(range) = &mut process.range {
            range.keep(kept_bytes(sum));
        }
        if process.is_ours() { Ok(sum) } else { Err(Error::Child) }
    });
    match sum.unwrap_or(Ok(0))? {
        0 => Ok(()),
        bytes => ask_in(&Request::Limit { bytes }, in_haste).map(drop),
    }
}

/// Ask the supervisor.
pub fn ask(request: &Request) -> Result<String, Error> {
    ask_in(request, || false)
}

fn ask_in(request: &Request, in_haste: impl FnMut() -> bool) -> Result<String, Error> {
    let refused = |reason: String| Error::Refused(reason);
    let supervisor = supervisor().ok_or_else(|| refused("there is no budget".into()))?;
    let runs = ctl::runs().map_err(|error| refused(format!("cannot read /proc/net/unix: {error}")))?;
    let gone = || refused(format!("the supervisor, process {supervisor}, does not listen: is it stopped?"));
    let run = runs.into_iter().find(|run| run.pid == supervisor).ok_or_else(gone)?;
    run.ask(request, |_, _| (), in_haste).map_err(refused)
}

/// The supervisor's process id.
pub fn supervisor() -> Option<u32> {
    with(|process| process.supervisor)
}

/// A fork takes the lock first, and both sides leave it.
mod fork {
    #![allow(unsafe_code, reason = "handlers of forks, and what they hold in between")]

    use super::{PROCESS, Process, lock};
    use std::cell::UnsafeCell;
    use std::sync::{MutexGuard, Once};

    struct Held(UnsafeCell<Option<MutexGuard<'static, Option<Process>>>>);
    // SAFETY: it is used by the thread that forks, from before the fork until after it: the lock keeps others
    // away, and in the child there are none.
    unsafe impl Sync for Held {}
    static HELD: Held = Held(UnsafeCell::new(None));

    pub fn prepare() {
        static ONCE: Once = Once::new();
        // SAFETY: the handlers are functions of this library, which is not unloaded (it has handlers). Out of
        // memory, forks are as risky as they are with any lock.
        ONCE.call_once(|| unsafe {
            libc::pthread_atfork(Some(before), Some(after), Some(after));
        });
    }

    unsafe extern "C" fn before() {
        let held = lock(&PROCESS);
        // SAFETY: we have the lock.
        unsafe { *HELD.0.get() = Some(held) };
    }

    unsafe extern "C" fn after() {
        // SAFETY: the thread that has the lock is this one.
        unsafe { *HELD.0.get() = None };
    }
}
