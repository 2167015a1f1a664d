//! Pages that never leave: those that the kernel writes by itself, outside of any call, where it cannot wait
//! for them (thread id, list of robust locks and the locks in it, rseq), and those that the child of a fork
//! gets empty.

use super::{fill, gate, kernel, table};
use crate::common::sync::Ordering;
use crate::common::words::{EXCLUDED, FOR_FORK, FOR_KERNEL, NONE, Word};
use crate::machine::gadget;
use crate::machine::robust;
use crate::machine::sys::PAGE;
use crate::supervisor::state::STATE;

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

/// The thread that holds the robust locks of this list is about to end.
pub fn keep_locks_held(list: usize) {
    if let Some(head) = gadget::read(list) {
        robust::each(list, head, gadget::read, |at| exclude(at, size_of::<usize>(), FOR_KERNEL));
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

/// Notes what a call that the program is about to make asks the kernel to do later.
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
const MCL_CURRENT: usize = 1;
const MLOCK2: usize = 325;
const MSEAL: usize = 462;

/// Would the kernel let the process lock all of its memory? If not there is nothing to be brought.
fn may_lock_all() -> bool {
    const RLIMIT_MEMLOCK: usize = 8;
    const PRLIMIT64: usize = 302;
    const CAPGET: usize = 125;
    const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    if STATE.confined.load(Ordering::SeqCst) != 0 {
        // A filter of the program's own may end it for the asking.
        return true;
    }
    let mut limits = [0usize; 2];
    let header = [CAPABILITY_VERSION_3, 0];
    let mut sets = [0u32; 6];
    // SAFETY: the kernel reads two words, and writes into arrays of these sizes.
    let (limited, told) = unsafe {
        let limits = [0, RLIMIT_MEMLOCK, 0, limits.as_mut_ptr() as usize, 0, 0];
        let sets = [header.as_ptr() as usize, sets.as_mut_ptr() as usize, 0, 0, 0, 0];
        (gadget::call(PRLIMIT64, limits), gadget::call(CAPGET, sets))
    };
    let is_privileged = told.is_ok() && sets[0] & 1 << CAP_IPC_LOCK != 0;
    limited.is_err() || is_privileged || kernel::mapped_bytes().is_none_or(|bytes| bytes <= limits[0])
}

/// Memory that a call must find there, though it does not touch it as others do: [start, end). With markers
/// in it locked and sealed memory cannot be filled later.
pub fn needed_by(number: usize, args: &[usize; 6]) -> Option<(usize, usize)> {
    let [start, len, ..] = *args;
    let end = start.saturating_add(len).saturating_add(PAGE - 1);
    match number {
        MLOCK | MLOCK2 | MSEAL => Some((start, end)),
        MLOCKALL if start & MCL_CURRENT != 0 && may_lock_all() => Some((0, table::TOP)),
        _ => None,
    }
}
