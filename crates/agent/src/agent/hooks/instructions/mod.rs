//! Where a static program runs others, and forks: the instructions of its own that make these calls are
//! rewritten before it begins, for it has no C library before which the agent could stand.
//!
//! ```text
//!   compilers, C libraries   mov $N, %eax (or %rax) ; syscall    N: 59 execve, 57 fork, 56 clone, and
//!                                                                157 prctl, 317 seccomp
//!   Go                       mov %rcx, %rsi ; mov %rbx, %rdi ; syscall                  any number
//!   Go before 1.19           mov 8(%rsp), %rax ; syscall                                any number
//!   glibc's syscall()        mov 8(%rsp), %r9 ; syscall                                 any number
//!                            ▼
//!                            jmp stub ; (the syscall stays)
//!
//!   stub:   what was there ─ is it such a call? no ─▶ the syscall
//!                            yes: behind the syscall in %rcx, which the call does not keep ─▶ agent
//!
//!   agent:  exec             signals blocked, lock ─ asks (`exec.rs`) on a stack of the agent's ─ unlock
//!                            execve ─ if it fails: tells ─ signals ─▶ behind the syscall
//!           fork             as the C library's fork does (`fork.rs`) ─▶ behind the syscall
//!           prctl, seccomp   has the program got a seccomp filter? From then on nobody asks, and the
//!                            children of forks do not join: it might end them for that (a fork asks for the
//!                            process's number, as those of other programs do)
//! ```
//!
//! *A stack of the agent's*, for those of Go have room for some hundred bytes. It is free again before the
//! program is run: the child of a vfork shares it with its parent.
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
//! *Only where calls are not trapped.* If they all are (`trap/`) this is done in the trap.
//!
//! What it does not do: what it does not find, and so code that is made at run time; forks where any number
//! is called (Go's have no use for one without an exec), or with a stack of their own; execveat. Such
//! children are as those of any raw call: outside the budget, or, of forks, served, with nothing of them
//! swapped out. A program that copies these instructions to another place copies a jump that leads astray.

use crate::common::sync::{AtomicU32, AtomicUsize, Ordering};
use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;

use super::fork;
use crate::machine::sys;
use crate::programs::confined;
use crate::programs::exec::{self, Asked, EXECVE};
use crate::programs::site::{keep_registers, restore_registers};
use crate::supervisor::address;
use crate::supervisor::state::{AgentState, STATE};
use crate::thread::trapped;

mod program;
mod sites;

/// The start of this program, if it has begun here.
#[unsafe(link_section = ".data.hot")]
static ENTRY: AtomicUsize = AtomicUsize::new(0);

/// A program without a loader is about to begin at this address (`planted.rs`).
pub fn program_begins(entry: usize) {
    ENTRY.store(entry, Ordering::Relaxed);
}

/// It is known where the supervisor listens, and no call is trapped yet. If it is a static program that
/// begins, and its calls are not to be trapped as long as it runs, the agent stands before some of them.
pub fn address_is_known() {
    let entry = ENTRY.load(Ordering::Relaxed);
    if entry == 0 {
        return;
    }
    confined::program_is_planted();
    if !address::are_all_trapped() {
        place(entry);
    }
}

/// Stands before the program's calls, where that is possible. `entry`: the address of its first instruction.
/// It has not begun.
fn place(entry: usize) {
    sites::place(entry, memspill_program_call as *const () as usize);
}

/// The number of threads, and children of vfork, that may ask at once.
const STACKS: usize = 4;
const STACK_BYTES: usize = 8 << 10;

#[repr(C, align(16))]
struct Stacks(UnsafeCell<[[u8; STACK_BYTES]; STACKS]>);
// SAFETY: whoever stands on one holds its lock.
unsafe impl Sync for Stacks {}

// In .data, which is no memory that is managed.
#[unsafe(link_section = ".data")]
static STACK: Stacks = Stacks(UnsafeCell::new([[0; STACK_BYTES]; STACKS]));
/// Not 0: somebody stands on it. A thread that is killed there leaves it so.
#[unsafe(link_section = ".data.hot")]
static LOCKS: [AtomicU32; STACKS] = [const { AtomicU32::new(0) }; STACKS];
static ALL_SIGNALS: u64 = u64::MAX;
/// Between two looks at the locks: 100 us, as `struct timespec`.
static PAUSE: [u64; 2] = [0, 100_000];
/// Longer than anybody holds one while the supervisor runs. Then the program is run without asking.
const LOOKS: usize = 20_000;

// Registers are kept but for rax, rcx and r11, which a system call changes too. In an exec rbx
// points to the arguments, r13 is the program's stack pointer, at which its signal mask lies, r14 what `ask`
// and `failed` have said, r12 the result, and r15 which stack it is.
global_asm!(
    ".pushsection .text.memspill_program, \"ax\", @progbits",
    ".hidden memspill_program_call",
    ".globl memspill_program_call",
    "memspill_program_call:",
    "cmp eax, {execve}",
    "je 100f",
    "cmp eax, {clone}",
    "je 10f",
    "cmp eax, {fork_}",
    "jne 20f",
    // A fork.
    "10:",
    keep_registers!(),
    "mov r12, rcx",
    "mov rdi, rbx",
    "mov rsi, rax",
    "call {fork}",
    "mov rcx, r12",
    restore_registers!(),
    "jmp rcx",
    // The program sets a filter of system calls, or does something else by such a call.
    "20:",
    "lea rsp, [rsp - 128]",
    "push rcx",
    "push rax",
    "syscall",
    "pop rcx",
    "test rax, rax",
    "js 3f",
    "cmp ecx, {prctl}",
    "jne 1f",
    "cmp edi, {pr_set_seccomp}",
    "jne 3f",
    "jmp 2f",
    "1:",
    "cmp edi, {set_mode_filter}",
    "ja 3f",
    "2:",
    "mov dword ptr [rip + {state} + {confined}], 1",
    "3:",
    "pop rcx",
    "lea rsp, [rsp + 128]",
    "jmp rcx",
    // An exec. Such a filter may not allow what is done here: then it is made as those calls are, and is
    // none of them.
    "100:",
    "cmp dword ptr [rip + {state} + {confined}], 0",
    "jne 20b",
    "lea rsp, [rsp - 128]",
    "pushfq",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
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
    "jmp 5f",
    "4:",
    "mov rdi, r14",
    "mov eax, {close}",
    "syscall",
    "xor r14d, r14d",
    "5:",
    "call 71f",
    "mov rax, r12",
    "test r14, r14",
    "jz 9f",
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
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "popfq",
    "lea rsp, [rsp + 128]",
    "jmp rcx",
    // A stack, to r15. Afterwards ZF: it is had.
    "50:",
    "mov r8d, {looks}",
    "51:",
    "xor r15d, r15d",
    "lea rdi, [rip + {locks}]",
    "52:",
    "xor eax, eax",
    "mov ecx, 1",
    "lock cmpxchg dword ptr [rdi + 4 * r15], ecx",
    "jz 59f",
    "inc r15d",
    "cmp r15d, {stacks}",
    "jb 52b",
    "lea rdi, [rip + {pause}]",
    "xor esi, esi",
    "mov eax, {nanosleep}",
    "syscall",
    "dec r8d",
    "jnz 51b",
    "inc r8d",
    "59:",
    "ret",
    // Calls rax on that stack, with rbx, rsi and rdx, and unlocks.
    "60:",
    "lea r8, [rip + {stack} + {stack_bytes}]",
    "mov ecx, r15d",
    "imul rcx, rcx, {stack_bytes}",
    "lea rsp, [r8 + rcx - 512]",
    "fxsave64 [rsp]",
    "mov rdi, rbx",
    "call rax",
    "fxrstor64 [rsp]",
    "lea rsp, [r13 - 8]",
    "lea rcx, [rip + {locks}]",
    "mov dword ptr [rcx + 4 * r15], 0",
    "ret",
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
    state = sym STATE,
    confined = const offset_of!(AgentState, confined),
    all_signals = sym ALL_SIGNALS,
    pause = sym PAUSE,
    locks = sym LOCKS,
    stack = sym STACK,
    stacks = const STACKS,
    stack_bytes = const STACK_BYTES,
    looks = const LOOKS,
    close = const 3,
    nanosleep = const 35,
    rt_sigprocmask = const 14,
    sig_setmask = const 2,
    clone = const sites::CLONE,
    fork_ = const sites::FORK,
    prctl = const sites::PRCTL,
    pr_set_seccomp = const 22,
    set_mode_filter = const 1,
    execve = const EXECVE,
);

unsafe extern "C" {
    fn memspill_program_call();
}

/// The socket on which an answer was given, or -1: nobody is to be told of this exec. `mask`: what the
/// program is to have.
extern "C" fn ask(args: &[usize; 6], mask: u64) -> isize {
    // A trapped call is asked for in the trap.
    if trapped::traps() || !exec::concerns(args) {
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
    // SAFETY: the program's own call, passed through.
    let call = || unsafe { sys::syscall_raw(number, *args) };
    confined::look_for_filters();
    fork::by_program(|| {
        let result = call();
        if result == 0 {
            // No holder of a lock is here.
            LOCKS.iter().for_each(|lock| lock.store(0, Ordering::Relaxed));
        }
        result
    })
}
