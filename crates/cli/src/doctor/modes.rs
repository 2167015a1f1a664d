//! The mode that `run` takes on this machine, and what stands in the way of the others.

use memspill_pager::door::source::{Holes, Mode};

use super::check::{Check, Level, fail, ok, reason, warn};
use super::checks::{CHILD_MEMORY, CHILD_PAGEMAP, DISPATCH, GUARDS, OWN_MEMORY, judge};
use super::facts::{Facts, Tried};
use super::uffd::{event_fork, uffd_device};
use crate::args;

/// The checks of what only kernel mode needs.
const KERNELS: [&str; 3] = ["/dev/userfaultfd", "userfaultfd(2)", "uffd EVENT_FORK"];

/// The checks of what agent mode does without, if its holes are guard pages.
const USERFAULTFDS: [&str; 4] = ["uffd MOVE", "uffd events", CHILD_MEMORY, "userfaultfd(2)"];

const BY_USERFAULTFD: Mode = Mode::Agent(Holes::Userfaultfd);
const BY_GUARDS: Mode = Mode::Agent(Holes::Guard);

/// The mode that the command line asks for.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub mode: args::Mode,
    pub holes: args::Holes,
}

impl Wanted {
    pub const AUTO: Wanted = Wanted { mode: args::Mode::Auto, holes: args::Holes::Auto };
    pub const AGENT: Wanted = Wanted { mode: args::Mode::Agent, holes: args::Holes::Auto };

    /// Modes that may be taken, the fastest first.
    fn candidates(self) -> impl Iterator<Item = Mode> {
        let is_auto = self.holes == args::Holes::Auto;
        let may_be = move |mode: &Mode| match mode {
            Mode::Kernel => self.mode != args::Mode::Agent && is_auto,
            Mode::Agent(_) if self.mode == args::Mode::Kernel => false,
            Mode::Agent(Holes::Userfaultfd) => is_auto || self.holes == args::Holes::Userfaultfd,
            Mode::Agent(Holes::Guard) => is_auto || self.holes == args::Holes::Guard,
        };
        [Mode::Kernel, BY_USERFAULTFD, BY_GUARDS].into_iter().filter(may_be)
    }
}

/// As people are told of a mode.
pub fn described(mode: Mode) -> &'static str {
    match mode {
        Mode::Kernel => "kernel mode",
        BY_USERFAULTFD => "agent mode, holes by its own userfaultfd",
        BY_GUARDS => "agent mode, holes by guard pages (slower)",
    }
}

/// The mode first, then all that it rests on. What only another one would need is no more than a warning.
pub(super) fn judge_for(facts: &Facts, wanted: Wanted) -> Vec<Check> {
    let mut checks = judge(facts);
    let takes = possible(facts, wanted);
    let mode = takes.or(wanted.candidates().last()).unwrap_or(Mode::Kernel);
    let is_agent = mode != Mode::Kernel && (takes.is_some() || wanted.mode == args::Mode::Agent);
    for check in &mut checks {
        let is_other = is_agent && KERNELS.contains(&check.name)
            || is_agent && mode == BY_GUARDS && USERFAULTFDS.contains(&check.name);
        if is_other && check.level == Level::Fail {
            check.level = Level::Warn;
        }
    }
    checks.insert(0, judge_mode(facts, takes, wanted));
    checks
}

fn kernel_obstacle(facts: &Facts) -> Option<String> {
    [uffd_device(facts), event_fork(facts, facts.uffd_features.unwrap_or(0))]
        .into_iter()
        .find(|check| check.level == Level::Fail)
        .map(|check| format!("{}: {}", check.name, check.found))
}

/// What stands in the way of a mode: the first thing that it needs and does not get.
fn obstacle(facts: &Facts, mode: Mode) -> Option<String> {
    let user_mode = ("userfaultfd for user mode", facts.uffd_user_mode);
    let traps = (DISPATCH, facts.dispatch);
    let own_memory = (OWN_MEMORY, facts.own_memory);
    let child_pagemap = (CHILD_PAGEMAP, facts.child_pagemap);
    let needed: &[(&str, Tried)] = match mode {
        Mode::Kernel => return kernel_obstacle(facts),
        BY_USERFAULTFD => &[user_mode, traps, own_memory, child_pagemap],
        BY_GUARDS => &[traps, (GUARDS, facts.guard_regions), own_memory, child_pagemap],
    };
    if facts.has_capability_alone() {
        return Some("memspill has CAP_SYS_PTRACE for itself alone".into());
    }
    let missing = needed.iter().find_map(|(name, tried)| tried.err().map(|errno| (name, errno)));
    missing.map(|(name, errno)| format!("{name}: {}", reason(errno)))
}

/// The mode that `run` takes: the fastest that is possible.
pub(super) fn possible(facts: &Facts, wanted: Wanted) -> Option<Mode> {
    wanted.candidates().find(|mode| obstacle(facts, *mode).is_none())
}

fn judge_mode(facts: &Facts, takes: Option<Mode>, wanted: Wanted) -> Check {
    const NAME: &str = "mode";
    const COSTS: &str = "a system call costs 0.1 to 3 us more, and shared memory is not swapped";
    let because = |mode| obstacle(facts, mode).map_or(String::new(), |why| format!(" ({why})"));
    match takes {
        Some(Mode::Kernel) => ok(NAME, "kernel mode: faults inside system calls are served as all others"),
        Some(mode) if wanted.mode == args::Mode::Agent || wanted.holes != args::Holes::Auto => {
            ok(NAME, described(mode))
        }
        Some(mode) => {
            let why = because(Mode::Kernel);
            warn(NAME, format!("{}, for kernel mode is not possible{why}; {COSTS}", described(mode)), None)
        }
        None => {
            let all: Vec<String> = wanted
                .candidates()
                .map(|mode| format!("{}{}", described(mode).replace(" (slower)", ""), because(mode)))
                .collect();
            fail(NAME, format!("not possible: {}", all.join("; nor ")), None)
        }
    }
}
