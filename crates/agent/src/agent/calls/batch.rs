//! The other side of the protocol (`mod.rs` has the picture): who takes pages out, or makes memory ready to
//! be registered. That is the evictor; and a thread of the program, of memory that it has just mapped.
//!
//! ```text
//!   begin ─ lock ─ generation odd ─ fence ──▶ look at slots, move ──▶ end ─ generation even ─ wake ─ unlock
//! ```
//!
//! *To be registered.* From then on pages that are not there are away for calls too. So before it, of what
//! calls are using, all pages are made present; and `Board::managed` grows, so that the calls that begin
//! later touch what they use. Then the registration itself may come at any time, or never.
//!
//! `Board::managed` is a few ranges, each of which covers much more than what is managed: what is touched is
//! only what a call uses. A range that is read while it grows is the old one or the new one; so they grow,
//! and are never put to another use.
//!
//! Nothing here waits for a thread of the program, but for one that holds the lock, in the middle of such a
//! batch with all its signals blocked.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use crate::machine::gadget;
use crate::machine::sys::{self, PAGE, nr};
use crate::protocol::{Board, MANAGED_RANGES, RangeInUse, SLOT_RANGES};
use crate::thread::block::{self, Block};

const FUTEX_WAIT: usize = 0;
const FUTEX_WAKE: usize = 1;
const MADV_POPULATE_READ: usize = sys::MADV_POPULATE_READ;
/// A mapping that grows downwards does so by itself: by no more than this, the usual limit of a stack.
const GROWS_BY: usize = 64 << 20;
/// Ranges nearer to each other than this become one.
const NEAR: u64 = 1 << 32;

/// 0 free, 1 held, 2 held and somebody may wait.
// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
static LOCK: AtomicU32 = AtomicU32::new(0);

/// Not 0: some memory has been marked MADV_DONTFORK for the supervisor. Set under LOCK.
#[unsafe(link_section = ".data")]
static IS_ANY_MARKED: AtomicU32 = AtomicU32::new(0);

fn lock() {
    if LOCK.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
        return;
    }
    while LOCK.swap(2, Ordering::Acquire) != 0 {
        // SAFETY: a word of ours.
        let _ = unsafe { gadget::call(nr::FUTEX, [LOCK.as_ptr() as usize, FUTEX_WAIT, 2, 0, 0, 0]) };
    }
}

fn unlock() {
    if LOCK.swap(0, Ordering::Release) == 2 {
        wake_all(&LOCK);
    }
}

/// Until `let_go_on` nothing becomes marked or managed, and no batch begins.
pub fn hold_off() {
    lock();
}

pub fn let_go_on() {
    unlock();
}

/// Memory is about to be marked MADV_DONTFORK.
pub fn note_marked() {
    lock();
    IS_ANY_MARKED.store(1, Ordering::Relaxed);
    unlock();
}

/// Was any memory marked? Between `hold_off` and `let_go_on`.
pub fn is_any_marked() -> bool {
    IS_ANY_MARKED.load(Ordering::Relaxed) != 0
}

/// In the child of a fork, where nobody holds it.
pub fn forget_lock() {
    LOCK.store(0, Ordering::Release);
}

fn wake_all(word: &AtomicU32) {
    // SAFETY: a word that outlives all threads.
    let _ =
        unsafe { gadget::call(nr::FUTEX, [word.as_ptr() as usize, FUTEX_WAKE, i32::MAX as usize, 0, 0, 0]) };
}

/// A batch under way.
pub struct Batch {
    board: *mut Board,
}

impl Batch {
    /// None: nothing is trapped in this process. A thread of the program has all its signals blocked.
    pub fn begin() -> Option<Batch> {
        let board = block::board();
        if board.is_null() {
            return None;
        }
        lock();
        let batch = Batch { board };
        batch.generation().fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Some(batch)
    }

    fn generation(&self) -> &AtomicU32 {
        // SAFETY: the board outlives all threads, and the field is accessed as an atomic only.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.board).generation) }
    }

    /// The first part of [start, end) that is in use, in whole pages.
    pub fn first_in_use(&self, start: usize, end: usize) -> Option<(usize, usize)> {
        let mut first: Option<(usize, usize)> = None;
        each_in_use(|from, to| {
            let (from, to) = (from.max(start), to.min(end));
            first = match first {
                _ if from >= to => first,
                // What adjoins is one.
                Some((low, high)) if from <= high && low <= to => Some((low.min(from), high.max(to))),
                Some((low, _)) if low < from => first,
                _ => Some((from, to)),
            };
        });
        first
    }

    /// [start, end) is about to be registered.
    pub fn prepare(&self, start: usize, end: usize) {
        each_in_use(|from, to| {
            let (from, to) = (from.max(start), to.min(end));
            if from < to {
                populate(from, to);
            }
        });
        extend(self.board, start.saturating_sub(GROWS_BY) as u64, end as u64);
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.generation().fetch_add(1, Ordering::SeqCst);
        // SAFETY: the board outlives all threads, and the field is accessed as an atomic only.
        let waiting = unsafe { AtomicU32::from_ptr(&raw mut (*self.board).waiting) };
        if waiting.load(Ordering::SeqCst) != 0 {
            wake_all(self.generation());
        }
        unlock();
    }
}

/// Are there calls that would have to know what is registered?
pub fn is_needed() -> bool {
    !block::board().is_null()
}

/// Memory that a thread has just got from the kernel, and nobody knows yet, may be registered from now on.
/// With all signals blocked.
pub fn note_new(start: usize, len: usize) {
    let board = block::board();
    if board.is_null() {
        return;
    }
    lock();
    extend(board, start.saturating_sub(GROWS_BY) as u64, start.saturating_add(len) as u64);
    unlock();
}

/// Makes pages present, as by a read, without changing any. If a part of it cannot be (it is not mapped, or
/// is registered already and away: then it was touched by its user) the rest is.
fn populate(start: usize, end: usize) {
    // SAFETY: a read of each page.
    let all =
        |from, len| unsafe { gadget::call(nr::MADVISE, [from, len, MADV_POPULATE_READ, 0, 0, 0]).is_ok() };
    if !all(start, end - start) {
        (start..end).step_by(PAGE).for_each(|page| _ = all(page, PAGE));
    }
}

/// Calls `each` with whatever calls are using, and with what the kernel touches by itself, in whole pages.
fn each_in_use(mut each: impl FnMut(usize, usize)) {
    let mut told = |range: RangeInUse| {
        let (start, end) = (range.start as usize, range.end as usize);
        if start < end {
            each(start & !(PAGE - 1), end.checked_next_multiple_of(PAGE).unwrap_or(!(PAGE - 1)));
        }
    };
    for block in block::blocks() {
        ranges_of(block, &mut told);
    }
}

fn ranges_of(block: *mut Block, told: &mut impl FnMut(RangeInUse)) {
    // SAFETY: blocks are never given back; what is read while it changes is of a call that is over, or of one
    // that waits (`in_use.rs`).
    unsafe {
        let slot = &raw mut (*block).slot;
        let count = AtomicU32::from_ptr(&raw mut (*slot).count).load(Ordering::Acquire) as usize;
        for index in 0..count.min(SLOT_RANGES) {
            told((&raw const (*slot).ranges).cast::<RangeInUse>().add(index).read_volatile());
        }
        let kept = &raw const (*block).kept;
        for index in 0..(&*kept).len() {
            told(kept.cast::<RangeInUse>().add(index).read_volatile());
        }
    }
}

/// Has `Board::managed` name [start, end). Under the lock.
fn extend(board: *mut Board, start: u64, end: u64) {
    // SAFETY: the board outlives all threads; only who has the lock writes these fields.
    unsafe {
        let count_field = &raw mut (*board).managed_count;
        let first = (&raw mut (*board).managed).cast::<RangeInUse>();
        let count = (count_field.read_volatile() as usize).min(MANAGED_RANGES);
        let distance = |index: usize| {
            let range = first.add(index).read_volatile();
            range.start.saturating_sub(end).max(start.saturating_sub(range.end))
        };
        let nearest = (0..count).min_by_key(|index| distance(*index));
        match nearest {
            Some(index) if count == MANAGED_RANGES || distance(index) < NEAR => {
                let range = first.add(index);
                let before = range.read_volatile();
                (&raw mut (*range).start).write_volatile(before.start.min(start));
                (&raw mut (*range).end).write_volatile(before.end.max(end));
            }
            _ => {
                first.add(count).write_volatile(RangeInUse { start, end });
                AtomicU32::from_ptr(count_field).store(count as u32 + 1, Ordering::Release);
            }
        }
    }
}
