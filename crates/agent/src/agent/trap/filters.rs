//! Seccomp filters that the program sets for itself hold for the calls that the agent makes in the program's
//! threads, too. So each is set with a few instructions before it, which let the agent's own calls pass:
//!
//! ```text
//!   is the call made inside the agent, but not where the program's own are made (`enter.rs`, `clone.rs`)?
//!   and is its number (for some, with its first argument) one that the agent needs?      allowed
//!   the accumulator as it was; the program's filter                                      decides
//! ```
//!
//! *No call of the program's passes by that.* A call that is made as the program has asked for it is made
//! where its filter decides, by the kernel. A call that the handler answers by itself, or makes by other
//! calls (mappings, signals, clones), is asked for first, here: each filter is kept, and run as the kernel
//! would. A call that they do not allow is then made as it stands, so that the kernel does as they say.
//!
//! *The needs of the agent depend on what the filter lets the program do.* All need the calls that bring
//! pages, on the agent's own descriptors. Threads need some more, if threads can be made. The child of a fork
//! joins, which takes a socket and files of /proc: these pass only where the program can fork.
//!
//! Strict mode is set as a filter that allows the same calls, for nothing can stand before it. Another call
//! ends the process here, as in strict mode.
//!
//! TSYNC: the evictor has a filter of its own (`confine.rs`), so the kernel would refuse it. The program's
//! other threads are told instead (`Block::wanted_filters`), and set the same filters before their next call.
//!
//! What it does not do: filters that were set before the agent came (the kernel holds them, and does not show
//! them). If those forbid what is needed the agent does not get as far as to trap calls.

use crate::common::sync::Ordering;
use core::mem::size_of;

use super::{clone, enter, rewrite};
use crate::calls::hold;
use crate::machine::gadget;
use crate::machine::own_calls::{ALWAYS, Call, FORKS, THREADS};
use crate::machine::region;
use crate::machine::seccomp::{
    ADDRESS, ARCH, ARCH_X86_64, FLAG_TSYNC, Filter, IF_AT_LEAST, IF_EQUAL, INSTRUCTIONS_MAX, Instruction,
    JUMP, LOAD, LOAD_VALUE, MODE_FILTER, MODE_STRICT, NUMBER, PR_GET_SECCOMP, PR_SET_NO_NEW_PRIVS,
    PR_SET_SECCOMP, RET_ACTION, RET_ALLOW, RET_KILL_THREAD, RET_USER_NOTIF, RETURN, SET_MODE_FILTER,
    SET_MODE_STRICT, low,
};
use crate::machine::sys::{self, EFAULT, EINVAL, ENOMEM, Result, nr};
use crate::pages;
use crate::programs::inherited;
use crate::supervisor::control;
use crate::supervisor::state::STATE;
use crate::thread::block;
use crate::thread::block::Block;

const EACCES: i32 = 13;

const CLONE: usize = 56;
const FORK: usize = 57;
const VFORK: usize = 58;
const CLONE3: usize = 435;
const SIGCHLD: usize = 17;
/// What the C library makes a thread with.
const THREAD_FLAGS: usize = 0x3d_0f00;
const RT_SIGRETURN: usize = 15;

/// Does the call set a filter?
pub fn sets_filter(number: usize, args: &[usize; 6]) -> bool {
    match number {
        nr::SECCOMP => matches!(args[0], SET_MODE_STRICT | SET_MODE_FILTER),
        nr::PRCTL => args[0] == PR_SET_SECCOMP,
        _ => false,
    }
}

/// One of the program's filters, as it has been set: in memory of the agent's, for as long as the process.
#[repr(C)]
struct Kept {
    /// The one that was set before it in the thread; 0: none.
    before: usize,
    /// The address of its instructions; how many are the agent's, and then how many the program's.
    code: usize,
    own: usize,
    len: usize,
    is_strict: bool,
}

impl Kept {
    /// The program's part.
    fn filter(&self) -> Filter {
        Filter { code: self.code + self.own * size_of::<Instruction>(), len: self.len }
    }

    fn address(&self) -> usize {
        &raw const *self as usize
    }
}

fn each_from(mut at: usize) -> impl Iterator<Item = &'static Kept> {
    core::iter::from_fn(move || {
        // SAFETY: those that are in a list are never changed, nor given back.
        let kept = unsafe { (at as *const Kept).as_ref() }?;
        at = kept.before;
        Some(kept)
    })
}

/// Would the thread's filters let the kernel make this call of the program's? (What they pass on to somebody
/// else is taken to be allowed.)
fn allow(filters: usize, number: usize, args: &[usize; 6]) -> bool {
    each_from(filters).all(|kept| answer(&kept.filter(), number, args).is_some_and(is_let))
}

/// The filter's answer about a call of the program's, where the kernel sees it made. None: it is none.
fn answer(filter: &Filter, number: usize, args: &[usize; 6]) -> Option<u32> {
    let [at, ..] = enter::made_at();
    filter.run(at, number, args)
}

/// Allowed, logged, or asked of a tracer or of a listener.
fn is_let(action: u32) -> bool {
    (RET_USER_NOTIF..=RET_ALLOW).contains(&(action & RET_ACTION))
}

/// Is this call to be made as it stands, for the thread's filters forbid it? `plain` ones always are.
pub fn forbid(block: &Block, number: usize, args: &[usize; 6]) -> bool {
    let filters = block.filters.load(Ordering::Relaxed);
    filters != 0 && !hold::is_plain(number) && !allow(filters, number, args)
}

/// Do the thread's filters, if it has any, allow a call?
pub fn let_pass(block: &Block, number: usize, args: &[usize; 6]) -> bool {
    allow(block.filters.load(Ordering::Relaxed), number, args)
}

/// In strict mode, by another call than it allows.
pub fn breaks_strict_mode(block: &Block, number: usize) -> bool {
    let is_strict = each_from(block.filters.load(Ordering::Relaxed)).any(|kept| kept.is_strict);
    is_strict && !STRICT.contains(&number)
}

/// read, write, exit.
const STRICT: [usize; 4] = [0, 1, 60, RT_SIGRETURN];

/// A call that sets a filter.
pub fn set(block: &mut Block, number: usize, args: [usize; 6]) -> Result<usize> {
    rewrite::stop(rewrite::FORBIDDEN);
    let is_strict = match (number, args[0], args[1]) {
        (nr::SECCOMP, SET_MODE_STRICT, 0) if args[2] == 0 => true,
        (nr::PRCTL, _, MODE_STRICT) => true,
        (nr::SECCOMP, SET_MODE_FILTER, _) | (nr::PRCTL, _, MODE_FILTER) => false,
        _ => return Err(EINVAL),
    };
    // SAFETY: numbers.
    let prctl = |option, value| unsafe { gadget::call(nr::PRCTL, [option, value, 0, 0, 0, 0]) };
    if is_strict && prctl(PR_GET_SECCOMP, 0) != Ok(0) {
        return Err(EINVAL);
    }
    let flags = if number == nr::SECCOMP && !is_strict { args[1] } else { 0 };
    let kept = match is_strict {
        true => {
            let code = strict_code();
            keep(block, code.len(), true, |to| {
                // SAFETY: there is room for so many.
                unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), to as *mut Instruction, code.len()) };
                true
            })?
        }
        // `struct sock_fprog`.
        false => {
            let [len, code] = gadget::read::<[usize; 2]>(args[2]).ok_or(EFAULT)?;
            let len = usize::from(len as u16);
            if len == 0 || len > INSTRUCTIONS_MAX {
                return Err(EINVAL);
            }
            // SAFETY: there is room for so many; guarded on the other side.
            keep(block, len, false, |to| unsafe { gadget::copy(to, code, len * size_of::<Instruction>()) })?
        }
    };
    let everybody = flags & FLAG_TSYNC != 0;
    if everybody && let Some(other) = other_with_own(block) {
        return Ok(other);
    }
    if is_strict {
        prctl(PR_SET_NO_NEW_PRIVS, 1)?;
    }
    pages::leave_pool();
    let result = set_kept(kept, flags & !FLAG_TSYNC)?;
    block.filters.store(kept.address(), Ordering::Release);
    control::tell_confined();
    STATE.confined.store(1, Ordering::SeqCst);
    inherited::note(&kept.filter());
    if everybody {
        tell_others(block);
    }
    Ok(result)
}

/// In the calling thread, for the kernel.
fn set_kept(kept: &Kept, flags: usize) -> Result<usize> {
    let program = [kept.own + kept.len, kept.code];
    // SAFETY: the kernel reads the program.
    unsafe { gadget::call(nr::SECCOMP, [SET_MODE_FILTER, flags, &raw const program as usize, 0, 0, 0]) }
}

/// TSYNC: a thread with a filter that the caller has not got, by its number.
fn other_with_own(block: &Block) -> Option<usize> {
    let own = block.filters.load(Ordering::Relaxed);
    block::others(block).find_map(|other| {
        // SAFETY: blocks are never unmapped; the fields are atomic, or read as they are.
        let (filters, tid) =
            unsafe { ((*other).filters.load(Ordering::Acquire), (&raw const (*other).tid).read_volatile()) };
        let is_ancestor = filters == 0 || each_from(own).any(|kept| kept.address() == filters);
        (!is_ancestor).then_some(tid as usize)
    })
}

/// TSYNC: they set the filters of this thread. Twice, for a thread that is being made takes over what its
/// parent had (`new_thread`).
fn tell_others(block: &Block) {
    let own = block.filters.load(Ordering::Relaxed);
    for _ in 0..2 {
        for other in block::others(block) {
            // SAFETY: blocks are never unmapped; the field is atomic.
            unsafe { (*other).wanted_filters.store(own, Ordering::SeqCst) };
        }
    }
}

/// Before a call: sets what another thread has wanted to be set.
pub fn catch_up(block: &Block) {
    const AT_ONCE: usize = 16;
    let wanted = block.wanted_filters.load(Ordering::SeqCst);
    while wanted != 0 && block.filters.load(Ordering::Relaxed) != wanted {
        let own = block.filters.load(Ordering::Relaxed);
        // The oldest first.
        let mut missing = [None; AT_ONCE];
        let mut count = 0;
        for kept in each_from(wanted).take_while(|kept| kept.address() != own) {
            if let Some(place) = missing.get_mut(count % AT_ONCE) {
                *place = Some(kept);
            }
            count += 1;
        }
        let Some(oldest) =
            count.checked_sub(1).and_then(|last| missing.get(last % AT_ONCE).copied()).flatten()
        else {
            break;
        };
        let mut result = set_kept(oldest, 0);
        if result == Err(EACCES) {
            // The thread that wanted it has promised that, and so for all.
            // SAFETY: numbers.
            let _ = unsafe { gadget::call(nr::PRCTL, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0]) };
            result = set_kept(oldest, 0);
        }
        if result.is_err() {
            gadget::die();
        }
        block.filters.store(oldest.address(), Ordering::Release);
    }
    let _ = block.wanted_filters.compare_exchange(wanted, 0, Ordering::SeqCst, Ordering::Relaxed);
}

/// Keeps a filter of the program's, with the agent's instructions before it. `copy`: puts the program's where
/// they are to be; false: they are not there.
fn keep(
    block: &Block,
    len: usize,
    is_strict: bool,
    copy: impl FnOnce(usize) -> bool,
) -> Result<&'static Kept> {
    let at = block::room(size_of::<Kept>() + (PREFIX_MAX + len) * size_of::<Instruction>())?;
    let program = at + size_of::<Kept>() + PREFIX_MAX * size_of::<Instruction>();
    if !copy(program) {
        return Err(EFAULT);
    }
    let filter = Filter { code: program, len };
    let before = block.filters.load(Ordering::Relaxed);
    let lets = |number, args: &[usize; 6]| {
        // The kernel refuses a program that is no filter.
        answer(&filter, number, args).is_none_or(is_let) && allow(before, number, args)
    };
    let (thread, child) = ([THREAD_FLAGS, 0, 0, 0, 0, 0], [SIGCHLD, 0, 0, 0, 0, 0]);
    // No filter can look at the arguments of clone3: they are in memory.
    let any = lets(CLONE3, &[0; 6]);
    let has_forks = any || lets(CLONE, &child) || lets(FORK, &[0; 6]) || lets(VFORK, &[0; 6]);
    let prefix = Prefix::new(any || lets(CLONE, &thread), has_forks);
    let Some(prefix) = prefix.filter(|prefix| prefix.len + len <= INSTRUCTIONS_MAX) else {
        return Err(ENOMEM);
    };
    let code = program - prefix.len * size_of::<Instruction>();
    // SAFETY: there is room for so many in front of the program's, and all of it is nobody else's.
    unsafe {
        let own = prefix.code();
        core::ptr::copy_nonoverlapping(own.as_ptr(), code as *mut Instruction, own.len());
        let kept = at as *mut Kept;
        kept.write(Kept { before, code, own: own.len(), len, is_strict });
        Ok(&*kept)
    }
}

const fn instruction(code: u16, yes: u8, no: u8, value: usize) -> Instruction {
    Instruction { code, yes, no, value: value as u32 }
}

/// As the kernel's strict mode.
fn strict_code() -> [Instruction; 9] {
    let [read, write, exit, sigreturn] = STRICT;
    [
        instruction(LOAD, 0, 0, ARCH as usize),
        instruction(IF_EQUAL, 0, 5, ARCH_X86_64 as usize),
        instruction(LOAD, 0, 0, NUMBER as usize),
        instruction(IF_EQUAL, 4, 0, read),
        instruction(IF_EQUAL, 3, 0, write),
        instruction(IF_EQUAL, 2, 0, exit),
        instruction(IF_EQUAL, 1, 0, sigreturn),
        instruction(RETURN, 0, 0, RET_KILL_THREAD as usize),
        instruction(RETURN, 0, 0, RET_ALLOW as usize),
    ]
}

/// Enough for all that `Prefix` puts there.
const PREFIX_MAX: usize = 256;

/// The agent's instructions before a filter of the program's.
struct Prefix {
    code: [Instruction; PREFIX_MAX],
    len: usize,
}

impl Prefix {
    /// None: the agent lies so that it cannot be told by one comparison, or there is no room.
    fn new(has_threads: bool, has_forks: bool) -> Option<Prefix> {
        let mut prefix = Prefix { code: [Instruction::NONE; PREFIX_MAX], len: 0 };
        let (start, end) = region::own_code();
        if start >> 32 != end >> 32 {
            return None;
        }
        prefix.push(LOAD, 0, 0, ADDRESS as usize + 4);
        prefix.leave_unless(IF_EQUAL, start >> 32);
        prefix.push(LOAD, 0, 0, ADDRESS as usize);
        prefix.leave_unless(IF_AT_LEAST, start & LOWER);
        prefix.leave_if(IF_AT_LEAST, end & LOWER);
        // Calls that are made there are the program's.
        for place in enter::made_at().into_iter().chain(clone::made_at()) {
            prefix.leave_if(IF_EQUAL, place & LOWER);
        }
        prefix.push(LOAD, 0, 0, NUMBER as usize);
        ALWAYS.iter().for_each(|call| prefix.allow(*call));
        if has_threads {
            THREADS.iter().for_each(|call| prefix.allow(*call));
        }
        if has_forks {
            FORKS.iter().for_each(|call| prefix.allow(*call));
        } else {
            // On descriptors that another process would have other ones for; and the end of this one.
            pages::calls_on_descriptors().for_each(|call| prefix.allow(call));
            let process = sys::getpid() as usize;
            [nr::KILL, TGKILL].iter().for_each(|number| prefix.allow((*number, Some(process))));
        }
        // The filter begins with an empty accumulator.
        prefix.push(LOAD_VALUE, 0, 0, 0);
        let last = prefix.len.checked_sub(1).filter(|last| *last < PREFIX_MAX)?;
        for (at, one) in prefix.code.iter_mut().enumerate().filter(|(_, one)| one.code == JUMP) {
            one.value = (last - at - 1) as u32;
        }
        Some(prefix)
    }

    fn push(&mut self, code: u16, yes: u8, no: u8, value: usize) {
        if let Some(place) = self.code.get_mut(self.len) {
            *place = instruction(code, yes, no, value);
        }
        self.len += 1;
    }

    /// The call is not the agent's.
    fn leave_unless(&mut self, code: u16, value: usize) {
        self.push(code, 1, 0, value);
        self.push(JUMP, 0, 0, 0);
    }

    fn leave_if(&mut self, code: u16, value: usize) {
        self.push(code, 0, 1, value);
        self.push(JUMP, 0, 0, 0);
    }

    /// The call's number is loaded, and stays so.
    fn allow(&mut self, (number, first): Call) {
        let Some(first) = first else {
            self.push(IF_EQUAL, 0, 1, number);
            return self.push(RETURN, 0, 0, RET_ALLOW as usize);
        };
        self.push(IF_EQUAL, 0, 4, number);
        self.push(LOAD, 0, 0, low(0) as usize);
        self.push(IF_EQUAL, 0, 1, first & LOWER);
        self.push(RETURN, 0, 0, RET_ALLOW as usize);
        self.push(LOAD, 0, 0, NUMBER as usize);
    }

    fn code(&self) -> &[Instruction] {
        self.code.get(..self.len).unwrap_or_default()
    }
}

const LOWER: usize = u32::MAX as usize;
const TGKILL: usize = 234;
