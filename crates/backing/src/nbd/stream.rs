//! A socket to a server: opened by a deadline, and then never waited for.
//!
//! ```text
//!   connect ─▶ Timed (reads and writes wait, to the deadline): the handshake ─▶ Stream: send, recv
//! ```
//!
//! What it does not do: know what the bytes mean.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType};

use super::config::{NbdTarget, Server};
use super::error::NbdError;
use super::handshake;

/// Its name has been looked up.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Tcp(Vec<SocketAddr>),
    Unix(PathBuf),
}

impl Place {
    pub(super) fn of(server: &Server) -> Result<Place, NbdError> {
        match server {
            Server::Unix { path } => Ok(Place::Unix(path.clone())),
            Server::Tcp { host, port } => {
                let found = (host.as_str(), *port).to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
                if found.is_empty() {
                    Err(NbdError::NameUnknown(host.clone()))
                } else {
                    Ok(Place::Tcp(found))
                }
            }
        }
    }

    fn connect(&self, deadline: Instant) -> Result<OwnedFd, NbdError> {
        match self {
            Place::Unix(path) => connect_unix(path, deadline).map_err(unreachable),
            Place::Tcp(addresses) => {
                let mut failed = None;
                for address in addresses {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    match TcpStream::connect_timeout(address, left) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            stream.set_nonblocking(true)?;
                            net::sockopt::set_socket_keepalive(&stream, true).map_err(io::Error::from)?;
                            return Ok(stream.into());
                        }
                        Err(error) => failed = Some(error),
                    }
                }
                Err(unreachable(failed.unwrap_or_else(|| io::ErrorKind::TimedOut.into())))
            }
        }
    }
}

fn unreachable(error: io::Error) -> NbdError {
    NbdError::Unreachable(error)
}

/// A socket whose backlog is full is asked again: connect would wait for as long as that lasts.
fn connect_unix(path: &Path, deadline: Instant) -> io::Result<OwnedFd> {
    let address = net::SocketAddrUnix::new(path)?;
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::AGAIN) if Instant::now() < deadline => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A connection whose handshake is over.
pub(super) struct Stream {
    fd: Arc<OwnedFd>,
}

impl Stream {
    /// Connect and shake hands, by the deadline.
    pub(super) fn open(
        place: &Place,
        target: &NbdTarget,
        deadline: Instant,
    ) -> Result<(Stream, handshake::Export), NbdError> {
        if target.tls.is_some() {
            return Err(NbdError::Io(io::Error::other("TLS is not there yet")));
        }
        let mut timed = Timed { stream: Stream { fd: Arc::new(place.connect(deadline)?) }, deadline };
        handshake::greet(&mut timed)?;
        let export = handshake::go(&mut timed, &target.export)?;
        Ok((timed.stream, export))
    }

    /// For those who wait until it can be read or written: it stays what it is for as long as they have it.
    pub(super) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Send what fits now.
    pub(super) fn send(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        net::sendmsg(&self.fd, slices, &mut SendAncillaryBuffer::default(), flags)
    }

    /// Receive what is there. 0: the server has closed the connection.
    pub(super) fn recv(&mut self, bytes: &mut [u8]) -> Result<usize, Errno> {
        net::recv(&self.fd, bytes, RecvFlags::DONTWAIT).map(|(_, bytes)| bytes)
    }

    /// Nothing comes or goes any more, and who waits for it wakes.
    pub(super) fn hang_up(&self) {
        let _ = net::shutdown(&self.fd, net::Shutdown::Both);
    }

    /// The same stream, for exchanges that wait.
    pub(super) fn timed(self, deadline: Instant) -> Timed {
        Timed { stream: self, deadline }
    }
}

/// A stream whose reads and writes wait, to the deadline.
pub(super) struct Timed {
    pub(super) stream: Stream,
    deadline: Instant,
}

impl Timed {
    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::from_borrowed_fd(self.stream.fd.as_fd(), flags)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.recv(bytes) {
                Err(Errno::AGAIN) => self.wait(PollFlags::IN)?,
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.stream.send(&[IoSlice::new(bytes)]) {
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
