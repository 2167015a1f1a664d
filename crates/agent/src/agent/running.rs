//! The entry point in a process that runs already, into which the supervisor has mapped this library
//! (`crates/pager/src/plant/running.rs`) while all its threads stand still.
//!
//! ```text
//!   a thread, by ptrace:  entry(what, struct) on a stack of the supervisor's ─ enter ─ breakpoint
//! ```
//!
//! `common/src/running.rs` draws what is asked for. As in a static program (`planted.rs`) nobody has
//! relocated this library, and the C library's symbols are 0: the program calls the kernel by its own
//! instructions, which are trapped, and its agent pages it.
//!
//! Only one thread runs at a time, with all of its signals blocked. Its registers are restored by the
//! tracer, but for those of the FPU.
//!
//! What it does not do: rewrite sites in the program's code, which other threads may be in the middle of.

use crate::common::protocol::KIND_EXEC;
use crate::common::running::{END, JOIN, Joining, LEAVE, LOOK, Left, Range, TRAP, Thread, WHOLE};
use crate::join::handshake;
use crate::machine::relocation::relocate;
use crate::machine::sys::{EINVAL, Result};
use crate::programs::{preload, readable};
use crate::start;
use crate::supervisor::address;
use crate::thread::trapped;
use crate::trap::running;
use core::arch::global_asm;
use core::ffi::c_char;

// No signal comes but the breakpoint's, after which the tracer has the thread go on elsewhere.
global_asm!(
    ".pushsection .text.memspill_running,\"ax\",@progbits",
    ".hidden memspill_running",
    ".globl memspill_running",
    "memspill_running:",
    "sub rsp, 512",
    "fxsave64 [rsp]",
    "cld",
    "lea rdx, [rip + __ehdr_start]",
    "call {enter}",
    "fxrstor64 [rsp]",
    "int3",
    "ud2",
    ".popsection",
    enter = sym enter,
);

unsafe extern "C" {
    pub fn memspill_running();
}

/// 0, or an errno less than 0.
unsafe extern "C" fn enter(what: u64, at: usize, base: usize) -> isize {
    // SAFETY: the supervisor has put the struct there that belongs to what it asks for.
    let done = unsafe {
        match what {
            JOIN => {
                relocate(base);
                join(&*(at as *const Joining))
            }
            TRAP => running::trap(&mut *(at as *mut Thread)),
            WHOLE => running::may_leave(),
            LOOK => running::look(&*(at as *const Thread)),
            LEAVE => running::leave(&mut *(at as *mut Thread)),
            END => {
                running::end(&mut *(at as *mut Left));
                Ok(())
            }
            _ => Err(EINVAL),
        }
    };
    match done {
        Ok(()) => 0,
        Err(errno) => -(errno as isize),
    }
}

/// # Safety
/// The struct tells of an environment and of an array, and nothing of the agent has run.
unsafe fn join(joining: &Joining) -> Result<()> {
    let environment = joining.environment as *const *const c_char;
    trapped::set_running();
    start::hand_down_running();
    // SAFETY: the caller's promise.
    unsafe {
        if !address::learn(environment) {
            return Err(EINVAL);
        }
        readable::learn(environment);
        preload::learn(environment);
        preload::learn_to_add(environment);
        let kept = core::slice::from_raw_parts(joining.kept as *const Range, joining.kept_count as usize);
        running::keep_later(kept, joining.closes != 0);
    }
    address::ask_for_agent();
    handshake::try_join(KIND_EXEC, [0; 16])
}
