//! `mmap`, `mmap64`, `mremap` and `munmap`, in place of the C library's; and the doorbells, by which a
//! thread of the program calls the pager.
//!
//! While memory is tight (`Control::announces`), new memory must be registered with the userfaultfd before
//! the program can fill it. So the call is made as asked, and then, before it returns, the pager is told of
//! the new range: a doorbell. The thread claims one, writes the range next to it and reads its page. The page
//! is missing, so the read is a fault that the pager sees; it registers the range and fills the page, and the
//! thread goes on. Then the page is emptied for the next caller. When all doorbells are in use the range is
//! left to the supervisor's scan. Calls that may take long have half of the doorbells and no more, so that
//! others are never kept waiting by them.
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

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering, fence};

use super::files;
use super::remap;
use crate::STATE;
use crate::calls::batch::{self, Batch};
use crate::machine::sys::{self, EFAULT, PAGE, Result, nr};
use crate::programs::own_marks;
use crate::protocol::{
    CALL_COLD, CALL_FILE_MAPPED, CALL_FILE_USED, CALL_GROWN, CALL_MAPPED, CALL_PAGEOUT, CALL_WILLNEED,
    Control, DOORBELL_ANSWERED, DOORBELLS, Doorbell, WANTS_ASKED, WANTS_REFUSED,
};
use crate::thread::fork_lock;

/// Below this a range is not worth a call: the scan finds what many small ones add up to.
const RING_MIN: usize = 64 << 10;
/// Calls that may take long have the doorbells from this one on.
const FOR_LONG: usize = DOORBELLS / 2;
const MAP_FAILED: usize = usize::MAX;
/// How long the supervisor's next search is waited for, and in which steps it is asked whether it has been.
const SEARCHES_MS: u32 = 1000;
const SEARCH_MS: u32 = 2;

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
        // Where memory is marked before it is registered, the supervisor's next search does that.
        let mut waited = 0;
        while ret == Err(EFAULT)
            && STATE.forks.load(Ordering::Relaxed) != 0
            && waited < SEARCHES_MS
            && remap::is_mapped(old, old_len)
        {
            sys::pause(SEARCH_MS);
            waited += SEARCH_MS;
            ret = call();
        }
    }
    if let Ok(addr) = ret
        && addr != old
    {
        own_marks::moved(old, addr, old_len);
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
    // Before it may be mapped again.
    own_marks::remove(addr, len);
    // SAFETY: the caller's own request, passed through.
    libc_result(unsafe { sys::map_call(nr::MUNMAP, [addr, len, 0, 0, 0, 0]) }) as c_int
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
    if !crate::trap::is_small_mapping(len, flags) {
        be_joined();
    }
    let _reader = fork_lock::read();
    let control = if may_announce { announcing_control() } else { None };
    let was_alone = STATE.control.load(Ordering::Relaxed).is_null();
    // Filling the range here and now would be growth before its registration.
    let flags = if control.is_some() { flags & !sys::MAP_POPULATE } else { flags };
    // SAFETY: the caller's own request, passed through.
    let ret = unsafe { sys::map_call(nr::MMAP, [addr, len, prot, flags, fd, offset]) };
    if let Ok(addr) = ret {
        own_marks::remove(addr, len);
    }
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
    own_marks::remove(start, len);
    if len >= RING_MIN {
        announce(control, start, len, CALL_MAPPED);
    }
}

/// Writes into the control page, if this process has one, what kinds of advice its memory has had.
pub fn tell_advice() {
    let Some(control) = own_control() else {
        return;
    };
    // SAFETY: this process owns the page, and keeps it mapped until it ends.
    unsafe {
        if STATE.fork_advice.load(Ordering::SeqCst) != 0 {
            (&raw mut (*control).fork_advice).write_volatile(1);
        }
        if STATE.guards.load(Ordering::SeqCst) != 0 {
            (&raw mut (*control).guards).write_volatile(1);
        }
    }
}

/// Writes into the control page that the program is about to have a seccomp filter. (Afterwards it may be too
/// late: the filter may end the process for the asking whose page it is.)
pub fn tell_confined() {
    if let Some(control) = own_control() {
        // SAFETY: this process owns the page, and keeps it mapped until it ends.
        unsafe { (&raw mut (*control).confined).write_volatile(1) };
    }
}

/// A process that has not joined yet does so before what it is about to do, and whatever that asks
/// `own_control`.
pub fn be_joined() {
    if crate::trap::is_late() {
        // Any call that such a process does not make.
        sys::yield_now();
    }
}

/// The control page, if there is one and it is this process's own.
pub fn own_control() -> Option<*mut Control> {
    let control = STATE.control.load(Ordering::Acquire);
    (!control.is_null() && STATE.owner.load(Ordering::Relaxed) == sys::getpid()).then_some(control)
}

/// The control page, if new mappings are to be announced.
pub fn announcing_control() -> Option<*mut Control> {
    let control = own_control()?;
    // SAFETY: this process owns the page, and keeps it mapped until it ends.
    let announces = unsafe { (&raw const (*control).announces).read_volatile() };
    (announces != 0).then_some(control)
}

/// The control page, if calls are answered: something of this process may be managed.
pub fn answering_control() -> Option<*mut Control> {
    let control = own_control()?;
    // SAFETY: this process owns the page, and keeps it mapped until it ends.
    let answers = unsafe { (&raw const (*control).answers).read_volatile() };
    (answers != 0).then_some(control)
}

/// As `answering_control`, for a program that has a wish: if calls are not answered yet, the supervisor is
/// asked for it, which looks at every process some hundred times a second.
pub fn control_asked_for() -> Option<*mut Control> {
    /// Far longer than it takes.
    const LOOKS_MAX: u32 = 500;
    let control = own_control()?;
    // SAFETY: this process owns the page, and keeps it mapped until it ends; the fields are accessed as
    // atomics only.
    let (answers, wants) = unsafe {
        let word = |field| AtomicU32::from_ptr(field);
        (word(&raw mut (*control).answers), word(&raw mut (*control).wants_answers))
    };
    for _ in 0..LOOKS_MAX {
        if answers.load(Ordering::Acquire) != 0 {
            return Some(control);
        }
        // A filter of the program's own may end the process for a call that waits.
        if wants.load(Ordering::Acquire) == WANTS_REFUSED || STATE.confined.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let _ = wants.compare_exchange(0, WANTS_ASKED, Ordering::AcqRel, Ordering::Relaxed);
        let _ = sys::futex_wait(answers, 0, 1);
    }
    None
}

/// Tells the pager of memory that is to be registered; before it, those whom the registration would hurt.
fn announce(control: *mut Control, addr: usize, len: usize, call: u32) {
    if batch::is_needed() {
        // Whoever handles a signal in the middle of a batch would wait for its end in his next call.
        let _blocked = sys::SignalsBlocked::new();
        if call == CALL_MAPPED {
            batch::note_new(addr, len);
        } else if let Some(batch) = Batch::begin() {
            batch.prepare(addr, addr.saturating_add(len));
        }
    }
    // Where the agent makes the forks, what is registered is marked for them before.
    let marks = call == CALL_MAPPED && STATE.forks.load(Ordering::Relaxed) != 0;
    let advise = |advice| {
        // SAFETY: a mapping that nobody else knows of yet; who inherits it is all that changes.
        marks && unsafe { sys::madvise(addr, len.next_multiple_of(PAGE), advice) }.is_ok()
    };
    if marks && !advise(sys::MADV_DONTFORK) {
        // The monitor finds it.
        return;
    }
    if !ring(control, addr, len, call) {
        advise(sys::MADV_DOFORK);
    }
}

/// Calls the pager, and returns when it has done its work. False: no doorbell was free, or nobody answered.
pub fn ring(control: *mut Control, addr: usize, len: usize, call: u32) -> bool {
    ring_about(control, 0, addr, len, call)
}

/// The same about memory of process `pid`; 0: of this one.
pub fn ring_about(control: *mut Control, pid: u32, addr: usize, len: usize, call: u32) -> bool {
    // The range is the kernel's answer or one that it has accepted, so rounding it up cannot overflow.
    let len = len.next_multiple_of(PAGE) as u64;
    ring_for(control, Doorbell { addr: addr as u64, len, call, answered: 0, pid, reserved: 0 })
}

/// Makes this call.
pub fn ring_for(control: *mut Control, doorbell: Doorbell) -> bool {
    /// A page that was present at the first try is emptied after it.
    const TRIES: u32 = 3;
    let is_long =
        matches!(doorbell.call, CALL_PAGEOUT | CALL_COLD | CALL_WILLNEED | CALL_FILE_USED | CALL_FILE_MAPPED);
    let Some(index) = claim_doorbell(if is_long { FOR_LONG } else { 0 }) else {
        return false;
    };
    let doorbells = STATE.doorbells.load(Ordering::Relaxed);
    let page = doorbells + index * PAGE;
    // SAFETY: `index` is below DOORBELLS.
    let entry = unsafe { (&raw mut (*control).doorbells).cast::<Doorbell>().add(index) };
    let (mut answered, mut emptied) = (false, false);
    for _ in 0..TRIES {
        // SAFETY: the claim makes the entry and the page this thread's alone. The pager reads the entry after
        // the fault and writes `answered` before it fills the page, hence volatile and the fences.
        unsafe {
            entry.write_volatile(doorbell);
            fence(Ordering::SeqCst);
            (page as *const u8).read_volatile();
            fence(Ordering::SeqCst);
            answered = (&raw const (*entry).answered).read_volatile() == DOORBELL_ANSWERED;
            emptied = sys::empty_own_pages(page, PAGE, true, (doorbells, DOORBELLS * PAGE)).is_ok();
        }
        if answered || !emptied {
            break;
        }
    }
    if !answered {
        // From now on a pager must not take a fault on the page for a call.
        // SAFETY: as above.
        unsafe { (&raw mut (*entry).answered).write_volatile(DOORBELL_ANSWERED) };
    }
    // A page that could not be emptied may be guarded, and must never be touched again: its doorbell stays
    // claimed.
    if emptied {
        STATE.rung.fetch_and(!(1 << index), Ordering::Release);
    }
    answered
}

/// Claims a doorbell for a call that may take long, which is made by the link.
pub fn claim_doorbell_for_long() -> Option<usize> {
    claim_doorbell(FOR_LONG)
}

pub fn give_doorbell_back(index: usize) {
    STATE.rung.fetch_and(!(1 << index), Ordering::Release);
}

/// Claims one of the doorbells from `first` on.
fn claim_doorbell(first: usize) -> Option<usize> {
    let mut rung = STATE.rung.load(Ordering::Relaxed);
    loop {
        let index = first + (rung >> first).trailing_ones() as usize;
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
pub fn libc_result(ret: Result<usize>) -> usize {
    let errno = match ret {
        Ok(addr) => return addr,
        Err(errno) => errno,
    };
    let location = sys::weak!("__errno_location");
    if location != 0 {
        // SAFETY: this is what every C library for Linux defines under that name; it returns this thread's
        // errno.
        unsafe {
            let location: extern "C" fn() -> *mut c_int = core::mem::transmute(location);
            location().write(errno);
        }
    }
    MAP_FAILED
}
