//! A slow device, made of a fast one: every read is pending for a while, every write takes a while.
//!
//! ```text
//!   read ─▶ inner.read ── done ──▶ held until its time ──▶ reap
//!                      └─ pending ─▶ inner.reap ──▶ held until its time ──▶ reap
//!   poll_fd: an epoll descriptor over a timer (the earliest time) and the inner backing's descriptor
//! ```
//!
//! For tests of everything that waits, and for trying what a policy does on a device of a given latency. It
//! has the one clock of this crate.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use memspill_engine::backing::{
    Backing, BackingError, Chore, Link, PageWrite, Properties, QueueId, ReadDone, ReadRequest, ReadStart,
    Usage,
};
use memspill_engine::sync::lock;
use memspill_engine::units::{Page, SlotIndex};
use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// How slow.
#[derive(Clone, Copy, Debug)]
pub struct ThrottleConfig {
    /// Queues, as the inner backing has.
    pub queues: u32,
    /// From the inner backing's answer to ours, for each read.
    pub read_delay: Duration,
    /// How much longer each call of `write` takes.
    pub write_delay: Duration,
}

struct Queue {
    timer: OwnedFd,
    poll: OwnedFd,
    /// Answers by the time they may go out; the number tells apart those of one time.
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    by_time: BTreeMap<(Instant, u64), ReadDone>,
    count: u64,
}

/// See the module's header.
pub struct ThrottledBacking<B> {
    queues: Vec<Queue>,
    inner: B,
    config: ThrottleConfig,
}

impl<B: Backing> ThrottledBacking<B> {
    /// Wrap `inner`. Takes two descriptors for each queue.
    pub fn new(inner: B, config: ThrottleConfig) -> io::Result<ThrottledBacking<B>> {
        let queue = |id| -> io::Result<Queue> {
            let timer =
                timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
            let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            epoll::add(&poll, &timer, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            if let Some(fd) = inner.poll_fd(QueueId(id))? {
                epoll::add(&poll, fd, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
            }
            Ok(Queue { timer, poll, held: Mutex::default() })
        };
        let queues = (0..config.queues).map(queue).collect::<io::Result<_>>()?;
        Ok(ThrottledBacking { queues, inner, config })
    }

    fn hold(&self, held: &mut Held, done: ReadDone) {
        held.count += 1;
        held.by_time.insert((Instant::now() + self.config.read_delay, held.count), done);
    }

    /// Set the timer to the earliest time held.
    fn arm(queue: &Queue, held: &Held) {
        let wait = held.by_time.first_key_value().map(|((time, _), _)| {
            // A time of zero would switch the timer off.
            time.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1))
        });
        let wait = wait.unwrap_or(Duration::ZERO);
        let it_value =
            Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) as _ };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(&queue.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })
            .expect("a timer takes any time");
    }
}

impl<B: Backing> Backing for ThrottledBacking<B> {
    fn properties(&self) -> Properties {
        Properties { synchronous: false, ..self.inner.properties() }
    }

    fn write(&self, queue: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
        if !self.config.write_delay.is_zero() {
            std::thread::sleep(self.config.write_delay);
        }
        self.inner.write(queue, pages, results);
    }

    fn read(&self, queue: QueueId, request: ReadRequest) -> ReadStart {
        let own = &self.queues[queue.0 as usize];
        if let ReadStart::Done(done) = self.inner.read(queue, request) {
            let mut held = lock(&own.held);
            self.hold(&mut held, done);
            Self::arm(own, &held);
        }
        ReadStart::Pending
    }

    fn reap(&self, queue: QueueId, done: &mut Vec<ReadDone>) {
        let own = &self.queues[queue.0 as usize];
        let mut arrived = Vec::new();
        self.inner.reap(queue, &mut arrived);
        let mut held = lock(&own.held);
        for done in arrived {
            self.hold(&mut held, done);
        }
        while let Some(first) = held.by_time.first_entry()
            && first.key().0 <= Instant::now()
        {
            done.push(first.remove());
        }
        Self::arm(own, &held);
    }

    fn poll_fd(&self, queue: QueueId) -> io::Result<Option<OwnedFd>> {
        self.queues[queue.0 as usize].poll.try_clone().map(Some)
    }

    fn discard(&self, slots: &[SlotIndex]) {
        self.inner.discard(slots);
    }

    fn links(&self) -> Vec<Link> {
        self.inner.links()
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn keeps(&self, slot: SlotIndex, page: Option<&Page>) -> bool {
        self.inner.keeps(slot, page)
    }

    fn housekeep(&self, chore: Chore) -> bool {
        self.inner.housekeep(chore)
    }
}
