//! Mappings, fork and a few system calls. All unsafe code of this crate stands here, behind safe functions.
//!
//! Pages are handed out as atomics: any number of threads may touch them, and the compiler may not tear,
//! merge or invent accesses. A `Mapping` owns its address range, so a range can only be unmapped, moved or
//! replaced by the one who holds it mutably, when no reference into it is left.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

pub const PAGE: usize = 4096;
pub const WORDS: usize = PAGE / 8;
pub type Page = [AtomicU64; WORDS];

/// Whether the kernel may use transparent huge pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Huge {
    Default,
    Always,
    Never,
}

impl Huge {
    fn advice(self) -> Option<i32> {
        match self {
            Huge::Default => None,
            Huge::Always => Some(libc::MADV_HUGEPAGE),
            Huge::Never => Some(libc::MADV_NOHUGEPAGE),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    None,
    Read,
    ReadWrite,
}

impl Protection {
    fn bits(self) -> i32 {
        match self {
            Protection::None => libc::PROT_NONE,
            Protection::Read => libc::PROT_READ,
            Protection::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

fn io_result(result: i32) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn map_at(address: usize, pages: usize, protection: Protection, extra: i32) -> io::Result<usize> {
    let private = if extra & libc::MAP_SHARED == 0 { libc::MAP_PRIVATE } else { 0 };
    let flags = private | libc::MAP_ANONYMOUS | extra;
    // SAFETY: without MAP_FIXED the kernel picks a free range; with it, callers pass a range that a Mapping
    // owns.
    let at = unsafe { libc::mmap(address as *mut _, pages * PAGE, protection.bits(), flags, -1, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at as usize) }
}

/// Asks that a range be swapped out now.
pub const PAGEOUT: i32 = libc::MADV_PAGEOUT;

/// An owned range of anonymous memory, private unless made by `shared`, unmapped when dropped.
pub struct Mapping {
    base: usize,
    pages: usize,
}

impl Mapping {
    pub fn new(pages: usize, huge: Huge) -> io::Result<Mapping> {
        let map = Mapping { base: map_at(0, pages, Protection::ReadWrite, 0)?, pages };
        if let Some(advice) = huge.advice() {
            map.advise(0, pages, advice).ok(); // a kernel without huge pages refuses
        }
        Ok(map)
    }

    /// Begins at a multiple of `alignment` pages.
    pub fn aligned(pages: usize, alignment: usize, huge: Huge) -> io::Result<Mapping> {
        let mut head = Mapping::new(pages + alignment - 1, huge)?;
        let skip = (head.base / PAGE).next_multiple_of(alignment) - head.base / PAGE;
        let mut map = head.split_off(skip);
        map.split_off(pages);
        Ok(map)
    }

    /// Shared with the processes that inherit it, and not copied for them.
    pub fn shared(pages: usize) -> io::Result<Mapping> {
        Ok(Mapping { base: map_at(0, pages, Protection::ReadWrite, libc::MAP_SHARED)?, pages })
    }

    /// All of a file of shared memory that has no name (memfd), and the file.
    pub fn of_file(pages: usize) -> io::Result<(Mapping, File)> {
        // SAFETY: a string that ends in NUL; a new descriptor is nobody else's.
        let fd = unsafe { libc::memfd_create(c"memspill-workload".as_ptr(), libc::MFD_CLOEXEC) };
        io_result(fd.min(0))?;
        // SAFETY: as above.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len((pages * PAGE) as u64)?;
        let (length, both) = (pages * PAGE, Protection::ReadWrite.bits());
        // SAFETY: a new mapping where the kernel likes, of a file that nobody else can cut short.
        let at = unsafe { libc::mmap(ptr::null_mut(), length, both, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok((Mapping { base: at as usize, pages }, file))
    }

    /// Address space without memory.
    pub fn reserve(pages: usize) -> io::Result<Mapping> {
        Ok(Mapping { base: map_at(0, pages, Protection::None, libc::MAP_NORESERVE)?, pages })
    }

    pub fn address(&self) -> usize {
        self.base
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    pub fn page(&self, index: usize) -> &Page {
        assert!(index < self.pages, "page {index} of {}", self.pages);
        // SAFETY: the page lies in the range that this Mapping owns, is aligned, and all access to it is
        // atomic. If it is protected, the access ends in SIGSEGV, which is not undefined behaviour.
        unsafe { &*((self.base + index * PAGE) as *const Page) }
    }

    fn range(&self, from: usize, pages: usize) -> usize {
        assert!(from + pages <= self.pages, "{from}+{pages} of {}", self.pages);
        self.base + from * PAGE
    }

    /// madvise; those that throw contents away leave zeros or old words, which atomics may see.
    pub fn advise(&self, from: usize, pages: usize, advice: i32) -> io::Result<()> {
        let at = self.range(from, pages);
        // SAFETY: the range is ours; contents may change, but all access is atomic.
        io_result(unsafe { libc::madvise(at as *mut _, pages * PAGE, advice) })
    }

    /// Pages that are in memory, or on their way out of it.
    pub fn resident_pages(&self) -> io::Result<usize> {
        let mut states = vec![0u8; self.pages];
        // SAFETY: the range is ours, and the vector has a byte for each of its pages.
        io_result(unsafe { libc::mincore(self.base as *mut _, self.pages * PAGE, states.as_mut_ptr()) })?;
        Ok(states.iter().filter(|state| **state & 1 == 1).count())
    }

    pub fn protect(&mut self, from: usize, pages: usize, protection: Protection) -> io::Result<()> {
        let at = self.range(from, pages);
        // SAFETY: the range is ours and no reference into it is alive (self is borrowed mutably).
        io_result(unsafe { libc::mprotect(at as *mut _, pages * PAGE, protection.bits()) })
    }

    /// Maps fresh memory over a part (MAP_FIXED).
    pub fn replace(&mut self, from: usize, pages: usize) -> io::Result<()> {
        map_at(self.range(from, pages), pages, Protection::ReadWrite, libc::MAP_FIXED).map(|_| ())
    }

    /// Cuts off everything from page `at` on; nothing is unmapped.
    pub fn split_off(&mut self, at: usize) -> Mapping {
        assert!(at <= self.pages);
        let tail = Mapping { base: self.base + at * PAGE, pages: self.pages - at };
        self.pages = at;
        tail
    }

    fn remap(&mut self, pages: usize, flags: i32, target: usize) -> io::Result<usize> {
        // SAFETY: the old range is ours and not referenced; the target is 0 or a reservation of the caller.
        let at = unsafe {
            libc::mremap(
                self.base as *mut _,
                self.pages * PAGE,
                pages * PAGE,
                flags,
                target as *mut libc::c_void,
            )
        };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at as usize) }
    }

    /// mremap to another length; it may move. A range of several kernel mappings is refused (EFAULT).
    pub fn resize(&mut self, pages: usize) -> io::Result<()> {
        self.base = self.remap(pages, libc::MREMAP_MAYMOVE, 0)?;
        self.pages = pages;
        Ok(())
    }

    /// mremap to an address of the caller's choice (MREMAP_FIXED).
    pub fn relocate(&mut self) -> io::Result<()> {
        let target = Mapping::reserve(self.pages)?;
        let to = target.base;
        // The kernel replaces the target. Should it fail, it may have unmapped it first and others may have
        // taken the place, so it is never unmapped from here: at worst a reservation without memory is left.
        std::mem::forget(target);
        self.base = self.remap(self.pages, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to)?;
        Ok(())
    }

    /// Moves the pages to a new mapping and leaves this one mapped and empty (MREMAP_DONTUNMAP).
    pub fn move_pages_out(&mut self) -> io::Result<Mapping> {
        let base = self.remap(self.pages, libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP, 0)?;
        Ok(Mapping { base, pages: self.pages })
    }

    pub fn write_to(&self, fd: &OwnedFd, from_byte: usize, bytes: usize) -> io::Result<usize> {
        assert!(from_byte + bytes <= self.pages * PAGE);
        // SAFETY: the kernel reads from a range that is ours.
        let done = unsafe { libc::write(fd.as_raw_fd(), (self.base + from_byte) as *const _, bytes) };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    }

    pub fn read_from(&self, fd: &OwnedFd, at_byte: usize, bytes: usize) -> io::Result<usize> {
        assert!(at_byte + bytes <= self.pages * PAGE);
        // SAFETY: the kernel writes to a range that is ours; all other access to it is atomic.
        let done = unsafe { libc::read(fd.as_raw_fd(), (self.base + at_byte) as *mut _, bytes) };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    }

    /// Copies pages by process_vm_readv on the own process: the kernel touches both sides.
    pub fn copy_by_kernel(
        &self,
        to: usize,
        source: &Mapping,
        from: usize,
        pages: usize,
    ) -> io::Result<usize> {
        let local = libc::iovec { iov_base: self.range(to, pages) as *mut _, iov_len: pages * PAGE };
        let remote = libc::iovec { iov_base: source.range(from, pages) as *mut _, iov_len: pages * PAGE };
        // SAFETY: both ranges are owned by the two Mappings; access from elsewhere is atomic.
        let done = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.pages > 0 {
            // SAFETY: the range is ours and nothing refers to it any more.
            unsafe { libc::munmap(self.base as *mut _, self.pages * PAGE) };
        }
    }
}

/// Memory from malloc, of whole pages (the ends that are not whole pages are left alone).
pub struct Allocated {
    map: std::mem::ManuallyDrop<Mapping>,
    start: *mut libc::c_void,
}

impl Allocated {
    pub fn new(pages: usize) -> io::Result<Allocated> {
        // SAFETY: malloc of a size that is not 0.
        let start = unsafe { libc::malloc((pages + 1) * PAGE) };
        if start.is_null() {
            return Err(io::Error::last_os_error());
        }
        let base = (start as usize).next_multiple_of(PAGE);
        Ok(Allocated { map: std::mem::ManuallyDrop::new(Mapping { base, pages }), start })
    }

    pub fn page(&self, index: usize) -> &Page {
        self.map.page(index)
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: `start` came from malloc and is freed once.
        unsafe { libc::free(self.start) };
    }
}

/// The program break beyond what was there before. Only for a process in which nobody else moves the break.
pub struct Break {
    base: usize,
    pages: usize,
}

impl Break {
    pub fn new() -> io::Result<Break> {
        // SAFETY: sbrk(0) only asks.
        let now = unsafe { libc::sbrk(0) } as usize;
        let base = now.next_multiple_of(PAGE);
        if base != now {
            // SAFETY: grows the break by the rest of a page.
            unsafe { libc::sbrk((base - now) as isize) };
        }
        Ok(Break { base, pages: 0 })
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    pub fn page(&self, index: usize) -> &Page {
        assert!(index < self.pages);
        // SAFETY: between `base` and the break, which only `resize` moves; all access is atomic.
        unsafe { &*((self.base + index * PAGE) as *const Page) }
    }

    /// Grows or shrinks; false where somebody else has moved the break or there is no room.
    pub fn resize(&mut self, pages: usize) -> bool {
        // SAFETY: sbrk(0) only asks.
        let now = unsafe { libc::sbrk(0) } as usize;
        if now != self.base + self.pages * PAGE {
            return false;
        }
        let by = pages as isize - self.pages as isize;
        // SAFETY: the break ends with our pages (checked above) and no reference to them is alive.
        let moved = unsafe { libc::sbrk(by * PAGE as isize) };
        if moved as isize == -1 {
            return false;
        }
        self.pages = pages;
        true
    }

    pub fn dont_need(&self, from: usize, pages: usize) {
        assert!(from + pages <= self.pages);
        // SAFETY: our own pages; all access is atomic.
        unsafe { libc::madvise((self.base + from * PAGE) as *mut _, pages * PAGE, libc::MADV_DONTNEED) };
    }
}

/// Steps of fresh break memory for `hog`; they stay until the process ends.
pub fn break_step(pages: usize) -> io::Result<std::mem::ManuallyDrop<Mapping>> {
    // SAFETY: grows the break; glibc's malloc allows for others doing so.
    let at = unsafe { libc::sbrk(((pages + 1) * PAGE) as isize) };
    if at as isize == -1 {
        return Err(io::Error::last_os_error());
    }
    let base = (at as usize).next_multiple_of(PAGE);
    Ok(std::mem::ManuallyDrop::new(Mapping { base, pages }))
}

pub type Pid = i32;

/// Runs `child` in a forked process, which ends with the code it returns. In a program with several threads
/// the child must not allocate nor take locks.
pub fn fork(child: impl FnOnce() -> i32) -> io::Result<Pid> {
    // SAFETY: the child only runs the closure and _exit; what it may do is stated above.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = child();
            exit_now(code)
        }
        pid => Ok(pid),
    }
}

/// _exit: no destructors, no buffers, safe in a forked child.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit does not return and touches nothing of ours.
    unsafe { libc::_exit(code) }
}

/// SIGKILL to a child that has not been waited for.
pub fn kill(pid: Pid) {
    // SAFETY: kill has no memory effects.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// SIGALRM after `seconds`: a child that hangs becomes one that died.
pub fn alarm(seconds: u32) {
    // SAFETY: alarm has no memory effects.
    unsafe { libc::alarm(seconds) };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    Code(i32),
    Signal(i32),
}

/// waitpid; None where the child is still running (only with `block` false).
pub fn wait(pid: Pid, block: bool) -> io::Result<Option<Ended>> {
    let mut status = 0;
    loop {
        // SAFETY: `status` outlives the call.
        let got = unsafe { libc::waitpid(pid, &mut status, if block { 0 } else { libc::WNOHANG }) };
        if got == 0 {
            return Ok(None);
        }
        if got == pid {
            return Ok(Some(if libc::WIFEXITED(status) {
                Ended::Code(libc::WEXITSTATUS(status))
            } else {
                Ended::Signal(libc::WTERMSIG(status))
            }));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// User and system seconds of this process and the children it has waited for.
pub fn cpu_time() -> (f64, f64) {
    let mut total = (0.0, 0.0);
    for who in [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN] {
        // SAFETY: an all-zero rusage is valid, and the kernel fills it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(who, &mut usage);
            usage
        };
        total.0 += usage.ru_utime.tv_sec as f64 + usage.ru_utime.tv_usec as f64 * 1e-6;
        total.1 += usage.ru_stime.tv_sec as f64 + usage.ru_stime.tv_usec as f64 * 1e-6;
    }
    total
}

/// A file that has no name and goes with the process.
pub fn scratch_file() -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string; the result is checked before it is owned.
    unsafe {
        let fd = libc::memfd_create(c"scratch".as_ptr(), libc::MFD_CLOEXEC);
        if fd == -1 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

pub fn rewind(fd: &OwnedFd) {
    // SAFETY: lseek has no memory effects.
    unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_SET) };
}

struct Line {
    bytes: [u8; 1024],
    used: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = (self.bytes.len() - self.used).min(text.len());
        self.bytes[self.used..self.used + room].copy_from_slice(&text.as_bytes()[..room]);
        self.used += room;
        Ok(())
    }
}

/// One write to stderr, without allocation or locks.
pub fn write_stderr(text: fmt::Arguments) {
    let mut line = Line { bytes: [0; 1024], used: 0 };
    line.write_fmt(text).ok();
    // SAFETY: writes from a buffer on the stack.
    unsafe { libc::write(2, ptr::from_ref(&line.bytes).cast(), line.used) };
}

/// Writes `bytes` to a descriptor without allocation; false where that fails.
pub fn write_fd(fd: i32, bytes: &[u8]) -> bool {
    // SAFETY: writes from the given slice.
    let done = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    done == bytes.len() as isize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_memory_is_whole() {
        let map = Mapping::aligned(3, 512, Huge::Never).unwrap();
        assert_eq!((map.address() % (512 * PAGE), map.pages()), (0, 3));
        assert_eq!(map.resident_pages().unwrap(), 0);
        (0..3).for_each(|index| map.page(index)[7].store(1, std::sync::atomic::Ordering::Relaxed));
        assert_eq!(map.resident_pages().unwrap(), 3);
    }
}
