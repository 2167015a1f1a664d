//! `mmap`, `mmap64`, `mremap` and `munmap`, in place of the C library's.
//!
//! While memory is tight (`Control::announces`), new memory must be registered with the userfaultfd before
//! the program can fill it. So the call is made as asked, and then, before it returns, the supervisor is told
//! of the new range by a doorbell, and registers it. When all doorbells are in use the range is left to the
//! supervisor's scan.
//!
//! A range that `mremap` has grown is told as a whole, so that it stays one mapping: registered in part it
//! would be two, and the next mremap of it would fail. The mark `CALL_GROWN` says that there may be pages in
//! it.
//!
//! While memory is not tight this costs one getpid(2). In a process without an agent it costs nothing.
//!
//! All of this may run in a signal handler, in the child of a vfork, in the child of a raw clone: there is no
//! lock, and the control page is not looked at before the process id has been compared (the child of a clone
//! has no such page, the child of a vfork has its parent's). A handler that leaves by longjmp in the middle
//! of a call costs a doorbell.
//!
//! Not seen from here: system calls made directly, and by the C library itself (of those of its malloc, see
//! `malloc.rs`).

use crate::common::sync::Ordering;
use core::ffi::c_int;

use super::c_library::{be_joined, libc_result};
use super::files;
use super::remap;
use crate::common::protocol::{CALL_GROWN, CALL_MAPPED, Control};
use crate::machine::sys::{self, EFAULT, PAGE, Result, nr};
use crate::pages;
use crate::supervisor::control::{announcing_control, answering_control, own_control};
use crate::supervisor::doorbell::ring;
use crate::supervisor::state::STATE;
use crate::thread::fork_lock;
use crate::trap::late;

/// Below this a range is not worth a call: the scan finds what many small ones add up to.
const RING_MIN: usize = 64 << 10;

#[unsafe(no_mangle)]
pub extern "C" fn mmap(addr: usize, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> usize {
    mmap_and_ring(addr, len, prot as usize, flags as usize, fd, offset)
}

#[unsafe(no_mangle)]
pub extern "C" fn mmap64(
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> usize {
    mmap_and_ring(addr, len, prot as usize, flags as usize, fd, offset)
}

/// Variadic in C: without MREMAP_FIXED or MREMAP_DONTUNMAP the last argument is whatever the register holds,
/// and the kernel ignores it.
#[unsafe(no_mangle)]
pub extern "C" fn mremap(old: usize, old_len: usize, new_len: usize, flags: c_int, new: usize) -> usize {
    let flags = flags as usize;
    be_joined();
    let _reader = fork_lock::read();
    let call = || {
        let pieces = own_control().and_then(|_| remap::mremap_in_pieces(old, old_len, new_len, flags, new));
        pieces.unwrap_or_else(|| remap::mremap(old, old_len, new_len, flags, new))
    };
    let mut ret = call();
    if ret == Err(EFAULT)
        && let Some(control) = answering_control()
        && old.is_multiple_of(PAGE)
        && old_len.checked_next_multiple_of(PAGE).is_some_and(|len| old.checked_add(len).is_some())
    {
        // The kernel moves and grows only a range that is one mapping. The scan may have met the range while
        // it grew, and have registered a part of it.
        announce(control, old, old_len, CALL_GROWN);
        ret = call();
    }
    // The range is told whole: where a part of it is not registered, it would be two mappings from now on.
    if let Ok(addr) = ret
        && new_len > old_len
        && let Some(control) = announcing_control()
    {
        announce(control, addr, new_len, CALL_GROWN);
    }
    libc_result(ret)
}

/// Memory that is unmapped while a fork is under way might be in doubt in the child (`fork_lock.rs`).
#[unsafe(no_mangle)]
pub extern "C" fn munmap(addr: usize, len: usize) -> c_int {
    let _reader = fork_lock::read();
    // SAFETY: the caller's own request, passed through.
    libc_result(unsafe { pages::call_that_maps(nr::MUNMAP, [addr, len, 0, 0, 0, 0]) }) as c_int
}

fn mmap_and_ring(addr: usize, len: usize, prot: usize, flags: usize, fd: c_int, offset: i64) -> usize {
    let args = [addr, len, prot, flags, fd as usize, offset as usize];
    libc_result(match flags & sys::MAP_ANONYMOUS {
        0 => files::mmap(args),
        _ => map_anonymous(args, is_managed(len, prot, flags)),
    })
}

/// mmap of new memory, by the arguments of the call. `may_announce`: the pager may be told of it.
pub fn map_anonymous(args: [usize; 6], may_announce: bool) -> Result<usize> {
    let [addr, len, prot, flags, fd, offset] = args;
    if !late::is_small_mapping(len, flags) {
        be_joined();
    }
    let _reader = fork_lock::read();
    let control = if may_announce { announcing_control() } else { None };
    let was_alone = STATE.control.load(Ordering::Relaxed).is_null();
    // Filling the range here and now would be growth before its registration.
    let flags = if control.is_some() { flags & !sys::MAP_POPULATE } else { flags };
    // SAFETY: the caller's own request, passed through.
    let ret = unsafe { pages::call_that_maps(nr::MMAP, [addr, len, prot, flags, fd, offset]) };
    // The process may have joined for this very call (`trap/late.rs`), where that is trapped.
    let has_joined = was_alone && may_announce && flags & sys::MAP_POPULATE == 0;
    let control = if has_joined { announcing_control() } else { control };
    if let (Ok(addr), Some(control)) = (ret, control) {
        announce(control, addr, len, CALL_MAPPED);
    }
    ret
}

/// Whether a mapping is of the kind that the pager manages, and worth a call.
pub fn is_managed(len: usize, prot: usize, flags: usize) -> bool {
    len >= RING_MIN && prot & (sys::PROT_WRITE | sys::PROT_EXEC) == sys::PROT_WRITE && is_ordinary(flags)
}

/// Private anonymous memory that can be managed, once it may be written to.
pub fn is_ordinary(flags: usize) -> bool {
    flags & sys::MAP_TYPE == sys::MAP_PRIVATE
        && flags & sys::MAP_ANONYMOUS != 0
        && flags & (sys::MAP_HUGETLB | sys::MAP_GROWSDOWN) == 0
}

/// The heap ended at `before`, and ends at `now`.
pub fn announce_heap(control: *mut Control, before: usize, now: usize) {
    // In the last page that there was, the heap has been used.
    let (start, end) = (before.next_multiple_of(PAGE), now.next_multiple_of(PAGE));
    let len = end.saturating_sub(start);
    if len >= RING_MIN {
        announce(control, start, len, CALL_MAPPED);
    }
}

/// Tells the pager of memory that is to be registered; before it, those whom the registration would hurt.
fn announce(control: *mut Control, addr: usize, len: usize, call: u32) {
    ring(control, addr, len, call);
}
