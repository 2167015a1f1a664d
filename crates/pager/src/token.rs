//! The swap token: while threads compete for memory, one of them at a time keeps what it brings in.
//!
//! When several threads' working sets do not fit together, a fair order is the worst one: each page leaves before its
//! thread has used it, and nobody gets on. The kernel has accessed bits, by which a thread that happens to have its pages
//! keeps them, gets on, and ends; there is no such bit here. So one thread at a time, the holder, is helped: what it brings
//! in stays for some more rounds of the LRU, and its faults are answered first. It soon has its working set, faults no
//! more, and the token goes to the next. Nobody is stopped, and what others have is not taken out of turn.
//! (Token-ordered LRU: Jiang and Zhang, 2005; Linux 2.6 had it for processes.)
//!
//! ```text
//!   a fault of the holder        its page is favoured
//!   a fault of another thread    takes the token if the holder has not faulted for IDLE, or has held it for HOLD
//! ```

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The holder has what it needs (or ended, or waits for something else).
const IDLE_US: u64 = 10_000;
/// What does not fit into this time does not fit into memory.
const HOLD_US: u64 = 1_000_000;
/// With no fault of another thread for this long, there is nobody to compete with.
const CONTENDED_US: u64 = 100_000;

#[derive(Default)]
pub struct Token {
    tid: AtomicU32,
    since_us: AtomicU64,
    last_us: AtomicU64,
    /// When a thread without the token last faulted.
    others_us: AtomicU64,
}

impl Token {
    pub fn is_held_by(&self, tid: u32) -> bool {
        self.tid.load(Ordering::Relaxed) == tid
    }

    /// A fault of thread `tid`. True if it holds the token. The races between pagers are harmless: it is a hint.
    pub fn fault(&self, tid: u32, now_us: u64) -> bool {
        let since_us = self.since_us.load(Ordering::Relaxed);
        let last_us = self.last_us.load(Ordering::Relaxed);
        let mine = self.is_held_by(tid);
        if now_us.saturating_sub(since_us) > HOLD_US || (!mine && now_us.saturating_sub(last_us) > IDLE_US) {
            if !mine {
                self.tid.store(tid, Ordering::Relaxed);
                self.since_us.store(now_us, Ordering::Relaxed);
                self.last_us.store(now_us, Ordering::Relaxed);
            }
            return !mine;
        }
        if !mine {
            self.others_us.store(now_us, Ordering::Relaxed);
            return false;
        }
        self.last_us.store(now_us, Ordering::Relaxed);
        now_us.saturating_sub(self.others_us.load(Ordering::Relaxed)) < CONTENDED_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_is_favoured() {
        let token = Token::default();
        let start_us = 10 * HOLD_US;
        assert!(token.fault(1, start_us), "nobody has it");
        assert!(!token.fault(2, start_us + 1));
        assert!(token.fault(1, start_us + 2), "the holder, and another one competes");
        // The holder has what it needs.
        assert!(token.fault(2, start_us + 3 + IDLE_US));
        assert!(!token.fault(1, start_us + 4 + IDLE_US));
    }

    #[test]
    fn a_lone_thread_is_not_favoured() {
        let token = Token::default();
        let start_us = 10 * HOLD_US;
        token.fault(1, start_us);
        assert!(!token.fault(1, start_us + 1));
        assert!(!token.fault(1, start_us + 2 * HOLD_US), "its time is over, but nobody else wants it");
    }

    #[test]
    fn nobody_holds_it_for_ever() {
        let token = Token::default();
        let start_us = 10 * HOLD_US;
        let mut now_us = start_us;
        token.fault(1, now_us);
        while now_us < start_us + HOLD_US {
            now_us += 1000;
            token.fault(1, now_us);
            token.fault(2, now_us);
        }
        token.fault(1, now_us + 1);
        assert!(token.fault(2, now_us + 2));
    }
}
