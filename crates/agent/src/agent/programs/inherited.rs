//! A seccomp filter of the program's holds for the programs that it runs, too. There the agent lies
//! elsewhere, so what lets its calls pass here (`trap/filters.rs`) does not hold. A filter that ends the
//! process for one of them would end each program as it begins. Such a filter is noted when it is set, and
//! programs are run without the agent from then on, outside the budget.
//!
//! One that answers with an error is no matter: a process that cannot join runs on.
//!
//! What it does not do: filters that were set before the agent came; execveat.

use crate::common::sync::{AtomicU32, Ordering};

use crate::machine::own_calls::{ALWAYS, Call, FORKS, THREADS};
use crate::machine::seccomp::{Filter, RET_ACTION, RET_ALLOW, RET_ERRNO};

/// Not 0: programs are run without the agent. The child of a fork inherits it, as it does the filter.
#[unsafe(link_section = ".data.hot")]
static IS_ALONE: AtomicU32 = AtomicU32::new(0);

/// The program has set this filter.
pub fn note(filter: &Filter) {
    let ends = |(number, first): &Call| {
        let args = [first.unwrap_or_default(), 0, 0, 0, 0, 0];
        let answer = filter.run(0, *number, &args).unwrap_or(RET_ALLOW) & RET_ACTION;
        !(RET_ERRNO..=RET_ALLOW).contains(&answer)
    };
    if ALWAYS.iter().chain(&THREADS).chain(&FORKS).any(ends) {
        IS_ALONE.store(1, Ordering::Relaxed);
    }
}

/// Are programs to be run without the agent?
pub fn is_alone() -> bool {
    IS_ALONE.load(Ordering::Relaxed) != 0
}
