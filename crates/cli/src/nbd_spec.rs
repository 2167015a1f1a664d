//! `--swap nbd://...`: the address of an export of an NBD server, and the options that only it has.
//!
//! ```text
//! nbd://HOST[:PORT]/EXPORT            TCP; PORT is 10809 where none is given
//! nbd+unix:///EXPORT?socket=PATH      a socket of this machine
//! nbds://, nbds+unix://               the same with TLS; tls-hostname=NAME after the ? is the name that the
//!                                     server's certificate must have, else HOST, for a socket localhost
//!       ,timeout=TIME ,connections=N ,cacert=FILE ,cert=FILE,key=FILE ,mirror=URI
//! ```
//!
//! The address follows the NBD project's rules for URIs: what is no plain character is
//! written as `%` and two digits. A comma ends it here, so a comma within it is `%2C`. Each address is shown
//! in one form, however it was written (`Display`).
//!
//! What it does not do: size, priority and the other options that all devices have (`spec.rs`).

use std::fmt;
use std::net::Ipv6Addr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use memspill_backing::nbd::{NbdTarget, Server, Tls};

/// The port that IANA has given to NBD.
const PORT_DEFAULT: u16 = 10809;
/// The protocol's limit on strings.
const EXPORT_BYTES_MAX: usize = 4096;
/// The kernel's, without the byte of zero at the end.
const SOCKET_BYTES_MAX: usize = 107;
const HOST_BYTES_MAX: usize = 253;
const TIMEOUT_SECONDS: RangeInclusive<u64> = 1..=24 * 3600;
const CONNECTIONS: RangeInclusive<u32> = 1..=16;

const FORMS: &str = "nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH";

/// Is this text meant as the address of an export?
pub fn is_address(text: &str) -> bool {
    let scheme = text.split(':').next().unwrap_or_default();
    ["nbd", "nbds"].contains(&scheme) || scheme.starts_with("nbd+") || scheme.starts_with("nbds+")
}

/// An export of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    pub server: Server,
    pub tls: bool,
    /// The name that the server's certificate must have, if not the host's.
    pub tls_hostname: Option<String>,
    /// Any text, also none.
    pub export: String,
}

/// What can be said of an export beside its address.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Words {
    pub timeout: Option<Duration>,
    pub connections: Option<u32>,
    pub cacert: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub mirror: Option<Address>,
}

/// Why a text is no export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NbdSpecError {
    Scheme(String),
    NoSlashes(String),
    User,
    NoHost,
    Host(String),
    HostOfSocket(String),
    Port(String),
    NoSocket,
    SocketOfHost,
    /// Too long, or with a byte of zero.
    Socket(String),
    Export,
    Parameter(String),
    Twice(String),
    HostnameWithoutTls,
    Escape(String),
    NotText(String),
    Character(char),
    Timeout(String),
    Connections(String),
    EmptyFile(&'static str),
    FileWithoutTls(&'static str),
    CertAlone,
    KeyAlone,
    Mirror(Box<NbdSpecError>),
    MirrorIsSame,
}

impl fmt::Display for NbdSpecError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        use NbdSpecError as E;
        match self {
            E::Scheme(scheme) => {
                write!(out, "{scheme:?} is no way to a server here: use nbd, nbd+unix, nbds or nbds+unix")
            }
            E::NoSlashes(scheme) => write!(out, "{scheme}: is followed by //: {FORMS}"),
            E::User => out.write_str("a user before @ means nothing here: TLS is by cert=FILE and key=FILE"),
            E::NoHost => out.write_str(
                "no host: nbd://HOST[:PORT]/EXPORT, or for a socket nbd+unix:///EXPORT?socket=PATH",
            ),
            E::Host(host) => {
                write!(
                    out,
                    "{host:?} is no host: use a name, an IPv4 address, or an IPv6 address in brackets, \
                     nbd://[::1]/EXPORT"
                )
            }
            E::HostOfSocket(host) => {
                write!(out, "a socket has no host, but {host:?} is one: nbd+unix:///EXPORT?socket=PATH")
            }
            E::Port(port) => {
                write!(out, "port {port:?}: use a number from 1 to 65535, or none for {PORT_DEFAULT}")
            }
            E::NoSocket => out.write_str("no socket: nbd+unix:///EXPORT?socket=PATH"),
            E::SocketOfHost => out.write_str(
                "socket= goes with nbd+unix, or with TLS nbds+unix: nbd+unix:///EXPORT?socket=PATH",
            ),
            E::Socket(path) => {
                write!(
                    out,
                    "socket={}: use the path of a socket, at most {SOCKET_BYTES_MAX} bytes, without a zero \
                     byte (%00)",
                    path.escape_debug()
                )
            }
            E::Export => {
                write!(
                    out,
                    "the export's name has a zero byte (%00) or more than {EXPORT_BYTES_MAX} bytes: use the \
                     server's name for it"
                )
            }
            E::Parameter(name) => {
                write!(out, "unknown parameter {name:?} after the ?: use socket=PATH or tls-hostname=NAME")
            }
            E::Twice(name) => write!(out, "{name}= is given twice"),
            E::HostnameWithoutTls => {
                out.write_str("tls-hostname= and no TLS: use nbds:// or nbds+unix:// for it")
            }
            E::Escape(part) => {
                write!(out, "{part:?}: a % is followed by two hexadecimal digits, and % itself is %25")
            }
            E::NotText(part) => write!(out, "{part:?} is no UTF-8 text when its % are decoded: use UTF-8"),
            E::Character(character) => {
                let mut bytes = [0; 4];
                let bytes = character.encode_utf8(&mut bytes).bytes();
                let coded: String = bytes.map(|byte| format!("%{byte:02X}")).collect();
                write!(out, "{character:?} cannot stand in an address: write {coded} for it")
            }
            E::Timeout(text) => {
                write!(
                    out,
                    "timeout={}: use a time such as 60s, 5m or 1h, at least 1s and at most 24h",
                    text.escape_debug()
                )
            }
            E::Connections(text) => {
                let (text, from, to) = (text.escape_debug(), CONNECTIONS.start(), CONNECTIONS.end());
                write!(out, "connections={text}: use a number from {from} to {to}")
            }
            E::EmptyFile(key) => write!(out, "{key}= needs a file: {key}=/path/to/file.pem"),
            E::FileWithoutTls(key) => write!(out, "{key}= and no TLS: use nbds:// or nbds+unix:// for it"),
            E::CertAlone => out.write_str("cert= needs its key: add key=FILE"),
            E::KeyAlone => out.write_str("key= needs its certificate: add cert=FILE"),
            E::Mirror(error) => write!(out, "mirror=: {error}"),
            E::MirrorIsSame => out.write_str("mirror= is the same export: name one of another server"),
        }
    }
}

impl std::error::Error for NbdSpecError {}

impl FromStr for Address {
    type Err = NbdSpecError;

    fn from_str(text: &str) -> Result<Address, NbdSpecError> {
        use NbdSpecError as E;
        if let Some(character) = text.chars().find(|c| c.is_control() || c.is_whitespace() || *c == '#') {
            return Err(E::Character(character));
        }
        let (scheme, rest) = text.split_once(':').unwrap_or((text, ""));
        let (tls, unix) = match scheme {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            other => return Err(E::Scheme(other.to_owned())),
        };
        let rest = rest.strip_prefix("//").ok_or_else(|| E::NoSlashes(scheme.to_owned()))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decoded(export)?;
        if export.contains('\0') || export.len() > EXPORT_BYTES_MAX {
            return Err(E::Export);
        }
        let Query { socket, tls_hostname } = Query::parse(query)?;
        if tls_hostname.is_some() && !tls {
            return Err(E::HostnameWithoutTls);
        }
        let server = match (unix, socket) {
            (true, _) if !authority.is_empty() => return Err(E::HostOfSocket(authority.to_owned())),
            (true, Some(path)) => Server::Unix { path },
            (true, None) => return Err(E::NoSocket),
            (false, Some(_)) => return Err(E::SocketOfHost),
            (false, None) => host_and_port(authority)?,
        };
        Ok(Address { server, tls, tls_hostname, export })
    }
}

struct Query {
    socket: Option<PathBuf>,
    tls_hostname: Option<String>,
}

impl Query {
    fn parse(text: &str) -> Result<Query, NbdSpecError> {
        use NbdSpecError as E;
        let mut query = Query { socket: None, tls_hostname: None };
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = decoded(value)?;
            let is_second = match name {
                "socket" => {
                    let fits = (1..=SOCKET_BYTES_MAX).contains(&value.len()) && !value.contains('\0');
                    let path = fits.then(|| PathBuf::from(&value)).ok_or(E::Socket(value))?;
                    query.socket.replace(path).is_some()
                }
                "tls-hostname" if is_host_name(&value) => query.tls_hostname.replace(value).is_some(),
                "tls-hostname" => return Err(E::Host(value)),
                other => return Err(E::Parameter(other.to_owned())),
            };
            if is_second {
                return Err(E::Twice(name.to_owned()));
            }
        }
        Ok(query)
    }
}

fn host_and_port(authority: &str) -> Result<Server, NbdSpecError> {
    use NbdSpecError as E;
    if authority.contains('@') {
        return Err(E::User);
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(|| E::Host(authority.to_owned()))?;
            let host = decoded(host)?;
            // A link-local address may name its interface: [fe80::1%25eth0].
            let (address, interface) = host.split_once('%').unwrap_or((&host, "x"));
            if address.parse::<Ipv6Addr>().is_err() || !is_host_name(interface) {
                return Err(E::Host(authority.to_owned()));
            }
            (host, rest)
        }
        None => {
            let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            (decoded(host)?, port)
        }
    };
    let port = match port.strip_prefix(':') {
        // Such as nbd://::1/x.
        Some(port) if port.contains(':') => return Err(E::Host(authority.to_owned())),
        Some(port) => {
            let number = port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse().ok()).flatten();
            number.filter(|port| *port > 0).ok_or_else(|| E::Port(port.to_owned()))?
        }
        None if port.is_empty() => PORT_DEFAULT,
        None => return Err(E::Host(authority.to_owned())),
    };
    if host.is_empty() {
        return Err(E::NoHost);
    }
    if !host.contains(':') && !is_host_name(&host) {
        return Err(E::Host(host));
    }
    Ok(Server::Tcp { host, port })
}

fn is_host_name(text: &str) -> bool {
    let is_fitting = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c) || !c.is_ascii();
    (1..=HOST_BYTES_MAX).contains(&text.len())
        && text.chars().all(|c| is_fitting(c) && !c.is_control() && !c.is_whitespace())
}

/// The text for which `%` and digits stand.
fn decoded(part: &str) -> Result<String, NbdSpecError> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut pieces = part.split('%');
    bytes.extend(pieces.next().unwrap_or_default().bytes());
    for piece in pieces {
        let digits = piece.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(|| NbdSpecError::Escape(part.to_owned()))?);
        bytes.extend(piece[2..].bytes());
    }
    String::from_utf8(bytes).map_err(|_| NbdSpecError::NotText(part.to_owned()))
}

/// A text with `%` and digits for what cannot stand for itself.
struct Encoded<'a>(&'a str);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~/:@".contains(&byte) {
                write!(out, "{}", char::from(byte))?;
            } else {
                write!(out, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "nbds" } else { "nbd" };
        let export = Encoded(&self.export);
        let mut before = '?';
        match &self.server {
            Server::Tcp { host, port } => {
                write!(out, "{scheme}://")?;
                if host.contains(':') {
                    write!(out, "[{}]", Encoded(host))?;
                } else {
                    write!(out, "{}", Encoded(host))?;
                }
                if *port != PORT_DEFAULT {
                    write!(out, ":{port}")?;
                }
                write!(out, "/{export}")?;
            }
            Server::Unix { path } => {
                let path = path.to_str().unwrap_or_default();
                write!(out, "{scheme}+unix:///{export}?socket={}", Encoded(path))?;
                before = '&';
            }
        }
        match &self.tls_hostname {
            Some(name) => write!(out, "{before}tls-hostname={}", Encoded(name)),
            None => Ok(()),
        }
    }
}

impl Address {
    /// What the client is told: the files for TLS are the same for an export and its mirror.
    pub fn target(&self, words: &Words) -> NbdTarget {
        let of_host = match &self.server {
            Server::Tcp { host, .. } => host.as_str(),
            Server::Unix { .. } => "localhost",
        };
        let tls = self.tls.then(|| Tls {
            cacert: words.cacert.clone(),
            cert: words.cert.clone(),
            key: words.key.clone(),
            name: self.tls_hostname.clone().unwrap_or_else(|| of_host.to_owned()),
        });
        NbdTarget { server: self.server.clone(), export: self.export.clone(), tls }
    }

    /// The same, where the path of its socket is below `here` if it was none from the root.
    pub fn seen_from(mut self, here: &Path) -> Address {
        if let Server::Unix { path } = &mut self.server {
            *path = here.join(&*path);
        }
        self
    }
}

impl Words {
    /// Takes a part between commas; false: it is none of these words.
    pub fn take(&mut self, part: &str) -> Result<bool, NbdSpecError> {
        use NbdSpecError as E;
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let is_second = match key {
            "timeout" => {
                let time = parse_time(value).ok_or_else(|| E::Timeout(value.to_owned()))?;
                self.timeout.replace(time).is_some()
            }
            "connections" => {
                let count = value.parse().ok().filter(|count| CONNECTIONS.contains(count));
                self.connections.replace(count.ok_or_else(|| E::Connections(value.to_owned()))?).is_some()
            }
            "cacert" => self.cacert.replace(file("cacert", value)?).is_some(),
            "cert" => self.cert.replace(file("cert", value)?).is_some(),
            "key" => self.key.replace(file("key", value)?).is_some(),
            "mirror" => {
                let address = value.parse().map_err(|error| E::Mirror(Box::new(error)))?;
                self.mirror.replace(address).is_some()
            }
            _ => return Ok(false),
        };
        if is_second { Err(E::Twice(key.to_owned())) } else { Ok(true) }
    }

    /// Do they go together, and with the address?
    pub fn check(&self, address: &Address) -> Result<(), NbdSpecError> {
        use NbdSpecError as E;
        if self.mirror.as_ref().is_some_and(|m| m.server == address.server && m.export == address.export) {
            return Err(E::MirrorIsSame);
        }
        if !address.tls && !self.mirror.as_ref().is_some_and(|mirror| mirror.tls) {
            let files = [("cacert", &self.cacert), ("cert", &self.cert), ("key", &self.key)];
            if let Some((key, _)) = files.iter().find(|(_, file)| file.is_some()) {
                return Err(E::FileWithoutTls(key));
            }
        }
        match (&self.cert, &self.key) {
            (Some(_), None) => Err(E::CertAlone),
            (None, Some(_)) => Err(E::KeyAlone),
            _ => Ok(()),
        }
    }
}

fn file(key: &'static str, value: &str) -> Result<PathBuf, NbdSpecError> {
    if value.is_empty() { Err(NbdSpecError::EmptyFile(key)) } else { Ok(PathBuf::from(value)) }
}

/// Seconds where no unit is given, as with timeout(1).
fn parse_time(text: &str) -> Option<Duration> {
    let number = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let seconds_each = match &text[number.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = is_number.then(|| number.parse::<u64>().ok()).flatten()?.checked_mul(seconds_each)?;
    TIMEOUT_SECONDS.contains(&seconds).then(|| Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> Address {
        let server = Server::Tcp { host: host.into(), port };
        Address { server, tls: false, tls_hostname: None, export: export.into() }
    }

    fn unix(path: &str, export: &str) -> Address {
        let server = Server::Unix { path: path.into() };
        Address { server, tls: false, tls_hostname: None, export: export.into() }
    }

    /// The NBD project's own examples, and more.
    #[test]
    fn addresses() {
        for (text, address) in [
            ("nbd://example.com/disk", tcp("example.com", 10809, "disk")),
            ("nbd://example.com:10809/disk", tcp("example.com", 10809, "disk")),
            ("nbd://example.com:1/disk", tcp("example.com", 1, "disk")),
            ("nbd+unix:///disk?socket=sock", unix("sock", "disk")),
            ("nbd+unix:///?socket=/run/a.sock", unix("/run/a.sock", "")),
            ("nbd+unix://?socket=/run/a.sock", unix("/run/a.sock", "")),
            ("nbd+unix:///a/b?socket=%2Frun%2ca%3D", unix("/run,a=", "a/b")),
            ("nbd://example.com/", tcp("example.com", 10809, "")),
            ("nbd://example.com", tcp("example.com", 10809, "")),
            ("nbd://example.com//disk", tcp("example.com", 10809, "/disk")),
            ("nbd://example.com/hello%20world", tcp("example.com", 10809, "hello world")),
            ("nbd://example.com/a%2Cb%3fc%25+", tcp("example.com", 10809, "a,b?c%+")),
            ("nbd://example.com/%C3%BC", tcp("example.com", 10809, "ü")),
            ("nbd://example.com/ü", tcp("example.com", 10809, "ü")),
            ("nbd://10.0.0.1:2/x?", tcp("10.0.0.1", 2, "x")),
            ("nbd://[::1]/x", tcp("::1", 10809, "x")),
            ("nbd://[::1]:7/x", tcp("::1", 7, "x")),
            ("nbd://[fe80::1%25eth0]:7", tcp("fe80::1%eth0", 7, "")),
        ] {
            assert_eq!(text.parse(), Ok(address.clone()), "{text}");
            assert_eq!(address.to_string().parse(), Ok(address), "{text}");
        }
    }

    #[test]
    fn an_address_has_one_form() {
        for (text, shown) in [
            ("nbd://host", "nbd://host/"),
            ("nbd://host:10809/a%62", "nbd://host/ab"),
            ("nbd+unix://?socket=%2Fs", "nbd+unix:///?socket=/s"),
            ("nbds://[::1]:10809/ü,", "nbds://[::1]/%C3%BC%2C"),
            ("nbds://h/x?tls-hostname=a.b", "nbds://h/x?tls-hostname=a.b"),
            ("nbds+unix:///?tls-hostname=a.b&socket=s", "nbds+unix:///?socket=s&tls-hostname=a.b"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_socket_is_found_from_elsewhere() {
        let seen = |text: &str| text.parse::<Address>().unwrap().seen_from(Path::new("/here")).to_string();
        assert_eq!(seen("nbd+unix:///x?socket=s"), "nbd+unix:///x?socket=/here/s");
        assert_eq!(seen("nbd+unix:///x?socket=/s"), "nbd+unix:///x?socket=/s");
        assert_eq!(seen("nbd://s/x"), "nbd://s/x");
    }

    #[test]
    fn wrong_addresses_say_what_to_write() {
        let long = "x".repeat(4097);
        for (text, hint) in [
            ("nbd:", "nbd://HOST"),
            ("nbd:/x", "nbd://HOST"),
            ("nbd", "nbd://HOST"),
            ("nbd+unix:/x", "socket=PATH"),
            ("nbd://", "nbd://HOST"),
            ("nbd:///x", "nbd://HOST"),
            ("nbd://:1/x", "nbd://HOST"),
            ("nbd+vsock://2/x", "nbd+unix"),
            ("nbd+tcp://h/x", "use nbd,"),
            ("NBD://h/x", "use nbd,"),
            ("nbds://u@h/x", "cert=FILE"),
            ("nbd://h:0/x", "1 to 65535"),
            ("nbd://h:65536/x", "1 to 65535"),
            ("nbd://h:+1/x", "1 to 65535"),
            ("nbd://h:/x", "1 to 65535"),
            ("nbd://::1/x", "in brackets"),
            ("nbd://[::1/x", "in brackets"),
            ("nbd://[::1]1/x", "in brackets"),
            ("nbd://[h]/x", "in brackets"),
            ("nbd://[::1%25]/x", "in brackets"),
            ("nbd://a!b/x", "in brackets"),
            ("nbd://a%00b/x", "in brackets"),
            ("nbd+unix:///x", "socket=PATH"),
            ("nbd+unix:///x?socket=", "path of a socket"),
            ("nbd+unix:///x?socket=%00a", "path of a socket"),
            (&format!("nbd+unix:///x?socket=/{}", &long[..107]), "107 bytes"),
            ("nbd+unix://h/x?socket=/s", "has no host"),
            ("nbd://h/x?socket=/s", "nbd+unix"),
            ("nbd+unix:///x?socket=/s&socket=/s", "twice"),
            ("nbd+unix:///x?sokcet=/s", "socket=PATH"),
            ("nbds://h/x?tls-type=psk", "tls-hostname=NAME"),
            ("nbds://h/x?tls-hostname=", "use a name"),
            ("nbd://h/x?tls-hostname=h", "nbds://"),
            ("nbd://h/%00", "server's name"),
            (&format!("nbd://h/{long}"), "4096 bytes"),
            ("nbd://h/%", "%25"),
            ("nbd://h/%2", "%25"),
            ("nbd://h/%+1", "%25"),
            ("nbd://h/%ü", "%25"),
            ("nbd://h/%ff", "UTF-8"),
            ("nbd://h/a b", "%20"),
            ("nbd://h/a#b", "%23"),
            ("nbd://h/a\nb", "%0A"),
        ] {
            let line = text.parse::<Address>().expect_err(text).to_string();
            assert!(line.contains(hint) && !line.chars().any(char::is_control), "{text}: {line}");
        }
    }

    fn words(text: &str, address: &str) -> Result<Words, NbdSpecError> {
        let mut words = Words::default();
        for part in text.split(',') {
            assert!(words.take(part)?, "{part}");
        }
        words.check(&address.parse()?)?;
        Ok(words)
    }

    #[test]
    fn words_of_an_export() {
        let tls = "connections=4,cacert=/ca.pem,cert=c,key=k";
        let expected = Words {
            connections: Some(4),
            cacert: Some("/ca.pem".into()),
            cert: Some("c".into()),
            key: Some("k".into()),
            ..Words::default()
        };
        assert_eq!(words(tls, "nbds://h/x"), Ok(expected));
        let mirrored = words("mirror=nbd+unix:///x?socket=/s", "nbd://h/x").unwrap();
        assert_eq!(mirrored.mirror, Some(unix("/s", "x")));
        for (text, seconds) in [("60", 60), ("60s", 60), ("5m", 300), ("24h", 86400), ("1s", 1)] {
            let found = words(&format!("timeout={text}"), "nbd://h/x").unwrap();
            assert_eq!(found.timeout, Some(Duration::from_secs(seconds)));
        }
        assert_eq!(Words::default().take("size=1G"), Ok(false));
    }

    #[test]
    fn wrong_words_say_what_to_write() {
        for (text, hint) in [
            ("timeout=", "such as 60s"),
            ("timeout=0", "at least 1s"),
            ("timeout=25h", "at most 24h"),
            ("timeout=1ms", "such as 60s"),
            ("timeout=-1s", "such as 60s"),
            ("timeout=18446744073709551615h", "at most 24h"),
            ("timeout=1s,timeout=1s", "twice"),
            ("connections=0", "1 to 16"),
            ("connections=17", "1 to 16"),
            ("connections", "1 to 16"),
            ("cacert=", "cacert=/path"),
            ("cacert=a", "use nbds://"),
            ("cert=a,key=b", "use nbds://"),
            ("mirror=", "use nbd,"),
            ("mirror=nbd://", "mirror=: no host"),
            ("mirror=nbd://h/x", "another server"),
            ("mirror=nbds://m/x,cert=a", "add key=FILE"),
            ("mirror=nbds://m/x,key=a", "add cert=FILE"),
        ] {
            let line = words(text, "nbd://h/x").expect_err(text).to_string();
            assert!(line.contains(hint), "{text}: {line}");
        }
    }
}
