//! The swap token: while threads compete for memory, one of them at a time keeps what it brings in.
//!
//! When the working sets of several threads do not fit together, a fair order is the worst one: each page
//! leaves before its thread has used it, and nobody gets on. So one thread at a time, the holder, is helped:
//! what it brings in stays for some more rounds of the LRU, and its faults are answered first. It soon has
//! its working set, faults no more, and the token goes to the next. The pages of others are not taken out of
//! turn. (Token-ordered LRU: Jiang and Zhang, 2005; Linux 2.6 had it for processes.)
//!
//! ```text
//!   a fault of the holder        its page is favoured
//!   a fault of another thread    takes the token if the holder has not faulted for IDLE, or has held it for
//!                                HOLD. Else, on up to two CPUs, a thread that faults often waits in
//!                                faults/token_queue.rs until the holder has not faulted for PAUSE, or has
//!                                had its turn
//! ```
//!
//! Groups do not take each other's pages before their limits, so only threads of the holder's group wait.
//!
//! What favour alone brings: 160 threads that each allocate, within a budget that holds a part of them, end
//! in 20 s with the token, after 0.4 million faults; without it they have not ended after 110 s and 2.3
//! million faults. If processes compete instead of threads it brings nothing that can be measured, and costs
//! nothing.
//!
//! It is a hint, so races between pagers are harmless. Every fault reads this line and few write it: a time
//! is stored only when the one that is there is `GRAIN_US` old, or the line would move from CPU to CPU with
//! every fault. (Where others wait each fault of the holder counts, but then few others write and read.)

use memspill_engine::group::Group;
use memspill_engine::units::GroupId;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The holder has what it needs (or ended, or waits for something else).
const IDLE_US: u64 = 10_000;
/// A working set that does not fit into this time does not fit into memory.
const HOLD_US: u64 = 1_000_000;
/// A turn, where others wait meanwhile: so long at least, and then until the holder has brought back as many
/// pages as its group may have, or for HOLD. It pays for its turn only once most of what it needs is there,
/// and on a slow machine that takes longer. Tried: TURN alone. If a fault takes 50 µs a turn was 5000 pages,
/// and four threads at random got on better without turns. HOLD alone is no better than this, and who waits
/// does so four times as long where a fault takes 10 µs.
pub const TURN_US: u64 = 250_000;
/// On up to this many CPUs the holder is served alone. On more, faults are served side by side, and nobody
/// has measured what waiting costs there.
pub const SERVES_ALONE_CPUS_MAX: usize = 2;
/// Nobody waits for a holder that has not faulted for so long: it works with what it has, or waits itself.
/// With IDLE in its place a JavaScript program with its collector's threads took 15 % longer.
const PAUSE_US: u64 = 2_000;
/// With no fault of another thread for this long, there is nobody to compete with.
const CONTENDED_US: u64 = 100_000;
/// Times are this coarse.
const GRAIN_US: u64 = 1_000;

#[derive(Default)]
#[repr(align(64))]
pub struct Token {
    tid: AtomicU32,
    /// Its group.
    group: AtomicU32,
    since_us: AtomicU64,
    last_us: AtomicU64,
    /// When a thread without the token last faulted.
    others_us: AtomicU64,
    /// When the holder last had a fault of many; 0: not since it has the token.
    often_us: AtomicU64,
    /// How many pages it may still bring back before its turn is over, where others wait for it.
    left_pages: AtomicU64,
    /// Others wait while the holder faults.
    serves_alone: bool,
}

/// A thread that faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faulter {
    pub tid: u32,
    pub group: GroupId,
    /// What that group may have.
    pub group_pages: u64,
    /// It has brought back many pages lately.
    pub often: bool,
}

impl Faulter {
    pub fn new(tid: u32, group: &Group, often: bool) -> Faulter {
        Faulter { tid, group: group.id, group_pages: group.least_limit_pages(), often }
    }
}

impl Token {
    pub fn new(serves_alone: bool) -> Token {
        Token { serves_alone, ..Token::default() }
    }

    /// Does anyone ever wait for the holder?
    pub fn serves_alone(&self) -> bool {
        self.serves_alone
    }

    pub fn is_held_by(&self, tid: u32) -> bool {
        self.tid.load(Ordering::Relaxed) == tid
    }

    /// A fault of this thread at `now_us`, of any clock that does not go back. True if its page is favoured.
    pub fn note_fault(&self, who: Faulter, now_us: u64) -> bool {
        let is_favoured = self.passes_to(who, now_us);
        if who.often && self.is_held_by(who.tid) {
            store_coarse(&self.often_us, now_us);
            if self.serves_alone {
                let left_pages = self.left_pages.load(Ordering::Relaxed);
                self.left_pages.store(left_pages.saturating_sub(1), Ordering::Relaxed);
            }
        }
        is_favoured
    }

    /// Is this thread to wait?
    pub fn holds_back(&self, who: Faulter, now_us: u64) -> bool {
        let holder = self.served_alone(who.group, now_us);
        who.often && holder != 0 && holder != who.tid
    }

    /// The holder, if all others of this group that fault often are to wait for it; else 0.
    pub fn served_alone(&self, group: GroupId, now_us: u64) -> u32 {
        let is_often = now_us.saturating_sub(self.often_us.load(Ordering::Relaxed)) <= PAUSE_US;
        let is_of_group = self.group.load(Ordering::Relaxed) == u32::from(group.0);
        let waits = self.serves_alone && is_often && is_of_group && !self.is_free(false, true, now_us);
        if waits { self.tid.load(Ordering::Relaxed) } else { 0 }
    }

    fn passes_to(&self, who: Faulter, now_us: u64) -> bool {
        let is_holder = self.is_held_by(who.tid);
        if self.is_free(is_holder, who.often, now_us) {
            if !is_holder {
                self.often_us.store(0, Ordering::Relaxed);
                self.tid.store(who.tid, Ordering::Relaxed);
                self.group.store(who.group.0.into(), Ordering::Relaxed);
                self.left_pages.store(who.group_pages, Ordering::Relaxed);
                self.since_us.store(now_us, Ordering::Relaxed);
                self.last_us.store(now_us, Ordering::Relaxed);
            }
            return !is_holder;
        }
        if !is_holder {
            store_coarse(&self.others_us, now_us);
            return false;
        }
        store_coarse(&self.last_us, now_us);
        now_us.saturating_sub(self.others_us.load(Ordering::Relaxed)) < CONTENDED_US
    }

    /// May another one take it, which faults often or not? Where others wait for a turn, those that fault now
    /// and then, or in order, do not come before them.
    fn is_free(&self, is_holder: bool, often: bool, now_us: u64) -> bool {
        let has_idled = !is_holder && now_us.saturating_sub(self.last_us.load(Ordering::Relaxed)) > IDLE_US;
        let held_us = now_us.saturating_sub(self.since_us.load(Ordering::Relaxed));
        has_idled || if self.serves_alone { often && self.is_turn_over(held_us) } else { held_us > HOLD_US }
    }

    fn is_turn_over(&self, held_us: u64) -> bool {
        held_us > HOLD_US || held_us > TURN_US && self.left_pages.load(Ordering::Relaxed) == 0
    }
}

fn store_coarse(time: &AtomicU64, now_us: u64) {
    if now_us.saturating_sub(time.load(Ordering::Relaxed)) >= GRAIN_US {
        time.store(now_us, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_US: u64 = 10 * HOLD_US;
    const TURN_PAGES: u64 = 100;

    fn often(tid: u32) -> Faulter {
        Faulter { tid, group: GroupId(0), group_pages: TURN_PAGES, often: true }
    }

    fn now_and_then(tid: u32) -> Faulter {
        Faulter { often: false, ..often(tid) }
    }

    #[test]
    fn one_thread_at_a_time_is_favoured() {
        let token = Token::default();
        assert!(token.note_fault(now_and_then(1), START_US), "nobody has it");
        assert!(!token.note_fault(now_and_then(2), START_US + GRAIN_US));
        let last_us = START_US + 2 * GRAIN_US;
        assert!(token.note_fault(now_and_then(1), last_us), "the holder, and another one competes");
        assert!(!token.note_fault(now_and_then(2), last_us + IDLE_US), "it may have faulted just now");
        assert!(token.note_fault(now_and_then(2), last_us + IDLE_US + 1), "the holder has what it needs");
        assert!(!token.note_fault(now_and_then(1), last_us + IDLE_US + 2));
    }

    #[test]
    fn a_lone_thread_is_not_favoured() {
        let token = Token::default();
        token.note_fault(now_and_then(1), START_US);
        assert!(!token.note_fault(now_and_then(1), START_US + 1));
        let later_us = START_US + 2 * HOLD_US;
        assert!(!token.note_fault(now_and_then(1), later_us), "its time is over, but nobody else wants it");
    }

    #[test]
    fn nobody_holds_it_for_ever() {
        let token = Token::default();
        let mut now_us = START_US;
        token.note_fault(now_and_then(1), now_us);
        while now_us < START_US + HOLD_US {
            now_us += 1000;
            token.note_fault(now_and_then(1), now_us);
            token.note_fault(now_and_then(2), now_us);
        }
        token.note_fault(now_and_then(1), now_us + 1);
        assert!(token.note_fault(now_and_then(2), now_us + 2));
    }

    #[test]
    fn who_faults_often_beside_a_holder_that_does_so_waits() {
        let token = Token::new(true);
        token.note_fault(now_and_then(1), START_US);
        assert!(!token.holds_back(often(2), START_US + 1), "the holder faults now and then");
        let often_us = START_US + GRAIN_US;
        token.note_fault(often(1), often_us);
        assert!(token.holds_back(often(2), often_us + PAUSE_US));
        assert!(!token.holds_back(now_and_then(2), often_us + PAUSE_US));
        assert!(!token.holds_back(often(1), often_us + PAUSE_US), "it is the holder");
        let of_another = Faulter { group: GroupId(1), ..often(2) };
        assert!(!token.holds_back(of_another, often_us + PAUSE_US), "another group has pages of its own");
        assert!(!token.holds_back(often(2), often_us + PAUSE_US + 1), "it has what it needs, or waits");
        let favours = Token::new(false);
        favours.note_fault(often(1), often_us);
        assert!(!favours.holds_back(often(2), often_us));
    }

    #[test]
    fn nobody_is_held_back_once_the_turn_is_over() {
        let token = Token::new(true);
        for now_us in (START_US..=START_US + TURN_US + 1).step_by(1000) {
            token.note_fault(often(1), now_us);
        }
        assert!(token.holds_back(often(2), START_US + TURN_US));
        assert!(!token.holds_back(often(2), START_US + TURN_US + 1));
        assert!(!token.note_fault(now_and_then(3), START_US + TURN_US + 2), "others wait for a turn");
        assert!(token.note_fault(often(2), START_US + TURN_US + 2), "and it takes the token");
        assert!(token.holds_back(often(1), START_US + TURN_US + 3));
    }

    #[test]
    fn a_turn_goes_on_until_the_holder_has_its_pages_but_not_for_ever() {
        let token = Token::new(true);
        let step_us = 2 * TURN_US / TURN_PAGES;
        for now_us in (START_US..START_US + 2 * TURN_US).step_by(step_us as usize) {
            assert!(now_us == START_US || token.holds_back(often(2), now_us - step_us + 1));
            token.note_fault(often(1), now_us);
        }
        assert!(!token.holds_back(often(2), START_US + 2 * TURN_US), "it has brought back as many as fit");

        let token = Token::new(true);
        let slow = Faulter { group_pages: u64::MAX, ..often(1) };
        for now_us in (START_US..=START_US + HOLD_US).step_by(1000) {
            token.note_fault(slow, now_us);
        }
        assert!(token.holds_back(often(2), START_US + HOLD_US));
        assert!(!token.holds_back(often(2), START_US + HOLD_US + 1));
    }
}
