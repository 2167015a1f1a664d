//! Pages that were read ahead: their bytes are in memory, but no address space maps them yet. A fault that
//! finds one in the swap cache takes it.
//!
//! ```text
//!   fault on a neighbour ─▶ read ─▶ here, and in the swap cache ─┬─▶ a fault takes it (a hit)
//!                                                                ├─▶ its slot is freed: dropped with it
//!                                                                └─▶ reclaim: dropped, before any victim
//! ```
//!
//! Such a page is a copy of what its slot holds, so it may be dropped at any time. It is charged to the group
//! that owns its slot.
//!
//! Invariants: the slot's word names the frame of the page. The thread that takes the frame out of the word
//! also takes the page from here, and does so before it releases the slot. So the slot of a page that is here
//! is in use, and its device is not off. The lock here is taken before a cluster's.
//!
//! What it does not do: read, choose what is read (readahead.rs), charge, look at slots.

use crate::sync::{AtomicUsize, Mutex, Ordering, lock};
use crate::units::{FrameId, GroupId, Page, PageBuf, SlotIndex, page_buf};
use crate::word::SwapEntry;
use std::collections::BTreeMap;

/// A slot that is being read ahead, to which the reader holds one reference.
#[derive(Clone, Copy)]
pub(crate) struct AheadSlot {
    pub slot: SlotIndex,
    /// The group that is charged for the page.
    pub owner: GroupId,
    pub shadow: u32,
}

/// A page that was read ahead.
pub(crate) struct AheadPage {
    pub entry: SwapEntry,
    pub owner: GroupId,
    /// The shadow that the slot held, which is put back when the page leaves the swap cache.
    pub shadow: u32,
    /// When it was read, by the clock of evictions.
    pub read_at: u32,
    buf: PageBuf,
}

impl AheadPage {
    pub fn bytes(&self) -> &Page {
        &self.buf[0]
    }
}

/// How many buffers are kept for the next pages.
const SPARE_BUFFERS: usize = 64;

/// All pages of a run that were read ahead and are still here.
#[derive(Default)]
pub(crate) struct Ahead {
    inner: Mutex<AheadInner>,
    /// How many there are, so that they can be counted without the lock.
    pages: AtomicUsize,
}

#[derive(Default)]
struct AheadInner {
    /// The page in each frame, with its age.
    pages: Vec<Option<(u64, AheadPage)>>,
    free: Vec<u32>,
    /// Frames by the age of their page: the page that has been here longest comes first.
    by_age: BTreeMap<u64, u32>,
    inserted: u64,
    spare: Vec<PageBuf>,
}

impl Ahead {
    pub fn len(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// Keep a page. The frame that is returned may then be put into the slot's word.
    pub fn insert(&self, entry: SwapEntry, of: &AheadSlot, read_at: u32, bytes: &Page) -> FrameId {
        let mut buf = lock(&self.inner).spare.pop().unwrap_or_else(|| page_buf(1));
        buf[0] = *bytes;
        let page = AheadPage { entry, owner: of.owner, shadow: of.shadow, read_at, buf };
        let mut inner = lock(&self.inner);
        let age = inner.inserted;
        inner.inserted += 1;
        let frame = inner.free.pop().unwrap_or_else(|| {
            inner.pages.push(None);
            inner.pages.len() as u32 - 1
        });
        inner.pages[frame as usize] = Some((age, page));
        inner.by_age.insert(age, frame);
        self.pages.store(inner.by_age.len(), Ordering::Relaxed);
        FrameId::of_read_ahead(frame)
    }

    /// Take the page of a frame that the caller has taken out of its slot's word.
    pub fn take(&self, frame: FrameId) -> AheadPage {
        let mut inner = lock(&self.inner);
        let page = inner.remove(frame.number_read_ahead());
        self.pages.store(inner.by_age.len(), Ordering::Relaxed);
        page
    }

    /// Give back a page that was taken and is not needed any more; its buffer is used again.
    pub fn give_back(&self, page: AheadPage) {
        let mut inner = lock(&self.inner);
        if inner.spare.len() < SPARE_BUFFERS {
            inner.spare.push(page.buf);
        }
    }

    /// Take up to `n` pages, the oldest first. `take` decides of each page, under the lock; where it answers
    /// `Taken`, it has taken the frame out of the slot's word.
    pub fn take_oldest(&self, n: usize, mut take: impl FnMut(&AheadPage, FrameId) -> Look) -> Vec<AheadPage> {
        let mut inner = lock(&self.inner);
        let mut frames = Vec::new();
        for frame in inner.by_age.values() {
            let (_, page) =
                inner.pages[*frame as usize].as_ref().expect("a frame that has an age has a page");
            match take(page, FrameId::of_read_ahead(*frame)) {
                Look::Taken => frames.push(*frame),
                Look::Stays => {}
                Look::Enough => break,
            }
            if frames.len() == n {
                break;
            }
        }
        let pages = frames.into_iter().map(|frame| inner.remove(frame)).collect();
        self.pages.store(inner.by_age.len(), Ordering::Relaxed);
        pages
    }

    /// Visit all pages; for the engine's checker.
    pub fn each(&self, mut visit: impl FnMut(FrameId, &AheadPage)) {
        for (frame, page) in (0..).zip(&lock(&self.inner).pages) {
            if let Some((_, page)) = page {
                visit(FrameId::of_read_ahead(frame), page);
            }
        }
    }
}

/// What the caller of `take_oldest` decides of a page.
pub(crate) enum Look {
    Taken,
    Stays,
    /// It stays, and so do all younger pages.
    Enough,
}

impl AheadInner {
    fn remove(&mut self, frame: u32) -> AheadPage {
        let (age, page) =
            self.pages[frame as usize].take().expect("a page that was read ahead is taken once");
        self.by_age.remove(&age);
        self.free.push(frame);
        page
    }
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;

    const SLOT: AheadSlot = AheadSlot { slot: SlotIndex(7), owner: GroupId(1), shadow: 3 };

    fn insert(ahead: &Ahead, byte: u8) -> FrameId {
        let entry = SwapEntry { device: 0, slot: SlotIndex(u32::from(byte)) };
        ahead.insert(entry, &SLOT, u32::from(byte), &Page([byte; 4096]))
    }

    #[test]
    fn the_oldest_go_first_and_frames_are_used_again() {
        let ahead = Ahead::default();
        let frames: Vec<FrameId> = (0..6).map(|byte| insert(&ahead, byte)).collect();
        assert!(frames.iter().all(|frame| frame.is_read_ahead()));
        let second = ahead.take(frames[1]);
        assert_eq!((second.bytes().0[9], second.shadow, ahead.len()), (1, 3, 5));
        ahead.give_back(second);
        assert_eq!(insert(&ahead, 6), frames[1]);
        let even = |page: &AheadPage, _| if page.read_at & 1 == 0 { Look::Taken } else { Look::Stays };
        let read_at = |pages: Vec<AheadPage>| pages.iter().map(|page| page.read_at).collect::<Vec<_>>();
        assert_eq!(read_at(ahead.take_oldest(2, even)), [0, 2]);
        let young = |page: &AheadPage, _| if page.read_at < 5 { Look::Taken } else { Look::Enough };
        assert_eq!(read_at(ahead.take_oldest(9, young)), [3, 4]);
        assert_eq!((read_at(ahead.take_oldest(9, |_, _| Look::Taken)), ahead.len()), (vec![5, 6], 0));
    }
}
