//! The door: agents connect here, from each program that the tree starts and from each child that it forks.
//!
//! The socket is abstract, so that nothing is left in any file system, and anybody may connect to it. Who may come in:
//! a process below us in the tree of parents that knows the token (it is in the environment of the tree). The exchange
//! is drawn in the agent's `protocol.rs`.
//!
//! ```text
//!   connect ─ who is it? ─ a stranger: closed, nothing is awaited of him
//!                └─ Knocked ─ Hello: the token? below us? ─ Welcomed ─ Ready: attach ─ Go
//! ```
//!
//! Nobody waits for anybody else: each exchange goes on when its next message is there. A process has one exchange at a
//! time, an exchange has its time as a whole, and when all places are taken, the next one has the place of whoever has
//! been silent for longest. Whatever goes wrong in one exchange, or at accept, the door stays.
//! What it does not do: protect a tree from itself. A process of the tree can start a thousand that know the token.
//!
//! Tried: to look for the next message for 100 µs before sleeping, here or on both sides, so that no CPU goes idle. 200
//! processes then took a tenth (here) or a fifth (both) longer on two CPUs, and a half on a busy machine.

use crate::control::ControlPage;
use crate::events::{self, USER_END};
use crate::pager::Pager;
use crate::callers::Callers;
use crate::peer::Peer;
use crate::process::{Agent, Process, own_ranges};
use crate::target::Target;
use crate::wire;
use memspill_agent::protocol::{
    Go, Hello, KIND_FORK, MAGIC, Ready, UFFD_FROM_DEVICE, UFFD_FROM_SYSCALL, UFFD_GIVEN, UFFD_NONE, Welcome,
};
use memspill_uffd::userfaultfd::{self as uffd_abi, Uffd};
use memspill_engine::units::{PAGE_SIZE, Vpn};
use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// From connect to Go. A child of a fork may have to wait for memory meanwhile; a process that is stopped has no time.
const EXCHANGE_MAX: Duration = Duration::from_secs(30);
/// Exchanges at a time.
const CALLERS_MAX: u64 = 1024;
/// How long the door is shut when there is no descriptor or no memory for the next one.
const PAUSE: Duration = Duration::from_millis(50);
/// The kernel makes of it what it allows (net.core.somaxconn).
const BACKLOG: i32 = 4096;

/// How targets get their userfaultfd.
pub enum UffdSource {
    /// /dev/userfaultfd, opened by us: the target makes its own on this descriptor and needs no privilege.
    Device(OwnedFd),
    /// userfaultfd(2), where the system allows it to everyone.
    Syscall,
}

pub struct Door {
    socket: OwnedFd,
    name: String,
    token: [u8; 32],
    source: UffdSource,
    /// Features asked of every userfaultfd.
    features: u64,
    /// The command's own process, which must not run without an agent.
    pub target: Target,
    /// Others may: that is said once.
    told_of_unmanaged: AtomicBool,
    /// A control page for whoever comes next, made while nobody waits.
    spare: Mutex<Option<(ControlPage, OwnedFd)>>,
}

/// The keys in the door's epoll that are not processes: the listening socket, and from here on those in the exchange.
const KEY_LISTEN: u64 = u64::MAX;
const KEY_CALLERS: u64 = 1 << 63;

impl Door {
    pub fn open(source: UffdSource, features: u64) -> io::Result<Door> {
        let mut random = [0u8; 24];
        let mut filled = 0;
        while filled < random.len() {
            filled += rustix::rand::getrandom(&mut random[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        let hex: Vec<u8> = random.iter().flat_map(|b| format!("{b:02x}").into_bytes()).collect();
        // Abstract sockets are known in one network namespace: by the name an agent knows that it is in another one.
        let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino());
        let name = format!("memspill-{}-{network}-{}", std::process::id(), String::from_utf8_lossy(&hex[..16]));
        let mut token = [0u8; 32];
        token.copy_from_slice(&hex[16..]);
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        let (target, told_of_unmanaged, spare) = (Target::new(), AtomicBool::new(false), Mutex::default());
        Ok(Door { socket, name, token, source, features, target, told_of_unmanaged, spare })
    }

    fn control_page(&self) -> io::Result<(ControlPage, OwnedFd)> {
        match self.spare.lock().expect("spare").take() {
            Some(made) => Ok(made),
            None => ControlPage::new(),
        }
    }

    fn make_spare(&self) {
        let mut spare = self.spare.lock().expect("spare");
        if spare.is_none() {
            // No memory for it now: whoever comes next is told so.
            *spare = ControlPage::new().ok();
        }
    }

    /// The value of the environment variable by which agents find us.
    pub fn address(&self) -> String {
        format!("{}:{}", self.name, String::from_utf8_lossy(&self.token))
    }
}

/// The door thread: let agents in, and notice when their processes go.
pub fn run(pager: &Arc<Pager>) {
    if let Err(e) = Porter::new(pager).and_then(Porter::serve) {
        pager.give_up(125, format!("cannot accept agents: {e}"));
    }
}

/// The door thread's own.
struct Porter<'a> {
    pager: &'a Arc<Pager>,
    epoll: OwnedFd,
    callers: Callers<Caller>,
    /// Nobody is let in before then.
    shut_until: Option<Instant>,
    /// Who came when there was a descriptor for the socket and none for more.
    put_off: Option<OwnedFd>,
    told_of_shutting: bool,
}

/// Who has connected, and how far the exchange is.
struct Caller {
    peer: Peer,
    socket: Arc<OwnedFd>,
    stage: Stage,
}

enum Stage {
    /// Its Hello is awaited.
    Knocked,
    /// It has had its Welcome. Its Ready is awaited.
    Welcomed { hello: Hello, control: ControlPage, known: Option<Arc<Process>> },
}

impl Porter<'_> {
    fn new(pager: &Arc<Pager>) -> io::Result<Porter<'_>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let key = epoll::EventData::new_u64(KEY_LISTEN);
        epoll::add(&epoll, &pager.socket.socket, key, epoll::EventFlags::IN)?;
        // Each takes a descriptor, and so do a process's userfaultfd, pagemap and others once it is in.
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let callers = Callers::new((descriptors / 8).clamp(8, CALLERS_MAX) as usize);
        Ok(Porter { pager, epoll, callers, shut_until: None, put_off: None, told_of_shutting: false })
    }

    fn serve(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        while !self.pager.stopping.load(Ordering::Relaxed) {
            events.clear();
            let (begun, wait) = (Instant::now(), self.next_look());
            let timeout = wait.map(|wait| rustix::event::Timespec {
                tv_sec: wait.as_secs() as i64,
                tv_nsec: i64::from(wait.subsec_nanos()),
            });
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            // While we were stopped or frozen, perhaps all were.
            self.callers.extend(begun.elapsed().saturating_sub(wait.unwrap_or(Duration::MAX)));
            for event in &events {
                match event.data.u64() {
                    KEY_LISTEN => self.accept_some(),
                    key if key >= KEY_CALLERS => self.go_on(key),
                    key => hung_up(self.pager, &self.epoll, key),
                }
            }
            self.look_at_the_time()?;
            self.pager.socket.make_spare();
        }
        Ok(())
    }

    fn next_look(&self) -> Option<Duration> {
        let next = self.callers.next_deadline().into_iter().chain(self.shut_until).min()?;
        // Rounded up, or it would look again and again just before.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    /// Not all at once: others would wait for as long as strangers come.
    fn accept_some(&mut self) {
        for _ in 0..64 {
            if self.shut_until.is_some() {
                return;
            }
            if !self.callers.has_room() {
                return self.shut("too many processes of the tree join at once");
            }
            let put_off = self.put_off.take().map(Ok);
            match put_off.unwrap_or_else(|| rustix::net::accept_with(&self.pager.socket.socket, SocketFlags::CLOEXEC)) {
                Ok(socket) => self.admit(socket),
                Err(rustix::io::Errno::AGAIN) => return,
                // That one has gone away.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                // No descriptor, no memory: others give some back. Whatever else it is, it may pass.
                Err(e) => return self.shut(&io::Error::from(e).to_string()),
            }
        }
    }

    /// Who waits outside loses nothing by it. Without a pause the listening socket would be reported for ever.
    fn shut(&mut self, why: &str) {
        self.shut_until = Some(Instant::now() + PAUSE);
        let _ = self.listen_for(epoll::EventFlags::empty());
        if !std::mem::replace(&mut self.told_of_shutting, true) {
            eprintln!("memspill: new processes wait: {why}");
        }
    }

    fn listen_for(&self, flags: epoll::EventFlags) -> rustix::io::Result<()> {
        epoll::modify(&self.epoll, &self.pager.socket.socket, epoll::EventData::new_u64(KEY_LISTEN), flags)
    }

    /// A stranger is sent away before anything is awaited of him.
    fn admit(&mut self, socket: OwnedFd) {
        let peer = match Peer::of(&socket) {
            Ok(peer) => peer,
            Err(e) if is_scarcity(&e) => {
                self.put_off = Some(socket);
                return self.shut(&e.to_string());
            }
            // He is gone, or lives where we see nobody.
            Err(_) => return,
        };
        if !may_knock(self.pager, &peer) {
            return;
        }
        let pid = peer.pid;
        let caller = Caller { peer, socket: Arc::new(socket), stage: Stage::Knocked };
        let socket = caller.socket.clone();
        let key = KEY_CALLERS + self.callers.admit(pid, Instant::now() + EXCHANGE_MAX, caller);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        match epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(key), flags) {
            Ok(()) => self.go_on(key),
            Err(e) => {
                self.callers.take(key - KEY_CALLERS);
                refused(self.pager, pid, &e.into());
            }
        }
    }

    /// The next step of an exchange, if what it needs is there.
    fn go_on(&mut self, key: u64) {
        let number = key - KEY_CALLERS;
        let Some(entry) = self.callers.get(number) else { return };
        let (pager, pid, caller) = (self.pager, entry.pid, &mut entry.caller);
        let step = match &caller.stage {
            Stage::Knocked => greet(pager, caller),
            Stage::Welcomed { .. } => wire::receive_now_with_fd::<Ready>(&*caller.socket).map(|(ready, fd)| {
                let caller = self.callers.take(number).expect("looked up above").caller;
                self.settle(caller, ready, fd);
            }),
        };
        match step {
            Ok(()) => {
                // Whoever has been greeted knows the token.
                self.callers.get(number).into_iter().for_each(|entry| entry.is_known = true);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => {
                let Caller { socket, stage, .. } = self.callers.take(number).expect("looked up above").caller;
                if matches!(stage, Stage::Welcomed { .. }) {
                    send_away(pager, &socket, pid, &e);
                }
                refused(pager, pid, &e);
            }
        }
    }

    /// The last step: the process is managed, or runs without us.
    fn settle(&self, caller: Caller, ready: Ready, fd: Option<OwnedFd>) {
        let (pager, socket, pid) = (self.pager, caller.socket.clone(), caller.peer.pid);
        let Err(e) = self.take_in(caller, ready, fd) else { return };
        send_away(pager, &socket, pid, &e);
        refused(pager, pid, &e);
    }

    fn take_in(&self, caller: Caller, ready: Ready, fd: Option<OwnedFd>) -> io::Result<()> {
        let (pager, pid) = (self.pager, caller.peer.pid);
        let uffd = fd.map(userfaultfd_in).transpose()?;
        if ready.magic != MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if ready.errno != 0 {
            return Err(io::Error::from_raw_os_error(ready.errno));
        }
        let Stage::Welcomed { hello, control, known } = caller.stage else { unreachable!("nobody is ready unasked") };
        check_ready(&ready)?;
        let agent = Agent::new(caller.socket.clone(), control, ready, &caller.peer, hello.pid)?;
        let process = match known {
            Some(process) => attach_known(pager, &process, agent).map(|()| process)?,
            None => make_new(pager, uffd.ok_or(io::ErrorKind::InvalidData)?, pid, agent)?,
        };
        if hello.kind == KIND_FORK {
            // Perhaps before its parent was followed. It shares pages with that, and with others of the family.
            pager.processes().iter().for_each(|p| p.space.cow.store(true, Ordering::Relaxed));
        }
        let agent = process.memory.agent().expect("just attached");
        // From here on the socket carries commands, and for us it is only of interest that it ends.
        let key = epoll::EventData::new_u64(process.key);
        epoll::modify(&self.epoll, &*agent.socket, key, epoll::EventFlags::RDHUP)?;
        pager.socket.target.joined(pid, process.key);
        agent.set_serves();
        // If it cannot be sent, the process has ended: that is told by the socket.
        let _ = wire::send(&*agent.socket, &Go { magic: MAGIC, errno: 0 }, &[]);
        Ok(())
    }

    fn look_at_the_time(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if self.shut_until.is_some_and(|until| until <= now) {
            self.shut_until = None;
            self.listen_for(epoll::EventFlags::IN)?;
            self.accept_some();
        }
        for number in self.callers.overdue(now) {
            let entry = self.callers.get(number).expect("overdue, so there");
            if crate::standstill::of(entry.pid).is_some() {
                entry.until = now + EXCHANGE_MAX;
                continue;
            }
            let entry = self.callers.take(number).expect("looked up above");
            if entry.is_known || is_below_us(self.pager, &entry.caller.peer) {
                refused(self.pager, entry.pid, &io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }
}

/// Others give some back.
fn is_scarcity(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

/// Only processes below us can be ours, whatever their user (who drops root is still to be managed). Where we are not
/// root, those of other users cannot be. That our own user's are below us is looked at when they have said the token.
fn may_knock(pager: &Pager, peer: &Peer) -> bool {
    let mine = rustix::process::geteuid();
    peer.uid == mine || mine.is_root() && is_below_us(pager, peer)
}

/// Whoever is managed was found to be when it came in.
fn is_below_us(pager: &Pager, peer: &Peer) -> bool {
    let lives = |process: Arc<Process>| process.memory.agent().is_some_and(Agent::lives);
    peer.is_below_us(|pid| pager.process_of_pid(pid).is_some_and(lives))
}

/// Who has had a Welcome runs on without us. Not the command: without a word its agent sees the socket close, and kills
/// it.
fn send_away(pager: &Pager, socket: &OwnedFd, pid: u32, error: &io::Error) {
    if !pager.socket.target.is(pid) {
        let errno = error.raw_os_error().unwrap_or(libc::EPROTO);
        let _ = wire::send(socket, &Go { magic: MAGIC, errno }, &[]);
    }
}

/// A peer that misbehaves, or has no agent for us, is not a failure of ours; unless it is the command itself.
fn refused(pager: &Pager, pid: u32, error: &io::Error) {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, PermissionDenied, TimedOut, UnexpectedEof};
    // It was killed on the way: then its exit says all.
    if matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe) {
        return;
    }
    let door = &pager.socket;
    let why = match error.kind() {
        TimedOut => format!("it did not answer for {} s", EXCHANGE_MAX.as_secs()),
        _ => error.to_string(),
    };
    if door.target.is(pid) {
        return pager.give_up(125, format!("the command cannot be managed: its agent was refused: {why}"));
    }
    match error.kind() {
        // He does not know the token: not a process of the tree.
        PermissionDenied => {}
        // Its agent sees the socket close.
        TimedOut => eprintln!("memspill: process {pid} is killed: its agent was refused: {why}"),
        _ if !door.told_of_unmanaged.swap(true, Ordering::Relaxed) || pager.settings.verbose => {
            eprintln!("memspill: process {pid} runs outside the budget: its agent was refused: {why}");
        }
        _ => {}
    }
}

/// The first step: who knows the token, and is below us, has a Welcome. WouldBlock: it has said nothing yet.
///
/// Below us: the descriptor of /dev/userfaultfd lets its holder make userfaultfds of its *own* memory, which may hold
/// up the kernel's own accesses to that; and so any user could who has read the token somewhere.
fn greet(pager: &Arc<Pager>, caller: &mut Caller) -> io::Result<()> {
    let hello = wire::receive_now::<Hello>(&*caller.socket).map_err(|e| match e.kind() {
        io::ErrorKind::InvalidData => io::ErrorKind::PermissionDenied.into(),
        _ => e,
    })?;
    let door = &pager.socket;
    if hello.magic != MAGIC || hello.token != door.token {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let pid = caller.peer.pid;
    let known = (hello.kind == KIND_FORK).then(|| events::forked(pager, pid)).flatten();
    let welcomed = match is_below_us(pager, &caller.peer) {
        true => door.control_page().and_then(|(control, control_fd)| {
            welcome(door, caller, known.as_deref(), &control_fd)?;
            Ok(control)
        }),
        false => Err(io::Error::other("it is not below memspill in the tree of processes")),
    };
    match welcomed {
        Ok(control) => caller.stage = Stage::Welcomed { hello, control, known },
        Err(e) if door.target.is(pid) => return Err(e),
        Err(e) => {
            let _ = wire::send(&*caller.socket, &Welcome { magic: MAGIC, uffd_source: UFFD_NONE }, &[]);
            return Err(e);
        }
    }
    Ok(())
}

/// `known`: the child of a fork, whose userfaultfd came with the fork event. Others (a fresh program, the child of a
/// process that was not registered) make one.
fn welcome(door: &Door, caller: &Caller, known: Option<&Process>, control_fd: &OwnedFd) -> io::Result<()> {
    let control = control_fd.as_fd();
    let (uffd_source, fds) = match (known, &door.source) {
        (Some(process), _) => (UFFD_GIVEN, vec![control, fd_of(&process.memory.uffd)]),
        (None, UffdSource::Device(device)) => (UFFD_FROM_DEVICE, vec![control, device.as_fd()]),
        (None, UffdSource::Syscall) => (UFFD_FROM_SYSCALL, vec![control]),
    };
    wire::send(&*caller.socket, &Welcome { magic: MAGIC, uffd_source }, &fds)
}

fn attach_known(pager: &Pager, process: &Arc<Process>, agent: Agent) -> io::Result<()> {
    attach(process, agent)?;
    pager.membership.joined(pager, process);
    let own = process.memory.agent().expect("just attached").own_ranges();
    crate::growth::forget_own(pager, process, &own);
    // Now, while it waits for us: it may fork as soon as it runs, and its child must find the ident page registered.
    process.pressed.store(crate::growth::press(process), Ordering::Relaxed);
    Ok(())
}

fn make_new(pager: &Arc<Pager>, uffd: Uffd, pid: u32, agent: Agent) -> io::Result<Arc<Process>> {
    uffd.api(pager.socket.features)?;
    let process = events::new_process(pager, uffd, pid);
    attach(&process, agent)?;
    pager.add_process(process.clone()).inspect_err(|_| pager.remove_process(&process))?;
    Ok(process)
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

fn attach(process: &Arc<Process>, agent: Agent) -> io::Result<()> {
    let own = agent.own_ranges();
    process.space.exclude(own.iter().map(|(s, e)| (Vpn::from_addr(*s), Vpn::from_addr(e.div_ceil(PAGE_SIZE as u64) * PAGE_SIZE as u64))).collect());
    if process.memory.attach(agent) { Ok(()) } else { Err(io::ErrorKind::AlreadyExists.into()) }
}

/// The agent's socket has closed: its process is ending, or has called exec.
fn hung_up(pager: &Arc<Pager>, epoll: &OwnedFd, key: u64) {
    let Some(process) = pager.process(key) else { return };
    if let Some(agent) = process.memory.agent() {
        let _ = epoll::delete(epoll, &agent.socket);
    }
    pager.socket.target.left(key);
    // The address space may live a little longer, with faults to be served; the monitor frees it when it is gone.
    process.dying.store(true, Ordering::Relaxed);
}

/// Descriptor of a userfaultfd, borrowed.
#[allow(unsafe_code, reason = "Uffd owns its descriptor for as long as it is borrowed")]
fn fd_of(uffd: &Uffd) -> BorrowedFd<'_> {
    // SAFETY: the descriptor lives as long as `uffd`, to which the result is bound.
    unsafe { BorrowedFd::borrow_raw(uffd.as_raw_fd()) }
}

/// How this machine gives userfaultfds with kernel faults served, and the features to ask for. An error says why not.
pub fn find_source() -> Result<(UffdSource, u64), String> {
    let device = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd");
    let (source, probe) = match device {
        Ok(device) => {
            let probe = Uffd::of_self(Some(device.as_raw_fd()));
            (UffdSource::Device(device.into()), probe)
        }
        Err(_) => (UffdSource::Syscall, Uffd::of_self(None)),
    };
    let probe = probe.map_err(|e| format!("no userfaultfd that serves the kernel's own faults ({e})"))?;
    let have = probe.api(0).map_err(|e| format!("UFFDIO_API: {e}"))?;
    let needed = uffd_abi::FEATURE_EVENT_REMAP
        | uffd_abi::FEATURE_EVENT_REMOVE
        | uffd_abi::FEATURE_EVENT_UNMAP
        | uffd_abi::FEATURE_THREAD_ID
        | uffd_abi::FEATURE_MOVE;
    if have & needed != needed {
        return Err("this kernel lacks UFFDIO_MOVE (Linux 6.8 has it)".into());
    }
    // To be in the kernel and to be allowed are two things, and each descriptor is asked once.
    let features = needed | uffd_abi::FEATURE_EVENT_FORK;
    let device = match &source {
        UffdSource::Device(device) => Some(device.as_raw_fd()),
        UffdSource::Syscall => None,
    };
    Uffd::of_self(device)
        .and_then(|uffd| uffd.api(features))
        .map_err(|e| format!("userfaultfd refuses to follow forks, for which it wants CAP_SYS_PTRACE: {e}"))?;
    Ok((source, features))
}

