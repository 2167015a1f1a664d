//! One suite for every backing: the contract of `memspill_engine::backing::Backing`, and each backing's own
//! limits.
//!
//! To put a new backing to it, add a line to `conforms!` at the end of the general part.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memspill_backing::faulty::bit_flips;
use memspill_backing::nbd::{Server, Tls};
use memspill_backing::{
    Algorithm, DiscardPolicy, FaultPlan, FaultyBacking, FileBacking, FileConfig, FilePlace, IoEngine,
    NbdConfig, NbdError, NbdTarget, NullBacking, RamBacking, RamConfig, RamDisk, Recompress, ThrottleConfig,
    ThrottledBacking, TierBacking,
};
use memspill_engine::backing::{
    Backing, BackingError, Chore, PageWrite, QueueId, ReadDone, ReadRequest, ReadStart, Usage,
};
use memspill_engine::units::{ClusterIndex, Page, SlotIndex, page_buf};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

// ---------------------------------------------------------------- tools

/// Small random numbers from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut state = self.0;
        state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^ state >> 31
    }
    fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }
}

/// A page that only this slot and version has (save the same-filled ones): of all kinds, from zeros to noise.
fn page_of(slot: u32, version: u32) -> Page {
    let mut dice = Dice(u64::from(slot) << 32 | u64::from(version));
    let mut page = Page::ZERO;
    match dice.below(8) {
        0 => {}
        1 => page.0.as_chunks_mut::<8>().0.fill(1.5f64.to_ne_bytes()),
        2 => page.0.as_chunks_mut::<8>().0.fill(dice.roll().to_ne_bytes()),
        3 => {
            for chunk in page.0.as_chunks_mut::<8>().0 {
                *chunk = dice.roll().to_ne_bytes();
            }
        }
        4 => page.0.iter_mut().for_each(|byte| *byte = b"abcd"[dice.below(4) as usize]),
        kind => {
            let noisy = (kind - 4) as usize * 100;
            for chunk in page.0[..noisy * 8].as_chunks_mut::<8>().0 {
                *chunk = dice.roll().to_ne_bytes();
            }
            page.0[4088..].copy_from_slice(&dice.roll().to_ne_bytes());
        }
    }
    page
}

fn noise_page(slot: u32) -> Page {
    let mut dice = Dice(u64::from(slot));
    let mut page = Page::ZERO;
    for chunk in page.0.as_chunks_mut::<8>().0 {
        *chunk = dice.roll().to_ne_bytes();
    }
    page
}

/// Half noise, half zeros: 2 KiB when compressed.
fn half_page(slot: u32) -> Page {
    let mut page = noise_page(slot);
    page.0[2048..].fill(0);
    page
}

/// Records of a heap: a count, a pointer to themselves, and two bytes of their own.
fn records_page(slot: u32) -> Page {
    let mut page = noise_page(slot);
    for (at, word) in page.0.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = match at % 3 {
            0 => 1_u64.to_le_bytes(),
            1 => (0x7f3a_0000_0000 + u64::from(slot) * 4096 + 8 * at as u64).to_le_bytes(),
            _ => [word[0], word[1], 0, 0, 0, 0, 0, 0],
        };
    }
    page
}

/// Few different letters, in no order: zstd makes it much shorter than LZ4 does.
fn letters_page(slot: u32) -> Page {
    let mut page = noise_page(slot);
    page.0.iter_mut().for_each(|byte| *byte = b"abcd"[usize::from(*byte % 4)]);
    page
}

fn write(backing: &dyn Backing, queue: u32, pages: &[(u32, Page)]) -> Vec<Result<(), BackingError>> {
    let writes: Vec<PageWrite<'_>> =
        pages.iter().map(|(slot, page)| PageWrite { slot: SlotIndex(*slot), page }).collect();
    let mut results = Vec::new();
    backing.write(QueueId(queue), &writes, &mut results);
    assert_eq!(results.len(), pages.len(), "one result for each page");
    results
}

fn write_good(backing: &dyn Backing, queue: u32, pages: &[(u32, Page)]) {
    for (result, (slot, _)) in write(backing, queue, pages).iter().zip(pages) {
        assert_eq!(*result, Ok(()), "write of slot {slot}");
    }
}

fn poll_fd(backing: &dyn Backing, queue: u32) -> Option<OwnedFd> {
    backing.poll_fd(QueueId(queue)).expect("a descriptor to spare")
}

/// Wait until the queue's descriptor polls readable. EINTR is part of life with io_uring.
fn wait_readable(backing: &dyn Backing, queue: u32) {
    let fd = poll_fd(backing, queue).expect("a backing with pending reads has a descriptor");
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })) {
            Ok(1) => return,
            Ok(_) => panic!("pending reads, but the descriptor never became readable"),
            Err(Errno::INTR) => assert!(Instant::now() < until, "interrupted for 20 s"),
            Err(error) => panic!("poll: {error}"),
        }
    }
}

fn start(backing: &dyn Backing, queue: u32, token: u64, slots: &[u32]) -> Option<ReadDone> {
    let slots: Vec<SlotIndex> = slots.iter().copied().map(SlotIndex).collect();
    let mut buf = page_buf(slots.len());
    // A read that does nothing must be seen.
    buf.iter_mut().for_each(|page| page.0.fill(0xa5));
    match backing.read(QueueId(queue), ReadRequest { token, slots, buf, is_awaited: true }) {
        ReadStart::Done(done) => Some(done),
        ReadStart::Pending => None,
    }
}

fn read(backing: &dyn Backing, queue: u32, slots: &[u32]) -> ReadDone {
    let done = start(backing, queue, 4711, slots).unwrap_or_else(|| {
        let mut done = Vec::new();
        while done.is_empty() {
            wait_readable(backing, queue);
            backing.reap(QueueId(queue), &mut done);
        }
        assert_eq!(done.len(), 1, "one read was started");
        done.remove(0)
    });
    assert_eq!(done.token, 4711);
    assert_eq!(done.slots.iter().map(|slot| slot.0).collect::<Vec<_>>(), slots);
    assert_eq!(done.results.len(), slots.len());
    done
}

fn expect(backing: &dyn Backing, queue: u32, wanted: &[(u32, Page)]) {
    let slots: Vec<u32> = wanted.iter().map(|(slot, _)| *slot).collect();
    let done = read(backing, queue, &slots);
    for (index, (slot, page)) in wanted.iter().enumerate() {
        assert_eq!(done.results[index], Ok(()), "read of slot {slot}");
        assert!(done.buf[index].0 == page.0, "slot {slot} came back with other bytes");
        // A page at hand is the same, and not worth keeping.
        let mut now = page_of(*slot, 0xa5a5);
        if let Some(result) = backing.read_now(SlotIndex(*slot), &mut now) {
            assert_eq!(result, Ok(()), "read of slot {slot}, at once");
            assert!(now.0 == page.0, "slot {slot} came back with other bytes, at once");
        }
    }
}

fn discard(backing: &dyn Backing, slots: &[u32]) {
    let slots: Vec<SlotIndex> = slots.iter().copied().map(SlotIndex).collect();
    backing.discard(&slots);
}

fn maintain(backing: &dyn Backing, queue: u32) -> bool {
    backing.housekeep(Chore::Maintain { queue: QueueId(queue) })
}

fn give_ram(backing: &dyn Backing, queue: u32, bytes: u64) -> bool {
    backing.housekeep(Chore::GiveRam { queue: QueueId(queue), bytes })
}

/// For the chores that are never asked for again.
fn once(backing: &dyn Backing, chore: Chore) {
    assert!(!backing.housekeep(chore), "{chore:?} would be asked for without end");
}

/// Sets a flag when it goes, by whatever way: a failed test must not leave its helpers running.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Maintain until there is nothing left to do (and once more, for what waits until things are quiet).
fn settle(backing: &dyn Backing) {
    for _ in 0..3 {
        let mut rounds = 0;
        while maintain(backing, 0) {
            rounds += 1;
            assert!(rounds < 100_000, "maintain never ends");
        }
    }
}

// ---------------------------------------------------------------- subjects

const SLOTS: u32 = 20_000;
const QUEUES: u32 = 4;

fn file_config(io: IoEngine) -> FileConfig {
    let config = FileConfig::unnamed_in(std::env::temp_dir(), u64::from(SLOTS) * 4096);
    FileConfig { free_floor_bytes: 1 << 20, queues: QUEUES, io, ..config }
}

fn null() -> NullBacking {
    NullBacking::new(SLOTS, u64::MAX)
}
fn ram_config(ram_limit_bytes: u64, algorithm: Algorithm) -> RamConfig {
    RamConfig { slots: SLOTS, ram_limit_bytes, algorithm, shared: false }
}
fn ram() -> RamBacking {
    ram_by(Algorithm::Lz4)
}
fn ram_by(algorithm: Algorithm) -> RamBacking {
    RamBacking::new(ram_config(u64::MAX, algorithm))
}
fn zstd() -> RamBacking {
    ram_by(Algorithm::Zstd)
}
fn ram_disk(slots: u32) -> RamDisk {
    RamDisk::open(slots).expect("address space")
}
fn file(io: IoEngine) -> FileBacking {
    FileBacking::open(file_config(io)).expect("a file in the temporary directory")
}
fn plain_file(io: IoEngine) -> FileBacking {
    FileBacking::open(FileConfig { encrypt: false, ..file_config(io) })
        .expect("a file in the temporary directory")
}
fn tier(ram_limit_bytes: u64) -> TierBacking {
    tier_on(ram_limit_bytes, IoEngine::Auto)
}
fn tier_on(ram_limit_bytes: u64, io: IoEngine) -> TierBacking {
    tier_by(ram_config(ram_limit_bytes, Algorithm::Lz4), io)
}
/// One that compresses pages once more, whatever reads of the file take.
fn recompressing(ram_limit_bytes: u64) -> TierBacking {
    let (ram, file) = (ram_config(ram_limit_bytes, Algorithm::Lz4), file_config(IoEngine::Auto));
    TierBacking::with_recompress(ram, file, Recompress::On).expect("a tier")
}
fn tier_by(ram: RamConfig, io: IoEngine) -> TierBacking {
    TierBacking::new(ram, file_config(io)).expect("a tier")
}
/// What holds all slots, and places to spare.
const EXPORT_BYTES: u64 = SLOTS as u64 * 4096 * 16 / 15 + (1 << 20);
fn nbd_config(target: NbdTarget) -> NbdConfig {
    let size_bytes = Some(u64::from(SLOTS - 1) * 4096);
    NbdConfig { queues: QUEUES, size_bytes, ..NbdConfig::new(target) }
}
/// A device on the server that tests/nbd.sh has started: NBD_SERVER is its socket, or HOST:PORT, NBD_EXPORT
/// the name, and NBD_CACERT whom to believe, with TLS. One test at a time. None: there is none.
fn given_export() -> Option<FileBacking> {
    let given = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let place = given("NBD_SERVER")?;
    let server = match place.rsplit_once(':') {
        Some((host, port)) => Server::Tcp { host: host.into(), port: port.parse().expect("a port") },
        None => Server::Unix { path: place.into() },
    };
    let name = "127.0.0.1".to_owned();
    let tls = given("NBD_CACERT").map(|path| Tls { cacert: Some(path.into()), cert: None, key: None, name });
    let target = NbdTarget { server, export: given("NBD_EXPORT").unwrap_or_default(), tls };
    Some(FileBacking::on_export(nbd_config(target)).expect("a device on the server"))
}
/// A device on the memory of an nbdkit, which ends with the thread that started it. None: there is none.
fn over_nbdkit(options: &[&str], listens: &str, connections: Option<u32>) -> Option<FileBacking> {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let name = format!("memspill-{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let free_port = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut nbdkit = std::process::Command::new("nbdkit");
    nbdkit.args(["--foreground", "--exit-with-parent"]);
    let server = match listens {
        "unix" => {
            nbdkit.arg("--unix").arg(&path);
            Server::Unix { path: path.clone() }
        }
        _ => {
            let port = free_port();
            nbdkit.args(["--ipaddr", "127.0.0.1", "--port", &port.to_string()]);
            Server::Tcp { host: "127.0.0.1".into(), port }
        }
    };
    nbdkit.args(options).arg(format!("size={}", EXPORT_BYTES));
    match nbdkit.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: nbdkit is not installed");
            return None;
        }
        started => drop(started.expect("nbdkit starts")),
    }
    let target = NbdTarget { server, export: String::new(), tls: None };
    let config = NbdConfig { connections, ..nbd_config(target) };
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match FileBacking::on_export(config.clone()) {
            Err(NbdError::Unreachable(_)) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => {
                let _ = std::fs::remove_file(&path);
                return Some(opened.expect("a device on nbdkit"));
            }
        }
    }
}
fn throttled<B: Backing>(inner: B) -> ThrottledBacking<B> {
    let config = ThrottleConfig {
        queues: QUEUES,
        read_delay: Duration::from_micros(300),
        write_delay: Duration::ZERO,
    };
    ThrottledBacking::new(inner, config).expect("timers")
}
fn harmless<B: Backing>(inner: B) -> FaultyBacking<B> {
    FaultyBacking::new(inner, FaultPlan::default())
}

// ---------------------------------------------------------------- the contract

mod contract {
    use super::*;

    pub fn what_is_written_reads_back(backing: &dyn Backing) {
        let mut pages: Vec<(u32, Page)> = (1..400).map(|slot| (slot, page_of(slot, 0))).collect();
        for batch in pages.chunks(64) {
            write_good(backing, 0, batch);
        }
        for batch in pages.chunks(48) {
            expect(backing, 1, batch);
        }
        // In another order, one by one, and twice: reading changes nothing.
        pages.reverse();
        for one in pages.chunks(1).step_by(7) {
            expect(backing, 2, one);
            expect(backing, 2, one);
        }
    }

    pub fn the_last_write_counts(backing: &dyn Backing) {
        for version in 0..20 {
            let pages: Vec<(u32, Page)> = (1..60).map(|slot| (slot, page_of(slot, version))).collect();
            write_good(backing, 0, &pages);
            expect(backing, 0, &pages);
            settle(backing);
            expect(backing, 0, &pages);
        }
    }

    pub fn empty_slots_are_an_error(backing: &dyn Backing) {
        write_good(backing, 0, &[(10, page_of(10, 0)), (12, page_of(12, 0)), (13, page_of(13, 0))]);
        discard(backing, &[12, 14, 9000]);
        let done = read(backing, 0, &[9, 10, 11, 12, 13]);
        let empty = Err(BackingError::Empty);
        assert_eq!(done.results, [empty.clone(), Ok(()), empty.clone(), empty.clone(), Ok(())]);
        assert!(done.buf[1].0 == page_of(10, 0).0 && done.buf[4].0 == page_of(13, 0).0);
        // Discarded twice, then used again.
        discard(backing, &[12, 12]);
        write_good(backing, 0, &[(12, page_of(12, 1))]);
        settle(backing);
        expect(backing, 0, &[(12, page_of(12, 1))]);
        discard(backing, &[10, 12, 13]);
        assert_eq!(read(backing, 0, &[10, 12, 13]).results, vec![empty; 3]);
        assert_eq!(read(backing, 0, &[]).results, []);
    }

    pub fn batches_need_not_be_in_order(backing: &dyn Backing) {
        let mut dice = Dice(7);
        let mut slots: Vec<u32> = (1..600).chain(5000..5200).collect();
        for at in (1..slots.len()).rev() {
            slots.swap(at, dice.below(at as u64 + 1) as usize);
        }
        let pages: Vec<(u32, Page)> = slots.iter().map(|slot| (*slot, page_of(*slot, 3))).collect();
        for batch in pages.chunks(200) {
            write_good(backing, 0, batch);
        }
        for batch in pages.chunks(333) {
            expect(backing, 3, batch);
        }
    }

    pub fn many_reads_at_once(backing: &dyn Backing) {
        let pages: Vec<(u32, Page)> = (1..1025).map(|slot| (slot, page_of(slot, 0))).collect();
        write_good(backing, 0, &pages);
        let mut done: Vec<ReadDone> = Vec::new();
        let mut pending = 0;
        // Every second slot: no runs to merge, more requests than a ring has entries.
        for round in 0..8u64 {
            for first in 0..64u32 {
                let slots: Vec<u32> = (0..8).map(|step| 1 + first * 16 + step * 2).collect();
                match start(backing, 1, round << 32 | u64::from(first), &slots) {
                    Some(one) => done.push(one),
                    None => pending += 1,
                }
            }
        }
        while done.len() < 8 * 64 {
            assert!(pending > 0);
            wait_readable(backing, 1);
            backing.reap(QueueId(1), &mut done);
        }
        let mut tokens: Vec<u64> = done.iter().map(|one| one.token).collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 8 * 64, "each request is answered once");
        for one in done {
            for (index, slot) in one.slots.iter().enumerate() {
                assert_eq!(slot.0, 1 + one.token as u32 * 16 + index as u32 * 2);
                assert_eq!(one.results[index], Ok(()));
                assert!(one.buf[index].0 == page_of(slot.0, 0).0, "slot {}", slot.0);
            }
        }
    }

    /// Random operations, checked against a map. Slots are few, so that they are used again all the time.
    pub fn agrees_with_a_model(backing: &dyn Backing) {
        let mut dice = Dice(2026);
        let mut model: HashMap<u32, u32> = HashMap::new();
        for step in 0..3000u32 {
            let slot = || 1 + dice.below(300) as u32;
            let mut slots: Vec<u32> = std::iter::repeat_with(slot).take(1 + step as usize % 9).collect();
            slots.sort_unstable();
            slots.dedup();
            match dice.below(10) {
                0..4 => {
                    let pages: Vec<(u32, Page)> = slots.iter().map(|s| (*s, page_of(*s, step))).collect();
                    write_good(backing, 0, &pages);
                    model.extend(slots.iter().map(|slot| (*slot, step)));
                }
                4..8 => {
                    let done = read(backing, 0, &slots);
                    for (index, slot) in slots.iter().enumerate() {
                        match model.get(slot) {
                            None => assert_eq!(done.results[index], Err(BackingError::Empty)),
                            Some(version) => {
                                assert_eq!(done.results[index], Ok(()), "step {step}, slot {slot}");
                                assert!(
                                    done.buf[index].0 == page_of(*slot, *version).0,
                                    "step {step}, slot {slot} is not version {version}"
                                );
                            }
                        }
                    }
                }
                8 => {
                    discard(backing, &slots);
                    model.retain(|slot, _| !slots.contains(slot));
                }
                _ => drop(maintain(backing, 0)),
            }
        }
        settle(backing);
        for (slot, version) in &model {
            expect(backing, 0, &[(*slot, page_of(*slot, *version))]);
        }
    }

    pub fn threads_do_not_disturb_each_other(backing: &dyn Backing) {
        std::thread::scope(|scope| {
            for thread in 0..QUEUES {
                scope.spawn(move || {
                    let mut dice = Dice(u64::from(thread));
                    let mut versions = [0u32; 128];
                    for step in 1..400u32 {
                        // Interleaved slots: neighbours belong to other threads.
                        let first = dice.below(120) as u32;
                        let slots: Vec<u32> =
                            (first..first + 8).map(|own| 1 + own * QUEUES + thread).collect();
                        let version =
                            |versions: &[u32], slot: u32| versions[((slot - 1 - thread) / QUEUES) as usize];
                        match dice.below(5) {
                            0 | 1 => {
                                let pages: Vec<(u32, Page)> =
                                    slots.iter().map(|s| (*s, page_of(*s, step))).collect();
                                write_good(backing, thread, &pages);
                                versions[first as usize..first as usize + 8].fill(step);
                            }
                            2 | 3 => {
                                let done = read(backing, thread, &slots);
                                for (index, &slot) in slots.iter().enumerate() {
                                    match version(&versions, slot) {
                                        0 => assert_eq!(done.results[index], Err(BackingError::Empty)),
                                        v => {
                                            assert_eq!(done.results[index], Ok(()));
                                            assert!(done.buf[index].0 == page_of(slot, v).0);
                                        }
                                    }
                                }
                            }
                            _ => {
                                discard(backing, &slots);
                                versions[first as usize..first as usize + 8].fill(0);
                                maintain(backing, thread);
                            }
                        }
                    }
                });
            }
        });
    }

    /// A slot whose copy is worth keeping knows its own bytes from others, and no slot claims bytes that it
    /// does not hold.
    pub fn kept_slots_know_their_bytes(backing: &dyn Backing) {
        let slots = 1..400u32;
        for slot in slots.clone() {
            assert!(!backing.keeps(SlotIndex(slot), None), "slot {slot} holds nothing");
            let page = page_of(slot, 0);
            assert!(!backing.keeps(SlotIndex(slot), Some(&page)), "slot {slot} holds nothing");
        }
        for version in 0..3 {
            let pages: Vec<(u32, Page)> = slots.clone().map(|slot| (slot, page_of(slot, version))).collect();
            write_good(backing, 0, &pages);
            for (slot, page) in &pages {
                let holds = backing.keeps(SlotIndex(*slot), Some(page));
                assert_eq!(holds, backing.keeps(SlotIndex(*slot), None), "slot {slot}");
                let mut other = *page;
                other.0[(*slot as usize * 37) % 4096] ^= 1 << (slot % 8);
                assert!(!backing.keeps(SlotIndex(*slot), Some(&other)), "slot {slot}: a bit differs");
            }
        }
        discard(backing, &slots.clone().collect::<Vec<u32>>());
        let kept = slots.clone().filter(|slot| backing.keeps(SlotIndex(*slot), None)).count();
        assert_eq!(kept, 0, "a slot keeps what was discarded");
    }

    pub fn everything_is_given_back(backing: &dyn Backing) {
        let slots: Vec<u32> = (1..6000).collect();
        for batch in slots.chunks(64) {
            let pages: Vec<(u32, Page)> = batch.iter().map(|slot| (*slot, page_of(*slot, 0))).collect();
            write_good(backing, 0, &pages);
        }
        let full = backing.usage();
        let counted = full.ram_pages + full.same_filled_pages + full.file_pages;
        assert_eq!(counted, 5999, "each page is counted in one place: {full:?}");
        let held_bytes = full.ram_bytes + full.ram_disk_bytes + full.file_bytes;
        assert!(held_bytes >= 5999 * 1000, "pages do not vanish: {full:?}");
        assert!(full.ram_bytes >= full.ram_compressed_bytes + full.table_bytes, "{full:?}");
        discard(backing, &slots);
        settle(backing);
        let rest = backing.usage();
        // Tables of the clusters that were used stay: 40 bytes a slot and less.
        assert!(rest.ram_bytes + rest.ram_disk_bytes < 300_000, "{rest:?}");
        let nothing = Usage {
            written_back_pages_total: rest.written_back_pages_total,
            write_ios_total: rest.write_ios_total,
            file_written_pages_total: rest.file_written_pages_total,
            read_ios_total: rest.read_ios_total,
            read_us_total: rest.read_us_total,
            recompressed_pages_total: rest.recompressed_pages_total,
            zstd_reads_total: rest.zstd_reads_total,
            ram_bytes: rest.ram_bytes,
            table_bytes: rest.table_bytes,
            dense_per_mille: rest.dense_per_mille,
            ..Usage::default()
        };
        assert_eq!(rest, nothing);
    }

    /// Tables indexed by slot reach as far as the slots do.
    pub fn the_last_slot_is_as_good_as_any(backing: &dyn Backing) {
        let last = backing.properties().slots - 1;
        write_good(backing, 0, &[(last, noise_page(last))]);
        expect(backing, 0, &[(last, noise_page(last))]);
        discard(backing, &[last]);
        assert_eq!(read(backing, 0, &[last]).results, [Err(BackingError::Empty)]);
    }

    /// After a swapoff: also what is not given back while the device is on.
    pub fn a_closed_device_holds_nothing(backing: &dyn Backing) {
        let slots: Vec<u32> = (1..6000).collect();
        for batch in slots.chunks(64) {
            let pages: Vec<(u32, Page)> = batch.iter().map(|slot| (*slot, page_of(*slot, 0))).collect();
            write_good(backing, 0, &pages);
        }
        maintain(backing, 0);
        discard(backing, &slots);
        once(backing, Chore::Close);
        settle(backing);
        let rest = backing.usage();
        assert!(rest.ram_bytes < 16 << 10, "{rest:?}");
        assert_eq!((rest.file_bytes, rest.file_pages, rest.ram_pages, rest.ram_disk_bytes), (0, 0, 0, 0));
        let mut done = Vec::new();
        backing.reap(QueueId(0), &mut done);
        assert!(done.is_empty() && backing.properties().slots > 0);
        once(backing, Chore::EndRun);
    }
}

macro_rules! conforms {
    ($($name:ident: $make:expr;)*) => { $(
        mod $name {
            use super::*;
            conforms!(@each $make;
                what_is_written_reads_back the_last_write_counts empty_slots_are_an_error
                batches_need_not_be_in_order many_reads_at_once agrees_with_a_model
                kept_slots_know_their_bytes threads_do_not_disturb_each_other everything_is_given_back
                the_last_slot_is_as_good_as_any a_closed_device_holds_nothing);
        }
    )* };
    (@each $make:expr; $($test:ident)*) => { $(
        #[test]
        fn $test() {
            if let Some(subject) = Subject::from($make).0 {
                contract::$test(&subject);
            }
        }
    )* };
}
/// None: it cannot be had here.
struct Subject<B>(Option<B>);
impl<B: Backing> From<B> for Subject<B> {
    fn from(subject: B) -> Subject<B> {
        Subject(Some(subject))
    }
}
impl<B: Backing> From<Option<B>> for Subject<B> {
    fn from(subject: Option<B>) -> Subject<B> {
        Subject(subject)
    }
}

conforms! {
    null_backing: null();
    ram_backing: ram();
    ram_zstd: zstd();
    ram_wordwise: ram_by(Algorithm::Wordwise);
    ram_disk_backing: ram_disk(SLOTS);
    file_uring: file(IoEngine::Auto);
    file_sync: file(IoEngine::Sync);
    file_plain: plain_file(IoEngine::Auto);
    file_plain_sync: plain_file(IoEngine::Sync);
    tier_roomy: tier(1 << 30);
    tier_small: tier(1 << 20);
    tier_small_sync: tier_on(1 << 20, IoEngine::Sync);
    // Nearly everything goes straight to the file.
    tier_tiny: tier(64 << 10);
    tier_recompressing: recompressing(384 << 10);
    tier_zstd: tier_by(ram_config(1 << 20, Algorithm::Zstd), IoEngine::Auto);
    nbd_unix: over_nbdkit(&["memory"], "unix", None);
    nbd_tcp: over_nbdkit(&["memory"], "tcp", None);
    // Reads and writes on one connection.
    nbd_alone: over_nbdkit(&["--filter=multi-conn", "memory", "multi-conn-mode=disable"], "unix", None);
    // Requests of at most 16 KiB, answered one at a time, by simple replies.
    nbd_narrow: over_nbdkit(
        &["--filter=blocksize-policy", "--filter=noparallel", "--no-sr", "memory",
          "blocksize-minimum=4096", "blocksize-preferred=4096", "blocksize-maximum=16384",
          "blocksize-error-policy=error"],
        "unix", Some(3));
    nbd_given: given_export();
    throttled_ram: throttled(ram());
    throttled_ram_disk: throttled(ram_disk(SLOTS));
    throttled_tier: throttled(tier(1 << 20));
    faulty_without_faults: harmless(tier(1 << 20));
    faulty_zstd_without_faults: harmless(zstd());
}

// ---------------------------------------------------------------- limits

/// Fill until Full, check that nothing was lost, make room, go on.
fn fills_up_and_recovers(backing: &dyn Backing, page: fn(u32) -> Page) -> usize {
    let mut stored = Vec::new();
    let mut refused = None;
    for slot in 1..SLOTS {
        match write(backing, 0, &[(slot, page(slot))]).remove(0) {
            Ok(()) => stored.push(slot),
            Err(error) => {
                assert_eq!(error, BackingError::Full);
                refused = Some(slot);
                break;
            }
        }
    }
    let refused = refused.expect("the limit was never reached");
    assert_eq!(read(backing, 0, &[refused]).results, [Err(BackingError::Empty)]);
    for slot in &stored {
        expect(backing, 0, &[(*slot, page(*slot))]);
    }
    // A rewrite that is refused loses the slot, and only that.
    let (gone, kept) = stored.split_at(stored.len() / 2);
    discard(backing, gone);
    settle(backing);
    for slot in gone.iter().take(gone.len() / 2) {
        write_good(backing, 0, &[(*slot, page(*slot + 100_000))]);
    }
    for slot in kept {
        expect(backing, 0, &[(*slot, page(*slot))]);
    }
    stored.len()
}

#[test]
fn ram_is_full_at_its_limit() {
    for (page, ram) in [
        (half_page as fn(u32) -> Page, ram()),
        (noise_page, ram()),
        (half_page, zstd()),
        (noise_page, zstd()),
    ] {
        once(&ram, Chore::LimitRam { bytes: 4 << 20 });
        let pages = fills_up_and_recovers(&ram, page);
        let usage = ram.usage();
        assert!(usage.ram_bytes <= 4 << 20, "{usage:?}");
        let page_bytes = usage.ram_compressed_bytes as usize / usage.ram_pages as usize;
        assert!(pages * page_bytes > (4 << 20) * 90 / 100, "only {pages} of {page_bytes} bytes in 4 MiB");
    }
}

/// As a device: when it has no slot left. Its size is what was set aside, so no other limit moves it.
#[test]
fn a_ram_disk_holds_what_it_was_made_for() {
    let disk = ram_disk(1025);
    once(&disk, Chore::LimitRam { bytes: 1 << 20 });
    let pages: Vec<(u32, Page)> = (1..1025).map(|slot| (slot, noise_page(slot))).collect();
    for _ in 0..2 {
        write_good(&disk, 0, &pages);
        expect(&disk, 0, &pages);
        let usage = disk.usage();
        assert_eq!((usage.ram_disk_bytes, usage.ram_bytes, usage.incompressible_pages), (4 << 20, 0, 0));
        discard(&disk, &(1..1025).collect::<Vec<u32>>());
    }
    assert!(!give_ram(&disk, 0, 1 << 20), "there is nothing behind it");
}

#[test]
fn null_is_full_at_its_limit() {
    let null = NullBacking::new(SLOTS, 1 << 20);
    assert_eq!(fills_up_and_recovers(&null, noise_page), 256);
}

#[test]
fn file_is_full_at_its_size() {
    for io in [IoEngine::Auto, IoEngine::Sync] {
        let config = FileConfig { max_bytes: 4 << 20, ..file_config(io) };
        let tier = TierBacking::new(ram_config(0, Algorithm::Lz4), config).expect("a tier of file only");
        assert_eq!(fills_up_and_recovers(&tier, noise_page), 1024);
        assert!(tier.file().disk_bytes().unwrap() <= (4 << 20) + (64 << 10));
    }
}

/// Dead places count as disk until they are punched; a full file punches them at once.
#[test]
fn full_file_reuses_dead_places_without_maintain() {
    let config = FileConfig { max_bytes: 1 << 20, ..file_config(IoEngine::Auto) };
    let tier = TierBacking::new(ram_config(0, Algorithm::Lz4), config).unwrap();
    for round in 0..20u32 {
        let slots: Vec<u32> = (1..250).map(|slot| slot + round * 300).collect();
        let pages: Vec<(u32, Page)> = slots.iter().map(|slot| (*slot, noise_page(*slot))).collect();
        write_good(&tier, 0, &pages);
        expect(&tier, 0, &pages);
        discard(&tier, &slots);
    }
}

#[test]
fn disk_keeps_its_floor() {
    let config = FileConfig { free_floor_bytes: u64::MAX, ..file_config(IoEngine::Auto) };
    let file = FileBacking::open(config).unwrap();
    let results = write(&file, 0, &[(1, noise_page(1)), (2, noise_page(2))]);
    assert_eq!(results, [Err(BackingError::Full), Err(BackingError::Full)]);
    assert_eq!(file.usage().file_bytes, 0);
    assert_eq!(read(&file, 0, &[1]).results, [Err(BackingError::Empty)]);
}

/// 2^31 slots cost nothing but address space, and the last one works.
#[test]
fn unused_slots_cost_nothing() {
    let ram = RamBacking::new(RamConfig { slots: 1 << 31, ..ram_config(1 << 20, Algorithm::Lz4) });
    assert_eq!(ram.usage().ram_bytes, 0);
    let last = (1u32 << 31) - 1;
    write_good(&ram, 0, &[(last, half_page(last)), (1, half_page(1))]);
    expect(&ram, 0, &[(last, half_page(last)), (1, half_page(1))]);
    assert!(ram.usage().ram_bytes < 64 << 10, "{:?}", ram.usage());
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("proc");
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("statm") * 4096
}

/// Not only counted: the process really shrinks. Half the pages gone at random needs compaction.
#[test]
fn memory_really_returns() {
    const PAGES: u32 = 60_000;
    let ram = RamBacking::new(RamConfig { slots: PAGES + 1, ..ram_config(u64::MAX, Algorithm::Lz4) });
    let before = resident_bytes();
    for slot in 1..=PAGES {
        write_good(&ram, 0, &[(slot, half_page(slot))]);
    }
    let full = ram.usage().ram_bytes;
    // Other tests run beside this one in the same process: differences are large against what they use.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown > full / 2, "{grown} bytes resident for {full} counted");
    let mut dice = Dice(5);
    let gone: Vec<u32> = (1..=PAGES).filter(|_| dice.below(10) < 8).collect();
    discard(&ram, &gone);
    settle(&ram);
    let usage = ram.usage();
    let overhead = usage.ram_bytes as f64 / usage.ram_compressed_bytes as f64;
    assert!(overhead < 1.25, "{overhead:.3} after compaction: {usage:?}");
    let shrunk = (before + grown).saturating_sub(resident_bytes());
    assert!(shrunk > full / 2, "{shrunk} bytes returned of {full}");
    for slot in (1..=PAGES).filter(|slot| gone.binary_search(slot).is_err()) {
        expect(&ram, 0, &[(slot, half_page(slot))]);
    }
}

// ---------------------------------------------------------------- file

#[test]
fn io_engine_is_as_asked() {
    assert_eq!(file(IoEngine::Sync).io_engine(), IoEngine::Sync);
    assert!(poll_fd(&file(IoEngine::Sync), 0).is_none());
    let auto = file(IoEngine::Auto);
    match FileBacking::open(file_config(IoEngine::Uring)) {
        Ok(uring) => {
            assert_eq!(uring.io_engine(), IoEngine::Uring);
            assert_eq!(auto.io_engine(), IoEngine::Uring);
            assert!(poll_fd(&uring, QUEUES - 1).is_some());
        }
        Err(error) => {
            eprintln!("io_uring is refused here ({error}): Auto must fall back");
            assert_eq!(auto.io_engine(), IoEngine::Sync);
        }
    }
}

#[test]
fn disk_space_returns() {
    for io in [IoEngine::Auto, IoEngine::Sync] {
        let file = file(io);
        let slots: Vec<u32> = (1..4000).collect();
        for batch in slots.chunks(128) {
            let pages: Vec<(u32, Page)> = batch.iter().map(|slot| (*slot, noise_page(*slot))).collect();
            write_good(&file, 0, &pages);
        }
        assert!(file.disk_bytes().unwrap() >= 3999 * 4096);
        // Every second page: no hole is worth it.
        let odd: Vec<u32> = slots.iter().copied().filter(|slot| slot % 2 == 1).collect();
        discard(&file, &odd);
        settle(&file);
        assert!(file.disk_bytes().unwrap() > 3900 * 4096, "single pages are not punched");
        // A long run.
        discard(&file, &(1000..3000).collect::<Vec<_>>());
        settle(&file);
        let bytes = file.disk_bytes().unwrap();
        assert!(bytes < 2100 * 4096, "{bytes} bytes on disk after a run of 2000 pages was discarded");
        let kept = (1..1000u32).chain(3000..4000).filter(|slot| slot % 2 == 0);
        for slot in kept {
            expect(&file, 0, &[(slot, noise_page(slot))]);
        }
        discard(&file, &slots);
        settle(&file);
        assert!(file.disk_bytes().unwrap() < 64 << 10);
        assert_eq!(file.usage().file_bytes, 0);
    }
}

/// A cluster that is discarded whole, where single pages would not be punched.
#[test]
fn a_discarded_cluster_gives_its_space_back() {
    let all = DiscardPolicy { once: true, pages: true };
    let file = FileBacking::open(FileConfig { discard: all, ..file_config(IoEngine::Auto) });
    let file = file.expect("holes can be punched in files of the temporary directory");
    assert!(file.properties().discard && !self::file(IoEngine::Auto).properties().discard);
    let slots: Vec<u32> = (1..1536).collect();
    for batch in slots.chunks(128) {
        let pages: Vec<(u32, Page)> = batch.iter().map(|slot| (*slot, noise_page(*slot))).collect();
        write_good(&file, 0, &pages);
    }
    let before = file.disk_bytes().unwrap();
    discard(&file, &(512..1024).collect::<Vec<_>>());
    once(&file, Chore::DiscardCluster(ClusterIndex(1)));
    assert_eq!(
        (file.disk_bytes().unwrap(), file.usage().file_bytes),
        (before - (512 << 12), (511 + 512) << 12)
    );
    for slot in [1, 511, 1024, 1535] {
        expect(&file, 0, &[(slot, noise_page(slot))]);
    }
    write_good(&file, 0, &[(700, noise_page(7))]);
    expect(&file, 0, &[(700, noise_page(7))]);
    // The device is off: whoever comes late does nothing.
    discard(&file, &slots);
    once(&file, Chore::Close);
    once(&file, Chore::DiscardCluster(ClusterIndex(0)));
}

/// The block device is a loop device; its discards punch holes in the file under it.
#[test]
fn a_block_device_hears_of_what_is_discarded() {
    let dir = std::env::temp_dir().join(format!("memspill-loop-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let image = dir.join("image");
    std::fs::write(&image, [0; 4096]).unwrap();
    let under = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    under.set_len(1536 * 4096).unwrap();
    let losetup = std::process::Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
    let device = match losetup {
        Ok(out) if out.status.success() => PathBuf::from(String::from_utf8(out.stdout).unwrap().trim()),
        other => return eprintln!("skipped: no loop device to be had: {other:?}"),
    };
    struct Detach(PathBuf, PathBuf);
    impl Drop for Detach {
        fn drop(&mut self) {
            let _ = std::process::Command::new("losetup").arg("--detach").arg(&self.0).status();
            let _ = std::fs::remove_dir_all(&self.1);
        }
    }
    let _detach = Detach(device.clone(), dir);
    let disk_bytes = || {
        // Data that has reached the loop device is in the page cache of its file, whose blocks are allocated
        // when it is written.
        under.sync_all().unwrap();
        std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&image).unwrap()) * 512
    };
    let open = |once, pages| {
        let place = FilePlace::Path(device.clone());
        let config =
            FileConfig { place, discard: DiscardPolicy { once, pages }, ..file_config(IoEngine::Auto) };
        FileBacking::open(config)
    };
    let fill = |backing: &FileBacking| {
        for first in (1..1536).step_by(128) {
            let pages: Vec<(u32, Page)> =
                (first..1536.min(first + 128)).map(|slot| (slot, noise_page(slot))).collect();
            write_good(backing, 0, &pages);
        }
    };
    let all: Vec<u32> = (1..1536).collect();

    let backing = open(false, false).unwrap();
    fill(&backing);
    let full = disk_bytes();
    assert!(full >= 1536 * 4096);
    discard(&backing, &all);
    settle(&backing);
    assert_eq!(disk_bytes(), full, "nobody has asked for discards");
    drop(backing);

    let backing = match open(true, true) {
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
            return eprintln!("skipped: {error}");
        }
        other => other.unwrap(),
    };
    assert!(disk_bytes() <= 64 << 10, "all but the mark is discarded at the start");
    fill(&backing);
    discard(&backing, &(512..1024).collect::<Vec<_>>());
    once(&backing, Chore::DiscardCluster(ClusterIndex(1)));
    let left = disk_bytes();
    assert!((1024 * 4096..1100 * 4096).contains(&left), "{left} bytes are left of two clusters");
    for slot in [1, 511, 1024, 1535] {
        expect(&backing, 0, &[(slot, noise_page(slot))]);
    }
}

/// Discards, rewrites and punches of the same clusters at the same time: no hole may hit new data.
#[test]
fn late_punch_never_hits_new_data() {
    let file = file(IoEngine::Auto);
    let stop = AtomicBool::new(false);
    let punched = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let before = file.usage().file_bytes;
                while maintain(&file, 3) {}
                punched.fetch_add(u32::from(file.usage().file_bytes < before), Ordering::Relaxed);
            }
        });
        let writers: Vec<_> = (0..2u32)
            .map(|thread| {
                let file = &file;
                scope.spawn(move || {
                    for round in 0..150u32 {
                        let first = 1 + thread * 400;
                        let slots: Vec<u32> = (first..first + 390).collect();
                        let page = |slot: u32| noise_page(slot + round * 1000);
                        let pages: Vec<(u32, Page)> = slots.iter().map(|s| (*s, page(*s))).collect();
                        write_good(file, thread, &pages);
                        expect(file, thread, &pages);
                        discard(file, &slots);
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().expect("writer"));
        drop(stopping);
    });
    assert!(punched.load(Ordering::Relaxed) > 5, "the punch never ran beside the writers");
}

#[test]
fn wrong_bytes_are_noticed() {
    let engines = [IoEngine::Auto, IoEngine::Sync];
    for (file, encrypted) in engines.into_iter().flat_map(|io| [(file(io), true), (plain_file(io), false)]) {
        file.set_tamper(bit_flips(9, 200_000));
        let pages: Vec<(u32, Page)> = (1..1000).map(|slot| (slot, page_of(slot, 0))).collect();
        write_good(&file, 0, &pages);
        let slots: Vec<u32> = (1..1000).collect();
        let done = read(&file, 0, &slots);
        let mut wrong = 0;
        for (index, result) in done.results.iter().enumerate() {
            let same = done.buf[index].0 == pages[index].1.0;
            match result {
                Ok(()) => assert!(same, "slot {} passed with other bytes", index + 1),
                Err(error) => {
                    assert_eq!(*error, BackingError::Checksum);
                    // Nothing is left to compare of a page that could not be opened.
                    assert!(encrypted || !same, "slot {} was refused with the right bytes", index + 1);
                    wrong += 1;
                }
            }
        }
        assert!((100..300).contains(&wrong), "{wrong} of 999 pages were flipped");
    }
}

/// A marker in each page that is written is nowhere in the file, and without encryption it is everywhere.
#[test]
fn the_file_shows_nothing_of_what_was_written() {
    const MARKER: &[u8; 32] = b"the marker that nobody else has!";
    let path = std::env::temp_dir().join(format!("memspill-marker-{}", std::process::id()));
    let marked = |slot: u32| {
        let mut page = page_of(slot, 0);
        page.0[1000..1032].copy_from_slice(MARKER);
        page
    };
    let pages: Vec<(u32, Page)> = (1..300).map(|slot| (slot, marked(slot))).collect();
    let count = |encrypt, io, through_a_pool| {
        std::fs::File::create(&path).unwrap();
        let config = FileConfig { place: FilePlace::Path(path.clone()), encrypt, ..file_config(io) };
        let backing: Box<dyn Backing> = if through_a_pool {
            Box::new(TierBacking::new(ram_config(64 << 10, Algorithm::Lz4), config).unwrap())
        } else {
            Box::new(FileBacking::open(config).unwrap())
        };
        // Written twice: a slot that is used again is no other case.
        for _ in 0..2 {
            pages.chunks(64).for_each(|chunk| write_good(&*backing, 0, chunk));
            settle(&*backing);
        }
        let in_file = backing.usage().file_pages as usize;
        let on_disk = std::fs::read(&path).unwrap();
        expect(&*backing, 0, &pages);
        let seen = on_disk.as_chunks::<4096>().0.iter().filter(|page| &page[1000..1032] == MARKER).count();
        let anywhere = seen > 0 || on_disk.windows(8).any(|bytes| bytes == &MARKER[8..16]);
        assert_eq!(anywhere, !encrypt, "beside its place it is not either");
        (in_file, seen)
    };
    for io in [IoEngine::Auto, IoEngine::Sync] {
        assert_eq!(count(true, io, false), (299, 0));
        assert_eq!(count(false, io, false), (299, 299), "the search finds what is there");
        let (in_file, seen) = count(true, io, true);
        assert!(in_file > 100 && seen == 0, "{seen} of {in_file}");
        let (in_file, seen) = count(false, io, true);
        assert!(seen >= in_file && in_file > 100, "{seen} of {in_file}");
    }
    std::fs::remove_file(&path).unwrap();
}

/// The descriptor works in an epoll set, in another thread than the one that submits, and goes quiet again.
#[test]
fn completions_wake_an_epoll_set() {
    let file = file(IoEngine::Auto);
    let Some(fd) = poll_fd(&file, 0) else { return };
    write_good(&file, 0, &(1..200).map(|slot| (slot, noise_page(slot))).collect::<Vec<_>>());
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&set, &fd, epoll::EventData::new_u64(7), epoll::EventFlags::IN).unwrap();
    // The set goes on watching.
    drop(fd);
    let wait = |milliseconds: i64| {
        let mut events = Vec::with_capacity(4);
        let timeout = Timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
        loop {
            match epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(count) => return count,
                Err(Errno::INTR) => events.clear(),
                Err(error) => panic!("epoll_wait: {error}"),
            }
        }
    };
    assert_eq!(wait(0), 0, "quiet before the first read");
    for round in 0..200u32 {
        std::thread::scope(|scope| {
            let slot = 1 + round % 190;
            if round % 2 == 0 {
                assert!(start(&file, 0, 1, &[slot]).is_none());
            } else {
                let file = &file;
                scope.spawn(move || assert!(start(file, 0, 1, &[slot, slot + 5]).is_none())).join().unwrap();
            }
            let mut done = Vec::new();
            while done.is_empty() {
                assert_eq!(wait(20_000), 1, "round {round}: never woken");
                file.reap(QueueId(0), &mut done);
            }
            assert!(done[0].results.iter().all(|result| result.is_ok()));
            assert!(done[0].buf[0].0 == noise_page(slot).0);
        });
        assert_eq!(wait(0), 0, "round {round}: readable with nothing to reap");
    }
}

/// Writes on the same queue must not swallow the announcement of a read.
#[test]
fn writes_do_not_hide_read_completions() {
    let file = file(IoEngine::Auto);
    write_good(&file, 0, &[(1, noise_page(1))]);
    for slot in 2..100 {
        let pending = start(&file, 0, 1, &[1]).is_none();
        write_good(&file, 0, &[(slot, noise_page(slot))]);
        if pending {
            let mut done = Vec::new();
            while done.is_empty() {
                wait_readable(&file, 0);
                file.reap(QueueId(0), &mut done);
            }
        }
    }
}

#[test]
fn dropped_with_reads_in_flight() {
    for _ in 0..20 {
        let file = file(IoEngine::Auto);
        let pages: Vec<(u32, Page)> = (1..300).map(|slot| (slot, noise_page(slot))).collect();
        write_good(&file, 0, &pages);
        for slot in 1..250 {
            drop(start(&file, slot % QUEUES, 1, &[slot, slot + 20]));
        }
        drop(file);
    }
}

#[test]
fn a_file_keeps_and_ram_does_not() {
    let kept = |backing: &dyn Backing, page: fn(u32) -> Page| {
        write_good(backing, 0, &(1..100).map(|slot| (slot, page(slot))).collect::<Vec<_>>());
        // Pages that wait in a pool go to the file behind it.
        give_ram(backing, 0, u64::MAX);
        (1..100)
            .filter(|slot| {
                let slot_index = SlotIndex(*slot);
                backing.keeps(slot_index, None) && backing.keeps(slot_index, Some(&page(*slot)))
            })
            .count()
    };
    assert_eq!(kept(&file(IoEngine::Auto), half_page), 99);
    assert_eq!(kept(&ram(), noise_page) + kept(&null(), noise_page) + kept(&zstd(), noise_page), 0);
    assert_eq!(kept(&ram_disk(SLOTS), noise_page), 0);
    for ram_limit_bytes in [64 << 10, 1 << 30] {
        let tier = tier(ram_limit_bytes);
        // A page from the file under a pool goes into the pool next time, if it compresses.
        assert_eq!((kept(&tier, half_page), kept(&tier, noise_page), kept(&tier, half_page)), (0, 99, 0));
    }
}

#[test]
fn what_does_not_compress_takes_no_room_in_a_pool() {
    for algorithm in [Algorithm::Lz4, Algorithm::Wordwise, Algorithm::ZstdFast, Algorithm::Zstd] {
        takes_no_room(&tier_by(ram_config(64 << 20, algorithm), IoEngine::Auto));
    }
}

fn takes_no_room(tier: &TierBacking) {
    let pages: Vec<(u32, Page)> = (1..1000)
        .map(|slot| (slot, if slot % 2 == 0 { noise_page(slot) } else { half_page(slot) }))
        .collect();
    pages.chunks(64).for_each(|chunk| write_good(tier, 0, chunk));
    settle(tier);
    let usage = tier.usage();
    assert!(usage.incompressible_pages < 128, "less than a batch waits: {usage:?}");
    let compressed = usage.ram_pages - usage.incompressible_pages;
    assert_eq!((compressed, usage.file_pages), (500, 499 - usage.incompressible_pages));
    expect(tier, 0, &pages);
}

#[test]
fn named_files_are_locked_marked_and_emptied() {
    let dir = std::env::temp_dir().join(format!("memspill-test-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("swap");
    let open = || {
        FileBacking::open(FileConfig { place: FilePlace::Path(path.clone()), ..file_config(IoEngine::Auto) })
    };
    // A missing file is made without its name, and another run is not in its way.
    let (file, other) = (open().unwrap(), open().unwrap());
    write_good(&file, 0, &[(5, noise_page(5))]);
    expect(&file, 0, &[(5, noise_page(5))]);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    drop((file, other));
    // An existing file keeps its name and length.
    std::fs::File::create(&path).unwrap().set_len(8 * 4096).unwrap();
    let file = open().unwrap();
    write_good(&file, 0, &[(5, noise_page(5))]);
    expect(&file, 0, &[(5, noise_page(5))]);
    assert!(open().is_err_and(|error| error.to_string().contains("in use")));
    // A file that a killed process left behind is taken over.
    let left = std::fs::read(&path).unwrap();
    once(&file, Chore::EndRun);
    let empty = std::fs::metadata(&path).unwrap();
    let blocks = std::os::unix::fs::MetadataExt::blocks(&empty);
    assert_eq!((empty.len(), blocks), (8 * 4096, 0), "no program's memory stays in a named file");
    let late = write(&file, 0, &[(6, noise_page(6))]);
    assert_eq!(late, [Err(BackingError::Full)], "nothing is written after the end");
    drop(file);
    std::fs::write(&path, &left[..4096 * 8]).unwrap();
    let file = open().unwrap();
    assert_eq!(read(&file, 0, &[5]).results, [Err(BackingError::Empty)]);
    drop(file);
    // A device that is off has no hold on it.
    let file = open().unwrap();
    write_good(&file, 0, &[(5, noise_page(5))]);
    discard(&file, &[5]);
    once(&file, Chore::Close);
    assert_eq!(write(&file, 0, &[(6, noise_page(6))]), [Err(BackingError::Full)]);
    let other = open().unwrap();
    write_good(&other, 0, &[(7, noise_page(7))]);
    drop(file);
    expect(&other, 0, &[(7, noise_page(7))]);
    drop(other);
    // Somebody's data is not.
    std::fs::write(&path, b"my thesis").unwrap();
    assert!(open().is_err_and(|error| error.to_string().contains("holds data")));
    assert_eq!(std::fs::read(&path).unwrap(), b"my thesis");
    // Nor is a temporary file left in its directory.
    std::fs::remove_file(&path).unwrap();
    let temp = FileConfig { place: FilePlace::Temp { dir: dir.clone() }, ..file_config(IoEngine::Auto) };
    let file = FileBacking::open(temp).unwrap();
    write_good(&file, 0, &[(5, noise_page(5))]);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    drop(file);
    std::fs::remove_dir(&dir).unwrap();
    let gone = FileConfig { place: FilePlace::Temp { dir: dir.clone() }, ..file_config(IoEngine::Auto) };
    assert!(FileBacking::open(gone).is_err(), "a directory that is not there is an error at the start");
}

/// Data may be anywhere in a file, and what others have made on it beside a mark.
#[test]
fn what_a_file_holds_is_named_and_not_overwritten() {
    let dir = std::env::temp_dir().join(format!("memspill-test-held-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("image");
    let open = |place: fn(PathBuf) -> FilePlace| {
        FileBacking::open(FileConfig { place: place(path.clone()), ..file_config(IoEngine::Auto) })
    };
    let put = |length: u64, parts: &[(u64, &[u8])]| {
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(length).unwrap();
        for (at, bytes) in parts {
            std::os::unix::fs::FileExt::write_all_at(&file, bytes, *at).unwrap();
        }
    };
    const MIB: u64 = 1 << 20;
    let md: &[u8] = b"\xfc\x4e\x2b\xa9\x01\0\0\0";
    let ours: &[u8] = b"memspill swap file; its contents mean nothing without the process that wrote it\n";
    type Parts<'a> = &'a [(u64, &'a [u8])];
    let refused: [(&str, Parts<'_>); 14] = [
        ("btrfs", &[(0x10040, b"_BHRfS_M")]),
        ("ISO 9660", &[(0x8001, b"CD001")]),
        ("XFS", &[(0, b"XFSB")]),
        ("LUKS", &[(0, b"LUKS\xba\xbe")]),
        ("LVM", &[(512, b"LABELONE")]),
        ("GPT partitions", &[(510, b"\x55\xaa"), (512, b"EFI PART")]),
        ("partitions (MBR)", &[(510, b"\x55\xaa")]),
        ("Linux RAID (md)", &[(4096, md)]),
        ("Linux RAID (md)", &[(4 * MIB - 8192, md)]),
        ("a hibernated system", &[(4086, b"S1SUSPEND")]),
        ("data", &[(3 * MIB + 5, b"x")]),
        // A mark that is left of what it was before.
        ("btrfs", &[(0, ours), (0x10040, b"_BHRfS_M")]),
        ("Linux RAID (md)", &[(4086, b"SWAPSPACE2"), (4096, md)]),
        ("GPT partitions", &[(0, ours), (4 * MIB - 512, b"EFI PART")]),
    ];
    for (what, parts) in refused {
        put(4 * MIB, parts);
        let before = std::fs::read(&path).unwrap();
        let error = open(FilePlace::Path).map(|_| ()).expect_err(what).to_string();
        assert!(error.contains(&format!("holds {what}, ")), "{what}: {error}");
        assert!(std::fs::read(&path).unwrap() == before, "{what}");
        // With `overwrite` nothing of it is left to be found by the next run.
        drop(open(FilePlace::Overwritten).expect(what));
        drop(open(FilePlace::Path).expect(what));
    }
    // Zeros are nobody's, whether they are on the disk or not.
    for zeros in [&[][..], &[(MIB, &[0; 8192][..])]] {
        put(4 * MIB, zeros);
        drop(open(FilePlace::Path).unwrap());
    }
    // The header of swap stays, and no hole behind it, which the kernel would refuse.
    put(4 * MIB, &[(1024, b"\x01\0\0\0"), (4086, b"SWAPSPACE2"), (8192, b"old")]);
    let header = std::fs::read(&path).unwrap()[..4096].to_vec();
    let file = open(FilePlace::Path).unwrap();
    write_good(&file, 0, &[(5, noise_page(5))]);
    once(&file, Chore::EndRun);
    drop(file);
    let after = std::fs::read(&path).unwrap();
    assert!(after[..4096] == header && after[4096..].iter().all(|byte| *byte == 0));
    let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap());
    assert_eq!((after.len() as u64, blocks * 512 >= 4 * MIB), (4 * MIB, true));
    std::fs::remove_dir_all(&dir).unwrap();
}

// ---------------------------------------------------------------- tier

#[test]
fn tier_moves_the_oldest_pages_out() {
    let tier = tier(4 << 20);
    let mut batches = 0;
    for slot in 1..6000u32 {
        write_good(&tier, 0, &[(slot, half_page(slot))]);
        if slot % 32 == 0 {
            while maintain(&tier, 1) {}
            batches += 1;
        }
        assert!(tier.usage().ram_bytes <= 4 << 20, "{:?}", tier.usage());
    }
    assert!(batches > 100);
    let usage = tier.usage();
    assert_eq!(usage.ram_pages + usage.file_pages, 5999, "{usage:?}");
    assert!(usage.written_back_pages_total > 3000, "{usage:?}");
    assert_eq!(
        usage.written_back_pages_total, usage.file_pages,
        "maintain kept ahead of the writes: {usage:?}"
    );
    // The oldest are in the file (their read is pending), the youngest in RAM, and a mixed read gets both.
    let in_ram = |slot: u32| start(&tier, 2, 4711, &[slot]).is_some();
    if tier.file().io_engine() == IoEngine::Uring {
        assert!(!in_ram(1) && !in_ram(500) && in_ram(5999) && in_ram(5800));
        let mut done = Vec::new();
        while done.len() < 2 {
            wait_readable(&tier, 2);
            tier.reap(QueueId(2), &mut done);
        }
    }
    let mixed: Vec<(u32, Page)> =
        [1, 5999, 2, 3, 5998, 5997, 700].iter().map(|slot| (*slot, half_page(*slot))).collect();
    expect(&tier, 0, &mixed);
    for slot in 1..6000 {
        expect(&tier, 0, &[(slot, half_page(slot))]);
    }
    // A lower limit moves more; a rewrite of a page in the file counts it once.
    once(&tier, Chore::LimitRam { bytes: 2 << 20 });
    settle(&tier);
    assert!(tier.usage().ram_bytes <= (2 << 20) * 98 / 100, "{:?}", tier.usage());
    for slot in 1..200 {
        write_good(&tier, 0, &[(slot, half_page(slot + 1))]);
    }
    let usage = tier.usage();
    assert_eq!(usage.ram_pages + usage.file_pages, 5999, "{usage:?}");
}

/// Before pages go to the file they are compressed once more, and more of them stay.
#[test]
fn a_tier_holds_more_by_zstd() {
    let stays = |page: fn(u32) -> Page| {
        let tier = recompressing(4 << 20);
        for slot in 1..4000u32 {
            write_good(&tier, 0, &[(slot, page(slot))]);
            if slot % 32 == 0 {
                while maintain(&tier, 1) {}
            }
        }
        for slot in 1..4000 {
            expect(&tier, 0, &[(slot, page(slot))]);
        }
        let usage = tier.usage();
        assert!(usage.ram_bytes <= 4 << 20 && usage.zstd_pages <= usage.ram_pages, "{usage:?}");
        assert_eq!(usage.ram_pages + usage.file_pages, 3999, "{usage:?}");
        discard(&tier, &(1..4000).collect::<Vec<u32>>());
        assert_eq!((tier.usage().zstd_pages, tier.usage().ram_compressed_bytes), (0, 0));
        usage
    };
    let letters = stays(letters_page);
    assert!(letters.zstd_pages * 10 > letters.ram_pages * 8 && letters.ram_pages > 2400, "{letters:?}");
    assert_eq!(stays(half_page).zstd_pages, 0, "what zstd does not make shorter stays as it is");
}

/// Pages of records come in wordwise: more of them stay than by LZ4. A page that is compressed once more for
/// the file comes back as well.
#[test]
fn a_tier_holds_more_wordwise() {
    let mut stay = Vec::new();
    for recompress in [Recompress::Off, Recompress::Auto, Recompress::On] {
        let (ram, file) = (ram_config(1 << 20, Algorithm::Lz4), file_config(IoEngine::Auto));
        let tier = TierBacking::with_recompress(ram, file, recompress).unwrap();
        for slot in 1..2000 {
            write_good(&tier, 0, &[(slot, records_page(slot))]);
            while slot % 32 == 0 && maintain(&tier, 1) {}
        }
        let usage = tier.usage();
        let is_lz4_alone = recompress == Recompress::Off;
        assert_eq!(usage.ram_pages + usage.file_pages, 1999, "{usage:?}");
        assert!(
            if is_lz4_alone { usage.wordwise_pages == 0 } else { usage.wordwise_pages > 100 },
            "{usage:?}"
        );
        assert_eq!(usage.zstd_pages > 0, recompress == Recompress::On, "{usage:?}");
        assert_eq!(usage.dense_per_mille.is_some_and(|left| left < 800), !is_lz4_alone, "{usage:?}");
        stay.push(usage.ram_pages);
        (1..2000).for_each(|slot| expect(&tier, 0, &[(slot, records_page(slot))]));
        discard(&tier, &(1..2000).collect::<Vec<u32>>());
        assert_eq!((tier.usage().wordwise_pages, tier.usage().ram_compressed_bytes), (0, 0));
    }
    assert!(stay[1] * 2 > stay[0] * 3, "{stay:?} pages");
}

/// A page that is shortened by little, and by wordwise alone, is better in the file than in the pool.
#[test]
fn what_is_shortened_by_little_goes_to_the_file() {
    // All words have the same two upper bytes: too short for LZ4.
    let little = |slot: u32| {
        let mut page = noise_page(slot);
        for word in page.0.as_chunks_mut::<8>().0 {
            word[6..].copy_from_slice(&[0x3a, 0x7f]);
        }
        page
    };
    let tier = tier(64 << 20);
    (1..2000).for_each(|slot| write_good(&tier, 0, &[(slot, records_page(slot))]));
    (2000..2100).for_each(|slot| write_good(&tier, 0, &[(slot, little(slot))]));
    let usage = tier.usage();
    assert!(usage.wordwise_pages > 500, "{usage:?}");
    assert_eq!(usage.incompressible_pages + usage.file_pages, 100, "it waits, or is there: {usage:?}");
    (2000..2100).for_each(|slot| expect(&tier, 0, &[(slot, little(slot))]));
}

/// Whatever their slots: what leaves the pool together is written by few requests.
#[test]
fn writeback_is_a_log() {
    let tier = tier(4 << 20);
    let mut dice = Dice(5);
    let mut versions: HashMap<u32, u32> = HashMap::new();
    for step in 1..20_000u32 {
        let slot = 1 + dice.below(8000) as u32;
        if dice.below(3) == 0 {
            discard(&tier, &[slot]);
            versions.remove(&slot);
        } else {
            write_good(&tier, 0, &[(slot, half_page(slot ^ step))]);
            versions.insert(slot, slot ^ step);
        }
        if step % 32 == 0 {
            while maintain(&tier, 1) {}
        }
    }
    let usage = tier.usage();
    assert!(usage.written_back_pages_total > 3000, "{usage:?}");
    assert!(usage.write_ios_total * 8 < usage.written_back_pages_total, "{usage:?}");
    // No page was refused by the pool.
    assert_eq!(usage.file_written_pages_total, usage.written_back_pages_total + tier.overtaken_pages_total());
    for (slot, version) in versions {
        expect(&tier, 0, &[(slot, half_page(version))]);
    }
}

#[test]
fn a_pool_gives_room_as_long_as_its_file_takes_pages() {
    let written: Vec<(u32, Page)> = (1..2000).map(|slot| (slot, half_page(slot))).collect();
    let tier_of = |file_bytes| {
        let file = FileConfig { max_bytes: file_bytes, ..file_config(IoEngine::Auto) };
        let tier = TierBacking::new(ram_config(64 << 20, Algorithm::Lz4), file).unwrap();
        written.chunks(64).for_each(|chunk| write_good(&tier, 0, chunk));
        tier
    };
    let tier = tier_of(64 << 20);
    let before = tier.usage().ram_bytes;
    assert!(give_ram(&tier, 2, 1 << 20), "the file takes pages");
    let given = before - tier.usage().ram_bytes;
    assert!((960 << 10..2 << 20).contains(&given), "{given} bytes");
    while give_ram(&tier, 2, 1 << 20) {}
    assert_eq!((tier.usage().ram_pages, tier.usage().file_pages), (0, 1999));
    expect(&tier, 0, &written);

    let small = tier_of(1 << 20);
    while give_ram(&small, 2, 8 << 20) {}
    let usage = small.usage();
    assert!(usage.ram_pages > 1600 && usage.file_bytes <= 1 << 20, "{usage:?}");
    expect(&small, 0, &written);
}

/// Writers, readers, discards and two threads of maintenance on few slots, so that writebacks are overtaken
/// all the time. Every page knows its version; a lost or mixed-up one is found at the next read.
fn writeback_is_overtaken(tier: &TierBacking, seconds: f64) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        for queue in 2..4 {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    maintain(tier, queue);
                    give_ram(tier, queue, 16 << 10);
                }
            });
        }
        let workers: Vec<_> = (0..2u32)
            .map(|thread| {
                scope.spawn(move || {
                    let mut dice = Dice(77 + u64::from(thread));
                    let mut versions = vec![0u32; 800];
                    let start = Instant::now();
                    // On a busy machine for longer: until it has happened often enough to mean something.
                    let enough = || tier.overtaken_pages_total() > 40 || start.elapsed().as_secs() > 60;
                    let mut step = 0;
                    while start.elapsed().as_secs_f64() < seconds || !enough() {
                        step += 1;
                        let own = dice.below(790) as usize;
                        let slots: Vec<u32> = (own..own + 6).map(|own| 1 + own as u32 * 2 + thread).collect();
                        match dice.below(8) {
                            0..3 => {
                                let pages: Vec<(u32, Page)> =
                                    slots.iter().map(|s| (*s, page_of(*s, step))).collect();
                                write_good(tier, thread, &pages);
                                versions[own..own + 6].fill(step);
                            }
                            3..6 => {
                                let done = read(tier, thread, &slots);
                                for (index, slot) in slots.iter().enumerate() {
                                    let version = versions[own + index];
                                    if version == 0 {
                                        assert_eq!(done.results[index], Err(BackingError::Empty));
                                    } else {
                                        assert_eq!(done.results[index], Ok(()), "slot {slot}");
                                        assert!(
                                            done.buf[index].0 == page_of(*slot, version).0,
                                            "slot {slot} is not version {version}"
                                        );
                                    }
                                }
                            }
                            6 => {
                                discard(tier, &slots);
                                versions[own..own + 6].fill(0);
                            }
                            // Free and use again at once, as the engine does.
                            _ => {
                                discard(tier, &slots);
                                let pages: Vec<(u32, Page)> =
                                    slots.iter().map(|s| (*s, page_of(*s, step))).collect();
                                write_good(tier, thread, &pages);
                                versions[own..own + 6].fill(step);
                            }
                        }
                    }
                    versions
                })
            })
            .collect();
        let versions: Vec<Vec<u32>> = workers.into_iter().map(|w| w.join().expect("worker")).collect();
        drop(stopping);
        let live = versions.iter().flatten().filter(|version| **version != 0).count() as u64;
        let usage = tier.usage();
        assert_eq!(usage.ram_pages + usage.same_filled_pages + usage.file_pages, live, "{usage:?}");
        for (thread, versions) in versions.iter().enumerate() {
            for (own, &version) in versions.iter().enumerate().filter(|(_, version)| **version != 0) {
                let slot = 1 + own as u32 * 2 + thread as u32;
                expect(tier, 0, &[(slot, page_of(slot, version))]);
            }
        }
    });
    settle(tier);
    discard(tier, &(1..1700).collect::<Vec<_>>());
    settle(tier);
    let usage = tier.usage();
    assert_eq!((usage.ram_pages, usage.file_pages, usage.ram_compressed_bytes), (0, 0, 0), "{usage:?}");
    assert_eq!(usage.file_bytes, 0, "no place is left behind: {usage:?}");
    assert!(tier.file().disk_bytes().unwrap() < 64 << 10);
    assert!(usage.written_back_pages_total > 500, "{usage:?}");
    assert!(tier.overtaken_pages_total() > 20, "only {} overtaken", tier.overtaken_pages_total());
}

#[test]
fn tier_writeback_is_overtaken() {
    writeback_is_overtaken(&tier(500 << 10), 2.0);
}

#[test]
fn tier_writeback_is_overtaken_without_uring() {
    writeback_is_overtaken(&tier_on(500 << 10, IoEngine::Sync), 1.0);
}

/// A file that cannot take the pages: they stay in RAM, whole, and the answer at the limit is Full.
#[test]
fn tier_keeps_pages_when_the_file_is_full() {
    let config = FileConfig { free_floor_bytes: u64::MAX, ..file_config(IoEngine::Auto) };
    let tier = TierBacking::new(ram_config(1 << 20, Algorithm::Lz4), config).unwrap();
    let mut stored = Vec::new();
    let mut full = 0;
    for slot in 1..1000 {
        match write(&tier, 0, &[(slot, half_page(slot))]).remove(0) {
            Ok(()) => stored.push(slot),
            Err(error) => {
                assert_eq!(error, BackingError::Full);
                full += 1;
            }
        }
        maintain(&tier, 1);
    }
    assert!(stored.len() > 300 && full > 300, "{} stored, {full} refused", stored.len());
    assert!(tier.writeback_errors_total() > 0);
    for slot in stored {
        expect(&tier, 0, &[(slot, half_page(slot))]);
    }
    settle(&tier);
}

// ---------------------------------------------------------------- faults and delays

#[test]
fn failed_pages_fail_alone() {
    fails_alone(tier(1 << 20));
    fails_alone(ram());
    fails_alone(zstd());
    fails_alone(ram_disk(SLOTS));
}

fn fails_alone(inner: impl Backing) {
    let plan = FaultPlan { write_failure_at: 5, read_failure_at: 3, ..FaultPlan::default() };
    let faulty = FaultyBacking::new(inner, plan);
    let pages: Vec<(u32, Page)> = (1..10).map(|slot| (slot, page_of(slot, 0))).collect();
    // An older page in the slot that will fail must not come back.
    let results = write(&faulty, 0, &pages[..4]);
    assert!(results.iter().all(|result| result.is_ok()));
    let results = write(&faulty, 0, &pages[..]);
    assert_eq!(results[0], Err(BackingError::Io(libc::EIO)));
    assert!(results[1..].iter().all(|result| result.is_ok()));
    let done = read(&faulty, 0, &[1, 2, 3, 4]);
    assert_eq!(done.results[0], Err(BackingError::Empty));
    assert_eq!(done.results[2], Err(BackingError::Io(libc::EIO)));
    assert!(done.buf[2].0 != pages[2].1.0, "no bytes that could be taken for data");
    assert!(done.buf[1].0 == pages[1].1.0 && done.buf[3].0 == pages[3].1.0);
    expect(&faulty, 0, &pages[2..3]);
    assert_eq!(faulty.failures_total(), 2);
}

#[test]
fn a_flaky_device_never_lies() {
    never_lies(throttled(tier(256 << 10)));
    never_lies(throttled(tier_by(ram_config(256 << 10, Algorithm::Zstd), IoEngine::Auto)));
    never_lies(zstd());
    never_lies(ram_disk(SLOTS));
}

fn never_lies(inner: impl Backing) {
    let plan = FaultPlan {
        seed: 42,
        read_failures_per_million: 50_000,
        write_failures_per_million: 50_000,
        ..FaultPlan::default()
    };
    let faulty = FaultyBacking::new(inner, plan);
    let mut versions: HashMap<u32, u32> = HashMap::new();
    let mut dice = Dice(1);
    let (mut failed_writes, mut failed_reads) = (0, 0);
    for step in 0..2000u32 {
        let slot = 1 + dice.below(200) as u32;
        if dice.below(2) == 0 {
            match write(&faulty, 0, &[(slot, page_of(slot, step))]).remove(0) {
                Ok(()) => drop(versions.insert(slot, step)),
                Err(_) => {
                    failed_writes += 1;
                    versions.remove(&slot);
                }
            }
        } else {
            let done = read(&faulty, 0, &[slot]);
            match (&done.results[0], versions.get(&slot)) {
                (Ok(()), Some(version)) => assert!(done.buf[0].0 == page_of(slot, *version).0),
                (Ok(()), None) => panic!("slot {slot} is empty, and was read"),
                (Err(BackingError::Empty), version) => assert_eq!(version, None),
                (Err(BackingError::Io(libc::EIO)), _) => failed_reads += 1,
                (Err(error), _) => panic!("unexpected: {error}"),
            }
        }
        maintain(&faulty, 1);
    }
    assert!(failed_writes > 20 && failed_reads > 20, "{failed_writes} and {failed_reads} failures");
}

#[test]
fn throttle_delays_and_wakes() {
    // So long that a busy machine does not spend it between two lines.
    let delay = Duration::from_millis(200);
    let config = ThrottleConfig { queues: QUEUES, read_delay: delay, write_delay: Duration::ZERO };
    let slow = ThrottledBacking::new(ram(), config).unwrap();
    write_good(&slow, 0, &[(1, page_of(1, 0)), (2, page_of(2, 0))]);
    let begun = Instant::now();
    assert!(start(&slow, 0, 1, &[1]).is_none());
    assert!(start(&slow, 0, 2, &[2]).is_none());
    let mut done = Vec::new();
    slow.reap(QueueId(0), &mut done);
    assert!(done.is_empty(), "nothing before its time");
    while done.len() < 2 {
        wait_readable(&slow, 0);
        slow.reap(QueueId(0), &mut done);
    }
    assert!(begun.elapsed() >= delay);
    assert!(begun.elapsed() < delay * 20, "woken when due, not much later");
    assert_eq!((done[0].token, done[1].token), (1, 2));
}

/// Anything that is a backing can be used from several threads behind one pointer.
#[test]
fn backings_are_objects() {
    let all: Vec<Arc<dyn Backing>> = vec![
        Arc::new(null()),
        Arc::new(ram()),
        Arc::new(ram_disk(SLOTS)),
        Arc::new(file(IoEngine::Auto)),
        Arc::new(tier(1 << 20)),
        Arc::new(throttled(harmless(tier(1 << 20)))),
    ];
    let slots = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for backing in &all {
            scope.spawn(|| slots.lock().unwrap().push(backing.properties().slots));
        }
    });
    assert_eq!(slots.into_inner().unwrap(), vec![SLOTS; 6]);
}
