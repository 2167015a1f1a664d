//! Forks that an agent makes itself, because the kernel tells nobody of them (agent mode): the
//! child has its parent's table of one moment. Both sides are drawn in the agent's `forks.rs`.
//!
//! ```text
//!   KIND_FORKS   prepare   nothing leaves the parent; its page table is copied, a reference to each slot;
//!   Forked, or   finish    what the parent has brought meanwhile, and what others have changed
//!   the child              (whichever comes first); then pages may leave again
//!   KIND_CHILD   settle    the child's own memory says: present is RESIDENT, else what has a slot is
//!                          SWAPPED, else nobody has touched it
//!   closed       give_back no child will come: its references go back
//! ```
//!
//! The child knows a number that nobody else knows, and it is good for one child. It waits meanwhile, and has
//! run nothing of the program.
//!
//! What must not be: a page that reads as zero, and was something else. A page that is present in the child
//! and was away in its parent was made from nothing, and the child is ended for it. The child's agent knows
//! the pages that are away: it has its parent's words of the moment of the fork.
//!
//! What it does not do: the exchange itself (exchange.rs); shared memory, which is not managed in such a run.

use crate::USER_END;
use crate::door::socket::Door;
use crate::monitor::register;
use crate::proc;
use crate::process::Process;
use crate::process::agent::Agent;
use crate::process::forking::Disturbed;
use crate::process::memory::ProcessMemory;
use crate::process::port::Port;
use crate::process::ranges::{Range, Ranges};
use crate::process::wire;
use crate::reclaim::fork_room;
use crate::run::Run;
use crate::times::{FORK_SETTLES, FORK_TURN};
use memspill_common::protocol::{MAGIC, Prepared};
use memspill_engine::fill::WINDOW_MAX;
use memspill_engine::memory::{Fill, Memory, PageRun, Stop, Take};
use memspill_engine::space::Space;
use memspill_engine::units::{Page, SpaceId, Vpn};
use memspill_engine::word::SwapEntry;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A fork that is under way, or whose child has not come yet.
pub struct Fork {
    /// The parent's, of which the child has a copy until it has joined.
    pub socket: Arc<OwnedFd>,
    pub id: [u8; 16],
    pub parent: Arc<Process>,
    pub until: Instant,
    /// It has not forked yet, as far as is known: nothing leaves it.
    pub is_open: bool,
    pub child: Option<Child>,
}

/// A child that has not come yet.
pub struct Child {
    key: u64,
    space: Arc<Space>,
    memory: Arc<Later>,
    finished: Option<Finished>,
}

/// A child whose references go back unless it is taken.
pub struct Awaited<'a>(&'a Run, Option<Child>);

impl<'a> Awaited<'a> {
    pub fn new(run: &'a Run, child: Child) -> Awaited<'a> {
        Awaited(run, Some(child))
    }

    pub fn take(mut self) -> Child {
        self.1.take().expect("taken once")
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if let Some(child) = self.1.take() {
            give_back(self.0, child);
        }
    }
}

/// The facts that are known once it has forked.
struct Finished {
    /// Pages that were away at first, and may have been brought before.
    brought: Ranges,
    disturbed: Vec<Disturbed>,
    /// A change was under way, of which it is not known what it was.
    is_settled: bool,
}

/// The memory of a child that has not come yet: there is none.
#[derive(Default)]
struct Later(OnceLock<Arc<ProcessMemory>>);

impl Memory for Later {
    fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        match self.0.get() {
            Some(memory) => memory.take(runs, frames, outcome),
            None => outcome.extend(runs.iter().flat_map(|run| (0..run.pages).map(|_| Take::Busy))),
        }
    }

    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        self.0.get().map_or(NOTHING, |memory| memory.put(vpn, pages))
    }

    fn put_without_wake(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        self.0.get().map_or(NOTHING, |memory| memory.put_without_wake(vpn, pages))
    }

    fn put_unasked(&self, vpn: Vpn, page: &[Page]) -> Fill {
        self.0.get().map_or(NOTHING, |memory| memory.put_unasked(vpn, page))
    }

    fn room_for_unasked(&self) -> u64 {
        self.0.get().map_or(0, |memory| memory.room_for_unasked())
    }

    fn zeros_max(&self) -> usize {
        self.0.get().map_or(WINDOW_MAX, |memory| memory.zeros_max())
    }
    fn put_zero(&self, vpn: Vpn, pages: usize, write: bool) -> Fill {
        self.0.get().map_or(NOTHING, |memory| memory.put_zero(vpn, pages, write))
    }

    fn put_vanished(&self, vpn: Vpn) -> Fill {
        self.0.get().map_or(NOTHING, |memory| memory.put_vanished(vpn))
    }

    fn filled(&self, vpn: Vpn, pages: usize) {
        self.0.get().inspect(|memory| memory.filled(vpn, pages));
    }

    fn wants_stored(&self) -> bool {
        self.0.get().is_some_and(|memory| memory.wants_stored())
    }

    fn stored(&self, pages: &[(Vpn, SwapEntry)]) {
        self.0.get().inspect(|memory| memory.stored(pages));
    }

    fn poison(&self, vpn: Vpn) {
        self.0.get().inspect(|memory| memory.poison(vpn));
    }

    fn wake(&self, vpn: Vpn, pages: usize) {
        self.0.get().inspect(|memory| memory.wake(vpn, pages));
    }
}

const NOTHING: Fill = Fill { pages: 0, stop: Stop::NotMapped };

/// Process `pid` is about to fork, and is told so, or why not.
pub fn prepare(run: &Run, pid: u32, socket: &Arc<OwnedFd>, until: Instant) -> io::Result<Fork> {
    let lives = |process: &Arc<Process>| process.memory.attached_agent().is_some_and(Agent::lives);
    let process = run.process_of_pid(pid).filter(lives);
    let made = match process {
        Some(process) => begin(run, &process, socket.clone(), until),
        None => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    };
    let fork = match made {
        Ok(fork) => fork,
        Err(e) => {
            refuse(socket, &e);
            return Err(e);
        }
    };
    let answer = Prepared { magic: MAGIC, errno: 0, fork: fork.id };
    if let Err(e) = wire::send(&**socket, &answer, &[]) {
        fork.parent.end_fork();
        fork.child.into_iter().for_each(|child| give_back(run, child));
        refuse(socket, &e);
        return Err(e);
    }
    Ok(fork)
}

/// Process `pid` asks whether there is room for copies of what its fork would leave shared. `awaits_child`:
/// of an earlier fork, which is not counted yet.
pub fn answer_for_room(run: &Run, pid: u32, awaits_child: bool, socket: &OwnedFd) {
    let errno = if fork_room::is_there(run, pid, awaits_child) { 0 } else { libc::EAGAIN };
    let _ = wire::send(socket, &Prepared { magic: MAGIC, errno, fork: [0; 16] }, &[]);
}

/// Its fork fails.
pub fn refuse(socket: &OwnedFd, error: &io::Error) {
    let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
    let _ = wire::send(socket, &Prepared { magic: MAGIC, errno, fork: [0; 16] }, &[]);
}

fn begin(run: &Run, process: &Arc<Process>, socket: Arc<OwnedFd>, until: Instant) -> io::Result<Fork> {
    let not_now = || io::Error::from_raw_os_error(libc::EAGAIN);
    let mut id = [0; 16];
    if rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()) != Ok(id.len()) {
        return Err(not_now());
    }
    if !process.begin_fork(FORK_TURN) {
        return Err(not_now());
    }
    // A mark that it is still to make must not come in the middle of the fork.
    let caught_up = process.memory.attached_agent().is_some_and(|agent| process.caught_up(agent));
    let child = if caught_up { copy_table(run, process) } else { Err(not_now()) };
    let child = child.inspect_err(|_| process.end_fork())?;
    fork_room::note_forks(process);
    Ok(Fork { socket, id, parent: process.clone(), until, is_open: true, child: Some(child) })
}

fn copy_table(run: &Run, process: &Arc<Process>) -> io::Result<Child> {
    let _work = run.quiet.begin_work();
    let key = run.new_key();
    let memory = Arc::new(Later::default());
    let group = process.space.group(run.engine.swap()).clone();
    let space = Arc::new(Space::new(SpaceId(key as u32), memory.clone()).in_group(group));
    // Nothing is put into it, nor taken out, before the child has come.
    space.set_aside(true, &[]);
    let held = process.hold_pages();
    if process.memory.port.is_changing() {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    process.space.copy_slots_to(run.engine.swap(), &space);
    drop(held);
    run.engine.add_space(space.clone());
    // Changes from here on are noted.
    Ok(Child { key, space, memory, finished: None })
}

fn addresses(runs: Vec<(Vpn, Vpn)>) -> Ranges {
    runs.into_iter().map(|(from, to)| (from.addr(), to.addr())).collect()
}

fn pages(ranges: impl IntoIterator<Item = Range>) -> Vec<(Vpn, Vpn)> {
    ranges.into_iter().map(|(start, end)| (Vpn::from_addr(start), Vpn::from_addr(end))).collect()
}

/// The parent has forked, as it says or as its child shows. To be called before pages may leave again.
pub fn finish(run: &Run, fork: &mut Fork) {
    let Some(child) = fork.child.as_mut().filter(|child| child.finished.is_none()) else { return };
    let _work = run.quiet.begin_work();
    let (parent, begun) = (&fork.parent, Instant::now());
    // A change that was made before the fork, and is not told yet. One moment without any is enough: what
    // begins after it began after the fork.
    let mut is_settled = !parent.memory.port.is_changing();
    while !is_settled && begun.elapsed() < FORK_SETTLES {
        std::thread::sleep(crate::times::CHANGE_STEP);
        is_settled = !parent.memory.port.is_changing();
    }
    // A change ends when its event has been read. It is noted before the reader leaves the gate.
    drop(parent.space.gate.enter_fill());
    let brought = addresses(parent.space.brought_since(&child.space));
    child.finished = Some(Finished { brought, disturbed: parent.fork.noted(), is_settled });
}

impl Fork {
    /// Pages of the parent may leave again.
    pub fn close(&mut self) {
        if std::mem::replace(&mut self.is_open, false) {
            self.parent.end_fork();
        }
    }
}

/// No child will come.
pub fn give_back(run: &Run, child: Child) {
    let _work = run.quiet.begin_work();
    child.space.release(run.engine.swap(), crate::cpu());
    run.engine.remove_space(&child.space);
    run.poke_waiting();
}

/// The child has come: it is managed from here on.
pub fn settle(
    run: &Run,
    door: &Door,
    port: Port,
    pid: u32,
    agent: Agent,
    parent: &Process,
    child: Child,
) -> io::Result<Arc<Process>> {
    let memory = Arc::new(ProcessMemory::new(port, pid));
    let space = child.space.clone();
    let settled = (|| {
        memory.port.api(door.features)?;
        let process = Arc::new(Process::new(child.key, memory.clone(), space.clone(), None));
        process.growth.set_only(parent.growth.only());
        process.attach(agent)?;
        let _ = child.memory.0.set(memory.clone());
        take_over(run, parent, &process, &child)?;
        Ok(process)
    })();
    let process = match settled {
        Ok(process) => process,
        Err(e) => {
            give_back(run, child);
            return Err(e);
        }
    };
    door.membership.joined(&run.engine, &process);
    process.sharing.inherit(&parent.sharing);
    fork_room::note_forks(&process);
    run.add_inherited(process.clone()).inspect_err(|_| run.remove_process(&process))?;
    if process.growth.is_registered() {
        register::let_announce(&process);
    }
    Ok(process)
}

/// Makes its table what its memory is: what is away in the child its agent knows, for it has its parent's
/// words of the moment of the fork. A page that is neither swapped out nor in memory was never touched.
fn take_over(run: &Run, parent: &Process, process: &Process, child: &Child) -> io::Result<()> {
    let _work = run.quiet.begin_work();
    let (swap, cpu, space) = (run.engine.swap(), crate::cpu(), &process.space);
    let agent = process.memory.attached_agent().expect("attached");
    let finished = child.finished.as_ref().expect("it has forked");
    if !finished.is_settled {
        return Err(io::Error::other("its parent's memory was changing for too long"));
    }
    let own: Ranges = agent.own_ranges().into_iter().collect();
    let mapped: Ranges =
        own.missing_of(&proc::private_anonymous(process.memory.pid())?).into_iter().collect();
    let mapped = match process.growth.only() {
        Some(only) => mapped.common_with(&[only]).into_iter().collect(),
        None => mapped,
    };
    for (from, to) in pages(mapped.missing_of(&[(0, USER_END)])) {
        space.unmap(swap, cpu, from, to);
    }
    let present = agent.look(&mapped)?;
    refuse_what_is_new(space, finished, &present)?;
    space.settle(swap, cpu, &parent.space, &pages(present.iter()));
    register::take_over_by_link(process, &mapped, parent.growth.is_registered());
    Ok(())
}

/// A page that is in the child's memory and was away in its parent's.
fn refuse_what_is_new(space: &Space, finished: &Finished, present: &Ranges) -> io::Result<()> {
    let mut known = finished.brought.clone();
    for range in finished.disturbed.iter().flat_map(places) {
        known.insert(range.0, range.1);
    }
    let new = present.iter().flat_map(|(start, end)| {
        addresses(space.swapped_in(Vpn::from_addr(start), Vpn::from_addr(end))).iter().collect::<Vec<_>>()
    });
    match known.missing_of(&new.collect::<Vec<_>>()).first() {
        None => Ok(()),
        Some((at, _)) => {
            Err(io::Error::other(format!("its memory at {at:#x} was away, and has become something else")))
        }
    }
}

/// All places that a change has touched.
fn places(disturbed: &Disturbed) -> Vec<Range> {
    match *disturbed {
        Disturbed::Unmapped(range) | Disturbed::Dropped(range) => vec![range],
        Disturbed::Moved((from, end), to) => vec![(from, end), (to, to + (end - from))],
    }
}
