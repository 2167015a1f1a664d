//! What of a process is registered with its userfaultfd, what of its memory is not managed, and what has
//! become of its mappings since the monitor last looked.
//!
//! ```text
//!   Growth ─┬─ Registered   which ranges are registered, and what is to be looked at again: the monitor's
//!           ├─ Changes      written by whoever reads events or is told of a new mapping; the monitor takes
//!           │               them over at its next look
//!           ├─ dropped      MADV_DONTNEED, noted while the monitor adopts pages
//!           ├─ asked        to be registered though memory is not tight: MADV_PAGEOUT
//!           └─ figures      is it registered at all; bytes that are not managed
//! ```
//!
//! A holder of the lock of [`Registered`] may enter the gate. The other two locks are taken last, and nothing
//! is taken while they are held.
//!
//! What it does not do: register, or adopt (`monitor/register.rs`, `monitor/adopt.rs`).

use crate::proc::{self, Statm};
use crate::process::finder::{Finder, Found, KnownMemory};
use crate::process::only::Only;
use crate::process::ranges::{Range, Ranges};
use crate::times::{WALK_PAUSE, WALK_PAUSE_MAX};
use memspill_engine::units::PAGE_SIZE;
use memspill_uffd::pagemap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// As much of the main stack's top as the arguments and the environment usually take.
const ARGUMENTS_BYTES: u64 = 128 << 10;

/// Growth that is not worth a walk through all of a process.
const SLACK_BYTES: u64 = 256 << 10;
/// Growth up to here may be none, if the last walk found nothing.
const UNSURE_BYTES: u64 = 1 << 20;

/// One process's growth, as far as it is known here.
#[derive(Default)]
pub struct Growth {
    is_registered: AtomicBool,
    unmanaged_bytes: AtomicU64,
    unmanaged_shared_bytes: AtomicU64,
    left_bytes: AtomicU64,
    was_refused: AtomicBool,
    only: OnceLock<Only>,
    next_walk_us: AtomicU64,
    ranges: Mutex<Registered>,
    changes: Mutex<Changes>,
    dropped: Mutex<Option<Ranges>>,
    asked: Mutex<Ranges>,
}

impl Growth {
    /// The child of a fork has registered what its parent had registered.
    pub fn new(is_registered: bool) -> Growth {
        Growth { is_registered: AtomicBool::new(is_registered), ..Growth::default() }
    }

    /// Is all of the process registered? Until memory gets tight only what is asked for, and of a small
    /// process no more later.
    pub fn is_registered(&self) -> bool {
        self.is_registered.load(Ordering::Relaxed)
    }

    pub fn set_registered(&self, is_registered: bool) {
        self.is_registered.store(is_registered, Ordering::Relaxed);
    }

    /// Nothing outside of this range is managed or counted (`memspill attach --arena`). To be called once,
    /// before its memory is counted.
    pub fn set_only(&self, range: Option<Range>) {
        range.into_iter().for_each(|range| _ = self.only.set(Only::new(range)));
    }

    pub fn only(&self) -> Option<Range> {
        self.only.get().map(Only::range)
    }

    /// The part of a process's memory that counts; `managed_bytes` are known. `walk` counts what is in
    /// memory of [`Growth::only`].
    pub fn counted_bytes(
        &self,
        all_bytes: u64,
        managed_bytes: u64,
        walk: impl FnOnce(Range) -> Option<u64>,
    ) -> u64 {
        let counted = |only: &Only| only.bytes(all_bytes, managed_bytes, || walk(only.range()));
        self.only.get().map_or(all_bytes, counted)
    }

    /// Could some of it not be registered, because a userfaultfd of the program's own has it?
    pub fn was_refused(&self) -> bool {
        self.was_refused.load(Ordering::Relaxed)
    }

    pub fn set_was_refused(&self) {
        self.was_refused.store(true, Ordering::Relaxed);
    }

    /// RSS that is not managed, as the monitor last saw it.
    pub fn unmanaged_bytes(&self) -> u64 {
        self.unmanaged_bytes.load(Ordering::Relaxed)
    }

    pub fn set_unmanaged_bytes(&self, bytes: u64) {
        self.unmanaged_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Shared memory that is not managed, where it is counted as this process's.
    pub fn unmanaged_shared_bytes(&self) -> u64 {
        self.unmanaged_shared_bytes.load(Ordering::Relaxed)
    }

    pub fn set_unmanaged_shared_bytes(&self, bytes: u64) {
        self.unmanaged_shared_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The bytes that the last search for pages that nobody tells of has left unmanaged.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes.load(Ordering::Relaxed)
    }

    pub fn set_left_bytes(&self, bytes: u64) {
        self.left_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Is all of it worth a walk, to find pages that nobody tells of?
    pub fn is_walk_due(&self, now_us: u64) -> bool {
        let unmanaged_bytes = self.unmanaged_bytes();
        self.set_left_bytes(self.left_bytes().min(unmanaged_bytes));
        let grown_bytes = unmanaged_bytes - self.left_bytes();
        grown_bytes > SLACK_BYTES
            && (grown_bytes > UNSURE_BYTES || now_us >= self.next_walk_us.load(Ordering::Relaxed))
    }

    /// Such a walk has taken so long, and found so much.
    ///
    /// Pages that are moved out and that threads bring by themselves look like growth, and so does what the
    /// kernel's count of a process is wrong by. At random access every tenth round of the monitor found some
    /// 300 KiB more, and each of its walks nothing.
    pub fn note_walk(&self, end_us: u64, took: Duration, found_bytes: u64) {
        let pause =
            if found_bytes >= SLACK_BYTES { Duration::ZERO } else { (took * WALK_PAUSE).min(WALK_PAUSE_MAX) };
        self.next_walk_us.store(end_us + pause.as_micros() as u64, Ordering::Relaxed);
    }

    /// `bytes` that were not managed are managed from here on.
    pub fn less_unmanaged(&self, bytes: u64) {
        let less = |unmanaged: u64| Some(unmanaged.saturating_sub(bytes));
        let _ = self.unmanaged_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Somebody wants this range swapped out: it is registered at the monitor's next look, whether memory is
    /// tight or not.
    pub fn ask(&self, start: u64, end: u64) {
        self.asked.lock().expect("asked").insert(start, end);
    }

    pub fn take_asked(&self) -> Ranges {
        std::mem::take(&mut self.asked.lock().expect("asked"))
    }

    /// Is all of the range registered, as far as is known here?
    pub fn covers(&self, start: u64, end: u64) -> bool {
        let registered = self.lock_ranges();
        let changes = self.lock_changes();
        let missing = registered.ranges.missing_of(&[(start, end)]);
        changes.announced.missing_of(&missing).is_empty() && !changes.has_unmapped(start, end)
    }

    /// The ranges that are registered.
    pub fn lock_ranges(&self) -> MutexGuard<'_, Registered> {
        self.ranges.lock().expect("registered ranges")
    }

    /// An event has taken this range away, or pages may be in it that were never adopted.
    pub fn note_unmapped(&self, start: u64, end: u64) {
        self.lock_changes().unmap(start, end);
    }

    /// The agent has announced this range, and it was registered before anybody touched it.
    pub fn note_announced(&self, start: u64, end: u64) {
        self.lock_changes().announce(start, end);
    }

    /// What has become of mappings since the monitor last took that over.
    pub fn lock_changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().expect("changes")
    }

    /// From now on ranges are noted that are dropped (MADV_DONTNEED): their pages go some time after the
    /// event was read, and must not be adopted meanwhile.
    pub fn begin_noting_dropped(&self) {
        *self.dropped.lock().expect("dropped") = Some(Ranges::default());
    }

    pub fn end_noting_dropped(&self) {
        *self.dropped.lock().expect("dropped") = None;
    }

    pub fn note_dropped(&self, start: u64, end: u64) {
        self.dropped.lock().expect("dropped").iter_mut().for_each(|ranges| ranges.insert(start, end));
    }

    /// These ranges without what events have unmapped or dropped lately.
    pub fn without_lost(&self, ranges: &[Range]) -> Vec<Range> {
        let left = self.lock_changes().unmapped.missing_of(ranges);
        match &*self.dropped.lock().expect("dropped") {
            Some(dropped) => dropped.missing_of(&left),
            None => left,
        }
    }
}

/// Which ranges of a process are registered, and where the monitor has to look next.
#[derive(Default)]
pub struct Registered {
    ranges: Ranges,
    finder: Finder,
    /// To be looked at again, even if the process's size does not change.
    doubtful: Ranges,
    /// What could not be registered at the last look.
    refused: Vec<Range>,
    /// The top of the main stack, which is registered with the rest of it and stays in memory.
    kept: Option<Range>,
    /// The process's size when the monitor last searched it.
    size: Statm,
    pagemap: Option<File>,
}

impl Registered {
    pub fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// These ranges are registered to the last page.
    pub fn insert(&mut self, ranges: &[Range]) {
        ranges.iter().for_each(|(start, end)| self.ranges.insert(*start, *end));
    }

    pub fn remove(&mut self, start: u64, end: u64) {
        self.ranges.remove(start, end);
    }

    /// The next search goes through these ranges too.
    pub fn look_again(&mut self, ranges: &[Range]) {
        ranges.iter().for_each(|(start, end)| self.doubtful.insert(*start, *end));
    }

    /// Registering these has failed. If that is so again the next time, it will be so for good: a userfaultfd
    /// of the program's own has them.
    pub fn note_refused(&mut self, ranges: Vec<Range>) {
        if ranges != self.refused {
            self.look_again(&ranges);
            self.refused = ranges;
        }
    }

    /// Take over what has become of mappings.
    pub fn apply(&mut self, changes: Changes) {
        for (start, end) in changes.unmapped.iter() {
            self.ranges.remove(start, end);
            self.doubtful.insert(start, end);
        }
        changes.announced.iter().for_each(|(start, end)| self.ranges.insert(start, end));
    }

    /// Search the process for mappings that are not registered, if it has changed or something is to be
    /// looked at again. `own`: the agent's own pages. None: nothing was searched. `slack_bytes` of unmanaged
    /// memory are no reason to read all mappings.
    pub fn find_new(
        &mut self,
        pid: u32,
        size: Statm,
        own: &Ranges,
        unmanaged_bytes: u64,
        slack_bytes: u64,
        fills_reserves: bool,
    ) -> Option<Found> {
        if !self.has_changed(size) && self.doubtful.is_empty() && !self.finder.is_due() {
            return None;
        }
        self.size = size;
        let doubtful = std::mem::take(&mut self.doubtful);
        let known = KnownMemory {
            registered: &self.ranges,
            own,
            doubtful: &doubtful,
            fills_reserves,
            unmanaged_bytes,
            slack_bytes,
        };
        let found = self.finder.find_new(pid, &known).ok()?;
        if let Some((_, start, end)) = found.stack {
            self.kept = Some(top_of_stack(pid, (start, end)));
        }
        Some(found)
    }

    /// Mappings that are not registered and that something of `asked` lies in. Other new mappings are left to
    /// `find_new`.
    pub fn find_asked(
        &mut self,
        pid: u32,
        own: &Ranges,
        asked: &Ranges,
        fills_reserves: bool,
    ) -> Option<Found> {
        let known = KnownMemory {
            registered: &self.ranges,
            own,
            doubtful: asked,
            fills_reserves,
            unmanaged_bytes: 0,
            slack_bytes: 0,
        };
        // With a finder of its own: the one that is kept has to find all else when memory gets tight.
        let mut found = Finder::default().find_new(pid, &known).ok()?;
        if let Some((_, start, end)) = found.stack {
            self.kept = Some(top_of_stack(pid, (start, end)));
        }
        found.new.retain(|new| asked.intersects(new.start, new.end) && !new.is_reserve);
        Some(found)
    }

    /// Has something been mapped, unmapped or made writable since the last search?
    fn has_changed(&self, size: Statm) -> bool {
        size.size_bytes != self.size.size_bytes || size.data_bytes != self.size.data_bytes
    }

    /// As `find_new`, of what is mapped within one range and nothing else.
    pub fn find_within(
        &mut self,
        pid: u32,
        size: Statm,
        own: &Ranges,
        only: Range,
        fills_reserves: bool,
    ) -> Option<Found> {
        let doubtful = std::mem::take(&mut self.doubtful);
        if !self.has_changed(size) && doubtful.is_empty() {
            return None;
        }
        self.size = size;
        let missing: Ranges = self.ranges.missing_of(&[only]).into_iter().collect();
        let mut found = self.find_asked(pid, own, &missing, fills_reserves)?;
        found.new.retain(|new| only.0 <= new.start && new.end <= only.1);
        Some(found)
    }

    /// The ranges of `ranges` that lie within one mapping each, and those that do not.
    pub fn split_by_mapping(&self, pid: u32, ranges: Vec<Range>) -> (Vec<Range>, Vec<Range>) {
        self.finder.split_by_mapping(pid, ranges)
    }

    /// Open what [`Registered::present`] reads. False: the process is gone.
    pub fn open_pagemap(&mut self, pid: u32) -> bool {
        if self.pagemap.is_none() {
            self.pagemap = File::open(format!("/proc/{pid}/pagemap")).ok();
        }
        self.pagemap.is_some()
    }

    /// The first pages of [start, end) that are in memory, `pages_max` at most; of those the ones that are in
    /// `wanted` and need not stay. And how far that went.
    pub fn present(
        &self,
        wanted: &Ranges,
        (start, end): Range,
        pages_max: u64,
    ) -> io::Result<(Vec<Range>, u64)> {
        let pagemap = self.pagemap.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let mut present = Vec::new();
        let walked_to = pagemap::present(pagemap, start, end, pages_max, &mut present)?;
        let kept: Ranges = self.kept.into_iter().collect();
        Ok((kept.missing_of(&wanted.common_with(&present)), walked_to))
    }

    /// Does the main stack end there, of which the top is known to stay?
    pub fn ends_main_stack(&self, end: u64) -> bool {
        self.kept.is_some_and(|(_, top)| top == end)
    }

    /// The pages of [start, end) that others have mapped too, since a fork.
    pub fn shared(&self, (start, end): Range) -> io::Result<Vec<Range>> {
        let pagemap = self.pagemap.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let mut shared = Vec::new();
        pagemap::shared(pagemap, start, end, |from, to| shared.push((from, to)))?;
        Ok(shared)
    }
}

/// The top of the main stack, where the arguments and the environment are.
fn top_of_stack(pid: u32, (start, end): Range) -> Range {
    // A process that may not ask for it keeps as much as arguments usually take.
    let top = proc::stack_start(pid)
        .filter(|at| (start..end).contains(at))
        .unwrap_or(end.saturating_sub(ARGUMENTS_BYTES));
    (top & !(PAGE_SIZE as u64 - 1), end)
}

/// What became of mappings since the monitor last took that over.
#[derive(Default)]
pub struct Changes {
    /// Taken away by events: what is mapped there next is not registered.
    unmapped: Ranges,
    /// Registered at the agent's word, before anybody touched them.
    announced: Ranges,
}

impl Changes {
    /// Was anything of this range taken away?
    pub fn has_unmapped(&self, start: u64, end: u64) -> bool {
        self.unmapped.intersects(start, end)
    }

    fn unmap(&mut self, start: u64, end: u64) {
        self.announced.remove(start, end);
        self.unmapped.insert(start, end);
    }

    fn announce(&mut self, start: u64, end: u64) {
        self.unmapped.remove(start, end);
        self.announced.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(changes: &Changes) -> (Vec<Range>, Vec<Range>) {
        (changes.unmapped.iter().collect(), changes.announced.iter().collect())
    }

    #[test]
    fn a_walk_that_finds_nothing_is_not_made_again_at_once() {
        let growth = Growth::default();
        growth.set_unmanaged_bytes(SLACK_BYTES + 1);
        assert!(growth.is_walk_due(5));
        let took = Duration::from_millis(1);
        growth.note_walk(10, took, 0);
        let pause_us = (took * WALK_PAUSE).as_micros() as u64;
        assert!(!growth.is_walk_due(9 + pause_us));
        assert!(growth.is_walk_due(10 + pause_us));
        // That is growth for sure.
        growth.set_unmanaged_bytes(UNSURE_BYTES + 1);
        assert!(growth.is_walk_due(11));
        growth.set_unmanaged_bytes(SLACK_BYTES + 1);
        growth.note_walk(10, took, SLACK_BYTES);
        assert!(growth.is_walk_due(11));
        growth.set_left_bytes(2);
        assert!(!growth.is_walk_due(11));
    }

    #[test]
    fn of_changes_the_last_counts() {
        let mut changes = Changes::default();
        changes.unmap(10, 30);
        changes.announce(20, 25);
        assert_eq!(lists(&changes), (vec![(10, 20), (25, 30)], vec![(20, 25)]));
        changes.unmap(22, 40);
        assert_eq!(lists(&changes), (vec![(10, 20), (22, 40)], vec![(20, 22)]));
    }

    #[test]
    fn what_was_unmapped_is_looked_at_again_and_what_was_announced_is_registered() {
        let mut registered = Registered::default();
        registered.insert(&[(10, 30)]);
        let mut changes = Changes::default();
        changes.unmap(10, 20);
        changes.announce(40, 50);
        registered.apply(changes);
        assert_eq!(registered.ranges().iter().collect::<Vec<_>>(), [(20, 30), (40, 50)]);
        assert_eq!(registered.doubtful.iter().collect::<Vec<_>>(), [(10, 20)]);
    }

    #[test]
    fn what_is_refused_twice_is_not_looked_at_again() {
        let mut registered = Registered::default();
        registered.note_refused(vec![(10, 20)]);
        assert!(!std::mem::take(&mut registered.doubtful).is_empty());
        registered.note_refused(vec![(10, 20)]);
        assert!(registered.doubtful.is_empty());
    }

    #[test]
    fn nothing_is_adopted_of_what_was_lost() {
        let growth = Growth::default();
        growth.note_dropped(10, 20);
        growth.note_unmapped(30, 40);
        assert_eq!(growth.without_lost(&[(0, 50)]), [(0, 30), (40, 50)]);
        growth.begin_noting_dropped();
        growth.note_dropped(10, 20);
        assert_eq!(growth.without_lost(&[(0, 50)]), [(0, 10), (20, 30), (40, 50)]);
        growth.end_noting_dropped();
        assert_eq!(growth.without_lost(&[(0, 50)]), [(0, 30), (40, 50)]);
    }
}
