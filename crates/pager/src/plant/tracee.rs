//! One process that is traced and stands still: its registers, its memory, calls that it is made to make.
#![allow(unsafe_code, reason = "ptrace and waitid, on integers and structs of integers")]

use super::image::Image;
use crate::door::target::has_no_loader;
use crate::proc;
use crate::published::Published;
use crate::signals;
use libc::{c_int, c_uint, pid_t, user_regs_struct};
use memspill_agent::AGENT_SO;
use std::cell::Cell;
use std::io;
use std::time::Duration;

/// The instruction of x86-64, little endian: 0f 05.
pub(super) const SYSCALL: u64 = 0x050f;
/// Below the stack pointer, far from what the kernel has put there.
const SCRATCH_BELOW: u64 = 1024;
/// The code segment of 64-bit programs.
pub(super) const CODE_64: u64 = 0x33;
/// In orig_rax: no call was interrupted. (With another value the kernel might repeat one.)
pub(super) const NO_CALL: u64 = u64::MAX;
const PTRACE_SETSIGMASK: c_uint = 0x420b;
/// The kernel's size, not the C library's.
const SIGSET_BYTES: usize = 8;

/// A thread that stands still, before its first instruction or anywhere else, with all signals blocked.
pub(super) struct Tracee {
    pid: pid_t,
    /// Its program counter is at an instruction `syscall`. Below its stack pointer nobody needs anything.
    regs: user_regs_struct,
    meanwhile: Cell<Meanwhile>,
    /// How it makes a call: by one step, or, where the breakpoint's signal may be the program's, by the stops
    /// before and after it.
    by_step: bool,
}

impl Tracee {
    pub(super) fn at_first_instruction(pid: pid_t, meanwhile: Meanwhile) -> io::Result<Tracee> {
        // SAFETY: integers, all of which may be 0.
        let regs = unsafe { std::mem::zeroed() };
        let mut tracee = Tracee { pid, regs, meanwhile: Cell::new(meanwhile), by_step: true };
        tracee.regs = tracee.registers()?;
        Ok(tracee)
    }

    /// A thread that is anywhere. `regs`: as the struct says.
    pub(super) fn anywhere(pid: pid_t, regs: user_regs_struct) -> Tracee {
        Tracee { pid, regs, meanwhile: Cell::new(Meanwhile::default()), by_step: false }
    }

    /// Plants the agent, and lets it go on, with this signal mask.
    pub(super) fn plant(&self, agent: &Published, mask: u64) -> io::Result<()> {
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

    /// Back to where it was, without an agent.
    pub(super) fn give_up(&self, mask: u64) {
        // An error: it has ended.
        let _ = self.set_registers(&self.regs).and_then(|()| self.let_go(mask));
    }

    /// Returns the address at which the agent begins.
    pub(super) fn map_agent(&self, agent: &Published) -> io::Result<u64> {
        let mut opened = Err(io::Error::from_raw_os_error(libc::ENOENT));
        for name in agent.names() {
            opened = opened.or_else(|_| self.open(agent, name));
        }
        let fd = opened?;
        let mapped = self.map_parts(fd);
        self.close(fd)?;
        mapped
    }

    /// In its own root directory the name may lead elsewhere.
    fn open(&self, agent: &Published, name: &str) -> io::Result<u64> {
        let path = (self.regs.rsp - SCRATCH_BELOW) & !7;
        for (index, word) in words_of(name).enumerate() {
            self.poke(path + 8 * index as u64, word)?;
        }
        // Nobody is waited for, should it be a FIFO.
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
        let fd = self.call(libc::SYS_openat, [libc::AT_FDCWD as u64, path, flags, 0, 0, 0])?;
        if agent.is(format!("/proc/{}/fd/{fd}", self.pid).as_ref()) {
            return Ok(fd);
        }
        self.close(fd)?;
        Err(io::Error::other("what it finds under the agent's name is not known to be the agent"))
    }

    fn close(&self, fd: u64) -> io::Result<u64> {
        self.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])
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
    pub(super) fn call(&self, number: libc::c_long, args: [u64; 6]) -> io::Result<u64> {
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
        let steps: &[c_uint] =
            if self.by_step { &[libc::PTRACE_SINGLESTEP] } else { &[libc::PTRACE_SYSCALL; 2] };
        for how in steps {
            resume(self.pid, *how, 0)?;
            let now = wait_for_trap(self.pid, *how, Trap::Step)?;
            self.meanwhile.set(self.meanwhile.get().and(now));
        }
        let result = self.registers()?.rax;
        match result.wrapping_neg() {
            errno @ 1..=ERRNO_MAX => Err(io::Error::from_raw_os_error(errno as i32)),
            _ => Ok(result),
        }
    }

    pub(super) fn meanwhile(&self) -> Meanwhile {
        self.meanwhile.get()
    }

    fn registers(&self) -> io::Result<user_regs_struct> {
        registers(self.pid)
    }

    fn set_registers(&self, regs: &user_regs_struct) -> io::Result<()> {
        set_registers(self.pid, regs)
    }

    fn peek(&self, addr: u64) -> io::Result<u64> {
        // SAFETY: the address is the other process's. Any value is good, so an error is known by errno alone.
        unsafe {
            *libc::__errno_location() = 0;
            let word = ptrace(libc::PTRACE_PEEKDATA, self.pid, addr as usize, 0);
            match *libc::__errno_location() {
                0 => Ok(word as u64),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    fn poke(&self, addr: u64, word: u64) -> io::Result<()> {
        // SAFETY: the address is the other process's.
        check(unsafe { ptrace(libc::PTRACE_POKEDATA, self.pid, addr as usize, word as usize) })
    }
}

pub(super) fn registers(pid: pid_t) -> io::Result<user_regs_struct> {
    // SAFETY: integers, all of which may be 0; the kernel fills the struct, which is the one that it has for
    // this.
    unsafe {
        let mut regs: user_regs_struct = std::mem::zeroed();
        check(ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut regs as usize))?;
        Ok(regs)
    }
}

pub(super) fn set_registers(pid: pid_t, regs: &user_regs_struct) -> io::Result<()> {
    // SAFETY: the kernel reads the struct, which is the one that it has for this.
    check(unsafe { ptrace(libc::PTRACE_SETREGS, pid, 0, std::ptr::from_ref(regs) as usize) })
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

pub(super) fn check(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What a thread stops for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Trap {
    /// The exec of one that has asked to be traced itself.
    Exec,
    /// What it was resumed for.
    Step,
}

/// Signals that could not be blocked, and came while it was at it. It has gone on first.
#[derive(Clone, Copy, Default)]
pub(super) struct Meanwhile {
    pub(super) is_to_stop: bool,
    pub(super) is_to_trap: bool,
}

impl Meanwhile {
    pub(super) fn and(self, more: Meanwhile) -> Meanwhile {
        Meanwhile {
            is_to_stop: self.is_to_stop || more.is_to_stop,
            is_to_trap: self.is_to_trap || more.is_to_trap,
        }
    }
}

/// Waits for the trap, for which it was resumed by `how`. It may have been asked to stop by us, too.
///
/// The status of an ended thread is left for the main loop, for it may be the command's.
pub(super) fn wait_for_trap(pid: pid_t, how: c_uint, trap: Trap) -> io::Result<Meanwhile> {
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
pub(super) fn wait_for_stop(pid: pid_t) -> io::Result<(c_int, bool)> {
    /// Most stop within microseconds.
    const LOOKS_AT_ONCE: u32 = 200;
    const LOOK: Duration = Duration::from_micros(50);
    let mut looks = 0;
    loop {
        let (who, code, _) = wait(pid, libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT | libc::WNOHANG)?;
        if who == 0 {
            looks += 1;
            if looks < LOOKS_AT_ONCE {
                std::thread::yield_now();
                continue;
            }
            std::thread::sleep(LOOK);
            // The end of a process's first thread is not told before those of its others, whom we may trace.
            if thread_has_ended(pid) {
                return Err(io::Error::other("it was killed"));
            }
            continue;
        }
        if !matches!(code, libc::CLD_TRAPPED | libc::CLD_STOPPED) {
            return Err(io::Error::other("it was killed"));
        }
        // 0: it has been killed since.
        if let (1.., _, status) = wait(pid, libc::WSTOPPED | libc::WNOHANG)? {
            return Ok((status & 0xff, status >> 8 != 0));
        }
    }
}

/// Gone, or a zombie? (Where the first thread has ended the process may still live.)
fn thread_has_ended(tid: pid_t) -> bool {
    let stat = proc::text(format!("/proc/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// waitid(2) of one thread: its id (0: nothing has come), the code and the status. A stop of a traced thread
/// is told to who asks for ends alone, too.
pub(super) fn wait(tid: pid_t, options: c_int) -> io::Result<(pid_t, c_int, c_int)> {
    // SAFETY: the struct is integers, and lives across the call. (No signal interrupts it: those that are
    // handled are blocked.)
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let result = libc::waitid(libc::P_PID, tid as libc::id_t, &mut info, options | libc::__WALL);
        check(result.into())?;
        Ok((info.si_pid(), info.si_code, info.si_status()))
    }
}

/// Is the signal for which it has stopped of the kernel's making?
pub(super) fn is_of_kernel(pid: pid_t) -> io::Result<bool> {
    // SAFETY: the kernel fills the struct, which is integers.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        check(ptrace(libc::PTRACE_GETSIGINFO, pid, 0, &raw mut info as usize))?;
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

pub(super) fn resume(pid: pid_t, how: c_uint, signal: c_int) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { ptrace(how, pid, 0, signal as usize) })
}

/// Traces a thread, which is told when it executes a program.
pub(super) fn seize(thread: pid_t) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { ptrace(libc::PTRACE_SEIZE, thread, 0, libc::PTRACE_O_TRACEEXEC as usize) })
}

/// Lets the calling process be traced by its parent.
pub(super) fn trace_me() -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { ptrace(libc::PTRACE_TRACEME, 0, 0, 0) })
}

/// The C library's function takes whatever it is given as words.
///
/// # Safety
/// What `data` points to must be good for `how`.
pub(super) unsafe fn ptrace(how: c_uint, pid: pid_t, addr: usize, data: usize) -> libc::c_long {
    // SAFETY: the caller's promise.
    unsafe { libc::ptrace(how, pid, addr, data) }
}

pub(super) fn set_signal_mask(pid: pid_t, mask: u64) -> io::Result<()> {
    // SAFETY: the kernel reads so many bytes.
    check(unsafe { ptrace(PTRACE_SETSIGMASK, pid, SIGSET_BYTES, &raw const mask as usize) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_as_words() {
        let words = |text| words_of(text).collect::<Vec<u64>>();
        assert_eq!(words(""), [0]);
        assert_eq!(words("/proc/1"), [u64::from_le_bytes(*b"/proc/1\0")]);
        assert_eq!(words("/proc/12"), [u64::from_le_bytes(*b"/proc/12"), 0]);
        assert_eq!(words("/proc/123"), [u64::from_le_bytes(*b"/proc/12"), u64::from(b'3')]);
    }
}
