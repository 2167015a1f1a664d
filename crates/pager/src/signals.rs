//! Signals, and the few process calls that have no safe wrapper.
#![allow(unsafe_code, reason = "signal sets, waitpid and prctl, with values on our own stack")]

use crate::exit;
use crate::limits::Limits;
use crate::proc::with_agent;
use crate::times::KILLED_STEP;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// What memspill has inherited and changed for itself, and what the target gets back: resource limits, the
/// limit on core dumps, the signal mask, and that SIGCHLD was ignored.
#[derive(Clone, Copy)]
pub struct Inherited {
    pub limits: Limits,
    pub core: libc::rlimit,
    pub mask: libc::sigset_t,
    pub ignores_children: bool,
}

/// Signals that a thread waits for, and the signal mask before they were blocked.
pub struct SignalSet {
    awaited: libc::sigset_t,
    before: libc::sigset_t,
}

/// Tells the supervisor that the guardian has ended. Not SIGCHLD: of the others `wait_any` says whether one
/// is left. A process that is not prepared for this signal ignores it.
pub const GUARDIAN_ENDED: i32 = libc::SIGURG;

/// Block these signals, and those that tell of children; threads that are started later inherit that. `wait`
/// of the first set returns these signals, `wait` of the second one those of children.
pub fn block(signals: &[i32]) -> io::Result<(SignalSet, SignalSet)> {
    Ok((block_set(signals)?, block_set(&[libc::SIGCHLD, GUARDIAN_ENDED])?))
}

fn block_set(signals: &[i32]) -> io::Result<SignalSet> {
    // SAFETY: the sets are initialised before use, and live on our stack.
    unsafe {
        let (mut awaited, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&mut awaited);
        for signal in signals {
            libc::sigaddset(&mut awaited, *signal);
        }
        match libc::sigprocmask(libc::SIG_BLOCK, &awaited, &mut before) {
            0 => Ok(SignalSet { awaited, before }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The kernel keeps what has become of our children, also where SIGCHLD was ignored by whoever has started
/// us. Returns whether it was.
pub fn keep_statuses() -> bool {
    // SAFETY: constant arguments; no handler is set.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) == libc::SIG_IGN }
}

/// Send SIGKILL to each descendant of this process but the guardian. Returns how many were seen: one that is
/// made meanwhile may be missed.
pub fn kill_tree(guardian: u32) -> usize {
    let tree = crate::proc::descendants(std::process::id());
    tree.into_iter().filter(|pid| *pid != guardian).map(|pid| send(pid, libc::SIGKILL)).count()
}

/// The same where it is not below us: to each process that has the agent of this run mapped.
pub fn kill_with_agent(inodes: &[u64]) -> usize {
    with_agent(inodes).into_iter().map(|pid| send(pid, libc::SIGKILL)).count()
}

/// Is our terminal in the hands of a program that reads key by key, such as a line editor?
pub fn at_a_prompt() -> bool {
    let Ok(terminal) = std::fs::File::open("/dev/tty") else { return false };
    // SAFETY: the struct lives across the call.
    unsafe {
        let mut modes: libc::termios = std::mem::zeroed();
        libc::tcgetattr(terminal.as_raw_fd(), &mut modes) == 0 && modes.c_lflag & libc::ICANON == 0
    }
}

/// End the process without anything that could wait: no exit handler runs, and no buffer is flushed.
pub fn exit_at_once(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

impl SignalSet {
    /// The signal mask before the signals were blocked.
    pub fn before(&self) -> libc::sigset_t {
        self.before
    }

    /// Wait for the next signal. Returns it, and whether a process sent it and not the kernel (for a key on
    /// the terminal). None: the time is over.
    pub fn wait(&self, timeout: Duration) -> Option<(i32, bool)> {
        let timeout =
            libc::timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos() as i64 };
        // SAFETY: set, info and timeout live across the call.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigtimedwait(&self.awaited, &mut info, &timeout);
            (signal > 0).then_some((signal, info.si_code <= 0))
        }
    }
}

/// Kill a child of ours and wait until it has ended, but not longer than `limit`.
pub fn kill_and_wait(pid: u32, limit: Duration) {
    send(pid, libc::SIGKILL);
    let begun = std::time::Instant::now();
    while !child_has_ended(pid) && begun.elapsed() < limit {
        std::thread::sleep(KILLED_STEP);
    }
}

/// Whether this child of ours has ended, which is true from then on. `wait_any` may not tell of it.
pub fn child_has_ended(pid: u32) -> bool {
    let flags = libc::WNOHANG | libc::__WALL;
    // SAFETY: no status is wanted.
    unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), flags) != 0 }
}

/// Become the parent of all descendants whose own parent ends (PR_SET_CHILD_SUBREAPER).
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: constant arguments.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Let the kernel write no core dump of this process, whose memory holds pages of all targets. Returns the
/// limit as it was. The limit becomes 1 and not 0, because a limit of 0 does not stop the kernel from piping
/// a core dump to a program.
///
/// As root, memspill also makes itself undumpable, so that no other process of its user can read its
/// memory. Without root, or CAP_SYS_PTRACE (`may_close`), it cannot: its entries in /proc would be closed
/// to its own user, and the targets' loader opens the agent there.
pub fn no_core(may_close: bool) -> libc::rlimit {
    // SAFETY: both calls take and return integers only.
    unsafe {
        if may_close && libc::geteuid() == 0 {
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
        }
    }
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct lives across the calls. If they fail, the limit stays as it was.
    unsafe {
        libc::getrlimit(libc::RLIMIT_CORE, &mut before);
        libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: before.rlim_max.min(1), ..before });
    }
    before
}

/// Let the command's process, between fork and exec, ask the kernel to kill it when memspill ends, and set
/// its limits and signal mask to those that memspill was started with.
pub fn on_exec(command: &mut Command, inherited: Inherited) {
    let supervisor = std::process::id();
    // SAFETY: only async-signal-safe calls: prctl, getppid, sigprocmask, setrlimit, signal, _exit.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() as u32 != supervisor {
                libc::_exit(exit::OWN_FAILURE);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &inherited.mask, std::ptr::null_mut());
            inherited.limits.restore();
            libc::setrlimit(libc::RLIMIT_CORE, &inherited.core);
            if inherited.ignores_children {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            Ok(())
        });
    }
}

/// Send a signal to a process.
pub fn send(pid: u32, signal: i32) {
    // SAFETY: a plain kill.
    unsafe { libc::kill(pid as i32, signal) };
}

/// What the kernel says of the children of the calling thread, the main one, the guardian excepted.
pub enum Waited {
    /// The process id and wait status of one that has ended, or of a thread that is traced and has stopped.
    For(u32, i32),
    /// None has ended since.
    Lives,
    /// There is none. As their subreaper we become the parent of all whose parent ends, before that is told,
    /// so nobody is below us at all. A look through /proc cannot say that: a process may be made, and its
    /// parent end, while one looks.
    Nobody,
}

pub fn wait_any() -> Waited {
    let mut status = 0;
    // SAFETY: status lives across the call.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::__WNOTHREAD) };
    match pid {
        -1 if io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD) => Waited::Nobody,
        -1 | 0 => Waited::Lives,
        pid => Waited::For(pid as u32, status),
    }
}

/// A descriptor that we were started with, and that is ours alone from now on. None: there is none.
pub fn inherited_file(fd: i32) -> Option<File> {
    // SAFETY: integers. If there is such a descriptor, we were told by its number to take it, once.
    unsafe {
        let is_there = fd > 2 && libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) == 0;
        is_there.then(|| File::from_raw_fd(fd))
    }
}

/// Pin the calling thread to a CPU.
pub fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // A failure does no harm: a pager that is not pinned works as well, only slower.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// ^C and its kin for a command that waits for a run's answer: they do not end it, so that it can still say
/// what has become of its request.
pub struct Interrupts(SignalSet);

impl Interrupts {
    /// Block the signals. To be called before there are other threads, which inherit the mask.
    pub fn block() -> io::Result<Interrupts> {
        let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
        block(&signals).map(|(signals, _)| Interrupts(signals))
    }

    /// Has one of the signals come since the last call?
    pub fn came(&self) -> bool {
        self.0.wait(Duration::ZERO).is_some()
    }

    /// Until one comes.
    pub fn wait(&self) {
        while self.0.wait(Duration::from_secs(3600)).is_none() {}
    }
}
