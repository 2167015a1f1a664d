//! Whom the main thread traces, from the asking to the exec.
//!
//! ```text
//!   asks ─ seized ─ Go ─┬─ executes: planted ───────────────┐
//!                       ├─ fails: Forked ─ it stops ─ Go ───┼─ not traced any more
//!                       └─ ends, or another thread executes ┘
//! ```
//!
//! Two things that the kernel does not tell are looked for: that an exec has failed, and that a thread has
//! vanished with another one's exec, which nobody is told if it was its process's first.

use super::tracee::{Tracee, Trap, resume, seize, set_signal_mask, wait_for_trap};
use super::{halfway, stopped};
use crate::process::peer::{Peer, Pidfd};
use crate::process::wire;
use crate::published::Published;
use crate::signals::Waited;
use crate::times::{TRACEES_LOOK, TRACEES_LOOK_OLD, TRACEES_NEW};
use crate::{proc, signals};
use libc::{c_int, c_uint, pid_t};
use memspill_common::protocol::{Forked, Go, MAGIC};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A thread that is about to run a static program, and waits for an answer.
struct Asker {
    pid: u32,
    /// Whether that is still the number of this one.
    pidfd: Pidfd,
    /// As it calls itself.
    own_tid: u32,
    socket: Arc<OwnedFd>,
    /// The signal mask that the program is to have. The thread has blocked all but SIGSEGV and SIGBUS.
    mask: u64,
}

/// Threads that have come in by the door, for the main thread.
#[derive(Default)]
pub struct Askers(Mutex<Vec<Asker>>);

impl Askers {
    pub fn add(&self, peer: Peer, own_tid: u32, socket: Arc<OwnedFd>, mask: u64) {
        let Peer { pid, pidfd, .. } = peer;
        self.0.lock().expect("askers").push(Asker { pid, pidfd, own_tid, socket, mask });
        // For this the main thread waits.
        signals::send(std::process::id(), libc::SIGCHLD);
    }
}

/// The main thread's own: the threads that it follows from the asking to the exec.
pub struct Tracer<'a> {
    askers: &'a Askers,
    agent: &'a Published,
    /// A process goes on without an agent; why.
    tell: &'a dyn Fn(u32, &io::Error),
    followed: Vec<Followed>,
}

/// A thread that is traced. No other thread of its process is traced: while it executes, the kernel ends the
/// others, and waits until their tracer has taken notice; and to trace one more waits for the exec.
struct Followed {
    asker: Asker,
    thread: pid_t,
    since: Instant,
    /// Its exec has failed, and it is about to stop.
    ends: bool,
}

impl<'a> Tracer<'a> {
    pub fn new(askers: &'a Askers, agent: &'a Published, tell: &'a dyn Fn(u32, &io::Error)) -> Tracer<'a> {
        Tracer { askers, agent, tell, followed: Vec::new() }
    }

    /// When there is something to look at, beside what the kernel tells.
    pub fn next_look(&self) -> Option<Duration> {
        let is_new = |followed: &Followed| followed.since.elapsed() < TRACEES_NEW;
        let new = self.followed.iter().any(is_new).then_some(TRACEES_LOOK);
        new.or((!self.followed.is_empty()).then_some(TRACEES_LOOK_OLD))
    }

    /// Takes in what the kernel tells, and answers who asks.
    pub fn serve(&mut self) {
        while let Waited::For(thread, status) = signals::wait_any() {
            self.is_told(thread, status);
        }
        self.look();
    }

    /// Does what is to be done for a process whose threads are to stand still. False: one of them is traced
    /// still, for an exec or until it comes to a stop; that is known later.
    pub fn is_done_with(&mut self, pid: u32) -> bool {
        self.serve();
        !stopped::is_any_ours(pid as pid_t)
    }

    /// Begins to follow who has asked, and lets go whose exec has failed.
    pub fn look(&mut self) {
        for asker in std::mem::take(&mut *self.askers.0.lock().expect("askers")) {
            match self.seize(&asker) {
                Ok(thread) => {
                    // Another process that has its number now is to be traced no more.
                    let ends = asker.pidfd.has_ended();
                    let followed = Followed { asker, thread, since: Instant::now(), ends };
                    match ends {
                        true => followed.interrupt(),
                        false => followed.asker.answer(0),
                    }
                    self.followed.push(followed);
                }
                Err(e) => {
                    asker.answer(e.raw_os_error().unwrap_or(libc::EPERM));
                    self.tell(&asker, &io::Error::new(e.kind(), format!("it cannot be traced: {e}")));
                }
            }
        }
        self.followed.retain(|followed| followed.since.elapsed() < TRACEES_NEW || followed.is_traced());
        for followed in self.followed.iter_mut().filter(|followed| !followed.ends) {
            // (An error: it is closed, by the exec, of which we are about to be told, or it has ended.)
            if wire::receive_now::<Forked>(&*followed.asker.socket).is_ok() {
                followed.ends = true;
                followed.interrupt();
            }
        }
    }

    /// There is nothing to tell an ended one.
    fn tell(&self, asker: &Asker, why: &io::Error) {
        if !asker.pidfd.has_ended() {
            (self.tell)(asker.pid, why);
        }
    }

    fn seize(&self, asker: &Asker) -> io::Result<pid_t> {
        // The first of two threads that execute at once ends the other.
        if self.followed.iter().any(|followed| followed.asker.pid == asker.pid) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let none = || io::Error::from_raw_os_error(libc::ESRCH);
        let thread = proc::thread(asker.pid, asker.own_tid).ok_or_else(none)? as pid_t;
        seize(thread).map(|()| thread)
    }

    /// The kernel tells of a thread that may be one of those; `status` as of waitpid(2).
    pub fn is_told(&mut self, thread: u32, status: c_int) {
        let thread = thread as pid_t;
        if halfway::is_told(thread, status) {
            return;
        }
        let is_exec = status >> 8 == libc::SIGTRAP | libc::PTRACE_EVENT_EXEC << 8;
        let is_stop = libc::WIFSTOPPED(status);
        // With the exec it becomes its process's first, and may end as that.
        let whose = |one: &Followed| {
            one.thread == thread || (is_exec || !is_stop) && one.asker.pid as pid_t == thread
        };
        let Some(index) = self.followed.iter().position(whose) else {
            // Nobody whom we know is left stopped.
            if is_stop && !stopped::let_go_late(thread, status) {
                go_on(thread, status, libc::PTRACE_DETACH);
            }
            return;
        };
        if is_stop && !is_exec && !self.followed[index].ends {
            return go_on(thread, status, libc::PTRACE_CONT);
        }
        let Followed { asker, .. } = self.followed.swap_remove(index);
        if is_exec {
            if let Err(e) = plant_at_stop(thread, self.agent, asker.mask) {
                self.tell(&asker, &e);
            }
        } else if is_stop {
            go_on(thread, status, libc::PTRACE_DETACH);
            asker.answer(0);
        }
    }
}

impl Followed {
    /// It stops for that. (ESRCH: it was killed, of which we are told.)
    fn interrupt(&self) {
        let _ = resume(self.thread, libc::PTRACE_INTERRUPT, 0);
    }

    fn is_traced(&self) -> bool {
        let tracer = format!("TracerPid:\t{}", std::process::id());
        [self.thread as u32, self.asker.pid].iter().any(|thread| {
            let status = proc::text(format!("/proc/{thread}/status")).unwrap_or_default();
            status.lines().any(|line| line == tracer)
        })
    }
}

impl Asker {
    fn answer(&self, errno: i32) {
        // A process that it does not reach has gone.
        let _ = wire::send(&*self.socket, &Go { magic: MAGIC, errno }, &[]);
    }
}

/// The new program has not begun. It does begin, whatever goes wrong.
fn plant_at_stop(pid: pid_t, agent: &Published, mask: u64) -> io::Result<()> {
    let how = libc::PTRACE_SYSCALL;
    // (The thread had SIGTRAP blocked too.)
    let at_first = set_signal_mask(pid, !(1 << (libc::SIGTRAP - 1)))
        // The call of exec ends, and sets its result.
        .and_then(|()| resume(pid, how, 0))
        .and_then(|()| wait_for_trap(pid, how, Trap::Step))
        .and_then(|meanwhile| Tracee::at_first_instruction(pid, meanwhile));
    match at_first {
        Ok(tracee) => tracee.plant(agent, mask).inspect_err(|_| tracee.give_up(mask)),
        Err(e) => {
            let _ = set_signal_mask(pid, mask);
            let _ = resume(pid, libc::PTRACE_DETACH, 0);
            Err(e)
        }
    }
}

/// With the signal for which it has stopped, if it is one.
fn go_on(thread: pid_t, status: c_int, how: c_uint) {
    let is_event = status >> 16 != 0;
    // It was stopped as a whole, and is to stay so.
    let is_group_stop = status >> 16 == libc::PTRACE_EVENT_STOP && libc::WSTOPSIG(status) != libc::SIGTRAP;
    let how = if is_group_stop && how == libc::PTRACE_CONT { libc::PTRACE_LISTEN } else { how };
    let signal = if is_event { 0 } else { libc::WSTOPSIG(status) };
    // ESRCH: it was killed.
    let _ = resume(thread, how, signal);
}
