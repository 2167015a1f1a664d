//! What people say of an export that is to be a device.

use std::path::PathBuf;
use std::time::Duration;

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Server {
    Tcp { host: String, port: u16 },
    Unix { path: PathBuf },
}

/// How a connection is encrypted, and who may make it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tls {
    /// Who vouches for the server, a PEM file. None: whom the system trusts.
    pub cacert: Option<PathBuf>,
    /// Ours, PEM files, if the server asks for one.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// The name that the server's certificate must have.
    pub name: String,
}

/// An export of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdTarget {
    pub server: Server,
    pub export: String,
    pub tls: Option<Tls>,
}

/// What a device on an export is made of.
#[derive(Clone, Debug)]
pub struct NbdConfig {
    pub target: NbdTarget,
    /// The same pages on another server.
    pub mirror: Option<NbdTarget>,
    /// None: all of the export.
    pub size_bytes: Option<u64>,
    /// Connections; None: as many as are worth it. Only one where the server allows no more.
    pub connections: Option<u32>,
    /// A page waits so long for a server that is away.
    pub timeout: Duration,
    /// Pages are encrypted before they leave.
    pub encrypt: bool,
    /// The export may lose what it holds.
    pub overwrite: bool,
    /// One for each pager thread and each reclaim thread. At least 1.
    pub queues: u32,
}

impl NbdConfig {
    /// All of one export, encrypted, with one queue.
    pub fn new(target: NbdTarget) -> NbdConfig {
        NbdConfig {
            target,
            mirror: None,
            size_bytes: None,
            connections: None,
            timeout: Duration::from_secs(60),
            encrypt: true,
            overwrite: false,
            queues: 1,
        }
    }
}
