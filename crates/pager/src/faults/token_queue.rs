//! Faults that are held back while another thread has the swap token (run/token.rs, which says why).
//!
//! ```text
//!   a fault ─ its thread brings back pages often, and so does another one, which has the token?
//!                no: served         yes: held ─ the holder pauses, or has had its turn: served; who has
//!                                                 waited longest has the token next
//!                                             ─ held for a turn: served, without the token
//! ```
//!
//! Two threads whose pages do not fit together take each other's pages away for as long as both are served.
//! Served one after the other each has what it needs for a while. (Load control: Denning, "Thrashing", 1968;
//! token-ordered LRU with waiting: Jiang and Zhang, 2005.)
//!
//! What must hold:
//!
//! - *Who faults now and then is not held back*: it takes little from anyone, and somebody may wait for it.
//!   Nor is who touches new memory.
//! - *Nor is who goes through memory in order*: it uses each page once, so it has nothing to keep. (When
//!   they were held back, four threads that do so took up to 1.6 times as long.)
//! - *A fault is held for a turn at most*, and not while the holder pauses: it may wait for a lock of the
//!   thread that is held.
//! - *Everyone has a turn*, in the order of waiting. An answer for want of a turn does not count as one.
//! - Faults that memspill itself waits for (an evictor, a fork, a child that joins) are not held back.
//!
//! What it does not do: hold back faults on shared memory, which others may wait for as well; keep an order
//! between pagers, of which each has faults of its own.

use crate::run::token::{Faulter, TURN_US, Token};
use memspill_engine::fill::Fault;
use std::collections::HashMap;

/// A fault whose thread sleeps; `P` is its process.
pub struct TokenWaiter<P> {
    pub process: P,
    pub fault: Fault,
    pub who: Faulter,
    since_us: u64,
}

/// Faults of one pager, those of threads that have waited longest first.
pub struct TokenQueue<P> {
    faults: Vec<TokenWaiter<P>>,
    /// The wait of each thread that waits for a turn.
    waits: HashMap<u32, Wait>,
    looked_us: u64,
}

struct Wait {
    since_us: u64,
    last_us: u64,
}

/// A thread that was not held for so long does not wait for a turn any more.
const FORGOTTEN_US: u64 = 4 * TURN_US;
/// More threads than that, and those that are forgotten are looked for.
const WAITS_MAX: usize = 1024;
/// Whether a process forks or ends is looked at so often.
const LOOK_US: u64 = 1_000;

impl<P> TokenQueue<P> {
    pub fn new() -> TokenQueue<P> {
        TokenQueue { faults: Vec::new(), waits: HashMap::new(), looked_us: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// Returns a fault of a thread of that number that was held already, which is to be served now. Mostly a
    /// signal has interrupted it, and nobody waits for it any more. But numbers are those of a pid namespace,
    /// or what a process says: it may be another thread.
    pub fn hold(&mut self, process: P, fault: Fault, who: Faulter, now_us: u64) -> Option<TokenWaiter<P>> {
        let since_us = self.wait_since(who.tid, now_us);
        let before = self.faults.iter().position(|held| held.who.tid == who.tid);
        let before = before.map(|at| self.faults.remove(at));
        let at = self.faults.partition_point(|held| self.waits_since(held.who.tid) <= since_us);
        let held_since_us = before.as_ref().map_or(now_us, |held| held.since_us);
        self.faults.insert(at, TokenWaiter { process, fault, who, since_us: held_since_us });
        before
    }

    fn wait_since(&mut self, tid: u32, now_us: u64) -> u64 {
        if self.waits.len() >= WAITS_MAX {
            self.waits.retain(|_, wait| now_us.saturating_sub(wait.last_us) <= FORGOTTEN_US);
        }
        let wait = self.waits.entry(tid).or_insert(Wait { since_us: now_us, last_us: now_us });
        if now_us.saturating_sub(wait.last_us) > FORGOTTEN_US {
            wait.since_us = now_us;
        }
        wait.last_us = now_us;
        wait.since_us
    }

    fn waits_since(&self, tid: u32) -> u64 {
        self.waits.get(&tid).map_or(0, |wait| wait.since_us)
    }

    /// Is there a fault to be served?
    pub fn is_due(&self, token: &Token, now_us: u64) -> bool {
        let is_due = |held: &TokenWaiter<P>| held.is_overdue(now_us) || !token.holds_back(held.who, now_us);
        let looks = now_us.saturating_sub(self.looked_us) >= LOOK_US;
        !self.is_empty() && (looks || self.faults.iter().any(is_due))
    }

    /// What is to be served, and whether its page is favoured.
    pub fn take_due(
        &mut self,
        token: &Token,
        now_us: u64,
        hurries: impl Fn(&P) -> bool,
    ) -> Vec<(TokenWaiter<P>, bool)> {
        self.looked_us = now_us;
        let (mut due, mut kept) = (Vec::new(), Vec::new());
        for held in self.faults.drain(..) {
            if !token.holds_back(held.who, now_us) {
                let favoured = token.note_fault(held.who, now_us);
                if token.is_held_by(held.who.tid) {
                    self.waits.remove(&held.who.tid);
                }
                due.push((held, favoured));
            } else if held.is_overdue(now_us) || hurries(&held.process) {
                due.push((held, false));
            } else {
                kept.push(held);
            }
        }
        self.faults = kept;
        due
    }
}

impl<P> TokenWaiter<P> {
    /// It waits no longer, whoever has the token.
    fn is_overdue(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.since_us) > TURN_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::rates::Rates;
    use memspill_engine::units::{GroupId, Vpn};

    /// One pager, and threads that always fault at random, each fault 10 µs: how many each had in 20 s.
    fn served(threads: u32) -> Vec<u64> {
        let (token, mut rates, mut held) = (Token::new(true), Rates::default(), TokenQueue::new());
        let mut served = vec![0u64; threads as usize];
        let mut sleeps = vec![false; threads as usize];
        let mut now_us = 1_000_000;
        while now_us < 21_000_000 {
            for tid in 1..=threads {
                let at = tid as usize - 1;
                if std::mem::take(&mut sleeps[at]) && held.faults.iter().any(|one| one.who.tid == tid) {
                    sleeps[at] = true;
                    continue;
                }
                let often = rates.note(tid, Vpn((served[at] + 1) << 20), now_us);
                let who = Faulter { tid, group: GroupId(0), group_pages: 10_000, often };
                let favoured = token.note_fault(who, now_us);
                let fault = Fault { vpn: Vpn(1), write: false, urgent: false, favoured };
                if token.holds_back(who, now_us) {
                    assert!(held.hold((), fault, who, now_us).is_none());
                    sleeps[at] = true;
                } else {
                    served[at] += 1;
                    now_us += 10;
                }
            }
            if held.is_due(&token, now_us) {
                for (one, _) in held.take_due(&token, now_us, |()| false) {
                    served[one.who.tid as usize - 1] += 1;
                    now_us += 10;
                }
            }
        }
        served
    }

    #[test]
    fn everyone_has_a_turn() {
        for threads in [2, 3, 8, 40] {
            let served = served(threads);
            let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
            assert!(least * 3 > *most, "{threads} threads: {served:?}");
        }
    }

    #[test]
    fn a_fault_whose_thread_faults_again_is_given_back() {
        let mut held = TokenQueue::new();
        let who = Faulter { tid: 1, group: GroupId(0), group_pages: 10_000, often: true };
        let fault = |page| Fault { vpn: Vpn(page), write: false, urgent: false, favoured: false };
        assert!(held.hold("first", fault(1), who, 10).is_none());
        assert_eq!(held.hold("second", fault(2), who, 20).map(|before| before.process), Some("first"));
        let due = held.take_due(&Token::new(true), 11 + TURN_US, |_| false);
        assert_eq!(due.iter().map(|(one, _)| one.process).collect::<Vec<_>>(), ["second"]);
        assert!(held.is_empty());
    }
}
