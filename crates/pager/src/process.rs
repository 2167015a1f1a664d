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
//! Staging has two halves, used in turn, so that a batch can be moved while the last one is still being emptied.
//! What comes from the target (results of the evictor) is checked: a lying agent can only lose its own process's data.

use crate::control::ControlPage;
use memspill_agent::protocol::{Command, OP_MOVE, OP_POPULATE, OP_ZAP, Ready, Reply, Run as AgentRun};
use memspill_agent::protocol::{RUNS_MAX, STAGING_PAGES};
use memspill_engine::engine::BATCH_PAGES;
use memspill_engine::memory::{Fill, Memory, Run, Stop, Take};
use memspill_engine::space::Space;
use memspill_engine::units::{PAGE_SIZE, Page, Vpn};
use memspill_uffd::userfaultfd::{self, Uffd};
use memspill_uffd::vm;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

const HALF_PAGES: u32 = STAGING_PAGES / 2;
const _: () = assert!(BATCH_PAGES <= HALF_PAGES as usize);
const _: () = assert!(BATCH_PAGES <= RUNS_MAX);

/// The agent inside a process, as seen from here.
pub struct Agent {
    pub socket: OwnedFd,
    pub control: ControlPage,
    pub ready: Ready,
    /// Thread id of the evictor, 0 if unknown: its own faults are served even where there is no room.
    pub evictor_tid: u32,
    seq: AtomicU32,
    half: AtomicU32,
}

impl Agent {
    pub fn new(socket: OwnedFd, control: ControlPage, ready: Ready, pid: u32) -> Agent {
        let evictor_tid = crate::proc::thread_named(pid, "memspill").unwrap_or(0);
        Agent { socket, control, ready, evictor_tid, seq: AtomicU32::new(0), half: AtomicU32::new(0) }
    }

    fn send(&self, command: Command) -> bool {
        crate::wire::send(&self.socket, &command, &[]).is_ok()
    }

    /// Run one command and wait for its reply. False: the agent is gone.
    fn call(&self, op: u32, runs: &[AgentRun]) -> bool {
        self.control.write_runs(runs);
        let seq = self.seq.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if !self.send(Command { op, seq, arg: runs.len() as u32, arg2: 0 }) {
            return false;
        }
        matches!(crate::wire::receive::<Reply>(&self.socket), Ok((reply, _)) if reply.seq == seq)
    }

    /// The agent's own ranges: never to be managed.
    pub fn own_ranges(&self) -> [(u64, u64); 6] {
        let r = &self.ready;
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
}

pub struct ProcessMemory {
    pub uffd: Uffd,
    /// Thread group id; 0 until it is known (the child of a fork, until its first fault).
    pub pid: AtomicU32,
    agent: OnceLock<Agent>,
    /// The process's memory could not be read any more: nothing can be trusted, it must die.
    pub broken: AtomicBool,
}

impl ProcessMemory {
    pub fn new(uffd: Uffd, pid: u32) -> ProcessMemory {
        ProcessMemory { uffd, pid: AtomicU32::new(pid), agent: OnceLock::new(), broken: AtomicBool::new(false) }
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
}

/// A managed process.
pub struct Process {
    /// Key in the pagers' epolls.
    pub key: u64,
    pub memory: Arc<ProcessMemory>,
    pub space: Arc<Space>,
    /// Held by a reclaimer for as long as it uses the evictor. Taken before `batch`.
    pub evictor: Mutex<()>,
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
    /// The process it was forked from, if that was managed, and that one's ident page: the child's first fault is there.
    pub parent: Option<(u64, u64)>,
    /// Which pagers its faults wake.
    pub home: crate::home::Home,
    /// Ranges that events took away since the monitor last looked: what is mapped there next is not registered.
    pub unmapped: Mutex<Vec<(u64, u64)>>,
    /// Ranges of MADV_DONTNEED, while pages are being adopted.
    pub removed: Mutex<Option<Vec<(u64, u64)>>>,
}

/// What became of the pages of one command so far.
struct Takes<'a> {
    runs: &'a [Run],
    takes: Vec<Option<Take>>,
}

impl Takes<'_> {
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
        let pages: usize = runs.iter().map(|r| r.pages as usize).sum();
        let Some(agent) = self.agent() else {
            outcome.resize(outcome.len() + pages, Take::Busy);
            return;
        };
        let base = agent.half.fetch_xor(1, Ordering::Relaxed) * HALF_PAGES;
        let mut takes = Takes { runs, takes: vec![None; pages] };
        // Each round gives every run at least one outcome, so runs that are full of holes or busy pages need many:
        // what is left after the bound is tried again another time.
        for _ in 0..16 {
            let remaining = takes.remaining(base);
            if remaining.is_empty() {
                break;
            }
            if !agent.call(OP_MOVE, &remaining) {
                takes.takes.iter_mut().for_each(|t| *t = t.or(Some(Take::Gone)));
                break;
            }
            self.collect(agent, &remaining, base, &mut takes.takes);
        }
        self.read_staging(agent, base, frames, &mut takes.takes);
        if takes.takes.contains(&Some(Take::Moved)) {
            agent.send(Command { op: OP_ZAP, seq: 0, arg: base, arg2: pages as u32 });
        }
        outcome.extend(takes.takes.iter().map(|t| t.unwrap_or(Take::Retry)));
    }

    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        fill(self.uffd.copy(vpn.addr(), bytes_of(pages)))
    }

    fn put_zero(&self, vpn: Vpn, pages: usize, write: bool) -> Fill {
        static ZEROS: [Page; memspill_engine::swap_in::WINDOW_MAX] =
            [Page::ZERO; memspill_engine::swap_in::WINDOW_MAX];
        if write {
            return fill(self.uffd.copy(vpn.addr(), bytes_of(&ZEROS[..pages])));
        }
        fill(self.uffd.zeropage(vpn.addr(), (pages * PAGE_SIZE) as u64))
    }

    fn poison(&self, vpn: Vpn) {
        self.uffd.poison(vpn.addr(), PAGE_SIZE as u64);
    }

    fn wake(&self, vpn: Vpn, pages: usize) {
        self.uffd.wake(vpn.addr(), (pages * PAGE_SIZE) as u64);
    }
}

impl ProcessMemory {
    /// Read the results of a command.
    fn collect(&self, agent: &Agent, sent: &[AgentRun], base: u32, takes: &mut [Option<Take>]) {
        for (i, run) in sent.iter().enumerate() {
            let result = agent.control.read_run(i);
            let moved = result.moved.min(run.pages) as usize;
            let first = (run.staging - base) as usize;
            let end = first + run.pages as usize;
            takes[first..first + moved].fill(Some(Take::Moved));
            if moved == run.pages as usize {
                continue;
            }
            let stopped_at = first + moved;
            match result.errno {
                libc::ENOENT => takes[stopped_at] = Some(Take::Hole),
                libc::EBUSY => takes[stopped_at] = Some(Take::Busy),
                libc::EINVAL | libc::EFAULT => takes[stopped_at] = Some(Take::Unevictable),
                libc::EEXIST if self.moved_unnoticed(agent, run, moved as u64) => {
                    takes[stopped_at] = Some(Take::Moved);
                }
                libc::ESRCH => takes[stopped_at..end].fill(Some(Take::Gone)),
                // EAGAIN, ECANCELED (an event), EEXIST (staging was not empty yet), ENOMEM.
                _ => takes[stopped_at..end].fill(Some(Take::Retry)),
            }
        }
    }

    /// EEXIST: the staging page is there already. Either it was left over, or the kernel moved the page and did not count
    /// it (after a transient EAGAIN inside the call). Decided by looking, never by assumption: is the source still there?
    fn moved_unnoticed(&self, agent: &Agent, run: &AgentRun, moved: u64) -> bool {
        let page = PAGE_SIZE as u64;
        let source = run.src_addr + moved * page;
        let staged = agent.ready.staging_addr + (u64::from(run.staging) + moved) * page;
        self.is_present(staged) && !self.is_present(source)
    }

    fn is_present(&self, addr: u64) -> bool {
        let Ok(pagemap) = std::fs::File::open(format!("/proc/{}/pagemap", self.pid())) else { return false };
        let mut present = false;
        let _ = memspill_uffd::pagemap::present(&pagemap, addr, addr + PAGE_SIZE as u64, |_, _| present = true);
        present
    }

    /// Make pages that a fork has left shared the process's own, so that they can be moved. Under the evictor lock alone:
    /// it may fault, and the fault must find the batch lock free.
    pub fn populate(&self, pages: &[Vpn]) {
        let Some(agent) = self.agent() else { return };
        let run = |vpn: &Vpn| AgentRun { src_addr: vpn.addr(), pages: 1, ..AgentRun::default() };
        let runs: Vec<AgentRun> = pages.iter().take(RUNS_MAX).map(run).collect();
        agent.call(OP_POPULATE, &runs);
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
        let result = vm::read(self.pid(), &segments, bytes_of_mut(&mut frames[..pages]));
        let Err(error) = result else { return };
        if error.raw_os_error() != Some(libc::ESRCH) {
            self.broken.store(true, Ordering::Relaxed);
        }
        for take in takes.iter_mut().filter(|t| **t == Some(Take::Moved)) {
            *take = Some(Take::Gone);
        }
    }
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
