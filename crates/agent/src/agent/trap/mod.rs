//! The dispatch: every system call of the process is trapped (Syscall User Dispatch), and before it is made
//! the memory that it will touch is brought, and kept from being taken out until it is over. It is for agent
//! mode, where the kernel does not wait for pages: inside a system call a fault is EFAULT, and the content of
//! a datagram or a counter is lost with it. (In kernel mode that is not so, and calls are trapped only in
//! processes that have not joined yet: `late.rs`, `leave.rs`.)
//!
//! Memory in use is not taken out (`pages/uses.rs` draws how). A page that cannot be brought is left to the
//! kernel, which says EFAULT.
//!
//! ```text
//!  program: syscall ─ SIGSYS ▶ handler, on the agent's stack: publish, bring            handler.rs
//!                              its return is a jump ▶ syscall, withdraw ▶ program       enter.rs
//! ```
//!
//! | file | what is in it |
//! |---|---|
//! | `enter.rs` | the instructions that make the call |
//! | `rewrite.rs` | sites that come to them without a trap |
//! | `signals.rs`, `deliver.rs` | the program's signals |
//! | `clone.rs` | threads, forks |
//! | `late.rs` | processes that join late, or never |
//! | `leave.rs` | those whose calls are trapped only until they have joined |
//! | `filters.rs` | seccomp filters of the program |
//! | `traced.rs` | who asks to be traced |
//! | `running.rs` | threads that run already are trapped, and let go |
//! | `handler.rs` | the handler, and what each call becomes |
//! | `untrapped.rs` | a call from a rewritten site: may it be made without a trap |
//!
//! The agent's other code makes its calls as the program does, and they are trapped too. The evictor is not:
//! it is made before the first thread is armed, or from the gadget.
//!
//! The kernel touches none of the program's alternate stacks: signals are handled on those of the agent.
//!
//! Not covered: programs that use Syscall User Dispatch themselves (Wine), which are refused it; memory
//! behind pointers inside other structs, in the structs of ioctl; what the kernel keeps of a call after it
//! has returned (vmsplice, MSG_ZEROCOPY).

use crate::join::above::above;
use crate::machine::gadget;
use crate::machine::sys::{self, Result};
use crate::supervisor::address;
use crate::thread::block;
use crate::thread::trapped;
use signals::SIGALTSTACK;

pub mod clone;
pub mod deliver;
pub mod enter;
pub mod filters;
pub mod handler;
pub mod late;
pub mod leave;
pub mod rewrite;
pub mod running;
pub mod signals;
pub mod traced;
pub mod untrapped;

const GETTID: usize = 186;

/// A program has been started: it goes on with its calls trapped, and joins late. False: it is to join now.
pub fn program_begins() -> bool {
    let blocked = sys::SignalsBlocked::new();
    let is_late = late::may_program() && begins_late(late::PROGRAM, blocked.before());
    if is_late {
        blocked.forget();
    }
    is_late
}

/// The child of a fork that the kernel tells of does the same. All signals are blocked, but for this; if true
/// the thread has the mask.
pub fn child_begins(mask: u64) -> bool {
    late::may_child() && begins_late(late::CHILD, mask)
}

fn begins_late(what: u32, mask: u64) -> bool {
    if address::is_then_free() {
        if signals::are_in_use(mask) {
            return false;
        }
        // Such a process joins in a signal handler.
        (above().follow_forks)();
        // Nothing of it is to last longer.
        rewrite::stop(rewrite::FORBIDDEN);
    }
    if trapped::prepare(0).is_err() || !late::make_ready() {
        return false;
    }
    let is_trapped = arm_with(mask, || late::begin(what)).is_ok();
    if !is_trapped {
        late::delete_timer();
    }
    is_trapped
}

/// Traps all calls of the calling thread, and of all that it will make. `prepare` has said that it can be
/// done. Err: there is no memory for it, and nothing has changed.
pub fn arm() -> Result<()> {
    let blocked = sys::SignalsBlocked::new();
    arm_with(blocked.before(), || ())?;
    blocked.forget();
    Ok(())
}

/// The same with all signals blocked, but for this: what the program has blocked is `mask`, which the thread
/// gets back. `begin`: what else is done before a signal can come.
fn arm_with(mask: u64, begin: impl FnOnce()) -> Result<()> {
    let block = block::take()?;
    block::set_armed(true);
    // SAFETY: the block is new, and the calling thread's from here on. The kernel reads and writes the
    // structs that are passed.
    unsafe {
        let block = &mut *block;
        block.tid = gadget::call(GETTID, [0; 6]).unwrap_or(0) as u32;
        block.robust_list = robust_list();
        let stack = block.kernel_stack();
        let before = &raw mut block.alternate as usize;
        let _ = gadget::call(SIGALTSTACK, [&raw const stack as usize, before, 0, 0, 0, 0]);
        // The program may put back what it reads there when its calls are no longer trapped.
        let stays = gadget::has_fsgsbase() && address::is_then_free();
        if !stays && gadget::gs(0) == 0 {
            let _ = gadget::set_gs(block.address);
        }
        block.fs = gadget::fs();
        signals::adopt(handler::on_signal as *const () as usize);
        let mut kernels = 0u64;
        signals::set_mask(block, &mut kernels, mask);
        let armed = gadget::arm();
        begin();
        let set = [sys::SIG_SETMASK, &raw const kernels as usize, 0, 8, 0, 0];
        let _ = gadget::call(sys::nr::RT_SIGPROCMASK, set);
        if armed.is_err() {
            sys::die();
        }
    }
    Ok(())
}

/// The list of robust locks, which the first thread has told the kernel before there was anybody to see it.
fn robust_list() -> usize {
    let (mut list, mut len) = (0usize, 0usize);
    // SAFETY: the kernel writes words.
    let _ = unsafe {
        gadget::call(sys::nr::GET_ROBUST_LIST, [0, &raw mut list as usize, &raw mut len as usize, 0, 0, 0])
    };
    list
}
