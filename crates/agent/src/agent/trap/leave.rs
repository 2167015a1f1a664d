//! A process that has joined leaves the dispatch, where calls are trapped only until then (`late.rs`).
//!
//! ```text
//!   program: a call that is not made before ─ SIGSYS ▶ handler: joins ─ leaves ─ its return ▶ the same call
//!   program: anywhere ──── SIGBUS of the timer ──────▶ handler: joins ─ leaves ─ its return ▶ goes on
//! ```
//!
//! When the handler returns the kernel has for the program's only thread what the program has set: actions,
//! mask, alternate stack, %gs. A handler of the program's that is under way returns by itself, for its frame
//! is as the kernel would have written it (`deliver.rs`). The child of a fork may begin anew, with the same
//! block.

use super::signals::{self, SIGALTSTACK};
use crate::machine::context::Context;
use crate::machine::gadget;
use crate::machine::sys::PAGE;
use crate::thread::block::{self, Block};

/// In the dispatch's handler, on whose return the thread goes on as `context` says. It has joined: it is
/// armed no more, has no timer, and all signals are blocked.
pub fn leave(block: &mut Block, context: &mut Context) {
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
    if gadget::gs(block.address) == block.address {
        let _ = gadget::set_gs(0);
    }
    block::give_back(block);
}
