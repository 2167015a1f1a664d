//! A fill: pages that one thread has claimed and is bringing in, and the buffers that such threads keep.

use crate::ahead::AheadSlot;
use crate::backing::BackingError;
use crate::kept::Kept;
use crate::reads::Reads;
use crate::space::{CHUNK_PAGES, Space};
use crate::swap::Swap;
use crate::sync::Arc;
use crate::units::{CpuId, PageBuf, SlotIndex, Vpn, grow};
use crate::word::SwapEntry;
use memspill_common::window::BLOCK_ORDERS;
use std::collections::VecDeque;

pub use crate::memory::WINDOW_MAX;
/// Most pages of zeros that one fault brings: a chunk. A program that fills new memory in order pays for few
/// faults, and what a stream has brought too much is less than what it has used.
pub const ZERO_WINDOW_MAX: usize = CHUNK_PAGES as usize;
/// The largest folio that comes back as one by default: what reclaim takes out at once.
pub(crate) const FOLIO_MAX_ORDER: u8 = *BLOCK_ORDERS.end() as u8;
const FOLIO_MAX: usize = 1 << FOLIO_MAX_ORDER;

/// A fault, as a front end hands it in.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub vpn: Vpn,
    pub write: bool,
    /// Served even over the limit: whoever waits for this page is making room.
    pub urgent: bool,
    /// Its pages stay for some more rounds of the LRU, if they come from a device.
    pub favoured: bool,
}

/// The caller's next step.
pub enum Outcome {
    Done,
    /// A read with this token is in flight on the caller's queue; `Engine::read_done` finishes it.
    Pending(u64),
    /// No room under the limit: call `fault` again when reclaim has freed some.
    NoRoom,
    /// The read failed for want of memory or the like, and the page is swapped out as before. Its waiters
    /// have been woken and will fault again at once: the caller waits a moment first, or both would only burn
    /// CPU time.
    Pause,
    /// The address space is changing: call `Engine::install` again after its events were read.
    Again(FillJob),
    /// The address space is gone.
    Gone,
}

/// What came of bringing pages in ahead of their faults.
pub struct Brought {
    pub outcome: Outcome,
    /// Where to go on.
    pub next: Vpn,
    /// Pages that were claimed.
    pub pages: usize,
}

/// One CPU's bringing in of pages: swap_in.rs claims and reads them, install.rs puts them in place.
pub(crate) struct SwapIn<'a> {
    pub swap: &'a Swap,
    pub kept: &'a Kept,
    pub reads: &'a Reads<FillJob>,
    pub cpu: CpuId,
    pub scratch: &'a mut Scratch,
}

/// Pages that this thread has claimed and is bringing in. All are of one chunk, ascending.
pub struct FillJob {
    pub(crate) space: Arc<Space>,
    pub(crate) write: bool,
    pub(crate) favoured: bool,
    /// The page that faulted.
    pub(crate) fault: Vpn,
    /// The page that faulted, and those that came along.
    pub(crate) pages: Vec<Claim>,
    /// While the read is in flight: what is read with the page that faulted, for the swap cache.
    pub(crate) ahead: ReadWith,
    /// Page i of the buffer holds the bytes of `pages[i]`; empty for a zero fill.
    pub(crate) buf: PageBuf,
    pub(crate) cause: Cause,
}

/// Why pages come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    Fault,
    /// A fault of a row of reads.
    InRow(Row),
    /// The program has said that it will need them.
    Advised,
    /// A page that came before has named it (pointers.rs).
    Named,
}

impl Cause {
    /// A thread waits for one of them. Else they were asked for, and none of them is on trial.
    pub fn is_awaited(self) -> bool {
        matches!(self, Cause::Fault | Cause::InRow(_))
    }
}

/// The way in which a row of faults goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Row {
    Up,
    Down,
}

/// Slots that are read in the request of the page that faulted, which is one page.
#[derive(Default)]
pub(crate) struct ReadWith {
    pub slots: Vec<AheadSlot>,
    /// The number of pages that come before the page itself.
    pub before: usize,
}

#[derive(Clone, Copy)]
pub(crate) struct Claim {
    pub vpn: Vpn,
    /// None: zero fill.
    pub entry: Option<SwapEntry>,
    pub read: ReadEnd,
    /// It comes with the page that faulted: whether it is touched, nobody will say.
    pub comes_along: bool,
}

/// What has become of a claimed page's read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// There was none yet, or none was needed: a zero fill, or out of the swap cache.
    None,
    /// Its bytes were read from its slot, which still holds them. (Bytes from the swap cache may not be in
    /// the slot yet.)
    Whole,
    /// The slot may be read again.
    Later,
    Lost,
}

impl ReadEnd {
    pub fn of(result: &Result<(), BackingError>) -> ReadEnd {
        match result {
            Ok(()) => ReadEnd::Whole,
            Err(error) if error.is_transient() => ReadEnd::Later,
            Err(_) => ReadEnd::Lost,
        }
    }
}

impl Claim {
    /// There are bytes to fill it with.
    pub fn is_ready(&self) -> bool {
        !matches!(self.read, ReadEnd::Later | ReadEnd::Lost)
    }

    /// The device that holds a swapped-out page.
    pub fn device(&self) -> u8 {
        self.entry.expect("a swapped page has an entry").device
    }
}

pub(crate) fn slots_of(claims: &[Claim]) -> Vec<SlotIndex> {
    claims.iter().filter_map(|claim| claim.entry).map(|entry| entry.slot).collect()
}

impl Outcome {
    /// The outcome of two parts of one window.
    pub(crate) fn and(self, other: Outcome) -> Outcome {
        match (self, other) {
            (Outcome::Again(first), Outcome::Again(second)) => Outcome::Again(FillJob::merge(first, second)),
            (again @ Outcome::Again(_), _) | (_, again @ Outcome::Again(_)) => again,
            (Outcome::NoRoom, _) | (_, Outcome::NoRoom) => Outcome::NoRoom,
            (Outcome::Pause, _) => Outcome::Pause,
            (pending @ Outcome::Pending(_), _) => pending,
            (_, other) => other,
        }
    }
}

impl FillJob {
    /// Some of its pages, without their bytes.
    pub(crate) fn part(&self, fault: Vpn, pages: Vec<Claim>) -> FillJob {
        FillJob {
            space: self.space.clone(),
            write: self.write,
            favoured: self.favoured,
            fault,
            pages,
            ahead: ReadWith::default(),
            buf: PageBuf::default(),
            cause: self.cause,
        }
    }

    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// The slots to read, in the order of the request.
    pub(crate) fn slots(&self) -> Vec<SlotIndex> {
        let mut slots = slots_of(&self.pages);
        if !self.ahead.slots.is_empty() {
            slots.splice(0..0, self.ahead.slots[..self.ahead.before].iter().map(|ahead| ahead.slot));
            slots.extend(self.ahead.slots[self.ahead.before..].iter().map(|ahead| ahead.slot));
        }
        slots
    }
}

/// Buffers that a thread which serves faults keeps. Not only for speed: reads end in another order than they
/// begin, and when buffers were allocated and freed between small allocations, the heap of a pager grew by
/// 1 MiB/s, which the budget pays for.
#[derive(Default)]
pub struct Scratch {
    single: Vec<PageBuf>,
    windows: Vec<PageBuf>,
    folios: Vec<PageBuf>,
    /// Buffers asked for so far.
    asked: u64,
    /// Pages that are expected to be touched soon, in this order (pointers.rs).
    pub(crate) predicted: VecDeque<(Arc<Space>, Vpn)>,
}

/// How many buffers of one page, of `WINDOW_MAX` pages, and of `FOLIO_MAX` pages, are kept. There are as many
/// reads in flight at once as threads that wait.
const SINGLE_KEPT: usize = 256;
const WINDOWS_KEPT: usize = 8;
const FOLIOS_KEPT: usize = 2;
/// After so many were asked for, those of several pages are let go, so that what a burst has made large does
/// not stay so.
const LETS_GO_AFTER: u64 = 4096;
/// Predictions that a thread keeps at most.
pub(crate) const PREDICTED_MAX: usize = 1024;
const _: () = assert!(WINDOW_MAX < FOLIO_MAX);

impl Scratch {
    /// A page is expected to be touched soon: it is brought by `Engine::bring_predicted`.
    pub fn predict(&mut self, space: &Arc<Space>, vpn: Vpn) {
        if self.predicted.len() == PREDICTED_MAX {
            // A late prediction, made by an earlier page.
            self.predicted.pop_front();
        }
        self.predicted.push_back((space.clone(), vpn));
    }
    /// Where the next one to be brought is: the first one whose space has room for it, else the first one.
    pub(crate) fn next_predicted(&self) -> usize {
        let mut full = None;
        let has_room = |(space, _): &(Arc<Space>, Vpn)| {
            let has_room = full != Some(space.id) && space.has_room_for_named();
            full = if has_room { full } else { Some(space.id) };
            has_room
        };
        self.predicted.iter().position(has_room).unwrap_or(0)
    }
    /// Are there such pages?
    pub fn has_predicted(&self) -> bool {
        !self.predicted.is_empty()
    }
    /// There has been no room for them for long.
    pub fn forget_predicted(&mut self) {
        self.predicted.clear();
    }
    /// A buffer of so many pages, or more. The buffers of a window have room for all windows, and as many
    /// pages as were ever wanted of it: most windows are of two pages, and untouched pages take no memory.
    pub(crate) fn buffer(&mut self, pages: usize) -> PageBuf {
        let (kept, room) = match pages {
            1 => (self.single.pop(), 1),
            2..=WINDOW_MAX => (self.windows.pop(), WINDOW_MAX),
            ..=FOLIO_MAX => (self.folios.pop(), FOLIO_MAX),
            larger => (None, larger),
        };
        self.asked += 1;
        if self.asked.is_multiple_of(LETS_GO_AFTER) {
            self.windows.clear();
            self.folios.clear();
        }
        let mut buf = kept.unwrap_or_else(|| PageBuf::with_capacity(room));
        grow(&mut buf, pages);
        buf
    }
    /// A buffer larger than that is freed: keeping it is not worth its memory.
    pub(crate) fn give_back(&mut self, buf: PageBuf) {
        let (kept, most) = match buf.capacity() {
            1 => (&mut self.single, SINGLE_KEPT),
            WINDOW_MAX => (&mut self.windows, WINDOWS_KEPT),
            FOLIO_MAX => (&mut self.folios, FOLIOS_KEPT),
            _ => return,
        };
        if kept.len() < most {
            kept.push(buf);
        }
    }
}

impl FillJob {
    /// Two jobs that must both be tried again (of one window, so of one chunk).
    pub(crate) fn merge(mut first: FillJob, second: FillJob) -> FillJob {
        first.buf.truncate(first.pages.len());
        first.buf.extend_from_slice(&second.buf[..second.pages.len()]);
        first.pages.extend(second.pages);
        first
    }
}
