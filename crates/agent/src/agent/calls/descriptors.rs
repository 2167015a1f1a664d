//! The program cannot close the agent's descriptors (`pages/kernel.rs`), nor put others in their places.
//! They look to it as if they were not open.

use crate::machine::gadget;
use crate::machine::sys::{self, Result, nr};
use crate::pages::kernel::DESCRIPTORS;

const DUP2: usize = 33;
const DUP3: usize = 292;
const EBADF: i32 = 9;
const CLOSE_RANGE_CLOEXEC: usize = 4;

fn is_ours(fd: usize) -> bool {
    let fd = fd as u32 as i32;
    fd >= 0 && DESCRIPTORS.all().contains(&fd)
}

/// Is it a call that `answer` may answer?
pub fn is_about_ours(number: usize, args: &[usize; 6]) -> bool {
    match number {
        nr::CLOSE => is_ours(args[0]),
        DUP2 | DUP3 => is_ours(args[1]),
        nr::CLOSE_RANGE => true,
        _ => false,
    }
}

/// The result of a call that would close one of them; None: it does not.
pub fn answer(number: usize, args: [usize; 6]) -> Option<Result<usize>> {
    match number {
        nr::CLOSE if is_ours(args[0]) => Some(Err(EBADF)),
        DUP2 | DUP3 if is_ours(args[1]) => Some(Err(sys::EBUSY)),
        nr::CLOSE_RANGE if args[2] & CLOSE_RANGE_CLOEXEC == 0 => close_around(args),
        _ => None,
    }
}

/// Closes what lies between them.
fn close_around(args: [usize; 6]) -> Option<Result<usize>> {
    let (first, last) = (args[0] as u32, args[1] as u32);
    let is_inside = |fd: &u32| (first..=last).contains(fd);
    if first > last || !DESCRIPTORS.all().iter().any(|fd| is_inside(&(*fd as u32))) {
        return None;
    }
    let mut from = first;
    let mut result = Ok(0);
    loop {
        let mut next = u32::MAX;
        for fd in DESCRIPTORS.all() {
            if fd >= 0 && fd as u32 >= from {
                next = next.min(fd as u32);
            }
        }
        let until = if next <= last { next.wrapping_sub(1) } else { last };
        if next > from || next > last {
            // SAFETY: the program's request, a part of it.
            let ret =
                unsafe { gadget::call(nr::CLOSE_RANGE, [from as usize, until as usize, args[2], 0, 0, 0]) };
            result = result.and(ret);
        }
        if next >= last {
            return Some(
                result.map(|_| 0).map_err(|errno: i32| if errno == 0 { sys::EINVAL } else { errno }),
            );
        }
        from = next + 1;
    }
}
