//! Large reads and writes of files, a piece at a time: what a call uses cannot be taken out while it runs,
//! and a whole file at once would be more than the budget.
//!
//! Only of regular files and block devices, which never keep a call waiting for others; what is written by
//! appending is written at once, so that nobody's line comes between. The signals that come meanwhile are
//! handled afterwards, as the kernel does with files.
//!
//! A very large request to a pipe, terminal or stream socket is made a shorter one: they may always give, and
//! take, less than they are asked for. (A write that waits takes all, unless a signal comes; so whoever
//! writes so much at once has to look how much it was.) No more than that is brought of a list of buffers on
//! a stream, and the kernel ends where the next page is away. Datagrams are never so large.
//!
//! Whole, as what is asked for: writes that append, preadv2 and pwritev2 with flags, MSG_PEEK and
//! MSG_WAITALL, process_vm_readv and process_vm_writev, vmsplice, mlock.

use super::in_use::{self, Use};
use crate::machine::gadget;
use crate::machine::sys::{EINTR, Result, nr as calls};
use crate::thread::block::Block;

const PIECE: usize = 1 << 20;
/// The most of a stream at once.
const STREAM_MOST: usize = 4 << 20;
/// The kernel's MAX_RW_COUNT.
const MOST: usize = 0x7fff_f000;

const READ: usize = 0;
const WRITE: usize = 1;
const FSTAT: usize = 5;
const PREAD64: usize = 17;
const PWRITE64: usize = 18;
const SENDMSG: usize = 46;
const RECVMSG: usize = 47;
const MSG_PEEK: usize = 2;
const MSG_TRUNC: usize = 0x20;
const MSG_WAITALL: usize = 0x100;
/// `struct iovec`, and the kernel's UIO_MAXIOV.
const VECTOR_BYTES: usize = 16;
const VECTORS_MAX: usize = 1024;
const F_GETFL: usize = 3;
const O_APPEND: usize = 0o2000;

/// The call's result; None: it is not one that is made in pieces.
pub fn in_pieces(block: &mut Block, number: usize, args: [usize; 6]) -> Option<Result<usize>> {
    let [file, at, len, offset, ..] = args;
    let mut transfer = Transfer { number: single(number, &args)?, file, offset, done: 0 };
    if !is_large(number, &args) || !may_be_parted(file, transfer.number) {
        return None;
    }
    if number == transfer.number {
        return Some(transfer.run(block, at, len).1);
    }
    let mut result = Ok(0);
    for index in 0..len {
        let Some([base, len]) = gadget::read::<[usize; 2]>(at.wrapping_add(index * VECTOR_BYTES)) else {
            break;
        };
        let (goes_on, so_far) = transfer.run(block, base, len);
        result = so_far;
        if !goes_on {
            break;
        }
    }
    Some(result)
}

/// A call of which this one is several.
fn single(number: usize, args: &[usize; 6]) -> Option<usize> {
    /// Where the file stands, for preadv2 and pwritev2.
    const HERE: usize = usize::MAX;
    Some(match number {
        READ | WRITE | PREAD64 | PWRITE64 => number,
        calls::READV => READ,
        calls::WRITEV => WRITE,
        calls::PREADV => PREAD64,
        calls::PWRITEV => PWRITE64,
        // With flags they are other calls.
        calls::PREADV2 if args[5] == 0 => {
            if args[3] == HERE {
                READ
            } else {
                PREAD64
            }
        }
        calls::PWRITEV2 if args[5] == 0 => {
            if args[3] == HERE {
                WRITE
            } else {
                PWRITE64
            }
        }
        _ => return None,
    })
}

/// A part of a file, on its way.
struct Transfer {
    number: usize,
    file: usize,
    /// The offset of the first byte, if the call says it.
    offset: usize,
    done: usize,
}

impl Transfer {
    /// One more buffer: whether all of it went, and the result of the call so far.
    fn run(&mut self, block: &mut Block, at: usize, len: usize) -> (bool, Result<usize>) {
        let is_positioned = matches!(self.number, PREAD64 | PWRITE64);
        let len = len.min(MOST - self.done.min(MOST));
        let mut done = 0;
        while done < len {
            let (start, bytes) = (at.saturating_add(done), PIECE.min(len - done));
            let writes = matches!(self.number, READ | PREAD64);
            let one = Use { start, end: start.saturating_add(bytes), writes };
            in_use::publish_list(block, &[one]);
            in_use::bring(&one);
            let position = if is_positioned { self.offset.wrapping_add(self.done) } else { 0 };
            // SAFETY: the program's own request, a part of it.
            let ret = unsafe { gadget::call(self.number, [self.file, start, bytes, position, 0, 0]) };
            in_use::withdraw(block);
            match ret {
                Ok(got) => {
                    done += got;
                    self.done += got;
                    if got < bytes {
                        return (false, Ok(self.done));
                    }
                }
                Err(EINTR) if self.done == 0 => {}
                Err(errno) if self.done == 0 => return (false, Err(errno)),
                Err(_) => return (false, Ok(self.done)),
            }
        }
        (true, Ok(self.done))
    }
}

/// Is it one of those that are made in pieces, or shortened, if it is so large?
pub fn is_large(number: usize, args: &[usize; 6]) -> bool {
    match number {
        READ | WRITE | PREAD64 | PWRITE64 | calls::SENDTO | calls::RECVFROM => args[2] > PIECE,
        calls::READV | calls::WRITEV | calls::PREADV | calls::PWRITEV | calls::PREADV2 | calls::PWRITEV2 => {
            vector_len(args[1], args[2]).is_some_and(|len| len > PIECE)
        }
        _ => false,
    }
}

/// The sum of its buffers. None: the kernel will refuse it.
fn vector_len(at: usize, count: usize) -> Option<usize> {
    if count > VECTORS_MAX {
        return None;
    }
    let mut sum = 0usize;
    for index in 0..count {
        let [_, len] = gadget::read::<[usize; 2]>(at.wrapping_add(index * VECTOR_BYTES))?;
        sum = sum.checked_add(len).filter(|sum| isize::try_from(*sum).is_ok())?;
    }
    Some(sum)
}

/// As many bytes of a call are brought at most, for it is one on a stream that ends there. (Pages beyond may
/// be away: the kernel then gives or takes what came before.)
pub fn most_of(number: usize, args: &[usize; 6], uses: impl FnOnce() -> usize) -> usize {
    let is_plain = match number {
        calls::READV | calls::WRITEV | SENDMSG => true,
        RECVMSG => args[2] & (MSG_PEEK | MSG_TRUNC | MSG_WAITALL) == 0,
        _ => false,
    };
    if is_plain && uses() > STREAM_MOST && is_stream(args[0]) { STREAM_MOST } else { usize::MAX }
}

/// How many bytes of a stream are read or written in place of so many. None: as many as that.
pub fn shortened(number: usize, args: &[usize; 6]) -> Option<usize> {
    let [file, _, len, flags, ..] = *args;
    let is_plain = match number {
        READ | WRITE | calls::SENDTO => true,
        calls::RECVFROM => flags & (MSG_PEEK | MSG_TRUNC | MSG_WAITALL) == 0,
        _ => false,
    };
    (is_plain && len > STREAM_MOST && is_stream(file)).then_some(STREAM_MOST)
}

/// A call that touches one buffer and no more, its second and third argument: whether it writes there, and
/// how many bytes.
pub fn plain_transfer(number: usize, args: &[usize; 6]) -> Option<(bool, usize)> {
    match number {
        READ | PREAD64 => Some((true, args[2])),
        WRITE | PWRITE64 => Some((false, args[2])),
        _ => None,
    }
}

fn is_stream(file: usize) -> bool {
    const GETSOCKOPT: usize = 55;
    const SOL_SOCKET: usize = 1;
    const SO_TYPE: usize = 3;
    const SOCK_STREAM: i32 = 1;
    match kind_of(file) {
        Some(0o010000 | 0o020000) => true,
        Some(0o140000) => {
            let (mut kind, mut len) = (0i32, 4u32);
            let args = [file, SOL_SOCKET, SO_TYPE, &raw mut kind as usize, &raw mut len as usize, 0];
            // SAFETY: the kernel writes two integers.
            unsafe { gadget::call(GETSOCKOPT, args) }.is_ok() && kind == SOCK_STREAM
        }
        _ => false,
    }
}

/// What kind of file it is (S_IFMT).
fn kind_of(file: usize) -> Option<u64> {
    const MODE_AT: usize = 3;
    const S_IFMT: u64 = 0o170000;
    let mut stat = [0u64; 18];
    // SAFETY: the kernel writes 144 bytes.
    unsafe { gadget::call(FSTAT, [file, stat.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
    Some(stat[MODE_AT] & S_IFMT)
}

fn may_be_parted(file: usize, number: usize) -> bool {
    if !matches!(kind_of(file), Some(0o100000 | 0o060000)) {
        return false;
    }
    // SAFETY: no memory involved.
    let flags = unsafe { gadget::call(calls::FCNTL, [file, F_GETFL, 0, 0, 0, 0]) };
    number != WRITE || flags.is_ok_and(|flags| flags & O_APPEND == 0)
}
