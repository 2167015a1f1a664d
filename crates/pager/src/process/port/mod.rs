//! The port of a process: its faults and events come by it, its pages come in and go out by it.
//!
//! ```text
//!                    kernel: a userfaultfd           agent: shared memory, and a bell
//!   faults, events   read(2)                         a ring of messages, agent/messages.rs
//!   pages come       UFFDIO_COPY, ZEROPAGE, POISON   threads install them, agent/deliveries.rs
//!   pages go         UFFDIO_MOVE, kernel.rs          the evictor copies them, agent/take.rs
//! ```
//!
//! Nobody asks outside this folder which of the two it is (`tests/tidy/port.py` sees to that): [`Port`] does
//! a thing in its way, or answers a question that follows from its kind.

mod agent;
pub mod batch;
mod kernel;

pub use agent::messages::ChangesHeld;
pub use agent::pool_reads::PoolRead;
pub use batch::Owner;

use crate::process::control::ControlPage;
use crate::process::peer::Pidfd;
use agent::AgentPort;
use agent::deliveries::Content;
use kernel::Taker;
use memspill_common::link::Hint;
use memspill_common::protocol::{DOORBELLS, Ready, STAGING_PAGES};
use memspill_engine::fill::{WINDOW_MAX, ZERO_WINDOW_MAX};
use memspill_engine::memory::{PageRun, Take};
use memspill_engine::units::{PAGE_SIZE, Page, Vpn};
use memspill_engine::word::SwapEntry;
use memspill_uffd::userfaultfd::{Event, Fill, Stop, Uffd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub struct Port(Kind);

enum Kind {
    Kernel(Uffd),
    Agent(AgentPort),
}

impl From<Uffd> for Port {
    fn from(uffd: Uffd) -> Port {
        Port(Kind::Kernel(uffd))
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.as_fd(),
            Kind::Agent(link) => link.bell.as_fd(),
        }
    }
}

impl Port {
    /// A port that is shared with the agent. `pool`: the device in whose file the agent may read its pages;
    /// `run_pages` at once. New memory of `closed_bytes` is closed before memory is tight
    /// (`agent/pages/grow.rs`). `can_protect`: the agent has a userfaultfd.
    pub fn of_agent(
        control: Arc<ControlPage>,
        bell: OwnedFd,
        pool: Option<u8>,
        run_pages: u64,
        closed_bytes: u64,
        can_protect: bool,
    ) -> Port {
        let mut port = AgentPort::new(control, bell, pool, run_pages, closed_bytes);
        port.can_protect = can_protect;
        Port(Kind::Agent(port))
    }
}

/// What follows from its kind.
impl Port {
    /// New memory is closed where it lies in this range, and nowhere else.
    pub fn close_only(&self, (from, to): (u64, u64)) {
        if let Kind::Agent(link) = &self.0 {
            link.close_only(from, to);
        }
    }

    /// Are events read in the order in which the changes were made?
    pub fn is_ordered(&self) -> bool {
        matches!(&self.0, Kind::Agent(_))
    }

    /// Is each touch of a managed page that is not there a fault, also where the page was never taken out?
    /// Else new pages are found by searching, and a page that has vanished unnoticed is not filled.
    pub fn tells_each_touch(&self) -> bool {
        matches!(&self.0, Kind::Kernel(_))
    }

    /// Can writes to pages be made faults (UFFDIO_WRITEPROTECT)? An agent's, where it has a userfaultfd.
    pub fn can_protect(&self) -> bool {
        match &self.0 {
            Kind::Kernel(_) => true,
            Kind::Agent(link) => link.can_protect,
        }
    }

    /// Does the agent protect pages, by OP_PROTECT? It leaves out what the kernel writes by itself. Else
    /// [`Port::protect`] does.
    pub fn protects_by_agent(&self) -> bool {
        matches!(&self.0, Kind::Agent(_))
    }

    /// The child of a fork, which waits to be let go on, has its agent protect all that it shares before.
    pub fn have_child_protect(&self) {
        if let Kind::Agent(link) = &self.0 {
            link.have_child_protect();
        }
    }

    /// Does the kernel count pages that we bring among the faults that it serves? Not what comes into an
    /// agent's registered memory, where a fault is a signal.
    pub fn counts_fills(&self) -> bool {
        match &self.0 {
            Kind::Kernel(_) => true,
            Kind::Agent(link) => !link.can_protect,
        }
    }

    /// Are its faults on shared memory served? Else no object that it has mapped may leave.
    pub fn serves_shared(&self) -> bool {
        matches!(&self.0, Kind::Kernel(_))
    }

    /// May pages be filled that the program cannot access yet? An agent sees itself what becomes accessible.
    pub fn fills_reserves(&self) -> bool {
        matches!(&self.0, Kind::Kernel(_))
    }

    /// Does the agent keep the program's guards (MADV_GUARD_INSTALL)? Else a fill may replace one, and
    /// guards that come without the C library are found by searching.
    pub fn keeps_guards(&self) -> bool {
        matches!(&self.0, Kind::Agent(_))
    }

    /// Does the agent call by touching its doorbell pages, which are registered for that? Else its calls
    /// come as messages, few kinds of them, and the caller waits for a word.
    pub fn has_doorbells(&self) -> bool {
        matches!(&self.0, Kind::Kernel(_))
    }

    /// Can the evictor fault on what it takes out?
    pub fn evictor_faults(&self) -> bool {
        matches!(&self.0, Kind::Kernel(_))
    }

    /// Do pages that were brought lie somewhere until a thread of the process installs them?
    pub fn has_to_install(&self) -> bool {
        matches!(&self.0, Kind::Agent(_))
    }

    /// Pages that are filled with zeros at once at most. An agent says how far it goes ([`Port::run_away`]).
    /// Without one a call that the kernel takes must hold the page that has faulted, for behind that page's
    /// mapping may be another userfaultfd's.
    pub fn zeros_max(&self) -> usize {
        match &self.0 {
            Kind::Kernel(_) => WINDOW_MAX,
            Kind::Agent(_) => ZERO_WINDOW_MAX,
        }
    }
}

/// Events and faults.
impl Port {
    pub fn api(&self, features: u64) -> io::Result<u64> {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.api(features),
            Kind::Agent(_) => Ok(features),
        }
    }

    /// Notes the evictor, with which the address space ends.
    pub fn set_evictor(&self, pidfd: Pidfd) {
        if let Kind::Agent(link) = &self.0 {
            link.set_evictor(pidfd);
        }
    }

    pub fn is_gone(&self) -> bool {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.is_gone(),
            Kind::Agent(link) => link.is_gone(),
        }
    }

    pub fn is_changing(&self) -> bool {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.is_changing(),
            Kind::Agent(link) => link.is_changing(),
        }
    }

    /// Where the last batch met a change, and the port can keep changes from beginning: until this is
    /// dropped none begins. The caller does not hold the batch lock.
    pub fn hold_changes(&self) -> Option<ChangesHeld<'_>> {
        match &self.0 {
            Kind::Kernel(_) => None,
            Kind::Agent(link) => link.hold_changes(),
        }
    }

    pub fn is_readable(&self) -> bool {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.is_readable(),
            Kind::Agent(link) => link.has_messages(),
        }
    }

    /// Is there something to be read that no epoll may tell of again? A bell is silenced before it is clear
    /// that all can be read now.
    pub fn has_more(&self) -> bool {
        match &self.0 {
            Kind::Kernel(_) => false,
            Kind::Agent(link) => link.has_messages() || link.has_unnoted(),
        }
    }

    pub fn read(&self, out: &mut Vec<Event>) -> io::Result<usize> {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.read(out),
            Kind::Agent(link) => link.read(out),
        }
    }

    pub fn read_one(&self, out: &mut Vec<Event>) -> io::Result<usize> {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.read_one(out),
            Kind::Agent(link) => link.read_some(out, 1),
        }
    }

    /// Reads faults while pages may be taken out. None: there may be events among what is to be read.
    pub fn read_faults(&self, out: &mut Vec<Event>) -> io::Result<Option<usize>> {
        match &self.0 {
            Kind::Kernel(_) => Ok(None),
            Kind::Agent(link) => link.read_faults(out),
        }
    }
}

/// Registering.
impl Port {
    pub fn register(&self, addr: u64, len: u64) -> Result<(), i32> {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.register(addr, len),
            Kind::Agent(_) => Ok(()),
        }
    }

    pub fn register_to_protect(&self, addr: u64, len: u64) -> Result<(), i32> {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.register_to_protect(addr, len),
            Kind::Agent(_) => Ok(()),
        }
    }

    /// Registers the agent's own pages. Changes are told from then on. False: a change was under way, or the
    /// process is gone.
    ///
    /// They come before all else: staging must be registered on the same userfaultfd as the victims, so that
    /// a MOVE is refused while an event waits to be read. And the ident page comes first: the child of a
    /// fork in between, whose event comes as soon as anything is registered, is known by it.
    pub fn register_agent_pages(&self, ready: &Ready, control: &ControlPage) -> bool {
        match &self.0 {
            Kind::Kernel(uffd) => {
                let page = PAGE_SIZE as u64;
                let ident = uffd.register(ready.ident_addr, page);
                let staging = uffd.register(ready.staging_addr, u64::from(STAGING_PAGES) * page);
                let doorbells = uffd.register(ready.doorbell_addr, DOORBELLS as u64 * page);
                let is_registered = ident.and(staging).and(doorbells).is_ok();
                if is_registered {
                    control.set_answers();
                }
                is_registered
            }
            Kind::Agent(link) => {
                link.set_tells();
                true
            }
        }
    }

    pub fn unregister(&self, addr: u64, len: u64) -> Result<(), i32> {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.unregister(addr, len),
            Kind::Agent(_) => Ok(()),
        }
    }

    pub fn is_registered(&self, addr: u64) -> Option<bool> {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.is_registered(addr),
            Kind::Agent(_) => Some(false),
        }
    }

    pub fn is_registered_shared(&self, addr: u64) -> Option<bool> {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.is_registered_shared(addr),
            Kind::Agent(_) => Some(false),
        }
    }

    pub fn protect(&self, addr: u64, len: u64) -> Result<(), i32> {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.protect(addr, len),
            Kind::Agent(_) => Err(libc::ENOTSUP),
        }
    }

    pub fn unprotect(&self, addr: u64, len: u64) -> Result<(), i32> {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.unprotect(addr, len),
            Kind::Agent(link) => {
                let fill = link.deliver(addr, len as usize / PAGE_SIZE, Content::Writable);
                if matches!(fill.stop, Stop::Done) { Ok(()) } else { Err(libc::EAGAIN) }
            }
        }
    }
}

/// Pages go.
impl Port {
    /// Returns the outcome of each page of the runs; those that were taken are in `frames`, compactly, in
    /// order. The caller has the evictor's turn and the batch lock.
    pub fn take(&self, owner: &Owner<'_>, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        match &self.0 {
            Kind::Kernel(uffd) => Taker { uffd, owner }.take(runs, frames, outcome),
            Kind::Agent(link) => link.take(owner, runs, frames, outcome),
        }
    }

    /// How many pages that others have too have been taken, since this was asked last: by that no memory has
    /// become free. (A userfaultfd takes none of these, see [`Port::populate`].)
    pub fn shared_taken(&self) -> u64 {
        match &self.0 {
            Kind::Kernel(_) => 0,
            Kind::Agent(link) => link.shared_taken(),
        }
    }

    /// Makes pages that a fork has left shared the process's own, so that they can be taken. False: it has
    /// not been done yet. `owner`: whose evictor can be told something.
    pub fn populate(&self, owner: Option<&Owner<'_>>, pages: &[Vpn]) -> bool {
        match &self.0 {
            Kind::Kernel(uffd) => owner.is_some_and(|owner| Taker { uffd, owner }.populate(pages)),
            // It copies pages, whoever has them too.
            Kind::Agent(_) => true,
        }
    }
}

/// Pages come.
impl Port {
    pub fn copy(&self, dst: u64, src: &[u8]) -> Fill {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.copy(dst, src),
            Kind::Agent(link) => link.deliver(dst, src.len() / PAGE_SIZE, Content::Bytes(src)),
        }
    }

    /// An agent wakes whom it delivers to.
    pub fn copy_without_wake(&self, dst: u64, src: &[u8]) -> Fill {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.copy_without_wake(dst, src),
            Kind::Agent(_) => self.copy(dst, src),
        }
    }

    /// Brings a page for which no thread waits, as far as is known.
    pub fn copy_unasked(&self, dst: u64, page: &[u8]) -> Fill {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.copy(dst, page),
            Kind::Agent(link) => link.deliver_unasked(dst, page),
        }
    }

    /// The number of such pages that can be brought now: if a thread of the process has to take them, few can
    /// wait.
    pub fn room_for_unasked(&self) -> u64 {
        match &self.0 {
            Kind::Kernel(_) => u64::MAX,
            Kind::Agent(link) => link.room_for_unasked(),
        }
    }

    pub fn zeropage(&self, dst: u64, len: u64) -> Fill {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.zeropage(dst, len),
            Kind::Agent(link) => link.deliver(dst, len as usize / PAGE_SIZE, Content::Zeros),
        }
    }

    /// The number of pages that are away from the one that has faulted on, as the agent says; 0: no thread
    /// waits for that one. None: the mapping shows how far zeros may go.
    pub fn run_away(&self, addr: u64) -> Option<usize> {
        match &self.0 {
            Kind::Kernel(_) => None,
            Kind::Agent(link) => Some(link.run_waited_for(addr).unwrap_or(0)),
        }
    }

    /// A thread waits for this page: was there never anything in it, as the agent says? None: a page that
    /// faults is not there.
    pub fn is_new(&self, addr: u64) -> Option<bool> {
        match &self.0 {
            Kind::Kernel(_) => None,
            Kind::Agent(link) => Some(link.is_waited_for_as_new(addr)),
        }
    }

    pub fn poison(&self, dst: u64, len: u64) {
        match &self.0 {
            Kind::Kernel(uffd) => _ = uffd.poison(dst, len),
            Kind::Agent(link) => {
                let told = link.deliver(dst, len as usize / PAGE_SIZE, Content::Lost);
                // Its slot becomes another page's, and the agent, which knows that slot, has not been told.
                if told.stop != Stop::Done {
                    link.allow_pool_reads(false);
                }
            }
        }
    }

    pub fn wake(&self, addr: u64, len: u64) {
        match &self.0 {
            Kind::Kernel(uffd) => uffd.wake(addr, len),
            Kind::Agent(link) => link.wake(addr, len as usize / PAGE_SIZE),
        }
    }

    /// Pages have been filled. An agent tells of a fault once: one that was read while the fill was under
    /// way is not among those that the delivery has woken. A userfaultfd tells of it again.
    pub fn filled(&self, addr: u64, pages: usize) {
        if let Kind::Agent(link) = &self.0 {
            link.wake(addr, pages);
        }
    }
}

/// Threads that read pages out of the pool by themselves (`agent/pool_reads.rs`). If there are none, nothing
/// is told, and there is nothing to be noted.
impl Port {
    pub fn wants_stored(&self) -> bool {
        self.pool().is_some()
    }

    fn pool(&self) -> Option<u8> {
        match &self.0 {
            Kind::Kernel(_) => None,
            Kind::Agent(link) => link.pool(),
        }
    }

    /// These pages have left, and are stored there.
    pub fn tell_stored(&self, pages: &[(Vpn, SwapEntry)]) {
        let Kind::Agent(link) = &self.0 else { return };
        let of_pool = pages.iter().filter(|(_, entry)| Some(entry.device) == link.pool());
        let hint = |(vpn, entry): &(Vpn, SwapEntry)| Hint { addr: vpn.addr(), slot: entry.slot.0.into() };
        let hints: Vec<Hint> = of_pool.map(hint).collect();
        if !hints.is_empty() {
            link.tell_stored(&hints);
        }
    }

    /// Slots are about to be given other pages, while their own are away.
    pub fn end_pool_reads(&self) {
        if let Kind::Agent(link) = &self.0 {
            link.allow_pool_reads(false);
        }
    }

    /// Is there room for such pages, and how much is left to the limit?
    pub fn tell_room(&self, has_room: bool, gap_bytes: u64) {
        if let Kind::Agent(link) = &self.0 {
            link.tell_room(has_room, gap_bytes);
        }
    }

    /// The thread that alone may bring pages by itself; 0: all may.
    pub fn tell_token(&self, tid: impl FnOnce() -> u32) {
        if let Kind::Agent(link) = &self.0 {
            link.tell_token(tid());
        }
    }

    /// Are all pages to be asked for, because pages name those that are touched next?
    pub fn tell_names_followed(&self, are_followed: impl FnOnce() -> bool) {
        if let Kind::Agent(link) = &self.0 {
            link.tell_names_followed(are_followed());
        }
    }

    /// Which windows are not worth bringing.
    pub fn tell_distrusted(&self, windows: u64) {
        if let Kind::Agent(link) = &self.0 {
            link.tell_distrusted(windows);
        }
    }

    /// Nothing that was brought waits for a thread of the process to install it.
    pub fn is_all_installed(&self) -> bool {
        match &self.0 {
            Kind::Kernel(_) => true,
            Kind::Agent(link) => link.is_all_installed(),
        }
    }

    /// Have threads brought pages that are not noted?
    pub fn has_unnoted(&self) -> bool {
        matches!(&self.0, Kind::Agent(link) if link.has_unnoted())
    }

    pub fn unnoted_pages(&self) -> u64 {
        match &self.0 {
            Kind::Kernel(_) => 0,
            Kind::Agent(link) => link.unnoted_pages(),
        }
    }

    /// Is there something to be noted, or were threads told that there is no room?
    pub fn waits_for_note(&self) -> bool {
        matches!(&self.0, Kind::Agent(link) if link.has_unnoted() || link.was_told_no_room())
    }

    /// Asks `note` of each page that was brought whether it has been noted, or is to be told again later.
    pub fn note_pool_reads(&self, note: impl FnMut(PoolRead) -> bool) {
        if let Kind::Agent(link) = &self.0 {
            link.note_pool_reads(note);
        }
    }
}
