//! A managed object of shared memory: all processes that map it share one page table, indexed by page of the
//! object.
//!
//! ```text
//!   take   splice, punch a hole, read (memspill_uffd::shmem): the pages leave all address spaces at once,
//!          and no evictor is needed
//!   put    UFFDIO_COPY to our own mapping of the object: no event of another process makes it fail, and the
//!          page is right even if a process has moved its mapping meanwhile
//!   wake   for each process that waits for the page: the kernel looks at the process's page table, not at
//!          the object, so each fault that was read needs its own wake, even if the page is there already
//! ```
//!
//! An anonymous object ends with its last mapping. A file (`--shared=all`) goes on as long as it has a name,
//! or somebody has it open: see `reclaim/give_back.rs`. If an object's pages are found in a state that
//! cannot be right, the run ends ([`SharedMemory::breach`]); from then on no thread is woken, so that none
//! reads wrong contents.

use crate::process::bytes::{bytes_of, bytes_of_mut};
use crate::process::memory::{ProcessMemory, fill};
use crate::swapped_files::Hold;
use crate::times::TMPFS_FULL;
use memspill_engine::gate::EventGuard;
use memspill_engine::memory::{Fill, Memory, PageRun, Stop, Take};
use memspill_engine::space::Space;
use memspill_engine::units::{PAGE_SIZE, Page, Vpn};
use memspill_engine::word::State;
use memspill_uffd::shmem::{Id, Mapped, Pipe, Taken};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

const PAGE: u64 = PAGE_SIZE as u64;

pub struct Object {
    /// Its key in the table of objects.
    pub key: u64,
    pub memory: Arc<SharedMemory>,
    pub space: Arc<Space>,
    batch: Mutex<()>,
    adopted: AtomicBool,
    /// For each process that has locked memory (mlock): how much, and whether some of it was the object's.
    locked: Mutex<HashMap<u64, (u64, bool)>>,
    /// The hold on a file: what is known of it elsewhere, until all of it is in memory again.
    hold: Mutex<Option<Hold>>,
    pub is_file: bool,
    /// Its pages come back, and none leaves any more.
    given_back: AtomicBool,
    giving_back: Mutex<()>,
    /// It is searched piece by piece for pages that came without a fault.
    searched: AtomicU64,
}

/// While this is held, no page of the object is taken out or filled.
pub struct PagesHeld<'a> {
    _batch: MutexGuard<'a, ()>,
    _events: EventGuard<'a>,
}

impl Object {
    /// `hold`: of a file.
    pub fn new(key: u64, memory: Arc<SharedMemory>, space: Arc<Space>, hold: Option<Hold>) -> Object {
        let (batch, adopted, locked, searched) = Default::default();
        let (is_file, hold, given_back, giving_back) =
            (hold.is_some(), Mutex::new(hold), AtomicBool::new(false), Mutex::new(()));
        Object {
            key,
            memory,
            space,
            batch,
            adopted,
            locked,
            hold,
            is_file,
            given_back,
            giving_back,
            searched,
        }
    }

    /// Which of so many pieces is to be searched now.
    pub fn next_searched(&self, pieces: u64) -> u64 {
        self.searched.fetch_add(1, Ordering::Relaxed) % pieces
    }

    pub fn id(&self) -> Id {
        self.memory.mapped.object.id
    }

    /// The first page that is not managed: of a file the last one, if it is no whole one.
    pub fn end(&self) -> Vpn {
        Vpn(self.memory.mapped.object.bytes / PAGE)
    }

    /// From here on no batch of it begins, and it is not managed anew.
    pub fn set_given_back(&self) {
        self.given_back.store(true, Ordering::SeqCst);
    }

    pub fn is_given_back(&self) -> bool {
        self.given_back.load(Ordering::SeqCst)
    }

    /// One thread alone gives it back, or begins to manage it.
    pub fn hold_giving_back(&self) -> MutexGuard<'_, ()> {
        self.giving_back.lock().expect("giving back")
    }

    /// All of it is in memory, or nobody will read it.
    pub fn let_go(&self) {
        drop(self.hold.lock().expect("hold").take());
    }

    /// To be held while a batch is being taken.
    pub fn hold_batch(&self) -> MutexGuard<'_, ()> {
        self.batch.lock().expect("batch")
    }

    /// While this is held, nothing is filled and no batch is under way.
    pub fn hold_pages(&self) -> PagesHeld<'_> {
        let events_guard = self.space.gate.enter_events();
        PagesHeld { _batch: self.hold_batch(), _events: events_guard }
    }

    /// Has process `key`, which has locked `locked_bytes` in all, locked some of this object? `find_out`
    /// takes long, so it is called again only if the process has locked more or less since the last time.
    pub fn is_locked_in(&self, key: u64, locked_bytes: u64, find_out: impl FnOnce() -> bool) -> bool {
        let known = self.locked.lock().expect("locked").get(&key).copied();
        match known {
            Some((bytes, is_locked)) if bytes == locked_bytes => is_locked,
            _ => {
                let is_locked = find_out();
                self.locked.lock().expect("locked").insert(key, (locked_bytes, is_locked));
                is_locked
            }
        }
    }

    /// Whether all processes that map it are registered, so that its pages may be taken out.
    pub fn is_adopted(&self) -> bool {
        self.adopted.load(Ordering::Acquire)
    }

    pub fn set_adopted(&self) {
        self.adopted.store(true, Ordering::Release);
    }
}

/// A thread that waits for a page.
struct Waiter {
    /// The key of its process.
    key: u64,
    memory: Arc<ProcessMemory>,
    addr: u64,
}

pub struct SharedMemory {
    pub mapped: Mapped,
    pipe: Mutex<Pipe>,
    waiters: Mutex<BTreeMap<u64, Vec<Waiter>>>,
    breach: OnceLock<&'static str>,
    /// Since when its file system has had no room for what is to come back.
    full_since: Mutex<Option<Instant>>,
}

impl SharedMemory {
    pub fn new(mapped: Mapped) -> std::io::Result<SharedMemory> {
        let (pipe, waiters) = (Mutex::new(Pipe::new()?), Mutex::default());
        Ok(SharedMemory { mapped, pipe, waiters, breach: OnceLock::new(), full_since: Mutex::default() })
    }

    /// Has there been room for a page? Others may have taken what a page that is swapped out had. For a while
    /// it is tried again.
    fn note_room(&self, has_room: bool) {
        let mut since = self.full_since.lock().expect("full");
        if has_room || !self.mapped.object.is_full() {
            *since = None;
        } else if since.get_or_insert_with(Instant::now).elapsed() > TMPFS_FULL {
            self.note_breach("its tmpfs is full, so what is swapped out of it cannot come back");
        }
    }

    /// Is there a page where one is swapped out? The caller holds the object's pages.
    pub fn look_for_intruders(&self, space: &Space) {
        let is_away = |page: &u64| space.word(Vpn(*page)).state() == State::Swapped;
        let mut found = false;
        let bytes = self.mapped.object.bytes;
        let looked =
            self.mapped.present(0, bytes, |from, to| found |= (from / PAGE..to / PAGE).any(|p| is_away(&p)));
        if found || looked.is_err() {
            self.note_breach("somebody else has made a page where one is swapped out");
        }
    }

    /// Remember that a thread of process `key` waits for this page at `addr`. To be called before the page is
    /// looked up in the page table.
    pub fn note_waiter(&self, page: u64, key: u64, memory: &Arc<ProcessMemory>, addr: u64) {
        let waiter = Waiter { key, memory: memory.clone(), addr: addr & !(PAGE - 1) };
        let mut waiters = self.waiters.lock().expect("waiters");
        let of_page = waiters.entry(page).or_default();
        // The kernel may report a fault twice. Its process may have ended meanwhile, which does no harm.
        if !of_page.iter().any(|other| other.key == key && other.addr == waiter.addr) {
            of_page.push(waiter);
        }
    }

    /// The keys of the processes that wait for this page.
    pub fn waiting_for(&self, page: u64) -> Vec<u64> {
        let waiters = self.waiters.lock().expect("waiters");
        waiters.get(&page).into_iter().flatten().map(|waiter| waiter.key).collect()
    }

    /// Why the run must end. None: all is well.
    pub fn breach(&self) -> Option<&'static str> {
        self.breach.get().copied()
    }

    pub fn note_breach(&self, what: &'static str) {
        let _ = self.breach.set(what);
    }

    fn wake_pages(&self, vpn: Vpn, pages: usize) {
        if self.breach().is_some() {
            return;
        }
        let mut waiters = self.waiters.lock().expect("waiters");
        let pages: Vec<u64> = waiters.range(vpn.0..vpn.0 + pages as u64).map(|(page, _)| *page).collect();
        let woken: Vec<Waiter> = pages.iter().filter_map(|page| waiters.remove(page)).flatten().collect();
        drop(waiters);
        woken.iter().for_each(|waiter| waiter.memory.port.wake(waiter.addr, PAGE));
    }

    /// Take one run, and add an outcome for each of its pages. Returns how many pages are now in `frames`.
    fn take_run(&self, pipe: &Pipe, run: &PageRun, frames: &mut [Page], outcome: &mut Vec<Take>) -> usize {
        let (mut done, pages) = (0, run.pages as usize);
        while done < pages {
            let from = (run.vpn.0 + done as u64) * PAGE;
            let piece = &mut frames[done..pages.min(done + pipe.pages())];
            match self.mapped.take(pipe, from, bytes_of_mut(piece)) {
                Ok(Taken::Pages(taken)) if taken > 0 => {
                    outcome.extend((0..taken).map(|_| Take::Moved));
                    done += taken;
                }
                // There is no memory, or no room in the pipe.
                Ok(Taken::Pages(_)) | Err(_) => break,
                Ok(Taken::Lost) => {
                    self.note_breach("pages were there again after they had been taken out");
                    outcome.extend((done..pages).map(|_| Take::Gone));
                    return done;
                }
            }
        }
        outcome.extend((done..pages).map(|_| Take::Retry));
        done
    }
}

impl Memory for SharedMemory {
    fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let pipe = self.pipe.lock().expect("pipe");
        let mut taken = 0;
        for run in runs {
            taken += self.take_run(&pipe, run, &mut frames[taken..], outcome);
        }
    }

    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        let filled = fill(self.mapped.copy(vpn.0 * PAGE, bytes_of(pages)));
        if filled.stop == Stop::Exists {
            self.note_breach("somebody else has made a page where one is swapped out");
        }
        self.note_room(filled.stop != Stop::NoMemory);
        filled
    }

    fn put_zero(&self, vpn: Vpn, pages: usize, _write: bool) -> Fill {
        fill(self.mapped.zeropage(vpn.0 * PAGE, pages as u64 * PAGE))
    }

    fn filled(&self, vpn: Vpn, pages: usize) {
        self.wake_pages(vpn, pages);
    }

    /// Poison the page in each mapping that waits for it. A mapping that faults later is answered then.
    fn poison(&self, vpn: Vpn) {
        let waiters = self.waiters.lock().expect("waiters");
        let of_page = waiters.get(&vpn.0).into_iter().flatten();
        of_page.for_each(|waiter| {
            waiter.memory.port.poison(waiter.addr, PAGE);
        });
    }

    fn wake(&self, vpn: Vpn, pages: usize) {
        self.wake_pages(vpn, pages);
    }
}
