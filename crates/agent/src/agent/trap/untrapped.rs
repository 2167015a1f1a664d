//! A call from a site that was rewritten (`rewrite.rs`): may it be made without a trap?

use super::late;
use crate::calls::hold::{is_plain, publish_each};
use crate::calls::{answers, in_use, pieces, tasks};
use crate::common::sync::Ordering;
use crate::pages;
use crate::thread::block::Block;

/// A call from a site that was rewritten; it is one of those to which nothing happens but this. False: it is
/// to be trapped all the same.
///
/// Here signals may come, and a handler may never return: nothing is begun that must be ended. A thread that
/// brings its own pages does so inside of a handler, with signals blocked (`pages/`); so here it only looks
/// whether all is there, and is trapped where it is not. Memory that it has said to be in use stays
/// meanwhile, as for a call that traps.
pub extern "C" fn on_site(block: &mut Block) -> bool {
    let (number, args) = (block.frame.number, block.frame.args);
    // (A site may make calls of several numbers.)
    if block.has_left
        || !is_plain(number)
        || block.wanted_filters.load(Ordering::SeqCst) != 0
        || pieces::is_large(number, &args)
        || late::joins_before(block, number, &args)
        || tasks::are_looked_at(number, &args)
    {
        return false;
    }
    if answers::answers_with(number, &args) {
        return false;
    }
    let is_there = publish_each(block, number, &args, |one| pages::is_there(one.start, one.end, one.writes));
    if !is_there || pages::is_site_unsaid() {
        in_use::withdraw(block);
    }
    is_there
}
