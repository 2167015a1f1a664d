//! The supervisor: what its pagers and its reclaimer do about a process, in few words, with the process's
//! `AgentPort` as it is. An engine is here a word for each page.
//!
//! ```text
//!   two pagers                 faults/thread.rs          reclaimer            engine: swap_out.rs
//!     faults read, or events     read_locked               adopts what is new   monitor/adopt.rs
//!     changes are followed       process_events            EVICTING; taken      AgentPort::take
//!     faults: claimed, FILLING   engine: swap_in.rs        stored; SWAPPED      hints: Told::tell
//!     delivered, RESIDENT; wake  install.rs                what is WANTED       a fault
//!     pages that were brought    run/pool_reads.rs
//! ```

use crate::kernel::{self, Bytes, PAGES, PROGRAM};
use crate::pages;
use crate::pool::{Pool, SLOTS};
use crate::process::agent::Agent;
use crate::process::control::{ControlPage, Forbidden};
use crate::process::evictor::Evictor;
use crate::process::port::agent::AgentPort;
use crate::process::port::agent::deliveries::Content;
use crate::process::port::agent::link::silence;
use crate::process::port::batch::Owner;
use memspill_common::link::{FREE, Hint, RING};
use memspill_common::protocol::{MoveRun, OP_PROTECT};
use memspill_common::rules::{Rule, holds};
use memspill_common::sync::AtomicU64;
use memspill_common::words::{SWAPPED, Word};
use memspill_engine::memory::{PageRun, Take};
use memspill_engine::units::{PAGE_SIZE, Page, Vpn};
use memspill_uffd::userfaultfd::{Event, Stop};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Mutex, MutexGuard, RwLock};
use shuttle::thread;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

/// The engine's word of a page (`engine/src/word.rs`).
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum State {
    #[default]
    None,
    Resident,
    Evicting {
        wanted: bool,
    },
    Swapped(usize),
    /// With the slot that is being read.
    Filling {
        slot: Option<usize>,
        cancelled: bool,
    },
}

/// Pages that were claimed, and their slots; None: zeros.
struct Job {
    first: usize,
    slots: Vec<Option<usize>>,
    is_unasked: bool,
}

impl Job {
    fn pages(&self) -> Range<usize> {
        self.first..self.first + self.slots.len()
    }
}

pub struct Supervisor {
    pub port: AgentPort,
    pub pool: Pool,
    agent: Agent,
    words: Mutex<[State; PAGES]>,
    /// What a page is that was moved to where another one is being filled.
    displaced: Mutex<[State; PAGES]>,
    gate: RwLock<()>,
    batch: Mutex<()>,
    put_off: Mutex<Vec<Job>>,
    /// Pages that are being brought, and that nobody has asked for.
    unasked: AtomicUsize,
    pub brings_unasked: bool,
    pub protects: bool,
    /// Pages are brought by threads too, from the pool.
    has_pool: bool,
    /// The program has, and all the rest is to.
    has_ended: AtomicBool,
    is_ending: AtomicBool,
    /// Changes with each ring: a word to sleep on.
    rung: AtomicU32,
    /// Events are just being read and followed.
    follows: AtomicBool,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn address(page: usize) -> u64 {
    (PROGRAM + page * PAGE_SIZE) as u64
}

fn page_of(address: u64) -> usize {
    (address as usize - PROGRAM) / PAGE_SIZE
}

impl Supervisor {
    pub fn new(control: Arc<ControlPage>, has_pool: bool, closed_bytes: u64) -> Supervisor {
        // SAFETY: makes a descriptor, which is ours.
        let bell = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK)) };
        let port = AgentPort::new(control.clone(), bell, has_pool.then_some(0), 2, closed_bytes);
        port.tell_room(true, 4 * PAGE_SIZE as u64);
        port.set_tells();
        Supervisor {
            port,
            pool: Pool::new(),
            agent: Agent { evictor: Evictor::new(control), half: AtomicU32::new(0) },
            words: Mutex::default(),
            displaced: Mutex::default(),
            gate: RwLock::new(()),
            batch: Mutex::default(),
            put_off: Mutex::default(),
            unasked: AtomicUsize::new(0),
            brings_unasked: false,
            protects: false,
            has_pool,
            has_ended: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            rung: AtomicU32::new(0),
            follows: AtomicBool::new(false),
        }
    }

    fn control(&self) -> &ControlPage {
        &self.agent.evictor.control
    }

    pub fn evictor(&self) -> &Evictor {
        &self.agent.evictor
    }

    pub fn state(&self, page: usize) -> State {
        held(&self.words)[page]
    }

    /// All pages are away at first, with these bytes.
    pub fn have_all_away(&self, bytes: Bytes) {
        *held(&self.words) = std::array::from_fn(|_| State::Swapped(self.pool.store(bytes)));
    }

    /// Has all been read, followed, delivered and noted?
    pub fn is_quiet(&self) -> bool {
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let is_filling = |word: &State| matches!(word, State::Filling { .. });
        !self.port.has_unnoted() && !self.port.is_changing() && !held(&self.words).iter().any(is_filling)
    }

    pub fn end_reclaim(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    pub fn end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        self.ring();
        self.agent.evictor.end();
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    // -- Pagers --

    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes.
        unsafe { libc::write(self.port.bell.as_raw_fd(), (&raw const one).cast(), 8) };
        self.rung.fetch_add(1, Ordering::SeqCst);
        kernel::wake_all(self.rung.as_ptr() as usize);
    }

    fn is_rung(&self) -> bool {
        let mut asked = libc::pollfd { fd: self.port.bell.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&mut asked, 1, 0) == 1 }
    }

    fn wait_for_bell(&self) {
        loop {
            kernel::step();
            let seen = self.rung.load(Ordering::SeqCst);
            if self.is_rung() || self.is_ending() {
                return;
            }
            kernel::sleep(self.rung.as_ptr() as usize, seen);
        }
    }

    pub fn serve_all(&self) {
        while !self.is_ending() {
            let put_off = std::mem::take(&mut *held(&self.put_off));
            // (What is left unread would show here.)
            let has_messages = holds(Rule::SilenceFirst) && self.port.has_messages();
            let has_more = has_messages || self.port.has_unnoted();
            if put_off.is_empty() && !has_more {
                self.wait_for_bell();
            } else {
                thread::yield_now();
            }
            if !self.is_ending() {
                self.serve();
            }
            put_off.into_iter().for_each(|job| self.install(job));
        }
        // The other one may sleep again.
        self.ring();
    }

    fn serve(&self) {
        let alone = self.gate.try_write();
        if alone.is_err() && holds(Rule::EventsAlone) {
            return thread::yield_now();
        }
        let mut events = Vec::new();
        self.follows.store(true, Ordering::SeqCst);
        let is_read = self.read(&mut events);
        if events.iter().any(|event| !matches!(event, Event::Fault { .. })) {
            let batch = holds(Rule::BatchLock).then(|| held(&self.batch));
            events.iter().for_each(|event| self.follow(event));
            self.control().allow(Forbidden::Event);
            drop(batch);
        }
        self.follows.store(false, Ordering::SeqCst);
        drop(alone);
        if !is_read {
            return;
        }
        for event in events {
            match event {
                Event::Fault { addr, protected: true, .. } => self.let_write(addr),
                Event::Fault { addr, .. } => self.fault(page_of(addr)),
                _ => {}
            }
        }
        if self.port.has_unnoted() {
            self.note_all();
        }
        if self.brings_unasked && thread_rng().gen_bool(0.5) {
            self.bring_unasked();
        }
    }

    /// `events::read_locked`.
    fn read(&self, events: &mut Vec<Event>) -> bool {
        if holds(Rule::SilenceFirst) && self.port.read_faults(events).expect("true numbers").is_some() {
            return true;
        }
        if !self.control().lock() {
            return false;
        }
        if holds(Rule::Abort) {
            self.control().forbid(Forbidden::Event);
        }
        if holds(Rule::SilenceFirst) {
            self.port.read(events).expect("true numbers");
        } else {
            self.port.read_some(events, RING).expect("true numbers");
            kernel::step();
            silence(self.port.bell.as_fd());
        }
        if events.iter().all(|event| matches!(event, Event::Fault { .. })) {
            self.control().allow(Forbidden::Event);
        }
        self.control().unlock();
        true
    }

    fn follow(&self, event: &Event) {
        match *event {
            Event::Unmap { start, end } | Event::Remove { start, end } => {
                (page_of(start)..page_of(end)).for_each(|page| self.unmap(page));
            }
            Event::Remap { from, to, len } => {
                (page_of(from)..page_of(from + len))
                    .zip(page_of(to)..)
                    .for_each(|(from, to)| self.move_page(from, to));
            }
            _ => {}
        }
    }

    fn unmap(&self, page: usize) {
        let mut words = held(&self.words);
        match &mut words[page] {
            State::Evicting { .. } => panic!("wrong: an event meets a page that is being taken out"),
            State::Filling { cancelled, .. } => {
                *cancelled = true;
                self.give_up(std::mem::take(&mut held(&self.displaced)[page]));
            }
            word => self.give_up(std::mem::take(word)),
        }
    }

    fn give_up(&self, word: State) {
        if let State::Swapped(slot) = word {
            self.pool.free(slot);
        }
    }

    /// `Space::remap`: who fills a page ends at the old address; at the new one it has a slot of its own.
    fn move_page(&self, from: usize, to: usize) {
        let mut words = held(&self.words);
        let moved = match &mut words[from] {
            State::Filling { slot: Some(slot), cancelled } if !*cancelled => {
                *cancelled = true;
                State::Swapped(self.pool.store(self.pool.bytes(*slot)))
            }
            State::Filling { cancelled, .. } => {
                *cancelled = true;
                std::mem::take(&mut held(&self.displaced)[from])
            }
            word => std::mem::take(word),
        };
        drop(words);
        self.unmap(to);
        let mut words = held(&self.words);
        match words[to] {
            State::Filling { .. } => held(&self.displaced)[to] = moved,
            _ => words[to] = moved,
        }
    }

    /// `let_write`: as much as is likely to be written next.
    fn let_write(&self, addr: u64) {
        let pages = thread_rng().gen_range(1..=PAGES - page_of(addr));
        if self.port.deliver(addr, pages, Content::Writable).stop != Stop::Done {
            self.port.wake(addr, 1);
        }
    }

    /// `SwapIn::fault`.
    fn fault(&self, page: usize) {
        let word = pages::table::find(address(page) as usize);
        let mut words = held(&self.words);
        match words[page] {
            State::Resident => {
                assert!(!self.is_lost(word), "wrong: page {page} is there, and away");
                drop(words);
                // Another thread may be installing it.
                thread::yield_now();
                if holds(Rule::WakeResident) {
                    let _guard = self.inside();
                    self.port.wake(address(page), 1);
                }
            }
            State::Evicting { .. } => words[page] = State::Evicting { wanted: true },
            State::Filling { .. } => {}
            State::None => {
                words[page] = State::Filling { slot: None, cancelled: false };
                drop(words);
                self.install(Job { first: page, slots: vec![None], is_unasked: false })
            }
            State::Swapped(_) => {
                let mut job = Job { first: page, slots: Vec::new(), is_unasked: false };
                while let Some(State::Swapped(slot)) = words.get(page + job.slots.len()).copied()
                    && job.slots.len() < 2
                {
                    words[page + job.slots.len()] = State::Filling { slot: Some(slot), cancelled: false };
                    job.slots.push(Some(slot));
                }
                drop(words);
                self.install(job)
            }
        }
    }

    /// Is a page away that is there for the engine, and on no way to it? At this moment: without a step.
    fn is_lost(&self, word: Option<&AtomicU64>) -> bool {
        // SAFETY: the link is mapped, and no other thread runs.
        let link = unsafe { &*pages::channel::link() };
        let is_away = word.is_some_and(|word| Word(unsafe { word.as_ptr().read() }).state() == SWAPPED);
        let is_delivered = link.deliveries.iter().any(|delivery| delivery.state != FREE);
        let is_changing = link.changes != link.changes_read || self.follows.load(Ordering::SeqCst);
        is_away && !is_delivered && !is_changing
    }

    /// `SwapIn::bring_predicted`: any page that is away.
    fn bring_unasked(&self) {
        let mut words = held(&self.words);
        let away: Vec<usize> = (0..PAGES).filter(|page| matches!(words[*page], State::Swapped(_))).collect();
        if away.is_empty() || self.unasked.load(Ordering::SeqCst) as u64 >= self.port.room_for_unasked() {
            return;
        }
        let page = away[thread_rng().gen_range(0..away.len())];
        let State::Swapped(slot) = words[page] else { return };
        words[page] = State::Filling { slot: Some(slot), cancelled: false };
        self.unasked.fetch_add(1, Ordering::SeqCst);
        drop(words);
        self.install(Job { first: page, slots: vec![Some(slot)], is_unasked: true })
    }

    fn inside(&self) -> shuttle::sync::RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// `SwapIn::install`.
    fn install(&self, mut job: Job) {
        let guard = self.inside();
        let dropped = self.drop_cancelled(&mut job);
        let pages = job.pages();
        let is_zero_of_nobody =
            job.slots.first() == Some(&None) && self.port.run_waited_for(address(job.first)).is_none();
        let is_delivered = pages.is_empty() || is_zero_of_nobody || self.deliver(&job);
        if is_delivered {
            let state = if is_zero_of_nobody { State::None } else { State::Resident };
            job.slots.iter().flatten().for_each(|slot| self.pool.free(*slot));
            held(&self.words)[pages.clone()].fill(state);
        }
        drop(guard);
        dropped.into_iter().for_each(|page| self.port.wake(address(page), 1));
        if is_delivered && job.is_unasked {
            self.unasked.fetch_sub(1, Ordering::SeqCst);
        }
        if !is_delivered {
            held(&self.put_off).push(job);
            // One thread is to look there.
            self.ring();
        } else {
            self.port.wake(address(pages.start), pages.len());
        }
    }

    /// One that is cancelled ends the run; what is behind it is as before.
    fn drop_cancelled(&self, job: &mut Job) -> Vec<usize> {
        let mut words = held(&self.words);
        let is_cancelled = |state| matches!(state, State::Filling { cancelled: true, .. });
        if !job.pages().any(|page| is_cancelled(words[page])) {
            return Vec::new();
        }
        let pages = job.pages();
        for (page, slot) in pages.clone().zip(job.slots.drain(..)) {
            if is_cancelled(words[page]) {
                slot.inspect(|slot| self.pool.free(*slot));
                words[page] = std::mem::take(&mut held(&self.displaced)[page]);
            } else {
                words[page] = slot.map_or(State::None, State::Swapped);
            }
        }
        pages.collect()
    }

    fn deliver(&self, job: &Job) -> bool {
        let mut bytes = vec![0; job.slots.len() * PAGE_SIZE];
        for (page, slot) in bytes.chunks_mut(PAGE_SIZE).zip(&job.slots) {
            let Some(slot) = slot else { continue };
            let stored = self.pool.bytes(*slot);
            page[..stored.len()].copy_from_slice(&stored);
        }
        let at = address(job.first);
        let fill = match job.slots.first() {
            Some(None) => self.port.deliver(at, 1, Content::Zeros),
            _ if job.is_unasked => self.port.deliver_unasked(at, &bytes),
            _ => self.port.deliver(at, job.slots.len(), Content::Bytes(&bytes)),
        };
        assert!(fill.bytes == 0 || fill.stop == Stop::Done, "one delivery");
        fill.stop == Stop::Done
    }

    // -- Pages that threads have brought by themselves --

    fn note_all(&self) {
        self.port.note_pool_reads(|read| {
            (0..4).for_each(|_| kernel::dawdle(Rule::NoteOnce));
            let _inside = self.inside();
            if self.port.is_changing() {
                return false;
            }
            let mut words = held(&self.words);
            let page = page_of(read.page);
            match words[page] {
                State::Swapped(slot) => {
                    words[page] = State::Resident;
                    self.pool.free(slot);
                    true
                }
                State::Evicting { .. } | State::Filling { .. } => false,
                State::None | State::Resident => true,
            }
        });
    }

    // -- The reclaimer --

    pub fn reclaim(&self, rounds: u32) {
        if self.has_pool {
            (0..PAGES).for_each(|page| self.tell(page));
        }
        for _ in 0..rounds {
            if self.has_ended.load(Ordering::SeqCst) {
                break;
            }
            // `Evictor::caught_up`.
            self.evictor().wait_for_answer();
            self.adopt();
            self.note_all();
            if self.protects && thread_rng().gen_bool(0.5) {
                self.protect();
                continue;
            }
            let batch = held(&self.batch);
            let Some(pages) = self.choose() else {
                drop(batch);
                thread::yield_now();
                continue;
            };
            let takes = self.take(pages.clone());
            let wanted = self.finish_batch(pages.clone(), &takes);
            drop(batch);
            if self.has_pool {
                pages.for_each(|page| self.tell(page));
            }
            wanted.into_iter().for_each(|page| self.fault(page));
        }
        self.evictor().wait_for_answer();
    }

    /// `Process::protect_by_agent`.
    fn protect(&self) {
        let first = thread_rng().gen_range(0..PAGES);
        let pages = thread_rng().gen_range(1..=PAGES - first) as u32;
        let run = MoveRun { src_addr: address(first), pages, ..MoveRun::default() };
        let _ = self.evictor().call_after(OP_PROTECT, &[run], 0, (), |_| ());
    }

    /// `adopt_piece`: new memory is found by looking.
    fn adopt(&self) {
        let _guard = self.inside();
        let _batch = held(&self.batch);
        for page in (0..PAGES).filter(|page| kernel::is_there(*page)) {
            let word = &mut held(&self.words)[page];
            *word = if *word == State::None { State::Resident } else { *word };
        }
    }

    /// Some pages in a row that are there.
    fn choose(&self) -> Option<Range<usize>> {
        let mut words = held(&self.words);
        let from = thread_rng().gen_range(0..PAGES);
        let first = (from..PAGES).chain(0..from).find(|page| words[*page] == State::Resident)?;
        let count = words[first..].iter().take_while(|word| **word == State::Resident).count();
        words[first..first + count].fill(State::Evicting { wanted: false });
        Some(first..first + count)
    }

    /// The bytes of the pages that went.
    fn take(&self, pages: Range<usize>) -> Vec<(Take, Option<Bytes>)> {
        let (broken, unmoved) = (AtomicBool::new(false), Default::default());
        let owner = Owner {
            agent: &self.agent,
            has_exec: false,
            broken: &broken,
            reading: &broken,
            unmoved: &unmoved,
        };
        let run = PageRun { vpn: Vpn::from_addr(address(pages.start)), pages: pages.len() as u32 };
        let (mut frames, mut outcome) = (vec![Page::ZERO; pages.len()], Vec::new());
        self.port.take(&owner, &[run], &mut frames, &mut outcome);
        let mut frames = frames.iter();
        let mut bytes = |take| (take == Take::Moved).then(|| frames.next().expect("one for each"));
        let first = |page: &Page| *page.0.first_chunk().expect("a page is larger");
        outcome.into_iter().map(|take| (take, bytes(take).map(first))).collect()
    }

    /// The words of a batch; which pages are wanted.
    fn finish_batch(&self, pages: Range<usize>, taken: &[(Take, Option<Bytes>)]) -> Vec<usize> {
        let mut words = held(&self.words);
        let is_wanted = |page: &usize| words[*page] == State::Evicting { wanted: true };
        let wanted = if holds(Rule::Wanted) { pages.clone().filter(is_wanted).collect() } else { Vec::new() };
        for (page, (take, bytes)) in pages.zip(taken) {
            words[page] = match bytes {
                None if *take == Take::Hole => State::None,
                None => State::Resident,
                Some(bytes) if *bytes == Bytes::default() && !self.has_pool => State::None,
                Some(bytes) => State::Swapped(self.pool.store(*bytes)),
            };
        }
        wanted
    }

    /// `Told::tell`: where the page is stored, if it is.
    fn tell(&self, page: usize) {
        let _guard = self.inside();
        let words = held(&self.words);
        let State::Swapped(slot) = words[page] else { return };
        let words = holds(Rule::HintWhileStored).then_some(words);
        if words.is_none() {
            // Meanwhile the page comes back and leaves again: drawn schedules seldom leave that much time.
            (0..thread_rng().gen_range(0..200)).for_each(|_| thread::yield_now());
        }
        self.port.tell_stored(&[Hint { addr: address(page), slot: slot as u64 }]);
    }

    // -- Others --

    /// Another program stores a page for a while, again and again; and the pool is too full.
    pub fn be_others(&self) {
        while !self.has_ended.load(Ordering::SeqCst) {
            if thread_rng().gen_bool(0.5) {
                self.pool.write_back(thread_rng().gen_range(1..SLOTS));
            }
            let slot = self.pool.store(FOREIGN);
            (0..thread_rng().gen_range(0..10)).for_each(|_| thread::yield_now());
            self.pool.free(slot);
            thread::yield_now();
        }
    }

    /// The device is swapped off: pages get other slots, and others take theirs.
    pub fn swap_off(&self) {
        (0..thread_rng().gen_range(0..100)).for_each(|_| thread::yield_now());
        if holds(Rule::EndBeforeMove) {
            self.port.allow_pool_reads(false);
        }
        for page in 0..PAGES {
            let mut words = held(&self.words);
            if let State::Swapped(slot) = words[page] {
                let moved = self.pool.store(self.pool.bytes(slot));
                self.pool.free(slot);
                words[page] = State::Swapped(moved);
            }
        }
        let taken = [self.pool.store(FOREIGN), self.pool.store(FOREIGN)];
        (0..20).for_each(|_| thread::yield_now());
        taken.into_iter().for_each(|slot| self.pool.free(slot));
    }
}

/// What another program has in its pages.
const FOREIGN: Bytes = [99, 99];
