//! One managed process: its userfaultfd, its agent, and how pages are moved out of it and into it.
//!
//! [`ProcessMemory`] is the engine's `Memory` for a real address space:
//!
//! ```text
//!   take:  runs ─▶ control page ─▶ Command ─▶ evictor: UFFDIO_MOVE into staging ─▶ Reply
//!          process_vm_readv: staging ─▶ our frames;  Command ZAP: staging is emptied (nobody waits for that)
//!   put:   UFFDIO_COPY from our buffer
//! ```
//!
//! Staging has two halves, used in turn, so that a batch can be moved while the last one is still being emptied. A batch
//! that is larger than a half (a folio of more than 512 KiB) is taken in pieces.
//!
//! What comes from the target (results of the evictor) is checked: a lying agent can only lose its own process's data,
//! and is given nobody else's. What is read from staging goes back to the owner of the userfaultfd, so it must be that
//! one's: before the first batch the evictor is found to share its memory ([`ProcessMemory::is_of_one`]), after each
//! batch to be there still (its number may name somebody else's thread).

use crate::control::{ControlPage, Forbidden};
use crate::evictor::{ANSWER_WITHIN, Calls};
use crate::peer::{Life, Peer};
use crate::turn::Turn;
use memspill_agent::protocol::{Command, MOVE_EXEC, OP_EXIT, OP_MOVE, OP_POPULATE, OP_ZAP, Run as AgentRun};
use memspill_agent::protocol::{RUNS_MAX, Ready, STAGING_PAGES};
use memspill_engine::engine::BATCH_PAGES;
use memspill_engine::memory::{Fill, Memory, Run, Stop, Take};
use memspill_engine::space::Space;
use memspill_engine::units::{PAGE_SIZE, Page, Vpn};
use memspill_uffd::userfaultfd::{self, Uffd};
use memspill_uffd::vm;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

const HALF_PAGES: u32 = STAGING_PAGES / 2;
const _: () = assert!(BATCH_PAGES <= HALF_PAGES as usize, "only folios that were asked for are taken in pieces");
const _: () = assert!(HALF_PAGES as usize <= RUNS_MAX);

/// The agent inside a process, as seen from here.
pub struct Agent {
    pub socket: Arc<OwnedFd>,
    pub control: ControlPage,
    pub ready: Ready,
    /// Thread id of the evictor, as seen from here (`Ready` has the process's own view). That thread lives as long as
    /// this address space is used: not so the process's first thread, nor, after an exec, what its process id means.
    evictor_tid: u32,
    /// Of the evictor: once it has ended, its number may be another's.
    life: Life,
    /// Of its address space, whatever becomes of the number.
    pagemap: File,
    /// The same, opened when it is needed first.
    maps: OnceLock<Option<File>>,
    /// The evictor and the userfaultfd are of one address space.
    of_one: AtomicBool,
    /// The evictor has been told to go, or is just being told: it answers.
    serves: AtomicBool,
    pub(crate) calls: Calls,
    half: AtomicU32,
}

impl Agent {
    /// Of the process of `peer`, which calls itself `own_pid`.
    pub fn new(
        socket: Arc<OwnedFd>,
        control: ControlPage,
        ready: Ready,
        peer: &Peer,
        own_pid: u32,
    ) -> io::Result<Agent> {
        let pid = peer.pid;
        // Ids that differ are those of another pid namespace; to look up the evictor's there takes time.
        let evictor_tid = match pid == own_pid {
            true => ready.evictor_tid,
            false => crate::proc::evictor(pid, ready.evictor_tid).ok_or(io::ErrorKind::NotFound)?,
        };
        // A process's first thread keeps its number over an exec, and shows another program's memory then.
        if evictor_tid == pid {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let life = Life::of_thread(evictor_tid, &peer.life)?;
        // It must be a thread of this process, whatever it says.
        let pagemap = File::open(format!("/proc/{pid}/task/{evictor_tid}/pagemap"))?;
        if life.has_ended() || peer.life.has_ended() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (serves, of_one) = (AtomicBool::new(false), AtomicBool::new(false));
        let (calls, half) = (Calls::default(), AtomicU32::new(0));
        let maps = OnceLock::new();
        Ok(Agent { socket, control, ready, evictor_tid, life, pagemap, maps, of_one, serves, calls, half })
    }

    /// From now on commands may be sent. Whoever calls this lets the evictor go next, without waiting for anybody.
    pub fn set_serves(&self) {
        self.serves.store(true, Ordering::Release);
    }

    pub fn serves(&self) -> bool {
        self.serves.load(Ordering::Acquire)
    }

    /// Is this the evictor, as a fault names it?
    pub fn is_evictor(&self, fault_tid: u32) -> bool {
        fault_tid == self.ready.evictor_tid
    }

    /// /proc/PID/maps, for questions.
    fn maps(&self) -> Option<&File> {
        self.maps.get_or_init(|| File::open(format!("/proc/{}/maps", self.evictor_tid)).ok()).as_ref()
    }

    /// Runs of guards between two addresses.
    pub fn each_guarded(&self, start: u64, end: u64, found: impl FnMut(u64, u64)) -> io::Result<()> {
        memspill_uffd::pagemap::guarded(&self.pagemap, start, end, found)
    }

    /// The evictor is alone: let it end, and its process with it.
    pub fn let_exit(&self, code: u32) {
        if self.serves() {
            let _ = self.send(Command { op: OP_EXIT, arg: code, ..Command::default() });
        }
    }

    /// Never waits: an evictor that is stopped does not take its commands.
    fn send(&self, command: Command) -> io::Result<()> {
        crate::wire::send(&self.socket, &command, &[])
    }

    pub(crate) fn evictor_tid(&self) -> u32 {
        self.evictor_tid
    }

    /// Its process is the one that came in, by number too.
    pub fn lives(&self) -> bool {
        !self.life.has_ended()
    }

    /// Copy from the evictor's memory. ESRCH: it has ended, and whatever was copied may be another process's.
    fn read(&self, segments: &[(u64, usize)], into: &mut [u8]) -> io::Result<()> {
        let result = vm::read(self.evictor_tid, segments, into);
        match self.life.has_ended() {
            true => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            false => result,
        }
    }

    /// The agent's own ranges: never to be managed.
    pub fn own_ranges(&self) -> [(u64, u64); 6] {
        own_ranges(&self.ready)
    }
}

/// Where the agent's own memory is, as it says itself.
pub fn own_ranges(r: &Ready) -> [(u64, u64); 6] {
    let page = PAGE_SIZE as u64;
    let doorbells = memspill_agent::protocol::DOORBELLS as u64 * page;
    [
        (r.staging_addr, u64::from(STAGING_PAGES) * page),
        (r.doorbell_addr, doorbells),
        (r.ident_addr, page),
        (r.private_addr, r.private_len),
        (r.control_addr, page),
        (r.image_addr, r.image_len),
    ]
    .map(|(addr, len)| (addr, addr.saturating_add(len)))
}

/// Why a command has no result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The evictor has ended, and its process or its program with it.
    Gone,
    /// It answers, but not what it was asked: what became of the pages is not known.
    Broken,
    /// It has not answered yet.
    Late,
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Failed::Gone,
            _ => Failed::Broken,
        }
    }
}

pub struct ProcessMemory {
    pub uffd: Uffd,
    /// Thread group id; 0 until it is known (the child of a fork, until its first fault).
    pub pid: AtomicU32,
    agent: OnceLock<Agent>,
    /// The process's memory could not be read any more: nothing can be trusted, it must die.
    pub broken: AtomicBool,
    /// Some of what is managed is writable and executable (see `MOVE_EXEC`).
    pub has_exec: AtomicBool,
    /// A guard was seen in this memory.
    guards_seen: AtomicBool,
    /// A window has met the end of a mapping.
    torn: AtomicBool,
    /// Staging is being read by us.
    reading: AtomicBool,
}

impl ProcessMemory {
    pub fn new(uffd: Uffd, pid: u32) -> ProcessMemory {
        ProcessMemory {
            uffd,
            pid: AtomicU32::new(pid),
            agent: OnceLock::new(),
            broken: AtomicBool::new(false),
            has_exec: AtomicBool::new(false),
            guards_seen: AtomicBool::new(false),
            torn: AtomicBool::new(false),
            reading: AtomicBool::new(false),
        }
    }
    pub fn agent(&self) -> Option<&Agent> {
        self.agent.get()
    }
    pub fn attach(&self, agent: Agent) -> bool {
        self.agent.set(agent).is_ok()
    }
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }
    /// The thread under whose id /proc shows this address space; 0 if not known yet, or no more. (Once the first thread
    /// has called pthread_exit, the process id shows none.)
    pub fn proc_id(&self) -> u32 {
        match self.agent() {
            // Its number would soon name another.
            Some(agent) if !agent.lives() => 0,
            Some(agent) => agent.evictor_tid,
            None => self.pid(),
        }
    }
}

/// A managed process.
pub struct Process {
    /// Key in the pagers' epolls.
    pub key: u64,
    pub memory: Arc<ProcessMemory>,
    pub space: Arc<Space>,
    /// Taken by a reclaimer for as long as it uses the evictor. Before `batch`.
    pub evictor: Turn,
    /// Held while a batch is being taken, and while events are processed: never both at once.
    pub batch: Mutex<()>,
    pub since: std::time::Instant,
    /// Ranges that are registered, and what was last seen of the process's size.
    pub growth: Mutex<crate::growth::Growth>,
    /// Registered at all: until memory gets tight, nothing is.
    pub pressed: AtomicBool,
    pub dying: AtomicBool,
    /// RSS that is not managed, as last seen.
    pub unmanaged_bytes: AtomicU64,
    /// The child of a fork that has not all of its parent's memory: to be looked at before its first fault is served.
    pub inherits_in_part: AtomicBool,
    /// The child of a fork of which it could not be found out what it has where: whatever it lacks is lost.
    pub hopeless: bool,
    /// Of the child of a fork: by which it is found out which process it is. The page is its parent's ident page, which
    /// is missing in each child, so it is also where the child's own first fault is.
    pub proof: Option<crate::proc::Proof>,
    /// Held while it is found out what the child of a fork is and has.
    pub first_look: Mutex<()>,
    /// Which pagers its faults wake.
    pub home: crate::home::Home,
    pub progress: crate::progress::Progress,
    pub changes: Mutex<crate::growth::Changes>,
    /// Ranges of MADV_DONTNEED, while pages are being adopted.
    pub removed: Mutex<Option<crate::ranges::Ranges>>,
}

impl Process {
    /// Can the evictor be told something? Only for whoever has its turn, and no lock of this process.
    pub fn caught_up(&self, agent: &Agent) -> bool {
        match agent.caught_up(&self.memory.uffd, &self.space.gate) {
            Ok(caught_up) => caught_up,
            Err(failed) => {
                if failed == Failed::Broken {
                    self.memory.broken.store(true, Ordering::Relaxed);
                }
                // Let it be asked: that it has ended is told by the command's failing.
                failed == Failed::Gone
            }
        }
    }
}

/// What became of the pages of one command so far.
struct Takes<'a> {
    runs: &'a [Run],
    takes: Vec<Option<Take>>,
}

impl Takes<'_> {
    /// Where page `index` of the batch has its place.
    fn address(&self, index: usize) -> u64 {
        let mut before = 0;
        for run in self.runs {
            let at = index - before;
            if at < run.pages as usize {
                return Vpn(run.vpn.0 + at as u64).addr();
            }
            before += run.pages as usize;
        }
        panic!("page {index} of a batch of {before}");
    }

    /// Runs of pages that have no outcome yet; page i of the batch goes to staging page `base + i`.
    fn remaining(&self, base: u32) -> Vec<AgentRun> {
        let mut out: Vec<AgentRun> = Vec::new();
        let mut index = 0;
        for run in self.runs {
            let mut open = false;
            for i in 0..run.pages {
                if self.takes[index].is_some() {
                    open = false;
                } else if open {
                    out.last_mut().expect("open").pages += 1;
                } else {
                    open = true;
                    let src_addr = Vpn(run.vpn.0 + u64::from(i)).addr();
                    out.push(AgentRun { src_addr, pages: 1, staging: base + index as u32, moved: 0, errno: 0 });
                }
                index += 1;
            }
        }
        out
    }
}

impl Memory for ProcessMemory {
    fn take(&self, runs: &[Run], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let mut taken = 0;
        for piece in pieces(runs) {
            let before = outcome.len();
            self.take_piece(&piece, &mut frames[taken..], outcome);
            taken += outcome[before..].iter().filter(|take| **take == Take::Moved).count();
        }
    }

    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        let open = self.without_guard(vpn, pages.len());
        self.filled_in_part(pages.len(), open, |open| fill(self.uffd.copy(vpn.addr(), bytes_of(&pages[..open]))))
    }

    fn put_zero(&self, vpn: Vpn, pages: usize, write: bool) -> Fill {
        static ZEROS: [Page; memspill_engine::swap_in::WINDOW_MAX] =
            [Page::ZERO; memspill_engine::swap_in::WINDOW_MAX];
        let accessible = self.accessible(vpn, pages);
        // Without an agent nobody can look for guards.
        if write && (pages == 1 || self.agent().is_some()) {
            let open = self.without_guard(vpn, accessible);
            return self.filled_in_part(pages, open, |open| fill(self.uffd.copy(vpn.addr(), bytes_of(&ZEROS[..open]))));
        }
        // UFFDIO_ZEROPAGE does not replace guards.
        self.filled_in_part(pages, accessible, |pages| fill(self.uffd.zeropage(vpn.addr(), (pages * PAGE_SIZE) as u64)))
    }

    fn poison(&self, vpn: Vpn) {
        self.uffd.poison(vpn.addr(), PAGE_SIZE as u64);
    }

    fn wake(&self, vpn: Vpn, pages: usize) {
        self.uffd.wake(vpn.addr(), (pages * PAGE_SIZE) as u64);
    }
}

impl ProcessMemory {
    /// How many of these pages, from the first one on, have no guard over them (MADV_GUARD_INSTALL). UFFDIO_COPY would put
    /// a page in a guard's place.
    ///
    /// A single page is the one that faulted, so it had none then: it is looked at only where the program uses guards. A
    /// guard that comes between this look and the fill is lost, unless the agent saw it (`agent/advice.rs`).
    fn without_guard(&self, vpn: Vpn, pages: usize) -> usize {
        let Some(agent) = self.agent() else { return pages };
        if pages == 1 && !self.guards_seen.load(Ordering::Relaxed) && !agent.control.has_guards() {
            return pages;
        }
        let end = vpn.addr() + (pages * PAGE_SIZE) as u64;
        let mut first_guard = end;
        // What cannot be told (before Linux 6.15, or at the end of the process) is taken for no guard.
        let _ = agent.each_guarded(vpn.addr(), end, |from, _| first_guard = first_guard.min(from));
        if first_guard < end {
            self.note_guards();
        }
        (first_guard - vpn.addr()) as usize / PAGE_SIZE
    }

    /// Fill `open` of `pages`, and say of the next one that it is not to be filled. Whoever waits for a page that is guarded
    /// is woken by that, and gets his SIGSEGV. While a change is under way, what stands in the way may be on what came
    /// after it: the engine asks again when the change has been told.
    fn filled_in_part(&self, pages: usize, open: usize, fill: impl FnOnce(usize) -> Fill) -> Fill {
        if open == pages {
            return fill(pages);
        }
        // After the look that has found it.
        if self.uffd.is_changing() {
            return Fill { pages: 0, stop: Stop::Again };
        }
        let filled = if open > 0 { fill(open) } else { Fill { pages: 0, stop: Stop::Done } };
        match filled.stop {
            Stop::Done => Fill { stop: Stop::Exists, ..filled },
            _ => filled,
        }
    }

    /// From now on single pages are looked at too.
    pub fn note_guards(&self) {
        self.guards_seen.store(true, Ordering::Relaxed);
    }

    /// How many of these pages, from the first one on, lie in a mapping that can be accessed. A window that goes on into a
    /// PROT_NONE part of what was one mapping would fill pages that nobody uses and that cannot be taken out. A single
    /// page is the one that faulted, or the rest of such a window.
    fn accessible(&self, vpn: Vpn, pages: usize) -> usize {
        let maps = match self.agent() {
            Some(agent) if pages > 1 || self.torn.load(Ordering::Relaxed) => agent.maps(),
            _ => None,
        };
        // What cannot be told (before Linux 6.11, or at the end of the process) is taken for accessible.
        let accessible = match maps.map(|maps| memspill_uffd::procmap::accessible_until(maps, vpn.addr())) {
            Some(Ok(Some(end))) => pages.min(((end - vpn.addr()) / PAGE_SIZE as u64) as usize),
            Some(Ok(None)) => 0,
            Some(Err(_)) | None => pages,
        };
        if accessible < pages {
            self.torn.store(true, Ordering::Relaxed);
        }
        accessible
    }

    /// Take as many pages as a half of staging holds.
    fn take_piece(&self, runs: &[Run], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let pages: usize = runs.iter().map(|r| r.pages as usize).sum();
        let Some(agent) = self.agent().filter(|agent| agent.serves()) else {
            outcome.resize(outcome.len() + pages, Take::Busy);
            return;
        };
        // Of a batch in several pieces an earlier one may have gone without an answer.
        let late = (agent.is_late() || agent.is_cut_off()).then_some(Take::Retry);
        if let Some(take) = late.or_else(|| self.why_not(agent)) {
            outcome.resize(outcome.len() + pages, take);
            return;
        }
        let base = agent.half.fetch_xor(1, Ordering::Relaxed) * HALF_PAGES;
        let mut takes = Takes { runs, takes: vec![None; pages] };
        // Each round gives every run at least one outcome, so runs that are full of holes or busy pages need many:
        // what is left after the bound is tried again another time.
        let mut doubtful = false;
        let flags = if self.has_exec.load(Ordering::Relaxed) { MOVE_EXEC } else { 0 };
        let deadline = Instant::now() + ANSWER_WITHIN;
        for _ in 0..16 {
            let remaining = takes.remaining(base);
            if remaining.is_empty() {
                break;
            }
            match agent.call(OP_MOVE, &remaining, flags, deadline) {
                Ok(()) => doubtful |= collect(&agent.control, &remaining, base, &mut takes.takes),
                Err(Failed::Late) => {
                    if let Err(error) = self.end_batch_of_late(agent, &remaining, base, &mut takes) {
                        self.lose_all(&error, &mut takes.takes);
                    }
                    break;
                }
                Err(failed) => {
                    if failed == Failed::Broken {
                        self.broken.store(true, Ordering::Relaxed);
                    }
                    takes.takes.iter_mut().for_each(|t| *t = t.or(Some(Take::Gone)));
                    break;
                }
            }
        }
        if doubtful && let Err(error) = self.find_uncounted(agent, base, &mut takes) {
            self.lose_all(&error, &mut takes.takes);
        }
        self.read_staging(agent, base, frames, &mut takes.takes);
        // Also where nothing was moved because staging was not empty (EEXIST): mlockall fills it, and so does a program that
        // reads all of its memory. What was moved has been read by now.
        if doubtful || takes.takes.contains(&Some(Take::Moved)) {
            self.empty_staging(agent, base, pages as u32);
        }
        outcome.extend(takes.takes.iter().map(|t| t.unwrap_or(Take::Retry)));
    }

    /// None: pages may be taken.
    fn why_not(&self, agent: &Agent) -> Option<Take> {
        if agent.of_one.load(Ordering::Relaxed) {
            return None;
        }
        match self.is_of_one(agent) {
            _ if !agent.lives() => Some(Take::Gone),
            Some(true) => {
                agent.of_one.store(true, Ordering::Relaxed);
                None
            }
            Some(false) => {
                self.broken.store(true, Ordering::Relaxed);
                Some(Take::Gone)
            }
            None => Some(Take::Retry),
        }
    }

    /// Do the userfaultfd that the agent has sent and the thread that it calls its evictor belong to one address space?
    /// What is put in by the one must be seen through the other. None: it cannot be told now.
    ///
    /// Else an agent could give the number of another process's thread (a program with more rights, that it has started
    /// by exec), and have that one's memory put into its own.
    fn is_of_one(&self, agent: &Agent) -> Option<bool> {
        // In the half that the next batch does not use: it is emptied before that one has been answered.
        let other_half = (1 - agent.half.load(Ordering::Relaxed)) * HALF_PAGES;
        let staged = agent.ready.staging_addr + u64::from(other_half) * PAGE_SIZE as u64;
        let mut drawn = Box::new(Page::ZERO);
        rustix::rand::getrandom(&mut drawn.0[..32], rustix::rand::GetRandomFlags::empty()).ok()?;
        let filled = self.uffd.copy(staged, &drawn.0);
        let empty = || self.empty_staging(agent, other_half, 1);
        match filled.stop {
            userfaultfd::Stop::Done => {}
            // Somebody has locked all memory, or wrote there: next time.
            userfaultfd::Stop::Exists => {
                empty();
                return None;
            }
            _ => return None,
        }
        // A page that is missing there must not be read: that would wait for whoever serves that process's faults.
        let mut is_there = false;
        let end = staged + PAGE_SIZE as u64;
        let looked = memspill_uffd::pagemap::occupied(&agent.pagemap, staged, end, |_, _| is_there = true);
        let mut seen = Box::new(Page::ZERO);
        let read = if is_there { agent.read(&[(staged, PAGE_SIZE)], &mut seen.0) } else { Ok(()) };
        empty();
        looked.and(read).ok().map(|()| is_there && seen.0 == drawn.0)
    }

    /// The evictor has not answered: nothing more is moved, and what was moved so far is found. An error: that is not known.
    fn end_batch_of_late(&self, agent: &Agent, sent: &[AgentRun], base: u32, takes: &mut Takes) -> io::Result<()> {
        agent.cut_off(&self.uffd).map_err(io::Error::from_raw_os_error)?;
        for (i, run) in sent.iter().enumerate() {
            let first = (run.staging - base) as usize;
            let moved = agent.control.read_run(i).moved.min(run.pages) as usize;
            takes.takes[first..first + moved].fill(Some(Take::Moved));
        }
        self.find_uncounted(agent, base, takes)
    }

    /// Mark as moved what was moved and not counted. An error: it cannot be told.
    ///
    /// A page may be in staging and at home. Then it is an old one of staging that could not be emptied, of zeros (mlockall
    /// fills staging, and so does whoever reads all memory); or the one at home is that of another mapping, which came when
    /// the first one was moved away or unmapped a moment ago. An event tells of that.
    fn find_uncounted(&self, agent: &Agent, base: u32, takes: &mut Takes) -> io::Result<()> {
        let both = find_uncounted(agent, base, takes)?;
        if both.is_empty() || !(self.uffd.is_changing() || agent.control.is_forbidden(Forbidden::Event)) {
            return Ok(());
        }
        let mut page = Box::new(Page::ZERO);
        for index in both {
            let addr = agent.ready.staging_addr + (u64::from(base) + index as u64) * PAGE_SIZE as u64;
            agent.read(&[(addr, PAGE_SIZE)], &mut page.0)?;
            if page.0 != Page::ZERO.0 {
                return Err(io::Error::other("a page was moved out while its mapping changed"));
            }
        }
        Ok(())
    }

    /// Nobody waits for that. An evictor that does not take its commands is not to be trusted with more: what it does not
    /// empty would be taken for pages of a later batch.
    fn empty_staging(&self, agent: &Agent, first: u32, pages: u32) {
        let sent = agent.send(Command { op: OP_ZAP, seq: 0, arg: first, arg2: pages });
        if sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.broken.store(true, Ordering::Relaxed);
        }
    }

    /// Make pages that a fork has left shared the process's own, so that they can be moved. Under the evictor lock alone:
    /// it may fault, and the fault must find the batch lock free.
    /// False: it has not been done yet.
    pub fn populate(&self, pages: &[Vpn]) -> bool {
        let Some(agent) = self.agent().filter(|agent| agent.serves()) else { return false };
        let run = |vpn: &Vpn| AgentRun { src_addr: vpn.addr(), pages: 1, ..AgentRun::default() };
        let runs: Vec<AgentRun> = pages.iter().take(RUNS_MAX).map(run).collect();
        let result = agent.call(OP_POPULATE, &runs, 0, Instant::now() + ANSWER_WITHIN);
        if result == Err(Failed::Broken) {
            self.broken.store(true, Ordering::Relaxed);
        }
        result.is_ok()
    }

    /// Copy what was moved into `frames`, compactly, in order. The pages are in staging and nowhere else: if they cannot
    /// be read, the process cannot go on.
    fn read_staging(&self, agent: &Agent, base: u32, frames: &mut [Page], takes: &mut [Option<Take>]) {
        let mut segments: Vec<(u64, usize)> = Vec::new();
        let mut pages = 0;
        for (i, _) in takes.iter().enumerate().filter(|(_, t)| **t == Some(Take::Moved)) {
            let addr = agent.ready.staging_addr + (u64::from(base) + i as u64) * PAGE_SIZE as u64;
            match segments.last_mut() {
                Some((start, len)) if *start + *len as u64 == addr => *len += PAGE_SIZE,
                _ => segments.push((addr, PAGE_SIZE)),
            }
            pages += 1;
        }
        if pages == 0 {
            return;
        }
        self.reading.store(true, Ordering::SeqCst);
        let read = agent.read(&segments, bytes_of_mut(&mut frames[..pages]));
        self.reading.store(false, Ordering::SeqCst);
        match read {
            Err(error) => self.lose_all(&error, takes),
            Ok(()) if self.broken.load(Ordering::SeqCst) => self.lose_all(&io::ErrorKind::InvalidData.into(), takes),
            Ok(()) => {}
        }
    }

    /// There was a fault on a page of staging, by thread `tid`. If that is a thread of ours, a page that was moved there is
    /// gone: what it reads now is not what the program wrote.
    pub fn staging_was_read(&self, tid: u32) {
        let is_ours = || std::path::Path::new(&format!("/proc/self/task/{tid}")).exists();
        if self.reading.load(Ordering::SeqCst) && is_ours() {
            self.broken.store(true, Ordering::SeqCst);
        }
    }

    /// What was moved cannot be had. Where the evictor has ended (ESRCH), so has the address space.
    fn lose_all(&self, error: &io::Error, takes: &mut [Option<Take>]) {
        if error.raw_os_error() != Some(libc::ESRCH) {
            self.broken.store(true, Ordering::Relaxed);
        }
        for take in takes.iter_mut().filter(|t| matches!(t, Some(Take::Moved | Take::Retry) | None)) {
            *take = Some(Take::Gone);
        }
    }
}

/// Runs cut into lists of at most a half of staging each.
fn pieces(runs: &[Run]) -> Vec<Vec<Run>> {
    let mut pieces: Vec<Vec<Run>> = Vec::new();
    let mut room = 0;
    for run in runs {
        let mut at = 0;
        while at < run.pages {
            if room == 0 {
                pieces.push(Vec::new());
                room = HALF_PAGES;
            }
            let pages = room.min(run.pages - at);
            let piece = Run { vpn: Vpn(run.vpn.0 + u64::from(at)), pages };
            pieces.last_mut().expect("just pushed").push(piece);
            room -= pages;
            at += pages;
        }
    }
    pieces
}

/// Read the results of a command. True if pages may have been moved that it does not tell of.
pub fn collect(control: &ControlPage, sent: &[AgentRun], base: u32, takes: &mut [Option<Take>]) -> bool {
    let mut doubtful = false;
    for (i, run) in sent.iter().enumerate() {
        let result = control.read_run(i);
        let moved = result.moved.min(run.pages) as usize;
        let first = (run.staging - base) as usize;
        let end = first + run.pages as usize;
        takes[first..first + moved].fill(Some(Take::Moved));
        if moved == run.pages as usize {
            continue;
        }
        let stopped_at = first + moved;
        // Whatever the reason: the call that found it may have moved pages before, and counted none of them.
        doubtful = true;
        match result.errno {
            libc::ENOENT => takes[stopped_at] = Some(Take::Hole),
            libc::EBUSY => takes[stopped_at] = Some(Take::Busy),
            libc::EINVAL | libc::EFAULT => takes[stopped_at] = Some(Take::Unevictable),
            libc::ESRCH => takes[stopped_at..end].fill(Some(Take::Gone)),
            // EEXIST, EAGAIN and ECANCELED (an event), ENOMEM.
            _ => takes[stopped_at..end].fill(Some(Take::Retry)),
        }
    }
    doubtful
}

/// Find the pages that UFFDIO_MOVE has moved and not counted: those in staging that their place is without.
///
/// Since Linux 6.18 it moves up to a page table's worth of pages at a time, and where it met one that was being migrated
/// (EAGAIN inside) it tries again, moves them, and counts none of them. The same call then says what stopped it further on (a
/// hole, a shared page), as if that were the first page; or the next one finds places in staging taken (EEXIST), an event
/// (EAGAIN, ECANCELED), or a mapping that mprotect has changed meanwhile (EINVAL). Staging is emptied after a batch: they
/// would be gone for good.
/// Returns those that are both in staging and at home.
fn find_uncounted(agent: &Agent, base: u32, takes: &mut Takes) -> io::Result<Vec<usize>> {
    let page = PAGE_SIZE as u64;
    let first = agent.ready.staging_addr + u64::from(base) * page;
    let end = first + takes.takes.len() as u64 * page;
    let mut staged = Vec::new();
    memspill_uffd::pagemap::occupied(&agent.pagemap, first, end, |from, to| {
        staged.extend((from..to).step_by(PAGE_SIZE).map(|addr| ((addr - first) / page) as usize));
    })?;
    staged.retain(|index| takes.takes[*index] != Some(Take::Moved));
    let mut both = Vec::new();
    for index in staged {
        let source = takes.address(index);
        let mut at_home = false;
        memspill_uffd::pagemap::occupied(&agent.pagemap, source, source + page, |_, _| at_home = true)?;
        if at_home {
            both.push(index);
        } else {
            takes.takes[index] = Some(Take::Moved);
        }
    }
    Ok(both)
}

fn fill(result: userfaultfd::Fill) -> Fill {
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

pub(crate) use bytes::{bytes_of, bytes_of_mut};

mod bytes {
    #![allow(unsafe_code, reason = "a slice of pages seen as the bytes that it is")]
    use memspill_engine::units::{PAGE_SIZE, Page};

    pub fn bytes_of(pages: &[Page]) -> &[u8] {
        // SAFETY: Page is [u8; PAGE_SIZE] with no padding (asserted beside it), and the length is the same in bytes.
        unsafe { std::slice::from_raw_parts(pages.as_ptr().cast(), size_of_val(pages)) }
    }
    pub fn bytes_of_mut(pages: &mut [Page]) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), pages.len() * PAGE_SIZE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_fit_into_half_of_staging() {
        let run = |vpn, pages| Run { vpn: Vpn(vpn), pages };
        assert_eq!(pieces(&[run(5, 3), run(9, 4)]), [vec![run(5, 3), run(9, 4)]]);
        let half = HALF_PAGES;
        let large = pieces(&[run(0, 1), run(512, 2 * half)]);
        let expected = [vec![run(0, 1), run(512, half - 1)], vec![run(511 + u64::from(half), half)], vec![run(511 + 2 * u64::from(half), 1)]];
        assert_eq!(large, expected);
    }
}
