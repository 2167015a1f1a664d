//! Large reads and writes of files, a piece at a time: what a call uses cannot be taken out while it runs,
//! and a whole file at once would be more than the budget.
//!
//! Only of regular files and block devices, which never keep a call waiting for others; what is written by
//! appending is written at once, so that nobody's line comes between. The signals that come meanwhile are
//! handled afterwards, as the kernel does with files.
//!
//! Of pipes, terminals and stream sockets a very large request is made a shorter one: they may always give,
//! and take, less than they are asked for. (A write that waits takes all, unless a signal comes; so whoever
//! writes so much at once has to look how much it was.) Messages are sent and received whole.

use super::gadget;
use super::in_use::{self, Use, Uses};
use super::thread::Block;
use crate::sys::{EINTR, Result, nr as calls};

const PIECE: usize = 1 << 20;
/// Of a stream, at once.
const STREAM_MOST: usize = 4 << 20;
/// The kernel's MAX_RW_COUNT.
const MOST: usize = 0x7fff_f000;

const READ: usize = 0;
const WRITE: usize = 1;
const FSTAT: usize = 5;
const PREAD64: usize = 17;
const PWRITE64: usize = 18;
const F_GETFL: usize = 3;
const O_APPEND: usize = 0o2000;

/// The call's result; None: it is not one that is made in pieces.
pub fn in_pieces(block: &mut Block, number: usize, args: [usize; 6]) -> Option<Result<usize>> {
    let is_positioned = matches!(number, PREAD64 | PWRITE64);
    let writes_memory = matches!(number, READ | PREAD64);
    let [file, at, len, offset, ..] = args;
    let len = len.min(MOST);
    if !(is_positioned || matches!(number, READ | WRITE)) || len <= PIECE || !may_be_parted(file, number) {
        return None;
    }
    let mut done = 0;
    while done < len {
        let (start, bytes) = (at.saturating_add(done), PIECE.min(len - done));
        let mut uses = Uses::new();
        uses.add(Use { start, end: start.saturating_add(bytes), writes: writes_memory });
        in_use::publish(block, &uses);
        uses.exact().for_each(in_use::bring);
        let position = if is_positioned { offset.wrapping_add(done) } else { 0 };
        // SAFETY: the program's own request, a part of it.
        let ret = unsafe { gadget::call(number, [file, start, bytes, position, 0, 0]) };
        in_use::withdraw(block);
        match ret {
            Ok(got) => {
                done += got;
                if got < bytes {
                    break;
                }
            }
            Err(EINTR) if done == 0 => {}
            Err(errno) if done == 0 => return Some(Err(errno)),
            Err(_) => break,
        }
    }
    Some(Ok(done))
}

/// How many bytes of a stream are read or written in place of so many. None: as many as that.
pub fn shortened(number: usize, args: &[usize; 6]) -> Option<usize> {
    const MSG_PEEK: usize = 2;
    const MSG_TRUNC: usize = 0x20;
    const MSG_WAITALL: usize = 0x100;
    let [file, _, len, flags, ..] = *args;
    let is_plain = match number {
        READ | WRITE | calls::SENDTO => true,
        calls::RECVFROM => flags & (MSG_PEEK | MSG_TRUNC | MSG_WAITALL) == 0,
        _ => false,
    };
    (is_plain && len > STREAM_MOST && is_stream(file)).then_some(STREAM_MOST)
}

/// May the call be one of those that are made in pieces, or shortened?
pub fn may_be_large(number: usize, args: &[usize; 6]) -> bool {
    matches!(number, READ | WRITE | PREAD64 | PWRITE64 | calls::SENDTO | calls::RECVFROM) && args[2] > PIECE
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
