//! The calls of tests, on pages that a test keeps (`doors.rs` beside the agent's folder).

use crate::doors::{FILL_AT_ONCE, TAKE_OUT, USE_SOURCE, WINDOW_COUNTS};
use crate::machine::gadget;
use crate::machine::sys::{EFAULT, EINVAL, Result};
use crate::pages::source::Source;
use crate::pages::{evict, rules, source};

/// The result of such a call. None: it is another.
pub fn answer(number: usize, args: [usize; 6]) -> Option<Result<usize>> {
    let [first, second, third, ..] = args;
    Some(match number {
        USE_SOURCE => match gadget::read::<Source>(first) {
            Some(source) if source::plug(source) => Ok(0),
            Some(_) => Err(EINVAL),
            None => Err(EFAULT),
        },
        TAKE_OUT => Ok(evict::take_out(first, second, third as u64)),
        FILL_AT_ONCE => Ok(rules::set_fill_at_once(first)),
        WINDOW_COUNTS => Ok(source::COUNTERS.read(first) as usize),
        _ => return None,
    })
}
