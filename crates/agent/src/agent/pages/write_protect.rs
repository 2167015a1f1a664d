//! Pages that a fork has left shared, protected so that a write to one asks for room first (copy on write).
//!
//! The kernel copies such a page when one of its owners writes to it, without a fault that anybody hears of.
//! The userfaultfd of registered memory (`holes/`) can protect them:
//!
//! ```text
//!   the supervisor's OP_PROTECT, or the child of a fork before it runs on
//!     NONE ─▶ EVICTING ─ in use by a call: NONE ─ UFFDIO_WRITEPROTECT ─▶ PROTECTED
//!   a write: SIGBUS, PROTECTED ─▶ WRITE is asked ─ room ─▶ a delivery, WRITABLE
//!     PROTECTED ─▶ FILLING ─ protection off ─▶ NONE      the write is made again, and the kernel copies
//!   a call that writes there: the same, before it is made
//! ```
//!
//! What must hold: *what is protected has a word that is not NONE*, else a call that writes there would
//! fail. The other way round it does no harm: the kernel forgets protection where a page leaves or moves, and
//! in the child of a fork. And what is PROTECTED is there: a page that goes loses that word with it.
//!
//! Memory that the kernel writes outside of calls is EXCLUDED, and so never protected.
//!
//! What it does not do: say which pages are shared (the supervisor does, `monitor/protect.rs`).

use super::channel::{self, field, word64};
use super::gate::{self, GATE_MS};
use super::kernel::{self, end};
use super::{holes, run, table, uses};
use crate::common::rules::{Rule, holds};
use crate::common::sync::Ordering;
use crate::common::words::{EVICTING, NONE, PROTECTED, Word};
use crate::machine::region;
use crate::machine::sys::{ENOENT, PAGE};
use crate::thread::block;

/// Protects what is there and plain in [from, to), as far as it can be. By the evictor, or by the one thread
/// of a child.
pub fn protect(from: usize, to: usize) {
    if !holes::can_protect() {
        return;
    }
    let to = to.min(table::TOP);
    let mut at = from & !(PAGE - 1);
    while at < to {
        let piece_end = ((at & !(table::GROUP_BYTES - 1)) + table::GROUP_BYTES).min(to);
        if holes::make_ready(at).is_ok() {
            let Some(_inside) = gate::enter_within(GATE_MS) else { return };
            if holes::may_leave(at) {
                protect_piece(at, piece_end);
            }
        }
        at = piece_end;
    }
}

/// All of it is in one group of words. Inside the gate.
fn protect_piece(from: usize, to: usize) {
    for page in (from..to).step_by(PAGE) {
        // No memory for the word: the page stays as it is, and so do all behind it.
        let Ok(word) = table::obtain(page) else { break };
        let seen = table::load(word);
        if seen.state() == NONE {
            table::turn(word, seen, seen.evicting());
        }
    }
    let mut at = from;
    while at < to {
        let kept = uses::first_kept(at, to, holds(Rule::InUse));
        finish(kept, to.min(kept + PAGE), Word::EMPTY);
        let mut start = at;
        while let Some((first, last)) = next_run(start, kept) {
            let is_protected = holes::write_protect(first, last - first, true).is_ok();
            if !is_protected {
                // A part of it may be.
                unprotect_each(first, last);
            }
            let says_so = is_protected && holds(Rule::SayProtected);
            finish(first, last, if says_so { Word::protected() } else { Word::EMPTY });
            start = last;
        }
        at = kept + PAGE;
    }
}

/// The next pages in a row that are marked: neither away nor protected before.
fn next_run(from: usize, to: usize) -> Option<(usize, usize)> {
    let is_marked = |page: &usize| table::find(*page).is_some_and(|word| is_ours(table::load(word)));
    let first = (from..to).step_by(PAGE).find(is_marked)?;
    let last = (first..to).step_by(PAGE).find(|page| !is_marked(page)).unwrap_or(to);
    Some((first, last))
}

/// Only one takes pages out or protects them, and those who are alone mark none meanwhile: a word that is
/// EVICTING, and was NONE, was marked here.
fn is_ours(word: Word) -> bool {
    word.state() == EVICTING && word.as_before() == Word::EMPTY
}

fn finish(from: usize, to: usize, word: Word) {
    for page in (from..to).step_by(PAGE) {
        if let Some(place) = table::find(page).filter(|place| is_ours(table::load(place))) {
            table::finish(place, word);
        }
    }
}

/// Takes the protection off as many of `pages` pages in a row as are PROTECTED, from the first one on: how
/// many those are. For whoever is inside the gate.
pub fn allow(page: usize, pages: usize) -> usize {
    let mut run = run::Run { start: page, pages: 0, prot: 0 };
    while run.pages < pages && claim(page + run.len()) {
        run.pages += 1;
    }
    if run.pages == 0 {
        return 0;
    }
    if !holds(Rule::AllowFirst) {
        run.end();
    }
    if holes::write_protect(page, run.len(), false).is_err() {
        // Several mappings, or one that is not registered any more.
        unprotect_each(page, page + run.len());
    }
    if holds(Rule::AllowFirst) {
        run.end();
    }
    run.pages
}

/// Memory that is not registered is not protected.
fn unprotect_each(from: usize, to: usize) {
    for page in (from..to).step_by(PAGE) {
        match holes::write_protect(page, PAGE, false) {
            Ok(_) | Err(ENOENT) => {}
            Err(_) => end("cannot let a page be written that it has protected"),
        }
    }
}

fn claim(page: usize) -> bool {
    let Some(word) = table::find(page) else { return false };
    let seen = table::load(word);
    seen.state() == PROTECTED && table::turn(word, seen, seen.filling())
}

/// None of [from, to) is protected any more, or there. By whoever is alone in the gate.
pub fn forget(from: usize, to: usize) {
    let mut at = from;
    while let Some((page, word)) = table::next(at, to) {
        if table::load(word).state() == PROTECTED {
            table::finish(word, Word::EMPTY);
        }
        at = page + PAGE;
    }
}

/// The child of a fork was let go: all that it shares is protected, if the supervisor says so.
pub fn child_is_let_go() {
    if !channel::is_there() || word64(field!(protects_shared)).load(Ordering::SeqCst) == 0 {
        return;
    }
    let mut at = 0;
    while let Some(mapping) = kernel::mapping_from(at) {
        at = mapping.end;
        if mapping.is_plain && kernel::is_writable(mapping.prot) {
            protect_of_others(mapping.start, mapping.end);
        }
    }
}

/// Protects what in [from, to) is not the agent's own. A thread's block is written while a fault is being
/// served, also that of a thread which is made later.
fn protect_of_others(from: usize, to: usize) {
    let kept = [uses::TABLES, uses::REGION, uses::IDENT, uses::STAGING].map(uses::kept);
    let own = || kept.into_iter().chain([block::arena(), region::image()]);
    let mut at = from;
    while at < to {
        if let Some((start, len)) = own().find(|(start, len)| at.wrapping_sub(*start) < *len) {
            at = start + len;
            continue;
        }
        let next = own().filter(|(start, len)| *start > at && *len > 0).map(|(start, _)| start).min();
        let end = next.unwrap_or(to).min(to);
        protect(at, end);
        at = end;
    }
}
