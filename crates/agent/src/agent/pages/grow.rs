//! New memory is closed: markers stand in it before anybody has touched it. So a program that grows faults,
//! and waits where there is no room, as it would under a userfaultfd; without that it could fill any amount
//! before somebody looks.
//!
//! ```text
//!   mmap, brk, mremap ─ alone in the gate ─ markers in all that is new, words SWAPPED ─ told as UNMAP
//!   first touch ─▶ SIGSEGV ─▶ FAULT ─▶ the supervisor knows of no page there: room, then ZEROS for some
//! ```
//!
//! What is closed: plain private memory that can be read and written, when memory is tight; and at any time
//! what is large beside the budget (`Link::closed_bytes`). A mapping that is larger than any program would
//! fill is left open: its markers and words are 16 bytes a page.
//!
//! Memory that was reserved without access, and is opened by mprotect as it is needed (arenas of malloc,
//! heaps of runtimes), is new when it can be written for the first time. The part of it that was never
//! touched, by the kernel's word, is closed before the call, while nobody can write there.
//!
//! Memory that a running program has mapped and not touched is closed as if it were mapped now.
//!
//! Not closed: what is locked, populated, or a stack; and what was mapped before memory was tight. The
//! supervisor sees by looking what is touched there. What the program has emptied: `emptied.rs`.

use super::kernel::{self, Mapping, READ_WRITE};
use super::reconcile::{self, make};
use super::supervisor::{self, Changing};
use super::{gate, holes, table};
use crate::common::link::UNMAP;
use crate::common::sync::{AtomicUsize, Ordering};
use crate::machine::sys::{self, PAGE, PROT_NONE, Result, nr};

const MAP_STACK: usize = 0x2_0000;
/// Shorter ranges that mprotect opens are left alone: each is a message to the supervisor.
const OPENED_MIN: usize = 16 * PAGE;

/// The last stack that was mapped: its protection is set next, by the C library. In .data by force: this is
/// not to be swapped out.
#[unsafe(link_section = ".data")]
static STACK: AtomicUsize = AtomicUsize::new(0);

/// Kinds of memory that are not closed.
const OTHERS: usize = sys::MAP_GROWSDOWN | sys::MAP_LOCKED | sys::MAP_POPULATE | sys::MAP_HUGETLB | MAP_STACK;

/// The result of an mmap whose memory is closed. None: it is not.
pub fn mmap(args: [usize; 6]) -> Option<Result<usize>> {
    let [addr, len, prot, flags, ..] = args;
    let is_plain = flags & sys::MAP_TYPE == sys::MAP_PRIVATE && flags & sys::MAP_ANONYMOUS != 0;
    if !is_plain || flags & OTHERS != 0 || !kernel::is_writable(prot) || !supervisor::closes(addr, len) {
        return None;
    }
    let is_fixed = flags & sys::MAP_FIXED != 0;
    let _alone = supervisor::enter_to_change();
    let changing = Changing::begin();
    // Another thread may know the place already: it faults, and waits for the gate.
    let first = if is_fixed { [addr, len, PROT_NONE, flags, args[4], args[5]] } else { args };
    let made = make(nr::MMAP, first).and_then(|at| {
        let end = at.saturating_add(len).next_multiple_of(PAGE);
        close(&changing, at, end, prot);
        if is_fixed {
            // SAFETY: the program's own request, the second half of it.
            unsafe { kernel::protect(at, end - at, prot) }?;
        }
        Ok(at)
    });
    if made.is_err() && is_fixed {
        reconcile::reconcile(addr, addr.saturating_add(len).next_multiple_of(PAGE), Some(&changing));
    }
    Some(made)
}

/// Closes [from, to), which is new, where it is to be. The caller is alone in the gate, and tells of it.
pub fn close_if_wanted(changing: &Changing, from: usize, to: usize) {
    if from < to && supervisor::closes(from, to - from) {
        close(changing, from, to, READ_WRITE);
    }
}

/// Maps memory that is not closed. A stack is not closed either when it gets its protection: a thread touches
/// little of it.
pub fn map_open(args: [usize; 6]) -> Result<usize> {
    let [_, len, _, flags, ..] = args;
    let _alone = holes::enter_to_map();
    let made = make(nr::MMAP, args);
    if let Ok(at) = made {
        table::forget_registered(at, at.saturating_add(len));
        if flags & MAP_STACK != 0 {
            STACK.store(at, Ordering::Relaxed);
        }
    }
    made
}

/// Is memory of so many bytes to be closed that is about to get this protection?
pub fn closes_opened(from: usize, len: usize, prot: usize) -> bool {
    len >= OPENED_MIN && kernel::is_writable(prot) && supervisor::closes(from, len)
}

/// Closes what of [from, to) was never touched, and cannot be written yet. The caller is alone in the gate,
/// and makes it writable next.
pub fn close_untouched(changing: &Changing, from: usize, to: usize) {
    let mut at = from;
    while let Some(mapping) = kernel::mapping_from(at).filter(|mapping| mapping.start < to) {
        let (start, end) = (mapping.start.max(at), mapping.end.min(to));
        let is_stack = (mapping.start..mapping.end).contains(&STACK.load(Ordering::Relaxed));
        if mapping.is_plain && !kernel::is_writable(mapping.prot) && !is_stack {
            kernel::each_untouched(start, end, |from, to| {
                each_unknown(from, to, |from, to| close(changing, from, to, mapping.prot));
            });
        }
        at = mapping.end;
    }
}

/// Runs of [from, to) without a word: what has one is away, or is to stay.
fn each_unknown(from: usize, to: usize, found: impl Fn(usize, usize)) {
    let mut at = from;
    while at < to {
        let known = table::next(at, to).map_or(to, |(page, _)| page);
        if known - at >= OPENED_MIN {
            found(at, known);
        }
        at = known + PAGE;
    }
}

/// Closes what a program that runs already has never touched, as it joins: all its threads stand still, and
/// the supervisor knows nothing of its pages.
pub fn close_all_untouched() {
    let _alone = gate::enter_alone();
    let mut at = 0;
    while let Some(mapping) = kernel::mapping_from(at).filter(|mapping| mapping.start < table::TOP) {
        let Mapping { start, end, prot, is_plain } = mapping;
        if is_plain && kernel::is_writable(prot) && supervisor::is_large(end - start) {
            kernel::each_untouched(start, end.min(table::TOP), |from, to| {
                if supervisor::closes(from, to - from) {
                    each_unknown(from, to, |from, to| holes::close(from, to, prot));
                }
            });
        }
        at = end;
    }
}

fn close(changing: &Changing, from: usize, to: usize, prot: usize) {
    reconcile::drop_all(from, to);
    // The supervisor's knowledge of pages that were here before would be taken for these.
    changing.tell(UNMAP, from, to, 0, true);
    holes::close(from, to, prot);
}
