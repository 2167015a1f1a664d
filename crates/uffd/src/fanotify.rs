//! A process that opens a watched file is held until it is told to go on (fanotify's permission events).
//!
//! For files of shared memory: what of them is swapped out is a hole, which a call would read as zeros. So
//! who opens one waits until it can be said what becomes of it. Reading is held as well, where the file was
//! opened after the kernel was asked to tell of it (and the descriptor is not that which memfd_create has
//! made).
//!
//! Needs CAP_SYS_ADMIN. When the group's last descriptor is closed, all who wait go on.
#![allow(unsafe_code, reason = "fanotify_init, fanotify_mark, and the events that are read")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const HELD: u64 = libc::FAN_OPEN_PERM | libc::FAN_ACCESS_PERM;

pub struct Watch(OwnedFd);

/// Somebody waits.
pub struct Opener {
    /// The file, open for reading.
    pub file: OwnedFd,
    pub pid: u32,
    pub opens: bool,
}

impl Watch {
    pub fn new() -> io::Result<Watch> {
        let flags = libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC | libc::FAN_UNLIMITED_QUEUE;
        // SAFETY: integers.
        let fd = unsafe { libc::fanotify_init(flags, (libc::O_RDONLY | libc::O_CLOEXEC) as u32) };
        // SAFETY: a new descriptor that is nobody else's.
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Watch(unsafe { OwnedFd::from_raw_fd(fd) })) }
    }

    /// From here on until `unwatch` all who open the file are held.
    pub fn watch(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.mark(libc::FAN_MARK_ADD, file)
    }

    pub fn unwatch(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.mark(libc::FAN_MARK_REMOVE, file)
    }

    fn mark(&self, flags: u32, file: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: descriptors that live across the call, and no path: the file itself is meant.
        let ret = unsafe {
            libc::fanotify_mark(self.0.as_raw_fd(), flags, HELD, file.as_raw_fd(), std::ptr::null())
        };
        if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Wait for the next ones.
    pub fn wait(&self) -> io::Result<Vec<Opener>> {
        const BYTES: usize = 4096;
        #[repr(align(8))]
        struct Buffer([u8; BYTES]);
        let mut buffer = Buffer([0; BYTES]);
        // SAFETY: a buffer of ours, of this length.
        let read = unsafe { libc::read(self.0.as_raw_fd(), buffer.0.as_mut_ptr().cast(), BYTES) };
        if read < 0 {
            return Err(io::Error::last_os_error());
        }
        let (mut at, mut openers) = (0, Vec::new());
        let size = size_of::<libc::fanotify_event_metadata>();
        while at + size <= read as usize {
            // SAFETY: within the buffer; plain data, which is copied.
            let event: libc::fanotify_event_metadata =
                unsafe { buffer.0.as_ptr().add(at).cast::<libc::fanotify_event_metadata>().read_unaligned() };
            at += (event.event_len as usize).max(size);
            if event.fd >= 0 {
                // SAFETY: the kernel has made it for us.
                let file = unsafe { OwnedFd::from_raw_fd(event.fd) };
                let opens = event.mask & libc::FAN_OPEN_PERM != 0;
                openers.push(Opener { file, pid: event.pid as u32, opens });
            }
        }
        Ok(openers)
    }

    /// He may go on.
    pub fn let_go(&self, opener: &Opener) -> io::Result<()> {
        let response = libc::fanotify_response { fd: opener.file.as_raw_fd(), response: libc::FAN_ALLOW };
        // SAFETY: plain data of this length, which the kernel reads.
        let written = unsafe {
            let size = size_of::<libc::fanotify_response>();
            libc::write(self.0.as_raw_fd(), (&raw const response).cast(), size)
        };
        if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn who_opens_a_watched_file_waits() {
        let Ok(watch) = Watch::new() else { return eprintln!("not tested: CAP_SYS_ADMIN is missing") };
        let path = format!("/dev/shm/memspill-watched-{}", std::process::id());
        std::fs::write(&path, b"there").expect("a file");
        let file = std::fs::File::open(&path).expect("open");
        watch.watch(file.as_fd()).expect("watched");
        let ((tell, told), of_reader) = (mpsc::channel(), path.clone());
        std::thread::spawn(move || tell.send(std::fs::read(of_reader).expect("read")));
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "nobody has let him");
        let mut held = Vec::new();
        // He opens it, and reads until there is nothing more.
        while !held.contains(&false) {
            for opener in watch.wait().expect("somebody") {
                assert_eq!(opener.pid, std::process::id());
                held.push(opener.opens);
                assert!(told.try_recv().is_err(), "he has not waited");
                watch.let_go(&opener).expect("let go");
            }
        }
        // He may have begun to read once more, to find that there is nothing. An event that waits already is
        // not taken back with the mark: only the end of the group lets him go on.
        drop(watch);
        assert_eq!(told.recv().expect("read"), b"there");
        assert!(held[0], "opened before it is read");
        let watch = Watch::new().expect("as before");
        watch.watch(file.as_fd()).expect("watched");
        watch.unwatch(file.as_fd()).expect("not watched any more");
        assert_eq!(std::fs::read(&path).expect("read"), b"there");
        std::fs::remove_file(&path).expect("removed");
    }
}
