//! The reclaim threads: the loop around the engine's swap-out.
//!
//! ```text
//!   wait for usage above the high mark
//!   until below the low mark:  pick a space ─ evictor's turn ─ batch lock ─ take ─ unlock ─ wake who waits
//!                              ─ write ─ move out to the file
//!   nothing could be taken     no_room.rs        who cannot be asked   unresponsive.rs
//! ```
//!
//! Several threads, so that one can compress while others wait for an evictor, and so that several spaces are
//! evicted at once; on a large machine, for all that its CPUs touch. Never on the fault path: a fault that
//! finds no room waits for a batch, not for a round.
//!
//! Tried: threads of the batch class (SCHED_BATCH), which take no CPU from the program by waking up. Touches
//! were 1.09 times as fast at random, and 0.94 times in order.

use crate::proc;
use crate::process::Process;
use crate::process::agent::Agent;
use crate::process::standstill;
use crate::reclaim::direct::{self, TakesShared};
use crate::reclaim::no_room::NoRoom;
use crate::reclaim::spin::spin;
use crate::reclaim::unresponsive;
use crate::run::cpus::Waiting;
use crate::run::files::are_held_calls_over;
use crate::run::openings::Wanted;
use crate::run::pool_reads::FaultMeter;
use crate::run::{Run, watch};
use crate::shared::Object;
use crate::times::{EVICTOR_TURN, LOOK_ASIDE, RECLAIM_IDLE, RECLAIM_STEP, WRITE_AGAIN};
use memspill_engine::backing::QueueId;
use memspill_engine::engine::Engine;
use memspill_engine::fill::Fault;
use memspill_engine::space::Space;
use memspill_engine::swap_out::Shrunk;
use memspill_engine::units::{CpuId, Vpn};
use memspill_engine::write_out::WriteOut;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Pages taken out in one batch: enough to amortise the two wakes and the TLB flushes, short enough for who
/// waits. With 32, where threads bring their own pages, p99 of a touch at random is three quarters of what it
/// is with 64, but reclaim takes a quarter more CPU time; under the kernel's pager a program is slower.
const BATCH_PAGES: usize = 64;
/// Searched at once for pages that are to leave now: the batch lock is held meanwhile.
const PAGEOUT_SPAN_PAGES: u64 = 1 << 18;

/// The thread of one reclaimer.
pub fn reclaim(run: &Run, index: u32) {
    let mut reclaimer = Reclaimer::new(run, CpuId(index), run.layout.reclaim_queue(index));
    let mut seen = 0;
    while !run.is_stopping() {
        run.wait_for_kick(&mut seen, RECLAIM_IDLE);
        reclaimer.look_around();
        watch::release_stuck(&run.cpus, &run.processes());
        reclaimer.take_back_those_aside();
        while run.engine.groups().above_low_mark() && !run.is_stopping() {
            run.kick_another_reclaimer();
            if !reclaimer.evict_batch() {
                std::thread::sleep(RECLAIM_STEP);
                if !run.engine.groups().above_high_mark() {
                    break;
                }
            }
        }
        if !run.engine.groups().above_high_mark() {
            reclaimer.no_room.clear();
        }
        // It may be long: a pool that is compressed once more.
        while reclaimer.maintain_devices() && !run.is_stopping() && !run.engine.groups().above_low_mark() {}
        if index == 0 {
            spin(run, |process| {
                reclaimer.note_if_unnoted(process);
                reclaimer.look_around();
            });
        }
    }
}

/// Take the resident pages of a range out now (MADV_PAGEOUT), with a queue of the caller's. Returns how many
/// have gone: those that are shared, locked or in work stay.
pub fn pageout(run: &Run, queue: QueueId, space: &Arc<Space>, from: Vpn, to: Vpn) -> usize {
    let (mut next, mut gone) = (from, 0);
    while next < to && !run.is_stopping() {
        let (taken, after) = pageout_some(run, queue, space, next, to);
        gone += taken;
        // The process could not be asked.
        if after == next {
            break;
        }
        next = after;
    }
    gone
}

/// The same for the first pages of a range, as many as a batch holds. Also returns where to go on: that is
/// `from` if the process cannot be asked.
pub fn pageout_some(run: &Run, queue: QueueId, space: &Arc<Space>, from: Vpn, to: Vpn) -> (usize, Vpn) {
    /// Pages that are shared or in work may have become free at the next try.
    const TRIES: u32 = 4;
    let Some(first) = space.known_from(from).filter(|first| *first < to) else { return (0, to) };
    let mut reclaimer = Reclaimer::new(run, crate::cpu(), queue);
    let (mut gone, mut end, mut asked) = (0, Vpn(to.0.min(first.0 + PAGEOUT_SPAN_PAGES)), false);
    for _ in 0..TRIES {
        let _work = run.quiet.begin_work();
        let (mut tried, mut after) = (0, first);
        let taken = reclaimer.take_batch(space, |engine, cpu| {
            let (shrunk, write_out, next) = engine.pageout(cpu, space, first, end);
            (tried, after) = (shrunk.tried, next);
            (shrunk, write_out)
        });
        run.update_account();
        // If not, pages that were tried before may be left.
        asked = after != first;
        if !asked {
            break;
        }
        (gone, end) = (gone + taken, after);
        if taken == tried {
            break;
        }
    }
    (gone, if asked { end } else { from })
}

/// May pages of the object leave now? Not while one who has it mapped has pinned memory for a device, or
/// locked some of the object.
fn may_leave(mappers: &[Arc<Process>], object: &Object) -> bool {
    mappers.iter().all(|process| {
        let pid = process.memory.proc_id();
        // It is new, and has done nothing yet; or it has ended.
        let Some((locked_bytes, pinned_bytes)) = proc::locked_and_pinned(pid).filter(|_| pid != 0) else {
            return true;
        };
        let is_locked = || {
            let locked = proc::locked(pid).unwrap_or_default();
            let mapped = process.memory.shared.of(object.key);
            locked.iter().any(|(start, end)| mapped.iter().any(|m| m.start < *end && *start < m.end))
        };
        pinned_bytes == 0 && (locked_bytes == 0 || !object.is_locked_in(process.key, locked_bytes, is_locked))
    })
}

struct Reclaimer<'a> {
    run: &'a Run,
    cpu: CpuId,
    queue: QueueId,
    no_room: NoRoom,
    /// None: it has noted no pool reads yet.
    meter: Option<FaultMeter>,
    /// No earlier than this all processes are looked at for such pages.
    look_at: Instant,
    /// No earlier than this are pages written again whose write failed.
    write_again_at: Instant,
    /// No earlier than this it is looked at which of those that stood still go on.
    take_back_at: Instant,
}

impl<'a> Reclaimer<'a> {
    fn new(run: &'a Run, cpu: CpuId, queue: QueueId) -> Reclaimer<'a> {
        let now = Instant::now();
        let no_room = NoRoom::default();
        let (write_again_at, take_back_at) = (now, now);
        Reclaimer { run, cpu, queue, no_room, meter: None, look_at: now, write_again_at, take_back_at }
    }

    /// Pages that threads have brought by themselves are noted, however few they are.
    fn note_pool_reads_of_all(&mut self) {
        if self.is_look_due() {
            self.look_at = Instant::now() + RECLAIM_IDLE;
            let processes = self.run.processes();
            let served = processes.iter().filter(|process| !process.space.is_aside());
            served.for_each(|process| self.note_pool_reads(process));
        }
    }

    fn is_look_due(&self) -> bool {
        self.cpu.0 == 0 && Instant::now() >= self.look_at
    }

    /// The same, for whoever is not at work yet.
    fn look_around(&mut self) {
        if self.is_look_due() {
            let _work = self.run.quiet.begin_work();
            self.note_pool_reads_of_all();
        }
    }

    fn note_pool_reads(&mut self, process: &Arc<Process>) {
        if process.memory.port.waits_for_note() {
            // Another seed than the pagers'.
            let seed = self.run.layout.pagers + self.cpu.0;
            self.meter
                .get_or_insert_with(|| FaultMeter::new(seed))
                .note_pool_reads(self.run, self.cpu, process);
        }
    }

    /// Pages that threads of this process have brought are noted, and reclaim is called if they are too many.
    fn note_if_unnoted(&mut self, process: &Arc<Process>) {
        if process.memory.port.has_unnoted() {
            let _work = self.run.quiet.begin_work();
            self.note_pool_reads(process);
            self.run.kick_reclaim();
        }
    }

    /// Take one batch out. False if that achieved nothing.
    fn evict_batch(&mut self) -> bool {
        let run = self.run;
        let _work = run.quiet.begin_work();
        if Instant::now() >= self.write_again_at && run.engine.write_again(self.cpu, self.queue) > 0 {
            self.write_again_at = Instant::now() + WRITE_AGAIN;
        }
        self.take_back_those_aside();
        self.note_pool_reads_of_all();
        let mut taken = self.shrink_some();
        if taken == 0 {
            taken = run.engine.drop_read_ahead(self.cpu, BATCH_PAGES);
        }
        self.maintain_devices();
        run.update_account();
        self.no_room.consider_groups(run);
        if taken > 0 {
            self.no_room.note_batch();
            run.poke_for_room(taken);
            return true;
        }
        self.no_room.consider(run, self.queue);
        false
    }

    fn take_back_those_aside(&mut self) {
        if Instant::now() >= self.take_back_at {
            self.take_back_at = Instant::now() + LOOK_ASIDE;
            unresponsive::take_back(self.run);
            self.run.engine.end_rests();
            self.no_room.consider_squeezed(self.run);
        }
    }

    /// Take a batch out of the space whose turn it is; of the next one, where that gives nothing, or its
    /// process cannot answer.
    fn shrink_some(&mut self) -> usize {
        /// So often the same ones are asked again at once: what was in work may be free.
        const TRIES_MIN: usize = 8;
        /// More that give nothing are asked after a moment.
        const TRIES_MAX: usize = 64;
        let engine = &self.run.engine;
        let mut tries = 0;
        loop {
            while tries < TRIES_MAX
                && !self.run.is_stopping()
                && let Some(space) = engine.pick_space()
            {
                let taken = self.shrink(&space, BATCH_PAGES);
                space.note_asked(taken > 0);
                if taken > 0 {
                    return taken;
                }
                tries += 1;
            }
            if tries >= TRIES_MAX || engine.end_rests() == 0 || tries >= TRIES_MIN {
                return 0;
            }
        }
    }

    fn shrink(&mut self, space: &Arc<Space>, pages: usize) -> usize {
        self.take_batch(space, |engine, cpu| engine.shrink(cpu, space, pages))
    }

    /// Take the pages out that `take` chooses, and write them. Returns how many have left.
    fn take_batch(
        &mut self,
        space: &Arc<Space>,
        take: impl FnOnce(&Engine, CpuId) -> (Shrunk, Option<WriteOut>),
    ) -> usize {
        if let Some(object) = self.run.object(u64::from(space.id.0)) {
            return self.take_shared(&object, take);
        }
        let Some(process) = self.run.process(u64::from(space.id.0)) else { return 0 };
        let engine = &self.run.engine;
        let Some(agent) = process.memory.serving_agent() else {
            // The child of a fork, whose agent has not introduced itself yet.
            return 0;
        };
        if standstill::is_stopped(agent.evictor.tid) {
            unresponsive::set_aside(&process, standstill::of_silent(agent.evictor.tid));
            return 0;
        }
        self.note_pool_reads(&process);
        // Before the batch lock: whoever waits for an evictor must not keep events from being processed.
        let Some(evictor) = process.take_evictor(EVICTOR_TURN) else {
            if let Some(why) = process.standstill_in_fork() {
                unresponsive::set_aside(&process, why);
            }
            return 0;
        };
        if !process.caught_up(agent) {
            unresponsive::set_aside(&process, standstill::of_silent(agent.evictor.tid));
            return 0;
        }
        let held = process.memory.port.hold_changes();
        let batch = process.hold_batch();
        if self.run.detach.keeps_pages() {
            return 0;
        }
        let (shrunk, write_out) = take(engine, self.cpu);
        drop((batch, held));
        self.hand_over(&process, space, &shrunk.wanted);
        self.make_own(&process, space, &shrunk.busy);
        // At most as many as have left: whatever an agent says.
        let shared_pages = process.memory.port.shared_taken().min(shrunk.taken as u64);
        if shared_pages > 0 {
            engine.note_own(space, shared_pages);
        }
        let (closed, more) = self.take_closed(&process, space, agent);
        if agent.evictor.is_late() {
            unresponsive::set_aside(&process, standstill::of_silent(agent.evictor.tid));
        }
        drop(evictor);
        // Room was made when the pages left, not when they are stored: who waits need not wait for the
        // compression.
        self.run.poke_for_room(shrunk.taken + closed);
        self.note_pool_reads(&process);
        for write_out in write_out.into_iter().chain(more) {
            engine.write_out(self.cpu, self.queue, write_out);
        }
        shrunk.taken + closed
    }

    /// Pages that are shared since a fork (perhaps one that nobody told of): where the other one still lives,
    /// each gets a page of its own by this.
    fn make_own(&self, process: &Process, space: &Arc<Space>, busy: &[Vpn]) {
        if busy.is_empty() {
            return;
        }
        space.cow.store(true, Ordering::Relaxed);
        if process.memory.populate(busy) {
            space.mark_own(busy);
            self.run.engine.note_own(space, busy.len() as u64);
        }
    }

    /// Take out what the last batch was to take, and the program may not write now: it is opened for a moment
    /// (`opened.rs`). With the evictor's turn, and not the batch lock, of which whoever is to stand still may
    /// have need. Returns how many pages have left.
    fn take_closed(
        &self,
        process: &Arc<Process>,
        space: &Arc<Space>,
        agent: &Agent,
    ) -> (usize, Vec<WriteOut>) {
        let memory = &process.memory;
        let ranges = memory.take_closed();
        if ranges.is_empty() || agent.evictor.is_late() || memory.port.is_changing() {
            memory.note_unmoved(&ranges);
            return (0, vec![]);
        }
        memory.begin_opening();
        self.run.poke_waiting();
        let (pid, evictor) = (memory.pid(), agent.evictor.tid);
        let opened = self.run.openings.ask(Wanted { pid, evictor, ranges: ranges.clone() });
        let is_opened = opened.is_some();
        let (mut taken, mut written) = (0, vec![]);
        for (start, end) in opened.iter().flat_map(|opened| &opened.ranges) {
            let (mut next, end) = (Vpn::from_addr(*start), Vpn::from_addr(*end));
            while next < end && !agent.evictor.is_late() && !self.run.detach.keeps_pages() {
                let batch = process.hold_batch();
                let (shrunk, write_out, after) = self.run.engine.pageout(self.cpu, space, next, end);
                drop(batch);
                self.hand_over(process, space, &shrunk.wanted);
                self.make_own(process, space, &shrunk.busy);
                (taken, next) = (taken + shrunk.taken, after);
                written.extend(write_out);
            }
        }
        drop(opened);
        memory.end_opening(taken == 0);
        if !is_opened {
            memory.note_unmoved(&ranges);
        }
        (taken, written)
    }

    /// A batch of shared memory, for which no evictor is needed.
    fn take_shared(
        &mut self,
        object: &Arc<Object>,
        take: impl FnOnce(&Engine, CpuId) -> (Shrunk, Option<WriteOut>),
    ) -> usize {
        let engine = &self.run.engine;
        // Advice comes here too, for objects that are set aside because a device may store to them.
        let may_be_taken = object.is_adopted() && !object.space.is_aside();
        if !may_be_taken || !may_leave(&self.run.mappers(object.key), object) {
            return 0;
        }
        let batch = object.hold_batch();
        if self.run.detach.keeps_pages() {
            return 0;
        }
        // Looked up again: a child that has come since may open files too.
        let mappers = self.run.mappers(object.key);
        // A file may be read and written by all, whether they have it mapped or not.
        let users = if object.is_file { self.run.processes() } else { mappers.clone() };
        let takes = TakesShared::begin(&users);
        if mappers.iter().any(|process| direct::may_have(process)) || !self.is_unused(object) {
            return 0;
        }
        let (shrunk, write_out) = take(engine, self.cpu);
        drop((takes, batch));
        self.run.account.count_shared_out(shrunk.taken);
        for vpn in &shrunk.wanted {
            let keys = object.memory.waiting_for(vpn.0);
            let first = keys.into_iter().find_map(|key| self.run.process(key));
            first.iter().for_each(|process| self.hand_over(process, &object.space, &[*vpn]));
        }
        self.run.poke_for_room(shrunk.taken);
        if let Some(write_out) = write_out {
            engine.write_out(self.cpu, self.queue, write_out);
        }
        shrunk.taken
    }

    /// May pages of the object leave, as far as calls go that read and write files? No such call begins now.
    fn is_unused(&self, object: &Object) -> bool {
        if object.is_given_back() || object.is_file && !are_held_calls_over(&self.run.processes()) {
            return false;
        }
        let is_ours = !object.is_file || object.memory.mapped.object.has_its_length();
        if !is_ours {
            object.memory.note_breach("its length was changed by a call that memspill has not seen");
        }
        is_ours
    }

    /// Faults on pages of the batch: for the pagers, which alone start reads (a window may reach beyond the
    /// batch).
    fn hand_over(&self, process: &Arc<Process>, space: &Arc<Space>, wanted: &[Vpn]) {
        let cpu = &self.run.cpus[self.cpu.index() % self.run.cpus.len()];
        let fault = |vpn: &Vpn| Fault { vpn: *vpn, write: true, urgent: false, favoured: false };
        let waiting = |vpn: &Vpn| Waiting {
            process: process.clone(),
            space: space.clone(),
            fault: fault(vpn),
            is_protected: false,
        };
        if !wanted.is_empty() {
            wanted.iter().map(waiting).for_each(|fault| _ = cpu.add_waiting(fault));
            cpu.poke();
        }
    }

    /// Move pages out to the file, compact pools. True: there is more to be done.
    fn maintain_devices(&self) -> bool {
        let more = self.run.engine.devices().iter().any(|d| d.maintain(self.queue));
        self.run.update_account();
        more
    }
}
