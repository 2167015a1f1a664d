//! A process that runs already, and is to be taken into a run: is it there, and may that be?
//!
//! ```text
//!   Running::find ─ not one of ours, traced by nobody, in no run ─▶ plant/ puts the agent in
//! ```
//!
//! What is looked at here gives the better words; whether it may be traced is the kernel's to say
//! ([`forbidden`] explains that).

use crate::proc;
use crate::process::peer::Pidfd;
use crate::process::standstill;
use crate::signals;
use memspill_ctl::runs;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

/// As a run's evictors are called.
const EVICTOR: &str = "memspill";

/// A process that is to be taken in.
pub struct Running {
    pub pid: u32,
    pub(crate) uid: u32,
    pub(crate) pidfd: Pidfd,
    pub(crate) ready: Ready,
    /// Only memory in this range is managed.
    pub(crate) arena: Option<(u64, u64)>,
}

impl Running {
    /// `is_its_own`: it has started us for itself. The error is one line, with what mends it.
    pub fn find(pid: u32, is_its_own: bool, ready: &Ready) -> Result<Running, String> {
        let none = || format!("there is no process {pid}");
        let status = proc::text(format!("/proc/{pid}/status")).map_err(|_| none())?;
        let field = |name: &str| field(&status, name);
        let process: u32 = field("Tgid:").and_then(|id| id.parse().ok()).ok_or_else(none)?;
        if process != pid {
            return Err(format!("{pid} is a thread of process {process}: attach to that"));
        }
        let pidfd = Pidfd::of_process(pid).map_err(|_| none())?;
        let name = standstill::name(pid);
        if field("State:").is_some_and(|state| state.starts_with(['Z', 'X'])) {
            return Err(format!("{name} has ended"));
        }
        if field("VmSize:").is_none() {
            return Err(format!("{name} is a thread of the kernel: it has no memory of its own"));
        }
        let is_run = || runs().is_ok_and(|runs| runs.iter().any(|run| run.pid == pid));
        if pid == std::process::id() || is_run() {
            return Err(format!("{name} is memspill itself: attach to a program"));
        }
        if !is_its_own && is_ancestor(pid) {
            return Err(format!("{name} has started this memspill: attach to it from another terminal"));
        }
        if field("NSpid:").is_some_and(|ids| ids.split_whitespace().count() > 1) {
            return Err(format!(
                "{name} is in a container (a pid namespace): run memspill attach inside of it"
            ));
        }
        if let Some(tracer) = field("TracerPid:").and_then(|id| id.parse().ok()).filter(|id| *id != 0) {
            let tracer = standstill::name(tracer);
            return Err(format!("{name} is traced by {tracer}: let that detach first"));
        }
        let effective = field("Uid:").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok());
        let uid = effective.ok_or_else(none)?;
        let maps = fs::read(format!("/proc/{pid}/maps")).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => forbidden(pid, uid),
            _ => format!("the memory of {name} cannot be looked at: {e}"),
        })?;
        if let Some(inode) = proc::agent_in(&String::from_utf8_lossy(&maps)).filter(|_| has_evictor(pid)) {
            let run = run_with(inode).map_or(String::new(), |run| format!(" --pid {run}"));
            return Err(format!(
                "{name} is in a run of memspill already: memspill ctl{run} limit SIZE changes its budget"
            ));
        }
        match pidfd.has_ended() {
            true => Err(format!("{name} has ended")),
            false => Ok(Running { pid, uid, pidfd, ready: ready.clone(), arena: None }),
        }
    }

    /// Only what lies in this range is counted and managed.
    pub fn within(self, arena: Option<(u64, u64)>) -> Running {
        Running { arena, ..self }
    }

    /// `process 77 (python3)`.
    pub fn name(&self) -> String {
        standstill::name(self.pid)
    }

    /// What taking it in has failed with, for people.
    pub(crate) fn explained(&self, error: &io::Error) -> String {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => forbidden(self.pid, self.uid),
            Some(libc::ESRCH) => format!("{} has ended", self.name()),
            _ => format!("cannot attach to {}: {error}", self.name()),
        }
    }
}

/// Why we may not trace it, and what mends that.
fn forbidden(pid: u32, uid: u32) -> String {
    let scope = proc::text("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    why_forbidden(&standstill::name(pid), uid, rustix::process::geteuid().as_raw(), scope.trim())
}

/// `scope`: kernel.yama.ptrace_scope, which this kernel may not have.
fn why_forbidden(name: &str, uid: u32, mine: u32, scope: &str) -> String {
    const ROOT: u32 = 0;
    match scope {
        _ if mine != ROOT && mine != uid => {
            format!("{name} is another user's ({uid}): be that user, or root (sudo memspill attach ...)")
        }
        "3" => format!(
            "{name} may not be traced by anybody, for kernel.yama.ptrace_scope is 3 until the machine starts \
             anew: start it with memspill run"
        ),
        "2" if mine != ROOT => format!(
            "{name} may be traced by root alone, for kernel.yama.ptrace_scope is 2: sudo memspill attach ..."
        ),
        "1" if mine != ROOT => format!(
            "{name} may not be traced by you, for kernel.yama.ptrace_scope is 1: sudo memspill attach ..., \
             or sysctl kernel.yama.ptrace_scope=0"
        ),
        _ => format!(
            "{name} may not be traced by you: it has more rights than you have (set-user-ID, capabilities), \
             or a sandbox forbids ptrace(2); be root, with CAP_SYS_PTRACE"
        ),
    }
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn is_ancestor(pid: u32) -> bool {
    let above = |pid: &u32| proc::parent_of(*pid).filter(|parent| *parent != 0);
    std::iter::successors(Some(std::process::id()), above).any(|ancestor| ancestor == pid)
}

fn has_evictor(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
    threads.map(name).any(|name| name.trim() == EVICTOR)
}

/// The run that has this file open.
fn run_with(inode: u64) -> Option<u32> {
    let has = |run: u32| {
        let files = fs::read_dir(format!("/proc/{run}/fd")).into_iter().flatten().flatten();
        let mut inodes = files.filter_map(|file| fs::metadata(file.path()).ok()).map(|file| file.ino());
        inodes.any(|found| found == inode)
    };
    runs().ok()?.into_iter().map(|run| run.pid).find(|run| has(*run))
}

/// Who has started us, if he wants to know what has become of it: told once.
#[derive(Clone, Default)]
pub struct Ready(Arc<Mutex<Option<File>>>);

impl Ready {
    /// The descriptor is ours from now on.
    pub fn new(fd: Option<i32>) -> Ready {
        Ready(Arc::new(Mutex::new(fd.and_then(signals::inherited_file))))
    }

    /// Does anybody want to know, and has not been told?
    pub fn is_wanted(&self) -> bool {
        self.0.lock().expect("ready").is_some()
    }

    pub fn tell(&self, line: &str) {
        if let Some(mut file) = self.0.lock().expect("ready").take() {
            // If nobody reads it, nobody wants to know.
            let _ = writeln!(file, "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(pid: u32) -> String {
        Running::find(pid, false, &Ready::default()).err().unwrap_or_default()
    }

    #[test]
    fn what_cannot_be_attached_to() {
        let parent = proc::parent_of(std::process::id()).unwrap();
        for (pid, why) in [
            (std::process::id(), "memspill itself"),
            (parent, "has started this memspill"),
            (1 << 30, "there is no process"),
        ] {
            assert!(refused(pid).contains(why), "{}", refused(pid));
        }
        // This one's own. (Those of other tests may end at any moment.)
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_ne!(thread, std::process::id(), "tests run in threads of their own");
        assert!(refused(thread).contains("is a thread of process"), "{}", refused(thread));
    }

    #[test]
    fn who_may_not_trace_is_told_what_mends_it() {
        let (root, me, other) = (0, 1000, 1001);
        let why = |uid, mine, scope| why_forbidden("process 77 (sleep)", uid, mine, scope);
        for (scope, mine, fix) in [
            ("", me, "CAP_SYS_PTRACE"),
            ("0", me, "CAP_SYS_PTRACE"),
            ("1", me, "sysctl kernel.yama.ptrace_scope=0"),
            ("2", me, "is 2: sudo memspill attach"),
            ("3", me, "start it with memspill run"),
            ("0", root, "CAP_SYS_PTRACE"),
            ("1", root, "CAP_SYS_PTRACE"),
            ("2", root, "CAP_SYS_PTRACE"),
            ("3", root, "start it with memspill run"),
        ] {
            let said = why(me, mine, scope);
            assert!(said.starts_with("process 77 (sleep) may") && said.contains(fix), "{scope}: {said}");
        }
        for scope in ["", "0", "1", "2", "3"] {
            assert!(why(other, me, scope).contains("another user's (1001)"), "{scope}");
        }
    }

    #[test]
    fn a_child_can_be() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(refused(child.id()), "");
        child.kill().unwrap();
        while !proc::has_ended(child.id()) {}
        assert!(refused(child.id()).ends_with("has ended"));
        child.wait().unwrap();
    }
}
