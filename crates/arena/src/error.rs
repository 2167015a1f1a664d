//! Why something cannot be done, each with what mends it.

use std::fmt;
use std::io;
use std::path::PathBuf;

#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The memspill command is not there.
    NoCommand,
    /// $MEMSPILL does not name a command.
    NotACommand(PathBuf, io::Error),
    /// The command is of another version than this library.
    Version { command: PathBuf, found: String },
    /// The supervisor cannot be started.
    Start(io::Error),
    /// The supervisor says that it cannot manage this process.
    Attach(String),
    /// There are no addresses for arenas.
    Addresses(io::Error),
    /// The block is larger than the addresses that are left for arenas.
    NoRoom { bytes: usize },
    /// The memory is not of this arena, or no longer.
    NotOurs,
    /// The kernel does not lock the memory.
    Pin(io::Error),
    /// A small block shares its pages with others.
    TooSmall,
    /// No such advice.
    Advice,
    /// The process is managed as a whole.
    Whole,
    /// A child shares its parent's budget.
    Child,
    /// The supervisor refuses, or does not answer.
    Refused(String),
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION");
        match self {
            Error::NoCommand => write!(
                out,
                "no memspill command beside the library or in PATH: install it, or name it in $MEMSPILL"
            ),
            Error::NotACommand(path, error) => {
                write!(out, "{}: {error}: name a memspill command in $MEMSPILL", path.display())
            }
            Error::Version { command, found } => write!(
                out,
                "{} is {found:?}, and this library is memspill {version}: install the same version of both, \
                 or name the right command in $MEMSPILL",
                command.display()
            ),
            Error::Start(error) => {
                write!(out, "the supervisor cannot be started: {error}: is the limit of processes reached?")
            }
            Error::Attach(reason) => write!(out, "{reason}"),
            Error::Addresses(error) => {
                write!(out, "no addresses for arenas: {error}: raise the limit of addresses (ulimit -v)")
            }
            Error::NoRoom { bytes } => write!(
                out,
                "no {bytes} bytes of addresses are left for arenas: free some, or raise the limit (ulimit -v)"
            ),
            Error::NotOurs => write!(out, "the memory is not of this arena: give what was allocated from it"),
            Error::Pin(error) => write!(
                out,
                "the memory cannot be locked: {error}: raise the limit of locked memory (ulimit -l)"
            ),
            Error::TooSmall => {
                write!(out, "a block of less than 8 KiB shares its pages with others: pin larger ones")
            }
            Error::Advice => write!(out, "no such advice: MEMSPILL_COLD or MEMSPILL_WILLNEED"),
            Error::Whole => write!(out, "this process is within a budget already: change its limit instead"),
            Error::Child => write!(out, "the budget is that of the process that forked: change it there"),
            Error::Refused(reason) => write!(out, "{reason}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::NotACommand(_, error)
            | Error::Start(error)
            | Error::Addresses(error)
            | Error::Pin(error) => Some(error),
            _ => None,
        }
    }
}

impl Error {
    /// The error as C's `errno` has it.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NoCommand => libc::ENOENT,
            Error::NotACommand(_, error)
            | Error::Start(error)
            | Error::Addresses(error)
            | Error::Pin(error) => error.raw_os_error().unwrap_or(libc::EIO),
            Error::Version { .. } => libc::EPROTO,
            Error::Attach(_) | Error::Child => libc::EPERM,
            Error::NoRoom { .. } => libc::ENOMEM,
            Error::NotOurs | Error::TooSmall | Error::Advice => libc::EINVAL,
            Error::Whole => libc::EBUSY,
            Error::Refused(_) => libc::EIO,
        }
    }
}
