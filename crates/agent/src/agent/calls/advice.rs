//! Memory that moves, and advice that the kernel cannot follow where its own faults are not served.
//!
//! | call                    | what is done beside it                                                       |
//! |-------------------------|------------------------------------------------------------------------------|
//! | mremap                  | the new place may be away as the old one was: calls are to touch it         |
//! | MADV_POPULATE_*         | where the kernel meets a page that is away, the pages are touched here      |
//! |                         | piece by piece, for a range may be more than there is room for              |
//! | MADV_FREE               | freed at once: the kernel would take such pages later without a word, also  |
//! |                         | between the touch and the call that reads them                              |
//!
//! All of it is done inside the trap's handler; what waits there waits for the pager.

use super::{batch, in_use};
use crate::machine::gadget;
use crate::machine::sys::{self, EFAULT, EINVAL, PAGE, Result, nr};
use crate::pages;

const PIECE: usize = 1 << 20;

pub fn remap(args: [usize; 6]) -> Result<usize> {
    let [old, old_len, len, ..] = args;
    // SAFETY: the program's own request.
    let new = unsafe { gadget::call(nr::MREMAP, args) }?;
    // What is registered was named before.
    if in_use::is_managed_in(old, old.saturating_add(old_len.max(PAGE))) {
        batch::note_new(new, len.next_multiple_of(PAGE));
    }
    Ok(new)
}

/// Is it advice that is followed here?
pub fn is_ours(args: [usize; 6]) -> bool {
    let [start, len, advice, ..] = args;
    match advice as u32 as usize {
        sys::MADV_POPULATE_READ | sys::MADV_POPULATE_WRITE if pages::is_on() => true,
        sys::MADV_POPULATE_READ | sys::MADV_POPULATE_WRITE | sys::MADV_FREE => {
            in_use::is_managed_in(start, start.saturating_add(len))
        }
        _ => false,
    }
}

pub fn advise(args: [usize; 6]) -> Result<usize> {
    let [start, len, advice, ..] = args;
    // SAFETY: the program's own request, or a part of it.
    let call = |start, len, advice| unsafe { gadget::call(nr::MADVISE, [start, len, advice, 0, 0, 0]) };
    let advice = advice as u32 as usize;
    if advice == sys::MADV_FREE {
        // What the kernel agreed to free some time (it refuses memory that is not anonymous).
        return call(start, len, advice).and_then(|_| call(start, len, sys::MADV_DONTNEED));
    }
    let Some(len) = len.checked_next_multiple_of(PAGE).filter(|_| start.is_multiple_of(PAGE)) else {
        return call(start, len, advice);
    };
    let mut done = 0;
    while done < len {
        let (at, bytes) = (start + done, PIECE.min(len - done));
        if pages::is_on() {
            populate_by_windows(at, bytes, advice)?;
            done += bytes;
            continue;
        }
        match call(at, bytes, advice) {
            Err(EFAULT) if touch(at, bytes, advice == sys::MADV_POPULATE_WRITE) => {}
            Err(errno) => return Err(errno),
            Ok(_) => {}
        }
        done += bytes;
    }
    Ok(0)
}

/// Markers are nothing that the kernel populates (EFAULT), nor are pages that are without protection for the
/// moment of a window (EINVAL): pages are brought first. They may have left again by then, which is less
/// likely for one.
fn populate_by_windows(start: usize, len: usize, advice: usize) -> Result<()> {
    const TRIES: u32 = 1000;
    // SAFETY: a part of the program's own request.
    let populate = |at, len| unsafe { gadget::call(nr::MADVISE, [at, len, advice, 0, 0, 0]) };
    pages::bring(start, start + len);
    match populate(start, len) {
        Err(EFAULT | EINVAL) => {}
        other => return other.map(drop),
    }
    for page in (start..start + len).step_by(PAGE) {
        let mut left = TRIES;
        while let Err(errno) = populate(page, PAGE) {
            left -= 1;
            if !matches!(errno, EFAULT | EINVAL) || left == 0 {
                return Err(errno);
            }
            pages::bring(page, page + PAGE);
        }
    }
    Ok(())
}

/// False: not all can be had.
fn touch(start: usize, len: usize, writes: bool) -> bool {
    let mut pages = (start..start + len).step_by(PAGE);
    pages.all(|page| if writes { gadget::touch_for_writing(page) } else { gadget::touch(page) })
}
