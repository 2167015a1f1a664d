//! A *hole* stands in the place of a page that is away: a guard marker, or, if the process has a userfaultfd
//! of its own, nothing at all, in memory that is registered with it.
//!
//! ```text
//!                     marker (markers.rs)                    userfaultfd (registered.rs)
//!   a thread touches  SIGSEGV                                SIGBUS (UFFD_FEATURE_SIGBUS)
//!   a call touches    EFAULT                                 EFAULT
//!   a page goes       NONE ─ copied ─ GUARD_INSTALL ─ RW     UFFDIO_MOVE into staging; or as on the
//!                                                            left, by MADV_DONTNEED
//!   a page comes      NONE ─ GUARD_REMOVE ─ written ─ RW     UFFDIO_COPY
//!   a write asks      never                                  UFFDIO_WRITEPROTECT
//! ```
//!
//! A process has one kind, from its start on. Nobody outside of this folder asks which; this file answers by
//! what is to be done.
//!
//! What it does not do: take pages out (`evict.rs`), or know what is away (`table.rs`).

use super::gate::{self, Alone};
use super::{kernel, table};
use crate::common::words::SWAPPED;
use crate::machine::gadget;
use crate::machine::sys::{self, Result, nr};

mod markers;
mod registered;

pub use registered::{copy, move_pages, register, unregister, write_protect};

fn are_markers() -> bool {
    !registered::are_in_use()
}

/// From now on this process has holes: in memory that is `registered`, or markers.
pub fn begin(registered: bool) -> Result<()> {
    if registered { registered::open_descriptor() } else { Ok(()) }
}

/// Does with memory of the agent's own, which begins at `page`, all that is done with pages later.
pub fn try_out(page: usize) -> Result<()> {
    if are_markers() { markers::try_out(page) } else { registered::try_out() }
}

/// In the child of a fork, before anything of the program runs: its memory is as its parent's, but registered
/// nowhere.
pub fn in_child() {
    if !are_markers() {
        registered::in_child();
    }
}

/// Nothing is closed any more, when nothing is away. (With a userfaultfd: when the last descriptor of it is
/// closed.)
pub fn end() {
    if !are_markers() {
        return;
    }
    let (mut at, mut from, mut to) = (0, 0, 0);
    while let Some((page, word)) = table::next(at, table::TOP) {
        at = page + sys::PAGE;
        if table::load(word).state() == SWAPPED {
            if page != to {
                drop_from(from, to);
                from = page;
            }
            to = at;
        }
    }
    drop_from(from, to);
}

/// Sees to it that what is at an address, and in the same 2 MiB, can be taken out. Outside of the gate. Err:
/// not now, or never.
pub fn make_ready(start: usize) -> Result<()> {
    if are_markers() { Ok(()) } else { registered::make_ready(start) }
}

/// May a page be taken out, as far as `make_ready` goes? Inside the gate.
pub fn may_leave(page: usize) -> bool {
    are_markers() || table::is_registered(page)
}

/// May pages with this protection leave by `move_pages`?
pub fn can_move(prot: usize) -> bool {
    !are_markers() && kernel::is_writable(prot)
}

/// Takes out pages whose bytes are kept, and that nobody can touch meanwhile.
///
/// # Safety
/// As the words say.
pub unsafe fn dig(at: usize, len: usize) -> Result<usize> {
    if are_markers() {
        // SAFETY: the caller's promise.
        return unsafe { kernel::install_guards(at, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { gadget::call(nr::MADVISE, [at, len, sys::MADV_DONTNEED, 0, 0, 0]) }
}

/// Brings pages with these bytes, which are FILLING by the caller. `prot`: that of their mapping.
/// `by_window`: as if there were other threads. True: no thread could look before all was there.
pub fn fill(at: usize, len: usize, prot: usize, bytes: usize, by_window: bool) -> bool {
    if are_markers() {
        return markers::fill(at, len, prot, bytes, by_window);
    }
    registered::copy(at, bytes, len);
    true
}

/// Brings pages of zeros.
pub fn fill_zeros(at: usize, len: usize, prot: usize) {
    if are_markers() { markers::fill_zeros(at, len, prot) } else { registered::zeros(at, len) }
}

/// Brings pages back that are EVICTING by the caller, and were taken out halfway.
pub fn put_back(at: usize, bytes: usize, len: usize) {
    if are_markers() {
        return markers::put_back(at, bytes, len);
    }
    // Locked pages were not emptied.
    registered::copy_missing(at, bytes, len, true);
}

/// Can pages be protected against writes, without another protection of their mapping?
pub fn can_protect() -> bool {
    !are_markers()
}

/// Does touching a hole raise SIGBUS?
pub fn raise_sigbus() -> bool {
    !are_markers()
}

/// A page that has no word, and should be there as the kernel would have it: true if it is.
pub fn is_there_by_now(page: usize) -> bool {
    !are_markers() && registered::is_there_by_now(page)
}

/// Would no fault come to another userfaultfd that the program registers its memory with?
pub fn hide_faults() -> bool {
    are_markers()
}

/// For a mapping that takes the place of another one: nothing is taken out there before it is known.
pub fn enter_to_map() -> Option<Alone> {
    (!are_markers()).then(gate::enter_alone)
}

/// Closes [from, to), which is new and untouched; or it stays open, where that fails. The caller is alone in
/// the gate.
pub fn close(from: usize, to: usize, prot: usize) {
    if are_markers() {
        markers::close(from, to, prot);
    } else {
        let _ = registered::register(from, to);
    }
}

/// Must what the program empties be closed page by page? (Registered memory is, by `follow_emptied`.)
pub fn close_emptied() -> bool {
    are_markers()
}

/// The program has given up what was away in [start, end).
pub fn drop_from(start: usize, end: usize) {
    if are_markers() && start < end {
        markers::drop_from(start, end);
    }
}

/// Pages of [from, to) may be missing by the program's own call.
pub fn follow_emptied(from: usize, to: usize) {
    if !are_markers() {
        registered::register_again(from, to);
    }
}

/// May the guards that a program removes be holes?
pub fn may_be_guards() -> bool {
    are_markers()
}

/// A call of the program's as it is to be made. MADV_FREE lets pages go at any time later, when nobody could
/// mark them: in registered memory they go now.
pub fn emptied_at_once(number: usize, args: [usize; 6]) -> [usize; 6] {
    let [start, len, advice, ..] = args;
    if number == nr::MADVISE && advice as u32 as usize == sys::MADV_FREE && !are_markers() {
        return [start, len, sys::MADV_DONTNEED, 0, 0, 0];
    }
    args
}
