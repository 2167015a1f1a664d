//! Pages that their owner brings back by himself: he is told where they are stored (`Memory::stored`), reads
//! them there, and tells the engine afterwards (`Engine::note_there`). Random histories, with every byte
//! checked; batches are written some time after they were taken.

use memspill_engine::backing::{Backing, QueueId, ReadRequest, ReadStart};
use memspill_engine::devices::Device;
use memspill_engine::engine::Engine;
use memspill_engine::fill::{Fault, Outcome, Scratch};
use memspill_engine::memory::{Fill, Memory, PageRun, Stop, Take};
use memspill_engine::slots::Slots;
use memspill_engine::space::Space;
use memspill_engine::testing::device::{Lost, MockBacking};
use memspill_engine::testing::random::Random;
use memspill_engine::testing::stamp::{stamp_of, stamped};
use memspill_engine::tuning::Tuning;
use memspill_engine::units::{CpuId, PAGE_SIZE, Page, SpaceId, Vpn, page_buf};
use memspill_engine::word::{State, SwapEntry};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

const CPU: CpuId = CpuId(0);
const QUEUE: QueueId = QueueId(0);
const PAGES: u64 = 600;
const MEMORY_PAGES: u64 = 256;

#[derive(Default)]
struct Owner {
    there: Mutex<HashMap<u64, u64>>,
    hints: Mutex<HashMap<u64, SwapEntry>>,
}

impl Memory for Owner {
    fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
        let (mut there, mut hints, mut taken) = (self.there.lock().unwrap(), self.hints.lock().unwrap(), 0);
        for vpn in runs.iter().flat_map(|run| (0..u64::from(run.pages)).map(|i| run.vpn.0 + i)) {
            let stamp = there.remove(&vpn).expect("a resident page is there");
            assert!(!hints.contains_key(&vpn), "page {vpn} was brought, and its hint is still there");
            hints.remove(&vpn);
            frames[taken] = stamped(stamp);
            taken += 1;
            outcome.push(Take::Moved);
        }
    }
    fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
        for (at, page) in pages.iter().enumerate() {
            let page_at = vpn.0 + at as u64;
            self.hints.lock().unwrap().remove(&page_at);
            assert!(self.there.lock().unwrap().insert(page_at, stamp_of(page)).is_none());
        }
        Fill { pages: pages.len(), stop: Stop::Done }
    }
    fn put_zero(&self, vpn: Vpn, pages: usize, _: bool) -> Fill {
        (vpn.0..vpn.0 + pages as u64).for_each(|vpn| {
            assert!(self.there.lock().unwrap().insert(vpn, 0).is_none());
        });
        Fill { pages, stop: Stop::Done }
    }
    fn wants_stored(&self) -> bool {
        true
    }
    fn stored(&self, pages: &[(Vpn, SwapEntry)]) {
        for (vpn, entry) in pages {
            assert!(!self.there.lock().unwrap().contains_key(&vpn.0), "{vpn:?} has come back");
            self.hints.lock().unwrap().insert(vpn.0, *entry);
        }
    }
    fn poison(&self, _: Vpn) {}
    fn wake(&self, _: Vpn, _: usize) {}
}

#[test]
fn what_an_owner_brings_by_hints_is_what_he_had() {
    let mut brought_early = 0;
    for seed in 1..=6 {
        brought_early += history(&mut Random(seed * 77));
    }
    assert!(brought_early > 3000, "only {brought_early} pages came early");
}

fn history(random: &mut Random) -> u64 {
    let (tuning, slots) = (Tuning::default(), 4 * PAGES as u32);
    let backing = Arc::new(MockBacking::new(slots, true, Arc::new(Lost::default())));
    let device = Device::new("test".into(), 0, Slots::new(slots, 1, false, &tuning), backing.clone());
    let engine = Engine::new(vec![device], MEMORY_PAGES * PAGE_SIZE as u64, tuning);
    let owner = Arc::new(Owner::default());
    let space = Arc::new(Space::new(SpaceId(1), owner.clone()));
    engine.add_space(space.clone());
    let (mut scratch, mut waiting, mut stamps) = (Scratch::default(), Vec::new(), HashMap::new());
    let mut early = 0;
    for stamp in 1..8000 {
        // Spread, so that few come by readahead.
        let vpn = Vpn(7 * random.below(PAGES));
        while !owner.there.lock().unwrap().contains_key(&vpn.0) {
            let hint = owner.hints.lock().unwrap().get(&vpn.0).copied();
            if let Some(entry) = hint.filter(|_| !random.one_in(4)) {
                let request =
                    ReadRequest { token: 0, slots: vec![entry.slot], buf: page_buf(1), is_awaited: true };
                let ReadStart::Done(done) = backing.read(QUEUE, request) else { panic!("it waits") };
                assert!(done.results[0].is_ok(), "a hint names a slot that holds nothing");
                owner.hints.lock().unwrap().remove(&vpn.0);
                owner.there.lock().unwrap().insert(vpn.0, stamp_of(&done.buf[0]));
                let before = engine.root().usage_bytes();
                let comes_along = random.one_in(3);
                let counters = engine.stats().on(CPU);
                let counted = || {
                    let of = [&counters.pswpin, &counters.pgmajfault, &counters.swap_ra];
                    of.map(|counter| counter.load(Ordering::Relaxed))
                };
                let [read, faults, along] = counted();
                let note_there = || {
                    let _inside = space.gate.enter_fill();
                    assert!(engine.note_there(CPU, &space, vpn, comes_along));
                };
                note_there();
                assert_eq!(space.word(vpn).state(), State::Resident);
                assert_eq!(engine.root().usage_bytes(), before + PAGE_SIZE as u64);
                // Told again it is the same.
                note_there();
                assert_eq!(engine.root().usage_bytes(), before + PAGE_SIZE as u64);
                let comes = u64::from(comes_along);
                assert_eq!(counted(), [read + 1, faults + 1 - comes, along + comes]);
                early += 1;
                continue;
            }
            let fault = Fault { vpn, write: true, urgent: false, favoured: false };
            let outcome = engine.fault(CPU, QUEUE, &space, fault, &mut scratch);
            if matches!(outcome, Outcome::NoRoom) {
                waiting.extend(engine.shrink(CPU, &space, 32).1);
            }
        }
        let expected = stamps.get(&vpn.0).copied().unwrap_or(0);
        assert_eq!(owner.there.lock().unwrap()[&vpn.0], expected, "page {vpn:?}");
        if random.one_in(2) {
            owner.there.lock().unwrap().insert(vpn.0, stamp);
            stamps.insert(vpn.0, stamp);
        }
        if engine.root().above_high_mark() {
            waiting.extend(engine.shrink(CPU, &space, 32).1);
        }
        if random.one_in(3) || waiting.len() > 3 {
            waiting.drain(..).for_each(|batch| _ = engine.write_out(CPU, QUEUE, batch));
        }
    }
    waiting.drain(..).for_each(|batch| _ = engine.write_out(CPU, QUEUE, batch));
    engine.check();
    space.release(engine.swap(), CPU);
    assert!(backing.is_empty(), "slots are left");
    early
}
