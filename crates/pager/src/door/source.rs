//! Where userfaultfds come from on this machine.

use crate::limits;
use crate::run::Forks;
use memspill_uffd::userfaultfd::{self as uffd_abi, Uffd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// How targets get their userfaultfd.
pub enum UffdSource {
    /// /dev/userfaultfd, opened by us: the target makes its own on this descriptor and needs no privilege.
    Device(OwnedFd),
    /// userfaultfd(2), where the system allows it to everyone.
    Syscall,
    /// There are none: the agent pages its process by windows, and its link takes their place.
    Link,
    /// The same; the agent has a userfaultfd of its own, for faults of user mode only, which takes the
    /// place of guard markers.
    RegisteredLink,
}

/// Who serves the faults that the kernel itself has, inside system calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pager {
    /// The userfaultfd, like all others.
    Kernel,
    /// The agent, by SIGSEGV, and before each call: there is no userfaultfd.
    Signal,
    /// The same, in memory that is registered with a userfaultfd of the agent's own.
    Thread,
}

impl UffdSource {
    pub fn pager(&self) -> Pager {
        match self {
            UffdSource::Device(_) | UffdSource::Syscall => Pager::Kernel,
            UffdSource::Link => Pager::Signal,
            UffdSource::RegisteredLink => Pager::Thread,
        }
    }

    pub fn is_link(&self) -> bool {
        matches!(self, UffdSource::Link | UffdSource::RegisteredLink)
    }
}

const NEEDED: u64 = uffd_abi::FEATURE_EVENT_REMAP
    | uffd_abi::FEATURE_EVENT_REMOVE
    | uffd_abi::FEATURE_EVENT_UNMAP
    | uffd_abi::FEATURE_THREAD_ID
    | uffd_abi::FEATURE_MOVE;

/// How this machine gives userfaultfds for this pager, the features to ask for, and who tells of forks: the
/// kernel if it may, or as is `wanted`. An error says why not.
pub fn find_source(pager: Pager, wanted: Option<Forks>) -> Result<(UffdSource, u64, Forks), String> {
    match pager {
        Pager::Kernel => find_full(wanted),
        Pager::Signal => Ok((UffdSource::Link, 0, Forks::Agent)),
        Pager::Thread => try_for_user_mode().map(|()| (UffdSource::RegisteredLink, 0, Forks::Agent)),
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

fn find_full(wanted: Option<Forks>) -> Result<(UffdSource, u64, Forks), String> {
    let device = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd");
    let (source, probe) = match device {
        Ok(device) => {
            let probe = Uffd::of_self(Some(device.as_fd()));
            (UffdSource::Device(device.into()), probe)
        }
        Err(_) => (UffdSource::Syscall, Uffd::of_self(None)),
    };
    check_features(&probe.map_err(|e| explained("no userfaultfd that serves the kernel's own faults", e))?)?;
    if wanted == Some(Forks::Agent) {
        return Ok((source, NEEDED, Forks::Agent));
    }
    // To be in the kernel and to be allowed are two things, and each descriptor is asked once.
    let features = NEEDED | uffd_abi::FEATURE_EVENT_FORK;
    let device = match &source {
        UffdSource::Device(device) => Some(device.as_fd()),
        UffdSource::Syscall | UffdSource::Link | UffdSource::RegisteredLink => None,
    };
    let second = Uffd::of_self(device).map_err(|e| explained("no second userfaultfd", e))?;
    match second.api(features) {
        Ok(_) => Ok((source, features, Forks::Kernel)),
        Err(_) if wanted.is_none() => Ok((source, NEEDED, Forks::Agent)),
        Err(e) => Err(format!("userfaultfd refuses to follow forks, for which it wants CAP_SYS_PTRACE: {e}")),
    }
}
