//! A host's name, and the addresses that it has now: a server may come back at another one.
//!
//! ```text
//!   look_up ─▶ a thread asks the resolver ─▶ in time ─▶ these are the known addresses
//!                                         └▶ no answer, or none yet ─▶ those that were known; a late answer
//!                                                                      counts at the next look
//! ```
//!
//! *The resolver has a thread of its own*, one at a time: it may take a minute where the network is gone, and
//! meanwhile the keeper is to tell those that wait no more.
//!
//! What it does not do: connect.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use memspill_engine::sync::lock;

use super::error::NbdError;

type Resolver = Arc<dyn Fn(&str, u16) -> Vec<SocketAddr> + Send + Sync>;

/// See the module's header.
pub(super) struct Host {
    name: String,
    port: u16,
    resolver: Resolver,
    found: Mutex<Found>,
}

struct Found {
    known: Vec<SocketAddr>,
    /// The answer that is still to come.
    asked: Option<Receiver<Vec<SocketAddr>>>,
}

impl Host {
    /// Its name is looked up, however long that takes.
    pub(super) fn of(name: &str, port: u16) -> Result<Host, NbdError> {
        Host::by(
            Arc::new(|name, port| (name, port).to_socket_addrs().map_or(vec![], Vec::from_iter)),
            name,
            port,
        )
    }

    fn by(resolver: Resolver, name: &str, port: u16) -> Result<Host, NbdError> {
        let known = resolver(name, port);
        if known.is_empty() {
            return Err(NbdError::NameUnknown(name.to_owned()));
        }
        Ok(Host { name: name.to_owned(), port, resolver, found: Mutex::new(Found { known, asked: None }) })
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        lock(&self.found).known.clone()
    }

    /// Look its name up again, and wait for that no longer than until then.
    pub(super) fn look_up(&self, until: Instant) {
        if self.name.parse::<IpAddr>().is_ok() {
            return;
        }
        let mut found = lock(&self.found);
        let Some(asked) = found.asked.take().or_else(|| self.ask()) else { return };
        match asked.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(addresses) if !addresses.is_empty() => found.known = addresses,
            Ok(_) | Err(RecvTimeoutError::Disconnected) => {}
            Err(RecvTimeoutError::Timeout) => found.asked = Some(asked),
        }
    }

    /// None: there is no thread to spare.
    fn ask(&self) -> Option<Receiver<Vec<SocketAddr>>> {
        let (answer, asked) = channel();
        let (resolver, name, port) = (self.resolver.clone(), self.name.clone(), self.port);
        // Nobody may listen any more.
        let work = move || _ = answer.send(resolver(&name, port));
        std::thread::Builder::new().name("nbd-name".into()).spawn(work).ok().map(|_| asked)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    /// A name whose address ends with this number, which it takes so many ms to find.
    struct Name {
        number: AtomicU64,
        ms: AtomicU64,
    }

    fn host(name: &Arc<Name>) -> Host {
        let name = name.clone();
        let resolver = move |_: &str, port| {
            std::thread::sleep(Duration::from_millis(name.ms.load(Ordering::SeqCst)));
            match name.number.load(Ordering::SeqCst) as u8 {
                0 => vec![],
                number => vec![SocketAddr::from(([127, 0, 0, number], port))],
            }
        };
        Host::by(Arc::new(resolver), "store", 10809).unwrap()
    }

    #[test]
    fn a_name_is_found_where_it_is_now() {
        let name = Arc::new(Name { number: AtomicU64::new(1), ms: AtomicU64::new(0) });
        let host = host(&name);
        let soon = |ms| Instant::now() + Duration::from_millis(ms);
        let is_at = |number: u8| host.addresses() == [SocketAddr::from(([127, 0, 0, number], 10809))];
        assert!(is_at(1));
        name.number.store(2, Ordering::SeqCst);
        assert!(is_at(1), "it is not looked up by itself");
        host.look_up(soon(10_000));
        assert!(is_at(2));
        // No answer is no news.
        name.number.store(0, Ordering::SeqCst);
        host.look_up(soon(10_000));
        assert!(is_at(2));
        // Nor is it waited for longer than was said, and it counts when it has come.
        name.number.store(3, Ordering::SeqCst);
        name.ms.store(300, Ordering::SeqCst);
        let begun = Instant::now();
        host.look_up(soon(10));
        assert!(is_at(2) && begun.elapsed() < Duration::from_millis(250), "{:?}", begun.elapsed());
        host.look_up(soon(10_000));
        assert!(is_at(3));
    }

    #[test]
    fn a_name_that_nobody_has_is_an_error() {
        let nowhere = Host::by(Arc::new(|_, _| vec![]), "store", 1).map(drop);
        assert!(matches!(nowhere, Err(NbdError::NameUnknown(name)) if name == "store"));
        assert_eq!(Host::of("127.0.0.1", 7).unwrap().addresses(), [SocketAddr::from(([127, 0, 0, 1], 7))]);
    }
}
