//! Pages whose write has failed: they stay in the swap cache, and their write is tried again.

use crate::frames::CachedPage;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

pub(crate) struct Unwritten {
    pages: Mutex<Vec<CachedPage>>,
    /// There is no such page. Each batch reads this; taking the lock each time would cost too much.
    is_empty: AtomicBool,
}

impl Default for Unwritten {
    fn default() -> Unwritten {
        Unwritten { pages: Mutex::new(Vec::new()), is_empty: AtomicBool::new(true) }
    }
}

impl Unwritten {
    pub fn add(&self, pages: &[CachedPage]) {
        if !pages.is_empty() {
            lock(&self.pages).extend_from_slice(pages);
            self.is_empty.store(false, Ordering::Release);
        }
    }

    pub fn take(&self) -> Vec<CachedPage> {
        if self.is_empty.load(Ordering::Acquire) {
            return Vec::new();
        }
        // Set before the list is taken: a page that is added meanwhile clears it again.
        self.is_empty.store(true, Ordering::Release);
        std::mem::take(&mut *lock(&self.pages))
    }

    /// Only those for which `which` is true.
    pub fn take_if(&self, which: impl FnMut(&mut CachedPage) -> bool) -> Vec<CachedPage> {
        lock(&self.pages).extract_if(.., which).collect()
    }

    pub fn pages(&self) -> Vec<CachedPage> {
        lock(&self.pages).clone()
    }
}
