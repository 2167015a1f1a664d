//! The program's signals, as the program knows them: actions, masks, alternate stacks.
//!
//! Three signals are the dispatch's own: SIGSYS, by which the kernel tells of a system call, and SIGSEGV and
//! SIGBUS, which end a guarded access. They are never blocked in the kernel's masks, and always have the
//! dispatch's handler; what the program asks for is kept here and answered from here. All other signals that
//! the program handles have the same handler of the dispatch (`deliver.rs` says why), with all signals
//! blocked and on the thread's alternate stack.
//!
//! What differs from the kernel: one of the three that another process sends while the program has it blocked
//! is delivered at once, and a program that starts another one while it ignores one of the three does not
//! pass that on.

use crate::common::sync::{AtomicU32, AtomicUsize, Ordering};
use core::cell::UnsafeCell;

use crate::machine::context::{AltStack, NO_STACK, SS_DISABLE};
use crate::machine::gadget;
use crate::machine::sys::{self, EFAULT, EINVAL, ENOMEM, Result};
use crate::machine::sys::{SIGBUS, SIGSEGV};
use crate::thread::block::Block;

pub const SIGSYS: usize = 31;
const SIGKILL: usize = 9;
const SIGSTOP: usize = 19;
const SIGNALS: usize = 64;

pub const SIG_DFL: usize = 0;
pub const SIG_IGN: usize = 1;

const SA_RESTART: usize = 0x1000_0000;
pub const SA_NODEFER: usize = 0x4000_0000;
pub const SA_RESETHAND: usize = 0x8000_0000;
pub const SA_ONSTACK: usize = 0x0800_0000;
const SA_SIGINFO: usize = 4;
const SA_RESTORER: usize = 0x0400_0000;

const SS_ONSTACK: i32 = 1;
const SS_AUTODISARM: i32 = 1 << 31;
const MINSIGSTKSZ: usize = 2048;

const RT_SIGACTION: usize = 13;
pub const SIGALTSTACK: usize = 131;
const SET_BYTES: usize = 8;
const EPERM: i32 = 1;

/// The dispatch's own.
pub const RESERVED: u64 = bit(SIGSYS) | bit(SIGSEGV) | bit(SIGBUS);
const UNBLOCKABLE: u64 = bit(SIGKILL) | bit(SIGSTOP);
/// The mask of the dispatch's handlers, and of its steps around a clone. SIGSYS is blocked there and nowhere
/// else, which tells the other two where they came (`late::has_come`).
pub const IN_DISPATCH: u64 = !(bit(SIGSEGV) | bit(SIGBUS));

pub const fn bit(signal: usize) -> u64 {
    1 << (signal - 1)
}

/// `struct sigaction`, as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Action {
    pub handler: usize,
    pub flags: usize,
    pub restorer: usize,
    pub mask: u64,
}

const DEFAULT: Action = Action { handler: SIG_DFL, flags: 0, restorer: 0, mask: 0 };

struct Actions {
    list: UnsafeCell<[Action; SIGNALS + 1]>,
    lock: AtomicU32,
    /// Counts changes, twice each: odd while the list changes.
    version: AtomicU32,
    /// Address of the dispatch's handler.
    handler: AtomicUsize,
}

// SAFETY: the list is written under the lock, and what is read is taken only if the version says that it was
// not written meanwhile.
unsafe impl Sync for Actions {}

// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data.hot")]
static ACTIONS: Actions = Actions {
    list: UnsafeCell::new([DEFAULT; SIGNALS + 1]),
    lock: AtomicU32::new(0),
    version: AtomicU32::new(0),
    handler: AtomicUsize::new(0),
};

/// Held with all signals blocked, so never by two levels of one thread.
pub struct ActionsLocked;

pub fn lock_actions() -> ActionsLocked {
    while ACTIONS.lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // SAFETY: no memory involved.
        let _ = unsafe { gadget::call(sys::nr::SCHED_YIELD, [0; 6]) };
    }
    ActionsLocked
}

impl Drop for ActionsLocked {
    fn drop(&mut self) {
        ACTIONS.lock.store(0, Ordering::Release);
    }
}

/// What the program wants done.
pub fn action_of(signal: usize) -> Action {
    loop {
        let version = ACTIONS.version.load(Ordering::Acquire);
        let action = place(signal).map_or(DEFAULT, |place| {
            // SAFETY: an element of the list; a torn value is not used.
            unsafe { place.read_volatile() }
        });
        crate::common::sync::fence(Ordering::Acquire);
        if version.is_multiple_of(2) && ACTIONS.version.load(Ordering::Relaxed) == version {
            return action;
        }
        crate::common::sync::spin_hint();
    }
}

fn place(signal: usize) -> Option<*mut Action> {
    // SAFETY: the index is within the list.
    (1..=SIGNALS).contains(&signal).then(|| unsafe { ACTIONS.list.get().cast::<Action>().add(signal) })
}

fn record(_held: &ActionsLocked, signal: usize, action: Action) {
    if let Some(place) = place(signal) {
        ACTIONS.version.fetch_add(1, Ordering::AcqRel);
        // SAFETY: under the lock.
        unsafe { place.write_volatile(action) };
        ACTIONS.version.fetch_add(1, Ordering::AcqRel);
    }
}

/// As SA_RESETHAND does, when its handler begins.
pub fn reset(signal: usize) {
    let held = lock_actions();
    record(&held, signal, DEFAULT);
}

/// rt_sigaction, with signals blocked. `is_own`: the actions are this process's, and not a vfork's child's.
pub fn sigaction(args: [usize; 6], is_own: bool) -> Result<usize> {
    let [signal, new, old, size, ..] = args;
    let signal = signal as u32 as usize;
    if size != SET_BYTES {
        return Err(EINVAL);
    }
    if !(1..=SIGNALS).contains(&signal) {
        return Err(EINVAL);
    }
    let wanted = if new == 0 { None } else { Some(gadget::read::<Action>(new).ok_or(EFAULT)?) };
    let before;
    {
        let held = lock_actions();
        before = action_of(signal);
        if let Some(mut wanted) = wanted {
            if matches!(signal, SIGKILL | SIGSTOP) {
                return Err(EINVAL);
            }
            wanted.mask &= !UNBLOCKABLE;
            if bit(signal) & RESERVED == 0 {
                set_in_kernel(signal, &kernels(&wanted))?;
            }
            if is_own {
                record(&held, signal, wanted);
            }
        }
    }
    if old != 0 && !gadget::write(old, &before) {
        return Err(EFAULT);
    }
    Ok(0)
}

/// The action that the kernel gets for one of the program's.
fn kernels(wanted: &Action) -> Action {
    if wanted.handler == SIG_DFL || wanted.handler == SIG_IGN {
        return *wanted;
    }
    Action {
        handler: ACTIONS.handler.load(Ordering::Relaxed),
        flags: wanted.flags & !SA_NODEFER | SA_SIGINFO | SA_ONSTACK | SA_RESTORER,
        restorer: gadget::restorer(),
        mask: IN_DISPATCH,
    }
}

fn set_in_kernel(signal: usize, action: &Action) -> Result<usize> {
    let args = [signal, action as *const Action as usize, 0, SET_BYTES, 0, 0];
    // SAFETY: the kernel reads the struct; the handler is the dispatch's, or none.
    unsafe { gadget::call(RT_SIGACTION, args) }
}

fn in_kernel(signal: usize) -> Result<Action> {
    let mut action = DEFAULT;
    let args = [signal, 0, &raw mut action as usize, SET_BYTES, 0, 0];
    // SAFETY: the kernel writes the struct.
    unsafe { gadget::call(RT_SIGACTION, args) }.map(|_| action)
}

/// Lets the kernel do with one of the dispatch's signals what it does by default: for a program that is about
/// to die of it.
pub fn give_up(signal: usize) {
    let _ = set_in_kernel(signal, &DEFAULT);
}

/// Makes the dispatch's handler that of its own signals: at the start, and where a clone has cleared it. A
/// fault in the handler of one is one more.
pub fn install_reserved() {
    let mut action = kernels(&Action { handler: usize::MAX, ..DEFAULT });
    // A timer of the agent's may interrupt a call (`late.rs`).
    action.flags |= SA_NODEFER | SA_RESTART;
    for signal in [SIGSYS, SIGSEGV, SIGBUS] {
        let _ = set_in_kernel(signal, &action);
    }
}

/// The child of a fork that has its handlers cleared.
pub fn clear() {
    let held = lock_actions();
    for signal in 1..=SIGNALS {
        if action_of(signal).handler != SIG_IGN {
            record(&held, signal, DEFAULT);
        }
    }
}

/// Takes over what the program has set before the dispatch began. `handler` is the dispatch's.
pub fn adopt(handler: usize) {
    ACTIONS.handler.store(handler, Ordering::Relaxed);
    for signal in 1..=SIGNALS {
        let Ok(action) = in_kernel(signal) else { continue };
        let held = lock_actions();
        record(&held, signal, action);
        if action.handler > SIG_IGN && bit(signal) & RESERVED == 0 {
            let _ = set_in_kernel(signal, &kernels(&action));
        }
    }
    install_reserved();
}

/// Does the program have one of the dispatch's signals blocked or ignored, or its stack for handlers in use?
/// Then a dispatch that is there for a while only would be seen: it can take over none of that.
pub fn are_in_use(mask: u64) -> bool {
    let mut stack = NO_STACK;
    // SAFETY: the kernel writes a struct.
    let _ = unsafe { gadget::call(SIGALTSTACK, [0, &raw mut stack as usize, 0, 0, 0, 0]) };
    let is_ignored = |signal: &usize| in_kernel(*signal).is_ok_and(|action| action.handler == SIG_IGN);
    mask & RESERVED != 0 || stack.flags & SS_ONSTACK != 0 || [SIGSYS, SIGSEGV, SIGBUS].iter().any(is_ignored)
}

/// Does a signal wait, not blocked by `mask`, whose handler has calls end with EINTR?
pub fn is_interruption_pending(mask: u64) -> bool {
    const RT_SIGPENDING: usize = 127;
    let mut pending = 0u64;
    // SAFETY: the kernel writes a set.
    let _ = unsafe { gadget::call(RT_SIGPENDING, [&raw mut pending as usize, SET_BYTES, 0, 0, 0, 0]) };
    let interrupts = |signal: usize| {
        let action = action_of(signal);
        pending & !mask & !RESERVED & bit(signal) != 0
            && action.handler > SIG_IGN
            && action.flags & SA_RESTART == 0
    };
    (1..=SIGNALS).any(interrupts)
}

/// Would this rt_sigaction have it ignore one?
pub fn is_to_ignore_one(args: &[usize; 6]) -> bool {
    let is_own = (1..=SIGNALS).contains(&args[0]) && bit(args[0]) & RESERVED != 0;
    is_own && gadget::read::<Action>(args[1]).is_some_and(|wanted| wanted.handler == SIG_IGN)
}

/// A signal for the calling thread.
pub fn send_to_this_thread(signal: usize) -> Result<usize> {
    const GETTID: usize = 186;
    const TGKILL: usize = 234;
    // SAFETY: ids, and a signal to the calling thread; no memory involved.
    unsafe {
        let process = gadget::call(sys::nr::GETPID, [0; 6]).unwrap_or(0);
        let thread = gadget::call(GETTID, [0; 6]).unwrap_or(0);
        gadget::call(TGKILL, [process, thread, signal, 0, 0, 0])
    }
}

/// The kernel is to do what the program wants done, by itself. Only while the process has one thread, and in
/// a handler.
pub fn give_back() {
    for signal in 1..=SIGNALS {
        let action = action_of(signal);
        if bit(signal) & RESERVED != 0 || action.handler > SIG_IGN {
            let _ = set_in_kernel(signal, &action);
        }
    }
}

/// rt_sigprocmask on a mask that the kernel restores when the handler returns.
pub fn sigprocmask(block: &mut Block, mask: &mut u64, args: [usize; 6]) -> Result<usize> {
    const SIG_BLOCK: usize = 0;
    const SIG_UNBLOCK: usize = 1;
    let [how, set, old, size, ..] = args;
    if size != SET_BYTES {
        return Err(EINVAL);
    }
    let before = *mask | block.reserved_mask;
    if set != 0 {
        let set = gadget::read::<u64>(set).ok_or(EFAULT)?;
        let after = match how as u32 as usize {
            SIG_BLOCK => before | set,
            SIG_UNBLOCK => before & !set,
            sys::SIG_SETMASK => set,
            _ => return Err(EINVAL),
        };
        set_mask(block, mask, after);
    }
    if old != 0 && !gadget::write(old, &before) {
        return Err(EFAULT);
    }
    Ok(0)
}

/// Gives the thread a mask of the program's.
pub fn set_mask(block: &mut Block, mask: &mut u64, wanted: u64) {
    let wanted = wanted & !UNBLOCKABLE;
    block.reserved_mask = wanted & RESERVED;
    *mask = wanted & !RESERVED;
}

/// Whether the stack pointer lies in the program's alternate stack.
pub fn is_on(stack: &AltStack, pointer: usize) -> bool {
    stack.flags & SS_AUTODISARM == 0 && pointer > stack.at && pointer - stack.at <= stack.len
}

/// The alternate stack with its flags as the kernel tells them.
pub fn told(stack: &AltStack, pointer: usize) -> AltStack {
    let state = match () {
        () if stack.len == 0 => SS_DISABLE,
        () if is_on(stack, pointer) => SS_ONSTACK,
        () => 0,
    };
    AltStack { flags: stack.flags & SS_AUTODISARM | state, ..*stack }
}

/// The end of the program's alternate stack, if a handler is to begin there; and what remains of it.
pub fn stack_for_handler(block: &mut Block, action: &Action, pointer: usize) -> Option<usize> {
    let stack = block.alternate;
    if action.flags & SA_ONSTACK == 0 || stack.len == 0 || is_on(&stack, pointer) {
        return None;
    }
    Some(stack.at + stack.len)
}

/// Does as the kernel with SS_AUTODISARM, once a handler's frame is written.
pub fn disarm(block: &mut Block) {
    if block.alternate.flags & SS_AUTODISARM != 0 {
        block.alternate = NO_STACK;
    }
}

/// sigaltstack, of a program whose stack pointer is `pointer`.
pub fn sigaltstack(block: &mut Block, args: [usize; 6], pointer: usize) -> Result<usize> {
    let [new, old, ..] = args;
    let wanted = if new == 0 { None } else { Some(gadget::read::<AltStack>(new).ok_or(EFAULT)?) };
    let before = told(&block.alternate, pointer);
    if let Some(wanted) = wanted {
        if is_on(&block.alternate, pointer) {
            return Err(EPERM);
        }
        change_stack(block, &wanted)?;
    }
    if old != 0 && !gadget::write(old, &before) {
        return Err(EFAULT);
    }
    Ok(0)
}

/// Gives the thread another alternate stack.
pub fn change_stack(block: &mut Block, wanted: &AltStack) -> Result<()> {
    let kind = wanted.flags & !SS_AUTODISARM;
    if !matches!(kind, 0 | SS_ONSTACK | SS_DISABLE) {
        return Err(EINVAL);
    }
    if kind == SS_DISABLE {
        block.alternate = AltStack { flags: wanted.flags & SS_AUTODISARM, ..NO_STACK };
    } else if wanted.len < MINSIGSTKSZ {
        return Err(ENOMEM);
    } else {
        block.alternate = AltStack { flags: wanted.flags & SS_AUTODISARM, ..*wanted };
    }
    Ok(())
}
