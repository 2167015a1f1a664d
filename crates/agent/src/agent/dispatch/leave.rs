//! A process that has joined leaves the dispatch, where calls are trapped only until then (`late.rs`).
//!
//! ```text
//!   program: a call that is not made before ─ SIGSYS ▶ handler: joins ─ leaves ─ its return ▶ the same call
//!   program: anywhere ──── SIGSYS of the timer ──────▶ handler: joins ─ leaves ─ its return ▶ goes on
//! ```
//!
//! When the handler returns the kernel has for the program's only thread what the program has set: actions,
//! mask, alternate stack, %gs. A handler of the program's that is under way returns by itself, for its frame
//! is as the kernel would have written it (`deliver.rs`). The child of a fork may begin anew, with the same
//! block.

use super::context::{Context, Info};
use super::signals::{self, SIGALTSTACK};
use super::thread::{self, Block};
use super::{gadget, late};
use crate::sys::PAGE;

/// In the dispatch's handler, on whose return the thread goes on as `context` says. It has joined: it is
/// armed no more, and all signals are blocked.
pub fn leave(block: &mut Block, context: &mut Context) {
    forget_timer();
    signals::give_back();
    context.mask |= block.reserved_mask;
    // The handler's return sets it too, before Linux 6.12 only if the program does not stand on that stack.
    context.stack = block.alternate;
    // The kernel changes no stack that it finds in use, by the stack pointer.
    let elsewhere = block.address + PAGE;
    let stack = [&raw const block.alternate as usize, 0, 0];
    // SAFETY: the kernel reads a struct, and a number. All signals are blocked. Nothing looks at the block
    // any more.
    unsafe { gadget::call_with_stack_at(elsewhere, SIGALTSTACK, stack) };
    let _ = gadget::set_gs(0);
    thread::give_back(block);
}

/// The timer is gone, and its signal may be on its way to a program that does not know it. One that somebody
/// else has sent comes again.
fn forget_timer() {
    const RT_SIGTIMEDWAIT: usize = 128;
    const SET_BYTES: usize = 8;
    let (set, at_once) = (signals::bit(signals::SIGSYS), [0u64; 2]);
    let mut info = Info::default();
    let mut is_sent = false;
    loop {
        let (set, at_once) = (&raw const set as usize, &raw const at_once as usize);
        let args = [set, &raw mut info as usize, at_once, SET_BYTES, 0, 0];
        // SAFETY: the kernel reads a set and a time, and writes the struct.
        if unsafe { gadget::call(RT_SIGTIMEDWAIT, args) }.is_err() {
            break;
        }
        is_sent |= !late::is_timer(&info);
    }
    if is_sent {
        let _ = signals::send_to_this_thread(signals::SIGSYS);
    }
}
