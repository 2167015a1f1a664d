//! System calls, and everything else that depends on the processor.
//!
//! The calls are raw: no errno is written, no libc is needed, nothing is bound lazily. A result is the
//! kernel's own number, or the positive errno as `Err`.

use super::gadget;
pub use super::numbers::*;
use crate::common::pidfd::{PIDFD_GET_INFO, PidfdInfo};
use core::arch::{asm, global_asm};

const FUTEX_WAIT: usize = 0;
const FUTEX_WAKE: usize = 1;

/// One system call with up to six arguments.
///
/// # Safety
/// Whatever the call does to memory and descriptors must be sound for the program and for the caller.
pub unsafe fn syscall(number: usize, args: [usize; 6]) -> Result<usize> {
    // SAFETY: the caller's promise.
    to_result(unsafe { syscall_raw(number, args) })
}

/// The same with what the kernel returns, errors included.
///
/// # Safety
/// As above.
#[cfg(not(shuttle))]
pub unsafe fn syscall_raw(number: usize, args: [usize; 6]) -> usize {
    let mut ret = number;
    // SAFETY: the kernel preserves all registers but rax, rcx and r11; the rest is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ret,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    ret
}

/// The same, by what takes the kernel's place under a model checker.
///
/// # Safety
/// As above.
#[cfg(shuttle)]
pub unsafe fn syscall_raw(number: usize, args: [usize; 6]) -> usize {
    crate::kernel::call(number, args) as usize
}

fn to_result(ret: usize) -> Result<usize> {
    let signed = ret as isize;
    if (-4095..0).contains(&signed) { Err(-signed as i32) } else { Ok(ret) }
}

/// Starts a thread that runs `entry(arg)` on a stack of its own.
///
/// # Safety
/// `flags` must include CLONE_VM; `stack_top` must be 16-byte aligned and end a stack that nobody else uses;
/// `tls` and `child_tid` must suit the flags and outlive the thread, as must `arg`.
pub unsafe fn clone(
    flags: usize,
    stack_top: usize,
    tls: usize,
    child_tid: usize,
    entry: extern "C" fn(usize) -> !,
    arg: usize,
) -> Result<usize> {
    let mut ret = nr::CLONE;
    // SAFETY: the new thread starts behind the syscall with the registers of the old and rax = 0, on its own
    // stack; it never comes back to this frame. The old thread sees an ordinary system call.
    unsafe {
        asm!(
            // If system calls are trapped, this one is not: the thread is the agent's own.
            "lea r9, [rip + 3f]",
            "jmp memspill_call_and_jump",
            "3:",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") ret,
            in("rdi") flags,
            in("rsi") stack_top,
            in("rdx") 0usize,
            in("r10") child_tid,
            in("r8") tls,
            in("r12") entry as usize,
            in("r13") arg,
            out("r9") _,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    to_result(ret)
}

/// Address of a function that may be missing in this process: 0 then. Read from the GOT, filled in when the
/// agent was loaded, because a compiler takes the address of a declared function to be non-null.
macro_rules! weak {
    ($name:literal) => {{
        let address: usize;
        // SAFETY: reads one word of the agent's own GOT.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) address,
                options(nostack, readonly, preserves_flags),
            );
        }
        address
    }};
}

pub(crate) use weak;

// What the compiler may call for copies and comparisons. Hidden, or they would stand in for the program's
// own.
global_asm!(
    ".pushsection .text.memspill_mem, \"ax\", @progbits",
    ".hidden memcpy, memmove, memset, memcmp, bcmp, strlen",
    ".globl memcpy, memmove, memset, memcmp, bcmp, strlen",
    "memcpy:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    "memmove:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "mov r8, rdi",
    "sub r8, rsi",
    "cmp r8, rdx",
    "jb 2f",
    "rep movsb",
    "ret",
    "2:", // the destination starts inside the source: from the end
    "lea rdi, [rdi + rdx - 1]",
    "lea rsi, [rsi + rdx - 1]",
    "std",
    "rep movsb",
    "cld",
    "ret",
    "memset:",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    "memcmp:",
    "bcmp:",
    "xor eax, eax",
    "2:",
    "test rdx, rdx",
    "jz 3f",
    "movzx eax, byte ptr [rdi]",
    "movzx ecx, byte ptr [rsi]",
    "inc rdi",
    "inc rsi",
    "dec rdx",
    "sub eax, ecx",
    "jz 2b",
    "3:",
    "ret",
    "strlen:",
    "xor eax, eax",
    "2:",
    "cmp byte ptr [rdi + rax], 0",
    "je 3f",
    "inc rax",
    "jmp 2b",
    "3:",
    "ret",
    ".popsection",
);

/// A descriptor in the table of the calling thread, closed on drop.
pub struct Fd(pub i32);

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        let _ = unsafe { syscall(nr::CLOSE, [self.0 as usize, 0, 0, 0, 0, 0]) };
    }
}

/// A call that touches no memory by its arguments, so that it need not be trapped where calls are.
///
/// # Safety
/// As for `syscall`.
pub unsafe fn syscall_untrapped(number: usize, args: [usize; 6]) -> Result<usize> {
    // SAFETY: the caller's promise.
    unsafe { gadget::call(number, args) }
}

pub fn getpid() -> u32 {
    // SAFETY: no memory involved.
    unsafe { syscall_untrapped(nr::GETPID, [0; 6]) }.unwrap_or(0) as u32
}

pub fn getppid() -> u32 {
    const GETPPID: usize = 110;
    // SAFETY: no memory involved.
    unsafe { syscall_untrapped(GETPPID, [0; 6]) }.unwrap_or(0) as u32
}

/// Is this program run by valgrind, whose own process this is? It answers a request that is four rotations
/// and an exchange, which change nothing elsewhere.
pub fn is_in_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: usize = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0usize;
    // SAFETY: registers are rotated by 128 bits in all; valgrind reads the request.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            inout("rdx") answer,
            in("rax") request.as_ptr(),
            options(nostack),
        );
    }
    answer != 0
}

/// Ends the whole process, at once and not to be caught.
pub fn die() -> ! {
    loop {
        // SAFETY: that nothing of this process runs on is the purpose.
        unsafe {
            let _ = syscall(nr::KILL, [getpid() as usize, SIGKILL, 0, 0, 0, 0]);
            // The first process of a pid namespace cannot kill itself.
            let _ = syscall(nr::EXIT_GROUP, [128 + SIGKILL, 0, 0, 0, 0, 0]);
        }
    }
}

/// Ends the process without a word.
pub fn exit_process(code: u32) -> ! {
    loop {
        // SAFETY: that nothing of this process runs on is the purpose.
        let _ = unsafe { syscall(nr::EXIT_GROUP, [code as usize, 0, 0, 0, 0, 0]) };
    }
}

pub fn exit_thread(code: u32) -> ! {
    loop {
        // SAFETY: only the calling thread ends.
        let _ = unsafe { syscall(nr::EXIT, [code as usize, 0, 0, 0, 0, 0]) };
    }
}

/// All signals blocked in this thread until drop.
pub struct SignalsBlocked(u64);

impl SignalsBlocked {
    pub fn new() -> Self {
        let all = u64::MAX;
        let mut old = 0u64;
        // SAFETY: the kernel reads `all` and writes `old`, 8 bytes each.
        let _ = unsafe {
            syscall(
                nr::RT_SIGPROCMASK,
                [SIG_SETMASK, &raw const all as usize, &raw mut old as usize, 8, 0, 0],
            )
        };
        Self(old)
    }

    /// The mask that the thread gets back.
    pub fn before(&self) -> u64 {
        self.0
    }

    /// The thread has it back already, or its calls are trapped: from now on its mask is told otherwise.
    pub fn forget(self) {
        core::mem::forget(self);
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the kernel reads 8 bytes.
        let _ = unsafe { syscall(nr::RT_SIGPROCMASK, [SIG_SETMASK, &raw const self.0 as usize, 0, 8, 0, 0]) };
    }
}

/// Waits while `*word == value`, at most `timeout_ms` (0: for ever). May return early.
pub fn futex_wait(word: &crate::common::sync::AtomicU32, value: u32, timeout_ms: u32) -> Result<usize> {
    let timeout = [i64::from(timeout_ms / 1000), i64::from(timeout_ms % 1000) * 1_000_000];
    let timeout_addr = if timeout_ms == 0 { 0 } else { timeout.as_ptr() as usize };
    // SAFETY: the word is alive for the call, and the timeout is a struct timespec.
    unsafe { syscall(nr::FUTEX, [word.as_ptr() as usize, FUTEX_WAIT, value as usize, timeout_addr, 0, 0]) }
}

pub fn futex_wake(word: &crate::common::sync::AtomicU32) {
    // SAFETY: the word is alive for the call.
    let _ = unsafe { syscall(nr::FUTEX, [word.as_ptr() as usize, FUTEX_WAKE, 1, 0, 0, 0]) };
}

pub fn futex_wake_all(word: &crate::common::sync::AtomicU32) {
    // SAFETY: the word is alive for the call.
    let _ = unsafe { syscall(nr::FUTEX, [word.as_ptr() as usize, FUTEX_WAKE, i32::MAX as usize, 0, 0, 0]) };
}

/// Where the calling thread's own data is.
pub fn thread_pointer() -> usize {
    let address: usize;
    // SAFETY: reads a register, or the word to which %fs points, which holds its own address.
    unsafe {
        asm!("mov {}, qword ptr fs:[0]", out(reg) address, options(nostack, readonly, preserves_flags));
    }
    address
}

/// # Safety
/// The advice must be sound for that range.
pub unsafe fn madvise(addr: usize, len: usize, advice: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { syscall(nr::MADVISE, [addr, len, advice, 0, 0, 0]) }.map(|_| ())
}

/// Empties anonymous pages: by a guard put in and taken out, which raises no event on a userfaultfd, or where
/// the kernel knows no guards by MADV_DONTNEED, which waits until the pager has read its event.
///
/// Returns whether guards are known. `Err`: the pages may now be guarded, and must not be touched again.
///
/// # Safety
/// Nobody may need the content of the range, or touch it meanwhile.
pub unsafe fn empty_pages(addr: usize, len: usize, try_guards: bool) -> Result<bool> {
    let mut known = try_guards;
    if try_guards {
        // SAFETY: the caller's promise.
        match unsafe { madvise(addr, len, MADV_GUARD_INSTALL) } {
            // SAFETY: the caller's promise.
            Ok(()) => return unsafe { madvise(addr, len, MADV_GUARD_REMOVE) }.map(|()| true),
            Err(errno) => known = errno != EINVAL,
        }
        // The call may have failed half-way; a guard that stayed would be a SIGSEGV later. Kernels without
        // guards answer EINVAL.
        // SAFETY: the caller's promise.
        let _ = unsafe { madvise(addr, len, MADV_GUARD_REMOVE) };
    }
    // SAFETY: the caller's promise.
    unsafe { madvise(addr, len, MADV_DONTNEED) }.map(|()| known)
}

/// As `empty_pages`, for pages that are the agent's own and lie in the mapping [first, first + whole_len). If
/// the program has locked all of its memory (mlockall), the mapping is unlocked first: locked pages cannot be
/// emptied.
///
/// # Safety
/// As for `empty_pages`.
pub unsafe fn empty_own_pages(
    addr: usize,
    len: usize,
    try_guards: bool,
    mapping: (usize, usize),
) -> Result<bool> {
    // SAFETY: the caller's promise.
    match unsafe { empty_pages(addr, len, try_guards) } {
        Ok(known) if known == try_guards => Ok(known),
        // SAFETY: the mapping is the agent's own; then the caller's promise.
        _ => unsafe {
            let _ = syscall(nr::MUNLOCK, [mapping.0, mapping.1, 0, 0, 0, 0]);
            empty_pages(addr, len, try_guards)
        },
    }
}

/// Sleeps for about so long.
pub fn pause(ms: u32) {
    let _ = futex_wait(&crate::common::sync::AtomicU32::new(0), 0, ms);
}

pub fn yield_now() {
    // SAFETY: no memory involved.
    let _ = unsafe { syscall(nr::SCHED_YIELD, [0; 6]) };
}

/// The part of `struct statx` that is used here.
#[repr(C)]
struct Statx {
    mask: u32,
    block_size: u32,
    attributes: u64,
    links: u32,
    ids: [u32; 2],
    mode: u16,
    spare: u16,
    inode: u64,
    len: u64,
    unused: [u64; 11],
    device: [u32; 2],
    rest: [u64; 14],
}
const _: () = assert!(core::mem::size_of::<Statx>() == 256);

/// An open file.
pub struct RegularFile {
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
    pub len: u64,
}

/// None: it is no regular file.
pub fn regular_file(fd: usize) -> Option<RegularFile> {
    const AT_EMPTY_PATH: usize = 0x1000;
    const TYPE_INODE_AND_SIZE: usize = 0x301;
    const S_IFMT: u16 = 0o170000;
    const S_IFREG: u16 = 0o100000;
    let mut statx = core::mem::MaybeUninit::<Statx>::zeroed();
    // SAFETY: the kernel reads an empty path and writes a struct of 256 bytes; zeros are a valid one.
    let found = unsafe {
        let args =
            [fd, c"".as_ptr() as usize, AT_EMPTY_PATH, TYPE_INODE_AND_SIZE, statx.as_mut_ptr() as usize, 0];
        syscall(nr::STATX, args).ok()?;
        statx.assume_init()
    };
    let Statx { mode, device: [major, minor], inode, len, .. } = found;
    (mode & S_IFMT == S_IFREG).then_some(RegularFile { major, minor, inode, len })
}

/// The number by which the kernel knows the kind of file system that an open file is on, and how many blocks
/// that may have: 0 if nothing limits it.
pub fn file_system(fd: usize) -> Option<(u64, u64)> {
    let mut statfs = [0u64; 32];
    // SAFETY: the kernel writes a struct of 120 bytes, which begins with a word for the kind.
    unsafe { syscall(nr::FSTATFS, [fd, statfs.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
    Some((statfs[0], statfs[2]))
}

fn statx(path: &core::ffi::CStr) -> Result<Statx> {
    const BASIC_STATS: usize = 0x7ff;
    let mut statx = core::mem::MaybeUninit::<Statx>::zeroed();
    // SAFETY: the kernel reads the path and writes a struct of 256 bytes; zeros are a valid one.
    unsafe {
        let args = [AT_FDCWD, path.as_ptr() as usize, 0, BASIC_STATS, statx.as_mut_ptr() as usize, 0];
        syscall(nr::STATX, args).map(|_| statx.assume_init())
    }
}

/// Which process a pidfd stands for. None: it is no pidfd, or the kernel does not say (before Linux 6.13).
pub fn process_of_pidfd(pidfd: usize) -> Option<u32> {
    let mut info = PidfdInfo::default();
    // SAFETY: the kernel reads and writes the struct, whose size the ioctl's number tells.
    let ret =
        unsafe { syscall(nr::IOCTL, [pidfd, PIDFD_GET_INFO as usize, &raw mut info as usize, 0, 0, 0]) };
    ret.ok().map(|_| info.tgid).filter(|tgid| *tgid != 0)
}

/// Threads of this process; None where /proc does not say.
pub fn thread_count() -> Option<u32> {
    // A directory for each thread, and the two that every directory has.
    statx(c"/proc/self/task").ok()?.links.checked_sub(2)
}

/// Does somebody trace this process (ptrace)? False where /proc does not say.
pub fn is_traced() -> bool {
    let mut text = [0u8; 512];
    let tracer = b"TracerPid:\t";
    let value = read_file(c"/proc/self/status", &mut text).windows(tracer.len() + 1);
    value.into_iter().any(|piece| piece.starts_with(tracer) && !piece.ends_with(b"0"))
}

pub fn number(digits: &[u8]) -> Option<usize> {
    digits.iter().try_fold(0usize, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| usize::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Bytes of private memory that this process can store to, there or not. None where /proc does not say.
pub fn data_bytes() -> Option<usize> {
    let [.., data] = statm_pages()?;
    data.checked_mul(PAGE)
}

/// Bytes of anonymous memory that are in memory. None where /proc does not say.
pub fn anonymous_bytes() -> Option<usize> {
    let [_, resident, shared, ..] = statm_pages()?;
    resident.checked_sub(shared)?.checked_mul(PAGE)
}

/// size, resident, shared, text, lib, data.
fn statm_pages() -> Option<[usize; 6]> {
    let mut text = [0u8; 128];
    let mut fields = read_file(c"/proc/self/statm", &mut text).split(|byte| *byte == b' ');
    let mut pages = [0; 6];
    for field in &mut pages {
        *field = number(fields.next()?)?;
    }
    Some(pages)
}

/// The beginning of a file; nothing if it cannot be read.
fn read_file<'a>(path: &core::ffi::CStr, into: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: the kernel reads the path, and writes into the buffer.
    let read = unsafe {
        syscall(nr::OPENAT, [AT_FDCWD, path.as_ptr() as usize, O_CLOEXEC, 0, 0, 0]).and_then(|fd| {
            let fd = Fd(fd as i32);
            syscall(nr::READ, [fd.0 as usize, into.as_mut_ptr() as usize, into.len(), 0, 0, 0])
        })
    };
    into.get(..read.unwrap_or(0)).unwrap_or_default()
}

/// The inode by which the kernel names this process's network namespace.
pub fn network_namespace() -> Option<u64> {
    statx(c"/proc/self/ns/net").ok().map(|found| found.inode)
}
