//! The budget changes while a run goes on: because somebody asks (operator.rs), because the run crawls
//! (thrash.rs), or because what it is a part of changes (`Operator::budget_now`).
//!
//! ```text
//!   thread memspill-budget, once a second:
//!     the container's limit, or what others use of it, has changed ─▶ the budget follows
//!     what waits cost says so, four times a second (../pool_share.rs) ─▶ another share for the pool
//!     somebody has waited for most of the last minute ─▶ --on-thrash: warn, grow, kill
//! ```
//!
//! A budget that somebody has set by hand is left alone from then on.

use crate::ctl::host::Operator;
use crate::ctl::thrash::{Crawling, RUN, Thrash};
use crate::pool_share::{Counts, Follower, Shared};
use crate::process::standstill;
use crate::run::{OnThrash, Run};
use crate::times::{BUDGET_LOOK, CTL_TELLS, LIMIT_LOOK, LIMIT_STUCK, POOL_SHARE_LOOK, now_us};
use memspill_engine::backing::Chore;
use memspill_engine::devices::Device;
use memspill_engine::space::Space;
use std::sync::Arc;
use std::time::Instant;

/// A budget follows when it would change by more than this part of itself.
const FOLLOWS_PARTS: u64 = 64;
/// A budget that cannot grow by this part of itself is said not to grow.
const GROWS_PARTS: u64 = 16;
/// If refaults do not tell which budget would do, it grows by this part of itself.
const GROWS_BLINDLY_PARTS: u64 = 2;

/// Set the budget, and by it what devices may hold in RAM, and groups have. Returns the one before.
pub fn set(run: &Run, operator: &dyn Operator, bytes: u64) -> Result<u64, String> {
    let engine = &run.engine;
    if run.detach.keeps_pages() {
        return Err("it is being detached".into());
    }
    let share = run.pool_share_percent();
    let limit_of =
        |device| operator.ram_limit_bytes(bytes, share, device).map(|limit_bytes| (device, limit_bytes));
    let ram: Vec<(&Device, u64)> = engine.devices().iter().map(limit_of).collect::<Result<_, _>>()?;
    let groups = operator.groups(bytes)?;
    let before = engine.root().limit_bytes();
    engine.root().set_limit_bytes(bytes);
    let below = engine.groups().all().iter().skip(1);
    below.zip(&groups).for_each(|(group, config)| group.set_limits(config));
    for (device, bytes) in ram {
        device.backing.housekeep(Chore::LimitRam { bytes });
    }
    // The monitor's pause is as long as the room under the old budget could take to fill.
    run.ask_for_look();
    run.kick_reclaim();
    run.poke_waiting();
    Ok(before)
}

/// After `set`: wait until no more than these bytes are used, or what is over them does not become less.
/// `goes_on` is told now and then how many have left, and of how many; if it returns false nobody waits any
/// more. Returns how many are still over.
pub fn until_within(run: &Run, bytes: u64, mut goes_on: impl FnMut(u64, u64) -> bool) -> u64 {
    until_counted(run);
    let over_bytes = || run.engine.root().usage_bytes().saturating_sub(bytes);
    let total = over_bytes();
    let mut least = total;
    let (mut fell, mut told) = (Instant::now(), Instant::now());
    loop {
        let over = over_bytes();
        if over < least {
            (least, fell) = (over, Instant::now());
        }
        if over == 0 || fell.elapsed() > LIMIT_STUCK || run.is_stopping() {
            return over;
        }
        if told.elapsed() > CTL_TELLS {
            told = Instant::now();
            if !goes_on(total.saturating_sub(over), total) {
                return over;
            }
        }
        std::thread::sleep(LIMIT_LOOK);
    }
}

/// Wait for the look that a new budget asks for: since the one before, what is not managed may have grown by
/// much.
fn until_counted(run: &Run) {
    let (asked, begun) = (run.looks_asked(), Instant::now());
    while !run.has_looked(asked) && begun.elapsed() < LIMIT_STUCK && !run.is_stopping() {
        std::thread::sleep(LIMIT_LOOK);
    }
}

/// The thread that keeps the budget.
pub(crate) fn keep(run: &Run, operator: &Arc<dyn Operator>) {
    let mut keeper = Keeper {
        run,
        operator: operator.as_ref(),
        thrash: Thrash::new(run.settings.thrash_window, run.settings.max_slowdown),
        looked: Instant::now(),
        own_bytes: run.engine.root().max_bytes(),
        warned_at_bytes: None,
        pool_share: Follower::new(),
    };
    let pause = POOL_SHARE_LOOK.min(keeper.thrash.pause());
    let mut followed = Instant::now();
    while !run.is_stopping() {
        std::thread::sleep(pause);
        keeper.share_out();
        if followed.elapsed() >= BUDGET_LOOK {
            followed = Instant::now();
            keeper.follow();
        }
        if keeper.looked.elapsed() >= keeper.thrash.pause() {
            keeper.looked = Instant::now();
            keeper.look_for_thrash();
        }
    }
}

struct Keeper<'a> {
    run: &'a Run,
    operator: &'a dyn Operator,
    thrash: Thrash,
    looked: Instant,
    /// The last budget that was not set by somebody else.
    own_bytes: u64,
    /// It was said that somebody crawls with this one.
    warned_at_bytes: Option<u64>,
    pool_share: Follower,
}

impl Keeper<'_> {
    /// Between the pool and the pages in memory, where the share of the pool follows. There is one such pool
    /// at most.
    fn share_out(&mut self) {
        let (run, follower) = (self.run, &mut self.pool_share);
        // The pool empties.
        if run.detach.keeps_pages() {
            return;
        }
        let engine = &run.engine;
        let is_tier = |device: &&Device| {
            let usage = device.backing.usage();
            device.is_on() && !device.backing.properties().synchronous && usage.ram_pages > 0
        };
        let Some(device) = engine.devices().iter().find(is_tier) else { return };
        let budget_bytes = engine.root().max_bytes();
        let limit_of = |percent| self.operator.ram_limit_bytes(budget_bytes, percent, device);
        let before = run.pool_share_percent();
        let Ok(pool_limit_bytes) = limit_of(before) else { return };
        let usage = device.backing.usage();
        let pages = |of: fn(&Space) -> u64| engine.spaces().iter().map(|space| of(space)).sum::<u64>();
        let counts = Counts {
            distances: engine.swap().refaults.distances(),
            evicted_pages: engine.stats().sum(|counters| &counters.pgsteal),
            major_faults: engine.stats().sum(|counters| &counters.pgmajfault),
            file_reads: usage.read_ios_total,
            file_read_us: usage.read_us_total,
        };
        let shared = Shared {
            resident_pages: pages(Space::resident_pages),
            swapped_pages: pages(Space::swapped_pages),
            pool_bytes: usage.ram_bytes,
            pool_limit_bytes,
            pool_pages: usage.ram_pages,
            dense_per_mille: usage.dense_per_mille,
        };
        let percent = follower.look(&counts, &shared);
        if percent == before {
            return;
        }
        let Ok(bytes) = limit_of(percent) else { return };
        run.set_pool_share_percent(percent);
        device.backing.housekeep(Chore::LimitRam { bytes });
        run.kick_reclaim();
        if run.settings.verbose {
            eprintln!("memspill: the pool may take {percent} % of the budget, it was {before} %");
        }
    }

    fn follow(&mut self) {
        let root = self.run.engine.root();
        if root.max_bytes() != self.own_bytes {
            return;
        }
        let Some(bytes) = self.operator.budget_now(root.usage_bytes()) else { return };
        if bytes.abs_diff(self.own_bytes) > self.own_bytes / FOLLOWS_PARTS
            && set(self.run, self.operator, bytes).is_ok()
        {
            if self.run.settings.verbose {
                eprintln!("memspill: the budget follows: {}M, it was {}M", bytes >> 20, self.own_bytes >> 20);
            }
            self.own_bytes = bytes;
        }
    }

    fn look_for_thrash(&mut self) {
        let run = self.run;
        let mut waits = vec![(RUN, run.stall.pressure().full.total_us)];
        let full_us = |key, stall: &crate::stall::Stall| (key, stall.pressure().full.total_us);
        waits.extend(run.processes().iter().map(|process| full_us(process.key, &process.stall)));
        if let Some(crawling) = self.thrash.look(now_us(), &waits, run.working_set()) {
            self.act(crawling);
        }
    }

    fn act(&mut self, crawling: Crawling) {
        let run = self.run;
        let who = match run.process(crawling.key) {
            Some(process) => standstill::name(process.memory.pid()),
            None => "this run".to_string(),
        };
        let percent = (crawling.share * 100.0).round();
        let waited = format!("{who} has waited for memory {percent} % of {}", self.thrash.window_words());
        let would_do = crawling.would_do_bytes.map(|bytes| bytes.div_ceil(1 << 20));
        match run.settings.on_thrash {
            OnThrash::Warn => self.warn(&waited, would_do),
            OnThrash::Grow => self.grow(&waited, crawling.would_do_bytes),
            OnThrash::Kill => {
                let enough = would_do.map_or(String::new(), |mib| format!(" (about {mib}M would do)"));
                run.kill(&format!("{waited}: raise --memory-max{enough} or --max-slowdown"));
            }
        }
    }

    /// Once for each budget.
    fn warn(&mut self, waited: &str, would_do_mib: Option<u64>) {
        let now_bytes = self.run.engine.root().max_bytes();
        if self.warned_at_bytes.replace(now_bytes) == Some(now_bytes) {
            return;
        }
        match would_do_mib {
            Some(mib) => {
                let pid = std::process::id();
                eprintln!(
                    "memspill: {waited}; about {mib}M would do (memspill ctl --pid {pid} limit {mib}M)"
                );
            }
            None => eprintln!("memspill: {waited}: the budget is too small for it"),
        }
    }

    /// Grows the budget to one that would do, as far as there is memory.
    fn grow(&mut self, waited: &str, would_do_bytes: Option<u64>) {
        let now_bytes = self.run.engine.root().max_bytes();
        let wanted_bytes = would_do_bytes.unwrap_or(now_bytes + now_bytes / GROWS_BLINDLY_PARTS);
        let wanted_bytes = wanted_bytes.max(now_bytes + now_bytes / GROWS_PARTS);
        let most_bytes = now_bytes.saturating_add(self.operator.free_bytes(&self.run.pids(), 0));
        let bytes = wanted_bytes.min(most_bytes) >> 20 << 20;
        if bytes < now_bytes + now_bytes / (2 * GROWS_PARTS) {
            let waited = format!("{waited}, and no more memory is free");
            return self.warn(&waited, would_do_bytes.map(|bytes| bytes.div_ceil(1 << 20)));
        }
        match set(self.run, self.operator, bytes) {
            Ok(before) => {
                eprintln!("memspill: {waited}; the budget grows from {}M to {}M", before >> 20, bytes >> 20);
                self.own_bytes = bytes;
                self.thrash.forget();
            }
            Err(reason) => self.warn(&format!("{waited} ({reason})"), None),
        }
    }
}
