//! Processes that ask to be traced (PTRACE_TRACEME) while calls are trapped. Traps are signals: tracers see
//! each signal of the process that it traces.
//!
//! gdb starts a program by vfork: the child asks to be traced, and the parent sleeps until the child
//! executes. A trap in between would stop the child for a tracer that cannot come. So:
//!
//! ```text
//!   child of a fork, not joined yet   it has all of its memory: its calls are trapped no more, and it
//!                                     never joins
//!   any other                         it hears that it is traced, and is so from its exec on, or from a
//!                                     signal that it sends to itself
//! ```
//!
//! The exec is made without a trap. The program that it starts does not join (`handshake.rs`).
//!
//! What it does not do: a process that has joined, and executes nothing, is not traced before it sends itself
//! a signal; then its tracer sees the traps.

use super::late;
use crate::machine::gadget;
use crate::machine::sys::{self, AT_FDCWD, EPERM, Result, nr};
use crate::thread::block::Block;

const PTRACE_TRACEME: u32 = 0;
const KILL: usize = 62;
const TKILL: usize = 200;
const TGKILL: usize = 234;
const GETTID: usize = 186;

pub fn asks(number: usize, args: &[usize; 6]) -> bool {
    number == nr::PTRACE && args[0] as u32 == PTRACE_TRACEME
}

/// The child of a fork that has not joined yet asks: the result. None: this is another process.
pub fn leaves(block: &mut Block) -> Option<Result<usize>> {
    let is_out = late::stay_out();
    block.has_left |= is_out;
    is_out.then(trace_me)
}

/// Any other process asks.
pub fn will_be(block: &mut Block) -> Result<usize> {
    // Calls that are made here are not trapped inside the handler.
    gadget::disarm()?;
    let is_traced = block.is_to_be_traced || sys::is_traced();
    if gadget::arm().is_err() {
        sys::die();
    }
    if is_traced {
        return Err(EPERM);
    }
    block.is_to_be_traced = true;
    Ok(0)
}

/// The call is about to be made, and all that it uses is there. From here on the process may be traced.
pub fn before(block: &mut Block, number: usize, args: &[usize; 6]) {
    if !block.is_to_be_traced {
        return;
    }
    let own = |call| {
        // SAFETY: no memory involved.
        unsafe { gadget::call(call, [0; 6]) }.unwrap_or(0) as u32
    };
    let is_exec = match number {
        nr::EXECVE => can_be_run(AT_FDCWD, args[0]),
        nr::EXECVEAT => can_be_run(args[0], args[1]),
        _ => false,
    };
    let is_signal = match number {
        KILL => args[0] as u32 == own(nr::GETPID) && args[1] != 0,
        TKILL => args[0] as u32 == own(GETTID) && args[1] != 0,
        TGKILL => args[1] as u32 == own(GETTID) && args[2] != 0,
        _ => false,
    };
    if is_exec || is_signal {
        block.is_to_be_traced = false;
        if is_exec {
            let _ = gadget::disarm();
        }
        let _ = trace_me();
    }
}

fn trace_me() -> Result<usize> {
    // SAFETY: no memory involved.
    unsafe { gadget::call(nr::PTRACE, [PTRACE_TRACEME as usize, 0, 0, 0, 0, 0]) }
}

/// Will an exec of this file most likely succeed? One that fails leaves a process whose calls are trapped no
/// more; execvp tries many files that are not there.
fn can_be_run(directory: usize, path: usize) -> bool {
    const X_OK: usize = 1;
    const NEWFSTATAT: usize = 262;
    const FACCESSAT: usize = 269;
    /// `st_mode` among the 32-bit words of `struct stat`.
    const MODE: usize = 6;
    const S_IFMT: u32 = 0o170000;
    const S_IFREG: u32 = 0o100000;
    let mut stat = [0u32; 36];
    // SAFETY: the kernel reads a path, and writes a struct of that size.
    let (known, may) = unsafe {
        (
            gadget::call(NEWFSTATAT, [directory, path, stat.as_mut_ptr() as usize, 0, 0, 0]),
            gadget::call(FACCESSAT, [directory, path, X_OK, 0, 0, 0]),
        )
    };
    known.is_ok() && may.is_ok() && stat[MODE] & S_IFMT == S_IFREG
}
