//! Where a fault enters.
//!
//! One thread per CPU, pinned, each with an epoll of its own over every userfaultfd: the CPU that faulted
//! serves itself. (One epoll shared by the threads wakes the idle CPU instead: 20 to 70 µs a fault against
//! 8.)
//!
//! ```text
//!   epoll ─┬─ userfaultfd: gate ─ MOVE lock ─ read ─ unlock ─ events? process ─ leave ─ serve each fault
//!          ├─ reads:       reap ─ install
//!          └─ poke:        faults that waited for room
//!   and before each wait: fills that met an event are tried again, and faults that are held back
//!                         (token_queue.rs); some pages are brought that others have named (`predict`)
//! ```
//!
//! A thread that loses the race for a message finds nothing to read. No pager waits for another one: a fill
//! that meets an event (EAGAIN) is put off and tried again, and a fault that finds no room waits in a queue,
//! not on this thread.
//!
//! Tried: epoll without waiting for up to 200 µs while a read of a disk is in flight. Random reads were
//! served 10 % faster, for half as much CPU time again; an idle machine is worth more than that. Threads of
//! ours that spin beside it bring no more (idle_cpus.rs has a better way, where there is one), nor do pagers
//! on the CPU that the disk interrupts; and to wait for the read of a lone fault brought 7 % at most, for a
//! pager that serves nobody while a disk hangs.

use crate::faults::token_queue::{TokenQueue, TokenWaiter};
use crate::faults::{doorbell, events, fork, shared};
use crate::process::Process;
use crate::run::Run;
use crate::run::cpus::{KEY_POKE, KEY_READS, PagerCpu, Waiting};
use crate::run::pool_reads::FaultMeter;
use crate::run::token::Faulter;
use crate::run::watch;
use crate::times::{HELD_AGAIN, NO_MEMORY, PROCESS_YOUNG, PUT_OFF_AGAIN, now_us, us_of};
use memspill_engine::backing::QueueId;
use memspill_engine::fault_trace::Touch;
use memspill_engine::fill::{Fault, FillJob, Outcome, Scratch};
use memspill_engine::memory::Memory;
use memspill_engine::space::Space;
use memspill_engine::units::{CpuId, GroupId, PAGE_SIZE, Vpn};
use memspill_engine::word::State;
use memspill_uffd::userfaultfd::Event;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// More pages than a process touches until its agent has introduced itself, some ms late. (Without an agent
/// it never does, and has no more than the first few of them beyond the limit.)
const JOINING_FAULTS_MAX: u64 = 1024;
const NEVER_JOINING_FAULTS_MAX: u64 = 256;

/// A pager thread's state.
pub struct FaultThread<'a> {
    run: &'a Arc<Run>,
    cpu: CpuId,
    queue: QueueId,
    scratch: Scratch,
    /// Fills that met an event, and who waits for them, where that is known.
    put_off: Vec<(FillJob, Option<Arc<Process>>)>,
    /// Whose faults wait for reads, by the token of the read.
    reading: HashMap<u64, Arc<Process>>,
    messages: Vec<Event>,
    /// Processes with unread messages that no further wakeup will announce.
    unread: Vec<Weak<Process>>,
    /// Processes that this thread has served: the run's table is one line for all CPUs.
    known: HashMap<u64, Weak<Process>>,
    meter: FaultMeter,
    held: TokenQueue<Arc<Process>>,
    /// So often in a row there was no room for pages that are expected to be touched soon.
    without_room: u32,
    /// Reads of such pages that are under way.
    ahead: usize,
}

/// What a fault is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Missing {
        write: bool,
    },
    /// A write to a page that is there.
    Protected,
}

/// Does a fault still wait for its page, after it was served?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    Yes,
    No,
}

/// One process's messages are read so often before others have their turn.
const READS_IN_A_ROW: u32 = 4;

/// Pages that are brought before their faults, between two looks for faults.
const PREDICTED_AT_ONCE: usize = 8;
/// Reads of them that are under way at once, at most.
const READS_AHEAD_MAX: usize = 64;
/// There was no room for them at so many looks in a row: by now their faults have come.
const WITHOUT_ROOM_MAX: u32 = 64;

/// Processes that a pager remembers before it forgets those that have ended.
const KNOWN_MAX: usize = 256;

impl<'a> FaultThread<'a> {
    pub fn new(run: &'a Arc<Run>, index: u32) -> FaultThread<'a> {
        FaultThread {
            run,
            cpu: CpuId(index),
            queue: QueueId(index),
            scratch: Scratch::default(),
            put_off: Vec::new(),
            unread: Vec::new(),
            reading: HashMap::new(),
            messages: Vec::new(),
            known: HashMap::new(),
            meter: FaultMeter::new(index),
            held: TokenQueue::new(),
            without_room: 0,
            ahead: 0,
        }
    }

    pub fn serve_all(&mut self) {
        let mut events = Vec::with_capacity(64);
        while !self.run.is_stopping() {
            let is_idle = self.put_off.is_empty() && self.unread.is_empty();
            let limit = match (is_idle, self.held.is_empty()) {
                // The end of a read is told.
                _ if self.scratch.has_predicted() && self.without_room < WITHOUT_ROOM_MAX => {
                    let waits = self.without_room > 0 || self.reads_many_ahead();
                    Some(if waits { PUT_OFF_AGAIN } else { Duration::ZERO })
                }
                (false, _) => Some(PUT_OFF_AGAIN),
                (true, false) => Some(HELD_AGAIN),
                (true, true) => None,
            };
            if let Err(e) = self.shared_state().wait(&mut events, limit) {
                return self.run.fail(format!("cannot wait for faults: {e}"));
            }
            let _work = self.run.quiet.begin_work();
            // A look at the clock is a part of what a fault costs: one for the first event.
            let mut now = Instant::now();
            self.shared_state().set_busy(Some(now));
            for (number, event) in events.iter().enumerate() {
                if number > 0 {
                    now = Instant::now();
                }
                match event.data.u64() {
                    KEY_POKE => self.serve_waiting(),
                    KEY_READS => self.reap_reads(),
                    key => {
                        if let Some(process) = self.process(key) {
                            self.serve_process(&process, now);
                        }
                    }
                }
            }
            self.retry_put_off();
            self.read_on();
            self.serve_held();
            self.bring_predicted();
            self.shared_state().set_busy(None);
        }
    }

    /// The process of an event. Keys are not used again, and one that has ended is watched by nobody.
    fn process(&mut self, key: u64) -> Option<Arc<Process>> {
        if let Some(process) = self.known.get(&key).and_then(Weak::upgrade) {
            return Some(process);
        }
        let process = self.run.process(key)?;
        if self.known.len() >= KNOWN_MAX {
            self.known.retain(|_, process| process.strong_count() > 0);
        }
        self.known.insert(key, Arc::downgrade(&process));
        Some(process)
    }

    /// What others see of this thread.
    fn shared_state(&self) -> &'a PagerCpu {
        &self.run.cpus[self.cpu.index()]
    }

    /// Read one process's messages and answer them.
    fn serve_process(&mut self, process: &Arc<Process>, now: Instant) {
        let mut faults = self.serve_messages(process, now);
        // The thread that got its page runs on this CPU at once, in place of this one, and goes to sleep at
        // its next fault: that is there already. (Three of four times, under Python's dicts.)
        for _ in 0..READS_IN_A_ROW {
            if faults == 0 {
                break;
            }
            faults = self.serve_messages(process, Instant::now());
        }
        let port = &process.memory.port;
        if port.waits_for_note() {
            self.meter.note_pool_reads(self.run, self.cpu, process);
            self.run.kick_reclaim();
        }
        port.tell_token(|| self.run.token.served_alone(self.group_of(process), us_of(now)));
        port.tell_names_followed(|| process.space.follows_names());
        if port.has_more() {
            self.unread.push(Arc::downgrade(process));
        }
    }

    /// Go on with what could not be read.
    fn read_on(&mut self) {
        for process in std::mem::take(&mut self.unread) {
            if let Some(process) = process.upgrade().filter(|process| !process.is_dying()) {
                self.serve_process(&process, Instant::now());
            }
        }
    }

    /// Returns how many faults were read.
    fn serve_messages(&mut self, process: &Arc<Process>, start: Instant) -> usize {
        let Some(events_guard) = process.space.gate.try_enter_events() else {
            // Another pager reads. The descriptor stays readable if it left something.
            std::thread::yield_now();
            return 0;
        };
        self.messages.clear();
        if !events::read_locked(self.run, process, &mut self.messages) {
            drop(events_guard);
            return 0;
        }
        if self.messages.iter().any(|m| !matches!(m, Event::Fault { .. })) {
            events::process_events(self.run, self.cpu, process, &mut self.messages);
        }
        drop(events_guard);
        let mut messages = std::mem::take(&mut self.messages);
        let faults = messages.iter().filter(|m| matches!(m, Event::Fault { .. })).count();
        process.stall.in_flight.enter(faults as u64, us_of(start));
        messages.sort_by_key(|m| !matches!(m, Event::Fault { tid, .. } if self.run.token.is_held_by(*tid)));
        for message in &messages {
            if let Event::Fault { addr, write, protected, tid } = *message {
                let kind = if protected { Kind::Protected } else { Kind::Missing { write } };
                let waits = self.serve_fault(process, addr, kind, tid, start);
                let now = Instant::now();
                self.shared_state().fault_ns.record(now - start);
                if waits == Waits::No {
                    process.stall.in_flight.leave(us_of(now));
                }
            }
        }
        self.messages = messages;
        faults
    }

    /// One fault: a call of the agent, a page that is missing, or a write to one that is protected.
    fn serve_fault(
        &mut self,
        process: &Arc<Process>,
        addr: u64,
        kind: Kind,
        tid: u32,
        read_at: Instant,
    ) -> Waits {
        let vpn = Vpn::from_addr(addr);
        memspill_engine::stats::add(&self.run.engine.stats().on(self.cpu).pgfault, 1);
        if !process.is_known() && !fork::find_out_child(self.run, process, tid) {
            // It faults again, after what stood in the way has been read.
            process.memory.wake(vpn, 1);
            return Waits::No;
        }
        if doorbell::is_agent_call(self.run, process, addr, tid) {
            return Waits::No;
        }
        // Four get a page beyond the limit, for to wait for room would be to wait for themselves: the
        // evictor, which faults only where it makes pages ready to be moved out; the child of a fork that is
        // about to join, of which nothing can be moved out before its evictor was let go; a process that
        // forks by its agent; and one that stands still, whose tracer reads its memory.
        let (evicts, joins) = match process.memory.attached_agent() {
            Some(agent) => {
                let joins = !agent.evictor.control.takes_commands() && process.faults() < JOINING_FAULTS_MAX;
                (agent.is_evictor(tid) && process.memory.port.evictor_faults(), joins)
            }
            None if process.age() < PROCESS_YOUNG => (false, process.faults() < JOINING_FAULTS_MAX),
            None => (false, process.faults() < NEVER_JOINING_FAULTS_MAX),
        };
        let urgent = evicts || joins || serves_beyond(process);
        if !evicts {
            process.count_fault();
            watch::note_fault(&self.run.cpus, process, tid);
            self.sample(process, addr);
        }
        let Kind::Missing { write } = kind else {
            return self.write_to_shared(process, vpn, urgent);
        };
        let now_us = us_of(read_at);
        let who = self.faulter(process, tid, vpn, now_us);
        let favoured = !evicts && self.run.token.note_fault(who, now_us);
        let fault = Fault { vpn, write, urgent, favoured };
        // The maps, if read while something was changing, may show what is not there any more: then the fault
        // would come again for ever.
        if process.memory.shared.is_doubtful() {
            shared::look_again(self.run, process);
        }
        // Before the private page table: what is put there would go into the object.
        match process.memory.shared.find(addr) {
            // Private, and not there. (A protected page is there, and a shared one is the object's.)
            None if process.descent.as_ref().is_some_and(|descent| descent.hopeless) => {
                process.memory.poison(vpn);
                process.memory.wake(vpn, 1);
                Waits::No
            }
            None => {
                self.record(&process.space, fault);
                if !urgent && self.run.token.holds_back(who, now_us) {
                    return self.hold(process, fault, who, now_us);
                }
                self.page_fault(process, &process.space, fault)
            }
            Some((object, page)) => {
                self.shared_fault(process, object, addr, Fault { vpn: Vpn(page), ..fault })
            }
        }
    }

    /// A write to a page that a fork has left shared, and that was protected (monitor/protect.rs): it and
    /// what is likely to be written next may be copied, once there is room.
    fn write_to_shared(&self, process: &Arc<Process>, vpn: Vpn, urgent: bool) -> Waits {
        let waits = match self.let_write(process, vpn, urgent) {
            true => Waits::No,
            false => {
                let fault = Fault { vpn, write: true, urgent: false, favoured: false };
                self.wait_for_room(process, &process.space, fault, true)
            }
        };
        self.run.kick_reclaim();
        waits
    }

    /// False: there is no room.
    fn let_write(&self, process: &Process, vpn: Vpn, urgent: bool) -> bool {
        let memory = &process.memory;
        let wanted_pages = memory.copies.wanted_pages(vpn);
        let pages = self.run.engine.may_write(self.cpu, &process.space, wanted_pages, urgent);
        if pages == 0 {
            return false;
        }
        memory.copies.grant(vpn, pages);
        // The following pages may be mapped otherwise. And while something changes nothing can be done: then
        // the thread asks again. A userfaultfd of the program's own may have protected what lies beside it.
        let of = |pages: u64| memory.port.unprotect(vpn.addr(), pages * PAGE_SIZE as u64);
        let is_all_ours = !process.growth.was_refused();
        if !(is_all_ours && of(pages).is_ok() || of(1).is_ok()) {
            memory.wake(vpn, 1);
        }
        true
    }

    fn wait_for_room(
        &self,
        process: &Arc<Process>,
        space: &Arc<Space>,
        fault: Fault,
        is_protected: bool,
    ) -> Waits {
        let waiting = Waiting { process: process.clone(), space: space.clone(), fault, is_protected };
        let is_new = self.shared_state().add_waiting(waiting);
        // Room that was made in between was told to nobody: reclaim did not see this fault wait.
        if !space.group(self.run.engine.swap()).full() {
            self.shared_state().poke();
        }
        if is_new { Waits::Yes } else { Waits::No }
    }

    /// For `--report`.
    fn sample(&mut self, process: &Process, addr: u64) {
        if self.run.sampling.is_due(&mut self.meter.countdown) {
            self.run.sampling.note(process.key, addr);
        }
    }

    /// For `--record`.
    fn record(&self, space: &Space, fault: Fault) {
        self.run.recording.note(Touch { space: space.id, vpn: fault.vpn, write: fault.write });
    }

    /// A fault on shared memory; its page is the object's.
    fn shared_fault(&mut self, process: &Arc<Process>, key: u64, addr: u64, fault: Fault) -> Waits {
        match self.run.object(key) {
            // The part of a file behind its last whole page is not managed: it is there, or it is zeros.
            Some(object) if object.is_file && fault.vpn >= object.end() => {
                let page = Vpn::from_addr(addr).addr();
                process.memory.port.zeropage(page, PAGE_SIZE as u64);
                process.memory.wake(Vpn::from_addr(addr), 1);
                Waits::No
            }
            Some(object) => {
                object.memory.note_waiter(fault.vpn.0, process.key, &process.memory, addr);
                self.record(&object.space, fault);
                self.page_fault(process, &object.space, fault)
            }
            // It has ended, or is not managed any more: the fault comes again, as one of private memory.
            None => {
                let held = process.hold_pages();
                process.memory.shared.set_of(key, &[]);
                drop(held);
                process.memory.wake(Vpn::from_addr(addr), 1);
                Waits::No
            }
        }
    }

    fn page_fault(&mut self, process: &Arc<Process>, space: &Arc<Space>, fault: Fault) -> Waits {
        let engine = &self.run.engine;
        let outcome = engine.fault(self.cpu, self.queue, space, fault, &mut self.scratch);
        let waits = match outcome {
            Outcome::NoRoom => self.wait_for_room(process, space, fault, false),
            other => self.follow_up(other, Some(process)),
        };
        self.run.kick_reclaim();
        waits
    }

    /// The work that is left after a fill was tried, for which a fault of `process` waits.
    fn follow_up(&mut self, outcome: Outcome, process: Option<&Arc<Process>>) -> Waits {
        match outcome {
            Outcome::Again(job) => self.put_off.push((job, process.cloned())),
            // A hard limit around us had no page for a fill that was charged, or no memory for a read: the
            // waiters were woken and will fault again.
            Outcome::NoRoom | Outcome::Pause => {
                std::thread::sleep(NO_MEMORY);
                return Waits::No;
            }
            Outcome::Pending(token) => {
                if let Some(process) = process {
                    self.reading.insert(token, process.clone());
                }
            }
            Outcome::Done | Outcome::Gone => return Waits::No,
        }
        Waits::Yes
    }

    /// The same of a fault that had to wait.
    fn follow_up_late(&mut self, outcome: Outcome, process: Option<Arc<Process>>) {
        let waits = self.follow_up(outcome, process.as_ref());
        if let Some(process) = process.filter(|_| waits == Waits::No) {
            process.stall.in_flight.leave(now_us());
        }
    }

    /// Fills that met an event: it has been read by now, or will be by whoever holds the gate.
    fn retry_put_off(&mut self) {
        for (job, process) in std::mem::take(&mut self.put_off) {
            let outcome = self.run.engine.install(self.cpu, job, &mut self.scratch);
            self.follow_up_late(outcome, process);
        }
    }

    /// There is room again: serve the faults that wait, in order, until the room is used up. A fault that
    /// waits for one group's room does not hold up those of others.
    fn serve_waiting(&mut self) {
        let (shared, engine) = (self.shared_state(), &self.run.engine);
        shared.take_poke();
        self.serve_beyond();
        let mut without_room: Vec<GroupId> = Vec::new();
        let mut still_waiting: Vec<Waiting> = Vec::new();
        while without_room.len() < engine.groups().all().len() {
            let Some(waiting) = shared.next_waiting() else { break };
            let space = &waiting.space;
            let group = space.group(engine.swap()).id;
            if without_room.contains(&group) {
                still_waiting.push(waiting);
                continue;
            }
            let outcome = match waiting.is_protected {
                true if self.let_write(&waiting.process, waiting.fault.vpn, false) => Outcome::Done,
                true => Outcome::NoRoom,
                false => engine.fault(self.cpu, self.queue, space, waiting.fault, &mut self.scratch),
            };
            if matches!(outcome, Outcome::NoRoom) {
                without_room.push(group);
                still_waiting.push(waiting);
                continue;
            }
            self.follow_up_late(outcome, Some(waiting.process));
        }
        shared.put_back(still_waiting);
        if without_room.is_empty() {
            // There may be room left.
            self.run.poke_another_pager();
        }
        self.run.kick_reclaim();
    }

    /// Serve the waiting faults of processes that get what they need beyond the budget.
    fn serve_beyond(&mut self) {
        for waiting in self.shared_state().take_waiting(serves_beyond) {
            let fault = Fault { urgent: true, ..waiting.fault };
            let waits = match waiting.is_protected {
                true => self.write_to_shared(&waiting.process, fault.vpn, true),
                false => self.page_fault(&waiting.process, &waiting.space, fault),
            };
            if waits == Waits::No {
                waiting.process.stall.in_flight.leave(now_us());
            }
        }
    }

    fn group_of(&self, process: &Process) -> GroupId {
        process.space.group(self.run.engine.swap()).id
    }

    /// The thread of a fault, before it is served.
    fn faulter(&mut self, process: &Process, tid: u32, vpn: Vpn, now_us: u64) -> Faulter {
        let is_away = || matches!(process.space.word(vpn).state(), State::Swapped | State::Evicting);
        let often = self.run.token.serves_alone() && is_away() && self.meter.rates.note(tid, vpn, now_us);
        Faulter::new(tid, process.space.group(self.run.engine.swap()), often)
    }

    /// The thread waits for its turn.
    fn hold(&mut self, process: &Arc<Process>, fault: Fault, who: Faulter, now_us: u64) -> Waits {
        memspill_engine::stats::add(&self.run.engine.stats().on(self.cpu).token_wait, 1);
        if let Some(before) = self.held.hold(process.clone(), fault, who, now_us) {
            self.let_go(&before, false);
        }
        Waits::Yes
    }

    /// Faults would wait behind them.
    fn reads_many_ahead(&self) -> bool {
        self.ahead >= READS_AHEAD_MAX
    }

    /// Bring some of the pages that are expected to be touched soon.
    fn bring_predicted(&mut self) {
        if !self.scratch.has_predicted() || self.reads_many_ahead() {
            return;
        }
        for _ in 0..PREDICTED_AT_ONCE {
            match self.run.engine.bring_predicted(self.cpu, self.queue, &mut self.scratch) {
                None => {
                    self.without_room = 0;
                    break;
                }
                // Or no memory for the read: its fault reads it again.
                Some(Outcome::NoRoom | Outcome::Pause) => {
                    self.without_room = WITHOUT_ROOM_MAX.min(self.without_room + 1);
                    break;
                }
                Some(outcome) => {
                    self.without_room = 0;
                    self.ahead += usize::from(matches!(outcome, Outcome::Pending(_)));
                    self.follow_up(outcome, None);
                }
            }
        }
        // While they are read there is about to be some.
        if self.without_room == WITHOUT_ROOM_MAX && self.ahead == 0 {
            self.without_room = 0;
            self.scratch.forget_predicted();
        }
        self.run.kick_reclaim();
    }

    /// Serve the faults that need not wait for the token any more.
    fn serve_held(&mut self) {
        // Most often there are none, and a look at the clock is a part of what each fault costs.
        if self.held.is_empty() {
            return;
        }
        let (token, looked_us) = (&self.run.token, now_us());
        if !self.held.is_due(token, looked_us) {
            return;
        }
        let hurries = |process: &Arc<Process>| process.is_dying() || serves_beyond(process);
        for (held, favoured) in self.held.take_due(token, looked_us, hurries) {
            held.process.memory.port.tell_token(|| token.served_alone(held.who.group, looked_us));
            self.let_go(&held, favoured);
        }
    }

    /// Serve a fault that was held.
    fn let_go(&mut self, held: &TokenWaiter<Arc<Process>>, favoured: bool) {
        let process = &held.process;
        let urgent = held.fault.urgent || serves_beyond(process);
        let fault = Fault { favoured, urgent, ..held.fault };
        if self.page_fault(process, &process.space, fault) == Waits::No {
            process.stall.in_flight.leave(now_us());
        }
    }

    /// Put the pages in place that devices have read for this thread.
    fn reap_reads(&mut self) {
        let mut done = Vec::new();
        for device in self.run.engine.devices().iter() {
            device.backing.reap(self.queue, &mut done);
        }
        for done in done {
            let process = self.reading.remove(&done.token);
            self.ahead = self.ahead.saturating_sub(usize::from(process.is_none()));
            let outcome = self.run.engine.read_done(self.cpu, done, &mut self.scratch);
            self.follow_up_late(outcome, process);
        }
        self.run.kick_reclaim();
    }
}

fn serves_beyond(process: &Process) -> bool {
    // Nothing of a process leaves while it forks: room for its fault may never come before.
    let is_held = process.fork.is_under_way() || process.memory.is_opening();
    is_held || process.aside.serves_beyond() || process.memory.shared.is_to_map()
}
