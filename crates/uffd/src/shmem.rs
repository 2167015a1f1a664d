//! A shared-memory object of another process (MAP_SHARED | MAP_ANONYMOUS): its descriptor, a mapping of our
//! own, pages out of it and into it.
//!
//! ```text
//!   out   splice(object → pipe)     the pipe holds the pages themselves, not copies
//!         fallocate(PUNCH_HOLE)     unmapped in all processes; the next access is a fault for missing pages
//!         read(pipe → frames)       nobody reaches the pages any more: these are the last bytes
//!   in    UFFDIO_COPY at our own mapping of the object: whoever maps it finds the page
//! ```
//!
//! A store before the hole is in the page, and one after it waits for its fault. A copy that is read before
//! the hole is made loses what is stored between the two: that is what the order is for.
//!
//! The caller must see to this: each mapping of the object is registered with a userfaultfd for missing pages
//! (else its next access makes a page of zeros); nobody has pinned its pages for a device; it has no large
//! folios (a part of one is emptied in place, before it is read).
//!
//! Our own mapping is never touched, so nothing waits for us: it is there for the fills, and for mincore.
#![allow(
    unsafe_code,
    reason = "splice, fallocate, mincore and a mapping that is never touched, of a descriptor of ours"
)]

use crate::userfaultfd::{Fill, Stop, Uffd};
use rustix::fs::SealFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;

const PAGE: u64 = 4096;
pub const TMPFS_MAGIC: u64 = 0x0102_1994;
/// What a pipe is asked for: as much as a batch.
const PIPE_BYTES: i32 = 1 << 20;

/// What an object is known by: device and inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Id {
    pub dev: u64,
    pub ino: u64,
}

/// An object, held by its descriptor, so that its inode is nobody else's.
#[derive(Debug)]
pub struct Object {
    file: File,
    pub id: Id,
    pub bytes: u64,
    /// To the byte.
    len: u64,
}

impl Object {
    /// What process `pid` has mapped at [start, end), which must be one mapping to the byte. PermissionDenied
    /// without CAP_CHECKPOINT_RESTORE.
    pub fn of_mapping(pid: u32, start: u64, end: u64) -> io::Result<Object> {
        let path = format!("/proc/{pid}/map_files/{start:x}-{end:x}");
        Object::of_file(OpenOptions::new().read(true).write(true).open(path)?)
    }

    /// Only whole pages of it: the rest of the last one, of a file, stays where it is.
    fn of_file(file: File) -> io::Result<Object> {
        let metadata = file.metadata()?;
        let id = Id { dev: metadata.dev(), ino: metadata.ino() };
        let len = metadata.len();
        Ok(Object { file, id, bytes: len / PAGE * PAGE, len })
    }

    /// Why the object may not be managed, if it is a file that may not.
    pub fn unfit(&self) -> io::Result<Option<&'static str>> {
        let metadata = self.file.metadata()?;
        if !metadata.is_file() || rustix::fs::fstatfs(&self.file)?.f_type as u64 != TMPFS_MAGIC {
            return Ok(Some("it is no file of tmpfs"));
        }
        let seals = rustix::fs::fcntl_get_seals(&self.file)?;
        // With the last one it could not be emptied, if the worst came.
        let forbidden = SealFlags::WRITE | SealFlags::FUTURE_WRITE | SealFlags::SHRINK;
        Ok(seals.intersects(forbidden).then_some("it is sealed"))
    }

    /// Has it a name, by which it can be opened?
    pub fn has_name(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() > 0)
    }

    /// Has anybody but us got it open or mapped? The kernel gives a lease for writing only if nobody has. It
    /// does not count a descriptor with O_PATH, nor the one that memfd_create has made, and what is mapped
    /// by it.
    pub fn is_held_by_others(&self) -> bool {
        let lease = |kind: i32| {
            // SAFETY: integers, and a descriptor of ours.
            unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLEASE, kind) == 0 }
        };
        let is_alone = lease(libc::F_WRLCK);
        if is_alone {
            lease(libc::F_UNLCK);
        }
        !is_alone
    }

    /// Is it as long as it was when it was opened here? A store to it changes its times, so that those do not
    /// tell what calls have done to it.
    pub fn has_its_length(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.len() == self.len)
    }

    /// Is its file system full?
    pub fn is_full(&self) -> bool {
        // Without a limit, as the kernel's own has none, all counts are zero.
        rustix::fs::fstatfs(&self.file).is_ok_and(|found| found.f_blocks > 0 && found.f_bavail == 0)
    }

    /// Its contents are lost: nobody is to take what is left for them.
    pub fn empty(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn changed_at(&self) -> io::Result<(i64, i64)> {
        let metadata = self.file.metadata()?;
        Ok((metadata.ctime(), metadata.ctime_nsec()))
    }

    /// What it has in memory.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    /// The range [from, from + len) is gone, for everybody.
    fn punch(&self, from: u64, len: u64) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: integers, and a descriptor of ours.
        let result = unsafe { libc::fallocate(self.file.as_raw_fd(), mode, from as i64, len as i64) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Pages on their way out of an object.
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    pages: usize,
}

impl Pipe {
    pub fn new() -> io::Result<Pipe> {
        let mut fds = [0; 2];
        // SAFETY: the array has room for two descriptors.
        if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both are new and ours.
        let (read, write) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
        // Its present size is enough if it may not be more: then a run goes out in pieces. SAFETY: integers,
        // and a descriptor of ours.
        let bytes = unsafe {
            libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES);
            libc::fcntl(write.as_raw_fd(), libc::F_GETPIPE_SZ)
        };
        if bytes < PAGE as i32 {
            return Err(io::Error::last_os_error());
        }
        Ok(Pipe { read, write, pages: bytes as usize / PAGE as usize })
    }

    /// Pages that go through it at once.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Read exactly so many bytes that are in it.
    fn drain(&self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            // SAFETY: the buffer is ours, and as long as we say.
            let n = unsafe { libc::read(self.read.as_raw_fd(), into.as_mut_ptr().cast(), into.len()) };
            match n {
                n if n > 0 => into = &mut into[n as usize..],
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}

/// An object with a mapping of our own, and that mapping's userfaultfd.
pub struct Mapped {
    pub object: Object,
    uffd: Uffd,
    base: u64,
    /// When we last made a hole in it, by the object's own times (s, ns).
    punched_at: Mutex<Option<(i64, i64)>>,
}

/// What has been taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// The number of pages, from the first one on.
    Pages(usize),
    /// The pages have left the object, and what was read is not to be trusted. One of them was there again
    /// at once: somebody whom we do not know makes pages in this object, or it has folios of which a part
    /// cannot be taken. Or the pipe could not be read.
    Lost,
}

impl Mapped {
    /// `uffd`: of this very process, for nothing else than this object.
    pub fn new(object: Object, uffd: Uffd) -> io::Result<Mapped> {
        uffd.api(0)?;
        let (protection, len) = (libc::PROT_READ | libc::PROT_WRITE, object.bytes as usize);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            let fd = object.file.as_raw_fd();
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED | libc::MAP_NORESERVE, fd, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapped = Mapped { object, uffd, base: base as u64, punched_at: Mutex::new(None) };
        // SAFETY: advice on the mapping just made. (No child of ours is to have it.)
        unsafe { libc::madvise(base, len, libc::MADV_DONTFORK) };
        mapped.uffd.register(mapped.base, mapped.object.bytes).map_err(io::Error::from_raw_os_error)?;
        Ok(mapped)
    }

    /// The range [from, from + len) is gone, for everybody. One caller at a time.
    pub fn punch(&self, from: u64, len: u64) -> io::Result<()> {
        self.object.punch(from, len)?;
        *self.punched_at.lock().expect("times") = self.object.changed_at().ok();
        Ok(())
    }

    /// Has nobody else made a hole since we last made one? It is told by the object's time of change, which
    /// the kernel makes a new one with each change that follows a look at it (since Linux 6.13; before, only
    /// with each tick). No: perhaps somebody has.
    pub fn is_punched_by_us_only(&self) -> bool {
        let (ours, now) = (*self.punched_at.lock().expect("times"), self.object.changed_at().ok());
        ours.is_some() && ours == now
    }

    /// Take the pages of [from, from + frames.len()) out, at most as many as the pipe holds. An error: none
    /// was taken.
    pub fn take(&self, pipe: &Pipe, from: u64, frames: &mut [u8]) -> io::Result<Taken> {
        let wanted = frames.len().min(pipe.pages * PAGE as usize);
        let spliced = self.splice(pipe, from, wanted)?;
        let whole = spliced - spliced % PAGE as usize;
        if whole == 0 {
            self.forget(pipe, spliced)?;
            return Ok(Taken::Pages(0));
        }
        if let Err(error) = self.punch(from, whole as u64) {
            self.forget(pipe, spliced)?;
            return Err(error);
        }
        let read = pipe.drain(&mut frames[..whole]).and_then(|()| self.forget(pipe, spliced - whole));
        match read.and_then(|()| self.is_any_present(from, whole as u64)) {
            Ok(false) => Ok(Taken::Pages(whole / PAGE as usize)),
            Ok(true) | Err(_) => Ok(Taken::Lost),
        }
    }

    /// As many bytes from `from` on as go into the pipe, by reference.
    fn splice(&self, pipe: &Pipe, from: u64, wanted: usize) -> io::Result<usize> {
        let mut at = from as i64;
        let mut done = 0;
        while done < wanted {
            let (file, into) = (self.object.file.as_raw_fd(), pipe.write.as_raw_fd());
            let left = wanted - done;
            // SAFETY: descriptors of ours, and an offset that lives across the call.
            let n = unsafe {
                libc::splice(file, &mut at, into, std::ptr::null_mut(), left, libc::SPLICE_F_NONBLOCK)
            };
            match n {
                n if n > 0 => done += n as usize,
                // The end of the object, or of the pipe.
                _ if n == 0 || done > 0 => break,
                _ => return Err(io::Error::last_os_error()),
            }
        }
        Ok(done)
    }

    /// The bytes in the pipe stay in the object.
    fn forget(&self, pipe: &Pipe, bytes: usize) -> io::Result<()> {
        let mut rest = vec![0; bytes];
        pipe.drain(&mut rest)
    }

    /// Fill missing pages from `from` on. A thread that waits for them goes on waiting until it is woken by
    /// the userfaultfd of its own process. Pages behind the object's end are not mapped.
    pub fn copy(&self, from: u64, bytes: &[u8]) -> Fill {
        self.within(from, bytes.len() as u64, |len| self.uffd.copy(self.base + from, &bytes[..len as usize]))
    }

    /// The same with zeros.
    pub fn zeropage(&self, from: u64, len: u64) -> Fill {
        self.within(from, len, |len| self.uffd.zeropage(self.base + from, len))
    }

    /// Behind our mapping lies another one, perhaps another object's, and the kernel would fill that: it asks
    /// whether a mapping has a userfaultfd, not whether it is this one.
    fn within(&self, from: u64, len: u64, fill: impl FnOnce(u64) -> Fill) -> Fill {
        match self.object.bytes.saturating_sub(from) {
            0 => Fill { bytes: 0, stop: Stop::NotMapped },
            rest if rest < len => match fill(rest) {
                Fill { bytes, stop: Stop::Done } => Fill { bytes, stop: Stop::NotMapped },
                filled => filled,
            },
            _ => fill(len),
        }
    }

    fn is_any_present(&self, from: u64, len: u64) -> io::Result<bool> {
        let mut any = false;
        self.present(from, len, |_, _| any = true)?;
        Ok(any)
    }

    /// Pages that fallocate has made in [from, from + len), and nobody has touched, are in memory, and make
    /// no fault when somebody does; mincore and splice take them for holes. Make zeros of them, which are
    /// pages like others.
    pub fn clear_allocated(&self, from: u64, len: u64) -> io::Result<()> {
        let (mut holes, mut at) = (Vec::new(), from);
        let end = (from + len).min(self.object.bytes);
        self.present(from, len, |start, to| {
            holes.push((at, start));
            at = to;
        })?;
        holes.push((at, end));
        for (mut at, to) in holes {
            while at < to {
                let mapped = self.uffd.map_cached(self.base + at, to - at);
                at += mapped.bytes;
                match mapped.stop {
                    Stop::Done => {}
                    // There is nothing; or it is there by now.
                    Stop::Errno(libc::EFAULT) | Stop::Exists => at += PAGE,
                    _ => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// Call `found(from, to)` for each run of pages of [from, from + len) that are in memory.
    pub fn present(&self, from: u64, len: u64, mut found: impl FnMut(u64, u64)) -> io::Result<()> {
        const PIECE: u64 = 1 << 24;
        let (mut at, end) = (from, (from + len).min(self.object.bytes));
        let mut flags = [0u8; (PIECE / PAGE) as usize];
        while at < end {
            let piece = (end - at).min(PIECE);
            // SAFETY: within our mapping, and a byte for each page of the piece.
            let result =
                unsafe { libc::mincore((self.base + at) as *mut _, piece as usize, flags.as_mut_ptr()) };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
            let flags = &flags[..(piece / PAGE) as usize];
            let mut page = 0;
            for run in flags.chunk_by(|a, b| a & 1 == b & 1) {
                if run[0] & 1 == 1 {
                    found(at + page * PAGE, at + (page + run.len() as u64) * PAGE);
                }
                page += run.len() as u64;
            }
            at += piece;
        }
        Ok(())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our mapping, of this length, not used after this.
        unsafe { libc::munmap(self.base as *mut _, self.object.bytes as usize) };
    }
}

/// May this process open objects of shared memory? Tries it with one of its own.
pub fn probe() -> io::Result<()> {
    let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping of a page at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE as usize, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let opened = Object::of_mapping(std::process::id(), at as u64, at as u64 + PAGE);
    // SAFETY: the mapping just made, not used after this.
    unsafe { libc::munmap(at, PAGE as usize) };
    opened.map(drop)
}

/// May shared memory on this machine have large folios?
pub fn may_be_huge() -> bool {
    const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";
    let chosen = |path: String| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split(['[', ']']).nth(1).map(str::to_string)
    };
    let all = chosen(format!("{FOLDER}/shmem_enabled"));
    // A kernel without huge pages has no such file.
    if !matches!(all.as_deref(), None | Some("never" | "deny")) {
        return true;
    }
    let sizes = std::fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let mut sizes = sizes.filter(|entry| entry.file_name().to_string_lossy().starts_with("hugepages-"));
    sizes.any(|size| {
        let of_size = chosen(format!("{}/shmem_enabled", size.path().display()));
        !matches!(of_size.as_deref(), None | Some("never" | "inherit"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::userfaultfd::Event;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const PAGES: usize = 64;
    const BYTES: usize = PAGES * PAGE as usize;

    /// Two mappings of one anonymous object in this process, as two mappers have them; each is registered.
    struct Pair {
        mapped: Mapped,
        pipe: Pipe,
        uffd: Uffd,
        at: [u64; 2],
    }

    fn map(fd: i32, flags: i32) -> u64 {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at as u64
    }

    fn word(at: u64, page: usize) -> &'static AtomicU64 {
        // SAFETY: within a mapping that is never unmapped.
        unsafe { AtomicU64::from_ptr((at as *mut u8).add(page * PAGE as usize).cast()) }
    }

    /// None without the privileges.
    fn pair() -> Option<Pair> {
        let first = map(-1, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let object = match Object::of_mapping(std::process::id(), first, first + BYTES as u64) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return None,
            object => object.expect("its own mapping"),
        };
        let second = map(object.file.as_raw_fd(), libc::MAP_SHARED);
        let uffd = Uffd::of_self(None).ok()?;
        uffd.api(0).expect("the handshake");
        for at in [first, second] {
            uffd.register(at, BYTES as u64).expect("shared memory registers");
        }
        let mapped = Mapped::new(object, Uffd::of_self(None).ok()?).expect("a mapping of our own");
        Some(Pair { mapped, pipe: Pipe::new().expect("a pipe"), uffd, at: [first, second] })
    }

    /// Answer faults as a pager does, until told to stop: what was taken comes back from `store`.
    fn serve(pair: &Pair, store: &std::sync::Mutex<Vec<Option<Vec<u8>>>>, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let mut events = Vec::new();
            pair.uffd.read(&mut events).expect("events");
            for event in &events {
                let Event::Fault { addr, .. } = event else { panic!("{event:?}") };
                let base = if (pair.at[0]..pair.at[0] + BYTES as u64).contains(addr) { 0 } else { 1 };
                let page = ((addr - pair.at[base]) / PAGE) as usize;
                let mut store = store.lock().unwrap();
                if let Some(bytes) = store[page].take() {
                    let fill = pair.mapped.copy(page as u64 * PAGE, &bytes);
                    assert_eq!(fill.bytes, PAGE, "{:?}", fill.stop);
                } else {
                    pair.mapped.zeropage(page as u64 * PAGE, PAGE);
                }
                drop(store);
                pair.uffd.wake(pair.at[base] + page as u64 * PAGE, PAGE);
            }
        }
    }

    /// How a page is taken.
    type TakeOne = fn(&Pair, u64, &mut [u8]);

    fn in_order(pair: &Pair, from: u64, frame: &mut [u8]) {
        assert_eq!(pair.mapped.take(&pair.pipe, from, frame).expect("taken"), Taken::Pages(1));
    }

    /// What the order is for: read first, hole afterwards.
    fn read_first(pair: &Pair, from: u64, frame: &mut [u8]) {
        use std::os::unix::fs::FileExt;
        pair.mapped.object.file.read_exact_at(frame, from).expect("read");
        // Both happen on a busy machine; here it is seen to.
        std::thread::sleep(std::time::Duration::from_micros(20));
        pair.mapped.object.punch(from, PAGE).expect("a hole");
    }

    /// Two threads count up words of the object, each through its own mapping, while its pages come and go.
    /// Returns how many counts were lost.
    fn lost_counts(pair: &Pair, take: TakeOne) -> u64 {
        const TAKES: usize = 3000;
        let store: std::sync::Mutex<Vec<Option<Vec<u8>>>> = std::sync::Mutex::new(vec![None; PAGES]);
        let (stop, counting) = (AtomicBool::new(false), AtomicBool::new(true));
        std::thread::scope(|scope| {
            scope.spawn(|| serve(pair, &store, &stop));
            let (store, counting) = (&store, &counting);
            let writers: Vec<_> = pair
                .at
                .into_iter()
                .map(|at| {
                    scope.spawn(move || {
                        let mut counted = 0u64;
                        while counting.load(Ordering::Relaxed) {
                            word(at, counted as usize % PAGES).fetch_add(1, Ordering::Relaxed);
                            counted += 1;
                        }
                        counted
                    })
                })
                .collect();
            let mut taken = 0;
            for page in (0..PAGES).cycle() {
                // The store's lock stands for the page's word: a fault waits until the bytes are there.
                let mut store = store.lock().unwrap();
                if store[page].is_none() {
                    let mut frame = vec![0; PAGE as usize];
                    take(pair, page as u64 * PAGE, &mut frame);
                    store[page] = Some(frame);
                    taken += 1;
                }
                drop(store);
                if taken == TAKES {
                    break;
                }
                std::thread::yield_now();
            }
            counting.store(false, Ordering::Relaxed);
            let counted: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
            let sum: u64 = (0..PAGES).map(|page| word(pair.at[1], page).load(Ordering::Relaxed)).sum();
            stop.store(true, Ordering::Relaxed);
            counted.abs_diff(sum)
        })
    }

    #[test]
    fn a_hole_of_somebody_else_shows() {
        let Some(pair) = pair() else { return eprintln!("not tested: CAP_CHECKPOINT_RESTORE is missing") };
        for _ in 0..3 {
            pair.mapped.punch(0, PAGE).expect("a hole");
            assert!(pair.mapped.is_punched_by_us_only());
            // Advice that leaves pages as they are is no change. SAFETY: advice on a mapping of ours that
            // changes no content.
            unsafe { libc::madvise(pair.at[0] as *mut _, BYTES, libc::MADV_COLD) };
            pair.mapped.zeropage(0, PAGE);
            assert!(pair.mapped.is_punched_by_us_only());
            // A tick, for kernels that count in them.
            std::thread::sleep(std::time::Duration::from_millis(15));
            pair.mapped.object.punch(PAGE, PAGE).expect("a hole");
            assert!(!pair.mapped.is_punched_by_us_only());
        }
    }

    /// A file as memfd_create makes it, and as a process has it mapped.
    fn memfd() -> (File, Object) {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("shmem-test", flags).expect("a memfd"));
        ftruncate(&file, BYTES as u64 + 100).expect("a length");
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let ours = OpenOptions::new().read(true).write(true).open(path).expect("opened anew");
        (file, Object::of_file(ours).expect("an object"))
    }

    #[test]
    fn it_is_known_whether_others_hold_a_file() {
        let path = format!("/dev/shm/memspill-held-{}", std::process::id());
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let (file, object) = (open().expect("a file"), Object::of_file(open().expect("once more")).unwrap());
        file.set_len(BYTES as u64).expect("a length");
        assert!(object.has_name().unwrap() && object.is_held_by_others(), "by a descriptor");
        let at = map(file.as_raw_fd(), libc::MAP_SHARED);
        drop(file);
        std::fs::remove_file(&path).expect("removed");
        assert!(!object.has_name().unwrap() && object.is_held_by_others(), "by a mapping");
        // SAFETY: the mapping just made.
        unsafe { libc::munmap(at as *mut _, BYTES) };
        assert!(!object.is_held_by_others());
        let (file, object) = memfd();
        assert!(!object.is_held_by_others(), "its first descriptor does not count");
        drop(file);
    }

    #[test]
    fn sealed_files_and_others_are_not_fit() {
        let (file, object) = memfd();
        assert_eq!((object.unfit().unwrap(), object.has_its_length()), (None, true));
        file.set_len(BYTES as u64).expect("shorter");
        assert!(!object.has_its_length());
        rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE).expect("sealed");
        assert_eq!(object.unfit().unwrap(), Some("it is sealed"));
        let elsewhere = Object::of_file(File::open("/proc/self/status").unwrap()).unwrap();
        assert_eq!(elsewhere.unfit().unwrap(), Some("it is no file of tmpfs"));
    }

    #[test]
    fn no_store_is_lost() {
        let Some(pair) = pair() else { return eprintln!("not tested: CAP_CHECKPOINT_RESTORE is missing") };
        assert_eq!(lost_counts(&pair, in_order), 0);
    }

    #[test]
    fn in_another_order_stores_are_lost() {
        let Some(pair) = pair() else { return eprintln!("not tested: CAP_CHECKPOINT_RESTORE is missing") };
        assert_ne!(lost_counts(&pair, read_first), 0, "the test above could not fail");
    }

    #[test]
    fn what_is_there_is_known_and_counted() {
        let Some(pair) = pair() else { return eprintln!("not tested: CAP_CHECKPOINT_RESTORE is missing") };
        let (mapped, page) = (&pair.mapped, |n: u64| n * PAGE);
        assert_eq!((mapped.object.bytes, mapped.object.resident_bytes().unwrap()), (BYTES as u64, 0));
        assert_eq!(mapped.copy(page(3), &[7; 2 * PAGE as usize]).bytes, page(2));
        assert_eq!(mapped.zeropage(page(9), PAGE).bytes, PAGE);
        assert_eq!(mapped.copy(page(4), &[8; PAGE as usize]).bytes, 0, "it is there");
        let present = || {
            let mut runs = Vec::new();
            mapped.present(0, BYTES as u64, |from, to| runs.push((from / PAGE, to / PAGE))).unwrap();
            runs
        };
        assert_eq!(present(), [(3, 5), (9, 10)]);
        assert_eq!(mapped.object.resident_bytes().unwrap(), page(3));
        let mut frames = vec![0; 4 * PAGE as usize];
        assert_eq!(mapped.take(&pair.pipe, page(2), &mut frames).unwrap(), Taken::Pages(4));
        let first_bytes: Vec<u8> = (0..4).map(|n| frames[n * PAGE as usize]).collect();
        assert_eq!(first_bytes, [0, 7, 7, 0], "holes are zeros");
        assert_eq!(present(), [(9, 10)]);
        assert_eq!(mapped.take(&pair.pipe, page(60), &mut [0; 16 * PAGE as usize]).unwrap(), Taken::Pages(4));
    }

    #[test]
    fn what_was_allocated_only_becomes_a_page() {
        let Some(pair) = pair() else { return eprintln!("not tested: CAP_CHECKPOINT_RESTORE is missing") };
        let (mapped, page) = (&pair.mapped, |n: u64| n * PAGE);
        assert_eq!(mapped.copy(page(3), &[7; PAGE as usize]).bytes, PAGE);
        for (from, pages) in [(2, 3), (9, 2)] {
            // SAFETY: integers, and a descriptor of ours.
            let made = unsafe {
                let fd = mapped.object.file.as_raw_fd();
                libc::fallocate(fd, 0, page(from) as i64, page(pages) as i64)
            };
            assert_eq!(made, 0);
        }
        let present = || {
            let mut runs = Vec::new();
            mapped.present(0, BYTES as u64, |from, to| runs.push((from / PAGE, to / PAGE))).unwrap();
            runs
        };
        assert_eq!((present(), mapped.object.resident_bytes().unwrap()), (vec![(3, 4)], page(5)));
        mapped.clear_allocated(0, page(10)).expect("zeros");
        assert_eq!((present(), mapped.object.resident_bytes().unwrap()), (vec![(2, 5), (9, 10)], page(5)));
        let mut frames = vec![1; 3 * PAGE as usize];
        assert_eq!(mapped.take(&pair.pipe, page(2), &mut frames).unwrap(), Taken::Pages(3));
        assert_eq!([frames[0], frames[PAGE as usize], frames[2 * PAGE as usize]], [0, 7, 0]);
    }

    #[test]
    fn what_is_registered_is_known_without_a_change() {
        let Some(pair) = pair() else { return eprintln!("not tested: CAP_CHECKPOINT_RESTORE is missing") };
        let there = pair.at[0] + PAGE;
        assert_eq!(pair.mapped.zeropage(PAGE, PAGE).bytes, PAGE);
        for addr in [pair.at[0], there] {
            assert_eq!(pair.uffd.is_registered_shared(addr), Some(true));
        }
        assert_eq!(pair.mapped.object.resident_bytes().unwrap(), PAGE, "nothing has come");
        pair.uffd.unregister(pair.at[0], BYTES as u64).expect("it is registered");
        assert_eq!(pair.uffd.is_registered_shared(there), Some(false));
        assert_eq!(pair.uffd.is_registered_shared(pair.at[1]), Some(true));
    }

    /// Another object's mapping of our own, behind this one's, is not touched.
    #[test]
    fn nothing_is_filled_behind_the_end() {
        let Some(pair) = pair() else { return eprintln!("not tested: CAP_CHECKPOINT_RESTORE is missing") };
        // New mappings are put next to each other, from above downwards, unless another test comes between.
        let theirs: Vec<u64> = (0..16).map(|_| map(-1, libc::MAP_SHARED | libc::MAP_ANONYMOUS)).collect();
        let ours = theirs.iter().map(|at| {
            let object =
                Object::of_mapping(std::process::id(), *at, at + BYTES as u64).expect("its own mapping");
            Mapped::new(object, Uffd::of_self(None).expect("a userfaultfd")).expect("a mapping of our own")
        });
        let mut all: Vec<Mapped> = std::iter::once(pair.mapped).chain(ours).collect();
        all.sort_by_key(|mapped| mapped.base);
        let neighbours = all.windows(2).find(|two| two[0].base + BYTES as u64 == two[1].base);
        let Some([below, above]) = neighbours else { panic!("no two objects lie next to each other") };
        let last = BYTES as u64 - PAGE;
        let fill = below.zeropage(last, 4 * PAGE);
        assert_eq!((fill.bytes, fill.stop), (PAGE, Stop::NotMapped));
        for fill in [below.copy(last + PAGE, &[7; 2 * PAGE as usize]), below.zeropage(last + PAGE, PAGE)] {
            assert_eq!((fill.bytes, fill.stop), (0, Stop::NotMapped));
        }
        assert!(!above.is_any_present(0, BYTES as u64).expect("a look"), "zeros behind the end");
        assert!(!below.is_any_present(BYTES as u64, PAGE).expect("a look"));
    }
}
