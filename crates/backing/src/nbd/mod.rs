//! Swap on an NBD export: another machine's memory or disk, or any storage that an NBD server has behind it.
//!
//! ```text
//!   file/ (slots, room, sealed pages) ── runs ──▶ Remote ──▶ Peer ──▶ Line ──▶ Stream ──▶ socket
//!                                                   │         └ keeper: deadlines, reconnect (away.rs)
//!                                                   └ queues: an epoll each, over sockets that come and go
//! ```
//!
//! | file           | what is in it                                                            |
//! |----------------|--------------------------------------------------------------------------|
//! | `config.rs`    | what people say of an export                                              |
//! | `wire.rs`      | requests, and the parser of replies                                       |
//! | `handshake.rs` | what is said before the first request                                     |
//! | `host.rs`      | a server's name, and the addresses that it has now                       |
//! | `stream.rs`    | a socket; `tls.rs`: who is believed on it                                 |
//! | `exchange.rs`  | one request on a socket that nobody else uses yet                         |
//! | `line.rs`      | a connection and what is in flight on it                                  |
//! | `away.rs`      | the rules for a server that is away, as a function of time                |
//! | `peer.rs`      | a server: its lines, its thread                                           |
//! | `moved.rs`     | places where a write is in doubt                                          |
//! | `held.rs`      | which pages a server of two has                                           |
//! | `mark.rs`      | page 0: whose the export is                                               |
//! | `remote.rs`    | the queues, and what becomes of reads and writes                          |
//!
//! *The server is not trusted.* Pages are sealed before they leave (`file/seal.rs`): it learns nothing, and
//! what it gives back that is not the page is a checksum error. Its words are parsed by functions over bytes,
//! which give an error for whatever does not fit, and an error ends the connection.
//!
//! *A server that is lost* keeps nobody waiting for good. There is no FLUSH: swap means nothing after a power
//! cut.
//!
//! What it does not do: choose slots, seal pages, compress (`tier.rs` stands in front).

mod away;
mod config;
mod error;
mod exchange;
mod handshake;
mod held;
mod host;
mod line;
mod mark;
mod moved;
mod peer;
mod remote;
mod stream;
mod tls;
mod wire;

/// Parsers of what servers say, for `crates/fuzz`.
#[doc(hidden)]
pub mod untrusted {
    pub use super::handshake::{Export, go, greet, start_tls};
    pub use super::wire::{Bad, Event, Expected, Parser};
}

pub use config::{NbdConfig, NbdTarget, Server, Tls};
pub use error::NbdError;
pub(crate) use remote::Remote;
