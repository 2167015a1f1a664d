//! A write of which a part is done when its thread is stopped goes on.
//!
//! The kernel ends a write that waits for its reader (of a pipe, a socket, a terminal) where the thread is
//! stopped, and says how much is written. A program that gets no signals never sees that, and may not look.
//! So the rest is written by a second call, and the thread stays traced until that ends:
//!
//! ```text
//!   stands after write(fd, from, bytes) = done
//!     ─▶ write(fd, from + done, bytes - done) ─ begins ─ its thread alone goes on ─ ends
//!     ─▶ the registers as they were, with all that is written; let go
//! ```
//!
//! If the second call fails, or the program has a signal meanwhile, it is told what is written, as always.
//!
//! What it does not do: processes that are attached to, which go on when memspill ends (they are told of the
//! part); writev, sendmsg, sendfile, splice. Where these wait nobody is stopped (`opened.rs`); one that
//! begins to wait at this very moment says how much is written.
#![allow(unsafe_code, reason = "ptrace, on integers")]

use super::tracee::{
    NO_CALL, SYSCALL, check, ptrace, registers, resume, set_registers, set_signal_mask, wait_for_stop,
};
use libc::{c_int, pid_t, user_regs_struct};
use std::cell::{Cell, RefCell};
use std::io;

/// The length of that instruction.
const SYSCALL_BYTES: u64 = 2;
/// A stop before or after a call (PTRACE_O_TRACESYSGOOD).
const CALL_STOP: c_int = libc::SIGTRAP | 0x80;

/// The second call of a write.
struct Write {
    tid: pid_t,
    /// As its thread stood after the first call.
    regs: user_regs_struct,
}

// Both belong to the main thread, which alone traces.
thread_local! {
    static IS_WANTED: Cell<bool> = const { Cell::new(false) };
    /// Second calls under way.
    static WRITES: RefCell<Vec<Write>> = const { RefCell::new(Vec::new()) };
}

/// Have writes go on from now on: no program of this run lives longer than memspill.
pub(super) fn begin() {
    IS_WANTED.set(true);
}

/// The thread has written a part of what it was to write. (A part it may be for another reason: then the rest
/// fails.)
fn is_half_done(regs: &user_regs_struct) -> bool {
    let is_write = [libc::SYS_write, libc::SYS_sendto].contains(&(regs.orig_rax as i64));
    is_write && regs.rax as i64 > 0 && regs.rax < regs.rdx
}

/// Has a thread write the rest, if it stands in the middle of a write, with these registers and this signal
/// mask. False: it is to be let go. `read_word`: reads its memory.
pub(super) fn goes_on(
    tid: pid_t,
    regs: &user_regs_struct,
    mask: u64,
    read_word: impl FnOnce(u64) -> Option<u64>,
) -> io::Result<bool> {
    let instruction = regs.rip.wrapping_sub(SYSCALL_BYTES);
    let is_syscall = || read_word(instruction).is_some_and(|word| word & 0xffff == SYSCALL);
    if !IS_WANTED.get() || !is_half_done(regs) || !is_syscall() {
        return Ok(false);
    }
    let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
    // SAFETY: numbers.
    check(unsafe { ptrace(libc::PTRACE_SETOPTIONS, tid, 0, options as usize) })?;
    // No handler comes before the call has begun.
    set_signal_mask(tid, !0)?;
    set_registers(tid, &second_call(regs))?;
    resume(tid, libc::PTRACE_SYSCALL, 0)?;
    let stop = wait_for_stop(tid)?;
    if stop != (CALL_STOP, false) {
        // SIGSTOP: it has the signal, and what it has written.
        set_registers(tid, regs)?;
        set_signal_mask(tid, mask)?;
        resume(tid, libc::PTRACE_DETACH, if stop.1 { 0 } else { stop.0 })?;
        return Ok(true);
    }
    set_signal_mask(tid, mask)?;
    resume(tid, libc::PTRACE_SYSCALL, 0)?;
    WRITES.with_borrow_mut(|writes| writes.push(Write { tid, regs: *regs }));
    Ok(true)
}

fn second_call(regs: &user_regs_struct) -> user_regs_struct {
    user_regs_struct {
        rip: regs.rip - SYSCALL_BYTES,
        rax: regs.orig_rax,
        orig_rax: NO_CALL,
        rsi: regs.rsi + regs.rax,
        rdx: regs.rdx - regs.rax,
        ..*regs
    }
}

/// The kernel tells of a thread, `status` as of waitpid(2). False: it does not write for us.
pub(super) fn is_told(tid: pid_t, status: c_int) -> bool {
    let Some(index) = WRITES.with_borrow(|writes| writes.iter().position(|write| write.tid == tid)) else {
        return false;
    };
    let write = WRITES.with_borrow_mut(|writes| writes.swap_remove(index));
    let is_end = libc::WIFSTOPPED(status) && status >> 8 == CALL_STOP;
    if is_end {
        // (An error: it was killed.)
        let _ = write.end();
    }
    is_end
}

impl Write {
    fn end(&self) -> io::Result<()> {
        let more = registers(self.tid)?.rax as i64;
        let written = self.regs.rax + more.max(0) as u64;
        set_registers(self.tid, &user_regs_struct { rax: written, ..self.regs })?;
        resume(self.tid, libc::PTRACE_DETACH, 0)
    }
}
