//! The entry point of a program without a loader: a static one, into which the supervisor has mapped this
//! library (`crates/pager/src/plant/`) before its first instruction.
//!
//! ```text
//!   stack:   ... program's first instruction │ argc │ argv ... 0 │ envp ... 0 │
//!            ▲ rsp
//!   memspill_begin ─ relocate ─ as a constructor: joins ─ all registers 0 ─ ret: the program begins
//! ```
//!
//! Nobody has relocated this library, so it does that itself: nothing that holds an address may be used
//! before. Symbols of the C library are weak, and stay 0: without them the agent stands before nothing. The
//! program calls the kernel by its own instructions, so they are trapped (`trap/`), and its agent pages it,
//! in whatever mode the run is. If it is traced, or its calls cannot be trapped, it is in the run's mode, and
//! what it runs and forks is as of any program that does so by instructions of its own.
//!
//! What it does not do: pages are not made read-only again after they were relocated (RELRO).

use crate::machine::{relocation::relocate, sys};
use crate::running;
use crate::start;
use crate::supervisor::address;
use crate::thread::trapped;
use core::arch::global_asm;
use core::ffi::c_char;

// At its first instruction a program has its stack pointer at argc, aligned to 16 bytes, and rdx is what it
// is to call at its end: nothing. So here rsp is 8 below, as at the beginning of any function.
global_asm!(
    ".pushsection .text.memspill_begin,\"ax\",@progbits",
    // BEFORE_ENTRY bytes before the other.
    ".balign 16",
    "jmp {running}",
    ".balign 16",
    ".globl memspill_begin",
    ".type memspill_begin,@function",
    "memspill_begin:",
    "lea rdi, [rip + __ehdr_start]",
    "lea rsi, [rsp + 8]",
    "sub rsp, 8",
    "call {begin}",
    "add rsp, 8",
    "xor eax, eax",
    "xor ebx, ebx",
    "xor ecx, ecx",
    "xor edx, edx",
    "xor esi, esi",
    "xor edi, edi",
    "xor ebp, ebp",
    "xor r8d, r8d",
    "xor r9d, r9d",
    "xor r10d, r10d",
    "xor r11d, r11d",
    "xor r12d, r12d",
    "xor r13d, r13d",
    "xor r14d, r14d",
    "xor r15d, r15d",
    "ret",
    ".size memspill_begin, . - memspill_begin",
    ".popsection",
    begin = sym begin,
    running = sym running::memspill_running,
);

/// `base`: where this library's ELF header is. `stack`: argc, argv and its null, the environment and its
/// null.
unsafe extern "C" fn begin(base: usize, stack: *const usize) {
    // SAFETY: all of this library is mapped there, by nobody else, and nothing of it has run.
    unsafe { relocate(base) };
    // SAFETY: the kernel has put these there.
    unsafe {
        let count = stack.read();
        let words = stack.add(1).cast::<*const c_char>();
        let environment = words.add(count + 1);
        if !sys::is_traced() && trapped::prepare(0).is_ok() {
            address::ask_for_agent();
        }
        start::begin(environment);
    }
}
