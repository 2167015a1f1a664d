//! Calls against batches and registrations of the `user` pager, under schedules that are drawn: what
//! `board_model.rs` has of moving, and beside it what there is of registering and of sleeping.
//!
//! ```text
//!   a thread, each call                         evictor, OP_PREPARE, then the supervisor registers
//!   publish, fence        publish_list          lock; generation odd; fence     Batch::begin
//!   generation odd?       wait_for_batch        each slot: populate             Batch::prepare
//!     counts itself in `waiting`, sleeps        Board::managed grows            extend
//!   touches what `managed` has    bring         generation even; wakes if       Batch::drop
//!   the call, twice on its page                   `waiting`; unlock
//!   withdraws                                   UFFDIO_REGISTER                 register.rs
//!                                               OP_MOVE: the same, but takes what no slot names
//!   another thread, of memory that it has just mapped: lock, extend, unlock; registered    note_new
//! ```
//!
//! No call may meet a page that is missing in registered memory, or away: that is EFAULT. What it writes
//! there is read back. Nobody may sleep for ever.
//!
//! Orders of memory are in `loom_in_use.rs`: here one step follows the other.
#![cfg(shuttle)]

mod models;

use models::{Futex, Lock, explore, hunt};
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

const PAGES: usize = 3;
const THREADS: usize = 2;

/// What a control leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// What calls are using is made present before it is registered.
    Populate,
    /// `managed` grows while the generation is odd.
    ManagedWhileOdd,
    /// A thread waits while the generation is odd.
    Wait,
    /// It counts itself before it sleeps.
    Count,
    /// It sleeps only if the generation is still what it has seen.
    Compare,
    /// It touches after it has waited.
    TouchLast,
    /// Who ends a batch looks who waits after the generation is even.
    WakeLast,
    /// Who makes `managed` grow is alone.
    Lock,
    /// New memory is in `managed` before anybody uses it.
    NoteNew,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    Nothing,
    Here(u32),
    Away(u32),
}

/// The page table, and what is registered.
struct Kernel {
    pages: [Page; PAGES],
    is_registered: [bool; PAGES],
}

#[derive(Default)]
struct Slot {
    count: AtomicU32,
    page: AtomicU32,
}

struct Process {
    without: Without,
    generation: Futex,
    waiting: AtomicU32,
    lock: Futex,
    slots: [Slot; THREADS],
    managed_count: AtomicU32,
    managed: [AtomicU32; 2],
    kernel: Mutex<Kernel>,
}

/// A thread of the program.
impl Process {
    fn call(&self, who: usize, page: usize, value: u32) {
        if self.without == Without::TouchLast {
            self.bring(page);
        }
        let slot = &self.slots[who];
        slot.page.store(page as u32, Ordering::Relaxed);
        slot.count.store(1, Ordering::Release);
        if self.without != Without::Wait {
            self.wait_for_batch();
        }
        if self.without != Without::TouchLast {
            self.bring(page);
        }
        // Some bytes come now, some when the call has slept.
        self.kernel_writes(page, value);
        self.kernel_writes(page, value);
        slot.count.store(0, Ordering::Release);
        assert_eq!(self.touch(page), value, "wrong: a page has other bytes than were written");
    }

    fn wait_for_batch(&self) {
        let seen = self.generation.load(Ordering::SeqCst);
        if seen.is_multiple_of(2) {
            return;
        }
        let counts = u32::from(self.without != Without::Count);
        self.waiting.fetch_add(counts, Ordering::SeqCst);
        while self.generation.load(Ordering::SeqCst) == seen {
            let compared = match self.without {
                Without::Compare => self.generation.load(Ordering::SeqCst),
                _ => seen,
            };
            self.generation.sleep(compared);
        }
        self.waiting.fetch_sub(counts, Ordering::SeqCst);
    }

    fn bring(&self, page: usize) {
        if self.managed_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let [start, end] = [0, 1].map(|edge| self.managed[edge].load(Ordering::Relaxed) as usize);
        if (start..end).contains(&page) {
            self.touch(page);
        }
    }

    /// An access by the program itself: the pager brings what is missing.
    fn touch(&self, page: usize) -> u32 {
        let page = &mut self.kernel.held().pages[page];
        let value = match *page {
            Page::Nothing => 0,
            Page::Here(value) | Page::Away(value) => value,
        };
        *page = Page::Here(value);
        value
    }

    /// An access inside a system call.
    fn kernel_writes(&self, page: usize, value: u32) {
        let mut kernel = self.kernel.held();
        let is_missing = match kernel.pages[page] {
            Page::Nothing => kernel.is_registered[page],
            Page::Here(_) => false,
            Page::Away(_) => true,
        };
        assert!(!is_missing, "wrong: EFAULT");
        kernel.pages[page] = Page::Here(value);
    }

    /// mmap, whose memory may be registered before it returns.
    fn note_new(&self, page: usize) {
        if self.without != Without::NoteNew {
            self.lock();
            self.extend(page);
            self.unlock();
        }
        self.register(page);
    }
}

/// The evictor, for the supervisor.
impl Process {
    fn prepare_and_register(&self, page: usize) {
        self.begin();
        if self.without != Without::Populate {
            for slot in &self.slots {
                if names(slot, page) {
                    self.populate(page);
                }
            }
        }
        if self.without == Without::ManagedWhileOdd {
            self.end();
            self.extend(page);
        } else {
            self.extend(page);
            self.end();
        }
        self.register(page);
    }

    fn take(&self, page: usize) {
        self.begin();
        let in_use = self.slots.iter().fold(false, |in_use, slot| names(slot, page) || in_use);
        if !in_use {
            let page = &mut self.kernel.held().pages[page];
            if let Page::Here(value) = *page {
                *page = Page::Away(value);
            }
        }
        self.end();
    }

    fn begin(&self) {
        self.lock();
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self) {
        let waited_for = || self.waiting.load(Ordering::SeqCst) != 0;
        let is_waited_for = self.without == Without::WakeLast && waited_for();
        self.generation.fetch_add(1, Ordering::SeqCst);
        if is_waited_for || self.without != Without::WakeLast && waited_for() {
            self.generation.wake_all();
        }
        self.unlock();
    }

    /// MADV_POPULATE_READ.
    fn populate(&self, page: usize) {
        let mut kernel = self.kernel.held();
        if kernel.pages[page] == Page::Nothing && !kernel.is_registered[page] {
            kernel.pages[page] = Page::Here(0);
        }
    }

    fn register(&self, page: usize) {
        self.kernel.held().is_registered[page] = true;
    }

    fn lock(&self) {
        if self.without == Without::Lock
            || self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return;
        }
        while self.lock.swap(2, Ordering::Acquire) != 0 {
            self.lock.sleep(2);
        }
    }

    fn unlock(&self) {
        if self.lock.swap(0, Ordering::Release) == 2 {
            self.lock.wake_all();
        }
    }

    fn extend(&self, page: usize) {
        let [start, end] = &self.managed;
        let (from, to) = (page as u32, page as u32 + 1);
        if self.managed_count.load(Ordering::Relaxed) == 0 {
            start.store(from, Ordering::Relaxed);
            end.store(to, Ordering::Relaxed);
            self.managed_count.store(1, Ordering::Release);
        } else {
            let before = [start, end].map(|edge| edge.load(Ordering::Relaxed));
            start.store(from.min(before[0]), Ordering::Relaxed);
            end.store(to.max(before[1]), Ordering::Relaxed);
        }
    }
}

fn names(slot: &Slot, page: usize) -> bool {
    slot.count.load(Ordering::Acquire) != 0 && slot.page.load(Ordering::Relaxed) == page as u32
}

/// One thread's calls on a page that becomes managed meanwhile; another one's on that page, and on one that
/// it has mapped just now; the evictor.
fn scenario(without: Without) -> impl Fn() + Send + Sync + Clone + 'static {
    move || {
        let process = Arc::new(Process {
            without,
            generation: Futex::default(),
            waiting: AtomicU32::default(),
            lock: Futex::default(),
            slots: Default::default(),
            managed_count: AtomicU32::default(),
            managed: Default::default(),
            kernel: Mutex::new(Kernel { pages: [Page::Nothing; PAGES], is_registered: [false; PAGES] }),
        });
        let spawn = |work: fn(&Process)| {
            let process = process.clone();
            thread::spawn(move || work(&process))
        };
        let threads = [
            spawn(|process| (1..4).for_each(|value| process.call(0, 0, value))),
            spawn(|process| {
                process.call(1, 1, 1);
                process.note_new(2);
                process.call(1, 2, 1);
                process.call(1, 1, 2);
            }),
            spawn(|process| {
                process.prepare_and_register(0);
                process.take(0);
                process.prepare_and_register(1);
                (0..PAGES).for_each(|page| process.take(page));
            }),
        ];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(process.waiting.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn in_use_no_call_meets_efault_and_nobody_sleeps_for_ever() {
    explore(scenario(Without::Nothing));
}

macro_rules! controls {
    ($($name:ident: $without:ident, $expected:literal;)*) => {
        $(
            #[test]
            #[should_panic(expected = $expected)]
            fn $name() {
                hunt(scenario(Without::$without));
            }
        )*
    };
}

controls! {
    in_use_control_populate: Populate, "wrong";
    in_use_control_managed_while_odd: ManagedWhileOdd, "wrong";
    in_use_control_wait: Wait, "wrong";
    in_use_control_count: Count, "deadlock";
    in_use_control_compare: Compare, "deadlock";
    in_use_control_touch_last: TouchLast, "wrong";
    in_use_control_wake_last: WakeLast, "deadlock";
    in_use_control_lock: Lock, "wrong";
    in_use_control_note_new: NoteNew, "wrong";
}
