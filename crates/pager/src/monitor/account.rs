//! Counting: how much of the tree's memory is not managed, and how much may come before memory is tight.
//!
//! Pay nothing until memory is tight: a registered page's first touch is a fault of some µs, and registration
//! ends huge pages. So a process's memory is only counted at first, from its statm:
//!
//! ```text
//!   unmanaged = anonymous memory that statm shows, less what the engine has resident
//!   usage     = managed + unmanaged + our own              each group's, and that of the whole run
//!   tight     = usage at the mark, which is a part of the limit below it, in any group
//! ```
//!
//! What it does not do: decide when to count (rounds.rs), or register (register.rs).

use crate::proc::{self, Statm};
use crate::process::Process;
use crate::run::{Run, account};
use crate::times::PROCESS_YOUNG;
use memspill_engine::group::Group;
use memspill_engine::units::PAGE_SIZE;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The processes that are there, and how big each of them is.
pub type Sizes<'a> = [(&'a Arc<Process>, Statm)];

/// The mark at which memory is tight: as far below the limit as a round and the registration may be late.
/// `late_bytes` may be known to come meanwhile.
fn tight_mark_bytes(limit_bytes: u64, late_bytes: u64) -> u64 {
    limit_bytes - (limit_bytes / 4).clamp(4 << 20, 64 << 20).max(late_bytes).min(limit_bytes / 2)
}

/// Processes smaller than this stay unmanaged: a compiler that lives for 20 ms is not worth registering.
pub fn small_bytes(limit_bytes: u64) -> u64 {
    (limit_bytes / 128).clamp(512 << 10, 8 << 20)
}

/// Note how much of a process of this size is not managed. One that is not let in yet has nothing of its own
/// (it is the child of a fork, or a program has just begun), but by statm it has all that it shares: what the
/// door says of it stands.
pub fn note_unmanaged(run: &Run, process: &Process, statm: Statm) {
    if process.memory.serving_agent().is_none() && process.age() < PROCESS_YOUNG {
        return;
    }
    let managed_bytes = process.space.resident_pages() * PAGE_SIZE as u64;
    // Charged when they are noted, which is soon.
    let known_bytes = managed_bytes + process.memory.port.unnoted_pages() * PAGE_SIZE as u64;
    let walk = |range| process.memory.attached_agent()?.present_bytes(range).ok();
    let anon_bytes = process.growth.counted_bytes(statm.anon_bytes, known_bytes, walk);
    process.growth.set_unmanaged_bytes(anon_bytes.saturating_sub(known_bytes));
    // More cannot be shared than is there: it was measured before some of it was unmapped.
    let pages = anon_bytes.max(managed_bytes) / PAGE_SIZE as u64;
    if process.space.discount_pages() > pages {
        process.space.set_discount(run.engine.swap(), pages);
    }
}

/// Charge the run and its groups with what is not managed, as it was noted for each process; `shared_bytes`
/// of shared memory are among it. Returns how much of it is not private to processes: shared, and our own.
pub fn charge_unmanaged(run: &Run, shared_bytes: u64) -> u64 {
    let other_bytes = shared_bytes + account::own_bytes(&run.engine);
    // The door may have counted one that was not there a moment ago.
    let _counting = run.account.begin_counting();
    let processes = run.processes();
    let unmanaged_bytes: u64 = processes.iter().map(|process| process.growth.unmanaged_bytes()).sum();
    run.account.set_measured_bytes(unmanaged_bytes + other_bytes);
    run.update_account();
    // The root has more, see `run/account.rs`.
    for group in run.engine.groups().all().iter().skip(1) {
        let within = processes.iter().filter(|p| p.space.group(run.engine.swap()).is_within(group));
        let bytes_of = |p: &Arc<Process>| p.growth.unmanaged_bytes() + p.growth.unmanaged_shared_bytes();
        group.set_other_bytes(within.map(bytes_of).sum());
    }
    other_bytes
}

/// How much may come before memory is tight in some group; `late_bytes` are known to come to all of the run
/// meanwhile.
pub fn bytes_until_tight(run: &Run, late_bytes: u64) -> u64 {
    let groups = run.engine.groups().all();
    let within = groups.iter().skip(1).map(|group| group_bytes_until_tight(group, 0)).min();
    let all = group_bytes_until_tight(run.engine.root(), late_bytes);
    within.map_or(all, |bytes| bytes.min(all))
}

/// Memory of a group with `memory.high` is tight there.
fn group_bytes_until_tight(group: &Group, late_bytes: u64) -> u64 {
    tight_mark_bytes(group.target_bytes(), late_bytes).saturating_sub(group.usage_bytes())
}

/// The least limit that a process has above it.
pub fn limit_of(run: &Run, process: &Process) -> u64 {
    let group = process.space.group(run.engine.swap());
    let above = run.engine.groups().all().iter().filter(|other| group.is_within(other));
    above.map(|group| group.target_bytes()).min().expect("the root at least")
}

/// Is the whole run's usage below its mark once pages that processes share since a fork count once? By statm
/// they count in each of them. Reads smaps_rollup of each process, which takes ms.
pub fn is_below_mark_with_shared_once(run: &Run, sizes: &Sizes<'_>, other_bytes: u64) -> bool {
    let part = |(p, statm): &(&Arc<Process>, Statm)| {
        proc::pss_anon_bytes(p.memory.proc_id()).unwrap_or(statm.anon_bytes)
    };
    let used_bytes = sizes.iter().map(part).sum::<u64>() + other_bytes;
    used_bytes < tight_mark_bytes(run.engine.root().limit_bytes(), 0)
}

/// Small processes that are registered all the same, because together they are a large part of a limit that
/// is reached: the largest of them, until those that are left are few enough. Their keys.
pub fn too_many_small(run: &Run, sizes: &Sizes<'_>) -> HashSet<u64> {
    let mut chosen = HashSet::new();
    let groups = run.engine.groups().all().iter();
    for group in groups.filter(|group| group_bytes_until_tight(group, 0) == 0) {
        let is_small = |p: &Process| !p.growth.is_registered() && p.age() > PROCESS_YOUNG;
        let within =
            sizes.iter().filter(|(p, _)| is_small(p) && p.space.group(run.engine.swap()).is_within(group));
        let small = within.map(|(p, statm)| (statm.anon_bytes, p.key)).collect();
        chosen.extend(largest(small, group.target_bytes() / 16));
    }
    chosen
}

/// The keys of the largest, so many that what is left comes to no more than `left_bytes`.
fn largest(mut sizes: Vec<(u64, u64)>, left_bytes: u64) -> Vec<u64> {
    let mut sum_bytes: u64 = sizes.iter().map(|(bytes, _)| bytes).sum();
    sizes.sort_unstable();
    let mut keys = Vec::new();
    while let Some((bytes, key)) = sizes.pop().filter(|_| sum_bytes > left_bytes) {
        sum_bytes -= bytes;
        keys.push(key);
    }
    keys
}

/// May a page be in two processes since a fork, so that usage counts it twice?
pub fn may_share_pages(run: &Run) -> bool {
    let sharers = run.processes().iter().filter(|p| p.space.cow.load(Ordering::Relaxed)).count();
    sharers > 1 || run.engine.root().discount_pages() > 0
}

/// Who may share pages since a fork, and how many faults of theirs the kernel has served by itself: the first
/// write to a shared page is one, by which its writer gets a page of its own.
#[derive(Clone, Default, Debug)]
pub struct Sharers {
    keys: Vec<u64>,
    faults: u64,
}

/// The number of pages that may have become somebody's own, unnoticed for a while.
const OWN_UNNOTICED: u64 = 256;

impl Sharers {
    pub fn now(run: &Run) -> Sharers {
        let mut sharers = Sharers::default();
        for process in run.processes().iter().filter(|p| p.space.cow.load(Ordering::Relaxed)) {
            sharers.keys.push(process.key);
            sharers.faults = sharers.faults.wrapping_add(process.kernel_faults().unwrap_or(0));
        }
        sharers.keys.sort_unstable();
        sharers
    }

    /// Are they the same ones?
    pub fn are_those(&self, then: &Sharers) -> bool {
        self.keys == then.keys
    }

    /// Do they share what they shared then, as far as this tells?
    pub fn are_as(&self, then: &Sharers) -> bool {
        let more = self.faults.wrapping_sub(then.faults) as i64;
        self.are_those(then) && more.unsigned_abs() < OWN_UNNOTICED
    }
}

/// After a fork pages are in two address spaces and once in memory: find out how many. While children come
/// it is no more than is known (`may_rise` is false): one that has not been let in yet has its share of
/// what others have, and is not counted. That is said of all together: a parent has its part of what a child
/// had, when that is measured for the first time.
pub fn measure_shared(run: &Run, may_rise: bool) {
    let mut measured = Vec::new();
    let processes = run.processes();
    for process in processes.iter().filter(|p| p.space.cow.load(Ordering::Relaxed)) {
        let pid = process.memory.proc_id();
        // One that has just been forked and is not known yet, or that has just ended, keeps its figure.
        let before_pages = process.space.discount_pages();
        let Some(pss_bytes) = proc::pss_anon_bytes(pid).filter(|_| pid != 0) else { continue };
        let managed_bytes = process.space.resident_pages() * PAGE_SIZE as u64;
        // Not what statm shows: of one that is not let in yet that is not counted.
        let counted_bytes = managed_bytes + process.growth.unmanaged_bytes();
        let shared_pages = counted_bytes.saturating_sub(pss_bytes) / PAGE_SIZE as u64;
        // The walk may take ms, in which pages were let be written; and not all are written that may be.
        let let_meanwhile = before_pages.saturating_sub(process.space.discount_pages());
        let copies = &process.memory.copies;
        let outstanding = match copies.has_protected() {
            true => process.kernel_faults().map_or(0, |faults| copies.outstanding_pages(faults)),
            false => 0,
        };
        let pages = shared_pages.saturating_sub(let_meanwhile.max(outstanding));
        measured.push((process, Discount { before_pages, pages }));
    }
    if !may_rise {
        keep_sum(measured.iter_mut().map(|(_, discount)| discount).collect());
    }
    // Processes that get more come first: nothing is to be counted twice meanwhile.
    measured.sort_by_key(|(_, discount)| discount.pages < discount.before_pages);
    for (process, discount) in measured {
        process.space.set_discount(run.engine.swap(), discount.pages);
    }
}

/// The pages that are discounted of a process now, and were before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Discount {
    before_pages: u64,
    pages: u64,
}

/// All together get no more than they had.
fn keep_sum(mut all: Vec<&mut Discount>) {
    let most: u64 = all.iter().map(|discount| discount.before_pages).sum();
    let sum: u64 = all.iter().map(|discount| discount.pages).sum();
    if sum > most {
        let part = |pages: u64| (u128::from(pages) * u128::from(most) / u128::from(sum)) as u64;
        all.iter_mut().for_each(|discount| discount.pages = part(discount.pages));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharers_change_when_one_comes_or_has_written() {
        let sharers = |keys: &[u64], faults| Sharers { keys: keys.to_vec(), faults };
        let then = sharers(&[3, 5], 10);
        assert!(sharers(&[3, 5], 10 + OWN_UNNOTICED - 1).are_as(&then));
        assert!(!sharers(&[3, 5], 10 + OWN_UNNOTICED).are_as(&then));
        // A fault that was told twice.
        assert!(sharers(&[3, 5], 9).are_as(&then));
        assert!(sharers(&[3, 5], 0u64.wrapping_sub(2)).are_as(&then));
        assert!(!sharers(&[3, 5, 6], 10).are_as(&then) && !sharers(&[3], 10).are_as(&then));
    }

    #[test]
    fn what_is_shared_goes_from_a_child_to_its_parent_and_is_not_more() {
        let kept = |all: &[(u64, u64)]| {
            let discount = |&(before_pages, pages)| Discount { before_pages, pages };
            let mut all: Vec<Discount> = all.iter().map(discount).collect();
            keep_sum(all.iter_mut().collect());
            all.iter().map(|discount| discount.pages).collect::<Vec<_>>()
        };
        // Two children, by the first measurement: nobody has written.
        assert_eq!(kept(&[(0, 80), (120, 80), (120, 80)]), [80, 80, 80]);
        // A third one is not known yet.
        assert_eq!(kept(&[(0, 90), (120, 90), (120, 90)]), [80, 80, 80]);
        // They have written half of it.
        assert_eq!(kept(&[(0, 40), (120, 40), (120, 40)]), [40, 40, 40]);
        assert_eq!(kept(&[(0, 10), (0, 10)]), [0, 0]);
    }

    #[test]
    fn of_many_small_processes_the_largest_are_chosen() {
        assert_eq!(largest(vec![(5, 1), (9, 2), (7, 3)], 12), [2]);
        assert_eq!(largest(vec![(5, 1), (9, 2), (7, 3)], 11), [2, 3]);
        assert_eq!(largest(vec![(5, 1), (9, 2)], 14), []);
        assert_eq!(largest(vec![(5, 1)], 0), [1]);
    }

    #[test]
    fn the_mark_leaves_room() {
        for limit_mb in [8u64, 64, 512, 65536] {
            let limit = limit_mb << 20;
            let mark = tight_mark_bytes(limit, 0);
            assert!(mark < limit && mark >= limit / 2);
            // It is lower while memory fills fast, but a half is left.
            assert!(tight_mark_bytes(limit, 1) == mark && tight_mark_bytes(limit, u64::MAX) == limit / 2);
        }
    }
}
