//! A supervisor keeps the pages: it is told of faults and of changes, and what it brings is installed here.
//! `common/src/link.rs` has the picture.
//!
//! What must hold:
//!
//! - A page whose word is SWAPPED is away for the supervisor too, or on its way: in a delivery. So whoever
//!   changes mappings, takes pages out or forks installs first what has been delivered. A change is announced
//!   before that, and nothing is delivered, nor taken out, before all of it was read.
//! - A thread waits for the supervisor outside of the gate.
//! - A delivery is installed as it is; a page of it whose word is not SWAPPED (of a WRITABLE one, PROTECTED)
//!   was given up meanwhile and is skipped.
//!
//! What it does not do: say what of a process may be taken out.

use crate::common::rules::{Rule, holds};
use crate::common::sync::{AtomicU32, AtomicU64, Ordering};
use core::cell::Cell;

use super::channel::{control, field, file, is_there, push, wait_for_reader, word32, word64};
use super::gate::{self, Alone, Inside};
use super::kernel::end;
use super::{notes, run, table, write_protect};
use crate::common::link::{
    CLOSED_MAX, DELIVERIES, DELIVERIES_ALL, DELIVERY_PAGES, Delivery, END, FREE, FULL, LOST, RUN_CLOSED,
    TAKEN, UNREAD_CHANGES_MAX, WAITERS, WRITABLE, Waiter, ZERO_PAGES, ZEROS, bytes_at,
};
use crate::common::words::{EVICTING, FILLING, PROTECTED, SWAPPED, Word};
use crate::machine::gadget;
use crate::machine::sys::PAGE;
use crate::thread::wait;

/// How long to sleep on the lock before it is looked at again.
const LOCK_MS: u32 = 100;

pub fn take_word() -> &'static AtomicU64 {
    word64(field!(take))
}

/// Counts pages that have left and that others have too: no memory has become free by them.
pub fn note_shared_taken(pages: usize) {
    word64(field!(shared_taken)).fetch_add(pages as u64, Ordering::SeqCst);
}

/// Has the supervisor not read yet what has changed, or is it just at it? Inside the gate.
pub fn is_changing() -> bool {
    let unread =
        word64(field!(changes)).load(Ordering::SeqCst) != word64(field!(changes_read)).load(Ordering::SeqCst);
    // SAFETY: as in `field`.
    let abort = word32(unsafe { &raw mut (*control()).abort });
    // In this order: it says that it reads before it counts what it has read.
    unread || abort.load(Ordering::SeqCst) != 0
}

/// Enters the gate alone, to change mappings, when few changes are unread, and none are held up.
///
/// Pages can be taken out only while no change is unread: a program that changes its mappings all the time
/// would leave no such moment. So the supervisor holds changes up, for a batch, where the last one met one.
/// (The kernel lets whoever changes mappings wait for each event.)
///
/// What threads bring by themselves must be known too: a page of which the supervisor still thinks that it is
/// away would be away where it is moved to, or in a child.
pub fn enter_to_change() -> Alone {
    loop {
        let closed = notes::Closed::begin();
        wait_to_change();
        let alone = gate::enter_alone();
        drop(closed);
        if notes::is_empty() {
            return alone;
        }
    }
}

/// Enters the gate alone, to change the protection of mappings: what is away stays so, what comes gets the
/// protection that its word has by then, and what threads bring is where they say. So it waits for the
/// supervisor only where changes keep batches out.
pub fn enter_to_protect() -> Alone {
    if is_there() {
        let held = word32(field!(held));
        wait_for_reader(&|| held.load(Ordering::SeqCst) == 0);
    }
    gate::enter_alone()
}

fn wait_to_change() {
    if is_there() {
        // While all deliveries are FULL the supervisor may have in its hands what it is to note.
        install_all(&gate::enter, false);
        let (changes, read) = (word64(field!(changes)), word64(field!(changes_read)));
        let held = word32(field!(held));
        wait_for_reader(&|| {
            let unread = changes.load(Ordering::SeqCst).wrapping_sub(read.load(Ordering::SeqCst));
            unread <= UNREAD_CHANGES_MAX && held.load(Ordering::SeqCst) == 0 && notes::is_empty()
        });
    }
}

/// Asks for a page whose word is `state`, by a message of this kind (FAULT, READ_FAULT, WRITE), until the
/// word is something else. Outside of the gate.
pub fn ask_for(page: usize, kind: u32, state: u64) {
    // Before all else: who wakes looks at the waiters only where there are some.
    let waiting = word32(field!(waiting));
    let mut is_counted = holds(Rule::CountFirst);
    if is_counted {
        waiting.fetch_add(1, Ordering::SeqCst);
    }
    let index = claim_waiter(page);
    let waiter = waiter(index);
    // SAFETY: as above; only addresses are taken.
    let (woken, place) = unsafe { (word32(&raw mut (*waiter).woken), word64(&raw mut (*waiter).page)) };
    // SAFETY: as above.
    let run = word32(unsafe { &raw mut (*waiter).run });
    loop {
        let seen = woken.load(Ordering::SeqCst);
        install_all(&gate::enter, false);
        if table::state_of(page) != state {
            break;
        }
        let pages = if state == SWAPPED { run_from(page) } else { 1 };
        run.store(pages as u32, Ordering::SeqCst);
        push(kind, page, page + PAGE, 0);
        if !is_counted {
            waiting.fetch_add(1, Ordering::SeqCst);
            is_counted = true;
        }
        let seen = if holds(Rule::SeenFirst) { seen } else { woken.load(Ordering::SeqCst) };
        while woken.load(Ordering::SeqCst) == seen {
            wait::sleep(woken, seen);
        }
    }
    // First: whoever has this place next has not said yet how many are away with its page, nor that nothing
    // was ever there; taken for new, it would get zeros.
    run.store(0, Ordering::SeqCst);
    place.store(0, Ordering::SeqCst);
    if is_counted {
        waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How many pages from this one on are away, as far as they come at once: as they are protected, too. Zeros
/// for what cannot be accessed would count, and could not be taken out. With `RUN_CLOSED` where that is so.
fn run_from(page: usize) -> usize {
    let word_at = |index: usize| table::find(page + index * PAGE).map(table::load);
    let Some(first) = word_at(0) else { return 1 };
    let is_alike = |word: Word| {
        word.state() == SWAPPED && word.prot() == first.prot() && word.is_closed() == first.is_closed()
    };
    let most = if first.is_closed() { ZERO_PAGES } else { DELIVERY_PAGES };
    let count = (0..most).take_while(|index| word_at(*index).is_some_and(is_alike)).count();
    count.max(1) | if first.is_closed() { RUN_CLOSED } else { 0 }
}

/// The place of a waiter, whose index is below WAITERS.
fn waiter(index: usize) -> *mut Waiter {
    field!(waiters).cast::<Waiter>().wrapping_add(index)
}

fn claim_waiter(page: usize) -> usize {
    const SCHED_YIELD: usize = 24;
    loop {
        for index in 0..WAITERS {
            // SAFETY: the index is below WAITERS; only the address is taken.
            let place = word64(unsafe { &raw mut (*waiter(index)).page });
            if place.load(Ordering::Relaxed) == 0
                && place.compare_exchange(0, page as u64, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                return index;
            }
        }
        // SAFETY: no memory involved.
        let _ = unsafe { gadget::call(SCHED_YIELD, [0; 6]) };
    }
}

/// Installs all that has been delivered. `enter` enters the gate. `by_window`: the caller is no thread of the
/// program, which may be at work meanwhile.
pub fn install_all(enter: &dyn Fn() -> Inside, by_window: bool) {
    loop {
        let inside = enter();
        let Err((page, seen)) = install_inside(by_window) else { return };
        drop(inside);
        if let Some(word) = table::find(page) {
            table::wait_for(word, seen);
        }
    }
}

/// The page at which it does not go on now, and its word.
type Blocked = core::result::Result<(), (usize, Word)>;

/// The same, for whoever is inside. Err: a page is in the hands of another thread, which is inside too.
pub fn install_inside(by_window: bool) -> Blocked {
    for index in 0..if holds(Rule::InstallUnasked) { DELIVERIES_ALL } else { DELIVERIES } {
        let delivery = field!(deliveries).cast::<Delivery>().wrapping_add(index);
        // SAFETY: the index is below DELIVERIES_ALL; only the address is taken.
        let state = word32(unsafe { &raw mut (*delivery).state });
        if state.load(Ordering::SeqCst) != FULL
            || state.compare_exchange(FULL, TAKEN, Ordering::SeqCst, Ordering::Relaxed).is_err()
        {
            continue;
        }
        // SAFETY: the supervisor does not write it before it is FREE.
        let content = unsafe { delivery.read_volatile() };
        let bytes = file() as usize + bytes_at(index);
        let mut done = content.done as usize;
        let installed = install(&content, bytes, &mut done, by_window);
        // SAFETY: as above.
        unsafe { (&raw mut (*delivery).done).write_volatile(done as u32) };
        state.store(if installed.is_ok() { FREE } else { FULL }, Ordering::SeqCst);
        installed?;
    }
    Ok(())
}

/// The first page of [start, end) that is in a delivery, or is just being installed from one; else `end`.
/// Inside the gate.
pub fn first_delivered(start: usize, end: usize) -> usize {
    let mut first = end;
    for index in 0..DELIVERIES_ALL {
        let delivery = field!(deliveries).cast::<Delivery>().wrapping_add(index);
        // SAFETY: the index is below DELIVERIES_ALL; only the address is taken.
        if word32(unsafe { &raw mut (*delivery).state }).load(Ordering::SeqCst) == FREE {
            continue;
        }
        // SAFETY: the supervisor does not write it before it is FREE.
        let content = unsafe { delivery.read_volatile() };
        let from = (content.addr as usize).max(start);
        if from < (content.addr as usize).saturating_add(content.pages as usize * PAGE) {
            first = first.min(from);
        }
    }
    first
}

/// `done`: pages that are done with. A page that was installed once may be taken out again before the rest
/// is.
fn install(content: &Delivery, bytes: usize, done: &mut usize, by_window: bool) -> Blocked {
    let has_bytes = !matches!(content.content, ZEROS | WRITABLE);
    let most = if has_bytes { DELIVERY_PAGES } else { ZERO_PAGES };
    let pages = (content.pages as usize).min(most);
    while *done < pages {
        let page = content.addr as usize + *done * PAGE;
        let Some(word) = table::find(page) else {
            *done += 1;
            continue;
        };
        let seen = table::load(word);
        match seen.state() {
            PROTECTED if content.content == WRITABLE => {
                *done += write_protect::allow(page, pages - *done).max(1);
            }
            SWAPPED if content.content == WRITABLE => *done += 1,
            // The evictor may not make the calls for that. A thread waits for the page, and comes.
            SWAPPED if content.content == LOST && by_window => return Err((page, seen)),
            SWAPPED if content.content == LOST => end("loses a page: its bytes cannot be read"),
            SWAPPED if content.content == ZEROS => *done += run::install_zeros(page, pages - *done),
            SWAPPED => *done += run::install(page, pages - *done, bytes + *done * PAGE, by_window),
            EVICTING | FILLING => return Err((page, seen)),
            _ => *done += 1,
        }
    }
    Ok(())
}

/// Is memory tight, as far as the supervisor has said?
pub fn is_tight() -> bool {
    is_there() && word32(field!(tells)).load(Ordering::Relaxed) != 0
}

/// Is so much memory a large part of the budget?
pub fn is_large(bytes: usize) -> bool {
    let least = if is_there() { word64(field!(closed_bytes)).load(Ordering::Relaxed) } else { 0 };
    least != 0 && bytes as u64 >= least
}

/// Is new memory of so many bytes from `from` on to be closed (`grow.rs`)? `from`: 0 where it is not known
/// yet.
pub fn closes(from: usize, len: usize) -> bool {
    if !is_there() {
        return false;
    }
    let only_to = word64(field!(only_to)).load(Ordering::Relaxed) as usize;
    let is_within = || from >= word64(field!(only_from)).load(Ordering::Relaxed) as usize;
    if only_to != 0 && !(is_within() && from.saturating_add(len) <= only_to) {
        return false;
    }
    let least = word64(field!(closed_bytes)).load(Ordering::Relaxed);
    (len as u64) < least.saturating_mul(CLOSED_MAX) && (is_tight() || len as u64 >= least)
}

/// A change of mappings, by whoever is alone in the gate.
pub struct Changing {
    is_there: bool,
    is_told: Cell<bool>,
}

impl Changing {
    pub fn begin() -> Changing {
        let is_there = is_there();
        if is_there && holds(Rule::Announce) {
            lock();
            word64(field!(changes)).fetch_add(1, Ordering::SeqCst);
            unlock();
        }
        if is_there && holds(Rule::InstallFirst) {
            install_alone();
        }
        Changing { is_there, is_told: Cell::new(false) }
    }

    /// After the call, when the words are what is true. `was_away`: of some page in it.
    pub fn tell(&self, kind: u32, start: usize, end: usize, to: usize, was_away: bool) {
        if self.is_there && start < end && (was_away || word32(field!(tells)).load(Ordering::Relaxed) != 0) {
            push(kind, start, end, to);
            self.is_told.set(true);
        }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        if self.is_there && !holds(Rule::Announce) {
            word64(field!(changes)).fetch_add(1, Ordering::SeqCst);
        }
        if self.is_told.get() {
            push(END, 0, 0, 0);
        } else if self.is_there {
            word64(field!(changes)).fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Installs what has been delivered, alone in the gate.
pub fn install_alone() {
    // Hints are of the pages as they were before.
    notes::drop_hints();
    if install_inside(false).is_err() {
        end("finds a page in the hands of another thread, where there can be none");
    }
}

fn lock_word() -> &'static AtomicU32 {
    // SAFETY: as in `field`.
    word32(unsafe { &raw mut (*control()).lock })
}

/// 0 free, 1 held, 2 held and somebody may sleep.
fn lock() {
    let lock = lock_word();
    if lock.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
        return;
    }
    while lock.swap(2, Ordering::SeqCst) != 0 {
        wait::sleep_for(lock, 2, LOCK_MS);
    }
}

fn unlock() {
    if lock_word().swap(0, Ordering::SeqCst) == 2 {
        wait::wake_all(lock_word());
    }
}
