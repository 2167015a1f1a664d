//! What a process asks of its userfaultfd: requests, and what they take (kernel: its header of that name).

use core::mem::size_of;

const API_NUMBER: usize = 0xaa;
pub const API: u64 = API_NUMBER as u64;
pub const FEATURE_SIGBUS: u64 = 1 << 7;
pub const FEATURE_MOVE: u64 = 1 << 16;
pub const MODE_MISSING: u64 = 1;
pub const MODE_PROTECT: u64 = 2;

/// A request by whose argument the kernel is told something, and tells something.
const fn request(number: usize, bytes: usize) -> usize {
    3 << 30 | bytes << 16 | API_NUMBER << 8 | number
}

#[repr(C)]
pub struct ApiArg {
    pub api: u64,
    pub features: u64,
    pub ioctls: u64,
}
pub const UFFDIO_API: usize = request(0x3f, size_of::<ApiArg>());

#[repr(C)]
pub struct RegisterArg {
    pub start: u64,
    pub len: u64,
    pub mode: u64,
    pub ioctls: u64,
}
pub const UFFDIO_REGISTER: usize = request(0, size_of::<RegisterArg>());

#[repr(C)]
pub struct RangeArg {
    pub start: u64,
    pub len: u64,
}
/// By its argument the kernel tells nothing.
pub const UFFDIO_UNREGISTER: usize = 2 << 30 | size_of::<RangeArg>() << 16 | API_NUMBER << 8 | 1;

#[repr(C)]
pub struct CopyArg {
    pub to: u64,
    pub from: u64,
    pub len: u64,
    pub mode: u64,
    /// Bytes, or an errno below zero.
    pub copied: i64,
}
pub const UFFDIO_COPY: usize = request(3, size_of::<CopyArg>());

#[repr(C)]
pub struct ZeroArg {
    pub start: u64,
    pub len: u64,
    pub mode: u64,
    /// As `copied`.
    pub zeroed: i64,
}
pub const UFFDIO_ZEROPAGE: usize = request(4, size_of::<ZeroArg>());

#[repr(C)]
pub struct MoveArg {
    pub to: u64,
    pub from: u64,
    pub len: u64,
    pub mode: u64,
    /// As `copied`; since Linux 6.18 it may be less than was moved.
    pub moved: i64,
}
pub const UFFDIO_MOVE: usize = request(5, size_of::<MoveArg>());

#[repr(C)]
pub struct ProtectArg {
    pub start: u64,
    pub len: u64,
    pub mode: u64,
}
pub const UFFDIO_WRITEPROTECT: usize = request(6, size_of::<ProtectArg>());

const _: () = assert!(UFFDIO_WRITEPROTECT == 0xc018_aa06);
const _: () = assert!(UFFDIO_API == 0xc018_aa3f && UFFDIO_REGISTER == 0xc020_aa00);
const _: () = assert!(UFFDIO_UNREGISTER == 0x8010_aa01);
const _: () = assert!(UFFDIO_COPY == 0xc028_aa03 && UFFDIO_ZEROPAGE == 0xc020_aa04);
const _: () = assert!(UFFDIO_MOVE == 0xc028_aa05);
