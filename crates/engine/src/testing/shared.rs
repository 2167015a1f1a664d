//! A [`Memory`] over an object of shared memory made of a map, for tests of the whole engine.
//!
//! ```text
//!   processes ── touch, sleep, punch ──▶ MockShared ◀── take, put, put_zero, filled, poison, wake ── engine
//!   pager ────── note_waiter ───────────────┘
//! ```
//!
//! Its fills wake nobody: `filled` does, as for a real object. An access is in two steps where a test wants
//! it so, as in the kernel: the page is looked for, and then its thread sleeps, whatever has come between.

use super::address_space::Touch;
use super::device::Lost;
use super::object::SharedObject;
use super::stamp::{stamp_of, stamped};
use crate::memory::{Fill, Memory, PageRun, Stop, Take};
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use crate::units::{Page, Vpn};
use std::collections::BTreeSet;

struct Inner {
    object: SharedObject,
    /// (page, mapper, thread) that sleep in a fault.
    asleep: BTreeSet<(u64, u32, u32)>,
    /// Pages whose next take finds no memory, with the rest of its run.
    refusals: BTreeSet<u64>,
    /// The next fill stops with this after so many pages.
    stop_fill: Option<(usize, Stop)>,
}

type Hook = Box<dyn FnOnce(Vpn, usize) + Send>;
type TakeHook = Box<dyn FnOnce(&[PageRun]) + Send>;

pub struct MockShared {
    inner: Mutex<Inner>,
    /// Runs after the pages of the next batch were taken, before the engine learns of it.
    pub after_take: Mutex<Option<TakeHook>>,
    /// Runs when the next pages were put in, before their words say so.
    pub after_put: Mutex<Option<Hook>>,
    /// Runs when the waiters of the next pages have been woken.
    pub after_filled: Mutex<Option<Hook>>,
    /// Held by whoever takes a batch or makes a hole.
    pub batch: Mutex<()>,
    lost: Arc<Lost>,
}

impl MockShared {
    pub fn new(pages: u64, lost: Arc<Lost>) -> MockShared {
        let object = SharedObject::new(pages);
        let (asleep, refusals) = (BTreeSet::new(), BTreeSet::new());
        MockShared {
            inner: Mutex::new(Inner { object, asleep, refusals, stop_fill: None }),
            after_take: Mutex::default(),
            after_put: Mutex::default(),
            after_filled: Mutex::default(),
            batch: Mutex::default(),
            lost,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    // ---- what processes do ----

    pub fn map(&self, mapper: u32) {
        self.lock().object.map(mapper);
    }
    pub fn fork(&self, parent: u32, child: u32) {
        self.lock().object.fork(parent, child);
    }
    /// A thread that sleeps there wakes up, and finds nothing mapped.
    pub fn unmap(&self, mapper: u32) {
        let mut inner = self.lock();
        inner.object.unmap(mapper);
        inner.asleep.retain(|(_, of, _)| *of != mapper);
    }
    pub fn is_mapped_by(&self, mapper: u32) -> bool {
        self.lock().object.is_mapped_by(mapper)
    }
    pub fn mappers(&self) -> Vec<u32> {
        self.lock().object.mappers()
    }

    /// First step of an access: done, or the page is missing.
    pub fn look(&self, mapper: u32, page: u64, write: Option<u64>) -> Touch {
        self.lock().object.touch(mapper, page, write, |stamp| self.lost.has(stamp))
    }
    /// Second step: the thread sleeps until it is woken.
    pub fn sleep(&self, mapper: u32, thread: u32, page: u64) {
        let mut inner = self.lock();
        if inner.object.is_mapped_by(mapper) {
            inner.asleep.insert((page, mapper, thread));
        }
    }
    /// Both, with nothing in between.
    pub fn touch(&self, mapper: u32, thread: u32, page: u64, write: Option<u64>) -> Touch {
        let touch = self.look(mapper, page, write);
        if touch == Touch::Missing {
            self.sleep(mapper, thread, page);
        }
        touch
    }

    /// Pages that are there before anybody manages the object.
    pub fn make_present(&self, from: u64, to: u64, mut stamp: impl FnMut() -> u64) {
        let mut inner = self.lock();
        (from..to).for_each(|page| inner.object.make_present(page, &mut stamp));
    }
    /// Somebody who is not registered touches a page: if it is away, he makes one of zeros.
    pub fn touch_unregistered(&self, page: u64) {
        self.lock().object.make_present(page, || 0);
    }

    pub fn punch(&self, from: u64, to: u64) {
        self.lock().object.punch(from, to);
    }
    pub fn punch_again(&self, from: u64, to: u64) {
        self.lock().object.punch_again(from, to);
    }

    // ---- what the pager does ----

    pub fn note_waiter(&self, page: u64, mapper: u32) {
        self.lock().object.note_waiter(page, mapper);
    }
    pub fn is_breached(&self) -> bool {
        self.lock().object.is_breached()
    }
    /// Ranges of pages that are in memory.
    pub fn present_ranges(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        self.lock().object.present(from, to).map(|page| (page, page + 1)).collect()
    }

    // ---- what the test arranges and looks at ----

    pub fn refuse(&self, page: u64) {
        self.lock().refusals.insert(page);
    }
    pub fn stop_next_fill(&self, after: usize, stop: Stop) {
        self.lock().stop_fill = Some((after, stop));
    }
    pub fn stop_failing(&self) {
        let mut inner = self.lock();
        inner.refusals.clear();
        inner.stop_fill = None;
    }
    pub fn sleeps(&self, mapper: u32, thread: u32, page: u64) -> bool {
        self.lock().asleep.contains(&(page, mapper, thread))
    }
    /// (page, mapper, thread)
    pub fn asleep(&self) -> Vec<(u64, u32, u32)> {
        self.lock().asleep.iter().copied().collect()
    }
    pub fn pages(&self) -> u64 {
        self.lock().object.pages()
    }

    fn fill(&self, from: u64, stamps: impl ExactSizeIterator<Item = u64>, were_out: bool) -> Fill {
        let mut inner = self.lock();
        let stop = inner.stop_fill.take();
        inner.object.fill(from, stamps, stop, were_out)
    }

    fn wake_noted(&self, vpn: Vpn, pages: usize) {
        let mut inner = self.lock();
        let Inner { object, asleep, .. } = &mut *inner;
        for (page, mapper) in object.take_noted(vpn.0, vpn.0 + pages as u64) {
            asleep.retain(|(of, by, _)| (*of, *by) != (page, mapper));
        }
    }
}

impl Memory for MockShared {
    fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let mut moved = 0;
        for run in runs {
            // A hole is made for the run at once: one lock hold.
            let mut inner = self.lock();
            let Inner { object, refusals, .. } = &mut *inner;
            let mut is_refused = false;
            for page in run.vpn.0..run.vpn.0 + u64::from(run.pages) {
                is_refused |= refusals.remove(&page);
                if is_refused {
                    outcome.push(Take::Retry);
                    continue;
                }
                frames[moved] = stamped(object.take(page));
                moved += 1;
                outcome.push(Take::Moved);
            }
        }
        let hook = lock(&self.after_take).take();
        if let Some(hook) = hook {
            hook(runs);
        }
    }

    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        let fill = self.fill(vpn.0, pages.iter().map(stamp_of), true);
        let hook = lock(&self.after_put).take();
        if let Some(hook) = hook.filter(|_| fill.pages > 0) {
            hook(vpn, fill.pages);
        }
        fill
    }

    fn put_zero(&self, vpn: Vpn, pages: usize, _write: bool) -> Fill {
        self.fill(vpn.0, std::iter::repeat_n(0, pages), false)
    }

    fn filled(&self, vpn: Vpn, pages: usize) {
        self.wake_noted(vpn, pages);
        let hook = lock(&self.after_filled).take();
        if let Some(hook) = hook {
            hook(vpn, pages);
        }
    }

    fn poison(&self, vpn: Vpn) {
        self.lock().object.poison(vpn.0);
    }

    fn wake(&self, vpn: Vpn, pages: usize) {
        self.wake_noted(vpn, pages);
    }
}
