//! The door: agents connect here, from programs that the tree starts and from children that it forks; not
//! from those that end, or run another program, at once (`agent/src/agent/trap/late.rs`).
//!
//! The socket is abstract, so that nothing is left in any file system, and anybody may connect to it. Who may
//! come in: a process below us in the tree of parents that knows the token (it is in the environment of the
//! tree). The steps of an exchange are in exchange.rs; it is drawn in `common/src/protocol.rs`.
//!
//! ```text
//!   connect ─ who is it? ─ a stranger: closed, nothing is awaited of him
//!                └─ Knocked ─ Hello: the token? below us? ─ Welcomed ─ Ready: attach ─ Go
//! ```
//!
//! Nobody waits for anybody else: each exchange goes on when its next message is there. A process has one
//! exchange at a time, an exchange has its time as a whole, and when all places are taken, the next one has
//! the place of whoever has been silent for longest. The door stays, whatever goes wrong in one exchange, or
//! at accept. What it does not do: protect a tree from itself. A process of the tree can start a thousand
//! that know the token.
//!
//! Tried: to look for the next message for 100 µs before sleeping, here or on both sides, so that no CPU goes
//! idle. 200 processes then took a tenth (here) or a fifth (both) longer on two CPUs, and a half on a busy
//! machine.

use crate::door::callers::Callers;
use crate::door::exchange::{self, Caller, Greeted, Origin, Stage};
use crate::door::inherit::{self, Fork};
use crate::door::socket::Door;
use crate::limits::{self, Limits};
use crate::process::peer::Peer;
use crate::process::{standstill, wire};
use crate::run::Run;
use crate::times::{DOOR_SHUT, EXCHANGE_ENDS, FORK_ENDS};
use memspill_common::protocol::{Forked, Go, KIND_CHILD, MAGIC, Ready};
use rustix::event::epoll;
use rustix::net::SocketFlags;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Exchanges at a time.
const CALLERS_MAX: u64 = 1024;
/// Children that have not joined yet: beyond that, who wants to fork waits.
const CHILDREN_MAX: usize = 256;

/// The keys in the door's epoll that are not processes: the listening socket, and from here on those in the
/// exchange; and before those the forks that are under way.
const KEY_LISTEN: u64 = u64::MAX;
const KEY_FORKS: u64 = 1 << 62;
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
    forks: HashMap<u64, Fork>,
    next_fork: u64,
    /// Nobody is let in before then.
    shut_until: Option<Instant>,
    /// Who came when there was a descriptor for the socket and not enough for more.
    put_off: Option<OwnedFd>,
    told_of_shutting: bool,
}

impl<'a> Porter<'a> {
    fn new(run: &'a Run, door: &'a Door) -> io::Result<Porter<'a>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let key = epoll::EventData::new_u64(KEY_LISTEN);
        for socket in door.sockets() {
            epoll::add(&epoll, socket, key, epoll::EventFlags::IN)?;
        }
        // Each takes a descriptor, and so do a process's userfaultfd, pagemap and others once it is in.
        let descriptors =
            rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let callers = Callers::new((descriptors / 8).clamp(8, CALLERS_MAX) as usize);
        let (forks, next_fork) = (HashMap::new(), KEY_FORKS);
        let (shut_until, put_off, told_of_shutting) = (None, None, false);
        Ok(Porter { run, door, epoll, callers, forks, next_fork, shut_until, put_off, told_of_shutting })
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
                    key if key >= KEY_FORKS => self.go_on_forking(key),
                    key => exchange::hung_up(self.run, self.door, &self.epoll, key),
                }
            }
            self.end_what_is_overdue()?;
            self.door.make_spare();
        }
        Ok(())
    }

    fn next_look(&self) -> Option<Duration> {
        let forks = self.forks.values().filter(|fork| fork.is_open).map(|fork| fork.until);
        let next = self.callers.next_deadline().into_iter().chain(self.shut_until).chain(forks).min()?;
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
            match put_off.unwrap_or_else(|| self.accept()) {
                Ok(socket) => self.admit(socket),
                Err(rustix::io::Errno::AGAIN) => return,
                // That one has gone away.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                // No descriptor, no memory: others give some back. Any other error may pass.
                Err(e) => return self.shut(&with_remedy(&e.into())),
            }
        }
    }

    fn accept(&self) -> rustix::io::Result<OwnedFd> {
        let mut last = Err(rustix::io::Errno::AGAIN);
        for socket in self.door.sockets() {
            last = rustix::net::accept_with(socket, SocketFlags::CLOEXEC);
            if last.as_ref().err() != Some(&rustix::io::Errno::AGAIN) {
                break;
            }
        }
        last
    }

    /// A process that waits outside loses nothing by it. Without a pause the listening socket would be
    /// reported for ever.
    fn shut(&mut self, why: &str) {
        self.shut_until = Some(Instant::now() + DOOR_SHUT);
        let _ = self.listen_for(epoll::EventFlags::empty());
        if !std::mem::replace(&mut self.told_of_shutting, true) {
            eprintln!("memspill: new processes wait: {why}");
        }
    }

    fn listen_for(&self, flags: epoll::EventFlags) -> rustix::io::Result<()> {
        self.door.sockets().try_for_each(|socket| {
            epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(KEY_LISTEN), flags)
        })
    }

    /// A stranger is sent away before anything is awaited of him.
    fn admit(&mut self, socket: OwnedFd) {
        let peer = match self.with_descriptors(&socket) {
            Ok(peer) => peer,
            Err(e) if is_scarcity(&e) => {
                self.put_off = Some(socket);
                return self.shut(&with_remedy(&e));
            }
            // He is gone, or lives where we see nobody.
            Err(_) => return,
        };
        if !exchange::may_knock(self.run, self.door, &peer) {
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

    /// The peer, if there are descriptors for all that its joining takes, beside those who do so already.
    fn with_descriptors(&self, socket: &OwnedFd) -> io::Result<Peer> {
        Limits::have_room_for_a_process(self.callers.known(), self.run.process_count(), socket)?;
        Peer::of(socket)
    }

    /// The next step of an exchange, if what it needs is there.
    fn go_on(&mut self, key: u64) {
        let number = key - KEY_CALLERS;
        let Some(entry) = self.callers.get(number) else { return };
        let (run, door, pid, caller) = (self.run, self.door, entry.pid, &mut entry.caller);
        let step = match &caller.stage {
            Stage::Knocked => match exchange::greet(run, door, caller) {
                Ok(Greeted::Welcomed) => Ok(()),
                Ok(Greeted::Forks) => {
                    let caller = self.callers.take(number).expect("looked up above").caller;
                    return self.prepare_fork(caller);
                }
                Ok(Greeted::AsksForRoom) => {
                    let caller = self.callers.take(number).expect("looked up above").caller;
                    let mut children = self.forks.values().filter(|fork| fork.child.is_some());
                    let awaits_child = children.any(|fork| fork.parent.memory.pid() == pid);
                    return inherit::answer_for_room(run, pid, awaits_child, &caller.socket);
                }
                Ok(Greeted::RunsStatic { own_tid, mask }) => {
                    let Caller { peer, socket, .. } =
                        self.callers.take(number).expect("looked up above").caller;
                    let _ = epoll::delete(&self.epoll, &*socket);
                    return self.door.askers.add(peer, own_tid, socket, mask);
                }
                Err(e) => Err(e),
            },
            Stage::Welcomed { .. } => wire::receive_now_with_fd::<Ready>(&*caller.socket).map(|ready| {
                let caller = self.callers.take(number).expect("looked up above").caller;
                let origin = self.origin_of(&caller);
                exchange::settle(run, door, &self.epoll, caller, ready, origin);
            }),
        };
        match step {
            Ok(()) => {
                // A greeted caller knows the token.
                self.callers.get(number).into_iter().for_each(|entry| entry.is_known = true);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => {
                let Caller { peer, socket, stage } =
                    self.callers.take(number).expect("looked up above").caller;
                if matches!(stage, Stage::Welcomed { .. }) {
                    exchange::send_away(door, &socket, pid, &e);
                }
                // One that has ended is below nobody.
                if !peer.pidfd.has_ended() {
                    exchange::refused(run, door, pid, &e);
                }
            }
        }
    }

    /// A process is about to fork. Its socket stays open until its child has joined, or none will.
    fn prepare_fork(&mut self, caller: Caller) {
        // It may have told of its last fork, and that not have been read yet.
        let (pid, mut open) = (caller.peer.pid, self.forks.iter());
        if let Some(key) =
            open.find(|(_, fork)| fork.is_open && fork.parent.memory.pid() == pid).map(|(key, _)| *key)
        {
            self.go_on_forking(key);
        }
        if self.forks.values().filter(|fork| fork.child.is_some()).count() >= CHILDREN_MAX {
            return inherit::refuse(&caller.socket, &io::Error::from_raw_os_error(libc::EAGAIN));
        }
        let Ok(fork) = inherit::prepare(self.run, pid, &caller.socket, Instant::now() + FORK_ENDS) else {
            return;
        };
        let (key, flags) = (self.next_fork, epoll::EventFlags::IN | epoll::EventFlags::RDHUP);
        self.next_fork += 1;
        let data = epoll::EventData::new_u64(key);
        let watched = epoll::modify(&self.epoll, &*fork.socket, data, flags);
        self.forks.insert(key, fork);
        if watched.is_err() {
            self.forget_fork(key);
        }
    }

    /// The parent says that it has forked, or everybody has closed the socket: the parent, and the child,
    /// which has joined or has ended.
    fn go_on_forking(&mut self, key: u64) {
        while let Some(fork) = self.forks.get_mut(&key) {
            match wire::receive_now::<Forked>(&*fork.socket) {
                Ok(forked) if forked.magic == MAGIC && forked.errno == 0 => {
                    inherit::finish(self.run, fork);
                    fork.close();
                    let _ = wire::send(&*fork.socket, &Go { magic: MAGIC, errno: 0 }, &[]);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // There is no child, or it comes no more; or the parent says what nobody does.
                _ => self.forget_fork(key),
            }
        }
    }

    fn forget_fork(&mut self, key: u64) {
        let Some(mut fork) = self.forks.remove(&key) else { return };
        let _ = epoll::delete(&self.epoll, &*fork.socket);
        fork.close();
        fork.child.into_iter().for_each(|child| inherit::give_back(self.run, child));
    }

    /// The parent of the child that has come, if it says that it is one. A fork has one child.
    fn origin_of(&mut self, caller: &Caller) -> Origin {
        let Stage::Welcomed { hello, .. } = &caller.stage else { return Origin::Unknown };
        if hello.kind != KIND_CHILD {
            return Origin::Itself;
        }
        let Some(fork) = self.forks.values_mut().find(|fork| fork.id == hello.fork) else {
            return Origin::Unknown;
        };
        // It may come before its parent says so.
        inherit::finish(self.run, fork);
        fork.child.take().map_or(Origin::Unknown, |child| Origin::Fork(fork.parent.clone(), child))
    }

    fn end_what_is_overdue(&mut self) -> io::Result<()> {
        let (run, now) = (self.run, Instant::now());
        if self.shut_until.is_some_and(|until| until <= now) {
            self.shut_until = None;
            self.listen_for(epoll::EventFlags::IN)?;
            self.accept_some();
        }
        // A parent that keeps everything for so long, and is not stopped, has no child that may join.
        for fork in self.forks.values_mut().filter(|fork| fork.is_open && fork.until <= now) {
            fork.until = now + FORK_ENDS;
            if fork.parent.standstill_in_fork().is_none() {
                fork.close();
                fork.child.take().into_iter().for_each(|child| inherit::give_back(run, child));
            }
        }
        for number in self.callers.overdue(now) {
            let entry = self.callers.get(number).expect("overdue, so there");
            if standstill::of(entry.pid).is_some() {
                entry.until = now + EXCHANGE_ENDS;
                continue;
            }
            let entry = self.callers.take(number).expect("looked up above");
            if entry.is_known || exchange::is_below_us(self.run, self.door, &entry.caller.peer) {
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
