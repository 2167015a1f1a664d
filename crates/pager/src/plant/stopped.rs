//! All threads of a process that runs already, brought to a stand, looked at, and let go on.
//!
//! ```text
//!   for each thread that /proc shows: PTRACE_SEIZE, PTRACE_INTERRUPT ─ waits ─ again, until none is new
//!   each stands where the kernel delivers signals: on its way to user mode, also out of a call
//!   dropped: each has its registers and its signal mask, and goes on
//! ```
//!
//! A call that was interrupted is restarted by the kernel when its thread goes on with the registers with
//! which it was found, and only from a stop of that kind. A signal that comes before is handled first, and
//! has the call end with EINTR where it would have had.
//!
//! *Calls that the kernel ends with EINTR for us* (epoll_wait and some others, signal(7)) are restarted too.
//! They begin with all of their time again, so one with a long time of its own is left to say EINTR.
//!
//! *A write of which a part is done* goes on with the rest (`halfway.rs`).
//!
//! *Restartable sequences* (rseq) that a thread is in the middle of are aborted, as the kernel does: once the
//! thread runs elsewhere it would be forgotten.
//!
//! *A fault's signal* (or that of a trapped call) may be there already, and not delivered yet: then the
//! thread goes on until it is, and stands at the first instruction of its handler.
//!
//! A thread that waits in the kernel so that nothing interrupts it (a disk, the child of its vfork) is waited
//! for STANDS_AFTER, and then all go on.
#![allow(unsafe_code, reason = "ptrace, waitid and get_robust_list, on integers and structs of integers")]

use super::halfway;
use super::tracee::{
    Meanwhile, NO_CALL, check, is_of_kernel, ptrace, registers, resume, set_registers, set_signal_mask, wait,
    wait_for_stop,
};
use crate::signals;
use libc::{c_uint, pid_t, user_regs_struct};
use memspill_common::running::Range;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const PTRACE_GETSIGMASK: c_uint = 0x420a;
const PTRACE_GET_RSEQ_CONFIGURATION: c_uint = 0x420f;
const PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG: c_uint = 0x4210;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: c_uint = 0x4211;
/// How long it may take until a thread stands that waits in the kernel, or that has no CPU.
const STANDS_AFTER: Duration = Duration::from_secs(1);
const RUNS_WITHIN: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_micros(50);
/// Most stand within microseconds.
const LOOKS_AT_ONCE: u32 = 50;
/// Calls with a longer time of their own are not begun again.
const AGAIN_MS: i64 = 10_000;

/// In rax, less than 0, of a call that is to be restarted: as the kernel tells no program.
const ERESTARTNOHAND: i64 = 514;
const ERESTART_RESTARTBLOCK: i64 = 516;

/// `struct ptrace_rseq_configuration`.
#[repr(C)]
#[derive(Default)]
struct RseqConfiguration {
    address: u64,
    bytes: u32,
    signature: u32,
    flags: u32,
    pad: u32,
}

/// `struct ptrace_sud_config`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(super) struct Dispatch {
    mode: u64,
    selector: u64,
    offset: u64,
    bytes: u64,
}

impl Dispatch {
    pub(super) const OFF: Dispatch = Dispatch { mode: 0, selector: 0, offset: 0, bytes: 0 };

    pub(super) fn is_on(&self) -> bool {
        self.mode != 0
    }

    /// None: the kernel does not tell (before Linux 6.4).
    pub(super) fn of(tid: pid_t) -> Option<Dispatch> {
        let mut dispatch = Dispatch::default();
        let (bytes, place) = (size_of::<Dispatch>(), &raw mut dispatch as usize);
        // SAFETY: the kernel fills the struct, of which it is told the size.
        check(unsafe { ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, bytes, place) }).ok()?;
        Some(dispatch)
    }

    pub(super) fn set(&self, tid: pid_t) -> io::Result<()> {
        let (bytes, place) = (size_of::<Dispatch>(), std::ptr::from_ref(self) as usize);
        // SAFETY: the kernel reads the struct, of which it is told the size.
        check(unsafe { ptrace(PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG, tid, bytes, place) })
    }
}

/// A thread that stands still.
pub(super) struct Stood {
    pub(super) tid: pid_t,
    /// With which it goes on.
    pub(super) regs: user_regs_struct,
    pub(super) mask: u64,
    /// The kernel is to look at them: it has run something of ours.
    pub(super) is_changed: bool,
    /// It is not where signals are delivered.
    pub(super) is_off: bool,
}

impl Stood {
    /// Is it stopped in a call that the kernel goes on with by its own means?
    pub(super) fn is_in_restart(&self) -> bool {
        self.regs.orig_rax != NO_CALL && self.regs.rax as i64 == -ERESTART_RESTARTBLOCK
    }

    fn look(tid: pid_t, memory: &File) -> io::Result<Stood> {
        let (regs, mask) = (registers(tid)?, signal_mask(tid)?);
        let mut stood = Stood { tid, regs, mask, is_changed: false, is_off: false };
        stood.restart_interrupted(memory);
        stood.abort_sequence(memory);
        Ok(stood)
    }

    fn restart_interrupted(&mut self, memory: &File) {
        if self.regs.rax as i64 == -i64::from(libc::EINTR)
            && self.regs.orig_rax != NO_CALL
            && begins_again(&self.regs, memory)
        {
            self.regs.rax = -ERESTARTNOHAND as u64;
            self.is_changed = true;
        }
    }

    /// The memory that the kernel reads and writes at its own times, for this thread.
    pub(super) fn kept(&self) -> Vec<Range> {
        const PAGE: u64 = 4096;
        const RSEQ_BYTES: u64 = 32;
        let mut kept = vec![];
        if let Some(rseq) = rseq(self.tid) {
            kept.push(Range { start: rseq.address, bytes: u64::from(rseq.bytes).max(RSEQ_BYTES) });
        }
        let (mut head, mut bytes) = (0u64, 0u64);
        // SAFETY: the kernel writes two words.
        let told =
            unsafe { libc::syscall(libc::SYS_get_robust_list, self.tid, &raw mut head, &raw mut bytes) };
        if told == 0 && head != 0 {
            kept.push(Range { start: head, bytes });
        }
        // The C library's own struct of the thread.
        if self.regs.fs_base > PAGE {
            kept.push(Range { start: self.regs.fs_base - PAGE, bytes: 2 * PAGE });
        }
        kept
    }

    /// `struct rseq_cs`: version, flags, start, length, where it goes on when it is aborted.
    fn abort_sequence(&mut self, memory: &File) {
        const POINTER_AT: u64 = 8;
        let Some(rseq) = rseq(self.tid) else { return };
        let word = |at| read_words::<1>(memory, at).map(|[word]| word);
        let Some(sequence) = word(rseq.address + POINTER_AT).filter(|at| *at != 0) else { return };
        let Some([_, start, len, abort]) = read_words::<4>(memory, sequence) else { return };
        let is_signed = word(abort.wrapping_sub(4)).is_some_and(|code| code as u32 == rseq.signature);
        if self.regs.rip.wrapping_sub(start) < len && is_signed {
            self.regs.rip = abort;
            self.is_changed = true;
        }
    }

    /// Has it go on, traced no more: at once, or when it has written all that it was to write.
    fn let_go(&mut self, memory: &File) -> io::Result<()> {
        let read_word = |at| read_words::<1>(memory, at).map(|[word]| word);
        match halfway::goes_on(self.tid, &self.regs, self.mask, read_word)? {
            true => Ok(()),
            false => self.go_on(libc::PTRACE_DETACH),
        }
    }

    /// Has it go on: `how` is PTRACE_CONT or PTRACE_DETACH.
    pub(super) fn go_on(&mut self, how: c_uint) -> io::Result<()> {
        if self.is_off {
            self.is_off = false;
            resume(self.tid, libc::PTRACE_INTERRUPT, 0)?;
            resume(self.tid, libc::PTRACE_CONT, 0)?;
            wait_for_stop(self.tid)?;
        }
        if self.is_changed {
            set_registers(self.tid, &self.regs)?;
            set_signal_mask(self.tid, self.mask)?;
        }
        resume(self.tid, how, 0)
    }
}

fn rseq(tid: pid_t) -> Option<RseqConfiguration> {
    let mut rseq = RseqConfiguration::default();
    let (bytes, place) = (size_of::<RseqConfiguration>(), &raw mut rseq as usize);
    // SAFETY: the kernel fills the struct, of which it is told the size.
    check(unsafe { ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, bytes, place) }).ok()?;
    (rseq.address != 0).then_some(rseq)
}

pub(super) fn read_words<const N: usize>(memory: &File, at: u64) -> Option<[u64; N]> {
    let mut bytes = vec![0; 8 * N];
    memory.read_exact_at(&mut bytes, at).ok()?;
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    words.collect::<Vec<u64>>().try_into().ok()
}

/// Does nobody miss anything where a call that has ended with EINTR is made once more?
fn begins_again(regs: &user_regs_struct, memory: &File) -> bool {
    let at_address = |at| match at {
        0 => Some(-1),
        at => read_words::<2>(memory, at).map(|[secs, nanos]| (secs * 1000 + nanos / 1_000_000) as i64),
    };
    let limit_ms = match regs.orig_rax as i64 {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => Some(i64::from(regs.r10 as i32)),
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => at_address(regs.r10),
        libc::SYS_rt_sigtimedwait => at_address(regs.rdx),
        libc::SYS_io_getevents => at_address(regs.r8),
        // The time is the socket's, and for the whole call.
        libc::SYS_read | libc::SYS_readv | libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_semop => {
            Some(-1)
        }
        libc::SYS_write | libc::SYS_writev | libc::SYS_sendto | libc::SYS_sendmsg => Some(-1),
        libc::SYS_accept | libc::SYS_accept4 => Some(-1),
        _ => None,
    };
    limit_ms.is_some_and(|ms| ms <= AGAIN_MS)
}

/// All threads of a process, standing still. Dropped, they go on.
pub(super) struct Stopped {
    pub(super) pid: pid_t,
    pub(super) threads: Vec<Stood>,
    pub(super) memory: File,
    pub(super) began: Instant,
    pub(super) meanwhile: Meanwhile,
    /// Not one of the program's: the evictor.
    left_out: Option<pid_t>,
    patience: Patience,
}

/// How long a thread is waited for.
struct Patience {
    stands: Duration,
    /// One that could run.
    runs: Duration,
}

impl Stopped {
    pub(super) fn all(pid: pid_t, left_out: Option<pid_t>) -> io::Result<Stopped> {
        Stopped::by(pid, left_out, Patience { stands: STANDS_AFTER, runs: RUNS_WITHIN })
    }

    /// The same within a moment. A thread that comes to its stop later is let go then (`tracer.rs`).
    pub(super) fn within(pid: pid_t, left_out: pid_t, moment: Duration) -> io::Result<Stopped> {
        Stopped::by(pid, Some(left_out), Patience { stands: moment, runs: 5 * moment })
    }

    fn by(pid: pid_t, left_out: Option<pid_t>, patience: Patience) -> io::Result<Stopped> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
        let mut stopped = Stopped {
            pid,
            threads: vec![],
            memory: memory?,
            began: Instant::now(),
            meanwhile: Meanwhile::default(),
            left_out,
            patience,
        };
        stopped.stop_new()?;
        Ok(stopped)
    }

    /// Stops those that are new, until none is.
    pub(super) fn stop_new(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            let new: Vec<pid_t> = self.tasks()?.into_iter().filter(|tid| !self.has(*tid)).collect();
            if new.is_empty() {
                return Ok(());
            }
            let mut seized = vec![];
            let mut result = Ok(());
            for tid in new {
                // SAFETY: no memory is passed.
                let asked = check(unsafe { ptrace(libc::PTRACE_SEIZE, tid, 0, 0) });
                match asked.and_then(|()| resume(tid, libc::PTRACE_INTERRUPT, 0)) {
                    Ok(()) => seized.push(tid),
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) || has_ended(self.pid, tid) => {}
                    // It is ours, and about to end.
                    Err(_) if begun.elapsed() < self.patience.runs && is_ours(self.pid, tid) => {
                        std::thread::sleep(LOOK);
                    }
                    Err(e) => {
                        result = Err(e);
                        break;
                    }
                }
            }
            let waited = self.wait_for(seized);
            result.and(waited)?;
        }
    }

    /// Waits until these stand, which were asked to.
    fn wait_for(&mut self, asked: Vec<pid_t>) -> io::Result<()> {
        let until = Instant::now() + self.patience.stands;
        let mut result = Ok(());
        for tid in asked {
            match self.wait(tid, until) {
                Ok(Some(stood)) => self.threads.push(stood),
                Ok(None) => {}
                Err(e) => {
                    // One that runs cannot be let go: it stops at once now, or when it ends its call.
                    let _ = resume(tid, libc::PTRACE_DETACH, 0);
                    result = result.and(Err(e));
                }
            }
        }
        result
    }

    /// Lets those run that are at work in the agent, for a moment. An error: some of them do not stand.
    pub(super) fn run_on(&mut self, tids: &[pid_t], moment: Duration) -> io::Result<()> {
        let (mut running, others): (Vec<Stood>, Vec<Stood>) =
            std::mem::take(&mut self.threads).into_iter().partition(|stood| tids.contains(&stood.tid));
        self.threads = others;
        // (Errors: it was killed, or has ended.)
        for stood in &mut running {
            let _ = stood.go_on(libc::PTRACE_CONT);
        }
        std::thread::sleep(moment);
        running.retain(|stood| resume(stood.tid, libc::PTRACE_INTERRUPT, 0).is_ok());
        self.wait_for(running.iter().map(|stood| stood.tid).collect())?;
        self.stop_new()
    }

    fn has(&self, tid: pid_t) -> bool {
        self.left_out == Some(tid) || self.threads.iter().any(|stood| stood.tid == tid)
    }

    fn tasks(&self) -> io::Result<Vec<pid_t>> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid))?;
        let tids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Ok(tids.filter(|tid| !has_ended(self.pid, *tid)).collect())
    }

    /// One that could run will come to its stop when it has a CPU.
    fn is_given_up(&self, tid: pid_t, until: Instant) -> bool {
        until.elapsed() > self.patience.runs || state_of(self.pid, tid) == Some('D')
    }

    /// None: it has ended.
    fn wait(&mut self, tid: pid_t, until: Instant) -> io::Result<Option<Stood>> {
        let (mut is_to_stop_again, mut looks) = (false, 0);
        loop {
            match stop_of(tid)? {
                Stop::NotYet if Instant::now() > until && self.is_given_up(tid, until) => {
                    let why = format!(
                        "its thread {tid} waits in the kernel, where nothing interrupts it: try again"
                    );
                    return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
                }
                Stop::NotYet if looks < LOOKS_AT_ONCE => {
                    looks += 1;
                    std::thread::yield_now();
                }
                Stop::NotYet => std::thread::sleep(LOOK),
                Stop::Ended => return Ok(None),
                Stop::Event if is_about_to_handle(tid)? => {
                    is_to_stop_again = true;
                    resume(tid, libc::PTRACE_CONT, 0)?;
                }
                Stop::Event => return Stood::look(tid, &self.memory).map(Some),
                // It has it before it stops for us.
                Stop::Signal(signal) => {
                    if std::mem::take(&mut is_to_stop_again) {
                        resume(tid, libc::PTRACE_INTERRUPT, 0)?;
                    }
                    resume(tid, libc::PTRACE_CONT, signal)?;
                }
            }
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for stood in &mut self.threads {
            // (An error: it was killed.)
            let _ = stood.let_go(&self.memory);
        }
        if self.meanwhile.is_to_trap {
            signals::send(self.pid as u32, libc::SIGTRAP);
        }
        if self.meanwhile.is_to_stop {
            signals::send(self.pid as u32, libc::SIGSTOP);
        }
    }
}

/// Lets a thread go that has come to its stop when nobody waited for it any more. False: it has stopped for
/// something else. `status`: as of waitpid(2).
pub(super) fn let_go_late(tid: pid_t, status: i32) -> bool {
    let is_asked = status >> 8 == libc::SIGTRAP | libc::PTRACE_EVENT_STOP << 8;
    let memory = || File::open(format!("/proc/{tid}/mem"));
    let let_go = |memory| Stood::look(tid, &memory).and_then(|mut stood| stood.let_go(&memory));
    is_asked && memory().and_then(let_go).is_ok()
}

fn has_ended(pid: pid_t, tid: pid_t) -> bool {
    matches!(state_of(pid, tid), None | Some('Z' | 'X'))
}

/// Do we trace a thread of this process?
pub(super) fn is_any_ours(pid: pid_t) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    tids.any(|tid| is_ours(pid, tid))
}

fn is_ours(pid: pid_t, tid: pid_t) -> bool {
    let status = crate::proc::text(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() == std::process::id().to_string())
}

fn state_of(pid: pid_t, tid: pid_t) -> Option<char> {
    let stat = crate::proc::text(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
}

fn signal_mask(tid: pid_t) -> io::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: the kernel writes so many bytes.
    check(unsafe { ptrace(PTRACE_GETSIGMASK, tid, size_of::<u64>(), &raw mut mask as usize) })?;
    Ok(mask)
}

/// Does a signal wait for the thread that an instruction of its own has raised?
fn is_about_to_handle(tid: pid_t) -> io::Result<bool> {
    const PTRACE_PEEKSIGINFO: c_uint = 0x4209;
    const AT_ONCE: usize = 16;
    const RAISED: [i32; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGTRAP, libc::SIGFPE, libc::SIGSYS];
    /// `struct ptrace_peeksiginfo_args`.
    #[repr(C)]
    struct Asked {
        from: u64,
        flags: u32,
        count: i32,
    }
    let asked = Asked { from: 0, flags: 0, count: AT_ONCE as i32 };
    // SAFETY: the structs are integers; the kernel reads one, and writes as many of the others as there are.
    let (found, infos) = unsafe {
        let mut infos: [libc::siginfo_t; AT_ONCE] = std::mem::zeroed();
        let found = ptrace(PTRACE_PEEKSIGINFO, tid, &raw const asked as usize, infos.as_mut_ptr() as usize);
        check(found)?;
        (found as usize, infos)
    };
    let raised = infos[..found].iter().map(|info| info.si_signo).filter(|signal| RAISED.contains(signal));
    let set = raised.fold(0u64, |set, signal| set | 1 << (signal - 1));
    Ok(set != 0 && set & !signal_mask(tid)? != 0)
}

enum Stop {
    NotYet,
    Ended,
    /// As it was asked to.
    Event,
    Signal(i32),
}

fn stop_of(tid: pid_t) -> io::Result<Stop> {
    match wait(tid, libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT | libc::WNOHANG) {
        Ok((0, ..)) => return Ok(Stop::NotYet),
        // It is left for the main loop, should it be a child of ours.
        Ok((_, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED, _)) => return Ok(Stop::Ended),
        Ok(_) => {}
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => return Ok(Stop::Ended),
        Err(e) => return Err(e),
    }
    Ok(match wait(tid, libc::WSTOPPED | libc::WNOHANG)? {
        // It was killed meanwhile.
        (0, ..) => Stop::NotYet,
        (_, _, status) if status >> 8 != 0 => Stop::Event,
        (_, _, status) => Stop::Signal(status & 0xff),
    })
}

/// Has a thread run until it comes to the agent's breakpoint, and returns what is in rax then.
pub(super) fn run_to_breakpoint(tid: pid_t, meanwhile: &mut Meanwhile) -> io::Result<i64> {
    loop {
        resume(tid, libc::PTRACE_CONT, 0)?;
        let (stop, is_event) = wait_for_stop(tid)?;
        match stop {
            _ if is_event => {}
            libc::SIGTRAP if is_of_kernel(tid)? => return Ok(registers(tid)?.rax as i64),
            libc::SIGTRAP => meanwhile.is_to_trap = true,
            libc::SIGSTOP => meanwhile.is_to_stop = true,
            _ => return Err(io::Error::other(format!("it was stopped by signal {stop} inside the agent"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// A process that sleeps.
    fn sleeper(seconds: &str) -> Child {
        let child = Command::new("sleep").arg(seconds).spawn().expect("sleep starts");
        while state_of(child.id() as pid_t, child.id() as pid_t) != Some('S') {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The loader may wait too, for its files.
        std::thread::sleep(Duration::from_millis(50));
        child
    }

    #[test]
    fn a_process_stands_still_and_then_its_sleep_goes_on() {
        let begun = Instant::now();
        let mut child = sleeper("0.3");
        let pid = child.id() as pid_t;
        let stopped = Stopped::all(pid, None).expect("a child may be traced");
        let [stood] = &*stopped.threads else { panic!("{} threads", stopped.threads.len()) };
        assert!(stood.is_in_restart() || stood.regs.orig_rax != NO_CALL, "it is in the middle of its call");
        assert!(stood.kept().iter().all(|range| range.bytes > 0));
        std::thread::sleep(Duration::from_millis(400));
        assert_eq!(state_of(pid, pid), Some('t'));
        drop(stopped);
        assert!(child.wait().expect("our child").success());
        assert!(begun.elapsed() >= Duration::from_millis(300));
    }

    #[test]
    fn a_thread_that_stops_at_any_moment_is_seen_to_stand() {
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh starts");
        let stands =
            || Stopped::all(child.id() as pid_t, None).is_ok_and(|stopped| stopped.threads.len() == 1);
        let stood = (0..2000).take_while(|_| stands()).count();
        child.kill().and_then(|()| child.wait()).expect("our child");
        assert_eq!(stood, 2000);
    }

    #[test]
    fn a_signal_that_comes_while_it_stands_still_is_not_lost() {
        use std::os::unix::process::ExitStatusExt;
        let mut child = sleeper("60");
        let stopped = Stopped::all(child.id() as pid_t, None).expect("a child may be traced");
        signals::send(child.id(), libc::SIGTERM);
        drop(stopped);
        assert_eq!(child.wait().expect("our child").signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn calls_with_no_long_time_of_their_own_begin_again() {
        let memory = File::open("/proc/self/mem").expect("our own memory");
        // SAFETY: integers, all of which may be 0.
        let none: user_regs_struct = unsafe { std::mem::zeroed() };
        let of = |call: libc::c_long, r10: u64, rdx: u64| {
            begins_again(&user_regs_struct { orig_rax: call as u64, r10, rdx, ..none }, &memory)
        };
        let (short, long) = ([1u64, 500_000_000], [3600u64, 0]);
        let at = |time: &[u64; 2]| std::ptr::from_ref(time) as u64;
        assert!(of(libc::SYS_epoll_wait, -1i32 as u32 as u64, 0) && of(libc::SYS_epoll_wait, 100, 0));
        assert!(!of(libc::SYS_epoll_wait, 3_600_000, 0));
        assert!(of(libc::SYS_rt_sigtimedwait, 0, at(&short)) && of(libc::SYS_rt_sigtimedwait, 0, 0));
        assert!(!of(libc::SYS_rt_sigtimedwait, 0, at(&long)));
        assert!(of(libc::SYS_recvfrom, 0, 0));
        // It has closed its descriptor.
        assert!(!of(libc::SYS_close, 0, 0));
    }
}
