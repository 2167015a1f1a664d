//! Starts the supervisor, `memspill attach`, beside this process.
//!
//! ```text
//!   we ── fork ─▶ a ── fork ─▶ supervisor
//!                 ends         its process id ─▶ we: it may trace us (Yama) ─▶ go ─▶ exec memspill attach
//!   we ◀── one line: "attached PID", or why not ─────────────────────────────────────────┘
//! ```
//!
//! What holds: the supervisor is no child of ours, so nobody who waits for children meets it; it is in a
//! session of its own, so ^C does not reach it; it has no descriptor of ours but 0, 1 and 2. Between fork and
//! exec only system calls are made, for other threads may hold any lock; and by the system call alone, for
//! the C library's fork would have libraries stop their threads.

#![allow(unsafe_code, reason = "forks, and goes on in the child by system calls alone")]

use crate::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::ptr::null;

/// Longer than it may take to stop and manage a large process on a busy machine.
const READY_SECONDS: i64 = 120;
/// The descriptor on which the supervisor says that it is ready.
const READY_FD: RawFd = 3;

/// Start the command with these arguments, which make it attach to us, and wait until it has. Returns its
/// process id.
pub fn start(command: &Path, arguments: &[String]) -> Result<u32, Error> {
    let (ready, says_ready) = pipe()?;
    let (pids, says_pid) = pipe()?;
    let (goes, go) = pipe()?;
    let exec = Exec::new(command, arguments)?;
    let raw = [&says_pid, &goes, &says_ready].map(AsRawFd::as_raw_fd);
    // SAFETY: the child makes system calls only, and does not return.
    let child = match unsafe { fork() } {
        // SAFETY: we are the child of a fork.
        0 => unsafe { be_the_supervisor(&exec, raw) },
        failed if failed < 0 => return Err(Error::Start(io::Error::last_os_error())),
        child => child,
    };
    drop((says_pid, goes, says_ready));
    let mut pid = [0u8; 4];
    let got = read(&pids, &mut pid);
    reap(child);
    if !matches!(got, Ok(4)) {
        return Err(Error::Start(io::Error::from_raw_os_error(libc::EAGAIN)));
    }
    let pid = u32::from_ne_bytes(pid);
    // Refused where there is no Yama, and then there is no need.
    // SAFETY: it takes two numbers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, u64::from(pid), 0, 0, 0) };
    rustix::io::write(&go, b"g").map_err(|error| Error::Start(error.into()))?;
    let line = line_of(&ready).map_err(Error::Attach)?;
    if line == format!("attached {}", std::process::id()) { Ok(pid) } else { Err(Error::Attach(line)) }
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    // Above the descriptors that the child closes or replaces before its exec.
    let above = |fd: OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, READY_FD + 1);
    let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let pipe = pipe.and_then(|(reads, writes)| Ok((above(reads)?, above(writes)?)));
    pipe.map_err(|error| Error::Start(error.into()))
}

fn read(fd: &OwnedFd, into: &mut [u8]) -> rustix::io::Result<usize> {
    rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut *into))
}

fn reap(child: i32) {
    // Somebody else may have waited for it (SIGCHLD ignored).
    // SAFETY: no status is asked for.
    while unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) } < 0
        && io::Error::last_os_error().kind() == ErrorKind::Interrupted
    {}
}

/// The first line that the supervisor writes, without its end.
fn line_of(ready: &OwnedFd) -> Result<String, String> {
    let mut text = Vec::new();
    let mut bytes = [0u8; 4096];
    loop {
        let mut fds = [PollFd::new(ready, PollFlags::IN)];
        let timeout = Timespec { tv_sec: READY_SECONDS, tv_nsec: 0 };
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(0) => {
                return Err(format!("the supervisor is not ready after {READY_SECONDS} s: see its messages"));
            }
            _ => {}
        }
        match read(ready, &mut bytes) {
            Ok(0) | Err(_) if text.is_empty() => {
                return Err("the supervisor ended before it was ready: see its messages on stderr".into());
            }
            Ok(0) | Err(_) => break,
            Ok(length) => text.extend_from_slice(&bytes[..length]),
        }
        if text.contains(&b'\n') {
            break;
        }
    }
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned())
}

/// All that `execve` needs, allocated before the fork.
struct Exec {
    path: CString,
    _words: Vec<CString>,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
}

impl Exec {
    fn new(command: &Path, arguments: &[String]) -> Result<Exec, Error> {
        let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| Error::NoCommand);
        let path = text(command.as_os_str().to_owned().into_vec())?;
        let mut words = vec![path.clone()];
        for argument in arguments {
            words.push(text(argument.clone().into_bytes())?);
        }
        let mut environment = Vec::new();
        for (name, value) in std::env::vars_os() {
            environment.push(text([name.into_vec(), b"=".to_vec(), value.into_vec()].concat())?);
        }
        let pointers = |words: &[CString]| words.iter().map(|word| word.as_ptr()).chain([null()]).collect();
        let (argv, envp) = (pointers(&words), pointers(&environment));
        words.extend(environment);
        Ok(Exec { path, _words: words, argv, envp })
    }
}

/// A fork by the system call alone.
unsafe fn fork() -> i32 {
    // SAFETY: as fork; the caller makes no call of the C library but system calls in the child.
    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 }
}

/// In the child. `fds`: where its process id goes, where its go comes from, where it says that it is ready.
unsafe fn be_the_supervisor(exec: &Exec, [says_pid, goes, says_ready]: [RawFd; 3]) -> ! {
    // SAFETY: system calls on memory that was made before the fork.
    unsafe {
        libc::setsid();
        if fork() != 0 {
            libc::_exit(0);
        }
        let pid = (libc::syscall(libc::SYS_getpid) as u32).to_ne_bytes();
        let mut go = 0u8;
        let told = libc::write(says_pid, pid.as_ptr().cast(), 4) == 4;
        if !told || libc::read(goes, (&raw mut go).cast(), 1) != 1 {
            libc::_exit(1);
        }
        let none: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        for signal in [libc::SIGPIPE, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::syscall(libc::SYS_close_range, READY_FD, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        libc::dup2(nothing, 0);
        libc::dup2(nothing, 1);
        libc::dup2(says_ready, READY_FD);
        libc::execve(exec.path.as_ptr(), exec.argv.as_ptr(), exec.envp.as_ptr());
        let line = b"the memspill command cannot be executed: name it in $MEMSPILL\n";
        libc::write(READY_FD, line.as_ptr().cast(), line.len());
        libc::_exit(127)
    }
}
