//! What takes the place of a userfaultfd where there is none: memory shared with the agent, and a bell. The
//! agent's `link.rs` has the picture.
//!
//! It has the operations of a userfaultfd, so that whoever reads faults and events, and fills, need not know
//! which of the two it is ([`Port`]).
//!
//! - Events are told when they are made, in order, by one ring, and nothing is delivered while one is unread.
//! - Registering is nothing: the agent tells of all that it takes out. What is new in memory is found by
//!   looking (`monitor/adopt.rs`).
//! - What is delivered lies in shared memory until a thread of the process installs it. The agent sees to
//!   that before it takes anything out, changes a mapping, or forks.
//!
//! The other side may write anything at any time: every field is read once, and checked. A process whose
//! ring cannot be true ends the run, as one whose events cannot be read.
#![allow(unsafe_code, reason = "a mapping that another process writes: atomics through raw pointers")]

use crate::process::control::{ControlPage, Forbidden};
use crate::process::peer::Pidfd;
use crate::process::staged::{HALF_PAGES, Staged};
use crate::times::{CHANGE_STEP, CHANGES_HELD};
use memspill_agent::link::{
    ALONG, BYTES, CUT, DELIVERIES, DELIVERIES_ALL, DELIVERY_PAGES, Delivery, EARLY, EARLY_BLOCK_MAX,
    EARLY_PAGE, EARLY_STATE, END, FAULT, FREE, FULL, HERE, HINTS, Hint, LINK_AT, LOST, LeftOut, Link,
    Message, NOTING, READ_FAULT, REMAP, REMOVE, RING, RUN_CLOSED, STAGING_AT, UNMAP, WAITERS, Waiter,
    ZERO_PAGES, ZEROS, bytes_at, committed_of, open,
};
use memspill_agent::protocol::STAGING_PAGES;
use memspill_engine::units::{PAGE_SIZE, Page};
use memspill_uffd::userfaultfd::{Event, Fill, Stop, Uffd};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::addr_of_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// By which a process's faults and events come, and its pages go.
pub enum Port {
    Kernel(Uffd),
    Agent(AgentLink),
}

/// What lies there unnoted is less than what the monitor takes for growth for sure (`growth.rs`), and there
/// may be many processes. Tried: 48. A program that goes through memory in order took a twelfth longer.
const EARLY_TOLD_MAX: u64 = 96;

/// A page that a thread has brought by itself.
pub struct Early {
    pub page: u64,
    pub tid: u32,
    /// With one that the thread has touched.
    pub comes_along: bool,
    /// A page that was left out of its window, with how many pages that had.
    pub left_out: Option<(u64, usize)>,
}

/// Of pages that are delivered.
#[derive(Clone, Copy)]
enum Content<'a> {
    Bytes(&'a [u8]),
    Lost,
    Zeros,
}

/// One process's link.
pub struct AgentLink {
    control: Arc<ControlPage>,
    bell: OwnedFd,
    /// Of its evictor: the address space lives as long as that, as far as is known here.
    alive: OnceLock<Pidfd>,
    /// Held by whoever makes a delivery.
    delivering: Mutex<()>,
    /// The last batch that was to be taken out has met a change.
    has_met_change: AtomicBool,
    /// Whose file the agent reads: the number of a device.
    pool: Option<u8>,
    /// What threads may bring at once while there is room.
    run_pages: u64,
    staged: Staged,
}

/// While this lives the process begins no further change of its mappings.
pub struct Held<'a>(&'a AgentLink);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held_word().store(0, Ordering::SeqCst);
        self.0.let_write();
    }
}

impl AgentLink {
    pub fn new(control: Arc<ControlPage>, bell: OwnedFd, pool: Option<u8>) -> AgentLink {
        let link = AgentLink {
            control,
            bell,
            alive: OnceLock::new(),
            delivering: Mutex::default(),
            has_met_change: AtomicBool::new(false),
            pool,
            run_pages: 0,
            staged: Staged::default(),
        };
        link.allow_early(pool.is_some());
        link
    }

    /// Whose address space it is.
    pub fn set_evictor(&self, pidfd: Pidfd) {
        let _ = self.alive.set(pidfd);
    }

    fn link(&self) -> *mut Link {
        self.control.file().wrapping_add(LINK_AT).cast()
    }

    fn word32(&self, field: *mut u32) -> &AtomicU32 {
        // SAFETY: in our live mapping, aligned, and accessed as an atomic only.
        unsafe { AtomicU32::from_ptr(field) }
    }

    fn word64(&self, field: *mut u64) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(field) }
    }

    fn counts(&self) -> [&AtomicU64; 4] {
        let link = self.link();
        // SAFETY: only addresses are taken.
        let fields = unsafe {
            [
                addr_of_mut!((*link).head),
                addr_of_mut!((*link).tail),
                addr_of_mut!((*link).changes),
                addr_of_mut!((*link).changes_read),
            ]
        };
        fields.map(|field| self.word64(field))
    }

    /// From now on changes are told also where nothing is away.
    pub fn set_tells(&self) {
        // SAFETY: only the address is taken.
        self.word32(unsafe { addr_of_mut!((*self.link()).tells) }).store(1, Ordering::SeqCst);
    }

    /// A batch has been taken out, as far as changes let it.
    pub fn note_batch(&self, has_met_change: bool) {
        self.has_met_change.store(has_met_change, Ordering::Relaxed);
    }

    /// Where the last batch met a change, the next one is to meet none: no more begin, and those that have
    /// are read and followed, by others, before this returns. Without the batch lock.
    ///
    /// A change may pass that was about to begin. A process that changes its mappings all the time (three
    /// threads of `memspill-workload mutate`) would else keep nearly all of its memory: of 64 pages that were
    /// to leave, 50 stayed.
    pub fn hold_changes(&self) -> Option<Held<'_>> {
        if !self.has_met_change.load(Ordering::Relaxed) {
            return None;
        }
        self.held_word().store(1, Ordering::SeqCst);
        let held = Held(self);
        let begun = Instant::now();
        while (self.is_changing() || self.control.is_forbidden(Forbidden::Event))
            && begun.elapsed() < CHANGES_HELD
        {
            std::thread::sleep(CHANGE_STEP);
        }
        Some(held)
    }

    fn held_word(&self) -> &AtomicU32 {
        // SAFETY: only the address is taken.
        self.word32(unsafe { addr_of_mut!((*self.link()).held) })
    }

    pub fn is_changing(&self) -> bool {
        let [_, _, changes, read] = self.counts();
        changes.load(Ordering::SeqCst) != read.load(Ordering::SeqCst)
    }

    /// Read all that is there.
    ///
    /// The bell is silenced first: whoever writes a message later rings again. It is never rung from here,
    /// for the other side can make that wait.
    fn read(&self, out: &mut Vec<Event>) -> io::Result<usize> {
        self.silence_bell();
        self.read_some(out, RING)
    }

    /// The same where all that is there are faults, without excluding those who take pages out. None: changes
    /// may be among the messages.
    ///
    /// A change is counted before its first message is written. So where none is under way, none is among
    /// the messages that were there before that was looked at.
    pub fn read_faults(&self, out: &mut Vec<Event>) -> io::Result<Option<usize>> {
        self.silence_bell();
        let [head, tail, ..] = self.counts();
        let count = head.load(Ordering::SeqCst).wrapping_sub(tail.load(Ordering::SeqCst));
        if self.is_changing() || count > RING as u64 {
            return Ok(None);
        }
        let read = self.read_some(out, count as usize)?;
        if out.iter().any(|message| !matches!(message, Event::Fault { .. })) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Some(read))
    }

    /// Read at most `most`. The bell stays as it is.
    fn read_some(&self, out: &mut Vec<Event>, most: usize) -> io::Result<usize> {
        let [head, tail, _, changes_read] = self.counts();
        let (end, mut at) = (head.load(Ordering::SeqCst), tail.load(Ordering::SeqCst));
        if end.wrapping_sub(at) > RING as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut count = 0;
        while at != end && count < most {
            // SAFETY: the index is below RING; plain data, any bit pattern is valid.
            let message = unsafe {
                addr_of_mut!((*self.link()).ring).cast::<Message>().add(at as usize % RING).read_volatile()
            };
            at += 1;
            count += 1;
            tail.store(at, Ordering::SeqCst);
            if message.kind == END {
                changes_read.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            let range = (message.addr, message.end);
            let in_pages =
                [message.addr, message.end, message.to].iter().all(|at| at % PAGE_SIZE as u64 == 0);
            if !in_pages || message.addr >= message.end || message.end > crate::USER_END {
                return Err(io::ErrorKind::InvalidData.into());
            }
            out.push(match message.kind {
                kind @ (FAULT | READ_FAULT) => {
                    let write = kind == FAULT;
                    Event::Fault { addr: message.addr, write, protected: false, tid: message.tid }
                }
                UNMAP => Event::Unmap { start: range.0, end: range.1 },
                REMOVE => Event::Remove { start: range.0, end: range.1 },
                REMAP if message.to <= crate::USER_END - (range.1 - range.0) => {
                    Event::Remap { from: range.0, to: message.to, len: range.1 - range.0 }
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            });
        }
        if count > 0 {
            self.let_write();
        }
        Ok(count)
    }

    /// Whoever else holds it can clear its O_NONBLOCK at any time.
    fn silence_bell(&self) {
        let mut rung = [0u8; 8];
        let iov = libc::iovec { iov_base: rung.as_mut_ptr().cast(), iov_len: rung.len() };
        // SAFETY: the kernel writes 8 bytes.
        unsafe { libc::preadv2(self.bell.as_raw_fd(), &iov, 1, -1, libc::RWF_NOWAIT) };
    }

    /// Somebody may wait for room in the ring.
    fn let_write(&self) {
        let link = self.link();
        // SAFETY: only addresses are taken.
        let (waits, room) = unsafe { (addr_of_mut!((*link).waits_for_room), addr_of_mut!((*link).room)) };
        if self.word32(waits).load(Ordering::SeqCst) != 0 {
            self.word32(room).fetch_add(1, Ordering::SeqCst);
            wake_futex(room);
        }
    }

    /// Are there messages that nobody has read, whether the bell says so or not?
    pub fn has_messages(&self) -> bool {
        let [head, tail, ..] = self.counts();
        head.load(Ordering::SeqCst) != tail.load(Ordering::SeqCst)
    }

    /// New memory of so many bytes is closed, whether memory is tight or not.
    pub fn set_closed_bytes(&self, bytes: u64) {
        // SAFETY: only the address is taken.
        let field = unsafe { addr_of_mut!((*self.link()).closed_bytes) };
        self.word64(field).store(bytes, Ordering::SeqCst);
    }

    /// So many pages at once a thread may bring by itself where it goes through memory in order, or more if
    /// they left together (1: it is always one), from when [`AgentLink::show_room`] says that there is room.
    pub fn set_run(&mut self, pages: usize) {
        self.run_pages = pages as u64;
    }

    /// Is there room for what threads bring by themselves? We are called when what is not noted is half of
    /// the gap, in which reclaim begins before there is none; or `EARLY_TOLD_MAX`.
    pub fn show_room(&self, has_room: bool, gap_bytes: u64) {
        let link = self.link();
        // SAFETY: only addresses are taken.
        let fields = unsafe { [addr_of_mut!((*link).early_run), addr_of_mut!((*link).early_told_at)] };
        let run_pages = if has_room { self.run_pages } else { 0 };
        let told_at = (gap_bytes / PAGE_SIZE as u64 / 2).clamp(1, EARLY_TOLD_MAX);
        for (field, value) in fields.into_iter().zip([run_pages, told_at]) {
            let field = self.word64(field);
            // As with the token.
            if field.load(Ordering::Relaxed) != value {
                field.store(value, Ordering::Relaxed);
            }
        }
    }

    /// Brings a page that no thread waits for, as far as is known.
    pub fn deliver_unasked(&self, addr: u64, page: &[u8]) -> Fill {
        assert_eq!(page.len(), PAGE_SIZE, "one at a time");
        let delivering = self.delivering.lock().expect("delivering");
        if self.room_for_unasked() == 0 {
            drop(delivering);
            return self.deliver(addr, 1, Content::Bytes(page));
        }
        if !self.deliver_piece(addr, 1, Content::Bytes(page), DELIVERIES..DELIVERIES_ALL) {
            return Fill { bytes: 0, stop: Stop::Again };
        }
        // A thread may have asked meanwhile.
        self.wake(addr, 1);
        Fill { bytes: PAGE_SIZE as u64, stop: Stop::Done }
    }

    /// Brings pages; their waiters are woken.
    fn deliver(&self, addr: u64, pages: usize, content: Content<'_>) -> Fill {
        let _delivering = self.delivering.lock().expect("delivering");
        let mut done = 0;
        while done < pages {
            let most = if matches!(content, Content::Zeros) { ZERO_PAGES } else { DELIVERY_PAGES };
            let count = (pages - done).min(most);
            let piece = match content {
                Content::Bytes(bytes) => Content::Bytes(&bytes[done * PAGE_SIZE..(done + count) * PAGE_SIZE]),
                without => without,
            };
            let at = addr + (done * PAGE_SIZE) as u64;
            if !self.deliver_piece(at, count, piece, 0..DELIVERIES) {
                // Nobody else may come who installs what is there.
                self.wake_all();
                return Fill { bytes: (done * PAGE_SIZE) as u64, stop: Stop::Again };
            }
            done += count;
        }
        self.wake(addr, pages);
        Fill { bytes: (pages * PAGE_SIZE) as u64, stop: Stop::Done }
    }

    /// `places`: with room for so many pages.
    fn deliver_piece(&self, addr: u64, pages: usize, content: Content<'_>, mut places: Range<usize>) -> bool {
        let free = places.find(|index| self.state_of(*index).load(Ordering::SeqCst) == FREE);
        let Some(index) = free else { return false };
        if let Content::Bytes(bytes) = content {
            // SAFETY: the part of the file that goes with the delivery, which has room for so many pages.
            unsafe {
                let to = self.control.file().add(bytes_at(index));
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }
        let content = match content {
            Content::Bytes(_) => BYTES,
            Content::Lost => LOST,
            Content::Zeros => ZEROS,
        };
        let delivery = Delivery { state: FREE, pages: pages as u32, addr, content, done: 0 };
        // SAFETY: the index is below DELIVERIES_ALL, and the agent leaves alone what is FREE.
        unsafe { self.delivery(index).write_volatile(delivery) };
        // A change would not know of it.
        if !self.control.lock() {
            return false;
        }
        let may_deliver = !self.is_changing();
        if may_deliver {
            self.state_of(index).store(FULL, Ordering::SeqCst);
        }
        self.control.unlock();
        may_deliver
    }

    /// There is room for so many pages that no thread waits for.
    pub fn room_for_unasked(&self) -> u64 {
        let is_free = |index: &usize| self.state_of(*index).load(Ordering::Relaxed) == FREE;
        (DELIVERIES..DELIVERIES_ALL).filter(is_free).count() as u64
    }

    fn delivery(&self, index: usize) -> *mut Delivery {
        // SAFETY: the index is below DELIVERIES_ALL; only the address is taken.
        unsafe { addr_of_mut!((*self.link()).deliveries).cast::<Delivery>().add(index) }
    }

    fn state_of(&self, index: usize) -> &AtomicU32 {
        // SAFETY: only the address is taken.
        self.word32(unsafe { addr_of_mut!((*self.delivery(index)).state) })
    }

    /// Does a thread wait for this page? Then how many pages from it on are away, as the agent says.
    pub fn waited_for(&self, addr: u64) -> Option<usize> {
        let most = |run| if run & RUN_CLOSED != 0 { ZERO_PAGES } else { DELIVERY_PAGES };
        self.runs_waited_for(addr).next().map(|run| (run & !RUN_CLOSED).clamp(1, most(run)))
    }

    /// Does a thread wait for this page, in which nothing was ever, as the agent says? One that was woken
    /// long ago, and has not run since, may say so of what it was then; so not where its bytes are on their
    /// way.
    pub fn is_waited_for_as_new(&self, addr: u64) -> bool {
        self.runs_waited_for(addr).any(|run| run & RUN_CLOSED != 0) && !self.is_delivered(addr)
    }

    fn is_delivered(&self, addr: u64) -> bool {
        (0..DELIVERIES_ALL).any(|index| {
            if self.state_of(index).load(Ordering::SeqCst) == FREE {
                return false;
            }
            // SAFETY: the index is below DELIVERIES_ALL, and any bytes are a delivery.
            let delivery = unsafe { self.delivery(index).read_volatile() };
            addr.checked_sub(delivery.addr)
                .is_some_and(|offset| offset / (PAGE_SIZE as u64) < delivery.pages.into())
        })
    }

    fn runs_waited_for(&self, addr: u64) -> impl Iterator<Item = usize> {
        let is_it = move |index: &usize| self.word64(self.waiter(*index).0).load(Ordering::SeqCst) == addr;
        (0..WAITERS).filter(is_it).map(|index| {
            // SAFETY: the index is below WAITERS; only the address is taken.
            let run = unsafe { addr_of_mut!((*self.link()).waiters[index].run) };
            self.word32(run).load(Ordering::SeqCst) as usize
        })
    }

    /// Of a waiter: its page, and its futex.
    fn waiter(&self, index: usize) -> (*mut u64, *mut u32) {
        assert!(index < WAITERS, "there are {WAITERS} waiters");
        // SAFETY: the index is below WAITERS; only addresses are taken.
        unsafe {
            let waiter = addr_of_mut!((*self.link()).waiters).cast::<Waiter>().add(index);
            (addr_of_mut!((*waiter).page), addr_of_mut!((*waiter).woken))
        }
    }

    /// Whoever waits for one of these pages looks again.
    pub fn wake(&self, addr: u64, pages: usize) {
        let end = addr + (pages * PAGE_SIZE) as u64;
        self.wake_if(|page| (addr..end).contains(&page));
    }

    fn wake_all(&self) {
        self.wake_if(|page| page != 0);
    }

    fn wake_if(&self, is_meant: impl Fn(u64) -> bool) {
        for index in 0..WAITERS {
            let (page, woken) = self.waiter(index);
            if is_meant(self.word64(page).load(Ordering::SeqCst)) {
                self.word32(woken).fetch_add(1, Ordering::SeqCst);
                wake_futex(woken);
            }
        }
    }

    /// Command `seq` may take pages out from now on.
    pub fn open(&self, seq: u32) {
        self.take_word().store(open(seq), Ordering::SeqCst);
    }

    /// Nothing more is taken out by command `seq`. How far it has come: a run, and pages of it, which are in
    /// staging; of the runs before, what is noted in each.
    pub fn cut(&self, seq: u32) -> Option<(u32, u32)> {
        committed_of(self.take_word().swap(CUT, Ordering::SeqCst), seq)
    }

    fn take_word(&self) -> &AtomicU64 {
        // SAFETY: only the address is taken.
        self.word64(unsafe { addr_of_mut!((*self.link()).take) })
    }

    /// May threads of the process bring pages by themselves? Where slots are about to be given other pages,
    /// without a fill or a change: no more from here on.
    pub fn allow_early(&self, allows: bool) {
        // SAFETY: only the address is taken.
        self.word64(unsafe { addr_of_mut!((*self.link()).allows_early) })
            .store(allows.into(), Ordering::SeqCst);
    }

    /// Only this thread is to bring pages by itself, whose ever it is; 0: all may.
    pub fn show_token(&self, tid: u32) {
        // SAFETY: only the address is taken.
        let token = self.word64(unsafe { addr_of_mut!((*self.link()).token) });
        // The line is read with every fault of the process, so it is written only where it changes.
        if token.load(Ordering::Relaxed) != u64::from(tid) {
            token.store(tid.into(), Ordering::Relaxed);
        }
    }

    /// Are threads to ask for all pages, for the sake of what these name?
    pub fn show_names_followed(&self, are_followed: bool) {
        // SAFETY: only the address is taken.
        let field = self.word64(unsafe { addr_of_mut!((*self.link()).names_followed) });
        // As with the token.
        if field.load(Ordering::Relaxed) != u64::from(are_followed) {
            field.store(are_followed.into(), Ordering::Relaxed);
        }
    }

    /// Which windows are not worth bringing, as the engine has it.
    pub fn show_distrusted(&self, windows: u64) {
        // SAFETY: only the address is taken.
        let field = self.word64(unsafe { addr_of_mut!((*self.link()).distrusted) });
        // As with the token.
        if field.load(Ordering::Relaxed) != windows {
            field.store(windows, Ordering::Relaxed);
        }
    }

    /// Of what device slots are to be told.
    pub fn pool(&self) -> Option<u8> {
        self.pool
    }

    /// These pages, by their addresses, are in these slots. Not told where a change would not know of it, or
    /// the agent has not read what was told before.
    pub fn hint(&self, hints: &[Hint]) {
        let _delivering = self.delivering.lock().expect("delivering");
        if !self.control.lock() {
            return;
        }
        if !self.is_changing() {
            let link = self.link();
            // SAFETY: only addresses are taken.
            let (head, tail) =
                unsafe { (addr_of_mut!((*link).hints_head), addr_of_mut!((*link).hints_tail)) };
            let (head, tail) = (self.word64(head), self.word64(tail));
            let (mut at, read) = (head.load(Ordering::SeqCst), tail.load(Ordering::SeqCst));
            let room = (HINTS as u64).saturating_sub(at.wrapping_sub(read)) as usize;
            for hint in hints.iter().take(room) {
                // SAFETY: the index is below HINTS; the agent does not read it before the head says so.
                unsafe {
                    addr_of_mut!((*link).hints).cast::<Hint>().add(at as usize % HINTS).write_volatile(*hint);
                }
                at = at.wrapping_add(1);
            }
            head.store(at, Ordering::SeqCst);
        }
        self.control.unlock();
    }

    /// Has the process brought pages that are not noted? (One that another thread is noting it may have to
    /// leave for later.)
    pub fn has_early(&self) -> bool {
        (0..EARLY).any(|index| self.early(index).load(Ordering::SeqCst) & EARLY_STATE >= HERE)
    }

    /// Is there something to be noted, or said of what can be?
    pub fn waits_for_note(&self) -> bool {
        self.has_early() || self.was_shown_no_room()
    }

    /// So many pages lie there that are not noted.
    pub fn early_pages(&self) -> u64 {
        (0..EARLY).filter(|index| self.early(*index).load(Ordering::Relaxed) & EARLY_STATE >= HERE).count()
            as u64
    }

    /// Threads have been told that there is no room, and ask for each page.
    fn was_shown_no_room(&self) -> bool {
        // SAFETY: only the address is taken.
        let run = self.word64(unsafe { addr_of_mut!((*self.link()).early_run) });
        self.pool.is_some() && run.load(Ordering::Relaxed) == 0
    }

    /// What the process has brought by itself: of each page, and the thread that has brought it, `note` says
    /// whether it has been noted, or is to be told again later. One at a time has a page: told twice it might
    /// have left in between.
    pub fn note_early(&self, mut note: impl FnMut(Early) -> bool) {
        // SAFETY: only the address is taken.
        let count = self.word64(unsafe { addr_of_mut!((*self.link()).early_noted) });
        let mut noted = 0;
        // As they were taken: about the oldest one first.
        let first = count.load(Ordering::Relaxed) as usize % EARLY;
        for index in (first..EARLY).chain(0..first) {
            let entry = self.early(index);
            let seen = entry.load(Ordering::SeqCst);
            let page = seen & EARLY_PAGE;
            let noting = page | NOTING;
            if seen & EARLY_STATE != HERE
                || entry.compare_exchange(seen, noting, Ordering::SeqCst, Ordering::SeqCst).is_err()
            {
                continue;
            }
            // SAFETY: in bounds.
            let (tid, left_out) = unsafe {
                let link = self.link();
                let left_out = addr_of_mut!((*link).early_left_out[index]).read_volatile();
                (addr_of_mut!((*link).early_tids[index]).read_volatile(), LeftOut::of(left_out))
            };
            let early = Early { page, tid, comes_along: seen & ALONG != 0, left_out: beside(page, left_out) };
            let is_noted = page >= crate::USER_END || note(early);
            entry.store(if is_noted { 0 } else { seen }, Ordering::SeqCst);
            noted += u64::from(is_noted);
        }
        if noted > 0 {
            count.fetch_add(noted, Ordering::SeqCst);
            self.let_write();
        }
    }

    fn early(&self, index: usize) -> &AtomicU64 {
        assert!(index < EARLY, "there are {EARLY} entries");
        // SAFETY: in bounds; only the address is taken.
        self.word64(unsafe { addr_of_mut!((*self.link()).early[index]) })
    }

    /// A page of staging.
    pub fn read_staging(&self, page: u32, into: &mut Page) {
        assert!(page < STAGING_PAGES, "staging has {STAGING_PAGES} pages");
        // SAFETY: within the part of the file that is staging. The agent may write it meanwhile: then its own
        // process has other bytes than it had.
        unsafe {
            let from = self.control.file().add(STAGING_AT + page as usize * PAGE_SIZE);
            std::ptr::copy_nonoverlapping(from, into.0.as_mut_ptr(), PAGE_SIZE);
        }
    }

    /// The first pages of a half of staging have been read: they may be given back. By whoever has the batch
    /// lock, and only when the evictor has answered: until then it may put back into its process what lies
    /// there.
    pub fn have_read_staging(&self, half: usize, pages: u32) {
        let Some(given) = self.staged.note(half, pages) else { return };
        let first = half * HALF_PAGES as usize + given.start as usize;
        assert!(first + given.len() <= STAGING_PAGES as usize, "staging has {STAGING_PAGES} pages");
        // SAFETY: within the part of the file that is staging, of which nothing is referred to.
        unsafe {
            let from = self.control.file().add(STAGING_AT + first * PAGE_SIZE);
            libc::madvise(from.cast(), given.len() * PAGE_SIZE, libc::MADV_REMOVE);
        }
    }

    fn is_gone(&self) -> bool {
        self.alive.get().is_some_and(Pidfd::has_ended)
    }
}

/// The page that was left out, if it can have been: whatever the process says.
fn beside(page: u64, left_out: LeftOut) -> Option<(u64, usize)> {
    let LeftOut { pages, distance } = left_out;
    let away = i64::from(distance) * PAGE_SIZE as i64;
    let is_of_a_window = distance != 0 && usize::from(distance.unsigned_abs()) < usize::from(pages);
    let beside = page.checked_add_signed(away).filter(|beside| *beside < crate::USER_END);
    beside
        .filter(|_| is_of_a_window && usize::from(pages) <= EARLY_BLOCK_MAX)
        .map(|beside| (beside, pages.into()))
}

fn wake_futex(word: *mut u32) {
    // SAFETY: a wake on an address in our own mapping.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Port::Kernel(uffd) => uffd.as_fd(),
            Port::Agent(link) => link.bell.as_fd(),
        }
    }
}

/// As of a userfaultfd.
impl Port {
    pub fn agent(&self) -> Option<&AgentLink> {
        match self {
            Port::Kernel(_) => None,
            Port::Agent(link) => Some(link),
        }
    }

    pub fn api(&self, features: u64) -> io::Result<u64> {
        match self {
            Port::Kernel(uffd) => uffd.api(features),
            Port::Agent(_) => Ok(features),
        }
    }

    pub fn register(&self, addr: u64, len: u64) -> Result<(), i32> {
        match self {
            Port::Kernel(uffd) => uffd.register(addr, len),
            Port::Agent(_) => Ok(()),
        }
    }

    /// As of [`Uffd`]; an agent's pages cannot be protected.
    pub fn register_to_protect(&self, addr: u64, len: u64) -> Result<(), i32> {
        match self {
            Port::Kernel(uffd) => uffd.register_to_protect(addr, len),
            Port::Agent(_) => Err(libc::ENOTSUP),
        }
    }

    pub fn protect(&self, addr: u64, len: u64) -> Result<(), i32> {
        match self {
            Port::Kernel(uffd) => uffd.protect(addr, len),
            Port::Agent(_) => Err(libc::ENOTSUP),
        }
    }

    pub fn unprotect(&self, addr: u64, len: u64) -> Result<(), i32> {
        match self {
            Port::Kernel(uffd) => uffd.unprotect(addr, len),
            Port::Agent(_) => Err(libc::ENOTSUP),
        }
    }

    pub fn unregister(&self, addr: u64, len: u64) -> Result<(), i32> {
        match self {
            Port::Kernel(uffd) => uffd.unregister(addr, len),
            Port::Agent(_) => Ok(()),
        }
    }

    pub fn wake(&self, addr: u64, len: u64) {
        match self {
            Port::Kernel(uffd) => uffd.wake(addr, len),
            Port::Agent(link) => link.wake(addr, len as usize / PAGE_SIZE),
        }
    }

    pub fn copy(&self, dst: u64, src: &[u8]) -> Fill {
        match self {
            Port::Kernel(uffd) => uffd.copy(dst, src),
            Port::Agent(link) => link.deliver(dst, src.len() / PAGE_SIZE, Content::Bytes(src)),
        }
    }

    /// An agent wakes whom it delivers to.
    pub fn copy_without_wake(&self, dst: u64, src: &[u8]) -> Fill {
        match self {
            Port::Kernel(uffd) => uffd.copy_without_wake(dst, src),
            Port::Agent(link) => link.deliver(dst, src.len() / PAGE_SIZE, Content::Bytes(src)),
        }
    }

    pub fn zeropage(&self, dst: u64, len: u64) -> Fill {
        match self {
            Port::Kernel(uffd) => uffd.zeropage(dst, len),
            Port::Agent(link) => link.deliver(dst, len as usize / PAGE_SIZE, Content::Zeros),
        }
    }

    pub fn poison(&self, dst: u64, len: u64) -> Fill {
        match self {
            Port::Kernel(uffd) => uffd.poison(dst, len),
            Port::Agent(link) => link.deliver(dst, len as usize / PAGE_SIZE, Content::Lost),
        }
    }

    pub fn is_changing(&self) -> bool {
        match self {
            Port::Kernel(uffd) => uffd.is_changing(),
            Port::Agent(link) => link.is_changing(),
        }
    }

    pub fn is_registered(&self, addr: u64) -> Option<bool> {
        match self {
            Port::Kernel(uffd) => uffd.is_registered(addr),
            Port::Agent(_) => Some(false),
        }
    }

    pub fn is_registered_shared(&self, addr: u64) -> Option<bool> {
        match self {
            Port::Kernel(uffd) => uffd.is_registered_shared(addr),
            Port::Agent(_) => Some(false),
        }
    }

    pub fn is_gone(&self) -> bool {
        match self {
            Port::Kernel(uffd) => uffd.is_gone(),
            Port::Agent(link) => link.is_gone(),
        }
    }

    pub fn is_readable(&self) -> bool {
        match self {
            Port::Kernel(uffd) => uffd.is_readable(),
            Port::Agent(link) => link.has_messages(),
        }
    }

    pub fn read(&self, out: &mut Vec<Event>) -> io::Result<usize> {
        match self {
            Port::Kernel(uffd) => uffd.read(out),
            Port::Agent(link) => link.read(out),
        }
    }

    pub fn read_one(&self, out: &mut Vec<Event>) -> io::Result<usize> {
        match self {
            Port::Kernel(uffd) => uffd.read_one(out),
            Port::Agent(link) => link.read_some(out, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7000_0000;

    fn new_link() -> AgentLink {
        use rustix::event::{EventfdFlags, eventfd};
        let (control, _fd) = ControlPage::with_link().unwrap();
        AgentLink::new(Arc::new(control), eventfd(0, EventfdFlags::NONBLOCK).unwrap(), None)
    }

    /// As an agent does.
    fn write(link: &AgentLink, kind: u32, addr: u64, end: u64) {
        let [head, ..] = link.counts();
        let message = Message { kind, tid: 1, addr, end, to: 0 };
        let index = head.load(Ordering::SeqCst) as usize % RING;
        // SAFETY: the index is below RING.
        unsafe { addr_of_mut!((*link.link()).ring).cast::<Message>().add(index).write_volatile(message) };
        head.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn nothing_is_delivered_before_all_of_a_change_was_read() {
        let (link, page, mut events) = (new_link(), vec![7; PAGE_SIZE], Vec::new());
        let [_, _, changes, _] = link.counts();
        changes.fetch_add(1, Ordering::SeqCst);
        write(&link, UNMAP, AT, AT + PAGE_SIZE as u64);
        assert_eq!(link.read(&mut events).unwrap(), 1);
        assert!(matches!(events[..], [Event::Unmap { start: AT, .. }]));
        assert_eq!(link.deliver(AT, 1, Content::Bytes(&page)).stop, Stop::Again);
        write(&link, END, 0, 0);
        assert_eq!(link.read(&mut events).unwrap(), 1);
        assert_eq!((link.deliver(AT, 1, Content::Bytes(&page)).stop, events.len()), (Stop::Done, 1));
        assert_eq!(link.state_of(0).load(Ordering::SeqCst), FULL);
    }

    #[test]
    fn what_was_left_out_is_beside_its_page_whatever_the_process_says() {
        let left_out = |distance, pages| beside(AT, LeftOut { pages, distance });
        let pages = PAGE_SIZE as u64;
        assert_eq!(left_out(3, 4), Some((AT + 3 * pages, 4)));
        assert_eq!(left_out(-63, 64), Some((AT - 63 * pages, 64)));
        assert_eq!([left_out(0, 0), left_out(0, 4), left_out(4, 4), left_out(-4, 4)], [None; 4]);
        assert_eq!([left_out(1, 65), left_out(i16::MIN, u16::MAX)], [None; 2]);
        let at_ends = [(0, -1), (crate::USER_END - pages, 1)];
        assert_eq!(at_ends.map(|(page, distance)| beside(page, LeftOut { pages: 4, distance })), [None; 2]);
    }

    #[test]
    fn faults_are_read_by_themselves_where_nothing_changes() {
        let (link, mut events, end) = (new_link(), Vec::new(), AT + PAGE_SIZE as u64);
        let [_, _, changes, _] = link.counts();
        write(&link, FAULT, AT, end);
        assert_eq!(link.read_faults(&mut events).unwrap(), Some(1));
        changes.fetch_add(1, Ordering::SeqCst);
        write(&link, FAULT, AT, end);
        assert_eq!(link.read_faults(&mut events).unwrap(), None);
        write(&link, UNMAP, AT, end);
        write(&link, END, 0, 0);
        assert_eq!(link.read_faults(&mut events).unwrap(), None);
        assert_eq!(link.read(&mut events).unwrap(), 3);
        events.clear();
        assert_eq!(link.read_faults(&mut events).unwrap(), Some(0));
        // A change that was not announced.
        write(&link, UNMAP, AT, end);
        assert!(link.read_faults(&mut Vec::new()).is_err());
    }

    #[test]
    fn what_finds_no_place_is_for_later() {
        let (link, pages) = (new_link(), vec![7; PAGE_SIZE * DELIVERY_PAGES * (DELIVERIES + 1)]);
        let fill = link.deliver(AT, DELIVERY_PAGES * (DELIVERIES + 1), Content::Bytes(&pages));
        assert_eq!(fill.stop, Stop::Again);
        assert_eq!(fill.bytes as usize, PAGE_SIZE * DELIVERY_PAGES * DELIVERIES);
    }

    #[test]
    fn pages_that_nobody_has_asked_for_leave_the_places_of_others() {
        let (link, page) = (new_link(), vec![7; PAGE_SIZE]);
        let room = link.room_for_unasked();
        for n in 0..room {
            assert_eq!(link.deliver_unasked(AT + n * PAGE_SIZE as u64, &page).stop, Stop::Done);
        }
        assert_eq!(link.room_for_unasked(), 0);
        let pages = vec![7; PAGE_SIZE * DELIVERY_PAGES * DELIVERIES];
        let fill = link.deliver(AT << 1, DELIVERY_PAGES * DELIVERIES, Content::Bytes(&pages));
        assert_eq!(fill.stop, Stop::Done);
        let [_, _, changes, _] = link.counts();
        link.state_of(DELIVERIES).store(FREE, Ordering::SeqCst);
        changes.fetch_add(1, Ordering::SeqCst);
        assert_eq!(link.deliver_unasked(AT, &page).stop, Stop::Again, "a change is under way");
    }

    /// One that was woken and has not run since says of the page what it was before it was written.
    #[test]
    fn a_page_whose_bytes_are_on_their_way_is_not_new() {
        let (link, page) = (new_link(), vec![7; PAGE_SIZE]);
        assert!(!link.is_waited_for_as_new(AT));
        // SAFETY: in bounds; only the address is taken.
        let run = unsafe { addr_of_mut!((*link.link()).waiters[3].run) };
        link.word32(run).store((4 | RUN_CLOSED) as u32, Ordering::SeqCst);
        link.word64(link.waiter(3).0).store(AT, Ordering::SeqCst);
        link.deliver_unasked(AT + PAGE_SIZE as u64, &page);
        assert!(link.is_waited_for_as_new(AT));
        link.deliver_unasked(AT, &page);
        assert!(!link.is_waited_for_as_new(AT));
        link.state_of(DELIVERIES + 1).store(FREE, Ordering::SeqCst);
        assert!(link.is_waited_for_as_new(AT));
    }

    #[test]
    fn numbers_that_cannot_be_true_are_refused() {
        let page = PAGE_SIZE as u64;
        for (kind, addr, end) in
            [(UNMAP, AT + 1, AT + page), (FAULT, AT, AT), (REMOVE, AT, !(page - 1)), (9, AT, AT + page)]
        {
            let link = new_link();
            write(&link, kind, addr, end);
            assert!(link.read(&mut Vec::new()).is_err(), "{kind} {addr:#x} {end:#x}");
        }
        let link = new_link();
        link.counts()[0].store(RING as u64 + 1, Ordering::SeqCst);
        assert!(link.read(&mut Vec::new()).is_err());
    }

    #[test]
    fn a_late_command_is_cut_where_it_stands() {
        use memspill_agent::link::committed;
        let link = new_link();
        link.open(5);
        assert_eq!(link.cut(5), None);
        link.open(6);
        let seen = link.take_word().swap(committed(6, 2, 64), Ordering::SeqCst);
        assert_eq!((seen, link.cut(6), link.cut(6)), (open(6), Some((2, 64)), None));
    }
}
