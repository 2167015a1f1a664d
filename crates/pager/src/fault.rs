//! Where a fault enters.
//!
//! One thread per CPU, pinned, each with an epoll of its own over every userfaultfd: the CPU that faulted serves itself.
//! (One epoll shared by the threads wakes the idle CPU instead: 20 to 70 µs a fault against 8.)
//!
//! ```text
//!   epoll ─┬─ userfaultfd: gate ─ lock against MOVE ─ read ─ unlock ─ events? process them ─ leave ─ serve each fault
//!          ├─ reads:       reap ─ install
//!          └─ poke:        faults that waited for room
//!   and before each wait: fills that met an event are tried again
//! ```
//!
//! Whoever loses the race for a message finds nothing to read. Nobody waits crosswise: a fill that meets an event (EAGAIN)
//! is put off and tried again, and a fault that finds no room waits in a queue, not on this thread.
//!
//! Tried: epoll without waiting for up to 200 µs while a read of a disk is in flight. Random reads were served 10 % faster,
//! for half as much CPU time again; an idle machine is worth more than that.

use crate::pager::{KEY_POKE, KEY_READS, Pager, Waiting};
use crate::process::Process;
use memspill_engine::backing::QueueId;
use memspill_engine::memory::Memory;
use memspill_engine::swap_in::{Fault, FillJob, Outcome, Scratch};
use memspill_engine::units::{CpuId, GroupId, Vpn};
use memspill_uffd::userfaultfd::{Event, Uffd};
use rustix::event::epoll;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::sync::atomic::Ordering;
use std::time::Instant;

pub fn watch(epoll: &OwnedFd, uffd: &Uffd, key: u64) -> std::io::Result<()> {
    epoll::add(epoll, borrow(uffd), epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
    Ok(())
}

pub fn unwatch(epoll: &OwnedFd, uffd: &Uffd) {
    // It may be gone already: the kernel forgets a closed descriptor by itself.
    let _ = epoll::delete(epoll, borrow(uffd));
}

#[allow(unsafe_code, reason = "Uffd owns its descriptor for as long as it is borrowed")]
fn borrow(uffd: &Uffd) -> BorrowedFd<'_> {
    // SAFETY: the descriptor lives as long as `uffd`, to which the result is bound.
    unsafe { BorrowedFd::borrow_raw(uffd.as_raw_fd()) }
}

/// So many pages are more than a process touches until its agent has introduced itself. (Without an agent it never does.)
const JOINING_FAULTS_MAX: u64 = 256;

/// A pager thread's state.
pub struct FaultThread<'a> {
    pager: &'a Arc<Pager>,
    cpu: CpuId,
    queue: QueueId,
    scratch: Scratch,
    put_off: Vec<FillJob>,
    messages: Vec<Event>,
}

impl<'a> FaultThread<'a> {
    pub fn new(pager: &'a Arc<Pager>, index: u32) -> FaultThread<'a> {
        FaultThread {
            pager,
            cpu: CpuId(index),
            queue: QueueId(index),
            scratch: Scratch::default(),
            put_off: Vec::new(),
            messages: Vec::new(),
        }
    }

    pub fn run(&mut self) {
        let mut events = Vec::with_capacity(64);
        while !self.pager.stopping.load(Ordering::Relaxed) {
            // A fill that met an event waits for the changing thread to run: that is soon, and nothing announces it.
            let timeout = (!self.put_off.is_empty()).then_some(rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000 });
            events.clear();
            let mine = &self.pager.cpus[self.cpu.index()];
            match epoll::wait(&mine.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return self.pager.give_up(125, format!("cannot wait for faults: {e}")),
            }
            let _work = self.pager.quiet.work();
            mine.busy_since_us.store(crate::pager::now_us(), Ordering::Relaxed);
            for event in &events {
                match event.data.u64() {
                    KEY_POKE => self.serve_waiting(),
                    KEY_READS => self.reap(),
                    key => {
                        if let Some(process) = self.pager.process(key) {
                            self.serve(&process);
                        }
                    }
                }
            }
            self.retry_put_off();
            mine.busy_since_us.store(0, Ordering::Relaxed);
        }
    }

    /// Read one process's messages and answer them.
    fn serve(&mut self, process: &Arc<Process>) {
        let start = Instant::now();
        let Some(pass) = process.space.gate.try_enter_events() else {
            // Another pager reads. The descriptor stays readable if it left something.
            std::thread::yield_now();
            return;
        };
        self.messages.clear();
        if !crate::events::read_locked(self.pager, process, &mut self.messages) {
            drop(pass);
            return;
        }
        if self.messages.iter().any(|m| !matches!(m, Event::Fault { .. })) {
            crate::events::process(self.pager, self.cpu, process, &mut self.messages);
        }
        drop(pass);
        let mut messages = std::mem::take(&mut self.messages);
        messages.sort_by_key(|m| !matches!(m, Event::Fault { tid, .. } if self.pager.token.is_held_by(*tid)));
        for message in &messages {
            if let Event::Fault { addr, write, tid } = message {
                self.fault(process, *addr, *write, *tid);
                self.pager.fault_ns.record(start.elapsed());
            }
        }
        self.messages = messages;
    }

    fn fault(&mut self, process: &Arc<Process>, addr: u64, write: bool, tid: u32) {
        memspill_engine::stats::add(&self.pager.engine.stats.on(self.cpu).pgfault, 1);
        if !crate::events::is_known(process) && !crate::events::learn(self.pager, process, tid) {
            // It faults again, after what stood in the way has been read.
            process.memory.wake(Vpn::from_addr(addr), 1);
            return;
        }
        if process.hopeless {
            process.memory.poison(Vpn::from_addr(addr));
            process.memory.wake(Vpn::from_addr(addr), 1);
            return;
        }
        if crate::events::is_agent_call(self.pager, process, addr, tid) {
            return;
        }
        // Who makes room must not wait for room: the evictor, which faults only where it makes pages ready to be moved out,
        // and the child of a fork that is about to join, of which nothing can be moved out before. Nor who waits for
        // himself.
        let (evicts, joins) = match process.memory.agent() {
            Some(agent) => (agent.is_evictor(tid), false),
            None => (false, process.progress.faults() < JOINING_FAULTS_MAX),
        };
        let urgent = evicts || joins || serves_beyond(process);
        if !evicts {
            process.progress.note_fault();
            crate::home::note_fault(self.pager, process, tid);
        }
        let favoured = self.pager.token.fault(tid, crate::pager::now_us());
        self.page_fault(process, Fault { vpn: Vpn::from_addr(addr), write, urgent, favoured });
    }

    fn page_fault(&mut self, process: &Arc<Process>, fault: Fault) {
        let engine = &self.pager.engine;
        let outcome = engine.fault(self.cpu, self.queue, &process.space, fault, &mut self.scratch);
        match outcome {
            Outcome::NoRoom => {
                let waiting = Waiting { process: process.clone(), fault };
                self.pager.cpus[self.cpu.index()].waiting.lock().expect("waiting").push_back(waiting);
            }
            other => self.after(other),
        }
        self.pager.kick_reclaim();
    }

    fn after(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Again(job) => self.put_off.push(job),
            // A hard limit around us had no page for a fill that was charged, or no memory for a read: the waiters were woken
            // and will fault again.
            Outcome::NoRoom | Outcome::Pause => std::thread::sleep(std::time::Duration::from_millis(1)),
            Outcome::Done | Outcome::Pending | Outcome::Gone => {}
        }
    }

    /// Fills that met an event: it has been read by now, or will be by whoever holds the gate.
    fn retry_put_off(&mut self) {
        for job in std::mem::take(&mut self.put_off) {
            let outcome = self.pager.engine.install(self.cpu, job, &mut self.scratch);
            self.after(outcome);
        }
    }

    /// There is room again: serve what waits, in order, until it is used up. Who waits for a group's room does not hold up
    /// the others.
    fn serve_waiting(&mut self) {
        let mine = &self.pager.cpus[self.cpu.index()];
        let mut count = [0; 8];
        let _ = rustix::io::read(&mine.poke, &mut count);
        let engine = &self.pager.engine;
        self.serve_beyond(&mine.waiting);
        let mut without_room: Vec<GroupId> = Vec::new();
        let mut still_waiting: Vec<Waiting> = Vec::new();
        while without_room.len() < engine.groups.all().len() {
            let Some(waiting) = mine.next_waiting() else { break };
            let space = &waiting.process.space;
            let group = space.group(engine).id;
            if without_room.contains(&group) {
                still_waiting.push(waiting);
                continue;
            }
            let outcome = engine.fault(self.cpu, self.queue, space, waiting.fault, &mut self.scratch);
            if matches!(outcome, Outcome::NoRoom) {
                without_room.push(group);
                still_waiting.push(waiting);
                continue;
            }
            self.after(outcome);
        }
        let mut queue = mine.waiting.lock().expect("waiting");
        still_waiting.into_iter().rev().for_each(|waiting| queue.push_front(waiting));
        mine.tries_again.store(false, Ordering::Relaxed);
        drop(queue);
        self.pager.kick_reclaim();
    }

    /// Of those who wait, the ones that are served beyond the budget.
    fn serve_beyond(&mut self, waiting: &Mutex<VecDeque<Waiting>>) {
        let mut queue = waiting.lock().expect("waiting");
        if !queue.iter().any(|waiting| serves_beyond(&waiting.process)) {
            return;
        }
        let all: Vec<Waiting> = queue.drain(..).collect();
        let (beyond, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|waiting| serves_beyond(&waiting.process));
        queue.extend(others);
        drop(queue);
        for waiting in beyond {
            self.page_fault(&waiting.process, Fault { urgent: true, ..waiting.fault });
        }
    }

    fn reap(&mut self) {
        let mut done = Vec::new();
        for device in self.pager.engine.devices.iter() {
            device.backing.reap(self.queue, &mut done);
        }
        for done in done {
            let outcome = self.pager.engine.read_done(self.cpu, done, &mut self.scratch);
            self.after(outcome);
        }
        self.pager.kick_reclaim();
    }
}

fn serves_beyond(process: &Process) -> bool {
    process.memory.agent().is_some_and(|agent| agent.serves_beyond())
}

/// An epoll with the poke and the queue's read completions in it.
pub fn epoll_of(pager_poke: &OwnedFd, read_fds: &[i32]) -> std::io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, pager_poke.as_fd(), epoll::EventData::new_u64(KEY_POKE), epoll::EventFlags::IN)?;
    for fd in read_fds {
        watch_reads(&epoll, *fd)?;
    }
    Ok(epoll)
}

/// Reap when a device has finished reads.
pub fn watch_reads(epoll: &OwnedFd, fd: i32) -> std::io::Result<()> {
    epoll::add(epoll, borrow_reads(&fd), epoll::EventData::new_u64(KEY_READS), epoll::EventFlags::IN)?;
    Ok(())
}

/// Wait until a device has finished reads, or for a while.
pub fn wait_readable(fd: i32, timeout: std::time::Duration) {
    let fd = borrow_reads(&fd);
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: i64::from(timeout.subsec_nanos()) };
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    // Interrupted: the caller looks again anyway.
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
}

#[allow(unsafe_code, reason = "a backing's descriptor lives as long as the backing, which outlives the pagers")]
fn borrow_reads(fd: &i32) -> BorrowedFd<'_> {
    // SAFETY: see the reason above.
    unsafe { BorrowedFd::borrow_raw(*fd) }
}
