//! The instructions that the kernel lets through: the agent's own system calls, the return from a handler,
//! and accesses to memory that may not be there.
//!
//! Syscall User Dispatch compares the address *after* the `syscall` instruction with the allowed range, which
//! is the section `memspill_gadget`; so a byte of it must follow each of them. The rest of the section is in
//! `enter.rs` and `clone.rs`.
//!
//! A guarded access to memory that is not there, or may not be read or written, ends in SIGSEGV or SIGBUS,
//! for which `recovery` says where to go on: the access says that it failed, and the program's handler learns
//! nothing of it.

use crate::common::sync::{AtomicU32, Ordering};
use core::arch::{asm, global_asm};
use core::mem::{MaybeUninit, size_of, size_of_val};

use super::numbers::{Result, SIGKILL, nr};

pub const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
const PR_SYS_DISPATCH_ON: usize = 1;

global_asm!(
    ".pushsection memspill_gadget, \"ax\", @progbits",
    ".hidden memspill_call, memspill_restorer, memspill_call_and_jump",
    ".globl memspill_call, memspill_restorer, memspill_call_and_jump",
    "memspill_call:",
    "syscall",
    "ret",
    // For `sys::clone`, which cannot return by a stack.
    "memspill_call_and_jump:",
    "syscall",
    "jmp r9",
    // Debuggers know a handler's frame by these very instructions.
    "nop",
    "memspill_restorer:",
    "mov rax, 15",
    "syscall",
    "ud2",
    ".popsection",
    ".pushsection .text.memspill_guarded, \"ax\", @progbits",
    ".hidden memspill_copy, memspill_copy_at, memspill_copy_end",
    ".globl memspill_copy, memspill_copy_at, memspill_copy_end",
    "memspill_copy:",
    "mov rcx, rdx",
    "memspill_copy_at:",
    "rep movsb",
    "memspill_copy_end:",
    "mov rax, rcx",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn memspill_call();
    fn memspill_restorer();
    fn memspill_copy(to: usize, from: usize, len: usize) -> usize;
    fn memspill_copy_at();
    fn memspill_copy_end();
    // Provided by the linker: where the section begins and ends.
    static __start_memspill_gadget: u8;
    static __stop_memspill_gadget: u8;
}

global_asm!(".hidden __start_memspill_gadget, __stop_memspill_gadget");

/// A system call of the agent's own, which is let through. The kernel's number: a result, or an errno less
/// than 0.
///
/// # Safety
/// As for `sys::syscall`.
#[cfg(not(shuttle))]
pub unsafe fn call_raw(number: usize, args: [usize; 6]) -> isize {
    let mut ret = number;
    // SAFETY: the gadget is `syscall` and `ret`, and the kernel preserves all registers but rax, rcx and r11;
    // the rest is the caller's promise.
    unsafe {
        asm!(
            "call {gadget}",
            gadget = sym memspill_call,
            inlateout("rax") ret,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    ret as isize
}

/// The same, by what takes the kernel's place under a model checker.
///
/// # Safety
/// As above.
#[cfg(shuttle)]
pub unsafe fn call_raw(number: usize, args: [usize; 6]) -> isize {
    crate::kernel::call(number, args)
}

/// As above.
///
/// # Safety
/// As above.
pub unsafe fn call(number: usize, args: [usize; 6]) -> Result<usize> {
    // SAFETY: the caller's promise.
    let ret = unsafe { call_raw(number, args) };
    if (-4095..0).contains(&ret) { Err(-ret as i32) } else { Ok(ret as usize) }
}

/// As `sys::die`, inside the handler.
pub fn die() -> ! {
    loop {
        // SAFETY: that nothing of this process runs on is the purpose.
        unsafe {
            let process = call(nr::GETPID, [0; 6]).unwrap_or(0);
            let _ = call(nr::KILL, [process, SIGKILL, 0, 0, 0, 0]);
            let _ = call(nr::EXIT_GROUP, [128 + SIGKILL, 0, 0, 0, 0, 0]);
        }
    }
}

/// Makes a call that looks at the stack pointer, which is `stack` meanwhile; whether it succeeds is not told.
/// It is not let through: for a thread that is not armed.
///
/// # Safety
/// As above; and no signal comes.
pub unsafe fn call_with_stack_at(stack: usize, number: usize, args: [usize; 3]) {
    // SAFETY: the kernel preserves all registers but rax, rcx and r11, and nothing uses the stack before it
    // is what it was; the rest is the caller's promise.
    unsafe {
        asm!(
            "xchg rsp, {stack}",
            "syscall",
            "xchg rsp, {stack}",
            stack = inout(reg) stack => _,
            inlateout("rax") number => _,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
}

/// Not 0: the kernel lets programs set %fs and %gs by an instruction.
#[unsafe(link_section = ".data.hot")]
static HAS_FSGSBASE: AtomicU32 = AtomicU32::new(0);

/// Asks the kernel (AT_HWCAP2) whether programs may set %gs by an instruction. Before any thread is armed.
pub fn find_fsgsbase() {
    const PR_GET_AUXV: usize = 0x4155_5856;
    const AT_HWCAP2: usize = 26;
    const FSGSBASE: usize = 2;
    let mut list = [[0usize; 2]; 64];
    let args = [PR_GET_AUXV, list.as_mut_ptr() as usize, size_of_val(&list), 0, 0, 0];
    // SAFETY: the kernel writes to the list, no more than its length.
    let is_told = unsafe { call(nr::PRCTL, args) }.is_ok();
    let has = |[what, value]: &[usize; 2]| *what == AT_HWCAP2 && value & FSGSBASE != 0;
    HAS_FSGSBASE.store((is_told && list.iter().any(has)).into(), Ordering::Relaxed);
}

/// May programs set %gs by an instruction? If not it is the dispatch's alone.
pub fn has_fsgsbase() -> bool {
    HAS_FSGSBASE.load(Ordering::Relaxed) != 0
}

/// The address in %gs, if the program may have set it; else `block`.
pub fn gs(block: usize) -> usize {
    if !has_fsgsbase() {
        return block;
    }
    let gs: usize;
    // SAFETY: reads a register; the instruction is there.
    unsafe { asm!("rdgsbase {}", out(reg) gs, options(nomem, nostack, preserves_flags)) };
    gs
}

/// The address in %fs, if the program may have set %gs; else 0.
pub fn fs() -> usize {
    if !has_fsgsbase() {
        return 0;
    }
    let fs: usize;
    // SAFETY: as above.
    unsafe { asm!("rdfsbase {}", out(reg) fs, options(nomem, nostack, preserves_flags)) };
    fs
}

/// Points %gs to an address, which is a block, or one that the program has had it point to.
pub fn set_gs(to: usize) -> Result<usize> {
    if has_fsgsbase() {
        // SAFETY: no code of the agent's reads by %gs but the instructions of `enter.rs` and `clone.rs`.
        unsafe { asm!("wrgsbase {}", in(reg) to, options(nomem, nostack, preserves_flags)) };
        return Ok(0);
    }
    set_gs_by_call(to)
}

/// The same by the kernel, which looks whether the address may be.
pub fn set_gs_by_call(to: usize) -> Result<usize> {
    const ARCH_PRCTL: usize = 158;
    const ARCH_SET_GS: usize = 0x1001;
    // SAFETY: as above; no memory involved.
    unsafe { call(ARCH_PRCTL, [ARCH_SET_GS, to, 0, 0, 0, 0]) }
}

/// Where a handler returns to.
pub fn restorer() -> usize {
    memspill_restorer as *const () as usize
}

/// The allowed range: (address, length).
fn allowed() -> (usize, usize) {
    let (start, stop) = (&raw const __start_memspill_gadget, &raw const __stop_memspill_gadget);
    (start as usize, stop as usize - start as usize)
}

/// From now on the calling thread's system calls are trapped, but for those from the gadget.
pub fn arm() -> Result<usize> {
    let (start, len) = allowed();
    // SAFETY: the handler is there, and %gs points to the thread's block.
    unsafe { call(nr::PRCTL, [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, start, len, 0, 0]) }
}

/// Can they be trapped? It leaves this thread's untrapped. (With kernel.syscall_user_dispatch=0, since Linux
/// 7.3, `disarm` says nothing of that.)
pub fn can_arm() -> bool {
    static ALLOW: u8 = 0;
    let selector = &raw const ALLOW as usize;
    let on = [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, selector, 0];
    // SAFETY: the kernel reads the byte, which says that no call is trapped.
    unsafe { call(nr::PRCTL, on) }.is_ok() && disarm().is_ok()
}

/// From now on they are not. Err: the kernel cannot trap them.
pub fn disarm() -> Result<usize> {
    // SAFETY: no memory involved.
    unsafe { call(nr::PRCTL, [PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0, 0]) }
}

/// Where a thread goes on whose guarded access at `address` failed. None: that is no guarded access.
pub fn recovery(address: usize) -> Option<usize> {
    let at = |label: unsafe extern "C" fn()| label as *const () as usize;
    (address == at(memspill_copy_at)).then(|| at(memspill_copy_end))
}

/// Copies bytes; false: not all of them are there.
///
/// # Safety
/// Whichever of the two is not the program's memory must be good for `len` bytes.
#[must_use]
pub unsafe fn copy(to: usize, from: usize, len: usize) -> bool {
    // SAFETY: guarded on the program's side, and the caller's promise on the other.
    unsafe { memspill_copy(to, from, len) == 0 }
}

/// A struct of the program's.
pub fn read<T: Copy>(from: usize) -> Option<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: there is room for a T; and only structs of plain integers are read.
    unsafe { copy(value.as_mut_ptr() as usize, from, size_of::<T>()).then(|| value.assume_init()) }
}

/// Writes a struct to the program's memory; false: it cannot be written.
#[must_use]
pub fn write<T: Copy>(to: usize, value: &T) -> bool {
    // SAFETY: the value is good for its size.
    unsafe { copy(to, value as *const T as usize, size_of::<T>()) }
}
