//! userfaultfd: registration, filling, and the messages that come out of it.
//!
//! [`Stop`] and [`Fill`] stand in `memspill-engine` too, in pages: the engine knows no kernel and this crate
//! no engine, and the pager, which knows both, translates.
//!
//! Three facts shape the types (each cost others a data loss):
//!
//! * COPY returns how far it came in a signed field beside the errno; a negative value there is an errno, not
//!   a length.
//! * EEXIST means that somebody else filled the page: all that is left to do is to wake the waiters.
//! * EAGAIN means that an event (fork, remap, remove, unmap) waits to be read: nothing can be filled before
//!   that.
#![allow(
    unsafe_code,
    reason = "ioctl and read on a userfaultfd; every call passes structs that live on our stack"
)]

use crate::{READ, WRITE, ioc};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

pub const FEATURE_EVENT_FORK: u64 = 1 << 1;
pub const FEATURE_EVENT_REMAP: u64 = 1 << 2;
pub const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
pub const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
pub const FEATURE_THREAD_ID: u64 = 1 << 8;
pub const FEATURE_POISON: u64 = 1 << 14;
pub const FEATURE_MOVE: u64 = 1 << 16;

const API: u64 = 0xAA;
const REGISTER_MODE_MISSING: u64 = 1;
const REGISTER_MODE_WP: u64 = 2;
const COPY_MODE_DONTWAKE: u64 = 1;
const WRITEPROTECT_MODE_WP: u64 = 1;
/// Flags of a fault's message: a write, and one to a page that is protected.
const FAULT_WRITE: u64 = 1;
const FAULT_PROTECTED: u64 = 2;

#[repr(C)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
struct RangeArg {
    start: u64,
    len: u64,
}
#[repr(C)]
struct RegisterArg {
    range: RangeArg,
    mode: u64,
    ioctls: u64,
}
#[repr(C)]
struct CopyArg {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copy: i64,
}
#[repr(C)]
struct ZeropageArg {
    range: RangeArg,
    mode: u64,
    zeropage: i64,
}

#[repr(C)]
struct WriteprotectArg {
    range: RangeArg,
    mode: u64,
}

/// Any page-aligned address that the kernel lets be looked at (above mmap_min_addr).
const PROBE_ADDR: u64 = 1 << 20;
const PAGE: u64 = 4096;

const UFFDIO_API: u64 = ioc(READ | WRITE, 0xAA, 0x3F, size_of::<ApiArg>());
const UFFDIO_REGISTER: u64 = ioc(READ | WRITE, 0xAA, 0x00, size_of::<RegisterArg>());
const UFFDIO_UNREGISTER: u64 = ioc(READ, 0xAA, 0x01, size_of::<RangeArg>());
const UFFDIO_WAKE: u64 = ioc(READ, 0xAA, 0x02, size_of::<RangeArg>());
const UFFDIO_COPY: u64 = ioc(READ | WRITE, 0xAA, 0x03, size_of::<CopyArg>());
const UFFDIO_ZEROPAGE: u64 = ioc(READ | WRITE, 0xAA, 0x04, size_of::<ZeropageArg>());
/// Same layout as zeropage: range, mode, signed count.
const UFFDIO_CONTINUE: u64 = ioc(READ | WRITE, 0xAA, 0x07, size_of::<ZeropageArg>());
const UFFDIO_POISON: u64 = ioc(READ | WRITE, 0xAA, 0x08, size_of::<ZeropageArg>());
const UFFDIO_WRITEPROTECT: u64 = ioc(READ | WRITE, 0xAA, 0x06, size_of::<WriteprotectArg>());
/// The ioctl of /dev/userfaultfd that makes a userfaultfd.
pub const USERFAULTFD_IOC_NEW: u64 = ioc(0, 0xAA, 0x00, 0);

const _: () = assert!(UFFDIO_API == 0xC018_AA3F);
const _: () = assert!(UFFDIO_REGISTER == 0xC020_AA00);
const _: () = assert!(UFFDIO_UNREGISTER == 0x8010_AA01);
const _: () = assert!(UFFDIO_WAKE == 0x8010_AA02);
const _: () = assert!(UFFDIO_COPY == 0xC028_AA03);
const _: () = assert!(UFFDIO_ZEROPAGE == 0xC020_AA04);
const _: () = assert!(UFFDIO_CONTINUE == 0xC020_AA07);
const _: () = assert!(UFFDIO_POISON == 0xC020_AA08);
const _: () = assert!(UFFDIO_WRITEPROTECT == 0xC018_AA06);
const _: () = assert!(USERFAULTFD_IOC_NEW == 0xAA00);

/// The address of a page of ours that has no contents, ever. None: there is no memory for it.
fn unreadable_page() -> Option<u64> {
    static PAGE_ADDR: OnceLock<Option<u64>> = OnceLock::new();
    *PAGE_ADDR.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE as usize, libc::PROT_NONE, flags, -1, 0) };
        (at != libc::MAP_FAILED).then_some(at as u64)
    })
}

/// Why a fill ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// All that was asked for.
    Done,
    /// The next page is present already: wake its waiters.
    Exists,
    /// An event waits to be read first.
    Again,
    /// No registered mapping there (ENOENT, EINVAL).
    NotMapped,
    /// The address space is gone.
    Gone,
    /// The target's memory cgroup or the machine has no page (ENOMEM).
    NoMemory,
    /// Anything else: errno.
    Errno(i32),
}

/// How far a fill came and why it stopped there.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    pub bytes: u64,
    pub stop: Stop,
}

/// A message.
#[derive(Debug)]
pub enum Event {
    /// `protected`: the page is there, and was protected against writes ([`Uffd::protect`]).
    Fault {
        addr: u64,
        write: bool,
        protected: bool,
        tid: u32,
    },
    Fork {
        child: Uffd,
    },
    Remap {
        from: u64,
        to: u64,
        len: u64,
    },
    Remove {
        start: u64,
        end: u64,
    },
    Unmap {
        start: u64,
        end: u64,
    },
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawMsg {
    event: u8,
    reserved1: u8,
    reserved2: u16,
    reserved3: u32,
    args: [u64; 3],
}
const _: () = assert!(size_of::<RawMsg>() == 32);

/// Most messages taken by one read.
pub const MESSAGES_MAX: usize = 16;

#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    /// The kernel can read this descriptor without waiting, whatever its flags say. (Since 6.10, and not
    /// descriptors that came with a fork.)
    never_waits: AtomicBool,
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Uffd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Uffd {
    fn new(fd: OwnedFd) -> Uffd {
        Uffd { fd, never_waits: AtomicBool::new(true) }
    }

    /// A descriptor that another process has sent. It comes back if it is no userfaultfd.
    pub fn received(fd: OwnedFd) -> Result<Uffd, OwnedFd> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        match std::fs::read_link(path) {
            Ok(name) if name.as_os_str() == "anon_inode:[userfaultfd]" => Ok(Uffd::new(fd)),
            _ => Err(fd),
        }
    }

    /// A userfaultfd of this very process, to find out what the kernel can do.
    pub fn of_self(device: Option<BorrowedFd<'_>>) -> io::Result<Uffd> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: both calls take plain integers and return a new descriptor or -1.
        let fd = unsafe {
            match device {
                Some(device) => libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW as _, flags),
                None => libc::syscall(libc::SYS_userfaultfd, flags) as i32,
            }
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fd is new and ours.
        Ok(Uffd::new(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// One ioctl on this descriptor; `Err` is the errno.
    fn ioctl<T>(&self, number: u64, arg: &mut T) -> Result<(), i32> {
        // SAFETY: `number` encodes size_of::<T>() (asserted above), and `arg` is a live T.
        let r = unsafe { libc::ioctl(self.fd.as_raw_fd(), number as _, arg as *mut T) };
        if r == 0 { Ok(()) } else { Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) }
    }

    /// A userfaultfd of this very process that serves faults of user mode only, which needs no privilege.
    pub fn of_self_for_user_mode() -> io::Result<Uffd> {
        const UFFD_USER_MODE_ONLY: i32 = 1;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY;
        // SAFETY: takes flags, returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as i32;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fd is new and ours.
        Ok(Uffd::new(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The handshake, once per descriptor. Returns the features that the kernel has.
    pub fn api(&self, features: u64) -> io::Result<u64> {
        let mut arg = ApiArg { api: API, features, ioctls: 0 };
        self.ioctl(UFFDIO_API, &mut arg).map_err(io::Error::from_raw_os_error)?;
        Ok(arg.features)
    }

    /// Deliver missing-page faults of [addr, addr + len). EAGAIN while a change is under way: the pager
    /// learns from what is registered in which order changes were made, so nothing may be registered between
    /// a change and the reading of its event.
    pub fn register(&self, addr: u64, len: u64) -> Result<(), i32> {
        self.register_for(REGISTER_MODE_MISSING, addr, len)
    }

    /// The same for what is registered: from now on pages of it can be protected.
    pub fn register_to_protect(&self, addr: u64, len: u64) -> Result<(), i32> {
        self.register_for(REGISTER_MODE_MISSING | REGISTER_MODE_WP, addr, len)
    }

    fn register_for(&self, mode: u64, addr: u64, len: u64) -> Result<(), i32> {
        if self.is_changing() {
            return Err(libc::EAGAIN);
        }
        let mut arg = RegisterArg { range: RangeArg { start: addr, len }, mode, ioctls: 0 };
        self.ioctl(UFFDIO_REGISTER, &mut arg)
    }

    /// A write to a page that is there now, in a range registered to protect, is a fault, until `unprotect`
    /// or until the page leaves. EAGAIN: an event waits to be read first. ENOENT: some of it is not
    /// registered so.
    pub fn protect(&self, addr: u64, len: u64) -> Result<(), i32> {
        self.write_protect(addr, len, WRITEPROTECT_MODE_WP)
    }

    /// Let pages be written to again, and wake who waits for that. Errors as of `protect`: then nobody was
    /// woken.
    pub fn unprotect(&self, addr: u64, len: u64) -> Result<(), i32> {
        self.write_protect(addr, len, 0)
    }

    fn write_protect(&self, addr: u64, len: u64, mode: u64) -> Result<(), i32> {
        self.ioctl(UFFDIO_WRITEPROTECT, &mut WriteprotectArg { range: RangeArg { start: addr, len }, mode })
    }

    pub fn unregister(&self, addr: u64, len: u64) -> Result<(), i32> {
        self.ioctl(UFFDIO_UNREGISTER, &mut RangeArg { start: addr, len })
    }

    /// Wake whoever waits for a page of the range. Harmless when nobody does.
    pub fn wake(&self, addr: u64, len: u64) {
        // The only error is a malformed range, and a gone target has no waiters.
        let _ = self.ioctl(UFFDIO_WAKE, &mut RangeArg { start: addr, len });
    }

    /// Fill missing pages at `dst` with `src`, and wake their waiters.
    pub fn copy(&self, dst: u64, src: &[u8]) -> Fill {
        self.copy_with(dst, src, 0)
    }

    /// As [`Uffd::copy`], without waking the waiters.
    pub fn copy_without_wake(&self, dst: u64, src: &[u8]) -> Fill {
        self.copy_with(dst, src, COPY_MODE_DONTWAKE)
    }

    fn copy_with(&self, dst: u64, src: &[u8], mode: u64) -> Fill {
        let total = src.len() as u64;
        self.fill(total, |done| {
            let mut arg = CopyArg {
                dst: dst + done,
                src: src.as_ptr() as u64 + done,
                len: total - done,
                mode,
                copy: 0,
            };
            (self.ioctl(UFFDIO_COPY, &mut arg), arg.copy)
        })
    }

    /// Map the shared zero page at missing pages. A later write is not seen by the pager.
    pub fn zeropage(&self, dst: u64, len: u64) -> Fill {
        self.fill(len, |done| {
            let mut arg =
                ZeropageArg { range: RangeArg { start: dst + done, len: len - done }, mode: 0, zeropage: 0 };
            (self.ioctl(UFFDIO_ZEROPAGE, &mut arg), arg.zeropage)
        })
    }

    /// Is there a change of the address space whose event is not read yet? From the moment of the change on,
    /// also while its event is not queued yet. Asks for no page at all: EAGAIN if so, else EINVAL.
    pub fn is_changing(&self) -> bool {
        let mut arg = ZeropageArg { range: RangeArg { start: 0, len: 0 }, mode: 0, zeropage: 0 };
        self.ioctl(UFFDIO_ZEROPAGE, &mut arg) == Err(libc::EAGAIN)
    }

    /// Does this page lie in a registered mapping? None if it cannot be said: an event waits to be read, or
    /// the address space is gone. Asks for something that cannot be done to private memory (UFFDIO_CONTINUE:
    /// map what is in a file's cache), and so changes nothing: EINVAL there, ENOENT where nothing is
    /// registered.
    pub fn is_registered(&self, addr: u64) -> Option<bool> {
        let mut arg = ZeropageArg { range: RangeArg { start: addr, len: PAGE }, mode: 0, zeropage: 0 };
        match self.ioctl(UFFDIO_CONTINUE, &mut arg) {
            Err(libc::EINVAL | libc::EEXIST | libc::EFAULT) | Ok(()) => Some(true),
            // A change that began after the kernel looked for one may have taken it away just now.
            Err(libc::ENOENT) if !self.is_changing() => Some(false),
            Err(_) => None,
        }
    }

    /// The same where memory is shared, of which UFFDIO_CONTINUE would map what is in memory. Asks for bytes
    /// that nobody can read to be copied: EFAULT once the kernel has found the mapping, before it looks at
    /// what is there.
    pub fn is_registered_shared(&self, addr: u64) -> Option<bool> {
        let mut arg =
            CopyArg { dst: addr, src: unreadable_page()?, len: PAGE, mode: COPY_MODE_DONTWAKE, copy: 0 };
        match self.ioctl(UFFDIO_COPY, &mut arg) {
            Err(libc::EFAULT | libc::EEXIST) => Some(true),
            Err(libc::ENOENT) if !self.is_changing() => Some(false),
            _ => None,
        }
    }

    /// Has the address space ended? Takes a protection away where nothing is protected, or it would be put
    /// up again at the next look: ENOENT mostly, ESRCH once the address space is gone.
    pub fn is_gone(&self) -> bool {
        self.unprotect(PROBE_ADDR, PAGE) == Err(libc::ESRCH)
    }

    /// Make the next access to these pages a SIGBUS.
    pub fn poison(&self, dst: u64, len: u64) -> Fill {
        self.fill(len, |done| {
            let mut arg =
                ZeropageArg { range: RangeArg { start: dst + done, len: len - done }, mode: 0, zeropage: 0 };
            (self.ioctl(UFFDIO_POISON, &mut arg), arg.zeropage)
        })
    }

    /// Map what the file has in its cache. EFAULT where it has nothing.
    pub fn map_cached(&self, dst: u64, len: u64) -> Fill {
        self.fill(len, |done| {
            let mut arg =
                ZeropageArg { range: RangeArg { start: dst + done, len: len - done }, mode: 0, zeropage: 0 };
            (self.ioctl(UFFDIO_CONTINUE, &mut arg), arg.zeropage)
        })
    }

    /// Repeat a filling ioctl until it is done or stops for a reason. The kernel reports progress in a signed
    /// field: bytes, or a negative errno which means none.
    fn fill(&self, total: u64, mut step: impl FnMut(u64) -> (Result<(), i32>, i64)) -> Fill {
        let mut done = 0;
        while done < total {
            let (result, progress) = step(done);
            let progress = u64::try_from(progress).unwrap_or(0).min(total - done);
            done += progress;
            match result {
                Ok(()) => {}
                // Partial progress is reported as EAGAIN whatever stopped it: ask again to learn why.
                Err(libc::EAGAIN) if progress > 0 => {}
                Err(errno) => return Fill { bytes: done, stop: stop_of(errno) },
            }
        }
        Fill { bytes: done, stop: Stop::Done }
    }

    /// Read what is there, at most [`MESSAGES_MAX`]; nothing is not an error. Does not wait, although whoever
    /// else holds the descriptor (the process itself) can clear its O_NONBLOCK at any time.
    pub fn read(&self, out: &mut Vec<Event>) -> io::Result<usize> {
        self.read_some::<MESSAGES_MAX>(out)
    }

    /// As [`Uffd::read`], one message at most. Faults come before events.
    pub fn read_one(&self, out: &mut Vec<Event>) -> io::Result<usize> {
        self.read_some::<1>(out)
    }

    /// Is there a message? (Or the descriptor has lost its O_NONBLOCK, which is mended by a reading.)
    pub fn is_readable(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, on our stack.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    fn read_some<const MOST: usize>(&self, out: &mut Vec<Event>) -> io::Result<usize> {
        let mut raw = [RawMsg { event: 0, reserved1: 0, reserved2: 0, reserved3: 0, args: [0; 3] }; MOST];
        let n = self.read_raw(&mut raw);
        if n < 0 {
            let e = io::Error::last_os_error();
            if e.kind() != io::ErrorKind::WouldBlock {
                return Err(e);
            }
            // Without O_NONBLOCK the descriptor polls as an error, and an epoll on it would return at once
            // for ever.
            self.set_nonblocking()?;
            return Ok(0);
        }
        let n = n as usize / size_of::<RawMsg>();
        out.extend(raw[..n].iter().filter_map(decode));
        Ok(n)
    }

    fn read_raw(&self, raw: &mut [RawMsg]) -> isize {
        let fd = self.fd.as_raw_fd();
        let buf = libc::iovec { iov_base: raw.as_mut_ptr().cast(), iov_len: size_of_val(raw) };
        if self.never_waits.load(Ordering::Relaxed) {
            // SAFETY: the buffer is the caller's and as long as we say; any bit pattern is a valid RawMsg.
            let n = unsafe { libc::preadv2(fd, &buf, 1, -1, libc::RWF_NOWAIT) };
            if n >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EOPNOTSUPP) {
                return n;
            }
            self.never_waits.store(false, Ordering::Relaxed);
        }
        if self.set_nonblocking().is_err() {
            return -1;
        }
        // SAFETY: as above.
        unsafe { libc::read(fd, buf.iov_base, buf.iov_len) }
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        let fd = self.fd.as_raw_fd();
        // SAFETY: flags of a descriptor of ours, integers.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        let is_set = flags >= 0 && flags & libc::O_NONBLOCK != 0;
        // SAFETY: as above.
        if is_set || flags >= 0 && unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } == 0 {
            return Ok(());
        }
        Err(io::Error::last_os_error())
    }
}

fn stop_of(errno: i32) -> Stop {
    match errno {
        libc::EEXIST => Stop::Exists,
        libc::EAGAIN => Stop::Again,
        libc::ENOENT | libc::EINVAL => Stop::NotMapped,
        libc::ESRCH | libc::ENOSPC => Stop::Gone,
        libc::ENOMEM => Stop::NoMemory,
        errno => Stop::Errno(errno),
    }
}

fn decode(msg: &RawMsg) -> Option<Event> {
    let [a, b, c] = msg.args;
    Some(match msg.event {
        // flags, address, thread id
        0x12 => Event::Fault {
            addr: b,
            write: a & FAULT_WRITE != 0,
            protected: a & FAULT_PROTECTED != 0,
            tid: c as u32,
        },
        0x13 => {
            // SAFETY: the kernel has just installed this descriptor for us; nobody else knows it.
            let fd = unsafe { OwnedFd::from_raw_fd(a as u32 as i32) };
            Event::Fork { child: Uffd::new(fd) }
        }
        0x14 => Event::Remap { from: a, to: b, len: c },
        0x15 => Event::Remove { start: a, end: b },
        0x16 => Event::Unmap { start: a, end: b },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_descriptors_are_no_userfaultfd() {
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let fd = file.as_raw_fd();
        assert_eq!(Uffd::received(file).map(|_| ()).unwrap_err().as_raw_fd(), fd);
    }

    /// A protected page is written once that is allowed; one that is not there is a fault of the other kind.
    /// (Skipped without the privilege to make a userfaultfd.)
    #[test]
    fn a_write_to_a_protected_page_waits() {
        let Ok(uffd) = Uffd::of_self(None) else { return };
        uffd.api(0).unwrap();
        let (len, prot) = (3 * PAGE as usize, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) } as u64;
        let store = move |page: u64, value: u8| {
            // SAFETY: a page of the mapping; nobody else looks at it meanwhile.
            unsafe { ((base + page * PAGE) as *mut u8).write_volatile(value) }
        };
        // SAFETY: as above.
        let load = |page: u64| unsafe { ((base + page * PAGE) as *const u8).read_volatile() };
        (0..2).for_each(|page| store(page, 7));
        uffd.register(base, 3 * PAGE).unwrap();
        assert_eq!(uffd.protect(base, PAGE), Err(libc::ENOENT), "it is registered for missing pages only");
        uffd.register_to_protect(base, 3 * PAGE).unwrap();
        uffd.protect(base, 3 * PAGE).unwrap();
        assert_eq!(load(1), 7);
        let next_fault = || {
            let mut events = Vec::new();
            while uffd.read(&mut events).unwrap() == 0 {
                std::thread::yield_now();
            }
            match events[..] {
                [Event::Fault { addr, write, protected, .. }] => (addr, write, protected),
                ref other => panic!("{other:?}"),
            }
        };
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..3).for_each(|page| store(page, 9)));
            assert_eq!(next_fault(), (base, true, true));
            assert!(!writer.is_finished());
            uffd.unprotect(base, 2 * PAGE).unwrap();
            assert_eq!(next_fault(), (base + 2 * PAGE, true, false), "a page that is not there");
            uffd.copy(base + 2 * PAGE, &[0; PAGE as usize]);
        });
        assert_eq!([load(0), load(1), load(2)], [9; 3]);
        // SAFETY: the mapping made above, not used any more.
        assert_eq!(unsafe { libc::munmap(base as *mut _, len) }, 0);
    }

    /// The process that a userfaultfd belongs to may have made it wait, or make it wait later. (Skipped
    /// without the privilege to make one.)
    #[test]
    fn reading_never_waits() {
        for never_waits in [true, false] {
            // SAFETY: takes flags, returns a new descriptor or -1.
            let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as i32;
            if fd < 0 {
                return;
            }
            // SAFETY: fd is new and ours.
            let uffd = Uffd::received(unsafe { OwnedFd::from_raw_fd(fd) }).expect("a userfaultfd");
            uffd.api(0).unwrap();
            uffd.never_waits.store(never_waits, Ordering::Relaxed);
            for _ in 0..2 {
                assert_eq!(uffd.read(&mut Vec::new()).unwrap(), 0);
                // SAFETY: flags of a descriptor of ours.
                let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
                assert!(flags & libc::O_NONBLOCK != 0, "it would poll as broken");
                // SAFETY: as above.
                unsafe { libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK) };
            }
        }
    }
}
