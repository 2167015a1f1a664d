//! Before a plain call is made, all that it uses is published and brought. By the trap's handler
//! (`handler.rs`), or, for a site that was rewritten, by the thread itself (`enter.rs`).

use super::answers;
use super::in_use::{self, Use, Uses};
use super::pieces;
use super::walk::walk;
use crate::pages;
use crate::thread::block::Block;

/// The fifth argument of a pread or pwrite of memory of the caller's own, which the kernel does not look at.
pub const OF_OWN_MEMORY: usize = 0x6d65_6d73_7069_6c6c;

/// Calls to which nothing happens in the handler but that their memory is published and brought.
pub fn is_plain(number: usize) -> bool {
    matches!(number,
        0..=12 | 16..=24 | 26 | 27 | 32..=55 | 61..=63 | 72..=92 | 95..=100 | 102 | 104 | 107 | 108 | 110
        | 186 | 202 | 217 | 228..=234 | 247 | 257..=269 | 275 | 280 | 283 | 285..=296 | 299 | 307 | 318 | 332)
        && !answers::answers(number)
}

/// Publishes and brings all that a call uses.
pub fn hold(block: &mut Block, number: usize, args: &[usize; 6]) {
    publish_each(block, number, args, |one| {
        in_use::bring(one);
        true
    });
}

/// The memory that a pread or pwrite of /proc/self/mem reaches through its file (`proc_mem.rs`).
fn of_own_memory(args: &[usize; 6]) -> Option<Use> {
    let [_, _, len, start, mark, _] = *args;
    let one = Use { start, end: start.saturating_add(len), writes: true };
    (mark == OF_OWN_MEMORY).then_some(one)
}

/// Publishes all that a call uses, and then tells of each part of it, until one is answered by false.
pub fn publish_each(
    block: &mut Block,
    number: usize,
    args: &[usize; 6],
    mut tell: impl FnMut(&Use) -> bool,
) -> bool {
    if let Some((writes, len)) = pieces::plain_transfer(number, args) {
        let one = Use { start: args[1], end: args[1].saturating_add(len), writes };
        if len == 0 {
            return true;
        }
        let Some(also) = of_own_memory(args) else {
            in_use::publish_list(block, &[one]);
            return tell(&one);
        };
        in_use::publish_list(block, &[one, also]);
        return tell(&one) && tell(&also);
    }
    let sum = || {
        let mut sum = 0usize;
        walk(number, args, &mut |_, len, _| sum = sum.saturating_add(len));
        sum
    };
    let most = if block.is_confined() { usize::MAX } else { pieces::most_of(number, args, sum) };
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
    if let Some((start, end)) = pages::needed_by(number, args) {
        uses.add(Use { start, end, writes: true });
    }
    if uses.is_empty() {
        return true;
    }
    in_use::publish(block, &uses);
    if !uses.overflows {
        return uses.exact().all(tell);
    }
    let mut goes_on = true;
    each_use(&mut |one| goes_on = goes_on && tell(&one));
    goes_on
}
