//! The lean way in, of most faults under pressure: one page, whose bytes are at hand.
//!
//! ```text
//!   SWAPPED, no window ─▶ claim ─▶ not in the swap cache ─▶ Backing::read_now ─▶ gate ─ COPY ─ RESIDENT
//!                                  in the swap cache, or has to wait for a device:   as others (`read_in`)
//!                                  anything but a whole page that was put in place:  as others (`install`)
//! ```
//!
//! The same steps in the same order as in swap_in.rs and install.rs (but that whoever waits may be woken
//! after the gate, gate.rs), without what several pages need: no list, no job, no table of reads, nothing on
//! the heap. Everything out of the ordinary goes on there, with the page claimed and its bytes in a job.
//!
//! A page that its owner has read and put in place by himself (`note_there`) takes the last of these steps
//! alone, under one lock: nobody sees it claimed.
//!
//! What it does not do: keep copies (what is at hand is in RAM), bring other pages.

use crate::backing::QueueId;
use crate::devices::Device;
use crate::fill::{Cause, Claim, Fault, FillJob, Outcome, ReadEnd, ReadWith, SwapIn};
use crate::install::{Arrival, Welcome, claimed};
use crate::memory::Stop;
use crate::reclaim::queues::Coming;
use crate::space::{Chunk, Space, index};
use crate::stats::add;
use crate::sync::{Arc, lock};
use crate::units::{Page, PageBuf, Vpn};
use crate::word::{CANCELLED, HAS_ENTRY, State, SwapEntry, Word};

impl SwapIn<'_> {
    /// Claim a page that is swapped out. False: there is no room for it.
    pub(crate) fn claim_lean(&self, space: &Space, word: &mut Word, fault: Fault) -> bool {
        let group = space.group(self.swap);
        if fault.urgent {
            group.force_charge(self.cpu, 1);
        } else if !self.charge_one(group) {
            return false;
        }
        self.mark_lean(space, word);
        true
    }

    /// Mark a page that is swapped out, and charged, as claimed by this thread.
    pub(crate) fn mark_lean(&self, space: &Space, word: &mut Word) {
        *word = word.with_state(State::Filling).with(HAS_ENTRY);
        space.count_resident(1);
        space.count_swapped(-1);
    }

    /// Bring the page, which is claimed.
    pub(crate) fn bring_lean(
        &mut self,
        queue: QueueId,
        space: &Arc<Space>,
        chunk: &Chunk,
        (fault, cause): (Fault, Cause),
        entry: SwapEntry,
    ) -> Outcome {
        let (swap, is_counted) = (self.swap, cause != Cause::Named);
        let device = swap.device(entry);
        let (is_cached, shadow) = device.slots.look(entry.slot);
        if is_cached {
            return self.read_in(
                queue,
                job_of(space, (fault, cause), entry, ReadEnd::None, PageBuf::default()),
                is_counted,
            );
        }
        let mut buf = self.scratch.buffer(1);
        let Some(result) = device.backing.read_now(entry.slot, &mut buf[0]) else {
            self.scratch.give_back(buf);
            return self.read_in(
                queue,
                job_of(space, (fault, cause), entry, ReadEnd::None, PageBuf::default()),
                is_counted,
            );
        };
        if is_counted {
            let counters = swap.stats.on(self.cpu);
            add(&counters.swap_cache_bypass, 1);
            add(&counters.pgmajfault, 1);
        }
        let read = self.note_read(device, &result);
        if read == ReadEnd::Whole && self.install_lean(space, chunk, (fault, cause), entry, shadow, &buf) {
            if let Cause::InRow(row) = cause {
                self.predict(space, [(fault.vpn, &buf[0])], row);
            }
            self.scratch.give_back(buf);
            return Outcome::Done;
        }
        self.install(job_of(space, (fault, cause), entry, read, buf))
    }

    /// Put the page in place. False: nothing has been done.
    fn install_lean(
        &mut self,
        space: &Arc<Space>,
        chunk: &Chunk,
        (fault, cause): (Fault, Cause),
        entry: SwapEntry,
        shadow: Option<u32>,
        buf: &[Page],
    ) -> bool {
        let vpn = fault.vpn;
        let guard = space.gate.enter_fill();
        if claimed(&lock(chunk), vpn).has(CANCELLED) {
            return false;
        }
        let wakes_late = cause != Cause::Named && space.gate.wakes_late();
        let fill = match (cause, wakes_late) {
            (Cause::Named, _) => space.memory.put_unasked(vpn, &buf[..1]),
            (_, false) => space.memory.put(vpn, &buf[..1]),
            (_, true) => space.memory.put_without_wake(vpn, &buf[..1]),
        };
        if fill.stop != Stop::Done {
            return false;
        }
        let mut words = lock(chunk);
        claimed(&words, vpn);
        self.arrive(space, &mut words[index(vpn)], (vpn, shadow), Welcome::of(cause, fault.favoured, false));
        drop(words);
        drop(guard);
        if wakes_late {
            space.memory.wake(vpn, 1);
        }
        if cause == Cause::Named {
            space.count_named_under_way(-1);
        }
        self.swap.free_one(self.cpu, entry);
        space.memory.filled(vpn, 1);
        true
    }

    /// The page is in its place: its word says so from now on, and a queue has it.
    fn arrive(&self, space: &Space, word: &mut Word, (vpn, shadow): (Vpn, Option<u32>), welcome: Welcome) {
        let now = self.swap.eviction_clock();
        let coming =
            shadow.map_or(Coming::Unwritten, |shadow| Coming::After(now.wrapping_sub(shadow).into()));
        let (ways, resident) = (space.ways(), space.resident_pages());
        let arrival = Arrival::of(space, ways, resident, (vpn, coming), welcome);
        *word = arrival.word;
        self.count_arrivals([&arrival], [coming]);
        space.push_arrivals(
            &[(arrival.record, arrival.on_trial)],
            std::iter::once(ways.returned(vpn, coming)),
        );
    }

    /// As `Engine::note_there`. Charged over the limit, if need be: the page is in memory.
    pub fn note_there(&self, space: &Space, vpn: Vpn, comes_along: bool) -> bool {
        // A page that nobody knows of is not away.
        let Some(chunk) = space.chunk(vpn) else { return true };
        let mut words = lock(&chunk);
        let word = &mut words[index(vpn)];
        match word.state() {
            State::Swapped if !space.is_dead() => {}
            State::Evicting | State::Filling => return false,
            // It was brought from here meanwhile. (Or it could not be read from here, and its owner was the
            // first: then it stays with him for good.)
            _ => return true,
        }
        space.group(self.swap).force_charge(self.cpu, 1);
        let entry = word.entry();
        self.mark_lean(space, word);
        let (_, shadow) = self.swap.device(entry).slots.look(entry.slot);
        let welcome = if comes_along { Welcome::Along } else { Welcome::Touched };
        self.arrive(space, word, (vpn, shadow), welcome);
        drop(words);
        self.swap.free_one(self.cpu, entry);
        let counters = self.swap.stats.on(self.cpu);
        add(&counters.pswpin, 1);
        if comes_along {
            space.trust().forget(vpn);
            add(&counters.swap_ra, 1);
        } else {
            self.note_predicted(space, vpn);
            self.note_left_out(space, vpn);
            add(&counters.pgmajfault, 1);
            add(&counters.swap_cache_bypass, 1);
        }
        space.memory.filled(vpn, 1);
        true
    }

    /// Count what has become of the read of one page.
    fn note_read(&self, device: &Device, result: &Result<(), crate::backing::BackingError>) -> ReadEnd {
        let counters = self.swap.stats.on(self.cpu);
        let read = ReadEnd::of(result);
        match read {
            ReadEnd::Later => add(&self.swap.stats.rare().read_again, 1),
            ReadEnd::Lost => add(&counters.read_errors, 1),
            ReadEnd::Whole | ReadEnd::None => add(&counters.pswpin, 1),
        }
        if let Err(error) = result {
            device.errors.note_read(error);
        }
        read
    }
}

fn job_of(
    space: &Arc<Space>,
    (fault, cause): (Fault, Cause),
    entry: SwapEntry,
    read: ReadEnd,
    buf: PageBuf,
) -> FillJob {
    FillJob {
        space: space.clone(),
        write: fault.write,
        favoured: fault.favoured,
        fault: fault.vpn,
        pages: vec![Claim { vpn: fault.vpn, entry: Some(entry), read, comes_along: false }],
        ahead: ReadWith::default(),
        buf,
        cause,
    }
}
