//! A server that is away: what becomes of requests meanwhile, and when it is tried again.
//!
//! ```text
//!            broken                        came back with our mark
//!      On ───────────▶ Away, for GRACE: requests wait, and are sent again ───────▶ On
//!                        │ then: Short, faults are tried again ──────────────────▶ On
//!                        │ after `timeout`: pages there are lost to who touches them ─▶ On
//!                        │ came back without our mark
//!                        ▼
//!                      Gone: what was there is lost for good
//! ```
//!
//! A server that comes back and breaks again at once is tried after a pause. A request that is on the way
//! meanwhile, and is cut off again and again, is over after `timeout`, too ([`Away::is_hopeless`]).
//!
//! A server that answers and cannot be used says why (`refusal`), until a try fails otherwise.
//!
//! It is a function of what happened and of the time, which is an argument: it has no clock and no thread.
//! Times are counted from any start.

use std::time::Duration;

/// Requests in flight, and new ones, wait so long for a server that has just gone.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// Tries: at once, then after so long, twice as long each time, ...
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// ... to this.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A request is sent again at least so often before it is given up with the server there.
const RESENT_MIN: u32 = 5;

/// What a request finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Door {
    /// It is sent now.
    Open,
    /// It waits: the server may be back in a moment.
    Wait,
    /// Not now: the same may go well later.
    Later,
    /// The server is away for longer than pages may wait.
    TimedOut,
    /// It has lost what was there.
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    On,
    Away { since: Duration, tries: u32, next: Duration },
    Gone,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Away {
    state: State,
    timeout: Duration,
    /// When the state was entered.
    since: Duration,
    reconnects: u64,
    refusal: Option<String>,
}

impl Away {
    /// A server that is there.
    pub(super) fn new(timeout: Duration, now: Duration) -> Away {
        Away { state: State::On, timeout, since: now, reconnects: 0, refusal: None }
    }

    pub(super) fn door(&self, now: Duration) -> Door {
        match self.state {
            State::On => Door::Open,
            State::Gone => Door::Gone,
            State::Away { since, .. } => match now.saturating_sub(since) {
                past if past >= self.timeout => Door::TimedOut,
                past if past >= GRACE => Door::Later,
                _ => Door::Wait,
            },
        }
    }

    /// A connection has broken, or there was no answer in time. True: it was on until now.
    pub(super) fn broke(&mut self, now: Duration) -> bool {
        let was_on = self.state == State::On;
        if was_on {
            let is_again = self.reconnects > 0 && self.lasts(now) < GRACE;
            let next = if is_again { now + PAUSE_MIN } else { now };
            self.state = State::Away { since: now, tries: 0, next };
            self.since = now;
        }
        was_on
    }

    /// A request that has lasted for so long, and was sent again so often: the server hangs up at it.
    pub(super) fn is_hopeless(&self, lasts: Duration, resent: u32) -> bool {
        resent >= RESENT_MIN && lasts >= self.timeout
    }

    /// When to try next. None: there is nothing to try.
    pub(super) fn next_try(&self) -> Option<Duration> {
        match self.state {
            State::Away { next, .. } => Some(next),
            State::On | State::Gone => None,
        }
    }

    /// Until when a try may last that begins now: what waits is told in time that it waits no more.
    pub(super) fn try_until(&self, now: Duration, at_most: Duration) -> Duration {
        match self.state {
            State::Away { since, .. } if now < since + GRACE => since + GRACE,
            _ => now + at_most,
        }
    }

    /// A try that began then has failed. Its own time is a part of the pause.
    pub(super) fn try_failed(&mut self, begun: Duration, now: Duration, refusal: Option<String>) {
        self.refusal = refusal;
        if let State::Away { tries, next, .. } = &mut self.state {
            let pause = PAUSE_MIN.saturating_mul(1 << (*tries).min(10)).min(PAUSE_MAX);
            *next = now.max(begun + pause);
            *tries += 1;
        }
    }

    /// All connections are there again, and so is what was written.
    pub(super) fn came_back(&mut self, now: Duration) {
        if matches!(self.state, State::Away { .. }) {
            self.state = State::On;
            self.since = now;
            self.reconnects += 1;
            self.refusal = None;
        }
    }

    /// It is back, without what was written.
    pub(super) fn came_back_empty(&mut self, now: Duration, refusal: String) {
        self.state = State::Gone;
        self.since = now;
        self.refusal = Some(refusal);
    }

    pub(super) fn is_on(&self) -> bool {
        self.state == State::On
    }

    /// For how long it is what it is.
    pub(super) fn lasts(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }

    pub(super) fn reconnects(&self) -> u64 {
        self.reconnects
    }

    pub(super) fn refusal(&self) -> Option<String> {
        self.refusal.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn away() -> Away {
        let mut away = Away::new(MS(60_000), MS(0));
        assert_eq!((away.door(MS(5)), away.next_try()), (Door::Open, None));
        assert!(away.broke(MS(1000)) && !away.broke(MS(1001)), "it breaks once");
        away
    }

    #[test]
    fn requests_wait_then_come_again_then_fail() {
        let away = away();
        let doors = [1000, 1999, 2000, 60_999, 61_000, 1_000_000].map(|ms| away.door(MS(ms)));
        assert_eq!(doors, [Door::Wait, Door::Wait, Door::Later, Door::Later, Door::TimedOut, Door::TimedOut]);
    }

    #[test]
    fn a_server_that_hangs_up_again_and_again_is_tried_after_a_pause_and_not_for_ever() {
        let mut away = away();
        assert_eq!(away.next_try(), Some(MS(1000)), "at once");
        away.came_back(MS(1001));
        assert!(away.broke(MS(1002)));
        assert_eq!(away.next_try(), Some(MS(1102)));
        away.came_back(MS(1103));
        assert!(away.broke(MS(9000)));
        assert_eq!(away.next_try(), Some(MS(9000)), "it was there for long");
        assert!(!away.is_hopeless(MS(59_999), 600) && !away.is_hopeless(MS(600_000), 4));
        assert!(away.is_hopeless(MS(60_000), 5));
    }

    #[test]
    fn a_timeout_shorter_than_the_grace_is_kept() {
        let mut away = Away::new(MS(300), MS(0));
        away.broke(MS(0));
        assert_eq!([299, 300].map(|ms| away.door(MS(ms))), [Door::Wait, Door::TimedOut]);
    }

    #[test]
    fn it_is_tried_at_once_and_then_less_often() {
        let mut away = away();
        let mut now = away.next_try().unwrap();
        assert_eq!(now, MS(1000), "at once");
        let mut pauses = Vec::new();
        for _ in 0..9 {
            away.try_failed(now, now, None);
            pauses.push((away.next_try().unwrap() - now).as_millis());
            now = away.next_try().unwrap();
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        // A try that took longer than the pause is followed by the next.
        away.try_failed(now, now + MS(7000), None);
        assert_eq!(away.next_try(), Some(now + MS(7000)));
    }

    #[test]
    fn a_try_does_not_outlast_the_grace() {
        let away = away();
        assert_eq!(away.try_until(MS(1500), MS(5000)), MS(2000));
        assert_eq!(away.try_until(MS(2000), MS(5000)), MS(7000));
    }

    #[test]
    fn it_comes_back_at_any_time_unless_what_it_held_is_lost() {
        for ms in [1200, 30_000, 100_000] {
            let mut away = away();
            away.came_back(MS(ms));
            assert_eq!((away.door(MS(ms)), away.reconnects(), away.next_try()), (Door::Open, 1, None));
            assert_eq!(away.lasts(MS(ms + 10)), MS(10));
        }
        let mut away = away();
        away.try_failed(MS(1000), MS(1000), Some("it is read-only".into()));
        assert_eq!(away.refusal().as_deref(), Some("it is read-only"));
        away.try_failed(MS(1100), MS(1100), None);
        assert_eq!(away.refusal(), None);
        away.came_back_empty(MS(1200), "it is smaller".into());
        away.came_back(MS(1300));
        assert!(!away.broke(MS(1400)));
        assert_eq!((away.door(MS(1300)), away.next_try()), (Door::Gone, None));
        assert_eq!(away.refusal().as_deref(), Some("it is smaller"));
    }
}
