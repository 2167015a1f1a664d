//! The instructions that make the program's call, when all is prepared: with the program's registers and on
//! its stack, so that the kernel sees nothing of the agent but the address. They are reached by the return
//! from the trap's handler, or, from a site that was rewritten (`rewrite.rs`), by a jump:
//!
//! ```text
//!   site ─ jmp ▶ its stub: eax = number, rcx = behind the site's syscall ─ jmp ▶ memspill_site
//!     %gs is not the block: the site's own syscall
//!     registers into the block; `preparing` = 1
//!     on the thread's alternate stack: publish, wait, touch (`untrapped.rs`)
//!     registers back; `preparing` = 0 ─▶ memspill_make; or, to be trapped after all, the site's own syscall
//! ```
//!
//! A signal that comes meanwhile finds the program before its call (`deliver.rs`), with the registers of the
//! block where `preparing` says so.
//!
//! After the call its ranges are withdrawn, the arguments' registers are as the program left them (the call
//! may have been made with others), and the program goes on behind its own instruction. The address travels
//! in rcx, which a system call destroys anyway.
//!
//! *%gs* points to the thread's block here. If the program has it point elsewhere the call is made by
//! memspill_make_foreign, which r11 tells the block, and which gives the program its own %gs at last. At a
//! rewritten site %gs is taken for the thread's block if it lies among the blocks, at the place that it
//! names, and names the thread's %fs: a coroutine may take the %gs of one thread to another.

use core::arch::global_asm;
use core::mem::offset_of;

use super::untrapped;
use crate::common::protocol::Slot;
use crate::machine::context::Registers;
use crate::machine::gadget;
use crate::thread::block::{self, Block, Frame, LEFT, Saved};

const ARGS: usize = offset_of!(Block, frame) + offset_of!(Frame, args);

global_asm!(
    ".pushsection memspill_gadget, \"ax\", @progbits",
    ".hidden memspill_make, memspill_made, memspill_go_on, memspill_end_thread, memspill_site",
    ".globl memspill_make, memspill_made, memspill_go_on, memspill_end_thread, memspill_site",
    ".hidden memspill_site_saved, memspill_site_given_back, memspill_site_foreign, memspill_site_checked",
    ".globl memspill_site_saved, memspill_site_given_back, memspill_site_foreign, memspill_site_checked",
    ".hidden memspill_make_foreign, memspill_make_foreign_call, memspill_made_foreign",
    ".globl memspill_make_foreign, memspill_make_foreign_call, memspill_made_foreign",
    ".hidden memspill_go_on_foreign, memspill_end_thread_foreign, memspill_thread_ended",
    ".globl memspill_go_on_foreign, memspill_end_thread_foreign, memspill_thread_ended",
    "memspill_site_foreign:",
    "lea r11, [rcx - 2]",
    "jmp r11",
    // The program may have set %gs.
    "memspill_site_checked:",
    "rdgsbase r11",
    "sub r11, qword ptr [rip + {shared} + {arena}]",
    "cmp r11, qword ptr [rip + {shared} + {arena_bytes}]",
    "jae memspill_site_foreign",
    "rdgsbase r11",
    "cmp r11, qword ptr gs:[0]",
    "jne memspill_site_foreign",
    "rdfsbase r11",
    "cmp r11, qword ptr gs:[{fs}]",
    "jne memspill_site_foreign",
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
    "memspill_make_foreign:",
    "wrgsbase r11",
    "memspill_make_foreign_call:",
    "syscall",
    "memspill_made_foreign:",
    "mov dword ptr gs:[{count}], 0",
    "mov rdi, qword ptr gs:[{args}]",
    "mov rsi, qword ptr gs:[{args} + 8]",
    "mov rdx, qword ptr gs:[{args} + 16]",
    "mov r10, qword ptr gs:[{args} + 24]",
    "mov r8, qword ptr gs:[{args} + 32]",
    "mov r9, qword ptr gs:[{args} + 40]",
    "mov rcx, qword ptr gs:[{next}]",
    "mov r11, qword ptr gs:[{gs}]",
    "wrgsbase r11",
    "memspill_go_on_foreign:",
    "jmp rcx",
    // The thread's last call: from here on another one may take its block.
    "memspill_end_thread_foreign:",
    "wrgsbase r11",
    "memspill_end_thread:",
    "mov dword ptr gs:[{state}], {left}",
    "syscall",
    "memspill_thread_ended:",
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
    on_site = sym untrapped::on_site,
    state = const offset_of!(Block, state),
    left = const LEFT,
    gs = const offset_of!(Block, gs),
    fs = const offset_of!(Block, fs),
    shared = sym block::SHARED,
    arena = const block::SHARED_ARENA,
    arena_bytes = const block::SHARED_BYTES,
);

unsafe extern "C" {
    fn memspill_site();
    fn memspill_site_saved();
    fn memspill_site_given_back();
    fn memspill_make();
    fn memspill_made();
    fn memspill_go_on();
    fn memspill_end_thread();
    fn memspill_site_foreign();
    fn memspill_site_checked();
    fn memspill_make_foreign();
    fn memspill_make_foreign_call();
    fn memspill_made_foreign();
    fn memspill_go_on_foreign();
    fn memspill_end_thread_foreign();
    fn memspill_thread_ended();
}

fn at(label: unsafe extern "C" fn()) -> usize {
    label as *const () as usize
}

/// Where the stubs of rewritten sites lead to.
pub fn site() -> usize {
    at(if gadget::has_fsgsbase() { memspill_site_checked } else { memspill_site })
}

/// The place of a thread that is at one of these instructions, but for those that prepare a call from a
/// rewritten site while `Block::preparing` says so.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Before its call, as the registers say; rcx is behind the site's syscall.
    BeforeByRegisters,
    /// Before its call, as the block says.
    Before,
    /// The call has been made, and rax is its result.
    After,
    /// At the last instruction, which jumps to rcx.
    AtEnd,
}

/// None: it is elsewhere. True: %gs may be the block, where `Block::gs` is the program's.
pub fn place(of: usize) -> Option<(Place, bool)> {
    use Place::{After, AtEnd, Before, BeforeByRegisters};
    let ranges = [
        (at(memspill_site_foreign)..at(memspill_site_saved), BeforeByRegisters, false),
        (at(memspill_site_given_back)..at(memspill_made), Before, false),
        (at(memspill_made)..at(memspill_go_on), After, false),
        (at(memspill_go_on)..at(memspill_make_foreign), AtEnd, false),
        (at(memspill_make_foreign)..at(memspill_made_foreign), Before, true),
        (at(memspill_made_foreign)..at(memspill_go_on_foreign), After, true),
        (at(memspill_go_on_foreign)..at(memspill_end_thread_foreign), AtEnd, false),
    ];
    let found = ranges.into_iter().find(|(range, _, _)| range.contains(&of));
    found.map(|(_, place, has_own_gs)| (place, has_own_gs))
}

/// Is the thread about to make a call?
pub fn is_before_call(of: usize) -> bool {
    [memspill_make, memspill_make_foreign, memspill_make_foreign_call]
        .into_iter()
        .any(|label| at(label) == of)
}

/// Behind the call that is made for the program, where `is_foreign` says whether %gs is to be its own again.
pub fn behind_call(is_foreign: bool) -> usize {
    at(if is_foreign { memspill_made_foreign } else { memspill_made })
}

/// The addresses at which a seccomp filter sees the program's calls; most are at the first.
pub fn made_at() -> [usize; 3] {
    [at(memspill_made), at(memspill_made_foreign), at(memspill_thread_ended)]
}

/// Has a thread make its call when the handler returns: as the registers say, with all prepared.
pub fn go_to_make(block: &mut Block, regs: &mut Registers) {
    go_to(block, regs, memspill_make, memspill_make_foreign);
}

/// Has it end.
pub fn go_to_end_thread(block: &mut Block, regs: &mut Registers) {
    go_to(block, regs, memspill_end_thread, memspill_end_thread_foreign);
}

/// To instructions that find the block by %gs: `foreign` are those that point it there first.
pub fn go_to(
    block: &mut Block,
    regs: &mut Registers,
    plain: unsafe extern "C" fn(),
    foreign: unsafe extern "C" fn(),
) {
    block.gs = gadget::gs(block.address);
    if block.gs == block.address {
        regs.rip = at(plain);
    } else {
        regs.rip = at(foreign);
        regs.r11 = block.address;
    }
}
