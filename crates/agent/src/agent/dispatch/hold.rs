//! What is done before a plain call is made: all that it uses is published and brought. By the trap's handler
//! (`trap.rs`), or, for a site that was rewritten, by the thread itself (`enter.rs`).

use super::in_use::{self, Use, Uses};
use super::pieces;
use super::thread::Block;
use super::walk::walk;
use crate::windows;

/// A call from a site that was rewritten; it is one of those to which nothing happens but this. False: it is
/// to be trapped all the same. Here signals may come: nothing is begun that must be ended.
pub extern "C" fn on_site(block: &mut Block) -> bool {
    let (number, args) = (block.frame.number, block.frame.args);
    if block.has_left || pieces::is_large(number, &args) {
        return false;
    }
    hold(block, number, &args);
    true
}

/// Publishes and brings all that a call uses.
pub fn hold(block: &mut Block, number: usize, args: &[usize; 6]) {
    if let Some((writes, len)) = pieces::plain_transfer(number, args) {
        let one = Use { start: args[1], end: args[1].saturating_add(len), writes };
        if len > 0 {
            in_use::publish_list(block, &[one]);
            in_use::bring(&one);
        }
        return;
    }
    let most = pieces::most_of(number, args, || {
        let mut sum = 0usize;
        walk(number, args, &mut |_, len, _| sum = sum.saturating_add(len));
        sum
    });
    let each_use = |sink: &mut dyn FnMut(Use)| {
        let mut left = most;
        walk(number, args, &mut |start, len, writes| {
            let len = len.min(left);
            left -= len;
            sink(Use { start, end: start.saturating_add(len), writes });
        });
    };
    let mut uses = Uses::new();
    each_use(&mut |one| uses.add(one));
    if windows::is_on()
        && let Some((start, end)) = windows::needed_by(number, args)
    {
        uses.add(Use { start, end, writes: false });
    }
    if uses.is_empty() {
        return;
    }
    in_use::publish(block, &uses);
    if uses.overflows {
        each_use(&mut |one| in_use::bring(&one));
    } else {
        uses.exact().for_each(in_use::bring);
    }
}
