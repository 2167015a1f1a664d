//! Claimed pages are put into their address space: the last step of every fault that brings pages.

use crate::fill::{Cause, Claim, FillJob, Outcome, ReadEnd, SwapIn, slots_of};
use crate::memory::{Fill, Stop};
use crate::reclaim::lru::Record;
use crate::reclaim::queues::{Coming, Ways};
use crate::space::{CHUNK_PAGES, Space, index};
use crate::stats::add;
use crate::sync::{Arc, lock};
use crate::units::{Page, Vpn};
use crate::word::{CANCELLED, ON_TRIAL, State, SwapEntry, Word};

/// Rounds of the LRU that a favoured page stays, beyond the one that it has earned.
const FAVOUR_HEAT: u64 = 3;

impl SwapIn<'_> {
    /// Put claimed pages into their address space.
    pub fn install(&mut self, job: FillJob) -> Outcome {
        let space = job.space.clone();
        let chunk = space.chunk_or_new(job.pages[0].vpn);
        let guard = space.gate.enter_fill();
        let mut end = End::default();
        // Inside the gate no event can cancel a page, so the marks are read once for the whole job.
        let cancelled: Vec<bool> = {
            let words = lock(&chunk);
            job.pages.iter().map(|c| claimed(&words, c.vpn).has(CANCELLED)).collect()
        };
        let mut at = 0;
        let mut longest = usize::MAX;
        while at < job.pages.len() && end.stop == Stop::Done {
            let claim = job.pages[at];
            // Nobody has touched a page that was not asked for: whether it is lost, its fault will say.
            let is_asked = job.cause.is_awaited() && !claim.comes_along;
            let may_be_read_again = claim.read == ReadEnd::Later || claim.read == ReadEnd::Lost && !is_asked;
            if !cancelled[at] && may_be_read_again {
                end.returned.push(claim);
                at += 1;
                continue;
            }
            if cancelled[at] || claim.read == ReadEnd::Lost {
                end.dropped.push((claim, cancelled[at]));
                at += 1;
                continue;
            }
            let pages = run_length(&job.pages[at..], &cancelled[at..]).min(longest);
            let run = &job.pages[at..at + pages];
            if claim.entry.is_none() && !holds(run, job.fault) {
                end.returned.extend_from_slice(run);
                at += pages;
                continue;
            }
            let fill = self.put(&job, at, pages);
            end.installed.extend_from_slice(&job.pages[at..at + fill.pages]);
            at += fill.pages;
            longest = usize::MAX;
            end.stop = match fill.stop {
                // The run crosses the end of a mapping: try half of it; a lone page without a mapping goes
                // back. A run that begins below the page that faulted comes nearer to it first.
                Stop::NotMapped if claim.entry.is_none() && job.pages[at].vpn < job.fault => {
                    // All of them are in the run that was tried.
                    let below = (job.fault.0 - job.pages[at].vpn.0) as usize;
                    end.returned.extend_from_slice(&job.pages[at..at + below.div_ceil(2)]);
                    at += below.div_ceil(2);
                    Stop::Done
                }
                Stop::NotMapped if pages > 1 => {
                    longest = pages / 2;
                    Stop::Done
                }
                // Above the page that faulted comes a hole, and behind it another mapping: not to be filled.
                Stop::NotMapped if job.pages[at].vpn > job.fault => {
                    end.returned.extend_from_slice(&job.pages[at..]);
                    at = job.pages.len();
                    Stop::Done
                }
                Stop::NotMapped => {
                    end.returned.push(job.pages[at]);
                    at += 1;
                    Stop::Done
                }
                // The page is present although its word says that it is not: the waiters are woken, and the
                // page stays, unmanaged. It may belong to a MADV_DONTNEED whose event was processed and whose
                // thread has not dropped it yet: moved out now, it would come back with its old bytes.
                Stop::Exists => {
                    add(&self.swap.stats.rare().fill_exists, 1);
                    end.found.push(job.pages[at]);
                    at += 1;
                    Stop::Done
                }
                stop => stop,
            };
        }
        let rest = job.pages[at..].to_vec();
        // If the fill cannot be done now but may be later, the rest stays claimed; else it goes back.
        if end.stop != Stop::Again {
            end.returned.extend_from_slice(&rest);
        }
        let mut entries = Vec::new();
        {
            let mut words = lock(&chunk);
            self.finish_words(&space, &mut words, (job.cause, job.favoured), &end, &mut entries);
        }
        for (claim, cancelled) in &end.dropped {
            if !cancelled {
                space.memory.poison(claim.vpn);
            }
        }
        drop(guard);
        self.swap.free(self.cpu, &entries);
        self.end_of_install(&space, job, at, rest, end)
    }

    /// COPY (or zero) a run of the job. At the end of a mapping, the last pages of a window may lie outside
    /// it.
    fn put(&self, job: &FillJob, at: usize, pages: usize) -> Fill {
        let vpn = job.pages[at].vpn;
        if job.pages[at].entry.is_none() {
            let fill = job.space.memory.put_zero(vpn, pages, job.write);
            add(&self.swap.stats.rare().zero_fill, fill.pages as u64);
            return fill;
        }
        let bytes = &job.buf[at..at + pages];
        match job.cause.is_awaited() || pages > 1 {
            true => job.space.memory.put(vpn, bytes),
            false => job.space.memory.put_unasked(vpn, bytes),
        }
    }

    /// The words of a job after its fills: resident, given back, or poisoned.
    fn finish_words(
        &self,
        space: &Space,
        words: &mut [Word; CHUNK_PAGES as usize],
        (cause, favoured): (Cause, bool),
        end: &End,
        entries: &mut Vec<SwapEntry>,
    ) {
        let (ways, resident) = (space.ways(), space.resident_pages());
        let coming = self.coming(&end.installed);
        let mut arrivals: Vec<Arrival> = Vec::with_capacity(end.installed.len());
        for (claim, coming) in end.installed.iter().zip(&coming) {
            claimed(words, claim.vpn);
            let favoured = favoured && claim.entry.is_some();
            let welcome = Welcome::of(cause, favoured, claim.comes_along);
            let arrival = Arrival::of(space, ways, resident, (claim.vpn, *coming), welcome);
            let word = arrival.word;
            arrivals.push(arrival);
            let kept = claim
                .entry
                .filter(|entry| claim.read == ReadEnd::Whole && self.kept.shall_keep(self.swap, *entry));
            words[index(claim.vpn)] = kept.map_or(word, |entry| word.with_kept(entry));
            if kept.is_none() {
                entries.extend(claim.entry);
            }
        }
        self.count_arrivals(&arrivals, coming.iter().copied());
        let records: Vec<(Record, bool)> = arrivals.iter().map(|a| (a.record, a.on_trial)).collect();
        let came_back = end.installed.iter().zip(coming).filter(|(claim, _)| claim.entry.is_some());
        space.push_arrivals(&records, came_back.map(|(claim, coming)| ways.returned(claim.vpn, coming)));
        let mut uncharged = 0;
        for (claim, cancelled) in &end.dropped {
            let lost = !cancelled && claim.read == ReadEnd::Lost;
            let word = if lost { Word::NONE.with_state(State::Poisoned) } else { Word::NONE };
            words[index(claim.vpn)] = space.displaced_or(claim.vpn, word);
            entries.extend(claim.entry);
            uncharged += 1;
        }
        for claim in &end.found {
            words[index(claim.vpn)] = space.displaced_or(claim.vpn, Word::NONE);
            entries.extend(claim.entry);
            uncharged += 1;
        }
        for claim in &end.returned {
            let cancelled = claimed(words, claim.vpn).has(CANCELLED);
            words[index(claim.vpn)] = match claim.entry {
                Some(entry) if !cancelled => {
                    space.count_swapped(1);
                    Word::swapped(entry)
                }
                entry => {
                    entries.extend(entry);
                    space.displaced_or(claim.vpn, Word::NONE)
                }
            };
            uncharged += 1;
        }
        space.count_resident(-uncharged);
        space.group(self.swap).uncharge(self.cpu, uncharged as u64);
    }

    /// Count how they came.
    pub(crate) fn count_arrivals<'a>(
        &self,
        arrivals: impl IntoIterator<Item = &'a Arrival>,
        coming: impl IntoIterator<Item = Coming>,
    ) {
        for coming in coming {
            if let Coming::After(distance) = coming {
                self.swap.refaults.count(self.cpu, distance as u32);
            }
        }
        let (mut soon, mut tried) = (0, 0);
        for arrival in arrivals {
            (soon, tried) = (soon + u64::from(arrival.is_soon), tried + u64::from(arrival.on_trial));
        }
        let counters = self.swap.stats.on(self.cpu);
        add(&counters.workingset_refault, soon);
        add(&counters.pgtrial, tried);
    }

    /// How each page comes. One that comes back before as many left as are resident belongs to the working
    /// set (the kernel's test): it has one more round.
    fn coming(&self, claims: &[Claim]) -> Vec<Coming> {
        let mut coming: Vec<Coming> = claims
            .iter()
            .map(|claim| if claim.entry.is_some() { Coming::Unwritten } else { Coming::New })
            .collect();
        let now = self.swap.eviction_clock();
        let mut first = 0;
        for of_device in claims.chunk_by(|a, b| a.entry.map(|e| e.device) == b.entry.map(|e| e.device)) {
            if let Some(entry) = of_device[0].entry {
                let slots = &self.swap.device(entry).slots;
                slots.shadows(&slots_of(of_device), |i, shadow| {
                    coming[first + i] = Coming::After(now.wrapping_sub(shadow).into());
                });
            }
            first += of_device.len();
        }
        coming
    }

    fn end_of_install(
        &mut self,
        space: &Arc<Space>,
        mut job: FillJob,
        at: usize,
        rest: Vec<Claim>,
        end: End,
    ) -> Outcome {
        for run in end.installed.chunk_by(|a, b| a.vpn.0 + 1 == b.vpn.0) {
            space.memory.filled(run[0].vpn, run.len());
        }
        for (claim, cancelled) in &end.dropped {
            add(&self.swap.stats.rare().fill_cancelled, u64::from(*cancelled));
            space.memory.wake(claim.vpn, 1);
        }
        // The waiters of what was given back look again, and get SIGSEGV from the kernel if there is no
        // mapping.
        for claim in end.returned.iter().chain(&end.found) {
            space.memory.wake(claim.vpn, 1);
        }
        if let Cause::InRow(row) = job.cause {
            job.cause = Cause::Fault;
            let has_bytes = |(claim, _): &(&Claim, _)| claim.entry.is_some() && claim.is_ready();
            let pages = job.pages.iter().zip(&job.buf[..]).filter(has_bytes);
            let pages: Vec<(Vpn, &Page)> = pages.map(|(claim, page)| (claim.vpn, page)).collect();
            self.predict(space, pages, row);
        }
        if end.stop == Stop::Again {
            add(&self.swap.stats.rare().fill_again, 1);
            if !job.buf.is_empty() {
                job.buf = job.buf[at..at + rest.len()].to_vec();
            }
            job.pages = rest;
            return Outcome::Again(job);
        }
        if job.cause == Cause::Named {
            space.count_named_under_way(-1);
        }
        self.scratch.give_back(std::mem::take(&mut job.buf));
        match end.stop {
            Stop::Done if end.returned.iter().any(|claim| claim.read == ReadEnd::Later) => Outcome::Pause,
            Stop::Done => Outcome::Done,
            Stop::Gone => {
                space.set_dead();
                Outcome::Gone
            }
            // The machine or a hard limit around us had no page: as if there were no room.
            Stop::NoMemory => Outcome::NoRoom,
            Stop::Exists | Stop::Again | Stop::NotMapped => unreachable!("handled while filling"),
            Stop::Errno(errno) => {
                self.swap.note_error(format!("cannot fill a page: errno {errno}"));
                Outcome::Done
            }
        }
    }
}

/// A page that was put in place: its word, and where it goes.
pub(crate) struct Arrival {
    pub word: Word,
    pub record: Record,
    pub on_trial: bool,
    /// It came back before as many left as are resident.
    is_soon: bool,
}

/// The charges and records that are due to a page that comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Welcome {
    /// It is touched: another round if it comes back soon, unless it is on trial.
    Touched,
    /// It comes with a fault of a thread whose pages stay longer.
    Favoured,
    /// Somebody has said that it will be: the same, but no trial.
    Expected,
    /// It comes along with another one, and may never be touched: no other round, however soon it comes back.
    Along,
}

impl Welcome {
    pub fn of(cause: Cause, favoured: bool, comes_along: bool) -> Welcome {
        match (favoured, comes_along, cause.is_awaited()) {
            (true, ..) => Welcome::Favoured,
            (_, true, _) => Welcome::Along,
            (_, _, true) => Welcome::Touched,
            (_, _, false) => Welcome::Expected,
        }
    }
}

impl Arrival {
    pub fn of(
        space: &Space,
        ways: Ways,
        resident_pages: u64,
        (vpn, coming): (Vpn, Coming),
        welcome: Welcome,
    ) -> Arrival {
        let is_soon = matches!(coming, Coming::After(distance) if distance <= resident_pages);
        let (word, record) = space.fresh_resident(vpn, 0);
        let may_be_tried = matches!(welcome, Welcome::Touched | Welcome::Along);
        let on_trial = may_be_tried && ways.puts_on_trial(vpn, coming, record.stamp());
        let heat = match welcome {
            Welcome::Touched | Welcome::Expected => u64::from(is_soon),
            Welcome::Favoured => u64::from(is_soon) + FAVOUR_HEAT,
            Welcome::Along => 0,
        };
        let word = if on_trial { word.with(ON_TRIAL) } else { word.with_heat(heat) };
        Arrival { word, record, on_trial, is_soon }
    }
}

/// What came of a job, page by page.
struct End {
    installed: Vec<Claim>,
    /// (claim, was it cancelled); else its read failed.
    dropped: Vec<(Claim, bool)>,
    /// Present already.
    found: Vec<Claim>,
    /// Could not be filled, or not be read (now, or without a fault): as before the claim.
    returned: Vec<Claim>,
    stop: Stop,
}

impl Default for End {
    fn default() -> End {
        End {
            installed: Vec::new(),
            dropped: Vec::new(),
            found: Vec::new(),
            returned: Vec::new(),
            stop: Stop::Done,
        }
    }
}

/// The word of a page that this thread has claimed.
pub(crate) fn claimed(words: &[Word; CHUNK_PAGES as usize], vpn: Vpn) -> Word {
    let word = words[index(vpn)];
    assert_eq!(word.state(), State::Filling, "page {vpn:?} was taken from its filler");
    word
}

/// Zeros go into the mapping in which the page faulted, and into no other: what lies beside it may be a
/// mapping of a userfaultfd of the program's own, or of another object, and the kernel would put them there.
/// A call that holds the page that faulted is refused if it crosses the mapping's end.
fn holds(run: &[Claim], fault: Vpn) -> bool {
    run.iter().any(|claim| claim.vpn == fault)
}

/// How many claims from the start can go in one fill: consecutive, alive, of the same kind.
fn run_length(claims: &[Claim], cancelled: &[bool]) -> usize {
    let first = claims[0];
    claims
        .iter()
        .zip(cancelled)
        .enumerate()
        .take_while(|(i, (c, cancelled))| {
            c.vpn.0 == first.vpn.0 + *i as u64
                && !**cancelled
                && c.is_ready()
                && c.entry.is_some() == first.entry.is_some()
        })
        .count()
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use crate::backing::QueueId;
    use crate::devices::Device;
    use crate::engine::Engine;
    use crate::fill::{Fault, FillJob, Outcome, Scratch};
    use crate::memory::{Fill, Memory, PageRun, Stop, Take};
    use crate::slots::Slots;
    use crate::space::Space;
    use crate::testing::blank::{BlankDevice, BlankMemory};
    use crate::testing::device::{Lost, MockBacking};
    use crate::testing::stamp::stamped;
    use crate::tuning::Tuning;
    use crate::units::{CpuId, Page, SpaceId, Vpn};
    use crate::word::State;
    use std::sync::{Arc, Mutex, OnceLock, Weak};

    /// Notes of which state the words are when it is told that pages are filled, and the fills of pages that
    /// have not faulted, of which the first meets an event in work.
    #[derive(Default)]
    struct Noting {
        space: OnceLock<Weak<Space>>,
        filled: Mutex<Vec<(Vpn, State)>>,
        unasked: Mutex<Vec<Vpn>>,
    }

    impl Memory for Noting {
        fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
            BlankMemory.take(runs, frames, outcome);
        }
        fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
            BlankMemory.put(vpn, pages)
        }
        fn put_unasked(&self, vpn: Vpn, pages: &[Page]) -> Fill {
            let mut unasked = self.unasked.lock().unwrap();
            unasked.push(vpn);
            let (pages, stop) = if unasked.len() == 1 { (0, Stop::Again) } else { (pages.len(), Stop::Done) };
            Fill { pages, stop }
        }
        fn put_zero(&self, vpn: Vpn, pages: usize, write: bool) -> Fill {
            BlankMemory.put_zero(vpn, pages, write)
        }
        fn filled(&self, vpn: Vpn, pages: usize) {
            let space = self.space.get().and_then(Weak::upgrade).expect("the space");
            let noted = (0..pages as u64).map(|i| Vpn(vpn.0 + i)).map(|vpn| (vpn, space.word(vpn).state()));
            self.filled.lock().unwrap().extend(noted);
        }
        fn poison(&self, _: Vpn) {}
        fn wake(&self, _: Vpn, _: usize) {}
    }

    fn new() -> (Engine, Arc<Noting>, Arc<Space>) {
        let tuning = Tuning::default();
        let slots = Slots::new(4096, 1, false, &tuning);
        let device = Device::new("test".into(), 0, slots, Arc::new(BlankDevice::new(4096)));
        let engine = Engine::new(vec![device], 64 << 20, tuning);
        let memory = Arc::new(Noting::default());
        let space = Arc::new(Space::new(SpaceId(1), memory.clone()));
        memory.space.set(Arc::downgrade(&space)).expect("set once");
        engine.add_space(space.clone());
        (engine, memory, space)
    }

    /// Its pages have bytes by which a device knows them.
    struct Stamped;

    impl Memory for Stamped {
        fn take(&self, runs: &[PageRun], frames: &mut [Page], outcome: &mut Vec<Take>) {
            BlankMemory.take(runs, frames, outcome);
            (0..outcome.len()).for_each(|at| frames[at] = stamped(1 + at as u64));
        }
        fn put(&self, vpn: Vpn, pages: &[Page]) -> Fill {
            BlankMemory.put(vpn, pages)
        }
        fn put_zero(&self, vpn: Vpn, pages: usize, write: bool) -> Fill {
            BlankMemory.put_zero(vpn, pages, write)
        }
        fn poison(&self, _: Vpn) {}
        fn wake(&self, _: Vpn, _: usize) {}
    }

    /// Its program may never touch it: it would be killed for nothing, or find SIGBUS where the next read
    /// would have been good.
    #[test]
    fn a_page_that_nobody_has_touched_is_not_lost_by_a_read_that_fails() {
        let (tuning, lost) = (Tuning::default(), Arc::new(Lost::default()));
        let backing = Arc::new(MockBacking::new(4096, true, lost));
        let device = Device::new("test".into(), 0, Slots::new(4096, 1, false, &tuning), backing.clone());
        let engine = Engine::new(vec![device], 64 << 20, tuning);
        let space = Arc::new(Space::new(SpaceId(1), Arc::new(Stamped)));
        engine.add_space(space.clone());
        let mut scratch = Scratch::default();
        let mut touch = |vpn| {
            let fault = Fault { vpn, write: true, urgent: false, favoured: false };
            let outcome = engine.fault(CpuId(0), QueueId(0), &space, fault, &mut scratch);
            assert!(matches!(outcome, Outcome::Done));
            space.word(vpn).state()
        };
        assert_eq!(touch(Vpn(7)), State::Resident);
        let (_, batch) = engine.shrink(CpuId(0), &space, 64);
        engine.write_out(CpuId(0), QueueId(0), batch.expect("a page was taken"));
        backing.fail_reads(1);
        let range = (Vpn(0), Vpn(64));
        engine.bring_ahead(CpuId(0), QueueId(0), &space, range, &mut Scratch::default());
        assert_eq!(space.word(Vpn(7)).state(), State::Swapped);
        assert_eq!((space.resident_pages(), engine.groups().charged_pages(engine.root())), (0, 0));
        backing.fail_reads(1);
        assert_eq!(touch(Vpn(7)), State::Poisoned);
    }

    /// A page that is swapped out, and whose fill has met an event: it is still claimed.
    fn claim_of_a_fill(engine: &Engine, space: &Arc<Space>, scratch: &mut Scratch) -> FillJob {
        let fault = Fault { vpn: Vpn(7), write: true, urgent: false, favoured: false };
        engine.fault(CpuId(0), QueueId(0), space, fault, scratch);
        let (_, batch) = engine.shrink(CpuId(0), space, 64);
        engine.write_out(CpuId(0), QueueId(0), batch.expect("a page was taken"));
        let brought = engine.bring_ahead(CpuId(0), QueueId(0), space, (Vpn(0), Vpn(64)), scratch);
        let Outcome::Again(job) = brought.outcome else { panic!("no event was met") };
        job
    }

    /// A page that has not faulted may have a guard in its place.
    #[test]
    fn a_page_that_was_not_asked_for_stays_so_when_its_fill_is_tried_again() {
        let (engine, memory, space) = new();
        let mut scratch = Scratch::default();
        let job = claim_of_a_fill(&engine, &space, &mut scratch);
        assert!(matches!(engine.install(CpuId(0), job, &mut scratch), Outcome::Done));
        assert_eq!(*memory.unasked.lock().unwrap(), [Vpn(7), Vpn(7)]);
        assert_eq!(space.word(Vpn(7)).state(), State::Resident);
    }

    /// The mapping goes while a page of it is on its way, another comes in its place with a page of its own,
    /// and that one is found by a scan: it is managed once the filler has let go.
    #[test]
    fn a_page_that_is_found_where_a_filler_was_overtaken_is_managed() {
        let (engine, _, space) = new();
        let mut scratch = Scratch::default();
        let job = claim_of_a_fill(&engine, &space, &mut scratch);
        let adopt = || space.adopt(engine.swap(), Vpn(0), Vpn(64));
        let unmap = || space.unmap(engine.swap(), CpuId(0), Vpn(7), Vpn(8));
        unmap();
        assert_eq!((adopt(), adopt()), (64, 0), "each once");
        engine.check();
        unmap();
        engine.check();
        assert_eq!(adopt(), 1, "the next mapping has one too");
        assert!(matches!(engine.install(CpuId(0), job, &mut scratch), Outcome::Done));
        assert_eq!(space.word(Vpn(7)).state(), State::Resident);
        assert_eq!(space.resident_pages(), 64);
        engine.check();
        assert_eq!(engine.shrink(CpuId(0), &space, 64).0.taken, 64, "it is in the LRU too");
    }

    /// A waiter of shared memory that looked at the word before is woken, and one that looks afterwards finds
    /// the page: so nobody waits for ever.
    #[test]
    fn who_is_told_that_pages_are_filled_finds_them_resident() {
        let (engine, memory, space) = new();
        let mut scratch = Scratch::default();
        let mut touch_all = || {
            for page in 0..64 {
                let fault = Fault { vpn: Vpn(page), write: true, urgent: false, favoured: false };
                engine.fault(CpuId(0), QueueId(0), &space, fault, &mut scratch);
            }
            let mut filled = std::mem::take(&mut *memory.filled.lock().unwrap());
            filled.sort_unstable_by_key(|(vpn, _)| *vpn);
            filled.retain(|(vpn, _)| vpn.0 < 64);
            filled
        };
        let all: Vec<(Vpn, State)> = (0..64).map(|page| (Vpn(page), State::Resident)).collect();
        assert_eq!(touch_all(), all, "zero fills");
        let (shrunk, batch) = engine.shrink(CpuId(0), &space, 64);
        engine.write_out(CpuId(0), QueueId(0), batch.expect("pages were taken"));
        assert!(shrunk.taken > 32);
        assert_eq!(touch_all().len(), shrunk.taken.min(64), "swap-ins, and no page that was there");
    }
}
