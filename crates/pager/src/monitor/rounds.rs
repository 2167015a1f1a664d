//! The monitor's thread: what it does in each round, and when the next round comes.
//!
//! ```text
//!   each round:   is each process still there, and how big is it? (ended.rs) ─▶ charged (account.rs)
//!                 tight? ─▶ what is new is registered (register.rs), protected (protect.rs) if it is shared
//!                           since a fork, and adopted (adopt.rs, shared.rs)
//!                 too much that cannot be managed? (unmanaged.rs)  device errors (errors.rs)
//!   some rounds:  chores, each in its own time
//!   the next:     in the time in which the room that is left could fill; often while memory is tight
//! ```
//!
//! Memory that has once been tight stays so: what is registered is not unregistered again.

use crate::faults::guards;
use crate::idle_cpus;
use crate::monitor::account::Sharers;
use crate::monitor::unmanaged::Watch;
use crate::monitor::{account, adopt, ended, errors, protect, register, shared, stalls};
use crate::reclaim::fairness::Progress;
use crate::reclaim::fork_room;
use crate::run::Run;
use crate::times::{
    AWAKE_LOOK, CHECK_EVERY, GUARDS_LOOK, PROGRESS_LOOK, ROUND_MAX, ROUND_MIN, ROUND_TIGHT, ROUND_TIGHT_MAX,
    SHARED_LOOK, SHARED_LOOK_ANYWAY, SPACES_TIDIED, STALLS_LOOK, TABLES_LOOK,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How fast one CPU can fill memory: 4 KiB pages come to 1.5 GB/s, huge pages to more.
const FILL_BYTES_PER_MS: u64 = 3 << 20;
/// More CPUs than that fill no faster.
const FILLING_CPUS_MAX: u64 = 32;
/// After this time all is registered, and nothing grows any more but by faults. (It takes 2 to 3 ms for 16
/// processes on two CPUs, and one more round may come in between.)
const LATE_MS: u64 = 10;
/// Memory that grows by less than this from one round to the next gives time for a closer look.
const SLOW_GROWTH_BYTES: u64 = 1 << 20;
/// Memory that would grow by more than this in LATE_MS is being filled, by those too who are still small: of
/// 16 processes that fill memory on two CPUs, four to six have hardly begun when it gets tight. Left
/// unmanaged until they were large, they took 324 to 406 MiB of 300. (They fill it at 1.3 to 2.3 GB/s: at
/// twice of this, 2 of 100 runs took for slow what was not, and came to 317 to 345 MiB.)
const FAST_GROWTH_BYTES: u64 = 8 << 20;
/// The part of one CPU for measuring what is shared: the walk costs tens of ns a page.
const SHARED_PART: u32 = 10;
/// The same where nothing tells that it has changed.
const SHARED_ANYWAY_PART: u32 = 100;

/// The monitor thread.
pub fn keep_watch(run: &Arc<Run>) {
    // Without this it would come when the memory is gone, if CPUs are short: 16 processes that fill 400 MiB
    // at once took 342 MiB of 300 before they were managed, and 301 with this (medians). Without the
    // privilege it has to do.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -20);
    let mut monitor = Monitor::new(run);
    while !run.is_stopping() {
        let start = Instant::now();
        let work = run.quiet.begin_work();
        let asked = run.looks_asked();
        // Before it is looked at what they are about.
        let advice = run.advice.take_to_register();
        let seen = monitor.count_and_register();
        run.advice.add_looked_at(advice);
        run.note_looked(asked);
        monitor.unmanaged.check_groups(run);
        errors::tell_device_errors(&run.engine);
        monitor.do_chores(matches!(seen, RoundResult::Room { filling: true, .. }));
        drop(work);
        if run.settings.check && monitor.check.is_due() {
            run.quiet.check(&run.engine);
            monitor.check.be_due_in(CHECK_EVERY);
        }
        let pause = match seen {
            RoundResult::Room { bytes, filling } => {
                let pause = Duration::from_millis(bytes / monitor.fill_bytes_per_ms);
                // On many CPUs that is short, and mostly nothing grows.
                let least = if filling { ROUND_MIN } else { (3 * start.elapsed()).max(ROUND_MIN) };
                pause.max(least).min(ROUND_MAX)
            }
            // A process that has just come, or is small yet, grows meanwhile.
            RoundResult::New => ROUND_TIGHT,
            RoundResult::NothingNew => {
                (3 * start.elapsed()).clamp(ROUND_TIGHT, ROUND_TIGHT_MAX).max(start.elapsed() / 2)
            }
        };
        // A process that asks for looks without end gets a fourth of a CPU for it.
        let least = pause.min(3 * start.elapsed());
        std::thread::sleep(least);
        run.wait_for_look(pause - least);
    }
}

/// What a round has shown.
enum RoundResult {
    /// Memory is not tight: so much may come before it is.
    Room { bytes: u64, filling: bool },
    /// Memory is tight, and ranges have been registered.
    New,
    /// Memory is tight, and all is registered that can be.
    NothingNew,
}

/// When something is to be done again.
struct Timer(Instant);

impl Timer {
    fn is_due(&self) -> bool {
        Instant::now() > self.0
    }

    fn be_due_in(&mut self, pause: Duration) {
        self.0 = Instant::now() + pause;
    }
}

/// What the monitor remembers from round to round.
struct Monitor<'a> {
    run: &'a Arc<Run>,
    /// As fast as memory can fill at most.
    fill_bytes_per_ms: u64,
    usage_bytes: u64,
    /// When it was counted, and of how many processes.
    counted: Option<(Instant, usize)>,
    unmanaged: Watch,
    objects: shared::Watch,
    copies: protect::Watch,
    progress: Progress,
    shared: Timer,
    /// When it is measured though nothing tells of a change: nothing does where memory is unmapped.
    shared_anyway: Timer,
    /// As it was measured last.
    sharers: Sharers,
    /// As they were at the last look.
    sharers_seen: Sharers,
    fairness: Timer,
    tables: Timer,
    tidying: Timer,
    stalls: Timer,
    idle_cpus: idle_cpus::Watch,
    awake: Timer,
    guards: Timer,
    check: Timer,
}

impl<'a> Monitor<'a> {
    fn new(run: &'a Arc<Run>) -> Monitor<'a> {
        let timer = |pause| Timer(Instant::now() + pause);
        Monitor {
            run,
            fill_bytes_per_ms: FILL_BYTES_PER_MS * filling_cpus(),
            usage_bytes: 0,
            counted: None,
            unmanaged: Watch::default(),
            objects: shared::Watch::new(),
            copies: protect::Watch::new(),
            progress: Progress::default(),
            shared: timer(SHARED_LOOK),
            shared_anyway: timer(SHARED_LOOK),
            sharers: Sharers::default(),
            sharers_seen: Sharers::default(),
            fairness: timer(PROGRESS_LOOK),
            tables: timer(TABLES_LOOK),
            tidying: timer(SPACES_TIDIED),
            stalls: timer(STALLS_LOOK),
            idle_cpus: idle_cpus::Watch::new(run),
            awake: timer(AWAKE_LOOK),
            guards: timer(GUARDS_LOOK),
            check: timer(CHECK_EVERY),
        }
    }

    /// Count the memory of every process; and register what is new, where memory is tight.
    fn count_and_register(&mut self) -> RoundResult {
        let run = self.run;
        let processes = run.processes();
        let mut sizes = Vec::with_capacity(processes.len());
        for process in &processes {
            if let Some(statm) = ended::size_if_there(run, process) {
                account::note_unmanaged(run, process, statm);
                sizes.push((process, statm));
            } else if process.is_dying() {
                process.growth.set_unmanaged_bytes(0);
            }
        }
        let shared_bytes = self.objects.count(run, &sizes);
        let other_bytes = account::charge_unmanaged(run, shared_bytes);
        for (process, _) in &sizes {
            if let Some(ranges) = register::register_asked(process) {
                adopt::adopt_registered(run, process, &ranges);
            }
        }
        let usage_bytes = run.engine.root().usage_bytes();
        let grown_bytes = usage_bytes.saturating_sub(std::mem::replace(&mut self.usage_bytes, usage_bytes));
        let counted = self.counted.replace((Instant::now(), sizes.len()));
        // A process that comes brings what it has; one that forks seems to have twice of it.
        let took = counted.filter(|(_, processes)| *processes == sizes.len()).map(|(at, _)| at.elapsed());
        let most_bytes = LATE_MS * self.fill_bytes_per_ms;
        let late_bytes = took.map_or(0, |took| late_bytes(grown_bytes, took).min(most_bytes));
        if !run.is_memory_tight() {
            let bytes = account::bytes_until_tight(run, late_bytes);
            if bytes > 0 {
                return RoundResult::Room { bytes, filling: grown_bytes >= SLOW_GROWTH_BYTES };
            }
            // Processes that share pages since a fork are counted twice by statm: look more closely before
            // paying, unless memory is filling meanwhile (the look takes ms, in which a GiB/s is much).
            if sizes.len() > 1
                && run.engine.groups().all().len() == 1
                && grown_bytes < SLOW_GROWTH_BYTES
                && account::is_below_mark_with_shared_once(run, &sizes, other_bytes)
            {
                let bytes = ROUND_TIGHT.as_millis() as u64 * self.fill_bytes_per_ms;
                return RoundResult::Room { bytes, filling: false };
            }
            run.note_memory_tight();
        }
        // All are registered before any is adopted: from then on nothing grows but by faults, which are
        // counted.
        let filling = late_bytes >= FAST_GROWTH_BYTES;
        let registered = register::register_all(run, &sizes, filling);
        // Memory that a fork has left shared would still grow as it is written.
        for (process, ranges) in &registered {
            protect::protect_registered(run, process, ranges);
        }
        self.copies.look(run, &sizes);
        fork_room::look(run);
        for (process, ranges) in &registered {
            adopt::adopt_registered(run, process, ranges);
            adopt::adopt_grown(run, process);
        }
        self.objects.manage(run);
        run.kick_reclaim();
        // Room may have come from elsewhere than reclaim (memory that is not managed, a process that ended).
        if run.engine.groups().all().iter().any(|group| !group.full()) {
            run.poke_waiting();
        }
        match registered.iter().any(|(_, ranges)| !ranges.is_empty()) {
            true => RoundResult::New,
            false => RoundResult::NothingNew,
        }
    }

    /// What need not be done in each round. While memory is `filling`, what is shared is not measured: with
    /// 16 processes that takes 4 ms, in which 20 MiB come.
    fn do_chores(&mut self, filling: bool) {
        let run = self.run;
        if !filling && account::may_share_pages(run) && self.shared.is_due() {
            let sharers = Sharers::now(run);
            let are_those = sharers.are_those(&self.sharers_seen);
            if self.shared_anyway.is_due() || !sharers.are_as(&self.sharers) {
                let begun = Instant::now();
                account::measure_shared(run, are_those);
                self.sharers = sharers.clone();
                self.shared.be_due_in(SHARED_LOOK + (SHARED_PART - 1) * begun.elapsed());
                self.shared_anyway.be_due_in(SHARED_LOOK_ANYWAY.max(SHARED_ANYWAY_PART * begun.elapsed()));
            } else {
                self.shared.be_due_in(SHARED_LOOK);
            }
            self.sharers_seen = sharers;
        }
        if run.is_memory_tight() && self.fairness.is_due() {
            self.progress.look(&run.processes());
            self.fairness.be_due_in(PROGRESS_LOOK);
        }
        if self.tables.is_due() {
            run.account.note_tables(&run.engine);
            self.tables.be_due_in(TABLES_LOOK);
        }
        if self.tidying.is_due() {
            run.engine.spaces().iter().for_each(|space| space.tidy());
            self.tidying.be_due_in(SPACES_TIDIED);
        }
        if self.stalls.is_due() {
            stalls::look(run);
            run.note_working_set();
            self.stalls.be_due_in(STALLS_LOOK);
        }
        if self.awake.is_due() {
            self.idle_cpus.look(run);
            self.awake.be_due_in(AWAKE_LOOK);
        }
        if self.guards.is_due() {
            guards::forget_guarded_everywhere(run);
            self.guards.be_due_in(GUARDS_LOOK);
        }
    }
}

/// The bytes that come until all is registered, if memory goes on to fill as fast as it has lately.
fn late_bytes(grown_bytes: u64, took: Duration) -> u64 {
    let took_us = took.max(ROUND_MIN).as_micros() as u64;
    grown_bytes.saturating_mul(LATE_MS * 1000) / took_us
}

fn filling_cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64).min(FILLING_CPUS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_meanwhile_is_as_much_as_came_before_in_that_time() {
        assert_eq!(late_bytes(32 << 20, Duration::from_millis(2)), 160 << 20);
        assert_eq!(late_bytes(0, Duration::from_millis(2)), 0);
        // A burst between two rounds that were asked for is no rate.
        assert_eq!(late_bytes(1 << 20, Duration::from_micros(10)), 10 << 20);
        assert_eq!(late_bytes(u64::MAX, Duration::ZERO), u64::MAX / 1000);
    }
}
