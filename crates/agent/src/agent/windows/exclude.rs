//! Pages that never leave: those that the kernel writes by itself, outside of any call, where it cannot wait
//! for them (thread id, list of robust locks, rseq), and those that the child of a fork gets empty.

use super::{fill, gate, table};
use crate::sys::PAGE;
use crate::words::{EXCLUDED, FOR_FORK, FOR_KERNEL, NONE, Word};

/// [start, start + len) never leaves from now on, and is there.
pub fn exclude(start: usize, len: usize, why: u64) {
    let end = start.saturating_add(len).min(table::TOP);
    let mut page = start & !(PAGE - 1);
    while page < end && len != 0 {
        exclude_page(page, why);
        page += PAGE;
    }
}

fn exclude_page(page: usize, why: u64) {
    loop {
        {
            // The word is obtained inside too: with a fork beside the making of a leaf, the child could have
            // the lock on making as held, by a thread that it has not.
            let _inside = gate::enter();
            // No room for the word: nothing there can be taken out either.
            let Ok(word) = table::obtain(page) else { return };
            let seen = table::load(word);
            if matches!(seen.state(), NONE | EXCLUDED)
                && table::turn(word, seen, Word::excluded(seen.reasons() | why))
            {
                return;
            }
        }
        fill::settle(page);
    }
}

/// The reason is none any more.
pub fn include(start: usize, len: usize, why: u64) {
    let _inside = gate::enter();
    let mut at = start;
    while let Some((page, word)) = table::next(at, start.saturating_add(len)) {
        let seen = table::load(word);
        if seen.state() == EXCLUDED {
            let reasons = seen.reasons() & !why;
            let after = if reasons == 0 { Word::EMPTY } else { Word::excluded(reasons) };
            table::turn(word, seen, after);
        }
        at = page + PAGE;
    }
}

const SET_TID_ADDRESS: usize = 218;
const SET_ROBUST_LIST: usize = 273;
const RSEQ: usize = 334;
const MADVISE: usize = 28;
const WIPEONFORK: usize = 18;
const KEEPONFORK: usize = 19;

/// What a call that the program is about to make asks the kernel to do later.
pub fn before_call(number: usize, args: &[usize; 6]) {
    let [first, second, third, ..] = *args;
    let advice = third as u32 as usize;
    match number {
        SET_TID_ADDRESS => exclude(first, 4, FOR_KERNEL),
        SET_ROBUST_LIST | RSEQ if second <= PAGE => exclude(first, second, FOR_KERNEL),
        MADVISE if advice == WIPEONFORK => exclude(first, second, FOR_FORK),
        MADVISE if advice == KEEPONFORK => include(first, second, FOR_FORK),
        _ => {}
    }
}

/// Calls of which `before_call` or `needed_by` may have to know.
pub fn concerns(number: usize) -> bool {
    matches!(number, SET_TID_ADDRESS | SET_ROBUST_LIST | RSEQ | MADVISE | MLOCK | MLOCK2 | MLOCKALL | MSEAL)
}

const MLOCK: usize = 149;
const MLOCKALL: usize = 151;
const MLOCK2: usize = 325;
const MSEAL: usize = 462;

/// Memory that a call must find there, though it does not touch it as others do: [start, end). With markers
/// in it locked and sealed memory cannot be filled later.
pub fn needed_by(number: usize, args: &[usize; 6]) -> Option<(usize, usize)> {
    let [start, len, ..] = *args;
    let end = start.saturating_add(len).saturating_add(PAGE - 1);
    match number {
        MLOCK | MLOCK2 | MSEAL => Some((start, end)),
        MLOCKALL => Some((0, table::TOP)),
        _ => None,
    }
}
