//! Where the C library makes a system call that the agent is to make in its place: the two instructions are
//! rewritten, so that the call comes to a function of the agent's.
//!
//! ```text
//!   ... mov $N, %eax ; syscall ; ...           N: the number of the call
//!       jmp PLACE    ; (the syscall stays, and is not reached)
//!
//!   PLACE: all registers kept, below the red zone; the function; back behind the syscall, with its result
//! ```
//!
//! It is written by /proc/self/mem when the program has one thread. If the instructions are not found, or may
//! not be written, the C library makes the call itself.

use crate::common::sync::{AtomicUsize, Ordering};
use crate::machine::sys::{self, ENOTSUP, Fd, Result, nr};

/// As far as the site is looked for from the beginning of the function.
const FUNCTION_BYTES: usize = 256;
const SITE_BYTES: usize = 7;
pub const JUMP_BYTES: usize = 5;

/// Instructions that keep all registers but rax, and the red zone. Behind them rbx points to the arguments of
/// the call, in their order, the stack is aligned, and r12 is free.
macro_rules! keep_registers {
    () => {
        concat!(
            "lea rsp, [rsp - 128]\n",
            "pushfq\n",
            "push rbx\n",
            "push r12\n",
            "push r9\n",
            "push r8\n",
            "push r10\n",
            "push rdx\n",
            "push rsi\n",
            "push rdi\n",
            "mov rbx, rsp\n",
            "and rsp, -16\n",
            "sub rsp, 512\n",
            "fxsave64 [rsp]\n",
            "cld\n",
        )
    };
}

/// Back to what they were; the result of the call is in rax. The stack is as `keep_registers` has left it.
macro_rules! restore_registers {
    () => {
        concat!(
            "fxrstor64 [rsp]\n",
            "mov rsp, rbx\n",
            "pop rdi\n",
            "pop rsi\n",
            "pop rdx\n",
            "pop r10\n",
            "pop r8\n",
            "pop r9\n",
            "pop r12\n",
            "pop rbx\n",
            "popfq\n",
            "lea rsp, [rsp + 128]\n",
        )
    };
}
pub(crate) use {keep_registers, restore_registers};

/// A system call in a function of the C library that comes to a function of the agent's: `extern "C"`, with
/// the arguments of the call in their order, and the kernel's result.
macro_rules! place {
    ($label:ident, $function:ident, $behind:ident) => {
        core::arch::global_asm!(
            ".pushsection .text.memspill_sites, \"ax\", @progbits",
            concat!(".hidden ", stringify!($label)),
            concat!(".globl ", stringify!($label)),
            concat!(stringify!($label), ":"),
            $crate::programs::site::keep_registers!(),
            "mov rdi, rbx",
            "call {function}",
            $crate::programs::site::restore_registers!(),
            "mov rcx, qword ptr [rip + {behind}]",
            "jmp rcx",
            ".popsection",
            function = sym $function,
            behind = sym $behind,
        );

        unsafe extern "C" {
            fn $label();
        }
    };
}
pub(crate) use place;

/// What such a call comes to.
pub struct Place {
    /// Address of the C library's function; 0: it has no such one.
    pub function: usize,
    /// Of the call.
    pub number: usize,
    /// What `place` has made.
    pub target: usize,
    pub behind: &'static AtomicUsize,
}

/// Rewrites those that there are, once, if nobody else can be in them.
pub fn rewrite_all(places: &[Place]) {
    if places.iter().any(|place| place.behind.load(Ordering::Relaxed) != 0) || sys::thread_count() != Some(1)
    {
        return;
    }
    for place in places {
        if let Some((at, _)) = find(&[place.function], &[place.number]) {
            let _ = rewrite(at, place.target, place.behind);
        }
    }
}

/// Address of the first `mov $N, %eax; syscall` in one of these functions of the C library (0: it has no such
/// one) where N is one of `numbers`, and N.
fn find(functions: &[usize], numbers: &[usize]) -> Option<(usize, usize)> {
    functions.iter().filter(|address| **address != 0).find_map(|function| {
        // SAFETY: code of the C library, which goes on for longer than that after this function.
        let code = unsafe { core::slice::from_raw_parts(*function as *const u8, FUNCTION_BYTES) };
        code.windows(SITE_BYTES).enumerate().find_map(|(at, code)| {
            let [0xb8, number, 0, 0, 0, 0x0f, 0x05] = code else { return None };
            let number = usize::from(*number);
            numbers.contains(&number).then_some((function + at, number))
        })
    })
}

/// Has the program go from `site`, which `find` has found, to `target`, and stores in `back` where it is to
/// go on from there. The process has one thread.
fn rewrite(site: usize, target: usize, back: &AtomicUsize) -> Result<()> {
    let jump = jump(site, target)?;
    back.store(site + SITE_BYTES, Ordering::Relaxed);
    let written = write(site, &jump);
    if written.is_err() {
        back.store(0, Ordering::Relaxed);
    }
    written
}

/// The instruction at `from` that goes on at `to`. Err: that is too far away.
pub fn jump(from: usize, to: usize) -> Result<[u8; JUMP_BYTES]> {
    let distance = to.wrapping_sub(from + JUMP_BYTES) as isize;
    let [a, b, c, d] = i32::try_from(distance).map_err(|_| ENOTSUP)?.to_le_bytes();
    Ok([0xe9, a, b, c, d])
}

/// Into code that nobody is in.
pub fn write(at: usize, bytes: &[u8]) -> Result<()> {
    const O_RDWR: usize = 2;
    let path = c"/proc/self/mem".as_ptr() as usize;
    // SAFETY: the kernel reads the path and the bytes. The code is not being run: there is one thread.
    unsafe {
        let fd = sys::syscall(nr::OPENAT, [0, path, O_RDWR | sys::O_CLOEXEC, 0, 0, 0])?;
        let file = Fd(fd as i32);
        let written =
            sys::syscall(nr::PWRITE64, [file.0 as usize, bytes.as_ptr() as usize, bytes.len(), at, 0, 0]);
        if written == Ok(bytes.len()) { Ok(()) } else { Err(ENOTSUP) }
    }
}
