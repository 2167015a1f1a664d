//! The parts of a process that is paged by windows, for the models: the kernel's side of its pages, their
//! words, and the gate.
//!
//! | here | there, `crates/agent/src/agent/pages/` |
//! |---|---|
//! | `Kernel` | `kernel.rs`: what the calls do, in the steps in which another thread may come |
//! | `PageWord` | `table.rs`: `turn`, `finish`, `wait_for`; the word itself is the real one |
//! | `Gate` | `gate.rs` |

use super::{Futex, Lock, Sleepers};
use memspill_common::words::Word;
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::thread::panicking;

/// A byte for each of two threads.
pub type Bytes = [u8; 2];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    Nothing,
    Marker,
    Holds(Bytes),
}

pub const NONE: u64 = 0;
pub const READ: u64 = 1;
pub const READ_WRITE: u64 = 3;

#[derive(Clone, Copy)]
struct Page {
    prot: u64,
    content: Content,
}

/// SIGSEGV.
#[derive(Debug)]
pub struct Fault;

/// The page table.
pub struct Kernel<const PAGES: usize> {
    pages: Mutex<[Page; PAGES]>,
}

impl<const PAGES: usize> Default for Kernel<PAGES> {
    fn default() -> Self {
        let page = Page { prot: READ_WRITE, content: Content::Nothing };
        Self { pages: Mutex::new([page; PAGES]) }
    }
}

impl<const PAGES: usize> Kernel<PAGES> {
    fn with<T>(&self, page: usize, step: impl FnOnce(&mut Page) -> T) -> T {
        step(&mut self.pages.held()[page])
    }

    /// An access by the program, or by the kernel for it: a page of zeros comes where nothing is.
    pub fn access<T>(
        &self,
        page: usize,
        prot: u64,
        access: impl FnOnce(&mut Bytes) -> T,
    ) -> Result<T, Fault> {
        self.with(page, |page| {
            if page.prot & prot != prot {
                return Err(Fault);
            }
            let mut bytes = match page.content {
                Content::Marker => return Err(Fault),
                Content::Nothing => Bytes::default(),
                Content::Holds(bytes) => bytes,
            };
            let result = access(&mut bytes);
            page.content = Content::Holds(bytes);
            Ok(result)
        })
    }

    pub fn is_present(&self, page: usize) -> bool {
        self.with(page, |page| matches!(page.content, Content::Holds(_)))
    }

    pub fn prot(&self, page: usize) -> u64 {
        self.with(page, |page| page.prot)
    }

    /// mprotect: whole.
    pub fn protect(&self, range: Range<usize>, prot: u64) {
        let mut pages = self.pages.held();
        pages[range].iter_mut().for_each(|page| page.prot = prot);
    }

    /// MADV_GUARD_INSTALL: meets a page, zaps it, tries again.
    pub fn install_guards(&self, range: Range<usize>) {
        for page in range {
            while self.with(page, |page| {
                let was_there = matches!(page.content, Content::Holds(_));
                page.content = if was_there { Content::Nothing } else { Content::Marker };
                was_there
            }) {}
        }
    }

    /// MADV_GUARD_REMOVE.
    pub fn remove_guards(&self, range: Range<usize>) {
        for page in range {
            self.with(page, |page| {
                if page.content == Content::Marker {
                    page.content = Content::Nothing;
                }
            });
        }
    }

    /// pwrite of /proc/self/mem: whatever the protection is.
    pub fn write_through(&self, page: usize, bytes: Bytes) {
        self.with(page, |page| {
            assert!(page.content != Content::Marker, "wrong: bytes for a page that has a marker");
            page.content = Content::Holds(bytes);
        });
    }

    /// pread of it. None: a marker.
    pub fn read_through(&self, page: usize) -> Option<Bytes> {
        self.with(page, |page| match page.content {
            Content::Nothing => Some(Bytes::default()),
            Content::Marker => None,
            Content::Holds(bytes) => Some(bytes),
        })
    }

    /// munmap, mmap.
    pub fn map_anew(&self, page: usize, prot: u64) {
        self.with(page, |page| *page = Page { prot, content: Content::Nothing });
    }

    /// mremap onto another page: markers go along.
    pub fn move_page(&self, from: usize, to: usize) {
        let mut pages = self.pages.held();
        pages[to] = pages[from];
        pages[from] = Page { prot: READ_WRITE, content: Content::Nothing };
    }

    /// MADV_DONTNEED: markers stay.
    pub fn drop_pages(&self, range: Range<usize>) {
        for page in range {
            self.with(page, |page| {
                if page.content != Content::Marker {
                    page.content = Content::Nothing;
                }
            });
        }
    }
}

/// What a control leaves out, here.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum Without {
    #[default]
    Nothing,
    /// The thread that ends its work on a word wakes the waiters.
    Wake,
    /// Nobody enters while somebody changes, or waits to.
    Closed,
    /// A changer waits until nobody is inside.
    WaitForInside,
    /// The last one inside wakes him.
    LastWakes,
    /// Only one changes.
    OneChanger,
}

#[derive(Default)]
pub struct PageWord {
    word: AtomicU64,
    sleepers: Sleepers,
    without: Without,
}

impl PageWord {
    pub fn new(without: Without) -> PageWord {
        PageWord { without, ..PageWord::default() }
    }

    pub fn load(&self) -> Word {
        Word(self.word.load(Ordering::SeqCst))
    }

    pub fn turn(&self, from: Word, to: Word) -> bool {
        self.word.compare_exchange(from.0, to.0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub fn finish(&self, to: Word) {
        let before = Word(self.word.swap(to.0, Ordering::SeqCst));
        if before.is_waited_for() && self.without != Without::Wake {
            self.sleepers.wake_all();
        }
    }

    pub fn wait_for(&self, seen: Word) {
        let waited = seen.waited_for();
        if seen == waited || self.turn(seen, waited) {
            self.sleepers.sleep_if(|| self.word.load(Ordering::SeqCst) as u32 == waited.0 as u32);
        }
    }
}

const CHANGING: u32 = 1 << 31;

#[derive(Default)]
pub struct Gate {
    state: Futex,
    changer: Futex,
    /// The model's own state, to look whether it holds.
    is_one_alone: AtomicBool,
    without: Without,
}

pub struct Inside<'a>(&'a Gate);
pub struct Alone<'a>(&'a Gate);

impl Gate {
    pub fn new(without: Without) -> Gate {
        Gate { without, ..Gate::default() }
    }

    pub fn enter(&self) -> Inside<'_> {
        loop {
            let seen = self.state.load(Ordering::SeqCst);
            if self.is_closed(seen) {
                self.state.sleep(seen);
            } else if self.try_enter(seen) {
                return Inside(self);
            }
        }
    }

    /// `enter_within`, which gives up after a while.
    pub fn try_for_a_while(&self) -> Option<Inside<'_>> {
        const TIMES: u32 = 3;
        for _ in 0..TIMES {
            let seen = self.state.load(Ordering::SeqCst);
            if self.is_closed(seen) {
                thread::yield_now();
            } else if self.try_enter(seen) {
                return Some(Inside(self));
            }
        }
        None
    }

    fn is_closed(&self, seen: u32) -> bool {
        seen & CHANGING != 0 && self.without != Without::Closed
    }

    fn try_enter(&self, seen: u32) -> bool {
        self.state.compare_exchange(seen, seen + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    pub fn enter_alone(&self) -> Alone<'_> {
        while self.without != Without::OneChanger
            && self.changer.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_err()
        {
            self.changer.sleep(1);
        }
        let mut seen = self.state.fetch_or(CHANGING, Ordering::SeqCst) | CHANGING;
        while seen != CHANGING && self.without != Without::WaitForInside {
            self.state.sleep(seen);
            seen = self.state.load(Ordering::SeqCst);
        }
        assert!(!self.is_one_alone.swap(true, Ordering::SeqCst), "wrong: two are alone");
        Alone(self)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if panicking() {
            return;
        }
        let Gate { state, without, .. } = self.0;
        if state.fetch_sub(1, Ordering::SeqCst) == CHANGING | 1 && *without != Without::LastWakes {
            state.wake_all();
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        if panicking() {
            return;
        }
        let Gate { state, changer, is_one_alone, .. } = self.0;
        is_one_alone.store(false, Ordering::SeqCst);
        state.fetch_and(!CHANGING, Ordering::SeqCst);
        state.wake_all();
        changer.store(0, Ordering::SeqCst);
        changer.wake_all();
    }
}
