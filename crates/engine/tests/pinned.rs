//! Pages that are pinned, for a device or by a call that waits for another page: all others leave.

use memspill_engine::backing::QueueId;
use memspill_engine::devices::Device;
use memspill_engine::engine::Engine;
use memspill_engine::memory::{PageRun, Take};
use memspill_engine::slots::Slots;
use memspill_engine::space::Space;
use memspill_engine::testing::blank::{BlankDevice, SeenTaking};
use memspill_engine::tuning::Tuning;
use memspill_engine::units::{CpuId, SpaceId, Vpn};
use std::sync::Arc;

const SLOTS: u32 = 8192;
const PAGES: u64 = 4096;
const PINNED: std::ops::Range<u64> = 0..1024;
const BATCH_PAGES: usize = 64;
const CPU: CpuId = CpuId(0);

/// A pinned page is busy.
fn refuse_pinned(runs: &[PageRun], taken: &mut [Take]) {
    let pages = runs.iter().flat_map(|run| run.vpn.0..run.vpn.0 + u64::from(run.pages));
    for (take, page) in taken.iter_mut().zip(pages) {
        if PINNED.contains(&page) {
            *take = Take::Busy;
        }
    }
}

/// As the front end does it: what is busy may be shared since a fork, so it is made the process's own and
/// tried again at once.
#[test]
fn all_others_leave() {
    let tuning = Tuning::default();
    let slots = Slots::new(SLOTS, 1, false, &tuning);
    let device = Device::new("32 MiB".into(), 0, slots, Arc::new(BlankDevice::new(SLOTS)));
    let engine = Engine::new(vec![device], u64::MAX / 2, tuning);
    let space = Arc::new(Space::new(SpaceId(1), Arc::new(SeenTaking(refuse_pinned))));
    engine.add_space(space.clone());
    space.adopt(engine.swap(), Vpn(0), Vpn(PAGES));
    let pinned = PINNED.end - PINNED.start;
    // Each pinned page is tried three times at most before it is the turn of all others.
    let mut batches = (PAGES + 3 * pinned) / BATCH_PAGES as u64;
    while space.resident_pages() > pinned {
        assert!(batches > 0, "{} pages stay, and {pinned} are pinned", space.resident_pages());
        batches -= 1;
        let (shrunk, write_out) = engine.shrink(CPU, &space, BATCH_PAGES);
        space.mark_own(&shrunk.busy);
        if let Some(write_out) = write_out {
            engine.write_out(CPU, QueueId(0), write_out);
        }
    }
    engine.check();
}
