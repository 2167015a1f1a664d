//! Forks that the agent makes (`src/agent/programs/forks.rs`, `trap/clone.rs`, `trap/late.rs`) in two models.
//! Every order of their steps is gone through.
//!
//! **A child's first steps** against the timer that ends its being late, which may come before any of them:
//!
//! ```text
//!   child, SIGSYS blocked            started, after_fork         its timer: a SIGBUS, never blocked
//!     begins to be late, sets it     late::in_child              SIGSYS blocked? notes it, sets itself again
//!     calls of its own               fork_lock::done             else joins: from here on calls are trapped
//!     is armed                       arm_child
//!   unmasked, jumps behind the fork  memspill_unmasked
//!   calls that may be made late, then it only computes
//! ```
//!
//! A call that is trapped writes the block (`Block::frame`), which says where the child goes on. In no order
//! may the child go on elsewhere than behind its fork, or end without having joined, or join twice.
//!
//! **A fork's look** against the taking out of the one page that there is:
//!
//! ```text
//!   thread that forks                              evictor, for the supervisor
//!     alone in the gate; has any page a word?        in the gate: gives it a word      table::obtain
//!     no: clone; the child is late                   in its turn, in the gate: takes it out
//!     yes: the evictor's turn; table copied; clone; turn given back
//! ```
//!
//! In no order may the child lack a page of which it does not know that it is away: it would read zeros. (The
//! gate itself is in `shuttle_agent.rs`.)
//!
//! A rule left out must fail in some order. Not shown: memory that other threads map meanwhile, how a child
//! joins, forks that fail.

use std::collections::HashSet;
use std::hash::Hash;

/// Goes through all orders from a state: whether one fails, and how many states there are.
fn explore<S: Copy + Eq + Hash>(
    begin: S,
    next: impl Fn(&S) -> Vec<S>,
    is_wrong: impl Fn(&S) -> bool,
) -> (bool, usize) {
    let (mut met, mut open) = (HashSet::new(), vec![begin]);
    while let Some(state) = open.pop() {
        if is_wrong(&state) {
            return (true, met.len());
        }
        if met.insert(state) {
            open.extend(next(&state));
        }
    }
    (false, met.len())
}

mod child {
    /// The rules, each of which a control leaves out.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Rule {
        /// SIGSYS is blocked in the first steps, which tells the timer that it is too soon.
        Blocked,
        /// Then the timer sets itself again.
        SetAgain,
        /// A call that was about to be made when the timer has the child join traps once more.
        TrapsAgain,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    enum Place {
        BehindFork,
        InAgent,
        BehindCall,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    pub struct State {
        step: usize,
        is_blocked: bool,
        is_armed: bool,
        is_late: bool,
        /// The time was over in the first steps.
        is_noted: bool,
        is_timer_set: bool,
        joined: u8,
        /// The block's word: where the child goes on.
        frame: Place,
        failed: bool,
    }

    pub const BEGIN: State = State {
        step: 0,
        is_blocked: true,
        is_armed: false,
        is_late: false,
        is_noted: false,
        is_timer_set: false,
        joined: 0,
        frame: Place::BehindFork,
        failed: false,
    };

    const STEPS: [fn(&mut State); 7] = [
        // late::in_child.
        |state| {
            state.is_late = true;
            state.is_timer_set = true;
        },
        // fork_lock::done: a call of the agent's, made as the program makes its own.
        |state| {
            if state.is_armed {
                state.frame = Place::InAgent;
            }
        },
        // arm_child.
        |state| state.is_armed = true,
        // memspill_unmasked,
        |state| state.is_blocked = false,
        // and the jump.
        |state| state.failed |= state.frame != Place::BehindFork,
        // trap: a call that may be made late is prepared,
        |state| {
            if state.is_late && state.is_noted {
                join(state);
            }
            state.frame = Place::BehindCall;
        },
        // and made.
        |state| state.failed |= state.frame != Place::BehindCall,
    ];
    const MADE: usize = 6;

    fn join(state: &mut State) {
        state.is_late = false;
        state.is_timer_set = false;
        state.is_armed = true;
        state.joined += 1;
    }

    /// The states that may follow.
    pub fn next(state: &State, left_out: Option<Rule>) -> Vec<State> {
        let step = STEPS.get(state.step).map(|step| {
            let mut next = State { step: state.step + 1, ..*state };
            step(&mut next);
            next
        });
        let timer = state.is_timer_set.then(|| timer(state, left_out));
        step.into_iter().chain(timer).collect()
    }

    fn timer(state: &State, left_out: Option<Rule>) -> State {
        let mut next = State { is_timer_set: false, ..*state };
        if state.is_blocked && left_out != Some(Rule::Blocked) {
            next.is_noted = true;
            next.is_timer_set = left_out != Some(Rule::SetAgain);
            return next;
        }
        join(&mut next);
        if state.step == MADE {
            // Else a call is made that the supervisor, which knows the process now, has not seen prepared.
            let traps_again = left_out != Some(Rule::TrapsAgain);
            next.step -= usize::from(traps_again);
            next.failed |= !traps_again;
        }
        next
    }

    pub fn is_wrong(state: &State) -> bool {
        // It may compute, without a call, from any step of its own on.
        let is_program = state.step > 4;
        let never_joins = is_program && state.is_late && !state.is_timer_set;
        state.failed || state.joined > 1 || never_joins
    }
}

mod look {
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Rule {
        /// The gate is held from the look until the clone is made.
        Held,
        /// A page that is to leave has a word, inside the gate, before it can be away.
        Said,
        /// The page table of a parent of which something is away is copied,
        Copied,
        /// in the evictor's turn, which is given back when the clone is made.
        Turn,
    }

    /// The child's page, of which it is known that it is away, or not.
    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    struct Child {
        is_here: bool,
        is_known_away: bool,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct State {
        forks: usize,
        evicts: usize,
        is_locked: bool,
        has_turn: bool,
        is_said: bool,
        is_away: bool,
        /// The fork has found nothing.
        is_late: bool,
        /// The supervisor's copy says that the page is away; None: it has not made one.
        copied: Option<bool>,
        child: Option<Child>,
    }

    /// The state behind a step; None: it waits, or all steps are made.
    fn fork(state: &State, left_out: Option<Rule>) -> Option<State> {
        let mut next = State { forks: state.forks + 1, ..*state };
        match state.forks {
            0 if state.is_locked => return None,
            0 => next.is_locked = true,
            1 => {
                next.is_late = !state.is_said;
                next.is_locked = next.is_late && left_out != Some(Rule::Held);
            }
            // KIND_FORKS.
            2 if !state.is_late && left_out != Some(Rule::Turn) => {
                if state.has_turn {
                    return None;
                }
                next.has_turn = true;
            }
            2 => {}
            3 if !state.is_late && left_out != Some(Rule::Copied) => next.copied = Some(state.is_away),
            3 => {}
            4 => {
                let is_known_away = state.copied == Some(true);
                next.child = Some(Child { is_here: !state.is_away, is_known_away });
            }
            5 if state.is_late => next.is_locked = false,
            5 => next.has_turn = false,
            _ => return None,
        }
        Some(next)
    }

    fn evict(state: &State, left_out: Option<Rule>) -> Option<State> {
        let mut next = State { evicts: state.evicts + 1, ..*state };
        match state.evicts {
            0 if state.is_locked => return None,
            0 => next.is_said = left_out != Some(Rule::Said),
            // OP_MOVE.
            1 if state.has_turn || state.is_locked => return None,
            1 => next.is_away = true,
            _ => return None,
        }
        Some(next)
    }

    pub fn next(state: &State, left_out: Option<Rule>) -> Vec<State> {
        fork(state, left_out).into_iter().chain(evict(state, left_out)).collect()
    }

    pub fn is_wrong(state: &State) -> bool {
        state.child.is_some_and(|child| !child.is_here && !child.is_known_away)
    }
}

#[test]
fn a_late_child_goes_on_behind_its_fork() {
    use child::Rule::{Blocked, SetAgain, TrapsAgain};
    let fails = |rule| explore(child::BEGIN, |state| child::next(state, rule), child::is_wrong);
    let (failed, states) = fails(None);
    assert!(!failed);
    assert!(states > 20, "{states}");
    for rule in [Blocked, SetAgain, TrapsAgain] {
        assert!(fails(Some(rule)).0, "{rule:?}");
    }
}

#[test]
fn a_child_has_each_page_or_knows_that_it_is_away() {
    use look::Rule::{Copied, Held, Said, Turn};
    let fails = |rule| explore(look::State::default(), |state| look::next(state, rule), look::is_wrong);
    let (failed, states) = fails(None);
    assert!(!failed);
    assert!(states > 20, "{states}");
    for rule in [Held, Said, Copied, Turn] {
        assert!(fails(Some(rule)).0, "{rule:?}");
    }
}
