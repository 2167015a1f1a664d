//! The door: agents connect here, from each program that the tree starts and from each child that it forks.
//!
//! The socket is abstract, so that nothing is left in any file system, and anybody may connect to it. Who may
//! come in: a process below us in the tree of parents that knows the token (it is in the environment of the
//! tree). The steps of an exchange are in exchange.rs; it is drawn in the agent's `protocol.rs`.
//!
//! ```text
//!   connect ─ who is it? ─ a stranger: closed, nothing is awaited of him
//!                └─ Knocked ─ Hello: the token? below us? ─ Welcomed ─ Ready: attach ─ Go
//! ```
//!
//! Nobody waits for anybody else: each exchange goes on when its next message is there. A process has one
//! exchange at a time, an exchange has its time as a whole, and when all places are taken, the next one has
//! the place of whoever has been silent for longest. Whatever goes wrong in one exchange, or at accept, the
//! door stays. What it does not do: protect a tree from itself. A process of the tree can start a thousand
//! that know the token.
//!
//! Tried: to look for the next message for 100 µs before sleeping, here or on both sides, so that no CPU goes
//! idle. 200 processes then took a tenth (here) or a fifth (both) longer on two CPUs, and a half on a busy
//! machine.

use crate::door::callers::Callers;
use crate::door::exchange::{self, Caller, Stage};
use crate::door::socket::Door;
use crate::limits;
use crate::process::peer::Peer;
use crate::process::{standstill, wire};
use crate::run::Run;
use crate::times::{DOOR_SHUT, EXCHANGE_ENDS};
use memspill_agent::protocol::Ready;
use rustix::event::epoll;
use rustix::net::SocketFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Exchanges at a time.
const CALLERS_MAX: u64 = 1024;

/// The keys in the door's epoll that are not processes: the listening socket, and from here on those in the
/// exchange.
const KEY_LISTEN: u64 = u64::MAX;
const KEY_CALLERS: u64 = 1 << 63;

/// The door thread: let agents in, and notice when their processes go.
pub fn keep_door(run: &Run, door: &Door) {
    if let Err(e) = Porter::new(run, door).and_then(Porter::serve) {
        run.fail(format!("cannot accept agents: {e}"));
    }
}

/// The door thread's own.
struct Porter<'a> {
    run: &'a Run,
    door: &'a Door,
    epoll: OwnedFd,
    callers: Callers<Caller>,
    /// Nobody is let in before then.
    shut_until: Option<Instant>,
    /// Who came when there was a descriptor for the socket and none for more.
    put_off: Option<OwnedFd>,
    told_of_shutting: bool,
}

impl<'a> Porter<'a> {
    fn new(run: &'a Run, door: &'a Door) -> io::Result<Porter<'a>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let key = epoll::EventData::new_u64(KEY_LISTEN);
        epoll::add(&epoll, &door.socket, key, epoll::EventFlags::IN)?;
        // Each takes a descriptor, and so do a process's userfaultfd, pagemap and others once it is in.
        let descriptors =
            rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let callers = Callers::new((descriptors / 8).clamp(8, CALLERS_MAX) as usize);
        Ok(Porter { run, door, epoll, callers, shut_until: None, put_off: None, told_of_shutting: false })
    }

    fn serve(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        while !self.run.is_stopping() {
            events.clear();
            let (begun, wait) = (Instant::now(), self.next_look());
            let timeout = wait.map(|wait| rustix::event::Timespec {
                tv_sec: wait.as_secs() as i64,
                tv_nsec: i64::from(wait.subsec_nanos()),
            });
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            // While we were stopped or frozen, perhaps all were.
            self.callers.extend(begun.elapsed().saturating_sub(wait.unwrap_or(Duration::MAX)));
            for event in &events {
                match event.data.u64() {
                    KEY_LISTEN => self.accept_some(),
                    key if key >= KEY_CALLERS => self.go_on(key),
                    key => exchange::hung_up(self.run, self.door, &self.epoll, key),
                }
            }
            self.end_what_is_overdue()?;
            self.door.make_spare();
        }
        Ok(())
    }

    fn next_look(&self) -> Option<Duration> {
        let next = self.callers.next_deadline().into_iter().chain(self.shut_until).min()?;
        // Rounded up, or it would look again and again just before.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    /// Not all at once: others would wait for as long as strangers come.
    fn accept_some(&mut self) {
        for _ in 0..64 {
            if self.shut_until.is_some() {
                return;
            }
            if !self.callers.has_room() {
                return self.shut("too many processes of the tree join at once");
            }
            let put_off = self.put_off.take().map(Ok);
            match put_off.unwrap_or_else(|| rustix::net::accept_with(&self.door.socket, SocketFlags::CLOEXEC))
            {
                Ok(socket) => self.admit(socket),
                Err(rustix::io::Errno::AGAIN) => return,
                // That one has gone away.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                // No descriptor, no memory: others give some back. Whatever else it is, it may pass.
                Err(e) => return self.shut(&with_remedy(&e.into())),
            }
        }
    }

    /// Who waits outside loses nothing by it. Without a pause the listening socket would be reported for
    /// ever.
    fn shut(&mut self, why: &str) {
        self.shut_until = Some(Instant::now() + DOOR_SHUT);
        let _ = self.listen_for(epoll::EventFlags::empty());
        if !std::mem::replace(&mut self.told_of_shutting, true) {
            eprintln!("memspill: new processes wait: {why}");
        }
    }

    fn listen_for(&self, flags: epoll::EventFlags) -> rustix::io::Result<()> {
        epoll::modify(&self.epoll, &self.door.socket, epoll::EventData::new_u64(KEY_LISTEN), flags)
    }

    /// A stranger is sent away before anything is awaited of him.
    fn admit(&mut self, socket: OwnedFd) {
        let peer = match Peer::of(&socket) {
            Ok(peer) => peer,
            Err(e) if is_scarcity(&e) => {
                self.put_off = Some(socket);
                return self.shut(&with_remedy(&e));
            }
            // He is gone, or lives where we see nobody.
            Err(_) => return,
        };
        if !exchange::may_knock(self.run, &peer) {
            return;
        }
        let pid = peer.pid;
        let caller = Caller { peer, socket: Arc::new(socket), stage: Stage::Knocked };
        let socket = caller.socket.clone();
        let key = KEY_CALLERS + self.callers.admit(pid, Instant::now() + EXCHANGE_ENDS, caller);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        match epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(key), flags) {
            Ok(()) => self.go_on(key),
            Err(e) => {
                self.callers.take(key - KEY_CALLERS);
                exchange::refused(self.run, self.door, pid, &e.into());
            }
        }
    }

    /// The next step of an exchange, if what it needs is there.
    fn go_on(&mut self, key: u64) {
        let number = key - KEY_CALLERS;
        let Some(entry) = self.callers.get(number) else { return };
        let (run, door, pid, caller) = (self.run, self.door, entry.pid, &mut entry.caller);
        let step = match &caller.stage {
            Stage::Knocked => exchange::greet(run, door, caller),
            Stage::Welcomed { .. } => {
                wire::receive_now_with_fd::<Ready>(&*caller.socket).map(|(ready, fd)| {
                    let caller = self.callers.take(number).expect("looked up above").caller;
                    exchange::settle(run, door, &self.epoll, caller, ready, fd);
                })
            }
        };
        match step {
            Ok(()) => {
                // Whoever has been greeted knows the token.
                self.callers.get(number).into_iter().for_each(|entry| entry.is_known = true);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => {
                let Caller { socket, stage, .. } = self.callers.take(number).expect("looked up above").caller;
                if matches!(stage, Stage::Welcomed { .. }) {
                    exchange::send_away(door, &socket, pid, &e);
                }
                exchange::refused(run, door, pid, &e);
            }
        }
    }

    fn end_what_is_overdue(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if self.shut_until.is_some_and(|until| until <= now) {
            self.shut_until = None;
            self.listen_for(epoll::EventFlags::IN)?;
            self.accept_some();
        }
        for number in self.callers.overdue(now) {
            let entry = self.callers.get(number).expect("overdue, so there");
            if standstill::of(entry.pid).is_some() {
                entry.until = now + EXCHANGE_ENDS;
                continue;
            }
            let entry = self.callers.take(number).expect("looked up above");
            if entry.is_known || exchange::is_below_us(self.run, &entry.caller.peer) {
                exchange::refused(self.run, self.door, entry.pid, &io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }
}

fn with_remedy(error: &io::Error) -> String {
    limits::remedy(error).map_or(error.to_string(), |mends| format!("{error}; {mends}"))
}

/// Others give some back.
fn is_scarcity(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}
