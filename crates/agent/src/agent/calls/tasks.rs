//! stat and its kin on /proc/self/task, which are made in the handler: the program's threads are counted
//! without the evictor (`own_thread.rs`).

use crate::hooks::own_thread::{Links, PATH_MAX, Stat, Statx, is_path_of_tasks};
use crate::machine::gadget;
use crate::machine::sys::{PAGE, nr};

const STAT: usize = 4;
const NEWFSTATAT: usize = 262;

/// The argument that is the path, and the one that is the place for the result.
fn places(number: usize, args: &[usize; 6]) -> Option<(usize, usize)> {
    match number {
        STAT => Some((args[0], args[1])),
        NEWFSTATAT => Some((args[1], args[2])),
        nr::STATX => Some((args[1], args[4])),
        _ => None,
    }
}

/// Is it such a call?
pub fn are_looked_at(number: usize, args: &[usize; 6]) -> bool {
    let is_asked_for = |(path, _): (usize, usize)| {
        let mut bytes = [0u8; PATH_MAX];
        // The page behind the end of the path may not be mapped.
        let first = (PAGE - path % PAGE).min(PATH_MAX);
        // SAFETY: there is room for so many.
        let is_read = unsafe { gadget::copy(bytes.as_mut_ptr() as usize, path, first) };
        let mut end = bytes.iter().position(|byte| *byte == 0);
        if is_read && first < PATH_MAX && end.is_none_or(|end| end >= first) {
            let rest = bytes.as_mut_ptr() as usize + first;
            // SAFETY: as above.
            let is_read = unsafe { gadget::copy(rest, path + first, PATH_MAX - first) };
            end = bytes.iter().position(|byte| *byte == 0).filter(|_| is_read);
        }
        is_read && end.and_then(|end| bytes.get(..end)).is_some_and(is_path_of_tasks)
    };
    places(number, args).is_some_and(is_asked_for)
}

/// It has been made, on memory that is held: the evictor is not counted.
pub fn leave_out_evictor(number: usize, args: &[usize; 6]) {
    match places(number, args) {
        Some((_, place)) if number == nr::STATX => correct::<Statx>(place),
        Some((_, place)) => correct::<Stat>(place),
        None => {}
    }
}

fn correct<T: Links>(place: usize) {
    if let Some(corrected) = gadget::read::<T>(place).and_then(Links::without_one) {
        // The kernel could write there.
        let _ = gadget::write(place, &corrected);
    }
}
