//! Files of shared memory of which something is swapped out (`--shared=all`), as others must know of them.
//!
//! A swapped-out part of a file is a hole in it, which reads as zeros. If the supervisor is killed, what it
//! had is lost, and nobody is to take the zeros for data. So the guardian, which shares our descriptors,
//! finds here which of them are such files, and empties those: whoever reads one finds it empty, and whoever
//! has one mapped gets SIGBUS. Until then it holds those who open one (fanotify), as we did.
//!
//! The list is a file without a name: a descriptor for each place, 0 where there is none.
#![allow(unsafe_code, reason = "ftruncate of a descriptor that is known by its number")]

use memspill_uffd::fanotify::Watch;
use rustix::fs::{MemfdFlags, memfd_create};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

const ENTRY_BYTES: u64 = size_of::<RawFd>() as u64;

pub struct SwappedFiles {
    list: OwnedFd,
    /// Places that are taken.
    taken: Mutex<Vec<bool>>,
}

impl SwappedFiles {
    pub fn new() -> io::Result<SwappedFiles> {
        let list = memfd_create("memspill-held", MemfdFlags::CLOEXEC)?;
        Ok(SwappedFiles { list, taken: Mutex::default() })
    }

    fn write(&self, place: usize, fd: RawFd) -> io::Result<()> {
        let written = rustix::io::pwrite(&self.list, &fd.to_ne_bytes(), place as u64 * ENTRY_BYTES)?;
        if written as u64 == ENTRY_BYTES { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    fn add(&self, fd: RawFd) -> io::Result<usize> {
        let mut taken = self.taken.lock().expect("held files");
        let place = taken.iter().position(|taken| !taken).unwrap_or(taken.len());
        self.write(place, fd)?;
        if place == taken.len() {
            taken.push(true);
        }
        taken[place] = true;
        Ok(place)
    }

    fn remove(&self, place: usize) {
        let mut taken = self.taken.lock().expect("held files");
        // If that fails, the file would be emptied for nothing after a kill: its place stays taken.
        taken[place] = self.write(place, 0).is_err();
    }

    /// Empty them all: their contents are lost. For the guardian, when the supervisor is gone; it takes no
    /// lock.
    pub fn empty_all(&self) {
        let (mut place, mut entry) = (0, [0; ENTRY_BYTES as usize]);
        while rustix::io::pread(&self.list, &mut entry, place * ENTRY_BYTES) == Ok(entry.len()) {
            let fd = RawFd::from_ne_bytes(entry);
            if fd > 0 {
                // Not by its name: who opens it waits, and we would wait for ourselves.
                // SAFETY: integers. The descriptor stays as it is: nobody else uses the table any more.
                unsafe { libc::ftruncate(fd, 0) };
            }
            place += 1;
        }
    }
}

/// A file is in the list, and who opens it is held, until this is dropped.
pub struct Hold {
    held: Arc<SwappedFiles>,
    place: usize,
    watch: Arc<Watch>,
    file: OwnedFd,
}

impl Hold {
    pub fn new(held: &Arc<SwappedFiles>, watch: &Arc<Watch>, file: BorrowedFd<'_>) -> io::Result<Hold> {
        let file = file.try_clone_to_owned()?;
        watch.watch(file.as_fd())?;
        let place = held.add(file.as_raw_fd()).inspect_err(|_| _ = watch.unwatch(file.as_fd()))?;
        Ok(Hold { held: held.clone(), place, watch: watch.clone(), file })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.held.remove(self.place);
        let _ = self.watch.unwatch(self.file.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn files_that_are_held_are_emptied() {
        let Ok(watch) = Watch::new() else { return eprintln!("not tested: CAP_SYS_ADMIN is missing") };
        let (held, watch) = (Arc::new(SwappedFiles::new().expect("a list")), Arc::new(watch));
        let file = || {
            let file = File::from(memfd_create("held", MemfdFlags::CLOEXEC).expect("a memfd"));
            file.set_len(4096).expect("a length");
            file
        };
        let files = [file(), file(), file()];
        let mut holds: Vec<Hold> =
            files.iter().map(|file| Hold::new(&held, &watch, file.as_fd()).expect("held")).collect();
        drop(holds.remove(1));
        held.empty_all();
        let lengths = files.each_ref().map(|file| file.metadata().expect("a length").len());
        assert_eq!(lengths, [0, 4096, 0]);
    }
}
