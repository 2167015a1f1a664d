//! The kernel's test of its slot allocator for large folios (tools/mm, thp_swap_allocator_test), as a pattern: does the
//! room of freed folios serve new ones, round after round?
//!
//! ```text
//!   60 MiB of 64 KiB folios on a device of 64 MiB; in each round
//!     16 MiB of them, at random, are given up and written anew
//!     some pages, at random, are read
//!     all leaves (MADV_PAGEOUT)                  how many folios had to be split?
//! ```
//!
//! It drives a whole engine: victims, slots, swap cache, swap-in. Only the bytes are not there.

use memspill_engine::backing::*;
use memspill_engine::engine::{Device, Engine};
use memspill_engine::memory::{Fill, Memory, Run, Stop, Take};
use memspill_engine::slots::SwapDevice;
use memspill_engine::space::Space;
use memspill_engine::swap_in::{Fault, Outcome, Scratch};
use memspill_engine::tuning::Tuning;
use memspill_engine::units::{CpuId, Order, Page, SlotIndex, SpaceId, Vpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub const ROUNDS: usize = 100;
const FOLIO: Order = Order(4);
const FOLIOS: u64 = (60 << 20) / (64 << 10);
const ANEW: u64 = (16 << 20) / (64 << 10);
const READ: u64 = 64;
const DEVICE_SLOTS: u32 = (64 << 20) / 4096;
const CPU: CpuId = CpuId(0);
const QUEUE: QueueId = QueueId(0);

/// Pages of which each holds something.
struct Full;

impl Memory for Full {
    fn take(&self, runs: &[Run], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let pages = runs.iter().map(|run| run.pages as usize).sum();
        frames[..pages].iter_mut().for_each(|frame| frame.0[4095] = 1);
        outcome.resize(outcome.len() + pages, Take::Moved);
    }
    fn put(&self, _: Vpn, pages: &[Page]) -> Fill {
        Fill { pages: pages.len(), stop: Stop::Done }
    }
    fn put_zero(&self, _: Vpn, pages: usize, _: bool) -> Fill {
        Fill { pages, stop: Stop::Done }
    }
    fn poison(&self, _: Vpn) {}
    fn wake(&self, _: Vpn, _: usize) {}
}

/// Takes everything, and gives back as much; counts requests, as a file makes them.
#[derive(Default)]
struct Empty {
    write_ios: AtomicU64,
    pages: AtomicU64,
}

impl Backing for Empty {
    fn properties(&self) -> Properties {
        Properties { slots: DEVICE_SLOTS, synchronous: true, rotational: false, discard: false }
    }
    fn write(&self, _: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        let mut slots: Vec<SlotIndex> = pages.iter().map(|write| write.slot).collect();
        slots.sort_unstable();
        let runs = slots.chunk_by(|a, b| a.0 + 1 == b.0).count();
        self.write_ios.fetch_add(runs as u64, Ordering::Relaxed);
        self.pages.fetch_add(pages.len() as u64, Ordering::Relaxed);
        results.resize(results.len() + pages.len(), Ok(()));
    }
    fn read(&self, _: QueueId, request: ReadRequest) -> ReadStart {
        let ReadRequest { token, slots, buf } = request;
        let results = vec![Ok(()); slots.len()];
        ReadStart::Done(ReadDone { token, slots, buf, results })
    }
    fn reap(&self, _: QueueId, _: &mut Vec<ReadDone>) {}
    fn poll_fd(&self, _: QueueId) -> Option<i32> {
        None
    }
    fn discard(&self, _: &[SlotIndex]) {}
    fn maintain(&self, _: QueueId) -> bool {
        false
    }
    fn set_ram_limit_bytes(&self, _: u64) {}
    fn usage(&self) -> Usage {
        Usage::default()
    }
}

/// The engine, the space that goes out and comes in, and the device.
pub struct Test {
    engine: Engine,
    space: Arc<Space>,
    device: Arc<Empty>,
    random: u64,
}

/// So far, all rounds together.
#[derive(Clone, Copy)]
pub struct Counts {
    pub pages: u64,
    pub cluster_locks: u64,
    pub list_locks: u64,
    pub write_ios: u64,
    /// Folios that left whole, and that were split.
    pub whole: u64,
    pub split: u64,
}

/// The share of folios that were split, in percent, round by round.
pub fn fallback_percent(large_folios: &str) -> Vec<f64> {
    let mut test = Test::new(&[&format!("large-folios={large_folios}"), "folio=64K"]);
    let percent = (0..ROUNDS).map(|_| test.percent_of_round()).collect();
    test.check();
    percent
}

impl Test {
    pub fn new(knobs: &[&str]) -> Test {
        let tuning = Tuning::parse(knobs.iter().copied()).expect("knobs");
        let slots = SwapDevice::new(DEVICE_SLOTS, 1, false, &tuning);
        let device = Arc::new(Empty::default());
        let devices = vec![Device::new("64 MiB".into(), 0, slots, device.clone())];
        let engine = Engine::new(devices, u64::MAX / 2, tuning);
        let space = Arc::new(Space::new(SpaceId(1), Arc::new(Full)));
        engine.add_space(space.clone());
        let test = Test { engine, space, device, random: 1 };
        (0..FOLIOS).for_each(|folio| test.write_anew(folio));
        test.page_out();
        test
    }

    pub fn check(&self) {
        self.engine.check();
    }

    pub fn counts(&self) -> Counts {
        let slots = self.engine.devices[0].slots.stats();
        let of_order = self.engine.stats.of_order(FOLIO);
        let value = |name| of_order.iter().find(|(n, ..)| *n == name).expect("a counter").1;
        Counts {
            pages: self.device.pages.load(Ordering::Relaxed),
            cluster_locks: slots.cluster_locks,
            list_locks: slots.list_locks,
            write_ios: self.device.write_ios.load(Ordering::Relaxed),
            whole: value("swpout"),
            split: value("swpout_fallback"),
        }
    }

    fn percent_of_round(&mut self) -> f64 {
        let before = self.counts();
        self.round();
        let after = self.counts();
        let (whole, split) = (after.whole - before.whole, after.split - before.split);
        split as f64 * 100.0 / (whole + split) as f64
    }

    pub fn round(&mut self) {
        for _ in 0..ANEW {
            let folio = self.below(FOLIOS);
            self.write_anew(folio);
        }
        for _ in 0..READ {
            let page = self.below(FOLIOS * u64::from(FOLIO.pages()));
            let fault = Fault { vpn: Vpn(page), write: false, urgent: false, favoured: false };
            let outcome = self.engine.fault(CPU, QUEUE, &self.space, fault, &mut Scratch::default());
            assert!(matches!(outcome, Outcome::Done));
        }
        self.page_out();
    }

    fn write_anew(&self, folio: u64) {
        let pages = u64::from(FOLIO.pages());
        let (from, to) = (Vpn(folio * pages), Vpn((folio + 1) * pages));
        self.space.unmap(&self.engine, CPU, from, to);
        self.space.adopt(&self.engine, from, to);
    }

    fn page_out(&self) {
        let (mut at, end) = (Vpn(0), Vpn(FOLIOS * u64::from(FOLIO.pages())));
        while at < end {
            let (_, write_out, next) = self.engine.pageout(CPU, &self.space, at, end);
            if let Some(write_out) = write_out {
                self.engine.write_out(CPU, QUEUE, write_out);
            }
            at = next;
        }
        assert_eq!(self.space.resident_pages(), 0, "all has left");
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) % n
    }
}
