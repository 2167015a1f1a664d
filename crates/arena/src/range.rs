//! The process's one range of addresses for arenas: which pages of it are free.
//!
//! ```text
//!   start                    opened              end
//!   ├── readable, writable ──┼── PROT_NONE ───────┤      the line moves up, in steps of OPENED_BYTES
//!      run   free   run  kept       free
//! ```
//!
//! What holds: free pages are zeros and take no memory: a run is emptied before it is free. Free runs that
//! touch are one. A few runs that were given back last are kept as they are, for the next need of the same
//! length: a program that makes and frees the same temporary again and again gets pages that are there.
//! Nothing is noted in the range itself: no page has to be brought to find a run.

#![allow(unsafe_code, reason = "maps, locks and empties the range")]

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ptr::null_mut;

pub const PAGE: usize = 4096;
/// Addresses cost nothing. A limit of them (ulimit -v) makes it less.
const RANGE_BYTES: usize = 1 << 42;
const RANGE_LEAST_BYTES: usize = 1 << 28;
/// The supervisor looks through what is open.
const OPENED_BYTES: usize = 64 << 20;

pub struct Range {
    start: usize,
    opened: usize,
    end: usize,
    free: Runs,
    /// Start and length; the one that was given back last is the last.
    kept: VecDeque<(usize, usize)>,
    kept_bytes: usize,
    kept_bytes_max: usize,
}

impl Range {
    /// Reserve addresses. They are kept until the process ends.
    pub fn reserve() -> rustix::io::Result<Range> {
        let mut bytes = RANGE_BYTES;
        loop {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: new memory, at an address that the kernel chooses.
            match unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes, ProtFlags::empty(), flags) } {
                Ok(start) => {
                    let start = start as usize;
                    let free = Runs::of(start, bytes);
                    return Ok(Range {
                        start,
                        opened: start,
                        end: start + bytes,
                        free,
                        kept: VecDeque::new(),
                        kept_bytes: 0,
                        kept_bytes_max: 0,
                    });
                }
                Err(error) if bytes <= RANGE_LEAST_BYTES => return Err(error),
                Err(_) => bytes /= 2,
            }
        }
    }

    /// The addresses as `memspill attach` is told them.
    pub fn bounds(&self) -> (usize, usize) {
        (self.start, self.end)
    }

    /// Keep at most so much of what is given back.
    pub fn keep(&mut self, bytes_max: usize) {
        self.kept_bytes_max = bytes_max;
        self.empty_kept(bytes_max);
    }

    /// A run of `bytes` (whole pages), and whether it is zeros. None: no addresses are left, or no page
    /// tables.
    pub fn take(&mut self, bytes: usize) -> Option<(usize, bool)> {
        if let Some(index) = self.kept.iter().rposition(|kept| kept.1 == bytes) {
            self.kept_bytes -= bytes;
            return self.kept.remove(index).map(|(run, _)| (run, false));
        }
        let run = self.free.take(bytes).or_else(|| {
            self.empty_kept(0);
            self.free.take(bytes)
        })?;
        if run + bytes > self.opened && !self.open(run + bytes) {
            self.free.give(run, bytes);
            return None;
        }
        Some((run, true))
    }

    /// Take the pages from `run` on, if they are free: what lies before them grows.
    pub fn take_at(&mut self, run: usize, bytes: usize) -> bool {
        if !self.free.take_at(run, bytes) {
            return false;
        }
        if run + bytes > self.opened && !self.open(run + bytes) {
            self.free.give(run, bytes);
            return false;
        }
        true
    }

    fn open(&mut self, up_to: usize) -> bool {
        let end = up_to.next_multiple_of(OPENED_BYTES).min(self.end);
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the pages are in our range, and nobody has them yet.
        let opened = unsafe { rustix::mm::mprotect(self.opened as *mut _, end - self.opened, flags) }.is_ok();
        if opened {
            self.opened = end;
        }
        opened
    }

    /// Give a run back.
    pub fn give(&mut self, run: usize, bytes: usize) {
        self.kept.push_back((run, bytes));
        self.kept_bytes += bytes;
        self.empty_kept(self.kept_bytes_max);
    }

    /// Empty runs that were given back, the oldest first, until so much is left.
    fn empty_kept(&mut self, bytes_max: usize) {
        while self.kept_bytes > bytes_max {
            // One that would push out all others is not kept.
            let is_large = self.kept.back().is_some_and(|kept| kept.1 > bytes_max);
            let run = if is_large { self.kept.pop_back() } else { self.kept.pop_front() };
            let Some((run, bytes)) = run else { return };
            self.kept_bytes -= bytes;
            // SAFETY: the caller had the run, so nobody uses it.
            unsafe {
                // Refused where the program has locked all of its memory (mlockall).
                if rustix::mm::madvise(run as *mut _, bytes, Advice::LinuxDontNeed).is_err() {
                    (run as *mut u8).write_bytes(0, bytes);
                }
            }
            self.free.give(run, bytes);
        }
    }
}

#[cfg(test)]
impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: a test has left all of it.
        let _ = unsafe { rustix::mm::munmap(self.start as *mut _, self.end - self.start) };
    }
}

/// Keep pages of a range in memory. It brings them.
pub fn lock(run: usize, bytes: usize) -> rustix::io::Result<()> {
    // SAFETY: it changes no memory, and what is not mapped is refused.
    unsafe { rustix::mm::mlock(run as *mut _, bytes) }
}

pub fn unlock(run: usize, bytes: usize) {
    // SAFETY: the same.
    let _ = unsafe { rustix::mm::munlock(run as *mut _, bytes) };
}

/// Runs of free addresses. No two of them touch.
struct Runs {
    by_start: BTreeMap<usize, usize>,
    /// Length and start.
    by_length: BTreeSet<(usize, usize)>,
}

impl Runs {
    fn of(start: usize, bytes: usize) -> Runs {
        let mut runs = Runs { by_start: BTreeMap::new(), by_length: BTreeSet::new() };
        runs.add(start, bytes);
        runs
    }

    fn add(&mut self, start: usize, bytes: usize) {
        if bytes > 0 {
            self.by_start.insert(start, bytes);
            self.by_length.insert((bytes, start));
        }
    }

    fn remove(&mut self, start: usize) -> usize {
        let bytes = self.by_start.remove(&start).unwrap_or(0);
        self.by_length.remove(&(bytes, start));
        bytes
    }

    /// The shortest run that is long enough; of these the lowest.
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let &(length, start) = self.by_length.range((bytes, 0)..).next()?;
        self.remove(start);
        self.add(start + bytes, length - bytes);
        Some(start)
    }

    fn take_at(&mut self, start: usize, bytes: usize) -> bool {
        match self.by_start.get(&start) {
            Some(&length) if length >= bytes => {
                self.remove(start);
                self.add(start + bytes, length - bytes);
                true
            }
            _ => false,
        }
    }

    fn give(&mut self, start: usize, bytes: usize) {
        let (mut from, mut to) = (start, start + bytes);
        if let Some((&before, &length)) = self.by_start.range(..start).next_back() {
            assert!(before + length <= start, "a run is free twice");
            if before + length == start {
                self.remove(before);
                from = before;
            }
        }
        if let Some((&after, &length)) = self.by_start.range(start..).next() {
            assert!(after >= to, "a run is free twice");
            if after == to {
                self.remove(after);
                to += length;
            }
        }
        self.add(from, to - from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a model that marks each page: no page is handed out twice, and all come together again.
        #[test]
        fn runs_keep_every_page(steps in prop::collection::vec((0..4usize, 1..40usize), 1..200)) {
            const PAGES: usize = 256;
            let mut runs = Runs::of(PAGE, PAGES);
            let mut taken: Vec<(usize, usize)> = Vec::new();
            let free = |taken: &[(usize, usize)]| PAGES - taken.iter().map(|run| run.1).sum::<usize>();
            for (what, length) in steps {
                match what {
                    0 | 1 => if let Some(start) = runs.take(length) {
                        for (other, bytes) in &taken {
                            prop_assert!(start + length <= *other || other + bytes <= start);
                        }
                        prop_assert!(start >= PAGE && start + length <= PAGE + PAGES);
                        taken.push((start, length));
                    },
                    2 if !taken.is_empty() => {
                        let (start, bytes) = taken.swap_remove(length % taken.len());
                        runs.give(start, bytes);
                    }
                    3 if !taken.is_empty() => {
                        let index = length % taken.len();
                        let (start, bytes) = taken[index];
                        let is_next_free = taken.iter().all(|run| run.0 != start + bytes);
                        if runs.take_at(start + bytes, 1) {
                            prop_assert!(is_next_free);
                            taken[index].1 += 1;
                        }
                    }
                    _ => {}
                }
                let in_lists: usize = runs.by_start.values().sum();
                prop_assert_eq!(in_lists, free(&taken));
                prop_assert_eq!(runs.by_start.len(), runs.by_length.len());
            }
            for (start, bytes) in taken {
                runs.give(start, bytes);
            }
            prop_assert_eq!(runs.by_start, BTreeMap::from([(PAGE, PAGES)]));
        }
    }

    #[test]
    fn what_is_given_back_is_zeros_unless_it_is_kept() {
        let mut range = Range::reserve().unwrap();
        let run = range.take(PAGE).unwrap().0;
        let page = run as *mut u8;
        // SAFETY: the page is ours until it is given back; then it is taken again.
        unsafe {
            assert_eq!(page.read(), 0);
            page.write(7);
            range.give(run, PAGE);
            assert_eq!(range.take(PAGE), Some((run, true)));
            assert_eq!(page.read(), 0);
            page.write(7);
            range.keep(2 * PAGE);
            range.give(run, PAGE);
            let other = range.take(2 * PAGE).unwrap();
            assert_eq!(other, (run + PAGE, true));
            assert_eq!(range.take(PAGE), Some((run, false)));
            assert_eq!(page.read(), 7);
            range.give(run, PAGE);
            range.keep(0);
            assert_eq!(range.take(PAGE), Some((run, true)));
            assert_eq!(page.read(), 0);
            range.give(other.0, 2 * PAGE);
        }
        assert!(range.take(RANGE_BYTES).is_none());
        assert!(range.take_at(run + PAGE, PAGE));
        assert!(!range.take_at(run, PAGE));
    }
}
