//! The socket at which agents connect, and what a run gives them.

use crate::door::groups::{GroupRules, Membership};
use crate::door::source::{Holes, Mode, Source, holes_if_asked};
use crate::door::target::Target;
use crate::plant::Askers;
use crate::process::control::ControlPage;
use memspill_common::protocol::{BY_AGENT, Hello, NAME_LATE, NAME_LATE_THEN_FREE};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The kernel makes of it what it allows (net.core.somaxconn).
const BACKLOG: i32 = 4096;

pub struct Door {
    pub socket: OwnedFd,
    /// The same for processes in other network namespaces.
    pub from_elsewhere: Option<OwnedFd>,
    name: String,
    token: [u8; 32],
    pub source: Source,
    /// The holes of processes that ask for agent mode.
    holes_if_asked: Option<Holes>,
    /// Features asked of every userfaultfd.
    pub features: u64,
    /// Who is about to run a static program.
    pub askers: Askers,
    /// The command's own process, which must not run without an agent.
    pub target: Target,
    pub membership: Membership,
    /// Others may: that is said once.
    told_of_unmanaged: AtomicBool,
    /// A control page for whoever comes next, made while nobody waits.
    spare: Mutex<Option<(ControlPage, OwnedFd)>>,
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// A socket in the file system, which has a name only until this returns, and a descriptor of its inode,
/// which is a way to it. None: no directory for temporary files can be written.
fn listen_by_inode(random: &str) -> Option<(OwnedFd, OwnedFd)> {
    let path = std::env::temp_dir().join(format!(".memspill-{}-{random}", std::process::id()));
    let socket = new_socket().ok()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).ok()?).ok()?;
    // A process needs write permission to connect. Each that comes is checked, as at the other one.
    let opened = fs::set_permissions(&path, Permissions::from_mode(0o666)).map_err(|_| ()).and_then(|()| {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).map_err(|_| ())
    });
    let _ = fs::remove_file(&path);
    let inode = opened.ok()?;
    rustix::net::listen(&socket, BACKLOG).ok()?;
    Some((socket, inode))
}

fn new_control_page(by_agent: bool) -> io::Result<(ControlPage, OwnedFd)> {
    if by_agent { ControlPage::with_link() } else { ControlPage::new() }
}

impl Door {
    /// Agent mode: agents make the forks, and links take the place of userfaultfds.
    pub fn is_by_agents(&self) -> bool {
        self.source.mode() != Mode::Kernel
    }

    /// The holes of a process that its agent is to page. None: it is in kernel mode. A run in kernel mode has
    /// both.
    pub fn holes_for(&self, hello: &Hello) -> Option<Holes> {
        self.holes_if_asked.filter(|_| self.is_by_agents() || hello.mode == BY_AGENT)
    }

    /// May a process of the run have its agent make its forks?
    pub fn may_have_agents_fork(&self) -> bool {
        self.holes_if_asked.is_some()
    }

    /// `files`: files of shared memory are managed.
    pub fn open(source: Source, features: u64, rules: &GroupRules, files: bool) -> io::Result<Door> {
        let mut random = [0u8; 24];
        let mut filled = 0;
        while filled < random.len() {
            filled += rustix::rand::getrandom(&mut random[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        let hex: Vec<u8> = random.iter().flat_map(|b| format!("{b:02x}").into_bytes()).collect();
        // Abstract sockets are known in one network namespace: by the name an agent knows that it is in
        // another one. Then it comes by the inode of a socket's file, which has no name any more, through our
        // descriptors (0: there is none).
        let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino());
        // And whether it may join late.
        let late = match source.mode() {
            // Its group is known by its parent, which may end before.
            _ if !rules.groups.is_empty() => "",
            // Its calls on such files are counted by a process that has joined.
            Mode::Kernel if files => "",
            Mode::Kernel => NAME_LATE_THEN_FREE,
            Mode::Agent(_) => NAME_LATE,
        };
        let random = String::from_utf8_lossy(&hex[..16]);
        let elsewhere = listen_by_inode(&random);
        let inode = elsewhere.as_ref().map_or(0, |(_, inode)| inode.as_raw_fd());
        let name = format!("memspill-{}-{network}-{inode}-{random}{late}", std::process::id());
        let mut token = [0u8; 32];
        token.copy_from_slice(&hex[16..]);
        let socket = new_socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        let (target, membership) = (Target::new(), Membership::new(rules));
        let (told_of_unmanaged, spare) = (AtomicBool::new(false), Mutex::default());
        let (askers, holes_if_asked) = (Askers::default(), holes_if_asked(source.mode()));
        Ok(Door {
            socket,
            from_elsewhere: elsewhere.map(|(socket, inode)| {
                // For as long as this process.
                let _ = inode.into_raw_fd();
                socket
            }),
            name,
            token,
            source,
            holes_if_asked,
            features,
            askers,
            target,
            membership,
            told_of_unmanaged,
            spare,
        })
    }

    /// The sockets at which agents knock.
    pub fn sockets(&self) -> impl Iterator<Item = &OwnedFd> {
        [&self.socket].into_iter().chain(&self.from_elsewhere)
    }

    /// Is this what the environment of the tree holds?
    pub fn knows(&self, token: &[u8; 32]) -> bool {
        *token == self.token
    }

    /// True for the first one who asks.
    pub fn is_to_be_told(&self) -> bool {
        !self.told_of_unmanaged.swap(true, Ordering::Relaxed)
    }

    pub fn control_page(&self, by_agent: bool) -> io::Result<(ControlPage, OwnedFd)> {
        let spare = || self.spare.lock().expect("spare").take();
        match (by_agent == self.is_by_agents()).then(spare).flatten() {
            Some(made) => Ok(made),
            None => new_control_page(by_agent),
        }
    }

    pub fn make_spare(&self) {
        let mut spare = self.spare.lock().expect("spare");
        if spare.is_none() {
            // No memory for it now: whoever comes next is told so.
            *spare = new_control_page(self.is_by_agents()).ok();
        }
    }

    /// The value of the environment variable by which agents find us.
    pub fn address(&self) -> String {
        format!("{}:{}", self.name, String::from_utf8_lossy(&self.token))
    }
}
