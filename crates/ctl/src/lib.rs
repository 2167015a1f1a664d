//! The messages between `memspill ctl` and a run: how a run is found, the requests, the replies.
//!
//! ```text
//!   run: abstract socket  memspill-ctl-PID-RANDOM    in /proc/net/unix for all to see, in no file system
//!                              ▲
//!   ctl ─ connect ─────────────┘ the kernel tells each side who the other one is (SO_PEERCRED):
//!         the listener is process PID; the caller has the run's user id or is root
//!   ctl ─ one request ─▶ run       one message: words with a NUL between them
//!   ctl ◀─ progress ... ─ done | refused       a message each; the first byte says which
//!   ctl ─ closes its half, or ends ─▶ run: stops a request that takes long (swapoff, limit, detach)
//! ```
//!
//! Messages are packets (SOCK_SEQPACKET), so a message arrives whole or not at all. Neither side trusts what
//! it receives: whatever is not a valid message is refused.
//!
//! What it does not do: carry requests out (`crates/pager/src/ctl/operator.rs`); parse options and sizes (the
//! command line does).

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// The caller: a run that is asked for figures answers at once, unless it is stopped.
const ANSWER: Duration = Duration::from_secs(10);
/// The caller: a run that is stopped lets in only as many as its queue holds.
const CONNECT: Duration = Duration::from_secs(2);
/// The caller looks this often whether somebody has pressed ^C.
const STEP: Duration = Duration::from_millis(100);

/// The name goes on with the process id and random digits. Because of these nobody can take it in advance.
const PREFIX: &str = "memspill-ctl-";
/// A request holds at most one path (4096 bytes at most) and a few words.
pub const REQUEST_BYTES_MAX: usize = 8192;
/// The longest reply is the statistics, which take about a tenth of this.
const REPLY_BYTES_MAX: usize = 128 << 10;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Asks for three numbers of bytes: the budget, how much of it is used, and how much is swapped out.
    Sizes,
    Stats {
        json: bool,
    },
    /// Statistics as OpenMetrics text.
    Metrics,
    Swaps,
    Swapon {
        spec: String,
    },
    Swapoff {
        name: String,
    },
    Limit {
        bytes: u64,
    },
    /// The run lets its processes go, as they were before it attached to them.
    Detach,
    /// Ranges of addresses, each with its start and its end. No range: all memory of the process.
    Pageout {
        pid: u32,
        ranges: Vec<(u64, u64)>,
    },
    /// Ranges as for `Pageout`.
    Cold {
        pid: u32,
        ranges: Vec<(u64, u64)>,
    },
}

impl Request {
    pub fn encode(&self) -> Vec<u8> {
        let words: Vec<String> = match self {
            Request::Sizes => vec!["sizes".into()],
            Request::Stats { json: false } => vec!["stats".into()],
            Request::Stats { json: true } => vec!["stats".into(), "json".into()],
            Request::Metrics => vec!["metrics".into()],
            Request::Swaps => vec!["swaps".into()],
            Request::Swapon { spec } => vec!["swapon".into(), spec.clone()],
            Request::Swapoff { name } => vec!["swapoff".into(), name.clone()],
            Request::Detach => vec!["detach".into()],
            Request::Limit { bytes } => vec!["limit".into(), bytes.to_string()],
            Request::Pageout { pid, ranges } => advice("pageout", *pid, ranges),
            Request::Cold { pid, ranges } => advice("cold", *pid, ranges),
        };
        words.join("\0").into_bytes()
    }

    pub fn decode(message: &[u8]) -> Result<Request, String> {
        let text = std::str::from_utf8(message).map_err(|_| "the request is not text")?;
        let words: Vec<&str> = text.split('\0').collect();
        Ok(match words[..] {
            ["sizes"] => Request::Sizes,
            ["stats"] => Request::Stats { json: false },
            ["stats", "json"] => Request::Stats { json: true },
            ["metrics"] => Request::Metrics,
            ["swaps"] => Request::Swaps,
            ["detach"] => Request::Detach,
            ["swapon", spec] => Request::Swapon { spec: spec.into() },
            ["swapoff", name] => Request::Swapoff { name: name.into() },
            ["limit", bytes] => {
                Request::Limit { bytes: bytes.parse().map_err(|_| "the limit is no number of bytes")? }
            }
            ["pageout", pid, ref ranges @ ..] => {
                Request::Pageout { pid: parse_pid(pid)?, ranges: parse_ranges(ranges)? }
            }
            ["cold", pid, ref ranges @ ..] => {
                Request::Cold { pid: parse_pid(pid)?, ranges: parse_ranges(ranges)? }
            }
            _ => {
                return Err(
                    "the request is not known here: are memspill ctl and the run of one version?".into()
                );
            }
        })
    }
}

fn advice(word: &str, pid: u32, ranges: &[(u64, u64)]) -> Vec<String> {
    let ranges = ranges.iter().map(|(from, to)| format!("{from:x}-{to:x}"));
    [word.to_string(), pid.to_string()].into_iter().chain(ranges).collect()
}

fn parse_pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "the process id is no number".into())
}

fn parse_ranges(texts: &[&str]) -> Result<Vec<(u64, u64)>, String> {
    texts.iter().map(|text| parse_range(text)).collect()
}

/// An address range as in `/proc/PID/maps`.
pub fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let address = |text: &str| u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok();
    let range = text.split_once('-').and_then(|(from, to)| Some((address(from)?, address(to)?)));
    range.filter(|(from, to)| from < to && *to <= 1 << 57).ok_or_else(|| {
        format!("{text:?} is no range of addresses: give FROM-TO in hexadecimal, as in /proc/PID/maps")
    })
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The request is being carried out; more replies follow. Pages of a swapoff, bytes of a limit or
    /// a detach.
    Progress {
        done: u64,
        total: u64,
    },
    Done(String),
    Refused(String),
}

impl Reply {
    pub fn encode(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Reply::Progress { done, total } => (b'p', &format!("{done} {total}")),
            Reply::Done(text) => (b'd', text),
            Reply::Refused(text) => (b'r', text),
        };
        [&[kind], text.as_bytes()].concat()
    }

    pub fn decode(message: &[u8]) -> Result<Reply, String> {
        let garbled = || "the run gave an answer that cannot be read".to_string();
        let (kind, text) = message.split_first().ok_or_else(garbled)?;
        let text = std::str::from_utf8(text).map_err(|_| garbled())?.to_string();
        match kind {
            b'p' => {
                let (done, total) = text.split_once(' ').ok_or_else(garbled)?;
                let number = |text: &str| text.parse().map_err(|_| garbled());
                Ok(Reply::Progress { done: number(done)?, total: number(total)? })
            }
            b'd' => Ok(Reply::Done(text)),
            b'r' => Ok(Reply::Refused(text)),
            _ => Err(garbled()),
        }
    }
}

/// Make the socket on which this run listens for callers.
pub fn listen() -> io::Result<OwnedFd> {
    let mut random = [0u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let name = format!("{PREFIX}{}-{:016x}", std::process::id(), u64::from_ne_bytes(random));
    let socket = packet_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::net::listen(&socket, 16)?;
    Ok(socket)
}

fn packet_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Receive one message of at most `max` bytes; None where the other side has closed its half.
pub fn receive(socket: impl AsFd, max: usize, flags: RecvFlags) -> io::Result<Option<Vec<u8>>> {
    let mut buf = vec![0; max];
    loop {
        match rustix::net::recv(&socket, &mut buf[..], flags | RecvFlags::TRUNC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok((_, 0)) => return Ok(None),
            Ok((_, length)) if length > max => return Err(io::ErrorKind::InvalidData.into()),
            Ok((_, length)) => {
                buf.truncate(length);
                return Ok(Some(buf));
            }
        }
    }
}

pub fn send(socket: impl AsFd, message: &[u8]) -> io::Result<()> {
    rustix::net::send(socket, message, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// A run that listens for requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunSocket {
    pub pid: u32,
    name: String,
}

/// All runs in this network namespace that serve this user, in the order of their process ids.
pub fn runs() -> io::Result<Vec<RunSocket>> {
    let table = std::fs::read("/proc/net/unix")?;
    let mut runs: Vec<RunSocket> = String::from_utf8_lossy(&table).lines().filter_map(run_of_line).collect();
    runs.retain(|run| run.connect().is_ok());
    runs.sort_by_key(|run| run.pid);
    Ok(runs)
}

/// The run that a line of /proc/net/unix names: its last field is `@` and the socket's name. A connected
/// socket has a line with the same name, so only listening ones count.
pub fn run_of_line(line: &str) -> Option<RunSocket> {
    const LISTENS: &str = "00010000";
    let fields: Vec<&str> = line.split_whitespace().collect();
    let name = fields.last()?.strip_prefix('@')?;
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    (fields.get(3) == Some(&LISTENS)).then_some(())?;
    Some(RunSocket { pid: pid.parse().ok()?, name: name.to_string() })
}

impl RunSocket {
    /// Connect, and make sure that the listener is the process that the name says, and that it runs as our
    /// own user unless we are root.
    fn connect(&self) -> io::Result<OwnedFd> {
        let socket = packet_socket()?;
        // A run that is stopped (SIGSTOP) accepts nobody: once its queue is full, connecting would wait.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(CONNECT))?;
        rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(self.name.as_bytes())?)?;
        let peer = sockopt::socket_peercred(&socket)?;
        let me = rustix::process::geteuid();
        let is_that_process = peer.pid.as_raw_nonzero().get() as u32 == self.pid;
        if !is_that_process || !(peer.uid == me || me.is_root()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(socket)
    }

    /// Send a request and wait for the last reply; `progress` gets what is done, and of how much.
    /// `interrupted` is called now and then; once it returns true, the run is told to stop a request that
    /// takes long.
    pub fn ask(
        &self,
        request: &Request,
        mut progress: impl FnMut(u64, u64),
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<String, String> {
        let gone = |_| format!("the run of memspill with process id {} has ended", self.pid);
        let socket = self.connect().map_err(gone)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(STEP))
            .map_err(|e| e.to_string())?;
        send(&socket, &request.encode()).map_err(gone)?;
        let mut quiet = Duration::ZERO;
        loop {
            match receive(&socket, REPLY_BYTES_MAX, RecvFlags::empty()) {
                Ok(Some(message)) => match Reply::decode(&message)? {
                    Reply::Progress { done, total } => progress(done, total),
                    Reply::Done(text) => return Ok(text),
                    Reply::Refused(text) => return Err(text),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    quiet += STEP;
                    if quiet > ANSWER {
                        return Err(format!(
                            "the run with process id {} does not answer: is it stopped?",
                            self.pid
                        ));
                    }
                    if interrupted() {
                        rustix::net::shutdown(&socket, rustix::net::Shutdown::Write)
                            .map_err(|e| e.to_string())?;
                    }
                    continue;
                }
                Ok(None) | Err(_) => return Err(gone(io::Error::from(io::ErrorKind::UnexpectedEof))),
            }
            quiet = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_come_back() {
        let requests = [
            Request::Sizes,
            Request::Stats { json: false },
            Request::Stats { json: true },
            Request::Metrics,
            Request::Swaps,
            Request::Swapon { spec: "file:/a b,size=1G".into() },
            Request::Swapoff { name: "ram:".into() },
            Request::Limit { bytes: 1 << 40 },
            Request::Detach,
            Request::Pageout { pid: 7, ranges: Vec::new() },
            Request::Pageout { pid: 7, ranges: vec![(0x1000, 0x2000), (0, 1 << 57)] },
        ];
        for request in requests {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        let progress = Reply::Progress { done: 0, total: u64::MAX };
        for reply in [progress, Reply::Done(String::new()), Reply::Refused("no".into())] {
            assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
        }
    }

    #[test]
    fn garbage_is_refused() {
        let garbage: [&[u8]; 9] = [
            b"",
            b"\0",
            b"swaps\0",
            b"swapon",
            b"swapon\0a\0b",
            b"limit\0-1",
            b"pageout\x001\x002-1",
            b"\xff\xfe",
            &[0; 8000],
        ];
        for message in garbage {
            assert!(Request::decode(message).is_err(), "{message:?}");
        }
        for message in [&b""[..], b"x", b"d\xff", b"p", b"p1", b"p1 -2", b"p1 2 3"] {
            assert!(Reply::decode(message).is_err(), "{message:?}");
        }
    }

    #[test]
    fn runs_are_found_by_their_names() {
        let line = |flags: &str, name: &str| {
            format!("0000000000000000: 00000002 00000000 {flags} 0005 01 4711 {name}")
        };
        let found = run_of_line(&line("00010000", "@memspill-ctl-77-0123")).unwrap();
        assert_eq!((found.pid, &found.name[..]), (77, "memspill-ctl-77-0123"));
        for (flags, name) in [
            ("00000000", "@memspill-ctl-77-0123"),
            ("00010000", "/run/memspill-ctl-77-0123"),
            ("00010000", "@memspill-ctl-77"),
            ("00010000", "@memspill-ctl--1-0"),
            ("00010000", "@memspill-77-0123"),
            ("00010000", ""),
        ] {
            assert_eq!(run_of_line(&line(flags, name)), None, "{name}");
        }
        assert_eq!(run_of_line(""), None);
    }
}
