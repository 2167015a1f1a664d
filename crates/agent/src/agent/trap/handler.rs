//! The dispatch's handler, for SIGSYS and for all signals that the program handles: what each call becomes.
//!
//! It runs on the thread's alternate stack with all signals blocked but SIGSEGV and SIGBUS, which guarded
//! accesses need. It makes no call for the program but those that neither wait nor touch masks: the rest is
//! made by the instructions to which it returns (`enter.rs`), in the program's own context, so that masks,
//! waiting and restarting are the kernel's.
//!
//! | calls                                                 | what is done                                 |
//! |-------------------------------------------------------|----------------------------------------------|
//! | rt_sigaction, rt_sigprocmask, sigaltstack             | answered here (`signals.rs`)                 |
//! | rt_sigreturn                                          | what the handler returns to (`deliver.rs`)   |
//! | clone, clone3, fork, vfork                            | `clone.rs`                                   |
//! | rt_sigsuspend, ppoll, pselect6, epoll_pwait and pwait2 | the dispatch's signals stay unblocked       |
//! | read, write and their kin, more than 1 MiB            | files: a piece at a time (`pieces.rs`)       |
//! | the same, sendmsg and their kin, more than 4 MiB      | streams: shortened (`pieces.rs`)             |
//! | mremap, madvise of some kinds                         | made here (`advice.rs`)                      |
//! | io_uring_setup, io_setup                              | ENOSYS: buffers are used while no call runs  |
//! | prctl(PR_SET_SYSCALL_USER_DISPATCH)                   | EINVAL: it is in use                         |
//! | arch_prctl(ARCH_SET_GS), (ARCH_GET_GS)                | answered here: %gs may be the block          |
//! | prctl(PR_SET_DUMPABLE, 0), where there is a supervisor | EPERM: it would see this memory no more      |
//! | rseq, set_robust_list, set_tid_address                | what they name is kept (`Block::kept`)       |
//! | exit                                                  | the block becomes free at the last moment;   |
//! |                                                       | locks that the thread holds stay             |
//! | execve                                                | of a static program: made here (`exec.rs`);  |
//! |                                                       | LD_PRELOAD is looked at (`preload.rs`)       |
//! | stat and its kin on /proc/self/task                   | made here (`tasks.rs`)                       |
//! | process_vm_readv, writev of another process          | made here (`calls/other_process.rs`)      |
//! | ptrace(PTRACE_TRACEME)                                | answered here (`traced.rs`)                  |
//! | seccomp, prctl(PR_SET_SECCOMP)                        | with what lets our own pass (`filters.rs`)   |
//! | all others                                            | published, touched, made (`in_use.rs`)       |

use crate::common::sync::Ordering;
use core::ffi::c_int;

use super::late::Joined;
use super::leave::leave;
use super::signals::{self, RESERVED, SIG_DFL, SIG_IGN, SIGSYS};
use super::{clone, deliver, enter, filters, late, rewrite, traced};
use crate::calls::answers;
use crate::calls::hold::hold;
use crate::calls::{advice, in_use, other_process, pieces, tasks};
#[cfg(memspill_test)]
use crate::doors::{ASK_DISPATCH, LEAVE_DISPATCH};
use crate::join::handshake;
use crate::machine::context::{Context, Info};
use crate::machine::gadget;
use crate::machine::sys::{self, EFAULT, EINTR, EINVAL, ENOSYS, Result, SIGBUS, SIGSEGV};
use crate::pages;
use crate::programs::preload::List;
use crate::programs::{exec, inherited};
use crate::supervisor::address;
use crate::thread::block::{self, Block};
use crate::thread::trapped;

const SYS_SECCOMP: i32 = 1;
const SYS_USER_DISPATCH: i32 = 2;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const EPERM: i32 = 1;
const ARCH_SET_GS: usize = 0x1001;
const ARCH_GET_GS: usize = 0x1004;
const PR_SET_DUMPABLE: usize = 4;

mod nr {
    pub const RT_SIGACTION: usize = 13;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const RT_SIGRETURN: usize = 15;
    pub const MADVISE: usize = 28;
    pub const EXIT: usize = 60;
    pub const RT_SIGSUSPEND: usize = 130;
    pub const SIGALTSTACK: usize = 131;
    pub const PRCTL: usize = 157;
    pub const ARCH_PRCTL: usize = 158;
    pub const IO_SETUP: usize = 206;
    pub const PSELECT6: usize = 270;
    pub const SET_ROBUST_LIST: usize = 273;
    pub const PPOLL: usize = 271;
    pub const EPOLL_PWAIT: usize = 281;
    pub const IO_URING_SETUP: usize = 425;
    pub const EPOLL_PWAIT2: usize = 441;
}

/// The handler that the kernel calls.
pub extern "C" fn on_signal(signal: c_int, info: &Info, context: &mut Context) {
    let signal = signal as usize;
    if late::is_timer(signal, info) {
        return join_by_timer(context);
    }
    if matches!(signal, SIGSEGV | SIGBUS) && pages::fault(info, context) {
        return;
    }
    // Not one that somebody sends while the access waits for its page.
    if matches!(signal, SIGSEGV | SIGBUS)
        && info.code > 0
        && let Some(address) = gadget::recovery(context.regs.rip)
    {
        context.regs.rip = address;
        return;
    }
    // SAFETY: all threads that signals of the program reach are armed, and this is one handler.
    let block = unsafe { block::current() };
    if signal == SIGSYS && info.code == SYS_USER_DISPATCH {
        return trap(block, info, context);
    }
    if signals::bit(signal) & RESERVED != 0 && !is_for_handler(block, signal, info, context) {
        return;
    }
    let mut info = *info;
    if signal == SIGSYS && info.code == SYS_SECCOMP && enter::made_at().contains(&context.regs.rip) {
        info.call_address = block.frame.next;
    }
    // SAFETY: both are the kernel's.
    unsafe { deliver::deliver(block, signal, &info, context) };
}

/// The time is over in which the process may be late.
fn join_by_timer(context: &mut Context) {
    if !late::has_come(context.mask) {
        return;
    }
    // SAFETY: who is late is armed, and this is one handler.
    let block = unsafe { block::current() };
    let joined = late::join();
    let frame = block.frame;
    let is_before_call = enter::is_before_call(context.regs.rip);
    // A call that was about to be made without the supervisor's knowing traps once more.
    deliver::show_program(block, context);
    if is_before_call
        && signals::is_interruption_pending(context.mask)
        && late::waits(frame.number, &frame.args)
    {
        context.regs.rip = frame.next;
        context.regs.rax = -(EINTR as isize) as usize;
    }
    if joined == Joined::AndFree {
        leave(block, context);
    }
}

/// Whether one of the dispatch's own signals is for the program's handler. Else it is done with.
fn is_for_handler(block: &Block, signal: usize, info: &Info, context: &mut Context) -> bool {
    let handler = signals::action_of(signal).handler;
    // The program stands at the instruction that faulted, and would fault again.
    let is_forced = info.code > 0;
    let is_fault = is_forced && signal != SIGSYS;
    let is_fatal = handler == SIG_DFL
        || is_forced && (handler == SIG_IGN || block.reserved_mask & signals::bit(signal) != 0);
    if is_fatal && is_fault {
        signals::give_up(signal);
    } else if is_fatal {
        deliver::die_of(context, signal);
    }
    !is_fatal && handler != SIG_IGN
}

/// A system call.
fn trap(block: &mut Block, info: &Info, context: &mut Context) {
    let regs = &context.regs;
    block.frame.number = regs.rax;
    block.frame.args = regs.args();
    block.frame.next = regs.rip;
    block.fs = gadget::fs();
    let is_ours = info.arch == AUDIT_ARCH_X86_64;
    filters::catch_up(block);
    // Before the process joins for an exec that would show that its calls are trapped: this one does not.
    if is_ours
        && block.frame.number == exec::EXECVE
        && !block.is_to_be_traced
        && let Some(errno) = run_static(block, context)
    {
        context.regs.rax = -(errno as isize) as usize;
        return;
    }
    if is_ours
        && traced::asks(block.frame.number, &block.frame.args)
        && let Some(result) = traced::leaves(block)
    {
        context.regs.rax = result.unwrap_or_else(|errno| -(errno as isize) as usize);
        return;
    }
    let joins = match is_ours {
        true => late::joins_before(block, block.frame.number, &block.frame.args),
        // Nothing is known of calls by `int 0x80`, and as long as they are trapped there are none.
        false => trapped::is_late() && address::is_then_free(),
    };
    if joins && late::join() == Joined::AndFree {
        // The program makes it itself.
        context.regs.rip -= deliver::INSTRUCTION;
        context.regs.set_args(block.frame.args);
        return leave(block, context);
    }
    let result = if is_ours { answer(block, context) } else { Err(ENOSYS) };
    match result {
        Ok(Answer::Result(result)) => context.regs.rax = result,
        Ok(Answer::GoOn) => {}
        Err(errno) => context.regs.rax = -(errno as isize) as usize,
    }
}

/// A line on stderr. Its call is the agent's, and is not to be trapped inside the handler.
fn say(what: &str) {
    if gadget::disarm().is_ok() {
        handshake::write_stderr_line(what);
        if gadget::arm().is_err() {
            sys::die();
        }
    }
}

enum Answer {
    /// The call is over.
    Result(usize),
    /// The registers say how it goes on.
    GoOn,
}

fn answer(block: &mut Block, context: &mut Context) -> Result<Answer> {
    let (number, args) = (block.frame.number, block.frame.args);
    let is_vfork = block.vforks.load(Ordering::Relaxed) != 0;
    if block.is_confined() {
        if filters::breaks_strict_mode(block, number) {
            gadget::die();
        }
        if filters::forbid(block, number, &args) {
            make(block, context);
            return Ok(Answer::GoOn);
        }
    }
    match number {
        nr::RT_SIGACTION => signals::sigaction(args, !is_vfork).map(Answer::Result),
        nr::RT_SIGPROCMASK => signals::sigprocmask(block, &mut context.mask, args).map(Answer::Result),
        nr::RT_SIGRETURN => {
            // SAFETY: the context is the kernel's.
            unsafe { deliver::sigreturn(block, context) };
            Ok(Answer::GoOn)
        }
        nr::SIGALTSTACK => signals::sigaltstack(block, args, context.regs.rsp).map(Answer::Result),
        clone::CLONE | clone::CLONE3 | clone::FORK | clone::VFORK => {
            clone::prepare(block, context).map(|()| Answer::GoOn)
        }
        nr::EXIT if !is_vfork => {
            pages::keep_locks_held(block.robust_list);
            context.mask = !RESERVED;
            enter::go_to_end_thread(block, &mut context.regs);
            Ok(Answer::GoOn)
        }
        nr::IO_URING_SETUP | nr::IO_SETUP => Err(ENOSYS),
        nr::PRCTL if args[0] == gadget::PR_SET_SYSCALL_USER_DISPATCH => {
            say("may not use Syscall User Dispatch: memspill does, in agent mode");
            Err(EINVAL)
        }
        nr::ARCH_PRCTL if args[0] == ARCH_SET_GS => set_gs(block, args[1]).map(Answer::Result),
        nr::ARCH_PRCTL if args[0] == ARCH_GET_GS => get_gs(block, args[1]).map(Answer::Result),
        _ if filters::sets_filter(number, &args) => {
            let set = filters::set(block, number, args);
            if set == Err(sys::ENOMEM) {
                say("may not set a seccomp filter: there is no room before it for what memspill adds");
            }
            set.map(Answer::Result)
        }
        nr::PRCTL if args[0] == PR_SET_DUMPABLE && args[1] == 0 && pages::has_supervisor() => Err(EPERM),
        sys::nr::PTRACE if traced::asks(number, &args) => traced::will_be(block).map(Answer::Result),
        nr::MADVISE if advice::is_ours(args) => advice::advise(args).map(Answer::Result),
        _ if tasks::are_looked_at(number, &args) && filters::let_pass(block, number, &args) => {
            look_at_tasks(block).map(Answer::Result)
        }
        _ if !is_vfork && !block.is_confined() && other_process::concerns(number, &args) => {
            hold(block, number, &args);
            let result = other_process::make(number, &args);
            in_use::withdraw(block);
            result.map(Answer::Result)
        }
        #[cfg(memspill_test)]
        LEAVE_DISPATCH => {
            block.has_left = true;
            gadget::disarm().map(Answer::Result)
        }
        #[cfg(memspill_test)]
        ASK_DISPATCH => Ok(Answer::Result(1)),
        _ => {
            match pages::answered(number, args, answers::answer).or_else(|| in_pieces(block, number, args)) {
                Some(result) => result.map(Answer::Result),
                None => {
                    rewrite::trapped(number, block.frame.next);
                    make(block, context);
                    Ok(Answer::GoOn)
                }
            }
        }
    }
}

/// A call that counts the program's threads. It does not wait.
fn look_at_tasks(block: &mut Block) -> Result<usize> {
    let (number, args) = (block.frame.number, block.frame.args);
    hold(block, number, &args);
    // SAFETY: the program's own call, on memory that is there.
    let result = unsafe { gadget::call(number, args) };
    if result.is_ok() && pages::has_supervisor() && !trapped::is_late() {
        tasks::leave_out_evictor(number, &args);
    }
    in_use::withdraw(block);
    result
}

/// arch_prctl(ARCH_SET_GS).
fn set_gs(block: &Block, to: usize) -> Result<usize> {
    if !gadget::has_fsgsbase() {
        say("may not set %gs: memspill uses it, as this kernel has it set by no instruction (fsgsbase)");
        return Err(EPERM);
    }
    if to == 0 { gadget::set_gs(block.address) } else { gadget::set_gs_by_call(to) }
}

/// arch_prctl(ARCH_GET_GS): 0 where the program has set none.
fn get_gs(block: &Block, result: usize) -> Result<usize> {
    let gs = gadget::gs(block.address);
    let told = if gs == block.address { 0 } else { gs };
    if gadget::write(result, &told) { Ok(0) } else { Err(EFAULT) }
}

/// Runs a static program, with the mask that this one has; where that cannot be done, its errno. The
/// supervisor sets the mask, for no handler of ours but the timer's may run between an exec and its failure.
/// None: it is to be run as any other, with the environment that the registers say.
fn run_static(block: &mut Block, context: &mut Context) -> Option<i32> {
    let mut args = block.frame.args;
    hold(block, exec::EXECVE, &args);
    let may_look = gadget::disarm().is_ok() && !exec::is_confined();
    if let Some(environment) = environment_to_pass(args[2], may_look, block) {
        args[2] = environment;
        context.regs.rdx = environment;
    }
    let asked = match may_look && exec::concerns(&args) {
        true => exec::ask(context.mask | block.reserved_mask),
        false => None,
    };
    let result = asked.and_then(|asked| {
        // SAFETY: the program's own call, on memory that is there.
        let result = unsafe { sys::syscall_raw(exec::EXECVE, args) };
        asked.failed();
        (!exec::is_forbidden(result)).then_some(-(result as isize) as i32)
    });
    if gadget::arm().is_err() {
        sys::die();
    }
    in_use::withdraw(block);
    result
}

/// The environment to pass in place of the caller's. It lies at the far end of the thread's alternate stack,
/// for the program's may be a small one. Not inlined: it is large.
#[inline(never)]
fn environment_to_pass(environment: usize, may_look: bool, block: &Block) -> Option<usize> {
    let mut list = match (inherited::is_alone(), may_look) {
        (true, _) => List::without_agent(environment, read)?,
        (false, true) => List::of(environment)?,
        (false, false) => return None,
    };
    let at = block.kernel_stack().at;
    let passed = list.lies_at(at);
    // SAFETY: handlers never come down there, and the list is plain data.
    unsafe { (at as *mut List).write(list) };
    Some(passed)
}

/// Bytes of the program's memory, if they are there.
fn read(from: usize, to: &mut [u8]) -> bool {
    // SAFETY: there is room for so many.
    unsafe { gadget::copy(to.as_mut_ptr() as usize, from, to.len()) }
}

/// A program that has confined itself has its calls made as they are.
fn in_pieces(block: &mut Block, number: usize, args: [usize; 6]) -> Option<Result<usize>> {
    if block.is_confined() { None } else { pieces::in_pieces(block, number, args) }
}

/// The call is made when the handler returns, with its memory published and there.
fn make(block: &mut Block, context: &mut Context) {
    let (number, mut args) = (block.frame.number, block.frame.args);
    if !block.is_confined()
        && let Some(len) = pieces::shortened(number, &args)
    {
        args[2] = len;
        context.regs.rdx = len;
    }
    if number == exec::EXECVE {
        args[2] = context.regs.rdx;
    }
    if number == nr::SET_ROBUST_LIST && block.vforks.load(Ordering::Relaxed) == 0 {
        block.robust_list = args[0];
    }
    hold(block, number, &args);
    traced::before(block, number, &args);
    enter::go_to_make(block, &mut context.regs);
    match number {
        nr::RT_SIGSUSPEND => pass_mask(block, &mut context.regs.rdi),
        nr::PPOLL => pass_mask(block, &mut context.regs.r10),
        nr::EPOLL_PWAIT | nr::EPOLL_PWAIT2 => pass_mask(block, &mut context.regs.r8),
        nr::PSELECT6 => pass_mask_and_size(block, &mut context.regs.r9),
        _ => {}
    }
}

/// Puts in place of the program's set of signals one without those of the dispatch. A set that cannot be read
/// is left for the kernel to refuse.
fn pass_mask(block: &mut Block, argument: &mut usize) {
    if let Some(set) = gadget::read::<u64>(*argument)
        && set & RESERVED != 0
    {
        block.set = set & !RESERVED;
        *argument = &raw const block.set as usize;
    }
}

fn pass_mask_and_size(block: &mut Block, argument: &mut usize) {
    if let Some([set, size]) = gadget::read::<[usize; 2]>(*argument) {
        let mut passed = set;
        pass_mask(block, &mut passed);
        if passed != set {
            block.set_and_size = [passed, size];
            *argument = block.set_and_size.as_ptr() as usize;
        }
    }
}
