//! Writes to the file that fail after their pages were encrypted where they were: the kernel's limit on the
//! size of files (EFBIG), also in the middle of a request. Alone in its process, for the limit is the
//! process's.
#![allow(unsafe_code, reason = "a signal is ignored")]

use memspill_backing::{Algorithm, FileConfig, IoEngine, RamConfig, TierBacking};
use memspill_engine::backing::{Backing, Chore, PageWrite, QueueId, ReadRequest, ReadStart};
use memspill_engine::units::{Page, SlotIndex, page_buf};
use rustix::process::{Resource, Rlimit, setrlimit};

const QUEUE: QueueId = QueueId(0);
const PAGES: u32 = 1500;
const FITS_PAGES: u64 = 300;

/// Half noise, half zeros.
fn page_of(slot: u32) -> Page {
    let mut page = Page::ZERO;
    let mut state = u64::from(slot) | 1 << 40;
    for word in page.0[..2048].as_chunks_mut::<8>().0 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *word = (state ^ state >> 29).to_ne_bytes();
    }
    page
}

fn expect(tier: &TierBacking, slot: u32) {
    let request = ReadRequest { token: 0, slots: vec![SlotIndex(slot)], buf: page_buf(1), is_awaited: true };
    let ReadStart::Done(done) = tier.read(QUEUE, request) else { panic!("reads are synchronous here") };
    assert_eq!(done.results, [Ok(())], "slot {slot}");
    assert!(done.buf[0].0 == page_of(slot).0, "slot {slot} has another page's bytes");
}

fn limit_files(bytes: Option<u64>) {
    setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
}

#[test]
fn pages_whose_write_failed_are_whole_in_the_pool_and_leave_later() {
    // SAFETY: no handler: a write beyond the limit is an error then, and not the end.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let ram =
        RamConfig { slots: 1 << 16, ram_limit_bytes: 1 << 20, algorithm: Algorithm::Lz4, shared: false };
    let file = FileConfig { io: IoEngine::Sync, ..FileConfig::unnamed_in(std::env::temp_dir(), 1 << 28) };
    let tier = TierBacking::new(ram, file).unwrap();
    limit_files(Some(FITS_PAGES * 4096 + 2048));
    let mut stored = Vec::new();
    for slot in 1..PAGES {
        let (page, mut results) = (page_of(slot), Vec::new());
        tier.write(QUEUE, &[PageWrite { slot: SlotIndex(slot), page: &page }], &mut results);
        if results[0].is_ok() {
            stored.push(slot);
        }
        tier.housekeep(Chore::Maintain { queue: QUEUE });
    }
    let failed = tier.writeback_errors_total();
    let in_file = tier.usage().file_pages;
    assert!(failed > 0 && in_file > 0 && in_file <= FITS_PAGES, "{failed} writes failed, {in_file} did not");
    assert!(stored.len() as u64 > in_file && stored.len() < PAGES as usize - 1, "{} stored", stored.len());
    stored.iter().for_each(|slot| expect(&tier, *slot));

    limit_files(None);
    while tier.housekeep(Chore::GiveRam { queue: QUEUE, bytes: 64 << 10 }) {}
    assert!(tier.usage().file_pages > FITS_PAGES, "{} pages in the file", tier.usage().file_pages);
    stored.iter().for_each(|slot| expect(&tier, *slot));
}
