//! Where a static program runs others, and forks: the instructions of its own that make these calls are
//! rewritten before it begins, for it has no C library before which the agent could stand.
//!
//! ```text
//!   compilers, C libraries   mov $N, %eax ; syscall              N: 59 execve, 57 fork, 56 clone
//!   Go                       mov %rcx, %rsi ; mov %rbx, %rdi ; syscall                  any number
//!   Go before 1.19           mov 8(%rsp), %rax ; syscall                                any number
//!   glibc's syscall()        mov 8(%rsp), %r9 ; syscall                                 any number
//!                            ▼
//!                            jmp stub ; (the syscall stays)
//!
//!   stub:   what was there ─ is it such a call? no ─▶ the syscall
//!                            yes: behind the syscall in %rcx, which the call does not keep ─▶ one of:
//!
//!   memspill_program_exec    signals blocked, lock ─ asks (`exec.rs`) on a stack of the agent's ─ unlock
//!                            execve ─ if it fails: tells ─ signals ─▶ behind the syscall
//!   memspill_program_fork    as the C library's fork does (`fork.rs`) ─▶ behind the syscall
//! ```
//!
//! *A stack of the agent's*, for those of Go have room for some hundred bytes. There is one, and so a lock,
//! which is free again before the program is run: the child of a vfork shares it with its parent. Who was
//! killed with the lock leaves it to the next one who waits for long.
//!
//! *Only code is looked at*: sections that the file says to be code. What looks like these instructions
//! elsewhere, in a program that carries another one as data, is not to be changed. So a file without sections
//! (packed ones) is left as it is.
//!
//! | file         | what is in it                                           |
//! |--------------|---------------------------------------------------------|
//! | `mod.rs`     | what is done when such a call is made                   |
//! | `sites.rs`   | the places, their stubs, and how they are rewritten     |
//! | `program.rs` | what the program's file tells of its code               |
//!
//! *Only where calls are not trapped.* Where they all are (`dispatch/`) this is done in the trap.
//!
//! What it does not do: what it does not find, and so code that is made at run time; forks where any number
//! is called (Go's have no use for one without an exec); execveat. Such children are as those of any raw
//! call: outside the budget, or, of forks, served, with nothing of them swapped out.

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::exec::{self, Asked, EXECVE};
use crate::site::{keep_registers, restore_registers};
use crate::{dispatch, fork, planted, sys};

mod program;
mod sites;

/// Stands before the program's calls, where that is possible. `entry`: the address of its first instruction.
/// It has not begun.
pub fn place(entry: usize) {
    let targets = sites::Targets {
        exec: memspill_program_exec as *const () as usize,
        fork: memspill_program_fork as *const () as usize,
    };
    sites::place(entry, &targets);
}

const STACK_BYTES: usize = 16 << 10;

#[repr(C, align(16))]
struct Stack(UnsafeCell<[u8; STACK_BYTES]>);
// SAFETY: whoever stands on it holds the lock.
unsafe impl Sync for Stack {}

// In .data, which is no memory that is managed.
#[unsafe(link_section = ".data")]
static STACK: Stack = Stack(UnsafeCell::new([0; STACK_BYTES]));
/// The thread that stands on the stack, or 0.
#[unsafe(link_section = ".data.hot")]
static LOCK: AtomicU32 = AtomicU32::new(0);
static ALL_SIGNALS: u64 = u64::MAX;
/// Between two looks at the lock: 100 us, as `struct timespec`.
static PAUSE: [u64; 2] = [0, 100_000];
/// Far longer than anybody holds it.
const LOOKS: usize = 20_000;

// Registers are kept but for rax, rcx and r11, which a system call changes too. In memspill_program_exec rbx
// points to the arguments, r13 is the program's stack pointer, at which its signal mask lies, r14 what `ask`
// and `failed` have said, and r12 the result.
global_asm!(
    ".pushsection .text.memspill_program, \"ax\", @progbits",
    ".hidden memspill_program_fork, memspill_program_exec",
    ".globl memspill_program_fork, memspill_program_exec",
    "memspill_program_fork:",
    keep_registers!(),
    "mov r12, rcx",
    "mov rdi, rbx",
    "mov rsi, rax",
    "call {fork}",
    "mov rcx, r12",
    restore_registers!(),
    "jmp rcx",
    //
    "memspill_program_exec:",
    "lea rsp, [rsp - 128]",
    "pushfq",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push rcx",
    "push r9",
    "push r8",
    "push r10",
    "push rdx",
    "push rsi",
    "push rdi",
    "mov rbx, rsp",
    "push 0",
    "mov r13, rsp",
    "cld",
    "lea rsi, [rip + {all_signals}]",
    "mov rdx, rsp",
    "call 70f",
    "mov r14, -1",
    "call 50f",
    "jnz 2f",
    "mov rsi, qword ptr [r13]",
    "lea rax, [rip + {ask}]",
    "call 60f",
    "mov r14, rax",
    "2:",
    "test r14, r14",
    "jns 3f",
    // Nobody was asked: the program that is run inherits the mask.
    "call 71f",
    "call 80f",
    "jmp 9f",
    "3:",
    "call 80f",
    "mov r12, rax",
    "call 50f",
    "jnz 4f",
    "mov rsi, r12",
    "mov rdx, r14",
    "lea rax, [rip + {failed}]",
    "call 60f",
    "mov r14, rax",
    "4:",
    "call 71f",
    "mov rax, r12",
    "cmp r14, 1",
    "jne 9f",
    "call 80f",
    "9:",
    "mov rsp, rbx",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop r10",
    "pop r8",
    "pop r9",
    "pop rcx",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "popfq",
    "lea rsp, [rsp + 128]",
    "jmp rcx",
    // The lock. Afterwards ZF: it is had.
    "50:",
    "mov eax, {gettid}",
    "syscall",
    "mov r9d, eax",
    "mov r8d, {looks}",
    "51:",
    "xor eax, eax",
    "lock cmpxchg dword ptr [rip + {lock}], r9d",
    "jz 59f",
    "lea rdi, [rip + {pause}]",
    "xor esi, esi",
    "mov eax, {nanosleep}",
    "syscall",
    "dec r8d",
    "jnz 51b",
    // Who has it was killed?
    "mov edi, dword ptr [rip + {lock}]",
    "mov r10d, edi",
    "mov eax, {tkill}",
    "syscall",
    "cmp eax, -{esrch}",
    "jne 59f",
    "mov eax, r10d",
    "lock cmpxchg dword ptr [rip + {lock}], r9d",
    "59:",
    "ret",
    // Calls rax on the agent's stack with rbx, rsi, rdx, and unlocks.
    "60:",
    "pop r8",
    "lea rsp, [rip + {stack} + {stack_bytes}]",
    "push r8",
    "sub rsp, 520",
    "fxsave64 [rsp]",
    "mov rdi, rbx",
    "call rax",
    "fxrstor64 [rsp]",
    "add rsp, 520",
    "pop r8",
    "mov rsp, r13",
    "mov dword ptr [rip + {lock}], 0",
    "jmp r8",
    // The signal mask: from rsi, the old one to rdx; back.
    "71:",
    "mov rsi, r13",
    "xor edx, edx",
    "70:",
    "mov eax, {rt_sigprocmask}",
    "mov edi, {sig_setmask}",
    "mov r10d, 8",
    "syscall",
    "ret",
    // The program's call.
    "80:",
    "mov rdi, qword ptr [rbx]",
    "mov rsi, qword ptr [rbx + 8]",
    "mov rdx, qword ptr [rbx + 16]",
    "mov r10, qword ptr [rbx + 24]",
    "mov r8, qword ptr [rbx + 32]",
    "mov r9, qword ptr [rbx + 40]",
    "mov eax, {execve}",
    "syscall",
    "ret",
    ".popsection",
    fork = sym on_fork,
    ask = sym ask,
    failed = sym failed,
    all_signals = sym ALL_SIGNALS,
    pause = sym PAUSE,
    lock = sym LOCK,
    stack = sym STACK,
    stack_bytes = const STACK_BYTES,
    looks = const LOOKS,
    gettid = const 186,
    nanosleep = const 35,
    tkill = const 200,
    esrch = const 3,
    rt_sigprocmask = const 14,
    sig_setmask = const 2,
    execve = const EXECVE,
);

unsafe extern "C" {
    fn memspill_program_fork();
    fn memspill_program_exec();
}

/// The socket on which an answer was given, or -1: nobody is to be told of this exec. `mask`: what the
/// program is to have.
extern "C" fn ask(args: &[usize; 6], mask: u64) -> isize {
    // A trapped call is asked for in the trap.
    if dispatch::traps() || !exec::concerns(args[0]) {
        return -1;
    }
    exec::ask(mask).map_or(-1, |asked| asked.into_socket() as isize)
}

/// Whether the call is to be made again, by somebody whom nobody traces.
extern "C" fn failed(_args: &[usize; 6], result: usize, socket: i32) -> usize {
    Asked::of_socket(socket).failed();
    exec::is_forbidden(result).into()
}

/// The call, by its arguments in their order, and its result, which comes back twice. The child has a copy of
/// its parent's stack.
extern "C" fn on_fork(args: &[usize; 6], number: usize) -> usize {
    planted::look_for_filters();
    fork::by_program(|| {
        // SAFETY: the program's own call, passed through.
        let result = unsafe { sys::syscall_raw(number, *args) };
        if result == 0 {
            // Whoever had it is not here.
            LOCK.store(0, Ordering::Relaxed);
        }
        result
    })
}
