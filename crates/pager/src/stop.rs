//! Signals that people send to a run, and the end by the second one.
//!
//! ```text
//!   thread memspill-signals:  wait ─▶ for the main thread: passed on to the command (supervisor.rs)
//!                                └─▶ the second SIGINT or SIGTERM: kill the tree, wake the main thread, exit
//!                                    after END_WITHIN at the latest
//! ```
//!
//! A thread of its own, which takes no lock that is held for long and waits for nobody: so it does not matter what the
//! others wait for, in start-up, while the command runs, or at the end. Who is stopped or frozen when the supervisor
//! ends is left to the guardian.
//!
//! *From a terminal* ^C goes to the whole foreground group, and the first one is the command's own affair. The second
//! one ends the tree where it follows within QUICKLY, or where the command has not taken the first one: it ignores or
//! blocks it, stands still, or waits for a page. So a program that deals with ^C, one now and then, goes on; and one
//! with a line editor, at its prompt, whatever is pressed.
//!
//! What it does not do: tell two signals of a kind apart that come together (the kernel makes them one, and timeout(1)
//! sends two, to its child and to its group).

use crate::standstill;
use crate::supervisor::signals;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Two that come within this time are one.
const SAME: Duration = Duration::from_millis(100);
/// Two ^C within this time are meant for memspill.
const QUICKLY: Duration = Duration::from_secs(2);
/// A terminal sends ^C to the command and to us at once: the command takes it within this time, or not.
const TAKEN_WITHIN: Duration = Duration::from_millis(100);
/// The tree is killed again and again for this long at most: a process may fork while we look.
const KILL_FOR: Duration = Duration::from_millis(600);
/// The main thread has until then to end the run in order.
const END_WITHIN: Duration = Duration::from_millis(900);

#[derive(Default)]
pub struct Stop {
    arrived: Mutex<VecDeque<(i32, bool)>>,
    /// The command's process, once it is started.
    command: AtomicU32,
    /// Exit code, once the second signal has come.
    exit_code: AtomicI32,
}

impl Stop {
    /// Start the thread. It takes the signals of this set, which are blocked in all threads.
    pub fn start(signals: signals::Set, guardian: u32) -> std::io::Result<Arc<Stop>> {
        let stop = Arc::new(Stop::default());
        let of_thread = stop.clone();
        let thread = std::thread::Builder::new().name("memspill-signals".into()).stack_size(256 << 10);
        thread.spawn(move || of_thread.watch(&signals, guardian))?;
        Ok(stop)
    }

    pub fn set_command(&self, pid: u32) {
        self.command.store(pid, Ordering::Relaxed);
    }

    /// For the main thread: the signals since it last asked, and whether a process sent them (and not the terminal).
    pub fn arrived(&self) -> Vec<(i32, bool)> {
        self.arrived.lock().expect("signals").drain(..).collect()
    }

    /// The exit code of a run that a second signal has ended.
    pub fn ended(&self) -> Option<i32> {
        Some(self.exit_code.load(Ordering::Relaxed)).filter(|code| *code != 0)
    }

    fn watch(&self, signals: &signals::Set, guardian: u32) -> ! {
        let mut asked: Option<Instant> = None;
        loop {
            let Some((signal, from_user)) = signals.wait(Duration::from_secs(3600)) else { continue };
            if matches!(signal, libc::SIGINT | libc::SIGTERM) {
                let now = Instant::now();
                let since = asked.map(|before| now - before);
                if is_second(since, from_user, || self.goes_on(signal), signals::at_a_prompt) {
                    self.end_now(signal, guardian);
                }
                if since.is_none_or(|since| since >= SAME) {
                    asked = Some(now);
                }
            }
            self.arrived.lock().expect("signals").push_back((signal, from_user));
            signals::send(std::process::id(), libc::SIGCHLD);
        }
    }

    /// Has the command taken the signals so far, this one included, and goes on?
    fn goes_on(&self, signal: i32) -> bool {
        let pid = self.command.load(Ordering::Relaxed);
        let does = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let wchan = std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
            takes(&status, signal) && wchan.trim() != "handle_userfault" && standstill::of(pid).is_none()
        };
        let begun = Instant::now();
        while !does() {
            if begun.elapsed() > TAKEN_WITHIN {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    fn end_now(&self, signal: i32, guardian: u32) -> ! {
        let begun = Instant::now();
        self.exit_code.store(128 + signal, Ordering::Relaxed);
        while signals::kill_tree(guardian) > 0 && begun.elapsed() < KILL_FOR {
            std::thread::sleep(Duration::from_millis(2));
        }
        signals::send(std::process::id(), libc::SIGCHLD);
        std::thread::sleep(END_WITHIN.saturating_sub(begun.elapsed()));
        signals::exit_at_once(128 + signal)
    }
}

/// Does this one end the tree? `since` is when there was one before.
fn is_second(
    since: Option<Duration>,
    from_user: bool,
    goes_on: impl Fn() -> bool,
    at_a_prompt: impl Fn() -> bool,
) -> bool {
    let Some(since) = since.filter(|since| *since >= SAME) else { return false };
    from_user || !goes_on() || (since < QUICKLY && !at_a_prompt())
}

/// Of a process with this status: has it a handler for the signal, and nothing that keeps it from being called?
fn takes(status: &str, signal: i32) -> bool {
    let has = |name| {
        let mask = status.lines().find_map(|line: &str| line.strip_prefix(name)).map(str::trim);
        mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_some_and(|mask| mask & 1 << (signal - 1) != 0)
    };
    has("SigCgt:") && !["SigBlk:", "SigIgn:", "SigPnd:", "ShdPnd:"].into_iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_the_tree() {
        let ends = |ms: Option<u64>, from_user, goes_on, at_a_prompt| {
            is_second(ms.map(Duration::from_millis), from_user, || goes_on, || at_a_prompt)
        };
        assert!(!ends(None, true, false, false), "the first one");
        assert!(!ends(Some(20), true, false, false), "timeout(1) sends it twice");
        assert!(ends(Some(200), true, true, true) && ends(Some(1 << 40), true, true, true), "a process sends it");
        assert!(ends(Some(60_000), false, false, true), "^C of a program that does not take it");
        assert!(ends(Some(500), false, true, false), "^C ^C");
        assert!(!ends(Some(500), false, true, true), "^C ^C at a prompt");
        assert!(!ends(Some(60_000), false, true, false), "^C now and then");
    }

    #[test]
    fn who_takes_a_signal() {
        let status = |caught: u64, blocked: u64, ignored: u64, pending: u64| {
            let pending = format!("SigPnd:\t{pending:016x}\nShdPnd:\t0\n");
            format!("{pending}SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n")
        };
        assert!(takes(&status(2, 0, 0, 0), libc::SIGINT));
        for no in [status(4, 0, 0, 0), status(2, 2, 0, 0), status(0, 0, 2, 0), status(2, 0, 0, 2), String::new()] {
            assert!(!takes(&no, libc::SIGINT), "{no}");
        }
    }
}
