//! The state of a process's threads, as /proc tells: which system calls they wait in, and whether all have
//! come out of the one that they may have been in.
//!
//! Only of a thread that does not run does the kernel say in which call it is. A thread that runs, or is
//! about to, has left a call if it has had CPU time since ([`Busy`]).

use crate::times::CHANGE_STEP;
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// More CPU time than a clone takes once the address space is copied, or an madvise whose event was read.
const CALL_CPU_NS: u64 = 10_000_000;

/// The kernel's word for a thread that runs, or is about to, instead of its call.
const RUNNING: &str = "running\n";

/// A system call that a thread waits in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitingCall {
    pub number: i64,
    pub args: [u64; 3],
}

/// A thread that waits.
pub struct Waiting {
    /// None: outside of calls, or for a program in the kernel alone (io_uring), which does not tell its call.
    pub call: Option<WaitingCall>,
    /// Until its event is read from a userfaultfd. A reader of all of them knows that it stays there.
    pub has_event: bool,
}

/// The threads of a process that wait.
pub fn waiting(pid: u32) -> Vec<Waiting> {
    let waiting = |folder: String| {
        // This first: a thread that does not wait with an event may be in another call a moment later.
        let has_event = waits_with_event(&folder);
        let text = fs::read_to_string(format!("{folder}/syscall")).ok()?;
        (text != RUNNING).then(|| Waiting { call: waiting_call_in(&text), has_event })
    };
    folders(pid).into_iter().flatten().filter_map(waiting).collect()
}

/// The folders of a process's threads.
fn folders(pid: u32) -> io::Result<impl Iterator<Item = String>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
    Ok(tasks.map(|task| task.path().to_string_lossy().into_owned()))
}

/// Does the thread of this folder wait until its event is read? That is the function of the kernel that it
/// sleeps in.
fn waits_with_event(folder: &str) -> bool {
    fs::read_to_string(format!("{folder}/wchan")).is_ok_and(|name| name.starts_with("userfaultfd_event_wait"))
}

/// Wait until each thread that runs was seen to wait, or has had more CPU time than it takes to fall asleep;
/// for so long at most.
pub fn wait_for_running(pid: u32, limit: Duration) {
    let begun = Instant::now();
    let runs =
        |folder: &str| fs::read_to_string(format!("{folder}/syscall")).is_ok_and(|text| text == RUNNING);
    let mut running: Vec<(String, u64)> = folders(pid)
        .into_iter()
        .flatten()
        .filter(|folder| runs(folder))
        .filter_map(|folder| state_and_cpu_ns(&folder).map(|(_, ns)| (folder, ns)))
        .collect();
    while !running.is_empty() && begun.elapsed() <= limit {
        std::thread::sleep(CHANGE_STEP);
        running.retain(|(folder, before_ns)| {
            runs(folder) && state_and_cpu_ns(folder).is_some_and(|(_, ns)| ns < before_ns + CALL_CPU_NS)
        });
    }
}

/// The call that a file tells: `number 0xARGUMENT... 0xSP 0xPC`, outside of calls `-1 0xSP 0xPC`, or
/// `running`. Threads that are in the kernel alone have neither SP nor PC, and what they tell is nonsense.
fn waiting_call_in(text: &str) -> Option<WaitingCall> {
    let mut fields = text.split_ascii_whitespace();
    let number: i64 = fields.next()?.parse().ok().filter(|number| *number >= 0)?;
    if text.ends_with(" 0x0 0x0\n") {
        return None;
    }
    let mut argument = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok();
    Some(WaitingCall { number, args: [argument()?, argument()?, argument()?] })
}

/// The CPU time that the calling thread has had.
pub fn cpu_of_caller() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Threads that may still be inside a system call in which they were when this was made.
pub struct Busy {
    /// Their folders, and the CPU time that they had had.
    threads: Vec<(String, u64)>,
}

impl Busy {
    /// All that run or wait for something that is sure to come. (In an interruptible sleep nobody copies an
    /// address space, or removes pages.)
    pub fn of(pid: u32) -> io::Result<Busy> {
        let busy =
            |folder: String| state_and_cpu_ns(&folder).filter(|(busy, _)| *busy).map(|(_, ns)| (folder, ns));
        Ok(Busy { threads: folders(pid)?.filter_map(busy).collect() })
    }

    /// A thread that waits with an event has come out of a call whose event was read, or past what that was
    /// about.
    pub fn leave_out_who_has_an_event(&mut self) {
        self.threads.retain(|(folder, _)| !waits_with_event(folder));
    }

    /// Have all of them come out of it?
    pub fn is_over(&mut self) -> bool {
        self.threads.retain(|(folder, before_ns)| {
            state_and_cpu_ns(folder).is_some_and(|(busy, ns)| busy && ns < before_ns + CALL_CPU_NS)
        });
        self.threads.is_empty()
    }
}

/// Runs, or waits uninterruptibly; and how much CPU time it has had. None: it has ended.
fn state_and_cpu_ns(folder: &str) -> Option<(bool, u64)> {
    let stat = crate::proc::text(format!("{folder}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let busy = matches!(fields.next()?, "R" | "D");
    let schedstat = fs::read_to_string(format!("{folder}/schedstat")).unwrap_or_default();
    if let Some(ns) = schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).filter(|ns| *ns > 0) {
        return Some((busy, ns));
    }
    // Where the kernel keeps no better account: ticks of 10 ms, of which the first may be a short one.
    let ticks = fields.nth(10)?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some((busy, ticks * CALL_CPU_NS / 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_call_that_is_waited_in_is_read() {
        let text = "28 0x7f0000001000 0x2000 0x9 0x0 0x0 0x0 0x7ffc0 0x7f11\n";
        let call = WaitingCall { number: 28, args: [0x7f0000001000, 0x2000, 9] };
        assert_eq!(waiting_call_in(text), Some(call));
        assert_eq!((waiting_call_in("running\n"), waiting_call_in("-1 0x7ffc0 0x7f11\n")), (None, None));
        assert_eq!(waiting_call_in(&text.replace("0x7ffc0 0x7f11", "0x0 0x0")), None);
    }

    #[test]
    fn who_sleeps_is_in_no_call_and_who_runs_leaves_it_in_time() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ((send, receive), stop) = (std::sync::mpsc::channel(), &stop);
            scope.spawn(move || {
                send.send(fs::read_link("/proc/thread-self").expect("a link")).unwrap();
                while !stop.load(Ordering::Relaxed) {}
            });
            let folder = format!("/proc/{}", receive.recv().unwrap().display());
            let mut busy = Busy::of(std::process::id()).expect("our own threads");
            busy.threads.retain(|(thread, _)| *thread == folder);
            let was_busy = !busy.threads.is_empty();
            while !busy.is_over() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            stop.store(true, Ordering::Relaxed);
            assert!(was_busy, "it runs");
        });
    }
}
