//! How many faults a program pays that fills new memory, and how much comes that it has not asked for.

use memspill_engine::backing::QueueId;
use memspill_engine::engine::Engine;
use memspill_engine::fill::{Fault, Outcome, Scratch, WINDOW_MAX, ZERO_WINDOW_MAX};
use memspill_engine::space::Space;
use memspill_engine::testing::blank::BlankMemory;
use memspill_engine::tuning::Tuning;
use memspill_engine::units::{CpuId, PAGE_SIZE, SpaceId, Vpn};
use memspill_engine::word::State;
use std::sync::Arc;

const CPU: CpuId = CpuId(0);
const PAGES: u64 = 8192;
/// Not the beginning of a chunk.
const FIRST: u64 = 7 + (1 << 20);

/// The engine, and a space with nothing in it.
fn empty(limit_pages: u64) -> (Engine, Arc<Space>) {
    let engine = Engine::new(Vec::new(), limit_pages * PAGE_SIZE as u64, Tuning::default());
    let space = Arc::new(Space::new(SpaceId(1), Arc::new(BlankMemory)));
    engine.add_space(space.clone());
    (engine, space)
}

/// Writes to a page. How many pages that has brought.
fn write(engine: &Engine, space: &Arc<Space>, vpn: u64) -> u64 {
    let before = space.resident_pages();
    let fault = Fault { vpn: Vpn(vpn), write: true, urgent: false, favoured: false };
    let outcome = engine.fault(CPU, QueueId(0), space, fault, &mut Scratch::default());
    assert!(matches!(outcome, Outcome::Done), "page {vpn} does not come");
    assert_eq!(space.word(Vpn(vpn)).state(), State::Resident);
    space.resident_pages() - before
}

/// Writes to all pages in this order, as far as they fault: (faults, the most pages of one fault).
fn fill(engine: &Engine, space: &Arc<Space>, order: impl Iterator<Item = u64>) -> (u64, u64) {
    let (mut faults, mut most) = (0, 0);
    for vpn in order {
        if space.word(Vpn(vpn)).state() != State::Resident {
            most = most.max(write(engine, space, vpn));
            faults += 1;
        }
    }
    (faults, most)
}

#[test]
fn memory_that_is_filled_in_order_comes_by_chunks_where_there_is_plenty() {
    let (engine, space) = empty(4 * PAGES);
    let (faults, most) = fill(&engine, &space, FIRST..FIRST + PAGES);
    // 17 chunks, and the ten faults by which the window grows; the first chunk ends before that.
    assert!(faults <= 17 + 12, "{faults} faults");
    assert_eq!(most, ZERO_WINDOW_MAX as u64);
    let beyond = space.resident_pages() - PAGES;
    assert!(beyond < ZERO_WINDOW_MAX as u64, "{beyond} pages too many");
    engine.check();
}

#[test]
fn memory_that_is_filled_downwards_comes_by_large_windows_too() {
    let (engine, space) = empty(4 * PAGES);
    let (faults, _) = fill(&engine, &space, (FIRST..FIRST + PAGES).rev());
    assert!(faults <= 60, "{faults} faults");
    engine.check();
}

#[test]
fn memory_that_is_used_here_and_there_comes_page_by_page() {
    let (engine, space) = empty(4 * PAGES);
    let (faults, most) = fill(&engine, &space, (0..PAGES).step_by(64).map(|at| FIRST + at * 7 % PAGES));
    assert_eq!((faults, most), (PAGES / 64, 1));
    assert_eq!(space.resident_pages(), PAGES / 64);
}

#[test]
fn where_room_is_short_windows_are_short() {
    let (engine, space) = empty(PAGES);
    // Less than an eighth is left.
    let (_, most) = fill(&engine, &space, FIRST..FIRST + PAGES * 29 / 32);
    assert_eq!(most, ZERO_WINDOW_MAX as u64);
    let before = space.resident_pages();
    let (_, most) = fill(&engine, &space, FIRST + before..FIRST + PAGES * 31 / 32);
    assert!((1..=WINDOW_MAX as u64).contains(&most), "{most} pages");
    engine.check();
}
