//! A SIGSEGV or SIGBUS: a page that is away, or a fault of the program's own.
//!
//! ```text
//!   word SWAPPED            filled             ┐
//!   EVICTING, FILLING       waited for         ├ the instruction is run again
//!   PROTECTED, a write      asked for          │
//!   NONE, and by now the page can be accessed  ┘
//!   NONE, and it cannot     the program's: its handler, or its end
//!   SWAPPED, and the program's own protection refuses the access: the same, and nothing comes
//! ```
//!
//! NONE may be the word of a page that another thread has just filled, so the kernel is asked whether such an
//! access works (MADV_POPULATE). Meanwhile the page is this thread's hazard: were it to leave, the answer
//! would be about its window.

use crate::common::rules::{Rule, holds};
use crate::common::sync::{Ordering, fence};

#[cfg(memspill_test)]
use super::evict;
use super::{fill, gate, holes, kernel, table};
use crate::common::words::{EXCLUDED, NONE, SWAPPED};
use crate::machine::context::{Context, Info};
use crate::machine::sys::{PAGE, PROT_EXEC, PROT_NONE, PROT_WRITE, SIGBUS, SIGSEGV};
use crate::thread::block;

const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;
const BUS_ADRERR: i32 = 2;
/// Bits of the processor's error code.
const WRITE: usize = 2;
const FETCH: usize = 16;

/// True: the thread goes on where `context` says. False: the fault is the program's own, or a guarded access
/// that fails.
pub fn handle(info: &Info, context: &mut Context) -> bool {
    #[cfg(memspill_test)]
    if let Some(address) = evict::recovery(context.regs.rip) {
        context.regs.rip = address;
        return true;
    }
    let page = info.call_address & !(PAGE - 1);
    let is_fault = match info.signal as usize {
        SIGBUS => info.code == BUS_ADRERR && holes::raise_sigbus(),
        _ => matches!(info.code, SEGV_MAPERR | SEGV_ACCERR),
    };
    if !is_fault || page >= table::TOP {
        return false;
    }
    let error = context.regs.error;
    if info.code == SEGV_ACCERR && info.signal as usize == SIGSEGV && is_refused(page, error) {
        return false;
    }
    fill::settle_for(page, error & WRITE == 0) || is_over(page, error, info.signal as usize == SIGBUS)
}

/// Would the page be there, the access would fail all the same. The kernel has said that protection is in the
/// way; if it was a window's, the program has taken the right away since, and that is what it is told.
fn is_refused(page: usize, error: usize) -> bool {
    let Some(word) = table::find(page).map(table::load) else { return false };
    let prot = word.prot() as usize;
    word.state() == SWAPPED
        && match error {
            _ if !holds(Rule::AskTheWord) => true,
            _ if error & WRITE != 0 => prot & PROT_WRITE == 0,
            _ if error & FETCH != 0 => prot & PROT_EXEC == 0,
            _ => prot == PROT_NONE,
        }
}

/// Whether the access that failed would not fail now.
fn is_over(page: usize, error: usize, is_missing: bool) -> bool {
    // SAFETY: only threads that are armed touch what may be away.
    let hazard = unsafe { &block::current().hazard };
    hazard.store(page, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    // A word that has changed meanwhile is looked at again in the next fault.
    let inside = holds(Rule::LookInside).then(gate::enter);
    let is_over = !matches!(table::state_of(page), NONE | EXCLUDED)
        || is_missing && holes::is_there_by_now(page)
        || kernel::populate(page, error & WRITE != 0) && (error & FETCH == 0 || is_code(page));
    drop(inside);
    hazard.store(0, Ordering::SeqCst);
    is_over
}

fn is_code(page: usize) -> bool {
    kernel::mapping_from(page).is_some_and(|mapping| mapping.start <= page && mapping.prot & PROT_EXEC != 0)
}
