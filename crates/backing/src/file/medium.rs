//! The file or block device under a swap device: opened, locked, marked, told of what is not needed, let go
//! of.
//!
//! ```text
//!   open ─▶ claim: locked, no data of others in it, as long as its slots ─▶ ... give_back(slots) ...
//!        ─▶ empty (a file with a name), give_back_later (one without) or forget (the device is switched off)
//! ```
//!
//! *The file* is nameless from birth (O_TMPFILE), readable by nobody (mode 000), sparse and opened O_DIRECT:
//! the page cache would keep in RAM what is being moved out of it. A path that the user named and that is not
//! there is no different: the file is made in its directory, without that name, so that no ending leaves it
//! behind. What is there, a file or a block device, is locked, and refused if it holds data that memspill did
//! not put there (page 0, whose slot is never used, carries a mark); a file is emptied in the end.
//!
//! What it does not do: know which slots hold something; read and write pages.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use memspill_engine::units::{PAGE_SIZE, Page};
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// First bytes of page 0 of a file that is memspill's.
const MARK: &[u8] = b"memspill swap file; its contents mean nothing without the process that wrote it\n";

/// Where the bytes go.
#[derive(Clone, Debug)]
pub enum FilePlace {
    /// A nameless file in this directory, gone with the process however it ends.
    Temp { dir: PathBuf },
    /// This file or block device, locked while in use; where it is not there, as `Temp` in its directory.
    Path(PathBuf),
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
    /// A file that was there was so long: emptied when done.
    length_before: Option<u64>,
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
        let file = OwnedFd::from(file);
        let file_system = rustix::fs::fstatfs(&file);
        Ok(Medium {
            direct,
            block_device,
            rotational: is_rotational(&file, block_device),
            in_ram: file_system.is_ok_and(|fs| [0x0102_1994, 0x8584_58f6].contains(&fs.f_type)),
            named,
            length_before: (named && !block_device).then_some(kind.len()),
            file,
        })
    }

    /// Make it ours, with room for `slots` slots. A block device may have fewer: the bytes that it has are
    /// returned.
    pub(super) fn claim(&self, slots: u32) -> io::Result<Option<u64>> {
        if self.named {
            lock_for_us(&self.file)?;
            check_mark(&self.file)?;
        }
        let mut size_bytes = None;
        if self.block_device {
            size_bytes = Some(rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?);
        } else {
            rustix::fs::ftruncate(&self.file, u64::from(slots.max(1)) * PAGE_SIZE as u64)?;
        }
        if self.named {
            let mut page = Box::new(Page::ZERO);
            page.0[..MARK.len()].copy_from_slice(MARK);
            let written = rustix::io::pwrite(&self.file, &page.0, 0)?;
            if written != PAGE_SIZE {
                return Err(io::Error::other("page 0 could not be written"));
            }
        }
        Ok(size_bytes)
    }

    /// Bytes that the file system has allocated for the file, as it says itself (stat's st_blocks).
    pub(super) fn disk_bytes(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.file)?.st_blocks as u64 * 512)
    }

    /// Free space of the file system, if it can be known. What an unprivileged user may use counts as free.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        rustix::fs::fstatvfs(&self.file).ok().map(|stat| stat.f_bavail * stat.f_frsize)
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
        if let Some(length) = self.length_before {
            let _ =
                rustix::fs::ftruncate(&self.file, 0).and_then(|()| rustix::fs::ftruncate(&self.file, length));
        }
    }

    pub(super) fn is_emptied_at_the_end(&self) -> bool {
        self.length_before.is_some()
    }

    /// Whoever closes the last descriptor of a file without a name gives its space back, and on a busy disk
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
            FilePlace::Path(path) => {
                let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | direct;
                match rustix::fs::open(path, flags, Mode::empty()) {
                    Err(Errno::NOENT) => open_nameless(directory_of(path), direct).map(|file| (file, false)),
                    other => other.map(|file| (file, true)),
                }
            }
        };
        match opened {
            Ok((file, named)) => return Ok(Opened { file, direct: !direct.is_empty(), named }),
            // EINVAL: no O_DIRECT here.
            Err(Errno::INVAL) if !direct.is_empty() => {}
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

/// The lock of a run that was killed is held until the kernel has taken down its I/O and its guardian: a
/// moment.
fn lock_for_us(file: &OwnedFd) -> io::Result<()> {
    for _ in 0..200 {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(std::time::Duration::from_millis(10)),
            other => return Ok(other?),
        }
    }
    Err(io::Error::other("in use by another process"))
}

/// A named file or device must be empty, blank in its first page, or marked as memspill's.
fn check_mark(file: &OwnedFd) -> io::Result<()> {
    let mut page = Box::new(Page::ZERO);
    let len = rustix::io::pread(file.as_fd(), &mut page.0, 0)?;
    if page.0.starts_with(MARK) || page.0[..len].iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        "holds data that is not memspill's; give an empty file, or overwrite its first 4096 bytes with zeros",
    ))
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

/// What sysfs says of the disk under the file; solid-state if it says nothing.
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
