//! Why an export cannot be used: one line for each case, with what mends it.

use std::fmt;
use std::io;

/// See the module's header. The text does not name the server: whoever prints it does.
#[derive(Debug)]
pub enum NbdError {
    /// Nobody answers at the address.
    Unreachable(io::Error),
    NameUnknown(String),
    NotNbd,
    /// The server speaks a protocol of before 2011.
    OldStyle,
    NoSuchExport(String),
    ReadOnly,
    TooSmall {
        wanted_bytes: u64,
        export_bytes: u64,
    },
    WantsTls,
    HasNoTls,
    Certificate(String),
    BlockSize {
        min_bytes: u64,
        max_bytes: u64,
    },
    /// Another run has written its mark there a moment ago.
    InUse {
        seconds: u64,
    },
    HoldsData(String),
    /// An export that was in use is back, and its first page is no more what the run has written.
    Emptied,
    Altered,
    /// The server says no, in its own words.
    Refused(String),
    NoAnswer,
    /// The server hangs up.
    Closed,
    Protocol(&'static str),
    Io(io::Error),
}

impl fmt::Display for NbdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdError::Unreachable(error) => {
                let (text, is_refused) = (words(error), error.kind() == io::ErrorKind::ConnectionRefused);
                let start =
                    if is_refused { "is the server running, and at this address?" } else { "is it right?" };
                write!(f, "cannot connect: {text}; {start}")
            }
            NbdError::NameUnknown(host) => {
                write!(f, "there is no host {host}: name it as it is known here, or by its address")
            }
            NbdError::NotNbd => write!(f, "no NBD server answers there: name the port of one"),
            NbdError::OldStyle => {
                write!(f, "the server speaks the old protocol only: start it with named exports (newstyle)")
            }
            NbdError::NoSuchExport(name) if name.is_empty() => {
                write!(f, "the server has no default export: name one after the host")
            }
            NbdError::NoSuchExport(name) => {
                write!(
                    f,
                    "the server has no export {name:?}: name one that it has (nbdinfo --list shows them)"
                )
            }
            NbdError::ReadOnly => write!(f, "the export is read-only: let the server allow writes"),
            NbdError::TooSmall { wanted_bytes, export_bytes } => {
                write!(
                    f,
                    "the export has {export_bytes} bytes, and {wanted_bytes} are needed: make it larger"
                )?;
                write!(f, ", or give a smaller size=")
            }
            NbdError::WantsTls => {
                write!(f, "the server wants TLS: write nbds:// (nbds+unix:// for a socket)")
            }
            NbdError::HasNoTls => {
                write!(
                    f,
                    "the server has no TLS: write nbd:// (nbd+unix:// for a socket), or give it a certificate"
                )
            }
            NbdError::Certificate(why) => write!(f, "{why}"),
            NbdError::BlockSize { min_bytes, max_bytes } => write!(
                f,
                "the export takes requests of {min_bytes} to {max_bytes} bytes, and pages have 4096: \
                 serve it with smaller blocks"
            ),
            NbdError::InUse { seconds } => write!(
                f,
                "in use by another memspill, seen {seconds} s ago: name another export, or wait a minute if \
                 that one was killed"
            ),
            NbdError::HoldsData(what) => write!(
                f,
                "holds {what}, which would be lost: name another export, or say that it may be lost with \
                 ,overwrite"
            ),
            NbdError::Emptied => {
                write!(f, "it holds zeros, as an export in memory does once its server was started again")
            }
            NbdError::Altered => write!(f, "others have written there, or it is another export"),
            NbdError::Refused(words) => write!(f, "the server refuses: {words}"),
            NbdError::NoAnswer => {
                write!(f, "the server does not answer: is it stopped, or at its limit of clients?")
            }
            NbdError::Closed => write!(f, "the server closes the connection: its own log may say why"),
            NbdError::Protocol(what) => {
                write!(f, "the server breaks the protocol: {what}; use another server")
            }
            NbdError::Io(error) => write!(f, "{}", words(error)),
        }
    }
}

impl std::error::Error for NbdError {}

impl NbdError {
    /// A server answers, so this is more than that it is away.
    pub(super) fn is_refusal(&self) -> bool {
        !matches!(
            self,
            NbdError::Unreachable(_) | NbdError::NameUnknown(_) | NbdError::NoAnswer | NbdError::Closed
        )
    }

    /// An export that was in use is back, and what it held is lost.
    pub(super) fn is_loss(&self) -> bool {
        matches!(
            self,
            NbdError::TooSmall { .. } | NbdError::InUse { .. } | NbdError::Emptied | NbdError::Altered
        )
    }
}

impl From<io::Error> for NbdError {
    fn from(error: io::Error) -> NbdError {
        match error.kind() {
            io::ErrorKind::TimedOut => NbdError::NoAnswer,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                NbdError::Closed
            }
            _ => NbdError::Io(error),
        }
    }
}

/// The text of an error without Rust's own words.
pub(super) fn words(error: &io::Error) -> String {
    let text = error.to_string();
    let plain = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = plain.chars();
    letters.next().map_or(String::new(), |first| first.to_lowercase().chain(letters).collect())
}
