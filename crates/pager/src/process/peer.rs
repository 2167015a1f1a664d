//! Which process is at the other end of a socket: its process id, its user, and a pidfd, which stays with
//! that process and is never reused for another.
//!
//! The kernel gives a process id to another process once its owner has ended. An answer that was found by
//! process id (a parent, a thread, memory that was read) is therefore about the right process only if that
//! process still lives afterwards, which its [`Pidfd`] tells. So the order is always: open the pidfd, ask by
//! process id, then check that the process lives.
//!
//! A process in a pid namespace that we do not see has no process id here. It cannot belong to the tree: our
//! descendants are in our namespace or in one below it, and a process cannot leave the one that it is in.
#![allow(
    unsafe_code,
    reason = "socket options and an ioctl that rustix does not have: integers and one struct"
)]

use memspill_common::pidfd::{PIDFD_GET_INFO, PidfdInfo};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Uid;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `PIDFD_THREAD`: the pidfd stands for the thread, not for its process. Since Linux 6.9.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as libc::c_uint);
const SO_PEERPIDFD: libc::c_int = 77;

/// A process or thread, which may have ended since this was opened.
pub struct Pidfd {
    fd: OwnedFd,
}

impl Pidfd {
    /// The process that has the id `pid` now.
    pub fn of_process(pid: u32) -> io::Result<Pidfd> {
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
        Ok(Pidfd { fd: pidfd_open(process, PidfdFlags::empty())? })
    }

    /// The thread that has the id `tid` now. Before Linux 6.9: `process`, which that thread belongs to.
    pub fn of_thread(tid: u32, process: &Pidfd) -> io::Result<Pidfd> {
        let thread = i32::try_from(tid).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL);
        match thread.and_then(|thread| pidfd_open(thread, PIDFD_THREAD)) {
            Ok(fd) => Ok(Pidfd { fd }),
            Err(Errno::INVAL) => Ok(Pidfd { fd: process.fd.try_clone()? }),
            Err(error) => Err(error.into()),
        }
    }

    /// The process that connected this socket.
    fn of_peer(socket: &OwnedFd) -> io::Result<Pidfd> {
        let mut fd: libc::c_int = -1;
        socket_option(socket, SO_PEERPIDFD, &mut fd)?;
        // SAFETY: the kernel has just made the descriptor for us.
        Ok(Pidfd { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// The process id of the parent. Takes a tenth of the time that reading /proc takes. Since Linux 6.13;
    /// None before.
    fn parent(&self) -> Option<u32> {
        let mut info = PidfdInfo::default();
        // SAFETY: the struct has the size that the ioctl's number tells, and lives across the call.
        let ret = unsafe { libc::ioctl(self.fd.as_raw_fd(), PIDFD_GET_INFO as _, &mut info) };
        (ret == 0).then_some(info.ppid)
    }

    pub fn try_clone(&self) -> io::Result<Pidfd> {
        Ok(Pidfd { fd: self.fd.try_clone()? })
    }

    /// Ends the process.
    pub fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.fd, Signal::KILL)?)
    }

    /// Has it ended? If not, its id has named no other process or thread up to now.
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        // With a timeout of 0 poll(2) does not wait, so no signal can interrupt it.
        poll(&mut fds, Some(&Timespec::default())) != Ok(0)
    }

    /// Until it has ended.
    pub fn wait_for_end(&self) {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        while !matches!(poll(&mut fds, None), Ok(1..)) {}
    }
}

pub struct Peer {
    /// Its process id in our pid namespace.
    pub pid: u32,
    /// Its user when it connected.
    pub uid: Uid,
    pub pidfd: Pidfd,
}

impl Peer {
    /// The process that connected this socket. The error NotFound: it has no process id here, or has ended.
    pub fn of(socket: &OwnedFd) -> io::Result<Peer> {
        let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
        socket_option(socket, libc::SO_PEERCRED, &mut who)?;
        if who.pid <= 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        let pidfd = Pidfd::of_peer(socket)?;
        if pidfd.has_ended() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Peer { pid: who.pid as u32, uid: Uid::from_raw(who.uid), pidfd })
    }

    /// Is it a descendant of this process? `is_ours` says of a process that it is known to be one, and lives.
    pub fn is_below_us(&self, is_ours: impl Fn(u32) -> bool) -> bool {
        let me = std::process::id();
        let is_ours = |pid| pid == me || is_ours(pid);
        // A process on the way up may end meanwhile, and then its children get another parent: so try again.
        (0..3).any(|_| self.parent().is_some_and(|parent| has_our_ancestor(parent, &is_ours)))
            && !self.pidfd.has_ended()
    }

    fn parent(&self) -> Option<u32> {
        self.pidfd.parent().or_else(|| crate::proc::parent_of(self.pid))
    }
}

/// Is `pid` or one of its ancestors a process that `is_ours` knows?
fn has_our_ancestor(mut pid: u32, is_ours: &impl Fn(u32) -> bool) -> bool {
    /// More levels than any tree has. A process id that is reused meanwhile could lead round in a circle.
    const LEVELS_MAX: usize = 1 << 16;
    for _ in 0..LEVELS_MAX {
        if is_ours(pid) {
            return true;
        }
        match crate::proc::parent_of(pid) {
            Some(0) | None => return false,
            Some(parent) => pid = parent,
        }
    }
    false
}

/// Read an option of a socket into `value`.
fn socket_option<T>(socket: &OwnedFd, name: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value`, an integer or a struct of integers.
    let ret = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (value as *mut T).cast(), &mut len)
    };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use std::process::Command;

    fn peer() -> Peer {
        let (ours, _theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        Peer::of(&ours).unwrap()
    }

    #[test]
    fn a_peer_is_known_by_number_user_and_parents() {
        let me = peer();
        assert_eq!((me.pid, me.uid), (std::process::id(), rustix::process::geteuid()));
        assert!(!me.pidfd.has_ended());
        let parent = crate::proc::parent_of(me.pid).unwrap();
        assert_eq!(me.parent(), Some(parent));
        assert!(me.is_below_us(|pid| pid == parent));
        assert!(!me.is_below_us(|_| false), "no process is its own descendant");
        let grandparent = crate::proc::parent_of(parent).unwrap();
        assert!(grandparent == 0 || me.is_below_us(|pid| pid == grandparent));
    }

    #[test]
    fn a_thread_that_ended_is_told_from_one_that_lives() {
        let me = peer().pidfd;
        let (tid_of, tid) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tid_of.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = ended.recv();
        });
        let pidfd = Pidfd::of_thread(tid.recv().unwrap(), &me).unwrap();
        assert!(!pidfd.has_ended());
        drop(end);
        thread.join().unwrap();
        let begun = std::time::Instant::now();
        while !pidfd.has_ended() {
            assert!(begun.elapsed().as_secs() < 10, "the thread has ended");
        }
    }

    #[test]
    fn a_process_that_ended_has_no_parents() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = Pidfd::of_thread(child.id(), &peer().pidfd).unwrap();
        let child_peer = Peer { pid: child.id(), uid: rustix::process::geteuid(), pidfd };
        assert!(child_peer.is_below_us(|_| false));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!child_peer.is_below_us(|_| false) && child_peer.pidfd.has_ended());
    }
}
