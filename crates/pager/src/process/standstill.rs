//! Why a thread does not run, as /proc tells it: a signal has stopped it, a tracer holds it, its cgroup is
//! frozen.
//!
//! Nothing else is known of it by this: a thread that stands still may go on at any moment, so nothing may
//! depend on that it still does.

use crate::proc;
use std::fmt;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standstill {
    /// SIGSTOP, ^Z, or a read of a terminal in the background.
    Signal,
    /// By this process; 0 if that has ended, or is in another pid namespace.
    Tracer(u32),
    Frozen,
    /// The child of a fork, whose agent is not there yet.
    NotJoined,
    /// Its memory is being written to a core file, by one of its threads, for which the others wait.
    Core,
    /// It could run, and has no CPU to run on.
    NoCpu,
    /// It does not answer, and none of the above is seen: it waits in the kernel.
    Unknown,
}

impl Standstill {
    /// It goes on by itself, or is thought to.
    pub fn is_for_a_while(self) -> bool {
        matches!(self, Standstill::NoCpu | Standstill::Unknown)
    }
}

impl fmt::Display for Standstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standstill::Signal => f.write_str("is stopped by a signal"),
            Standstill::Tracer(0) => f.write_str("is stopped by a tracer"),
            Standstill::Tracer(pid) => write!(f, "is stopped by process {pid}, which traces it"),
            Standstill::Frozen => f.write_str("is frozen (cgroup)"),
            Standstill::NotJoined => f.write_str("has not gone on since it was forked"),
            Standstill::Core => f.write_str("writes its core"),
            Standstill::NoCpu => f.write_str("has no CPU to run on"),
            Standstill::Unknown => f.write_str("waits in the kernel"),
        }
    }
}

/// None: it runs, or could; or it is gone.
pub fn of(tid: u32) -> Option<Standstill> {
    let status = proc::text(format!("/proc/{tid}/status")).ok()?;
    of_status(&status, || fs::read_to_string(format!("/proc/{tid}/wchan")).unwrap_or_default())
}

/// Why one does not answer that should; if it has ended meanwhile, that is soon seen.
pub fn of_silent(tid: u32) -> Standstill {
    let status = proc::text(format!("/proc/{tid}/status")).unwrap_or_default();
    let wchan = || fs::read_to_string(format!("/proc/{tid}/wchan")).unwrap_or_default();
    of_status(&status, wchan).unwrap_or_else(|| of_silent_status(&status))
}

fn of_silent_status(status: &str) -> Standstill {
    let has = |name: &str, value| {
        status.lines().filter_map(|line| line.strip_prefix(name)).any(|rest| rest.trim().starts_with(value))
    };
    match () {
        () if has("State:", 'R') => Standstill::NoCpu,
        () if has("CoreDumping:", '1') => Standstill::Core,
        () => Standstill::Unknown,
    }
}

/// The same for any thread of a process: one of them may be in the middle of something.
pub fn of_any_thread(pid: u32) -> Option<Standstill> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let tids = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
    tids.filter_map(of).next()
}

/// Stopped by a signal or a tracer? Less to be read than for `of`, for whoever asks before each batch.
pub fn is_stopped(tid: u32) -> bool {
    let status = proc::text(format!("/proc/{tid}/status"));
    status.is_ok_and(|status| of_status(&status, String::new).is_some())
}

/// The same for the file's text; `wchan` is where in the kernel it waits.
fn of_status(status: &str, wchan: impl Fn() -> String) -> Option<Standstill> {
    let field = |name| status.lines().find_map(|line: &str| line.strip_prefix(name)).map(str::trim);
    let tracer = || field("TracerPid:").and_then(|pid| pid.parse().ok()).unwrap_or(0);
    match field("State:")?.chars().next()? {
        'T' if tracer() == 0 => Some(Standstill::Signal),
        'T' | 't' => Some(Standstill::Tracer(tracer())),
        // Tasks of a frozen cgroup are shown as if they slept. The first name is cgroup v2's, the second one
        // v1's.
        'S' | 'D' if ["do_freezer_trap", "__refrigerator"].contains(&wchan().trim()) => {
            Some(Standstill::Frozen)
        }
        _ => None,
    }
}

/// A process of which no page can be had, what is known of it, and what follows from it. Others note it; it
/// ends when the process goes on.
#[derive(Default)]
pub struct Aside {
    why: Mutex<Option<(Standstill, Instant)>>,
    /// People were told of it.
    told: AtomicBool,
    serves_beyond: AtomicBool,
}

impl Aside {
    /// It stands still, since now or before.
    pub fn note(&self, why: Standstill) {
        let mut noted = self.why.lock().expect("standstill");
        let since = noted.map_or_else(Instant::now, |(_, since)| since);
        *noted = Some((why, since));
    }

    pub fn why(&self) -> Option<Standstill> {
        self.why.lock().expect("standstill").map(|(why, _)| why)
    }

    pub fn lasts_for(&self) -> Duration {
        self.why.lock().expect("standstill").map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }

    pub fn note_going_on(&self) {
        *self.why.lock().expect("standstill") = None;
        self.serves_beyond.store(false, Ordering::Relaxed);
        self.told.store(false, Ordering::Relaxed);
    }

    /// True for the first one who asks since it stands still.
    pub fn is_to_be_told(&self) -> bool {
        !self.told.swap(true, Ordering::Relaxed)
    }

    /// Its process faults while it stands still (a tracer reads its memory), and nobody else can give room:
    /// it gets what it wants beyond the budget, until it goes on.
    pub fn serve_beyond(&self) {
        self.serves_beyond.store(true, Ordering::Relaxed);
    }

    pub fn serves_beyond(&self) -> bool {
        self.serves_beyond.load(Ordering::Relaxed)
    }
}

/// The process whose thread this is, for people: its number and name.
pub fn name(pid: u32) -> String {
    // A name may hold any bytes.
    match fs::read(format!("/proc/{pid}/comm")) {
        Ok(comm) => format!("process {pid} ({})", String::from_utf8_lossy(&comm).trim_end()),
        Err(_) => format!("process {pid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_status_tells() {
        let of = |state: &str, tracer: u32, wchan: &str| {
            of_status(&format!("Name:\ta\nState:\t{state}\nTracerPid:\t{tracer}\n"), || wchan.into())
        };
        assert_eq!(of("T (stopped)", 0, ""), Some(Standstill::Signal));
        assert_eq!(of("t (tracing stop)", 7, ""), Some(Standstill::Tracer(7)));
        assert_eq!(of("T (stopped)", 7, ""), Some(Standstill::Tracer(7)));
        assert_eq!(of("S (sleeping)", 0, "do_freezer_trap"), Some(Standstill::Frozen));
        assert_eq!(of("D (disk sleep)", 0, "__refrigerator\n"), Some(Standstill::Frozen));
        assert_eq!(of("S (sleeping)", 0, "__skb_wait_for_more_packets"), None);
        assert_eq!(of("S (sleeping)", 7, "0"), None, "traced, but not stopped");
        assert_eq!(of("R (running)", 0, ""), None);
        assert_eq!(of_status("", String::new), None);
    }

    /// A process without a CPU goes on by itself, and so gets no more than others beyond the budget.
    #[test]
    fn why_one_does_not_answer() {
        let of = |state: &str, core: u32| {
            of_silent_status(&format!("Name:\tR\nState:\t{state}\nCoreDumping:\t{core}\n"))
        };
        assert_eq!(of("R (running)", 0), Standstill::NoCpu);
        assert_eq!(of("S (sleeping)", 0), Standstill::Unknown);
        assert_eq!(of("D (disk sleep)", 1), Standstill::Core);
        assert!(Standstill::NoCpu.is_for_a_while() && Standstill::Unknown.is_for_a_while());
        assert!(!Standstill::Core.is_for_a_while() && !Standstill::Tracer(7).is_for_a_while());
    }

    #[test]
    fn a_stopped_process_is_seen_and_one_that_goes_on() {
        let mut child = std::process::Command::new("sleep").arg("20").spawn().expect("sleep");
        let pid = child.id();
        let signal =
            |signal| rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        let pause = || std::thread::sleep(std::time::Duration::from_millis(1));
        let becomes = |state| (0..2000).inspect(|_| pause()).any(|_| of(pid) == state);
        assert_eq!(of(pid), None);
        signal(rustix::process::Signal::STOP);
        assert!(becomes(Some(Standstill::Signal)));
        signal(rustix::process::Signal::CONT);
        assert!(becomes(None));
        let _ = child.kill();
        let _ = child.wait();
    }
}
