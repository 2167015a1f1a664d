//! The agent inside a process, as seen from here: its evictor, where its own memory is, and the files by
//! which its address space is looked at.

use crate::process::control::ControlPage;
use crate::process::evictor::Evictor;
use crate::process::peer::{Peer, Pidfd};
use crate::process::ranges::{Range, Ranges};
use memspill_common::protocol::{Ready, STAGING_PAGES};
use memspill_engine::units::PAGE_SIZE;
use memspill_uffd::{procmap, vm};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

pub struct Agent {
    pub ready: Ready,
    /// Its thread lives as long as this address space is used: not so the process's first thread, nor, after
    /// an exec, what its process id means. (`Ready` has the thread's id as the process itself sees it.)
    pub evictor: Evictor,
    /// The evictor's: once it has ended, its number may be another's.
    pidfd: Pidfd,
    /// The pagemap of its address space, whatever becomes of the number.
    pub(super) pagemap: File,
    /// The same, opened when it is needed first.
    maps: OnceLock<Option<File>>,
    /// The evictor and the userfaultfd are of one address space.
    pub(super) of_one: AtomicBool,
    /// The evictor has been told to go, or is just being told: it answers.
    serves: AtomicBool,
    /// The half of staging that the next batch uses: 0 or 1.
    pub(super) half: AtomicU32,
}

impl Agent {
    /// The agent of the process of `peer`, which calls itself `own_pid`.
    pub fn new(
        socket: Arc<OwnedFd>,
        control: Arc<ControlPage>,
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
        let pidfd = Pidfd::of_thread(evictor_tid, &peer.pidfd)?;
        // It must be a thread of this process, whatever it says.
        let pagemap = File::open(format!("/proc/{pid}/task/{evictor_tid}/pagemap"))?;
        if pidfd.has_ended() || peer.pidfd.has_ended() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (serves, of_one) = (AtomicBool::new(false), AtomicBool::new(false));
        let evictor = Evictor::new(socket, control, evictor_tid, ready.staging_addr);
        let (maps, half) = (OnceLock::new(), AtomicU32::new(0));
        Ok(Agent { ready, evictor, pidfd, pagemap, maps, of_one, serves, half })
    }

    /// A descriptor of the evictor, which ends with its address space.
    pub fn pidfd(&self) -> io::Result<Pidfd> {
        self.pidfd.try_clone()
    }

    /// From now on commands may be sent. Whoever calls this lets the evictor go next, without waiting for
    /// anybody.
    pub fn set_serves(&self) {
        self.serves.store(true, Ordering::Release);
    }

    pub fn serves(&self) -> bool {
        self.serves.load(Ordering::Acquire)
    }

    /// The evictor, as a fault names it.
    pub fn evictor_tid(&self) -> u32 {
        self.ready.evictor_tid
    }

    /// Is this the evictor, as a fault names it?
    pub fn is_evictor(&self, fault_tid: u32) -> bool {
        fault_tid == self.ready.evictor_tid
    }

    /// /proc/PID/maps, for questions.
    pub(super) fn maps(&self) -> Option<&File> {
        self.maps.get_or_init(|| File::open(format!("/proc/{}/maps", self.evictor.tid)).ok()).as_ref()
    }

    /// The end of the mapping at `addr`, if the program may not write there.
    pub(super) fn closed_until(&self, addr: u64) -> Option<u64> {
        let mapping = procmap::first_from(self.maps()?, addr).ok().flatten()?;
        (mapping.start <= addr && mapping.anonymous && !mapping.writable).then_some(mapping.end)
    }

    /// The parts of these ranges that are in memory.
    pub fn look(&self, ranges: &Ranges) -> io::Result<Ranges> {
        let mut present = Ranges::default();
        for (start, end) in ranges.iter() {
            let insert = |from, to| present.insert(from, to);
            memspill_uffd::pagemap::each_present(&self.pagemap, start, end, insert)?;
        }
        Ok(present)
    }

    /// The bytes of a range that are in memory.
    pub fn present_bytes(&self, (start, end): Range) -> io::Result<u64> {
        let mut bytes = 0;
        memspill_uffd::pagemap::each_present(&self.pagemap, start, end, |from, to| bytes += to - from)?;
        Ok(bytes)
    }

    /// Runs of guards between two addresses.
    pub fn each_guarded(&self, start: u64, end: u64, found: impl FnMut(u64, u64)) -> io::Result<()> {
        memspill_uffd::pagemap::guarded(&self.pagemap, start, end, found)
    }

    /// The evictor is alone: let it end, and its process with it, as the first thread did (wait(2)).
    pub fn let_exit(&self, status: u32) {
        if self.serves() {
            let _ = self.evictor.let_exit(status);
        }
    }

    /// Its process is the one that came in, by number too.
    pub fn lives(&self) -> bool {
        !self.pidfd.has_ended()
    }

    /// Copy from the evictor's memory. ESRCH: it has ended, and whatever was copied may be another process's.
    pub(super) fn read(&self, segments: &[(u64, usize)], into: &mut [u8]) -> io::Result<()> {
        let result = vm::read(self.evictor.tid, segments, into);
        match self.pidfd.has_ended() {
            true => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            false => result,
        }
    }

    /// May we not read what is to be swapped out?
    pub fn is_closed_to_us(&self) -> bool {
        let mut word = [0; size_of::<u64>()];
        let read = self.read(&[(self.ready.control_addr, word.len())], &mut word);
        read.is_err_and(|e| e.raw_os_error() == Some(libc::EPERM))
    }

    /// The agent's own ranges: never to be managed.
    pub fn own_ranges(&self) -> [(u64, u64); 8] {
        own_ranges(&self.ready)
    }
}

/// The agent's own memory, as it says itself.
pub fn own_ranges(r: &Ready) -> [(u64, u64); 8] {
    let page = PAGE_SIZE as u64;
    let doorbells = memspill_common::protocol::DOORBELLS as u64 * page;
    [
        (r.staging_addr, u64::from(STAGING_PAGES) * page),
        (r.doorbell_addr, doorbells),
        (r.ident_addr, page),
        (r.private_addr, r.private_len),
        (r.control_addr, page),
        (r.image_addr, r.image_len),
        (r.blocks_addr, r.blocks_len),
        (r.tables_addr, r.tables_len),
    ]
    .map(|(addr, len)| (addr, addr.saturating_add(len)))
}
