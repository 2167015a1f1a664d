//! Pages leave: a chunk of at most 64 in one mapping, which may be for reading only, or without access.
//!
//! ```text
//!   NONE, SWAPPED ─▶ EVICTING, page by page; the chunk ends at the first that is anything else
//!   ... and at the first that is in use, or the agent's, or not in the mapping    looked at after marking
//!   mprotect NONE ─ the chunk is read by /proc/self/mem into staging ─ GUARD_INSTALL ─ mprotect as it was
//!   victims ─▶ SWAPPED, the others as before; whoever waits is woken
//! ```
//!
//! Under NONE the bytes stand still, and the kernel may zap a page and put its marker there as slowly as it
//! likes: a fault in between would bring a page of zeros, which a thread reads, or writes and loses. A thread
//! that faults meanwhile finds EVICTING, and waits.
//!
//! If pages are away in registered memory (`holes/`) UFFDIO_MOVE does all of this at once, for pages that
//! are the process's own and can be written; those that are shared with the child of a fork go by the steps
//! above, and so do those that are protected, of which the kernel moves none.
//!
//! Protection is the program's: it is changed for a window only, whoever faults on it then waits, and what
//! comes back has that of its mapping by then. A mapping without access needs no window. It may have become
//! one with the window of another thread beside it, so what is known of it is forgotten at once.
//!
//! Most runs are of one or two pages, and two of three lie within 64 KiB of the run before. Tried
//! (benchmarks/pagers/floor.c): *one UFFDIO_MOVE for several of them*, over the holes in between
//! (ALLOW_SRC_HOLES). The kernel seems to empty the translation buffers for each run all the same: four runs
//! take as long by one call as by four, and a look at what has come takes 1.3 µs more. *Pages in staging
//! moved to where a page is missing*, in place of UFFDIO_COPY: of 3.8 µs for a page out and one in that saves
//! 0.7.
//!
//! If pages go to a `Source` (tests) they are copied under READ, as they may lie apart, and zapped under
//! NONE.
//!
//! A failure changes nothing: pages that cannot be copied, stored or guarded stay.

use crate::common::rules::{Rule, holds};
use crate::common::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(memspill_test)]
use core::arch::global_asm;

use super::gate::{self, GATE_MS, Inside};
use super::holes;
use super::kernel::{self, READ_WRITE, end};
#[cfg(memspill_test)]
use super::source::Source;
use super::source::{self, COUNTERS};
use super::{notes, supervisor, table, uses};
use crate::common::protocol::RUN_IN_USE;
use crate::common::words::{CHUNK, EVICTING, EXCLUDED, FILLING, NONE, PROTECTED, SWAPPED, Word};
use crate::machine::sys::{self, ECANCELED, EINVAL, ENOENT, ENOMEM, EPERM, PAGE, Result};
use crate::thread::wait;

#[cfg(memspill_test)]
global_asm!(
    ".pushsection .text.memspill_copy_out, \"ax\", @progbits",
    ".hidden memspill_copy_out, memspill_copy_out_at, memspill_copy_out_end",
    ".globl memspill_copy_out, memspill_copy_out_at, memspill_copy_out_end",
    "memspill_copy_out:",
    "mov rcx, rdx",
    "memspill_copy_out_at:",
    "rep movsb",
    "memspill_copy_out_end:",
    "mov rax, rcx",
    "ret",
    ".popsection",
);

#[cfg(memspill_test)]
unsafe extern "C" {
    fn memspill_copy_out(to: usize, from: usize, len: usize) -> usize;
    fn memspill_copy_out_at();
    fn memspill_copy_out_end();
}

/// The place where a thread goes on that cannot copy a page. None: the fault at `address` is another one.
#[cfg(memspill_test)]
pub fn recovery(address: usize) -> Option<usize> {
    (address == memspill_copy_out_at as *const () as usize)
        .then_some(memspill_copy_out_end as *const () as usize)
}

struct Evictor {
    /// Held by the one that takes pages out.
    lock: AtomicU32,
    /// Room for a chunk.
    staging: AtomicUsize,
    /// Pages were moved to so many places of the staging for that, from the first one on.
    moved: AtomicUsize,
    known: Known,
}

/// A mapping of plain memory, as it was looked up last. A command often takes pages of one mapping, each from
/// elsewhere in it. By the one that takes pages out.
struct Known {
    /// `Inside::changed` then.
    changed: AtomicU64,
    start: AtomicUsize,
    end: AtomicUsize,
    prot: AtomicUsize,
}

/// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
static EVICTOR: Evictor = Evictor {
    lock: AtomicU32::new(0),
    staging: AtomicUsize::new(0),
    moved: AtomicUsize::new(0),
    known: Known {
        changed: AtomicU64::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        prot: AtomicUsize::new(0),
    },
};

impl Known {
    /// End and protection of such a mapping at this place.
    fn at(&self, inside: &Inside, at: usize) -> Option<(usize, usize)> {
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        if self.changed.load(Ordering::Relaxed) != inside.changed() || !(start..end).contains(&at) {
            let mapping =
                kernel::mapping_from(at).filter(|mapping| mapping.start <= at && may_leave(mapping))?;
            if mapping.prot == sys::PROT_NONE {
                return Some((mapping.end, mapping.prot));
            }
            self.start.store(mapping.start, Ordering::Relaxed);
            self.end.store(mapping.end, Ordering::Relaxed);
            self.prot.store(mapping.prot, Ordering::Relaxed);
            self.changed.store(inside.changed(), Ordering::Relaxed);
        }
        Some((self.end.load(Ordering::Relaxed), self.prot.load(Ordering::Relaxed)))
    }

    fn forget(&self) {
        self.end.store(0, Ordering::Relaxed);
    }
}

/// Can pages of a mapping leave, as it is? (For memory that may be run and not read the kernel does not say
/// whether an access would fail.)
fn may_leave(mapping: &kernel::Mapping) -> bool {
    mapping.is_plain && (mapping.prot == sys::PROT_NONE || mapping.prot & sys::PROT_READ != 0)
}

/// Bytes of staging, private memory: a chunk that is copied there, and one that is moved.
pub const OWN_BYTES: usize = 2 * CHUNK * PAGE;

/// Staging is here.
pub fn use_staging(staging: usize) {
    EVICTOR.staging.store(staging, Ordering::Relaxed);
    uses::keep(uses::STAGING, staging + CHUNK * PAGE, CHUNK * PAGE);
}

/// In the child of a fork: nobody takes pages out.
pub fn reset() {
    EVICTOR.lock.store(0, Ordering::Relaxed);
    EVICTOR.moved.store(0, Ordering::Relaxed);
    EVICTOR.known.forget();
}

/// Takes out those of `count` pages from `start` on whose bit `wanted` has. Returns how many went.
///
/// With all signals blocked.
#[cfg(memspill_test)]
pub fn take_out(start: usize, count: usize, wanted: u64) -> usize {
    let Some(source) = source::get() else { return 0 };
    if !start.is_multiple_of(PAGE) || start >= table::TOP {
        return 0;
    }
    if holes::make_ready(start).is_err() {
        return 0;
    }
    while EVICTOR.lock.swap(1, Ordering::SeqCst) != 0 {
        wait::sleep(&EVICTOR.lock, 1);
    }
    let inside = gate::enter();
    let mut chunk = mark(&inside, start, count.min(CHUNK).min((table::TOP - start) / PAGE));
    let taken = if chunk.pages == 0 { 0 } else { evict(&mut chunk, &source, wanted) };
    chunk.end();
    drop(inside);
    EVICTOR.lock.store(0, Ordering::SeqCst);
    wait::wake_all(&EVICTOR.lock);
    source::count(&COUNTERS.taken, taken);
    taken
}

/// Installs what has been delivered, as far as that can be now. By the evictor.
pub fn install_delivered() {
    /// A page may be in the hands of a thread that does not run.
    const TRIES: u32 = 3;
    for _ in 0..TRIES {
        let Some(inside) = gate::enter_within(GATE_MS) else { return };
        let installed = supervisor::install_inside(true);
        drop(inside);
        if installed.is_ok() {
            return;
        }
        wait::pause(1);
    }
}

/// Takes out of `count` pages from `start` on as many as can be, from the first one on, for the supervisor:
/// their bytes go to `to`, where it reads them. How many went, and why no more: 0, or an errno.
///
/// `commit` is asked with how many pages of all have gone, when nothing can fail any more; if it says false,
/// the last ones come back, and no more go. By the evictor, which is no thread of the program.
pub fn take_run(
    start: usize,
    count: usize,
    to: usize,
    commit: &mut dyn FnMut(usize) -> bool,
) -> (usize, i32) {
    let mut taken = 0;
    while taken < count {
        let (at, left) = (start + taken * PAGE, count - taken);
        if let Err(errno) = holes::make_ready(at) {
            return (taken, errno);
        }
        let Some(inside) = gate::enter_within(GATE_MS) else { return (taken, ECANCELED) };
        if supervisor::is_changing() && holds(Rule::TakeUnchanged) {
            return (taken, ECANCELED);
        }
        if let Err((page, seen)) = supervisor::install_inside(true) {
            drop(inside);
            // It is lost, and a thread that needs it ends the process.
            if seen.state() == SWAPPED {
                return (taken, ECANCELED);
            }
            if let Some(word) = table::find(page) {
                table::wait_for(word, seen);
            }
            continue;
        }
        let mut chunk = mark(&inside, at, left.min(CHUNK));
        // A thread that is about to install these would put old bytes where the page comes back.
        let delivered = supervisor::first_delivered(chunk.start, chunk.start + chunk.len());
        chunk.shorten((delivered - chunk.start) / PAGE);
        // The supervisor would take what it is told later for true of the page that has left.
        let early = notes::first(chunk.start, chunk.start + chunk.len());
        if holds(Rule::LeaveEntries) {
            chunk.shorten((early - chunk.start) / PAGE);
        }
        let result = match chunk.pages {
            0 => Err(why_not(at)),
            _ => chunk.take(to + taken * PAGE, &mut |pages| commit(taken + pages)),
        };
        chunk.end();
        drop(inside);
        match result {
            Ok(pages) => taken += pages,
            Err(errno) => return (taken, errno),
        }
    }
    (taken, 0)
}

/// Why nothing could be marked: said by an errno, for the supervisor.
fn why_not(page: usize) -> i32 {
    let state = table::state_of(page);
    // The agent's own stays for good: taken for what a call uses, it would be tried again with each batch.
    if state == EXCLUDED || uses::first_kept(page, page + PAGE, false) == page {
        return EINVAL;
    }
    // Its protection is that of a window.
    if matches!(state, EVICTING | FILLING) {
        return sys::EAGAIN;
    }
    match kernel::mapping_from(page) {
        Some(mapping) if mapping.start <= page && !may_leave(&mapping) => EINVAL,
        Some(mapping) if mapping.start <= page && matches!(state, NONE | PROTECTED) => RUN_IN_USE,
        Some(mapping) if mapping.start <= page => sys::EAGAIN,
        _ => ENOENT,
    }
}

impl Chunk {
    /// Puts markers in the places of the first pages, whose bytes are at `kept`, while nobody can touch them.
    /// They are away if `commit` agrees.
    fn mark_away(&mut self, kept: usize, pages: usize, commit: impl FnOnce() -> bool) -> Result<usize> {
        let mut commit = Some(commit);
        if !holds(Rule::CommitLast) && !commit.take().is_some_and(|commit| commit()) {
            return Err(ECANCELED);
        }
        // SAFETY: the bytes are kept, and nobody can touch the pages.
        let result = match unsafe { holes::dig(self.start, pages * PAGE) } {
            Ok(_) if commit.is_none_or(|commit| commit()) => {
                self.taken = u64::MAX >> (u64::BITS as usize - pages);
                return Ok(pages);
            }
            Ok(_) => Err(ECANCELED),
            Err(_) => Err(ENOMEM),
        };
        // All of it is gone, or a part.
        put_bytes_back(self.start, kept, pages);
        result
    }

    /// The mapping may have changed: madvise, mlock and others cut one in two, and change nothing else that
    /// counts here.
    fn end_with_mapping(&mut self) {
        EVICTOR.known.forget();
        if let Some(mapping) = kernel::mapping_from(self.start).filter(|mapping| mapping.start <= self.start)
        {
            self.shorten((mapping.end - self.start) / PAGE);
        }
    }

    /// The pages go, those before the first one that is away or cannot be read: how many. Err: why none.
    fn take(&mut self, to: usize, commit: &mut dyn FnMut(usize) -> bool) -> Result<usize> {
        // The supervisor may take something for a page that is none.
        let is_closed = self.words(0).next().is_some_and(|(_, word)| table::load(word).is_closed());
        let there = self.words(0).take_while(|(_, word)| !table::load(word).was_away()).count();
        self.shorten(there);
        if there == 0 {
            return Err(if is_closed { ENOENT } else { sys::EAGAIN });
        }
        let mut is_shared = false;
        if holes::can_move(self.prot) {
            match self.take_by_move(to, commit) {
                Err(sys::EBUSY) => is_shared = true,
                // It may be several mappings by now.
                Err(EINVAL) => self.end_with_mapping(),
                other => return other,
            }
        }
        // The kernel's own reading needs no protection that would allow it, and each step of protection
        // interrupts the CPUs on which other threads run.
        let none = match () {
            () if !holds(Rule::StandStill) => self.prot,
            () if !holds(Rule::None) => sys::PROT_READ,
            () => sys::PROT_NONE,
        };
        if let Err(errno) = self.protect(none) {
            // A part of it may have no protection: several mappings, of which one is sealed.
            let _ = self.protect(self.prot);
            EVICTOR.known.forget();
            return Err(if errno == EPERM { EINVAL } else { ENOMEM });
        }
        // SAFETY: there is room in staging, and the pages stand still.
        let read = unsafe { kernel::read_through(self.start, to, self.len()) } / PAGE;
        let mut result = Err(EINVAL);
        if read != 0 {
            result = self.mark_away(to, read, || commit(read));
        }
        if self.protect(if holds(Rule::GiveBack) { self.prot } else { READ_WRITE }).is_err() {
            end("cannot give pages their protection back (vm.max_map_count)");
        }
        source::count(&COUNTERS.taken, result.unwrap_or(0));
        if is_shared {
            supervisor::note_shared_taken(result.unwrap_or(0));
        }
        result
    }
}

/// Writes the bytes of pages where they were.
fn put_bytes_back(at: usize, bytes: usize, pages: usize) {
    holes::put_back(at, bytes, pages * PAGE);
}

/// A word as it was before it was marked.
fn before(word: &AtomicU64) -> Word {
    if holds(Rule::AsBefore) { table::load(word).as_before() } else { Word::EMPTY }
}

/// Pages in a row that are EVICTING, by the caller, and their slots where they were taken out.
struct Chunk {
    start: usize,
    pages: usize,
    /// The protection of their mapping.
    prot: usize,
    slots: [u64; CHUNK],
    taken: u64,
}

/// Turns words to EVICTING, as far as they can be.
fn mark(inside: &Inside, start: usize, count: usize) -> Chunk {
    let mut chunk = Chunk { start, pages: 0, prot: READ_WRITE, slots: [0; CHUNK], taken: 0 };
    let first_kept = |end| uses::first_kept(start, end, holds(Rule::InUse));
    let looked_before = if holds(Rule::MarkFirst) { usize::MAX } else { first_kept(start + count * PAGE) };
    while chunk.pages < count && holes::may_leave(start + chunk.pages * PAGE) {
        let Ok(word) = table::obtain(start + chunk.pages * PAGE) else { break };
        let seen = table::load(word);
        let is_free = matches!(seen.state(), NONE | SWAPPED | PROTECTED);
        if !is_free || !table::turn(word, seen, seen.evicting()) {
            break;
        }
        chunk.pages += 1;
    }
    let kept = if holds(Rule::MarkFirst) { first_kept(start + chunk.len()) } else { looked_before };
    chunk.shorten((kept - start) / PAGE);
    let (end, prot) = EVICTOR.known.at(inside, start).unwrap_or((start, READ_WRITE));
    chunk.prot = prot;
    chunk.shorten((end - start) / PAGE);
    chunk
}

impl Chunk {
    fn len(&self) -> usize {
        self.pages * PAGE
    }

    fn words(&self, from: usize) -> impl Iterator<Item = (usize, &'static AtomicU64)> {
        let start = self.start;
        (from..self.pages)
            .filter_map(move |index| table::find(start + index * PAGE).map(|word| (index, word)))
    }

    /// Gives up the pages from `pages` on.
    fn shorten(&mut self, pages: usize) {
        if pages < self.pages {
            for (_, word) in self.words(pages) {
                table::finish(word, before(word));
            }
            self.pages = pages;
        }
    }

    /// The words become what is true of their pages.
    fn end(&self) {
        for (index, word) in self.words(0) {
            let slot = self.slots.get(index).copied().unwrap_or(0);
            let is_taken = self.taken >> index & 1 != 0;
            table::finish(word, if is_taken { Word::swapped(slot, self.prot as u64) } else { before(word) });
        }
    }

    /// The same by UFFDIO_MOVE, which is one step for whoever looks. Err: nothing has gone. EBUSY: what is
    /// first is shared with a child, or pinned.
    fn take_by_move(&mut self, to: usize, commit: &mut dyn FnMut(usize) -> bool) -> Result<usize> {
        let staging = room_to_move(self.pages);
        // SAFETY: the pages are EVICTING, and nothing is there.
        let result = unsafe { holes::move_pages(self.start, staging, self.pages) };
        // The kernel may have moved some, whatever it says.
        let moved = if result.is_ok() { self.pages } else { moved_into(staging, self.pages) };
        // SAFETY: so many pages are in staging, and there is room for them.
        unsafe { core::ptr::copy_nonoverlapping(staging as *const u8, to as *mut u8, moved * PAGE) };
        let is_away = moved != 0 && commit(moved);
        let taken = if is_away { moved } else { 0 };
        if result.is_err() || !is_away {
            self.bring_back_behind(staging, taken);
        }
        source::count(&COUNTERS.taken, taken);
        match (moved, taken) {
            (0, _) => Err(result.err().unwrap_or(EINVAL)),
            (_, 0) => Err(ECANCELED),
            _ => {
                self.taken = u64::MAX >> (u64::BITS as usize - taken);
                Ok(taken)
            }
        }
    }

    /// The pages in staging behind the first `taken` ones go back where they were.
    fn bring_back_behind(&self, staging: usize, taken: usize) {
        let end = staging + self.pages * PAGE;
        let mut at = staging + taken * PAGE;
        let back = |from: usize, to: usize| {
            if from < to {
                holes::copy(self.start + (from - staging), from, to - from);
            }
        };
        if at < end {
            kernel::each_untouched(at, end, |from, to| {
                back(at, from);
                at = to;
            });
            back(at, end);
        }
    }

    fn protect(&self, prot: usize) -> Result<usize> {
        // SAFETY: the pages are EVICTING: whoever faults on them waits.
        unsafe { kernel::protect(self.start, self.len(), prot) }
    }
}

/// What becomes of a chunk whose pages stand still: pages in `taken`, or none.
#[cfg(memspill_test)]
fn evict(chunk: &mut Chunk, source: &Source, wanted: u64) -> usize {
    // To copy them they would have to be readable for others, too.
    if chunk.prot == sys::PROT_NONE || chunk.protect(sys::PROT_READ).is_err() {
        return 0;
    }
    let (victims, count) = copy_victims(chunk, wanted);
    let mut slots = [0u64; CHUNK];
    let staging = EVICTOR.staging.load(Ordering::Relaxed);
    let stored = if count == 0 {
        0
    } else {
        // SAFETY: so many pages are in staging, and there is room for so many slots.
        unsafe { (source.store)(staging as *const u8, count as u32, slots.as_mut_ptr()) as usize }
    };
    let mut nth = 0;
    for index in 0..chunk.pages {
        if victims >> index & 1 != 0 && nth < stored {
            if let (Some(place), Some(slot)) = (chunk.slots.get_mut(index), slots.get(nth)) {
                *place = *slot;
                chunk.taken |= 1 << index;
            }
            nth += 1;
        }
    }
    if chunk.taken != 0 {
        let during = if holds(Rule::None) { sys::PROT_NONE } else { chunk.prot };
        if chunk.protect(during).is_ok() {
            install_guards(chunk, source, victims);
        } else {
            put_back(chunk, source, 0, chunk.pages);
        }
    }
    if chunk.protect(chunk.prot).is_err() {
        end("cannot give pages their protection back (vm.max_map_count)");
    }
    chunk.taken.count_ones() as usize
}

/// Copies what is wanted and there, one after the other, into staging: which pages, and how many.
#[cfg(memspill_test)]
fn copy_victims(chunk: &Chunk, wanted: u64) -> (u64, usize) {
    let staging = EVICTOR.staging.load(Ordering::Relaxed);
    let (mut victims, mut count) = (0, 0);
    for (index, word) in chunk.words(0) {
        if wanted >> index & 1 == 0 || table::load(word).was_away() {
            continue;
        }
        // SAFETY: there is room for a chunk; guarded on the other side.
        if unsafe { memspill_copy_out(staging + count * PAGE, chunk.start + index * PAGE, PAGE) } == 0 {
            victims |= 1 << index;
            count += 1;
        }
    }
    (victims, count)
}

/// How many pages are in staging, from the first one on, after a move that did not end well. Since Linux 6.18
/// one may be moved and not counted.
fn moved_into(staging: usize, pages: usize) -> usize {
    let mut moved = pages;
    kernel::each_untouched(staging, staging + pages * PAGE, |from, _| {
        moved = moved.min((from - staging) / PAGE);
    });
    moved
}

/// Where in staging so many pages can be moved to. Pages that were moved before stay there until there is no
/// room, or the command is done: to empty it costs a call, and an interrupt on each CPU where a thread of it
/// runs.
fn room_to_move(pages: usize) -> usize {
    if EVICTOR.moved.load(Ordering::Relaxed) + pages > CHUNK {
        empty_staging();
    }
    let before = EVICTOR.moved.fetch_add(pages, Ordering::Relaxed);
    uses::kept(uses::STAGING).0 + before * PAGE
}

/// Nothing is left in staging. By the evictor, after a command.
pub fn empty_staging() {
    let pages = EVICTOR.moved.swap(0, Ordering::Relaxed);
    // SAFETY: what was there is in its place, or where it is kept.
    if pages != 0 && unsafe { kernel::empty_own(uses::kept(uses::STAGING).0, pages * PAGE) }.is_err() {
        end("cannot empty what it takes pages out by");
    }
}

/// Puts markers in the places of what was taken, run by run.
#[cfg(memspill_test)]
fn install_guards(chunk: &mut Chunk, source: &Source, victims: u64) {
    let mut index = 0;
    while index < chunk.pages {
        let run = ((chunk.taken >> index).trailing_ones() as usize).min(chunk.pages - index);
        if run == 0 {
            index += 1;
            continue;
        }
        let at = chunk.start + index * PAGE;
        // SAFETY: the bytes are kept, and nobody can touch the pages.
        if unsafe { holes::dig(at, run * PAGE) }.is_err() {
            // A part of it may be gone.
            restore(chunk, victims, index, run);
            put_back(chunk, source, index, run);
        }
        index += run;
    }
}

/// Writes the bytes of pages that were copied where they were.
#[cfg(memspill_test)]
fn restore(chunk: &Chunk, victims: u64, from: usize, run: usize) {
    let before = (victims & ((1 << from) - 1)).count_ones() as usize;
    put_bytes_back(chunk.start + from * PAGE, EVICTOR.staging.load(Ordering::Relaxed) + before * PAGE, run);
}

/// The stored bytes of these pages are not needed: they stay.
#[cfg(memspill_test)]
fn put_back(chunk: &mut Chunk, source: &Source, from: usize, run: usize) {
    for index in from..from + run {
        if chunk.taken >> index & 1 != 0 {
            chunk.taken &= !(1 << index);
            // SAFETY: the reference was given for this page.
            unsafe { (source.release)(chunk.slots.get(index).copied().unwrap_or(0)) };
        }
    }
}
