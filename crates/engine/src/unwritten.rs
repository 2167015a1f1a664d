//! Pages whose write has failed: they stay in the swap cache, and their write is tried again.
//!
//! A page waits for the slot that it has, and takes memory. So a device for which some wait gets no new pages
//! before these are written: else one that is full, and now and then has a slot freed, would collect page
//! after page.
//!
//! Invariant: a page is counted for its device from `add` on, until `settle` or `take_if`.

use crate::frames::CachedPage;
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, lock};
use crate::word::ENTRY_DEVICES_MAX;

/// As many may wait for a device that gets new pages: single slots of a medium may be bad.
const WAITING_PAGES_MAX: u32 = 64;

pub(crate) struct Unwritten {
    pages: Mutex<Vec<CachedPage>>,
    /// There is no such page. Each batch reads this; taking the lock each time would cost too much.
    is_empty: AtomicBool,
    of_device: [AtomicU32; ENTRY_DEVICES_MAX],
}

impl Default for Unwritten {
    fn default() -> Unwritten {
        let of_device = std::array::from_fn(|_| AtomicU32::new(0));
        Unwritten { pages: Mutex::new(Vec::new()), is_empty: AtomicBool::new(true), of_device }
    }
}

impl Unwritten {
    pub fn add(&self, pages: &[CachedPage]) {
        if !pages.is_empty() {
            pages.iter().for_each(|page| _ = self.count(page).fetch_add(1, Ordering::Relaxed));
            lock(&self.pages).extend_from_slice(pages);
            self.is_empty.store(false, Ordering::Release);
        }
    }

    /// All of them. They count until they are settled, so that nothing new goes to their device meanwhile.
    pub fn take(&self) -> Vec<CachedPage> {
        if self.is_empty.load(Ordering::Acquire) {
            return Vec::new();
        }
        // Set before the list is taken: a page that is added meanwhile clears it again.
        self.is_empty.store(true, Ordering::Release);
        std::mem::take(&mut *lock(&self.pages))
    }

    /// Pages that were taken have been tried; those that failed again have been added again.
    pub fn settle(&self, pages: &[CachedPage]) {
        pages.iter().for_each(|page| _ = self.count(page).fetch_sub(1, Ordering::Relaxed));
    }

    /// Only those for which `which` is true.
    pub fn take_if(&self, which: impl FnMut(&mut CachedPage) -> bool) -> Vec<CachedPage> {
        let taken: Vec<CachedPage> = lock(&self.pages).extract_if(.., which).collect();
        self.settle(&taken);
        taken
    }

    pub fn pages(&self) -> Vec<CachedPage> {
        lock(&self.pages).clone()
    }

    /// Do so many wait for the device at this place that it gets no new ones?
    pub fn are_many(&self, place: usize) -> bool {
        self.of_device[place].load(Ordering::Relaxed) >= WAITING_PAGES_MAX
    }

    fn count(&self, page: &CachedPage) -> &AtomicU32 {
        &self.of_device[usize::from(page.entry.device)]
    }
}
