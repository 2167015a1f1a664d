//! Where userfaultfds come from on this machine.

use crate::limits;
use memspill_uffd::userfaultfd::{self as uffd_abi, Uffd};
use std::os::fd::{AsFd, OwnedFd};

/// How targets get their userfaultfd.
pub enum UffdSource {
    /// /dev/userfaultfd, opened by us: the target makes its own on this descriptor and needs no privilege.
    Device(OwnedFd),
    /// userfaultfd(2), where the system allows it to everyone.
    Syscall,
}

/// How this machine gives userfaultfds with kernel faults served, and the features to ask for. An error says
/// why not.
pub fn find_source() -> Result<(UffdSource, u64), String> {
    let device = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd");
    let (source, probe) = match device {
        Ok(device) => {
            let probe = Uffd::of_self(Some(device.as_fd()));
            (UffdSource::Device(device.into()), probe)
        }
        Err(_) => (UffdSource::Syscall, Uffd::of_self(None)),
    };
    let explained = |what: &str, e| limits::explained(what, e).to_string();
    let probe = probe.map_err(|e| explained("no userfaultfd that serves the kernel's own faults", e))?;
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
        UffdSource::Device(device) => Some(device.as_fd()),
        UffdSource::Syscall => None,
    };
    let second = Uffd::of_self(device).map_err(|e| explained("no second userfaultfd", e))?;
    second.api(features).map_err(|e| {
        format!("userfaultfd refuses to follow forks, for which it wants CAP_SYS_PTRACE: {e}")
    })?;
    Ok((source, features))
}
