//! Memory that the program empties (madvise: DONTNEED, FREE) is as new, and new memory is closed (`grow.rs`):
//! allocators empty what they are about to fill again, and would fill any amount before somebody looks.
//!
//! ```text
//!   alone in the gate, for each mapping:
//!     what is there, by the kernel's word ─ the call ─ EVICTING ─ in use by a call: NONE
//!       ─ markers ─ SWAPPED, closed;  what was away: SWAPPED, closed, with the marker that it has
//! ```
//!
//! Only what was there gets markers: a range that was never touched costs nothing, and a marker of the
//! program's own is left alone. A page that a call is using stays open, as the kernel would meet the marker.
//!
//! If nothing is closed, and in ranges that cannot be, the markers are removed that were there.

use super::kernel::{self, Mapping, Present, end};
use super::reconcile::{drop_away, each_away, make, reconcile};
use super::supervisor::{self, Changing};
use super::{holes, source, table, uses};
use crate::common::link::REMOVE;
use crate::common::rules::{Rule, holds};
use crate::common::words::{EVICTING, NONE, Word};
use crate::machine::sys::{ENOMEM, PAGE, Result};

/// Is what this call empties to be closed?
pub fn closes(addr: usize, len: usize) -> bool {
    holes::close_emptied()
        && addr.is_multiple_of(PAGE)
        && addr < table::TOP
        && len <= table::TOP - addr
        && supervisor::closes(addr, len)
}

/// Makes the call for [from, to), and closes what it has emptied.
pub fn close(number: usize, args: [usize; 6], from: usize, to: usize) -> Result<usize> {
    let _alone = supervisor::enter_to_change();
    let changing = Changing::begin();
    let (mut at, mut result) = (from, Ok(0));
    while at < to {
        let mapping = kernel::mapping_from(at).filter(|mapping| mapping.start < to);
        let made = match mapping {
            Some(mapping) if mapping.start <= at => piece(number, args, at, &mapping, to),
            // Nothing is mapped there: the kernel says so, and goes on behind it.
            Some(mapping) => (mapping.start, Err(ENOMEM)),
            None => (to, Err(ENOMEM)),
        };
        match made {
            (end, Ok(_)) => at = end,
            (end, Err(ENOMEM)) => (at, result) = (end, Err(ENOMEM)),
            (_, failed) => {
                result = failed;
                reconcile(at, to, Some(&changing));
                break;
            }
        }
    }
    if at > from {
        changing.tell(REMOVE, from, at, 0, true);
    }
    result
}

/// The first part of what is in a mapping: where it ends, and what the kernel says.
fn piece(
    number: usize,
    args: [usize; 6],
    from: usize,
    mapping: &Mapping,
    to: usize,
) -> (usize, Result<usize>) {
    let to = to.min(mapping.end);
    let is_closed = mapping.is_plain && kernel::is_writable(mapping.prot);
    let present = if is_closed { kernel::present(from, to) } else { Present::none(to) };
    let [_, _, rest @ ..] = args;
    let [advice, d, e, f] = rest;
    let made = make(number, [from, present.end - from, advice, d, e, f]);
    if made.is_ok() && is_closed {
        each_away(from, present.end, |_, word, seen| {
            table::finish(word, Word::closed(mapping.prot as u64));
            source::release(seen);
        });
        present.ranges().for_each(|(start, end)| close_emptied(start, end, mapping.prot));
    } else if made.is_ok() {
        empty(from, present.end);
    }
    (present.end, made)
}

/// All of it was there, and is empty now.
fn close_emptied(from: usize, to: usize, prot: usize) {
    for page in (from..to).step_by(PAGE) {
        // One without a word stays open.
        let Ok(word) = table::obtain(page) else { continue };
        let seen = table::load(word);
        if seen.state() == NONE {
            table::turn(word, seen, seen.evicting());
        }
    }
    let mut at = from;
    while at < to {
        let kept = uses::first_kept(at, to, holds(Rule::InUse));
        if let Some(word) = table::find(kept).filter(|word| kept < to && is_marked(word)) {
            table::finish(word, Word::EMPTY);
        }
        install(at, kept, prot);
        at = kept + PAGE;
    }
}

fn is_marked(word: &crate::common::sync::AtomicU64) -> bool {
    table::load(word).state() == EVICTING
}

/// Markers where the words say so, a call for each run of pages.
fn install(from: usize, to: usize, prot: usize) {
    let mut start = from;
    while start < to {
        let marked = |page: &usize| table::find(*page).is_some_and(is_marked);
        let Some(first) = (start..to).step_by(PAGE).find(marked) else { return };
        let last = (first..to).step_by(PAGE).find(|page| !marked(page)).unwrap_or(to);
        // SAFETY: the program has given the bytes up, and whoever touches the pages waits for the words.
        let is_closed = unsafe { kernel::install_guards(first, last - first) }.is_ok();
        // Memory that is locked takes none. The installed ones go. SAFETY: as above.
        if !is_closed && unsafe { kernel::remove_guards(first, last - first) }.is_err() {
            end("cannot open what it has emptied");
        }
        let after = if is_closed { Word::closed(prot as u64) } else { Word::EMPTY };
        (first..last).step_by(PAGE).filter_map(table::find).for_each(|word| table::finish(word, after));
        start = last;
    }
}

/// Forgets what was in the pages, and leaves nothing closed there. Was something away?
pub fn empty(from: usize, to: usize) -> bool {
    let (mut start, mut stop) = (from, from);
    each_away(from, to, |page, _, _| {
        if page != stop {
            holes::drop_from(start, stop);
            start = page;
        }
        stop = page + PAGE;
    });
    holes::drop_from(start, stop);
    let was_away = drop_away(from, to);
    holes::follow_emptied(from, to);
    was_away
}
