//! The instructions that make the program's call, when all is prepared: with the program's registers and on
//! its stack, so that the kernel sees nothing of the agent but the address.
//!
//! After the call its ranges are withdrawn, the arguments' registers are as the program left them (the call
//! may have been made with others), and the program goes on behind its own instruction. The address travels
//! in rcx, which a system call destroys anyway.

use core::arch::global_asm;
use core::mem::offset_of;

use super::thread::{Block, Frame, LEFT};
use crate::protocol::Slot;

const ARGS: usize = offset_of!(Block, frame) + offset_of!(Frame, args);

global_asm!(
    ".pushsection memspill_gadget, \"ax\", @progbits",
    ".hidden memspill_make, memspill_made, memspill_go_on, memspill_end_thread",
    ".globl memspill_make, memspill_made, memspill_go_on, memspill_end_thread",
    "memspill_make:",
    "syscall",
    "memspill_made:",
    "mov dword ptr gs:[{count}], 0",
    "mov rdi, qword ptr gs:[{args}]",
    "mov rsi, qword ptr gs:[{args} + 8]",
    "mov rdx, qword ptr gs:[{args} + 16]",
    "mov r10, qword ptr gs:[{args} + 24]",
    "mov r8, qword ptr gs:[{args} + 32]",
    "mov r9, qword ptr gs:[{args} + 40]",
    "mov rcx, qword ptr gs:[{next}]",
    "memspill_go_on:",
    "jmp rcx",
    // The thread's last call: from here on another one may take its block.
    "memspill_end_thread:",
    "mov dword ptr gs:[{state}], {left}",
    "syscall",
    "ud2",
    ".popsection",
    count = const offset_of!(Block, slot) + offset_of!(Slot, count),
    args = const ARGS,
    next = const offset_of!(Block, frame) + offset_of!(Frame, next),
    state = const offset_of!(Block, state),
    left = const LEFT,
);

unsafe extern "C" {
    fn memspill_make();
    fn memspill_made();
    fn memspill_go_on();
    fn memspill_end_thread();
}

/// Where the call is made.
pub fn make() -> usize {
    memspill_make as *const () as usize
}

/// From here on the call has been made, and rax is its result.
pub fn made() -> usize {
    memspill_made as *const () as usize
}

/// The last instruction, which jumps to rcx.
pub fn go_on() -> usize {
    memspill_go_on as *const () as usize
}

/// Where a thread ends.
pub fn end_thread() -> usize {
    memspill_end_thread as *const () as usize
}
