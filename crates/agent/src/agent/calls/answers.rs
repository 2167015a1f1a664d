//! Calls that are answered by the agent where it pages by itself, and are not made as the program asked.

use super::{descriptors, limits, mappings};
use crate::machine::gadget;
use crate::machine::sys::{EBUSY, EFAULT, EINVAL, Result, nr};
use crate::machine::uffd::UFFDIO_REGISTER;
use crate::pages::{evict, exclude, from_pool, holes, rules, source};
use crate::words::{FILL_AT_ONCE, Source, TAKE_OUT, USE_SOURCE, WINDOW_COUNTS};

/// The result of a trapped call that is answered here. None: it is made as others are, after `before_call`,
/// and with `needed_by` among what it uses.
pub fn answer(number: usize, args: [usize; 6]) -> Option<Result<usize>> {
    let [first, second, third, ..] = args;
    match number {
        USE_SOURCE => Some(match gadget::read::<Source>(first) {
            Some(source) if source::plug(source) => Ok(0),
            Some(_) => Err(EINVAL),
            None => Err(EFAULT),
        }),
        TAKE_OUT => Some(Ok(evict::take_out(first, second, third as u64))),
        FILL_AT_ONCE => Some(Ok(rules::set_fill_at_once(first))),
        WINDOW_COUNTS => Some(Ok(source::COUNTERS.read(first) as usize)),
        _ => {
            if from_pool::ends_with(number) {
                from_pool::leave();
            }
            from_pool::leave_addresses(number, &args);
            descriptors::answer(number, args)
                .or_else(|| registers_own(number, &args).then_some(Err(EBUSY)))
                .or_else(|| limits::answer(number, args))
                .or_else(|| mappings::answer(number, args))
        }
    }
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
    number == nr::IOCTL && args[1] as u32 as usize == UFFDIO_REGISTER && !holes::are_registered()
}
