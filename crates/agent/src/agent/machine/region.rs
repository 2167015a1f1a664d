//! The memory that the agent owns.
//!
//! ```text
//!  ‖ staging 256 ‖ doorbells 16 ‖ stack 4 | block 1 ‖ control 1 ‖          ‖ ident 1 ‖     (pages; ‖: a gap)
//!  └──────────────── Region: MADV_DONTFORK ────────────────────┘          └─ a reservation of its own
//! ```
//!
//! One reservation without access holds it all. The gaps between the parts keep each of them a mapping of its
//! own that no mapping of the program can ever merge with, and the one below the stack catches an overflow.
//! None of the region is inherited over fork; the ident page is inherited, but empty (MADV_WIPEONFORK).
//!
//! Staging, doorbells and ident are never touched here: their pages must be missing. The stack and the block
//! are touched at once, so that the evictor never faults on them.

use super::sys::{self, Fd, PAGE, Result, nr};
use crate::common::protocol::{Control, DOORBELLS, STAGING_PAGES};
use crate::common::sync::AtomicU32;

const STAGING: usize = 1;
const DOORBELL: usize = STAGING + STAGING_PAGES as usize + 1;
const PRIVATE: usize = DOORBELL + DOORBELLS + 1;
const STACK_PAGES: usize = 4;
const PRIVATE_PAGES: usize = STACK_PAGES + 1;
const CONTROL: usize = PRIVATE + PRIVATE_PAGES + 1;
const TOTAL: usize = CONTROL + 2;

/// What the evictor owns beside its stack, at the top of the private pages. The thread pointer points to it.
#[repr(C)]
pub struct EvictorBlock {
    /// The ABI wants the thread pointer to point to itself; the words after it belong to compilers and C
    /// libraries.
    thread_pointer: usize,
    reserved: [usize; 63],
    pub socket: i32,
    /// -1: there is none (`agent` mode); those of `pages/kernel.rs` are kept instead.
    pub uffd: i32,
    pub staging: usize,
    pub control: *mut Control,
    /// Written by the evictor: its thread id, when it has its name and has closed the copies of the program's
    /// descriptors.
    pub started: AtomicU32,
    /// Written by the joining thread: GO_*.
    pub go: AtomicU32,
    /// The evictor's thread id; the kernel clears it, and wakes, when the thread is gone.
    pub tid: AtomicU32,
}

pub const GO_WAIT: u32 = 0;
pub const GO_RUN: u32 = 1;
pub const GO_EXIT: u32 = 2;

const _: () = assert!(core::mem::size_of::<EvictorBlock>() <= PAGE);

/// The reservation, unmapped on drop.
pub struct Region {
    base: usize,
}

impl Region {
    /// `control` is the descriptor of the page that the supervisor shares.
    pub fn new(control: &Fd) -> Result<Self> {
        let mut region = Self { base: reserve(TOTAL)? };
        if region.crosses_4_gib() {
            // The next one lies beside it, and so does not.
            region = Self { base: reserve(TOTAL)? };
        }
        // SAFETY: all ranges lie in the reservation, which nobody else knows.
        unsafe {
            let whole = TOTAL * PAGE;
            sys::madvise(region.base, whole, sys::MADV_DONTFORK)?;
            // Kernels without huge pages do not know it.
            let _ = sys::madvise(region.base, whole, sys::MADV_NOHUGEPAGE);
            make_accessible(region.staging(), STAGING_PAGES as usize)?;
            make_accessible(region.doorbells(), DOORBELLS)?;
            make_accessible(region.private(), PRIVATE_PAGES)?;
            populate(region.private(), PRIVATE_PAGES);
            let prot = sys::PROT_READ | sys::PROT_WRITE;
            let flags = sys::MAP_SHARED | sys::MAP_FIXED;
            sys::syscall(nr::MMAP, [region.control(), PAGE, prot, flags, control.0 as usize, 0])?;
            sys::madvise(region.control(), PAGE, sys::MADV_DONTFORK)?;
        }
        Ok(region)
    }

    /// The evictor's filter compares addresses in staging by their lower halves.
    fn crosses_4_gib(&self) -> bool {
        (self.staging() >> 32) != ((self.staging() + STAGING_PAGES as usize * PAGE) >> 32)
    }

    pub const BYTES: usize = TOTAL * PAGE;

    pub fn base(&self) -> usize {
        self.base
    }

    pub fn staging(&self) -> usize {
        self.base + STAGING * PAGE
    }

    pub fn doorbells(&self) -> usize {
        self.base + DOORBELL * PAGE
    }

    pub fn private(&self) -> usize {
        self.base + PRIVATE * PAGE
    }

    pub fn private_len(&self) -> usize {
        PRIVATE_PAGES * PAGE
    }

    pub fn control(&self) -> usize {
        self.base + CONTROL * PAGE
    }

    pub fn control_page(&self) -> *mut Control {
        self.control() as *mut Control
    }

    /// The stack ends where the block begins.
    pub fn block(&self) -> *mut EvictorBlock {
        (self.private() + STACK_PAGES * PAGE) as *mut EvictorBlock
    }

    /// Fills in the block for the thread to come.
    pub fn write_block(&self, socket: &Fd, uffd: Option<&Fd>) {
        let block = EvictorBlock {
            thread_pointer: self.block() as usize,
            reserved: [0; 63],
            socket: socket.0,
            uffd: uffd.map_or(-1, |uffd| uffd.0),
            staging: self.staging(),
            control: self.control() as *mut Control,
            started: AtomicU32::new(0),
            go: AtomicU32::new(GO_WAIT),
            // Not 0, which would mean that the thread has ended.
            tid: AtomicU32::new(u32::MAX),
        };
        // SAFETY: the page is ours, large enough, aligned, and no thread uses it yet.
        unsafe { self.block().write(block) };
    }

    /// Keeps the region mapped for as long as the process lives: the evictor uses it from here on.
    pub fn keep_mapped(self) {
        core::mem::forget(self);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the reservation is ours, and whoever drops it says that no evictor runs in it.
        let _ = unsafe { sys::syscall(nr::MUNMAP, [self.base, TOTAL * PAGE, 0, 0, 0, 0]) };
    }
}

/// The page that is missing at first in every child of a fork, whatever happened to it here.
pub fn new_ident() -> Result<usize> {
    let page = reserve(3)? + PAGE;
    // SAFETY: the page lies in a reservation of ours.
    unsafe {
        make_accessible(page, 1)?;
        sys::madvise(page, PAGE, sys::MADV_WIPEONFORK)?;
    }
    Ok(page)
}

/// Gives back what `new_ident` made.
pub fn free_ident(page: usize) {
    // SAFETY: the reservation of `new_ident`, of which nobody knows any more.
    let _ = unsafe { sys::syscall(nr::MUNMAP, [page - PAGE, 3 * PAGE, 0, 0, 0, 0]) };
}

fn reserve(pages: usize) -> Result<usize> {
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nobody.
    unsafe { sys::syscall(nr::MMAP, [0, pages * PAGE, sys::PROT_NONE, flags, usize::MAX, 0]) }
}

/// # Safety
/// The pages lie in a reservation of ours.
unsafe fn make_accessible(addr: usize, pages: usize) -> Result<()> {
    let prot = sys::PROT_READ | sys::PROT_WRITE;
    // SAFETY: the caller's promise.
    unsafe { sys::syscall(nr::MPROTECT, [addr, pages * PAGE, prot, 0, 0, 0]) }.map(|_| ())
}

/// # Safety
/// The pages are writable and ours.
unsafe fn populate(addr: usize, pages: usize) {
    // SAFETY: the caller's promise.
    if unsafe { sys::madvise(addr, pages * PAGE, sys::MADV_POPULATE_WRITE) }.is_err() {
        for page in 0..pages {
            // SAFETY: the caller's promise.
            unsafe { ((addr + page * PAGE) as *mut u64).write_volatile(0) };
        }
    }
}

/// A program header (ELF64).
#[repr(C)]
pub struct Segment {
    pub kind: u32,
    flags: u32,
    offset: usize,
    pub vaddr: usize,
    paddr: usize,
    filesz: usize,
    memsz: usize,
    align: usize,
}

/// The program headers of a library, whether it was relocated or not.
///
/// # Safety
/// `base` is its ELF header, and what that tells of is mapped.
pub unsafe fn segments(base: usize) -> impl Iterator<Item = Segment> {
    const TABLE_AT: usize = 32;
    const COUNT_AT: usize = 56;
    // SAFETY: the caller's promise; the table lies in the same segment.
    let (table, count) = unsafe {
        let offset = ((base + TABLE_AT) as *const usize).read();
        ((base + offset) as *const Segment, ((base + COUNT_AT) as *const u16).read())
    };
    // SAFETY: `index` is within the table.
    (0..usize::from(count)).map(move |index| unsafe { table.add(index).read() })
}

/// The writable part of the agent's own image: [addr, addr + len), whole pages. From its program headers,
/// because no symbol marks the beginning of `.data`.
pub fn image() -> (usize, usize) {
    const PT_LOAD: u32 = 1;
    const PF_W: u32 = 2;
    let base = &raw const __ehdr_start;
    let (mut low, mut high) = (usize::MAX, 0);
    // SAFETY: this library is all mapped.
    for segment in unsafe { segments(base as usize) } {
        if segment.kind == PT_LOAD && segment.flags & PF_W != 0 {
            // The image is linked at 0, so a virtual address is an offset from the header.
            let start = base as usize + segment.vaddr;
            low = low.min(start & !(PAGE - 1));
            high = high.max((start + segment.memsz).next_multiple_of(PAGE));
        }
    }
    (low, high.saturating_sub(low))
}

/// Does the address lie in the agent's image?
pub fn is_own_code(at: usize) -> bool {
    let (start, end) = own_code();
    (start..end).contains(&at)
}

/// The agent's image, of which the writable part is the last: from, to.
pub fn own_code() -> (usize, usize) {
    let (start, len) = image();
    (&raw const __ehdr_start as usize, start + len)
}

unsafe extern "C" {
    // Provided by the linker: the ELF header, at the start of the first segment.
    static __ehdr_start: u8;
}
