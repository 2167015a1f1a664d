//! Forks: the child has its parent's memory of one moment, with its markers, and the words of that moment.
//!
//! ```text
//!   parent                                supervisor               child
//!   enters the gate alone: nothing is EVICTING or FILLING
//!   asks (programs/forks.rs) ───────────▶ copies its page table, with a reference more to each slot
//!   copies the words into a file of its own
//!   clone ───────────────────────────────────────────────────────▶ maps the file over its parent's words
//!   closes its descriptor of the file                              opens its own memory; a new gate
//!   leaves the gate                                                joins, and runs on
//! ```
//!
//! From then on each side fills, and takes out, what is its own. What the child does not inherit
//! (MADV_DONTFORK: Node's whole heap) it forgets at once; what it inherits empty (MADV_WIPEONFORK) is never
//! away (`exclude.rs`).
//!
//! In a test, where no supervisor keeps the pages, `Source::share` gives the references.

use crate::common::sync::{AtomicI32, Ordering};
use core::mem::forget;

use super::gate::{self, Alone};
use super::kernel::{self, end};
use super::{channel, evict, from_pool, holes, reconcile, source, supervisor, table, write_protect};
use crate::common::words::{EVICTING, EXCLUDED, FILLING, SWAPPED};
use crate::machine::sys::{PAGE, Result};

/// The file with the child's words, while the fork is under way.
struct Forked {
    words: AtomicI32,
}

/// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
static FORKED: Forked = Forked { words: AtomicI32::new(-1) };

/// Before the clone, when all that it touches is there: nothing may fault until `ends`. `ready`: has the
/// supervisor hold what it has of this process, where there is one; from then on nothing leaves.
pub fn begins(ready: impl FnOnce() -> Result<()>) -> Result<()> {
    let alone = supervisor::enter_to_change();
    ready()?;
    // Pages that were brought in between are known as such; those that come later are away in the child.
    if channel::is_there() {
        supervisor::install_alone();
    }
    let words = table::copy()?;
    each_slot(|slot, source| {
        // SAFETY: the parent's word holds a reference.
        unsafe { (source.share)(slot) };
    });
    FORKED.words.store(words, Ordering::Relaxed);
    forget(alone);
    Ok(())
}

/// In the parent, when the clone has been made, or has failed.
pub fn ends(is_made: bool) {
    if !is_made {
        each_slot(|slot, source| {
            // SAFETY: the reference that was to be the child's.
            unsafe { (source.release)(slot) };
        });
    }
    kernel::close(FORKED.words.swap(-1, Ordering::Relaxed));
    drop(Alone);
}

/// In the child, while it is alone and its calls are not trapped yet.
pub fn in_child() {
    gate::reset();
    evict::reset();
    from_pool::forget();
    channel::forget();
    if table::adopt(FORKED.words.swap(-1, Ordering::Relaxed)).is_err() {
        end("cannot say which of its pages are away: no memory for their words");
    }
    if kernel::open_own().is_err() {
        end("cannot page the child of a fork: /proc/self/mem does not open");
    }
    // Memory that was not inherited is nobody's, whatever its words say.
    reconcile::reconcile(0, table::TOP, None);
    // The kernel has protected nothing of the child's.
    write_protect::forget(0, table::TOP);
    holes::in_child();
}

/// Is nothing away, nor closed, nor registered? Only inside the gate, alone.
pub fn is_all_here() -> bool {
    let mut at = 0;
    while let Some((page, word)) = table::next(at, table::TOP) {
        if table::load(word).state() != EXCLUDED {
            return false;
        }
        at = page + PAGE;
    }
    table::next_was_registered(0).is_none()
}

/// Is no page on its way, out or in? When nobody is at work.
pub fn is_nothing_on_its_way() -> bool {
    let mut at = 0;
    while let Some((page, word)) = table::next(at, table::TOP) {
        if matches!(table::load(word).state(), EVICTING | FILLING) {
            return false;
        }
        at = page + PAGE;
    }
    true
}

fn each_slot(mut tell: impl FnMut(u64, &super::source::Source)) {
    let Some(source) = source::get() else { return };
    let mut at = 0;
    while let Some((page, word)) = table::next(at, table::TOP) {
        let seen = table::load(word);
        if seen.state() == SWAPPED && !seen.is_closed() {
            tell(seen.slot(), &source);
        }
        at = page + PAGE;
    }
}
