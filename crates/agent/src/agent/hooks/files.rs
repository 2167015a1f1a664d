//! Calls on files of tmpfs (memfd, shm_open), in place of the C library's: such files may be managed, where
//! the run was started with `--shared=all`, and a call that reads or writes one does not fault.
//!
//! ```text
//!   here:        file_calls + 1 ─ may it be managed (file_filter)? no: call
//!                yes: held_file_calls + 1 ─ wait while takes_shared > 0 ─ doorbell ─ call ─ both - 1
//!   supervisor:  sets the file's bit ─ waits until file_calls was 0 ─ manages it
//!                takes_shared + 1 ─ held_file_calls is 0? then pages may leave ─ takes_shared - 1
//! ```
//!
//! | call                                             | what the doorbell asks for                |
//! |--------------------------------------------------|-------------------------------------------|
//! | read, write and their kin, sendfile, splice,     | that all of the file is in memory, and is |
//! | copy_file_range, truncate, ftruncate, fallocate; | not managed                               |
//! | mmap with MAP_PRIVATE, PROT_EXEC or MAP_LOCKED   |                                           |
//! | mmap with MAP_SHARED                             | that the mapping is registered            |
//!
//! Until it is answered the mapping is PROT_NONE, and nothing is brought by MAP_POPULATE.
//!
//! fallocate within the length of a memfd is not called, in any run: its pages come when they are touched,
//! and wait for room then if they are managed.
//!
//! A call that the supervisor does not answer is not made: EIO, or EAGAIN for mmap. Without `--shared=all`
//! the rest costs one look at a word. With it each call on a regular file costs a statx(2) and, on what may
//! be tmpfs, an fstatfs(2).
//!
//! Not seen from here: calls inside the C library itself (fread, fwrite and the rest of stdio), system calls
//! by a program's own instructions, a program with a seccomp filter, which may forbid the questions (the
//! supervisor is told of it). All of this may run in a signal handler, in the child of a vfork, in the child
//! of a raw clone.

use crate::common::sync::{AtomicU32, AtomicUsize, Ordering};
use core::ffi::{CStr, c_int};

use super::c_library::libc_result;
use super::proc_mem;
use crate::common::protocol::{CALL_FILE_MAPPED, CALL_FILE_USED, Control, Doorbell, file_bit};
use crate::machine::sys::{self, EAGAIN, EIO, Result, nr};
use crate::supervisor::control::{answering_control, control_asked_for, own_control};
use crate::supervisor::doorbell::ring_for;
use crate::supervisor::state::STATE;

const TMPFS_MAGIC: u64 = 0x0102_1994;
const MAP_SHARED_VALIDATE: usize = 3;
/// How often a call is tried while all doorbells are in use, in steps of a ms.
const TRIES: u32 = 60_000;
/// No descriptor.
const NONE: usize = usize::MAX;

/// Which file.
#[derive(Clone, Copy)]
struct Id {
    dev: u64,
    ino: u64,
}

/// A function of the C library that one of this file's stands before.
pub struct Next {
    name: &'static CStr,
    address: AtomicUsize,
}

type Function = extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;

impl Next {
    pub const fn new(name: &'static str) -> Next {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Next { name, address: AtomicUsize::new(0) },
            Err(_) => panic!("a name ends with a zero"),
        }
    }

    /// The C library's own function, or the system call where that is not known (yet).
    fn call(&self, number: usize, args: [usize; 6]) -> isize {
        // SAFETY: the caller's own request, passed through.
        self.call_or(args, || libc_result(unsafe { sys::syscall(number, args) }) as isize)
    }

    /// The same with what is done in its place.
    pub fn call_or(&self, args: [usize; 6], otherwise: impl FnOnce() -> isize) -> isize {
        let address = self.address.load(Ordering::Acquire);
        if address == 0 {
            return otherwise();
        }
        // SAFETY: a function of the C library that takes at most six integers or pointers and returns an
        // integer; what it does not take is in registers, or above its arguments, where it does not look.
        let function = unsafe { core::mem::transmute::<usize, Function>(address) };
        let [a, b, c, d, e, f] = args;
        function(a, b, c, d, e, f)
    }
}

/// Defines the functions, and for each of them where its next one is noted. `[a]`, `[a, b]`: which arguments
/// are descriptors.
macro_rules! calls {
    ($($name:ident($($arg:ident),*) -> $ret:ty, [$($fd:ident),*], $number:ident;)*) => {
        #[expect(non_upper_case_globals, reason = "named as the functions")]
        mod next {
            use crate::hooks::files::Next;
            $(
                // In .data by force: this is not to be swapped out.
                #[unsafe(link_section = ".data.hot")]
                pub static $name: Next = Next::new(concat!(stringify!($name), "\0"));
            )*
        }

        fn each_next(mut found: impl FnMut(&Next)) {
            $(found(&next::$name);)*
        }

        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($arg: usize),*) -> $ret {
                let mut args = [0; 6];
                let mut given = args.iter_mut();
                $(if let Some(place) = given.next() { *place = $arg; })*
                if let Some(ret) = proc_mem::transfer(nr::$number, &args) {
                    return libc_result(ret) as $ret;
                }
                let call = || next::$name.call(nr::$number, args);
                if is_for_later(nr::$number, args) {
                    return 0;
                }
                if STATE.files.load(Ordering::Relaxed) == 0 {
                    return call() as $ret;
                }
                let mut files = [NONE; 2];
                let mut places = files.iter_mut();
                $(if let Some(place) = places.next() { *place = $fd; })*
                let mut ret = 0;
                let told = about(files, || { ret = call(); Ok(0) });
                if told.is_err() { libc_result(told) as $ret } else { ret as $ret }
            }
        )*
    };
}

calls! {
    read(fd, at, len) -> isize, [fd], READ;
    __read_chk(fd, at, len, room) -> isize, [fd], READ;
    pread(fd, at, len, offset) -> isize, [fd], PREAD64;
    pread64(fd, at, len, offset) -> isize, [fd], PREAD64;
    __pread_chk(fd, at, len, offset, room) -> isize, [fd], PREAD64;
    __pread64_chk(fd, at, len, offset, room) -> isize, [fd], PREAD64;
    readv(fd, at, count) -> isize, [fd], READV;
    preadv(fd, at, count, offset) -> isize, [fd], PREADV;
    preadv64(fd, at, count, offset) -> isize, [fd], PREADV;
    write(fd, at, len) -> isize, [fd], WRITE;
    pwrite(fd, at, len, offset) -> isize, [fd], PWRITE64;
    pwrite64(fd, at, len, offset) -> isize, [fd], PWRITE64;
    writev(fd, at, count) -> isize, [fd], WRITEV;
    pwritev(fd, at, count, offset) -> isize, [fd], PWRITEV;
    pwritev64(fd, at, count, offset) -> isize, [fd], PWRITEV;
    sendfile(to, from, offset, len) -> isize, [to, from], SENDFILE;
    sendfile64(to, from, offset, len) -> isize, [to, from], SENDFILE;
    splice(from, offset, to, to_offset, len, flags) -> isize, [from, to], SPLICE;
    copy_file_range(from, offset, to, to_offset, len, flags) -> isize, [from, to], COPY_FILE_RANGE;
    ftruncate(fd, len) -> c_int, [fd], FTRUNCATE;
    ftruncate64(fd, len) -> c_int, [fd], FTRUNCATE;
    fallocate(fd, mode, offset, len) -> c_int, [fd], FALLOCATE;
    fallocate64(fd, mode, offset, len) -> c_int, [fd], FALLOCATE;
}

/// With their last two arguments in another order than the system call's.
#[unsafe(no_mangle)]
pub extern "C" fn preadv2(fd: usize, at: usize, count: usize, offset: usize, flags: usize) -> isize {
    let call = || in_pieces(nr::PREADV2, [fd, at, count, offset, 0, flags]);
    libc_result(about([fd, NONE], call)) as isize
}

#[unsafe(no_mangle)]
pub extern "C" fn preadv64v2(fd: usize, at: usize, count: usize, offset: usize, flags: usize) -> isize {
    preadv2(fd, at, count, offset, flags)
}

#[unsafe(no_mangle)]
pub extern "C" fn pwritev2(fd: usize, at: usize, count: usize, offset: usize, flags: usize) -> isize {
    let call = || in_pieces(nr::PWRITEV2, [fd, at, count, offset, 0, flags]);
    libc_result(about([fd, NONE], call)) as isize
}

#[unsafe(no_mangle)]
pub extern "C" fn pwritev64v2(fd: usize, at: usize, count: usize, offset: usize, flags: usize) -> isize {
    pwritev2(fd, at, count, offset, flags)
}

fn in_pieces(number: usize, args: [usize; 6]) -> Result<usize> {
    // SAFETY: the caller's own request, passed through.
    unsafe { sys::syscall(number, args) }
}

/// It returns the error, and leaves errno alone.
#[unsafe(no_mangle)]
pub extern "C" fn posix_fallocate(fd: usize, offset: usize, len: usize) -> c_int {
    if (offset as isize) < 0 || (len as isize) <= 0 {
        return sys::EINVAL;
    }
    if is_for_later(nr::FALLOCATE, [fd, 0, offset, len, 0, 0]) {
        return 0;
    }
    // If a file system cannot do it, the C library writes to each block.
    const EOPNOTSUPP: i32 = 95;
    let call = || in_pieces(nr::FALLOCATE, [fd, 0, offset, len, 0, 0]);
    match about([fd, NONE], call) {
        Ok(_) => 0,
        Err(EOPNOTSUPP) => match NEXT_POSIX_FALLOCATE.address.load(Ordering::Acquire) {
            0 => EOPNOTSUPP,
            _ => NEXT_POSIX_FALLOCATE.call(nr::FALLOCATE, [fd, offset, len, 0, 0, 0]) as c_int,
        },
        Err(errno) => errno,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn posix_fallocate64(fd: usize, offset: usize, len: usize) -> c_int {
    posix_fallocate(fd, offset, len)
}

#[unsafe(link_section = ".data.hot")]
static NEXT_POSIX_FALLOCATE: Next = Next::new("posix_fallocate\0");

/// By a name.
#[unsafe(no_mangle)]
pub extern "C" fn truncate(path: usize, len: usize) -> c_int {
    // SAFETY: the caller's own request, passed through.
    let call = || unsafe { sys::syscall(nr::TRUNCATE, [path, len, 0, 0, 0, 0]) };
    if STATE.files.load(Ordering::Relaxed) == 0 {
        return libc_result(call()) as c_int;
    }
    // A file without a name that can be opened cannot be cut off either: the call says why. (It is opened,
    // which the supervisor sees.)
    const O_PATH: usize = 0o10000000;
    // SAFETY: the kernel reads the caller's path.
    let opened = unsafe { sys::syscall(nr::OPENAT, [sys::AT_FDCWD, path, O_PATH | sys::O_CLOEXEC, 0, 0, 0]) };
    let ret = about([opened.unwrap_or(NONE), NONE], call);
    if let Ok(fd) = opened {
        // SAFETY: the descriptor just made.
        let _ = unsafe { sys::syscall(nr::CLOSE, [fd, 0, 0, 0, 0, 0]) };
    }
    libc_result(ret) as c_int
}

#[unsafe(no_mangle)]
pub extern "C" fn truncate64(path: usize, len: usize) -> c_int {
    truncate(path, len)
}

/// Finds the C library's own functions, as `open::find_next` does.
pub fn find_next() {
    each_next(find);
    find(&NEXT_POSIX_FALLOCATE);
    find(&NEXT_SYSCALL);
}

/// Finds one.
pub fn find(next: &Next) {
    const RTLD_NEXT: usize = usize::MAX;
    let dlsym = sys::weak!("dlsym");
    if dlsym == 0 {
        return;
    }
    // SAFETY: every C library's function of this name.
    let dlsym: extern "C" fn(usize, *const core::ffi::c_char) -> usize =
        unsafe { core::mem::transmute(dlsym) };
    next.address.store(dlsym(RTLD_NEXT, next.name.as_ptr()), Ordering::Release);
}

#[unsafe(link_section = ".data.hot")]
static NEXT_SYSCALL: Next = Next::new("syscall\0");

/// The C library's own `syscall`, or 0.
pub fn next_syscall() -> usize {
    NEXT_SYSCALL.address.load(Ordering::Acquire)
}

/// Calls `each` with the C library's own functions, as far as they were found.
pub fn each_function(mut each: impl FnMut(usize)) {
    each_next(|next| each(next.address.load(Ordering::Acquire)));
}

/// The files that a system call made by `syscall` is about.
pub fn files_of(number: usize, args: [usize; 6]) -> [usize; 2] {
    match number {
        nr::READ | nr::PREAD64 | nr::READV | nr::PREADV | nr::PREADV2 => [args[0], NONE],
        nr::WRITE | nr::PWRITE64 | nr::WRITEV | nr::PWRITEV | nr::PWRITEV2 => [args[0], NONE],
        nr::FTRUNCATE | nr::FALLOCATE => [args[0], NONE],
        nr::SENDFILE => [args[0], args[1]],
        nr::SPLICE | nr::COPY_FILE_RANGE => [args[0], args[2]],
        _ => [NONE; 2],
    }
}

/// Is this fallocate for pages that come as well when they are touched? That holds for a memfd, whose file
/// system has no limit, within its length. Made now they would all be in memory at once, whatever the budget
/// says, and those too that nobody ever touches. So it is whether the file is swapped or only counted.
pub fn is_for_later(number: usize, args: [usize; 6]) -> bool {
    const KEEP_SIZE: usize = 1;
    const O_ACCMODE: usize = 3;
    const F_GETFL: usize = 3;
    if number != nr::FALLOCATE || STATE.confined.load(Ordering::Relaxed) != 0 {
        return false;
    }
    let [fd, mode, offset, len, ..] = args;
    let (fd, mode) = (fd as c_int as usize, mode as c_int as usize);
    let end = (offset as u64).saturating_add(len as u64);
    // SAFETY: integers.
    let flags = || unsafe { sys::syscall(nr::FCNTL, [fd, F_GETFL, 0, 0, 0, 0]) };
    mode & !KEEP_SIZE == 0
        && len as isize > 0
        && offset as isize >= 0
        && sys::regular_file(fd).is_some_and(|file| file.major == 0 && end <= file.len)
        && matches!(sys::file_system(fd), Some((TMPFS_MAGIC, 0)))
        && flags().is_ok_and(|flags| flags & O_ACCMODE != 0)
}

/// Makes a call that reads or writes these files, when all of them is in memory, and stays there.
pub fn about(fds: [usize; 2], call: impl FnOnce() -> Result<usize>) -> Result<usize> {
    let [first, second] = fds.map(tmpfs_file);
    let Some(calls) = Calls::begin([first, second]) else { return call() };
    let used = |id: &Id| Doorbell { addr: id.ino, len: id.dev, call: CALL_FILE_USED, ..Doorbell::default() };
    let answered = [first, second].iter().flatten().all(|id| !calls.may_be_managed(*id) || tell(used(id)));
    let ret = if answered { call() } else { Err(EIO) };
    calls.end();
    ret
}

/// mmap of a file, as asked.
pub fn mmap(args: [usize; 6]) -> Result<usize> {
    let [addr, len, prot, flags, fd, offset] = args;
    // SAFETY: the caller's own request, passed through.
    let call = || unsafe { sys::syscall(nr::MMAP, args) };
    let kind = flags & sys::MAP_TYPE;
    let is_shared = matches!(kind, sys::MAP_SHARED | MAP_SHARED_VALIDATE);
    if !is_shared || prot & sys::PROT_EXEC != 0 || flags & sys::MAP_LOCKED != 0 {
        return about([fd, NONE], call);
    }
    let file = tmpfs_file(fd);
    let Some(calls) = Calls::begin([file, None]) else { return call() };
    let ret = match file.filter(|id| calls.may_be_managed(*id)) {
        None => call(),
        Some(_) => map_registered(addr, len, prot, flags & !sys::MAP_POPULATE, fd, offset),
    };
    calls.end();
    ret
}

/// Nothing of the mapping can be touched before its faults come to the pager.
fn map_registered(
    addr: usize,
    len: usize,
    prot: usize,
    flags: usize,
    fd: usize,
    offset: usize,
) -> Result<usize> {
    // SAFETY: the caller's own request, passed through, but for the rights.
    let at = unsafe { sys::syscall(nr::MMAP, [addr, len, sys::PROT_NONE, flags, fd, offset])? };
    let mapped = Doorbell { addr: at as u64, len: len as u64, call: CALL_FILE_MAPPED, ..Doorbell::default() };
    let protected = match tell(mapped) {
        true if prot == sys::PROT_NONE => Ok(0),
        // SAFETY: the mapping just made, which nobody knows.
        true => unsafe { sys::syscall(nr::MPROTECT, [at, len, prot, 0, 0, 0]) },
        false => Err(EAGAIN),
    };
    match protected {
        Ok(_) => Ok(at),
        Err(errno) => {
            // SAFETY: as above.
            let _ = unsafe { sys::syscall(nr::MUNMAP, [at, len, 0, 0, 0, 0]) };
            Err(errno)
        }
    }
}

/// A regular file of tmpfs, if files are managed in this run and the program can be asked.
fn tmpfs_file(fd: usize) -> Option<Id> {
    // The upper half of the register is not defined for an int, which it is.
    let fd = fd as c_int;
    let is_asked = STATE.files.load(Ordering::Relaxed) != 0 && STATE.confined.load(Ordering::Relaxed) == 0;
    if !is_asked || fd < 0 {
        return None;
    }
    let file = sys::regular_file(fd as usize)?;
    // All of tmpfs is on devices without a driver.
    if file.major != 0 || !matches!(sys::file_system(fd as usize), Some((TMPFS_MAGIC, _))) {
        return None;
    }
    // As makedev(3) has it.
    let minor = u64::from(file.minor);
    Some(Id { dev: minor & 0xff | (minor & !0xff) << 12, ino: file.inode })
}

/// A thread is in a call on a file that may be managed.
struct Calls {
    control: *mut Control,
    is_held: bool,
}

impl Calls {
    /// None: there is no such file, or nobody to be told.
    fn begin(files: [Option<Id>; 2]) -> Option<Calls> {
        if files.iter().all(Option::is_none) {
            return None;
        }
        let mut calls = Calls { control: own_control()?, is_held: false };
        calls.word(|control| &raw mut control.file_calls).fetch_add(1, Ordering::SeqCst);
        if files.iter().flatten().any(|id| calls.may_be_managed(*id)) {
            calls.is_held = true;
            calls.word(|control| &raw mut control.held_file_calls).fetch_add(1, Ordering::SeqCst);
            while calls.word(|control| &raw mut control.takes_shared).load(Ordering::SeqCst) != 0 {
                sys::yield_now();
            }
        }
        Some(calls)
    }

    fn word(&self, field: impl FnOnce(&mut Control) -> *mut u32) -> &AtomicU32 {
        // SAFETY: this process owns the page, and keeps it mapped until it ends; the field is accessed as an
        // atomic only.
        unsafe { AtomicU32::from_ptr(field(&mut *self.control)) }
    }

    fn may_be_managed(&self, id: Id) -> bool {
        let (word, bit) = file_bit(id.dev, id.ino);
        self.word(|control| &raw mut control.file_filter[word]).load(Ordering::SeqCst) & bit != 0
    }

    fn end(self) {
        // In the child of a fork that a signal handler has made, in the middle of the call, the page is
        // another one, which counts nothing of this.
        if own_control() != Some(self.control) {
            return;
        }
        if self.is_held {
            self.word(|control| &raw mut control.held_file_calls).fetch_sub(1, Ordering::SeqCst);
        }
        self.word(|control| &raw mut control.file_calls).fetch_sub(1, Ordering::SeqCst);
    }
}

/// Calls the pager until it answers. False: nobody does.
fn tell(doorbell: Doorbell) -> bool {
    for _ in 0..TRIES {
        let Some(control) = answering_control().or_else(control_asked_for) else { return false };
        if ring_for(control, doorbell) {
            return true;
        }
        sys::pause(1);
    }
    false
}
