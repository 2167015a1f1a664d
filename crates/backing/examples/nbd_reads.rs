//! How fast pages come from an NBD server: one at a time, and with 32 reads under way on one connection.
//!
//! ```text
//!   nbdkit -U /tmp/s memory 300M &
//!   cargo run --release -p memspill-backing --example nbd_reads -- /tmp/s 20
//! ```
//!
//! Random pages of 256 MiB, encrypted as they are under memspill; the second number is that of rounds. Each
//! line is a round: with one read under way the median in microseconds and the reads a second, with 32 the
//! reads a second.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use memspill_backing::FileBacking;
use memspill_backing::nbd::{NbdConfig, NbdTarget, Server};
use memspill_engine::backing::{Backing, PageWrite, QueueId, ReadDone, ReadRequest, ReadStart};
use memspill_engine::units::{Page, SlotIndex, page_buf};
use rustix::event::{PollFd, PollFlags, poll};

const PAGES: u32 = 65536;
const QUEUE: QueueId = QueueId(0);
const ROUND: Duration = Duration::from_millis(500);

fn main() {
    let mut words = std::env::args().skip(1);
    let path = words.next().map(PathBuf::from).expect("the path of a socket");
    let rounds: u32 = words.next().map_or(20, |rounds| rounds.parse().expect("a number of rounds"));
    let target = NbdTarget { server: Server::Unix { path }, export: String::new(), tls: None };
    let config = NbdConfig { connections: Some(1), ..NbdConfig::new(target) };
    let device = FileBacking::on_export(config).unwrap_or_else(|error| panic!("{error}"));
    fill(&device);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..rounds {
        let (median_us, alone) = reads(&device, 1, &mut random);
        let (_, many) = reads(&device, 32, &mut random);
        println!("{median_us:.1} us, {alone:.0} reads/s; with 32 under way {many:.0} reads/s");
    }
}

fn fill(device: &FileBacking) {
    let mut page = Page::ZERO;
    for first in (1..PAGES).step_by(64) {
        let slots: Vec<SlotIndex> = (first..(first + 64).min(PAGES)).map(SlotIndex).collect();
        page.0[0] = first as u8;
        let writes: Vec<PageWrite<'_>> =
            slots.iter().map(|slot| PageWrite { slot: *slot, page: &page }).collect();
        let mut results = Vec::new();
        device.write(QUEUE, &writes, &mut results);
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
}

/// So many reads under way for a round: the median time of one, and how many were done a second.
fn reads(device: &FileBacking, depth: usize, random: &mut u64) -> (f64, f64) {
    let readable = device.poll_fd(QUEUE).expect("a descriptor").expect("a device that is waited for");
    let (start, mut begun, mut times_ns) = (Instant::now(), vec![Instant::now(); depth], Vec::new());
    let mut done: Vec<ReadDone> = Vec::new();
    let mut begin = |token: usize, buf, begun: &mut [Instant], done: &mut Vec<ReadDone>| {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let slots = vec![SlotIndex(1 + (*random % u64::from(PAGES - 1)) as u32)];
        begun[token] = Instant::now();
        let request = ReadRequest { token: token as u64, slots, buf, is_awaited: true };
        if let ReadStart::Done(now) = device.read(QUEUE, request) {
            done.push(now);
        }
    };
    (0..depth).for_each(|token| begin(token, page_buf(1), &mut begun, &mut done));
    let mut under_way = depth;
    while under_way > 0 {
        device.reap(QUEUE, &mut done);
        if done.is_empty() {
            poll(&mut [PollFd::new(&readable, PollFlags::IN)], None).expect("poll");
            continue;
        }
        for ReadDone { token, buf, results, .. } in std::mem::take(&mut done) {
            assert!(results[0].is_ok(), "{results:?}");
            times_ns.push(begun[token as usize].elapsed().as_nanos() as u64);
            match start.elapsed() < ROUND {
                true => begin(token as usize, buf, &mut begun, &mut done),
                false => under_way -= 1,
            }
        }
    }
    times_ns.sort_unstable();
    (times_ns[times_ns.len() / 2] as f64 / 1e3, times_ns.len() as f64 / start.elapsed().as_secs_f64())
}
