//! The words made to follow a change of mappings, by whoever is alone in the gate: what is not there any more
//! is not away, and its slots are given back.

use super::supervisor::Changing;
use super::{kernel, source, table, write_protect};
use crate::common::link::UNMAP;
use crate::common::rules::{Rule, holds};
use crate::common::sync::AtomicU64;
use crate::common::words::{SWAPPED, Word};
use crate::machine::gadget;
use crate::machine::sys::{PAGE, Result};

/// The program's own call.
pub fn make(number: usize, args: [usize; 6]) -> Result<usize> {
    // SAFETY: the program's request; its memory is its own.
    unsafe { gadget::call(number, args) }
}

/// Tells of each page that is away.
pub fn each_away(from: usize, to: usize, mut tell: impl FnMut(usize, &'static AtomicU64, Word)) {
    let mut at = from;
    while let Some((page, word)) = table::next(at, to) {
        let seen = table::load(word);
        if seen.state() == SWAPPED {
            tell(page, word, seen);
        }
        at = page + PAGE;
    }
}

fn release(seen: Word) {
    source::release(seen);
}

/// The mapping is gone. Was something away there?
pub fn drop_all(from: usize, to: usize) -> bool {
    table::forget_registered(from, to);
    let (mut at, mut was_away) = (from, false);
    while let Some((page, word)) = table::next(at, to) {
        let seen = table::load(word);
        table::finish(word, Word::EMPTY);
        if seen.state() == SWAPPED {
            release(seen);
            was_away = true;
        }
        at = page + PAGE;
    }
    was_away
}

/// The content of the pages is gone, and none of the markers is ours. Was something away there?
pub fn drop_away(from: usize, to: usize) -> bool {
    let mut was_away = false;
    each_away(from, to, |_, word, seen| {
        table::finish(word, Word::EMPTY);
        release(seen);
        was_away = true;
    });
    if holds(Rule::ForgetEmptied) {
        write_protect::forget(from, to);
    }
    was_away
}

/// After a call that may have been made in part: what is not mapped is not away, and what is has the
/// protection of its mapping.
pub fn reconcile(from: usize, to: usize, changing: Option<&Changing>) {
    let mut known: Option<kernel::Mapping> = None;
    each_away(from, to, |page, word, seen| {
        if known.as_ref().is_none_or(|mapping| page >= mapping.end) {
            known = kernel::mapping_from(page);
        }
        match &known {
            Some(mapping) if mapping.start <= page && mapping.is_plain => {
                table::turn(word, seen, seen.with_prot(mapping.prot as u64));
            }
            _ => {
                table::finish(word, Word::EMPTY);
                release(seen);
                if let Some(changing) = changing {
                    changing.tell(UNMAP, page, page + PAGE, 0, true);
                }
            }
        }
    });
}
