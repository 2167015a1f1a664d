//! The pager threads as others see them: an epoll each, faults that wait for room, and how they are woken.
//!
//! ```text
//!   epoll ─┬─ userfaultfds    of all processes, or of those that are at home here (watch.rs)
//!          ├─ reads           a device has finished some
//!          └─ poke            there is room for what waits
//! ```

use crate::histogram::Histogram;
use crate::process::Process;
use crate::process::port::Port;
use crate::times::{now_us, us_of};
use memspill_engine::backing::QueueId;
use memspill_engine::devices::Device;
use memspill_engine::fill::Fault;
use memspill_engine::space::Space;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Keys of the epolls that are not processes.
pub const KEY_POKE: u64 = u64::MAX;
pub const KEY_READS: u64 = u64::MAX - 1;

/// A fault that waits for room.
pub struct Waiting {
    /// Whose fault it is.
    pub process: Arc<Process>,
    /// The page table that has the page: the process's own, or a shared object's.
    pub space: Arc<Space>,
    pub fault: Fault,
    /// It is a write to a page that is there (monitor/protect.rs).
    pub is_protected: bool,
}

impl Waiting {
    fn is_for_page_of(&self, other: &Waiting) -> bool {
        self.fault.vpn == other.fault.vpn
            && self.is_protected == other.is_protected
            && Arc::ptr_eq(&self.process, &other.process)
            && Arc::ptr_eq(&self.space, &other.space)
    }
}

/// One pager thread's side of things.
pub struct PagerCpu {
    /// The kernel's number of the CPU to which the thread is pinned.
    pub cpu: usize,
    epoll: OwnedFd,
    /// Written when there is room for `waiting`.
    poke: OwnedFd,
    waiting: Mutex<VecDeque<Waiting>>,
    /// How many are in `waiting`: changed under its lock, and looked at without.
    waiting_count: AtomicUsize,
    /// How long this thread's faults have taken.
    pub fault_ns: Histogram,
    /// One that waited is being tried again, and is not in `waiting` meanwhile.
    tries_again: AtomicBool,
    /// Since when it is at work, in µs since the start; 0 while it waits.
    busy_since_us: AtomicU64,
}

impl PagerCpu {
    pub fn new(cpu: usize) -> io::Result<PagerCpu> {
        let poke = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &poke, epoll::EventData::new_u64(KEY_POKE), epoll::EventFlags::IN)?;
        let (waiting, waiting_count, fault_ns, tries_again, busy_since_us) = Default::default();
        Ok(PagerCpu { cpu, epoll, poke, waiting, waiting_count, fault_ns, tries_again, busy_since_us })
    }

    /// From now on this thread wakes for the process's faults and events. AlreadyExists: it does so already.
    pub fn watch(&self, port: &Port, key: u64) -> io::Result<()> {
        epoll::add(&self.epoll, port, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
        Ok(())
    }

    /// The same, in turns with others: of those who watch so and wait, one is woken. One that is at work, or
    /// was woken and has not come yet, does not keep the next message from the others.
    pub fn watch_in_turns(&self, port: &Port, key: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        epoll::add(&self.epoll, port, epoll::EventData::new_u64(key), flags)?;
        Ok(())
    }

    pub fn unwatch(&self, port: &Port) {
        // It may be gone already: the kernel forgets a closed descriptor by itself.
        let _ = epoll::delete(&self.epoll, port);
    }

    /// From now on this thread wakes when a device has finished reads of its queue, where it tells of them.
    pub fn watch_reads(&self, device: &Device, queue: QueueId) -> io::Result<()> {
        if let Some(fd) = device.backing.poll_fd(queue)? {
            let key = epoll::EventData::new_u64(KEY_READS);
            epoll::add(&self.epoll, &fd, key, epoll::EventFlags::IN)?;
        }
        Ok(())
    }

    /// The next messages, for the thread itself.
    pub fn wait(&self, events: &mut Vec<epoll::Event>, limit: Option<Duration>) -> rustix::io::Result<()> {
        let limit = limit.map(|limit| Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) });
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The thread is at work, or waits again.
    pub fn set_busy(&self, since: Option<Instant>) {
        self.busy_since_us.store(since.map_or(0, us_of), Ordering::Relaxed);
    }

    pub fn busy_for(&self) -> Option<Duration> {
        let since_us = self.busy_since_us.load(Ordering::Relaxed);
        (since_us > 0).then(|| Duration::from_micros(now_us().saturating_sub(since_us)))
    }

    /// Let the thread try again what waits for room. Returns how many faults that is.
    pub fn poke(&self) -> usize {
        let faults = self.waiting_count.load(Ordering::Acquire);
        if faults > 0 {
            let _ = rustix::io::write(&self.poke, &1u64.to_ne_bytes());
        }
        faults
    }

    /// The queue, for a change. Nobody who adds a fault and then looks for room is missed: the count is set
    /// before the lock is given back.
    fn change_waiting<R>(&self, change: impl FnOnce(&mut VecDeque<Waiting>) -> R) -> R {
        let mut waiting = self.waiting.lock().expect("waiting");
        let result = change(&mut waiting);
        self.waiting_count.store(waiting.len(), Ordering::Release);
        result
    }

    /// The poke has been seen.
    pub fn take_poke(&self) {
        let _ = rustix::io::read(&self.poke, &mut [0; 8]);
    }

    /// False: a fault on that page waits already, which stands for this one too, for all who wait for a page
    /// are woken together. A thread that faults inside a call, with a signal on its way, does so again and
    /// again as fast as the kernel can.
    pub fn add_waiting(&self, new: Waiting) -> bool {
        self.change_waiting(|waiting| match waiting.iter_mut().find(|one| one.is_for_page_of(&new)) {
            Some(one) => {
                one.fault.write |= new.fault.write;
                one.fault.urgent |= new.fault.urgent;
                one.fault.favoured |= new.fault.favoured;
                false
            }
            None => {
                waiting.push_back(new);
                true
            }
        })
    }

    /// Does a fault wait for room?
    pub fn has_waiting(&self) -> bool {
        // Under the lock, with which the mark is set and taken away.
        let waiting = self.waiting.lock().expect("waiting");
        !waiting.is_empty() || self.tries_again.load(Ordering::Relaxed)
    }

    /// Whose faults wait.
    pub fn waiting_processes(&self) -> Vec<Arc<Process>> {
        self.waiting.lock().expect("waiting").iter().map(|waiting| waiting.process.clone()).collect()
    }

    /// The first fault that waits for room, to be tried again. Until `put_back`, one that finds no room again
    /// counts as waiting all the time: who looks for faults that get no room would miss them now and then,
    /// and so never find that nothing goes on.
    pub fn next_waiting(&self) -> Option<Waiting> {
        self.change_waiting(|waiting| {
            let next = waiting.pop_front();
            if next.is_some() {
                self.tries_again.store(true, Ordering::Relaxed);
            }
            next
        })
    }

    /// These found no room again, and come first the next time.
    pub fn put_back(&self, still_waiting: Vec<Waiting>) {
        self.change_waiting(|waiting| {
            still_waiting.into_iter().rev().for_each(|one| waiting.push_front(one));
            self.tries_again.store(false, Ordering::Relaxed);
        });
    }

    /// Take the waiting faults of the wanted processes out of the queue.
    pub fn take_waiting(&self, wanted: impl Fn(&Process) -> bool) -> Vec<Waiting> {
        self.change_waiting(|waiting| {
            if !waiting.iter().any(|one| wanted(&one.process)) {
                return Vec::new();
            }
            let (taken, others): (Vec<_>, Vec<_>) = waiting.drain(..).partition(|one| wanted(&one.process));
            waiting.extend(others);
            taken
        })
    }
}

/// Wait until a device has finished reads, or for less than a second.
pub fn wait_readable(fd: &OwnedFd, limit: Duration) {
    let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
    let mut fds = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
    // Interrupted: the caller looks again anyway.
    let _ = rustix::event::poll(&mut fds, Some(&limit));
}
