//! Calls that change mappings: made alone in the gate, with the words made to follow.
//!
//! | call                                  | the words                                                 |
//! |---------------------------------------|-----------------------------------------------------------|
//! | munmap, mmap over something, brk back | NONE                                                      |
//! | madvise: DONTNEED, FREE               | closed (`emptied.rs`); or NONE, and the markers go        |
//! | madvise: GUARD_INSTALL                | NONE; the markers are the program's now                   |
//! | madvise: GUARD_REMOVE                 | as they were: where one is SWAPPED the marker is ours     |
//! | mprotect, pkey_mprotect               | another protection; what was never touched may be closed  |
//! | mremap                                | go where the pages go                                     |
//! | shmat over something                  | NONE                                                      |
//! | process_madvise of such a kind        | a madvise for each range, where the kernel allows it      |
//!
//! New memory may be closed at once (`grow.rs`). A supervisor is told of each change, before anybody enters
//! the gate again (`supervisor.rs`); but for protection, which it need not know: collectors and compilers
//! change it for each page that they write.
//!
//! A call that fails may have been made in part: then each page that is away is looked up in its mapping.
//!
//! In the gate nothing of the program's memory is touched: these calls take no pointers.

use super::advice;
use super::in_use::{self, Use};
use crate::common::link::{REMAP, REMOVE, UNMAP};
use crate::common::rules::{Rule, holds};
use crate::common::words::{EXCLUDED, FOR_FORK, FOR_KERNEL, NONE, Word};
use crate::machine::gadget;
use crate::machine::sys::{self, EINVAL, PAGE, Result, nr};
use crate::pages::kernel::{self, end};
use crate::pages::moving::Moving;
use crate::pages::reconcile::{drop_all, drop_away, each_away, make, reconcile};
use crate::pages::supervisor::{self, Changing};
use crate::pages::{emptied, exclude, grow, holes, table};
use crate::thread::block;

const BRK: usize = 12;
const SHMAT: usize = 30;
const PKEY_MPROTECT: usize = 329;

const DONTFORK: usize = 10;
const DOFORK: usize = 11;
const KEEPONFORK: usize = 19;
const POPULATE_READ: usize = 22;

/// For random numbers, by glibc from 2.41 on.
const MAP_DROPPABLE: usize = 8;
const SHM_REMAP: usize = 0o40000;
const MREMAP_FIXED: usize = 2;
const MREMAP_DONTUNMAP: usize = 4;

/// The call's result; None: it changes nothing that concerns the words.
pub fn answer(number: usize, args: [usize; 6]) -> Option<Result<usize>> {
    // One that is left out there would be rewritten, and not be seen here.
    if !may_change(number) {
        return None;
    }
    let [addr, len, third, fourth, ..] = args;
    Some(match number {
        nr::MUNMAP => over(number, args, addr, len, UNMAP, drop_all),
        nr::MMAP => {
            let result = match grow::mmap(args) {
                Some(result) => result,
                None if fourth & sys::MAP_FIXED != 0 => over(number, args, addr, len, UNMAP, drop_all),
                None if fourth & sys::MAP_ANONYMOUS != 0 => grow::map_open(args),
                None => return None,
            };
            // A child gets such memory empty, and no userfaultfd takes it.
            if let Ok(at) = result
                && fourth & sys::MAP_TYPE == MAP_DROPPABLE
            {
                exclude::exclude(at, len, FOR_FORK);
            }
            result
        }
        BRK => return brk(addr),
        // An int: the upper half says nothing.
        nr::MADVISE => match third as u32 as usize {
            sys::MADV_DONTNEED | sys::MADV_FREE | sys::MADV_DONTNEED_LOCKED if emptied::closes(addr, len) => {
                let (from, to) = pages_of(addr, len);
                emptied::close(number, args, from, to)
            }
            sys::MADV_DONTNEED | sys::MADV_FREE | sys::MADV_DONTNEED_LOCKED => {
                over(number, args, addr, len, REMOVE, emptied::empty)
            }
            sys::MADV_GUARD_INSTALL => over(number, args, addr, len, REMOVE, drop_away),
            sys::MADV_GUARD_REMOVE if holes::may_be_guards() => remove_guards(args),
            sys::MADV_GUARD_REMOVE => over(number, args, addr, len, NOT_TOLD, |from, to| {
                holes::follow_emptied(from, to);
                false
            }),
            _ => return None,
        },
        // The agent's handlers cannot touch such memory.
        PKEY_MPROTECT if fourth as i32 > 0 => {
            exclude::exclude(addr, len, FOR_KERNEL);
            over(number, args, addr, len, NOT_TOLD, |_, _| false)
        }
        nr::MPROTECT | PKEY_MPROTECT => protect(number, args),
        nr::MREMAP => mremap(args),
        SHMAT if third & SHM_REMAP != 0 => shmat(args),
        nr::PROCESS_MADVISE if is_change(fourth as u32 as usize) => process_advise(args),
        _ => return None,
    })
}

/// Calls that `answer` may answer.
pub fn may_change(number: usize) -> bool {
    matches!(
        number,
        nr::MUNMAP
            | nr::MMAP
            | BRK
            | nr::MADVISE
            | nr::MPROTECT
            | PKEY_MPROTECT
            | nr::MREMAP
            | SHMAT
            | nr::PROCESS_MADVISE
    )
}

/// Advice for the program's own process: the kernel does not take such advice for others. As it does, the
/// call ends at the first range that fails, and says how much was done before.
fn process_advise(args: [usize; 6]) -> Result<usize> {
    const RANGES_MAX: usize = 1024;
    let [pidfd, ranges, count, advice, flags, _] = args;
    // Without ranges it is asked whether it could be: not for another process, nor before Linux 6.13.
    make(nr::PROCESS_MADVISE, [pidfd, ranges, 0, advice, flags, 0])?;
    if count > RANGES_MAX {
        return Err(EINVAL);
    }
    let range =
        |index: usize| gadget::read::<[usize; 2]>(ranges.wrapping_add(index * size_of::<[usize; 2]>()));
    if !(0..count).all(|index| range(index).is_some()) {
        return Err(sys::EFAULT);
    }
    let mut done = 0;
    for index in 0..count {
        let [start, len] = range(index).ok_or(sys::EFAULT)?;
        let one = [start, len, advice, 0, 0, 0];
        let result = one_advice(one);
        match result {
            Ok(_) => done += len,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// As the trap does with a madvise of these arguments.
fn one_advice(args: [usize; 6]) -> Result<usize> {
    if advice::is_ours(args) {
        return advice::advise(args);
    }
    if let Some(result) = answer(nr::MADVISE, args) {
        return result;
    }
    exclude::before_call(nr::MADVISE, &args);
    let Some((start, end)) = exclude::needed_by(nr::MADVISE, &args) else {
        return make(nr::MADVISE, args);
    };
    // SAFETY: the thread is in the trap's handler.
    let block = unsafe { block::current() };
    let needed = Use { start, end, writes: true };
    in_use::publish_list(block, &[needed]);
    in_use::bring(&needed);
    let result = make(nr::MADVISE, args);
    in_use::withdraw(block);
    result
}

/// Advice that changes what a page holds, or needs what is away. The kernel gives none of it to others.
fn is_change(advice: usize) -> bool {
    matches!(
        advice,
        sys::MADV_DONTNEED
            | sys::MADV_FREE
            | DONTFORK
            | DOFORK
            | sys::MADV_WIPEONFORK
            | KEEPONFORK
            | POPULATE_READ
            | sys::MADV_POPULATE_WRITE
            | sys::MADV_DONTNEED_LOCKED
            | sys::MADV_GUARD_INSTALL
            | sys::MADV_GUARD_REMOVE
    )
}

/// A change that is no matter of the supervisor's.
const NOT_TOLD: u32 = 0;

/// A call about [addr, addr + len): where it succeeds, `follow` makes the words true, and says whether
/// something was away there; then the supervisor is told, by this kind of message.
fn over(
    number: usize,
    args: [usize; 6],
    addr: usize,
    len: usize,
    kind: u32,
    follow: impl FnOnce(usize, usize) -> bool,
) -> Result<usize> {
    let _alone = supervisor::enter_to_change();
    let changing = (kind != NOT_TOLD).then(Changing::begin);
    let result = make(number, holes::emptied_at_once(number, args));
    let (from, to) = pages_of(addr, len);
    // DONTNEED says ENOMEM where something was not mapped, and has done the rest.
    if result.is_ok() || result == Err(sys::ENOMEM) && number == nr::MADVISE {
        let was_away = follow(from, to);
        if let Some(changing) = changing {
            changing.tell(kind, from, to, 0, was_away);
        }
    } else {
        reconcile(from, to, changing.as_ref());
    }
    result
}

/// [from, to) of whole pages, for a call that rounds its length up.
fn pages_of(addr: usize, len: usize) -> (usize, usize) {
    (addr, addr.saturating_add(len).saturating_add(PAGE - 1) & !(PAGE - 1))
}

/// Another protection, which is no matter of the supervisor's but for what is closed first.
fn protect(number: usize, args: [usize; 6]) -> Result<usize> {
    let [addr, len, prot, ..] = args;
    let (from, to) = pages_of(addr, len);
    let closes = addr.is_multiple_of(PAGE) && to < table::TOP && grow::closes_opened(addr, len, prot);
    let _alone = if closes { supervisor::enter_to_change() } else { supervisor::enter_to_protect() };
    let changing = closes.then(Changing::begin);
    if let Some(changing) = &changing {
        grow::close_untouched(changing, from, to);
    }
    let result = make(number, args);
    if result.is_ok() {
        each_away(from, to, |_, word, seen| {
            table::turn(word, seen, if holds(Rule::NewProt) { seen.with_prot(prot as u64) } else { seen });
        });
    } else {
        reconcile(from, to, changing.as_ref());
    }
    result
}

/// The program's own markers go. Around pages that are away, whose markers are ours.
fn remove_guards(args: [usize; 6]) -> Result<usize> {
    let [addr, len, ..] = args;
    let (from, to) = pages_of(addr, len);
    if !addr.is_multiple_of(PAGE) || to > table::TOP {
        return make(nr::MADVISE, args);
    }
    let _alone = supervisor::enter_to_protect();
    let (mut at, mut result) = (from, Ok(0));
    let mut remove = |start: usize, end: usize| {
        // If a part is not mapped, the kernel does the rest all the same.
        if start < end && matches!(result, Ok(_) | Err(sys::ENOMEM)) {
            let made = make(nr::MADVISE, [start, end - start, args[2], 0, 0, 0]);
            result = if made == Ok(0) { result } else { made };
        }
    };
    each_away(from, to, |page, _, _| {
        remove(at, page);
        at = page + PAGE;
    });
    remove(at, to);
    result
}

fn brk(wanted: usize) -> Option<Result<usize>> {
    if wanted == 0 {
        return None;
    }
    let _alone = supervisor::enter_to_change();
    let changing = Changing::begin();
    let before = make(BRK, [0; 6]).unwrap_or(0);
    let result = make(BRK, [wanted, 0, 0, 0, 0, 0]);
    if let Ok(after) = result {
        let (after, before) = (after.next_multiple_of(PAGE), before.next_multiple_of(PAGE));
        if after < before {
            let was_away = drop_all(after, before);
            changing.tell(UNMAP, after, before, 0, was_away);
        }
        table::forget_registered(before, after);
        grow::close_if_wanted(&changing, before, after);
    }
    Some(result)
}

fn shmat(args: [usize; 6]) -> Result<usize> {
    let _alone = supervisor::enter_to_change();
    let changing = Changing::begin();
    let result = make(SHMAT, args);
    if let Ok(at) = result {
        let end = kernel::mapping_from(at).map_or(at, |mapping| mapping.end);
        let was_away = drop_all(at, end);
        changing.tell(UNMAP, at, end, 0, was_away);
    }
    result
}

fn mremap(args: [usize; 6]) -> Result<usize> {
    let [old, old_len, new_len, flags, target, _] = args;
    let round = |len: usize| len.saturating_add(PAGE - 1) & !(PAGE - 1);
    let (old_len, new_len) = (round(old_len), round(new_len));
    let alone = supervisor::enter_to_change();
    let changing = Changing::begin();
    let moving = Moving::begin(old, old_len)?;
    let result = moving.make(args);
    let Ok(new) = result else {
        moving.failed();
        reconcile(old, old.saturating_add(old_len), Some(&changing));
        if flags & MREMAP_FIXED != 0 {
            reconcile(target, target.saturating_add(new_len), Some(&changing));
        }
        return result;
    };
    let carried = old_len.min(new_len);
    // All that was there before is gone; and of a moved range the rest was unmapped.
    let drop_and_tell = |start: usize, end: usize| {
        let was_away = drop_all(start, end);
        changing.tell(UNMAP, start, end, 0, was_away);
    };
    drop_and_tell(old.saturating_add(carried), old.saturating_add(old_len));
    if new != old {
        drop_and_tell(new, new.saturating_add(new_len));
        carry(old, new, carried, flags & MREMAP_DONTUNMAP != 0);
        changing.tell(REMAP, old, old + carried, new, true);
    }
    table::forget_registered(new + carried, new + new_len);
    let stays = if flags & MREMAP_DONTUNMAP != 0 && new != old { carried } else { 0 };
    moving.done(new, new_len, stays);
    let last = new.wrapping_add(carried).wrapping_sub(PAGE);
    let has_grown = new_len > old_len && carried != 0;
    let is_plain = |mapping: &kernel::Mapping| {
        mapping.start <= last && mapping.is_plain && mapping.prot == kernel::READ_WRITE
    };
    if has_grown && !is_not_forked(last) && kernel::mapping_from(last).as_ref().is_some_and(is_plain) {
        grow::close_if_wanted(&changing, new + carried, new + new_len);
    }
    drop(changing);
    drop(alone);
    if has_grown && is_not_forked(last) {
        exclude::exclude(new + carried, new_len - carried, FOR_FORK);
    }
    result
}

fn is_not_forked(page: usize) -> bool {
    table::find(page).is_some_and(|word| table::load(word).reasons() & FOR_FORK != 0)
}

/// The words of [old, old + len) are those of [new, new + len) now. `stays`: the old mapping is still there,
/// and empty.
fn carry(old: usize, new: usize, len: usize, stays: bool) {
    let mut at = old;
    while let Some((page, word)) = table::next(at, old + len) {
        let seen = table::load(word);
        let Ok(place) = table::obtain(page - old + new) else {
            end("cannot say where pages are that were moved: no memory for their words")
        };
        table::finish(place, seen);
        if !(stays && seen.state() == EXCLUDED) {
            table::finish(word, Word(NONE));
        }
        at = page + PAGE;
    }
}
