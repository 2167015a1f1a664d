//! What slots lie on: a file or block device with its rings, or an export of an NBD server.
//!
//! What it does not do: anything by itself.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use memspill_engine::backing::{Link, QueueId};
use memspill_engine::units::CLUSTER_SLOTS;
use rustix::io::Errno;

use super::io::Queues;
use super::medium::Medium;
use crate::nbd::Remote;
use crate::ring::{ReadOp, ReadRun, RunEnd, WriteRun};

/// As far as `space.rs` has to know it.
pub(super) trait Room {
    /// Free space, if it can be known.
    fn free_bytes(&self) -> Option<u64>;
    /// A hole is worth telling from so many pages on (or if it empties its cluster).
    fn hole_pages_min(&self) -> u32;
    /// The places of slots `start..end` hold nothing of worth.
    fn give_back(&self, start: u32, end: u32) -> Result<(), Errno>;
}

/// See the module's header.
pub(super) enum Store<Tag: Default + Send + 'static> {
    // In this order: rings wait for what is in flight when they are dropped.
    Medium(Queues<Tag>, Medium),
    Remote(Remote<Tag>),
}

impl<Tag: Default + Send> Store<Tag> {
    pub(super) fn medium(&self) -> Option<(&Queues<Tag>, &Medium)> {
        match self {
            Store::Medium(queues, medium) => Some((queues, medium)),
            Store::Remote(_) => None,
        }
    }

    pub(super) fn is_rotational(&self) -> bool {
        match self {
            Store::Medium(_, medium) => medium.rotational,
            Store::Remote(remote) => remote.is_rotational(),
        }
    }

    /// Write requests, the pages that they were for, and read requests.
    pub(super) fn totals(&self) -> (u64, u64, u64) {
        match self {
            Store::Medium(queues, _) => queues.totals(),
            Store::Remote(remote) => remote.totals(),
        }
    }

    /// Memory of its own.
    pub(super) fn ram_bytes(&self) -> u64 {
        match self {
            Store::Medium(..) => 0,
            Store::Remote(remote) => remote.ram_bytes(),
        }
    }

    pub(super) fn links(&self) -> Vec<Link> {
        match self {
            Store::Medium(..) => Vec::new(),
            Store::Remote(remote) => remote.links(),
        }
    }

    /// Write the runs and wait: how each has ended.
    pub(super) fn write(&self, queue: QueueId, runs: &[WriteRun<'_>]) -> Vec<RunEnd> {
        match self {
            Store::Medium(queues, medium) => queues.write(queue, medium.as_fd(), runs),
            Store::Remote(remote) => remote.write(queue, runs),
        }
    }

    /// Start the reads. If they are done at once, `op` comes back.
    pub(super) fn read(&self, queue: QueueId, op: ReadOp<Tag>, is_awaited: bool) -> Option<ReadOp<Tag>> {
        match self {
            Store::Medium(queues, medium) => queues.read(queue, medium.as_fd(), op),
            Store::Remote(remote) => remote.read(queue, op, is_awaited),
        }
    }

    /// The runs, a page each, came as something else than was written there: another server is asked. If
    /// there is none, `op` comes back.
    pub(super) fn read_again(
        &self,
        queue: QueueId,
        op: ReadOp<Tag>,
        is_awaited: bool,
    ) -> Option<ReadOp<Tag>> {
        match self {
            Store::Medium(..) => Some(op),
            Store::Remote(remote) => remote.read_again(queue, op, is_awaited),
        }
    }

    /// The run has come as it was written, from the second server that was asked.
    pub(super) fn mend(&self, run: &ReadRun) {
        if let Store::Remote(remote) = self {
            remote.mend(run);
        }
    }

    /// Reads that have ended.
    pub(super) fn reap(&self, queue: QueueId) -> Vec<ReadOp<Tag>> {
        match self {
            Store::Medium(queues, _) => queues.reap(queue),
            Store::Remote(remote) => remote.reap(queue),
        }
    }

    pub(super) fn poll_fd(&self, queue: QueueId) -> io::Result<Option<OwnedFd>> {
        match self {
            Store::Medium(queues, _) => queues.poll_fd(queue),
            Store::Remote(remote) => remote.poll_fd(queue),
        }
    }

    /// The run is over, others may still be at work.
    pub(super) fn end_run(&self) {
        match self {
            Store::Medium(_, medium) => medium.give_back_later(),
            Store::Remote(remote) => remote.end(),
        }
    }

    /// The device is off, and nobody is at work on it: whoever comes late meets nothing.
    pub(super) fn forget(&self) {
        if let Store::Medium(_, medium) = self {
            medium.forget();
        }
    }

    pub(super) fn close(&self) {
        match self {
            Store::Medium(queues, _) => queues.close(),
            Store::Remote(remote) => remote.close(),
        }
    }

    /// Wait for reads that still use their buffers.
    pub(super) fn drain(&mut self) {
        match self {
            Store::Medium(queues, _) => queues.drain(),
            Store::Remote(remote) => remote.close(),
        }
    }
}

impl<Tag: Default + Send> Room for Store<Tag> {
    fn free_bytes(&self) -> Option<u64> {
        match self {
            Store::Medium(_, medium) => medium.free_bytes(),
            // It has its size.
            Store::Remote(_) => Some(u64::MAX),
        }
    }

    fn hole_pages_min(&self) -> u32 {
        match self {
            Store::Medium(..) => 16,
            Store::Remote(_) => CLUSTER_SLOTS,
        }
    }

    fn give_back(&self, start: u32, end: u32) -> Result<(), Errno> {
        match self {
            Store::Medium(_, medium) => medium.give_back(start, end),
            Store::Remote(remote) => remote.trim(start, end),
        }
    }
}
