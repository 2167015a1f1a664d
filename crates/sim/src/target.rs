//! The memory of a process that is simulated: what is present, what each page must read as, who sleeps in a
//! fault.
//!
//! ```text
//!   task ── touch, map, unmap, remap, fork ──▶ Target ◀── take, put, put_zero, poison, wake ── engine
//! ```
//!
//! The pages are the engine's double of an address space (`testing/address_space.rs`); added here are what
//! each call costs, tasks that sleep, and refusals by chance.
//!
//! What it does not do: page-table locks and TLB flushes of the kernel (their cost in one thread is in the
//! constants), pages shared by copy-on-write (a fork copies).

use memspill_engine_sim::memory::{Fill, Memory, PageRun, Take};
use memspill_engine_sim::testing::address_space::AddressSpace;
pub use memspill_engine_sim::testing::address_space::{Event, Touch};
use memspill_engine_sim::testing::stamp::{stamp_of, stamped};
use memspill_engine_sim::units::{Order, Page, Vpn};
use memspill_vcpu::random::Random;
use memspill_vcpu::{TaskId, block, cost, current_task, now, spend, wake};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
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

/// What the memory of a process is made of.
#[derive(Clone, Copy, Debug)]
pub struct Folios {
    /// The order of the pages that it gets with one fault, and that the kernel has to split before one of
    /// them leaves by itself.
    pub order: Order,
    /// The order in which they leave: this, or one that is split is less.
    pub leave: Order,
    /// What is unmapped in one step: a run, or a folio that leaves.
    pub unmapped_by_run: bool,
}

struct Waiter {
    page: u64,
    task: TaskId,
    sleeps: bool,
}

#[derive(Default)]
struct Inner {
    pages: AddressSpace<Arc<Target>>,
    waiters: Vec<Waiter>,
    /// Folios that nothing has split yet.
    whole: HashSet<u64>,
    /// Pages that came along with one that faulted, and were not touched yet.
    brought_along: HashSet<u64>,
    readahead_hits: u64,
    refusals: Refusals,
    random: Random,
}

pub struct Target {
    inner: Mutex<Inner>,
    lost: Arc<Lost>,
    folios: Folios,
    /// Pages are brought and taken out by the kernel, with no pager.
    by_kernel: bool,
    /// Its name among those that have an object of shared memory mapped.
    mapper: AtomicU32,
}

impl Target {
    /// An address space in which nothing is mapped.
    pub fn new(lost: Arc<Lost>) -> Target {
        Target {
            inner: Mutex::default(),
            lost,
            folios: Folios { order: Order::ZERO, leave: Order::ZERO, unmapped_by_run: true },
            by_kernel: false,
            mapper: AtomicU32::new(0),
        }
    }

    /// The same, made of folios.
    pub fn of_folios(self, folios: Folios) -> Target {
        Target { folios, ..self }
    }

    /// The same where pages are refused. Its children refuse, too.
    pub fn refusing(self, refusals: Refusals, seed: u64) -> Target {
        let mut inner = self.lock();
        (inner.refusals, inner.random) = (refusals, Random::new(seed));
        drop(inner);
        self
    }

    /// The same where the kernel swaps.
    pub fn of_the_kernel(self) -> Target {
        Target { by_kernel: true, ..self }
    }
    pub fn is_of_the_kernel(&self) -> bool {
        self.by_kernel
    }

    pub fn mapper(&self) -> u32 {
        self.mapper.load(Ordering::Relaxed)
    }
    pub fn set_mapper(&self, mapper: u32) {
        self.mapper.store(mapper, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.try_lock().expect("tasks take turns, and none stops in here")
    }

    // ---- what the process does ----

    pub fn touch(&self, page: u64, write: Option<u64>) -> Touch {
        let mut inner = self.lock();
        let was_lost = |stamp| self.lost.lock().expect("lost").contains(&stamp);
        let touch = inner.pages.touch(page, write, was_lost);
        match touch {
            Touch::Done => inner.readahead_hits += u64::from(inner.brought_along.remove(&page)),
            Touch::Missing => {
                let task = current_task();
                if !inner.waiters.iter().any(|w| w.task == task) {
                    inner.waiters.push(Waiter { page, task, sleeps: false });
                }
            }
            Touch::Lost | Touch::NotMapped => {}
        }
        touch
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
        self.lock().pages.map(from, to);
    }

    /// A page that was there before anybody managed it.
    pub fn map_present(&self, page: u64, stamp: u64) {
        self.lock().pages.map_present(page, || stamp);
    }

    /// The kernel gives memory where there was none: a folio.
    pub fn grow(&self, from: u64, to: u64) {
        let mut inner = self.lock();
        (from..to).for_each(|page| inner.pages.map_present(page, || 0));
        if self.folios.order > Order::ZERO && from.is_multiple_of(self.folios.order.pages().into()) {
            inner.whole.insert(from >> self.folios.order.0);
        }
    }

    pub fn is_mapped(&self, page: u64) -> bool {
        self.lock().pages.is_mapped(page)
    }

    pub fn unmap(&self, from: u64, to: u64) {
        let mut inner = self.lock();
        inner.pages.unmap(from, to);
        inner.brought_along.retain(|page| !(from..to).contains(page));
    }

    /// mremap to a fixed place that does not overlap.
    pub fn remap(&self, from: u64, to: u64, pages: u64) {
        let mut inner = self.lock();
        inner.pages.remap(from, to, pages, true, false);
        for i in 0..pages {
            inner.brought_along.remove(&(to + i));
            if inner.brought_along.remove(&(from + i)) {
                inner.brought_along.insert(to + i);
            }
        }
    }

    pub fn fork(&self) -> Arc<Target> {
        let mut inner = self.lock();
        let child = Target::new(self.lost.clone()).refusing(inner.refusals, inner.random.draw());
        child.lock().pages = inner.pages.copy();
        child.lock().brought_along = inner.brought_along.clone();
        let child = Arc::new(child);
        inner.pages.tell_fork(child.clone());
        child
    }

    /// The process ends. Tasks that sleep in it wake up.
    pub fn exit(&self) {
        let mut inner = self.lock();
        inner.pages.exit();
        inner.wake(0, u64::MAX);
    }

    // ---- what the pager reads ----

    /// Read all events; no page is given until `end_events` if there was one.
    pub fn read_events(&self) -> Vec<Event<Arc<Target>>> {
        self.lock().pages.read_events()
    }
    pub fn end_events(&self) {
        self.lock().pages.end_events();
    }
    pub fn has_events(&self) -> bool {
        self.lock().pages.has_events()
    }
    pub fn is_dead(&self) -> bool {
        self.lock().pages.is_dead()
    }
    /// Pages that came along with one that faulted, and were touched before they left.
    pub fn readahead_hits(&self) -> u64 {
        self.lock().readahead_hits
    }

    // ---- what the engine does ----

    /// What a run costs beyond its pages.
    fn unmap_cost(&self, run: PageRun) -> u64 {
        let (first, last) = (run.vpn.0, run.vpn.0 + u64::from(run.pages) - 1);
        let leave = self.folios.leave.0;
        let leaving = (last >> leave) - (first >> leave) + 1;
        let pieces = if self.folios.unmapped_by_run { 1 } else { leaving };
        let order = self.folios.order;
        let folio_pages = u64::from(order.pages());
        let mut inner = self.lock();
        let mut split_ns = 0;
        for folio in first >> order.0..=last >> order.0 {
            let leaves_whole = first <= folio << order.0 && (folio + 1) << order.0 <= last + 1;
            if inner.whole.remove(&folio) && !leaves_whole {
                split_ns += cost::SPLIT_FOLIO_NS + cost::SPLIT_PAGE_NS * folio_pages;
            }
        }
        let by_kernel = if self.by_kernel {
            cost::RECLAIM_FOLIO_NS * leaving + cost::RECLAIM_PAGE_NS * u64::from(run.pages)
        } else {
            0
        };
        pieces * cost::MOVE_RUN_NS + by_kernel + split_ns
    }

    /// How many of those that leave are so many pages?
    pub fn folios_of(&self, pages: usize) -> usize {
        (pages >> self.folios.leave.0).max(1)
    }

    fn fill(&self, vpn: Vpn, stamps: impl ExactSizeIterator<Item = u64>, were_read: bool) -> Fill {
        let mut inner = self.lock();
        let fill = inner.pages.fill(vpn.0, stamps, None);
        if were_read {
            inner.note_brought_along(vpn.0, fill.pages as u64);
        }
        inner.wake(vpn.0, vpn.0 + fill.pages as u64);
        fill
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
        let Inner { pages, refusals, random, .. } = self;
        let refused = now() < refusals.until_ns;
        let mut happens = |one_in: u64| refused && one_in > 0 && random.one_in(one_in);
        let taken = pages.take(page, || {
            let busy = happens(refusals.busy).then_some(Take::Busy);
            busy.or_else(|| happens(refusals.unevictable).then_some(Take::Unevictable))
        });
        if taken.is_ok() {
            self.brought_along.remove(&page);
        }
        taken
    }

    /// Pages that were read, and that nobody waits for.
    fn note_brought_along(&mut self, from: u64, pages: u64) {
        for page in from..from + pages {
            if !self.waiters.iter().any(|w| w.page == page) {
                self.brought_along.insert(page);
            }
        }
    }
}

impl Memory for Target {
    fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        // The evictor is rung, and then moves run by run; the process runs meanwhile.
        let bell = if self.by_kernel { 0 } else { cost::EVICTOR_NS / 2 };
        memspill_vcpu::step(bell);
        let mut moved = 0;
        for run in runs {
            memspill_vcpu::step(self.unmap_cost(*run));
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
            let page_ns = if self.by_kernel { 0 } else { cost::MOVE_PAGE_NS };
            spend(page_ns * u64::from(run.pages));
        }
        let staged = if self.by_kernel { 0 } else { cost::STAGE_PAGE_NS + cost::IS_ZERO_NS };
        memspill_vcpu::step(bell + staged * moved as u64);
    }

    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        let copied = if self.by_kernel { 0 } else { cost::COPY_PAGE_NS };
        memspill_vcpu::step(copied * pages.len() as u64);
        self.fill(vpn, pages.iter().map(stamp_of), true)
    }

    fn put_zero(&self, vpn: Vpn, pages: usize, write: bool) -> Fill {
        // A store gets a copy of zeros, so that it does not fault once more.
        let page = if write { cost::COPY_PAGE_NS } else { cost::ZERO_PAGE_NS };
        memspill_vcpu::step(page * pages as u64);
        self.fill(vpn, std::iter::repeat_n(0, pages), false)
    }

    fn poison(&self, vpn: Vpn) {
        self.lock().pages.poison(vpn.0);
    }

    fn wake(&self, vpn: Vpn, pages: usize) {
        memspill_vcpu::step(cost::WAKE_PAGE_NS);
        self.lock().wake(vpn.0, vpn.0 + pages as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_16_pages(leave: Order, unmapped_by_run: bool) -> Target {
        let folios = Folios { order: Order(4), leave, unmapped_by_run };
        let target = Target::new(Arc::default()).of_folios(folios);
        (0..64).step_by(16).for_each(|folio| target.grow(folio, folio + 16));
        target
    }
    fn cost_of(target: &Target, first: u64, pages: u32) -> u64 {
        target.unmap_cost(PageRun { vpn: Vpn(first), pages })
    }

    #[test]
    fn a_folio_is_split_once_unless_it_leaves_whole() {
        let target = of_16_pages(Order(4), true);
        let split = cost::SPLIT_FOLIO_NS + 16 * cost::SPLIT_PAGE_NS;
        assert_eq!(cost_of(&target, 0, 16), cost::MOVE_RUN_NS);
        assert_eq!(cost_of(&target, 17, 1), cost::MOVE_RUN_NS + split);
        assert_eq!(cost_of(&target, 18, 1), cost::MOVE_RUN_NS, "it is split by now");
        assert_eq!(cost_of(&target, 40, 24), cost::MOVE_RUN_NS + split, "half of one, and one");
    }

    #[test]
    fn a_run_is_unmapped_at_once_or_in_its_pieces() {
        assert_eq!(cost_of(&of_16_pages(Order(4), true), 0, 64), cost::MOVE_RUN_NS);
        assert_eq!(cost_of(&of_16_pages(Order(4), false), 0, 64), 4 * cost::MOVE_RUN_NS);
        let target = of_16_pages(Order::ZERO, false);
        let page_by_page: u64 = (0..64).map(|page| cost_of(&target, page, 1)).sum();
        let split = cost::SPLIT_FOLIO_NS + 16 * cost::SPLIT_PAGE_NS;
        assert_eq!(page_by_page, 64 * cost::MOVE_RUN_NS + 4 * split);
    }

    #[test]
    fn the_kernels_reclaim_costs_something_for_a_folio_and_a_page() {
        let of_the_kernel = |leave| of_16_pages(leave, false).of_the_kernel();
        let (folio, page) = (cost::MOVE_RUN_NS + cost::RECLAIM_FOLIO_NS, cost::RECLAIM_PAGE_NS);
        assert_eq!(cost_of(&of_the_kernel(Order(4)), 0, 64), 4 * folio + 64 * page);
        let target = of_the_kernel(Order::ZERO);
        let page_by_page: u64 = (0..64).map(|page| cost_of(&target, page, 1)).sum();
        assert!(page_by_page > 64 * (folio + page), "they are split, too");
    }
}
