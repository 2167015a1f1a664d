//! A port without a userfaultfd: memory shared with the agent, and a bell. The agent's `link.rs` draws it.
//!
//! - Events are told when they are made, in order, by one ring, and nothing is delivered while one is unread
//!   (`messages.rs`).
//! - Nothing is registered: the agent tells of all that it takes out. New pages are found by searching
//!   (`monitor/adopt.rs`).
//! - A delivered page lies in shared memory until a thread of the process installs it (`deliveries.rs`). The
//!   agent sees to that before it takes anything out, changes a mapping, or forks.
//! - Threads read pages out of the pool by themselves, and the engine is told later (`pool_reads.rs`).
//! - The evictor copies pages into staging, which is shared (`take.rs`, `staging.rs`).
//!
//! The other side may write anything at any time: every field is read once, and checked. A process whose
//! ring cannot be true ends the run, as one whose events cannot be read.

pub mod deliveries;
pub mod link;
pub mod messages;
pub mod pool_reads;
pub mod staging;
pub mod take;

use crate::process::control::ControlPage;
use crate::process::peer::Pidfd;
use link::SharedLink;
use memspill_common::sync::Ordering;
use memspill_engine::sync::Mutex;
use staging::Staging;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

/// The supervisor's end of one process's link.
pub struct AgentPort {
    link: SharedLink,
    pub bell: OwnedFd,
    /// The evictor's. The address space lives as long as the evictor, as far as is known here.
    evictor: OnceLock<Pidfd>,
    /// Held while a delivery is made.
    delivering: Mutex<()>,
    /// The last batch that was to be taken out has met a change.
    has_met_change: AtomicBool,
    /// The device in whose file the agent reads its pages: its number.
    pool: Option<u8>,
    /// The pages that a thread may bring at once while there is room.
    run_pages: u64,
    staging: Staging,
    /// Pages that have left while others had them too, as far as that has been asked for.
    shared_taken: AtomicU64,
    /// The agent has a userfaultfd, by which it can protect pages against writes.
    pub can_protect: bool,
}

impl AgentPort {
    pub fn new(
        control: Arc<ControlPage>,
        bell: OwnedFd,
        pool: Option<u8>,
        run_pages: u64,
        closed_bytes: u64,
    ) -> AgentPort {
        let port = AgentPort {
            link: SharedLink { control },
            bell,
            evictor: OnceLock::new(),
            delivering: Mutex::default(),
            has_met_change: AtomicBool::new(false),
            pool,
            run_pages,
            staging: Staging::default(),
            shared_taken: AtomicU64::new(0),
            can_protect: false,
        };
        port.allow_pool_reads(pool.is_some());
        port.link.closed_bytes().store(closed_bytes, Ordering::SeqCst);
        port
    }

    /// New memory is closed where it lies in this range, and nowhere else.
    pub fn close_only(&self, from: u64, to: u64) {
        self.link.only_from().store(from, Ordering::SeqCst);
        self.link.only_to().store(to, Ordering::SeqCst);
    }

    /// The child of a fork protects what it shares before it runs on.
    pub fn have_child_protect(&self) {
        self.link.protects_shared().store(1, Ordering::SeqCst);
    }

    /// How many pages have left, since this was asked last, that others have too.
    pub fn shared_taken(&self) -> u64 {
        let now = self.link.shared_taken().load(Ordering::SeqCst);
        now.wrapping_sub(self.shared_taken.swap(now, std::sync::atomic::Ordering::Relaxed))
    }

    /// The evictor of the address space that this is the port of.
    pub fn set_evictor(&self, pidfd: Pidfd) {
        let _ = self.evictor.set(pidfd);
    }

    pub fn is_gone(&self) -> bool {
        self.evictor.get().is_some_and(Pidfd::has_ended)
    }

    /// From now on changes are told also where nothing is away.
    pub fn set_tells(&self) {
        self.link.tells().store(1, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(shuttle)))]
pub(super) mod testing {
    use super::*;
    use memspill_common::link::Message;

    pub const AT: u64 = 0x7000_0000;

    pub fn new_port() -> AgentPort {
        use rustix::event::{EventfdFlags, eventfd};
        let (control, _fd) = ControlPage::with_link().unwrap();
        AgentPort::new(Arc::new(control), eventfd(0, EventfdFlags::NONBLOCK).unwrap(), None, 1, 0)
    }

    /// Writes a message as an agent does.
    pub fn write(port: &AgentPort, kind: u32, addr: u64, end: u64) {
        let head = port.link.head().load(Ordering::SeqCst);
        port.link.set_message(head, Message { kind, tid: 1, addr, end, to: 0 });
        port.link.head().fetch_add(1, Ordering::SeqCst);
    }
}
