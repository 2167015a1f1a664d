//! Calls that are answered by the agent where it pages by itself, and are not made as the program asked.

use super::{descriptors, limits, mappings};
use crate::machine::sys::{EBUSY, Result, nr};
use crate::machine::uffd::UFFDIO_REGISTER;
use crate::pages::{exclude, from_pool, holes};

/// The result of a trapped call that is answered here. None: it is made as others are, after `before_call`,
/// and with `needed_by` among what it uses.
pub fn answer(number: usize, args: [usize; 6]) -> Option<Result<usize>> {
    #[cfg(memspill_test)]
    if let Some(answer) = super::doors::answer(number, args) {
        return Some(answer);
    }
    if from_pool::ends_with(number) {
        from_pool::leave();
    }
    from_pool::leave_addresses(number, &args);
    descriptors::answer(number, args)
        .or_else(|| registers_own(number, &args).then_some(Err(EBUSY)))
        .or_else(|| limits::answer(number, args))
        .or_else(|| mappings::answer(number, args))
}

/// May something be done with a call of this number in `answer`, `before_call` or `needed_by`, whatever its
/// arguments? Such a call must be trapped.
pub fn answers(number: usize) -> bool {
    mappings::may_change(number)
        || exclude::concerns(number)
        || from_pool::ends_with(number)
        || limits::concerns(number)
}

/// The same of this very call, beside `answers`.
pub fn answers_with(number: usize, args: &[usize; 6]) -> bool {
    descriptors::is_about_ours(number, args) || registers_own(number, args)
}

/// Does the program register memory with a userfaultfd of its own? Where markers stand no fault would come to
/// it. So it is refused, as by the kernel where another userfaultfd has the memory.
fn registers_own(number: usize, args: &[usize; 6]) -> bool {
    number == nr::IOCTL && args[1] as u32 as usize == UFFDIO_REGISTER && holes::hide_faults()
}
