//! Memory that is registered with the process's own userfaultfd while its threads use it (`holes/`), under
//! schedules that are drawn. A missing page is no page of zeros any more: for an instruction it is SIGBUS,
//! for a system call EFAULT, and that one is never to be.
//!
//! ```text
//!   who registers, alone        registered.rs: register_piece a call                      hold.rs
//!     missing and NONE ▶ EVICTING          mark_missing        published in its slot; then the word:
//!     in use: touched, NONE                touch_kept          EVICTING, FILLING: waits;  SWAPPED: fills
//!     UFFDIO_REGISTER                                          the kernel touches the page
//!     still missing ▶ SWAPPED, closed; else NONE             a thread that touches        fault.rs
//!   MADV_DONTNEED, alone        mappings.rs: empty          SIGBUS: settles as a call does; word NONE:
//!     words NONE; then the same steps      register_again      its hazard; zeros, if nothing is there
//!   who takes out, inside       evict.rs                     a page comes                 fill.rs
//!     NONE, SWAPPED ▶ EVICTING; in use: as before              SWAPPED ▶ FILLING; UFFDIO_COPY, or ZEROPAGE
//!     UFFDIO_MOVE; SWAPPED; wakes                              of what is closed; NONE; wakes
//! ```
//!
//! Each thread counts in bytes of its own; none may be lost, no call may meet a missing page, nobody may wait
//! for ever; and in the end each word says whether its page is away. Gate and words are those of
//! `models/windows.rs`.
//!
//! Forks are in `fork_model.rs`. Not shown: what cannot be accessed, mremap, memory that runs out.
#![cfg(shuttle)]

mod models;

use memspill_common::words::{EVICTING, FILLING, NONE as EMPTY, SWAPPED, Word};
use models::windows::{Bytes, Gate, PageWord, READ_WRITE};
use models::{Lock, explore, hunt};
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

const PAGES: usize = 2;
const THREADS: usize = 2;

/// What a control leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Missing pages are marked before they are registered.
    MarkFirst,
    /// What calls use is touched before.
    TouchKept,
    /// It is looked once more what is missing, when it is registered.
    LookAgain,
    /// Whoever empties pages goes by the same steps.
    RegisterAgain,
    /// Who registers is alone.
    Alone,
    /// What calls use is not taken out.
    InUse,
    /// A page on which a thread looks whether its fault is over is not taken out.
    Hazard,
    /// A missing page has a word that says so.
    Closed,
}

/// The kernel's side: steps are whole.
#[derive(Clone, Copy, Default)]
struct Page {
    is_registered: bool,
    content: Option<Bytes>,
}

#[derive(Default)]
struct Kernel(Mutex<[Page; PAGES]>);

/// SIGBUS, or EFAULT.
#[derive(Debug)]
struct Missing;

impl Kernel {
    fn with<T>(&self, page: usize, step: impl FnOnce(&mut Page) -> T) -> T {
        step(&mut self.0.held()[page])
    }

    fn access<T>(&self, page: usize, access: impl FnOnce(&mut Bytes) -> T) -> Result<T, Missing> {
        self.with(page, |page| match page {
            Page { content: Some(bytes), .. } => Ok(access(bytes)),
            Page { is_registered: true, .. } => Err(Missing),
            Page { content, .. } => Ok(access(content.insert(Bytes::default()))),
        })
    }

    fn is_missing(&self, page: usize) -> bool {
        self.with(page, |page| page.content.is_none())
    }

    fn register(&self) {
        self.0.held().iter_mut().for_each(|page| page.is_registered = true);
    }

    /// UFFDIO_ZEROPAGE, or MADV_POPULATE_READ: what is there stays.
    fn zero(&self, page: usize) {
        self.with(page, |page| _ = page.content.get_or_insert_default());
    }

    /// UFFDIO_COPY.
    fn copy(&self, page: usize, bytes: Bytes) {
        let before = self.with(page, |page| page.content.replace(bytes));
        assert!(before.is_none(), "wrong: EEXIST, a page is in the place of one that is away");
    }

    /// UFFDIO_MOVE. None: ENOENT.
    fn take(&self, page: usize) -> Option<Bytes> {
        self.with(page, |page| page.content.take())
    }
}

struct Process {
    without: Without,
    kernel: Kernel,
    words: [PageWord; PAGES],
    gate: Gate,
    /// A page and one, in use by a thread's call.
    in_use: [AtomicU32; THREADS],
    /// The same, while it looks whether its fault is over.
    hazards: [AtomicU32; THREADS],
    slots: Mutex<[Option<Bytes>; PAGES]>,
}

impl Process {
    fn has(&self, rule: Without) -> bool {
        self.without != rule
    }

    // -- The program --

    fn count(&self, who: usize, times: u8) {
        for n in 0..times {
            for page in 0..PAGES {
                let before = self.touch(who, page, |bytes| {
                    bytes[who] += 1;
                    bytes[who] - 1
                });
                assert_eq!(before, n, "wrong: a count is lost");
            }
        }
    }

    fn touch<T>(&self, who: usize, page: usize, access: impl Fn(&mut Bytes) -> T) -> T {
        loop {
            match self.kernel.access(page, &access) {
                Ok(result) => return result,
                Err(Missing) if !self.settle(page) => self.is_over(who, page),
                Err(Missing) => {}
            }
        }
    }

    /// Another thread may have brought it meanwhile. Else a page of zeros comes, as from the kernel: so it is
    /// not to leave between the look at its word and that.
    fn is_over(&self, who: usize, page: usize) {
        self.hazards[who].store(page as u32 + 1, Ordering::SeqCst);
        let inside = self.gate.enter();
        if self.words[page].load().state() == EMPTY {
            self.kernel.zero(page);
        }
        drop(inside);
        self.hazards[who].store(0, Ordering::SeqCst);
    }

    /// A call that writes to a page, twice; `from`: what it holds before.
    fn call(&self, who: usize, page: usize, from: u8) {
        self.in_use[who].store(page as u32 + 1, Ordering::SeqCst);
        self.settle(page);
        for value in [from, from + 1] {
            let before = self.kernel.access(page, |bytes| std::mem::replace(&mut bytes[who], value));
            assert_eq!(before.expect("wrong: EFAULT"), from, "wrong: a count is lost");
        }
        self.in_use[who].store(0, Ordering::SeqCst);
    }

    fn calls(&self, who: usize, page: usize, times: u8) {
        (0..times).for_each(|n| self.call(who, page, n));
    }

    /// MADV_DONTNEED of a page that nobody else writes; then it is used by a call.
    fn empty(&self, who: usize, page: usize, times: usize) {
        for _ in 0..times {
            let alone = self.gate.enter_alone();
            self.kernel.take(page);
            self.words[page].finish(Word::EMPTY);
            self.slots.held()[page] = None;
            let was_registered = self.kernel.with(page, |page| page.is_registered);
            if was_registered && self.has(Without::RegisterAgain) {
                self.register();
            }
            drop(alone);
            self.call(who, page, 0);
        }
    }

    // -- Faults --

    /// False: there was nothing to do.
    fn settle(&self, page: usize) -> bool {
        let mut has_waited = false;
        loop {
            let inside = self.gate.enter();
            let word = &self.words[page];
            let seen = word.load();
            match seen.state() {
                SWAPPED if word.turn(seen, seen.filling()) => {
                    self.fill(page, seen);
                    return true;
                }
                SWAPPED => {}
                FILLING | EVICTING => {
                    drop(inside);
                    word.wait_for(seen);
                    has_waited = true;
                }
                _ => return has_waited,
            }
        }
    }

    fn fill(&self, page: usize, word: Word) {
        if word.is_closed() {
            self.kernel.zero(page);
        } else {
            let bytes = self.slots.held()[page].take();
            self.kernel.copy(page, bytes.expect("wrong: nothing was kept of it"));
        }
        self.words[page].finish(Word::EMPTY);
    }

    // -- Who takes out --

    fn take_all(&self, rounds: usize) {
        for _ in 0..rounds {
            if !self.kernel.with(0, |page| page.is_registered) {
                let alone = self.has(Without::Alone).then(|| self.gate.enter_alone());
                self.register();
                drop(alone);
            }
            (0..PAGES).for_each(|page| self.take_out(page));
        }
    }

    fn register(&self) {
        let marked = |page: &usize| self.words[*page].load().state() == EVICTING;
        let missing = |page: &usize| self.kernel.is_missing(*page);
        for page in (0..PAGES).filter(missing) {
            let seen = self.words[page].load();
            if seen.state() == EMPTY && self.has(Without::MarkFirst) {
                self.words[page].turn(seen, seen.evicting());
            }
        }
        for page in (0..PAGES).filter(|page| self.has(Without::TouchKept) && is_named(&self.in_use, *page)) {
            if marked(&page) {
                self.kernel.zero(page);
                self.words[page].finish(Word::EMPTY);
            }
        }
        self.kernel.register();
        for page in 0..PAGES {
            let is_new = !self.has(Without::MarkFirst) && self.words[page].load().state() == EMPTY;
            if (marked(&page) || is_new) && (missing(&page) || !self.has(Without::LookAgain)) {
                let closed = Word::closed(READ_WRITE);
                self.words[page].finish(if self.has(Without::Closed) { closed } else { Word::EMPTY });
            }
        }
        (0..PAGES).filter(marked).for_each(|page| self.words[page].finish(Word::EMPTY));
    }

    fn take_out(&self, page: usize) {
        let _inside = self.gate.enter();
        let word = &self.words[page];
        let seen = word.load();
        if seen.state() != EMPTY || !word.turn(seen, seen.evicting()) {
            return;
        }
        let bytes = if self.is_kept(page) { None } else { self.kernel.take(page) };
        if bytes.is_some() {
            self.slots.held()[page] = bytes;
        }
        let before = word.load().as_before();
        word.finish(if bytes.is_some() { Word::swapped(0, READ_WRITE) } else { before });
    }

    fn is_kept(&self, page: usize) -> bool {
        self.has(Without::InUse) && is_named(&self.in_use, page)
            || self.has(Without::Hazard) && is_named(&self.hazards, page)
    }
}

fn is_named(fields: &[AtomicU32], page: usize) -> bool {
    fields.iter().any(|field| field.load(Ordering::SeqCst) == page as u32 + 1)
}

type Scene = [fn(&Process); THREADS];

const COUNTING: Scene = [|it| it.count(0, 3), |it| it.count(1, 3)];
const CALLING: Scene = [|it| it.count(0, 3), |it| it.calls(1, 1, 4)];
const EMPTYING: Scene = [|it| it.calls(0, 0, 3), |it| it.empty(1, 1, 3)];

fn play(without: Without, scene: Scene) -> impl Fn() + Send + Sync + Clone + 'static {
    move || {
        let process = Arc::new(Process {
            without,
            kernel: Kernel::default(),
            words: Default::default(),
            gate: Gate::default(),
            in_use: Default::default(),
            hazards: Default::default(),
            slots: Mutex::default(),
        });
        let evictor = process.clone();
        let evictor = thread::spawn(move || evictor.take_all(3));
        let threads = scene.map(|work| {
            let process = process.clone();
            thread::spawn(move || work(&process))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        evictor.join().unwrap();
        for page in 0..PAGES {
            let (is_away, is_missing) =
                (process.words[page].load().state() == SWAPPED, process.kernel.is_missing(page));
            let may_miss = !process.kernel.with(page, |page| page.is_registered);
            assert!(is_away == is_missing || is_missing && may_miss, "wrong: a word that is not true");
        }
    }
}

#[test]
fn registering_no_call_meets_a_missing_page_and_no_count_is_lost() {
    for scene in [COUNTING, CALLING, EMPTYING] {
        explore(play(Without::Nothing, scene));
    }
}

macro_rules! controls {
    ($($name:ident: $without:expr, $scene:ident;)*) => {
        $(
            #[test]
            #[should_panic(expected = "wrong")]
            fn $name() {
                hunt(play($without, $scene));
            }
        )*
    };
}

controls! {
    registering_control_mark_first: Without::MarkFirst, CALLING;
    registering_control_touch_kept: Without::TouchKept, CALLING;
    registering_control_look_again: Without::LookAgain, COUNTING;
    registering_control_register_again: Without::RegisterAgain, EMPTYING;
    registering_control_alone: Without::Alone, EMPTYING;
    registering_control_in_use: Without::InUse, CALLING;
    registering_control_hazard: Without::Hazard, COUNTING;
    registering_control_closed: Without::Closed, CALLING;
}
