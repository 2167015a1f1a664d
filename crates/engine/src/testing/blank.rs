//! An address space and a swap device without bytes: for tests and measurements that look at none.

use crate::backing::{
    AtRest, Backing, BackingError, PageWrite, Properties, QueueId, ReadDone, ReadRequest, ReadStart, Usage,
};
use crate::fill::ZERO_WINDOW_MAX;
use crate::memory::{Fill, Memory, PageRun, Stop, Take};
use crate::sync::{EventCount, Ordering};
use crate::units::{Page, SlotIndex, Vpn};

/// Pages that all hold the same bytes, and not only zeros.
pub struct BlankMemory;

impl Memory for BlankMemory {
    fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let pages = runs.iter().map(|run| run.pages as usize).sum();
        frames[..pages].iter_mut().for_each(|frame| frame.0[4095] = 1);
        outcome.resize(outcome.len() + pages, Take::Moved);
    }
    fn put(&self, _: Vpn, pages: &[Page]) -> Fill {
        Fill { pages: pages.len(), stop: Stop::Done }
    }
    fn zeros_max(&self) -> usize {
        ZERO_WINDOW_MAX
    }
    fn put_zero(&self, _: Vpn, pages: usize, _: bool) -> Fill {
        Fill { pages, stop: Stop::Done }
    }
    fn poison(&self, _: Vpn) {}
    fn wake(&self, _: Vpn, _: usize) {}
}

/// `BlankMemory` of which the function sees what is taken: the runs that are asked for, and what becomes of
/// each page, which it may change.
pub struct SeenTaking<F>(pub F);

impl<F: Fn(&[PageRun], &mut [Take]) + Send + Sync> Memory for SeenTaking<F> {
    fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let first = outcome.len();
        BlankMemory.take(runs, frames, outcome);
        (self.0)(runs, &mut outcome[first..]);
    }
    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        BlankMemory.put(vpn, pages)
    }
    fn put_zero(&self, vpn: Vpn, pages: usize, write: bool) -> Fill {
        BlankMemory.put_zero(vpn, pages, write)
    }
    fn poison(&self, vpn: Vpn) {
        BlankMemory.poison(vpn);
    }
    fn wake(&self, vpn: Vpn, pages: usize) {
        BlankMemory.wake(vpn, pages);
    }
}

/// Accepts all writes and reads without keeping bytes; counts the requests that a file would make.
pub struct BlankDevice {
    slots: u32,
    /// One for each run of slots in a row.
    pub write_ios: EventCount,
    pub written_pages: EventCount,
}

impl BlankDevice {
    pub fn new(slots: u32) -> BlankDevice {
        BlankDevice { slots, write_ios: EventCount::new(0), written_pages: EventCount::new(0) }
    }
}

impl Backing for BlankDevice {
    fn properties(&self) -> Properties {
        Properties {
            slots: self.slots,
            synchronous: true,
            rotational: false,
            discard: false,
            in_rows: false,
            at_rest: AtRest::InRam,
        }
    }
    fn write(&self, _: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        let mut slots: Vec<SlotIndex> = pages.iter().map(|write| write.slot).collect();
        slots.sort_unstable();
        let runs = slots.chunk_by(|a, b| a.0 + 1 == b.0).count();
        self.write_ios.fetch_add(runs as u64, Ordering::Relaxed);
        self.written_pages.fetch_add(pages.len() as u64, Ordering::Relaxed);
        results.resize(results.len() + pages.len(), Ok(()));
    }
    fn read(&self, _: QueueId, request: ReadRequest) -> ReadStart {
        let ReadRequest { token, slots, buf, .. } = request;
        let results = vec![Ok(()); slots.len()];
        ReadStart::Done(ReadDone { token, slots, buf, results })
    }
    fn discard(&self, _: &[SlotIndex]) {}
    fn usage(&self) -> Usage {
        Usage::default()
    }
}
