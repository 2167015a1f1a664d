//! The agent's file, and the names by which programs open it.
//!
//! ```text
//!   /proc/SUPERVISOR/fd/NUMBER     a sealed memfd: LD_PRELOAD. Nothing is on disk
//!   /run/memspill-agent-DRAWN.so   where memspill is root: for programs that have become another user, which
//!                                  may not open the other (crates/agent/src/agent/programs/readable.rs)
//! ```
//!
//! In the /proc of another pid namespace the first path means whatever file the process with that number has
//! open there. Programs have low numbers for theirs, so ours is a high one that is drawn: the loader finds
//! nothing, and says so. (A process that wants to be found can see to it: it reads the number in the
//! environment of a program there. It gains what root in that namespace may do there.)
//!
//! The two are equally long, for the second is written over the first. Whoever opens the second name looks
//! whether it leads to that file: the process may be in another root directory.
//!
//! The file with a name is removed by whoever ends last, supervisor or guardian, which hold a lock on it. A
//! file that is left when both were killed has no lock, and the next run removes it.
//!
//! What it does not do: tell who opens it.

use memspill_agent::AGENT_SO;
use memspill_common::protocol::FILE_PREFIX;
use rustix::fs::{FileType, FlockOperation, MemfdFlags, Mode, OFlags, SealFlags, StatVfsMountFlags};
use rustix::rand::GetRandomFlags;
use std::fs::{File, read_dir, remove_file};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Where the file with a name may be: directories that are there after a start, and that no user but root
/// takes a file of root's away from.
const DIRECTORIES: [&str; 3] = ["/run", "/tmp", "/var/tmp"];

/// The end of the name, behind FILE_PREFIX: a number of this many digits, and this.
const NUMBER_DIGITS: usize = 16;
const FILE_END: &str = ".so";
/// In each directory.
const TRIES: usize = 3;

pub struct Published {
    path: String,
    memfd: OwnedFd,
    named: Option<Named>,
}

/// A file with a name, for as long as this is there.
struct Named {
    path: String,
    /// Its device and number.
    identity: (u64, u64),
    locked: File,
}

impl Published {
    pub fn new() -> io::Result<Published> {
        let memfd = high_number(memfd()?)?;
        // Nobody else's processes become another user.
        let named = if rustix::process::geteuid().is_root() { Named::new() } else { None };
        let (before, number) = (format!("/proc/{}/fd/", std::process::id()), memfd.as_raw_fd().to_string());
        let len = named.as_ref().map_or(0, |named| named.path.len());
        // More slashes than one are as one.
        let slashes = "/".repeat(len.saturating_sub(before.len() + number.len()));
        Ok(Published { path: format!("{before}{slashes}{number}"), memfd, named })
    }

    /// For LD_PRELOAD.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The name for those to whom the other one is closed.
    pub fn file(&self) -> Option<&str> {
        self.named.as_ref().map(|named| named.path.as_str())
    }

    /// The same with what it leads to, for the environment.
    pub fn told(&self) -> Option<String> {
        let named = self.named.as_ref()?;
        let (device, inode) = named.identity;
        Some(format!("{}:{device}:{inode}", named.path))
    }

    /// All, in the order in which they are to be tried.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.path()).chain(self.file())
    }

    /// By which it is known where it is mapped.
    pub fn inodes(&self) -> Vec<u64> {
        let memfd = identity(&self.memfd).ok();
        memfd
            .into_iter()
            .chain(self.named.as_ref().map(|named| named.identity))
            .map(|(_, inode)| inode)
            .collect()
    }

    /// Is this file, of another process, the agent?
    pub fn is(&self, file: &Path) -> bool {
        let ours = [identity(&self.memfd).ok(), self.named.as_ref().map(|named| named.identity)];
        std::fs::metadata(file).is_ok_and(|found| ours.contains(&Some((found.dev(), found.ino()))))
    }
}

impl Named {
    /// In the first directory where that is possible.
    fn new() -> Option<Named> {
        DIRECTORIES.iter().for_each(|directory| remove_left_behind(directory));
        // Another run may have taken it for left behind before it had its lock.
        let tries = DIRECTORIES.iter().flat_map(|directory| std::iter::repeat_n(directory, TRIES));
        tries.into_iter().find_map(|directory| Named::new_in(directory).ok())
    }

    fn new_in(directory: &str) -> io::Result<Named> {
        let mounted = rustix::fs::statvfs(directory)?.f_flag;
        if mounted.contains(StatVfsMountFlags::NOEXEC) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let path = format!("{directory}/{FILE_PREFIX}{:0NUMBER_DIGITS$x}{FILE_END}", drawn()?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let locked = File::from(rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))?);
        let identity = identity(&locked)?;
        // From here on it is removed if something goes wrong.
        let named = Named { path, identity, locked };
        rustix::fs::flock(&named.locked, FlockOperation::NonBlockingLockShared)?;
        if rustix::fs::fstat(&named.locked)?.st_nlink == 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        write_agent(&named.locked)?;
        rustix::fs::fchmod(&named.locked, Mode::from_raw_mode(0o555))?;
        Ok(named)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = remove_file(&self.path);
    }
}

fn identity(file: impl AsFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Files whose supervisor and guardian have both been killed: nobody has a lock on them.
fn remove_left_behind(directory: &str) {
    for entry in read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(is_name) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(entry.path(), flags, Mode::empty()) else { continue };
        let is_ours = rustix::fs::fstat(&file).is_ok_and(|stat| {
            stat.st_uid == 0 && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        });
        if is_ours && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = remove_file(entry.path());
        }
    }
}

fn is_name(name: &str) -> bool {
    let number = name.strip_prefix(FILE_PREFIX).and_then(|rest| rest.strip_suffix(FILE_END));
    number.is_some_and(|number| {
        number.len() == NUMBER_DIGITS && number.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

/// Programs open it through our /proc entry for as long as we live.
fn memfd() -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("memspill-agent", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    write_agent(&fd)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o555))?;
    Ok(fd)
}

fn write_agent(to: impl AsFd) -> io::Result<()> {
    let mut rest = AGENT_SO;
    while !rest.is_empty() {
        let written = rustix::io::write(&to, rest)?;
        rest = &rest[written..];
    }
    Ok(())
}

/// The same descriptor in the upper half of what the limit of open files, or a table of moderate size, has
/// room for.
fn high_number(fd: OwnedFd) -> io::Result<OwnedFd> {
    const NUMBERS_MAX: u64 = 1 << 14;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let half = limit.min(NUMBERS_MAX) / 2;
    let number = half + drawn()? % half.max(1);
    // No room there: then it has a low one.
    Ok(rustix::io::fcntl_dupfd_cloexec(&fd, number as i32).unwrap_or(fd))
}

fn drawn() -> io::Result<u64> {
    let mut drawn = [0; 8];
    rustix::rand::getrandom(&mut drawn, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(drawn))
}
