//! The words of this process's pages (`common/src/words.rs` draws the file), and the steps that a word takes.
//!
//! A leaf is mapped when the first of its words is needed, and stays. So the whole of the address space costs
//! 1.5 MiB of addresses and a leaf for each GiB of which some page was ever taken out, and `RLIMIT_AS` stays
//! what it is.
//!
//! A walk through all of the table (forks make several) goes from leaf to leaf by a bit for each GiB. (By the
//! addresses of leaves, 1 MiB of them, each such walk took 0.1 ms and more.)

use crate::common::rules::{Rule, holds};
use crate::common::sync::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::mem::{offset_of, size_of};
use core::ptr::null_mut;

use super::kernel;
use crate::common::words::{
    ADDRESS_BITS, GROUP_WORDS, Header, LEAF_BITS, LEAF_GROUPS, LEAF_WORDS, LEAVES, Leaf, NONE, PAGE_BITS,
    WORDS_MAGIC, Word, leaf_offset,
};
use crate::machine::sys::{PAGE, Result};
use crate::thread::wait;

/// Above this there is no memory of a program.
pub const TOP: usize = 1 << ADDRESS_BITS;
pub const GROUP_BYTES: usize = GROUP_WORDS * PAGE;

/// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
static HEADER: AtomicPtr<Header> = AtomicPtr::new(null_mut());
/// The addresses of the leaves, one for each GiB.
#[unsafe(link_section = ".data")]
static LEAF_AT: AtomicUsize = AtomicUsize::new(0);
/// A bit for each GiB that has a leaf: behind those addresses.
const MADE_AT: usize = LEAVES * size_of::<usize>();
/// Held while a leaf is made.
#[unsafe(link_section = ".data")]
static MAKING: AtomicU32 = AtomicU32::new(0);

/// Bytes of private memory that a table needs.
pub const OWN_BYTES: usize = MADE_AT + LEAVES / 8;

/// Makes an empty table. `leaf_at`: private memory for it, of zeros.
pub fn make(leaf_at: usize) -> Result<()> {
    let fd = new_file()?;
    let header = kernel::map_file(fd, 0, size_of::<Header>(), 0)? as *mut Header;
    // SAFETY: the mapping is new, and as large as the struct.
    unsafe { (&raw mut (*header).magic).write_volatile(WORDS_MAGIC) };
    kernel::DESCRIPTORS.words.store(fd, Ordering::Relaxed);
    LEAF_AT.store(leaf_at, Ordering::Relaxed);
    HEADER.store(header, Ordering::Release);
    Ok(())
}

fn new_file() -> Result<i32> {
    let fd = kernel::new_file()?;
    match kernel::resize(fd, size_of::<Header>()) {
        Ok(_) => Ok(fd),
        Err(errno) => {
            kernel::close(fd);
            Err(errno)
        }
    }
}

fn leaf_pointer(index: usize) -> &'static AtomicPtr<Leaf> {
    // SAFETY: the array is mapped before the first word is looked for, and stays; the index is masked.
    unsafe { &*(LEAF_AT.load(Ordering::Relaxed) as *const AtomicPtr<Leaf>).add(index & (LEAVES - 1)) }
}

fn leaf(index: usize) -> Option<*mut Leaf> {
    let leaf = leaf_pointer(index).load(Ordering::Acquire);
    (!leaf.is_null()).then_some(leaf)
}

/// 64 of the bits that say which leaves there are.
fn made(index: usize) -> &'static AtomicU64 {
    let at = LEAF_AT.load(Ordering::Relaxed) + MADE_AT;
    // SAFETY: the bits are mapped before the first word is looked for, and stay; the index is masked.
    unsafe { &*(at as *const AtomicU64).add((index & (LEAVES - 1)) / 64) }
}

/// The first leaf from this one on; LEAVES: there is none.
fn next_leaf(from: usize) -> usize {
    let mut index = from;
    while index < LEAVES {
        let rest = made(index).load(Ordering::Acquire) >> (index % 64);
        if rest != 0 {
            return index + rest.trailing_zeros() as usize;
        }
        index = (index / 64 + 1) * 64;
    }
    LEAVES
}

/// This address if its GiB has a leaf, else where the next one begins that has.
fn skip_to_leaf(at: usize) -> usize {
    let index = at >> LEAF_BITS;
    let next = next_leaf(index);
    if next == index { at } else { next << LEAF_BITS }
}

fn each_leaf(mut tell: impl FnMut(usize, *mut Leaf) -> Result<()>) -> Result<()> {
    let mut index = next_leaf(0);
    while index < LEAVES {
        if let Some(leaf) = leaf(index) {
            tell(index, leaf)?;
        }
        index = next_leaf(index + 1);
    }
    Ok(())
}

fn atomic(word: *mut u64) -> &'static AtomicU64 {
    // SAFETY: words lie in mappings that stay, aligned, and all sides access them as atomics.
    unsafe { AtomicU64::from_ptr(word) }
}

fn word_of(leaf: *mut Leaf, addr: usize) -> &'static AtomicU64 {
    let index = addr >> PAGE_BITS & (LEAF_WORDS - 1);
    // SAFETY: the index is within the leaf.
    atomic(unsafe { (&raw mut (*leaf).words).cast::<u64>().add(index) })
}

fn group_of(leaf: *mut Leaf, addr: usize) -> (&'static AtomicU64, u64) {
    let group = (addr >> PAGE_BITS & (LEAF_WORDS - 1)) / GROUP_WORDS;
    // SAFETY: the index is within the leaf.
    let bits = atomic(unsafe { (&raw mut (*leaf).groups).cast::<u64>().add(group / 64) });
    (bits, 1 << (group % 64))
}

#[derive(Clone, Copy)]
enum Note {
    Registered,
    WasRegistered,
}

/// The bits of a note, of 64 groups, and that of the group at an address.
fn note_of(leaf: *mut Leaf, addr: usize, note: Note) -> (&'static AtomicU64, u64) {
    let group = (addr >> PAGE_BITS & (LEAF_WORDS - 1)) / GROUP_WORDS;
    // SAFETY: only addresses are taken; the index is within the arrays.
    let bits = unsafe {
        let list = match note {
            Note::Registered => (&raw mut (*leaf).registered).cast::<u64>(),
            Note::WasRegistered => (&raw mut (*leaf).was_registered).cast::<u64>(),
        };
        atomic(list.add(group / 64))
    };
    (bits, 1 << (group % 64))
}

fn has_note(addr: usize, note: Note) -> bool {
    addr < TOP
        && leaf(addr >> LEAF_BITS).is_some_and(|leaf| {
            let (bits, bit) = note_of(leaf, addr, note);
            bits.load(Ordering::SeqCst) & bit != 0
        })
}

/// Is all plain memory in the 2 MiB at an address registered, for sure?
pub fn is_registered(addr: usize) -> bool {
    has_note(addr, Note::Registered)
}

/// May some of it be?
pub fn was_registered(addr: usize) -> bool {
    has_note(addr, Note::WasRegistered)
}

/// All of it is. Some word of it has been obtained.
pub fn note_registered(addr: usize) {
    if let Some(leaf) = leaf(addr >> LEAF_BITS) {
        let (bits, bit) = note_of(leaf, addr, Note::Registered);
        bits.fetch_or(bit, Ordering::SeqCst);
    }
}

/// Something in [from, to) is. If nothing was ever missing there is no leaf yet; it is made.
pub fn note_was_registered(from: usize, to: usize) {
    let mut at = from;
    while at < to {
        if obtain(at).is_err() {
            kernel::end("cannot note what is registered: no memory");
        }
        if let Some(leaf) = leaf(at >> LEAF_BITS) {
            let (bits, bit) = note_of(leaf, at, Note::WasRegistered);
            bits.fetch_or(bit, Ordering::SeqCst);
        }
        at = (at / GROUP_BYTES + 1) * GROUP_BYTES;
    }
}

/// Something is mapped anew in [from, to), or no more.
pub fn forget_registered(from: usize, to: usize) {
    let (mut at, to) = (skip_to_leaf(from), to.min(TOP));
    while at < to {
        if let Some(leaf) = leaf(at >> LEAF_BITS) {
            let (bits, bit) = note_of(leaf, at, Note::Registered);
            bits.fetch_and(!bit, Ordering::SeqCst);
        }
        at = skip_to_leaf((at / GROUP_BYTES + 1) * GROUP_BYTES);
    }
}

/// The first group from an address on of which something may be registered.
pub fn next_was_registered(from: usize) -> Option<usize> {
    let mut at = skip_to_leaf(from & !(GROUP_BYTES - 1));
    while at < TOP {
        if was_registered(at) {
            return Some(at);
        }
        at = skip_to_leaf(at + GROUP_BYTES);
    }
    None
}

/// The word of a page. None: it is NONE, and was never anything else.
pub fn find(addr: usize) -> Option<&'static AtomicU64> {
    if addr >= TOP {
        return None;
    }
    leaf(addr >> LEAF_BITS).map(|leaf| word_of(leaf, addr))
}

pub fn state_of(addr: usize) -> u64 {
    find(addr).map_or(NONE, |word| load(word).state())
}

pub fn load(word: &AtomicU64) -> Word {
    Word(word.load(Ordering::SeqCst))
}

/// True: the word was `from`, and is `to`.
pub fn turn(word: &AtomicU64, from: Word, to: Word) -> bool {
    if !holds(Rule::OneOwner) {
        let is_same = load(word) == from;
        if is_same {
            word.store(to.0, Ordering::SeqCst);
        }
        return is_same;
    }
    word.compare_exchange(from.0, to.0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

/// The word of a page, which may become something else than NONE.
pub fn obtain(addr: usize) -> Result<&'static AtomicU64> {
    let index = addr >> LEAF_BITS & (LEAVES - 1);
    let leaf = match leaf(index) {
        Some(leaf) => leaf,
        None => make_leaf(index)?,
    };
    let (bits, bit) = group_of(leaf, addr);
    if bits.load(Ordering::Relaxed) & bit == 0 {
        bits.fetch_or(bit, Ordering::SeqCst);
    }
    Ok(word_of(leaf, addr))
}

fn make_leaf(index: usize) -> Result<*mut Leaf> {
    while MAKING.swap(1, Ordering::SeqCst) != 0 {
        wait::sleep(&MAKING, 1);
    }
    let made = match leaf(index) {
        Some(leaf) => Ok(leaf),
        None => map_new_leaf(index),
    };
    MAKING.store(0, Ordering::SeqCst);
    wait::wake_all(&MAKING);
    made
}

fn map_new_leaf(index: usize) -> Result<*mut Leaf> {
    let header = HEADER.load(Ordering::Acquire);
    let fd = kernel::DESCRIPTORS.words.load(Ordering::Relaxed);
    // SAFETY: the header is mapped; leaves are made one at a time.
    let number = unsafe { (&raw const (*header).leaves).read_volatile() } + 1;
    let offset = leaf_offset(number);
    kernel::resize(fd, offset + size_of::<Leaf>())?;
    let new =
        kernel::map_apart(fd, size_of::<Leaf>(), offset, place_of(header as usize, number))? as *mut Leaf;
    // SAFETY: as above; the index is below LEAVES.
    unsafe {
        (&raw mut (*header).leaf_of).cast::<u32>().add(index).write_volatile(number);
        (&raw mut (*header).leaves).write_volatile(number);
    }
    // First: whoever has found the leaf may have written to it, and that is not to be overlooked.
    made(index).fetch_or(1 << (index % 64), Ordering::SeqCst);
    leaf_pointer(index).store(new, Ordering::Release);
    Ok(new)
}

/// Where a leaf is to lie: far from where the kernel puts mappings. A program with one thread may unmap a
/// place, and map it again by its address as if nobody else could have taken it.
///
/// The header's own place, which is drawn by the kernel, says where in a TiB that sanitizers leave alone
/// (they have ranges up to 0x6400_0000_0000, and from 0x7000_0000_0000 on).
fn place_of(header: usize, number: u32) -> usize {
    const APART: usize = 0x6600_0000_0000;
    const WITHIN: usize = (1 << 40) - 1;
    APART + (header & WITHIN & !(PAGE - 1)) + number as usize * size_of::<Leaf>()
}

/// The first page in [from, end) whose word is not NONE.
pub fn next(from: usize, end: usize) -> Option<(usize, &'static AtomicU64)> {
    let (mut at, end) = (from & !(PAGE - 1), end.min(TOP));
    while at < end {
        let Some(leaf) = leaf(at >> LEAF_BITS) else {
            // Past it: it may just be being made. (Each call comes here with what it uses: most of that is
            // within one GiB, and to look for the next leaf takes longer than the call.)
            let past = ((at >> LEAF_BITS) + 1) << LEAF_BITS;
            at = if past < end { skip_to_leaf(past) } else { end };
            continue;
        };
        let (bits, bit) = group_of(leaf, at);
        if bits.load(Ordering::SeqCst) & bit == 0 {
            at = (at / GROUP_BYTES + 1) * GROUP_BYTES;
            continue;
        }
        let group_end = end.min((at / GROUP_BYTES + 1) * GROUP_BYTES);
        while at < group_end {
            let word = word_of(leaf, at);
            if load(word).state() != NONE {
                return Some((at, word));
            }
            at += PAGE;
        }
    }
    None
}

/// Ends what the owner of an EVICTING or FILLING page did with it.
pub fn finish(word: &AtomicU64, to: Word) {
    let before = Word(word.swap(to.0, Ordering::SeqCst));
    if before.is_waited_for() && holds(Rule::WakeForWord) {
        wait::wake_all(low_half(word));
    }
}

/// Sleeps until another one has finished with a page that he owns; may return early.
pub fn wait_for(word: &AtomicU64, seen: Word) {
    let waited = seen.waited_for();
    if seen == waited || turn(word, seen, waited) {
        wait::sleep(low_half(word), waited.0 as u32);
    }
}

fn low_half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: the lower half of a word, which comes first, and holds all but the slot.
    unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
}

/// A copy of the table, in a file of its own, that another process will have. Only while nobody changes
/// words.
pub fn copy() -> Result<i32> {
    let fd = new_file()?;
    match copy_into(fd) {
        Ok(()) => Ok(fd),
        Err(errno) => {
            kernel::close(fd);
            Err(errno)
        }
    }
}

fn copy_into(fd: i32) -> Result<()> {
    let header = HEADER.load(Ordering::Acquire);
    let write = |from: usize, len: usize, offset: usize| match kernel::write_at(fd, from, len, offset) {
        true => Ok(()),
        false => Err(crate::machine::sys::EIO),
    };
    // SAFETY: the header is mapped, and nobody makes leaves.
    let leaves = unsafe { (&raw const (*header).leaves).read_volatile() };
    kernel::resize(fd, leaf_offset(leaves + 1))?;
    // Only the pages of the header, half a MiB, that hold something.
    write(header as usize, offset_of!(Header, leaf_of), 0)?;
    each_leaf(|index, leaf| {
        // SAFETY: the index is below LEAVES.
        let place = unsafe { (&raw const (*header).leaf_of).cast::<u32>().add(index) };
        let page = (place as usize - header as usize) & !(PAGE - 1);
        write(header as usize + page, PAGE, page)?;
        // SAFETY: as above.
        let offset = leaf_offset(unsafe { place.read_volatile() });
        write(leaf as usize, PAGE, offset)?;
        for group in 0..LEAF_GROUPS {
            let start = (index << LEAF_BITS) + group * GROUP_BYTES;
            let (bits, bit) = group_of(leaf, start);
            if bits.load(Ordering::SeqCst) & bit != 0 {
                let words = word_of(leaf, start).as_ptr() as usize;
                write(words, PAGE, offset + PAGE + group * PAGE)?;
            }
        }
        Ok(())
    })
}

/// In the child of a fork: from now on the words are those of this file, at the same addresses.
pub fn adopt(fd: i32) -> Result<()> {
    let header = HEADER.load(Ordering::Acquire);
    kernel::map_file(fd, header as usize, size_of::<Header>(), 0)?;
    each_leaf(|index, leaf| {
        // SAFETY: the index is below LEAVES.
        let number = unsafe { (&raw const (*header).leaf_of).cast::<u32>().add(index).read_volatile() };
        kernel::map_file(fd, leaf as usize, size_of::<Leaf>(), leaf_offset(number)).map(|_| ())
    })?;
    let old = kernel::DESCRIPTORS.words.swap(fd, Ordering::Relaxed);
    kernel::close(old);
    MAKING.store(0, Ordering::Relaxed);
    Ok(())
}
