//! System calls that only a try can answer, one function each: may this process have a userfaultfd, does this
//! kernel know PAGEMAP_SCAN, may a child be read. Each leaves nothing behind and says the errno when refused.
//!
//! Questions that the pager asks the kernel too go through the ABI crate (memspill-uffd), so that both mean
//! the same. Questions that only a probe asks (a userfaultfd for user mode, an io_uring) are here, by the
//! numbers and layouts of <linux/userfaultfd.h> and <linux/io_uring.h>.
#![allow(unsafe_code, reason = "raw system calls: neither std nor rustix has a safe form of these")]

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_int, c_long, c_void};
use memspill_uffd::pagemap;
use memspill_uffd::userfaultfd::{USERFAULTFD_IOC_NEW, Uffd};

pub type Probe<T> = Result<T, io::Error>;

const PAGE_BYTES: usize = 4096;
/// "Only faults from user mode": needs no privilege since Linux 5.11.
const UFFD_USER_MODE_ONLY: c_int = 1;
const MADV_GUARD_INSTALL: c_int = 102;

/// Features that UFFDIO_API reports, by their bits: those that the pager asks for are the ABI crate's.
pub mod feature {
    use memspill_uffd::userfaultfd;

    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    pub const EVENT_FORK: u64 = userfaultfd::FEATURE_EVENT_FORK;
    pub const EVENT_REMAP: u64 = userfaultfd::FEATURE_EVENT_REMAP;
    pub const EVENT_REMOVE: u64 = userfaultfd::FEATURE_EVENT_REMOVE;
    pub const EVENT_UNMAP: u64 = userfaultfd::FEATURE_EVENT_UNMAP;
    pub const SIGBUS: u64 = 1 << 7;
    pub const POISON: u64 = userfaultfd::FEATURE_POISON;
    pub const WP_ASYNC: u64 = 1 << 15;
    pub const MOVE: u64 = userfaultfd::FEATURE_MOVE;
    /// Bits that this program has names for.
    pub const KNOWN: u64 = (1 << 17) - 1;
}

/// struct io_uring_params: all of it is the kernel's to write, none of it is read here.
#[repr(C, align(8))]
struct IoUringParams([u8; 120]);

/// The result of a system call that makes a descriptor.
fn descriptor(result: c_long) -> Probe<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nothing else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(result as RawFd) })
}

/// userfaultfd(2): `user_mode_only` asks for the kind that serves no faults of the kernel.
pub fn userfaultfd(user_mode_only: bool) -> Probe<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | if user_mode_only { UFFD_USER_MODE_ONLY } else { 0 };
    // SAFETY: takes one integer and touches no memory.
    descriptor(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })
}

/// A userfaultfd from an open /dev/userfaultfd.
pub fn userfaultfd_from(device: &File) -> Probe<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the request takes an integer argument and touches no memory.
    descriptor(c_long::from(unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW as _, flags) }))
}

/// The handshake, asking for `features`; returns all features that this kernel has. Once for each descriptor.
pub fn uffd_features(uffd: OwnedFd, features: u64) -> Probe<u64> {
    let uffd = Uffd::received(uffd).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    uffd.api(features)
}

/// PAGEMAP_SCAN over a page of our own.
pub fn pagemap_scan() -> Probe<()> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let page = AnonymousPage::new()?;
    let start = page.0 as u64;
    pagemap::occupied(&pagemap, start, start + PAGE_BYTES as u64, |_, _| ())
}

/// Guard regions, on a page of our own.
pub fn guard_install() -> Probe<()> {
    let page = AnonymousPage::new()?;
    // SAFETY: the page is our own mapping, and nothing reads or writes it after this.
    let result = unsafe { libc::madvise(page.0, PAGE_BYTES, MADV_GUARD_INSTALL) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Syscall User Dispatch, switched on for this thread and off again: with kernel.syscall_user_dispatch=0
/// (Linux 7.3) only the first fails. Meanwhile a byte says that no call is trapped.
pub fn dispatch() -> Probe<()> {
    const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
    static ALLOW: u8 = 0;
    let set = |mode: c_long, selector: *const u8| {
        // SAFETY: the kernel reads the byte, which is a static.
        match unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, mode, 0, 0, selector) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    set(1, &raw const ALLOW).and_then(|()| set(0, std::ptr::null()))
}

/// Makes a small io_uring, and closes it.
pub fn io_uring() -> Probe<()> {
    let mut params = IoUringParams([0; 120]);
    // SAFETY: the call reads and writes one struct io_uring_params (120 bytes), which `params` is.
    descriptor(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, &raw mut params) }).map(drop)
}

/// Writes to a page of this process that has no access, by the kernel's file of its memory.
pub fn own_memory() -> Probe<()> {
    use std::os::unix::fs::FileExt;
    let page = AnonymousPage::new()?;
    // SAFETY: our own page, of which nobody has a reference.
    if unsafe { libc::mprotect(page.0, PAGE_BYTES, libc::PROT_NONE) } != 0 {
        return Err(io::Error::last_os_error());
    }
    File::options().write(true).open("/proc/self/mem")?.write_all_at(b"memspill", page.0 as u64)
}

/// The parts of a child that may be seen; a child is what the target is to the supervisor.
pub struct ChildAccess {
    /// process_vm_readv of its memory.
    pub memory: Probe<()>,
    /// Opening its /proc/PID/pagemap.
    pub pagemap: Probe<()>,
}

/// Forks a child that only waits, looks at it, and kills it.
pub fn child_access() -> Probe<ChildAccess> {
    static WORD: u64 = 0x6d65_6d73_7069_6c6c;
    // SAFETY: the child calls only prctl, pause and _exit, which are async-signal-safe, so that it may be
    // forked from a process with other threads.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        // SAFETY: none of these touches memory; pause returns only after a handled signal, and then it is
        // time to end.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::pause();
            libc::_exit(0)
        }
    }
    let access = ChildAccess {
        memory: read_word(child, &raw const WORD).and_then(|word| match word {
            word if word == WORD => Ok(()),
            _ => Err(io::Error::other("read another word than the child has")),
        }),
        pagemap: File::open(format!("/proc/{child}/pagemap")).map(drop),
    };
    // SAFETY: `child` is our own, and is not yet waited for, so the number cannot have been given to another.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, ptr::null_mut(), 0);
    }
    Ok(access)
}

/// The word at `address` of process `pid`.
fn read_word(pid: libc::pid_t, address: *const u64) -> Probe<u64> {
    let mut word = 0_u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: size_of::<u64>() };
    let remote = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: size_of::<u64>() };
    // SAFETY: writes at most 8 bytes to `word`; the remote address is the other process's, checked by the
    // kernel.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    match read {
        8 => Ok(word),
        0.. => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// One anonymous page, for as long as the value lives.
struct AnonymousPage(*mut c_void);

impl AnonymousPage {
    fn new() -> Probe<AnonymousPage> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, access, flags, -1, 0) };
        if page == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(AnonymousPage(page)) }
    }
}

impl Drop for AnonymousPage {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no reference into it exists.
        unsafe { libc::munmap(self.0, PAGE_BYTES) };
    }
}

/// Whether `path` has file capabilities.
pub fn has_file_capabilities(path: &std::ffi::CStr) -> bool {
    // SAFETY: both names are C strings; a size of 0 asks for the length and writes nothing.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), ptr::null_mut(), 0) >= 0 }
}
