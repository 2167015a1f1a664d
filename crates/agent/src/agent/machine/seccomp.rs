//! Seccomp, as the kernel has it: the calls that set filters, a filter's instructions, its answers, and what
//! it can look at. `Filter` answers as the kernel would.
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
pub const RET_ERRNO: u32 = 0x0005_0000;
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

/// The kernel's BPF_MAXINSNS.
pub const INSTRUCTIONS_MAX: usize = 4096;
const SCRATCH: usize = 16;

/// A filter that lies in memory: the address of its instructions, and how many they are.
pub struct Filter {
    pub code: usize,
    pub len: usize,
}

impl Filter {
    /// The filter's answer about a call that is made at this address. None: it is no filter.
    pub fn run(&self, at: usize, number: usize, args: &[usize; 6]) -> Option<u32> {
        let [a, b, c, d, e, f] = *args;
        let words = [number, at, a, b, c, d, e, f];
        // `struct seccomp_data`, by its offset.
        let data = |offset: u32| match offset {
            0 => Some(number as u32),
            4 => Some(ARCH_X86_64),
            8..64 if offset.is_multiple_of(4) => {
                let word = words.get(offset as usize / 8)?;
                Some(if offset.is_multiple_of(8) { *word as u32 } else { (*word >> 32) as u32 })
            }
            _ => None,
        };
        let (mut accumulator, mut index, mut scratch) = (0u32, 0u32, [0u32; SCRATCH]);
        let mut next = 0;
        // Jumps lead forwards only.
        while next < self.len.min(INSTRUCTIONS_MAX) {
            // SAFETY: so many instructions are there.
            let Instruction { code, yes, no, value } =
                unsafe { (self.code as *const Instruction).add(next).read() };
            next += 1;
            let operand = if code & 8 != 0 { index } else { value };
            match code {
                0x06 => return Some(value),
                0x16 => return Some(accumulator),
                0x20 => accumulator = data(value)?,
                0x00 => accumulator = value,
                0x01 => index = value,
                0x80 => accumulator = 64,
                0x81 => index = 64,
                0x60 => accumulator = *scratch.get(value as usize)?,
                0x61 => index = *scratch.get(value as usize)?,
                0x02 => *scratch.get_mut(value as usize)? = accumulator,
                0x03 => *scratch.get_mut(value as usize)? = index,
                0x07 => index = accumulator,
                0x87 => accumulator = index,
                0x04 | 0x0c => accumulator = accumulator.wrapping_add(operand),
                0x14 | 0x1c => accumulator = accumulator.wrapping_sub(operand),
                0x24 | 0x2c => accumulator = accumulator.wrapping_mul(operand),
                // The kernel answers 0 (it kills) where it would divide by nothing.
                0x34 | 0x3c => match accumulator.checked_div(operand) {
                    Some(quotient) => accumulator = quotient,
                    None => return Some(0),
                },
                0x44 | 0x4c => accumulator |= operand,
                0x54 | 0x5c => accumulator &= operand,
                0x64 | 0x6c => accumulator = accumulator.wrapping_shl(operand),
                0x74 | 0x7c => accumulator = accumulator.wrapping_shr(operand),
                0x84 => accumulator = accumulator.wrapping_neg(),
                0xa4 | 0xac => accumulator ^= operand,
                0x05 => next = next.checked_add(value as usize)?,
                0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                    let holds = match code & 0xf0 {
                        0x10 => accumulator == operand,
                        0x20 => accumulator > operand,
                        0x30 => accumulator >= operand,
                        _ => accumulator & operand != 0,
                    };
                    next += usize::from(if holds { yes } else { no });
                }
                _ => return None,
            }
        }
        None
    }
}
