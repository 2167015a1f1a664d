//! Memory that may not be written is made writable for a moment, in which nobody sees it, so that its pages
//! can leave: the kernel moves no others.
//!
//! ```text
//!   all threads but the evictor stand still (stopped.rs)
//!   one of them: mprotect ─ the evictor moves pages out ─ one of them: mprotect, as it was ─ all go on
//! ```
//!
//! By another thread of the process alone this could not be done: the program may change the protection
//! itself meanwhile, or unmap the memory and map something else there, and no call of the kernel's takes
//! notice of that.
//!
//! Memory that may be executed keeps that right meanwhile: a program that may make nothing executable any
//! more could not get it back. If memspill ends meanwhile the kernel kills the process (PTRACE_O_EXITKILL).
//!
//! *A process is left alone*, and its pages stay, where it would notice: another one traces it; it has a
//! seccomp filter of its own; one of its threads does not stand in time, or waits in a call that would begin
//! again with all of its time, end with EINTR (signal(7)), or say that it has done a part (a write to a
//! pipe). Not seen: another process that has the same memory (CLONE_VM without a thread) and changes it in
//! this moment.

use super::halfway;
use super::running::Hands;
use super::stopped::Stopped;
use super::tracee::CODE_64;
use crate::process::ranges::{Range, Ranges};
use crate::times::OPEN_STANDS;
use crate::{proc, signals};
use memspill_uffd::procmap;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

const SYS_IO_PGETEVENTS: libc::c_long = 333;
/// With more it would take too long.
const THREADS_MAX: usize = 128;

/// A part of one mapping.
struct Closed {
    range: Range,
    protection: i32,
}

/// Makes the private memory in `wanted` that may not be written writable, until `while_open` has returned,
/// which is told its ranges. An error: it was not called, or the process was killed.
pub fn open_for_a_moment(
    pid: u32,
    evictor: u32,
    wanted: &[Range],
    while_open: impl FnOnce(Vec<Range>),
) -> io::Result<()> {
    if !is_to_be_disturbed(pid) {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    halfway::begin();
    let mut stopped = Stopped::within(pid as i32, evictor as i32, OPEN_STANDS)?;
    let maps = File::open(format!("/proc/{evictor}/maps"))?;
    let closed = closed_within(&maps, wanted)?;
    if closed.is_empty() || stopped.threads.iter().any(|stood| stood.regs.cs != CODE_64) {
        return Ok(());
    }
    let mut hands = Hands::of(&mut stopped)?;
    let mut protect = |closed: &Closed, protection: i32| {
        let (start, end) = closed.range;
        hands.call(libc::SYS_mprotect, [start, end - start, protection as u64, 0, 0, 0])
    };
    // One that cannot be opened (too many mappings) is not written, and given back all the same.
    for one in &closed {
        let _ = protect(one, one.protection | libc::PROT_READ | libc::PROT_WRITE);
    }
    while_open(closed.iter().map(|closed| closed.range).collect());
    for one in &closed {
        protect(one, one.protection).map_err(|e| {
            signals::send(pid, libc::SIGKILL);
            io::Error::other(format!("it was killed: its memory did not get its protection back: {e}"))
        })?;
    }
    Ok(())
}

fn closed_within(maps: &File, wanted: &[Range]) -> io::Result<Vec<Closed>> {
    let mut closed = vec![];
    for (start, end) in wanted.iter().copied().collect::<Ranges>().iter() {
        let mut at = start;
        while let Some(mapping) = procmap::first_from(maps, at)?.filter(|mapping| mapping.start < end) {
            if mapping.anonymous && !mapping.writable {
                let read = if mapping.readable { libc::PROT_READ } else { libc::PROT_NONE };
                let run = if mapping.executable { libc::PROT_EXEC } else { libc::PROT_NONE };
                let range = (mapping.start.max(start), mapping.end.min(end));
                closed.push(Closed { range, protection: read | run });
            }
            at = mapping.end;
        }
    }
    Ok(closed)
}

/// May all of its threads stand still for a moment?
fn is_to_be_disturbed(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let tasks: Vec<PathBuf> = tasks.flatten().map(|task| task.path()).collect();
    let own_filters = proc::seccomp_filters(std::process::id()).unwrap_or(0);
    let is_free = |task: &PathBuf| {
        let call = proc::text(task.join("syscall")).unwrap_or_default();
        let status = proc::text(task.join("status")).unwrap_or_default();
        let is_traced = !status.contains("TracerPid:\t0\n");
        !is_traced && !is_noticed(&call) && !is_confined(&status, own_filters)
    };
    tasks.len() <= THREADS_MAX && tasks.iter().all(is_free)
}

/// Has a thread a filter that memspill itself has not? It may end the process for our call. (The evictor has
/// one more.)
fn is_confined(status: &str, own_filters: u32) -> bool {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let filters = field("Seccomp_filters:").and_then(|count| count.parse::<u32>().ok()).unwrap_or(0);
    let is_evictor = field("Name:") == Some("memspill");
    field("Seccomp:") == Some("1") || filters > own_filters + u32::from(is_evictor)
}

/// A line of /proc/PID/task/TID/syscall: the number, and the arguments in hexadecimal digits.
fn is_noticed(call: &str) -> bool {
    let mut words = call.split_ascii_whitespace();
    let Some(number) = words.next().and_then(|number| number.parse::<libc::c_long>().ok()) else {
        return false;
    };
    let argument = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let arguments: Vec<u64> = words.filter_map(argument).collect();
    let of = |index: usize| arguments.get(index).copied().unwrap_or(1);
    match number {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => of(3) as i32 > 0,
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => of(3) != 0,
        libc::SYS_rt_sigtimedwait => of(2) != 0,
        libc::SYS_io_getevents => of(4) != 0,
        libc::SYS_write | libc::SYS_writev | libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg => {
            true
        }
        libc::SYS_sendfile | libc::SYS_splice | libc::SYS_tee | libc::SYS_vmsplice => true,
        libc::SYS_recvfrom => of(3) as i32 & libc::MSG_WAITALL != 0,
        libc::SYS_recvmsg => of(2) as i32 & libc::MSG_WAITALL != 0,
        libc::SYS_recvmmsg => true,
        libc::SYS_io_uring_enter | libc::SYS_connect | libc::SYS_futex_waitv | SYS_IO_PGETEVENTS => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_would_end_otherwise_are_not_disturbed() {
        let noticed = |call| is_noticed(call);
        assert!(noticed("232 0x5 0x7f00 0x40 0x3e8 0x0 0x0 0x7ffc 0x7f12"), "epoll_wait for a second");
        assert!(!noticed("232 0x5 0x7f00 0x40 0xffffffff 0x0 0x0 0x7ffc 0x7f12"), "and for ever");
        assert!(noticed("128 0x1 0x0 0x7ffc00 0x8 0x0 0x0 0x7ffc 0x7f12"), "rt_sigtimedwait");
        assert!(noticed("1 0x1 0x7f00 0x100000 0x0 0x0 0x0 0x7ffc 0x7f12"), "write");
        assert!(noticed("45 0x3 0x7f00 0x100000 0x100 0x0 0x0 0x7ffc 0x7f12"), "recv of all that is wanted");
        assert!(!noticed("45 0x3 0x7f00 0x100000 0x0 0x0 0x0 0x7ffc 0x7f12"), "and of what there is");
        assert!(
            !noticed("running") && !noticed("-1 0x7ffc 0x7f12") && !noticed("0 0x3 0x7f 0x1 0x0 0x0 0x0")
        );
    }
}
