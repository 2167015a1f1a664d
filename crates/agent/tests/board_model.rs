//! The protocol of the board (`protocol.rs`, `src/agent/trap/`) in a model: two threads, each with a call
//! on the one page that there is, and an evictor that takes the page out twice. Every order of their steps is
//! gone through. In no order may a call meet a page that is away, or the evictor wait for ever.
//!
//! The steps are those of the real code, each an access to memory that the others see at once, as the fences
//! have it. That the fences suffice is shown by `loom_in_use.rs`; registering, and sleeping, by
//! `shuttle_in_use.rs`.
//! Without any one of the rules the model must find an order that fails, or the rule would be idle.

use std::collections::HashSet;

const THREADS: usize = 2;

/// What may be left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// A thread waits while the generation is odd.
    Wait,
    /// A thread publishes before it looks at the generation, and not after.
    PublishFirst,
    /// A thread touches after it has waited, and not before.
    TouchLast,
    /// The evictor makes the generation odd before it reads the slots, and not after.
    OddFirst,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Thread {
    step: u8,
    seen: u8,
    published: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct State {
    threads: [Thread; THREADS],
    evictor: u8,
    /// What the evictor has found in the slots so far.
    in_use: bool,
    generation: u8,
    away: bool,
    failed: bool,
}

/// The steps of a thread, in order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Publish,
    Look,
    Wait,
    Touch,
    Call,
    Withdraw,
}

fn steps(left_out: Option<Rule>) -> [Step; 6] {
    use Step::{Call, Look, Publish, Touch, Wait, Withdraw};
    match left_out {
        Some(Rule::PublishFirst) => [Look, Wait, Publish, Touch, Call, Withdraw],
        Some(Rule::TouchLast) => [Touch, Publish, Look, Wait, Call, Withdraw],
        _ => [Publish, Look, Wait, Touch, Call, Withdraw],
    }
}

/// The state after a step of thread `who`; None: it waits, or has ended.
fn step_thread(state: &State, who: usize, left_out: Option<Rule>) -> Option<State> {
    let mut next = *state;
    let thread = &mut next.threads[who];
    match *steps(left_out).get(usize::from(thread.step))? {
        Step::Publish => thread.published = true,
        Step::Look => thread.seen = state.generation,
        Step::Wait => {
            let is_odd = thread.seen % 2 == 1;
            if left_out != Some(Rule::Wait) && is_odd && state.generation == thread.seen {
                return None;
            }
        }
        // The pager brings it.
        Step::Touch => next.away = false,
        Step::Call => next.failed |= state.away,
        Step::Withdraw => thread.published = false,
    }
    next.threads[who].step += 1;
    Some(next)
}

/// The evictor's steps of one batch: odd, a slot after the other, move, even; then the same again.
fn step_evictor(state: &State, left_out: Option<Rule>) -> Option<State> {
    const BATCH: u8 = THREADS as u8 + 3;
    const SLOTS: u8 = THREADS as u8;
    let mut next = *state;
    if state.evictor == 2 * BATCH {
        return None;
    }
    let mut at = state.evictor % BATCH;
    if left_out == Some(Rule::OddFirst) {
        // The slots, then odd.
        at = if at < SLOTS {
            at + 1
        } else if at == SLOTS {
            0
        } else {
            at
        };
    }
    if at == 0 {
        next.generation += 1;
    } else if at <= SLOTS {
        let found = state.threads[usize::from(at) - 1].published;
        next.in_use = found || at > 1 && state.in_use;
    } else if at == SLOTS + 1 {
        next.away |= !state.in_use;
    } else {
        next.generation += 1;
    }
    next.evictor += 1;
    Some(next)
}

/// Goes through all orders: whether a call failed in one, or all waited for each other, and how many states
/// there are.
fn fails(left_out: Option<Rule>) -> (bool, usize) {
    let (mut met, mut open) = (HashSet::new(), vec![State::default()]);
    while let Some(state) = open.pop() {
        if state.failed {
            return (true, met.len());
        }
        if !met.insert(state) {
            continue;
        }
        let threads = (0..THREADS).filter_map(|who| step_thread(&state, who, left_out));
        let next: Vec<State> = threads.chain(step_evictor(&state, left_out)).collect();
        let is_over = state.threads.iter().all(|thread| usize::from(thread.step) == 6);
        assert!(!next.is_empty() || is_over, "all wait");
        open.extend(next);
    }
    (false, met.len())
}

#[test]
fn no_call_meets_a_page_that_is_away() {
    let (failed, states) = fails(None);
    assert!(!failed);
    assert!(states > 1000, "{states}");
}

#[test]
fn no_rule_is_idle() {
    for rule in [Rule::Wait, Rule::PublishFirst, Rule::TouchLast, Rule::OddFirst] {
        assert!(fails(Some(rule)).0);
    }
}
