//! `pthread_create` and `thrd_create`, in place of the C library's: where the kernel writes when a thread
//! has ended stays in memory.
//!
//! When a thread ends, the kernel writes 0 into its thread id, in the C library's `struct pthread`, and wakes
//! who waits there: that is what `pthread_join` waits for. It also reads the thread's list of robust locks
//! there. But a thread that is ending gets no userfaultfd fault served (`handle_userfault` in the kernel's
//! fs/userfaultfd.c: PF_EXITING). If the page is away in that moment, nothing is written, nothing is said,
//! and whoever joins the thread waits for ever.
//!
//! So each thread notes its own `struct pthread`, before it runs anything of the program, and the evictor
//! moves no page that is noted (`thread/endings.rs`).
//!
//! Nothing is taken back when a thread ends, for the kernel writes after all that the thread could do itself.
//! The C library uses a stack again for a later thread, which finds the note there. If there are more stacks
//! than notes, the oldest note gives way.
//!
//! The locks in that list (`robust.rs`) are noted as the thread ends, by a destructor of thread-specific
//! data: it runs however the thread ends. A lock that a later destructor of the program takes, and keeps, is
//! not.
//!
//! Not seen from here: threads that the C library makes for itself (SIGEV_THREAD), and by raw calls of clone.
//! If system calls are trapped, the calls that tell the kernel of such words are seen instead
//! (`pages/exclude.rs`), and this adds nothing.

use crate::common::sync::{AtomicU32, AtomicUsize, Ordering};
use core::ffi::{CStr, c_int};

use crate::machine::robust;
use crate::machine::sys::{self, PAGE};
use crate::thread::endings::{NOTED_BYTES, note};

/// The bytes of musl's structure, up to the end of its list of robust locks.
const MUSL_BYTES: usize = 0xa0;
/// The number of threads that can be on their way from `pthread_create` to their first instruction.
const STARTS_MAX: usize = 64;
const EAGAIN: c_int = 11;

/// The function that a thread that is being made shall run.
struct Start {
    /// The process that makes the thread; 0: free.
    taken: AtomicU32,
    function: AtomicUsize,
    argument: AtomicUsize,
}

struct Threads {
    pthread_create: AtomicUsize,
    thrd_create: AtomicUsize,
    /// One more than the key of thread-specific data whose destructor notes locks; 0: not made.
    key: AtomicU32,
}

// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data.hot")]
static THREADS: Threads =
    Threads { pthread_create: AtomicUsize::new(0), thrd_create: AtomicUsize::new(0), key: AtomicU32::new(0) };

#[unsafe(link_section = ".data")]
static STARTS: [Start; STARTS_MAX] = [const {
    Start { taken: AtomicU32::new(0), function: AtomicUsize::new(0), argument: AtomicUsize::new(0) }
}; STARTS_MAX];

#[unsafe(no_mangle)]
pub extern "C" fn pthread_create(
    thread: usize,
    attributes: usize,
    function: usize,
    argument: usize,
) -> c_int {
    let Some(next) = next(&THREADS.pthread_create, c"pthread_create") else {
        return EAGAIN;
    };
    // SAFETY: the C library's function of this name.
    let next: extern "C" fn(usize, usize, extern "C" fn(usize) -> usize, usize) -> c_int =
        unsafe { core::mem::transmute(next) };
    with_start(function, argument, |start| next(thread, attributes, run, start))
}

/// Its function returns an int, which is in the register of a pointer: `run` hands it on.
#[unsafe(no_mangle)]
pub extern "C" fn thrd_create(thread: usize, function: usize, argument: usize) -> c_int {
    const THRD_ERROR: c_int = 2;
    let Some(next) = next(&THREADS.thrd_create, c"thrd_create") else {
        return THRD_ERROR;
    };
    // SAFETY: the C library's function of this name.
    let next: extern "C" fn(usize, extern "C" fn(usize) -> usize, usize) -> c_int =
        unsafe { core::mem::transmute(next) };
    with_start(function, argument, |start| next(thread, run, start))
}

/// Makes a thread whose first instruction finds what it shall run.
fn with_start(function: usize, argument: usize, create: impl FnOnce(usize) -> c_int) -> c_int {
    let process = sys::getpid();
    let take = |start: &&Start, from| {
        start.taken.compare_exchange(from, process, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let is_free = |start: &&Start| take(start, 0);
    // A fork beside a thread that is being made leaves its start taken in the child, where no thread is to
    // come.
    let is_of_parent = |start: &&Start| match start.taken.load(Ordering::Relaxed) {
        0 => false,
        by => by != process && take(start, by),
    };
    let start = loop {
        match STARTS.iter().find(is_free).or_else(|| STARTS.iter().find(is_of_parent)) {
            Some(start) => break start,
            // Each is free again as soon as its thread runs.
            None => sys::yield_now(),
        }
    };
    start.function.store(function, Ordering::Relaxed);
    start.argument.store(argument, Ordering::Relaxed);
    let result = create(&raw const *start as usize);
    if result != 0 {
        start.taken.store(0, Ordering::Release);
    }
    result
}

/// The first function of a thread.
extern "C" fn run(start: usize) -> usize {
    // SAFETY: `with_start` passes one of STARTS.
    let start = unsafe { &*(start as *const Start) };
    let function = start.function.load(Ordering::Relaxed);
    let argument = start.argument.load(Ordering::Relaxed);
    start.taken.store(0, Ordering::Release);
    note_thread();
    // SAFETY: the program's function, for which it asked for this thread.
    let function: extern "C" fn(usize) -> usize = unsafe { core::mem::transmute(function) };
    function(argument)
}

/// Notes the calling thread.
pub fn note_thread() {
    let pthread_self = sys::weak!("pthread_self");
    if pthread_self == 0 {
        return;
    }
    // SAFETY: every C library's function of this name; it returns where `struct pthread` begins.
    let own = unsafe { core::mem::transmute::<usize, extern "C" fn() -> usize>(pthread_self)() };
    if sys::weak!("gnu_get_libc_version") != 0 {
        return keep(own, NOTED_BYTES);
    }
    keep(own, MUSL_BYTES);
    if let Some(word) = cleared_at_end() {
        keep(word, size_of::<u32>());
    }
}

/// The word that the kernel clears when the calling thread has ended. In musl it is the library's lock, the
/// same one for all threads. None: the kernel does not say (CONFIG_CHECKPOINT_RESTORE).
fn cleared_at_end() -> Option<usize> {
    const PR_GET_TID_ADDRESS: usize = 40;
    let mut word = 0usize;
    // SAFETY: the kernel writes a word.
    let asked =
        unsafe { sys::syscall(sys::nr::PRCTL, [PR_GET_TID_ADDRESS, &raw mut word as usize, 0, 0, 0, 0]) };
    asked.ok().map(|_| word).filter(|word| *word != 0)
}

/// Notes what lies there, of the calling thread, and has it in its place. `len`: no more than NOTED_BYTES.
fn keep(start: usize, len: usize) {
    note(start);
    for page in [start, start + len - 1] {
        // SAFETY: both lie in memory of the C library's, which is there as long as the thread.
        unsafe { (page as *const u8).read_volatile() };
    }
    note_locks_at_end();
}

/// The calling thread notes the robust locks that it holds when it ends.
fn note_locks_at_end() {
    let (create, set) = (sys::weak!("pthread_key_create"), sys::weak!("pthread_setspecific"));
    if create == 0 || set == 0 {
        return;
    }
    // The first thread does so before there is another one.
    if THREADS.key.load(Ordering::Relaxed) == 0 {
        let mut key = 0;
        // SAFETY: every C library's function of this name.
        let create: extern "C" fn(*mut u32, extern "C" fn(usize)) -> c_int =
            unsafe { core::mem::transmute(create) };
        if create(&raw mut key, note_locks) == 0 {
            THREADS.key.store(key + 1, Ordering::Relaxed);
        }
    }
    if let Some(key) = THREADS.key.load(Ordering::Relaxed).checked_sub(1) {
        // SAFETY: as above. A value other than 0 is what makes the destructor run.
        unsafe { core::mem::transmute::<usize, extern "C" fn(u32, usize) -> c_int>(set)(key, 1) };
    }
}

extern "C" fn note_locks(_: usize) {
    let (mut list, mut len) = (0usize, 0usize);
    let own = [0, &raw mut list as usize, &raw mut len as usize, 0, 0, 0];
    // SAFETY: both words are there for the kernel to write.
    if unsafe { sys::syscall(sys::nr::GET_ROBUST_LIST, own) }.is_err() || list == 0 {
        return;
    }
    // SAFETY: the C library's list of this thread.
    let head = unsafe { (list as *const robust::Head).read_volatile() };
    // The kernel passes over all that is not mapped.
    let next = |entry: usize| {
        // SAFETY: brings what is there, and changes nothing.
        let there = unsafe { sys::madvise(entry & !(PAGE - 1), PAGE, sys::MADV_POPULATE_READ) };
        // SAFETY: it is mapped, and the thread's own list names it.
        there.is_ok().then(|| unsafe { (entry as *const usize).read_volatile() })
    };
    robust::each(list, head, next, |at| {
        note(at);
        // SAFETY: as above.
        let _ = unsafe { sys::madvise(at & !(PAGE - 1), PAGE, sys::MADV_POPULATE_READ) };
    });
}

/// The C library's own function. Looked for by the first call: constructors of libraries, which run before
/// the agent's, make threads too.
fn next(known: &AtomicUsize, name: &CStr) -> Option<usize> {
    const RTLD_NEXT: usize = usize::MAX;
    /// RTLD_LAZY, and the mark without which glibc refuses the call.
    const OPEN_MODE: usize = 0x8000_0001;
    let mut address = known.load(Ordering::Acquire);
    let dlsym = sys::weak!("dlsym");
    if address == 0 && dlsym != 0 {
        // SAFETY: every C library's function of this name.
        let dlsym: extern "C" fn(usize, *const core::ffi::c_char) -> usize =
            unsafe { core::mem::transmute(dlsym) };
        address = dlsym(RTLD_NEXT, name.as_ptr());
    }
    let (open, find) = (sys::weak!("__libc_dlopen_mode"), sys::weak!("__libc_dlsym"));
    if address == 0 && open != 0 && find != 0 {
        // Before glibc 2.34, dlsym and threads are in libraries of their own, and the first may be absent.
        // SAFETY: glibc's own functions of these names.
        unsafe {
            let open: extern "C" fn(*const core::ffi::c_char, usize) -> usize = core::mem::transmute(open);
            let find: extern "C" fn(usize, *const core::ffi::c_char) -> usize = core::mem::transmute(find);
            let library = open(c"libpthread.so.0".as_ptr(), OPEN_MODE);
            address = if library == 0 { 0 } else { find(library, name.as_ptr()) };
        }
    }
    known.store(address, Ordering::Release);
    (address != 0).then_some(address)
}
