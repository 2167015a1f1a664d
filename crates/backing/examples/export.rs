//! The speed of an NBD export as a device: one thread reads single pages, one at a time and 32 at a time.
//!
//!     nbdkit -U /tmp/nbd.sock memory size=1G
//!     cargo run --release -p memspill-backing --example export -- /tmp/nbd.sock [ROUNDS]
//!
//! Each read is what a fault costs here: sent, waited for by epoll, decrypted and verified.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use memspill_backing::nbd::Server;
use memspill_backing::{FileBacking, NbdConfig, NbdTarget};
use memspill_engine::backing::{Backing, PageWrite, QueueId, ReadRequest, ReadStart};
use memspill_engine::units::{Page, SlotIndex, page_buf};
use rustix::event::epoll;

const PAGES: u32 = 65_536;
const QUEUE: QueueId = QueueId(0);
const ROUND: Duration = Duration::from_millis(200);

struct Run {
    device: FileBacking,
    epoll: OwnedFd,
    state: u64,
}

impl Run {
    fn start(&mut self, token: u64) {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let slot = SlotIndex(1 + (self.state >> 33) as u32 % (PAGES - 1));
        let request = ReadRequest { token, slots: vec![slot], buf: page_buf(1), is_awaited: true };
        assert!(matches!(self.device.read(QUEUE, request), ReadStart::Pending));
    }

    /// How many reads have come.
    fn wait(&mut self) -> usize {
        let mut events = Vec::with_capacity(4);
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None);
        let mut done = Vec::new();
        self.device.reap(QUEUE, &mut done);
        assert!(done.iter().all(|read| read.results[0].is_ok()));
        done.len()
    }

    fn one_at_a_time(&mut self) -> (f64, f64) {
        let (mut took, until) = (Vec::new(), Instant::now() + ROUND);
        while Instant::now() < until {
            let begun = Instant::now();
            self.start(0);
            while self.wait() == 0 {}
            took.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        took.sort_by(f64::total_cmp);
        (took[took.len() / 2], took[took.len() * 99 / 100])
    }

    fn many_at_a_time(&mut self, depth: usize) -> f64 {
        let (mut under_way, mut reads, begun) = (0, 0, Instant::now());
        while begun.elapsed() < ROUND {
            (under_way..depth).for_each(|_| self.start(0));
            let came = self.wait();
            reads += came;
            under_way = depth - came;
        }
        while under_way > 0 {
            under_way -= self.wait();
        }
        reads as f64 / begun.elapsed().as_secs_f64()
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("the socket of a server");
    let rounds: u32 = args.next().map_or(5, |rounds| rounds.parse().expect("a number of rounds"));
    let server = match path.rsplit_once(':') {
        Some((host, port)) => Server::Tcp { host: host.into(), port: port.parse().expect("a port") },
        None => Server::Unix { path: path.into() },
    };
    let config = NbdConfig::new(NbdTarget { server, export: String::new(), tls: None });
    let device = FileBacking::on_export(config).expect("an export");
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a descriptor");
    let fd = device.poll_fd(QUEUE).expect("a descriptor").expect("reads take time");
    epoll::add(&epoll, &fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).expect("an epoll");
    let mut page = Page::ZERO;
    let begun = Instant::now();
    for first in (1..PAGES).step_by(128) {
        page.0[..4].copy_from_slice(&first.to_le_bytes());
        let slots = first..(first + 128).min(PAGES);
        let pages: Vec<PageWrite<'_>> =
            slots.map(|slot| PageWrite { slot: SlotIndex(slot), page: &page }).collect();
        let mut results = Vec::new();
        device.write(QUEUE, &pages, &mut results);
        assert!(results.iter().all(Result::is_ok));
    }
    println!("written: {:.0} pages/s", f64::from(PAGES) / begun.elapsed().as_secs_f64());
    let mut run = Run { device, epoll, state: 1 };
    for _ in 0..rounds {
        let (median, late) = run.one_at_a_time();
        let rate = run.many_at_a_time(32);
        println!("one at a time: p50 {median:.1} us, p99 {late:.1} us; 32 at a time: {rate:.0} pages/s");
    }
    println!("memory beside tables: {} KiB", {
        let usage = run.device.usage();
        (usage.ram_bytes - usage.table_bytes) >> 10
    });
}
