//! `large-folios=split`: what is whole pays for being split, and nothing else does.

use memspill_engine::backing::QueueId;
use memspill_engine::devices::Device;
use memspill_engine::engine::Engine;
use memspill_engine::memory::{PageRun, Take};
use memspill_engine::slots::Slots;
use memspill_engine::space::Space;
use memspill_engine::testing::blank::{BlankDevice, SeenTaking};
use memspill_engine::tuning::Tuning;
use memspill_engine::units::{CpuId, Order, SpaceId, Vpn};
use std::sync::{Arc, Mutex};

const SLOTS: u32 = 4096;
const PAGES: u64 = 1024;
const CPU: CpuId = CpuId(0);

/// All pages leave: the runs in which they were moved, and the folios of each order that were split first.
fn page_out(knobs: &[&str]) -> (Vec<PageRun>, Vec<u64>) {
    let tuning = Tuning::parse(knobs.iter().copied()).expect("knobs");
    let slots = Slots::new(SLOTS, 1, false, &tuning);
    let device = Device::new("16 MiB".into(), 0, slots, Arc::new(BlankDevice::new(SLOTS)));
    let engine = Engine::new(vec![device], u64::MAX / 2, tuning);
    let runs: Arc<Mutex<Vec<PageRun>>> = Arc::default();
    let asked = Arc::clone(&runs);
    let memory = SeenTaking(move |runs: &[PageRun], _: &mut [Take]| asked.lock().unwrap().extend(runs));
    let space = Arc::new(Space::new(SpaceId(1), Arc::new(memory)));
    engine.add_space(space.clone());
    // The last 8 pages are no whole 64 KiB.
    space.adopt(engine.swap(), Vpn(0), Vpn(PAGES - 8));
    let mut at = Vpn(0);
    while at < Vpn(PAGES) {
        let (_, write_out, next) = engine.pageout(CPU, &space, at, Vpn(PAGES));
        if let Some(write_out) = write_out {
            engine.write_out(CPU, QueueId(0), write_out);
        }
        at = next;
    }
    assert_eq!(space.resident_pages(), 0);
    engine.check();
    let split = (0..=9).map(|order| engine.stats().sum(|counters| &counters.split[order])).collect();
    let runs = std::mem::take(&mut *runs.lock().unwrap());
    (runs, split)
}

#[test]
fn a_folio_that_is_split_leaves_page_by_page_and_is_counted() {
    let (folio, order) = ("folio=64K", Order(4));
    let (runs, split) = page_out(&["large-folios=split", folio]);
    let whole = (PAGES - 8) / u64::from(order.pages());
    let mut expected = vec![0; 10];
    expected[order.0 as usize] = whole;
    assert_eq!(split, expected, "{folio}");
    let by_themselves = runs.iter().filter(|run| run.pages == 1).count() as u64;
    assert_eq!(by_themselves, whole * u64::from(order.pages()), "{folio}: {runs:?}");
    assert!(runs.windows(2).all(|pair| pair[0].vpn < pair[1].vpn), "{folio}");
    assert_eq!(runs.iter().map(|run| u64::from(run.pages)).sum::<u64>(), PAGES - 8, "{folio}");
}

#[test]
fn what_is_not_whole_or_not_split_pays_nothing() {
    for knobs in [
        &["large-folios=split", "folio=4K"][..],
        &["large-folios=split", "folio=auto"],
        &["large-folios=all", "folio=64K"],
        &["large-folios=free-cluster-only", "folio=64K"],
        &[],
    ] {
        let (runs, split) = page_out(knobs);
        assert_eq!(split, vec![0; 10], "{knobs:?}");
        assert!(runs.iter().all(|run| run.pages >= 8), "{knobs:?}: {runs:?}");
    }
}
