//! Why a process that runs cannot be attached to, in one line with what to do.

use super::stopped::{Dispatch, Stood};
use crate::proc;
use memspill_common::protocol::is_agent;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};

/// More threads than blocks (`agent/thread/block.rs`), of which some are used for other things.
const THREADS_MAX: usize = 8000;

fn refused(kind: ErrorKind, why: impl Into<String>) -> io::Error {
    io::Error::new(kind, why.into())
}

/// By what /proc tells, before anybody is stopped.
pub(super) fn at_sight(pid: u32) -> io::Result<()> {
    if pid == std::process::id() {
        return Err(refused(ErrorKind::InvalidInput, "that is memspill itself"));
    }
    let status = proc::text(format!("/proc/{pid}/status"))
        .map_err(|_| refused(ErrorKind::NotFound, format!("there is no process {pid}")))?;
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default()
    };
    let group = field("Tgid:");
    if group != pid.to_string() {
        let why = format!("{pid} is a thread of process {group}: attach to that");
        return Err(refused(ErrorKind::InvalidInput, why));
    }
    if let Some(tracer) = tracer_in(&status) {
        return Err(refused(ErrorKind::ResourceBusy, tracer));
    }
    match field("State:").chars().next() {
        Some('Z' | 'X') if proc::threads(pid).is_none_or(|threads| threads <= 1) => {
            return Err(refused(ErrorKind::NotFound, "it has ended (a zombie)"));
        }
        Some('T') => {
            let why = format!("it is stopped: let it go on first (kill -CONT {pid})");
            return Err(refused(ErrorKind::ResourceBusy, why));
        }
        _ => {}
    }
    if field("Kthread:") == "1" || field("Kthread:").is_empty() && field("VmSize:").is_empty() {
        return Err(refused(ErrorKind::InvalidInput, "it is a thread of the kernel"));
    }
    let own = proc::seccomp_filters(std::process::id()).unwrap_or(0);
    let has_own_filters = field("Seccomp:") == "2" && proc::seccomp_filters(pid).is_none_or(|n| n > own);
    if field("Seccomp:") == "1" || has_own_filters {
        let why = "it has a seccomp filter, which may end it for the calls that memspill's agent makes";
        return Err(refused(ErrorKind::PermissionDenied, why));
    }
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid"));
    if let (Ok(theirs), Ok(ours)) = (namespace(&pid.to_string()), namespace("self"))
        && theirs != ours
    {
        let why = "it is in another pid namespace (a container): run memspill in there";
        return Err(refused(ErrorKind::PermissionDenied, why));
    }
    if is_32_bit(pid) {
        return Err(refused(ErrorKind::Unsupported, "it is a 32-bit program"));
    }
    let maps = proc::text(format!("/proc/{pid}/maps")).unwrap_or_default();
    if maps.lines().any(|line| line.splitn(6, ' ').nth(5).is_some_and(|file| is_agent(file.trim()))) {
        return Err(refused(ErrorKind::AlreadyExists, "it runs under memspill already"));
    }
    Ok(())
}

/// What its threads, which stand still, show.
pub(super) fn of_threads(pid: u32, threads: &[Stood]) -> io::Result<()> {
    const CODE_64: u64 = 0x33;
    if threads.len() > THREADS_MAX {
        return Err(refused(ErrorKind::Unsupported, format!("it has more than {THREADS_MAX} threads")));
    }
    if threads.iter().any(|stood| stood.regs.cs != CODE_64) {
        return Err(refused(ErrorKind::Unsupported, "it runs 32-bit code"));
    }
    if threads.iter().any(|stood| Dispatch::of(stood.tid).is_some_and(|dispatch| dispatch.is_on())) {
        let why = "it traps its own system calls (Syscall User Dispatch), as memspill would";
        return Err(refused(ErrorKind::Unsupported, why));
    }
    if !has_fsgsbase(pid) && threads.iter().any(|stood| stood.regs.gs_base != 0) {
        let why = "it uses %gs, which memspill needs where the kernel has no fsgsbase";
        return Err(refused(ErrorKind::Unsupported, why));
    }
    Ok(())
}

/// AT_HWCAP2.
fn has_fsgsbase(pid: u32) -> bool {
    const FSGSBASE: u64 = 2;
    let vector = fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    let words: Vec<u64> = vector.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    words.as_chunks::<2>().0.iter().any(|[name, value]| *name == libc::AT_HWCAP2 && value & FSGSBASE != 0)
}

fn is_32_bit(pid: u32) -> bool {
    const CLASS_AT: usize = 4;
    const CLASS_32: u8 = 1;
    let mut begins = [0; CLASS_AT + 1];
    let read = File::open(format!("/proc/{pid}/exe")).and_then(|mut file| file.read_exact(&mut begins));
    read.is_ok() && begins[CLASS_AT] == CLASS_32
}

fn tracer_in(status: &str) -> Option<String> {
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim();
    if tracer == "0" || tracer == std::process::id().to_string() {
        return None;
    }
    let name = proc::text(format!("/proc/{tracer}/comm")).unwrap_or_default();
    Some(format!("it is traced already, by {} (process {tracer})", name.trim()))
}

/// Why ptrace(2) has refused.
pub(super) fn explained(pid: u32, error: io::Error) -> io::Error {
    if !matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
        return error;
    }
    let status = proc::text(format!("/proc/{pid}/status")).unwrap_or_default();
    if let Some(tracer) = tracer_in(&status) {
        return refused(ErrorKind::ResourceBusy, tracer);
    }
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let uid = uid.and_then(|ids| ids.split_whitespace().next());
    let ours = rustix::process::geteuid().as_raw();
    let scope = proc::text("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let why = match (uid.is_some_and(|uid| uid != ours.to_string()), scope.trim()) {
        (_, "3") => "kernel.yama.ptrace_scope is 3: nobody may attach to a process before a reboot".into(),
        (true, _) => "it is another user's: use sudo".into(),
        (false, "1" | "2") if ours != 0 => format!(
            "kernel.yama.ptrace_scope is {}: use sudo, or allow it (sysctl kernel.yama.ptrace_scope=0)",
            scope.trim()
        ),
        (false, _) if ours != 0 => {
            "it may not be looked at, for it has more rights than you: use sudo".into()
        }
        _ => format!("ptrace(2) is not allowed here (a sandbox?): {error}"),
    };
    refused(ErrorKind::PermissionDenied, why)
}

/// The agent's answer: an errno less than 0.
pub(super) fn not_joined(result: i64) -> io::Error {
    match -result as i32 {
        libc::ENOSYS => refused(
            ErrorKind::Unsupported,
            "its system calls cannot be trapped: there is no Syscall User Dispatch here, \
             kernel.syscall_user_dispatch is 0, or a sandbox forbids it",
        ),
        libc::EPERM => refused(
            ErrorKind::PermissionDenied,
            "its agent does not reach memspill: it is in another network namespace, or in a sandbox",
        ),
        errno => {
            let why = format!("its agent could not join: {}", io::Error::from_raw_os_error(errno));
            refused(ErrorKind::Other, why)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals;
    use std::process::Command;
    use std::time::Duration;

    fn why(pid: u32) -> String {
        at_sight(pid).expect_err("it is refused").to_string()
    }

    fn wait_for_state(pid: u32, state: &str) {
        let is_it = || {
            let status = proc::text(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with(&format!("State:\t{state}")))
        };
        while !is_it() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_cannot_be_attached_to_is_refused_at_sight() {
        assert!(why(std::process::id()).contains("memspill itself"));
        assert!(why(i32::MAX as u32).contains("no process"));
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        signals::send(child.id(), libc::SIGSTOP);
        wait_for_state(child.id(), "T");
        assert!(why(child.id()).contains("kill -CONT"));
        signals::send(child.id(), libc::SIGKILL);
        wait_for_state(child.id(), "Z");
        assert!(why(child.id()).contains("zombie"));
        child.wait().expect("our child");
    }

    #[test]
    fn a_thread_is_no_process() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_pid() as u32).expect("somebody asks");
            let _ = ended.recv();
        });
        let said = why(told.recv().expect("it tells"));
        drop(end);
        thread.join().expect("it ends");
        assert!(said.contains(&format!("thread of process {}", std::process::id())), "{said}");
    }

    #[test]
    fn a_tracer_is_named() {
        assert_eq!(tracer_in("TracerPid:\t0\n"), None);
        assert_eq!(tracer_in(&format!("TracerPid:\t{}\n", std::process::id())), None);
        assert!(tracer_in("TracerPid:\t1\n").is_some_and(|said| said.contains("process 1")));
    }
}
