//! Which pager `run` takes on this machine, and what stands in the way of the others.

use memspill_pager::door::source::Pager;

use super::check::{Check, Level, fail, ok, reason, warn};
use super::checks::{CHILD_MEMORY, CHILD_PAGEMAP, DISPATCH, GUARDS, OWN_MEMORY, judge};
use super::facts::{Facts, Tried};
use super::uffd::{event_fork, uffd_device};
use crate::args::Pager as Wanted;

/// What only the kernel pager needs.
const KERNELS: [&str; 3] = ["/dev/userfaultfd", "userfaultfd(2)", "uffd EVENT_FORK"];

/// What the signal pager does without.
const USERFAULTFDS: [&str; 4] = ["uffd MOVE", "uffd events", CHILD_MEMORY, "userfaultfd(2)"];

/// The pager first, then all that it rests on. A lack that only the other one minds is no more than a
/// warning.
pub(super) fn judge_for(facts: &Facts, wanted: Wanted) -> Vec<Check> {
    let mut checks = judge(facts);
    let takes = possible(facts, wanted);
    let is_signal = wanted == Wanted::Signal || takes == Some(Pager::Signal);
    let is_thread = wanted == Wanted::Thread || takes == Some(Pager::Thread);
    for check in &mut checks {
        check.level = match (is_signal || is_thread, check.level) {
            (true, Level::Fail) if is_signal && USERFAULTFDS.contains(&check.name) => Level::Warn,
            (true, Level::Fail) if KERNELS.contains(&check.name) => Level::Warn,
            (_, level) => level,
        };
    }
    checks.insert(0, pager(facts, takes, wanted));
    checks
}

fn kernel_obstacle(facts: &Facts) -> Option<String> {
    [uffd_device(facts), event_fork(facts, facts.uffd_features.unwrap_or(0))]
        .into_iter()
        .find(|check| check.level == Level::Fail)
        .map(|check| format!("{}: {}", check.name, check.found))
}

/// What stands in the way of a pager: the first thing that it needs and does not get.
fn obstacle(facts: &Facts, pager: Pager) -> Option<String> {
    let user_mode = ("userfaultfd for user mode", facts.uffd_user_mode);
    let traps = (DISPATCH, facts.dispatch);
    let own_memory = (OWN_MEMORY, facts.own_memory);
    let child_pagemap = (CHILD_PAGEMAP, facts.child_pagemap);
    let needed: &[(&str, Tried)] = match pager {
        Pager::Kernel => return kernel_obstacle(facts),
        Pager::Thread => &[user_mode, traps, own_memory, child_pagemap],
        Pager::Signal => &[traps, (GUARDS, facts.guard_regions), own_memory, child_pagemap],
    };
    if facts.has_capability_alone() {
        return Some("memspill has CAP_SYS_PTRACE for itself alone".into());
    }
    let missing = needed.iter().find_map(|(name, tried)| tried.err().map(|errno| (name, errno)));
    missing.map(|(name, errno)| format!("{name}: {}", reason(errno)))
}

/// The pager that `run` takes: of those without the kernel, the fastest that is possible.
pub(super) fn possible(facts: &Facts, wanted: Wanted) -> Option<Pager> {
    let candidates: &[Pager] = match wanted {
        Wanted::Kernel => &[Pager::Kernel],
        Wanted::Signal => &[Pager::Signal],
        Wanted::Thread => &[Pager::Thread],
        Wanted::Auto => &[Pager::Kernel, Pager::Thread, Pager::Signal],
    };
    candidates.iter().copied().find(|pager| obstacle(facts, *pager).is_none())
}

fn pager(facts: &Facts, takes: Option<Pager>, wanted: Wanted) -> Check {
    const NAME: &str = "pager";
    const COSTS: &str = "a system call costs 0.1 to 3 us more, and shared memory is not swapped";
    const COSTS_OF_SIGNAL: &str = "a system call costs 0.1 to 3 us more, a fault more than with userfaultfd, \
        and shared memory is not swapped";
    let because = |pager| obstacle(facts, pager).map_or(String::new(), |why| format!(" ({why})"));
    let neither = || {
        let (kernel, thread) = (because(Pager::Kernel), because(Pager::Thread));
        format!("neither kernel{kernel} nor thread{thread} is possible")
    };
    let is_not = |name, pager| fail(NAME, format!("{name} is not possible{}", because(pager)), None);
    match (takes, wanted) {
        (Some(Pager::Kernel), _) => ok(NAME, "kernel: faults inside system calls are served as all others"),
        (Some(Pager::Thread), Wanted::Thread) => {
            ok(NAME, "thread: system calls are trapped, and each thread brings its pages on SIGBUS")
        }
        (Some(Pager::Thread), _) => {
            let why = because(Pager::Kernel);
            warn(NAME, format!("thread, for kernel is not possible{why}; {COSTS}"), None)
        }
        (Some(Pager::Signal), Wanted::Signal) => {
            ok(NAME, "signal: system calls are trapped, and what is away is brought on SIGSEGV")
        }
        (Some(Pager::Signal), _) => warn(NAME, format!("signal, for {}; {COSTS_OF_SIGNAL}", neither()), None),
        (None, Wanted::Signal) => is_not("signal", Pager::Signal),
        (None, Wanted::Kernel) => is_not("kernel", Pager::Kernel),
        (None, Wanted::Thread) => is_not("thread", Pager::Thread),
        (None, Wanted::Auto) => {
            let [kernel, thread, signal] = [Pager::Kernel, Pager::Thread, Pager::Signal].map(because);
            fail(
                NAME,
                format!("none is possible: neither kernel{kernel}, thread{thread} nor signal{signal}"),
                None,
            )
        }
    }
}
