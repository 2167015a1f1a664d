//! The gate of an address space: fills on one side, the reading and processing of its events on the other.
//!
//! ```text
//!   pager A:  enter_fill ─ is the page still mine? ─ COPY ─ mark resident ─ leave
//!   pager B:                                                         enter_events ─ read ─ process ─ leave
//! ```
//!
//! The kernel refuses a fill while an event is unread, but once it is read the changing thread runs on,
//! concurrently with whatever fill is in flight: a late fill could put old bytes back after MADV_DONTNEED has
//! returned. So no fill may overlap the span from the read of an event to the end of its processing.
//!
//! Many fills are inside at once; an event reader is inside alone. Both stay a few microseconds, so waiters
//! spin, and yield now and then in case the thread inside has lost its CPU.
//!
//! A fill often loses it, and to the thread that it wakes: then another pager that wants to read what has
//! faulted waits for as long as that thread runs, a tenth of all CPU time where two threads of Java fault on
//! two CPUs. So once a reader has waited for long, fills of one page (lean.rs) wake nobody before they have
//! left, which takes a call more. It may have waited for a large fill that had its CPU all the while; then
//! that call is spent in vain.

use crate::sync::{AtomicU32, Ordering, spin_hint};

/// Bit 31: an event reader is inside (or waits for the fills to leave). Bits 0..31: fills inside.
const EVENTS: u32 = 1 << 31;

/// Tries to come in, before giving the CPU away once: 5 to 10 µs. A fill of one page has left by then, if it
/// has kept its CPU.
const SPINS: u32 = 256;
/// The number of fills that wake late after one that has kept a reader waiting for longer than that.
const LATE_FILLS: u32 = 256;

#[derive(Default)]
pub struct Gate {
    word: AtomicU32,
    /// Fills that are still to wake late, about: a hint, whose order no model need follow.
    late_fills: std::sync::atomic::AtomicU32,
}

pub struct FillGuard<'a>(&'a Gate);
pub struct EventGuard<'a>(&'a Gate);

impl Gate {
    pub fn new() -> Gate {
        Gate::default()
    }

    pub fn enter_fill(&self) -> FillGuard<'_> {
        let mut spins = 0;
        loop {
            // A load first, and then an addition: in a compare-exchange loop, many fills would spend their
            // time on failed tries.
            if self.word.load(Ordering::Relaxed) & EVENTS == 0 {
                if self.word.fetch_add(1, Ordering::Acquire) & EVENTS == 0 {
                    return FillGuard(self);
                }
                // An event reader came in between the load and the addition; it waits until this is undone.
                self.word.fetch_sub(1, Ordering::Release);
            }
            backoff(&mut spins);
        }
    }

    /// As [`Gate::enter_fill`], for whoever has something else to do while an event reader is inside.
    pub fn try_enter_fill(&self) -> Option<FillGuard<'_>> {
        if self.word.fetch_add(1, Ordering::Acquire) & EVENTS == 0 {
            return Some(FillGuard(self));
        }
        self.word.fetch_sub(1, Ordering::Release);
        None
    }

    /// Only one reader: the caller gets None if there is one already.
    pub fn try_enter_events(&self) -> Option<EventGuard<'_>> {
        if self.word.fetch_or(EVENTS, Ordering::Acquire) & EVENTS != 0 {
            return None;
        }
        let mut spins = 0;
        while self.word.load(Ordering::Acquire) != EVENTS {
            backoff(&mut spins);
            if spins == SPINS {
                self.wake_late(LATE_FILLS);
            }
        }
        Some(EventGuard(self))
    }

    /// The next `fills` fills wake nobody before they have left.
    pub fn wake_late(&self, fills: u32) {
        self.late_fills.store(fills, Ordering::Relaxed);
    }

    /// Is the next fill one of them?
    pub fn wakes_late(&self) -> bool {
        let left = self.late_fills.load(Ordering::Relaxed);
        if left > 0 {
            self.late_fills.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// As [`Gate::try_enter_events`], but wait for the other reader.
    pub fn enter_events(&self) -> EventGuard<'_> {
        let mut spins = 0;
        loop {
            if let Some(guard) = self.try_enter_events() {
                return guard;
            }
            backoff(&mut spins);
        }
    }
}

impl Drop for FillGuard<'_> {
    fn drop(&mut self) {
        let before = self.0.word.fetch_sub(1, Ordering::Release);
        assert!(before & !EVENTS > 0, "a fill left a gate that it had not entered");
    }
}

impl Drop for EventGuard<'_> {
    fn drop(&mut self) {
        let before = self.0.word.fetch_and(!EVENTS, Ordering::Release);
        assert!(before & EVENTS != 0, "an event reader left a gate that it had not entered");
    }
}

fn backoff(spins: &mut u32) {
    *spins = spins.wrapping_add(1);
    if spins.is_multiple_of(SPINS) {
        crate::sync::yield_now();
    } else {
        spin_hint();
    }
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;

    #[test]
    fn fills_wake_late_once_one_has_kept_a_reader_waiting() {
        let gate = Gate::new();
        drop(gate.enter_fill());
        drop(gate.enter_events());
        assert!(!gate.wakes_late(), "nobody has waited");

        let fill = gate.enter_fill();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(gate.enter_events()));
            while !gate.wakes_late() {
                std::thread::yield_now();
            }
            drop(fill);
        });
        for fill in 1..LATE_FILLS {
            assert!(gate.wakes_late(), "{fill}");
        }
        assert!(!gate.wakes_late());
    }
}
