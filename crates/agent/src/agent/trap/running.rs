//! Threads that run already are trapped, and let go (`crate::running`).
//!
//! ```text
//!   TRAP    block, alternate stack, %gs; dispatch on.     in a call: as if it had been made from here
//!   LEAVE   dispatch off; %gs, alternate stack, mask      in a call: as if the program had made it itself
//! ```
//!
//! A thread that was stopped in a call has it restarted by the kernel: at the instruction before its place,
//! which traps. But one that the kernel goes on with by its own means (restart_syscall: what is left of a
//! sleep) would forget that in the trap, by the return from its handler. So it is put behind the instruction
//! that makes the program's calls (`enter.rs`), with its memory in use, and is restarted there.
//!
//! A thread may stand in a handler of the program's, on its own alternate stack: that is the program's as
//! before, and its frame is what the kernel has written, as `deliver.rs` writes it.

use core::arch::asm;

use super::enter::{self, Place};
use super::signals::{self, SIGALTSTACK};
use super::{clone, deliver, handler, rewrite};
use crate::calls::hold::hold;
use crate::calls::in_use::{self, Use};
use crate::common::running::{Left, NO_CALL, Range, Thread};
use crate::common::sync::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use crate::common::words::FOR_KERNEL;
use crate::machine::context::{Context, NO_STACK, Registers};
use crate::machine::gadget;
use crate::machine::region;
use crate::machine::sys::{self, EBUSY, PAGE, Result, nr};
use crate::pages::{self, exclude};
use crate::supervisor::state::STATE;
use crate::thread::block::{self, Block};
use crate::thread::trapped;

const GETTID: usize = 186;
const RESTART_SYSCALL: usize = nr::RESTART_SYSCALL;
const PR_GET_TID_ADDRESS: usize = 40;

/// The ranges to be kept before anything can be taken out: the address of an array of them, and its length.
#[unsafe(link_section = ".data")]
static KEPT: AtomicPtr<Range> = AtomicPtr::new(core::ptr::null_mut());
#[unsafe(link_section = ".data")]
static KEPT_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Is what was never touched to be closed?
#[unsafe(link_section = ".data")]
static CLOSES: AtomicBool = AtomicBool::new(false);

pub fn keep_later(ranges: &[Range], closes: bool) {
    CLOSES.store(closes, Ordering::Relaxed);
    KEPT.store(ranges.as_ptr().cast_mut(), Ordering::Relaxed);
    KEPT_COUNT.store(ranges.len(), Ordering::Relaxed);
}

/// The dispatch has what all threads share from now on. The evictor waits for its go.
pub fn take_over() -> Result<()> {
    let (ranges, count) = (KEPT.load(Ordering::Relaxed), KEPT_COUNT.load(Ordering::Relaxed));
    for index in 0..count {
        // SAFETY: `keep_later` was told of an array that lasts until the process has joined.
        let range = unsafe { ranges.add(index).read() };
        exclude::exclude(range.start as usize, range.bytes as usize, FOR_KERNEL);
    }
    if CLOSES.load(Ordering::Relaxed) {
        pages::close_all_untouched();
    }
    rewrite::stop(rewrite::FORBIDDEN);
    signals::adopt(handler::on_signal as *const () as usize);
    block::set_armed(true);
    Ok(())
}

/// The calling thread is trapped from now on.
pub fn trap(thread: &mut Thread) -> Result<()> {
    let block = block::take()?;
    // SAFETY: the block is new, and the calling thread's from here on. The kernel reads and writes the
    // structs that are passed.
    unsafe {
        let block = &mut *block;
        block.tid = gadget::call(GETTID, [0; 6]).unwrap_or(0) as u32;
        block.robust_list = super::robust_list();
        let stack = block.kernel_stack();
        let before = &raw mut block.alternate as usize;
        block.alternate = NO_STACK;
        gadget::call(SIGALTSTACK, [&raw const stack as usize, before, 0, 0, 0, 0])?;
        let mut word = 0usize;
        let tid_address = [PR_GET_TID_ADDRESS, &raw mut word as usize, 0, 0, 0, 0];
        if gadget::call(nr::PRCTL, tid_address).is_ok() && word != 0 {
            pages::exclude_word(word);
        }
        let own = gadget::gs(0);
        let is_foreign = gadget::has_fsgsbase() && own != 0;
        block.gs = if is_foreign { own } else { block.address };
        if !is_foreign || thread.call != NO_CALL {
            gadget::set_gs(block.address)?;
        }
        block.fs = gadget::fs();
        let mask = thread.mask;
        signals::set_mask(block, &mut thread.mask, mask);
        if thread.call != NO_CALL {
            block.frame.number = thread.call as usize;
            block.frame.args = thread.args.map(|arg| arg as usize);
            block.frame.next = thread.rip as usize;
            on_stack(block.stack_top, hold_call, block);
            thread.rip = enter::behind_call(is_foreign) as u64;
        }
        gadget::arm().map(|_| ())
    }
}

/// The code that brings pages looks for the block beside the stack.
///
/// # Safety
/// Nobody uses the stack that ends there.
unsafe fn on_stack(end: usize, call: extern "C" fn(&mut Block), block: &mut Block) {
    // SAFETY: a call of a function of one argument; what it may change is said.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {end}",
            "call {call}",
            "mov rsp, r12",
            end = in(reg) end & !15,
            call = in(reg) call,
            in("rdi") &raw mut *block,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

extern "C" fn hold_call(block: &mut Block) {
    let (number, args) = (block.frame.number, block.frame.args);
    if number != RESTART_SYSCALL {
        return hold(block, number, &args);
    }
    // It was restarted once already, and nobody knows which call it was: a futex or a list of descriptors at
    // the first argument, what is left of a sleep at the second or the fourth.
    const DESCRIPTORS_MAX: usize = 1 << 16;
    const POLLFD_BYTES: usize = 8;
    const TIME_BYTES: usize = 16;
    let [first, second, _, fourth, ..] = args;
    let list_bytes = second.clamp(1, DESCRIPTORS_MAX) * POLLFD_BYTES;
    let uses = [(first, list_bytes), (second, TIME_BYTES), (fourth, TIME_BYTES)].map(|(start, bytes)| Use {
        start,
        end: start.saturating_add(bytes),
        writes: true,
    });
    in_use::publish_list(block, &uses);
    uses.iter().for_each(in_use::bring);
}

fn own_block() -> Option<&'static mut Block> {
    // SAFETY: no memory involved.
    let tid = unsafe { gadget::call(GETTID, [0; 6]) }.ok()? as u32;
    // SAFETY: blocks are never unmapped.
    let tid_of = |block: *mut Block| unsafe { (&raw const (*block).tid).read_volatile() };
    // SAFETY: as above, and this one is the calling thread's.
    block::taken().find(|block| tid_of(*block) == tid).map(|block| unsafe { &mut *block })
}

/// May the process leave? Not one into which the loader has put this library (EOPNOTSUPP), nor one of which
/// a page is on its way (EAGAIN).
pub fn may_leave() -> Result<()> {
    const EOPNOTSUPP: i32 = 95;
    match (trapped::is_loaded(), pages::may_end()) {
        (true, _) => Err(EOPNOTSUPP),
        (_, false) => Err(sys::EAGAIN),
        _ => Ok(()),
    }
}

/// May the calling thread leave? EBUSY: not before it has done its work in the agent. EPERM: never, for it
/// has set a seccomp filter, which the kernel has with what the agent has put before it.
pub fn look(thread: &Thread) -> Result<()> {
    let Some(block) = own_block() else { return Err(EBUSY) };
    if block.filters.load(Ordering::Relaxed) != 0 {
        return Err(sys::EPERM);
    }
    if is_at_work(block, thread) { Err(EBUSY) } else { Ok(()) }
}

/// The calling thread is trapped no more. All have been looked at.
pub fn leave(thread: &mut Thread) -> Result<()> {
    let block = own_block().ok_or(sys::EINVAL)?;
    gadget::disarm()?;
    let mut context = context_of(thread);
    deliver::show_program(block, &mut context);
    tell(thread, &context.regs);
    if gadget::gs(block.address) == block.address {
        let _ = gadget::set_gs(0);
    }
    // SAFETY: the kernel reads a struct. The thread stands on no alternate stack.
    let _ = unsafe { gadget::call(SIGALTSTACK, [&raw const block.alternate as usize, 0, 0, 0, 0, 0]) };
    thread.mask |= block.reserved_mask;
    block::give_back(block);
    Ok(())
}

/// Does it run code of the agent's that is to come to its end?
fn is_at_work(block: &Block, thread: &Thread) -> bool {
    let (at, stack) = (thread.rip as usize, thread.rsp as usize);
    let in_blocks = block::is_memory_of_blocks(stack);
    let known = enter::place(at).is_some_and(|(place, _)| place != Place::BeforeByRegisters)
        || (clone::unmasked()..=clone::go_on()).contains(&at);
    in_blocks || block.vforks.load(Ordering::Relaxed) != 0 || region::is_own_code(at) && !known
}

fn context_of(thread: &Thread) -> Context {
    let [rbx, rbp, r12, r13, r14, r15] = thread.rest.map(|value| value as usize);
    let none = 0;
    let mut regs = Registers {
        r8: none,
        r9: none,
        r10: none,
        r11: none,
        r12,
        r13,
        r14,
        r15,
        rdi: none,
        rsi: none,
        rbp,
        rbx,
        rdx: none,
        rax: thread.rax as usize,
        rcx: thread.rcx as usize,
        rsp: thread.rsp as usize,
        rip: thread.rip as usize,
        flags: none,
        segments: none,
        error: none,
        trap: none,
        old_mask: none,
        fault: none,
    };
    regs.set_args(thread.args.map(|arg| arg as usize));
    Context { flags: 0, link: 0, stack: NO_STACK, regs, fpu: 0, reserved: [0; 8], mask: 0 }
}

fn tell(thread: &mut Thread, regs: &Registers) {
    thread.rip = regs.rip as u64;
    thread.rsp = regs.rsp as u64;
    thread.rax = regs.rax as u64;
    thread.rcx = regs.rcx as u64;
    thread.args = regs.args().map(|arg| arg as u64);
    thread.rest = [regs.rbx, regs.rbp, regs.r12, regs.r13, regs.r14, regs.r15].map(|value| value as u64);
}

/// All threads have left, or none was trapped.
pub fn end(left: &mut Left) {
    if block::is_armed() {
        signals::give_back();
        block::set_armed(false);
    }
    let mut add = |(start, len): (usize, usize)| {
        if start != 0
            && len != 0
            && let Some(place) = left.ranges.get_mut(left.count as usize)
        {
            *place = Range { start: start as u64, bytes: len as u64 };
            left.count += 1;
        }
    };
    add(block::arena());
    pages::each_own(&mut add);
    let ident = STATE.ident.load(Ordering::Relaxed);
    if ident != 0 {
        add((ident - PAGE, 3 * PAGE));
    }
    pages::end();
}
