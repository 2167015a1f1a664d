//! A page comes back, in the thread that needs it.
//!
//! ```text
//!   SWAPPED ─▶ FILLING by compare and exchange: one owner; so its neighbours, as far as they are SWAPPED too
//!   one thread in the process:   GUARD_REMOVE ─ bytes are copied into the pages
//!   else, a window:              mprotect NONE ─ GUARD_REMOVE ─ bytes by /proc/self/mem ─ mprotect as it was
//!   a userfaultfd:               UFFDIO_COPY (`holes.rs`)
//!   FILLING ─▶ NONE, whoever waits is woken
//! ```
//!
//! GUARD_REMOVE shows a page of zeros before any byte is there, so another thread must not be able to look:
//! without protection it faults, finds FILLING, and waits.
//!
//! A page whose bytes are not to be had ends the process.

use crate::common::sync::AtomicU64;
use core::mem::MaybeUninit;

use super::gate::{self, Inside};
use super::kernel::{self, end};
use super::rules::{self, Rule};
use super::run::{Run, claim, open, protect};
use super::source::{self, COUNTERS, Source, count};
use super::{channel, from_pool, holes, notes, supervisor, table};
use crate::common::words::{EVICTING, FILLING, SWAPPED, Word};
use crate::machine::sys::PAGE;
use crate::thread::block;

/// Pages that are written at once.
const PIECE: usize = 4;

/// Brings a page that is away, or waits until it has come or stays. False: there was nothing to do.
pub fn settle(page: usize) -> bool {
    settle_for(page, false)
}

/// As `settle`. `only_reads`: so does the access for which it is needed.
pub fn settle_for(page: usize, only_reads: bool) -> bool {
    let mut has_waited = false;
    loop {
        let Some(word) = table::find(page) else { return has_waited };
        let inside = gate::enter();
        let seen = table::load(word);
        match seen.state() {
            SWAPPED if channel::is_there() => {
                let is_brought = from_pool::bring(&inside, page);
                drop(inside);
                if is_brought {
                    notes::tell();
                    return true;
                }
                supervisor::ask(page, only_reads);
                has_waited = true;
            }
            SWAPPED => {
                if table::turn(word, seen, seen.filling()) {
                    fill(&inside, page, seen.prot());
                    return true;
                }
            }
            EVICTING | FILLING => {
                drop(inside);
                count(&COUNTERS.waits, 1);
                table::wait_for(word, seen);
                has_waited = true;
            }
            _ => return has_waited,
        }
    }
}

/// Brings all of [start, end) that is away.
pub fn settle_all(start: usize, end: usize) {
    let mut at = start;
    while let Some((page, word)) = table::next(at, end) {
        if matches!(table::load(word).state(), SWAPPED | EVICTING | FILLING) {
            settle(page);
        }
        at = page + PAGE;
    }
}

/// The page is FILLING, by the caller; its neighbours are taken along.
fn fill(_inside: &Inside, page: usize, prot: u64) {
    let block = rules::fill_at_once() * PAGE;
    let first = page & !(block - 1);
    let mut run = Run { start: page, pages: 1, prot: prot as usize };
    while run.start + run.len() < first + block && claim(run.start + run.len(), prot) {
        run.pages += 1;
    }
    while run.start > first && claim(run.start - PAGE, prot) {
        run.start -= PAGE;
        run.pages += 1;
    }
    let Some(source) = source::get() else { end("has pages away, and nowhere to read them from") };
    if holes::are_registered() {
        fill_by_copy(&run, &source);
        count(&COUNTERS.by_window, run.pages);
    } else if block::is_alone() || !rules::holds(Rule::Window) {
        fill_in_place(&run, &source);
    } else {
        fill_by_window(&run, &source);
        count(&COUNTERS.by_window, run.pages);
    }
    for (_, word) in run.words() {
        let filled = table::load(word);
        table::finish(word, Word::EMPTY);
        source::release(filled);
    }
    count(&COUNTERS.brought, run.pages);
}

fn read(source: &Source, word: &AtomicU64, to: usize) {
    // SAFETY: there is room for a page.
    if unsafe { (source.load)(table::load(word).slot(), to as *mut u8) } != 0 {
        end("loses a page: its bytes cannot be read");
    }
}

fn fill_by_copy(run: &Run, source: &Source) {
    // On the stack, which is the agent's.
    let mut bytes = MaybeUninit::<[u8; PAGE]>::uninit();
    for (page, word) in run.words() {
        if table::load(word).is_closed() {
            holes::zeros(page, PAGE);
            continue;
        }
        read(source, word, bytes.as_mut_ptr() as usize);
        holes::copy(page, bytes.as_ptr() as usize, PAGE);
    }
}

fn fill_in_place(run: &Run, source: &Source) {
    open(run);
    if !kernel::is_writable(run.prot) {
        return fill_through(run, source);
    }
    for (page, word) in run.words() {
        read(source, word, page);
    }
}

fn fill_by_window(run: &Run, source: &Source) {
    if run.prot != 0 {
        protect(run, 0);
    }
    open(run);
    fill_through(run, source);
    if run.prot != 0 {
        protect(run, run.prot);
    }
}

/// Whatever the protection is.
fn fill_through(run: &Run, source: &Source) {
    // On the stack, which is the agent's.
    let mut bytes = MaybeUninit::<[[u8; PAGE]; PIECE]>::uninit();
    let bytes_at = bytes.as_mut_ptr() as usize;
    let mut start = run.start;
    while start < run.start + run.len() {
        let end_at = (start + PIECE * PAGE).min(run.start + run.len());
        for (page, word) in run.words().filter(|(page, _)| (start..end_at).contains(page)) {
            read(source, word, bytes_at + (page - start));
        }
        // SAFETY: the pages are FILLING; the bytes are as many.
        if !unsafe { kernel::write_through(start, bytes_at, end_at - start) } {
            end("cannot bring a page back: /proc/self/mem does not write it");
        }
        start = end_at;
    }
}
