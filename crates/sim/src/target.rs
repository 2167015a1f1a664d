//! The memory of a process that is simulated: what is present, what each page must read as, who sleeps in a fault.
//!
//! ```text
//!   task ── touch, map, unmap, remove, remap, fork ──▶ Target ◀── take, put, put_zero, poison, wake ── engine
//! ```
//!
//! A page is one stamp, repeated. Stamps are never used twice, so that a page in the wrong place, or older than it may be,
//! reads as the wrong stamp; the truth changes together with the pages, so it is checked at every touch. As the kernel
//! does, it refuses fills and moves while an event is unread, and moves until an event that was read is processed.
//!
//! What it does not do: page-table locks and TLB flushes of the kernel (their cost in one thread is in the constants), pages
//! shared by copy-on-write (a fork copies).

use crate::stamp::{stamp_of, stamped};
use memspill_engine_sim::memory::{Fill, Memory, Run, Stop, Take};
use memspill_engine_sim::units::{Page, Vpn};
use memspill_vcpu::random::Random;
use memspill_vcpu::{TaskId, block, cost, current_task, now, spend, wake};
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// Stamps whose read has failed: pages that may be poisoned.
pub type Lost = Mutex<HashSet<u64>>;

/// Pages that the kernel does not move, for now. Chances are one in so many pages; 0 is never.
#[derive(Clone, Copy, Default)]
pub struct Refusals {
    /// Somebody has pinned it.
    pub busy: u64,
    /// mprotect or mlock.
    pub unevictable: u64,
    /// From then on all can be moved, so that a history can end.
    pub until_ns: u64,
}

/// A change of the address space, as a userfaultfd tells it.
pub enum Event {
    Unmap { from: u64, to: u64 },
    Remap { from: u64, to: u64, pages: u64 },
    Fork { child: Arc<Target> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Absent,
    Stamp(u64),
    Poisoned,
}

#[derive(Clone, Copy)]
struct PageState {
    content: Content,
    /// What the page must read as; None: it is not mapped.
    truth: Option<u64>,
    /// It came along with a page that faulted, and was not touched yet.
    brought_along: bool,
}

const UNMAPPED: PageState = PageState { content: Content::Absent, truth: None, brought_along: false };

/// What an access met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    Done,
    /// The task is in a fault now, until a fill or a wake.
    Missing,
    /// SIGBUS, and rightly so: the page's only copy could not be read.
    Lost,
    NotMapped,
}

struct Waiter {
    page: u64,
    task: TaskId,
    sleeps: bool,
}

#[derive(Default)]
struct Inner {
    pages: Vec<PageState>,
    events: VecDeque<Event>,
    /// From the read of an event to the end of its processing.
    abort: bool,
    dead: bool,
    waiters: Vec<Waiter>,
    readahead_hits: u64,
    refusals: Refusals,
    random: Random,
}

pub struct Target {
    inner: Mutex<Inner>,
    lost: Arc<Lost>,
}

impl Target {
    /// An address space of so many pages, of which none is mapped.
    pub fn new(pages: u64, lost: Arc<Lost>) -> Target {
        let inner = Inner { pages: vec![UNMAPPED; pages as usize], ..Inner::default() };
        Target { inner: Mutex::new(inner), lost }
    }

    /// The same where pages are refused. Of its children too.
    pub fn refusing(self, refusals: Refusals, seed: u64) -> Target {
        let mut inner = self.lock();
        (inner.refusals, inner.random) = (refusals, Random::new(seed));
        drop(inner);
        self
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.try_lock().expect("tasks take turns, and none stops in here")
    }

    // ---- what the process does ----

    pub fn touch(&self, page: u64, write: Option<u64>) -> Touch {
        let mut inner = self.lock();
        let state = &mut inner.pages[page as usize];
        let Some(truth) = state.truth else { return Touch::NotMapped };
        match state.content {
            Content::Stamp(stamp) => {
                assert_eq!(stamp, truth, "page {page} reads as another one, or an older one");
                let hit = std::mem::take(&mut state.brought_along);
                if let Some(stamp) = write {
                    *state = PageState { content: Content::Stamp(stamp), truth: Some(stamp), ..UNMAPPED };
                }
                inner.readahead_hits += u64::from(hit);
                Touch::Done
            }
            Content::Poisoned => {
                let known = self.lost.lock().expect("lost").contains(&truth);
                assert!(known, "page {page} is poisoned, but no read of it has failed");
                Touch::Lost
            }
            Content::Absent => {
                let task = current_task();
                if !inner.waiters.iter().any(|w| w.task == task) {
                    inner.waiters.push(Waiter { page, task, sleeps: false });
                }
                Touch::Missing
            }
        }
    }

    /// Sleep in the fault, unless it was answered already.
    pub fn wait(&self) {
        let task = current_task();
        let asleep = {
            let mut inner = self.lock();
            let waiter = inner.waiters.iter_mut().find(|w| w.task == task);
            waiter.map(|w| w.sleeps = true).is_some()
        };
        if asleep {
            block();
        }
    }

    /// Map what is not mapped of the range, as zero.
    pub fn map(&self, from: u64, to: u64) {
        for state in &mut self.lock().pages[from as usize..to as usize] {
            state.truth.get_or_insert(0);
        }
    }

    /// A page that was there before anybody managed it.
    pub fn map_present(&self, page: u64, stamp: u64) {
        let state = PageState { content: Content::Stamp(stamp), truth: Some(stamp), ..UNMAPPED };
        self.lock().pages[page as usize] = state;
    }

    pub fn unmap(&self, from: u64, to: u64) {
        let mut inner = self.lock();
        inner.pages[from as usize..to as usize].fill(UNMAPPED);
        inner.events.push_back(Event::Unmap { from, to });
    }

    /// mremap to a fixed place that does not overlap.
    pub fn remap(&self, from: u64, to: u64, pages: u64) {
        let mut inner = self.lock();
        for i in 0..pages {
            let state = std::mem::replace(&mut inner.pages[(from + i) as usize], UNMAPPED);
            inner.pages[(to + i) as usize] = state;
        }
        inner.events.push_back(Event::Unmap { from: to, to: to + pages });
        inner.events.push_back(Event::Remap { from, to, pages });
    }

    pub fn fork(&self) -> Arc<Target> {
        let mut inner = self.lock();
        let child = Target::new(0, self.lost.clone()).refusing(inner.refusals, inner.random.draw());
        child.lock().pages = inner.pages.clone();
        let child = Arc::new(child);
        inner.events.push_back(Event::Fork { child: child.clone() });
        child
    }

    /// The process ends. Who sleeps in it wakes up.
    pub fn exit(&self) {
        let mut inner = self.lock();
        inner.pages.fill(UNMAPPED);
        inner.events.clear();
        inner.dead = true;
        let pages = inner.pages.len() as u64;
        inner.wake(0, pages);
    }

    // ---- what the pager reads ----

    /// Read all events; no page is given until `end_events` if there was one.
    pub fn read_events(&self) -> Vec<Event> {
        let mut inner = self.lock();
        let events: Vec<Event> = inner.events.drain(..).collect();
        inner.abort |= !events.is_empty();
        events
    }
    pub fn end_events(&self) {
        self.lock().abort = false;
    }
    pub fn has_events(&self) -> bool {
        !self.lock().events.is_empty()
    }
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }
    /// Pages that came along with one that faulted, and were touched before they left.
    pub fn readahead_hits(&self) -> u64 {
        self.lock().readahead_hits
    }
}

impl Inner {
    fn wake(&mut self, from: u64, to: u64) {
        let mut still = Vec::with_capacity(self.waiters.len());
        for waiter in self.waiters.drain(..) {
            if !(from..to).contains(&waiter.page) {
                still.push(waiter);
            } else if waiter.sleeps {
                // The way back into the thread is part of what a fault costs.
                wake(waiter.task, 0);
            }
        }
        self.waiters = still;
    }

    fn take(&mut self, page: u64) -> Result<u64, Take> {
        if self.dead {
            return Err(Take::Gone);
        }
        if self.abort || !self.events.is_empty() {
            return Err(Take::Retry);
        }
        let refused = now() < self.refusals.until_ns;
        let mut happens = |one_in: u64| refused && one_in > 0 && self.random.one_in(one_in);
        let state = &mut self.pages[page as usize];
        match state.content {
            Content::Absent => Err(Take::Hole),
            Content::Poisoned => Err(Take::Unevictable),
            Content::Stamp(_) if happens(self.refusals.busy) => Err(Take::Busy),
            Content::Stamp(_) if happens(self.refusals.unevictable) => Err(Take::Unevictable),
            Content::Stamp(stamp) => {
                state.content = Content::Absent;
                state.brought_along = false;
                Ok(stamp)
            }
        }
    }

    fn fill(&mut self, from: u64, stamps: impl ExactSizeIterator<Item = u64>) -> Fill {
        let pages = stamps.len();
        for (i, stamp) in stamps.enumerate() {
            let state = self.pages.get(from as usize + i).copied().unwrap_or(UNMAPPED);
            let stop = match state {
                _ if self.dead => Some(Stop::Gone),
                _ if !self.events.is_empty() => Some(Stop::Again),
                PageState { truth: None, .. } => Some(Stop::NotMapped),
                PageState { content: Content::Absent, .. } => None,
                _ => Some(Stop::Exists),
            };
            if let Some(stop) = stop {
                return Fill { pages: i, stop };
            }
            self.pages[from as usize + i].content = Content::Stamp(stamp);
        }
        Fill { pages, stop: Stop::Done }
    }
}

impl Inner {
    /// Pages that were read, and that nobody waits for.
    fn note_brought_along(&mut self, from: u64, pages: u64) {
        for page in from..from + pages {
            self.pages[page as usize].brought_along = !self.waiters.iter().any(|w| w.page == page);
        }
    }
}

impl Target {
    fn fill(&self, vpn: Vpn, stamps: impl ExactSizeIterator<Item = u64>, were_read: bool) -> Fill {
        let mut inner = self.lock();
        let fill = inner.fill(vpn.0, stamps);
        if were_read {
            inner.note_brought_along(vpn.0, fill.pages as u64);
        }
        inner.wake(vpn.0, vpn.0 + fill.pages as u64);
        fill
    }
}

impl Memory for Target {
    fn take(&self, runs: &[Run], frames: &mut [Page], outcome: &mut Vec<Take>) {
        // The evictor is rung, and then moves run by run; the process runs meanwhile.
        memspill_vcpu::step(cost::EVICTOR_NS / 2);
        let mut moved = 0;
        for run in runs {
            memspill_vcpu::step(cost::MOVE_RUN_NS);
            for page in run.vpn.0..run.vpn.0 + u64::from(run.pages) {
                let taken = self.lock().take(page);
                outcome.push(match taken {
                    Ok(stamp) => {
                        frames[moved] = stamped(stamp);
                        moved += 1;
                        Take::Moved
                    }
                    Err(refusal) => refusal,
                });
            }
            spend(cost::MOVE_PAGE_NS * u64::from(run.pages));
        }
        let look = (cost::STAGE_PAGE_NS + cost::IS_ZERO_NS) * moved as u64;
        memspill_vcpu::step(cost::EVICTOR_NS / 2 + look);
    }

    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        memspill_vcpu::step(cost::COPY_PAGE_NS * pages.len() as u64);
        self.fill(vpn, pages.iter().map(stamp_of), true)
    }

    fn put_zero(&self, vpn: Vpn, pages: usize, _write: bool) -> Fill {
        memspill_vcpu::step(cost::ZERO_PAGE_NS * pages as u64);
        self.fill(vpn, std::iter::repeat_n(0, pages), false)
    }

    fn poison(&self, vpn: Vpn) {
        let mut inner = self.lock();
        let possible = !inner.dead && inner.events.is_empty();
        let state = &mut inner.pages[vpn.0 as usize];
        if possible && state.truth.is_some() && state.content == Content::Absent {
            state.content = Content::Poisoned;
        }
    }

    fn wake(&self, vpn: Vpn, pages: usize) {
        memspill_vcpu::step(cost::WAKE_PAGE_NS);
        self.lock().wake(vpn.0, vpn.0 + pages as u64);
    }
}
