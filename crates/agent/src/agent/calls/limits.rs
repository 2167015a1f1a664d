//! A limit on the process's addresses (RLIMIT_AS) is the program's: what the agent has reserved comes beside
//! it.
//!
//! The kernel is given a larger limit, and the program told its own. A child of a fork goes on with it; a
//! program that is started has the larger one, of which its own agent takes about as much.
//!
//! What it does not do: limits that another process sets; limits that were there before (the agent takes less
//! then).

use crate::common::sync::{AtomicUsize, Ordering};
use crate::machine::gadget;
use crate::machine::sys::{self, EFAULT, Result};
use crate::pages::kernel::RLIMIT_AS;
use crate::pages::uses;
use crate::thread::block;

const GETRLIMIT: usize = 97;
const SETRLIMIT: usize = 160;
const PRLIMIT64: usize = 302;
const INFINITY: usize = usize::MAX;
/// For what the agent maps later: words, memory that both sides share.
const LATER_BYTES: usize = 64 << 20;

/// How much was added; 0: the program has set no limit.
#[unsafe(link_section = ".data")]
static ADDED: AtomicUsize = AtomicUsize::new(0);

/// Whether all calls of this number are to be seen.
pub fn concerns(number: usize) -> bool {
    matches!(number, GETRLIMIT | SETRLIMIT | PRLIMIT64)
}

/// The result of a call about it. None: it is about something else.
pub fn answer(number: usize, args: [usize; 6]) -> Option<Result<usize>> {
    let (resource, new, old) = match number {
        GETRLIMIT => (args[0], 0, args[1]),
        SETRLIMIT => (args[0], args[1], 0),
        PRLIMIT64 if args[0] as u32 == 0 || args[0] as u32 == sys::getpid() => (args[1], args[2], args[3]),
        _ => return None,
    };
    (resource as u32 == RLIMIT_AS).then(|| change(new, old))
}

/// `new`, `old`: addresses of a `struct rlimit`, or 0.
fn change(new: usize, old: usize) -> Result<usize> {
    let before = call(None)?;
    let added = ADDED.load(Ordering::Relaxed);
    if new != 0 {
        let wanted = gadget::read::<[usize; 2]>(new).ok_or(EFAULT)?;
        let own = if added != 0 { added } else { own_bytes() };
        let limits = wanted.map(|limit| match limit.checked_add(own) {
            Some(larger) if limit != INFINITY => larger,
            _ => INFINITY,
        });
        // A limit that was there before is not to be passed.
        let hard = before[1];
        let limits =
            if added == 0 && wanted[1] <= hard { limits.map(|limit| limit.min(hard)) } else { limits };
        call(Some(&limits))?;
        ADDED.store(own, Ordering::Relaxed);
    }
    let told = before.map(|limit| if limit == INFINITY { limit } else { limit.saturating_sub(added) });
    if old != 0 && !gadget::write(old, &told) {
        return Err(EFAULT);
    }
    Ok(0)
}

/// Sets the limits, if there are some, and says what they were.
fn call(new: Option<&[usize; 2]>) -> Result<[usize; 2]> {
    let mut before = [0usize; 2];
    let new = new.map_or(0, |new| new.as_ptr() as usize);
    let args = [0, RLIMIT_AS as usize, new, before.as_mut_ptr() as usize, 0, 0];
    // SAFETY: the kernel reads and writes two words each.
    unsafe { gadget::call(PRLIMIT64, args) }.map(|_| before)
}

/// The bytes that the agent has reserved.
fn own_bytes() -> usize {
    let (_, own) = uses::kept(uses::TABLES);
    block::reserved_bytes() + own + LATER_BYTES
}
