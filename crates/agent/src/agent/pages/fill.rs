//! A page comes back, in the thread that needs it.
//!
//! ```text
//!   SWAPPED ─▶ FILLING by compare and exchange: one owner; so its neighbours, as far as they are SWAPPED too
//!   its bytes are put into the hole (`holes/`)
//!   FILLING ─▶ NONE, whoever waits is woken
//! ```
//!
//! A page whose bytes are not to be had ends the process.

use crate::common::sync::AtomicU64;
use core::mem::MaybeUninit;

use super::gate::{self, Inside};
use super::kernel::end;
use super::run::{self, Run, claim};
use super::source::{self, COUNTERS, Source, count};
use super::{channel, from_pool, holes, notes, rules, supervisor, table, write_protect};
use crate::common::link::{FAULT, READ_FAULT, WRITE};
use crate::common::rules::{Rule, holds};
use crate::common::words::{EVICTING, FILLING, PROTECTED, SWAPPED, Word};
use crate::machine::sys::PAGE;

/// Pages that are read at once.
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
                supervisor::ask_for(page, if only_reads { READ_FAULT } else { FAULT }, SWAPPED);
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
            PROTECTED if !only_reads => {
                if channel::is_there() {
                    drop(inside);
                    supervisor::ask_for(page, WRITE, PROTECTED);
                } else {
                    write_protect::allow(page, 1);
                }
                has_waited = true;
            }
            _ => return has_waited,
        }
    }
}

/// Brings all of [start, end) that is away; if it is to be written, none of it is protected either.
pub fn settle_all(start: usize, end: usize, writes: bool) {
    let mut at = start;
    while let Some((page, word)) = table::next(at, end) {
        match table::load(word).state() {
            SWAPPED | EVICTING | FILLING => _ = settle_for(page, !writes),
            PROTECTED if writes && holds(Rule::BringToWrite) => _ = settle(page),
            _ => {}
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
    let mut done = 0;
    while done < run.pages {
        done += fill_piece(&run, done, &source);
    }
    for (_, word) in run.words() {
        let filled = table::load(word);
        table::finish(word, Word::EMPTY);
        source::release(filled);
    }
}

/// Fills the pages of a run from one of them on: how many.
fn fill_piece(run: &Run, from: usize, source: &Source) -> usize {
    // On the stack, which is the agent's.
    let mut bytes = MaybeUninit::<[[u8; PAGE]; PIECE]>::uninit();
    let bytes_at = bytes.as_mut_ptr() as usize;
    let start = run.start + from * PAGE;
    let mut pages = 0;
    let stored = run.words().skip(from).take(PIECE).take_while(|(_, word)| !table::load(word).is_closed());
    for (_, word) in stored {
        read(source, word, bytes_at + pages * PAGE);
        pages += 1;
    }
    if pages == 0 {
        holes::fill_zeros(start, PAGE, run.prot);
        return 1;
    }
    run::fill(&Run { start, pages, prot: run.prot }, bytes_at, false);
    pages
}

fn read(source: &Source, word: &AtomicU64, to: usize) {
    // SAFETY: there is room for a page.
    if unsafe { (source.load)(table::load(word).slot(), to as *mut u8) } != 0 {
        end("loses a page: its bytes cannot be read");
    }
}
