//! Holes in memory that is registered with a userfaultfd of the process's own: nothing stands where a page is
//! away. UFFDIO_COPY is one call, and nobody sees half of it: no window, no second lookup of the mapping, no
//! other CPU to be interrupted. The descriptor serves faults of user mode only, so it takes no privilege.
//!
//! In registered memory *a missing page has a word that is not NONE*: else a call that touches it would fail,
//! where the kernel would have given a page of zeros. So memory is registered by these steps, alone in the
//! gate:
//!
//! ```text
//!   missing and NONE ─▶ EVICTING;  what calls use of it is touched, and NONE again
//!   UFFDIO_REGISTER
//!   what is still missing ─▶ SWAPPED, closed (zeros, once there is room);  else NONE
//! ```
//!
//! A call that begins meanwhile says what it uses before it looks at words, so either it waits for the word,
//! or its pages are touched here. Every change that leaves pages missing afterwards (MADV_DONTNEED, mremap, a
//! fork's child) ends with the same steps.
//!
//! The 2 MiB that are registered are noted with their words (`table.rs`). The note says less than what is
//! true: whatever maps something there takes it off, and registering twice does no harm.

use crate::common::rules::{Rule, holds};
use crate::common::sync::Ordering;
use crate::common::words::{EVICTING, EXCLUDED, FOR_KERNEL, NONE, PROTECTED, Word};
use crate::machine::gadget;
use crate::machine::sys::{self, EAGAIN, ENOENT, ENOMEM, PAGE, Result, nr};
use crate::machine::uffd::{
    API, ApiArg, CopyArg, FEATURE_MOVE, FEATURE_SIGBUS, MODE_MISSING, MODE_PROTECT, MoveArg, ProtectArg,
    RangeArg, RegisterArg, UFFDIO_API, UFFDIO_COPY, UFFDIO_MOVE, UFFDIO_REGISTER, UFFDIO_UNREGISTER,
    UFFDIO_WRITEPROTECT, UFFDIO_ZEROPAGE, ZeroArg,
};
use crate::pages::kernel::{self, DESCRIPTORS, empty_own, end};
use crate::pages::{gate, table, uses};
use crate::thread::wait;

const USER_MODE_ONLY: usize = 1;
/// Nobody waits for a message.
const DONT_WAKE: u64 = 1;
const EEXIST: i32 = 17;

/// What is copied to bring zeros: so much of the agent's file is mapped for it.
const NOTHING_BYTES: usize = 16 * PAGE;

/// How long the one that registers waits for others.
const ALONE_MS: u32 = 20;
/// How often memory is asked for that the kernel does not have, a millisecond each.
const NO_MEMORY_TRIES: u32 = 5000;

/// Is this the kind of holes that the process has?
pub fn are_in_use() -> bool {
    DESCRIPTORS.uffd.load(Ordering::Relaxed) >= 0
}

fn ask<T>(number: usize, arg: &mut T) -> Result<usize> {
    let fd = DESCRIPTORS.uffd.load(Ordering::Relaxed) as usize;
    // SAFETY: the kernel reads and writes the struct; what is asked of memory is the caller's to answer for.
    unsafe { gadget::call(nr::IOCTL, [fd, number, arg as *mut T as usize, 0, 0, 0]) }
}

/// From now on they are, in this process: at the start, and in the child of a fork.
pub fn open_descriptor() -> Result<()> {
    // First of all no longer the parent's, which is the parent's memory.
    let old = DESCRIPTORS.uffd.swap(-1, Ordering::Relaxed);
    if old >= 0 {
        kernel::close(old);
    }
    let flags = sys::O_CLOEXEC | sys::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: makes a descriptor; no memory involved.
    let fd = unsafe { gadget::call(nr::USERFAULTFD, [flags, 0, 0, 0, 0, 0]) }?;
    DESCRIPTORS.uffd.store(kernel::high(fd) as i32, Ordering::Relaxed);
    let mut api = ApiArg { api: API, features: FEATURE_SIGBUS | FEATURE_MOVE, ioctls: 0 };
    ask(UFFDIO_API, &mut api).map(|_| ())
}

/// Brings pages with these bytes, which are FILLING or EVICTING by the caller.
pub fn copy(at: usize, from: usize, len: usize) {
    copy_missing(at, from, len, false);
}

/// The same; `spares`: what is there stays.
pub fn copy_missing(at: usize, from: usize, len: usize, spares: bool) {
    bring(len, spares, |done, len| {
        let (to, from, len) = ((at + done) as u64, (from + done) as u64, len as u64);
        let mut arg = CopyArg { to, from, len, mode: DONT_WAKE, copied: 0 };
        let result = ask(UFFDIO_COPY, &mut arg);
        (arg.copied, result)
    });
}

/// Brings pages of zeros; those that are there stay as they are. One may be for reading only: it is the
/// kernel's page of zeros. More than one are on the way of a program that fills its memory: those are pages
/// of their own, which need no second fault to be written.
pub fn zeros(at: usize, len: usize) {
    static NOTHING: [u8; NOTHING_BYTES] = [0; NOTHING_BYTES];
    if len == PAGE {
        return bring(len, true, |done, len| zero(at + done, len));
    }
    for done in (0..len).step_by(NOTHING_BYTES) {
        copy_missing(at + done, NOTHING.as_ptr() as usize, NOTHING_BYTES.min(len - done), true);
    }
}

/// Brings `len` bytes of pages by calls that say how many bytes they have brought, of those from the first
/// argument on.
fn bring(len: usize, spares: bool, call: impl Fn(usize, usize) -> (i64, Result<usize>)) {
    let (mut done, mut tries, mut most) = (0, 0, len);
    while done < len {
        match call(done, most.min(len - done)) {
            (_, Ok(_)) => done += most.min(len - done),
            (brought, Err(_)) if brought > 0 => done += brought as usize,
            (_, Err(EEXIST)) if spares => done += PAGE,
            (_, Err(EEXIST)) => end("finds a page in the place of one that is away"),
            (_, Err(EAGAIN)) => {}
            // It may be several mappings.
            (_, Err(ENOENT)) if most > PAGE => most = PAGE,
            (_, Err(ENOMEM)) if tries < NO_MEMORY_TRIES => {
                tries += 1;
                wait::pause(1);
            }
            (_, Err(_)) => end("cannot bring a page back: its userfaultfd does not write it"),
        }
    }
}

/// How many bytes are zeros now, and what the kernel says.
fn zero(at: usize, len: usize) -> (i64, Result<usize>) {
    let mut arg = ZeroArg { start: at as u64, len: len as u64, mode: DONT_WAKE, zeroed: 0 };
    let result = ask(UFFDIO_ZEROPAGE, &mut arg);
    (arg.zeroed, result)
}

/// Moves pages. Err: some may have been moved, and more than the kernel counts (since Linux 6.18).
///
/// # Safety
/// The pages are EVICTING, by the caller, and nothing is where they go.
pub unsafe fn move_pages(from: usize, to: usize, pages: usize) -> Result<usize> {
    let len = (pages * PAGE) as u64;
    let mut arg = MoveArg { to: to as u64, from: from as u64, len, mode: DONT_WAKE, moved: 0 };
    ask(UFFDIO_MOVE, &mut arg)
}

/// A page that has no word, and should be there as the kernel would have it: true if it is.
pub fn is_there_by_now(page: usize) -> bool {
    matches!(zero(page, PAGE).1, Ok(_) | Err(EEXIST))
}

/// Does with pages of the agent's own what is done with others later: staging, which is registered from now
/// on, and empty.
pub fn try_out() -> Result<()> {
    let staging = register_staging()?;
    let bytes = [7u8; PAGE];
    copy(staging, bytes.as_ptr() as usize, PAGE);
    let (from, to) = (staging, staging + PAGE);
    // SAFETY: nobody uses staging yet.
    unsafe { move_pages(from, to, 1) }?;
    // SAFETY: the page has just come.
    let first = unsafe { (to as *const [u8; 64]).read_volatile() };
    // SAFETY: as above.
    unsafe { empty_own(staging, 2 * PAGE) }?;
    if first == [7; 64] { Ok(()) } else { Err(sys::EIO) }
}

/// Where it is. Nothing is in it.
fn register_staging() -> Result<usize> {
    let (staging, len) = uses::kept(uses::STAGING);
    let mut arg = RegisterArg { start: staging as u64, len: len as u64, mode: MODE_MISSING, ioctls: 0 };
    ask(UFFDIO_REGISTER, &mut arg)?;
    // SAFETY: nobody uses staging now.
    unsafe { empty_own(staging, len) }?;
    Ok(staging)
}

/// Sees to it that what is at an address, and in the same 2 MiB, can be taken out. Outside of the gate. Err:
/// not now, or never.
pub fn make_ready(start: usize) -> Result<()> {
    if table::is_registered(start) {
        return Ok(());
    }
    let _alone = gate::enter_alone_within(ALONE_MS).ok_or(EAGAIN)?;
    let from = start & !(table::GROUP_BYTES - 1);
    table::obtain(start)?;
    register(from, from + table::GROUP_BYTES)?;
    table::note_registered(from);
    Ok(())
}

/// Registers what is plain memory in [from, to). Alone in the gate.
pub fn register(from: usize, to: usize) -> Result<()> {
    let mut at = from;
    // The registered range is one with its neighbours then.
    while at < to
        && let Some(mapping) = kernel::mapping_from(at).filter(|mapping| mapping.start < to)
    {
        if mapping.is_plain {
            let (start, end) = (mapping.start.max(at), mapping.end.min(to));
            // Staging is, and nothing is to be in it; of the rest little is ever touched.
            let (own, own_len) = uses::kept(uses::TABLES);
            for (start, end) in [(start, end.min(own)), (start.max(own + own_len), end)] {
                if start < end {
                    register_piece(start, end, mapping.prot)?;
                }
            }
        }
        at = mapping.end;
    }
    Ok(())
}

/// Protects pages that are there against writes, or lets them be written. ENOENT: some of it is not
/// registered.
pub fn write_protect(start: usize, len: usize, protects: bool) -> Result<usize> {
    /// Nobody waits for a message.
    const ALLOW: u64 = 2;
    let mode = if protects { 1 } else { ALLOW };
    ask(UFFDIO_WRITEPROTECT, &mut ProtectArg { start: start as u64, len: len as u64, mode })
}

/// Registered no more, whatever is missing there.
pub fn unregister(start: usize, len: usize) -> Result<usize> {
    ask(UFFDIO_UNREGISTER, &mut RangeArg { start: start as u64, len: len as u64 })
}

/// The same of those parts that may be registered already, and in which pages may be missing now.
pub fn register_again(from: usize, to: usize) {
    if !holds(Rule::RegisterAgain) {
        return;
    }
    let mut at = from;
    while at < to {
        let group_end = (at & !(table::GROUP_BYTES - 1)) + table::GROUP_BYTES;
        let piece_end = group_end.min(to);
        if table::was_registered(at) && register(at, piece_end).is_err() {
            end("cannot keep its memory registered");
        }
        at = piece_end;
    }
}

fn register_piece(start: usize, to: usize, prot: usize) -> Result<()> {
    let marked = if holds(Rule::MarkMissingFirst) { mark_missing(start, to) } else { Ok(()) };
    if marked.is_ok() && holds(Rule::TouchKept) {
        touch_kept(start, to);
    }
    let result = marked.and_then(|()| {
        let mode = MODE_MISSING | MODE_PROTECT;
        let mut arg = RegisterArg { start: start as u64, len: (to - start) as u64, mode, ioctls: 0 };
        ask(UFFDIO_REGISTER, &mut arg).map(|_| ())
    });
    if result.is_ok() {
        table::note_was_registered(start, to);
        if !holds(Rule::MarkMissingFirst) {
            mark_missing(start, to)?;
        }
        let closed = if holds(Rule::CloseMissing) { Word::closed(prot as u64) } else { Word::EMPTY };
        let close = |from, to| each_marked(from, to, |word| table::finish(word, closed));
        if holds(Rule::LookAgain) {
            kernel::each_untouched(start, to, close);
        } else {
            close(start, to);
        }
    }
    // They are there by now, or nothing has changed.
    each_marked(start, to, |word| table::finish(word, Word::EMPTY));
    match result {
        // No userfaultfd takes such memory (MAP_DROPPABLE).
        Err(sys::EINVAL) if stays(start, to) => Ok(()),
        other => other,
    }
}

/// Has all of it stay that is not away. False: something is away there, or there is no memory for the words.
fn stays(start: usize, to: usize) -> bool {
    (start..to).step_by(PAGE).all(|page| {
        let Ok(word) = table::obtain(page) else { return false };
        let seen = table::load(word);
        seen.state() == EXCLUDED
            || seen.state() == NONE && table::turn(word, seen, Word::excluded(FOR_KERNEL))
    })
}

/// Missing pages without a word are marked.
fn mark_missing(start: usize, to: usize) -> Result<()> {
    let mut result = Ok(());
    kernel::each_untouched(start, to, |from, to| {
        for page in (from..to).step_by(PAGE) {
            let word = match table::obtain(page) {
                Ok(word) => word,
                Err(errno) => return result = Err(errno),
            };
            let seen = table::load(word);
            match seen.state() {
                NONE => _ = table::turn(word, seen, seen.evicting()),
                // The page that was protected there is gone.
                PROTECTED if holds(Rule::ForgetEmptied) => {
                    _ = table::turn(word, seen, Word::EMPTY.evicting())
                }
                // It is to stay, so it is to be there.
                EXCLUDED => touch(page),
                _ => {}
            }
        }
    });
    result
}

/// Marked pages that a call uses, or that are the agent's own, are there from now on.
fn touch_kept(start: usize, to: usize) {
    let mut at = start;
    while at < to {
        let page = uses::first_kept(at, to, holds(Rule::InUse));
        if page >= to {
            break;
        }
        if let Some(word) = table::find(page).filter(|word| table::load(word).state() == EVICTING) {
            touch(page);
            table::finish(word, Word::EMPTY);
        }
        at = page + PAGE;
    }
}

fn touch(page: usize) {
    // For reading: a page of zeros that all share is there for a write too. A page that cannot be accessed
    // cannot be touched, and no call can do so either.
    let _ = is_there_by_now(page) || kernel::populate(page, false) || kernel::populate(page, true);
}

fn each_marked(from: usize, to: usize, tell: impl Fn(&'static crate::common::sync::AtomicU64)) {
    let mut at = from;
    while let Some((page, word)) = table::next(at, to) {
        if table::load(word).state() == EVICTING {
            tell(word);
        }
        at = page + PAGE;
    }
}

/// In the child of a fork, whose memory is as its parent's, but registered nowhere. Before anything of the
/// program runs.
pub fn in_child() {
    if open_descriptor().is_err() {
        end("cannot page the child of a fork: no userfaultfd");
    }
    if register_staging().is_err() {
        end("cannot page the child of a fork: its memory cannot be registered");
    }
    let mut at = 0;
    while let Some(first) = table::next_was_registered(at) {
        at = first + table::GROUP_BYTES;
        // What follows at once, with it: that is one call for each mapping.
        while table::was_registered(at) {
            at += table::GROUP_BYTES;
        }
        if register(first, at).is_err() {
            end("cannot page the child of a fork: its memory cannot be registered");
        }
    }
}
