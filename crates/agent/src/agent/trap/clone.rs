//! clone, clone3, fork and vfork. The kernel forgets in each new thread and process that its calls are to be
//! trapped, so the child's first steps are here: it traps its calls again, then becomes the program.
//!
//! | the child has           | its block                | what is done                                     |
//! |-------------------------|--------------------------|--------------------------------------------------|
//! | memory of its own       | its copy of the parent's | `after_fork`: all other threads are gone         |
//! | its parent's (a thread) | a new one                | it gets an alternate stack                       |
//! | its parent's, by vfork  | its parent's             | the parent sleeps, its call is kept in `parents` |
//!
//! Signals are blocked from the trap on until all is in order on both sides, as in the handler. SIGBUS is
//! not: the timer of a late child may come before its first steps are done, and then waits for their end
//! (`late::has_come`). To join in the middle of them would have the next of their own calls trapped, in the
//! block that says where the child goes on. The side to which a block belongs travels in r9, which these
//! calls do not use, and which the program gets back from its frame.
//!
//! A child with its parent's memory that is neither a thread nor by vfork shares the list of actions with its
//! parent, which the kernel does not: what it sets is set for both, as far as the dispatch tells.

use crate::common::sync::Ordering;
use core::arch::global_asm;
use core::mem::{forget, offset_of, size_of};

use super::enter;
use super::late;
use super::rewrite;
use super::signals::{self, ActionsLocked, SIGALTSTACK};
use crate::calls::in_use::{self, Use, Uses};
use crate::machine::context::Context;
use crate::machine::context::NO_STACK;
use crate::machine::gadget;
use crate::machine::sys::{self, EAGAIN};
use crate::pages;
use crate::programs::forks;
use crate::thread::block::{self, Block, Frame, Parent, VFORKS};
use crate::thread::fork_lock;

pub const CLONE: usize = 56;
pub const FORK: usize = 57;
pub const VFORK: usize = 58;
pub const CLONE3: usize = 435;

const GETTID: usize = 186;
/// What the kernel writes a thread's number to.
const TID_BYTES: usize = 4;

const CLONE_VM: usize = 0x100;
const CLONE_THREAD: usize = 0x10000;
const CLONE_FILES: usize = 0x400;
const CLONE_VFORK: usize = 0x4000;
/// CLONE_NEWUSER and CLONE_NEWNET.
const APART: usize = 0x1000_0000 | 0x4000_0000;
const CLONE_CHILD_CLEARTID: usize = 0x20_0000;
const CLONE_CHILD_SETTID: usize = 0x100_0000;
const CLONE_NEWUSER: usize = 0x1000_0000;
const CLONE_CLEAR_SIGHAND: usize = 1 << 32;

global_asm!(
    ".pushsection memspill_gadget, \"ax\", @progbits",
    ".hidden memspill_clone, memspill_vfork, memspill_unmasked, memspill_go_on_cloned",
    ".globl memspill_clone, memspill_vfork, memspill_unmasked, memspill_go_on_cloned",
    ".hidden memspill_clone_foreign, memspill_vfork_foreign",
    ".globl memspill_clone_foreign, memspill_vfork_foreign",
    "memspill_clone_foreign:",
    "wrgsbase r11",
    "memspill_clone:",
    "syscall",
    "mov rdi, r9",
    "test rax, rax",
    "jz 2f",
    "mov rsp, qword ptr gs:[{top}]",
    "sub rsp, 512",
    "fxsave64 [rsp]",
    "mov rsi, rax",
    "call {cloned}",
    "jmp 4f",
    "2:",
    "mov rsp, qword ptr [rdi + {top}]",
    "sub rsp, 512",
    "fxsave64 [rsp]",
    "call {started}",
    "jmp 4f",
    "memspill_vfork_foreign:",
    "wrgsbase r11",
    "memspill_vfork:",
    "syscall",
    "mov rsp, qword ptr gs:[{top}]",
    "sub rsp, 512",
    "fxsave64 [rsp]",
    "mov rdi, r9",
    "test rax, rax",
    "jz 3f",
    "mov rsi, rax",
    "call {vforked}",
    "jmp 4f",
    "3:",
    "call {vfork_started}",
    "4:",
    "fxrstor64 [rsp]",
    // The mask is the last: from here on a signal may come.
    "mov rsp, qword ptr gs:[{stack}]",
    "mov eax, 14",
    "mov edi, 2",
    "mov rsi, qword ptr gs:[0]",
    "add rsi, {mask}",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "memspill_unmasked:",
    "mov rdi, qword ptr gs:[{args}]",
    "mov rsi, qword ptr gs:[{args} + 8]",
    "mov rdx, qword ptr gs:[{args} + 16]",
    "mov r10, qword ptr gs:[{args} + 24]",
    "mov r8, qword ptr gs:[{args} + 32]",
    "mov r9, qword ptr gs:[{args} + 40]",
    "mov rax, qword ptr gs:[{result}]",
    "mov rcx, qword ptr gs:[{next}]",
    "mov r11, qword ptr gs:[{gs}]",
    "cmp r11, qword ptr gs:[0]",
    "je memspill_go_on_cloned",
    "wrgsbase r11",
    "memspill_go_on_cloned:",
    "jmp rcx",
    ".popsection",
    top = const offset_of!(Block, stack_top),
    mask = const offset_of!(Block, mask),
    stack = const offset_of!(Block, frame) + offset_of!(Frame, stack),
    args = const offset_of!(Block, frame) + offset_of!(Frame, args),
    result = const offset_of!(Block, frame) + offset_of!(Frame, result),
    next = const offset_of!(Block, frame) + offset_of!(Frame, next),
    gs = const offset_of!(Block, gs),
    cloned = sym cloned,
    started = sym started,
    vforked = sym vforked,
    vfork_started = sym vfork_started,
);

unsafe extern "C" {
    fn memspill_clone();
    fn memspill_vfork();
    fn memspill_clone_foreign();
    fn memspill_vfork_foreign();
    fn memspill_unmasked();
    fn memspill_go_on_cloned();
}

/// From here on the thread's mask is its own again, and its result in its frame.
pub fn unmasked() -> usize {
    memspill_unmasked as *const () as usize
}

/// The last instruction, which jumps to rcx.
pub fn go_on() -> usize {
    memspill_go_on_cloned as *const () as usize
}

/// The addresses at which a seccomp filter sees these calls.
pub fn made_at() -> [usize; 2] {
    /// The length of `syscall`, in bytes.
    const INSTRUCTION: usize = 2;
    let labels: [unsafe extern "C" fn(); 2] = [memspill_clone, memspill_vfork];
    labels.map(|label| label as *const () as usize + INSTRUCTION)
}

/// What a call of the family asks for.
struct Request {
    flags: usize,
    /// 0: its parent's.
    stack: usize,
    child_tid: usize,
    /// What else the kernel writes.
    parent_tid: usize,
    pidfd: usize,
}

impl Request {
    /// None: the kernel will say EFAULT.
    fn of(number: usize, args: &[usize; 6]) -> Option<Self> {
        let none = Request { flags: 0, stack: 0, child_tid: 0, parent_tid: 0, pidfd: 0 };
        Some(match number {
            CLONE => {
                let [flags, stack, parent_tid, child_tid, ..] = *args;
                // Its lowest byte is a signal; a pidfd, too, is written where the parent's id would be.
                Request { flags: flags & !0xff, stack, child_tid, parent_tid, pidfd: 0 }
            }
            CLONE3 => {
                let [flags, pidfd, child_tid, parent_tid, _signal, stack, size, _tls] =
                    gadget::read::<[usize; 8]>(args[0])?;
                let stack = stack.wrapping_add(size);
                Request { flags, stack, child_tid, parent_tid, pidfd }
            }
            VFORK => Request { flags: CLONE_VM | CLONE_VFORK, ..none },
            _ => none,
        })
    }

    fn uses(&self, number: usize, args: &[usize; 6]) -> Uses {
        let mut uses = Uses::new();
        let mut add = |start: usize, len: usize| {
            if start != 0 {
                uses.add(Use { start, end: start.saturating_add(len), writes: true });
            }
        };
        for word in [self.child_tid, self.parent_tid, self.pidfd] {
            add(word, 4);
        }
        if number == CLONE3 {
            add(args[0], args[1]);
        }
        uses
    }
}

/// Lets a call of the family be made when the handler returns. Err: it is not made.
pub fn prepare(block: &mut Block, context: &mut Context) -> sys::Result<()> {
    let (number, args) = (block.frame.number, block.frame.args);
    let Some(request) = Request::of(number, &args) else {
        return Err(sys::EFAULT);
    };
    let stack = if request.stack == 0 { context.regs.rsp } else { request.stack };
    block.frame.stack = context.regs.rsp;
    block.mask = context.mask;
    block.flags = request.flags;
    block.gs = gadget::gs(block.address);
    if request.flags & (CLONE_VM | CLONE_FILES) == CLONE_FILES && !pages::may_share_descriptors() {
        return Err(sys::EINVAL);
    }
    if request.flags & CLONE_CHILD_CLEARTID != 0 {
        pages::exclude_word(request.child_tid);
    }
    let is_vfork = request.flags & (CLONE_VM | CLONE_VFORK) == CLONE_VM | CLONE_VFORK;
    let [plain, foreign]: [unsafe extern "C" fn(); 2] = match is_vfork {
        true => [memspill_vfork, memspill_vfork_foreign],
        false => [memspill_clone, memspill_clone_foreign],
    };
    context.regs.r9 = if is_vfork {
        keep_parent(block, stack).ok_or(EAGAIN)?
    } else if request.flags & CLONE_VM != 0 {
        new_thread(block, &request, stack)?
    } else {
        (block.joins, block.is_late) = (false, false);
        if pages::has_supervisor() {
            let _ = gadget::disarm();
            if pages::is_tight() {
                forks::wait_for_room();
            }
            fork_lock::write();
        }
        block.child_stack = stack;
        // In the copy nobody is to be in the middle of a change.
        forget(signals::lock_actions());
        block.address
    };
    let uses = request.uses(number, &args);
    in_use::publish(block, &uses);
    uses.exact().for_each(in_use::bring);
    if request.flags & CLONE_VM == 0 {
        let is_managed = pages::has_supervisor();
        let (mut is_ready, mut is_late) = (false, false);
        let ready = || {
            is_late = is_managed && late::fork_begins(pages::is_all_here);
            if is_managed && !is_late {
                // Its child could not join: it reaches neither of the supervisor's sockets.
                if request.flags & APART == APART {
                    return Err(sys::EPERM);
                }
                prepare_managed(request.child_tid)?;
                is_ready = true;
            }
            Ok(())
        };
        if let Err(errno) = pages::fork_begins(ready) {
            if is_ready {
                let _ = forks::parent_done(-(EAGAIN as isize));
            }
            in_use::withdraw(block);
            drop(ActionsLocked);
            if is_managed {
                fork_lock::done(false);
                arm_child(0);
            }
            return Err(if errno == sys::EPERM { errno } else { EAGAIN });
        }
        block.joins = is_managed && !is_late;
        block.is_late = is_late;
    }
    enter::go_to(block, &mut context.regs, plain, foreign);
    context.mask = signals::IN_DISPATCH;
    Ok(())
}

/// Readies the process for a fork; the gate is closed.
fn prepare_managed(child_tid: usize) -> sys::Result<()> {
    match forks::prepare(child_tid)? {
        true => Ok(()),
        // The child of a vfork is not known.
        false => Err(EAGAIN),
    }
}

fn new_thread(block: &Block, request: &Request, stack: usize) -> sys::Result<usize> {
    rewrite::before_first_thread();
    let new = block::take().map_err(|_| EAGAIN)?;
    // SAFETY: the block is nobody's else.
    let child = unsafe { &mut *new };
    child.frame = Frame { stack, result: 0, ..block.frame };
    child.mask = block.mask;
    child.reserved_mask = block.reserved_mask;
    child.alternate = NO_STACK;
    child.gs = if block.gs == block.address { child.address } else { block.gs };
    child.flags = request.flags;
    child.vforks.store(0, Ordering::Relaxed);
    // The kernel has it inherit what is set, and what is wanted is wanted of it too.
    child.filters.store(block.filters.load(Ordering::Relaxed), Ordering::Release);
    loop {
        let wanted = block.wanted_filters.load(Ordering::SeqCst);
        child.wanted_filters.store(wanted, Ordering::SeqCst);
        if block.wanted_filters.load(Ordering::SeqCst) == wanted {
            break;
        }
    }
    if request.flags & (CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID) != 0 {
        // The kernel writes it when the child begins, which may be long after the parent has gone on.
        let mut uses = Uses::new();
        let end = request.child_tid.saturating_add(TID_BYTES);
        uses.add(Use { start: request.child_tid, end, writes: true });
        in_use::publish(child, &uses);
    }
    Ok(new as usize)
}

/// Keeps what the parent needs when it wakes up: its child uses the block meanwhile.
fn keep_parent(block: &mut Block, child_stack: usize) -> Option<usize> {
    let depth = block.vforks.load(Ordering::Relaxed) as usize;
    let (frame, mask, reserved_mask, alternate, gs) =
        (block.frame, block.mask, block.reserved_mask, block.alternate, block.gs);
    let place = block.parents.get_mut(depth).filter(|_| depth < VFORKS)?;
    let filters = block.filters.load(Ordering::Relaxed);
    *place = Parent { frame, child_stack, mask, reserved_mask, alternate, gs, filters };
    let place = place as *mut Parent as usize;
    block.vforks.fetch_add(1, Ordering::Relaxed);
    Some(place)
}

/// The parent's side of a clone. `result` is the kernel's.
extern "C" fn cloned(child: *mut Block, result: isize) {
    // SAFETY: the thread is armed.
    let block = unsafe { block::current() };
    block.frame.result = result as usize;
    in_use::withdraw(block);
    if core::ptr::eq(child, block) {
        let joining = block.joins.then(|| forks::parent_done(result));
        pages::fork_ends(result >= 0);
        drop(ActionsLocked);
        if block.joins || block.is_late {
            fork_lock::done(false);
            if let Some(child) = joining {
                block.frame.result = child.settle() as usize;
            }
            arm_child(0);
        }
    } else if result < 0 {
        block::give_back(child);
    } else if block.flags & CLONE_THREAD == 0 {
        // SAFETY: blocks are never unmapped; the field is atomic.
        unsafe { (*child).process.store(result as u32, Ordering::Release) };
    }
}

/// The child's side of a clone: a thread, or another process.
extern "C" fn started(block: *mut Block) {
    // SAFETY: the block is the calling thread's.
    let block = unsafe { &mut *block };
    in_use::withdraw(block);
    // SAFETY: no memory involved.
    block.tid = unsafe { gadget::call(GETTID, [0; 6]) }.unwrap_or(0) as u32;
    block.fs = gadget::fs();
    if block.flags & CLONE_VM != 0 {
        let stack = block.kernel_stack();
        // SAFETY: %gs and the alternate stack are of the calling thread, which had none; the stack is not in
        // use by a handler, for all signals are blocked.
        let set = unsafe {
            gadget::set_gs(block.address)
                .and_then(|_| gadget::call(SIGALTSTACK, [&raw const stack as usize, 0, 0, 0, 0, 0]))
        };
        if set.is_err() {
            sys::die();
        }
    } else {
        block.frame.stack = block.child_stack;
        block.frame.result = 0;
        after_fork(block);
    }
    arm_child(block.flags);
}

/// A child has its parent's memory, in a copy. It has one thread, whatever the parent had. It joins here: it
/// is not armed yet, all its signals are blocked, and it stands on a stack that is never managed.
fn after_fork(block: &mut Block) {
    drop(ActionsLocked);
    block::forget_others(block);
    rewrite::forget_threads();
    // Its rseq area is its parent's, and it has no robust list.
    block.robust_list = 0;
    pages::in_child();
    if block.flags & CLONE_CLEAR_SIGHAND != 0 {
        signals::clear();
    }
    if block.joins {
        forks::child_joins();
    } else if block.is_late {
        late::in_child(block.flags & CLONE_NEWUSER != 0);
    }
    if block.joins || block.is_late {
        fork_lock::done(true);
    }
}

fn arm_child(flags: usize) {
    if flags & CLONE_CLEAR_SIGHAND != 0 {
        signals::install_reserved();
    }
    if gadget::arm().is_err() {
        sys::die();
    }
}

/// The parent's side of a vfork, when the child is gone.
extern "C" fn vforked(parent: &Parent, result: isize) {
    // SAFETY: the thread is armed.
    let block = unsafe { block::current() };
    block.frame = parent.frame;
    block.frame.result = result as usize;
    block.mask = parent.mask;
    block.reserved_mask = parent.reserved_mask;
    block.alternate = parent.alternate;
    block.gs = parent.gs;
    block.filters.store(parent.filters, Ordering::Relaxed);
    let depth = (parent as *const Parent as usize - block.parents.as_ptr() as usize) / size_of::<Parent>();
    block.vforks.store(depth as u32, Ordering::Relaxed);
    // The child may have been killed anywhere.
    in_use::withdraw(block);
    block.is_to_be_traced = false;
    block.preparing = 0;
}

/// The child's side of a vfork.
extern "C" fn vfork_started(parent: &Parent) {
    // SAFETY: it stands on its parent's alternate stack, and the block is its parent's.
    let block = unsafe { block::current() };
    in_use::withdraw(block);
    block.frame = Frame { stack: parent.child_stack, result: 0, ..parent.frame };
    block.gs = parent.gs;
    arm_child(block.flags);
}
