//! mremap to a place of the caller's choice, of a range that is several mappings.
//!
//! Since 6.17 the kernel moves such a range, mapping by mapping, until it meets one that is registered with a
//! userfaultfd: there it gives up with EFAULT and leaves half of the range at the new place. If memory is
//! only partly registered (part of it is read-only, or new) a call that works without memspill would so lose
//! the program's memory.
//!
//! ```text
//!   old  | registered | not |  registered   |        one call for each piece: a range within
//!           │            │        │                  one mapping moves, registered or not
//!   new  |  ▼         |  ▼  |     ▼         |
//! ```
//!
//! A call that cannot succeed tells where the pieces end: it asks to grow, in place, to more than there is
//! address space. It fails with EFAULT where the range is not within one mapping, and with
//! another error where it is. There is no allocation here and no file: it may run in a signal handler.
//!
//! Not covered: mappings that change between the question and the call. Other threads of the program that
//! change a range while it moves have a race of their own; the supervisor registers whole mappings.

use crate::machine::sys::{self, EFAULT, PAGE, Result, nr};

const MREMAP_FIXED: usize = 2;
/// More than any process has.
const TOO_LONG: usize = (1 << 47) - PAGE;

/// mremap, as asked.
pub fn mremap(old: usize, old_len: usize, new_len: usize, flags: usize, new: usize) -> Result<usize> {
    // SAFETY: the caller's own request, passed through.
    unsafe { sys::syscall(nr::MREMAP, [old, old_len, new_len, flags, new, 0]) }
}

/// mremap in pieces where that is the same call; None if it is not one that the kernel would do in pieces.
pub fn mremap_in_pieces(
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: usize,
    new: usize,
) -> Option<Result<usize>> {
    let len = old_len.checked_next_multiple_of(PAGE)?;
    let pages_only = old.is_multiple_of(PAGE) && new.is_multiple_of(PAGE);
    let same_length = new_len.checked_next_multiple_of(PAGE) == Some(len) && len != 0;
    let in_space = len < TOO_LONG && old < TOO_LONG && new < TOO_LONG;
    // The kernel itself refuses ranges that overlap.
    let apart = in_space && (old + len <= new || new + len <= old);
    if flags & MREMAP_FIXED == 0 || !pages_only || !same_length || !apart || is_one_mapping(old, len) {
        return None;
    }
    Some(move_all(old, len, flags, new))
}

fn move_all(old: usize, len: usize, flags: usize, new: usize) -> Result<usize> {
    // Nothing moves before it is known that all of it is there.
    let mut at = 0;
    while at < len {
        at += piece(old + at, len - at)?;
    }
    at = 0;
    while at < len {
        let bytes = piece(old + at, len - at)?;
        mremap(old + at, bytes, bytes, flags, new + at)?;
        at += bytes;
    }
    Ok(new)
}

/// How many bytes from `addr` on, at most `len`, lie in one mapping.
fn piece(addr: usize, len: usize) -> Result<usize> {
    if is_one_mapping(addr, len) {
        return Ok(len);
    }
    let (mut inside, mut beyond) = (0, len / PAGE);
    while beyond - inside > 1 {
        let middle = inside + (beyond - inside) / 2;
        *(if is_one_mapping(addr, middle * PAGE) { &mut inside } else { &mut beyond }) = middle;
    }
    if inside == 0 { Err(EFAULT) } else { Ok(inside * PAGE) }
}

fn is_one_mapping(addr: usize, len: usize) -> bool {
    mremap(addr, len, TOO_LONG, 0, 0) != Err(EFAULT)
}
