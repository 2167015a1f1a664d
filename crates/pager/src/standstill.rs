//! Why a thread does not run, as /proc tells it: a signal has stopped it, a tracer holds it, its cgroup is frozen.
//!
//! Nothing else is known of it by this: a thread that stands still may go on at any moment, so nothing may depend on
//! that it still does.

use std::fmt;
use std::fs;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standstill {
    /// SIGSTOP, ^Z, or a read of a terminal in the background.
    Signal,
    /// By this process; 0 if that has ended, or is in another pid namespace.
    Tracer(u32),
    Frozen,
    /// It does not answer, and none of the above is seen: it gets no CPU time, or waits in the kernel.
    Unknown,
}

impl fmt::Display for Standstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standstill::Signal => f.write_str("is stopped by a signal"),
            Standstill::Tracer(0) => f.write_str("is stopped by a tracer"),
            Standstill::Tracer(pid) => write!(f, "is stopped by process {pid}, which traces it"),
            Standstill::Frozen => f.write_str("is frozen (cgroup)"),
            Standstill::Unknown => f.write_str("does not get to run"),
        }
    }
}

/// None: it runs, or could; or it is gone.
pub fn of(tid: u32) -> Option<Standstill> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    of_status(&status, || fs::read_to_string(format!("/proc/{tid}/wchan")).unwrap_or_default())
}

/// The same for the file's text; `wchan` is where in the kernel it waits.
fn of_status(status: &str, wchan: impl Fn() -> String) -> Option<Standstill> {
    let field = |name| status.lines().find_map(|line: &str| line.strip_prefix(name)).map(str::trim);
    let tracer = || field("TracerPid:").and_then(|pid| pid.parse().ok()).unwrap_or(0);
    match field("State:")?.chars().next()? {
        'T' if tracer() == 0 => Some(Standstill::Signal),
        'T' | 't' => Some(Standstill::Tracer(tracer())),
        // Tasks of a frozen cgroup are shown as if they slept. The first name is cgroup v2's, the second one v1's.
        'S' | 'D' if ["do_freezer_trap", "__refrigerator"].contains(&wchan().trim()) => Some(Standstill::Frozen),
        _ => None,
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

    #[test]
    fn a_stopped_process_is_seen_and_one_that_goes_on() {
        let mut child = std::process::Command::new("sleep").arg("20").spawn().expect("sleep");
        let pid = child.id();
        let signal = |signal| rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
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
