//! The kernel's ABI for a pager in another process, and nothing else.
//!
//! * [`userfaultfd`]: the descriptor, its ioctls and its messages; every result that a pager must tell apart
//!   is a variant, not an errno ([`userfaultfd::Stop`]).
//! * [`pagemap`]: PAGEMAP_SCAN, to learn which pages of a range are present.
//! * [`procmap`]: PROCMAP_QUERY, to learn of one mapping.
//! * [`vm`]: process_vm_readv, to read what was moved into staging.
//! * [`fanotify`]: who opens a file waits.
//! * [`shmem`]: shared-memory objects of other processes, and how pages leave them and come back.
//!
//! Numbers are derived from the size of each struct and asserted at compile time. What this crate does not
//! do: keep state, retry, or decide.

pub mod fanotify;
pub mod pagemap;
pub mod procmap;
pub mod shmem;
pub mod userfaultfd;
pub mod vm;

/// `_IOC(dir, type, nr, size)` of the generic ioctl encoding.
const fn ioc(dir: u64, ty: u64, nr: u64, size: usize) -> u64 {
    (dir << 30) | ((size as u64) << 16) | (ty << 8) | nr
}
const READ: u64 = 2;
const WRITE: u64 = 1;
