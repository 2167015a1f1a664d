//! The exchange with an agent, step by step: a stranger is told from a process of the tree, and that is
//! managed from the last step on.
//!
//! ```text
//!   may_knock ─▶ greet (Hello: token? below us?) ─▶ Welcome ─▶ settle (Ready: attach, or new process) ─▶ Go
//!        │           └─ it is about to fork: inherit.rs
//!        └─ any step: send_away, refused                                       later: hung_up
//! ```

use crate::USER_END;
use crate::door::inherit::{self, Awaited, Child};
use crate::door::socket::Door;
use crate::door::source::{Holes, Mode, Source};
use crate::faults::fork;
use crate::monitor::{protect, register};
use crate::proc::{self, Rights};
use crate::process::Process;
use crate::process::agent::{Agent, own_ranges};
use crate::process::control::ControlPage;
use crate::process::memory::ProcessMemory;
use crate::process::peer::{Peer, Pidfd};
use crate::process::port::Port;
use crate::process::wire;
use crate::run::Run;
use crate::times::EXCHANGE_ENDS;
use memspill_common::protocol::{
    Go, Hello, KIND_CHILD, KIND_FORK, KIND_FORK_ROOM, KIND_FORKS, KIND_STATIC, LEFT_TO_TRACER, MAGIC, Ready,
    UFFD_FROM_DEVICE, UFFD_FROM_SYSCALL, UFFD_GIVEN, UFFD_LINK, UFFD_LINK_REGISTERED, UFFD_NONE, Welcome,
};
use memspill_common::window::POOL_READ_PAGES_MAX;
use memspill_engine::space::Space;
use memspill_engine::tuning::Readahead;
use memspill_engine::units::{PAGE_SIZE, SpaceId};
use memspill_uffd::userfaultfd::Uffd;
use rustix::event::epoll::{EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// Without a userfaultfd, new memory of this share of the budget is closed before memory is tight
/// (`agent/pages/grow.rs`).
const CLOSED_SHARE: u64 = 16;

/// Who has connected, and how far the exchange is.
pub struct Caller {
    pub peer: Peer,
    pub socket: Arc<OwnedFd>,
    pub stage: Stage,
}

pub enum Stage {
    /// Its Hello is awaited.
    Knocked,
    /// It has had its Welcome. Its Ready is awaited.
    Welcomed {
        hello: Hello,
        control: Arc<ControlPage>,
        known: Option<Arc<Process>>,
        /// What takes the place of a userfaultfd.
        link: Option<Port>,
    },
}

/// What a Hello was about.
pub enum Greeted {
    Welcomed,
    /// A process of the run is about to fork.
    Forks,
    /// It asks whether there is room for what a fork of it may lead to.
    AsksForRoom,
    /// A thread of it is about to run a static program, which is to have this signal mask.
    RunsStatic {
        own_tid: u32,
        mask: u64,
    },
}

/// Only processes below us can be ours, whatever their user (who drops root is still to be managed). If we
/// are not root, those of other users cannot be. That our own user's are below us is looked at when they have
/// said the token.
pub fn may_knock(run: &Run, door: &Door, peer: &Peer) -> bool {
    let mine = rustix::process::geteuid();
    peer.uid == mine
        || door.target.admits_user(peer.uid.as_raw())
        || mine.is_root() && is_below_us(run, door, peer)
}

/// A managed process was found to be below us when it came in. In a run that was attached to a process nobody
/// is below us: who knows the token, and is its user or ours, is of the run. (Its agents get no
/// /dev/userfaultfd.)
pub fn is_below_us(run: &Run, door: &Door, peer: &Peer) -> bool {
    if door.target.admits_user(peer.uid.as_raw()) {
        return !peer.pidfd.has_ended();
    }
    let lives = |process: Arc<Process>| process.memory.attached_agent().is_some_and(Agent::lives);
    peer.is_below_us(|pid| run.process_of_pid(pid).is_some_and(lives))
}

/// A process that has had a Welcome runs on without us. Not the command: without a word its agent sees the
/// socket close, and kills it.
pub fn send_away(door: &Door, socket: &OwnedFd, pid: u32, error: &io::Error) {
    if !door.target.is_command(pid) {
        let errno = error.raw_os_error().unwrap_or(libc::EPROTO);
        let _ = wire::send(socket, &Go { magic: MAGIC, errno }, &[]);
    }
}

/// A peer that misbehaves, or has no agent for us, is not a failure of ours; unless it is the command itself.
pub fn refused(run: &Run, door: &Door, pid: u32, error: &io::Error) {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, PermissionDenied, TimedOut, UnexpectedEof};
    // It has ended on the way, or is just ending (ESRCH): then its exit says all.
    let has_ended = matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe);
    if has_ended || error.raw_os_error() == Some(libc::ESRCH) {
        return;
    }
    if error.raw_os_error() == Some(LEFT_TO_TRACER) {
        if door.is_to_be_told() || run.settings.verbose {
            eprintln!(
                "memspill: process {pid} runs outside the budget: it was traced (ptrace) when it began, and \
                 would stop at each of its calls; --mode=kernel manages such programs"
            );
        }
        return;
    }
    let why = match (error.kind(), door.source.mode(), error.raw_os_error()) {
        (TimedOut, ..) => format!("it did not answer for {} s", EXCHANGE_ENDS.as_secs()),
        (_, Mode::Agent(_), Some(libc::ENOSYS)) => {
            "its system calls cannot be trapped: there is no Syscall User Dispatch here (Linux 5.11 has it), \
             kernel.syscall_user_dispatch is 0, or a sandbox forbids it"
                .into()
        }
        (_, Mode::Agent(_), Some(libc::EBUSY)) => {
            "its system calls cannot be trapped: it uses %gs, or had a \
             second thread before memspill's agent was loaded"
                .into()
        }
        (_, _, Some(libc::EACCES)) => {
            "permission denied: is its file one that may be run and not read? Make it readable (chmod +r)"
                .into()
        }
        _ => error.to_string(),
    };
    if door.target.note_refused(pid, &why) {
        return;
    }
    if door.target.is_command(pid) {
        return run.fail(format!("the command cannot be managed: its agent was refused: {why}"));
    }
    match error.kind() {
        // He does not know the token: not a process of the tree.
        PermissionDenied => {}
        // Its agent sees the socket close.
        TimedOut => eprintln!("memspill: process {pid} is killed: its agent was refused: {why}"),
        _ if door.is_to_be_told() || run.settings.verbose => {
            eprintln!("memspill: process {pid} runs outside the budget: its agent was refused: {why}");
        }
        _ => {}
    }
}

/// The first step: who knows the token, and is below us, has a Welcome. WouldBlock: it has said nothing yet.
///
/// Below us: the descriptor of /dev/userfaultfd lets its holder make userfaultfds of its *own* memory, which
/// may hold up the kernel's own accesses to that; and so any user could who has read the token somewhere.
pub fn greet(run: &Run, door: &Door, caller: &mut Caller) -> io::Result<Greeted> {
    let hello = wire::receive_now::<Hello>(&*caller.socket).map_err(|e| match e.kind() {
        io::ErrorKind::InvalidData => io::ErrorKind::PermissionDenied.into(),
        _ => e,
    })?;
    if hello.magic != MAGIC || !door.knows(&hello.token) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let pid = caller.peer.pid;
    if hello.kind == KIND_FORKS {
        let may_fork = door.may_have_agents_fork() && is_below_us(run, door, &caller.peer);
        return if may_fork { Ok(Greeted::Forks) } else { Err(io::ErrorKind::PermissionDenied.into()) };
    }
    if hello.kind == KIND_FORK_ROOM {
        return Ok(Greeted::AsksForRoom);
    }
    if hello.kind == KIND_STATIC {
        let ([mask, tid], _) = hello.fork.as_chunks::<8>() else { unreachable!("16 bytes") };
        let (mask, own_tid) = (u64::from_ne_bytes(*mask), u64::from_ne_bytes(*tid) as u32);
        let is_ours = is_below_us(run, door, &caller.peer) && door.target.arena().is_none();
        return if is_ours {
            Ok(Greeted::RunsStatic { own_tid, mask })
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        };
    }
    let holes = door.holes_for(&hello);
    let known = (hello.kind == KIND_FORK).then(|| fork::child_that_joins(run, pid)).flatten();
    let welcomed = match is_below_us(run, door, &caller.peer) {
        true => door.control_page(holes.is_some()).and_then(|(control, control_fd)| {
            run.files.prepare(&control);
            if holes.is_some() {
                control.set_forks();
            }
            let bell = holes.is_some().then(new_bell).transpose()?;
            let pool = run.shared_pool().filter(|_| may_read_pool(&caller.peer));
            let pool_file = pool.as_ref().and_then(|(_, device)| device.backing.pool_file());
            welcome(
                door,
                caller,
                known.as_deref(),
                &control_fd,
                holes.zip(bell.as_ref()).map(|(holes, bell)| (holes, bell, pool_file)),
            )?;
            let control = Arc::new(control);
            let can_protect = matches!(holes, Some(Holes::Userfaultfd));
            let link = bell.map(|bell| {
                let goes_on = run.engine.swap().tuning.readahead == Readahead::Stream;
                let run_pages = if goes_on { POOL_READ_PAGES_MAX } else { 1 };
                let closed_bytes = run.engine.groups().root().limit_bytes() / CLOSED_SHARE;
                let pool = pool.map(|(number, _)| number);
                let port = Port::of_agent(control.clone(), bell, pool, run_pages, closed_bytes, can_protect);
                door.target.arena().into_iter().for_each(|arena| port.close_only(arena));
                port
            });
            Ok((control, link))
        }),
        false => Err(io::Error::other("it is not below memspill in the tree of processes")),
    };
    match welcomed {
        Ok((control, link)) => caller.stage = Stage::Welcomed { hello, control, known, link },
        Err(e) if door.target.is_command(pid) => return Err(e),
        Err(e) => {
            let _ = wire::send(&*caller.socket, &Welcome { magic: MAGIC, uffd_source: UFFD_NONE }, &[]);
            return Err(e);
        }
    }
    Ok(Greeted::Welcomed)
}

/// The pool holds the pages of all: it is for those who have the rights that we have, and are in no sandbox.
fn may_read_pool(peer: &Peer) -> bool {
    static OURS: OnceLock<Option<Rights>> = OnceLock::new();
    let ours = OURS.get_or_init(|| proc::rights(std::process::id()));
    ours.is_some() && proc::rights(peer.pid) == *ours
}

/// `known`: the child of a fork, whose userfaultfd came with the fork event. Others (a fresh program, the
/// child of a process that was not registered) make one.
fn welcome(
    door: &Door,
    caller: &Caller,
    known: Option<&Process>,
    control_fd: &OwnedFd,
    link: Option<(Holes, &OwnedFd, Option<BorrowedFd<'_>>)>,
) -> io::Result<()> {
    let control = control_fd.as_fd();
    let (uffd_source, fds) = match (known, link, &door.source) {
        (Some(process), ..) => (UFFD_GIVEN, vec![control, process.memory.port.as_fd()]),
        (None, None, Source::Device(device)) => (UFFD_FROM_DEVICE, vec![control, device.as_fd()]),
        (None, None, Source::Syscall) => (UFFD_FROM_SYSCALL, vec![control]),
        (None, None, Source::Link(_)) => return Err(io::ErrorKind::InvalidData.into()),
        (None, Some((holes, bell, pool)), _) => {
            let kind = match holes {
                Holes::Userfaultfd => UFFD_LINK_REGISTERED,
                Holes::Guard => UFFD_LINK,
            };
            (kind, [control, bell.as_fd()].into_iter().chain(pool).collect())
        }
    };
    wire::send(&*caller.socket, &Welcome { magic: MAGIC, uffd_source }, &fds)
}

fn attach_known(run: &Run, door: &Door, process: &Arc<Process>, agent: Agent) -> io::Result<()> {
    process.attach(agent)?;
    door.membership.joined(&run.engine, process);
    let own = process.memory.attached_agent().expect("just attached").own_ranges();
    register::forget_agent_pages(run, process, &own);
    // Now, while it waits for us: it may fork as soon as it runs, and its child must find the ident page
    // registered.
    let is_joined = register::register_agent_pages(process);
    process.growth.set_registered(is_joined && run.is_memory_tight());
    if process.growth.is_registered() {
        register::let_announce(process);
    }
    Ok(())
}

fn make_new(run: &Run, door: &Door, port: Port, pid: u32, agent: Agent) -> io::Result<Arc<Process>> {
    port.api(door.features)?;
    let key = run.new_key();
    let memory = Arc::new(ProcessMemory::new(port, pid));
    let space = Space::new(SpaceId(key as u32), memory.clone());
    let space = match door.membership.of_program(&run.engine, pid) {
        Some(group) => space.in_group(group),
        None => space,
    };
    let process = Arc::new(Process::new(key, memory, Arc::new(space), None));
    process.growth.set_only(door.target.arena());
    process.attach(agent)?;
    run.add_process(process.clone()).inspect_err(|_| run.remove_process(&process))?;
    Ok(process)
}

fn new_bell() -> io::Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn userfaultfd_in(fd: OwnedFd) -> io::Result<Uffd> {
    Uffd::received(fd).map_err(|other| {
        // To close a file of a file system that the peer serves itself may take as long as he likes.
        let _ = std::thread::Builder::new().name("memspill-close".into()).spawn(move || drop(other));
        io::Error::from(io::ErrorKind::InvalidData)
    })
}

/// Addresses from a target: in user space, in pages, and not wrapping.
pub fn check_ready(ready: &Ready) -> io::Result<()> {
    let pages = [ready.staging_addr, ready.doorbell_addr, ready.ident_addr, ready.control_addr];
    let aligned = pages.iter().all(|a| a % PAGE_SIZE as u64 == 0 && *a > 0);
    let bounded = own_ranges(ready).iter().all(|(_, end)| *end <= USER_END);
    if aligned && bounded { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// The agent's socket has closed: its process is ending, or has called exec.
pub fn hung_up(run: &Run, door: &Door, epoll: &OwnedFd, key: u64) {
    let Some(process) = run.process(key) else { return };
    if let Some(agent) = process.memory.attached_agent() {
        let _ = rustix::event::epoll::delete(epoll, &agent.evictor.socket);
    }
    door.target.left(key);
    // The address space may live a little longer, with faults to be served; the monitor frees it when it is
    // gone.
    process.set_dying();
}

/// The last step: the process is managed, or runs without us.
pub fn settle(
    run: &Run,
    door: &Door,
    epoll: &OwnedFd,
    caller: Caller,
    (ready, fd): (Ready, Option<OwnedFd>),
    origin: Origin,
) {
    let (socket, pid, is_child) = (caller.socket.clone(), caller.peer.pid, !matches!(origin, Origin::Itself));
    let pidfd = caller.peer.pidfd.try_clone();
    let fails_by_limit = is_child && is_limit(ready.errno);
    let Err(e) = take_in(run, door, epoll, caller, ready, fd, origin) else { return };
    // It was killed on the way, and what is asked of /proc fails in some way or other.
    if pidfd.as_ref().is_ok_and(Pidfd::has_ended) {
        return;
    }
    // If it ended itself, it would wait for ever where it unmaps what is registered: nobody reads its events.
    let is_killed = is_child && pidfd.and_then(|child| child.kill()).is_ok();
    if !is_killed {
        send_away(door, &socket, pid, &e);
    }
    if fails_by_limit {
        // A fork that fails as any does, of which its program is told.
    } else if is_child {
        eprintln!("memspill: process {pid} is ended: it is the child of a fork, and cannot join: {e}");
    } else {
        refused(run, door, pid, &e);
    }
}

/// Is that what a system call says where a limit is reached: of threads, memory, descriptors?
fn is_limit(errno: i32) -> bool {
    matches!(errno, libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE)
}

/// From whom a process has its memory.
pub enum Origin {
    /// It is a program that has just started, or the kernel has told of its fork.
    Itself,
    /// Its agent has made the fork.
    Fork(Arc<Process>, Child),
    /// It says so, and nobody knows of such a fork.
    Unknown,
}

fn take_in(
    run: &Run,
    door: &Door,
    epoll: &OwnedFd,
    caller: Caller,
    ready: Ready,
    fd: Option<OwnedFd>,
    origin: Origin,
) -> io::Result<()> {
    let pid = caller.peer.pid;
    let (parent, child) = match origin {
        Origin::Itself => (None, None),
        Origin::Fork(parent, child) => (Some(parent), Some(Awaited::new(run, child))),
        Origin::Unknown => return Err(io::Error::other("its parent has not told of a fork")),
    };
    let uffd = fd.map(userfaultfd_in).transpose()?;
    if ready.magic != MAGIC {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if ready.errno != 0 {
        return Err(io::Error::from_raw_os_error(ready.errno));
    }
    let Stage::Welcomed { hello, control, known, link } = caller.stage else {
        unreachable!("nobody is ready unasked")
    };
    check_ready(&ready)?;
    let is_foreign = caller.peer.uid != rustix::process::geteuid();
    let closed = || {
        io::Error::other(
            "it is another user's, and to look into its memory takes CAP_SYS_PTRACE, which memspill does not \
             have",
        )
    };
    let agent = Agent::new(caller.socket.clone(), control, ready, &caller.peer, hello.pid);
    let agent = agent.map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied if is_foreign => closed(),
        _ => e,
    })?;
    // The child of a fork of which the kernel has told is served whether something of it can leave or not.
    let is_new = known.is_none() && parent.is_none();
    if is_new && is_foreign && link.is_none() && agent.is_closed_to_us() {
        return Err(closed());
    }
    let fresh = || link.or(uffd.map(Port::from)).ok_or(io::Error::from(io::ErrorKind::InvalidData));
    let process = match (known, parent, child) {
        (_, Some(parent), Some(child)) => {
            inherit::settle(run, door, fresh()?, pid, agent, &parent, child.take())?
        }
        (Some(process), ..) => attach_known(run, door, &process, agent).map(|()| process)?,
        _ => make_new(run, door, fresh()?, pid, agent)?,
    };
    if hello.kind == KIND_FORK {
        // Perhaps before its parent was followed. It shares pages with that, and with others of the
        // family.
        run.processes().iter().for_each(|p| p.space.cow.store(true, Ordering::Relaxed));
        protect::take_in_child(run, &process);
        // A batch of shared memory that was begun without it ends before it runs on (`reclaim/direct.rs`).
        run.objects().iter().for_each(|object| drop(object.hold_batch()));
    } else if hello.kind == KIND_CHILD {
        protect::take_in_child(run, &process);
    }
    let agent = process.memory.attached_agent().expect("just attached");
    run.files.refresh(&agent.evictor.control);
    // From here on the socket carries commands, and for us it is only of interest that it ends.
    let key = EventData::new_u64(process.key);
    rustix::event::epoll::modify(epoll, &*agent.evictor.socket, key, EventFlags::RDHUP)?;
    door.target.joined(pid, process.key);
    agent.set_serves();
    // If it cannot be sent, the process has ended: that is told by the socket.
    let _ = wire::send(&*agent.evictor.socket, &Go { magic: MAGIC, errno: 0 }, &[]);
    Ok(())
}
