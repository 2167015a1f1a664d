//! A socket to a server: opened by a deadline, and then never waited for.
//!
//! ```text
//!   Dial::open ─▶ Timed (reads and writes wait, to the deadline): the handshakes ─▶ Stream: send, recv
//! ```
//!
//! *With TLS* what was received may be held here, decrypted, and what is to be sent, encrypted: neither makes
//! the socket readable or writable. `recv` gives all that is held before it says that there is no more.
//!
//! What it does not do: know what the bytes mean.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType};
use rustls::ClientConnection;

use super::config::{NbdTarget, Server};
use super::error::NbdError;
use super::handshake;
use super::host::Host;
use super::tls::{self, Terms};

enum Place {
    Tcp(Host),
    Unix(PathBuf),
}

/// How the server is reached, and by what name the export is asked for.
pub(super) struct Dial {
    place: Place,
    export: String,
    terms: Option<Terms>,
}

impl Dial {
    pub(super) fn of(target: &NbdTarget) -> Result<Dial, NbdError> {
        Ok(Dial {
            place: Place::of(&target.server)?,
            export: target.export.clone(),
            terms: target.tls.as_ref().map(Terms::of).transpose()?,
        })
    }

    /// The server may have moved. A half of the time to the deadline is for finding that out.
    pub(super) fn look_up(&self, deadline: Instant) {
        if let Place::Tcp(host) = &self.place {
            let now = Instant::now();
            host.look_up(now + deadline.saturating_duration_since(now) / 2);
        }
    }

    /// Connect and shake hands, by the deadline.
    pub(super) fn open(&self, deadline: Instant) -> Result<(Stream, handshake::Export), NbdError> {
        let fd = Arc::new(self.place.connect(deadline)?);
        let mut timed = Timed { stream: Stream { fd, tls: None, failed: None }, deadline };
        handshake::greet(&mut timed)?;
        if let Some(terms) = &self.terms {
            handshake::start_tls(&mut timed)?;
            timed.encrypt(terms)?;
        }
        let gone = handshake::go(&mut timed, &self.export);
        if gone.is_err() && timed.stream.failed.is_none() {
            // A server that does not accept our certificate says so only now, and has hung up.
            let _ = timed.stream.recv(&mut [0]);
        }
        match (gone, &timed.stream.failed) {
            (Err(_), Some(error)) => Err(tls::meaning(error)),
            // Or says nothing.
            (Err(NbdError::Closed), None) if self.terms.is_some() => Err(tls::no_reason()),
            (export, _) => Ok((timed.stream, export?)),
        }
    }
}

impl Place {
    fn of(server: &Server) -> Result<Place, NbdError> {
        match server {
            Server::Unix { path } => Ok(Place::Unix(path.clone())),
            Server::Tcp { host, port } => Ok(Place::Tcp(Host::of(host, *port)?)),
        }
    }

    fn connect(&self, deadline: Instant) -> Result<OwnedFd, NbdError> {
        match self {
            Place::Unix(path) => connect_unix(path, deadline).map_err(unreachable),
            Place::Tcp(host) => {
                let (mut failed, addresses) = (None, host.addresses());
                for (address, others) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
                    // One that does not answer leaves time for those that follow.
                    let left = deadline.saturating_duration_since(Instant::now()) / others;
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
    tls: Option<Box<ClientConnection>>,
    /// Why there is no TLS any more.
    failed: Option<rustls::Error>,
}

/// The socket under TLS, which never waits.
struct Bare<'a>(&'a OwnedFd);

impl Read for Bare<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(net::recv(self.0, bytes, RecvFlags::DONTWAIT).map(|(_, bytes)| bytes)?)
    }
}

impl Write for Bare<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(net::send(self.0, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::PROTO)
}

impl Stream {
    /// For those who wait until it can be read or written: it stays what it is for as long as they have it.
    pub(super) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Send what fits now.
    pub(super) fn send(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        if self.tls.is_none() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            return net::sendmsg(&self.fd, slices, &mut SendAncillaryBuffer::default(), flags);
        }
        // Not more than is on its way: what is taken is kept in memory.
        self.flush()?;
        let taken = match &mut self.tls {
            Some(tls) => tls.writer().write_vectored(slices).map_err(|error| errno_of(&error))?,
            None => 0,
        };
        match self.flush() {
            Ok(()) | Err(Errno::AGAIN) if taken > 0 => Ok(taken),
            Ok(()) => Err(Errno::AGAIN),
            Err(errno) => Err(errno),
        }
    }

    /// Send what TLS has encrypted and holds.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        while let Some(tls) = self.tls.as_mut().filter(|tls| tls.wants_write()) {
            match tls.write_tls(&mut Bare(&self.fd)).map_err(|error| errno_of(&error)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Does TLS hold something that is to be sent?
    pub(super) fn wants_to_send(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Receive what is there. 0: the server has closed the connection.
    pub(super) fn recv(&mut self, bytes: &mut [u8]) -> Result<usize, Errno> {
        let Some(tls) = &mut self.tls else {
            return net::recv(&self.fd, bytes, RecvFlags::DONTWAIT).map(|(_, bytes)| bytes);
        };
        loop {
            match tls.reader().read(bytes) {
                Ok(got) => return Ok(got),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // It ends without TLS's own goodbye.
                Err(_) => return Ok(0),
            }
            if tls.read_tls(&mut Bare(&self.fd)).map_err(|error| errno_of(&error))? == 0 {
                return Ok(0);
            }
            if let Err(error) = tls.process_new_packets() {
                self.failed = Some(error);
                return Err(Errno::PROTO);
            }
        }
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
    /// From now on all is encrypted.
    fn encrypt(&mut self, terms: &Terms) -> Result<(), NbdError> {
        let mut tls = Box::new(terms.begin()?);
        while tls.is_handshaking() {
            let done = match tls.wants_write() {
                true => tls.write_tls(&mut Bare(&self.stream.fd)).map(|_| 1),
                false => tls.read_tls(&mut Bare(&self.stream.fd)),
            };
            match done {
                Ok(0) => return Err(NbdError::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(if tls.wants_write() { PollFlags::OUT } else { PollFlags::IN })?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            tls.process_new_packets().map_err(|error| {
                // The server is told why.
                let _ = tls.write_tls(&mut Bare(&self.stream.fd));
                tls::meaning(&error)
            })?;
        }
        self.stream.tls = Some(tls);
        Ok(())
    }

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
        loop {
            match self.stream.flush() {
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                other => return Ok(other?),
            }
        }
    }
}
