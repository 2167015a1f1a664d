//! A page comes back early: the thread that needs it reads it out of the supervisor's pool by itself, and
//! goes on. `common/src/link.rs` draws what it tells the supervisor, `common/src/pool.rs` what it reads.
//!
//! ```text
//!   hints ─▶ a word SWAPPED has a slot
//!   SWAPPED ─▶ FILLING, and an entry FETCHING
//!   location ─ object ─ location: the same?  ─ no delivery has the page, and it is still allowed?
//!       yes: filled; word NONE, entry HERE        no: SWAPPED, without a slot, and it is asked for
//! ```
//!
//! Are these the bytes of the page? A hint is true until the page is filled by the supervisor, which delivers
//! it (a delivery stays for as long as the page is FILLING), until a change, which nobody begins while one is
//! inside the gate, or until its device is swapped off, before which it is no longer allowed. Each of these
//! comes before the slot is used for another page. So if, after the reading, none of it has happened, the
//! slot was the page's.
//!
//! Why is the hint true in the first place? The supervisor writes it when the page is stored, while the slot
//! cannot be anyone else's, and as it delivers: while no change is unread. A page that comes back and leaves
//! again does so by a later command to the evictor, which reads all hints before it takes anything. A change
//! drops those that are unread.
//!
//! What must hold:
//!
//! - From FETCHING on nothing changes mappings but their protection, nobody forks and the page is not taken
//!   out, until the supervisor has noted it (`notes.rs`).
//! - The bytes of the pool are not trusted, only read.
//! - A process that changes its credentials must close the pool, because the pool holds other processes'
//!   memory.
//!
//! `crates/agent/tests/shuttle_agent.rs` tries all this under many orders of steps.
//!
//! While another thread has the swap token a page is asked for: the supervisor says when it is our turn. So
//! it is while memory is full, or may be: whoever asks waits until reclaim has made room. And so it is where
//! the supervisor brings what pages name before it is touched, for it must see the pages.
//!
//! What it does not do: say what comes along with a page (`readahead.rs`; `streams.rs` of common/).

use crate::common::rules::{Rule, holds};
use crate::common::sync::{AtomicU64, AtomicUsize, Ordering, fence};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

use super::channel::{field, word64};
use super::gate::{self, Inside};
use super::kernel::{self, DESCRIPTORS};
use super::notes::{self, Comes};
use super::readahead::{self, Limits};
use super::run::{self, Run};
use super::{supervisor, table};
use crate::common::link::LeftOut;
use crate::common::pool::{self, HEADER_BYTES, Header, Location, MAGIC, PAGE_BYTES, Packed, ROOMS};
use crate::common::window::Window;
use crate::common::words::{SWAPPED, Word};
use crate::machine::sys::PAGE;
use crate::thread::block;

struct State {
    header: UnsafeCell<Header>,
    /// Where the first part of the table is mapped, or 0: two reads by calls are a tenth of a fault.
    table: AtomicUsize,
    /// The same for the chunks' pages: to read an object by a call is another tenth.
    chunks: AtomicUsize,
}

/// Pages that are read before they are put in place together: as many as the agent's stack has room for.
const PIECE: usize = 4;
/// 8 MiB, for 4 GiB of pages: what lies behind is read by calls.
const MAPPED_SLOTS: u64 = 1 << 20;
const TABLE_BYTES: usize = MAPPED_SLOTS as usize * size_of::<u64>();
/// Objects that lie behind in the chunks are read by calls.
const CHUNKS_BYTES: usize = 1 << 30;

// SAFETY: the header is written while the process has one thread.
unsafe impl Sync for State {}

/// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
static STATE: State = State {
    header: UnsafeCell::new(Header { magic: 0, algorithm: 0, rooms_bytes: [0; ROOMS] }),
    table: AtomicUsize::new(0),
    chunks: AtomicUsize::new(0),
};

/// The supervisor has sent its pool. While the process has one thread.
pub fn connect(pool: Option<i32>) {
    let Some(fd) = pool else { return };
    let header = STATE.header.get();
    // SAFETY: nobody reads it yet, and it is of integers.
    let read = unsafe { kernel::read_at(fd, header as usize, HEADER_BYTES, 0) };
    // SAFETY: as above.
    let is_known = unsafe { (*header).magic == MAGIC && Packed::by((*header).algorithm).is_some() };
    if read == HEADER_BYTES
        && is_known
        && let Ok(high) = kernel::high_copy(fd)
    {
        // If one cannot be mapped (RLIMIT_AS), calls do.
        let map = |len, at| kernel::map_to_read(fd, len, at as usize).unwrap_or(0);
        STATE.table.store(map(TABLE_BYTES, pool::location_at(0)), Ordering::SeqCst);
        let chunks = if kernel::addresses_are_limited() { 0 } else { map(CHUNKS_BYTES, pool::PAGES_AT) };
        STATE.chunks.store(chunks, Ordering::SeqCst);
        DESCRIPTORS.pool.store(high, Ordering::SeqCst);
    }
}

/// The child of a fork has no pool before it joins.
pub fn forget() {
    notes::reset();
    close();
}

fn close() {
    let fd = DESCRIPTORS.pool.swap(-1, Ordering::SeqCst);
    if fd >= 0 {
        kernel::close(fd);
    }
    unmap(&STATE.table, TABLE_BYTES);
    unmap(&STATE.chunks, CHUNKS_BYTES);
}

fn unmap(mapped: &AtomicUsize, len: usize) {
    let at = mapped.swap(0, Ordering::SeqCst);
    if at != 0 {
        kernel::unmap(at, len);
    }
}

/// The process gets other rights: it reads the memory of others no more. Or it locks all of its memory: the
/// table is not to be filled for that.
pub fn leave() {
    if DESCRIPTORS.pool.load(Ordering::SeqCst) >= 0 {
        let _alone = gate::enter_alone();
        close();
    }
}

/// A call that limits the process's addresses is about to be made: those are the program's.
pub fn leave_addresses(number: usize, args: &[usize; 6]) {
    const SETRLIMIT: usize = 160;
    const PRLIMIT64: usize = 302;
    let limits = match number {
        SETRLIMIT => args[0] as u32 == kernel::RLIMIT_AS,
        PRLIMIT64 => args[1] as u32 == kernel::RLIMIT_AS && args[2] != 0,
        _ => false,
    };
    if limits && STATE.chunks.load(Ordering::SeqCst) != 0 {
        let _alone = gate::enter_alone();
        unmap(&STATE.chunks, CHUNKS_BYTES);
    }
}

/// Does a call of this number end reading (`leave`)? (Filters of system calls are seen elsewhere.)
pub fn ends_with(number: usize) -> bool {
    matches!(
        number,
        105 // setuid
        | 106 // setgid
        | 113 // setreuid
        | 114 // setregid
        | 116 // setgroups
        | 117 // setresuid
        | 119 // setresgid
        | 122 // setfsuid
        | 123 // setfsgid
        | 126 // capset
        | 151 // mlockall
        | 155 // pivot_root
        | 161 // chroot
        | 272 // unshare
        | 308 // setns
        | 444 // landlock_create_ruleset
    )
}

/// A page of a run that is being brought: FILLING, with an entry that is FETCHING.
#[derive(Clone, Copy)]
struct Fetched {
    word: &'static AtomicU64,
    entry: usize,
}

/// Brings a page that is SWAPPED, and some beside it where its thread goes through memory in order. False: it
/// is to be asked for.
pub fn bring(_inside: &Inside, page: usize) -> bool {
    if DESCRIPTORS.pool.load(Ordering::SeqCst) < 0 {
        return false;
    }
    // SAFETY: only threads that are armed touch what may be away.
    let thread = unsafe { block::current() };
    let is_read_by_supervisor = word64(field!(names_followed)).load(Ordering::Relaxed) != 0;
    if is_read_by_supervisor || !has_its_turn(thread.tid) || notes::are_too_many() {
        return false;
    }
    let most = word64(field!(early_run)).load(Ordering::Relaxed);
    if most == 0 {
        return false;
    }
    let window = thread.streams.fault((page / PAGE) as u64, most);
    let (wanted, left_out) = wanted(&window);
    let mut pages = 0;
    while pages < wanted {
        let piece = PIECE.min(wanted - pages);
        let comes = if pages == 0 { Comes::Needed(left_out) } else { Comes::Along };
        let brought = bring_piece(&window, pages, piece, thread.tid, comes);
        pages += brought;
        if brought < piece {
            break;
        }
    }
    let came = Window { pages: pages.max(1) as u64, ..window };
    thread.streams.note_brought(window.fault, came.range());
    pages > 0
}

/// How many pages of a window come, and what is left out.
fn wanted(window: &Window) -> (usize, LeftOut) {
    /// Counts of windows, by all threads: a thread may end before it has had many.
    #[unsafe(link_section = ".data")]
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let slot_of = |page: u64| {
        let seen = table::load(table::find(page as usize * PAGE)?);
        (seen.state() == SWAPPED && !seen.is_closed()).then_some(seen.slot())
    };
    if window.pages > 1 && slot_of(window.fault) == Some(0) {
        notes::take_hints();
    }
    let limits = Limits {
        // No more than may lie there unnoted: so far threads may pass the limit.
        block_pages: notes::told_at(),
        distrusted: word64(field!(distrusted)).load(Ordering::Relaxed),
    };
    let (pages, left_out) =
        readahead::wanted(window, &limits, || NUMBER.fetch_add(1, Ordering::Relaxed), &slot_of);
    (pages as usize, left_out)
}

/// Brings so many pages of a window, from that one on, or those before the first whose bytes are not at hand.
/// Returns how many. `comes`: the first of them.
fn bring_piece(window: &Window, from: usize, most: usize, tid: u32, comes: Comes) -> usize {
    let page = |n: usize| window.page(n as u64) as usize * PAGE;
    let prot = table::find(page(from)).map_or(0, |word| table::load(word).prot());
    let mut bytes = MaybeUninit::<[[u8; PAGE_BYTES]; PIECE]>::uninit();
    // SAFETY: bytes of any value are good; what is not written is not used.
    let bytes = unsafe { &mut *bytes.as_mut_ptr().cast::<[[u8; PAGE_BYTES]; PIECE]>() };
    let mut fetched: [Option<Fetched>; PIECE] = [None; PIECE];
    let mut pages = 0;
    for (n, place) in fetched.iter_mut().enumerate().take(most) {
        // In the order of the addresses.
        let Some(bytes) = bytes.get_mut(if window.is_down { PIECE - 1 - n } else { n }) else { break };
        *place = fetch(page(from + n), prot, bytes);
        if place.is_none() {
            break;
        }
        pages += 1;
    }
    if pages > 0 {
        let (lowest, at) = if window.is_down { (from + pages - 1, PIECE - pages) } else { (from, 0) };
        let run = Run { start: page(lowest), pages, prot: prot as usize };
        run::fill(&run, bytes.as_ptr().wrapping_add(at) as usize, false);
    }
    for (n, fetched) in fetched.iter().flatten().enumerate() {
        table::finish(fetched.word, Word::EMPTY);
        notes::here(fetched.entry, page(from + n), tid, if n == 0 { comes } else { Comes::Along });
    }
    pages
}

/// Reads a page that is SWAPPED, with this protection. None: its bytes are not at hand, and it is as it was.
fn fetch(page: usize, prot: u64, bytes: &mut [u8; PAGE_BYTES]) -> Option<Fetched> {
    let word = table::find(page)?;
    if table::load(word).slot() == 0 {
        notes::take_hints();
    }
    let seen = table::load(word);
    let is_ours = seen.state() == SWAPPED && seen.prot() == prot;
    if !is_ours || seen.slot() == 0 || seen.is_closed() || !is_allowed() {
        return None;
    }
    let entry = notes::claim(page)?;
    if notes::is_closed() || !table::turn(word, seen, seen.filling()) {
        notes::give_back(entry);
        return None;
    }
    let is_right = read(seen.slot(), bytes) && (is_allowed() || !holds(Rule::StillAllowed)) && {
        fence(Ordering::SeqCst);
        supervisor::first_delivered(page, page + PAGE) != page || !holds(Rule::Delivered)
    };
    if !is_right {
        table::finish(word, Word::swapped(0, seen.prot()));
        notes::give_back(entry);
        return None;
    }
    Some(Fetched { word, entry })
}

/// Nobody has the swap token, or this thread has it.
fn has_its_turn(tid: u32) -> bool {
    let token = word64(field!(token)).load(Ordering::Relaxed);
    token == 0 || token == u64::from(tid)
}

fn is_allowed() -> bool {
    word64(field!(allows_early)).load(Ordering::SeqCst) != 0
}

/// Reads a slot's page. False: it is not in the pool, or no longer where it was.
fn read(slot: u64, page: &mut [u8; PAGE_BYTES]) -> bool {
    let fd = DESCRIPTORS.pool.load(Ordering::Relaxed);
    // SAFETY: written once, before there was a second thread.
    let header = unsafe { &*STATE.header.get() };
    let Some(word) = location(fd, slot) else { return false };
    match pool::locate(word, header) {
        Location::Same(value) => {
            for place in page.as_chunks_mut::<8>().0 {
                *place = value.to_ne_bytes();
            }
            // It is all in the one word.
            true
        }
        Location::Object { offset, len, packed } => {
            let mut block = MaybeUninit::<[u8; PAGE_BYTES]>::uninit();
            // SAFETY: `len` is a page at most, by what it is made of; as many bytes are used as were read.
            // The mapping stays until nobody is inside the gate.
            let (read, block) = unsafe {
                let at = block.as_mut_ptr().cast::<u8>();
                let read = match chunk_mapped(offset, len) {
                    Some(from) => copy_out(from, at, len),
                    None => kernel::read_at(fd, at as usize, len.min(PAGE_BYTES), offset),
                };
                (read, core::slice::from_raw_parts(at, read.min(PAGE_BYTES)))
            };
            let is_same = |again| pool::is_same_place(word, again) || !holds(Rule::SamePlace);
            if read != len || !location(fd, slot).is_some_and(is_same) {
                return false;
            }
            match block.first_chunk::<PAGE_BYTES>() {
                Some(whole) => *page = *whole,
                None => return pool::decompress(packed, block, page),
            }
            true
        }
        Location::Elsewhere => false,
    }
}

/// Where an object of a page at most is mapped, as whole words, which its room has.
fn chunk_mapped(offset: u64, len: usize) -> Option<*mut u64> {
    let chunks = STATE.chunks.load(Ordering::Relaxed);
    let at = offset.checked_sub(pool::PAGES_AT)? as usize;
    let is_mapped = chunks != 0
        && at.is_multiple_of(size_of::<u64>())
        && at < CHUNKS_BYTES - PAGE_BYTES
        && len <= PAGE_BYTES;
    is_mapped.then(|| (chunks as *mut u64).wrapping_byte_add(at))
}

/// Copies an object, which the supervisor may free and write over meanwhile: the location tells whether it
/// has (pool.rs of memspill-backing draws how). If a chunk has been let go in between, the kernel puts a page
/// of zeros into the file, which stays until the pool uses that place again.
///
/// # Safety
/// `from` is mapped with room for `len` in whole words, and so is `to`.
unsafe fn copy_out(from: *mut u64, to: *mut u8, len: usize) -> usize {
    for n in 0..len.div_ceil(size_of::<u64>()) {
        // SAFETY: inside of both, by the caller's promise.
        unsafe {
            let word = AtomicU64::from_ptr(from.add(n)).load(Ordering::Relaxed);
            to.cast::<u64>().add(n).write_unaligned(word);
        }
    }
    fence(Ordering::Acquire);
    len
}

fn location(fd: i32, slot: u64) -> Option<u64> {
    let table = STATE.table.load(Ordering::Relaxed);
    if table != 0 && slot < MAPPED_SLOTS {
        let word = (table as *mut u64).wrapping_add(slot as usize);
        // SAFETY: mapped until nobody is inside the gate, and written as whole words.
        return Some(unsafe { AtomicU64::from_ptr(word) }.load(Ordering::SeqCst));
    }
    let mut word = 0u64;
    let len = size_of::<u64>();
    // SAFETY: there is room for a word.
    let read = unsafe { kernel::read_at(fd, &raw mut word as usize, len, pool::location_at(slot)) };
    (read == len).then_some(word)
}
