//! The kernel's test of its slot allocator for large folios (tools/mm, thp_swap_allocator_test), as a
//! pattern: does the room of freed folios serve new ones, round after round?
//!
//! ```text
//!   60 MiB of 64 KiB folios on a device of 64 MiB; in each round
//!     16 MiB of them, at random, are given up and written anew
//!     some pages, at random, are read
//!     all leaves (MADV_PAGEOUT)                  how much of these folios left as single pages?
//! ```
//!
//! By default folios that lie side by side leave as larger ones, if there is room for those.
//!
//! It drives a whole engine: victims, slots, swap cache, swap-in. Only the bytes are not there.

use memspill_engine::backing::QueueId;
use memspill_engine::devices::Device;
use memspill_engine::engine::Engine;
use memspill_engine::fill::{Fault, Outcome, Scratch};
use memspill_engine::slots::Slots;
use memspill_engine::space::Space;
use memspill_engine::stats::ORDERS;
use memspill_engine::testing::blank::{BlankDevice, BlankMemory};
use memspill_engine::testing::random::Random;
use memspill_engine::tuning::Tuning;
use memspill_engine::units::{CpuId, MAX_ORDER, Order, SpaceId, Vpn};
use std::sync::Arc;

pub const ROUNDS: usize = 100;
const FOLIO: Order = Order(4);
const FOLIOS: u64 = (60 << 20) / (64 << 10);
const ANEW: u64 = (16 << 20) / (64 << 10);
const READ: u64 = 64;
const DEVICE_SLOTS: u32 = (64 << 20) / 4096;
const CPU: CpuId = CpuId(0);
const QUEUE: QueueId = QueueId(0);

/// The engine, and the space that goes out and comes in.
pub struct Test {
    engine: Engine,
    space: Arc<Space>,
    random: Random,
}

/// So far, all rounds together.
#[derive(Clone, Copy)]
pub struct Counts {
    /// Pages that left in folios of 64 KiB or more, and pages of such folios that left singly.
    pub whole_pages: u64,
    pub split_pages: u64,
    /// Folios of each order that did not leave whole: they went as smaller ones, or as single pages.
    pub fallbacks: [u64; ORDERS],
}

impl Counts {
    /// The share of folios' pages that left singly since `before`, in percent.
    pub fn split_percent(&self, before: &Counts) -> f64 {
        let (whole, split) = (self.whole_pages - before.whole_pages, self.split_pages - before.split_pages);
        split as f64 * 100.0 / (whole + split).max(1) as f64
    }
}

/// The share of folios that were split, in percent, round by round.
pub fn split_percent(knobs: &[&str]) -> Vec<f64> {
    let mut test = Test::new(knobs);
    let percent = (0..ROUNDS).map(|_| test.percent_of_round()).collect();
    test.check();
    percent
}

impl Test {
    pub fn new(knobs: &[&str]) -> Test {
        let tuning = Tuning::parse(knobs.iter().copied()).expect("knobs");
        let slots = Slots::new(DEVICE_SLOTS, 1, false, &tuning);
        let device = Arc::new(BlankDevice::new(DEVICE_SLOTS));
        let devices = vec![Device::new("64 MiB".into(), 0, slots, device)];
        let engine = Engine::new(devices, u64::MAX / 2, tuning);
        let space = Arc::new(Space::new(SpaceId(1), Arc::new(BlankMemory)));
        engine.add_space(space.clone());
        let test = Test { engine, space, random: Random(1) };
        (0..FOLIOS).for_each(|folio| test.write_anew(folio));
        test.page_out();
        test
    }

    pub fn check(&self) {
        self.engine.check();
    }

    pub fn counts(&self) -> Counts {
        let of_order = |order: u8, name: &str| {
            let counters = self.engine.stats().of_order(Order(order));
            counters.iter().find(|(n, ..)| *n == name).expect("a counter").1
        };
        let orders = FOLIO.0..=MAX_ORDER;
        Counts {
            whole_pages: orders.clone().map(|order| of_order(order, "swpout") << order).sum(),
            split_pages: self.engine.stats().sum(|c| &c.swpout_split)
                + orders.clone().map(|order| of_order(order, "split") << order).sum::<u64>(),
            fallbacks: std::array::from_fn(|order| of_order(order as u8, "swpout_fallback")),
        }
    }

    fn percent_of_round(&mut self) -> f64 {
        let before = self.counts();
        self.round();
        self.counts().split_percent(&before)
    }

    pub fn round(&mut self) {
        for _ in 0..ANEW {
            let folio = self.random.below(FOLIOS);
            self.write_anew(folio);
        }
        for _ in 0..READ {
            let page = self.random.below(FOLIOS * u64::from(FOLIO.pages()));
            let fault = Fault { vpn: Vpn(page), write: false, urgent: false, favoured: false };
            let outcome = self.engine.fault(CPU, QUEUE, &self.space, fault, &mut Scratch::default());
            assert!(matches!(outcome, Outcome::Done));
        }
        self.page_out();
    }

    /// Every second folio is given up, and `folios` in a row are written elsewhere: there is room for them,
    /// but in few places for two side by side.
    pub fn write_in_a_row(&self, folios: u64) {
        for folio in (0..FOLIOS).step_by(2) {
            let (from, to) = range_of(folio);
            self.space.unmap(self.engine.swap(), CPU, from, to);
        }
        (FOLIOS..FOLIOS + folios).for_each(|folio| self.write_anew(folio));
        self.page_out();
    }

    fn write_anew(&self, folio: u64) {
        let (from, to) = range_of(folio);
        self.space.unmap(self.engine.swap(), CPU, from, to);
        self.space.adopt(self.engine.swap(), from, to);
    }

    fn page_out(&self) {
        let (mut at, end) = (Vpn(0), range_of(2 * FOLIOS).0);
        while at < end {
            let (_, write_out, next) = self.engine.pageout(CPU, &self.space, at, end);
            if let Some(write_out) = write_out {
                self.engine.write_out(CPU, QUEUE, write_out);
            }
            at = next;
        }
        assert_eq!(self.space.resident_pages(), 0, "all has left");
    }
}

fn range_of(folio: u64) -> (Vpn, Vpn) {
    let pages = u64::from(FOLIO.pages());
    (Vpn(folio * pages), Vpn((folio + 1) * pages))
}
