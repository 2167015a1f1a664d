//! The agent's file, and the names by which programs open it.
//!
//! ```text
//!   /proc/SUPERVISOR/fd/NUMBER     a sealed memfd: LD_PRELOAD. Nothing is on disk
//!   /run/memspill-agent-DRAWN.so   where memspill is root: for programs that have become another user, or
//!                                  have fewer rights, which may not open the other
//!                                  (crates/agent/src/agent/readable.rs)
//! ```
//!
//! In the /proc of another pid namespace the first path means whatever file the process with that number has
//! open there. Programs have low numbers for theirs, so ours is a high one that is drawn: the loader finds
//! nothing, and says so. (Whoever wants to be found can see to it: he reads the number in the environment of
//! a program there. What he gains is what root in that namespace may do there.)
//!
//! The file with a name is removed by whoever ends last, supervisor or guardian, which hold a lock on it.
//! What is left where both were killed has no lock, and the next run removes it.
//!
//! What it does not do: tell who opens it.

use memspill_agent::AGENT_SO;
use memspill_agent::protocol::FILE_PREFIX;
use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags, SealFlags, StatVfsMountFlags};
use rustix::rand::GetRandomFlags;
use std::fs::{File, read_dir, remove_file};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Where the file with a name may be: directories that are there after a start, and that no user but root
/// takes a file of root's away from.
const DIRECTORIES: [&str; 3] = ["/run", "/tmp", "/var/tmp"];

pub struct Published {
    path: String,
    _memfd: OwnedFd,
    named: Option<Named>,
}

/// A file with a name, for as long as this is there.
struct Named {
    path: String,
    _locked: File,
}

impl Published {
    pub fn new() -> io::Result<Published> {
        let memfd = high_number(memfd()?)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), memfd.as_raw_fd());
        // Nobody else's processes become another user.
        let is_root = rustix::process::geteuid().is_root();
        let named = DIRECTORIES.iter().filter(|_| is_root).find_map(|directory| Named::new(directory).ok());
        Ok(Published { path, _memfd: memfd, named })
    }

    /// For LD_PRELOAD.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// For those to whom the other name is closed.
    pub fn file(&self) -> Option<&str> {
        self.named.as_ref().map(|named| named.path.as_str())
    }

    /// All, in the order in which they are to be tried.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.path()).chain(self.file())
    }
}

impl Named {
    fn new(directory: &str) -> io::Result<Named> {
        let mounted = rustix::fs::statvfs(directory)?.f_flag;
        if mounted.contains(StatVfsMountFlags::NOEXEC) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        remove_left_behind(directory);
        let path = format!("{directory}/{FILE_PREFIX}{:016x}.so", drawn()?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))?;
        // From here on it is removed if something goes wrong.
        let named = Named { path, _locked: File::from(file) };
        rustix::fs::flock(&named._locked, FlockOperation::NonBlockingLockShared)?;
        write_agent(&named._locked)?;
        rustix::fs::fchmod(&named._locked, Mode::from_raw_mode(0o555))?;

        Ok(named)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = remove_file(&self.path);
    }
}

/// Files whose supervisor and guardian have both been killed: nobody has a lock on them.
fn remove_left_behind(directory: &str) {
    for entry in read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_none_or(|name| !name.starts_with(FILE_PREFIX)) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(entry.path(), flags, Mode::empty()) else { continue };
        let is_ours = rustix::fs::fstat(&file).is_ok_and(|stat| stat.st_uid == 0);
        if is_ours && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = remove_file(entry.path());
        }
    }
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

fn write_agent(to: impl std::os::fd::AsFd) -> io::Result<()> {
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
