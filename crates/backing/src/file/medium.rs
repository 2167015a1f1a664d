//! The file or block device under a swap device: opened, locked, marked, told of what is not needed, let go
//! of.
//!
//! ```text
//!   open: locked ─▶ claim: no data of others in it, marked, as long as its slots ─▶ ... give_back(slots) ...
//!        ─▶ empty (a file with a name), give_back_later (one without) or forget (the device is switched off)
//! ```
//!
//! *The file* is nameless from birth (O_TMPFILE), readable by nobody (mode 000), sparse and opened O_DIRECT:
//! the page cache would keep in RAM what is being moved out of it. A path that the user named and that is not
//! there is no different: the file is made in its directory, without that name, so that no ending leaves it
//! behind. An existing file is locked, a block device also against mounts and all others that claim it
//! (O_EXCL). It is refused if it holds data that memspill did not put there: page 0, whose slot is never
//! used, carries memspill's mark, or that of the kernel's swap, which stays, and no other signature is there;
//! or all is zeros. Only the parts of a block device that hold signatures are read. A file is emptied in the
//! end.
//!
//! What it does not do: know which slots hold something; read and write pages.

use crate::signatures::{Ends, HEAD_BYTES, MARK, Sign, TAIL_BYTES, refusal};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use memspill_engine::units::{PAGE_SIZE, Page};
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Where the bytes go.
#[derive(Clone, Debug)]
pub enum FilePlace {
    /// A nameless file in this directory, gone with the process however it ends.
    Temp { dir: PathBuf },
    /// This file or block device, locked while in use; where it is not there, as `Temp` in its directory.
    Path(PathBuf),
    /// The same, and whatever it holds may be lost.
    Overwritten(PathBuf),
}

/// An open file or block device.
pub(super) struct Medium {
    file: OwnedFd,
    /// Opened O_DIRECT. If not, the page cache holds a copy of what was moved out of RAM.
    pub(super) direct: bool,
    pub(super) block_device: bool,
    pub(super) rotational: bool,
    /// On tmpfs or ramfs, so that nothing leaves RAM.
    pub(super) in_ram: bool,
    /// It was there before, and stays. If not, it has no name, and its space goes with its last descriptor.
    named: bool,
    /// All data on it may be lost.
    overwrite: bool,
    /// A file that was there was so long: emptied when done.
    length_before: Option<u64>,
    /// Page 0 is the header of the kernel's swap, and stays it.
    is_kernels: AtomicBool,
}

impl AsFd for Medium {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Medium {
    pub(super) fn open(place: &FilePlace) -> io::Result<Medium> {
        let Opened { file, direct, named } = open_place(place)?;
        let file = fs::File::from(file);
        let kind = file.metadata()?;
        let block_device = kind.file_type().is_block_device();
        if !block_device && !kind.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file or block device"));
        }
        let mut length = kind.len();
        if named {
            lock_for_us(&file)?;
            // The last holder of the lock may have changed it.
            length = file.metadata()?.len();
        }
        let file = OwnedFd::from(file);
        let file_system = rustix::fs::fstatfs(&file);
        Ok(Medium {
            direct,
            block_device,
            rotational: is_rotational(&file, block_device),
            in_ram: file_system.is_ok_and(|fs| [0x0102_1994, 0x8584_58f6].contains(&fs.f_type)),
            named,
            overwrite: matches!(place, FilePlace::Overwritten(_)),
            length_before: (named && !block_device).then_some(length),
            is_kernels: AtomicBool::new(false),
            file,
        })
    }

    /// Make it ours, with room for `slots` slots. A block device has the size that it has, which is returned,
    /// and so has a file whose file system changes no lengths.
    pub(super) fn claim(&self, slots: u32) -> io::Result<Option<u64>> {
        if self.named {
            self.mark()?;
        }
        if self.set_length(u64::from(slots.max(1)) * PAGE_SIZE as u64)? {
            return Ok(None);
        }
        let size_bytes = self.size_bytes()?;
        if !self.block_device && size_bytes < 2 * PAGE_SIZE as u64 {
            let why = "its file system gives it no other length: name a file that has its size already";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Ok(Some(size_bytes))
    }

    /// False: its length stays. File systems in user space, and some of the network, know no truncate.
    fn set_length(&self, bytes: u64) -> io::Result<bool> {
        if self.block_device {
            return Ok(false);
        }
        match rustix::fs::ftruncate(&self.file, bytes) {
            Err(Errno::NOSYS | Errno::OPNOTSUPP) if self.named => Ok(false),
            other => Ok(other.map(|()| true)?),
        }
    }

    fn size_bytes(&self) -> io::Result<u64> {
        Ok(rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?)
    }

    /// Page 0 says whose it is. Written before anything is changed: a file to which the kernel swaps refuses
    /// it.
    fn mark(&self) -> io::Result<()> {
        let mut page = Box::new(Page::ZERO);
        let sign = if self.overwrite { None } else { self.sign(&mut page)? };
        if sign != Some(Sign::Kernel) {
            page.0.fill(0);
            page.0[..MARK.len()].copy_from_slice(MARK);
        }
        self.is_kernels.store(sign == Some(Sign::Kernel), Ordering::Relaxed);
        self.write_at(0, &page.0)?;
        if self.overwrite {
            self.wipe()?;
        }
        Ok(())
    }

    /// The owner of the medium, with page 0 as it must be then; None: it has no owner, all is zeros. An
    /// error: there are data.
    fn sign(&self, page: &mut Page) -> io::Result<Option<Sign>> {
        let size_bytes = self.size_bytes()?;
        let mut buffer = Aligned::new(ENDS_BYTES);
        let ends = Ends {
            head: self.read_at(0, buffer.first(HEAD_BYTES))?.to_vec(),
            tail: self.read_at(tail_at(size_bytes), buffer.first(ENDS_BYTES))?.to_vec(),
            size_bytes,
        };
        let refused = |what| Err(refusal(what));
        if let Some(sign) = ends.sign() {
            page.0.copy_from_slice(&ends.head[..PAGE_SIZE]);
            return ends.surely().map_or(Ok(Some(sign)), refused);
        }
        let is_blank = match self.block_device {
            true => ends.head.iter().chain(&ends.tail).all(|byte| *byte == 0),
            false => self.is_all_zeros(&mut buffer, size_bytes)?,
        };
        if is_blank { Ok(None) } else { refused(ends.name().unwrap_or("data")) }
    }

    /// Holes of a file are not read.
    fn is_all_zeros(&self, buffer: &mut Aligned, size_bytes: u64) -> io::Result<bool> {
        let mut at = 0;
        while at < size_bytes {
            match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(at)) {
                Ok(data) => at = at.max(data / PAGE_SIZE as u64 * PAGE_SIZE as u64),
                Err(Errno::NXIO) => return Ok(true),
                // Not known here where data are.
                Err(_) => {}
            }
            let read = self.read_at(at, buffer.first(HEAD_BYTES))?;
            if read.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += HEAD_BYTES as u64;
        }
        Ok(true)
    }

    /// No signature of before is left in a medium that is memspill's.
    fn wipe(&self) -> io::Result<()> {
        if self.set_length(PAGE_SIZE as u64)? {
            return Ok(());
        }
        let size_bytes = self.size_bytes()?;
        let mut zeros = Aligned::new(ENDS_BYTES);
        let mut clear = |from: u64, to: u64| match to.checked_sub(from) {
            Some(bytes) => self.write_at(from, zeros.first(bytes as usize)),
            None => Ok(()),
        };
        clear(PAGE_SIZE as u64, size_bytes.min(HEAD_BYTES as u64))?;
        clear(tail_at(size_bytes).max(PAGE_SIZE as u64), size_bytes)
    }

    /// Fewer bytes only where it ends.
    fn read_at<'a>(&self, at: u64, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let mut len = 0;
        while len < buffer.len() {
            match rustix::io::pread(&self.file, &mut buffer[len..], at + len as u64)? {
                0 => break,
                read => len += read,
            }
            // Only the last read is not a whole page.
            if !len.is_multiple_of(PAGE_SIZE) {
                break;
            }
        }
        Ok(&buffer[..len])
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let written = rustix::io::pwrite(&self.file, bytes, at).map_err(|errno| match errno {
            Errno::TXTBSY => io::Error::new(
                io::ErrorKind::ResourceBusy,
                "the kernel swaps to it: name another file, or end that with swapoff",
            ),
            other => other.into(),
        })?;
        if written == bytes.len() {
            Ok(())
        } else {
            Err(io::Error::other("its first page cannot be written"))
        }
    }

    /// Bytes that the file system has allocated for the file, as it says itself (stat's st_blocks).
    pub(super) fn disk_bytes(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.file)?.st_blocks as u64 * 512)
    }

    /// Free space of the file system, if it can be known. Space that an unprivileged user may use counts as
    /// free. A file system that tells nothing of itself, as some in user space do, sets the end by ENOSPC.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::fstatvfs(&self.file).ok()?;
        Some(if stat.f_blocks == 0 { u64::MAX } else { stat.f_bavail * stat.f_frsize })
    }

    /// Tell it that the places of slots `start..end` hold nothing of worth.
    pub(super) fn give_back(&self, start: u32, end: u32) -> Result<(), Errno> {
        let bytes = |slots: u32| u64::from(slots) * PAGE_SIZE as u64;
        let (at, len) = (bytes(start), bytes(end - start));
        if self.block_device {
            return discard_range(&self.file, at, len);
        }
        rustix::fs::fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
    }

    /// The same at the start, where it is an error if it cannot be done.
    pub(super) fn discard_at_start(&self, end: u32) -> io::Result<()> {
        self.give_back(1, end).map_err(cannot_discard)
    }

    /// It held a program's memory: leave none of it in a file with a name, and no space on disk in use.
    pub(super) fn empty(&self) {
        let Some(length) = self.length_before else { return };
        let is_kernels = self.is_kernels.load(Ordering::Relaxed);
        let kept_bytes = if is_kernels { PAGE_SIZE as u64 } else { 0 };
        let _ = match self.set_length(kept_bytes) {
            Ok(true) => {
                // The kernel swaps to no file that has holes.
                rustix::fs::ftruncate(&self.file, length).and_then(|()| match is_kernels {
                    true => rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, length),
                    false => Ok(()),
                })
            }
            Ok(false) => self.give_back(1, u32::try_from(length / PAGE_SIZE as u64).unwrap_or(u32::MAX)),
            Err(_) => Ok(()),
        };
    }

    pub(super) fn is_emptied_at_the_end(&self) -> bool {
        self.length_before.is_some()
    }

    /// The process that closes the last descriptor of a nameless file gives its space back. On a busy disk
    /// that discards blocks this took ten seconds and more, in the exit of a process that no signal ends any
    /// more and that somebody waits for. A ring holds what is registered with it, and when it is closed the
    /// kernel's own workers let go of that.
    pub(super) fn give_back_later(&self) {
        if self.named {
            return;
        }
        // Without io_uring whoever waits for us waits longer.
        if let Ok(ring) = io_uring::IoUring::new(1)
            && ring.submitter().register_files(&[self.file.as_raw_fd()]).is_ok()
        {
            std::mem::forget(ring);
        }
    }

    /// Close the file, and keep the number of its descriptor for something that can be neither read nor
    /// written: whoever comes late with that number meets no other file. So no lock is needed around each use
    /// of it.
    #[allow(unsafe_code, reason = "dup3 onto a descriptor of our own, which stays open and ours")]
    pub(super) fn forget(&self) {
        let nothing = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
        let closed = nothing.is_ok_and(|nothing| {
            // SAFETY: both descriptors are open and ours; only what the second one stands for changes.
            unsafe { libc::dup3(nothing.as_raw_fd(), self.file.as_raw_fd(), libc::O_CLOEXEC) >= 0 }
        });
        // Without a descriptor to spare it stays open, and unlocked.
        if !closed {
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

struct Opened {
    file: OwnedFd,
    direct: bool,
    /// It was there before, and stays.
    named: bool,
}

/// Open, with O_DIRECT where the file system has it.
fn open_place(place: &FilePlace) -> io::Result<Opened> {
    for direct in [OFlags::DIRECT, OFlags::empty()] {
        let opened = match place {
            FilePlace::Temp { dir } => open_nameless(dir, direct).map(|file| (file, false)),
            FilePlace::Path(path) | FilePlace::Overwritten(path) => {
                // (O_EXCL means something for block devices only.)
                let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::EXCL | direct;
                match until_free(|| rustix::fs::open(path, flags, Mode::empty())) {
                    Err(Errno::NOENT) => open_nameless(directory_of(path), direct).map(|file| (file, false)),
                    other => other.map(|file| (file, true)),
                }
            }
        };
        match opened {
            Ok((file, named)) => return Ok(Opened { file, direct: !direct.is_empty(), named }),
            // EINVAL: no O_DIRECT here.
            Err(Errno::INVAL) if !direct.is_empty() => {}
            Err(Errno::BUSY) => {
                let why = "in use: mounted, or part of swap, RAID or LVM; name a device that nothing uses";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
            Err(error) => return Err(error.into()),
        }
    }
    unreachable!("the second round ends in either way")
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn open_nameless(dir: &Path, direct: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | direct;
    match rustix::fs::open(dir, flags | OFlags::TMPFILE | OFlags::EXCL, Mode::empty()) {
        // No O_TMPFILE on this file system: a file that has a name for a moment.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {}
        other => return other,
    }
    for attempt in 0..100u32 {
        let path = dir.join(format!(".memspill-{}-{attempt}", std::process::id()));
        match rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, Mode::empty())
        {
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
            Ok(file) => {
                rustix::fs::unlink(&path)?;
                return Ok(file);
            }
        }
    }
    Err(Errno::EXIST)
}

/// A killed run holds its locks for a moment, until the kernel has taken down its I/O and its guardian.
fn until_free<T>(mut take: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..200 {
        match take() {
            Err(Errno::BUSY | Errno::WOULDBLOCK) => std::thread::sleep(std::time::Duration::from_millis(10)),
            other => return other,
        }
    }
    take()
}

fn lock_for_us(file: &fs::File) -> io::Result<()> {
    until_free(|| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)).map_err(|e| match e {
        Errno::WOULDBLOCK => io::Error::new(io::ErrorKind::ResourceBusy, "in use by another process"),
        other => other.into(),
    })
}

/// At most so much is read of the start, or of the end.
const ENDS_BYTES: usize = if HEAD_BYTES > TAIL_BYTES { HEAD_BYTES } else { TAIL_BYTES } + PAGE_SIZE;

/// The last bytes begin here, at a page.
fn tail_at(size_bytes: u64) -> u64 {
    size_bytes.saturating_sub(TAIL_BYTES as u64) / PAGE_SIZE as u64 * PAGE_SIZE as u64
}

/// Zeros at an address that O_DIRECT takes.
struct Aligned(Vec<u8>);

impl Aligned {
    fn new(bytes: usize) -> Aligned {
        Aligned(vec![0; bytes + PAGE_SIZE])
    }

    fn first(&mut self, bytes: usize) -> &mut [u8] {
        let skipped = self.0.as_ptr().align_offset(PAGE_SIZE);
        &mut self.0[skipped..][..bytes]
    }
}

/// BLKDISCARD. Not the punched hole of fallocate, which on a block device is a write of zeros.
#[allow(unsafe_code, reason = "an ioctl for which rustix has no function")]
fn discard_range(file: &OwnedFd, at_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
    const BLKDISCARD: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);
    // SAFETY: BLKDISCARD reads two 64-bit numbers, where to begin and how many bytes, and nothing else.
    unsafe {
        let range = rustix::ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([at_bytes, len_bytes]);
        rustix::ioctl::ioctl(file, range)
    }
}

fn cannot_discard(errno: Errno) -> io::Error {
    match errno {
        Errno::OPNOTSUPP => io::Error::new(io::ErrorKind::Unsupported, "discard is not supported there"),
        other => io::Error::other(format!("discard: {}", io::Error::from(other))),
    }
}

/// Asks sysfs whether the disk under the file rotates; solid-state if it says nothing.
fn is_rotational(file: &OwnedFd, block_device: bool) -> bool {
    let Ok(stat) = rustix::fs::fstat(file) else { return false };
    let device = if block_device { stat.st_rdev } else { stat.st_dev };
    let base = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has its queue one level up.
    ["queue/rotational", "../queue/rotational"]
        .iter()
        .find_map(|name| fs::read_to_string(format!("{base}/{name}")).ok())
        .is_some_and(|text| text.trim() == "1")
}
