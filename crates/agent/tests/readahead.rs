//! Which pages come with the one that faults: the rule of memspill-common, seen through the engine, as the
//! supervisor uses it, and through the agent, as a thread does that reads its pages from the pool by itself.

use memspill_common as common;
use memspill_common::link::LeftOut;
use memspill_common::streams::Streams;
use memspill_common::window::{BLOCK_PAGES_MAX, WINDOW_PAGES_MAX};
use memspill_engine::backing::QueueId;
use memspill_engine::devices::Device;
use memspill_engine::engine::Engine;
use memspill_engine::fill::{Fault, Scratch};
use memspill_engine::slots::Slots;
use memspill_engine::space::{CHUNK_PAGES, Space};
use memspill_engine::testing::blank::{BlankDevice, BlankMemory};
use memspill_engine::tuning::Tuning;
use memspill_engine::units::{CpuId, SpaceId, Vpn};
use memspill_engine::word::State;
use readahead::{Limits, wanted};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

#[path = "../src/agent/pages/readahead.rs"]
mod readahead;

const CPU: CpuId = CpuId(0);
const QUEUE: QueueId = QueueId(0);
/// Not a multiple of a block.
const FIRST: u64 = (1 << 20) + 5;
const PAGES: u64 = 4096;

/// A program of which every page is away, and there is room for all of them.
struct Supervised {
    engine: Engine,
    space: Arc<Space>,
}

impl Supervised {
    fn new() -> Supervised {
        let slots = 2 * PAGES as u32;
        let tuning = Tuning::default();
        let device = Device::new(
            "test".into(),
            0,
            Slots::new(slots, 1, false, &tuning),
            Arc::new(BlankDevice::new(slots)),
        );
        let engine = Engine::new(vec![device], 1 << 30, tuning);
        let space = Arc::new(Space::new(SpaceId(1), Arc::new(BlankMemory)));
        engine.add_space(space.clone());
        let program = Supervised { engine, space };
        for page in FIRST..FIRST + PAGES {
            program.fault(page);
        }
        while let (_, Some(batch)) = program.engine.shrink(CPU, &program.space, 64) {
            program.engine.write_out(CPU, QUEUE, batch);
        }
        assert_eq!(program.space.resident_pages(), 0);
        program
    }

    /// The pages that are away, and their slots.
    fn away(&self) -> BTreeMap<u64, u64> {
        // Windows of zeros may have gone on behind the last page that was touched.
        let pages = FIRST..FIRST + PAGES + CHUNK_PAGES;
        let words = pages.map(|page| (page, self.space.word(Vpn(page))));
        words
            .filter(|(_, w)| w.state() == State::Swapped)
            .map(|(p, w)| (p, w.entry().slot.0.into()))
            .collect()
    }

    /// Touches a page. Returns how many pages come.
    fn fault(&self, page: u64) -> u64 {
        let before = self.space.resident_pages();
        let fault = Fault { vpn: Vpn(page), write: true, urgent: false, favoured: false };
        if self.space.word(fault.vpn).state() != State::Resident {
            self.engine.fault(CPU, QUEUE, &self.space, fault, &mut Scratch::default());
        }
        self.space.resident_pages() - before
    }
}

/// The same program, paged by its agent.
struct Agent {
    streams: Streams,
    away: BTreeMap<u64, u64>,
    windows: u64,
}

impl Agent {
    fn fault(&mut self, page: u64) -> u64 {
        if !self.away.contains_key(&page) {
            return 0;
        }
        // The engine's windows end with a chunk of its page table: it claims them under one lock.
        let chunk = page & !(CHUNK_PAGES - 1);
        let window = self.streams.fault(page, WINDOW_PAGES_MAX).within(chunk..chunk + CHUNK_PAGES);
        let limits = Limits { block_pages: BLOCK_PAGES_MAX as u64, distrusted: 0 };
        let next_number = || {
            self.windows += 1;
            self.windows
        };
        let (pages, _) = wanted(&window, &limits, next_number, &|page| self.away.get(&page).copied());
        let came = common::window::Window { pages, ..window };
        self.streams.note_brought(page, came.range());
        for page in came.range() {
            self.away.remove(&page);
        }
        pages
    }
}

/// Touches these pages in both. Returns how many pages come with each fault, which is the same.
fn windows(touched: impl Iterator<Item = u64>) -> Vec<u64> {
    let supervised = Supervised::new();
    let mut agent = Agent { streams: Streams::empty(), away: supervised.away(), windows: 0 };
    let mut windows = vec![];
    for page in touched {
        let pages = supervised.fault(FIRST + page);
        assert_eq!(agent.fault(FIRST + page), pages, "page {page}, after {windows:?}");
        assert!(agent.away == supervised.away(), "page {page}");
        windows.extend((pages > 0).then_some(pages));
    }
    windows
}

#[test]
fn in_order_both_double_and_bring_what_is_left_of_blocks() {
    let up = windows(0..PAGES);
    let down = windows((0..PAGES).rev());
    for windows in [up, down] {
        assert!(windows.starts_with(&[1, 2]) && windows.contains(&64), "{windows:?}");
        assert!(windows.len() < 150, "{windows:?}");
    }
}

#[test]
fn both_know_the_same_streams_among_others() {
    let strides = |n: u64| (0..400).flat_map(move |step| (0..n).map(move |stream| stream * 500 + step));
    let seven = windows(strides(7));
    let nine = windows(strides(9).filter(|page| *page < PAGES));
    assert!(seven.len() < 150 && nine.len() > 2 * seven.len(), "{} {}", seven.len(), nine.len());
}

#[test]
fn both_bring_a_page_alone_where_nothing_is_in_order() {
    let random = (1..500u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40).map(|n| n % PAGES);
    let windows = windows(random);
    assert!(windows.iter().filter(|pages| **pages > 1).count() < 60, "{windows:?}");
}

#[test]
fn both_step_over_some_pages() {
    let eighth = windows((0..PAGES).step_by(8));
    assert!(eighth.iter().sum::<u64>() > PAGES * 3 / 4 && eighth.len() < 150, "{eighth:?}");
    let tenth = windows((0..PAGES).step_by(10));
    assert!(tenth.iter().all(|pages| *pages == 1), "{tenth:?}");
}

// ---- what is the agent's own ------------------------------------------------------------------------------

/// How many pages come of the window of a stream that goes up to page 1003, and what is left out, if [1000,
/// end) is away.
fn comes(pages: u64, distrusted: u64, number: u64, end: u64) -> (u64, LeftOut) {
    let window = common::window::Window { fault: 1003, pages, is_down: false, is_proven: true };
    let limits = Limits { block_pages: 96, distrusted };
    let away: Range<u64> = 1000..end;
    wanted(&window, &limits, || number, &|page| away.contains(&page).then_some(0))
}

#[test]
fn the_agent_stops_at_the_first_page_that_is_there() {
    assert_eq!(comes(4, 0, 1, 1006), (3, LeftOut::NONE));
    assert_eq!(comes(4, 0, 1, 1004), (1, LeftOut::NONE));
}

#[test]
fn the_agent_leaves_out_what_the_supervisor_says_is_not_worth_it() {
    let (pages, left_out) = comes(4, 1 << 2, 1, 2000);
    assert_eq!((pages, left_out.pages), (1, 4));
    assert!((1..4).contains(&left_out.distance));
    assert_eq!(comes(4, 1 << 2, 1, 1006).0, 3, "so few are away, and sizes are judged by themselves");
    let (pages, left_out) = comes(4, 0, 32, 2000);
    assert_eq!(left_out, LeftOut { pages: 4, distance: pages as i16 });
}
