//! Plants the agent into a command that has no loader: a static program, in which LD_PRELOAD does nothing.
//!
//! ```text
//!   the command's process                       this one, its tracer (ptrace(2))
//!   PTRACE_TRACEME, all signals blocked
//!   execve ── stops at its first instruction ─▶ writes `syscall` there
//!   open, mmap ... mmap, close   ◀───────────── one step each
//!                                               puts the instruction back, lays its address on the stack,
//!   the agent's own beginning    ◀───────────── points to the agent, lets go
//!   joins ─ returns to the first instruction
//! ```
//!
//! So the kernel has executed the program as always: /proc/PID/exe, its name, its heap and its vector of
//! values are right. The agent relocates itself (`crates/agent/src/agent/planted.rs`), and is mapped from the
//! same file as a loader would.
//!
//! What can go wrong (ptrace is forbidden, address space is limited) ends the command before its first
//! instruction.
//!
//! What it does not do: programs that the command starts. (The kernel drops what a set-user-id program would
//! gain when that is traced: memspill refuses those before.)
#![allow(unsafe_code, reason = "ptrace and waitpid, on integers and a struct of registers")]

use crate::signals;
use libc::{c_int, c_uint, c_void, pid_t, user_regs_struct};
use memspill_agent::AGENT_SO;
use object::LittleEndian;
use object::elf::{FileHeader64, PF_R, PF_W, PF_X, PT_LOAD, ProgramHeader64};
use object::pod::{from_bytes, slice_from_bytes};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

const PAGE: u64 = 4096;
/// Of x86-64, little endian: 0f 05.
const SYSCALL: u64 = 0x050f;
/// Below the stack pointer, far from what the kernel has put there.
const SCRATCH_BELOW: u64 = 1024;
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
    let planted = Tracee::stopped(child.id() as pid_t).and_then(|tracee| tracee.plant(agent, mask));
    planted.map_err(|e| {
        signals::send(child.id(), libc::SIGKILL);
        let _ = child.wait();
        io::Error::new(e.kind(), format!("cannot put the agent into a statically linked program: {e}"))
    })
}

/// What the start of such a command has failed with.
pub fn explained(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS) => io::Error::new(
            error.kind(),
            format!(
                "the command is statically linked, and to put the agent into it takes ptrace(2), which is not \
                 allowed here (a debugger has it, or a sandbox, or kernel.yama.ptrace_scope is 3): {error}"
            ),
        ),
        _ => error,
    }
}

/// A process that stands still before its first instruction.
struct Tracee {
    pid: pid_t,
    /// As the kernel has set them.
    regs: user_regs_struct,
}

impl Tracee {
    fn stopped(pid: pid_t) -> io::Result<Tracee> {
        wait_for_trap(pid)?;
        // SAFETY: integers, all of which may be 0.
        let mut tracee = Tracee { pid, regs: unsafe { std::mem::zeroed() } };
        tracee.regs = tracee.registers()?;
        Ok(tracee)
    }

    fn plant(&self, agent: &str, mask: &libc::sigset_t) -> io::Result<()> {
        let first = self.regs.rip;
        let instructions = self.peek(first)?;
        self.poke(first, instructions & !0xffff | SYSCALL)?;
        let begin = self.map_agent(agent)?;
        self.poke(first, instructions)?;
        let stack = self.regs.rsp - 8;
        self.poke(stack, first)?;
        self.set_registers(&user_regs_struct { rip: begin, rsp: stack, ..self.regs })?;
        // SAFETY: the kernel reads so many bytes of the mask.
        unsafe {
            let mask = std::ptr::from_ref(mask).cast_mut().cast::<c_void>();
            check(libc::ptrace(PTRACE_SETSIGMASK, self.pid, SIGSET_BYTES, mask))?;
            check(libc::ptrace(libc::PTRACE_DETACH, self.pid, 0, 0))
        }
    }

    /// Returns the address at which the agent begins.
    fn map_agent(&self, agent: &str) -> io::Result<u64> {
        let path = self.regs.rsp - SCRATCH_BELOW & !7;
        for (index, word) in words_of(agent).enumerate() {
            self.poke(path + 8 * index as u64, word)?;
        }
        let fd =
            self.call(libc::SYS_openat, [libc::AT_FDCWD as u64, path, libc::O_CLOEXEC as u64, 0, 0, 0])?;
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
        self.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
        Ok(base + image.entry)
    }

    /// Has it make a system call.
    fn call(&self, number: libc::c_long, args: [u64; 6]) -> io::Result<u64> {
        const ERRNO_MAX: u64 = 4095;
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        // With another orig_rax the kernel might take the stop for an interrupted call, and repeat that.
        let regs = user_regs_struct {
            rax: number as u64,
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.regs
        };
        self.set_registers(&regs)?;
        // SAFETY: no memory is passed.
        check(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.pid, 0, 0) })?;
        wait_for_trap(self.pid)?;
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

fn wait_for_trap(pid: pid_t) -> io::Result<()> {
    let mut status: c_int = 0;
    // SAFETY: the status lives across the call. (No signal interrupts it: those that are handled are blocked.)
    check(unsafe { libc::waitpid(pid, &mut status, libc::__WALL) }.into())?;
    match libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status)) {
        Some(libc::SIGTRAP) => Ok(()),
        Some(signal) => Err(io::Error::other(format!("it was stopped by signal {signal}"))),
        None => Err(io::Error::other("it was killed")),
    }
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
