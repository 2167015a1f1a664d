//! An mremap in registered memory (`holes/`). Memory that the kernel moves is registered no more, and
//! neither is the mapping that it becomes one with, if there is such a one at the new place. It moves no
//! range that is several mappings, or half of it; and memory that was registered piece by piece can be
//! several mappings for good, where the program knows of one.
//!
//! ```text
//!   begin:  where something is missing there is no protection from here on: other threads may look
//!           registered no more: it becomes one with nobody who is
//!   make:   mapping by mapping
//!   done:   the words are where the pages are: the new place is registered, then has its protection again
//! ```
//!
//! All of it alone in the gate. A range whose mappings have several protections is EFAULT, as for any mremap
//! of several mappings before Linux 6.17.
//!
//! Not covered: a call of another thread that uses such memory while it is moved or grows; it may fail with
//! EFAULT.

use super::holes::{register, unregister};
use super::kernel::{self, Mapping, end};
use super::reconcile::{each_away, make};
use super::table;
use crate::machine::sys::{self, EFAULT, EINVAL, PAGE, Result, nr};

const MAYMOVE: usize = 1;
const FIXED: usize = 2;

/// An mremap under way.
pub struct Moving {
    was_registered: bool,
    /// The protection that is taken away for the moment.
    prot: Option<usize>,
    old: usize,
    old_len: usize,
}

impl Moving {
    /// Before the call. Lengths are of whole pages.
    pub fn begin(old: usize, old_len: usize) -> Result<Moving> {
        let last = old.saturating_add(old_len).min(table::TOP);
        let mut moving = Moving { was_registered: false, prot: None, old, old_len };
        if old >= last || !old.is_multiple_of(PAGE) {
            return Ok(moving);
        }
        let mut groups = (old..last).step_by(table::GROUP_BYTES).chain([last - PAGE]);
        let was_registered = groups.any(table::was_registered);
        let first = kernel::mapping_from(old).filter(|mapping| mapping.start <= old && mapping.is_plain);
        let Some(first) = first.filter(|_| was_registered) else { return Ok(moving) };
        moving.was_registered = true;
        if !is_all(old, old_len, |mapping| mapping.is_plain && mapping.prot == first.prot) {
            return Err(EFAULT);
        }
        let mut is_any_away = false;
        each_away(old, last, |_, _, _| is_any_away = true);
        if is_any_away && first.prot != 0 {
            // SAFETY: whoever faults there waits at the gate, and tries again.
            unsafe { kernel::protect(old, old_len, 0) }?;
            moving.prot = Some(first.prot);
        }
        if unregister(old, old_len).is_err() {
            end("cannot move its memory");
        }
        Ok(moving)
    }

    /// The call.
    pub fn make(&self, args: [usize; 6]) -> Result<usize> {
        let [old, _, new_len, flags, target, _] = args;
        let is_one = |mapping: &Mapping| self.old + self.old_len <= mapping.end;
        if !self.was_registered || kernel::mapping_from(old).as_ref().is_none_or(is_one) {
            return make(nr::MREMAP, args);
        }
        let new_len = new_len.checked_next_multiple_of(PAGE).filter(|len| *len != 0).ok_or(EINVAL)?;
        self.make_in_pieces(new_len, flags, target)
    }

    fn make_in_pieces(&self, new_len: usize, flags: usize, target: usize) -> Result<usize> {
        let (old, old_len) = (self.old, self.old_len);
        if flags & FIXED != 0 {
            let is_apart = old + old_len <= target || target.saturating_add(new_len) <= old;
            if !is_apart || !target.is_multiple_of(PAGE) || target.saturating_add(new_len) > table::TOP {
                return Err(EINVAL);
            }
            return self.move_all(new_len, flags, target);
        }
        if new_len <= old_len && flags & !MAYMOVE == 0 {
            return match old_len - new_len {
                0 => Ok(old),
                rest => make(nr::MUNMAP, [old + new_len, rest, 0, 0, 0, 0]).map(|_| old),
            };
        }
        let last = last_piece(old, old_len);
        let grows = new_len > old_len && flags & !MAYMOVE == 0;
        let in_place = [last, old + old_len - last, old + new_len - last, 0, 0, 0];
        if grows && make(nr::MREMAP, in_place).is_ok() {
            return Ok(old);
        }
        if flags & MAYMOVE == 0 {
            return Err(sys::ENOMEM);
        }
        let kind = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
        let place = make(nr::MMAP, [0, new_len, 0, kind, usize::MAX, 0])?;
        self.move_all(new_len, flags | FIXED, place)
    }

    /// Each mapping by itself; the last one grows, or what is too long goes.
    fn move_all(&self, new_len: usize, flags: usize, target: usize) -> Result<usize> {
        let (old, old_len) = (self.old, self.old_len);
        let mut at = old;
        while at < old + old_len.min(new_len) {
            let mapping = kernel::mapping_from(at).ok_or(EFAULT)?;
            let piece_end = mapping.end.min(old + old_len.min(new_len));
            let is_last = piece_end == old + old_len;
            let (from, to) = (piece_end - at, if is_last { old + new_len - at } else { piece_end - at });
            let moved = make(nr::MREMAP, [at, from, to, flags, target + (at - old), 0]);
            if let Err(errno) = moved {
                if at == old {
                    return Err(errno);
                }
                end("has moved memory halfway (vm.max_map_count)");
            }
            at = piece_end;
        }
        if new_len < old_len && make(nr::MUNMAP, [old + new_len, old_len - new_len, 0, 0, 0, 0]).is_err() {
            end("has moved memory halfway (vm.max_map_count)");
        }
        Ok(target)
    }

    /// The call has failed.
    pub fn failed(&self) {
        if self.was_registered {
            register_all(self.old, self.old_len);
            self.protect_again(self.old, self.old_len);
        }
    }

    /// It has been made, and words are where their pages are. `stays`: how much is still mapped at the old
    /// place, empty.
    pub fn done(&self, new: usize, new_len: usize, stays: usize) {
        if !self.was_registered {
            return;
        }
        register_all(self.old, stays);
        register_all(new, new_len);
        self.protect_again(new, new_len);
        if stays != 0 {
            self.protect_again(self.old, stays);
        }
    }

    fn protect_again(&self, at: usize, len: usize) {
        let Some(prot) = self.prot.filter(|_| len != 0) else { return };
        // SAFETY: the program's own protection.
        if unsafe { kernel::protect(at, len, prot) }.is_err() {
            end("cannot give pages their protection back (vm.max_map_count)");
        }
        each_away(at, at.saturating_add(len), |_, word, seen| {
            table::turn(word, seen, seen.with_prot(prot as u64));
        });
    }
}

fn register_all(start: usize, len: usize) {
    if register(start, start.saturating_add(len)).is_err() {
        end("cannot keep its memory registered");
    }
}

/// Is all of a range mapped, and each mapping such?
fn is_all(start: usize, len: usize, is_such: impl Fn(&Mapping) -> bool) -> bool {
    let mut at = start;
    while at < start + len {
        match kernel::mapping_from(at) {
            Some(mapping) if mapping.start <= at && is_such(&mapping) => at = mapping.end,
            _ => return false,
        }
    }
    true
}

/// Where the last mapping of a range begins, or the range itself.
fn last_piece(start: usize, len: usize) -> usize {
    kernel::mapping_from(start + len - PAGE).map_or(start, |mapping| mapping.start.max(start))
}
