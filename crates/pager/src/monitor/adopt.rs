//! Adopting: pages that are in memory already when their range is registered become managed.
//!
//! A page may be adopted only where it certainly lies in what is registered. MOVE takes any page, and one
//! that is taken out of a mapping that is not registered reads as zero to its owner, without a fault.
//!
//! ```text
//!   read the maps ── register each range ── read the maps again ── events read ── here
//!        └── a part is unmapped: no event,         │                  └── of what was unmapped after it was
//!            for it is not registered yet;         │                      registered
//!                                                  └── is the range within one mapping?
//!            mapped again it is another one
//! ```
//!
//! A mapping is registered as a whole or not at all, and one that is registered never merges with one that is
//! not. So a range that lies in one mapping after the registration, and of which nothing was unmapped since
//! (which would have been told), is registered. The others wait for the next search.

use crate::process::Process;
use crate::process::growth::Registered;
use crate::process::ranges::{Range, Ranges};
use crate::run::Run;
use crate::times::{EARLIER_CHANGES, EARLIER_CHANGES_STEP, now_us, us_of};
use memspill_engine::units::{PAGE_SIZE, Vpn};
use std::io;
use std::time::Instant;

/// Pages are adopted in pieces of so many, each without an event in between.
const ADOPT_PAGES: u64 = 2048;
/// Ranges with such a gap between them are scanned by one call: what it finds in the gap is left out.
const ADOPT_GAP_BYTES: u64 = 256 << 10;

/// Adopt the pages of ranges that have just been registered, each within one mapping. Ranges that may not be
/// registered any more are looked at again later.
pub fn adopt_registered(run: &Run, process: &Process, ranges: &[Range]) {
    if !ranges.is_empty() {
        let certain = match wait_for_earlier_changes(run, process) {
            true => certain_of(process, ranges),
            false => Vec::new(),
        };
        let uncertain = certain.iter().copied().collect::<Ranges>().missing_of(ranges);
        process.growth.lock_ranges().look_again(&uncertain);
        adopt(run, process, &certain);
    }
    process.growth.end_noting_dropped();
}

/// If nobody tells of pages that a program touches first ([`Port::tells_each_touch`]), look for them once
/// much has come since the last look.
///
/// [`Port::tells_each_touch`]: crate::process::port::Port::tells_each_touch
pub fn adopt_grown(run: &Run, process: &Process) {
    let growth = &process.growth;
    let begun = Instant::now();
    let is_watched = !process.memory.port.tells_each_touch() && growth.is_registered();
    if !is_watched || !growth.is_walk_due(us_of(begun)) {
        return;
    }
    let ranges: Vec<Range> = growth.lock_ranges().ranges().iter().collect();
    let unmanaged_bytes = growth.unmanaged_bytes();
    if adopt(run, process, &ranges) {
        growth.set_left_bytes(growth.unmanaged_bytes());
        let found_bytes = unmanaged_bytes.saturating_sub(growth.unmanaged_bytes());
        growth.note_walk(now_us(), begun.elapsed(), found_bytes);
    }
}

/// Wait until the events of all changes that were under way when ranges were registered, and searched again,
/// have been read. False if that takes too long.
///
/// For forks too: a child that was on its way has the ranges unregistered, so it must not inherit what is
/// adopted of them: taken out there, a page would be lost.
fn wait_for_earlier_changes(run: &Run, process: &Process) -> bool {
    let start = Instant::now();
    while process.memory.port.is_changing() {
        if start.elapsed() > EARLIER_CHANGES || run.is_stopping() {
            return false;
        }
        std::thread::sleep(EARLIER_CHANGES_STEP);
    }
    true
}

/// The ranges that are registered to the last page. From here on they count as such.
fn certain_of(process: &Process, ranges: &[Range]) -> Vec<Range> {
    let mut registered = process.growth.lock_ranges();
    let _fill_guard = process.space.gate.enter_fill();
    let changes = process.growth.lock_changes();
    let is_whole = |(start, end): &&Range| !changes.has_unmapped(*start, *end);
    let certain: Vec<Range> = ranges.iter().filter(is_whole).copied().collect();
    registered.insert(&certain);
    certain
}

/// Piece by piece, inside the gate, and without what events took away since the monitor last searched: such a
/// range may be mapped anew, unregistered. (A page of it that was adopted and moved out would read as zero to
/// its owner, without a fault.) An event that is not read yet makes MOVE refuse, and its processing takes
/// back what was adopted. Nor is adopted what MADV_DONTNEED takes away: its pages go some time after the
/// event was read, and must not be saved meanwhile.
///
/// False: it broke off.
fn adopt(run: &Run, process: &Process, ranges: &[Range]) -> bool {
    let mut registered = process.growth.lock_ranges();
    if !registered.open_pagemap(process.memory.proc_id()) {
        return false;
    }
    let mut is_whole = true;
    let wanted: Ranges = ranges.iter().copied().collect();
    let near: Vec<Range> = wanted.iter().collect();
    for near in near.chunk_by(|below, above| above.0 - below.1 <= ADOPT_GAP_BYTES) {
        let (mut at, end) = (near[0].0, near[near.len() - 1].1);
        while at < end && !run.is_stopping() {
            match adopt_piece(run, process, &registered, &wanted, (at, end)) {
                Ok(walked_to) if walked_to > at => at = walked_to,
                Ok(_) => {
                    is_whole = false;
                    break;
                }
                Err(e) => {
                    is_whole = false;
                    if run.settings.verbose {
                        eprintln!("memspill: PAGEMAP_SCAN of process {}: {e}", process.memory.pid());
                    }
                    break;
                }
            }
        }
    }
    run.update_account();
    is_whole && !run.is_stopping()
}

/// Adopt the first pages of a range, of those that are wanted. Returns how far that went.
fn adopt_piece(
    run: &Run,
    process: &Process,
    registered: &Registered,
    wanted: &Ranges,
    range: Range,
) -> io::Result<u64> {
    let _fill_guard = process.space.gate.enter_fill();
    // If nobody puts a page in place that has vanished, none may leave between the look and the table: a page
    // of zeros that has just left has no word, and would be taken for one that is there.
    let _batch = (!process.memory.port.tells_each_touch()).then(|| process.hold_batch());
    let (present, walked_to) = registered.present(wanted, range, ADOPT_PAGES)?;
    let adopt = |(from, to): &Range| {
        process.space.adopt(run.engine.swap(), Vpn::from_addr(*from), Vpn::from_addr(*to))
    };
    let adopted: u64 = process.growth.without_lost(&present).iter().map(adopt).sum();
    // Pages that were counted as unmanaged until now are managed from here on.
    process.growth.less_unmanaged(adopted * PAGE_SIZE as u64);
    run.account.less_unmanaged(adopted * PAGE_SIZE as u64);
    Ok(walked_to)
}
