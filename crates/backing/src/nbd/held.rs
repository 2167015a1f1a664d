//! Which pages a server of two has as they were written last.
//!
//! What it does not do: know what is in use, or change anything on a server.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::arena::ZeroTable;

/// A bit for each page. The memory costs nothing until it is used.
pub(super) struct Held {
    table: ZeroTable,
    words: usize,
    /// It may lack pages that the other one has, from this time on, in ms, and 1 more. 0: it lacks none.
    lacks_since: AtomicU64,
}

impl Held {
    pub(super) fn new(pages: u32) -> io::Result<Held> {
        let words = (pages as usize).div_ceil(64);
        Ok(Held { table: ZeroTable::new(words * 8)?, words, lacks_since: AtomicU64::new(0) })
    }

    pub(super) fn has(&self, page: u32) -> bool {
        self.table.word(page as usize / 64).load(Ordering::Acquire) >> (page % 64) & 1 == 1
    }

    pub(super) fn set(&self, page: u32, has: bool) {
        let mask = 1u64 << (page % 64);
        let word = page as usize / 64;
        if has {
            self.table.word_to_write(word).fetch_or(mask, Ordering::AcqRel);
        } else if self.has(page) {
            self.table.word_to_write(word).fetch_and(!mask, Ordering::AcqRel);
        }
    }

    /// It has come back empty.
    pub(super) fn clear(&self, now: Duration) {
        for word in 0..self.words {
            if self.table.word(word).load(Ordering::Acquire) != 0 {
                self.table.word_to_write(word).store(0, Ordering::Release);
            }
        }
        self.note_lacks(now);
    }

    pub(super) fn lacks_some(&self) -> bool {
        self.lacks_since.load(Ordering::Acquire) > 0
    }

    /// For how long.
    pub(super) fn lacks_for(&self, now: Duration) -> Duration {
        let since = Duration::from_millis(self.lacks_since.load(Ordering::Acquire).saturating_sub(1));
        now.saturating_sub(since)
    }

    pub(super) fn note_lacks(&self, now: Duration) {
        let since = now.as_millis() as u64 + 1;
        let _ = self.lacks_since.compare_exchange(0, since, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(super) fn note_whole(&self) {
        self.lacks_since.store(0, Ordering::Release);
    }

    /// The next pages in a row, `pages_max` at most, that `other` has and this one lacks.
    pub(super) fn next_lacking(&self, other: &Held, from: u32, pages_max: u32) -> Option<(u32, u32)> {
        let lacking = |word: usize| {
            other.table.word(word).load(Ordering::Acquire) & !self.table.word(word).load(Ordering::Acquire)
        };
        let mut first = None;
        let mut page = from;
        while (page as usize / 64) < self.words {
            let word = lacking(page as usize / 64) >> (page % 64);
            match first {
                None if word == 0 => page = (page / 64 + 1) * 64,
                None => {
                    page += word.trailing_zeros();
                    first = Some(page);
                }
                Some(first) if word & 1 == 0 || page - first >= pages_max => break,
                Some(_) => page += 1,
            }
        }
        first.map(|first| (first, (page - first).max(1)))
    }

    pub(super) fn ram_bytes(&self) -> u64 {
        self.table.ram_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_lacks_is_found_in_rows() {
        let (one, other) = (Held::new(300).unwrap(), Held::new(300).unwrap());
        assert_eq!(one.next_lacking(&other, 0, 64), None);
        for page in [5, 6, 7, 63, 64, 65, 299] {
            other.set(page, true);
        }
        one.set(6, true);
        let mut found = Vec::new();
        let mut from = 0;
        while let Some((first, pages)) = one.next_lacking(&other, from, 2) {
            found.push((first, pages));
            from = first + pages;
        }
        assert_eq!(found, [(5, 1), (7, 1), (63, 2), (65, 1), (299, 1)]);
        let seconds = Duration::from_secs;
        one.clear(seconds(3));
        one.note_lacks(seconds(5));
        assert!(!one.has(6) && one.lacks_some() && one.lacks_for(seconds(9)) == seconds(6));
        one.note_whole();
        assert!(!one.lacks_some());
    }
}
