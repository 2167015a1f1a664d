//! Memory that the kernel touches when a thread ends: it is noted, and no MOVE takes it.
//!
//! ```text
//!   thread:   note ─ wait while the MOVE of before is under way ─ touch
//!   evictor:  moves + 1 (odd) ─ which of these pages are noted? MOVE the others ─ moves + 1 (even)
//! ```
//!
//! Either the evictor sees the note, or the thread sees the odd count and waits for its end; what was moved
//! by then comes back by the touch, and stays. A note is never taken back. If there are more than there is
//! room for, the oldest gives way.
//!
//! What it does not do: find that memory (`hooks/threads.rs`), or touch it.

use crate::common::sync::{AtomicU32, AtomicUsize, Ordering, fence};
use crate::machine::sys::{self, PAGE};
use crate::supervisor::control::own_control;

/// How much of `struct pthread` is noted: in glibc the thread id and the list of robust locks lie at 0x2d0.
pub const NOTED_BYTES: usize = 1 << 10;
/// The number of stacks: 32 KiB, of which pages that no thread needed are never touched.
const NOTES_MAX: usize = 4096;
/// A MOVE takes 15 µs at most, if nobody has to wait for its lock.
const SPINS: u32 = 2000;

/// In this order: what a process of one thread writes lies in front, behind what else each process writes.
#[repr(C)]
struct Notes {
    /// Notes that were begun; beyond NOTES_MAX they replace the oldest.
    begun: AtomicUsize,
    /// Odd while a MOVE is under way.
    moves: AtomicU32,
    /// Where `struct pthread` of a thread begins; 0: free, as all after it are.
    notes: [AtomicUsize; NOTES_MAX],
}

// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data.threads")]
static NOTES: Notes = Notes {
    begun: AtomicUsize::new(0),
    moves: AtomicU32::new(0),
    notes: [const { AtomicUsize::new(0) }; NOTES_MAX],
};

/// Notes what begins there, and returns when no MOVE is under way that may not have seen the note.
pub fn note(own: usize) {
    write(own);
    fence(Ordering::SeqCst);
    wait_for_move();
}

fn write(own: usize) {
    let used = NOTES.begun.load(Ordering::Acquire).min(NOTES_MAX);
    // A note that is not yet written is not this thread's.
    if NOTES.notes.iter().take(used).any(|note| note.load(Ordering::Relaxed) == own) {
        return;
    }
    let index = NOTES.begun.fetch_add(1, Ordering::SeqCst) % NOTES_MAX;
    if let Some(note) = NOTES.notes.get(index) {
        note.store(own, Ordering::SeqCst);
    }
}

/// Returns when a MOVE that may not have seen the note has ended.
fn wait_for_move() {
    let seen = NOTES.moves.load(Ordering::SeqCst);
    // In the child of a raw clone nothing moves: it has no evictor, only a copy of the count.
    if seen.is_multiple_of(2) || own_control().is_none() {
        return;
    }
    let mut spins = 0;
    while NOTES.moves.load(Ordering::SeqCst) == seen {
        spins += 1;
        if spins < SPINS {
            crate::common::sync::spin_hint();
        } else {
            sys::yield_now();
        }
    }
}

/// No MOVE is under way: called by an evictor that begins. The child of a fork has a copy of its parent's
/// count.
pub fn reset_moves() {
    NOTES.moves.store(0, Ordering::SeqCst);
}

/// A MOVE is under way until this is dropped.
pub struct Move(());

impl Move {
    pub fn begin() -> Move {
        NOTES.moves.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Move(())
    }

    /// How many of `pages` pages from `start` on can be moved before the first noted one.
    pub fn unnoted(&self, start: usize, pages: usize) -> usize {
        let used = NOTES.begun.load(Ordering::SeqCst).min(NOTES_MAX);
        let end = start.saturating_add(pages * PAGE);
        let notes = NOTES.notes.iter().take(used).map(|note| note.load(Ordering::SeqCst));
        let first = notes
            .filter(|own| *own < end && own.saturating_add(NOTED_BYTES) > start)
            .map(|own| (own & !(PAGE - 1)).max(start))
            .min();
        first.map_or(pages, |first| (first - start) / PAGE)
    }
}

impl Drop for Move {
    fn drop(&mut self) {
        NOTES.moves.fetch_add(1, Ordering::SeqCst);
    }
}
