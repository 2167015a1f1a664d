//! A seccomp filter that the program sets holds for the calls that the dispatch makes in the program's
//! threads, too. A filter that forbids those would end the program at the next trap, for a reason that
//! nobody could see; so such a filter is refused, with a line that says so.
//!
//! The filter is asked, as the kernel would ask it, about each call that is always needed (more where threads
//! bring their own pages, by `windows/`), and, if it lets threads be made, about those that a new thread
//! begins with. What forks need (a socket) is not asked for: they fail as the filter says. Strict mode allows
//! too little for any of this, and is refused.
//!
//! What it does not do: filters that were set before the agent came (the kernel holds them, and does not show
//! them). Where those forbid what is needed the agent does not get as far as to trap calls.

use core::mem::size_of;

use super::gadget;
use crate::sys::nr;
use crate::windows;

const SECCOMP: usize = 317;
const SET_MODE_STRICT: usize = 0;
const SET_MODE_FILTER: usize = 1;
const PR_SET_SECCOMP: usize = 22;
const MODE_STRICT: usize = 1;
const MODE_FILTER: usize = 2;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_LOG: u32 = 0x7ffc_0000;
const RET_ACTION: u32 = 0xffff_0000;
const ARCH_X86_64: u32 = 0xc000_003e;
/// The kernel's BPF_MAXINSNS.
const INSTRUCTIONS_MAX: usize = 4096;
const SCRATCH: usize = 16;

const RT_SIGPROCMASK: usize = 14;
const RT_SIGRETURN: usize = 15;
const CLONE: usize = 56;
const FORK: usize = 57;
const VFORK: usize = 58;
const CLONE3: usize = 435;
const SIGCHLD: usize = 17;
const SIGALTSTACK: usize = 131;
const ARCH_PRCTL: usize = 158;
const ARCH_SET_GS: usize = 0x1001;
const GETTID: usize = 186;
const TKILL: usize = 200;
const SIG_SETMASK: usize = 2;
/// What the C library makes a thread with.
const THREAD_FLAGS: usize = 0x3d_0f00;

/// Every trap, and every batch of the evictor that a call meets.
const ALWAYS: [(usize, [usize; 3]); 4] = [
    (RT_SIGRETURN, [0; 3]),
    (RT_SIGPROCMASK, [SIG_SETMASK, 0, 0]),
    (nr::FUTEX, [0; 3]),
    (nr::GETPID, [0; 3]),
];
/// A new thread, and whoever makes one after another has ended.
const THREADS: [(usize, [usize; 3]); 7] = [
    (GETTID, [0; 3]),
    (TKILL, [0; 3]),
    (nr::MPROTECT, [0; 3]),
    (nr::SCHED_YIELD, [0; 3]),
    (ARCH_PRCTL, [ARCH_SET_GS, 0, 0]),
    (SIGALTSTACK, [0; 3]),
    (nr::PRCTL, [gadget::PR_SET_SYSCALL_USER_DISPATCH, 1, 0]),
];

/// The child of a fork.
const CHILDREN: [(usize, [usize; 3]); 3] = [
    (GETTID, [0; 3]),
    (nr::PRCTL, [gadget::PR_SET_SYSCALL_USER_DISPATCH, 0, 0]),
    (nr::PRCTL, [gadget::PR_SET_SYSCALL_USER_DISPATCH, 1, 0]),
];

/// Does the call set a filter?
pub fn sets_filter(number: usize, args: &[usize; 6]) -> bool {
    match number {
        SECCOMP => matches!(args[0], SET_MODE_STRICT | SET_MODE_FILTER),
        nr::PRCTL => args[0] == PR_SET_SECCOMP,
        _ => false,
    }
}

/// Does a call that sets a filter set one that forbids what the dispatch needs?
pub fn forbids_too_much(number: usize, args: &[usize; 6]) -> bool {
    let filter = match (number, args[0], args[1]) {
        (SECCOMP, SET_MODE_STRICT, _) | (nr::PRCTL, _, MODE_STRICT) => return true,
        (SECCOMP, SET_MODE_FILTER, _) | (nr::PRCTL, _, MODE_FILTER) => args[2],
        _ => return false,
    };
    // `struct sock_fprog`.
    let Some([len, code]) = gadget::read::<[usize; 2]>(filter) else { return false };
    let filter = Filter { code, len: usize::from(len as u16) };
    let forbids = |list: &[(usize, [usize; 3])]| list.iter().any(|(call, args)| !filter.allows(*call, *args));
    let (threads, forks) = ([THREAD_FLAGS, 0, 0], [SIGCHLD, 0, 0]);
    let has_threads = filter.allows(CLONE, threads) || filter.allows(CLONE3, [0; 3]);
    let has_forks = has_threads
        || filter.allows(CLONE, forks)
        || filter.allows(FORK, [0; 3])
        || filter.allows(VFORK, [0; 3]);
    forbids(&ALWAYS)
        || windows::is_on() && forbids(&windows::calls_of_threads())
        || has_threads && forbids(&THREADS)
        || has_forks && forbids(&CHILDREN)
}

/// In the program's memory.
struct Filter {
    code: usize,
    len: usize,
}

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    yes: u8,
    no: u8,
    value: u32,
}

impl Filter {
    /// What the kernel will not take is taken to allow all: the kernel says what is wrong with it.
    fn allows(&self, number: usize, args: [usize; 3]) -> bool {
        self.run(number, args).is_none_or(|action| matches!(action & RET_ACTION, RET_ALLOW | RET_LOG))
    }

    /// The filter's answer about a call from the gadget. None: it is not a filter.
    fn run(&self, number: usize, args: [usize; 3]) -> Option<u32> {
        let at = gadget::address();
        let [a, b, c] = args;
        let words = [number, at, a, b, c, 0, 0, 0];
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
            let Instruction { code, yes, no, value } =
                gadget::read(self.code.wrapping_add(next * size_of::<Instruction>()))?;
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
