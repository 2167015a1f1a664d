//! A [`Memory`] over an address space made of a map, for tests of the whole engine.
//!
//! ```text
//!   target ── touch, map, unmap, mremap, fork ──▶ MockMemory ◀── take, put, put_zero, poison, wake ── engine
//!                                                     │ pages: what is present, what it must read as
//!                                                     └ waiters: who sleeps in a fault
//! ```
//!
//! The truth changes under the same lock as the pages, so that any thread may check it at every touch.

use super::address_space::{AddressSpace, Event, Touch};
use super::device::Lost;
use super::stamp::{stamp_of, stamped};
use crate::memory::{Fill, Memory, PageRun, Stop, Take};
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use crate::units::{Page, Vpn};
use std::collections::{BTreeSet, HashMap};

pub type MockEvent = Event<Arc<MockMemory>>;

#[derive(Default)]
struct Inner {
    pages: AddressSpace<Arc<MockMemory>>,
    /// A range between the read of its `Remove` and the drop: reads as old or as zero.
    removing: Option<(u64, u64)>,
    /// (page, thread) that sleep in a fault.
    waiters: BTreeSet<(u64, u32)>,
    /// What the next takes of a page come to.
    refusals: HashMap<u64, Take>,
    /// The next fill stops with this after so many pages.
    stop_fill: Option<(usize, Stop)>,
}

type TakeHook = Box<dyn FnOnce(&[PageRun]) + Send>;

pub struct MockMemory {
    inner: Mutex<Inner>,
    /// Runs after the pages of the next batch were taken, before the engine learns of it.
    pub after_take: Mutex<Option<TakeHook>>,
    /// Held by whoever takes a batch or processes events.
    pub batch: Mutex<()>,
    lost: Arc<Lost>,
}

impl MockMemory {
    pub fn new(lost: Arc<Lost>) -> MockMemory {
        MockMemory { inner: Mutex::default(), after_take: Mutex::default(), batch: Mutex::default(), lost }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    // ---- what the target does ----

    /// Access a page: check what it reads as, and store `write` if given.
    pub fn touch(&self, who: u32, page: u64, write: Option<u64>) -> Touch {
        let mut inner = self.lock();
        if inner.removing.is_some_and(|(from, to)| (from..to).contains(&page)) {
            return Touch::NotMapped;
        }
        let touch = inner.pages.touch(page, write, |stamp| self.lost.has(stamp));
        if touch == Touch::Missing {
            inner.waiters.insert((page, who));
        }
        touch
    }

    /// Map what is not mapped yet of the range, as zero.
    pub fn map(&self, from: u64, to: u64) {
        self.lock().pages.map(from, to);
    }

    /// Pages that were there before anybody managed them.
    pub fn map_present(&self, from: u64, to: u64, mut stamp: impl FnMut() -> u64) {
        let mut inner = self.lock();
        (from..to).for_each(|page| inner.pages.map_present(page, &mut stamp));
    }

    pub fn unmap(&self, from: u64, to: u64) {
        self.lock().pages.unmap(from, to);
    }

    /// MADV_DONTNEED. The pages go in `end_remove`, after the event was read.
    pub fn remove(&self, from: u64, to: u64) {
        self.lock().pages.remove(from, to);
    }

    pub fn end_remove(&self) {
        let mut inner = self.lock();
        if let Some((from, to)) = inner.removing.take() {
            inner.pages.zero(from, to);
        }
    }

    /// mremap to a fixed place. `early`, `late`: the events of the unmapped target and source ranges come
    /// too.
    pub fn remap(&self, from: u64, to: u64, pages: u64, early: bool, late: bool) {
        self.lock().pages.remap(from, to, pages, early, late);
    }

    pub fn fork(&self) -> Arc<MockMemory> {
        let mut inner = self.lock();
        let child = MockMemory::new(self.lost.clone());
        child.lock().pages = inner.pages.copy();
        let child = Arc::new(child);
        inner.pages.tell_fork(child.clone());
        child
    }

    /// The kernel drops a page without an event (a lazily freed one): it reads as zero.
    pub fn vanish(&self, page: u64) {
        self.lock().pages.vanish(page);
    }

    pub fn exit(&self) {
        let mut inner = self.lock();
        *inner = Inner::default();
        inner.pages.exit();
    }

    // ---- what the pager reads ----

    /// Read all events, and refuse to give pages until `end_events` if there is one.
    pub fn read_events(&self) -> Vec<MockEvent> {
        let mut inner = self.lock();
        let events = inner.pages.read_events();
        for event in &events {
            if let Event::Remove { from, to } = event {
                assert!(inner.removing.is_none(), "the test drops one range at a time");
                inner.removing = Some((*from, *to));
            }
        }
        events
    }
    pub fn end_events(&self) {
        self.lock().pages.end_events();
    }
    pub fn has_events(&self) -> bool {
        self.lock().pages.has_events()
    }
    pub fn has_remove(&self) -> bool {
        let inner = self.lock();
        inner.removing.is_some() || inner.pages.has_remove()
    }

    // ---- what the test arranges and looks at ----

    pub fn refuse(&self, page: u64, take: Take) {
        self.lock().refusals.insert(page, take);
    }
    pub fn stop_next_fill(&self, after: usize, stop: Stop) {
        self.lock().stop_fill = Some((after, stop));
    }
    pub fn stop_failing(&self) {
        let mut inner = self.lock();
        inner.refusals.clear();
        inner.stop_fill = None;
    }
    pub fn waits(&self, page: u64, who: u32) -> bool {
        self.lock().waiters.contains(&(page, who))
    }
    pub fn waiters(&self) -> Vec<(u64, u32)> {
        self.lock().waiters.iter().copied().collect()
    }
    pub fn mapped(&self) -> Vec<u64> {
        self.lock().pages.mapped()
    }
    /// Ranges of pages that a scan of the page table would find.
    pub fn present_ranges(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        self.lock().pages.present(from, to).map(|page| (page, page + 1)).collect()
    }

    fn fill(&self, from: u64, stamps: impl ExactSizeIterator<Item = u64>) -> Fill {
        let mut inner = self.lock();
        let fill = inner.fill(from, stamps);
        inner.wake(from, fill.pages as u64);
        fill
    }
}

impl Inner {
    fn fill(&mut self, from: u64, stamps: impl ExactSizeIterator<Item = u64>) -> Fill {
        let stop = self.stop_fill.take();
        self.pages.fill(from, stamps, stop)
    }

    fn wake(&mut self, from: u64, pages: u64) {
        self.waiters.retain(|(page, _)| !(from..from + pages).contains(page));
    }
}

impl Memory for MockMemory {
    fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let mut moved = 0;
        for page in runs.iter().flat_map(|r| r.vpn.0..r.vpn.0 + u64::from(r.pages)) {
            // One lock hold for each page: the target runs meanwhile.
            let mut inner = self.lock();
            let Inner { pages, refusals, .. } = &mut *inner;
            let taken = pages.take(page, || refusals.remove(&page));
            drop(inner);
            outcome.push(match taken {
                Ok(stamp) => {
                    frames[moved] = stamped(stamp);
                    moved += 1;
                    Take::Moved
                }
                Err(refusal) => refusal,
            });
        }
        let hook = lock(&self.after_take).take();
        if let Some(hook) = hook {
            hook(runs);
        }
    }

    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        self.fill(vpn.0, pages.iter().map(stamp_of))
    }

    fn put_without_wake(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        self.lock().fill(vpn.0, pages.iter().map(stamp_of))
    }

    fn put_zero(&self, vpn: Vpn, pages: usize, _write: bool) -> Fill {
        self.fill(vpn.0, std::iter::repeat_n(0, pages))
    }

    fn poison(&self, vpn: Vpn) {
        self.lock().pages.poison(vpn.0);
    }

    fn wake(&self, vpn: Vpn, pages: usize) {
        self.lock().wake(vpn.0, pages as u64);
    }
}
