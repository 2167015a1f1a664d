//! How a handler of the program's begins and ends.
//!
//! The kernel begins the dispatch's handler instead, on the thread's alternate stack, which is always there;
//! the program's stack may be away (coroutines have theirs on the heap), and the kernel cannot bring it. Here
//! the frame is written again where the program expects it, in user mode, which brings pages; and the return
//! from the dispatch's handler begins the program's.
//!
//! **A handler sees a program before or after its system call, never inside the agent.** A call that was made
//! is over: the program stands behind its instruction, with the result. So no state of the agent outlives the
//! beginning of a handler: it may make system calls, leave by longjmp, unwind the stack (pthread_cancel),
//! switch to another coroutine, which goes on in another thread. %gs is the program's own.

use super::enter::{self, Place};
use super::signals::{self, SA_NODEFER, SA_RESETHAND, SIG_IGN};
use super::{clone, rewrite};
use crate::calls::in_use;
use crate::machine::context::AltStack;
use crate::machine::context::{self, Context, Info, SignalFrame};
use crate::machine::gadget;
use crate::machine::sys;
use crate::machine::sys::SIGSEGV;
use crate::thread::block::Block;
use core::mem::{offset_of, size_of};

/// All system call instructions are so long.
pub const INSTRUCTION: usize = 2;
const RED_ZONE: usize = 128;
const FPU_ALIGN: usize = 64;
/// Direction, single step, resume.
const FLAGS_CLEARED: usize = 1 << 10 | 1 << 8 | 1 << 16;

/// Makes of an interrupted thread a program that is before or after its call.
pub fn show_program(block: &mut Block, context: &mut Context) {
    in_use::withdraw(block);
    if core::mem::take(&mut block.preparing) != 0 {
        return show_before_site_call(block, context);
    }
    let (frame, regs) = (&block.frame, &mut context.regs);
    let at = regs.rip;
    let place = enter::place(at);
    let is_cloned = (clone::unmasked()..clone::go_on()).contains(&at);
    if is_cloned || place.is_some_and(|(_, has_own_gs)| has_own_gs) {
        let _ = gadget::set_gs(block.gs);
    }
    match place.map(|(place, _)| place) {
        Some(Place::BeforeByRegisters) => regs.rip = regs.rcx - INSTRUCTION,
        Some(Place::Before) => {
            regs.rip = frame.next - INSTRUCTION;
            regs.rax = frame.number;
            regs.set_args(frame.args);
        }
        Some(Place::After) => {
            regs.rip = frame.next;
            regs.set_args(frame.args);
        }
        Some(Place::AtEnd) => regs.rip = regs.rcx,
        // It stands before its call.
        None if rewrite::is_left(regs) => {}
        None if is_cloned => {
            regs.rip = frame.next;
            regs.rax = frame.result;
            regs.set_args(frame.args);
        }
        None if at == clone::go_on() => regs.rip = regs.rcx,
        None => {}
    }
}

/// The same of one that prepares a call from a rewritten site, by code that may have changed all registers.
fn show_before_site_call(block: &Block, context: &mut Context) {
    let (frame, saved, regs) = (&block.frame, &block.saved, &mut context.regs);
    regs.rip = frame.next - INSTRUCTION;
    regs.rax = frame.number;
    regs.rsp = frame.stack;
    regs.set_args(frame.args);
    [regs.rbx, regs.rbp, regs.r12, regs.r13, regs.r14, regs.r15] = saved.general;
    if context.fpu != 0 {
        // SAFETY: the kernel's own frame.
        unsafe { context::set_vectors(context.fpu, &saved.vectors) };
    }
}

/// Lets the program's handler begin when the dispatch's returns.
///
/// # Safety
/// `info` and `context` are what the kernel gave the dispatch's handler.
pub unsafe fn deliver(block: &mut Block, signal: usize, info: &Info, context: &mut Context) {
    let action = signals::action_of(signal);
    if action.handler <= SIG_IGN {
        // It was changed when the signal was on its way.
        return;
    }
    if action.flags & SA_RESETHAND != 0 {
        signals::reset(signal);
    }
    show_program(block, context);
    let pointer = context.regs.rsp;
    let mut at =
        signals::stack_for_handler(block, &action, pointer).unwrap_or(pointer.wrapping_sub(RED_ZONE));
    let mut fpu = 0;
    if context.fpu != 0 {
        // SAFETY: the kernel's own frame.
        let len = unsafe { context::fpu_len(context.fpu) };
        at = at.wrapping_sub(len) & !(FPU_ALIGN - 1);
        fpu = at;
        // SAFETY: the kernel's own frame, guarded on the other side.
        if !unsafe { gadget::copy(at, context.fpu, len) } {
            return die_of(context, SIGSEGV);
        }
    }
    at = (at.wrapping_sub(size_of::<SignalFrame>()) & !15).wrapping_sub(8);
    let frame = SignalFrame {
        restorer: action.restorer,
        context: Context {
            link: 0,
            stack: signals::told(&block.alternate, pointer),
            fpu,
            mask: context.mask | block.reserved_mask,
            ..*context
        },
        info: *info,
    };
    if !gadget::write(at, &frame) {
        return die_of(context, SIGSEGV);
    }
    signals::disarm(block);
    let itself = if action.flags & SA_NODEFER != 0 { 0 } else { signals::bit(signal) };
    signals::set_mask(block, &mut context.mask, frame.context.mask | action.mask | itself);
    let regs = &mut context.regs;
    regs.rip = action.handler;
    regs.rsp = at;
    regs.rdi = signal;
    regs.rsi = at + offset_of!(SignalFrame, info);
    regs.rdx = at + offset_of!(SignalFrame, context);
    regs.rax = 0;
    regs.flags &= !FLAGS_CLEARED;
    // It begins with the FPU as it is in a new thread.
    context.fpu = 0;
}

/// rt_sigreturn: the return from the dispatch's handler is made the return from the program's.
///
/// # Safety
/// `context` is what the kernel gave the dispatch's handler.
pub unsafe fn sigreturn(block: &mut Block, context: &mut Context) {
    let Some(theirs) = gadget::read::<Context>(context.regs.rsp) else {
        return die_of(context, SIGSEGV);
    };
    let ours: AltStack = context.stack;
    let mut fpu = 0;
    if theirs.fpu != 0 && context.fpu != 0 {
        fpu = context.fpu;
        // SAFETY: the kernel's own frame.
        let room = unsafe { context::fpu_len(fpu) };
        let Some(words) = gadget::read::<[u32; 2]>(context::fpu_words_at(theirs.fpu)) else {
            return die_of(context, SIGSEGV);
        };
        let len = context::fpu_len_from(words).min(room);
        // SAFETY: there is room in the kernel's own frame; guarded on the other side.
        if !unsafe { gadget::copy(fpu, theirs.fpu, len) } {
            return die_of(context, SIGSEGV);
        }
        if len < room {
            // SAFETY: the kernel's own frame.
            unsafe { context::make_fpu_legacy(fpu) };
        }
    }
    if !signals::is_on(&block.alternate, theirs.regs.rsp) {
        // As the kernel does, without a word where it is nonsense.
        let _ = signals::change_stack(block, &theirs.stack);
    }
    *context = Context { stack: ours, fpu, ..theirs };
    signals::set_mask(block, &mut context.mask, theirs.mask);
}

/// Ends the process by a signal, as soon as the handler returns.
pub fn die_of(context: &mut Context, signal: usize) {
    signals::give_up(signal);
    context.mask &= !signals::bit(signal);
    if signals::send_to_this_thread(signal).is_err() {
        sys::die();
    }
}
