//! How much of a stream's window comes along with the page that a thread reads from the pool by itself.
//!
//! The rule is the engine's too (`streams.rs` and `window.rs` of common/). Here is what differs:
//!
//! - The window ends before the first page that is there, because its pages are filled in by one call.
//! - The supervisor is told of each page that is left out, with the page that is needed. It sees whether that
//!   page faults by itself, and says which windows are worth bringing.
//!
//! What it does not do: know the words, or bring anything (`from_pool.rs`).

use crate::common::link::LeftOut;
use crate::common::window::{BLOCK_ORDERS, Verdict, Window, order_of, verdict};

/// What is said of windows.
pub struct Limits {
    /// Pages of a block.
    pub block_pages: u64,
    /// `Link::distrusted`.
    pub distrusted: u64,
}

/// How many pages of a window come, with the one that is needed, and what is left out. `slot_of` a page that
/// is away is its slot, or 0 if that is not known. `next_number`: another one each time.
pub fn wanted(
    window: &Window,
    limits: &Limits,
    next_number: impl FnOnce() -> u64,
    slot_of: &impl Fn(u64) -> Option<u64>,
) -> (u64, LeftOut) {
    if !window.is_proven {
        return (1, LeftOut::NONE);
    }
    let pages = away(window, limits, slot_of);
    if pages == 1 {
        return (1, LeftOut::NONE);
    }
    let is_worth_it = limits.distrusted >> order_of(pages) & 1 == 0;
    let (comes, nth) = match verdict(pages as usize, is_worth_it, next_number()) {
        Verdict::Bring => return (pages, LeftOut::NONE),
        Verdict::Try(nth) => (nth as u64, nth as i16),
        Verdict::Leave(nth) => (1, nth as i16),
    };
    let distance = if window.is_down { -nth } else { nth };
    (comes, LeftOut { pages: pages as u16, distance })
}

/// The pages that are away in a row: of the rest of a block, or of the window.
fn away(window: &Window, limits: &Limits, slot_of: &impl Fn(u64) -> Option<u64>) -> u64 {
    let largest = window.earned_order().min(*BLOCK_ORDERS.end()).min(order_of(limits.block_pages));
    let known_slot = |page: u64| slot_of(page).filter(|slot| *slot != 0);
    let block = window.block(*BLOCK_ORDERS.start()..=largest, known_slot);
    let block_pages = block.map_or(0, |block| block.end - block.start);
    if block_pages > window.pages {
        return block_pages;
    }
    let window = window.ending_with_a_block(1 << BLOCK_ORDERS.start());
    1 + (1..window.pages).take_while(|n| slot_of(window.page(*n)).is_some()).count() as u64
}
