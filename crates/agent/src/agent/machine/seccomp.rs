//! Seccomp, as the kernel has it: the calls that set filters, a filter's instructions, its answers, and what
//! it can look at.
//!
//! What it does not do: make a filter. The evictor's is in `confine.rs`, the program's are in `filters.rs`.

pub const SET_MODE_STRICT: usize = 0;
pub const SET_MODE_FILTER: usize = 1;
/// All threads of the process are to have the filter.
pub const FLAG_TSYNC: usize = 1;
/// prctl's, in place of the call.
pub const PR_GET_SECCOMP: usize = 21;
pub const PR_SET_SECCOMP: usize = 22;
pub const MODE_STRICT: usize = 1;
pub const MODE_FILTER: usize = 2;
/// Without CAP_SYS_ADMIN a filter can be set only with this.
pub const PR_SET_NO_NEW_PRIVS: usize = 38;

/// An instruction of classic BPF (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Instruction {
    pub code: u16,
    /// Instructions that a jump goes on over.
    pub yes: u8,
    pub no: u8,
    pub value: u32,
}

impl Instruction {
    /// Loads 0: as a filter begins.
    pub const NONE: Instruction = Instruction { code: LOAD_VALUE, yes: 0, no: 0, value: 0 };
}

pub const LOAD_VALUE: u16 = 0x00;
pub const LOAD: u16 = 0x20;
pub const JUMP: u16 = 0x05;
pub const IF_EQUAL: u16 = 0x15;
pub const IF_GREATER: u16 = 0x25;
pub const IF_AT_LEAST: u16 = 0x35;
pub const ADD_X: u16 = 0x0c;
pub const TO_X: u16 = 0x07;
pub const RETURN: u16 = 0x06;

pub const RET_KILL_PROCESS: u32 = 0x8000_0000;
pub const RET_KILL_THREAD: u32 = 0;
pub const RET_USER_NOTIF: u32 = 0x7fc0_0000;
pub const RET_ALLOW: u32 = 0x7fff_0000;
pub const RET_ACTION: u32 = 0xffff_0000;

/// Offsets in `struct seccomp_data`: the number of the call, the processor, the address behind the call.
pub const NUMBER: u32 = 0;
pub const ARCH: u32 = 4;
pub const ADDRESS: u32 = 8;
/// An argument is two words, the lower one first.
pub const fn low(argument: u32) -> u32 {
    16 + 8 * argument
}
pub const fn high(argument: u32) -> u32 {
    low(argument) + 4
}

pub const ARCH_X86_64: u32 = 0xc000_003e;
