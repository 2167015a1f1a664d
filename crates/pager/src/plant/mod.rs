//! Plants the agent into programs that have no loader: static ones, in which LD_PRELOAD does nothing.
//!
//! ```text
//!   the process                                 its tracer (ptrace(2))
//!   the command: PTRACE_TRACEME, all signals blocked
//!   others ask, before execve (KIND_STATIC) ──▶ PTRACE_SEIZE of the thread that asks ─ Go
//!   execve ── stops at its first instruction ─▶ writes `syscall` there
//!   open, mmap ... mmap, close   ◀───────────── one step each
//!                                               puts the instruction back, lays its address on the stack,
//!   the agent's own beginning    ◀───────────── points to the agent, lets go
//!   joins ─ returns to the first instruction
//! ```
//!
//! So the kernel has executed the program as always: /proc/PID/exe, its name, its heap and its vector of
//! values are right. The agent relocates itself (`crates/agent/src/agent/planted.rs`), and is mapped from the
//! same file as a loader would. Who asks, and when: `crates/agent/src/agent/programs/exec.rs`.
//!
//! A failure here (ptrace is forbidden, address space is limited) ends the command before its first
//! instruction. Others go on as they are, outside the budget, and a line says so of the first.
//!
//! | file        | what is in it                                  |
//! |-------------|------------------------------------------------|
//! | `mod.rs`    | the command                                    |
//! | `tracer.rs` | others, from the asking to the exec            |
//! | `tracee.rs` | a process that stands still: ptrace, registers |
//! | `image.rs`  | what of the agent is mapped where              |
//! | `running.rs` | processes that run already: in, and out again |
//! | `stopped.rs` | all threads of one stand still                |
//! | `halfway.rs` | writes that were stopped in the middle go on  |
//! | `opened.rs` | memory that may not be written leaves         |
//! | `refusal.rs` | why it cannot be                              |
//!
//! The main thread is the only tracer: whoever traces must do all of it, and a process that is below us as a
//! child tells its stops to whichever of our threads waits. It is told of all that its tracees do, signals
//! among it, which it passes on; for as long as it takes from the asking to the exec. It waits for each step
//! of a process that it plants into: if a cgroup is frozen in these microseconds, until that is thawed.
//!
//! What it does not do: programs that are started by system calls of a program's own, where these are neither
//! trapped nor found. (The kernel drops what a set-user-id program would gain when that is traced: nobody
//! asks for those.)
#![allow(unsafe_code, reason = "what a process does between fork and exec: sigprocmask, ptrace")]

mod halfway;
mod image;
mod opened;
mod refusal;
mod running;
mod stopped;
mod tracee;
mod tracer;

pub use opened::open_for_a_moment;
pub use running::{into_running, let_go};
pub use tracer::{Askers, Tracer};

use crate::published::Published;
use crate::signals;
use libc::pid_t;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use tracee::{Tracee, Trap, trace_me, wait_for_trap};

/// How the command's process says that it may not be traced: an errno of no exec.
const NOT_TRACED: i32 = libc::ENOTBLK;

/// Lets the command's process stop at its first instruction, with all signals blocked but the one that says
/// so: another that it would stop for before that would stop it for ever, for we wait for its exec. (SIGSTOP
/// cannot be blocked: sent in these microseconds it does that. Two signals end memspill then, as always.)
/// After whatever sets its mask.
pub fn on_exec(command: &mut Command) {
    // SAFETY: only async-signal-safe calls: sigfillset, sigdelset, sigprocmask, ptrace.
    unsafe {
        command.pre_exec(|| {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::sigdelset(&mut all, libc::SIGTRAP);
            libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
            trace_me().map_err(|_| io::Error::from_raw_os_error(NOT_TRACED))
        });
    }
}

/// Plants the agent, and lets it begin. `mask`: its signal
/// mask. To be called by the thread that has started it. It is killed where that fails.
pub fn plant(child: &mut Child, agent: &Published, mask: &libc::sigset_t) -> io::Result<()> {
    let pid = child.id() as pid_t;
    let planted = wait_for_trap(pid, libc::PTRACE_CONT, Trap::Exec).and_then(|meanwhile| {
        // SAFETY: the set is integers, and not shorter than the first of them, which is the kernel's set.
        let mask = unsafe { (&raw const *mask).cast::<u64>().read_unaligned() };
        Tracee::at_first_instruction(pid, meanwhile)?.plant(agent, mask)
    });
    planted.map_err(|e| {
        signals::send(child.id(), libc::SIGKILL);
        let _ = child.wait();
        io::Error::new(e.kind(), format!("cannot put the agent into a statically linked program: {e}"))
    })
}

/// What the start of such a command has failed with.
pub fn explained(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(NOT_TRACED) => io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the command is statically linked, and to put the agent into it takes ptrace(2), which is not \
             allowed here: a debugger has it, or a sandbox forbids it, or kernel.yama.ptrace_scope is 2 or 3",
        ),
        _ => error,
    }
}
