//! MADV_POPULATE_READ and _WRITE: the kernel fails where a page is away, so pages are brought before, piece
//! by piece, for a range may be more than there is room for. All of it is done inside the trap's handler,
//! which waits there for the pager.

use crate::machine::gadget;
use crate::machine::sys::{self, EFAULT, EINVAL, PAGE, Result, nr};
use crate::pages;

const PIECE: usize = 1 << 20;

/// Is it advice that is followed here?
pub fn is_ours(args: [usize; 6]) -> bool {
    let advice = args[2] as u32 as usize;
    matches!(advice, sys::MADV_POPULATE_READ | sys::MADV_POPULATE_WRITE)
}

pub fn advise(args: [usize; 6]) -> Result<usize> {
    let [start, len, advice, ..] = args;
    let advice = advice as u32 as usize;
    let Some(len) = len.checked_next_multiple_of(PAGE).filter(|_| start.is_multiple_of(PAGE)) else {
        // SAFETY: the program's own request.
        return unsafe { gadget::call(nr::MADVISE, [start, len, advice, 0, 0, 0]) };
    };
    let mut done = 0;
    while done < len {
        let bytes = PIECE.min(len - done);
        populate(start + done, bytes, advice)?;
        done += bytes;
    }
    Ok(0)
}

/// Markers are nothing that the kernel populates (EFAULT), nor are pages that are without protection for the
/// moment of a window (EINVAL): pages are brought first. They may have left again by then, which is less
/// likely for one.
fn populate(start: usize, len: usize, advice: usize) -> Result<()> {
    const TRIES: u32 = 1000;
    // SAFETY: a part of the program's own request.
    let call = |at, len| unsafe { gadget::call(nr::MADVISE, [at, len, advice, 0, 0, 0]) };
    pages::bring(start, start + len, true);
    match call(start, len) {
        Err(EFAULT | EINVAL) => {}
        other => return other.map(drop),
    }
    for page in (start..start + len).step_by(PAGE) {
        let mut left = TRIES;
        while let Err(errno) = call(page, PAGE) {
            left -= 1;
            if !matches!(errno, EFAULT | EINVAL) || left == 0 {
                return Err(errno);
            }
            pages::bring(page, page + PAGE, true);
        }
    }
    Ok(())
}
