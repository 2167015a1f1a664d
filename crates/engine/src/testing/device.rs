//! A [`Backing`] over a map of stamps, whose requests fail, wait and run short as a test arranges it.

use super::stamp::stamp_of;
use super::store::Store;
use crate::backing::{
    AtRest, Backing, BackingError, Chore, PageWrite, Properties, QueueId, ReadDone, ReadRequest, ReadStart,
    Usage,
};
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use crate::units::{ClusterIndex, Page, SlotIndex, page_buf};
use std::collections::{HashMap, HashSet, VecDeque};

/// Stamps whose read has failed: pages that may be poisoned.
#[derive(Default)]
pub struct Lost(Mutex<HashSet<u64>>);

impl Lost {
    pub fn has(&self, stamp: u64) -> bool {
        lock(&self.0).contains(&stamp)
    }
    fn add(&self, stamp: u64) {
        lock(&self.0).insert(stamp);
    }
}

#[derive(Default)]
struct Inner {
    store: Store,
    started: HashMap<u32, VecDeque<ReadRequest>>,
    pending: bool,
    fail_reads: usize,
    short_reads: usize,
    fail_writes: Option<(BackingError, usize)>,
    written: usize,
    discarding: Option<ClusterIndex>,
    closed: bool,
}

pub struct MockBacking {
    inner: Mutex<Inner>,
    slots: u32,
    synchronous: bool,
    discard: bool,
    rotational: bool,
    lost: Arc<Lost>,
}

impl MockBacking {
    pub fn new(slots: u32, synchronous: bool, lost: Arc<Lost>) -> MockBacking {
        MockBacking { inner: Mutex::default(), slots, synchronous, discard: false, rotational: false, lost }
    }
    /// The same with `discard=pages`.
    pub fn discarding(self, discard: bool) -> MockBacking {
        MockBacking { discard, ..self }
    }
    /// The same, said to turn.
    pub fn rotating(self, rotational: bool) -> MockBacking {
        MockBacking { rotational, ..self }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    pub fn is_empty(&self) -> bool {
        self.lock().store.is_empty()
    }
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }
    /// Reads do not end before they are reaped.
    pub fn set_pending(&self, pending: bool) {
        self.lock().pending = pending;
    }
    pub fn fail_reads(&self, pages: usize) {
        self.lock().fail_reads = pages;
    }
    /// There is no memory for reads: it passes.
    pub fn run_short(&self, pages: usize) {
        self.lock().short_reads = pages;
    }
    pub fn fail_writes(&self, error: BackingError, pages: usize) {
        self.lock().fail_writes = Some((error, pages));
    }
    /// Pages written so far.
    pub fn written(&self) -> usize {
        self.lock().written
    }
    pub fn stop_failing(&self) {
        let mut inner = self.lock();
        inner.fail_reads = 0;
        inner.short_reads = 0;
        inner.fail_writes = None;
    }
    /// End the read that has waited longest on the queue.
    pub fn reap_one(&self, queue: QueueId) -> Option<ReadDone> {
        let mut inner = self.lock();
        let request = inner.started.get_mut(&queue.0)?.pop_front()?;
        Some(inner.finish(&self.lost, request))
    }

    fn discard_cluster(&self, cluster: ClusterIndex) {
        let mut inner = self.lock();
        assert!(!inner.closed, "{cluster:?} is discarded, and the device is off");
        assert_eq!(inner.discarding, None, "two clusters are discarded at once");
        inner.store.check_discarded(cluster);
        inner.discarding = Some(cluster);
        drop(inner);
        // Others come in between.
        crate::sync::yield_now();
        self.lock().discarding = None;
    }

    fn close(&self) {
        let mut inner = self.lock();
        assert!(inner.store.is_empty(), "a device that holds pages is closed");
        inner.closed = true;
    }
}

/// Whether this request is one of the `left` ones that a test wants to fail; counts it if so.
fn takes_one(left: &mut usize) -> bool {
    let takes_one = *left > 0;
    *left -= usize::from(takes_one);
    takes_one
}

impl Inner {
    fn finish(&mut self, lost: &Lost, request: ReadRequest) -> ReadDone {
        let Inner { store, fail_reads, short_reads, .. } = self;
        store.end_read(request, |stamp| {
            if takes_one(short_reads) {
                return Some(BackingError::Short(12));
            }
            let fails = takes_one(fail_reads);
            if fails {
                lost.add(stamp);
            }
            fails.then_some(BackingError::Io(5))
        })
    }
}

impl Backing for MockBacking {
    fn properties(&self) -> Properties {
        Properties {
            slots: self.slots,
            synchronous: self.synchronous,
            rotational: self.rotational,
            discard: self.discard,
            in_rows: !self.synchronous,
            at_rest: AtRest::InRam,
        }
    }

    fn write(&self, _: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        // A lock hold for each page: faults on the batch come in between.
        for write in pages {
            let mut inner = self.lock();
            let slot = write.slot;
            assert!(!inner.closed, "{slot:?} is written, and the device is off");
            let discarding = inner.discarding == Some(slot.cluster());
            assert!(!discarding, "{slot:?} is written while its cluster is being discarded");
            let error = match &mut inner.fail_writes {
                Some((error, left)) => takes_one(left).then(|| error.clone()),
                None => None,
            };
            inner.store.write(slot, error.is_none().then_some(write.page));
            inner.written += usize::from(error.is_none());
            results.push(error.map_or(Ok(()), Err));
        }
    }

    fn read(&self, queue: QueueId, request: ReadRequest) -> ReadStart {
        let mut inner = self.lock();
        inner.store.begin_read(&request.slots);
        if !inner.pending {
            return ReadStart::Done(inner.finish(&self.lost, request));
        }
        inner.started.entry(queue.0).or_default().push_back(request);
        ReadStart::Pending
    }

    fn read_now(&self, slot: SlotIndex, page: &mut Page) -> Option<Result<(), BackingError>> {
        let mut inner = self.lock();
        if !self.synchronous || inner.pending {
            return None;
        }
        inner.store.begin_read(&[slot]);
        let request = ReadRequest { token: 0, slots: vec![slot], buf: page_buf(1), is_awaited: true };
        let mut done = inner.finish(&self.lost, request);
        *page = done.buf[0];
        done.results.pop()
    }

    fn discard(&self, slots: &[SlotIndex]) {
        let mut inner = self.lock();
        assert!(!inner.closed, "{slots:?} are discarded, and the device is off");
        inner.store.discard(slots);
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn reap(&self, queue: QueueId, done: &mut Vec<ReadDone>) {
        while let Some(read) = self.reap_one(queue) {
            done.push(read);
        }
    }

    fn keeps(&self, slot: SlotIndex, page: Option<&Page>) -> bool {
        let is_it = |stamp| page.is_none_or(|page| stamp == stamp_of(page));
        !self.synchronous && self.lock().store.stamp(slot).is_some_and(is_it)
    }

    fn housekeep(&self, chore: Chore) -> bool {
        match chore {
            Chore::DiscardCluster(cluster) => self.discard_cluster(cluster),
            Chore::Close => self.close(),
            Chore::Maintain { .. } | Chore::GiveRam { .. } | Chore::LimitRam { .. } | Chore::EndRun => {}
        }
        false
    }
}
