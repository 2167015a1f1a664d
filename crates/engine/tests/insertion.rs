//! The place of a returning page in the order of victims: whole loops through the
//! engine, in memory for some of their pages. Without bytes and threads.

use memspill_engine::backing::QueueId;
use memspill_engine::devices::Device;
use memspill_engine::engine::Engine;
use memspill_engine::fill::{Fault, Outcome, Scratch};
use memspill_engine::slots::Slots;
use memspill_engine::space::Space;
use memspill_engine::testing::blank::{BlankDevice, BlankMemory};
use memspill_engine::tuning::{Insertion, Tuning};
use memspill_engine::units::{CpuId, PAGE_SIZE, SpaceId, Vpn};
use memspill_engine::word::State;
use std::sync::Arc;

const MEMORY: u64 = 8192;
const CPU: CpuId = CpuId(0);
const QUEUE: QueueId = QueueId(0);
const BATCH: usize = 64;

struct Job {
    engine: Engine,
    space: Arc<Space>,
    scratch: Scratch,
    faults: u64,
}

impl Job {
    fn new(insertion: Insertion) -> Job {
        let tuning = Tuning { insertion, ..Tuning::default() };
        let slots = 8 * MEMORY as u32;
        let backing = Arc::new(BlankDevice::new(slots));
        let device = Device::new("test".into(), 0, Slots::new(slots, 1, false, &tuning), backing);
        let engine = Engine::new(vec![device], MEMORY * PAGE_SIZE as u64, tuning);
        let space = Arc::new(Space::new(SpaceId(1), Arc::new(BlankMemory)));
        engine.add_space(space.clone());
        Job { engine, space, scratch: Scratch::default(), faults: 0 }
    }

    fn touch(&mut self, page: u64) {
        // Blocks are whole. (Rows of these pages are rows of faults, and come several at a time.)
        let vpn = Vpn(1 << 20 | page);
        while self.space.word(vpn).state() != State::Resident {
            let fault = Fault { vpn, write: true, urgent: false, favoured: false };
            let outcome = self.engine.fault(CPU, QUEUE, &self.space, fault, &mut self.scratch);
            self.faults += u64::from(!matches!(outcome, Outcome::NoRoom));
            if matches!(outcome, Outcome::NoRoom) || self.engine.root().above_high_mark() {
                // None may be taken: where all that it looked at has another round.
                let (_, batch) = self.engine.shrink(CPU, &self.space, BATCH);
                if let Some(batch) = batch {
                    self.engine.write_out(CPU, QUEUE, batch);
                }
            }
        }
    }

    fn swapped_in(&self) -> u64 {
        self.engine.stats().sum(|c| &c.pswpin)
    }
}

/// Pages that come in while `touches` are made, after others have been.
fn come_in(insertion: Insertion, before: &[u64], touches: &[u64]) -> u64 {
    let mut job = Job::new(insertion);
    before.iter().for_each(|page| job.touch(*page));
    let at_first = job.swapped_in();
    touches.iter().for_each(|page| job.touch(*page));
    job.engine.check();
    job.swapped_in() - at_first
}

/// The touches of `rounds` rounds over `pages` pages.
fn rounds(pages: u64, rounds: u64) -> Vec<u64> {
    (0..rounds * pages).map(|i| i % pages).collect()
}

/// Pages of [first, first + pages) as a generator draws them.
fn draws(first: u64, pages: u64, n: u64) -> Vec<u64> {
    let mut draw = first + 1;
    let mut next = || {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        first + ((u128::from(draw) * u128::from(pages)) >> 64) as u64
    };
    (0..n).map(|_| next()).collect()
}

#[test]
fn a_loop_larger_than_memory_keeps_most_of_what_fits() {
    for (pages, most) in [(MEMORY * 6 / 5, 0.45), (MEMORY * 2, 0.72)] {
        let (warm_up, measured) = (rounds(pages, 10), rounds(pages, 10));
        let share = |insertion| come_in(insertion, &warm_up, &measured) as f64 / measured.len() as f64;
        let (arrival, duel) = (share(Insertion::Arrival), share(Insertion::Duel));
        // Pages that come along have no second round, so that a few of the others stay.
        assert!(arrival > 0.95, "{pages} pages by arrival: {arrival}");
        assert!(duel < most, "{pages} pages by duel: {duel}");
    }
}

/// What the duel is for: bimodal insertion alone would bring twice as many pages back.
#[test]
fn sets_that_follow_one_another_come_as_by_arrival() {
    let set = MEMORY * 7 / 10;
    let touches: Vec<u64> = (0..12).flat_map(|n| draws(n % 3 * set, set, 6 * set)).collect();
    let [arrival, duel] = [Insertion::Arrival, Insertion::Duel].map(|i| come_in(i, &[], &touches) as f64);
    assert!(duel < arrival * 1.06, "{arrival} and {duel}");
}

#[test]
fn independent_touches_are_not_worse_off() {
    let touches = draws(0, 2 * MEMORY, 40 * MEMORY);
    let [arrival, duel] = [Insertion::Arrival, Insertion::Duel].map(|i| come_in(i, &[], &touches) as f64);
    assert!((duel / arrival - 1.0).abs() < 0.02, "{arrival} and {duel}");
}
