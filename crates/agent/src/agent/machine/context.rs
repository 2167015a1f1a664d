//! The frame that the kernel puts on the stack for a signal's handler, and reads from there when it returns
//! (x86-64).

/// As in `sigaltstack`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AltStack {
    pub at: usize,
    pub flags: i32,
    pub unused: u32,
    pub len: usize,
}

pub const SS_DISABLE: i32 = 2;
pub const NO_STACK: AltStack = AltStack { at: 0, flags: SS_DISABLE, unused: 0, len: 0 };

/// `struct sigcontext`, its registers.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Registers {
    pub r8: usize,
    pub r9: usize,
    pub r10: usize,
    pub r11: usize,
    pub r12: usize,
    pub r13: usize,
    pub r14: usize,
    pub r15: usize,
    pub rdi: usize,
    pub rsi: usize,
    pub rbp: usize,
    pub rbx: usize,
    pub rdx: usize,
    pub rax: usize,
    pub rcx: usize,
    pub rsp: usize,
    pub rip: usize,
    pub flags: usize,
    pub segments: usize,
    pub error: usize,
    pub trap: usize,
    pub old_mask: usize,
    pub fault: usize,
}

impl Registers {
    pub fn args(&self) -> [usize; 6] {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9]
    }

    pub fn set_args(&mut self, args: [usize; 6]) {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9] = args;
    }
}

/// `struct ucontext`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Context {
    pub flags: usize,
    pub link: usize,
    pub stack: AltStack,
    pub regs: Registers,
    /// Where the registers of the FPU lie.
    pub fpu: usize,
    pub reserved: [usize; 8],
    pub mask: u64,
}
const _: () = assert!(core::mem::size_of::<Context>() == 304);

/// `struct siginfo`, with the fields of SIGSYS.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Info {
    pub signal: i32,
    pub errno: i32,
    pub code: i32,
    pub unused: i32,
    pub call_address: usize,
    pub number: i32,
    pub arch: u32,
    pub rest: [u64; 12],
}
const _: () = assert!(core::mem::size_of::<Info>() == 128);

/// `struct rt_sigframe`: what lies at a handler's stack pointer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SignalFrame {
    pub restorer: usize,
    pub context: Context,
    pub info: Info,
}

/// What of the FPU's registers all processors have.
const FPU_LEGACY: usize = 512;
/// The place, in bytes left to software, where the kernel says how long all of it is: a magic number, then
/// the length.
const FPU_MAGIC_AT: usize = 464;
const FPU_MAGIC: u32 = 0x4650_5853;
/// More than any processor has.
const FPU_MAX: usize = 16 << 10;

/// How long a copy of the FPU's registers is, of which the first 512 bytes can be read.
///
/// # Safety
/// They can.
pub unsafe fn fpu_len(at: usize) -> usize {
    // SAFETY: the caller's promise.
    let [magic, len] = unsafe { ((at + FPU_MAGIC_AT) as *const [u32; 2]).read_unaligned() };
    if magic == FPU_MAGIC { (len as usize).clamp(FPU_LEGACY, FPU_MAX) } else { FPU_LEGACY }
}

/// The same of a copy in the program's memory, of which nothing is sure: the 8 bytes at `FPU_MAGIC_AT`.
pub fn fpu_len_from(words: [u32; 2]) -> usize {
    if words[0] == FPU_MAGIC { (words[1] as usize).clamp(FPU_LEGACY, FPU_MAX) } else { FPU_LEGACY }
}

pub fn fpu_words_at(at: usize) -> usize {
    at.wrapping_add(FPU_MAGIC_AT)
}

/// Gives xmm0 to xmm15 these values.
///
/// # Safety
/// It is a copy of the FPU's registers that the kernel has made.
pub unsafe fn set_vectors(at: usize, vectors: &[[u64; 2]; 16]) {
    const VECTORS_AT: usize = 160;
    /// Which parts of it hold values; the others are as at a thread's start.
    const PARTS_AT: usize = FPU_LEGACY;
    const PART_SSE: u64 = 2;
    // SAFETY: the caller's promise. If there are more than 512 bytes it begins with the set of parts.
    unsafe {
        ((at + VECTORS_AT) as *mut [[u64; 2]; 16]).write_unaligned(*vectors);
        if fpu_len(at) > FPU_LEGACY {
            let parts = (at + PARTS_AT) as *mut u64;
            parts.write_unaligned(parts.read_unaligned() | PART_SSE);
        }
    }
}

/// Makes a copy one that holds what all processors have, and no more.
///
/// # Safety
/// 512 bytes are there, and ours.
pub unsafe fn make_fpu_legacy(at: usize) {
    // SAFETY: the caller's promise.
    unsafe { ((at + FPU_MAGIC_AT) as *mut u32).write_unaligned(0) };
}
