//! What the kernel tells of a pidfd (ioctl PIDFD_GET_INFO, since Linux 6.13).

/// The first version of the kernel's `struct pidfd_info`. A newer kernel fills as much as the caller's size,
/// which is part of the ioctl's number, has room for.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PidfdInfo {
    pub mask: u64,
    pub cgroupid: u64,
    /// The thread for which the pidfd was opened: of a process, its first one.
    pub pid: u32,
    /// The process.
    pub tgid: u32,
    /// The process's parent.
    pub ppid: u32,
    /// Ids of users and groups, and the exit code; memspill asks for none of them.
    pub others: [u32; 9],
}
const _: () = assert!(core::mem::size_of::<PidfdInfo>() == 64);

/// `_IOWR(0xFF, 11, struct pidfd_info)`.
pub const PIDFD_GET_INFO: u64 = 3 << 30 | (core::mem::size_of::<PidfdInfo>() as u64) << 16 | 0xFF << 8 | 11;
const _: () = assert!(PIDFD_GET_INFO == 0xC040_FF0B);
