//! The robust locks that a thread holds when it ends: the kernel marks them as left behind, and wakes who
//! waits for them.
//!
//! ```text
//!   head (in struct pthread) ─▶ entry ─▶ entry ─▶ … ─▶ head       entry + offset: the word of the lock
//! ```
//!
//! It reads this list when the thread can wait for no page any more: where an entry or a word is away, it
//! stops without saying so, and whoever waits for the lock waits for ever. So each entry and word is told of
//! before the thread ends, by the thread itself, for them to be there and to stay.
//!
//! Not covered: threads of a process that is killed, or ends by exit_group or exec, which hold locks in
//! memory that is shared with another process.

/// The kernel goes no further (ROBUST_LIST_LIMIT).
const ENTRIES_MAX: usize = 2048;
/// Set in an entry's address where its lock inherits priorities.
const PI: usize = 1;

/// As in <linux/futex.h>, `struct robust_list_head`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Head {
    first: usize,
    offset: usize,
    /// The lock that is being had or given back just now, or 0.
    pending: usize,
}

/// Calls `keep` for each entry of the list at `list` and for the word of its lock. `next` reads the entry
/// that follows; None ends it, as for the kernel.
pub fn each(
    list: usize,
    head: Head,
    mut next: impl FnMut(usize) -> Option<usize>,
    mut keep: impl FnMut(usize),
) {
    let mut keep_lock = |entry: usize| {
        keep(entry);
        keep(entry.wrapping_add(head.offset));
    };
    if head.pending & !PI != 0 {
        keep_lock(head.pending & !PI);
    }
    let mut entry = head.first & !PI;
    for _ in 0..ENTRIES_MAX {
        if entry == list || entry == 0 {
            return;
        }
        keep_lock(entry);
        match next(entry) {
            Some(after) => entry = after & !PI,
            None => return,
        }
    }
}
