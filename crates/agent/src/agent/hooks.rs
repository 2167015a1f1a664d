//! `mmap`, `mmap64`, `mremap` and `madvise`, in place of the C library's.
//!
//! While memory is tight (`Control::pressed`), new memory must be registered with the userfaultfd before the program can
//! fill it. So the call is made as asked, and then, before it returns, the pager is told of the new range: a doorbell.
//! The thread claims one, writes the range next to it and reads its page. The page is missing, so the read is a fault
//! that the pager sees; it registers the range and fills the page, and the thread goes on. Then the page is emptied for
//! the next caller. When all doorbells are in use the range is left to the supervisor's scan.
//!
//! What `mremap` has grown is told whole, so that it stays one mapping: registered in part it would be two, and the
//! next mremap of it fails. The mark `DOORBELL_GROWN` says that there may be pages in it.
//!
//! While memory is not tight this costs one getpid(2). In a process without an agent it costs nothing.
//!
//! All of this may run in a signal handler, in the child of a vfork, in the child of a raw clone: there is no
//! lock, and the control page is not looked at before the process id has been compared (the child of a clone has no such
//! page, the child of a vfork has its parent's). A handler that leaves by longjmp in the middle of a call costs a doorbell.
//!
//! `madvise` frees at once, while memory is tight, what MADV_FREE leaves to the kernel to free. Else it is only watched: a
//! child of a fork finds memory that is marked MADV_WIPEONFORK empty and what is marked MADV_DONTFORK not there, and the
//! supervisor, which has a copy of what was swapped out of it, learns of such marks in no other cheap way. It is told that
//! there are some, and then looks for itself at each fork.
//!
//! Not seen from here: mmap and brk inside the C library itself, system calls made directly.

use core::ffi::c_int;
use core::sync::atomic::{Ordering, fence};

use crate::STATE;
use crate::protocol::{Control, DOORBELL_GROWN, DOORBELLS, Doorbell};
use crate::remap;
use crate::sys::{self, EFAULT, PAGE, Result, nr};

/// Below this a range is not worth a call: the scan finds what many small ones add up to.
const RING_MIN: usize = 64 << 10;
const MAP_FAILED: usize = usize::MAX;

#[unsafe(no_mangle)]
pub extern "C" fn mmap(addr: usize, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> usize {
    map(addr, len, prot as usize, flags as usize, fd, offset)
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
    map(addr, len, prot as usize, flags as usize, fd, offset)
}

/// Variadic in C: without MREMAP_FIXED or MREMAP_DONTUNMAP the last argument is whatever the register holds, and the
/// kernel ignores it.
#[unsafe(no_mangle)]
pub extern "C" fn mremap(old: usize, old_len: usize, new_len: usize, flags: c_int, new: usize) -> usize {
    let flags = flags as usize;
    let call = || {
        let pieces = own_control().and_then(|_| remap::mremap_in_pieces(old, old_len, new_len, flags, new));
        pieces.unwrap_or_else(|| remap::mremap(old, old_len, new_len, flags, new))
    };
    let mut ret = call();
    if ret == Err(EFAULT)
        && let Some(control) = pressing_control()
        && old.is_multiple_of(PAGE)
        && old_len.checked_next_multiple_of(PAGE).is_some_and(|len| old.checked_add(len).is_some())
    {
        // The kernel moves and grows what is one mapping. The scan may have found it while it grew, and registered a
        // part.
        ring(control, old, old_len, DOORBELL_GROWN);
        ret = call();
    }
    // Of what was there before, a part may not be registered: then it would be two mappings from now on.
    if let Ok(addr) = ret
        && new_len > old_len
        && let Some(control) = pressing_control()
    {
        ring(control, addr, new_len, DOORBELL_GROWN);
    }
    finish(ret)
}

fn map(addr: usize, len: usize, prot: usize, flags: usize, fd: c_int, offset: i64) -> usize {
    let control = if is_managed(len, prot, flags) { pressing_control() } else { None };
    // Filling the range here and now would be growth before its registration.
    let flags = if control.is_some() { flags & !sys::MAP_POPULATE } else { flags };
    // SAFETY: the caller's own request, passed through.
    let ret = unsafe { sys::syscall(nr::MMAP, [addr, len, prot, flags, fd as usize, offset as usize]) };
    if let (Ok(addr), Some(control)) = (ret, control) {
        ring(control, addr, len, 0);
    }
    finish(ret)
}

/// Whether a mapping is of the kind that the pager manages, and worth a call.
fn is_managed(len: usize, prot: usize, flags: usize) -> bool {
    len >= RING_MIN
        && prot & sys::PROT_WRITE != 0
        && prot & sys::PROT_EXEC == 0
        && flags & sys::MAP_TYPE == sys::MAP_PRIVATE
        && flags & sys::MAP_ANONYMOUS != 0
        && flags & (sys::MAP_HUGETLB | sys::MAP_GROWSDOWN) == 0
}

#[unsafe(no_mangle)]
pub extern "C" fn madvise(addr: usize, len: usize, advice: c_int) -> c_int {
    if matches!(advice as usize, sys::MADV_WIPEONFORK | sys::MADV_DONTFORK) {
        // Before the call: a fork right after it must see this.
        STATE.fork_advice.store(1, Ordering::SeqCst);
        tell_fork_advice();
    }
    // SAFETY: the caller's own request, passed through.
    let ret = unsafe { sys::syscall(nr::MADVISE, [addr, len, advice as usize, 0, 0, 0]) };
    if ret.is_ok() && advice as usize == sys::MADV_FREE && pressing_control().is_some() {
        // Pages that it leaves in place are used again without a fault, and so would be managed no more.
        // SAFETY: what the kernel agreed to free some time (it refuses memory that is not anonymous) is freed now.
        let _ = unsafe { sys::madvise(addr, len, sys::MADV_DONTNEED) };
    }
    finish(ret) as c_int
}

/// Pass the mark on to the supervisor, if this process has a control page.
pub fn tell_fork_advice() {
    if let Some(control) = own_control()
        && STATE.fork_advice.load(Ordering::SeqCst) != 0
    {
        // SAFETY: this process owns the page, and keeps it mapped until it ends.
        unsafe { (&raw mut (*control).fork_advice).write_volatile(1) };
    }
}

/// The control page, if there is one and it is this process's own.
fn own_control() -> Option<*mut Control> {
    let control = STATE.control.load(Ordering::Acquire);
    (!control.is_null() && STATE.owner.load(Ordering::Relaxed) == sys::getpid()).then_some(control)
}

/// The control page, if memory is tight.
fn pressing_control() -> Option<*mut Control> {
    let control = own_control()?;
    // SAFETY: this process owns the page, and keeps it mapped until it ends.
    let pressed = unsafe { (&raw const (*control).pressed).read_volatile() };
    (pressed != 0).then_some(control)
}

fn ring(control: *mut Control, addr: usize, len: usize, mark: u64) {
    let Some(index) = claim() else {
        return;
    };
    let page = STATE.doorbells.load(Ordering::Relaxed) + index * PAGE;
    // The kernel has taken the range, or it has been checked: rounding it up cannot overflow.
    let doorbell = Doorbell { addr: addr as u64 | mark, len: len.next_multiple_of(PAGE) as u64 };
    // SAFETY: `index` is below DOORBELLS, and the claim makes the entry and the page this thread's alone. The pager reads
    // the entry after the fault, hence volatile and the fence.
    let emptied = unsafe {
        (&raw mut (*control).doorbells).cast::<Doorbell>().add(index).write_volatile(doorbell);
        fence(Ordering::SeqCst);
        (page as *const u8).read_volatile();
        sys::empty_pages(page, PAGE, true)
    };
    // A page that could not be emptied may be guarded: never to be touched again, so its doorbell is not given back.
    if emptied.is_ok() {
        STATE.rung.fetch_and(!(1 << index), Ordering::Release);
    }
}

fn claim() -> Option<usize> {
    let mut rung = STATE.rung.load(Ordering::Relaxed);
    loop {
        let index = rung.trailing_ones() as usize;
        if index >= DOORBELLS {
            return None;
        }
        match STATE.rung.compare_exchange_weak(rung, rung | 1 << index, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => return Some(index),
            Err(now) => rung = now,
        }
    }
}

/// As the C library does: MAP_FAILED and errno, or the address with errno left alone.
fn finish(ret: Result<usize>) -> usize {
    let errno = match ret {
        Ok(addr) => return addr,
        Err(errno) => errno,
    };
    let location = sys::weak!("__errno_location");
    if location != 0 {
        // SAFETY: this is what every C library for Linux defines under that name; it returns this thread's errno.
        unsafe {
            let location: extern "C" fn() -> *mut c_int = core::mem::transmute(location);
            location().write(errno);
        }
    }
    MAP_FAILED
}
