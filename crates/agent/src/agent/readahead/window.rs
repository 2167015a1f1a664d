//! How much of a row's window comes along with the page that is needed.
//!
//! ```text
//!   window of a row ─▶ what is away, or the rest of a block that left together, if the row has earned one
//!                   ─▶ is so much worth bringing?   yes     all of it, but 1 in 32 ends before a page
//!                                                           that is left out
//!                                                   no      the page alone, and one is left out
//! ```
//!
//! The supervisor is told of each page that is left out, with the page that is needed. It sees whether that
//! page faults by itself, and says which windows are worth bringing: the engine's trust.rs, whose rule this
//! is; windows.rs there has that for blocks.
//!
//! A block: pages left together, if their slots are in a row, as their addresses are.
//!
//! What it does not do: find rows (`rows.rs`), or bring anything (`from_pool.rs`).

use super::rows::Way;
use crate::common::link::{EARLY_BLOCK_MAX, LeftOut};
use crate::machine::sys::PAGE;

/// One window of so many that are worth it ends early.
const SAMPLED: usize = 32;
/// Blocks of 2^4 to 2^6 pages; a row whose window is of 2^n may bring one of 2^(n + 2).
const BLOCK_ORDERS: core::ops::RangeInclusive<u32> = 4..=6;
const _: () = assert!(1 << *BLOCK_ORDERS.end() == EARLY_BLOCK_MAX);
const EARNED_ORDERS: u32 = 2;

/// What is said of windows.
pub struct Limits {
    /// Pages of a window, and of a block.
    pub window_pages: usize,
    pub block_pages: usize,
    /// `Link::distrusted`.
    pub distrusted: u64,
}

/// How many pages of a window come, with the one that is needed, and what is left out. `slot_of` a page that
/// is away is its slot, or 0 if that is not known. `next_number`: another one each time.
pub fn wanted(
    way: &Way,
    limits: &Limits,
    next_number: impl FnOnce() -> usize,
    slot_of: &impl Fn(usize) -> Option<u64>,
) -> (usize, LeftOut) {
    let Limits { window_pages, block_pages, distrusted } = *limits;
    if way.pages == 1 || window_pages <= 1 {
        return (window_pages.min(1), LeftOut::NONE);
    }
    let away = (1..way.pages.min(window_pages)).take_while(|n| slot_of(way.page(*n)).is_some());
    let pages = (1 + away.count()).max(block(way, block_pages, slot_of).unwrap_or(1));
    if pages == 1 {
        return (1, LeftOut::NONE);
    }
    let number = next_number();
    let is_worth_it = distrusted >> order_of(pages) & 1 == 0;
    if is_worth_it && !number.is_multiple_of(SAMPLED) {
        return (pages, LeftOut::NONE);
    }
    let place = 1 + any(number, pages - 1);
    let distance = if way.is_down() { -(place as i16) } else { place as i16 };
    (if is_worth_it { place } else { 1 }, LeftOut { pages: pages as u16, distance })
}

fn order_of(pages: usize) -> u32 {
    pages.checked_ilog2().unwrap_or(0)
}

/// Any number below `n`.
fn any(number: usize, n: usize) -> usize {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    mixed.wrapping_mul(n) >> 32
}

/// The rest of the largest block: how many pages, from the one that is needed on in the direction of its row.
fn block(way: &Way, most: usize, slot_of: &impl Fn(usize) -> Option<u64>) -> Option<usize> {
    let earned = (order_of(way.pages) + EARNED_ORDERS).min(*BLOCK_ORDERS.end()).min(order_of(most));
    let slot = slot_of(way.page(0)).filter(|slot| *slot != 0)?;
    let in_a_row = |n: usize| {
        let n_slots = n as u64;
        let expected = if way.is_down() { slot.wrapping_sub(n_slots) } else { slot.wrapping_add(n_slots) };
        slot_of(way.page(n)) == Some(expected)
    };
    (*BLOCK_ORDERS.start()..=earned).rev().map(|order| 1usize << order).find_map(|pages| {
        let at = (way.page(0) / PAGE) & (pages - 1);
        let part = if way.is_down() { at + 1 } else { pages - at };
        let is_block = slot as usize & (pages - 1) == at && (1..part).all(in_a_row);
        is_block.then_some(part)
    })
}
