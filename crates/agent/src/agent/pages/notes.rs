//! A thread notes the pages that it brings by itself in the mapping that is shared with the supervisor, until
//! that has taken them in; and the supervisor notes there where pages are stored (`common/src/link.rs` draws
//! both, `from_pool.rs` says why they are true).
//!
//! What must hold:
//!
//! - An entry that is not free keeps its page in its place: it is not taken out, nothing but its protection
//!   changes, and nobody forks. For the supervisor takes what the entry says for true whenever it reads it.
//! - Hints are read, and dropped, inside the gate.

use super::channel::{self, field, link, word64};
use super::gate;
use super::table;
use crate::common::link::{ALONG, EARLY, EARLY_PAGE, FETCHING, HERE, HINTS, Hint, LeftOut, Link};
use crate::common::pool::SLOTS_END;
use crate::common::rules::{Rule, holds};
use crate::common::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::common::words::{SLOTS_MAX, SWAPPED};
use crate::thread::wait;

struct State {
    /// Changes that wait for all entries to be free.
    closed: AtomicUsize,
    /// Held while hints are read.
    reading: AtomicU32,
    /// The number of pages that had been brought when the supervisor was last called for them.
    told: AtomicU64,
}

/// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
static STATE: State =
    State { closed: AtomicUsize::new(0), reading: AtomicU32::new(0), told: AtomicU64::new(0) };

/// In the child of a fork, where nobody waits.
pub fn reset() {
    STATE.closed.store(0, Ordering::SeqCst);
    STATE.reading.store(0, Ordering::SeqCst);
    STATE.told.store(0, Ordering::SeqCst);
}

/// While this lives no thread begins to bring a page by itself.
pub struct Closed(());

impl Closed {
    pub fn begin() -> Closed {
        STATE.closed.fetch_add(1, Ordering::SeqCst);
        Closed(())
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        STATE.closed.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Does a change wait?
pub fn is_closed() -> bool {
    STATE.closed.load(Ordering::SeqCst) != 0
}

fn entry(index: usize) -> &'static AtomicU64 {
    let index = index % EARLY;
    word64(field!(early[index]))
}

/// Has the supervisor noted all that threads have brought?
pub fn is_empty() -> bool {
    !channel::is_there()
        || !holds(Rule::NotedFirst)
        || (0..EARLY).all(|index| entry(index).load(Ordering::SeqCst) == 0)
}

/// The first page of [start, end) that a thread has brought, and that is not noted; else `end`.
pub fn first(start: usize, end: usize) -> usize {
    let page_of = |index| (entry(index).load(Ordering::SeqCst) & EARLY_PAGE) as usize;
    (0..EARLY).map(page_of).filter(|page| (start..end).contains(page)).min().unwrap_or(end)
}

/// An entry for a page that is to be brought: they are taken in turns, so the next one is nearly always free.
pub fn claim(page: usize) -> Option<usize> {
    let taken = page as u64 | FETCHING;
    let first = brought().load(Ordering::Relaxed) as usize;
    (first..first.wrapping_add(EARLY)).map(|turn| turn % EARLY).find(|index| {
        let entry = entry(*index);
        entry.load(Ordering::Relaxed) == 0
            && entry.compare_exchange(0, taken, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    })
}

fn brought() -> &'static AtomicU64 {
    word64(field!(early_brought))
}

/// It was not brought.
pub fn give_back(index: usize) {
    entry(index).store(0, Ordering::SeqCst);
    channel::wake_waiting();
}

/// Why a page was brought.
#[derive(Clone, Copy)]
pub enum Comes {
    /// Its thread touches it.
    Needed(LeftOut),
    /// With that one; no thread has touched it yet.
    Along,
}

/// The page of an entry is in its place, by this thread.
pub fn here(index: usize, page: usize, tid: u32, comes: Comes) {
    let by = field!(early_tids[index % EARLY]);
    let left_out = field!(early_left_out[index % EARLY]);
    let (along, word) = match comes {
        Comes::Along => (ALONG, LeftOut::NONE.word()),
        Comes::Needed(left_out) => (0, left_out.word()),
    };
    // SAFETY: in the file, which stays mapped.
    unsafe {
        by.write_volatile(tid);
        left_out.write_volatile(word);
    }
    // Before it may be noted: what is noted was brought.
    brought().fetch_add(1, Ordering::SeqCst);
    let here = if holds(Rule::Entry) { page as u64 | along | HERE } else { 0 };
    entry(index).store(here, Ordering::SeqCst);
}

/// At so many pages that are not noted the supervisor is called.
pub fn told_at() -> u64 {
    word64(field!(early_told_at)).load(Ordering::Relaxed).max(1)
}

/// The supervisor was called a while ago, and has not come: it does not know how full memory is.
pub fn are_too_many() -> bool {
    let noted = word64(field!(early_noted)).load(Ordering::Relaxed);
    brought().load(Ordering::Relaxed).saturating_sub(noted) >= 2 * told_at()
}

/// The supervisor is called where so many pages more have been brought than it was called for or has noted
/// (its reclaimers do so uncalled), or where somebody waits for it. Outside of the gate.
pub fn tell() {
    let noted = word64(field!(early_noted)).load(Ordering::Relaxed);
    let (brought, told) = (brought().load(Ordering::Relaxed), STATE.told.load(Ordering::Relaxed));
    let is_time = brought.saturating_sub(told.max(noted)) >= told_at()
        // One of the threads that see it calls.
        && STATE.told.compare_exchange(told, brought, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if is_time || is_closed() {
        channel::ring();
    }
}

/// As `take_hints`, by the evictor, before a command. False: they could not be read, and nothing may be taken
/// out. A page that leaves now would get the slot that it had before.
#[must_use]
pub fn take_hints_outside() -> bool {
    if !holds(Rule::HintsFirst) {
        return true;
    }
    const GATE_MS: u32 = 20;
    let Some(inside) = gate::enter_within(GATE_MS) else { return false };
    while !take_hints() {
        // The reader may wait for this very CPU. He wakes nobody: it is rare.
        wait::sleep_for(&STATE.reading, 1, 1);
    }
    drop(inside);
    true
}

/// Words get the slots that the supervisor has told. Inside the gate. False: another thread is just at it.
pub fn take_hints() -> bool {
    if STATE.reading.swap(1, Ordering::SeqCst) != 0 {
        return false;
    }
    let (head, tail) = (word64(field!(hints_head)), word64(field!(hints_tail)));
    let (end, mut at) = (head.load(Ordering::SeqCst), tail.load(Ordering::SeqCst));
    while at != end && end.wrapping_sub(at) <= HINTS as u64 {
        apply(hint(at as usize % HINTS));
        at = at.wrapping_add(1);
    }
    tail.store(end, Ordering::SeqCst);
    STATE.reading.store(0, Ordering::SeqCst);
    true
}

fn hint(index: usize) -> Hint {
    let link: *mut Link = link();
    // SAFETY: the file is mapped, and the index below HINTS; any bytes are a hint.
    unsafe { (&raw const (*link).hints).cast::<Hint>().add(index).read_volatile() }
}

fn apply(hint: Hint) {
    if hint.slot == 0 || hint.slot >= SLOTS_END.min(SLOTS_MAX) {
        return;
    }
    let Some(word) = table::find(hint.addr as usize) else { return };
    let seen = table::load(word);
    if seen.state() == SWAPPED && seen.slot() == 0 {
        table::turn(word, seen, seen.with_slot(hint.slot));
    }
}

/// The hints are of the pages as they were before a change. Alone in the gate.
pub fn drop_hints() {
    if !holds(Rule::DropHints) {
        return;
    }
    word64(field!(hints_tail)).store(word64(field!(hints_head)).load(Ordering::SeqCst), Ordering::SeqCst);
}
