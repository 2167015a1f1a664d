//! What the program itself has marked MADV_DONTFORK, where the agent makes the forks and marks all that is
//! managed so (`forks.rs`): these ranges are left out when the agent takes its marks off for a fork.
//!
//! What is unmapped, or mapped anew, has no mark any more. Calls inside the C library are not seen: memory
//! that it gives back while it is marked (which no program can know) would be missing in children.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::machine::sys::{self, PAGE, SignalsBlocked};
use crate::supervisor::state::STATE;

/// Ranges at most: the next mark is refused with EAGAIN.
const RANGES: usize = 256;

type Range = (usize, usize);

struct Marks {
    lock: AtomicU32,
    count: AtomicUsize,
    /// (start, end), the first `count`.
    ranges: UnsafeCell<[Range; RANGES]>,
}

// SAFETY: the ranges are accessed by whoever holds the lock.
unsafe impl Sync for Marks {}

#[unsafe(link_section = ".data")]
static MARKS: Marks =
    Marks { lock: AtomicU32::new(0), count: AtomicUsize::new(0), ranges: UnsafeCell::new([(0, 0); RANGES]) };

/// Calls `change` with the ranges and how many they are; it returns how many they are then.
fn change(change: impl FnOnce(&mut [Range; RANGES], usize) -> usize) {
    // A handler in the middle of this would wait for its own thread.
    let blocked = SignalsBlocked::new();
    while MARKS.lock.swap(1, Ordering::Acquire) != 0 {
        sys::yield_now();
    }
    // SAFETY: the lock is held.
    let ranges = unsafe { &mut *MARKS.ranges.get() };
    let count = change(ranges, MARKS.count.load(Ordering::Relaxed));
    MARKS.count.store(count, Ordering::Relaxed);
    MARKS.lock.store(0, Ordering::Release);
    drop(blocked);
}

fn without(ranges: &mut [Range; RANGES], count: usize, start: usize, end: usize) -> usize {
    let before = *ranges;
    let mut left = 0;
    for (from, to) in before.into_iter().take(count) {
        let apart = to <= start || end <= from;
        let pieces = if apart { [(from, to), (0, 0)] } else { [(from, start), (end, to)] };
        for (from, to) in pieces {
            // Where a hole made two of one and there is no room, the second stays unmarked here: it is
            // inherited, which is what the kernel does by default.
            if from < to
                && let Some(place) = ranges.get_mut(left)
            {
                *place = (from, to);
                left += 1;
            }
        }
    }
    left
}

/// The kernel takes whole pages.
fn end_of(start: usize, len: usize) -> usize {
    start.saturating_add(len).checked_next_multiple_of(PAGE).unwrap_or(usize::MAX)
}

/// The program marks this range. False: there is no room.
pub fn add(start: usize, len: usize) -> bool {
    if STATE.forks.load(Ordering::Relaxed) == 0 {
        return true;
    }
    let (mut added, end) = (false, end_of(start, len));
    change(|ranges, count| {
        let left = without(ranges, count, start, end);
        match ranges.get_mut(left) {
            Some(place) => {
                *place = (start, end);
                added = true;
                left + 1
            }
            None => left,
        }
    });
    added
}

/// It is not marked any more.
pub fn remove(start: usize, len: usize) {
    if MARKS.count.load(Ordering::Relaxed) != 0 {
        change(|ranges, count| without(ranges, count, start, end_of(start, len)));
    }
}

/// A mapping has moved, with its mark.
pub fn moved(from: usize, to: usize, len: usize) {
    if MARKS.count.load(Ordering::Relaxed) != 0 && next_in(from, end_of(from, len)).is_some() {
        remove(from, len);
        add(to, len);
    }
}

/// The first part of [start, end) that is marked.
fn next_in(start: usize, end: usize) -> Option<Range> {
    let mut first: Option<Range> = None;
    change(|ranges, count| {
        for (from, to) in ranges.iter().take(count) {
            let common = (start.max(*from), end.min(*to));
            if common.0 < common.1 && first.is_none_or(|first| common.0 < first.0) {
                first = Some(common);
            }
        }
        count
    });
    first
}

/// Calls `piece(start, end)` for each part of a range that is not marked, until one says Err.
pub fn each_other<E>(
    start: usize,
    end: usize,
    mut piece: impl FnMut(usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    let mut at = start;
    while MARKS.count.load(Ordering::Relaxed) != 0
        && let Some((from, to)) = next_in(at, end)
    {
        if at < from {
            piece(at, from)?;
        }
        at = to;
    }
    if at < end { piece(at, end) } else { Ok(()) }
}
