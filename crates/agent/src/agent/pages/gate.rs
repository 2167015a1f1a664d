//! The gate of the address space: who fills or takes out pages is inside together with others of the kind,
//! who changes mappings is alone.
//!
//! ```text
//!   63 ...            state: 32 bits                0
//!   ┌──────────┬──────────────────────────────────────┐
//!   │ CHANGING │ how many are inside                  │
//!   └──────────┴──────────────────────────────────────┘
//! ```
//!
//! A change sets its bit, after which nobody enters, and waits until nobody is inside. Inside, nobody touches
//! the program's memory in a way that could fault, and nobody sleeps for what others do inside; so whoever
//! waits at the gate waits for work that goes on. All signals are blocked inside but those of faults.
//!
//! The child of a fork has a copy, taken while its parent's gate was closed: it makes a new one.

use crate::common::rules::{Rule, holds};
use crate::common::sync::{AtomicU32, AtomicU64, Ordering};
use crate::thread::wait;

const CHANGING: u32 = 1 << 31;
/// How long a batch waits for a change of mappings, which waits for no batch.
pub const GATE_MS: u32 = 20;

pub struct Gate {
    state: AtomicU32,
    /// Held by the one that changes, or waits to.
    changer: AtomicU32,
    /// How often somebody was alone.
    changed: AtomicU64,
}

/// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
static GATE: Gate = Gate { state: AtomicU32::new(0), changer: AtomicU32::new(0), changed: AtomicU64::new(0) };

pub struct Inside;

impl Inside {
    /// Until this is another number what is mapped stays so, with its protection. (One mapping may become
    /// two.)
    pub fn changed(&self) -> u64 {
        GATE.changed.load(Ordering::SeqCst)
    }
}

/// Enters together with others.
pub fn enter() -> Inside {
    let state = &GATE.state;
    loop {
        let seen = state.load(Ordering::SeqCst);
        if seen & CHANGING != 0 && holds(Rule::GateClosed) {
            wait::sleep(state, seen);
        } else if state.compare_exchange_weak(seen, seen + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            return Inside;
        }
    }
}

/// The same; None: somebody changes mappings, and does not come to an end.
pub fn enter_within(limit_ms: u32) -> Option<Inside> {
    let state = &GATE.state;
    let mut waited_ms = 0;
    loop {
        let seen = state.load(Ordering::SeqCst);
        if seen & CHANGING == 0 {
            if state.compare_exchange_weak(seen, seen + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                return Some(Inside);
            }
        } else if waited_ms < limit_ms {
            wait::sleep_for(state, seen, 1);
            waited_ms += 1;
        } else {
            return None;
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if GATE.state.fetch_sub(1, Ordering::SeqCst) == CHANGING | 1 && holds(Rule::LastWakes) {
            wait::wake_all(&GATE.state);
        }
    }
}

pub struct Alone;

/// Enters alone.
pub fn enter_alone() -> Alone {
    if !holds(Rule::Alone) {
        return Alone;
    }
    while GATE.changer.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_err()
        && holds(Rule::OneChanger)
    {
        wait::sleep(&GATE.changer, 1);
    }
    let mut seen = GATE.state.fetch_or(CHANGING, Ordering::SeqCst) | CHANGING;
    while seen != CHANGING && holds(Rule::WaitForInside) {
        wait::sleep(&GATE.state, seen);
        seen = GATE.state.load(Ordering::SeqCst);
    }
    GATE.changed.fetch_add(1, Ordering::SeqCst);
    Alone
}

/// The same; None: others do not come to an end.
pub fn enter_alone_within(limit_ms: u32) -> Option<Alone> {
    if !holds(Rule::Alone) {
        return Some(Alone);
    }
    let mut waited_ms = 0;
    while GATE.changer.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        if waited_ms == limit_ms {
            return None;
        }
        wait::sleep_for(&GATE.changer, 1, 1);
        waited_ms += 1;
    }
    let mut seen = GATE.state.fetch_or(CHANGING, Ordering::SeqCst) | CHANGING;
    // A thread that is inside does not stay.
    while seen != CHANGING {
        wait::sleep(&GATE.state, seen);
        seen = GATE.state.load(Ordering::SeqCst);
    }
    GATE.changed.fetch_add(1, Ordering::SeqCst);
    Some(Alone)
}

impl Drop for Alone {
    fn drop(&mut self) {
        if !holds(Rule::Alone) {
            return;
        }
        GATE.state.fetch_and(!CHANGING, Ordering::SeqCst);
        wait::wake_all(&GATE.state);
        GATE.changer.store(0, Ordering::SeqCst);
        wait::wake_all(&GATE.changer);
    }
}

/// In the child of a fork: nobody is inside, and nobody waits.
pub fn reset() {
    GATE.state.store(0, Ordering::SeqCst);
    GATE.changer.store(0, Ordering::SeqCst);
}
