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
//! same file as a loader would. Who asks, and when: `crates/agent/src/agent/exec.rs`.
//!
//! What can go wrong (ptrace is forbidden, address space is limited) ends the command before its first
//! instruction. Others go on as they are, outside the budget, and a line says so.
//!
//! The main thread is the only tracer: whoever traces must do all of it, and a process that is below us as a
//! child tells its stops to whichever of our threads waits. It is told of all that its tracees do, signals
//! among it, which it passes on; for as long as it takes from the asking to the exec.
//!
//! What it does not do: programs that are started by system calls of a program's own, where these are not
//! trapped. (The kernel drops what a set-user-id program would gain when that is traced: nobody asks for
//! those.)
#![allow(unsafe_code, reason = "ptrace and waitpid, on integers and a struct of registers")]

use crate::door::target::has_no_loader;
use crate::proc;
use crate::process::wire;
use crate::signals;
use crate::times::{TRACEES_LOOK, TRACEES_LOOK_OLD, TRACEES_NEW};
use libc::{c_int, c_uint, pid_t, user_regs_struct};
use memspill_agent::AGENT_SO;
use memspill_agent::protocol::{Forked, Go, MAGIC};
use object::LittleEndian;
use object::elf::{FileHeader64, PF_R, PF_W, PF_X, PT_LOAD, ProgramHeader64};
use object::pod::{from_bytes, slice_from_bytes};
use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// Of x86-64, little endian: 0f 05.
const SYSCALL: u64 = 0x050f;
/// Below the stack pointer, far from what the kernel has put there.
const SCRATCH_BELOW: u64 = 1024;
/// The code segment of 64-bit programs.
const CODE_64: u64 = 0x33;
/// In orig_rax. With another value the kernel might take a stop for an interrupted call, and repeat that.
const NO_CALL: u64 = u64::MAX;
const PTRACE_SETSIGMASK: c_uint = 0x420b;
/// Of the kernel, not the C library's.
const SIGSET_BYTES: usize = 8;

/// Lets the command's process stop at its first instruction, with all signals blocked but the one that says
/// so: another that it would stop for before that would stop it for ever, for we wait for its exec. After
/// whatever sets its mask.
pub fn on_exec(command: &mut Command) {
    // SAFETY: only async-signal-safe calls: sigfillset, sigdelset, sigprocmask, ptrace.
    unsafe {
        command.pre_exec(|| {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::sigdelset(&mut all, libc::SIGTRAP);
            libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
            match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
}

/// Plants the agent, which is the file `agent` for the command too, and lets it begin. `mask`: its signal
/// mask. To be called by the thread that has started it. It is killed where that fails.
pub fn plant(child: &mut Child, agent: &str, mask: &libc::sigset_t) -> io::Result<()> {
    let pid = child.id() as pid_t;
    let planted = wait_for_trap(pid, libc::PTRACE_CONT, Trap::Exec).and_then(|meanwhile| {
        let mut kept = [0; SIGSET_BYTES];
        // SAFETY: the set is longer than that, and consists of integers.
        kept.copy_from_slice(unsafe { std::slice::from_raw_parts((&raw const *mask).cast(), SIGSET_BYTES) });
        Tracee::at_first_instruction(pid, meanwhile)?.plant(agent, u64::from_ne_bytes(kept))
    });
    planted.map_err(|e| {
        signals::send(child.id(), libc::SIGKILL);
        let _ = child.wait();
        io::Error::new(e.kind(), format!("cannot put the agent into a statically linked program: {e}"))
    })
}

/// A thread that is about to run a static program, and waits for an answer.
struct Asker {
    pid: u32,
    /// As it calls itself.
    own_tid: u32,
    socket: Arc<OwnedFd>,
    /// The signal mask that the program is to have. The thread has blocked all signals.
    mask: u64,
}

/// Those who have come in by the door, for the main thread.
#[derive(Default)]
pub struct Askers(Mutex<Vec<Asker>>);

impl Askers {
    pub fn add(&self, pid: u32, own_tid: u32, socket: Arc<OwnedFd>, mask: u64) {
        self.0.lock().expect("askers").push(Asker { pid, own_tid, socket, mask });
        // For this the main thread waits.
        signals::send(std::process::id(), libc::SIGCHLD);
    }
}

/// The main thread's own: the threads that it follows from the asking to the exec.
pub struct Tracer<'a> {
    askers: &'a Askers,
    agent: &'a str,
    /// A process goes on without an agent; why.
    tell: &'a dyn Fn(u32, &io::Error),
    followed: Vec<Followed>,
}

/// A thread that is traced. Of its process only that one: while it executes, the kernel ends the others, and
/// waits until whoever traces them has taken notice; and to trace one more waits for the exec.
struct Followed {
    asker: Asker,
    thread: pid_t,
    since: Instant,
    /// Its exec has failed, and it is about to stop.
    ends: bool,
}

impl<'a> Tracer<'a> {
    pub fn new(askers: &'a Askers, agent: &'a str, tell: &'a dyn Fn(u32, &io::Error)) -> Tracer<'a> {
        Tracer { askers, agent, tell, followed: Vec::new() }
    }

    /// When there is something to look at, beside what the kernel tells.
    pub fn next_look(&self) -> Option<Duration> {
        let is_new = |followed: &Followed| followed.since.elapsed() < TRACEES_NEW;
        let new = self.followed.iter().any(is_new).then_some(TRACEES_LOOK);
        new.or((!self.followed.is_empty()).then_some(TRACEES_LOOK_OLD))
    }

    /// Begins to follow who has asked, and lets go whose exec has failed.
    pub fn look(&mut self) {
        for asker in std::mem::take(&mut *self.askers.0.lock().expect("askers")) {
            match self.seize(&asker) {
                Ok(thread) => {
                    asker.answer(0);
                    self.followed.push(Followed { asker, thread, since: Instant::now(), ends: false });
                }
                Err(e) => {
                    asker.answer(e.raw_os_error().unwrap_or(libc::EPERM));
                    (self.tell)(asker.pid, &io::Error::new(e.kind(), format!("it cannot be traced: {e}")));
                }
            }
        }
        for followed in self.followed.iter_mut().filter(|followed| !followed.ends) {
            // (An error: it is closed, by the exec, of which we are about to be told, or it has ended.)
            if wire::receive_now::<Forked>(&*followed.asker.socket).is_ok() {
                followed.ends = true;
                // ESRCH: it was killed, of which we are told.
                let _ = resume(followed.thread, libc::PTRACE_INTERRUPT, 0);
            }
        }
    }

    fn seize(&self, asker: &Asker) -> io::Result<pid_t> {
        // The first of two threads that execute at once ends the other.
        if self.followed.iter().any(|followed| followed.asker.pid == asker.pid) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let thread = proc::thread(asker.pid, asker.own_tid)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        // SAFETY: no memory is passed.
        check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, 0, libc::PTRACE_O_TRACEEXEC) })?;
        Ok(thread as pid_t)
    }

    /// What the kernel tells of a thread that may be one of those; `status` as of waitpid(2).
    pub fn is_told(&mut self, thread: u32, status: c_int) {
        let thread = thread as pid_t;
        let is_exec = status >> 8 == libc::SIGTRAP | libc::PTRACE_EVENT_EXEC << 8;
        // With the exec it becomes its process's first.
        let whose = |one: &Followed| one.thread == thread || is_exec && one.asker.pid as pid_t == thread;
        let is_stop = libc::WIFSTOPPED(status);
        let Some(index) = self.followed.iter().position(whose) else { return };
        if is_stop && !is_exec && !self.followed[index].ends {
            return go_on(thread, status, libc::PTRACE_CONT);
        }
        let Followed { asker, .. } = self.followed.swap_remove(index);
        if is_exec {
            if let Err(e) = plant_at_stop(thread, self.agent, asker.mask) {
                (self.tell)(asker.pid, &e);
            }
        } else if is_stop {
            go_on(thread, status, libc::PTRACE_DETACH);
            asker.answer(0);
        }
    }
}

impl Asker {
    fn answer(&self, errno: i32) {
        // Whom it does not reach has gone.
        let _ = wire::send(&*self.socket, &Go { magic: MAGIC, errno }, &[]);
    }
}

/// The new program has not begun. Whatever goes wrong, it does.
fn plant_at_stop(pid: pid_t, agent: &str, mask: u64) -> io::Result<()> {
    let how = libc::PTRACE_SYSCALL;
    // (The thread had SIGTRAP blocked too.)
    let planted = set_signal_mask(pid, !(1 << (libc::SIGTRAP - 1)))
        // The call of exec ends, and sets its result.
        .and_then(|()| resume(pid, how, 0))
        .and_then(|()| wait_for_trap(pid, how, Trap::Step))
        .and_then(|meanwhile| Tracee::at_first_instruction(pid, meanwhile))
        .and_then(|tracee| {
            tracee.plant(agent, mask).inspect_err(|_| {
                let _ = tracee.set_registers(&tracee.regs);
            })
        });
    planted.inspect_err(|_| {
        let _ = set_signal_mask(pid, mask);
        let _ = resume(pid, libc::PTRACE_DETACH, 0);
    })
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

fn resume(pid: pid_t, how: c_uint, signal: c_int) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::ptrace(how, pid, 0, libc::c_long::from(signal)) })
}

fn set_signal_mask(pid: pid_t, mask: u64) -> io::Result<()> {
    // SAFETY: the kernel reads so many bytes.
    check(unsafe { libc::ptrace(PTRACE_SETSIGMASK, pid, SIGSET_BYTES, &raw const mask) })
}

/// What the start of such a command has failed with.
pub fn explained(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS) => io::Error::new(
            error.kind(),
            format!(
                "the command is statically linked, and to put the agent into it takes ptrace(2), which is \
                 not allowed here (a debugger has it, a sandbox, or kernel.yama.ptrace_scope is 3): {error}"
            ),
        ),
        _ => error,
    }
}

/// A process that stands still before its first instruction, with all signals blocked.
struct Tracee {
    pid: pid_t,
    /// As the kernel has set them.
    regs: user_regs_struct,
    meanwhile: Cell<Meanwhile>,
}

impl Tracee {
    fn at_first_instruction(pid: pid_t, meanwhile: Meanwhile) -> io::Result<Tracee> {
        // SAFETY: integers, all of which may be 0.
        let regs = unsafe { std::mem::zeroed() };
        let mut tracee = Tracee { pid, regs, meanwhile: Cell::new(meanwhile) };
        tracee.regs = tracee.registers()?;
        Ok(tracee)
    }

    /// And lets it go on, with this signal mask.
    fn plant(&self, agent: &str, mask: u64) -> io::Result<()> {
        // The file is another than the one that was looked at: its loader brings the agent.
        if !has_no_loader(self.pid as u32) || self.regs.cs != CODE_64 {
            return self.let_go(mask);
        }
        let first = self.regs.rip;
        let instructions = self.peek(first)?;
        self.poke(first, instructions & !0xffff | SYSCALL)?;
        let begin = self.map_agent(agent);
        self.poke(first, instructions)?;
        let begin = begin?;
        let stack = self.regs.rsp - 8;
        self.poke(stack, first)?;
        self.set_registers(&user_regs_struct { rip: begin, rsp: stack, orig_rax: NO_CALL, ..self.regs })?;
        self.let_go(mask)
    }

    /// With the signals that it has had meanwhile. If somebody continues it from here on, the kernel forgets
    /// that signal: it has stopped for one, and not gone on yet.
    fn let_go(&self, mask: u64) -> io::Result<()> {
        let Meanwhile { is_to_stop, is_to_trap } = self.meanwhile.get();
        let stops = is_to_stop && !is_continued(self.pid);
        set_signal_mask(self.pid, mask)?;
        if is_to_trap {
            signals::send(self.pid as u32, libc::SIGTRAP);
        }
        resume(self.pid, libc::PTRACE_DETACH, if stops { libc::SIGSTOP } else { 0 })
    }

    /// Returns the address at which the agent begins.
    fn map_agent(&self, agent: &str) -> io::Result<u64> {
        let path = (self.regs.rsp - SCRATCH_BELOW) & !7;
        for (index, word) in words_of(agent).enumerate() {
            self.poke(path + 8 * index as u64, word)?;
        }
        let fd =
            self.call(libc::SYS_openat, [libc::AT_FDCWD as u64, path, libc::O_CLOEXEC as u64, 0, 0, 0])?;
        let mapped = self.map_parts(fd);
        self.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
        mapped
    }

    fn map_parts(&self, fd: u64) -> io::Result<u64> {
        let image = Image::of(AGENT_SO);
        let private = libc::MAP_PRIVATE as u64;
        let anonymous = private | (libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        let none = libc::PROT_NONE as u64;
        let base = self.call(libc::SYS_mmap, [0, image.bytes(), none, anonymous, u64::MAX, 0])?;
        for part in image.parts() {
            let fixed = private | libc::MAP_FIXED as u64;
            let args = [base + part.start, part.bytes, part.protection as u64, fixed, fd, part.offset];
            self.call(libc::SYS_mmap, args)?;
        }
        Ok(base + image.entry)
    }

    /// Has it make a system call.
    fn call(&self, number: libc::c_long, args: [u64; 6]) -> io::Result<u64> {
        const ERRNO_MAX: u64 = 4095;
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        let regs = user_regs_struct {
            rax: number as u64,
            orig_rax: NO_CALL,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.regs
        };
        self.set_registers(&regs)?;
        resume(self.pid, libc::PTRACE_SINGLESTEP, 0)?;
        let now = wait_for_trap(self.pid, libc::PTRACE_SINGLESTEP, Trap::Step)?;
        let before = self.meanwhile.get();
        self.meanwhile.set(Meanwhile {
            is_to_stop: before.is_to_stop || now.is_to_stop,
            is_to_trap: before.is_to_trap || now.is_to_trap,
        });
        let result = self.registers()?.rax;
        match result.wrapping_neg() {
            errno @ 1..=ERRNO_MAX => Err(io::Error::from_raw_os_error(errno as i32)),
            _ => Ok(result),
        }
    }

    fn registers(&self) -> io::Result<user_regs_struct> {
        let mut regs = self.regs;
        // SAFETY: the kernel fills the struct, which is the one that it has for this.
        check(unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.pid, 0, &raw mut regs) })?;
        Ok(regs)
    }

    fn set_registers(&self, regs: &user_regs_struct) -> io::Result<()> {
        // SAFETY: the kernel reads the struct, which is the one that it has for this.
        check(unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.pid, 0, std::ptr::from_ref(regs)) })
    }

    fn peek(&self, addr: u64) -> io::Result<u64> {
        // SAFETY: the address is the other process's. Any value is good, so an error is known by errno alone.
        unsafe {
            *libc::__errno_location() = 0;
            let word = libc::ptrace(libc::PTRACE_PEEKDATA, self.pid, addr, 0);
            match *libc::__errno_location() {
                0 => Ok(word as u64),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    fn poke(&self, addr: u64, word: u64) -> io::Result<()> {
        // SAFETY: the address is the other process's.
        check(unsafe { libc::ptrace(libc::PTRACE_POKEDATA, self.pid, addr, word) })
    }
}

/// A string and its NUL, as a processor would read them.
fn words_of(text: &str) -> impl Iterator<Item = u64> {
    (0..=text.len() / 8).map(|index| {
        let mut word = [0; 8];
        let rest = &text.as_bytes()[8 * index..];
        let bytes = rest.len().min(8);
        word[..bytes].copy_from_slice(&rest[..bytes]);
        u64::from_le_bytes(word)
    })
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What a thread stops for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trap {
    /// The exec of one that has asked to be traced itself.
    Exec,
    /// What it was resumed for.
    Step,
}

/// Signals that could not be blocked, and came while it was at it. It has gone on first.
#[derive(Clone, Copy, Default)]
struct Meanwhile {
    is_to_stop: bool,
    is_to_trap: bool,
}

/// Waits for the trap, for which it was resumed by `how`. It may have been asked to stop by us, too.
///
/// Of one that has ended the status is left for the main loop, for it may be the command's.
fn wait_for_trap(pid: pid_t, how: c_uint, trap: Trap) -> io::Result<Meanwhile> {
    let mut meanwhile = Meanwhile::default();
    loop {
        let (signal, is_event) = wait_for_stop(pid)?;
        match signal {
            libc::SIGTRAP if !is_event && (trap == Trap::Exec || is_of_kernel(pid)?) => return Ok(meanwhile),
            _ if is_event => {}
            libc::SIGTRAP => meanwhile.is_to_trap = true,
            libc::SIGSTOP => meanwhile.is_to_stop = true,
            _ => return Err(io::Error::other(format!("it was stopped by signal {signal}"))),
        }
        resume(pid, how, 0)?;
    }
}

/// The signal for which it has stopped, and whether that is an event of its own.
fn wait_for_stop(pid: pid_t) -> io::Result<(c_int, bool)> {
    let wait = |options| {
        // SAFETY: the struct is integers, and lives across the call. (No signal interrupts it: those that are
        // handled are blocked.)
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let result = libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, options | libc::__WALL);
            check(result.into())?;
            io::Result::Ok((info.si_pid(), info.si_code, info.si_status()))
        }
    };
    loop {
        let (_, code, _) = wait(libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT)?;
        if !matches!(code, libc::CLD_TRAPPED | libc::CLD_STOPPED) {
            return Err(io::Error::other("it was killed"));
        }
        // 0: it has been killed since.
        if let (1.., _, status) = wait(libc::WSTOPPED | libc::WNOHANG)? {
            return Ok((status & 0xff, status >> 8 != 0));
        }
    }
}

/// Is the signal for which it has stopped of the kernel's making?
fn is_of_kernel(pid: pid_t) -> io::Result<bool> {
    // SAFETY: the kernel fills the struct, which is integers.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        check(libc::ptrace(libc::PTRACE_GETSIGINFO, pid, 0, &raw mut info))?;
        Ok(info.si_code > 0)
    }
}

/// Has somebody continued it, whose signals are blocked?
fn is_continued(pid: pid_t) -> bool {
    let status = proc::text(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = |name: &str| {
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix(name)?.trim(), 16).ok())
    };
    ["SigPnd:", "ShdPnd:"]
        .iter()
        .any(|name| pending(name).is_some_and(|set| set >> (libc::SIGCONT - 1) & 1 != 0))
}

/// What of a shared object is mapped where.
struct Image<'a> {
    segments: &'a [ProgramHeader64<LittleEndian>],
    /// Where it begins, from its base.
    entry: u64,
}

/// Whole pages; `start` from the base.
#[derive(PartialEq, Eq, Debug)]
struct Part {
    start: u64,
    bytes: u64,
    offset: u64,
    protection: c_int,
}

impl<'a> Image<'a> {
    fn of(file: &'a [u8]) -> Image<'a> {
        let (header, _) = from_bytes::<FileHeader64<LittleEndian>>(file).expect("the agent is an ELF file");
        let table = &file[header.e_phoff.get(LittleEndian) as usize..];
        let count = header.e_phnum.get(LittleEndian).into();
        let (segments, _) = slice_from_bytes(table, count).expect("the agent has program headers");
        Image { segments, entry: header.e_entry.get(LittleEndian) }
    }

    fn parts(&self) -> impl Iterator<Item = Part> {
        let loaded = self.segments.iter().filter(|segment| segment.p_type.get(LittleEndian) == PT_LOAD);
        loaded.map(|segment| {
            let flags = segment.p_flags.get(LittleEndian);
            let protections = [(PF_R, libc::PROT_READ), (PF_W, libc::PROT_WRITE), (PF_X, libc::PROT_EXEC)];
            let vaddr = segment.p_vaddr.get(LittleEndian);
            let start = vaddr & !(PAGE - 1);
            Part {
                start,
                bytes: (vaddr + segment.p_memsz.get(LittleEndian)).next_multiple_of(PAGE) - start,
                offset: segment.p_offset.get(LittleEndian) & !(PAGE - 1),
                protection: protections
                    .into_iter()
                    .filter(|(flag, _)| flags.contains(*flag))
                    .fold(0, |all, (_, one)| all | one),
            }
        })
    }

    /// From the base to the end.
    fn bytes(&self) -> u64 {
        self.parts().map(|part| part.start + part.bytes).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_all_in_its_file() {
        let image = Image::of(AGENT_SO);
        let parts: Vec<Part> = image.parts().collect();
        assert!(parts.windows(2).all(|pair| pair[0].start + pair[0].bytes <= pair[1].start), "{parts:?}");
        for (part, segment) in parts
            .iter()
            .zip(image.segments.iter().filter(|segment| segment.p_type.get(LittleEndian) == PT_LOAD))
        {
            // Nothing is anonymous memory (the agent's main.rs says why), nor needs zeros behind it.
            let in_file = (segment.p_vaddr.get(LittleEndian) + segment.p_filesz.get(LittleEndian))
                .next_multiple_of(PAGE)
                - part.start;
            assert_eq!(part.bytes, in_file);
            let shift = |value: u64| value & (PAGE - 1);
            assert_eq!(shift(segment.p_offset.get(LittleEndian)), shift(segment.p_vaddr.get(LittleEndian)));
        }
        let code = parts.iter().find(|part| (part.start..part.start + part.bytes).contains(&image.entry));
        assert_eq!(code.map(|part| part.protection), Some(libc::PROT_READ | libc::PROT_EXEC));
    }

    #[test]
    fn a_path_as_words() {
        let words = |text| words_of(text).collect::<Vec<u64>>();
        assert_eq!(words(""), [0]);
        assert_eq!(words("/proc/1"), [u64::from_le_bytes(*b"/proc/1\0")]);
        assert_eq!(words("/proc/12"), [u64::from_le_bytes(*b"/proc/12"), 0]);
        assert_eq!(words("/proc/123"), [u64::from_le_bytes(*b"/proc/12"), u64::from(b'3')]);
    }
}
