//! Why a process that runs and may be traced cannot be attached to, in one line with what to do. The rest is
//! known before (`attach.rs`).

use super::stopped::{Dispatch, Stood};
use crate::proc;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};

/// More threads than blocks (`agent/thread/block.rs`), of which some are used for other things.
const THREADS_MAX: usize = 8000;

fn refused(kind: ErrorKind, why: impl Into<String>) -> io::Error {
    io::Error::new(kind, why.into())
}

/// By what /proc tells, before anybody is stopped.
pub(super) fn at_sight(pid: u32) -> io::Result<()> {
    let status = proc::text(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default()
    };
    if field("State:").starts_with('T') {
        let why = format!("it is stopped: let it go on first (kill -CONT {pid})");
        return Err(refused(ErrorKind::ResourceBusy, why));
    }
    let own = proc::seccomp_filters(std::process::id()).unwrap_or(0);
    let has_own_filters = field("Seccomp:") == "2" && proc::seccomp_filters(pid).is_none_or(|n| n > own);
    if field("Seccomp:") == "1" || has_own_filters {
        let why = "it has a seccomp filter, which may end it for the calls that memspill's agent makes";
        return Err(refused(ErrorKind::PermissionDenied, why));
    }
    if is_32_bit(pid) {
        return Err(refused(ErrorKind::Unsupported, "it is a 32-bit program"));
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

    #[test]
    fn a_process_that_is_stopped_is_to_go_on_first() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        assert!(at_sight(child.id()).is_ok());
        signals::send(child.id(), libc::SIGSTOP);
        while !proc::is_stopped(child.id()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let said = at_sight(child.id()).expect_err("it is refused").to_string();
        signals::send(child.id(), libc::SIGKILL);
        child.wait().expect("our child");
        assert!(said.contains("kill -CONT"), "{said}");
    }
}
