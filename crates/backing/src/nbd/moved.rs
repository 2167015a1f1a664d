//! Places of an export that are not used any more, and where their pages are instead.
//!
//! A connection breaks while a write is in flight: nobody knows whether the server has done it, will do it
//! late, or never. If it comes late, after something else was written there, that would be lost. No protocol
//! of ours can hinder the server. So a place with a write or TRIM in doubt is never written again: the next
//! write of its page goes to a spare place at the end of the export. Once these are used up, places follow
//! that were left long ago (`SURE`).
//!
//! What it does not do: know what a page holds.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A server that has answered others meanwhile does a write no more that is so old.
const SURE: Duration = Duration::from_secs(300);

/// See the module's header.
pub(super) struct Moved {
    /// False: nothing was ever in doubt, and each page is in its own place.
    any: AtomicBool,
    inner: RwLock<Inner>,
}

struct Inner {
    /// The places of pages that are not in their own.
    places: HashMap<u32, u32>,
    /// Pages whose place is in doubt.
    doubted: HashSet<u32>,
    spare: Range<u32>,
    /// Places that were left, and when, the oldest first.
    left: VecDeque<(Duration, u32)>,
}

impl Moved {
    /// `spare`: places that belong to no page.
    pub(super) fn new(spare: Range<u32>) -> Moved {
        let inner = Inner { places: HashMap::new(), doubted: HashSet::new(), spare, left: VecDeque::new() };
        Moved { any: AtomicBool::new(false), inner: RwLock::new(inner) }
    }

    /// A write of these pages may be done late, wherever they are now.
    pub(super) fn doubt(&self, first: u32, pages: usize) {
        let mut inner = self.inner.write().expect("moved places");
        inner.doubted.extend(first..first + pages as u32);
        self.any.store(true, Ordering::Release);
    }

    /// These pages are about to be written: places in doubt are left behind. Returns how many pages from the
    /// first on have a place; the next one has none just now.
    pub(super) fn settle(&self, first: u32, pages: usize, now: Duration) -> usize {
        if !self.any.load(Ordering::Acquire) {
            return pages;
        }
        let mut inner = self.inner.write().expect("moved places");
        for page in first..first + pages as u32 {
            if inner.doubted.contains(&page) {
                let is_old = |left: &(Duration, u32)| now.saturating_sub(left.0) >= SURE;
                let again = |inner: &mut Inner| {
                    inner.left.front().is_some_and(is_old).then(|| inner.left.pop_front())?.map(|left| left.1)
                };
                let place = inner.spare.next().or_else(|| again(&mut inner));
                let Some(place) = place else { return (page - first) as usize };
                inner.doubted.remove(&page);
                let before = inner.places.insert(page, place).unwrap_or(page);
                inner.left.push_back((now, before));
            }
        }
        pages
    }

    /// Pages in a row as pieces whose places are in a row: the number of the piece's first page among them,
    /// how many, and the first place. At most `pages_max` each.
    pub(super) fn pieces(&self, first: u32, pages: usize, pages_max: usize) -> Vec<(usize, usize, u32)> {
        let pages_max = pages_max.max(1);
        if !self.any.load(Ordering::Acquire) {
            let piece = |from| (from, pages_max.min(pages - from), first + from as u32);
            return (0..pages).step_by(pages_max).map(piece).collect();
        }
        let inner = self.inner.read().expect("moved places");
        let mut pieces: Vec<(usize, usize, u32)> = Vec::new();
        for index in 0..pages {
            let page = first + index as u32;
            let place = inner.places.get(&page).copied().unwrap_or(page);
            match pieces.last_mut() {
                Some((_, len, start)) if *start + *len as u32 == place && *len < pages_max => *len += 1,
                _ => pieces.push((index, 1, place)),
            }
        }
        pieces
    }

    pub(super) fn ram_bytes(&self) -> u64 {
        if !self.any.load(Ordering::Acquire) {
            return 0;
        }
        let inner = self.inner.read().expect("moved places");
        (inner.places.capacity() * 9 + inner.doubted.capacity() * 5 + inner.left.capacity() * 24) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_doubt_is_left() {
        let moved = Moved::new(1000..1003);
        let now = Duration::from_secs(7);
        assert_eq!(moved.pieces(10, 5, 2), [(0, 2, 10), (2, 2, 12), (4, 1, 14)]);
        moved.doubt(12, 1);
        assert_eq!(moved.pieces(10, 5, 9), [(0, 5, 10)], "what it holds is still there");
        assert_eq!(moved.settle(10, 5, now), 5);
        assert_eq!(moved.pieces(10, 5, 9), [(0, 2, 10), (2, 1, 1000), (3, 2, 13)]);
        assert_eq!(moved.settle(10, 5, now), 5, "it is not in doubt any more");
        // Also one that was moved there.
        moved.doubt(12, 2);
        assert_eq!(moved.settle(10, 5, now), 5);
        assert_eq!(moved.pieces(11, 3, 9), [(0, 1, 11), (1, 2, 1001)]);
        moved.doubt(13, 1);
        assert_eq!(moved.settle(10, 5, now + SURE / 2), 3, "no place is left");
        assert_eq!(moved.settle(10, 5, now + SURE), 5, "but the oldest");
        assert_eq!(moved.pieces(11, 3, 9), [(0, 1, 11), (1, 1, 1001), (2, 1, 12)]);
    }
}
