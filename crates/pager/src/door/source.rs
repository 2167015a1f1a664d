//! The mode of a run, and where userfaultfds come from on this machine.

use crate::limits;
use memspill_uffd::userfaultfd::{self as uffd_abi, Uffd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Who serves the faults of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The supervisor, by a userfaultfd that sees the kernel's own faults too; the kernel tells of forks.
    Kernel,
    /// Its agent: each thread brings its own pages, and before a system call those that the call uses.
    Agent(Holes),
}

/// In agent mode: what stands where a page is away, and makes a thread that touches it fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holes {
    /// Nothing, in memory that the agent has registered with a userfaultfd of its own, for faults of user
    /// mode only: SIGBUS.
    Userfaultfd,
    /// A guard marker: SIGSEGV.
    Guard,
}

impl Mode {
    /// As it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Kernel => "kernel",
            Mode::Agent(_) => "agent",
        }
    }
}

/// How targets get their userfaultfd.
pub enum Source {
    /// /dev/userfaultfd, opened by us: the target makes its own on this descriptor and needs no privilege.
    Device(OwnedFd),
    /// userfaultfd(2), where the system allows it to everyone.
    Syscall,
    /// The supervisor gets none: the agent's link takes its place.
    Link(Holes),
}

impl Source {
    pub fn mode(&self) -> Mode {
        match self {
            Source::Device(_) | Source::Syscall => Mode::Kernel,
            Source::Link(holes) => Mode::Agent(*holes),
        }
    }
}

/// What the holes of a process can be that asks to be paged by its agent, in a run of this mode. None: it is
/// in the run's own mode.
pub fn holes_if_asked(mode: Mode) -> Option<Holes> {
    match mode {
        Mode::Kernel => try_for_user_mode().is_ok().then_some(Holes::Userfaultfd),
        Mode::Agent(holes) => Some(holes),
    }
}

const NEEDED: u64 = uffd_abi::FEATURE_EVENT_REMAP
    | uffd_abi::FEATURE_EVENT_REMOVE
    | uffd_abi::FEATURE_EVENT_UNMAP
    | uffd_abi::FEATURE_THREAD_ID
    | uffd_abi::FEATURE_MOVE;

/// How this machine gives userfaultfds for this mode, and the features to ask for. An error says why not.
pub fn find_source(mode: Mode) -> Result<(Source, u64), String> {
    match mode {
        Mode::Kernel => find_full(),
        Mode::Agent(holes @ Holes::Guard) => Ok((Source::Link(holes), 0)),
        Mode::Agent(holes @ Holes::Userfaultfd) => try_for_user_mode().map(|()| (Source::Link(holes), 0)),
    }
}

fn explained(what: &str, error: io::Error) -> String {
    limits::explained(what, error).to_string()
}

fn check_features(probe: &Uffd) -> Result<(), String> {
    let have = probe.api(0).map_err(|e| format!("UFFDIO_API: {e}"))?;
    match have & NEEDED == NEEDED {
        true => Ok(()),
        false => Err("this kernel lacks UFFDIO_MOVE (Linux 6.8 has it)".into()),
    }
}

/// Can agents have userfaultfds of their own?
fn try_for_user_mode() -> Result<(), String> {
    let probe = Uffd::of_self_for_user_mode();
    check_features(&probe.map_err(|e| explained("no userfaultfd, not even for faults of user mode", e))?)
}

fn find_full() -> Result<(Source, u64), String> {
    let device = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd");
    let (source, probe) = match device {
        Ok(device) => {
            let probe = Uffd::of_self(Some(device.as_fd()));
            (Source::Device(device.into()), probe)
        }
        Err(_) => (Source::Syscall, Uffd::of_self(None)),
    };
    check_features(&probe.map_err(|e| explained("no userfaultfd that serves the kernel's own faults", e))?)?;
    // To be in the kernel and to be allowed are two things, and each descriptor is asked once.
    let features = NEEDED | uffd_abi::FEATURE_EVENT_FORK;
    let device = match &source {
        Source::Device(device) => Some(device.as_fd()),
        Source::Syscall | Source::Link(_) => None,
    };
    let second = Uffd::of_self(device).map_err(|e| explained("no second userfaultfd", e))?;
    match second.api(features) {
        Ok(_) => Ok((source, features)),
        Err(e) => Err(format!("userfaultfd refuses to follow forks, for which it wants CAP_SYS_PTRACE: {e}")),
    }
}
