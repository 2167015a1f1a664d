//! A file in memory that holds a pool and its table, so that another process can read pages out of it by
//! itself: the agent of a program that is paged without a userfaultfd (its `pool.rs` is the reader).
//!
//! ```text
//!   0          4 KiB                          32 GiB
//!   ┌──────────┬──────────────────────────────┬───────────────────────────────────────────┐
//!   │ Header   │ table: a location for a slot │ pages of chunks, by number (`Handle`)     │
//!   └──────────┴──────────────────────────────┴───────────────────────────────────────────┘
//! ```
//!
//! The header is, in native byte order: `MAGIC` (4 bytes), the algorithm (4 bytes; 1: LZ4, 2: zstd, 3:
//! wordwise), and for objects of up to 32 bytes, 64, ... the room that each has (128 times 2 bytes). A form
//! in a location (location.rs) goes before that algorithm.
//!
//! Reading follows the protocol of `pool.rs`: the location, the object, the location again. A reader gets a
//! descriptor that is open for reading only, and nobody can make the file shorter, which would end us by
//! SIGBUS. (A process of the same user that sees our /proc could open it anew, for writing, as it could do
//! worse to us in other ways.)
//!
//! What it does not do: say whose page is in a slot. A reader must know that from elsewhere.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use memspill_engine::units::PAGE_SIZE;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::process::{Resource, getrlimit};

use crate::compress::Algorithm;

/// Where the table begins, in bytes.
pub const TABLE_AT: u64 = 4096;
/// Where the pages begin: the table of 2^31 slots ends before.
pub const PAGES_AT: u64 = 1 << 35;
/// Tells a reader which format it has.
pub const MAGIC: u32 = 0x6d73_7001;
/// As long as all pages that handles can name.
const FILE_BYTES: u64 = PAGES_AT + (PAGE_SIZE as u64) * (1 << 28);

const HEADER_BYTES: usize = 8 + 2 * ROOMS;

const _: () = assert!(TABLE_AT + (1 << 31) * 8 <= PAGES_AT);

/// Objects of up to 32 bytes, of up to 64, ... Each has a room of its own size.
pub const ROOMS: usize = 128;

/// An empty file, to be mapped part by part.
pub struct PoolFile {
    file: OwnedFd,
    for_readers: OwnedFd,
}

impl PoolFile {
    pub fn new(algorithm: Algorithm, rooms_bytes: &[u16; ROOMS]) -> io::Result<PoolFile> {
        // The kernel would end us for it.
        if getrlimit(Resource::Fsize).current.is_some_and(|most| most < FILE_BYTES) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("memspill-pool", flags)?;
        rustix::fs::ftruncate(&file, FILE_BYTES)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let by_name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let for_readers = rustix::fs::open(by_name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let algorithm: u32 = match algorithm {
            Algorithm::Lz4 => 1,
            Algorithm::Zstd | Algorithm::ZstdFast => 2,
            Algorithm::Wordwise => 3,
        };
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(&MAGIC.to_ne_bytes());
        header.extend_from_slice(&algorithm.to_ne_bytes());
        header.extend(rooms_bytes.iter().flat_map(|bytes| bytes.to_ne_bytes()));
        assert!(header.len() == HEADER_BYTES);
        let written = rustix::io::pwrite(&file, &header, 0)?;
        if written == header.len() {
            Ok(PoolFile { file, for_readers })
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// To be given to others.
    pub(crate) fn for_readers(&self) -> BorrowedFd<'_> {
        self.for_readers.as_fd()
    }
}

/// Where a page of chunks lies in the file, in bytes.
pub const fn offset_of(page: u32) -> u64 {
    PAGES_AT + page as u64 * PAGE_SIZE as u64
}
