//! Questions and requests of `pages/` to the kernel: protections, guard markers, the process's own memory as
//! a file, and which mapping is where.
//!
//! Some descriptors are kept open for as long as the process lives: /proc/self/mem, which writes into memory
//! that has no protection at all; /proc/self/maps and pagemap; the file with the words; a supervisor's bell
//! and pool.
//! They are opened high, and the program cannot close them (`descriptors.rs`).

use crate::common::sync::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use core::ffi::CStr;
use core::mem::size_of;

use super::maps_text::{Line, is_plain_name};
use crate::machine::gadget;
use crate::machine::sys::{self, PAGE, Result, nr};
use crate::thread::wait;

pub const READ_WRITE: usize = sys::PROT_READ | sys::PROT_WRITE;
/// Can it be read and written? It may be executed too.
pub const fn is_writable(prot: usize) -> bool {
    prot & READ_WRITE == READ_WRITE
}

const MADV_POPULATE_READ: usize = 22;

const F_DUPFD_CLOEXEC: usize = 1030;
/// Above what programs use by number, below the usual limit of 1024, or a lower one. At least not one of the
/// first three.
const HIGH: [usize; 4] = [1000, 240, 100, 3];
const O_RDWR: usize = 2;
const MEMFD_CREATE: usize = 319;
const MFD_CLOEXEC: usize = 1;

/// The descriptors, or -1.
pub struct Descriptors {
    pub mem: AtomicI32,
    pub maps: AtomicI32,
    pub pagemap: AtomicI32,
    pub words: AtomicI32,
    /// By which a supervisor is called.
    pub bell: AtomicI32,
    /// Its pool, to be read.
    pub pool: AtomicI32,
    /// By which memory is registered in which pages are away (`holes.rs`).
    pub uffd: AtomicI32,
}

/// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
pub static DESCRIPTORS: Descriptors = Descriptors {
    mem: AtomicI32::new(-1),
    maps: AtomicI32::new(-1),
    pagemap: AtomicI32::new(-1),
    words: AtomicI32::new(-1),
    bell: AtomicI32::new(-1),
    pool: AtomicI32::new(-1),
    uffd: AtomicI32::new(-1),
};

impl Descriptors {
    pub fn all(&self) -> [i32; 7] {
        [&self.mem, &self.maps, &self.pagemap, &self.words, &self.bell, &self.pool, &self.uffd]
            .map(|fd| fd.load(Ordering::Relaxed))
    }
}

/// Moves a descriptor to a high number.
pub fn high(fd: usize) -> usize {
    for from in HIGH {
        // SAFETY: makes a descriptor; no memory involved.
        if let Ok(high) = unsafe { gadget::call(nr::FCNTL, [fd, F_DUPFD_CLOEXEC, from, 0, 0, 0]) } {
            close(fd as i32);
            return high;
        }
    }
    fd
}

/// A descriptor of the same, with a high number.
pub fn high_copy(fd: i32) -> Result<i32> {
    let mut result = Err(sys::EINVAL);
    for from in HIGH {
        // SAFETY: makes a descriptor; no memory involved.
        result = unsafe { gadget::call(nr::FCNTL, [fd as usize, F_DUPFD_CLOEXEC, from, 0, 0, 0]) };
        if result.is_ok() {
            break;
        }
    }
    result.map(|fd| fd as i32)
}

pub fn close(fd: i32) {
    // SAFETY: the descriptor is the agent's.
    let _ = unsafe { gadget::call(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// All of them: the process pages itself no more.
pub fn close_all() {
    for at in [
        &DESCRIPTORS.mem,
        &DESCRIPTORS.maps,
        &DESCRIPTORS.pagemap,
        &DESCRIPTORS.words,
        &DESCRIPTORS.bell,
        &DESCRIPTORS.pool,
        &DESCRIPTORS.uffd,
    ] {
        let fd = at.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            close(fd);
        }
    }
}

const PR_GET_DUMPABLE: usize = 3;
const PR_SET_DUMPABLE: usize = 4;

fn open(path: &CStr, flags: usize) -> Result<usize> {
    let args = [path.as_ptr() as usize, flags | sys::O_CLOEXEC, 0, 0, 0, 0];
    // SAFETY: the kernel reads the path.
    unsafe { gadget::call(nr::OPEN, args) }.map(high)
}

/// Opens what shows this process's own memory: at the start, and in the child of a fork, whose copies show
/// its parent's.
pub fn open_own() -> Result<()> {
    // Nobody else is there yet.
    TEXT_LOCK.store(0, Ordering::Relaxed);
    // SAFETY: no memory involved.
    let prctl = |args: [usize; 2]| unsafe { gadget::call(nr::PRCTL, [args[0], args[1], 0, 0, 0, 0]) };
    // After a setuid the files are root's, unless it is allowed to be looked at.
    let dumpable = prctl([PR_GET_DUMPABLE, 0])?;
    if dumpable != 1 {
        prctl([PR_SET_DUMPABLE, 1])?;
    }
    let opened = open_all();
    if dumpable != 1 {
        prctl([PR_SET_DUMPABLE, 0])?;
    }
    opened
}

fn open_all() -> Result<()> {
    for (at, path, flags) in [
        (&DESCRIPTORS.mem, c"/proc/self/mem", O_RDWR),
        (&DESCRIPTORS.maps, c"/proc/self/maps", 0),
        (&DESCRIPTORS.pagemap, c"/proc/self/pagemap", 0),
    ] {
        // First of all no longer the parent's.
        let old = at.swap(-1, Ordering::Relaxed);
        if old >= 0 {
            close(old);
        }
        at.store(open(path, flags)? as i32, Ordering::Relaxed);
    }
    Ok(())
}

/// A new file for words.
pub fn new_file() -> Result<i32> {
    let args = [c"memspill-words".as_ptr() as usize, MFD_CLOEXEC, 0, 0, 0, 0];
    // SAFETY: the kernel reads the name.
    unsafe { gadget::call(MEMFD_CREATE, args) }.map(|fd| high(fd) as i32)
}

pub fn resize(fd: i32, len: usize) -> Result<usize> {
    // SAFETY: the file is the agent's.
    unsafe { gadget::call(nr::FTRUNCATE, [fd as usize, len, 0, 0, 0, 0]) }
}

/// Writes memory of the agent's to a file.
pub fn write_at(fd: i32, from: usize, len: usize, offset: usize) -> bool {
    // SAFETY: the kernel reads memory of the agent's.
    let ret = unsafe { gadget::call(nr::PWRITE64, [fd as usize, from, len, offset, 0, 0]) };
    ret == Ok(len)
}

/// Maps a part of a file; `at` is 0, or a place that the agent has mapped before.
pub fn map_file(fd: i32, at: usize, len: usize, offset: usize) -> Result<usize> {
    let flags = sys::MAP_SHARED | sys::MAP_NORESERVE | if at == 0 { 0 } else { sys::MAP_FIXED };
    // SAFETY: a new mapping, or one over a mapping of the agent's.
    unsafe { gadget::call(nr::MMAP, [at, len, READ_WRITE, flags, fd as usize, offset]) }
}

/// Maps a part of a file at a place where nothing is, or where the kernel chooses.
pub fn map_apart(fd: i32, len: usize, offset: usize, place: usize) -> Result<usize> {
    let flags = sys::MAP_SHARED | sys::MAP_NORESERVE | sys::MAP_FIXED_NOREPLACE;
    let args = [place, len, READ_WRITE, flags, fd as usize, offset];
    // SAFETY: a new mapping, over none.
    unsafe { gadget::call(nr::MMAP, args) }.or_else(|_| map_file(fd, 0, len, offset))
}

/// Maps a part of a file to be read only. Neither a child of a fork has it, nor a core, which would fill all
/// that is empty there.
pub fn map_to_read(fd: i32, len: usize, offset: usize) -> Result<usize> {
    let flags = sys::MAP_SHARED | sys::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { gadget::call(nr::MMAP, [0, len, sys::PROT_READ, flags, fd as usize, offset]) }?;
    for advice in [sys::MADV_DONTFORK, sys::MADV_DONTDUMP] {
        // SAFETY: changes nothing that is there.
        if let Err(errno) = unsafe { gadget::call(nr::MADVISE, [at, len, advice, 0, 0, 0]) } {
            unmap(at, len);
            return Err(errno);
        }
    }
    // A huge page would fill what is empty in the file. A kernel without them refuses the advice.
    // SAFETY: as above.
    let _ = unsafe { gadget::call(nr::MADVISE, [at, len, sys::MADV_NOHUGEPAGE, 0, 0, 0]) };
    Ok(at)
}

/// Unmaps what is the agent's own.
pub fn unmap(at: usize, len: usize) {
    // SAFETY: nobody uses it any more.
    let _ = unsafe { gadget::call(nr::MUNMAP, [at, len, 0, 0, 0, 0]) };
}

pub const RLIMIT_AS: u32 = 9;

/// May the process have no more than so many addresses?
pub fn addresses_are_limited() -> bool {
    const PRLIMIT64: usize = 302;
    let mut limits = [0u64; 2];
    // SAFETY: the kernel writes two words.
    let result =
        unsafe { gadget::call(PRLIMIT64, [0, RLIMIT_AS as usize, 0, (&raw mut limits) as usize, 0, 0]) };
    result.is_err() || limits[0] != u64::MAX
}

/// How much the process has mapped, as the kernel counts it. None: /proc does not say.
pub fn mapped_bytes() -> Option<usize> {
    let args = [c"/proc/self/statm".as_ptr() as usize, sys::O_CLOEXEC, 0, 0, 0, 0];
    let mut text = [0u8; 64];
    // SAFETY: the kernel reads the path, and writes no more than there is room for.
    let len = unsafe {
        let file = gadget::call(nr::OPEN, args).ok()?;
        let len = gadget::call(nr::READ, [file, text.as_mut_ptr() as usize, text.len(), 0, 0, 0]);
        close(file as i32);
        len.ok()?
    };
    let end = text.iter().take(len).position(|byte| *byte == b' ')?;
    sys::number(text.get(..end)?).map(|pages| pages * PAGE)
}

/// Private memory of the agent's own.
pub fn map_private(len: usize) -> Result<usize> {
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    unsafe { gadget::call(nr::MMAP, [0, len, READ_WRITE, flags, usize::MAX, 0]) }
}

/// # Safety
/// Whoever touches the pages meanwhile must be one who waits for them.
pub unsafe fn protect(at: usize, len: usize, prot: usize) -> Result<usize> {
    // SAFETY: the caller's promise.
    unsafe { gadget::call(nr::MPROTECT, [at, len, prot, 0, 0, 0]) }
}

/// Takes pages out and puts markers in their places.
///
/// # Safety
/// Their bytes are kept elsewhere, and nobody can touch them meanwhile.
pub unsafe fn install_guards(at: usize, len: usize) -> Result<usize> {
    // SAFETY: the caller's promise.
    unsafe { gadget::call(nr::MADVISE, [at, len, sys::MADV_GUARD_INSTALL, 0, 0, 0]) }
}

/// Empties memory of the agent's own, though a program may have locked all that there is (mlockall).
///
/// # Safety
/// Nobody needs what is there.
pub unsafe fn empty_own(at: usize, len: usize) -> Result<usize> {
    // SAFETY: the caller's promise.
    unsafe { gadget::call(nr::MADVISE, [at, len, sys::MADV_DONTNEED_LOCKED, 0, 0, 0]) }
}

/// Takes markers away; zeros are under them.
///
/// # Safety
/// Nobody may touch the pages before their bytes are there.
pub unsafe fn remove_guards(at: usize, len: usize) -> Result<usize> {
    // SAFETY: the caller's promise.
    unsafe { gadget::call(nr::MADVISE, [at, len, sys::MADV_GUARD_REMOVE, 0, 0, 0]) }
}

/// Whether the page can be read, or written, by the kernel's own word: it is as if it had been.
pub fn populate(at: usize, writes: bool) -> bool {
    populate_all(at, PAGE, writes)
}

/// The same for all of a range; else a part of it may be there.
pub fn populate_all(at: usize, len: usize, writes: bool) -> bool {
    let advice = if writes { sys::MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
    // SAFETY: a fault's work, on pages that may be accessed so.
    unsafe { gadget::call(nr::MADVISE, [at, len, advice, 0, 0, 0]) }.is_ok()
}

/// Writes bytes into pages of this process, whatever their protection.
///
/// # Safety
/// The pages are in the hands of the caller, and `from` is good for as many bytes.
pub unsafe fn write_through(at: usize, from: usize, len: usize) -> bool {
    let fd = DESCRIPTORS.mem.load(Ordering::Relaxed) as usize;
    // SAFETY: the caller's promise.
    unsafe { gadget::call(nr::PWRITE64, [fd, from, len, at, 0, 0]) == Ok(len) }
}

/// Reads pages of this process, whatever is in their place: how many bytes could be read.
///
/// # Safety
/// `to` has room for as many bytes.
pub unsafe fn read_through(at: usize, to: usize, len: usize) -> usize {
    let fd = DESCRIPTORS.mem.load(Ordering::Relaxed) as usize;
    // SAFETY: the caller's promise.
    unsafe { gadget::call(nr::PREAD64, [fd, to, len, at, 0, 0]) }.unwrap_or(0)
}

/// Reads a file: how many bytes.
///
/// # Safety
/// `to` has room for as many bytes.
pub unsafe fn read_at(fd: i32, to: usize, len: usize, offset: u64) -> usize {
    // SAFETY: the caller's promise.
    unsafe { gadget::call(nr::PREAD64, [fd as usize, to, len, offset as usize, 0, 0]) }.unwrap_or(0)
}

#[repr(C)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    access: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_len: u32,
    build_id_len: u32,
    name: u64,
    build_id: u64,
}
pub const PROCMAP_QUERY: usize = 0xc068_6611;
const _: () = assert!(size_of::<Query>() == 0x68);
const SHARED: u64 = 8;
const COVERING_OR_NEXT: u64 = 16;
const NAME_MAX: usize = 16;

pub use super::maps_text::Mapping;

/// The mapping at an address, or the next one above it. With all signals blocked.
pub fn mapping_from(at: usize) -> Option<Mapping> {
    match HAS_QUERY.load(Ordering::Relaxed) {
        true => query_from(at),
        false => read_from(at),
    }
}

fn query_from(at: usize) -> Option<Mapping> {
    let mut name = [0u8; NAME_MAX];
    let mut query = Query {
        size: size_of::<Query>() as u64,
        flags: COVERING_OR_NEXT,
        addr: at as u64,
        start: 0,
        end: 0,
        access: 0,
        page_size: 0,
        offset: 0,
        inode: 0,
        device: [0; 2],
        name_len: NAME_MAX as u32,
        build_id_len: 0,
        name: name.as_mut_ptr() as u64,
        build_id: 0,
    };
    match ask(&mut query) {
        Ok(_) if query.name_len == 0 => name = [0; NAME_MAX],
        Ok(_) => {}
        // A file's, or one that a program gave: "[anon:...]".
        Err(ENAMETOOLONG) => {
            name = *b"[anon:\0\0\0\0\0\0\0\0\0\0";
            (query.name, query.name_len) = (0, 0);
            ask(&mut query).ok()?;
        }
        // Linux 6.11 has it.
        Err(ENOTTY) => {
            HAS_QUERY.store(false, Ordering::Relaxed);
            return read_from(at);
        }
        Err(_) => return None,
    }
    Some(Mapping {
        start: query.start as usize,
        end: query.end as usize,
        prot: (query.access & 7) as usize,
        is_plain: query.access & SHARED == 0
            && query.inode == 0
            && query.device == [0; 2]
            && query.page_size == PAGE as u64
            && is_plain_name(&name),
    })
}

const ENAMETOOLONG: i32 = 36;
const ENOTTY: i32 = 25;

/// Does this kernel answer PROCMAP_QUERY?
#[unsafe(link_section = ".data.hot")]
static HAS_QUERY: AtomicBool = AtomicBool::new(true);

/// 1: a thread reads the text. Its place in the file is one for all threads, and the kernel goes on from the
/// mapping that it has told last only if the next read asks for just what follows.
#[unsafe(link_section = ".data.hot")]
static TEXT_LOCK: AtomicU32 = AtomicU32::new(0);

/// The same, by the text.
fn read_from(at: usize) -> Option<Mapping> {
    while TEXT_LOCK.swap(1, Ordering::Acquire) != 0 {
        wait::sleep_for(&TEXT_LOCK, 1, 1);
    }
    let found = read_text_from(at);
    TEXT_LOCK.store(0, Ordering::Release);
    wait::wake_all(&TEXT_LOCK);
    found
}

fn read_text_from(at: usize) -> Option<Mapping> {
    let fd = DESCRIPTORS.maps.load(Ordering::Relaxed);
    let (mut text, mut line, mut offset) = ([0u8; TEXT_BYTES], Line::new(), 0);
    loop {
        // SAFETY: the kernel writes no more than there is room for.
        let len = unsafe { read_at(fd, text.as_mut_ptr() as usize, text.len(), offset) };
        let read = text.get(..len).filter(|read| !read.is_empty())?;
        for byte in read {
            if let Some(mapping) = line.read(*byte)
                && mapping.end > at
            {
                // The kernel's own page, which is no mapping of the process's, has the last addresses.
                return Some(mapping).filter(|mapping| mapping.start < isize::MAX as usize);
            }
        }
        offset += len as u64;
    }
}

const TEXT_BYTES: usize = 1024;

fn ask(query: &mut Query) -> Result<usize> {
    let fd = DESCRIPTORS.maps.load(Ordering::Relaxed) as usize;
    // SAFETY: the kernel reads and writes the struct, and the name where there is room for one.
    unsafe { gadget::call(nr::IOCTL, [fd, PROCMAP_QUERY, query as *mut Query as usize, 0, 0, 0]) }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}
pub const PAGEMAP_SCAN: usize = 0xc060_6610;
const _: () = assert!(size_of::<Scan>() == 0x60);
/// Something is there, or was: a page, an entry of the kernel's swap, a marker.
const IS_OCCUPIED: u64 = IS_PRESENT | 1 << 4;
const IS_PRESENT: u64 = 1 << 3;
const REGIONS: usize = 32;

/// Ranges of [from, to) in which nothing is in the place of any page, in order: what was never touched, or
/// has been emptied.
pub fn each_untouched(from: usize, to: usize, mut found: impl FnMut(usize, usize)) {
    let mut at = from;
    while at < to {
        let next = untouched_from(at, to, &mut found);
        if next <= at {
            end("cannot read which of its pages are there");
        }
        at = next;
    }
}

/// The same of the first part: where it ends.
fn untouched_from(from: usize, to: usize, found: &mut impl FnMut(usize, usize)) -> usize {
    let Some(occupied) = scan(from, to, IS_OCCUPIED) else { return from };
    let mut at = from;
    for (start, end) in occupied.ranges() {
        if at < start {
            found(at, start);
        }
        at = end;
    }
    if at < occupied.end {
        found(at, occupied.end);
    }
    occupied.end
}

/// Whether the first part of [from, to) is there, and where that part ends. If that cannot be asked it is
/// nothing.
pub fn present(from: usize, to: usize) -> Present {
    scan(from, to, IS_PRESENT).filter(|present| present.end > from).unwrap_or(Present::none(to))
}

/// Ranges of pages, in order, of what lies below `end`.
pub struct Present {
    regions: [Region; REGIONS],
    count: usize,
    pub end: usize,
}

impl Present {
    pub const fn none(end: usize) -> Present {
        Present { regions: [Region { start: 0, end: 0, categories: 0 }; REGIONS], count: 0, end }
    }

    pub fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.regions.iter().take(self.count).map(|region| (region.start as usize, region.end as usize))
    }
}

/// Pages of [from, to) of one of these categories. None: the kernel does not say.
fn scan(from: usize, to: usize, categories: u64) -> Option<Present> {
    let mut found = Present::none(to);
    let mut scan = Scan {
        size: size_of::<Scan>() as u64,
        flags: 0,
        start: from as u64,
        end: to as u64,
        walk_end: 0,
        regions: found.regions.as_mut_ptr() as u64,
        regions_len: REGIONS as u64,
        max_pages: 0,
        inverted: 0,
        all_of: 0,
        any_of: categories,
        returned: categories,
    };
    let fd = DESCRIPTORS.pagemap.load(Ordering::Relaxed) as usize;
    // SAFETY: the kernel reads and writes the struct, and no more regions than there is room for.
    let scanned = unsafe { gadget::call(nr::IOCTL, [fd, PAGEMAP_SCAN, &raw mut scan as usize, 0, 0, 0]) };
    found.count = scanned.ok()?;
    found.end = (scan.walk_end as usize).min(to);
    Some(found)
}

/// Ends the process, whose memory cannot be what it was, with a line on its stderr.
pub fn end(what: &str) -> ! {
    let mut line = [0u8; 160];
    let mut len = 0;
    for text in ["memspill: this process ", what, "\n"] {
        for byte in text.bytes() {
            if let Some(place) = line.get_mut(len) {
                *place = byte;
                len += 1;
            }
        }
    }
    // SAFETY: the kernel reads the line; then nothing of this process runs on.
    unsafe {
        let _ = gadget::call(nr::WRITE, [2, line.as_ptr() as usize, len, 0, 0, 0]);
        let id = gadget::call(nr::GETPID, [0; 6]).unwrap_or(0);
        let _ = gadget::call(nr::KILL, [id, sys::SIGKILL, 0, 0, 0, 0]);
        let _ = gadget::call(nr::EXIT_GROUP, [128 + sys::SIGKILL, 0, 0, 0, 0, 0]);
    }
    sys::die()
}
