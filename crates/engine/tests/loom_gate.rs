//! Every interleaving, and every order of memory, of the gate of an address space.
//!
//! Run with: scripts/interleavings.sh loom
//!
//! The mapping and the page are relaxed atomics, as an address space gives no order: only the gate orders
//! them.
//!
//! Seen to find: the compare-exchange of `enter_fill` relaxed; `try_enter_events` that does not wait for the
//! fills inside; the release of `FillGuard` or of `EventGuard` relaxed.
#![cfg(loom)]

use loom::thread;
use memspill_engine::gate::Gate;
use memspill_engine::sync::{Arc, AtomicBool, AtomicU32, Ordering};

const OLD: u32 = 1;
const DROPPED: u32 = 0;

#[derive(Default)]
struct Mapping {
    gate: Gate,
    removed: AtomicBool,
    page: AtomicU32,
}

impl Mapping {
    fn fill(&self) {
        let _fill_guard = self.gate.enter_fill();
        if !self.removed.load(Ordering::Relaxed) {
            self.page.store(OLD, Ordering::Relaxed);
        }
    }

    fn remove(&self) {
        self.removed.store(true, Ordering::Relaxed);
        self.page.store(DROPPED, Ordering::Relaxed);
    }
}

#[test]
fn a_fill_does_not_bring_back_what_an_event_has_dropped() {
    loom::model(|| {
        let mapping = Arc::new(Mapping::default());
        let other = Arc::clone(&mapping);
        let filler = thread::spawn(move || other.fill());
        let events_guard = mapping.gate.enter_events();
        mapping.remove();
        drop(events_guard);
        filler.join().unwrap();
        assert_eq!(mapping.page.load(Ordering::Relaxed), DROPPED);
    });
}

#[test]
fn one_event_reader_at_a_time() {
    loom::model(|| {
        let mapping = Arc::new(Mapping::default());
        let count = |mapping: &Mapping| {
            let _events_guard = mapping.gate.enter_events();
            // Two steps, between which nobody else may come.
            let page = mapping.page.load(Ordering::Relaxed);
            mapping.page.store(page + 1, Ordering::Relaxed);
        };
        let other = Arc::clone(&mapping);
        let reader = thread::spawn(move || count(&other));
        count(&mapping);
        reader.join().unwrap();
        assert_eq!(mapping.page.load(Ordering::Relaxed), 2);
    });
}
