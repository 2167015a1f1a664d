//! Who is at the other end of a socket: its process by number, by user, and by a descriptor that no other process
//! takes.
//!
//! A number names whatever has it just now. What was found out by a number (a parent, a thread, memory that was read)
//! is of the process that was meant only if that one still lives afterwards: [`Life`] tells. So the order is always:
//! the descriptor, the question by number, the look whether it lives.
//!
//! A process of a pid namespace that we do not see has no number here. It is none of ours: a namespace is entered from
//! above, never left.
#![allow(unsafe_code, reason = "socket options and pidfds that rustix does not have: integers and one struct")]

use rustix::fs::Uid;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `PIDFD_THREAD`: of the thread, not of its process. Linux 6.9.
const PIDFD_THREAD: libc::c_uint = libc::O_EXCL as libc::c_uint;
const SO_PEERPIDFD: libc::c_int = 77;

#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    pid: u32,
    tgid: u32,
    ppid: u32,
    others: [u32; 9],
}
/// `_IOWR(0xFF, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: u64 = 3 << 30 | (size_of::<PidfdInfo>() as u64) << 16 | 0xFF << 8 | 11;
const _: () = assert!(PIDFD_GET_INFO == 0xC040_FF0B);

/// A process or thread that was there, and may have ended since.
pub struct Life {
    pidfd: OwnedFd,
}

impl Life {
    /// Of whoever is thread `tid` now. Before Linux 6.9: of `process`, which has that thread.
    pub fn of_thread(tid: u32, process: &Life) -> io::Result<Life> {
        // SAFETY: a call with integers, which returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, tid as libc::pid_t, PIDFD_THREAD) };
        if fd >= 0 {
            // SAFETY: the descriptor is new and ours.
            return Ok(Life { pidfd: unsafe { OwnedFd::from_raw_fd(fd as i32) } });
        }
        match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::EINVAL) => Ok(Life { pidfd: process.pidfd.try_clone()? }),
            e => Err(e),
        }
    }

    /// Of the process that connected this socket.
    fn of_peer(socket: &OwnedFd) -> io::Result<Life> {
        let mut fd: libc::c_int = -1;
        option(socket, SO_PEERPIDFD, &mut fd)?;
        // SAFETY: the kernel has just made the descriptor for us.
        Ok(Life { pidfd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// A tenth of the time that /proc takes. Linux 6.13; None before.
    fn parent(&self) -> Option<u32> {
        let mut info = PidfdInfo::default();
        // SAFETY: the struct has the size that the number tells, and lives across the call.
        let ret = unsafe { libc::ioctl(self.pidfd.as_raw_fd(), PIDFD_GET_INFO as _, &mut info) };
        (ret == 0).then_some(info.ppid)
    }

    /// If not, the number by which it was known has named nobody else up to now.
    pub fn has_ended(&self) -> bool {
        let mut entry = libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry that lives across the call, which does not wait and so is not interrupted.
        unsafe { libc::poll(&mut entry, 1, 0) != 0 }
    }
}

pub struct Peer {
    /// As we see it.
    pub pid: u32,
    /// When it connected.
    pub uid: Uid,
    pub life: Life,
}

impl Peer {
    /// NotFound: it has no number here, or has ended.
    pub fn of(socket: &OwnedFd) -> io::Result<Peer> {
        let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
        option(socket, libc::SO_PEERCRED, &mut who)?;
        if who.pid <= 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        let life = Life::of_peer(socket)?;
        if life.has_ended() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Peer { pid: who.pid as u32, uid: Uid::from_raw(who.uid), life })
    }

    /// Is it below us in the tree of parents? `is_ours`: this one is for certain, and lives.
    pub fn is_below_us(&self, is_ours: impl Fn(u32) -> bool) -> bool {
        let me = std::process::id();
        let is_ours = |pid| pid == me || is_ours(pid);
        // A process in between may end while we look; then its children have another parent.
        (0..3).any(|_| self.parent().is_some_and(|parent| climbs_to(parent, &is_ours))) && !self.life.has_ended()
    }

    fn parent(&self) -> Option<u32> {
        self.life.parent().or_else(|| crate::proc::parent_of(self.pid))
    }
}

fn climbs_to(mut pid: u32, is_ours: &impl Fn(u32) -> bool) -> bool {
    /// More than any tree has: numbers that are taken anew meanwhile must not lead round for ever.
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

fn option<T>(socket: &OwnedFd, name: libc::c_int, value: &mut T) -> io::Result<()> {
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
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        Peer::of(&ours).unwrap()
    }

    #[test]
    fn a_peer_is_known_by_number_user_and_parents() {
        let me = peer();
        assert_eq!((me.pid, me.uid), (std::process::id(), rustix::process::geteuid()));
        assert!(!me.life.has_ended());
        let parent = crate::proc::parent_of(me.pid).unwrap();
        assert_eq!(me.parent(), Some(parent));
        assert!(me.is_below_us(|pid| pid == parent));
        assert!(!me.is_below_us(|_| false), "nobody is below himself");
        let grandparent = crate::proc::parent_of(parent).unwrap();
        assert!(grandparent == 0 || me.is_below_us(|pid| pid == grandparent));
    }

    #[test]
    fn a_thread_that_ended_is_told_from_one_that_lives() {
        let me = peer().life;
        let (tid_of, tid) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tid_of.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = ended.recv();
        });
        let life = Life::of_thread(tid.recv().unwrap(), &me).unwrap();
        assert!(!life.has_ended());
        drop(end);
        thread.join().unwrap();
        let begun = std::time::Instant::now();
        while !life.has_ended() {
            assert!(begun.elapsed().as_secs() < 10, "the thread has ended");
        }
    }

    #[test]
    fn a_process_that_ended_has_no_parents() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let life = Life::of_thread(child.id(), &peer().life).unwrap();
        let child_peer = Peer { pid: child.id(), uid: rustix::process::geteuid(), life };
        assert!(child_peer.is_below_us(|_| false));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!child_peer.is_below_us(|_| false) && child_peer.life.has_ended());
    }
}
