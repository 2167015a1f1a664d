//! The door: agents connect here, from each program that the tree starts and from each child that it forks.
//!
//! The socket is abstract, so that nothing is left in any file system. Who may come in: a process of our own user that
//! knows the token (it is in the environment of the tree). The exchange is drawn in the agent's `protocol.rs`.
//!
//! Tried: to look for the next message for 100 µs before sleeping, here or on both sides, so that no CPU goes idle. 200
//! processes then took a tenth (here) or a fifth (both) longer on two CPUs, and a half on a busy machine.

use crate::control::ControlPage;
use crate::events::{self, USER_END};
use crate::pager::Pager;
use crate::process::{Agent, Process, own_ranges};
use crate::target::Target;
use crate::wire;
use memspill_agent::protocol::{
    Go, Hello, KIND_FORK, MAGIC, Ready, UFFD_FROM_DEVICE, UFFD_FROM_SYSCALL, UFFD_GIVEN, Welcome,
};
use memspill_uffd::userfaultfd::{self as uffd_abi, Uffd};
use memspill_engine::units::{PAGE_SIZE, Vpn};
use rustix::event::epoll;
use rustix::fs::Uid;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An agent that does not answer for this long is let go.
const PATIENCE: Duration = Duration::from_secs(5);

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

/// The key in the door's epoll that is not a process: the listening socket.
const KEY_LISTEN: u64 = u64::MAX;

impl Door {
    pub fn open(source: UffdSource, features: u64) -> io::Result<Door> {
        let mut random = [0u8; 24];
        let mut filled = 0;
        while filled < random.len() {
            filled += rustix::rand::getrandom(&mut random[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        let hex: Vec<u8> = random.iter().flat_map(|b| format!("{b:02x}").into_bytes()).collect();
        let name = format!("memspill-{}-{}", std::process::id(), String::from_utf8_lossy(&hex[..16]));
        let mut token = [0u8; 32];
        token.copy_from_slice(&hex[16..]);
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        rustix::net::listen(&socket, 128)?;
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
    if let Err(e) = serve(pager) {
        pager.give_up(125, format!("cannot accept agents: {e}"));
    }
}

fn serve(pager: &Arc<Pager>) -> io::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let door = &pager.socket;
    epoll::add(&epoll, &door.socket, epoll::EventData::new_u64(KEY_LISTEN), epoll::EventFlags::IN)?;
    let mut events = Vec::with_capacity(64);
    while !pager.stopping.load(Ordering::Relaxed) {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        for event in &events {
            match event.data.u64() {
                KEY_LISTEN => accept_all(pager, &epoll)?,
                key => hung_up(pager, &epoll, key),
            }
        }
    }
    Ok(())
}

fn accept_all(pager: &Arc<Pager>, epoll: &OwnedFd) -> io::Result<()> {
    loop {
        match rustix::net::accept_with(&pager.socket.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => {
                let peer = rustix::net::sockopt::socket_peercred(&socket)?;
                // The peer's word for its pid may be from another pid namespace: the kernel's is ours.
                let pid = peer.pid.as_raw_nonzero().get() as u32;
                if let Err(e) = welcome(pager, epoll, socket, peer.uid, pid) {
                    refused(pager, pid, &e);
                }
            }
            Err(rustix::io::Errno::AGAIN) => break,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
            Err(e) => return Err(e.into()),
        }
    }
    pager.socket.make_spare();
    Ok(())
}

/// A peer that misbehaves, or has no agent for us, is not a failure of ours; unless it is the command itself.
fn refused(pager: &Pager, pid: u32, error: &io::Error) {
    // It was killed on the way: then its exit says all.
    if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) {
        return;
    }
    let door = &pager.socket;
    if door.target.is(pid) {
        return pager.give_up(125, format!("the command cannot be managed: its agent was refused: {error}"));
    }
    if !door.told_of_unmanaged.swap(true, Ordering::Relaxed) || pager.settings.verbose {
        eprintln!("memspill: process {pid} runs outside the budget: its agent was refused: {error}");
    }
}

/// Who connected: its process as we see it, and as it says itself (in a pid namespace of its own).
struct Caller<'a> {
    socket: &'a OwnedFd,
    pid: u32,
    own_pid: u32,
}

/// The whole exchange with one agent.
fn welcome(pager: &Arc<Pager>, epoll: &OwnedFd, socket: OwnedFd, uid: Uid, pid: u32) -> io::Result<()> {
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(PATIENCE))?;
    let (hello, _) = wire::receive::<Hello>(&socket)?;
    let mine = rustix::process::geteuid();
    if hello.magic != MAGIC || hello.token != pager.socket.token || !(uid == mine || mine.is_root()) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let known = (hello.kind == KIND_FORK).then(|| events::forked(pager, pid)).flatten();
    let (control, control_fd) = pager.socket.control_page()?;
    let caller = Caller { socket: &socket, pid, own_pid: hello.pid };
    let result = match known {
        Some(process) => attach_known(pager, &caller, &process, control, &control_fd).map(|()| process),
        None => make_new(pager, &caller, control, &control_fd),
    };
    let process = match result {
        Ok(process) => process,
        // Without a word from us the command does not run on: its agent sees the socket close, and kills it.
        Err(e) if pager.socket.target.is(pid) => return Err(e),
        Err(e) => {
            let _ = wire::send(&socket, &Go { magic: MAGIC, errno: e.raw_os_error().unwrap_or(libc::EPROTO) }, &[]);
            return Err(e);
        }
    };
    if hello.kind == KIND_FORK {
        // Perhaps before its parent was followed. It shares pages with that, and with others of the family.
        pager.processes().iter().for_each(|p| p.space.cow.store(true, Ordering::Relaxed));
    }
    let agent = process.memory.agent().expect("just attached");
    // From here on the socket carries commands, which may take as long as the target is stopped.
    rustix::net::sockopt::set_socket_timeout(&agent.socket, rustix::net::sockopt::Timeout::Recv, None)?;
    epoll::add(epoll, &agent.socket, epoll::EventData::new_u64(process.key), epoll::EventFlags::RDHUP)?;
    pager.socket.target.joined(pid, process.key);
    agent.set_serves();
    wire::send(&agent.socket, &Go { magic: MAGIC, errno: 0 }, &[])
}

/// The child of a fork, whose userfaultfd came with the fork event.
fn attach_known(
    pager: &Pager,
    caller: &Caller<'_>,
    process: &Arc<Process>,
    control: ControlPage,
    control_fd: &OwnedFd,
) -> io::Result<()> {
    let fds = [control_fd.as_fd(), fd_of(&process.memory.uffd)];
    wire::send(caller.socket, &Welcome { magic: MAGIC, uffd_source: UFFD_GIVEN }, &fds)?;
    let (ready, _) = receive_ready(caller.socket)?;
    attach(process, caller, control, ready)?;
    pager.membership.joined(pager, process);
    let own = process.memory.agent().expect("just attached").own_ranges();
    crate::growth::forget_own(pager, process, &own);
    // Now, while it waits for us: it may fork as soon as it runs, and its child must find the ident page registered.
    process.pressed.store(crate::growth::press(process), Ordering::Relaxed);
    Ok(())
}

/// A fresh program, or the child of a process that was not registered.
fn make_new(
    pager: &Arc<Pager>,
    caller: &Caller<'_>,
    control: ControlPage,
    control_fd: &OwnedFd,
) -> io::Result<Arc<Process>> {
    match &pager.socket.source {
        UffdSource::Device(device) => {
            let fds = [control_fd.as_fd(), device.as_fd()];
            wire::send(caller.socket, &Welcome { magic: MAGIC, uffd_source: UFFD_FROM_DEVICE }, &fds)?;
        }
        UffdSource::Syscall => {
            let fds = [control_fd.as_fd()];
            wire::send(caller.socket, &Welcome { magic: MAGIC, uffd_source: UFFD_FROM_SYSCALL }, &fds)?;
        }
    }
    let (ready, fds) = receive_ready(caller.socket)?;
    let fd = fds.into_iter().next().ok_or(io::ErrorKind::InvalidData)?;
    let uffd = Uffd::from_fd(fd);
    uffd.api(pager.socket.features)?;
    let process = events::new_process(pager, uffd, caller.pid);
    attach(&process, caller, control, ready)?;
    pager.add_process(process.clone())?;
    Ok(process)
}

fn receive_ready(socket: &OwnedFd) -> io::Result<(Ready, Vec<OwnedFd>)> {
    let (ready, fds) = wire::receive::<Ready>(socket)?;
    if ready.magic != MAGIC {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if ready.errno != 0 {
        return Err(io::Error::from_raw_os_error(ready.errno));
    }
    Ok((ready, fds))
}

/// Addresses from a target: in user space, in pages, and not wrapping.
pub fn check_ready(ready: &Ready) -> io::Result<()> {
    let pages = [ready.staging_addr, ready.doorbell_addr, ready.ident_addr, ready.control_addr];
    let aligned = pages.iter().all(|a| a % PAGE_SIZE as u64 == 0 && *a > 0);
    let bounded = own_ranges(ready).iter().all(|(_, end)| *end <= USER_END);
    if aligned && bounded { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

fn attach(process: &Arc<Process>, caller: &Caller<'_>, control: ControlPage, ready: Ready) -> io::Result<()> {
    check_ready(&ready)?;
    let agent = Agent::new(caller.socket.try_clone()?, control, ready, caller.pid, caller.own_pid)?;
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

