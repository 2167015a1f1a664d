//! The guardian: a second process that keeps the userfaultfds open when the supervisor dies, and kills the
//! tree.
//!
//! When the last descriptor of a userfaultfd closes, missing pages of its address space read as zero: silent
//! corruption. An agent holds the descriptor of its own process, and kills that process when the supervisor's
//! socket closes; but a child that was forked a moment ago, or by a raw clone, has no agent. So the guardian
//! shares the supervisor's descriptor table (CLONE_FILES without CLONE_VM), which stays open as long as the
//! guardian lives. The kernel signals it when the supervisor dies; it then kills every process of the tree
//! (which it finds by the token in their environment and by their parents; where the supervisor is attached
//! to a process, by the agent that they have mapped), and exits only after that.
//!
//! Then it empties the files of which the supervisor had some swapped out (`swapped_files.rs`), and removes
//! the agent's file (`published.rs`).
//!
//! If it outlives the supervisor, its exit closes the last descriptors of swap files. The kernel frees their
//! space then, which may take long on a busy disk. So the guardian first closes what others wait for: pipes
//! and sockets.
//!
//! What it does not do: anything else. It was cloned before any thread was started, and runs only the code of
//! this file.
#![allow(unsafe_code, reason = "a raw clone with a shared descriptor table, signal waits")]

use crate::proc::with_agent;
use crate::signals::GUARDIAN_ENDED;
use crate::swapped_files::SwappedFiles;
use crate::times::{GUARDIAN_LOOK, GUARDIAN_STEP_MAX, GUARDIAN_SURE, KILL_STEP};
use std::io;
use std::time::Instant;

/// How the guardian knows the processes of the run.
pub enum Known<'a> {
    /// By what is in the environment of each, or of one above it.
    Token(&'a str),
    /// By the inodes of the agent's file, which each has mapped.
    Agent(&'a [u64]),
}

/// Start the guardian and return its pid. `agent`: the agent's file, if it has a name.
pub fn start(known: &Known<'_>, held: &SwappedFiles, agent: Option<&str>) -> io::Result<u32> {
    let supervisor = std::process::id();
    let flags = libc::CLONE_FILES | GUARDIAN_ENDED;
    // SAFETY: this works like fork(): no stack is given, so the child runs on a copy of ours, and it never
    // returns from `watch`. The caller asserts that the process has one thread, so no lock is held by a
    // thread that the child lacks.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => watch(supervisor, known, held, agent),
        pid => Ok(pid as u32),
    }
}

/// What the guardian's process does: wait for the supervisor's death, kill the tree, exit.
fn watch(supervisor: u32, known: &Known<'_>, held: &SwappedFiles, agent: Option<&str>) -> ! {
    // SAFETY: prctl and signal calls with constant arguments; sets are initialised by sigfillset.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, c"memspill-guard".as_ptr());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGUSR1);
        let mut death: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut death);
        libc::sigaddset(&mut death, libc::SIGUSR1);
        // The supervisor may have died before the prctl. Then our parent is already another process.
        while libc::getppid() as u32 == supervisor {
            let timeout = libc::timespec { tv_sec: GUARDIAN_LOOK.as_secs() as i64, tv_nsec: 0 };
            libc::sigtimedwait(&death, std::ptr::null_mut(), &timeout);
        }
    }
    kill_tree(known);
    held.empty_all();
    // (Gone, where the supervisor has ended by itself.)
    agent.map(std::fs::remove_file);
    close_all_but_files();
    // SAFETY: ends this process; nothing of the copied supervisor (buffers, exit handlers) may run.
    unsafe { libc::_exit(0) }
}

/// Close pipes, whose readers wait for the end, and sockets, which would accept callers. Regular files are
/// closed last, when this process exits.
fn close_all_but_files() {
    let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let fds: Vec<i32> = listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for fd in fds {
        // SAFETY: no other thread uses this descriptor table, since the supervisor has ended;
        // `stat` lives across the call. The list's own descriptor is closed already, which does no harm.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(fd, &mut stat) == 0 && stat.st_mode & libc::S_IFMT != libc::S_IFREG {
                libc::close(fd);
            }
        }
    }
}

/// Kill the processes of the tree until none is left; more than one round is needed, since a process may fork
/// meanwhile. A round that finds none shows it only if no process was made while it looked: behind its back a
/// child may be made, and its parent end. If some are made all the time, GUARDIAN_SURE is enough.
///
/// A process that is frozen, or waits in the kernel, ends later; its userfaultfd must stay open until then.
/// A process that we are not allowed to kill is not of the tree, or has no userfaultfd.
fn kill_tree(known: &Known<'_>) {
    let me = std::process::id();
    let mut pause = KILL_STEP;
    let mut empty_since = None;
    loop {
        let made = crate::proc::last_made();
        let mut tree: Vec<u32> = match known {
            Known::Token(token) => crate::proc::with_environment(token),
            Known::Agent(inodes) => with_agent(inodes),
        };
        if let Known::Token(_) = known {
            let below: Vec<u32> = tree.iter().flat_map(|pid| crate::proc::descendants(*pid)).collect();
            tree.extend(below);
        }
        tree.retain(|pid| *pid != me && !crate::proc::has_ended(*pid));
        // SAFETY: a plain kill.
        tree.retain(|pid| unsafe { libc::kill(*pid as i32, libc::SIGKILL) } == 0);
        if tree.is_empty() {
            let since = *empty_since.get_or_insert_with(Instant::now);
            if made == crate::proc::last_made() || since.elapsed() > GUARDIAN_SURE {
                return;
            }
        } else {
            empty_since = None;
        }
        std::thread::sleep(pause);
        pause = (pause * 21 / 20).min(GUARDIAN_STEP_MAX);
    }
}
