//! The two words on which it rests that no call meets a page that is being taken out, under every order of
//! memory that the language allows. All else of these protocols is in `windows_model.rs`
//! and `shuttle_agent.rs`, where one step follows the other; here it is shown that the fences make it so.
//!
//! ```text
//!   a thread, before its call              who takes out
//!   ranges, count   in_use.rs:             words EVICTING        mark, pages/evict.rs
//!                   publish_list
//!   fence           publish_list           fence                 first_kept, pages/uses.rs
//!   the words       fill::settle_all       count, ranges         uses_of, pages/uses.rs
//! ```
//!
//! Either the one sees the other's mark, or the other sees the one's. The hazard of `pages/fault.rs`
//! (`is_over`) stands in the same place as the count.
//!
//! State outside of the protocol is relaxed, and changed by read-modify-writes alone, as a page table's
//! entry: everybody sees its last state, and nothing else is ordered by it. Loom takes accesses that are
//! SeqCst for weaker ones, and fences as they are, so what is found to hold needs no more than the fences.
//!
//! Run with: scripts/interleavings.sh loom in_use. The tests that must fail leave out one step each.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;
use memspill_common::words::{EVICTING, Word};

/// What is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    FenceOfThread,
    FenceOfEvictor,
    /// Publishing comes first.
    PublishFirst,
    /// The mark of the one who takes out comes first.
    MarkFirst,
    /// The bit by which words are found is set before it is looked who uses them (`table::obtain`).
    BitFirst,
}

impl Without {
    fn fence_of(self, side: Without) {
        if self != side {
            fence(Ordering::SeqCst);
        }
    }
}

/// A slot: the page that a call uses, and whether it does.
#[derive(Default)]
struct Slot {
    count: AtomicU32,
    page: AtomicU32,
}

impl Slot {
    fn publish(&self, page: u32) {
        self.page.store(page, Ordering::Relaxed);
        self.count.store(1, Ordering::Release);
    }

    fn withdraw(&self) {
        self.count.store(0, Ordering::Release);
    }

    fn names(&self, page: u32) -> bool {
        self.count.load(Ordering::Acquire) != 0 && self.page.load(Ordering::Relaxed) == page
    }
}

/// A page that is not there for a call: away, or without protection.
#[derive(Default)]
struct Page {
    is_out: AtomicU32,
}

impl Page {
    fn set(&self, is_out: bool) {
        self.is_out.swap(u32::from(is_out), Ordering::Relaxed);
    }

    fn call(&self) {
        assert_eq!(self.is_out.fetch_add(0, Ordering::Relaxed), 0, "a call meets a page that is out");
    }
}

/// Both sides are a few steps long: as often as a thread may be interrupted in them.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(5);
    builder.check(model);
}

/// A page that is taken out by windows: its word, the bit that says that there may be one, and whether it can
/// be touched.
#[derive(Default)]
struct Windows {
    bit: AtomicU32,
    word: AtomicU64,
    slot: Slot,
    page: Page,
}

impl Windows {
    fn call(&self, without: Without) {
        if without == Without::PublishFirst {
            self.settle();
        }
        self.slot.publish(0);
        without.fence_of(Without::FenceOfThread);
        if without != Without::PublishFirst {
            self.settle();
        }
        self.page.call();
        self.slot.withdraw();
    }

    /// `fill::settle_all`, of a page that comes back as soon as its window is over.
    fn settle(&self) {
        if self.bit.load(Ordering::SeqCst) == 0 {
            return;
        }
        while Word(self.word.load(Ordering::SeqCst)).state() == EVICTING {
            thread::yield_now();
        }
    }

    /// `evict::take_run`, of a page that stays where the kernel does not let it go.
    fn take(&self, without: Without) {
        let mark = || {
            if without != Without::BitFirst {
                self.bit.fetch_or(1, Ordering::SeqCst);
            }
            let evicting = Word::EMPTY.evicting();
            self.word.compare_exchange(0, evicting.0, Ordering::SeqCst, Ordering::SeqCst).unwrap();
        };
        if without != Without::MarkFirst {
            mark();
        }
        without.fence_of(Without::FenceOfEvictor);
        let is_in_use = self.slot.names(0);
        if without == Without::MarkFirst {
            mark();
        }
        if without == Without::BitFirst {
            self.bit.fetch_or(1, Ordering::SeqCst);
        }
        if !is_in_use {
            self.page.set(true);
            self.page.set(false);
        }
        self.word.swap(Word::EMPTY.0, Ordering::SeqCst);
    }
}

fn windows(without: Without) {
    check(move || {
        let all = Arc::new(Windows::default());
        let evictor = Arc::clone(&all);
        let evictor = thread::spawn(move || evictor.take(without));
        all.call(without);
        evictor.join().unwrap();
    });
}

#[test]
fn in_use_no_window_opens_on_what_a_call_has_published() {
    windows(Without::Nothing);
}

#[test]
#[should_panic(expected = "a call meets a page that is out")]
fn in_use_control_window_thread_without_fence() {
    windows(Without::FenceOfThread);
}

#[test]
#[should_panic(expected = "a call meets a page that is out")]
fn in_use_control_window_evictor_without_fence() {
    windows(Without::FenceOfEvictor);
}

#[test]
#[should_panic(expected = "a call meets a page that is out")]
fn in_use_control_window_thread_that_looks_first() {
    windows(Without::PublishFirst);
}

#[test]
#[should_panic(expected = "a call meets a page that is out")]
fn in_use_control_window_evictor_that_looks_first() {
    windows(Without::MarkFirst);
}

#[test]
#[should_panic(expected = "a call meets a page that is out")]
fn in_use_control_window_look_before_the_bit() {
    windows(Without::BitFirst);
}
