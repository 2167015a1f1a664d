//! A thread reads its page out of the supervisor's pool by itself, under schedules that are drawn: slots that
//! others get, a pool that is emptied to a disk, deliveries, changes, swapoff.
//!
//! ```text
//!   a thread that lacks a page     from_pool.rs: fetch       a pager, the reclaimer     run/pool_reads.rs
//!     reads hints                    take_hints                HERE, NOTING; 0            note_pool_reads
//!     an entry FETCHING              notes::claim              RESIDENT, its slot free    engine: note_there
//!     FILLING                                                  a fault: delivered, FULL   supervisor.rs: ask
//!     location, object, location     read                    the reclaimer
//!     still allowed, not delivered   is_right                  the evictor reads hints    take_hints_outside
//!     filled; NONE; HERE             fill, notes::here         no entry has the page      noted::first
//!   a thread that changes                                      taken out; a slot          swap_out.rs
//!     closed; all entries are 0      enter_to_change           hint, while it is stored   Told::tell
//!     alone; drops hints             install_alone           another program
//!     drops pages, moves; told       mappings.rs               takes free slots, writes, frees them
//!                                                              moves objects to the disk
//! ```
//!
//! Each thread counts in a byte of its own, as in `shuttle_link.rs`, which has the rest of the link: here the
//! ring is a queue that is never full, and the evictor is the reclaimer's hand. Slots come back at once, to
//! whoever asks first, and objects too.
#![cfg(shuttle)]

mod models;

use memspill_common::link::{EARLY_STATE, FETCHING, FREE, FULL, HERE, NOTING, TAKEN};
use memspill_common::words::{FILLING, NONE as EMPTY, SWAPPED, Word};
use models::windows::{Bytes, Gate, Inside, Kernel, NONE, PageWord, READ_WRITE};
use models::{Futex, Lock, explore, held, hunt};
use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex, RwLock};
use shuttle::thread;
use std::collections::VecDeque;

const PAGES: usize = 2;
/// A slot for each page, and two for others. Number 0 is none.
const SLOTS: usize = PAGES + 3;
const OBJECTS: usize = SLOTS + 1;
const ENTRIES: usize = 2;
const HINTS: usize = 4;
/// The size of an entry's page: a number here, as large as an address.
const PAGE: u64 = 4096;
/// What the other program has in its pages.
const FOREIGN: Bytes = [99, 99];
/// Many times what it takes.
const TRIES: u32 = 500;

/// What a control leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    // The thread.
    /// The location is read again when the object has been.
    LookAgain,
    /// Whether the page was delivered meanwhile is looked at.
    Delivered,
    /// Whether it is still allowed is looked at when the page has been read.
    StillAllowed,
    /// The page has an entry before it is in its place.
    Entry,
    // Changes.
    /// A change waits until the supervisor has noted all pages that threads have brought.
    NotedFirst,
    /// It drops hints that are unread.
    DropHints,
    // The evictor.
    /// It reads all hints before it takes anything.
    HintsFirst,
    /// It leaves pages that have an entry.
    LeaveEntries,
    // The supervisor.
    /// Nothing is told of a slot while a change is unread.
    HintUnchanged,
    /// Hints are told while the slot cannot be another page's.
    HintWhileStored,
    /// An entry is noted by one pager.
    Noting,
    /// Nothing is noted while a change is unread.
    NoteUnchanged,
    /// Threads are to bring nothing more before slots move.
    EndBeforeMove,
}

/// The engine's word of a page.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
enum State {
    #[default]
    None,
    Resident,
    Evicting,
    Swapped(usize),
    Filling,
}

#[derive(Clone, Copy)]
enum Message {
    Fault(usize),
    Remove(usize),
    /// The first page is where the second was.
    Remap(usize, usize),
    End,
}

/// A page that is delivered.
#[derive(Clone, Copy, Default)]
struct Filled {
    page: usize,
    /// None: zeros.
    bytes: Option<Bytes>,
}

#[derive(Default)]
struct Link {
    changes: AtomicU32,
    changes_read: AtomicU32,
    lock: Futex,
    ring: Mutex<VecDeque<Message>>,
    /// Changes with whatever a thread may wait for.
    woken: Futex,
    bell: Futex,
    delivery: AtomicU32,
    filled: Mutex<Filled>,
    entries: [AtomicU64; ENTRIES],
    allows: AtomicU32,
    hints: [Mutex<(usize, usize)>; HINTS],
    hints_head: AtomicU32,
    hints_tail: AtomicU32,
    /// The agent's alone.
    reads_hints: AtomicU32,
    closed: AtomicU32,
}

/// The swap device, with what anybody can read of it.
#[derive(Default)]
struct Pool {
    /// The object that has a slot's bytes; 0: they are on the disk, or nowhere.
    locations: [AtomicU32; SLOTS],
    objects: [Mutex<Bytes>; OBJECTS],
    own: Mutex<Own>,
}

/// What only the supervisor knows.
struct Own {
    free_slots: Vec<usize>,
    free_objects: Vec<usize>,
    disk: [Bytes; SLOTS],
}

impl Default for Own {
    fn default() -> Own {
        Own {
            free_slots: (1..SLOTS).collect(),
            free_objects: (1..OBJECTS).collect(),
            disk: [Bytes::default(); SLOTS],
        }
    }
}

impl Pool {
    fn store(&self, bytes: Bytes) -> usize {
        let mut own = self.own.held();
        let slot = own.free_slots.pop().expect("as many slots as anybody takes");
        self.put(&mut own, slot, bytes);
        slot
    }

    fn put(&self, own: &mut Own, slot: usize, bytes: Bytes) {
        let object = own.free_objects.pop().expect("as many objects as slots");
        *self.objects[object].held() = bytes;
        self.locations[slot].store(object as u32, Ordering::SeqCst);
    }

    /// The supervisor's own reading, of a slot that is its page's.
    fn bytes(&self, slot: usize) -> Bytes {
        let own = self.own.held();
        match self.locations[slot].load(Ordering::SeqCst) as usize {
            0 => own.disk[slot],
            object => *self.objects[object].held(),
        }
    }

    /// Frees the object of a slot, and says what it held.
    fn leave_object(&self, own: &mut Own, slot: usize) -> Option<Bytes> {
        let object = self.locations[slot].swap(0, Ordering::SeqCst) as usize;
        (object != 0).then(|| {
            own.free_objects.push(object);
            *self.objects[object].held()
        })
    }

    fn free(&self, slot: usize) {
        let mut own = self.own.held();
        self.leave_object(&mut own, slot);
        own.free_slots.push(slot);
    }

    fn write_back(&self, slot: usize) {
        let mut own = self.own.held();
        if let Some(bytes) = self.leave_object(&mut own, slot) {
            own.disk[slot] = bytes;
        }
    }
}

#[derive(Default)]
struct Engine {
    words: Mutex<[State; PAGES]>,
    gate: RwLock<()>,
    batch: Mutex<()>,
    delivering: Mutex<()>,
}

struct All {
    without: Without,
    kernel: Kernel<PAGES>,
    gate: Gate,
    words: [PageWord; PAGES],
    link: Link,
    pool: Pool,
    engine: Engine,
    is_ending: AtomicU32,
}

fn entry_of(page: usize, state: u64) -> u64 {
    (page as u64 + 1) * PAGE | state
}

fn page_of(entry: u64) -> Option<usize> {
    ((entry & !EARLY_STATE) / PAGE).checked_sub(1).map(|page| page as usize)
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

    /// Adds one to its byte of each page, so many times.
    fn count(&self, who: usize, times: u8) {
        for n in 0..times {
            for page in 0..PAGES {
                assert_eq!(self.access(page, |bytes| bytes[who]), n, "wrong: a count is lost");
                self.access(page, |bytes| {
                    bytes[who] += 1;
                    bytes[who]
                });
            }
        }
    }

    /// Empties a page, and counts in it from the beginning.
    fn empty_and_count(&self, who: usize, times: u8) {
        for _ in 0..times {
            self.discard(0);
            for n in 0..3 {
                assert_eq!(self.access(0, |bytes| bytes[who]), n, "wrong: a count is lost, or came back");
                self.access(0, |bytes| {
                    bytes[who] += 1;
                    bytes[who]
                });
            }
        }
    }

    /// Writes into a page, gives both at most so many steps to leave in, and moves it onto the other one.
    fn move_and_count(&self, who: usize, times: u8, steps: u32) {
        for n in 1..=times {
            self.access(0, |bytes| {
                bytes[who] = n;
                n
            });
            let is_any_here = || self.words.iter().any(|word| word.load().state() != SWAPPED);
            (0..steps).take_while(|_| is_any_here()).for_each(|_| thread::yield_now());
            self.move_onto(0, 1);
            assert_eq!(self.access(1, |bytes| bytes[who]), n, "wrong: what was moved is lost");
            assert_eq!(self.access(0, |bytes| bytes[who]), 0, "wrong: what was moved away came back");
        }
    }

    /// Looks at pages that another one empties.
    fn look(&self, times: u8) {
        (0..times).for_each(|_| (0..PAGES).for_each(|page| _ = self.access(page, |_| 0)));
    }
}

// -- The agent --

impl All {
    fn settle(&self, page: usize) {
        for tries in 0.. {
            assert!(tries < TRIES, "wrong: a page never comes");
            let inside = self.gate.enter();
            let seen = self.words[page].load();
            match seen.state() {
                SWAPPED => {
                    let is_here = self.bring(&inside, page);
                    drop(inside);
                    match is_here {
                        true => return self.ring(),
                        false => self.ask(page),
                    }
                }
                FILLING => {
                    drop(inside);
                    self.words[page].wait_for(seen);
                }
                _ => return,
            }
        }
    }

    fn bring(&self, _inside: &Inside<'_>, page: usize) -> bool {
        let word = &self.words[page];
        if word.load().slot() == 0 {
            self.take_hints();
        }
        let seen = word.load();
        if seen.state() != SWAPPED || seen.slot() == 0 || self.link.allows.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let Some(entry) = self.claim(page) else { return false };
        if self.link.closed.load(Ordering::SeqCst) != 0 || !word.turn(seen, seen.filling()) {
            self.give_back(entry);
            return false;
        }
        let bytes = self.read(seen.slot() as usize);
        let is_allowed =
            self.without == Without::StillAllowed || self.link.allows.load(Ordering::SeqCst) != 0;
        let Some(bytes) = bytes.filter(|_| is_allowed && !self.is_delivered(page)) else {
            word.finish(Word::swapped(0, READ_WRITE));
            self.give_back(entry);
            return false;
        };
        self.fill(page, Some(bytes));
        word.finish(Word::EMPTY);
        if self.without == Without::Entry {
            self.give_back(entry);
        } else {
            entry.store(entry_of(page, HERE), Ordering::SeqCst);
        }
        true
    }

    fn claim(&self, page: usize) -> Option<&AtomicU64> {
        let taken = entry_of(page, FETCHING);
        let mut entries = self.link.entries.iter();
        entries.find(|entry| entry.compare_exchange(0, taken, Ordering::SeqCst, Ordering::Relaxed).is_ok())
    }

    fn give_back(&self, entry: &AtomicU64) {
        entry.store(0, Ordering::SeqCst);
        self.wake();
    }

    fn read(&self, slot: usize) -> Option<Bytes> {
        let location = || self.pool.locations[slot].load(Ordering::SeqCst) as usize;
        let object = location();
        if object == 0 {
            return None;
        }
        let bytes = *self.pool.objects[object].held();
        (self.without == Without::LookAgain || location() == object).then_some(bytes)
    }

    fn is_delivered(&self, page: usize) -> bool {
        // The delivery is the page's for as long as its word is FILLING.
        let is_there = self.link.delivery.load(Ordering::SeqCst) != FREE;
        is_there && self.link.filled.held().page == page && self.without != Without::Delivered
    }

    fn fill(&self, page: usize, bytes: Option<Bytes>) {
        let range = page..page + 1;
        self.kernel.protect(range.clone(), NONE);
        self.kernel.remove_guards(range.clone());
        if let Some(bytes) = bytes {
            self.kernel.write_through(page, bytes);
        }
        self.kernel.protect(range, READ_WRITE);
    }

    fn take_hints(&self) -> bool {
        let link = &self.link;
        if link.reads_hints.swap(1, Ordering::SeqCst) != 0 {
            return false;
        }
        let end = link.hints_head.load(Ordering::SeqCst);
        for at in link.hints_tail.load(Ordering::SeqCst)..end {
            let (page, slot) = *link.hints[at as usize % HINTS].held();
            let seen = self.words[page].load();
            if seen.state() == SWAPPED && seen.slot() == 0 {
                self.words[page].turn(seen, seen.with_slot(slot as u64));
            }
        }
        link.hints_tail.store(end, Ordering::SeqCst);
        link.reads_hints.store(0, Ordering::SeqCst);
        true
    }

    fn ask(&self, page: usize) {
        for tries in 0.. {
            assert!(tries < TRIES, "wrong: a page never comes");
            if tries > 0 {
                thread::yield_now();
            }
            let seen = self.link.woken.load(Ordering::SeqCst);
            self.install_outside();
            if self.words[page].load().state() != SWAPPED {
                return;
            }
            self.push(Message::Fault(page));
            self.link.woken.sleep(seen);
        }
    }

    fn push(&self, message: Message) {
        self.link.ring.held().push_back(message);
        self.ring();
    }

    fn ring(&self) {
        self.link.bell.fetch_add(1, Ordering::SeqCst);
        self.link.bell.wake_all();
    }

    fn wake(&self) {
        self.link.woken.fetch_add(1, Ordering::SeqCst);
        self.link.woken.wake_all();
    }

    fn install_outside(&self) {
        loop {
            let inside = self.gate.enter();
            let Err((page, seen)) = self.install_inside() else { return };
            drop(inside);
            self.words[page].wait_for(seen);
        }
    }

    fn install_inside(&self) -> Result<(), (usize, Word)> {
        let state = &self.link.delivery;
        if state.compare_exchange(FULL, TAKEN, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return Ok(());
        }
        let Filled { page, bytes } = *self.link.filled.held();
        loop {
            let seen = self.words[page].load();
            match seen.state() {
                SWAPPED if self.words[page].turn(seen, seen.filling()) => {
                    self.fill(page, bytes);
                    self.words[page].finish(Word::EMPTY);
                    break;
                }
                SWAPPED => {}
                FILLING => {
                    state.store(FULL, Ordering::SeqCst);
                    return Err((page, seen));
                }
                _ => break,
            }
        }
        state.store(FREE, Ordering::SeqCst);
        Ok(())
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

    /// mremap.
    fn move_onto(&self, from: usize, to: usize) {
        self.change(|| {
            self.kernel.move_page(from, to);
            let word = self.words[from].load();
            self.words[from].finish(Word::EMPTY);
            self.words[to].finish(word);
            self.push(Message::Remap(from, to));
        });
    }

    fn change(&self, change: impl FnOnce()) {
        let link = &self.link;
        let alone = loop {
            link.closed.fetch_add(1, Ordering::SeqCst);
            loop {
                let seen = link.woken.load(Ordering::SeqCst);
                if self.all_noted() && !self.is_changing() {
                    break;
                }
                thread::yield_now();
                self.ring();
                link.woken.sleep(seen);
            }
            let alone = self.gate.enter_alone();
            link.closed.fetch_sub(1, Ordering::SeqCst);
            if self.all_noted() {
                break alone;
            }
        };
        link.lock.lock();
        link.changes.fetch_add(1, Ordering::SeqCst);
        link.lock.unlock();
        if self.without != Without::DropHints {
            link.hints_tail.store(link.hints_head.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        assert!(self.install_inside().is_ok(), "wrong: a page in the hands of another one");
        change();
        self.push(Message::End);
        drop(alone);
    }

    fn all_noted(&self) -> bool {
        self.without == Without::NotedFirst
            || self.link.entries.iter().all(|entry| entry.load(Ordering::SeqCst) == 0)
    }

    fn is_changing(&self) -> bool {
        let begun = self.link.changes.load(Ordering::SeqCst);
        begun != self.link.changes_read.load(Ordering::SeqCst)
    }

    /// The evictor takes a page out. None: it stays.
    fn take_out(&self, page: usize) -> Option<Bytes> {
        if self.without != Without::HintsFirst {
            let inside = self.gate.try_for_a_while()?;
            while !self.take_hints() {
                thread::yield_now();
            }
            drop(inside);
        }
        let _inside = self.gate.try_for_a_while()?;
        let has_entry =
            || self.link.entries.iter().any(|it| page_of(it.load(Ordering::SeqCst)) == Some(page));
        if self.is_changing()
            || self.install_inside().is_err()
            || self.without != Without::LeaveEntries && has_entry()
            || !self.words[page].turn(Word::EMPTY, Word::EMPTY.filling())
        {
            return None;
        }
        // A thread that has taken a delivery, and is about to install it, would put old bytes where the page
        // comes back.
        if self.is_delivered(page) {
            self.words[page].finish(Word::EMPTY);
            return None;
        }
        self.kernel.protect(page..page + 1, NONE);
        let bytes = self.kernel.read_through(page).expect("wrong: a page that is there has a marker");
        self.kernel.install_guards(page..page + 1);
        self.kernel.protect(page..page + 1, READ_WRITE);
        self.words[page].finish(Word::swapped(0, READ_WRITE));
        Some(bytes)
    }
}

// -- The supervisor --

impl All {
    fn serve(&self) {
        loop {
            let seen = self.link.bell.load(Ordering::SeqCst);
            self.read_messages();
            self.note_all();
            if self.is_ending.load(Ordering::SeqCst) != 0 {
                return;
            }
            thread::yield_now();
            self.link.bell.sleep(seen);
        }
    }

    fn read_messages(&self) {
        let mut faults = Vec::new();
        {
            // Changes are followed alone, and while no batch is under way.
            let _alone = held(self.engine.gate.write());
            let _batch = self.engine.batch.held();
            while let Some(message) = self.link.ring.held().pop_front() {
                match message {
                    Message::Fault(page) => faults.push(page),
                    Message::Remove(page) => self.unmap(page),
                    Message::Remap(from, to) => {
                        self.unmap(to);
                        let mut words = self.engine.words.held();
                        words[to] = std::mem::take(&mut words[from]);
                    }
                    Message::End => _ = self.link.changes_read.fetch_add(1, Ordering::SeqCst),
                }
            }
        }
        self.wake();
        faults.into_iter().for_each(|page| self.fault(page));
    }

    fn unmap(&self, page: usize) {
        let before = std::mem::take(&mut self.engine.words.held()[page]);
        if let State::Swapped(slot) = before {
            self.pool.free(slot);
        }
    }

    fn fault(&self, page: usize) {
        let _delivering = self.engine.delivering.held();
        let before = {
            let mut words = self.engine.words.held();
            let before = words[page];
            if matches!(before, State::Swapped(_) | State::None) {
                words[page] = State::Filling;
            }
            before
        };
        let bytes = match before {
            State::Swapped(slot) => Some(self.pool.bytes(slot)),
            State::None => None,
            // He asks again.
            _ => return self.wake(),
        };
        let guard = held(self.engine.gate.read());
        let is_delivered = self.deliver(Filled { page, bytes });
        // A change that came before the gate has emptied the page: what it was is not to come back.
        let mut words = self.engine.words.held();
        let was_removed = words[page] != State::Filling;
        words[page] = match (is_delivered, was_removed) {
            (_, true) => words[page],
            (true, false) => State::Resident,
            (false, false) => before,
        };
        if let State::Swapped(slot) = before
            && (is_delivered || was_removed)
        {
            self.pool.free(slot);
        }
        drop((words, guard));
        self.wake();
    }

    fn deliver(&self, filled: Filled) -> bool {
        let link = &self.link;
        if link.delivery.load(Ordering::SeqCst) != FREE
            || self.engine.words.held()[filled.page] != State::Filling
        {
            return false;
        }
        *link.filled.held() = filled;
        link.lock.lock();
        let may_deliver = !self.is_changing();
        if may_deliver {
            link.delivery.store(FULL, Ordering::SeqCst);
        }
        link.lock.unlock();
        may_deliver
    }

    fn note_all(&self) {
        for entry in &self.link.entries {
            let seen = entry.load(Ordering::SeqCst);
            let noting = seen & !EARLY_STATE | NOTING;
            let takes = self.without != Without::Noting;
            if seen & EARLY_STATE != HERE
                || takes && entry.compare_exchange(seen, noting, Ordering::SeqCst, Ordering::SeqCst).is_err()
            {
                continue;
            }
            let is_noted = self.note(page_of(seen).expect("a page"));
            entry.store(if is_noted { 0 } else { seen }, Ordering::SeqCst);
            if !is_noted {
                // It is looked at again, when others have come to something.
                thread::yield_now();
                self.ring();
            }
        }
        self.wake();
    }

    fn note(&self, page: usize) -> bool {
        let _inside = held(self.engine.gate.read());
        if self.is_changing() && self.without != Without::NoteUnchanged {
            return false;
        }
        let mut words = self.engine.words.held();
        match words[page] {
            State::Swapped(slot) => {
                words[page] = State::Resident;
                self.pool.free(slot);
                true
            }
            State::Evicting | State::Filling => false,
            State::None | State::Resident => true,
        }
    }

    /// Tells of what is away at first, and takes pages out, again and again.
    fn reclaim(&self, rounds: u32) {
        for page in 0..PAGES {
            let word = self.engine.words.held()[page];
            if let State::Swapped(slot) = word {
                self.tell(page, slot);
            }
        }
        for round in 0..rounds {
            let page = round as usize % PAGES;
            self.adopt(page);
            self.note_all();
            let batch = self.engine.batch.held();
            {
                let mut words = self.engine.words.held();
                if words[page] != State::Resident {
                    drop((words, batch));
                    thread::yield_now();
                    continue;
                }
                words[page] = State::Evicting;
            }
            let slot = self.take_out(page).map(|bytes| self.pool.store(bytes));
            self.engine.words.held()[page] = slot.map_or(State::Resident, State::Swapped);
            drop(batch);
            if let Some(slot) = slot {
                self.tell(page, slot);
            }
            self.wake();
        }
    }

    /// New memory is found by looking.
    fn adopt(&self, page: usize) {
        let _guard = held(self.engine.gate.read());
        let _batch = self.engine.batch.held();
        if self.kernel.is_present(page) {
            let word = &mut self.engine.words.held()[page];
            *word = if *word == State::None { State::Resident } else { *word };
        }
    }

    fn tell(&self, page: usize, slot: usize) {
        let _guard = held(self.engine.gate.read());
        let words = self.engine.words.held();
        if words[page] != State::Swapped(slot) {
            return;
        }
        let _words = (self.without != Without::HintWhileStored).then_some(words);
        if self.without == Without::HintWhileStored {
            // Meanwhile the page comes back and leaves again: drawn schedules seldom leave that much time.
            (0..60).for_each(|_| thread::yield_now());
        }
        self.hint(page, slot);
    }

    fn hint(&self, page: usize, slot: usize) {
        let link = &self.link;
        if self.without == Without::HintUnchanged {
            // Meanwhile pages move: drawn schedules seldom leave that much time.
            (0..60).for_each(|_| thread::yield_now());
        }
        let _delivering = link.filled.held();
        link.lock.lock();
        if !self.is_changing() || self.without == Without::HintUnchanged {
            let (head, tail) =
                (link.hints_head.load(Ordering::SeqCst), link.hints_tail.load(Ordering::SeqCst));
            if head - tail < HINTS as u32 {
                *link.hints[head as usize % HINTS].held() = (page, slot);
                link.hints_head.store(head + 1, Ordering::SeqCst);
            }
        }
        link.lock.unlock();
    }

    /// Other programs, and a pool that is too full.
    fn be_others(&self, times: u32) {
        for round in 0..times {
            let slot = self.pool.store(FOREIGN);
            self.pool.free(slot);
            self.pool.write_back(1 + round as usize % (SLOTS - 1));
        }
    }

    /// Another program keeps the slot that it gets for a while.
    fn take_slots(&self, times: u32) {
        for _ in 0..times {
            let slot = self.pool.store(FOREIGN);
            (0..10).for_each(|_| thread::yield_now());
            self.pool.free(slot);
        }
    }

    /// The device is swapped off: pages get other slots.
    fn swap_off(&self) {
        if self.without != Without::EndBeforeMove {
            self.link.allows.store(0, Ordering::SeqCst);
        }
        for page in 0..PAGES {
            let mut words = self.engine.words.held();
            if let State::Swapped(slot) = words[page] {
                let moved = self.pool.store(self.pool.bytes(slot));
                self.pool.free(slot);
                words[page] = State::Swapped(moved);
            }
        }
    }
}

// -- All of it --

type Work = fn(&All);

#[derive(Clone, Copy)]
struct Scene {
    program: [Work; 2],
    rounds: u32,
    other: Work,
    pagers: usize,
    /// With one, a hint never lies unread while a page is taken out: whoever tells would have to do both.
    reclaimers: usize,
}

const COUNTING: Scene = Scene {
    program: [|all| all.count(0, 3), |all| all.count(1, 3)],
    rounds: 12,
    other: |all| all.be_others(12),
    pagers: 1,
    reclaimers: 1,
};
const TWO_PAGERS: Scene = Scene { pagers: 2, ..COUNTING };
const TWO_RECLAIMERS: Scene = Scene {
    program: [|all| all.count(0, 8), |all| all.count(1, 8)],
    rounds: 30,
    other: |all| all.take_slots(20),
    reclaimers: 2,
    ..COUNTING
};
const EMPTYING: Scene = Scene { program: [|all| all.empty_and_count(0, 3), |all| all.look(3)], ..COUNTING };
const MOVING: Scene = Scene { program: [|all| all.move_and_count(0, 4, 0), |all| all.look(4)], ..COUNTING };
const MOVING_TWO: Scene = Scene {
    program: [|all| all.move_and_count(0, 8, 20), |all| all.look(8)],
    rounds: 30,
    reclaimers: 2,
    ..MOVING
};
/// Nobody brings the pages back but who moves them.
const MOVING_ALONE: Scene =
    Scene { program: [|all| all.move_and_count(0, 8, 200), |_| ()], other: |_| (), ..MOVING_TWO };
const SWAPOFF: Scene = Scene {
    other: |all| {
        all.swap_off();
        let taken = [all.pool.store(FOREIGN), all.pool.store(FOREIGN)];
        (0..20).for_each(|_| thread::yield_now());
        taken.into_iter().for_each(|slot| all.pool.free(slot));
    },
    ..COUNTING
};

fn play(without: Without, scene: Scene) -> impl Fn() + Send + Sync + Clone + 'static {
    move || {
        let all = Arc::new(All {
            without,
            kernel: Kernel::default(),
            gate: Gate::default(),
            words: Default::default(),
            link: Link::default(),
            pool: Pool::default(),
            engine: Engine::default(),
            is_ending: AtomicU32::default(),
        });
        all.link.allows.store(1, Ordering::SeqCst);
        for page in 0..PAGES {
            all.kernel.install_guards(page..page + 1);
            all.words[page].finish(Word::swapped(0, READ_WRITE));
            all.engine.words.held()[page] = State::Swapped(all.pool.store(Bytes::default()));
        }
        let spawn = |work: Work| {
            let all = all.clone();
            thread::spawn(move || work(&all))
        };
        let pagers: Vec<_> = (0..scene.pagers).map(|_| spawn(All::serve)).collect();
        let reclaimers: Vec<_> = (0..scene.reclaimers)
            .map(|_| {
                let all = all.clone();
                thread::spawn(move || all.reclaim(scene.rounds))
            })
            .collect();
        let other = spawn(scene.other);
        scene.program.map(spawn).into_iter().for_each(|thread| thread.join().unwrap());
        reclaimers.into_iter().for_each(|thread| thread.join().unwrap());
        other.join().unwrap();
        all.agree();
        all.is_ending.store(1, Ordering::SeqCst);
        all.ring();
        pagers.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

impl All {
    /// When all has come back and is noted, both sides say the same, and no slot is lost.
    fn agree(&self) {
        for page in 0..PAGES {
            self.access(page, |_| 0);
        }
        self.install_outside();
        while !self.link.entries.iter().all(|entry| entry.load(Ordering::SeqCst) == 0) || self.is_changing() {
            let seen = self.link.woken.load(Ordering::SeqCst);
            thread::yield_now();
            self.ring();
            if self.link.entries.iter().any(|entry| entry.load(Ordering::SeqCst) != 0) {
                self.link.woken.sleep(seen);
            }
        }
        // A pager that has just delivered is not done with the slot.
        while self.engine.words.held().contains(&State::Filling) {
            thread::yield_now();
        }
        for page in 0..PAGES {
            let word = self.engine.words.held()[page];
            let is_away = self.words[page].load().state() == SWAPPED;
            assert!(
                !is_away && !matches!(word, State::Swapped(_)),
                "wrong: page {page}, {word:?}, away: {is_away}"
            );
            assert_eq!(self.words[page].load().state(), EMPTY);
        }
        assert_eq!(self.pool.own.held().free_slots.len(), SLOTS - 1, "wrong: slots are lost");
    }
}

#[test]
fn early_every_count_is_right() {
    [COUNTING, TWO_PAGERS, TWO_RECLAIMERS]
        .into_iter()
        .for_each(|scene| explore(play(Without::Nothing, scene)));
}

#[test]
fn early_nothing_comes_back_of_what_was_given_up() {
    [EMPTYING, MOVING, MOVING_TWO, MOVING_ALONE]
        .into_iter()
        .for_each(|scene| explore(play(Without::Nothing, scene)));
}

#[test]
fn early_pages_that_move_to_another_slot_are_right() {
    explore(play(Without::Nothing, SWAPOFF));
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
    early_control_look_again: LookAgain, COUNTING, "wrong";
    early_control_delivered: Delivered, COUNTING, "wrong";
    early_control_still_allowed: StillAllowed, SWAPOFF, "wrong";
    early_control_entry: Entry, COUNTING, "wrong";
    early_control_noted_first: NotedFirst, MOVING, "wrong";
    early_control_drop_hints: DropHints, MOVING_TWO, "wrong";
    early_control_hints_first: HintsFirst, COUNTING, "wrong";
    early_control_leave_entries: LeaveEntries, COUNTING, "wrong";
    early_control_hint_unchanged: HintUnchanged, MOVING_ALONE, "wrong";
    early_control_hint_while_stored: HintWhileStored, TWO_RECLAIMERS, "wrong";
    early_control_noting: Noting, TWO_PAGERS, "wrong";
    early_control_note_unchanged: NoteUnchanged, MOVING, "wrong";
    early_control_end_before_move: EndBeforeMove, SWAPOFF, "wrong";
}
