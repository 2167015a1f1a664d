//! A backing that fails on purpose, around one that does not.
//!
//! ```text
//!   write ─▶ does this page fail? ─ yes ─▶ inner.discard(slot), the error   (a failed write leaves nothing)
//!                                 └ no ──▶ inner.write
//!   read ──▶ inner.read ... done ─▶ does this page fail? ─ yes ─▶ page overwritten with rubbish, the error
//! ```
//!
//! The faults it may produce: a chosen errno or Full or Checksum for the Nth page written or read, or for a
//! seeded share of all; and a delay of each call. What must still hold: other pages of the batch are
//! unaffected, the slot whose write failed reads as Empty, and no bytes of a failed read are used (they are
//! rubbish here).
//!
//! A device that returns *wrong bytes* is another matter: flipping them here, above the checksum, would only
//! show that flipped bytes are flipped. [`bit_flips`] makes a hook for `FileBacking::set_tamper`, which sits
//! between device and checksum, where the file layer has to notice.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memspill_engine::backing::{
    Backing, BackingError, Chore, Link, PageWrite, Properties, QueueId, ReadDone, ReadRequest, ReadStart,
    Usage,
};
use memspill_engine::units::{PAGE_SIZE, Page, SlotIndex};

use crate::file::Tamper;

/// What goes wrong, and when. The default is nothing.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// Seed of the random failures: the same seed and the same order of calls give the same failures.
    pub seed: u64,
    /// Pages out of a million whose read fails.
    pub read_failures_per_million: u32,
    /// Pages out of a million whose write fails.
    pub write_failures_per_million: u32,
    /// The page read that fails, counted from 1; 0 for none.
    pub read_failure_at: u64,
    /// The page written that fails, counted from 1; 0 for none.
    pub write_failure_at: u64,
    /// The two above are the first of so many that fail in a row: u64::MAX for all from there on.
    pub in_a_row: u64,
    /// What a failed read or write returns.
    pub error: BackingError,
    /// How much longer each call of `read` and `write` takes.
    pub delay: Duration,
}

impl Default for FaultPlan {
    fn default() -> Self {
        FaultPlan {
            seed: 1,
            read_failures_per_million: 0,
            write_failures_per_million: 0,
            read_failure_at: 0,
            write_failure_at: 0,
            in_a_row: 1,
            error: BackingError::Io(libc::EIO),
            delay: Duration::ZERO,
        }
    }
}

/// See the module's header.
pub struct FaultyBacking<B> {
    inner: B,
    plan: FaultPlan,
    pages_read: AtomicU64,
    pages_written: AtomicU64,
    failures: AtomicU64,
}

/// A well-mixed number for the `count`th event of a seed (splitmix64's finish).
fn mixed(seed: u64, count: u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ count;
    state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ state >> 31
}

impl<B: Backing> FaultyBacking<B> {
    /// Wrap `inner`.
    pub fn new(inner: B, plan: FaultPlan) -> FaultyBacking<B> {
        FaultyBacking {
            inner,
            plan,
            pages_read: AtomicU64::new(0),
            pages_written: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Failures produced so far.
    pub fn failures_total(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    fn fails(&self, counter: &AtomicU64, at: u64, per_million: u32, salt: u64) -> bool {
        let count = counter.fetch_add(1, Ordering::Relaxed) + 1;
        let is_due = at > 0 && count >= at && count - at < self.plan.in_a_row;
        let fails = is_due || mixed(self.plan.seed ^ salt, count) % 1_000_000 < u64::from(per_million);
        self.failures.fetch_add(u64::from(fails), Ordering::Relaxed);
        fails
    }

    fn spoil(&self, done: &mut ReadDone) {
        for (result, page) in done.results.iter_mut().zip(&mut done.buf) {
            let plan = &self.plan;
            if self.fails(&self.pages_read, plan.read_failure_at, plan.read_failures_per_million, 0) {
                *result = Err(plan.error.clone());
                page.0 = [0xbd; PAGE_SIZE];
            }
        }
    }

    fn delay(&self) {
        if !self.plan.delay.is_zero() {
            std::thread::sleep(self.plan.delay);
        }
    }
}

impl<B: Backing> Backing for FaultyBacking<B> {
    fn properties(&self) -> Properties {
        self.inner.properties()
    }

    fn write(&self, queue: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        self.delay();
        let base = results.len();
        results.resize(base + pages.len(), Ok(()));
        let mut good = Vec::new();
        for (index, write) in pages.iter().enumerate() {
            let plan = &self.plan;
            if self.fails(&self.pages_written, plan.write_failure_at, plan.write_failures_per_million, 0x77) {
                self.inner.discard(&[write.slot]);
                results[base + index] = Err(plan.error.clone());
            } else {
                good.push(index);
            }
        }
        let writes: Vec<PageWrite<'_>> = good
            .iter()
            .map(|index| PageWrite { slot: pages[*index].slot, page: pages[*index].page })
            .collect();
        let mut written = Vec::with_capacity(writes.len());
        self.inner.write(queue, &writes, &mut written);
        for (index, result) in good.into_iter().zip(written) {
            results[base + index] = result;
        }
    }

    fn read(&self, queue: QueueId, request: ReadRequest) -> ReadStart {
        self.delay();
        match self.inner.read(queue, request) {
            ReadStart::Done(mut done) => {
                self.spoil(&mut done);
                ReadStart::Done(done)
            }
            ReadStart::Pending => ReadStart::Pending,
        }
    }

    fn reap(&self, queue: QueueId, done: &mut Vec<ReadDone>) {
        let base = done.len();
        self.inner.reap(queue, done);
        for done in &mut done[base..] {
            self.spoil(done);
        }
    }

    fn poll_fd(&self, queue: QueueId) -> io::Result<Option<OwnedFd>> {
        self.inner.poll_fd(queue)
    }

    fn discard(&self, slots: &[SlotIndex]) {
        self.inner.discard(slots);
    }

    fn links(&self) -> Vec<Link> {
        self.inner.links()
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn keeps(&self, slot: SlotIndex, page: Option<&Page>) -> bool {
        self.inner.keeps(slot, page)
    }

    fn housekeep(&self, chore: Chore) -> bool {
        self.inner.housekeep(chore)
    }
}

/// A hook for `FileBacking::set_tamper`: flips one bit in the page that the device returns as its `at`th.
pub fn bit_flip_at(at: u64) -> Tamper {
    let count = AtomicU64::new(0);
    Box::new(move |_slot, page| {
        if count.fetch_add(1, Ordering::Relaxed) + 1 == at {
            page.0[at as usize % PAGE_SIZE] ^= 1;
        }
    })
}

/// A hook for `FileBacking::set_tamper`: flips one bit in a seeded share of the pages that the device
/// returns.
pub fn bit_flips(seed: u64, pages_per_million: u32) -> Tamper {
    let count = AtomicU64::new(0);
    Box::new(move |_slot, page| {
        let roll = mixed(seed, count.fetch_add(1, Ordering::Relaxed));
        if roll % 1_000_000 < u64::from(pages_per_million) {
            let bit = (roll >> 32) as usize % (PAGE_SIZE * 8);
            page.0[bit / 8] ^= 1 << (bit % 8);
        }
    })
}
