//! The guardian: a second process that keeps the userfaultfds open when the supervisor dies, and kills the tree.
//!
//! When the last descriptor of a userfaultfd closes, missing pages of its address space read as zero: silent corruption.
//! The agents hold their own process's descriptor and kill it when the supervisor's socket closes; but a child that was
//! forked a moment ago, or by a raw clone, has no agent. So the guardian shares the supervisor's descriptor table
//! (CLONE_FILES without CLONE_VM): the table lives on in it. The kernel tells it of the supervisor's death by a signal;
//! it kills every process of the tree (found by the token in their environment and by their parents), and only then exits.
//!
//! Where it outlives the supervisor its exit closes the last descriptors of swap files, which gives their space back
//! and may take long on a busy disk. So it closes first what others wait for: pipes, sockets.
//!
//! What it does not do: anything else. It was cloned before any thread was started, and runs no code but this.
#![allow(unsafe_code, reason = "a raw clone with a shared descriptor table, signal waits")]

use std::io;
use std::time::Duration;

/// Start the guardian. `token` is what the environments of the tree hold. Returns its pid.
pub fn start(token: &str) -> io::Result<u32> {
    let supervisor = std::process::id();
    // SAFETY: like fork(): no stack is given, the child runs on a copy of this one and never returns from `watch`. The
    // process is single-threaded (asserted by the caller), so no lock is held by a thread that is not copied.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => watch(supervisor, token),
        pid => Ok(pid as u32),
    }
}

fn watch(supervisor: u32, token: &str) -> ! {
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
        // The supervisor may have died before the prctl: then our parent is another already.
        while libc::getppid() as u32 == supervisor {
            let timeout = libc::timespec { tv_sec: 60, tv_nsec: 0 };
            libc::sigtimedwait(&death, std::ptr::null_mut(), &timeout);
        }
    }
    kill_tree(token);
    close_all_but_files();
    // SAFETY: ends this process; nothing of the copied supervisor (buffers, exit handlers) may run.
    unsafe { libc::_exit(0) }
}

/// Pipes whose readers wait for their end, sockets that would let callers in. Files come last, when this process exits.
fn close_all_but_files() {
    let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let fds: Vec<i32> = listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for fd in fds {
        // SAFETY: nobody else runs in this process or, since the supervisor has ended, with this table; `stat` lives
        // across the call. The list's own descriptor is closed already, which does no harm.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(fd, &mut stat) == 0 && stat.st_mode & libc::S_IFMT != libc::S_IFREG {
                libc::close(fd);
            }
        }
    }
}

/// Kill until nobody is left: a process may fork while we look. One that is frozen, or waits in the kernel, ends later,
/// and its userfaultfd must stay open until it has; one that may not be killed is not of the tree, or has no
/// userfaultfd.
fn kill_tree(token: &str) {
    let me = std::process::id();
    let mut pause = Duration::from_millis(2);
    loop {
        let mut tree: Vec<u32> = crate::proc::with_environment(token);
        let below: Vec<u32> = tree.iter().flat_map(|pid| crate::proc::descendants(*pid)).collect();
        tree.extend(below);
        tree.retain(|pid| *pid != me && !crate::proc::has_ended(*pid));
        // SAFETY: a plain kill.
        tree.retain(|pid| unsafe { libc::kill(*pid as i32, libc::SIGKILL) } == 0);
        if tree.is_empty() {
            return;
        }
        std::thread::sleep(pause);
        pause = (pause * 21 / 20).min(Duration::from_millis(200));
    }
}
