//! Nothing could be taken out: what is done about that, and when.
//!
//! ```text
//!   a fault waits, and nothing has moved for
//!      ROOM_FROM_POOLS         pools in RAM give room; else processes that stand still are waited for
//!      ROOM_FULL_*, ROOM_STUCK either the swap is full, or what is left cannot be moved: --on-full decides
//!      ROOM_NO_CPU             the same, where a process has had no CPU to move its pages meanwhile
//!   those that stand still leave next to nothing to others for ROOM_FROM_POOLS: others have a part for sure
//! ```
//!
//! While no server of a device answers, and it may still come back (`timeout=`), nothing is decided: what
//! waits, waits for it. The tree is not killed before it is known whether servers answer.
//!
//! Both are answers, not hangs. "Moved" is by anybody: a thread that never finds a victim because another one
//! takes them all has no reason to complain. A group below the root may be full for good while reclaim goes
//! on in others, so each is looked at by itself.

use crate::monitor::unmanaged;
use crate::process::standstill;
use crate::reclaim::unresponsive::{self, await_those_aside};
use crate::run::{Run, account};
use crate::times::{
    ROOM_FROM_POOLS, ROOM_FULL_GROW, ROOM_FULL_KILL, ROOM_NO_CPU, ROOM_SERVERS_KILL, ROOM_STUCK,
};
use memspill_engine::backing::{Chore, QueueId, Servers};
use memspill_engine::devices::Device;
use memspill_engine::group::Group;
use memspill_engine::units::{GroupId, PAGE_SIZE};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The part of a pool that gives way at once: the more of them there are, the sooner the next page finds room
/// in RAM again.
const POOL_PARTS: u64 = 8;
/// If others are left next to nothing, and this many pages have come and gone within this time, they want
/// more.
const THRASH_PAGES: u64 = 4096;
const THRASH_LOOK: Duration = Duration::from_secs(2);
/// What mends most of it.
const RAISE: &str = "raise --memory-max";

/// What one reclaimer remembers.
#[derive(Default)]
pub struct NoRoom {
    /// Since when nothing moves, and how much had moved by then (`Run::moved_pages`).
    stuck: Option<(Instant, u64)>,
    /// A process that had no CPU to run on meanwhile.
    without_cpu: Option<String>,
    /// The same for each group that is full by itself, while the others may go on.
    stuck_groups: HashMap<GroupId, (Instant, u64)>,
    /// Since when processes that stand still leave next to nothing to the others of a group, and the pages
    /// that had moved in it by then.
    squeezed: HashMap<GroupId, (Instant, u64)>,
}

impl NoRoom {
    /// A batch has left.
    pub fn note_batch(&mut self) {
        self.stuck = None;
    }

    /// There is room.
    pub fn clear(&mut self) {
        self.stuck = None;
        self.stuck_groups.clear();
        self.squeezed.clear();
    }

    /// Processes that stand still may leave so little to others that these get nowhere, though pages move.
    pub fn consider_squeezed(&mut self, run: &Run) {
        let squeezed = unresponsive::squeezed(run);
        self.squeezed.retain(|id, _| squeezed.iter().any(|group| group.id == *id));
        for group in &squeezed {
            let moved = moved_in(run, group);
            let (since, then) = *self.squeezed.entry(group.id).or_insert_with(|| (Instant::now(), moved));
            // An idle shell that holds little wants no more. Beyond `memory.high` nobody waits, but pages
            // come and go.
            let want_more = || unresponsive::others_wait(run, group) || moved - then > THRASH_PAGES;
            if since.elapsed() > ROOM_FROM_POOLS && want_more() {
                self.squeezed.remove(&group.id);
                unresponsive::relieve(run, group);
            } else if since.elapsed() > THRASH_LOOK {
                self.squeezed.remove(&group.id);
            }
        }
    }

    /// Of groups below the root: is one full for good?
    pub fn consider_groups(&mut self, run: &Run) {
        let engine = &run.engine;
        if engine.groups().all().len() == 1 {
            return;
        }
        let group_of = |process: &Arc<crate::process::Process>| process.space.group(engine.swap()).clone();
        let waiting: Vec<Arc<Group>> = run.waiting_processes().iter().map(group_of).collect();
        let below_the_root = engine.groups().all().iter().filter(|group| group.parent.is_some());
        let full: Vec<&Arc<Group>> = below_the_root.filter(|group| group.full()).collect();
        self.stuck_groups.retain(|id, _| full.iter().any(|group| group.id == *id));
        for group in full {
            let moved = moved_in(run, group);
            let (since, then) = *self.stuck_groups.entry(group.id).or_insert((Instant::now(), moved));
            let waited_for = waiting.iter().any(|w| w.is_within(group));
            if then != moved {
                self.stuck_groups.remove(&group.id);
            } else if waited_for && since.elapsed() > ROOM_FROM_POOLS && await_those_aside(run, group) {
                // It goes on when they do.
            } else if since.elapsed() > stuck_for(run, group) && waited_for {
                self.stuck_groups.remove(&group.id);
                if a_device_is_away(run) {
                    continue;
                }
                if engine.swap().gives_swap(group) {
                    let why = unresponsive::without_cpu(run, group).map_or(String::new(), |p| {
                        format!("; {} has no CPU to run on", standstill::name(p.memory.pid()))
                    });
                    let reason = format!("group {} is full{why}", group.name);
                    run.no_way_out(group, None, &reason, "raise its memory.max or swap.max");
                } else {
                    no_swap_left(run, group);
                }
            }
        }
    }

    /// A batch has achieved nothing. If that lasts and somebody waits, something is done about it.
    pub fn consider(&mut self, run: &Run, queue: QueueId) {
        let engine = &run.engine;
        let waiting = run.cpus.iter().any(|cpu| cpu.has_waiting());
        let moved = run.moved_pages();
        let since = match self.stuck {
            Some((since, then)) if waiting && then == moved => since,
            _ => {
                self.stuck = Some((Instant::now(), moved));
                self.without_cpu = None;
                engine.swap().clear_full();
                return;
            }
        };
        let full = engine.swap().is_full() || are_all_lost(run);
        if !full && since.elapsed() >= ROOM_FROM_POOLS {
            if pools_give_room(run, queue) {
                self.stuck = None;
                return;
            }
            if await_those_aside(run, engine.root()) {
                return;
            }
            if let Some(process) = unresponsive::without_cpu(run, engine.root()) {
                self.without_cpu = Some(standstill::name(process.memory.pid()));
            }
        }
        let patience = match (full, &self.without_cpu) {
            (true, _) if has_servers(run) => run.settings.on_full.either(ROOM_SERVERS_KILL, ROOM_FULL_GROW),
            (true, _) => run.settings.on_full.either(ROOM_FULL_KILL, ROOM_FULL_GROW),
            (false, Some(_)) => ROOM_NO_CPU,
            (false, None) => ROOM_STUCK,
        };
        if since.elapsed() >= patience {
            self.stuck = None;
            engine.swap().clear_full();
            if !a_device_is_away(run) {
                give_up(run, full, self.without_cpu.take());
            }
        }
    }
}

/// How it stands with the servers of each device that is not off.
fn servers(run: &Run) -> Vec<Servers> {
    let devices = run.engine.devices().iter().filter(|device| !device.is_off());
    devices.map(|device| Servers::of(&device.backing.links())).collect()
}

/// Can a device not be written to before one of its servers is back?
fn a_device_is_away(run: &Run) -> bool {
    servers(run).contains(&Servers::Away)
}

/// Is there a server that may be there?
fn has_servers(run: &Run) -> bool {
    servers(run).iter().any(|servers| !matches!(servers, Servers::None | Servers::Lost))
}

fn are_all_lost(run: &Run) -> bool {
    let servers = servers(run);
    !servers.is_empty() && servers.iter().all(|servers| *servers == Servers::Lost)
}

fn stuck_for(run: &Run, group: &Group) -> Duration {
    if unresponsive::without_cpu(run, group).is_some() { ROOM_NO_CPU } else { ROOM_STUCK }
}

/// Pages that have moved in a group and in those below it.
fn moved_in(run: &Run, group: &Group) -> u64 {
    let below = run.engine.groups().all().iter().filter(|other| other.is_within(group));
    below.map(|group| group.moved_pages()).sum()
}

/// `full`: the swap is. Else what is left cannot be moved, perhaps because a process had no CPU for it.
fn give_up(run: &Run, full: bool, without_cpu: Option<String>) {
    let engine = &run.engine;
    let group = engine.root();
    let devices = engine.devices().iter().enumerate();
    let mut failing = devices.filter(|(place, device)| !device.is_off() && engine.swap().is_failing(*place));
    let failing = failing.next().map(|(_, device)| device);
    let error = engine.swap().take_error();
    let of_group =
        engine.groups().all().iter().skip(1).find(|group| full && !engine.swap().gives_swap(group));
    if let Some(group) = of_group {
        return no_swap_left(run, group);
    }
    if !full && let Some(name) = without_cpu {
        let seconds = ROOM_NO_CPU.as_secs();
        let reason = format!("{name} has had no CPU for {seconds} s, so nothing of it can be swapped out");
        let fix = "leave it CPU time (a limit, a low priority or other work takes it), or raise --memory-max";
        return run.no_way_out(group, None, &reason, fix);
    }
    let is_lost = |device: &Device| Servers::of(&device.backing.links()) == Servers::Lost;
    let lost = engine.devices().iter().find(|device| !device.is_off() && is_lost(device));
    // Its errors came from the same.
    let (full, failing, error) = if lost.is_some() { (true, lost, None) } else { (full, failing, error) };
    let (reason, fix) = match (full, failing, error) {
        (true, Some(device), _) => {
            (format!("nothing can be written to swap device {}", device.name), "name another one with --swap")
        }
        (true, None, _) => full_swap(run),
        (false, _, Some(error)) => (error, RAISE),
        (false, _, None) => {
            let bytes = group.usage_bytes() >> 20;
            let why = format!("cannot be swapped out ({})", what_counts(run));
            // Behind a pool that has taken the budget there is no file: else it had made room.
            let is_of_pool = account::pool_bytes(&run.engine) > group.limit_bytes() / 2;
            let fix = match is_of_pool {
                true => "add a swap file (--swap file:PATH), or raise --memory-max",
                false => unmanaged::fix_for(run).unwrap_or(RAISE),
            };
            (format!("{bytes} MiB of the budget {why}"), fix)
        }
    };
    run.no_way_out(group, None, &reason, fix);
}

/// The limit that is reached, or else the devices that have no room, and what makes room.
fn full_swap(run: &Run) -> (String, &'static str) {
    let mib = |pages: u64| (pages * PAGE_SIZE as u64) >> 20;
    let root = run.engine.root();
    if !root.has_swap() {
        return (format!("--swap-max {} MiB is used up", mib(root.swap_max_pages())), "raise it");
    }
    let devices = run.engine.devices().iter().filter(|device| !device.is_off());
    let held: Vec<String> = devices
        .map(|device| format!("{} holds {} MiB", device.name, mib(device.slots.used_slots())))
        .collect();
    let fix = "free disk space, lower --disk-free, or name more swap with --swap";
    (format!("the swap is full: {}", held.join(", ")), fix)
}

fn no_swap_left(run: &Run, group: &Group) {
    let (why, fix) = match group.has_swap() {
        true => {
            let why = format!("may swap to {} only, where no room is left", group.swap_devices.join(", "));
            (why, "name more devices with its swap=, or raise its memory.max")
        }
        false => ("has used up its swap.max".to_string(), "raise its swap.max or memory.max"),
    };
    run.no_way_out(group, None, &format!("group {} {why}", group.name), fix);
}

/// The pages in memory cannot be moved now: they are locked, or of a child that has not joined yet. Pages
/// that are compressed in RAM can, where there is a file behind them. True if that made room.
fn pools_give_room(run: &Run, queue: QueueId) -> bool {
    let mut given = false;
    for device in run.engine.devices().iter() {
        let bytes = device.backing.usage().ram_bytes / POOL_PARTS;
        given |= device.backing.housekeep(Chore::GiveRam { queue, bytes });
    }
    run.update_account();
    run.poke_waiting();
    given
}

/// What counts against the budget, for people.
fn what_counts(run: &Run) -> String {
    let processes = run.processes();
    let managed: u64 = run.engine.spaces().iter().map(|space| space.resident_pages()).sum();
    let bytes_of = |process: &Arc<crate::process::Process>| {
        process.growth.unmanaged_bytes() + process.growth.unmanaged_shared_bytes()
    };
    let unmanaged_bytes: u64 = processes.iter().map(bytes_of).sum();
    let own_bytes = run.account.measured_bytes().saturating_sub(unmanaged_bytes) + run.engine.frame_bytes();
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let largest = unmanaged::largest(run).map_or(String::new(), |what| format!("; {what}"));
    format!(
        "{} MiB managed, but shared, locked or in work; {} MiB not managed; compressed pool {} MiB, memspill \
         itself {} MiB{largest}",
        mib(managed * PAGE_SIZE as u64),
        mib(unmanaged_bytes),
        mib(account::pool_bytes(&run.engine)),
        mib(own_bytes)
    )
}
