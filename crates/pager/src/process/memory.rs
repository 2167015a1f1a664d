//! A process's memory as the engine sees it ([`Memory`]): its port, and how pages are put in.
//!
//! ```text
//!   take:  port/
//!   put:   from our buffer, not over guards, not beyond the mapping, not where memory is shared
//! ```

use crate::proc::RESERVE_BYTES;
use crate::process::agent::Agent;
use crate::process::bytes::bytes_of;
use crate::process::copies::Copies;
use crate::process::port::{Owner, Port};
use crate::process::ranges::{Range, Ranges};
use crate::process::reserves::Reserves;
use crate::process::shared::SharedMappings;
use crate::times::now_us;
use memspill_engine::fill::WINDOW_MAX;
use memspill_engine::memory::{Fill, Memory, PageRun, Stop, Take};
use memspill_engine::units::{PAGE_SIZE, Page, Vpn};
use memspill_engine::word::SwapEntry;
use memspill_uffd::{procmap, userfaultfd};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// The waiting thread is woken and faults again; the second fault is then recognised as one on shared memory.
const NOT_OURS: Fill = Fill { pages: 0, stop: Stop::NotMapped };

/// [`Port::copy`], or without waking.
type CopyBy = fn(&Port, u64, &[u8]) -> userfaultfd::Fill;

pub struct ProcessMemory {
    pub port: Port,
    /// Thread group id; 0 until it is known (the child of a fork, until its first fault).
    pub pid: AtomicU32,
    agent: OnceLock<Agent>,
    /// Where managed shared memory is mapped.
    pub shared: SharedMappings,
    /// The copies of pages that a fork has left shared.
    pub copies: Copies,
    /// The process's memory could not be read any more: nothing can be trusted, it must die.
    pub broken: AtomicBool,
    /// Some of what is managed is writable and executable (see `MOVE_EXEC`).
    pub has_exec: AtomicBool,
    /// Ranges that may be filled though they cannot be accessed yet.
    pub reserves: Reserves,
    /// A guard was seen in this memory.
    guards_seen: AtomicBool,
    /// A window has met the end of a mapping.
    torn: AtomicBool,
    /// Staging is being read by us.
    reading: AtomicBool,
    /// Pages that were to leave and cannot as they are mapped, since they were asked for last.
    unmoved: Mutex<Ranges>,
    /// All of its threads are to stand still: their faults wait for no room.
    is_opening: AtomicBool,
    /// When the last try to take out what the program may not write began.
    opened_us: AtomicU64,
    /// Since when all tries have failed; 0: the last one has not.
    failing_us: AtomicU64,
}

impl ProcessMemory {
    pub fn new(port: Port, pid: u32) -> ProcessMemory {
        ProcessMemory {
            port,
            pid: AtomicU32::new(pid),
            agent: OnceLock::new(),
            shared: SharedMappings::default(),
            copies: Copies::default(),
            broken: AtomicBool::new(false),
            has_exec: AtomicBool::new(false),
            reserves: Reserves::default(),
            guards_seen: AtomicBool::new(false),
            torn: AtomicBool::new(false),
            reading: AtomicBool::new(false),
            unmoved: Mutex::default(),
            is_opening: AtomicBool::new(false),
            opened_us: AtomicU64::new(0),
            failing_us: AtomicU64::new(0),
        }
    }
    pub fn attached_agent(&self) -> Option<&Agent> {
        self.agent.get()
    }
    pub fn attach(&self, agent: Agent) -> bool {
        self.agent.set(agent).is_ok()
    }
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }
    /// The thread under whose id /proc shows this address space; 0 if not known yet, or no more. (Once the
    /// first thread has called pthread_exit, the process id shows none.)
    pub fn proc_id(&self) -> u32 {
        match self.attached_agent() {
            // Its number would soon name another.
            Some(agent) if !agent.lives() => 0,
            Some(agent) => agent.evictor.tid,
            None => self.pid(),
        }
    }
}

impl Memory for ProcessMemory {
    fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        match self.owner() {
            Some(owner) => self.port.take(&owner, runs, frames, outcome),
            None => outcome.extend(runs.iter().flat_map(|run| (0..run.pages).map(|_| Take::Busy))),
        }
    }

    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        self.put_by(Port::copy, vpn, pages)
    }

    fn put_without_wake(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        self.put_by(Port::copy_without_wake, vpn, pages)
    }

    fn put_unasked(&self, vpn: Vpn, page: &[Page]) -> Fill {
        if self.is_shared(vpn, page.len()) {
            return NOT_OURS;
        }
        let open = match self.attached_agent() {
            Some(agent) if !self.port.keeps_guards() => self.before_guard(agent, vpn, page.len()),
            _ => page.len(),
        };
        self.put_open(Port::copy_unasked, vpn, page, open)
    }

    fn room_for_unasked(&self) -> u64 {
        self.port.room_for_unasked()
    }

    fn put_zero(&self, vpn: Vpn, pages: usize, write: bool) -> Fill {
        static ZEROS: [Page; WINDOW_MAX] = [Page::ZERO; WINDOW_MAX];
        if self.is_shared(vpn, pages) {
            return NOT_OURS;
        }
        // The agent knows which pages are away, also where others came unnoticed, or cannot be accessed.
        match self.port.run_away(vpn.addr()) {
            None => {}
            Some(0) => return NOT_OURS,
            Some(run) => {
                return self.filled_in_part(pages, pages.min(run), |pages| {
                    fill(self.port.zeropage(vpn.addr(), (pages * PAGE_SIZE) as u64))
                });
            }
        }
        let (accessible, reserved) = self.accessible(vpn, pages);
        // Without an agent nobody can look for guards. UFFDIO_ZEROPAGE does not replace them.
        let copies = write && (pages == 1 || self.attached_agent().is_some());
        let reach = accessible + reserved;
        let reach = if copies { self.without_guard(vpn, reach) } else { reach };
        let (open, reserved) = (reach.min(accessible), reach.saturating_sub(accessible));
        let zeros = |vpn: Vpn, pages: usize| {
            fill(match copies {
                true => self.port.copy(vpn.addr(), bytes_of(&ZEROS[..pages])),
                false => self.port.zeropage(vpn.addr(), (pages * PAGE_SIZE) as u64),
            })
        };
        if reserved == 0 {
            return self.filled_in_part(pages, open, |open| zeros(vpn, open));
        }
        self.filled_in_part(pages, open + reserved, |_| {
            let filled = zeros(vpn, open);
            if filled.stop != Stop::Done {
                return filled;
            }
            // By a call of its own: it is another mapping.
            let behind = zeros(Vpn(vpn.0 + open as u64), reserved);
            let stop = if behind.stop == Stop::Again { Stop::Again } else { Stop::Exists };
            let stop = if behind.pages == reserved { Stop::Done } else { stop };
            Fill { pages: open + behind.pages, stop }
        })
    }

    fn zeros_max(&self) -> usize {
        self.port.zeros_max()
    }

    fn filled(&self, vpn: Vpn, pages: usize) {
        self.port.filled(vpn.addr(), pages);
    }

    fn put_vanished(&self, vpn: Vpn) -> Fill {
        match self.port.is_new(vpn.addr()) {
            None => self.put_zero(vpn, 1, true),
            // It was emptied without a word, or taken for a page where none was.
            Some(true) => fill(self.port.zeropage(vpn.addr(), PAGE_SIZE as u64)),
            // The agent tells of each page that it takes out: this one is there, or on its way.
            Some(false) => Fill { pages: 0, stop: Stop::Exists },
        }
    }

    fn wants_stored(&self) -> bool {
        self.port.wants_stored()
    }

    fn stored(&self, pages: &[(Vpn, SwapEntry)]) {
        self.port.tell_stored(pages);
    }

    fn poison(&self, vpn: Vpn) {
        if !self.is_shared(vpn, 1) {
            self.port.poison(vpn.addr(), PAGE_SIZE as u64);
        }
    }

    fn wake(&self, vpn: Vpn, pages: usize) {
        self.port.wake(vpn.addr(), (pages * PAGE_SIZE) as u64);
    }
}

impl ProcessMemory {
    /// Is managed shared memory mapped there? A page put there would be the object's, for everybody. Inside
    /// the gate, where the list is true unless the kernel refuses the fill.
    fn is_shared(&self, vpn: Vpn, pages: usize) -> bool {
        self.shared.intersects(vpn.addr(), vpn.addr() + (pages * PAGE_SIZE) as u64)
    }

    /// How many of these pages, from the first one on, have no guard over them (MADV_GUARD_INSTALL).
    /// UFFDIO_COPY would put a page in a guard's place.
    ///
    /// A single page is the one that faulted, so it had none then: it is looked at only where the program
    /// uses guards. A guard that comes between this look and the fill is lost, unless the agent saw it
    /// (`agent/hooks/madvise.rs`).
    fn without_guard(&self, vpn: Vpn, pages: usize) -> usize {
        let Some(agent) = self.attached_agent() else { return pages };
        if pages == 1 && !self.guards_seen.load(Ordering::Relaxed) && !agent.evictor.control.has_guards() {
            return pages;
        }
        self.before_guard(agent, vpn, pages)
    }

    /// The same by a look.
    fn before_guard(&self, agent: &Agent, vpn: Vpn, pages: usize) -> usize {
        let end = vpn.addr() + (pages * PAGE_SIZE) as u64;
        let mut first_guard = end;
        // A page of which nothing can be told (before Linux 6.15, or at the end of the process) is taken for
        // no guard.
        let _ = agent.each_guarded(vpn.addr(), end, |from, _| first_guard = first_guard.min(from));
        if first_guard < end {
            self.note_guards();
        }
        (first_guard - vpn.addr()) as usize / PAGE_SIZE
    }

    fn put_by(&self, copy: CopyBy, vpn: Vpn, pages: &[Page]) -> Fill {
        if self.is_shared(vpn, pages.len()) {
            return NOT_OURS;
        }
        let all = pages.len();
        let open = if self.port.keeps_guards() { all } else { self.without_guard(vpn, all) };
        self.put_open(copy, vpn, pages, open)
    }

    fn put_open(&self, copy: CopyBy, vpn: Vpn, pages: &[Page], open: usize) -> Fill {
        self.filled_in_part(pages.len(), open, |open| {
            fill(copy(&self.port, vpn.addr(), bytes_of(&pages[..open])))
        })
    }

    /// Fill `open` of `pages`, and say of the next one that it is not to be filled. A thread that waits for a
    /// guarded page is woken by that, and gets its SIGSEGV. While a change is under way, what stands in the
    /// way may be on what came after it: the engine asks again when the change has been told.
    fn filled_in_part(&self, pages: usize, open: usize, fill: impl FnOnce(usize) -> Fill) -> Fill {
        if open == pages {
            return fill(pages);
        }
        // After the look that has found it.
        if self.port.is_changing() {
            return Fill { pages: 0, stop: Stop::Again };
        }
        let filled = if open > 0 { fill(open) } else { Fill { pages: 0, stop: Stop::Done } };
        match filled.stop {
            Stop::Done => Fill { stop: Stop::Exists, ..filled },
            _ => filled,
        }
    }

    /// A guard was seen: from now on every page is looked at for one before it is filled, single pages too.
    pub fn note_guards(&self) {
        self.guards_seen.store(true, Ordering::Relaxed);
    }

    /// How many of these pages, from the first one on, lie in a mapping that can be accessed, and how many
    /// behind them in what this one grows into (`MappingKind::Reserve`). A window that goes on into another
    /// PROT_NONE part of what was one mapping would fill pages that nobody uses and that cannot be taken out.
    /// (Pages of a reserve can be once it is opened: `reserves.rs`.) A single page is the one that faulted,
    /// or the rest of such a window.
    fn accessible(&self, vpn: Vpn, pages: usize) -> (usize, usize) {
        let maps = match self.attached_agent() {
            Some(agent) if pages > 1 || self.torn.load(Ordering::Relaxed) => agent.maps(),
            _ => None,
        };
        // Memory of which nothing can be told (before Linux 6.11, or at the end of the process) is taken for
        // accessible.
        let Some(maps) = maps else { return (pages, 0) };
        let until = |end: u64| pages.min(((end - vpn.addr()) / PAGE_SIZE as u64) as usize);
        let (accessible, reach) = match procmap::accessible_until(maps, vpn.addr()) {
            Ok(Some(end)) if until(end) < pages => (until(end), until(self.reserve_end(maps, end))),
            Ok(None) => (0, 0),
            Ok(Some(_)) | Err(_) => (pages, pages),
        };
        if reach < pages {
            self.torn.store(true, Ordering::Relaxed);
        }
        (accessible, reach - accessible)
    }

    /// The end of the reserve that begins at `start`; `start` if there is none that may be filled.
    fn reserve_end(&self, maps: &File, start: u64) -> u64 {
        let is_reserve = |behind: &procmap::Mapping| {
            let bytes = behind.end - behind.start;
            behind.start == start && !behind.accessible && behind.anonymous && RESERVE_BYTES.contains(&bytes)
        };
        let reserve = procmap::first_from(maps, start).ok().flatten().filter(is_reserve);
        let reserve = reserve.filter(|reserve| self.reserves.may_be_filled(start, reserve.end));
        reserve.map_or(start, |reserve| reserve.end)
    }

    /// Registers memory as the rest of it is, so that neighbours become one mapping.
    pub fn register(&self, addr: u64, len: u64) -> Result<(), i32> {
        match self.copies.has_protected() {
            true => self.port.register_to_protect(addr, len),
            false => self.port.register(addr, len),
        }
    }

    /// Make pages that a fork has left shared the process's own, so that they can be moved. Under the evictor
    /// lock alone: it may fault, and the fault must find the batch lock free. False: it has not been done
    /// yet.
    pub fn populate(&self, pages: &[Vpn]) -> bool {
        if self.copies.has_protected() {
            // Else each would be a fault of the evictor's.
            let ranges: Ranges =
                pages.iter().map(|vpn| (vpn.addr(), vpn.addr() + PAGE_SIZE as u64)).collect();
            for (start, end) in ranges.iter() {
                let _ = self.port.unprotect(start, end - start);
            }
        }
        self.port.populate(self.owner().as_ref(), pages)
    }

    /// None: the process has no evictor that can be told something.
    fn owner(&self) -> Option<Owner<'_>> {
        let agent = self.serving_agent()?;
        let has_exec = self.has_exec.load(Ordering::Relaxed);
        Some(Owner { agent, has_exec, broken: &self.broken, reading: &self.reading, unmoved: &self.unmoved })
    }

    /// The agent, once commands may be sent to it.
    pub fn serving_agent(&self) -> Option<&Agent> {
        self.attached_agent().filter(|agent| agent.serves())
    }

    /// A call of the agent that was passed on has been carried out: its caller goes on.
    pub fn answer_call(&self, doorbell: usize) {
        let Some(agent) = self.attached_agent() else { return };
        agent.evictor.control.answer_call(doorbell);
        if !self.port.has_doorbells() {
            return;
        }
        let page = agent.ready.doorbell_addr + doorbell as u64 * PAGE_SIZE as u64;
        // If that cannot be done just now (an event is to be read), the caller faults again, and is answered.
        self.port.zeropage(page, PAGE_SIZE as u64);
        self.port.wake(page, PAGE_SIZE as u64);
    }

    /// All threads of the process are about to stand still, or stand.
    pub fn is_opening(&self) -> bool {
        self.is_opening.load(Ordering::SeqCst)
    }

    pub fn begin_opening(&self) {
        self.opened_us.store(now_us(), Ordering::Relaxed);
        self.is_opening.store(true, Ordering::SeqCst);
    }

    fn has_failed(&self) -> bool {
        self.failing_us.load(Ordering::Relaxed) != 0
    }

    /// Memory that could not be opened now is asked for again.
    pub fn note_unmoved(&self, ranges: &[Range]) {
        let mut unmoved = self.unmoved.lock().expect("unmoved");
        ranges.iter().for_each(|(start, end)| unmoved.insert(*start, *end));
    }

    /// Does what the program may not write stay, as far as is known?
    pub fn keeps_closed(&self) -> bool {
        const FAILS_US: u64 = 5_000_000;
        self.has_failed() && now_us() > self.failing_us.load(Ordering::Relaxed) + FAILS_US
    }

    /// Pages that could not be moved then either are not tried again with the next batch.
    pub fn end_opening(&self, has_failed: bool) {
        match has_failed {
            true if self.has_failed() => {}
            true => self.failing_us.store(now_us(), Ordering::Relaxed),
            false => self.failing_us.store(0, Ordering::Relaxed),
        }
        self.is_opening.store(false, Ordering::SeqCst);
        *self.unmoved.lock().expect("unmoved") = Ranges::default();
    }

    /// Memory of which pages were to leave that the program may not write now, if there is so much of it that
    /// it is worth the trouble (or a little, and the last time is a while ago); at most so much at a time.
    pub fn take_closed(&self) -> Vec<Range> {
        const BYTES_MIN: u64 = 16 * PAGE_SIZE as u64;
        const BYTES_ENOUGH: u64 = 256 * PAGE_SIZE as u64;
        const BYTES_MAX: u64 = 512 * PAGE_SIZE as u64;
        const WHILE_US: u64 = 50_000;
        /// After a failure: all threads were stopped in vain.
        const FAILED_US: u64 = 20_000;
        let mut unmoved = self.unmoved.lock().expect("unmoved");
        let noted_bytes = unmoved.iter().map(|(start, end)| end - start).sum::<u64>();
        if noted_bytes < BYTES_MIN {
            return vec![];
        }
        let since_us = now_us() - self.opened_us.load(Ordering::Relaxed);
        if since_us < FAILED_US && self.has_failed() || since_us < WHILE_US && noted_bytes < BYTES_ENOUGH {
            return vec![];
        }
        let (mut closed, mut bytes) = (vec![], 0);
        let Some(maps) = self.attached_agent().and_then(Agent::maps) else { return vec![] };
        for (start, end) in std::mem::take(&mut *unmoved).iter() {
            let end = end.min(start + BYTES_MAX.saturating_sub(bytes));
            let mapping = procmap::first_from(maps, start).ok().flatten();
            let is_closed = |m: &procmap::Mapping| m.start <= start && m.anonymous && !m.writable;
            if start < end && mapping.as_ref().is_some_and(is_closed) {
                if mapping.is_some_and(|mapping| mapping.executable) {
                    self.has_exec.store(true, Ordering::Relaxed);
                }
                bytes += end - start;
                closed.push((start, end));
            }
        }
        if bytes < BYTES_MIN { vec![] } else { closed }
    }

    /// There was a fault on a page of staging, by thread `tid`. If that is a thread of ours, a page that was
    /// moved there is gone: what it reads now is not what the program wrote.
    pub fn staging_was_read(&self, tid: u32) {
        let is_ours = || Path::new(&format!("/proc/self/task/{tid}")).exists();
        if self.reading.load(Ordering::SeqCst) && is_ours() {
            self.broken.store(true, Ordering::SeqCst);
        }
    }
}

pub(crate) fn fill(result: userfaultfd::Fill) -> Fill {
    let stop = match result.stop {
        userfaultfd::Stop::Done => Stop::Done,
        userfaultfd::Stop::Exists => Stop::Exists,
        userfaultfd::Stop::Again => Stop::Again,
        userfaultfd::Stop::NotMapped => Stop::NotMapped,
        userfaultfd::Stop::Gone => Stop::Gone,
        userfaultfd::Stop::NoMemory => Stop::NoMemory,
        userfaultfd::Stop::Errno(errno) => Stop::Errno(errno),
    };
    Fill { pages: result.bytes as usize / PAGE_SIZE, stop }
}
