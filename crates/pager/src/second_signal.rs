//! Signals that users send to a run: the first goes to the command, the second one ends the run.
//!
//! ```text
//!   thread memspill-signals:  wait ─▶ for the main thread: passed on to the command (supervisor.rs)
//!                                └─▶ the second SIGINT or SIGTERM: kill the tree, wake the main thread, exit
//!                                    after SECOND_ENDS at the latest
//! ```
//!
//! Signals have a thread of their own, which takes no lock that is held for long and waits for no other
//! thread. So a second signal ends the run whatever the others wait for, during start-up, while the command
//! runs, or at the end. Processes that are stopped or frozen when the supervisor ends are left to the
//! guardian.
//!
//! *From a terminal* ^C goes to the whole foreground group, and the command decides what the first one does.
//! The second one ends the tree if it follows within SIGNALS_QUICK, or if the command has not handled the
//! first one: because it ignores or blocks the signal, stands still, or waits for a page. So a program that
//! handles ^C goes on when it gets one now and then, and a program with a line editor goes on at its prompt
//! however often ^C is pressed.
//!
//! *A run that is attached to a process* never ends it for a signal: each one asks for it to be let go, and
//! the main thread has them all.
//!
//! What it does not do: tell apart two signals of a kind that come at the same time. The kernel merges them,
//! and timeout(1) always sends two, one to its child and one to its group.

use crate::exit;
use crate::process::standstill;
use crate::signals;
use crate::times::{
    KILL_STEP, SECOND_ENDS, SECOND_KILLS, SIGNAL_TAKEN, SIGNAL_TAKEN_STEP, SIGNALS_QUICK, SIGNALS_SAME,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct SecondSignal {
    /// Signals that the main thread has not seen yet, each with whether a process sent it.
    arrived: Mutex<VecDeque<(i32, bool)>>,
    /// The process id of the command, once it is started.
    command: AtomicU32,
    /// The exit code of the run once the second signal has come; 0 before.
    exit_code: AtomicI32,
}

impl SecondSignal {
    /// Start the thread, which waits for the signals of this set. They are blocked in all threads.
    /// `ends_tree`: the second one does.
    pub fn start(
        signals: signals::SignalSet,
        guardian: u32,
        ends_tree: bool,
    ) -> std::io::Result<Arc<SecondSignal>> {
        let new = Arc::new(SecondSignal::default());
        let of_thread = new.clone();
        let thread = std::thread::Builder::new().name("memspill-signals".into()).stack_size(256 << 10);
        thread.spawn(move || of_thread.watch(&signals, guardian, ends_tree))?;
        Ok(new)
    }

    pub fn set_command(&self, pid: u32) {
        self.command.store(pid, Ordering::Relaxed);
    }

    /// For the main thread: the signals since it last asked, each with whether a process sent it and not the
    /// terminal.
    pub fn arrived(&self) -> Vec<(i32, bool)> {
        self.arrived.lock().expect("signals").drain(..).collect()
    }

    /// The exit code of a run that a second signal has ended. None: there was no second signal.
    pub fn ended(&self) -> Option<i32> {
        Some(self.exit_code.load(Ordering::Relaxed)).filter(|code| *code != 0)
    }

    fn watch(&self, signals: &signals::SignalSet, guardian: u32, ends_tree: bool) -> ! {
        let mut last: Option<Instant> = None;
        loop {
            let Some((signal, from_user)) = signals.wait(Duration::from_secs(3600)) else { continue };
            if ends_tree && matches!(signal, libc::SIGINT | libc::SIGTERM) {
                let now = Instant::now();
                let since = last.map(|before| now - before);
                if is_second(since, from_user, || self.command_goes_on(signal), signals::at_a_prompt) {
                    self.end_now(signal, guardian);
                }
                if since.is_none_or(|since| since >= SIGNALS_SAME) {
                    last = Some(now);
                }
            }
            self.arrived.lock().expect("signals").push_back((signal, from_user));
            signals::send(std::process::id(), libc::SIGCHLD);
        }
    }

    /// Has the command handled the signals so far, this one included, and does it run?
    fn command_goes_on(&self, signal: i32) -> bool {
        let pid = self.command.load(Ordering::Relaxed);
        let is_handled = || {
            let status = crate::proc::text(format!("/proc/{pid}/status")).unwrap_or_default();
            let wchan = std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
            handles(&status, signal) && wchan.trim() != "handle_userfault" && standstill::of(pid).is_none()
        };
        let begun = Instant::now();
        while !is_handled() {
            if begun.elapsed() > SIGNAL_TAKEN {
                return false;
            }
            std::thread::sleep(SIGNAL_TAKEN_STEP);
        }
        true
    }

    /// Kill the tree, let the main thread clean up for a moment, and exit whether it is ready or not.
    fn end_now(&self, signal: i32, guardian: u32) -> ! {
        let begun = Instant::now();
        self.exit_code.store(exit::by_signal(signal), Ordering::Relaxed);
        while signals::kill_tree(guardian) > 0 && begun.elapsed() < SECOND_KILLS {
            std::thread::sleep(KILL_STEP);
        }
        signals::send(std::process::id(), libc::SIGCHLD);
        std::thread::sleep(SECOND_ENDS.saturating_sub(begun.elapsed()));
        signals::exit_at_once(exit::by_signal(signal))
    }
}

/// Does this signal end the tree? `since` is the time since the one before, if there was one.
fn is_second(
    since: Option<Duration>,
    from_user: bool,
    command_goes_on: impl Fn() -> bool,
    at_a_prompt: impl Fn() -> bool,
) -> bool {
    let Some(since) = since.filter(|since| *since >= SIGNALS_SAME) else { return false };
    from_user || !command_goes_on() || (since < SIGNALS_QUICK && !at_a_prompt())
}

/// Does a process with this /proc/PID/status handle the signal: does it have a handler, and is the signal
/// neither blocked nor ignored nor still pending?
fn handles(status: &str, signal: i32) -> bool {
    let has = |name| {
        let mask = status.lines().find_map(|line: &str| line.strip_prefix(name)).map(str::trim);
        mask.and_then(|mask| u64::from_str_radix(mask, 16).ok())
            .is_some_and(|mask| mask & 1 << (signal - 1) != 0)
    };
    has("SigCgt:") && !["SigBlk:", "SigIgn:", "SigPnd:", "ShdPnd:"].into_iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_the_tree() {
        let ends = |ms: Option<u64>, from_user, command_goes_on, at_a_prompt| {
            is_second(ms.map(Duration::from_millis), from_user, || command_goes_on, || at_a_prompt)
        };
        assert!(!ends(None, true, false, false), "the first one");
        assert!(!ends(Some(20), true, false, false), "timeout(1) sends it twice");
        assert!(
            ends(Some(200), true, true, true) && ends(Some(1 << 40), true, true, true),
            "a process sends it"
        );
        assert!(ends(Some(60_000), false, false, true), "^C of a program that does not handle it");
        assert!(ends(Some(500), false, true, false), "^C ^C");
        assert!(!ends(Some(500), false, true, true), "^C ^C at a prompt");
        assert!(!ends(Some(60_000), false, true, false), "^C now and then");
    }

    #[test]
    fn a_process_with_a_handler_handles_the_signal() {
        let status = |caught: u64, blocked: u64, ignored: u64, pending: u64| {
            let pending = format!("SigPnd:\t{pending:016x}\nShdPnd:\t0\n");
            format!("{pending}SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n")
        };
        assert!(handles(&status(2, 0, 0, 0), libc::SIGINT));
        for no in
            [status(4, 0, 0, 0), status(2, 2, 0, 0), status(0, 0, 2, 0), status(2, 0, 0, 2), String::new()]
        {
            assert!(!handles(&no, libc::SIGINT), "{no}");
        }
    }
}
