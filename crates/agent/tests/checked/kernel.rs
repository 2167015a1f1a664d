//! The kernel's part, for the agent's own code under shuttle: its calls come here (`machine/gadget.rs` and
//! `sys.rs`), and so do its waiting and waking.
//!
//! ```text
//!   PROGRAM, PAGES   what the program has mapped; nothing is at these addresses but what is kept here
//!   else             memory of the agent's own, which is really there
//! ```
//!
//! Each call is a step, at which another thread may come; one on several pages is as many, where the kernel
//! goes page by page. What is not here is refused: the test fails at it.

use crate::machine::sys::{
    self, EAGAIN, EBUSY, EFAULT, EINVAL, ENOENT, ENOMEM, PAGE, PROT_READ, PROT_WRITE, Result, nr,
};
use crate::machine::uffd::{
    CopyArg, MoveArg, ProtectArg, RangeArg, UFFDIO_API, UFFDIO_COPY, UFFDIO_MOVE, UFFDIO_REGISTER,
    UFFDIO_UNREGISTER, UFFDIO_WRITEPROTECT, UFFDIO_ZEROPAGE, ZeroArg,
};
use crate::pages::kernel::{PAGEMAP_SCAN, PROCMAP_QUERY};
use crate::thread::block::Block;
use memspill_common::rules::{Rule, holds};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread::{self, ThreadId};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, PoisonError};

pub const PROGRAM: usize = 1 << 36;
pub const PAGES: usize = 3;
const PROGRAM_END: usize = PROGRAM + PAGES * PAGE;
/// Nothing is mapped between the program's pages and the agent's own.
const OWN: usize = 1 << 40;
pub const READ_WRITE: usize = PROT_READ | PROT_WRITE;

const EEXIST: i32 = 17;
const ENOTTY: i32 = 25;

/// Descriptors.
const MEM: i32 = 900;
const MAPS: i32 = 901;
const PAGEMAP: i32 = 902;
const WORDS: i32 = 903;
const UFFD: i32 = 904;
pub const CONTROL: i32 = 905;
pub const POOL: i32 = 906;

/// A byte for each thread that counts, at the beginning of a page.
pub type Bytes = [u8; 2];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Nothing,
    Marker,
    There,
}

#[derive(Clone, Copy)]
struct Page {
    prot: usize,
    content: Content,
    is_registered: bool,
    /// A write to it is a fault of its userfaultfd's.
    is_protected: bool,
    bytes: [u8; PAGE],
}

const NEW: Page = Page {
    prot: READ_WRITE,
    content: Content::Nothing,
    is_registered: false,
    is_protected: false,
    bytes: [0; PAGE],
};

impl Page {
    fn refuses(&self, prot: usize) -> bool {
        self.prot & prot != prot
    }

    fn fill(&mut self, bytes: &[u8]) {
        self.content = Content::There;
        self.is_protected = false;
        self.bytes.copy_from_slice(bytes);
    }

    fn empty(&mut self) {
        self.content = Content::Nothing;
        self.is_protected = false;
        self.bytes = [0; PAGE];
    }
}

#[derive(Default)]
struct Sleepers {
    queue: Mutex<()>,
    woken: Condvar,
}

#[derive(Default)]
pub struct Kernel {
    pages: Vec<Page>,
    /// Memory of the agent's own, and which of its pages were moved or copied to.
    own: Vec<(usize, Layout)>,
    staged: HashSet<usize>,
    /// By address.
    sleepers: HashMap<usize, Arc<Sleepers>>,
    blocks: Vec<(ThreadId, usize)>,
    line: String,
    /// GUARD_INSTALL fails sometimes, as on locked memory.
    pub guards_fail: bool,
    /// What the descriptors that the supervisor has sent lead to.
    pub control: usize,
    pub pool: usize,
    /// Called at each ring of the bell.
    pub bell: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Called with what the evictor sends.
    pub socket: Option<Arc<dyn Fn(u32) + Send + Sync>>,
}

static KERNEL: std::sync::Mutex<Option<Kernel>> = std::sync::Mutex::new(None);

/// What is done here no other thread sees half of.
pub fn with<T>(step: impl FnOnce(&mut Kernel) -> T) -> T {
    step(KERNEL.lock().unwrap_or_else(PoisonError::into_inner).as_mut().expect("the kernel runs"))
}

/// A new kernel, with a process that has new pages.
pub fn begin() {
    let mut kernel = Kernel::default();
    kernel.pages = vec![NEW; PAGES];
    drop(KERNEL.lock().unwrap_or_else(PoisonError::into_inner).replace(kernel));
}

impl Drop for Kernel {
    fn drop(&mut self) {
        for (at, layout) in self.own.drain(..) {
            // SAFETY: allocated with this layout, and no execution goes on.
            unsafe { dealloc(at as *mut u8, layout) };
        }
    }
}

impl Kernel {
    fn map_own(&mut self, len: usize) -> Result<usize> {
        // As if addresses were limited: so the blocks of threads are few.
        const MOST: usize = 16 << 20;
        let layout = Layout::from_size_align(len, PAGE).expect("a length");
        if len > MOST {
            return Err(ENOMEM);
        }
        // SAFETY: the length is not 0.
        let at = unsafe { alloc_zeroed(layout) } as usize;
        self.own.push((at, layout));
        Ok(at)
    }

    fn page(&mut self, at: usize) -> &mut Page {
        &mut self.pages[(at - PROGRAM) / PAGE]
    }

    fn fill(&mut self, at: usize, from: usize) {
        let bytes = own(from, PAGE);
        if is_program(at) {
            self.page(at).fill(bytes);
        } else {
            own_mut(at, PAGE).copy_from_slice(bytes);
            self.staged.insert(at);
        }
    }

    fn is_there(&mut self, at: usize) -> bool {
        if is_program(at) { self.page(at).content == Content::There } else { self.staged.contains(&at) }
    }
}

fn is_program(at: usize) -> bool {
    (PROGRAM..PROGRAM_END).contains(&at)
}

fn own<'a>(at: usize, len: usize) -> &'a [u8] {
    assert!(!is_program(at), "wrong: the agent touches the program's memory");
    // SAFETY: the agent's own memory, which is mapped; no other thread runs meanwhile.
    unsafe { std::slice::from_raw_parts(at as *const u8, len) }
}

fn own_mut<'a>(at: usize, len: usize) -> &'a mut [u8] {
    assert!(!is_program(at), "wrong: the agent touches the program's memory");
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) }
}

/// A struct of the agent's that a call takes.
fn arg<'a, T>(at: usize) -> &'a mut T {
    // SAFETY: the agent gives its address with the call.
    unsafe { &mut *(at as *mut T) }
}

/// Another thread may come.
pub fn step() {
    shuttle::sync::atomic::AtomicBool::new(false).load(std::sync::atomic::Ordering::SeqCst);
}

fn each_page(at: usize, len: usize) -> impl Iterator<Item = usize> {
    (at..at + len).step_by(PAGE).inspect(|_| step())
}

// -- Threads --

/// The calling thread's block is this one.
pub fn set_block(block: *mut Block) {
    with(|kernel| kernel.blocks.push((thread::current().id(), block as usize)));
}

pub fn block() -> *mut Block {
    let own = thread::current().id();
    let find = |kernel: &mut Kernel| kernel.blocks.iter().find(|(id, _)| *id == own).map(|found| found.1);
    with(find).expect("a thread of the program") as *mut Block
}

fn sleepers(at: usize) -> Arc<Sleepers> {
    with(|kernel| kernel.sleepers.entry(at).or_default().clone())
}

/// Sleeps while a word is `seen`.
pub fn sleep(word: usize, seen: u32) {
    let sleepers = sleepers(word);
    let queue = sleepers.queue.lock().unwrap_or_else(PoisonError::into_inner);
    if *arg::<u32>(word) == seen {
        drop(sleepers.woken.wait(queue).unwrap_or_else(PoisonError::into_inner));
    }
}

pub fn wake_all(word: usize) {
    let sleepers = sleepers(word);
    let _queue = sleepers.queue.lock().unwrap_or_else(PoisonError::into_inner);
    sleepers.woken.notify_all();
}

// -- The program's accesses --

/// A signal: its number, its code.
pub type Signal = (usize, i32);

pub fn access<T>(
    page: usize,
    writes: bool,
    access: impl FnOnce(&mut Bytes) -> T,
) -> std::result::Result<T, Signal> {
    const MAPERR: Signal = (sys::SIGSEGV, 1);
    const ACCERR: Signal = (sys::SIGSEGV, 2);
    const ADRERR: Signal = (sys::SIGBUS, 2);
    step();
    with(|kernel| {
        let page = &mut kernel.pages[page];
        match page.content {
            _ if page.refuses(if writes { READ_WRITE } else { PROT_READ }) => Err(ACCERR),
            Content::Marker => Err(MAPERR),
            Content::Nothing if page.is_registered => Err(ADRERR),
            _ if writes && page.is_protected => Err(ADRERR),
            _ => {
                page.content = Content::There;
                Ok(access(page.bytes.first_chunk_mut().expect("a page is larger")))
            }
        }
    })
}

pub fn is_there(page: usize) -> bool {
    with(|kernel| kernel.pages[page].content == Content::There)
}

pub fn is_registered(page: usize) -> bool {
    with(|kernel| kernel.pages[page].is_registered)
}

pub fn prot(page: usize) -> usize {
    with(|kernel| kernel.pages[page].prot)
}

// -- Calls --

pub fn call(number: usize, args: [usize; 6]) -> isize {
    step();
    make(number, args).map_or_else(|errno| -errno as isize, |value| value as isize)
}

fn make(number: usize, args: [usize; 6]) -> Result<usize> {
    const GETTID: usize = 186;
    const ARCH_PRCTL: usize = 158;
    const PRLIMIT64: usize = 302;
    const MEMFD_CREATE: usize = 319;
    const OPEN_PATHS: [(&str, i32); 3] =
        [("/proc/self/mem", MEM), ("/proc/self/maps", MAPS), ("/proc/self/pagemap", PAGEMAP)];
    let [first, second, third, fourth, ..] = args;
    match number {
        nr::FUTEX => futex(first, second, third as u32, fourth),
        nr::MPROTECT if is_program(first) => with(|kernel| {
            (first..first + second).step_by(PAGE).for_each(|at| kernel.page(at).prot = third);
            Ok(0)
        }),
        nr::MADVISE => advise(first, second, third),
        nr::MMAP => map(args),
        nr::MREMAP => with(|kernel| {
            let moved = *kernel.page(first);
            *kernel.page(first) = NEW;
            *kernel.page(args[4]) = Page { is_registered: false, is_protected: false, ..moved };
            Ok(args[4])
        }),
        nr::PREAD64 if first as i32 == MEM => Ok(read_through(second, third, fourth)),
        nr::PREAD64 if first as i32 == POOL => {
            dawdle(Rule::SamePlace);
            dawdle(Rule::StillAllowed);
            let from = with(|kernel| kernel.pool) + crate::pool::offset(fourth);
            own_mut(second, third).copy_from_slice(own(from, third));
            Ok(third)
        }
        nr::PWRITE64 if first as i32 == MEM => Ok(write_through(second, third, fourth)),
        nr::IOCTL => request(first as i32, second, third),
        nr::OPEN => {
            // SAFETY: a path of the agent's.
            let path = unsafe { std::ffi::CStr::from_ptr(first as *const _) }.to_str().expect("ASCII");
            OPEN_PATHS.iter().find(|(name, _)| *name == path).map(|(_, fd)| *fd as usize).ok_or(ENOENT)
        }
        MEMFD_CREATE => Ok(WORDS as usize),
        nr::USERFAULTFD => Ok(UFFD as usize),
        // A copy of a descriptor; PR_GET_DUMPABLE.
        nr::FCNTL => Ok(first),
        nr::PRCTL => Ok(1),
        PRLIMIT64 => Err(EINVAL),
        nr::WRITE if first == 2 => {
            with(|kernel| kernel.line = String::from_utf8_lossy(own(second, third)).into_owned());
            Ok(third)
        }
        nr::WRITE => {
            with(|kernel| kernel.bell.clone()).expect("a bell")();
            Ok(third)
        }
        nr::SENDTO => {
            with(|kernel| kernel.socket.clone()).expect("a socket")(*arg::<u32>(second));
            Ok(third)
        }
        nr::KILL | nr::EXIT_GROUP => panic!("wrong: {}", with(|kernel| kernel.line.clone())),
        nr::SCHED_YIELD => {
            thread::yield_now();
            Ok(0)
        }
        nr::GETPID | GETTID | ARCH_PRCTL | nr::FTRUNCATE | nr::CLOSE | nr::MPROTECT => Ok(0),
        _ => panic!("a call that is not here: {number}"),
    }
}

fn futex(word: usize, operation: usize, value: u32, limit: usize) -> Result<usize> {
    const WAIT: usize = 0;
    match operation {
        // Time passes.
        WAIT if limit != 0 => thread::yield_now(),
        WAIT => sleep(word, value),
        _ => wake_all(word),
    }
    Ok(0)
}

fn map([at, len, prot, flags, fd, offset]: [usize; 6]) -> Result<usize> {
    with(|kernel| match fd as i32 {
        -1 if flags & sys::MAP_FIXED != 0 && is_program(at) => {
            (at..at + len).step_by(PAGE).for_each(|at| *kernel.page(at) = Page { prot, ..NEW });
            Ok(at)
        }
        CONTROL => Ok(kernel.control),
        POOL if offset == PAGE => Ok(kernel.pool + offset),
        POOL => Err(ENOMEM),
        // For the blocks of threads, which stay.
        _ if prot == 0 => kernel.map_own(len).inspect(|_| _ = kernel.own.pop()),
        _ => kernel.map_own(len),
    })
}

fn advise(at: usize, len: usize, advice: usize) -> Result<usize> {
    match advice {
        sys::MADV_DONTNEED | sys::MADV_DONTNEED_LOCKED | sys::MADV_FREE => {
            for at in each_page(at, len) {
                with(|kernel| match is_program(at) {
                    true if kernel.page(at).content == Content::Marker => {}
                    true => kernel.page(at).empty(),
                    false => {
                        kernel.staged.remove(&at);
                        own_mut(at, PAGE).fill(0);
                    }
                });
            }
        }
        sys::MADV_GUARD_INSTALL => {
            if with(|kernel| kernel.guards_fail) && thread_rng().gen_bool(0.5) {
                return Err(EINVAL);
            }
            (at..at + len).step_by(PAGE).filter(|at| is_program(*at)).for_each(install_guard);
        }
        sys::MADV_GUARD_REMOVE => {
            for at in each_page(at, len).filter(|at| is_program(*at)) {
                with(|kernel| {
                    if kernel.page(at).content == Content::Marker {
                        kernel.page(at).empty();
                    }
                });
            }
        }
        sys::MADV_POPULATE_READ | sys::MADV_POPULATE_WRITE => {
            let prot = if advice == sys::MADV_POPULATE_READ { PROT_READ } else { READ_WRITE };
            dawdle(Rule::Hazard);
            for at in each_page(at, len) {
                with(|kernel| {
                    let page = kernel.page(at);
                    let is_missing = page.content == Content::Nothing && page.is_registered;
                    let is_protected = page.is_protected && prot == READ_WRITE;
                    if page.refuses(prot) || page.content == Content::Marker || is_missing || is_protected {
                        return Err(EFAULT);
                    }
                    page.content = Content::There;
                    Ok(())
                })?;
            }
        }
        _ => {}
    }
    Ok(0)
}

/// Without this rule a call is slow, and much happens meanwhile: else drawn schedules seldom leave that much
/// time.
pub fn dawdle(rule: Rule) {
    if !holds(rule) {
        (0..thread_rng().gen_range(0..60)).for_each(|_| thread::yield_now());
    }
}

/// It meets a page, zaps it, and tries again.
fn install_guard(at: usize) {
    loop {
        step();
        let was_there = with(|kernel| {
            let page = kernel.page(at);
            let was_there = page.content == Content::There;
            page.empty();
            page.content = if was_there { Content::Nothing } else { Content::Marker };
            was_there
        });
        if !was_there {
            return;
        }
    }
}

/// Whatever the protection is. How many bytes.
fn read_through(to: usize, len: usize, at: usize) -> usize {
    for (from, to) in each_page(at, len).zip((to..).step_by(PAGE)) {
        let is_read = with(|kernel| {
            let page = kernel.page(from);
            if page.content == Content::Marker || page.content == Content::Nothing && page.is_registered {
                return false;
            }
            page.content = Content::There;
            own_mut(to, PAGE).copy_from_slice(&page.bytes);
            true
        });
        if !is_read {
            return from - at;
        }
    }
    len
}

fn write_through(from: usize, len: usize, at: usize) -> usize {
    if !is_program(at) {
        own_mut(at, len).copy_from_slice(own(from, len));
        return len;
    }
    for (to, from) in each_page(at, len).zip((from..).step_by(PAGE)) {
        with(|kernel| {
            assert!(kernel.page(to).content != Content::Marker, "wrong: bytes for a page that has a marker");
            kernel.fill(to, from);
        });
    }
    len
}

fn request(fd: i32, number: usize, at: usize) -> Result<usize> {
    match (fd, number) {
        (MAPS, PROCMAP_QUERY) => with(|kernel| query(kernel, arg(at))),
        (PAGEMAP, PAGEMAP_SCAN) => Ok(with(|kernel| scan(kernel, arg(at)))),
        (UFFD, UFFDIO_API) => Ok(0),
        (UFFD, UFFDIO_REGISTER | UFFDIO_UNREGISTER) => {
            let RangeArg { start, len } = *arg(at);
            let range = start as usize..(start + len) as usize;
            with(|kernel| {
                for at in range.step_by(PAGE).filter(|at| is_program(*at)) {
                    kernel.page(at).is_registered = number == UFFDIO_REGISTER;
                    kernel.page(at).is_protected &= number == UFFDIO_REGISTER;
                }
            });
            Ok(0)
        }
        (UFFD, UFFDIO_COPY) => {
            let CopyArg { to, from, len, copied, .. } = arg(at);
            put(*to as usize..(*to + *len) as usize, copied, |kernel, at, done| {
                kernel.fill(at, *from as usize + done)
            })
        }
        (UFFD, UFFDIO_ZEROPAGE) => {
            let ZeroArg { start, len, zeroed, .. } = arg(at);
            dawdle(Rule::Hazard);
            put(*start as usize..(*start + *len) as usize, zeroed, |kernel, at, _| {
                kernel.page(at).content = Content::There;
            })
        }
        (UFFD, UFFDIO_MOVE) => move_pages(arg(at)),
        (UFFD, UFFDIO_WRITEPROTECT) => {
            let ProtectArg { start, len, mode } = *arg(at);
            for at in each_page(start as usize, len as usize) {
                with(|kernel| {
                    let page = kernel.page(at);
                    if !page.is_registered {
                        return Err(ENOENT);
                    }
                    page.is_protected = mode & 1 != 0 && page.content == Content::There;
                    Ok(())
                })?;
            }
            Ok(0)
        }
        _ => Err(ENOTTY),
    }
}

/// Brings pages, where none is.
fn put(pages: Range<usize>, told: &mut i64, fill: impl Fn(&mut Kernel, usize, usize)) -> Result<usize> {
    *told = 0;
    for at in each_page(pages.start, pages.len()) {
        let result = with(|kernel| {
            if is_program(at) && !kernel.page(at).is_registered {
                return Err(ENOENT);
            }
            if kernel.is_there(at) || is_program(at) && kernel.page(at).content == Content::Marker {
                return Err(EEXIST);
            }
            fill(kernel, at, at - pages.start);
            Ok(())
        });
        match result {
            Ok(()) => *told += PAGE as i64,
            Err(errno) if *told == 0 => return Err(errno),
            Err(_) => return Err(EAGAIN),
        }
    }
    Ok(0)
}

fn move_pages(arg: &mut MoveArg) -> Result<usize> {
    let MoveArg { to, from, len, moved, .. } = arg;
    *moved = 0;
    let (to, from, len) = (*to as usize, *from as usize, *len as usize);
    for (from, to) in each_page(from, len).zip((to..).step_by(PAGE)) {
        let result = with(|kernel| {
            if is_program(from) && kernel.page(from).refuses(READ_WRITE) {
                return Err(EINVAL);
            }
            if !kernel.is_there(from) {
                return Err(ENOENT);
            }
            if kernel.is_there(to) {
                return Err(EEXIST);
            }
            if is_program(from) {
                let bytes = kernel.page(from).bytes;
                kernel.page(from).empty();
                kernel.fill(to, bytes.as_ptr() as usize);
            } else {
                kernel.fill(to, from);
                kernel.staged.remove(&from);
            }
            Ok(())
        });
        match result {
            Ok(()) => *moved += PAGE as i64,
            Err(errno) if *moved == 0 => return Err(errno),
            Err(_) => return Err(EBUSY),
        }
    }
    Ok(0)
}

/// `struct procmap_query`: the mapping at an address, or the next one.
fn query(kernel: &mut Kernel, query: &mut [u64; 13]) -> Result<usize> {
    let at = query[2] as usize;
    let (start, end, prot) = match at {
        _ if at < PROGRAM_END => {
            let at = at.max(PROGRAM);
            let prot = kernel.page(at).prot;
            let is_alike = |at: &usize| is_program(*at) && kernel.pages[(*at - PROGRAM) / PAGE].prot == prot;
            let start =
                (PROGRAM..=at).rev().step_by(PAGE).map(|at| at & !(PAGE - 1)).take_while(is_alike).last();
            let end = (at & !(PAGE - 1)..).step_by(PAGE).find(|at| !is_alike(at));
            (start.expect("at"), end.expect("an end"), prot)
        }
        _ if at < OWN => return Err(ENOENT),
        _ => (at & !(PAGE - 1), (at & !(PAGE - 1)) + PAGE, READ_WRITE),
    };
    // The inode and the device, the length of the name.
    (query[3], query[4], query[5], query[6]) = (start as u64, end as u64, prot as u64, PAGE as u64);
    (query[8], query[9], query[10]) = (0, 0, 0);
    Ok(0)
}

/// `struct pm_scan_arg`: how many regions.
fn scan(kernel: &mut Kernel, scan: &mut [u64; 12]) -> usize {
    const PRESENT: u64 = 1 << 3;
    let (from, to, regions) = (scan[2] as usize, scan[3] as usize, scan[5] as usize);
    let counts_markers = scan[10] & !PRESENT != 0;
    let mut count = 0;
    for at in (from..to).step_by(PAGE) {
        let is_marker = is_program(at) && kernel.page(at).content == Content::Marker;
        if kernel.is_there(at) || is_marker && counts_markers {
            *arg::<[u64; 3]>(regions + count * 24) = [at as u64, (at + PAGE) as u64, PRESENT];
            count += 1;
        }
    }
    scan[4] = to as u64;
    count
}

/// A page is away at first.
pub fn take_away(page: usize) {
    with(|kernel| {
        let page = &mut kernel.pages[page];
        page.empty();
        page.content = if page.is_registered { Content::Nothing } else { Content::Marker };
    });
}
