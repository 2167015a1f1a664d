//! The instructions that make the program's call, when all is prepared: with the program's registers and on
//! its stack, so that the kernel sees nothing of the agent but the address. They are reached by the return
//! from the trap's handler, or, from a site that was rewritten (`rewrite.rs`), by a jump:
//!
//! ```text
//!   site ─ jmp ▶ its stub: eax = number, rcx = behind the site's syscall ─ jmp ▶ memspill_site
//!     registers into the block; `preparing` = 1
//!     on the thread's alternate stack: publish, wait, touch (`hold::on_site`)
//!     registers back; `preparing` = 0 ─▶ memspill_make; or, to be trapped after all, the site's own syscall
//! ```
//!
//! A signal that comes meanwhile finds the program before its call (`deliver.rs`), with the registers of the
//! block where `preparing` says so.
//!
//! After the call its ranges are withdrawn, the arguments' registers are as the program left them (the call
//! may have been made with others), and the program goes on behind its own instruction. The address travels
//! in rcx, which a system call destroys anyway.

use core::arch::global_asm;
use core::mem::offset_of;

use super::hold;
use super::thread::{Block, Frame, LEFT, Saved};
use crate::protocol::Slot;

const ARGS: usize = offset_of!(Block, frame) + offset_of!(Frame, args);

global_asm!(
    ".pushsection memspill_gadget, \"ax\", @progbits",
    ".hidden memspill_make, memspill_made, memspill_go_on, memspill_end_thread, memspill_site",
    ".globl memspill_make, memspill_made, memspill_go_on, memspill_end_thread, memspill_site",
    ".hidden memspill_site_saved, memspill_site_given_back",
    ".globl memspill_site_saved, memspill_site_given_back",
    "memspill_site:",
    "mov qword ptr gs:[{number}], rax",
    "mov qword ptr gs:[{args}], rdi",
    "mov qword ptr gs:[{args} + 8], rsi",
    "mov qword ptr gs:[{args} + 16], rdx",
    "mov qword ptr gs:[{args} + 24], r10",
    "mov qword ptr gs:[{args} + 32], r8",
    "mov qword ptr gs:[{args} + 40], r9",
    "mov qword ptr gs:[{next}], rcx",
    "mov qword ptr gs:[{stack}], rsp",
    "mov qword ptr gs:[{general}], rbx",
    "mov qword ptr gs:[{general} + 8], rbp",
    "mov qword ptr gs:[{general} + 16], r12",
    "mov qword ptr gs:[{general} + 24], r13",
    "mov qword ptr gs:[{general} + 32], r14",
    "mov qword ptr gs:[{general} + 40], r15",
    "movaps xmmword ptr gs:[{vectors} + 0], xmm0",
    "movaps xmmword ptr gs:[{vectors} + 16], xmm1",
    "movaps xmmword ptr gs:[{vectors} + 32], xmm2",
    "movaps xmmword ptr gs:[{vectors} + 48], xmm3",
    "movaps xmmword ptr gs:[{vectors} + 64], xmm4",
    "movaps xmmword ptr gs:[{vectors} + 80], xmm5",
    "movaps xmmword ptr gs:[{vectors} + 96], xmm6",
    "movaps xmmword ptr gs:[{vectors} + 112], xmm7",
    "movaps xmmword ptr gs:[{vectors} + 128], xmm8",
    "movaps xmmword ptr gs:[{vectors} + 144], xmm9",
    "movaps xmmword ptr gs:[{vectors} + 160], xmm10",
    "movaps xmmword ptr gs:[{vectors} + 176], xmm11",
    "movaps xmmword ptr gs:[{vectors} + 192], xmm12",
    "movaps xmmword ptr gs:[{vectors} + 208], xmm13",
    "movaps xmmword ptr gs:[{vectors} + 224], xmm14",
    "movaps xmmword ptr gs:[{vectors} + 240], xmm15",
    "mov dword ptr gs:[{preparing}], 1",
    "memspill_site_saved:",
    "mov rsp, qword ptr gs:[{top}]",
    "mov rdi, qword ptr gs:[0]",
    "cld",
    "call {on_site}",
    "movaps xmm0, xmmword ptr gs:[{vectors} + 0]",
    "movaps xmm1, xmmword ptr gs:[{vectors} + 16]",
    "movaps xmm2, xmmword ptr gs:[{vectors} + 32]",
    "movaps xmm3, xmmword ptr gs:[{vectors} + 48]",
    "movaps xmm4, xmmword ptr gs:[{vectors} + 64]",
    "movaps xmm5, xmmword ptr gs:[{vectors} + 80]",
    "movaps xmm6, xmmword ptr gs:[{vectors} + 96]",
    "movaps xmm7, xmmword ptr gs:[{vectors} + 112]",
    "movaps xmm8, xmmword ptr gs:[{vectors} + 128]",
    "movaps xmm9, xmmword ptr gs:[{vectors} + 144]",
    "movaps xmm10, xmmword ptr gs:[{vectors} + 160]",
    "movaps xmm11, xmmword ptr gs:[{vectors} + 176]",
    "movaps xmm12, xmmword ptr gs:[{vectors} + 192]",
    "movaps xmm13, xmmword ptr gs:[{vectors} + 208]",
    "movaps xmm14, xmmword ptr gs:[{vectors} + 224]",
    "movaps xmm15, xmmword ptr gs:[{vectors} + 240]",
    "test al, al",
    "mov rdi, qword ptr gs:[{args}]",
    "mov rsi, qword ptr gs:[{args} + 8]",
    "mov rdx, qword ptr gs:[{args} + 16]",
    "mov r10, qword ptr gs:[{args} + 24]",
    "mov r8, qword ptr gs:[{args} + 32]",
    "mov r9, qword ptr gs:[{args} + 40]",
    "mov rsp, qword ptr gs:[{stack}]",
    "mov rax, qword ptr gs:[{number}]",
    "mov rcx, qword ptr gs:[{next}]",
    "mov dword ptr gs:[{preparing}], 0",
    "memspill_site_given_back:",
    "jnz memspill_make",
    "lea rcx, [rcx - 2]",
    "jmp rcx",
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
    number = const offset_of!(Block, frame) + offset_of!(Frame, number),
    next = const offset_of!(Block, frame) + offset_of!(Frame, next),
    stack = const offset_of!(Block, frame) + offset_of!(Frame, stack),
    top = const offset_of!(Block, stack_top),
    preparing = const offset_of!(Block, preparing),
    general = const offset_of!(Block, saved) + offset_of!(Saved, general),
    vectors = const offset_of!(Block, saved) + offset_of!(Saved, vectors),
    on_site = sym hold::on_site,
    state = const offset_of!(Block, state),
    left = const LEFT,
);

unsafe extern "C" {
    fn memspill_site();
    fn memspill_site_saved();
    fn memspill_site_given_back();
    fn memspill_make();
    fn memspill_made();
    fn memspill_go_on();
    fn memspill_end_thread();
}

/// Where the stubs of rewritten sites lead to.
pub fn site() -> usize {
    memspill_site as *const () as usize
}

/// Does a thread at this instruction prepare a call from a rewritten site, with the program's registers as
/// they were, but for rcx: before they are in the block, or after? (Between, `Block::preparing` says it.)
pub fn is_before_site_call(at: usize) -> Option<Side> {
    let label = |label: unsafe extern "C" fn()| label as *const () as usize;
    if (site()..label(memspill_site_saved)).contains(&at) {
        Some(Side::Registers)
    } else if (label(memspill_site_given_back)..make()).contains(&at) {
        Some(Side::Block)
    } else {
        None
    }
}

/// Where it is known which call it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// In the registers; rcx is behind the site's syscall.
    Registers,
    Block,
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
