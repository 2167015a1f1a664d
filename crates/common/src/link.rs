//! What an agent that pages its own process shares with its supervisor: a userfaultfd made of memory.
//!
//! ```text
//!  the control memfd   ┌─────────┬──────────────────────────────┬────────────────────┬──────────────┐
//!                      │ Control │ Link: counts, waiters,       │ bytes of deliveries│ staging      │
//!                      │ 4 KiB   │ deliveries, ring of messages │ 32 of 16, 32 of 1  │ 256 pages    │
//!                      └─────────┴──────────────────────────────┴────────────────────┴──────────────┘
//!
//!  a thread that lacks a page                       a pager
//!  claims a waiter, writes the page into it
//!  FAULT into the ring; rings the bell (eventfd) ─▶ reads the ring, as it reads a userfaultfd
//!  sleeps on Waiter::woken                          bytes into a delivery, which is FULL from then on
//!  takes what is FULL, fills it in ◀─────────────── woken + 1 of those who wait for such a page
//!
//!  a thread that changes mappings                   a pager
//!  alone in its gate; changes + 1, with Control::lock
//!  installs what is FULL, makes the call            while `changes` is not `changes_read`, which is looked
//!  UNMAP, REMOVE, REMAP into the ring ────────────▶ at with Control::lock, nothing is delivered or taken
//!  END                                              changes_read + 1
//! ```
//!
//! Pages are taken out by the evictor's command (OP_MOVE), whose staging is here. `Link::take` says how far a
//! command has come, so that one which is not answered can be cut off at a known place:
//!
//! ```text
//!   supervisor: open(seq) ─ command ──────────────────────────────── swap(CUT) where there is no answer
//!   evictor:     a chunk's bytes into staging ─ guards in their places ─ open ─▶ committed(run, pages) ─ ...
//! ```
//!
//! A page that a thread needs, and that is in the supervisor's pool, it reads from there by itself
//! (from_pool.rs); the supervisor is told, and nobody waits. The supervisor says by hints where a page is
//! stored, the agent in `Link::early` which pages it has brought:
//!
//! ```text
//!   a thread, inside its gate                      a pager or a reclaimer
//!   0 ─▶ FETCHING   word FILLING; reads, looks,
//!        installs; word NONE
//!   FETCHING ─▶ HERE                               HERE ─▶ NOTING   the page is resident from now on
//!                                                  NOTING ─▶ 0, or HERE, where somebody has it in work
//!   a change, a fork: begin where all are 0        a page that is there is not taken out
//! ```
//!
//! From a `committed` on the bytes are in staging and the pages are away: it is said when nothing can fail
//! any more. If it cannot be said the bytes are put back, before anybody could touch the pages.

use super::protocol::STAGING_PAGES;
use super::window::{BLOCK_PAGES_MAX, POOL_READ_PAGES_MAX};

/// Messages: what each says.
pub const FAULT: u32 = 1;
/// [addr, end) is unmapped, or something else is mapped there.
pub const UNMAP: u32 = 2;
/// [addr, end) is as new.
pub const REMOVE: u32 = 3;
/// [addr, end) is at `to` now.
pub const REMAP: u32 = 4;
/// All of a change has been told.
pub const END: u32 = 5;
/// As `FAULT`, by an access that only reads.
pub const READ_FAULT: u32 = 6;
/// The page is there, and protected: a write to it asks (agent/pages/write_protect.rs).
pub const WRITE: u32 = 7;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Message {
    pub kind: u32,
    /// FAULT, READ_FAULT, WRITE: the thread that faults.
    pub tid: u32,
    pub addr: u64,
    pub end: u64,
    pub to: u64,
}

/// A thread that waits for a page.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Waiter {
    /// Address of the page; 0: nobody.
    pub page: u64,
    /// A futex that changes when the thread is to look again.
    pub woken: u32,
    /// The number of pages from that one on that were away when it was asked for: at most `DELIVERY_PAGES`;
    /// or, with `RUN_CLOSED`, if nothing was ever in them, `ZERO_PAGES`.
    pub run: u32,
}

pub const RUN_CLOSED: usize = 1 << 16;
const _: () = assert!(DELIVERY_PAGES < RUN_CLOSED && ZERO_PAGES < RUN_CLOSED);

/// `Delivery::state`: the supervisor may fill it; it is filled; an agent's thread is installing it.
pub const FREE: u32 = 0;
pub const FULL: u32 = 1;
pub const TAKEN: u32 = 2;

/// `Delivery::content`: the bytes are in the part of the file that goes with the delivery; they are lost; the
/// pages are as new; they are there, and may be written.
pub const BYTES: u32 = 0;
pub const LOST: u32 = 1;
pub const ZEROS: u32 = 2;
pub const WRITABLE: u32 = 3;

/// Pages in a row.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Delivery {
    pub state: u32,
    pub pages: u32,
    /// Address of the first one.
    pub addr: u64,
    /// `BYTES`, `LOST`, `ZEROS` or `WRITABLE`.
    pub content: u32,
    /// The number of them that are done with, from the first one on.
    pub done: u32,
}

/// A mapping that is larger than this many times `Link::closed_bytes` is mapped to be used here and there. As
/// that is a sixteenth of the budget, the page tables of what is closed take a 32nd of it at most.
pub const CLOSED_MAX: u64 = 256;

/// A page that a thread brings by itself: an entry of `Link::early`, its address with one of these.
pub const FETCHING: u64 = 1;
pub const HERE: u64 = 2;
pub const NOTING: u64 = 3;
pub const EARLY_STATE: u64 = 3;
const _: () = assert!(FETCHING < HERE && HERE < NOTING && NOTING == EARLY_STATE);
/// And this, where it came along with the one before it: no thread has touched it yet.
pub const ALONG: u64 = 4;
pub const EARLY_PAGE: u64 = !(PAGE as u64 - 1);
pub const EARLY: usize = size(256, 3);
const _: () = assert!(POOL_READ_PAGES_MAX as usize <= BLOCK_PAGES_MAX);
const _: () = assert!(2 * BLOCK_PAGES_MAX <= size(EARLY, 2 * BLOCK_PAGES_MAX));

/// A page that the row of another one would have brought, and that was left out to see whether it faults by
/// itself: an entry of `Link::early_left_out`.
///
/// ```text
///   31             16 15             0
///   ┌────────────────┬────────────────┐
///   │ pages          │ distance       │   0: none
///   └────────────────┴────────────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeftOut {
    /// The pages of the window.
    pub pages: u16,
    /// The number of pages above the one that was needed, or below.
    pub distance: i16,
}

impl LeftOut {
    pub const NONE: LeftOut = LeftOut { pages: 0, distance: 0 };

    pub const fn word(self) -> u32 {
        (self.pages as u32) << 16 | self.distance as u16 as u32
    }

    pub const fn of(word: u32) -> LeftOut {
        LeftOut { pages: (word >> 16) as u16, distance: word as u16 as i16 }
    }
}

const _: () = {
    let left_out = LeftOut { pages: 64, distance: -63 };
    let again = LeftOut::of(left_out.word());
    assert!(again.pages == 64 && again.distance == -63 && LeftOut::NONE.word() == 0);
};

/// Where a page is stored: it was SWAPPED when this was written.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Hint {
    pub addr: u64,
    pub slot: u64,
}

/// A size: the second one under a model checker, where what happens at its end is to happen often.
const fn size(shipped: usize, checked: usize) -> usize {
    if cfg!(shuttle) { checked } else { shipped }
}

pub const HINTS: usize = size(1024, 4);
pub const RING: usize = size(1024, 2);
pub const WAITERS: usize = size(256, 3);
/// The number of deliveries that threads wait for, with room for this many pages each.
pub const DELIVERIES: usize = size(32, 2);
pub const DELIVERY_PAGES: usize = size(16, 2);
/// Behind those: of what nobody has asked for, of a page each.
pub const UNASKED: usize = size(32, 1);
pub const DELIVERIES_ALL: usize = DELIVERIES + UNASKED;
/// The pages of a delivery of ZEROS or WRITABLE, which take no room in the file.
pub const ZERO_PAGES: usize = size(512, 2);
/// The number of changes that may be unread when another one begins.
pub const UNREAD_CHANGES_MAX: u64 = size(4, 0) as u64;

#[repr(C)]
pub struct Link {
    /// Messages that were written; changes that have begun, but for those that needed not be told. Written by
    /// the agent.
    pub head: u64,
    pub changes: u64,
    /// Messages that were read; changes of which all was read. Written by the supervisor.
    pub tail: u64,
    pub changes_read: u64,
    /// The number of the agent's threads that wait for the supervisor to read, on `room`, which changes then.
    pub waits_for_room: u32,
    pub room: u32,
    /// The number of threads that have one of `waiters`, or are about to. Written by the agent.
    pub waiting: u32,
    pub reserved: u32,
    /// Non-zero: changes are to be told even where nothing is away, and new memory is closed.
    pub tells: u32,
    /// Non-zero: no further change is to begin; who wants to waits on `room`. Written by the supervisor.
    pub held: u32,
    /// Non-zero: the child of a fork protects what it shares before it runs on. Written by the supervisor
    /// before the child is let go.
    pub protects_shared: u64,
    /// The number of pages that have left while others had them too, since a fork. Written by the evictor.
    pub shared_taken: u64,
    /// New memory of so many bytes is closed at any time, and `CLOSED_MAX` times as much is not. 0: none is.
    pub closed_bytes: u64,
    /// Only what lies between these addresses is closed; both are 0: wherever it lies. Written by the
    /// supervisor.
    pub only_from: u64,
    pub only_to: u64,
    /// See above.
    pub take: u64,
    /// Pages that threads bring by themselves. See above.
    pub early: [u64; EARLY],
    /// The number that has been brought; written by the agent. The number of these that were noted; by the
    /// supervisor.
    pub early_brought: u64,
    pub early_noted: u64,
    /// The thread that has brought each of them.
    pub early_tids: [u32; EARLY],
    /// What was left out with each of them: [`LeftOut::word`].
    pub early_left_out: [u32; EARLY],
    /// Bit n: too little is touched of windows of 2^n pages and more, up to 2^(n + 1). Written by the
    /// supervisor.
    pub distrusted: u64,
    /// Non-zero: they may, by the hints that they have. Written by the supervisor.
    pub allows_early: u64,
    /// The number of pages at once while memory is gone through in order; more if they left together. Written
    /// by the supervisor.
    pub early_run: u64,
    /// The bell is rung when so many are not noted. Written by the supervisor.
    pub early_told_at: u64,
    /// Non-zero: pages name those that are touched next (the engine's pointers.rs), which the supervisor sees
    /// only where it brings them: so all are asked for. Written by the supervisor.
    pub names_followed: u64,
    /// Non-zero: the thread, of whatever process, that alone may bring pages by itself for now. All others
    /// ask, and the supervisor lets those wait for their turn that fault often. Written by the supervisor.
    pub token: u64,
    /// Hints that were written, by the supervisor; that were read, by the agent.
    pub hints_head: u64,
    pub hints_tail: u64,
    pub hints: [Hint; HINTS],
    pub waiters: [Waiter; WAITERS],
    pub deliveries: [Delivery; DELIVERIES_ALL],
    pub ring: [Message; RING],
}

/// `Link::take`: the command `seq` may take pages out.
pub const fn open(seq: u32) -> u64 {
    (seq as u64) << 32
}

/// It has taken `pages` of its run number `run`.
pub const fn committed(seq: u32, run: u32, pages: u32) -> u64 {
    open(seq) | COMMITTED | (run as u64 & 0xfff) << 16 | pages as u64 & 0xffff
}

/// The run and its pages, of a value of command `seq`. None: it has not taken any yet.
pub const fn committed_of(take: u64, seq: u32) -> Option<(u32, u32)> {
    if take >> 32 == seq as u64 && take & COMMITTED != 0 {
        Some(((take >> 16 & 0xfff) as u32, (take & 0xffff) as u32))
    } else {
        None
    }
}

const COMMITTED: u64 = 1 << 31;
/// No command is under way that may take anything.
pub const CUT: u64 = 0;

const PAGE: usize = 4096;
/// Where the parts lie in the file.
pub const LINK_AT: usize = PAGE;
pub const BYTES_AT: usize = LINK_AT + core::mem::size_of::<Link>().next_multiple_of(PAGE);
pub const STAGING_AT: usize = bytes_at(DELIVERIES_ALL);
pub const FILE_BYTES: usize = STAGING_AT + STAGING_PAGES as usize * PAGE;

/// Where the bytes of a delivery begin.
pub const fn bytes_at(delivery: usize) -> usize {
    /// In pages.
    const UNASKED_AT: usize = DELIVERIES * DELIVERY_PAGES;
    let pages =
        if delivery < DELIVERIES { delivery * DELIVERY_PAGES } else { UNASKED_AT + delivery - DELIVERIES };
    BYTES_AT + pages * PAGE
}

const _: () = assert!(core::mem::size_of::<Message>() == 32 && core::mem::size_of::<Delivery>() == 24);
const _: () = {
    assert!(committed_of(open(7), 7).is_none() && committed_of(committed(7, 3, 64), 8).is_none());
    assert!(matches!(committed_of(committed(7, 127, 128), 7), Some((127, 128))));
};
