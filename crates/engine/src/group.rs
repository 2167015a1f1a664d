//! The memory group: what is used, what may be used, and when reclaim must work.
//!
//! ```text
//!   0                    low_mark      high_mark       limit
//!   ├───────────────────────┼───────────────┼────────────┤
//!         usage here: idle  │  reclaim stops│ reclaim    │ faults wait
//!                           ◀──here─────────│ starts     │
//! ```
//!
//! usage = pages charged (resident pages of managed ranges)
//!       + other bytes (compressed pool, staging, tables, memory of the targets that is not managed)
//!       − discount (pages counted in two address spaces that are one page, shared since a fork).
//!
//! A charge either fits under the limit or fails; nobody sleeps here. What must be admitted (a page that is there already,
//! found by a scan) is charged by force, and reclaim brings the usage down.

use crate::sync::{AtomicU64, Ordering};
use crate::units::PAGE_SIZE;

pub struct Group {
    limit_bytes: AtomicU64,
    charged_pages: AtomicU64,
    other_bytes: AtomicU64,
    discount_pages: AtomicU64,
    peak_bytes: AtomicU64,
    /// Distance between the limit and the mark at which reclaim starts, and again to where it stops.
    gap_bytes: AtomicU64,
}

impl Group {
    pub fn new(limit_bytes: u64) -> Group {
        let group = Group {
            limit_bytes: AtomicU64::new(0),
            charged_pages: AtomicU64::new(0),
            other_bytes: AtomicU64::new(0),
            discount_pages: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            gap_bytes: AtomicU64::new(0),
        };
        group.set_limit_bytes(limit_bytes);
        group
    }

    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }
    pub fn set_limit_bytes(&self, limit_bytes: u64) {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
        // A wake of an idle CPU costs 50 µs: the gap amortises it over a thousand pages where the limit allows.
        self.gap_bytes.store((limit_bytes / 32).clamp(512 << 10, 8 << 20), Ordering::Relaxed);
    }

    pub fn usage_bytes(&self) -> u64 {
        let pages = self
            .charged_pages
            .load(Ordering::Relaxed)
            .saturating_sub(self.discount_pages.load(Ordering::Relaxed));
        pages * PAGE_SIZE as u64 + self.other_bytes.load(Ordering::Relaxed)
    }

    /// Charge if it fits below `limit - reserve_bytes`.
    pub fn try_charge(&self, pages: u64, reserve_bytes: u64) -> bool {
        self.charged_pages.fetch_add(pages, Ordering::Relaxed);
        let usage_bytes = self.usage_bytes();
        if usage_bytes + reserve_bytes > self.limit_bytes() {
            self.charged_pages.fetch_sub(pages, Ordering::Relaxed);
            return false;
        }
        self.note_peak(usage_bytes);
        true
    }

    pub fn force_charge(&self, pages: u64) {
        self.charged_pages.fetch_add(pages, Ordering::Relaxed);
        self.note_peak(self.usage_bytes());
    }

    /// Pages that were counted among the other bytes until now are charged from now on.
    pub fn charge_adopted(&self, pages: u64) {
        let bytes = pages * PAGE_SIZE as u64;
        let move_over = |other: u64| Some(other.saturating_sub(bytes));
        let _ = self.other_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, move_over);
        self.charged_pages.fetch_add(pages, Ordering::Relaxed);
    }

    pub fn uncharge(&self, pages: u64) {
        let before = self.charged_pages.fetch_sub(pages, Ordering::Relaxed);
        assert!(before >= pages, "{pages} pages uncharged of {before} charged");
    }

    pub fn charged_pages(&self) -> u64 {
        self.charged_pages.load(Ordering::Relaxed)
    }
    pub fn other_bytes(&self) -> u64 {
        self.other_bytes.load(Ordering::Relaxed)
    }
    pub fn set_other_bytes(&self, bytes: u64) {
        self.other_bytes.store(bytes, Ordering::Relaxed);
        self.note_peak(self.usage_bytes());
    }
    pub fn discount_pages(&self) -> u64 {
        self.discount_pages.load(Ordering::Relaxed)
    }
    /// One space's part of the discount changes.
    pub(crate) fn change_discount(&self, from_pages: u64, to_pages: u64) {
        self.discount_pages.fetch_add(to_pages.wrapping_sub(from_pages), Ordering::Relaxed);
    }
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    fn note_peak(&self, usage_bytes: u64) {
        if usage_bytes > self.peak_bytes.load(Ordering::Relaxed) {
            self.peak_bytes.fetch_max(usage_bytes, Ordering::Relaxed);
        }
    }

    pub fn gap_bytes(&self) -> u64 {
        self.gap_bytes.load(Ordering::Relaxed)
    }
    /// Reclaim should start.
    pub fn above_high_mark(&self) -> bool {
        self.usage_bytes() + self.gap_bytes() > self.limit_bytes()
    }
    /// Reclaim may not stop yet.
    pub fn above_low_mark(&self) -> bool {
        self.usage_bytes() + 2 * self.gap_bytes() > self.limit_bytes()
    }
    /// No room for even one page.
    pub fn full(&self) -> bool {
        self.usage_bytes() + PAGE_SIZE as u64 > self.limit_bytes()
    }
}
