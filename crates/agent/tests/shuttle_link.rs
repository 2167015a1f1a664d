//! The link between a process that is paged by windows and its supervisor, under schedules that are drawn:
//! faults, deliveries, of pages that nobody has asked for too, changes, and an evictor that is cut off.
//!
//! ```text
//!   a thread that lacks a page       supervisor.rs: ask      two pagers                faults/thread.rs
//!     claims a waiter                claim_waiter              bell silenced, ring read    messages.rs
//!     installs what is FULL          install_all                 changes_read + 1: END     read_some
//!     FAULT; bell; sleeps            push, ring                changes applied             process_events
//!   a thread that changes            mappings.rs: over        faults: claimed, FILLING    engine/swap_in.rs
//!     alone; changes + 1; installs   Changing::begin             delivered, FULL; wake     deliver
//!     the call; words                                            RESIDENT; wake            install.rs
//!     REMOVE, END; leaves            tell, Changing::drop      reclaimer                 swap_out.rs
//!   the evictor                      evict.rs: take_run          EVICTING; open; sent      agent/take.rs
//!     inside; nothing is changing    is_changing                 no answer: cut            end_batch_of_late
//!     installs; words EVICTING       install_inside, mark        SWAPPED; what is WANTED
//!     NONE, copied                   Chunk::take
//!     guards; commits; RW; SWAPPED   mark_away; take_runs, evictor.rs
//! ```
//!
//! Each thread counts in bytes of its own. No count may be lost or come back, nobody may wait for ever, no
//! event may meet a page that is being taken out; and in the end both sides must say the same of each page.
//!
//! Gate, words and the kernel are in `models/windows.rs`, forks in `fork_model.rs`. Not shown: memory that
//! moves (for which events are told in order), what calls use, pages that cannot be read, a ring or bytes
//! that lie.
//! `first_delivered` of `take_run` is not there: no schedule has shown a need of it.
#![cfg(shuttle)]

mod models;

use memspill_common::link::{CUT, FREE, FULL, TAKEN, committed, committed_of, open};
use memspill_common::words::{EVICTING, FILLING, NONE as EMPTY, SWAPPED, Word};
use models::windows::{Bytes, Gate, Inside, Kernel, NONE, PageWord, READ_WRITE};
use models::{Futex, Lock, explore, held, hunt};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex, RwLock};
use shuttle::thread;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

const PAGES: usize = 3;
const WAITERS: usize = 3;
const DELIVERIES: usize = 2;
const DELIVERY_PAGES: usize = 2;
/// Behind those, of what nobody has asked for.
const UNASKED: usize = 1;
const CHUNK: usize = 2;
/// A second change has to wait.
const UNREAD_CHANGES_MAX: u32 = 0;
const RING: u32 = 2;
/// Many times what it takes.
const TRIES: u32 = 500;

/// What a control leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    // The agent.
    /// A change says so before it installs what was delivered.
    Announce,
    /// Whoever installs looks also at what nobody has asked for.
    InstallUnasked,
    /// A change installs what was delivered.
    InstallBeforeChange,
    /// A waiter remembers what the futex was before he looks.
    SeenFirst,
    /// A delivery that is being installed is one thread's.
    TakeDelivery,
    /// The installed part of a delivery is not installed again.
    Done,
    /// A full ring is waited for.
    Room,
    /// The evictor takes nothing while a change is unread.
    TakeUnchanged,
    /// Nobody can touch what it copies and takes.
    TakeUnderNone,
    /// It commits what it takes, by a compare and exchange.
    Commit,
    /// It commits when nothing can fail any more.
    CommitLast,
    /// The thread's turn at the ring.
    Writing,
    // The supervisor.
    /// The bell is silenced before the ring is read.
    SilenceFirst,
    /// A thread that waits for room is woken.
    LetWrite,
    /// Nothing is delivered while a change is unread.
    DeliverUnchanged,
    /// Whether there is one is looked at with the lock.
    DeliverLocked,
    /// Nothing is taken from before events are read until they are followed.
    Abort,
    /// Events wait for the batch that is under way.
    BatchLock,
    /// Events are read alone in the engine's gate.
    EventsAlone,
    /// Waiters are woken when their page is there: by the delivery, and once more when the engine's words say
    /// so, for which no schedule has shown a need.
    WakeWaiters,
    /// A fault on a page that is there is answered.
    WakeResident,
    /// A fault on a page that is being taken out is served afterwards.
    Wanted,
    /// A command that is not answered is cut off.
    Cut,
}

#[derive(Clone, Copy)]
enum Message {
    Fault(usize),
    Remove(usize),
    End,
}

#[derive(Default)]
struct Waiter {
    /// Its page, and one.
    page: AtomicU32,
    woken: Futex,
}

#[derive(Clone, Default)]
struct Filled {
    first: usize,
    /// None: zeros.
    bytes: Vec<Option<Bytes>>,
    done: usize,
}

#[derive(Default)]
struct Delivery {
    state: AtomicU32,
    filled: Mutex<Filled>,
}

#[derive(Default)]
struct Link {
    changes: AtomicU32,
    changes_read: AtomicU32,
    abort: AtomicU32,
    lock: Futex,
    take: AtomicU64,
    waiters: [Waiter; WAITERS],
    deliveries: [Delivery; DELIVERIES + UNASKED],
    ring: [Mutex<Option<Message>>; RING as usize],
    head: AtomicU32,
    tail: AtomicU32,
    waits_for_room: AtomicU32,
    room: Futex,
    writing: Futex,
    /// The model's own state, to look whether it holds.
    is_written: AtomicBool,
    bell: Futex,
}

/// The engine's word of a page (`engine/src/word.rs`).
#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    None,
    Resident,
    Evicting { wanted: bool },
    Swapped(Bytes),
    Filling { cancelled: bool },
}

#[derive(Default)]
struct Engine {
    words: Mutex<[State; PAGES]>,
    gate: RwLock<()>,
    batch: Mutex<()>,
    put_off: Mutex<Vec<Job>>,
    delivering: Mutex<()>,
    /// Pages that are being brought, and that nobody has asked for.
    unasked: AtomicU32,
}

impl Default for State {
    fn default() -> State {
        State::None
    }
}

/// Pages that were claimed, and their bytes; None: zeros.
struct Job {
    first: usize,
    bytes: Vec<Option<Bytes>>,
    is_unasked: bool,
}

#[derive(Clone, Copy, Default)]
struct Command {
    seq: u32,
    first: usize,
    pages: usize,
}

/// The socket, and staging.
#[derive(Default)]
struct Evictor {
    command: Mutex<Command>,
    sent: Futex,
    moved: AtomicU32,
    answered: Futex,
    staging: Mutex<[Bytes; PAGES]>,
}

struct All {
    without: Without,
    /// GUARD_INSTALL fails sometimes, as on locked memory.
    guards_fail: bool,
    /// Pagers bring pages that nobody has asked for.
    brings_unasked: bool,
    kernel: Kernel<PAGES>,
    gate: Gate,
    words: [PageWord; PAGES],
    link: Link,
    evictor: Evictor,
    engine: Engine,
    is_ending: AtomicU32,
}

// -- The program --

impl All {
    fn access(&self, page: usize, access: impl Fn(&mut Bytes) -> u8) -> u8 {
        loop {
            match self.kernel.access(page, READ_WRITE, |bytes| access(bytes)) {
                Ok(result) => return result,
                Err(_) => self.settle(page),
            }
        }
    }

    /// Adds one to its byte of each of these pages, so many times.
    fn count(&self, who: usize, pages: Range<usize>, times: u8) {
        for n in 0..times {
            for page in pages.clone() {
                assert_eq!(self.access(page, |bytes| bytes[who]), n, "wrong: a count is lost");
                self.access(page, |bytes| {
                    bytes[who] += 1;
                    bytes[who]
                });
            }
        }
    }

    /// Empties a page, or has a new one in its place, and counts in it from the beginning.
    fn empty_and_count(&self, who: usize, page: usize, times: usize) {
        for change in [All::renew, All::discard, All::renew, All::renew].into_iter().take(times) {
            change(self, page);
            self.count(who, page..page + 1, 2);
        }
    }

    /// Looks at a page that another one empties.
    fn look(&self, page: usize, times: u8) {
        (0..times).for_each(|_| _ = self.access(page, |_| 0));
    }
}

// -- The agent --

impl All {
    /// `fill::settle`.
    fn settle(&self, page: usize) {
        loop {
            let inside = self.gate.enter();
            let seen = self.words[page].load();
            drop(inside);
            match seen.state() {
                SWAPPED => self.ask(page),
                EVICTING | FILLING => self.words[page].wait_for(seen),
                _ => return,
            }
        }
    }

    fn ask(&self, page: usize) {
        let waiter = self.claim_waiter(page);
        for tries in 0.. {
            assert!(tries < TRIES, "wrong: a page never comes");
            if tries > 0 {
                // Another one may be installing it.
                thread::yield_now();
            }
            let first = waiter.woken.load(Ordering::SeqCst);
            self.install_all();
            if self.words[page].load().state() != SWAPPED {
                break;
            }
            self.push(Message::Fault(page));
            let late = waiter.woken.load(Ordering::SeqCst);
            let seen = if self.without == Without::SeenFirst { late } else { first };
            while waiter.woken.load(Ordering::SeqCst) == seen {
                waiter.woken.sleep(seen);
            }
        }
        waiter.page.store(0, Ordering::SeqCst);
    }

    fn claim_waiter(&self, page: usize) -> &Waiter {
        let is_ours = |waiter: &&Waiter| {
            waiter.page.compare_exchange(0, page as u32 + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        self.link.waiters.iter().find(is_ours).expect("as many waiters as threads")
    }

    fn push(&self, message: Message) {
        let link = &self.link;
        while self.without != Without::Writing && link.writing.swap(1, Ordering::SeqCst) != 0 {
            link.writing.sleep(1);
        }
        assert!(!link.is_written.swap(true, Ordering::SeqCst), "wrong: two write into the ring");
        let number = link.head.load(Ordering::Relaxed);
        if self.without != Without::Room {
            self.wait_for_reader(|| number.wrapping_sub(link.tail.load(Ordering::SeqCst)) < RING);
        }
        *link.ring[(number % RING) as usize].held() = Some(message);
        link.head.store(number + 1, Ordering::SeqCst);
        link.is_written.store(false, Ordering::SeqCst);
        link.writing.store(0, Ordering::SeqCst);
        link.writing.wake_all();
        self.ring();
    }

    fn wait_for_reader(&self, is_enough: impl Fn() -> bool) {
        let link = &self.link;
        if is_enough() {
            return;
        }
        link.waits_for_room.fetch_add(1, Ordering::SeqCst);
        loop {
            let seen = link.room.load(Ordering::SeqCst);
            if is_enough() {
                break;
            }
            self.ring();
            link.room.sleep(seen);
        }
        link.waits_for_room.fetch_sub(1, Ordering::SeqCst);
    }

    fn ring(&self) {
        self.link.bell.store(1, Ordering::SeqCst);
        self.link.bell.wake_all();
    }

    fn install_all(&self) {
        loop {
            let inside = self.gate.enter();
            let Err((page, seen)) = self.install_inside() else { return };
            drop(inside);
            self.words[page].wait_for(seen);
        }
    }

    fn install_inside(&self) -> Result<(), (usize, Word)> {
        let all = &self.link.deliveries;
        let looked_at = if self.without == Without::InstallUnasked { &all[..DELIVERIES] } else { &all[..] };
        for delivery in looked_at {
            let state = &delivery.state;
            let takes = self.without != Without::TakeDelivery;
            if state.load(Ordering::SeqCst) != FULL
                || takes && state.compare_exchange(FULL, TAKEN, Ordering::SeqCst, Ordering::Relaxed).is_err()
            {
                continue;
            }
            let mut filled = delivery.filled.held().clone();
            let result = self.install(&mut filled);
            if self.without != Without::Done {
                delivery.filled.held().done = filled.done;
            }
            state.store(if result.is_ok() { FREE } else { FULL }, Ordering::SeqCst);
            result?;
        }
        Ok(())
    }

    fn install(&self, filled: &mut Filled) -> Result<(), (usize, Word)> {
        while filled.done < filled.bytes.len() {
            let page = filled.first + filled.done;
            let seen = self.words[page].load();
            match seen.state() {
                SWAPPED => filled.done += usize::from(self.fill(page, seen, filled.bytes[filled.done])),
                EVICTING | FILLING => return Err((page, seen)),
                _ => filled.done += 1,
            }
        }
        Ok(())
    }

    /// `run::install`, of a page.
    fn fill(&self, page: usize, seen: Word, bytes: Option<Bytes>) -> bool {
        let range = page..page + 1;
        if !self.words[page].turn(seen, seen.filling()) {
            return false;
        }
        if let Some(bytes) = bytes {
            self.kernel.protect(range.clone(), NONE);
            self.kernel.remove_guards(range.clone());
            self.kernel.write_through(page, bytes);
            self.kernel.protect(range, READ_WRITE);
        } else {
            self.kernel.remove_guards(range);
        }
        self.words[page].finish(Word::EMPTY);
        true
    }

    /// MADV_DONTNEED (`mappings.rs`).
    fn discard(&self, page: usize) {
        self.change(|| {
            self.kernel.drop_pages(page..page + 1);
            if self.words[page].load().state() == SWAPPED {
                self.kernel.remove_guards(page..page + 1);
                self.words[page].finish(Word::EMPTY);
            }
            self.push(Message::Remove(page));
        });
    }

    /// mmap over it, where new memory is closed (`grow.rs`).
    fn renew(&self, page: usize) {
        self.change(|| {
            self.kernel.map_anew(page, NONE);
            self.words[page].finish(Word::EMPTY);
            self.push(Message::Remove(page));
            self.kernel.install_guards(page..page + 1);
            self.words[page].finish(Word::swapped(0, READ_WRITE));
            self.kernel.protect(page..page + 1, READ_WRITE);
        });
    }

    fn change(&self, change: impl FnOnce()) {
        let link = &self.link;
        self.wait_for_reader(|| {
            let begun = link.changes.load(Ordering::SeqCst);
            begun.wrapping_sub(link.changes_read.load(Ordering::SeqCst)) <= UNREAD_CHANGES_MAX
        });
        let alone = self.gate.enter_alone();
        if self.without != Without::Announce {
            link.lock.lock();
            link.changes.fetch_add(1, Ordering::SeqCst);
            link.lock.unlock();
        }
        if self.without != Without::InstallBeforeChange {
            self.install_inside().expect("wrong: somebody else is inside");
        }
        change();
        if self.without == Without::Announce {
            link.changes.fetch_add(1, Ordering::SeqCst);
        }
        self.push(Message::End);
        drop(alone);
    }
}

// -- The evictor --

impl All {
    fn serve_commands(&self) {
        let mut last = 0;
        loop {
            while self.evictor.sent.load(Ordering::SeqCst) == last {
                self.evictor.sent.sleep(last);
            }
            if self.is_ending() {
                return;
            }
            let command = *self.evictor.command.held();
            last = command.seq;
            let moved = self.take_run(command);
            self.evictor.moved.store(moved as u32, Ordering::SeqCst);
            self.evictor.answered.store(command.seq, Ordering::SeqCst);
            self.evictor.answered.wake_all();
        }
    }

    fn take_run(&self, command: Command) -> usize {
        let (mut taken, mut allowed) = (0, open(command.seq));
        while taken < command.pages {
            let first = command.first + taken;
            let Some(inside) = self.gate.try_for_a_while() else { return taken };
            if self.without != Without::TakeUnchanged && self.is_changing() {
                return taken;
            }
            if let Err((page, seen)) = self.install_inside() {
                drop(inside);
                self.words[page].wait_for(seen);
                continue;
            }
            let mut commit = |pages: usize| {
                let next = committed(command.seq, 0, (taken + pages) as u32);
                let word = &self.link.take;
                let is_allowed = self.without == Without::Commit
                    || word.compare_exchange(allowed, next, Ordering::SeqCst, Ordering::SeqCst).is_ok();
                if self.without == Without::Commit {
                    word.store(next, Ordering::SeqCst);
                }
                allowed = next;
                is_allowed
            };
            let marked = self.mark(first, (command.pages - taken).min(CHUNK));
            let there = marked.clone().take_while(|page| !self.words[*page].load().was_away()).count();
            let pages = first..first + there;
            let to = command.first..command.first + command.pages;
            let is_taken = there > 0 && self.take_chunk(&inside, pages.clone(), to, &mut commit);
            for page in marked {
                let word = &self.words[page];
                let before = word.load().as_before();
                let is_away = is_taken && pages.contains(&page);
                word.finish(if is_away { Word::swapped(0, READ_WRITE) } else { before });
            }
            drop(inside);
            if !is_taken {
                return taken;
            }
            taken += there;
        }
        taken
    }

    /// In this order: the supervisor says that it reads before it counts what it has read.
    fn is_changing(&self) -> bool {
        let link = &self.link;
        link.changes.load(Ordering::SeqCst) != link.changes_read.load(Ordering::SeqCst)
            || link.abort.load(Ordering::SeqCst) != 0
    }

    fn mark(&self, first: usize, most: usize) -> Range<usize> {
        let marked = (first..first + most).take_while(|page| {
            let (word, seen) = (&self.words[*page], self.words[*page].load());
            matches!(seen.state(), EMPTY | SWAPPED) && word.turn(seen, seen.evicting())
        });
        first..first + marked.count()
    }

    /// `Chunk::take`. Staging has a place for each page of the command.
    fn take_chunk(
        &self,
        _inside: &Inside<'_>,
        pages: Range<usize>,
        to: Range<usize>,
        commit: &mut impl FnMut(usize) -> bool,
    ) -> bool {
        if self.without != Without::TakeUnderNone {
            self.kernel.protect(pages.clone(), NONE);
        }
        let copies: Vec<Bytes> = pages
            .clone()
            .map(|page| self.kernel.read_through(page).expect("wrong: a marker is taken out"))
            .collect();
        for (page, bytes) in pages.clone().zip(&copies) {
            self.evictor.staging.held()[page - to.start] = *bytes;
        }
        let is_first = self.without == Without::CommitLast;
        let mut is_taken = !is_first || commit(pages.len());
        if is_taken {
            is_taken = !(self.guards_fail && thread_rng().gen_bool(0.5));
            if is_taken {
                self.kernel.install_guards(pages.clone());
                if !is_first && !commit(pages.len()) {
                    is_taken = false;
                    // `put_bytes_back`.
                    self.kernel.remove_guards(pages.clone());
                    pages
                        .clone()
                        .zip(copies)
                        .for_each(|(page, bytes)| self.kernel.write_through(page, bytes));
                }
            }
        }
        self.kernel.protect(pages, READ_WRITE);
        is_taken
    }
}

// -- The supervisor's pagers --

impl All {
    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst) != 0
    }

    fn serve_all(&self) {
        while !self.is_ending() {
            let put_off = std::mem::take(&mut *self.engine.put_off.held());
            if put_off.is_empty() {
                self.wait_for_bell();
            } else {
                thread::yield_now();
            }
            if self.link.bell.load(Ordering::SeqCst) != 0 && !self.is_ending() {
                self.serve();
            }
            put_off.into_iter().for_each(|job| self.install_job(job));
        }
        // The other one may sleep again.
        self.ring();
    }

    fn wait_for_bell(&self) {
        while self.link.bell.load(Ordering::SeqCst) == 0 {
            self.link.bell.sleep(0);
        }
    }

    /// `FaultThread::serve_process`.
    fn serve(&self) {
        let alone = self.engine.gate.try_write();
        if alone.is_err() && self.without != Without::EventsAlone {
            return thread::yield_now();
        }
        self.link.lock.lock();
        let aborts = self.without != Without::Abort;
        let abort = |value: u32| aborts.then(|| self.link.abort.store(value, Ordering::SeqCst));
        abort(1);
        let (mut faults, mut removed) = (Vec::new(), Vec::new());
        self.read(&mut faults, &mut removed);
        if removed.is_empty() {
            abort(0);
        }
        self.link.lock.unlock();
        if !removed.is_empty() {
            let waits = self.without != Without::BatchLock;
            let batch = waits.then(|| self.engine.batch.lock());
            removed.into_iter().for_each(|page| self.unmap(page));
            abort(0);
            drop(batch);
        }
        drop(alone);
        faults.into_iter().for_each(|page| self.engine_fault(page));
        if self.brings_unasked && thread_rng().gen_bool(0.5) {
            self.bring_unasked();
        }
    }

    /// `SwapIn::bring_predicted`: any page that is away.
    fn bring_unasked(&self) {
        let is_free = |delivery: &&Delivery| delivery.state.load(Ordering::SeqCst) == FREE;
        let free = self.link.deliveries[DELIVERIES..].iter().filter(is_free).count();
        let mut words = self.engine.words.held();
        let is_away = |page: &usize| matches!(words[*page], State::Swapped(_));
        let away: Vec<usize> = (0..PAGES).filter(is_away).collect();
        if away.is_empty() || self.engine.unasked.load(Ordering::SeqCst) as usize >= free {
            return;
        }
        let page = away[thread_rng().gen_range(0..away.len())];
        let State::Swapped(bytes) = words[page] else { return };
        words[page] = State::Filling { cancelled: false };
        self.engine.unasked.fetch_add(1, Ordering::SeqCst);
        drop(words);
        self.install_job(Job { first: page, bytes: vec![Some(bytes)], is_unasked: true })
    }

    fn read(&self, faults: &mut Vec<usize>, removed: &mut Vec<usize>) {
        let link = &self.link;
        let silences_first = self.without != Without::SilenceFirst;
        if silences_first {
            link.bell.store(0, Ordering::SeqCst);
        }
        let (end, mut at) = (link.head.load(Ordering::SeqCst), link.tail.load(Ordering::SeqCst));
        let begun = at;
        while at != end {
            let message = link.ring[(at % RING) as usize].held().take();
            at += 1;
            link.tail.store(at, Ordering::SeqCst);
            match message.expect("wrong: no message where there is to be one") {
                Message::Fault(page) => faults.push(page),
                Message::Remove(page) => removed.push(page),
                Message::End => drop(link.changes_read.fetch_add(1, Ordering::SeqCst)),
            }
        }
        let lets_write = self.without != Without::LetWrite;
        if at != begun && lets_write && link.waits_for_room.load(Ordering::SeqCst) != 0 {
            link.room.fetch_add(1, Ordering::SeqCst);
            link.room.wake_all();
        }
        if !silences_first {
            link.bell.store(0, Ordering::SeqCst);
        }
    }

    /// `Space::unmap`.
    fn unmap(&self, page: usize) {
        let word = &mut self.engine.words.held()[page];
        *word = match *word {
            State::Filling { .. } => State::Filling { cancelled: true },
            State::Evicting { .. } => panic!("wrong: an event meets a page that is being taken out"),
            _ => State::None,
        };
    }

    /// `SwapIn::fault`.
    fn engine_fault(&self, page: usize) {
        let mut words = self.engine.words.held();
        match words[page] {
            State::Resident => {
                drop(words);
                if self.without != Without::WakeResident {
                    let _guard = held(self.engine.gate.read());
                    self.wake(page..page + 1);
                }
            }
            State::Evicting { .. } => words[page] = State::Evicting { wanted: true },
            State::Filling { .. } => {}
            State::None => {
                words[page] = State::Filling { cancelled: false };
                drop(words);
                self.install_job(Job { first: page, bytes: vec![None], is_unasked: false })
            }
            State::Swapped(_) => {
                let mut job = Job { first: page, bytes: Vec::new(), is_unasked: false };
                while let Some(State::Swapped(bytes)) = words.get(page + job.bytes.len()).copied()
                    && job.bytes.len() < DELIVERY_PAGES
                {
                    words[page + job.bytes.len()] = State::Filling { cancelled: false };
                    job.bytes.push(Some(bytes));
                }
                drop(words);
                self.install_job(job)
            }
        }
    }

    /// `SwapIn::install`.
    fn install_job(&self, mut job: Job) {
        let guard = held(self.engine.gate.read());
        let mut dropped = Vec::new();
        {
            let mut words = self.engine.words.held();
            // One that is cancelled ends the run; what is behind it is as before.
            let pages = job.first..job.first + job.bytes.len();
            if pages.clone().any(|page| words[page] == State::Filling { cancelled: true }) {
                for (page, bytes) in pages.zip(job.bytes.drain(..)) {
                    let is_cancelled = words[page] == State::Filling { cancelled: true };
                    let before = bytes.map_or(State::None, State::Swapped);
                    words[page] = if is_cancelled { State::None } else { before };
                    dropped.push(page);
                }
            }
        }
        let pages = job.first..job.first + job.bytes.len();
        let is_zero_of_nobody =
            job.bytes.first() == Some(&None) && !self.link.waiters.iter().any(|it| waits_for(it, &pages));
        let is_delivered = pages.is_empty() || is_zero_of_nobody || self.deliver(&job);
        if is_delivered {
            let state = if is_zero_of_nobody { State::None } else { State::Resident };
            self.engine.words.held()[pages.clone()].fill(state);
        }
        drop(guard);
        dropped.into_iter().for_each(|page| self.wake(page..page + 1));
        if is_delivered && job.is_unasked {
            self.engine.unasked.fetch_sub(1, Ordering::SeqCst);
        }
        if !is_delivered {
            self.engine.put_off.held().push(job);
            // One thread is to look there.
            self.ring();
        } else if self.without != Without::WakeWaiters || is_zero_of_nobody {
            self.wake(pages);
        }
    }

    fn deliver(&self, job: &Job) -> bool {
        let link = &self.link;
        let delivering = self.engine.delivering.lock();
        let is_free = |delivery: &&Delivery| delivery.state.load(Ordering::SeqCst) == FREE;
        let (asked, unasked) = link.deliveries.split_at(DELIVERIES);
        let own = if job.is_unasked { unasked } else { &[] };
        let is_delivered = own.iter().chain(asked).find(is_free).is_some_and(|delivery| {
            *delivery.filled.held() = Filled { first: job.first, bytes: job.bytes.clone(), done: 0 };
            let locks = self.without != Without::DeliverLocked;
            locks.then(|| link.lock.lock());
            let is_changing = || {
                link.changes.load(Ordering::SeqCst) != link.changes_read.load(Ordering::SeqCst)
                    && self.without != Without::DeliverUnchanged
            };
            let may_deliver = !is_changing();
            if may_deliver {
                delivery.state.store(FULL, Ordering::SeqCst);
            }
            locks.then(|| link.lock.unlock());
            may_deliver
        });
        if !is_delivered {
            // Nobody else may come who installs what is there.
            self.wake(0..PAGES);
        } else if self.without != Without::WakeWaiters {
            self.wake(job.first..job.first + job.bytes.len());
        }
        drop(delivering);
        is_delivered
    }

    fn wake(&self, pages: Range<usize>) {
        for waiter in self.link.waiters.iter().filter(|waiter| waits_for(waiter, &pages)) {
            waiter.woken.fetch_add(1, Ordering::SeqCst);
            waiter.woken.wake_all();
        }
    }
}

fn waits_for(waiter: &Waiter, pages: &Range<usize>) -> bool {
    waiter.page.load(Ordering::SeqCst).checked_sub(1).is_some_and(|page| pages.contains(&(page as usize)))
}

// -- The supervisor's reclaimer --

impl All {
    fn reclaim(&self, rounds: u32) {
        let mut seq = 0;
        for _ in 0..rounds {
            // `Evictor::caught_up`.
            self.wait_for_answer(seq);
            self.adopt();
            let batch = self.engine.batch.held();
            let Some(pages) = self.choose() else { continue };
            seq += 1;
            self.link.take.store(open(seq), Ordering::SeqCst);
            let command = Command { seq, first: pages.start, pages: pages.len() };
            *self.evictor.command.held() = command;
            self.evictor.sent.store(seq, Ordering::SeqCst);
            self.evictor.sent.wake_all();
            let moved = match self.is_answered(seq) {
                true => self.evictor.moved.load(Ordering::SeqCst),
                false => self.cut(seq),
            };
            let wanted = self.finish_batch(pages, moved as usize);
            drop(batch);
            wanted.into_iter().for_each(|page| self.engine_fault(page));
        }
        self.wait_for_answer(seq);
    }

    fn wait_for_answer(&self, seq: u32) {
        loop {
            let answered = self.evictor.answered.load(Ordering::SeqCst);
            if answered == seq {
                return;
            }
            self.evictor.answered.sleep(answered);
        }
    }

    /// It is waited for as long as it takes, or only for a moment.
    fn is_answered(&self, seq: u32) -> bool {
        let is_patient = thread_rng().gen_bool(0.5);
        if is_patient {
            self.wait_for_answer(seq);
            return true;
        }
        (0..thread_rng().gen_range(0..40)).any(|_| {
            thread::yield_now();
            self.evictor.answered.load(Ordering::SeqCst) == seq
        })
    }

    /// `adopt_piece`.
    fn adopt(&self) {
        let _guard = held(self.engine.gate.read());
        let _batch = self.engine.batch.held();
        for page in 0..PAGES {
            if self.kernel.is_present(page) {
                let word = &mut self.engine.words.held()[page];
                *word = if *word == State::None { State::Resident } else { *word };
            }
        }
    }

    /// The first pages in a row that are there.
    fn choose(&self) -> Option<Range<usize>> {
        let mut words = self.engine.words.held();
        let first = words.iter().position(|word| *word == State::Resident)?;
        let count = words[first..].iter().take_while(|word| **word == State::Resident).count();
        words[first..first + count].fill(State::Evicting { wanted: false });
        Some(first..first + count)
    }

    fn cut(&self, seq: u32) -> u32 {
        let take = match self.without {
            Without::Cut => self.link.take.load(Ordering::SeqCst),
            _ => self.link.take.swap(CUT, Ordering::SeqCst),
        };
        committed_of(take, seq).map_or(0, |(_, pages)| pages)
    }

    /// The words of a batch; which pages are wanted.
    fn finish_batch(&self, pages: Range<usize>, moved: usize) -> Vec<usize> {
        let copies = *self.evictor.staging.held();
        let mut words = self.engine.words.held();
        let is_wanted = |page: &usize| words[*page] == State::Evicting { wanted: true };
        let wanted = match self.without {
            Without::Wanted => Vec::new(),
            _ => pages.clone().filter(is_wanted).collect(),
        };
        for (index, page) in pages.enumerate() {
            words[page] = match copies[index] {
                _ if index >= moved => State::Resident,
                bytes if bytes == Bytes::default() => State::None,
                bytes => State::Swapped(bytes),
            };
        }
        wanted
    }
}

// -- All of it --

type Work = fn(&All);

#[derive(Clone, Copy)]
struct Scene {
    program: [Work; 2],
    /// So often pages are taken out.
    rounds: u32,
    /// All pages are away at first, with these bytes.
    away: Option<Bytes>,
    guards_fail: bool,
    brings_unasked: bool,
}

const COUNTING: Scene = Scene {
    program: [|all| all.count(0, 0..PAGES, 2), |all| all.count(1, 0..PAGES, 2)],
    rounds: 4,
    away: None,
    guards_fail: false,
    brings_unasked: false,
};
const LOCKED: Scene = Scene { guards_fail: true, ..COUNTING };
const COMING_BACK: Scene = Scene {
    program: [|all| all.count(0, 0..2, 3), |all| all.count(1, 0..2, 3)],
    rounds: 6,
    away: Some([0, 0]),
    ..COUNTING
};
const FAULTING: Scene = Scene {
    program: [|all| (0..PAGES).for_each(|page| all.look(page, 1)), |all| all.look(0, 1)],
    rounds: 0,
    ..COMING_BACK
};
const EMPTYING: Scene =
    Scene { program: [|all| all.empty_and_count(0, 1, 4), |all| all.look(1, 8)], rounds: 8, ..COUNTING };
const GIVEN_UP: Scene = Scene {
    program: [|all| all.empty_and_count(0, 1, 1), |all| all.look(1, 2)],
    rounds: 0,
    away: Some([7, 7]),
    ..COUNTING
};

const COMING_UNASKED: Scene = Scene { brings_unasked: true, ..COMING_BACK };
const EMPTIED_UNASKED: Scene = Scene { brings_unasked: true, ..EMPTYING };

fn play(without: Without, scene: Scene) -> impl Fn() + Send + Sync + Clone + 'static {
    move || {
        let all = Arc::new(All {
            without,
            guards_fail: scene.guards_fail,
            brings_unasked: scene.brings_unasked,
            kernel: Kernel::default(),
            gate: Gate::default(),
            words: Default::default(),
            link: Link::default(),
            evictor: Evictor::default(),
            engine: Engine::default(),
            is_ending: AtomicU32::default(),
        });
        if let Some(bytes) = scene.away {
            all.kernel.install_guards(0..PAGES);
            all.words.iter().for_each(|word| word.finish(Word::swapped(0, READ_WRITE)));
            all.engine.words.held().fill(State::Swapped(bytes));
        }
        let spawn = |work: Work| {
            let all = all.clone();
            thread::spawn(move || work(&all))
        };
        let servers: [Work; 3] = [All::serve_commands, All::serve_all, All::serve_all];
        let servers = servers.map(spawn);
        let reclaims = all.clone();
        let reclaimer = thread::spawn(move || reclaims.reclaim(scene.rounds));
        scene.program.map(spawn).into_iter().for_each(|thread| thread.join().unwrap());
        reclaimer.join().unwrap();
        all.agree();
        all.is_ending.store(1, Ordering::SeqCst);
        for futex in [&all.link.bell, &all.evictor.sent] {
            futex.store(u32::MAX, Ordering::SeqCst);
            futex.wake_all();
        }
        servers.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

impl All {
    /// When nobody is at work but pagers: what was delivered is there, and both sides say the same.
    fn agree(&self) {
        for page in 0..PAGES {
            self.access(page, |_| 0);
        }
        self.install_all();
        for page in 0..PAGES {
            let is_away = self.words[page].load().state() == SWAPPED;
            let word = self.engine.words.held()[page];
            assert!(
                !is_away && !matches!(word, State::Swapped(_)),
                "wrong: page {page}, {word:?}, away: {is_away}"
            );
        }
    }
}

#[test]
fn link_no_count_is_lost_and_nobody_waits_for_ever() {
    [COUNTING, COMING_BACK, FAULTING].into_iter().for_each(|scene| explore(play(Without::Nothing, scene)));
}

#[test]
fn link_nothing_comes_back_of_what_was_given_up() {
    [EMPTYING, GIVEN_UP].into_iter().for_each(|scene| explore(play(Without::Nothing, scene)));
}

#[test]
fn link_pages_that_nobody_has_asked_for_are_neither_lost_nor_old() {
    [COMING_UNASKED, EMPTIED_UNASKED].into_iter().for_each(|scene| explore(play(Without::Nothing, scene)));
}

#[test]
fn link_what_cannot_be_guarded_stays() {
    explore(play(Without::Nothing, LOCKED));
}

macro_rules! controls {
    ($($name:ident: $without:ident, $scene:ident, $expected:literal;)*) => {
        $(
            #[test]
            #[should_panic(expected = $expected)]
            fn $name() {
                hunt(play(Without::$without, $scene));
            }
        )*
    };
}

controls! {
    link_control_announce: Announce, GIVEN_UP, "wrong";
    link_control_install_before_change: InstallBeforeChange, GIVEN_UP, "wrong";
    link_control_install_unasked: InstallUnasked, COMING_UNASKED, "wrong";
    link_control_seen_first: SeenFirst, FAULTING, "deadlock";
    link_control_take_delivery: TakeDelivery, COUNTING, "wrong";
    link_control_done: Done, COMING_BACK, "wrong";
    link_control_room: Room, EMPTYING, "wrong";
    link_control_take_unchanged: TakeUnchanged, EMPTYING, "wrong";
    link_control_take_under_none: TakeUnderNone, COUNTING, "wrong";
    link_control_commit: Commit, COUNTING, "wrong";
    link_control_commit_last: CommitLast, LOCKED, "wrong";
    link_control_writing: Writing, FAULTING, "wrong";
    link_control_silence_first: SilenceFirst, FAULTING, "deadlock";
    link_control_let_write: LetWrite, EMPTYING, "deadlock";
    link_control_deliver_unchanged: DeliverUnchanged, GIVEN_UP, "wrong";
    link_control_deliver_locked: DeliverLocked, GIVEN_UP, "wrong";
    link_control_abort: Abort, EMPTYING, "wrong";
    link_control_batch_lock: BatchLock, EMPTYING, "wrong";
    link_control_events_alone: EventsAlone, EMPTYING, "wrong";
    link_control_wake_waiters: WakeWaiters, FAULTING, "deadlock";
    link_control_wake_resident: WakeResident, FAULTING, "deadlock";
    link_control_wanted: Wanted, COUNTING, "deadlock";
    link_control_cut: Cut, COUNTING, "wrong";
}
